/* Frees of memory that device work still uses: nothing blocks, nothing is reused early, and what is
 * done is reaped where the library says so. */
#include "late_core.h"
#include "support/manual_device.h"

enum {
  SIZE = 1000
};

static uint64_t pending_bytes(quay_allocator *allocator) {
  quay_stats stats;
  MUST(quay_allocator_stats(allocator, &stats));
  return stats.pending_bytes;
}

static uint64_t address_of(quay_buffer *buffer) {
  uint64_t address = 0;
  MUST(quay_buffer_address(buffer, &address));
  return address;
}

static quay_buffer *plain_buffer(quay_allocator *allocator, int64_t size, quay_stream *stream) {
  quay_buffer *buffer = NULL;
  const quay_alloc_options options = {.stream = stream};
  MUST(quay_buffer_create(allocator, QUAY_U8, 1, &size, &options, &buffer));
  return buffer;
}

/* Most tests: a device without ordered free, a stream, and a buffer with work under way. */
static quay_allocator *device;
static quay_stream *stream;
static quay_buffer *buffer;

static void open_options(const late_options *options) {
  late_begin(options);
  device = open_spec("late:0");
  stream = late_stream_of(0);
  buffer = pattern_buffer(device, SIZE, 1);
  late_kernel_on(stream, buffer, QUAY_READ_WRITE);
  late_counts_reset();
}

static void open_device(void) {
  open_options(&(late_options){.mode = LATE_MANUAL, .seed = 3});
}

static void close_device(void) {
  quay_buffer_release(buffer);
  quay_stream_release(stream);
  quay_allocator_release(device);
  late_end();
}

static void drop(void) {
  quay_buffer_release(buffer);
  buffer = NULL;
}

/* Tests end with close_device(): what fails after a test fails nothing. */
TestSuite(retire, .init = open_device);

Test(retire, memory_with_work_under_way_is_kept_and_counted_as_pending) {
  drop();
  cr_assert_eq(late_calls(LATE_FREE), 0);
  cr_assert_eq(pending_bytes(device), SIZE);
  MUST(quay_collect(NULL));
  cr_assert_eq(late_calls(LATE_FREE), 0);
  late_run_all();
  uint64_t bytes = 0;
  MUST(quay_collect(&bytes));
  cr_assert_eq(bytes, SIZE);
  cr_assert_eq(late_calls(LATE_FREE), 1);
  cr_assert_eq(pending_bytes(device), 0);
  close_device();
}

Test(retire, memory_whose_work_is_done_is_freed_at_once) {
  late_run_all();
  drop();
  cr_assert_eq(late_calls(LATE_FREE), 1);
  cr_assert_eq(pending_bytes(device), 0);
  close_device();
}

Test(retire, a_view_keeps_it_as_well) {
  quay_buffer *view = late_view(buffer, 10, 10);
  drop();
  late_run_all();
  MUST(quay_collect(NULL));
  cr_assert_eq(late_calls(LATE_FREE), 0);
  quay_buffer_release(view);
  cr_assert_eq(late_calls(LATE_FREE), 1);
  close_device();
}

Test(retire, reads_keep_it_too) {
  late_run_all();
  late_kernel_on(stream, buffer, QUAY_READ);
  drop();
  cr_assert_eq(late_calls(LATE_FREE), 0);
  close_device();
}

Test(retire, freeing_waits_for_nothing) {
  drop();
  cr_assert_neq(late_queued(quay_stream_native(stream)), 0);
  cr_assert_eq(late_calls(LATE_EVENT_SYNCHRONIZE), 0);
  cr_assert_eq(late_calls(LATE_STREAM_SYNCHRONIZE), 0);
  cr_assert_eq(late_calls(LATE_SYNCHRONIZE), 0);
  close_device();
}

Test(retire, synchronizing_the_allocator_reaps) {
  drop();
  MUST(quay_allocator_synchronize(device));
  cr_assert_eq(late_calls(LATE_FREE), 1);
  close_device();
}

