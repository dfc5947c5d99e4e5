/* Streams and events: Quay's own, the program's, and the pool of events. */
#include "core/device_impl.h"
#include "core/error.h"
#include "core/os.h"
#include "core/thread.h"
#include "cuda/cuda_impl.h"

enum {
  EVENTS_KEPT = 256
};

/* A wrapper of a thread's default stream is good in that thread alone, and the driver's handle is
 * the same in all of them: so the number that stands for it has the thread's in its upper bits. The
 * driver's other handles are addresses, whose low byte is never this. */
#define PER_THREAD_MASK  ((uint64_t)0xff)
#define PER_THREAD_SHIFT 8

static uint64_t this_thread(void) {
  static _Thread_local uint64_t number;
  if (number == 0)
    number = quay__next_id();
  return number;
}

static bool is_per_thread(uint64_t stream) {
  return (stream & PER_THREAD_MASK) == QUAY__CU_STREAM_PER_THREAD;
}

static quay__cu_stream handle_of(uint64_t stream) {
  return (quay__cu_stream)(uintptr_t)(is_per_thread(stream) ? (uint64_t)QUAY__CU_STREAM_PER_THREAD
                                                            : stream);
}

uint64_t quay__cuda_stream_native(uint64_t stream) {
  return (uint64_t)(uintptr_t)handle_of(stream);
}

static quay_status check_thread(const quay__cuda_device *device, uint64_t stream) {
  if (!is_per_thread(stream) || stream >> PER_THREAD_SHIFT == this_thread())
    return QUAY_OK;
  return quay_error_set(QUAY_STATUS_INVALID_ARGUMENT, "cuda", 0, NULL,
                        "the stream wraps the default stream of another thread on %s; wrap this "
                        "thread's own, or use an ordinary stream",
                        device->name);
}

static quay_status check_capture(quay__cuda_device *device, quay__cu_stream stream) {
  int capture = QUAY__CU_CAPTURE_STATUS_NONE;
  const quay__cu_result result = device->api->cuStreamIsCapturing(stream, &capture);
  if (result != QUAY__CU_SUCCESS)
    return quay__cuda_fail(device, result, "a stream of %s can't be used", device->name);
  if (capture == QUAY__CU_CAPTURE_STATUS_NONE)
    return QUAY_OK;
  return quay_error_set(
      QUAY_STATUS_UNSUPPORTED, "cuda", QUAY__CU_CAPTURE_UNSUPPORTED,
      "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
      "the stream on %s is capturing a graph, which Quay's copies, allocations "
      "and accesses can't be part of; end the capture first, or open the access with "
      "quay_access_begin_untracked()",
      device->name);
}

quay_status quay__cuda_stream_use(quay__cuda_device *device, uint64_t stream,
                                  quay__cu_stream *out_stream) {
  QUAY_TRY(check_thread(device, stream));
  *out_stream = handle_of(stream);
  return check_capture(device, *out_stream);
}

/* Enters the device and resolves the stream; nothing is entered on error. */
static quay_status enter_with(quay__cuda_device *device, bool relaxed, uint64_t stream,
                              quay__cuda_scope *out_scope, quay__cu_stream *out_stream) {
  QUAY_TRY(quay__cuda_enter(device, relaxed, out_scope));
  const quay_status status = quay__cuda_stream_use(device, stream, out_stream);
  if (status != QUAY_OK)
    quay__cuda_leave(out_scope);
  return status;
}

/* Whether all is well with a stream that has a handle of its own, which the driver finds whatever
 * context is current: on the way of each allocation on such a stream. */
static bool is_well(const quay__cuda_device *device, uint64_t stream) {
  int capture = QUAY__CU_CAPTURE_STATUS_NONE;
  return device->api->cuCtxGetId != NULL && stream > QUAY__CU_STREAM_PER_THREAD &&
         !is_per_thread(stream) && quay__cuda_callable() &&
         quay__cuda_context_check(device) == QUAY__CU_SUCCESS &&
         device->api->cuStreamIsCapturing(handle_of(stream), &capture) == QUAY__CU_SUCCESS &&
         capture == QUAY__CU_CAPTURE_STATUS_NONE;
}

/* What is the matter is found out by the long way. */
quay_status quay__cuda_stream_check(quay_device *quay, uint64_t stream) {
  quay__cuda_device *const device = quay__cuda_device_of(quay);
  if (is_well(device, stream))
    return QUAY_OK;
  quay__cuda_scope scope;
  quay__cu_stream handle = NULL;
  QUAY_TRY(enter_with(device, false, stream, &scope, &handle));
  quay__cuda_leave(&scope);
  return QUAY_OK;
}

/* Streams. */

quay_status quay__cuda_stream_create(quay_device *quay, const quay_stream_options *options,
                                     uint64_t *out_stream) {
  quay__cuda_device *const device = quay__cuda_device_of(quay);
  quay__cuda_scope scope;
  QUAY_TRY(quay__cuda_enter(device, true, &scope));
  quay__cu_stream stream = NULL;
  /* The driver clamps the priority. */
  const quay__cu_result result = device->api->cuStreamCreateWithPriority(
      &stream, QUAY__CU_STREAM_NON_BLOCKING, options->priority);
  const quay_status status =
      result == QUAY__CU_SUCCESS
          ? QUAY_OK
          : quay__cuda_fail(device, result, "a stream on %s can't be created", device->name);
  quay__cuda_leave(&scope);
  *out_stream = (uint64_t)(uintptr_t)stream;
  return status;
}

