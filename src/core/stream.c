/* Streams and events: thin objects over the stream group of a device's functions. On a device
 * without the group they are objects all the same, and there is never anything to wait for. What
 * is recorded for whom is decided in access.c and hazard.c. */
#include "core/stream_impl.h"

#include <quay/backend.h>
#include <string.h>

#include "core/arguments.h"
#include "core/lifecycle.h"
#include "core/os.h"
#include "core/pair_path.h"
#include "core/thread.h"

static quay_status stream_new(quay_device *device, uint64_t native, bool wrapped,
                              quay_stream **out_stream) {
  quay_stream *stream = quay__os_malloc(sizeof(*stream));
  if (stream == NULL)
    return quay__fail_out_of_memory(sizeof(*stream), "a stream");
  *stream = (quay_stream){
      .wrapped = wrapped,
      .device = quay_device_retain(device),
      .id = quay__next_id(),
      .native = native,
  };
  atomic_init(&stream->references, 1);
  atomic_init(&stream->mentions, 1);
  atomic_init(&stream->clock, 1);
  atomic_init(&stream->shown, false);
  atomic_fetch_add_explicit(&device->streams, 1, memory_order_relaxed);
  quay__live_add(QUAY__LIVE_STREAMS, 1);
  *out_stream = stream;
  return QUAY_OK;
}

static quay_status create_on(quay_device *device, const quay_stream_options *options,
                             quay_stream **out_stream) {
  static const quay_stream_options defaults = {0};
  QUAY_TRY(quay__device_check(device));
  if (!device->has_streams)
    return stream_new(device, 0, false, out_stream);
  uint64_t native = 0;
  QUAY_TRY(device->vtable.stream_create(device, options != NULL ? options : &defaults, &native));
  const quay_status status = stream_new(device, native, false, out_stream);
  if (status != QUAY_OK)
    device->vtable.stream_destroy(device, native, false);
  return status;
}

quay_status quay_stream_create(quay_device *device, const quay_stream_options *options,
                               quay_stream **out_stream) {
  QUAY__REQUIRE(out_stream);
  *out_stream = NULL;
  if (device != NULL)
    return create_on(device, options, out_stream);
  quay_allocator *allocator = NULL;
  QUAY_TRY(quay_default_allocator_get(&allocator));
  const quay_status status = create_on(quay_allocator_device(allocator), options, out_stream);
  quay_allocator_release(allocator);
  return status;
}

quay_status quay_stream_wrap(quay_device *device, uint64_t native, quay_stream **out_stream) {
  QUAY__REQUIRE(out_stream);
  *out_stream = NULL;
  QUAY__REQUIRE(device);
  if (!device->has_streams) {
    return quay__fail(QUAY_STATUS_UNSUPPORTED,
                      "quay_stream_wrap: the device %s has no streams of its own to wrap; use "
                      "quay_stream_create()",
                      device->name);
  }
  QUAY_TRY(quay__device_check(device));
  uint64_t stream = 0;
  QUAY_TRY(device->vtable.stream_wrap(device, native, &stream));
  const quay_status status = stream_new(device, stream, true, out_stream);
  if (status != QUAY_OK)
    device->vtable.stream_destroy(device, stream, true);
  return status;
}

quay_stream *quay_stream_retain(quay_stream *stream) {
  if (stream != NULL)
    atomic_fetch_add_explicit(&stream->references, 1, memory_order_relaxed);
  return stream;
}

void quay_stream_release(quay_stream *stream) {
  if (stream == NULL)
    return;
  if (atomic_fetch_sub_explicit(&stream->references, 1, memory_order_acq_rel) != 1)
    return;
  quay_device *device = stream->device;
  if (device->has_streams) {
    quay__error_shield();
    device->vtable.stream_destroy(device, stream->native, stream->wrapped);
    quay__error_unshield();
  }
  atomic_fetch_sub_explicit(&device->streams, 1, memory_order_release);
  quay__live_add(QUAY__LIVE_STREAMS, -1);
  quay__stream_unmention(stream);
  quay_device_release(device);
}

void quay__stream_mention(quay_stream *stream) {
  atomic_fetch_add_explicit(&stream->mentions, 1, memory_order_relaxed);
}

