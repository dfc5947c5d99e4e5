/* Links: a queue's timeline that CUDA has imported, and a second one for the way back, so that each
 * side waits for the other's work on the GPU. Whatever waits, waits for something that was
 * submitted before, so that nothing waits in a circle. */
#include "interop/cuda_vulkan.h"

#include <quay/cuda.h>
#include <string.h>

#include "core/device_impl.h"
#include "core/error.h"
#include "core/os.h"

static quay__cuda_device *cuda_of(const quay__cuda_link *link) {
  return quay__cuda_device_of(link->cuda);
}

bool quay__cuda_link_one_gpu(const quay__cuda_device *cuda, const quay__vulkan_device *vulkan) {
  return memcmp(cuda->uuid.bytes, vulkan->uuid, VK_UUID_SIZE) == 0;
}

static bool can_share(const quay__cuda_device *cuda, const quay__vulkan_device *vulkan) {
  const quay__cuda_api *const api = cuda->api;
  return vulkan->has_semaphore_export && vulkan->api.vkGetSemaphoreFdKHR != NULL &&
         api->cuImportExternalSemaphore != NULL && api->cuSignalExternalSemaphoresAsync != NULL &&
         api->cuWaitExternalSemaphoresAsync != NULL && api->cuDestroyExternalSemaphore != NULL &&
         quay__cuda_link_one_gpu(cuda, vulkan);
}

/* Whether CUDA's part is still there, and works. */
static bool is_whole(const quay__cuda_link *link) {
  return quay__cuda_callable() && quay_device_health(link->cuda) == QUAY_HEALTH_OK &&
         link->generation == quay__device_generation(link->cuda);
}

/* The end. */

static void report(quay__cuda_device *device, quay__cu_result result) {
  if (result != QUAY__CU_SUCCESS) {
    quay__cuda_report(device, result, "what %s shares with a queue of Vulkan can't be given back",
                      device->name);
  }
}

/* With the context current. Waits on other streams of CUDA count as the link's: a semaphore may go
 * only when nobody waits for it. */
static void end_cuda(quay__cuda_link *link) {
  quay__cuda_device *const device = cuda_of(link);
  const quay__cuda_api *const api = device->api;
  const bool used = atomic_load_explicit(&link->used, memory_order_acquire);
  const quay__cu_result idle = used ? api->cuCtxSynchronize() : QUAY__CU_SUCCESS;
  report(device, idle);
  if (idle != QUAY__CU_SUCCESS)
    return;
  if (link->timeline != NULL)
    report(device, api->cuDestroyExternalSemaphore(link->timeline));
  if (link->back != NULL)
    report(device, api->cuDestroyExternalSemaphore(link->back));
  if (link->stream != NULL)
    report(device, api->cuStreamDestroy(link->stream));
  if (link->rescue != NULL)
    report(device, api->cuStreamDestroy(link->rescue));
}

static void link_end(quay__vulkan_link *ended) {
  quay__cuda_link *const link = (quay__cuda_link *)ended;
  quay__vulkan_device *const vulkan = link->queue->device;
  quay__cuda_scope scope;
  quay__error_state saved;
  quay__error_save(&saved);
  if (is_whole(link) && quay__cuda_enter(cuda_of(link), true, &scope) == QUAY_OK) {
    end_cuda(link);
    quay__cuda_leave(&scope);
  }
  if (vulkan->handle != NULL && quay__vulkan_callable())
    vulkan->api.vkDestroySemaphore(vulkan->handle, link->back_handle, NULL);
  quay__error_restore(&saved);
  quay_device_release(link->cuda);
  quay__lock_destroy(&link->lock);
  quay__os_free(link);
}

/* Asks CUDA for anything: it tells of its loss, if there was one, and then Quay knows. */
static void probe(quay__cuda_link *link) {
  quay__cuda_device *const device = cuda_of(link);
  quay__cuda_scope scope;
  quay__error_state saved;
  quay__error_save(&saved);
  if (quay__cuda_enter(device, true, &scope) == QUAY_OK) {
    int capture = 0;
    report(device, device->api->cuStreamIsCapturing(link->stream, &capture));
    quay__cuda_leave(&scope);
  }
  quay__error_restore(&saved);
}

/* How long a signal that CUDA had begun with when it was lost may still be on its way. */
#define LAST_SIGNAL_NANOSECONDS UINT64_C(20000000)

/* What CUDA was to signal before it was lost or reset is signalled for it: nothing else would. But
 * a value that is signalled twice is an error, so what may still come is waited for. */
