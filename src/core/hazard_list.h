/* The lists of a storage's hazards, and what changes them with the storage's stripe held. Private
 * to hazard.c and hazard_merge.c. */
#ifndef QUAY_CORE_HAZARD_LIST_H
#define QUAY_CORE_HAZARD_LIST_H

#include "core/hazard.h"
#include "core/lifecycle.h"
#include "core/stream_impl.h"

enum {
  QUAY__HAZARD_INLINE_OPEN = 4,
  QUAY__HAZARD_INLINE_RECORDS = 8
};

/* A use between begin and end. */
typedef struct quay__hazard_open {
  quay__range range;
  uint64_t id;         /* of the access or copy */
  quay_stream *stream; /* the access's or the copy's */
  bool brief;          /* the library's own, which ends without the program's doing */
  uint32_t process;    /* the quay__fork_generation that it began in */
} quay__hazard_open;

/* Whether the thread that would end it is not in this process, but in one that it was forked from.
 */
static inline bool quay__open_abandoned(const quay__hazard_open *open) {
  return open->brief && open->process != quay__fork_generation;
}

/* A use that was submitted. */
typedef struct quay__hazard_record {
  quay__range range;
  uint64_t key;        /* its place in time, from 1 */
  quay_stream *stream; /* mentioned */
  quay_event *event;   /* retained; NULL once it was waited for (a write's is kept without, to tell
                          the last writer) */
} quay__hazard_record;

struct quay__hazards {
  quay__hazard_open *open; /* in no order */
  size_t open_count, open_capacity;
  quay__hazard_record *records; /* oldest first */
  atomic_size_t record_count;   /* for a look without the stripe */
  size_t record_capacity;       /* at least the number of records and open uses */
  uint64_t clock;               /* place in time of the newest record */
  quay__hazard_open inline_open[QUAY__HAZARD_INLINE_OPEN];
  quay__hazard_record inline_records[QUAY__HAZARD_INLINE_RECORDS];
};
typedef struct quay__hazards quay__hazards;

/* What records held that were dropped. */
typedef struct quay__hazard_trash {
  size_t count;
  struct {
    quay_event *event; /* may be NULL */
    quay_stream *stream;
  } items[2 * QUAY__HAZARD_RECORDS_MAX];
} quay__hazard_trash;

static inline bool quay__trash_has_room(const quay__hazard_trash *trash) {
  return trash->count < sizeof(trash->items) / sizeof(trash->items[0]);
}

static inline void quay__trash_add(quay__hazard_trash *trash, quay_event *event,
                                   quay_stream *stream) {
  trash->items[trash->count].event = event;
  trash->items[trash->count++].stream = stream;
}

static inline bool quay__range_writes(const quay__range *range) {
  return (range->mode & QUAY_WRITE) != 0;
}

static inline bool quay__ranges_conflict(const quay__range *a, const quay__range *b) {
  return a->offset < b->offset + b->size && b->offset < a->offset + a->size &&
         ((a->mode | b->mode) & QUAY_WRITE) != 0 && a->size != 0 && b->size != 0;
}

static inline bool quay__range_contains(const quay__range *outer, const quay__range *inner) {
  return outer->offset <= inner->offset &&
         inner->offset + inner->size <= outer->offset + outer->size;
}

/* Puts a closed use among the records, and drops those that its event comes after. */
void quay__hazards_add(quay__hazards *h, const quay__hazard_open *closed, quay_event *event,
                       quay__hazard_trash *trash);

/* Makes a list that is too long shorter without losing an order: records of one stream become one
 * with the later event and a range that holds both. With few streams it leaves about half. */
void quay__hazards_merge(quay__hazards *h, quay__hazard_trash *trash);

/* Takes the range out of completed records. */
void quay__hazards_cut(quay__hazards *h, const quay__range *range, quay__hazard_trash *trash);

#endif
