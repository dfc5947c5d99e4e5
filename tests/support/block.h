/* Blocks of host memory between guards, so that a write beside them is seen. */
#ifndef QUAY_TESTS_SUPPORT_BLOCK_H
#define QUAY_TESTS_SUPPORT_BLOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct quay_test_block {
  unsigned char *data; /* `size` bytes, `misalignment` bytes past a multiple of 4096 */
  size_t size;
  void *base; /* of the memory; the rest of it is guard */
  size_t guard;
  size_t capacity; /* bytes from `base` on: what is behind the second guard is not the block's */
} quay_test_block;

/* Ends the test if there is no memory. The bytes are random, by `seed`. */
quay_test_block quay_test_block_make(size_t size, size_t misalignment, uint64_t seed);

/* Whether the guards on both sides are as they were. */
bool quay_test_block_intact(const quay_test_block *block);

/* A large block of the first thread is kept for the next one: the system's first pages of fresh
 * memory are most of what tests take. AddressSanitizer watches it as if it were freed. */
void quay_test_block_free(quay_test_block *block);

#endif
