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
} quay__stats_shard;

typedef struct quay__statistics {
  quay__stats_shard *shards; /* QUAY__SHARD_COUNT of them */
  atomic_uint_fast64_t peak_bytes;
  atomic_uint_fast64_t pending_bytes;
} quay__statistics;

quay_status quay__statistics_init(quay__statistics *statistics);
void quay__statistics_destroy(quay__statistics *statistics);
void quay__statistics_alloc(quay__statistics *statistics, uint64_t size);
void quay__statistics_free(quay__statistics *statistics, uint64_t size);
void quay__statistics_failure(quay__statistics *statistics);
void quay__statistics_error(quay__statistics *statistics);
/* Fills in everything but reserved and largest free bytes. */
void quay__statistics_read(quay__statistics *statistics, quay_stats *out_stats);
/* Live allocations; exact only while no call is under way. */
uint64_t quay__statistics_live_count(const quay__statistics *statistics);

#endif
