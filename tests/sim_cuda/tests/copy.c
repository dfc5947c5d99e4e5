/* When copies and fills return, and what they move. Streams are late because the schedule is
 * manual: nothing runs until somebody waits. */
#include "fixture.h"

#define MANUAL "SIMCUDA_SCHEDULE=manual"

enum {
  SIZE = 5000
};

static unsigned char bytes[SIZE];
static unsigned char back[SIZE];

Test(copy, from_pageable_memory_returns_before_the_bytes_are_there) {
  start(MANUAL);
  CUdeviceptr address = device_memory(SIZE);
  fill_bytes(bytes, SIZE, 1);
  ok(cu.cuMemcpyHtoD_v2(address, bytes, SIZE));
  cr_assert(!device_holds(address, SIZE, 1));
  /* The source may be written again at once. */
  fill_bytes(bytes, SIZE, 2);
  ok(cu.cuCtxSynchronize());
  check_device(address, SIZE, 1);
}

Test(copy, a_non_blocking_stream_may_overtake_a_copy_from_pageable_memory) {
  start(MANUAL);
  CUdeviceptr address = device_memory(SIZE);
  fill_bytes(bytes, SIZE, 1);
  ok(cu.cuMemcpyHtoD_v2(address, bytes, SIZE));
  ok(cu.cuMemsetD8Async(address, 5, SIZE, non_blocking_stream()));
  expect_violation(SIMCUDA_UNORDERED);
}

Test(copy, from_pinned_memory_returns_when_the_bytes_are_there) {
  start(MANUAL);
  CUdeviceptr address = device_memory(SIZE);
  unsigned char *const pinned = pinned_memory(SIZE);
  fill_bytes(pinned, SIZE, 1);
  ok(cu.cuMemcpyHtoD_v2(address, pinned, SIZE));
  check_device(address, SIZE, 1);
}

Test(copy, to_the_host_returns_when_the_bytes_are_there) {
  start(MANUAL);
  CUdeviceptr address = device_memory(SIZE);
  unsigned char *const pinned = pinned_memory(SIZE);
  fill_bytes(bytes, SIZE, 1);
  ok(cu.cuMemcpyHtoD_v2(address, bytes, SIZE));
  ok(cu.cuMemcpyDtoH_v2(back, address, SIZE));
  check_bytes(back, SIZE, 1);
  ok(cu.cuMemcpyDtoH_v2(pinned, address, SIZE));
  check_bytes(pinned, SIZE, 1);
}

Test(copy, an_asynchronous_copy_from_pageable_memory_has_read_it_when_it_returns) {
  start(MANUAL);
  CUdeviceptr address = device_memory(SIZE);
  fill_bytes(bytes, SIZE, 1);
  ok(cu.cuMemcpyHtoDAsync_v2(address, bytes, SIZE, non_blocking_stream()));
  fill_bytes(bytes, SIZE, 2);
  cr_assert(!device_holds(address, SIZE, 1));
  ok(cu.cuCtxSynchronize());
  check_device(address, SIZE, 1);
}

Test(copy, an_asynchronous_copy_from_pinned_memory_reads_it_when_it_runs) {
  start(MANUAL);
  CUdeviceptr address = device_memory(SIZE);
  unsigned char *const pinned = pinned_memory(SIZE);
  fill_bytes(pinned, SIZE, 1);
  ok(cu.cuMemcpyHtoDAsync_v2(address, pinned, SIZE, non_blocking_stream()));
  fill_bytes(pinned, SIZE, 2);
  ok(cu.cuCtxSynchronize());
  check_device(address, SIZE, 2);
}

Test(copy, an_asynchronous_copy_to_pageable_memory_is_done_when_it_returns) {
  start(MANUAL);
  CUdeviceptr address = device_memory(SIZE);
  CUstream stream = non_blocking_stream();
  fill_bytes(bytes, SIZE, 1);
  ok(cu.cuMemcpyHtoDAsync_v2(address, bytes, SIZE, stream));
  ok(cu.cuMemcpyDtoHAsync_v2(back, address, SIZE, stream));
  check_bytes(back, SIZE, 1);
}

Test(copy, an_asynchronous_copy_to_pinned_memory_is_not) {
  start(MANUAL);
  CUdeviceptr address = device_memory(SIZE);
  CUstream stream = non_blocking_stream();
  unsigned char *const pinned = pinned_memory(SIZE);
  fill_bytes(bytes, SIZE, 1);
  fill_bytes(pinned, SIZE, 9);
  ok(cu.cuMemcpyHtoDAsync_v2(address, bytes, SIZE, stream));
  ok(cu.cuMemcpyDtoHAsync_v2(pinned, address, SIZE, stream));
  check_bytes(pinned, SIZE, 9);
  ok(cu.cuStreamSynchronize(stream));
  check_bytes(pinned, SIZE, 1);
}

