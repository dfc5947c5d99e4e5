/* Lanes: command buffers, and the memory that copies go through. */
#include "core/checked.h"
#include "core/device_impl.h"
#include "core/error.h"
#include "core/os.h"
#include "vulkan/vulkan_impl.h"

enum {
  /* Lanes of a queue that may be under way; then the oldest is waited for. */
  LANES_MAX = 64
};

/* Making and ending. */

static void free_span(quay__vulkan_span **span) {
  if (*span != NULL)
    quay__vulkan_free(*span);
  *span = NULL;
}

static void lane_end(quay__vulkan_lane *lane, bool gone) {
  quay__vulkan_device *const device = lane->queue->device;
  for (unsigned i = 0; i < 2; i++) {
    free_span(&lane->slots[i].up);
    free_span(&lane->slots[i].down);
  }
  free_span(&lane->bounce);
  if (!gone && quay__vulkan_callable())
    device->api.vkDestroyCommandPool(device->handle, lane->pool, NULL);
  quay__os_free(lane);
}

static VkResult make_commands(quay__vulkan_lane *lane) {
  quay__vulkan_device *const device = lane->queue->device;
  const VkCommandPoolCreateInfo pool = {
      .sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
      .flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT,
      .queueFamilyIndex = lane->queue->family,
  };
  VkResult result = device->api.vkCreateCommandPool(device->handle, &pool, NULL, &lane->pool);
  if (result != VK_SUCCESS)
    return result;
  const VkCommandBufferAllocateInfo buffers = {
      .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
      .commandPool = lane->pool,
      .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
      .commandBufferCount = 2,
  };
  VkCommandBuffer commands[2];
  result = device->api.vkAllocateCommandBuffers(device->handle, &buffers, commands);
  for (unsigned i = 0; i < 2 && result == VK_SUCCESS; i++)
    lane->slots[i].commands = commands[i];
  return result;
}

static quay_status lane_new(quay__vulkan_queue *queue, quay__vulkan_lane **out_lane) {
  quay__vulkan_lane *const lane = quay__os_calloc(1, sizeof *lane);
  if (lane == NULL)
    return quay__fail_out_of_memory(sizeof *lane, "the commands of a copy");
  lane->queue = queue;
  const VkResult result = make_commands(lane);
  if (result == VK_SUCCESS) {
    *out_lane = lane;
    return QUAY_OK;
  }
  const quay_status status = quay__vulkan_fail(
      queue->device, result, "commands for a copy on %s can't be made", queue->device->name);
  lane_end(lane, false);
  return status;
}

static uint64_t last_value(const quay__vulkan_lane *lane) {
  return quay__max(lane->slots[0].value, lane->slots[1].value);
}

/* Takes the first of the list if it is done; `*out_wait` is what to wait for if there are too many
 * that are not. */
static quay__vulkan_lane *take_idle(quay__vulkan_queue *queue, uint64_t *out_wait) {
  *out_wait = 0;
  quay__lock_acquire(&queue->lock);
  quay__vulkan_lane *lane = queue->lanes;
  const uint64_t value = lane != NULL ? last_value(lane) : 0;
  const bool many = queue->lane_count >= LANES_MAX;
  quay__lock_release(&queue->lock);
  if (lane == NULL || (!quay__vulkan_reached(queue, value) && !many))
    return NULL;
  if (many)
    *out_wait = value;
  quay__lock_acquire(&queue->lock);
  lane = queue->lanes;
  /* Another thread may have taken that one. */
  if (lane == NULL || last_value(lane) > value) {
    lane = NULL;
    *out_wait = 0;
  } else {
    queue->lanes = lane->next;
    queue->lane_count--;
    if (queue->lanes == NULL)
      queue->lanes_end = &queue->lanes;
  }
  quay__lock_release(&queue->lock);
  return lane;
}

quay_status quay__vulkan_lane_take(quay__vulkan_queue *queue, quay__vulkan_lane **out_lane) {
  QUAY_TRY(quay__vulkan_check_callable());
  QUAY_TRY(quay__device_check(queue->device->device));
  uint64_t value;
  quay__vulkan_lane *const lane = take_idle(queue, &value);
  if (lane == NULL)
    return lane_new(queue, out_lane);
  const quay_status status = quay__vulkan_wait(queue, value);
  if (status != QUAY_OK) {
    quay__vulkan_lane_give_back(lane);
    return status;
  }
  *out_lane = lane;
  return QUAY_OK;
}

void quay__vulkan_lane_give_back(quay__vulkan_lane *lane) {
  quay__vulkan_queue *const queue = lane->queue;
  const bool idle = last_value(lane) <= atomic_load_explicit(&queue->seen, memory_order_acquire);
  quay__lock_acquire(&queue->lock);
  if (idle) { /* to the front: its memory is in the cache */
    lane->next = queue->lanes;
    queue->lanes = lane;
    if (lane->next == NULL)
      queue->lanes_end = &lane->next;
  } else {
    lane->next = NULL;
    *queue->lanes_end = lane;
    queue->lanes_end = &lane->next;
  }
  queue->lane_count++;
  quay__lock_release(&queue->lock);
}

void quay__vulkan_lanes_end(quay__vulkan_queue *queue, bool gone) {
  quay__lock_acquire(&queue->lock);
  quay__vulkan_lane *lane = queue->lanes;
  queue->lanes = NULL;
  queue->lanes_end = &queue->lanes;
  queue->lane_count = 0;
  quay__lock_release(&queue->lock);
  while (lane != NULL) {
    quay__vulkan_lane *const next = lane->next;
    lane_end(lane, gone);
    lane = next;
  }
}

