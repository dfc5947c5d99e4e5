/* Queues. Those of a discrete device are late: a thread each hands on what was submitted, after a
 * while and after what it waits for, so that nothing but semaphores orders one queue and another.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shim.h"

SHIM_EXPORT void vkshim_gate(int open);
SHIM_EXPORT void vkshim_gate(int open) {
  pthread_mutex_lock(&shim.lock);
  shim.gate_open = open != 0;
  pthread_cond_broadcast(&shim.changed);
  pthread_mutex_unlock(&shim.lock);
}

SHIM_EXPORT uint64_t vkshim_submissions(unsigned queue);
SHIM_EXPORT uint64_t vkshim_submissions(unsigned queue) {
  pthread_mutex_lock(&shim.lock);
  const uint64_t count = queue < SHIM_QUEUES ? shim.submissions[queue] : 0;
  pthread_mutex_unlock(&shim.lock);
  return count;
}

/* The real queue is one for all, and one thread at a time may use it. */
static pthread_mutex_t real_lock = PTHREAD_MUTEX_INITIALIZER;

static void hand_on(shim_device *device, const shim_submission *work) {
  static const VkPipelineStageFlags all = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT;
  const VkTimelineSemaphoreSubmitInfo values = {
      .sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
      .waitSemaphoreValueCount = work->wait != VK_NULL_HANDLE,
      .pWaitSemaphoreValues = &work->wait_value,
      .signalSemaphoreValueCount = work->signal != VK_NULL_HANDLE,
      .pSignalSemaphoreValues = &work->signal_value,
  };
  const VkSubmitInfo info = {
      .sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
      .pNext = &values,
      .waitSemaphoreCount = work->wait != VK_NULL_HANDLE,
      .pWaitSemaphores = &work->wait,
      .pWaitDstStageMask = &all,
      .commandBufferCount = work->commands != NULL,
      .pCommandBuffers = &work->commands,
      .signalSemaphoreCount = work->signal != VK_NULL_HANDLE,
      .pSignalSemaphores = &work->signal,
  };
  pthread_mutex_lock(&real_lock);
  const VkResult result = device->vkQueueSubmit(device->queue, 1, &info, VK_NULL_HANDLE);
  pthread_mutex_unlock(&real_lock);
  if (result != VK_SUCCESS)
    shim_violation("the real queue answers %d", result);
}

/* On the host, so that the real queue, which is in order, is not held up. */
static bool wait_first(shim_device *device, const shim_submission *work) {
  return work->wait == VK_NULL_HANDLE || shim_semaphore_await(device, work->wait, work->wait_value);
}

void shim_real_idle(shim_device *device) {
  pthread_mutex_lock(&real_lock);
  (void)device->vkDeviceWaitIdle(device->real);
  pthread_mutex_unlock(&real_lock);
}

void shim_settle(shim_device *device) {
  pthread_mutex_lock(&shim.lock);
  for (uint32_t i = 0; i < SHIM_QUEUES; i++) {
    while (device->queues[i].busy)
      pthread_cond_wait(&shim.changed, &shim.lock);
  }
  pthread_mutex_unlock(&shim.lock);
  shim_real_idle(device);
}

static void *run(void *argument) {
  shim_queue *const queue = argument;
  shim_device *const device = queue->device;
  unsigned seed = queue->number * 7919 + 1;
  pthread_mutex_lock(&shim.lock);
  for (;;) {
    while (!queue->stop && !device->lost && (queue->first == NULL || !shim.gate_open))
      pthread_cond_wait(&shim.changed, &shim.lock);
    shim_submission *const work = queue->first;
    if (work == NULL && queue->stop)
      break;
    if (work == NULL) { /* lost: nothing will come */
      pthread_cond_wait(&shim.changed, &shim.lock);
      continue;
    }
    queue->first = work->next;
    if (queue->first == NULL)
      queue->end = &queue->first;
    queue->busy = true;
    const bool drop = device->lost;
    pthread_mutex_unlock(&shim.lock);
    if (!drop && wait_first(device, work)) {
      usleep((useconds_t)(rand_r(&seed) % 300));
      hand_on(device, work);
      if (work->signal != VK_NULL_HANDLE)
        shim_semaphore_mirror(device, work->signal, work->signal_value);
    }
    free(work);
    pthread_mutex_lock(&shim.lock);
    queue->busy = false;
    pthread_cond_broadcast(&shim.changed);
  }
  pthread_mutex_unlock(&shim.lock);
  return NULL;
}

void shim_queues_begin(shim_device *device) {
  for (uint32_t i = 0; i < SHIM_QUEUES; i++) {
    shim_queue *const queue = &device->queues[i];
    queue->loader_data = *(void **)device->queue;
    queue->device = device;
    queue->number = i;
    queue->family = i == 0 ? 0 : SHIM_FAMILY_COPIES;
    queue->end = &queue->first;
    queue->has_thread = pthread_create(&queue->thread, NULL, run, queue) == 0;
  }
}

