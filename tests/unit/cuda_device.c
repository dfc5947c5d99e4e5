/* A CUDA device of the simulated driver: what it is asked when it is opened, and a reset by another
 * library. */
#include "cuda_fixture.h"
#include "support/log.h"

TestSuite(cuda_device, .init = setup, .fini = teardown);

enum {
  SIZE = 5000,
  ABILITIES = 5
};

Test(cuda_device, a_question_that_fails_at_the_start_is_an_error_and_takes_no_ability_away) {
  for (uint64_t nth = 1; nth <= ABILITIES; nth++) {
    quay_allocator *allocator = NULL;
    raw.control->fail("cuDeviceGetAttribute", nth, 999);
    CHECK_FAILS(quay_allocator_open("cuda:0,memory=managed", &allocator), QUAY_STATUS_UNAVAILABLE);
    CHECK_MESSAGE("it does not tell what it is able to");
    cr_assert_eq(quay_last_error()->native_code, 999);
    allocator = open_spec("cuda:0,memory=managed"); /* the next call asks again */
    quay_allocator_release(allocator);
    CHECK_OK(quay_shutdown());
  }
}

/* As drivers do that are older than the question. */
Test(cuda_device, an_ability_that_the_driver_does_not_know_is_one_that_the_device_lacks) {
  quay_allocator *allocator = NULL;
  raw.control->fail("cuDeviceGetAttribute", 2, 1);
  CHECK_FAILS(quay_allocator_open("cuda:0,memory=managed", &allocator), QUAY_STATUS_UNSUPPORTED);
  allocator = open_spec("cuda:0");
  quay_allocator_release(allocator);
}

Test(cuda_device, an_opening_that_fails_says_that_the_context_is_still_held) {
  quay_allocator *allocator = NULL;
  raw.control->fail("cuStreamCreateWithPriority", 1, 999);
  raw.control->fail("cuDevicePrimaryCtxRelease_v2", 1, 999);
  CHECK_FAILS(quay_allocator_open("cuda:0", &allocator), QUAY_STATUS_UNAVAILABLE);
  CHECK_MESSAGE("nor can its context be given back");
  cr_assert_eq(raw.release(0), 0); /* as the test can */
  raw.control->fail("cuStreamCreateWithPriority", 1, 999);
  CHECK_FAILS(quay_allocator_open("cuda:0", &allocator), QUAY_STATUS_UNAVAILABLE);
  cr_assert_null(strstr(quay_last_error()->message, "its context"));
}

/* What cudaDeviceReset() does. */
static void reset_as_another_library(void) {
  int (*reset)(int device);
  *(void **)(void *)&reset = dlsym(raw.control->library, "cuDevicePrimaryCtxReset_v2");
  cr_assert_eq(reset(0), 0);
}

/* And then goes on: its context is as good as ever, but all that was in it is gone. */
static void *retain_as_another_library(void) {
  int (*retain)(void **out_context, int device);
  void *context = NULL;
  *(void **)(void *)&retain = dlsym(raw.control->library, "cuDevicePrimaryCtxRetain");
  cr_assert_eq(retain(&context, 0), 0);
  return context;
}

static void check_round_trip(quay_allocator *allocator) {
  quay_test_block bytes = quay_test_block_make(SIZE, 1, 31);
  quay_buffer *buffer = make_buffer(allocator, SIZE, NULL);
  CHECK_OK(quay_buffer_copy_in(buffer, bytes.data, SIZE));
  check_bytes(buffer, bytes.data);
  quay_buffer_release(buffer);
  quay_test_block_free(&bytes);
}

Test(cuda_device, after_another_librarys_reset_every_call_names_the_cure) {
  quay_allocator *allocator = open_spec("cuda:0");
  quay_buffer *buffer = make_buffer(allocator, SIZE, NULL);
  unsigned char bytes[SIZE];
  memset(bytes, 0x2f, sizeof bytes);
  reset_as_another_library();
  CHECK_FAILS(quay_buffer_copy_in(buffer, bytes, SIZE), QUAY_STATUS_STALE);
  CHECK_MESSAGE("cuda:0");
  CHECK_MESSAGE("another library has reset the device");
  CHECK_MESSAGE("quay_device_reset()");
  quay_raw_buffer none;
  CHECK_FAILS(quay_allocator_alloc(allocator, SIZE, NULL, &none), QUAY_STATUS_STALE);
  CHECK_OK(quay_device_reset(quay_allocator_device(allocator)));
  quay_buffer_release(buffer);
  quay_allocator_release(allocator);
}

