/* The pool layer where threads take from each other and there is hardly any memory: what fits is
 * found, whoever has it in his hands, and a child of a fork finds blocks as they are. */
#include <pthread.h>
#include <quay/quay.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/os.h"
#include "layers/offset_allocator.h"
#include "layers/pool_impl.h"
#include "support/random.h"
#include "support/sanitized.h"
#include "support/status.h"

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)

static quay_allocator *pool;

/* Sanitizers are slow, and ThreadSanitizer's forks slowest. */
enum {
  THREADS = 4,
  SLOTS = 64,
#ifdef SANITIZED
  STEPS = 20000,
  ROUNDS = 100
#else
  STEPS = 300000,
  ROUNDS = 2000
#endif
};

/* Nothing is live without one of these, of which there are as many as blocks that fit. */
static atomic_int permits;
static uint64_t block_bytes;
static atomic_uint refused;
static _Atomic(quay_raw_buffer *) handed_on[SLOTS];

static void free_one(quay_raw_buffer *raw) {
  if (raw == NULL)
    return;
  quay_raw_buffer_free(raw);
  free(raw);
  atomic_fetch_add(&permits, 1);
}

static quay_raw_buffer *allocate_one(void) {
  if (atomic_fetch_sub(&permits, 1) <= 0) {
    atomic_fetch_add(&permits, 1);
    return NULL;
  }
  quay_raw_buffer *const raw = calloc(1, sizeof *raw);
  if (quay_allocator_alloc(pool, block_bytes, NULL, raw) == QUAY_OK)
    return raw;
  atomic_fetch_add(&refused, 1);
  free(raw);
  atomic_fetch_add(&permits, 1);
  return NULL;
}

static void *hand_on(void *seed) {
  uint64_t random = (uint64_t)(uintptr_t)seed;
  for (int step = 0; step < STEPS; step++) {
    quay_raw_buffer *const raw = allocate_one();
    free_one(atomic_exchange(&handed_on[quay_test_random(&random) % SLOTS], raw));
  }
  return NULL;
}

static void check_that_what_fits_is_found(const char *spec, uint64_t bytes, int count) {
  pthread_t threads[THREADS];
  CHECK_OK(quay_allocator_open(spec, &pool));
  atomic_store(&permits, count);
  atomic_store(&refused, 0);
  block_bytes = bytes;
  for (size_t i = 0; i < THREADS; i++)
    cr_assert_eq(pthread_create(&threads[i], NULL, hand_on, (void *)(i + 1)), 0);
  for (size_t i = 0; i < THREADS; i++)
    pthread_join(threads[i], NULL);
  for (size_t i = 0; i < SLOTS; i++)
    free_one(atomic_exchange(&handed_on[i], NULL));
  cr_expect_eq(atomic_load(&refused), 0, "%s: %u of %zu bytes each were refused", spec,
               atomic_load(&refused), (size_t)bytes);
  quay_allocator_release(pool);
}

Test(pool_threads, what_fits_is_found_though_others_have_it_in_their_hands) {
  check_that_what_fits_is_found("pool:keep=tight,max=64KiB+cpu", 4 * KIB, 16);
  check_that_what_fits_is_found("pool:max=64KiB+cpu", KIB, 64);
  check_that_what_fits_is_found("pool:max=1MiB+cpu", 64 * KIB, 16);
  check_that_what_fits_is_found("pool:max=16MiB+cpu", MIB, 16);
}

/* Threads that do nothing but take back what they have just freed, while another one takes all that
 * is kept and gives it back. */
static atomic_bool enough;

static void *take_back(void *size) {
  const uint64_t bytes = (uint64_t)(uintptr_t)size;
  uint64_t mark = (uint64_t)(uintptr_t)&bytes; /* a number of the thread's own */
  while (!atomic_load_explicit(&enough, memory_order_relaxed)) {
    quay_raw_buffer raw;
    void *memory = NULL;
    CHECK_OK(quay_allocator_alloc(pool, bytes, NULL, &raw));
    CHECK_OK(quay_raw_buffer_host_pointer(&raw, &memory));
    memcpy(memory, &mark, sizeof mark);
    for (volatile int i = 0; i < 4; i++) {
    }
    cr_assert_eq(memcmp(memory, &mark, sizeof mark), 0, "somebody else has the block, too");
    quay_raw_buffer_free(&raw);
    mark += 1 << 20;
  }
  return NULL;
}

