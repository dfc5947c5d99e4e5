/* The device of vulkan_raw.c, its queues and its memory. No copies. */
#include "vulkan_raw.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE_PAGE (UINT64_C(2) << 20)

void must(VkResult result, const char *what) {
  if (result == VK_SUCCESS)
    return;
  char text[96];
  (void)snprintf(text, sizeof text, "%s answers %d", what, (int)result);
  bench_failed(text);
}

/* The device. */

static bool has_extension(const raw *all, const char *name) {
  static VkExtensionProperties list[512];
  uint32_t count = sizeof list / sizeof list[0];
  const VkResult result =
      all->instance.vkEnumerateDeviceExtensionProperties(all->physical, NULL, &count, list);
  for (uint32_t i = 0; i < count && (result == VK_SUCCESS || result == VK_INCOMPLETE); i++) {
    if (strcmp(list[i].extensionName, name) == 0)
      return true;
  }
  return false;
}

static void find_families(raw *all) {
  VkQueueFamilyProperties found[FAMILIES_MAX];
  all->family_count = FAMILIES_MAX;
  all->instance.vkGetPhysicalDeviceQueueFamilyProperties(all->physical, &all->family_count, found);
  const VkQueueFlags copies = VK_QUEUE_TRANSFER_BIT | VK_QUEUE_COMPUTE_BIT | VK_QUEUE_GRAPHICS_BIT;
  for (uint32_t i = 0; i < all->family_count; i++) {
    all->families[i].flags = found[i].queueFlags;
    if ((found[i].queueFlags & copies) != 0)
      all->families[i].count = found[i].queueCount < QUEUES_MAX ? found[i].queueCount : QUEUES_MAX;
    printf("  family %u: %u queues%s%s%s, flags 0x%x\n", i, found[i].queueCount,
           (found[i].queueFlags & VK_QUEUE_GRAPHICS_BIT) != 0 ? ", graphics" : "",
           (found[i].queueFlags & VK_QUEUE_COMPUTE_BIT) != 0 ? ", compute" : "",
           (found[i].queueFlags & VK_QUEUE_TRANSFER_BIT) != 0 ? ", transfer" : "",
           found[i].queueFlags);
  }
}

static void open_device(raw *all) {
  static const float priorities[QUEUES_MAX] = {1, 1};
  VkDeviceQueueCreateInfo queues[FAMILIES_MAX];
  uint32_t count = 0;
  for (uint32_t i = 0; i < all->family_count; i++) {
    if (all->families[i].count == 0)
      continue;
    queues[count++] = (VkDeviceQueueCreateInfo){
        .sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
        .queueFamilyIndex = i,
        .queueCount = all->families[i].count,
        .pQueuePriorities = priorities,
    };
  }
  const VkPhysicalDeviceVulkan12Features features = {
      .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES,
      .timelineSemaphore = VK_TRUE,
  };
  const char *extensions[2];
  uint32_t extension_count = 0;
  all->can_import = has_extension(all, VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME);
  all->can_export = has_extension(all, VK_KHR_EXTERNAL_SEMAPHORE_FD_EXTENSION_NAME);
  if (all->can_import)
    extensions[extension_count++] = VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME;
  if (all->can_export)
    extensions[extension_count++] = VK_KHR_EXTERNAL_SEMAPHORE_FD_EXTENSION_NAME;
  const VkDeviceCreateInfo info = {
      .sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
      .pNext = &features,
      .queueCreateInfoCount = count,
      .pQueueCreateInfos = queues,
      .enabledExtensionCount = extension_count,
      .ppEnabledExtensionNames = extensions,
  };
  must(all->instance.vkCreateDevice(all->physical, &info, NULL, &all->device), "vkCreateDevice");
  bench_check(quay__vulkan_api_find(&all->instance, all->device, &all->api), "the functions");
  const PFN_vkVoidFunction found =
      all->instance.vkGetDeviceProcAddr(all->device, "vkFreeCommandBuffers");
  memcpy(&all->free_commands, &found, sizeof found);
}

