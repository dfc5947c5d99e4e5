/* The results of Vulkan as errors of Quay, and which of them lose the device. */
#ifndef QUAY_VULKAN_ERROR_H
#define QUAY_VULKAN_ERROR_H

#define VK_NO_PROTOTYPES
#include <quay/backend.h>
#include <vulkan/vulkan_core.h>

struct quay__vulkan_device;

/* "VK_ERROR_DEVICE_LOST"; "VkResult" for a result without a name here. Static. */
const char *quay__vulkan_result_name(VkResult result);

/* What a call that gave `result` returns. */
quay_status quay__vulkan_status_of(VkResult result);

/* Sets the error of a call that failed: the message is the text, which says what was asked, with
 * the result's name appended. A loss marks the device lost, and the error is then the device's
 * first one. `device` NULL: nothing is marked. */
quay_status quay__vulkan_fail(struct quay__vulkan_device *device, VkResult result,
                              const char *format, ...) QUAY_PRINTF(3, 4);

/* The same for functions that can't return an error: logs, keeps the thread's error. */
void quay__vulkan_report(struct quay__vulkan_device *device, VkResult result, const char *format,
                         ...) QUAY_PRINTF(3, 4);

#endif
