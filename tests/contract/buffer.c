/* Buffers: lazy and immediate, views, sealing, host access, the errors of each. */
#include "contract.h"

#include <string.h>

static quay_buffer *make_lazy(quay_allocator *allocator, quay_dtype dtype, int64_t count) {
  quay_buffer *buffer = NULL;
  CONTRACT_OK(quay_buffer_create_lazy(allocator, dtype, 1, &count, NULL, &buffer));
  return buffer;
}

static uint64_t live_count(quay_allocator *allocator) {
  quay_stats stats;
  CONTRACT_OK(quay_allocator_stats(allocator, &stats));
  return stats.live_count;
}

Test(buffer, a_lazy_one_allocates_nothing_until_it_is_asked_to_and_then_once) {
  quay_allocator *allocator = contract_open();
  quay_buffer *buffer = make_lazy(allocator, QUAY_U8, 5000);
  cr_assert_not(quay_buffer_is_allocated(buffer));
  cr_assert_eq(live_count(allocator), 0);
  CONTRACT_OK(quay_buffer_ensure_allocated(buffer));
  CONTRACT_OK(quay_buffer_ensure_allocated(buffer));
  cr_assert(quay_buffer_is_allocated(buffer));
  cr_assert_eq(live_count(allocator), 1);
  quay_buffer_release(buffer);
  contract_close(allocator);
}

Test(buffer, reading_a_lazy_one_is_refused_and_allocates_nothing) {
  quay_allocator *allocator = contract_open();
  quay_buffer *buffer = make_lazy(allocator, QUAY_U8, 100);
  unsigned char bytes[100];
  const quay_raw_buffer *raw = NULL;
  uint64_t address;
  CONTRACT_FAILS(quay_buffer_copy_out(buffer, bytes, 100), QUAY_STATUS_NOT_ALLOCATED);
  CONTRACT_FAILS(quay_buffer_raw(buffer, &raw), QUAY_STATUS_NOT_ALLOCATED);
  CONTRACT_FAILS(quay_buffer_address(buffer, &address), QUAY_STATUS_NOT_ALLOCATED);
  CONTRACT_FAILS(quay_buffer_seal(buffer), QUAY_STATUS_NOT_ALLOCATED);
  cr_assert_eq(live_count(allocator), 0);
  quay_buffer_release(buffer);
  contract_close(allocator);
}

Test(buffer, copy_in_and_fill_allocate_a_lazy_one_through_a_view) {
  quay_allocator *allocator = contract_open();
  quay_buffer *first = make_lazy(allocator, QUAY_U8, 100);
  quay_buffer *second = make_lazy(allocator, QUAY_U8, 100);
  quay_buffer *window = contract_view(first, 10, 20);
  const unsigned char pattern = 0x3c;
  quay_test_block bytes = quay_test_block_make(20, 0, 2);
  CONTRACT_OK(quay_buffer_copy_in(window, bytes.data, 20));
  cr_assert(quay_buffer_is_allocated(first), "the view shares the storage");
  contract_check_bytes(window, bytes.data, "written through a view");
  CONTRACT_OK(quay_buffer_fill(second, &pattern, 1));
  cr_assert(quay_buffer_is_allocated(second));
  quay_test_block_free(&bytes);
  quay_buffer_release(window);
  quay_buffer_release(second);
  quay_buffer_release(first);
  contract_close(allocator);
}

Test(buffer, a_lazy_one_keeps_its_options_for_later) {
  const quay_alloc_options options = {.zeroed = true, .alignment = 65536};
  const int64_t shape[] = {3000};
  static const unsigned char zeros[3000];
  quay_allocator *allocator = contract_open();
  quay_buffer *buffer = NULL;
  CONTRACT_OK(quay_buffer_create_lazy(allocator, QUAY_U8, 1, shape, &options, &buffer));
  CONTRACT_OK(quay_buffer_ensure_allocated(buffer));
  contract_check_bytes(buffer, zeros, "a lazy zeroed buffer");
  if (contract_can(allocator, CONTRACT_ADDRESS)) {
    uint64_t address = 1;
    CONTRACT_OK(quay_buffer_address(buffer, &address));
    cr_assert_eq(address % 65536, 0);
  }
  quay_buffer_release(buffer);
  contract_close(allocator);
}

