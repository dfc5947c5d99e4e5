/* Accesses and hazards: what is refused, what waits for what, and how long memory lives. */
#include "support/manual_device.h"
#include "support/pattern.h"

#include <pthread.h>
#include <string.h>

static quay_stream *open_stream(quay_device *device) {
  quay_stream *stream = NULL;
  MUST(quay_stream_create(device, NULL, &stream));
  return stream;
}

static quay_buffer *view_of(quay_buffer *buffer, uint64_t offset, uint64_t size) {
  quay_buffer *view = NULL;
  MUST(quay_buffer_view(buffer, offset, size, &view));
  return view;
}

/* Most tests: a buffer of 100 bytes on a device with two streams. */
static quay_allocator *device_memory;
static quay_stream *one, *two;
static quay_buffer *buffer;

static void open_device(void) {
  device_memory = manual_open(&(manual_options){.streams = true});
  one = open_stream(quay_allocator_device(device_memory));
  two = open_stream(quay_allocator_device(device_memory));
  buffer = pattern_buffer(device_memory, 100, 1);
}

static void close_device(void) {
  quay_buffer_release(buffer);
  quay_stream_release(one);
  quay_stream_release(two);
  uint64_t bytes = 0;
  manual_complete_all();
  MUST(quay_collect(&bytes));
  quay_allocator_release(device_memory);
  const unsigned allocated = atomic_load(&manual.alloc) - atomic_load(&manual.alloc_failed);
  cr_assert_eq(allocated, atomic_load(&manual.free));
  cr_assert_eq(atomic_load(&manual.event_record), atomic_load(&manual.event_destroy));
  cr_assert_eq(atomic_load(&manual.stream_create), atomic_load(&manual.stream_destroy));
}

static void begin(quay_stream *stream, quay_buffer *used, quay_use_mode mode,
                  quay_access *out_access) {
  MUST(quay_access_begin(stream, &(quay_use){used, mode}, 1, out_access));
}

/* A launch that reads or writes, from begin to end. */
static void use(quay_stream *stream, quay_buffer *used, quay_use_mode mode) {
  quay_access access;
  begin(stream, used, mode, &access);
  MUST(quay_access_end(&access));
}

static quay_status try_use(quay_stream *stream, quay_buffer *used, quay_use_mode mode) {
  quay_access access;
  QUAY_TRY(quay_access_begin(stream, &(quay_use){used, mode}, 1, &access));
  return quay_access_end(&access);
}

static unsigned waits(void) {
  return atomic_load(&manual.stream_wait);
}

static unsigned synchronized(void) {
  return atomic_load(&manual.event_synchronize);
}

/* Tests end with close_device(): what fails after a test fails nothing. */
TestSuite(access, .init = open_device);

/* On the host. */

Test(access_on_host, gives_addresses_in_the_order_of_the_uses) {
  quay_stream *stream = open_stream(NULL);
  quay_buffer *a = pattern_buffer(NULL, 100, 1), *b = pattern_buffer(NULL, 50, 2);
  quay_buffer *v = view_of(a, 10, 20);
  const quay_use uses[] = {{v, QUAY_READ}, {b, QUAY_WRITE}, {a, QUAY_READ}};
  quay_access access;
  MUST(quay_access_begin(stream, uses, 3, &access));
  cr_assert_eq(access.stream, stream);
  cr_assert_eq(access.count, 3);
  pattern_check((const void *)(uintptr_t)access.pointers[0], 10, 20, 1);
  pattern_check((const void *)(uintptr_t)access.pointers[1], 0, 50, 2);
  cr_assert_eq(access.pointers[2] + 10, access.pointers[0]);
  MUST(quay_access_end(&access));
  static const quay_access zero;
  cr_assert_arr_eq(&access, &zero, sizeof(zero));
  MUST(quay_access_end(&access));
  quay_buffer_release(v);
  quay_buffer_release(a);
  quay_buffer_release(b);
  quay_stream_release(stream);
}

Test(access_on_host, keeps_storages_and_stream_alive_until_its_end) {
  quay_allocator *a = manual_open(&(manual_options){.host_accessible = true});
  quay_stream *stream = open_stream(NULL);
  quay_buffer *b = pattern_buffer(a, 100, 1);
  quay_access access;
  begin(stream, b, QUAY_READ, &access);
  quay_buffer_release(b);
  quay_stream_release(stream);
  cr_assert_eq(atomic_load(&manual.free), 0);
  pattern_check((const void *)(uintptr_t)access.pointers[0], 0, 100, 1);
  MUST(quay_access_end(&access));
  cr_assert_eq(atomic_load(&manual.free), 1);
  quay_allocator_release(a);
}

