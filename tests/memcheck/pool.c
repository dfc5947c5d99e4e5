/* The pool layer under Valgrind's memcheck. */
#include <string.h>

#include "memcheck.h"

static void check_pool(const char *spec, long size) {
  quay_allocator *const pool = open_allocator(spec);
  quay_raw_buffer raw, other;
  unsigned char *bytes = allocate(pool, (uint64_t)size, false, &raw);
  expect(bytes, 0, size, UNDEFINED, "a new block");
  expect(bytes, size, size + 1, NO_ACCESS, "behind a block of an odd size");
  memset(bytes, 0x5a, (size_t)size);
  quay_raw_buffer_free(&raw);
  expect(bytes, 0, size, NO_ACCESS, "a freed block");
  bytes = allocate(pool, (uint64_t)size, false, &raw);
  expect(bytes, 0, size, UNDEFINED, "a block that was used before");
  unsigned char *const zeroed = allocate(pool, (uint64_t)size, true, &other);
  expect(zeroed, 0, size, DEFINED, "a zeroed block");
  quay_raw_buffer_free(&raw);
  expect(zeroed, 0, size, DEFINED, "a block beside a freed one");
  quay_raw_buffer_free(&other);
  expect_ok(quay_allocator_trim(pool, NULL), "trim");
  quay_allocator_release(pool);
}

int main(void) {
  static const char *const specs[] = {"pool+cpu", "pool:keep=tight+cpu",
                                      "pool:block=64KiB+pool+cpu", "track+pool+cpu"};
  for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) {
    check_pool(specs[i], 101);
    check_pool(specs[i], 7001);
  }
  check_pool(specs[0], (1L << 20) + 1);
  return 0;
}
