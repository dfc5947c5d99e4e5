/* Streams that capture a graph, on the simulated driver, which spoils a capture where a driver
 * would: Quay refuses to take part, and its other calls do no harm. */
#include <pthread.h>

#include "cuda_fixture.h"

enum {
  CAPTURE_GLOBAL = 0, /* CU_STREAM_CAPTURE_MODE_GLOBAL ... */
  CAPTURE_THREAD_LOCAL = 1,
  SIZE = 100000,
};

TestSuite(cuda_capture, .init = setup, .fini = teardown);

/* A stream of Quay's on which a capture is under way. */
typedef struct capture {
  quay_stream *stream;
  void *native;
} capture;

static capture begin_capture(quay_allocator *allocator, int mode) {
  capture begun = {.stream = NULL};
  CHECK_OK(quay_stream_create(quay_allocator_device(allocator), NULL, &begun.stream));
  begun.native = (void *)(uintptr_t)quay_cuda_stream(begun.stream);
  void *context = NULL;
  cr_assert_eq(raw.retain(&context, 0), 0);
  cr_assert_eq(raw.ctx_push(context), 0);
  cr_assert_eq(raw.begin_capture(begun.native, mode), 0);
  return begun;
}

/* Nothing has spoiled it. */
static void end_capture(capture *ended) {
  void *graph = NULL, *context = NULL;
  cr_assert_eq(raw.end_capture(ended->native, &graph), 0, "the capture was spoiled");
  cr_assert_not_null(graph);
  cr_assert_eq(raw.graph_destroy(graph), 0);
  cr_assert_eq(raw.ctx_pop(&context), 0);
  cr_assert_eq(raw.release(0), 0);
  quay_stream_release(ended->stream);
}

static uint64_t exchanges(void) {
  return raw.control->calls("cuThreadExchangeStreamCaptureMode");
}

#define CHECK_CAPTURING(expression)                     \
  do {                                                  \
    CHECK_FAILS((expression), QUAY_STATUS_UNSUPPORTED); \
    CHECK_MESSAGE("capturing a graph");                 \
  } while (0)

Test(cuda_capture, what_quay_would_submit_or_record_is_refused_and_the_capture_stays_whole) {
  quay_allocator *allocator = open_spec("cuda:0"), *pinned = open_spec("cuda:0,memory=pinned");
  quay_buffer *buffer = make_buffer(allocator, SIZE, NULL),
              *other = make_buffer(allocator, SIZE, NULL);
  quay_buffer *host = make_buffer(pinned, SIZE, NULL), *lazy = NULL;
  CHECK_OK(quay_buffer_create_lazy(allocator, QUAY_U8, 1, (int64_t[]){SIZE}, NULL, &lazy));
  quay_stream *second = NULL;
  CHECK_OK(quay_stream_create(quay_allocator_device(allocator), NULL, &second));
  quay_event *event = NULL, *recorded = NULL;
  CHECK_OK(quay_event_record(second, &recorded));
  capture of = begin_capture(allocator, CAPTURE_GLOBAL);
  const quay_copy_options on_stream = {.stream = of.stream};
  const quay_alloc_options in_order = {.stream = of.stream};
  const quay_dlpack_export_options for_stream = {.stream = of.stream};
  const quay_use use = {buffer, QUAY_READ_WRITE};
  quay_access access;
  quay_raw_buffer block;
  quay_dl_managed_tensor_versioned *tensor = NULL;
  CHECK_CAPTURING(quay_access_begin(of.stream, &use, 1, &access));
  CHECK_CAPTURING(quay_buffer_copy_region(buffer, 0, other, 0, SIZE, &on_stream));
  CHECK_CAPTURING(quay_buffer_copy_region(buffer, 0, host, 0, SIZE, &on_stream));
  CHECK_CAPTURING(quay_buffer_copy_region(host, 0, buffer, 0, SIZE, &on_stream));
  CHECK_CAPTURING(quay_buffer_copy_region(lazy, 0, buffer, 0, SIZE, &on_stream));
  const quay_copy_pair pairs[] = {{buffer, 0, other, 0, SIZE}, {lazy, 0, buffer, 0, SIZE}};
  CHECK_CAPTURING(quay_copy_many(pairs, 2, &on_stream));
  cr_assert_not(quay_buffer_is_allocated(lazy));
  CHECK_CAPTURING(quay_buffer_fill_on(buffer, "x", 1, of.stream));
  CHECK_CAPTURING(quay_allocator_alloc(allocator, 10, &in_order, &block));
  CHECK_CAPTURING(quay_dlpack_export(buffer, &for_stream, &tensor));
  CHECK_CAPTURING(quay_event_record(of.stream, &event));
  CHECK_CAPTURING(quay_stream_wait(of.stream, recorded));
  CHECK_CAPTURING(quay_stream_synchronize(of.stream));
  end_capture(&of);
  quay_event_release(recorded);
  quay_stream_release(second);
  quay_buffer_release(buffer);
  quay_buffer_release(other);
  quay_buffer_release(host);
  quay_buffer_release(lazy);
  quay_allocator_release(allocator);
  quay_allocator_release(pinned);
}

