/* Start, fork, exit and shutdown of what the library keeps for the process. */
#include "core/lifecycle.h"

#include <pthread.h>
#include <quay/allocator.h>
#include <quay/stream.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "core/allocator_impl.h"
#include "core/default_allocator.h"
#include "core/error.h"
#include "core/lock.h"
#include "core/pair_path.h"
#include "core/staging_budget.h"
#include "core/staging_memory.h"
#include "core/thread.h"
#include "core/workers.h"

static pthread_once_t begun = PTHREAD_ONCE_INIT;
static atomic_int_fast64_t live[QUAY__LIVE_KIND_COUNT];

uint32_t quay__fork_generation;

static void before_fork(void) {
  quay__lock_before_fork();
}

static void after_fork_in_parent(void) {
  quay__lock_after_fork_in_parent();
}

static void after_fork_in_child(void) {
  quay__fork_generation++;
  quay__log_after_fork_in_child();
  quay__workers_after_fork_in_child();
  quay__thread_after_fork_in_child();
  quay__staging_after_fork_in_child();
  quay__pair_after_fork_in_child();
  quay__staging_memory_after_fork_in_child();
  quay__lock_after_fork_in_child();
}

static void at_exit(void) {
  quay__workers_stop();
  quay__traces_flush_at_exit();
}

static void begin(void) {
  /* Both fail only for want of memory at the start of the process; what is lost then is the safety
   * of fork and the tidy end of idle threads. */
  if (pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child) != 0) {
    quay_log(QUAY_LOG_WARNING, "no memory to register fork handlers: do not use Quay after fork");
  }
  if (atexit(at_exit) != 0) {
    quay_log(QUAY_LOG_WARNING,
             "no memory to register an exit handler: threads end with the process");
  }
}

void quay__lifecycle_begin(void) {
  pthread_once(&begun, begin);
}

void quay__live_add(quay__live_kind kind, int64_t delta) {
  atomic_fetch_add_explicit(&live[kind], delta, memory_order_relaxed);
}

int64_t quay__live_get(quay__live_kind kind) {
  return atomic_load_explicit(&live[kind], memory_order_relaxed);
}

/* The allocators of a chain that nobody but the library refers to, which does so `own` times. */
static int64_t own_allocators(quay_allocator *outermost, unsigned own) {
  if (outermost == NULL ||
      atomic_load_explicit(&outermost->references, memory_order_relaxed) != own) {
    return 0;
  }
  int64_t count = 0;
  for (const quay_allocator *a = outermost; a != NULL; a = a->inner) {
    count++;
    if (a->inner != NULL &&
        atomic_load_explicit(&a->inner->references, memory_order_relaxed) != 1) {
      break;
    }
  }
  return count;
}

quay_status quay_shutdown(void) {
  QUAY_TRY(quay_collect(NULL)); /* storages whose device work is done are nobody's any more */
  quay__allocators_end_lingering();
  const int64_t storages = quay__live_get(QUAY__LIVE_STORAGES);
  const int64_t streams = quay__live_get(QUAY__LIVE_STREAMS);
  const int64_t accesses = quay__live_get(QUAY__LIVE_ACCESSES);
  quay__default_allocators kept = quay__default_allocators_peek();
  int64_t allocators = quay__live_get(QUAY__LIVE_ALLOCATORS);
  const bool one = kept.environment == kept.set;
  allocators -= own_allocators(kept.set, one ? 2 : 1);
  if (!one)
    allocators -= own_allocators(kept.environment, 1);
  allocators -= own_allocators(quay__mmap_file_allocator_peek(), 1);
  if (storages > 0 || streams > 0 || accesses > 0 || allocators > 0) {
    return quay__fail(QUAY_STATUS_BUSY,
                      "quay_shutdown: still in use are %lld allocators, %lld storages of buffers, "
                      "%lld streams and %lld accesses; release them first",
                      (long long)allocators, (long long)storages, (long long)streams,
                      (long long)accesses);
  }
  quay__default_allocators_drop();
  quay__mmap_file_allocator_drop();
  quay__workers_stop();
  (void)quay__staging_memory_trim();
  quay__cuda_shutdown();
  quay__vulkan_shutdown();
  return QUAY_OK;
}
