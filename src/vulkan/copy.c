/* Blocking copies, and the parts of copies that go over a lane. Memory that the processor reaches
 * at full speed it copies itself. */
#include <string.h>

#include "core/allocator_impl.h"
#include "core/checked.h"
#include "core/copy_threads.h"
#include "core/error.h"
#include "core/host_copy.h"
#include "core/pair_path.h"
#include "core/staging.h"
#include "core/staging_tuning.h"
#include "core/workers.h"
#include "vulkan/vulkan_impl.h"

/* Overlapping ranges that lie this far apart are copied piece by piece at once; closer ones go
 * through memory of their own. */
#define NEAR_BYTES ((uint64_t)1 << 20)

/* Places. */

quay__vulkan_place quay__vulkan_place_in(quay__vulkan_span *span, uint64_t offset) {
  quay__vulkan_block *const block = span->block;
  const uint64_t at = span->offset + offset;
  return (quay__vulkan_place){
      .buffer = block->buffer,
      .offset = at,
      .host = block->host != NULL ? block->host + at : NULL,
      .block = block,
  };
}

quay__vulkan_place quay__vulkan_place_of(const quay__vulkan *self, const quay_raw_buffer *raw,
                                         uint64_t offset) {
  const quay_raw_vulkan *const arm = &raw->as.vulkan;
  quay__vulkan_span *const span = quay__vulkan_span_of(raw);
  quay__vulkan_place place = {
      .buffer = QUAY__VULKAN_TO_HANDLE(VkBuffer, arm->buffer),
      .offset = arm->offset + offset,
      .block = span != NULL ? span->block : NULL,
  };
  /* Memory of kind device is left to the device, unless it is ordinary memory, as of a processor
   * that plays the device. */
  if (arm->host_pointer != 0 &&
      (self->kind != QUAY_VULKAN_DEVICE || self->device->types[QUAY_VULKAN_DEVICE].mapped))
    place.host = (unsigned char *)(uintptr_t)arm->host_pointer + offset;
  return place;
}

static quay__vulkan_place advanced(const quay__vulkan_place *place, uint64_t by) {
  quay__vulkan_place moved = *place;
  moved.offset += by;
  if (moved.host != NULL)
    moved.host += by;
  return moved;
}

/* Over a lane. */

void quay__vulkan_record_copy(const quay__vulkan_lane *lane, unsigned slot, VkBuffer destination,
                              uint64_t to, VkBuffer source, uint64_t from, uint64_t size) {
  const VkBufferCopy region = {.srcOffset = from, .dstOffset = to, .size = size};
  lane->queue->device->api.vkCmdCopyBuffer(lane->slots[slot].commands, source, destination, 1,
                                           &region);
}

static quay_status submit_copy(quay__vulkan_lane *lane, unsigned slot,
                               const quay__vulkan_place *destination,
                               const quay__vulkan_place *source, uint64_t size) {
  QUAY_TRY(quay__vulkan_slot_begin(lane, slot));
  quay__vulkan_record_copy(lane, slot, destination->buffer, destination->offset, source->buffer,
                           source->offset, size);
  return quay__vulkan_slot_submit(lane, slot);
}

uint64_t quay__vulkan_chunk(uint32_t lanes) {
  const uint64_t slots = 2 * (uint64_t)lanes;
  const uint64_t each = quay__copy_memory(slots * QUAY__VULKAN_CHUNK_BYTES) / slots;
  return quay__align_down(each, QUAY__VULKAN_ALIGNMENT);
}

quay_status quay__vulkan_upload(quay__vulkan_lane *lane, const quay__vulkan_place *destination,
                                const void *source, uint64_t size, uint64_t chunk) {
  unsigned slot = 0;
  for (uint64_t done = 0; done < size; slot ^= 1) {
    const uint64_t part = quay__min(size - done, chunk);
    quay__vulkan_span *span = NULL;
    QUAY_TRY(quay__vulkan_slot_up(lane, slot, part, &span));
    const quay__vulkan_place from = quay__vulkan_place_in(span, 0);
    const quay__vulkan_place to = advanced(destination, done);
    quay__host_copy(from.host, (const unsigned char *)source + done, part, 0);
    QUAY_TRY(submit_copy(lane, slot, &to, &from, part));
    done += part;
  }
  return QUAY_OK;
}