/* Calls of the driver for 20 pairs of allocation and free, the first of which is not counted. */
static uint64_t calls_of_pairs(quay_allocator *pool, quay_stream *stream, uint64_t size) {
  const quay_alloc_options in_order = {.stream = stream};
  uint64_t before = 0;
  for (int i = 0; i < 21; i++) {
    quay_raw_buffer block;
    CHECK_OK(quay_allocator_alloc(pool, size, &in_order, &block));
    quay_raw_buffer_free(&block);
    if (i == 0)
      before = raw.control->calls(NULL);
  }
  return raw.control->calls(NULL) - before;
}

Test(cuda_capture, a_pool_calls_no_driver_for_a_stream_whose_handle_nobody_has_had) {
  quay_allocator *pool = open_spec("pool+cuda:0");
  quay_stream *stream = NULL;
  CHECK_OK(quay_stream_create(quay_allocator_device(pool), NULL, &stream));
  cr_assert_eq(calls_of_pairs(pool, stream, 3000), 0);
  cr_assert_eq(calls_of_pairs(pool, stream, 3000000), 0);
  cr_assert_neq(quay_stream_native(stream), 0);
  cr_assert_geq(calls_of_pairs(pool, stream, 3000000), 20, "now it may capture");
  quay_stream_release(stream);
  quay_allocator_release(pool);
}

/* Blocks of both sizes are there already: the pool itself would call nothing. */
static void check_pool_refuses(quay_allocator *pool, quay_stream *stream) {
  quay_raw_buffer block;
  CHECK_CAPTURING(
      quay_allocator_alloc(pool, 3000, &(quay_alloc_options){.stream = stream}, &block));
  CHECK_CAPTURING(
      quay_allocator_alloc(pool, 3000000, &(quay_alloc_options){.stream = stream}, &block));
}

Test(cuda_capture, a_pool_gives_a_stream_that_captures_nothing) {
  quay_allocator *pool = open_spec("pool+cuda:0");
  (void)calls_of_pairs(pool, NULL, 3000);
  (void)calls_of_pairs(pool, NULL, 3000000);
  quay_stream *own = NULL, *wrapped = NULL;
  CHECK_OK(quay_stream_create(quay_allocator_device(pool), NULL, &own));
  void *const native = (void *)(uintptr_t)quay_stream_native(own), *graph = NULL, *context = NULL;
  CHECK_OK(quay_stream_wrap(quay_allocator_device(pool), (uint64_t)(uintptr_t)native, &wrapped));
  cr_assert_eq(raw.retain(&context, 0), 0);
  cr_assert_eq(raw.ctx_push(context), 0);
  cr_assert_eq(raw.begin_capture(native, CAPTURE_GLOBAL), 0);
  check_pool_refuses(pool, own);
  check_pool_refuses(pool, wrapped);
  cr_assert_eq(raw.end_capture(native, &graph), 0);
  cr_assert_eq(raw.graph_destroy(graph), 0);
  cr_assert_eq(raw.ctx_pop(&context), 0);
  cr_assert_eq(raw.release(0), 0);
  quay_stream_release(wrapped);
  quay_stream_release(own);
  quay_allocator_release(pool);
}

