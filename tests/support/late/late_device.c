/* The functions of a device, its loss and its reset. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "late_internal.h"

static void destroy(void *self) {
  free(self);
}

static quay_status memory_info(quay_device *quay, quay_memory_info *out_info) {
  late_device *const device = quay_device_self(quay);
  QUAY_TRY(late_enter(device, LATE_MEMORY_INFO));
  out_info->total_bytes = late.options.device_bytes;
  out_info->free_bytes = late.options.device_bytes - device->used_bytes;
  return late_leave();
}

/* Waits with the lock held, gives the event back and releases the lock. */
static quay_status wait_and_leave(late_event *event, const char *what) {
  late_wait(&event, 1);
  const bool failed = event->failed;
  const late_device *const device = event->device;
  late_event_release(event);
  if (failed) {
    return late_leave_with(QUAY_STATUS_DEVICE_LOST,
                           "%s: %s was lost before its work was done; late_reset() it", what,
                           device->name);
  }
  return late_leave();
}

/* A stream of the device that holds something from before `call`, and that is not waited for yet.
 */
static late_stream *find_unfinished(const late_device *device, uint64_t call) {
  for (late_stream *stream = late.streams; stream != NULL; stream = stream->next) {
    if (stream->device == device && stream->waited_by != call && stream->head != NULL &&
        stream->head->serial < call)
      return stream;
  }
  return NULL;
}

/* What the device's streams know, those that are gone among them. */
static late_clock knowledge_of(const late_device *device) {
  late_clock clock = {.count = 0};
  late_clock_join(&clock, &device->finished);
  for (const late_stream *stream = late.streams; stream != NULL; stream = stream->next) {
    if (stream->device == device)
      late_clock_join(&clock, &stream->context.clock);
  }
  return clock;
}

static quay_status synchronize(quay_device *quay) {
  late_device *const device = quay_device_self(quay);
  QUAY_TRY(late_enter(device, LATE_SYNCHRONIZE));
  const uint64_t call = ++late.next_serial;
  late_clock submitted = knowledge_of(device);
  late_event **events = NULL;
  size_t count = 0;
  for (late_stream *stream; (stream = find_unfinished(device, call)) != NULL;) {
    stream->waited_by = call;
    events = late_grow(events, (count + 1) * sizeof *events);
    events[count++] = late_event_record(stream, "synchronize");
  }
  late_wait(events, count);
  bool failed = device->lost;
  for (size_t i = 0; i < count; i++) {
    failed = failed || events[i]->failed;
    late_event_release(events[i]);
  }
  free((void *)events);
  late_clock_join(&late_host()->clock, &submitted);
  late_clock_free(&submitted);
  if (failed) {
    return late_leave_with(QUAY_STATUS_DEVICE_LOST,
                           "synchronize: %s was lost before its work was done; late_reset() it",
                           device->name);
  }
  return late_leave();
}

/* Streams. */

static quay_status stream_create(quay_device *quay, const quay_stream_options *options,
                                 uint64_t *out_stream) {
  (void)options;
  late_device *const device = quay_device_self(quay);
  QUAY_TRY(late_enter(device, LATE_STREAM_CREATE));
  *out_stream = late_stream_new(device, false)->handle;
  return late_leave();
}

static quay_status stream_wrap(quay_device *quay, uint64_t native, uint64_t *out_stream) {
  late_device *const device = quay_device_self(quay);
  QUAY_TRY(late_enter(device, LATE_STREAM_WRAP));
  if (native == 0 && device->legacy == NULL) {
    device->legacy = late_stream_new(device, true);
    late.stream_count--; /* the device's own */
  }
  late_stream *const stream =
      native == 0 ? device->legacy : late_handle_get(LATE_TAG_STREAM, native);
  if (stream == NULL || stream->device != device) {
    return late_leave_with(QUAY_STATUS_INVALID_ARGUMENT,
                           "stream_wrap: 0x%" PRIx64 " is no stream of %s; use 0 or what "
                           "late_native_stream_create() gave",
                           native, device->name);
  }
  stream->wrappers++;
  *out_stream = stream->handle;
  return late_leave();
}

static void stream_destroy(quay_device *quay, uint64_t handle, bool wrapped) {
  late_device *const device = quay_device_self(quay);
  late_enter_void(LATE_STREAM_DESTROY);
  late_stream *const stream = late_stream_get(device, handle, "stream_destroy");
  if (stream != NULL && wrapped && stream->wrappers == 0) {
    late_report(LATE_VIOLATION_PROTOCOL, "stream_destroy: stream %" PRIu64 " is not wrapped",
                stream->serial);
  } else if (stream != NULL && !wrapped && stream->native) {
    late_report(LATE_VIOLATION_PROTOCOL, "stream_destroy: stream %" PRIu64 " is the program's own",
                stream->serial);
  } else if (stream != NULL && wrapped) {
    stream->wrappers--;
  } else if (stream != NULL) {
    late_stream_close(stream);
  }
  late_unlock();
}

