/* Staging: the ring of a copy, and its two legs. The first leg fills slots from the source; the
 * second one drains them, in order, into the destination. Draining is the calling thread's, so that
 * progress is told there; filling is a worker's, as long as one comes, and the calling thread's
 * where nothing is left to drain. So the copy never depends on a worker. The process's budget is in
 * staging_budget.c. */
#include "core/staging.h"

#include <pthread.h>

#include "core/checked.h"
#include "core/copy_threads.h"
#include "core/environment.h"
#include "core/error.h"
#include "core/lock.h"
#include "core/os.h"
#include "core/staging_budget.h"
#include "core/thread.h"
#include "core/workers.h"

/* Slots above it are whole pages, and begin on one: reading a file to an unaligned address halves
 * the rate. */
#define PAGE UINT64_C(4096)

#define SLOT_MAX  (UINT64_C(4) << 20)
#define SLOTS_MAX 4u

/* A copy of few slots' worth is cut finer, so that its legs overlap for most of the way: into
 * CHUNKS, unless they became smaller than this. */
#define CHUNK_MIN (UINT64_C(1) << 20)
#define CHUNKS    8u

/* What a copy inside another one takes where there is no room: over the budget, so little. */
#define NESTED_CHUNK (UINT64_C(64) << 10)

/* A copy that others wait for gives way after so many chunks. */
#define TURN 16u

/* EMPTY to FILLING to FILLED to EMPTY again; ABSENT: without memory. A filled slot is the calling
 * thread's alone, as is a filling one whoever's fills it. */
typedef enum slot_state {
  SLOT_ABSENT,
  SLOT_EMPTY,
  SLOT_FILLING,
  SLOT_FILLED,
} slot_state;

typedef struct staging_slot {
  slot_state state;
  unsigned char *memory;
  uint64_t at;   /* bytes into the copy */
  uint64_t size; /* bytes of the chunk that is in it */
} staging_slot;

typedef struct staging_ring {
  const quay__side *destination, *source;
  const quay_copy_options *options;
  quay__staging_plan plan;
  uint64_t size; /* of the copy, bytes */
  bool nested;   /* inside another staged copy */
  /* The calling thread's alone. */
  uint32_t slot_count;
  uint64_t drained; /* bytes that have arrived */
  bool moved;       /* bytes of the destination may have changed */
  uint32_t turn;    /* chunks since the copy last gave way */
  /* Guarded by QUAY__LOCK_STAGING. */
  staging_slot slots[SLOTS_MAX];
  uint64_t claimed; /* bytes that are, or were, in a staging_slot */
  bool failed;
  bool helper_failed; /* and first */
  pthread_cond_t filled;
  quay__job job;
} staging_ring;

static uint64_t whole_pages(uint64_t size) {
  return size > PAGE ? quay__align_down(size, PAGE) : size;
}

static uint64_t chunk_count(uint64_t size, uint64_t chunk) {
  return (size - 1) / chunk + 1;
}

static quay__staging_plan one_slot(uint64_t size, uint64_t allowed, uint64_t budget) {
  return (quay__staging_plan){
      .budget = budget,
      .chunk = quay__min(size, whole_pages(quay__min(SLOT_MAX, allowed))),
      .slots = 1,
      .threads = 1,
  };
}

quay_status quay__staging_plan_make(uint64_t size, const quay_copy_options *options,
                                    quay__staging_plan *out_plan) {
  uint64_t budget;
  uint32_t threads;
  QUAY_TRY(quay__environment_staging_bytes(&budget));
  QUAY_TRY(quay__copy_threads(&threads));
  uint64_t allowed = budget;
  if (options->max_staging_bytes != 0)
    allowed = quay__min(allowed, options->max_staging_bytes);

  const uint64_t slot_size = whole_pages(quay__min(SLOT_MAX, allowed / 2));
  if (threads == 1 || allowed < 2 * PAGE || size <= slot_size) {
    *out_plan = one_slot(size, allowed, budget);
    return QUAY_OK;
  }
  const uint64_t finer = quay__align_down(size / CHUNKS, PAGE) + PAGE;
  const uint64_t chunk = quay__min(quay__max(finer, CHUNK_MIN), slot_size);
  const uint64_t slots = quay__min(allowed / chunk, chunk_count(size, chunk));
  *out_plan = (quay__staging_plan){
      .budget = budget,
      .chunk = chunk,
      .slots = (uint32_t)quay__min(slots, SLOTS_MAX),
      .threads = 2,
  };
  return QUAY_OK;
}

/* Slots: their memory, for which the budget has been asked. */

static bool open_slot(staging_ring *ring) {
  unsigned char *memory = quay__os_aligned_alloc(PAGE, ring->plan.chunk);
  if (memory == NULL)
    return false;
  staging_slot *slot = ring->slots;
  quay__global_acquire(QUAY__LOCK_STAGING);
  while (slot->state != SLOT_ABSENT)
    slot++;
  slot->memory = memory;
  slot->state = SLOT_EMPTY;
  quay__global_release(QUAY__LOCK_STAGING);
  ring->slot_count++;
  return true;
}

