/* Three kinds of memory, each with its own way to let another device reach it. */
#include "fixture.h"

static CUcontext first, second;

/* Device 1 is current at the end. */
static void begin(const char *settings) {
  first = start(settings);
  second = use_device(1);
  ok(cu.cuCtxSetCurrent(first));
}

static void use_second(void) {
  ok(cu.cuCtxSetCurrent(second));
}

/* A fill by device 1. */
static CUresult fill(CUdeviceptr address) {
  use_second();
  return cu.cuMemsetD8_v2(address, 0x66, 64);
}

Test(peer, plain_memory_needs_peer_access_of_the_context) {
  begin("");
  CUdeviceptr address = device_memory(64);
  expect(fill(address), CUDA_ERROR_INVALID_VALUE);
  expect_violation(SIMCUDA_NO_ACCESS);
  ok(cu.cuCtxEnablePeerAccess(first, 0));
  ok(fill(address));
  expect(cu.cuCtxEnablePeerAccess(first, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
  ok(cu.cuCtxDisablePeerAccess(first));
  expect(cu.cuCtxDisablePeerAccess(first), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
  expect(fill(address), CUDA_ERROR_INVALID_VALUE);
  expect_violation(SIMCUDA_NO_ACCESS);
}

Test(peer, memory_of_a_pool_needs_access_to_the_pool) {
  begin("");
  CUdeviceptr address;
  CUmemoryPool pool;
  ok(cu.cuMemAllocAsync(&address, 64, NULL));
  ok(cu.cuCtxSynchronize());
  ok(cu.cuDeviceGetDefaultMemPool(&pool, 0));
  use_second();
  ok(cu.cuCtxEnablePeerAccess(first, 0));
  expect(fill(address), CUDA_ERROR_INVALID_VALUE);
  expect_violation(SIMCUDA_NO_ACCESS);
  const CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1},
                                  .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  ok(cu.cuMemPoolSetAccess(pool, &access, 1));
  ok(fill(address));
}

Test(peer, mapped_memory_needs_access_to_the_mapping) {
  begin("");
  CUmemGenericAllocationHandle handle;
  CUdeviceptr address = mapped_memory(1, &handle);
  use_second();
  ok(cu.cuCtxEnablePeerAccess(first, 0));
  expect(fill(address), CUDA_ERROR_INVALID_VALUE);
  expect_violation(SIMCUDA_NO_ACCESS);
  const CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1},
                                  .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  ok(cu.cuMemSetAccess(address, 2 << 20, &access, 1));
  ok(fill(address));
}

Test(peer, a_peer_copy_of_plain_memory_needs_no_access) {
  begin("SIMCUDA_PEERS=none");
  CUdeviceptr from = device_memory(500);
  unsigned char bytes[500];
  fill_bytes(bytes, sizeof bytes, 2);
  ok(cu.cuMemcpyHtoD_v2(from, bytes, sizeof bytes));
  ok(cu.cuCtxSynchronize());
  use_second();
  CUdeviceptr to = device_memory(500);
  ok(cu.cuMemcpyPeer(to, second, from, first, 500));
  ok(cu.cuCtxSynchronize());
  check_device(to, 500, 2);
  expect_no_violation();
}

Test(peer, devices_that_are_no_peers_cannot_enable_access) {
  begin("SIMCUDA_DEVICES=3 SIMCUDA_PEERS=01");
  CUcontext third = use_device(2);
  int can = -1;
  ok(cu.cuDeviceCanAccessPeer(&can, 0, 1));
  cr_assert_eq(can, 1);
  ok(cu.cuDeviceCanAccessPeer(&can, 2, 0));
  cr_assert_eq(can, 0);
  ok(cu.cuDeviceGetP2PAttribute(&can, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 1, 0));
  cr_assert_eq(can, 1);
  expect(cu.cuCtxEnablePeerAccess(first, 0), CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
  ok(cu.cuCtxSetCurrent(first));
  expect(cu.cuCtxEnablePeerAccess(third, 0), CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
  ok(cu.cuCtxEnablePeerAccess(second, 0));
}
