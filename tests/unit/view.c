/* Views: windows of a storage that share its memory. */
#include "support/manual_device.h"
#include "support/pattern.h"

#include <string.h>

Test(view, a_view_is_a_window_with_an_id_of_its_own) {
  quay_buffer *b = pattern_buffer(NULL, 1000, 1), *v = NULL;
  MUST(quay_buffer_view(b, 100, 37, &v));
  cr_assert_eq(quay_buffer_size(v), 37);
  cr_assert_eq(quay_buffer_offset(v), 100);
  cr_assert_eq(quay_buffer_total_size(v), 1000);
  cr_assert_eq(quay_buffer_dtype(v), QUAY_U8);
  cr_assert_eq(quay_buffer_rank(v), 1);
  cr_assert_eq(quay_buffer_shape(v)[0], 37);
  cr_assert_eq(quay_buffer_storage_id(v), quay_buffer_storage_id(b));
  cr_assert_neq(quay_buffer_id(v), quay_buffer_id(b));
  pattern_check_buffer(v, 100, 1);
  quay_buffer_release(v);
  quay_buffer_release(b);
}

Test(view, a_view_of_a_view_counts_from_the_storage) {
  quay_buffer *b = pattern_buffer(NULL, 1000, 1), *v = NULL, *w = NULL;
  MUST(quay_buffer_view(b, 100, 300, &v));
  MUST(quay_buffer_view(v, 50, 250, &w));
  cr_assert_eq(quay_buffer_offset(w), 150);
  pattern_check_buffer(w, 150, 1);
  quay_buffer_release(b);
  quay_buffer_release(v);
  pattern_check_buffer(w, 150, 1);
  quay_buffer_release(w);
}

Test(view, the_last_view_frees_the_storage) {
  quay_allocator *a = manual_open(&(manual_options){0});
  quay_buffer *b = pattern_buffer(a, 100, 1), *v = NULL;
  MUST(quay_buffer_view(b, 1, 2, &v));
  quay_buffer_release(b);
  cr_assert_eq(atomic_load(&manual.free), 0);
  quay_buffer_release(v);
  cr_assert_eq(atomic_load(&manual.free), 1);
  quay_allocator_release(a);
}

Test(view, a_window_outside_the_buffer_is_out_of_range) {
  static const uint64_t bad[][2] = {{0, 101},        {100, 1},        {101, 0},
                                    {UINT64_MAX, 0}, {UINT64_MAX, 2}, {2, UINT64_MAX},
                                    {1, UINT64_MAX}, {50, 51},        {UINT64_MAX - 1, 100},
                                    {0, UINT64_MAX}, {1u << 31, 1u},  {0, (uint64_t)1 << 63}};
  quay_buffer *b = pattern_buffer(NULL, 1000, 1), *v = NULL, *w = NULL;
  MUST(quay_buffer_view(b, 100, 100, &v));
  for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
    MUST_FAIL(quay_buffer_view(v, bad[i][0], bad[i][1], &w), OUT_OF_RANGE);
    cr_assert_null(w);
  }
  quay_buffer_release(b);
  quay_buffer_release(v);
}

Test(view, an_empty_view_may_stand_anywhere) {
  quay_buffer *b = pattern_buffer(NULL, 10, 1), *v = NULL;
  for (uint64_t at = 0; at <= 10; at++) {
    MUST(quay_buffer_view(b, at, 0, &v));
    MUST(quay_buffer_copy_out(v, NULL, 0));
    quay_buffer_release(v);
  }
  quay_buffer_release(b);
}

Test(view, null_arguments_are_refused) {
  quay_buffer *b = pattern_buffer(NULL, 10, 1), *v = NULL;
  const int64_t one = 1;
  MUST_FAIL(quay_buffer_view(NULL, 0, 1, &v), INVALID_ARGUMENT);
  MUST_FAIL(quay_buffer_view(b, 0, 1, NULL), INVALID_ARGUMENT);
  MUST_FAIL(quay_buffer_view_typed(NULL, 0, QUAY_U8, 1, &one, &v), INVALID_ARGUMENT);
  MUST_FAIL(quay_buffer_view_typed(b, 0, QUAY_U8, 1, NULL, &v), INVALID_ARGUMENT);
  MUST_FAIL(quay_buffer_view_typed(b, 0, QUAY_U8, 1, &one, NULL), INVALID_ARGUMENT);
  MUST_FAIL(quay_buffer_view_unaligned(NULL, 0, QUAY_U8, 1, &one, &v), INVALID_ARGUMENT);
  MUST_FAIL(quay_buffer_view_unaligned(b, 0, QUAY_U8, 1, &one, NULL), INVALID_ARGUMENT);
  MUST_FAIL(quay_buffer_reshape(NULL, QUAY_U8, 1, &one, &v), INVALID_ARGUMENT);
  MUST_FAIL(quay_buffer_reshape(b, QUAY_U8, 1, &one, NULL), INVALID_ARGUMENT);
  quay_buffer_release(b);
}

Test(view, a_typed_view_has_dtype_and_shape) {
  quay_buffer *b = pattern_buffer(NULL, 1000, 1), *v = NULL;
  const int64_t shape[] = {2, 3};
  MUST(quay_buffer_view_typed(b, 8, QUAY_F64, 2, shape, &v));
  cr_assert_eq(quay_buffer_size(v), 48);
  cr_assert_eq(quay_buffer_dtype(v), QUAY_F64);
  cr_assert_eq(quay_buffer_count(v), 6);
  pattern_check_buffer(v, 8, 1);
  quay_buffer_release(v);
  quay_buffer_release(b);
}

