/* Buffers and storages: making, allocating once, adopting, sealing, generations, releasing. */
#include "support/manual_device.h"
#include "support/pattern.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

static const int64_t shape_3x5[] = {3, 5};

static quay_buffer *lazy_bytes(quay_allocator *allocator, int64_t size) {
  quay_buffer *buffer = NULL;
  MUST(quay_buffer_create_lazy(allocator, QUAY_U8, 1, &size, NULL, &buffer));
  return buffer;
}

Test(buffer, create_gives_what_was_asked_for) {
  quay_buffer *b = NULL;
  MUST(quay_buffer_create(NULL, QUAY_F32, 2, shape_3x5, NULL, &b));
  cr_assert_eq(quay_buffer_size(b), 60);
  cr_assert_eq(quay_buffer_total_size(b), 60);
  cr_assert_eq(quay_buffer_offset(b), 0);
  cr_assert_eq(quay_buffer_count(b), 15);
  cr_assert_eq(quay_buffer_dtype(b), QUAY_F32);
  cr_assert_eq(quay_buffer_rank(b), 2);
  cr_assert_eq(quay_buffer_shape(b)[0], 3);
  cr_assert_eq(quay_buffer_shape(b)[1], 5);
  cr_assert(quay_buffer_is_allocated(b));
  cr_assert_not(quay_buffer_is_sealed(b));
  cr_assert(quay_buffer_host_accessible(b));
  cr_assert_eq(quay_buffer_kind(b), QUAY_MEMORY_PAGEABLE);
  cr_assert_eq(quay_buffer_generation(b), quay_device_generation(quay_buffer_device(b)));
  cr_assert_str_eq(quay_allocator_name(quay_buffer_allocator(b)), "cpu");
  MUST(quay_buffer_check(b));
  quay_buffer_release(b);
}

Test(buffer, a_scalar_has_one_element_and_no_shape) {
  quay_buffer *b = NULL;
  MUST(quay_buffer_create(NULL, QUAY_F64, 0, NULL, NULL, &b));
  cr_assert_eq(quay_buffer_size(b), 8);
  cr_assert_eq(quay_buffer_count(b), 1);
  cr_assert_null(quay_buffer_shape(b));
  quay_buffer_release(b);
}

Test(buffer, questions_about_null_are_answered) {
  cr_assert_eq(quay_buffer_id(NULL), 0);
  cr_assert_eq(quay_buffer_storage_id(NULL), 0);
  cr_assert_eq(quay_buffer_size(NULL), 0);
  cr_assert_eq(quay_buffer_total_size(NULL), 0);
  cr_assert_eq(quay_buffer_offset(NULL), 0);
  cr_assert_eq(quay_buffer_count(NULL), 0);
  cr_assert_eq(quay_buffer_dtype(NULL), QUAY_DTYPE_NONE);
  cr_assert_eq(quay_buffer_rank(NULL), 0);
  cr_assert_null(quay_buffer_shape(NULL));
  cr_assert_not(quay_buffer_is_allocated(NULL));
  cr_assert_not(quay_buffer_is_sealed(NULL));
  cr_assert_not(quay_buffer_host_accessible(NULL));
  cr_assert_eq(quay_buffer_kind(NULL), QUAY_MEMORY_NONE);
  cr_assert_eq(quay_buffer_generation(NULL), 0);
  cr_assert_null(quay_buffer_allocator(NULL));
  cr_assert_null(quay_buffer_device(NULL));
  cr_assert_null(quay_buffer_retain(NULL));
  quay_buffer_release(NULL);
}

Test(buffer, null_arguments_are_named) {
  quay_buffer *b = NULL;
  MUST_FAIL(quay_buffer_create(NULL, QUAY_F32, 2, shape_3x5, NULL, NULL), INVALID_ARGUMENT);
  cr_assert_not_null(strstr(quay_last_error()->message, "quay_buffer_create"));
  cr_assert_not_null(strstr(quay_last_error()->message, "out_buffer"));
  MUST_FAIL(quay_buffer_create_lazy(NULL, QUAY_F32, 2, shape_3x5, NULL, NULL), INVALID_ARGUMENT);
  MUST_FAIL(quay_buffer_create_zeroed(NULL, QUAY_F32, 2, shape_3x5, NULL), INVALID_ARGUMENT);
  MUST_FAIL(quay_buffer_create_from_host(NULL, QUAY_U8, 2, shape_3x5, "x", NULL, NULL),
            INVALID_ARGUMENT);
  MUST_FAIL(quay_buffer_from_raw(NULL, QUAY_U8, 0, NULL, &b), INVALID_ARGUMENT);
  MUST_FAIL(quay_buffer_release_raw(&b, &(quay_raw_buffer){0}), INVALID_ARGUMENT);
  MUST_FAIL(quay_buffer_release_raw(NULL, &(quay_raw_buffer){0}), INVALID_ARGUMENT);
  MUST_FAIL(quay_buffer_release_raw(&b, NULL), INVALID_ARGUMENT);
  MUST_FAIL(quay_buffer_adopt_host(NULL, QUAY_U8, 0, NULL, NULL, &b), INVALID_ARGUMENT);
  MUST_FAIL(quay_buffer_check(NULL), INVALID_ARGUMENT);
  MUST_FAIL(quay_buffer_ensure_allocated(NULL), INVALID_ARGUMENT);
  MUST_FAIL(quay_buffer_seal(NULL), INVALID_ARGUMENT);
  MUST_FAIL(quay_buffer_synchronize(NULL), INVALID_ARGUMENT);
}

