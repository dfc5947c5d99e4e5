/* The default allocator: each thread's stack of pushes, the process's own, the environment's. */
#include "core/default_allocator.h"

#include <pthread.h>
#include <stdatomic.h>

#include "core/environment.h"
#include "core/error.h"
#include "core/lock.h"
#include "core/os.h"

/* Guarded by QUAY__LOCK_DEFAULT_ALLOCATOR. */
static quay__default_allocators kept;

/* One push; the innermost is first. */
typedef struct pushed {
  struct pushed *outer;
  quay_allocator *allocator;
} pushed;

static _Thread_local pushed *innermost;

/* Gives back what a thread leaves pushed. */
static pthread_key_t thread_end_key;
static bool thread_end_made;
static pthread_once_t thread_end_once = PTHREAD_ONCE_INIT;

static void pop_one(void) {
  pushed *const top = innermost;
  innermost = top->outer;
  quay_allocator_release(top->allocator);
  quay__os_free(top);
}

static void at_thread_end(void *unused) {
  (void)unused;
  while (innermost != NULL)
    pop_one();
}

static void make_thread_end(void) {
  thread_end_made = pthread_key_create(&thread_end_key, at_thread_end) == 0;
}

quay_status quay_default_allocator_push(quay_allocator *allocator) {
  if (allocator == NULL) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT,
                      "quay_default_allocator_push: allocator is NULL; push the one that is to be "
                      "the default");
  }
  pthread_once(&thread_end_once, make_thread_end);
  pushed *const entry = quay__os_malloc(sizeof *entry);
  if (entry == NULL || !thread_end_made || pthread_setspecific(thread_end_key, entry) != 0) {
    quay__os_free(entry);
    return quay__fail_out_of_memory(sizeof *entry, "a pushed default allocator");
  }
  entry->outer = innermost;
  entry->allocator = quay_allocator_retain(allocator);
  innermost = entry;
  return QUAY_OK;
}

void quay_default_allocator_pop(void) {
  if (innermost == NULL) {
    quay_log(QUAY_LOG_ERROR, "quay_default_allocator_pop: this thread has pushed none");
    return;
  }
  pop_one();
}

void quay_default_allocator_set(quay_allocator *allocator) {
  quay_allocator_retain(allocator);
  quay__global_acquire(QUAY__LOCK_DEFAULT_ALLOCATOR);
  quay_allocator *const old = kept.set;
  kept.set = allocator;
  quay__global_release(QUAY__LOCK_DEFAULT_ALLOCATOR);
  quay_allocator_release(old);
}

/* Opens what the environment says, without the lock: a backend may take its time. */
static quay_status open_environment(quay_allocator **out_allocator) {
  const char *const spec = quay__environment_backend();
  if (spec == NULL)
    return quay_allocator_open("cpu", out_allocator);
  const quay_status status = quay_allocator_open(spec, out_allocator);
  if (status == QUAY_OK)
    return QUAY_OK;
  return quay__error_append(" (from the environment variable QUAY_BACKEND)");
}

static quay_status get_environment(quay_allocator **out_allocator) {
  quay_allocator *opened;
  QUAY_TRY(open_environment(&opened));
  /* Of two threads that open it at the same time, the first one's is kept. */
  quay__global_acquire(QUAY__LOCK_DEFAULT_ALLOCATOR);
  if (kept.environment == NULL)
    kept.environment = quay_allocator_retain(opened);
  *out_allocator = quay_allocator_retain(kept.environment);
  quay__global_release(QUAY__LOCK_DEFAULT_ALLOCATOR);
  quay_allocator_release(opened);
  return QUAY_OK;
}

quay_status quay_default_allocator_get(quay_allocator **out_allocator) {
  if (out_allocator == NULL) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT,
                      "quay_default_allocator_get: out_allocator is NULL");
  }
  *out_allocator = NULL;
  if (innermost != NULL) {
    *out_allocator = quay_allocator_retain(innermost->allocator);
    return QUAY_OK;
  }
  quay__global_acquire(QUAY__LOCK_DEFAULT_ALLOCATOR);
  quay_allocator *const found = kept.set != NULL ? kept.set : kept.environment;
  *out_allocator = quay_allocator_retain(found);
  quay__global_release(QUAY__LOCK_DEFAULT_ALLOCATOR);
  return found != NULL ? QUAY_OK : get_environment(out_allocator);
}

quay__default_allocators quay__default_allocators_peek(void) {
  quay__global_acquire(QUAY__LOCK_DEFAULT_ALLOCATOR);
  const quay__default_allocators copy = kept;
  quay__global_release(QUAY__LOCK_DEFAULT_ALLOCATOR);
  return copy;
}

void quay__default_allocators_drop(void) {
  quay__global_acquire(QUAY__LOCK_DEFAULT_ALLOCATOR);
  const quay__default_allocators old = kept;
  kept = (quay__default_allocators){.set = NULL, .environment = NULL};
  quay__global_release(QUAY__LOCK_DEFAULT_ALLOCATOR);
  quay_allocator_release(old.set);
  quay_allocator_release(old.environment);
}
