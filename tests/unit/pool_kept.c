/* What a thread of a pool keeps of what it has freed: how much. How it comes back is tested with
 * the pool itself. */
#include "layers/pool_impl.h"

#include <quay/quay.h>

#include "core/checked.h"
#include "support/random.h"
#include "support/status.h"

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)

/* Bytes of the large blocks that the calling thread keeps. */
static uint64_t kept_of(const quay_allocator *allocator) {
  const quay__pool_cache *const cache = quay__pool_cache_of_thread(quay__pool_of(allocator));
  cr_assert_not_null(cache);
  uint64_t bytes = 0;
  for (size_t i = 0; i < QUAY__POOL_RECENT; i++) {
    const quay__extent *const extent = atomic_load(&cache->recent[i].extent);
    bytes += extent != NULL ? extent->size : 0;
  }
  return bytes;
}

/* The most that is kept in a program of blocks up to `most_size` bytes, half of them live. */
static uint64_t most_kept(const char *spec, uint64_t most_size) {
  enum {
    COUNT = 24,
    STEPS = 300
  };
  static quay_raw_buffer raws[COUNT];
  quay_allocator *pool = NULL;
  CHECK_OK(quay_allocator_open(spec, &pool));
  uint64_t random = 17, most = 0;
  for (size_t step = 0; step < STEPS; step++) {
    quay_raw_buffer *const raw = &raws[quay_test_random(&random) % COUNT];
    if (raw->owner != NULL) {
      quay_raw_buffer_free(raw);
    } else {
      const uint64_t size = 1 + quay_test_random(&random) % most_size;
      CHECK_OK(quay_allocator_alloc(pool, size, NULL, raw));
    }
    most = quay__max(most, kept_of(pool));
  }
  for (size_t i = 0; i < COUNT; i++) {
    quay_raw_buffer_free(&raws[i]);
    most = quay__max(most, kept_of(pool));
  }
  quay_allocator_release(pool);
  return most;
}

Test(pool_kept, large_blocks_are_kept_up_to_512_mib) {
  const uint64_t most = most_kept("pool:max=64GiB+cpu", 600 * MIB);
  cr_assert_leq(most, 512 * MIB, "%llu bytes", (unsigned long long)most);
  cr_assert_gt(most, 256 * MIB, "hardly any is kept: %llu bytes", (unsigned long long)most);
}

Test(pool_kept, where_there_is_little_memory_an_eighth_of_it_is_kept) {
  const uint64_t most = most_kept("pool:max=400MiB+cpu", 12 * MIB);
  cr_assert_leq(most, 50 * MIB, "%llu bytes", (unsigned long long)most);
  cr_assert_gt(most, 25 * MIB, "hardly any is kept: %llu bytes", (unsigned long long)most);
}

Test(pool_kept, a_block_that_is_taken_again_no_longer_counts) {
  quay_allocator *pool = NULL;
  CHECK_OK(quay_allocator_open("pool:max=800MiB+cpu", &pool));
  quay_raw_buffer raw, other;
  CHECK_OK(quay_allocator_alloc(pool, 30 * MIB, NULL, &other));
  for (int round = 0; round < 100; round++) {
    CHECK_OK(quay_allocator_alloc(pool, 60 * MIB, NULL, &raw));
    quay_raw_buffer_free(&raw);
    cr_assert_eq(kept_of(pool), 60 * MIB, "round %d", round);
  }
  quay_raw_buffer_free(&other);
  cr_assert_eq(kept_of(pool), 90 * MIB);
  quay_allocator_release(pool);
}

Test(pool_kept, a_block_of_more_than_is_kept_is_free_memory_at_once) {
  quay_allocator *pool = NULL;
  CHECK_OK(quay_allocator_open("pool:max=800MiB+cpu", &pool));
  quay_raw_buffer small, large;
  CHECK_OK(quay_allocator_alloc(pool, 300 * KIB, NULL, &small));
  CHECK_OK(quay_allocator_alloc(pool, 101 * MIB, NULL, &large));
  quay_raw_buffer_free(&small);
  quay_raw_buffer_free(&large);
  cr_assert_eq(kept_of(pool), 300 * KIB);
  quay_allocator_release(pool);
}