Test(buffer, a_shape_that_overflows_is_refused_and_leaves_null) {
  const int64_t huge[] = {INT64_MAX, 3};
  quay_buffer *b = (quay_buffer *)&b;
  MUST_FAIL(quay_buffer_create(NULL, QUAY_F32, 2, huge, NULL, &b), OUT_OF_RANGE);
  cr_assert_null(b);
  const int64_t negative[] = {-1};
  MUST_FAIL(quay_buffer_create_lazy(NULL, QUAY_F32, 1, negative, NULL, &b), INVALID_ARGUMENT);
  MUST_FAIL(quay_buffer_create(NULL, QUAY_DTYPE_NONE, 1, shape_3x5, NULL, &b), INVALID_ARGUMENT);
  MUST_FAIL(quay_buffer_create(NULL, QUAY_U8, QUAY_RANK_MAX + 1, shape_3x5, NULL, &b),
            INVALID_ARGUMENT);
}

Test(buffer, the_highest_rank_works) {
  int64_t shape[QUAY_RANK_MAX];
  for (int i = 0; i < QUAY_RANK_MAX; i++)
    shape[i] = i < 3 ? 2 : 1;
  quay_buffer *b = NULL;
  MUST(quay_buffer_create(NULL, QUAY_U16, QUAY_RANK_MAX, shape, NULL, &b));
  cr_assert_eq(quay_buffer_size(b), 16);
  cr_assert_eq(quay_buffer_rank(b), QUAY_RANK_MAX);
  cr_assert_arr_eq(quay_buffer_shape(b), shape, sizeof(shape));
  quay_buffer_release(b);
}

Test(buffer, ids_are_unique_and_storages_have_their_own) {
  quay_buffer *a = lazy_bytes(NULL, 10), *b = lazy_bytes(NULL, 10);
  cr_assert_neq(quay_buffer_id(a), 0);
  cr_assert_neq(quay_buffer_storage_id(a), 0);
  cr_assert_neq(quay_buffer_id(a), quay_buffer_id(b));
  cr_assert_neq(quay_buffer_storage_id(a), quay_buffer_storage_id(b));
  quay_buffer_release(a);
  quay_buffer_release(b);
}

Test(buffer, a_size_of_zero_is_a_buffer_like_any_other) {
  quay_buffer *b = NULL;
  MUST(quay_buffer_create(NULL, QUAY_F32, 2, (int64_t[]){0, 7}, NULL, &b));
  cr_assert_eq(quay_buffer_size(b), 0);
  cr_assert_eq(quay_buffer_count(b), 0);
  cr_assert(quay_buffer_is_allocated(b));
  const void *bytes = NULL;
  uint64_t size = 77;
  MUST(quay_buffer_host_bytes(b, &bytes, &size));
  cr_assert_not_null(bytes);
  cr_assert_eq(size, 0);
  quay_buffer_release(b);
}

Test(buffer, alignment_is_honoured_now_and_later) {
  for (uint64_t alignment = 1; alignment <= 1 << 20; alignment <<= 4) {
    const quay_alloc_options options = {.alignment = alignment};
    quay_buffer *now = NULL, *later = NULL;
    uint64_t address = 0;
    MUST(quay_buffer_create(NULL, QUAY_F32, 2, shape_3x5, &options, &now));
    MUST(quay_buffer_address(now, &address));
    cr_assert_eq(address % alignment, 0);
    MUST(quay_buffer_create_lazy(NULL, QUAY_F32, 2, shape_3x5, &options, &later));
    MUST(quay_buffer_ensure_allocated(later));
    MUST(quay_buffer_address(later, &address));
    cr_assert_eq(address % alignment, 0);
    quay_buffer_release(now);
    quay_buffer_release(later);
  }
}

