/* Finds the shim's control functions. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "vkshim.h"

static vkshim_control control;
static bool found;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static bool take(const char *name, void *out) {
  void *const symbol = dlsym(control.library, name);
  memcpy(out, (const void *)&symbol, sizeof symbol);
  return symbol != NULL;
}

static void load(void) {
  const char *const path = getenv("QUAY_VULKAN_LIBRARY");
  control.library = path != NULL ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
  found =
      control.library != NULL && take("vkshim_count", (void *)&control.count) &&
      take("vkshim_lose", (void *)&control.lose) && take("vkshim_fail", (void *)&control.fail) &&
      take("vkshim_calls", (void *)&control.calls) && take("vkshim_gate", (void *)&control.gate) &&
      take("vkshim_submissions", (void *)&control.submissions);
}

const vkshim_control *vkshim_control_get(void) {
  (void)pthread_once(&once, load);
  return found ? &control : NULL;
}
