/* Locks that survive fork().
 *
 * fork() while another thread holds a lock would leave it held for ever in the child. Every lock of
 * the library is in one list; before a fork all of them are taken, so that nothing is half done,
 * and given back on both sides. They are leaves: nobody who holds one takes another, calls a
 * callback, or calls an allocator, unless lock.c says so. */
#ifndef QUAY_CORE_LOCK_H
#define QUAY_CORE_LOCK_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A lock of an object (a layer, a device). */
typedef struct quay__lock {
  pthread_mutex_t mutex;
  struct quay__lock *previous, *next; /* in lock.c's list */
} quay__lock;

void quay__lock_init(quay__lock *lock);
void quay__lock_destroy(quay__lock *lock);
void quay__lock_acquire(quay__lock *lock);
void quay__lock_release(quay__lock *lock);

/* The process's own locks, in the order in which fork takes them. */
typedef enum quay__global_lock {
  QUAY__LOCK_DEFAULT_ALLOCATOR,
  QUAY__LOCK_REGISTRY,
  QUAY__LOCK_MAPPINGS,
  QUAY__LOCK_CUDA,   /* the driver and the table of its devices */
  QUAY__LOCK_VULKAN, /* the loader and the table of its devices */
  QUAY__LOCK_WORKERS,
  QUAY__LOCK_STAGING, /* its memory and budget */
  QUAY__LOCK_THREADS,
  QUAY__LOCK_LINGERING, /* the list of released allocators that are still in use */
  QUAY__LOCK_LOG,
  QUAY__LOCK_TRACES, /* the list of trace layers; each one's own lock may be taken under it */
  QUAY__GLOBAL_LOCK_COUNT,
} quay__global_lock;

void quay__global_acquire(quay__global_lock which);
void quay__global_release(quay__global_lock which);
/* Waits on `condition` with a global lock held. */
void quay__global_wait(quay__global_lock which, pthread_cond_t *condition);

/* Striped locks: one of a few, chosen by an object's address, for objects too many or too small to
 * have their own. Never hold two. */
void quay__stripe_acquire(const void *object);
void quay__stripe_release(const void *object);
/* Waits, with the stripe held, until somebody calls wake for an object of the stripe: spurious
 * wake-ups are usual. */
void quay__stripe_wait(const void *object);
void quay__stripe_wake(const void *object);
/* The same for a condition of the object's own. */
void quay__stripe_wait_for(const void *object, pthread_cond_t *condition);

/* A lock for a few instructions of what one thread mostly has to itself: an exchange to take, a
 * store to give back. Whoever holds one takes nothing else and calls nothing. */
typedef struct quay__spin {
  atomic_bool held;
} quay__spin;

void quay__spin_wait(quay__spin *spin);

static inline void quay__spin_acquire(quay__spin *spin) {
  if (__builtin_expect(atomic_exchange_explicit(&spin->held, true, memory_order_acquire), 0))
    quay__spin_wait(spin);
}

static inline void quay__spin_release(quay__spin *spin) {
  atomic_store_explicit(&spin->held, false, memory_order_release);
}

/* Spin locks at equal distances, as an object has them for each thread: fork takes them all. */
typedef struct quay__spin_set {
  void *first;
  size_t stride; /* bytes */
  uint32_t count;
  struct quay__spin_set *previous, *next; /* in lock.c's list */
} quay__spin_set;

void quay__spin_set_add(quay__spin_set *set);
void quay__spin_set_remove(quay__spin_set *set);

/* For lifecycle.c alone: pthread_atfork's three calls. */
void quay__lock_before_fork(void);
void quay__lock_after_fork_in_parent(void);
void quay__lock_after_fork_in_child(void);

#endif
