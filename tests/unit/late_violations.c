/* What the late backend finds: each kind of violation, and its absence next to it. */
#include "late_fixture.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

/* Two streams and two blocks, of the same device. */
static quay_stream *a, *b;
static memory m, n;

static void begin_pair(late_mode mode) {
  begin(mode);
  a = stream_new(0);
  b = stream_new(0);
  m = memory_new("late:0", 256);
  n = memory_new("late:0", 256);
}

static void end_pair(void) {
  late_run_all();
  OK(quay_allocator_synchronize(m.allocator));
  quay_stream_release(a);
  quay_stream_release(b);
  memory_free(&m, NULL, 0);
  memory_free(&n, NULL, 0);
  end();
}

static void use_on(quay_stream *stream, const memory *of, uint64_t offset, uint64_t size,
                   quay_use_mode mode) {
  static late_use uses[64]; /* kernels look at them when they run */
  static size_t next;
  late_use *const use = &uses[next++ % 64];
  *use = (late_use){of->address + offset, size, mode};
  launch_on(stream, use);
}

/* Races. */

Test(late_violations, finds_a_read_that_is_not_ordered_after_a_write) {
  begin_pair(LATE_MANUAL);
  fill_on(a, &m, 0, 100, 1);
  copy_on(b, &n, 0, &m, 99, 50);
  expect_violation(LATE_VIOLATION_WRITE_READ);
  end_pair();
}

Test(late_violations, finds_a_write_that_is_not_ordered_after_a_read) {
  begin_pair(LATE_MANUAL);
  copy_on(a, &n, 0, &m, 0, 100);
  fill_on(b, &m, 99, 1, 1);
  expect_violation(LATE_VIOLATION_READ_WRITE);
  end_pair();
}

Test(late_violations, finds_a_write_that_is_not_ordered_after_a_write) {
  begin_pair(LATE_MANUAL);
  fill_on(a, &m, 0, 100, 1);
  fill_on(b, &m, 50, 100, 2);
  expect_violation(LATE_VIOLATION_WRITE_WRITE);
  end_pair();
}

Test(late_violations, finds_races_whatever_has_run) {
  begin_pair(LATE_MANUAL);
  fill_on(a, &m, 0, 100, 1);
  late_run_all(); /* it is over, but nobody has waited for it */
  use_on(b, &m, 0, 100, QUAY_READ);
  expect_violation(LATE_VIOLATION_WRITE_READ);
  end_pair();
}

Test(late_violations, finds_races_between_threads_of_streams) {
  begin_pair(LATE_THREADS);
  fill_on(a, &m, 0, 100, 1);
  fill_on(b, &m, 0, 100, 2);
  expect_violation(LATE_VIOLATION_WRITE_WRITE);
  end_pair();
}

Test(late_violations, finds_a_host_read_that_did_not_wait) {
  begin_pair(LATE_MANUAL);
  unsigned char out[8];
  use_on(a, &m, 0, 8, QUAY_WRITE);
  copy_out(&m, 0, out, 8);
  expect_violation(LATE_VIOLATION_WRITE_READ);
  end_pair();
}

Test(late_violations, finds_a_host_write_that_did_not_wait_for_a_read) {
  begin_pair(LATE_MANUAL);
  const unsigned char in[8] = "seven..";
  use_on(a, &m, 4, 8, QUAY_READ);
  copy_in(&m, 11, in, 8);
  expect_violation(LATE_VIOLATION_READ_WRITE);
  end_pair();
}

Test(late_violations, an_event_from_before_the_launch_orders_nothing) {
  begin_pair(LATE_MANUAL);
  quay_event *const early = record(a);
  fill_on(a, &m, 0, 100, 1);
  OK(quay_stream_wait(b, early));
  use_on(b, &m, 0, 100, QUAY_READ);
  expect_violation(LATE_VIOLATION_WRITE_READ);
  quay_event_release(early);
  end_pair();
}

