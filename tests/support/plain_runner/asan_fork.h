/* Forks beside threads that allocate, under clang's AddressSanitizer. */
#ifndef QUAY_TESTS_SUPPORT_PLAIN_RUNNER_ASAN_FORK_H
#define QUAY_TESTS_SUPPORT_PLAIN_RUNNER_ASAN_FORK_H

/* To be called before the library first runs: these handlers then run last before a fork and first
 * after it, inside those of the library. */
void plain_runner_prepare_for_forks(void);

#endif
