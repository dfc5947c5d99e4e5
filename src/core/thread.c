/* Per-thread numbers. */
#include "core/thread.h"

#include <pthread.h>
#include <quay/layers.h>
#include <stdatomic.h>

#include "core/lock.h"

_Thread_local quay__thread_near quay__near;
atomic_uint quay__thread_shards_high;
_Thread_local bool quay__thread_in_staging;
_Thread_local bool quay__thread_reads_disk;
_Thread_local bool quay__thread_submits_piece;

/* Bit i: shard i belongs to a living thread. Guarded by QUAY__LOCK_THREADS. The last shard is
 * everybody's and never taken. */
static uint32_t taken;
static pthread_key_t key;
static bool key_made;
static pthread_once_t key_once = PTHREAD_ONCE_INIT;

/* The lock orders what a dying thread wrote to its shard before what the next owner writes. */
static void give_back(void *shard_plus_one) {
  const uint32_t shard = (uint32_t)(uintptr_t)shard_plus_one - 1;
  /* Other destructors of this thread may still count: in the shared shard. */
  quay__near.shard_plus_one = QUAY__SHARD_COUNT;
  quay__global_acquire(QUAY__LOCK_THREADS);
  taken &= ~(1u << shard);
  quay__global_release(QUAY__LOCK_THREADS);
}

static void make_key(void) {
  key_made = pthread_key_create(&key, give_back) == 0;
}

/* A library may be unloaded before the threads end that have used it: then what their ends would
 * call is not there any more. */
__attribute__((destructor)) static void drop_key(void) {
  quay__global_acquire(QUAY__LOCK_THREADS);
  if (key_made)
    pthread_key_delete(key);
  key_made = false;
  quay__global_release(QUAY__LOCK_THREADS);
}

uint32_t quay__thread_shard_slow(void) {
  pthread_once(&key_once, make_key);
  uint32_t shard = QUAY__SHARD_COUNT - 1;
  quay__global_acquire(QUAY__LOCK_THREADS);
  const uint32_t free_shards = ~taken & ~(1u << (QUAY__SHARD_COUNT - 1));
  if (key_made && free_shards != 0) {
    shard = (uint32_t)__builtin_ctz(free_shards);
    if (pthread_setspecific(key, (void *)(uintptr_t)(shard + 1)) == 0) {
      taken |= 1u << shard;
      if (shard + 1 > atomic_load_explicit(&quay__thread_shards_high, memory_order_relaxed))
        atomic_store_explicit(&quay__thread_shards_high, shard + 1, memory_order_release);
    } else {
      shard = QUAY__SHARD_COUNT - 1;
    }
  }
  quay__global_release(QUAY__LOCK_THREADS);
  quay__near.shard_plus_one = shard + 1;
  return shard;
}

void quay__thread_after_fork_in_child(void) {
  /* Called with every lock held. Only this thread is left. */
  const uint32_t own = quay__near.shard_plus_one;
  taken = own != 0 && own < QUAY__SHARD_COUNT ? 1u << (own - 1) : 0;
}

uint64_t quay__next_id(void) {
  /* Each thread takes a block of numbers at a time. */
  enum {
    BLOCK = 4096
  };
  static atomic_uint_fast64_t next_block = 1;
  static _Thread_local uint64_t next;
  static _Thread_local uint64_t left;
  if (left == 0) {
    next = atomic_fetch_add_explicit(&next_block, BLOCK, memory_order_relaxed);
    left = BLOCK;
  }
  left--;
  return next++;
}

void quay_track_place(const char *file, int line) {
  quay__near.file = file;
  quay__near.line = file != NULL ? line : 0;
}
