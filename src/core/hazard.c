/* Hazards: see hazard.h. The lists are guarded by the storage's stripe; events and streams are
 * waited for and released without it, since both enter a backend. How a long list is made shorter
 * is in hazard_merge.c. */
#include "core/hazard.h"

#include <string.h>

#include "core/error.h"
#include "core/hazard_list.h"
#include "core/lock.h"
#include "core/os.h"

static quay__hazards *peek(quay__storage *storage) {
  return atomic_load_explicit(&storage->hazards, memory_order_acquire);
}

/* The storage's hazards, made at first need. NULL without memory. */
static quay__hazards *get(quay__storage *storage) {
  quay__hazards *existing = peek(storage);
  if (existing != NULL)
    return existing;
  quay__hazards *made = quay__os_calloc(1, sizeof(*made));
  if (made == NULL)
    return NULL;
  made->open = made->inline_open;
  made->open_capacity = QUAY__HAZARD_INLINE_OPEN;
  made->records = made->inline_records;
  made->record_capacity = QUAY__HAZARD_INLINE_RECORDS;
  if (atomic_compare_exchange_strong(&storage->hazards, &existing, made))
    return made;
  quay__os_free(made);
  return existing;
}

static bool has_records(quay__hazards *h) {
  return h != NULL && atomic_load_explicit(&h->record_count, memory_order_acquire) != 0;
}

static size_t record_count(const quay__hazards *h) {
  return atomic_load_explicit(&h->record_count, memory_order_relaxed);
}

/* Events and streams of dropped records, to be released without the stripe. */
static void throw_away(quay__hazard_trash *trash) {
  for (size_t i = 0; i < trash->count; i++) {
    quay_event_release(trash->items[i].event);
    quay__stream_unmention(trash->items[i].stream);
  }
  trash->count = 0;
}

union entry {
  quay__hazard_open open;
  quay__hazard_record record;
};

/* Makes room, with the stripe held, for `more` open uses and for the records that they will leave,
 * so that closing can't fail. Releases and takes the stripe again to allocate; false, without the
 * stripe, if there is no memory. */
static bool make_room(quay__storage *storage, quay__hazards *h, size_t more) {
  for (;;) {
    const bool grow_open = h->open_count + more > h->open_capacity;
    const bool grow_records = record_count(h) + h->open_count + more > h->record_capacity;
    if (!grow_open && !grow_records)
      return true;
    const size_t capacity = 2 * (grow_open ? h->open_capacity : h->record_capacity);
    quay__stripe_release(storage);
    void *block = quay__os_malloc(capacity * sizeof(union entry));
    if (block == NULL)
      return false;
    quay__stripe_acquire(storage);
    void *unused = block;
    if (grow_open && capacity > h->open_capacity) {
      memcpy(block, h->open, h->open_count * sizeof(*h->open));
      unused = h->open != h->inline_open ? h->open : NULL;
      h->open = block;
      h->open_capacity = capacity;
    } else if (!grow_open && capacity > h->record_capacity) {
      memcpy(block, h->records, record_count(h) * sizeof(*h->records));
      unused = h->records != h->inline_records ? h->records : NULL;
      h->records = block;
      h->record_capacity = capacity;
    }
    quay__os_free(unused);
  }
}

/* The open use of another stream that conflicts with one of the ranges, preferably one that is not
 * brief, and in *out_range with which; NULL if there is none. */
static const quay__hazard_open *open_conflict(const quay__hazards *h, const quay__range *ranges,
                                              size_t count, const quay_stream *stream,
                                              const quay__range **out_range) {
  const quay__hazard_open *found = NULL;
  for (size_t i = 0; i < h->open_count; i++) {
    const quay__hazard_open *other = &h->open[i];
    if (other->stream == stream || quay__open_abandoned(other))
      continue;
    for (size_t k = 0; k < count; k++) {
      if (!quay__ranges_conflict(&other->range, &ranges[k]))
        continue;
      *out_range = &ranges[k];
      if (!other->brief)
        return other;
      found = other;
    }
  }
  return found;
}

static bool any_writes(const quay__range *ranges, size_t count) {
  for (size_t i = 0; i < count; i++) {
    if (quay__range_writes(&ranges[i]))
      return true;
  }
  return false;
}

