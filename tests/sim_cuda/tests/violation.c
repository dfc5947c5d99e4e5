/* What the race detector finds, and what it does not blame. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fixture.h"

#define MANUAL "SIMCUDA_SCHEDULE=manual"

Test(violation, reads_on_two_streams_are_none) {
  start("");
  CUdeviceptr from = device_memory(64);
  ok(cu.cuMemcpyDtoDAsync_v2(device_memory(64), from, 64, non_blocking_stream()));
  ok(cu.cuMemcpyDtoDAsync_v2(device_memory(64), from, 64, non_blocking_stream()));
  expect_no_violation();
}

Test(violation, a_write_after_a_read_on_another_stream_is_one) {
  start("");
  CUdeviceptr from = device_memory(64);
  ok(cu.cuMemcpyDtoDAsync_v2(device_memory(64), from, 64, non_blocking_stream()));
  ok(cu.cuMemsetD8Async(from, 1, 64, non_blocking_stream()));
  expect_violation(SIMCUDA_UNORDERED);
}

Test(violation, neighbouring_bytes_do_not_conflict) {
  start("");
  CUdeviceptr address = device_memory(64);
  ok(cu.cuMemsetD8Async(address, 1, 32, non_blocking_stream()));
  ok(cu.cuMemsetD8Async(address + 32, 1, 32, non_blocking_stream()));
  expect_no_violation();
  ok(cu.cuMemsetD8Async(address + 31, 1, 1, non_blocking_stream()));
  expect_violation(SIMCUDA_UNORDERED);
}

Test(violation, the_result_does_not_depend_on_whether_the_first_has_run) {
  start(MANUAL);
  CUdeviceptr address = device_memory(64);
  ok(cu.cuMemsetD8Async(address, 1, 64, non_blocking_stream()));
  cr_assert_eq(simcuda->run_all(), 1);
  ok(cu.cuMemsetD8Async(address, 2, 64, non_blocking_stream()));
  expect_violation(SIMCUDA_UNORDERED);
}

Test(violation, a_wait_of_the_host_orders_what_follows) {
  start("");
  CUdeviceptr address = device_memory(64);
  CUstream first = non_blocking_stream();
  ok(cu.cuMemsetD8Async(address, 1, 64, first));
  ok(cu.cuStreamSynchronize(first));
  ok(cu.cuMemsetD8Async(address, 2, 64, non_blocking_stream()));
  ok(cu.cuCtxSynchronize());
  ok(cu.cuMemFree_v2(address));
  expect_no_violation();
}

Test(violation, a_wait_for_one_stream_does_not_order_another) {
  start("");
  CUdeviceptr address = device_memory(64);
  CUstream first = non_blocking_stream();
  CUstream second = non_blocking_stream();
  ok(cu.cuMemsetD8Async(address, 1, 64, first));
  ok(cu.cuStreamSynchronize(second));
  ok(cu.cuMemFree_v2(address));
  expect_violation(SIMCUDA_EARLY_FREE);
}

Test(violation, frees_of_pinned_memory_under_a_copy_are_told) {
  start("");
  void *const pinned = pinned_memory(64);
  CUstream stream = non_blocking_stream();
  hold(stream, 0);
  ok(cu.cuMemcpyHtoDAsync_v2(device_memory(64), pinned, 64, stream));
  ok(cu.cuMemFreeHost(pinned));
  expect_violation(SIMCUDA_EARLY_FREE);
  simcuda->gate(0, true);
  ok(cu.cuStreamSynchronize(stream));
}

Test(violation, unregistering_under_a_copy_is_told) {
  start("");
  static unsigned char bytes[4096];
  CUstream stream = non_blocking_stream();
  ok(cu.cuMemHostRegister_v2(bytes, sizeof bytes, 0));
  ok(cu.cuMemcpyHtoDAsync_v2(device_memory(64), bytes, 64, stream));
  ok(cu.cuMemHostUnregister(bytes));
  expect_violation(SIMCUDA_EARLY_FREE);
}

Test(violation, what_the_host_does_to_pinned_memory_counts_when_it_is_told) {
  start("");
  unsigned char *const pinned = pinned_memory(64);
  CUstream stream = non_blocking_stream();
  ok(cu.cuMemcpyHtoDAsync_v2(device_memory(64), pinned, 64, stream));
  simcuda->host_access(pinned, 64, false);
  expect_no_violation();
  simcuda->host_access(pinned + 63, 1, true);
  expect_violation(SIMCUDA_UNORDERED);
  ok(cu.cuStreamSynchronize(stream));
  simcuda->host_access(pinned, 64, true);
  expect_no_violation();
}

typedef struct other_thread {
  CUcontext context;
  CUdeviceptr address;
  bool observe;
} other_thread;

static void *fill_there(void *argument) {
  const other_thread *const t = argument;
  ok(cu.cuCtxSetCurrent(t->context));
  if (t->observe)
    simcuda->observe();
  ok(cu.cuMemsetD8Async(t->address, 2, 64, non_blocking_stream()));
  return NULL;
}

static void fill_in_two_threads(const char *settings, bool observe) {
  other_thread t = {.context = start(settings), .address = device_memory(64), .observe = observe};
  CUstream stream = non_blocking_stream();
  pthread_t thread;
  ok(cu.cuMemsetD8Async(t.address, 1, 64, stream));
  ok(cu.cuStreamSynchronize(stream));
  simcuda->publish();
  cr_assert_eq(pthread_create(&thread, NULL, fill_there, &t), 0);
  pthread_join(thread, NULL);
}

Test(violation, one_threads_wait_counts_for_all_by_default) {
  fill_in_two_threads("", false);
  expect_no_violation();
}

Test(violation, threads_apart_know_only_their_own_waits) {
  fill_in_two_threads("SIMCUDA_HOST_THREADS=apart", false);
  expect_violation(SIMCUDA_UNORDERED);
}

Test(violation, threads_apart_know_what_is_handed_on) {
  fill_in_two_threads("SIMCUDA_HOST_THREADS=apart", true);
  expect_no_violation();
}

Test(violation, a_strict_process_ends_with_a_status_of_its_own) {
  start_uninitialised("");
  fflush(NULL);
  const pid_t child = fork();
  if (child == 0) {
    setenv("SIMCUDA_STRICT", "1", 1);
    start("");
    CUdeviceptr address = device_memory(64);
    ok(cu.cuMemsetD8Async(address, 1, 64, non_blocking_stream()));
    ok(cu.cuMemFree_v2(address));
    if (freopen("/dev/null", "w", stderr) == NULL)
      _exit(2);
    exit(0);
  }
  int status = -1;
  cr_assert_eq(waitpid(child, &status, 0), child);
  cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == SIMCUDA_STRICT_EXIT);
}

Test(kernel, add_reads_two_arrays_and_writes_a_third) {
  start(MANUAL);
  enum {
    COUNT = 300
  };
  float a[COUNT];
  float b[COUNT];
  float sum[COUNT];
  for (int i = 0; i < COUNT; i++) {
    a[i] = (float)i + 1;
    b[i] = (float)(2 * i) + 0.5F;
  }
  CUdeviceptr d_a = device_memory(sizeof a);
  CUdeviceptr d_b = device_memory(sizeof b);
  CUdeviceptr d_sum = device_memory(sizeof sum);
  uint64_t count = COUNT;
  ok(cu.cuMemcpyHtoD_v2(d_a, a, sizeof a));
  ok(cu.cuMemcpyHtoD_v2(d_b, b, sizeof b));
  launch("simcuda_add", NULL, (void *[]){&d_sum, &d_a, &d_b, &count});
  ok(cu.cuMemcpyDtoH_v2(sum, d_sum, sizeof sum));
  for (int i = 0; i < COUNT; i++)
    cr_assert_eq(sum[i], a[i] + b[i], "element %d", i);
}

Test(kernel, its_accesses_are_judged) {
  start("");
  CUdeviceptr address = device_memory(400);
  uint64_t count = 100;
  uint32_t value = 5;
  launch("simcuda_fill", non_blocking_stream(), (void *[]){&address, &count, &value});
  ok(cu.cuMemsetD8Async(address + 399, 1, 1, non_blocking_stream()));
  expect_violation(SIMCUDA_UNORDERED);
}

Test(kernel, one_that_leaves_its_memory_is_an_illegal_address_when_it_runs) {
  start("");
  CUdeviceptr address = device_memory(400);
  uint64_t count = 101;
  uint32_t value = 5;
  launch("simcuda_fill", NULL, (void *[]){&address, &count, &value});
  expect_violation(SIMCUDA_OUT_OF_BOUNDS);
  expect(cu.cuCtxSynchronize(), 700);
}

Test(kernel, pageable_memory_of_the_host_is_an_illegal_address) {
  start("");
  uint32_t words[4];
  CUdeviceptr address = (CUdeviceptr)(uintptr_t)words;
  uint64_t count = 4;
  uint32_t value = 5;
  launch("simcuda_fill", NULL, (void *[]){&address, &count, &value});
  expect_violation(SIMCUDA_OUT_OF_BOUNDS);
  expect(cu.cuCtxSynchronize(), 700);
}

Test(kernel, unknown_names_and_bad_launches_are_refused) {
  start("");
  CUmodule module;
  CUfunction function;
  ok(cu.cuModuleLoadData(&module, "image"));
  expect(cu.cuModuleGetFunction(&function, module, "nobody"), CUDA_ERROR_NOT_FOUND);
  ok(cu.cuModuleGetFunction(&function, module, "simcuda_trap"));
  expect(cu.cuLaunchKernel(function, 0, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), 1);
  expect(cu.cuLaunchKernel(function, 1, 1, 1, 1025, 1, 1, 0, NULL, NULL, NULL), 1);
  ok(cu.cuModuleUnload(module));
  expect(cu.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), 400);
}

static size_t increment_accesses(void *const *parameters, simcuda_access *out) {
  memcpy(&out[0].address, parameters[0], 8);
  out[0].size = 1;
  out[0].write = true;
  return 1;
}

static void increment(void *const *parameters, unsigned char *const *bytes) {
  (void)parameters;
  bytes[0][0]++;
}

Test(kernel, a_test_adds_kernels_of_its_own) {
  start("");
  static const simcuda_kernel own = {1, {8}, increment_accesses, increment};
  simcuda->register_kernel("increment", &own);
  CUdeviceptr address = device_memory(1);
  ok(cu.cuMemsetD8_v2(address, 41, 1));
  launch("increment", NULL, (void *[]){&address});
  unsigned char byte = 0;
  ok(cu.cuMemcpyDtoH_v2(&byte, address, 1));
  cr_assert_eq(byte, 42);
}
