/* Vulkan devices: made and ended, reset, and their functions but for streams. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/checked.h"
#include "core/device_impl.h"
#include "core/error.h"
#include "core/os.h"
#include "vulkan/vulkan_impl.h"

uint32_t quay__vulkan_live_devices;

/* All devices, the program's too. Guarded by QUAY__LOCK_VULKAN. */
static quay__vulkan_device *live;

/* With the lock held. */
static void enlist(quay__vulkan_device *device) {
  device->next_live = live;
  if (live != NULL)
    live->previous_live = device;
  live = device;
}

static void delist(const quay__vulkan_device *device) {
  if (device->previous_live != NULL) {
    device->previous_live->next_live = device->next_live;
  } else {
    live = device->next_live;
  }
  if (device->next_live != NULL)
    device->next_live->previous_live = device->previous_live;
}

void quay__vulkan_devices_close(bool alone) {
  if (!alone)
    quay__global_acquire(QUAY__LOCK_VULKAN);
  for (quay__vulkan_device *device = live; device != NULL; device = device->next_live)
    atomic_store_explicit(&device->device->untouchable, true, memory_order_relaxed);
  if (!alone)
    quay__global_release(QUAY__LOCK_VULKAN);
}

/* The end. */

/* Everything that is of the VkDevice, and it. */
static void close_handle(quay__vulkan_device *device) {
  for (uint32_t i = 0; i < device->queue_count; i++)
    quay__vulkan_settle(&device->queues[i]);
  for (uint32_t i = 0; i < device->queue_count; i++)
    quay__vulkan_queue_end(&device->queues[i], false);
  quay__vulkan_blocks_kill(device);
  if (!device->adopted)
    device->api.vkDestroyDevice(device->handle, NULL);
  device->handle = NULL;
}

static void destroy_locks(quay__vulkan_device *device) {
  for (uint32_t i = 0; i < QUAY__VULKAN_QUEUES_MAX; i++)
    quay__lock_destroy(&device->queues[i].lock);
  quay__lock_destroy(&device->lock);
}

static void device_destroy(void *self) {
  quay__vulkan_device *const device = self;
  if (device->handle != NULL && quay__vulkan_callable()) {
    close_handle(device);
  } else if (device->handle != NULL) { /* only what is the process's */
    for (uint32_t i = 0; i < device->queue_count; i++)
      quay__vulkan_lanes_end(&device->queues[i], true);
    (void)quay__vulkan_trim(device);
  }
  quay__global_acquire(QUAY__LOCK_VULKAN);
  delist(device);
  if (!device->adopted)
    quay__vulkan_live_devices--;
  quay__global_release(QUAY__LOCK_VULKAN);
  destroy_locks(device);
  quay__os_free(device);
}

bool quay__vulkan_is(const quay_device *device) {
  return device != NULL && device->vtable.destroy == device_destroy;
}

/* Functions. */

static void ask_budget(const quay__vulkan_device *device, uint32_t heap,
                       quay_memory_info *out_info) {
  VkPhysicalDeviceMemoryBudgetPropertiesEXT budget = {
      .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT};
  VkPhysicalDeviceMemoryProperties2 memory = {
      .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2,
      .pNext = &budget,
  };
  device->instance->vkGetPhysicalDeviceMemoryProperties2(device->physical, &memory);
  const uint64_t most = budget.heapBudget[heap], used = budget.heapUsage[heap];
  out_info->free_bytes = quay__min(used < most ? most - used : 0, out_info->total_bytes);
}

static quay_status device_memory_info(quay_device *quay, quay_memory_info *out_info) {
  const quay__vulkan_device *const device = quay__vulkan_device_of(quay);
  QUAY_TRY(quay__vulkan_check_callable());
  const uint64_t total = device->types[QUAY_VULKAN_DEVICE].heap_bytes;
  const uint64_t taken =
      atomic_load_explicit(&device->reserved[QUAY_VULKAN_DEVICE], memory_order_relaxed);
  *out_info = (quay_memory_info){
      .total_bytes = total,
      .free_bytes = taken < total ? total - taken : 0,
  };
  if (device->has_budget)
    ask_budget(device, device->types[QUAY_VULKAN_DEVICE].heap, out_info);
  return QUAY_OK;
}

