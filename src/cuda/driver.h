/* The CUDA driver: its library, found and started at first need, and whether it may be called. */
#ifndef QUAY_CUDA_DRIVER_H
#define QUAY_CUDA_DRIVER_H

#include <quay/status.h>
#include <stdbool.h>

#include "cuda/abi.h"

/* The driver's functions; optional ones may be NULL. Never changes once it is there. */
typedef struct quay__cuda_api {
/* Declarations: neither a name nor a list of parameters can stand in parentheses. */
#define X(name, suffix, version, streams, need, parameters) \
  quay__cu_result(*name) parameters; /* NOLINT(bugprone-macro-parentheses) */
#include "cuda/symbols.h"
#undef X
  int version;   /* cuDriverGetVersion: 12040 for CUDA 12.4 */
  char path[64]; /* what was loaded, for messages: "libcuda.so.1", cut */
} quay__cuda_api;

/* The oldest driver that can be used: CUDA 11.0. */
#define QUAY__CUDA_VERSION_MIN 11000

/* Loads and starts the driver, once; a failure is tried again at the next call.
 * UNAVAILABLE with the reason, which is also what the list of devices shows. */
quay_status quay__cuda_start(const quay__cuda_api **out_api);

/* OK while the driver may be called: not in the child of a fork of a process that had started it,
 * and not once the process has begun to exit. */
quay_status quay__cuda_check_callable(void);
bool quay__cuda_callable(void);

/* The driver if it has been started, else NULL. */
const quay__cuda_api *quay__cuda_started(void);

#endif
