/* Accesses that only give addresses, and streams that take nothing that would be recorded. */
#include <string.h>

#include "support/manual_device.h"
#include "support/pattern.h"

static quay_allocator *device_memory;
static quay_stream *one, *two;
static quay_buffer *buffer;

static quay_stream *open_stream(void) {
  quay_stream *stream = NULL;
  MUST(quay_stream_create(quay_allocator_device(device_memory), NULL, &stream));
  return stream;
}

static void open_device(void) {
  device_memory = manual_open(&(manual_options){.streams = true});
  one = open_stream();
  two = open_stream();
  buffer = pattern_buffer(device_memory, 100, 1);
}

/* Tests end with it: what fails after a test fails nothing. */
static void close_device(void) {
  quay_buffer_release(buffer);
  quay_stream_release(one);
  quay_stream_release(two);
  manual_complete_all();
  MUST(quay_collect(NULL));
  quay_allocator_release(device_memory);
  const unsigned allocated = atomic_load(&manual.alloc) - atomic_load(&manual.alloc_failed);
  cr_assert_eq(allocated, atomic_load(&manual.free));
  cr_assert_eq(atomic_load(&manual.event_record), atomic_load(&manual.event_destroy));
}

TestSuite(access_untracked, .init = open_device);
TestSuite(capturing, .init = open_device);

static quay_status begin_untracked(quay_stream *stream, quay_buffer *used, quay_use_mode mode,
                                   quay_access *out_access) {
  return quay_access_begin_untracked(stream, &(quay_use){used, mode}, 1, out_access);
}

static quay_status use(quay_stream *stream, quay_buffer *used, quay_use_mode mode) {
  quay_access access;
  QUAY_TRY(quay_access_begin(stream, &(quay_use){used, mode}, 1, &access));
  return quay_access_end(&access);
}

Test(access_untracked, gives_the_same_addresses_as_a_tracked_one) {
  quay_buffer *view = NULL;
  MUST(quay_buffer_view(buffer, 10, 20, &view));
  const quay_use uses[] = {{view, QUAY_READ}, {buffer, QUAY_READ_WRITE}};
  quay_access access;
  MUST(quay_access_begin(one, uses, 2, &access));
  const uint64_t first = access.pointers[0], second = access.pointers[1];
  MUST(quay_access_end(&access));
  MUST(quay_access_begin_untracked(two, uses, 2, &access));
  cr_assert_eq(access.count, 2);
  cr_assert_eq(access.stream, two);
  cr_assert_eq(access.pointers[0], first);
  cr_assert_eq(access.pointers[1], second);
  MUST(quay_access_end(&access));
  static const quay_access zero;
  cr_assert_arr_eq(&access, &zero, sizeof(zero));
  quay_buffer_release(view);
  close_device();
}

Test(access_untracked, waits_for_nothing_and_records_nothing) {
  MUST(use(one, buffer, QUAY_WRITE));
  const unsigned waits = atomic_load(&manual.stream_wait);
  const unsigned events = atomic_load(&manual.event_record);
  quay_access access;
  MUST(begin_untracked(two, buffer, QUAY_READ_WRITE, &access));
  MUST(quay_access_end(&access));
  cr_assert_eq(atomic_load(&manual.stream_wait), waits);
  cr_assert_eq(atomic_load(&manual.event_record), events);
  quay_stream *writer = NULL;
  MUST(quay_buffer_last_write_stream(buffer, &writer));
  cr_assert_eq(writer, one);
  quay_stream_release(writer);
  close_device();
}

Test(access_untracked, makes_no_other_access_busy) {
  quay_access access, tracked, other;
  MUST(begin_untracked(one, buffer, QUAY_WRITE, &access));
  MUST(quay_access_begin(two, &(quay_use){buffer, QUAY_WRITE}, 1, &tracked));
  MUST(begin_untracked(one, buffer, QUAY_WRITE, &other));
  MUST(quay_access_end(&tracked));
  MUST(quay_access_end(&access));
  MUST(quay_access_end(&other));
  close_device();
}

Test(access_untracked, keeps_the_storage_alive_until_its_end) {
  quay_access access;
  MUST(begin_untracked(one, buffer, QUAY_READ, &access));
  quay_buffer_release(buffer);
  buffer = NULL;
  cr_assert_eq(atomic_load(&manual.free), 0);
  MUST(quay_access_end(&access));
  cr_assert_eq(atomic_load(&manual.free), 1);
  close_device();
}

