/* The device object. */
#ifndef QUAY_CORE_DEVICE_IMPL_H
#define QUAY_CORE_DEVICE_IMPL_H

#include <quay/backend.h>
#include <stdatomic.h>

#include "core/error.h"
#include "core/lock.h"

/* Streams that staged copies keep for the next ones. */
#define QUAY__STAGING_STREAMS 4u

struct quay_device {
  atomic_uint references;
  quay_device_type_id type;
  int32_t index;
  bool has_streams;
  /* A stream that Quay made can't be in a state of its own (stream_check) unless the program has
   * had its handle: so only then is it asked. */
  bool checks_shown_streams;
  atomic_bool lost;
  /* Its host memory may not be touched any more, in the child of a fork say: no address is used
   * that was looked up before, and the backend is asked, which says why. */
  atomic_bool untouchable;
  atomic_uint pin_refused;         /* staging_memory.c's: when pin failed last; 0: never */
  atomic_uint streams;             /* live ones */
  atomic_uint_fast64_t generation; /* begins at 1 */
  quay_device_vtable vtable;       /* optionals filled in */
  void *self;
  char *name;
  char *backend;
  quay__lock lock;                                 /* guards what follows */
  uint64_t staging_streams[QUAY__STAGING_STREAMS]; /* idle ones of staged copies */
  uint32_t staging_stream_count;
  quay__error_state *first_error; /* of the current generation; NULL while healthy */
};

/* QUAY_OK, or the device's first error as DEVICE_LOST. One atomic load while healthy. */
quay_status quay__device_fail_lost(quay_device *device);
static inline quay_status quay__device_check(quay_device *device) {
  return __builtin_expect(atomic_load_explicit(&device->lost, memory_order_acquire), false)
             ? quay__device_fail_lost(device)
             : QUAY_OK;
}

static inline uint64_t quay__device_generation(const quay_device *device) {
  return atomic_load_explicit(&device->generation, memory_order_acquire);
}

#endif
