/* Blocks: memory of the device with a buffer over all of it. Small allocations are carved from
 * shared ones, since a device may hand out few VkDeviceMemory objects (maxMemoryAllocationCount);
 * large ones have their own. */
#include <string.h>

#include "core/checked.h"
#include "core/device_impl.h"
#include "core/error.h"
#include "core/os.h"
#include "core/thread.h"
#include "vulkan/vulkan_impl.h"

/* Shared blocks are a 64th of their heap, within these bounds, and allocations up to an eighth of a
 * block are carved. */
#define SHARED_MIN      ((uint64_t)1 << 20)
#define SHARED_MAX      ((uint64_t)64 << 20)
#define SHARED_OF_HEAP  64
#define CARVED_OF_BLOCK 8

static const char *kind_name(quay_vulkan_memory_kind kind) {
  switch (kind) {
  case QUAY_VULKAN_DEVICE:
    return "device memory";
  case QUAY_VULKAN_HOST:
    return "host-visible memory";
  case QUAY_VULKAN_CACHED:
    return "host-cached memory";
  }
  return "memory";
}

static quay_status out_of_memory(quay_vulkan_memory_kind kind) {
  return kind == QUAY_VULKAN_DEVICE ? QUAY_STATUS_OUT_OF_DEVICE_MEMORY
                                    : QUAY_STATUS_OUT_OF_HOST_MEMORY;
}

static const quay__vulkan_type *type_of(const quay__vulkan_device *device,
                                        quay_vulkan_memory_kind kind) {
  return &device->types[kind];
}

/* Limits. */

static quay_status fail_limit(const quay__vulkan_device *device, quay_vulkan_memory_kind kind,
                              uint64_t bytes, const char *limit, uint64_t value) {
  return quay_error_set(QUAY_STATUS_LIMIT_EXCEEDED, "vulkan", 0, NULL,
                        "can't allocate %llu bytes of %s on %s (%s): its %s is %llu; use several "
                        "smaller allocations",
                        (unsigned long long)bytes, kind_name(kind), device->name, device->product,
                        limit, (unsigned long long)value);
}

static quay_status check_limits(const quay__vulkan_device *device, quay_vulkan_memory_kind kind,
                                uint64_t bytes) {
  const uint64_t heap = type_of(device, kind)->heap_bytes;
  if (bytes > heap) {
    return quay_error_set(out_of_memory(kind), "vulkan", 0, NULL,
                          "can't allocate %llu bytes of %s on %s (%s): the heap has %llu bytes",
                          (unsigned long long)bytes, kind_name(kind), device->name, device->product,
                          (unsigned long long)heap);
  }
  if (bytes > device->limits.buffer_bytes)
    return fail_limit(device, kind, bytes, "maxBufferSize", device->limits.buffer_bytes);
  if (bytes <= device->limits.allocation_bytes)
    return QUAY_OK;
  return fail_limit(device, kind, bytes, "maxMemoryAllocationSize",
                    device->limits.allocation_bytes);
}

static quay_status count_allocation(quay__vulkan_device *device) {
  const uint32_t most = device->limits.allocations;
  if (atomic_fetch_add_explicit(&device->allocations, 1, memory_order_relaxed) < most)
    return QUAY_OK;
  atomic_fetch_sub_explicit(&device->allocations, 1, memory_order_relaxed);
  return quay_error_set(QUAY_STATUS_LIMIT_EXCEEDED, "vulkan", VK_ERROR_TOO_MANY_OBJECTS,
                        "VK_ERROR_TOO_MANY_OBJECTS",
                        "%s (%s) has %u allocations, which is its maxMemoryAllocationCount; free "
                        "some, or allocate without dedicated=on",
                        device->name, device->product, most);
}

/* Vulkan's objects. */

