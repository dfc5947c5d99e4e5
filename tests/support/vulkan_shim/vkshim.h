/* The control functions of the shim before the Vulkan loader. Settings are read from the
 * environment when an instance is made:
 *
 *   VKSHIM_VALIDATE=1   the Khronos validation layer is on; a message that messages.c does not
 *                       list makes the process end with status VKSHIM_EXIT
 *   VKSHIM_DISCRETE=1   the device passes for a discrete one: memory that the host can't map,
 *                       cached host memory that is not coherent, queues for copies alone, all late;
 *                       exported memory is that of a memfd
 *   VKSHIM_COHERENT=1   the cached host memory of a discrete device is coherent
 *   VKSHIM_DEVICES=2    so many devices, which are the same one, with UUIDs of their own
 *   VKSHIM_FIRST_IS_SOFTWARE=1   of several discrete ones the first passes for a processor
 *   VKSHIM_UUID=TEXT    the 16 characters are the UUID of the first device
 *   VKSHIM_NO_ADDRESS=1, VKSHIM_NO_EXPORT=1   without the feature, without the extension
 *   VKSHIM_NO_SEMAPHORES=1   a discrete device's semaphores can't be exported
 *   VKSHIM_NO_HOST_IMPORT=1  and it can't import host memory
 *   VKSHIM_MAX_ALLOCATIONS, VKSHIM_MAX_ALLOCATION_BYTES, VKSHIM_HEAP_BYTES   limits */
#ifndef QUAY_TESTS_SUPPORT_VKSHIM_H
#define QUAY_TESTS_SUPPORT_VKSHIM_H

#include <stddef.h>
#include <stdint.h>

#define VKSHIM_EXIT 96

/* Objects that are alive. */
typedef struct vkshim_census {
  uint64_t instances, devices, memories, buffers, semaphores, pools;
} vkshim_census;

typedef struct vkshim_control {
  void *library;
  void (*count)(vkshim_census *out);
  /* Devices that are open now are lost: calls that can say so do. */
  void (*lose)(void);
  /* The n-th call from now of the function of this name fails with `result` (a VkResult); n = 0:
   * none does. Functions that return a VkResult and are counted: vkQueueSubmit, vkAllocateMemory,
   * vkCreateBuffer, vkMapMemory, vkCreateDevice, vkWaitSemaphores, vkCreateCommandPool,
   * vkCreateSemaphore, vkGetSemaphoreFdKHR, vkSignalSemaphore, vkGetMemoryFdKHR,
   * vkGetMemoryHostPointerPropertiesEXT. */
  void (*fail)(const char *function, uint64_t n, int result);
  /* Calls so far. */
  uint64_t (*calls)(const char *function);
  /* While closed, late queues keep what is submitted to them. */
  void (*gate)(int open);
  /* Submissions so far to a discrete device's queue: 0 is that of streams, 1 and 2 are for copies.
   */
  uint64_t (*submissions)(unsigned queue);
} vkshim_control;

/* NULL if the shim is not there. */
const vkshim_control *vkshim_control_get(void);

#endif