/* The driver crashes where a stream of what was reset is used; so does what stands for it here. */
static void check_that_streams_are_not_touched(bool made_anew) {
  quay_allocator *allocator = open_spec("cuda:0"), *pool = open_spec("pool+cuda:0");
  quay_device *const device = quay_allocator_device(allocator);
  quay_stream *own = NULL, *shown = NULL;
  CHECK_OK(quay_stream_create(device, NULL, &own));
  CHECK_OK(quay_stream_create(device, NULL, &shown));
  cr_assert_neq(quay_stream_native(shown), 0);
  quay_buffer *buffer = make_buffer(allocator, SIZE, NULL);
  quay_event *event = NULL;
  CHECK_OK(quay_event_record(own, &event));
  reset_as_another_library();
  if (made_anew)
    (void)retain_as_another_library();
  quay_stream *const streams[] = {own, shown};
  for (size_t i = 0; i < 2; i++) {
    const quay_alloc_options options = {.stream = streams[i]};
    quay_raw_buffer none;
    CHECK_FAILS(quay_allocator_alloc(allocator, SIZE, &options, &none), QUAY_STATUS_STALE);
    CHECK_FAILS(quay_buffer_fill_on(buffer, "a", 1, streams[i]), QUAY_STATUS_STALE);
    CHECK_FAILS(quay_stream_synchronize(streams[i]), QUAY_STATUS_STALE);
    quay_event *another = NULL;
    CHECK_FAILS(quay_event_record(streams[i], &another), QUAY_STATUS_STALE);
  }
  const quay_alloc_options options = {.stream = shown};
  quay_raw_buffer none;
  CHECK_FAILS(quay_allocator_alloc(pool, SIZE, &options, &none), QUAY_STATUS_STALE);
  bool done = false;
  CHECK_FAILS(quay_event_query(event, &done), QUAY_STATUS_STALE);
  quay_event_release(event);
  quay_stream_release(own);
  quay_stream_release(shown);
  CHECK_OK(quay_device_reset(device));
  check_round_trip(allocator);
  check_round_trip(pool);
  quay_buffer_release(buffer);
  quay_allocator_release(pool);
  quay_allocator_release(allocator);
  if (made_anew)
    cr_assert_eq(raw.release(0), 0);
}

Test(cuda_device, after_another_librarys_reset_streams_and_events_are_not_touched) {
  check_that_streams_are_not_touched(false);
}

Test(cuda_device, after_another_librarys_reset_streams_are_not_touched_though_it_goes_on) {
  check_that_streams_are_not_touched(true);
}

Test(cuda_device, after_another_librarys_reset_failing_copies_do_not_make_the_device_a_lost_one) {
  quay_allocator *allocator = open_spec("cuda:0");
  quay_device *const device = quay_allocator_device(allocator);
  enum {
    LARGE = 8 << 20 /* on streams that one copy leaves to the next */
  };
  quay_test_block bytes = quay_test_block_make(LARGE, 1, 31);
  quay_buffer *buffer = make_buffer(allocator, LARGE, NULL);
  CHECK_OK(quay_buffer_copy_in(buffer, bytes.data, LARGE));
  check_round_trip(allocator);
  reset_as_another_library();
  CHECK_FAILS(quay_buffer_copy_in(buffer, bytes.data, LARGE), QUAY_STATUS_STALE);
  CHECK_FAILS(quay_buffer_copy_out(buffer, bytes.data, LARGE), QUAY_STATUS_STALE);
  cr_assert_eq(quay_device_health(device), QUAY_HEALTH_OK);
  CHECK_OK(quay_device_reset(device));
  check_round_trip(allocator);
  quay_buffer_release(buffer);
  quay_allocator_release(allocator);
  quay_test_block_free(&bytes);
}

Test(cuda_device, a_reset_after_another_librarys_makes_the_device_usable_and_old_memory_stale) {
  quay_allocator *allocator = open_spec("cuda:0"), *other = open_spec("cuda:1");
  quay_device *const device = quay_allocator_device(allocator);
  quay_buffer *buffer = make_buffer(allocator, SIZE, NULL);
  quay_buffer *freed = make_buffer(allocator, SIZE, NULL);
  check_round_trip(allocator); /* leaves streams, events and slots for the next call */
  quay_buffer_release(freed);
  reset_as_another_library();
  CHECK_OK(quay_device_reset(device));
  cr_assert_eq(quay_device_generation(device), 2);
  CHECK_FAILS(quay_buffer_check(buffer), QUAY_STATUS_STALE);
  check_round_trip(allocator);
  check_round_trip(other);
  quay_buffer *there = make_buffer(allocator, SIZE, NULL), *here = make_buffer(other, SIZE, NULL);
  CHECK_OK(quay_buffer_fill(there, "a", 1));
  CHECK_OK(quay_buffer_copy_from(here, there));
  quay_buffer_release(here);
  quay_buffer_release(there);
  quay_buffer_release(buffer);
  quay_allocator_release(other);
  quay_allocator_release(allocator);
}