Test(late_violations, a_write_must_come_after_all_reads_not_only_after_the_write) {
  begin_pair(LATE_MANUAL);
  fill_on(a, &m, 0, 100, 1);
  quay_event *const written = record(a);
  use_on(a, &m, 0, 100, QUAY_READ);
  OK(quay_stream_wait(b, written));
  use_on(b, &m, 0, 100, QUAY_READ);
  expect_no_violations();
  use_on(b, &m, 0, 100, QUAY_WRITE);
  expect_violation(LATE_VIOLATION_READ_WRITE);
  quay_event_release(written);
  end_pair();
}

Test(late_violations, finds_pinned_memory_that_is_overwritten_too_early) {
  begin_pair(LATE_MANUAL);
  memory pinned = memory_new("late:0,memory=pinned", 64);
  copy_in_on(a, &m, 0, memory_bytes(&pinned) + 8, 56);
  late_host_access(memory_bytes(&pinned), 8, QUAY_WRITE);
  expect_no_violations();
  late_host_access(memory_bytes(&pinned) + 63, 1, QUAY_WRITE);
  expect_violation(LATE_VIOLATION_READ_WRITE);
  OK(late_allocator_table()->lend(pinned.allocator, &pinned.raw, 0, 9, QUAY_WRITE));
  expect_violation(LATE_VIOLATION_READ_WRITE);
  OK(quay_stream_synchronize(a));
  late_host_access(memory_bytes(&pinned), 64, QUAY_WRITE);
  expect_no_violations();
  memory_free(&pinned, NULL, 0);
  end_pair();
}

Test(late_violations, finds_stream_ordered_memory_on_a_stream_that_did_not_wait) {
  begin_pair(LATE_MANUAL);
  memory fresh = {.size = 32};
  OK(quay_allocator_open("late:0", &fresh.allocator));
  const quay_alloc_request request = {.size = 32, .alignment = 64, .stream = a};
  OK(late_allocator_table()->alloc(fresh.allocator, &request, &fresh.raw));
  fill_on(b, &fresh, 0, 32, 1);
  expect_violation(LATE_VIOLATION_WRITE_WRITE);
  OK(quay_allocator_synchronize(m.allocator));
  memory_free(&fresh, NULL, 0);
  end_pair();
}

/* The same, in order. */

Test(late_violations, reads_of_the_same_bytes_are_in_order) {
  begin_pair(LATE_MANUAL);
  use_on(a, &m, 0, 256, QUAY_READ);
  use_on(b, &m, 0, 256, QUAY_READ);
  copy_on(a, &n, 0, &m, 0, 100);
  expect_no_violations();
  end_pair();
}

Test(late_violations, writes_of_other_bytes_are_in_order) {
  begin_pair(LATE_MANUAL);
  fill_on(a, &m, 0, 100, 1);
  fill_on(b, &m, 100, 100, 2);
  copy_on(b, &m, 200, &m, 100, 56);
  expect_no_violations();
  end_pair();
}

Test(late_violations, what_is_on_one_stream_is_in_order) {
  begin_pair(LATE_MANUAL);
  fill_on(a, &m, 0, 256, 1);
  copy_on(a, &n, 0, &m, 0, 256);
  use_on(a, &n, 3, 100, QUAY_READ_WRITE);
  expect_no_violations();
  end_pair();
}

Test(late_violations, events_order_through_a_third_stream) {
  begin_pair(LATE_MANUAL);
  quay_stream *const between = stream_new(1);
  fill_on(a, &m, 0, 256, 1);
  order(a, between);
  order(between, b);
  use_on(b, &m, 0, 256, QUAY_READ_WRITE);
  OK(quay_stream_synchronize(b));
  unsigned char out[256];
  copy_out(&m, 0, out, 256);
  for (size_t i = 0; i < sizeof out; i++)
    cr_assert(out[i] == 2, "byte %zu is %d", i, out[i]);
  quay_stream_release(between);
  end_pair();
}

Test(late_violations, a_query_orders_once_it_says_done) {
  begin_pair(LATE_MANUAL);
  unsigned char out[16];
  fill_on(a, &m, 0, 16, 9);
  quay_event *const event = record(a);
  cr_assert(!is_done(event));
  late_run_all();
  cr_assert(is_done(event));
  copy_out(&m, 0, out, 16);
  cr_expect(out[15] == 9);
  quay_event_release(event);
  end_pair();
}

