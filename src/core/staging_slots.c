/* The slots of a staged copy: their memory, for which the budget is asked, and which chunk is in
 * which. */
#include "core/checked.h"
#include "core/error.h"
#include "core/lock.h"
#include "core/os.h"
#include "core/staging_budget.h"
#include "core/staging_memory.h"
#include "core/staging_ring.h"
#include "core/thread.h"

#define PAGE UINT64_C(4096)

/* What a copy inside another one takes over the budget where there is no room. And so large a slot
 * may be where the slots of others, which keep to the budget with it, leave no gap that fits. */
#define CHUNK_OVER (UINT64_C(64) << 10)

/* Where nobody has set the budget, it grows with the devices that copies are under way to or from,
 * up to so many times. */
#define BUDGETS_MAX 4u

/* A copy that others wait for gives way after so many chunks. */
#define TURN 16u

/* The process's, now. */
static uint64_t budget_of(const quay__staging_plan *plan) {
  const uint64_t devices = quay__min(quay__staging_devices(), BUDGETS_MAX);
  return plan->budget_grows ? plan->budget * devices : plan->budget;
}

/* How many slots the copy could use: what is left to do, and its share where others stage, too. */
static uint64_t slots_wanted(const quay__ring *ring, uint64_t arrived) {
  const quay__staging_plan *plan = &ring->plan;
  const uint64_t left = (ring->size - arrived - 1) / plan->chunk + 1;
  const uint64_t slots =
      quay__staging_devices() > 1 ? quay__max(plan->slots, plan->slots_beside) : plan->slots;
  const uint64_t share = quay__max(budget_of(plan) / quay__staging_copies() / plan->chunk, 1);
  const uint64_t fair = plan->pin != NULL ? share : slots;
  return quay__min(quay__min(slots, left), fair);
}

/* Where the memory of a slot may come from. */
typedef enum source {
  KEPT,          /* what is there */
  WITHIN_BUDGET, /* or is made, while there is room */
  OVER_BUDGET,   /* or even where there is none */
} source;

/* `room`: bytes, for which the copy has room in the budget. `wanted`: slots that it could use, this
 * one and those that it has included. Without one, `*out_full` tells whether there may be one
 * later: what there is is others'. */
static bool open_slot(quay__ring *ring, uint64_t room, uint64_t wanted, source from,
                      bool *out_full) {
  const quay__staging_plan *plan = &ring->plan;
  const uint64_t more = wanted - quay__min(wanted, (uint64_t)ring->slot_count + 1);
  const quay__staging_wish wish = {
      .size = room,
      .more = plan->pin != NULL ? more * plan->chunk : 0,
      .budget = budget_of(plan),
      .within_budget = from != OVER_BUDGET,
      .device = plan->pin,
      .kept_only = from == KEPT,
  };
  const uint64_t began = ring->report != NULL ? quay__os_nanoseconds() : 0;
  uint64_t segment = 0;
  unsigned char *memory = quay__staging_memory_take(&wish, &segment, out_full);
  if (ring->report != NULL)
    ring->report->grow += quay__os_nanoseconds() - began;
  if (memory == NULL)
    return false;
  quay__slot *slot = ring->slots;
  quay__ring_acquire(ring);
  while (slot->state != QUAY__SLOT_ABSENT)
    slot++;
  *slot =
      (quay__slot){.state = QUAY__SLOT_EMPTY, .memory = memory, .room = room, .segment = segment};
  quay__ring_release(ring);
  ring->slot_count++;
  if (ring->report != NULL && ring->slot_count > ring->report->slots)
    ring->report->slots = ring->slot_count;
  return true;
}

/* The slot is absent: nobody else sees it any more. */
static void close_slot(quay__ring *ring, quay__slot *slot) {
  quay__staging_memory_give(slot->memory, slot->room);
  slot->memory = NULL;
  ring->slot_count--;
  quay__staging_give_back(slot->room);
}

/* The first slot, for which the copy has room in the budget. Where the slots of others are so
 * placed that none as large fits between them, a smaller one. */
static bool open_first(quay__ring *ring) {
  const quay__staging_plan *plan = &ring->plan;
  bool full;
  if (open_slot(ring, plan->chunk, slots_wanted(ring, 0), WITHIN_BUDGET, &full))
    return true;
  if (!full)
    return false;
  const quay__staging_wish wish = {.size = plan->chunk, .device = plan->pin};
  const uint64_t gap = quay__min(quay__staging_memory_gap(&wish), plan->chunk);
  const uint64_t least = quay__min(CHUNK_OVER, plan->chunk);
  uint64_t room = quay__max(quay__align_down(gap, PAGE), least);
  bool opened = open_slot(ring, room, 1, WITHIN_BUDGET, &full);
  if (!opened) {
    room = least;
    opened = open_slot(ring, room, 1, OVER_BUDGET, &full);
  }
  if (opened)
    quay__staging_give_back(plan->chunk - room);
  return opened;
}

