/* Storages: one raw buffer, allocated at most once, shared by a base buffer and its views; and the
 * buffer handle itself. */
#ifndef QUAY_CORE_STORAGE_H
#define QUAY_CORE_STORAGE_H

#include <quay/buffer.h>
#include <stdatomic.h>

#include "core/allocator_impl.h"

typedef enum quay__storage_state {
  QUAY__STORAGE_EMPTY,      /* lazy, or the last attempt failed */
  QUAY__STORAGE_ALLOCATING, /* one thread is at it, others wait on the stripe */
  QUAY__STORAGE_READY,      /* `raw` is there and never changes again */
} quay__storage_state;

struct quay__hazards; /* hazard.h */

typedef struct quay__storage {
  atomic_uint references; /* handles and open accesses */
  atomic_uchar state;     /* quay__storage_state; READY is stored with release */
  atomic_bool sealed;
  uint8_t alignment_log2; /* of a lazy storage: what it will be allocated with */
  uint8_t options;        /* of a lazy storage: bits private to storage.c */
  uint64_t size;          /* bytes */
  uint64_t id;
  uint64_t generation;       /* of the device when `raw` was allocated */
  quay_allocator *allocator; /* retained: the outermost */
  void *plain;               /* host address if the allocator's memory is plain host memory */
  _Atomic(struct quay__hazards *) hazards; /* NULL until there is something to remember */
  quay_raw_buffer raw;
} quay__storage;

struct quay_buffer {
  atomic_uint references;
  uint8_t dtype; /* quay_dtype */
  uint8_t rank;
  uint16_t reserved;
  quay__storage *storage; /* holds one reference */
  uint64_t id;
  uint64_t offset; /* bytes, from the start of the storage */
  uint64_t size;   /* bytes */
  int64_t shape[]; /* `rank` extents */
};

/* Allocates if need be; see quay_buffer_ensure_allocated(). */
quay_status quay__storage_ensure(quay__storage *storage);

/* QUAY_OK if the storage is allocated, its generation is the device's and the device is healthy;
 * else NOT_ALLOCATED, STALE or DEVICE_LOST. */
quay_status quay__storage_check_readable(quay__storage *storage);

/* Allocates if need be, and refuses sealed storages and read-only memory. */
quay_status quay__storage_make_writable(quay__storage *storage);

quay__storage *quay__storage_retain(quay__storage *storage);
void quay__storage_release(quay__storage *storage);

#endif