/* The part of a download that chunk `number` is; false beyond the end. */
static bool chunk_of(uint64_t size, uint64_t chunk, uint64_t number, uint64_t *out_at,
                     uint64_t *out_part) {
  *out_at = number * chunk;
  *out_part = *out_at < size ? quay__min(size - *out_at, chunk) : 0;
  return *out_part != 0;
}

static quay_status submit_chunk(quay__vulkan_lane *lane, const quay__vulkan_place *source,
                                uint64_t size, uint64_t chunk, uint64_t number) {
  uint64_t at, part;
  if (!chunk_of(size, chunk, number, &at, &part))
    return QUAY_OK;
  const unsigned slot = number & 1;
  quay__vulkan_span *span = NULL;
  QUAY_TRY(quay__vulkan_slot_down(lane, slot, part, &span));
  const quay__vulkan_place to = quay__vulkan_place_in(span, 0);
  const quay__vulkan_place from = advanced(source, at);
  return submit_copy(lane, slot, &to, &from, part);
}

quay_status quay__vulkan_download(quay__vulkan_lane *lane, const quay__vulkan_place *source,
                                  void *destination, uint64_t size, uint64_t chunk) {
  uint64_t at, part;
  QUAY_TRY(submit_chunk(lane, source, size, chunk, 0));
  for (uint64_t number = 0; chunk_of(size, chunk, number, &at, &part); number++) {
    QUAY_TRY(submit_chunk(lane, source, size, chunk, number + 1));
    QUAY_TRY(quay__vulkan_slot_wait(lane, number & 1));
    const quay__vulkan_place from = quay__vulkan_place_in(lane->slots[number & 1].down, 0);
    QUAY_TRY(quay__vulkan_invalidate(from.block, from.offset, part));
    /* The destination is not soon read again if it is large, and the slot is. */
    if (size > QUAY__VULKAN_CHUNK_BYTES) {
      quay__host_stream((unsigned char *)destination + at, from.host, part);
    } else {
      quay__host_copy((unsigned char *)destination + at, from.host, part, 0);
    }
  }
  return QUAY_OK;
}

/* In pieces that don't overlap, from the end that is not overwritten too early, with each after the
 * one before. */
static quay_status move_in_pieces(quay__vulkan_lane *lane, const quay__vulkan_place *destination,
                                  const quay__vulkan_place *source, uint64_t size, uint64_t piece) {
  const bool backwards = destination->offset > source->offset;
  QUAY_TRY(quay__vulkan_slot_begin(lane, 0));
  for (uint64_t done = 0; done < size;) {
    const uint64_t part = quay__min(size - done, piece);
    const uint64_t at = backwards ? size - done - part : done;
    if (done != 0)
      quay__vulkan_barrier(lane->queue->device, lane->slots[0].commands);
    quay__vulkan_record_copy(lane, 0, destination->buffer, destination->offset + at, source->buffer,
                             source->offset + at, part);
    done += part;
  }
  return quay__vulkan_slot_submit(lane, 0);
}

static quay_status move_through_bounce(quay__vulkan_lane *lane,
                                       const quay__vulkan_place *destination,
                                       const quay__vulkan_place *source, uint64_t size) {
  const bool backwards = destination->offset > source->offset;
  quay__vulkan_device *const device = lane->queue->device;
  quay__vulkan_span *span = NULL;
  QUAY_TRY(quay__vulkan_lane_bounce(lane, quay__min(size, QUAY__VULKAN_CHUNK_BYTES), &span));
  const quay__vulkan_place bounce = quay__vulkan_place_in(span, 0);
  QUAY_TRY(quay__vulkan_slot_begin(lane, 0));
  VkCommandBuffer commands = lane->slots[0].commands;
  for (uint64_t done = 0; done < size;) {
    const uint64_t part = quay__min(size - done, span->size);
    const uint64_t at = backwards ? size - done - part : done;
    if (done != 0)
      quay__vulkan_barrier(device, commands);
    quay__vulkan_record_copy(lane, 0, bounce.buffer, bounce.offset, source->buffer,
                             source->offset + at, part);
    quay__vulkan_barrier(device, commands);
    quay__vulkan_record_copy(lane, 0, destination->buffer, destination->offset + at, bounce.buffer,
                             bounce.offset, part);
    done += part;
  }
  return quay__vulkan_slot_submit(lane, 0);
}

