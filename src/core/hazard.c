/* Hazards: see hazard.h. The lists are guarded by the storage's stripe; events and streams are
 * waited for and released without it, since both enter a backend. */
#include "core/hazard.h"

#include "core/error.h"
#include "core/lock.h"
#include "core/os.h"
#include "core/stream_impl.h"

/* An open use (in `open`) or a finished one (in `records`). */
typedef struct node {
  struct node *next;
  quay__range range;
  uint64_t key;        /* open: id of the access; record: its place in time, from 1 */
  quay_stream *stream; /* open: the access's; record: retained */
  quay_event *event;   /* record: retained; NULL once it was waited for (a write's is kept, to tell
                          the last writer) */
} node;

enum {
  POOL_SIZE = 8
};

typedef struct quay__hazards {
  node *open;
  node *records;            /* newest first */
  atomic_uint record_count; /* for a look without the lock */
  uint64_t clock;           /* place in time of the newest record */
  node *unused;
  node pool[POOL_SIZE];
} hazards;

static bool writes(quay_use_mode mode) {
  return (mode & QUAY_WRITE) != 0;
}

static bool overlap(const quay__range *a, const quay__range *b) {
  if (a->size == 0 || b->size == 0)
    return false;
  return a->offset < b->offset + b->size && b->offset < a->offset + a->size;
}

static bool conflict(const quay__range *a, const quay__range *b) {
  return (writes(a->mode) || writes(b->mode)) && overlap(a, b);
}

static bool contains(const quay__range *outer, const quay__range *inner) {
  return outer->offset <= inner->offset &&
         inner->offset + inner->size <= outer->offset + outer->size;
}

static hazards *peek(quay__storage *storage) {
  return atomic_load_explicit(&storage->hazards, memory_order_acquire);
}

/* The storage's hazards, made at first need. NULL without memory. */
static hazards *get(quay__storage *storage) {
  hazards *existing = peek(storage);
  if (existing != NULL)
    return existing;
  hazards *made = quay__os_calloc(1, sizeof(*made));
  if (made == NULL)
    return NULL;
  for (size_t i = 0; i < POOL_SIZE; i++) {
    made->pool[i].next = made->unused;
    made->unused = &made->pool[i];
  }
  if (atomic_compare_exchange_strong(&storage->hazards, &existing, made))
    return made;
  quay__os_free(made);
  return existing;
}

/* Acquires the stripe and takes an unused node, allocating with the stripe released. NULL, without
 * the stripe, if there is no memory. */
static node *acquire_with_node(quay__storage *storage, hazards *h) {
  quay__stripe_acquire(storage);
  node *taken = h->unused;
  if (taken != NULL) {
    h->unused = taken->next;
    return taken;
  }
  quay__stripe_release(storage);
  taken = quay__os_calloc(1, sizeof(*taken));
  if (taken != NULL)
    quay__stripe_acquire(storage);
  return taken;
}

static bool has_records(hazards *h) {
  return h != NULL && atomic_load_explicit(&h->record_count, memory_order_acquire) != 0;
}

static void free_nodes(const hazards *h, node *list) {
  while (list != NULL) {
    node *next = list->next;
    const bool pooled = list >= h->pool && list < h->pool + POOL_SIZE;
    if (!pooled)
      quay__os_free(list);
    list = next;
  }
}

static void put_unused(hazards *h, node *unused) {
  *unused = (node){.next = h->unused};
  h->unused = unused;
}

/* Releases, without the stripe, what a list of dropped records holds, and gives the nodes back. */
static void give_back(quay__storage *storage, hazards *h, node *dropped) {
  for (node *n = dropped; n != NULL; n = n->next) {
    quay_event_release(n->event);
    quay_stream_release(n->stream);
  }
  if (dropped == NULL)
    return;
  quay__stripe_acquire(storage);
  while (dropped != NULL) {
    node *next = dropped->next;
    put_unused(h, dropped);
    dropped = next;
  }
  quay__stripe_release(storage);
}