void quay__stream_unmention(quay_stream *stream) {
  if (atomic_fetch_sub_explicit(&stream->mentions, 1, memory_order_acq_rel) == 1)
    quay__os_free(stream);
}

quay_stream *quay__stream_try_retain(quay_stream *stream) {
  unsigned references = atomic_load_explicit(&stream->references, memory_order_relaxed);
  while (references != 0) {
    if (atomic_compare_exchange_weak_explicit(&stream->references, &references, references + 1,
                                              memory_order_acquire, memory_order_relaxed)) {
      return stream;
    }
  }
  return NULL;
}

uint64_t quay_stream_id(const quay_stream *stream) {
  return stream != NULL ? stream->id : 0;
}

quay_device *quay_stream_device(const quay_stream *stream) {
  return stream != NULL ? stream->device : NULL;
}

uint64_t quay_stream_native(const quay_stream *stream) {
  if (stream == NULL)
    return 0;
  atomic_store_explicit(&((quay_stream *)(uintptr_t)stream)->shown, true, memory_order_relaxed);
  return stream->native;
}

quay_status quay_stream_synchronize(quay_stream *stream) {
  QUAY__REQUIRE(stream);
  quay_device *device = stream->device;
  QUAY_TRY(quay__device_check(device));
  if (!device->has_streams)
    return QUAY_OK;
  return device->vtable.stream_synchronize(device, stream->native);
}

/* NULL: of one backend, or nothing leads from one to the other. */
static const quay__pair_path *path_to(const quay_stream *stream, const quay_event *event) {
  return quay__pair_path_between(stream->device->backend, event->device->backend);
}

bool quay__stream_can_wait(const quay_stream *stream, const quay_event *event) {
  quay_device *const device = stream->device, *const other = event->device;
  if (device == other)
    return true;
  if (!device->has_streams || !other->has_streams)
    return false;
  if (strcmp(device->backend, other->backend) == 0)
    return true;
  const quay__pair_path *const path = path_to(stream, event);
  return path != NULL && path->can_wait(device, stream->native, other, event->native);
}

bool quay__event_dead(const quay_event *event) {
  return quay_device_health(event->device) == QUAY_HEALTH_LOST ||
         quay__device_generation(event->device) != event->generation;
}

/* QUAY_OK unless the event's device is lost, or was reset since. */
static quay_status check_event(const quay_event *event) {
  QUAY_TRY(quay__device_check(event->device));
  if (quay__device_generation(event->device) == event->generation)
    return QUAY_OK;
  return quay__fail(QUAY_STATUS_STALE,
                    "the event is of generation %llu of the device %s, which is at %llu now: it "
                    "was reset since; record a new one",
                    (unsigned long long)event->generation, event->device->name,
                    (unsigned long long)quay__device_generation(event->device));
}

quay_status quay_stream_wait(quay_stream *stream, quay_event *event) {
  QUAY__REQUIRE(stream);
  QUAY__REQUIRE(event);
  quay_device *device = stream->device;
  QUAY_TRY(quay__device_check(device));
  QUAY_TRY(check_event(event));
  if (!quay__stream_can_wait(stream, event)) {
    return quay__fail(
        QUAY_STATUS_UNSUPPORTED,
        "quay_stream_wait: a stream of %s cannot wait for an event of %s, which is of "
        "another backend that it shares no semaphores with; wait on the host with "
        "quay_event_synchronize()",
        device->name, event->device->name);
  }
  if (!device->has_streams)
    return QUAY_OK;
  const quay__pair_path *const path = path_to(stream, event);
  if (path != NULL)
    return path->wait(device, stream->native, event->device, event->native);
  return device->vtable.stream_wait(device, stream->native, event->device, event->native);
}