Test(buffer, views_share_the_storage_and_keep_it_alive) {
  quay_allocator *allocator = contract_open();
  quay_test_block content = quay_test_block_make(1000, 0, 3);
  quay_buffer *base = contract_buffer(allocator, 1000, 3);
  quay_buffer *view = contract_view(base, 100, 800);
  quay_buffer *inner = contract_view(view, 50, 700);
  cr_assert_eq(quay_buffer_storage_id(inner), quay_buffer_storage_id(base));
  cr_assert_neq(quay_buffer_id(inner), quay_buffer_id(view));
  cr_assert_neq(quay_buffer_id(inner), quay_buffer_id(base));
  cr_assert_eq(quay_buffer_offset(inner), 150, "views of views are flat");
  cr_assert_eq(quay_buffer_total_size(inner), 1000);
  quay_buffer_release(base);
  quay_buffer_release(view);
  contract_check_bytes(inner, content.data + 150, "the last view");
  cr_assert_eq(live_count(allocator), 1);
  quay_buffer_release(inner);
  quay_test_block_free(&content);
  contract_close(allocator);
}

Test(buffer, views_outside_their_buffer_are_refused_also_by_wrapping_around) {
  static const uint64_t ranges[][2] = {
      {0, 101},
      {1, 100},
      {100, 1},
      {101, 0},
      {SIZE_MAX, 2},
      {2, SIZE_MAX},
      {SIZE_MAX, 1},
      {SIZE_MAX - 9, 60},
      {1ull << 63, 1},
      {50, 1ull << 63},
      {SIZE_MAX, SIZE_MAX},
  };
  quay_allocator *allocator = contract_open();
  quay_buffer *base = contract_buffer(allocator, 200, 4);
  quay_buffer *view = contract_view(base, 50, 100);
  for (size_t i = 0; i < CONTRACT_COUNT(ranges); i++) {
    quay_buffer *wrong = base;
    CONTRACT_FAILS(quay_buffer_view(view, ranges[i][0], ranges[i][1], &wrong),
                   QUAY_STATUS_OUT_OF_RANGE);
    cr_assert_null(wrong);
  }
  quay_buffer *empty = contract_view(view, 100, 0);
  cr_assert_eq(quay_buffer_size(empty), 0);
  quay_buffer_release(empty);
  quay_buffer_release(view);
  quay_buffer_release(base);
  contract_close(allocator);
}

Test(buffer, typed_views_need_whole_aligned_elements_and_unaligned_ones_do_not) {
  const int64_t shape[] = {10};
  quay_allocator *allocator = contract_open();
  quay_buffer *base = contract_buffer(allocator, 100, 5);
  quay_buffer *view = NULL;
  CONTRACT_FAILS(quay_buffer_view_typed(base, 2, QUAY_F32, 1, shape, &view),
                 QUAY_STATUS_MISALIGNED);
  CONTRACT_FAILS(quay_buffer_view_typed(base, 64, QUAY_F32, 1, shape, &view),
                 QUAY_STATUS_OUT_OF_RANGE);
  CONTRACT_FAILS(quay_buffer_reshape(base, QUAY_F64, 1, shape, &view), QUAY_STATUS_SIZE_MISMATCH);
  CONTRACT_OK(quay_buffer_view_unaligned(base, 3, QUAY_F32, 1, shape, &view));
  quay_test_block content = quay_test_block_make(100, 0, 5);
  contract_check_bytes(view, content.data + 3, "an unaligned view");
  if (contract_can(allocator, CONTRACT_HOST_ACCESS)) {
    quay_host_array array;
    CONTRACT_FAILS(quay_buffer_host_array(view, QUAY_F32, &array), QUAY_STATUS_MISALIGNED);
  }
  quay_test_block_free(&content);
  quay_buffer_release(view);
  quay_buffer_release(base);
  contract_close(allocator);
}

Test(buffer, sealing_refuses_every_write_through_every_handle_and_keeps_the_bytes) {
  quay_allocator *allocator = contract_open();
  quay_test_block content = quay_test_block_make(100, 0, 6);
  quay_buffer *base = contract_buffer(allocator, 100, 6);
  quay_buffer *before = contract_view(base, 10, 50);
  quay_buffer *other = contract_buffer(allocator, 50, 7);
  void *pointer = NULL;
  CONTRACT_OK(quay_buffer_seal(before));
  CONTRACT_OK(quay_buffer_seal(base));
  quay_buffer *after = contract_view(base, 20, 50);
  quay_buffer *const handles[] = {before, after};
  for (size_t i = 0; i < CONTRACT_COUNT(handles); i++) {
    cr_assert(quay_buffer_is_sealed(handles[i]));
    CONTRACT_FAILS(quay_buffer_copy_in(handles[i], content.data, 50), QUAY_STATUS_READ_ONLY);
    CONTRACT_FAILS(quay_buffer_fill(handles[i], "x", 1), QUAY_STATUS_READ_ONLY);
    CONTRACT_FAILS(quay_buffer_copy_from(handles[i], other), QUAY_STATUS_READ_ONLY);
    CONTRACT_FAILS(quay_buffer_copy_region(handles[i], 0, other, 0, 5, NULL),
                   QUAY_STATUS_READ_ONLY);
    if (contract_can(allocator, CONTRACT_HOST_ACCESS)) {
      CONTRACT_FAILS(quay_buffer_host_bytes_mut(handles[i], &pointer, NULL), QUAY_STATUS_READ_ONLY);
    }
  }
  contract_check_bytes(base, content.data, "sealed bytes");
  quay_buffer_release(after);
  quay_buffer_release(other);
  quay_buffer_release(before);
  quay_buffer_release(base);
  quay_test_block_free(&content);
  contract_close(allocator);
}

