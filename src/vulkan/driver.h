/* The Vulkan loader: its library, found at first need, the instance, and whether either may be
 * called. */
#ifndef QUAY_VULKAN_DRIVER_H
#define QUAY_VULKAN_DRIVER_H

#define VK_NO_PROTOTYPES
#include <quay/status.h>
#include <stdbool.h>
#include <vulkan/vulkan_core.h>

/* The oldest version that has all that is needed: timeline semaphores are part of it. */
#define QUAY__VULKAN_VERSION VK_API_VERSION_1_2

/* An instance and its functions. Quay's own never changes once it is there. */
typedef struct quay__vulkan_instance {
  PFN_vkGetInstanceProcAddr get;
  VkInstance handle;
/* A declaration: the name can't stand in parentheses. */
#define QUAY__VULKAN_INSTANCE_SYMBOLS
#define X(name, need) PFN_##name name; /* NOLINT(bugprone-macro-parentheses) */
#include "vulkan/symbols.h"
#undef X
#undef QUAY__VULKAN_INSTANCE_SYMBOLS
} quay__vulkan_instance;

/* The functions of a device; those that it need not have are NULL where it has not. */
typedef struct quay__vulkan_api {
#define QUAY__VULKAN_DEVICE_SYMBOLS
#define X(name, need) PFN_##name name; /* NOLINT(bugprone-macro-parentheses) */
#include "vulkan/symbols.h"
#undef X
#undef QUAY__VULKAN_DEVICE_SYMBOLS
} quay__vulkan_api;

/* Loads the loader and makes Quay's instance, once; a failure is tried again at the next call.
 * UNAVAILABLE with the reason, which is also what the list of devices shows. */
quay_status quay__vulkan_start(const quay__vulkan_instance **out_instance);
/* Destroys Quay's instance, with QUAY__LOCK_VULKAN held and no device of it left. */
void quay__vulkan_stop(void);

/* Fills in the functions of an instance that the program made. */
quay_status quay__vulkan_instance_find(PFN_vkGetInstanceProcAddr get, VkInstance handle,
                                       quay__vulkan_instance *out_instance);
/* Fills in the functions of a device. */
quay_status quay__vulkan_api_find(const quay__vulkan_instance *instance, VkDevice device,
                                  quay__vulkan_api *out_api);

/* OK while Vulkan may be called: not in the child of a fork of a process that had used it, and not
 * once the process has begun to exit. */
quay_status quay__vulkan_check_callable(void);
bool quay__vulkan_callable(void);

#endif
