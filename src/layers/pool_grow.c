/* More memory for the pool: where it goes and what is given up for it.
 *
 * A plan is made under the lock: the extents that the block will consist of, some of which have no
 * memory yet, and free memory elsewhere that is given back for it, so that the pool holds little
 * more than the program ever needed at once. Both are taken then, so that nobody else sees them. It
 * is carried out without the lock, and its result entered under it. */
#include <stdio.h>

#include "core/checked.h"
#include "core/error.h"
#include "core/os.h"
#include "layers/pool_impl.h"

enum {
  PARTS = 8,
  VICTIMS = 32,
  LOOK_AT = 8, /* free extents that could be made larger */
  SPARE_EXTENTS = 2 * (PARTS + VICTIMS) + 16,
  ROUNDS = 64, /* of an allocation that finds no memory, while others have some in their hands */
};

#define MIB ((uint64_t)1 << 20)
/* How long others are waited for that may be without a processor, in nanoseconds. */
#define PATIENCE      ((uint64_t)200 * 1000 * 1000)
#define LEAST_BLOCK   (2 * MIB)
#define LARGEST_BLOCK (256 * MIB)

typedef struct part {
  quay__extent *extent; /* taken */
  bool bare;
} part;

typedef struct plan {
  uint64_t begin, end; /* of the parts, in their region */
  uint64_t bare_bytes; /* to be committed */
  uint64_t piece;      /* bytes of one commit at most */
  part parts[PARTS];
  uint32_t part_count;
  quay__extent *victims[VICTIMS];
  uint32_t victim_count;
  uint64_t victim_bytes;
} plan;

/* A place that was found: [begin, end) of the region of `extent`, all of it free. */
typedef struct place {
  quay__extent *lowest; /* the free extent that holds `begin` */
  uint64_t begin, end;
  uint64_t bare_bytes;
} place;

/* Places. */

static bool is_free_for(const quay__extent *extent, uint32_t own_set) {
  return extent != NULL && (extent->set == QUAY__POOL_READY || extent->set == QUAY__POOL_BARE ||
                            (own_set != 0 && extent->set == own_set));
}

/* Bytes of [begin, end) without memory, in whole pages; walks up from the extent that holds begin.
 * False: not all of it is free, or in too many parts. */
static bool measure(const quay__pool *pool, place *candidate, uint32_t own_set) {
  const quay__extent *each = candidate->lowest;
  candidate->bare_bytes = 0;
  for (uint32_t parts = 0; parts < PARTS && is_free_for(each, own_set); parts++) {
    const uint64_t each_end = each->offset + each->size;
    if (each->set == QUAY__POOL_BARE) {
      const uint64_t from = quay__align_down(quay__max(candidate->begin, each->offset), pool->page);
      uint64_t to;
      if (!quay__align_up(quay__min(candidate->end, each_end), pool->page, &to))
        return false;
      candidate->bare_bytes += to - from;
    }
    if (each_end >= candidate->end)
      return true;
    each = each->upper;
  }
  return false;
}

static void keep_better(const quay__pool *pool, place *best, place candidate, uint32_t own_set) {
  if (measure(pool, &candidate, own_set) &&
      (best->lowest == NULL || candidate.bare_bytes < best->bare_bytes))
    *best = candidate;
}

/* A block that begins in a free extent and reaches upwards, or ends in it and begins below. */
static void try_around(const quay__pool *pool, quay__extent *extent, const quay__pool_want *want,
                       uint32_t own_set, place *best) {
  place up = {.lowest = extent};
  if (quay__align_up(extent->offset, want->alignment, &up.begin) &&
      up.begin < extent->offset + extent->size && quay__add(up.begin, want->size, &up.end))
    keep_better(pool, best, up, own_set);
  const uint64_t end = extent->offset + extent->size;
  if (end < want->size)
    return;
  place down = {.lowest = extent, .begin = quay__align_down(end - want->size, want->alignment)};
  down.end = down.begin + want->size;
  while (down.lowest->offset > down.begin && is_free_for(down.lowest->lower, own_set))
    down.lowest = down.lowest->lower;
  if (down.lowest->offset <= down.begin && down.end > extent->offset)
    keep_better(pool, best, down, own_set);
}