void shim_queues_end(shim_device *device) {
  pthread_mutex_lock(&shim.lock);
  for (uint32_t i = 0; i < SHIM_QUEUES; i++) {
    if (device->queues[i].first != NULL && !device->lost)
      shim_violation("a device is destroyed with work on queue %u", i);
    device->queues[i].stop = true;
  }
  pthread_cond_broadcast(&shim.changed);
  pthread_mutex_unlock(&shim.lock);
  for (uint32_t i = 0; i < SHIM_QUEUES; i++) {
    if (device->queues[i].has_thread)
      pthread_join(device->queues[i].thread, NULL);
  }
}

static VKAPI_ATTR void VKAPI_CALL get_queue(VkDevice handle, uint32_t family, uint32_t index,
                                            VkQueue *out_queue) {
  shim_device *const device = shim_device_of(handle);
  if (!shim.settings.discrete) {
    device->vkGetDeviceQueue(handle, family, index, out_queue);
    return;
  }
  const uint32_t number = family == SHIM_FAMILY_COPIES ? 1 + index : index;
  *out_queue = (VkQueue)&device->queues[number];
}

static VkResult enqueue(shim_queue *queue, const VkSubmitInfo *info) {
  if (info->commandBufferCount > 1 || info->waitSemaphoreCount > 1 ||
      info->signalSemaphoreCount > 1) {
    shim_violation("a submission of more than the shim's queues take");
    return VK_ERROR_UNKNOWN;
  }
  const VkTimelineSemaphoreSubmitInfo *const values = info->pNext;
  shim_submission *const work = calloc(1, sizeof *work);
  if (work == NULL)
    return VK_ERROR_OUT_OF_HOST_MEMORY;
  if (info->commandBufferCount != 0)
    work->commands = info->pCommandBuffers[0];
  if (info->waitSemaphoreCount != 0) {
    work->wait = info->pWaitSemaphores[0];
    work->wait_value = values->pWaitSemaphoreValues[0];
  }
  if (info->signalSemaphoreCount != 0) {
    work->signal = info->pSignalSemaphores[0];
    work->signal_value = values->pSignalSemaphoreValues[0];
  }
  pthread_mutex_lock(&shim.lock);
  const bool lost = queue->device->lost;
  if (!lost) {
    shim.submissions[queue->number]++;
    *queue->end = work;
    queue->end = &work->next;
    pthread_cond_broadcast(&shim.changed);
  }
  pthread_mutex_unlock(&shim.lock);
  if (lost)
    free(work);
  return lost ? VK_ERROR_DEVICE_LOST : VK_SUCCESS;
}

/* The device of a real queue: there is one in the tests that have no late ones, or all are equal.
 */
static shim_device *device_of_queue(VkQueue queue, bool *out_lost) {
  pthread_mutex_lock(&shim.lock);
  shim_device *device = shim.devices;
  while (device != NULL && device->queue != queue)
    device = device->next;
  *out_lost = device != NULL && device->lost;
  pthread_mutex_unlock(&shim.lock);
  return device;
}

static VKAPI_ATTR VkResult VKAPI_CALL submit(VkQueue queue, uint32_t count,
                                             const VkSubmitInfo *infos, VkFence fence) {
  VkResult result;
  if (shim_fails("vkQueueSubmit", &result)) {
    if (result == VK_ERROR_DEVICE_LOST)
      vkshim_lose();
    return result;
  }
  if (!shim.settings.discrete) {
    bool lost;
    shim_device *const device = device_of_queue(queue, &lost);
    if (lost || device == NULL)
      return VK_ERROR_DEVICE_LOST;
    return device->vkQueueSubmit(queue, count, infos, fence);
  }
  if (fence != VK_NULL_HANDLE)
    shim_violation("the shim's queues take no fences");
  for (uint32_t i = 0; i < count; i++) {
    result = enqueue((shim_queue *)queue, &infos[i]);
    if (result != VK_SUCCESS)
      return result;
  }
  return VK_SUCCESS;
}

static VkResult real_idle(shim_device *device, bool lost) {
  pthread_mutex_lock(&real_lock);
  const VkResult result = device->vkQueueWaitIdle(device->queue);
  pthread_mutex_unlock(&real_lock);
  return lost ? VK_ERROR_DEVICE_LOST : result;
}

static VKAPI_ATTR VkResult VKAPI_CALL wait_idle(VkQueue handle) {
  if (!shim.settings.discrete) {
    bool lost;
    shim_device *const device = device_of_queue(handle, &lost);
    return device != NULL ? real_idle(device, lost) : VK_ERROR_DEVICE_LOST;
  }
  shim_queue *const queue = (shim_queue *)handle;
  pthread_mutex_lock(&shim.lock);
  while (queue->first != NULL || queue->busy)
    pthread_cond_wait(&shim.changed, &shim.lock);
  const bool lost = queue->device->lost;
  pthread_mutex_unlock(&shim.lock);
  return real_idle(queue->device, lost);
}

PFN_vkVoidFunction shim_queue_function(const char *name) {
  if (strcmp(name, "vkGetDeviceQueue") == 0)
    return SHIM_FUNCTION(get_queue);
  if (strcmp(name, "vkQueueWaitIdle") == 0)
    return SHIM_FUNCTION(wait_idle);
  return strcmp(name, "vkQueueSubmit") == 0 ? SHIM_FUNCTION(submit) : NULL;
}
