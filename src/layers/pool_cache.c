/* The pool from the caller's side: what each thread keeps of the extents that it freed last, by
 * size, and the ways past that. */
#include <string.h>

#include "core/checked.h"
#include "core/error.h"
#include "core/os.h"
#include "core/thread.h"
#include "layers/pool_impl.h"

enum {
  BATCH = 16, /* extents that are taken at once for what is small */
  BATCH_BYTES = 16 << 10,
};

/* Sizes. */

static uint32_t log2_of(uint64_t value) {
  return 63 - (uint32_t)__builtin_clzll(value);
}

/* Eight classes to each doubling of the number of granules. */
static uint64_t round_to_class(uint64_t granules) {
  if (granules <= 16)
    return granules;
  const uint32_t shift = log2_of(granules) - 3;
  return ((granules + (UINT64_C(1) << shift) - 1) >> shift) << shift;
}

/* Below QUAY__POOL_CLASSES for tiny sizes that are rounded, whose granules are at most 64. */
static uint32_t class_of(uint64_t granules) {
  if (granules < 16)
    return (uint32_t)granules - 1;
  const uint32_t log2 = log2_of(granules);
  return 15 + (log2 - 4) * 8 + (uint32_t)(granules >> (log2 - 3) & 7);
}

static uint32_t bucket_of(uint64_t granules) {
  return (uint32_t)(granules * UINT64_C(0x9e3779b97f4a7c15) >> 58);
}

/* The core lets sizes up to 2^63 - 1 through. What would be rounded to more is left a little too
 * small: it is not to be had anyway, and the error is the inner allocator's. */
static quay__pool_want want_of(const quay__pool *pool, const quay_alloc_request *request) {
  quay__pool_want want = {.alignment = request->alignment};
  const uint32_t log2 = pool->granule_log2;
  const uint64_t size = quay__max(request->size, 1);
  uint64_t granules = (size + (UINT64_C(1) << log2) - 1) >> log2;
  if (size <= QUAY__POOL_TINY_BYTES) {
    granules = round_to_class(granules);
  } else {
    want.arena = size < QUAY__POOL_SMALL_BYTES ? QUAY__POOL_SMALL : QUAY__POOL_LARGE;
  }
  want.size = granules << log2;
  if (want.arena == QUAY__POOL_LARGE) {
    const uint64_t mask = (UINT64_C(1) << pool->arenas[QUAY__POOL_LARGE].granule_log2) - 1;
    want.size = quay__min((want.size + mask) & ~mask, INT64_MAX & ~mask);
  }
  want.stream = request->stream != NULL && pool->has_streams ? request->stream->id : 0;
  return want;
}

/* A thread's lists. */

static quay__pool_cache *cache_of_thread(quay__pool *pool) {
  const uint32_t shard = quay__thread_shard();
  return shard < QUAY__SHARD_COUNT - 1 ? &pool->caches[shard] : NULL;
}

/* Whether what one work may still use is good for another: of the same stream it is. */
static bool is_usable(quay__pool *pool, const quay__extent *extent, const quay__pool_want *want) {
  const quay_event *const event = extent->user;
  return (event == NULL || (want->stream != 0 && event->stream_id == want->stream)) &&
         (extent->offset & (want->alignment - 1)) == 0 &&
         quay__pool_is_current(pool, quay__pool_region_of(extent));
}

/* The list of a size. */
typedef struct list {
  quay__extent **items;
  uint8_t *count;
  uint32_t depth;
} list;

static list list_of(const quay__pool *pool, quay__pool_stock *stock, uint64_t size) {
  const uint64_t granules = size >> pool->granule_log2;
  if (size <= QUAY__POOL_TINY_BYTES) {
    const uint32_t number = class_of(granules);
    return (list){stock->classes[number], &stock->class_count[number], QUAY__POOL_CLASS_DEPTH};
  }
  const uint32_t number = bucket_of(granules);
  return (list){stock->buckets[number], &stock->bucket_count[number], QUAY__POOL_BUCKET_DEPTH};
}