static void link_check(quay__vulkan_link *checked) {
  quay__cuda_link *const link = (quay__cuda_link *)checked;
  quay__vulkan_device *const vulkan = link->queue->device;
  if (is_whole(link))
    probe(link);
  if (is_whole(link) || !quay__vulkan_callable())
    return;
  quay__lock_acquire(&link->lock);
  const VkSemaphoreSignalInfo info = {
      .sType = VK_STRUCTURE_TYPE_SEMAPHORE_SIGNAL_INFO,
      .semaphore = link->back_handle,
      .value = link->back_value,
  };
  const VkSemaphoreWaitInfo last = {
      .sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO,
      .semaphoreCount = 1,
      .pSemaphores = &link->back_handle,
      .pValues = &link->back_value,
  };
  VkResult result = vulkan->api.vkWaitSemaphores(vulkan->handle, &last, LAST_SIGNAL_NANOSECONDS);
  if (result == VK_TIMEOUT)
    result = vulkan->api.vkSignalSemaphore(vulkan->handle, &info);
  quay__lock_release(&link->lock);
  if (result != VK_SUCCESS && result != VK_ERROR_DEVICE_LOST)
    quay__vulkan_report(vulkan, result, "a queue of %s can't be let go", vulkan->name);
}

/* What the queue was to signal before its device was lost is signalled by CUDA, on a stream of its
 * own: the others wait for it. */
static void link_abandon(quay__vulkan_link *abandoned) {
  quay__cuda_link *const link = (quay__cuda_link *)abandoned;
  quay__cuda_device *const device = cuda_of(link);
  quay__cuda_scope scope;
  if (!is_whole(link) || atomic_exchange_explicit(&link->abandoned, true, memory_order_acq_rel))
    return;
  quay__lock_acquire(&link->queue->lock);
  const quay__cu_semaphore_value last = {.value = link->queue->submitted + 1};
  quay__lock_release(&link->queue->lock);
  quay__error_state saved;
  quay__error_save(&saved);
  if (quay__cuda_enter(device, true, &scope) == QUAY_OK) {
    report(device,
           device->api->cuSignalExternalSemaphoresAsync(&link->timeline, &last, 1, link->rescue));
    quay__cuda_leave(&scope);
  }
  quay__error_restore(&saved);
}

/* The beginning. */

/* The descriptor is CUDA's after success alone. */
static quay_status import(quay__cuda_device *cuda, quay__vulkan_device *vulkan,
                          VkSemaphore exported, quay__cu_semaphore *out_semaphore) {
  const VkSemaphoreGetFdInfoKHR info = {
      .sType = VK_STRUCTURE_TYPE_SEMAPHORE_GET_FD_INFO_KHR,
      .semaphore = exported,
      .handleType = VK_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD_BIT,
  };
  int file = -1;
  const VkResult got = vulkan->api.vkGetSemaphoreFdKHR(vulkan->handle, &info, &file);
  if (got != VK_SUCCESS) {
    return quay__vulkan_fail(vulkan, got, "a timeline of %s can't be exported to CUDA",
                             vulkan->name);
  }
  const quay__cu_external_semaphore semaphore = {
      .type = QUAY__CU_EXTERNAL_TIMELINE_FILE,
      .handle.file = file,
  };
  const quay__cu_result result = cuda->api->cuImportExternalSemaphore(out_semaphore, &semaphore);
  if (result == QUAY__CU_SUCCESS)
    return QUAY_OK;
  *out_semaphore = NULL;
  (void)quay__os_close(file);
  return quay__cuda_fail(cuda, result, "%s can't import a timeline of %s", cuda->name,
                         vulkan->name);
}

static quay_status make_stream(quay__cuda_device *cuda, quay__cu_stream *out_stream) {
  const quay__cu_result result =
      cuda->api->cuStreamCreateWithPriority(out_stream, QUAY__CU_STREAM_NON_BLOCKING, 0);
  if (result == QUAY__CU_SUCCESS)
    return QUAY_OK;
  *out_stream = NULL;
  return quay__cuda_fail(cuda, result, "a stream on %s can't be created", cuda->name);
}

/* With the context current; what was made is the link's to end. */
static quay_status fill_in(quay__cuda_link *link) {
  quay__cuda_device *const cuda = cuda_of(link);
  quay__vulkan_device *const vulkan = link->queue->device;
  const VkResult result = quay__vulkan_timeline(vulkan, &link->back_handle);
  if (result != VK_SUCCESS) {
    link->back_handle = VK_NULL_HANDLE;
    return quay__vulkan_fail(vulkan, result, "a timeline of %s can't be made", vulkan->name);
  }
  QUAY_TRY(import(cuda, vulkan, link->queue->timeline, &link->timeline));
  QUAY_TRY(import(cuda, vulkan, link->back_handle, &link->back));
  QUAY_TRY(make_stream(cuda, &link->stream));
  return make_stream(cuda, &link->rescue);
}

