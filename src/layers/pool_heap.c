/* The pool's arenas: what is taken and given back under the pool's lock, without asking anybody for
 * memory. */
#include "core/checked.h"
#include "core/error.h"
#include "layers/pool_impl.h"

/* Extents to have in stock where memory is asked for, so that giving back never needs any. */
enum {
  SPARE_EXTENTS = 96
};

uint32_t quay__pool_stream_set(const quay__pool *pool, uint64_t stream) {
  for (uint32_t i = 0; i < pool->stream_count; i++) {
    if (pool->streams[i].id == stream)
      return QUAY__POOL_STREAMS + i;
  }
  return 0;
}

/* A slot of the table that holds nothing; QUAY__POOL_STREAM_COUNT if there is none. What a plan has
 * taken out of a set may have to go back there. */
static uint32_t unused_slot(quay__pool *pool) {
  if (pool->stream_count < QUAY__POOL_STREAM_COUNT)
    return pool->stream_count++;
  if (quay__pool_tally_read(&pool->moving, memory_order_relaxed) != 0)
    return QUAY__POOL_STREAM_COUNT;
  for (uint32_t i = 0; i < QUAY__POOL_STREAM_COUNT; i++) {
    uint64_t count = 0;
    for (uint32_t arena = 0; arena < QUAY__POOL_ARENAS; arena++) {
      const quay__extent_set *const set = pool->arenas[arena].sets[QUAY__POOL_STREAMS + i];
      count += set != NULL ? set->count : 0;
    }
    if (count == 0)
      return i;
  }
  return QUAY__POOL_STREAM_COUNT;
}

/* Sees to a set for the stream, so that what it frees can be found by it. Without one the stream's
 * memory is used again only once its work is done. */
static void make_stream_set(quay__pool *pool, uint64_t stream) {
  if (stream == 0 || quay__pool_stream_set(pool, stream) != 0)
    return;
  const uint32_t slot = unused_slot(pool);
  if (slot == QUAY__POOL_STREAM_COUNT)
    return;
  for (uint32_t arena = 0; arena < QUAY__POOL_ARENAS; arena++) {
    if (!quay__offsets_make_set(&pool->arenas[arena], QUAY__POOL_STREAMS + slot))
      return;
  }
  quay__event_release_later(pool->streams[slot].latest, &pool->dead);
  pool->streams[slot] = (quay__pool_stream){.id = stream};
}

void quay__pool_count_used(quay__pool *pool, uint64_t size) {
  pool->used += size;
  if (pool->used <= pool->peak_used)
    return;
  pool->peak_used = pool->used;
  quay__statistics_due(&pool->allocator->statistics);
}

quay__extent *quay__pool_heap_part(quay__pool *pool, quay__extent *extent, uint64_t offset,
                                   uint64_t size) {
  /* What is left over keeps the event, too. */
  quay_event *const event = extent->user;
  if (event != NULL && offset > extent->offset)
    quay_event_retain(event);
  if (event != NULL && offset + size < extent->offset + extent->size)
    quay_event_retain(event);
  quay__pool_region *const region = pool->regions[extent->region];
  quay__extent *const taken =
      quay__offsets_take(&pool->arenas[region->arena], extent, offset, size);
  taken->owner = region;
  return taken;
}

quay__extent *quay__pool_heap_fit(quay__pool *pool, const quay__pool_want *want) {
  const quay__offsets *const arena = &pool->arenas[want->arena];
  uint64_t offset = 0;
  quay__extent *best =
      quay__offsets_find(arena, QUAY__POOL_READY, want->size, want->alignment, &offset);
  const uint32_t set = want->stream != 0 ? quay__pool_stream_set(pool, want->stream) : 0;
  if (set != 0) {
    uint64_t own_offset = 0;
    quay__extent *const own =
        quay__offsets_find(arena, set, want->size, want->alignment, &own_offset);
    if (own != NULL && (best == NULL || own->size <= best->size)) {
      best = own;
      offset = own_offset;
    }
  }
  if (best == NULL || (pool->mode == QUAY__POOL_WHOLE && best->size != want->size))
    return NULL;
  if (!quay__pool_is_current(pool, pool->regions[best->region]))
    return NULL;
  quay__pool_count_used(pool, want->size);
  return quay__pool_heap_part(pool, best, offset, want->size);
}

/* Giving back. */

/* Frees come in another order than the work that they wait for. */
static void remember_latest(quay__pool *pool, quay__pool_stream *stream, quay_event *event) {
  if (stream->latest != NULL && !quay__event_covers(event, stream->latest))
    return;
  quay__event_release_later(stream->latest, &pool->dead);
  stream->latest = quay_event_retain(event);
}