/* The slot is absent: nobody else sees it any more. */
static void close_slot(staging_ring *ring, staging_slot *slot) {
  quay__os_free(slot->memory);
  slot->memory = NULL;
  ring->slot_count--;
  quay__staging_give_back(ring->plan.chunk);
}

static quay_status open_first_slot(staging_ring *ring) {
  quay__staging_plan *plan = &ring->plan;
  if (!ring->nested) {
    quay__staging_hold(plan->chunk, plan->budget);
  } else if (!quay__staging_try_hold(plan->chunk, plan->budget)) {
    plan->chunk = quay__min(plan->chunk, NESTED_CHUNK);
    plan->slots = 1;
    quay__staging_force_hold(plan->chunk);
  }
  ring->turn = 0;
  if (open_slot(ring))
    return QUAY_OK;
  quay__staging_give_back(plan->chunk);
  return quay__fail_out_of_memory(plan->chunk, "a staged copy");
}

/* More slots while there is room, and as many as the chunks that are left. */
static void grow(staging_ring *ring) {
  quay__staging_plan *plan = &ring->plan;
  const uint64_t left = chunk_count(ring->size - ring->drained, plan->chunk);
  while (ring->slot_count < quay__min(plan->slots, left) &&
         quay__staging_try_hold(plan->chunk, plan->budget)) {
    if (open_slot(ring))
      continue;
    quay__staging_give_back(plan->chunk);
    plan->slots = ring->slot_count; /* memory is short: do with what is there */
  }
}

static staging_slot *take_out_empty(staging_ring *ring) {
  staging_slot *found = NULL;
  quay__global_acquire(QUAY__LOCK_STAGING);
  for (uint32_t i = 0; i < SLOTS_MAX && found == NULL; i++) {
    if (ring->slots[i].state == SLOT_EMPTY)
      found = &ring->slots[i];
  }
  if (found != NULL)
    found->state = SLOT_ABSENT;
  quay__global_release(QUAY__LOCK_STAGING);
  return found;
}

/* Others wait for room: slots that are not in use are theirs; and the last one, too, from time to
 * time, for which this copy then stands in line again. */
static quay_status give_way(staging_ring *ring) {
  while (ring->slot_count > 1) {
    staging_slot *surplus = take_out_empty(ring);
    if (surplus == NULL)
      return QUAY_OK;
    close_slot(ring, surplus);
  }
  if (ring->nested || ring->turn < TURN)
    return QUAY_OK;
  staging_slot *last = take_out_empty(ring);
  if (last == NULL)
    return QUAY_OK;
  close_slot(ring, last);
  return open_first_slot(ring);
}

static quay_status adjust_slots(staging_ring *ring) {
  if (quay__staging_awaited())
    return give_way(ring);
  grow(ring);
  return QUAY_OK;
}

/* Legs. */

/* With the lock held: an empty slot becomes the next chunk's. NULL: there is none, or nothing is
 * left to fill. */
static staging_slot *claim(staging_ring *ring) {
  if (ring->failed || ring->claimed == ring->size)
    return NULL;
  for (uint32_t i = 0; i < SLOTS_MAX; i++) {
    staging_slot *slot = &ring->slots[i];
    if (slot->state != SLOT_EMPTY)
      continue;
    slot->state = SLOT_FILLING;
    slot->at = ring->claimed;
    slot->size = quay__min(ring->plan.chunk, ring->size - ring->claimed);
    ring->claimed += slot->size;
    return slot;
  }
  return NULL;
}

/* Chunks that could be claimed now. */
static uint64_t claimable(staging_ring *ring) {
  uint64_t empty = 0;
  quay__global_acquire(QUAY__LOCK_STAGING);
  for (uint32_t i = 0; i < SLOTS_MAX; i++)
    empty += ring->slots[i].state == SLOT_EMPTY;
  if (ring->claimed == ring->size)
    empty = 0;
  quay__global_release(QUAY__LOCK_STAGING);
  return empty;
}

/* The first leg of a chunk. */
static quay_status fill(staging_ring *ring, staging_slot *slot, bool by_helper) {
  const quay__side *source = ring->source;
  quay_allocator *from = source->allocator;
  const quay_status status =
      from->vtable.copy_out(from, source->raw, source->offset + slot->at, slot->memory, slot->size);
  quay__global_acquire(QUAY__LOCK_STAGING);
  slot->state = SLOT_FILLED;
  if (status != QUAY_OK && !ring->failed) {
    ring->failed = true;
    ring->helper_failed = by_helper;
  }
  pthread_cond_signal(&ring->filled);
  quay__global_release(QUAY__LOCK_STAGING);
  return status;
}

