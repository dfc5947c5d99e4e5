/* Tests of the plain runner: all in the suite `faults` must fail, all in `sound` must pass. */
#include "support/skip.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

static int prepared;

static void prepare(void) {
  prepared = 1;
}

static void check_in_fini(void) {
  cr_assert_eq(prepared, 2);
}

TestSuite(sound, .init = prepare, .timeout = 20);

Test(sound, init_of_the_suite_runs) {
  cr_assert_eq(prepared, 1);
}

Test(sound, checks_that_hold) {
  const int numbers[2] = {1, 2};
  const char *text = "abc";
  const void *nothing = NULL;
  cr_assert(numbers[0] == 1);
  cr_assert(numbers[0] == 1, "with a message, %d", 1);
  cr_assert_not(numbers[0] == 2);
  cr_expect_eq(numbers[0], 1, "%s", text);
  cr_assert_neq(numbers[0], 2);
  cr_assert_lt(numbers[0], 2);
  cr_assert_leq(numbers[0], 1);
  cr_assert_gt(numbers[1], 1);
  cr_assert_geq(numbers[1], 2);
  cr_assert_null(nothing);
  cr_assert_not_null(text);
  cr_assert_str_eq(text, "abc");
  cr_assert_str_neq(text, "abd", "%d", 3);
  cr_assert_str_lt(text, "abd");
  cr_assert_str_empty("");
  cr_assert_str_not_empty(text);
  cr_assert_arr_eq(numbers, numbers, sizeof numbers);
  cr_assert_arr_neq(numbers, text, 4);
  cr_assert_float_eq(1.0F, 1.0F, 1e-6);
  cr_assert_float_neq(1.0, 2.0, 1e-6, "far apart");
}

Test(sound, expected_signal, .signal = SIGKILL) {
  raise(SIGKILL);
}

Test(sound, expected_exit_code, .exit_code = 3) {
  exit(3);
}

Test(sound, skipped) {
  quay_test_skip("nothing", "this test of the framework skips itself");
}

Test(sound, fini_runs_after_the_test, .fini = check_in_fini) {
  prepared = 2;
}

static void *set_prepared(void *value) {
  prepared = *(const int *)value;
  return NULL;
}

static void run_thread(void *(*function)(void *), void *argument) {
  pthread_t thread;
  pthread_create(&thread, NULL, function, argument);
  pthread_join(thread, NULL);
}

Test(sound, threads_run) {
  int value = 5;
  run_thread(set_prepared, &value);
  cr_assert_eq(prepared, 5);
}

Test(faults, fatal_check) {
  cr_assert_eq(prepared, 7, "prepared is %d", prepared);
}

Test(faults, expectation) {
  cr_expect_str_eq("a", "b");
}

Test(faults, fail_call) {
  cr_fail("text");
}

Test(faults, check_in_fini, .fini = check_in_fini) {}

static void *fail_in_a_thread(void *unused) {
  cr_assert(unused != NULL);
  return NULL;
}

Test(faults, fatal_check_in_another_thread) {
  run_thread(fail_in_a_thread, NULL);
}

Test(faults, hang, .timeout = 0.5) {
  for (;;) {
    pause();
  }
}

/* And nobody waits for the child afterwards. */
Test(faults, hang_of_a_child_of_the_test, .timeout = 0.5) {
  (void)!fork();
  for (;;) {
    pause();
  }
}

Test(faults, crash) {
  raise(SIGSEGV);
}

Test(faults, signal_that_does_not_come, .signal = SIGKILL) {}

Test(faults, early_exit) {
  exit(0);
}

#ifdef WITH_ADDRESS_SANITIZER
static char *volatile block;

Test(faults, leak) {
  block = malloc(100);
  block = NULL;
}

Test(faults, overflow) {
  block = malloc(4);
  block[4] = 1;
  free(block);
}

Test(faults, use_after_free) {
  block = malloc(4);
  free(block);
  block[0] = 1;
}

Test(faults, undefined_behaviour) {
  volatile int largest = __INT_MAX__;
  largest = largest + 1;
}
#endif

#ifdef WITH_THREAD_SANITIZER
static int shared;

static void *increment(void *unused) {
  (void)unused;
  shared++;
  return NULL;
}

Test(faults, race) {
  pthread_t threads[2];
  for (int i = 0; i < 2; i++) {
    pthread_create(&threads[i], NULL, increment, NULL);
  }
  for (int i = 0; i < 2; i++) {
    pthread_join(threads[i], NULL);
  }
}
#endif
