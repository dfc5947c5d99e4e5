/* The router: the route of every pair of kinds, which functions are entered, and staging. */
#include "support/manual_device.h"
#include "support/pattern.h"

#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static quay_copy_plan_info plan_of(const quay_buffer *destination, const quay_buffer *source,
                                   const quay_copy_options *options) {
  quay_copy_plan_info plan;
  MUST(quay_copy_plan(destination, 0, source, 0, quay_buffer_size(source), options, &plan));
  cr_assert_eq(plan.size, quay_buffer_size(source));
  cr_assert_eq(plan.from, quay_buffer_kind(source));
  cr_assert_eq(plan.to, quay_buffer_kind(destination));
  cr_assert_neq(plan.reason[0], '\0');
  cr_assert_null(strchr(plan.reason, '\n'));
  return plan;
}

typedef enum kind {
  CPU,
  LAYERED,
  PLAIN,
  DEVICE,
  PINNED,
  FILE_KIND,
  KINDS
} kind;

static quay_allocator *open_kind(kind which, const char *backend) {
  switch (which) {
  case CPU:
    return open_spec("cpu");
  case LAYERED:
    return open_spec("track+cpu");
  case PLAIN:
    return manual_open(
        &(manual_options){.backend = backend, .plain = true, .kind = QUAY_MEMORY_PAGEABLE});
  case DEVICE:
    return manual_open(&(manual_options){.backend = backend});
  case PINNED:
    return manual_open(
        &(manual_options){.backend = backend, .host_accessible = true, .kind = QUAY_MEMORY_PINNED});
  case FILE_KIND:
    return manual_open(
        &(manual_options){.backend = backend, .host_accessible = true, .kind = QUAY_MEMORY_FILE});
  case KINDS:
    break;
  }
  return NULL;
}

/* To the row's kind from the column's, with backends of different names on both sides. */
static const quay_route table[KINDS][KINDS] = {
    /* to \ from       CPU                LAYERED            PLAIN              DEVICE PINNED FILE
     */
    [CPU] = {QUAY_ROUTE_WITHIN, QUAY_ROUTE_WITHIN, QUAY_ROUTE_WITHIN, QUAY_ROUTE_DIRECT,
             QUAY_ROUTE_DIRECT, QUAY_ROUTE_FILE},
    [LAYERED] = {QUAY_ROUTE_WITHIN, QUAY_ROUTE_WITHIN, QUAY_ROUTE_DIRECT, QUAY_ROUTE_DIRECT,
                 QUAY_ROUTE_DIRECT, QUAY_ROUTE_FILE},
    [PLAIN] = {QUAY_ROUTE_WITHIN, QUAY_ROUTE_DIRECT, QUAY_ROUTE_WITHIN, QUAY_ROUTE_DIRECT,
               QUAY_ROUTE_DIRECT, QUAY_ROUTE_FILE},
    [DEVICE] = {QUAY_ROUTE_DIRECT, QUAY_ROUTE_DIRECT, QUAY_ROUTE_DIRECT, QUAY_ROUTE_STAGED,
                QUAY_ROUTE_DIRECT, QUAY_ROUTE_STAGED},
    [PINNED] = {QUAY_ROUTE_DIRECT, QUAY_ROUTE_DIRECT, QUAY_ROUTE_DIRECT, QUAY_ROUTE_DIRECT,
                QUAY_ROUTE_DIRECT, QUAY_ROUTE_FILE},
    [FILE_KIND] = {QUAY_ROUTE_FILE, QUAY_ROUTE_FILE, QUAY_ROUTE_FILE, QUAY_ROUTE_STAGED,
                   QUAY_ROUTE_FILE, QUAY_ROUTE_STAGED},
};

Test(copy_route, every_pair_of_kinds_has_its_route_and_arrives) {
  for (int to = 0; to < KINDS; to++) {
    for (int from = 0; from < KINDS; from++) {
      quay_allocator *a = open_kind((kind)to, "alpha"), *b = open_kind((kind)from, "beta");
      quay_buffer *d = pattern_buffer(a, 10007, 1), *s = pattern_buffer(b, 10007, 2);
      quay_buffer *dv = NULL, *sv = NULL;
      MUST(quay_buffer_view(d, 313, 9001, &dv));
      MUST(quay_buffer_view(s, 77, 9001, &sv));
      cr_assert_eq(plan_of(dv, sv, NULL).route, table[to][from], "to %d from %d", to, from);
      MUST(quay_buffer_copy_from(dv, sv));
      pattern_check_buffer(dv, 77, 2);
      pattern_check_buffer(s, 0, 2);
      unsigned char all[10007];
      MUST(quay_buffer_copy_out(d, all, sizeof(all)));
      pattern_check(all, 0, 313, 1);
      pattern_check(all + 9314, 9314, 10007 - 9314, 1);
      quay_buffer_release(dv);
      quay_buffer_release(sv);
      quay_buffer_release(d);
      quay_buffer_release(s);
      quay_allocator_release(a);
      quay_allocator_release(b);
    }
  }
}

