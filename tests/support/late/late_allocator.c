/* The functions of an allocator, for memory of the device and for pinned memory. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "late_internal.h"

typedef struct late_allocator {
  late_device *device;
  quay_memory_kind kind;
} late_allocator;

static void destroy(void *self) {
  late_lock();
  late.allocator_count--;
  late_unlock();
  free(self);
}

static late_device *device_of(quay_allocator *allocator) {
  return ((late_allocator *)quay_allocator_self(allocator))->device;
}

static quay_status leave_without_block(const char *what) {
  return late_leave_with(QUAY_STATUS_INVALID_ARGUMENT,
                         "%s: the raw buffer, or the range in it, is not there; see "
                         "late_violations()",
                         what);
}

/* Allocation. */

static quay_status leave_without_memory(const late_allocator *self, uint64_t size) {
  if (self->kind != QUAY_MEMORY_DEVICE) {
    return late_leave_with(QUAY_STATUS_OUT_OF_HOST_MEMORY,
                           "%" PRIu64 " bytes of pinned memory are not to be had", size);
  }
  return late_leave_with(QUAY_STATUS_OUT_OF_DEVICE_MEMORY,
                         "%s has %" PRIu64 " bytes free of %" PRIu64 ", %" PRIu64 " were asked for",
                         self->device->name, late.options.device_bytes - self->device->used_bytes,
                         late.options.device_bytes, size);
}

static void fill_pattern(late_op *op, const void *pattern, size_t pattern_size, uint64_t size) {
  memcpy(op->pattern, pattern, pattern_size);
  op->pattern_size = pattern_size;
  op->size = size;
}

/* Memory that is there from this point of the stream on: whoever uses it elsewhere must wait. */
static void begin_on_stream(late_block *block, late_stream *stream, bool zeroed) {
  const unsigned char first = zeroed ? 0 : LATE_POISON_NEW;
  late_op *const op = late_op_new(stream, LATE_OP_FILL, "alloc");
  op->beginning = true;
  fill_pattern(op, &first, 1, block->size);
  const late_access access = {.place = {.block = block}, .size = block->size, .write = true};
  late_op_touch(stream, op, &access, 1);
  late_op_submit(stream, op);
}

static void begin_on_host(late_block *block) {
  const late_actor actor = late_host_actor("alloc");
  const late_access access = {.place = {.block = block}, .size = block->size, .write = true};
  late_touch(&actor, &access, 1, NULL);
  late_block_unpin(block);
}

static quay_status alloc(quay_allocator *allocator, const quay_alloc_request *request,
                         quay_raw_buffer *out_raw) {
  const late_allocator *const self = quay_allocator_self(allocator);
  late_stream *stream = NULL;
  if (request->stream != NULL) {
    QUAY_TRY(
        late_enter_stream(self->device, LATE_ALLOC, quay_stream_native(request->stream), &stream));
  } else {
    QUAY_TRY(late_enter(self->device, LATE_ALLOC));
  }
  if (request->mirror || request->exportable) {
    return late_leave_with(QUAY_STATUS_UNSUPPORTED, "late memory can't be %s",
                           request->mirror ? "mirrored" : "exported");
  }
  late_block *const block =
      late_block_new(self->device, self->kind, request->size, request->alignment);
  if (block == NULL)
    return leave_without_memory(self, request->size);
  out_raw->arm = QUAY_RAW_EXTERNAL;
  out_raw->as.external.handle[0] = block->handle;
  if (stream == NULL) {
    begin_on_host(block);
  } else {
    const bool zeroed = request->zeroed && !late.options.leaves_zeros;
    if (zeroed)
      out_raw->flags |= QUAY_RAW_ZEROED;
    begin_on_stream(block, stream, zeroed);
  }
  return late_leave();
}