Test(access_on_host, takes_many_uses) {
  enum {
    USES = 3 * QUAY_ACCESS_INLINE_USES
  };
  quay_stream *stream = open_stream(NULL);
  quay_buffer *b = pattern_buffer(NULL, UINT64_C(8) * USES, 1);
  quay_use uses[USES];
  for (uint64_t i = 0; i < USES; i++)
    uses[i] = (quay_use){view_of(b, i * 8, 8), QUAY_READ_WRITE};
  quay_access access;
  MUST(quay_access_begin(stream, uses, USES, &access));
  for (uint64_t i = 0; i < USES; i++) {
    pattern_check((const void *)(uintptr_t)access.pointers[i], i * 8, 8, 1);
  }
  MUST(quay_access_end(&access));
  for (size_t i = 0; i < USES; i++)
    quay_buffer_release(uses[i].buffer);
  quay_buffer_release(b);
  quay_stream_release(stream);
}

Test(access_on_host, copies_go_on_inside_the_bracket) {
  quay_stream *stream = open_stream(NULL);
  quay_buffer *b = pattern_buffer(NULL, 100, 1), *c = pattern_buffer(NULL, 100, 2);
  quay_access access;
  begin(stream, b, QUAY_WRITE, &access);
  MUST(quay_buffer_copy_from(b, c));
  pattern_check((const void *)(uintptr_t)access.pointers[0], 0, 100, 2);
  MUST(quay_access_end(&access));
  quay_buffer_release(b);
  quay_buffer_release(c);
  quay_stream_release(stream);
}

Test(access_on_host, remembers_no_writer) {
  quay_stream *stream = open_stream(NULL), *writer = stream;
  quay_buffer *b = pattern_buffer(NULL, 100, 1);
  use(stream, b, QUAY_WRITE);
  MUST(quay_buffer_last_write_stream(b, &writer));
  cr_assert_null(writer);
  quay_buffer_release(b);
  quay_stream_release(stream);
}

Test(access_on_host, shutdown_is_busy_while_one_is_open) {
  quay_stream *stream = open_stream(NULL);
  quay_buffer *b = pattern_buffer(NULL, 100, 1);
  quay_access access;
  begin(stream, b, QUAY_READ, &access);
  quay_buffer_release(b);
  quay_stream_release(stream);
  MUST_FAIL(quay_shutdown(), BUSY);
  MUST(quay_access_end(&access));
  MUST(quay_shutdown());
}

/* What is refused. */

Test(access, a_copy_of_an_open_access_can_not_be_ended) {
  quay_access open;
  begin(one, buffer, QUAY_WRITE, &open);
  quay_access copy = open;
  MUST_FAIL(quay_access_end(&copy), INVALID_ARGUMENT);
  MUST(quay_access_end(&open));
  MUST(quay_access_end(&open));
  close_device();
}

Test(access, bad_arguments_are_refused_and_nothing_is_open) {
  quay_access access;
  const quay_use good = {buffer, QUAY_WRITE};
  MUST_FAIL(quay_access_begin(NULL, &good, 1, &access), INVALID_ARGUMENT);
  MUST_FAIL(quay_access_begin(one, NULL, 1, &access), INVALID_ARGUMENT);
  MUST_FAIL(quay_access_begin(one, &good, 0, &access), INVALID_ARGUMENT);
  MUST_FAIL(quay_access_begin(one, &good, SIZE_MAX, &access), INVALID_ARGUMENT);
  cr_assert_not_null(strstr(quay_last_error()->message, "at most"));
  MUST_FAIL(quay_access_begin(one, &good, SIZE_MAX, &access), INVALID_ARGUMENT);
  MUST_FAIL(quay_access_begin(one, &good, 1, NULL), INVALID_ARGUMENT);
  const quay_use null_buffer[] = {good, {NULL, QUAY_READ}};
  MUST_FAIL(quay_access_begin(one, null_buffer, 2, &access), INVALID_ARGUMENT);
  static const int bad_modes[] = {0, 4, 7, -1};
  for (size_t i = 0; i < 4; i++) {
    const quay_use bad[] = {good, {buffer, (quay_use_mode)bad_modes[i]}};
    MUST_FAIL(quay_access_begin(one, bad, 2, &access), INVALID_ARGUMENT);
  }
  cr_assert_null(access.stream);
  MUST_FAIL(quay_access_end(NULL), INVALID_ARGUMENT);
  MUST_FAIL(quay_buffer_last_write_stream(NULL, &(quay_stream *){NULL}), INVALID_ARGUMENT);
  MUST_FAIL(quay_buffer_last_write_stream(buffer, NULL), INVALID_ARGUMENT);
  MUST(try_use(two, buffer, QUAY_WRITE));
  close_device();
}

