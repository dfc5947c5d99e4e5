/* Blocks: memory taken from the driver and given back to it.
 *
 * Freeing never waits. Stream-ordered memory is freed on the device's own stream for that, after
 * the work that uses it. The driver's other functions that free wait for everything that runs on
 * the device: such blocks are put into a list, which is worked off where memory is asked for anyway
 * (allocation, trim, synchronise, memory info), and there only as far as their own work is done. */
#include <stdatomic.h>
#include <string.h>

#include "core/checked.h"
#include "core/device_impl.h"
#include "core/error.h"
#include "core/os.h"
#include "cuda/cuda_impl.h"

/* What the driver aligns to: "at least 256 bytes" (CUDA C++ Programming Guide, "Device Memory
 * Accesses"); pinned memory to more. */
#define DRIVER_ALIGNMENT ((uint64_t)256)

/* Taking. */

static quay__cu_result take(quay__cuda_device *device, const quay__cuda_block_request *request,
                            quay__cuda_block *block) {
  const quay__cuda_api *const api = device->api;
  switch (request->how) {
  case QUAY__CUDA_PLAIN:
    return api->cuMemAlloc(&block->pointer, block->bytes);
  case QUAY__CUDA_ORDERED:
    return api->cuMemAllocAsync(&block->pointer, block->bytes, request->stream);
  case QUAY__CUDA_MANAGED:
    return api->cuMemAllocManaged(&block->pointer, block->bytes, QUAY__CU_MEM_ATTACH_GLOBAL);
  case QUAY__CUDA_PINNED: {
    const quay__cu_result result =
        api->cuMemHostAlloc(&block->host, block->bytes, QUAY__CU_MEMHOSTALLOC_PORTABLE);
    block->pointer = (quay__cu_pointer)(uintptr_t)block->host; /* one address space */
    return result;
  }
  case QUAY__CUDA_SHARED:
    return quay__cuda_share_take(device, request->alignment, block);
  case QUAY__CUDA_IMPORTED: /* share.c makes these two itself, reserve.c the third */
  case QUAY__CUDA_IPC:
  case QUAY__CUDA_RESERVED:
    break;
  }
  return QUAY__CU_NOT_SUPPORTED;
}

static quay_status fail_host(quay__cuda_device *device, quay__cu_result result, uint64_t bytes) {
  if (quay__cuda_sticky(result))
    return quay__cuda_fail(device, result, "pinning memory");
  return quay_error_set(QUAY_STATUS_OUT_OF_HOST_MEMORY, "cuda", result,
                        quay__cuda_result_name(result),
                        "can't allocate %llu bytes of pinned host memory on %s (%s); the system "
                        "may limit how much can be page-locked",
                        (unsigned long long)bytes, device->name, quay__cuda_result_name(result));
}

quay_status quay__cuda_fail_memory(quay__cuda_device *device, quay__cu_result result,
                                   uint64_t bytes) {
  size_t free_bytes = 0, total_bytes = 0;
  if (result != QUAY__CU_OUT_OF_MEMORY) {
    return quay__cuda_fail(device, result, "can't allocate %llu bytes on %s",
                           (unsigned long long)bytes, device->name);
  }
  (void)device->api->cuMemGetInfo(&free_bytes, &total_bytes); /* zeros if it fails as well */
  return quay_error_set(
      QUAY_STATUS_OUT_OF_DEVICE_MEMORY, "cuda", result, quay__cuda_result_name(result),
      "can't allocate %llu bytes on %s (%s): %zu of its %zu bytes are free",
      (unsigned long long)bytes, device->name, device->product, free_bytes, total_bytes);
}

static quay_status fail_take(quay__cuda_device *device, const quay__cuda_block_request *request,
                             quay__cu_result result, uint64_t bytes) {
  return request->how == QUAY__CUDA_PINNED ? fail_host(device, result, bytes)
                                           : quay__cuda_fail_memory(device, result, bytes);
}

void quay__cuda_make_room(quay__cuda_device *device) {
  const quay__cuda_api *const api = device->api;
  (void)quay__cuda_blocks_collect(device, true);
  quay__cu_pool pool = NULL;
  if (!device->has_pools || api->cuMemPoolTrimTo == NULL || api->cuDeviceGetDefaultMemPool == NULL)
    return;
  if (api->cuStreamSynchronize(device->free_stream) == QUAY__CU_SUCCESS &&
      api->cuDeviceGetDefaultMemPool(&pool, device->handle) == QUAY__CU_SUCCESS)
    (void)api->cuMemPoolTrimTo(pool, 0);
}