static void check_that_none_is_handed_out_twice(uint64_t bytes) {
  pthread_t threads[2];
  CHECK_OK(quay_allocator_open("pool+cpu", &pool));
  for (size_t i = 0; i < 2; i++)
    cr_assert_eq(pthread_create(&threads[i], NULL, take_back, (void *)(uintptr_t)bytes), 0);
  for (int i = 0; i < STEPS / 10; i++) {
    quay__pool_flush(quay__pool_of(pool));
    for (volatile int wait = 0; wait < i % 512; wait++) {
    }
  }
  atomic_store(&enough, true);
  for (size_t i = 0; i < 2; i++)
    pthread_join(threads[i], NULL);
  atomic_store(&enough, false);
  quay_stats stats;
  CHECK_OK(quay_allocator_stats(pool, &stats));
  cr_expect_eq(stats.live_count, 0);
  quay_allocator_release(pool);
}

Test(pool_threads, what_a_thread_takes_back_is_not_given_to_another_one) {
  check_that_none_is_handed_out_twice(4 * KIB);
  check_that_none_is_handed_out_twice(MIB);
}

Test(pool_threads, what_fits_inside_a_limit_is_found_though_others_have_it_in_their_hands) {
  check_that_what_fits_is_found("pool:keep=tight+limit:64KiB+cpu", 4 * KIB, 16);
  check_that_what_fits_is_found("pool+limit:16MiB+cpu", MIB, 16);
}

/* Blocks that the pool does not carve. */

static void check_a_block_of_its_own(const char *spec) {
  const quay_alloc_options options = {.alignment = 4 * MIB};
  quay_raw_buffer raw;
  CHECK_OK(quay_allocator_open(spec, &pool));
  CHECK_OK(quay_allocator_alloc(pool, 40 * MIB, NULL, &raw));
  quay_raw_buffer_free(&raw);
  CHECK_OK(quay_allocator_alloc(pool, 40 * MIB, &options, &raw));
  quay_raw_buffer other;
  CHECK_FAILS(quay_allocator_alloc(pool, 40 * MIB, &options, &other), QUAY_STATUS_LIMIT_EXCEEDED);
  quay_raw_buffer_free(&raw);
  quay_allocator_release(pool);
}

Test(pool_threads, a_block_of_its_own_gets_the_memory_that_the_pool_keeps) {
  check_a_block_of_its_own("pool:max=64MiB+cpu");
  check_a_block_of_its_own("pool+limit:64MiB+cpu");
  check_a_block_of_its_own("pool+limit:64MiB+mmap:/tmp");
}

/* A pool that is released while its last block is freed: whoever comes last ends it, and sees all
 * that the other one did. */

static pthread_barrier_t both;
static quay_raw_buffer last_block;

static void *free_last(void *rounds) {
  for (int i = 0; i < *(const int *)rounds; i++) {
    pthread_barrier_wait(&both);
    quay_raw_buffer_free(&last_block);
    pthread_barrier_wait(&both);
  }
  return NULL;
}

Test(pool_threads, a_pool_ends_while_another_thread_frees_its_last_block) {
  static const uint64_t sizes[] = {100, MIB};
  int rounds = 2000;
  pthread_t thread;
  cr_assert_eq(pthread_barrier_init(&both, NULL, 2), 0);
  cr_assert_eq(pthread_create(&thread, NULL, free_last, &rounds), 0);
  for (int i = 0; i < rounds; i++) {
    CHECK_OK(quay_allocator_open("pool+cpu", &pool));
    CHECK_OK(quay_allocator_alloc(pool, sizes[i % 2], NULL, &last_block));
    pthread_barrier_wait(&both);
    quay_allocator_release(pool);
    pthread_barrier_wait(&both);
  }
  pthread_join(thread, NULL);
  pthread_barrier_destroy(&both);
  CHECK_OK(quay_shutdown());
}

/* Fork: the memory is the child's as it was at any point of what the other threads were doing. */

/* Sizes that a thread keeps in one list; there are 64 lists. */
static uint64_t other_of_the_list(uint64_t bytes) {
  const uint64_t factor = UINT64_C(0x9e3779b97f4a7c15);
  uint64_t other = bytes;
  do
    other += 64;
  while (other / 64 * factor >> 58 != bytes / 64 * factor >> 58);
  return other;
}

static uint64_t pair[2];
static atomic_bool over;

