/* Gathering small pieces: two slots in turns, one being filled while the device empties the other
 * one. The stream and the slots are those of staging. */
#include "core/copy_gather.h"

#include "core/checked.h"
#include "core/environment.h"
#include "core/os.h"
#include "core/staging.h"
#include "core/staging_budget.h"
#include "core/staging_memory.h"
#include "core/thread.h"

#define SLOT_BYTES QUAY__GATHER_SLOT

enum {
  SLOTS = 2,
  PIECES_MAX = 1024, /* in a slot */
};

typedef struct gather_slot {
  unsigned char *memory;
  uint64_t event;
  bool busy; /* `event` is there, and not known to be done */
} gather_slot;

typedef struct gathering {
  quay_allocator *to;
  quay_device *device;
  uint64_t stream;
  quay_copy_piece *pieces; /* of the slot that is being filled */
  gather_slot slots[SLOTS];
  unsigned slot_count;
} gathering;

bool quay__gathers(const quay__side *destination, const quay__side *source, uint64_t size) {
  const quay_allocator *to = destination->allocator, *from = source->allocator;
  const bool readable = quay__plain_host_memory(from->backend) || from->kind == QUAY_MEMORY_FILE;
  return size <= QUAY__GATHER_PIECE_MAX && to->has_async && !quay__plain_host_memory(to->backend) &&
         readable && quay__staging_memory_pins(to->device) && !quay__thread_in_staging;
}

static bool open_slot(gathering *all, uint64_t budget) {
  const quay__staging_wish wish = {
      .size = SLOT_BYTES, .budget = budget, .device = all->device, .within_budget = true};
  if (all->slot_count == 0) {
    quay__staging_hold(SLOT_BYTES, budget);
  } else if (!quay__staging_try_hold(SLOT_BYTES, budget)) {
    return false;
  }
  uint64_t segment;
  bool full;
  unsigned char *memory = quay__staging_memory_take(&wish, &segment, &full);
  if (memory == NULL) {
    quay__staging_give_back(SLOT_BYTES);
    return false;
  }
  all->slots[all->slot_count++] = (gather_slot){.memory = memory};
  return true;
}

static void close_all(gathering *all) {
  for (unsigned i = 0; i < all->slot_count; i++) {
    if (all->slots[i].busy)
      all->device->vtable.event_destroy(all->device, all->slots[i].event);
    quay__staging_memory_give(all->slots[i].memory, SLOT_BYTES);
    quay__staging_give_back(SLOT_BYTES);
  }
  quay__os_free(all->pieces);
}

static quay_status wait_for_slot(const gathering *all, gather_slot *slot) {
  if (!slot->busy)
    return QUAY_OK;
  QUAY_TRY(all->device->vtable.event_synchronize(all->device, slot->event));
  all->device->vtable.event_destroy(all->device, slot->event);
  slot->busy = false;
  return QUAY_OK;
}

/* Whether the piece after it can be read by the same call. */
static bool follows(const quay__gather_piece *before, const quay__gather_piece *after) {
  return after->source.raw == before->source.raw &&
         after->source.allocator == before->source.allocator &&
         after->source.offset == before->source.offset + before->size;
}

/* Reads as many pieces as fit, and describes where they go. */
static quay_status fill_slot(const gathering *all, const gather_slot *slot,
                             const quay__gather_piece *pieces, size_t count, size_t *out_count) {
  uint64_t at = 0;
  size_t done = 0;
  while (done < count && done < PIECES_MAX && at + pieces[done].size <= SLOT_BYTES) {
    const quay__side *source = &pieces[done].source;
    const uint64_t begin = at;
    do {
      all->pieces[done] = (quay_copy_piece){.destination = pieces[done].destination.raw,
                                            .offset = pieces[done].destination.offset,
                                            .source = slot->memory + at,
                                            .size = pieces[done].size};
      at += pieces[done].size;
      done++;
    } while (done < count && done < PIECES_MAX && at + pieces[done].size <= SLOT_BYTES &&
             follows(&pieces[done - 1], &pieces[done]));
    QUAY_TRY(source->allocator->vtable.copy_out(source->allocator, source->raw, source->offset,
                                                slot->memory + begin, at - begin));
  }
  *out_count = done;
  return QUAY_OK;
}

static quay_status move_slot(gathering *all, gather_slot *slot, const quay__gather_piece *pieces,
                             size_t count, size_t *out_count, bool *out_moved) {
  QUAY_TRY(wait_for_slot(all, slot));
  QUAY_TRY(fill_slot(all, slot, pieces, count, out_count));
  quay__copy_enter();
  const quay_status status =
      all->to->vtable.copy_in_many_async(all->to, all->pieces, *out_count, all->stream);
  *out_moved = *out_moved || status == QUAY_OK || quay__copy_may_have_moved(status);
  QUAY_TRY(status);
  QUAY_TRY(all->device->vtable.event_record(all->device, all->stream, &slot->event));
  slot->busy = true;
  return QUAY_OK;
}

static quay_status move_all(gathering *all, const quay__gather_piece *pieces, size_t count,
                            bool *out_moved) {
  quay_status status = QUAY_OK;
  unsigned turn = 0;
  for (size_t done = 0; done < count && status == QUAY_OK;) {
    size_t part = 0;
    status = move_slot(all, &all->slots[turn++ % all->slot_count], pieces + done, count - done,
                       &part, out_moved);
    done += part;
  }
  return quay__staging_settle(all->device, all->stream, status);
}

quay_status quay__gather(const quay__gather_piece *pieces, size_t count, uint64_t allowed,
                         bool *out_done, bool *out_moved) {
  gathering all = {.to = pieces[0].destination.allocator,
                   .device = pieces[0].destination.allocator->device};
  *out_done = false;
  QUAY_TRY(quay__environment_check());
  const uint64_t budget = quay__environment_staging_bytes();
  all.pieces = quay__os_calloc(quay__min(count, PIECES_MAX), sizeof all.pieces[0]);
  if (all.pieces == NULL || !open_slot(&all, budget)) {
    close_all(&all);
    return QUAY_OK;
  }
  if (allowed >= SLOTS * SLOT_BYTES)
    (void)open_slot(&all, budget);
  quay__thread_in_staging = true;
  quay_status status = quay__staging_stream_take(all.device, &all.stream);
  if (status == QUAY_OK) {
    status = move_all(&all, pieces, count, out_moved);
    quay__staging_stream_give(all.device, all.stream);
  }
  quay__thread_in_staging = false;
  close_all(&all);
  *out_done = true;
  return status;
}
