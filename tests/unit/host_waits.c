/* Calls without a stream wait for exactly the device work that conflicts: each of them, for writes
 * and for reads, and not for more. */
#include <pthread.h>
#include <quay/mmap.h>
#include <unistd.h>

#include "late_core.h"
#include "support/files.h"

enum {
  SIZE = 1000
};

static quay_stream *one;
static quay_buffer *a, *b, *pinned;

static void open_mode(late_mode mode) {
  late_begin(&(late_options){.mode = mode, .seed = 17});
  one = late_stream_of(0);
  a = late_buffer("late:0", SIZE, 1);
  b = late_buffer("late:0", SIZE, 2);
  pinned = late_buffer("late:0,memory=pinned", SIZE, 3);
  late_counts_reset();
}

static void open_all(void) {
  open_mode(LATE_MANUAL);
}

static void close_all(void) {
  quay_buffer *buffers[] = {a, b, pinned};
  for (size_t i = 0; i < 3; i++)
    quay_buffer_release(buffers[i]);
  quay_stream_release(one);
  late_end();
}

static void expect_all_done(void) {
  cr_assert_eq(late_unfinished(), 0, "it did not wait");
  late_no_violations();
}

static void expect_nothing_done(void) {
  cr_assert_neq(late_unfinished(), 0, "it has waited");
  late_no_violations();
}

static unsigned char bytes[SIZE];

TestSuite(host_waits, .init = open_all);

Test(host_waits, copy_in_waits_for_writers_and_readers) {
  late_kernel_on(one, a, QUAY_READ_WRITE);
  MUST(quay_buffer_copy_in(a, bytes, SIZE));
  expect_all_done();
  late_kernel_on(one, a, QUAY_READ);
  MUST(quay_buffer_copy_in(a, bytes, SIZE));
  expect_all_done();
  close_all();
}

Test(host_waits, copy_out_waits_for_writers_alone) {
  late_kernel_on(one, a, QUAY_READ_WRITE);
  MUST(quay_buffer_copy_out(a, bytes, SIZE));
  expect_all_done();
  late_kernel_on(one, a, QUAY_READ);
  MUST(quay_buffer_copy_out(a, bytes, SIZE));
  expect_nothing_done();
  close_all();
}

Test(host_waits, copy_from_waits_for_writers_of_the_source_alone) {
  late_kernel_on(one, a, QUAY_READ_WRITE);
  MUST(quay_buffer_copy_from(b, a));
  expect_all_done();
  late_kernel_on(one, a, QUAY_READ);
  MUST(quay_buffer_copy_from(b, a));
  expect_nothing_done();
  close_all();
}

Test(host_waits, copy_from_waits_for_writers_and_readers_of_the_destination) {
  late_kernel_on(one, b, QUAY_WRITE);
  MUST(quay_buffer_copy_from(b, a));
  expect_all_done();
  late_kernel_on(one, b, QUAY_READ);
  MUST(quay_buffer_copy_from(b, a));
  expect_all_done();
  close_all();
}

Test(host_waits, fill_waits_for_writers_and_readers) {
  late_kernel_on(one, a, QUAY_WRITE);
  MUST(quay_buffer_fill(a, "x", 1));
  expect_all_done();
  late_kernel_on(one, a, QUAY_READ);
  MUST(quay_buffer_fill(a, "x", 1));
  expect_all_done();
  close_all();
}

Test(host_waits, a_pointer_for_reading_waits_for_writers_alone) {
  const void *pointer = NULL;
  late_kernel_on(one, pinned, QUAY_WRITE);
  MUST(quay_buffer_host_bytes(pinned, &pointer, NULL));
  late_host_access(pointer, SIZE, QUAY_READ);
  expect_all_done();
  late_kernel_on(one, pinned, QUAY_READ);
  MUST(quay_buffer_host_bytes(pinned, &pointer, NULL));
  late_host_access(pointer, SIZE, QUAY_READ);
  expect_nothing_done();
  close_all();
}

Test(host_waits, a_pointer_for_writing_waits_for_readers) {
  void *pointer = NULL;
  late_kernel_on(one, pinned, QUAY_READ);
  MUST(quay_buffer_host_bytes_mut(pinned, &pointer, NULL));
  late_host_access(pointer, SIZE, QUAY_WRITE);
  expect_all_done();
  close_all();
}

