/* Streams of the program's that Quay wraps: the legacy default stream, a thread's own, blocking and
 * non-blocking ones; and capturing ones, which it refuses. */
#include <pthread.h>

#include "gpu/gpu.h"

GPU_SUITE(gpu_streams);

static quay_stream *wrap(CUstream native) {
  quay_stream *stream = NULL;
  CHECK_OK(quay_cuda_stream_wrap(0, (uint64_t)(uintptr_t)native, &stream));
  return stream;
}

/* All hazards between kernels on the stream, kernels on a stream of Quay's, and Quay's copies. */
static void check_stream(CUstream native) {
  quay_allocator *const gpu = gpu_open("cuda:0");
  quay_stream *const other = gpu_stream(gpu), *const wrapped = wrap(native);
  quay_buffer *const a = gpu_buffer(gpu, GPU_WORDS, GPU_OLD, NULL);
  quay_buffer *const b = gpu_buffer(gpu, GPU_WORDS, GPU_ODD, NULL);
  gpu_write(wrapped, a, GPU_NEW, GPU_ASLEEP);
  gpu_expect(a, GPU_NEW);
  gpu_write(wrapped, a, GPU_OLD, GPU_ASLEEP);
  gpu_read(other, a, b, GPU_ASLEEP);
  gpu_write(wrapped, a, GPU_NEW, GPU_AT_ONCE);
  gpu_expect(b, GPU_OLD);
  gpu_expect(a, GPU_NEW);
  gpu_write(other, b, GPU_ODD, GPU_ASLEEP);
  gpu_read(wrapped, b, a, GPU_AT_ONCE);
  gpu_expect(a, GPU_ODD);
  CHECK_OK(quay_stream_synchronize(wrapped));
  quay_stream_release(wrapped);
  quay_buffer_release(a);
  quay_buffer_release(b);
}

Test(gpu_streams, the_legacy_stream_is_in_order_with_the_others) {
  gpu_begin();
  check_stream(NULL);
}

Test(gpu_streams, the_legacy_stream_by_its_own_handle_is_in_order_with_the_others) {
  gpu_begin();
  check_stream(CU_STREAM_LEGACY);
}

Test(gpu_streams, the_threads_default_stream_is_in_order_with_the_others) {
  gpu_begin();
  check_stream(CU_STREAM_PER_THREAD);
}

static void check_own_stream(unsigned flags) {
  CUstream native = NULL;
  CU_OK(gpu_enter(0));
  CU_OK(cu->cuStreamCreate(&native, flags));
  CU_OK(gpu_leave());
  check_stream(native);
  CU_OK(gpu_enter(0));
  CU_OK(cu->cuStreamDestroy_v2(native));
  CU_OK(gpu_leave());
}

Test(gpu_streams, a_blocking_stream_of_the_programs_is_in_order_with_the_others) {
  gpu_begin();
  check_own_stream(0);
}

Test(gpu_streams, a_non_blocking_stream_of_the_programs_is_in_order_with_the_others) {
  gpu_begin();
  check_own_stream(CU_STREAM_NON_BLOCKING);
}

static void *begin_in_a_thread(void *uses) {
  const quay_use *const use = uses;
  quay_stream *stream = NULL;
  CHECK_OK(quay_buffer_last_write_stream(use->buffer, &stream));
  quay_access access;
  const quay_status status = quay_access_begin(stream, use, 1, &access);
  quay_stream_release(stream);
  return (void *)(uintptr_t)status;
}

Test(gpu_streams, a_wrapper_of_a_threads_default_stream_is_refused_in_another_thread) {
  gpu_begin();
  quay_allocator *const gpu = gpu_open("cuda:0");
  quay_stream *const wrapped = wrap(CU_STREAM_PER_THREAD);
  quay_buffer *const buffer = gpu_buffer(gpu, 100, GPU_OLD, NULL);
  gpu_write(wrapped, buffer, GPU_NEW, GPU_AT_ONCE);
  quay_use use = {buffer, QUAY_READ_WRITE};
  pthread_t thread;
  void *status = NULL;
  cr_assert_eq(pthread_create(&thread, NULL, begin_in_a_thread, &use), 0);
  cr_assert_eq(pthread_join(thread, &status), 0);
  cr_assert_eq((quay_status)(uintptr_t)status, QUAY_STATUS_INVALID_ARGUMENT);
  gpu_expect(buffer, GPU_NEW);
  quay_stream_release(wrapped);
  quay_buffer_release(buffer);
}

/* Another thread waits for work on this thread's stream by its events. */
static void *expect_in_a_thread(void *buffer) {
  gpu_expect(buffer, GPU_NEW);
  return NULL;
}

