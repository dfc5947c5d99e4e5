/* Streams and events: what is in order with what, and who waits. */
#include <pthread.h>

#include "fixture.h"

#define MANUAL "SIMCUDA_SCHEDULE=manual"

static bool byte_is(CUdeviceptr address, unsigned char value) {
  unsigned char byte = 0;
  cr_assert(simcuda->peek(address, &byte, 1));
  return byte == value;
}

static CUstream blocking_stream(void) {
  CUstream stream;
  ok(cu.cuStreamCreate(&stream, 0));
  return stream;
}

Test(stream, the_legacy_stream_is_in_order_with_blocking_streams) {
  start("");
  CUdeviceptr address = device_memory(64);
  ok(cu.cuMemsetD8Async(address, 1, 64, blocking_stream()));
  ok(cu.cuMemsetD8Async(address, 2, 64, CU_STREAM_LEGACY));
  ok(cu.cuMemsetD8Async(address, 3, 64, blocking_stream()));
  expect_no_violation();
  ok(cu.cuCtxSynchronize());
  cr_assert(byte_is(address, 3));
}

Test(stream, the_legacy_stream_is_not_in_order_with_non_blocking_streams) {
  start("");
  CUdeviceptr address = device_memory(64);
  ok(cu.cuMemsetD8Async(address, 1, 64, non_blocking_stream()));
  ok(cu.cuMemsetD8Async(address, 2, 64, NULL));
  expect_violation(SIMCUDA_UNORDERED);
}

Test(stream, waiting_for_the_legacy_stream_waits_for_blocking_streams) {
  start(MANUAL);
  CUdeviceptr address = device_memory(64);
  CUdeviceptr other = device_memory(64);
  ok(cu.cuMemsetD8Async(address, 0x31, 64, blocking_stream()));
  ok(cu.cuMemsetD8Async(other, 0x32, 64, non_blocking_stream()));
  ok(cu.cuStreamSynchronize(NULL));
  cr_assert(byte_is(address, 0x31));
  cr_assert(!byte_is(other, 0x32));
}

Test(stream, two_blocking_streams_are_not_in_order) {
  start("");
  CUdeviceptr address = device_memory(64);
  ok(cu.cuMemsetD8Async(address, 1, 64, blocking_stream()));
  ok(cu.cuMemsetD8Async(address, 2, 64, blocking_stream()));
  expect_violation(SIMCUDA_UNORDERED);
}

static void *id_of_own_stream(void *context) {
  static unsigned long long id;
  ok(cu.cuCtxSetCurrent(context));
  ok(cu.cuStreamGetId(CU_STREAM_PER_THREAD, &id));
  return &id;
}

Test(stream, each_thread_has_a_default_stream_of_its_own) {
  CUcontext context = start("");
  unsigned long long id = 0;
  unsigned long long again = 0;
  void *other = NULL;
  pthread_t thread;
  ok(cu.cuStreamGetId(CU_STREAM_PER_THREAD, &id));
  ok(cu.cuStreamGetId(CU_STREAM_PER_THREAD, &again));
  cr_assert_eq(id, again);
  cr_assert_eq(pthread_create(&thread, NULL, id_of_own_stream, context), 0);
  pthread_join(thread, &other);
  cr_assert_neq(*(unsigned long long *)other, id);
  ok(cu.cuStreamGetId_ptsz(NULL, &again));
  cr_assert_eq(id, again);
  ok(cu.cuStreamGetId(NULL, &again));
  cr_assert_neq(id, again);
}

Test(stream, a_destroyed_stream_runs_what_it_has_and_is_refused) {
  start(MANUAL);
  CUdeviceptr address = device_memory(64);
  CUstream stream = non_blocking_stream();
  ok(cu.cuMemsetD8Async(address, 0x44, 64, stream));
  ok(cu.cuStreamDestroy_v2(stream));
  ok(cu.cuCtxSynchronize());
  cr_assert(byte_is(address, 0x44));
  expect(cu.cuStreamSynchronize(stream), CUDA_ERROR_INVALID_HANDLE);
  expect_violation(SIMCUDA_USE_AFTER_FREE);
}

Test(stream, streams_tell_context_flags_and_priority) {
  CUcontext context = start("");
  CUstream stream;
  CUcontext got;
  unsigned flags = 0;
  int priority = 0;
  ok(cu.cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, -2));
  use_device(1);
  ok(cu.cuStreamGetCtx(stream, &got));
  cr_assert_eq(got, context);
  ok(cu.cuStreamGetFlags(stream, &flags));
  cr_assert_eq(flags, CU_STREAM_NON_BLOCKING);
  ok(cu.cuStreamGetPriority(stream, &priority));
  cr_assert_eq(priority, -2);
  int least;
  int greatest;
  ok(cu.cuCtxGetStreamPriorityRange(&least, &greatest));
  cr_assert(least == 0 && greatest < 0);
}

