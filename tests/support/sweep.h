/* How finely the calls that fail in turn are swept: every third one, of which the builds share the
 * places, and every one where QUAY_TEST_FULL is set. */
#ifndef QUAY_TESTS_SUPPORT_SWEEP_H
#define QUAY_TESTS_SUPPORT_SWEEP_H

#include <stdint.h>
#include <stdlib.h>

/* For a whole sweep, under a sanitizer on a busy machine. */
#define QUAY_TEST_SWEEP_SECONDS 1500

/* The first call that fails; QUAY_TEST_SWEEP_FIRST is the build's. */
static inline uint64_t quay_test_sweep_first(void) {
  const char *const first = getenv("QUAY_TEST_SWEEP_FIRST");
  if (first == NULL || getenv("QUAY_TEST_FULL") != NULL)
    return 1;
  return strtoull(first, NULL, 10);
}

static inline uint64_t quay_test_sweep_step(void) {
  return getenv("QUAY_TEST_FULL") != NULL ? 1 : 3;
}

#endif
