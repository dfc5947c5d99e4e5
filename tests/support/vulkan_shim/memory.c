/* Memory and buffers. Types that the real device has not are its one type with manners: memory that
 * can't be mapped, and memory whose mapping is a copy until it is flushed or invalidated. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shim.h"

typedef struct shim_memory {
  struct shim_memory *next;
  VkDeviceMemory handle;
  uint32_t type;
  uint64_t size;
  unsigned char *real;   /* where it is mapped */
  unsigned char *shadow; /* what the host is given */
  int file;              /* of exported memory of a discrete device; -1: none */
  void *bytes;           /* where that is mapped */
} shim_memory;

static shim_memory *memories; /* guarded by the shim's lock */

static shim_memory *find_memory(VkDeviceMemory handle) {
  pthread_mutex_lock(&shim.lock);
  shim_memory *memory = memories;
  while (memory != NULL && memory->handle != handle)
    memory = memory->next;
  pthread_mutex_unlock(&shim.lock);
  return memory;
}

/* What a caller chained to a structure. */
static const void *chained(const void *chain, VkStructureType type) {
  for (const VkBaseInStructure *each = chain; each != NULL; each = each->pNext) {
    if (each->sType == type)
      return each;
  }
  return NULL;
}

/* Memory of a file that another double can map: lavapipe's own files have a form of their own. */
static bool make_file(shim_memory *memory) {
  memory->size = (memory->size + 4095) / 4096 * 4096;
  memory->file = memfd_create("vkshim", MFD_CLOEXEC);
  if (memory->file < 0 || ftruncate(memory->file, (off_t)memory->size) != 0)
    return false;
  memory->bytes = mmap(NULL, memory->size, PROT_READ | PROT_WRITE, MAP_SHARED, memory->file, 0);
  return memory->bytes != MAP_FAILED;
}

static void end_file(shim_memory *memory) {
  if (memory->file < 0)
    return;
  munmap(memory->bytes, memory->size);
  close(memory->file);
}

static VKAPI_ATTR VkResult VKAPI_CALL get_file(VkDevice handle, const VkMemoryGetFdInfoKHR *info,
                                               int *out_file) {
  VkResult result;
  if (shim_fails("vkGetMemoryFdKHR", &result))
    return result;
  const shim_memory *const memory = find_memory(info->memory);
  if (!shim.settings.discrete)
    return shim_device_of(handle)->vkGetMemoryFdKHR(handle, info, out_file);
  if (memory->file < 0) {
    shim_violation("memory is exported that was not allocated for that");
    return VK_ERROR_UNKNOWN;
  }
  *out_file = fcntl(memory->file, F_DUPFD_CLOEXEC, 3);
  return *out_file >= 0 ? VK_SUCCESS : VK_ERROR_TOO_MANY_OBJECTS;
}

static VKAPI_ATTR VkResult VKAPI_CALL allocate(VkDevice handle, const VkMemoryAllocateInfo *info,
                                               const VkAllocationCallbacks *allocator,
                                               VkDeviceMemory *out) {
  VkResult result;
  if (shim_fails("vkAllocateMemory", &result))
    return result;
  VkMemoryAllocateInfo changed = *info;
  if (shim.settings.discrete)
    changed.memoryTypeIndex = 0;
  pthread_mutex_lock(&shim.lock);
  const uint64_t most = shim.settings.max_allocations;
  if (most != 0 && shim.census.memories >= most)
    shim_violation("more allocations than the device can have, %llu", (unsigned long long)most);
  pthread_mutex_unlock(&shim.lock);
  shim_memory *const memory = calloc(1, sizeof *memory);
  memory->type = info->memoryTypeIndex;
  memory->size = info->allocationSize;
  memory->file = -1;
  VkMemoryAllocateFlagsInfo flags = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO,
                                     .flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT};
  VkImportMemoryHostPointerInfoEXT import = {
      .sType = VK_STRUCTURE_TYPE_IMPORT_MEMORY_HOST_POINTER_INFO_EXT,
      .handleType = VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT,
  };
  if (shim.settings.discrete &&
      chained(info->pNext, VK_STRUCTURE_TYPE_EXPORT_MEMORY_ALLOCATE_INFO) != NULL) {
    if (!make_file(memory))
      shim_violation("no file for exported memory");
    const bool addresses =
        chained(info->pNext, VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO) != NULL;
    import.pHostPointer = memory->bytes;
    import.pNext = addresses ? &flags : NULL;
    changed.pNext = &import;
    changed.allocationSize = memory->size;
  }
  result = shim_device_of(handle)->vkAllocateMemory(handle, &changed, allocator, out);
  if (result != VK_SUCCESS) {
    end_file(memory);
    free(memory);
    return result;
  }
  memory->handle = *out;
  pthread_mutex_lock(&shim.lock);
  memory->next = memories;
  memories = memory;
  shim.census.memories++;
  pthread_mutex_unlock(&shim.lock);
  return VK_SUCCESS;
}

