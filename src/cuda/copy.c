/* Blocking copies: host memory to the device and back, and within one kind of memory. What is
 * submitted is submitted to a lane's stream, and waited for. */
#include <string.h>

#include "core/checked.h"
#include "core/error.h"
#include "core/staging.h"
#include "core/thread.h"
#include "cuda/cuda_impl.h"

/* Overlapping ranges that lie this far apart are copied piece by piece at once; closer ones go
 * through memory of their own. */
#define NEAR_BYTES ((uint64_t)1 << 20)

/* A blocking copy: the device entered, a lane taken. */
typedef struct job {
  quay__cuda_device *device;
  quay__cuda_scope scope;
  quay__cuda_lane *lane;
} job;

static quay_status begin(quay__cuda_device *device, const quay_raw_buffer *raw, job *out_job) {
  out_job->device = device;
  QUAY_TRY(quay__cuda_enter(device, true, &out_job->scope));
  quay_status status = quay__cuda_lane_take(device, &out_job->lane);
  if (status == QUAY_OK) {
    status = quay__cuda_block_order(&out_job->scope, raw, out_job->lane->stream);
    if (status != QUAY_OK)
      quay__cuda_lane_give_back(device, out_job->lane);
  }
  if (status != QUAY_OK)
    quay__cuda_leave(&out_job->scope);
  return status;
}

static void finish(job *ended) {
  quay__cuda_lane_give_back(ended->device, ended->lane);
  quay__cuda_leave(&ended->scope);
}

/* Waits for the stream, after a failure too: what it reads and writes is somebody else's after
 * this. */
static quay_status end(job *ended, quay_status status, const char *what) {
  quay__cuda_device *const device = ended->device;
  const quay__cu_result result = quay__cuda_settle(device, ended->lane->stream);
  if (status == QUAY_OK && result != QUAY__CU_SUCCESS)
    status = quay__cuda_fail(device, result, "%s %s", what, device->name);
  finish(ended);
  return status;
}

static quay_status check(quay__cuda_device *device, quay__cu_result result, const char *what) {
  if (__builtin_expect(result == QUAY__CU_SUCCESS, 1))
    return QUAY_OK;
  return quay__cuda_fail(device, result, "%s %s", what, device->name);
}

bool quay__cuda_is_pinned(quay__cuda_device *device, const void *memory, uint64_t size) {
  int type = 0;
  quay__cu_pointer start = 0;
  size_t length = 0;
  int attributes[] = {QUAY__CU_POINTER_MEMORY_TYPE, QUAY__CU_POINTER_RANGE_START,
                      QUAY__CU_POINTER_RANGE_SIZE};
  void *values[] = {&type, &start, &length};
  const quay__cu_pointer address = (quay__cu_pointer)(uintptr_t)memory;
  if (device->api->cuPointerGetAttributes(3, attributes, values, address) != QUAY__CU_SUCCESS ||
      type != QUAY__CU_MEMORYTYPE_HOST || address < start)
    return false;
  return quay__in_range(address - start, size, length);
}

/* To the device. */

quay_status quay__cuda_upload(quay__cuda_device *device, quay__cuda_lane *lane,
                              quay__cu_stream stream, quay__cu_pointer destination,
                              const void *source, uint64_t size) {
  const void *from = source;
  if (size <= QUAY__CUDA_SLOT_BYTES) {
    memcpy(lane->slot, source, size);
    from = lane->slot;
  }
  return check(device, device->api->cuMemcpyHtoDAsync(destination, from, size, stream),
               "copying host memory to");
}

/* Large pageable memory goes through the core's slots, which the driver's own staging is much
 * slower than; but it works where there are none. */
static quay_status is_staged(quay__cuda_device *device, const void *memory, uint64_t size,
                             bool *out_staged) {
  *out_staged = false;
  if (size <= QUAY__CUDA_SLOT_BYTES || quay__thread_in_staging)
    return QUAY_OK;
  quay__cuda_scope scope;
  QUAY_TRY(quay__cuda_enter(device, false, &scope));
  *out_staged = !quay__cuda_is_pinned(device, memory, size);
  quay__cuda_leave(&scope);
  return QUAY_OK;
}

quay_status quay__cuda_stage(quay_allocator *allocator, const quay_raw_buffer *raw, uint64_t offset,
                             const void *memory, uint64_t size, quay_use_mode mode,
                             const uint64_t *after, bool *out_done) {
  bool staged;
  *out_done = false;
  QUAY_TRY(is_staged(quay__cuda_of(allocator)->device, memory, size, &staged));
  if (!staged)
    return QUAY_OK;
  const quay__host_stage copy = {
      .side = {.allocator = allocator,
               .raw = (quay_raw_buffer *)(uintptr_t)raw, /* NOLINT(performance-no-int-to-ptr) */
               .offset = offset},
      .memory = (unsigned char *)(uintptr_t)memory, /* NOLINT(performance-no-int-to-ptr) */
      .size = size,
      .after = after,
  };
  return mode == QUAY_WRITE ? quay__stage_in(&copy, out_done) : quay__stage_out(&copy, out_done);
}

quay_status quay__cuda_copy_in(quay_allocator *allocator, quay_raw_buffer *destination,
                               uint64_t offset, const void *source, uint64_t size) {
  quay__cuda_device *const device = quay__cuda_of(allocator)->device;
  bool done;
  const quay_status staged =
      quay__cuda_stage(allocator, destination, offset, source, size, QUAY_WRITE, NULL, &done);
  if (done || staged != QUAY_OK)
    return staged;
  job copy;
  QUAY_TRY(begin(device, destination, &copy));
  const quay_status status = quay__cuda_upload(device, copy.lane, copy.lane->stream,
                                               quay__cuda_at(destination, offset), source, size);
  return end(&copy, status, "copying host memory to");
}

