/* The number of threads of a copy: its options, the environment, a bad value there, and the slices
 * that a progress callback gets. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/files.h"
#include "support/late/late.h"
#include "support/pattern.h"

#define MIB  (1u << 20)
#define SIZE (UINT64_C(32) * MIB)

TestSuite(copy_threads, .init = test_files_begin, .fini = test_files_end);

/* Copies that threads share. */

static bool is_worker(const char *task) {
  char path[300], name[32] = "";
  snprintf(path, sizeof path, "/proc/self/task/%s/comm", task);
  FILE *file = fopen(path, "r");
  if (file == NULL)
    return false; /* it has ended meanwhile, or is no task */
  const bool named = fgets(name, sizeof name, file) != NULL && strcmp(name, "quay-worker\n") == 0;
  fclose(file);
  return named;
}

/* The library's own threads; a sanitizer may have some as well. */
static unsigned worker_count(void) {
  unsigned count = 0;
  DIR *tasks = opendir("/proc/self/task");
  cr_assert_not_null(tasks);
  for (const struct dirent *task = readdir(tasks); task != NULL; task = readdir(tasks))
    count += is_worker(task->d_name);
  closedir(tasks);
  return count;
}

/* A thread that was started a moment ago may not have its name yet. */
static unsigned settled_worker_count(unsigned expected) {
  for (int i = 0; i < 1000 && worker_count() != expected; i++)
    usleep(1000);
  return worker_count();
}

static quay_buffer *host_buffer(const char *spec, unsigned salt) {
  quay_allocator *allocator = open_spec(spec);
  quay_buffer *buffer = pattern_buffer(allocator, SIZE, salt);
  quay_allocator_release(allocator);
  return buffer;
}

/* A source and a destination for each way of moving bytes that several threads can share. */
enum {
  HOST,
  WITHIN,
  FROM_FILE,
  WAYS,
  /* More of them, for which the plan asks a backend. */
  FROM_PINNED = WAYS,
  INTO_PRIVATE,
  FILE_INTO_PRIVATE,
  FILE_INTO_DEVICE,
  ALL_WAYS
};

static quay_buffer *file_buffer(const char *name, quay_map_mode mode) {
  quay_buffer *contents = host_buffer("cpu", 2);
  MUST(quay_buffer_save(contents, test_path(name), NULL));
  quay_buffer_release(contents);
  return test_map(test_path(name), mode);
}

static void open_way(int way, quay_buffer **out_to, quay_buffer **out_from) {
  static const char *const to[] = {"cpu", "track+cpu", "cpu", "cpu", NULL, NULL, "late:0"};
  static const char *const from[] = {"cpu", "track+cpu", NULL, "late:0,memory=pinned", "cpu"};
  const bool reads_file = way == FROM_FILE || way == FILE_INTO_PRIVATE || way == FILE_INTO_DEVICE;
  *out_to =
      to[way] != NULL ? host_buffer(to[way], 1) : file_buffer("private", QUAY_MAP_COPY_ON_WRITE);
  *out_from = reads_file ? file_buffer("source", QUAY_MAP_READ_ONLY) : host_buffer(from[way], 2);
}

static void check_threads_of(int way, uint32_t max_threads, uint32_t expected) {
  quay_buffer *to, *from;
  setenv("QUAY_COPY_THREADS", "1", 1);
  open_way(way, &to, &from);
  setenv("QUAY_COPY_THREADS", "4", 1);
  const unsigned before = worker_count();
  const quay_copy_options options = {.max_threads = max_threads};
  quay_copy_plan_info plan;
  MUST(quay_copy_plan(to, 0, from, 0, SIZE, &options, &plan));
  cr_expect_eq(plan.threads, expected, "way %d: %u threads", way, plan.threads);
  MUST(quay_buffer_copy_region(to, 0, from, 0, SIZE, &options));
  const unsigned after = settled_worker_count(before + expected - 1);
  cr_expect_eq(after - before, expected - 1, "way %d: %u more threads", way, after - before);
  quay_buffer_release(to);
  quay_buffer_release(from);
}

Test(copy_threads, one_thread_is_one_in_the_plan_and_in_the_copy_on_every_way) {
  for (int way = 0; way < WAYS; way++)
    check_threads_of(way, 1, 1);
}

Test(copy_threads, on_every_way_as_many_take_part_as_the_plan_says) {
  MUST(late_register(NULL));
  for (int way = 0; way < ALL_WAYS; way++) {
    check_threads_of(way, 0, 4);
    MUST(quay_shutdown()); /* ends the workers */
  }
  MUST(late_unregister());
}

