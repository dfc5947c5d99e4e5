/* The legs of a staged copy: what fills slots, what drains them, and the transfers of a device that
 * do either. Called with the lock held, by the calling thread and its helpers alike; nothing is
 * moved under it. */
#include <string.h>

#include "core/checked.h"
#include "core/device_impl.h"
#include "core/error.h"
#include "core/host_copy.h"
#include "core/lock.h"
#include "core/os.h"
#include "core/staging_budget.h"
#include "core/staging_ring.h"
#include "core/stream_impl.h"
#include "core/thread.h"
#include "core/topology.h"

static uint64_t now(const quay__ring *ring) {
  return ring->report != NULL ? quay__os_nanoseconds() : 0;
}

/* What somebody has done: the calling thread may wait for it. */
static void tell(quay__ring *ring, bool by_helper, quay_status status) {
  if (status != QUAY_OK && !ring->failed) {
    ring->failed = true;
    ring->helper_failed = by_helper;
  }
  pthread_cond_signal(&ring->changed);
}

/* Blocking legs. */

void quay__staging_fill(void *slot, const void *from, uint64_t size) {
  switch (quay__staging_tuning_get()->stores) {
  case QUAY__STORES_AHEAD:
    quay__host_copy_ahead(slot, from, size);
    break;
  case QUAY__STORES_PLAIN:
    memcpy(slot, from, size);
    break;
  case QUAY__STORES_STREAMING:
    quay__host_stream(slot, from, size);
    break;
  }
}

/* What a thread moves between slots and the host's side it moves at the device's node, where the
 * slots are. Not calls of an allocator that may run code of the program's. */
static void keep_near(const quay__ring *ring, const quay__leg *leg, quay__binding *out_binding) {
  quay_device *device = ring->plan.pin;
  const bool ours = leg->kind == QUAY__LEG_MEMORY || leg->side->allocator->kind == QUAY_MEMORY_FILE;
  const bool near = device != NULL && ours;
  quay__topology_enter(near ? device->vtable.numa_node(device) : -1, out_binding);
}

static quay_status move_out(const quay__ring *ring, const quay__slot *slot) {
  const quay__leg *leg = &ring->out;
  if (leg->kind == QUAY__LEG_MEMORY) {
    quay__staging_fill(slot->memory, leg->memory + slot->at, slot->size);
    return QUAY_OK;
  }
  quay_allocator *from = leg->side->allocator;
  quay__thread_reads_disk = ring->plan.from_disk;
  const quay_status status = from->vtable.copy_out(
      from, leg->side->raw, leg->side->offset + slot->at, slot->memory, slot->size);
  quay__thread_reads_disk = false;
  return status;
}

/* The calling thread's own leg is the second one where that is one of calls: it fills what nobody
 * has begun, and only when it would else have to wait for it. */
static bool may_fill(const quay__ring *ring, bool by_helper) {
  if (ring->out.kind == QUAY__LEG_STREAM)
    return false;
  return by_helper || ring->in.kind != QUAY__LEG_CALLS || ring->claimed == ring->arrived;
}

bool quay__leg_fill(quay__ring *ring, bool by_helper, quay_status *out_status) {
  quay__slot *slot = may_fill(ring, by_helper) ? quay__slots_claim(ring) : NULL;
  if (slot == NULL)
    return false;
  quay__ring_release(ring);
  const uint64_t began = now(ring);
  quay__binding binding;
  keep_near(ring, &ring->out, &binding);
  *out_status = move_out(ring, slot);
  quay__topology_leave(&binding);
  const uint64_t took = now(ring) - began;
  quay__ring_acquire(ring);
  slot->state = QUAY__SLOT_FILLED;
  if (ring->report != NULL)
    ring->report->host += took;
  tell(ring, by_helper, *out_status);
  return true;
}

static quay_status move_in(const quay__ring *ring, const quay__slot *slot) {
  const quay__leg *leg = &ring->in;
  if (leg->kind == QUAY__LEG_MEMORY) {
    unsigned char *to = leg->memory + slot->at;
    if (ring->streaming) {
      quay__host_stream(to, slot->memory, slot->size);
    } else {
      memcpy(to, slot->memory, slot->size);
    }
    return QUAY_OK;
  }
  quay_allocator *to = leg->side->allocator;
  return to->vtable.copy_in(to, leg->side->raw, leg->side->offset + slot->at, slot->memory,
                            slot->size);
}