/* From the device. */

quay_status quay__cuda_download(quay__cuda_device *device, quay__cuda_lane *lane,
                                quay__cu_stream stream, quay__cu_pointer source, void *destination,
                                uint64_t size) {
  const quay__cuda_api *const api = device->api;
  const char *const what = "copying to host memory from";
  if (size <= QUAY__CUDA_SLOT_BYTES) {
    QUAY_TRY(check(device, api->cuMemcpyDtoHAsync(lane->slot, source, size, stream), what));
    QUAY_TRY(check(device, api->cuStreamSynchronize(stream), what));
    memcpy(destination, lane->slot, size);
    return QUAY_OK;
  }
  return check(device, api->cuMemcpyDtoHAsync(destination, source, size, stream), what);
}

quay_status quay__cuda_copy_out(quay_allocator *allocator, const quay_raw_buffer *source,
                                uint64_t offset, void *destination, uint64_t size) {
  quay__cuda_device *const device = quay__cuda_of(allocator)->device;
  bool done;
  const quay_status staged =
      quay__cuda_stage(allocator, source, offset, destination, size, QUAY_READ, NULL, &done);
  if (done || staged != QUAY_OK)
    return staged;
  job copy;
  QUAY_TRY(begin(device, source, &copy));
  const quay_status status = quay__cuda_download(device, copy.lane, copy.lane->stream,
                                                 quay__cuda_at(source, offset), destination, size);
  if (quay__cuda_download_is_done(status, size)) {
    finish(&copy);
    return QUAY_OK;
  }
  return end(&copy, status, "copying to host memory from");
}

void quay__cuda_copy_info(quay_allocator *allocator, const quay_raw_buffer *destination,
                          const quay_raw_buffer *source, uint64_t size,
                          quay_across_info *out_info) {
  if (size <= QUAY__CUDA_SLOT_BYTES || (destination != NULL && source != NULL))
    return;
  quay__staging_plan plan;
  if (!quay__host_stage_plan(allocator, destination != NULL, size, &plan)) {
    out_info->reason = "the system refused to page-lock memory for the device: the driver copies "
                       "pageable memory by itself, which is slow";
    return;
  }
  out_info->chunk = plan.chunk;
  out_info->threads = plan.threads;
  out_info->staging_bytes = plan.chunk * plan.slots;
  out_info->reason = "pageable memory, in chunks through page-locked slots that are filled or "
                     "emptied while the device copies";
}

/* Within. */

static quay_status submit_within(quay__cuda_device *device, quay__cu_stream stream,
                                 quay__cu_pointer destination, quay__cu_pointer source,
                                 uint64_t size) {
  return check(device, device->api->cuMemcpyAsync(destination, source, size, stream),
               "copying within");
}

/* In pieces that don't overlap, from the end that is not overwritten too early. */
static quay_status move_in_pieces(quay__cuda_device *device, quay__cu_stream stream,
                                  quay__cu_pointer destination, quay__cu_pointer source,
                                  uint64_t size, uint64_t piece) {
  for (uint64_t done = 0; done < size;) {
    const uint64_t part = quay__min(size - done, piece);
    const uint64_t at = destination > source ? size - done - part : done;
    QUAY_TRY(submit_within(device, stream, destination + at, source + at, part));
    done += part;
  }
  return QUAY_OK;
}

static quay_status move_through_bounce(quay__cuda_device *device, quay__cuda_lane *lane,
                                       quay__cu_pointer destination, quay__cu_pointer source,
                                       uint64_t size) {
  uint64_t piece = size;
  const quay__cu_pointer bounce = quay__cuda_lane_bounce(device, lane, &piece);
  for (uint64_t done = 0; done < size;) {
    const uint64_t part = quay__min(size - done, piece);
    const uint64_t at = destination > source ? size - done - part : done;
    QUAY_TRY(submit_within(device, lane->stream, bounce, source + at, part));
    QUAY_TRY(submit_within(device, lane->stream, destination + at, bounce, part));
    done += part;
  }
  return QUAY_OK;
}

static quay_status move(const job *copy, quay__cu_pointer destination, quay__cu_pointer source,
                        uint64_t size) {
  const uint64_t distance = destination > source ? destination - source : source - destination;
  if (distance == 0)
    return QUAY_OK;
  if (distance >= size || distance >= NEAR_BYTES)
    return move_in_pieces(copy->device, copy->lane->stream, destination, source, size, distance);
  return move_through_bounce(copy->device, copy->lane, destination, source, size);
}

quay_status quay__cuda_copy_within(quay_allocator *allocator, quay_raw_buffer *destination,
                                   uint64_t destination_offset, const quay_raw_buffer *source,
                                   uint64_t source_offset, uint64_t size) {
  quay__cuda_device *const device = quay__cuda_of(allocator)->device;
  job copy;
  QUAY_TRY(begin(device, destination, &copy));
  quay_status status = quay__cuda_block_order(&copy.scope, source, copy.lane->stream);
  if (status == QUAY_OK) {
    status = move(&copy, quay__cuda_at(destination, destination_offset),
                  quay__cuda_at(source, source_offset), size);
  }
  return end(&copy, status, "copying within");
}

quay_status quay__cuda_fill(quay_allocator *allocator, quay_raw_buffer *raw, uint64_t offset,
                            uint64_t size, const void *pattern, size_t pattern_size) {
  quay__cuda_device *const device = quay__cuda_of(allocator)->device;
  job copy;
  QUAY_TRY(begin(device, raw, &copy));
  const quay_status status = quay__cuda_submit_fill(
      device, copy.lane->stream, quay__cuda_at(raw, offset), size, pattern, pattern_size);
  return end(&copy, status, "filling memory of");
}