quay_status quay__slots_open_first(quay__ring *ring) {
  quay__staging_plan *plan = &ring->plan;
  if (!ring->nested) {
    quay__staging_hold(plan->chunk, budget_of(plan));
  } else if (!quay__staging_try_hold(plan->chunk, budget_of(plan))) {
    plan->chunk = quay__min(plan->chunk, CHUNK_OVER);
    plan->slots = plan->slots_beside = 1;
    quay__staging_force_hold(plan->chunk);
  }
  ring->turn = 0;
  if (open_first(ring))
    return QUAY_OK;
  quay__staging_give_back(plan->chunk);
  return quay__fail_out_of_memory(plan->chunk, "a staged copy");
}

/* Memory that has to be made is made once something is under way. */
static void grow(quay__ring *ring, uint64_t wanted, bool begun) {
  quay__staging_plan *plan = &ring->plan;
  const bool pinned = plan->pin != NULL;
  const source made = plan->chunk > CHUNK_OVER ? WITHIN_BUDGET : OVER_BUDGET;
  while (ring->slot_count < wanted && quay__staging_try_hold(plan->chunk, budget_of(plan))) {
    bool full;
    if (open_slot(ring, plan->chunk, wanted, pinned ? KEPT : made, &full) ||
        (pinned && begun && open_slot(ring, plan->chunk, wanted, made, &full)))
      continue;
    quay__staging_give_back(plan->chunk);
    if (!full)
      plan->slots = plan->slots_beside = ring->slot_count; /* memory is short: do with it */
    return;
  }
}

static quay__slot *take_out_empty(quay__ring *ring) {
  quay__slot *found = NULL;
  quay__ring_acquire(ring);
  for (uint32_t i = 0; i < QUAY__SLOTS_MAX && found == NULL; i++) {
    if (ring->slots[i].state == QUAY__SLOT_EMPTY)
      found = &ring->slots[i];
  }
  if (found != NULL)
    found->state = QUAY__SLOT_ABSENT;
  if (found != NULL && found == ring->last)
    ring->last = NULL; /* whose memory threads look at */
  quay__ring_release(ring);
  return found;
}

static void shrink(quay__ring *ring, uint64_t wanted) {
  while (ring->slot_count > wanted) {
    quay__slot *surplus = take_out_empty(ring);
    if (surplus == NULL)
      return;
    close_slot(ring, surplus);
  }
}

/* Others wait for room: slots that are not in use are theirs; and the last one, too, from time to
 * time, for which this copy then stands in line again. */
static quay_status give_way(quay__ring *ring, uint64_t chunks) {
  shrink(ring, 1);
  if (ring->nested || chunks - ring->turn < TURN || ring->slot_count > 1)
    return QUAY_OK;
  quay__slot *last = take_out_empty(ring);
  if (last == NULL)
    return QUAY_OK;
  close_slot(ring, last);
  QUAY_TRY(quay__slots_open_first(ring));
  ring->turn = (uint32_t)chunks;
  return QUAY_OK;
}

quay_status quay__slots_adjust(quay__ring *ring, bool begun) {
  quay__ring_acquire(ring);
  const uint64_t arrived = ring->arrived, chunks = ring->chunks_arrived;
  quay__ring_release(ring);
  if (arrived == ring->size)
    return QUAY_OK;
  if (quay__staging_awaited())
    return give_way(ring, chunks);
  const uint64_t wanted = slots_wanted(ring, arrived);
  if (ring->slot_count > wanted) {
    shrink(ring, wanted);
  } else {
    grow(ring, wanted, begun);
  }
  return QUAY_OK;
}

void quay__slots_close(quay__ring *ring) {
  for (uint32_t i = 0; i < QUAY__SLOTS_MAX; i++) {
    if (ring->slots[i].memory != NULL)
      close_slot(ring, &ring->slots[i]);
  }
}

/* Chunks. */

bool quay__slots_mine(const quay__ring *ring, const void *owner) {
  return ring->own == 0 || owner == NULL || owner == quay__thread_self();
}

void quay__slots_leave(quay__ring *ring) {
  const void *self = quay__thread_self();
  for (uint32_t i = 0; i < QUAY__SLOTS_MAX; i++) {
    if (ring->slots[i].owner == self)
      ring->slots[i].owner = NULL;
  }
  for (uint32_t i = 0; i < 2 * QUAY__SLOTS_MAX; i++) {
    quay__transfer *in = &ring->in.transfers[i], *out = &ring->out.transfers[i];
    if (in->owner == self)
      in->owner = NULL;
    if (out->owner == self)
      out->owner = NULL;
  }
}