static VkResult make_buffer(quay__vulkan_block *block, VkMemoryRequirements *out_needs) {
  quay__vulkan_device *const device = block->device;
  const bool imported = block->host_memory != NULL;
  const VkExternalMemoryBufferCreateInfo external = {
      .sType = VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO,
      .handleTypes = imported ? VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT
                              : VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT,
  };
  const VkBufferCreateInfo info = {
      .sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
      .pNext = block->exportable || imported ? &external : NULL,
      .size = block->bytes,
      .usage = imported ? QUAY__VULKAN_COPIES : quay__vulkan_usage(device),
      .sharingMode =
          device->family_count > 1 ? VK_SHARING_MODE_CONCURRENT : VK_SHARING_MODE_EXCLUSIVE,
      .queueFamilyIndexCount = device->family_count > 1 ? device->family_count : 0,
      .pQueueFamilyIndices = device->families,
  };
  const VkResult result = device->api.vkCreateBuffer(device->handle, &info, NULL, &block->buffer);
  if (result == VK_SUCCESS)
    device->api.vkGetBufferMemoryRequirements(device->handle, block->buffer, out_needs);
  return result;
}

static VkResult make_memory(quay__vulkan_block *block, uint64_t bytes) {
  quay__vulkan_device *const device = block->device;
  const VkMemoryDedicatedAllocateInfo dedicated = {
      .sType = VK_STRUCTURE_TYPE_MEMORY_DEDICATED_ALLOCATE_INFO,
      .buffer = block->buffer,
  };
  const VkExportMemoryAllocateInfo exported = {
      .sType = VK_STRUCTURE_TYPE_EXPORT_MEMORY_ALLOCATE_INFO,
      .pNext = block->dedicated ? &dedicated : NULL,
      .handleTypes = VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT,
  };
  const VkMemoryAllocateFlagsInfo flags = {
      .sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO,
      .pNext = block->exportable ? &exported : exported.pNext,
      .flags = device->has_address ? VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT : 0,
  };
  const VkMemoryAllocateInfo info = {
      .sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
      .pNext = device->has_address ? (const void *)&flags : flags.pNext,
      .allocationSize = bytes,
      .memoryTypeIndex = type_of(device, block->kind)->index,
  };
  return device->api.vkAllocateMemory(device->handle, &info, NULL, &block->memory);
}

static VkResult map(quay__vulkan_block *block) {
  quay__vulkan_device *const device = block->device;
  void *host = NULL;
  if (!type_of(device, block->kind)->mapped)
    return VK_SUCCESS;
  const VkResult result =
      device->api.vkMapMemory(device->handle, block->memory, 0, VK_WHOLE_SIZE, 0, &host);
  block->host = host;
  return result;
}

static void find_address(quay__vulkan_block *block) {
  quay__vulkan_device *const device = block->device;
  if (!device->has_address)
    return;
  const VkBufferDeviceAddressInfo info = {
      .sType = VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO,
      .buffer = block->buffer,
  };
  block->address = device->api.vkGetBufferDeviceAddress(device->handle, &info);
}

static void end_import(quay__vulkan_block *block) {
  const quay__vulkan_end_import end =
      atomic_load_explicit(&block->end_import, memory_order_acquire);
  if (end != NULL)
    end(atomic_exchange_explicit(&block->imported, NULL, memory_order_acq_rel));
}

static void destroy_objects(quay__vulkan_block *block) {
  quay__vulkan_device *const device = block->device;
  end_import(block);
  device->api.vkDestroyBuffer(device->handle, block->buffer, NULL);
  device->api.vkFreeMemory(device->handle, block->memory, NULL); /* which unmaps it */
  block->buffer = VK_NULL_HANDLE;
  block->memory = VK_NULL_HANDLE;
  block->host = NULL;
}

static quay_status fail_objects(const quay__vulkan_block *block, VkResult result) {
  quay__vulkan_device *const device = block->device;
  if (result != VK_ERROR_OUT_OF_DEVICE_MEMORY && result != VK_ERROR_OUT_OF_HOST_MEMORY) {
    return quay__vulkan_fail(device, result, "can't allocate %llu bytes of %s on %s",
                             (unsigned long long)block->bytes, kind_name(block->kind),
                             device->name);
  }
  return quay_error_set(out_of_memory(block->kind), "vulkan", result,
                        quay__vulkan_result_name(result),
                        "can't allocate %llu bytes of %s on %s (%s): %s; Quay has %llu of the "
                        "heap's %llu bytes",
                        (unsigned long long)block->bytes, kind_name(block->kind), device->name,
                        device->product, quay__vulkan_result_name(result),
                        (unsigned long long)atomic_load_explicit(&device->reserved[block->kind],
                                                                 memory_order_relaxed),
                        (unsigned long long)type_of(device, block->kind)->heap_bytes);
}

