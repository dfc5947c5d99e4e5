/* The Vulkan devices of this machine: the list, the choice of one, and those that are kept open. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/device_impl.h"
#include "core/error.h"
#include "core/lifecycle.h"
#include "vulkan/vulkan_impl.h"

/* Kept until quay__vulkan_shutdown(): opening a device takes a good part of a second. Guarded by
 * QUAY__LOCK_VULKAN. */
static quay_device *devices[QUAY__VULKAN_DEVICES_MAX];

quay_status quay__vulkan_list(const quay__vulkan_instance *instance, VkPhysicalDevice *out_list,
                              uint32_t *out_count) {
  *out_count = QUAY__VULKAN_DEVICES_MAX;
  const VkResult result =
      instance->vkEnumeratePhysicalDevices(instance->handle, out_count, out_list);
  if (result != VK_SUCCESS && result != VK_INCOMPLETE) {
    *out_count = 0;
    return quay__vulkan_fail(NULL, result, "the Vulkan devices can't be listed");
  }
  if (*out_count != 0)
    return QUAY_OK;
  return quay_error_set(QUAY_STATUS_UNAVAILABLE, "vulkan", 0, NULL,
                        "the Vulkan loader shows no device; install a driver, and look at "
                        "VK_DRIVER_FILES and VK_ICD_FILENAMES if they are set");
}

/* Choice. */

quay_status quay__vulkan_find_uuid(const uint8_t uuid[VK_UUID_SIZE], uint64_t *out_index) {
  const quay__vulkan_instance *instance;
  VkPhysicalDevice list[QUAY__VULKAN_DEVICES_MAX];
  uint32_t count;
  QUAY_TRY(quay__vulkan_start(&instance));
  QUAY_TRY(quay__vulkan_list(instance, list, &count));
  for (uint32_t i = 0; i < count; i++) {
    quay__vulkan_physical physical;
    quay__vulkan_inspect(instance, list[i], &physical);
    if (memcmp(physical.uuid, uuid, VK_UUID_SIZE) == 0) {
      *out_index = i;
      return QUAY_OK;
    }
  }
  return quay_error_set(QUAY_STATUS_UNAVAILABLE, "vulkan", 0, NULL,
                        "none of the %u Vulkan devices has this UUID", count);
}

/* Lower is better: a processor that plays a device is the last resort. */
static int rank_of(VkPhysicalDeviceType type) {
  switch ((int)type) {
  case VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU:
    return 0;
  case VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU:
    return 1;
  case VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU:
    return 2;
  case VK_PHYSICAL_DEVICE_TYPE_CPU:
    return 4;
  default: /* OTHER, and what later versions add */
    return 3;
  }
}

quay_status quay__vulkan_find_default(uint64_t *out_index) {
  const quay__vulkan_instance *instance;
  VkPhysicalDevice list[QUAY__VULKAN_DEVICES_MAX];
  uint32_t count;
  int best = 5;
  QUAY_TRY(quay__vulkan_start(&instance));
  QUAY_TRY(quay__vulkan_list(instance, list, &count));
  *out_index = 0; /* if none can be used, the first one says why */
  for (uint32_t i = 0; i < count; i++) {
    quay__vulkan_physical physical;
    quay__vulkan_inspect(instance, list[i], &physical);
    if (physical.reason[0] == '\0' && rank_of(physical.type) < best) {
      best = rank_of(physical.type);
      *out_index = i;
    }
  }
  return QUAY_OK;
}

/* Getting one. */

static quay_status check_usable(const quay__vulkan_instance *instance, VkPhysicalDevice handle,
                                uint64_t index) {
  quay__vulkan_physical physical;
  quay__vulkan_inspect(instance, handle, &physical);
  if (physical.reason[0] == '\0')
    return QUAY_OK;
  return quay_error_set(QUAY_STATUS_UNAVAILABLE, "vulkan", 0, NULL,
                        "vulkan:%" PRIu64 " (%s) can't be used: %s", index, physical.product,
                        physical.reason);
}

/* With QUAY__LOCK_VULKAN held. */
static quay_status get(const quay__vulkan_instance *instance, VkPhysicalDevice physical,
                       uint64_t index, quay_device **out_device) {
  if (devices[index] == NULL) {
    quay_device *made = NULL;
    QUAY_TRY(check_usable(instance, physical, index));
    QUAY_TRY(quay__vulkan_device_make(instance, physical, index, &made));
    devices[index] = made;
  }
  *out_device = quay_device_retain(devices[index]);
  return QUAY_OK;
}

