/* Copies and fills on streams, over a backend whose streams run late: which return early, what
 * waits for what, and how long both ends live. */
#include <pthread.h>
#include <unistd.h>

#include "late_core.h"
#include "support/files.h"
#include "support/manual_device.h"

enum {
  SIZE = 1000
};

static quay_stream *one, *two, *peer;
static quay_buffer *a, *b, *pinned, *host;

static void open_all(void) {
  late_begin_manual();
  one = late_stream_of(0);
  two = late_stream_of(0);
  peer = late_stream_of(1);
  a = late_buffer("late:0", SIZE, 1);
  b = late_buffer("late:0", SIZE, 2);
  pinned = late_buffer("late:0,memory=pinned", SIZE, 3);
  host = late_buffer("cpu", SIZE, 4);
  late_counts_reset();
}

static void close_all(void) {
  quay_stream *streams[] = {one, two, peer};
  quay_buffer *buffers[] = {a, b, pinned, host};
  for (size_t i = 0; i < 4; i++)
    quay_buffer_release(buffers[i]);
  for (size_t i = 0; i < 3; i++)
    quay_stream_release(streams[i]);
  late_end();
}

/* Tests end with close_all(): what fails after a test fails nothing. */
TestSuite(async_copy, .init = open_all);

/* Which return early. */

Test(async_copy, within_a_device_is_submitted_and_arrives_later) {
  late_copy(one, b, a);
  cr_assert_eq(late_calls(LATE_COPY_WITHIN_ASYNC), 1);
  cr_assert_eq(late_unfinished(), 1);
  pattern_check_buffer(b, 0, 1);
  cr_assert_eq(late_unfinished(), 0);
  close_all();
}

Test(async_copy, from_pinned_memory_is_submitted_and_arrives_later) {
  late_copy(one, a, pinned);
  cr_assert_eq(late_calls(LATE_COPY_IN_ASYNC), 1);
  cr_assert_eq(late_unfinished(), 1);
  pattern_check_buffer(a, 0, 3);
  close_all();
}

Test(async_copy, to_pinned_memory_is_submitted_and_arrives_later) {
  late_copy(one, pinned, a);
  cr_assert_eq(late_calls(LATE_COPY_OUT_ASYNC), 1);
  cr_assert_eq(late_unfinished(), 1);
  pattern_check_buffer(pinned, 0, 1);
  close_all();
}

Test(async_copy, between_pinned_buffers_is_submitted) {
  quay_buffer *other = late_buffer("late:0,memory=pinned", SIZE, 5);
  late_copy(one, other, pinned);
  cr_assert_eq(late_unfinished(), 1);
  pattern_check_buffer(other, 0, 3);
  quay_buffer_release(other);
  close_all();
}

Test(async_copy, between_peers_is_submitted_to_a_stream_of_either) {
  quay_buffer *remote = late_buffer("late:1", SIZE, 5);
  late_copy(one, remote, a);
  cr_assert_eq(late_unfinished(), 1);
  late_copy(peer, b, remote);
  cr_assert_eq(late_calls(LATE_COPY_ACROSS_ASYNC), 2);
  cr_assert_eq(late_unfinished(), 2);
  cr_assert_eq(late_calls(LATE_STREAM_WAIT), 1);
  pattern_check_buffer(b, 0, 1);
  quay_buffer_release(remote);
  close_all();
}

Test(async_copy, from_pageable_memory_returns_once_it_has_been_read) {
  late_plan_says(one, a, host, "once the source has been read");
  late_copy(one, a, host);
  cr_assert_eq(late_calls(LATE_COPY_IN_ASYNC), 1);
  const unsigned char other = 77;
  MUST(quay_buffer_fill(host, &other, 1));
  pattern_check_buffer(a, 0, 4);
  close_all();
}

Test(async_copy, to_pageable_memory_is_complete_on_return) {
  const void *bytes = NULL;
  MUST(quay_buffer_host_bytes(host, &bytes, NULL));
  late_kernel_on(one, a, QUAY_READ_WRITE);
  late_copy(one, host, a);
  const unsigned char *got = bytes;
  for (uint64_t i = 0; i < SIZE; i++)
    cr_assert_eq(got[i], (unsigned char)(pattern_byte(i, 1) + 1));
  close_all();
}

