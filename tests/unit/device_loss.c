/* Loss and reset of a device: what fails with which message, what is stale, what can still be
 * freed, and how it goes on afterwards. */
#include "late_core.h"

enum {
  SIZE = 100
};

static quay_device *device;
static quay_allocator *memory;
static quay_stream *stream;
static quay_buffer *a, *b, *pinned, *elsewhere;
static quay_event *event;

static void open_device(void) {
  late_begin_manual();
  device = late_device_at(0);
  memory = open_spec("late:0");
  stream = late_stream_of(0);
  a = pattern_buffer(memory, SIZE, 1);
  b = pattern_buffer(memory, SIZE, 2);
  pinned = late_buffer("late:0,memory=pinned", SIZE, 3);
  elsewhere = late_buffer("late:1", SIZE, 4);
  late_kernel_on(stream, a, QUAY_READ_WRITE);
  MUST(quay_event_record(stream, &event));
  late_counts_reset();
}

static void release_stream(void) {
  quay_stream_release(stream);
  stream = NULL;
}

static void close_device(void) {
  quay_buffer *buffers[] = {a, b, pinned, elsewhere};
  for (size_t i = 0; i < 4; i++)
    quay_buffer_release(buffers[i]);
  quay_event_release(event);
  quay_stream_release(stream);
  quay_allocator_release(memory);
  late_end();
}

/* Tests end with close_device(): what fails after a test fails nothing. */
TestSuite(device_loss, .init = open_device);

