/* The default allocator: pushes, the process's own, the environment. */
#include <pthread.h>
#include <quay/quay.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/log.h"
#include "support/status.h"
#include "support/table.h"

static quay_test_table table;

static quay_allocator *make(void) {
  quay_allocator *allocator = NULL;
  quay_test_table_init(&table);
  CHECK_OK(quay_allocator_create(&table.desc, &allocator));
  return allocator;
}

/* The default's spec, in static memory. */
static const char *current(void) {
  static char spec[256];
  quay_allocator *allocator = NULL;
  CHECK_OK(quay_default_allocator_get(&allocator));
  snprintf(spec, sizeof spec, "%s", quay_allocator_spec(allocator));
  quay_allocator_release(allocator);
  return spec;
}

Test(default_allocator, without_anything_it_is_cpu) {
  unsetenv("QUAY_BACKEND");
  cr_assert_str_eq(current(), "cpu");
}

Test(default_allocator, the_environment_names_it_and_it_is_kept) {
  setenv("QUAY_BACKEND", "track+cpu:align=128", 1);
  cr_assert_str_eq(current(), "track+cpu:align=128");
  setenv("QUAY_BACKEND", "cpu", 1);
  cr_assert_str_eq(current(), "track+cpu:align=128");
}

Test(default_allocator, a_bad_environment_is_an_error_that_names_the_variable_and_is_not_kept) {
  static const char *const wrong[] = {"nonsense", "", " cpu", "cpu:align=3", "pool+", "+cpu"};
  quay_allocator *allocator = (quay_allocator *)(void *)&table;
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    setenv("QUAY_BACKEND", wrong[i], 1);
    CHECK_FAILS(quay_default_allocator_get(&allocator), QUAY_STATUS_INVALID_ARGUMENT);
    CHECK_MESSAGE("QUAY_BACKEND");
    cr_assert_null(allocator);
    CHECK_FAILS(quay_allocator_open(NULL, &allocator), QUAY_STATUS_INVALID_ARGUMENT);
  }
  setenv("QUAY_BACKEND", "cpu:align=512", 1);
  cr_assert_str_eq(current(), "cpu:align=512");
}

Test(default_allocator, null_means_it_in_every_call) {
  const int64_t shape[] = {10};
  quay_allocator *allocator = make();
  quay_buffer *buffer = NULL;
  quay_raw_buffer raw;
  quay_stats stats;
  quay_allocator *opened = NULL;
  CHECK_OK(quay_default_allocator_push(allocator));
  CHECK_OK(quay_buffer_create(NULL, QUAY_U8, 1, shape, NULL, &buffer));
  CHECK_OK(quay_allocator_alloc(NULL, 5, NULL, &raw));
  CHECK_OK(quay_allocator_stats(NULL, &stats));
  cr_assert_eq(stats.live_count, 2);
  cr_assert_eq(quay_buffer_allocator(buffer), allocator);
  CHECK_OK(quay_allocator_open(NULL, &opened));
  cr_assert_eq(opened, allocator);
  quay_allocator_release(opened);
  quay_raw_buffer_free(&raw);
  quay_buffer_release(buffer);
  quay_default_allocator_pop();
  quay_allocator_release(allocator);
  cr_assert_eq(atomic_load(&table.destroys), 1, "every reference came back");
}

Test(default_allocator, pushes_nest_and_stand_above_the_processs_own) {
  quay_allocator *set = NULL;
  quay_allocator *outer = NULL;
  quay_allocator *inner = NULL;
  unsetenv("QUAY_BACKEND");
  CHECK_OK(quay_allocator_open("cpu:align=128", &set));
  CHECK_OK(quay_allocator_open("cpu:align=256", &outer));
  CHECK_OK(quay_allocator_open("cpu:align=512", &inner));
  quay_default_allocator_set(set);
  cr_assert_str_eq(current(), "cpu:align=128");
  CHECK_OK(quay_default_allocator_push(outer));
  CHECK_OK(quay_default_allocator_push(inner));
  cr_assert_str_eq(current(), "cpu:align=512");
  quay_default_allocator_pop();
  cr_assert_str_eq(current(), "cpu:align=256");
  quay_default_allocator_pop();
  cr_assert_str_eq(current(), "cpu:align=128");
  quay_default_allocator_set(NULL);
  cr_assert_str_eq(current(), "cpu");
  quay_allocator_release(inner);
  quay_allocator_release(outer);
  quay_allocator_release(set);
}