static quay_status take_memory(quay__cuda_scope *scope, const quay__cuda_block_request *request,
                               quay__cuda_block *block) {
  quay__cuda_device *const device = scope->device;
  /* What can never fit is not asked for: some drivers call that an invalid value. */
  const bool hopeless = request->how != QUAY__CUDA_PINNED && request->how != QUAY__CUDA_MANAGED &&
                        block->bytes > device->total_bytes;
  if (hopeless)
    return fail_take(device, request, QUAY__CU_OUT_OF_MEMORY, block->bytes);
  if (request->how != QUAY__CUDA_ORDERED) {
    QUAY_TRY(quay__cuda_relax(scope));
    (void)quay__cuda_blocks_collect(device, false);
  }
  quay__cu_result result = take(device, request, block);
  if (result == QUAY__CU_OUT_OF_MEMORY) {
    QUAY_TRY(quay__cuda_relax(scope));
    quay__cuda_make_room(device);
    result = take(device, request, block);
  }
  return result == QUAY__CU_SUCCESS ? QUAY_OK : fail_take(device, request, result, block->bytes);
}

static quay_status take_twin(quay__cuda_scope *scope, uint64_t bytes, quay__cuda_block *block) {
  quay__cuda_device *const device = scope->device;
  QUAY_TRY(quay__cuda_relax(scope));
  const quay__cu_result result =
      device->api->cuMemHostAlloc(&block->host, bytes, QUAY__CU_MEMHOSTALLOC_PORTABLE);
  if (result != QUAY__CU_SUCCESS)
    return fail_host(device, result, bytes);
  block->host_bytes = bytes;
  return QUAY_OK;
}

/* Giving back. */

static quay__cu_result give_back_memory(quay__cuda_device *device, const quay__cuda_block *block) {
  const quay__cuda_api *const api = device->api;
  switch (block->how) {
  case QUAY__CUDA_PLAIN:
  case QUAY__CUDA_ORDERED:
  case QUAY__CUDA_MANAGED:
    return api->cuMemFree(block->pointer);
  case QUAY__CUDA_PINNED:
    return api->cuMemFreeHost(block->host);
  case QUAY__CUDA_SHARED:
  case QUAY__CUDA_IMPORTED:
    return quay__cuda_share_give_back(device, block);
  case QUAY__CUDA_IPC:
    return api->cuIpcCloseMemHandle(block->pointer);
  case QUAY__CUDA_RESERVED:
    return quay__cuda_reserve_give_back(device, block);
  }
  return QUAY__CU_NOT_SUPPORTED;
}

static quay__cu_result give_back(quay__cuda_device *device, const quay__cuda_block *block) {
  quay__cu_result result = QUAY__CU_SUCCESS;
  if (block->host_bytes != 0) /* a twin */
    result = device->api->cuMemFreeHost(block->host);
  const quay__cu_result freed = give_back_memory(device, block);
  return result != QUAY__CU_SUCCESS ? result : freed;
}

/* After a sticky error all is lost, which whoever calls next says. */
void quay__cuda_check_given_back(quay__cuda_device *device, quay__cu_result result,
                                 const char *what, uint64_t bytes) {
  if (result == QUAY__CU_SUCCESS || quay__cuda_sticky(result))
    return;
  quay__cuda_report(device, result, "%s%llu bytes of %s can't be given back and are lost", what,
                    (unsigned long long)bytes, device->name);
}

static bool end_block(quay__cuda_device *device, quay__cuda_block *block) {
  const quay__cu_result result = give_back(device, block);
  if (result != QUAY__CU_SUCCESS) {
    quay__cuda_report(device, result, "%llu bytes of %s can't be freed and are lost",
                      (unsigned long long)block->bytes, device->name);
  }
  quay__cuda_block_forget(device, block);
  return result == QUAY__CU_SUCCESS;
}

void quay__cuda_block_forget(quay__cuda_device *device, quay__cuda_block *block) {
  quay__cuda_event_give_back(device, block->ready);
  quay__os_free(block->pages);
  quay__os_free(block);
}

static bool gone(const quay__cuda_device *device, const quay__cuda_block *block) {
  return block->generation != quay__device_generation(device->device) ||
         quay_device_health(device->device) != QUAY_HEALTH_OK;
}

/* Allocation. */

static quay_status sizes_of(quay__cuda_device *device, const quay__cuda_block_request *request,
                            uint64_t *out_bytes) {
  if (request->how == QUAY__CUDA_SHARED)
    return quay__cuda_share_size(device, request->size, out_bytes);
  const uint64_t extra =
      request->alignment > DRIVER_ALIGNMENT ? request->alignment - DRIVER_ALIGNMENT : 0;
  if (quay__add(quay__max(request->size, 1), extra, out_bytes))
    return QUAY_OK;
  return quay_error_set(QUAY_STATUS_INVALID_ARGUMENT, "cuda", 0, NULL,
                        "%llu bytes aligned to %llu are more than an address can tell",
                        (unsigned long long)request->size, (unsigned long long)request->alignment);
}

