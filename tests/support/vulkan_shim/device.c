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

bool shim_is_lost(const shim_device *device) {
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
    changed.enabledExtensionCount = 1;
    for (uint32_t i = 0; i < info->enabledExtensionCount; i++) {
      const char *const name = info->ppEnabledExtensionNames[i];
      if (strcmp(name, VK_KHR_EXTERNAL_SEMAPHORE_FD_EXTENSION_NAME) != 0 &&
          strcmp(name, VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME) != 0)
        extensions[changed.enabledExtensionCount++] = name;
    }
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

/* Command pools. */

/* Lets real work on it come to an end first, which a device that is lost would not wait for. */
static void settle(shim_device *device) {
  if (shim_is_lost(device))
    shim_settle(device);
}

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
      OWN("vkDestroyDevice", destroy_device),
      OWN("vkGetDeviceProcAddr", get_function),
      OWN("vkCreateCommandPool", create_pool),
      OWN("vkDestroyCommandPool", destroy_pool),
#undef OWN
  };
  for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
    if (strcmp(functions[i].name, name) == 0)
      return functions[i].function;
  }
  const PFN_vkVoidFunction memory = shim_memory_function(name);
  if (memory != NULL)
    return memory;
  const PFN_vkVoidFunction semaphore = shim_semaphore_function(name);
  return semaphore != NULL ? semaphore : shim_queue_function(name);
}
