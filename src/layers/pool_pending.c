/* Extents that were freed while device work on them was under way: asked after where memory is
 * needed, and never by a free. No lock is held while an event is asked. */
#include "core/error.h"
#include "layers/pool_impl.h"

enum {
  CANDIDATES = 4, /* extents of a set that are asked for one by one */
  HELD_AT_ONCE = 32
};

/* A set and an event of its stream. */
typedef struct question {
  uint32_t slot;
  quay_event *event; /* a reference */
} question;

static bool is_done(quay_event *event, bool wait) {
  bool done = false;
  if (quay__event_dead(event))
    return true;
  quay__error_shield();
  if (wait) {
    done = quay_event_synchronize(event) == QUAY_OK || quay__event_dead(event);
  } else {
    done = quay_event_query(event, &done) == QUAY_OK ? done : quay__event_dead(event);
  }
  quay__error_unshield();
  return done;
}

static uint64_t bytes_of_slot(const quay__pool *pool, uint32_t slot) {
  uint64_t bytes = 0;
  for (uint32_t arena = 0; arena < QUAY__POOL_ARENAS; arena++) {
    const quay__extent_set *const set = pool->arenas[arena].sets[QUAY__POOL_STREAMS + slot];
    bytes += set != NULL ? set->bytes : 0;
  }
  return bytes;
}

uint64_t quay__pool_pending_bytes(const quay__pool *pool) {
  uint64_t bytes = pool->held_bytes;
  for (uint32_t slot = 0; slot < pool->stream_count; slot++)
    bytes += bytes_of_slot(pool, slot);
  return bytes;
}

void quay__pool_bury(quay__pool *pool) {
  quay__lock_acquire(&pool->lock);
  quay_event *const dead = pool->dead;
  pool->dead = NULL;
  quay__lock_release(&pool->lock);
  quay__events_end(dead);
}

/* Two neighbours of one set are of one stream: the later event stands for both. */
bool quay__pool_join(quay__extent *kept, quay__extent *gone, void *user) {
  quay__pool *const pool = user;
  quay_event *const first = kept->user;
  quay_event *const second = gone->user;
  const bool second_last = quay__event_covers(second, first);
  if (!second_last && !quay__event_covers(first, second))
    return false;
  kept->user = second_last ? second : first;
  gone->user = NULL;
  quay__event_release_later(second_last ? first : second, &pool->dead);
  return true;
}

/* Makes ready what `event` comes after. */
static bool make_ready(quay__pool *pool, const question *asked) {
  bool any = false;
  const uint32_t set = QUAY__POOL_STREAMS + asked->slot;
  quay__lock_acquire(&pool->lock);
  for (uint32_t i = 0; i < QUAY__POOL_ARENAS; i++) {
    quay__offsets *const arena = &pool->arenas[i];
    quay__extent *next;
    for (quay__extent *each = quay__offsets_largest(arena, set); each != NULL; each = next) {
      next = quay__offsets_next_smaller(arena, each);
      quay_event *const own = each->user;
      if (own->stream_id != asked->event->stream_id || !quay__event_covers(asked->event, own))
        continue;
      each->user = NULL;
      quay__event_release_later(own, &pool->dead);
      quay__pool_poison(pool, pool->regions[each->region], each);
      quay__offsets_move(arena, each, QUAY__POOL_READY);
      any = true;
    }
  }
  quay__lock_release(&pool->lock);
  return any;
}

/* Asks, and gives the references back. */
static bool ask(quay__pool *pool, const question *questions, uint32_t count, bool wait) {
  bool any = false;
  for (uint32_t i = 0; i < count; i++) {
    if (is_done(questions[i].event, wait))
      any = make_ready(pool, &questions[i]) || any;
    quay_event_release(questions[i].event);
  }
  return any;
}

/* After the last of each stream, all of it is ready, but for events of threads that recorded at the
 * same time. */
static bool ask_latest(quay__pool *pool, bool wait) {
  question questions[QUAY__POOL_STREAM_COUNT];
  uint32_t count = 0;
  quay__lock_acquire(&pool->lock);
  for (uint32_t slot = 0; slot < pool->stream_count; slot++) {
    if (bytes_of_slot(pool, slot) == 0)
      continue;
    questions[count++] =
        (question){.slot = slot, .event = quay_event_retain(pool->streams[slot].latest)};
  }
  quay__lock_release(&pool->lock);
  return ask(pool, questions, count, wait);
}

/* The event of some extent of a slot, retained; NULL: it has none. */
static quay_event *any_event(quay__pool *pool, uint32_t slot) {
  quay_event *event = NULL;
  quay__lock_acquire(&pool->lock);
  for (uint32_t i = 0; i < QUAY__POOL_ARENAS && event == NULL; i++) {
    const quay__extent *const extent =
        quay__offsets_largest(&pool->arenas[i], QUAY__POOL_STREAMS + slot);
    event = extent != NULL ? quay_event_retain(extent->user) : NULL;
  }
  quay__lock_release(&pool->lock);
  return event;
}

/* What is left of each slot, as long as events of it are done. */
static bool ask_rest(quay__pool *pool, bool wait) {
  bool any = false;
  for (uint32_t slot = 0; slot < QUAY__POOL_STREAM_COUNT; slot++) {
    question asked = {.slot = slot};
    while ((asked.event = any_event(pool, slot)) != NULL) {
      if (!ask(pool, &asked, 1, wait))
        break;
      any = true;
    }
  }
  return any;
}

