/* Addresses of buffers: for the host's bytes, typed arrays and single elements, and for kernels. */
#include "core/arguments.h"
#include "core/checked.h"
#include "core/hazard.h"
#include "core/storage.h"
#include "core/thread.h"

/* The host's address of the window, once its state allows `mode` and conflicting work is done. */
static quay_status host_window(const quay_buffer *buffer, quay_use_mode mode,
                               unsigned char **out_bytes) {
  quay__storage *storage = buffer->storage;
  quay_allocator *allocator = storage->allocator;
  if (!quay__host_accessible(allocator)) {
    return quay__fail(
        QUAY_STATUS_NOT_HOST_ACCESSIBLE,
        "host access to a buffer of the allocator %s, whose memory has no address that "
        "the CPU may use; copy with quay_buffer_copy_out() and quay_buffer_copy_in()",
        allocator->spec);
  }
  QUAY_TRY(mode == QUAY_READ ? quay__storage_check_readable(storage)
                             : quay__storage_make_writable(storage));
  QUAY_TRY(quay__hazards_wait(storage, buffer->offset, buffer->size, mode));
  void *first = storage->plain;
  if (first == NULL || atomic_load_explicit(&allocator->device->untouchable, memory_order_relaxed))
    QUAY_TRY(allocator->vtable.host_pointer(allocator, &storage->raw, &first));
  *out_bytes = (unsigned char *)first + buffer->offset;
  return QUAY_OK;
}

static quay_status check_dtype(const char *function, const quay_buffer *buffer, quay_dtype dtype) {
  if (dtype == (quay_dtype)buffer->dtype)
    return QUAY_OK;
  return quay__fail(
      QUAY_STATUS_TYPE_MISMATCH,
      "%s: asked for %s, but the buffer holds %s; quay_buffer_reshape() makes a view of "
      "another dtype",
      function, quay_dtype_name(dtype), quay_dtype_name((quay_dtype)buffer->dtype));
}

static quay_status check_aligned(const char *function, const void *data, quay_dtype dtype) {
  const size_t alignment = quay_dtype_alignment(dtype);
  if ((uintptr_t)data % alignment == 0)
    return QUAY_OK;
  return quay__fail(
      QUAY_STATUS_MISALIGNED,
      "%s: the address %p is no multiple of %zu, the alignment of %s; copy the bytes to "
      "a buffer of their own",
      function, data, alignment, quay_dtype_name(dtype));
}

quay_status quay_buffer_host_bytes(const quay_buffer *buffer, const void **out_bytes,
                                   uint64_t *out_size) {
  QUAY__REQUIRE(out_bytes);
  *out_bytes = NULL;
  if (out_size != NULL)
    *out_size = 0;
  QUAY__REQUIRE(buffer);
  unsigned char *bytes;
  QUAY_TRY(host_window(buffer, QUAY_READ, &bytes));
  *out_bytes = bytes;
  if (out_size != NULL)
    *out_size = buffer->size;
  return QUAY_OK;
}

quay_status quay_buffer_host_bytes_mut(quay_buffer *buffer, void **out_bytes, uint64_t *out_size) {
  QUAY__MARK_CALLER();
  QUAY__REQUIRE(out_bytes);
  *out_bytes = NULL;
  if (out_size != NULL)
    *out_size = 0;
  QUAY__REQUIRE(buffer);
  unsigned char *bytes;
  QUAY_TRY(host_window(buffer, QUAY_WRITE, &bytes));
  *out_bytes = bytes;
  if (out_size != NULL)
    *out_size = buffer->size;
  return QUAY_OK;
}

/* The window as elements of its dtype. */
static quay_status typed_window(const char *function, const quay_buffer *buffer, quay_dtype dtype,
                                quay_use_mode mode, unsigned char **out_bytes) {
  QUAY_TRY(check_dtype(function, buffer, dtype));
  unsigned char *bytes;
  QUAY_TRY(host_window(buffer, mode, &bytes));
  QUAY_TRY(check_aligned(function, bytes, dtype));
  *out_bytes = bytes;
  return QUAY_OK;
}

quay_status quay_buffer_host_array(const quay_buffer *buffer, quay_dtype dtype,
                                   quay_host_array *out_array) {
  QUAY__REQUIRE(out_array);
  *out_array = (quay_host_array){0};
  QUAY__REQUIRE(buffer);
  unsigned char *bytes;
  QUAY_TRY(typed_window("quay_buffer_host_array", buffer, dtype, QUAY_READ, &bytes));
  *out_array = (quay_host_array){
      .data = bytes,
      .dtype = dtype,
      .rank = buffer->rank,
      .shape = quay_buffer_shape(buffer),
      .count = quay_buffer_count(buffer),
  };
  return QUAY_OK;
}

