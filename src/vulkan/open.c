/* Opening a VkDevice: what a physical device can do, its queues, and which of its memory types are
 * taken for what. */
#include <stdio.h>
#include <string.h>

#include "core/checked.h"
#include "core/error.h"
#include "core/os.h"
#include "vulkan/vulkan_impl.h"

enum {
  FAMILIES_MAX = 32
};

/* Inspection. */

static uint64_t largest_own_heap(const VkPhysicalDeviceMemoryProperties *memory) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < memory->memoryHeapCount; i++) {
    if ((memory->memoryHeaps[i].flags & VK_MEMORY_HEAP_DEVICE_LOCAL_BIT) != 0)
      bytes = quay__max(bytes, memory->memoryHeaps[i].size);
  }
  return bytes;
}

static bool has_timelines(const quay__vulkan_instance *instance, VkPhysicalDevice physical) {
  VkPhysicalDeviceVulkan12Features features = {
      .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES};
  VkPhysicalDeviceFeatures2 all = {
      .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2,
      .pNext = &features,
  };
  instance->vkGetPhysicalDeviceFeatures2(physical, &all);
  return features.timelineSemaphore == VK_TRUE;
}

static bool find_family(const quay__vulkan_instance *instance, VkPhysicalDevice physical,
                        VkQueueFlags wanted, VkQueueFlags unwanted, uint32_t *out_family,
                        uint32_t *out_count) {
  VkQueueFamilyProperties families[FAMILIES_MAX];
  uint32_t count = FAMILIES_MAX;
  instance->vkGetPhysicalDeviceQueueFamilyProperties(physical, &count, families);
  for (uint32_t i = 0; i < count; i++) {
    if ((families[i].queueFlags & wanted) == wanted && (families[i].queueFlags & unwanted) == 0 &&
        families[i].queueCount != 0) {
      *out_family = i;
      *out_count = families[i].queueCount;
      return true;
    }
  }
  return false;
}

void quay__vulkan_inspect(const quay__vulkan_instance *instance, VkPhysicalDevice physical,
                          quay__vulkan_physical *out_physical) {
  *out_physical = (quay__vulkan_physical){.handle = physical};
  VkPhysicalDeviceProperties basic;
  instance->vkGetPhysicalDeviceProperties(physical, &basic);
  out_physical->type = basic.deviceType;
  (void)snprintf(out_physical->product, sizeof out_physical->product, "%s", basic.deviceName);
  if (basic.apiVersion < QUAY__VULKAN_VERSION) {
    (void)snprintf(out_physical->reason, sizeof out_physical->reason,
                   "its driver has Vulkan %u.%u, and at least 1.2 is needed; update it",
                   VK_API_VERSION_MAJOR(basic.apiVersion), VK_API_VERSION_MINOR(basic.apiVersion));
    return;
  }
  VkPhysicalDeviceIDProperties id = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES};
  VkPhysicalDeviceProperties2 properties = {
      .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2,
      .pNext = &id,
  };
  instance->vkGetPhysicalDeviceProperties2(physical, &properties);
  memcpy(out_physical->uuid, id.deviceUUID, VK_UUID_SIZE);
  VkPhysicalDeviceMemoryProperties2 memory = {
      .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2};
  instance->vkGetPhysicalDeviceMemoryProperties2(physical, &memory);
  out_physical->bytes = largest_own_heap(&memory.memoryProperties);
  uint32_t family, count;
  const char *lacks = NULL;
  if (!has_timelines(instance, physical)) {
    lacks = "timeline semaphores";
  } else if (!find_family(instance, physical, VK_QUEUE_COMPUTE_BIT, 0, &family, &count)) {
    lacks = "a queue for compute work";
  } else if (out_physical->bytes == 0) {
    lacks = "memory of its own";
  }
  if (lacks != NULL) {
    (void)snprintf(out_physical->reason, sizeof out_physical->reason,
                   "it has no %s, which Quay "
                   "needs",
                   lacks);
  }
}

/* Description. */

