/* The rules of virtual memory management. */
#include <unistd.h>

#include "fixture.h"

static const size_t piece = 2 << 20;

static const CUmemAllocationProp properties = {
    .type = CU_MEM_ALLOCATION_TYPE_PINNED,
    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
};

Test(virtual, sizes_have_to_be_multiples_of_the_granularity) {
  start("");
  size_t granularity = 0;
  CUdeviceptr address;
  CUmemGenericAllocationHandle handle;
  ok(cu.cuMemGetAllocationGranularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  cr_assert_eq(granularity, piece);
  expect(cu.cuMemAddressReserve(&address, piece + 4096, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
  expect(cu.cuMemCreate(&handle, 4096, &properties, 0), CUDA_ERROR_INVALID_VALUE);
}

Test(virtual, a_mapping_lies_within_a_reservation_whole_and_once) {
  start("");
  CUdeviceptr address;
  CUmemGenericAllocationHandle handle;
  ok(cu.cuMemAddressReserve(&address, 2 * piece, 0, 0, 0));
  ok(cu.cuMemCreate(&handle, 2 * piece, &properties, 0));
  expect(cu.cuMemMap(address + piece, 2 * piece, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  expect(cu.cuMemMap(address, piece, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  expect(cu.cuMemMap(address, piece, piece, handle, 0), CUDA_ERROR_INVALID_VALUE);
  ok(cu.cuMemMap(address, 2 * piece, 0, handle, 0));
  expect(cu.cuMemMap(address, 2 * piece, 0, handle, 0), CUDA_ERROR_ALREADY_MAPPED);
}

Test(virtual, memory_without_access_cannot_be_used) {
  start("");
  CUdeviceptr address;
  CUmemGenericAllocationHandle handle;
  ok(cu.cuMemAddressReserve(&address, piece, 0, 0, 0));
  ok(cu.cuMemCreate(&handle, piece, &properties, 0));
  ok(cu.cuMemMap(address, piece, 0, handle, 0));
  expect(cu.cuMemsetD8_v2(address, 1, 64), CUDA_ERROR_INVALID_VALUE);
  expect_violation(SIMCUDA_NO_ACCESS);
}

Test(virtual, access_is_set_on_whole_mappings_only) {
  start("");
  CUmemGenericAllocationHandle handles[2];
  CUdeviceptr address = mapped_memory(2, handles);
  const CUmemAccessDesc access = {.location = properties.location,
                                  .flags = CU_MEM_ACCESS_FLAGS_PROT_READ};
  expect(cu.cuMemSetAccess(address, piece / 2, &access, 1), CUDA_ERROR_INVALID_VALUE);
  expect(cu.cuMemSetAccess(address, 3 * piece, &access, 1), CUDA_ERROR_INVALID_VALUE);
  ok(cu.cuMemSetAccess(address, 2 * piece, &access, 1));
  unsigned long long flags = 0;
  ok(cu.cuMemGetAccess(&flags, &properties.location, address));
  cr_assert_eq(flags, CU_MEM_ACCESS_FLAGS_PROT_READ);
  expect(cu.cuMemsetD8_v2(address, 1, 64), CUDA_ERROR_INVALID_VALUE);
  expect_violation(SIMCUDA_NO_ACCESS);
}

Test(virtual, a_copy_crosses_from_one_mapping_to_the_next) {
  start("");
  CUmemGenericAllocationHandle handles[2];
  CUdeviceptr address = mapped_memory(2, handles);
  unsigned char bytes[1000];
  unsigned char back[1000] = {0};
  fill_bytes(bytes, sizeof bytes, 3);
  ok(cu.cuMemcpyHtoD_v2(address + piece - 500, bytes, sizeof bytes));
  ok(cu.cuMemcpyDtoH_v2(back, address + piece - 500, sizeof back));
  check_bytes(back, sizeof back, 3);
}

Test(virtual, a_mapping_keeps_released_memory_until_it_is_unmapped) {
  start("");
  CUmemGenericAllocationHandle handle;
  CUdeviceptr address = mapped_memory(1, &handle);
  simcuda_census census;
  ok(cu.cuMemRelease(handle));
  expect(cu.cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
  ok(cu.cuMemsetD8_v2(address, 7, piece));
  ok(cu.cuCtxSynchronize());
  simcuda->count(&census);
  cr_assert_eq(census.device_bytes, piece);
  ok(cu.cuMemUnmap(address, piece));
  simcuda->count(&census);
  cr_assert(census.device_bytes == 0 && census.handles == 0 && census.mappings == 0);
}

Test(virtual, mappings_are_unmapped_whole) {
  start("");
  CUmemGenericAllocationHandle handles[2];
  CUdeviceptr address = mapped_memory(2, handles);
  expect(cu.cuMemUnmap(address, piece / 2), CUDA_ERROR_INVALID_VALUE);
  expect(cu.cuMemUnmap(address + piece / 2, piece), CUDA_ERROR_INVALID_VALUE);
  ok(cu.cuMemUnmap(address, 2 * piece));
}

Test(virtual, a_reservation_with_mappings_is_not_freed) {
  start("");
  CUmemGenericAllocationHandle handle;
  CUdeviceptr address = mapped_memory(1, &handle);
  expect(cu.cuMemAddressFree(address, piece), CUDA_ERROR_INVALID_VALUE);
  ok(cu.cuMemUnmap(address, piece));
  expect(cu.cuMemAddressFree(address, 2 * piece), CUDA_ERROR_INVALID_VALUE);
  ok(cu.cuMemAddressFree(address, piece));
}

Test(virtual, unmapping_under_work_that_runs_is_told) {
  start("");
  CUmemGenericAllocationHandle handle;
  CUdeviceptr address = mapped_memory(1, &handle);
  CUstream stream = non_blocking_stream();
  hold(stream, 0);
  ok(cu.cuMemsetD8Async(address, 9, 64, stream));
  ok(cu.cuMemUnmap(address, piece));
  expect_violation(SIMCUDA_EARLY_FREE);
  simcuda->gate(0, true);
}

Test(virtual, two_mappings_of_one_handle_are_the_same_bytes_to_the_race_detector) {
  start("");
  CUmemGenericAllocationHandle handle;
  CUdeviceptr first = mapped_memory(1, &handle);
  CUdeviceptr second;
  const CUmemAccessDesc access = {.location = properties.location,
                                  .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  ok(cu.cuMemAddressReserve(&second, piece, 0, 0, 0));
  ok(cu.cuMemMap(second, piece, 0, handle, 0));
  ok(cu.cuMemSetAccess(second, piece, &access, 1));
  ok(cu.cuMemsetD8Async(first, 9, 64, non_blocking_stream()));
  ok(cu.cuMemsetD8Async(second, 8, 64, non_blocking_stream()));
  expect_violation(SIMCUDA_UNORDERED);
}

Test(virtual, another_handle_from_a_mapping_counts) {
  start("");
  CUmemGenericAllocationHandle handle;
  CUmemGenericAllocationHandle again;
  CUdeviceptr address = mapped_memory(1, &handle);
  ok(cu.cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(address + 5)));
  cr_assert_eq(again, handle);
  ok(cu.cuMemRelease(handle));
  ok(cu.cuMemRelease(handle));
  expect(cu.cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
}

Test(virtual, only_memory_made_for_it_is_exported) {
  start("");
  CUmemGenericAllocationHandle handle;
  int file = -1;
  ok(cu.cuMemCreate(&handle, piece, &properties, 0));
  expect(
      cu.cuMemExportToShareableHandle(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
      CUDA_ERROR_INVALID_VALUE);
}

Test(virtual, a_driver_without_it_refuses) {
  start("SIMCUDA_VMM=0");
  CUdeviceptr address;
  expect(cu.cuMemAddressReserve(&address, piece, 0, 0, 0), CUDA_ERROR_NOT_SUPPORTED);
}
