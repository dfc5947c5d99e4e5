/* The fault layer: which calls fail, with what, and what a failed call leaves. */
#include <pthread.h>
#include <quay/quay.h>
#include <stdatomic.h>
#include <string.h>

#include "support/random.h"
#include "support/status.h"

static quay_allocator *open(const char *spec) {
  quay_allocator *allocator = NULL;
  CHECK_OK(quay_allocator_open(spec, &allocator));
  return allocator;
}

static quay_fault_counts counts_of(quay_allocator *allocator) {
  quay_fault_counts counts;
  CHECK_OK(quay_fault_get_counts(allocator, &counts));
  return counts;
}

/* Allocates `count` times: a character for each, "." or "X" for a failure. */
static void pattern_of(quay_allocator *allocator, size_t count, char *out_pattern) {
  for (size_t i = 0; i < count; i++) {
    quay_raw_buffer raw;
    const bool failed = quay_allocator_alloc(allocator, 10, NULL, &raw) != QUAY_OK;
    out_pattern[i] = failed ? 'X' : '.';
    quay_raw_buffer_free(&raw);
  }
  out_pattern[count] = '\0';
}

static void check_pattern(const char *spec, const char *expected) {
  char pattern[32];
  quay_allocator *allocator = open(spec);
  pattern_of(allocator, strlen(expected), pattern);
  cr_expect_str_eq(pattern, expected, "%s: %s", spec, pattern);
  const quay_fault_counts counts = counts_of(allocator);
  size_t failed = 0;
  for (const char *c = expected; *c != '\0'; c++)
    failed += *c == 'X';
  cr_expect_eq(counts.calls, strlen(expected));
  cr_expect_eq(counts.failed, failed);
  quay_allocator_release(allocator);
}

Test(fault, after_nth_and_every_choose_their_calls) {
  check_pattern("fault:after=3+cpu", "...XXXX");
  check_pattern("fault:after=0+cpu", "XXX");
  check_pattern("fault:nth=1+cpu", "X...");
  check_pattern("fault:nth=3+cpu", "..X...");
  check_pattern("fault:every=1+cpu", "XXXX");
  check_pattern("fault:every=3+cpu", "..X..X..");
  check_pattern("fault:nth=18446744073709551615+cpu", "....");
}

Test(fault, a_failure_says_that_it_is_on_purpose_and_which_call_it_was) {
  quay_allocator *allocator = open("fault:after=3+cpu");
  char pattern[8];
  quay_raw_buffer raw;
  pattern_of(allocator, 3, pattern);
  CHECK_FAILS(quay_allocator_alloc(allocator, 10, NULL, &raw), QUAY_STATUS_OUT_OF_HOST_MEMORY);
  cr_assert_str_eq(quay_last_error()->message,
                   "fault layer: call 4 of kind alloc failed on purpose (after=3)");
  cr_assert_str_eq(quay_last_error()->backend, "fault");
  quay_allocator_release(allocator);
}

/* By pages on "cpu", by blocks on "mmap". */
Test(fault, what_a_pool_around_it_takes_is_an_allocation) {
  static const char *const specs[] = {"pool+fault:after=0+cpu", "pool+fault:after=0+mmap:/tmp"};
  for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) {
    quay_allocator *allocator = open(specs[i]);
    quay_raw_buffer raw;
    CHECK_FAILS(quay_allocator_alloc(allocator, 10, NULL, &raw), QUAY_STATUS_OUT_OF_HOST_MEMORY);
    CHECK_MESSAGE("failed on purpose (after=0)");
    cr_expect_gt(counts_of(allocator).failed, 0);
    quay_stats stats;
    CHECK_OK(quay_allocator_stats(allocator, &stats));
    cr_expect_eq(stats.reserved_bytes, 0);
    quay_allocator_release(allocator);
  }
}

