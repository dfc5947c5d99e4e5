/* For tests of whoever uses the driver: the control side of the simulator that $QUAY_CUDA_LIBRARY
 * names, without linking it. */
#ifndef QUAY_TESTS_SIM_CUDA_CONTROL_H
#define QUAY_TESTS_SIM_CUDA_CONTROL_H

#include "simcuda.h"

typedef struct simcuda_control {
  size_t (*violations)(simcuda_violation *out, size_t capacity);
  void (*forget_violations)(void);
  void (*reset)(void);
  uint64_t (*calls)(const char *name);
  void (*fail)(const char *name, uint64_t n, int code);
  uint64_t (*failed)(void);
  void (*count)(simcuda_census *out);
  void (*host_access)(const void *pointer, size_t size, bool write);
  void (*publish)(void);
  void (*observe)(void);
  uint64_t (*run_all)(void);
  void (*gate)(unsigned gate, bool open);
  bool (*peek)(uint64_t address, void *out, size_t size);
  void (*lose)(int code);
  void (*register_kernel)(const char *name, const simcuda_kernel *kernel);
  void *library; /* of dlopen, for dlsym of driver functions */
} simcuda_control;

/* NULL: the variable is not set, or names something else, such as a real driver. The library is
 * never unloaded. */
const simcuda_control *simcuda_control_get(void);

#endif
