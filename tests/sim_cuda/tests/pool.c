/* Stream-ordered memory. */
#include "fixture.h"

Test(pool, memory_is_used_on_its_stream_without_a_wait) {
  start("");
  CUstream stream = non_blocking_stream();
  CUdeviceptr address;
  ok(cu.cuMemAllocAsync(&address, 4096, stream));
  ok(cu.cuMemsetD8Async(address, 3, 4096, stream));
  ok(cu.cuMemFreeAsync(address, stream));
  expect_no_violation();
}

Test(pool, a_use_on_another_stream_has_to_wait_for_the_allocation) {
  start("");
  CUdeviceptr address;
  ok(cu.cuMemAllocAsync(&address, 4096, non_blocking_stream()));
  ok(cu.cuMemsetD8Async(address, 3, 4096, non_blocking_stream()));
  expect_violation(SIMCUDA_UNORDERED);
}

Test(pool, a_free_on_another_stream_has_to_wait_for_the_uses) {
  start("");
  CUstream stream = non_blocking_stream();
  CUdeviceptr address;
  ok(cu.cuMemAllocAsync(&address, 4096, stream));
  ok(cu.cuMemsetD8Async(address, 3, 4096, stream));
  ok(cu.cuMemFreeAsync(address, non_blocking_stream()));
  expect_violation(SIMCUDA_EARLY_FREE);
}

Test(pool, a_use_after_the_free_is_told_even_on_the_same_stream) {
  start("");
  CUstream stream = non_blocking_stream();
  CUdeviceptr address;
  ok(cu.cuMemAllocAsync(&address, 4096, stream));
  ok(cu.cuMemFreeAsync(address, stream));
  expect(cu.cuMemsetD8Async(address, 3, 64, stream), CUDA_ERROR_INVALID_VALUE);
  expect_violation(SIMCUDA_USE_AFTER_FREE);
}

Test(pool, freed_memory_counts_until_the_stream_gets_there) {
  start("");
  CUstream stream = non_blocking_stream();
  CUdeviceptr address;
  simcuda_census census;
  ok(cu.cuMemAllocAsync(&address, 4096, stream));
  hold(stream, 0);
  ok(cu.cuMemFreeAsync(address, stream));
  simcuda->count(&census);
  cr_assert_eq(census.device_bytes, 4096);
  simcuda->gate(0, true);
  ok(cu.cuStreamSynchronize(stream));
  simcuda->count(&census);
  cr_assert_eq(census.device_bytes, 0);
}

Test(pool, attributes_are_kept_and_counters_count) {
  start("");
  CUmemoryPool pool;
  CUdeviceptr address;
  cuuint64_t threshold = 12345;
  cuuint64_t value = 0;
  ok(cu.cuDeviceGetDefaultMemPool(&pool, 0));
  ok(cu.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
  ok(cu.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value));
  cr_assert_eq(value, 12345);
  ok(cu.cuMemAllocAsync(&address, 1000, NULL));
  ok(cu.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &value));
  cr_assert_eq(value, 1000);
  ok(cu.cuMemFreeAsync(address, NULL));
  ok(cu.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &value));
  cr_assert_eq(value, 0);
  ok(cu.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &value));
  cr_assert_eq(value, 1000);
}

Test(pool, a_pool_of_ones_own_serves_its_device_only) {
  start("");
  CUmemoryPool pool;
  CUdeviceptr address;
  const CUmemPoolProps properties = {
      .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1},
  };
  ok(cu.cuMemPoolCreate(&pool, &properties));
  expect(cu.cuMemAllocFromPoolAsync(&address, 64, pool, NULL), CUDA_ERROR_INVALID_VALUE);
  use_device(1);
  ok(cu.cuMemAllocFromPoolAsync(&address, 64, pool, NULL));
  ok(cu.cuMemFreeAsync(address, NULL));
  ok(cu.cuMemPoolDestroy(pool));
  expect(cu.cuMemAllocFromPoolAsync(&address, 64, pool, NULL), CUDA_ERROR_INVALID_VALUE);
}

Test(pool, a_driver_without_pools_refuses) {
  start("SIMCUDA_POOLS=0");
  CUdeviceptr address;
  CUmemoryPool pool;
  expect(cu.cuMemAllocAsync(&address, 64, NULL), CUDA_ERROR_NOT_SUPPORTED);
  expect(cu.cuDeviceGetDefaultMemPool(&pool, 0), CUDA_ERROR_NOT_SUPPORTED);
}