static void describe_limits(quay__vulkan_device *device) {
  VkPhysicalDeviceIDProperties id = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES};
  VkPhysicalDeviceExternalMemoryHostPropertiesEXT host = {
      .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_MEMORY_HOST_PROPERTIES_EXT,
      .pNext = &id,
  };
  VkPhysicalDeviceMaintenance3Properties maintenance3 = {
      .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_3_PROPERTIES,
      .pNext = device->has_host_import ? (void *)&host : (void *)&id,
  };
  VkPhysicalDeviceMaintenance4Properties maintenance4 = {
      .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_4_PROPERTIES,
      .pNext = &maintenance3,
      .maxBufferSize = UINT64_MAX,
  };
  VkPhysicalDeviceProperties basic;
  device->instance->vkGetPhysicalDeviceProperties(device->physical, &basic);
  const bool tells_buffers = basic.apiVersion >= VK_API_VERSION_1_3;
  VkPhysicalDeviceProperties2 properties = {
      .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2,
      .pNext = tells_buffers ? (void *)&maintenance4 : (void *)&maintenance3,
  };
  device->instance->vkGetPhysicalDeviceProperties2(device->physical, &properties);
  const VkPhysicalDeviceLimits *const limits = &properties.properties.limits;
  device->limits = (quay__vulkan_limits){
      .allocation_bytes = maintenance3.maxMemoryAllocationSize,
      .buffer_bytes = maintenance4.maxBufferSize,
      .storage_range = limits->maxStorageBufferRange,
      .storage_alignment = limits->minStorageBufferOffsetAlignment,
      .atom = quay__max(limits->nonCoherentAtomSize, 1),
      .host_alignment = host.minImportedHostPointerAlignment,
      .allocations = limits->maxMemoryAllocationCount,
  };
  memcpy(device->uuid, id.deviceUUID, VK_UUID_SIZE);
  (void)snprintf(device->product, sizeof device->product, "%s", properties.properties.deviceName);
}

static bool has_extension(const VkExtensionProperties *list, uint32_t count, const char *name) {
  for (uint32_t i = 0; i < count; i++) {
    if (strcmp(list[i].extensionName, name) == 0)
      return true;
  }
  return false;
}

static quay_status list_extensions(const quay__vulkan_device *device,
                                   VkExtensionProperties **out_list, uint32_t *out_count) {
  const quay__vulkan_instance *const instance = device->instance;
  VkResult result =
      instance->vkEnumerateDeviceExtensionProperties(device->physical, NULL, out_count, NULL);
  *out_list = quay__os_calloc((size_t)*out_count + 1, sizeof **out_list);
  if (*out_list == NULL)
    return quay__fail_out_of_memory(*out_count * sizeof **out_list, "a device's extensions");
  if (result == VK_SUCCESS) {
    result = instance->vkEnumerateDeviceExtensionProperties(device->physical, NULL, out_count,
                                                            *out_list);
  }
  if (result == VK_SUCCESS)
    return QUAY_OK;
  quay__os_free(*out_list);
  return quay__vulkan_fail(NULL, result, "%s does not tell its extensions", device->name);
}

/* Whether buffers such as the backend's can be exported as file descriptors. */
static void describe_export(quay__vulkan_device *device) {
  const VkPhysicalDeviceExternalBufferInfo info = {
      .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_BUFFER_INFO,
      .usage = quay__vulkan_usage(device),
      .handleType = VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT,
  };
  VkExternalBufferProperties properties = {.sType = VK_STRUCTURE_TYPE_EXTERNAL_BUFFER_PROPERTIES};
  device->instance->vkGetPhysicalDeviceExternalBufferProperties(device->physical, &info,
                                                                &properties);
  const VkExternalMemoryFeatureFlags features =
      properties.externalMemoryProperties.externalMemoryFeatures;
  device->has_export =
      device->has_export && (features & VK_EXTERNAL_MEMORY_FEATURE_EXPORTABLE_BIT) != 0;
  device->export_dedicated = (features & VK_EXTERNAL_MEMORY_FEATURE_DEDICATED_ONLY_BIT) != 0;
}

/* Whether buffers to copy from and to can be host memory of the process. */
static void describe_host_import(quay__vulkan_device *device) {
  const VkPhysicalDeviceExternalBufferInfo info = {
      .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_BUFFER_INFO,
      .usage = QUAY__VULKAN_COPIES,
      .handleType = VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT,
  };
  VkExternalBufferProperties properties = {.sType = VK_STRUCTURE_TYPE_EXTERNAL_BUFFER_PROPERTIES};
  device->instance->vkGetPhysicalDeviceExternalBufferProperties(device->physical, &info,
                                                                &properties);
  const VkExternalMemoryFeatureFlags features =
      properties.externalMemoryProperties.externalMemoryFeatures;
  device->has_host_import = device->has_host_import &&
                            (features & VK_EXTERNAL_MEMORY_FEATURE_IMPORTABLE_BIT) != 0 &&
                            (features & VK_EXTERNAL_MEMORY_FEATURE_DEDICATED_ONLY_BIT) == 0;
}