Test(gpu_streams, another_thread_waits_for_work_on_a_threads_default_stream) {
  gpu_begin();
  quay_allocator *const gpu = gpu_open("cuda:0");
  quay_stream *const wrapped = wrap(CU_STREAM_PER_THREAD);
  quay_buffer *const buffer = gpu_buffer(gpu, GPU_WORDS, GPU_OLD, NULL);
  gpu_write(wrapped, buffer, GPU_NEW, GPU_ASLEEP);
  pthread_t thread;
  cr_assert_eq(pthread_create(&thread, NULL, expect_in_a_thread, buffer), 0);
  cr_assert_eq(pthread_join(thread, NULL), 0);
  quay_stream_release(wrapped);
  quay_buffer_release(buffer);
}

Test(gpu_streams, quays_copies_do_not_wait_for_the_legacy_stream) {
  gpu_begin();
  quay_allocator *const gpu = gpu_open("cuda:0");
  quay_buffer *const buffer = gpu_buffer(gpu, GPU_WORDS, GPU_OLD, NULL);
  quay_stream *const stream = gpu_stream(gpu);
  gpu_keep_busy(0, CU_STREAM_LEGACY, 0);
  gpu_expect(buffer, GPU_OLD);
  gpu_write(stream, buffer, GPU_NEW, GPU_AT_ONCE);
  gpu_expect(buffer, GPU_NEW);
  gpu_gate_open(0);
  quay_buffer_release(buffer);
}

Test(gpu_streams, the_last_writing_stream_is_told) {
  gpu_begin();
  quay_allocator *const gpu = gpu_open("cuda:0");
  quay_stream *const stream = gpu_stream(gpu);
  quay_buffer *const buffer = gpu_buffer(gpu, 100, GPU_OLD, NULL);
  gpu_write(stream, buffer, GPU_NEW, 0);
  quay_stream *last = NULL;
  CHECK_OK(quay_buffer_last_write_stream(buffer, &last));
  cr_assert_eq(last, stream);
  gpu_gate_open(0);
  quay_stream_release(last);
  quay_buffer_release(buffer);
}

/* Capture. */

typedef struct capture {
  quay_allocator *gpu;
  CUstream native;
  quay_stream *wrapped;
  quay_buffer *buffer;
  CUdeviceptr target; /* of the kernel that is captured, in memory of the program's */
} capture;

static capture begin_capture(void) {
  gpu_begin();
  capture of = {.gpu = gpu_open("cuda:0")};
  CU_OK(gpu_enter(0));
  CU_OK(cu->cuStreamCreate(&of.native, CU_STREAM_NON_BLOCKING));
  CU_OK(cu->cuMemAlloc_v2(&of.target, GPU_WORDS * 4));
  of.wrapped = wrap(of.native);
  of.buffer = gpu_buffer(of.gpu, GPU_WORDS, GPU_OLD, NULL);
  CU_OK(cu->cuStreamBeginCapture_v2(of.native, CU_STREAM_CAPTURE_MODE_GLOBAL));
  uint64_t to = of.target, words = GPU_WORDS;
  uint32_t seed = GPU_NEW;
  CU_OK(gpu_launch(0, GPU_PATTERN, of.native, (void *[]){&to, &words, &seed}, words));
  return of;
}

/* The stream can be used again. */
static void close_capture(capture *of) {
  gpu_write(of->wrapped, of->buffer, GPU_NEW, GPU_AT_ONCE);
  gpu_expect(of->buffer, GPU_NEW);
  quay_stream_release(of->wrapped);
  quay_buffer_release(of->buffer);
  CU_OK(cu->cuStreamDestroy_v2(of->native));
  CU_OK(cu->cuMemFree_v2(of->target));
  CU_OK(gpu_leave());
}

/* What was captured can be run, where the driver can. */
static void end_capture(capture *of) {
  CUgraph graph = NULL;
  CU_OK(cu->cuStreamEndCapture(of->native, &graph));
  cr_assert_not_null(graph, "the capture was broken");
  if (cu->cuGraphInstantiateWithFlags != NULL && cu->cuGraphLaunch != NULL) {
    CUgraphExec exec = NULL;
    CU_OK(cu->cuGraphInstantiateWithFlags(&exec, graph, 0));
    CU_OK(cu->cuGraphLaunch(exec, of->native));
    CU_OK(cu->cuStreamSynchronize(of->native));
    CU_OK(cu->cuGraphExecDestroy(exec));
    static uint32_t found[GPU_WORDS];
    CU_OK(cu->cuMemcpyDtoH_v2(found, of->target, sizeof found));
    for (uint64_t i = 0; i < GPU_WORDS; i++)
      cr_assert_eq(found[i], gpu_word(i, GPU_NEW), "word %llu", (unsigned long long)i);
  }
  CU_OK(cu->cuGraphDestroy(graph));
  gpu_expect(of->buffer, GPU_OLD);
  close_capture(of);
}

