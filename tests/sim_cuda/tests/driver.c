/* The driver itself: modes, symbols, versions, failures on request, sticky errors, fork. */
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fixture.h"

static void expect_init(const char *mode, int code) {
  start_uninitialised(mode);
  expect(cu.cuInit(0), code);
  int count;
  expect(cu.cuDeviceGetCount(&count),
         code == CUDA_ERROR_STUB_LIBRARY ? CUDA_ERROR_STUB_LIBRARY : CUDA_ERROR_NOT_INITIALIZED);
}

Test(driver, init_fails_as_the_mode_says_and_leaves_the_driver_uninitialised) {
  expect_init("SIMCUDA_MODE=no_device", 100);
  expect_init("SIMCUDA_MODE=uninitialized", 3);
  expect_init("SIMCUDA_MODE=stub", 34);
  expect_init("SIMCUDA_MODE=mismatch", 803);
  expect_init("SIMCUDA_MODE=unknown", 999);
}

Test(driver, no_call_works_before_init) {
  start_uninitialised("");
  int count;
  CUcontext context;
  expect(cu.cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
  expect(cu.cuDevicePrimaryCtxRetain(&context, 0), CUDA_ERROR_NOT_INITIALIZED);
}

Test(driver, a_driver_without_devices_counts_none) {
  start_uninitialised("SIMCUDA_MODE=no_devices");
  ok(cu.cuInit(0));
  int count = -1;
  ok(cu.cuDeviceGetCount(&count));
  cr_assert_eq(count, 0);
  CUdevice device;
  expect(cu.cuDeviceGet(&device, 0), CUDA_ERROR_INVALID_DEVICE);
}

Test(driver, an_old_driver_says_so_and_has_no_newer_function) {
  start_uninitialised("SIMCUDA_MODE=old");
  int version = 0;
  ok(cu.cuDriverGetVersion(&version));
  cr_assert_eq(version, 10020);
  void *function = &version;
  CUdriverProcAddressQueryResult status;
  expect(cu.cuGetProcAddress_v2("cuMemAllocAsync", &function, 13000, 0, &status),
         CUDA_ERROR_NOT_FOUND);
  cr_assert_null(function);
  cr_assert_eq(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
}

static void *symbol(const char *name, int version, cuuint64_t flags) {
  void *function = NULL;
  CUdriverProcAddressQueryResult status;
  ok(cu.cuGetProcAddress_v2(name, &function, version, flags, &status));
  return function;
}

#define SAME(function, pointer) (memcmp(&(function), &(pointer), sizeof(pointer)) == 0)

Test(driver, a_symbol_is_the_newest_that_the_asked_version_has) {
  start_uninitialised("");
  void *const before = symbol("cuDeviceGetUuid", 11030, 0);
  void *const after = symbol("cuDeviceGetUuid", 11040, 0);
  cr_assert(SAME(cu.cuDeviceGetUuid, before));
  cr_assert(SAME(cu.cuDeviceGetUuid_v2, after));
}

Test(driver, the_flag_of_per_thread_streams_chooses_other_functions) {
  start_uninitialised("");
  void *const legacy = symbol("cuMemcpyHtoD", 12000, CU_GET_PROC_ADDRESS_LEGACY_STREAM);
  void *const own = symbol("cuMemcpyHtoD", 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
  cr_assert(SAME(cu.cuMemcpyHtoD_v2, legacy));
  cr_assert(SAME(cu.cuMemcpyHtoD_v2_ptds, own));
}

Test(driver, an_unknown_symbol_is_an_error_or_success_with_null) {
  int dummy;
  void *function = &dummy;
  CUdriverProcAddressQueryResult status;
  start_uninitialised("SIMCUDA_MISSING=cuMemAlloc,cuMemPoolTrimTo");
  expect(cu.cuGetProcAddress_v2("cuMemPoolTrimTo", &function, 12000, 0, &status), 500);
  cr_assert_null(function);
  start_uninitialised("SIMCUDA_MISSING=cuMemAlloc SIMCUDA_ABSENT=success");
  function = &dummy;
  ok(cu.cuGetProcAddress_v2("cuMemAlloc", &function, 12000, 0, &status));
  cr_assert_null(function);
  cr_assert_eq(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  /* A name that only begins like one of the list is there. */
  ok(cu.cuGetProcAddress_v2("cuMemAllocHost", &function, 12000, 0, &status));
  cr_assert_not_null(function);
  start_uninitialised("SIMCUDA_MODE=stub");
  expect(cu.cuGetProcAddress("cuMemFree", &function, 12000, 0), 34);
}

Test(driver, errors_have_names_and_texts) {
  start_uninitialised("");
  const char *text = NULL;
  ok(cu.cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &text));
  cr_assert_str_eq(text, "CUDA_ERROR_OUT_OF_MEMORY");
  ok(cu.cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &text));
  cr_assert_gt(strlen(text), 5);
  expect(cu.cuGetErrorName((CUresult)12345, &text), CUDA_ERROR_INVALID_VALUE);
  cr_assert_null(text);
}

Test(driver, devices_tell_what_they_are) {
  start_uninitialised("SIMCUDA_MEMORY=123456789 SIMCUDA_MANAGED=0 SIMCUDA_VMM=0");
  ok(cu.cuInit(0));
  int value = -1;
  char name[64];
  CUuuid first;
  CUuuid second;
  size_t bytes;
  ok(cu.cuDeviceGetCount(&value));
  cr_assert_eq(value, 2);
  ok(cu.cuDeviceGetName(name, sizeof name, 1));
  cr_assert_not_null(strchr(name, '1'));
  ok(cu.cuDeviceGetUuid_v2(&first, 0));
  ok(cu.cuDeviceGetUuid_v2(&second, 1));
  cr_assert_neq(memcmp(&first, &second, sizeof first), 0);
  ok(cu.cuDeviceTotalMem_v2(&bytes, 1));
  cr_assert_eq(bytes, 123456789);
  ok(cu.cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0));
  cr_assert_eq(value, 9);
  ok(cu.cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 0));
  cr_assert_eq(value, 0);
  ok(cu.cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0));
  cr_assert_eq(value, 0);
  expect(cu.cuDeviceGetAttribute(&value, (CUdevice_attribute)9999, 0), CUDA_ERROR_INVALID_VALUE);
  expect(cu.cuDeviceTotalMem_v2(&bytes, 2), CUDA_ERROR_INVALID_DEVICE);
}