Test(copy_threads, two_threads_are_two_on_the_way_between_host_memory) {
  check_threads_of(HOST, 2, 2);
}

Test(copy_threads, two_threads_are_two_on_the_way_from_a_file) {
  check_threads_of(FROM_FILE, 2, 2);
}

Test(copy_threads, options_ask_for_no_more_than_the_process_allows) {
  check_threads_of(WITHIN, 100, 4);
}

Test(copy_threads, the_limit_of_one_copy_is_not_the_next_ones) {
  quay_buffer *to, *from;
  open_way(FROM_FILE, &to, &from);
  setenv("QUAY_COPY_THREADS", "4", 1);
  quay_copy_plan_info plan;
  MUST(quay_buffer_copy_region(to, 0, from, 0, SIZE, &(quay_copy_options){.max_threads = 1}));
  MUST(quay_copy_plan(to, 0, from, 0, SIZE, NULL, &plan));
  cr_expect_eq(plan.threads, 4);
  quay_buffer_release(to);
  quay_buffer_release(from);
}

/* Progress. */

typedef struct steps {
  uint64_t last, smallest;
  uint32_t threads; /* of a copy that is planned in the callback */
  quay_buffer *to, *from;
} steps;

static bool note_step(void *user, uint64_t done, uint64_t total) {
  steps *seen = user;
  if (done != total && (seen->smallest == 0 || done - seen->last < seen->smallest))
    seen->smallest = done - seen->last;
  seen->last = done;
  quay_copy_plan_info plan;
  MUST(quay_copy_plan(seen->to, 0, seen->from, 0, SIZE, NULL, &plan));
  seen->threads = plan.threads;
  return true;
}

Test(copy_threads, a_progress_callback_gets_slices_that_are_large_enough_to_be_shared) {
  for (int way = 0; way < WAYS; way++) {
    steps seen = {0};
    open_way(way, &seen.to, &seen.from);
    const quay_copy_options options = {.progress = note_step, .progress_user = &seen};
    MUST(quay_buffer_copy_region(seen.to, 0, seen.from, 0, SIZE, &options));
    cr_expect_geq(seen.smallest, UINT64_C(8) * MIB, "way %d: a slice of %llu bytes", way,
                  (unsigned long long)seen.smallest);
    pattern_check_buffer(seen.to, 0, 2);
    quay_buffer_release(seen.to);
    quay_buffer_release(seen.from);
  }
}

Test(copy_threads, a_copy_in_a_progress_callback_is_not_held_to_the_outer_ones_threads) {
  steps seen = {0};
  setenv("QUAY_COPY_THREADS", "4", 1);
  open_way(HOST, &seen.to, &seen.from);
  const quay_copy_options options = {
      .max_threads = 1, .progress = note_step, .progress_user = &seen};
  MUST(quay_buffer_copy_region(seen.to, 0, seen.from, 0, SIZE, &options));
  cr_expect_eq(seen.threads, 4);
  quay_buffer_release(seen.to);
  quay_buffer_release(seen.from);
}

/* A bad value in the environment. */

static void refused(quay_status status, const char *variable, const char *what) {
  const char *message = quay_last_error()->message;
  cr_expect_eq(status, QUAY_STATUS_INVALID_ARGUMENT, "%s: %s", variable, what);
  cr_expect_not_null(strstr(message, variable), "%s: %s", what, message);
  cr_expect_not_null(strstr(message, " is \"junk\""), "%s: %s", what, message);
  cr_expect_null(strstr(message, "undefined"), "%s: %s", what, message);
  quay_error_clear();
}

static void check_refusals(const char *variable, int way) {
  quay_buffer *to, *from;
  open_way(way, &to, &from);
  unsigned char *bytes = calloc(1, SIZE);
  cr_assert_not_null(bytes);
  setenv(variable, "junk", 1);
  quay_copy_plan_info plan;
  refused(quay_copy_plan(to, 0, from, 0, SIZE, NULL, &plan), variable, "plan");
  refused(quay_buffer_copy_in(to, bytes, SIZE), variable, "copy_in");
  refused(quay_buffer_copy_out(from, bytes, SIZE), variable, "copy_out");
  cr_expect_eq(bytes[SIZE / 2], 0);
  refused(quay_buffer_copy_from(to, from), variable, "copy_from");
  refused(quay_buffer_copy_region(to, 0, from, 0, SIZE, NULL), variable, "copy_region");
  refused(quay_buffer_copy_region(to, 0, from, 0, SIZE, &(quay_copy_options){.max_threads = 2}),
          variable, "copy_region with options");
  quay_copy_pair halves[] = {
      {.destination = to, .source = from, .size = MIB},
      {.destination = to,
       .destination_offset = 2 * MIB,
       .source = from,
       .source_offset = 2 * MIB,
       .size = MIB},
  };
  refused(quay_copy_many(halves, 2, NULL), variable, "copy_many");
  refused(quay_buffer_fill(to, "x", 1), variable, "fill");
  refused(quay_buffer_save(from, test_path("saved"), NULL), variable, "save");
  cr_expect_neq(access(test_path("saved"), F_OK), 0);
  unsetenv(variable);
  pattern_check_buffer(to, 0, way == INTO_PRIVATE || way == FILE_INTO_PRIVATE ? 2 : 1);
  free(bytes);
  quay_buffer_release(to);
  quay_buffer_release(from);
}