static void free_block(quay_allocator *allocator, quay_raw_buffer *raw, quay_event *const *pending,
                       size_t count) {
  (void)allocator;
  late_enter_void(LATE_FREE);
  if (raw->as.external.handle[3] == 1)
    late_report(LATE_VIOLATION_PROTOCOL, "free: a window was freed; free the block");
  late_block *const block = late_handle_get(LATE_TAG_BLOCK, raw->as.external.handle[0]);
  if (block != NULL) {
    late_block_free(block, pending, count);
  } else {
    late_report(LATE_VIOLATION_USE_AFTER_FREE,
                "free: there is no block 0x%" PRIx64 "; it was freed, or is none of this backend",
                raw->as.external.handle[0]);
  }
  late_unlock();
}

/* Where a window begins in its block. */
static uint64_t base_of(const quay_raw_buffer *raw) {
  return raw->as.external.handle[1];
}

static void window(quay_allocator *allocator, const quay_raw_buffer *block, uint64_t offset,
                   uint64_t size, quay_raw_buffer *out_raw) {
  (void)allocator;
  out_raw->arm = block->arm;
  out_raw->as.external.handle[0] = block->as.external.handle[0];
  out_raw->as.external.handle[1] = base_of(block) + offset;
  out_raw->as.external.handle[2] = size;
  out_raw->as.external.handle[3] = 1; /* it is a window */
}

static quay_status host_pointer(quay_allocator *allocator, const quay_raw_buffer *raw,
                                void **out_pointer) {
  QUAY_TRY(late_enter(device_of(allocator), LATE_HOST_POINTER));
  const late_block *const block = late_block_of(raw, 0, 0, "host_pointer");
  if (block == NULL)
    return leave_without_block("host_pointer");
  *out_pointer = block->bytes + base_of(raw);
  return late_leave();
}

static quay_status address(quay_allocator *allocator, const quay_raw_buffer *raw,
                           uint64_t *out_address) {
  QUAY_TRY(late_enter(device_of(allocator), LATE_ADDRESS));
  const late_block *const block = late_block_of(raw, 0, 0, "address");
  if (block == NULL)
    return leave_without_block("address");
  *out_address = block->by_address.begin + base_of(raw);
  return late_leave();
}

static void stats(quay_allocator *allocator, quay_backend_stats *out_stats) {
  const late_allocator *const self = quay_allocator_self(allocator);
  const late_device *const device = self->device;
  late_lock();
  if (self->kind == QUAY_MEMORY_DEVICE) {
    out_stats->reserved_bytes = device->used_bytes;
    out_stats->peak_bytes = device->peak_bytes;
    out_stats->largest_free_bytes = late.options.device_bytes - device->used_bytes;
  } else {
    out_stats->reserved_bytes = device->pinned_bytes;
  }
  late_unlock();
}

/* Blocking moves: operations of the calling host thread. They wait for nothing. */

/* With the lock held, which it releases. The first place is written, the others are read. */
static quay_status move_and_leave(const char *what, const late_access *accesses, size_t count,
                                  const void *pattern, size_t pattern_size) {
  const late_actor actor = late_host_actor(what);
  late_record *open[2] = {NULL, NULL};
  late_touch(&actor, accesses, count, open);
  late_unlock();

  pthread_mutex_lock(&late.moving);
  unsigned char *const to = late_place_bytes(&accesses[0].place);
  const uint64_t size = accesses[0].size;
  if (pattern == NULL)
    memmove(to, late_place_bytes(&accesses[1].place), size);
  for (uint64_t i = 0; pattern != NULL && i < size; i += pattern_size)
    memcpy(to + i, pattern, pattern_size);
  pthread_mutex_unlock(&late.moving);

  late_lock();
  for (size_t i = 0; i < count; i++) {
    if (open[i] != NULL)
      late_record_close(open[i]);
    if (accesses[i].place.block != NULL)
      late_block_unpin(accesses[i].place.block);
  }
  return late_leave();
}

