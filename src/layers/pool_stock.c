/* What the threads of a pool keep: how room is made in it, and how it is given back. How the hot
 * paths take out of it and put into it is in pool_cache.c. */
#include "core/checked.h"
#include "core/os.h"
#include "layers/pool_impl.h"

static quay__extent *empty(quay__pool_place *place) {
  if (atomic_load_explicit(place, memory_order_relaxed) == NULL)
    return NULL;
  return atomic_exchange_explicit(place, NULL, memory_order_acquire);
}

/* Failing is no error: the thread goes without. */
void quay__pool_make_stock(quay__pool *pool) {
  quay__pool_cache *const cache = quay__pool_cache_of_thread(pool);
  if (cache == NULL || atomic_load_explicit(&cache->stock, memory_order_relaxed) != NULL)
    return;
  quay__pool_stock *const stock = quay__os_calloc(1, sizeof *stock);
  atomic_store_explicit(&cache->stock, stock, memory_order_release);
}

/* Making room. */

/* With the cache's lock held, by its thread, so that nobody else takes: moves the older ones of a
 * list, at most `count`, out of it, and gives their number without those that were gone. */
static uint32_t take_older(quay__pool_cache *cache, quay__pool_list from, uint32_t count,
                           quay__extent **out_extents) {
  const uint32_t all = atomic_load_explicit(from.count, memory_order_relaxed);
  uint32_t taken = 0;
  for (uint32_t i = 0; i < all; i++) {
    quay__extent *const extent = atomic_load_explicit(&from.places[i], memory_order_relaxed);
    if (i < count) {
      if (extent != NULL)
        out_extents[taken++] = extent;
      cache->bytes -= from.sizes != NULL ? from.sizes[i] : from.size;
      continue;
    }
    atomic_store_explicit(&from.places[i - count], extent, memory_order_release);
    if (from.sizes != NULL)
      from.sizes[i - count] = from.sizes[i];
  }
  for (uint32_t i = all - count; i < all; i++)
    atomic_store_explicit(&from.places[i], NULL, memory_order_relaxed);
  atomic_store_explicit(from.count, (unsigned char)(all - count), memory_order_relaxed);
  return taken;
}

static uint32_t find_room(quay__pool *pool, quay__pool_cache *cache, uint64_t size,
                          quay__extent **out_extents) {
  quay__pool_stock *const stock = atomic_load_explicit(&cache->stock, memory_order_relaxed);
  const uint32_t number = quay__pool_list_number(pool, size);
  const quay__pool_list into = quay__pool_list_numbered(pool, stock, number);
  if (atomic_load_explicit(into.count, memory_order_relaxed) == into.depth)
    return take_older(cache, into, into.depth / 2, out_extents);
  /* Too many bytes: the lists are emptied in turn, so that what is not used any more goes. */
  for (uint32_t i = 0; i < QUAY__POOL_LISTS; i++) {
    cache->hand = (cache->hand + 1) % QUAY__POOL_LISTS;
    const quay__pool_list emptied = quay__pool_list_numbered(pool, stock, cache->hand);
    const uint32_t count = atomic_load_explicit(emptied.count, memory_order_relaxed);
    if (count > 0)
      return take_older(cache, emptied, (count + 1) / 2, out_extents);
  }
  cache->bytes = 0; /* what was being counted when another thread forked */
  return 0;
}

void quay__pool_make_room(quay__pool *pool, quay__pool_cache *cache, uint64_t size) {
  quay__extent *gone[QUAY__POOL_CLASS_DEPTH];
  quay__pool_move_begin(pool);
  quay__spin_acquire(&cache->lock);
  const uint32_t count = find_room(pool, cache, size, gone);
  quay__spin_release(&cache->lock);
  if (count > 0)
    quay__pool_heap_give(pool, gone, count);
  quay__pool_move_end(pool);
}

/* Giving back. */

void quay__pool_gather(quay__pool_cache *cache, uint32_t count, quay__pool_batch *out_batch) {
  out_batch->count = 0;
  for (uint32_t i = 0; i < count; i++) {
    quay__extent *const extent = empty(&cache->recent[i]);
    if (extent != NULL)
      out_batch->extents[out_batch->count++] = extent;
  }
}