Test(view, a_typed_view_counts_alignment_from_the_storage) {
  quay_buffer *b = pattern_buffer(NULL, 1000, 1), *odd = NULL, *v = NULL;
  const int64_t shape = 4;
  MUST(quay_buffer_view(b, 3, 100, &odd));
  MUST_FAIL(quay_buffer_view_typed(b, 3, QUAY_F32, 1, &shape, &v), MISALIGNED);
  MUST_FAIL(quay_buffer_view_typed(odd, 0, QUAY_F32, 1, &shape, &v), MISALIGNED);
  MUST_FAIL(quay_buffer_view_typed(odd, 4, QUAY_F32, 1, &shape, &v), MISALIGNED);
  MUST(quay_buffer_view_typed(odd, 1, QUAY_F32, 1, &shape, &v));
  quay_buffer_release(v);
  MUST(quay_buffer_view_typed(odd, 0, QUAY_U8, 1, &shape, &v));
  quay_buffer_release(v);
  quay_buffer_release(odd);
  quay_buffer_release(b);
}

Test(view, a_typed_view_stays_within_the_buffer) {
  quay_buffer *b = pattern_buffer(NULL, 1000, 1), *v = NULL;
  MUST_FAIL(quay_buffer_view_typed(b, 992, QUAY_F64, 1, (int64_t[]){2}, &v), OUT_OF_RANGE);
  MUST_FAIL(quay_buffer_view_unaligned(b, 992, QUAY_F64, 1, (int64_t[]){2}, &v), OUT_OF_RANGE);
  MUST_FAIL(quay_buffer_view_typed(b, UINT64_MAX - 7, QUAY_F64, 1, (int64_t[]){2}, &v),
            OUT_OF_RANGE);
  MUST_FAIL(quay_buffer_view_typed(b, 0, QUAY_F64, 2, (int64_t[]){INT64_MAX, INT64_MAX}, &v),
            OUT_OF_RANGE);
  MUST_FAIL(quay_buffer_view_typed(b, 0, QUAY_F64, 1, (int64_t[]){-1}, &v), INVALID_ARGUMENT);
  cr_assert_null(v);
  quay_buffer_release(b);
}

Test(view, an_unaligned_view_copies_but_gives_no_typed_array) {
  quay_buffer *b = pattern_buffer(NULL, 1000, 1), *v = NULL;
  quay_host_array array;
  MUST(quay_buffer_view_unaligned(b, 3, QUAY_F32, 1, (int64_t[]){5}, &v));
  pattern_check_buffer(v, 3, 1);
  MUST_FAIL(quay_buffer_host_array(v, QUAY_F32, &array), MISALIGNED);
  cr_assert_null(array.data);
  quay_buffer_release(v);
  quay_buffer_release(b);
}

Test(view, reshape_keeps_the_bytes) {
  quay_buffer *b = pattern_buffer(NULL, 48, 1), *v = NULL;
  MUST(quay_buffer_reshape(b, QUAY_F64, 2, (int64_t[]){2, 3}, &v));
  cr_assert_eq(quay_buffer_count(v), 6);
  pattern_check_buffer(v, 0, 1);
  quay_buffer_release(v);
  quay_buffer_release(b);
}

Test(view, reshape_refuses_another_size_and_a_bad_alignment) {
  quay_buffer *b = pattern_buffer(NULL, 48, 1), *odd = NULL, *v = NULL;
  MUST_FAIL(quay_buffer_reshape(b, QUAY_F64, 2, (int64_t[]){2, 4}, &v), SIZE_MISMATCH);
  MUST(quay_buffer_view(b, 1, 8, &odd));
  MUST_FAIL(quay_buffer_reshape(odd, QUAY_F64, 1, (int64_t[]){1}, &v), MISALIGNED);
  cr_assert_null(v);
  quay_buffer_release(odd);
  quay_buffer_release(b);
}

Test(view, a_view_of_a_lazy_buffer_allocates_the_storage_when_it_is_written) {
  quay_buffer *b = NULL, *v = NULL, *w = NULL;
  MUST(quay_buffer_create_lazy(NULL, QUAY_U8, 1, (int64_t[]){100}, NULL, &b));
  MUST(quay_buffer_view(b, 10, 5, &v));
  MUST(quay_buffer_view(b, 12, 2, &w));
  cr_assert_not(quay_buffer_is_allocated(v));
  unsigned char bytes[5];
  pattern_make(bytes, 5, 2);
  MUST(quay_buffer_copy_in(v, bytes, 5));
  cr_assert(quay_buffer_is_allocated(b));
  pattern_check_buffer(w, 2, 2);
  quay_buffer_release(b);
  quay_buffer_release(v);
  quay_buffer_release(w);
}

Test(view, writing_a_view_leaves_its_neighbours_alone) {
  quay_buffer *b = pattern_buffer(NULL, 100, 1), *v = NULL;
  unsigned char bytes[31], all[100];
  pattern_make(bytes, sizeof(bytes), 9);
  MUST(quay_buffer_view(b, 13, 31, &v));
  MUST(quay_buffer_copy_in(v, bytes, 31));
  MUST(quay_buffer_copy_out(b, all, 100));
  pattern_check(all, 0, 13, 1);
  pattern_check(all + 13, 0, 31, 9);
  pattern_check(all + 44, 44, 56, 1);
  quay_buffer_release(v);
  quay_buffer_release(b);
}
