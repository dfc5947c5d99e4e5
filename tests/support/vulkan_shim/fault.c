/* Calls that are made to fail, counted by name. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shim.h"

static struct counted {
  const char *name;
  uint64_t calls, fail_at;
  VkResult result;
} functions[] = {
    {.name = "vkQueueSubmit"},       {.name = "vkAllocateMemory"},
    {.name = "vkCreateBuffer"},      {.name = "vkMapMemory"},
    {.name = "vkCreateDevice"},      {.name = "vkWaitSemaphores"},
    {.name = "vkCreateSemaphore"},   {.name = "vkCreateCommandPool"},
    {.name = "vkGetSemaphoreFdKHR"}, {.name = "vkGetMemoryHostPointerPropertiesEXT"},
    {.name = "vkSignalSemaphore"},   {.name = "vkGetMemoryFdKHR"},
};

static struct counted *find(const char *name) {
  for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
    if (strcmp(functions[i].name, name) == 0)
      return &functions[i];
  }
  fprintf(stderr, "vkshim: calls of %s are not counted\n", name);
  abort();
}

bool shim_fails(const char *function, VkResult *out_result) {
  pthread_mutex_lock(&shim.lock);
  struct counted *const counted = find(function);
  counted->calls++;
  const bool fails = counted->fail_at != 0 && counted->calls == counted->fail_at;
  *out_result = counted->result;
  pthread_mutex_unlock(&shim.lock);
  return fails;
}

SHIM_EXPORT void vkshim_fail(const char *function, uint64_t n, int result);
SHIM_EXPORT void vkshim_fail(const char *function, uint64_t n, int result) {
  pthread_mutex_lock(&shim.lock);
  struct counted *const counted = find(function);
  counted->fail_at = n != 0 ? counted->calls + n : 0;
  counted->result = (VkResult)result;
  pthread_mutex_unlock(&shim.lock);
}

SHIM_EXPORT uint64_t vkshim_calls(const char *function);
SHIM_EXPORT uint64_t vkshim_calls(const char *function) {
  pthread_mutex_lock(&shim.lock);
  const uint64_t calls = find(function)->calls;
  pthread_mutex_unlock(&shim.lock);
  return calls;
}
