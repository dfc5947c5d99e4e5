/* Devices: opened, lost, and the functions that a lost one fails. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "shim.h"

/* Every function that takes something of a device takes the device first, but those on queues and
 * command buffers. */
shim_device *shim_device_of(VkDevice device) {
  pthread_mutex_lock(&shim.lock);
  shim_device *found = shim.devices;
  while (found != NULL && found->real != device)
    found = found->next;
  pthread_mutex_unlock(&shim.lock);
  if (found == NULL)
    abort(); /* a handle that was destroyed */
  return found;
}

static bool is_lost(const shim_device *device) {
  pthread_mutex_lock(&shim.lock);
  const bool lost = device->lost;
  pthread_mutex_unlock(&shim.lock);
  return lost;
}

SHIM_EXPORT void vkshim_lose(void) {
  pthread_mutex_lock(&shim.lock);
  for (shim_device *device = shim.devices; device != NULL; device = device->next)
    device->lost = true;
  pthread_cond_broadcast(&shim.changed);
  pthread_mutex_unlock(&shim.lock);
}

/* Opening. The real device has one queue, on which all are. */

VkResult shim_create_device(const shim_physical *physical, const VkDeviceCreateInfo *info,
                            const VkAllocationCallbacks *allocator, VkDevice *out_device) {
  static const float priority = 1;
  const VkDeviceQueueCreateInfo queue = {
      .sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
      .queueCount = 1,
      .pQueuePriorities = &priority,
  };
  VkDeviceCreateInfo changed = *info;
  const char *extensions[8] = {VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME};
  if (shim.settings.discrete) {
    for (uint32_t i = 0; i < info->enabledExtensionCount; i++)
      extensions[i + 1] = info->ppEnabledExtensionNames[i];
    changed.enabledExtensionCount = info->enabledExtensionCount + 1;
    changed.ppEnabledExtensionNames = extensions;
    changed.queueCreateInfoCount = 1;
    changed.pQueueCreateInfos = &queue;
  }
  PFN_vkCreateDevice create = (PFN_vkCreateDevice)shim.get(shim.instance, "vkCreateDevice");
  const VkResult result = create(physical->real, &changed, allocator, out_device);
  if (result != VK_SUCCESS)
    return result;
  shim_device *const device = calloc(1, sizeof *device);
  device->real = *out_device;
  device->get = (PFN_vkGetDeviceProcAddr)shim.get(shim.instance, "vkGetDeviceProcAddr");
#define X(name) device->name = (PFN_##name)device->get(device->real, #name);
  SHIM_DEVICE_FUNCTIONS(X)
#undef X
  device->vkGetDeviceQueue(device->real, 0, 0, &device->queue);
  pthread_mutex_lock(&shim.lock);
  device->next = shim.devices;
  shim.devices = device;
  shim.census.devices++;
  pthread_mutex_unlock(&shim.lock);
  if (shim.settings.discrete)
    shim_queues_begin(device);
  return VK_SUCCESS;
}

static VKAPI_ATTR void VKAPI_CALL destroy_device(VkDevice handle,
                                                 const VkAllocationCallbacks *allocator) {
  if (handle == NULL)
    return;
  shim_device *const device = shim_device_of(handle);
  if (shim.settings.discrete)
    shim_queues_end(device);
  pthread_mutex_lock(&shim.lock);
  shim_device **link = &shim.devices;
  while (*link != device)
    link = &(*link)->next;
  *link = device->next;
  shim.census.devices--;
  const bool lost = device->lost;
  pthread_mutex_unlock(&shim.lock);
  /* A loss of the shim's leaves work under way. */
  if (lost)
    shim_settle(device);
  device->vkDestroyDevice(handle, allocator);
  free(device);
}

/* Semaphores. */

static VKAPI_ATTR VkResult VKAPI_CALL create_semaphore(VkDevice handle,
                                                       const VkSemaphoreCreateInfo *info,
                                                       const VkAllocationCallbacks *allocator,
                                                       VkSemaphore *out) {
  VkResult result;
  if (shim_fails("vkCreateSemaphore", &result))
    return result;
  result = shim_device_of(handle)->vkCreateSemaphore(handle, info, allocator, out);
  pthread_mutex_lock(&shim.lock);
  shim.census.semaphores += result == VK_SUCCESS;
  pthread_mutex_unlock(&shim.lock);
  return result;
}

