/* Accesses: the bracket around work that the program submits to a stream. Argument checks and the
 * bookkeeping of one bracket are here, what a storage remembers of it in hazard.c. */
#include <string.h>

#include "core/arguments.h"
#include "core/hazard.h"
#include "core/lifecycle.h"
#include "core/os.h"
#include "core/stream_impl.h"
#include "core/thread.h"

/* What the reserved fields of quay_access hold. */
enum {
  FIELD_ID,
  FIELD_BLOCK,
  FIELD_STORAGES,
  FIELD_SELF /* where the access was opened: a copy of it is none */
};

/* 0: nothing is recorded of it. */
static uint64_t access_id(const quay_access *access) {
  return (uint64_t)(uintptr_t)access->reserved[FIELD_ID];
}

static quay__storage **storages_of(const quay_access *access) {
  return access->reserved[FIELD_STORAGES];
}

static uint64_t *pointers_of(quay_access *access) {
  return access->reserved[FIELD_BLOCK] != NULL ? access->reserved[FIELD_BLOCK]
                                               : access->inline_pointers;
}

/* Work on a stream reaches the memory of the stream's own device, and work on the host whatever has
 * a host address. */
static bool reaches(const quay_stream *stream, const quay_allocator *allocator) {
  if (stream->device == allocator->device)
    return true;
  return stream->device->type == QUAY_DEVICE_CPU && quay__host_accessible(allocator);
}

static quay_status check_use(const quay_stream *stream, const quay_use *use, size_t index) {
  if (use->buffer == NULL) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT,
                      "quay_access_begin: the buffer of use %zu is NULL", index);
  }
  if (use->mode != QUAY_READ && use->mode != QUAY_WRITE && use->mode != QUAY_READ_WRITE) {
    return quay__fail(
        QUAY_STATUS_INVALID_ARGUMENT,
        "quay_access_begin: the mode of use %zu is %d; it must be QUAY_READ, QUAY_WRITE "
        "or QUAY_READ_WRITE",
        index, (int)use->mode);
  }
  const quay_allocator *allocator = use->buffer->storage->allocator;
  if (!reaches(stream, allocator)) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT,
                      "quay_access_begin: the stream is of the device %s, which does not reach the "
                      "buffer of use %zu on %s (allocator %s)",
                      stream->device->name, index, allocator->device->name, allocator->spec);
  }
  return QUAY_OK;
}

/* Everything that can be refused without changing anything. */
static quay_status check_uses(const quay_stream *stream, const quay_use *uses, size_t count) {
  for (size_t i = 0; i < count; i++)
    QUAY_TRY(check_use(stream, &uses[i], i));
  for (size_t i = 0; i < count; i++) {
    quay__storage *storage = uses[i].buffer->storage;
    if ((uses[i].mode & QUAY_READ) != 0)
      QUAY_TRY(quay__storage_check_readable(storage));
    if ((uses[i].mode & QUAY_WRITE) != 0 && quay__storage_sealed(storage)) {
      return quay__storage_fail_read_only(storage);
    }
  }
  return QUAY_OK;
}

/* The address of a use's first byte; 0 where the memory has none. */
static quay_status find_address(quay_buffer *buffer, uint64_t *out_address) {
  quay__storage *storage = buffer->storage;
  quay_allocator *allocator = storage->allocator;
  uint64_t address = 0;
  *out_address = 0;
  quay__error_shield();
  const quay_status status = allocator->vtable.address(allocator, &storage->raw, &address);
  quay__error_unshield();
  if (status == QUAY_STATUS_UNSUPPORTED)
    return QUAY_OK;
  if (status != QUAY_OK) /* once more, for its message */
    QUAY_TRY(allocator->vtable.address(allocator, &storage->raw, &address));
  *out_address = address + buffer->offset;
  return QUAY_OK;
}

/* Addresses, and storages that are kept alive, lie in the access itself or in one block. */
static quay_status make_room(quay_access *access, size_t count) {
  access->reserved[FIELD_STORAGES] = access->inline_storages;
  if (count > QUAY_ACCESS_INLINE_USES) {
    const size_t each = sizeof(uint64_t) + sizeof(quay__storage *);
    uint64_t *block = quay__os_calloc(count, each);
    if (block == NULL)
      return quay__fail_out_of_memory((uint64_t)count * each, "the uses of an access");
    access->reserved[FIELD_BLOCK] = block;
    access->reserved[FIELD_STORAGES] = block + count;
  }
  access->pointers = pointers_of(access);
  return QUAY_OK;
}