/* Commands. */

static quay_status fail_commands(quay__vulkan_device *device, VkResult result) {
  return quay__vulkan_fail(device, result, "commands for a copy on %s can't be recorded",
                           device->name);
}

quay_status quay__vulkan_slot_wait(quay__vulkan_lane *lane, unsigned slot) {
  return quay__vulkan_wait(lane->queue, lane->slots[slot].value);
}

quay_status quay__vulkan_slot_begin_apart(const quay__vulkan_lane *lane, unsigned slot) {
  quay__vulkan_device *const device = lane->queue->device;
  QUAY_TRY(quay__vulkan_wait(lane->queue, lane->slots[slot].value));
  const VkCommandBufferBeginInfo info = {
      .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
      .flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT,
  };
  const VkResult result = device->api.vkBeginCommandBuffer(lane->slots[slot].commands, &info);
  return result == VK_SUCCESS ? QUAY_OK : fail_commands(device, result);
}

quay_status quay__vulkan_slot_begin(quay__vulkan_lane *lane, unsigned slot) {
  QUAY_TRY(quay__vulkan_slot_begin_apart(lane, slot));
  quay__vulkan_barrier(lane->queue->device, lane->slots[slot].commands);
  return QUAY_OK;
}

static quay_status submit(quay__vulkan_lane *lane, unsigned slot) {
  quay__vulkan_device *const device = lane->queue->device;
  const VkResult result = device->api.vkEndCommandBuffer(lane->slots[slot].commands);
  if (result != VK_SUCCESS)
    return fail_commands(device, result);
  uint64_t value = 0;
  QUAY_TRY(quay__vulkan_submit(lane->queue, lane->slots[slot].commands, NULL, &value));
  lane->slots[slot].value = value;
  return QUAY_OK;
}

quay_status quay__vulkan_slot_submit(quay__vulkan_lane *lane, unsigned slot) {
  quay__vulkan_barrier(lane->queue->device, lane->slots[slot].commands);
  return submit(lane, slot);
}

quay_status quay__vulkan_slot_submit_apart(quay__vulkan_lane *lane, unsigned slot, bool to_host) {
  static const VkMemoryBarrier barrier = {
      .sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
      .srcAccessMask = VK_ACCESS_TRANSFER_WRITE_BIT,
      .dstAccessMask = VK_ACCESS_HOST_READ_BIT,
  };
  if (to_host) {
    lane->queue->device->api.vkCmdPipelineBarrier(
        lane->slots[slot].commands, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_PIPELINE_STAGE_HOST_BIT, 0,
        1, &barrier, 0, NULL, 0, NULL);
  }
  return submit(lane, slot);
}

quay_status quay__vulkan_lane_settle(quay__vulkan_lane *lane, quay_status status) {
  const uint64_t value = last_value(lane);
  if (status == QUAY_OK)
    return quay__vulkan_wait(lane->queue, value);
  quay__error_shield();
  (void)quay__vulkan_wait(lane->queue, value);
  quay__error_unshield();
  return status;
}

/* Memory. */

/* A span of at least `size` bytes in `*slot`, a larger one in its place if it is too small. */
static quay_status ensure(quay__vulkan_device *device, quay_vulkan_memory_kind kind, uint64_t size,
                          quay__vulkan_span **slot) {
  if (*slot != NULL && (*slot)->size >= size)
    return QUAY_OK;
  free_span(slot);
  const quay__vulkan_block_request request = {
      .kind = device->types[kind].present ? kind : QUAY_VULKAN_HOST,
      .size = size <= QUAY__VULKAN_SLOT_BYTES ? QUAY__VULKAN_SLOT_BYTES : QUAY__VULKAN_CHUNK_BYTES,
      .alignment = QUAY__VULKAN_ALIGNMENT,
  };
  return quay__vulkan_alloc(device, &request, slot);
}

quay_status quay__vulkan_slot_up(quay__vulkan_lane *lane, unsigned slot, uint64_t size,
                                 quay__vulkan_span **out_span) {
  QUAY_TRY(
      quay__vulkan_slot_wait(lane, slot)); /* before it is written, or freed for a larger one */
  QUAY_TRY(ensure(lane->queue->device, QUAY_VULKAN_HOST, size, &lane->slots[slot].up));
  *out_span = lane->slots[slot].up;
  return QUAY_OK;
}

quay_status quay__vulkan_slot_down(quay__vulkan_lane *lane, unsigned slot, uint64_t size,
                                   quay__vulkan_span **out_span) {
  QUAY_TRY(quay__vulkan_slot_wait(lane, slot));
  QUAY_TRY(ensure(lane->queue->device, QUAY_VULKAN_CACHED, size, &lane->slots[slot].down));
  *out_span = lane->slots[slot].down;
  return QUAY_OK;
}

quay_status quay__vulkan_lane_bounce(quay__vulkan_lane *lane, uint64_t size,
                                     quay__vulkan_span **out_span) {
  quay__vulkan_device *const device = lane->queue->device;
  quay__error_shield();
  const quay_status status = ensure(device, QUAY_VULKAN_DEVICE, size, &lane->bounce);
  quay__error_unshield();
  *out_span = lane->bounce;
  if (status == QUAY_OK)
    return QUAY_OK;
  return quay__vulkan_slot_up(lane, 0, quay__min(size, QUAY__VULKAN_SLOT_BYTES), out_span);
}
