/* Staged copies: what the plan says, that every byte arrives, how the two legs overlap and on which
 * threads they run, nesting, fork and exit. */
#include "unit/staging_fixture.h"

#include <sys/wait.h>

#include "support/files.h"
#include "support/late/late.h"

TestSuite(staging, .init = allow_two_threads);

/* Plans. */

static void check_plan(uint64_t size, const quay_copy_options *options, uint64_t chunk,
                       uint32_t slot_count) {
  two_sides two = two_manual(size, NULL, NULL);
  const quay_copy_plan_info plan = plan_sides(&two, options);
  cr_assert_eq(plan.chunk, chunk, "%llu bytes: chunk %llu", (unsigned long long)size,
               (unsigned long long)plan.chunk);
  cr_assert_eq(plan.staging_bytes, chunk * slot_count, "%llu bytes: %llu held",
               (unsigned long long)size, (unsigned long long)plan.staging_bytes);
  cr_assert_eq(plan.threads, slot_count > 1 ? 2u : 1u);
  begin_watching();
  MUST(copy_sides(&two, options));
  cr_assert_eq(slots.peak_bytes, plan.staging_bytes);
  cr_assert_eq(slots.peak_count, slot_count);
  close_sides(&two);
}

Test(staging, a_copy_holds_what_its_plan_says) {
  check_plan(1, NULL, 1, 1);
  check_plan(4 * MIB, NULL, 4 * MIB, 1);
  check_plan(4 * MIB + 1, NULL, MIB, 4);
  check_plan(40 * MIB, NULL, 4 * MIB, 4);
}

Test(staging, a_copy_keeps_to_the_bytes_that_its_options_allow) {
  check_plan(3 * MIB, &(quay_copy_options){.max_staging_bytes = 128 * KIB}, 64 * KIB, 2);
  check_plan(64 * KIB, &(quay_copy_options){.max_staging_bytes = 128 * KIB}, 64 * KIB, 1);
  check_plan(20 * MIB, &(quay_copy_options){.max_staging_bytes = 9 * MIB}, 2560 * KIB + 4 * KIB, 3);
  check_plan(10 * KIB, &(quay_copy_options){.max_staging_bytes = 5000}, 4 * KIB, 1);
}

Test(staging, a_copy_keeps_to_the_budget) {
  setenv("QUAY_STAGING_BYTES", "256KiB", 1);
  check_plan(3 * MIB, NULL, 128 * KIB, 2);
  check_plan(3 * MIB, &(quay_copy_options){.max_staging_bytes = MIB}, 128 * KIB, 2);
}

Test(staging, one_thread_needs_one_slot) {
  check_plan(10 * MIB, &(quay_copy_options){.max_threads = 1}, 4 * MIB, 1);
  setenv("QUAY_COPY_THREADS", "1", 1);
  check_plan(10 * MIB, NULL, 4 * MIB, 1);
}

Test(staging, a_bad_number_of_threads_is_an_error_and_moves_nothing) {
  two_sides two = two_manual(100, NULL, NULL);
  setenv("QUAY_COPY_THREADS", "many", 1);
  MUST_FAIL(copy_sides(&two, NULL), INVALID_ARGUMENT);
  cr_assert_not_null(strstr(quay_last_error()->message, "QUAY_COPY_THREADS"));
  pattern_check_buffer(two.to, 0, 1);
  close_sides(&two);
}

/* Bytes. */

/* Moves `size` bytes between odd places; what is around them stays. */
static void check_bytes(two_sides *two, uint64_t size, const quay_copy_options *options) {
  const uint64_t total = quay_buffer_size(two->to), to = 313, from = 77;
  unsigned char *bytes = malloc(total);
  pattern_make(bytes, total, 1);
  MUST(quay_buffer_copy_in(two->to, bytes, total));
  MUST(quay_buffer_copy_region(two->to, to, two->from, from, size, options));
  MUST(quay_buffer_copy_out(two->to, bytes, total));
  pattern_check(bytes, 0, to, 1);
  pattern_check(bytes + to, from, size, 2);
  pattern_check(bytes + to + size, to + size, total - to - size, 1);
  pattern_check_buffer(two->from, 0, 2);
  free(bytes);
}

