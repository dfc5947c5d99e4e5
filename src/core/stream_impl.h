/* The stream and event objects. */
#ifndef QUAY_CORE_STREAM_IMPL_H
#define QUAY_CORE_STREAM_IMPL_H

#include <quay/stream.h>
#include <stdatomic.h>

#include "core/device_impl.h"

struct quay_stream {
  atomic_uint references;
  bool wrapped;        /* the program's: never owned */
  quay_device *device; /* retained */
  uint64_t id;
  uint64_t native; /* what the device's functions take; 0 on a device without streams */
};

struct quay_event {
  atomic_uint references;
  quay_device *device; /* retained: an event outlives its stream */
  uint64_t native;     /* 0 on a device without streams, where it is complete from the start */
};

/* Whether the stream's device can make its work wait for the event. */
bool quay__stream_can_wait(const quay_stream *stream, const quay_event *event);

#endif