static quay_status make_objects(quay__vulkan_block *block) {
  quay__vulkan_device *const device = block->device;
  VkMemoryRequirements needs;
  VkResult result = make_buffer(block, &needs);
  if (result != VK_SUCCESS)
    return fail_objects(block, result);
  const uint32_t type = type_of(device, block->kind)->index;
  if (needs.size < block->bytes || (needs.memoryTypeBits & 1u << type) == 0) {
    destroy_objects(block);
    return quay_error_set(QUAY_STATUS_UNSUPPORTED, "vulkan", 0, NULL,
                          "%s (%s) can't have a buffer of %llu bytes in its %s", device->name,
                          device->product, (unsigned long long)block->bytes,
                          kind_name(block->kind));
  }
  block->memory_bytes = needs.size;
  result = make_memory(block, needs.size);
  if (result == VK_SUCCESS)
    result = device->api.vkBindBufferMemory(device->handle, block->buffer, block->memory, 0);
  if (result == VK_SUCCESS)
    result = map(block);
  if (result == VK_SUCCESS) {
    find_address(block);
    return QUAY_OK;
  }
  const quay_status status = fail_objects(block, result);
  destroy_objects(block);
  return status;
}

/* Blocks. */

static void link_block(quay__vulkan_block *block) {
  quay__vulkan_device *const device = block->device;
  block->next = device->blocks;
  if (block->next != NULL)
    block->next->previous = block;
  device->blocks = block;
}

static void unlink_block(quay__vulkan_block *block) {
  if (block->previous != NULL) {
    block->previous->next = block->next;
  } else {
    block->device->blocks = block->next;
  }
  if (block->next != NULL)
    block->next->previous = block->previous;
}

static void uncount(const quay__vulkan_block *block) {
  quay__vulkan_device *const device = block->device;
  atomic_fetch_sub_explicit(&device->allocations, 1, memory_order_relaxed);
  if (block->host_memory == NULL)
    atomic_fetch_sub_explicit(&device->reserved[block->kind], block->bytes, memory_order_relaxed);
}

/* Of a block that is in no list, with no span in use. */
static void end_block(quay__vulkan_block *block) {
  if (!block->dead) {
    if (quay__vulkan_callable()) {
      destroy_objects(block);
    } else {
      quay_log(QUAY_LOG_WARNING,
               "vulkan: %llu bytes of %s are not freed: the driver can't be "
               "called any more",
               (unsigned long long)block->bytes, block->device->name);
    }
    uncount(block);
  }
  quay__vulkan_spans_end(block);
  quay__os_free(block);
}

static quay_status new_block(quay__vulkan_device *device, const quay__vulkan_block_request *request,
                             uint64_t bytes, bool shared, quay__vulkan_block **out_block) {
  QUAY_TRY(check_limits(device, request->kind, bytes));
  quay__vulkan_block *const block = quay__os_calloc(1, sizeof *block);
  if (block == NULL)
    return quay__fail_out_of_memory(sizeof *block, "the record of an allocation");
  block->device = device;
  block->kind = request->kind;
  block->shared = shared;
  block->bytes = bytes;
  block->exportable =
      request->exportable || (device->has_export && request->kind == QUAY_VULKAN_DEVICE);
  block->dedicated = block->exportable && device->export_dedicated;
  block->id = quay__next_id();
  quay_status status = count_allocation(device);
  if (status != QUAY_OK) {
    quay__os_free(block);
    return status;
  }
  status = make_objects(block);
  if (status == QUAY_OK && !quay__vulkan_spans_begin(block)) {
    destroy_objects(block);
    status = quay__fail_out_of_memory(sizeof(quay__vulkan_span), "the record of an allocation");
  }
  if (status != QUAY_OK) {
    atomic_fetch_sub_explicit(&device->allocations, 1, memory_order_relaxed);
    quay__os_free(block);
    return status;
  }
  atomic_fetch_add_explicit(&device->reserved[block->kind], bytes, memory_order_relaxed);
  *out_block = block;
  return QUAY_OK;
}

/* Allocation. */

/* What an offset counts from, for alignment: the device's address where there is one. */
static uint64_t origin_of(const quay__vulkan_block *block) {
  return block->address != 0 ? block->address : (uint64_t)(uintptr_t)block->host;
}