static void check_sizes(quay_allocator *to, quay_allocator *from, uint64_t allowed,
                        uint64_t chunk) {
  const uint64_t sizes[] = {0, 1, chunk - 1, chunk, chunk + 1, 2 * chunk, 2 * chunk + 12345};
  const quay_copy_options options = {.max_staging_bytes = allowed};
  two_sides two = two_of(to, from, 2 * chunk + 20000);
  cr_assert_eq(plan_sides(&two, &options).chunk, chunk);
  for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
    check_bytes(&two, sizes[i], &options);
  quay_buffer_release(two.to);
  quay_buffer_release(two.from);
  check_nothing_held();
}

Test(staging, every_byte_arrives_around_the_size_of_a_chunk_and_at_odd_offsets) {
  MUST(late_register(NULL));
  quay_allocator *each[] = {open_spec("late:0"), open_spec("late:2"),
                            manual_open(&(manual_options){0}), open_spec("track+late:2")};
  for (int to = 0; to < 3; to++) {
    for (int from = 0; from < 4; from++) {
      if (to == from || (to == 1 && from == 3))
        continue;
      check_sizes(each[to], each[from], 128 * KIB, 64 * KIB);
      check_sizes(each[to], each[from], 8192, 4096);
      check_sizes(each[to], each[from], 5000, 4096);
    }
  }
  cr_assert_eq(late_violations(NULL, 0), 0u);
  for (int i = 0; i < 4; i++)
    quay_allocator_release(each[i]);
  MUST(late_unregister());
}

Test(staging, a_file_is_staged_to_and_from_memory_that_has_no_pointer, .init = test_files_begin,
     .fini = test_files_end) {
  const uint64_t size = 3 * MIB + 12345;
  allow_two_threads();
  quay_buffer *file = test_map(test_file("data", size, 5), QUAY_MAP_SHARED);
  quay_allocator *device = manual_open(&(manual_options){0});
  quay_buffer *there = pattern_buffer(device, size, 1);
  const quay_copy_options options = {.max_staging_bytes = 128 * KIB};
  MUST(quay_buffer_copy_region(there, 0, file, 0, size, &options));
  cr_assert(test_buffer_is(there, 0, 5));
  quay_buffer *again = pattern_buffer(device, size, 3);
  MUST(quay_buffer_copy_region(file, 0, again, 0, size, &options));
  pattern_check_buffer(file, 0, 3);
  quay_buffer_release(again);
  quay_buffer_release(there);
  quay_buffer_release(file);
  quay_allocator_release(device);
}

/* Overlap. */

enum {
  CHUNK_COUNT = 20
};
#define CHUNK (64 * KIB)
static const quay_copy_options small_chunks = {.max_staging_bytes = 2 * CHUNK};

typedef struct paced {
  atomic_bool on;
  unsigned in_us, out_us;     /* that a chunk takes */
  atomic_uint begun, arrived; /* chunks */
} paced;

static quay_status keep_pace(void *user, quay_use_mode mode, uint64_t offset, uint64_t size) {
  paced *pace = user;
  (void)offset;
  (void)size;
  if (atomic_load(&pace->on))
    sleep_us(mode == QUAY_WRITE ? pace->in_us : pace->out_us);
  return QUAY_OK;
}

/* Milliseconds, the best of a few, for the machine may be busy; enough if below `wanted`. */
static double time_of(unsigned out_us, unsigned in_us, uint32_t max_threads, double wanted) {
  paced pace = {.in_us = in_us, .out_us = out_us};
  two_sides two = two_manual(CHUNK_COUNT * CHUNK, keep_pace, &pace);
  quay_copy_options options = small_chunks;
  options.max_threads = max_threads;
  if (max_threads == 1)
    options.max_staging_bytes = CHUNK;
  cr_assert_eq(plan_sides(&two, &options).chunk, CHUNK);
  double best = 1e9;
  atomic_store(&pace.on, true);
  for (int i = 0; i < 8 && best >= wanted; i++) {
    const uint64_t begin = quay__os_nanoseconds();
    MUST(copy_sides(&two, &options));
    const double took = (double)(quay__os_nanoseconds() - begin) / 1e6;
    best = took < best ? took : best;
  }
  close_sides(&two);
  return best;
}

Test(staging, the_time_of_many_chunks_is_that_of_the_slower_leg_and_not_of_both) {
  const unsigned legs[][2] = {{10000, 10000}, {10000, 5000}, {5000, 10000}};
  for (int i = 0; i < 3; i++) {
    const double slower = 10.0 * CHUNK_COUNT;
    const double both = (legs[i][0] + legs[i][1]) / 1e3 * CHUNK_COUNT;
    const double wanted = slower + (both - slower) * 0.5;
    const double overlapped = time_of(legs[i][0], legs[i][1], 2, wanted);
    const double in_turns = time_of(legs[i][0], legs[i][1], 1, 1e9);
    cr_log_info("legs of %u and %u us: %.1f ms, in turns %.1f ms; slower leg %.1f, sum %.1f",
                legs[i][0], legs[i][1], overlapped, in_turns, slower, both);
    cr_assert_geq(in_turns, both);
    cr_assert_lt(overlapped, wanted, "%.1f ms", overlapped);
  }
}