static quay_status busy(const quay__range *range) {
  return quay__fail(
      QUAY_STATUS_BUSY,
      "bytes %llu to %llu of a storage are in use by an access that is open on another stream and "
      "conflicts; end that one first",
      (unsigned long long)range->offset, (unsigned long long)(range->offset + range->size));
}

quay_status quay__hazards_open(quay__storage *storage, const quay__range *ranges, size_t count,
                               quay_stream *stream, uint64_t id, bool brief) {
  quay__hazards *h = get(storage);
  if (h == NULL)
    return quay__fail_out_of_memory(sizeof(*h), "the record of an access");
  quay__stripe_acquire(storage);
  const quay__hazard_open *other;
  const quay__range *range = ranges;
  for (;;) {
    if (!make_room(storage, h, count)) {
      return quay__fail_out_of_memory(h->record_capacity * sizeof(*h->records),
                                      "the record of an access");
    }
    other = open_conflict(h, ranges, count, stream, &range);
    if (other == NULL || !other->brief)
      break;
    quay__stripe_wait(storage);
  }
  const bool sealed = any_writes(ranges, count) && quay__storage_sealed(storage);
  if (other != NULL || sealed) {
    quay__stripe_release(storage);
    return sealed ? quay__storage_fail_read_only(storage) : busy(range);
  }
  for (size_t i = 0; i < count; i++) {
    h->open[h->open_count++] = (quay__hazard_open){.range = ranges[i],
                                                   .id = id,
                                                   .stream = stream,
                                                   .brief = brief,
                                                   .process = quay__fork_generation};
  }
  quay__stripe_release(storage);
  return QUAY_OK;
}

quay_status quay__hazards_check(quay__storage *storage, const quay__range *range,
                                const quay_stream *stream) {
  const quay__hazards *h = peek(storage);
  if (h == NULL)
    return QUAY_OK;
  quay__stripe_acquire(storage);
  const quay__hazard_open *other = open_conflict(h, range, 1, stream, &range);
  while (other != NULL && other->brief) {
    quay__stripe_wait(storage);
    other = open_conflict(h, range, 1, stream, &range);
  }
  quay__stripe_release(storage);
  return other != NULL ? busy(range) : QUAY_OK;
}

/* The oldest record after `clock` that conflicts with the range and is not of `stream`: its event,
 * retained, and its place in time. NULL if there is none. */
static quay_event *next_conflict(quay__storage *storage, quay__hazards *h, const quay__range *range,
                                 const quay_stream *stream, uint64_t *clock, bool *out_write) {
  quay_event *event = NULL;
  quay__stripe_acquire(storage);
  const size_t count = record_count(h);
  for (size_t i = 0; i < count; i++) {
    const quay__hazard_record *r = &h->records[i];
    if (r->key <= *clock || r->event == NULL || r->stream == stream ||
        !quay__ranges_conflict(&r->range, range)) {
      continue;
    }
    event = quay_event_retain(r->event);
    *clock = r->key;
    *out_write = quay__range_writes(&r->range);
    break;
  }
  quay__stripe_release(storage);
  return event;
}

/* Nothing that a lost device began will go on, so that its memory may be used for something else;
 * but what it was to write is undefined and can't be read. */
static bool nothing_to_wait_for(const quay_event *event, bool reading_a_write) {
  const bool lost = quay_device_health(event->device) == QUAY_HEALTH_LOST;
  return quay__event_dead(event) && !(lost && reading_a_write);
}

static quay_status order_after(quay_stream *stream, quay_event *event, bool reading_a_write) {
  if (nothing_to_wait_for(event, reading_a_write))
    return QUAY_OK;
  if (quay__stream_can_wait(stream, event))
    return quay_stream_wait(stream, event);
  return quay_event_synchronize(event);
}

quay_status quay__hazards_order(quay__storage *storage, const quay__range *range,
                                quay_stream *stream) {
  quay__hazards *h = peek(storage);
  if (!has_records(h))
    return QUAY_OK;
  uint64_t clock = 0;
  bool write = false;
  for (;;) {
    quay_event *event = next_conflict(storage, h, range, stream, &clock, &write);
    if (event == NULL)
      return QUAY_OK;
    const quay_status status = order_after(stream, event, write && range->mode == QUAY_READ);
    quay_event_release(event);
    QUAY_TRY(status);
  }
}