/* The range of a raw buffer as an access. False, with a violation, if it is not there. */
static bool range_of(const quay_raw_buffer *raw, uint64_t offset, uint64_t size, bool write,
                     const char *what, late_access *out_access) {
  const uint64_t *const handle = raw->as.external.handle;
  if (handle[3] == 1 && (offset > handle[2] || size > handle[2] - offset)) {
    late_report(LATE_VIOLATION_PROTOCOL,
                "%s: %" PRIu64 " bytes from %" PRIu64 " reach outside of a window of %" PRIu64,
                what, size, offset, handle[2]);
    return false;
  }
  late_block *const block = late_block_of(raw, base_of(raw) + offset, size, what);
  *out_access = (late_access){
      .place = {.block = block, .offset = base_of(raw) + offset},
      .size = size,
      .write = write,
  };
  if (block != NULL && size == 0)
    late_report(LATE_VIOLATION_PROTOCOL, "%s: an empty range was passed on", what);
  return block != NULL;
}

static late_access host_range(const void *pointer, uint64_t size, bool write) {
  return (late_access){.place = late_place_of_host(pointer, size), .size = size, .write = write};
}

static quay_status copy_in(quay_allocator *allocator, quay_raw_buffer *destination, uint64_t offset,
                           const void *source, uint64_t size) {
  QUAY_TRY(late_enter(device_of(allocator), LATE_COPY_IN));
  late_access accesses[2];
  if (!range_of(destination, offset, size, true, "copy_in", &accesses[0]))
    return leave_without_block("copy_in");
  accesses[1] = host_range(source, size, false);
  return move_and_leave("copy_in", accesses, 2, NULL, 0);
}

static quay_status copy_out(quay_allocator *allocator, const quay_raw_buffer *source,
                            uint64_t offset, void *destination, uint64_t size) {
  QUAY_TRY(late_enter(device_of(allocator), LATE_COPY_OUT));
  late_access accesses[2];
  if (!range_of(source, offset, size, false, "copy_out", &accesses[1]))
    return leave_without_block("copy_out");
  accesses[0] = host_range(destination, size, true);
  return move_and_leave("copy_out", accesses, 2, NULL, 0);
}

static quay_status copy_blocks(const char *what, quay_raw_buffer *destination,
                               uint64_t destination_offset, const quay_raw_buffer *source,
                               uint64_t source_offset, uint64_t size) {
  late_access accesses[2];
  if (!range_of(destination, destination_offset, size, true, what, &accesses[0]) ||
      !range_of(source, source_offset, size, false, what, &accesses[1]))
    return leave_without_block(what);
  for (size_t i = 0; i < 2; i++) {
    const late_device *const device = accesses[i].place.block->device;
    if (device->lost) {
      return late_leave_with(QUAY_STATUS_DEVICE_LOST, "%s: device %s is lost; late_reset() it",
                             what, device->name);
    }
  }
  return move_and_leave(what, accesses, 2, NULL, 0);
}

static quay_status copy_within(quay_allocator *allocator, quay_raw_buffer *destination,
                               uint64_t destination_offset, const quay_raw_buffer *source,
                               uint64_t source_offset, uint64_t size) {
  QUAY_TRY(late_enter(device_of(allocator), LATE_COPY_WITHIN));
  return copy_blocks("copy_within", destination, destination_offset, source, source_offset, size);
}

static quay_status fill(quay_allocator *allocator, quay_raw_buffer *raw, uint64_t offset,
                        uint64_t size, const void *pattern, size_t pattern_size) {
  QUAY_TRY(late_enter(device_of(allocator), LATE_FILL));
  late_access access;
  if (!range_of(raw, offset, size, true, "fill", &access))
    return leave_without_block("fill");
  return move_and_leave("fill", &access, 1, pattern, pattern_size);
}

/* Whose memory it is, by the device of its owner: a tag alone says nothing. */
static const late_device *owner_device(const quay_raw_buffer *raw) {
  return raw->owner != NULL ? late_device_find(quay_allocator_device(raw->owner)) : NULL;
}

static bool can_copy_across(quay_allocator *allocator, const quay_raw_buffer *destination,
                            const quay_raw_buffer *source, uint64_t size,
                            quay_across_info *out_info) {
  (void)allocator;
  (void)size;
  late_lock();
  const late_device *const to = owner_device(destination);
  const late_device *const from = owner_device(source);
  bool can = to != NULL && from != NULL;
  if (can) {
    const bool pinned = quay_allocator_kind(destination->owner) == QUAY_MEMORY_PINNED ||
                        quay_allocator_kind(source->owner) == QUAY_MEMORY_PINNED;
    can = pinned || late_devices_reach(to, from);
    *out_info = (quay_across_info){
        .route = QUAY_ROUTE_DIRECT,
        .reason = pinned ? "late devices reach pinned memory" : "the late devices are peers",
    };
  }
  late_unlock();
  return can;
}

