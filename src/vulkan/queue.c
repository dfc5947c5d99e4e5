/* Queues: submitting, and the timeline that tells how far a queue has come. */
#include "core/checked.h"
#include "core/error.h"
#include "vulkan/vulkan_impl.h"

#define LOOK_AGAIN_NS ((uint64_t)100 * 1000 * 1000)

/* Everything that came before on the queue is done, and visible, before anything after it begins:
 * this is what makes a queue of Vulkan a stream. The host is there for memory that it has mapped.
 */
static void record_barrier(const quay__vulkan_api *api, VkCommandBuffer commands) {
  const VkMemoryBarrier barrier = {
      .sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
      .srcAccessMask = VK_ACCESS_MEMORY_WRITE_BIT | VK_ACCESS_MEMORY_READ_BIT,
      .dstAccessMask = VK_ACCESS_MEMORY_WRITE_BIT | VK_ACCESS_MEMORY_READ_BIT,
  };
  api->vkCmdPipelineBarrier(commands, VK_PIPELINE_STAGE_ALL_COMMANDS_BIT,
                            VK_PIPELINE_STAGE_ALL_COMMANDS_BIT | VK_PIPELINE_STAGE_HOST_BIT, 0, 1,
                            &barrier, 0, NULL, 0, NULL);
}

void quay__vulkan_barrier(const quay__vulkan_device *device, VkCommandBuffer commands) {
  record_barrier(&device->api, commands);
}

/* Beginning and end. */

VkResult quay__vulkan_timeline(quay__vulkan_device *device, VkSemaphore *out_timeline) {
  const VkExportSemaphoreCreateInfo exported = {
      .sType = VK_STRUCTURE_TYPE_EXPORT_SEMAPHORE_CREATE_INFO,
      .handleTypes = VK_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD_BIT,
  };
  const VkSemaphoreTypeCreateInfo type = {
      .sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO,
      .pNext = device->has_semaphore_export ? &exported : NULL,
      .semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE,
  };
  const VkSemaphoreCreateInfo info = {
      .sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO,
      .pNext = &type,
  };
  return device->api.vkCreateSemaphore(device->handle, &info, NULL, out_timeline);
}

/* One command buffer with a barrier, which is submitted over and over. */
static VkResult make_barrier(quay__vulkan_queue *queue) {
  quay__vulkan_device *const device = queue->device;
  const quay__vulkan_api *const api = &device->api;
  const VkCommandPoolCreateInfo pool = {
      .sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
      .queueFamilyIndex = queue->family,
  };
  VkResult result = api->vkCreateCommandPool(device->handle, &pool, NULL, &queue->pool);
  if (result != VK_SUCCESS)
    return result;
  const VkCommandBufferAllocateInfo buffer = {
      .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
      .commandPool = queue->pool,
      .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
      .commandBufferCount = 1,
  };
  const VkCommandBufferBeginInfo begin = {
      .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
      .flags = VK_COMMAND_BUFFER_USAGE_SIMULTANEOUS_USE_BIT,
  };
  result = api->vkAllocateCommandBuffers(device->handle, &buffer, &queue->barrier);
  if (result == VK_SUCCESS)
    result = api->vkBeginCommandBuffer(queue->barrier, &begin);
  if (result != VK_SUCCESS)
    return result;
  record_barrier(api, queue->barrier);
  return api->vkEndCommandBuffer(queue->barrier);
}

quay_status quay__vulkan_queue_begin(quay__vulkan_queue *queue) {
  queue->lanes = NULL;
  queue->lanes_end = &queue->lanes;
  queue->lane_count = 0;
  queue->submitted = 0;
  queue->timeline = VK_NULL_HANDLE;
  queue->pool = VK_NULL_HANDLE;
  atomic_init(&queue->seen, 0);
  atomic_init(&queue->link, NULL);
  atomic_init(&queue->refused, 0);
  VkResult result = quay__vulkan_timeline(queue->device, &queue->timeline);
  if (result == VK_SUCCESS)
    result = make_barrier(queue);
  if (result == VK_SUCCESS)
    return QUAY_OK;
  const quay_status status = quay__vulkan_fail(
      NULL, result, "the timeline of a queue of %s can't be made", queue->device->name);
  quay__vulkan_queue_end(queue, false);
  return status;
}