static const char *const variables[] = {"QUAY_COPY_THREADS", "QUAY_STAGING_BYTES"};

static void begin_unset(void) {
  test_files_begin();
  MUST(late_register(NULL));
  for (size_t i = 0; i < 2; i++)
    unsetenv(variables[i]);
}

static void end_unset(void) {
  MUST(late_unregister());
  test_files_end();
}

TestSuite(bad_environment, .init = begin_unset, .fini = end_unset);

Test(bad_environment, every_large_copy_and_fill_is_refused) {
  for (size_t i = 0; i < 2; i++) {
    for (int way = 0; way < ALL_WAYS; way++)
      check_refusals(variables[i], way);
  }
}

Test(bad_environment, a_lazy_destination_stays_so) {
  const int64_t size = SIZE;
  quay_buffer *from = host_buffer("cpu", 1), *to;
  quay_allocator *allocator = open_spec("cpu");
  MUST(quay_buffer_create_lazy(allocator, QUAY_U8, 1, &size, NULL, &to));
  quay_allocator_release(allocator);
  for (size_t i = 0; i < 2; i++) {
    setenv(variables[i], "junk", 1);
    refused(quay_buffer_copy_from(to, from), variables[i], "copy_from");
    refused(quay_buffer_fill(to, "x", 1), variables[i], "fill");
    unsetenv(variables[i]);
    cr_expect_not(quay_buffer_is_allocated(to));
  }
  quay_buffer_release(to);
  quay_buffer_release(from);
}

Test(bad_environment, small_copies_take_the_defaults) {
  quay_buffer *buffer = pattern_buffer(NULL, 1000, 1);
  unsigned char bytes[1000];
  for (size_t i = 0; i < 2; i++)
    setenv(variables[i], "junk", 1);
  MUST(quay_buffer_copy_out(buffer, bytes, sizeof bytes));
  MUST(quay_buffer_fill(buffer, "x", 1));
  quay_buffer_release(buffer);
}

Test(bad_environment, small_staged_copies_are_refused_by_the_copy_and_its_plan) {
  const uint64_t sizes[] = {1, 4096, MIB};
  for (size_t i = 0; i < 2; i++) {
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
      quay_allocator *one = open_spec("late:0"), *other = open_spec("late:2");
      quay_buffer *to = pattern_buffer(one, sizes[s], 1),
                  *from = pattern_buffer(other, sizes[s], 2);
      quay_allocator_release(one);
      quay_allocator_release(other);
      setenv(variables[i], "junk", 1);
      quay_copy_plan_info plan;
      refused(quay_copy_plan(to, 0, from, 0, sizes[s], NULL, &plan), variables[i], "plan");
      refused(quay_buffer_copy_from(to, from), variables[i], "copy_from");
      unsetenv(variables[i]);
      pattern_check_buffer(to, 0, 1);
      quay_buffer_release(to);
      quay_buffer_release(from);
    }
  }
}

Test(bad_environment, no_allocator_is_opened) {
  for (size_t i = 0; i < 2; i++) {
    quay_allocator *allocator = NULL;
    setenv(variables[i], "junk", 1);
    MUST_FAIL(quay_allocator_open("cpu", &allocator), INVALID_ARGUMENT);
    cr_expect_null(allocator);
    cr_expect_not_null(strstr(quay_last_error()->message, variables[i]));
    MUST_FAIL(quay_default_allocator_get(&allocator), INVALID_ARGUMENT);
    cr_expect_not_null(strstr(quay_last_error()->message, variables[i]));
    unsetenv(variables[i]);
    MUST(quay_allocator_open("cpu", &allocator));
    quay_allocator_release(allocator);
  }
}