void quay__pool_gather_own(quay__pool_cache *cache, quay__pool_batch *out_batch) {
  quay__pool_gather(cache, cache->recent_used, out_batch);
  cache->recent_used = 0;
  cache->recent_bytes = 0;
}

static void flush_list(quay__pool *pool, quay__pool_cache *cache, quay__pool_list from) {
  quay__extent *gone[QUAY__POOL_CLASS_DEPTH];
  uint32_t count = 0;
  quay__spin_acquire(&cache->lock);
  for (uint32_t i = 0; i < from.depth; i++) {
    quay__extent *const extent = empty(&from.places[i]);
    if (extent != NULL)
      gone[count++] = extent;
  }
  quay__spin_release(&cache->lock);
  if (count > 0)
    quay__pool_heap_give(pool, gone, count);
}

/* Whether something may be in a list. The count is its thread's, and comes after what is put. */
static bool may_hold(const quay__pool_list *list) {
  return atomic_load_explicit(list->count, memory_order_relaxed) > 0 ||
         atomic_load_explicit(&list->places[0], memory_order_relaxed) != NULL;
}

static void flush_stock(quay__pool *pool, quay__pool_cache *cache) {
  quay__pool_stock *const stock = atomic_load_explicit(&cache->stock, memory_order_acquire);
  for (uint32_t i = 0; stock != NULL && i < QUAY__POOL_LISTS; i++) {
    const quay__pool_list from = quay__pool_list_numbered(pool, stock, i);
    if (may_hold(&from))
      flush_list(pool, cache, from);
  }
}

static bool holds(const quay__pool_list *list) {
  for (uint32_t i = 0; i < list->depth; i++) {
    if (atomic_load_explicit(&list->places[i], memory_order_relaxed) != NULL)
      return true;
  }
  return false;
}

static bool stock_holds(const quay__pool *pool, quay__pool_cache *cache) {
  quay__pool_stock *const stock = atomic_load_explicit(&cache->stock, memory_order_acquire);
  for (uint32_t i = 0; stock != NULL && i < QUAY__POOL_LISTS; i++) {
    const quay__pool_list list = quay__pool_list_numbered(pool, stock, i);
    if (may_hold(&list) && holds(&list))
      return true;
  }
  return false;
}

bool quay__pool_has_kept(quay__pool *pool) {
  const uint32_t used = quay__thread_shards_used();
  for (uint32_t i = 0; i < used; i++) {
    if (stock_holds(pool, &pool->caches[i]))
      return true;
  }
  return quay__pool_has_recent(pool);
}

bool quay__pool_has_recent(quay__pool *pool) {
  const uint32_t used = quay__thread_shards_used();
  for (uint32_t i = 0; i < used; i++) {
    for (uint32_t j = 0; j < QUAY__POOL_RECENT; j++) {
      if (atomic_load_explicit(&pool->caches[i].recent[j], memory_order_relaxed) != NULL)
        return true;
    }
  }
  return false;
}

void quay__pool_flush_recent(quay__pool *pool) {
  const uint32_t used = quay__thread_shards_used();
  quay__pool_move_begin(pool);
  for (uint32_t i = 0; i < used; i++) {
    quay__pool_batch batch;
    quay__pool_gather(&pool->caches[i], QUAY__POOL_RECENT, &batch);
    if (batch.count > 0)
      quay__pool_heap_give(pool, batch.extents, batch.count);
  }
  quay__pool_move_end(pool);
}

void quay__pool_flush_pending(quay__pool *pool) {
  const uint32_t used = quay__thread_shards_used();
  quay__pool_move_begin(pool);
  for (uint32_t i = 0; i < used; i++) {
    if (atomic_exchange_explicit(&pool->caches[i].pending, false, memory_order_acquire))
      flush_stock(pool, &pool->caches[i]);
  }
  quay__pool_move_end(pool);
}

void quay__pool_flush(quay__pool *pool) {
  const uint32_t used = quay__thread_shards_used();
  quay__pool_flush_recent(pool);
  quay__pool_move_begin(pool);
  for (uint32_t i = 0; i < used; i++)
    flush_stock(pool, &pool->caches[i]);
  quay__pool_move_end(pool);
}

void quay__pool_caches_destroy(quay__pool *pool) {
  for (uint32_t i = 0; i < QUAY__SHARD_COUNT - 1; i++)
    quay__os_free(atomic_load_explicit(&pool->caches[i].stock, memory_order_relaxed));
}
