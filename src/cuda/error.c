/* The driver's results as errors of Quay, and which of them lose the device. */
#include "cuda/error.h"

#include <stdarg.h>
#include <stdio.h>

#include "core/device_impl.h"
#include "core/error.h"
#include "cuda/cuda_impl.h"
#include "cuda/driver.h"

/* Results after which cuda.h says that "the process must be terminated and relaunched" (CUresult,
 * under each code), and three that are treated so to be safe. Measured with driver 580: neither
 * destroying nor resetting contexts brings a device back, and every device of the process is lost
 * with it. What is not here leaves the device usable: 2 (out of memory), 701 and 720 (a launch that
 * asked for too much) among them. */
static const quay__cu_result sticky[] = {
    QUAY__CU_CONTAINED,
    QUAY__CU_ILLEGAL_ADDRESS,
    QUAY__CU_LAUNCH_TIMEOUT,
    QUAY__CU_ASSERT,
    QUAY__CU_HARDWARE_STACK_ERROR,
    QUAY__CU_ILLEGAL_INSTRUCTION,
    QUAY__CU_MISALIGNED_ADDRESS,
    QUAY__CU_INVALID_ADDRESS_SPACE,
    QUAY__CU_INVALID_PC,
    QUAY__CU_LAUNCH_FAILED,
    QUAY__CU_TENSOR_MEMORY_LEAK,
    QUAY__CU_MPS_CLIENT_TERMINATED,
    QUAY__CU_EXTERNAL_DEVICE,
    /* To be safe: memory may hold anything after these. */
    QUAY__CU_ECC_UNCORRECTABLE,
    QUAY__CU_NVLINK_UNCORRECTABLE,
};

bool quay__cuda_sticky(quay__cu_result result) {
  for (size_t i = 0; i < sizeof sticky / sizeof sticky[0]; i++) {
    if (sticky[i] == result)
      return true;
  }
  return false;
}

quay_status quay__cuda_status_of(quay__cu_result result) {
  if (result == QUAY__CU_SUCCESS)
    return QUAY_OK;
  if (quay__cuda_sticky(result))
    return QUAY_STATUS_DEVICE_LOST;
  if (result >= QUAY__CU_CAPTURE_UNSUPPORTED && result <= QUAY__CU_CAPTURE_WRONG_THREAD)
    return QUAY_STATUS_UNSUPPORTED;
  switch (result) {
  case QUAY__CU_OUT_OF_MEMORY:
    return QUAY_STATUS_OUT_OF_DEVICE_MEMORY;
  case QUAY__CU_CONTEXT_IS_DESTROYED: /* somebody reset the device */
    return QUAY_STATUS_STALE;
  case QUAY__CU_NOT_SUPPORTED:
  case QUAY__CU_PEER_ACCESS_UNSUPPORTED:
    return QUAY_STATUS_UNSUPPORTED;
  case QUAY__CU_INVALID_VALUE:
  case QUAY__CU_INVALID_HANDLE:
  case QUAY__CU_INVALID_CONTEXT:
    return QUAY_STATUS_INVALID_ARGUMENT;
  default: /* an open set: results that are no more than "not now, not here" */
    return QUAY_STATUS_UNAVAILABLE;
  }
}

static const char *known_name(quay__cu_result result) {
  switch (result) {
#define NAME(name, value, native) \
  case value:                     \
    return #native;
    QUAY__CU_RESULTS(NAME)
#undef NAME
  default: /* an open set */
    return "CUDA_ERROR";
  }
}

const char *quay__cuda_result_name(quay__cu_result result) {
  const quay__cuda_api *const api = quay__cuda_started();
  const char *name = NULL;
  if (api != NULL && quay__cuda_callable() &&
      api->cuGetErrorName(result, &name) == QUAY__CU_SUCCESS && name != NULL)
    return name;
  return known_name(result);
}

/* "out of memory", or "" where the driver does not say. */
static const char *result_text(quay__cu_result result) {
  const quay__cuda_api *const api = quay__cuda_started();
  const char *text = NULL;
  if (api != NULL && quay__cuda_callable() &&
      api->cuGetErrorString(result, &text) == QUAY__CU_SUCCESS && text != NULL)
    return text;
  return "";
}

static void describe(quay__cu_result result, const char *format, va_list arguments, char *out_text,
                     size_t size) QUAY_PRINTF(2, 0);

/* Writes "what was asked: an illegal memory access was encountered (CUDA_ERROR_ILLEGAL_ADDRESS)".
 */
static void describe(quay__cu_result result, const char *format, va_list arguments, char *out_text,
                     size_t size) {
  const int length = vsnprintf(out_text, size, format, arguments);
  const size_t used = length < 0 ? 0 : (size_t)length < size ? (size_t)length : size - 1;
  const char *const text = result_text(result);
  const char *const cure = result == QUAY__CU_CONTEXT_IS_DESTROYED
                               ? "; another library has reset the device, and all of its memory is "
                                 "gone; after quay_device_reset() it can be used again"
                               : "";
  (void)snprintf(out_text + used, size - used, ": %s%s(%s)%s", text, text[0] != '\0' ? " " : "",
                 quay__cuda_result_name(result), cure);
}

static quay_status fail(quay__cuda_device *device, quay__cu_result result, const char *text) {
  const quay_status status = quay__cuda_status_of(result);
  if (device != NULL && status == QUAY_STATUS_DEVICE_LOST) {
    quay__cuda_devices_mark_lost(
        result, "%s; no device of this process can be used any more: start a new process", text);
    const quay_status first = quay__device_check(device->device);
    if (first != QUAY_OK)
      return first;
  }
  return quay_error_set(status, "cuda", result, quay__cuda_result_name(result), "%s", text);
}

quay_status quay__cuda_fail(quay__cuda_device *device, quay__cu_result result, const char *format,
                            ...) {
  char text[QUAY_ERROR_MESSAGE_SIZE - 128];
  va_list arguments;
  va_start(arguments, format);
  describe(result, format, arguments, text, sizeof text);
  va_end(arguments);
  return fail(device, result, text);
}

void quay__cuda_report(quay__cuda_device *device, quay__cu_result result, const char *format, ...) {
  char text[QUAY_ERROR_MESSAGE_SIZE - 128];
  va_list arguments;
  va_start(arguments, format);
  describe(result, format, arguments, text, sizeof text);
  va_end(arguments);
  quay__error_state saved;
  quay__error_save(&saved);
  (void)fail(device, result, text);
  quay__error_restore(&saved);
  quay_log(QUAY_LOG_ERROR, "cuda: %s", text);
}
