/* The device of vulkan_raw.c, its queues and its memory, by the raw Vulkan interface. */
#ifndef QUAY_BENCH_VULKAN_RAW_H
#define QUAY_BENCH_VULKAN_RAW_H

#include <pthread.h>

#include "vulkan.h"
#include "vulkan/driver.h"

enum {
  FAMILIES_MAX = 16,
  QUEUES_MAX = 2, /* of a family that are used */
};

typedef struct raw_queue {
  VkQueue handle;
  pthread_mutex_t lock;
  uint32_t family;
  VkCommandPool pool;
  VkSemaphore timelines[2]; /* a plain one, and one for export */
  uint64_t values[2];
} raw_queue;

typedef struct raw_family {
  VkQueueFlags flags;
  uint32_t count; /* that are used; 0: can't copy */
  raw_queue queues[QUEUES_MAX];
} raw_family;

typedef enum raw_kind {
  RAW_IMPORTED, /* ordinary pages of the process */
  RAW_HOST,     /* HOST_VISIBLE, HOST_COHERENT */
  RAW_CACHED,   /* and HOST_CACHED */
  RAW_KINDS,
} raw_kind;

typedef struct raw_memory {
  VkBuffer buffer; /* VK_NULL_HANDLE: there is none of the kind */
  VkDeviceMemory memory;
  unsigned char *bytes;
} raw_memory;

typedef struct raw {
  quay__vulkan_instance instance;
  quay__vulkan_api api;
  PFN_vkFreeCommandBuffers free_commands;
  VkPhysicalDevice physical;
  VkDevice device;
  VkPhysicalDeviceMemoryProperties types;
  bool can_import, can_export;
  raw_family families[FAMILIES_MAX];
  uint32_t family_count;
  uint64_t size;
  raw_memory there, here[RAW_KINDS];
} raw;

static inline uint64_t least(uint64_t a, uint64_t b) {
  return a < b ? a : b;
}

/* Ends the program if the result is no success. */
void must(VkResult result, const char *what);

/* A VkDevice with all queues and both kinds of timelines on the physical device of Quay's, and
 * memory of every kind that there is, `size` bytes each. Prints the families of queues. */
void raw_open(raw *all, quay_device *device, uint64_t size);
void raw_close(raw *all);

#endif