Test(default_allocator, set_holds_a_reference_and_gives_the_old_one_back) {
  quay_allocator *allocator = make();
  quay_allocator *other = NULL;
  CHECK_OK(quay_allocator_open("cpu", &other));
  quay_default_allocator_set(allocator);
  quay_allocator_release(allocator);
  cr_assert_str_eq(current(), "table");
  quay_default_allocator_set(allocator);
  cr_assert_eq(atomic_load(&table.destroys), 0, "set to what it is already");
  quay_default_allocator_set(other);
  cr_assert_eq(atomic_load(&table.destroys), 1);
  quay_default_allocator_set(NULL);
  quay_allocator_release(other);
}

Test(default_allocator, pushing_null_is_refused_and_pushes_nothing) {
  CHECK_FAILS(quay_default_allocator_push(NULL), QUAY_STATUS_INVALID_ARGUMENT);
  quay_test_log_begin();
  quay_default_allocator_pop();
  cr_assert_eq(quay_test_log_count("pop"), 1);
}

Test(default_allocator, a_pop_without_a_push_is_logged_and_keeps_the_threads_error) {
  quay_test_log_begin();
  quay_error_set(QUAY_STATUS_BUSY, "", 0, NULL, "from before");
  quay_default_allocator_pop();
  cr_assert_eq(quay_test_log_count("quay_default_allocator_pop"), 1, "%s", quay_test_log_text());
  cr_assert_str_eq(quay_last_error()->message, "from before");
}

static char seen[64];

static void *look(void *allocator) {
  snprintf(seen, sizeof seen, "%s", current());
  /* Left pushed: the thread's end gives it back. */
  if (quay_default_allocator_push(allocator) != QUAY_OK ||
      quay_default_allocator_push(allocator) != QUAY_OK)
    return allocator;
  return NULL;
}

Test(default_allocator, threads_inherit_no_push_and_their_end_gives_theirs_back) {
  quay_allocator *allocator = make();
  pthread_t thread;
  void *failed;
  unsetenv("QUAY_BACKEND");
  CHECK_OK(quay_default_allocator_push(allocator));
  cr_assert_eq(pthread_create(&thread, NULL, look, allocator), 0);
  pthread_join(thread, &failed);
  cr_assert_null(failed);
  cr_assert_str_eq(seen, "cpu");
  cr_assert_str_eq(current(), "table");
  quay_default_allocator_pop();
  quay_allocator_release(allocator);
  cr_assert_eq(atomic_load(&table.destroys), 1);
}

static void *get_it(void *unused) {
  quay_allocator *allocator = NULL;
  (void)unused;
  if (quay_default_allocator_get(&allocator) != QUAY_OK)
    return NULL;
  quay_allocator_release(allocator); /* the process keeps it */
  return allocator;
}

Test(default_allocator, racing_threads_get_one_and_the_same) {
  pthread_t threads[8];
  void *first = NULL;
  setenv("QUAY_BACKEND", "track+cpu", 1);
  for (size_t i = 0; i < 8; i++)
    cr_assert_eq(pthread_create(&threads[i], NULL, get_it, NULL), 0);
  for (size_t i = 0; i < 8; i++) {
    void *got;
    pthread_join(threads[i], &got);
    cr_assert_not_null(got);
    if (i == 0)
      first = got;
    cr_assert_eq(got, first);
  }
}

Test(default_allocator, a_null_output_is_refused) {
  CHECK_FAILS(quay_default_allocator_get(NULL), QUAY_STATUS_INVALID_ARGUMENT);
}
