/* Storages: made, allocated at most once, checked, released, and retired while device work on them
 * is under way. Handles are in buffer.c, what a storage remembers of device work in hazard.c. */
#include "core/storage.h"

#include <string.h>

#include "core/arguments.h"
#include "core/hazard.h"
#include "core/lifecycle.h"
#include "core/lock.h"
#include "core/os.h"
#include "core/staging_memory.h"
#include "core/stream_impl.h"
#include "core/thread.h"

/* Bits of quay__storage.options. */
enum {
  OPTION_ZEROED = 1,
  OPTION_MIRROR = 2,
  OPTION_EXPORTABLE = 4
};

/* A thread that waits for another one's attempt to allocate, on its own stack: it gets that
 * attempt's result, error included. */
typedef struct quay__allocation_waiter {
  struct quay__allocation_waiter *next;
  bool done;
  quay_status status;
  quay__error_state error;
} allocation_waiter;

/* Released storages with work under way; guarded by the stripe of `retired`'s address. */
static quay__storage *retired;
atomic_uint quay__retired_count;

static quay_status new_storage(uint64_t size, quay__storage **out_storage) {
  quay__storage *storage = quay__os_calloc(1, sizeof(*storage));
  if (storage == NULL)
    return quay__fail_out_of_memory(sizeof(*storage), "a buffer's storage");
  atomic_init(&storage->references, 1);
  atomic_init(&storage->state, QUAY__STORAGE_EMPTY);
  storage->size = size;
  storage->id = quay__next_id();
  *out_storage = storage;
  return QUAY_OK;
}

quay_status quay__storage_create(quay_allocator *allocator, uint64_t size,
                                 const quay_alloc_options *options, quay__storage **out_storage) {
  quay_allocator *resolved = NULL;
  QUAY_TRY(quay__allocator_resolve(allocator, &resolved));
  quay_alloc_request request;
  quay__storage *storage = NULL;
  quay_status status = quay__alloc_request_make(resolved, size, options, &request);
  if (status == QUAY_OK)
    status = new_storage(size, &storage);
  if (status != QUAY_OK) {
    quay_allocator_release(resolved);
    return status;
  }
  storage->allocator = resolved;
  storage->alignment_log2 = (uint8_t)__builtin_ctzll(request.alignment);
  storage->options =
      (uint8_t)((request.zeroed ? OPTION_ZEROED : 0) | (request.mirror ? OPTION_MIRROR : 0) |
                (request.exportable ? OPTION_EXPORTABLE : 0));
  quay__live_add(QUAY__LIVE_STORAGES, 1);
  *out_storage = storage;
  return QUAY_OK;
}

/* Looks up the address of plain host memory, so that small copies ask nobody. */
static quay_status find_plain(quay_allocator *allocator, const quay_raw_buffer *raw,
                              void **out_plain) {
  *out_plain = NULL;
  if (!quay__plain_host_memory(allocator))
    return QUAY_OK;
  return allocator->vtable.host_pointer(allocator, raw, out_plain);
}

quay_status quay__storage_create_from_raw(quay_raw_buffer *raw, quay__storage **out_storage) {
  if (atomic_load_explicit(&raw->owner->lingering, memory_order_acquire)) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT,
                      "quay_buffer_from_raw: the allocator %s was released while this raw buffer "
                      "was live, and can't be retained again; keep it until the buffer is made",
                      raw->owner->spec);
  }
  void *plain = NULL;
  QUAY_TRY(find_plain(raw->owner, raw, &plain));
  quay__storage *storage = NULL;
  QUAY_TRY(new_storage(raw->size, &storage));
  storage->allocator = quay_allocator_retain(raw->owner);
  storage->generation = quay__device_generation(storage->allocator->device);
  storage->plain = plain;
  atomic_init(&storage->sealed, (raw->flags & QUAY_RAW_READ_ONLY) != 0);
  storage->raw = quay_raw_buffer_move(raw);
  atomic_store_explicit(&storage->state, QUAY__STORAGE_READY, memory_order_release);
  quay__live_add(QUAY__LIVE_STORAGES, 1);
  *out_storage = storage;
  return QUAY_OK;
}

