/* Streams, the operations in them, and events. What runs them is in late_run.c. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "late_internal.h"

/* Events. */

static late_event *new_event(late_stream *stream) {
  late_event *const event = late_new(sizeof *event);
  event->device = stream->device;
  event->generation = stream->generation;
  event->references = 1;
  event->stream = stream;
  late_clock_join(&event->clock, &stream->context.clock);
  return event;
}

late_event *late_event_record(late_stream *stream, const char *what) {
  late_op *const op = late_op_new(stream, LATE_OP_RECORD, what);
  late_event *const event = new_event(stream);
  event->serial = op->serial;
  event->references++;
  op->event = event;
  late_op_submit(stream, op);
  return event;
}

late_event *late_event_get(const late_device *device, uint64_t handle, const char *what) {
  late_event *const event = late_handle_get(LATE_TAG_EVENT, handle);
  if (event == NULL) {
    late_report(LATE_VIOLATION_PROTOCOL, "%s: there is no event 0x%" PRIx64, what, handle);
    return NULL;
  }
  if (device != NULL && event->device != device) {
    late_report(LATE_VIOLATION_PROTOCOL, "%s: event 0x%" PRIx64 " is of %s, not of %s", what,
                handle, event->device->name, device->name);
    return NULL;
  }
  return event;
}

void late_event_release(late_event *event) {
  if (--event->references != 0)
    return;
  late_clock_free(&event->clock);
  free(event);
}

void late_event_complete(late_event *event, bool failed) {
  event->done = true;
  event->failed = failed;
  event->stream = NULL;
  late_blocks_collect();
}

/* Operations. */

late_op *late_op_new(late_stream *stream, late_op_kind kind, const char *what) {
  late_op *const op = late_new(sizeof *op);
  op->kind = kind;
  op->what = what;
  op->serial = ++late.next_serial;
  late_clock_join(&stream->context.clock, &late_host()->clock);
  return op;
}

void late_op_touch(late_stream *stream, late_op *op, const late_access *accesses, size_t count) {
  const late_actor actor = {
      .what = op->what,
      .stream = stream,
      .serial = op->serial,
      .epoch = late_context_tick(&stream->context),
      .clock = &stream->context.clock,
      .beginning = op->beginning,
  };
  late_touch(&actor, accesses, count, NULL);
  op->place_count = count;
  for (size_t i = 0; i < count; i++)
    op->places[i] = accesses[i].place;
}

void late_op_submit(late_stream *stream, late_op *op) {
  if (stream->tail != NULL) {
    stream->tail->next = op;
  } else {
    stream->head = op;
  }
  stream->tail = op;
  late.submitted += late_op_is_work(op->kind);
  pthread_cond_broadcast(&late.changed);
  late_run_eagerly();
}

void late_op_free(late_op *op) {
  for (size_t i = 0; i < op->place_count; i++) {
    if (op->places[i].block != NULL)
      late_block_unpin(op->places[i].block);
  }
  if (op->event != NULL)
    late_event_release(op->event);
  if (op->gate != NULL) {
    late_handle_remove(op->gate->handle);
    free(op->gate);
  }
  free(op);
}

/* Streams. */

static void start_thread(late_stream *stream) {
  if (late.options.mode != LATE_THREADS)
    return;
  pthread_t thread;
  if (pthread_create(&thread, NULL, late_stream_thread, stream) != 0)
    abort();
  pthread_detach(thread);
}

late_stream *late_stream_new(late_device *device, bool native) {
  late_streams_reap();
  late_stream *const stream = late_new(sizeof *stream);
  stream->handle = late_handle_add(LATE_TAG_STREAM, stream);
  stream->serial = ++late.next_serial;
  stream->device = device;
  stream->generation = device->generation;
  stream->native = native;
  stream->random = late.options.seed ^ (stream->serial << 32);
  late_context_begin(&stream->context);
  stream->next = late.streams;
  late.streams = stream;
  late.stream_count++;
  start_thread(stream);
  return stream;
}

late_stream *late_stream_get(const late_device *device, uint64_t handle, const char *what) {
  late_stream *const stream = late_handle_get(LATE_TAG_STREAM, handle);
  if (stream == NULL) {
    late_report(LATE_VIOLATION_PROTOCOL, "%s: there is no stream 0x%" PRIx64, what, handle);
    return NULL;
  }
  if (device != NULL && stream->device != device) {
    late_report(LATE_VIOLATION_PROTOCOL, "%s: stream %" PRIu64 " is of %s, not of %s", what,
                stream->serial, stream->device->name, device->name);
    return NULL;
  }
  return stream;
}

quay_status late_enter_stream(late_device *device, late_function function, uint64_t handle,
                              late_stream **out_stream) {
  QUAY_TRY(late_enter(device, function));
  const char *const what = late_function_name(function);
  *out_stream = late_stream_get(device, handle, what);
  if (*out_stream == NULL) {
    return late_leave_with(QUAY_STATUS_INVALID_ARGUMENT, "%s: %s has no stream 0x%" PRIx64, what,
                           device->name, handle);
  }
  if ((*out_stream)->generation != device->generation) {
    return late_leave_with(QUAY_STATUS_STALE,
                           "%s: the stream is of generation %" PRIu64
                           " of %s, which is at %" PRIu64,
                           what, (*out_stream)->generation, device->name, device->generation);
  }
  return QUAY_OK;
}

void late_stream_close(late_stream *stream) {
  late_handle_remove(stream->handle);
  stream->closed = true;
  late.stream_count--;
  pthread_cond_broadcast(&late.changed);
  late_streams_reap();
}

void late_stream_drop(late_stream *stream) {
  late_op *dropped = stream->head;
  if (stream->busy) {
    dropped = stream->head->next;
    stream->head->next = NULL;
    stream->tail = stream->head;
  } else {
    stream->head = stream->tail = NULL;
  }
  while (dropped != NULL) {
    late_op *const op = dropped;
    dropped = op->next;
    if (op->kind == LATE_OP_RECORD)
      late_event_complete(op->event, true);
    late_op_free(op);
  }
}

static bool is_over(const late_stream *stream) {
  if (late.options.mode == LATE_THREADS)
    return stream->over;
  return stream->closed && stream->head == NULL;
}

void late_streams_reap(void) {
  for (late_stream **link = &late.streams; *link != NULL;) {
    late_stream *const stream = *link;
    if (!is_over(stream)) {
      link = &stream->next;
      continue;
    }
    *link = stream->next;
    late_clock_join(&stream->device->finished, &stream->context.clock);
    late_context_end(&stream->context);
    free(stream);
  }
}