quay_status quay__vulkan_move(quay__vulkan_lane *lane, const quay__vulkan_place *destination,
                              const quay__vulkan_place *source, uint64_t size) {
  const uint64_t to = destination->offset, from = source->offset;
  const uint64_t distance = to > from ? to - from : from - to;
  if (destination->buffer != source->buffer || distance >= size)
    return move_in_pieces(lane, destination, source, size, size);
  if (distance == 0)
    return QUAY_OK;
  if (distance >= NEAR_BYTES)
    return move_in_pieces(lane, destination, source, size, distance);
  return move_through_bounce(lane, destination, source, size);
}

/* Large copies of host memory: one thread fills or empties slots slower than a device reads or
 * writes them, so each of several has a lane of its own. */

typedef struct split {
  const quay__vulkan *self;
  const quay__vulkan_place *place;
  unsigned char *host;
  uint64_t size, part;
  uint64_t chunk; /* of the lane's slots */
  bool reading;   /* from the device */
} split;

/* Bytes that are worth a thread. */
#define PART_BYTES (2 * QUAY__VULKAN_CHUNK_BYTES)

/* Memory that the program made may be for the queues of streams alone. */
static quay_status take_lane(const quay__vulkan *self, const quay__vulkan_place *a,
                             const quay__vulkan_place *b, bool reading,
                             quay__vulkan_lane **out_lane) {
  const bool any = a->block != NULL && (b == NULL || b->block != NULL);
  return quay__vulkan_lane_take(quay__vulkan_copy_queue(self->device, any, reading), out_lane);
}

static quay_status finish(quay__vulkan_lane *lane, quay_status status) {
  status = quay__vulkan_lane_settle(lane, status);
  quay__vulkan_lane_give_back(lane);
  return status;
}

static quay_status copy_part(void *context, uint64_t index) {
  const split *const of = context;
  const uint64_t at = index * of->part;
  const uint64_t size = quay__min(of->part, of->size - at);
  const quay__vulkan_place place = advanced(of->place, at);
  quay__vulkan_lane *lane = NULL;
  QUAY_TRY(take_lane(of->self, &place, NULL, of->reading, &lane));
  return finish(lane, of->reading
                          ? quay__vulkan_download(lane, &place, of->host + at, size, of->chunk)
                          : quay__vulkan_upload(lane, &place, of->host + at, size, of->chunk));
}

/* Whether another backend's copies take the way. */
static bool stands_in(const quay_allocator *allocator, const quay_raw_buffer *raw) {
  return !quay__staging_tuning_get()->no_stand_ins && quay__pair_can_stand_in(allocator, raw);
}

static quay_status stage_by(const quay__side *side, const split *of, bool *out_done) {
  const quay__host_stage copy = {.side = *side, .memory = of->host, .size = of->size};
  return of->reading ? quay__stage_out(&copy, out_done) : quay__stage_in(&copy, out_done);
}

/* A large copy of host memory through memory of the core's that the device has imported: threads
 * fill or empty it while the device copies; or the same by another backend that knows the memory.
 * `*out_done` is false, and nothing has moved, where there is none: then each thread has a lane. */
static quay_status stage(quay_allocator *allocator, const quay_raw_buffer *raw, uint64_t offset,
                         const split *of, bool *out_done) {
  *out_done = false;
  if (of->size <= QUAY__VULKAN_SLOT_BYTES || of->place->block == NULL)
    return QUAY_OK;
  quay__stand_in other;
  if (stands_in(allocator, raw) && quay__pair_stand_in(allocator, raw, &other)) {
    const quay__side side = {.allocator = other.allocator, .raw = &other.raw, .offset = offset};
    const quay_status status = stage_by(&side, of, out_done);
    quay__pair_stand_in_end(&other);
    if (*out_done || status != QUAY_OK)
      return status;
  }
  const quay__side side = {
      .allocator = allocator,
      .raw = (quay_raw_buffer *)(uintptr_t)raw, /* NOLINT(performance-no-int-to-ptr) */
      .offset = offset,
  };
  return stage_by(&side, of, out_done);
}

/* Each lane has PART_BYTES of slots; the copy may not be allowed as many. */
static uint32_t lanes_of(uint64_t size, uint32_t threads) {
  const uint64_t most = quay__copy_memory(threads * PART_BYTES) / PART_BYTES;
  return (uint32_t)quay__max(quay__min(most, size / PART_BYTES), 1);
}

