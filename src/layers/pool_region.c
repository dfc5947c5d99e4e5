/* What the pool takes from the inner allocator: reservations whose pages come and go, blocks, and
 * single allocations with options of their own. The pool's lock is not held here, but where a
 * comment says so. */
#include <string.h>

#include "core/checked.h"
#include "core/error.h"
#include "core/os.h"
#include "layers/pool_impl.h"

/* quay__pool_region.commits, for each page: 0, nothing is known to be there; of the first page of a
 * commit its pages; of a later one LATER and the distance to the first. */
#define LATER 0x80000000u

enum {
  LEAST_RESERVE = 64 << 20
};

static quay_status new_region(quay__pool *pool, quay__pool_arena arena, uint64_t size,
                              quay__pool_region **out_region) {
  quay__pool_region *const region = quay__os_calloc(1, sizeof *region);
  if (region == NULL)
    return quay__fail_out_of_memory(sizeof *region, "a region of a pool");
  region->arena = arena;
  region->size = size;
  region->live = UINT64_MAX;
  region->generation = atomic_load_explicit(&pool->generation, memory_order_relaxed);
  *out_region = region;
  return QUAY_OK;
}

/* With the lock held: room in the table of regions. */
static bool make_room(quay__pool *pool) {
  if (pool->free_count > 0 || pool->region_count < pool->region_room)
    return true;
  const uint32_t room = pool->region_room == 0 ? 16 : 2 * pool->region_room;
  quay__pool_region **const regions =
      quay__os_realloc((void *)pool->regions, room * sizeof(quay__pool_region *));
  if (regions == NULL)
    return false;
  pool->regions = regions;
  uint32_t *const numbers = quay__os_realloc(pool->free_numbers, room * sizeof *numbers);
  if (numbers == NULL)
    return false;
  pool->free_numbers = numbers;
  pool->region_room = room;
  return true;
}

/* Enters a region as one extent of a set; takes the first `take` bytes of it at once, if any. */
static quay_status enter(quay__pool *pool, quay__pool_region *region, uint32_t set, uint64_t take,
                         quay__extent **out_taken) {
  quay__offsets *const arena = &pool->arenas[region->arena];
  quay__pool_poison_begin(pool, region);
  if (set == QUAY__POOL_READY)
    quay__pool_poison_range(region, 0, region->size);
  quay__lock_acquire(&pool->lock);
  const bool room = make_room(pool) && quay__offsets_provision(arena, 4);
  if (room) {
    region->number =
        pool->free_count > 0 ? pool->free_numbers[--pool->free_count] : pool->region_count++;
    pool->regions[region->number] = region;
    region->first = quay__offsets_add(arena, region->number, region->size, set);
    if (take != 0) {
      *out_taken = quay__pool_heap_part(pool, region->first, 0, take);
      quay__pool_count_used(pool, take);
    }
  }
  quay__lock_release(&pool->lock);
  if (room)
    return QUAY_OK;
  quay__pool_poison_end(region);
  quay__free(pool->inner, &region->raw, NULL, 0);
  return quay__fail_out_of_memory(sizeof *region, "the regions of a pool");
}

static void destroy(quay__pool_region *region) {
  quay__os_free(region->commits);
  quay__os_free(region);
}

/* Enters a region whose memory is there or not, as `status` says; it is gone on error. */
static quay_status enter_if(quay_status status, quay__pool *pool, quay__pool_region *region,
                            uint32_t set, uint64_t take, quay__extent **out_taken) {
  if (status == QUAY_OK)
    status = enter(pool, region, set, take, out_taken);
  if (status != QUAY_OK)
    destroy(region);
  return status;
}

/* Reservations. */

static quay_status reserve(quay__pool *pool, uint64_t least, quay__pool_region *region) {
  uint64_t size = quay__max(least, pool->reserve_bytes);
  for (;;) {
    const quay_status status = quay__reserve(pool->inner, size, pool->alignment, &region->raw);
    if (status == QUAY_OK) {
      region->size = size;
      return QUAY_OK;
    }
    /* A limit on address space is no reason to fail where less will do. */
    if (size <= quay__max(least, LEAST_RESERVE))
      return status;
    size = quay__max(quay__max(least, LEAST_RESERVE), quay__align_down(size / 2, pool->page));
  }
}