Test(access, memory_that_the_stream_does_not_reach_is_refused) {
  quay_buffer *on_host = pattern_buffer(NULL, 10, 1);
  quay_device *host = quay_device_host();
  quay_stream *host_stream = open_stream(host);
  MUST_FAIL(try_use(one, on_host, QUAY_READ), INVALID_ARGUMENT);
  MUST_FAIL(try_use(host_stream, buffer, QUAY_READ), INVALID_ARGUMENT);
  quay_stream_release(host_stream);
  quay_device_release(host);
  quay_buffer_release(on_host);
  close_device();
}

Test(access, lazy_buffers_are_allocated_for_writing_and_refused_for_reading) {
  quay_buffer *lazy = NULL, *other = NULL;
  MUST(quay_buffer_create_lazy(device_memory, QUAY_U8, 1, (int64_t[]){10}, NULL, &lazy));
  MUST(quay_buffer_create_lazy(device_memory, QUAY_U8, 1, (int64_t[]){10}, NULL, &other));
  MUST_FAIL(try_use(one, lazy, QUAY_READ), NOT_ALLOCATED);
  MUST_FAIL(try_use(one, lazy, QUAY_READ_WRITE), NOT_ALLOCATED);
  quay_access access;
  const quay_use mixed[] = {{other, QUAY_WRITE}, {lazy, QUAY_READ}};
  MUST_FAIL(quay_access_begin(one, mixed, 2, &access), NOT_ALLOCATED);
  cr_assert_not(quay_buffer_is_allocated(lazy));
  cr_assert_not(quay_buffer_is_allocated(other));
  MUST(try_use(one, lazy, QUAY_WRITE));
  cr_assert(quay_buffer_is_allocated(lazy));
  quay_buffer_release(lazy);
  quay_buffer_release(other);
  close_device();
}

Test(access, an_allocation_that_fails_leaves_nothing_open) {
  quay_buffer *lazy = NULL;
  MUST(quay_buffer_create_lazy(device_memory, QUAY_U8, 1, (int64_t[]){10}, NULL, &lazy));
  quay_access access;
  const quay_use uses[] = {{buffer, QUAY_WRITE}, {lazy, QUAY_WRITE}};
  atomic_store(&manual_fail_allocs, 1);
  MUST_FAIL(quay_access_begin(one, uses, 2, &access), OUT_OF_DEVICE_MEMORY);
  cr_assert_null(access.stream);
  MUST(try_use(two, buffer, QUAY_WRITE));
  MUST(quay_buffer_seal(buffer));
  quay_buffer_release(lazy);
  close_device();
}

Test(access, a_sealed_storage_may_be_read_and_not_written) {
  MUST(quay_buffer_seal(buffer));
  MUST(try_use(one, buffer, QUAY_READ));
  MUST_FAIL(try_use(one, buffer, QUAY_WRITE), READ_ONLY);
  MUST_FAIL(try_use(one, buffer, QUAY_READ_WRITE), READ_ONLY);
  close_device();
}

Test(access, sealing_is_busy_while_a_write_is_open) {
  quay_access access;
  begin(one, buffer, QUAY_WRITE, &access);
  MUST_FAIL(quay_buffer_seal(buffer), BUSY);
  cr_assert_not(quay_buffer_is_sealed(buffer));
  MUST(quay_access_end(&access));
  begin(one, buffer, QUAY_READ, &access);
  MUST(quay_buffer_seal(buffer));
  MUST(quay_access_end(&access));
  close_device();
}

