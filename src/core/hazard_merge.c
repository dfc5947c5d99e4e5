/* The records of a storage: added, dropped, merged, cut. All with the storage's stripe held, and
 * without entering a backend. */
#include <string.h>

#include "core/checked.h"
#include "core/hazard_list.h"

static size_t count_of(const quay__hazards *h) {
  return atomic_load_explicit(&h->record_count, memory_order_relaxed);
}

static void set_count(quay__hazards *h, size_t count) {
  atomic_store_explicit(&h->record_count, count, memory_order_release);
}

/* Whether waiting for the event of a use that is being closed is waiting for the old record, too.
 * Another stream's record was waited for when a write that conflicts with it began. One of the same
 * stream comes before it unless two threads ended accesses of one stream at the same time. */
static bool supersedes(const quay__hazard_open *closed, const quay_event *event,
                       const quay__hazard_record *old) {
  if (!quay__range_contains(&closed->range, &old->range))
    return false;
  if (old->stream == closed->stream) {
    return (quay__range_writes(&closed->range) || !quay__range_writes(&old->range)) &&
           (old->event == NULL || quay__event_covers(event, old->event));
  }
  return quay__range_writes(&closed->range);
}

void quay__hazards_add(quay__hazards *h, const quay__hazard_open *closed, quay_event *event,
                       quay__hazard_trash *trash) {
  const size_t count = count_of(h);
  size_t kept = 0;
  for (size_t i = 0; i < count; i++) {
    const quay__hazard_record *old = &h->records[i];
    if (supersedes(closed, event, old) && quay__trash_has_room(trash)) {
      quay__trash_add(trash, old->event, old->stream);
      continue;
    }
    if (kept != i)
      h->records[kept] = *old;
    kept++;
  }
  quay__stream_mention(closed->stream);
  h->records[kept] = (quay__hazard_record){
      .range = closed->range,
      .key = ++h->clock,
      .stream = closed->stream,
      .event = quay_event_retain(event),
  };
  set_count(h, kept + 1);
}

/* How many bytes lie between two ranges; 0 if they touch. */
static uint64_t gap(const quay__range *a, const quay__range *b) {
  const uint64_t a_end = a->offset + a->size, b_end = b->offset + b->size;
  if (a_end < b->offset)
    return b->offset - a_end;
  return b_end < a->offset ? a->offset - b_end : 0;
}

static void widen(quay__range *range, const quay__range *by) {
  const uint64_t begin = quay__min(range->offset, by->offset);
  const uint64_t end = quay__max(range->offset + range->size, by->offset + by->size);
  *range = (quay__range){
      .offset = begin, .size = end - begin, .mode = (quay_use_mode)(range->mode | by->mode)};
}

/* The later record of the same stream that `index` is best merged into; 0 (which is later than
 * none) if there is none. */
static size_t nearest(const quay__hazards *h, size_t index, size_t count, bool any_mode,
                      uint64_t most) {
  const quay__hazard_record *r = &h->records[index];
  size_t best = 0;
  uint64_t smallest = most;
  for (size_t i = index + 1; i < count; i++) {
    const quay__hazard_record *later = &h->records[i];
    if (later->stream != r->stream || later->event == NULL ||
        (!any_mode && quay__range_writes(&later->range) != quay__range_writes(&r->range))) {
      continue;
    }
    const uint64_t distance = gap(&r->range, &later->range);
    if (distance <= smallest && (best == 0 || distance < smallest) &&
        quay__event_covers(later->event, r->event)) {
      smallest = distance;
      best = i;
    }
  }
  return best;
}

/* Merges each record into a later one that is at most so far away, until `target` are left. */
static void merge_round(quay__hazards *h, bool any_mode, uint64_t most, size_t target,
                        quay__hazard_trash *trash) {
  const size_t count = count_of(h);
  size_t kept = 0;
  for (size_t i = 0; i < count; i++) {
    quay__hazard_record *r = &h->records[i];
    const bool enough = kept + (count - i) <= target;
    const size_t into = enough || r->event == NULL || !quay__trash_has_room(trash)
                            ? 0
                            : nearest(h, i, count, any_mode, most);
    if (into != 0) {
      widen(&h->records[into].range, &r->range);
      quay__trash_add(trash, r->event, r->stream);
      continue;
    }
    if (kept != i)
      h->records[kept] = *r;
    kept++;
  }
  set_count(h, kept);
}

static void drop_completed(quay__hazards *h, quay__hazard_trash *trash) {
  const size_t count = count_of(h);
  size_t kept = 0;
  for (size_t i = 0; i < count; i++) {
    const quay__hazard_record *r = &h->records[i];
    if (r->event == NULL && quay__trash_has_room(trash)) {
      quay__trash_add(trash, NULL, r->stream);
      continue;
    }
    if (kept != i)
      h->records[kept] = *r;
    kept++;
  }
  set_count(h, kept);
}

void quay__hazards_merge(quay__hazards *h, quay__hazard_trash *trash) {
  const size_t target = QUAY__HAZARD_RECORDS_MAX / 2;
  drop_completed(h, trash);
  if (count_of(h) > target)
    merge_round(h, false, 0, target, trash);
  if (count_of(h) > target)
    merge_round(h, false, UINT64_MAX, target, trash);
  if (count_of(h) > QUAY__HAZARD_RECORDS_MAX)
    merge_round(h, true, UINT64_MAX, target, trash);
}

static void remove_at(quay__hazards *h, size_t index) {
  const size_t after = count_of(h) - index - 1;
  memmove(&h->records[index], &h->records[index + 1], after * sizeof(*h->records));
  set_count(h, index + after);
}

/* A second piece of the record at `index`, behind it. False without room for it. */
static bool split_at(quay__hazards *h, size_t index) {
  const size_t count = count_of(h);
  if (count + h->open_count >= h->record_capacity || count >= QUAY__HAZARD_RECORDS_MAX)
    return false;
  memmove(&h->records[index + 1], &h->records[index], (count - index) * sizeof(*h->records));
  quay__stream_mention(h->records[index].stream);
  set_count(h, count + 1);
  return true;
}

/* Takes the range out of one completed record. Where two pieces would be left and there is no room
 * for them the record stays: at worst the device still counts as the last writer. */
static void cut_record(quay__hazards *h, size_t index, const quay__range *range,
                       quay__hazard_trash *trash) {
  quay__range *r = &h->records[index].range;
  const uint64_t begin = r->offset, end = begin + r->size;
  const uint64_t cut_begin = range->offset, cut_end = cut_begin + range->size;
  if (cut_end <= begin || end <= cut_begin || cut_begin == cut_end)
    return;
  if (cut_begin <= begin && end <= cut_end) {
    if (!quay__trash_has_room(trash))
      return;
    quay__trash_add(trash, NULL, h->records[index].stream);
    remove_at(h, index);
  } else if (cut_begin <= begin) {
    *r = (quay__range){.offset = cut_end, .size = end - cut_end, .mode = r->mode};
  } else if (end <= cut_end) {
    r->size = cut_begin - begin;
  } else if (split_at(h, index)) {
    h->records[index].range.size = cut_begin - begin;
    h->records[index + 1].range.offset = cut_end;
    h->records[index + 1].range.size = end - cut_end;
  }
}

void quay__hazards_cut(quay__hazards *h, const quay__range *range, quay__hazard_trash *trash) {
  for (size_t i = count_of(h); i > 0; i--) {
    if (h->records[i - 1].event == NULL)
      cut_record(h, i - 1, range, trash);
  }
}