Test(buffer, a_bad_alignment_is_refused_by_both_ways_of_creating) {
  const quay_alloc_options options = {.alignment = 3};
  quay_buffer *b = NULL;
  MUST_FAIL(quay_buffer_create(NULL, QUAY_F32, 2, shape_3x5, &options, &b), INVALID_ARGUMENT);
  MUST_FAIL(quay_buffer_create_lazy(NULL, QUAY_F32, 2, shape_3x5, &options, &b), INVALID_ARGUMENT);
  cr_assert_null(b);
}

Test(buffer, zeroed_means_zero_now_and_later) {
  static const unsigned char zeros[60];
  unsigned char bytes[60];
  quay_allocator *manual_memory = manual_open(&(manual_options){0});
  const quay_alloc_options options = {.zeroed = true};
  quay_buffer *now = NULL, *later = NULL;
  MUST(quay_buffer_create_zeroed(manual_memory, QUAY_F32, 2, shape_3x5, &now));
  memset(bytes, 1, sizeof(bytes));
  MUST(quay_buffer_copy_out(now, bytes, sizeof(bytes)));
  cr_assert_arr_eq(bytes, zeros, sizeof(zeros));
  MUST(quay_buffer_create_lazy(manual_memory, QUAY_F32, 2, shape_3x5, &options, &later));
  MUST(quay_buffer_ensure_allocated(later));
  memset(bytes, 1, sizeof(bytes));
  MUST(quay_buffer_copy_out(later, bytes, sizeof(bytes)));
  cr_assert_arr_eq(bytes, zeros, sizeof(zeros));
  quay_buffer_release(now);
  quay_buffer_release(later);
  quay_allocator_release(manual_memory);
}

Test(buffer, create_from_host_holds_the_bytes) {
  unsigned char bytes[60], back[60];
  pattern_make(bytes, sizeof(bytes), 1);
  quay_buffer *b = NULL;
  MUST(quay_buffer_create_from_host(NULL, QUAY_F32, 2, shape_3x5, bytes, NULL, &b));
  MUST(quay_buffer_copy_out(b, back, sizeof(back)));
  cr_assert_arr_eq(back, bytes, sizeof(bytes));
  quay_buffer_release(b);
}

Test(buffer, create_from_host_takes_no_null_but_for_nothing) {
  quay_buffer *b = NULL;
  MUST_FAIL(quay_buffer_create_from_host(NULL, QUAY_F32, 2, shape_3x5, NULL, NULL, &b),
            INVALID_ARGUMENT);
  cr_assert_null(b);
  MUST(quay_buffer_create_from_host(NULL, QUAY_F32, 1, (int64_t[]){0}, NULL, NULL, &b));
  quay_buffer_release(b);
}

Test(buffer, create_from_host_leaves_nothing_behind_when_the_copy_fails) {
  quay_allocator *a = manual_open(&(manual_options){0});
  atomic_store(&manual_fail_copies, 1);
  quay_buffer *b = NULL;
  MUST_FAIL(quay_buffer_create_from_host(a, QUAY_U8, 2, shape_3x5, "fifteen bytes..", NULL, &b),
            IO);
  cr_assert_null(b);
  cr_assert_eq(atomic_load(&manual.alloc), 1);
  cr_assert_eq(atomic_load(&manual.free), 1);
  cr_assert_not_null(strstr(quay_last_error()->message, "manual copy failure"));
  quay_allocator_release(a);
}

Test(buffer, an_allocation_that_fails_leaves_null_and_its_message) {
  quay_allocator *a = manual_open(&(manual_options){0});
  atomic_store(&manual_fail_allocs, 1);
  quay_buffer *b = NULL;
  MUST_FAIL(quay_buffer_create(a, QUAY_U8, 2, shape_3x5, NULL, &b), OUT_OF_DEVICE_MEMORY);
  cr_assert_null(b);
  cr_assert_str_eq(quay_last_error()->native_name, "MANUAL_FULL");
  quay_allocator_release(a);
}

Test(buffer, a_buffer_keeps_its_allocator_alive) {
  quay_allocator *a = manual_open(&(manual_options){0});
  quay_buffer *b = pattern_buffer(a, 100, 2);
  quay_allocator_release(a);
  pattern_check_buffer(b, 0, 2);
  quay_buffer_release(b);
  cr_assert_eq(atomic_load(&manual.free), 1);
}

