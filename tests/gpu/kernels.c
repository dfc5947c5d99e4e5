/* Loading and launching the tests' kernels, and the gates that some of them wait at. */
#include "gpu/kernels.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "sim_cuda/control.h"

enum {
  THREADS = 256,
  BLOCKS_MAX = 256,
  HOLD_MICROSECONDS = 5000000,
  JIT_LOG_BUFFER = 5,      /* CU_JIT_ERROR_LOG_BUFFER */
  JIT_LOG_BUFFER_SIZE = 6, /* CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES */
};

extern const char gpu_kernels_ptx[];

typedef struct loaded {
  CUcontext context;
  CUdevice device;
  CUmodule module;
  CUfunction functions[GPU_KERNEL_COUNT];
} loaded;

/* In pinned memory, read and written by the device while the host does. */
typedef struct gate_words {
  atomic_uint open;
  atomic_uint late;
} gate_words;

static const raw_cuda *cu;
static loaded devices[GPU_DEVICES_MAX];
static gate_words *gates;

static const char *const names[GPU_KERNEL_COUNT] = {
    [GPU_SLEEP] = "gpu_sleep",
    [GPU_HOLD] = "gpu_hold",
    [GPU_PATTERN] = "gpu_pattern",
    [GPU_COPY] = "gpu_copy",
    [GPU_ILLEGAL_ADDRESS] = "gpu_illegal_address",
    [GPU_TRAP] = "gpu_trap",
};
/* Those that the simulated driver has of its own have other names there. */
static const char *const simulated_names[GPU_KERNEL_COUNT] = {
    [GPU_SLEEP] = "simcuda_sleep",
    [GPU_HOLD] = "simcuda_hold",
    [GPU_PATTERN] = "gpu_pattern",
    [GPU_COPY] = "gpu_copy",
    [GPU_ILLEGAL_ADDRESS] = "simcuda_illegal_address",
    [GPU_TRAP] = "simcuda_trap",
};

static bool fails(CUresult result, const char *what, char *out_reason, size_t size) {
  if (result != CUDA_SUCCESS)
    snprintf(out_reason, size, "%s: %s", what, raw_cuda_name(result));
  return result != CUDA_SUCCESS;
}

static bool load_module(loaded *on, char *out_reason, size_t size) {
  static char log[2048];
  log[0] = '\0';
  int options[] = {JIT_LOG_BUFFER, JIT_LOG_BUFFER_SIZE};
  void *values[] = {log, (void *)(uintptr_t)sizeof log};
  const CUresult result =
      cu->cuModuleLoadDataEx != NULL
          ? cu->cuModuleLoadDataEx(&on->module, gpu_kernels_ptx, 2, options, values)
          : cu->cuModuleLoadData(&on->module, gpu_kernels_ptx);
  if (fails(result, "the kernels can't be loaded", out_reason, size)) {
    const size_t length = strlen(out_reason);
    snprintf(out_reason + length, size - length, " %s", log);
    return false;
  }
  for (int i = 0; i < GPU_KERNEL_COUNT; i++) {
    const char *const name = cu->simulated ? simulated_names[i] : names[i];
    if (fails(cu->cuModuleGetFunction(&on->functions[i], on->module, name), name, out_reason, size))
      return false;
  }
  return true;
}

/* The first launch of a kernel may load code, which waits for everything that runs. */
static CUresult warm_up(int device) {
  if (cu->simulated)
    return CUDA_SUCCESS;
  uint32_t zero = 0;
  uint64_t nowhere = 0, none = 0;
  CUresult result = gpu_launch(device, GPU_SLEEP, NULL, (void *[]){&zero}, 1);
  if (result == CUDA_SUCCESS)
    result = gpu_launch(device, GPU_PATTERN, NULL, (void *[]){&nowhere, &none, &zero}, 1);
  if (result == CUDA_SUCCESS)
    result = gpu_launch(device, GPU_COPY, NULL, (void *[]){&nowhere, &nowhere, &none}, 1);
  gpu_gate_open(GPU_GATES - 1);
  if (result == CUDA_SUCCESS)
    result = gpu_hold(device, NULL, GPU_GATES - 1);
  if (result == CUDA_SUCCESS)
    result = cu->cuCtxSynchronize();
  atomic_store(&gates[GPU_GATES - 1].open, 0);
  return result;
}

