/* Host pointers, typed arrays, slices, single elements and addresses. */
#include "support/manual_device.h"
#include "support/pattern.h"

#include <string.h>

static quay_buffer *floats(quay_allocator *allocator) {
  static const float values[6] = {1.5f, -2.25f, 3.0f, 4.75f, -5.5f, 6.125f};
  quay_buffer *b = NULL;
  MUST(quay_buffer_create_from_host(allocator, QUAY_F32, 2, (int64_t[]){2, 3}, values, NULL, &b));
  return b;
}

Test(host_access, bytes_are_the_windows) {
  quay_buffer *b = pattern_buffer(NULL, 100, 1), *v = NULL;
  const void *bytes = NULL;
  uint64_t size = 0;
  MUST(quay_buffer_view(b, 7, 20, &v));
  MUST(quay_buffer_host_bytes(v, &bytes, &size));
  cr_assert_eq(size, 20);
  pattern_check(bytes, 7, 20, 1);
  MUST(quay_buffer_host_bytes(v, &bytes, NULL));
  quay_buffer_release(v);
  quay_buffer_release(b);
}

Test(host_access, bytes_written_through_the_pointer_are_the_buffers) {
  quay_buffer *b = pattern_buffer(NULL, 100, 1), *v = NULL;
  void *bytes = NULL;
  uint64_t size = 0;
  MUST(quay_buffer_view(b, 7, 20, &v));
  MUST(quay_buffer_host_bytes_mut(v, &bytes, &size));
  cr_assert_eq(size, 20);
  pattern_make(bytes, 20, 2);
  pattern_check_buffer(v, 0, 2);
  quay_buffer_release(v);
  quay_buffer_release(b);
}

Test(host_access, the_pointer_outlives_the_handle_while_a_view_lives) {
  quay_buffer *b = pattern_buffer(NULL, 100, 1), *v = NULL;
  const void *bytes = NULL;
  MUST(quay_buffer_view(b, 0, 1, &v));
  MUST(quay_buffer_host_bytes(b, &bytes, NULL));
  quay_buffer_release(b);
  pattern_check(bytes, 0, 100, 1);
  quay_buffer_release(v);
}

Test(host_access, null_arguments_are_refused_and_outputs_cleared) {
  quay_buffer *b = floats(NULL);
  const void *bytes = b;
  uint64_t size = 5;
  quay_host_array array;
  quay_host_array_mut array_mut;
  void *bytes_mut = NULL;
  MUST_FAIL(quay_buffer_host_bytes(NULL, &bytes, &size), INVALID_ARGUMENT);
  cr_assert_null(bytes);
  cr_assert_eq(size, 0);
  MUST_FAIL(quay_buffer_host_bytes(b, NULL, &size), INVALID_ARGUMENT);
  MUST_FAIL(quay_buffer_host_bytes_mut(NULL, &bytes_mut, NULL), INVALID_ARGUMENT);
  MUST_FAIL(quay_buffer_host_bytes_mut(b, NULL, NULL), INVALID_ARGUMENT);
  MUST_FAIL(quay_buffer_host_array(NULL, QUAY_F32, &array), INVALID_ARGUMENT);
  MUST_FAIL(quay_buffer_host_array(b, QUAY_F32, NULL), INVALID_ARGUMENT);
  MUST_FAIL(quay_buffer_host_array_mut(NULL, QUAY_F32, &array_mut), INVALID_ARGUMENT);
  MUST_FAIL(quay_buffer_host_array_mut(b, QUAY_F32, NULL), INVALID_ARGUMENT);
  MUST_FAIL(quay_buffer_host_slice(NULL, QUAY_F32, 0, 1, &bytes), INVALID_ARGUMENT);
  MUST_FAIL(quay_buffer_host_slice(b, QUAY_F32, 0, 1, NULL), INVALID_ARGUMENT);
  MUST_FAIL(quay_buffer_host_slice_mut(NULL, QUAY_F32, 0, 1, &bytes_mut), INVALID_ARGUMENT);
  MUST_FAIL(quay_buffer_host_slice_mut(b, QUAY_F32, 0, 1, NULL), INVALID_ARGUMENT);
  MUST_FAIL(quay_buffer_item(NULL, QUAY_F32, &size), INVALID_ARGUMENT);
  MUST_FAIL(quay_buffer_item(b, QUAY_F32, NULL), INVALID_ARGUMENT);
  MUST_FAIL(quay_buffer_address(NULL, &size), INVALID_ARGUMENT);
  MUST_FAIL(quay_buffer_address(b, NULL), INVALID_ARGUMENT);
  MUST_FAIL(quay_buffer_raw(NULL, &(const quay_raw_buffer *){NULL}), INVALID_ARGUMENT);
  MUST_FAIL(quay_buffer_raw(b, NULL), INVALID_ARGUMENT);
  quay_buffer_release(b);
}

