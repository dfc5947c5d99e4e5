/* Buffer handles: made, viewed, asked, released. Storages are in storage.c, host pointers in
 * host_access.c, copies in copy.c. */
#include <string.h>

#include "core/arguments.h"
#include "core/checked.h"
#include "core/hazard.h"
#include "core/os.h"
#include "core/storage.h"
#include "core/thread.h"

/* A handle on a window of `storage`, whose reference it takes over on success. The window and the
 * shape have been checked. */
static quay_status handle_new(quay__storage *storage, uint64_t offset, uint64_t size,
                              quay_dtype dtype, int32_t rank, const int64_t *shape,
                              quay_buffer **out_buffer) {
  const size_t extents = (size_t)rank * sizeof(int64_t);
  quay_buffer *buffer = quay__os_malloc(sizeof(*buffer) + extents);
  if (buffer == NULL) {
    return quay__fail_out_of_memory(sizeof(*buffer) + extents, "the handle of a buffer");
  }
  atomic_init(&buffer->references, 1);
  buffer->dtype = (uint8_t)dtype;
  buffer->rank = (uint8_t)rank;
  buffer->reserved = 0;
  buffer->storage = storage;
  buffer->id = quay__next_id();
  buffer->offset = offset;
  buffer->size = size;
  if (extents != 0)
    memcpy(buffer->shape, shape, extents);
  *out_buffer = buffer;
  return QUAY_OK;
}

/* A handle on all of a new storage, whose reference is given back on error. */
static quay_status handle_on_all(quay__storage *storage, quay_dtype dtype, int32_t rank,
                                 const int64_t *shape, quay_buffer **out_buffer) {
  const quay_status status = handle_new(storage, 0, storage->size, dtype, rank, shape, out_buffer);
  if (status != QUAY_OK)
    quay__storage_release(storage);
  return status;
}

static quay_status create_lazy(quay_allocator *allocator, quay_dtype dtype, int32_t rank,
                               const int64_t *shape, const quay_alloc_options *options,
                               quay_buffer **out_buffer) {
  uint64_t size;
  QUAY_TRY(quay_dtype_array_size(dtype, rank, shape, &size));
  quay__storage *storage;
  QUAY_TRY(quay__storage_create(allocator, size, options, &storage));
  return handle_on_all(storage, dtype, rank, shape, out_buffer);
}

static quay_status create(quay_allocator *allocator, quay_dtype dtype, int32_t rank,
                          const int64_t *shape, const quay_alloc_options *options,
                          quay_buffer **out_buffer) {
  QUAY_TRY(create_lazy(allocator, dtype, rank, shape, options, out_buffer));
  const quay_status status =
      quay__storage_allocate_new((*out_buffer)->storage, options != NULL ? options->stream : NULL);
  if (status == QUAY_OK)
    return QUAY_OK;
  quay_buffer_release(*out_buffer);
  *out_buffer = NULL;
  return status;
}

quay_status quay_buffer_create(quay_allocator *allocator, quay_dtype dtype, int32_t rank,
                               const int64_t *shape, const quay_alloc_options *options,
                               quay_buffer **out_buffer) {
  QUAY__MARK_CALLER();
  QUAY__REQUIRE(out_buffer);
  *out_buffer = NULL;
  return create(allocator, dtype, rank, shape, options, out_buffer);
}

quay_status quay_buffer_create_lazy(quay_allocator *allocator, quay_dtype dtype, int32_t rank,
                                    const int64_t *shape, const quay_alloc_options *options,
                                    quay_buffer **out_buffer) {
  QUAY__REQUIRE(out_buffer);
  *out_buffer = NULL;
  if (options != NULL && options->stream != NULL) {
    return quay__fail(
        QUAY_STATUS_INVALID_ARGUMENT,
        "quay_buffer_create_lazy: a stream in the options, which may be gone when the "
        "memory is allocated; use quay_buffer_create() or leave it NULL");
  }
  return create_lazy(allocator, dtype, rank, shape, options, out_buffer);
}

quay_status quay_buffer_create_zeroed(quay_allocator *allocator, quay_dtype dtype, int32_t rank,
                                      const int64_t *shape, quay_buffer **out_buffer) {
  QUAY__MARK_CALLER();
  QUAY__REQUIRE(out_buffer);
  *out_buffer = NULL;
  const quay_alloc_options zeroed = {.zeroed = true};
  return create(allocator, dtype, rank, shape, &zeroed, out_buffer);
}