static quay_status link_new(quay__vulkan_queue *queue, quay__cuda_device *cuda,
                            quay__cuda_link **out_link) {
  QUAY_TRY(quay__vulkan_check_callable());
  quay__cuda_scope scope;
  QUAY_TRY(quay__cuda_enter(cuda, true, &scope));
  quay__cuda_link *const link = quay__os_calloc(1, sizeof *link);
  quay_status status = QUAY_OK;
  if (link == NULL) {
    status = quay__fail_out_of_memory(sizeof *link, "what CUDA and Vulkan share");
  } else {
    link->functions =
        (quay__vulkan_link){.check = link_check, .abandon = link_abandon, .end = link_end};
    link->queue = queue;
    link->cuda = quay_device_retain(cuda->device);
    link->generation = quay__device_generation(cuda->device);
    quay__lock_init(&link->lock);
    status = fill_in(link);
    if (status != QUAY_OK)
      link_end(&link->functions);
  }
  quay__cuda_leave(&scope);
  *out_link = status == QUAY_OK ? link : NULL;
  return status;
}

/* Of a CUDA device that was reset: the queue is let go, and done with it, before it ends. */
static void replace(quay__vulkan_queue *queue, quay__vulkan_link *old) {
  if (old == NULL)
    return;
  old->check(old);
  if (quay__vulkan_drain(queue) == QUAY_OK)
    old->end(old);
}

/* Of threads that race one wins, and the others' are ended. */
static quay__cuda_link *make(quay__vulkan_queue *queue, quay__cuda_device *cuda,
                             quay__vulkan_link *known) {
  const uint64_t refused = quay__device_generation(cuda->device) + 1;
  if (atomic_load_explicit(&queue->refused, memory_order_relaxed) == refused)
    return NULL;
  quay__cuda_link *made = NULL;
  if (link_new(queue, cuda, &made) != QUAY_OK) {
    atomic_store_explicit(&queue->refused, refused, memory_order_relaxed);
    quay_log(QUAY_LOG_WARNING,
             "%s and %s share no semaphores, so that the host waits for one before the other: %s",
             cuda->name, queue->device->name, quay_last_error()->message);
    return NULL;
  }
  if (atomic_compare_exchange_strong_explicit(&queue->link, &known, &made->functions,
                                              memory_order_acq_rel, memory_order_acquire)) {
    replace(queue, known);
    return made;
  }
  link_end(&made->functions);
  return (quay__cuda_link *)known;
}

quay__cuda_link *quay__cuda_link_find(quay__vulkan_queue *queue, quay__cuda_device *cuda) {
  quay__vulkan_link *const known = atomic_load_explicit(&queue->link, memory_order_acquire);
  quay__cuda_link *const link = (quay__cuda_link *)known;
  if (link != NULL && link->cuda == cuda->device && is_whole(link))
    return link;
  if (!can_share(cuda, queue->device) || quay_device_health(cuda->device) != QUAY_HEALTH_OK ||
      quay_device_health(queue->device->device) != QUAY_HEALTH_OK)
    return NULL;
  quay__error_state saved;
  quay__error_save(&saved);
  quay__cuda_link *const made = make(queue, cuda, known);
  quay__error_restore(&saved);
  return made;
}

/* Use. */

quay_status quay__cuda_link_await(quay__cuda_link *link, uint64_t value, quay__cu_stream stream) {
  quay__cuda_device *const device = cuda_of(link);
  const quay__cu_semaphore_value wanted = {.value = value};
  atomic_store_explicit(&link->used, true, memory_order_release);
  const quay__cu_result result =
      device->api->cuWaitExternalSemaphoresAsync(&link->timeline, &wanted, 1, stream);
  if (result == QUAY__CU_SUCCESS)
    return QUAY_OK;
  return quay__cuda_fail(device, result, "making a stream of %s wait for work on %s", device->name,
                         link->queue->device->name);
}

