/* Per-thread numbers: a small ordinal for sharded counters, and ids that are never reused. */
#ifndef QUAY_CORE_THREAD_H
#define QUAY_CORE_THREAD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Shards of a counter. Threads 0 to QUAY__SHARD_COUNT - 2 have a shard of their own; the rest share
 * the last one. */
#define QUAY__SHARD_COUNT 32u

/* What is looked at on the way of each allocation: together, since in a library the address of a
 * thread-local variable is found by a call. */
typedef struct quay__thread_near {
  uint32_t shard_plus_one; /* 0: not given a number yet */
  uint32_t shields;        /* see error.h */
  /* The return address of the public function that is allocating, for the track layer; and the
   * place that quay_track_place() named. */
  const void *caller;
  const char *file;
  int line;
} quay__thread_near;
extern _Thread_local quay__thread_near quay__near;

uint32_t quay__thread_shard_slow(void);

/* The calling thread's shard, less than QUAY__SHARD_COUNT. It is given back at the thread's end. */
static inline uint32_t quay__thread_shard(void) {
  const uint32_t plus_one = quay__near.shard_plus_one;
  return plus_one != 0 ? plus_one - 1 : quay__thread_shard_slow();
}

/* The calling thread's, if it has one of its own already; else no number of one: not less than
 * QUAY__SHARD_COUNT - 1. */
static inline uint32_t quay__thread_own_shard(void) {
  return quay__near.shard_plus_one - 1;
}

/* Shards below this number were a thread's own at some time; the shared last one is not among them.
 */
extern atomic_uint quay__thread_shards_high;
static inline uint32_t quay__thread_shards_used(void) {
  return atomic_load_explicit(&quay__thread_shards_high, memory_order_acquire);
}

/* Whether this thread, or one that waits for it, holds staging memory: then it must not wait for
 * more of it. A job hands this on to its helpers. */
extern _Thread_local bool quay__thread_in_staging;

/* Whether what this thread reads is a piece of a large range of a file that mostly has to come from
 * the disk. */
extern _Thread_local bool quay__thread_reads_disk;

/* Whether what this thread submits to a stream is a piece of a staged copy: it touches nothing that
 * another piece on the device's streams touches, unless the host has waited for that one. So the
 * backend need not keep them in order among each other. */
extern _Thread_local bool quay__thread_submits_piece;

/* For lifecycle.c alone, with every lock held. */
void quay__thread_after_fork_in_child(void);

/* Tells the calling thread from all others that are there at the same time. */
static inline const void *quay__thread_self(void) {
  return &quay__near;
}

/* A number that nobody has had: above 0, unique in the process, in no particular order. */
uint64_t quay__next_id(void);

/* At the start of each public function that may allocate. */
#define QUAY__MARK_CALLER() ((void)(quay__near.caller = __builtin_return_address(0)))

#endif
