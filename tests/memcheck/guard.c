/* The guard layer under Valgrind's memcheck, which is asked what it knows of each byte; in this way
 * it reports nothing. */
#include <quay/quay.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <valgrind/memcheck.h>

#define SIZE    100
#define REDZONE 64

/* What memcheck takes a byte for. */
typedef enum byte_state {
  NO_ACCESS,
  UNDEFINED,
  DEFINED,
} byte_state;

static byte_state state_of(const unsigned char *byte) {
  unsigned char bits = 0;
  /* 3: not addressable. A bit that is set is undefined. */
  if (VALGRIND_GET_VBITS(byte, &bits, 1) == 3)
    return NO_ACCESS;
  return bits == 0 ? DEFINED : UNDEFINED;
}

static void expect(const unsigned char *bytes, long from, long to, byte_state expected,
                   const char *what) {
  for (long i = from; i < to; i++) {
    if (state_of(bytes + i) == expected)
      continue;
    fprintf(stderr, "%s: byte %ld is in state %d\n", what, i, (int)state_of(bytes + i));
    exit(1);
  }
}

static void expect_ok(quay_status status, const char *what) {
  if (status == QUAY_OK)
    return;
  fprintf(stderr, "%s: %s\n", what, quay_last_error()->message);
  exit(1);
}

static unsigned char *allocate(quay_allocator *allocator, bool zeroed, quay_raw_buffer *out_raw) {
  const quay_alloc_options options = {.zeroed = zeroed};
  void *pointer = NULL;
  expect_ok(quay_allocator_alloc(allocator, SIZE, &options, out_raw), "alloc");
  expect_ok(quay_raw_buffer_host_pointer(out_raw, &pointer), "host pointer");
  return pointer;
}

int main(void) {
  quay_allocator *allocator = NULL;
  quay_raw_buffer raw;
  if (!RUNNING_ON_VALGRIND) {
    fprintf(stderr, "this test runs under Valgrind\n");
    return 1;
  }
  expect_ok(quay_allocator_open("guard:redzone=64+cpu", &allocator), "open");
  unsigned char *bytes = allocate(allocator, false, &raw);
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
  bytes = allocate(allocator, true, &raw);
  expect(bytes, 0, SIZE, DEFINED, "a zeroed block");
  quay_raw_buffer_free(&raw);
  quay_allocator_release(allocator);
  return 0;
}