/* After `event` was waited for: what it covers is complete. Reads are forgotten, writes keep their
 * stream. */
static void mark_complete(quay__storage *storage, quay__hazards *h, const quay_event *event) {
  quay__hazard_trash trash;
  trash.count = 0;
  quay__stripe_acquire(storage);
  const quay_stream *stream = NULL;
  size_t count = record_count(h);
  for (size_t i = 0; i < count; i++) {
    if (h->records[i].event == event)
      stream = h->records[i].stream;
  }
  size_t kept = 0;
  for (size_t i = 0; i < count; i++) {
    quay__hazard_record r = h->records[i];
    const bool complete = stream != NULL && r.stream == stream && r.event != NULL &&
                          quay__event_covers(event, r.event) && quay__trash_has_room(&trash);
    if (complete) {
      quay__trash_add(&trash, r.event, r.stream);
      if (!quay__range_writes(&r.range))
        continue;
      r.event = NULL;
      quay__stream_mention(r.stream);
    }
    h->records[kept++] = r;
  }
  atomic_store_explicit(&h->record_count, kept, memory_order_release);
  quay__stripe_release(storage);
  throw_away(&trash);
}

static quay_status wait_on_host(quay_event *event, bool reading_a_write) {
  return nothing_to_wait_for(event, reading_a_write) ? QUAY_OK : quay_event_synchronize(event);
}

static quay_status wait_for_conflicts(quay__storage *storage, const quay__range *range) {
  quay__hazards *h = peek(storage);
  if (!has_records(h))
    return QUAY_OK;
  uint64_t clock = 0;
  bool write = false;
  for (;;) {
    quay_event *event = next_conflict(storage, h, range, NULL, &clock, &write);
    if (event == NULL)
      return QUAY_OK;
    const quay_status status = wait_on_host(event, write && range->mode == QUAY_READ);
    if (status == QUAY_OK)
      mark_complete(storage, h, event);
    quay_event_release(event);
    QUAY_TRY(status);
  }
}

/* The host is the last writer of the range from now on: completed writes that the range covers are
 * forgotten, and others get out of its way where that leaves one piece or there is room for two. */
static void host_writes(quay__storage *storage, const quay__range *range) {
  quay__hazards *h = peek(storage);
  if (!has_records(h))
    return;
  quay__hazard_trash trash;
  trash.count = 0;
  quay__stripe_acquire(storage);
  quay__hazards_cut(h, range, &trash);
  quay__stripe_release(storage);
  throw_away(&trash);
}

quay_status quay__hazards_wait(quay__storage *storage, uint64_t offset, uint64_t size,
                               quay_use_mode mode) {
  if (!has_records(peek(storage)))
    return QUAY_OK;
  const quay__range range = {.offset = offset, .size = size, .mode = mode};
  QUAY_TRY(wait_for_conflicts(storage, &range));
  if (quay__range_writes(&range))
    host_writes(storage, &range);
  return QUAY_OK;
}

quay_status quay__hazards_drain(quay__storage *storage, uint64_t offset, uint64_t size) {
  const quay__range all = {.offset = offset, .size = size, .mode = QUAY_WRITE};
  return wait_for_conflicts(storage, &all);
}

/* With more streams than records may be, somebody has to wait: for the oldest. */
static void bound(quay__storage *storage, quay__hazards *h) {
  while (record_count(h) > QUAY__HAZARD_RECORDS_MAX) {
    quay_event *event = NULL;
    quay__stripe_acquire(storage);
    if (record_count(h) > QUAY__HAZARD_RECORDS_MAX)
      event = quay_event_retain(h->records[0].event);
    quay__stripe_release(storage);
    if (event == NULL)
      return;
    quay__error_state before;
    quay__error_save(&before);
    const bool complete = wait_on_host(event, false) == QUAY_OK || quay__event_dead(event);
    quay__error_restore(&before);
    if (complete)
      mark_complete(storage, h, event);
    quay_event_release(event);
    if (!complete)
      return; /* a longer list is better than a lost order */
    quay__hazard_trash trash;
    trash.count = 0;
    quay__stripe_acquire(storage);
    quay__hazards_merge(h, &trash);
    quay__stripe_release(storage);
    throw_away(&trash);
  }
}

