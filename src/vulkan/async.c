/* Copies and fills on a stream. Host memory that the device does not know is done with on return.
 */
#include "core/checked.h"
#include "core/error.h"
#include "core/pair_path.h"
#include "core/thread.h"
#include "vulkan/vulkan_impl.h"

/* Memory that the program made may be for the queues of streams alone: then what is on a queue for
 * copies is waited for first, and the copy itself in the end. */
static bool is_elsewhere(const quay__vulkan_queue *queue, const quay__vulkan_place *a,
                         const quay__vulkan_place *b) {
  return quay__vulkan_only_copies(queue) && (a->block == NULL || (b != NULL && b->block == NULL));
}

static quay_status begin(const quay__vulkan *self, uint64_t stream, const quay__vulkan_place *a,
                         const quay__vulkan_place *b, quay__vulkan_lane **out_lane) {
  quay__vulkan_queue *queue = quay__vulkan_queue_of(self->device, stream);
  if (queue == NULL) {
    (void)quay_error_set(QUAY_STATUS_INVALID_ARGUMENT, "vulkan", 0, NULL,
                         "the stream is on no queue of %s", self->device->name);
    return QUAY_STATUS_INVALID_ARGUMENT;
  }
  if (is_elsewhere(queue, a, b)) {
    QUAY_TRY(quay__vulkan_drain(queue));
    queue = quay__vulkan_copy_queue(self->device, false, false);
  }
  return quay__vulkan_lane_take(queue, out_lane);
}

/* What failed half-way may have submitted something that uses the caller's memory. */
static quay_status end(quay__vulkan_lane *lane, uint64_t stream, quay_status status) {
  if (status != QUAY_OK || QUAY__VULKAN_TO_INTEGER(lane->queue->handle) != stream)
    status = quay__vulkan_lane_settle(lane, status);
  quay__vulkan_lane_give_back(lane);
  return status;
}

/* The place of host memory that the device reaches; false if it does not. */
static bool find_pinned(quay__vulkan_device *device, const void *memory, uint64_t size,
                        quay__vulkan_place *out_place) {
  quay__vulkan_block *const block = quay__vulkan_block_at(device, memory, size);
  if (block == NULL)
    return false;
  const uint64_t at = (uint64_t)(uintptr_t)memory - (uint64_t)(uintptr_t)block->host;
  *out_place = (quay__vulkan_place){
      .buffer = block->buffer,
      .offset = at,
      .host = block->host + at,
      .block = block,
  };
  return true;
}

/* Pieces of a staged copy are in no order on a queue for copies, so that it need not be idle
 * between two of them. */
static bool is_apart(const quay__vulkan_lane *lane) {
  return quay__thread_submits_piece && quay__vulkan_only_copies(lane->queue);
}

/* Between the host memory of a place that the device reaches and device memory. */
static quay_status submit_pinned(quay__vulkan_lane *lane, const quay__vulkan_place *destination,
                                 const quay__vulkan_place *source, uint64_t size, bool to_host) {
  if (!is_apart(lane) || destination->buffer == source->buffer)
    return quay__vulkan_move(lane, destination, source, size);
  QUAY_TRY(quay__vulkan_slot_begin_apart(lane, 0));
  quay__vulkan_record_copy(lane, 0, destination->buffer, destination->offset, source->buffer,
                           source->offset, size);
  return quay__vulkan_slot_submit_apart(lane, 0, to_host);
}

quay_status quay__vulkan_copy_in_async(quay_allocator *allocator, quay_raw_buffer *destination,
                                       uint64_t offset, const void *source, uint64_t size,
                                       uint64_t stream) {
  const quay__vulkan *const self = quay__vulkan_of(allocator);
  const quay__vulkan_place to = quay__vulkan_place_of(self, destination, offset);
  quay__vulkan_place from;
  quay__vulkan_lane *lane = NULL;
  QUAY_TRY(begin(self, stream, &to, NULL, &lane));
  return end(lane, stream,
             find_pinned(self->device, source, size, &from)
                 ? submit_pinned(lane, &to, &from, size, false)
                 : quay__vulkan_upload(lane, &to, source, size, quay__vulkan_chunk(1)));
}

quay_status quay__vulkan_copy_out_async(quay_allocator *allocator, const quay_raw_buffer *source,
                                        uint64_t offset, void *destination, uint64_t size,
                                        uint64_t stream) {
  const quay__vulkan *const self = quay__vulkan_of(allocator);
  const quay__vulkan_place from = quay__vulkan_place_of(self, source, offset);
  quay__vulkan_place to;
  quay__vulkan_lane *lane = NULL;
  QUAY_TRY(begin(self, stream, &from, NULL, &lane));
  return end(lane, stream,
             find_pinned(self->device, destination, size, &to)
                 ? submit_pinned(lane, &to, &from, size, true)
                 : quay__vulkan_download(lane, &from, destination, size, quay__vulkan_chunk(1)));
}

/* Many at once: one submission. */

static bool reaches(const quay__vulkan_block *block, const void *memory, uint64_t size) {
  const uint64_t at = (uint64_t)(uintptr_t)memory - (uint64_t)(uintptr_t)block->host;
  return (uintptr_t)memory >= (uintptr_t)block->host && quay__in_range(at, size, block->bytes);
}