Test(buffer, the_last_of_several_references_frees) {
  quay_allocator *a = manual_open(&(manual_options){0});
  quay_buffer *b = pattern_buffer(a, 100, 2);
  cr_assert_eq(quay_buffer_retain(b), b);
  quay_buffer_release(b);
  cr_assert_eq(atomic_load(&manual.free), 0);
  pattern_check_buffer(b, 0, 2);
  quay_buffer_release(b);
  cr_assert_eq(atomic_load(&manual.free), 1);
  quay_allocator_release(a);
}

Test(buffer, releasing_keeps_the_last_error) {
  quay_allocator *a = manual_open(&(manual_options){0});
  quay_buffer *b = pattern_buffer(a, 100, 2);
  MUST_FAIL(quay_buffer_check(NULL), INVALID_ARGUMENT);
  char message[QUAY_ERROR_MESSAGE_SIZE];
  (void)snprintf(message, sizeof(message), "%s", quay_last_error()->message);
  quay_buffer_release(b);
  cr_assert_eq(quay_last_error()->status, QUAY_STATUS_INVALID_ARGUMENT);
  cr_assert_str_eq(quay_last_error()->message, message);
  quay_allocator_release(a);
}

Test(buffer, success_leaves_the_last_error_alone) {
  MUST_FAIL(quay_buffer_check(NULL), INVALID_ARGUMENT);
  quay_buffer *b = pattern_buffer(NULL, 100, 2);
  MUST(quay_buffer_seal(b));
  quay_buffer_release(b);
  cr_assert_eq(quay_last_error()->status, QUAY_STATUS_INVALID_ARGUMENT);
}

/* Lazy buffers. */

Test(buffer, sealing_a_lazy_buffer_says_so) {
  quay_buffer *b = lazy_bytes(NULL, 15);
  MUST_FAIL(quay_buffer_seal(b), NOT_ALLOCATED);
  cr_expect_not_null(strstr(quay_last_error()->message, "sealing a lazy buffer of 15 bytes"));
  cr_expect_not(quay_buffer_is_sealed(b));
  quay_buffer_release(b);
}

Test(buffer, a_lazy_buffer_is_not_allocated_until_it_is_written) {
  quay_allocator *a = manual_open(&(manual_options){0});
  quay_buffer *b = lazy_bytes(a, 15);
  cr_assert_not(quay_buffer_is_allocated(b));
  cr_assert_eq(quay_buffer_size(b), 15);
  cr_assert_eq(quay_buffer_generation(b), quay_device_generation(quay_buffer_device(b)));
  MUST(quay_buffer_check(b));
  MUST(quay_buffer_synchronize(b));
  cr_assert_eq(atomic_load(&manual.alloc), 0);
  MUST(quay_buffer_copy_in(b, "fifteen bytes..", 15));
  cr_assert(quay_buffer_is_allocated(b));
  cr_assert_eq(atomic_load(&manual.alloc), 1);
  quay_buffer_release(b);
  quay_allocator_release(a);
}

Test(buffer, reading_a_lazy_buffer_says_not_allocated) {
  unsigned char bytes[15];
  const void *pointer = NULL;
  const quay_raw_buffer *raw = NULL;
  uint64_t address = 0;
  quay_buffer *b = lazy_bytes(NULL, 15), *d = lazy_bytes(NULL, 15);
  MUST_FAIL(quay_buffer_copy_out(b, bytes, 15), NOT_ALLOCATED);
  MUST_FAIL(quay_buffer_copy_from(d, b), NOT_ALLOCATED);
  MUST_FAIL(quay_buffer_copy_from(b, b), NOT_ALLOCATED);
  MUST_FAIL(quay_buffer_host_bytes(b, &pointer, NULL), NOT_ALLOCATED);
  MUST_FAIL(quay_buffer_address(b, &address), NOT_ALLOCATED);
  MUST_FAIL(quay_buffer_raw(b, &raw), NOT_ALLOCATED);
  MUST_FAIL(quay_buffer_seal(b), NOT_ALLOCATED);
  cr_assert_not(quay_buffer_is_allocated(b));
  cr_assert_not(quay_buffer_is_allocated(d));
  quay_buffer_release(b);
  quay_buffer_release(d);
}

Test(buffer, every_write_allocates_a_lazy_buffer) {
  quay_buffer *source = pattern_buffer(NULL, 16, 3);
  for (int way = 0; way < 6; way++) {
    quay_buffer *b = lazy_bytes(NULL, 16);
    void *pointer = NULL;
    quay_host_array_mut array;
    switch (way) {
    case 0:
      MUST(quay_buffer_copy_in(b, "sixteen bytes...", 16));
      break;
    case 1:
      MUST(quay_buffer_copy_from(b, source));
      break;
    case 2:
      MUST(quay_buffer_copy_region(b, 1, source, 2, 3, NULL));
      break;
    case 3:
      MUST(quay_buffer_fill(b, "ab", 2));
      break;
    case 4:
      MUST(quay_buffer_host_bytes_mut(b, &pointer, NULL));
      break;
    case 5:
      MUST(quay_buffer_host_array_mut(b, QUAY_U8, &array));
      break;
    }
    cr_assert(quay_buffer_is_allocated(b), "way %d", way);
    quay_buffer_release(b);
  }
  quay_buffer_release(source);
}