static node *unlink_record(hazards *h, node **link, node *dropped) {
  node *n = *link;
  *link = n->next;
  n->next = dropped;
  atomic_fetch_sub_explicit(&h->record_count, 1, memory_order_relaxed);
  return n;
}

quay_status quay__hazards_open(quay__storage *storage, const quay__range *range,
                               quay_stream *stream, uint64_t access_id) {
  hazards *h = get(storage);
  node *opened = h != NULL ? acquire_with_node(storage, h) : NULL;
  if (opened == NULL)
    return quay__fail_out_of_memory(sizeof(hazards), "the record of an access");
  const node *other = h->open;
  while (other != NULL && (other->stream == stream || !conflict(&other->range, range))) {
    other = other->next;
  }
  const bool sealed = writes(range->mode) && quay__storage_sealed(storage);
  if (other != NULL || sealed) {
    put_unused(h, opened);
    quay__stripe_release(storage);
    if (sealed)
      return quay__storage_fail_read_only(storage);
    return quay__fail(
        QUAY_STATUS_BUSY,
        "an access to bytes %llu to %llu of a storage conflicts with one that is open "
        "on another stream; end that one first",
        (unsigned long long)range->offset, (unsigned long long)(range->offset + range->size));
  }
  *opened = (node){.next = h->open, .range = *range, .key = access_id, .stream = stream};
  h->open = opened;
  quay__stripe_release(storage);
  return QUAY_OK;
}

/* The oldest record after `clock` that conflicts with the range and is not of `stream`: its event,
 * retained, and its place in time. NULL if there is none. */
static quay_event *next_conflict(quay__storage *storage, hazards *h, const quay__range *range,
                                 const quay_stream *stream, uint64_t *clock) {
  quay__stripe_acquire(storage);
  const node *found = NULL;
  for (const node *n = h->records; n != NULL && n->key > *clock; n = n->next) {
    if (n->event != NULL && n->stream != stream && conflict(&n->range, range))
      found = n;
  }
  quay_event *event = NULL;
  if (found != NULL) {
    event = quay_event_retain(found->event);
    *clock = found->key;
  }
  quay__stripe_release(storage);
  return event;
}

static quay_status order_after(quay_stream *stream, quay_event *event) {
  if (quay__stream_can_wait(stream, event))
    return quay_stream_wait(stream, event);
  return quay_event_synchronize(event);
}

quay_status quay__hazards_order(quay__storage *storage, const quay__range *range,
                                quay_stream *stream) {
  hazards *h = peek(storage);
  if (!has_records(h))
    return QUAY_OK;
  uint64_t clock = 0;
  for (;;) {
    quay_event *event = next_conflict(storage, h, range, stream, &clock);
    if (event == NULL)
      return QUAY_OK;
    const quay_status status = order_after(stream, event);
    quay_event_release(event);
    QUAY_TRY(status);
  }
}

/* After `event` was waited for: reads are forgotten, writes keep their stream. */
static void mark_complete(quay__storage *storage, hazards *h, const quay_event *event) {
  node *dropped = NULL;
  quay__stripe_acquire(storage);
  for (node **link = &h->records; *link != NULL;) {
    node *n = *link;
    if (n->event != event) {
      link = &n->next;
    } else if (writes(n->range.mode)) {
      /* The caller holds a reference of its own: this one is not the last. */
      quay_event_release(n->event);
      n->event = NULL;
      link = &n->next;
    } else {
      dropped = unlink_record(h, link, dropped);
    }
  }
  quay__stripe_release(storage);
  give_back(storage, h, dropped);
}

static quay_status wait_for_conflicts(quay__storage *storage, const quay__range *range) {
  hazards *h = peek(storage);
  if (!has_records(h))
    return QUAY_OK;
  uint64_t clock = 0;
  for (;;) {
    quay_event *event = next_conflict(storage, h, range, NULL, &clock);
    if (event == NULL)
      return QUAY_OK;
    const quay_status status = quay_event_synchronize(event);
    if (status == QUAY_OK)
      mark_complete(storage, h, event);
    quay_event_release(event);
    QUAY_TRY(status);
  }
}

