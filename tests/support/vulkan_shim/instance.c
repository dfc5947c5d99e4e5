/* The way in: the real loader, settings, instances, and what physical devices tell. */
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shim.h"

shim_state shim = {
    .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .gate_open = true};

static uint64_t number(const char *name, uint64_t otherwise) {
  const char *const text = getenv(name);
  return text != NULL && text[0] != '\0' ? strtoull(text, NULL, 10) : otherwise;
}

static void read_settings(void) {
  const uint64_t devices = number("VKSHIM_DEVICES", 1);
  shim.settings = (shim_settings){
      .validate = number("VKSHIM_VALIDATE", 0) != 0,
      .discrete = number("VKSHIM_DISCRETE", 0) != 0,
      .coherent = number("VKSHIM_COHERENT", 0) != 0,
      .no_address = number("VKSHIM_NO_ADDRESS", 0) != 0,
      .no_export = number("VKSHIM_NO_EXPORT", 0) != 0,
      .no_semaphores = number("VKSHIM_NO_SEMAPHORES", 0) != 0,
      .no_host_import = number("VKSHIM_NO_HOST_IMPORT", 0) != 0,
      .first_is_software = number("VKSHIM_FIRST_IS_SOFTWARE", 0) != 0,
      .uuid = getenv("VKSHIM_UUID"),
      .devices = (uint32_t)(devices < SHIM_DEVICES_MAX ? devices : SHIM_DEVICES_MAX),
      .max_allocations = number("VKSHIM_MAX_ALLOCATIONS", 0),
      .max_allocation_bytes = number("VKSHIM_MAX_ALLOCATION_BYTES", 0),
      .heap_bytes = number("VKSHIM_HEAP_BYTES", 0),
  };
}

/* The real loader, kept for good: what unloads drivers confuses sanitizers. */
static bool load(void) {
  pthread_mutex_lock(&shim.lock);
  if (shim.get == NULL) {
    shim.library = dlopen("libvulkan.so.1", RTLD_NOW | RTLD_LOCAL);
    void *const address =
        shim.library != NULL ? dlsym(shim.library, "vkGetInstanceProcAddr") : NULL;
    memcpy(&shim.get, (const void *)&address, sizeof address);
  }
  const bool loaded = shim.get != NULL;
  pthread_mutex_unlock(&shim.lock);
  return loaded;
}

/* The drivers' libraries that are loaded. */
typedef struct drivers {
  char names[16][512];
  unsigned count;
} drivers;

static int note_driver(struct dl_phdr_info *library, size_t size, void *context) {
  drivers *found = context;
  (void)size;
  const bool fits = strlen(library->dlpi_name) < sizeof found->names[0] && found->count < 16;
  if (fits && strstr(library->dlpi_name, "/libvulkan_") != NULL)
    strcpy(found->names[found->count++], library->dlpi_name);
  return 0;
}

/* They are kept for good, too: what a driver keeps would pass for a leak once the loader has
 * unloaded it with its last instance, and nobody could tell whose it was. (Mesa 22.3 keeps a list
 * of caches on AMD processors.) */