/* Whether timelines can. */
static void describe_semaphores(quay__vulkan_device *device) {
  const VkSemaphoreTypeCreateInfo type = {
      .sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO,
      .semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE,
  };
  const VkPhysicalDeviceExternalSemaphoreInfo info = {
      .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_SEMAPHORE_INFO,
      .pNext = &type,
      .handleType = VK_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD_BIT,
  };
  VkExternalSemaphoreProperties properties = {.sType =
                                                  VK_STRUCTURE_TYPE_EXTERNAL_SEMAPHORE_PROPERTIES};
  device->instance->vkGetPhysicalDeviceExternalSemaphoreProperties(device->physical, &info,
                                                                   &properties);
  device->has_semaphore_export =
      device->has_semaphore_export &&
      (properties.externalSemaphoreFeatures & VK_EXTERNAL_SEMAPHORE_FEATURE_EXPORTABLE_BIT) != 0;
}

quay_status quay__vulkan_describe(quay__vulkan_device *device) {
  VkExtensionProperties *extensions = NULL;
  uint32_t count = 0;
  QUAY_TRY(list_extensions(device, &extensions, &count));
  device->has_budget = has_extension(extensions, count, VK_EXT_MEMORY_BUDGET_EXTENSION_NAME);
  if (!device->adopted) {
    VkPhysicalDeviceVulkan12Features features = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES};
    VkPhysicalDeviceFeatures2 all = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2,
        .pNext = &features,
    };
    device->instance->vkGetPhysicalDeviceFeatures2(device->physical, &all);
    device->has_address = features.bufferDeviceAddress == VK_TRUE;
    device->has_export = has_extension(extensions, count, VK_KHR_EXTERNAL_MEMORY_FD_EXTENSION_NAME);
    device->has_host_import =
        has_extension(extensions, count, VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME);
    device->has_semaphore_export =
        has_extension(extensions, count, VK_KHR_EXTERNAL_SEMAPHORE_FD_EXTENSION_NAME);
  }
  quay__os_free(extensions);
  describe_limits(device);
  describe_export(device);
  describe_host_import(device);
  describe_semaphores(device);
  return QUAY_OK;
}

VkBufferUsageFlags quay__vulkan_usage(const quay__vulkan_device *device) {
  const VkBufferUsageFlags usage =
      VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT |
      VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_UNIFORM_BUFFER_BIT |
      VK_BUFFER_USAGE_INDEX_BUFFER_BIT | VK_BUFFER_USAGE_VERTEX_BUFFER_BIT |
      VK_BUFFER_USAGE_INDIRECT_BUFFER_BIT;
  return device->has_address ? usage | VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT : usage;
}

/* Opening. */

/* Which families, and how many queues of each: `queue_count` and `stream_queue_count`. */
static quay_status choose_queues(quay__vulkan_device *device) {
  const quay__vulkan_instance *const instance = device->instance;
  uint32_t count = 0;
  if (!find_family(instance, device->physical, VK_QUEUE_COMPUTE_BIT, 0, &device->families[0],
                   &count)) {
    return quay_error_set(QUAY_STATUS_UNSUPPORTED, "vulkan", 0, NULL,
                          "%s (%s) has no queue for compute work", device->name, device->product);
  }
  device->stream_queue_count = (uint32_t)quay__min(count, QUAY__VULKAN_STREAM_QUEUES_MAX);
  device->queue_count = device->stream_queue_count;
  device->family_count = 1;
  if (find_family(instance, device->physical, VK_QUEUE_TRANSFER_BIT,
                  VK_QUEUE_COMPUTE_BIT | VK_QUEUE_GRAPHICS_BIT, &device->families[1], &count)) {
    device->queue_count += (uint32_t)quay__min(count, QUAY__VULKAN_COPY_QUEUES_MAX);
    device->family_count = 2;
  }
  return QUAY_OK;
}