Test(late_violations, what_the_host_has_waited_for_orders_what_it_submits) {
  begin_pair(LATE_MANUAL);
  fill_on(a, &m, 0, 256, 1);
  OK(quay_stream_synchronize(a));
  fill_on(b, &m, 0, 256, 2);
  OK(quay_allocator_synchronize(m.allocator));
  fill_on(a, &m, 0, 256, 3);
  end_pair();
}

Test(late_violations, synchronising_a_device_orders_the_work_of_streams_that_are_gone) {
  begin_pair(LATE_MANUAL);
  quay_stream *const brief = stream_new(0);
  fill_on(brief, &m, 0, 256, 5);
  quay_stream_release(brief);
  late_run_all();
  OK(quay_allocator_synchronize(m.allocator));
  unsigned char out[256];
  copy_out(&m, 0, out, 256);
  cr_expect(out[0] == 5 && out[255] == 5);
  end_pair();
}

/* Frees. */

Test(late_violations, finds_a_free_before_the_work_was_waited_for) {
  begin_pair(LATE_MANUAL);
  memory doomed = memory_new("late:0", 64);
  fill_on(a, &doomed, 0, 64, 0x44);
  copy_on(a, &m, 0, &doomed, 0, 64);
  memory_free(&doomed, NULL, 0);
  expect_violation(LATE_VIOLATION_EARLY_FREE);
  end_pair();
}

Test(late_violations, memory_freed_too_early_gives_wrong_bytes_and_does_no_harm) {
  begin_pair(LATE_MANUAL);
  memory doomed = memory_new("late:0", 64);
  fill_on(a, &doomed, 0, 64, 0x44);
  OK(quay_stream_synchronize(a));
  copy_on(a, &m, 0, &doomed, 0, 64);
  memory_free(&doomed, NULL, 0);
  expect_violation(LATE_VIOLATION_EARLY_FREE);
  OK(quay_stream_synchronize(a));
  cr_expect(peek(&m, 0) == 0xdf, "0x%02x", peek(&m, 0));
  end_pair();
}

Test(late_violations, finds_an_ordered_free_that_lacks_an_event) {
  begin_pair(LATE_MANUAL);
  memory doomed = memory_new("late:0", 64);
  fill_on(a, &doomed, 0, 32, 1);
  use_on(b, &doomed, 32, 32, QUAY_READ);
  quay_event *events[] = {record(a), record(b)};
  memory_free(&doomed, events, 1);
  expect_violation(LATE_VIOLATION_EARLY_FREE);
  memory fine = memory_new("late:0", 64);
  fill_on(a, &fine, 0, 32, 1);
  use_on(b, &fine, 32, 32, QUAY_READ);
  quay_event *later[] = {record(a), record(b)};
  memory_free(&fine, later, 2);
  expect_no_violations();
  for (size_t i = 0; i < 2; i++) {
    quay_event_release(events[i]);
    quay_event_release(later[i]);
  }
  end_pair();
}

Test(late_violations, finds_pending_events_where_ordered_free_was_not_promised) {
  const late_options options = {.mode = LATE_MANUAL};
  OK(late_register(&options));
  memory only = memory_new("late:0", 64);
  quay_stream *const stream = stream_new(0);
  fill_on(stream, &only, 0, 64, 1);
  quay_event *const event = record(stream);
  memory_free(&only, &event, 1);
  expect_violation(LATE_VIOLATION_PROTOCOL);
  quay_event_release(event);
  quay_stream_release(stream);
  end();
}

