/* What a fuzzer asserts: prints the place, what is not true and the library's last error, and
 * aborts, so that the input is kept. */
#ifndef QUAY_TESTS_FUZZ_CHECK_H
#define QUAY_TESTS_FUZZ_CHECK_H

#include <quay/quay.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                                        \
  do {                                                                                          \
    if (!(condition)) {                                                                         \
      fprintf(stderr, "%s:%d: not true: %s (last error: %s)\n", __FILE__, __LINE__, #condition, \
              quay_last_error()->message);                                                      \
      abort();                                                                                  \
    }                                                                                           \
  } while (0)

#endif