Test(buffer, host_access_is_what_the_allocator_says) {
  quay_allocator *allocator = contract_open();
  quay_test_block content = quay_test_block_make(100, 0, 8);
  quay_buffer *buffer = contract_buffer(allocator, 100, 8);
  quay_buffer *view = contract_view(buffer, 7, 50);
  const void *bytes = NULL;
  uint64_t size = 0;
  cr_assert_eq(quay_allocator_host_accessible(allocator),
               contract_can(allocator, CONTRACT_HOST_ACCESS));
  cr_assert_eq(quay_buffer_host_accessible(view), quay_allocator_host_accessible(allocator));
  if (quay_allocator_host_accessible(allocator)) {
    CONTRACT_OK(quay_buffer_host_bytes(view, &bytes, &size));
    cr_assert_eq(size, 50);
    cr_assert_arr_eq(bytes, content.data + 7, 50);
    void *writable = NULL;
    CONTRACT_OK(quay_buffer_host_bytes_mut(view, &writable, NULL));
    memset(writable, 0x11, 50);
    memset(content.data + 7, 0x11, 50);
    contract_check_bytes(buffer, content.data, "written through a pointer");
  } else {
    CONTRACT_FAILS(quay_buffer_host_bytes(view, &bytes, &size), QUAY_STATUS_NOT_HOST_ACCESSIBLE);
  }
  quay_buffer_release(view);
  quay_buffer_release(buffer);
  quay_test_block_free(&content);
  contract_close(allocator);
}

Test(buffer, typed_access_checks_dtype_and_range) {
  static const int32_t values[6] = {10, -20, 30, -40, 50, -60};
  const int64_t shape[] = {2, 3};
  quay_allocator *allocator = contract_open();
  if (contract_lacks(allocator, CONTRACT_HOST_ACCESS))
    return;
  quay_buffer *buffer = NULL;
  quay_host_array array;
  const void *slice = NULL;
  CONTRACT_OK(quay_buffer_create_from_host(allocator, QUAY_I32, 2, shape, values, NULL, &buffer));
  CONTRACT_OK(quay_buffer_host_array(buffer, QUAY_I32, &array));
  cr_assert_eq(array.rank, 2);
  cr_assert_eq(array.shape[1], 3);
  cr_assert_eq(array.count, 6);
  cr_assert_arr_eq(array.data, values, sizeof values);
  CONTRACT_FAILS(quay_buffer_host_array(buffer, QUAY_F32, &array), QUAY_STATUS_TYPE_MISMATCH);
  CONTRACT_OK(quay_buffer_host_slice(buffer, QUAY_I32, 4, 2, &slice));
  cr_assert_eq(((const int32_t *)slice)[1], -60);
  CONTRACT_FAILS(quay_buffer_host_slice(buffer, QUAY_I32, 4, 3, &slice), QUAY_STATUS_OUT_OF_RANGE);
  CONTRACT_FAILS(quay_buffer_host_slice(buffer, QUAY_I32, UINT64_MAX, 2, &slice),
                 QUAY_STATUS_OUT_OF_RANGE);
  CONTRACT_FAILS(quay_buffer_host_slice(buffer, QUAY_I32, 0, UINT64_MAX / 4 + 2, &slice),
                 QUAY_STATUS_OUT_OF_RANGE);
  quay_buffer_release(buffer);
  contract_close(allocator);
}

Test(buffer, item_needs_exactly_one_element_and_no_host_access) {
  static const double value = 2.718281828;
  const int64_t two[] = {2};
  static const double values[2] = {1.5, 2.5};
  quay_allocator *allocator = contract_open();
  quay_buffer *scalar = NULL;
  quay_buffer *pair = NULL;
  double found = 0;
  CONTRACT_OK(quay_buffer_create_from_host(allocator, QUAY_F64, 0, NULL, &value, NULL, &scalar));
  CONTRACT_OK(quay_buffer_create_from_host(allocator, QUAY_F64, 1, two, values, NULL, &pair));
  CONTRACT_OK(quay_buffer_item(scalar, QUAY_F64, &found));
  cr_assert(found == value);
  CONTRACT_FAILS(quay_buffer_item(scalar, QUAY_I64, &found), QUAY_STATUS_TYPE_MISMATCH);
  CONTRACT_FAILS(quay_buffer_item(pair, QUAY_F64, &found), QUAY_STATUS_SIZE_MISMATCH);
  quay_buffer_release(pair);
  quay_buffer_release(scalar);
  contract_close(allocator);
}

