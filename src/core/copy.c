/* Copies and fills of buffers: argument checks, the state of both sides, waiting for what
 * conflicts. How the bytes move is copy_route.c's; plain host memory takes a short cut here. */
#include "core/copy_route.h"

#include <stdio.h>
#include <string.h>

#include "core/arguments.h"
#include "core/checked.h"
#include "core/copy_check.h"
#include "core/copy_stream.h"
#include "core/hazard.h"
#include "core/host_copy.h"
#include "core/storage.h"
#include "core/stream_impl.h"
#include "core/thread.h"

/* Staging with less would move bytes one by one. */
enum {
  STAGING_LEAST = 4096
};

const char *quay_route_name(quay_route route) {
  switch (route) {
  case QUAY_ROUTE_NONE:
    return "none";
  case QUAY_ROUTE_WITHIN:
    return "within";
  case QUAY_ROUTE_DIRECT:
    return "direct";
  case QUAY_ROUTE_STAGED:
    return "staged";
  case QUAY_ROUTE_FILE:
    return "file";
  }
  return "none";
}

const char *quay_memory_kind_name(quay_memory_kind kind) {
  switch (kind) {
  case QUAY_MEMORY_NONE:
    return "none";
  case QUAY_MEMORY_PAGEABLE:
    return "pageable";
  case QUAY_MEMORY_FILE:
    return "file";
  case QUAY_MEMORY_PINNED:
    return "pinned";
  case QUAY_MEMORY_MANAGED:
    return "managed";
  case QUAY_MEMORY_DEVICE:
    return "device";
  }
  return "none";
}

/* The address of a buffer's window for the short cut; NULL: the long way. What takes it costs some
 * nanoseconds in all, so that the caller's mark, a thread-local in a shared library, is set where
 * memory may be allocated: on the long way. */
static unsigned char *plain_source(const quay_buffer *source) {
  return quay__storage_plain(source->storage, source->offset);
}

static unsigned char *plain_destination(const quay_buffer *destination) {
  if (quay__storage_sealed(destination->storage))
    return NULL;
  return quay__storage_plain(destination->storage, destination->offset);
}

/* The two may overlap: windows of one storage, or the caller's pointer into a buffer. */
static quay_status move_host(void *destination, const void *source, uint64_t size) {
  if (size > QUAY__HOST_COPY_SMALL) {
    QUAY_TRY(quay__copy_check_environment(size));
    quay__host_move(destination, source, size, 0);
  } else if (size != 0) {
    memmove(destination, source, size);
  }
  return QUAY_OK;
}

static quay_status size_mismatch(const char *function, uint64_t size, uint64_t wanted) {
  return quay__fail(QUAY_STATUS_SIZE_MISMATCH,
                    "%s: %llu bytes for a buffer of %llu; both must be equal, quay_buffer_view() "
                    "makes a smaller window",
                    function, (unsigned long long)size, (unsigned long long)wanted);
}

static quay_status null_memory(const char *function, const char *argument, uint64_t size) {
  return quay__fail(QUAY_STATUS_INVALID_ARGUMENT,
                    "%s: the argument %s is NULL; it must point to %llu bytes", function, argument,
                    (unsigned long long)size);
}

static quay_status copy_in_slowly(quay_buffer *destination, const void *source, uint64_t size) {
  quay__storage *storage = destination->storage;
  QUAY_TRY(quay__copy_check_environment(size));
  QUAY_TRY(quay__storage_make_writable(storage));
  if (size == 0)
    return QUAY_OK;
  QUAY_TRY(quay__hazards_wait(storage, destination->offset, size, QUAY_WRITE));
  quay_allocator *allocator = storage->allocator;
  quay__copy_enter();
  const quay_status status =
      allocator->vtable.copy_in(allocator, &storage->raw, destination->offset, source, size);
  return status == QUAY_OK ? QUAY_OK : quay__copy_failed(quay__copy_may_have_moved(status));
}

quay_status quay_buffer_copy_in(quay_buffer *destination, const void *source, uint64_t size) {
  QUAY__REQUIRE(destination);
  if (source == NULL && size != 0)
    return null_memory("quay_buffer_copy_in", "source", size);
  if (size != destination->size) {
    return size_mismatch("quay_buffer_copy_in", size, destination->size);
  }
  unsigned char *to = plain_destination(destination);
  if (to == NULL) {
    QUAY__MARK_CALLER();
    return copy_in_slowly(destination, source, size);
  }
  return move_host(to, source, size);
}