static VKAPI_ATTR void VKAPI_CALL free_memory(VkDevice handle, VkDeviceMemory freed,
                                              const VkAllocationCallbacks *allocator) {
  shim_device *const device = shim_device_of(handle);
  if (freed == VK_NULL_HANDLE)
    return;
  pthread_mutex_lock(&shim.lock);
  const bool lost = device->lost;
  shim_memory **link = &memories;
  while ((*link)->handle != freed)
    link = &(*link)->next;
  shim_memory *const memory = *link;
  *link = memory->next;
  shim.census.memories--;
  pthread_mutex_unlock(&shim.lock);
  if (lost)
    shim_settle(device);
  device->vkFreeMemory(handle, freed, allocator);
  end_file(memory);
  free(memory->shadow);
  free(memory);
}

/* Mapping. */

static VKAPI_ATTR VkResult VKAPI_CALL map(VkDevice handle, VkDeviceMemory mapped,
                                          VkDeviceSize offset, VkDeviceSize size,
                                          VkMemoryMapFlags flags, void **out) {
  shim_device *const device = shim_device_of(handle);
  VkResult result;
  if (shim_fails("vkMapMemory", &result))
    return result;
  shim_memory *const memory = find_memory(mapped);
  if (shim.settings.discrete && memory->type == SHIM_TYPE_OWN) {
    shim_violation("memory that the host can't see is mapped");
    return VK_ERROR_MEMORY_MAP_FAILED;
  }
  result = device->vkMapMemory(handle, mapped, offset, size, flags, out);
  if (result != VK_SUCCESS || !shim.settings.discrete || shim.settings.coherent ||
      memory->type != SHIM_TYPE_CACHED)
    return result;
  if (offset != 0 || size != VK_WHOLE_SIZE)
    shim_violation("the shim maps whole memory alone");
  memory->real = *out;
  memory->shadow = aligned_alloc(4096, (memory->size + 4095) / 4096 * 4096);
  memset(memory->shadow, 0xa5, memory->size);
  *out = memory->shadow;
  return VK_SUCCESS;
}

/* Whether the range is one of memory with a shadow; checks it. */
static shim_memory *shadowed(const VkMappedMemoryRange *range, uint64_t *out_size) {
  shim_memory *const memory = find_memory(range->memory);
  *out_size = range->size == VK_WHOLE_SIZE ? memory->size - range->offset : range->size;
  const uint64_t end = range->offset + *out_size;
  if (!shim.settings.discrete || memory->shadow == NULL) {
    shim_violation("a range of coherent memory is flushed");
    return NULL;
  }
  if (range->offset % SHIM_ATOM != 0 || (end % SHIM_ATOM != 0 && end != memory->size) ||
      end > memory->size)
    shim_violation("a range of %llu bytes from byte %llu is not in whole atoms",
                   (unsigned long long)*out_size, (unsigned long long)range->offset);
  return memory;
}

static VKAPI_ATTR VkResult VKAPI_CALL flush(VkDevice handle, uint32_t count,
                                            const VkMappedMemoryRange *ranges) {
  (void)handle;
  for (uint32_t i = 0; i < count; i++) {
    uint64_t size;
    const shim_memory *const memory = shadowed(&ranges[i], &size);
    if (memory != NULL)
      memcpy(memory->real + ranges[i].offset, memory->shadow + ranges[i].offset, size);
  }
  return VK_SUCCESS;
}