/* No chunk goes in before the next one has begun to come out. */
static quay_status wait_for_next(void *user, quay_use_mode mode, uint64_t offset, uint64_t size) {
  paced *pace = user;
  (void)offset;
  (void)size;
  if (!atomic_load(&pace->on))
    return QUAY_OK;
  if (mode == QUAY_READ) {
    atomic_fetch_add(&pace->begun, 1);
    return QUAY_OK;
  }
  const unsigned next = atomic_fetch_add(&pace->arrived, 1) + 2;
  if (reaches(&pace->begun, next < CHUNK_COUNT ? next : CHUNK_COUNT))
    return QUAY_OK;
  return quay_error_set(QUAY_STATUS_BUSY, "test", 0, NULL, "the next chunk does not come");
}

Test(staging, a_chunk_comes_out_while_the_one_before_it_goes_in) {
  paced pace = {.on = false};
  two_sides two = two_manual(CHUNK_COUNT * CHUNK, wait_for_next, &pace);
  atomic_store(&pace.on, true);
  MUST(copy_sides(&two, &small_chunks));
  atomic_store(&pace.on, false);
  pattern_check_buffer(two.to, 0, 2);
  close_sides(&two);
}

/* Threads. */

typedef struct on_threads {
  atomic_bool on;
  pthread_t caller;
  atomic_uint in_elsewhere, out_elsewhere;
} on_threads;

static quay_status note_thread(void *user, quay_use_mode mode, uint64_t offset, uint64_t size) {
  on_threads *seen = user;
  (void)offset;
  (void)size;
  if (!atomic_load(&seen->on))
    return QUAY_OK;
  if (!pthread_equal(pthread_self(), seen->caller))
    atomic_fetch_add(mode == QUAY_WRITE ? &seen->in_elsewhere : &seen->out_elsewhere, 1);
  if (mode == QUAY_WRITE)
    sleep_us(500); /* time for a worker to come */
  return QUAY_OK;
}

static void check_threads(uint64_t size, const quay_copy_options *options, bool out_elsewhere) {
  on_threads seen = {.caller = pthread_self()};
  two_sides two = two_manual(size, note_thread, &seen);
  atomic_store(&seen.on, true);
  for (int i = 0; i < 20; i++)
    MUST(copy_sides(&two, options));
  atomic_store(&seen.on, false);
  pattern_check_buffer(two.to, 0, 2);
  cr_assert_eq(atomic_load(&seen.in_elsewhere), 0u);
  cr_assert_eq(atomic_load(&seen.out_elsewhere) != 0, out_elsewhere);
  close_sides(&two);
}

Test(staging, the_source_is_read_by_a_worker_and_the_destination_written_by_the_caller) {
  check_threads(CHUNK_COUNT * CHUNK, &small_chunks, true);
}

Test(staging, a_copy_of_one_slot_stays_on_the_calling_thread) {
  atomic_store(&threads_left, 0);
  check_threads(CHUNK, &small_chunks, false);
  check_threads(100, NULL, false);
}

Test(staging, a_copy_for_one_thread_stays_on_the_calling_thread) {
  check_threads(10 * CHUNK, &(quay_copy_options){.max_staging_bytes = CHUNK, .max_threads = 1},
                false);
}

Test(staging, where_no_thread_can_be_started_the_caller_does_both_legs) {
  atomic_store(&threads_left, 0);
  check_threads(CHUNK_COUNT * CHUNK, &small_chunks, false);
}

/* Progress. */

typedef struct told {
  pthread_t caller;
  uint64_t last, total, stop_at;
  unsigned calls;
} told;

static bool note_progress(void *user, uint64_t done, uint64_t total) {
  told *seen = user;
  cr_assert(pthread_equal(pthread_self(), seen->caller));
  cr_assert_gt(done, seen->last);
  cr_assert_leq(done, total);
  cr_assert_eq(total, seen->total);
  seen->last = done;
  seen->calls++;
  return done < seen->stop_at;
}

