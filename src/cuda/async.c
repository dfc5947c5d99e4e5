/* Copies and fills submitted to a stream. Host memory that is not pinned is done with on return. */
#include "core/checked.h"
#include "cuda/cuda_impl.h"

/* The device entered, and a stream of it that does not capture. */
typedef struct submission {
  quay__cuda_device *device;
  quay__cuda_scope scope;
  quay__cu_stream stream;
} submission;

/* `raw`: memory that the stream is about to use. */
static quay_status begin(quay_allocator *allocator, const quay_raw_buffer *raw, uint64_t stream,
                         submission *out_submission) {
  quay__cuda_device *const device = quay__cuda_of(allocator)->device;
  out_submission->device = device;
  QUAY_TRY(quay__cuda_enter(device, false, &out_submission->scope));
  quay_status status = quay__cuda_stream_use(device, stream, &out_submission->stream);
  if (status == QUAY_OK)
    status = quay__cuda_block_order(&out_submission->scope, raw, out_submission->stream);
  if (status != QUAY_OK)
    quay__cuda_leave(&out_submission->scope);
  return status;
}

static quay_status end(const submission *ended, quay_status status) {
  quay__cuda_leave(&ended->scope);
  return status;
}

static quay_status check(quay__cuda_device *device, quay__cu_result result, const char *what) {
  if (result == QUAY__CU_SUCCESS)
    return QUAY_OK;
  return quay__cuda_fail(device, result, "%s %s on a stream", what, device->name);
}

/* Waits until the stream is done with a lane, and gives it back. */
static quay_status give_back(const submission *ended, quay__cuda_lane *lane, quay_status status) {
  quay__cuda_device *const device = ended->device;
  const quay__cu_result result = quay__cuda_settle(device, ended->stream);
  if (status == QUAY_OK)
    status = check(device, result, "copying host memory of");
  quay__cuda_lane_give_back(device, lane);
  return status;
}

/* What is neither page-locked nor small goes through the core's slots, after what is in the stream.
 */
static quay_status upload(submission *to, quay_allocator *allocator, quay_raw_buffer *destination,
                          uint64_t offset, const void *source, uint64_t size, uint64_t stream) {
  quay__cuda_device *const device = to->device;
  const quay__cu_pointer pointer = quay__cuda_at(destination, offset);
  if (quay__cuda_is_pinned(device, source, size)) {
    return check(device, device->api->cuMemcpyHtoDAsync(pointer, source, size, to->stream),
                 "copying host memory to");
  }
  bool done;
  const quay_status staged =
      quay__cuda_stage(allocator, destination, offset, source, size, QUAY_WRITE, &stream, &done);
  if (done || staged != QUAY_OK)
    return staged;
  quay__cuda_lane *lane;
  QUAY_TRY(quay__cuda_relax(&to->scope));
  QUAY_TRY(quay__cuda_lane_take(device, &lane));
  const quay_status status = quay__cuda_upload(device, lane, to->stream, pointer, source, size);
  return give_back(to, lane, status);
}

static quay_status download(submission *from, quay_allocator *allocator,
                            const quay_raw_buffer *source, uint64_t offset, void *destination,
                            uint64_t size, uint64_t stream) {
  quay__cuda_device *const device = from->device;
  const quay__cu_pointer pointer = quay__cuda_at(source, offset);
  if (quay__cuda_is_pinned(device, destination, size)) {
    return check(device, device->api->cuMemcpyDtoHAsync(destination, pointer, size, from->stream),
                 "copying to host memory from");
  }
  bool done;
  const quay_status staged =
      quay__cuda_stage(allocator, source, offset, destination, size, QUAY_READ, &stream, &done);
  if (done || staged != QUAY_OK)
    return staged;
  quay__cuda_lane *lane;
  QUAY_TRY(quay__cuda_relax(&from->scope));
  QUAY_TRY(quay__cuda_lane_take(device, &lane));
  const quay_status status =
      quay__cuda_download(device, lane, from->stream, pointer, destination, size);
  if (!quay__cuda_download_is_done(status, size))
    return give_back(from, lane, status);
  quay__cuda_lane_give_back(device, lane);
  return QUAY_OK;
}

quay_status quay__cuda_copy_in_async(quay_allocator *allocator, quay_raw_buffer *destination,
                                     uint64_t offset, const void *source, uint64_t size,
                                     uint64_t stream) {
  submission copy;
  QUAY_TRY(begin(allocator, destination, stream, &copy));
  return end(&copy, upload(&copy, allocator, destination, offset, source, size, stream));
}