/* With as little new memory as a few looks find. */
static place find_place(const quay__pool *pool, const quay__pool_want *want) {
  const quay__offsets *const arena = &pool->arenas[want->arena];
  const uint32_t own_set = want->stream != 0 ? quay__pool_stream_set(pool, want->stream) : 0;
  place best = {.lowest = NULL};
  place fresh = {.lowest = NULL};
  fresh.lowest =
      quay__offsets_find(arena, QUAY__POOL_BARE, want->size, want->alignment, &fresh.begin);
  if (fresh.lowest != NULL) {
    fresh.end = fresh.begin + want->size;
    keep_better(pool, &best, fresh, own_set);
  }
  uint32_t seen = 0;
  for (quay__extent *each = quay__offsets_largest(arena, QUAY__POOL_READY);
       each != NULL && seen < LOOK_AT; each = quay__offsets_next_smaller(arena, each), seen++)
    try_around(pool, each, want, own_set, &best);
  return best;
}

/* Takes the place: the parts that there is memory for as far as it reaches, bare ones in pages, and
 * a unit at least. */
static void take_place(quay__pool *pool, const place *found, plan *out) {
  const uint64_t unit = quay__pool_least_commit(pool, pool->regions[found->lowest->region]->arena);
  quay__extent *each = found->lowest;
  out->begin = found->begin;
  out->end = found->end;
  do {
    quay__extent *const upper = each->upper;
    const bool bare = each->set == QUAY__POOL_BARE;
    uint64_t begin = quay__max(each->offset, found->begin);
    uint64_t end = quay__min(each->offset + each->size, found->end);
    if (bare) {
      begin = quay__align_down(begin, pool->page);
      (void)quay__align_up(end, pool->page, &end);
      end = quay__min(begin + quay__max(end - begin, unit), each->offset + each->size);
      out->bare_bytes += end - begin;
    }
    out->parts[out->part_count++] =
        (part){.extent = quay__pool_heap_part(pool, each, begin, end - begin), .bare = bare};
    each = upper;
  } while (each != NULL && each->offset < found->end);
}

/* Victims. */

static void take_victim(quay__pool *pool, quay__extent *extent, uint64_t most, plan *out) {
  const quay__pool_region *const region = pool->regions[extent->region];
  uint64_t begin, end;
  if (!quay__pool_is_current(pool, region) ||
      !quay__pool_whole_commits(pool, region, extent, most, &begin, &end))
    return;
  quay__pool_pay(pool);
  quay__extent *const victim = quay__pool_heap_part(pool, extent, begin, end - begin);
  out->victims[out->victim_count++] = victim;
  out->victim_bytes += victim->size;
}

/* Of extents of `least` bytes or more. */
static void take_victims_from(quay__pool *pool, uint64_t least, uint64_t bytes, plan *out) {
  const uint64_t welcome = quay__pool_welcome(pool);
  for (uint32_t i = QUAY__POOL_ARENAS; i-- > 0;) {
    const quay__offsets *const arena = &pool->arenas[i];
    quay__extent *next;
    uint32_t seen = 0;
    for (quay__extent *each = quay__offsets_largest(arena, QUAY__POOL_READY);
         each != NULL && each->size >= least && seen < 2 * VICTIMS; each = next, seen++) {
      if (out->victim_bytes >= bytes || out->victim_count == VICTIMS)
        return;
      next = quay__offsets_next_smaller(arena, each);
      uint64_t most;
      if (!quay__add(bytes - out->victim_bytes, welcome, &most))
        most = UINT64_MAX;
      take_victim(pool, each, most, out);
    }
  }
}

/* Free memory to give back, `bytes` at least: the largest extents first, which are the fewest. */
static void take_victims(quay__pool *pool, uint64_t bytes, plan *out) {
  take_victims_from(pool, pool->piece, bytes, out);
  if (pool->piece > pool->page && out->victim_bytes < bytes)
    take_victims_from(pool, pool->page, bytes, out);
}

