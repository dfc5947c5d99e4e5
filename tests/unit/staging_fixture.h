/* What the tests of staging share. It is included once in a program that is linked with --wrap for
 * quay__staging_memory_take, quay__staging_memory_give and pthread_create: slots are counted, and
 * both can be made to fail. */
#ifndef QUAY_TESTS_UNIT_STAGING_FIXTURE_H
#define QUAY_TESTS_UNIT_STAGING_FIXTURE_H

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/os.h"
#include "core/staging_budget.h"
#include "core/staging_memory.h"
#include "support/manual_device.h"
#include "support/pattern.h"

#define KIB UINT64_C(1024)
#define MIB (KIB * 1024)

enum {
  SLOTS_WATCHED = 256
};

static pthread_mutex_t slots_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct {
  void *memory[SLOTS_WATCHED];
  uint64_t size[SLOTS_WATCHED];
  uint64_t bytes, peak_bytes;
  uint32_t count, peak_count, made;
  uint32_t fail_at; /* the so-manieth slot made from now on fails; 0: none */
} slots;
static atomic_int threads_left = -1; /* that can be started; below 0: all */

unsigned char *__real_quay__staging_memory_take(const quay__staging_wish *wish,
                                                uint64_t *out_segment, bool *out_full);
unsigned char *__wrap_quay__staging_memory_take(const quay__staging_wish *wish,
                                                uint64_t *out_segment, bool *out_full);
void __real_quay__staging_memory_give(const unsigned char *memory, uint64_t size);
void __wrap_quay__staging_memory_give(const unsigned char *memory, uint64_t size);
int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*start)(void *), void *argument);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*start)(void *), void *argument);

static void watch_slot(void *memory, uint64_t size) {
  for (int i = 0; i < SLOTS_WATCHED; i++) {
    if (slots.memory[i] != NULL)
      continue;
    slots.memory[i] = memory;
    slots.size[i] = size;
    slots.bytes += size;
    slots.count++;
    slots.made++;
    if (slots.bytes > slots.peak_bytes)
      slots.peak_bytes = slots.bytes;
    if (slots.count > slots.peak_count)
      slots.peak_count = slots.count;
    return;
  }
}

unsigned char *__wrap_quay__staging_memory_take(const quay__staging_wish *wish,
                                                uint64_t *out_segment, bool *out_full) {
  pthread_mutex_lock(&slots_mutex);
  const bool fails = slots.fail_at != 0 && --slots.fail_at == 0;
  *out_full = false;
  unsigned char *memory =
      fails ? NULL : __real_quay__staging_memory_take(wish, out_segment, out_full);
  if (memory != NULL)
    watch_slot(memory, wish->size);
  pthread_mutex_unlock(&slots_mutex);
  return memory;
}

void __wrap_quay__staging_memory_give(const unsigned char *memory, uint64_t size) {
  pthread_mutex_lock(&slots_mutex);
  for (int i = 0; i < SLOTS_WATCHED; i++) {
    if (slots.memory[i] != memory)
      continue;
    cr_assert_eq(slots.size[i], size);
    slots.memory[i] = NULL;
    slots.bytes -= slots.size[i];
    slots.count--;
  }
  __real_quay__staging_memory_give(memory, size);
  pthread_mutex_unlock(&slots_mutex);
}

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*start)(void *), void *argument) {
  const int left = atomic_load(&threads_left);
  if (left == 0)
    return EAGAIN;
  if (left > 0)
    atomic_store(&threads_left, left - 1);
  return __real_pthread_create(thread, attributes, start, argument);
}

static inline void begin_watching(void) {
  pthread_mutex_lock(&slots_mutex);
  slots.peak_bytes = slots.bytes;
  slots.peak_count = slots.count;
  slots.made = 0;
  pthread_mutex_unlock(&slots_mutex);
}

/* No slot is left, and the budget is whole. */
static inline void check_nothing_held(void) {
  cr_assert_eq(slots.count, 0u, "%u slots of %llu bytes are left", slots.count,
               (unsigned long long)slots.bytes);
  const uint64_t all = 64 * KIB;
  cr_assert(quay__staging_try_hold(1, all));
  cr_assert(quay__staging_try_hold(all - 1, all), "bytes of the budget were not given back");
  quay__staging_give_back(all);
}

static inline void sleep_us(unsigned microseconds) {
  nanosleep(&(struct timespec){.tv_sec = microseconds / 1000000,
                               .tv_nsec = (long)(microseconds % 1000000) * 1000},
            NULL);
}

/* Waits until `*value` is at least `wanted`; false after ten seconds. */
static inline bool reaches(atomic_uint *value, unsigned wanted) {
  const uint64_t end = quay__os_nanoseconds() + 10000000000u;
  while (atomic_load(value) < wanted) {
    if (quay__os_nanoseconds() > end)
      return false;
    sleep_us(50);
  }
  return true;
}

/* Memory of two backends that can't meet, with patterns 1 and 2 in it. */
typedef struct two_sides {
  quay_allocator *to_allocator, *from_allocator;
  quay_buffer *to, *from;
} two_sides;

static inline two_sides two_of(quay_allocator *to, quay_allocator *from, uint64_t size) {
  return (two_sides){.to_allocator = to,
                     .from_allocator = from,
                     .to = pattern_buffer(to, size, 1),
                     .from = pattern_buffer(from, size, 2)};
}

/* The hook is the destination's and the source's. */
static inline two_sides two_manual(uint64_t size, manual_hook hook, void *user) {
  const manual_options to = {.backend = "one", .hook = hook, .user = user};
  const manual_options from = {.backend = "two", .hook = hook, .user = user};
  return two_of(manual_open(&to), manual_open(&from), size);
}

static inline void close_sides(two_sides *two) {
  quay_buffer_release(two->to);
  quay_buffer_release(two->from);
  quay_allocator_release(two->to_allocator);
  quay_allocator_release(two->from_allocator);
}

static inline quay_copy_plan_info plan_sides(const two_sides *two,
                                             const quay_copy_options *options) {
  quay_copy_plan_info plan;
  MUST(quay_copy_plan(two->to, 0, two->from, 0, quay_buffer_size(two->from), options, &plan));
  cr_assert_eq(plan.route, QUAY_ROUTE_STAGED);
  return plan;
}

static inline quay_status copy_sides(const two_sides *two, const quay_copy_options *options) {
  return quay_buffer_copy_region(two->to, 0, two->from, 0, quay_buffer_size(two->from), options);
}

/* Two legs, whatever the machine. */
static inline void allow_two_threads(void) {
  setenv("QUAY_COPY_THREADS", "2", 1);
}

#endif