quay_status quay__cuda_block_alloc(quay__cuda_scope *scope, const quay__cuda_block_request *request,
                                   quay__cuda_block **out_block) {
  quay__cuda_device *const device = scope->device;
  uint64_t bytes;
  QUAY_TRY(sizes_of(device, request, &bytes));
  quay__cuda_block *const block = quay__os_calloc(1, sizeof *block);
  if (block == NULL)
    return quay__fail_out_of_memory(sizeof *block, "the record of an allocation");
  block->how = request->how;
  block->bytes = bytes;
  block->generation = quay__device_generation(device->device);
  atomic_init(&block->is_ready, request->how != QUAY__CUDA_ORDERED);
  quay_status status = take_memory(scope, request, block);
  if (status != QUAY_OK) {
    quay__os_free(block);
    return status;
  }
  if (request->mirror)
    status = take_twin(scope, quay__max(request->size, 1), block);
  if (status == QUAY_OK && request->how == QUAY__CUDA_ORDERED)
    status = quay__cuda_event_take(device, request->stream, &block->ready);
  if (status != QUAY_OK) {
    quay__error_state saved;
    quay__error_save(&saved);
    (void)quay__cuda_relax(scope);
    (void)end_block(device, block);
    quay__error_restore(&saved);
    return status;
  }
  *out_block = block;
  return QUAY_OK;
}

quay_status quay__cuda_block_order(quay__cuda_scope *scope, const quay_raw_buffer *raw,
                                   quay__cu_stream stream) {
  quay__cuda_device *const device = scope->device;
  quay__cuda_block *const block = quay__cuda_block_of(raw);
  if (block == NULL || atomic_load_explicit(&block->is_ready, memory_order_acquire))
    return QUAY_OK;
  QUAY_TRY(quay__cuda_relax(scope));
  const quay__cu_result state = device->api->cuEventQuery(block->ready->handle);
  if (state == QUAY__CU_SUCCESS) {
    atomic_store_explicit(&block->is_ready, true, memory_order_release);
    return QUAY_OK;
  }
  const quay__cu_result result =
      state == QUAY__CU_NOT_READY ? device->api->cuStreamWaitEvent(stream, block->ready->handle, 0)
                                  : state;
  if (result == QUAY__CU_SUCCESS)
    return QUAY_OK;
  return quay__cuda_fail(device, result, "waiting for memory of %s that a stream allocates",
                         device->name);
}

/* Release. */

/* Makes the stream for frees wait for an event of any backend. */
static bool free_stream_waits(quay__cuda_device *device, const quay_event *event) {
  quay_device *const of = quay_event_device(event);
  if (strcmp(of->backend, "cuda") != 0) /* nothing of the driver's can wait for it */
    return quay_event_synchronize((quay_event *)(uintptr_t)event) == QUAY_OK;
  const quay__cuda_event *const own = (const quay__cuda_event *)(uintptr_t)quay_event_native(event);
  if (own->generation != quay__device_generation(of))
    return true;
  const quay__cu_result result =
      device->api->cuStreamWaitEvent(device->free_stream, own->handle, 0);
  if (result != QUAY__CU_SUCCESS)
    quay__cuda_report(device, result, "a free on %s can't wait for its work", device->name);
  return result == QUAY__CU_SUCCESS;
}

static bool free_stream_waits_for_all(quay__cuda_device *device, quay__cuda_block *block,
                                      quay_event *const *pending, size_t count) {
  bool waits = true;
  for (size_t i = 0; i < count; i++)
    waits = free_stream_waits(device, pending[i]) && waits;
  if (block->ready == NULL)
    return waits;
  const quay__cu_result result =
      device->api->cuStreamWaitEvent(device->free_stream, block->ready->handle, 0);
  if (result != QUAY__CU_SUCCESS)
    quay__cuda_report(device, result, "a free on %s can't wait for the allocation", device->name);
  return result == QUAY__CU_SUCCESS && waits;
}

static void put_into_list(quay__cuda_device *device, quay__cuda_block *block) {
  quay__lock_acquire(&device->lock);
  block->next = device->released;
  device->released = block;
  atomic_fetch_add_explicit(&device->released_count, 1, memory_order_relaxed);
  quay__lock_release(&device->lock);
}