Test(async_copy, between_devices_that_do_not_meet_is_complete_on_return) {
  quay_buffer *remote = late_buffer("late:2", SIZE, 5);
  late_kernel_on(one, a, QUAY_READ);
  late_copy(one, remote, a);
  cr_assert_eq(late_unfinished(), 0);
  pattern_check_buffer(remote, 0, 1);
  quay_buffer_release(remote);
  close_all();
}

Test(async_copy, from_a_file_is_complete_on_return) {
  test_files_begin();
  char spec[600];
  snprintf(spec, sizeof(spec), "mmap:%s", test_directory());
  quay_buffer *file = late_buffer(spec, SIZE, 6);
  late_copy(one, a, file);
  cr_assert_eq(late_unfinished(), 0);
  pattern_check_buffer(a, 0, 6);
  late_copy(one, file, b);
  pattern_check_buffer(file, 0, 2);
  quay_buffer_release(file);
  test_files_end();
  close_all();
}

Test(async_copy, on_a_stream_of_the_host_is_complete_on_return) {
  quay_stream *stream = NULL;
  quay_device *device = quay_device_host();
  MUST(quay_stream_create(device, NULL, &stream));
  late_copy(stream, b, a);
  cr_assert_eq(late_calls(LATE_COPY_WITHIN), 1);
  cr_assert_eq(late_unfinished(), 0);
  quay_stream_release(stream);
  quay_device_release(device);
  close_all();
}

Test(async_copy, of_overlapping_ranges_is_complete_on_return_and_moves_them_whole) {
  MUST(quay_buffer_copy_region(a, 10, a, 0, SIZE - 10, &(quay_copy_options){.stream = one}));
  cr_assert_eq(late_unfinished(), 0);
  quay_buffer *moved = late_view(a, 10, SIZE - 10);
  pattern_check_buffer(moved, 0, 1);
  quay_buffer_release(moved);
  close_all();
}

Test(async_copy, of_neighbouring_ranges_of_one_storage_is_submitted) {
  MUST(quay_buffer_copy_region(a, 500, a, 0, 500, &(quay_copy_options){.stream = one}));
  cr_assert_eq(late_unfinished(), 1);
  quay_buffer *second = late_view(a, 500, 500);
  pattern_check_buffer(second, 0, 1);
  quay_buffer_release(second);
  close_all();
}

static bool count_progress(void *user, uint64_t done, uint64_t total) {
  (void)total;
  *(uint64_t *)user = done;
  return true;
}

Test(async_copy, with_a_progress_callback_is_complete_on_return) {
  uint64_t done = 0;
  const quay_copy_options options = {
      .stream = one, .progress = count_progress, .progress_user = &done};
  MUST(quay_buffer_copy_region(b, 0, a, 0, SIZE, &options));
  cr_assert_eq(done, SIZE);
  cr_assert_eq(late_unfinished(), 0);
  close_all();
}

Test(async_copy, to_a_lazy_buffer_allocates_it) {
  quay_buffer *lazy = NULL;
  MUST(quay_buffer_create_lazy(quay_buffer_allocator(a), QUAY_U8, 1, (int64_t[]){SIZE}, NULL,
                               &lazy));
  late_plan_says(one, lazy, a, "asynchronous");
  late_copy(one, lazy, a);
  cr_assert_eq(late_unfinished(), 1);
  pattern_check_buffer(lazy, 0, 1);
  quay_buffer_release(lazy);
  close_all();
}

Test(async_copy, of_no_bytes_submits_nothing) {
  MUST(quay_buffer_copy_region(b, SIZE, a, 0, 0, &(quay_copy_options){.stream = one}));
  cr_assert_eq(late_unfinished(), 0);
  cr_assert_eq(late_calls(LATE_EVENT_RECORD), 0);
  close_all();
}

Test(async_copy, the_plan_says_whether_it_would_be_asynchronous) {
  late_plan_says(one, b, a, "asynchronous on the stream");
  late_plan_says(one, a, pinned, "asynchronous on the stream, from pinned memory");
  late_plan_says(one, pinned, a, "asynchronous on the stream, to pinned memory");
  late_plan_says(one, host, a, "blocks");
  cr_assert_eq(late_unfinished(), 0);
  cr_assert_eq(late_calls(LATE_EVENT_RECORD), 0);
  close_all();
}