Test(retire, synchronizing_a_buffer_reaps) {
  quay_buffer *other = pattern_buffer(device, SIZE, 2);
  drop();
  late_run_all();
  MUST(quay_buffer_synchronize(other));
  cr_assert_eq(late_calls(LATE_FREE), 1);
  quay_buffer_release(other);
  close_device();
}

Test(retire, trimming_reaps_only_what_is_done) {
  drop();
  MUST(quay_allocator_trim(device, NULL));
  cr_assert_eq(late_calls(LATE_FREE), 0);
  late_run_all();
  MUST(quay_allocator_trim(device, NULL));
  cr_assert_eq(late_calls(LATE_FREE), 1);
  close_device();
}

Test(retire, an_event_that_cannot_be_asked_is_not_done) {
  cr_assert(late_fail(LATE_EVENT_QUERY, 1, QUAY_STATUS_IO));
  late_run_all();
  quay_error_clear();
  drop();
  cr_assert_eq(quay_last_error()->status, QUAY_OK);
  cr_assert_eq(late_calls(LATE_FREE), 0);
  MUST(quay_collect(NULL));
  cr_assert_eq(late_calls(LATE_FREE), 1);
  close_device();
}

Test(retire, a_lost_device_has_nothing_under_way) {
  drop();
  late_lose(0);
  MUST(quay_collect(NULL));
  cr_assert_eq(late_calls(LATE_FREE), 1);
  cr_assert_eq(pending_bytes(device), 0);
  close_device();
}

Test(retire, a_device_that_was_reset_has_nothing_under_way) {
  drop();
  late_reset(0);
  MUST(quay_collect(NULL));
  cr_assert_eq(late_calls(LATE_FREE), 1);
  close_device();
}

Test(retire, shutdown_is_busy_until_it_is_reaped) {
  drop();
  MUST_FAIL(quay_shutdown(), BUSY);
  close_device();
}

/* Little memory. */

Test(retire_little, allocation_reaps_what_is_done_before_it_fails) {
  open_options(&(late_options){.mode = LATE_MANUAL, .device_bytes = 2 * SIZE});
  drop();
  late_run_all();
  quay_error_clear();
  quay_buffer *big = plain_buffer(device, 2 * SIZE, NULL);
  cr_assert_eq(quay_last_error()->status, QUAY_OK);
  quay_buffer_release(big);
  close_device();
}

Test(retire_little, allocation_fails_rather_than_wait) {
  open_options(&(late_options){.mode = LATE_MANUAL, .device_bytes = 2 * SIZE});
  drop();
  quay_buffer *big = NULL;
  MUST_FAIL(quay_buffer_create(device, QUAY_U8, 1, (int64_t[]){2 * SIZE}, NULL, &big),
            OUT_OF_DEVICE_MEMORY);
  cr_assert_neq(late_queued(quay_stream_native(stream)), 0);
  close_device();
}

Test(retire_little, raw_buffers_reap_as_well) {
  open_options(&(late_options){.mode = LATE_MANUAL, .device_bytes = 2 * SIZE});
  quay_raw_buffer raw;
  drop();
  MUST_FAIL(quay_allocator_alloc(device, 2 * SIZE, NULL, &raw), OUT_OF_DEVICE_MEMORY);
  late_run_all();
  MUST(quay_allocator_alloc(device, 2 * SIZE, NULL, &raw));
  quay_raw_buffer_free(&raw);
  close_device();
}

Test(retire_little, lazy_buffers_reap_as_well) {
  open_options(&(late_options){.mode = LATE_MANUAL, .device_bytes = 2 * SIZE});
  quay_buffer *lazy = NULL;
  MUST(quay_buffer_create_lazy(device, QUAY_U8, 1, (int64_t[]){2 * SIZE}, NULL, &lazy));
  drop();
  late_run_all();
  MUST(quay_buffer_ensure_allocated(lazy));
  quay_buffer_release(lazy);
  close_device();
}