/* Lets real work on it come to an end first, which a device that is lost would not wait for. */
static void settle(shim_device *device) {
  if (is_lost(device))
    shim_settle(device);
}

static VKAPI_ATTR void VKAPI_CALL destroy_semaphore(VkDevice handle, VkSemaphore semaphore,
                                                    const VkAllocationCallbacks *allocator) {
  shim_device *const device = shim_device_of(handle);
  settle(device);
  device->vkDestroySemaphore(handle, semaphore, allocator);
  pthread_mutex_lock(&shim.lock);
  shim.census.semaphores -= semaphore != VK_NULL_HANDLE;
  pthread_mutex_unlock(&shim.lock);
}

static VKAPI_ATTR VkResult VKAPI_CALL get_value(VkDevice handle, VkSemaphore semaphore,
                                                uint64_t *out) {
  shim_device *const device = shim_device_of(handle);
  if (is_lost(device))
    return VK_ERROR_DEVICE_LOST;
  return device->vkGetSemaphoreCounterValue(handle, semaphore, out);
}

/* In slices, so that a loss ends it. */
static VKAPI_ATTR VkResult VKAPI_CALL wait_semaphores(VkDevice handle,
                                                      const VkSemaphoreWaitInfo *info,
                                                      uint64_t timeout) {
  const uint64_t slice = 1000 * 1000;
  shim_device *const device = shim_device_of(handle);
  VkResult result;
  if (shim_fails("vkWaitSemaphores", &result))
    return result;
  do {
    if (is_lost(device))
      return VK_ERROR_DEVICE_LOST;
    const uint64_t part = timeout < slice ? timeout : slice;
    result = device->vkWaitSemaphores(handle, info, part);
    timeout -= timeout == UINT64_MAX ? 0 : part;
  } while (result == VK_TIMEOUT && timeout != 0);
  return result;
}

/* Command pools. */

static VKAPI_ATTR VkResult VKAPI_CALL create_pool(VkDevice handle,
                                                  const VkCommandPoolCreateInfo *info,
                                                  const VkAllocationCallbacks *allocator,
                                                  VkCommandPool *out) {
  VkResult result;
  if (shim_fails("vkCreateCommandPool", &result))
    return result;
  VkCommandPoolCreateInfo changed = *info;
  changed.queueFamilyIndex = 0;
  result = shim_device_of(handle)->vkCreateCommandPool(handle, &changed, allocator, out);
  pthread_mutex_lock(&shim.lock);
  shim.census.pools += result == VK_SUCCESS;
  pthread_mutex_unlock(&shim.lock);
  return result;
}

static VKAPI_ATTR void VKAPI_CALL destroy_pool(VkDevice handle, VkCommandPool pool,
                                               const VkAllocationCallbacks *allocator) {
  shim_device *const device = shim_device_of(handle);
  settle(device);
  device->vkDestroyCommandPool(handle, pool, allocator);
  pthread_mutex_lock(&shim.lock);
  shim.census.pools -= pool != VK_NULL_HANDLE;
  pthread_mutex_unlock(&shim.lock);
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL get_function(VkDevice device, const char *name) {
  const PFN_vkVoidFunction own = shim_device_function(name);
  return own != NULL ? own : shim_device_of(device)->get(device, name);
}

PFN_vkVoidFunction shim_device_function(const char *name) {
  static const struct {
    const char *name;
    PFN_vkVoidFunction function;
  } functions[] = {
#define OWN(name, function) {name, SHIM_FUNCTION(function)}
      OWN("vkDestroyDevice", destroy_device),       OWN("vkGetDeviceProcAddr", get_function),
      OWN("vkCreateSemaphore", create_semaphore),   OWN("vkDestroySemaphore", destroy_semaphore),
      OWN("vkGetSemaphoreCounterValue", get_value), OWN("vkWaitSemaphores", wait_semaphores),
      OWN("vkCreateCommandPool", create_pool),      OWN("vkDestroyCommandPool", destroy_pool),
#undef OWN
  };
  for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
    if (strcmp(functions[i].name, name) == 0)
      return functions[i].function;
  }
  const PFN_vkVoidFunction memory = shim_memory_function(name);
  return memory != NULL ? memory : shim_queue_function(name);
}
