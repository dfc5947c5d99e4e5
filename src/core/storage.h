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

struct quay__hazards;           /* hazard.h */
struct quay__allocation_waiter; /* storage.c */

typedef struct quay__storage {
  atomic_uint references; /* handles and open accesses */
  atomic_uchar state;     /* quay__storage_state; READY is stored with release */
  atomic_bool sealed;
  uint8_t alignment_log2; /* of a lazy storage: what it will be allocated with */
  uint8_t options;        /* of a lazy storage: bits private to storage.c */
  uint64_t size;          /* bytes */
  uint64_t id;
  union {
    uint64_t generation; /* READY: of the device when `raw` was allocated */
    uint32_t attempt;    /* ALLOCATING: the quay__fork_generation that it began in */
  };
  quay_allocator *allocator; /* retained: the outermost */
  union {
    void *plain; /* READY: host address if the allocator's memory is plain host memory, else NULL */
    struct quay__allocation_waiter *waiters; /* ALLOCATING: guarded by the stripe */
    struct quay__storage *next_retired;      /* released, with device work on it under way */
  };
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

/* What the C library adds to a block is at most 8 bytes, in steps of 16. */
_Static_assert(sizeof(quay_buffer) + 4 * sizeof(int64_t) + 8 <= 96, "a small handle: 96 bytes");
_Static_assert(sizeof(quay__storage) + 8 <= 256 - 96, "handle and storage: 256 bytes");

/* Makes a storage with one reference. `allocator` (NULL: the default) is retained; `options` are
 * checked for it. Nothing is allocated yet. */
quay_status quay__storage_create(quay_allocator *allocator, uint64_t size,
                                 const quay_alloc_options *options, quay__storage **out_storage);

/* Allocates a storage that nobody else has seen yet, in the order of `stream` if it is not NULL. */
quay_status quay__storage_allocate_new(quay__storage *storage, quay_stream *stream);

/* Makes a storage with one reference for a raw buffer, which is moved into it on success. */
quay_status quay__storage_create_from_raw(quay_raw_buffer *raw, quay__storage **out_storage);

/* Moves the raw buffer out of a storage with one reference and no recorded work, which holds
 * nothing from then on. */
void quay__storage_take_raw(quay__storage *storage, quay_raw_buffer *out_raw);

/* Allocates if need be; see quay_buffer_ensure_allocated(). */
quay_status quay__storage_ensure(quay__storage *storage);

/* QUAY_OK if the storage is allocated, its generation is the device's and the device is healthy;
 * else NOT_ALLOCATED, STALE or DEVICE_LOST. */
quay_status quay__storage_check_readable(quay__storage *storage);

/* Allocates if need be, and refuses sealed storages and read-only memory. */
quay_status quay__storage_make_writable(quay__storage *storage);

/* READ_ONLY, with the message that all writes share. */
quay_status quay__storage_fail_read_only(const quay__storage *storage);

quay__storage *quay__storage_retain(quay__storage *storage);
void quay__storage_release(quay__storage *storage);

/* For a look without the lock. */
extern atomic_uint quay__retired_count;

quay_status quay__alloc_or_collect(quay_allocator *allocator, const quay_alloc_request *request,
                                   quay_raw_buffer *out_raw);

static inline bool quay__retired_any(void) {
  return __builtin_expect(atomic_load_explicit(&quay__retired_count, memory_order_relaxed) != 0,
                          false);
}

/* quay__alloc(), and once more if it finds no memory and retired storages can be freed. */
static inline quay_status quay__alloc_reaping(quay_allocator *allocator,
                                              const quay_alloc_request *request,
                                              quay_raw_buffer *out_raw) {
  return quay__retired_any() ? quay__alloc_or_collect(allocator, request, out_raw)
                             : quay__alloc(allocator, request, out_raw);
}

/* Frees retired storages whose work is done, and returns their bytes. Keeps the thread's error. */
uint64_t quay__storage_collect(void);

/* The same, and what backends keep until the work on it is done. What copies keep stays. */
uint64_t quay__reap(void);

static inline bool quay__storage_ready(const quay__storage *storage) {
  return atomic_load_explicit(&storage->state, memory_order_acquire) == QUAY__STORAGE_READY;
}

static inline bool quay__storage_sealed(const quay__storage *storage) {
  return atomic_load_explicit(&storage->sealed, memory_order_acquire);
}

/* The host's address of `offset` bytes into a storage that can be read without asking anybody:
 * plain host memory, allocated, of a healthy device, with no device work ever recorded. NULL: take
 * the long way round, which also finds the error. */
static inline unsigned char *quay__storage_plain(const quay__storage *storage, uint64_t offset) {
  if (!quay__storage_ready(storage) || storage->plain == NULL)
    return NULL;
  if (atomic_load_explicit(&storage->hazards, memory_order_acquire) != NULL)
    return NULL;
  const quay_device *device = storage->allocator->device;
  if (atomic_load_explicit(&device->lost, memory_order_relaxed) ||
      atomic_load_explicit(&device->untouchable, memory_order_relaxed))
    return NULL;
  if (quay__device_generation(device) != storage->generation)
    return NULL;
  return (unsigned char *)storage->plain + offset;
}

#endif