/* Fails with the loss's own message and native code. */
#define LOST(expression)                                                        \
  do {                                                                          \
    MUST_FAIL(expression, DEVICE_LOST);                                         \
    cr_assert_eq(quay_last_error()->native_code, 719, #expression);             \
    cr_assert_str_eq(quay_last_error()->native_name, "LATE_DEVICE_LOST");       \
    cr_assert_not_null(strstr(quay_last_error()->message, "a test has asked")); \
  } while (0)

/* Loss. */

Test(device_loss, every_entry_point_gives_the_first_message) {
  quay_access access, open;
  MUST(quay_access_begin(stream, &(quay_use){b, QUAY_WRITE}, 1, &open));
  quay_buffer *view = late_view(a, 0, 10), *made = NULL, *lazy = NULL;
  MUST(quay_buffer_create_lazy(memory, QUAY_U8, 1, (int64_t[]){SIZE}, NULL, &lazy));
  quay_stream *new_stream = NULL;
  quay_event *new_event = NULL;
  quay_raw_buffer raw;
  quay_memory_info info;
  unsigned char bytes[SIZE] = {1};
  bool done;
  const void *pointer;
  void *mutable;
  uint64_t number;
  const quay_copy_options on_stream = {.stream = stream};
  late_lose(0);
  LOST(quay_buffer_check(a));
  LOST(quay_buffer_check(view));
  LOST(quay_buffer_copy_in(a, bytes, SIZE));
  LOST(quay_buffer_copy_out(a, bytes, SIZE));
  LOST(quay_buffer_copy_from(a, b));
  LOST(quay_buffer_copy_from(elsewhere, a));
  LOST(quay_buffer_copy_from(a, elsewhere));
  LOST(quay_buffer_copy_region(a, 0, b, 0, SIZE, &on_stream));
  LOST(quay_buffer_fill(a, bytes, 1));
  LOST(quay_buffer_fill_on(a, bytes, 1, stream));
  LOST(quay_buffer_host_bytes(pinned, &pointer, NULL));
  LOST(quay_buffer_host_bytes_mut(pinned, &mutable, NULL));
  LOST(quay_buffer_address(a, &number));
  LOST(quay_buffer_synchronize(a));
  LOST(quay_buffer_seal(a));
  LOST(quay_buffer_ensure_allocated(lazy));
  LOST(quay_buffer_create(memory, QUAY_U8, 1, (int64_t[]){SIZE}, NULL, &made));
  LOST(quay_allocator_alloc(memory, SIZE, NULL, &raw));
  LOST(quay_allocator_synchronize(memory));
  LOST(quay_stream_create(device, NULL, &new_stream));
  LOST(quay_stream_wrap(device, 0, &new_stream));
  LOST(quay_stream_synchronize(stream));
  LOST(quay_stream_wait(stream, event));
  LOST(quay_event_record(stream, &new_event));
  LOST(quay_event_query(event, &done));
  LOST(quay_event_synchronize(event));
  LOST(quay_access_begin(stream, &(quay_use){a, QUAY_READ}, 1, &access));
  LOST(quay_access_end(&open));
  LOST(quay_device_memory_info(device, &info));
  cr_assert_eq(quay_device_health(device), QUAY_HEALTH_LOST);
  quay_buffer_release(view);
  quay_buffer_release(lazy);
  close_device();
}

Test(device_loss, an_access_that_was_open_is_closed_all_the_same) {
  quay_access open;
  MUST(quay_access_begin(stream, &(quay_use){b, QUAY_WRITE}, 1, &open));
  late_lose(0);
  LOST(quay_access_end(&open));
  MUST(quay_access_end(&open));
  close_device();
}

Test(device_loss, work_in_the_middle_of_which_it_happens_fails_where_it_is_waited_for) {
  late_lose_after(0, 1);
  MUST_FAIL(quay_buffer_copy_out(a, (unsigned char[SIZE]){0}, SIZE), DEVICE_LOST);
  close_device();
}

Test(device_loss, other_devices_go_on) {
  quay_stream *peer = late_stream_of(1);
  late_copy(stream, elsewhere, a);
  late_lose(0);
  late_kernel_on(peer, elsewhere, QUAY_WRITE);
  MUST(quay_stream_synchronize(peer));
  MUST(quay_buffer_check(elsewhere));
  quay_stream_release(peer);
  close_device();
}

Test(device_loss, what_it_was_to_write_elsewhere_can_not_be_read_and_can_be_written) {
  late_copy(stream, elsewhere, a);
  late_lose(0);
  unsigned char bytes[SIZE];
  pattern_make(bytes, SIZE, 7);
  LOST(quay_buffer_copy_out(elsewhere, bytes, SIZE));
  MUST(quay_buffer_copy_in(elsewhere, bytes, SIZE));
  pattern_check_buffer(elsewhere, 0, 7);
  close_device();
}

Test(device_loss, memory_with_work_that_never_ends_can_be_freed) {
  quay_buffer_release(a);
  a = NULL;
  late_lose(0);
  MUST(quay_collect(NULL));
  cr_assert_eq(late_calls(LATE_FREE), 1);
  close_device();
}

Test(device_loss, a_free_keeps_the_callers_error) {
  late_lose(0);
  quay_buffer *none = NULL;
  MUST_FAIL(quay_buffer_create(NULL, QUAY_U8, -1, NULL, NULL, &none), INVALID_ARGUMENT);
  quay_buffer_release(a);
  a = NULL;
  cr_assert_eq(quay_last_error()->status, QUAY_STATUS_INVALID_ARGUMENT);
  close_device();
}

/* Reset. */

Test(device_loss, a_reset_is_busy_while_streams_are_alive) {
  MUST_FAIL(quay_device_reset(device), BUSY);
  cr_assert_eq(late_calls(LATE_RESET), 0);
  cr_assert_eq(quay_device_generation(device), 1);
  release_stream();
  MUST(quay_device_reset(device));
  close_device();
}

Test(device_loss, a_reset_is_busy_while_an_access_is_open) {
  quay_access open;
  MUST(quay_access_begin(stream, &(quay_use){b, QUAY_WRITE}, 1, &open));
  release_stream();
  MUST_FAIL(quay_device_reset(device), BUSY);
  MUST(quay_access_end(&open));
  MUST(quay_device_reset(device));
  close_device();
}

Test(device_loss, a_reset_of_a_healthy_device_makes_its_memory_stale) {
  release_stream();
  MUST(quay_device_reset(device));
  cr_assert_eq(quay_device_generation(device), 2);
  cr_assert_eq(quay_buffer_generation(a), 1);
  MUST_FAIL(quay_buffer_check(a), STALE);
  MUST_FAIL(quay_buffer_check(pinned), STALE);
  MUST(quay_buffer_check(elsewhere));
  close_device();
}

Test(device_loss, every_entry_point_says_that_memory_is_stale) {
  release_stream();
  MUST(quay_device_reset(device));
  stream = late_stream_of(0);
  quay_access access;
  unsigned char bytes[SIZE] = {1};
  const void *pointer;
  uint64_t number;
  bool done;
  const quay_copy_options on_stream = {.stream = stream};
  MUST_FAIL(quay_buffer_copy_in(a, bytes, SIZE), STALE);
  MUST_FAIL(quay_buffer_copy_out(a, bytes, SIZE), STALE);
  MUST_FAIL(quay_buffer_copy_from(elsewhere, a), STALE);
  MUST_FAIL(quay_buffer_copy_from(a, elsewhere), STALE);
  MUST_FAIL(quay_buffer_copy_region(a, 0, b, 0, SIZE, &on_stream), STALE);
  MUST_FAIL(quay_buffer_fill(a, bytes, 1), STALE);
  MUST_FAIL(quay_buffer_fill_on(a, bytes, 1, stream), STALE);
  MUST_FAIL(quay_buffer_host_bytes(pinned, &pointer, NULL), STALE);
  MUST_FAIL(quay_buffer_address(a, &number), STALE);
  MUST_FAIL(quay_buffer_seal(a), STALE);
  MUST_FAIL(quay_access_begin(stream, &(quay_use){a, QUAY_READ}, 1, &access), STALE);
  MUST_FAIL(quay_event_query(event, &done), STALE);
  MUST_FAIL(quay_event_synchronize(event), STALE);
  MUST_FAIL(quay_stream_wait(stream, event), STALE);
  close_device();
}

Test(device_loss, a_stale_event_is_not_handed_to_the_backend) {
  release_stream();
  MUST(quay_device_reset(device));
  bool done;
  MUST_FAIL(quay_event_query(event, &done), STALE);
  MUST_FAIL(quay_event_synchronize(event), STALE);
  cr_assert_eq(late_calls(LATE_EVENT_QUERY), 0);
  cr_assert_eq(late_calls(LATE_EVENT_SYNCHRONIZE), 0);

  close_device();
}

Test(device_loss, a_lost_device_can_be_reset_and_used_again) {
  late_lose(0);
  release_stream();
  MUST(quay_device_reset(device));
  cr_assert_eq(quay_device_health(device), QUAY_HEALTH_OK);
  quay_buffer *fresh = pattern_buffer(memory, SIZE, 9);
  stream = late_stream_of(0);
  late_kernel_on(stream, fresh, QUAY_READ);
  pattern_check_buffer(fresh, 0, 9);
  quay_allocator *again = open_spec("late:0");
  cr_assert_eq(quay_allocator_device(again), device);
  quay_allocator_release(again);
  quay_buffer_release(fresh);
  close_device();
}

Test(device_loss, a_second_loss_has_a_message_of_its_own) {
  late_lose(0);
  release_stream();
  MUST(quay_device_reset(device));
  quay_device_mark_lost(device, 5, "OTHER", "for another reason");
  MUST_FAIL(quay_allocator_synchronize(memory), DEVICE_LOST);
  cr_assert_eq(quay_last_error()->native_code, 5);
  late_reset(0);
  close_device();
}

Test(device_loss, a_lazy_buffer_that_nothing_was_written_to_outlives_a_reset) {
  quay_buffer *lazy = NULL;
  MUST(quay_buffer_create_lazy(memory, QUAY_U8, 1, (int64_t[]){SIZE}, NULL, &lazy));
  release_stream();
  MUST(quay_device_reset(device));
  MUST(quay_buffer_check(lazy));
  unsigned char bytes[SIZE];
  pattern_make(bytes, SIZE, 5);
  MUST(quay_buffer_copy_in(lazy, bytes, SIZE));
  pattern_check_buffer(lazy, 0, 5);
  quay_buffer_release(lazy);
  close_device();
}

Test(device_loss, stale_memory_is_released_without_waiting) {
  release_stream();
  MUST(quay_device_reset(device));
  quay_buffer_release(a);
  a = NULL;
  cr_assert_eq(late_calls(LATE_FREE), 1);
  cr_assert_eq(late_calls(LATE_EVENT_SYNCHRONIZE), 0);
  close_device();
}

Test(device_loss, work_of_before_a_reset_is_not_waited_for_elsewhere) {
  late_copy(stream, elsewhere, a);
  release_stream();
  MUST(quay_device_reset(device));
  quay_stream *peer = late_stream_of(1);
  late_kernel_on(peer, elsewhere, QUAY_WRITE);
  MUST(quay_stream_synchronize(peer));
  unsigned char bytes[SIZE];
  MUST(quay_buffer_copy_out(elsewhere, bytes, SIZE));
  quay_stream_release(peer);
  close_device();
}

Test(device_loss, a_backend_that_fails_to_reset_leaves_the_generation) {
  release_stream();
  cr_assert(late_fail(LATE_RESET, 1, QUAY_STATUS_UNAVAILABLE));
  MUST_FAIL(quay_device_reset(device), UNAVAILABLE);
  cr_assert_eq(quay_device_generation(device), 1);
  MUST(quay_buffer_check(a));
  close_device();
}

Test(device_loss, what_has_no_reset_says_so) {
  quay_device *host = quay_device_host();
  MUST_FAIL(quay_device_reset(host), UNSUPPORTED);
  MUST_FAIL(quay_device_reset(NULL), INVALID_ARGUMENT);
  quay_device_release(host);
  close_device();
}