static bool provision(quay__pool *pool) {
  for (uint32_t i = 0; i < QUAY__POOL_ARENAS; i++) {
    if (!quay__offsets_provision(&pool->arenas[i], SPARE_EXTENTS))
      return false;
  }
  return true;
}

/* Carrying out. */

/* Gives the bytes that are gone. */
static uint64_t end_victims(quay__pool *pool, plan *made) {
  bool gone[VICTIMS];
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < made->victim_count; i++) {
    const quay__extent *const victim = made->victims[i];
    gone[i] = quay__pool_decommit(pool, quay__pool_region_of(victim), victim->offset, victim->size);
  }
  quay__lock_acquire(&pool->lock);
  for (uint32_t i = 0; i < made->victim_count; i++) {
    quay__extent *const victim = made->victims[i];
    quay__offsets *const arena = &pool->arenas[quay__pool_region_of(victim)->arena];
    bytes += gone[i] ? victim->size : 0;
    quay__offsets_give(arena, victim, gone[i] ? QUAY__POOL_BARE : QUAY__POOL_READY);
  }
  pool->committed -= quay__min(bytes, pool->committed);
  quay__lock_release(&pool->lock);
  return bytes;
}

static quay_status commit_parts(quay__pool *pool, const plan *made, uint32_t *out_done) {
  for (*out_done = 0; *out_done < made->part_count; ++*out_done) {
    const part *const each = &made->parts[*out_done];
    if (!each->bare)
      continue;
    QUAY_TRY(quay__pool_commit(pool, quay__pool_region_of(each->extent), each->extent->offset,
                               each->extent->size, made->piece));
  }
  return QUAY_OK;
}

/* Gives a taken extent back that nobody has used. With the lock held. */
static void put_unused(quay__pool *pool, quay__extent *extent, bool bare) {
  if (bare) {
    quay__offsets_give(&pool->arenas[quay__pool_region_of(extent)->arena], extent, QUAY__POOL_BARE);
  } else {
    quay__pool_heap_put(pool, extent);
  }
}

static void undo(quay__pool *pool, const plan *made, uint32_t done) {
  quay__lock_acquire(&pool->lock);
  for (uint32_t i = 0; i < made->part_count; i++) {
    const bool bare = made->parts[i].bare && i >= done;
    if (made->parts[i].bare && bare)
      pool->committed -= quay__min(made->parts[i].extent->size, pool->committed);
    put_unused(pool, made->parts[i].extent, bare);
  }
  quay__lock_release(&pool->lock);
}

/* One extent of the parts, less what lies outside of what was wanted. */
static quay__extent *join_parts(quay__pool *pool, const plan *made) {
  quay__extent *whole = made->parts[0].extent;
  quay__pool_region *const region = quay__pool_region_of(whole);
  quay__offsets *const arena = &pool->arenas[region->arena];
  for (uint32_t i = 1; i < made->part_count; i++) {
    quay__extent *const next = made->parts[i].extent;
    quay_event *const event = next->user;
    if (whole->user == NULL) {
      whole->user = event;
    } else if (event != NULL) {
      /* Of one stream: the later one stands for both. */
      const bool later = quay__event_covers(event, whole->user);
      quay__event_release_later(later ? whole->user : event, &pool->dead);
      whole->user = later ? event : whole->user;
    }
    whole = quay__offsets_join(arena, whole, next);
  }
  if (made->end < whole->offset + whole->size) {
    quay__extent *const above = quay__offsets_cut(arena, whole, made->end);
    above->owner = region;
    put_unused(pool, above, false);
  }
  if (made->begin > whole->offset) {
    quay__extent *const below = whole;
    whole = quay__offsets_cut(arena, whole, made->begin);
    whole->owner = region;
    whole->user = below->user;
    below->user = NULL;
    put_unused(pool, below, false);
  }
  return whole;
}