void quay__storage_take_raw(quay__storage *storage, quay_raw_buffer *out_raw) {
  *out_raw = quay_raw_buffer_move(&storage->raw);
  storage->plain = NULL;
  atomic_store_explicit(&storage->state, QUAY__STORAGE_EMPTY, memory_order_release);
}

static bool out_of_memory(quay_status status) {
  return status == QUAY_STATUS_OUT_OF_HOST_MEMORY || status == QUAY_STATUS_OUT_OF_DEVICE_MEMORY ||
         status == QUAY_STATUS_LIMIT_EXCEEDED;
}

quay_status quay__alloc_or_collect(quay_allocator *allocator, const quay_alloc_request *request,
                                   quay_raw_buffer *out_raw) {
  quay__error_state before;
  quay__error_save(&before);
  quay_status status = quay__alloc(allocator, request, out_raw);
  if (!out_of_memory(status) || quay__storage_collect() == 0)
    return status;
  status = quay__alloc(allocator, request, out_raw);
  if (status == QUAY_OK)
    quay__error_restore(&before);
  return status;
}

static quay_status allocate_raw(const quay__storage *storage, quay_stream *stream,
                                quay_raw_buffer *out_raw) {
  const quay_alloc_request request = {
      .size = storage->size,
      .alignment = UINT64_C(1) << storage->alignment_log2,
      .zeroed = (storage->options & OPTION_ZEROED) != 0,
      .mirror = (storage->options & OPTION_MIRROR) != 0,
      .exportable = (storage->options & OPTION_EXPORTABLE) != 0,
      .stream = stream,
  };
  QUAY_TRY(quay__device_check(storage->allocator->device));
  return quay__alloc_reaping(storage->allocator, &request, out_raw);
}

/* Allocates into local variables; the storage changes only in publish(). */
static quay_status allocate(const quay__storage *storage, quay_stream *stream,
                            quay_raw_buffer *out_raw, void **out_plain, uint64_t *out_generation) {
  *out_generation = quay__device_generation(storage->allocator->device);
  QUAY_TRY(allocate_raw(storage, stream, out_raw));
  const quay_status status = find_plain(storage->allocator, out_raw, out_plain);
  if (status != QUAY_OK)
    quay__free(storage->allocator, out_raw, NULL, 0);
  return status;
}

static void publish(quay__storage *storage, quay_raw_buffer *raw, void *plain,
                    uint64_t generation) {
  storage->plain = plain;
  storage->generation = generation;
  if ((raw->flags & QUAY_RAW_READ_ONLY) != 0) {
    atomic_store_explicit(&storage->sealed, true, memory_order_relaxed);
  }
  storage->raw = quay_raw_buffer_move(raw);
  atomic_store_explicit(&storage->state, QUAY__STORAGE_READY, memory_order_release);
}

static quay_status allocate_and_publish(quay__storage *storage, quay_stream *stream) {
  quay_raw_buffer raw = {0};
  void *plain = NULL;
  uint64_t generation = 0;
  QUAY_TRY(allocate(storage, stream, &raw, &plain, &generation));
  publish(storage, &raw, plain, generation);
  return QUAY_OK;
}

quay_status quay__storage_allocate_new(quay__storage *storage, quay_stream *stream) {
  if (stream == NULL)
    return allocate_and_publish(storage, NULL);
  /* Memory that is there from some point of the stream on is as good as written by the stream. */
  const quay__range whole = {.offset = 0, .size = storage->size, .mode = QUAY_WRITE};
  const uint64_t id = quay__next_id();
  QUAY_TRY(quay__hazards_open(storage, &whole, 1, stream, id, true));
  quay_event *event = NULL;
  quay_status status = allocate_and_publish(storage, stream);
  if (status == QUAY_OK)
    status = quay__event_record_or_wait(stream, &event);
  quay__error_shield();
  quay__hazards_close(storage, id, event);
  quay_event_release(event);
  quay__error_unshield();
  return status;
}