Test(copy_route, nothing_to_move_is_no_route) {
  quay_buffer *b = pattern_buffer(NULL, 10, 1);
  quay_copy_plan_info plan;
  MUST(quay_copy_plan(b, 3, b, 10, 0, NULL, &plan));
  cr_assert_eq(plan.route, QUAY_ROUTE_NONE);
  cr_assert_eq(plan.size, 0);
  quay_buffer_release(b);
}

Test(copy_route, a_plan_checks_ranges) {
  quay_buffer *b = pattern_buffer(NULL, 10, 1);
  quay_copy_plan_info plan;
  MUST_FAIL(quay_copy_plan(b, 5, b, 0, 6, NULL, &plan), OUT_OF_RANGE);
  MUST_FAIL(quay_copy_plan(b, 0, b, UINT64_MAX, 2, NULL, &plan), OUT_OF_RANGE);
  quay_buffer_release(b);
}

Test(copy_route, a_plan_of_lazy_buffers_allocates_nothing) {
  quay_allocator *a = manual_open(&(manual_options){.across = true});
  quay_buffer *d = NULL, *s = NULL;
  MUST(quay_buffer_create_lazy(a, QUAY_U8, 1, (int64_t[]){100}, NULL, &d));
  MUST(quay_buffer_create_lazy(NULL, QUAY_U8, 1, (int64_t[]){100}, NULL, &s));
  const quay_copy_plan_info plan = plan_of(d, s, NULL);
  cr_assert_eq(plan.route, QUAY_ROUTE_DIRECT);
  cr_assert_str_eq(plan.reason, "manual path");
  cr_assert_not(quay_buffer_is_allocated(d));
  cr_assert_not(quay_buffer_is_allocated(s));
  quay_buffer_release(d);
  quay_buffer_release(s);
  quay_allocator_release(a);
}

Test(copy_route, one_space_is_copied_within_and_lends_only_across_allocators) {
  quay_allocator *a = manual_open(&(manual_options){0});
  quay_allocator *b = manual_open_beside(&(manual_options){0}, a);
  quay_buffer *x = pattern_buffer(a, 100, 1), *y = pattern_buffer(a, 100, 2);
  quay_buffer *z = pattern_buffer(b, 100, 3);
  MUST(quay_buffer_copy_from(x, y));
  cr_assert_eq(atomic_load(&manual.copy_within), 1);
  cr_assert_eq(atomic_load(&manual.lend_read), 0);
  MUST(quay_buffer_copy_from(x, z));
  cr_assert_eq(atomic_load(&manual.copy_within), 2);
  cr_assert_eq(atomic_load(&manual.lend_read), 1);
  cr_assert_eq(atomic_load(&manual.lend_write), 0);
  pattern_check_buffer(x, 0, 3);
  quay_buffer_release(x);
  quay_buffer_release(y);
  quay_buffer_release(z);
  quay_allocator_release(a);
  quay_allocator_release(b);
}

Test(copy_route, the_destination_is_asked_for_a_path_first_then_the_source) {
  quay_allocator *with = manual_open(&(manual_options){.backend = "with", .across = true});
  quay_allocator *without = manual_open(&(manual_options){.backend = "without"});
  quay_buffer *x = pattern_buffer(with, 100, 1), *y = pattern_buffer(without, 100, 2);
  const quay_copy_plan_info plan = plan_of(x, y, NULL);
  cr_assert_eq(plan.route, QUAY_ROUTE_DIRECT);
  cr_assert_eq(plan.chunk, 12345);
  cr_assert_eq(plan.threads, 3);
  MUST(quay_buffer_copy_from(x, y));
  cr_assert_eq(atomic_load(&manual.copy_across), 1);
  cr_assert_eq(atomic_load(&manual.lend_read), 1);
  cr_assert_eq(atomic_load(&manual.lend_write), 0);
  pattern_check_buffer(x, 0, 2);
  pattern_make(&(unsigned char[1]){0}, 1, 1);
  MUST(quay_buffer_copy_from(y, x));
  cr_assert_eq(atomic_load(&manual.copy_across), 2);
  cr_assert_eq(atomic_load(&manual.lend_write), 1);
  quay_buffer_release(x);
  quay_buffer_release(y);
  quay_allocator_release(with);
  quay_allocator_release(without);
}

