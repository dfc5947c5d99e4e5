/* What a storage remembers of device work: that a list that grows long is merged and loses no
 * order, that a short one makes nobody wait for more than he must, and that the library's own brief
 * uses are waited for. Some tests go below the public calls, to fix an order that threads give
 * rarely. */
#include "core/hazard.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/storage.h"
#include "core/stream_impl.h"
#include "late_core.h"

enum {
  SIZE = 4096,
  PIECE = 8,
  PIECES = SIZE / PIECE
};

static quay_stream *one, *two;
static quay_buffer *buffer;

static void open_mode(late_mode mode) {
  late_begin(&(late_options){.mode = mode, .seed = 11});
  one = late_stream_of(0);
  two = late_stream_of(0);
  buffer = late_buffer("late:0", SIZE, 1);
  late_counts_reset();
}

static void open_device(void) {
  open_mode(LATE_MANUAL);
}

static void close_device(void) {
  quay_buffer_release(buffer);
  quay_stream_release(one);
  quay_stream_release(two);
  late_end();
}

static uint64_t live_events(void) {
  late_counts counts;
  late_count(&counts);
  return counts.events;
}

/* A kernel on a piece of the buffer. */
static void use_piece(quay_stream *stream, uint64_t piece, quay_use_mode mode) {
  quay_buffer *view = late_view(buffer, piece * PIECE, PIECE);
  late_kernel_on(stream, view, mode);
  quay_buffer_release(view);
}

/* An access without a launch. */
static void touch(quay_stream *stream, quay_buffer *used, quay_use_mode mode) {
  quay_access access;
  MUST(quay_access_begin(stream, &(quay_use){used, mode}, 1, &access));
  MUST(quay_access_end(&access));
}

TestSuite(hazard, .init = open_device);

/* Long lists. */

Test(hazard, a_hundred_thousand_disjoint_ranges_are_merged_and_nobody_waits) {
  enum {
    COUNT = 100000
  };
  quay_buffer *large = late_buffer("late:0", COUNT, 2);
  for (uint64_t i = 0; i < COUNT; i++) {
    quay_buffer *view = late_view(large, i * 7919 % COUNT, 1);
    touch(i % 2 == 0 ? one : two, view, QUAY_WRITE);
    quay_buffer_release(view);
    cr_assert_leq(live_events(), QUAY__HAZARD_RECORDS_MAX);
  }
  cr_assert_eq(late_calls(LATE_EVENT_SYNCHRONIZE), 0);
  quay_stream *reader = late_stream_of(0);
  for (uint64_t i = 0; i < 10; i++) {
    quay_buffer *view = late_view(large, i * (COUNT / 10), 1);
    late_counts_reset();
    touch(reader, view, QUAY_READ);
    cr_assert_geq(late_calls(LATE_STREAM_WAIT), 1);
    quay_buffer_release(view);
  }
  quay_stream_release(reader);
  quay_buffer_release(large);
  close_device();
}

/* One writer a piece, on several streams in turn; then a reader of each piece. */
Test(hazard, merged_writes_are_waited_for_by_readers) {
  quay_stream *streams[3] = {one, two, late_stream_of(0)}, *reader = late_stream_of(0);
  for (uint64_t i = 0; i < PIECES; i++)
    use_piece(streams[i % 3], i * 37 % PIECES, QUAY_WRITE);
  cr_assert_eq(late_calls(LATE_EVENT_SYNCHRONIZE), 0);
  for (uint64_t i = 0; i < PIECES; i++)
    use_piece(reader, i, QUAY_READ);
  late_no_violations();
  quay_stream_release(streams[2]);
  quay_stream_release(reader);
  close_device();
}

Test(hazard, merged_reads_are_waited_for_by_writers) {
  quay_stream *streams[3] = {one, two, late_stream_of(0)}, *writer = late_stream_of(0);
  for (uint64_t i = 0; i < PIECES; i++)
    use_piece(streams[i % 3], i * 37 % PIECES, QUAY_READ);
  for (uint64_t i = 0; i < PIECES; i++)
    use_piece(writer, i, QUAY_WRITE);
  late_no_violations();
  cr_assert_eq(late_calls(LATE_EVENT_SYNCHRONIZE), 0);
  quay_stream_release(streams[2]);
  quay_stream_release(writer);
  close_device();
}

Test(hazard, merged_reads_do_not_make_readers_wait) {
  for (uint64_t i = 0; i < PIECES; i++)
    use_piece(one, i * 37 % PIECES, QUAY_READ);
  touch(two, buffer, QUAY_READ);
  cr_assert_eq(late_calls(LATE_STREAM_WAIT), 0);
  close_device();
}

