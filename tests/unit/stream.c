/* Streams and events, on the host and on a device with the stream group. */
#include "support/manual_device.h"
#include "support/pattern.h"

#include <string.h>

static quay_stream *open_stream(quay_device *device) {
  quay_stream *stream = NULL;
  MUST(quay_stream_create(device, NULL, &stream));
  return stream;
}

Test(stream, the_hosts_does_everything_at_once) {
  quay_device *host = quay_device_host();
  quay_stream *stream = open_stream(host);
  cr_assert_neq(quay_stream_id(stream), 0);
  cr_assert_eq(quay_stream_device(stream), host);
  cr_assert_eq(quay_stream_native(stream), 0);
  quay_event *event = NULL;
  bool done = false;
  MUST(quay_event_record(stream, &event));
  MUST(quay_event_query(event, &done));
  cr_assert(done);
  MUST(quay_event_synchronize(event));
  MUST(quay_stream_wait(stream, event));
  MUST(quay_stream_synchronize(stream));
  cr_assert_eq(quay_event_device(event), host);
  cr_assert_eq(quay_event_native(event), 0);
  quay_event_release(event);
  quay_stream_release(stream);
  quay_device_release(host);
}

Test(stream, without_a_device_it_is_of_the_default_allocators) {
  quay_allocator *a = manual_open(&(manual_options){.streams = true});
  MUST(quay_default_allocator_push(a));
  quay_stream *stream = open_stream(NULL);
  cr_assert_eq(quay_stream_device(stream), quay_allocator_device(a));
  quay_default_allocator_pop();
  quay_stream_release(stream);
  quay_allocator_release(a);
}

Test(stream, null_arguments_are_refused_or_harmless) {
  quay_device *host = quay_device_host();
  quay_stream *stream = open_stream(host), *other = stream;
  quay_event *event = NULL;
  bool done = true;
  MUST(quay_event_record(stream, &event));
  MUST_FAIL(quay_stream_create(host, NULL, NULL), INVALID_ARGUMENT);
  MUST_FAIL(quay_stream_wrap(NULL, 1, &other), INVALID_ARGUMENT);
  cr_assert_null(other);
  MUST_FAIL(quay_stream_wrap(host, 1, NULL), INVALID_ARGUMENT);
  MUST_FAIL(quay_stream_synchronize(NULL), INVALID_ARGUMENT);
  MUST_FAIL(quay_stream_wait(NULL, event), INVALID_ARGUMENT);
  MUST_FAIL(quay_stream_wait(stream, NULL), INVALID_ARGUMENT);
  MUST_FAIL(quay_event_record(NULL, &(quay_event *){NULL}), INVALID_ARGUMENT);
  MUST_FAIL(quay_event_record(stream, NULL), INVALID_ARGUMENT);
  MUST_FAIL(quay_event_query(NULL, &done), INVALID_ARGUMENT);
  cr_assert_not(done);
  MUST_FAIL(quay_event_query(event, NULL), INVALID_ARGUMENT);
  MUST_FAIL(quay_event_synchronize(NULL), INVALID_ARGUMENT);
  cr_assert_null(quay_stream_retain(NULL));
  cr_assert_null(quay_event_retain(NULL));
  quay_stream_release(NULL);
  quay_event_release(NULL);
  cr_assert_eq(quay_stream_id(NULL), 0);
  cr_assert_eq(quay_stream_native(NULL), 0);
  cr_assert_null(quay_stream_device(NULL));
  quay_event_release(event);
  quay_stream_release(stream);
  quay_device_release(host);
}

Test(stream, the_host_has_none_to_wrap) {
  quay_device *host = quay_device_host();
  quay_stream *stream = NULL;
  MUST_FAIL(quay_stream_wrap(host, 0, &stream), UNSUPPORTED);
  cr_assert_null(stream);
  quay_device_release(host);
}

Test(stream, a_devices_streams_go_through_its_functions) {
  quay_allocator *a = manual_open(&(manual_options){.streams = true});
  quay_stream *own = open_stream(quay_allocator_device(a)), *wrapped = NULL;
  MUST(quay_stream_wrap(quay_allocator_device(a), 4711, &wrapped));
  cr_assert_neq(quay_stream_native(own), 0);
  cr_assert_eq(quay_stream_native(wrapped), 4711);
  cr_assert_neq(quay_stream_id(own), quay_stream_id(wrapped));
  MUST(quay_stream_synchronize(own));
  cr_assert_eq(atomic_load(&manual.stream_create), 1);
  cr_assert_eq(atomic_load(&manual.stream_wrap), 1);
  cr_assert_eq(atomic_load(&manual.stream_synchronize), 1);
  (void)quay_stream_retain(own);
  quay_stream_release(own);
  cr_assert_eq(atomic_load(&manual.stream_destroy), 0);
  quay_stream_release(own);
  quay_stream_release(wrapped);
  cr_assert_eq(atomic_load(&manual.stream_destroy), 2);
  quay_allocator_release(a);
}

