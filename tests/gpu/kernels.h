/* The tests' kernels on a device's primary context, launched through the driver. No test framework
 * is needed. */
#ifndef QUAY_TESTS_GPU_KERNELS_H
#define QUAY_TESTS_GPU_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "support/raw_cuda/raw_cuda.h"

/* See kernels.cu. */
typedef enum gpu_kernel {
  GPU_SLEEP,   /* (uint32_t microseconds) */
  GPU_HOLD,    /* launched by gpu_hold() */
  GPU_PATTERN, /* (uint64_t to, uint64_t words, uint32_t seed) */
  GPU_COPY,    /* (uint64_t to, uint64_t from, uint64_t words) */
  GPU_ILLEGAL_ADDRESS,
  GPU_TRAP,
  GPU_KERNEL_COUNT,
} gpu_kernel;

enum {
  GPU_DEVICES_MAX = 8,
  GPU_GATES = 8,
};

/* What GPU_PATTERN writes to the word of this index: no byte of it is 0. */
static inline uint32_t gpu_word(uint64_t index, uint32_t seed) {
  return ((uint32_t)index * 2654435761u + seed) | 0x01010101u;
}

/* Retains the device's primary context, makes it current for this call, and loads and runs every
 * harmless kernel once. False and a reason if that fails. */
bool gpu_kernels_load(const raw_cuda *driver, int device, char *out_reason, size_t size);
/* Unloads all of them and gives the contexts back. */
void gpu_kernels_unload(void);

/* NULL where the kernels are not loaded. */
CUcontext gpu_context(int device);

/* Makes the device's primary context current, and what was current before again. */
CUresult gpu_enter(int device);
CUresult gpu_leave(void);

/* With the context current for the launch alone. */
CUresult gpu_launch(int device, gpu_kernel kernel, CUstream stream, void **parameters,
                    uint64_t words);

/* Keeps the stream busy until the gate is opened, five seconds at most. All are closed at first and
 * an open one stays open. */
CUresult gpu_hold(int device, CUstream stream, unsigned gate);
void gpu_gate_open(unsigned gate);
/* Whether a kernel gave up waiting at it; after the stream has been waited for. */
bool gpu_gate_was_late(unsigned gate);

/* simulated.c: makes the kernels known to the simulated driver. */
void gpu_kernels_simulate(void);

#endif
