/* Guarded blocks of host memory. */
#include "support/block.h"

#include <criterion/criterion.h>
#include <stdlib.h>

#include "support/random.h"

#define GUARD 4096u

static unsigned char guard_byte(size_t index) {
  return (unsigned char)(0xa5u ^ (index * 7u));
}

quay_test_block quay_test_block_make(size_t size, size_t misalignment, uint64_t seed) {
  quay_test_block block = {.size = size, .guard = GUARD + misalignment};
  const size_t total = block.guard + size + GUARD;
  if (posix_memalign(&block.base, GUARD, total) != 0)
    cr_assert_fail("no memory for a test block of %zu bytes", total);
  unsigned char *bytes = block.base;
  block.data = bytes + block.guard;
  for (size_t i = 0; i < block.guard; i++)
    bytes[i] = guard_byte(i);
  for (size_t i = block.guard + size; i < total; i++)
    bytes[i] = guard_byte(i);
  quay_test_random_bytes(block.data, size, seed);
  return block;
}

bool quay_test_block_intact(const quay_test_block *block) {
  const unsigned char *bytes = block->base;
  for (size_t i = 0; i < block->guard; i++) {
    if (bytes[i] != guard_byte(i))
      return false;
  }
  for (size_t i = block->guard + block->size; i < block->guard + block->size + GUARD; i++) {
    if (bytes[i] != guard_byte(i))
      return false;
  }
  return true;
}

void quay_test_block_free(quay_test_block *block) {
  free(block->base);
  *block = (quay_test_block){.data = NULL};
}