/* Waits, with the stripe held, for the attempt that is under way and gives its result. */
static quay_status wait_for_attempt(quay__storage *storage) {
  allocation_waiter self = {.next = storage->waiters};
  storage->waiters = &self;
  while (!self.done)
    quay__stripe_wait(storage);
  quay__stripe_release(storage);
  if (self.status != QUAY_OK)
    quay__error_restore(&self.error);
  return self.status;
}

/* Hands the result of the attempt to all who wait for it, with the stripe held. */
static void tell_waiters(quay__storage *storage, allocation_waiter *waiters, quay_status status) {
  while (waiters != NULL) {
    allocation_waiter *waiter = waiters;
    waiters = waiter->next;
    if (status != QUAY_OK)
      quay__error_save(&waiter->error);
    waiter->status = status;
    waiter->done = true;
  }
  quay__stripe_wake(storage);
}

quay_status quay__storage_ensure(quay__storage *storage) {
  if (quay__storage_ready(storage))
    return QUAY_OK;
  quay__stripe_acquire(storage);
  const unsigned char state = atomic_load_explicit(&storage->state, memory_order_relaxed);
  if (state == QUAY__STORAGE_READY) {
    quay__stripe_release(storage);
    return QUAY_OK;
  }
  /* An attempt from before a fork is a thread's that this process does not have. */
  if (state == QUAY__STORAGE_ALLOCATING && storage->attempt == quay__fork_generation)
    return wait_for_attempt(storage);
  storage->waiters = NULL;
  storage->attempt = quay__fork_generation;
  atomic_store_explicit(&storage->state, QUAY__STORAGE_ALLOCATING, memory_order_relaxed);
  quay__stripe_release(storage);

  quay_raw_buffer raw = {0};
  void *plain = NULL;
  uint64_t generation = 0;
  const quay_status status = allocate(storage, NULL, &raw, &plain, &generation);

  quay__stripe_acquire(storage);
  allocation_waiter *waiters = storage->waiters;
  if (status == QUAY_OK) {
    publish(storage, &raw, plain, generation);
  } else {
    storage->waiters = NULL;
    atomic_store_explicit(&storage->state, QUAY__STORAGE_EMPTY, memory_order_relaxed);
  }
  if (waiters != NULL)
    tell_waiters(storage, waiters, status);
  quay__stripe_release(storage);
  return status;
}

quay_status quay__storage_check_readable(quay__storage *storage) {
  if (!quay__storage_ready(storage)) {
    return quay__fail(
        QUAY_STATUS_NOT_ALLOCATED,
        "reading a lazy buffer of %llu bytes that nothing was written to; write to it "
        "or call quay_buffer_ensure_allocated() first",
        (unsigned long long)storage->size);
  }
  quay_device *device = storage->allocator->device;
  QUAY_TRY(quay__device_check(device));
  const uint64_t now = quay__device_generation(device);
  if (now != storage->generation) {
    return quay__fail(QUAY_STATUS_STALE,
                      "the memory is of generation %llu of the device %s, which is at %llu now: it "
                      "was reset or lost since; create the buffer anew",
                      (unsigned long long)storage->generation, device->name,
                      (unsigned long long)now);
  }
  return QUAY_OK;
}

quay_status quay__storage_fail_read_only(const quay__storage *storage) {
  return quay__fail(QUAY_STATUS_READ_ONLY,
                    (storage->raw.flags & QUAY_RAW_READ_ONLY) != 0
                        ? "writing to a read-only mapping of %llu bytes; map the file as "
                          "copy-on-write or shared to write to it"
                        : "writing to a sealed storage of %llu bytes; sealing is for good, copy it "
                          "to a buffer of its own to write",
                    (unsigned long long)storage->size);
}

quay_status quay__storage_make_writable(quay__storage *storage) {
  if (quay__storage_sealed(storage))
    return quay__storage_fail_read_only(storage);
  QUAY_TRY(quay__storage_ensure(storage));
  QUAY_TRY(quay__storage_check_readable(storage));
  /* Once more: the backend may have allocated read-only memory. */
  if (quay__storage_sealed(storage))
    return quay__storage_fail_read_only(storage);
  return QUAY_OK;
}

quay__storage *quay__storage_retain(quay__storage *storage) {
  atomic_fetch_add_explicit(&storage->references, 1, memory_order_relaxed);
  return storage;
}