static bool release_ordered(quay__cuda_device *device, quay__cuda_block *block) {
  const quay__cu_result result = device->api->cuMemFreeAsync(block->pointer, device->free_stream);
  if (result != QUAY__CU_SUCCESS) {
    quay__cuda_report(device, result, "%llu bytes of %s can't be freed and are lost",
                      (unsigned long long)block->bytes, device->name);
  }
  quay__cuda_block_forget(device, block);
  return result == QUAY__CU_SUCCESS;
}

/* Replaces the block's event by one after all work on it. */
static bool mark_last_work(quay__cuda_device *device, quay__cuda_block *block) {
  quay__cuda_event *last = NULL;
  if (quay__cuda_event_take(device, device->free_stream, &last) != QUAY_OK)
    return false;
  quay__cuda_event_give_back(device, block->ready);
  block->ready = last;
  return true;
}

/* With the context current. */
static bool release(quay__cuda_device *device, quay__cuda_block *block, quay_event *const *pending,
                    size_t count) {
  const bool waits = free_stream_waits_for_all(device, block, pending, count);
  /* A twin is freed by the driver's blocking function. */
  if (waits && block->how == QUAY__CUDA_ORDERED && block->host_bytes == 0)
    return release_ordered(device, block);
  const bool has_work = count != 0 || block->ready != NULL;
  if (waits && (!has_work || mark_last_work(device, block))) {
    put_into_list(device, block);
    return true;
  }
  quay_log(QUAY_LOG_ERROR,
           "cuda: %llu bytes of %s are not freed, since nothing tells when they are not used any "
           "more",
           (unsigned long long)block->bytes, device->name);
  quay__cuda_block_forget(device, block);
  return false;
}

bool quay__cuda_block_release(quay__cuda_device *device, quay__cuda_block *block,
                              quay_event *const *pending, size_t count) {
  if (gone(device, block)) {
    quay_log(QUAY_LOG_INFO,
             "cuda: %llu bytes of %s are gone with the device, there is nothing to free",
             (unsigned long long)block->bytes, device->name);
    quay__cuda_block_forget(device, block);
    return true;
  }
  const bool idle = count == 0 && block->ready == NULL; /* the list needs nothing of the driver */
  if (idle && block->how != QUAY__CUDA_ORDERED && quay__cuda_callable()) {
    put_into_list(device, block);
    return true;
  }
  quay__error_state saved;
  quay__error_save(&saved);
  quay__cuda_scope scope;
  bool released = false;
  if (quay__cuda_enter(device, false, &scope) == QUAY_OK) {
    released = release(device, block, pending, count);
    quay__cuda_leave(&scope);
  } else {
    quay_log(QUAY_LOG_WARNING, "cuda: %llu bytes of %s are not freed: %s",
             (unsigned long long)block->bytes, device->name, quay_last_error()->message);
    quay__cuda_block_forget(device, block);
    released = quay_device_health(device->device) != QUAY_HEALTH_OK;
  }
  quay__error_restore(&saved);
  return released;
}

/* The list. */

static quay__cuda_block *take_list(quay__cuda_device *device) {
  quay__lock_acquire(&device->lock);
  quay__cuda_block *const list = device->released;
  device->released = NULL;
  atomic_store_explicit(&device->released_count, 0, memory_order_relaxed);
  quay__lock_release(&device->lock);
  return list;
}

static bool work_done(quay__cuda_device *device, const quay__cuda_block *block, bool wait) {
  if (block->ready == NULL)
    return true;
  quay__cu_event event = block->ready->handle;
  const quay__cu_result result =
      wait ? device->api->cuEventSynchronize(event) : device->api->cuEventQuery(event);
  if (result != QUAY__CU_SUCCESS && result != QUAY__CU_NOT_READY)
    quay__cuda_report(device, result, "work on %s", device->name);
  return result == QUAY__CU_SUCCESS;
}

uint64_t quay__cuda_blocks_collect(quay__cuda_device *device, bool wait) {
  if (atomic_load_explicit(&device->released_count, memory_order_relaxed) == 0)
    return 0;
  uint64_t bytes = 0;
  quay__cuda_block *block = take_list(device);
  while (block != NULL) {
    quay__cuda_block *const next = block->next;
    const uint64_t size = block->bytes + block->host_bytes;
    if (gone(device, block) || !quay__cuda_callable()) {
      quay__cuda_block_forget(device, block);
    } else if (!work_done(device, block, wait)) {
      put_into_list(device, block);
    } else if (end_block(device, block)) {
      bytes += size;
    }
    block = next;
  }
  return bytes;
}

void quay__cuda_blocks_drop(quay__cuda_device *device) {
  quay__cuda_block *block = take_list(device);
  while (block != NULL) {
    quay__cuda_block *const next = block->next;
    quay__cuda_block_forget(device, block);
    block = next;
  }
}
