/* What the files of the shim share. */
#ifndef QUAY_TESTS_SUPPORT_SHIM_H
#define QUAY_TESTS_SUPPORT_SHIM_H

#define VK_NO_PROTOTYPES
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <vulkan/vulkan_core.h>

#include "vkshim.h"

#define SHIM_EXPORT __attribute__((visibility("default")))

enum {
  SHIM_DEVICES_MAX = 4,
  SHIM_FAMILY_COPIES = 1, /* beside the real family, which is 0 */
  SHIM_COPY_QUEUES = 2,
  SHIM_QUEUES = 1 + SHIM_COPY_QUEUES,
  /* Memory types of a discrete device. */
  SHIM_TYPE_OWN = 0,
  SHIM_TYPE_HOST = 1,
  SHIM_TYPE_CACHED = 2,
  SHIM_TYPES = 3,
};

/* Of memory that is not coherent: larger than the real one, so that what forgets it fails. */
#define SHIM_ATOM ((uint64_t)256)

typedef struct shim_settings {
  bool validate, discrete, coherent, no_address, no_export, no_semaphores, no_host_import;
  bool first_is_software;
  uint32_t devices;
  const char *uuid;                                           /* NULL: the real one */
  uint64_t max_allocations, max_allocation_bytes, heap_bytes; /* 0: the real one */
} shim_settings;

/* Handed out as a VkPhysicalDevice. */
typedef struct shim_physical {
  VkPhysicalDevice real;
  uint32_t number;
} shim_physical;

typedef struct shim_submission {
  struct shim_submission *next;
  VkCommandBuffer commands;
  VkSemaphore wait, signal;
  uint64_t wait_value, signal_value;
} shim_submission;

/* Handed out as a VkQueue of a discrete device. A thread submits what is in the list to the real
 * queue, late. The loader's part of the handle comes first. */
typedef struct shim_queue {
  void *loader_data;
  struct shim_device *device;
  uint32_t family, number;
  pthread_t thread;
  bool has_thread, stop, busy;
  shim_submission *first, **end;
} shim_queue;

typedef struct shim_device {
  struct shim_device *next;
  VkDevice real;
  bool lost;
  VkQueue queue; /* the real one */
  shim_queue queues[SHIM_QUEUES];
  PFN_vkGetDeviceProcAddr get;
#define SHIM_DEVICE_FUNCTIONS(X)         \
  X(vkGetMemoryHostPointerPropertiesEXT) \
  X(vkDestroyDevice)                     \
  X(vkDeviceWaitIdle)                    \
  X(vkGetDeviceQueue)                    \
  X(vkQueueWaitIdle)                     \
  X(vkQueueSubmit)                       \
  X(vkAllocateMemory)                    \
  X(vkFreeMemory)                        \
  X(vkMapMemory)                         \
  X(vkFlushMappedMemoryRanges)           \
  X(vkInvalidateMappedMemoryRanges)      \
  X(vkCreateBuffer)                      \
  X(vkDestroyBuffer)                     \
  X(vkGetMemoryFdKHR)                    \
  X(vkGetBufferMemoryRequirements)       \
  X(vkCreateSemaphore)                   \
  X(vkDestroySemaphore)                  \
  X(vkGetSemaphoreCounterValue)          \
  X(vkSignalSemaphore)                   \
  X(vkWaitSemaphores)                    \
  X(vkCreateCommandPool)                 \
  X(vkDestroyCommandPool)
#define X(name) PFN_##name name;
  SHIM_DEVICE_FUNCTIONS(X)
#undef X
} shim_device;

/* The process's. Guarded by the lock, but for what is set once. */
typedef struct shim_state {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  void *library;
  PFN_vkGetInstanceProcAddr get;
  shim_settings settings;
  VkInstance instance; /* the last one made */
  shim_physical physicals[SHIM_DEVICES_MAX];
  uint32_t physical_count;
  shim_device *devices;
  vkshim_census census;
  bool gate_open;
  uint64_t submissions[SHIM_QUEUES]; /* to late queues, of all devices together */
} shim_state;

extern shim_state shim;

/* instance.c */
PFN_vkVoidFunction shim_instance_function(const char *name);
/* device.c */
PFN_vkVoidFunction shim_device_function(const char *name);
shim_device *shim_device_of(VkDevice device);
VkResult shim_create_device(const shim_physical *physical, const VkDeviceCreateInfo *info,
                            const VkAllocationCallbacks *allocator, VkDevice *out_device);
SHIM_EXPORT void vkshim_lose(void);
bool shim_is_lost(const shim_device *device);
/* semaphore.c */
PFN_vkVoidFunction shim_semaphore_function(const char *name);
/* Waits for a value. False if the device is lost meanwhile: it may never come then. */
bool shim_semaphore_await(shim_device *device, VkSemaphore semaphore, uint64_t value);
/* Once it is reached the other side of an exported one sees it. */
void shim_semaphore_mirror(shim_device *device, VkSemaphore semaphore, uint64_t value);
/* memory.c */
PFN_vkVoidFunction shim_memory_function(const char *name);
/* queue.c */
PFN_vkVoidFunction shim_queue_function(const char *name);
void shim_queues_begin(shim_device *device);
/* Submits what is left, and ends the threads. */
void shim_queues_end(shim_device *device);
/* Of a device that is lost: waits until real work on it is done, and no more is handed on. */
void shim_settle(shim_device *device);
/* Waits for what was handed on. */
void shim_real_idle(shim_device *device);
/* messages.c */
void shim_messages_begin(VkInstance instance);
void shim_messages_end(VkInstance instance);
VkResult shim_create_validated(const VkInstanceCreateInfo *info,
                               const VkAllocationCallbacks *allocator, VkInstance *out_instance);
/* Something that a test must not do without noticing. */
void shim_violation(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* fault.c: whether this call is to fail; `*out_result` says how. Counts it. */
bool shim_fails(const char *function, VkResult *out_result);

/* A function of ours as Vulkan hands it out. */
#define SHIM_FUNCTION(function) ((PFN_vkVoidFunction)(function))

#endif