Test(hazard, the_host_waits_for_merged_writes) {
  for (uint64_t i = 0; i < PIECES; i++)
    use_piece(i % 2 == 0 ? one : two, i * 37 % PIECES, QUAY_READ_WRITE);
  unsigned char bytes[SIZE];
  MUST(quay_buffer_copy_out(buffer, bytes, SIZE));
  for (uint64_t i = 0; i < SIZE; i++)
    cr_assert_eq(bytes[i], (unsigned char)(pattern_byte(i, 1) + 1));
  close_device();
}

Test(hazard, with_more_streams_than_records_nothing_is_lost) {
  enum {
    STREAMS = 2 * QUAY__HAZARD_RECORDS_MAX
  };
  quay_stream *streams[STREAMS];
  for (uint64_t i = 0; i < STREAMS; i++) {
    streams[i] = late_stream_of(0);
    use_piece(streams[i], i, QUAY_WRITE);
    use_piece(streams[i], (i + 200) % PIECES, QUAY_READ);
  }
  for (uint64_t i = 0; i < PIECES; i++)
    use_piece(one, i, QUAY_WRITE);
  late_no_violations();
  for (uint64_t i = 0; i < STREAMS; i++)
    quay_stream_release(streams[i]);
  close_device();
}

Test(hazard, a_wait_that_fails_in_a_list_too_long_loses_no_order) {
  enum {
    STREAMS = QUAY__HAZARD_RECORDS_MAX + 1
  };
  quay_stream *streams[STREAMS];
  cr_assert(late_fail(LATE_EVENT_SYNCHRONIZE, 1, QUAY_STATUS_IO));
  for (uint64_t i = 0; i < STREAMS; i++) {
    streams[i] = late_stream_of(0);
    use_piece(streams[i], i, QUAY_WRITE);
  }
  cr_assert_eq(late_calls(LATE_EVENT_SYNCHRONIZE), 1);
  for (uint64_t i = 0; i < STREAMS; i++)
    use_piece(one, i, QUAY_WRITE);
  late_no_violations();
  for (uint64_t i = 0; i < STREAMS; i++)
    quay_stream_release(streams[i]);
  close_device();
}

/* An owner with ordered free can't be told of more events than a list should have. */
Test(hazard_ordered, memory_with_a_list_too_long_is_freed_once_all_is_done) {
  enum {
    STREAMS = QUAY__HAZARD_RECORDS_MAX + 1
  };
  late_begin(&(late_options){.mode = LATE_MANUAL, .ordered_free = true});
  quay_stream *streams[STREAMS];
  quay_buffer *used = late_buffer("late:0", SIZE, 1);
  cr_assert(late_fail(LATE_EVENT_SYNCHRONIZE, 1, QUAY_STATUS_IO));
  for (uint64_t i = 0; i < STREAMS; i++) {
    streams[i] = late_stream_of(0);
    late_kernel_on(streams[i], used, QUAY_READ);
  }
  quay_buffer_release(used);
  late_no_violations();
  late_run_all();
  MUST(quay_collect(NULL));
  cr_assert_eq(late_blocks_live(), 0);
  for (uint64_t i = 0; i < STREAMS; i++)
    quay_stream_release(streams[i]);
  late_end();
}

/* Short lists. */

Test(hazard_threads, a_reader_waits_for_its_producer_and_not_for_what_follows_on_that_stream) {
  open_mode(LATE_THREADS);
  use_piece(one, 0, QUAY_READ_WRITE);
  quay_buffer *second = late_view(buffer, PIECE, PIECE), *first = late_view(buffer, 0, PIECE);
  quay_access access;
  MUST(quay_access_begin(one, &(quay_use){second, QUAY_WRITE}, 1, &access));
  const uint64_t gate = late_hold(quay_stream_native(one));
  MUST(quay_access_end(&access));
  late_kernel_on(two, first, QUAY_READ);
  MUST(quay_stream_synchronize(two)); /* hangs if it waits for the gate */
  unsigned char bytes[PIECE];
  MUST(quay_buffer_copy_out(first, bytes, PIECE));
  for (uint64_t i = 0; i < PIECE; i++)
    cr_assert_eq(bytes[i], (unsigned char)(pattern_byte(i, 1) + 1));
  late_open_gate(gate);
  MUST(quay_stream_synchronize(one));
  quay_buffer_release(first);
  quay_buffer_release(second);
  close_device();
}