static quay_status carry_out(quay__pool *pool, plan *made, quay__extent **out_extent) {
  if (made->victim_count > 0)
    (void)end_victims(pool, made);
  uint32_t done = 0;
  const quay_status status = commit_parts(pool, made, &done);
  if (status != QUAY_OK) {
    undo(pool, made, done);
    return status;
  }
  quay__lock_acquire(&pool->lock);
  *out_extent = join_parts(pool, made);
  quay__pool_count_used(pool, (*out_extent)->size);
  quay__lock_release(&pool->lock);
  return QUAY_OK;
}

quay_status quay__pool_fail_limit(const quay__pool *pool, uint64_t size) {
  return quay_error_set(QUAY_STATUS_LIMIT_EXCEEDED, "pool", 0, NULL,
                        "%llu bytes more would be above the pool's limit of %llu bytes (max=)",
                        (unsigned long long)size, (unsigned long long)pool->max_bytes);
}

/* By pages. `*out_extent` NULL and OK: there is address space now, try again. */
static quay_status grow_pages(quay__pool *pool, const quay__pool_want *want,
                              quay__extent **out_extent) {
  plan made = {.part_count = 0};
  *out_extent = NULL;
  quay__lock_acquire(&pool->lock);
  const bool room = provision(pool);
  made.piece = quay__pool_largest_commit(pool);
  const place found = room ? find_place(pool, want) : (place){.lowest = NULL};
  bool above_limit = false;
  if (found.lowest != NULL) {
    take_place(pool, &found, &made);
    pool->committed += made.bare_bytes;
    uint64_t target = quay__min(quay__pool_target(pool, want->size), pool->max_bytes);
    if (made.bare_bytes > 0 && pool->committed > target && quay__pool_is_too_dear(pool))
      target = quay__min(quay__pool_target(pool, want->size), pool->max_bytes);
    if (made.bare_bytes > 0 && pool->committed > target)
      take_victims(pool, pool->committed - target, &made);
    above_limit = pool->committed - quay__min(made.victim_bytes, pool->committed) > pool->max_bytes;
  }
  quay__lock_release(&pool->lock);
  if (!room)
    return quay__fail_out_of_memory(SPARE_EXTENTS * sizeof(quay__extent), "the extents of a pool");
  if (found.lowest == NULL)
    return quay__pool_region_reserve(pool, want);
  if (above_limit) {
    (void)end_victims(pool, &made);
    undo(pool, &made, 0);
    return quay__pool_fail_limit(pool, made.bare_bytes);
  }
  return carry_out(pool, &made, out_extent);
}

/* By blocks. */

static uint64_t block_size(const quay__pool *pool, const quay__pool_want *want) {
  if (pool->mode == QUAY__POOL_WHOLE)
    return want->size;
  uint64_t size = pool->block_bytes;
  if (size == 0) {
    size = quay__max(LEAST_BLOCK,
                     quay__min(quay__pool_power_below(pool->committed >> 4), LARGEST_BLOCK));
  }
  if (want->arena == QUAY__POOL_TINY)
    size = quay__min(size, quay__max(LEAST_BLOCK / 8, size / 8));
  return quay__max(size, want->size);
}

/* With the lock held: a block of which nothing is in use, the largest first; out of the
 * book-keeping. NULL: there is none. */
static quay__pool_region *leave_free_block(quay__pool *pool) {
  for (uint32_t i = QUAY__POOL_ARENAS; i-- > 0;) {
    const quay__offsets *const arena = &pool->arenas[i];
    uint32_t seen = 0;
    for (quay__extent *each = quay__offsets_largest(arena, QUAY__POOL_READY);
         each != NULL && seen < 4 * VICTIMS;
         each = quay__offsets_next_smaller(arena, each), seen++) {
      quay__pool_region *const region = pool->regions[each->region];
      if (each->size != region->size || !quay__pool_is_current(pool, region))
        continue;
      pool->committed -= quay__min(region->size, pool->committed);
      quay__pool_region_leave(pool, region);
      return region;
    }
  }
  return NULL;
}