Test(copy_route, two_sides_of_ordinary_memory_are_never_asked_for_a_path) {
  quay_allocator *a =
      manual_open(&(manual_options){.plain = true, .across = true, .kind = QUAY_MEMORY_PAGEABLE});
  quay_allocator *layered = open_spec("track+cpu");
  quay_buffer *x = pattern_buffer(a, 100, 1), *y = pattern_buffer(layered, 100, 2);
  MUST(quay_buffer_copy_from(x, y));
  MUST(quay_buffer_copy_from(y, x));
  cr_assert_eq(atomic_load(&manual.copy_across), 0);
  quay_buffer_release(x);
  quay_buffer_release(y);
  quay_allocator_release(a);
  quay_allocator_release(layered);
}

Test(copy_route, layers_are_entered_on_both_sides) {
  quay_allocator *to = open_spec("fault:after=1000,on=copy_in+cpu");
  quay_allocator *from = open_spec("fault:after=1000,on=copy_out+cpu");
  quay_allocator *device = manual_open(&(manual_options){0});
  quay_buffer *x = pattern_buffer(to, 100, 1), *y = pattern_buffer(from, 100, 2);
  quay_buffer *z = pattern_buffer(device, 100, 3);
  MUST(quay_fault_reset(to));
  MUST(quay_fault_reset(from));
  MUST(quay_buffer_copy_from(x, z));
  MUST(quay_buffer_copy_from(z, y));
  quay_fault_counts counts;
  MUST(quay_fault_get_counts(to, &counts));
  cr_assert_eq(counts.calls, 1);
  MUST(quay_fault_get_counts(from, &counts));
  cr_assert_eq(counts.calls, 1);
  pattern_check_buffer(x, 0, 3);
  quay_buffer_release(x);
  quay_buffer_release(y);
  quay_buffer_release(z);
  quay_allocator_release(to);
  quay_allocator_release(from);
  quay_allocator_release(device);
}

Test(copy_route, a_side_that_refuses_to_lend_stops_the_copy_before_anything_moves) {
  quay_allocator *from = open_spec("fault:after=0,on=copy_out+cpu");
  quay_allocator *device = manual_open(&(manual_options){0});
  quay_buffer *s = pattern_buffer(from, 100, 1), *d = pattern_buffer(device, 100, 2);
  MUST_FAIL(quay_buffer_copy_from(d, s), IO);
  cr_assert_null(strstr(quay_last_error()->message, "undefined"));
  pattern_check_buffer(d, 0, 2);
  quay_buffer_release(s);
  quay_buffer_release(d);
  quay_allocator_release(from);
  quay_allocator_release(device);
}

/* Staging. */

typedef struct two_devices {
  quay_allocator *a, *b;
  quay_buffer *to, *from;
} two_devices;

static two_devices open_two(uint64_t size) {
  two_devices two = {.a = manual_open(&(manual_options){.backend = "one"}),
                     .b = manual_open(&(manual_options){.backend = "two"})};
  two.to = pattern_buffer(two.a, size, 1);
  two.from = pattern_buffer(two.b, size, 2);
  return two;
}

static void close_two(two_devices *two) {
  quay_buffer_release(two->to);
  quay_buffer_release(two->from);
  quay_allocator_release(two->a);
  quay_allocator_release(two->b);
}

Test(copy_route, staging_stays_within_the_bytes_allowed) {
  two_devices two = open_two(10u << 20);
  setenv("QUAY_COPY_THREADS", "2", 1);
  quay_copy_plan_info plan = plan_of(two.to, two.from, NULL);
  cr_assert_leq(plan.chunk, 4u << 20);
  cr_assert_lt(plan.staging_bytes, 10u << 20);
  plan = plan_of(two.to, two.from, &(quay_copy_options){.max_staging_bytes = 10000});
  cr_assert_eq(plan.staging_bytes, 8192);
  plan = plan_of(two.to, two.from, &(quay_copy_options){.max_staging_bytes = 4096});
  cr_assert_eq(plan.staging_bytes, 4096);
  setenv("QUAY_STAGING_BYTES", "64KiB", 1);
  plan = plan_of(two.to, two.from, NULL);
  cr_assert_eq(plan.staging_bytes, 65536);
  MUST(quay_buffer_copy_from(two.to, two.from));
  pattern_check_buffer(two.to, 0, 2);
  close_two(&two);
}

Test(copy_route, a_bad_staging_budget_is_an_error_and_not_ignored) {
  two_devices two = open_two(100);
  setenv("QUAY_STAGING_BYTES", "lots", 1);
  MUST_FAIL(quay_buffer_copy_from(two.to, two.from), INVALID_ARGUMENT);
  cr_assert_not_null(strstr(quay_last_error()->message, "QUAY_STAGING_BYTES"));
  pattern_check_buffer(two.to, 0, 1);
  unsetenv("QUAY_STAGING_BYTES");
  close_two(&two);
}

