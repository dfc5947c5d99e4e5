/* The limit layer: allocations together never take more bytes than were set.
 *
 * `taken` is what is live and what is under way in the inner allocator, `live` the former alone. A
 * request takes its bytes before it goes inside, so that the limit is never exceeded. It is refused
 * only if what is live leaves it no room: where requests under way are in its way, which may still
 * fail, it waits for their end. */
#include <inttypes.h>
#include <stdio.h>

#include "core/allocator_impl.h"
#include "core/error.h"
#include "core/lifecycle.h"
#include "core/lock.h"
#include "core/os.h"
#include "core/registry.h"
#include "layers/reservations.h"

typedef struct limit_layer {
  uint64_t limit; /* bytes */
  /* Without an explicit order, which is sequential consistency: a waiter and those whom it waits
   * for each write one of these and then read another. */
  atomic_uint_fast64_t taken, live, peak;
  atomic_uint waiters;
  uint32_t fork_generation; /* of the process that opened it */
  quay__reservations reservations;
} limit_layer;

/* Room. */

static bool fits(const limit_layer *layer, uint64_t used, uint64_t size) {
  return size <= layer->limit && used <= layer->limit - size;
}

static bool try_take(limit_layer *layer, uint64_t size) {
  uint_fast64_t taken = atomic_load(&layer->taken);
  while (fits(layer, taken, size)) {
    if (atomic_compare_exchange_weak(&layer->taken, &taken, taken + size))
      return true;
  }
  return false;
}

/* Tells those who wait that a request has ended or memory was freed. */
static void wake(limit_layer *layer) {
  if (atomic_load(&layer->waiters) == 0)
    return;
  quay__stripe_acquire(layer);
  quay__stripe_wake(layer);
  quay__stripe_release(layer);
}

static quay_status refuse(const limit_layer *layer, uint64_t size, uint64_t live) {
  return quay_error_set(QUAY_STATUS_LIMIT_EXCEEDED, "limit", 0, NULL,
                        "limit layer: can't allocate %" PRIu64 " bytes: %" PRIu64
                        " bytes are live, and the limit is %" PRIu64
                        " bytes; free some, or open it with a higher limit",
                        size, live, layer->limit);
}

/* Once more, with requests under way perhaps in the way. A forked child does not wait: the threads
 * that had them under way are not there. */
static quay_status take_slowly(limit_layer *layer, uint64_t size) {
  quay_status status = QUAY_OK;
  quay__stripe_acquire(layer);
  atomic_fetch_add(&layer->waiters, 1);
  while (!try_take(layer, size)) {
    const uint64_t live = atomic_load(&layer->live);
    if (!fits(layer, live, size) || layer->fork_generation != quay__fork_generation) {
      status = refuse(layer, size, live);
      break;
    }
    quay__stripe_wait(layer);
  }
  atomic_fetch_sub(&layer->waiters, 1);
  quay__stripe_release(layer);
  return status;
}

static quay_status take(limit_layer *layer, uint64_t size) {
  return try_take(layer, size) ? QUAY_OK : take_slowly(layer, size);
}

/* Ends a request that has taken its bytes. */
static void settle(limit_layer *layer, uint64_t size, quay_status status) {
  if (status == QUAY_OK) {
    const uint64_t live = atomic_fetch_add(&layer->live, size) + size;
    uint_fast64_t peak = atomic_load_explicit(&layer->peak, memory_order_relaxed);
    while (live > peak && !atomic_compare_exchange_weak(&layer->peak, &peak, live)) {
    }
  } else {
    atomic_fetch_sub(&layer->taken, size);
  }
  wake(layer);
}

/* Gives back what was live. */
static void give(limit_layer *layer, uint64_t size) {
  atomic_fetch_sub(&layer->live, size);
  atomic_fetch_sub(&layer->taken, size);
  wake(layer);
}

/* The table. */

static void limit_destroy(void *self) {
  limit_layer *const layer = self;
  quay__reservations_destroy(&layer->reservations);
  quay__os_free(layer);
}

static quay_status limit_alloc(quay_allocator *allocator, const quay_alloc_request *request,
                               quay_raw_buffer *out_raw) {
  limit_layer *const layer = allocator->self;
  QUAY_TRY(take(layer, request->size));
  const quay_status status = quay__alloc(allocator->inner, request, out_raw);
  settle(layer, request->size, status);
  return status;
}

/* The bytes that are counted for `raw`. */
static uint64_t counted_bytes(quay_allocator *allocator, const quay_raw_buffer *raw) {
  limit_layer *const layer = allocator->self;
  uint64_t committed;
  return quay__reservations_forget(&layer->reservations, allocator->inner, raw, &committed)
             ? committed
             : raw->size;
}

