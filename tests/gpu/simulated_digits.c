/* The kernels of examples/digits_cuda as the simulated driver needs them; linked into the example's
 * test. */
#include <string.h>

#include "sim_cuda/control.h"

enum {
  FLOAT = 4
};

static uint64_t word(void *const *parameters, size_t index) {
  uint64_t value;
  memcpy(&value, parameters[index], sizeof value);
  return value;
}

static uint32_t half(void *const *parameters, size_t index) {
  uint32_t value;
  memcpy(&value, parameters[index], sizeof value);
  return value;
}

static float get(const unsigned char *bytes, uint64_t index) {
  float value;
  memcpy(&value, bytes + index * FLOAT, FLOAT);
  return value;
}

/* (out, in, weight, bias, images, columns, rows, cut) */
static size_t dense_accesses(void *const *parameters, simcuda_access *out) {
  const uint64_t images = half(parameters, 4), columns = half(parameters, 5),
                 rows = half(parameters, 6);
  const uint64_t sizes[] = {images * rows, images * columns, rows * columns, rows};
  for (size_t i = 0; i < 4; i++) {
    out[i] =
        (simcuda_access){.address = word(parameters, i), .size = sizes[i] * FLOAT, .write = i == 0};
  }
  return 4;
}

static void dense_run(void *const *parameters, unsigned char *const *bytes) {
  const uint64_t images = half(parameters, 4), columns = half(parameters, 5),
                 rows = half(parameters, 6);
  for (uint64_t index = 0; index < images * rows; index++) {
    const uint64_t image = index / rows, row = index % rows;
    float sum = get(bytes[3], row);
    for (uint64_t column = 0; column < columns; column++)
      sum += get(bytes[2], row * columns + column) * get(bytes[1], image * columns + column);
    if (half(parameters, 7) != 0 && sum < 0)
      sum = 0;
    memcpy(bytes[0] + index * FLOAT, &sum, FLOAT);
  }
}

/* (digits, outputs, images, count) */
static size_t largest_accesses(void *const *parameters, simcuda_access *out) {
  const uint64_t images = half(parameters, 2), count = half(parameters, 3);
  out[0] = (simcuda_access){.address = word(parameters, 0), .size = images, .write = true};
  out[1] = (simcuda_access){.address = word(parameters, 1), .size = images * count * FLOAT};
  return 2;
}

static void largest_run(void *const *parameters, unsigned char *const *bytes) {
  const uint64_t images = half(parameters, 2), count = half(parameters, 3);
  for (uint64_t image = 0; image < images; image++) {
    uint64_t best = 0;
    for (uint64_t digit = 1; digit < count; digit++) {
      if (get(bytes[1], image * count + digit) > get(bytes[1], image * count + best))
        best = digit;
    }
    bytes[0][image] = (unsigned char)best;
  }
}

__attribute__((constructor)) static void simulate_digits(void) {
  static const simcuda_kernel dense = {8, {8, 8, 8, 8, 4, 4, 4, 4}, dense_accesses, dense_run};
  static const simcuda_kernel largest = {4, {8, 8, 4, 4}, largest_accesses, largest_run};
  const simcuda_control *const control = simcuda_control_get();
  if (control == NULL)
    return;
  control->register_kernel("dense", &dense);
  control->register_kernel("largest", &largest);
}
