/* What the threads of a pool keep: how room is made in it, and how it is given back. How the hot
 * paths take out of it and put into it is in pool_cache.c. */
#include "core/checked.h"
#include "core/os.h"
#include "layers/pool_impl.h"

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
static uint32_t take_older(quay__pool_cache *cache, quay__pool_stock *stock, uint32_t number,
                           uint32_t count, quay__extent **out_extents) {
  quay__pool_place *const places = quay__pool_list_numbered(stock, number);
  const uint32_t all = atomic_load_explicit(&stock->counts[number], memory_order_relaxed);
  uint32_t taken = 0;
  for (uint32_t i = 0; i < all; i++) {
    quay__extent *const extent = atomic_load_explicit(&places[i].extent, memory_order_relaxed);
    if (i < count) {
      if (extent != NULL)
        out_extents[taken++] = extent;
      cache->bytes -= places[i].size;
      continue;
    }
    places[i - count].size = places[i].size;
    atomic_store_explicit(&places[i - count].extent, extent, memory_order_release);
  }
  for (uint32_t i = all - count; i < all; i++)
    atomic_store_explicit(&places[i].extent, NULL, memory_order_relaxed);
  atomic_store_explicit(&stock->counts[number], (unsigned char)(all - count), memory_order_relaxed);
  return taken;
}

static uint32_t find_room(quay__pool *pool, quay__pool_cache *cache, uint64_t size,
                          quay__extent **out_extents) {
  quay__pool_stock *const stock = atomic_load_explicit(&cache->stock, memory_order_relaxed);
  const uint32_t number = quay__pool_list_number(pool, size);
  const uint32_t depth = quay__pool_list_depth(number);
  if (atomic_load_explicit(&stock->counts[number], memory_order_relaxed) == depth)
    return take_older(cache, stock, number, depth / 2, out_extents);
  /* Too many bytes: the lists are emptied in turn, so that what is not used any more goes. */
  for (uint32_t i = 0; i < QUAY__POOL_LISTS; i++) {
    cache->hand = (cache->hand + 1) % QUAY__POOL_LISTS;
    const uint32_t count = atomic_load_explicit(&stock->counts[cache->hand], memory_order_relaxed);
    if (count > 0)
      return take_older(cache, stock, cache->hand, (count + 1) / 2, out_extents);
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
    quay__extent *const extent = quay__pool_take_out(&cache->recent[i]);
    if (extent != NULL)
      out_batch->extents[out_batch->count++] = extent;
  }
}

void quay__pool_gather_own(quay__pool_cache *cache, quay__pool_batch *out_batch) {
  quay__pool_gather(cache, cache->recent_used, out_batch);
  cache->recent_used = 0;
  cache->recent_bytes = 0;
}

static void flush_list(quay__pool *pool, quay__pool_cache *cache, quay__pool_place *places,
                       uint32_t depth) {
  quay__extent *gone[QUAY__POOL_CLASS_DEPTH];
  uint32_t count = 0;
  quay__spin_acquire(&cache->lock);
  for (uint32_t i = 0; i < depth; i++) {
    quay__extent *const extent = quay__pool_take_out(&places[i]);
    if (extent != NULL)
      gone[count++] = extent;
  }
  quay__spin_release(&cache->lock);
  if (count > 0)
    quay__pool_heap_give(pool, gone, count);
}

static bool holds(const quay__pool_place *places, uint32_t depth) {
  for (uint32_t i = 0; i < depth; i++) {
    if (atomic_load_explicit(&places[i].extent, memory_order_relaxed) != NULL)
      return true;
  }
  return false;
}

/* Whether something may be in a list. The count is its thread's, and comes after what is put. */
static bool may_hold(quay__pool_stock *stock, uint32_t number) {
  return atomic_load_explicit(&stock->counts[number], memory_order_relaxed) > 0 ||
         holds(quay__pool_list_numbered(stock, number), 1);
}

static void flush_stock(quay__pool *pool, quay__pool_cache *cache) {
  quay__pool_stock *const stock = atomic_load_explicit(&cache->stock, memory_order_acquire);
  for (uint32_t i = 0; stock != NULL && i < QUAY__POOL_LISTS; i++) {
    if (may_hold(stock, i))
      flush_list(pool, cache, quay__pool_list_numbered(stock, i), quay__pool_list_depth(i));
  }
}

static bool stock_holds(quay__pool_cache *cache) {
  quay__pool_stock *const stock = atomic_load_explicit(&cache->stock, memory_order_acquire);
  for (uint32_t i = 0; stock != NULL && i < QUAY__POOL_LISTS; i++) {
    if (may_hold(stock, i) && holds(quay__pool_list_numbered(stock, i), quay__pool_list_depth(i)))
      return true;
  }
  return false;
}

static bool recent_holds(quay__pool_cache *cache) {
  return holds(cache->recent, QUAY__POOL_RECENT);
}

/* Which threads' caches hold some, bit by bit. */
static uint32_t holding(quay__pool *pool, bool (*keeps)(quay__pool_cache *cache)) {
  const uint32_t used = quay__thread_shards_used();
  uint32_t found = 0;
  for (uint32_t i = 0; i < used; i++) {
    if (keeps(&pool->caches[i]))
      found |= UINT32_C(1) << i;
  }
  return found;
}

bool quay__pool_has_recent(quay__pool *pool) {
  return holding(pool, recent_holds) != 0;
}

bool quay__pool_has_kept(quay__pool *pool) {
  return holding(pool, stock_holds) != 0 || quay__pool_has_recent(pool);
}

/* Takes all that some threads keep and gives it back to the arenas, while their threads take none
 * of it without an exchange. */
static void flush_caches(quay__pool *pool, uint32_t caches,
                         void (*flush)(quay__pool *pool, quay__pool_cache *cache)) {
  const uint32_t others = caches & ~(UINT32_C(1) << quay__thread_shard());
  quay__pool_move_begin(pool);
  quay__spin_set_pause(&pool->spins, others);
  for (uint32_t i = 0; i < QUAY__SHARD_COUNT - 1; i++) {
    if ((caches >> i & 1) != 0)
      flush(pool, &pool->caches[i]);
  }
  quay__spin_set_resume(&pool->spins, others);
  quay__pool_move_end(pool);
}

static void flush_recent(quay__pool *pool, quay__pool_cache *cache) {
  quay__pool_batch batch;
  quay__pool_gather(cache, QUAY__POOL_RECENT, &batch);
  if (batch.count > 0)
    quay__pool_heap_give(pool, batch.extents, batch.count);
}

void quay__pool_flush_recent(quay__pool *pool) {
  flush_caches(pool, holding(pool, recent_holds), flush_recent);
}

static bool had_pending(quay__pool_cache *cache) {
  return atomic_exchange_explicit(&cache->pending, false, memory_order_acquire);
}

void quay__pool_flush_pending(quay__pool *pool) {
  flush_caches(pool, holding(pool, had_pending), flush_stock);
}

void quay__pool_flush(quay__pool *pool) {
  quay__pool_flush_recent(pool);
  flush_caches(pool, holding(pool, stock_holds), flush_stock);
}

void quay__pool_caches_destroy(quay__pool *pool) {
  for (uint32_t i = 0; i < QUAY__SHARD_COUNT - 1; i++)
    quay__os_free(atomic_load_explicit(&pool->caches[i].stock, memory_order_relaxed));
}
