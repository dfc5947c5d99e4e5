/* The tests' kernels as the simulated driver needs them: what each touches, and what it does. */
#include <string.h>

#include "gpu/kernels.h"
#include "sim_cuda/control.h"

static uint64_t word(void *const *parameters, size_t index) {
  uint64_t value;
  memcpy(&value, parameters[index], sizeof value);
  return value;
}

static size_t pattern_accesses(void *const *parameters, simcuda_access *out) {
  out[0] = (simcuda_access){
      .address = word(parameters, 0), .size = word(parameters, 1) * 4, .write = true};
  return 1;
}

static void pattern_run(void *const *parameters, unsigned char *const *bytes) {
  uint32_t seed;
  memcpy(&seed, parameters[2], sizeof seed);
  for (uint64_t i = 0; i < word(parameters, 1); i++) {
    const uint32_t value = gpu_word(i, seed);
    memcpy(bytes[0] + i * 4, &value, 4);
  }
}

static size_t copy_accesses(void *const *parameters, simcuda_access *out) {
  const uint64_t size = word(parameters, 2) * 4;
  out[0] = (simcuda_access){.address = word(parameters, 0), .size = size, .write = true};
  out[1] = (simcuda_access){.address = word(parameters, 1), .size = size};
  return 2;
}

static void copy_run(void *const *parameters, unsigned char *const *bytes) {
  memcpy(bytes[0], bytes[1], word(parameters, 2) * 4);
}

void gpu_kernels_simulate(void) {
  static const simcuda_kernel pattern = {3, {8, 8, 4}, pattern_accesses, pattern_run};
  static const simcuda_kernel copy = {3, {8, 8, 8}, copy_accesses, copy_run};
  static bool done;
  const simcuda_control *const control = simcuda_control_get();
  if (done || control == NULL)
    return;
  control->register_kernel("gpu_pattern", &pattern);
  control->register_kernel("gpu_copy", &copy);
  done = true;
}