Test(cuda_capture, an_untracked_access_gives_the_pointers_that_the_graph_is_made_of) {
  quay_allocator *allocator = open_spec("cuda:0");
  quay_buffer *buffer = make_buffer(allocator, SIZE, NULL);
  uint64_t address;
  CHECK_OK(quay_cuda_pointer(buffer, &address));
  capture of = begin_capture(allocator, CAPTURE_GLOBAL);
  quay_access access;
  CHECK_OK(quay_access_begin_untracked(of.stream, &(quay_use){buffer, QUAY_WRITE}, 1, &access));
  cr_assert_eq(access.pointers[0], address);
  int (*fill)(uint64_t, unsigned char, size_t, void *);
  *(void **)(void *)&fill = dlsym(raw.control->library, "cuMemsetD8Async");
  cr_assert_eq(fill(access.pointers[0], 7, SIZE, of.native), 0);
  CHECK_OK(quay_access_end(&access));
  end_capture(&of);
  /* What was captured has not run, and nothing waits for it. */
  CHECK_OK(quay_buffer_synchronize(buffer));
  quay_buffer_release(buffer);
  quay_allocator_release(allocator);
}

/* Everything that has nothing to do with the stream that captures. */
static void use_the_rest(quay_allocator *allocator) {
  quay_test_block bytes = quay_test_block_make(SIZE, 1, 31);
  quay_allocator *pinned = open_spec("cuda:0,memory=pinned"), *peer = open_spec("cuda:1");
  quay_stream *stream = NULL;
  CHECK_OK(quay_stream_create(quay_allocator_device(allocator), NULL, &stream));
  const quay_alloc_options kinds[] = {{.alignment = 0},
                                      {.stream = stream},
                                      {.mirror = true},
                                      {.exportable = true},
                                      {.zeroed = true}};
  quay_buffer *host = make_buffer(pinned, SIZE, NULL), *far = make_buffer(peer, SIZE, NULL);
  CHECK_OK(quay_buffer_copy_in(host, bytes.data, SIZE));
  const quay_copy_options on_stream = {.stream = stream};
  for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
    quay_buffer *buffer = make_buffer(allocator, SIZE, &kinds[i]);
    quay_access access;
    CHECK_OK(quay_buffer_copy_region(buffer, 0, host, 0, SIZE, &on_stream));
    CHECK_OK(quay_access_begin(stream, &(quay_use){buffer, QUAY_READ_WRITE}, 1, &access));
    CHECK_OK(quay_access_end(&access));
    check_bytes(buffer, bytes.data);
    CHECK_OK(quay_buffer_copy_from(far, buffer));
    CHECK_OK(quay_buffer_fill(buffer, "ab", 2));
    CHECK_OK(quay_buffer_copy_region(buffer, 1, buffer, 0, 1000, NULL));
    CHECK_OK(quay_buffer_copy_in(buffer, bytes.data, SIZE));
    check_bytes(buffer, bytes.data);
    quay_buffer_release(buffer);
  }
  check_bytes(far, bytes.data);
  quay_memory_info info;
  CHECK_OK(quay_device_memory_info(quay_allocator_device(allocator), &info));
  quay_health health;
  CHECK_OK(quay_cuda_health(quay_allocator_device(allocator), &health));
  cr_assert_eq(health, QUAY_HEALTH_OK);
  CHECK_OK(quay_stream_synchronize(stream));
  CHECK_OK(quay_collect(NULL));
  CHECK_OK(quay_allocator_trim(allocator, NULL));
  quay_buffer_release(host);
  quay_buffer_release(far);
  quay_stream_release(stream);
  quay_allocator_release(pinned);
  quay_allocator_release(peer);
  quay_test_block_free(&bytes);
}