static quay_status copy_out_slowly(const quay_buffer *source, void *destination, uint64_t size) {
  quay__storage *storage = source->storage;
  QUAY_TRY(quay__storage_check_readable(storage));
  if (size == 0)
    return QUAY_OK;
  QUAY_TRY(quay__copy_check_environment(size));
  QUAY_TRY(quay__hazards_wait(storage, source->offset, size, QUAY_READ));
  quay_allocator *allocator = storage->allocator;
  quay__copy_enter();
  const quay_status status =
      allocator->vtable.copy_out(allocator, &storage->raw, source->offset, destination, size);
  return status == QUAY_OK ? QUAY_OK : quay__copy_failed(quay__copy_may_have_moved(status));
}

quay_status quay_buffer_copy_out(const quay_buffer *source, void *destination, uint64_t size) {
  QUAY__REQUIRE(source);
  if (destination == NULL && size != 0) {
    return null_memory("quay_buffer_copy_out", "destination", size);
  }
  if (size != source->size)
    return size_mismatch("quay_buffer_copy_out", size, source->size);
  const unsigned char *from = plain_source(source);
  if (from == NULL)
    return copy_out_slowly(source, destination, size);
  return move_host(destination, from, size);
}

quay__side quay__copy_side(const quay_buffer *buffer, uint64_t offset) {
  quay__storage *storage = buffer->storage;
  return (quay__side){
      .allocator = storage->allocator,
      .raw = quay__storage_ready(storage) ? &storage->raw : NULL,
      .offset = buffer->offset + offset,
  };
}

static quay_status check_open(const quay__stream_side *side, uint64_t size, quay_use_mode mode,
                              const quay_stream *stream) {
  const quay__range range = {.offset = side->side.offset, .size = size, .mode = mode};
  return quay__hazards_check(side->storage, &range, stream);
}

/* With sides that are allocated, and bytes to move. What blocks in spite of the stream comes after
 * everything that was submitted to it, and is done on return. */
static quay_status copy_on_stream(const quay__stream_side *destination,
                                  const quay__stream_side *source, uint64_t size,
                                  const quay_copy_options *options, bool *out_done,
                                  quay__stream_hold *out_hold) {
  const char *reason;
  *out_done = quay__stream_copies(&destination->side, &source->side, size, options, &reason);
  if (*out_done)
    return quay__stream_copy(destination, source, size, options);
  QUAY_TRY(check_open(source, size, QUAY_READ, options->stream));
  QUAY_TRY(check_open(destination, size, QUAY_WRITE, options->stream));
  QUAY_TRY(quay_stream_synchronize(options->stream));
  /* A callback may use the buffers, and would wait for itself. */
  if (options->progress != NULL)
    return QUAY_OK;
  return quay__stream_hold_sides(destination, source, size, options->stream, out_hold);
}

/* Waits on the host for what conflicts, and moves. */
static quay_status move(const quay__stream_side *to, const quay__stream_side *from, uint64_t size,
                        const quay_copy_options *options) {
  QUAY_TRY(quay__hazards_wait(from->storage, from->side.offset, size, QUAY_READ));
  QUAY_TRY(quay__hazards_wait(to->storage, to->side.offset, size, QUAY_WRITE));
  bool moved = false;
  const quay_status status = quay__route_copy(&to->side, &from->side, size, options, &moved);
  if (status != QUAY_OK)
    return quay__copy_failed(moved);
  if (options == NULL || !options->sync)
    return QUAY_OK;
  quay_allocator *const written = to->side.allocator;
  return written->vtable.flush(written, to->side.raw, to->side.offset, size);
}

static quay_status move_now(const quay__stream_side *to, const quay__stream_side *from,
                            uint64_t size, const quay_copy_options *options) {
  if (options == NULL || options->progress == NULL)
    return move(to, from, size, options);
  /* A callback may give the buffers back. */
  (void)quay__storage_retain(to->storage);
  (void)quay__storage_retain(from->storage);
  const quay_status status = move(to, from, size, options);
  quay__error_shield();
  quay__storage_release(to->storage);
  quay__storage_release(from->storage);
  quay__error_unshield();
  return status;
}

/* Copies between two windows whose arguments have been checked. */
static quay_status copy_slowly(quay_buffer *destination, uint64_t destination_offset,
                               const quay_buffer *source, uint64_t source_offset, uint64_t size,
                               const quay_copy_options *options) {
  QUAY_TRY(quay__storage_check_readable(source->storage));
  QUAY_TRY(quay__copy_check_environment(size));
  if (options != NULL && options->stream != NULL && size != 0)
    QUAY_TRY(quay__stream_check(options->stream));
  QUAY_TRY(quay__storage_make_writable(destination->storage));
  if (size == 0)
    return QUAY_OK;
  const quay__stream_side to = {quay__copy_side(destination, destination_offset),
                                destination->storage};
  const quay__stream_side from = {quay__copy_side(source, source_offset), source->storage};
  quay__stream_hold hold = {.stream = NULL};
  if (options != NULL && options->stream != NULL) {
    bool done = false;
    QUAY_TRY(copy_on_stream(&to, &from, size, options, &done, &hold));
    if (done)
      return QUAY_OK;
  }
  const quay_status status = move_now(&to, &from, size, options);
  quay__stream_let_go(&hold);
  return status;
}