/* What waits for what. */

Test(async_copy, a_reader_on_another_stream_waits_for_the_copy) {
  late_copy(one, b, a);
  late_kernel_on(two, b, QUAY_READ);
  cr_assert_eq(late_calls(LATE_STREAM_WAIT), 1);
  close_all();
}

Test(async_copy, a_writer_of_the_source_on_another_stream_waits_for_the_copy) {
  late_copy(one, b, a);
  late_kernel_on(two, a, QUAY_READ_WRITE);
  cr_assert_eq(late_calls(LATE_STREAM_WAIT), 1);
  pattern_check_buffer(b, 0, 1);
  close_all();
}

Test(async_copy, waits_for_a_kernel_that_writes_the_source) {
  late_kernel_on(two, a, QUAY_READ_WRITE);
  late_copy(one, b, a);
  cr_assert_eq(late_calls(LATE_STREAM_WAIT), 1);
  close_all();
}

Test(async_copy, waits_for_a_kernel_that_reads_the_destination) {
  late_kernel_on(two, b, QUAY_READ);
  late_copy(one, b, a);
  cr_assert_eq(late_calls(LATE_STREAM_WAIT), 1);
  close_all();
}

Test(async_copy, two_copies_into_one_buffer_stay_in_order) {
  late_copy(one, b, a);
  late_copy(two, b, pinned);
  cr_assert_eq(late_calls(LATE_STREAM_WAIT), 1);
  pattern_check_buffer(b, 0, 3);
  close_all();
}

Test(async_copy, nothing_is_waited_for_on_one_stream_or_for_what_only_reads) {
  late_copy(one, b, a);
  late_copy(one, pinned, b);
  quay_buffer *c = late_buffer("late:0", SIZE, 6);
  late_copy(two, c, a);
  cr_assert_eq(late_calls(LATE_STREAM_WAIT), 0);
  cr_assert_eq(late_calls(LATE_EVENT_SYNCHRONIZE), 0);
  pattern_check_buffer(pinned, 0, 1);
  quay_buffer_release(c);
  close_all();
}

Test(async_copy, disjoint_ranges_of_one_storage_do_not_wait_for_each_other) {
  MUST(quay_buffer_copy_region(b, 0, a, 0, 500, &(quay_copy_options){.stream = one}));
  MUST(quay_buffer_copy_region(b, 500, a, 500, 500, &(quay_copy_options){.stream = two}));
  cr_assert_eq(late_calls(LATE_STREAM_WAIT), 0);
  pattern_check_buffer(b, 0, 1);
  close_all();
}

Test(async_copy, the_host_waits_before_it_writes_the_source) {
  late_copy(one, b, a);
  unsigned char bytes[SIZE];
  pattern_make(bytes, SIZE, 9);
  MUST(quay_buffer_copy_in(a, bytes, SIZE));
  pattern_check_buffer(b, 0, 1);
  pattern_check_buffer(a, 0, 9);
  close_all();
}

Test(async_copy, the_host_waits_before_it_touches_pinned_memory) {
  late_copy(one, pinned, a);
  const void *bytes = NULL;
  MUST(quay_buffer_host_bytes(pinned, &bytes, NULL));
  late_host_access(bytes, SIZE, QUAY_READ);
  pattern_check(bytes, 0, SIZE, 1);
  close_all();
}

Test(async_copy, a_pageable_source_that_the_host_uses_is_not_waited_for_afterwards) {
  late_copy(one, a, host);
  late_counts_reset();
  const unsigned char other = 77;
  MUST(quay_buffer_fill(host, &other, 1));
  cr_assert_eq(late_calls(LATE_EVENT_SYNCHRONIZE), 0);
  close_all();
}

