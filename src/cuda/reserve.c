/* Address space whose pages come and go: the driver's virtual memory management. One commit is one
 * piece of physical memory, mapped and not kept by a handle, so that unmapping it frees it; the
 * driver's costs are by pieces and hardly by size. Nothing here waits for work of the device:
 * whoever decommits does so when nothing uses the pages any more. */
#include "core/allocator_impl.h"
#include "core/checked.h"
#include "core/device_impl.h"
#include "core/error.h"
#include "core/os.h"
#include "cuda/cuda_impl.h"

/* More than a process has addresses for. */
#define MOST_ADDRESSES ((uint64_t)1 << 47)

/* Of each page of a reservation. The entries of a commit are its caller's until it returns. */
struct quay__cuda_page {
  uint64_t span; /* of the first page of a commit: its pages; else 0 */
  /* Of the first page: the other devices that have access, as bits of their ordinals. */
  atomic_uint_fast64_t reached;
};

static quay__cu_memory_properties properties_of(const quay__cuda_device *device) {
  return (quay__cu_memory_properties){
      .type = QUAY__CU_MEMORY_PINNED,
      .location = {.type = QUAY__CU_LOCATION_DEVICE, .id = device->handle},
  };
}

uint64_t quay__cuda_page_size(quay__cuda_device *device) {
  const quay__cu_memory_properties properties = properties_of(device);
  size_t bytes = 0;
  if (!device->has_virtual_memory)
    return 0;
  const quay__cu_result result =
      device->api->cuMemGetAllocationGranularity(&bytes, &properties, QUAY__CU_GRANULARITY_MINIMUM);
  if (result == QUAY__CU_SUCCESS && quay__is_power_of_two(bytes))
    return bytes;
  quay_log(QUAY_LOG_WARNING, "cuda: %s does not tell the size of its pages (%s); pools take blocks",
           device->name, quay__cuda_result_name(result));
  return 0;
}

static quay__cu_result set_access(quay__cuda_device *device, quay__cu_pointer pointer,
                                  uint64_t size) {
  const quay__cu_access access = {
      .location = {.type = QUAY__CU_LOCATION_DEVICE, .id = device->handle},
      .flags = QUAY__CU_ACCESS_READ_WRITE,
  };
  return device->api->cuMemSetAccess(pointer, size, &access, 1);
}

/* Reserving. */

/* The driver may align to its own granularity alone: then some addresses are left unused. */
static quay__cu_result take_addresses(quay__cuda_device *device, uint64_t size, uint64_t alignment,
                                      quay__cuda_block *block) {
  const quay__cuda_api *const api = device->api;
  block->reserved_bytes = size;
  quay__cu_result result = api->cuMemAddressReserve(&block->reserved_at, size, alignment, 0, 0);
  if (result == QUAY__CU_SUCCESS && (block->reserved_at & (alignment - 1)) != 0) {
    quay__cuda_check_given_back(device,
                                api->cuMemAddressFree(block->reserved_at, block->reserved_bytes),
                                "addresses for ", block->reserved_bytes);
    if (!quay__add(size, alignment, &block->reserved_bytes))
      return QUAY__CU_OUT_OF_MEMORY;
    result = api->cuMemAddressReserve(&block->reserved_at, block->reserved_bytes, 0, 0, 0);
  }
  if (result == QUAY__CU_SUCCESS)
    block->pointer = (block->reserved_at + alignment - 1) & ~(alignment - 1);
  return result;
}

static quay_status make_block(quay__cuda_device *device, uint64_t size, uint64_t page,
                              quay__cuda_block **out_block) {
  quay__cuda_block *const block = quay__os_calloc(1, sizeof *block);
  if (block == NULL)
    return quay__fail_out_of_memory(sizeof *block, "the record of a reservation");
  block->how = QUAY__CUDA_RESERVED;
  block->generation = quay__device_generation(device->device);
  block->page_bytes = page;
  block->page_count = size / page;
  atomic_init(&block->is_ready, true);
  block->pages = quay__os_calloc(block->page_count, sizeof *block->pages);
  if (block->pages == NULL) {
    quay__os_free(block);
    return quay__fail_out_of_memory(size / page * sizeof *block->pages,
                                    "the pages of a reservation");
  }
  *out_block = block;
  return QUAY_OK;
}

