/* What stream capture forbids, and how that is answered. */
#include <pthread.h>

#include "fixture.h"

static CUstream capturing(CUstreamCaptureMode mode) {
  CUstream stream = non_blocking_stream();
  ok(cu.cuStreamBeginCapture_v2(stream, mode));
  return stream;
}

static void expect_end(CUstream stream, int code) {
  CUgraph graph = NULL;
  expect(cu.cuStreamEndCapture(stream, &graph), code);
  cr_assert((graph != NULL) == (code == 0));
  if (graph != NULL)
    ok(cu.cuGraphDestroy(graph));
}

Test(capture, captured_work_does_not_run) {
  start("");
  CUdeviceptr address = device_memory(64);
  CUstream stream = capturing(CU_STREAM_CAPTURE_MODE_GLOBAL);
  CUstreamCaptureStatus status;
  unsigned char byte = 0;
  ok(cu.cuMemsetD8Async(address, 0x21, 64, stream));
  ok(cu.cuStreamIsCapturing(stream, &status));
  cr_assert_eq(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  expect_end(stream, 0);
  ok(cu.cuStreamIsCapturing(stream, &status));
  cr_assert_eq(status, CU_STREAM_CAPTURE_STATUS_NONE);
  ok(cu.cuCtxSynchronize());
  cr_assert(simcuda->peek(address, &byte, 1) && byte != 0x21);
}

Test(capture, waiting_for_a_capturing_stream_invalidates) {
  start("");
  CUstream stream = capturing(CU_STREAM_CAPTURE_MODE_RELAXED);
  expect(cu.cuStreamSynchronize(stream), 900);
  expect(cu.cuStreamQuery(stream), 901);
  expect(cu.cuMemsetD8Async(device_memory(64), 1, 64, stream), 901);
  CUstreamCaptureStatus status;
  ok(cu.cuStreamIsCapturing(stream, &status));
  cr_assert_eq(status, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  expect_end(stream, 901);
}

Test(capture, an_unsafe_call_is_refused_in_global_mode) {
  start("");
  CUdeviceptr address;
  CUstream stream = capturing(CU_STREAM_CAPTURE_MODE_GLOBAL);
  expect(cu.cuMemAlloc_v2(&address, 64), 900);
  expect_end(stream, 901);
  ok(cu.cuMemAlloc_v2(&address, 64));
}

Test(capture, an_unsafe_call_is_allowed_in_relaxed_mode) {
  start("");
  CUdeviceptr address;
  CUstream stream = capturing(CU_STREAM_CAPTURE_MODE_RELAXED);
  ok(cu.cuMemAlloc_v2(&address, 64));
  expect_end(stream, 0);
}

Test(capture, a_thread_that_exchanged_its_mode_may_make_unsafe_calls) {
  start("");
  CUdeviceptr address;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  CUstream stream = capturing(CU_STREAM_CAPTURE_MODE_GLOBAL);
  ok(cu.cuThreadExchangeStreamCaptureMode(&mode));
  cr_assert_eq(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
  ok(cu.cuMemAlloc_v2(&address, 64));
  ok(cu.cuThreadExchangeStreamCaptureMode(&mode));
  cr_assert_eq(mode, CU_STREAM_CAPTURE_MODE_RELAXED);
  expect(cu.cuMemFree_v2(address), 900);
  expect_end(stream, 901);
}

typedef struct other_thread {
  CUcontext context;
  CUstream stream;
  CUresult allocated, ended;
} other_thread;

static void *allocate_and_end(void *argument) {
  other_thread *const t = argument;
  CUdeviceptr address;
  CUgraph graph;
  ok(cu.cuCtxSetCurrent(t->context));
  t->allocated = cu.cuMemAlloc_v2(&address, 64);
  t->ended = cu.cuStreamEndCapture(t->stream, &graph);
  return NULL;
}

static other_thread allocate_in_another_thread(CUstreamCaptureMode mode) {
  other_thread t = {.context = start(""), .stream = capturing(mode)};
  pthread_t thread;
  cr_assert_eq(pthread_create(&thread, NULL, allocate_and_end, &t), 0);
  pthread_join(thread, NULL);
  return t;
}

Test(capture, a_global_capture_forbids_unsafe_calls_of_other_threads) {
  const other_thread t = allocate_in_another_thread(CU_STREAM_CAPTURE_MODE_GLOBAL);
  expect(t.allocated, 900);
  expect(t.ended, 908);
}

Test(capture, a_thread_local_capture_does_not) {
  const other_thread t = allocate_in_another_thread(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  expect(t.allocated, 0);
  expect(t.ended, 908);
  expect_end(t.stream, 0);
}

Test(capture, the_legacy_stream_is_refused_while_a_blocking_stream_captures) {
  start("");
  CUstream stream;
  CUdeviceptr address = device_memory(64);
  unsigned char bytes[64];
  CUstreamCaptureStatus status;
  fill_bytes(bytes, sizeof bytes, 1);
  ok(cu.cuStreamCreate(&stream, 0));
  ok(cu.cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  /* A question about the legacy stream is refused but does no harm. */
  expect(cu.cuStreamIsCapturing(NULL, &status), 906);
  ok(cu.cuMemsetD8Async(address, 1, 64, stream));
  expect(cu.cuMemcpyHtoD_v2(address, bytes, 64), 906);
  expect_end(stream, 901);
}

Test(capture, a_non_blocking_stream_does_not_concern_the_legacy_stream) {
  start("");
  CUdeviceptr address = device_memory(64);
  unsigned char bytes[64];
  fill_bytes(bytes, sizeof bytes, 1);
  CUstream stream = capturing(CU_STREAM_CAPTURE_MODE_RELAXED);
  ok(cu.cuMemcpyHtoD_v2(address, bytes, 64));
  expect_end(stream, 0);
}

Test(capture, the_legacy_stream_cannot_capture_and_no_stream_twice) {
  start("");
  expect(cu.cuStreamBeginCapture_v2(NULL, CU_STREAM_CAPTURE_MODE_RELAXED), 900);
  CUstream stream = capturing(CU_STREAM_CAPTURE_MODE_RELAXED);
  expect(cu.cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED), 401);
  expect_end(stream, 0);
  expect_end(stream, 401);
}

typedef struct fork_of_streams {
  CUstream origin, other;
  CUevent forked, joined;
} fork_of_streams;

static fork_of_streams forked(void) {
  start("");
  fork_of_streams f = {.origin = capturing(CU_STREAM_CAPTURE_MODE_RELAXED),
                       .other = non_blocking_stream()};
  ok(cu.cuEventCreate(&f.forked, 0));
  ok(cu.cuEventCreate(&f.joined, 0));
  ok(cu.cuEventRecord(f.forked, f.origin));
  ok(cu.cuStreamWaitEvent(f.other, f.forked, 0));
  return f;
}

Test(capture, an_event_draws_another_stream_into_the_capture_which_has_to_be_joined) {
  fork_of_streams f = forked();
  ok(cu.cuMemsetD8Async(device_memory(64), 1, 64, f.other));
  CUgraph graph;
  expect(cu.cuStreamEndCapture(f.other, &graph), 903);
  expect_end(f.origin, 904);
  f = forked();
  ok(cu.cuMemsetD8Async(device_memory(64), 1, 64, f.other));
  ok(cu.cuEventRecord(f.joined, f.other));
  ok(cu.cuStreamWaitEvent(f.origin, f.joined, 0));
  expect_end(f.origin, 0);
  ok(cu.cuStreamSynchronize(f.other));
}

Test(capture, an_event_of_a_capture_is_not_queried_or_waited_for) {
  const fork_of_streams f = forked();
  expect(cu.cuEventQuery(f.forked), 907);
  expect(cu.cuEventSynchronize(f.forked), 907);
  ok(cu.cuEventRecord(f.joined, f.other));
  ok(cu.cuStreamWaitEvent(f.origin, f.joined, 0));
  expect_end(f.origin, 0);
}

Test(capture, a_capture_does_not_depend_on_events_outside) {
  start("");
  CUevent event;
  ok(cu.cuEventCreate(&event, 0));
  ok(cu.cuEventRecord(event, non_blocking_stream()));
  CUstream stream = capturing(CU_STREAM_CAPTURE_MODE_RELAXED);
  expect(cu.cuStreamWaitEvent(stream, event, 0), 905);
  expect_end(stream, 901);
}

Test(capture, two_captures_do_not_merge) {
  start("");
  CUevent event;
  CUstream first = capturing(CU_STREAM_CAPTURE_MODE_RELAXED);
  CUstream second = capturing(CU_STREAM_CAPTURE_MODE_RELAXED);
  ok(cu.cuEventCreate(&event, 0));
  ok(cu.cuEventRecord(event, first));
  expect(cu.cuStreamWaitEvent(second, event, 0), 902);
  expect_end(first, 901);
  expect_end(second, 901);
}

Test(capture, stream_ordered_memory_in_a_graph_is_not_simulated) {
  start("");
  CUdeviceptr address;
  CUstream stream = capturing(CU_STREAM_CAPTURE_MODE_RELAXED);
  expect(cu.cuMemAllocAsync(&address, 64, stream), 801);
  expect_end(stream, 0);
}