static quay_status check_context(quay__cuda_device *device, uint64_t native) {
  quay__cu_context context = NULL;
  const quay__cu_result result = device->api->cuStreamGetCtx(handle_of(native), &context);
  if (result != QUAY__CU_SUCCESS) {
    return quay__cuda_fail(device, result, "0x%llx is no stream that can be wrapped on %s",
                           (unsigned long long)native, device->name);
  }
  if (context == device->context)
    return QUAY_OK;
  return quay_error_set(QUAY_STATUS_INVALID_ARGUMENT, "cuda", QUAY__CU_INVALID_CONTEXT,
                        "CUDA_ERROR_INVALID_CONTEXT",
                        "the stream 0x%llx is not of the primary context of %s; create it there, "
                        "as the CUDA runtime does",
                        (unsigned long long)native, device->name);
}

quay_status quay__cuda_stream_wrap(quay_device *quay, uint64_t native, uint64_t *out_stream) {
  quay__cuda_device *const device = quay__cuda_device_of(quay);
  if (native == 0 || native == QUAY__CU_STREAM_LEGACY) {
    *out_stream = QUAY__CU_STREAM_LEGACY;
    return QUAY_OK;
  }
  if (native == QUAY__CU_STREAM_PER_THREAD) {
    *out_stream = this_thread() << PER_THREAD_SHIFT | QUAY__CU_STREAM_PER_THREAD;
    return QUAY_OK;
  }
  if ((native & PER_THREAD_MASK) == QUAY__CU_STREAM_PER_THREAD) {
    return quay_error_set(QUAY_STATUS_INVALID_ARGUMENT, "cuda", 0, NULL,
                          "0x%llx is no CUstream; pass the handle itself, 0 or 1 for the legacy "
                          "stream, or 2 for this thread's",
                          (unsigned long long)native);
  }
  quay__cuda_scope scope;
  QUAY_TRY(quay__cuda_enter(device, true, &scope));
  const quay_status status = check_context(device, native);
  quay__cuda_leave(&scope);
  *out_stream = native;
  return status;
}

void quay__cuda_stream_destroy(quay_device *quay, uint64_t stream, bool wrapped) {
  quay__cuda_device *const device = quay__cuda_device_of(quay);
  if (wrapped || quay_device_health(quay) != QUAY_HEALTH_OK)
    return;
  quay__cuda_scope scope;
  if (quay__cuda_enter(device, true, &scope) != QUAY_OK) {
    quay_log(QUAY_LOG_WARNING, "cuda: a stream of %s is left as it is: %s", device->name,
             quay_last_error()->message);
    return;
  }
  const quay__cu_result result = device->api->cuStreamDestroy(handle_of(stream));
  if (result != QUAY__CU_SUCCESS)
    quay__cuda_report(device, result, "a stream of %s can't be destroyed", device->name);
  quay__cuda_leave(&scope);
}

quay_status quay__cuda_stream_synchronize(quay_device *quay, uint64_t stream) {
  quay__cuda_device *const device = quay__cuda_device_of(quay);
  quay__cuda_scope scope;
  quay__cu_stream handle = NULL;
  QUAY_TRY(enter_with(device, true, stream, &scope, &handle));
  const quay__cu_result result = device->api->cuStreamSynchronize(handle);
  const quay_status status =
      result == QUAY__CU_SUCCESS
          ? QUAY_OK
          : quay__cuda_fail(device, result, "waiting for a stream of %s", device->name);
  quay__cuda_leave(&scope);
  return status;
}

quay_status quay__cuda_stream_wait(quay_device *quay, uint64_t stream, quay_device *event_device,
                                   uint64_t event) {
  quay__cuda_device *const device = quay__cuda_device_of(quay);
  const quay__cuda_event *const waited = (const quay__cuda_event *)(uintptr_t)event;
  if (waited->generation != quay__device_generation(event_device))
    return QUAY_OK; /* its work is gone, and so is the memory that it was about */
  quay__cuda_scope scope;
  quay__cu_stream handle = NULL;
  QUAY_TRY(enter_with(device, false, stream, &scope, &handle));
  const quay__cu_result result = device->api->cuStreamWaitEvent(handle, waited->handle, 0);
  const quay_status status =
      result == QUAY__CU_SUCCESS
          ? QUAY_OK
          : quay__cuda_fail(device, result, "making a stream of %s wait for an event of %s",
                            device->name, quay_device_name(event_device));
  quay__cuda_leave(&scope);
  return status;
}

/* Events. */

static quay__cuda_event *pool_take(quay__cuda_device *device) {
  quay__lock_acquire(&device->lock);
  quay__cuda_event *const event = device->events;
  if (event != NULL) {
    device->events = event->next;
    device->event_count--;
  }
  quay__lock_release(&device->lock);
  return event;
}

