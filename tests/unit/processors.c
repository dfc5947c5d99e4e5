/* How many processors a thread may run on. */
#include <pthread.h>
#include <sched.h>
#include <time.h>

#include "core/os.h"
#include "support/status.h"

/* How often a thread asked the system. */
static _Thread_local unsigned asked;
int __real_sched_getaffinity(pid_t thread, size_t size, cpu_set_t *out_set);
int __wrap_sched_getaffinity(pid_t thread, size_t size, cpu_set_t *out_set);
int __wrap_sched_getaffinity(pid_t thread, size_t size, cpu_set_t *out_set) {
  asked++;
  return __real_sched_getaffinity(thread, size, out_set);
}

static cpu_set_t own_set(void) {
  cpu_set_t set;
  cr_assert_eq(__real_sched_getaffinity(0, sizeof set, &set), 0);
  return set;
}

/* The first processor of those that this thread has. */
static cpu_set_t first_of(const cpu_set_t *all) {
  cpu_set_t one;
  CPU_ZERO(&one);
  for (size_t i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++) {
    if (CPU_ISSET(i, all))
      CPU_SET(i, &one);
  }
  return one;
}

static void wait_until_asked_again(void) {
  /* The clock that tells the time since steps by up to 10 ms. */
  const struct timespec time = {.tv_nsec = QUAY__PROCESSOR_COUNT_NS + 20000000};
  cr_assert_eq(nanosleep(&time, NULL), 0);
}

Test(processors, the_system_is_asked_once_in_a_while) {
  const cpu_set_t all = own_set();
  const uint32_t count = (uint32_t)CPU_COUNT(&all);
  const uint64_t begin = quay__os_nanoseconds();
  for (int i = 0; i < 10000; i++)
    cr_assert_eq(quay__os_processor_count(), count);
  const uint64_t took = quay__os_nanoseconds() - begin;
  cr_assert_geq(asked, 1);
  cr_assert_leq(asked, took / QUAY__PROCESSOR_COUNT_NS + 1);
}

Test(processors, what_the_program_sets_counts_after_a_moment) {
  const cpu_set_t all = own_set(), one = first_of(&all);
  const uint32_t count = (uint32_t)CPU_COUNT(&all);
  cr_assert_eq(quay__os_processor_count(), count);
  cr_assert_eq(sched_setaffinity(0, sizeof one, &one), 0);
  wait_until_asked_again();
  cr_assert_eq(quay__os_processor_count(), 1);
  cr_assert_eq(sched_setaffinity(0, sizeof all, &all), 0);
  wait_until_asked_again();
  cr_assert_eq(quay__os_processor_count(), count);
}

Test(processors, what_the_library_sets_counts_at_once) {
  quay__processors all;
  cr_assert_eq(quay__os_affinity(&all), 0);
  const cpu_set_t set = own_set();
  const uint32_t count = (uint32_t)CPU_COUNT(&set);
  quay__processors one = {0};
  for (uint32_t i = 0; i < QUAY__PROCESSORS_MAX && one.bits[i / 64] == 0; i++)
    one.bits[i / 64] = all.bits[i / 64] & (UINT64_C(1) << i % 64);
  for (int round = 0; round < 3; round++) {
    cr_assert_eq(quay__os_set_affinity(&one), 0);
    cr_assert_eq(quay__os_processor_count(), 1);
    cr_assert_eq(quay__os_set_affinity(&all), 0);
    cr_assert_eq(quay__os_processor_count(), count);
  }
}

static void *count_on_one(void *out_count) {
  const cpu_set_t all = own_set(), one = first_of(&all);
  cr_assert_eq(sched_setaffinity(0, sizeof one, &one), 0);
  *(uint32_t *)out_count = quay__os_processor_count();
  return NULL;
}

Test(processors, each_thread_has_a_count_of_its_own) {
  const cpu_set_t all = own_set();
  const uint32_t count = (uint32_t)CPU_COUNT(&all);
  cr_assert_eq(quay__os_processor_count(), count);
  pthread_t thread;
  uint32_t there = 0;
  cr_assert_eq(pthread_create(&thread, NULL, count_on_one, &there), 0);
  cr_assert_eq(pthread_join(thread, NULL), 0);
  cr_assert_eq(there, 1);
  cr_assert_eq(quay__os_processor_count(), count);
}
