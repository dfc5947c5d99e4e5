/* The driver's functions by dlsym, and a fresh driver for each test. */
#include "fixture.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

driver_functions cu;
const simcuda_control *simcuda;

static void take(const char *name, void *out) {
  void *const symbol = dlsym(simcuda->library, name);
  cr_assert_not_null(symbol, "%s is missing", name);
  memcpy(out, (const void *)&symbol, sizeof symbol);
}

static void clear_environment(void) {
  static const char *const names[] = {
      "SIMCUDA_MODE",   "SIMCUDA_SCHEDULE", "SIMCUDA_DEVICES", "SIMCUDA_MEMORY",
      "SIMCUDA_PEERS",  "SIMCUDA_FAIL",     "SIMCUDA_MISSING", "SIMCUDA_ABSENT",
      "SIMCUDA_DRIVER", "SIMCUDA_MANAGED",  "SIMCUDA_VMM",     "SIMCUDA_POOLS",
      "SIMCUDA_EAGER",  "SIMCUDA_SEED",     "SIMCUDA_DELAY",   "SIMCUDA_HOST_THREADS",
  };
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    unsetenv(names[i]);
}

void start_uninitialised(const char *settings) {
  simcuda = simcuda_control_get();
  cr_assert_not_null(simcuda, "QUAY_CUDA_LIBRARY names no simulator");
#define ENTRY(name, base, version, parameters) take(#name, (void *)&cu.name);
#define PER_THREAD(name, suffix, parameters, arguments) \
  take(#name "_" #suffix, (void *)&cu.name##_##suffix);
#include "sim_cuda/entries.def"
#undef ENTRY
#undef PER_THREAD
  clear_environment();
  char *const copy = strdup(settings);
  cr_assert_not_null(copy);
  char *rest = NULL;
  for (char *word = strtok_r(copy, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
    char *const value = strchr(word, '=');
    cr_assert_not_null(value);
    *value = '\0';
    setenv(word, value + 1, 1);
  }
  free(copy);
  simcuda->reset();
}

CUcontext use_device(int device) {
  CUcontext context;
  ok(cu.cuDevicePrimaryCtxRetain(&context, device));
  ok(cu.cuCtxSetCurrent(context));
  return context;
}

CUcontext start(const char *settings) {
  start_uninitialised(settings);
  ok(cu.cuInit(0));
  return use_device(0);
}

void expect_violation(simcuda_violation_kind kind) {
  simcuda_violation first = {.kind = 0};
  const size_t count = simcuda->violations(&first, 1);
  cr_assert_eq(count, 1, "%zu violations, the first: %s", count, first.message);
  cr_assert_eq(first.kind, kind, "of kind %d: %s", (int)first.kind, first.message);
  simcuda->forget_violations();
}

void expect_no_violation(void) {
  simcuda_violation first = {.kind = 0};
  const size_t count = simcuda->violations(&first, 1);
  cr_assert_eq(count, 0, "%s", first.message);
}

CUdeviceptr device_memory(size_t bytes) {
  CUdeviceptr address;
  ok(cu.cuMemAlloc_v2(&address, bytes));
  return address;
}

unsigned char *pinned_memory(size_t bytes) {
  void *pointer;
  ok(cu.cuMemHostAlloc(&pointer, bytes, CU_MEMHOSTALLOC_PORTABLE));
  return pointer;
}

CUstream non_blocking_stream(void) {
  CUstream stream;
  ok(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  return stream;
}

CUfunction kernel(const char *name) {
  CUmodule module;
  CUfunction function;
  ok(cu.cuModuleLoadData(&module, "any image"));
  ok(cu.cuModuleGetFunction(&function, module, name));
  return function;
}

void launch(const char *name, CUstream stream, void **parameters) {
  ok(cu.cuLaunchKernel(kernel(name), 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
}

void hold(CUstream stream, uint32_t gate) {
  launch("simcuda_hold", stream, (void *[]){&gate});
}

static unsigned char byte_of(size_t i, unsigned seed) {
  return (unsigned char)(i * 31 + (i >> 8) * 7 + seed * 13 + 1);
}

void fill_bytes(void *bytes, size_t size, unsigned seed) {
  for (size_t i = 0; i < size; i++)
    ((unsigned char *)bytes)[i] = byte_of(i, seed);
}

static size_t first_difference(const unsigned char *bytes, size_t size, unsigned seed) {
  size_t i = 0;
  while (i < size && bytes[i] == byte_of(i, seed))
    i++;
  return i;
}

void check_bytes(const void *bytes, size_t size, unsigned seed) {
  const size_t at = first_difference(bytes, size, seed);
  cr_assert_eq(at, size, "byte %zu is wrong", at);
}

bool device_holds(CUdeviceptr address, size_t size, unsigned seed) {
  unsigned char *const bytes = malloc(size);
  cr_assert(bytes != NULL && simcuda->peek(address, bytes, size));
  const bool equal = first_difference(bytes, size, seed) == size;
  free(bytes);
  return equal;
}

void check_device(CUdeviceptr address, size_t size, unsigned seed) {
  cr_assert(device_holds(address, size, seed), "the bytes of the device are wrong");
}

CUdeviceptr mapped_memory(size_t pieces, CUmemGenericAllocationHandle *handles) {
  const size_t piece = 2 << 20;
  const CUmemAllocationProp properties = {
      .type = CU_MEM_ALLOCATION_TYPE_PINNED,
      .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
  };
  const CUmemAccessDesc access = {.location = properties.location,
                                  .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUdeviceptr address;
  ok(cu.cuMemAddressReserve(&address, pieces * piece, 0, 0, 0));
  for (size_t i = 0; i < pieces; i++) {
    ok(cu.cuMemCreate(&handles[i], piece, &properties, 0));
    ok(cu.cuMemMap(address + i * piece, piece, 0, handles[i], 0));
  }
  ok(cu.cuMemSetAccess(address, pieces * piece, &access, 1));
  return address;
}
