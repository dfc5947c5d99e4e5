/* Finds the driver's functions. */
#include "support/raw_cuda/raw_cuda.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static raw_cuda driver;
static bool started;

static void find(void *library, const char *name, void *out) {
  void *const symbol = dlsym(library, name);
  memcpy(out, (const void *)&symbol, sizeof symbol);
}

static void find_all(void *library) {
#define ENTRY(name, base, version, parameters) find(library, #name, (void *)&driver.name);
#include "sim_cuda/entries.def"
#undef ENTRY
  find(library, "cuModuleLoadDataEx", (void *)&driver.cuModuleLoadDataEx);
  find(library, "cuGraphInstantiateWithFlags", (void *)&driver.cuGraphInstantiateWithFlags);
  find(library, "cuGraphLaunch", (void *)&driver.cuGraphLaunch);
  find(library, "cuGraphExecDestroy", (void *)&driver.cuGraphExecDestroy);
  driver.simulated = dlsym(library, "simcuda_reset") != NULL;
}

const char *raw_cuda_name(CUresult result) {
  const char *name = NULL;
  if (driver.cuGetErrorName == NULL || driver.cuGetErrorName(result, &name) != CUDA_SUCCESS ||
      name == NULL)
    return "an unknown result";
  return name;
}

static bool start(char *out_reason, size_t size) {
  const char *const named = getenv("QUAY_CUDA_LIBRARY");
  const char *const path = named != NULL ? named : "libcuda.so.1";
  (void)setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  void *const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    snprintf(out_reason, size, "no CUDA driver: %s", dlerror());
    return false;
  }
  find_all(library);
  if (driver.cuInit == NULL || driver.cuDeviceGetCount == NULL || driver.cuLaunchKernel == NULL) {
    snprintf(out_reason, size, "%s is no CUDA driver", path);
    return false;
  }
  CUresult result = driver.cuInit(0);
  if (result == CUDA_SUCCESS)
    result = driver.cuDeviceGetCount(&driver.devices);
  if (result != CUDA_SUCCESS || driver.devices < 1) {
    snprintf(out_reason, size, "the CUDA driver has no device: %s", raw_cuda_name(result));
    return false;
  }
  return true;
}

const raw_cuda *raw_cuda_start(char *out_reason, size_t size) {
  if (!started)
    started = start(out_reason, size);
  return started ? &driver : NULL;
}