/* Calls come in order, by the calling thread; memory and files are written in any, by all. */
static quay__slot *next_to_drain(quay__ring *ring, bool by_helper) {
  if (ring->in.kind == QUAY__LEG_STREAM || ring->failed)
    return NULL;
  if (ring->in.several)
    return quay__slots_filled_from(ring, 0);
  quay__slot *slot = by_helper ? NULL : quay__slots_filled_from(ring, ring->chunks_arrived);
  return slot != NULL && slot->number == ring->chunks_arrived ? slot : NULL;
}

static void arrive(quay__ring *ring, quay__slot *slot) {
  slot->state = QUAY__SLOT_EMPTY;
  ring->arrived += slot->size;
  ring->chunks_arrived++;
}

bool quay__leg_drain(quay__ring *ring, bool by_helper, quay_status *out_status) {
  quay__slot *slot = next_to_drain(ring, by_helper);
  if (slot == NULL)
    return false;
  slot->state = QUAY__SLOT_DRAINING;
  quay__ring_release(ring);
  const uint64_t began = now(ring);
  quay__copy_enter();
  quay__binding binding;
  keep_near(ring, &ring->in, &binding);
  *out_status = move_in(ring, slot);
  quay__topology_leave(&binding);
  const bool moved = *out_status == QUAY_OK || quay__copy_may_have_moved(*out_status);
  const uint64_t took = now(ring) - began;
  quay__ring_acquire(ring);
  ring->moved = ring->moved || moved;
  if (*out_status == QUAY_OK)
    arrive(ring, slot);
  if (ring->report != NULL)
    ring->report->host += took;
  tell(ring, by_helper, *out_status);
  return true;
}

/* Transfers. */

/* Slots of one transfer: those whose chunks follow each other, and whose memory does; or any, which
 * are pieces of one call. */
typedef struct run {
  quay__slot *slots[QUAY__SLOTS_MAX];
  uint32_t count;
  uint64_t bytes;
  bool scattered;
} run;

static bool joins(const quay__ring *ring, const run *so_far, const quay__slot *next) {
  const quay__slot *last = so_far->slots[so_far->count - 1];
  return next->segment == last->segment && next->memory == last->memory + last->size &&
         so_far->bytes + next->size <= ring->tuning->join_most;
}

static void add(run *to, quay__slot *slot) {
  to->slots[to->count++] = slot;
  to->bytes += slot->size;
}

/* The filled slots that should go to the device next. A thread's own ones go one by one: while the
 * device is at one it fills the next. */
static void gather_filled(quay__ring *ring, run *out_run) {
  quay__slot *slot = quay__slots_filled_from(ring, 0);
  while (slot != NULL) {
    add(out_run, slot);
    const uint64_t next = slot->number + 1;
    slot = ring->own == 0 ? quay__slots_filled_from(ring, next) : NULL;
    if (slot != NULL && (slot->number != next || !joins(ring, out_run, slot)))
      return;
  }
}

/* The filled slots of all threads. */
static void gather_batch(quay__ring *ring, run *out_run) {
  const uint32_t most = (uint32_t)quay__min(ring->plan.batch, QUAY__SLOTS_MAX);
  out_run->scattered = true;
  uint64_t number = 0;
  while (out_run->count < most) {
    quay__slot *slot = quay__slots_anybodys_filled_from(ring, number);
    if (slot == NULL ||
        (out_run->count != 0 && out_run->bytes + slot->size > ring->tuning->join_most))
      return;
    add(out_run, slot);
    number = slot->number + 1;
  }
}

static bool batches(const quay__ring *ring) {
  return ring->own != 0 && ring->plan.batch > 1;
}

/* Whether to wait for more neighbours, if `more` slots are still to come: the device has enough to
 * do meanwhile, and when it has not, they go as they are. */
static bool may_grow(const quay__ring *ring, const quay__leg *leg, uint64_t bytes, bool more) {
  return more && leg->in_flight != 0 && leg->in_flight >= ring->tuning->in_flight_least &&
         bytes < ring->tuning->join_least;
}

/* The empty slots that the device should fill next become claimed. */
static void gather_empty(quay__ring *ring, run *out_run) {
  const uint64_t most = quay__min(ring->tuning->join_most, ring->size - ring->claimed);
  while (out_run->bytes < most) {
    quay__slot *slot = quay__slots_claim(ring);
    if (slot == NULL)
      return;
    if (out_run->count != 0 && !joins(ring, out_run, slot)) {
      /* It was the newest claim: undone, it is the next one again. */
      slot->state = QUAY__SLOT_EMPTY;
      ring->claimed -= slot->size;
      ring->chunks_claimed--;
      ring->last = out_run->slots[out_run->count - 1];
      return;
    }
    add(out_run, slot);
    if (ring->own != 0)
      return;
  }
}