quay_status quay__vulkan_device_get(uint64_t index, quay_device **out_device) {
  *out_device = NULL;
  const quay__vulkan_instance *instance;
  VkPhysicalDevice list[QUAY__VULKAN_DEVICES_MAX];
  uint32_t count;
  QUAY_TRY(quay__vulkan_start(&instance));
  QUAY_TRY(quay__vulkan_list(instance, list, &count));
  if (index >= count) {
    return quay_error_set(QUAY_STATUS_UNAVAILABLE, "vulkan", 0, NULL,
                          "there is no device vulkan:%" PRIu64 "; the Vulkan loader shows "
                          "vulkan:0 to vulkan:%u",
                          index, count - 1);
  }
  quay__global_acquire(QUAY__LOCK_VULKAN);
  const quay_status status = get(instance, list[index], index, out_device);
  quay__global_release(QUAY__LOCK_VULKAN);
  return status;
}

/* The list. */

typedef struct device_line {
  char spec[32];
  quay__vulkan_physical physical;
  char reason[QUAY_ERROR_MESSAGE_SIZE];
} device_line;

static quay_status list_reason(size_t index, device_line *line, quay_device_info *out_info,
                               bool *out_more) {
  *out_more = index == 0;
  (void)snprintf(line->reason, sizeof line->reason, "%s", quay_last_error()->message);
  *out_info = (quay_device_info){
      .backend = "vulkan",
      .spec = "vulkan",
      .name = "",
      .reason = line->reason,
      .type = QUAY_DEVICE_VULKAN,
  };
  return QUAY_OK;
}

/* What an open device tells beyond that: its free memory, and whether it is lost. */
static void add_state(size_t index, device_line *line, quay_device_info *out_info) {
  quay__global_acquire(QUAY__LOCK_VULKAN);
  quay_device *const device = quay_device_retain(devices[index]);
  quay__global_release(QUAY__LOCK_VULKAN);
  if (device == NULL)
    return;
  if (quay_device_memory_info(device, &out_info->memory) != QUAY_OK) {
    (void)snprintf(line->reason, sizeof line->reason, "%s", quay_last_error()->message);
    out_info->available = false;
  }
  quay_device_release(device);
}

quay_status quay__vulkan_device_info(void *user, size_t index, quay_device_info *out_info,
                                     bool *out_more) {
  (void)user;
  static _Thread_local device_line line;
  const quay__vulkan_instance *instance;
  VkPhysicalDevice list[QUAY__VULKAN_DEVICES_MAX];
  uint32_t count;
  if (quay__vulkan_start(&instance) != QUAY_OK ||
      quay__vulkan_list(instance, list, &count) != QUAY_OK)
    return list_reason(index, &line, out_info, out_more);
  *out_more = index < count;
  if (!*out_more)
    return QUAY_OK;
  quay__vulkan_inspect(instance, list[index], &line.physical);
  (void)snprintf(line.spec, sizeof line.spec, "vulkan:%zu", index);
  (void)snprintf(line.reason, sizeof line.reason, "%s", line.physical.reason);
  *out_info = (quay_device_info){
      .backend = "vulkan",
      .spec = line.spec,
      .name = line.physical.product,
      .available = line.reason[0] == '\0',
      .reason = line.reason,
      .type = QUAY_DEVICE_VULKAN,
      .index = (int32_t)index,
      .memory = {.total_bytes = line.physical.bytes},
  };
  if (out_info->available)
    add_state(index, &line, out_info);
  return QUAY_OK;
}

/* Shutdown. */

void quay__vulkan_shutdown(void) {
  for (size_t i = 0; i < QUAY__VULKAN_DEVICES_MAX; i++) {
    quay__global_acquire(QUAY__LOCK_VULKAN);
    quay_device *const device = devices[i];
    devices[i] = NULL;
    quay__global_release(QUAY__LOCK_VULKAN);
    quay_device_release(device);
  }
  quay__global_acquire(QUAY__LOCK_VULKAN);
  if (quay__vulkan_live_devices == 0)
    quay__vulkan_stop();
  quay__global_release(QUAY__LOCK_VULKAN);
}
