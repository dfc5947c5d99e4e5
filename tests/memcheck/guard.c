/* The guard layer under Valgrind's memcheck. */
#include <string.h>

#include "memcheck.h"

#define SIZE    100
#define REDZONE 64

int main(void) {
  quay_allocator *const allocator = open_allocator("guard:redzone=64+cpu");
  quay_raw_buffer raw;
  unsigned char *bytes = allocate(allocator, SIZE, false, &raw);
  expect(bytes, -REDZONE, 0, NO_ACCESS, "the red zone before a block");
  expect(bytes, 0, SIZE, UNDEFINED, "a new block");
  expect(bytes, SIZE, SIZE + REDZONE, NO_ACCESS, "the red zone behind a block");
  memset(bytes, 0x5a, SIZE);
  expect_ok(quay_guard_check(allocator), "check");
  expect(bytes, -REDZONE, 0, NO_ACCESS, "the red zone after a check");
  expect(bytes, 0, SIZE, DEFINED, "a written block");
  quay_raw_buffer_free(&raw);
  expect(bytes, -REDZONE, SIZE + REDZONE, NO_ACCESS, "a freed block");
  expect_ok(quay_guard_check(allocator), "check of a freed block");
  expect(bytes, -REDZONE, SIZE + REDZONE, NO_ACCESS, "a freed block after a check");
  bytes = allocate(allocator, SIZE, true, &raw);
  expect(bytes, 0, SIZE, DEFINED, "a zeroed block");
  quay_raw_buffer_free(&raw);
  quay_allocator_release(allocator);
  return 0;
}
