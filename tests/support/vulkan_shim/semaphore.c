/* Semaphores. Those of a discrete device can be exported, which lavapipe's timelines can't: as a
 * number in a page of a memfd that another double maps. What queues signal is written there too,
 * once it is reached; what is waited for may come from either side. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shim.h"

#define PAGE ((size_t)4096)

/* The shim's own files are beyond those that tests count. */
enum {
  FIRST_FILE = 512
};

typedef struct shim_semaphore {
  struct shim_semaphore *next;
  VkSemaphore handle;
  bool exportable;
  int file;       /* -1: not exported */
  uint64_t *page; /* where it is mapped */
} shim_semaphore;

static shim_semaphore *semaphores; /* guarded by the shim's lock */

static shim_semaphore *find(VkSemaphore handle) {
  pthread_mutex_lock(&shim.lock);
  shim_semaphore *found = semaphores;
  while (found != NULL && found->handle != handle)
    found = found->next;
  pthread_mutex_unlock(&shim.lock);
  return found;
}

static uint64_t *page_of(VkSemaphore handle) {
  const shim_semaphore *const found = find(handle);
  return found != NULL ? __atomic_load_n(&found->page, __ATOMIC_ACQUIRE) : NULL;
}

/* NOLINTNEXTLINE(readability-non-const-parameter): the built-in function writes to it */
static void raise_to(uint64_t *page, uint64_t value) {
  uint64_t now = __atomic_load_n(page, __ATOMIC_RELAXED);
  while (now < value && !__atomic_compare_exchange_n(page, &now, value, true, __ATOMIC_RELEASE,
                                                     __ATOMIC_RELAXED)) {
  }
}

static VkResult wait_real(shim_device *device, VkSemaphore semaphore, uint64_t value,
                          uint64_t timeout) {
  const VkSemaphoreWaitInfo info = {
      .sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO,
      .semaphoreCount = 1,
      .pSemaphores = &semaphore,
      .pValues = &value,
  };
  return device->vkWaitSemaphores(device->real, &info, timeout);
}

static VkResult signal_real(shim_device *device, VkSemaphore semaphore, uint64_t value) {
  const VkSemaphoreSignalInfo info = {
      .sType = VK_STRUCTURE_TYPE_SEMAPHORE_SIGNAL_INFO,
      .semaphore = semaphore,
      .value = value,
  };
  return device->vkSignalSemaphore(device->real, &info);
}

/* For queues. */

bool shim_semaphore_await(shim_device *device, VkSemaphore semaphore, uint64_t value) {
  const uint64_t step = 500000; /* ns */
  const uint64_t *const page = page_of(semaphore);
  while (wait_real(device, semaphore, value, step) == VK_TIMEOUT) {
    if (shim_is_lost(device))
      return false;
    if (page != NULL && __atomic_load_n(page, __ATOMIC_ACQUIRE) >= value) {
      uint64_t now = 0;
      (void)device->vkGetSemaphoreCounterValue(device->real, semaphore, &now);
      if (now < value)
        (void)signal_real(device, semaphore, value); /* the other side has */
      return true;
    }
  }
  return true;
}

void shim_semaphore_mirror(shim_device *device, VkSemaphore semaphore, uint64_t value) {
  uint64_t *const page = page_of(semaphore);
  if (page != NULL && wait_real(device, semaphore, value, UINT64_MAX) == VK_SUCCESS)
    raise_to(page, value);
}

/* Making and ending. */

static const void *chained(const void *chain, VkStructureType type) {
  for (const VkBaseInStructure *each = chain; each != NULL; each = each->pNext) {
    if (each->sType == type)
      return each;
  }
  return NULL;
}

static VKAPI_ATTR VkResult VKAPI_CALL create(VkDevice handle, const VkSemaphoreCreateInfo *info,
                                             const VkAllocationCallbacks *allocator,
                                             VkSemaphore *out) {
  VkResult result;
  if (shim_fails("vkCreateSemaphore", &result))
    return result;
  VkSemaphoreCreateInfo changed = *info;
  VkSemaphoreTypeCreateInfo type;
  const bool exportable =
      chained(info->pNext, VK_STRUCTURE_TYPE_EXPORT_SEMAPHORE_CREATE_INFO) != NULL;
  if (exportable) {
    if (!shim.settings.discrete || shim.settings.no_semaphores)
      shim_violation("a semaphore for export, which the device has not");
    memcpy(&type, chained(info->pNext, VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO), sizeof type);
    type.pNext = NULL;
    changed.pNext = &type;
  }
  result = shim_device_of(handle)->vkCreateSemaphore(handle, &changed, allocator, out);
  if (result != VK_SUCCESS)
    return result;
  shim_semaphore *const semaphore = calloc(1, sizeof *semaphore);
  semaphore->handle = *out;
  semaphore->exportable = exportable;
  semaphore->file = -1;
  pthread_mutex_lock(&shim.lock);
  semaphore->next = semaphores;
  semaphores = semaphore;
  shim.census.semaphores++;
  pthread_mutex_unlock(&shim.lock);
  return VK_SUCCESS;
}