/* The empty slot after the last one that was claimed, so that neighbouring chunks lie in
 * neighbouring memory; else the lowest one. */
static quay__slot *next_empty(quay__ring *ring) {
  const unsigned char *after = ring->last != NULL ? ring->last->memory : NULL;
  quay__slot *above = NULL, *lowest = NULL;
  for (uint32_t i = 0; i < QUAY__SLOTS_MAX; i++) {
    quay__slot *slot = &ring->slots[i];
    if (slot->state != QUAY__SLOT_EMPTY)
      continue;
    if (lowest == NULL || slot->memory < lowest->memory)
      lowest = slot;
    if (slot->memory > after && (above == NULL || slot->memory < above->memory))
      above = slot;
  }
  return above != NULL ? above : lowest;
}

/* One that the calling thread keeps; else a new one, unless it has its share. */
static const quay__slot *next_own(const quay__ring *ring) {
  const void *self = quay__thread_self();
  const quay__slot *fresh = NULL;
  uint32_t kept = 0;
  for (uint32_t i = 0; i < QUAY__SLOTS_MAX; i++) {
    const quay__slot *slot = &ring->slots[i];
    const bool empty = slot->state == QUAY__SLOT_EMPTY;
    if (slot->state != QUAY__SLOT_ABSENT && slot->owner == self) {
      if (empty)
        return slot;
      kept++;
    }
    if (fresh == NULL && empty && slot->owner == NULL)
      fresh = slot;
  }
  return kept < ring->own ? fresh : NULL;
}

/* By how much the chunk that is claimed now is shorter than others. */
static uint64_t past_cut(const quay__ring *ring) {
  return ring->claimed == 0 ? ring->plan.past_cut : 0;
}

/* The first chunks are small, so that the second leg can begin, and the last ones, so that the
 * first one does not end long before it. */
static uint64_t next_chunk_size(const quay__ring *ring, const quay__slot *slot) {
  const quay__staging_plan *plan = &ring->plan;
  const uint64_t left = ring->size - ring->claimed;
  uint64_t size = slot->room;
  if (plan->ramps) {
    const uint64_t nearer = quay__min(ring->claimed, left) / (2 * (uint64_t)plan->threads);
    size = quay__min(size, quay__max(ring->tuning->ramp, quay__align_down(nearer, PAGE)));
  }
  return quay__min(size - past_cut(ring), left);
}

/* The same from stretches, which count from the cut before the copy. The first one taken begins
 * there. */
static void claim_of_stretch(quay__ring *ring, quay__slot *slot) {
  const uint64_t short_by = past_cut(ring);
  slot->size =
      quay__stretches_take(&ring->stretches, quay__thread_self(), slot->size + short_by, &slot->at);
  slot->size -= short_by;
  slot->at -= short_by == 0 ? ring->plan.past_cut : 0;
}

bool quay__slots_can_claim(const quay__ring *ring) {
  return !ring->failed && ring->claimed != ring->size && next_own(ring) != NULL;
}

quay__slot *quay__slots_claim(quay__ring *ring) {
  if (ring->failed || ring->claimed == ring->size)
    return NULL;
  const quay__slot *found = ring->own != 0 ? next_own(ring) : next_empty(ring);
  if (found == NULL)
    return NULL;
  quay__slot *slot = &ring->slots[found - ring->slots];
  if (ring->own != 0)
    slot->owner = quay__thread_self();
  slot->state = QUAY__SLOT_FILLING;
  slot->number = ring->chunks_claimed++;
  slot->at = ring->claimed;
  slot->size = next_chunk_size(ring, slot);
  if (ring->stretched)
    claim_of_stretch(ring, slot);
  ring->claimed += slot->size;
  ring->last = slot;
  return slot;
}

static quay__slot *filled_from(quay__ring *ring, uint64_t number, bool anybodys) {
  quay__slot *found = NULL;
  for (uint32_t i = 0; i < QUAY__SLOTS_MAX; i++) {
    quay__slot *slot = &ring->slots[i];
    if (slot->state == QUAY__SLOT_FILLED && slot->number >= number &&
        (anybodys || quay__slots_mine(ring, slot->owner)) &&
        (found == NULL || slot->number < found->number))
      found = slot;
  }
  return found;
}

quay__slot *quay__slots_filled_from(quay__ring *ring, uint64_t number) {
  return filled_from(ring, number, false);
}

quay__slot *quay__slots_anybodys_filled_from(quay__ring *ring, uint64_t number) {
  return filled_from(ring, number, true);
}

uint64_t quay__slots_count(const quay__ring *ring, quay__slot_state state) {
  uint64_t count = 0;
  for (uint32_t i = 0; i < QUAY__SLOTS_MAX; i++)
    count += ring->slots[i].state == state;
  return count;
}