Test(fault, a_pool_around_it_has_memory_once_no_call_fails_any_more) {
  quay_allocator *allocator = open("pool+fault:every=1+cpu");
  quay_raw_buffer raw;
  CHECK_FAILS(quay_allocator_alloc(allocator, 10, NULL, &raw), QUAY_STATUS_OUT_OF_HOST_MEMORY);
  quay_allocator_release(allocator);
  allocator = open("pool+fault:nth=1+cpu");
  CHECK_OK(quay_allocator_alloc(allocator, 10, NULL, &raw)); /* the pool tries once more */
  cr_expect_eq(counts_of(allocator).failed, 1);
  quay_raw_buffer_free(&raw);
  quay_allocator_release(allocator);
}

Test(fault, a_failed_allocation_never_reaches_the_inner_allocator) {
  quay_allocator *allocator = open("fault:after=0+cpu");
  quay_raw_buffer raw;
  quay_stats stats;
  memset(&raw, 0x5a, sizeof raw);
  CHECK_FAILS(quay_allocator_alloc(allocator, 10, NULL, &raw), QUAY_STATUS_OUT_OF_HOST_MEMORY);
  static const quay_raw_buffer zero;
  cr_assert_arr_eq(&raw, &zero, sizeof zero);
  CHECK_OK(quay_allocator_stats(quay_allocator_inner(allocator), &stats));
  cr_assert_eq(stats.alloc_count, 0);
  cr_assert_eq(stats.failure_count, 0);
  CHECK_OK(quay_allocator_stats(allocator, &stats));
  cr_assert_eq(stats.failure_count, 1);
  quay_allocator_release(allocator);
}

/* Runs one call of each kind; bits of those that failed. */
enum {
  ALLOC = 1,
  COPY_IN = 2,
  COPY_OUT = 4,
  COPY_WITHIN = 8,
  FILL = 16
};

static unsigned run_all(quay_allocator *allocator) {
  const int64_t shape[] = {1000};
  unsigned char bytes[1000];
  quay_test_random_bytes(bytes, sizeof bytes, 1);
  quay_raw_buffer raw;
  quay_buffer *buffer = NULL;
  unsigned failed = 0;
  if (quay_allocator_alloc(allocator, 10, NULL, &raw) != QUAY_OK)
    failed |= ALLOC;
  quay_raw_buffer_free(&raw);
  while (quay_buffer_create(allocator, QUAY_U8, 1, shape, NULL, &buffer) != QUAY_OK &&
         counts_of(allocator).failed < 2) {
  }
  if (buffer == NULL)
    return failed;
  if (quay_buffer_copy_in(buffer, bytes, 1000) != QUAY_OK)
    failed |= COPY_IN;
  if (quay_buffer_copy_out(buffer, bytes, 1000) != QUAY_OK)
    failed |= COPY_OUT;
  if (quay_buffer_copy_region(buffer, 0, buffer, 500, 400, NULL) != QUAY_OK)
    failed |= COPY_WITHIN;
  if (quay_buffer_fill(buffer, bytes, 4) != QUAY_OK)
    failed |= FILL;
  quay_buffer_release(buffer);
  return failed;
}

Test(fault, on_chooses_the_kind_of_call) {
  static const struct {
    const char *spec;
    unsigned failed;
  } cases[] = {
      {"fault:after=0,on=copy_in+cpu", COPY_IN},
      {"fault:after=0,on=copy_out+cpu", COPY_OUT},
      {"fault:after=0,on=copy_within+cpu", COPY_WITHIN},
      {"fault:after=0,on=copy+cpu", COPY_IN | COPY_OUT | COPY_WITHIN},
      {"fault:after=0,on=fill+cpu", FILL},
      {"fault:after=0,on=alloc+cpu", ALLOC},
      {"fault:after=0+cpu", ALLOC},
      {"fault:after=2,on=all+cpu", COPY_IN | COPY_OUT | COPY_WITHIN | FILL},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    quay_allocator *allocator = open(cases[i].spec);
    cr_expect_eq(run_all(allocator), cases[i].failed, "%s", cases[i].spec);
    quay_allocator_release(allocator);
  }
}

