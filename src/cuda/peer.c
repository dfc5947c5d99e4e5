/* Copies between CUDA memory of two devices or two kinds. */
#include <string.h>

#include "core/allocator_impl.h"
#include "core/error.h"
#include "core/pair_path.h"
#include "cuda/cuda_impl.h"

/* The two ends of a copy. */
typedef struct ends {
  quay__cuda *destination, *source;
} ends;

static bool find_ends(const quay_raw_buffer *destination, const quay_raw_buffer *source,
                      ends *out_ends) {
  out_ends->destination = quay__cuda_of(destination->owner);
  out_ends->source = quay__cuda_of(source->owner);
  return out_ends->destination != NULL && out_ends->source != NULL;
}

/* Pinned memory is portable: every device reaches it. */
static bool needs_peers(const ends *of) {
  return of->destination->device != of->source->device &&
         of->destination->kind != QUAY_MEMORY_PINNED && of->source->kind != QUAY_MEMORY_PINNED;
}

/* Peer access. */

/* Lets `device` reach the memory that the other's driver pool hands out, which has a switch of its
 * own. */
static quay__cu_result open_pool(const quay__cuda_device *device, const quay__cuda_device *other) {
  const quay__cuda_api *const api = device->api;
  if (!other->has_pools || api->cuDeviceGetDefaultMemPool == NULL ||
      api->cuMemPoolSetAccess == NULL)
    return QUAY__CU_SUCCESS;
  quay__cu_pool pool = NULL;
  const quay__cu_result result = api->cuDeviceGetDefaultMemPool(&pool, other->handle);
  if (result != QUAY__CU_SUCCESS)
    return result;
  const quay__cu_access access = {
      .location = {.type = QUAY__CU_LOCATION_DEVICE, .id = device->handle},
      .flags = QUAY__CU_ACCESS_READ_WRITE,
  };
  return api->cuMemPoolSetAccess(pool, &access, 1);
}

static quay__cuda_peer enable(quay__cuda_device *device, quay__cuda_device *other) {
  const quay__cuda_api *const api = device->api;
  int can = 0;
  quay__cu_result result = api->cuDeviceCanAccessPeer(&can, device->handle, other->handle);
  if (result != QUAY__CU_SUCCESS || can == 0)
    return QUAY__CUDA_PEER_REFUSED;
  quay__cuda_scope scope;
  if (quay__cuda_enter(device, true, &scope) != QUAY_OK)
    return QUAY__CUDA_PEER_UNKNOWN;
  result = api->cuCtxEnablePeerAccess(other->context, 0);
  if (result == QUAY__CU_SUCCESS || result == QUAY__CU_PEER_ALREADY_ENABLED)
    result = open_pool(device, other);
  if (result != QUAY__CU_SUCCESS) {
    quay__cuda_report(device, result,
                      "%s can't be given access to %s; copies between them are "
                      "staged",
                      device->name, other->name);
  }
  quay__cuda_leave(&scope);
  return result == QUAY__CU_SUCCESS ? QUAY__CUDA_PEER_ENABLED : QUAY__CUDA_PEER_REFUSED;
}

/* Asked once for each ordered pair; threads that race ask twice, which does no harm. */
static bool reaches(quay__cuda_device *device, quay__cuda_device *other) {
  if (device == other)
    return true;
  atomic_uchar *const known = &device->peers[other->ordinal];
  unsigned char state = atomic_load_explicit(known, memory_order_acquire);
  if (state == QUAY__CUDA_PEER_UNKNOWN) {
    quay__error_state saved;
    quay__error_save(&saved);
    state = (unsigned char)enable(device, other);
    quay__error_restore(&saved);
    atomic_store_explicit(known, state, memory_order_release);
  }
  return state == QUAY__CUDA_PEER_ENABLED;
}

/* Copies. */

bool quay__cuda_can_copy_across(quay_allocator *allocator, const quay_raw_buffer *destination,
                                const quay_raw_buffer *source, uint64_t size,
                                quay_across_info *out_info) {
  (void)allocator;
  const quay__pair_path *const path = quay__pair_path_find(destination, source);
  if (path != NULL)
    return path->can(destination, source, size, out_info);
  ends of;
  if (!find_ends(destination, source, &of))
    return false;
  out_info->reason = "pinned, managed or device memory: the device copies it directly";
  if (!needs_peers(&of))
    return true;
  out_info->reason = "the two devices are peers: one copies from the other directly";
  return reaches(of.destination->device, of.source->device) &&
         reaches(of.source->device, of.destination->device);
}