static quay__extent *find_in(quay__pool *pool, list found, const quay__pool_want *want) {
  for (uint32_t i = *found.count; i-- > 0;) {
    quay__extent *const extent = found.items[i];
    if (extent->size == want->size && is_usable(pool, extent, want)) {
      found.items[i] = found.items[--*found.count];
      return extent;
    }
    if (found.depth == QUAY__POOL_CLASS_DEPTH && i + 4 < *found.count)
      break; /* all are of this size: what is the matter with one is with most */
  }
  return NULL;
}

static bool is_kept(const quay__pool *pool, uint64_t size) {
  return size <= pool->cache_bytes / 4;
}

static quay__extent *cache_take(quay__pool *pool, const quay__pool_want *want) {
  quay__pool_cache *const cache = is_kept(pool, want->size) ? cache_of_thread(pool) : NULL;
  if (cache == NULL)
    return NULL;
  quay__extent *extent = NULL;
  quay__spin_acquire(&cache->lock);
  if (cache->stock != NULL)
    extent = find_in(pool, list_of(pool, cache->stock, want->size), want);
  if (extent != NULL)
    cache->bytes -= extent->size;
  quay__spin_release(&cache->lock);
  return extent;
}

/* Moves the older ones of a list, at most `count`, out of it. */
static uint32_t take_out(quay__pool_cache *cache, list from, uint32_t count,
                         quay__extent **out_extents) {
  memcpy(out_extents, from.items, count * sizeof(quay__extent *));
  *from.count = (uint8_t)(*from.count - count);
  memmove(from.items, from.items + count, *from.count * sizeof(quay__extent *));
  for (uint32_t i = 0; i < count; i++)
    cache->bytes -= out_extents[i]->size;
  return count;
}

static list list_numbered(quay__pool_stock *stock, uint32_t number) {
  if (number < QUAY__POOL_CLASSES)
    return (list){stock->classes[number], &stock->class_count[number], QUAY__POOL_CLASS_DEPTH};
  number -= QUAY__POOL_CLASSES;
  return (list){stock->buckets[number], &stock->bucket_count[number], QUAY__POOL_BUCKET_DEPTH};
}

/* Makes room for one more extent; gives what has to go. */
static uint32_t make_room(quay__pool *pool, quay__pool_cache *cache, list into, uint64_t size,
                          quay__extent **out_extents) {
  if (*into.count == into.depth)
    return take_out(cache, into, into.depth / 2, out_extents);
  /* Too many bytes: the lists are emptied in turn, so that what is not used any more goes. */
  if (cache->bytes + size > pool->cache_bytes) {
    for (uint32_t i = 0; i < QUAY__POOL_CLASSES + QUAY__POOL_BUCKETS; i++) {
      cache->hand = (cache->hand + 1) % (QUAY__POOL_CLASSES + QUAY__POOL_BUCKETS);
      const list emptied = list_numbered(cache->stock, cache->hand);
      if (*emptied.count > 0)
        return take_out(cache, emptied, (*emptied.count + 1u) / 2, out_extents);
    }
  }
  return 0;
}

/* False: the thread keeps none, or not of this size. */
static bool cache_put(quay__pool *pool, quay__extent *extent) {
  quay__pool_cache *const cache = is_kept(pool, extent->size) ? cache_of_thread(pool) : NULL;
  if (cache == NULL)
    return false;
  quay__extent *gone[QUAY__POOL_CLASS_DEPTH];
  uint32_t gone_count = 0;
  bool kept = false;
  quay__spin_acquire(&cache->lock);
  if (cache->stock != NULL) {
    const list into = list_of(pool, cache->stock, extent->size);
    if (*into.count == into.depth || cache->bytes + extent->size > pool->cache_bytes)
      gone_count = make_room(pool, cache, into, extent->size, gone);
    kept = *into.count < into.depth;
    if (kept) {
      into.items[(*into.count)++] = extent;
      cache->bytes += extent->size;
    }
  }
  quay__spin_release(&cache->lock);
  if (gone_count > 0)
    quay__pool_heap_give(pool, gone, gone_count);
  return kept;
}

