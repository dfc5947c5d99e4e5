/* How much memory the pool takes at a time, may hold, and gives back. All of it with the pool's
 * lock held; nothing is done here. */
#include "core/checked.h"
#include "layers/pool_impl.h"

#define MIB ((uint64_t)1 << 20)
/* A driver's calls cost as much for a small handle as for a large one, so that for a pool of
 * several gigabytes the usual ones would be most of a first pass. */
#define FIRST_UNIT   (24 * MIB)
#define LARGEST_UNIT (64 * MIB)
#define FEW_UNITS    (1024 * MIB)
#define MANY         28
/* A large block may be a commit of its own. */
#define LARGEST_COMMIT (32 * MIB)
/* The pool may hold so much more than the program needed at most. */
#define SLACK_SHIFT_TIGHT 8
#define SLACK_SHIFT       6
#define LEAST_SLACK       MIB
/* Handles that may go back with those that have to: blocks lie better in new ones than around what
 * is left of a free extent. */
#define WELCOME_SHIFT_TIGHT 2

/* What a piece that is given back may cost, in allocations of the program since the last one: where
 * more is given back than that, the pool may hold more, up to a share of the peak. With the slack
 * that is below a twentieth (kept tight, a fiftieth) of it. */
#define COST_TIGHT        8
#define COST              48
#define EXTRA_SHIFT_TIGHT 7
#define EXTRA_SHIFT       5
#define EXTRA_STEP_SHIFT  8
#define CREDIT_PIECES     64
/* Where a piece is a handle of the driver's. */
#define COST_HANDLE    256
#define CREDIT_HANDLES 16

/* Where there is little memory, fragments must go back in small pieces: a commit of which a part is
 * in use stays. */
static uint64_t finest(const quay__pool *pool) {
  const uint64_t share =
      quay__pool_power_below(quay__min(pool->max_bytes, pool->device_bytes) >> 8);
  return quay__max(share, pool->page);
}

/* Bytes of an arena that there is memory for, or is about to be. */
static uint64_t bytes_there(const quay__offsets *arena) {
  const uint64_t bare = arena->sets[QUAY__POOL_BARE]->bytes;
  return arena->bytes - quay__min(bare, arena->bytes);
}

/* Where commits are what costs, bytes of one at least: they grow with what there is, and what is
 * for small blocks with what these have, since programs have few of them. */
static uint64_t unit_of(const quay__pool *pool, quay__pool_arena arena) {
  if (pool->block_bytes != 0)
    return quay__max(pool->block_bytes, pool->page);
  uint64_t share = pool->committed >> (pool->tight ? 9 : 3);
  if (arena == QUAY__POOL_SMALL)
    share = quay__min(share, 8 * bytes_there(&pool->arenas[arena]));
  if (arena == QUAY__POOL_TINY)
    share = quay__min(share, bytes_there(&pool->arenas[arena]));
  uint64_t most = FIRST_UNIT;
  if (pool->committed > FEW_UNITS)
    most = quay__min(quay__align_down(pool->committed / MANY, pool->page), LARGEST_UNIT);
  const uint64_t unit = quay__min(quay__min(quay__pool_power_below(share), most), finest(pool));
  return quay__max(unit, pool->page);
}

uint64_t quay__pool_least_commit(const quay__pool *pool, quay__pool_arena arena) {
  if (quay__pool_tally_read(&pool->starving, memory_order_relaxed) != 0)
    return pool->page;
  return pool->whole_pages ? unit_of(pool, arena) : pool->piece;
}

uint64_t quay__pool_largest_commit(const quay__pool *pool) {
  const uint64_t unit = unit_of(pool, QUAY__POOL_LARGE);
  if (pool->tight || pool->block_bytes != 0)
    return unit;
  const uint64_t most = quay__max(LARGEST_COMMIT, quay__pool_power_below(pool->committed >> 5));
  return quay__max(unit, quay__min(most, finest(pool)));
}

static uint64_t slack_of(const quay__pool *pool, uint64_t peak) {
  const uint64_t slack = peak >> (pool->tight ? SLACK_SHIFT_TIGHT : SLACK_SHIFT);
  return quay__max(slack, quay__max(LEAST_SLACK, pool->page));
}

uint64_t quay__pool_target(const quay__pool *pool, uint64_t more) {
  const uint64_t peak = quay__max(pool->peak_used, pool->used + more);
  return peak + slack_of(pool, peak) + pool->extra;
}

uint64_t quay__pool_welcome(const quay__pool *pool) {
  if (!pool->whole_pages)
    return slack_of(pool, pool->peak_used);
  return pool->tight ? pool->peak_used >> WELCOME_SHIFT_TIGHT : 0;
}

static uint64_t cost_of(const quay__pool *pool) {
  if (pool->tight)
    return COST_TIGHT;
  return pool->whole_pages ? COST_HANDLE : COST;
}

bool quay__pool_is_too_dear(quay__pool *pool) {
  const uint64_t cost = cost_of(pool);
  const uint64_t most = pool->peak_used >> (pool->tight ? EXTRA_SHIFT_TIGHT : EXTRA_SHIFT);
  if (pool->credit >= cost || pool->extra >= most)
    return false;
  pool->extra = quay__min(most, pool->extra + (pool->peak_used >> EXTRA_STEP_SHIFT) + pool->page);
  return true;
}

void quay__pool_earn(quay__pool *pool, uint64_t allocations) {
  const uint64_t pieces = pool->whole_pages && !pool->tight ? CREDIT_HANDLES : CREDIT_PIECES;
  const uint64_t most = pieces * cost_of(pool);
  if (pool->credit < most)
    pool->credit = quay__min(most, pool->credit + allocations);
}

void quay__pool_pay(quay__pool *pool) {
  pool->credit -= quay__min(cost_of(pool), pool->credit);
}