Test(late_violations, finds_uses_after_the_free) {
  begin_pair(LATE_MANUAL);
  memory doomed = memory_new("late:0", 64);
  quay_allocator *const allocator = quay_allocator_retain(doomed.allocator);
  quay_raw_buffer copy = doomed.raw;
  const late_use use = {doomed.address + 5, 10, QUAY_READ};
  memory_free(&doomed, NULL, 0);
  cr_expect(late_launch(quay_stream_native(a), touch_kernel, NULL, &use, 1) ==
            QUAY_STATUS_INVALID_ARGUMENT);
  expect_violation(LATE_VIOLATION_USE_AFTER_FREE);
  const unsigned char byte = 1;
  cr_expect(late_allocator_table()->fill(allocator, &copy, 0, 1, &byte, 1) ==
            QUAY_STATUS_INVALID_ARGUMENT);
  expect_violation(LATE_VIOLATION_USE_AFTER_FREE);
  late_allocator_table()->free(allocator, &copy, NULL, 0);
  expect_violation(LATE_VIOLATION_USE_AFTER_FREE);
  quay_allocator_release(allocator);
  end_pair();
}

Test(late_violations, finds_memory_of_an_older_generation) {
  begin_manual();
  memory old = memory_new("late:0", 64);
  late_reset(0);
  unsigned char out[4];
  cr_expect(late_allocator_table()->copy_out(old.allocator, &old.raw, 0, out, 4) ==
            QUAY_STATUS_INVALID_ARGUMENT);
  expect_violation(LATE_VIOLATION_USE_AFTER_FREE);
  memory_free(&old, NULL, 0);
  end();
}

/* Broken rules. */

Test(late_violations, finds_ranges_that_a_core_must_not_pass_on) {
  begin_pair(LATE_MANUAL);
  const unsigned char byte = 1;
  const quay_allocator_vtable *const table = late_allocator_table();
  (void)!table->fill(m.allocator, &m.raw, 250, 7, &byte, 1);
  expect_violation(LATE_VIOLATION_PROTOCOL);
  (void)!table->fill(m.allocator, &m.raw, UINT64_MAX, 2, &byte, 1);
  expect_violation(LATE_VIOLATION_PROTOCOL);
  (void)!table->fill(m.allocator, &m.raw, 3, 0, &byte, 1);
  expect_violation(LATE_VIOLATION_PROTOCOL);
  end_pair();
}

Test(late_violations, finds_dead_streams_and_events_and_those_of_others) {
  begin_pair(LATE_MANUAL);
  const quay_device_vtable *const table = late_device_table();
  quay_device *const device = late_device_at(0);
  uint64_t stream = 0;
  uint64_t event = 0;
  bool done = false;
  OK(table->stream_create(device, NULL, &stream));
  OK(table->event_record(device, stream, &event));
  (void)!table->event_query(device, stream, &done);
  expect_violation(LATE_VIOLATION_PROTOCOL);
  (void)!table->event_query(late_device_at(1), event, &done);
  expect_violation(LATE_VIOLATION_PROTOCOL);
  (void)!table->stream_wait(device, stream, late_device_at(1), event);
  expect_violation(LATE_VIOLATION_PROTOCOL);
  table->event_destroy(device, event);
  table->event_destroy(device, event);
  expect_violation(LATE_VIOLATION_PROTOCOL);
  table->stream_destroy(device, stream, false);
  (void)!table->stream_synchronize(device, stream);
  expect_violation(LATE_VIOLATION_PROTOCOL);
  end_pair();
}

Test(late_violations, finds_a_wrapped_stream_that_is_destroyed) {
  begin_manual();
  const uint64_t native = late_native_stream_create(0);
  quay_stream *wrapped = NULL;
  OK(quay_stream_wrap(late_device_at(0), native, &wrapped));
  late_native_stream_destroy(native);
  expect_violation(LATE_VIOLATION_PROTOCOL);
  quay_stream_release(wrapped);
  late_native_stream_destroy(native);
  end();
}

Test(late_violations, finds_kernels_that_reach_too_far) {
  begin_manual();
  memory far = memory_new("late:2", 64);
  quay_stream *const stream = stream_new(0);
  const late_use use = {far.address, 64, QUAY_READ};
  const late_use beyond = {far.address + 1, 64, QUAY_READ};
  quay_stream *const near = stream_new(2);
  (void)!late_launch(quay_stream_native(stream), touch_kernel, NULL, &use, 1);
  expect_violation(LATE_VIOLATION_PROTOCOL);
  (void)!late_launch(quay_stream_native(near), touch_kernel, NULL, &beyond, 1);
  expect_violation(LATE_VIOLATION_PROTOCOL);
  quay_stream_release(stream);
  quay_stream_release(near);
  memory_free(&far, NULL, 0);
  end();
}

