/* Contexts and what is current to a thread. */
#include <pthread.h>

#include "fixture.h"

static void *call_without_context(void *out) {
  CUdeviceptr address;
  *(CUresult *)out = cu.cuMemAlloc_v2(&address, 64);
  return NULL;
}

Test(context, a_thread_without_a_context_is_refused) {
  start("");
  CUresult result = CUDA_SUCCESS;
  pthread_t thread;
  cr_assert_eq(pthread_create(&thread, NULL, call_without_context, &result), 0);
  pthread_join(thread, NULL);
  cr_assert_eq(result, CUDA_ERROR_INVALID_CONTEXT);
}

Test(context, push_and_pop_are_a_stack) {
  CUcontext first = start("");
  CUcontext second;
  CUcontext got;
  CUdevice device;
  ok(cu.cuDevicePrimaryCtxRetain(&second, 1));
  ok(cu.cuCtxPushCurrent_v2(second));
  ok(cu.cuCtxGetDevice(&device));
  cr_assert_eq(device, 1);
  ok(cu.cuCtxPopCurrent_v2(&got));
  cr_assert_eq(got, second);
  ok(cu.cuCtxGetCurrent(&got));
  cr_assert_eq(got, first);
  ok(cu.cuCtxPopCurrent_v2(&got));
  expect(cu.cuCtxPopCurrent_v2(&got), CUDA_ERROR_INVALID_CONTEXT);
  ok(cu.cuCtxGetCurrent(&got));
  cr_assert_null(got);
}

Test(context, the_primary_context_is_counted) {
  CUcontext context = start("");
  CUcontext again;
  unsigned flags;
  int active = 0;
  ok(cu.cuDevicePrimaryCtxRetain(&again, 0));
  cr_assert_eq(again, context);
  ok(cu.cuDevicePrimaryCtxRelease_v2(0));
  ok(cu.cuDevicePrimaryCtxGetState(0, &flags, &active));
  cr_assert_eq(active, 1);
  ok(cu.cuDevicePrimaryCtxRelease_v2(0));
  ok(cu.cuDevicePrimaryCtxGetState(0, &flags, &active));
  cr_assert_eq(active, 0);
  expect(cu.cuDevicePrimaryCtxRelease_v2(0), CUDA_ERROR_INVALID_CONTEXT);
}

Test(context, a_reset_ends_memory_and_makes_the_context_unusable_until_it_is_retained) {
  start("");
  CUdeviceptr address = device_memory(4096);
  simcuda_census census;
  ok(cu.cuDevicePrimaryCtxReset_v2(0));
  simcuda->count(&census);
  cr_assert_eq(census.device_bytes, 0);
  expect(cu.cuMemFree_v2(address), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  use_device(0);
  expect(cu.cuMemFree_v2(address), CUDA_ERROR_INVALID_VALUE);
  expect_violation(SIMCUDA_USE_AFTER_FREE);
}

Test(context, a_destroyed_context_is_refused) {
  start("");
  CUcontext context;
  ok(cu.cuCtxCreate_v2(&context, 0, 1));
  ok(cu.cuCtxDestroy_v2(context));
  expect(cu.cuCtxPushCurrent_v2(context), CUDA_ERROR_CONTEXT_IS_DESTROYED);
}

/* Though nobody waited for the stream, and its work is done by then. */
Test(context, what_comes_after_a_synchronize_is_after_the_work_of_streams_that_were_destroyed) {
  start("SIMCUDA_SCHEDULE=manual");
  CUmemGenericAllocationHandle handle;
  const CUdeviceptr address = mapped_memory(1, &handle);
  CUstream stream = non_blocking_stream();
  ok(cu.cuMemsetD8Async(address, 0x5a, 64, stream));
  ok(cu.cuStreamDestroy_v2(stream));
  cr_assert_eq(simcuda->run_all(), 1);
  ok(cu.cuCtxSynchronize());
  ok(cu.cuMemUnmap(address, 2 << 20));
  expect_no_violation();
}

Test(context, synchronize_waits_for_all_of_its_streams_and_no_other_device) {
  start("SIMCUDA_SCHEDULE=manual");
  CUdeviceptr here = device_memory(64);
  CUcontext other = use_device(1);
  CUdeviceptr there = device_memory(64);
  ok(cu.cuMemsetD8Async(there, 0x5a, 64, non_blocking_stream()));
  CUcontext own;
  ok(cu.cuDevicePrimaryCtxRetain(&own, 0));
  ok(cu.cuCtxSetCurrent(own));
  ok(cu.cuMemsetD8Async(here, 0x5a, 64, non_blocking_stream()));
  ok(cu.cuCtxSynchronize());
  unsigned char byte = 0;
  cr_assert(simcuda->peek(here + 63, &byte, 1) && byte == 0x5a);
  cr_assert(simcuda->peek(there + 63, &byte, 1) && byte != 0x5a);
  ok(cu.cuCtxSetCurrent(other));
  ok(cu.cuCtxSynchronize());
  cr_assert(simcuda->peek(there + 63, &byte, 1) && byte == 0x5a);
}