static uint64_t shared_bytes(const quay__vulkan_device *device, quay_vulkan_memory_kind kind) {
  const uint64_t part = type_of(device, kind)->heap_bytes / SHARED_OF_HEAP;
  uint64_t bytes = quay__min(quay__max(part, SHARED_MIN), SHARED_MAX);
  bytes = quay__min(bytes, device->limits.allocation_bytes);
  return quay__align_down(quay__min(bytes, device->limits.buffer_bytes), SHARED_MIN);
}

static quay__vulkan_span *carve_from(quay__vulkan_block *block, uint64_t size, uint64_t alignment) {
  return quay__vulkan_span_take(block, size, alignment, origin_of(block));
}

static quay__vulkan_span *carve(quay__vulkan_device *device, quay_vulkan_memory_kind kind,
                                uint64_t size, uint64_t alignment) {
  quay__vulkan_span *span = NULL;
  quay__lock_acquire(&device->lock);
  for (quay__vulkan_block *block = device->blocks; block != NULL && span == NULL;
       block = block->next) {
    if (block->shared && block->kind == kind && !block->dead)
      span = carve_from(block, size, alignment);
  }
  quay__lock_release(&device->lock);
  return span;
}

/* Makes a block and takes a range of it. */
static quay_status alloc_block(quay__vulkan_device *device,
                               const quay__vulkan_block_request *request, uint64_t bytes,
                               bool shared, uint64_t size, quay__vulkan_span **out_span) {
  quay__vulkan_block *block = NULL;
  quay_status status = new_block(device, request, bytes, shared, &block);
  if (status == QUAY_STATUS_OUT_OF_DEVICE_MEMORY || status == QUAY_STATUS_OUT_OF_HOST_MEMORY ||
      status == QUAY_STATUS_LIMIT_EXCEEDED) {
    if (quay__vulkan_trim(device) == 0)
      return status;
    status = new_block(device, request, bytes, shared, &block);
  }
  if (status != QUAY_OK || block == NULL)
    return status;
  quay__lock_acquire(&device->lock);
  *out_span = carve_from(block, size, request->alignment);
  if (*out_span != NULL)
    link_block(block);
  quay__lock_release(&device->lock);
  if (*out_span != NULL)
    return QUAY_OK;
  end_block(block);
  return quay__fail_out_of_memory(sizeof(quay__vulkan_span), "the record of an allocation");
}

static quay_status fail_size(const quay__vulkan_block_request *request) {
  return quay_error_set(QUAY_STATUS_INVALID_ARGUMENT, "vulkan", 0, NULL,
                        "%llu bytes aligned to %llu are more than an address can tell",
                        (unsigned long long)request->size, (unsigned long long)request->alignment);
}

quay_status quay__vulkan_alloc(quay__vulkan_device *device,
                               const quay__vulkan_block_request *request,
                               quay__vulkan_span **out_span) {
  QUAY_TRY(quay__vulkan_check_callable());
  QUAY_TRY(quay__device_check(device->device));
  /* Two allocations must not share an atom of memory that is flushed. */
  const uint64_t grain = quay__max(QUAY__VULKAN_ALIGNMENT, device->limits.atom);
  uint64_t size, bytes;
  if (!quay__align_up(quay__max(request->size, 1), grain, &size))
    return fail_size(request);
  const uint64_t slack = request->alignment > QUAY__VULKAN_ALIGNMENT ? request->alignment : 0;
  if (!quay__add(size, slack, &bytes))
    return fail_size(request);
  const uint64_t shared = shared_bytes(device, request->kind);
  if (request->dedicated || bytes > shared / CARVED_OF_BLOCK)
    return alloc_block(device, request, bytes, false, size, out_span);
  *out_span = carve(device, request->kind, size, request->alignment);
  if (*out_span != NULL)
    return QUAY_OK;
  return alloc_block(device, request, shared, true, size, out_span);
}

/* Freeing. */

/* With the lock held: whether another shared block of the kind stands empty. */
static bool has_empty(const quay__vulkan_block *than) {
  for (const quay__vulkan_block *block = than->device->blocks; block != NULL; block = block->next) {
    if (block != than && block->shared && block->used == 0 && block->kind == than->kind &&
        !block->dead)
      return true;
  }
  return false;
}