static quay_status event_new(quay__cuda_device *device, quay__cuda_event **out_event) {
  quay__cuda_event *const event = quay__os_malloc(sizeof *event);
  if (event == NULL)
    return quay__fail_out_of_memory(sizeof *event, "an event");
  *event = (quay__cuda_event){.generation = quay__device_generation(device->device)};
  const quay__cu_result result =
      device->api->cuEventCreate(&event->handle, QUAY__CU_EVENT_DISABLE_TIMING);
  if (result != QUAY__CU_SUCCESS) {
    quay__os_free(event);
    return quay__cuda_fail(device, result, "an event on %s can't be created", device->name);
  }
  *out_event = event;
  return QUAY_OK;
}

quay_status quay__cuda_event_take(quay__cuda_device *device, quay__cu_stream stream,
                                  quay__cuda_event **out_event) {
  quay__cuda_event *event = pool_take(device);
  if (event == NULL) {
    const quay_status status = event_new(device, &event);
    if (status != QUAY_OK || event == NULL)
      return status;
  }
  const quay__cu_result result = device->api->cuEventRecord(event->handle, stream);
  if (result != QUAY__CU_SUCCESS) {
    const quay_status status =
        quay__cuda_fail(device, result, "recording an event on %s", device->name);
    quay__cuda_event_give_back(device, event);
    return status;
  }
  *out_event = event;
  return QUAY_OK;
}

static void event_end(quay__cuda_device *device, quay__cuda_event *event) {
  const bool usable = quay__cuda_callable() && quay_device_health(device->device) == QUAY_HEALTH_OK;
  if (usable && event->generation == quay__device_generation(device->device)) {
    const quay__cu_result result = device->api->cuEventDestroy(event->handle);
    if (result != QUAY__CU_SUCCESS)
      quay__cuda_report(device, result, "an event of %s can't be destroyed", device->name);
  }
  quay__os_free(event);
}

void quay__cuda_event_give_back(quay__cuda_device *device, quay__cuda_event *event) {
  if (event == NULL)
    return;
  quay__lock_acquire(&device->lock);
  const bool keep = device->event_count < EVENTS_KEPT &&
                    event->generation == quay__device_generation(device->device);
  if (keep) {
    event->next = device->events;
    device->events = event;
    device->event_count++;
  }
  quay__lock_release(&device->lock);
  if (!keep)
    event_end(device, event); /* which needs no current context */
}

void quay__cuda_events_end(quay__cuda_device *device, bool gone) {
  for (quay__cuda_event *event; (event = pool_take(device)) != NULL;) {
    if (gone) {
      quay__os_free(event);
    } else {
      event_end(device, event);
    }
  }
}

quay_status quay__cuda_event_record(quay_device *quay, uint64_t stream, uint64_t *out_event) {
  quay__cuda_device *const device = quay__cuda_device_of(quay);
  quay__cuda_scope scope;
  quay__cu_stream handle = NULL;
  QUAY_TRY(enter_with(device, false, stream, &scope, &handle));
  quay__cuda_event *event = NULL;
  const quay_status status = quay__cuda_event_take(device, handle, &event);
  quay__cuda_leave(&scope);
  *out_event = (uint64_t)(uintptr_t)event;
  return status;
}

quay_status quay__cuda_event_query(quay_device *quay, uint64_t native, bool *out_done) {
  quay__cuda_device *const device = quay__cuda_device_of(quay);
  const quay__cuda_event *const event = (const quay__cuda_event *)(uintptr_t)native;
  *out_done = event->generation != quay__device_generation(quay);
  if (*out_done)
    return QUAY_OK;
  quay__cuda_scope scope;
  QUAY_TRY(quay__cuda_enter(device, true, &scope));
  const quay__cu_result result = device->api->cuEventQuery(event->handle);
  quay_status status = QUAY_OK;
  if (result == QUAY__CU_SUCCESS) {
    *out_done = true;
  } else if (result != QUAY__CU_NOT_READY) {
    status = quay__cuda_fail(device, result, "work on %s", device->name);
  }
  quay__cuda_leave(&scope);
  return status;
}

quay_status quay__cuda_event_synchronize(quay_device *quay, uint64_t native) {
  quay__cuda_device *const device = quay__cuda_device_of(quay);
  const quay__cuda_event *const event = (const quay__cuda_event *)(uintptr_t)native;
  if (event->generation != quay__device_generation(quay))
    return QUAY_OK;
  quay__cuda_scope scope;
  QUAY_TRY(quay__cuda_enter(device, true, &scope));
  const quay__cu_result result = device->api->cuEventSynchronize(event->handle);
  const quay_status status = result == QUAY__CU_SUCCESS
                                 ? QUAY_OK
                                 : quay__cuda_fail(device, result, "work on %s", device->name);
  quay__cuda_leave(&scope);
  return status;
}

void quay__cuda_event_destroy(quay_device *quay, uint64_t event) {
  quay__cuda_event_give_back(quay__cuda_device_of(quay), (quay__cuda_event *)(uintptr_t)event);
}
