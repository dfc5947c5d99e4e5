/* Locks that survive fork(). The order in which a fork takes them: the gate of those whom it must
 * not interrupt, who hold no lock, then the process's own by number, the
 * stripes by number, then the objects' in their list, then the spin locks, which are held by nobody
 * who waits for anything. */
#include "core/lock.h"

#include <stdint.h>

#include "core/lifecycle.h"
#include "core/os.h"

/* Few enough that a fork, which holds all locks, stays below the 64 that ThreadSanitizer can follow
 * in one thread. */
enum {
  STRIPE_COUNT = 32
};

typedef struct stripe {
  pthread_mutex_t mutex;
  pthread_cond_t changed;
} stripe;

/* Variadic, since the initialisers have commas of their own. */
#define REPEAT4(...)       __VA_ARGS__, __VA_ARGS__, __VA_ARGS__, __VA_ARGS__
#define REPEAT32(...)      REPEAT4(REPEAT_AGAIN4(__VA_ARGS__, __VA_ARGS__))
#define REPEAT_AGAIN4(...) __VA_ARGS__, __VA_ARGS__, __VA_ARGS__, __VA_ARGS__

/* Apart, so that threads that take one do not disturb those that take its neighbour. */
typedef struct apart {
  _Alignas(64) pthread_mutex_t mutex;
} apart;

static apart globals[QUAY__GLOBAL_LOCK_COUNT] = {
    [QUAY__LOCK_DEFAULT_ALLOCATOR] = {PTHREAD_MUTEX_INITIALIZER},
    [QUAY__LOCK_REGISTRY] = {PTHREAD_MUTEX_INITIALIZER},
    [QUAY__LOCK_MAPPINGS] = {PTHREAD_MUTEX_INITIALIZER},
    [QUAY__LOCK_DISKS] = {PTHREAD_MUTEX_INITIALIZER},
    [QUAY__LOCK_CUDA] = {PTHREAD_MUTEX_INITIALIZER},
    [QUAY__LOCK_VULKAN] = {PTHREAD_MUTEX_INITIALIZER},
    [QUAY__LOCK_WORKERS] = {PTHREAD_MUTEX_INITIALIZER},
    [QUAY__LOCK_STAGING] = {PTHREAD_MUTEX_INITIALIZER},
    [QUAY__LOCK_THREADS] = {PTHREAD_MUTEX_INITIALIZER},
    [QUAY__LOCK_LINGERING] = {PTHREAD_MUTEX_INITIALIZER},
    [QUAY__LOCK_LOG] = {PTHREAD_MUTEX_INITIALIZER},
    [QUAY__LOCK_TRACES] = {PTHREAD_MUTEX_INITIALIZER},
};

static stripe stripes[STRIPE_COUNT] = {
    REPEAT32({PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER})};

/* Of fork, and of whom it must not interrupt. */
static struct {
  pthread_mutex_t mutex;
  pthread_cond_t let, forked;
  uint32_t held, forking; /* threads */
} gate = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0};

/* The objects' locks; `list_mutex` guards the list and is taken before any of them. */
static pthread_mutex_t list_mutex = PTHREAD_MUTEX_INITIALIZER;
static quay__lock *first;
static quay__spin_set *first_spins;

void quay__lock_init(quay__lock *lock) {
  pthread_mutex_init(&lock->mutex, NULL);
  pthread_mutex_lock(&list_mutex);
  lock->previous = NULL;
  lock->next = first;
  if (first != NULL)
    first->previous = lock;
  first = lock;
  pthread_mutex_unlock(&list_mutex);
  quay__lifecycle_begin();
}

void quay__lock_destroy(quay__lock *lock) {
  pthread_mutex_lock(&list_mutex);
  if (lock->previous != NULL)
    lock->previous->next = lock->next;
  if (lock->previous == NULL)
    first = lock->next;
  if (lock->next != NULL)
    lock->next->previous = lock->previous;
  pthread_mutex_unlock(&list_mutex);
  pthread_mutex_destroy(&lock->mutex);
}