/* Streams that are busy all the time: the extents that would fit. */
static uint32_t find_candidates(quay__pool *pool, const quay__pool_want *want, uint32_t slot,
                                question *out_questions) {
  const quay__offsets *const arena = &pool->arenas[want->arena];
  uint64_t offset;
  uint32_t count = 0;
  const quay__extent *each =
      quay__offsets_find(arena, QUAY__POOL_STREAMS + slot, want->size, want->alignment, &offset);
  for (; each != NULL && count < CANDIDATES; each = each->next)
    out_questions[count++] = (question){.slot = slot, .event = quay_event_retain(each->user)};
  return count;
}

static bool ask_candidates(quay__pool *pool, const quay__pool_want *want) {
  question questions[QUAY__POOL_STREAM_COUNT * CANDIDATES];
  uint32_t count = 0;
  quay__lock_acquire(&pool->lock);
  for (uint32_t slot = 0; slot < pool->stream_count; slot++)
    count += find_candidates(pool, want, slot, &questions[count]);
  quay__lock_release(&pool->lock);
  return ask(pool, questions, count, false);
}

/* Held extents. */

static bool all_done(const quay__extent *extent, bool wait) {
  bool done = true;
  for (const quay__extent *holder = extent->user; holder != NULL && done; holder = holder->owner)
    done = is_done(holder->user, wait);
  return done;
}

/* With the lock held: gives the events back, and the holders. */
static void drop_events(quay__pool *pool, quay__extent *extent) {
  quay__offsets *const arena = &pool->arenas[quay__pool_region_of(extent)->arena];
  for (quay__extent *holder = extent->user; holder != NULL;) {
    quay__extent *const next = holder->owner;
    quay__event_release_later(holder->user, &pool->dead);
    quay__offsets_spare_put(arena, holder);
    holder = next;
  }
  extent->user = NULL;
}

/* What becomes of an extent whose work is done. */
static void let_go(quay__pool *pool, quay__extent *extent) {
  quay__pool_region *const region = quay__pool_region_of(extent);
  const bool current = quay__pool_is_current(pool, region);
  quay__lock_acquire(&pool->lock);
  pool->held_bytes -= extent->size;
  drop_events(pool, extent);
  if (!region->direct && current) {
    quay__pool_poison(pool, region, extent);
    quay__pool_heap_put(pool, extent);
  }
  quay__lock_release(&pool->lock);
  if (region->direct) {
    quay__pool_direct_end(pool, region, NULL, 0);
  } else if (!current) {
    quay__pool_heap_give_stale(pool, extent);
  }
}

static quay__extent *take_held(quay__pool *pool) {
  quay__lock_acquire(&pool->lock);
  quay__extent *const extent = pool->held;
  if (extent != NULL)
    pool->held = extent->previous;
  quay__lock_release(&pool->lock);
  return extent;
}

static void put_back(quay__pool *pool, quay__extent *extent) {
  quay__lock_acquire(&pool->lock);
  extent->previous = pool->held;
  pool->held = extent;
  quay__lock_release(&pool->lock);
}

static bool ask_held(quay__pool *pool, bool wait) {
  quay__extent *busy[HELD_AT_ONCE];
  uint32_t busy_count = 0;
  bool any = false;
  quay__extent *extent;
  quay__pool_move_begin(pool);
  while (busy_count < HELD_AT_ONCE && (extent = take_held(pool)) != NULL) {
    if (all_done(extent, wait)) {
      let_go(pool, extent);
      any = true;
    } else {
      busy[busy_count++] = extent;
    }
  }
  while (busy_count > 0)
    put_back(pool, busy[--busy_count]);
  quay__pool_move_end(pool);
  return any;
}

/* With the lock held. */
static void drop_slot(quay__pool *pool, uint32_t slot) {
  for (uint32_t i = 0; i < QUAY__POOL_ARENAS; i++) {
    quay__extent *each = quay__offsets_largest(&pool->arenas[i], QUAY__POOL_STREAMS + slot);
    for (; each != NULL; each = quay__offsets_next_smaller(&pool->arenas[i], each)) {
      quay__event_release_later(each->user, &pool->dead);
      each->user = NULL;
    }
  }
}

void quay__pool_drop_events(quay__pool *pool) {
  quay__lock_acquire(&pool->lock);
  for (uint32_t slot = 0; slot < pool->stream_count; slot++) {
    drop_slot(pool, slot);
    quay__event_release_later(pool->streams[slot].latest, &pool->dead);
    pool->streams[slot].latest = NULL;
  }
  for (; pool->held != NULL; pool->held = pool->held->previous)
    drop_events(pool, pool->held);
  quay__lock_release(&pool->lock);
  quay__pool_bury(pool);
}

bool quay__pool_poll(quay__pool *pool, const quay__pool_want *want) {
  if (!pool->has_streams)
    return false;
  bool any = ask_latest(pool, false);
  if (want == NULL) {
    any = ask_rest(pool, false) || any;
  } else if (!any) {
    any = ask_candidates(pool, want);
  }
  any = ask_held(pool, false) || any;
  quay__pool_bury(pool);
  return any;
}

void quay__pool_wait(quay__pool *pool) {
  if (!pool->has_streams)
    return;
  (void)ask_latest(pool, true);
  (void)ask_rest(pool, true);
  (void)ask_held(pool, true);
  quay__pool_bury(pool);
}