/* Failing is no error: the thread goes without. */
static void make_stock(quay__pool *pool) {
  quay__pool_cache *const cache = cache_of_thread(pool);
  if (cache == NULL)
    return;
  quay__spin_acquire(&cache->lock);
  const bool missing = cache->stock == NULL;
  quay__spin_release(&cache->lock);
  if (!missing)
    return;
  quay__pool_stock *stock = quay__os_calloc(1, sizeof *stock);
  quay__spin_acquire(&cache->lock);
  if (cache->stock == NULL) {
    cache->stock = stock;
    stock = NULL;
  }
  quay__spin_release(&cache->lock);
  quay__os_free(stock);
}

static void flush_one(quay__pool *pool, quay__pool_cache *cache, uint32_t number) {
  quay__extent *gone[QUAY__POOL_CLASS_DEPTH];
  uint32_t count = 0;
  quay__spin_acquire(&cache->lock);
  if (cache->stock != NULL) {
    const list from = list_numbered(cache->stock, number);
    count = take_out(cache, from, *from.count, gone);
  }
  quay__spin_release(&cache->lock);
  if (count > 0)
    quay__pool_heap_give(pool, gone, count);
}

void quay__pool_flush(quay__pool *pool) {
  for (uint32_t i = 0; i < QUAY__SHARD_COUNT - 1; i++) {
    quay__pool_cache *const cache = &pool->caches[i];
    quay__spin_acquire(&cache->lock);
    const bool filled = cache->bytes > 0;
    quay__spin_release(&cache->lock);
    for (uint32_t j = 0; filled && j < QUAY__POOL_CLASSES + QUAY__POOL_BUCKETS; j++)
      flush_one(pool, cache, j);
  }
}

void quay__pool_caches_destroy(quay__pool *pool) {
  for (uint32_t i = 0; i < QUAY__SHARD_COUNT - 1; i++)
    quay__os_free(pool->caches[i].stock);
}

/* Allocation. */

static uint32_t batch_of(const quay__pool *pool, const quay__pool_want *want) {
  if (want->arena != QUAY__POOL_TINY || want->stream != 0 || pool->mode == QUAY__POOL_WHOLE)
    return 1;
  return (uint32_t)quay__max(1, quay__min(BATCH, BATCH_BYTES / want->size));
}

static quay__extent *take_batch(quay__pool *pool, const quay__pool_want *want) {
  quay__extent *extents[BATCH];
  const uint32_t count = quay__pool_heap_take(pool, want, extents, batch_of(pool, want));
  if (count == 0)
    return NULL;
  for (uint32_t i = 1; i < count; i++) {
    if (!cache_put(pool, extents[i]))
      quay__pool_heap_give(pool, &extents[i], 1);
  }
  return extents[0];
}

/* Past the thread's lists. */
static quay_status take_slowly(quay__pool *pool, const quay__pool_want *want,
                               quay__extent **out_extent) {
  if (is_kept(pool, want->size))
    make_stock(pool);
  *out_extent = take_batch(pool, want);
  if (*out_extent == NULL && quay__pool_poll(pool, want))
    *out_extent = take_batch(pool, want);
  return *out_extent != NULL ? QUAY_OK : quay__pool_grow(pool, want, out_extent);
}

static void describe(quay__pool *pool, quay__extent *extent, uint64_t size,
                     quay_raw_buffer *out_raw) {
  quay__pool_region *const region = quay__pool_region_of(extent);
  quay_allocator *const inner = pool->inner;
  if (region->direct || pool->mode == QUAY__POOL_WHOLE) {
    *out_raw = region->raw;
    if (!region->direct)
      out_raw->flags &= ~(uint32_t)QUAY_RAW_ZEROED;
  } else {
    inner->vtable.window(inner, &region->raw, extent->offset, size, out_raw);
  }
  out_raw->cookie = (uint64_t)(uintptr_t)extent;
  if (pool->poisons)
    quay__pool_expose(region, extent, size, (out_raw->flags & (uint32_t)QUAY_RAW_ZEROED) != 0);
}

