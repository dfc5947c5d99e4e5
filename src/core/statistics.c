/* Counters of an allocator, in per-thread shards. */
#include "core/statistics.h"

#include <string.h>

#include "core/error.h"
#include "core/os.h"

quay_status quay__statistics_init(quay__statistics *statistics) {
  const size_t size = QUAY__SHARD_COUNT * sizeof(quay__stats_shard);
  statistics->shards = quay__os_aligned_alloc(_Alignof(quay__stats_shard), size);
  if (statistics->shards == NULL)
    return quay__fail_out_of_memory(size, "an allocator's counters");
  memset(statistics->shards, 0, size);
  atomic_init(&statistics->peak_bytes, 0);
  atomic_init(&statistics->pending_bytes, 0);
  return QUAY_OK;
}

void quay__statistics_destroy(quay__statistics *statistics) {
  quay__os_free(statistics->shards);
  statistics->shards = NULL;
}

static uint64_t sum_live(const quay__statistics *statistics) {
  uint64_t sum = 0;
  /* Few shards are ever used: this is on the way of every large allocation. */
  const uint32_t used = quay__thread_shards_used();
  for (uint32_t i = 0; i < used; i++)
    sum += atomic_load_explicit(&statistics->shards[i].live_bytes, memory_order_relaxed);
  sum += atomic_load_explicit(&statistics->shards[QUAY__SHARD_COUNT - 1].live_bytes,
                              memory_order_relaxed);
  /* Read while others count, the sum can be off by their calls, below zero, too. */
  return (int64_t)sum < 0 ? 0 : sum;
}

static uint64_t raise_peak(quay__statistics *statistics) {
  const uint64_t now = sum_live(statistics);
  uint_fast64_t peak = atomic_load_explicit(&statistics->peak_bytes, memory_order_relaxed);
  while (now > peak &&
         !atomic_compare_exchange_weak_explicit(&statistics->peak_bytes, &peak, now,
                                                memory_order_relaxed, memory_order_relaxed)) {
  }
  return now;
}

/* Of two threads that count at the same time, the one that comes last past the fence sees what both
 * have counted. The mark of the shared shard stays: who set it can't tell who looks for it. */
void quay__statistics_look(quay__statistics *statistics, quay__stats_shard *shard) {
  const uint64_t live = atomic_load_explicit(&shard->live_bytes, memory_order_relaxed);
  const uint64_t high = atomic_load_explicit(&shard->high, memory_order_relaxed);
  if ((int64_t)(live - high) > 0)
    atomic_store_explicit(&shard->high, live, memory_order_relaxed);
  if (shard != &statistics->shards[QUAY__SHARD_COUNT - 1])
    atomic_store_explicit(&shard->due, false, memory_order_relaxed);
  atomic_thread_fence(memory_order_seq_cst);
  (void)raise_peak(statistics);
}

void quay__statistics_alloc_shared(quay__statistics *statistics, uint64_t size) {
  const uint32_t index = quay__thread_shard();
  if (index < QUAY__SHARD_COUNT - 1) {
    quay__statistics_alloc(statistics, size);
    return;
  }
  quay__stats_shard *const shard = &statistics->shards[index];
  quay__statistics_bump(&shard->live_bytes, size, true);
  quay__statistics_bump(&shard->alloc_count, 1, true);
  if (quay__statistics_is_due(statistics, shard, size, true))
    quay__statistics_look(statistics, shard);
}

void quay__statistics_free_shared(quay__statistics *statistics, uint64_t size) {
  const uint32_t index = quay__thread_shard();
  if (index < QUAY__SHARD_COUNT - 1) {
    quay__statistics_free(statistics, size);
    return;
  }
  quay__stats_shard *const shard = &statistics->shards[index];
  quay__statistics_bump(&shard->live_bytes, 0 - size, true);
  atomic_fetch_add_explicit(&shard->free_count, 1, memory_order_release);
}

void quay__statistics_failure(quay__statistics *statistics) {
  const uint32_t index = quay__thread_shard();
  quay__statistics_bump(&statistics->shards[index].failure_count, 1,
                        index == QUAY__SHARD_COUNT - 1);
}

void quay__statistics_error(quay__statistics *statistics) {
  const uint32_t index = quay__thread_shard();
  quay__statistics_bump(&statistics->shards[index].error_count, 1, index == QUAY__SHARD_COUNT - 1);
}

uint64_t quay__statistics_live_count(const quay__statistics *statistics) {
  uint64_t count = 0;
  for (uint32_t i = 0; i < QUAY__SHARD_COUNT; i++) {
    const quay__stats_shard *const shard = &statistics->shards[i];
    count += atomic_load_explicit(&shard->alloc_count, memory_order_relaxed) -
             atomic_load_explicit(&shard->free_count, memory_order_acquire);
  }
  return (int64_t)count < 0 ? 0 : count;
}

void quay__statistics_read(quay__statistics *statistics, quay_stats *out_stats) {
  memset(out_stats, 0, sizeof *out_stats);
  for (uint32_t i = 0; i < QUAY__SHARD_COUNT; i++) {
    const quay__stats_shard *const shard = &statistics->shards[i];
    out_stats->alloc_count += atomic_load_explicit(&shard->alloc_count, memory_order_relaxed);
    out_stats->free_count += atomic_load_explicit(&shard->free_count, memory_order_relaxed);
    out_stats->failure_count += atomic_load_explicit(&shard->failure_count, memory_order_relaxed);
    out_stats->error_count += atomic_load_explicit(&shard->error_count, memory_order_relaxed);
  }
  const uint64_t live = out_stats->alloc_count - out_stats->free_count;
  out_stats->live_count = (int64_t)live < 0 ? 0 : live;
  out_stats->live_bytes = raise_peak(statistics);
  out_stats->peak_bytes = atomic_load_explicit(&statistics->peak_bytes, memory_order_relaxed);
  out_stats->pending_bytes = atomic_load_explicit(&statistics->pending_bytes, memory_order_relaxed);
}
