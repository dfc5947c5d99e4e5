/* What the simulator's own tests share: the driver's functions by dlsym, and a fresh driver. */
#ifndef QUAY_TESTS_SIM_CUDA_FIXTURE_H
#define QUAY_TESTS_SIM_CUDA_FIXTURE_H

#include <criterion/criterion.h>

#include "sim_cuda/abi.h"
#include "sim_cuda/control.h"

/* cu.cuMemAlloc_v2(...) */
typedef struct driver_functions {
#define ENTRY(name, base, version, parameters)          CUresult(*name) parameters;
#define PER_THREAD(name, suffix, parameters, arguments) CUresult(*name##_##suffix) parameters;
#include "sim_cuda/entries.def"
#undef ENTRY
#undef PER_THREAD
} driver_functions;

extern driver_functions cu;
extern const simcuda_control *simcuda;

/* A new driver with these settings ("SIMCUDA_MEMORY=65536 SIMCUDA_PEERS=none"), not initialised. */
void start_uninitialised(const char *settings);
/* The same, initialised, with the primary context of device 0 current. */
CUcontext start(const char *settings);
/* The primary context of a device, made current. */
CUcontext use_device(int device);
/* Forgets violations; the test fails unless there was just one, of that kind. */
void expect_violation(simcuda_violation_kind kind);
void expect_no_violation(void);

CUdeviceptr device_memory(size_t bytes);
unsigned char *pinned_memory(size_t bytes);
CUstream non_blocking_stream(void);
CUfunction kernel(const char *name);
void launch(const char *name, CUstream stream, void **parameters);
/* A kernel that waits at the gate, which a test opens. */
void hold(CUstream stream, uint32_t gate);
/* bytes[i] is a function of i and seed, never 0 throughout. */
void fill_bytes(void *bytes, size_t size, unsigned seed);
/* Fails unless all bytes are as fill_bytes() made them. */
void check_bytes(const void *bytes, size_t size, unsigned seed);
/* The bytes at an address of a device, behind the driver's back. */
void check_device(CUdeviceptr address, size_t size, unsigned seed);
bool device_holds(CUdeviceptr address, size_t size, unsigned seed);
/* A mapping of `pieces` handles of 2 MiB, reached by the device. */
CUdeviceptr mapped_memory(size_t pieces, CUmemGenericAllocationHandle *handles);

#define ok(call) expect(call, CUDA_SUCCESS)
#define expect(call, code)                                                              \
  do {                                                                                  \
    const int got_ = (int)(call);                                                       \
    cr_assert_eq(got_, (int)(code), "%s answers %d, not %d", #call, got_, (int)(code)); \
  } while (0)

#endif