quay_status quay__cuda_copy_out_async(quay_allocator *allocator, const quay_raw_buffer *source,
                                      uint64_t offset, void *destination, uint64_t size,
                                      uint64_t stream) {
  submission copy;
  QUAY_TRY(begin(allocator, source, stream, &copy));
  return end(&copy, download(&copy, allocator, source, offset, destination, size, stream));
}

/* Many at once. */

enum {
  BATCH_MAX = 512 /* pieces a call of the driver's; their addresses lie on the stack */
};

static quay_status submit_batch(const submission *to, const quay_copy_piece *pieces, size_t count) {
  quay__cu_pointer destinations[BATCH_MAX], sources[BATCH_MAX];
  size_t sizes[BATCH_MAX], first = 0;
  quay__cu_copy_attributes attributes = {.source_order = QUAY__CU_COPY_ORDER_STREAM};
  for (size_t i = 0; i < count; i++) {
    destinations[i] = quay__cuda_at(pieces[i].destination, pieces[i].offset);
    sources[i] = (quay__cu_pointer)(uintptr_t)pieces[i].source;
    sizes[i] = pieces[i].size;
  }
  return check(to->device,
               to->device->api->cuMemcpyBatchAsync(destinations, sources, sizes, count, &attributes,
                                                   &first, 1, to->stream),
               "copying many pieces of host memory to");
}

static quay_status submit_each(const submission *to, const quay_copy_piece *pieces, size_t count) {
  for (size_t i = 0; i < count; i++) {
    QUAY_TRY(check(
        to->device,
        to->device->api->cuMemcpyHtoDAsync(quay__cuda_at(pieces[i].destination, pieces[i].offset),
                                           pieces[i].source, pieces[i].size, to->stream),
        "copying host memory to"));
  }
  return QUAY_OK;
}

quay_status quay__cuda_copy_in_many_async(quay_allocator *allocator, const quay_copy_piece *pieces,
                                          size_t count, uint64_t stream) {
  if (count == 0)
    return QUAY_OK;
  submission copies;
  QUAY_TRY(begin(allocator, pieces[0].destination, stream, &copies));
  quay_status status = QUAY_OK;
  for (size_t i = 1; i < count && status == QUAY_OK; i++)
    status = quay__cuda_block_order(&copies.scope, pieces[i].destination, copies.stream);
  const bool batches = copies.device->api->cuMemcpyBatchAsync != NULL;
  for (size_t done = 0; done < count && status == QUAY_OK;) {
    const size_t part = (size_t)quay__min(count - done, BATCH_MAX);
    status = batches ? submit_batch(&copies, pieces + done, part)
                     : submit_each(&copies, pieces + done, part);
    done += part;
  }
  return end(&copies, status);
}

/* In pieces that don't overlap, from the end that is not overwritten too early. */
static quay_status submit_move(const submission *copy, quay__cu_pointer destination,
                               quay__cu_pointer source, uint64_t size) {
  quay__cuda_device *const device = copy->device;
  const uint64_t piece = destination > source ? destination - source : source - destination;
  if (piece == 0)
    return QUAY_OK;
  for (uint64_t done = 0; done < size;) {
    const uint64_t part = quay__min(size - done, piece);
    const uint64_t at = destination > source ? size - done - part : done;
    QUAY_TRY(check(device,
                   device->api->cuMemcpyAsync(destination + at, source + at, part, copy->stream),
                   "copying within"));
    done += part;
  }
  return QUAY_OK;
}

quay_status quay__cuda_copy_within_async(quay_allocator *allocator, quay_raw_buffer *destination,
                                         uint64_t destination_offset, const quay_raw_buffer *source,
                                         uint64_t source_offset, uint64_t size, uint64_t stream) {
  submission copy;
  QUAY_TRY(begin(allocator, destination, stream, &copy));
  quay_status status = quay__cuda_block_order(&copy.scope, source, copy.stream);
  if (status == QUAY_OK) {
    status = submit_move(&copy, quay__cuda_at(destination, destination_offset),
                         quay__cuda_at(source, source_offset), size);
  }
  return end(&copy, status);
}

quay_status quay__cuda_fill_async(quay_allocator *allocator, quay_raw_buffer *raw, uint64_t offset,
                                  uint64_t size, const void *pattern, size_t pattern_size,
                                  uint64_t stream) {
  submission fill;
  QUAY_TRY(begin(allocator, raw, stream, &fill));
  return end(&fill, quay__cuda_submit_fill(fill.device, fill.stream, quay__cuda_at(raw, offset),
                                           size, pattern, pattern_size));
}
