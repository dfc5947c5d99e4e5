/* Test data in which every byte depends on its place, so that a shifted or missing byte shows. */
#ifndef QUAY_TESTS_PATTERN_H
#define QUAY_TESTS_PATTERN_H

#include <criterion/criterion.h>
#include <quay/quay.h>
#include <stdlib.h>

#include "support/parts.h"

/* Never 0. */
QUAY_TEST_OWN_MEMORY static inline unsigned char pattern_byte(uint64_t index, unsigned seed) {
  const uint64_t mixed = (index + 1) * 0x9e3779b97f4a7c15u + seed * 0x2545f4914f6cdd1du;
  return (unsigned char)((mixed >> 56) | 1);
}

static inline void pattern_make(void *bytes, uint64_t size, unsigned seed) {
  quay_test_write_data(bytes, size, 0, seed, pattern_byte);
}

/* Checks bytes [0, size) against those that pattern_make() wrote from `first` on. */
static inline void pattern_check(const void *bytes, uint64_t first, uint64_t size, unsigned seed) {
  const uint64_t wrong = quay_test_first_wrong(bytes, size, first, seed, pattern_byte);
  if (wrong < size) {
    cr_assert_fail("byte %llu of %llu is %u, not %u", (unsigned long long)wrong,
                   (unsigned long long)size, ((const unsigned char *)bytes)[wrong],
                   pattern_byte(first + wrong, seed));
  }
}

/* Asserts QUAY_OK with the error's message. */
#define MUST(expression)                                                                           \
  do {                                                                                             \
    const quay_status must_status_ = (expression);                                                 \
    cr_assert_eq(must_status_, QUAY_OK, "%s: %s: %s", #expression, quay_status_text(must_status_), \
                 quay_last_error()->message);                                                      \
  } while (0)

/* Asserts a failure with the given status, and that the thread's error says the same. */
#define MUST_FAIL(expression, expected)                                               \
  do {                                                                                \
    quay_error_clear();                                                               \
    const quay_status must_status_ = (expression);                                    \
    cr_assert_eq(must_status_, QUAY_STATUS_##expected, "%s gave %s: %s", #expression, \
                 quay_status_name(must_status_), quay_last_error()->message);         \
    cr_assert_eq(quay_last_error()->status, must_status_);                            \
    cr_assert_neq(quay_last_error()->message[0], '\0');                               \
  } while (0)

/* A buffer of `size` bytes with pattern_make()'s bytes in it. */
static inline quay_buffer *pattern_buffer(quay_allocator *allocator, uint64_t size, unsigned seed) {
  unsigned char *bytes = malloc(size + 1);
  cr_assert_not_null(bytes);
  pattern_make(bytes, size, seed);
  const int64_t shape = (int64_t)size;
  quay_buffer *buffer = NULL;
  MUST(quay_buffer_create_from_host(allocator, QUAY_U8, 1, &shape, bytes, NULL, &buffer));
  free(bytes);
  return buffer;
}

/* Copies the whole window out and checks it. */
static inline void pattern_check_buffer(const quay_buffer *buffer, uint64_t first, unsigned seed) {
  const uint64_t size = quay_buffer_size(buffer);
  unsigned char *bytes = malloc(size + 1);
  cr_assert_not_null(bytes);
  MUST(quay_buffer_copy_out(buffer, bytes, size));
  pattern_check(bytes, first, size, seed);
  free(bytes);
}

static inline quay_allocator *open_spec(const char *spec) {
  quay_allocator *allocator = NULL;
  MUST(quay_allocator_open(spec, &allocator));
  return allocator;
}

#endif
