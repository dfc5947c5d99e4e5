/* Finds the driver: $QUAY_CUDA_LIBRARY, else libcuda.so.1, as Quay does. */
#include "driver.h"

#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool find(void *library, const char *name, void *out) {
  void *const symbol = dlsym(library, name);
  memcpy(out, (const void *)&symbol, sizeof symbol);
  return symbol != NULL;
}

bool driver_load(driver *out) {
  const char *named = getenv("QUAY_CUDA_LIBRARY");
  const char *path = named != NULL ? named : "libcuda.so.1";
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    fprintf(stderr, "digits_cuda: no CUDA driver: %s\n", dlerror());
    return false;
  }
  const bool whole = find(library, "cuInit", &out->init) &&
                     find(library, "cuDeviceGet", &out->device_get) &&
                     find(library, "cuDevicePrimaryCtxRetain", &out->context_retain) &&
                     find(library, "cuDevicePrimaryCtxRelease_v2", &out->context_release) &&
                     find(library, "cuCtxSetCurrent", &out->context_set) &&
                     find(library, "cuModuleLoadData", &out->module_load) &&
                     find(library, "cuModuleUnload", &out->module_unload) &&
                     find(library, "cuModuleGetFunction", &out->module_function) &&
                     find(library, "cuLaunchKernel", &out->launch) &&
                     find(library, "cuGetErrorName", &out->error_name);
  if (!whole)
    fprintf(stderr, "digits_cuda: %s is no CUDA driver of version 11 or later\n", path);
  return whole;
}

bool driver_did(const driver *cuda, int result, const char *what) {
  const char *name = NULL;
  if (result == 0)
    return true;
  if (cuda->error_name(result, &name) != 0 || name == NULL)
    name = "an unknown error";
  fprintf(stderr, "digits_cuda: %s: %s (%d)\n", what, name, result);
  return false;
}