static void keep_drivers(void) {
  drivers found = {.count = 0};
  (void)dl_iterate_phdr(note_driver, &found);
  for (unsigned i = 0; i < found.count; i++)
    (void)dlopen(found.names[i], RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
}

/* Instances. */

static VKAPI_ATTR VkResult VKAPI_CALL create_instance(const VkInstanceCreateInfo *info,
                                                      const VkAllocationCallbacks *allocator,
                                                      VkInstance *out_instance) {
  read_settings();
  VkResult result;
  if (shim.settings.validate) {
    result = shim_create_validated(info, allocator, out_instance);
  } else {
    PFN_vkCreateInstance create = (PFN_vkCreateInstance)shim.get(NULL, "vkCreateInstance");
    result = create(info, allocator, out_instance);
  }
  keep_drivers();
  if (result != VK_SUCCESS)
    return result;
  if (shim.settings.validate)
    shim_messages_begin(*out_instance);
  pthread_mutex_lock(&shim.lock);
  shim.instance = *out_instance;
  shim.census.instances++;
  pthread_mutex_unlock(&shim.lock);
  return VK_SUCCESS;
}

static VKAPI_ATTR void VKAPI_CALL destroy_instance(VkInstance instance,
                                                   const VkAllocationCallbacks *allocator) {
  if (shim.settings.validate)
    shim_messages_end(instance);
  PFN_vkDestroyInstance destroy = (PFN_vkDestroyInstance)shim.get(instance, "vkDestroyInstance");
  destroy(instance, allocator);
  pthread_mutex_lock(&shim.lock);
  shim.census.instances--;
  pthread_mutex_unlock(&shim.lock);
}

static PFN_vkVoidFunction real(const char *name) {
  return shim.get(shim.instance, name);
}

/* Physical devices: each stands for the first real one. */

static const shim_physical *physical_of(VkPhysicalDevice handle) {
  return (const shim_physical *)handle;
}

static VKAPI_ATTR VkResult VKAPI_CALL list_devices(VkInstance instance, uint32_t *count,
                                                   VkPhysicalDevice *out_list) {
  VkPhysicalDevice found[16];
  uint32_t found_count = 16;
  PFN_vkEnumeratePhysicalDevices list =
      (PFN_vkEnumeratePhysicalDevices)real("vkEnumeratePhysicalDevices");
  const VkResult result = list(instance, &found_count, found);
  if (result != VK_SUCCESS && result != VK_INCOMPLETE)
    return result;
  pthread_mutex_lock(&shim.lock);
  shim.physical_count = found_count != 0 ? shim.settings.devices : 0;
  for (uint32_t i = 0; i < shim.physical_count; i++)
    shim.physicals[i] = (shim_physical){.real = found[0], .number = i};
  pthread_mutex_unlock(&shim.lock);
  const uint32_t room = out_list != NULL ? *count : shim.physical_count;
  *count = room < shim.physical_count ? room : shim.physical_count;
  for (uint32_t i = 0; out_list != NULL && i < *count; i++)
    out_list[i] = (VkPhysicalDevice)&shim.physicals[i];
  return *count < shim.physical_count ? VK_INCOMPLETE : VK_SUCCESS;
}

/* What a caller chained to a structure. */
static void *chained(void *chain, VkStructureType type) {
  for (VkBaseOutStructure *each = chain; each != NULL; each = each->pNext) {
    if (each->sType == type)
      return each;
  }
  return NULL;
}

static void change_properties(const shim_physical *of, VkPhysicalDeviceProperties *properties) {
  const shim_settings *const settings = &shim.settings;
  if (settings->discrete) {
    if (of->number != 0 || !settings->first_is_software)
      properties->deviceType = VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU;
    properties->limits.nonCoherentAtomSize = SHIM_ATOM;
  }
  if (settings->max_allocations != 0)
    properties->limits.maxMemoryAllocationCount = (uint32_t)settings->max_allocations;
}

static VKAPI_ATTR void VKAPI_CALL get_properties(VkPhysicalDevice handle,
                                                 VkPhysicalDeviceProperties *out) {
  PFN_vkGetPhysicalDeviceProperties get =
      (PFN_vkGetPhysicalDeviceProperties)real("vkGetPhysicalDeviceProperties");
  get(physical_of(handle)->real, out);
  change_properties(physical_of(handle), out);
}

static VKAPI_ATTR void VKAPI_CALL get_properties2(VkPhysicalDevice handle,
                                                  VkPhysicalDeviceProperties2 *out) {
  PFN_vkGetPhysicalDeviceProperties2 get =
      (PFN_vkGetPhysicalDeviceProperties2)real("vkGetPhysicalDeviceProperties2");
  get(physical_of(handle)->real, out);
  change_properties(physical_of(handle), &out->properties);
  VkPhysicalDeviceIDProperties *const id =
      chained(out->pNext, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES);
  if (id != NULL && shim.settings.uuid != NULL)
    memcpy(id->deviceUUID, shim.settings.uuid, VK_UUID_SIZE);
  if (id != NULL)
    id->deviceUUID[0] = (uint8_t)(id->deviceUUID[0] + physical_of(handle)->number);
  VkPhysicalDeviceMaintenance3Properties *const maintenance =
      chained(out->pNext, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_3_PROPERTIES);
  if (maintenance != NULL && shim.settings.max_allocation_bytes != 0)
    maintenance->maxMemoryAllocationSize = shim.settings.max_allocation_bytes;
}

static VKAPI_ATTR void VKAPI_CALL get_features2(VkPhysicalDevice handle,
                                                VkPhysicalDeviceFeatures2 *out) {
  PFN_vkGetPhysicalDeviceFeatures2 get =
      (PFN_vkGetPhysicalDeviceFeatures2)real("vkGetPhysicalDeviceFeatures2");
  get(physical_of(handle)->real, out);
  VkPhysicalDeviceVulkan12Features *const features =
      chained(out->pNext, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES);
  if (features != NULL && shim.settings.no_address)
    features->bufferDeviceAddress = VK_FALSE;
}

static void change_memory(VkPhysicalDeviceMemoryProperties *memory) {
  if (shim.settings.heap_bytes != 0)
    memory->memoryHeaps[0].size = shim.settings.heap_bytes;
  if (!shim.settings.discrete)
    return;
  memory->memoryHeapCount = 2;
  memory->memoryHeaps[1] = (VkMemoryHeap){.size = memory->memoryHeaps[0].size};
  memory->memoryTypeCount = SHIM_TYPES;
  memory->memoryTypes[SHIM_TYPE_OWN] =
      (VkMemoryType){.propertyFlags = VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT, .heapIndex = 0};
  memory->memoryTypes[SHIM_TYPE_HOST] = (VkMemoryType){
      .propertyFlags = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT,
      .heapIndex = 1};
  VkMemoryPropertyFlags cached =
      VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_CACHED_BIT;
  if (shim.settings.coherent)
    cached |= VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
  memory->memoryTypes[SHIM_TYPE_CACHED] = (VkMemoryType){.propertyFlags = cached, .heapIndex = 1};
}

static VKAPI_ATTR void VKAPI_CALL get_memory2(VkPhysicalDevice handle,
                                              VkPhysicalDeviceMemoryProperties2 *out) {
  PFN_vkGetPhysicalDeviceMemoryProperties2 get =
      (PFN_vkGetPhysicalDeviceMemoryProperties2)real("vkGetPhysicalDeviceMemoryProperties2");
  get(physical_of(handle)->real, out);
  change_memory(&out->memoryProperties);
}

static VKAPI_ATTR void VKAPI_CALL get_families(VkPhysicalDevice handle, uint32_t *count,
                                               VkQueueFamilyProperties *out) {
  PFN_vkGetPhysicalDeviceQueueFamilyProperties get =
      (PFN_vkGetPhysicalDeviceQueueFamilyProperties)real(
          "vkGetPhysicalDeviceQueueFamilyProperties");
  const uint32_t room = *count;
  get(physical_of(handle)->real, count, out);
  if (!shim.settings.discrete)
    return;
  if (out == NULL) {
    *count = 2;
  } else if (room >= 2) {
    *count = 2;
    out[1] = (VkQueueFamilyProperties){.queueFlags = VK_QUEUE_TRANSFER_BIT,
                                       .queueCount = SHIM_COPY_QUEUES};
  }
}

static VKAPI_ATTR void VKAPI_CALL
get_external_buffer(VkPhysicalDevice handle, const VkPhysicalDeviceExternalBufferInfo *info,
                    VkExternalBufferProperties *out) {
  PFN_vkGetPhysicalDeviceExternalBufferProperties get =
      (PFN_vkGetPhysicalDeviceExternalBufferProperties)real(
          "vkGetPhysicalDeviceExternalBufferProperties");
  get(physical_of(handle)->real, info, out);
}

static VKAPI_ATTR void VKAPI_CALL
get_external_semaphore(VkPhysicalDevice handle, const VkPhysicalDeviceExternalSemaphoreInfo *info,
                       VkExternalSemaphoreProperties *out) {
  PFN_vkGetPhysicalDeviceExternalSemaphoreProperties get =
      (PFN_vkGetPhysicalDeviceExternalSemaphoreProperties)real(
          "vkGetPhysicalDeviceExternalSemaphoreProperties");
  get(physical_of(handle)->real, info, out);
  const VkSemaphoreTypeCreateInfo *const type =
      chained((void *)(uintptr_t)info->pNext, VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO);
  if (shim.settings.discrete && !shim.settings.no_semaphores && type != NULL &&
      type->semaphoreType == VK_SEMAPHORE_TYPE_TIMELINE &&
      info->handleType == VK_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD_BIT)
    out->externalSemaphoreFeatures = VK_EXTERNAL_SEMAPHORE_FEATURE_EXPORTABLE_BIT;
}

static void hide(VkExtensionProperties *list, uint32_t count, const char *name) {
  for (uint32_t i = 0; i < count; i++) {
    if (strcmp(list[i].extensionName, name) == 0)
      (void)snprintf(list[i].extensionName, sizeof list[i].extensionName, "VK_SHIM_hidden");
  }
}

static VKAPI_ATTR VkResult VKAPI_CALL list_extensions(VkPhysicalDevice handle, const char *layer,
                                                      uint32_t *count, VkExtensionProperties *out) {
  PFN_vkEnumerateDeviceExtensionProperties list =
      (PFN_vkEnumerateDeviceExtensionProperties)real("vkEnumerateDeviceExtensionProperties");
  const uint32_t room = *count;
  const VkResult result = list(physical_of(handle)->real, layer, count, out);
  if (out != NULL && shim.settings.no_export)
    hide(out, *count, VK_KHR_EXTERNAL_MEMORY_FD_EXTENSION_NAME);
  if (out != NULL && shim.settings.no_host_import)
    hide(out, *count, VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME);
  if (!shim.settings.discrete || shim.settings.no_semaphores || result != VK_SUCCESS)
    return result;
  if (out != NULL && *count < room) {
    (void)snprintf(out[*count].extensionName, sizeof out[*count].extensionName,
                   VK_KHR_EXTERNAL_SEMAPHORE_FD_EXTENSION_NAME);
  }
  (*count)++;
  return result;
}

static VKAPI_ATTR VkResult VKAPI_CALL create_device(VkPhysicalDevice handle,
                                                    const VkDeviceCreateInfo *info,
                                                    const VkAllocationCallbacks *allocator,
                                                    VkDevice *out_device) {
  VkResult result;
  if (shim_fails("vkCreateDevice", &result))
    return result;
  return shim_create_device(physical_of(handle), info, allocator, out_device);
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL get_device_function(VkDevice device,
                                                                    const char *name) {
  const PFN_vkVoidFunction own = shim_device_function(name);
  return own != NULL ? own : shim_device_of(device)->get(device, name);
}

PFN_vkVoidFunction shim_instance_function(const char *name) {
  static const struct {
    const char *name;
    PFN_vkVoidFunction function;
  } functions[] = {
#define OWN(name, function) {name, SHIM_FUNCTION(function)}
      OWN("vkCreateInstance", create_instance),
      OWN("vkDestroyInstance", destroy_instance),
      OWN("vkEnumeratePhysicalDevices", list_devices),
      OWN("vkGetPhysicalDeviceProperties", get_properties),
      OWN("vkGetPhysicalDeviceProperties2", get_properties2),
      OWN("vkGetPhysicalDeviceFeatures2", get_features2),
      OWN("vkGetPhysicalDeviceMemoryProperties2", get_memory2),
      OWN("vkGetPhysicalDeviceQueueFamilyProperties", get_families),
      OWN("vkGetPhysicalDeviceExternalBufferProperties", get_external_buffer),
      OWN("vkGetPhysicalDeviceExternalSemaphoreProperties", get_external_semaphore),
      OWN("vkEnumerateDeviceExtensionProperties", list_extensions),
      OWN("vkCreateDevice", create_device),
      OWN("vkGetDeviceProcAddr", get_device_function),
#undef OWN
  };
  for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
    if (strcmp(functions[i].name, name) == 0)
      return functions[i].function;
  }
  return NULL;
}

SHIM_EXPORT VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL vkGetInstanceProcAddr(VkInstance instance,
                                                                           const char *name);
SHIM_EXPORT VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL vkGetInstanceProcAddr(VkInstance instance,
                                                                           const char *name) {
  if (!load())
    return NULL;
  const PFN_vkVoidFunction own = shim_instance_function(name);
  if (own != NULL)
    return own;
  /* Device functions reach the shim's devices in this way, too. */
  const PFN_vkVoidFunction device = shim_device_function(name);
  return device != NULL ? device : shim.get(instance, name);
}

SHIM_EXPORT void vkshim_count(vkshim_census *out);
SHIM_EXPORT void vkshim_count(vkshim_census *out) {
  pthread_mutex_lock(&shim.lock);
  *out = shim.census;
  pthread_mutex_unlock(&shim.lock);
}