/* Host threads. */

static void *read_eight(void *observe) {
  unsigned char out[8];
  if (observe != NULL)
    late_observe();
  copy_out(&m, 0, out, 8);
  return NULL;
}

static void read_in_a_thread(bool observe) {
  pthread_t thread;
  cr_assert(pthread_create(&thread, NULL, read_eight, observe ? &m : NULL) == 0);
  pthread_join(thread, NULL);
}

/* One thread waits, another one reads. */
static void read_after_a_wait_elsewhere(late_host_threads host_threads, bool hand_over) {
  const late_options options = {.mode = LATE_MANUAL, .host_threads = host_threads};
  OK(late_register(&options));
  m = memory_new("late:0", 64);
  quay_stream *const stream = stream_new(0);
  fill_on(stream, &m, 0, 64, 1);
  OK(quay_stream_synchronize(stream));
  if (hand_over)
    late_publish();
  read_in_a_thread(hand_over);
  quay_stream_release(stream);
}

Test(late_violations, host_threads_are_trusted_to_hand_over) {
  read_after_a_wait_elsewhere(LATE_HOST_THREADS_TRUSTED, false);
  memory_free(&m, NULL, 0);
  end();
}

Test(late_violations, host_threads_apart_must_hand_over) {
  read_after_a_wait_elsewhere(LATE_HOST_THREADS_APART, false);
  expect_violation(LATE_VIOLATION_WRITE_READ);
  memory_free(&m, NULL, 0);
  late_violations_clear(); /* the other thread's read was not handed back */
  OK(late_unregister());
}

Test(late_violations, host_threads_apart_know_what_they_were_told) {
  read_after_a_wait_elsewhere(LATE_HOST_THREADS_APART, true);
  expect_no_violations();
  memory_free(&m, NULL, 0);
  expect_violation(LATE_VIOLATION_EARLY_FREE);
  OK(late_unregister());
}

static atomic_bool running, go_on;

static void wait_to_go_on(void *user, unsigned char *const *bytes) {
  (void)user;
  (void)bytes;
  atomic_store(&running, true);
  while (!atomic_load(&go_on))
    nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

static void *write_eight(void *user) {
  copy_in(&m, 0, user, 8);
  return NULL;
}

static void wait_for_copies(uint64_t calls) {
  late_counts counts;
  do {
    nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    late_count(&counts);
  } while (counts.calls[LATE_COPY_IN] < calls);
}

Test(late_violations, finds_two_host_threads_that_copy_at_the_same_time) {
  begin_pair(LATE_THREADS);
  unsigned char in[] = "eight...";
  atomic_store(&go_on, false);
  /* While a kernel runs no bytes are moved: both copies are under way until it ends. */
  OK(late_launch(quay_stream_native(a), wait_to_go_on, NULL, NULL, 0));
  while (!atomic_load(&running))
    nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
  pthread_t threads[2];
  cr_assert(pthread_create(&threads[0], NULL, write_eight, in) == 0);
  wait_for_copies(1);
  cr_assert(pthread_create(&threads[1], NULL, write_eight, in) == 0);
  wait_for_copies(2);
  expect_violation(LATE_VIOLATION_WRITE_WRITE);
  atomic_store(&go_on, true);
  pthread_join(threads[0], NULL);
  pthread_join(threads[1], NULL);
  end_pair();
}

/* Bounds. */

Test(late_violations, a_hundred_thousand_ranges_stay_cheap) {
  begin_pair(LATE_MANUAL);
  memory large = memory_new("late:0", 100000);
  for (uint64_t i = 0; i < large.size; i++)
    fill_on(a, &large, (i * 7919) % large.size, 1, 1);
  fill_on(b, &large, 77777, 1, 2);
  expect_violation(LATE_VIOLATION_WRITE_WRITE);
  OK(quay_allocator_synchronize(large.allocator));
  memory_free(&large, NULL, 0);
  end_pair();
}