static void make_queue(raw *all, uint32_t family, uint32_t index) {
  raw_queue *queue = &all->families[family].queues[index];
  queue->family = family;
  queue->lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
  all->api.vkGetDeviceQueue(all->device, family, index, &queue->handle);
  const VkCommandPoolCreateInfo pool = {
      .sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
      .queueFamilyIndex = family,
  };
  must(all->api.vkCreateCommandPool(all->device, &pool, NULL, &queue->pool), "vkCreateCommandPool");
  for (int exported = 0; exported < (all->can_export ? 2 : 1); exported++) {
    const VkExportSemaphoreCreateInfo export = {
        .sType = VK_STRUCTURE_TYPE_EXPORT_SEMAPHORE_CREATE_INFO,
        .handleTypes = VK_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD_BIT,
    };
    const VkSemaphoreTypeCreateInfo type = {
        .sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO,
        .pNext = exported != 0 ? &export : NULL,
        .semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE,
    };
    const VkSemaphoreCreateInfo info = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO,
                                        .pNext = &type};
    must(all->api.vkCreateSemaphore(all->device, &info, NULL, &queue->timelines[exported]),
         "vkCreateSemaphore");
  }
}

/* Memory. */

/* The first type that has all of `wanted` and none of `unwanted`; -1: none. */
static int find_type(const raw *all, uint32_t usable, VkMemoryPropertyFlags wanted,
                     VkMemoryPropertyFlags unwanted) {
  for (uint32_t i = 0; i < all->types.memoryTypeCount; i++) {
    const VkMemoryPropertyFlags flags = all->types.memoryTypes[i].propertyFlags;
    if ((usable & 1u << i) != 0 && (flags & wanted) == wanted && (flags & unwanted) == 0)
      return (int)i;
  }
  return -1;
}

static VkMemoryRequirements make_buffer(const raw *all, bool imported, raw_memory *out) {
  uint32_t families[FAMILIES_MAX], count = 0;
  for (uint32_t i = 0; i < all->family_count; i++) {
    if (all->families[i].count != 0)
      families[count++] = i;
  }
  const VkExternalMemoryBufferCreateInfo external = {
      .sType = VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO,
      .handleTypes = VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT,
  };
  const VkBufferCreateInfo info = {
      .sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
      .pNext = imported ? &external : NULL,
      .size = all->size,
      .usage = VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT,
      .sharingMode = count > 1 ? VK_SHARING_MODE_CONCURRENT : VK_SHARING_MODE_EXCLUSIVE,
      .queueFamilyIndexCount = count > 1 ? count : 0,
      .pQueueFamilyIndices = families,
  };
  VkMemoryRequirements needs;
  must(all->api.vkCreateBuffer(all->device, &info, NULL, &out->buffer), "vkCreateBuffer");
  all->api.vkGetBufferMemoryRequirements(all->device, out->buffer, &needs);
  return needs;
}

static void end_memory(const raw *all, raw_memory *memory) {
  all->api.vkDestroyBuffer(all->device, memory->buffer, NULL);
  all->api.vkFreeMemory(all->device, memory->memory, NULL);
  *memory = (raw_memory){.buffer = VK_NULL_HANDLE};
}

static void make_memory(const raw *all, VkMemoryPropertyFlags wanted,
                        VkMemoryPropertyFlags unwanted, raw_memory *out) {
  const VkMemoryRequirements needs = make_buffer(all, false, out);
  const int type = find_type(all, needs.memoryTypeBits, wanted, unwanted);
  const VkMemoryAllocateInfo info = {
      .sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
      .allocationSize = needs.size,
      .memoryTypeIndex = (uint32_t)type,
  };
  if (type < 0 || all->api.vkAllocateMemory(all->device, &info, NULL, &out->memory) != VK_SUCCESS) {
    end_memory(all, out);
    return;
  }
  must(all->api.vkBindBufferMemory(all->device, out->buffer, out->memory, 0), "vkBindBufferMemory");
  void *bytes = NULL;
  if ((wanted & VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT) != 0) {
    must(all->api.vkMapMemory(all->device, out->memory, 0, VK_WHOLE_SIZE, 0, &bytes),
         "vkMapMemory");
  }
  out->bytes = bytes;
}