static quay__cu_result submit(const ends *of, quay__cuda_device *on, quay__cu_stream stream,
                              quay__cu_pointer to, quay__cu_pointer from, uint64_t size) {
  const quay__cuda_api *const api = on->api;
  if (!needs_peers(of))
    return api->cuMemcpyAsync(to, from, size, stream);
  return api->cuMemcpyPeerAsync(to, of->destination->device->context, from,
                                of->source->device->context, size, stream);
}

static quay_status submit_ordered(const ends *of, quay__cuda_scope *scope, quay__cu_stream stream,
                                  const quay_raw_buffer *destination, uint64_t destination_offset,
                                  const quay_raw_buffer *source, uint64_t source_offset,
                                  uint64_t size) {
  quay__cuda_device *const on = scope->device;
  QUAY_TRY(quay__cuda_block_order(scope, destination, stream));
  QUAY_TRY(quay__cuda_block_order(scope, source, stream));
  QUAY_TRY(quay__cuda_share_reach(scope, destination));
  QUAY_TRY(quay__cuda_share_reach(scope, source));
  const quay__cu_result result =
      submit(of, on, stream, quay__cuda_at(destination, destination_offset),
             quay__cuda_at(source, source_offset), size);
  if (result == QUAY__CU_SUCCESS)
    return QUAY_OK;
  return quay__cuda_fail(on, result, "copying from %s to %s", of->source->device->name,
                         of->destination->device->name);
}

static quay_status fail_foreign(void) {
  return quay_error_set(QUAY_STATUS_UNSUPPORTED, "cuda", 0, NULL,
                        "both sides of the copy must be CUDA memory");
}

quay_status quay__cuda_copy_across(quay_allocator *allocator, quay_raw_buffer *destination,
                                   uint64_t destination_offset, const quay_raw_buffer *source,
                                   uint64_t source_offset, uint64_t size) {
  (void)allocator;
  const quay__pair_path *const path = quay__pair_path_find(destination, source);
  if (path != NULL)
    return path->copy(destination, destination_offset, source, source_offset, size);
  ends of;
  if (!find_ends(destination, source, &of))
    return fail_foreign();
  /* The source's device pushes where the destination is no device's. */
  const bool push = of.destination->kind == QUAY_MEMORY_PINNED;
  quay__cuda_device *const on = push ? of.source->device : of.destination->device;
  quay__cuda_scope scope;
  QUAY_TRY(quay__cuda_enter(on, true, &scope));
  quay__cuda_lane *lane;
  quay_status status = quay__cuda_lane_take(on, &lane);
  if (status == QUAY_OK) {
    status = submit_ordered(&of, &scope, lane->stream, destination, destination_offset, source,
                            source_offset, size);
    const quay__cu_result result = quay__cuda_settle(on, lane->stream);
    if (status == QUAY_OK && result != QUAY__CU_SUCCESS) {
      status = quay__cuda_fail(on, result, "copying from %s to %s", of.source->device->name,
                               of.destination->device->name);
    }
    quay__cuda_lane_give_back(on, lane);
  }
  quay__cuda_leave(&scope);
  return status;
}

/* Whether streams of `on` can do the copy: a third device's memory must be a peer's. */
static bool can_submit(const ends *of, quay__cuda_device *on) {
  const quay__cuda *const sides[] = {of->destination, of->source};
  for (size_t i = 0; i < 2; i++) {
    if (sides[i]->kind == QUAY_MEMORY_DEVICE && !reaches(on, sides[i]->device))
      return false;
  }
  return true;
}

quay_status quay__cuda_copy_across_async(quay_allocator *allocator, quay_raw_buffer *destination,
                                         uint64_t destination_offset, const quay_raw_buffer *source,
                                         uint64_t source_offset, uint64_t size, uint64_t stream) {
  quay__cuda_device *const on = quay__cuda_of(allocator)->device;
  const quay__pair_path *const path = quay__pair_path_find(destination, source);
  if (path != NULL) {
    return path->submit(on->device, stream, destination, destination_offset, source, source_offset,
                        size);
  }
  ends of;
  if (!find_ends(destination, source, &of))
    return fail_foreign();
  if (!can_submit(&of, on)) {
    QUAY_TRY(quay__cuda_stream_synchronize(on->device, stream));
    return quay__cuda_copy_across(allocator, destination, destination_offset, source, source_offset,
                                  size);
  }
  quay__cuda_scope scope;
  QUAY_TRY(quay__cuda_enter(on, false, &scope));
  quay__cu_stream handle;
  quay_status status = quay__cuda_stream_use(on, stream, &handle);
  if (status == QUAY_OK) {
    status = submit_ordered(&of, &scope, handle, destination, destination_offset, source,
                            source_offset, size);
  }
  quay__cuda_leave(&scope);
  return status;
}