quay_status quay_buffer_host_array_mut(quay_buffer *buffer, quay_dtype dtype,
                                       quay_host_array_mut *out_array) {
  QUAY__MARK_CALLER();
  QUAY__REQUIRE(out_array);
  *out_array = (quay_host_array_mut){0};
  QUAY__REQUIRE(buffer);
  unsigned char *bytes;
  QUAY_TRY(typed_window("quay_buffer_host_array_mut", buffer, dtype, QUAY_WRITE, &bytes));
  *out_array = (quay_host_array_mut){
      .data = bytes,
      .dtype = dtype,
      .rank = buffer->rank,
      .shape = quay_buffer_shape(buffer),
      .count = quay_buffer_count(buffer),
  };
  return QUAY_OK;
}

static quay_status slice(const char *function, const quay_buffer *buffer, quay_dtype dtype,
                         uint64_t first, uint64_t count, quay_use_mode mode,
                         unsigned char **out_bytes) {
  QUAY_TRY(check_dtype(function, buffer, dtype));
  const uint64_t elements = quay_buffer_count(buffer);
  if (!quay__in_range(first, count, elements)) {
    return quay__fail(
        QUAY_STATUS_OUT_OF_RANGE,
        "%s: %llu elements from element %llu reach outside the buffer of %llu elements", function,
        (unsigned long long)count, (unsigned long long)first, (unsigned long long)elements);
  }
  QUAY_TRY(typed_window(function, buffer, dtype, mode, out_bytes));
  *out_bytes += first * quay_dtype_size(dtype);
  return QUAY_OK;
}

quay_status quay_buffer_host_slice(const quay_buffer *buffer, quay_dtype dtype, uint64_t first,
                                   uint64_t count, const void **out_data) {
  QUAY__REQUIRE(out_data);
  *out_data = NULL;
  QUAY__REQUIRE(buffer);
  unsigned char *bytes;
  QUAY_TRY(slice("quay_buffer_host_slice", buffer, dtype, first, count, QUAY_READ, &bytes));
  *out_data = bytes;
  return QUAY_OK;
}

quay_status quay_buffer_host_slice_mut(quay_buffer *buffer, quay_dtype dtype, uint64_t first,
                                       uint64_t count, void **out_data) {
  QUAY__MARK_CALLER();
  QUAY__REQUIRE(out_data);
  *out_data = NULL;
  QUAY__REQUIRE(buffer);
  unsigned char *bytes;
  QUAY_TRY(slice("quay_buffer_host_slice_mut", buffer, dtype, first, count, QUAY_WRITE, &bytes));
  *out_data = bytes;
  return QUAY_OK;
}

quay_status quay_buffer_item(const quay_buffer *buffer, quay_dtype dtype, void *out_value) {
  QUAY__REQUIRE(buffer);
  QUAY__REQUIRE(out_value);
  QUAY_TRY(check_dtype("quay_buffer_item", buffer, dtype));
  const uint64_t count = quay_buffer_count(buffer);
  if (count != 1) {
    return quay__fail(QUAY_STATUS_SIZE_MISMATCH,
                      "quay_buffer_item: the buffer holds %llu elements; it must hold exactly one",
                      (unsigned long long)count);
  }
  return quay_buffer_copy_out(buffer, out_value, buffer->size);
}

quay_status quay_buffer_address(const quay_buffer *buffer, uint64_t *out_address) {
  QUAY__REQUIRE(out_address);
  *out_address = 0;
  QUAY__REQUIRE(buffer);
  quay__storage *storage = buffer->storage;
  QUAY_TRY(quay__storage_check_readable(storage));
  quay_allocator *allocator = storage->allocator;
  uint64_t first;
  QUAY_TRY(allocator->vtable.address(allocator, &storage->raw, &first));
  *out_address = first + buffer->offset;
  return QUAY_OK;
}

quay_status quay_buffer_raw(const quay_buffer *buffer, const quay_raw_buffer **out_raw) {
  QUAY__REQUIRE(out_raw);
  *out_raw = NULL;
  QUAY__REQUIRE(buffer);
  QUAY_TRY(quay__storage_check_readable(buffer->storage));
  *out_raw = &buffer->storage->raw;
  return QUAY_OK;
}