/* Advice only: without it the memory is as good. */
static void advise_huge_pages(quay__pool *pool, const quay__pool_region *region) {
  quay_allocator *const inner = pool->inner;
  quay__error_shield();
  if (inner->vtable.advise(inner, &region->raw, 0, region->size, QUAY_ADVICE_HUGE_PAGES) != QUAY_OK)
    quay_log(QUAY_LOG_INFO, "pool: no huge pages: %s", quay_last_error()->message);
  quay__error_unshield();
}

quay_status quay__pool_region_reserve(quay__pool *pool, const quay__pool_want *want) {
  uint64_t least;
  if (!quay__add(want->size, want->alignment, &least) ||
      !quay__align_up(least, pool->page, &least)) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT,
                      "%llu bytes aligned to %llu are more than an address can tell",
                      (unsigned long long)want->size, (unsigned long long)want->alignment);
  }
  quay__pool_region *region = NULL;
  QUAY_TRY(new_region(pool, want->arena, 0, &region));
  quay_status status = reserve(pool, least, region);
  if (status == QUAY_OK && pool->whole_pages) {
    region->commits = quay__os_calloc(region->size / pool->page, sizeof *region->commits);
    if (region->commits == NULL) {
      quay__free(pool->inner, &region->raw, NULL, 0);
      status = quay__fail_out_of_memory(region->size / pool->page * sizeof *region->commits,
                                        "the pages of a pool");
    }
  }
  if (status == QUAY_OK && want->arena == QUAY__POOL_LARGE)
    advise_huge_pages(pool, region);
  return enter_if(status, pool, region, QUAY__POOL_BARE, 0, NULL);
}

/* Commits. */

static quay_status commit_one(quay__pool *pool, quay__pool_region *region, uint64_t offset,
                              uint64_t size) {
  quay_allocator *const inner = pool->inner;
  quay__pool_unpoison_range(region, offset, size); /* the backend may write to it */
  const quay_status status = inner->vtable.commit(inner, &region->raw, offset, size);
  quay__pool_poison_range(region, offset, size);
  if (status != QUAY_OK)
    return status;
  if (region->commits == NULL)
    return QUAY_OK;
  const uint64_t first = offset / pool->page;
  const uint64_t count = size / pool->page;
  region->commits[first] = (uint32_t)count;
  for (uint64_t i = 1; i < count; i++)
    region->commits[first + i] = LATER | (uint32_t)i;
  return QUAY_OK;
}

quay_status quay__pool_commit(quay__pool *pool, quay__pool_region *region, uint64_t offset,
                              uint64_t size, uint64_t piece) {
  const uint64_t most = pool->whole_pages ? piece : size;
  for (uint64_t done = 0; done < size;) {
    const uint64_t part = quay__min(most, size - done);
    const quay_status status = commit_one(pool, region, offset + done, part);
    if (status != QUAY_OK) {
      if (done > 0)
        (void)quay__pool_decommit(pool, region, offset, done);
      return status;
    }
    done += part;
  }
  return QUAY_OK;
}

bool quay__pool_decommit(quay__pool *pool, quay__pool_region *region, uint64_t offset,
                         uint64_t size) {
  quay_allocator *const inner = pool->inner;
  quay__error_state saved;
  quay__error_save(&saved);
  const quay_status status = inner->vtable.decommit(inner, &region->raw, offset, size);
  if (status == QUAY_OK && region->commits != NULL)
    memset(&region->commits[offset / pool->page], 0, size / pool->page * sizeof *region->commits);
  if (status != QUAY_OK) {
    quay_log(QUAY_LOG_ERROR, "pool: %llu bytes can't be given back (%s)", (unsigned long long)size,
             quay_last_error()->message);
    quay__statistics_error(&pool->allocator->statistics);
  }
  quay__error_restore(&saved);
  return status == QUAY_OK;
}

bool quay__pool_whole_commits(const quay__pool *pool, const quay__pool_region *region,
                              const quay__extent *extent, uint64_t enough, uint64_t *out_begin,
                              uint64_t *out_end) {
  uint64_t begin, end;
  if (!quay__extent_pages(extent, pool->page, &begin, &end))
    return false;
  if (region->commits != NULL) {
    uint64_t page = begin / pool->page;
    const uint64_t end_page = end / pool->page;
    if ((region->commits[page] & LATER) != 0) {
      page -= region->commits[page] & ~LATER;
      page += region->commits[page];
    }
    const uint64_t enough_pages = enough / pool->page + (enough % pool->page != 0);
    uint64_t reach = page;
    while (reach < end_page && reach - page < enough_pages && region->commits[reach] != 0 &&
           reach + region->commits[reach] <= end_page)
      reach += region->commits[reach];
    begin = page * pool->page;
    end = reach * pool->page;
  } else if (end - begin > enough && quay__align_up(enough, pool->page, &enough)) {
    end = quay__min(end, begin + enough);
  }
  *out_begin = begin;
  *out_end = end;
  return begin < end;
}