Test(access, conflicts_with_an_access_of_another_stream_are_busy) {
  quay_buffer *low = view_of(buffer, 0, 50), *high = view_of(buffer, 50, 50);
  quay_buffer *middle = view_of(buffer, 49, 2);
  quay_access access;
  begin(one, low, QUAY_WRITE, &access);
  MUST_FAIL(try_use(two, low, QUAY_READ), BUSY);
  MUST_FAIL(try_use(two, middle, QUAY_WRITE), BUSY);
  MUST(try_use(two, high, QUAY_WRITE));
  MUST(try_use(one, middle, QUAY_READ_WRITE));
  MUST(quay_access_end(&access));
  MUST(try_use(two, low, QUAY_READ));
  begin(one, low, QUAY_READ, &access);
  MUST(try_use(two, buffer, QUAY_READ));
  MUST_FAIL(try_use(two, buffer, QUAY_WRITE), BUSY);
  MUST(quay_access_end(&access));
  quay_buffer_release(low);
  quay_buffer_release(high);
  quay_buffer_release(middle);
  close_device();
}

Test(access, a_busy_use_leaves_nothing_of_the_others_open) {
  quay_buffer *free_one = pattern_buffer(device_memory, 10, 1);
  quay_access open, access;
  begin(one, buffer, QUAY_WRITE, &open);
  const quay_use uses[] = {{free_one, QUAY_WRITE}, {buffer, QUAY_READ}};
  MUST_FAIL(quay_access_begin(two, uses, 2, &access), BUSY);
  MUST(try_use(one, free_one, QUAY_WRITE));
  MUST(quay_access_end(&open));
  quay_buffer_release(free_one);
  close_device();
}

Test(access, uses_of_one_access_may_overlap) {
  quay_buffer *v = view_of(buffer, 10, 50);
  const quay_use uses[] = {{buffer, QUAY_READ}, {v, QUAY_WRITE}, {buffer, QUAY_WRITE}};
  quay_access access;
  MUST(quay_access_begin(one, uses, 3, &access));
  MUST(quay_access_end(&access));
  quay_buffer_release(v);
  close_device();
}

Test(access, release_raw_is_busy_while_one_is_open) {
  quay_access access;
  begin(one, buffer, QUAY_READ, &access);
  quay_raw_buffer raw;
  MUST_FAIL(quay_buffer_release_raw(&buffer, &raw), BUSY);
  MUST(quay_access_end(&access));
  close_device();
}

Test(access, memory_without_addresses_gives_zeros) {
  quay_allocator *a = manual_open(&(manual_options){.streams = true, .no_addresses = true});
  quay_stream *stream = open_stream(quay_allocator_device(a));
  quay_buffer *b = pattern_buffer(a, 10, 1);
  MUST_FAIL(quay_buffer_check(NULL), INVALID_ARGUMENT);
  quay_access access;
  begin(stream, b, QUAY_READ, &access);
  cr_assert_eq(access.pointers[0], 0);
  MUST(quay_access_end(&access));
  cr_assert_eq(quay_last_error()->status, QUAY_STATUS_INVALID_ARGUMENT);
  quay_buffer_release(b);
  quay_stream_release(stream);
  quay_allocator_release(a);
  close_device();
}

Test(access, a_lost_device_closes_the_access_all_the_same) {
  quay_access access;
  begin(one, buffer, QUAY_WRITE, &access);
  quay_device_mark_lost(quay_allocator_device(device_memory), 7, "GONE", "fell off the bus");
  MUST_FAIL(quay_access_end(&access), DEVICE_LOST);
  cr_assert_null(access.stream);
  MUST_FAIL(try_use(two, buffer, QUAY_WRITE), DEVICE_LOST);
  close_device();
}

Test(access, stale_memory_is_refused) {
  quay_device_advance_generation(quay_allocator_device(device_memory));
  MUST_FAIL(try_use(one, buffer, QUAY_READ), STALE);
  MUST_FAIL(try_use(one, buffer, QUAY_WRITE), STALE);
  close_device();
}

/* What waits for what. */

Test(access, an_end_records_one_event_for_all_uses) {
  quay_buffer *low = view_of(buffer, 0, 50), *other = pattern_buffer(device_memory, 10, 1);
  const quay_use uses[] = {{low, QUAY_READ}, {other, QUAY_WRITE}, {buffer, QUAY_READ}};
  quay_access access;
  MUST(quay_access_begin(one, uses, 3, &access));
  cr_assert_eq(atomic_load(&manual.event_record), 0);
  MUST(quay_access_end(&access));
  cr_assert_eq(atomic_load(&manual.event_record), 1);
  quay_buffer_release(low);
  quay_buffer_release(other);
  close_device();
}

