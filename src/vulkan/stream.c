/* Streams and events. A stream is a queue, which several may share; an event is a value of a
 * queue's timeline, and a plain number. */
#include "core/device_impl.h"
#include "core/error.h"
#include "vulkan/vulkan_impl.h"

/* The parts of an event's number. */
#define VALUE_BITS       48
#define VALUE_MASK       ((UINT64_C(1) << VALUE_BITS) - 1)
#define QUEUE_SHIFT      VALUE_BITS
#define QUEUE_MASK       UINT64_C(0xff)
#define GENERATION_SHIFT 56

static uint64_t generation_of(const quay_device *device) {
  return quay__device_generation(device) & QUEUE_MASK;
}

static quay__vulkan_point point_of(quay__vulkan_device *device, uint64_t event) {
  return (quay__vulkan_point){
      .queue = &device->queues[event >> QUEUE_SHIFT & QUEUE_MASK],
      .value = event & VALUE_MASK,
  };
}

/* Its queue's timeline is gone, and with it the work. */
static bool is_stale(const quay_device *device, uint64_t event) {
  return event >> GENERATION_SHIFT != generation_of(device);
}

bool quay__vulkan_event_find(quay_device *quay, uint64_t event, quay__vulkan_point *out_point) {
  if (is_stale(quay, event))
    return false;
  *out_point = point_of(quay__vulkan_device_of(quay), event);
  return true;
}

static quay_status fail_queue(const quay__vulkan_device *device, uint64_t stream) {
  return quay_error_set(QUAY_STATUS_INVALID_ARGUMENT, "vulkan", 0, NULL,
                        "0x%llx is no VkQueue that streams of %s are on; take one from "
                        "quay_stream_native(), or name it when the device is adopted",
                        (unsigned long long)stream, device->name);
}

static quay_status find_queue(quay__vulkan_device *device, uint64_t stream,
                              quay__vulkan_queue **out_queue) {
  *out_queue = quay__vulkan_queue_of(device, stream);
  return *out_queue != NULL ? QUAY_OK : fail_queue(device, stream);
}

/* Streams. */

quay_status quay__vulkan_stream_create(quay_device *quay, const quay_stream_options *options,
                                       uint64_t *out_stream) {
  quay__vulkan_device *const device = quay__vulkan_device_of(quay);
  /* The priority of a queue is fixed when its device is made. */
  const uint32_t streams = device->stream_queue_count, copies = device->queue_count - streams;
  const bool to_copies = options->copies_only && copies != 0;
  QUAY_TRY(quay__vulkan_check_callable());
  const uint32_t number = atomic_fetch_add_explicit(
      to_copies ? &device->next_copy_queue : &device->next_queue, 1, memory_order_relaxed);
  const uint32_t chosen = to_copies ? streams + number % copies : number % streams;
  *out_stream = QUAY__VULKAN_TO_INTEGER(device->queues[chosen].handle);
  return QUAY_OK;
}

quay_status quay__vulkan_stream_wrap(quay_device *quay, uint64_t native, uint64_t *out_stream) {
  quay__vulkan_queue *queue;
  QUAY_TRY(quay__vulkan_check_callable());
  QUAY_TRY(find_queue(quay__vulkan_device_of(quay), native, &queue));
  if (quay__vulkan_only_copies(queue))
    return fail_queue(queue->device, native);
  *out_stream = native;
  return QUAY_OK;
}

/* The queue stays, and what is on it goes on. */
void quay__vulkan_stream_destroy(quay_device *quay, uint64_t stream, bool wrapped) {
  (void)quay;
  (void)stream;
  (void)wrapped;
}

quay_status quay__vulkan_stream_synchronize(quay_device *quay, uint64_t stream) {
  quay__vulkan_queue *queue;
  uint64_t value;
  QUAY_TRY(find_queue(quay__vulkan_device_of(quay), stream, &queue));
  /* What the program has submitted itself counts as well. */
  QUAY_TRY(quay__vulkan_submit(queue, queue->barrier, NULL, &value));
  return quay__vulkan_wait(queue, value);
}

quay_status quay__vulkan_stream_wait(quay_device *quay, uint64_t stream, quay_device *event_device,
                                     uint64_t event) {
  quay__vulkan_device *const device = quay__vulkan_device_of(quay);
  quay__vulkan_queue *queue;
  if (is_stale(event_device, event))
    return QUAY_OK; /* and so is the memory that it was about */
  QUAY_TRY(find_queue(device, stream, &queue));
  const quay__vulkan_point point = point_of(quay__vulkan_device_of(event_device), event);
  /* A timeline is of one VkDevice, and a queue is in order with itself. */
  if (event_device != quay)
    return quay__vulkan_wait(point.queue, point.value);
  if (point.queue == queue || quay__vulkan_reached(point.queue, point.value))
    return QUAY_OK;
  const quay__vulkan_signal signal = {.semaphore = point.queue->timeline, .value = point.value};
  uint64_t value;
  return quay__vulkan_submit(queue, queue->barrier, &signal, &value);
}

/* Events. */

quay_status quay__vulkan_event_record(quay_device *quay, uint64_t stream, uint64_t *out_event) {
  quay__vulkan_device *const device = quay__vulkan_device_of(quay);
  quay__vulkan_queue *queue;
  uint64_t value;
  QUAY_TRY(find_queue(device, stream, &queue));
  if (quay__vulkan_only_copies(queue)) {
    value = quay__vulkan_submitted(queue); /* nobody else has submitted anything */
  } else {
    QUAY_TRY(quay__vulkan_submit(queue, queue->barrier, NULL, &value));
  }
  *out_event = value | (uint64_t)(queue - device->queues) << QUEUE_SHIFT |
               generation_of(quay) << GENERATION_SHIFT;
  return QUAY_OK;
}

quay_status quay__vulkan_event_query(quay_device *quay, uint64_t event, bool *out_done) {
  *out_done = is_stale(quay, event);
  if (*out_done)
    return QUAY_OK;
  const quay__vulkan_point point = point_of(quay__vulkan_device_of(quay), event);
  return quay__vulkan_query(point.queue, point.value, out_done);
}

quay_status quay__vulkan_event_synchronize(quay_device *quay, uint64_t event) {
  if (is_stale(quay, event))
    return QUAY_OK;
  const quay__vulkan_point point = point_of(quay__vulkan_device_of(quay), event);
  return quay__vulkan_wait(point.queue, point.value);
}

/* A number needs no end. */
void quay__vulkan_event_destroy(quay_device *quay, uint64_t event) {
  (void)quay;
  (void)event;
}