static void check_progress(uint64_t size) {
  two_sides two = two_manual(size, NULL, NULL);
  told seen = {.caller = pthread_self(), .total = size, .stop_at = UINT64_MAX};
  quay_copy_options options = small_chunks;
  options.progress = note_progress;
  options.progress_user = &seen;
  MUST(copy_sides(&two, &options));
  cr_assert_eq(seen.last, size);
  cr_assert_eq(seen.calls, (size + CHUNK - 1) / CHUNK);
  close_sides(&two);
}

Test(staging, progress_is_told_on_the_calling_thread_for_each_chunk_and_ends_at_the_total) {
  check_progress(1);
  check_progress(CHUNK);
  check_progress(17 * CHUNK + 12345);
}

Test(staging, a_callback_that_returns_false_stops_both_legs) {
  two_sides two = two_manual(CHUNK_COUNT * CHUNK, NULL, NULL);
  told seen = {.caller = pthread_self(), .total = CHUNK_COUNT * CHUNK, .stop_at = 4 * CHUNK};
  quay_copy_options options = small_chunks;
  options.progress = note_progress;
  options.progress_user = &seen;
  const unsigned in = atomic_load(&manual.copy_in), out = atomic_load(&manual.copy_out);
  MUST_FAIL(copy_sides(&two, &options), CANCELLED);
  cr_assert_not_null(strstr(quay_last_error()->message, "undefined"));
  cr_assert_eq(seen.calls, 4u);
  cr_assert_eq(atomic_load(&manual.copy_in) - in, 4u);
  cr_assert_leq(atomic_load(&manual.copy_out) - out, 6u);
  check_nothing_held();
  close_sides(&two);
}

/* Copies inside copies. */

typedef struct inside {
  atomic_bool on;
  quay_use_mode leg;
  uint64_t size;
} inside;

static quay_status stage_inside(void *user, quay_use_mode mode, uint64_t offset, uint64_t size) {
  inside *inner = user;
  (void)offset;
  (void)size;
  if (!atomic_load(&inner->on) || mode != inner->leg)
    return QUAY_OK;
  two_sides two = two_manual(inner->size, NULL, NULL);
  MUST(copy_sides(&two, NULL));
  pattern_check_buffer(two.to, 0, 2);
  close_sides(&two);
  return QUAY_OK;
}

static void check_inside(quay_use_mode leg, const quay_copy_options *options) {
  setenv("QUAY_STAGING_BYTES", "64KiB", 1);
  inside inner = {.leg = leg, .size = 200000};
  two_sides two = two_manual(300000, stage_inside, &inner);
  for (int i = 0; i < 5; i++) {
    atomic_store(&inner.on, true);
    MUST(copy_sides(&two, options));
    atomic_store(&inner.on, false);
    pattern_check_buffer(two.to, 0, 2);
  }
  close_sides(&two);
  check_nothing_held();
}

Test(staging, a_copy_inside_the_first_leg_does_not_wait_for_the_outer_one) {
  check_inside(QUAY_READ, NULL);
}

Test(staging, a_copy_inside_the_second_leg_does_not_wait_for_the_outer_one) {
  check_inside(QUAY_WRITE, NULL);
}

static void *check_inside_both(void *unused) {
  for (int i = 0; i < 3; i++) {
    inside inner = {.leg = i == 1 ? QUAY_WRITE : QUAY_READ, .size = 200000};
    two_sides two = two_manual(300000, stage_inside, &inner);
    atomic_store(&inner.on, true);
    MUST(copy_sides(&two, NULL));
    close_sides(&two);
  }
  return unused;
}

Test(staging, copies_inside_copies_of_several_threads_do_not_wait_for_each_other) {
  setenv("QUAY_STAGING_BYTES", "64KiB", 1);
  pthread_t threads[4];
  for (int i = 0; i < 4; i++)
    cr_assert_eq(pthread_create(&threads[i], NULL, check_inside_both, NULL), 0);
  for (int i = 0; i < 4; i++)
    pthread_join(threads[i], NULL);
  check_nothing_held();
}

static bool copy_in_callback(void *user, uint64_t done, uint64_t total) {
  (void)done;
  (void)total;
  return copy_sides(user, NULL) == QUAY_OK;
}

Test(staging, a_copy_inside_the_callback_does_not_wait_for_the_outer_one) {
  setenv("QUAY_STAGING_BYTES", "64KiB", 1);
  two_sides outer = two_manual(300000, NULL, NULL), inner = two_manual(200000, NULL, NULL);
  MUST(copy_sides(&outer,
                  &(quay_copy_options){.progress = copy_in_callback, .progress_user = &inner}));
  pattern_check_buffer(outer.to, 0, 2);
  pattern_check_buffer(inner.to, 0, 2);
  close_sides(&outer);
  close_sides(&inner);
}

