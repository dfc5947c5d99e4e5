/* Memory of devices and of the host, and what the driver says about addresses. */
#include <unistd.h>

#include "fixture.h"

Test(memory, the_limit_of_a_device_is_out_of_memory_and_leaves_it_usable) {
  start("SIMCUDA_MEMORY=1048576");
  CUdeviceptr first = device_memory(1000000);
  CUdeviceptr second;
  expect(cu.cuMemAlloc_v2(&second, 100000), CUDA_ERROR_OUT_OF_MEMORY);
  expect(cu.cuMemAllocAsync(&second, 100000, NULL), CUDA_ERROR_OUT_OF_MEMORY);
  ok(cu.cuMemFree_v2(first));
  ok(cu.cuMemAlloc_v2(&second, 100000));
  size_t unused;
  size_t total;
  ok(cu.cuMemGetInfo_v2(&unused, &total));
  cr_assert_eq(total, 1048576);
  cr_assert_eq(unused, 1048576 - 100000);
}

Test(memory, each_device_has_a_limit_of_its_own) {
  start("SIMCUDA_MEMORY=1048576");
  (void)device_memory(1000000);
  use_device(1);
  (void)device_memory(1000000);
}

/* The host can't read at the address: a read of a pipe's bytes into it says so without a signal. */
static bool host_can_touch(uint64_t address) {
  int ends[2];
  cr_assert_eq(pipe(ends), 0);
  const bool readable = write(ends[1], (const void *)(uintptr_t)address, 1) == 1;
  close(ends[0]);
  close(ends[1]);
  return readable;
}

Test(memory, the_host_cannot_touch_addresses_of_devices) {
  start("");
  CUdeviceptr plain = device_memory(4096);
  CUdeviceptr ordered;
  CUmemGenericAllocationHandle handle;
  ok(cu.cuMemAllocAsync(&ordered, 4096, NULL));
  cr_assert(!host_can_touch(plain));
  cr_assert(!host_can_touch(ordered));
  cr_assert(!host_can_touch(mapped_memory(1, &handle)));
}

Test(memory, the_host_can_touch_pinned_and_managed_memory) {
  start("");
  CUdeviceptr managed;
  ok(cu.cuMemAllocManaged(&managed, 4096, CU_MEM_ATTACH_GLOBAL));
  cr_assert(host_can_touch(managed));
  cr_assert(host_can_touch((uint64_t)(uintptr_t)pinned_memory(4096)));
}

Test(memory, addresses_are_aligned_and_not_used_again) {
  start("");
  CUdeviceptr first = device_memory(100);
  cr_assert_eq(first % 256, 0);
  ok(cu.cuMemFree_v2(first));
  cr_assert_neq(device_memory(100), first);
}

Test(memory, a_double_free_is_refused_and_told) {
  start("");
  CUdeviceptr address = device_memory(100);
  ok(cu.cuMemFree_v2(address));
  expect(cu.cuMemFree_v2(address), CUDA_ERROR_INVALID_VALUE);
  expect_violation(SIMCUDA_USE_AFTER_FREE);
  ok(cu.cuMemFree_v2(0));
}

Test(memory, only_the_first_address_can_be_freed) {
  start("");
  CUdeviceptr address = device_memory(100);
  expect(cu.cuMemFree_v2(address + 1), CUDA_ERROR_INVALID_VALUE);
  expect_violation(SIMCUDA_OUT_OF_BOUNDS);
  ok(cu.cuMemFree_v2(address));
}

Test(memory, a_copy_beyond_the_end_is_refused_and_told) {
  start("");
  CUdeviceptr address = device_memory(100);
  unsigned char bytes[101];
  fill_bytes(bytes, sizeof bytes, 1);
  expect(cu.cuMemcpyHtoD_v2(address, bytes, 101), CUDA_ERROR_INVALID_VALUE);
  expect_violation(SIMCUDA_OUT_OF_BOUNDS);
}