/* Copies `size` bytes from one to the other and gives the calls that each side counted. */
static void count_copy(quay_allocator *to, quay_allocator *from, uint64_t *out_to,
                       uint64_t *out_from) {
  const int64_t shape[] = {5000};
  quay_buffer *destination = NULL;
  quay_buffer *source = NULL;
  CHECK_OK(quay_buffer_create(to, QUAY_U8, 1, shape, NULL, &destination));
  CHECK_OK(quay_buffer_create_zeroed(from, QUAY_U8, 1, shape, &source));
  CHECK_OK(quay_fault_reset(to));
  CHECK_OK(quay_fault_reset(from));
  CHECK_OK(quay_buffer_copy_from(destination, source));
  *out_to = counts_of(to).calls;
  *out_from = counts_of(from).calls;
  quay_buffer_release(source);
  quay_buffer_release(destination);
}

Test(fault, a_copy_between_kinds_counts_as_copy_out_at_its_source_and_copy_in_at_its_destination) {
  quay_allocator *to = open("fault:nth=1000,on=copy_in+cpu");
  quay_allocator *from = open("fault:nth=1000,on=copy_out+mmap:/tmp");
  quay_allocator *other_way = open("fault:nth=1000,on=copy_in+mmap:/tmp");
  uint64_t calls[2];
  count_copy(to, from, &calls[0], &calls[1]);
  cr_expect_eq(calls[0], 1, "the destination counted %d", (int)calls[0]);
  cr_expect_eq(calls[1], 1, "the source counted %d", (int)calls[1]);
  count_copy(other_way, to, &calls[0], &calls[1]);
  cr_expect_eq(calls[0], 1, "the file counted %d", (int)calls[0]);
  cr_expect_eq(calls[1], 0, "a source counts no copy_in");
  quay_allocator_release(other_way);
  quay_allocator_release(from);
  quay_allocator_release(to);
}

Test(fault, status_is_the_default_of_the_kind_or_what_the_spec_says) {
  static const struct {
    const char *spec;
    quay_status status;
  } cases[] = {
      {"fault:after=0,on=fill+cpu", QUAY_STATUS_IO},
      {"fault:after=0,on=fill,status=device_lost+cpu", QUAY_STATUS_DEVICE_LOST},
      {"fault:after=0,on=fill,status=busy+cpu", QUAY_STATUS_BUSY},
      {"fault:after=0,on=fill,status=out_of_device_memory+cpu", QUAY_STATUS_OUT_OF_DEVICE_MEMORY},
  };
  const int64_t shape[] = {10};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    quay_allocator *allocator = open(cases[i].spec);
    quay_buffer *buffer = NULL;
    CHECK_OK(quay_buffer_create(allocator, QUAY_U8, 1, shape, NULL, &buffer));
    CHECK_FAILS(quay_buffer_fill(buffer, "x", 1), cases[i].status);
    quay_buffer_release(buffer);
    quay_allocator_release(allocator);
  }
}

Test(fault, a_failed_copy_moves_nothing) {
  quay_allocator *allocator = open("fault:nth=2,on=copy_in+cpu");
  const int64_t shape[] = {100};
  unsigned char first[100];
  unsigned char second[100];
  unsigned char found[100];
  quay_buffer *buffer = NULL;
  quay_test_random_bytes(first, 100, 1);
  quay_test_random_bytes(second, 100, 2);
  CHECK_OK(quay_buffer_create_from_host(allocator, QUAY_U8, 1, shape, first, NULL, &buffer));
  CHECK_FAILS(quay_buffer_copy_in(buffer, second, 100), QUAY_STATUS_IO);
  CHECK_OK(quay_buffer_copy_out(buffer, found, 100));
  cr_assert_arr_eq(found, first, 100);
  quay_buffer_release(buffer);
  quay_allocator_release(allocator);
}

Test(fault, reset_begins_the_count_again) {
  quay_allocator *allocator = open("track+fault:nth=2+cpu");
  char pattern[8];
  pattern_of(allocator, 3, pattern);
  cr_assert_str_eq(pattern, ".X.");
  CHECK_OK(quay_fault_reset(allocator));
  cr_assert_eq(counts_of(allocator).calls, 0);
  cr_assert_eq(counts_of(allocator).failed, 0);
  pattern_of(allocator, 3, pattern);
  cr_assert_str_eq(pattern, ".X.");
  quay_allocator_release(allocator);
}

static atomic_uint failures;