void quay__lock_acquire(quay__lock *lock) {
  pthread_mutex_lock(&lock->mutex);
}

void quay__lock_release(quay__lock *lock) {
  pthread_mutex_unlock(&lock->mutex);
}

void quay__spin_wait(quay__spin *spin) {
  /* The holder is about to give it back, unless it lost the processor. */
  enum {
    LOOKS = 100
  };
  do {
    for (int i = 0; i < LOOKS && atomic_load_explicit(&spin->held, memory_order_relaxed); i++) {
    }
    if (atomic_load_explicit(&spin->held, memory_order_relaxed))
      quay__os_yield();
  } while (atomic_exchange_explicit(&spin->held, true, memory_order_acquire));
}

static quay__spin *spin_of(const quay__spin_set *set, uint32_t index) {
  return (quay__spin *)(void *)((char *)set->first + index * set->stride);
}

/* Whether there is a barrier for others' threads, asked once. */
static bool has_barrier(void) {
  static atomic_int known; /* 0: not yet */
  int value = atomic_load_explicit(&known, memory_order_relaxed);
  if (value != 0)
    return value == 1;
  /* The first answer counts, also where a sandbox comes in between. */
  const int answer = quay__os_barrier() == 0 ? 1 : 2;
  return atomic_compare_exchange_strong_explicit(&known, &value, answer, memory_order_relaxed,
                                                 memory_order_relaxed)
             ? answer == 1
             : value == 1;
}

/* Nobody has entered it, holds it or waits for it. */
static void reset_spin(quay__spin *spin) {
  atomic_store_explicit(&spin->entered, false, memory_order_relaxed);
  atomic_store_explicit(&spin->pauses, has_barrier() ? 0 : 1, memory_order_relaxed);
  quay__spin_release(spin);
}

/* Where a barrier is refused that was there before, in a sandbox that was entered meanwhile: what
 * another processor has stored is seen by all long before this is over. */
static void wait_for_stores(void) {
  const uint64_t end = quay__os_nanoseconds() + 100000;
  atomic_thread_fence(memory_order_seq_cst);
  while (quay__os_nanoseconds() < end)
    quay__os_yield();
}

void quay__spin_set_pause(const quay__spin_set *set, uint32_t wanted) {
  if (wanted == 0 || !has_barrier())
    return;
  for (uint32_t i = 0; i < set->count; i++) {
    if ((wanted >> i & 1) != 0)
      atomic_fetch_add_explicit(&spin_of(set, i)->pauses, 1, memory_order_relaxed);
  }
  if (quay__os_barrier() != 0)
    wait_for_stores();
  for (uint32_t i = 0; i < set->count; i++) {
    while ((wanted >> i & 1) != 0 &&
           atomic_load_explicit(&spin_of(set, i)->entered, memory_order_acquire))
      quay__os_yield();
  }
}

void quay__spin_set_resume(const quay__spin_set *set, uint32_t paused) {
  for (uint32_t i = 0; i < set->count && has_barrier(); i++) {
    if ((paused >> i & 1) != 0)
      atomic_fetch_sub_explicit(&spin_of(set, i)->pauses, 1, memory_order_release);
  }
}

void quay__spin_set_add(quay__spin_set *set) {
  for (uint32_t i = 0; i < set->count; i++)
    reset_spin(spin_of(set, i));
  pthread_mutex_lock(&list_mutex);
  set->previous = NULL;
  set->next = first_spins;
  if (first_spins != NULL)
    first_spins->previous = set;
  first_spins = set;
  pthread_mutex_unlock(&list_mutex);
  quay__lifecycle_begin();
}

void quay__spin_set_remove(quay__spin_set *set) {
  pthread_mutex_lock(&list_mutex);
  if (set->previous != NULL)
    set->previous->next = set->next;
  if (set->previous == NULL)
    first_spins = set->next;
  if (set->next != NULL)
    set->next->previous = set->previous;
  pthread_mutex_unlock(&list_mutex);
}