/* Owners with ordered free. */

Test(retire_ordered, the_owner_gets_the_pending_events) {
  open_options(&(late_options){.mode = LATE_MANUAL, .ordered_free = true});
  drop();
  late_counts counts;
  late_count(&counts);
  cr_assert_eq(counts.calls[LATE_FREE], 1);
  cr_assert_eq(counts.pending_frees, 1);
  cr_assert_neq(late_queued(quay_stream_native(stream)), 0);
  cr_assert_eq(pending_bytes(device), 0);
  late_run_all();
  close_device();
}

Test(retire_ordered, events_of_several_streams_are_all_handed_over) {
  open_options(&(late_options){.mode = LATE_MANUAL, .ordered_free = true});
  quay_stream *streams[5];
  for (int i = 0; i < 5; i++) {
    streams[i] = late_stream_of(0);
    late_kernel_on(streams[i], buffer, QUAY_READ);
  }
  drop();
  cr_assert_eq(late_calls(LATE_FREE), 1);
  for (int i = 0; i < 5; i++)
    quay_stream_release(streams[i]);
  close_device();
}

Test(retire_ordered, done_events_are_not_handed_over) {
  open_options(&(late_options){.mode = LATE_MANUAL, .ordered_free = true});
  late_run_all();
  drop();
  late_counts counts;
  late_count(&counts);
  cr_assert_eq(counts.pending_frees, 0);
  close_device();
}

/* Streams that really run, and a gate. */

static void hold_and_drop(bool ordered) {
  open_options(&(late_options){.mode = LATE_THREADS, .ordered_free = ordered, .seed = 9});
  MUST(quay_stream_synchronize(stream));
  quay_access access;
  MUST(quay_access_begin(stream, &(quay_use){buffer, QUAY_WRITE}, 1, &access));
  const uint64_t gate = late_hold(quay_stream_native(stream));
  MUST(quay_access_end(&access));
  const uint64_t address = address_of(buffer);
  drop(); /* returns, though the gate is shut */
  quay_buffer *next = pattern_buffer(device, SIZE, 2);
  cr_assert_neq(address_of(next), address);
  cr_assert_eq(late_blocks_live(), ordered ? 1 : 2);
  unsigned char byte;
  cr_assert(ordered || late_peek(address, &byte, 1), "the memory is gone before the gate is open");
  late_open_gate(gate);
  MUST(quay_stream_synchronize(stream));
  MUST(quay_collect(NULL));
  cr_assert(!late_peek(address, &byte, 1), "the memory was not freed");
  quay_buffer_release(next);
  close_device();
}

Test(retire_threads, a_release_behind_a_shut_gate_returns_and_the_memory_stays) {
  hold_and_drop(false);
}

Test(retire_threads, a_release_behind_a_shut_gate_returns_with_ordered_free) {
  hold_and_drop(true);
}

/* Allocation in the order of a stream. */

Test(retire, memory_of_a_stream_is_waited_for_elsewhere) {
  quay_stream *other = late_stream_of(0);
  quay_buffer *ordered = plain_buffer(device, SIZE, stream);
  late_kernel_on(other, ordered, QUAY_WRITE);
  cr_assert_eq(late_calls(LATE_STREAM_WAIT), 1);
  quay_buffer_release(ordered);
  quay_stream_release(other);
  close_device();
}

Test(retire, memory_of_a_stream_is_not_waited_for_on_it) {
  quay_buffer *ordered = plain_buffer(device, SIZE, stream);
  late_kernel_on(stream, ordered, QUAY_WRITE);
  cr_assert_eq(late_calls(LATE_STREAM_WAIT), 0);
  quay_buffer_release(ordered);
  close_device();
}