static void *allocate_many(void *allocator) {
  for (int i = 0; i < 1000; i++) {
    quay_raw_buffer raw;
    if (quay_allocator_alloc(allocator, 10, NULL, &raw) != QUAY_OK)
      atomic_fetch_add(&failures, 1);
    quay_raw_buffer_free(&raw);
  }
  return NULL;
}

Test(fault, exactly_as_many_calls_fail_with_many_threads_as_with_one) {
  quay_allocator *allocator = open("fault:every=7+cpu");
  pthread_t threads[4];
  for (size_t i = 0; i < 4; i++)
    cr_assert_eq(pthread_create(&threads[i], NULL, allocate_many, allocator), 0);
  for (size_t i = 0; i < 4; i++)
    pthread_join(threads[i], NULL);
  cr_assert_eq(atomic_load(&failures), 4000 / 7);
  cr_assert_eq(counts_of(allocator).calls, 4000);
  cr_assert_eq(counts_of(allocator).failed, 4000 / 7);
  quay_allocator_release(allocator);
}

Test(fault, the_spec_is_given_in_its_normal_form) {
  static const char *const specs[][2] = {
      {"fault:after=3+cpu", "fault:after=3+cpu"},
      {"fault:on=alloc,after=003+cpu", "fault:after=3+cpu"},
      {"fault:status=io,on=copy,every=5+cpu", "fault:every=5,on=copy,status=io+cpu"},
      {"fault:status=out_of_host_memory,nth=1+cpu", "fault:nth=1,status=out_of_host_memory+cpu"},
  };
  for (size_t i = 0; i < 4; i++) {
    quay_allocator *allocator = open(specs[i][0]);
    cr_expect_str_eq(quay_allocator_spec(allocator), specs[i][1]);
    quay_allocator_release(allocator);
  }
}

Test(fault, bad_arguments_are_refused_with_what_is_possible) {
  static const char *const wrong[][2] = {
      {"fault+cpu", "after=N"},
      {"fault:on=alloc+cpu", "every=N"},
      {"fault:after=1,nth=2+cpu", "more than one"},
      {"fault:after=1,every=2,nth=3+cpu", "more than one"},
      {"fault:nth=0+cpu", "nth=0"},
      {"fault:every=0+cpu", "every=0"},
      {"fault:after=-1+cpu", "-1"},
      {"fault:after=3x+cpu", "3x"},
      {"fault:after=1KiB+cpu", "1KiB"},
      {"fault:3+cpu", "\"3\""},
      {"fault:after=1,on=free+cpu", "copy_within"},
      {"fault:after=1,on=+cpu", "on="},
      {"fault:after=1,status=ok+cpu", "status=ok"},
      {"fault:after=1,status=IO+cpu", "status=IO"},
      {"fault:after=1,status=iox+cpu", "status=iox"},
      {"fault:after=1,after=2+cpu", "twice"},
      {"fault:often=1+cpu", "often=1"},
  };
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    quay_allocator *allocator = NULL;
    CHECK_FAILS(quay_allocator_open(wrong[i][0], &allocator), QUAY_STATUS_INVALID_ARGUMENT);
    CHECK_MESSAGE(wrong[i][1]);
    cr_assert_null(allocator);
  }
}

Test(fault, an_allocator_without_the_layer_and_null_are_refused) {
  quay_allocator *allocator = open("cpu");
  quay_fault_counts counts;
  CHECK_FAILS(quay_fault_get_counts(allocator, &counts), QUAY_STATUS_INVALID_ARGUMENT);
  CHECK_FAILS(quay_fault_get_counts(NULL, &counts), QUAY_STATUS_INVALID_ARGUMENT);
  CHECK_FAILS(quay_fault_reset(allocator), QUAY_STATUS_INVALID_ARGUMENT);
  CHECK_FAILS(quay_fault_reset(NULL), QUAY_STATUS_INVALID_ARGUMENT);
  quay_allocator_release(allocator);
  allocator = open("fault:nth=1+cpu");
  CHECK_FAILS(quay_fault_get_counts(allocator, NULL), QUAY_STATUS_INVALID_ARGUMENT);
  quay_allocator_release(allocator);
}