Test(host_access, memory_without_a_host_address_is_refused_and_not_allocated) {
  quay_allocator *a = manual_open(&(manual_options){0});
  quay_buffer *b = NULL;
  const void *bytes = NULL;
  void *bytes_mut = NULL;
  MUST(quay_buffer_create_lazy(a, QUAY_F32, 0, NULL, NULL, &b));
  MUST_FAIL(quay_buffer_host_bytes_mut(b, &bytes_mut, NULL), NOT_HOST_ACCESSIBLE);
  cr_assert_not(quay_buffer_is_allocated(b));
  MUST(quay_buffer_ensure_allocated(b));
  MUST_FAIL(quay_buffer_host_bytes(b, &bytes, NULL), NOT_HOST_ACCESSIBLE);
  cr_assert_not_null(strstr(quay_last_error()->message, "manual"));
  quay_buffer_release(b);
  quay_allocator_release(a);
}

Test(host_access, an_array_has_the_buffers_shape) {
  quay_buffer *b = floats(NULL);
  quay_host_array array;
  MUST(quay_buffer_host_array(b, QUAY_F32, &array));
  cr_assert_eq(array.dtype, QUAY_F32);
  cr_assert_eq(array.rank, 2);
  cr_assert_eq(array.shape[1], 3);
  cr_assert_eq(array.count, 6);
  cr_assert_eq(((const float *)array.data)[4], -5.5f);
  quay_host_array_mut mut;
  MUST(quay_buffer_host_array_mut(b, QUAY_F32, &mut));
  cr_assert_eq(mut.rank, 2);
  cr_assert_eq(mut.count, 6);
  ((float *)mut.data)[4] = 8.5f;
  cr_assert_eq(((const float *)array.data)[4], 8.5f);
  quay_buffer_release(b);
}

Test(host_access, another_dtype_is_a_type_mismatch) {
  quay_buffer *b = floats(NULL), *scalar = NULL;
  quay_host_array array;
  quay_host_array_mut mut;
  const void *data = NULL;
  void *data_mut = NULL;
  int32_t value = 0;
  MUST_FAIL(quay_buffer_host_array(b, QUAY_I32, &array), TYPE_MISMATCH);
  MUST_FAIL(quay_buffer_host_array_mut(b, QUAY_I32, &mut), TYPE_MISMATCH);
  MUST_FAIL(quay_buffer_host_slice(b, QUAY_U8, 0, 1, &data), TYPE_MISMATCH);
  MUST_FAIL(quay_buffer_host_slice_mut(b, QUAY_U8, 0, 1, &data_mut), TYPE_MISMATCH);
  MUST(quay_buffer_view_typed(b, 4, QUAY_F32, 0, NULL, &scalar));
  MUST_FAIL(quay_buffer_item(scalar, QUAY_I32, &value), TYPE_MISMATCH);
  quay_buffer_release(scalar);
  quay_buffer_release(b);
}

Test(host_access, a_slice_is_flat_and_bounded) {
  quay_buffer *b = floats(NULL);
  const void *data = NULL;
  void *mut = NULL;
  MUST(quay_buffer_host_slice(b, QUAY_F32, 2, 4, &data));
  cr_assert_eq(((const float *)data)[0], 3.0f);
  MUST(quay_buffer_host_slice_mut(b, QUAY_F32, 5, 1, &mut));
  cr_assert_eq(*(float *)mut, 6.125f);
  MUST(quay_buffer_host_slice(b, QUAY_F32, 6, 0, &data));
  cr_assert_not_null(data);
  static const uint64_t bad[][2] = {{0, 7},          {6, 1},          {7, 0},
                                    {UINT64_MAX, 1}, {1, UINT64_MAX}, {UINT64_MAX / 4 + 2, 1}};
  for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
    MUST_FAIL(quay_buffer_host_slice(b, QUAY_F32, bad[i][0], bad[i][1], &data), OUT_OF_RANGE);
    MUST_FAIL(quay_buffer_host_slice_mut(b, QUAY_F32, bad[i][0], bad[i][1], &mut), OUT_OF_RANGE);
  }
  quay_buffer_release(b);
}