quay_status quay_buffer_create_from_host(quay_allocator *allocator, quay_dtype dtype, int32_t rank,
                                         const int64_t *shape, const void *data,
                                         const quay_alloc_options *options,
                                         quay_buffer **out_buffer) {
  QUAY__MARK_CALLER();
  QUAY__REQUIRE(out_buffer);
  *out_buffer = NULL;
  uint64_t size;
  QUAY_TRY(quay_dtype_array_size(dtype, rank, shape, &size));
  if (data == NULL && size != 0) {
    return quay__fail(
        QUAY_STATUS_INVALID_ARGUMENT,
        "quay_buffer_create_from_host: the argument data is NULL; the array takes %llu "
        "bytes",
        (unsigned long long)size);
  }
  QUAY_TRY(create(allocator, dtype, rank, shape, options, out_buffer));
  const quay_status status = size != 0 ? quay_buffer_copy_in(*out_buffer, data, size) : QUAY_OK;
  if (status == QUAY_OK)
    return QUAY_OK;
  quay_buffer_release(*out_buffer);
  *out_buffer = NULL;
  return status;
}

static quay_status check_whole_size(const char *function, uint64_t size, uint64_t wanted) {
  if (size == wanted)
    return QUAY_OK;
  return quay__fail(
      QUAY_STATUS_SIZE_MISMATCH,
      "%s: the dtype and shape take %llu bytes, but there are %llu; they must be equal", function,
      (unsigned long long)size, (unsigned long long)wanted);
}

static quay_status from_raw(quay_raw_buffer *raw, quay_dtype dtype, int32_t rank,
                            const int64_t *shape, quay_buffer **out_buffer) {
  quay__storage *storage;
  QUAY_TRY(quay__storage_create_from_raw(raw, &storage));
  const quay_status status = handle_new(storage, 0, storage->size, dtype, rank, shape, out_buffer);
  if (status == QUAY_OK)
    return QUAY_OK;
  quay__storage_take_raw(storage, raw);
  quay__storage_release(storage);
  return status;
}

quay_status quay_buffer_from_raw(quay_raw_buffer *raw, quay_dtype dtype, int32_t rank,
                                 const int64_t *shape, quay_buffer **out_buffer) {
  QUAY__REQUIRE(out_buffer);
  *out_buffer = NULL;
  QUAY__REQUIRE(raw);
  if (raw->arm == QUAY_RAW_NONE || raw->owner == NULL) {
    return quay__fail(
        QUAY_STATUS_INVALID_ARGUMENT,
        "quay_buffer_from_raw: the raw buffer is zeroed: it was freed or moved, or never "
        "allocated");
  }
  uint64_t size;
  QUAY_TRY(quay_dtype_array_size(dtype, rank, shape, &size));
  QUAY_TRY(check_whole_size("quay_buffer_from_raw", size, raw->size));
  return from_raw(raw, dtype, rank, shape, out_buffer);
}

quay_status quay_buffer_release_raw(quay_buffer **buffer, quay_raw_buffer *out_raw) {
  QUAY__REQUIRE(out_raw);
  memset(out_raw, 0, sizeof(*out_raw));
  QUAY__REQUIRE(buffer);
  QUAY__REQUIRE(*buffer);
  quay__storage *storage = (*buffer)->storage;
  if (!quay__storage_ready(storage)) {
    return quay__fail(QUAY_STATUS_NOT_ALLOCATED,
                      "quay_buffer_release_raw: the buffer is lazy and has no memory yet");
  }
  const unsigned handles = atomic_load_explicit(&(*buffer)->references, memory_order_acquire);
  const unsigned uses = atomic_load_explicit(&storage->references, memory_order_acquire);
  if (handles != 1 || uses != 1) {
    return quay__fail(
        QUAY_STATUS_BUSY,
        "quay_buffer_release_raw: the handle has %u references, and its storage is held "
        "by %u handles and open accesses; both must be 1",
        handles, uses);
  }
  QUAY_TRY(quay__hazards_drain(storage, 0, storage->size));
  quay__storage_take_raw(storage, out_raw);
  quay_buffer_release(*buffer);
  *buffer = NULL;
  return QUAY_OK;
}

quay_status quay_buffer_adopt_host(quay_allocator *allocator, quay_dtype dtype, int32_t rank,
                                   const int64_t *shape, const quay_host_memory *memory,
                                   quay_buffer **out_buffer) {
  QUAY__REQUIRE(out_buffer);
  *out_buffer = NULL;
  QUAY__REQUIRE(memory);
  uint64_t size;
  QUAY_TRY(quay_dtype_array_size(dtype, rank, shape, &size));
  QUAY_TRY(check_whole_size("quay_buffer_adopt_host", size, memory->size));
  quay_allocator *resolved;
  QUAY_TRY(quay__allocator_resolve(allocator, &resolved));
  quay_raw_buffer raw = {0};
  quay_status status = quay_raw_buffer_adopt_host(resolved, memory, &raw);
  if (status == QUAY_OK) {
    status = from_raw(&raw, dtype, rank, shape, out_buffer);
    if (status != QUAY_OK) {
      /* Un-adopt: on error the memory stays the caller's, so its callback must not be called. */
      quay__error_state error;
      quay__error_save(&error);
      quay_host_memory returned;
      if (quay_raw_buffer_release_host(&raw, &returned) != QUAY_OK) {
        quay_log(QUAY_LOG_ERROR, "adopted memory could not be handed back: %s",
                 quay_last_error()->message);
      }
      quay__error_restore(&error);
    }
  }
  quay_allocator_release(resolved);
  return status;
}