static void limit_free(quay_allocator *allocator, quay_raw_buffer *raw, quay_event *const *pending,
                       size_t count) {
  const uint64_t size = counted_bytes(allocator, raw);
  quay__free(allocator->inner, raw, pending, count);
  if ((raw->flags & QUAY__RAW_REFUSED) == 0)
    give(allocator->self, size);
}

static quay_status limit_release(quay_allocator *allocator, quay_raw_buffer *raw,
                                 quay_host_memory *out_memory) {
  const quay_raw_buffer before = *raw;
  QUAY_TRY(quay__release(allocator->inner, raw, out_memory));
  give(allocator->self, counted_bytes(allocator, &before));
  return QUAY_OK;
}

static quay_status limit_reserve(quay_allocator *allocator, uint64_t size, uint64_t alignment,
                                 quay_raw_buffer *out_raw) {
  limit_layer *const layer = allocator->self;
  return quay__reservations_reserve(&layer->reservations, allocator->inner, size, alignment,
                                    out_raw);
}

static quay_status limit_commit(quay_allocator *allocator, quay_raw_buffer *raw, uint64_t offset,
                                uint64_t size) {
  limit_layer *const layer = allocator->self;
  quay_allocator *const inner = allocator->inner;
  QUAY_TRY(take(layer, size));
  const quay_status status = inner->vtable.commit(inner, raw, offset, size);
  if (status == QUAY_OK)
    quay__reservations_count(&layer->reservations, inner, raw, size);
  settle(layer, size, status);
  return status;
}

static quay_status limit_decommit(quay_allocator *allocator, quay_raw_buffer *raw, uint64_t offset,
                                  uint64_t size) {
  limit_layer *const layer = allocator->self;
  quay_allocator *const inner = allocator->inner;
  QUAY_TRY(inner->vtable.decommit(inner, raw, offset, size));
  quay__reservations_count(&layer->reservations, inner, raw, -size);
  give(layer, size);
  return QUAY_OK;
}

static void limit_stats(quay_allocator *allocator, quay_backend_stats *out_stats) {
  limit_layer *const layer = allocator->self;
  quay_allocator *const inner = allocator->inner;
  inner->vtable.stats(inner, out_stats);
  out_stats->peak_bytes = atomic_load(&layer->peak);
}

/* Opening. */

/* "limit:8GiB": in the largest unit that it is a whole number of. */
static void write_spec(uint64_t limit, char *out_spec, size_t size) {
  static const char *const units[] = {"", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (unit + 1 < sizeof units / sizeof units[0] && limit != 0 && limit % 1024 == 0) {
    limit /= 1024;
    unit++;
  }
  snprintf(out_spec, size, "limit:%" PRIu64 "%s", limit, units[unit]);
}

static quay_status parse(const quay_spec_args *args, uint64_t *out_limit) {
  static const quay_spec_key keys[] = {{NULL, "a size in bytes, such as 8GiB"}};
  QUAY_TRY(quay_spec_check(args, keys, 1));
  if (quay_spec_value(args, NULL) == NULL) {
    return quay_error_set(QUAY_STATUS_INVALID_ARGUMENT, "limit", 0, NULL,
                          "the limit layer in \"%s\" has no limit; it takes a size in bytes: "
                          "limit:8GiB",
                          args->spec);
  }
  return quay_spec_bytes(args, NULL, out_limit);
}

static quay_status limit_open(const quay_spec_args *args, quay_allocator *inner,
                              quay_allocator **out_allocator) {
  uint64_t limit = 0;
  QUAY_TRY(parse(args, &limit));
  char spec[64];
  write_spec(limit, spec, sizeof spec);
  limit_layer *const layer = quay__os_calloc(1, sizeof *layer);
  if (layer == NULL)
    return quay__fail_out_of_memory(sizeof *layer, "the limit layer");
  layer->limit = limit;
  layer->fork_generation = quay__fork_generation;
  quay__reservations_init(&layer->reservations);
  quay_allocator_vtable vtable = {
      .destroy = limit_destroy,
      .version = QUAY_ALLOCATOR_VTABLE_VERSION,
      .struct_size = sizeof(quay_allocator_vtable),
      .alloc = limit_alloc,
      .free = limit_free,
      .release = limit_release,
      .stats = limit_stats,
  };
  if (inner->has_reserve) {
    vtable.reserve = limit_reserve;
    vtable.commit = limit_commit;
    vtable.decommit = limit_decommit;
  }
  const quay_status status =
      quay__layer_create(&vtable, layer, "limit", spec, inner, out_allocator);
  if (status != QUAY_OK)
    limit_destroy(layer);
  return status;
}

const quay__layer quay__layer_limit = {.name = "limit", .open = limit_open};
