/* The process's budget of host memory for staging. First come, first served: a large wish is not
 * passed over for ever by small ones. */
#include "core/staging_budget.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "core/checked.h"
#include "core/lifecycle.h"
#include "core/lock.h"

/* Guarded by QUAY__LOCK_STAGING, but that `waiting` is also read without it. */
static uint64_t held_bytes;
static uint64_t next_ticket, next_served; /* the line: tickets [next_served, next_ticket) */
static atomic_uint_fast64_t waiting;      /* how many they are */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

static atomic_uint copies; /* that are under way */

/* Devices that have some; more than there is room for are not told apart. */
static struct {
  const quay_device *device;
  uint32_t copies; /* 0: the entry is free */
} busy[8];
static atomic_uint devices; /* entries that are not */

/* Of `held_bytes` and `copies`, the calling thread's. */
static _Thread_local uint64_t own_bytes;
static _Thread_local uint32_t own_copies;

static bool has_room(uint64_t bytes, uint64_t budget) {
  return held_bytes == 0 || bytes <= budget - quay__min(held_bytes, budget);
}

static void take(uint64_t bytes) {
  held_bytes += bytes;
  own_bytes += bytes;
}

static void wait_in_line(uint64_t bytes, uint64_t budget) {
  const uint64_t ticket = next_ticket++;
  atomic_fetch_add_explicit(&waiting, 1, memory_order_relaxed);
  while (next_served != ticket || !has_room(bytes, budget))
    quay__global_wait(QUAY__LOCK_STAGING, &changed);
  next_served++;
  atomic_fetch_sub_explicit(&waiting, 1, memory_order_relaxed);
  /* There may be room for the next one, too. */
  pthread_cond_broadcast(&changed);
}

void quay__staging_hold(uint64_t bytes, uint64_t budget) {
  quay__lifecycle_begin();
  quay__global_acquire(QUAY__LOCK_STAGING);
  if (quay__staging_awaited() || !has_room(bytes, budget))
    wait_in_line(bytes, budget);
  take(bytes);
  quay__global_release(QUAY__LOCK_STAGING);
}

bool quay__staging_try_hold(uint64_t bytes, uint64_t budget) {
  quay__lifecycle_begin();
  quay__global_acquire(QUAY__LOCK_STAGING);
  const bool held = !quay__staging_awaited() && has_room(bytes, budget);
  if (held)
    take(bytes);
  quay__global_release(QUAY__LOCK_STAGING);
  return held;
}

void quay__staging_force_hold(uint64_t bytes) {
  quay__lifecycle_begin();
  quay__global_acquire(QUAY__LOCK_STAGING);
  take(bytes);
  quay__global_release(QUAY__LOCK_STAGING);
}

void quay__staging_give_back(uint64_t bytes) {
  own_bytes -= bytes;
  quay__global_acquire(QUAY__LOCK_STAGING);
  held_bytes -= bytes;
  if (quay__staging_awaited())
    pthread_cond_broadcast(&changed);
  quay__global_release(QUAY__LOCK_STAGING);
}

bool quay__staging_awaited(void) {
  return atomic_load_explicit(&waiting, memory_order_relaxed) != 0;
}

#define BUSY_MAX (sizeof busy / sizeof busy[0])

/* The device's entry; else a free one; BUSY_MAX: there is none. */
static size_t find_busy(const quay_device *device) {
  size_t free = BUSY_MAX;
  for (size_t i = 0; i < BUSY_MAX; i++) {
    if (busy[i].copies != 0 && busy[i].device == device)
      return i;
    if (busy[i].copies == 0 && free == BUSY_MAX)
      free = i;
  }
  return free;
}

void quay__staging_enter(const quay_device *device) {
  own_copies++;
  atomic_fetch_add_explicit(&copies, 1, memory_order_relaxed);
  if (device == NULL)
    return;
  quay__lifecycle_begin();
  quay__global_acquire(QUAY__LOCK_STAGING);
  const size_t at = find_busy(device);
  if (at != BUSY_MAX && busy[at].copies++ == 0) {
    busy[at].device = device;
    atomic_fetch_add_explicit(&devices, 1, memory_order_relaxed);
  }
  quay__global_release(QUAY__LOCK_STAGING);
}

void quay__staging_leave(const quay_device *device) {
  own_copies--;
  atomic_fetch_sub_explicit(&copies, 1, memory_order_relaxed);
  if (device == NULL)
    return;
  quay__global_acquire(QUAY__LOCK_STAGING);
  const size_t at = find_busy(device);
  /* Copies that the parent of a fork had begun are not in the child's table. */
  if (at != BUSY_MAX && busy[at].copies != 0 && --busy[at].copies == 0)
    atomic_fetch_sub_explicit(&devices, 1, memory_order_relaxed);
  quay__global_release(QUAY__LOCK_STAGING);
}

uint32_t quay__staging_devices(void) {
  const uint32_t count = atomic_load_explicit(&devices, memory_order_relaxed);
  return count != 0 ? count : 1;
}

uint32_t quay__staging_copies(void) {
  const uint32_t count = atomic_load_explicit(&copies, memory_order_relaxed);
  return count != 0 ? count : 1;
}

/* The copies of other threads are not in the child. */
void quay__staging_after_fork_in_child(void) {
  held_bytes = own_bytes;
  atomic_store_explicit(&copies, own_copies, memory_order_relaxed);
  memset(busy, 0, sizeof busy);
  atomic_store_explicit(&devices, 0, memory_order_relaxed);
  next_served = next_ticket;
  atomic_store_explicit(&waiting, 0, memory_order_relaxed);
  changed = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
}
