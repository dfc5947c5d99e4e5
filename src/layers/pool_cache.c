/* The pool from the caller's side: allocation and free, and what a thread takes from what it keeps
 * and puts there. How that is made room for and given back is in pool_stock.c, the rest in the
 * files that pool_impl.h lists. */
#include <string.h>

#include "core/checked.h"
#include "core/error.h"
#include "core/path.h"
#include "layers/pool_impl.h"

enum {
  BATCH = 16, /* extents that are taken at once for what is small */
  BATCH_BYTES = 16 << 10,
  LOOKS = 8, /* blocks of a size: what is the matter with one is with most */
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
QUAY__ALWAYS static inline quay__pool_want want_of(const quay__pool *pool,
                                                   const quay_alloc_request *request) {
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
QUAY__ALWAYS static inline bool is_usable(quay__pool *pool, const quay__extent *extent,
                                          const quay__pool_want *want) {
  const quay_event *const event = extent->user;
  return (event == NULL || (want->stream != 0 && event->stream_id == want->stream)) &&
         (extent->offset & (want->alignment - 1)) == 0 &&
         quay__pool_is_current(pool, quay__pool_region_of(extent));
}

/* Into an empty place. */
static void put_into(quay__pool_place *place, quay__extent *extent, uint64_t size) {
  place->size = size;
  atomic_store_explicit(&place->extent, extent, memory_order_release);
}

static uint32_t count_of(const quay__pool_stock *stock, uint32_t number) {
  return atomic_load_explicit(&stock->counts[number], memory_order_relaxed);
}

static void set_count(quay__pool_stock *stock, uint32_t number, uint32_t value) {
  atomic_store_explicit(&stock->counts[number], (unsigned char)value, memory_order_relaxed);
}

static quay__pool_stock *stock_of(const quay__pool_cache *cache) {
  return atomic_load_explicit(&cache->stock, memory_order_relaxed);
}

/* What is in a place whose size is right, if it is of use; NULL, too, while others take out of what
 * the thread keeps. */
QUAY__ALWAYS static inline quay__extent *take_entering(quay__pool *pool, quay__pool_cache *cache,
                                                       quay__pool_place *place,
                                                       const quay__pool_want *want) {
  if (!quay__spin_enter(&cache->lock))
    return NULL;
  quay__extent *extent = atomic_load_explicit(&place->extent, memory_order_relaxed);
  if (extent != NULL && is_usable(pool, extent, want)) {
    atomic_store_explicit(&place->extent, NULL, memory_order_relaxed);
  } else {
    extent = NULL;
  }
  quay__spin_leave(&cache->lock);
  return extent;
}

/* The same whoever takes; `*out_gone`: nothing is in it. */
static quay__extent *take_usable(quay__pool *pool, quay__pool_cache *cache, quay__pool_place *place,
                                 const quay__pool_want *want, bool *out_gone) {
  quay__extent *const extent = quay__pool_take_out(place);
  *out_gone = extent == NULL;
  if (extent == NULL || is_usable(pool, extent, want))
    return extent;
  const bool pending = extent->user != NULL; /* it is anybody's afterwards */
  put_into(place, extent, want->size);
  if (pending)
    atomic_store_explicit(&cache->pending, true, memory_order_release);
  return NULL;
}

/* What is small, if it is there at once: the one of its size that was put last. */
QUAY__ALWAYS static inline quay__extent *take_last(quay__pool *pool, const quay__pool_want *want) {
  quay__pool_cache *const cache = quay__pool_cache_at_once(pool);
  quay__pool_stock *const stock = cache != NULL ? stock_of(cache) : NULL;
  if (stock == NULL)
    return NULL;
  const uint32_t number = quay__pool_list_number(pool, want->size);
  const uint32_t count = count_of(stock, number);
  if (count == 0)
    return NULL;
  quay__pool_place *const last = &quay__pool_list_numbered(stock, number)[count - 1];
  if (last->size != want->size)
    return NULL;
  quay__extent *const extent = take_entering(pool, cache, last, want);
  if (extent == NULL)
    return NULL;
  set_count(stock, number, count - 1);
  cache->bytes -= want->size;
  return extent;
}

/* Any other one. */
static quay__extent *take_earlier(quay__pool *pool, quay__pool_cache *cache,
                                  quay__pool_stock *stock, const quay__pool_want *want) {
  const uint32_t number = quay__pool_list_number(pool, want->size);
  quay__pool_place *const places = quay__pool_list_numbered(stock, number);
  uint32_t count = count_of(stock, number);
  quay__extent *found = NULL;
  for (uint32_t i = count, looks = 0; i-- > 0 && looks < LOOKS && found == NULL;) {
    if (places[i].size != want->size)
      continue;
    bool gone;
    found = take_usable(pool, cache, &places[i], want, &gone);
    if (found == NULL && !gone) {
      looks++;
      continue;
    }
    /* This one, or one that others have taken: the last fills the place. */
    if (i < --count)
      put_into(&places[i], quay__pool_take_out(&places[count]), places[count].size);
    cache->bytes -= want->size;
  }
  set_count(stock, number, count);
  return found;
}

static void count_hit(quay__pool_cache *cache, uint64_t size) {
  cache->hits++;
  cache->recent_bytes -= quay__min(size, cache->recent_bytes);
}

/* What is large; `entering`: if it is there at once. */
QUAY__ALWAYS static inline quay__extent *take_recent(quay__pool *pool, quay__pool_cache *cache,
                                                     const quay__pool_want *want, bool entering) {
  for (uint32_t i = 0; cache != NULL && i < cache->recent_used; i++) {
    quay__pool_place *const place = &cache->recent[i];
    bool gone;
    if (place->size != want->size)
      continue;
    quay__extent *const extent = entering ? take_entering(pool, cache, place, want)
                                          : take_usable(pool, cache, place, want, &gone);
    if (extent == NULL)
      continue;
    count_hit(cache, want->size);
    return extent;
  }
  return NULL;
}

/* What take_last() did not find. */
static quay__extent *cache_search(quay__pool *pool, const quay__pool_want *want) {
  quay__pool_cache *const cache = quay__pool_cache_of_thread(pool);
  if (cache == NULL)
    return NULL;
  if (want->size > QUAY__POOL_STOCK_BYTES)
    return take_recent(pool, cache, want, false);
  quay__pool_stock *const stock = stock_of(cache);
  return stock != NULL ? take_earlier(pool, cache, stock, want) : NULL;
}

/* False: there is no room, or too much is kept. */
QUAY__ALWAYS static inline bool put_small(quay__pool *pool, quay__pool_cache *cache,
                                          quay__pool_stock *stock, uint64_t most_bytes,
                                          quay__extent *extent) {
  const uint64_t size = extent->size;
  const uint32_t number = quay__pool_list_number(pool, size);
  const uint32_t count = count_of(stock, number);
  quay__pool_place *const place = &quay__pool_list_numbered(stock, number)[count];
  if (count == quay__pool_list_depth(number) || cache->bytes + size > most_bytes ||
      atomic_load_explicit(&place->extent, memory_order_relaxed) != NULL)
    return false;
  cache->bytes += size;
  put_into(place, extent, size);
  set_count(stock, number, count + 1);
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

/* False: it is too large. */
static bool put_recent(quay__pool *pool, quay__pool_cache *cache, quay__extent *extent) {
  const uint64_t size = extent->size;
  if (size > pool->recent_bytes)
    return false;
  uint32_t i = 0;
  while (i < cache->recent_used &&
         atomic_load_explicit(&cache->recent[i].extent, memory_order_relaxed) != NULL)
    i++;
  if (i == QUAY__POOL_RECENT || cache->recent_bytes > pool->recent_bytes - size) {
    give_recent(pool, cache);
    i = 0;
  }
  if (i == cache->recent_used)
    cache->recent_used = i + 1;
  cache->recent_bytes += size;
  put_into(&cache->recent[i], extent, size);
  return true;
}

/* What a thread was about to count when another one forked: in the child nobody did. */
static void count_uncounted(quay__pool *pool, quay__pool_stock *stock, uint64_t size) {
  const uint32_t number = quay__pool_list_number(pool, size);
  const quay__pool_place *const places = quay__pool_list_numbered(stock, number);
  uint32_t count = count_of(stock, number);
  while (count < quay__pool_list_depth(number) &&
         atomic_load_explicit(&places[count].extent, memory_order_relaxed) != NULL)
    count++;
  set_count(stock, number, count);
}

/* Into room that is made for it where there is none. */
QUAY__SELDOM static bool put_into_room(quay__pool *pool, quay__pool_cache *cache,
                                       quay__pool_stock *stock, quay__extent *extent) {
  count_uncounted(pool, stock, extent->size);
  if (put_small(pool, cache, stock, pool->cache_bytes, extent))
    return true;
  quay__pool_make_room(pool, cache, extent->size);
  return put_small(pool, cache, stock, UINT64_MAX, extent);
}

static bool is_starving(const quay__pool *pool) {
  return quay__pool_tally_read(&pool->starving, memory_order_relaxed) != 0;
}

/* False: the thread keeps none, or not of this size. */
static bool cache_put(quay__pool *pool, quay__extent *extent) {
  quay__pool_cache *const cache = quay__pool_cache_of_thread(pool);
  if (cache == NULL || is_starving(pool))
    return false;
  if (extent->size > QUAY__POOL_STOCK_BYTES)
    return put_recent(pool, cache, extent);
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
      is_starving(pool))
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
  if (want->size <= QUAY__POOL_STOCK_BYTES)
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

/* Whatever it takes. */
QUAY__APART static quay_status alloc_any(quay__pool *pool, const quay_alloc_request *request,
                                         quay_raw_buffer *out_raw) {
  quay__extent *extent = NULL;
  if (quay__device_generation(pool->allocator->device) !=
      atomic_load_explicit(&pool->generation, memory_order_relaxed))
    quay__pool_renew(pool);
  if (is_direct(pool, request)) {
    QUAY_TRY(quay__pool_direct(pool, request, &extent));
  } else {
    const quay__pool_want want = want_of(pool, request);
    extent = cache_search(pool, &want);
    if (extent == NULL)
      QUAY_TRY(take_slowly(pool, &want, &extent));
  }
  describe(pool, extent, request->size, out_raw);
  return QUAY_OK;
}

/* What an extent that was kept is handed out as. */
QUAY__ALWAYS static inline void describe_part(const quay__pool *pool, quay__extent *extent,
                                              uint64_t size, quay_raw_buffer *out_raw) {
  quay_allocator *const inner = pool->inner;
  inner->vtable.window(inner, &quay__pool_region_of(extent)->raw, extent->offset, size, out_raw);
  out_raw->cookie = (uint64_t)(uintptr_t)extent;
}

QUAY__APART static quay_status alloc_large(quay__pool *pool, const quay_alloc_request *request,
                                           quay_raw_buffer *out_raw) {
  const quay__pool_want want = want_of(pool, request);
  quay__extent *const extent = take_recent(pool, quay__pool_cache_at_once(pool), &want, true);
  if (extent == NULL)
    return alloc_any(pool, request, out_raw);
  describe_part(pool, extent, request->size, out_raw);
  return QUAY_OK;
}

/* What there is at once comes by the shortest way, and so it goes back. */
quay_status quay__pool_alloc(quay_allocator *allocator, const quay_alloc_request *request,
                             quay_raw_buffer *out_raw) {
  quay__pool *const pool = quay__pool_of(allocator);
  if (!pool->short_way || is_direct(pool, request) ||
      quay__device_generation(allocator->device) !=
          atomic_load_explicit(&pool->generation, memory_order_relaxed))
    return alloc_any(pool, request, out_raw);
  if (request->size > QUAY__POOL_STOCK_BYTES)
    return alloc_large(pool, request, out_raw);
  const quay__pool_want want = want_of(pool, request);
  quay__extent *const extent = take_last(pool, &want);
  if (extent == NULL)
    return alloc_any(pool, request, out_raw);
  describe_part(pool, extent, request->size, out_raw);
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

/* Whatever it is and whatever still uses it. */
QUAY__APART static void free_any(quay__pool *pool, quay_raw_buffer *raw, quay_event *const *pending,
                                 size_t count) {
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

/* Whether it is a part of a block as any other, which no work uses. */
QUAY__ALWAYS static inline bool is_usual(quay__pool *pool, const quay_raw_buffer *raw,
                                         size_t count) {
  if ((raw->flags & QUAY__RAW_RESERVED) != 0 || count != 0 || !pool->short_way)
    return false;
  const quay__extent *const extent = (const quay__extent *)(uintptr_t)raw->cookie;
  const quay__pool_region *const region = quay__pool_region_of(extent);
  return extent->user == NULL && !region->direct && quay__pool_is_current(pool, region);
}

/* cache_put() of what is small, where it takes no more than a store. */
QUAY__ALWAYS static inline bool put_last(quay__pool *pool, quay__extent *extent) {
  quay__pool_cache *const cache = quay__pool_cache_at_once(pool);
  quay__pool_stock *const stock = cache != NULL ? stock_of(cache) : NULL;
  return stock != NULL && !quay__pool_tally_is_used(&pool->starving) &&
         put_small(pool, cache, stock, pool->cache_bytes, extent);
}

QUAY__APART static void free_large(quay__pool *pool, quay_raw_buffer *raw) {
  quay__pool_cache *const cache = quay__pool_cache_at_once(pool);
  if (cache == NULL || quay__pool_tally_is_used(&pool->starving) ||
      !put_recent(pool, cache, (quay__extent *)(uintptr_t)raw->cookie))
    free_any(pool, raw, NULL, 0);
}

void quay__pool_free(quay_allocator *allocator, quay_raw_buffer *raw, quay_event *const *pending,
                     size_t count) {
  quay__pool *const pool = quay__pool_of(allocator);
  quay__extent *const extent = (quay__extent *)(uintptr_t)raw->cookie;
  if (!is_usual(pool, raw, count)) {
    free_any(pool, raw, pending, count);
  } else if (extent->size > QUAY__POOL_STOCK_BYTES) {
    free_large(pool, raw);
  } else if (!put_last(pool, extent)) {
    free_any(pool, raw, NULL, 0);
  }
}