quay_status quay_buffer_copy_from(quay_buffer *destination, const quay_buffer *source) {
  QUAY__REQUIRE(destination);
  QUAY__REQUIRE(source);
  const uint64_t size = destination->size;
  if (source->size != size)
    return size_mismatch("quay_buffer_copy_from", source->size, size);
  unsigned char *to = plain_destination(destination);
  const unsigned char *from = plain_source(source);
  if (to == NULL || from == NULL) {
    QUAY__MARK_CALLER();
    return copy_slowly(destination, 0, source, 0, size, NULL);
  }
  return move_host(to, from, size);
}

static quay_status check_region(const char *function, const char *side, const quay_buffer *buffer,
                                uint64_t offset, uint64_t size) {
  if (quay__in_range(offset, size, buffer->size))
    return QUAY_OK;
  return quay__fail(QUAY_STATUS_OUT_OF_RANGE,
                    "%s: %llu bytes from offset %llu reach outside the %s of %llu bytes", function,
                    (unsigned long long)size, (unsigned long long)offset, side,
                    (unsigned long long)buffer->size);
}

/* The stream of a copy is of either side's device, or of the host's. */
static quay_status check_stream(const char *function, const quay_buffer *destination,
                                const quay_buffer *source, const quay_copy_options *options) {
  if (options == NULL || options->stream == NULL)
    return QUAY_OK;
  const quay_device *device = quay_stream_device(options->stream);
  if (device == destination->storage->allocator->device ||
      device == source->storage->allocator->device) {
    return QUAY_OK;
  }
  quay_device *host = quay_device_host();
  const bool is_host = device == host;
  quay_device_release(host);
  if (is_host)
    return QUAY_OK;
  if (destination == source) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT,
                      "%s: the stream is of the device %s, but the buffer is on %s; it must be of "
                      "that, or of the host",
                      function, device->name, destination->storage->allocator->device->name);
  }
  return quay__fail(
      QUAY_STATUS_INVALID_ARGUMENT,
      "%s: the stream is of the device %s, but the copy is from %s to %s; it must be of "
      "one of them, or of the host",
      function, device->name, source->storage->allocator->device->name,
      destination->storage->allocator->device->name);
}

quay_status quay__copy_check_options(const char *function, const quay_copy_options *options) {
  if (options == NULL || options->max_staging_bytes == 0 ||
      options->max_staging_bytes >= STAGING_LEAST) {
    return QUAY_OK;
  }
  return quay__fail(QUAY_STATUS_INVALID_ARGUMENT,
                    "%s: max_staging_bytes is %llu; it must be 0, for the process's budget, or at "
                    "least %d",
                    function, (unsigned long long)options->max_staging_bytes, STAGING_LEAST);
}

quay_status quay__copy_check(const char *function, const quay_buffer *destination,
                             uint64_t destination_offset, const quay_buffer *source,
                             uint64_t source_offset, uint64_t size,
                             const quay_copy_options *options) {
  QUAY_TRY(quay__copy_check_options(function, options));
  QUAY_TRY(check_stream(function, destination, source, options));
  QUAY_TRY(check_region(function, "destination", destination, destination_offset, size));
  return check_region(function, "source", source, source_offset, size);
}

quay_status quay_buffer_copy_region(quay_buffer *destination, uint64_t destination_offset,
                                    const quay_buffer *source, uint64_t source_offset,
                                    uint64_t size, const quay_copy_options *options) {
  QUAY__REQUIRE(destination);
  QUAY__REQUIRE(source);
  QUAY_TRY(quay__copy_check("quay_buffer_copy_region", destination, destination_offset, source,
                            source_offset, size, options));
  unsigned char *to = options == NULL ? plain_destination(destination) : NULL;
  const unsigned char *from = to != NULL ? plain_source(source) : NULL;
  if (from == NULL) {
    QUAY__MARK_CALLER();
    return copy_slowly(destination, destination_offset, source, source_offset, size, options);
  }
  return move_host(to + destination_offset, from + source_offset, size);
}