Test(hazard, what_the_host_has_waited_for_is_not_waited_for_again) {
  use_piece(one, 0, QUAY_WRITE);
  use_piece(one, 1, QUAY_WRITE);
  MUST(quay_buffer_synchronize(buffer));
  cr_assert_eq(late_calls(LATE_EVENT_SYNCHRONIZE), 2);
  MUST(quay_buffer_synchronize(buffer));
  touch(two, buffer, QUAY_WRITE);
  cr_assert_eq(late_calls(LATE_EVENT_SYNCHRONIZE), 2);
  cr_assert_eq(late_calls(LATE_STREAM_WAIT), 0);
  close_device();
}

Test(hazard, the_later_event_of_a_stream_covers_the_earlier_one) {
  use_piece(one, 0, QUAY_WRITE);
  use_piece(one, 1, QUAY_WRITE);
  quay_buffer *second = late_view(buffer, PIECE, PIECE);
  MUST(quay_buffer_synchronize(second));
  MUST(quay_buffer_synchronize(buffer));
  cr_assert_eq(late_calls(LATE_EVENT_SYNCHRONIZE), 1);
  quay_buffer_release(second);
  close_device();
}

static quay__range whole(quay_use_mode mode) {
  return (quay__range){.offset = 0, .size = SIZE, .mode = mode};
}

/* Two threads end accesses of one stream at once: the one whose event came first is entered last.
 */
Test(hazard, an_earlier_event_that_is_entered_later_does_not_hide_the_later_one) {
  quay__storage *storage = buffer->storage;
  const quay__range range = whole(QUAY_WRITE);
  MUST(quay__hazards_open(storage, &range, 1, one, 1001, false));
  MUST(quay__hazards_open(storage, &range, 1, one, 1002, false));
  quay_event *earlier = NULL, *later = NULL;
  MUST(quay_event_record(one, &earlier));
  MUST(quay_event_record(one, &later));
  quay__hazards_close(storage, 1002, later);
  quay__hazards_close(storage, 1001, earlier);
  const uint64_t gate = late_hold(quay_stream_native(one));
  touch(two, buffer, QUAY_READ);
  cr_assert_eq(late_calls(LATE_STREAM_WAIT), 2);
  late_open_gate(gate);
  quay_event_release(earlier);
  quay_event_release(later);
  close_device();
}

/* Brief uses. */

static quay_status thread_status;
static _Atomic bool thread_done;

static void *copy_in_a_thread(void *source) {
  thread_status = late_try_copy(two, buffer, source);
  thread_done = true;
  return NULL;
}

Test(hazard, a_copy_waits_until_another_ones_submission_is_over) {
  quay__storage *storage = buffer->storage;
  quay_buffer *source = late_buffer("late:0", SIZE, 5);
  const quay__range range = whole(QUAY_WRITE);
  MUST(quay__hazards_open(storage, &range, 1, one, 1001, true));
  pthread_t thread;
  cr_assert_eq(pthread_create(&thread, NULL, copy_in_a_thread, source), 0);
  usleep(20000);
  cr_assert(!thread_done, "it did not wait");
  quay_event *event = NULL;
  MUST(quay_event_record(one, &event));
  quay__hazards_close(storage, 1001, event);
  pthread_join(thread, NULL);
  cr_assert_eq(thread_status, QUAY_OK);
  cr_assert_eq(late_calls(LATE_STREAM_WAIT), 1);
  pattern_check_buffer(buffer, 0, 5);
  quay_event_release(event);
  quay_buffer_release(source);
  close_device();
}

static void *copy_up_in_a_thread(void *unused) {
  (void)unused;
  quay_buffer *low = late_view(buffer, 0, SIZE / 2), *high = late_view(buffer, SIZE / 2, SIZE / 2);
  thread_status = late_try_copy(two, low, high);
  quay_buffer_release(low);
  quay_buffer_release(high);
  return NULL;
}