static void for_all_spins(void (*function)(quay__spin *spin)) {
  for (const quay__spin_set *set = first_spins; set != NULL; set = set->next) {
    for (uint32_t i = 0; i < set->count; i++)
      function(spin_of(set, i));
  }
}

void quay__global_acquire(quay__global_lock which) {
  pthread_mutex_lock(&globals[which].mutex);
}

void quay__global_release(quay__global_lock which) {
  pthread_mutex_unlock(&globals[which].mutex);
}

void quay__global_wait(quay__global_lock which, pthread_cond_t *condition) {
  pthread_cond_wait(condition, &globals[which].mutex);
}

static stripe *stripe_of(const void *object) {
  /* Fibonacci hashing: addresses differ in their middle bits. */
  const uint64_t hash = ((uint64_t)(uintptr_t)object >> 4) * 0x9e3779b97f4a7c15u;
  return &stripes[hash >> 59];
}

void quay__stripe_acquire(const void *object) {
  pthread_mutex_lock(&stripe_of(object)->mutex);
}

void quay__stripe_release(const void *object) {
  pthread_mutex_unlock(&stripe_of(object)->mutex);
}

void quay__stripe_wait(const void *object) {
  stripe *const own = stripe_of(object);
  pthread_cond_wait(&own->changed, &own->mutex);
}

void quay__stripe_wait_for(const void *object, pthread_cond_t *condition) {
  pthread_cond_wait(condition, &stripe_of(object)->mutex);
}

void quay__stripe_wake(const void *object) {
  pthread_cond_broadcast(&stripe_of(object)->changed);
}

void quay__fork_hold(void) {
  pthread_mutex_lock(&gate.mutex);
  while (gate.forking != 0)
    pthread_cond_wait(&gate.forked, &gate.mutex);
  gate.held++;
  pthread_mutex_unlock(&gate.mutex);
}

void quay__fork_let(void) {
  pthread_mutex_lock(&gate.mutex);
  if (--gate.held == 0 && gate.forking != 0)
    pthread_cond_broadcast(&gate.let);
  pthread_mutex_unlock(&gate.mutex);
}

static void close_gate(void) {
  pthread_mutex_lock(&gate.mutex);
  gate.forking++;
  while (gate.held != 0)
    pthread_cond_wait(&gate.let, &gate.mutex);
}

static void open_gate(void) {
  if (--gate.forking == 0)
    pthread_cond_broadcast(&gate.forked);
  pthread_mutex_unlock(&gate.mutex);
}

void quay__lock_before_fork(void) {
  close_gate();
  for (int i = 0; i < QUAY__GLOBAL_LOCK_COUNT; i++)
    pthread_mutex_lock(&globals[i].mutex);
  for (int i = 0; i < STRIPE_COUNT; i++)
    pthread_mutex_lock(&stripes[i].mutex);
  pthread_mutex_lock(&list_mutex);
  for (quay__lock *lock = first; lock != NULL; lock = lock->next)
    pthread_mutex_lock(&lock->mutex);
  for_all_spins(quay__spin_acquire);
}

static void release_all(void) {
  for (quay__lock *lock = first; lock != NULL; lock = lock->next) {
    pthread_mutex_unlock(&lock->mutex);
  }
  pthread_mutex_unlock(&list_mutex);
  for (int i = STRIPE_COUNT - 1; i >= 0; i--)
    pthread_mutex_unlock(&stripes[i].mutex);
  for (int i = QUAY__GLOBAL_LOCK_COUNT - 1; i >= 0; i--)
    pthread_mutex_unlock(&globals[i].mutex);
  open_gate();
}

void quay__lock_after_fork_in_parent(void) {
  for_all_spins(quay__spin_release);
  release_all();
}

void quay__lock_after_fork_in_child(void) {
  /* Waiters of the parent's other threads are not here: a condition that counts them would never
   * be free of them. */
  for (int i = 0; i < STRIPE_COUNT; i++) {
    stripes[i].changed = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
  }
  gate.let = gate.forked = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
  gate.forking = 1; /* others that were about to are not here */
  for_all_spins(reset_spin);
  release_all();
}