void quay__pool_heap_put(quay__pool *pool, quay__extent *extent) {
  quay__pool_region *const region = quay__pool_region_of(extent);
  quay_event *const event = extent->user;
  uint32_t set = QUAY__POOL_READY;
  if (event != NULL) {
    set = quay__pool_stream_set(pool, event->stream_id);
    remember_latest(pool, &pool->streams[set - QUAY__POOL_STREAMS], event);
  }
  quay__offsets_give(&pool->arenas[region->arena], extent, set);
}

/* With the lock held. The holders of events are extents that are spare otherwise. */
static void keep_event(quay__offsets *arena, quay__extent *extent, quay_event *event) {
  quay__extent *const holder = quay__offsets_spare_take(arena);
  holder->owner = extent->user;
  holder->user = event;
  extent->user = holder;
}

/* With the lock held. There are enough spare extents unless very many frees come in a row; then
 * there is memory for more, or else false. */
static bool hold(quay__pool *pool, quay__extent *extent, quay_event *const *pending, size_t count) {
  quay__offsets *const arena = &pool->arenas[quay__pool_region_of(extent)->arena];
  if (!quay__offsets_provision(arena, (uint32_t)count + 1))
    return false;
  quay_event *const inherited = extent->user;
  extent->user = NULL;
  if (inherited != NULL)
    keep_event(arena, extent, inherited);
  for (size_t i = 0; i < count; i++)
    keep_event(arena, extent, quay_event_retain(pending[i]));
  extent->previous = pool->held;
  pool->held = extent;
  pool->held_bytes += extent->size;
  return true;
}

/* With no memory to remember it by, the work is waited for. */
static void wait_for(quay__pool *pool, quay__extent *extent, quay_event *const *pending,
                     size_t count) {
  quay_event *const inherited = extent->user;
  extent->user = NULL;
  quay__error_shield();
  bool done = inherited == NULL || quay_event_synchronize(inherited) == QUAY_OK;
  for (size_t i = 0; i < count; i++)
    done = quay_event_synchronize(pending[i]) == QUAY_OK && done;
  if (!done) {
    quay_log(QUAY_LOG_ERROR, "pool: waiting for work on freed memory: %s",
             quay_last_error()->message);
  }
  quay__error_unshield();
  quay_event_release(inherited);
  quay__pool_poison(pool, quay__pool_region_of(extent), extent);
}

void quay__pool_heap_hold(quay__pool *pool, quay__extent *extent, quay_event *const *pending,
                          size_t count) {
  quay__lock_acquire(&pool->lock);
  const bool held = hold(pool, extent, pending, count);
  if (held)
    pool->used -= quay__min(extent->size, pool->used);
  quay__lock_release(&pool->lock);
  if (held)
    return;
  wait_for(pool, extent, pending, count);
  if (quay__pool_region_of(extent)->direct) {
    quay__pool_direct_end(pool, quay__pool_region_of(extent), NULL, 0);
  } else {
    quay__pool_heap_give(pool, &extent, 1);
  }
}

/* With the lock held. False: it must be waited for. */
static bool give(quay__pool *pool, quay__extent *extent) {
  const quay_event *const event = extent->user;
  if (event != NULL && quay__pool_stream_set(pool, event->stream_id) == 0) {
    if (!hold(pool, extent, NULL, 0))
      return false;
  } else {
    quay__pool_heap_put(pool, extent);
  }
  return true;
}

/* With the lock held: gives what can be given, and tells the first that can't. */
static uint32_t give_some(quay__pool *pool, quay__extent *const *extents, uint32_t count) {
  uint32_t given = 0;
  for (; given < count; given++) {
    const uint64_t size = extents[given]->size;
    if (!quay__pool_is_current(pool, quay__pool_region_of(extents[given])) ||
        !give(pool, extents[given]))
      break;
    pool->used -= quay__min(size, pool->used);
  }
  pool->given += given;
  return given;
}

void quay__pool_heap_give(quay__pool *pool, quay__extent *const *extents, uint32_t count) {
  for (;;) {
    quay__lock_acquire(&pool->lock);
    const uint32_t given = give_some(pool, extents, count);
    quay__lock_release(&pool->lock);
    if (given == count)
      return;
    extents += given;
    count -= given;
    if (quay__pool_is_current(pool, quay__pool_region_of(extents[0]))) {
      wait_for(pool, extents[0], NULL, 0);
    } else {
      quay__pool_heap_give_stale(pool, extents[0]);
      extents++;
      count--;
    }
  }
}

/* Taking. */

/* With the lock held. */
static uint32_t take_some(quay__pool *pool, const quay__pool_want *want, quay__extent **out_extents,
                          uint32_t count) {
  uint32_t taken = 0;
  if (!quay__offsets_provision(&pool->arenas[want->arena], SPARE_EXTENTS + 2 * count))
    return 0;
  while (taken < count && (out_extents[taken] = quay__pool_heap_fit(pool, want)) != NULL)
    taken++;
  return taken;
}