static quay_status stream_synchronize(quay_device *quay, uint64_t handle) {
  late_stream *stream;
  QUAY_TRY(late_enter_stream(quay_device_self(quay), LATE_STREAM_SYNCHRONIZE, handle, &stream));
  late_event *const event = late_event_record(stream, "stream_synchronize");
  return wait_and_leave(event, "stream_synchronize");
}

static quay_status stream_wait(quay_device *quay, uint64_t handle, quay_device *event_device,
                               uint64_t event_handle) {
  late_stream *stream;
  QUAY_TRY(late_enter_stream(quay_device_self(quay), LATE_STREAM_WAIT, handle, &stream));
  late_device *const other = late_device_find(event_device);
  late_event *event = NULL;
  if (other == NULL) {
    late_report(LATE_VIOLATION_PROTOCOL, "stream_wait: %s is no device of late",
                quay_device_name(event_device));
  } else {
    event = late_event_get(other, event_handle, "stream_wait");
  }
  if (event == NULL) {
    return late_leave_with(QUAY_STATUS_INVALID_ARGUMENT,
                           "stream_wait: 0x%" PRIx64 " is no event of %s", event_handle,
                           quay_device_name(event_device));
  }
  late_op *const op = late_op_new(stream, LATE_OP_WAIT, "stream_wait");
  late_clock_join(&stream->context.clock, &event->clock);
  if (event->done) {
    late_op_free(op);
    return late_leave();
  }
  event->references++;
  op->event = event;
  late_op_submit(stream, op);
  return late_leave();
}

/* Events. */

static quay_status event_record(quay_device *quay, uint64_t handle, uint64_t *out_event) {
  late_stream *stream;
  QUAY_TRY(late_enter_stream(quay_device_self(quay), LATE_EVENT_RECORD, handle, &stream));
  late_event *const event = late_event_record(stream, "event_record");
  event->handle = late_handle_add(LATE_TAG_EVENT, event);
  late.event_count++;
  *out_event = event->handle;
  return late_leave();
}

/* late_enter(), and the event of a handle. */
static quay_status enter_event(late_device *device, late_function function, uint64_t handle,
                               late_event **out_event) {
  QUAY_TRY(late_enter(device, function));
  const char *const what = late_function_name(function);
  *out_event = late_event_get(device, handle, what);
  if (*out_event == NULL) {
    return late_leave_with(QUAY_STATUS_INVALID_ARGUMENT, "%s: 0x%" PRIx64 " is no event of %s",
                           what, handle, device->name);
  }
  if ((*out_event)->generation != device->generation) {
    return late_leave_with(QUAY_STATUS_STALE,
                           "%s: the event is of generation %" PRIu64 " of %s, which is at %" PRIu64,
                           what, (*out_event)->generation, device->name, device->generation);
  }
  return QUAY_OK;
}

static quay_status event_query(quay_device *quay, uint64_t handle, bool *out_done) {
  late_event *event;
  QUAY_TRY(enter_event(quay_device_self(quay), LATE_EVENT_QUERY, handle, &event));
  event->references++;
  late_run_eagerly();
  *out_done = event->done;
  if (event->done)
    late_clock_join(&late_host()->clock, &event->clock);
  late_event_release(event);
  return late_leave();
}

static quay_status event_synchronize(quay_device *quay, uint64_t handle) {
  late_event *event;
  QUAY_TRY(enter_event(quay_device_self(quay), LATE_EVENT_SYNCHRONIZE, handle, &event));
  event->references++;
  return wait_and_leave(event, "event_synchronize");
}

static void event_destroy(quay_device *quay, uint64_t handle) {
  late_enter_void(LATE_EVENT_DESTROY);
  late_event *const event = late_event_get(quay_device_self(quay), handle, "event_destroy");
  if (event != NULL) {
    late_handle_remove(handle);
    event->handle = 0;
    late.event_count--;
    late_event_release(event);
  }
  late_unlock();
}

/* Loss and reset. */

/* Nothing of the device's goes on after it: everybody knows as much as its streams. */
static void drop_work(const late_device *device) {
  late_clock submitted = knowledge_of(device);
  late_clock_join(&late_host()->clock, &submitted);
  late_clock_free(&submitted);
  for (late_stream *stream = late.streams; stream != NULL; stream = stream->next) {
    if (stream->device == device)
      late_stream_drop(stream);
  }
  pthread_cond_broadcast(&late.changed);
}

static bool is_busy(const late_device *device) {
  for (const late_stream *stream = late.streams; stream != NULL; stream = stream->next) {
    if (stream->device == device && stream->busy)
      return true;
  }
  return false;
}