Test(buffer, a_wrong_size_does_not_allocate_a_lazy_buffer) {
  quay_buffer *source = pattern_buffer(NULL, 16, 3), *b = lazy_bytes(NULL, 15);
  MUST_FAIL(quay_buffer_copy_in(b, "sixteen bytes...", 16), SIZE_MISMATCH);
  MUST_FAIL(quay_buffer_copy_from(b, source), SIZE_MISMATCH);
  MUST_FAIL(quay_buffer_fill(b, "ab", 2), SIZE_MISMATCH);
  MUST_FAIL(quay_buffer_copy_region(b, 10, source, 0, 6, NULL), OUT_OF_RANGE);
  MUST_FAIL(quay_buffer_copy_in(b, NULL, 15), INVALID_ARGUMENT);
  cr_assert_not(quay_buffer_is_allocated(b));
  quay_buffer_release(source);
  quay_buffer_release(b);
}

Test(buffer, zero_bytes_are_read_and_written_by_the_same_rules) {
  quay_buffer *b = lazy_bytes(NULL, 0);
  MUST_FAIL(quay_buffer_copy_out(b, NULL, 0), NOT_ALLOCATED);
  MUST(quay_buffer_copy_in(b, NULL, 0));
  cr_assert(quay_buffer_is_allocated(b));
  MUST(quay_buffer_copy_out(b, NULL, 0));
  quay_buffer_release(b);
}

Test(buffer, a_lazy_buffer_takes_no_stream) {
  quay_device *host = quay_device_host();
  quay_stream *stream = NULL;
  MUST(quay_stream_create(host, NULL, &stream));
  const quay_alloc_options options = {.stream = stream};
  quay_buffer *b = NULL;
  MUST_FAIL(quay_buffer_create_lazy(NULL, QUAY_U8, 2, shape_3x5, &options, &b), INVALID_ARGUMENT);
  cr_assert_null(b);
  MUST(quay_buffer_create(NULL, QUAY_U8, 2, shape_3x5, &options, &b));
  quay_buffer_release(b);
  quay_stream_release(stream);
  quay_device_release(host);
}

/* Allocate once. */

enum {
  RACERS = 8
};

typedef struct racer {
  pthread_t thread;
  pthread_barrier_t *barrier;
  quay_buffer *buffer;
  quay_status status;
  char message[QUAY_ERROR_MESSAGE_SIZE];
} racer;

static void *race(void *argument) {
  racer *self = argument;
  pthread_barrier_wait(self->barrier);
  self->status = quay_buffer_ensure_allocated(self->buffer);
  (void)snprintf(self->message, sizeof(self->message), "%s", quay_last_error()->message);
  return NULL;
}

static void run_race(racer racers[RACERS], quay_buffer *buffer) {
  pthread_barrier_t barrier;
  pthread_barrier_init(&barrier, NULL, RACERS);
  for (int i = 0; i < RACERS; i++) {
    racers[i] = (racer){.barrier = &barrier, .buffer = buffer};
    cr_assert_eq(pthread_create(&racers[i].thread, NULL, race, &racers[i]), 0);
  }
  for (int i = 0; i < RACERS; i++)
    pthread_join(racers[i].thread, NULL);
  pthread_barrier_destroy(&barrier);
}

Test(buffer, racing_threads_allocate_once) {
  quay_allocator *a = manual_open(&(manual_options){0});
  atomic_store(&manual_alloc_delay, 20);
  for (unsigned round = 1; round <= 5; round++) {
    racer racers[RACERS];
    quay_buffer *b = lazy_bytes(a, 1000);
    run_race(racers, b);
    for (int i = 0; i < RACERS; i++)
      cr_assert_eq(racers[i].status, QUAY_OK);
    cr_assert_eq(atomic_load(&manual.alloc), round);
    quay_buffer_release(b);
    cr_assert_eq(atomic_load(&manual.free), round);
  }
  quay_allocator_release(a);
}

