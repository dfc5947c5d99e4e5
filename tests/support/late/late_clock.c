/* Vector clocks: what happens before what, by program order within a stream, by events, and by what
 * host threads have waited for. Knows nothing of memory. */
#include <stdlib.h>

#include "late_internal.h"

typedef struct slot {
  uint64_t incarnation; /* from 1 */
  uint64_t records;     /* epochs that are remembered in blocks */
  bool ended;
  uint32_t next_unused; /* slot + 1; 0: none */
} slot;

/* A host thread that has a line of time of its own. */
typedef struct host_thread {
  struct host_thread *next;
  late_context context;
} host_thread;

static struct {
  slot *slots;
  uint32_t count, capacity;
  uint32_t unused; /* slot + 1 */
  late_host_threads host_threads;
  late_context trusted;  /* of all host threads together */
  late_clock published;  /* late_publish() */
  host_thread *threads;  /* host threads apart */
  uint64_t registration; /* tells the host threads of one registration from those of the next */
} clocks;

static _Thread_local struct {
  uint64_t registration;
  host_thread *thread;
} this_thread;

static uint32_t take_slot(void) {
  if (clocks.unused != 0) {
    const uint32_t index = clocks.unused - 1;
    clocks.unused = clocks.slots[index].next_unused;
    return index;
  }
  if (clocks.count == clocks.capacity) {
    clocks.capacity = clocks.capacity == 0 ? 32 : clocks.capacity * 2;
    clocks.slots = late_grow(clocks.slots, clocks.capacity * sizeof *clocks.slots);
  }
  clocks.slots[clocks.count] = (slot){.incarnation = 0};
  return clocks.count++;
}

static void reserve_ticks(late_clock *clock, uint32_t count) {
  if (clock->count >= count)
    return;
  clock->ticks = late_grow(clock->ticks, count * sizeof *clock->ticks);
  for (uint32_t i = clock->count; i < count; i++)
    clock->ticks[i] = (late_tick){.time = 0};
  clock->count = count;
}

void late_context_begin(late_context *context) {
  *context = (late_context){.slot = take_slot()};
  slot *const own = &clocks.slots[context->slot];
  own->incarnation++;
  own->ended = false;
  reserve_ticks(&context->clock, context->slot + 1);
  context->clock.ticks[context->slot].incarnation = own->incarnation;
}

static void reuse_if_forgotten(uint32_t index) {
  slot *const s = &clocks.slots[index];
  if (!s->ended || s->records != 0)
    return;
  s->ended = false;
  s->incarnation++; /* what clocks say of it counts for nothing from here on */
  s->next_unused = clocks.unused;
  clocks.unused = index + 1;
}

void late_context_end(late_context *context) {
  late_clock_free(&context->clock);
  clocks.slots[context->slot].ended = true;
  reuse_if_forgotten(context->slot);
}

late_epoch late_context_tick(late_context *context) {
  return (late_epoch){
      .slot = context->slot,
      .time = ++context->clock.ticks[context->slot].time,
  };
}

void late_clock_join(late_clock *into, const late_clock *from) {
  reserve_ticks(into, from->count);
  for (uint32_t i = 0; i < from->count; i++) {
    const uint64_t current = clocks.slots[i].incarnation;
    if (from->ticks[i].incarnation != current)
      continue;
    late_tick *const tick = &into->ticks[i];
    if (tick->incarnation != current || tick->time < from->ticks[i].time)
      *tick = from->ticks[i];
  }
}

void late_clock_free(late_clock *clock) {
  free(clock->ticks);
  *clock = (late_clock){.count = 0};
}

bool late_clock_knows(const late_clock *clock, late_epoch epoch) {
  return epoch.slot < clock->count &&
         clock->ticks[epoch.slot].incarnation == clocks.slots[epoch.slot].incarnation &&
         clock->ticks[epoch.slot].time >= epoch.time;
}

void late_epoch_retain(late_epoch epoch) {
  clocks.slots[epoch.slot].records++;
}

void late_epoch_release(late_epoch epoch) {
  clocks.slots[epoch.slot].records--;
  reuse_if_forgotten(epoch.slot);
}

late_context *late_host(void) {
  if (clocks.host_threads == LATE_HOST_THREADS_TRUSTED)
    return &clocks.trusted;
  if (this_thread.registration != clocks.registration) {
    host_thread *const made = late_new(sizeof *made);
    late_context_begin(&made->context);
    made->next = clocks.threads;
    clocks.threads = made;
    this_thread.registration = clocks.registration;
    this_thread.thread = made;
  }
  return &this_thread.thread->context;
}

bool late_everybody_knows(late_epoch epoch) {
  return clocks.host_threads == LATE_HOST_THREADS_TRUSTED &&
         late_clock_knows(&clocks.trusted.clock, epoch);
}

void late_clocks_begin(late_host_threads host_threads) {
  clocks.host_threads = host_threads;
  clocks.registration++;
  late_context_begin(&clocks.trusted);
}

void late_clocks_end(void) {
  while (clocks.threads != NULL) {
    host_thread *const thread = clocks.threads;
    clocks.threads = thread->next;
    late_clock_free(&thread->context.clock);
    free(thread);
  }
  late_clock_free(&clocks.trusted.clock);
  late_clock_free(&clocks.published);
  free(clocks.slots);
  clocks.slots = NULL;
  clocks.count = clocks.capacity = clocks.unused = 0;
  clocks.registration++;
}

void late_publish(void) {
  late_lock();
  if (late.registered)
    late_clock_join(&clocks.published, &late_host()->clock);
  late_unlock();
}

void late_observe(void) {
  late_lock();
  if (late.registered)
    late_clock_join(&late_host()->clock, &clocks.published);
  late_unlock();
}
