/* The driver's results as errors of Quay, and which of them lose the device. */
#ifndef QUAY_CUDA_ERROR_H
#define QUAY_CUDA_ERROR_H

#include <quay/backend.h>

#include "cuda/abi.h"

struct quay__cuda_device;

/* "CUDA_ERROR_OUT_OF_MEMORY"; "CUDA_ERROR" for a result without a name. Static. */
const char *quay__cuda_result_name(quay__cu_result result);

/* What a call that gave `result` returns. */
quay_status quay__cuda_status_of(quay__cu_result result);

/* Whether the result ends all work of the process on its devices for good. */
bool quay__cuda_sticky(quay__cu_result result);

/* Sets the error of a call that failed: the message is the text, which says what was asked, with
 * what the driver says appended. A sticky result marks the devices lost, and the error is then the
 * device's first one. `device` NULL: nothing is marked. */
quay_status quay__cuda_fail(struct quay__cuda_device *device, quay__cu_result result,
                            const char *format, ...) QUAY_PRINTF(3, 4);

/* The same for functions that can't return an error: logs, keeps the thread's error. */
void quay__cuda_report(struct quay__cuda_device *device, quay__cu_result result, const char *format,
                       ...) QUAY_PRINTF(3, 4);

#endif