quay_status quay__cuda_link_signal(quay__cuda_link *link, quay__vulkan_signal *out_signal) {
  quay__cuda_device *const device = cuda_of(link);
  atomic_store_explicit(&link->used, true, memory_order_release);
  quay__lock_acquire(&link->lock);
  const quay__cu_semaphore_value next = {.value = link->back_value + 1};
  const quay__cu_result result =
      device->api->cuSignalExternalSemaphoresAsync(&link->back, &next, 1, link->stream);
  if (result == QUAY__CU_SUCCESS)
    link->back_value = next.value;
  quay__lock_release(&link->lock);
  *out_signal = (quay__vulkan_signal){.semaphore = link->back_handle, .value = next.value};
  if (result == QUAY__CU_SUCCESS)
    return QUAY_OK;
  return quay__cuda_fail(device, result, "making a queue of %s wait for work on %s",
                         link->queue->device->name, device->name);
}

/* A stream of CUDA's waits for an event of Vulkan's. */
static quay_status wait_in_cuda(quay_device *device, uint64_t stream, quay_device *event_device,
                                uint64_t event) {
  quay__cuda_device *const cuda = quay__cuda_device_of(device);
  quay__vulkan_point point;
  if (!quay__vulkan_event_find(event_device, event, &point) ||
      quay__vulkan_reached(point.queue, point.value))
    return QUAY_OK;
  quay__cuda_link *const link = quay__cuda_link_find(point.queue, cuda);
  if (link == NULL)
    return quay__vulkan_wait(point.queue, point.value);
  quay__cuda_scope scope;
  quay__cu_stream handle = NULL;
  QUAY_TRY(quay__cuda_enter(cuda, false, &scope));
  quay_status status = quay__cuda_stream_use(cuda, stream, &handle);
  if (status == QUAY_OK)
    status = quay__cuda_link_await(link, point.value, handle);
  quay__cuda_leave(&scope);
  return status;
}

/* The link's stream waits for the event, and signals. */
static quay_status pass_on(quay__cuda_link *link, const quay__cuda_event *event, bool *out_done,
                           quay__vulkan_signal *out_signal) {
  quay__cuda_device *const cuda = cuda_of(link);
  quay__cuda_scope scope;
  QUAY_TRY(quay__cuda_enter(cuda, true, &scope));
  quay__cu_result result = cuda->api->cuEventQuery(event->handle);
  *out_done = result == QUAY__CU_SUCCESS;
  if (result == QUAY__CU_NOT_READY)
    result = cuda->api->cuStreamWaitEvent(link->stream, event->handle, 0);
  quay_status status = QUAY_OK;
  if (result != QUAY__CU_SUCCESS) {
    status = quay__cuda_fail(cuda, result, "making a queue of %s wait for an event of %s",
                             link->queue->device->name, cuda->name);
  } else if (!*out_done) {
    status = quay__cuda_link_signal(link, out_signal);
  }
  quay__cuda_leave(&scope);
  return status;
}

/* A stream of Vulkan's waits for an event of CUDA's. */
static quay_status wait_in_vulkan(quay_device *device, uint64_t stream, quay_device *event_device,
                                  uint64_t event) {
  quay__cuda_device *const cuda = quay__cuda_device_of(event_device);
  const quay__cuda_event *const waited = (const quay__cuda_event *)(uintptr_t)event;
  quay__vulkan_queue *const queue = quay__vulkan_queue_of(quay__vulkan_device_of(device), stream);
  if (waited->generation != quay__device_generation(event_device))
    return QUAY_OK; /* its work is gone, and so is the memory that it was about */
  quay__cuda_link *const link = queue != NULL ? quay__cuda_link_find(queue, cuda) : NULL;
  if (link == NULL)
    return quay__cuda_event_synchronize(event_device, event);
  bool done = false;
  quay__vulkan_signal signal = {.value = 0};
  QUAY_TRY(pass_on(link, waited, &done, &signal));
  uint64_t value;
  return done ? QUAY_OK : quay__vulkan_submit(queue, queue->barrier, &signal, &value);
}

quay_status quay__cuda_link_wait(quay_device *device, uint64_t stream, quay_device *event_device,
                                 uint64_t event) {
  return quay__vulkan_is(event_device) ? wait_in_cuda(device, stream, event_device, event)
                                       : wait_in_vulkan(device, stream, event_device, event);
}

bool quay__cuda_link_can_wait(quay_device *device, uint64_t stream, quay_device *event_device,
                              uint64_t event) {
  if (!quay__vulkan_is(event_device)) {
    quay__vulkan_queue *const queue = quay__vulkan_queue_of(quay__vulkan_device_of(device), stream);
    return queue != NULL && quay__cuda_link_find(queue, quay__cuda_device_of(event_device)) != NULL;
  }
  quay__vulkan_point point;
  return quay__vulkan_event_find(event_device, event, &point) &&
         quay__cuda_link_find(point.queue, quay__cuda_device_of(device)) != NULL;
}