/* A worker's task. */
static quay_status help(void *context, uint64_t index) {
  staging_ring *ring = context;
  (void)index;
  quay__global_acquire(QUAY__LOCK_STAGING);
  staging_slot *slot = claim(ring);
  quay__global_release(QUAY__LOCK_STAGING);
  return slot != NULL ? fill(ring, slot, true) : QUAY_OK;
}

/* The second leg of a chunk. */
static quay_status drain(staging_ring *ring, staging_slot *slot) {
  const quay__side *destination = ring->destination;
  quay_allocator *to = destination->allocator;
  const uint64_t size = slot->size;
  quay__copy_enter();
  const quay_status status =
      to->vtable.copy_in(to, destination->raw, destination->offset + slot->at, slot->memory, size);
  if (status != QUAY_OK) {
    ring->moved = ring->moved || quay__copy_may_have_moved(status);
    return status;
  }
  ring->moved = true;
  quay__global_acquire(QUAY__LOCK_STAGING);
  slot->state = SLOT_EMPTY; /* from here on the helper's */
  quay__global_release(QUAY__LOCK_STAGING);
  ring->drained += size;
  ring->turn++;
  return QUAY_OK;
}

/* The slot that holds the chunk which is to arrive next, filled or filling; NULL: nobody has begun
 * it. */
static staging_slot *next_to_drain(staging_ring *ring) {
  for (uint32_t i = 0; i < SLOTS_MAX; i++) {
    staging_slot *slot = &ring->slots[i];
    if (slot->state >= SLOT_FILLING && slot->at == ring->drained)
      return slot;
  }
  return NULL;
}

static bool has_failed(staging_ring *ring) {
  return ring->failed || quay__workers_failed(&ring->job);
}

/* Waits for the next chunk, and fills it if nobody does. NULL: the copy has failed, and
 * `out_status` says how if it was here. */
static staging_slot *next_chunk(staging_ring *ring, quay_status *out_status) {
  *out_status = QUAY_OK;
  quay__global_acquire(QUAY__LOCK_STAGING);
  staging_slot *slot = next_to_drain(ring);
  const bool own = slot == NULL;
  if (own)
    slot = claim(ring);
  while (!own && slot->state == SLOT_FILLING && !has_failed(ring))
    quay__global_wait(QUAY__LOCK_STAGING, &ring->filled);
  const bool failed = has_failed(ring);
  quay__global_release(QUAY__LOCK_STAGING);
  if (failed)
    return NULL;
  if (own)
    *out_status = fill(ring, slot, false);
  return *out_status == QUAY_OK ? slot : NULL;
}

/* OK also when the helper has failed. */
static quay_status move_chunks(staging_ring *ring) {
  while (ring->drained < ring->size) {
    QUAY_TRY(adjust_slots(ring));
    if (ring->slot_count > 1)
      quay__workers_offer(&ring->job, claimable(ring));
    quay_status status;
    staging_slot *slot = next_chunk(ring, &status);
    if (slot == NULL)
      return status;
    QUAY_TRY(drain(ring, slot));
    QUAY_TRY(quay__copy_progress(ring->options, ring->drained, ring->size));
  }
  return QUAY_OK;
}

/* Stops the other leg and gives what failed first. A job that has lost its helper after all was
 * done, in the child of a fork, has not failed. */
static quay_status finish(staging_ring *ring, quay_status status) {
  quay__global_acquire(QUAY__LOCK_STAGING);
  ring->failed = ring->failed || status != QUAY_OK;
  const bool settled = ring->failed ? !ring->helper_failed : ring->drained == ring->size;
  quay__global_release(QUAY__LOCK_STAGING);
  quay__workers_close(&ring->job);
  return settled ? status : quay__workers_result(&ring->job);
}

quay_status quay__stage(const quay__side *destination, const quay__side *source, uint64_t size,
                        const quay__staging_plan *plan, const quay_copy_options *options,
                        bool *out_moved) {
  staging_ring ring = {
      .destination = destination,
      .source = source,
      .options = options,
      .plan = *plan,
      .size = size,
      .nested = quay__thread_in_staging,
      .filled = PTHREAD_COND_INITIALIZER,
  };
  QUAY_TRY(open_first_slot(&ring));
  quay__thread_in_staging = true;
  /* The helper takes one of the threads, and is one leg; this thread's leg has the others. */
  const uint32_t cap = options->max_threads;
  const uint32_t before = quay__copy_threads_cap(cap > 1 && plan->threads > 1 ? cap - 1 : cap);
  quay__workers_open(&ring.job, help, &ring);
  quay_status status = finish(&ring, move_chunks(&ring));
  quay__thread_in_staging = ring.nested;
  (void)quay__copy_threads_cap(before);
  for (uint32_t i = 0; i < SLOTS_MAX; i++) {
    if (ring.slots[i].memory != NULL)
      close_slot(&ring, &ring.slots[i]);
  }
  pthread_cond_destroy(&ring.filled);
  *out_moved = ring.moved;
  return status;
}