/* With the context current. */
static quay_status reserve_entered(quay__cuda_device *device, uint64_t size, uint64_t alignment,
                                   uint64_t page, quay__cuda_block **out_block) {
  if (size > MOST_ADDRESSES)
    return quay__cuda_fail_memory(device, QUAY__CU_OUT_OF_MEMORY, size);
  quay__cuda_block *block;
  QUAY_TRY(make_block(device, size, page, &block));
  const quay__cu_result result = take_addresses(device, size, alignment, block);
  if (result == QUAY__CU_SUCCESS) {
    *out_block = block;
    return QUAY_OK;
  }
  quay__cuda_block_forget(device, block);
  return quay__cuda_fail(device, result, "can't reserve addresses for %llu bytes on %s",
                         (unsigned long long)size, device->name);
}

quay_status quay__cuda_reserve(quay_allocator *allocator, uint64_t size, uint64_t alignment,
                               quay_raw_buffer *out_raw) {
  quay__cuda *const self = quay_allocator_self(allocator);
  quay__cuda_device *const device = self->device;
  quay__cuda_block *block = NULL;
  quay__cuda_scope scope;
  QUAY_TRY(quay__cuda_enter(device, true, &scope));
  const quay_status status = reserve_entered(device, size, alignment, allocator->page_size, &block);
  quay__cuda_leave(&scope);
  if (status != QUAY_OK || block == NULL)
    return status;
  out_raw->arm = QUAY_RAW_CUDA;
  out_raw->as.cuda = (quay_raw_cuda){
      .pointer = block->pointer,
      .handle = (uint64_t)(uintptr_t)block,
      .device = device->ordinal,
      .flags = block->how,
  };
  return QUAY_OK;
}

/* Committing. */

static quay__cu_result create(quay__cuda_device *device, uint64_t size,
                              quay__cu_memory *out_memory) {
  const quay__cu_memory_properties properties = properties_of(device);
  const quay__cu_result result = device->api->cuMemCreate(out_memory, size, &properties, 0);
  if (result != QUAY__CU_OUT_OF_MEMORY)
    return result;
  quay__cuda_make_room(device);
  return device->api->cuMemCreate(out_memory, size, &properties, 0);
}

/* What is mapped keeps the memory: the handle is given back in any case. */
static quay__cu_result map(quay__cuda_device *device, quay__cu_pointer pointer, uint64_t size,
                           quay__cu_memory memory) {
  const quay__cuda_api *const api = device->api;
  quay__cu_result result = api->cuMemMap(pointer, size, 0, memory, 0);
  const quay__cu_result released = api->cuMemRelease(memory);
  quay__cuda_check_given_back(device, released, "", size);
  if (result != QUAY__CU_SUCCESS)
    return result;
  result = released == QUAY__CU_SUCCESS ? set_access(device, pointer, size) : released;
  if (result != QUAY__CU_SUCCESS)
    quay__cuda_check_given_back(device, api->cuMemUnmap(pointer, size), "mapped ", size);
  return result;
}

static quay_status commit_entered(quay__cuda_device *device, quay__cu_pointer pointer,
                                  uint64_t size) {
  (void)quay__cuda_blocks_collect(device, false);
  quay__cu_memory memory = 0;
  quay__cu_result result =
      size <= device->total_bytes ? create(device, size, &memory) : QUAY__CU_OUT_OF_MEMORY;
  if (result == QUAY__CU_SUCCESS)
    result = map(device, pointer, size, memory);
  return result == QUAY__CU_SUCCESS ? QUAY_OK : quay__cuda_fail_memory(device, result, size);
}

/* Other threads count pages of the same reservation. */
static void count(quay__cuda *self, quay__cuda_block *block, uint64_t delta) {
  __atomic_fetch_add(&block->bytes, delta, __ATOMIC_RELAXED);
  atomic_fetch_add_explicit(&self->taken, delta, memory_order_relaxed);
}