/* Takes the range out of a completed record: what is left before it, after it (into `spare`, which
 * is NULL afterwards if it was used), both or nothing. True if nothing is left. */
static bool cut_out(node *record, const quay__range *range, node **spare) {
  const uint64_t begin = record->range.offset, end = begin + record->range.size;
  const uint64_t cut_begin = range->offset, cut_end = cut_begin + range->size;
  if (cut_begin <= begin && end <= cut_end)
    return true;
  if (begin < cut_begin && cut_end < end) {
    if (*spare == NULL)
      return false; /* at worst the device still counts as the last writer */
    node *after = *spare;
    *spare = NULL;
    *after = *record;
    after->stream = quay_stream_retain(record->stream);
    after->range.offset = cut_end;
    after->range.size = end - cut_end;
    record->next = after;
    record->range.size = cut_begin - begin;
  } else if (cut_begin <= begin) {
    record->range.offset = cut_end;
    record->range.size = end - cut_end;
  } else {
    record->range.size = cut_begin - begin;
  }
  return false;
}

/* The host is the last writer of the range from now on. */
static void host_writes(quay__storage *storage, const quay__range *range) {
  hazards *h = peek(storage);
  if (!has_records(h))
    return;
  node *spare = acquire_with_node(storage, h);
  if (spare == NULL)
    quay__stripe_acquire(storage);
  node *dropped = NULL;
  for (node **link = &h->records; *link != NULL;) {
    node *n = *link;
    const bool cut = n->event == NULL && overlap(&n->range, range);
    node *const spare_before = spare;
    if (cut && cut_out(n, range, &spare)) {
      dropped = unlink_record(h, link, dropped);
      continue;
    }
    if (spare != spare_before) {
      atomic_fetch_add_explicit(&h->record_count, 1, memory_order_relaxed);
      link = &n->next; /* the new half needs no look */
    }
    link = &(*link)->next;
  }
  if (spare != NULL)
    put_unused(h, spare);
  quay__stripe_release(storage);
  give_back(storage, h, dropped);
}

quay_status quay__hazards_wait(quay__storage *storage, uint64_t offset, uint64_t size,
                               quay_use_mode mode) {
  if (peek(storage) == NULL)
    return QUAY_OK;
  const quay__range range = {.offset = offset, .size = size, .mode = mode};
  QUAY_TRY(wait_for_conflicts(storage, &range));
  if (writes(mode))
    host_writes(storage, &range);
  return QUAY_OK;
}

quay_status quay__hazards_drain(quay__storage *storage, uint64_t offset, uint64_t size) {
  const quay__range all = {.offset = offset, .size = size, .mode = QUAY_WRITE};
  return wait_for_conflicts(storage, &all);
}

/* Puts a closed use among the records, and drops those that its event comes after. */
static node *record(hazards *h, node *closed, quay_event *event, node *dropped) {
  for (node **link = &h->records; *link != NULL;) {
    const node *old = *link;
    const bool later =
        writes(closed->range.mode) || (!writes(old->range.mode) && old->stream == closed->stream);
    if (later && contains(&closed->range, &old->range)) {
      dropped = unlink_record(h, link, dropped);
    } else {
      link = &(*link)->next;
    }
  }
  closed->key = ++h->clock;
  closed->event = quay_event_retain(event);
  closed->stream = quay_stream_retain(closed->stream);
  closed->next = h->records;
  h->records = closed;
  atomic_fetch_add_explicit(&h->record_count, 1, memory_order_release);
  return dropped;
}