Test(access, a_read_waits_for_the_write_of_another_stream) {
  use(one, buffer, QUAY_WRITE);
  use(two, buffer, QUAY_READ);
  cr_assert_eq(waits(), 1);
  close_device();
}

Test(access, a_read_does_not_hide_the_write_before_it) {
  use(one, buffer, QUAY_WRITE);
  use(one, buffer, QUAY_READ);
  use(two, buffer, QUAY_READ);
  cr_assert_eq(waits(), 1);

  close_device();
}

Test(access, a_write_waits_for_every_read_since) {
  quay_stream *three = open_stream(quay_allocator_device(device_memory));
  use(one, buffer, QUAY_READ);
  use(two, buffer, QUAY_READ);
  cr_assert_eq(waits(), 0);
  use(three, buffer, QUAY_WRITE);
  cr_assert_eq(waits(), 2);
  quay_stream_release(three);
  close_device();
}

Test(access, a_write_waits_for_the_write_of_another_stream) {
  use(one, buffer, QUAY_WRITE);
  use(two, buffer, QUAY_WRITE);
  cr_assert_eq(waits(), 1);
  close_device();
}

Test(access, two_readers_both_wait_for_the_writer) {
  quay_stream *three = open_stream(quay_allocator_device(device_memory));
  use(one, buffer, QUAY_WRITE);
  use(two, buffer, QUAY_READ);
  use(three, buffer, QUAY_READ);
  cr_assert_eq(waits(), 2);
  quay_stream_release(three);
  close_device();
}

Test(access, work_of_the_same_stream_needs_no_wait) {
  use(one, buffer, QUAY_WRITE);
  use(one, buffer, QUAY_READ);
  use(one, buffer, QUAY_WRITE);
  cr_assert_eq(waits(), 0);
  cr_assert_eq(synchronized(), 0);
  close_device();
}

Test(access, reads_and_disjoint_writes_need_no_wait) {
  quay_buffer *low = view_of(buffer, 0, 50), *high = view_of(buffer, 50, 50);
  use(one, low, QUAY_WRITE);
  use(two, high, QUAY_WRITE);
  cr_assert_eq(waits(), 0);
  quay_buffer *empty = view_of(low, 25, 0);
  use(two, empty, QUAY_WRITE);
  cr_assert_eq(waits(), 0);
  quay_buffer_release(empty);
  quay_buffer_release(low);
  quay_buffer_release(high);
  close_device();
}

Test(access, a_host_read_waits_for_writes_and_not_for_reads) {
  unsigned char bytes[100];
  use(one, buffer, QUAY_READ);
  MUST(quay_buffer_copy_out(buffer, bytes, 100));
  cr_assert_eq(synchronized(), 0);
  use(two, buffer, QUAY_WRITE);
  MUST(quay_buffer_copy_out(buffer, bytes, 100));
  cr_assert_eq(synchronized(), 1);
  MUST(quay_buffer_copy_out(buffer, bytes, 100));
  cr_assert_eq(synchronized(), 1);
  close_device();
}

Test(access, a_host_write_waits_for_reads_too_and_only_in_its_window) {
  quay_buffer *low = view_of(buffer, 0, 50), *high = view_of(buffer, 50, 50);
  use(one, low, QUAY_READ);
  MUST(quay_buffer_fill(high, "x", 1));
  cr_assert_eq(synchronized(), 0);
  MUST(quay_buffer_fill(buffer, "x", 1));
  cr_assert_eq(synchronized(), 1);
  quay_buffer_release(low);
  quay_buffer_release(high);
  close_device();
}

