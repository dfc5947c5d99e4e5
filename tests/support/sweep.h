/* How finely the calls that fail in turn are swept. */
#ifndef QUAY_TESTS_SUPPORT_SWEEP_H
#define QUAY_TESTS_SUPPORT_SWEEP_H

#include <stdint.h>
#include <stdlib.h>

#ifdef __has_feature
#if __has_feature(thread_sanitizer)
#define QUAY_TEST_SWEPT_ELSEWHERE 1
#endif
#endif
#ifdef NDEBUG
#define QUAY_TEST_SWEPT_ELSEWHERE 1
#endif

/* Every call in the builds that look for leaks and faults, and everywhere where QUAY_TEST_FULL is
 * set; in the optimised one and under ThreadSanitizer else every third. */
static inline uint64_t quay_test_sweep_step(void) {
#ifdef QUAY_TEST_SWEPT_ELSEWHERE
  return getenv("QUAY_TEST_FULL") != NULL ? 1 : 3;
#else
  return 1;
#endif
}

#endif