void quay__vulkan_free(quay__vulkan_span *span) {
  quay__vulkan_block *const block = span->block;
  quay__vulkan_device *const device = block->device;
  quay__lock_acquire(&device->lock);
  quay__vulkan_span_give_back(span);
  /* One empty shared block is kept for the next allocation. */
  const bool last = block->used == 0 && (!block->shared || block->dead || has_empty(block));
  if (last)
    unlink_block(block);
  quay__lock_release(&device->lock);
  if (last)
    end_block(block);
}

void quay__vulkan_forget(quay__vulkan_span *span) {
  quay__vulkan_block *const block = span->block;
  quay__lock_acquire(&block->device->lock);
  quay__vulkan_span_give_back(span);
  unlink_block(block);
  quay__lock_release(&block->device->lock);
  end_import(block);
  uncount(block);
  block->dead = true;
  end_block(block);
}

static quay__vulkan_block *take_empty(quay__vulkan_device *device) {
  quay__lock_acquire(&device->lock);
  quay__vulkan_block *block = device->blocks;
  while (block != NULL && (!block->shared || block->used != 0))
    block = block->next;
  if (block != NULL)
    unlink_block(block);
  quay__lock_release(&device->lock);
  return block;
}

uint64_t quay__vulkan_trim(quay__vulkan_device *device) {
  uint64_t bytes = 0;
  for (quay__vulkan_block *block; (block = take_empty(device)) != NULL;) {
    bytes += block->bytes;
    block->next = block->previous = NULL;
    end_block(block);
  }
  return bytes;
}

/* Without the lock: nobody else uses the device then. */
void quay__vulkan_blocks_kill(quay__vulkan_device *device) {
  (void)quay__vulkan_trim(device);
  for (quay__vulkan_block *block = device->blocks; block != NULL; block = block->next) {
    if (block->dead)
      continue;
    destroy_objects(block);
    uncount(block);
    block->dead = true;
  }
}

/* Memory that is not coherent. */

/* The range in whole atoms, within the block. */
static VkMappedMemoryRange range_of(const quay__vulkan_block *block, uint64_t offset,
                                    uint64_t size) {
  const uint64_t atom = block->device->limits.atom;
  const uint64_t begin = quay__align_down(offset, atom);
  const uint64_t end = quay__min(quay__align_down(offset + size + atom - 1, atom), block->bytes);
  return (VkMappedMemoryRange){
      .sType = VK_STRUCTURE_TYPE_MAPPED_MEMORY_RANGE,
      .memory = block->memory,
      .offset = begin,
      .size = end - begin,
  };
}

quay_status quay__vulkan_invalidate(quay__vulkan_block *block, uint64_t offset, uint64_t size) {
  quay__vulkan_device *const device = block->device;
  if (type_of(device, block->kind)->coherent)
    return QUAY_OK;
  const VkMappedMemoryRange range = range_of(block, offset, size);
  const VkResult result = device->api.vkInvalidateMappedMemoryRanges(device->handle, 1, &range);
  if (result == VK_SUCCESS)
    return QUAY_OK;
  return quay__vulkan_fail(device, result, "invalidating host memory of %s", device->name);
}

quay__vulkan_block *quay__vulkan_block_at(quay__vulkan_device *device, const void *memory,
                                          uint64_t size) {
  const uint64_t address = (uint64_t)(uintptr_t)memory;
  quay__vulkan_block *found = NULL;
  quay__lock_acquire(&device->lock);
  for (quay__vulkan_block *block = device->blocks; block != NULL && found == NULL;
       block = block->next) {
    const uint64_t base = (uint64_t)(uintptr_t)block->host;
    if (base != 0 && address >= base && quay__in_range(address - base, size, block->bytes))
      found = block;
  }
  quay__lock_release(&device->lock);
  return found;
}

/* Host memory of the process. */

/* A memory type that the host pointer can be imported as and that is coherent with it: there is no
 * mapping that could be flushed. */