Test(access, every_host_synchronous_call_waits) {
  quay_buffer *other = pattern_buffer(device_memory, 100, 2);
  unsigned char bytes[100] = {1};
  unsigned expected = 0;
  for (int way = 0; way < 7; way++) {
    use(one, buffer, QUAY_WRITE);
    switch (way) {
    case 0:
      MUST(quay_buffer_copy_in(buffer, bytes, 100));
      break;
    case 1:
      MUST(quay_buffer_copy_out(buffer, bytes, 100));
      break;
    case 2:
      MUST(quay_buffer_copy_from(buffer, other));
      break;
    case 3:
      MUST(quay_buffer_copy_from(other, buffer));
      break;
    case 4:
      MUST(quay_buffer_fill(buffer, "x", 1));
      break;
    case 5:
      MUST(quay_buffer_synchronize(buffer));
      break;
    case 6:
      MUST(quay_buffer_seal(buffer));
      break;
    }
    cr_assert_eq(synchronized(), ++expected, "way %d", way);
  }
  quay_buffer_release(other);
  close_device();
}

Test(access, a_host_pointer_waits_once_when_it_is_taken) {
  quay_allocator *a = manual_open(&(manual_options){.streams = true, .host_accessible = true});
  quay_stream *stream = open_stream(quay_allocator_device(a));
  quay_buffer *b = pattern_buffer(a, 100, 1);
  const void *bytes = NULL;
  void *mut = NULL;
  use(stream, b, QUAY_WRITE);
  MUST(quay_buffer_host_bytes(b, &bytes, NULL));
  cr_assert_eq(synchronized(), 1);
  use(stream, b, QUAY_READ);
  MUST(quay_buffer_host_bytes(b, &bytes, NULL));
  cr_assert_eq(synchronized(), 1);
  MUST(quay_buffer_host_bytes_mut(b, &mut, NULL));
  cr_assert_eq(synchronized(), 2);
  quay_buffer_release(b);
  quay_stream_release(stream);
  quay_allocator_release(a);
  close_device();
}

Test(access, plain_memory_leaves_its_short_cut_once_work_was_recorded) {
  quay_allocator *a = manual_open(&(manual_options){.streams = true, .plain = true});
  quay_stream *stream = open_stream(quay_allocator_device(a));
  quay_buffer *b = pattern_buffer(a, 100, 1);
  unsigned char bytes[100];
  use(stream, b, QUAY_WRITE);
  MUST(quay_buffer_copy_out(b, bytes, 100));
  cr_assert_eq(synchronized(), 1);
  pattern_check(bytes, 0, 100, 1);
  quay_buffer_release(b);
  quay_stream_release(stream);
  quay_allocator_release(a);
  close_device();
}

Test(access, a_stream_of_another_backend_is_waited_for_on_the_host) {
  quay_allocator *a = manual_open(&(manual_options){.streams = true, .host_accessible = true});
  quay_stream *stream = open_stream(quay_allocator_device(a));
  quay_device *host = quay_device_host();
  quay_stream *host_stream = open_stream(host);
  quay_buffer *b = pattern_buffer(a, 100, 1);
  use(stream, b, QUAY_WRITE);
  use(host_stream, b, QUAY_READ);
  cr_assert_eq(waits(), 0);
  cr_assert_eq(synchronized(), 1);
  quay_buffer_release(b);
  quay_stream_release(stream);
  quay_stream_release(host_stream);
  quay_device_release(host);
  quay_allocator_release(a);
  close_device();
}

/* The last writer. */

static void expect_writer(const quay_buffer *of, const quay_stream *expected) {
  quay_stream *writer = NULL;
  MUST(quay_buffer_last_write_stream(of, &writer));
  cr_assert_eq(writer, expected);
  quay_stream_release(writer);
}

Test(access, the_last_writer_of_a_window_is_known) {
  quay_buffer *low = view_of(buffer, 0, 50), *high = view_of(buffer, 50, 50);
  expect_writer(buffer, NULL);
  use(one, low, QUAY_WRITE);
  use(two, buffer, QUAY_READ);
  expect_writer(buffer, one);
  expect_writer(low, one);
  expect_writer(high, NULL);
  use(two, high, QUAY_READ_WRITE);
  expect_writer(low, one);
  expect_writer(high, two);
  expect_writer(buffer, two);
  MUST(quay_buffer_synchronize(buffer));
  expect_writer(low, one);
  quay_buffer_release(low);
  quay_buffer_release(high);
  close_device();
}