static VKAPI_ATTR void VKAPI_CALL destroy(VkDevice handle, VkSemaphore semaphore,
                                          const VkAllocationCallbacks *allocator) {
  shim_device *const device = shim_device_of(handle);
  if (semaphore == VK_NULL_HANDLE)
    return;
  /* Lets real work on it come to an end first, which a device that is lost would not wait for. */
  if (shim_is_lost(device))
    shim_settle(device);
  pthread_mutex_lock(&shim.lock);
  shim_semaphore **link = &semaphores;
  while ((*link)->handle != semaphore)
    link = &(*link)->next;
  shim_semaphore *const ended = *link;
  *link = ended->next;
  shim.census.semaphores--;
  pthread_mutex_unlock(&shim.lock);
  if (ended->page != NULL) {
    munmap(ended->page, PAGE);
    close(ended->file);
  }
  free(ended);
  device->vkDestroySemaphore(handle, semaphore, allocator);
}

/* What queues have handed on before has no part in the page yet: it is waited for. */
static bool make_page(shim_device *device, shim_semaphore *semaphore) {
  uint64_t now = 0;
  const int made = memfd_create("vkshim", MFD_CLOEXEC);
  semaphore->file = fcntl(made, F_DUPFD_CLOEXEC, FIRST_FILE);
  close(made);
  if (semaphore->file < 0 || ftruncate(semaphore->file, (off_t)PAGE) != 0)
    return false;
  void *const page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, semaphore->file, 0);
  if (page == MAP_FAILED)
    return false;
  __atomic_store_n(&semaphore->page, page, __ATOMIC_RELEASE);
  shim_real_idle(device);
  (void)device->vkGetSemaphoreCounterValue(device->real, semaphore->handle, &now);
  raise_to(page, now);
  return true;
}

static VKAPI_ATTR VkResult VKAPI_CALL get_file(VkDevice handle, const VkSemaphoreGetFdInfoKHR *info,
                                               int *out_file) {
  VkResult result;
  if (shim_fails("vkGetSemaphoreFdKHR", &result))
    return result;
  shim_device *const device = shim_device_of(handle);
  shim_semaphore *const semaphore = find(info->semaphore);
  if (semaphore == NULL || !semaphore->exportable) {
    shim_violation("a semaphore is exported that was not made for that");
    return VK_ERROR_UNKNOWN;
  }
  static pthread_mutex_t exports = PTHREAD_MUTEX_INITIALIZER; /* one page, however many ask */
  pthread_mutex_lock(&exports);
  const bool there = semaphore->page != NULL || make_page(device, semaphore);
  pthread_mutex_unlock(&exports);
  if (!there)
    return VK_ERROR_OUT_OF_HOST_MEMORY;
  *out_file = fcntl(semaphore->file, F_DUPFD_CLOEXEC, 3);
  return *out_file >= 0 ? VK_SUCCESS : VK_ERROR_TOO_MANY_OBJECTS;
}

/* Values. */

static VKAPI_ATTR VkResult VKAPI_CALL get_value(VkDevice handle, VkSemaphore semaphore,
                                                uint64_t *out) {
  shim_device *const device = shim_device_of(handle);
  if (shim_is_lost(device))
    return VK_ERROR_DEVICE_LOST;
  return device->vkGetSemaphoreCounterValue(handle, semaphore, out);
}

static VKAPI_ATTR VkResult VKAPI_CALL signal_value(VkDevice handle,
                                                   const VkSemaphoreSignalInfo *info) {
  VkResult result;
  if (shim_fails("vkSignalSemaphore", &result))
    return result;
  shim_device *const device = shim_device_of(handle);
  uint64_t *const page = page_of(info->semaphore);
  if (page != NULL)
    raise_to(page, info->value);
  return device->vkSignalSemaphore(handle, info);
}

/* In slices, so that a loss ends it. */
static VKAPI_ATTR VkResult VKAPI_CALL wait(VkDevice handle, const VkSemaphoreWaitInfo *info,
                                           uint64_t timeout) {
  const uint64_t slice = 1000000; /* ns */
  shim_device *const device = shim_device_of(handle);
  VkResult result;
  if (shim_fails("vkWaitSemaphores", &result))
    return result;
  do {
    if (shim_is_lost(device))
      return VK_ERROR_DEVICE_LOST;
    const uint64_t part = timeout < slice ? timeout : slice;
    result = device->vkWaitSemaphores(handle, info, part);
    timeout -= timeout == UINT64_MAX ? 0 : part;
  } while (result == VK_TIMEOUT && timeout != 0);
  return result;
}

PFN_vkVoidFunction shim_semaphore_function(const char *name) {
  static const struct {
    const char *name;
    PFN_vkVoidFunction function;
  } functions[] = {
#define OWN(name, function) {name, SHIM_FUNCTION(function)}
      OWN("vkCreateSemaphore", create),
      OWN("vkDestroySemaphore", destroy),
      OWN("vkGetSemaphoreCounterValue", get_value),
      OWN("vkSignalSemaphore", signal_value),
      OWN("vkWaitSemaphores", wait),
      OWN("vkGetSemaphoreFdKHR", get_file),
#undef OWN
  };
  for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
    if (strcmp(functions[i].name, name) == 0)
      return functions[i].function;
  }
  return NULL;
}