quay_buffer *quay_buffer_retain(quay_buffer *buffer) {
  if (buffer != NULL)
    atomic_fetch_add_explicit(&buffer->references, 1, memory_order_relaxed);
  return buffer;
}

void quay_buffer_release(quay_buffer *buffer) {
  if (buffer == NULL)
    return;
  if (atomic_fetch_sub_explicit(&buffer->references, 1, memory_order_acq_rel) != 1)
    return;
  quay__storage_release(buffer->storage);
  quay__os_free(buffer);
}

/* Views. */

static quay_status check_window(const char *function, const quay_buffer *buffer, uint64_t offset,
                                uint64_t size) {
  if (quay__in_range(offset, size, buffer->size))
    return QUAY_OK;
  return quay__fail(QUAY_STATUS_OUT_OF_RANGE,
                    "%s: %llu bytes from offset %llu reach outside the buffer of %llu bytes",
                    function, (unsigned long long)size, (unsigned long long)offset,
                    (unsigned long long)buffer->size);
}

static quay_status check_alignment(const char *function, const quay_buffer *buffer, uint64_t offset,
                                   quay_dtype dtype) {
  const uint64_t alignment = quay_dtype_alignment(dtype);
  if ((buffer->offset + offset) % alignment == 0)
    return QUAY_OK;
  return quay__fail(
      QUAY_STATUS_MISALIGNED,
      "%s: offset %llu, which is %llu from the start of the storage, is no multiple of "
      "%llu, the alignment of %s; quay_buffer_view_unaligned() takes any offset",
      function, (unsigned long long)offset, (unsigned long long)(buffer->offset + offset),
      (unsigned long long)alignment, quay_dtype_name(dtype));
}

/* A view whose window has been checked. */
static quay_status view_new(quay_buffer *buffer, uint64_t offset, uint64_t size, quay_dtype dtype,
                            int32_t rank, const int64_t *shape, quay_buffer **out_view) {
  QUAY_TRY(
      handle_new(buffer->storage, buffer->offset + offset, size, dtype, rank, shape, out_view));
  (void)quay__storage_retain(buffer->storage);
  return QUAY_OK;
}

quay_status quay_buffer_view(quay_buffer *buffer, uint64_t offset, uint64_t size,
                             quay_buffer **out_view) {
  QUAY__REQUIRE(out_view);
  *out_view = NULL;
  QUAY__REQUIRE(buffer);
  QUAY_TRY(check_window("quay_buffer_view", buffer, offset, size));
  const int64_t shape = (int64_t)size;
  return view_new(buffer, offset, size, QUAY_U8, 1, &shape, out_view);
}

quay_status quay_buffer_view_typed(quay_buffer *buffer, uint64_t offset, quay_dtype dtype,
                                   int32_t rank, const int64_t *shape, quay_buffer **out_view) {
  QUAY__REQUIRE(out_view);
  *out_view = NULL;
  QUAY__REQUIRE(buffer);
  uint64_t size;
  QUAY_TRY(quay_dtype_array_size(dtype, rank, shape, &size));
  QUAY_TRY(check_window("quay_buffer_view_typed", buffer, offset, size));
  QUAY_TRY(check_alignment("quay_buffer_view_typed", buffer, offset, dtype));
  return view_new(buffer, offset, size, dtype, rank, shape, out_view);
}

quay_status quay_buffer_view_unaligned(quay_buffer *buffer, uint64_t offset, quay_dtype dtype,
                                       int32_t rank, const int64_t *shape, quay_buffer **out_view) {
  QUAY__REQUIRE(out_view);
  *out_view = NULL;
  QUAY__REQUIRE(buffer);
  uint64_t size;
  QUAY_TRY(quay_dtype_array_size(dtype, rank, shape, &size));
  QUAY_TRY(check_window("quay_buffer_view_unaligned", buffer, offset, size));
  return view_new(buffer, offset, size, dtype, rank, shape, out_view);
}

