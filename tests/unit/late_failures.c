/* The late backend's ways to fail: calls that a test has chosen, lost and reset devices. */
#include "late_fixture.h"

#include <pthread.h>

Test(late_failures, the_nth_call_fails_once_as_asked) {
  begin_manual();
  memory m = memory_new("late:0", 16);
  const unsigned char bytes[16] = "fifteen letters";
  const quay_allocator_vtable *const table = late_allocator_table();
  cr_expect(late_fail(LATE_COPY_IN, 2, QUAY_STATUS_IO));
  OK(table->copy_in(m.allocator, &m.raw, 0, bytes, 16));
  cr_expect(table->copy_in(m.allocator, &m.raw, 0, bytes + 4, 8) == QUAY_STATUS_IO);
  OK(table->copy_in(m.allocator, &m.raw, 8, bytes, 8));
  cr_expect(peek(&m, 0) == 'f', "the failed copy moved bytes");
  cr_expect(!late_fail(LATE_FREE, 1, QUAY_STATUS_IO));
  memory_free(&m, NULL, 0);
  end();
}

Test(late_failures, calls_are_counted_by_function) {
  begin_manual();
  memory m = memory_new("late:0", 16);
  quay_stream *const a = stream_new(0);
  quay_stream *const b = stream_new(0);
  late_counts_reset();
  fill_on(a, &m, 0, 16, 1);
  order(a, b);
  OK(quay_stream_synchronize(b));
  late_counts counts;
  late_count(&counts);
  cr_expect(counts.calls[LATE_FILL_ASYNC] == 1 && counts.calls[LATE_EVENT_RECORD] == 1);
  cr_expect(counts.calls[LATE_STREAM_WAIT] == 1 && counts.calls[LATE_STREAM_SYNCHRONIZE] == 1);
  cr_expect(counts.calls[LATE_EVENT_DESTROY] == 1 && counts.calls[LATE_COPY_IN] == 0);
  cr_expect(counts.submitted == 1 && counts.run == 1);
  quay_stream_release(a);
  quay_stream_release(b);
  memory_free(&m, NULL, 0);
  end();
}

Test(late_failures, a_lost_device_fails_every_call_and_runs_nothing_more) {
  begin_manual();
  memory m = memory_new("late:0", 16);
  quay_stream *const stream = stream_new(0);
  fill_on(stream, &m, 0, 16, 0x09);
  quay_event *const event = record(stream);
  late_lose(0);
  const quay_device_vtable *const device = late_device_table();
  quay_device *const lost = late_device_at(0);
  uint64_t handle = 0;
  cr_expect(device->event_synchronize(lost, quay_event_native(event)) == QUAY_STATUS_DEVICE_LOST);
  cr_expect(device->stream_create(lost, NULL, &handle) == QUAY_STATUS_DEVICE_LOST);
  cr_expect(quay_device_health(lost) == QUAY_HEALTH_LOST);
  cr_expect(quay_event_synchronize(event) == QUAY_STATUS_DEVICE_LOST);
  late_counts counts;
  late_count(&counts);
  cr_expect(counts.run == 0);
  quay_event_release(event);
  quay_stream_release(stream);
  memory_free(&m, NULL, 0);
  end();
}

static void *wait_for_event(void *event) {
  return (void *)(intptr_t)quay_event_synchronize(event);
}

Test(late_failures, loss_ends_waits_that_are_under_way) {
  begin(LATE_THREADS);
  quay_stream *const stream = stream_new(0);
  quay_stream *const other = stream_new(1);
  late_hold(quay_stream_native(stream));
  quay_event *const event = record(stream);
  OK(quay_stream_wait(other, event));
  pthread_t thread;
  cr_assert(pthread_create(&thread, NULL, wait_for_event, event) == 0);
  late_lose(0);
  void *status = NULL;
  pthread_join(thread, &status);
  cr_expect((quay_status)(intptr_t)status == QUAY_STATUS_DEVICE_LOST);
  OK(quay_stream_synchronize(other)); /* another device goes on */
  quay_event_release(event);
  quay_stream_release(stream);
  quay_stream_release(other);
  end();
}

Test(late_failures, a_device_is_lost_in_the_middle_of_its_work) {
  begin_manual();
  memory m = memory_new("late:0", 16);
  quay_stream *const stream = stream_new(0);
  fill_on(stream, &m, 0, 16, 0x01);
  fill_on(stream, &m, 0, 16, 0x02);
  fill_on(stream, &m, 0, 16, 0x03);
  late_lose_after(0, 2);
  cr_expect(quay_stream_synchronize(stream) == QUAY_STATUS_DEVICE_LOST);
  expect_bytes(&m, 0x02);
  quay_stream_release(stream);
  memory_free(&m, NULL, 0);
  end();
}

Test(late_failures, a_reset_begins_a_generation_that_works) {
  begin_manual();
  memory old = memory_new("late:0", 16);
  quay_stream *const old_stream = stream_new(0);
  late_lose(0);
  late_reset(0);
  cr_expect(quay_device_generation(late_device_at(0)) == 2);
  cr_expect(quay_device_health(late_device_at(0)) == QUAY_HEALTH_OK);
  cr_expect(quay_stream_synchronize(old_stream) == QUAY_STATUS_STALE);
  memory m = memory_new("late:0", 16);
  quay_stream *const stream = stream_new(0);
  fill_on(stream, &m, 0, 16, 0x0a);
  OK(quay_stream_synchronize(stream));
  expect_bytes(&m, 0x0a);
  quay_stream_release(old_stream);
  quay_stream_release(stream);
  memory_free(&old, NULL, 0);
  memory_free(&m, NULL, 0);
  end();
}
