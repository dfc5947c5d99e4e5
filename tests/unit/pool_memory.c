/* The pool layer where the library's own memory runs out: allocations fail cleanly, frees never
 * need any. */
#include <quay/quay.h>
#include <stdlib.h>
#include <string.h>

#include "support/failing_allocations.h"
#include "support/random.h"
#include "support/status.h"

enum {
  COUNT = 200
};

void *__real_quay__os_aligned_alloc(size_t alignment, size_t size);
void *__real_quay__os_realloc(void *pointer, size_t size);

void *__wrap_quay__os_aligned_alloc(size_t alignment, size_t size) {
  return allocation_fails() ? NULL : __real_quay__os_aligned_alloc(alignment, size);
}

void *__wrap_quay__os_realloc(void *pointer, size_t size) {
  return allocation_fails() ? NULL : __real_quay__os_realloc(pointer, size);
}

static uint64_t random_size(uint64_t *random) {
  return 1 + quay_test_random(random) % (UINT64_C(1) << quay_test_random(random) % 23);
}

/* Umpire 844: a free coalesced, which allocated, which ran out. */
Test(pool_memory, a_free_takes_no_memory) {
  static quay_raw_buffer raws[COUNT];
  quay_allocator *pool = NULL;
  CHECK_OK(quay_allocator_open("pool+cpu", &pool));
  uint64_t random = 2;
  for (int round = 0; round < 5; round++) {
    for (size_t i = 0; i < COUNT; i++) {
      if (raws[i].owner == NULL)
        CHECK_OK(quay_allocator_alloc(pool, random_size(&random), NULL, &raws[i]));
    }
    allocations_left = 0; /* the next one would fail */
    for (size_t i = 0; i < COUNT; i++) {
      if (round == 4 || quay_test_random(&random) % 2 == 0)
        quay_raw_buffer_free(&raws[i]);
    }
    cr_assert_eq(allocations_left, 0, "a free took memory");
    allocations_left = -1;
  }
  quay_stats stats;
  CHECK_OK(quay_allocator_stats(pool, &stats));
  cr_assert_eq(stats.live_count, 0);
  cr_assert_eq(stats.error_count, 0);
  quay_allocator_release(pool);
}

static bool use(quay_allocator *pool, uint64_t seed) {
  quay_raw_buffer raws[8];
  bool all = true;
  for (size_t i = 0; i < 8; i++) {
    const quay_status status = quay_allocator_alloc(pool, random_size(&seed), NULL, &raws[i]);
    all = all && status == QUAY_OK;
    if (status == QUAY_OK)
      continue;
    cr_assert_eq(status, QUAY_STATUS_OUT_OF_HOST_MEMORY, "%s", quay_last_error()->message);
    cr_assert_eq(raws[i].owner, NULL);
  }
  for (size_t i = 0; i < 8; i++)
    quay_raw_buffer_free(&raws[i]);
  return all;
}

static void sweep(const char *spec) {
  bool whole = false;
  for (int nth = 0; !whole && nth < 1000; nth++) {
    quay_allocator *pool = NULL;
    allocations_left = nth;
    const quay_status status = quay_allocator_open(spec, &pool);
    if (status == QUAY_OK) {
      whole = use(pool, 7) && allocations_left >= 0;
      allocations_left = -1;
      cr_assert(use(pool, 8), "it goes on once there is memory: %s", quay_last_error()->message);
      quay_stats stats;
      CHECK_OK(quay_allocator_stats(pool, &stats));
      cr_assert_eq(stats.live_count, 0);
    } else {
      cr_assert_eq(status, QUAY_STATUS_OUT_OF_HOST_MEMORY, "%s", quay_last_error()->message);
    }
    allocations_left = -1;
    quay_allocator_release(pool);
  }
  cr_assert(whole, "every allocation was to fail once");
  CHECK_OK(quay_shutdown());
}

Test(pool_memory, whichever_allocation_fails_by_pages_the_pool_stays_usable) {
  sweep("pool+cpu");
}

Test(pool_memory, whichever_allocation_fails_by_blocks_the_pool_stays_usable) {
  sweep("pool+mmap:/tmp");
}
