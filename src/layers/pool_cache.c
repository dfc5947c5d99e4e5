/* The pool from the caller's side: allocation and free, and what a thread takes from what it keeps
 * and puts there. How that is made room for and given back is in pool_stock.c, the rest in the
 * files that pool_impl.h lists. */
#include <string.h>

#include "core/checked.h"
#include "core/error.h"
#include "layers/pool_impl.h"

/* Off the hot path, which then needs no room on the stack for it; and on it. */
#define QUAY__SELDOM __attribute__((noinline, cold))
#define QUAY__ALWAYS __attribute__((always_inline))

enum {
  BATCH = 16, /* extents that are taken at once for what is small */
  BATCH_BYTES = 16 << 10,
  LOOKS = 4, /* blocks of a class: what is the matter with one is with most */
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

/* What the thread keeps. */

/* Whether what one work may still use is good for another: of the same stream it is. */
static bool is_usable(quay__pool *pool, const quay__extent *extent, const quay__pool_want *want) {
  const quay_event *const event = extent->user;
  return (event == NULL || (want->stream != 0 && event->stream_id == want->stream)) &&
         (extent->offset & (want->alignment - 1)) == 0 &&
         quay__pool_is_current(pool, quay__pool_region_of(extent));
}

/* NULL: it is empty. */
static quay__extent *take_out(quay__pool_place *place) {
  if (atomic_load_explicit(place, memory_order_relaxed) == NULL)
    return NULL;
  return atomic_exchange_explicit(place, NULL, memory_order_acquire);
}

/* Into an empty place. */
static void put_into(quay__pool_place *place, quay__extent *extent) {
  atomic_store_explicit(place, extent, memory_order_release);
}

static uint32_t count_of(const atomic_uchar *count) {
  return atomic_load_explicit(count, memory_order_relaxed);
}

static void set_count(atomic_uchar *count, uint32_t value) {
  atomic_store_explicit(count, (unsigned char)value, memory_order_relaxed);
}

static quay__pool_stock *stock_of(const quay__pool_cache *cache) {
  return atomic_load_explicit(&cache->stock, memory_order_relaxed);
}

static quay__extent *take_class(quay__pool *pool, quay__pool_cache *cache, quay__pool_stock *stock,
                                const quay__pool_want *want) {
  const uint32_t number = quay__pool_class_of(want->size >> pool->granule_log2);
  quay__pool_place *const places = stock->classes[number];
  uint32_t count = count_of(&stock->class_count[number]);
  quay__extent *found = NULL;
  for (uint32_t i = count, looks = 0; i-- > 0 && looks < LOOKS && found == NULL;) {
    quay__extent *const extent = take_out(&places[i]);
    if (extent != NULL && !is_usable(pool, extent, want)) {
      put_into(&places[i], extent);
      looks++;
      continue;
    }
    /* This one, or one that others have taken: the last fills the place. */
    found = extent;
    if (i < --count)
      put_into(&places[i], take_out(&places[count]));
    cache->bytes -= want->size;
  }
  set_count(&stock->class_count[number], count);
  return found;
}

static quay__extent *take_bucket(quay__pool *pool, quay__pool_cache *cache, quay__pool_stock *stock,
                                 const quay__pool_want *want) {
  const uint32_t number = quay__pool_bucket_of(want->size >> pool->granule_log2);
  quay__pool_place *const places = stock->buckets[number];
  uint64_t *const sizes = stock->sizes[number];
  uint32_t count = count_of(&stock->bucket_count[number]);
  quay__extent *found = NULL;
  for (uint32_t i = count; i-- > 0 && found == NULL;) {
    if (sizes[i] != want->size)
      continue;
    quay__extent *const extent = take_out(&places[i]);
    if (extent != NULL && !is_usable(pool, extent, want)) {
      put_into(&places[i], extent);
      continue;
    }
    found = extent;
    if (i < --count) {
      sizes[i] = sizes[count]; /* before there is anything to it, for a child of a fork */
      put_into(&places[i], take_out(&places[count]));
    }
    cache->bytes -= want->size;
  }
  set_count(&stock->bucket_count[number], count);
  return found;
}

static quay__extent *take_recent(quay__pool *pool, quay__pool_cache *cache,
                                 const quay__pool_want *want) {
  for (uint32_t i = 0; i < cache->recent_used; i++) {
    if (cache->recent_sizes[i] != want->size)
      continue;
    quay__extent *const extent = take_out(&cache->recent[i]);
    if (extent == NULL)
      continue;
    if (is_usable(pool, extent, want)) {
      cache->hits++;
      cache->recent_bytes -= quay__min(want->size, cache->recent_bytes);
      return extent;
    }
    put_into(&cache->recent[i], extent);
  }
  return NULL;
}

static bool is_small(const quay__pool *pool, uint64_t size) {
  return size <= pool->cache_bytes / 4;
}

static quay__extent *cache_take(quay__pool *pool, const quay__pool_want *want) {
  quay__pool_cache *const cache = quay__pool_cache_of_thread(pool);
  if (cache == NULL)
    return NULL;
  if (!is_small(pool, want->size))
    return take_recent(pool, cache, want);
  quay__pool_stock *const stock = stock_of(cache);
  if (stock == NULL)
    return NULL;
  return want->size <= QUAY__POOL_TINY_BYTES ? take_class(pool, cache, stock, want)
                                             : take_bucket(pool, cache, stock, want);
}

/* False: there is no room, or too much is kept. */
QUAY__ALWAYS static inline bool put_small(quay__pool *pool, quay__pool_cache *cache,
                                          quay__pool_stock *stock, uint64_t most_bytes,
                                          quay__extent *extent) {
  const uint32_t number = quay__pool_list_number(pool, extent->size);
  const quay__pool_list into = quay__pool_list_numbered(pool, stock, number);
  uint32_t count = count_of(into.count);
  /* What a thread was about to count when another one forked: in the child nobody did. */
  while (count < into.depth &&
         atomic_load_explicit(&into.places[count], memory_order_relaxed) != NULL)
    count++;
  if (count == into.depth || cache->bytes + extent->size > most_bytes)
    return false;
  if (into.sizes != NULL)
    into.sizes[count] = extent->size;
  cache->bytes += extent->size;
  put_into(&into.places[count], extent);
  set_count(into.count, count + 1);
  return true;
}

/* What the thread keeps of large blocks, back to the arenas. */
QUAY__SELDOM static void give_recent(quay__pool *pool, quay__pool_cache *cache) {
  quay__pool_batch batch;
  quay__pool_move_begin(pool);
  quay__pool_gather_own(cache, &batch);
  quay__pool_heap_give(pool, batch.extents, batch.count);
  quay__pool_move_end(pool);
}

/* Of at most `recent_bytes`. */
static void put_recent(quay__pool *pool, quay__pool_cache *cache, quay__extent *extent) {
  uint32_t i = 0;
  while (i < cache->recent_used &&
         atomic_load_explicit(&cache->recent[i], memory_order_relaxed) != NULL)
    i++;
  if (i == QUAY__POOL_RECENT || cache->recent_bytes > pool->recent_bytes - extent->size) {
    give_recent(pool, cache);
    i = 0;
  }
  if (i == cache->recent_used)
    cache->recent_used = i + 1;
  cache->recent_bytes += extent->size;
  cache->recent_sizes[i] = extent->size;
  put_into(&cache->recent[i], extent);
}

QUAY__SELDOM static bool put_into_room(quay__pool *pool, quay__pool_cache *cache,
                                       quay__pool_stock *stock, quay__extent *extent) {
  quay__pool_make_room(pool, cache, extent->size);
  return put_small(pool, cache, stock, UINT64_MAX, extent);
}

/* False: the thread keeps none, or not of this size. */
QUAY__ALWAYS static inline bool cache_put(quay__pool *pool, quay__extent *extent) {
  quay__pool_cache *const cache = quay__pool_cache_of_thread(pool);
  if (cache == NULL || quay__pool_tally_read(&pool->starving, memory_order_relaxed) != 0)
    return false;
  if (!is_small(pool, extent->size)) {
    if (extent->size > pool->recent_bytes)
      return false;
    put_recent(pool, cache, extent);
    return true;
  }
  quay__pool_stock *const stock = stock_of(cache);
  if (stock == NULL)
    return false;
  const bool pending = extent->user != NULL; /* it is anybody's afterwards */
  if (!put_small(pool, cache, stock, pool->cache_bytes, extent) &&
      !put_into_room(pool, cache, stock, extent))
    return false;
  if (pending)
    atomic_store_explicit(&cache->pending, true, memory_order_release);
  return true;
}

/* Allocation. */

static uint32_t batch_of(const quay__pool *pool, const quay__pool_want *want) {
  if (want->arena != QUAY__POOL_TINY || want->stream != 0 || pool->mode == QUAY__POOL_WHOLE ||
      quay__pool_tally_read(&pool->starving, memory_order_relaxed) != 0)
    return 1;
  return (uint32_t)quay__max(1, quay__min(BATCH, BATCH_BYTES / want->size));
}

static quay__extent *take_batch(quay__pool *pool, const quay__pool_want *want,
                                quay__pool_cache *own, uint64_t hits) {
  quay__extent *extents[BATCH];
  const uint32_t count = quay__pool_heap_take(pool, want, own, hits, extents, batch_of(pool, want));
  if (count == 0)
    return NULL;
  for (uint32_t i = 1; i < count; i++) {
    if (!cache_put(pool, extents[i]))
      quay__pool_heap_give(pool, &extents[i], 1);
  }
  if (count > 1)
    quay__pool_move_end(pool);
  return extents[0];
}

/* Past what the thread keeps. What it freed last and did not find of use becomes one with its
 * neighbours first, so that blocks lie where they would without it. */
QUAY__SELDOM static quay_status take_slowly(quay__pool *pool, const quay__pool_want *want,
                                            quay__extent **out_extent) {
  quay__pool_cache *const cache = quay__pool_cache_of_thread(pool);
  uint64_t hits = 0;
  if (is_small(pool, want->size))
    quay__pool_make_stock(pool);
  if (cache != NULL) {
    hits = cache->hits;
    cache->hits = 0;
  }
  /* What is tiny has no part in the arenas of what is large. */
  quay__pool_cache *const own = want->arena != QUAY__POOL_TINY ? cache : NULL;
  *out_extent = take_batch(pool, want, own, hits);
  if (*out_extent == NULL && quay__pool_poll(pool, want))
    *out_extent = take_batch(pool, want, NULL, 0);
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
QUAY__SELDOM static bool settle(quay__pool *pool, quay__extent *extent, quay_event *const *pending,
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

QUAY__SELDOM static void free_direct(quay__pool *pool, quay__extent *extent,
                                     quay_event *const *pending, size_t count) {
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