static void storage_destroy(quay__storage *storage, quay_event *const *pending, size_t count) {
  if (quay__storage_ready(storage)) {
    quay__error_state error;
    quay__error_save(&error);
    if ((storage->raw.flags & QUAY_RAW_ADOPTED) != 0) {
      quay_raw_buffer_free(&storage->raw);
    } else {
      quay__free(storage->allocator, &storage->raw, pending, count);
    }
    quay__error_restore(&error);
  }
  quay__hazards_destroy(storage);
  quay_allocator_release(storage->allocator);
  quay__os_free(storage);
  quay__live_add(QUAY__LIVE_STORAGES, -1);
}

static void retire(quay__storage *storage) {
  atomic_fetch_add_explicit(&storage->allocator->statistics.pending_bytes, storage->size,
                            memory_order_relaxed);
  quay__stripe_acquire(&retired);
  storage->next_retired = retired;
  retired = storage;
  atomic_fetch_add_explicit(&quay__retired_count, 1, memory_order_relaxed);
  quay__stripe_release(&retired);
}

/* The way of a storage that device work was recorded for. */
static void release_with_hazards(quay__storage *storage) {
  quay__error_state error;
  quay__error_save(&error);
  quay_event *pending[QUAY__HAZARD_RECORDS_MAX];
  const size_t count = quay__hazards_pending(storage, pending);
  const bool ordered = (storage->allocator->flags & QUAY_ALLOCATOR_ORDERED_FREE) != 0 &&
                       (storage->raw.flags & QUAY_RAW_ADOPTED) == 0 &&
                       count < QUAY__HAZARD_RECORDS_MAX;
  if (count == 0 || ordered) {
    storage_destroy(storage, pending, count);
  } else {
    retire(storage);
  }
  quay__error_restore(&error);
}

void quay__storage_release(quay__storage *storage) {
  if (atomic_fetch_sub_explicit(&storage->references, 1, memory_order_acq_rel) != 1)
    return;
  if (atomic_load_explicit(&storage->hazards, memory_order_relaxed) != NULL) {
    release_with_hazards(storage);
  } else {
    storage_destroy(storage, NULL, 0);
  }
}

static quay__storage *pop_retired(void) {
  quay__stripe_acquire(&retired);
  quay__storage *storage = retired;
  if (storage != NULL)
    retired = storage->next_retired;
  quay__stripe_release(&retired);
  return storage;
}

static void put_back(quay__storage *list) {
  while (list != NULL) {
    quay__storage *storage = list;
    list = storage->next_retired;
    quay__stripe_acquire(&retired);
    storage->next_retired = retired;
    retired = storage;
    quay__stripe_release(&retired);
  }
}

static void end_retired(quay__storage *storage) {
  atomic_fetch_sub_explicit(&quay__retired_count, 1, memory_order_relaxed);
  atomic_fetch_sub_explicit(&storage->allocator->statistics.pending_bytes, storage->size,
                            memory_order_relaxed);
  storage_destroy(storage, NULL, 0);
}

/* One at a time, so that threads that collect at once share the list. */
uint64_t quay__storage_collect(void) {
  if (atomic_load_explicit(&quay__retired_count, memory_order_relaxed) == 0)
    return 0;
  quay__error_state error;
  quay__error_save(&error);
  uint64_t bytes = 0;
  quay__storage *kept = NULL;
  for (quay__storage *storage = pop_retired(); storage != NULL; storage = pop_retired()) {
    quay_event *pending[QUAY__HAZARD_RECORDS_MAX];
    if (quay__hazards_pending(storage, pending) != 0) {
      storage->next_retired = kept;
      kept = storage;
    } else {
      bytes += storage->size;
      end_retired(storage);
    }
  }
  put_back(kept);
  quay__error_restore(&error);
  return bytes;
}

uint64_t quay__reap(void) {
  return quay__storage_collect() + quay__cuda_collect();
}

quay_status quay_collect(uint64_t *out_bytes) {
  const uint64_t bytes = quay__reap() + quay__staging_memory_trim();
  if (out_bytes != NULL)
    *out_bytes = bytes;
  return QUAY_OK;
}