Test(buffer, racing_threads_get_the_first_ones_error_and_a_later_call_tries_again) {
  quay_allocator *a = manual_open(&(manual_options){0});
  atomic_store(&manual_alloc_delay, 200);
  atomic_store(&manual_fail_allocs, 1);
  racer racers[RACERS];
  quay_buffer *b = lazy_bytes(a, 1000);
  run_race(racers, b);
  /* All were there within the attempt's 200 ms. */
  for (int i = 0; i < RACERS; i++) {
    cr_assert_eq(racers[i].status, QUAY_STATUS_OUT_OF_DEVICE_MEMORY);
    cr_assert_str_eq(racers[i].message, "manual failure 1");
  }
  cr_assert_eq(atomic_load(&manual.alloc), 1);
  cr_assert_not(quay_buffer_is_allocated(b));
  MUST(quay_buffer_ensure_allocated(b));
  cr_assert_eq(atomic_load(&manual.alloc), 2);
  quay_buffer_release(b);
  quay_allocator_release(a);
}

/* Raw buffers and adoption. */

Test(buffer, from_raw_moves_the_raw_buffer_in) {
  quay_allocator *a = manual_open(&(manual_options){0});
  quay_raw_buffer raw;
  MUST(quay_allocator_alloc(a, 60, NULL, &raw));
  quay_buffer *b = NULL;
  MUST(quay_buffer_from_raw(&raw, QUAY_F32, 2, shape_3x5, &b));
  cr_assert_null(raw.owner);
  quay_allocator_release(a);
  cr_assert(quay_buffer_is_allocated(b));
  cr_assert_eq(quay_buffer_size(b), 60);
  quay_buffer_release(b);
  cr_assert_eq(atomic_load(&manual.free), 1);
}

Test(buffer, from_raw_refuses_a_raw_buffer_whose_allocator_was_released) {
  quay_allocator *allocator = NULL;
  quay_raw_buffer raw;
  quay_buffer *b = NULL;
  MUST(quay_allocator_open("cpu", &allocator));
  MUST(quay_allocator_alloc(allocator, 15, NULL, &raw));
  quay_allocator_release(allocator);
  MUST_FAIL(quay_buffer_from_raw(&raw, QUAY_U8, 2, shape_3x5, &b), INVALID_ARGUMENT);
  cr_assert_null(b);
  cr_assert_eq(quay_raw_buffer_size(&raw), 15);
  quay_raw_buffer_free(&raw);
}

Test(buffer, from_raw_leaves_the_raw_buffer_when_it_fails) {
  quay_allocator *a = open_spec("cpu");
  quay_raw_buffer raw;
  MUST(quay_allocator_alloc(a, 61, NULL, &raw));
  quay_buffer *b = NULL;
  MUST_FAIL(quay_buffer_from_raw(&raw, QUAY_F32, 2, shape_3x5, &b), SIZE_MISMATCH);
  cr_assert_null(b);
  cr_assert_eq(raw.owner, a);
  quay_raw_buffer_free(&raw);
  MUST_FAIL(quay_buffer_from_raw(&raw, QUAY_U8, 1, (int64_t[]){0}, &b), INVALID_ARGUMENT);
  quay_allocator_release(a);
}

Test(buffer, read_only_memory_is_born_sealed) {
  quay_allocator *a = manual_open(&(manual_options){.read_only = true});
  quay_raw_buffer raw;
  MUST(quay_allocator_alloc(a, 15, NULL, &raw));
  quay_buffer *b = NULL;
  MUST(quay_buffer_from_raw(&raw, QUAY_U8, 2, shape_3x5, &b));
  cr_assert(quay_buffer_is_sealed(b));
  MUST_FAIL(quay_buffer_copy_in(b, "fifteen bytes..", 15), READ_ONLY);
  quay_buffer_release(b);
  b = lazy_bytes(a, 15);
  MUST_FAIL(quay_buffer_copy_in(b, "fifteen bytes..", 15), READ_ONLY);
  quay_buffer_release(b);
  quay_allocator_release(a);
}

Test(buffer, release_raw_gives_the_memory_to_the_caller) {
  quay_allocator *a = open_spec("cpu");
  quay_buffer *b = pattern_buffer(a, 100, 4);
  quay_raw_buffer raw;
  MUST(quay_buffer_release_raw(&b, &raw));
  cr_assert_null(b);
  cr_assert_eq(raw.owner, a);
  cr_assert_eq(raw.size, 100);
  void *bytes = NULL;
  MUST(quay_raw_buffer_host_pointer(&raw, &bytes));
  pattern_check(bytes, 0, 100, 4);
  quay_raw_buffer_free(&raw);
  quay_allocator_release(a);
}