static void restart(late_device *device) {
  drop_work(device);
  while (is_busy(device))
    pthread_cond_wait(&late.changed, &late.lock);
  if (device->legacy != NULL) {
    late.stream_count++;
    late_stream_close(device->legacy);
    device->legacy = NULL;
  }
  late_blocks_make_stale(device);
  device->generation++;
  device->lost = false;
  device->lose_after = 0;
}

static quay_status reset(quay_device *quay) {
  late_device *const device = quay_device_self(quay);
  QUAY_TRY(late_enter(device, LATE_RESET));
  restart(device);
  return late_leave();
}

static const quay_device_vtable table = {
    .destroy = destroy,
    .version = QUAY_DEVICE_VTABLE_VERSION,
    .struct_size = sizeof(quay_device_vtable),
    .memory_info = memory_info,
    .synchronize = synchronize,
    .reset = reset,
    .stream_create = stream_create,
    .stream_wrap = stream_wrap,
    .stream_destroy = stream_destroy,
    .stream_synchronize = stream_synchronize,
    .stream_wait = stream_wait,
    .event_record = event_record,
    .event_query = event_query,
    .event_synchronize = event_synchronize,
    .event_destroy = event_destroy,
};

const quay_device_vtable *late_device_table(void) {
  return &table;
}

/* Devices. */

late_device *late_device_new(uint32_t index) {
  late_device *const device = late_new(sizeof *device);
  device->index = index;
  snprintf(device->name, sizeof device->name, "late:%u", index);
  snprintf(device->pinned_spec, sizeof device->pinned_spec, "late:%u,memory=pinned", index);
  device->generation = 1;
  device->next_address = (uint64_t)0x7af0 << 48 | (uint64_t)(index + 1) << 44;
  const quay_device_desc desc = {
      .vtable = &table,
      .self = device,
      .backend = "late",
      .name = device->name,
      .type = QUAY_DEVICE_EXTERNAL,
      .index = (int32_t)index,
  };
  if (quay_device_create(&desc, &device->device) != QUAY_OK) {
    free(device);
    return NULL;
  }
  return device;
}

late_device *late_device_find(const quay_device *quay) {
  for (uint32_t i = 0; i < late.options.devices; i++) {
    if (late.devices[i] != NULL && late.devices[i]->device == quay)
      return late.devices[i];
  }
  return NULL;
}

bool late_devices_reach(const late_device *a, const late_device *b) {
  if (a == b)
    return true;
  switch (late.options.peers) {
  case LATE_PEERS_PAIRS:
    return a->index / 2 == b->index / 2;
  case LATE_PEERS_ALL:
    return true;
  case LATE_PEERS_NONE:
    return false;
  case LATE_PEERS_LISTED:
    return late.options.peer_of[a->index][b->index] || late.options.peer_of[b->index][a->index];
  }
  return false;
}

void late_device_lose(late_device *device, const char *why) {
  device->lost = true;
  device->lose_after = 0;
  drop_work(device);
  if (late.options.mode == LATE_MANUAL)
    late_streams_reap();
  quay_device *const quay = quay_device_retain(device->device);
  late_unlock();
  quay_device_mark_lost(quay, 719, "LATE_DEVICE_LOST", "%s", why);
  quay_device_release(quay);
  late_lock();
}

static late_device *device_at(uint32_t index) {
  return late.registered && index < late.options.devices ? late.devices[index] : NULL;
}

quay_device *late_device_at(uint32_t index) {
  late_lock();
  const late_device *const device = device_at(index);
  quay_device *const quay = device != NULL ? device->device : NULL;
  late_unlock();
  return quay;
}

void late_lose(uint32_t index) {
  late_lock();
  late_device *const device = device_at(index);
  if (device != NULL)
    late_device_lose(device, "a test has asked for it");
  late_unlock();
}

void late_lose_after(uint32_t index, uint64_t nth) {
  late_lock();
  late_device *const device = device_at(index);
  if (device != NULL)
    device->lose_after = nth;
  late_unlock();
}

void late_reset(uint32_t index) {
  late_lock();
  late_device *const device = device_at(index);
  quay_device *const quay = device != NULL ? device->device : NULL;
  if (device != NULL)
    restart(device);
  late_unlock();
  quay_device_advance_generation(quay);
}

uint64_t late_native_stream_create(uint32_t index) {
  late_lock();
  late_device *const device = device_at(index);
  const uint64_t handle =
      device != NULL && !device->lost ? late_stream_new(device, true)->handle : 0;
  late_unlock();
  return handle;
}

void late_native_stream_destroy(uint64_t handle) {
  late_lock();
  late_stream *const stream = late_stream_get(NULL, handle, "late_native_stream_destroy");
  if (stream != NULL && (!stream->native || stream->wrappers != 0)) {
    late_report(LATE_VIOLATION_PROTOCOL, "the program destroys stream %" PRIu64 ", which %s",
                stream->serial, stream->native ? "is wrapped" : "is not its own");
  } else if (stream != NULL) {
    late_stream_close(stream);
  }
  late_unlock();
}