/* The stream that a slot always takes. */
static uint64_t stream_of(const quay__ring *ring, const quay__leg *leg, const quay__slot *slot) {
  return leg->streams[(uint64_t)(slot - ring->slots) % leg->stream_count];
}

/* On the way in. */
static quay_status submit_pieces(const quay__side *side, const run *slots, uint64_t stream) {
  quay_allocator *allocator = side->allocator;
  quay_copy_piece pieces[QUAY__SLOTS_MAX];
  for (uint32_t i = 0; i < slots->count; i++) {
    const quay__slot *slot = slots->slots[i];
    pieces[i] = (quay_copy_piece){.destination = side->raw,
                                  .offset = side->offset + slot->at,
                                  .source = slot->memory,
                                  .size = slot->size};
  }
  return allocator->vtable.copy_in_many_async(allocator, pieces, slots->count, stream);
}

/* Hands the device a transfer between a run of slots and its side, and records its event. */
static quay_status submit(const quay__ring *ring, const quay__leg *leg, const run *slots,
                          uint64_t *out_event, bool *out_moved) {
  const quay__side *side = leg->side;
  quay_allocator *allocator = side->allocator;
  const quay__slot *first = slots->slots[0];
  const uint64_t offset = side->offset + first->at;
  quay_device *device = allocator->device;
  const uint64_t stream = stream_of(ring, leg, first);
  const bool into = leg == &ring->in;
  quay__copy_enter();
  quay__thread_submits_piece = true;
  const quay_status status =
      slots->scattered ? submit_pieces(side, slots, stream)
      : into ? allocator->vtable.copy_in_async(allocator, side->raw, offset, first->memory,
                                               slots->bytes, stream)
             : allocator->vtable.copy_out_async(allocator, side->raw, offset, first->memory,
                                                slots->bytes, stream);
  quay__thread_submits_piece = false;
  *out_moved = into && (status == QUAY_OK || quay__copy_may_have_moved(status));
  return status == QUAY_OK ? device->vtable.event_record(device, stream, out_event) : status;
}

static void note_begin(quay__ring *ring, uint64_t at) {
  quay__staging_report *report = ring->report;
  if (report == NULL || ring->in.in_flight + ring->out.in_flight != 0)
    return;
  if (report->transfers == 0) {
    report->begin = at - ring->began;
  } else {
    report->idle +=
        at - quay__min(ring->idle_since, at); /* submitted before it was seen to be idle */
  }
}

/* There is an entry for every slot. */
static quay__transfer *new_transfer(quay__leg *leg, const run *slots) {
  quay__transfer *entry = leg->transfers;
  while (entry->busy)
    entry++;
  *entry = (quay__transfer){.busy = true,
                            .number = leg->next++,
                            .owner = slots->scattered ? NULL : slots->slots[0]->owner,
                            .bytes = slots->bytes};
  return entry;
}

static void submit_run(quay__ring *ring, quay__leg *leg, const run *slots, bool by_helper,
                       quay_status *out_status) {
  const bool into = leg == &ring->in;
  quay__transfer *entry = new_transfer(leg, slots);
  for (uint32_t i = 0; i < slots->count; i++) {
    slots->slots[i]->state = into ? QUAY__SLOT_DRAINING : QUAY__SLOT_FILLING;
    slots->slots[i]->transfer = entry->number;
  }
  leg->submitting = ring->own == 0;
  quay__ring_release(ring);
  const uint64_t began = now(ring);
  uint64_t event = 0;
  bool moved = false;
  *out_status = submit(ring, leg, slots, &event, &moved);
  const uint64_t ended = now(ring);
  quay__ring_acquire(ring);
  leg->submitting = false;
  ring->moved = ring->moved || moved;
  if (*out_status == QUAY_OK) {
    note_begin(ring, began);
    entry->event = event;
    entry->submitted = true;
    leg->in_flight += slots->bytes;
  } else {
    entry->busy = false;
  }
  if (ring->report != NULL) {
    ring->report->submit += ended - began;
    ring->report->transfers++;
  }
  tell(ring, by_helper, *out_status);
}

/* The transfer that the calling thread's own slots are in, the oldest of them. */
static quay__transfer *own_transfer(const quay__ring *ring, quay__leg *leg) {
  const void *self = quay__thread_self();
  const quay__slot *oldest = NULL;
  for (uint32_t i = 0; i < QUAY__SLOTS_MAX; i++) {
    const quay__slot *slot = &ring->slots[i];
    if (slot->state == QUAY__SLOT_DRAINING && slot->owner == self &&
        (oldest == NULL || slot->transfer < oldest->transfer))
      oldest = slot;
  }
  for (uint32_t i = 0; oldest != NULL && i < 2 * QUAY__SLOTS_MAX; i++) {
    quay__transfer *entry = &leg->transfers[i];
    if (entry->busy && entry->submitted && !entry->done && entry->number == oldest->transfer)
      return entry;
  }
  return NULL;
}

