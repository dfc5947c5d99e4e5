/* Skipping a test that this machine cannot run. */
#ifndef QUAY_TESTS_SUPPORT_SKIP_H
#define QUAY_TESTS_SUPPORT_SKIP_H

/* Ends the running test as skipped, and prints `target` (what is missing: "cuda", "tmpfs", ...) and
 * the reason. A target that stands in QUAY_TEST_FAIL_ON_SKIP (words with commas between) fails the
 * test instead: a word counts when the target contains it, whatever the case.
 * Call it from the thread that runs the test. Tests use this and never cr_skip_test. */
void quay_test_skip(const char *target, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Criterion ends a skipped test without what its suite does afterwards: `end` is done before. It
 * may be done twice. */
void quay_test_skip_ends_with(void (*end)(void));

#endif