/* The process. */

typedef struct forking {
  atomic_bool on;
  pthread_t caller;
  bool while_helped; /* fork only while the worker reads a chunk */
  two_sides inner;   /* copied in the callback before it forks */
  atomic_uint helping, forked;
  pid_t child;
} forking;

static quay_status help_until_forked(void *user, quay_use_mode mode, uint64_t offset,
                                     uint64_t size) {
  forking *plan = user;
  (void)offset;
  (void)size;
  if (!atomic_load(&plan->on) || !plan->while_helped || mode != QUAY_READ ||
      pthread_equal(pthread_self(), plan->caller))
    return QUAY_OK;
  atomic_store(&plan->helping, 1);
  /* Not for ever: it may be this very chunk that the caller waits for. */
  for (int i = 0; i < 100 && atomic_load(&plan->forked) == 0; i++)
    sleep_us(1000);
  if (atomic_load(&plan->forked) == 0)
    atomic_store(&plan->helping, 0);
  return QUAY_OK;
}

static bool fork_once(void *user, uint64_t done, uint64_t total) {
  forking *plan = user;
  (void)total;
  if (plan->child >= 0 || (!plan->while_helped && done <= CHUNK))
    return true;
  /* Not every chunk has a helper: then at a later one. */
  for (int i = 0; i < 500 && plan->while_helped && atomic_load(&plan->helping) == 0; i++)
    sleep_us(1000);
  if (plan->while_helped && atomic_load(&plan->helping) == 0)
    return true;
  MUST(copy_sides(&plan->inner, &small_chunks));
  plan->child = fork();
  if (plan->child == 0)
    alarm(20);
  atomic_store(&plan->forked, 1);
  return true;
}

/* In the child the copy is done, or refused because its helper is lost; it never hangs. */
static bool child_is_well(const two_sides *two, quay_status status, bool while_helped) {
  const bool refused =
      status == QUAY_STATUS_UNAVAILABLE && strstr(quay_last_error()->message, "forked") != NULL;
  if (!(refused || (status == QUAY_OK && !while_helped)) || slots.count != 0)
    return false;
  if (copy_sides(two, &small_chunks) != QUAY_OK)
    return false;
  pattern_check_buffer(two->to, 0, 2);
  return true;
}

static void check_fork_midway(bool while_helped) {
  forking plan = {.caller = pthread_self(), .while_helped = while_helped, .child = -1};
  two_sides two = two_manual(CHUNK_COUNT * CHUNK, help_until_forked, &plan);
  plan.inner = two_manual(3 * CHUNK, NULL, NULL);
  quay_copy_options options = small_chunks;
  options.progress = fork_once;
  options.progress_user = &plan;
  atomic_store(&plan.on, true);
  const quay_status status = copy_sides(&two, &options);
  atomic_store(&plan.on, false);
  if (plan.child == 0)
    _exit(child_is_well(&two, status, while_helped) ? 0 : 1);
  cr_assert_eq(status, QUAY_OK);
  cr_assert_gt(plan.child, 0);
  int result = -1;
  cr_assert_eq(waitpid(plan.child, &result, 0), plan.child);
  cr_assert(WIFEXITED(result) && WEXITSTATUS(result) == 0, "the child gave %d", result);
  pattern_check_buffer(two.to, 0, 2);
  close_sides(&plan.inner);
  close_sides(&two);
}

Test(staging, a_copy_that_is_forked_midway_ends_in_both_processes) {
  for (int i = 0; i < 20; i++)
    check_fork_midway(false);
}

Test(staging, a_copy_that_is_forked_while_a_worker_helps_is_refused_in_the_child) {
  for (int i = 0; i < 5; i++)
    check_fork_midway(true);
}

static bool exit_midway(void *user, uint64_t done, uint64_t total) {
  (void)user;
  (void)total;
  if (done > CHUNK)
    exit(7);
  return true;
}

Test(staging, a_callback_may_end_the_program) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    two_sides two = two_manual(CHUNK_COUNT * CHUNK, NULL, NULL);
    quay_copy_options options = small_chunks;
    options.progress = exit_midway;
    const quay_status status = copy_sides(&two, &options);
    _exit((int)status);
  }
  int result = -1;
  cr_assert_eq(waitpid(child, &result, 0), child);
  cr_assert(WIFEXITED(result) && WEXITSTATUS(result) == 7, "the child gave %d", result);
}