/* Frees blocks until the pool holds at most `target` bytes. */
static uint64_t end_free_blocks(quay__pool *pool, uint64_t target) {
  uint64_t bytes = 0;
  for (;;) {
    quay__lock_acquire(&pool->lock);
    quay__pool_region *const region = pool->committed > target ? leave_free_block(pool) : NULL;
    quay__lock_release(&pool->lock);
    if (region == NULL)
      return bytes;
    bytes += region->size;
    quay__pool_region_end(pool, region, NULL, 0);
  }
}

static quay_status take_block(quay__pool *pool, const quay__pool_want *want, uint64_t size,
                              quay__extent **out_extent) {
  if (!quay__pool_charge(pool, size))
    return quay__pool_fail_limit(pool, size);
  const quay_status status = quay__pool_region_block(pool, want, size, out_extent);
  if (status != QUAY_OK)
    quay__pool_uncharge(pool, size);
  return status;
}

static quay_status grow_block(quay__pool *pool, const quay__pool_want *want,
                              quay__extent **out_extent) {
  quay__lock_acquire(&pool->lock);
  const uint64_t size = block_size(pool, want);
  const uint64_t most = quay__max(quay__pool_target(pool, want->size), pool->committed / 8 * 9);
  const uint64_t limit = quay__min(most, pool->max_bytes);
  uint64_t target = limit > size ? limit - size : 0;
  if (pool->committed <= target)
    target = UINT64_MAX;
  quay__lock_release(&pool->lock);
  if (target != UINT64_MAX)
    (void)end_free_blocks(pool, target);
  quay_status status = take_block(pool, want, size, out_extent);
  /* A large block can be too much where a small one is not. */
  if (status != QUAY_OK && size > want->size)
    status = take_block(pool, want, want->size, out_extent);
  return status;
}

static uint64_t end_free_pages(quay__pool *pool) {
  uint64_t bytes = 0;
  for (;;) {
    plan made = {.part_count = 0};
    quay__lock_acquire(&pool->lock);
    if (provision(pool))
      take_victims(pool, UINT64_MAX, &made);
    quay__lock_release(&pool->lock);
    const uint64_t gone = made.victim_count > 0 ? end_victims(pool, &made) : 0;
    if (gone == 0) /* what can't be given back would be tried for ever */
      return bytes;
    bytes += gone;
  }
}

uint64_t quay__pool_release_free(quay__pool *pool) {
  quay__pool_move_begin(pool);
  const uint64_t bytes =
      pool->mode == QUAY__POOL_PAGES ? end_free_pages(pool) : end_free_blocks(pool, 0);
  quay__pool_move_end(pool);
  return bytes;
}

/* Out of memory. */

static bool is_out_of_memory(quay_status status) {
  return status == QUAY_STATUS_OUT_OF_HOST_MEMORY || status == QUAY_STATUS_OUT_OF_DEVICE_MEMORY ||
         status == QUAY_STATUS_LIMIT_EXCEEDED || status == QUAY_STATUS_IO;
}

/* Adds to the inner allocator's error, which has the device's own figures, those of the pool. */
static quay_status fail_exhausted(quay__pool *pool, const quay__pool_want *want) {
  quay__error_state inner;
  quay__error_save(&inner);
  quay_stats stats;
  quay__statistics_read(&pool->allocator->statistics, &stats);
  uint64_t largest = 0;
  quay__lock_acquire(&pool->lock);
  for (uint32_t i = 0; i < QUAY__POOL_ARENAS; i++)
    largest = quay__max(largest, quay__offsets_largest_size(&pool->arenas[i], QUAY__POOL_READY));
  const uint64_t reserved = pool->committed;
  quay__lock_release(&pool->lock);
  return quay_error_set(inner.status, "pool", inner.native_code, inner.native_name,
                        "pool: can't allocate %llu bytes: %llu bytes are live, %llu are reserved, "
                        "the largest free block has %llu: %s",
                        (unsigned long long)want->size, (unsigned long long)stats.live_bytes,
                        (unsigned long long)reserved, (unsigned long long)largest, inner.message);
}

