/* Spin locks that their threads enter without an exchange, and that others pause. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/lock.h"
#include "core/os.h"
#include "support/sanitized.h"
#include "support/status.h"

/* The system, where it refuses a barrier from now on. */
static atomic_bool refuses;
int __real_quay__os_barrier(void);
int __wrap_quay__os_barrier(void);
int __wrap_quay__os_barrier(void) {
  return atomic_load(&refuses) ? -1 : __real_quay__os_barrier();
}

enum {
  LOCKS = 3,
#ifdef SANITIZED
  PAUSES = 2000
#else
  PAUSES = 200000
#endif
};

static quay__spin spins[LOCKS];
static quay__spin_set set = {.first = spins, .stride = sizeof spins[0], .count = LOCKS};

static void begin(void) {
  memset(spins, 0, sizeof spins);
  quay__spin_set_add(&set);
  cr_assert_eq(quay__os_barrier(), 0, "this system has no barrier");
}

static void end(void) {
  quay__spin_set_remove(&set);
}

TestSuite(spin, .init = begin, .fini = end);

/* What a lock guards: counted by whoever has it to himself, in two steps that are apart. */
static volatile uint64_t counted[LOCKS];
static atomic_bool over;

static void count_one(size_t index) {
  const uint64_t value = counted[index];
  for (volatile int i = 0; i < 8; i++) {
  }
  counted[index] = value + 1;
}

static void *enter_all_the_time(void *argument) {
  const size_t index = (size_t)(uintptr_t)argument;
  uint64_t entered = 0;
  while (!atomic_load_explicit(&over, memory_order_relaxed)) {
    if (!quay__spin_enter(&spins[index]))
      continue;
    count_one(index);
    quay__spin_leave(&spins[index]);
    entered++;
  }
  return (void *)(uintptr_t)entered;
}

/* One thread enters, so that it has a processor of its own where there are two. */
static void check_that_they_never_meet(int pauses) {
  pthread_t thread;
  void *entered = NULL;
  cr_assert_eq(pthread_create(&thread, NULL, enter_all_the_time, (void *)0), 0);
  for (int i = 0; i < pauses; i++) {
    quay__spin_set_pause(&set, 1);
    count_one(0);
    quay__spin_set_resume(&set, 1);
    for (volatile int wait = 0; wait < i % 64; wait++) {
    }
  }
  atomic_store(&over, true);
  pthread_join(thread, &entered);
  const uint64_t wanted = (uint64_t)pauses + (uint64_t)(uintptr_t)entered;
  cr_expect_eq(counted[0], wanted, "%llu of %llu counted", (unsigned long long)counted[0],
               (unsigned long long)wanted);
}

Test(spin, who_pauses_and_who_enters_are_never_inside_at_once) {
  check_that_they_never_meet(PAUSES);
}

/* In a sandbox that was entered later. */
Test(spin, they_are_not_where_the_barrier_is_refused_from_some_time_on) {
  quay__spin_set_pause(&set, 1);
  quay__spin_set_resume(&set, 1);
  atomic_store(&refuses, true);
  check_that_they_never_meet(PAUSES / 1000);
  cr_expect(quay__spin_enter(&spins[0]), "it stays paused");
  quay__spin_leave(&spins[0]);
}

Test(spin, only_those_that_are_wanted_are_paused) {
  quay__spin_set_pause(&set, 1 << 1);
  cr_expect(quay__spin_enter(&spins[0]));
  cr_expect_not(quay__spin_enter(&spins[1]));
  cr_expect(quay__spin_enter(&spins[2]));
  quay__spin_leave(&spins[0]);
  quay__spin_leave(&spins[2]);
  quay__spin_set_resume(&set, 1 << 1);
  cr_expect(quay__spin_enter(&spins[1]));
  quay__spin_leave(&spins[1]);
}

Test(spin, a_lock_that_two_have_paused_is_entered_after_both_have_resumed_it) {
  quay__spin_set_pause(&set, 1);
  quay__spin_set_pause(&set, 1);
  quay__spin_set_resume(&set, 1);
  cr_expect_not(quay__spin_enter(&spins[0]));
  quay__spin_set_resume(&set, 1);
  cr_expect(quay__spin_enter(&spins[0]));
  quay__spin_leave(&spins[0]);
}

static atomic_bool inside, go_on;

static void *stay_inside(void *unused) {
  (void)unused;
  const bool entered = quay__spin_enter(&spins[0]);
  atomic_store(&inside, true);
  while (!atomic_load(&go_on))
    quay__os_yield();
  quay__spin_leave(&spins[0]);
  return (void *)(uintptr_t)entered;
}

static void *pause_it(void *unused) {
  (void)unused;
  quay__spin_set_pause(&set, 1);
  atomic_store(&over, true);
  quay__spin_set_resume(&set, 1);
  return NULL;
}

Test(spin, who_pauses_waits_for_who_is_inside) {
  pthread_t stays, pauses;
  cr_assert_eq(pthread_create(&stays, NULL, stay_inside, NULL), 0);
  while (!atomic_load(&inside))
    quay__os_yield();
  cr_assert_eq(pthread_create(&pauses, NULL, pause_it, NULL), 0);
  for (int i = 0; i < 1000; i++) {
    quay__os_yield();
    cr_assert_not(atomic_load(&over), "it did not wait");
  }
  atomic_store(&go_on, true);
  pthread_join(pauses, NULL);
  void *entered = NULL;
  pthread_join(stays, &entered);
  cr_expect_not_null(entered);
}

/* The status of a child that runs `function`, which must be done within ten seconds. */
static int in_a_child(int (*function)(void)) {
  int status = -1;
  const pid_t child = fork();
  if (child == 0) {
    (void)alarm(10);
    _exit(function());
  }
  cr_assert_eq(waitpid(child, &status, 0), child);
  return status;
}

static int pause_all(void) {
  quay__spin_set_pause(&set, 7);
  return quay__spin_enter(&spins[0]) ? 1 : 0;
}

static int enter_first(void) {
  return quay__spin_enter(&spins[0]) ? 0 : 1;
}

Test(spin, the_child_of_a_fork_does_not_wait_for_who_was_inside) {
  pthread_t stays;
  cr_assert_eq(pthread_create(&stays, NULL, stay_inside, NULL), 0);
  while (!atomic_load(&inside))
    quay__os_yield();
  cr_expect_eq(in_a_child(pause_all), 0);
  atomic_store(&go_on, true);
  pthread_join(stays, NULL);
}

Test(spin, what_was_paused_is_not_in_the_child_of_a_fork) {
  quay__spin_set_pause(&set, 1);
  cr_expect_eq(in_a_child(enter_first), 0);
  cr_expect_not(quay__spin_enter(&spins[0]));
  quay__spin_set_resume(&set, 1);
}