static VkResult create(quay__vulkan_device *device) {
  static const float priorities[QUAY__VULKAN_QUEUES_MAX] = {1, 1, 1, 1, 1, 1};
  const VkDeviceQueueCreateInfo queues[] = {
      {
          .sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
          .queueFamilyIndex = device->families[0],
          .queueCount = device->stream_queue_count,
          .pQueuePriorities = priorities,
      },
      {
          .sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
          .queueFamilyIndex = device->families[1],
          .queueCount = device->queue_count - device->stream_queue_count,
          .pQueuePriorities = priorities,
      },
  };
  VkPhysicalDeviceVulkan12Features features = {
      .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES,
      .timelineSemaphore = VK_TRUE,
      .bufferDeviceAddress = device->has_address ? VK_TRUE : VK_FALSE,
  };
  const char *extensions[4];
  uint32_t extension_count = 0;
  if (device->has_budget)
    extensions[extension_count++] = VK_EXT_MEMORY_BUDGET_EXTENSION_NAME;
  if (device->has_export)
    extensions[extension_count++] = VK_KHR_EXTERNAL_MEMORY_FD_EXTENSION_NAME;
  if (device->has_host_import)
    extensions[extension_count++] = VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME;
  if (device->has_semaphore_export)
    extensions[extension_count++] = VK_KHR_EXTERNAL_SEMAPHORE_FD_EXTENSION_NAME;
  const VkDeviceCreateInfo info = {
      .sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
      .pNext = &features,
      .queueCreateInfoCount = device->family_count,
      .pQueueCreateInfos = queues,
      .enabledExtensionCount = extension_count,
      .ppEnabledExtensionNames = extensions,
  };
  return device->instance->vkCreateDevice(device->physical, &info, NULL, &device->handle);
}

static void get_queues(quay__vulkan_device *device) {
  for (uint32_t i = 0; i < device->queue_count; i++) {
    const bool copies = i >= device->stream_queue_count;
    quay__vulkan_queue *const queue = &device->queues[i];
    queue->device = device;
    queue->family = device->families[copies ? 1 : 0];
    device->api.vkGetDeviceQueue(device->handle, queue->family,
                                 copies ? i - device->stream_queue_count : i, &queue->handle);
  }
}

quay_status quay__vulkan_queues_begin(quay__vulkan_device *device) {
  for (uint32_t i = 0; i < device->queue_count; i++) {
    const quay_status status = quay__vulkan_queue_begin(&device->queues[i]);
    if (status == QUAY_OK)
      continue;
    while (i-- > 0)
      quay__vulkan_queue_end(&device->queues[i], false);
    return status;
  }
  return QUAY_OK;
}

quay_status quay__vulkan_open_handle(quay__vulkan_device *device) {
  QUAY_TRY(choose_queues(device));
  const VkResult result = create(device);
  if (result != VK_SUCCESS) {
    return quay__vulkan_fail(NULL, result, "%s (%s) can't be opened", device->name,
                             device->product);
  }
  quay_status status = quay__vulkan_api_find(device->instance, device->handle, &device->api);
  if (status == QUAY_OK) {
    get_queues(device);
    status = quay__vulkan_queues_begin(device);
  }
  if (status == QUAY_OK) {
    status = quay__vulkan_choose_types(device);
    for (uint32_t i = 0; i < device->queue_count && status != QUAY_OK; i++)
      quay__vulkan_queue_end(&device->queues[i], false);
  }
  if (status != QUAY_OK) {
    if (device->api.vkDestroyDevice != NULL)
      device->api.vkDestroyDevice(device->handle, NULL);
    device->handle = NULL;
  }
  return status;
}

/* Memory types. */

/* Types that a buffer of the backend can be in. */
static VkResult usable_types(quay__vulkan_device *device, uint32_t *out_bits) {
  const VkBufferCreateInfo info = {
      .sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
      .size = QUAY__VULKAN_ALIGNMENT,
      .usage = quay__vulkan_usage(device),
      .sharingMode = VK_SHARING_MODE_EXCLUSIVE,
  };
  VkBuffer buffer;
  VkMemoryRequirements needs;
  const VkResult result = device->api.vkCreateBuffer(device->handle, &info, NULL, &buffer);
  if (result != VK_SUCCESS)
    return result;
  device->api.vkGetBufferMemoryRequirements(device->handle, buffer, &needs);
  device->api.vkDestroyBuffer(device->handle, buffer, NULL);
  *out_bits = needs.memoryTypeBits;
  return VK_SUCCESS;
}

/* Properties of a memory type. */
typedef struct type_properties {
  bool own, visible, coherent, cached;
} type_properties;

static bool has(VkMemoryPropertyFlags flags, VkMemoryPropertyFlags bit) {
  return (flags & bit) != 0;
}

static uint64_t score_device(const type_properties *of, bool unified) {
  if (!of->own)
    return 0;
  /* One memory for both: then the processor's way is the short one. */
  if (unified)
    return of->visible && of->coherent && of->cached ? 3 : 2;
  return of->visible ? 2 : 3;
}

static uint64_t score_host(const type_properties *of) {
  if (!of->visible || !of->coherent)
    return 0;
  return 1u + (of->own ? 0u : 2u) + (of->cached ? 0u : 1u);
}