static quay_status copy_in_parts(split *of) {
  uint32_t threads = 1;
  if (of->size >= 2 * PART_BYTES)
    threads = quay__copy_threads();
  const uint32_t parts = lanes_of(of->size, threads);
  of->chunk = quay__vulkan_chunk(parts);
  of->part = of->size;
  if (parts == 1)
    return copy_part(of, 0);
  of->part = quay__align_down((of->size - 1) / parts, QUAY__VULKAN_ALIGNMENT);
  of->part += QUAY__VULKAN_ALIGNMENT; /* so that `parts` of them are enough */
  return quay__workers_run(parts, (of->size - 1) / of->part + 1, copy_part, of);
}

/* Blocking. */

/* The processor's part: mapped memory is there as long as the driver is, and not in the child of a
 * fork. */
static quay_status move_by_host(void *destination, const void *source, uint64_t size) {
  QUAY_TRY(quay__vulkan_check_callable());
  quay__host_move(destination, source, size, 0);
  return QUAY_OK;
}

static quay_status fill_by_host(void *destination, uint64_t size, const void *pattern,
                                size_t pattern_size) {
  QUAY_TRY(quay__vulkan_check_callable());
  quay__host_fill(destination, size, pattern, pattern_size);
  return QUAY_OK;
}

quay_status quay__vulkan_copy_in(quay_allocator *allocator, quay_raw_buffer *destination,
                                 uint64_t offset, const void *source, uint64_t size) {
  const quay__vulkan *const self = quay__vulkan_of(allocator);
  const quay__vulkan_place to = quay__vulkan_place_of(self, destination, offset);
  if (to.host != NULL)
    return move_by_host(to.host, source, size);
  split of = {.self = self,
              .place = &to,
              .host = (unsigned char *)(uintptr_t)source, /* read alone */
              .size = size};
  bool done;
  const quay_status staged = stage(allocator, destination, offset, &of, &done);
  return done || staged != QUAY_OK ? staged : copy_in_parts(&of);
}

quay_status quay__vulkan_copy_out(quay_allocator *allocator, const quay_raw_buffer *source,
                                  uint64_t offset, void *destination, uint64_t size) {
  const quay__vulkan *const self = quay__vulkan_of(allocator);
  const quay__vulkan_place from = quay__vulkan_place_of(self, source, offset);
  if (from.host != NULL)
    return move_by_host(destination, from.host, size);
  split of = {.self = self, .place = &from, .host = destination, .size = size, .reading = true};
  bool done;
  const quay_status staged = stage(allocator, source, offset, &of, &done);
  return done || staged != QUAY_OK ? staged : copy_in_parts(&of);
}

static quay_status copy_places(const quay__vulkan *self, const quay__vulkan_place *to,
                               const quay__vulkan_place *from, uint64_t size) {
  if (to->host != NULL && from->host != NULL)
    return move_by_host(to->host, from->host, size);
  quay__vulkan_lane *lane = NULL;
  QUAY_TRY(take_lane(self, to, from, false, &lane));
  return finish(lane, quay__vulkan_move(lane, to, from, size));
}

quay_status quay__vulkan_copy_within(quay_allocator *allocator, quay_raw_buffer *destination,
                                     uint64_t destination_offset, const quay_raw_buffer *source,
                                     uint64_t source_offset, uint64_t size) {
  const quay__vulkan *const self = quay__vulkan_of(allocator);
  const quay__vulkan_place to = quay__vulkan_place_of(self, destination, destination_offset);
  const quay__vulkan_place from =
      quay__vulkan_place_of(quay__vulkan_of(source->owner), source, source_offset);
  return copy_places(self, &to, &from, size);
}

/* As stage() has it: memory that the program made takes lanes. */
static bool is_staged(const quay_raw_buffer *raw, uint64_t size) {
  return size > QUAY__VULKAN_SLOT_BYTES &&
         (raw->arm != QUAY_RAW_VULKAN || quay__vulkan_span_of(raw) != NULL);
}