Test(access, a_host_write_makes_the_host_the_last_writer_of_its_range) {
  quay_buffer *part[4];
  for (uint64_t i = 0; i < 4; i++)
    part[i] = view_of(buffer, i * 25, 25);
  quay_buffer *inner = view_of(buffer, 25, 50);
  use(one, buffer, QUAY_WRITE);
  MUST(quay_buffer_fill(inner, "x", 1));
  expect_writer(part[0], one);
  expect_writer(part[1], NULL);
  expect_writer(part[2], NULL);
  expect_writer(part[3], one);
  MUST(quay_buffer_fill(part[0], "x", 1));
  expect_writer(part[0], NULL);
  expect_writer(part[3], one);
  use(two, buffer, QUAY_WRITE);
  quay_buffer *head = view_of(buffer, 0, 30), *tail = view_of(buffer, 70, 30);
  MUST(quay_buffer_fill(head, "x", 1));
  MUST(quay_buffer_fill(tail, "x", 1));
  expect_writer(head, NULL);
  expect_writer(tail, NULL);
  expect_writer(inner, two);
  MUST(quay_buffer_fill(buffer, "x", 1));
  expect_writer(buffer, NULL);
  for (int i = 0; i < 4; i++)
    quay_buffer_release(part[i]);
  quay_buffer_release(inner);
  quay_buffer_release(head);
  quay_buffer_release(tail);
  close_device();
}

/* Bounds and lifetime. */

Test(access, a_stream_of_small_uses_is_remembered_within_bounds) {
  quay_buffer *large = pattern_buffer(device_memory, 1000, 1);
  for (uint64_t i = 0; i < 500; i++) {
    quay_buffer *v = view_of(large, i * 2, 1);
    use(i % 2 != 0 ? one : two, v, QUAY_WRITE);
    quay_buffer_release(v);
  }
  const unsigned kept = 500 - atomic_load(&manual.event_destroy);
  cr_assert_leq(kept, 65);
  use(one, large, QUAY_WRITE);
  cr_assert_eq(atomic_load(&manual.event_record) - atomic_load(&manual.event_destroy), 1);
  quay_buffer_release(large);
  close_device();
}

Test(access, repeated_uses_keep_one_event) {
  for (int i = 0; i < 100; i++)
    use(one, buffer, QUAY_READ);
  cr_assert_eq(atomic_load(&manual.event_record) - atomic_load(&manual.event_destroy), 1);
  for (int i = 0; i < 100; i++)
    use(one, buffer, QUAY_READ_WRITE);
  cr_assert_eq(atomic_load(&manual.event_record) - atomic_load(&manual.event_destroy), 1);
  close_device();
}

Test(access, memory_is_not_freed_before_the_work_on_it_is_done) {
  quay_buffer *b = pattern_buffer(device_memory, 1234, 1);
  use(one, b, QUAY_WRITE);
  const unsigned freed = atomic_load(&manual.free);
  quay_buffer_release(b);
  cr_assert_eq(atomic_load(&manual.free), freed);
  cr_assert_eq(synchronized(), 0);
  quay_stats stats;
  MUST(quay_allocator_stats(device_memory, &stats));
  cr_assert_eq(stats.pending_bytes, 1234);
  uint64_t bytes = 1;
  MUST(quay_collect(&bytes));
  cr_assert_eq(bytes, 0);
  cr_assert_eq(atomic_load(&manual.free), freed);
  manual_complete_all();
  MUST(quay_collect(&bytes));
  cr_assert_eq(bytes, 1234);
  cr_assert_eq(atomic_load(&manual.free), freed + 1);
  MUST(quay_allocator_stats(device_memory, &stats));
  cr_assert_eq(stats.pending_bytes, 0);
  close_device();
}

Test(access, memory_whose_work_is_done_is_freed_at_once) {
  quay_buffer *b = pattern_buffer(device_memory, 1234, 1);
  use(one, b, QUAY_WRITE);
  manual_complete_all();
  const unsigned freed = atomic_load(&manual.free);
  quay_buffer_release(b);
  cr_assert_eq(atomic_load(&manual.free), freed + 1);
  cr_assert_eq(atomic_load(&manual.freed_pending), 0);
  close_device();
}

Test(access, an_ordered_free_gets_the_events_and_does_not_wait) {
  quay_allocator *a = manual_open(&(manual_options){.streams = true, .ordered_free = true});
  quay_stream *stream = open_stream(quay_allocator_device(a));
  quay_stream *other = open_stream(quay_allocator_device(a));
  quay_buffer *b = pattern_buffer(a, 100, 1);
  use(stream, b, QUAY_READ);
  use(other, b, QUAY_READ);
  quay_buffer_release(b);
  cr_assert_eq(atomic_load(&manual.free), 1);
  cr_assert_eq(atomic_load(&manual.freed_pending), 2);
  cr_assert_eq(synchronized(), 0);
  quay_stream_release(stream);
  quay_stream_release(other);
  quay_allocator_release(a);
  close_device();
}