static VkResult find_type(quay__vulkan_device *device, const quay__vulkan_block *block,
                          uint32_t buffer_types, uint32_t *out_type) {
  VkMemoryHostPointerPropertiesEXT properties = {
      .sType = VK_STRUCTURE_TYPE_MEMORY_HOST_POINTER_PROPERTIES_EXT};
  const VkResult result = device->api.vkGetMemoryHostPointerPropertiesEXT(
      device->handle, VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT, block->host_memory,
      &properties);
  const uint32_t types = properties.memoryTypeBits & buffer_types & device->coherent_types;
  if (result != VK_SUCCESS || types == 0)
    return result != VK_SUCCESS ? result : VK_ERROR_FEATURE_NOT_PRESENT;
  const uint32_t cached = device->types[QUAY_VULKAN_CACHED].index;
  const bool has_cached = device->types[QUAY_VULKAN_CACHED].present && (types & 1u << cached) != 0;
  *out_type = has_cached ? cached : (uint32_t)__builtin_ctz(types);
  return VK_SUCCESS;
}

static VkResult import_memory(quay__vulkan_block *block) {
  quay__vulkan_device *const device = block->device;
  VkMemoryRequirements needs;
  VkResult result = make_buffer(block, &needs);
  if (result != VK_SUCCESS)
    return result;
  if (needs.size > block->bytes)
    return VK_ERROR_FEATURE_NOT_PRESENT;
  const VkImportMemoryHostPointerInfoEXT pointer = {
      .sType = VK_STRUCTURE_TYPE_IMPORT_MEMORY_HOST_POINTER_INFO_EXT,
      .handleType = VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT,
      .pHostPointer = block->host_memory,
  };
  VkMemoryAllocateInfo info = {
      .sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
      .pNext = &pointer,
      .allocationSize = block->bytes,
  };
  result = find_type(device, block, needs.memoryTypeBits, &info.memoryTypeIndex);
  if (result == VK_SUCCESS)
    result = device->api.vkAllocateMemory(device->handle, &info, NULL, &block->memory);
  if (result == VK_SUCCESS)
    result = device->api.vkBindBufferMemory(device->handle, block->buffer, block->memory, 0);
  return result;
}

static quay_status import_block(quay__vulkan_block *block) {
  quay__vulkan_device *const device = block->device;
  QUAY_TRY(count_allocation(device));
  const VkResult result = import_memory(block);
  if (result == VK_SUCCESS)
    return QUAY_OK;
  const quay_status status =
      quay__vulkan_fail(device, result, "importing %llu bytes of host memory to %s",
                        (unsigned long long)block->bytes, device->name);
  destroy_objects(block);
  uncount(block);
  return status;
}

quay_status quay__vulkan_pin(quay_device *quay, void *memory, uint64_t size) {
  quay__vulkan_device *const device = quay__vulkan_device_of(quay);
  QUAY_TRY(quay__vulkan_check_callable());
  const uint64_t alignment = quay__max(device->limits.host_alignment, 1);
  if (((uint64_t)(uintptr_t)memory | size) % alignment != 0) {
    return quay_error_set(QUAY_STATUS_UNSUPPORTED, "vulkan", 0, NULL,
                          "%s imports host memory in multiples of %llu bytes alone "
                          "(minImportedHostPointerAlignment)",
                          device->name, (unsigned long long)alignment);
  }
  quay__vulkan_block *const block = quay__os_calloc(1, sizeof *block);
  if (block == NULL)
    return quay__fail_out_of_memory(sizeof *block, "the record of imported memory");
  block->device = device;
  block->kind = QUAY_VULKAN_HOST;
  block->bytes = block->memory_bytes = size;
  block->host_memory = memory;
  const quay_status status = import_block(block);
  if (status != QUAY_OK) {
    quay__os_free(block);
    return status;
  }
  block->host = memory;
  quay__lock_acquire(&device->lock);
  link_block(block);
  quay__lock_release(&device->lock);
  return QUAY_OK;
}

bool quay__vulkan_unpin(quay_device *quay, void *memory, uint64_t size) {
  quay__vulkan_device *const device = quay__vulkan_device_of(quay);
  (void)size;
  quay__lock_acquire(&device->lock);
  quay__vulkan_block *block = device->blocks;
  while (block != NULL && block->host_memory != memory)
    block = block->next;
  if (block != NULL)
    unlink_block(block);
  quay__lock_release(&device->lock);
  if (block != NULL)
    end_block(block);
  return true;
}
