/* Where the system has no barrier for all threads of a process: the pool's short way is closed, and
 * all else is as ever. */
#include <pthread.h>
#include <quay/quay.h>
#include <string.h>

#include "core/lock.h"
#include "core/os.h"
#include "support/status.h"

#define MIB ((uint64_t)1 << 20)

int __wrap_quay__os_barrier(void);
int __wrap_quay__os_barrier(void) {
  return -1;
}

Test(spin_no_barrier, nobody_enters_and_pausing_is_no_wait) {
  static quay__spin spins[2];
  static quay__spin_set set = {.first = spins, .stride = sizeof spins[0], .count = 2};
  quay__spin_set_add(&set);
  cr_expect_not(quay__spin_enter(&spins[0]));
  quay__spin_set_pause(&set, 3);
  quay__spin_set_resume(&set, 3);
  cr_expect_not(quay__spin_enter(&spins[0]), "resuming has opened it");
  quay__spin_set_remove(&set);
}

static void check_that_it_comes_again(quay_allocator *pool, uint64_t size) {
  quay_raw_buffer raw;
  void *first = NULL, *second = NULL;
  CHECK_OK(quay_allocator_alloc(pool, size, NULL, &raw));
  CHECK_OK(quay_raw_buffer_host_pointer(&raw, &first));
  quay_raw_buffer_free(&raw);
  CHECK_OK(quay_allocator_alloc(pool, size, NULL, &raw));
  CHECK_OK(quay_raw_buffer_host_pointer(&raw, &second));
  quay_raw_buffer_free(&raw);
  cr_expect_eq(first, second, "%llu bytes", (unsigned long long)size);
}

Test(spin_no_barrier, a_thread_gets_what_it_has_freed) {
  quay_allocator *pool = NULL;
  CHECK_OK(quay_allocator_open("pool+cpu", &pool));
  for (uint64_t size = 64; size <= 64 * MIB; size *= 4)
    check_that_it_comes_again(pool, size);
  quay_allocator_release(pool);
}

static pthread_barrier_t both;

/* Keeps it until others have looked: its place would be the next thread's. */
static void *keep_some(void *pool) {
  static quay_raw_buffer raws[32];
  for (size_t i = 0; i < 32; i++)
    CHECK_OK(quay_allocator_alloc(pool, i < 28 ? (uint64_t)64 << i % 10 : 4 * MIB, NULL, &raws[i]));
  for (size_t i = 0; i < 32; i++)
    quay_raw_buffer_free(&raws[i]);
  (void)pthread_barrier_wait(&both);
  (void)pthread_barrier_wait(&both);
  return NULL;
}

Test(spin_no_barrier, what_another_thread_keeps_is_given_back) {
  quay_allocator *pool = NULL;
  pthread_t thread;
  CHECK_OK(quay_allocator_open("pool+cpu", &pool));
  cr_assert_eq(pthread_barrier_init(&both, NULL, 2), 0);
  cr_assert_eq(pthread_create(&thread, NULL, keep_some, pool), 0);
  (void)pthread_barrier_wait(&both);
  uint64_t bytes = 0;
  CHECK_OK(quay_allocator_trim(pool, &bytes));
  cr_expect_geq(bytes, 16 * MIB);
  quay_stats stats;
  CHECK_OK(quay_allocator_stats(quay_allocator_inner(pool), &stats));
  cr_expect_eq(stats.reserved_bytes, 0);
  (void)pthread_barrier_wait(&both);
  pthread_join(thread, NULL);
  pthread_barrier_destroy(&both);
  quay_allocator_release(pool);
}