/* Opens use number access->count, which goes up as soon as there is something to undo. */
static quay_status open_use(quay_access *access, const quay_use *use) {
  quay_buffer *buffer = use->buffer;
  quay__storage *storage = buffer->storage;
  if ((use->mode & QUAY_WRITE) != 0)
    QUAY_TRY(quay__storage_make_writable(storage));
  const size_t index = access->count;
  QUAY_TRY(find_address(buffer, &pointers_of(access)[index]));
  const quay__range range = {.offset = buffer->offset, .size = buffer->size, .mode = use->mode};
  if (access_id(access) != 0)
    QUAY_TRY(quay__hazards_open(storage, &range, 1, access->stream, access_id(access), false));
  storages_of(access)[index] = quay__storage_retain(storage);
  access->count = index + 1;
  return QUAY_OK;
}

static quay_status order_use(const quay_access *access, const quay_use *use) {
  if (access_id(access) == 0)
    return QUAY_OK;
  const quay__range range = {
      .offset = use->buffer->offset, .size = use->buffer->size, .mode = use->mode};
  return quay__hazards_order(use->buffer->storage, &range, access->stream);
}

/* Closes what is open, with `event` recorded for it, and zeroes the access. */
static void close_uses(quay_access *access, quay_event *event) {
  quay__storage **storages = storages_of(access);
  for (size_t i = 0; i < access->count && access_id(access) != 0; i++)
    quay__hazards_close(storages[i], access_id(access), event);
  for (size_t i = 0; i < access->count; i++)
    quay__storage_release(storages[i]);
  quay__os_free(access->reserved[FIELD_BLOCK]);
  quay_stream_release(access->stream);
  memset(access, 0, sizeof(*access));
}

static quay_status check_arguments(quay_stream *stream, const quay_use *uses, size_t count) {
  const size_t most = SIZE_MAX / (2 * sizeof(uint64_t));
  if (count == 0 || count > most) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT,
                      "quay_access_begin: %zu uses; an access needs at least one, and at most %zu",
                      count, most);
  }
  QUAY_TRY(quay__device_check(stream->device));
  return check_uses(stream, uses, count);
}

/* With arguments that have been checked. */
static quay_status begin(quay_stream *stream, const quay_use *uses, size_t count, uint64_t id,
                         quay_access *out_access) {
  QUAY_TRY(make_room(out_access, count));
  out_access->stream = quay_stream_retain(stream);
  out_access->reserved[FIELD_SELF] = out_access;
  out_access->reserved[FIELD_ID] = (void *)(uintptr_t)id;
  quay_status status = QUAY_OK;
  for (size_t i = 0; i < count && status == QUAY_OK; i++)
    status = open_use(out_access, &uses[i]);
  for (size_t i = 0; i < count && status == QUAY_OK; i++)
    status = order_use(out_access, &uses[i]);
  if (status != QUAY_OK) {
    quay__error_state error;
    quay__error_save(&error);
    close_uses(out_access, NULL);
    quay__error_restore(&error);
    return status;
  }
  quay__live_add(QUAY__LIVE_ACCESSES, 1);
  return QUAY_OK;
}

quay_status quay_access_begin(quay_stream *stream, const quay_use *uses, size_t count,
                              quay_access *out_access) {
  QUAY__MARK_CALLER();
  QUAY__REQUIRE(out_access);
  memset(out_access, 0, sizeof(*out_access));
  QUAY__REQUIRE(stream);
  QUAY__REQUIRE(uses);
  QUAY_TRY(check_arguments(stream, uses, count));
  QUAY_TRY(quay__stream_check(stream));
  return begin(stream, uses, count, quay__next_id(), out_access);
}

quay_status quay_access_begin_untracked(quay_stream *stream, const quay_use *uses, size_t count,
                                        quay_access *out_access) {
  QUAY__MARK_CALLER();
  QUAY__REQUIRE(out_access);
  memset(out_access, 0, sizeof(*out_access));
  QUAY__REQUIRE(stream);
  QUAY__REQUIRE(uses);
  QUAY_TRY(check_arguments(stream, uses, count));
  return begin(stream, uses, count, 0, out_access);
}

/* One event for all uses. */
quay_status quay_access_end(quay_access *access) {
  QUAY__REQUIRE(access);
  if (access->stream == NULL)
    return QUAY_OK;
  if (access->reserved[FIELD_SELF] != access) {
    return quay__fail(
        QUAY_STATUS_INVALID_ARGUMENT,
        "quay_access_end: this access is a copy of one that was opened elsewhere; end "
        "the one that quay_access_begin() filled in");
  }
  quay_event *event = NULL;
  const quay_status status =
      access_id(access) != 0 ? quay__event_record_or_wait(access->stream, &event) : QUAY_OK;
  quay__error_shield();
  close_uses(access, event);
  quay_event_release(event);
  quay__error_unshield();
  quay__live_add(QUAY__LIVE_ACCESSES, -1);
  return status;
}

quay_status quay_buffer_last_write_stream(const quay_buffer *buffer, quay_stream **out_stream) {
  QUAY__REQUIRE(out_stream);
  *out_stream = NULL;
  QUAY__REQUIRE(buffer);
  *out_stream = quay__hazards_last_writer(buffer->storage, buffer->offset, buffer->size);
  return QUAY_OK;
}