/* The larger one lies below the smaller one, which is moved to where it was. */
static void *mix_sizes(void *argument) {
  (void)argument;
  while (!atomic_load_explicit(&over, memory_order_relaxed)) {
    quay_raw_buffer large, small;
    CHECK_OK(quay_allocator_alloc(pool, pair[1], NULL, &large));
    CHECK_OK(quay_allocator_alloc(pool, pair[0], NULL, &small));
    quay_raw_buffer_free(&large);
    quay_raw_buffer_free(&small);
  }
  return NULL;
}

/* In a child, by a thread that gets the place of the one that is gone. */
static void *look_at_sizes(void *argument) {
  quay_raw_buffer raws[24];
  bool *const fits = argument;
  for (size_t i = 0; i < 24; i++) {
    if (quay_allocator_alloc(pool, pair[1], NULL, &raws[i]) != QUAY_OK)
      return NULL;
    const quay__extent *const extent = (const quay__extent *)(uintptr_t)raws[i].cookie;
    if (extent->size < raws[i].size)
      return NULL;
  }
  *fits = true;
  return NULL;
}

Test(pool_threads, a_child_of_a_fork_gets_no_block_that_is_too_small) {
  pair[0] = 5120;
  pair[1] = other_of_the_list(pair[0]);
  CHECK_OK(quay_allocator_open("pool+cpu", &pool));
  pthread_t thread;
  cr_assert_eq(pthread_create(&thread, NULL, mix_sizes, NULL), 0);
  for (int round = 0; round < ROUNDS; round++) {
    const pid_t child = fork();
    cr_assert_geq(child, 0);
    if (child == 0) {
      alarm(20);
      bool fits = false;
      pthread_t heir;
      if (pthread_create(&heir, NULL, look_at_sizes, &fits) == 0)
        pthread_join(heir, NULL);
      _exit(fits ? 0 : 1);
    }
    int status = 0;
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(status, 0, "round %d", round);
  }
  atomic_store(&over, true);
  pthread_join(thread, NULL);
  quay_allocator_release(pool);
}

/* Of what has free memory in its hands an allocation that finds none waits for a while. */
Test(pool_threads, a_child_of_a_fork_does_not_wait_for_threads_that_it_has_not) {
  CHECK_OK(quay_allocator_open("pool:max=1MiB+cpu", &pool));
  quay_raw_buffer most, raw;
  CHECK_OK(quay_allocator_alloc(pool, 768 * KIB, NULL, &most));
  quay__pool_move_begin(quay__pool_of(pool)); /* as another thread would */
  const pid_t child = fork();
  cr_assert_geq(child, 0);
  if (child == 0) {
    const uint64_t begun = quay__os_nanoseconds();
    bool none = true;
    for (int i = 0; i < 10; i++)
      none =
          none && quay_allocator_alloc(pool, 512 * KIB, NULL, &raw) == QUAY_STATUS_LIMIT_EXCEEDED;
    const bool quick = quay__os_nanoseconds() - begun < UINT64_C(1000000000);
    _exit(none && quick ? 0 : 1);
  }
  int status = 0;
  cr_assert_eq(waitpid(child, &status, 0), child);
  quay__pool_move_end(quay__pool_of(pool));
  cr_assert_eq(status, 0);
  quay_raw_buffer_free(&most);
  quay_allocator_release(pool);
}

/* While another thread finds no memory, threads keep nothing. */
Test(pool_threads, a_child_of_a_fork_keeps_what_it_frees_whoever_was_short_of_memory) {
  CHECK_OK(quay_allocator_open("pool+cpu", &pool));
  quay_raw_buffer raw;
  CHECK_OK(quay_allocator_alloc(pool, 3000, NULL, &raw)); /* the thread has a stock from then on */
  quay__pool_tally_up(&quay__pool_of(pool)->starving);    /* as another thread would */
  const pid_t child = fork();
  cr_assert_geq(child, 0);
  if (child == 0) {
    quay_raw_buffer_free(&raw);
    _exit(quay__pool_has_kept(quay__pool_of(pool)) ? 0 : 1);
  }
  int status = 0;
  cr_assert_eq(waitpid(child, &status, 0), child);
  quay__pool_tally_down(&quay__pool_of(pool)->starving, memory_order_relaxed);
  cr_assert_eq(status, 0);
  quay_raw_buffer_free(&raw);
  quay_allocator_release(pool);
}