Test(buffer, release_raw_refuses_what_others_hold) {
  quay_buffer *b = pattern_buffer(NULL, 100, 4), *view = NULL;
  quay_raw_buffer raw;
  MUST(quay_buffer_view(b, 0, 10, &view));
  MUST_FAIL(quay_buffer_release_raw(&b, &raw), BUSY);
  cr_assert_not_null(b);
  cr_assert_null(raw.owner);
  quay_buffer_release(view);
  (void)quay_buffer_retain(b);
  MUST_FAIL(quay_buffer_release_raw(&b, &raw), BUSY);
  quay_buffer_release(b);
  pattern_check_buffer(b, 0, 4);
  quay_buffer_release(b);
  b = lazy_bytes(NULL, 5);
  MUST_FAIL(quay_buffer_release_raw(&b, &raw), NOT_ALLOCATED);
  quay_buffer_release(b);
}

typedef struct handed_back {
  unsigned calls;
  void *memory;
  uint64_t size;
} handed_back;

static void hand_back(void *user, void *memory, uint64_t size) {
  handed_back *to = user;
  to->calls++;
  to->memory = memory;
  to->size = size;
}

Test(buffer, adopted_memory_is_used_in_place_and_handed_back_once) {
  unsigned char bytes[60];
  pattern_make(bytes, sizeof(bytes), 5);
  handed_back back = {0};
  const quay_host_memory memory = {
      .pointer = bytes, .size = sizeof(bytes), .release = hand_back, .user = &back};
  quay_buffer *b = NULL, *view = NULL;
  MUST(quay_buffer_adopt_host(NULL, QUAY_F32, 2, shape_3x5, &memory, &b));
  MUST(quay_buffer_view(b, 4, 8, &view));
  const void *pointer = NULL;
  MUST(quay_buffer_host_bytes(view, &pointer, NULL));
  cr_assert_eq(pointer, bytes + 4);
  quay_buffer_release(b);
  cr_assert_eq(back.calls, 0);
  quay_buffer_release(view);
  cr_assert_eq(back.calls, 1);
  cr_assert_eq(back.memory, bytes);
  cr_assert_eq(back.size, 60);
}

Test(buffer, memory_that_could_not_be_adopted_is_not_handed_back) {
  unsigned char bytes[60];
  handed_back back = {0};
  quay_host_memory memory = {.pointer = bytes, .size = 59, .release = hand_back, .user = &back};
  quay_buffer *b = NULL;
  MUST_FAIL(quay_buffer_adopt_host(NULL, QUAY_F32, 2, shape_3x5, &memory, &b), SIZE_MISMATCH);
  memory.size = 60;
  memory.pointer = NULL;
  MUST_FAIL(quay_buffer_adopt_host(NULL, QUAY_F32, 2, shape_3x5, &memory, &b), INVALID_ARGUMENT);
  memory.pointer = bytes;
  quay_allocator *a = manual_open(&(manual_options){0});
  MUST_FAIL(quay_buffer_adopt_host(a, QUAY_F32, 2, shape_3x5, &memory, &b), UNSUPPORTED);
  cr_assert_null(b);
  cr_assert_eq(back.calls, 0);
  quay_allocator_release(a);
}

/* Sealing. */

Test(buffer, a_sealed_storage_refuses_every_write_and_takes_every_read) {
  quay_buffer *b = pattern_buffer(NULL, 16, 6), *view = NULL, *other = pattern_buffer(NULL, 16, 7);
  MUST(quay_buffer_view(b, 4, 8, &view));
  MUST(quay_buffer_seal(view));
  MUST(quay_buffer_seal(b));
  cr_assert(quay_buffer_is_sealed(b));
  void *pointer = NULL;
  quay_host_array_mut array;
  MUST_FAIL(quay_buffer_copy_in(b, "sixteen bytes...", 16), READ_ONLY);
  MUST_FAIL(quay_buffer_copy_from(b, other), READ_ONLY);
  MUST_FAIL(quay_buffer_copy_region(view, 0, other, 0, 2, NULL), READ_ONLY);
  MUST_FAIL(quay_buffer_fill(b, "ab", 2), READ_ONLY);
  MUST_FAIL(quay_buffer_host_bytes_mut(b, &pointer, NULL), READ_ONLY);
  MUST_FAIL(quay_buffer_host_array_mut(b, QUAY_U8, &array), READ_ONLY);
  MUST_FAIL(quay_buffer_host_slice_mut(b, QUAY_U8, 1, 2, &pointer), READ_ONLY);
  MUST(quay_buffer_copy_from(other, b));
  pattern_check_buffer(b, 0, 6);
  pattern_check_buffer(other, 0, 6);
  quay_buffer_release(b);
  quay_buffer_release(view);
  quay_buffer_release(other);
}

/* Generations and health. */