/* Blocks. */

bool quay__pool_charge(quay__pool *pool, uint64_t size) {
  uint64_t after;
  quay__lock_acquire(&pool->lock);
  const bool fits = quay__add(pool->committed, size, &after) && after <= pool->max_bytes;
  if (fits)
    pool->committed = after;
  quay__lock_release(&pool->lock);
  return fits;
}

void quay__pool_uncharge(quay__pool *pool, uint64_t size) {
  quay__lock_acquire(&pool->lock);
  pool->committed -= quay__min(size, pool->committed);
  quay__lock_release(&pool->lock);
}

quay_status quay__pool_region_block(quay__pool *pool, const quay__pool_want *want, uint64_t size,
                                    quay__extent **out_taken) {
  quay__pool_region *region = NULL;
  QUAY_TRY(new_region(pool, want->arena, size, &region));
  const quay_alloc_request request = {
      .size = size,
      .alignment = quay__max(pool->alignment, pool->inner->alignment),
  };
  const quay_status status = quay__alloc(pool->inner, &request, &region->raw);
  return enter_if(status, pool, region, QUAY__POOL_READY, want->size, out_taken);
}

static quay_status take_direct(quay__pool *pool, const quay_alloc_request *request, uint64_t size,
                               quay__extent **out_taken) {
  quay__pool_region *region = NULL;
  QUAY_TRY(new_region(pool, QUAY__POOL_LARGE, size, &region));
  region->direct = true;
  const quay_status status = quay__alloc(pool->inner, request, &region->raw);
  return enter_if(status, pool, region, QUAY__POOL_READY, size, out_taken);
}

static quay_status direct(quay__pool *pool, const void *wanted, quay__extent **out_taken) {
  const quay_alloc_request *const request = wanted;
  const uint64_t granule = UINT64_C(1) << pool->granule_log2;
  uint64_t size;
  if (!quay__align_up(quay__max(request->size, 1), granule, &size))
    size = INT64_MAX & ~(granule - 1); /* refused by the inner one */
  if (!quay__pool_charge(pool, size))
    return quay__pool_fail_limit(pool, size);
  quay__pool_move_begin(pool);
  const quay_status status = take_direct(pool, request, size, out_taken);
  if (status != QUAY_OK)
    quay__pool_uncharge(pool, size);
  quay__pool_move_end(pool);
  return status;
}

static quay_status direct_after_all(quay__pool *pool, const void *wanted,
                                    quay__extent **out_taken) {
  quay__pool_give_back(pool);
  return direct(pool, wanted, out_taken);
}

quay_status quay__pool_direct(quay__pool *pool, const quay_alloc_request *request,
                              quay__extent **out_taken) {
  if (request->size > pool->max_bytes)
    return quay__pool_fail_limit(pool, request->size);
  return quay__pool_try(pool, direct, direct_after_all, request, out_taken);
}

/* Ending. */

/* With the lock held: takes a region out of the table, with its extents. */
void quay__pool_region_leave(quay__pool *pool, quay__pool_region *region) {
  quay__offsets_drop(&pool->arenas[region->arena], region->first);
  pool->regions[region->number] = NULL;
  pool->free_numbers[pool->free_count++] = region->number;
  region->first = NULL;
}

void quay__pool_region_end(quay__pool *pool, quay__pool_region *region, quay_event *const *pending,
                           size_t count) {
  quay__pool_poison_end(region);
  quay__free(pool->inner, &region->raw, pending, count);
  destroy(region);
}

void quay__pool_direct_end(quay__pool *pool, quay__pool_region *region, quay_event *const *pending,
                           size_t count) {
  quay__lock_acquire(&pool->lock);
  if (quay__pool_is_current(pool, region))
    pool->committed -= quay__min(region->size, pool->committed);
  quay__pool_region_leave(pool, region);
  quay__lock_release(&pool->lock);
  quay__pool_region_end(pool, region, pending, count);
}