static quay_status copy_across(quay_allocator *allocator, quay_raw_buffer *destination,
                               uint64_t destination_offset, const quay_raw_buffer *source,
                               uint64_t source_offset, uint64_t size) {
  QUAY_TRY(late_enter(device_of(allocator), LATE_COPY_ACROSS));
  return copy_blocks("copy_across", destination, destination_offset, source, source_offset, size);
}

static quay_status lend(quay_allocator *allocator, const quay_raw_buffer *raw, uint64_t offset,
                        uint64_t size, quay_use_mode mode) {
  QUAY_TRY(late_enter(device_of(allocator), LATE_LEND));
  late_access access;
  if (!range_of(raw, offset, size, (mode & QUAY_WRITE) != 0, "lend", &access))
    return leave_without_block("lend");
  if (access.place.block->kind == QUAY_MEMORY_PINNED) {
    const late_actor actor = late_host_actor("lend");
    late_touch(&actor, &access, 1, NULL);
    late_block_unpin(access.place.block);
  }
  return late_leave();
}

/* Asynchronous moves. */

/* With the lock held, which it releases. Host memory that is not pinned is done with on return. */
static quay_status submit_and_leave(late_stream *stream, late_op *op, const late_access *accesses,
                                    size_t count) {
  bool blocking = false;
  for (size_t i = 0; i < count; i++)
    blocking = blocking || accesses[i].place.block == NULL;
  late_op_touch(stream, op, accesses, count);
  const char *const what = op->what;
  late_op_submit(stream, op);
  if (!blocking)
    return late_leave();
  late_event *const event = late_event_record(stream, what);
  late_wait(&event, 1);
  const bool failed = event->failed;
  late_event_release(event);
  if (failed)
    return late_leave_with(QUAY_STATUS_DEVICE_LOST, "%s: the device was lost meanwhile", what);
  return late_leave();
}

static quay_status copy_and_leave(late_stream *stream, const char *what,
                                  const late_access accesses[2]) {
  late_op *const op = late_op_new(stream, LATE_OP_COPY, what);
  op->size = accesses[0].size;
  return submit_and_leave(stream, op, accesses, 2);
}

static quay_status copy_in_async(quay_allocator *allocator, quay_raw_buffer *destination,
                                 uint64_t offset, const void *source, uint64_t size,
                                 uint64_t handle) {
  const char *const what = "copy_in_async";
  late_stream *stream;
  QUAY_TRY(late_enter_stream(device_of(allocator), LATE_COPY_IN_ASYNC, handle, &stream));
  late_access accesses[2];
  if (!range_of(destination, offset, size, true, what, &accesses[0]))
    return leave_without_block(what);
  accesses[1] = host_range(source, size, false);
  return copy_and_leave(stream, what, accesses);
}

static quay_status copy_out_async(quay_allocator *allocator, const quay_raw_buffer *source,
                                  uint64_t offset, void *destination, uint64_t size,
                                  uint64_t handle) {
  const char *const what = "copy_out_async";
  late_stream *stream;
  QUAY_TRY(late_enter_stream(device_of(allocator), LATE_COPY_OUT_ASYNC, handle, &stream));
  late_access accesses[2];
  if (!range_of(source, offset, size, false, what, &accesses[1]))
    return leave_without_block(what);
  accesses[0] = host_range(destination, size, true);
  return copy_and_leave(stream, what, accesses);
}

