/* The stream and event objects. */
#ifndef QUAY_CORE_STREAM_IMPL_H
#define QUAY_CORE_STREAM_IMPL_H

#include <quay/stream.h>
#include <stdatomic.h>

#include "core/device_impl.h"

struct quay_stream {
  atomic_uint references;     /* after the last one the backend's stream is gone */
  atomic_uint mentions;       /* and one for all references: after the last one the object is */
  atomic_uint_fast64_t clock; /* ticks before and after each event that is recorded */
  bool wrapped;               /* the program's: never owned */
  atomic_bool shown;          /* the program has had the handle, and may do with it what it likes */
  quay_device *device;        /* retained */
  uint64_t id;
  uint64_t native; /* what the device's functions take; 0 on a device without streams */
};

struct quay_event {
  atomic_uint references;
  quay_device *device; /* retained: an event outlives its stream */
  uint64_t native;     /* 0 on a device without streams, where it is complete from the start */
  uint64_t generation; /* of the device when it was recorded */
  uint64_t begin, end; /* of the stream's clock: it was recorded between the two */
  uint64_t stream_id;  /* of the stream that it was recorded on */
  quay_event *next;    /* in the list of whoever holds the last reference */
};

/* A mention keeps the object so that no other stream gets its address, but not the stream: what
 * remembers a stream must not keep a wrapped one in use that the program wants to destroy. */
void quay__stream_mention(quay_stream *stream);
void quay__stream_unmention(quay_stream *stream);

/* A reference on a stream that is mentioned; NULL if it is gone. */
quay_stream *quay__stream_try_retain(quay_stream *stream);

/* Of two events of one stream: whether `later` certainly was recorded after `earlier`, so that what
 * waits for it has waited for both. */
static inline bool quay__event_covers(const quay_event *later, const quay_event *earlier) {
  return later == earlier || later->begin > earlier->end;
}

/* The handle for the library's own calls; quay_stream_native() is the program's. */
static inline uint64_t quay__stream_handle(const quay_stream *stream) {
  return stream->native;
}

/* Nothing but Quay's own calls has ever reached the stream. The program that has had its handle
 * in one thread and uses it in another has put the two in order. */
static inline bool quay__stream_is_untouched(const quay_stream *stream) {
  return stream->device->checks_shown_streams && !stream->wrapped &&
         !atomic_load_explicit(&stream->shown, memory_order_relaxed) &&
         !atomic_load_explicit(&stream->device->untouchable, memory_order_relaxed);
}

/* Whether work may be submitted to the stream and recorded: UNSUPPORTED while it captures a graph.
 * Asked before anything is touched. */
static inline quay_status quay__stream_check(quay_stream *stream) {
  QUAY_TRY(quay__device_check(stream->device));
  if (quay__stream_is_untouched(stream))
    return QUAY_OK;
  return stream->device->vtable.stream_check(stream->device, stream->native);
}

/* Gives a reference back without ever calling the backend: if it was the last one, the event is put
 * into `list`, which is the caller's to synchronise and to end. */
void quay__event_release_later(quay_event *event, quay_event **list);
void quay__events_end(quay_event *list);

/* Waits for a stream of the backend whose work nothing else tells the end of: where that fails, for
 * the whole device, and where that fails, too, the device is lost, since memory that its work uses
 * must not serve for anything else. The status is the stream's. */
quay_status quay__stream_settle(quay_device *device, uint64_t native);

/* quay_stream_synchronize() for work of the library's own whose end nothing else tells: a failure
 * is followed by what quay__stream_settle() does about one. */
quay_status quay__stream_drain(quay_stream *stream);

/* Records an event; where there is none to be had, the stream is waited for instead and
 * `*out_event` is NULL, as on a device without streams. */
quay_status quay__event_record_or_wait(quay_stream *stream, quay_event **out_event);

/* Whether nothing will ever complete the event any more: its device is lost, or was reset. */
bool quay__event_dead(const quay_event *event);

/* Whether the stream's device can make its work wait for the event. */
bool quay__stream_can_wait(const quay_stream *stream, const quay_event *event);

#endif