/* Whether filled slots of a batch should wait for others: the device has enough to do until the
 * transfer before its last one is done, and this thread has another slot to fill, or one of its own
 * to wait for, after which it comes back here. */
static bool holds_back(const quay__ring *ring, quay__leg *leg, uint64_t bytes) {
  return leg->in_flight > ring->tuning->in_flight_least && bytes < ring->tuning->join_least &&
         (quay__slots_can_claim(ring) || own_transfer(ring, leg) != NULL);
}

/* Whether slots that all share should wait for their neighbours. */
static bool neighbours_may_come(const quay__ring *ring, const quay__leg *leg, uint64_t bytes) {
  const bool more = ring->claimed != ring->size || quay__slots_count(ring, QUAY__SLOT_FILLING) != 0;
  return ring->own == 0 && may_grow(ring, leg, bytes, more);
}

static bool submit_in(quay__ring *ring, bool by_helper, quay_status *out_status) {
  quay__leg *leg = &ring->in;
  if (leg->kind != QUAY__LEG_STREAM || leg->submitting)
    return false;
  run slots = {.count = 0};
  if (batches(ring)) {
    gather_batch(ring, &slots);
  } else {
    gather_filled(ring, &slots);
  }
  if (slots.count == 0)
    return false;
  if (batches(ring) ? holds_back(ring, leg, slots.bytes)
                    : neighbours_may_come(ring, leg, slots.bytes))
    return false;
  submit_run(ring, leg, &slots, by_helper, out_status);
  return true;
}

static bool submit_out(quay__ring *ring, bool by_helper, quay_status *out_status) {
  quay__leg *leg = &ring->out;
  if (leg->kind != QUAY__LEG_STREAM || leg->submitting)
    return false;
  const uint64_t empty = quay__slots_count(ring, QUAY__SLOT_EMPTY) * ring->plan.chunk;
  const bool more = ring->size - ring->claimed > empty;
  if (ring->own == 0 && may_grow(ring, leg, empty, more))
    return false;
  run slots = {.count = 0};
  gather_empty(ring, &slots);
  if (slots.count == 0)
    return false;
  submit_run(ring, leg, &slots, by_helper, out_status);
  return true;
}

bool quay__leg_submit(quay__ring *ring, bool by_helper, quay_status *out_status) {
  if (ring->failed)
    return false;
  return submit_in(ring, by_helper, out_status) || submit_out(ring, by_helper, out_status);
}

/* A transfer is done: its slots are the next leg's. */
static void finish_transfer(quay__ring *ring, quay__leg *leg, quay__transfer *done) {
  const bool into = leg == &ring->in;
  const quay__slot_state was = into ? QUAY__SLOT_DRAINING : QUAY__SLOT_FILLING;
  for (uint32_t i = 0; i < QUAY__SLOTS_MAX; i++) {
    quay__slot *slot = &ring->slots[i];
    if (slot->state != was || slot->transfer != done->number)
      continue;
    if (into) {
      arrive(ring, slot);
    } else {
      slot->state = QUAY__SLOT_FILLED;
    }
  }
  leg->in_flight -= done->bytes;
  done->done = true;
}

/* The oldest transfer that the calling thread may wait for. Where all slots are shared one thread
 * waits at a time; the others would only come after it. */
static quay__transfer *next_to_await(const quay__ring *ring, quay__leg *leg) {
  quay__transfer *oldest = batches(ring) && leg == &ring->in ? own_transfer(ring, leg) : NULL;
  if (oldest != NULL)
    return oldest;
  for (uint32_t i = 0; i < 2 * QUAY__SLOTS_MAX; i++) {
    quay__transfer *entry = &leg->transfers[i];
    if (!entry->busy || !entry->submitted || entry->done || !quay__slots_mine(ring, entry->owner))
      continue;
    if (entry->waiting != 0 && ring->own == 0)
      return NULL;
    if (entry->waiting == 0 && (oldest == NULL || entry->number < oldest->number))
      oldest = entry;
  }
  return oldest;
}

/* A thread has waited for a transfer. Whoever comes back first has seen it done, and the last one
 * destroys the event; that gives the lock away. */