Test(driver, the_nth_call_of_any_function_fails_once) {
  start("");
  CUdeviceptr address;
  simcuda->fail(NULL, 2, CUDA_ERROR_UNKNOWN);
  ok(cu.cuMemAlloc_v2(&address, 64));
  expect(cu.cuMemFree_v2(address), CUDA_ERROR_UNKNOWN);
  ok(cu.cuMemFree_v2(address));
  cr_assert_eq(simcuda->failed(), 1);
}

Test(driver, the_nth_call_of_a_name_fails_as_the_environment_says) {
  start("SIMCUDA_FAIL=cuMemAlloc_v2:2:2");
  CUdeviceptr address;
  ok(cu.cuMemAlloc_v2(&address, 64));
  expect(cu.cuMemAlloc_v2(&address, 64), CUDA_ERROR_OUT_OF_MEMORY);
  ok(cu.cuMemAlloc_v2(&address, 64));
  start_uninitialised("SIMCUDA_FAIL=1");
  expect(cu.cuInit(0), CUDA_ERROR_UNKNOWN);
  ok(cu.cuInit(0));
}

Test(driver, calls_are_counted_by_name) {
  start("");
  CUdeviceptr address;
  const uint64_t all = simcuda->calls(NULL);
  ok(cu.cuMemAlloc_v2(&address, 64));
  ok(cu.cuMemAlloc_v2(&address, 64));
  cr_assert_eq(simcuda->calls("cuMemAlloc_v2"), 2);
  cr_assert_eq(simcuda->calls(NULL), all + 2);
}

static void expect_everything_lost(int code) {
  CUdeviceptr address;
  CUcontext context;
  CUstream stream;
  expect(cu.cuMemAlloc_v2(&address, 64), code);
  expect(cu.cuCtxSynchronize(), code);
  expect(cu.cuStreamCreate(&stream, 0), code);
  expect(cu.cuCtxPopCurrent_v2(&context), code);
  expect(cu.cuDevicePrimaryCtxReset_v2(0), code);
  expect(cu.cuDevicePrimaryCtxRetain(&context, 0), code);
  expect(cu.cuDevicePrimaryCtxRetain(&context, 1), code);
}

Test(driver, an_illegal_address_is_an_error_of_every_later_call) {
  start("");
  launch("simcuda_illegal_address", NULL, NULL);
  expect(cu.cuCtxSynchronize(), 700);
  expect_everything_lost(700);
}

Test(driver, a_trap_is_an_error_of_every_later_call) {
  start("SIMCUDA_SCHEDULE=manual");
  launch("simcuda_trap", NULL, NULL);
  expect(cu.cuCtxSynchronize(), 719);
  expect_everything_lost(719);
}

Test(driver, destroying_its_context_does_not_cure_a_sticky_error) {
  start("");
  CUcontext context;
  ok(cu.cuCtxCreate_v2(&context, 0, 0));
  launch("simcuda_trap", NULL, NULL);
  expect(cu.cuCtxSynchronize(), 719);
  expect(cu.cuCtxDestroy_v2(context), 719);
  expect_everything_lost(719);
}

Test(driver, a_sticky_code_that_was_asked_for_stays) {
  start("");
  CUdeviceptr address;
  simcuda->fail("cuMemAlloc_v2", 1, CUDA_ERROR_HARDWARE_STACK_ERROR);
  expect(cu.cuMemAlloc_v2(&address, 64), 714);
  expect_everything_lost(714);
}

Test(driver, a_lost_device_lets_waits_end) {
  start("");
  CUstream stream = non_blocking_stream();
  hold(stream, 0);
  simcuda->lose(702);
  expect(cu.cuStreamSynchronize(stream), 702);
}

Test(driver, a_child_of_fork_is_not_initialised) {
  start("");
  CUdeviceptr address = device_memory(64);
  const pid_t child = fork();
  if (child == 0) {
    CUcontext context;
    const bool refused = cu.cuMemFree_v2(address) == CUDA_ERROR_NOT_INITIALIZED &&
                         cu.cuInit(0) == CUDA_ERROR_NOT_INITIALIZED &&
                         cu.cuCtxGetCurrent(&context) == CUDA_ERROR_NOT_INITIALIZED;
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  cr_assert_eq(waitpid(child, &status, 0), child);
  cr_assert_eq(status, 0);
  ok(cu.cuMemFree_v2(address));
}