static quay_status copy_within_async(quay_allocator *allocator, quay_raw_buffer *destination,
                                     uint64_t destination_offset, const quay_raw_buffer *source,
                                     uint64_t source_offset, uint64_t size, uint64_t handle) {
  const char *const what = "copy_within_async";
  late_stream *stream;
  QUAY_TRY(late_enter_stream(device_of(allocator), LATE_COPY_WITHIN_ASYNC, handle, &stream));
  late_access accesses[2];
  if (!range_of(destination, destination_offset, size, true, what, &accesses[0]) ||
      !range_of(source, source_offset, size, false, what, &accesses[1]))
    return leave_without_block(what);
  return copy_and_leave(stream, what, accesses);
}

/* Of two devices: the stream is of this allocator's. */
static quay_status copy_across_async(quay_allocator *allocator, quay_raw_buffer *destination,
                                     uint64_t destination_offset, const quay_raw_buffer *source,
                                     uint64_t source_offset, uint64_t size, uint64_t handle) {
  const char *const what = "copy_across_async";
  late_stream *stream;
  QUAY_TRY(late_enter_stream(device_of(allocator), LATE_COPY_ACROSS_ASYNC, handle, &stream));
  late_access accesses[2];
  if (!range_of(destination, destination_offset, size, true, what, &accesses[0]) ||
      !range_of(source, source_offset, size, false, what, &accesses[1]))
    return leave_without_block(what);
  for (size_t i = 0; i < 2; i++) {
    const late_device *const device = accesses[i].place.block->device;
    if (device->lost) {
      return late_leave_with(QUAY_STATUS_DEVICE_LOST, "%s: device %s is lost; late_reset() it",
                             what, device->name);
    }
  }
  return copy_and_leave(stream, what, accesses);
}

static quay_status fill_async(quay_allocator *allocator, quay_raw_buffer *raw, uint64_t offset,
                              uint64_t size, const void *pattern, size_t pattern_size,
                              uint64_t handle) {
  const char *const what = "fill_async";
  late_stream *stream;
  QUAY_TRY(late_enter_stream(device_of(allocator), LATE_FILL_ASYNC, handle, &stream));
  late_access access;
  if (!range_of(raw, offset, size, true, what, &access))
    return leave_without_block(what);
  late_op *const op = late_op_new(stream, LATE_OP_FILL, what);
  fill_pattern(op, pattern, pattern_size, size);
  return submit_and_leave(stream, op, &access, 1);
}

static const quay_allocator_vtable table = {
    .destroy = destroy,
    .version = QUAY_ALLOCATOR_VTABLE_VERSION,
    .struct_size = sizeof(quay_allocator_vtable),
    .alloc = alloc,
    .free = free_block,
    .copy_in = copy_in,
    .copy_out = copy_out,
    .address = address,
    .copy_within = copy_within,
    .can_copy_across = can_copy_across,
    .copy_across = copy_across,
    .lend = lend,
    .fill = fill,
    .stats = stats,
    .window = window,
    .copy_in_async = copy_in_async,
    .copy_out_async = copy_out_async,
    .copy_within_async = copy_within_async,
    .fill_async = fill_async,
    .copy_across_async = copy_across_async,
};

const quay_allocator_vtable *late_allocator_table(void) {
  return &table;
}

quay_status late_allocator_new(late_device *device, quay_memory_kind kind,
                               quay_allocator **out_allocator) {
  const bool pinned = kind == QUAY_MEMORY_PINNED;
  quay_allocator_vtable own = table;
  if (pinned)
    own.host_pointer = host_pointer;
  late_allocator *const self = late_new(sizeof *self);
  *self = (late_allocator){.device = device, .kind = kind};
  const quay_allocator_desc desc = {
      .vtable = &own,
      .self = self,
      .name = "late",
      .spec = pinned ? device->pinned_spec : device->name,
      .device = device->device,
      .kind = kind,
      .flags = (pinned ? QUAY_ALLOCATOR_HOST_ACCESSIBLE : 0u) |
               (late.options.ordered_free ? QUAY_ALLOCATOR_ORDERED_FREE : 0u),
      .alignment = 64,
  };
  const quay_status status = quay_allocator_create(&desc, out_allocator);
  if (status != QUAY_OK) {
    free(self);
    return status;
  }
  late_lock();
  late.allocator_count++;
  late_unlock();
  return QUAY_OK;
}