void quay__hazards_close(quay__storage *storage, uint64_t id, quay_event *event) {
  quay__hazards *h = peek(storage);
  if (h == NULL)
    return;
  quay__hazard_trash trash;
  trash.count = 0;
  bool brief = false;
  quay__stripe_acquire(storage);
  for (size_t i = 0; i < h->open_count;) {
    const quay__hazard_open closed = h->open[i];
    if (closed.id != id) {
      i++;
      continue;
    }
    h->open[i] = h->open[--h->open_count];
    brief = brief || closed.brief;
    if (event != NULL && closed.range.size != 0)
      quay__hazards_add(h, &closed, event, &trash);
  }
  if (record_count(h) > QUAY__HAZARD_RECORDS_MAX)
    quay__hazards_merge(h, &trash);
  if (brief)
    quay__stripe_wake(storage);
  const bool too_many = record_count(h) > QUAY__HAZARD_RECORDS_MAX;
  quay__stripe_release(storage);
  throw_away(&trash);
  if (too_many)
    bound(storage, h);
}

quay_status quay__hazards_seal(quay__storage *storage) {
  const quay__range whole = {.offset = 0, .size = storage->size, .mode = QUAY_READ};
  quay__stripe_acquire(storage);
  const quay__hazards *h = peek(storage);
  bool writing = false;
  for (;;) {
    const quay__hazard_open *other = NULL;
    for (size_t i = 0; h != NULL && i < h->open_count && (other == NULL || other->brief); i++) {
      if (quay__range_writes(&h->open[i].range) && !quay__open_abandoned(&h->open[i]))
        other = &h->open[i];
    }
    writing = other != NULL && !other->brief;
    if (other == NULL || !other->brief)
      break;
    quay__stripe_wait(storage);
  }
  if (!writing)
    atomic_store_explicit(&storage->sealed, true, memory_order_release);
  quay__stripe_release(storage);
  if (writing) {
    return quay__fail(QUAY_STATUS_BUSY, "sealing a storage while an access that writes to it is "
                                        "open; end the access first");
  }
  return wait_for_conflicts(storage, &whole);
}

quay_stream *quay__hazards_last_writer(quay__storage *storage, uint64_t offset, uint64_t size) {
  quay__hazards *h = peek(storage);
  if (!has_records(h))
    return NULL;
  const quay__range range = {.offset = offset, .size = size, .mode = QUAY_READ};
  quay_stream *stream = NULL;
  quay__stripe_acquire(storage);
  for (size_t i = record_count(h); i > 0; i--) {
    const quay__hazard_record *r = &h->records[i - 1];
    if (quay__ranges_conflict(&r->range, &range)) {
      stream = quay__stream_try_retain(r->stream);
      break;
    }
  }
  quay__stripe_release(storage);
  return stream;
}

/* An event that can't be asked is not complete. */
static bool is_pending(quay_event *event) {
  bool done = false;
  if (quay__event_dead(event))
    return false;
  if (quay_event_query(event, &done) == QUAY_OK)
    return !done;
  return !quay__event_dead(event);
}

size_t quay__hazards_pending(quay__storage *storage,
                             quay_event *out_events[QUAY__HAZARD_RECORDS_MAX]) {
  const quay__hazards *h = peek(storage);
  const size_t records = h != NULL ? record_count(h) : 0;
  size_t count = 0;
  for (size_t i = 0; i < records && count < QUAY__HAZARD_RECORDS_MAX; i++) {
    quay_event *event = h->records[i].event;
    size_t same = 0;
    while (same < count && out_events[same] != event)
      same++;
    if (event != NULL && same == count && is_pending(event))
      out_events[count++] = event;
  }
  return count;
}

void quay__hazards_destroy(quay__storage *storage) {
  quay__hazards *h = peek(storage);
  if (h == NULL)
    return;
  const size_t count = record_count(h);
  for (size_t i = 0; i < count; i++) {
    quay_event_release(h->records[i].event);
    quay__stream_unmention(h->records[i].stream);
  }
  if (h->open != h->inline_open)
    quay__os_free(h->open);
  if (h->records != h->inline_records)
    quay__os_free(h->records);
  quay__os_free(h);
}