void quay__vulkan_queue_end(quay__vulkan_queue *queue, bool gone) {
  quay__vulkan_device *const device = queue->device;
  quay__vulkan_link *const link =
      atomic_exchange_explicit(&queue->link, NULL, memory_order_acq_rel);
  if (link != NULL)
    link->end(link);
  quay__vulkan_lanes_end(queue, gone);
  if (gone)
    return;
  device->api.vkDestroyCommandPool(device->handle, queue->pool, NULL);
  device->api.vkDestroySemaphore(device->handle, queue->timeline, NULL);
}

/* Use. */

static void lock(quay__vulkan_queue *queue) {
  if (queue->lock_callback != NULL)
    queue->lock_callback(queue->user);
  quay__lock_acquire(&queue->lock);
}

static void unlock(quay__vulkan_queue *queue) {
  quay__lock_release(&queue->lock);
  if (queue->unlock_callback != NULL)
    queue->unlock_callback(queue->user);
}

quay_status quay__vulkan_submit(quay__vulkan_queue *queue, VkCommandBuffer commands,
                                const quay__vulkan_signal *wait, uint64_t *out_value) {
  QUAY_TRY(quay__vulkan_check_callable());
  static const VkPipelineStageFlags all = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT;
  quay__vulkan_device *const device = queue->device;
  uint64_t value = 0;
  const VkTimelineSemaphoreSubmitInfo values = {
      .sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
      .waitSemaphoreValueCount = wait != NULL,
      .pWaitSemaphoreValues = wait != NULL ? &wait->value : NULL,
      .signalSemaphoreValueCount = 1,
      .pSignalSemaphoreValues = &value,
  };
  const VkSubmitInfo info = {
      .sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
      .pNext = &values,
      .waitSemaphoreCount = wait != NULL,
      .pWaitSemaphores = wait != NULL ? &wait->semaphore : NULL,
      .pWaitDstStageMask = &all,
      .commandBufferCount = commands != NULL,
      .pCommandBuffers = &commands,
      .signalSemaphoreCount = 1,
      .pSignalSemaphores = &queue->timeline,
  };
  lock(queue);
  value = queue->submitted + 1;
  const VkResult result = device->api.vkQueueSubmit(queue->handle, 1, &info, VK_NULL_HANDLE);
  if (result == VK_SUCCESS)
    queue->submitted = value;
  unlock(queue);
  *out_value = value;
  if (result == VK_SUCCESS)
    return QUAY_OK;
  return quay__vulkan_fail(device, result, "submitting work to %s", device->name);
}

static void note(quay__vulkan_queue *queue, uint64_t value) {
  uint64_t seen = atomic_load_explicit(&queue->seen, memory_order_relaxed);
  while (seen < value &&
         !atomic_compare_exchange_weak_explicit(&queue->seen, &seen, value, memory_order_release,
                                                memory_order_relaxed)) {
  }
}

quay_status quay__vulkan_query(quay__vulkan_queue *queue, uint64_t value, bool *out_done) {
  quay__vulkan_device *const device = queue->device;
  *out_done = atomic_load_explicit(&queue->seen, memory_order_acquire) >= value;
  if (*out_done)
    return QUAY_OK;
  QUAY_TRY(quay__vulkan_check_callable());
  uint64_t now = 0;
  const VkResult result =
      device->api.vkGetSemaphoreCounterValue(device->handle, queue->timeline, &now);
  if (result != VK_SUCCESS)
    return quay__vulkan_fail(device, result, "asking for work on %s", device->name);
  /* A lost device may tell any value. */
  if (now != UINT64_MAX)
    note(queue, now);
  *out_done = now >= value && now != UINT64_MAX;
  return QUAY_OK;
}

bool quay__vulkan_reached(quay__vulkan_queue *queue, uint64_t value) {
  bool done = false;
  quay__error_shield();
  const quay_status status = quay__vulkan_query(queue, value, &done);
  quay__error_unshield();
  return status == QUAY_OK && done;
}

