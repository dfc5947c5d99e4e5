/* The results of Vulkan as errors of Quay, and which of them lose the device. */
#include "vulkan/error.h"

#include <stdarg.h>
#include <stdio.h>

#include "core/device_impl.h"
#include "core/error.h"
#include "vulkan/vulkan_impl.h"

const char *quay__vulkan_result_name(VkResult result) {
  static const struct {
    VkResult result;
    const char *name;
  } names[] = {
#define NAME(result) {result, #result}
      NAME(VK_SUCCESS),
      NAME(VK_NOT_READY),
      NAME(VK_TIMEOUT),
      NAME(VK_ERROR_OUT_OF_HOST_MEMORY),
      NAME(VK_ERROR_OUT_OF_DEVICE_MEMORY),
      NAME(VK_ERROR_INITIALIZATION_FAILED),
      NAME(VK_ERROR_DEVICE_LOST),
      NAME(VK_ERROR_MEMORY_MAP_FAILED),
      NAME(VK_ERROR_LAYER_NOT_PRESENT),
      NAME(VK_ERROR_EXTENSION_NOT_PRESENT),
      NAME(VK_ERROR_FEATURE_NOT_PRESENT),
      NAME(VK_ERROR_INCOMPATIBLE_DRIVER),
      NAME(VK_ERROR_TOO_MANY_OBJECTS),
      NAME(VK_ERROR_UNKNOWN),
      NAME(VK_ERROR_INVALID_EXTERNAL_HANDLE),
      NAME(VK_ERROR_INVALID_OPAQUE_CAPTURE_ADDRESS),
      NAME(VK_ERROR_VALIDATION_FAILED_EXT),
#undef NAME
  };
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    if (names[i].result == result)
      return names[i].name;
  }
  return "VkResult";
}

quay_status quay__vulkan_status_of(VkResult result) {
  switch ((int)result) {
  case VK_SUCCESS:
    return QUAY_OK;
  case VK_ERROR_OUT_OF_HOST_MEMORY:
  case VK_ERROR_MEMORY_MAP_FAILED:
    return QUAY_STATUS_OUT_OF_HOST_MEMORY;
  case VK_ERROR_OUT_OF_DEVICE_MEMORY:
    return QUAY_STATUS_OUT_OF_DEVICE_MEMORY;
  case VK_ERROR_TOO_MANY_OBJECTS:
    return QUAY_STATUS_LIMIT_EXCEEDED;
  case VK_ERROR_DEVICE_LOST:
    return QUAY_STATUS_DEVICE_LOST;
  case VK_ERROR_EXTENSION_NOT_PRESENT:
  case VK_ERROR_FEATURE_NOT_PRESENT:
    return QUAY_STATUS_UNSUPPORTED;
  case VK_ERROR_INVALID_EXTERNAL_HANDLE:
    return QUAY_STATUS_INVALID_ARGUMENT;
  default: /* an open set: results that are no more than "not now, not here" */
    return QUAY_STATUS_UNAVAILABLE;
  }
}

static void describe(VkResult result, const char *format, va_list arguments, char *out_text,
                     size_t size) QUAY_PRINTF(2, 0);

/* Writes "what was asked (VK_ERROR_DEVICE_LOST)". */
static void describe(VkResult result, const char *format, va_list arguments, char *out_text,
                     size_t size) {
  const int length = vsnprintf(out_text, size, format, arguments);
  const size_t used = length < 0 ? 0 : (size_t)length < size ? (size_t)length : size - 1;
  (void)snprintf(out_text + used, size - used, " (%s)", quay__vulkan_result_name(result));
}

static quay_status fail(quay__vulkan_device *device, VkResult result, const char *text) {
  const quay_status status = quay__vulkan_status_of(result);
  if (device != NULL && device->device != NULL && status == QUAY_STATUS_DEVICE_LOST) {
    quay_device_mark_lost(device->device, result, quay__vulkan_result_name(result),
                          device->adopted ? "%s; make a new VkDevice and adopt that"
                                          : "%s; quay_device_reset() opens it again, without its "
                                            "memory",
                          text);
    quay__vulkan_abandon(device);
    const quay_status first = quay__device_check(device->device);
    if (first != QUAY_OK)
      return first;
  }
  return quay_error_set(status, "vulkan", result, quay__vulkan_result_name(result), "%s", text);
}

quay_status quay__vulkan_fail(quay__vulkan_device *device, VkResult result, const char *format,
                              ...) {
  char text[QUAY_ERROR_MESSAGE_SIZE - 128];
  va_list arguments;
  va_start(arguments, format);
  describe(result, format, arguments, text, sizeof text);
  va_end(arguments);
  return fail(device, result, text);
}

void quay__vulkan_report(quay__vulkan_device *device, VkResult result, const char *format, ...) {
  char text[QUAY_ERROR_MESSAGE_SIZE - 128];
  va_list arguments;
  va_start(arguments, format);
  describe(result, format, arguments, text, sizeof text);
  va_end(arguments);
  quay__error_state saved;
  quay__error_save(&saved);
  (void)fail(device, result, text);
  quay__error_restore(&saved);
  quay_log(QUAY_LOG_ERROR, "vulkan: %s", text);
}