Test(stream, an_event_completes_when_its_work_does) {
  quay_allocator *a = manual_open(&(manual_options){.streams = true});
  quay_stream *stream = open_stream(quay_allocator_device(a));
  quay_event *event = NULL;
  bool done = true;
  MUST(quay_event_record(stream, &event));
  MUST(quay_event_query(event, &done));
  cr_assert_not(done);
  manual_complete_stream(quay_stream_native(stream));
  MUST(quay_event_query(event, &done));
  cr_assert(done);
  quay_event_release(event);
  quay_stream_release(stream);
  quay_allocator_release(a);
}

Test(stream, an_event_outlives_its_stream_and_keeps_the_device) {
  quay_allocator *a = manual_open(&(manual_options){.streams = true});
  quay_stream *stream = open_stream(quay_allocator_device(a));
  quay_event *event = NULL;
  MUST(quay_event_record(stream, &event));
  quay_stream_release(stream);
  quay_allocator_release(a);
  MUST(quay_event_synchronize(event));
  (void)quay_event_retain(event);
  quay_event_release(event);
  cr_assert_eq(atomic_load(&manual.event_destroy), 0);
  quay_event_release(event);
  cr_assert_eq(atomic_load(&manual.event_destroy), 1);
}

Test(stream, waits_reach_other_devices_of_the_same_backend_alone) {
  quay_allocator *a = manual_open(&(manual_options){.streams = true});
  quay_allocator *peer = manual_open(&(manual_options){.streams = true});
  quay_allocator *other = manual_open(&(manual_options){.backend = "other", .streams = true});
  quay_stream *sa = open_stream(quay_allocator_device(a));
  quay_stream *sp = open_stream(quay_allocator_device(peer));
  quay_stream *so = open_stream(quay_allocator_device(other));
  quay_event *event = NULL;
  MUST(quay_event_record(sa, &event));
  MUST(quay_stream_wait(sa, event));
  MUST(quay_stream_wait(sp, event));
  cr_assert_eq(atomic_load(&manual.stream_wait), 2);
  MUST_FAIL(quay_stream_wait(so, event), UNSUPPORTED);
  cr_assert_not_null(strstr(quay_last_error()->message, "quay_event_synchronize"));
  cr_assert_eq(atomic_load(&manual.stream_wait), 2);
  quay_event_release(event);
  quay_stream_release(sa);
  quay_stream_release(sp);
  quay_stream_release(so);
  quay_allocator_release(a);
  quay_allocator_release(peer);
  quay_allocator_release(other);
}

Test(stream, a_lost_device_answers_with_its_message) {
  quay_allocator *a = manual_open(&(manual_options){.streams = true});
  quay_device *device = quay_allocator_device(a);
  quay_stream *stream = open_stream(device), *made = NULL;
  quay_event *event = NULL, *late = NULL;
  bool done = false;
  MUST(quay_event_record(stream, &event));
  quay_device_mark_lost(device, 7, "GONE", "fell off the bus");
  MUST_FAIL(quay_stream_create(device, NULL, &made), DEVICE_LOST);
  MUST_FAIL(quay_stream_wrap(device, 3, &made), DEVICE_LOST);
  MUST_FAIL(quay_stream_synchronize(stream), DEVICE_LOST);
  MUST_FAIL(quay_stream_wait(stream, event), DEVICE_LOST);
  MUST_FAIL(quay_event_record(stream, &late), DEVICE_LOST);
  MUST_FAIL(quay_event_query(event, &done), DEVICE_LOST);
  MUST_FAIL(quay_event_synchronize(event), DEVICE_LOST);
  cr_assert_not_null(strstr(quay_last_error()->message, "fell off the bus"));
  quay_event_release(event);
  quay_stream_release(stream);
  quay_allocator_release(a);
}

Test(stream, shutdown_is_busy_while_one_lives) {
  quay_stream *stream = open_stream(NULL);
  MUST_FAIL(quay_shutdown(), BUSY);
  quay_stream_release(stream);
  MUST(quay_shutdown());
}