/* The block that all sources are in, as those of one slot of staging are; NULL: there is none. */
static quay__vulkan_block *block_of_all(quay__vulkan_device *device, const quay_copy_piece *pieces,
                                        size_t count) {
  quay__vulkan_block *block = quay__vulkan_block_at(device, pieces[0].source, pieces[0].size);
  for (size_t i = 1; i < count && block != NULL; i++) {
    if (!reaches(block, pieces[i].source, pieces[i].size))
      block = NULL;
  }
  return block;
}

/* In order where pieces could overlap: not those of one buffer that ascend. */
static void record_pieces(const quay__vulkan *self, const quay__vulkan_lane *lane,
                          const quay__vulkan_block *from, const quay_copy_piece *pieces,
                          size_t count) {
  VkBuffer last = VK_NULL_HANDLE;
  uint64_t end = 0;
  for (size_t i = 0; i < count; i++) {
    const quay_copy_piece *piece = &pieces[i];
    const quay__vulkan_place to = quay__vulkan_place_of(self, piece->destination, piece->offset);
    if (i != 0 && (to.buffer != last || to.offset < end))
      quay__vulkan_barrier(self->device, lane->slots[0].commands);
    quay__vulkan_record_copy(lane, 0, to.buffer, to.offset, from->buffer,
                             (uint64_t)((const unsigned char *)piece->source - from->host),
                             piece->size);
    last = to.buffer;
    end = to.offset + piece->size;
  }
}

static quay_status copy_one_by_one(quay_allocator *allocator, const quay_copy_piece *pieces,
                                   size_t count, uint64_t stream) {
  for (size_t i = 0; i < count; i++) {
    QUAY_TRY(quay__vulkan_copy_in_async(allocator, pieces[i].destination, pieces[i].offset,
                                        pieces[i].source, pieces[i].size, stream));
  }
  return QUAY_OK;
}

quay_status quay__vulkan_copy_in_many_async(quay_allocator *allocator,
                                            const quay_copy_piece *pieces, size_t count,
                                            uint64_t stream) {
  const quay__vulkan *const self = quay__vulkan_of(allocator);
  const quay__vulkan_block *const from =
      count > 1 ? block_of_all(self->device, pieces, count) : NULL;
  if (from == NULL)
    return copy_one_by_one(allocator, pieces, count, stream);
  quay__vulkan_place place = quay__vulkan_place_of(self, pieces[0].destination, 0);
  for (size_t i = 1; i < count && place.block != NULL; i++) /* one of the program's, if any is */
    place = quay__vulkan_place_of(self, pieces[i].destination, 0);
  quay__vulkan_lane *lane = NULL;
  QUAY_TRY(begin(self, stream, &place, NULL, &lane));
  const bool apart = is_apart(lane);
  quay_status status =
      apart ? quay__vulkan_slot_begin_apart(lane, 0) : quay__vulkan_slot_begin(lane, 0);
  if (status == QUAY_OK) {
    record_pieces(self, lane, from, pieces, count);
    status =
        apart ? quay__vulkan_slot_submit_apart(lane, 0, false) : quay__vulkan_slot_submit(lane, 0);
  }
  return end(lane, stream, status);
}

static quay_status copy_places(const quay__vulkan *self, const quay__vulkan_place *to,
                               const quay__vulkan_place *from, uint64_t size, uint64_t stream) {
  quay__vulkan_lane *lane = NULL;
  QUAY_TRY(begin(self, stream, to, from, &lane));
  return end(lane, stream, quay__vulkan_move(lane, to, from, size));
}

quay_status quay__vulkan_copy_within_async(quay_allocator *allocator, quay_raw_buffer *destination,
                                           uint64_t destination_offset,
                                           const quay_raw_buffer *source, uint64_t source_offset,
                                           uint64_t size, uint64_t stream) {
  const quay__vulkan *const self = quay__vulkan_of(allocator);
  const quay__vulkan_place to = quay__vulkan_place_of(self, destination, destination_offset);
  const quay__vulkan_place from =
      quay__vulkan_place_of(quay__vulkan_of(source->owner), source, source_offset);
  return copy_places(self, &to, &from, size, stream);
}

quay_status quay__vulkan_fill_async(quay_allocator *allocator, quay_raw_buffer *raw,
                                    uint64_t offset, uint64_t size, const void *pattern,
                                    size_t pattern_size, uint64_t stream) {
  const quay__vulkan *const self = quay__vulkan_of(allocator);
  const quay__vulkan_place place = quay__vulkan_place_of(self, raw, offset);
  quay__vulkan_lane *lane = NULL;
  QUAY_TRY(begin(self, stream, &place, NULL, &lane));
  return end(lane, stream, quay__vulkan_submit_fill(lane, &place, size, pattern, pattern_size));
}

quay_status quay__vulkan_copy_across_async(quay_allocator *allocator, quay_raw_buffer *destination,
                                           uint64_t destination_offset,
                                           const quay_raw_buffer *source, uint64_t source_offset,
                                           uint64_t size, uint64_t stream) {
  const quay__vulkan *const self = quay__vulkan_of(allocator);
  const quay__pair_path *const path = quay__pair_path_find(destination, source);
  if (path != NULL) {
    return path->submit(self->device->device, stream, destination, destination_offset, source,
                        source_offset, size);
  }
  const quay__vulkan *const receiver = quay__vulkan_of(destination->owner);
  const quay__vulkan_place to = quay__vulkan_place_of(receiver, destination, destination_offset);
  const quay__vulkan_place from =
      quay__vulkan_place_of(quay__vulkan_of(source->owner), source, source_offset);
  return copy_places(self, &to, &from, size, stream);
}