void quay__hazards_close(quay__storage *storage, uint64_t access_id, quay_event *event) {
  hazards *h = peek(storage);
  if (h == NULL)
    return;
  node *dropped = NULL;
  quay__stripe_acquire(storage);
  for (node **link = &h->open; *link != NULL;) {
    node *n = *link;
    if (n->key != access_id) {
      link = &n->next;
      continue;
    }
    *link = n->next;
    if (event == NULL || n->range.size == 0) {
      put_unused(h, n);
    } else {
      dropped = record(h, n, event, dropped);
    }
  }
  quay__stripe_release(storage);
  give_back(storage, h, dropped);
}

/* The oldest record's event, retained; NULL after dropping the record if it has none. */
static quay_event *oldest_event(quay__storage *storage, hazards *h) {
  node *dropped = NULL;
  quay_event *event = NULL;
  quay__stripe_acquire(storage);
  node **link = &h->records;
  while (*link != NULL && (*link)->next != NULL)
    link = &(*link)->next;
  if (*link != NULL && (*link)->event != NULL) {
    event = quay_event_retain((*link)->event);
  } else if (*link != NULL) {
    dropped = unlink_record(h, link, dropped);
  }
  quay__stripe_release(storage);
  give_back(storage, h, dropped);
  return event;
}

quay_status quay__hazards_bound(quay__storage *storage) {
  hazards *h = peek(storage);
  if (h == NULL)
    return QUAY_OK;
  quay_status first = QUAY_OK;
  while (atomic_load_explicit(&h->record_count, memory_order_relaxed) > QUAY__HAZARD_RECORDS_MAX) {
    quay_event *event = oldest_event(storage, h);
    if (event == NULL)
      continue;
    const quay_status status = quay_event_synchronize(event);
    if (first == QUAY_OK)
      first = status;
    /* After an error, too: the device is lost, and nothing will complete any more. */
    mark_complete(storage, h, event);
    quay_event_release(event);
  }
  return first;
}

quay_status quay__hazards_seal(quay__storage *storage) {
  quay__stripe_acquire(storage);
  const hazards *h = peek(storage);
  const node *n = h != NULL ? h->open : NULL;
  while (n != NULL && !writes(n->range.mode))
    n = n->next;
  if (n == NULL)
    atomic_store_explicit(&storage->sealed, true, memory_order_release);
  quay__stripe_release(storage);
  if (n != NULL) {
    return quay__fail(QUAY_STATUS_BUSY, "sealing a storage while an access that writes to it is "
                                        "open; end the access first");
  }
  const quay__range whole = {.offset = 0, .size = storage->size, .mode = QUAY_READ};
  return wait_for_conflicts(storage, &whole);
}

quay_stream *quay__hazards_last_writer(quay__storage *storage, uint64_t offset, uint64_t size) {
  hazards *h = peek(storage);
  if (!has_records(h))
    return NULL;
  const quay__range range = {.offset = offset, .size = size, .mode = QUAY_READ};
  quay__stripe_acquire(storage);
  const node *n = h->records;
  while (n != NULL && !conflict(&n->range, &range))
    n = n->next;
  quay_stream *stream = n != NULL ? quay_stream_retain(n->stream) : NULL;
  quay__stripe_release(storage);
  return stream;
}

size_t quay__hazards_pending(quay__storage *storage,
                             quay_event *out_events[QUAY__HAZARD_RECORDS_MAX]) {
  const hazards *h = peek(storage);
  size_t count = 0;
  for (const node *n = h != NULL ? h->records : NULL; n != NULL; n = n->next) {
    bool done = false;
    if (n->event == NULL || quay_event_query(n->event, &done) != QUAY_OK || done)
      continue;
    size_t same = 0;
    while (same < count && out_events[same] != n->event)
      same++;
    if (same == count)
      out_events[count++] = n->event;
  }
  return count;
}

void quay__hazards_destroy(quay__storage *storage) {
  hazards *h = peek(storage);
  if (h == NULL)
    return;
  for (node *n = h->records; n != NULL; n = n->next) {
    quay_event_release(n->event);
    quay_stream_release(n->stream);
  }
  free_nodes(h, h->records);
  free_nodes(h, h->unused);
  quay__os_free(h);
}