Test(buffer, the_address_counts_from_the_storage) {
  quay_allocator *allocator = contract_open();
  if (contract_lacks(allocator, CONTRACT_ADDRESS))
    return;
  quay_buffer *base = contract_buffer(allocator, 1000, 9);
  quay_buffer *view = contract_view(base, 333, 10);
  uint64_t first = 0;
  uint64_t second = 0;
  CONTRACT_OK(quay_buffer_address(base, &first));
  CONTRACT_OK(quay_buffer_address(view, &second));
  cr_assert_eq(second, first + 333);
  quay_buffer_release(view);
  quay_buffer_release(base);
  contract_close(allocator);
}

Test(buffer, a_shape_whose_size_overflows_is_refused) {
  const int64_t shape[] = {INT64_MAX, 2};
  const int64_t negative[] = {-1};
  quay_allocator *allocator = contract_open();
  quay_buffer *buffer = NULL;
  CONTRACT_FAILS(quay_buffer_create(allocator, QUAY_F64, 2, shape, NULL, &buffer),
                 QUAY_STATUS_OUT_OF_RANGE);
  CONTRACT_FAILS(quay_buffer_create_lazy(allocator, QUAY_F64, 2, shape, NULL, &buffer),
                 QUAY_STATUS_OUT_OF_RANGE);
  CONTRACT_FAILS(quay_buffer_create(allocator, QUAY_F64, 1, negative, NULL, &buffer),
                 QUAY_STATUS_INVALID_ARGUMENT);
  cr_assert_null(buffer);
  contract_close(allocator);
}

Test(buffer, a_failed_allocation_of_a_lazy_one_can_be_tried_again) {
  const int64_t shape[] = {INT64_MAX};
  quay_allocator *allocator = contract_open();
  const quay_status expected = contract_too_large(allocator);
  quay_buffer *buffer = NULL;
  CONTRACT_OK(quay_buffer_create_lazy(allocator, QUAY_U8, 1, shape, NULL, &buffer));
  CONTRACT_FAILS(quay_buffer_ensure_allocated(buffer), expected);
  CONTRACT_FAILS(quay_buffer_ensure_allocated(buffer), expected);
  cr_assert_not(quay_buffer_is_allocated(buffer));
  quay_buffer_release(buffer);
  contract_close(allocator);
}

Test(buffer, null_arguments_are_refused) {
  quay_allocator *allocator = contract_open();
  quay_buffer *buffer = contract_buffer(allocator, 10, 10);
  CONTRACT_FAILS(quay_buffer_copy_in(NULL, "x", 1), QUAY_STATUS_INVALID_ARGUMENT);
  CONTRACT_FAILS(quay_buffer_copy_in(buffer, NULL, 10), QUAY_STATUS_INVALID_ARGUMENT);
  CONTRACT_FAILS(quay_buffer_copy_out(buffer, NULL, 10), QUAY_STATUS_INVALID_ARGUMENT);
  CONTRACT_FAILS(quay_buffer_copy_from(buffer, NULL), QUAY_STATUS_INVALID_ARGUMENT);
  CONTRACT_FAILS(quay_buffer_copy_from(NULL, buffer), QUAY_STATUS_INVALID_ARGUMENT);
  CONTRACT_FAILS(quay_buffer_view(buffer, 0, 1, NULL), QUAY_STATUS_INVALID_ARGUMENT);
  CONTRACT_FAILS(quay_buffer_seal(NULL), QUAY_STATUS_INVALID_ARGUMENT);
  CONTRACT_FAILS(quay_buffer_ensure_allocated(NULL), QUAY_STATUS_INVALID_ARGUMENT);
  quay_buffer_release(buffer);
  quay_buffer_release(NULL);
  contract_close(allocator);
}

Test(buffer, success_leaves_the_threads_error_as_it_is) {
  quay_allocator *allocator = contract_open();
  quay_error_set(QUAY_STATUS_BUSY, "suite", 7, "SEVEN", "an error from before");
  quay_buffer *buffer = contract_buffer(allocator, 100000, 11);
  quay_buffer *other = contract_buffer(allocator, 100000, 12);
  CONTRACT_OK(quay_buffer_copy_from(buffer, other));
  quay_buffer_release(other);
  quay_buffer_release(buffer);
  cr_assert_eq(quay_last_error()->status, QUAY_STATUS_BUSY);
  cr_assert_str_eq(quay_last_error()->message, "an error from before");
  cr_assert_eq(quay_last_error()->native_code, 7);
  contract_close(allocator);
}