Test(stream, a_query_says_not_ready_until_the_gate_is_open) {
  start("");
  CUstream stream = non_blocking_stream();
  ok(cu.cuStreamQuery(stream));
  hold(stream, 2);
  expect(cu.cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
  simcuda->gate(2, true);
  ok(cu.cuStreamSynchronize(stream));
  ok(cu.cuStreamQuery(stream));
}

Test(stream, the_schedule_by_threads_runs_work_without_a_wait) {
  start("");
  CUstream stream = non_blocking_stream();
  CUdeviceptr address = device_memory(64);
  ok(cu.cuMemsetD8Async(address, 0x45, 64, stream));
  while (cu.cuStreamQuery(stream) == CUDA_ERROR_NOT_READY)
    continue;
  cr_assert(byte_is(address, 0x45));
}

Test(stream, an_eager_manual_schedule_makes_polling_end) {
  start("SIMCUDA_SCHEDULE=manual SIMCUDA_EAGER=20 SIMCUDA_SEED=3");
  CUstream stream = non_blocking_stream();
  ok(cu.cuMemsetD8Async(device_memory(64), 0x45, 64, stream));
  while (cu.cuStreamQuery(stream) == CUDA_ERROR_NOT_READY)
    continue;
}

Test(stream, run_all_runs_what_nobody_waits_for) {
  start(MANUAL);
  CUdeviceptr address = device_memory(64);
  ok(cu.cuMemsetD8Async(address, 0x46, 64, non_blocking_stream()));
  cr_assert_eq(simcuda->run_all(), 1);
  cr_assert(byte_is(address, 0x46));
}

static void set_flag(void *flag) {
  *(int *)flag = 1;
}

Test(stream, a_host_function_runs_in_its_turn) {
  start(MANUAL);
  int flag = 0;
  CUstream stream = non_blocking_stream();
  ok(cu.cuLaunchHostFunc(stream, set_flag, &flag));
  cr_assert_eq(flag, 0);
  ok(cu.cuStreamSynchronize(stream));
  cr_assert_eq(flag, 1);
}

Test(event, a_wait_orders_two_streams) {
  start(MANUAL);
  CUdeviceptr address = device_memory(64);
  CUstream first = non_blocking_stream();
  CUstream second = non_blocking_stream();
  CUevent event;
  ok(cu.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  ok(cu.cuMemsetD8Async(address, 1, 64, first));
  ok(cu.cuEventRecord(event, first));
  ok(cu.cuStreamWaitEvent(second, event, 0));
  ok(cu.cuMemsetD8Async(address, 2, 64, second));
  expect_no_violation();
  ok(cu.cuStreamSynchronize(second));
  cr_assert(byte_is(address, 2));
}

Test(event, recorded_before_the_work_it_orders_nothing) {
  start("");
  CUdeviceptr address = device_memory(64);
  CUstream first = non_blocking_stream();
  CUstream second = non_blocking_stream();
  CUevent event;
  ok(cu.cuEventCreate(&event, 0));
  ok(cu.cuEventRecord(event, first));
  ok(cu.cuMemsetD8Async(address, 1, 64, first));
  ok(cu.cuStreamWaitEvent(second, event, 0));
  ok(cu.cuMemsetD8Async(address, 2, 64, second));
  expect_violation(SIMCUDA_UNORDERED);
}

Test(event, recording_again_does_not_move_a_wait_that_was_submitted) {
  start(MANUAL);
  CUstream first = non_blocking_stream();
  CUstream second = non_blocking_stream();
  CUevent event;
  ok(cu.cuEventCreate(&event, 0));
  ok(cu.cuEventRecord(event, first));
  ok(cu.cuStreamWaitEvent(second, event, 0));
  hold(first, 0);
  ok(cu.cuEventRecord(event, first));
  ok(cu.cuStreamSynchronize(second));
  expect(cu.cuEventQuery(event), CUDA_ERROR_NOT_READY);
  simcuda->gate(0, true);
  ok(cu.cuEventSynchronize(event));
}

Test(event, one_that_was_never_recorded_is_done) {
  start("");
  CUevent event;
  ok(cu.cuEventCreate(&event, 0));
  ok(cu.cuEventQuery(event));
  ok(cu.cuEventSynchronize(event));
  ok(cu.cuStreamWaitEvent(NULL, event, 0));
}

Test(event, a_destroyed_event_is_refused) {
  start("");
  CUevent event;
  ok(cu.cuEventCreate(&event, 0));
  ok(cu.cuEventDestroy_v2(event));
  expect(cu.cuEventQuery(event), CUDA_ERROR_INVALID_HANDLE);
  expect_violation(SIMCUDA_USE_AFTER_FREE);
}

Test(event, an_event_is_recorded_in_its_own_context_only) {
  start("");
  CUevent event;
  ok(cu.cuEventCreate(&event, 0));
  use_device(1);
  expect(cu.cuEventRecord(event, non_blocking_stream()), CUDA_ERROR_INVALID_HANDLE);
}

Test(event, elapsed_time_is_of_the_work_between) {
  start("");
  CUevent begin;
  CUevent end;
  CUevent untimed;
  float milliseconds = -1;
  uint32_t microseconds = 20000;
  CUstream stream = non_blocking_stream();
  ok(cu.cuEventCreate(&begin, 0));
  ok(cu.cuEventCreate(&end, 0));
  ok(cu.cuEventCreate(&untimed, CU_EVENT_DISABLE_TIMING));
  ok(cu.cuEventRecord(begin, stream));
  launch("simcuda_sleep", stream, (void *[]){&microseconds});
  ok(cu.cuEventRecord(end, stream));
  expect(cu.cuEventElapsedTime(&milliseconds, begin, end), CUDA_ERROR_NOT_READY);
  ok(cu.cuEventSynchronize(end));
  ok(cu.cuEventElapsedTime(&milliseconds, begin, end));
  cr_assert_geq(milliseconds, 20);
  ok(cu.cuEventRecord(untimed, stream));
  expect(cu.cuEventElapsedTime(&milliseconds, begin, untimed), CUDA_ERROR_INVALID_HANDLE);
}