Test(host_access, misaligned_memory_gives_no_typed_pointer) {
  quay_buffer *b = pattern_buffer(NULL, 100, 1), *v = NULL;
  quay_host_array_mut mut;
  const void *data = NULL;
  void *data_mut = NULL;
  MUST(quay_buffer_view_unaligned(b, 1, QUAY_U16, 1, (int64_t[]){4}, &v));
  MUST_FAIL(quay_buffer_host_array_mut(v, QUAY_U16, &mut), MISALIGNED);
  MUST_FAIL(quay_buffer_host_slice(v, QUAY_U16, 1, 1, &data), MISALIGNED);
  MUST_FAIL(quay_buffer_host_slice_mut(v, QUAY_U16, 1, 1, &data_mut), MISALIGNED);
  cr_assert_null(data_mut);
  quay_buffer_release(v);
  quay_buffer_release(b);
}

Test(host_access, an_item_comes_from_memory_of_any_kind) {
  quay_allocator *a = manual_open(&(manual_options){0});
  quay_buffer *b = floats(a), *one = NULL, *scalar = NULL;
  float value = 0;
  MUST_FAIL(quay_buffer_item(b, QUAY_F32, &value), SIZE_MISMATCH);
  MUST(quay_buffer_view_typed(b, 12, QUAY_F32, 3, (int64_t[]){1, 1, 1}, &one));
  MUST(quay_buffer_item(one, QUAY_F32, &value));
  cr_assert_eq(value, 4.75f);
  MUST(quay_buffer_view_typed(b, 4, QUAY_F32, 0, NULL, &scalar));
  MUST(quay_buffer_item(scalar, QUAY_F32, &value));
  cr_assert_eq(value, -2.25f);
  quay_buffer_release(scalar);
  quay_buffer_release(one);
  MUST(quay_buffer_view_typed(b, 0, QUAY_F32, 1, (int64_t[]){0}, &one));
  MUST_FAIL(quay_buffer_item(one, QUAY_F32, &value), SIZE_MISMATCH);
  quay_buffer_release(one);
  quay_buffer_release(b);
  quay_allocator_release(a);
}

Test(host_access, an_item_of_a_lazy_or_unaligned_buffer) {
  quay_buffer *lazy = NULL, *b = pattern_buffer(NULL, 20, 3), *v = NULL;
  uint64_t value = 0;
  MUST(quay_buffer_create_lazy(NULL, QUAY_U64, 0, NULL, NULL, &lazy));
  MUST_FAIL(quay_buffer_item(lazy, QUAY_U64, &value), NOT_ALLOCATED);
  MUST(quay_buffer_view_unaligned(b, 5, QUAY_U64, 0, NULL, &v));
  MUST(quay_buffer_item(v, QUAY_U64, &value));
  pattern_check(&value, 5, 8, 3);
  quay_buffer_release(v);
  quay_buffer_release(b);
  quay_buffer_release(lazy);
}

Test(host_access, an_address_is_that_of_the_window) {
  quay_allocator *a = manual_open(&(manual_options){0});
  quay_buffer *b = pattern_buffer(a, 100, 1), *v = NULL;
  uint64_t base = 0, inside = 0;
  MUST(quay_buffer_view(b, 33, 5, &v));
  MUST(quay_buffer_address(b, &base));
  MUST(quay_buffer_address(v, &inside));
  cr_assert_eq(inside, base + 33);
  const quay_raw_buffer *raw = NULL;
  MUST(quay_buffer_raw(v, &raw));
  cr_assert_eq(raw->as.external.handle[0], base);
  cr_assert_eq(raw->owner, a);
  quay_buffer_release(v);
  quay_buffer_release(b);
  quay_allocator_release(a);
}

Test(host_access, memory_without_addresses_says_unsupported) {
  quay_allocator *a = manual_open(&(manual_options){.no_addresses = true});
  quay_buffer *b = pattern_buffer(a, 100, 1);
  uint64_t address = 1;
  MUST_FAIL(quay_buffer_address(b, &address), UNSUPPORTED);
  cr_assert_eq(address, 0);
  quay_buffer_release(b);
  quay_allocator_release(a);
}
