/* The CUDA driver as another library of the process calls it: every function by its exported name,
 * without Quay. For tests and benchmarks; nothing of Quay and of a test framework is needed. */
#ifndef QUAY_TESTS_RAW_CUDA_H
#define QUAY_TESTS_RAW_CUDA_H

#include <stdbool.h>

#include "sim_cuda/abi.h"

typedef struct CUgraphExec_st *CUgraphExec;

/* cu->cuMemAlloc_v2(...). What a driver does not export is NULL. */
typedef struct raw_cuda {
#define ENTRY(name, base, version, parameters) CUresult(*name) parameters;
#include "sim_cuda/entries.def"
#undef ENTRY
  /* What the simulated driver does not have. */
  CUresult (*cuModuleLoadDataEx)(CUmodule *module, const void *image, unsigned count, int *options,
                                 void **values);
  CUresult (*cuGraphInstantiateWithFlags)(CUgraphExec *exec, CUgraph graph,
                                          unsigned long long flags);
  CUresult (*cuGraphLaunch)(CUgraphExec exec, CUstream stream);
  CUresult (*cuGraphExecDestroy)(CUgraphExec exec);
  bool simulated;
  int devices;
} raw_cuda;

/* Loads and starts the driver ($QUAY_CUDA_LIBRARY, else libcuda.so.1), once. NULL and a reason
 * where there is none, or no device. Kernels are loaded whole, so that a first launch waits for
 * nothing, and streams share no queue of the hardware. Thread-safety: to be called by one thread
 * first. */
const raw_cuda *raw_cuda_start(char *out_reason, size_t size);

/* "CUDA_ERROR_ILLEGAL_ADDRESS"; the started driver's. */
const char *raw_cuda_name(CUresult result);

#endif