Test(retire, memory_of_a_stream_is_waited_for_by_the_host) {
  quay_buffer *ordered = plain_buffer(device, SIZE, stream);
  unsigned char bytes[SIZE];
  pattern_make(bytes, SIZE, 6);
  MUST(quay_buffer_copy_in(ordered, bytes, SIZE));
  pattern_check_buffer(ordered, 0, 6);
  quay_buffer_release(ordered);
  close_device();
}

static void expect_zeros_in_order(bool leaves_zeros) {
  open_options(&(late_options){.mode = LATE_MANUAL, .seed = 3, .leaves_zeros = leaves_zeros});
  quay_buffer *ordered = NULL;
  const quay_alloc_options options = {.stream = stream, .zeroed = true};
  MUST(quay_buffer_create(device, QUAY_U8, 1, (int64_t[]){SIZE}, &options, &ordered));
  cr_assert_neq(late_queued(quay_stream_native(stream)), 0);
  unsigned char bytes[SIZE];
  memset(bytes, 1, SIZE);
  MUST(quay_buffer_copy_out(ordered, bytes, SIZE));
  for (int i = 0; i < SIZE; i++)
    cr_assert_eq(bytes[i], 0);
  quay_buffer_release(ordered);
  close_device();
}

Test(retire_zeroed, memory_of_a_stream_is_zeroed_by_its_backend) {
  expect_zeros_in_order(false);
}

Test(retire_zeroed, memory_of_a_stream_is_zeroed_on_that_stream) {
  expect_zeros_in_order(true);
}

Test(retire, without_an_event_for_the_memory_of_a_stream_it_is_waited_for) {
  cr_assert(late_fail(LATE_EVENT_RECORD, 1, QUAY_STATUS_OUT_OF_HOST_MEMORY));
  quay_buffer *ordered = plain_buffer(device, SIZE, stream);
  cr_assert_eq(late_queued(quay_stream_native(stream)), 0);
  quay_buffer_release(ordered);
  close_device();
}

Test(retire, memory_of_a_stream_that_is_not_to_be_had_leaves_nothing_behind) {
  quay_buffer *ordered = NULL;
  const quay_alloc_options options = {.stream = stream};
  cr_assert(late_fail(LATE_ALLOC, 1, QUAY_STATUS_OUT_OF_DEVICE_MEMORY));
  MUST_FAIL(quay_buffer_create(device, QUAY_U8, 1, (int64_t[]){SIZE}, &options, &ordered),
            OUT_OF_DEVICE_MEMORY);
  cr_assert_null(ordered);
  cr_assert_eq(late_calls(LATE_EVENT_RECORD), 0);
  close_device();
}

/* A device with streams whose memory can't be filled on them. */

Test(retire_blocking, memory_of_a_stream_is_zeroed_after_it_without_asynchronous_fills) {
  device = manual_open(&(manual_options){.streams = true});
  MUST(quay_stream_create(quay_allocator_device(device), NULL, &stream));
  const quay_alloc_options options = {.stream = stream, .zeroed = true};
  MUST(quay_buffer_create(device, QUAY_U8, 1, (int64_t[]){SIZE}, &options, &buffer));
  cr_assert_eq(manual.stream_synchronize, 1);
  cr_assert_eq(manual.fill, 1);
  quay_buffer_release(buffer);
  manual_complete_all();
  MUST(quay_collect(NULL));
  quay_stream_release(stream);
  quay_allocator_release(device);
}

Test(retire_blocking, a_fill_comes_after_its_stream_without_asynchronous_fills) {
  device = manual_open(&(manual_options){.streams = true});
  MUST(quay_stream_create(quay_allocator_device(device), NULL, &stream));
  buffer = pattern_buffer(device, SIZE, 1);
  MUST(quay_buffer_fill_on(buffer, "x", 1, stream));
  cr_assert_eq(manual.stream_synchronize, 1);
  cr_assert_eq(manual.fill, 1);
  quay_buffer_release(buffer);
  quay_stream_release(stream);
  quay_allocator_release(device);
}