/* With the lock held, which is given back for a while: all that threads freed last. */
static void give_all_recent(quay__pool *pool) {
  quay__lock_release(&pool->lock);
  quay__pool_flush_recent(pool);
  quay__lock_acquire(&pool->lock);
}

/* What threads freed last counts as used: it must not make the peak any higher, since the pool may
 * hold as much, nor be missing from what is looked through before there is more memory. */
uint32_t quay__pool_heap_take(quay__pool *pool, const quay__pool_want *want, quay__pool_cache *own,
                              uint64_t hits, quay__extent **out_extents, uint32_t count) {
  quay__pool_batch batch = {.count = 0};
  quay__lock_acquire(&pool->lock);
  if (own != NULL) /* with the lock held, so that nobody misses it */
    quay__pool_gather_own(own, &batch);
  quay__pool_earn(pool, 1 + hits);
  if (pool->has_streams)
    make_stream_set(pool, want->stream);
  const uint32_t given = give_some(pool, batch.extents, batch.count);
  if (pool->used + count * want->size > pool->peak_used && quay__pool_has_recent(pool))
    give_all_recent(pool);
  uint32_t taken = take_some(pool, want, out_extents, count);
  if (taken == 0 && quay__pool_has_recent(pool)) {
    give_all_recent(pool);
    taken = take_some(pool, want, out_extents, count);
  }
  if (taken > 1)
    quay__pool_move_begin(pool);
  quay__lock_release(&pool->lock);
  if (given < batch.count)
    quay__pool_heap_give(pool, batch.extents + given, batch.count - given);
  return taken;
}

/* Generations. A region of an older one is stale once what was free of it is out of all sets; it
 * ends with the last extent that the program frees. */

static void drop_event(quay__pool *pool, quay__extent *extent) {
  quay_event *const event = extent->user;
  extent->user = NULL;
  quay__event_release_later(event, &pool->dead);
}

/* With the lock held. True: nothing of it is live, and it is to be ended. */
static bool make_stale(quay__pool *pool, quay__pool_region *region) {
  quay__offsets *const arena = &pool->arenas[region->arena];
  region->live = 0;
  for (quay__extent *each = region->first; each != NULL; each = each->upper) {
    if (each->set == QUAY__EXTENT_TAKEN) {
      region->live += each->size;
    } else {
      drop_event(pool, each);
      (void)quay__offsets_take(arena, each, each->offset, each->size);
    }
  }
  return region->live == 0;
}

static void end_stale(quay__pool *pool, quay__pool_region *region) {
  quay__lock_acquire(&pool->lock);
  quay__pool_region_leave(pool, region);
  quay__lock_release(&pool->lock);
  quay__pool_region_end(pool, region, NULL, 0);
}

void quay__pool_heap_give_stale(quay__pool *pool, quay__extent *extent) {
  quay__pool_region *const region = quay__pool_region_of(extent);
  bool over = false;
  quay__lock_acquire(&pool->lock);
  drop_event(pool, extent);
  if (region->live == UINT64_MAX) { /* about to be made stale */
    quay__offsets_give(&pool->arenas[region->arena], extent, QUAY__POOL_READY);
  } else {
    region->live -= extent->size;
    over = region->live == 0;
  }
  quay__lock_release(&pool->lock);
  if (over)
    end_stale(pool, region);
}

/* The next region of an older generation that is not stale yet, made so; NULL if there is none.
 * `*out_over`: nothing of it is live. */
static quay__pool_region *next_stale(quay__pool *pool, uint32_t *inout_number, bool *out_over) {
  quay__pool_region *found = NULL;
  quay__lock_acquire(&pool->lock);
  while (found == NULL && *inout_number < pool->region_count) {
    quay__pool_region *const region = pool->regions[(*inout_number)++];
    if (region != NULL && !quay__pool_is_current(pool, region) && region->live == UINT64_MAX)
      found = region;
  }
  if (found != NULL)
    *out_over = make_stale(pool, found);
  quay__lock_release(&pool->lock);
  return found;
}

/* From here on no memory of an older generation is handed out. */
static void begin_generation(quay__pool *pool) {
  const uint64_t generation = quay__device_generation(pool->allocator->device);
  quay__lock_acquire(&pool->lock);
  if (atomic_load_explicit(&pool->generation, memory_order_relaxed) != generation) {
    pool->used = 0;
    pool->peak_used = 0;
    pool->committed = 0;
    atomic_store_explicit(&pool->generation, generation, memory_order_release);
  }
  quay__lock_release(&pool->lock);
}

void quay__pool_renew(quay__pool *pool) {
  begin_generation(pool);
  quay__pool_flush(pool);
  (void)quay__pool_poll(pool, NULL);
  uint32_t number = 0;
  bool over = false;
  quay__pool_region *region;
  while ((region = next_stale(pool, &number, &over)) != NULL) {
    if (over)
      end_stale(pool, region);
  }
}