/* `out_by_cuda`: where the memory is not there yet, if that will be so. */
static bool plan_host_stage(const quay_allocator *allocator, const quay_raw_buffer *destination,
                            const quay_raw_buffer *source, uint64_t size,
                            quay__staging_plan *out_plan, bool *out_by_cuda) {
  const quay_raw_buffer *raw = destination != NULL ? destination : source;
  quay__stand_in other = {.allocator = NULL};
  *out_by_cuda = stands_in(allocator, raw);
  if (*out_by_cuda && raw->arm == QUAY_RAW_VULKAN)
    *out_by_cuda = quay__pair_stand_in(allocator, raw, &other);
  const bool planned = quay__host_stage_plan(other.allocator != NULL ? other.allocator : allocator,
                                             destination != NULL, size, out_plan);
  quay__pair_stand_in_end(&other);
  return planned;
}

void quay__vulkan_copy_info(quay_allocator *allocator, const quay_raw_buffer *destination,
                            const quay_raw_buffer *source, uint64_t size,
                            quay_across_info *out_info) {
  const quay__vulkan *const self = quay__vulkan_of(allocator);
  if (self->device->types[self->kind].mapped || (destination != NULL && source != NULL))
    return;
  quay__staging_plan plan;
  bool by_cuda = false;
  if (is_staged(destination != NULL ? destination : source, size) &&
      plan_host_stage(allocator, destination, source, size, &plan, &by_cuda)) {
    out_info->chunk = plan.chunk;
    out_info->threads = plan.threads;
    out_info->staging_bytes = plan.chunk * plan.slots;
    out_info->reason =
        by_cuda ? "host memory, by CUDA's copies of the memory, which it has imported, in chunks "
                  "through page-locked memory"
                : "host memory, in chunks through memory that the device has imported, which is "
                  "filled or emptied while the device copies";
    return;
  }
  out_info->threads = lanes_of(size, quay__copy_threads());
  out_info->chunk = quay__min(size, quay__vulkan_chunk(out_info->threads));
  /* Of the slots of its lane each thread fills or empties one while the device is at the other. */
  out_info->staging_bytes = quay__min(size, (uint64_t)out_info->threads * 2 * out_info->chunk);
}

/* Between two kinds of one device. */

static bool same_device(const quay_raw_buffer *destination, const quay_raw_buffer *source) {
  const quay__vulkan *const to = quay__vulkan_of(destination->owner);
  const quay__vulkan *const from = quay__vulkan_of(source->owner);
  return to != NULL && from != NULL && to->device == from->device;
}

bool quay__vulkan_can_copy_across(quay_allocator *allocator, const quay_raw_buffer *destination,
                                  const quay_raw_buffer *source, uint64_t size,
                                  quay_across_info *out_info) {
  (void)allocator;
  const quay__pair_path *const path = quay__pair_path_find(destination, source);
  if (path != NULL)
    return path->can(destination, source, size, out_info);
  out_info->reason = "host-visible and device memory of one device: the device copies it directly";
  return same_device(destination, source);
}

quay_status quay__vulkan_copy_across(quay_allocator *allocator, quay_raw_buffer *destination,
                                     uint64_t destination_offset, const quay_raw_buffer *source,
                                     uint64_t source_offset, uint64_t size) {
  (void)allocator;
  const quay__pair_path *const path = quay__pair_path_find(destination, source);
  if (path != NULL)
    return path->copy(destination, destination_offset, source, source_offset, size);
  const quay__vulkan *const self = quay__vulkan_of(destination->owner);
  const quay__vulkan_place to = quay__vulkan_place_of(self, destination, destination_offset);
  const quay__vulkan_place from =
      quay__vulkan_place_of(quay__vulkan_of(source->owner), source, source_offset);
  return copy_places(self, &to, &from, size);
}

quay_status quay__vulkan_fill(quay_allocator *allocator, quay_raw_buffer *raw, uint64_t offset,
                              uint64_t size, const void *pattern, size_t pattern_size) {
  const quay__vulkan *const self = quay__vulkan_of(allocator);
  const quay__vulkan_place place = quay__vulkan_place_of(self, raw, offset);
  if (place.host != NULL)
    return fill_by_host(place.host, size, pattern, pattern_size);
  quay__vulkan_lane *lane = NULL;
  QUAY_TRY(take_lane(self, &place, NULL, false, &lane));
  return finish(lane, quay__vulkan_submit_fill(lane, &place, size, pattern, pattern_size));
}
