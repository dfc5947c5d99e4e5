/* What settings.c and entry.c share. */
#ifndef QUAY_TESTS_SIM_CUDA_SETTINGS_H
#define QUAY_TESTS_SIM_CUDA_SETTINGS_H

#include "sim.h"

/* Reads the environment. */
void sim_configure(void);
/* simcuda_fail() with the lock held. */
void sim_fail(const char *name, uint64_t n, int code);
/* Forgets counters and failures. */
void sim_calls_clear(void);

#endif