Test(async_copy, waits_on_the_host_for_a_source_that_the_host_reads) {
  quay_allocator *other = manual_open(
      &(manual_options){.kind = QUAY_MEMORY_PINNED, .streams = true, .host_accessible = true});
  quay_stream *stream = NULL;
  MUST(quay_stream_create(quay_allocator_device(other), NULL, &stream));
  quay_buffer *source = pattern_buffer(other, SIZE, 5);
  quay_access access;
  MUST(quay_access_begin(stream, &(quay_use){source, QUAY_WRITE}, 1, &access));
  MUST(quay_access_end(&access));
  late_copy(one, a, source);
  cr_assert_eq(manual.event_synchronize, 1);
  pattern_check_buffer(a, 0, 5);
  quay_buffer_release(source);
  quay_stream_release(stream);
  quay_allocator_release(other);

  close_all();
}

Test(async_copy, one_that_blocks_comes_after_everything_on_its_stream) {
  late_kernel_on(one, b, QUAY_READ_WRITE);
  late_copy(one, host, a);
  cr_assert_eq(late_calls(LATE_STREAM_SYNCHRONIZE), 1);
  cr_assert_eq(late_unfinished(), 0);
  close_all();
}

Test(async_copy, records_one_event) {
  late_copy(one, b, a);
  cr_assert_eq(late_calls(LATE_EVENT_RECORD), 1);
  close_all();
}

Test(async_copy, makes_its_stream_the_last_writer) {
  late_copy(one, b, a);
  quay_stream *stream = NULL;
  MUST(quay_buffer_last_write_stream(b, &stream));
  cr_assert_eq(stream, one);
  quay_stream_release(stream);
  MUST(quay_buffer_last_write_stream(a, &stream));
  cr_assert_null(stream);
  close_all();
}

/* Open accesses. */

Test(async_copy, is_busy_while_a_conflicting_access_is_open_on_another_stream) {
  quay_access access;
  MUST(quay_access_begin(two, &(quay_use){a, QUAY_WRITE}, 1, &access));
  MUST_FAIL(late_try_copy(one, b, a), BUSY);
  MUST_FAIL(late_try_copy(one, a, b), BUSY);
  MUST_FAIL(late_try_copy(one, host, a), BUSY);
  MUST_FAIL(late_try_copy(one, a, host), BUSY);
  const unsigned char byte = 5;
  MUST_FAIL(quay_buffer_fill_on(a, &byte, 1, one), BUSY);
  late_copy(two, b, a);
  MUST(quay_access_end(&access));
  late_copy(one, b, a);
  close_all();
}

static bool go_on(void *unused, uint64_t done, uint64_t total) {
  (void)unused, (void)done, (void)total;
  return true;
}

Test(async_copy, with_a_progress_callback_is_busy_as_well) {
  const quay_copy_options options = {.stream = one, .progress = go_on};
  quay_access access;
  MUST(quay_access_begin(two, &(quay_use){a, QUAY_WRITE}, 1, &access));
  MUST_FAIL(quay_buffer_copy_region(b, 0, a, 0, SIZE, &options), BUSY);
  MUST_FAIL(quay_buffer_copy_region(a, 0, b, 0, SIZE, &options), BUSY);
  MUST(quay_access_end(&access));
  MUST(quay_buffer_copy_region(b, 0, a, 0, SIZE, &options));
  pattern_check_buffer(b, 0, 1);
  close_all();
}

Test(async_copy, of_a_source_that_an_access_reads_is_not_busy) {
  quay_access access;
  MUST(quay_access_begin(two, &(quay_use){a, QUAY_READ}, 1, &access));
  late_copy(one, b, a);
  MUST_FAIL(late_try_copy(one, a, b), BUSY);
  MUST(quay_access_end(&access));
  close_all();
}

Test(async_copy, into_a_sealed_buffer_is_refused) {
  MUST(quay_buffer_seal(b));
  MUST_FAIL(late_try_copy(one, b, a), READ_ONLY);
  cr_assert_eq(late_unfinished(), 0);
  close_all();
}

/* Lifetimes. */

Test(async_copy, keeps_both_ends_until_it_is_done) {
  quay_buffer *from = late_buffer("late:0", SIZE, 7), *to = late_buffer("late:0", SIZE, 8);
  const uint64_t blocks = late_blocks_live();
  late_copy(one, to, from);
  quay_buffer_release(from);
  quay_buffer_release(to);
  MUST(quay_collect(NULL));
  cr_assert_eq(late_blocks_live(), blocks);
  MUST(quay_stream_synchronize(one));
  uint64_t bytes = 0;
  MUST(quay_collect(&bytes));
  cr_assert_eq(bytes, 2 * SIZE);
  cr_assert_eq(late_blocks_live(), blocks - 2);
  close_all();
}