Test(access_untracked, counts_as_open_for_a_shutdown) {
  quay_access access;
  MUST(begin_untracked(one, buffer, QUAY_READ, &access));
  MUST_FAIL(quay_shutdown(), BUSY);
  cr_assert_not_null(strstr(quay_last_error()->message, "1 accesses"));
  MUST(quay_access_end(&access));
  close_device();
}

Test(access_untracked, refuses_what_a_tracked_one_refuses) {
  quay_access access;
  quay_buffer *lazy = NULL, *host = pattern_buffer(NULL, 10, 1);
  MUST(quay_buffer_create_lazy(device_memory, QUAY_U8, 1, (int64_t[]){10}, NULL, &lazy));
  MUST_FAIL(begin_untracked(NULL, buffer, QUAY_READ, &access), INVALID_ARGUMENT);
  MUST_FAIL(quay_access_begin_untracked(one, NULL, 1, &access), INVALID_ARGUMENT);
  MUST_FAIL(begin_untracked(one, lazy, QUAY_READ, &access), NOT_ALLOCATED);
  MUST_FAIL(begin_untracked(one, host, QUAY_READ, &access), INVALID_ARGUMENT);
  MUST(quay_buffer_seal(buffer));
  MUST_FAIL(begin_untracked(one, buffer, QUAY_WRITE, &access), READ_ONLY);
  cr_assert_null(access.stream);
  MUST(begin_untracked(one, lazy, QUAY_WRITE, &access));
  cr_assert_neq(access.pointers[0], 0);
  MUST(quay_access_end(&access));
  quay_buffer_release(lazy);
  quay_buffer_release(host);
  close_device();
}

/* A stream that captures. */

Test(capturing, an_access_is_refused_before_anything_is_touched) {
  quay_buffer *lazy = NULL;
  MUST(quay_buffer_create_lazy(device_memory, QUAY_U8, 1, (int64_t[]){10}, NULL, &lazy));
  MUST(use(two, buffer, QUAY_WRITE));
  const unsigned waits = atomic_load(&manual.stream_wait), allocs = atomic_load(&manual.alloc);
  quay_access access;
  const quay_use uses[] = {{lazy, QUAY_WRITE}, {buffer, QUAY_READ}};
  atomic_store(&manual_capturing, true);
  MUST_FAIL(quay_access_begin(one, uses, 2, &access), UNSUPPORTED);
  cr_assert_null(access.stream);
  cr_assert_eq(atomic_load(&manual.stream_wait), waits);
  cr_assert_eq(atomic_load(&manual.alloc), allocs);
  MUST(quay_access_begin_untracked(one, uses, 2, &access));
  MUST(quay_access_end(&access));
  atomic_store(&manual_capturing, false);
  MUST(use(one, buffer, QUAY_WRITE));
  quay_buffer_release(lazy);
  close_device();
}

Test(capturing, copies_fills_and_allocations_are_refused_before_anything_is_touched) {
  quay_buffer *lazy = NULL, *other = pattern_buffer(NULL, 100, 2);
  MUST(quay_buffer_create_lazy(device_memory, QUAY_U8, 1, (int64_t[]){100}, NULL, &lazy));
  const unsigned allocs = atomic_load(&manual.alloc);
  const unsigned synchronized = atomic_load(&manual.stream_synchronize);
  const quay_copy_options on_stream = {.stream = one};
  const quay_alloc_options in_order = {.stream = one};
  quay_raw_buffer raw;
  atomic_store(&manual_capturing, true);
  MUST_FAIL(quay_buffer_copy_region(lazy, 0, buffer, 0, 100, &on_stream), UNSUPPORTED);
  MUST_FAIL(quay_buffer_copy_region(other, 0, buffer, 0, 100, &on_stream), UNSUPPORTED);
  MUST_FAIL(quay_buffer_fill_on(lazy, "x", 1, one), UNSUPPORTED);
  MUST_FAIL(quay_allocator_alloc(device_memory, 10, &in_order, &raw), UNSUPPORTED);
  MUST_FAIL(quay_buffer_create(device_memory, QUAY_U8, 1, (int64_t[]){10}, &in_order,
                               &(quay_buffer *){NULL}),
            UNSUPPORTED);
  /* No bytes, nothing that would be submitted. */
  MUST(quay_buffer_copy_region(other, 0, buffer, 0, 0, &on_stream));
  cr_assert_eq(atomic_load(&manual.alloc), allocs);
  cr_assert_eq(atomic_load(&manual.stream_synchronize), synchronized);
  atomic_store(&manual_capturing, false);
  MUST(quay_buffer_copy_region(lazy, 0, buffer, 0, 100, &on_stream));
  quay_buffer_release(lazy);
  quay_buffer_release(other);
  close_device();
}