Test(copy, within_a_device_returns_at_once) {
  start(MANUAL);
  CUdeviceptr from = device_memory(SIZE);
  CUdeviceptr to = device_memory(SIZE);
  fill_bytes(bytes, SIZE, 1);
  ok(cu.cuMemcpyHtoD_v2(from, bytes, SIZE));
  ok(cu.cuMemcpyDtoD_v2(to, from, SIZE));
  cr_assert(!device_holds(to, SIZE, 1));
  ok(cu.cuStreamSynchronize(NULL));
  check_device(to, SIZE, 1);
}

Test(copy, the_generic_copy_takes_every_kind_of_address) {
  start("");
  CUdeviceptr address = device_memory(SIZE);
  CUdeviceptr managed;
  ok(cu.cuMemAllocManaged(&managed, SIZE, CU_MEM_ATTACH_GLOBAL));
  fill_bytes(bytes, SIZE, 4);
  ok(cu.cuMemcpy(address, (CUdeviceptr)(uintptr_t)bytes, SIZE));
  ok(cu.cuMemcpy(managed, address, SIZE));
  check_bytes((const void *)(uintptr_t)managed, SIZE, 4);
  ok(cu.cuMemcpyAsync((CUdeviceptr)(uintptr_t)back, managed, SIZE, non_blocking_stream()));
  check_bytes(back, SIZE, 4);
  expect_no_violation();
}

Test(copy, overlapping_ends_are_told) {
  start("");
  CUdeviceptr address = device_memory(SIZE);
  ok(cu.cuMemcpyDtoD_v2(address + 10, address, 100));
  expect_violation(SIMCUDA_OVERLAP);
  ok(cu.cuMemcpyDtoD_v2(address + 100, address, 100));
  expect_no_violation();
}

Test(copy, no_bytes_are_no_work) {
  start("");
  ok(cu.cuMemcpyHtoD_v2(0, NULL, 0));
  ok(cu.cuMemcpyDtoDAsync_v2(0, 0, 0, NULL));
}

Test(copy, a_stream_of_another_context_is_refused) {
  start("");
  CUstream stream = non_blocking_stream();
  use_device(1);
  CUdeviceptr address = device_memory(SIZE);
  expect(cu.cuMemcpyHtoDAsync_v2(address, bytes, SIZE, stream), CUDA_ERROR_INVALID_HANDLE);
  expect(cu.cuMemsetD8Async(address, 1, SIZE, stream), CUDA_ERROR_INVALID_HANDLE);
}

Test(copy, fills_of_all_widths_write_their_pattern) {
  start("");
  CUdeviceptr address = device_memory(24);
  unsigned char got[24] = {0};
  ok(cu.cuMemsetD8_v2(address, 0x11, 8));
  ok(cu.cuMemsetD16_v2(address + 8, 0x2233, 4));
  ok(cu.cuMemsetD32_v2(address + 16, 0x44556677, 2));
  ok(cu.cuMemcpyDtoH_v2(got, address, sizeof got));
  static const unsigned char wanted[24] = {0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11,
                                           0x33, 0x22, 0x33, 0x22, 0x33, 0x22, 0x33, 0x22,
                                           0x77, 0x66, 0x55, 0x44, 0x77, 0x66, 0x55, 0x44};
  cr_assert_arr_eq(got, wanted, 24);
}

Test(copy, fills_want_an_address_of_their_width) {
  start("");
  CUdeviceptr address = device_memory(64);
  expect(cu.cuMemsetD16_v2(address + 1, 1, 4), CUDA_ERROR_INVALID_VALUE);
  expect(cu.cuMemsetD32Async(address + 2, 1, 4, NULL), CUDA_ERROR_INVALID_VALUE);
}

Test(copy, a_fill_of_device_memory_returns_at_once_and_one_of_pinned_memory_does_not) {
  start(MANUAL);
  CUdeviceptr address = device_memory(64);
  unsigned char *const pinned = pinned_memory(64);
  unsigned char byte = 0;
  ok(cu.cuMemsetD8_v2(address, 0x21, 64));
  cr_assert(simcuda->peek(address, &byte, 1) && byte != 0x21);
  ok(cu.cuMemsetD8_v2((CUdeviceptr)(uintptr_t)pinned, 0x22, 64));
  cr_assert_eq(pinned[63], 0x22);
}