Test(cuda_capture, the_thread_that_captures_goes_on_with_everything_else) {
  quay_allocator *allocator = open_spec("cuda:0");
  capture of = begin_capture(allocator, CAPTURE_GLOBAL);
  use_the_rest(allocator);
  end_capture(&of);
  quay_allocator_release(allocator);
}

static void *use_the_rest_in_thread(void *allocator) {
  use_the_rest(allocator);
  return allocator;
}

Test(cuda_capture, another_thread_goes_on_with_everything_else) {
  quay_allocator *allocator = open_spec("cuda:0");
  capture of = begin_capture(allocator, CAPTURE_GLOBAL);
  pthread_t thread;
  void *done = NULL;
  cr_assert_eq(pthread_create(&thread, NULL, use_the_rest_in_thread, allocator), 0);
  cr_assert_eq(pthread_join(thread, &done), 0);
  cr_assert_eq(done, allocator);
  end_capture(&of);
  quay_allocator_release(allocator);
}

Test(cuda_capture, the_threads_own_mode_is_as_it_was_after_every_call) {
  quay_allocator *allocator = open_spec("cuda:0");
  int (*exchange)(int *);
  *(void **)(void *)&exchange = dlsym(raw.control->library, "cuThreadExchangeStreamCaptureMode");
  int mode = CAPTURE_THREAD_LOCAL;
  cr_assert_eq(exchange(&mode), 0);
  use_the_rest(allocator);
  quay_raw_buffer block;
  CHECK_FAILS(quay_allocator_alloc(allocator, UINT64_C(1) << 50, NULL, &block),
              QUAY_STATUS_OUT_OF_DEVICE_MEMORY);
  mode = CAPTURE_GLOBAL;
  cr_assert_eq(exchange(&mode), 0);
  cr_assert_eq(mode, CAPTURE_THREAD_LOCAL);
  quay_allocator_release(allocator);
}

Test(cuda_capture, submitting_and_recording_change_no_mode) {
  quay_allocator *allocator = open_spec("cuda:0"), *pinned = open_spec("cuda:0,memory=pinned");
  quay_stream *stream = NULL, *second = NULL;
  CHECK_OK(quay_stream_create(quay_allocator_device(allocator), NULL, &stream));
  CHECK_OK(quay_stream_create(quay_allocator_device(allocator), NULL, &second));
  quay_buffer *a = make_buffer(allocator, SIZE, NULL), *b = make_buffer(allocator, SIZE, NULL);
  quay_buffer *host = make_buffer(pinned, SIZE, NULL);
  CHECK_OK(quay_buffer_fill(host, "xyz!", 4));
  const quay_copy_options on_stream = {.stream = stream};
  const quay_alloc_options in_order = {.stream = stream};
  const uint64_t before = exchanges();
  quay_access access;
  CHECK_OK(quay_buffer_fill_on(a, "x", 1, stream));
  CHECK_OK(quay_buffer_copy_region(b, 0, a, 0, SIZE, &on_stream));
  CHECK_OK(quay_buffer_copy_region(a, 0, host, 0, SIZE, &on_stream));
  CHECK_OK(quay_buffer_copy_region(host, 0, b, 0, SIZE, &on_stream));
  CHECK_OK(quay_access_begin(second, &(quay_use){a, QUAY_WRITE}, 1, &access));
  CHECK_OK(quay_access_end(&access));
  cr_assert_eq(exchanges(), before);
  quay_raw_buffer block;
  CHECK_OK(quay_allocator_alloc(allocator, SIZE, &in_order, &block));
  quay_raw_buffer_free(&block);
  cr_assert_eq(exchanges(), before);
  /* What waits does. */
  CHECK_OK(quay_stream_synchronize(stream));
  cr_assert_eq(exchanges(), before + 2);
  quay_buffer_release(a);
  quay_buffer_release(b);
  quay_buffer_release(host);
  quay_stream_release(stream);
  quay_stream_release(second);
  quay_allocator_release(allocator);
  quay_allocator_release(pinned);
}
