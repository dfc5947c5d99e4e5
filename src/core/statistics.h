/* Counters of an allocator, in per-thread shards that are summed on reading. */
#ifndef QUAY_CORE_STATISTICS_H
#define QUAY_CORE_STATISTICS_H

#include <quay/allocator.h>
#include <stdatomic.h>

#include "core/thread.h"

/* One cache line. Modular: bytes and counts of one shard may be "negative" (freed by another thread
 * than the one that allocated); the sum is right. */
typedef struct quay__stats_shard {
  _Alignas(64) atomic_uint_fast64_t live_bytes;
  atomic_uint_fast64_t alloc_count, free_count, failure_count, error_count;
  atomic_uint_fast64_t high; /* the most that live_bytes was when the peak was looked at */
  atomic_bool due;           /* the next allocation looks at the peak, see below */
} quay__stats_shard;

typedef struct quay__statistics {
  quay__stats_shard *shards; /* QUAY__SHARD_COUNT of them */
  /* The allocator tells (quay__statistics_due) which allocations may raise the peak: of the others
   * only those look that make the thread's own bytes more than they ever were. */
  bool told;
  atomic_uint_fast64_t peak_bytes;
  atomic_uint_fast64_t pending_bytes;
} quay__statistics;

quay_status quay__statistics_init(quay__statistics *statistics);
void quay__statistics_destroy(quay__statistics *statistics);
void quay__statistics_look(quay__statistics *statistics, quay__stats_shard *shard);

/* From this size on an allocation looks at all shards for the peak: against the system calls that
 * it makes, 32 loads are nothing. */
#define QUAY__PEAK_SAMPLE_BYTES ((uint64_t)64 << 10)

/* A shard of one thread needs no locked instruction; the shared last one does. */
static inline void quay__statistics_bump(atomic_uint_fast64_t *counter, uint64_t delta,
                                         bool shared) {
  if (shared) {
    atomic_fetch_add_explicit(counter, delta, memory_order_relaxed);
    return;
  }
  const uint64_t value = atomic_load_explicit(counter, memory_order_relaxed);
  atomic_store_explicit(counter, value + delta, memory_order_relaxed);
}

/* Whether an allocation that has been counted looks at the peak. */
static inline bool quay__statistics_is_due(const quay__statistics *statistics,
                                           const quay__stats_shard *shard, uint64_t size,
                                           bool shared) {
  if (atomic_load_explicit(&shard->due, memory_order_relaxed))
    return true;
  if (size < QUAY__PEAK_SAMPLE_BYTES)
    return false;
  if (!statistics->told || shared)
    return true;
  return (int64_t)(atomic_load_explicit(&shard->live_bytes, memory_order_relaxed) -
                   atomic_load_explicit(&shard->high, memory_order_relaxed)) > 0;
}

/* For a thread that shares its shard, or has none yet. */
void quay__statistics_alloc_shared(quay__statistics *statistics, uint64_t size);
void quay__statistics_free_shared(quay__statistics *statistics, uint64_t size);

static inline void quay__statistics_alloc(quay__statistics *statistics, uint64_t size) {
  const uint32_t index = quay__thread_own_shard();
  if (__builtin_expect(index >= QUAY__SHARD_COUNT - 1, false)) {
    quay__statistics_alloc_shared(statistics, size);
    return;
  }
  quay__stats_shard *const shard = &statistics->shards[index];
  quay__statistics_bump(&shard->live_bytes, size, false);
  quay__statistics_bump(&shard->alloc_count, 1, false);
  if (__builtin_expect(quay__statistics_is_due(statistics, shard, size, false), false))
    quay__statistics_look(statistics, shard);
}

/* The number of frees comes last, and with it all that the thread did: of an allocator that lingers
 * somebody may end it from then on, who has seen by that number that nothing is live. */
static inline void quay__statistics_free(quay__statistics *statistics, uint64_t size) {
  const uint32_t index = quay__thread_own_shard();
  if (__builtin_expect(index >= QUAY__SHARD_COUNT - 1, false)) {
    quay__statistics_free_shared(statistics, size);
    return;
  }
  quay__stats_shard *const shard = &statistics->shards[index];
  quay__statistics_bump(&shard->live_bytes, 0 - size, false);
  const uint64_t count = atomic_load_explicit(&shard->free_count, memory_order_relaxed);
  atomic_store_explicit(&shard->free_count, count + 1, memory_order_release);
}

/* The calling thread's allocation that is under way looks at the peak once it has been counted. */
static inline void quay__statistics_due(quay__statistics *statistics) {
  atomic_store_explicit(&statistics->shards[quay__thread_shard()].due, true, memory_order_relaxed);
}

void quay__statistics_failure(quay__statistics *statistics);
void quay__statistics_error(quay__statistics *statistics);
/* Fills in everything but reserved and largest free bytes. */
void quay__statistics_read(quay__statistics *statistics, quay_stats *out_stats);
/* Live allocations; exact only while no call is under way. */
uint64_t quay__statistics_live_count(const quay__statistics *statistics);

#endif