Test(access, a_failed_allocation_takes_back_memory_whose_work_is_done) {
  quay_buffer *b = pattern_buffer(device_memory, 1234, 1), *made = NULL;
  use(one, b, QUAY_WRITE);
  quay_buffer_release(b);
  manual_complete_all();
  MUST_FAIL(quay_buffer_check(NULL), INVALID_ARGUMENT);
  atomic_store(&manual_fail_allocs, 1);
  MUST(quay_buffer_create(device_memory, QUAY_U8, 1, (int64_t[]){10}, NULL, &made));
  cr_assert_eq(quay_last_error()->status, QUAY_STATUS_INVALID_ARGUMENT);
  cr_assert_eq(atomic_load(&manual.free), 1);
  quay_buffer_release(made);
  close_device();
}

Test(access, synchronizing_takes_back_memory_too) {
  quay_buffer *b = pattern_buffer(device_memory, 1234, 1);
  use(one, b, QUAY_WRITE);
  quay_buffer_release(b);
  manual_complete_all();
  MUST(quay_buffer_synchronize(buffer));
  cr_assert_eq(atomic_load(&manual.free), 1);
  close_device();
}

Test(access, memory_of_a_lost_device_is_freed_without_waiting) {
  quay_buffer *b = pattern_buffer(device_memory, 1234, 1);
  use(one, b, QUAY_WRITE);
  quay_device_mark_lost(quay_allocator_device(device_memory), 7, "GONE", "fell off the bus");
  quay_buffer_release(b);
  cr_assert_eq(atomic_load(&manual.free), 1);
  close_device();
}

Test(access, release_raw_waits_for_recorded_work) {
  use(one, buffer, QUAY_WRITE);
  quay_raw_buffer raw;
  MUST(quay_buffer_release_raw(&buffer, &raw));
  cr_assert_eq(synchronized(), 1);
  quay_raw_buffer_free(&raw);
  close_device();
}

typedef struct user {
  pthread_t thread;
  quay_stream *stream;
  unsigned begun;
} user;

static void *use_often(void *argument) {
  user *self = argument;
  unsigned char bytes[20];
  for (uint64_t i = 0; i < 300; i++) {
    quay_buffer *v = view_of(buffer, i % 80, 20), *own = pattern_buffer(device_memory, 30, 1);
    const quay_use uses[] = {{v, i % 3 == 0 ? QUAY_WRITE : QUAY_READ}, {own, QUAY_WRITE}};
    quay_access access;
    const quay_status status = quay_access_begin(self->stream, uses, 2, &access);
    cr_assert(status == QUAY_OK || status == QUAY_STATUS_BUSY);
    if (status == QUAY_OK) {
      self->begun++;
      MUST(quay_access_end(&access));
    }
    /* The bytes themselves are never written: reading them is no race. */
    MUST(quay_buffer_copy_out(v, bytes, sizeof(bytes)));
    MUST(quay_buffer_synchronize(v));
    quay_stream *writer = NULL;
    MUST(quay_buffer_last_write_stream(v, &writer));
    quay_stream_release(writer);
    quay_buffer_release(own);
    quay_buffer_release(v);
    MUST(quay_collect(NULL));
  }
  return NULL;
}

Test(access, threads_may_use_one_storage_at_the_same_time) {
  user users[4] = {{.stream = one}, {.stream = two}, {.stream = one}, {.stream = two}};
  for (int i = 0; i < 4; i++) {
    cr_assert_eq(pthread_create(&users[i].thread, NULL, use_often, &users[i]), 0);
  }
  for (int i = 0; i < 4; i++) {
    pthread_join(users[i].thread, NULL);
    cr_assert_gt(users[i].begun, 0);
  }
  close_device();
}

Test(access_on_host, collect_with_nothing_pending_is_zero) {
  uint64_t bytes = 5;
  MUST(quay_collect(&bytes));
  cr_assert_eq(bytes, 0);
  MUST(quay_collect(NULL));
}