quay_status quay_event_record(quay_stream *stream, quay_event **out_event) {
  QUAY__REQUIRE(out_event);
  *out_event = NULL;
  QUAY__REQUIRE(stream);
  quay_device *device = stream->device;
  QUAY_TRY(quay__device_check(device));
  quay_event *event = quay__os_malloc(sizeof(*event));
  if (event == NULL)
    return quay__fail_out_of_memory(sizeof(*event), "an event");
  *event = (quay_event){
      .generation = quay__device_generation(device),
      .begin = atomic_fetch_add_explicit(&stream->clock, 1, memory_order_acq_rel),
      .stream_id = stream->id,
  };
  if (device->has_streams) {
    const quay_status status = device->vtable.event_record(device, stream->native, &event->native);
    if (status != QUAY_OK) {
      quay__os_free(event);
      return status;
    }
  }
  event->end = atomic_fetch_add_explicit(&stream->clock, 1, memory_order_acq_rel);
  event->device = quay_device_retain(device);
  atomic_init(&event->references, 1);
  *out_event = event;
  return QUAY_OK;
}

quay_status quay__stream_settle(quay_device *device, uint64_t native) {
  const quay_status status = device->vtable.stream_synchronize(device, native);
  /* In the child of a fork and after the driver's end nothing is freed, either. */
  const bool gone = atomic_load_explicit(&device->untouchable, memory_order_relaxed);
  if (status == QUAY_OK || gone || quay_device_health(device) != QUAY_HEALTH_OK)
    return status;
  quay__error_state error;
  quay__error_save(&error);
  const quay_status all = device->vtable.synchronize(device);
  /* Stale: somebody has reset the device, and no work is left on it. */
  if (all != QUAY_OK && all != QUAY_STATUS_STALE && quay_device_health(device) == QUAY_HEALTH_OK) {
    quay_device_mark_lost(
        device, 0, NULL,
        "nothing tells when work on it ends, so that its memory can't be used any "
        "more: %s",
        quay_last_error()->message);
  }
  quay__error_restore(&error);
  return status;
}

quay_status quay__stream_drain(quay_stream *stream) {
  quay_device *device = stream->device;
  QUAY_TRY(quay__device_check(device));
  return device->has_streams ? quay__stream_settle(device, stream->native) : QUAY_OK;
}

quay_status quay__event_record_or_wait(quay_stream *stream, quay_event **out_event) {
  *out_event = NULL;
  quay_device *device = stream->device;
  if (!device->has_streams)
    return QUAY_OK;
  quay__error_shield();
  quay_status status = quay_event_record(stream, out_event);
  quay__error_unshield();
  if (status == QUAY_OK)
    return QUAY_OK;
  return quay__stream_drain(stream);
}

quay_status quay_event_query(quay_event *event, bool *out_done) {
  QUAY__REQUIRE(out_done);
  *out_done = false;
  QUAY__REQUIRE(event);
  quay_device *device = event->device;
  QUAY_TRY(check_event(event));
  if (device->has_streams)
    return device->vtable.event_query(device, event->native, out_done);
  *out_done = true;
  return QUAY_OK;
}

quay_status quay_event_synchronize(quay_event *event) {
  QUAY__REQUIRE(event);
  quay_device *device = event->device;
  QUAY_TRY(check_event(event));
  if (!device->has_streams)
    return QUAY_OK;
  return device->vtable.event_synchronize(device, event->native);
}

quay_event *quay_event_retain(quay_event *event) {
  if (event != NULL)
    atomic_fetch_add_explicit(&event->references, 1, memory_order_relaxed);
  return event;
}

static void event_end(quay_event *event) {
  quay_device *device = event->device;
  if (device->has_streams) {
    quay__error_shield();
    device->vtable.event_destroy(device, event->native);
    quay__error_unshield();
  }
  quay__os_free(event);
  quay_device_release(device);
}

static bool was_last_reference(quay_event *event) {
  return atomic_fetch_sub_explicit(&event->references, 1, memory_order_acq_rel) == 1;
}

void quay_event_release(quay_event *event) {
  if (event != NULL && was_last_reference(event))
    event_end(event);
}

void quay__event_release_later(quay_event *event, quay_event **list) {
  if (event == NULL || !was_last_reference(event))
    return;
  event->next = *list;
  *list = event;
}

void quay__events_end(quay_event *list) {
  while (list != NULL) {
    quay_event *const event = list;
    list = event->next;
    event_end(event);
  }
}

uint64_t quay_event_native(const quay_event *event) {
  return event != NULL ? event->native : 0;
}

quay_device *quay_event_device(const quay_event *event) {
  return event != NULL ? event->device : NULL;
}