Test(gpu_streams, an_access_on_a_capturing_stream_is_refused_and_the_capture_stays_intact) {
  capture of = begin_capture();
  const quay_use use = {of.buffer, QUAY_WRITE};
  quay_access access;
  CHECK_FAILS(quay_access_begin(of.wrapped, &use, 1, &access), QUAY_STATUS_UNSUPPORTED);
  end_capture(&of);
}

Test(gpu_streams, copies_and_fills_on_a_capturing_stream_are_refused_and_the_capture_stays_intact) {
  capture of = begin_capture();
  const quay_copy_options options = {.stream = of.wrapped};
  const unsigned char pattern = 0x77;
  CHECK_FAILS(quay_buffer_copy_region(of.buffer, 0, of.buffer, 400, 400, &options),
              QUAY_STATUS_UNSUPPORTED);
  CHECK_FAILS(quay_buffer_fill_on(of.buffer, &pattern, 1, of.wrapped), QUAY_STATUS_UNSUPPORTED);
  end_capture(&of);
}

Test(gpu_streams, memory_in_the_order_of_a_capturing_stream_is_refused_and_the_capture_intact) {
  capture of = begin_capture();
  const quay_alloc_options options = {.stream = of.wrapped};
  quay_raw_buffer raw;
  CHECK_FAILS(quay_allocator_alloc(of.gpu, 1000, &options, &raw), QUAY_STATUS_UNSUPPORTED);
  end_capture(&of);
}

Test(gpu_streams, waiting_for_a_capturing_stream_is_refused_and_the_capture_stays_intact) {
  capture of = begin_capture();
  quay_event *event = NULL;
  CHECK_FAILS(quay_stream_synchronize(of.wrapped), QUAY_STATUS_UNSUPPORTED);
  CHECK_FAILS(quay_event_record(of.wrapped, &event), QUAY_STATUS_UNSUPPORTED);
  end_capture(&of);
}

Test(gpu_streams, an_untracked_access_gives_addresses_for_a_graph_that_is_run_in_an_access) {
  capture of = begin_capture();
  const quay_use use = {of.buffer, QUAY_WRITE};
  quay_access access;
  CHECK_OK(quay_access_begin_untracked(of.wrapped, &use, 1, &access));
  uint64_t to = access.pointers[0], words = GPU_WORDS;
  uint32_t seed = GPU_ODD;
  CU_OK(gpu_launch(0, GPU_PATTERN, of.native, (void *[]){&to, &words, &seed}, words));
  CHECK_OK(quay_access_end(&access));
  CUgraph graph = NULL;
  CU_OK(cu->cuStreamEndCapture(of.native, &graph));
  cr_assert_not_null(graph);
  if (cu->cuGraphInstantiateWithFlags != NULL && cu->cuGraphLaunch != NULL) {
    CUgraphExec exec = NULL;
    CU_OK(cu->cuGraphInstantiateWithFlags(&exec, graph, 0));
    gpu_expect(of.buffer, GPU_OLD);
    CHECK_OK(quay_access_begin(of.wrapped, &use, 1, &access));
    gpu_keep_busy(0, of.native, GPU_ASLEEP);
    CU_OK(cu->cuGraphLaunch(exec, of.native));
    CHECK_OK(quay_access_end(&access));
    gpu_expect(of.buffer, GPU_ODD);
    CU_OK(cu->cuGraphExecDestroy(exec));
  }
  CU_OK(cu->cuGraphDestroy(graph));
  close_capture(&of);
}

/* Quay's other calls go on in the thread that captures, in the driver's strictest mode. */
Test(gpu_streams, calls_beside_a_capture_work_and_leave_it_intact) {
  capture of = begin_capture();
  quay_buffer *const other = gpu_buffer(of.gpu, GPU_WORDS, GPU_ODD, NULL);
  CHECK_OK(quay_buffer_copy_from(other, of.buffer));
  gpu_expect(other, GPU_OLD);
  quay_stream *const stream = gpu_stream(of.gpu);
  gpu_write(stream, other, GPU_NEW, GPU_AT_ONCE);
  gpu_expect(other, GPU_NEW);
  quay_buffer_release(other);
  uint64_t bytes = 0;
  CHECK_OK(quay_allocator_trim(of.gpu, &bytes));
  end_capture(&of);
}