/* What the queue waits for may be lost on the other side, and would never come. */
static void check_link(quay__vulkan_queue *queue) {
  quay__vulkan_link *const link = atomic_load_explicit(&queue->link, memory_order_acquire);
  if (link != NULL)
    link->check(link);
}

quay_status quay__vulkan_wait(quay__vulkan_queue *queue, uint64_t value) {
  quay__vulkan_device *const device = queue->device;
  if (atomic_load_explicit(&queue->seen, memory_order_acquire) >= value)
    return QUAY_OK;
  QUAY_TRY(quay__vulkan_check_callable());
  const VkSemaphoreWaitInfo info = {
      .sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO,
      .semaphoreCount = 1,
      .pSemaphores = &queue->timeline,
      .pValues = &value,
  };
  VkResult result = device->api.vkWaitSemaphores(device->handle, &info, LOOK_AGAIN_NS);
  while (result == VK_TIMEOUT) {
    check_link(queue);
    result = device->api.vkWaitSemaphores(device->handle, &info, LOOK_AGAIN_NS);
  }
  if (result != VK_SUCCESS)
    return quay__vulkan_fail(device, result, "waiting for work on %s", device->name);
  note(queue, value);
  return QUAY_OK;
}

uint64_t quay__vulkan_submitted(quay__vulkan_queue *queue) {
  quay__lock_acquire(&queue->lock);
  const uint64_t value = queue->submitted;
  quay__lock_release(&queue->lock);
  return value;
}

quay_status quay__vulkan_drain(quay__vulkan_queue *queue) {
  return quay__vulkan_wait(queue, quay__vulkan_submitted(queue));
}

void quay__vulkan_settle(quay__vulkan_queue *queue) {
  quay__vulkan_device *const device = queue->device;
  if (atomic_load_explicit(&queue->link, memory_order_acquire) != NULL) {
    quay__error_shield();
    (void)quay__vulkan_drain(queue); /* looks after the other side, too */
    quay__error_unshield();
    check_link(queue);
  }
  lock(queue);
  const VkResult result = device->api.vkQueueWaitIdle(queue->handle);
  unlock(queue);
  if (result != VK_SUCCESS && result != VK_ERROR_DEVICE_LOST)
    quay__vulkan_report(device, result, "work on %s can't be waited for", device->name);
}

void quay__vulkan_abandon(quay__vulkan_device *device) {
  for (uint32_t i = 0; i < device->queue_count; i++) {
    quay__vulkan_link *const link =
        atomic_load_explicit(&device->queues[i].link, memory_order_acquire);
    if (link != NULL)
      link->abandon(link);
  }
}

/* Choice. */

quay__vulkan_queue *quay__vulkan_queue_of(quay__vulkan_device *device, uint64_t stream) {
  for (uint32_t i = 0; i < device->queue_count; i++) {
    if (QUAY__VULKAN_TO_INTEGER(device->queues[i].handle) == stream)
      return &device->queues[i];
  }
  return NULL;
}

bool quay__vulkan_only_copies(const quay__vulkan_queue *queue) {
  return queue >= &queue->device->queues[queue->device->stream_queue_count];
}

quay__vulkan_queue *quay__vulkan_copy_queue(quay__vulkan_device *device, bool any, bool reading) {
  const uint32_t copy_queues = device->queue_count - device->stream_queue_count;
  if (!any || copy_queues == 0)
    return &device->queues[device->stream_queue_count - 1];
  return &device->queues[device->stream_queue_count + (reading && copy_queues > 1 ? 1 : 0)];
}

void quay_vulkan_queue_lock(quay_stream *stream) {
  quay_device *const device = quay_stream_device(stream);
  if (!quay__vulkan_is(device))
    return;
  quay__vulkan_queue *const queue =
      quay__vulkan_queue_of(quay__vulkan_device_of(device), quay_stream_native(stream));
  if (queue != NULL)
    lock(queue);
}

void quay_vulkan_queue_unlock(quay_stream *stream) {
  quay_device *const device = quay_stream_device(stream);
  if (!quay__vulkan_is(device))
    return;
  quay__vulkan_queue *const queue =
      quay__vulkan_queue_of(quay__vulkan_device_of(device), quay_stream_native(stream));
  if (queue != NULL)
    unlock(queue);
}