static void import_memory(const raw *all, raw_memory *out) {
  char *const whole = mmap(NULL, all->size + HUGE_PAGE, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); /* kept until the end */
  if (!all->can_import || whole == MAP_FAILED)
    return;
  char *const bytes = whole + (HUGE_PAGE - (uintptr_t)whole % HUGE_PAGE) % HUGE_PAGE;
  (void)madvise(bytes, all->size, MADV_HUGEPAGE);
  memset(bytes, 0x5a, all->size);
  const VkMemoryRequirements needs = make_buffer(all, true, out);
  VkMemoryHostPointerPropertiesEXT properties = {
      .sType = VK_STRUCTURE_TYPE_MEMORY_HOST_POINTER_PROPERTIES_EXT};
  must(all->api.vkGetMemoryHostPointerPropertiesEXT(
           all->device, VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT, bytes, &properties),
       "vkGetMemoryHostPointerPropertiesEXT");
  const uint32_t usable = needs.memoryTypeBits & properties.memoryTypeBits;
  int type = find_type(
      all, usable, VK_MEMORY_PROPERTY_HOST_COHERENT_BIT | VK_MEMORY_PROPERTY_HOST_CACHED_BIT, 0);
  if (type < 0)
    type = find_type(all, usable, VK_MEMORY_PROPERTY_HOST_COHERENT_BIT, 0);
  const VkImportMemoryHostPointerInfoEXT pointer = {
      .sType = VK_STRUCTURE_TYPE_IMPORT_MEMORY_HOST_POINTER_INFO_EXT,
      .handleType = VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT,
      .pHostPointer = bytes,
  };
  const VkMemoryAllocateInfo info = {
      .sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
      .pNext = &pointer,
      .allocationSize = all->size,
      .memoryTypeIndex = (uint32_t)type,
  };
  if (type < 0 || needs.size > all->size ||
      all->api.vkAllocateMemory(all->device, &info, NULL, &out->memory) != VK_SUCCESS) {
    end_memory(all, out);
    return;
  }
  must(all->api.vkBindBufferMemory(all->device, out->buffer, out->memory, 0), "vkBindBufferMemory");
  out->bytes = (unsigned char *)bytes;
}

static void find_instance(raw *all, quay_device *device) {
  quay_vulkan_handles handles;
  bench_check(quay_vulkan_get_handles(device, &handles), "the handles");
  PFN_vkGetInstanceProcAddr get;
  memcpy(&get, &(uintptr_t){(uintptr_t)handles.get_instance_proc_addr}, sizeof get);
  bench_check(
      quay__vulkan_instance_find(get, (VkInstance)(uintptr_t)handles.instance, &all->instance),
      "the instance");
  all->physical = (VkPhysicalDevice)(uintptr_t)handles.physical_device;
  VkPhysicalDeviceMemoryProperties2 memory = {
      .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2};
  all->instance.vkGetPhysicalDeviceMemoryProperties2(all->physical, &memory);
  all->types = memory.memoryProperties;
}

void raw_open(raw *all, quay_device *device, uint64_t size) {
  static const VkMemoryPropertyFlags own = VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT,
                                     seen = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT |
                                            VK_MEMORY_PROPERTY_HOST_COHERENT_BIT,
                                     cached = VK_MEMORY_PROPERTY_HOST_CACHED_BIT;
  all->size = size;
  find_instance(all, device);
  find_families(all);
  open_device(all);
  for (uint32_t i = 0; i < all->family_count; i++) {
    for (uint32_t queue = 0; queue < all->families[i].count; queue++)
      make_queue(all, i, queue);
  }
  make_memory(all, own, 0, &all->there);
  if (all->there.buffer == VK_NULL_HANDLE)
    bench_failed("no memory of the device");
  import_memory(all, &all->here[RAW_IMPORTED]);
  make_memory(all, seen, own | cached, &all->here[RAW_HOST]);
  make_memory(all, seen | cached, own, &all->here[RAW_CACHED]);
}

void raw_close(raw *all) {
  end_memory(all, &all->there);
  for (int kind = 0; kind < RAW_KINDS; kind++)
    end_memory(all, &all->here[kind]);
  for (uint32_t i = 0; i < all->family_count; i++) {
    for (uint32_t queue = 0; queue < all->families[i].count; queue++) {
      raw_queue *one = &all->families[i].queues[queue];
      (void)all->api.vkQueueWaitIdle(one->handle);
      all->api.vkDestroyCommandPool(all->device, one->pool, NULL);
      all->api.vkDestroySemaphore(all->device, one->timelines[0], NULL);
      all->api.vkDestroySemaphore(all->device, one->timelines[1], NULL);
    }
  }
  all->api.vkDestroyDevice(all->device, NULL);
}