Test(async_copy, a_wrapped_stream_can_be_destroyed_after_it) {
  const uint64_t native = late_native_stream_create(0);
  quay_stream *wrapped = NULL;
  MUST(quay_stream_wrap(late_device_at(0), native, &wrapped));
  late_copy(wrapped, b, a);
  quay_stream_release(wrapped);
  late_native_stream_destroy(native);
  quay_stream *last = one;
  MUST(quay_buffer_last_write_stream(b, &last));
  cr_assert_null(last);
  late_run_all();
  pattern_check_buffer(b, 0, 1);
  close_all();
}

/* Failures. */

Test(async_copy, without_an_event_the_stream_is_waited_for) {
  cr_assert(late_fail(LATE_EVENT_RECORD, 1, QUAY_STATUS_OUT_OF_HOST_MEMORY));
  quay_error_clear();
  late_copy(one, b, a);
  cr_assert_eq(quay_last_error()->status, QUAY_OK);
  cr_assert_eq(late_unfinished(), 0);
  pattern_check_buffer(b, 0, 1);
  close_all();
}

Test(async_copy, without_an_event_and_the_streams_end_the_device_is_waited_for) {
  cr_assert(late_fail(LATE_EVENT_RECORD, 1, QUAY_STATUS_OUT_OF_HOST_MEMORY));
  cr_assert(late_fail(LATE_STREAM_SYNCHRONIZE, 1, QUAY_STATUS_IO));
  MUST_FAIL(late_try_copy(one, b, a), IO);
  cr_assert_eq(late_unfinished(), 0);
  pattern_check_buffer(b, 0, 1);
  close_all();
}

Test(async_copy, on_a_device_that_can_be_waited_for_in_no_way_nothing_is_used_any_more) {
  cr_assert(late_fail(LATE_EVENT_RECORD, 1, QUAY_STATUS_OUT_OF_HOST_MEMORY));
  cr_assert(late_fail(LATE_STREAM_SYNCHRONIZE, 1, QUAY_STATUS_IO));
  cr_assert(late_fail(LATE_SYNCHRONIZE, 1, QUAY_STATUS_IO));
  MUST_FAIL(late_try_copy(one, b, a), IO);
  MUST_FAIL(late_try_copy(one, b, a), DEVICE_LOST);
  cr_assert_not_null(strstr(quay_last_error()->message, "nothing tells when work on it ends"));
  late_lose(0); /* as the core takes it to be */
  close_all();
}

Test(async_copy, one_that_is_refused_says_that_bytes_are_undefined_and_ends_its_uses) {
  cr_assert(late_fail(LATE_COPY_WITHIN_ASYNC, 1, QUAY_STATUS_IO));
  MUST_FAIL(late_try_copy(one, b, a), IO);
  cr_assert_not_null(strstr(quay_last_error()->message, "undefined"));
  late_copy(two, b, a);
  pattern_check_buffer(b, 0, 1);
  close_all();
}

Test(async_copy, a_wait_that_fails_leaves_nothing_open_and_moves_nothing) {
  late_kernel_on(two, a, QUAY_READ_WRITE);
  cr_assert(late_fail(LATE_STREAM_WAIT, 1, QUAY_STATUS_IO));
  MUST_FAIL(late_try_copy(one, b, a), IO);
  cr_assert_eq(late_calls(LATE_COPY_WITHIN_ASYNC), 0);
  pattern_check_buffer(b, 0, 2);
  late_copy(two, b, a);
  close_all();
}

/* Layers. */

Test(async_copy, goes_through_the_layers) {
  quay_buffer *tracked = late_buffer("track+late:0", SIZE, 5);
  quay_buffer *tracked_pinned = late_buffer("track+late:0,memory=pinned", SIZE, 6);
  late_copy(one, tracked, a);
  late_copy(one, tracked_pinned, tracked);
  late_copy(one, b, tracked_pinned);
  cr_assert_eq(late_unfinished(), 3);
  pattern_check_buffer(b, 0, 1);
  quay_buffer_release(tracked);
  quay_buffer_release(tracked_pinned);
  close_all();
}