Test(buffer, memory_of_an_older_generation_is_stale) {
  quay_allocator *a = manual_open(&(manual_options){.host_accessible = true});
  quay_buffer *b = pattern_buffer(a, 15, 8), *lazy = lazy_bytes(a, 15);
  unsigned char bytes[15];
  const void *pointer = NULL;
  quay_device_advance_generation(quay_allocator_device(a));
  cr_assert_eq(quay_buffer_generation(b) + 1, quay_device_generation(quay_allocator_device(a)));
  MUST_FAIL(quay_buffer_check(b), STALE);
  MUST_FAIL(quay_buffer_copy_out(b, bytes, 15), STALE);
  MUST_FAIL(quay_buffer_copy_in(b, bytes, 15), STALE);
  MUST_FAIL(quay_buffer_host_bytes(b, &pointer, NULL), STALE);
  MUST_FAIL(quay_buffer_fill(b, "a", 1), STALE);
  MUST(quay_buffer_fill(lazy, "a", 1));
  quay_buffer_release(b);
  quay_buffer_release(lazy);
  quay_allocator_release(a);
}

Test(buffer, plain_host_memory_is_checked_for_generation_and_health_too) {
  quay_allocator *a = manual_open(&(manual_options){.plain = true});
  quay_buffer *b = pattern_buffer(a, 15, 8);
  unsigned char bytes[15];
  MUST(quay_buffer_copy_out(b, bytes, 15));
  cr_assert_eq(atomic_load(&manual.copy_out), 0);
  quay_device_mark_lost(quay_allocator_device(a), 7, "GONE", "fell off the bus");
  MUST_FAIL(quay_buffer_copy_out(b, bytes, 15), DEVICE_LOST);
  quay_device_advance_generation(quay_allocator_device(a));
  MUST_FAIL(quay_buffer_copy_out(b, bytes, 15), STALE);
  quay_buffer_release(b);
  quay_allocator_release(a);
}

Test(buffer, every_call_after_a_loss_gives_the_first_message) {
  quay_allocator *a = manual_open(&(manual_options){.host_accessible = true});
  quay_buffer *b = pattern_buffer(a, 15, 8), *lazy = lazy_bytes(a, 15), *made = NULL;
  unsigned char bytes[15];
  void *pointer = NULL;
  quay_device_mark_lost(quay_allocator_device(a), 7, "GONE", "fell off the bus");
  quay_device_mark_lost(quay_allocator_device(a), 8, "LATER", "a later message");
#define LOST(expression)              \
  MUST_FAIL(expression, DEVICE_LOST); \
  cr_assert_not_null(strstr(quay_last_error()->message, "fell off the bus"))
  LOST(quay_buffer_check(b));
  LOST(quay_buffer_copy_out(b, bytes, 15));
  LOST(quay_buffer_copy_in(b, bytes, 15));
  LOST(quay_buffer_copy_from(b, b));
  LOST(quay_buffer_fill(b, "a", 1));
  LOST(quay_buffer_host_bytes_mut(b, &pointer, NULL));
  LOST(quay_buffer_synchronize(b));
  LOST(quay_buffer_seal(b));
  LOST(quay_buffer_ensure_allocated(lazy));
  LOST(quay_buffer_create(a, QUAY_U8, 2, shape_3x5, NULL, &made));
  quay_buffer_release(b);
  quay_buffer_release(lazy);
  quay_allocator_release(a);
}

Test(buffer, shutdown_is_busy_while_a_buffer_lives) {
  quay_buffer *b = lazy_bytes(NULL, 5);
  MUST_FAIL(quay_shutdown(), BUSY);
  quay_buffer_release(b);
  MUST(quay_shutdown());
}

Test(buffer, the_pointers_of_a_raw_buffer_are_refused_once_its_device_is_lost) {
  quay_allocator *a = manual_open(&(manual_options){.plain = true, .kind = QUAY_MEMORY_PAGEABLE});
  quay_raw_buffer raw;
  void *pointer = &raw;
  uint64_t address = 1;
  MUST(quay_allocator_alloc(a, 100, NULL, &raw));
  MUST(quay_raw_buffer_host_pointer(&raw, &pointer));
  quay_device_mark_lost(quay_allocator_device(a), 0, NULL, "gone");
  MUST_FAIL(quay_raw_buffer_host_pointer(&raw, &pointer), DEVICE_LOST);
  cr_expect_null(pointer);
  MUST_FAIL(quay_raw_buffer_address(&raw, &address), DEVICE_LOST);
  cr_expect_eq(address, 0);
  quay_raw_buffer_free(&raw);
  quay_allocator_release(a);
}