/* Else two copies within one storage in opposite directions would wait for each other. */
Test(hazard, a_copy_that_waits_for_one_of_its_ranges_does_not_hold_the_other, .timeout = 60) {
  quay__storage *storage = buffer->storage;
  const quay__range low = {.offset = 0, .size = SIZE / 2, .mode = QUAY_WRITE};
  const quay__range high = {.offset = SIZE / 2, .size = SIZE / 2, .mode = QUAY_WRITE};
  MUST(quay__hazards_open(storage, &high, 1, one, 1001, true));
  pthread_t thread;
  cr_assert_eq(pthread_create(&thread, NULL, copy_up_in_a_thread, NULL), 0);
  usleep(100000);
  alarm(20); /* this would wait for the copy, which waits for this */
  MUST(quay__hazards_open(storage, &low, 1, one, 1002, true));
  alarm(0);
  quay__hazards_close(storage, 1002, NULL);
  quay__hazards_close(storage, 1001, NULL);
  pthread_join(thread, NULL);
  cr_assert_eq(thread_status, QUAY_OK);
  unsigned char bytes[SIZE / 2];
  quay_buffer *result = late_view(buffer, 0, SIZE / 2);
  MUST(quay_buffer_copy_out(result, bytes, sizeof bytes));
  for (uint64_t i = 0; i < SIZE / 2; i++)
    cr_assert_eq(bytes[i], pattern_byte(SIZE / 2 + i, 1));
  quay_buffer_release(result);
  close_device();
}

typedef struct pageable_copy {
  quay_buffer *destination, *source;
  quay_status status;
  _Atomic bool done;
} pageable_copy;

static void *copy_pageable(void *argument) {
  pageable_copy *copy = argument;
  copy->status = late_try_copy(two, copy->destination, copy->source);
  return NULL;
}

static void *write_the_source(void *argument) {
  pageable_copy *copy = argument;
  const quay__range range = whole(QUAY_WRITE);
  MUST(quay__hazards_open(copy->source->storage, &range, 1, one, 1002, true));
  copy->done = true;
  quay__hazards_close(copy->source->storage, 1002, NULL);
  return NULL;
}

/* The host reads pageable memory before the call returns: until then the source is in use. */
Test(hazard, a_copy_from_pageable_memory_holds_its_source_while_it_runs, .timeout = 60) {
  pageable_copy copy = {.source = late_buffer("cpu", SIZE, 5)};
  copy.destination = late_buffer("late:0", SIZE, 6); /* younger, and so opened after the source */
  const quay__range range = whole(QUAY_WRITE);
  MUST(quay__hazards_open(copy.destination->storage, &range, 1, one, 1001, true));
  pthread_t copying, writing;
  cr_assert_eq(pthread_create(&copying, NULL, copy_pageable, &copy), 0);
  usleep(100000);
  cr_assert_eq(pthread_create(&writing, NULL, write_the_source, &copy), 0);
  usleep(100000);
  cr_assert(!copy.done, "the source was given to a writer");
  quay__hazards_close(copy.destination->storage, 1001, NULL);
  pthread_join(copying, NULL);
  pthread_join(writing, NULL);
  cr_assert_eq(copy.status, QUAY_OK);
  pattern_check_buffer(copy.destination, 0, 5);
  MUST(quay_buffer_synchronize(copy.source));
  quay_buffer_release(copy.source);
  quay_buffer_release(copy.destination);
  close_device();
}

static void *seal_in_a_thread(void *unused) {
  (void)unused;
  thread_status = quay_buffer_seal(buffer);
  thread_done = true;
  return NULL;
}

Test(hazard, sealing_waits_until_a_submission_is_over) {
  quay__storage *storage = buffer->storage;
  const quay__range range = whole(QUAY_WRITE);
  MUST(quay__hazards_open(storage, &range, 1, one, 1001, true));
  pthread_t thread;
  cr_assert_eq(pthread_create(&thread, NULL, seal_in_a_thread, NULL), 0);
  usleep(20000);
  cr_assert(!thread_done, "it did not wait");
  quay__hazards_close(storage, 1001, NULL);
  pthread_join(thread, NULL);
  cr_assert_eq(thread_status, QUAY_OK);
  cr_assert(quay_buffer_is_sealed(buffer));
  close_device();
}

Test(hazard, a_brief_use_of_another_thread_is_not_waited_for_in_the_child_of_a_fork) {
  const quay__range whole = {.offset = 0, .size = SIZE, .mode = QUAY_WRITE};
  const uint64_t id = quay__next_id();
  MUST(quay__hazards_open(buffer->storage, &whole, 1, one, id, true));
  const pid_t child = fork();
  if (child == 0) {
    alarm(10);
    const bool free = quay__hazards_check(buffer->storage, &whole, two) == QUAY_OK &&
                      quay__hazards_seal(buffer->storage) == QUAY_OK;
    _exit(free ? 0 : 1);
  }
  int status = -1;
  cr_assert_eq(waitpid(child, &status, 0), child);
  cr_expect_eq(status, 0);
  quay__hazards_close(buffer->storage, id, NULL);
  close_device();
}