Test(async_copy, goes_through_the_layers_between_peers) {
  quay_buffer *remote = late_buffer("track+fault:nth=1000,on=copy+late:1", SIZE, 5);
  quay_buffer *tracked = late_buffer("track+late:0", SIZE, 6);
  late_copy(one, remote, a);
  late_copy(peer, b, remote);
  late_copy(one, remote, tracked);
  cr_assert_eq(late_calls(LATE_COPY_ACROSS_ASYNC), 3);
  cr_assert_eq(late_unfinished(), 3);
  pattern_check_buffer(b, 0, 1);
  pattern_check_buffer(remote, 0, 6);
  quay_buffer_release(remote);
  quay_buffer_release(tracked);

  close_all();
}

Test(async_copy, a_layer_that_refuses_one_between_peers_stops_it_before_it_is_submitted) {
  static const char *const specs[] = {"fault:every=1,on=copy_in+late:1",
                                      "fault:every=1,on=copy_out+late:1"};
  for (int reads = 0; reads < 2; reads++) {
    quay_allocator *failing = open_spec(specs[reads]);
    quay_buffer *remote = NULL;
    MUST(quay_buffer_create(failing, QUAY_U8, 1, (int64_t[]){SIZE}, NULL, &remote));
    quay_stream *streams[] = {one, peer};
    for (int i = 0; i < 2; i++) {
      MUST_FAIL(reads ? late_try_copy(streams[i], a, remote) : late_try_copy(streams[i], remote, a),
                IO);
    }
    cr_assert_eq(late_unfinished(), 0);
    quay_buffer_release(remote);
    quay_allocator_release(failing);
  }

  close_all();
}

Test(async_copy, layers_of_both_ends_see_a_copy_that_either_of_them_submits) {
  quay_allocator *counting = open_spec("fault:nth=2,on=copy+late:0,memory=pinned");
  quay_buffer *lent = pattern_buffer(counting, SIZE, 5);
  MUST_FAIL(late_try_copy(one, a, lent), IO);
  cr_assert_eq(late_unfinished(), 0);
  late_copy(one, a, lent);
  pattern_check_buffer(a, 0, 5);
  quay_buffer_release(lent);
  quay_allocator_release(counting);
  close_all();
}

/* Fills. */

Test(async_copy, a_fill_is_submitted_and_waited_for) {
  static const unsigned char pattern[] = {1, 2, 3, 4};
  MUST(quay_buffer_fill_on(a, pattern, 4, one));
  cr_assert_eq(late_unfinished(), 1);
  late_kernel_on(two, a, QUAY_READ_WRITE);
  cr_assert_eq(late_calls(LATE_STREAM_WAIT), 1);
  unsigned char bytes[SIZE];
  MUST(quay_buffer_copy_out(a, bytes, SIZE));
  for (size_t i = 0; i < SIZE; i++)
    cr_assert_eq(bytes[i], pattern[i % 4] + 1);
  close_all();
}

Test(async_copy, a_fill_waits_for_readers) {
  static const unsigned char pattern[] = {9};
  late_kernel_on(two, a, QUAY_READ);
  MUST(quay_buffer_fill_on(a, pattern, 1, one));
  cr_assert_eq(late_calls(LATE_STREAM_WAIT), 1);
  close_all();
}

Test(async_copy, a_fill_without_a_stream_or_of_host_memory_is_done_on_return) {
  static const unsigned char pattern[] = {9, 8};
  quay_stream *stream = NULL;
  quay_device *device = quay_device_host();
  MUST(quay_stream_create(device, NULL, &stream));
  MUST(quay_buffer_fill_on(a, pattern, 2, NULL));
  MUST(quay_buffer_fill_on(b, pattern, 2, stream));
  MUST(quay_buffer_fill_on(host, pattern, 2, stream));
  cr_assert_eq(late_unfinished(), 0);
  quay_buffer *buffers[] = {a, b, host};
  for (size_t i = 0; i < 3; i++) {
    unsigned char bytes[SIZE];
    MUST(quay_buffer_copy_out(buffers[i], bytes, SIZE));
    for (size_t j = 0; j < SIZE; j++)
      cr_assert_eq(bytes[j], pattern[j % 2]);
  }
  quay_stream_release(stream);
  quay_device_release(device);
  close_all();
}