static bool make_gates(char *out_reason, size_t size) {
  void *memory = NULL;
  if (gates != NULL)
    return true;
  if (fails(cu->cuMemHostAlloc(&memory, GPU_GATES * sizeof(gate_words), CU_MEMHOSTALLOC_PORTABLE),
            "no pinned memory for gates", out_reason, size))
    return false;
  gates = memory;
  for (unsigned i = 0; i < GPU_GATES; i++) {
    atomic_init(&gates[i].open, 0);
    atomic_init(&gates[i].late, 0);
    if (cu->simulated)
      simcuda_control_get()->gate(i, false);
  }
  return true;
}

bool gpu_kernels_load(const raw_cuda *driver, int device, char *out_reason, size_t size) {
  cu = driver;
  loaded *const on = &devices[device];
  if (on->context != NULL)
    return true;
  if (cu->simulated)
    gpu_kernels_simulate();
  if (fails(cu->cuDeviceGet(&on->device, device), "no such device", out_reason, size) ||
      fails(cu->cuDevicePrimaryCtxRetain(&on->context, on->device), "no context", out_reason, size))
    return false;
  if (fails(gpu_enter(device), "no current context", out_reason, size))
    return false;
  bool good = load_module(on, out_reason, size) && make_gates(out_reason, size);
  good = good && !fails(warm_up(device), "running the kernels", out_reason, size);
  return !fails(gpu_leave(), "leaving the context", out_reason, size) && good;
}

void gpu_kernels_unload(void) {
  for (int i = 0; i < GPU_DEVICES_MAX; i++) {
    loaded *const on = &devices[i];
    if (on->context == NULL)
      continue;
    if (gpu_enter(i) == CUDA_SUCCESS) {
      if (gates != NULL)
        (void)cu->cuMemFreeHost(gates);
      gates = NULL;
      (void)cu->cuModuleUnload(on->module);
      (void)gpu_leave();
    }
    (void)cu->cuDevicePrimaryCtxRelease_v2(on->device);
    *on = (loaded){.context = NULL};
  }
}

CUcontext gpu_context(int device) {
  return devices[device].context;
}

CUresult gpu_enter(int device) {
  return cu->cuCtxPushCurrent_v2(devices[device].context);
}

CUresult gpu_leave(void) {
  CUcontext popped = NULL;
  return cu->cuCtxPopCurrent_v2(&popped);
}

static CUresult launch(int device, gpu_kernel kernel, CUstream stream, void **parameters,
                       unsigned blocks, unsigned threads) {
  CUresult result = gpu_enter(device);
  if (result != CUDA_SUCCESS)
    return result;
  result = cu->cuLaunchKernel(devices[device].functions[kernel], blocks, 1, 1, threads, 1, 1, 0,
                              stream, parameters, NULL);
  const CUresult left = gpu_leave();
  return result != CUDA_SUCCESS ? result : left;
}

CUresult gpu_launch(int device, gpu_kernel kernel, CUstream stream, void **parameters,
                    uint64_t words) {
  const uint64_t blocks = (words + THREADS - 1) / THREADS;
  const bool single = kernel == GPU_SLEEP || kernel == GPU_ILLEGAL_ADDRESS || kernel == GPU_TRAP;
  return launch(device, kernel, stream, parameters,
                single || blocks < 1  ? 1
                : blocks > BLOCKS_MAX ? BLOCKS_MAX
                                      : (unsigned)blocks,
                single ? 1 : THREADS);
}

CUresult gpu_hold(int device, CUstream stream, unsigned gate) {
  uint64_t open = (uint64_t)(uintptr_t)&gates[gate].open;
  uint64_t late = (uint64_t)(uintptr_t)&gates[gate].late;
  uint32_t microseconds = HOLD_MICROSECONDS;
  uint32_t simulated = gate;
  void *parameters[] = {cu->simulated ? (void *)&simulated : (void *)&open, &late, &microseconds};
  return launch(device, GPU_HOLD, stream, parameters, 1, 1);
}

void gpu_gate_open(unsigned gate) {
  if (cu == NULL || gates == NULL)
    return;
  atomic_store(&gates[gate].open, 1);
  if (cu->simulated)
    simcuda_control_get()->gate(gate, true);
}

bool gpu_gate_was_late(unsigned gate) {
  return gates != NULL && atomic_load(&gates[gate].late) != 0;
}