Test(host_waits, synchronizing_a_buffer_waits_for_readers_and_writers) {
  late_kernel_on(one, a, QUAY_READ);
  MUST(quay_buffer_synchronize(a));
  expect_all_done();
  late_kernel_on(one, a, QUAY_WRITE);
  MUST(quay_buffer_synchronize(a));
  expect_all_done();
  close_all();
}

Test(host_waits, sealing_waits_for_writers_alone) {
  late_kernel_on(one, a, QUAY_WRITE);
  MUST(quay_buffer_seal(a));
  expect_all_done();
  late_kernel_on(one, b, QUAY_READ);
  MUST(quay_buffer_seal(b));
  expect_nothing_done();
  close_all();
}

Test(host_waits, flushing_waits_for_writers) {
  late_kernel_on(one, pinned, QUAY_WRITE);
  MUST(quay_buffer_flush(pinned));
  expect_all_done();
  close_all();
}

Test(host_waits, saving_waits_for_writers_alone) {
  test_files_begin();
  late_kernel_on(one, a, QUAY_READ_WRITE);
  MUST(quay_buffer_save(a, test_path("out"), NULL));
  expect_all_done();
  late_kernel_on(one, a, QUAY_READ);
  MUST(quay_buffer_save(a, test_path("out"), NULL));
  expect_nothing_done();
  test_files_end();
  close_all();
}

Test(host_waits, releasing_the_raw_buffer_waits_for_all_uses) {
  late_kernel_on(one, a, QUAY_READ);
  quay_raw_buffer raw;
  MUST(quay_buffer_release_raw(&a, &raw));
  expect_all_done();
  quay_raw_buffer_free(&raw);
  close_all();
}

Test(host_waits, synchronizing_an_allocator_waits_for_all_of_the_device) {
  late_kernel_on(one, a, QUAY_READ);
  MUST(quay_allocator_synchronize(quay_buffer_allocator(b)));
  expect_all_done();
  close_all();
}

Test(host_waits, other_ranges_are_not_waited_for) {
  quay_buffer *first = late_view(a, 0, 500), *second = late_view(a, 500, 500);
  late_kernel_on(one, first, QUAY_WRITE);
  MUST(quay_buffer_copy_out(second, bytes, 500));
  MUST(quay_buffer_copy_in(second, bytes, 500));
  MUST(quay_buffer_synchronize(second));
  expect_nothing_done();
  quay_buffer_release(first);
  quay_buffer_release(second);
  close_all();
}

Test(host_waits, of_ranges_that_overlap_in_one_byte_the_later_waits) {
  quay_buffer *first = late_view(a, 0, 501), *second = late_view(a, 500, 500);
  late_kernel_on(one, first, QUAY_READ_WRITE);
  MUST(quay_buffer_copy_out(second, bytes, 500));
  expect_all_done();
  cr_assert_eq(bytes[0], (unsigned char)(pattern_byte(500, 1) + 1));
  quay_buffer_release(first);
  quay_buffer_release(second);
  close_all();
}

/* Whoever waits second must not pass because the first one waits already. */

static _Atomic int passed;

static void *read_in_a_thread(void *unused) {
  (void)unused;
  unsigned char mine[SIZE];
  MUST(quay_buffer_copy_out(a, mine, SIZE));
  passed++;
  return NULL;
}

Test(host_waits_threads, two_waiters_both_wait) {
  open_mode(LATE_THREADS);
  quay_access access;
  MUST(quay_access_begin(one, &(quay_use){a, QUAY_WRITE}, 1, &access));
  const uint64_t gate = late_hold(quay_stream_native(one));
  MUST(quay_access_end(&access));
  pthread_t threads[2];
  for (int i = 0; i < 2; i++) {
    cr_assert_eq(pthread_create(&threads[i], NULL, read_in_a_thread, NULL), 0);
    usleep(10000);
  }
  cr_assert_eq(passed, 0);
  late_open_gate(gate);
  for (int i = 0; i < 2; i++)
    pthread_join(threads[i], NULL);
  cr_assert_eq(passed, 2);
  close_all();
}