static void note_awaited(quay__ring *ring, quay__leg *leg, quay__transfer *entry, uint64_t ended) {
  if (!entry->done) {
    finish_transfer(ring, leg, entry);
    ring->idle_since = ended;
  }
  if (entry->waiting != 0)
    return;
  const uint64_t event = entry->event;
  entry->busy = false;
  quay_device *device = leg->side->allocator->device;
  quay__ring_release(ring);
  device->vtable.event_destroy(device, event);
  quay__ring_acquire(ring);
}

static bool await_leg(quay__ring *ring, quay__leg *leg, bool by_helper, quay_status *out_status) {
  quay__transfer *entry = leg->kind == QUAY__LEG_STREAM ? next_to_await(ring, leg) : NULL;
  if (entry == NULL)
    return false;
  quay_device *device = leg->side->allocator->device;
  const uint64_t event = entry->event;
  entry->waiting++;
  quay__ring_release(ring);
  const uint64_t began = now(ring);
  *out_status = device->vtable.event_synchronize(device, event);
  const uint64_t ended = now(ring);
  quay__ring_acquire(ring);
  entry->waiting--;
  if (ring->report != NULL)
    ring->report->wait += ended - began;
  if (*out_status == QUAY_OK)
    note_awaited(ring, leg, entry, ended);
  tell(ring, by_helper, *out_status);
  return true;
}

bool quay__leg_await(quay__ring *ring, bool by_helper, quay_status *out_status) {
  if (ring->failed)
    return false;
  return await_leg(ring, &ring->out, by_helper, out_status) ||
         await_leg(ring, &ring->in, by_helper, out_status);
}

quay_status quay__staging_settle(quay_device *device, uint64_t stream, quay_status status) {
  quay__error_state error;
  if (status != QUAY_OK)
    quay__error_save(&error);
  const quay_status waited = quay__stream_settle(device, stream);
  if (status == QUAY_OK && waited != QUAY_OK) {
    status = waited;
    quay__error_save(&error);
  }
  if (status != QUAY_OK)
    quay__error_restore(&error);
  return status;
}

/* What was submitted still reads or writes the slots and the caller's memory. */
void quay__leg_settle(quay__leg *leg) {
  if (leg->kind != QUAY__LEG_STREAM)
    return;
  quay_device *device = leg->side->allocator->device;
  for (uint32_t i = 0; i < leg->stream_count; i++)
    (void)quay__staging_settle(device, leg->streams[i], QUAY_OK);
  for (uint32_t i = 0; i < 2 * QUAY__SLOTS_MAX; i++) {
    if (leg->transfers[i].busy && leg->transfers[i].submitted)
      device->vtable.event_destroy(device, leg->transfers[i].event);
  }
}

quay_status quay__leg_follow(const quay__leg *leg, uint64_t stream) {
  quay_device *device = leg->side->allocator->device;
  uint64_t event;
  QUAY_TRY(device->vtable.event_record(device, stream, &event));
  quay_status status = QUAY_OK;
  for (uint32_t i = 0; i < leg->stream_count && status == QUAY_OK; i++)
    status = device->vtable.stream_wait(device, leg->streams[i], device, event);
  device->vtable.event_destroy(device, event);
  return status;
}

/* Slots that nobody keeps, by the share of a thread. */
static uint64_t work_for_owners(const quay__ring *ring) {
  uint64_t slots = 0;
  for (uint32_t i = 0; i < QUAY__SLOTS_MAX; i++) {
    const quay__slot *slot = &ring->slots[i];
    if (slot->owner == NULL && (slot->state == QUAY__SLOT_FILLED ||
                                (slot->state == QUAY__SLOT_EMPTY && ring->claimed != ring->size)))
      slots++;
  }
  return (slots + ring->own - 1) / ring->own;
}

uint32_t quay__ring_threads_max(const quay__ring *ring) {
  const quay__staging_plan *plan = &ring->plan;
  return quay__staging_devices() > 1 ? (uint32_t)quay__max(plan->threads, plan->threads_beside)
                                     : plan->threads;
}

uint64_t quay__leg_work(const quay__ring *ring) {
  if (ring->own != 0) {
    const uint32_t most = quay__ring_threads_max(ring);
    const uint64_t more = quay__min(work_for_owners(ring), most - quay__min(most, ring->threads));
    return more == 0 ? 0 : more + ring->threads - 1; /* those that are at it are among them */
  }
  uint64_t work = 0;
  if (ring->out.kind != QUAY__LEG_STREAM && ring->claimed != ring->size)
    work += quay__slots_count(ring, QUAY__SLOT_EMPTY);
  if (ring->in.several)
    work += quay__slots_count(ring, QUAY__SLOT_FILLED);
  return work;
}