static uint64_t score_cached(const type_properties *of) {
  if (!of->visible || !of->cached)
    return 0;
  return 1u + (of->own ? 0u : 1u) + (of->coherent ? 2u : 0u);
}

/* How well a type does for a kind; 0: not at all. */
static uint64_t score(quay_vulkan_memory_kind kind, VkMemoryPropertyFlags flags, bool unified) {
  const VkMemoryPropertyFlags known =
      VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT | VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT |
      VK_MEMORY_PROPERTY_HOST_COHERENT_BIT | VK_MEMORY_PROPERTY_HOST_CACHED_BIT;
  const type_properties of = {
      .own = has(flags, VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT),
      .visible = has(flags, VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT),
      .coherent = has(flags, VK_MEMORY_PROPERTY_HOST_COHERENT_BIT),
      .cached = has(flags, VK_MEMORY_PROPERTY_HOST_CACHED_BIT),
  };
  if ((flags & ~known) != 0) /* protected, lazily allocated, uncached by the device ... */
    return 0;
  switch (kind) {
  case QUAY_VULKAN_DEVICE:
    return score_device(&of, unified);
  case QUAY_VULKAN_HOST:
    return score_host(&of);
  case QUAY_VULKAN_CACHED:
    return score_cached(&of);
  }
  return 0;
}

static bool is_unified(const quay__vulkan_device *device) {
  VkPhysicalDeviceProperties properties;
  device->instance->vkGetPhysicalDeviceProperties(device->physical, &properties);
  return properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU ||
         properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU;
}

static void choose_type(quay__vulkan_device *device, quay_vulkan_memory_kind kind,
                        const VkPhysicalDeviceMemoryProperties *memory, uint32_t usable,
                        bool unified) {
  quay__vulkan_type *const type = &device->types[kind];
  uint64_t best = 0;
  *type = (quay__vulkan_type){.present = false};
  for (uint32_t i = 0; i < memory->memoryTypeCount; i++) {
    const VkMemoryPropertyFlags flags = memory->memoryTypes[i].propertyFlags;
    const uint64_t bytes = memory->memoryHeaps[memory->memoryTypes[i].heapIndex].size;
    const uint64_t found = (usable & 1u << i) != 0 ? score(kind, flags, unified) : 0;
    /* Of equals the larger heap; the first one is the faster one, as Vulkan orders them. */
    if (found == 0 || found < best || (found == best && bytes <= type->heap_bytes))
      continue;
    best = found;
    const bool coherent = (flags & VK_MEMORY_PROPERTY_HOST_COHERENT_BIT) != 0;
    const bool cached = (flags & VK_MEMORY_PROPERTY_HOST_CACHED_BIT) != 0;
    *type = (quay__vulkan_type){
        .present = true,
        .cached = cached,
        .coherent = coherent,
        .mapped = kind != QUAY_VULKAN_DEVICE || (unified && coherent && cached),
        .index = i,
        .heap = memory->memoryTypes[i].heapIndex,
        .heap_bytes = bytes,
    };
  }
}

quay_status quay__vulkan_choose_types(quay__vulkan_device *device) {
  VkPhysicalDeviceMemoryProperties2 memory = {
      .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2};
  device->instance->vkGetPhysicalDeviceMemoryProperties2(device->physical, &memory);
  uint32_t usable = 0;
  const VkResult result = usable_types(device, &usable);
  if (result != VK_SUCCESS)
    return quay__vulkan_fail(NULL, result, "%s can't make a buffer", device->name);
  const bool unified = is_unified(device);
  const VkMemoryPropertyFlags seen =
      VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
  device->coherent_types = 0;
  for (uint32_t i = 0; i < memory.memoryProperties.memoryTypeCount; i++) {
    if ((memory.memoryProperties.memoryTypes[i].propertyFlags & seen) == seen)
      device->coherent_types |= 1u << i;
  }
  for (int kind = 0; kind < QUAY_VULKAN_MEMORY_KINDS; kind++) {
    choose_type(device, (quay_vulkan_memory_kind)kind, &memory.memoryProperties, usable, unified);
  }
  if (device->types[QUAY_VULKAN_DEVICE].present && device->types[QUAY_VULKAN_HOST].present)
    return QUAY_OK;
  return quay_error_set(QUAY_STATUS_UNSUPPORTED, "vulkan", 0, NULL,
                        "%s (%s) has no memory of its own that buffers can be in, or none that "
                        "the host reaches",
                        device->name, device->product);
}