static quay_status device_synchronize(quay_device *quay) {
  quay__vulkan_device *const device = quay__vulkan_device_of(quay);
  for (uint32_t i = 0; i < device->queue_count; i++)
    QUAY_TRY(quay__vulkan_drain(&device->queues[i]));
  return QUAY_OK;
}

/* Lost or healthy: the VkDevice with all that is in it is destroyed, and a new one opened. */
static quay_status device_reset(quay_device *quay) {
  quay__vulkan_device *const device = quay__vulkan_device_of(quay);
  QUAY_TRY(quay__vulkan_check_callable());
  if (device->adopted) {
    return quay_error_set(QUAY_STATUS_UNSUPPORTED, "vulkan", 0, NULL,
                          "%s is the program's own VkDevice, which Quay can't make anew; make one "
                          "and adopt that",
                          device->name);
  }
  if (device->handle != NULL)
    close_handle(device);
  const quay_status status = quay__vulkan_open_handle(device);
  if (status != QUAY_OK && quay_device_health(quay) == QUAY_HEALTH_OK) {
    quay_device_mark_lost(quay, 0, NULL, "it was reset, and could not be opened again: %s",
                          quay_last_error()->message);
  }
  return status;
}

static const quay_device_vtable vtable = {
    .destroy = device_destroy,
    .version = QUAY_DEVICE_VTABLE_VERSION,
    .struct_size = sizeof(quay_device_vtable),
    .memory_info = device_memory_info,
    .synchronize = device_synchronize,
    .reset = device_reset,
    .stream_create = quay__vulkan_stream_create,
    .stream_wrap = quay__vulkan_stream_wrap,
    .stream_destroy = quay__vulkan_stream_destroy,
    .stream_synchronize = quay__vulkan_stream_synchronize,
    .stream_wait = quay__vulkan_stream_wait,
    .event_record = quay__vulkan_event_record,
    .event_query = quay__vulkan_event_query,
    .event_synchronize = quay__vulkan_event_synchronize,
    .event_destroy = quay__vulkan_event_destroy,
};

/* Making one. */

static quay__vulkan_device *new_device(void) {
  quay__vulkan_device *const device = quay__os_calloc(1, sizeof *device);
  if (device == NULL)
    return NULL;
  quay__lock_init(&device->lock);
  for (uint32_t i = 0; i < QUAY__VULKAN_QUEUES_MAX; i++)
    quay__lock_init(&device->queues[i].lock);
  return device;
}

static void discard(quay__vulkan_device *device) {
  if (device->handle != NULL)
    close_handle(device);
  destroy_locks(device);
  quay__os_free(device);
}

/* The object around an opened device, which is discarded if that can't be made. */
static quay_status publish(quay__vulkan_device *device, quay_device **out_device) {
  quay_device_vtable table = vtable;
  /* Where the processor copies device memory there is no use for it. */
  if (device->has_host_import && !device->types[QUAY_VULKAN_DEVICE].mapped) {
    table.pin = quay__vulkan_pin;
    table.unpin = quay__vulkan_unpin;
    table.pins_for_itself = true;
    table.copy_streams = device->queue_count - device->stream_queue_count;
  }
  const quay_device_desc desc = {
      .vtable = &table,
      .self = device,
      .backend = "vulkan",
      .name = device->name,
      .type = QUAY_DEVICE_VULKAN,
      .index = device->index,
  };
  const quay_status status = quay_device_create(&desc, &device->device);
  if (status != QUAY_OK) {
    discard(device);
    return status;
  }
  *out_device = device->device;
  return QUAY_OK;
}

quay_status quay__vulkan_device_make(const quay__vulkan_instance *instance,
                                     VkPhysicalDevice physical, uint64_t index,
                                     quay_device **out_device) {
  quay__vulkan_device *const device = new_device();
  if (device == NULL)
    return quay__fail_out_of_memory(sizeof *device, "a Vulkan device");
  device->instance = instance;
  device->physical = physical;
  device->index = (int32_t)index;
  (void)snprintf(device->name, sizeof device->name, "vulkan:%" PRIu64, index);
  quay_status status = quay__vulkan_describe(device);
  if (status == QUAY_OK)
    status = quay__vulkan_open_handle(device);
  if (status != QUAY_OK) {
    discard(device);
    return status;
  }
  QUAY_TRY(publish(device, out_device));
  enlist(device);
  quay__vulkan_live_devices++;
  return QUAY_OK;
}