quay_status quay_copy_plan(const quay_buffer *destination, uint64_t destination_offset,
                           const quay_buffer *source, uint64_t source_offset, uint64_t size,
                           const quay_copy_options *options, quay_copy_plan_info *out_plan) {
  QUAY__REQUIRE(out_plan);
  memset(out_plan, 0, sizeof(*out_plan));
  QUAY__REQUIRE(destination);
  QUAY__REQUIRE(source);
  QUAY_TRY(quay__copy_check("quay_copy_plan", destination, destination_offset, source,
                            source_offset, size, options));
  if (quay__storage_sealed(destination->storage))
    return quay__storage_fail_read_only(destination->storage);
  const quay__side to = quay__copy_side(destination, destination_offset);
  const quay__side from = quay__copy_side(source, source_offset);
  QUAY_TRY(quay__copy_check_environment(size));
  QUAY_TRY(quay__route_plan(&to, &from, size, options, out_plan));
  if (options == NULL || options->stream == NULL || size == 0)
    return QUAY_OK;
  const char *reason;
  (void)quay__stream_copies(&to, &from, size, options, &reason);
  const size_t length = strlen(out_plan->reason);
  (void)snprintf(out_plan->reason + length, sizeof(out_plan->reason) - length, "; %s", reason);
  return QUAY_OK;
}

/* Waits on the host for what conflicts, and fills. */
static quay_status fill_now(quay_buffer *buffer, const void *pattern, size_t pattern_size) {
  quay__storage *storage = buffer->storage;
  quay_allocator *allocator = storage->allocator;
  QUAY_TRY(quay__hazards_wait(storage, buffer->offset, buffer->size, QUAY_WRITE));
  quay__copy_enter();
  const quay_status status = allocator->vtable.fill(allocator, &storage->raw, buffer->offset,
                                                    buffer->size, pattern, pattern_size);
  return status == QUAY_OK ? QUAY_OK : quay__copy_failed(quay__copy_may_have_moved(status));
}

static quay_status fill_slowly(quay_buffer *buffer, const void *pattern, size_t pattern_size,
                               quay_stream *stream) {
  quay__storage *storage = buffer->storage;
  QUAY_TRY(quay__copy_check_environment(buffer->size));
  if (stream != NULL && buffer->size != 0)
    QUAY_TRY(quay__stream_check(stream));
  QUAY_TRY(quay__storage_make_writable(storage));
  if (buffer->size == 0)
    return QUAY_OK;
  quay_allocator *allocator = storage->allocator;
  quay__stream_hold hold = {.stream = NULL};
  if (stream != NULL) {
    const quay__stream_side side = {quay__copy_side(buffer, 0), storage};
    if (quay__stream_fills(allocator, stream))
      return quay__stream_fill(&side, buffer->size, pattern, pattern_size, stream);
    QUAY_TRY(check_open(&side, buffer->size, QUAY_WRITE, stream));
    QUAY_TRY(quay_stream_synchronize(stream));
    QUAY_TRY(quay__stream_hold_sides(&side, NULL, buffer->size, stream, &hold));
  }
  const quay_status status = fill_now(buffer, pattern, pattern_size);
  quay__stream_let_go(&hold);
  return status;
}

static quay_status check_fill(const char *function, const quay_buffer *buffer,
                              size_t pattern_size) {
  if (pattern_size > 16 || !quay__is_power_of_two(pattern_size)) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT,
                      "%s: a pattern of %zu bytes; it must have 1, 2, 4, 8 or 16", function,
                      pattern_size);
  }
  if (buffer->size % pattern_size == 0)
    return QUAY_OK;
  return quay__fail(QUAY_STATUS_SIZE_MISMATCH,
                    "%s: a buffer of %llu bytes is not a whole number of patterns of %zu bytes",
                    function, (unsigned long long)buffer->size, pattern_size);
}

quay_status quay_buffer_fill(quay_buffer *buffer, const void *pattern, size_t pattern_size) {
  QUAY__REQUIRE(buffer);
  QUAY__REQUIRE(pattern);
  QUAY_TRY(check_fill("quay_buffer_fill", buffer, pattern_size));
  unsigned char *to = plain_destination(buffer);
  if (to == NULL) {
    QUAY__MARK_CALLER();
    return fill_slowly(buffer, pattern, pattern_size, NULL);
  }
  QUAY_TRY(quay__copy_check_environment(buffer->size));
  quay__host_fill(to, buffer->size, pattern, pattern_size);
  return QUAY_OK;
}

quay_status quay_buffer_fill_on(quay_buffer *buffer, const void *pattern, size_t pattern_size,
                                quay_stream *stream) {
  QUAY__MARK_CALLER();
  QUAY__REQUIRE(buffer);
  QUAY__REQUIRE(pattern);
  QUAY_TRY(check_fill("quay_buffer_fill_on", buffer, pattern_size));
  const quay_copy_options options = {.stream = stream};
  QUAY_TRY(check_stream("quay_buffer_fill_on", buffer, buffer, &options));
  return fill_slowly(buffer, pattern, pattern_size, stream);
}