static VKAPI_ATTR VkResult VKAPI_CALL invalidate(VkDevice handle, uint32_t count,
                                                 const VkMappedMemoryRange *ranges) {
  (void)handle;
  for (uint32_t i = 0; i < count; i++) {
    uint64_t size;
    const shim_memory *const memory = shadowed(&ranges[i], &size);
    if (memory != NULL)
      memcpy(memory->shadow + ranges[i].offset, memory->real + ranges[i].offset, size);
  }
  return VK_SUCCESS;
}

/* Host memory can be imported as either type of it. */
static VKAPI_ATTR VkResult VKAPI_CALL get_host_types(VkDevice handle,
                                                     VkExternalMemoryHandleTypeFlagBits type,
                                                     const void *pointer,
                                                     VkMemoryHostPointerPropertiesEXT *out) {
  VkResult result;
  if (shim_fails("vkGetMemoryHostPointerPropertiesEXT", &result))
    return result;
  result = shim_device_of(handle)->vkGetMemoryHostPointerPropertiesEXT(handle, type, pointer, out);
  if (shim.settings.discrete && result == VK_SUCCESS)
    out->memoryTypeBits = 1u << SHIM_TYPE_HOST | 1u << SHIM_TYPE_CACHED;
  return result;
}

/* Buffers. */

static VKAPI_ATTR VkResult VKAPI_CALL create_buffer(VkDevice handle, const VkBufferCreateInfo *info,
                                                    const VkAllocationCallbacks *allocator,
                                                    VkBuffer *out) {
  VkResult result;
  if (shim_fails("vkCreateBuffer", &result))
    return result;
  VkBufferCreateInfo changed = *info;
  const VkExternalMemoryBufferCreateInfo external = {
      .sType = VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO,
      .handleTypes = VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT,
  };
  if (shim.settings.discrete) { /* its families are one */
    changed.sharingMode = VK_SHARING_MODE_EXCLUSIVE;
    changed.queueFamilyIndexCount = 0;
    if (chained(info->pNext, VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO) != NULL)
      changed.pNext = &external;
  }
  result = shim_device_of(handle)->vkCreateBuffer(handle, &changed, allocator, out);
  pthread_mutex_lock(&shim.lock);
  shim.census.buffers += result == VK_SUCCESS;
  pthread_mutex_unlock(&shim.lock);
  return result;
}

static VKAPI_ATTR void VKAPI_CALL destroy_buffer(VkDevice handle, VkBuffer buffer,
                                                 const VkAllocationCallbacks *allocator) {
  shim_device *const device = shim_device_of(handle);
  pthread_mutex_lock(&shim.lock);
  const bool lost = device->lost;
  shim.census.buffers -= buffer != VK_NULL_HANDLE;
  pthread_mutex_unlock(&shim.lock);
  if (lost)
    shim_settle(device);
  device->vkDestroyBuffer(handle, buffer, allocator);
}

static VKAPI_ATTR void VKAPI_CALL get_needs(VkDevice handle, VkBuffer buffer,
                                            VkMemoryRequirements *out) {
  shim_device_of(handle)->vkGetBufferMemoryRequirements(handle, buffer, out);
  if (shim.settings.discrete)
    out->memoryTypeBits = (1u << SHIM_TYPES) - 1;
}

PFN_vkVoidFunction shim_memory_function(const char *name) {
  static const struct {
    const char *name;
    PFN_vkVoidFunction function;
  } functions[] = {
#define OWN(name, function) {name, SHIM_FUNCTION(function)}
      OWN("vkAllocateMemory", allocate),
      OWN("vkFreeMemory", free_memory),
      OWN("vkMapMemory", map),
      OWN("vkGetMemoryFdKHR", get_file),
      OWN("vkFlushMappedMemoryRanges", flush),
      OWN("vkInvalidateMappedMemoryRanges", invalidate),
      OWN("vkGetMemoryHostPointerPropertiesEXT", get_host_types),
      OWN("vkCreateBuffer", create_buffer),
      OWN("vkDestroyBuffer", destroy_buffer),
      OWN("vkGetBufferMemoryRequirements", get_needs),
#undef OWN
  };
  for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
    if (strcmp(functions[i].name, name) == 0)
      return functions[i].function;
  }
  return NULL;
}