Test(memory, a_host_pointer_is_no_device_address) {
  start("");
  unsigned char bytes[64];
  CUdeviceptr address = device_memory(64);
  expect(cu.cuMemcpyDtoD_v2(address, (CUdeviceptr)(uintptr_t)bytes, 64), CUDA_ERROR_INVALID_VALUE);
  expect_violation(SIMCUDA_OUT_OF_BOUNDS);
  expect(cu.cuMemcpyHtoD_v2(address, (const void *)(uintptr_t)address, 64),
         CUDA_ERROR_INVALID_VALUE);
  expect_violation(SIMCUDA_OUT_OF_BOUNDS);
}

Test(memory, registering_is_once_and_undone_once) {
  start("");
  static unsigned char bytes[8192];
  ok(cu.cuMemHostRegister_v2(bytes, sizeof bytes, CU_MEMHOSTREGISTER_PORTABLE));
  expect(cu.cuMemHostRegister_v2(bytes + 4096, 64, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  CUdeviceptr address = 0;
  ok(cu.cuMemHostGetDevicePointer_v2(&address, bytes + 5, 0));
  cr_assert_eq(address, (CUdeviceptr)(uintptr_t)(bytes + 5));
  unsigned flags = 0;
  ok(cu.cuMemHostGetFlags(&flags, bytes));
  cr_assert_eq(flags, CU_MEMHOSTREGISTER_PORTABLE);
  ok(cu.cuMemHostUnregister(bytes));
  expect(cu.cuMemHostUnregister(bytes), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

Test(memory, memory_registered_read_only_cannot_be_written) {
  start("");
  static unsigned char bytes[4096];
  CUdeviceptr address = device_memory(64);
  ok(cu.cuMemHostRegister_v2(bytes, sizeof bytes, CU_MEMHOSTREGISTER_READ_ONLY));
  ok(cu.cuMemcpyHtoD_v2(address, bytes, 64));
  expect(cu.cuMemcpyDtoH_v2(bytes, address, 64), CUDA_ERROR_INVALID_VALUE);
  expect_violation(SIMCUDA_NO_ACCESS);
}

Test(memory, attributes_of_pointers_tell_what_they_are) {
  CUcontext context = start("");
  use_device(1);
  CUdeviceptr address = device_memory(1000);
  unsigned type = 0;
  int device = -1;
  CUcontext owner = NULL;
  size_t size = 0;
  CUdeviceptr base = 0;
  ok(cu.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address + 7));
  cr_assert_eq(type, CU_MEMORYTYPE_DEVICE);
  ok(cu.cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address));
  cr_assert_eq(device, 1);
  ok(cu.cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, address));
  cr_assert(owner != NULL && owner != context);
  ok(cu.cuMemGetAddressRange_v2(&base, &size, address + 999));
  cr_assert(base == address && size == 1000);
  ok(cu.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                              (CUdeviceptr)(uintptr_t)pinned_memory(64)));
  cr_assert_eq(type, CU_MEMORYTYPE_HOST);
  expect(cu.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                  (CUdeviceptr)(uintptr_t)&type),
         CUDA_ERROR_INVALID_VALUE);
}

Test(memory, many_attributes_of_an_unknown_pointer_are_zeros) {
  start("");
  unsigned type = 77;
  int device = 77;
  CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                 CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  void *values[] = {&type, &device};
  ok(cu.cuPointerGetAttributes(2, asked, values, (CUdeviceptr)(uintptr_t)&type));
  cr_assert(type == 0 && device == -2);
}

Test(memory, all_that_was_freed_is_gone_from_the_census) {
  start("");
  CUdeviceptr address = device_memory(4096);
  void *pinned = pinned_memory(4096);
  simcuda_census census;
  simcuda->count(&census);
  cr_assert(census.device_bytes == 4096 && census.host_bytes == 4096 && census.allocations == 2);
  ok(cu.cuMemFree_v2(address));
  ok(cu.cuMemFreeHost(pinned));
  simcuda->count(&census);
  cr_assert(census.device_bytes == 0 && census.host_bytes == 0 && census.allocations == 0);
}

Test(memory, there_can_be_more_small_allocations_than_a_process_has_mappings) {
  start("");
  simcuda_census census;
  for (int i = 0; i < 70000; i++)
    (void)device_memory(100);
  simcuda->count(&census);
  cr_assert_eq(census.allocations, 70000);
}