static bool is_direct(const quay__pool *pool, const quay_alloc_request *request) {
  return request->mirror || request->exportable || request->alignment > pool->alignment;
}

quay_status quay__pool_alloc(quay_allocator *allocator, const quay_alloc_request *request,
                             quay_raw_buffer *out_raw) {
  quay__pool *const pool = quay__pool_of(allocator);
  if (quay__device_generation(allocator->device) !=
      atomic_load_explicit(&pool->generation, memory_order_relaxed))
    quay__pool_renew(pool);
  quay__extent *extent = NULL;
  if (is_direct(pool, request)) {
    QUAY_TRY(quay__pool_direct(pool, request, &extent));
  } else {
    const quay__pool_want want = want_of(pool, request);
    extent = cache_take(pool, &want);
    if (extent == NULL)
      QUAY_TRY(take_slowly(pool, &want, &extent));
  }
  describe(pool, extent, request->size, out_raw);
  return QUAY_OK;
}

/* Free. */

/* The event of `pending` and `old` (may be NULL) that comes after all of them; NULL: none does. */
static quay_event *last_of(quay_event *old, quay_event *const *pending, size_t count) {
  quay_event *last = old != NULL ? old : pending[0];
  for (size_t i = 0; i < count; i++) {
    if (pending[i]->stream_id != last->stream_id)
      return NULL;
    if (quay__event_covers(pending[i], last)) {
      last = pending[i];
    } else if (!quay__event_covers(last, pending[i])) {
      return NULL;
    }
  }
  return last;
}

/* Leaves one event in the extent. False: one is not enough. */
static bool settle(quay__pool *pool, quay__extent *extent, quay_event *const *pending,
                   size_t count) {
  quay_event *const old = extent->user;
  if (count == 0)
    return true;
  quay_event *const last = last_of(old, pending, count);
  if (last == NULL)
    return false;
  if (last == old)
    return true;
  extent->user = quay_event_retain(last);
  if (old != NULL) {
    quay__lock_acquire(&pool->lock);
    quay__event_release_later(old, &pool->dead);
    quay__lock_release(&pool->lock);
  }
  return true;
}

static void free_direct(quay__pool *pool, quay__extent *extent, quay_event *const *pending,
                        size_t count) {
  const bool ordered = (pool->inner->flags & QUAY_ALLOCATOR_ORDERED_FREE) != 0;
  if (count == 0 || ordered) {
    quay__lock_acquire(&pool->lock);
    pool->used -= quay__min(extent->size, pool->used);
    quay__lock_release(&pool->lock);
    quay__pool_direct_end(pool, quay__pool_region_of(extent), pending, count);
  } else {
    quay__pool_heap_hold(pool, extent, pending, count);
  }
}

void quay__pool_free(quay_allocator *allocator, quay_raw_buffer *raw, quay_event *const *pending,
                     size_t count) {
  quay__pool *const pool = quay__pool_of(allocator);
  if ((raw->flags & QUAY__RAW_RESERVED) != 0) { /* an outer layer's */
    quay__free(pool->inner, raw, pending, count);
    return;
  }
  quay__extent *const extent = (quay__extent *)(uintptr_t)raw->cookie;
  quay__pool_region *const region = quay__pool_region_of(extent);
  if (region->direct) {
    free_direct(pool, extent, pending, count);
    return;
  }
  if (!quay__pool_is_current(pool, region)) {
    quay__pool_heap_give_stale(pool, extent);
    return;
  }
  if ((count != 0 || extent->user != NULL) && !settle(pool, extent, pending, count)) {
    quay__pool_heap_hold(pool, extent, pending, count);
    return;
  }
  if (extent->user == NULL)
    quay__pool_poison(pool, region, extent);
  if (!cache_put(pool, extent))
    quay__pool_heap_give(pool, &extent, 1);
}