Test(copy_route, forbidden_staging_is_unsupported_and_says_why) {
  two_devices two = open_two(100);
  const quay_copy_options options = {.forbid_staging = true};
  quay_copy_plan_info plan;
  MUST_FAIL(quay_copy_plan(two.to, 0, two.from, 0, 100, &options, &plan), UNSUPPORTED);
  MUST_FAIL(quay_buffer_copy_region(two.to, 0, two.from, 0, 100, &options), UNSUPPORTED);
  cr_assert_not_null(strstr(quay_last_error()->message, "staging"));
  cr_assert_not_null(strstr(quay_last_error()->message, "one"));
  cr_assert_not_null(strstr(quay_last_error()->message, "two"));
  pattern_check_buffer(two.to, 0, 1);
  close_two(&two);
}

Test(copy_route, a_staged_copy_that_fails_reports_either_leg) {
  two_devices two = open_two(100);
  atomic_store(&manual_fail_copies, 1);
  MUST_FAIL(quay_buffer_copy_from(two.to, two.from), IO);
  cr_assert_null(strstr(quay_last_error()->message, "undefined"), "nothing was read, or written");
  pattern_check_buffer(two.to, 0, 1);
  MUST(quay_buffer_copy_from(two.to, two.from));
  pattern_check_buffer(two.to, 0, 2);
  close_two(&two);
}

Test(copy_route, staging_of_less_than_4_kib_is_refused_and_moves_nothing) {
  two_devices two = open_two(100);
  static const uint64_t bad[] = {1, 7, 4095};
  for (size_t i = 0; i < 3; i++) {
    const quay_copy_options options = {.max_staging_bytes = bad[i]};
    quay_copy_plan_info plan;
    MUST_FAIL(quay_copy_plan(two.to, 0, two.from, 0, 100, &options, &plan), INVALID_ARGUMENT);
    MUST_FAIL(quay_buffer_copy_region(two.to, 0, two.from, 0, 100, &options), INVALID_ARGUMENT);
    cr_assert_not_null(strstr(quay_last_error()->message, "4096"));
    cr_assert_null(strstr(quay_last_error()->message, "undefined"));
    pattern_check_buffer(two.to, 0, 1);
  }
  close_two(&two);
}

static void *stage_often(void *argument) {
  (void)argument;
  two_devices two = open_two(300000);
  for (int i = 0; i < 20; i++) {
    MUST(quay_buffer_copy_from(two.to, two.from));
    pattern_check_buffer(two.to, 0, 2);
    MUST(quay_buffer_fill(two.to, "x", 1));
  }
  close_two(&two);
  return NULL;
}

Test(copy_route, threads_share_a_small_budget) {
  setenv("QUAY_STAGING_BYTES", "64KiB", 1);
  pthread_t threads[4];
  for (int i = 0; i < 4; i++) {
    cr_assert_eq(pthread_create(&threads[i], NULL, stage_often, NULL), 0);
  }
  for (int i = 0; i < 4; i++)
    pthread_join(threads[i], NULL);
}

static bool copy_inside(void *user, uint64_t done, uint64_t total) {
  two_devices *inner = user;
  (void)done;
  (void)total;
  MUST(quay_buffer_copy_from(inner->to, inner->from));
  return true;
}

Test(copy_route, a_staged_copy_inside_a_staged_copy_does_not_wait_for_itself) {
  setenv("QUAY_STAGING_BYTES", "64KiB", 1);
  two_devices outer = open_two(200000), inner = open_two(100000);
  const quay_copy_options options = {.progress = copy_inside, .progress_user = &inner};
  MUST(quay_buffer_copy_region(outer.to, 0, outer.from, 0, 200000, &options));
  pattern_check_buffer(outer.to, 0, 2);
  pattern_check_buffer(inner.to, 0, 2);
  close_two(&outer);
  close_two(&inner);
}

static bool fork_and_stage(void *user, uint64_t done, uint64_t total) {
  two_devices *inner = user;
  if (done != total)
    return true;
  const pid_t child = fork();
  if (child == 0) {
    const bool ok = quay_buffer_copy_from(inner->to, inner->from) == QUAY_OK;
    _exit(ok ? 0 : 1);
  }
  int status = -1;
  cr_assert_eq(waitpid(child, &status, 0), child);
  cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  return true;
}

Test(copy_route, a_child_forked_inside_a_staged_copy_can_stage) {
  setenv("QUAY_STAGING_BYTES", "64KiB", 1);
  two_devices outer = open_two(100000), inner = open_two(100000);
  const quay_copy_options options = {.progress = fork_and_stage, .progress_user = &inner};
  MUST(quay_buffer_copy_region(outer.to, 0, outer.from, 0, 100000, &options));
  close_two(&outer);
  close_two(&inner);
}