/* Around the program's. */

static void take_queues(quay__vulkan_device *device, const quay_vulkan_device_desc *desc) {
  device->families[0] = desc->queue_family;
  device->family_count = 1;
  device->queue_count = device->stream_queue_count = (uint32_t)desc->queue_count;
  for (size_t i = 0; i < desc->queue_count; i++) {
    quay__vulkan_queue *const queue = &device->queues[i];
    queue->device = device;
    queue->handle = QUAY__VULKAN_TO_HANDLE(VkQueue, desc->queues[i].queue);
    queue->family = desc->queue_family;
    queue->lock_callback = desc->queues[i].lock;
    queue->unlock_callback = desc->queues[i].unlock;
    queue->user = desc->queues[i].user;
  }
}

static quay_status check_physical(const quay__vulkan_device *device) {
  quay__vulkan_physical physical;
  quay__vulkan_inspect(device->instance, device->physical, &physical);
  if (physical.reason[0] == '\0')
    return QUAY_OK;
  return quay_error_set(QUAY_STATUS_UNSUPPORTED, "vulkan", 0, NULL,
                        "the device %s can't be adopted: %s", physical.product, physical.reason);
}

static quay_status adopt(quay__vulkan_device *device, const quay_vulkan_device_desc *desc) {
  PFN_vkGetInstanceProcAddr get;
  const uintptr_t address = (uintptr_t)desc->get_instance_proc_addr;
  memcpy(&get, &address, sizeof get);
  QUAY_TRY(quay__vulkan_check_callable());
  QUAY_TRY(quay__vulkan_instance_find(get, QUAY__VULKAN_TO_HANDLE(VkInstance, desc->instance),
                                      &device->own_instance));
  device->instance = &device->own_instance;
  device->physical = QUAY__VULKAN_TO_HANDLE(VkPhysicalDevice, desc->physical_device);
  VkDevice handle = QUAY__VULKAN_TO_HANDLE(VkDevice, desc->device);
  QUAY_TRY(check_physical(device));
  QUAY_TRY(quay__vulkan_api_find(device->instance, handle, &device->api));
  device->has_address =
      desc->has_buffer_device_address && device->api.vkGetBufferDeviceAddress != NULL;
  device->has_export = desc->has_external_memory_fd && device->api.vkGetMemoryFdKHR != NULL;
  device->has_host_import =
      desc->has_external_memory_host && device->api.vkGetMemoryHostPointerPropertiesEXT != NULL;
  device->has_semaphore_export =
      desc->has_external_semaphore_fd && device->api.vkGetSemaphoreFdKHR != NULL;
  QUAY_TRY(quay__vulkan_describe(device));
  take_queues(device, desc);
  device->handle = handle;
  quay_status status = quay__vulkan_choose_types(device);
  if (status == QUAY_OK)
    status = quay__vulkan_queues_begin(device);
  if (status != QUAY_OK)
    device->handle = NULL; /* nothing of ours is in it */
  return status;
}

quay_status quay__vulkan_device_wrap(const quay_vulkan_device_desc *desc,
                                     quay_device **out_device) {
  quay__vulkan_device *const device = new_device();
  if (device == NULL)
    return quay__fail_out_of_memory(sizeof *device, "a Vulkan device");
  device->adopted = true;
  device->index = -1;
  (void)snprintf(device->name, sizeof device->name, "vulkan:adopted");
  const quay_status status = adopt(device, desc);
  if (status != QUAY_OK) {
    discard(device);
    return status;
  }
  QUAY_TRY(publish(device, out_device));
  quay__global_acquire(QUAY__LOCK_VULKAN);
  enlist(device);
  quay__global_release(QUAY__LOCK_VULKAN);
  return QUAY_OK;
}