quay_status quay_buffer_reshape(quay_buffer *buffer, quay_dtype dtype, int32_t rank,
                                const int64_t *shape, quay_buffer **out_view) {
  QUAY__REQUIRE(out_view);
  *out_view = NULL;
  QUAY__REQUIRE(buffer);
  uint64_t size;
  QUAY_TRY(quay_dtype_array_size(dtype, rank, shape, &size));
  QUAY_TRY(check_whole_size("quay_buffer_reshape", size, buffer->size));
  QUAY_TRY(check_alignment("quay_buffer_reshape", buffer, 0, dtype));
  return view_new(buffer, 0, size, dtype, rank, shape, out_view);
}

/* What a buffer is. */

uint64_t quay_buffer_id(const quay_buffer *buffer) {
  return buffer != NULL ? buffer->id : 0;
}

uint64_t quay_buffer_storage_id(const quay_buffer *buffer) {
  return buffer != NULL ? buffer->storage->id : 0;
}

uint64_t quay_buffer_size(const quay_buffer *buffer) {
  return buffer != NULL ? buffer->size : 0;
}

uint64_t quay_buffer_total_size(const quay_buffer *buffer) {
  return buffer != NULL ? buffer->storage->size : 0;
}

uint64_t quay_buffer_offset(const quay_buffer *buffer) {
  return buffer != NULL ? buffer->offset : 0;
}

uint64_t quay_buffer_count(const quay_buffer *buffer) {
  if (buffer == NULL)
    return 0;
  for (uint8_t i = 0; i < buffer->rank; i++) {
    if (buffer->shape[i] == 0)
      return 0;
  }
  /* Without an extent of 0 the size bounds every partial product. */
  uint64_t count = 1;
  for (uint8_t i = 0; i < buffer->rank; i++)
    count *= (uint64_t)buffer->shape[i];
  return count;
}

quay_dtype quay_buffer_dtype(const quay_buffer *buffer) {
  return buffer != NULL ? (quay_dtype)buffer->dtype : QUAY_DTYPE_NONE;
}

int32_t quay_buffer_rank(const quay_buffer *buffer) {
  return buffer != NULL ? buffer->rank : 0;
}

const int64_t *quay_buffer_shape(const quay_buffer *buffer) {
  return buffer != NULL && buffer->rank != 0 ? buffer->shape : NULL;
}

bool quay_buffer_is_allocated(const quay_buffer *buffer) {
  return buffer != NULL && quay__storage_ready(buffer->storage);
}

bool quay_buffer_is_sealed(const quay_buffer *buffer) {
  return buffer != NULL && quay__storage_sealed(buffer->storage);
}

bool quay_buffer_host_accessible(const quay_buffer *buffer) {
  return buffer != NULL && quay__host_accessible(buffer->storage->allocator);
}

quay_memory_kind quay_buffer_kind(const quay_buffer *buffer) {
  return buffer != NULL ? buffer->storage->allocator->kind : QUAY_MEMORY_NONE;
}

uint64_t quay_buffer_generation(const quay_buffer *buffer) {
  if (buffer == NULL)
    return 0;
  const quay__storage *storage = buffer->storage;
  return quay__storage_ready(storage) ? storage->generation
                                      : quay__device_generation(storage->allocator->device);
}

quay_allocator *quay_buffer_allocator(const quay_buffer *buffer) {
  return buffer != NULL ? buffer->storage->allocator : NULL;
}

quay_device *quay_buffer_device(const quay_buffer *buffer) {
  return buffer != NULL ? buffer->storage->allocator->device : NULL;
}

quay_status quay_buffer_check(const quay_buffer *buffer) {
  QUAY__REQUIRE(buffer);
  return quay__storage_ready(buffer->storage) ? quay__storage_check_readable(buffer->storage)
                                              : QUAY_OK;
}

quay_status quay_buffer_ensure_allocated(quay_buffer *buffer) {
  QUAY__MARK_CALLER();
  QUAY__REQUIRE(buffer);
  return quay__storage_ensure(buffer->storage);
}

quay_status quay_buffer_seal(quay_buffer *buffer) {
  QUAY__REQUIRE(buffer);
  if (!quay__storage_ready(buffer->storage)) {
    return quay__fail(QUAY_STATUS_NOT_ALLOCATED,
                      "quay_buffer_seal: sealing a lazy buffer of %llu bytes that nothing was "
                      "written to; write to it or call quay_buffer_ensure_allocated() first",
                      (unsigned long long)buffer->storage->size);
  }
  QUAY_TRY(quay__storage_check_readable(buffer->storage));
  return quay__hazards_seal(buffer->storage);
}

quay_status quay_buffer_synchronize(quay_buffer *buffer) {
  QUAY__REQUIRE(buffer);
  QUAY_TRY(quay__device_check(buffer->storage->allocator->device));
  QUAY_TRY(quay__hazards_drain(buffer->storage, buffer->offset, buffer->size));
  (void)quay__storage_collect();
  return QUAY_OK;
}
