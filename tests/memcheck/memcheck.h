/* What the tests of Valgrind's memcheck share: it is asked what it knows of each byte; in this way
 * it reports nothing. */
#ifndef QUAY_TESTS_MEMCHECK_MEMCHECK_H
#define QUAY_TESTS_MEMCHECK_MEMCHECK_H

#include <quay/quay.h>
#include <stdio.h>
#include <stdlib.h>
#include <valgrind/memcheck.h>

/* What memcheck takes a byte for. */
typedef enum byte_state {
  NO_ACCESS,
  UNDEFINED,
  DEFINED,
} byte_state;

static inline byte_state state_of(const unsigned char *byte) {
  unsigned char bits = 0;
  /* 3: not addressable. A bit that is set is undefined. */
  if (VALGRIND_GET_VBITS(byte, &bits, 1) == 3)
    return NO_ACCESS;
  return bits == 0 ? DEFINED : UNDEFINED;
}

static inline void expect(const unsigned char *bytes, long from, long to, byte_state expected,
                          const char *what) {
  for (long i = from; i < to; i++) {
    if (state_of(bytes + i) == expected)
      continue;
    fprintf(stderr, "%s: byte %ld is in state %d\n", what, i, (int)state_of(bytes + i));
    exit(1);
  }
}

static inline void expect_ok(quay_status status, const char *what) {
  if (status == QUAY_OK)
    return;
  fprintf(stderr, "%s: %s\n", what, quay_last_error()->message);
  exit(1);
}

static inline unsigned char *allocate(quay_allocator *allocator, uint64_t size, bool zeroed,
                                      quay_raw_buffer *out_raw) {
  const quay_alloc_options options = {.zeroed = zeroed};
  void *pointer = NULL;
  expect_ok(quay_allocator_alloc(allocator, size, &options, out_raw), "alloc");
  expect_ok(quay_raw_buffer_host_pointer(out_raw, &pointer), "host pointer");
  return pointer;
}

/* Opens an allocator; ends the program where Valgrind is not there. */
static inline quay_allocator *open_allocator(const char *spec) {
  quay_allocator *allocator = NULL;
  if (!RUNNING_ON_VALGRIND) {
    fprintf(stderr, "this test runs under Valgrind\n");
    exit(1);
  }
  expect_ok(quay_allocator_open(spec, &allocator), "open");
  return allocator;
}

#endif