quay_status quay__cuda_commit(quay_allocator *allocator, quay_raw_buffer *raw, uint64_t offset,
                              uint64_t size) {
  quay__cuda *const self = quay_allocator_self(allocator);
  quay__cuda_block *const block = quay__cuda_block_of(raw);
  quay__cuda_scope scope;
  QUAY_TRY(quay__cuda_enter(self->device, true, &scope));
  const quay_status status = commit_entered(self->device, block->pointer + offset, size);
  quay__cuda_leave(&scope);
  if (status != QUAY_OK)
    return status;
  struct quay__cuda_page *const first = &block->pages[offset / block->page_bytes];
  first->span = size / block->page_bytes;
  atomic_store_explicit(&first->reached, 0, memory_order_relaxed);
  count(self, block, size);
  return QUAY_OK;
}

quay_status quay__cuda_decommit(quay_allocator *allocator, quay_raw_buffer *raw, uint64_t offset,
                                uint64_t size) {
  quay__cuda *const self = quay_allocator_self(allocator);
  quay__cuda_device *const device = self->device;
  quay__cuda_block *const block = quay__cuda_block_of(raw);
  quay__cuda_scope scope;
  QUAY_TRY(quay__cuda_enter(device, true, &scope));
  const quay__cu_result result = device->api->cuMemUnmap(block->pointer + offset, size);
  quay__cuda_leave(&scope);
  if (result != QUAY__CU_SUCCESS) {
    return quay__cuda_fail(device, result, "%llu bytes of %s can't be given back",
                           (unsigned long long)size, device->name);
  }
  for (uint64_t page = offset / block->page_bytes; page < (offset + size) / block->page_bytes;
       page++)
    block->pages[page].span = 0;
  count(self, block, -size);
  return QUAY_OK;
}

/* Other devices. */

static quay_status reach_commit(quay__cuda_device *device, quay__cuda_block *block, uint64_t page) {
  const uint64_t bit = UINT64_C(1) << (unsigned)device->ordinal;
  struct quay__cuda_page *const first = &block->pages[page];
  if ((atomic_load_explicit(&first->reached, memory_order_acquire) & bit) != 0)
    return QUAY_OK;
  const quay__cu_result result = set_access(device, block->pointer + page * block->page_bytes,
                                            first->span * block->page_bytes);
  if (result != QUAY__CU_SUCCESS) {
    return quay__cuda_fail(device, result, "%s can't be given access to pages of another device",
                           device->name);
  }
  atomic_fetch_or_explicit(&first->reached, bit, memory_order_release);
  return QUAY_OK;
}

quay_status quay__cuda_reserve_reach(quay__cuda_scope *scope, const quay_raw_buffer *raw) {
  quay__cuda_block *const block = quay__cuda_block_of(raw);
  const uint64_t begin = raw->as.cuda.pointer - block->pointer;
  const uint64_t last = (begin + quay__max(raw->size, 1) - 1) / block->page_bytes;
  uint64_t page = begin / block->page_bytes;
  while (page > 0 && block->pages[page].span == 0)
    page--;
  QUAY_TRY(quay__cuda_relax(scope));
  for (; page <= last && block->pages[page].span != 0; page += block->pages[page].span)
    QUAY_TRY(reach_commit(scope->device, block, page));
  return QUAY_OK;
}

/* Ending. */

quay__cu_result quay__cuda_reserve_give_back(quay__cuda_device *device,
                                             const quay__cuda_block *block) {
  const quay__cuda_api *const api = device->api;
  quay__cu_result result = QUAY__CU_SUCCESS;
  for (uint64_t page = 0; page < block->page_count;) {
    uint64_t end = page;
    while (end < block->page_count && block->pages[end].span != 0)
      end += block->pages[end].span;
    if (end == page) {
      page++;
      continue;
    }
    const quay__cu_result unmapped = api->cuMemUnmap(block->pointer + page * block->page_bytes,
                                                     (end - page) * block->page_bytes);
    result = result != QUAY__CU_SUCCESS ? result : unmapped;
    page = end;
  }
  if (result != QUAY__CU_SUCCESS)
    return result;
  return api->cuMemAddressFree(block->reserved_at, block->reserved_bytes);
}