Test(async_copy, bad_fills_are_refused) {
  static const unsigned char pattern[16] = {1};
  MUST_FAIL(quay_buffer_fill_on(NULL, pattern, 1, one), INVALID_ARGUMENT);
  MUST_FAIL(quay_buffer_fill_on(a, NULL, 1, one), INVALID_ARGUMENT);
  MUST_FAIL(quay_buffer_fill_on(a, pattern, 3, one), INVALID_ARGUMENT);
  MUST_FAIL(quay_buffer_fill_on(a, pattern, 0, one), INVALID_ARGUMENT);
  MUST_FAIL(quay_buffer_fill_on(a, pattern, 16, one), SIZE_MISMATCH);
  MUST_FAIL(quay_buffer_fill_on(a, pattern, 1, peer), INVALID_ARGUMENT);
  cr_assert_not_null(strstr(quay_last_error()->message, "device late:1, but the buffer is on"),
                     "%s", quay_last_error()->message);
  MUST_FAIL(quay_buffer_fill_on(host, pattern, 1, one), INVALID_ARGUMENT);
  cr_assert_eq(late_unfinished(), 0);
  close_all();
}

/* Streams that really run by themselves. */

Test(async_copy_threads, a_chain_over_two_devices_arrives) {
  late_begin(&(late_options){.mode = LATE_THREADS, .seed = 5});
  quay_stream *zero = late_stream_of(0), *other = late_stream_of(1);
  quay_buffer *chain[] = {late_buffer("late:0,memory=pinned", SIZE, 1),
                          late_buffer("late:0", SIZE, 2), late_buffer("late:1", SIZE, 3),
                          late_buffer("late:1,memory=pinned", SIZE, 4)};
  late_copy(zero, chain[1], chain[0]);
  late_copy(other, chain[2], chain[1]);
  late_copy(other, chain[3], chain[2]);
  for (int i = 0; i < 3; i++)
    quay_buffer_release(chain[i]);
  pattern_check_buffer(chain[3], 0, 1);
  quay_buffer_release(chain[3]);
  MUST(quay_stream_synchronize(zero));
  MUST(quay_stream_synchronize(other));
  quay_stream_release(zero);
  quay_stream_release(other);
  late_end();
}

typedef struct blocked {
  quay_stream *stream;
  quay_buffer *to, *from;
  quay_status status;
} blocked;

static void *copy_in_a_thread(void *user) {
  blocked *job = user;
  job->status = late_try_copy(job->stream, job->to, job->from);
  return NULL;
}

/* Between devices that do not meet; it waits for a read of the destination that does not end. */
Test(async_copy_threads, one_that_blocks_keeps_both_ends_whoever_releases_them) {
  late_begin(&(late_options){.mode = LATE_THREADS, .seed = 6});
  quay_stream *zero = late_stream_of(0), *reader = late_stream_of(0);
  blocked job = {zero, late_buffer("late:0", SIZE, 1), late_buffer("late:2", SIZE, 2), QUAY_OK};
  quay_access access;
  MUST(quay_access_begin(reader, &(quay_use){job.to, QUAY_READ}, 1, &access));
  const uint64_t gate = late_hold(quay_stream_native(reader));
  MUST(quay_access_end(&access));
  const uint64_t blocks = late_blocks_live();
  const uint64_t waits = late_calls(LATE_EVENT_SYNCHRONIZE);
  pthread_t thread;
  cr_assert_eq(pthread_create(&thread, NULL, copy_in_a_thread, &job), 0);
  while (late_calls(LATE_EVENT_SYNCHRONIZE) == waits)
    usleep(100);
  quay_buffer_release(job.to);
  quay_buffer_release(job.from);
  MUST(quay_collect(NULL));
  cr_assert_eq(late_blocks_live(), blocks);
  late_open_gate(gate);
  pthread_join(thread, NULL);
  cr_assert_eq(job.status, QUAY_OK);
  MUST(quay_stream_synchronize(reader));
  quay_stream_release(zero);
  quay_stream_release(reader);
  MUST(quay_collect(NULL));
  cr_assert_eq(late_blocks_live(), blocks - 2);
  late_end();
}
