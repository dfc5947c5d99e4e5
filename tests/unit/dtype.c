/* The table of element types, and sizes of arrays. */
#include <criterion/criterion.h>
#include <quay/dtype.h>
#include <string.h>

#define MAX_SHAPE 65

Test(dtype, every_row_has_its_number_bits_alignment_and_name) {
#define ROW(name, value, bits_, alignment_, text)                            \
  cr_expect_eq((int)QUAY_##name, value);                                     \
  cr_expect(quay_dtype_valid(QUAY_##name));                                  \
  cr_expect_eq(quay_dtype_bits(QUAY_##name), bits_, text);                   \
  cr_expect_eq(quay_dtype_size(QUAY_##name), (size_t)(bits_) / 8, text);     \
  cr_expect_eq(quay_dtype_alignment(QUAY_##name), (size_t)alignment_, text); \
  cr_expect_str_eq(quay_dtype_name(QUAY_##name), text);
  QUAY_DTYPE_TABLE(ROW)
#undef ROW
}

Test(dtype, the_c_types_agree_with_the_table) {
  cr_expect_eq(quay_dtype_size(QUAY_BOOL), sizeof(bool));
  cr_expect_eq(quay_dtype_size(QUAY_I64), sizeof(int64_t));
  cr_expect_eq(quay_dtype_size(QUAY_F64), sizeof(double));
  cr_expect_eq(quay_dtype_alignment(QUAY_F64), _Alignof(double));
  cr_expect_eq(quay_dtype_size(QUAY_C64), sizeof(float _Complex));
  cr_expect_eq(quay_dtype_alignment(QUAY_C128), _Alignof(double _Complex));
}

Test(dtype, other_values_are_no_dtypes) {
  static const int values[] = {0, -1, 19, 255, 65536, INT32_MAX, INT32_MIN};
  for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
    const quay_dtype dtype = (quay_dtype)values[i];
    uint64_t size = 77;
    cr_expect_not(quay_dtype_valid(dtype), "%d", values[i]);
    cr_expect_eq(quay_dtype_bits(dtype), 0);
    cr_expect_eq(quay_dtype_size(dtype), 0);
    cr_expect_eq(quay_dtype_alignment(dtype), 0);
    cr_expect_str_eq(quay_dtype_name(dtype), "none");
    cr_expect_eq(quay_dtype_array_size(dtype, 0, NULL, &size), QUAY_STATUS_INVALID_ARGUMENT);
  }
}

Test(dtype, parse_takes_every_name_in_both_cases) {
  static const char *const upper[] = {"F32", "BF16", "F8_E4M3", "BOOL", "C128"};
  static const quay_dtype expected[] = {QUAY_F32, QUAY_BF16, QUAY_F8_E4M3, QUAY_BOOL, QUAY_C128};
  quay_dtype dtype;
#define ROW(name, value, bits, alignment, text)                \
  cr_expect_eq(quay_dtype_parse(text, &dtype), QUAY_OK, text); \
  cr_expect_eq(dtype, QUAY_##name, text);
  QUAY_DTYPE_TABLE(ROW)
#undef ROW
  for (size_t i = 0; i < 5; i++) {
    cr_expect_eq(quay_dtype_parse(upper[i], &dtype), QUAY_OK, "%s", upper[i]);
    cr_expect_eq(dtype, expected[i], "%s", upper[i]);
  }
}

Test(dtype, parse_refuses_anything_else_and_lists_the_names) {
  static const char *const wrong[] = {"", "f33", "f32 ", " f32", "none", "f3", "f322", "float"};
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    quay_dtype dtype = QUAY_U8;
    cr_expect_eq(quay_dtype_parse(wrong[i], &dtype), QUAY_STATUS_INVALID_ARGUMENT, "\"%s\"",
                 wrong[i]);
    cr_expect_eq(dtype, QUAY_U8, "the output is left alone");
#define ROW(name, value, bits, alignment, text) \
  cr_expect_not_null(strstr(quay_last_error()->message, text), text);
    QUAY_DTYPE_TABLE(ROW)
#undef ROW
  }
  quay_dtype dtype;
  cr_expect_eq(quay_dtype_parse(NULL, &dtype), QUAY_STATUS_INVALID_ARGUMENT);
  cr_expect_eq(quay_dtype_parse("f32", NULL), QUAY_STATUS_INVALID_ARGUMENT);
}

static void check_size(quay_dtype dtype, int32_t rank, const int64_t *shape, uint64_t expected) {
  uint64_t size = 1;
  cr_expect_eq(quay_dtype_array_size(dtype, rank, shape, &size), QUAY_OK);
  cr_expect_eq(size, expected);
}

Test(dtype, array_sizes_are_products) {
  check_size(QUAY_F32, 0, NULL, 4);
  check_size(QUAY_F32, 0, (int64_t[]){99}, 4);
  check_size(QUAY_F32, 1, (int64_t[]){7}, 28);
  check_size(QUAY_BF16, 3, (int64_t[]){2, 3, 5}, 60);
  check_size(QUAY_C128, 2, (int64_t[]){3, 3}, 144);
}

Test(dtype, an_extent_of_zero_makes_it_empty_however_large_the_others_are) {
  check_size(QUAY_F64, 1, (int64_t[]){0}, 0);
  check_size(QUAY_F64, 3, (int64_t[]){INT64_MAX, INT64_MAX, 0}, 0);
  check_size(QUAY_F64, 3, (int64_t[]){0, INT64_MAX, INT64_MAX}, 0);
}

Test(dtype, the_largest_size_is_2_to_the_63_minus_1) {
  check_size(QUAY_U8, 1, (int64_t[]){INT64_MAX}, INT64_MAX);
  check_size(QUAY_U16, 1, (int64_t[]){INT64_MAX / 2}, INT64_MAX - 1);
  check_size(QUAY_C128, 2, (int64_t[]){INT64_MAX / 32, 2}, (uint64_t)(INT64_MAX / 32) * 32);
}

Test(dtype, products_above_that_are_out_of_range) {
  static const int64_t shapes[][3] = {
      {INT64_MAX, 2, 1},
      {INT64_MAX / 2 + 1, 2, 1},
      {1ll << 32, 1ll << 31, 1},
      {1ll << 32, 1ll << 32, 1},
      {1ll << 62, 4, 1},
      {INT64_MAX, INT64_MAX, INT64_MAX},
      {1ll << 40, 1ll << 20, 1ll << 10},
  };
  for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
    uint64_t size;
    cr_expect_eq(quay_dtype_array_size(QUAY_U8, 3, shapes[i], &size), QUAY_STATUS_OUT_OF_RANGE,
                 "shape %zu", i);
  }
  uint64_t size;
  cr_expect_eq(quay_dtype_array_size(QUAY_F64, 1, (int64_t[]){1ll << 60}, &size),
               QUAY_STATUS_OUT_OF_RANGE);
  cr_expect_eq(quay_dtype_array_size(QUAY_F64, 1, (int64_t[]){INT64_MAX / 8 + 1}, &size),
               QUAY_STATUS_OUT_OF_RANGE);
  cr_expect_eq(quay_dtype_array_size(QUAY_C128, 1, (int64_t[]){INT64_MAX}, &size),
               QUAY_STATUS_OUT_OF_RANGE);
}

Test(dtype, negative_extents_and_bad_ranks_are_refused) {
  int64_t shape[MAX_SHAPE];
  uint64_t size;
  for (size_t i = 0; i < MAX_SHAPE; i++)
    shape[i] = 1;
  cr_expect_eq(quay_dtype_array_size(QUAY_U8, QUAY_RANK_MAX, shape, &size), QUAY_OK);
  cr_expect_eq(quay_dtype_array_size(QUAY_U8, QUAY_RANK_MAX + 1, shape, &size),
               QUAY_STATUS_INVALID_ARGUMENT);
  cr_expect_eq(quay_dtype_array_size(QUAY_U8, -1, shape, &size), QUAY_STATUS_INVALID_ARGUMENT);
  cr_expect_eq(quay_dtype_array_size(QUAY_U8, INT32_MIN, shape, &size),
               QUAY_STATUS_INVALID_ARGUMENT);
  shape[3] = -1;
  cr_expect_eq(quay_dtype_array_size(QUAY_U8, 4, shape, &size), QUAY_STATUS_INVALID_ARGUMENT);
  shape[0] = 0;
  cr_expect_eq(quay_dtype_array_size(QUAY_U8, 4, shape, &size), QUAY_STATUS_INVALID_ARGUMENT,
               "an empty array's extents are checked, too");
  cr_expect_eq(quay_dtype_array_size(QUAY_U8, 1, NULL, &size), QUAY_STATUS_INVALID_ARGUMENT);
  cr_expect_eq(quay_dtype_array_size(QUAY_U8, 0, NULL, NULL), QUAY_STATUS_INVALID_ARGUMENT);
}
