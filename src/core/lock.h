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

#include "core/path.h"

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
  QUAY__LOCK_DISKS,  /* what is known of them */
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

/* Between these two no fork begins; it waits, and whoever comes then waits for it. For calls during
 * which a device writes to pages of the process past the kernel's sight: where such a page is
 * copied for a child meanwhile, older kernels let the parent keep the copy, without the bytes. Any
 * number of threads at a time; nothing else is waited for in between. */
void quay__fork_hold(void);
void quay__fork_let(void);

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
 * store to give back. Whoever holds one takes nothing else and calls nothing.
 *
 * Its thread can do even without the exchange: it enters by a store, which leaves it to others to
 * see that store in time. They pause the lock, and make all threads pass a memory barrier: who had
 * entered before is seen, and waited for; who comes later sees that it is paused. Where the system
 * has no such barrier, all locks are paused for good. */
typedef struct quay__spin {
  atomic_bool held;
  atomic_bool entered;
  atomic_uint pauses; /* those who keep its thread from entering */
} quay__spin;

void quay__spin_wait(quay__spin *spin);

static inline void quay__spin_acquire(quay__spin *spin) {
  if (__builtin_expect(atomic_exchange_explicit(&spin->held, true, memory_order_acquire), 0))
    quay__spin_wait(spin);
}

static inline void quay__spin_release(quay__spin *spin) {
  atomic_store_explicit(&spin->held, false, memory_order_release);
}

/* Of its thread alone. False: it is paused, and what is done must bear others that hold or pause it
 * at the same time. Entering does not keep others from holding it. */
QUAY__ALWAYS static inline bool quay__spin_enter(quay__spin *spin) {
  atomic_store_explicit(&spin->entered, true, memory_order_relaxed);
  atomic_signal_fence(memory_order_seq_cst); /* the processor's fence is the others' */
  if (__builtin_expect(atomic_load_explicit(&spin->pauses, memory_order_acquire) == 0, true))
    return true;
  atomic_store_explicit(&spin->entered, false, memory_order_release);
  return false;
}

static inline void quay__spin_leave(quay__spin *spin) {
  atomic_store_explicit(&spin->entered, false, memory_order_release);
}

/* Spin locks at equal distances, as an object has them for each thread: fork takes them all. */
typedef struct quay__spin_set {
  void *first;
  size_t stride;                          /* bytes */
  uint32_t count;                         /* at most 32 */
  struct quay__spin_set *previous, *next; /* in lock.c's list */
} quay__spin_set;

void quay__spin_set_add(quay__spin_set *set);
void quay__spin_set_remove(quay__spin_set *set);

/* Bit i stands for lock i: waits until no thread has entered one of `wanted`, and keeps them from
 * entering until they are resumed. */
void quay__spin_set_pause(const quay__spin_set *set, uint32_t wanted);
void quay__spin_set_resume(const quay__spin_set *set, uint32_t paused);

/* For lifecycle.c alone: pthread_atfork's three calls. */
void quay__lock_before_fork(void);
void quay__lock_after_fork_in_parent(void);
void quay__lock_after_fork_in_child(void);

#endif
