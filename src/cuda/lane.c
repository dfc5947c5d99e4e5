/* Lanes: the streams and the pinned memory that small blocking copies go through. */
#include <stdatomic.h>

#include "core/error.h"
#include "core/os.h"
#include "cuda/cuda_impl.h"

static void end_call(quay__cuda_device *device, quay__cu_result result) {
  if (result != QUAY__CU_SUCCESS) {
    quay__cuda_report(device, result, "what copies on %s go through can't be given back",
                      device->name);
  }
}

static void lane_end(quay__cuda_device *device, quay__cuda_lane *lane, bool gone) {
  const quay__cuda_api *const api = device->api;
  const bool usable =
      !gone && quay__cuda_callable() && quay_device_health(device->device) == QUAY_HEALTH_OK;
  if (usable) {
    if (lane->bounce != 0)
      end_call(device, api->cuMemFree(lane->bounce));
    if (lane->slot != NULL)
      end_call(device, api->cuMemFreeHost(lane->slot));
    if (lane->stream != NULL)
      end_call(device, api->cuStreamDestroy(lane->stream));
  }
  quay__os_free(lane);
}

static quay__cu_result pin(quay__cuda_device *device, uint64_t size, unsigned char **out_memory) {
  void *memory = NULL;
  const quay__cu_result result =
      device->api->cuMemHostAlloc(&memory, size, QUAY__CU_MEMHOSTALLOC_PORTABLE);
  *out_memory = result == QUAY__CU_SUCCESS ? memory : NULL;
  return result;
}

static quay_status lane_new(quay__cuda_device *device, quay__cuda_lane **out_lane) {
  const quay__cuda_api *const api = device->api;
  quay__cuda_lane *const lane = quay__os_calloc(1, sizeof *lane);
  if (lane == NULL)
    return quay__fail_out_of_memory(sizeof *lane, "a stream for copies");
  atomic_init(&lane->taken, true);
  quay__cu_result result =
      api->cuStreamCreateWithPriority(&lane->stream, QUAY__CU_STREAM_NON_BLOCKING, 0);
  if (result == QUAY__CU_SUCCESS)
    result = pin(device, QUAY__CUDA_SLOT_BYTES, &lane->slot);
  if (result == QUAY__CU_SUCCESS) {
    *out_lane = lane;
    return QUAY_OK;
  }
  const quay_status status =
      quay__cuda_fail(device, result, "a stream and %llu bytes of pinned memory for copies on %s",
                      (unsigned long long)QUAY__CUDA_SLOT_BYTES, device->name);
  quay__error_state saved;
  quay__error_save(&saved);
  lane_end(device, lane, false);
  quay__error_restore(&saved);
  return status;
}

/* The lane that this thread had last; there still if no lane was ended since. Another thread may
 * have it now. */
typedef struct last_lane {
  const quay__cuda_device *device;
  quay__cuda_lane *lane;
  uint64_t ends;
} last_lane;

static _Thread_local last_lane last;
/* How often lanes were ended, of any device. */
static atomic_uint_fast64_t ends;

static bool try_take(quay__cuda_lane *lane) {
  return !atomic_load_explicit(&lane->taken, memory_order_relaxed) &&
         !atomic_exchange_explicit(&lane->taken, true, memory_order_acquire);
}

static quay__cuda_lane *take_last(const quay__cuda_device *device) {
  const bool there = last.device == device && last.lane != NULL &&
                     last.ends == atomic_load_explicit(&ends, memory_order_acquire);
  return there && try_take(last.lane) ? last.lane : NULL;
}

static quay__cuda_lane *take_idle(quay__cuda_device *device) {
  quay__lock_acquire(&device->lock);
  quay__cuda_lane *lane = device->lanes;
  while (lane != NULL && !try_take(lane))
    lane = lane->next;
  quay__lock_release(&device->lock);
  return lane;
}

static quay_status take_new(quay__cuda_device *device, quay__cuda_lane **out_lane) {
  quay__cuda_lane *lane = NULL;
  const quay_status status = lane_new(device, &lane);
  if (status != QUAY_OK || lane == NULL)
    return status;
  quay__lock_acquire(&device->lock);
  lane->next = device->lanes;
  device->lanes = lane;
  quay__lock_release(&device->lock);
  *out_lane = lane;
  return QUAY_OK;
}

quay_status quay__cuda_lane_take(quay__cuda_device *device, quay__cuda_lane **out_lane) {
  *out_lane = take_last(device);
  if (__builtin_expect(*out_lane != NULL, 1))
    return QUAY_OK;
  *out_lane = take_idle(device);
  return *out_lane != NULL ? QUAY_OK : take_new(device, out_lane);
}

void quay__cuda_lane_give_back(quay__cuda_device *device, quay__cuda_lane *lane) {
  last = (last_lane){
      .device = device, .lane = lane, .ends = atomic_load_explicit(&ends, memory_order_relaxed)};
  atomic_store_explicit(&lane->taken, false, memory_order_release);
}

quay__cu_result quay__cuda_settle(quay__cuda_device *device, quay__cu_stream stream) {
  const quay__cu_result result = device->api->cuStreamSynchronize(stream);
  if (result == QUAY__CU_SUCCESS || quay__cuda_sticky(result))
    return result;
  const quay__cu_result again = device->api->cuStreamSynchronize(stream);
  if (again != QUAY__CU_SUCCESS)
    quay__cuda_report(device, again, "copies on %s can't be waited for", device->name);
  return result;
}

quay__cu_pointer quay__cuda_lane_bounce(quay__cuda_device *device, quay__cuda_lane *lane,
                                        uint64_t *inout_size) {
  if (lane->bounce == 0 && *inout_size > QUAY__CUDA_SLOT_BYTES &&
      device->api->cuMemAlloc(&lane->bounce, QUAY__CUDA_BOUNCE_BYTES) != QUAY__CU_SUCCESS)
    lane->bounce = 0;
  const uint64_t most = lane->bounce != 0 ? QUAY__CUDA_BOUNCE_BYTES : QUAY__CUDA_SLOT_BYTES;
  if (*inout_size > most)
    *inout_size = most;
  return lane->bounce != 0 ? lane->bounce : (quay__cu_pointer)(uintptr_t)lane->slot;
}

/* Out of the list; NULL: none is idle. */
static quay__cuda_lane *remove_idle(quay__cuda_device *device) {
  quay__lock_acquire(&device->lock);
  quay__cuda_lane **link = &device->lanes;
  while (*link != NULL && !try_take(*link))
    link = &(*link)->next;
  quay__cuda_lane *const lane = *link;
  if (lane != NULL)
    *link = lane->next;
  quay__lock_release(&device->lock);
  return lane;
}

void quay__cuda_lanes_end(quay__cuda_device *device, bool gone) {
  atomic_fetch_add_explicit(&ends, 1, memory_order_acq_rel);
  for (quay__cuda_lane *lane; (lane = remove_idle(device)) != NULL;)
    lane_end(device, lane, gone);
}