static quay_status grow_until(quay__pool *pool, const quay__pool_want *want,
                              quay__extent **out_extent) {
  if (pool->mode != QUAY__POOL_PAGES)
    return grow_block(pool, want, out_extent);
  QUAY_TRY(grow_pages(pool, want, out_extent));
  while (*out_extent == NULL)
    QUAY_TRY(grow_pages(pool, want, out_extent));
  return QUAY_OK;
}

static quay_status grow_once(quay__pool *pool, const void *want, quay__extent **out_extent) {
  quay__pool_move_begin(pool);
  const quay_status status = grow_until(pool, want, out_extent);
  quay__pool_move_end(pool);
  return status;
}

void quay__pool_give_back(quay__pool *pool) {
  uint64_t bytes = 0;
  (void)quay__pool_release_free(pool);
  quay__error_shield();
  (void)pool->inner->vtable.trim(pool->inner, &bytes); /* what follows fails by itself */
  quay__error_unshield();
}

static uint64_t given_so_far(quay__pool *pool) {
  quay__lock_acquire(&pool->lock);
  const uint64_t given = pool->given;
  quay__lock_release(&pool->lock);
  return given;
}

/* Whether others had free memory in their hands; waits until they have none, but not after
 * `deadline`. */
static bool had_moving(quay__pool *pool, uint64_t deadline) {
  if (quay__pool_tally_read(&pool->moving, memory_order_acquire) == 0)
    return false;
  do {
    quay__os_yield();
  } while (quay__pool_tally_read(&pool->moving, memory_order_acquire) != 0 &&
           quay__os_nanoseconds() < deadline);
  return true;
}

/* Meanwhile threads keep nothing. What others give back after it was looked for, or had in their
 * hands then, is looked for again: a few times, since they may be without end. */
static quay_status rescue(quay__pool *pool, quay__pool_attempt *attempt, const void *want,
                          quay__extent **out_extent) {
  const uint64_t deadline = quay__os_nanoseconds() + PATIENCE;
  quay_status status;
  uint32_t round = 0;
  bool again;
  quay__pool_tally_up(&pool->starving);
  do {
    const uint64_t given = given_so_far(pool);
    quay__pool_flush(pool);
    quay__pool_wait(pool);
    status = attempt(pool, want, out_extent);
    again =
        is_out_of_memory(status) && ++round < ROUNDS &&
        (had_moving(pool, deadline) || quay__pool_has_kept(pool) || given_so_far(pool) != given);
  } while (again);
  quay__pool_tally_down(&pool->starving, memory_order_relaxed);
  return status;
}

static quay_status take_or_grow(quay__pool *pool, const void *want, quay__extent **out_extent) {
  if (quay__pool_heap_take(pool, want, NULL, 0, out_extent, 1) == 1)
    return QUAY_OK;
  quay__pool_give_back(pool);
  return grow_once(pool, want, out_extent);
}

/* The first failure is not the program's to see. */
quay_status quay__pool_try(quay__pool *pool, quay__pool_attempt *first, quay__pool_attempt *last,
                           const void *want, quay__extent **out_extent) {
  quay__error_shield();
  const quay_status status = first(pool, want, out_extent);
  quay__error_unshield();
  if (status == QUAY_OK)
    return QUAY_OK;
  if (!is_out_of_memory(status))
    return first(pool, want, out_extent);
  quay__error_state before;
  quay__error_save(&before);
  QUAY_TRY(rescue(pool, last, want, out_extent));
  quay__error_restore(&before);
  return QUAY_OK;
}

quay_status quay__pool_grow(quay__pool *pool, const quay__pool_want *want,
                            quay__extent **out_extent) {
  /* What can never be had is no reason to reserve addresses for it, or to give up what is kept. */
  const quay_status status = want->size > pool->max_bytes
                                 ? quay__pool_fail_limit(pool, want->size)
                                 : quay__pool_try(pool, grow_once, take_or_grow, want, out_extent);
  return is_out_of_memory(status) ? fail_exhausted(pool, want) : status;
}
