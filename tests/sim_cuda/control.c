/* Finds the simulator's control functions. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "control.h"

static simcuda_control control;
static bool found;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static bool take(const char *name, void *out) {
  void *const symbol = dlsym(control.library, name);
  memcpy(out, (const void *)&symbol, sizeof symbol);
  return symbol != NULL;
}

static void load(void) {
  const char *const path = getenv("QUAY_CUDA_LIBRARY");
  control.library = path != NULL ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
  if (control.library == NULL)
    return;
  found = take("simcuda_violations", (void *)&control.violations) &&
          take("simcuda_forget_violations", (void *)&control.forget_violations) &&
          take("simcuda_reset", (void *)&control.reset) &&
          take("simcuda_calls", (void *)&control.calls) &&
          take("simcuda_fail", (void *)&control.fail) &&
          take("simcuda_failed", (void *)&control.failed) &&
          take("simcuda_count", (void *)&control.count) &&
          take("simcuda_host_access", (void *)&control.host_access) &&
          take("simcuda_publish", (void *)&control.publish) &&
          take("simcuda_observe", (void *)&control.observe) &&
          take("simcuda_run_all", (void *)&control.run_all) &&
          take("simcuda_gate", (void *)&control.gate) &&
          take("simcuda_peek", (void *)&control.peek) &&
          take("simcuda_lose", (void *)&control.lose) &&
          take("simcuda_register_kernel", (void *)&control.register_kernel);
}

const simcuda_control *simcuda_control_get(void) {
  (void)pthread_once(&once, load);
  return found ? &control : NULL;
}
