/* Random bytes that a seed determines, for test data: never zeros, never the same twice. */
#ifndef QUAY_TESTS_SUPPORT_RANDOM_H
#define QUAY_TESTS_SUPPORT_RANDOM_H

#include <stddef.h>
#include <stdint.h>

/* The next number of the sequence of `*state`. */
uint64_t quay_test_random(uint64_t *state);

/* Fills `size` bytes; the same seed gives the same bytes. */
void quay_test_random_bytes(void *bytes, size_t size, uint64_t seed);

/* The first place where two ranges differ; `size` if they don't. */
size_t quay_test_difference(const void *a, const void *b, size_t size);

#endif
