/* Who accessed which bytes of a block: the race detector. The order is that of vector clocks and is
 * known when work is submitted, so what is found does not depend on when it runs. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "late_internal.h"

struct late_record {
  late_node range; /* first */
  bool write;
  bool open;      /* a host thread is at it just now */
  bool beginning; /* the allocation itself */
  late_epoch epoch;
  const char *what;
  uint64_t serial; /* of the operation */
  uint64_t stream; /* serial; 0: the host */
};

/* What is to be dropped after a visit, since visitors leave the tree as it is. */
typedef struct doomed {
  late_record **records;
  size_t count, capacity;
} doomed;

static void doom(doomed *list, late_record *record) {
  if (list->count == list->capacity) {
    list->capacity = list->capacity == 0 ? 16 : list->capacity * 2;
    list->records = late_grow(list->records, list->capacity * sizeof *list->records);
  }
  list->records[list->count++] = record;
}

static void drop_doomed(late_shadow *shadow, doomed *list) {
  for (size_t i = 0; i < list->count; i++) {
    late_tree_remove(&shadow->records, &list->records[i]->range);
    late_epoch_release(list->records[i]->epoch);
    free(list->records[i]);
  }
  free(list->records);
}

typedef struct actor_text {
  char text[96];
} actor_text;

static actor_text describe(const char *what, uint64_t serial, uint64_t stream) {
  actor_text out;
  if (stream == 0) {
    snprintf(out.text, sizeof out.text, "%s by the host (operation %" PRIu64 ")", what, serial);
  } else {
    snprintf(out.text, sizeof out.text, "%s on stream %" PRIu64 " (operation %" PRIu64 ")", what,
             stream, serial);
  }
  return out;
}

typedef struct checking {
  late_block *block;
  const late_actor *actor;
  uint64_t begin, end;
  bool write;
  bool free;
  bool clean;
} checking;

static bool ordered(const late_record *record, const late_actor *actor) {
  return !record->open && late_clock_knows(actor->clock, record->epoch);
}

static void check_record(void *user, late_node *node) {
  checking *const c = user;
  const late_record *const record = (const late_record *)node;
  if (!(record->write || c->write) || (c->free && record->beginning) || ordered(record, c->actor))
    return;
  c->clean = false;
  const actor_text first = describe(record->what, record->serial, record->stream);
  const actor_text second = describe(c->actor->what, c->actor->serial,
                                     c->actor->stream != NULL ? c->actor->stream->serial : 0);
  if (c->free) {
    late_report(LATE_VIOLATION_EARLY_FREE,
                "block %" PRIu64 " of %s is freed, and nothing orders that after %s, which %s "
                "bytes %" PRIu64 " to %" PRIu64 " of it",
                c->block->serial, c->block->device->name, first.text,
                record->write ? "writes" : "reads", node->begin, node->end);
    return;
  }
  late_report(
      !c->write        ? LATE_VIOLATION_WRITE_READ
      : !record->write ? LATE_VIOLATION_READ_WRITE
                       : LATE_VIOLATION_WRITE_WRITE,
      "block %" PRIu64 " of %s: %s %s bytes %" PRIu64 " to %" PRIu64 ", %s %s bytes %" PRIu64
      " to %" PRIu64 ", and nothing orders the second after the first",
      c->block->serial, c->block->device->name, first.text, record->write ? "writes" : "reads",
      node->begin, node->end, second.text, c->write ? "writes" : "reads", c->begin, c->end);
}

void late_shadow_check(late_block *block, uint64_t offset, uint64_t size, bool write,
                       const late_actor *actor) {
  checking c = {
      .block = block, .actor = actor, .begin = offset, .end = offset + size, .write = write};
  late_tree_visit(&block->shadow.records, offset, offset + size, check_record, &c);
}

bool late_shadow_check_free(late_block *block, const late_actor *actor) {
  checking c = {.block = block,
                .actor = actor,
                .end = UINT64_MAX,
                .write = true,
                .free = true,
                .clean = true};
  late_tree_visit(&block->shadow.records, 0, UINT64_MAX, check_record, &c);
  return c.clean;
}

typedef struct replacing {
  const late_actor *actor;
  uint64_t begin, end;
  bool write;
  doomed doomed;
} replacing;

/* A record is needed no more if whatever conflicts with it conflicts with the new access, too, and
 * is ordered after that only if it is ordered after both; or if nothing can come that is not after
 * it. */
static void find_replaced(void *user, late_node *node) {
  replacing *const r = user;
  late_record *const record = (late_record *)node;
  if (record->open)
    return;
  const bool inside = node->begin >= r->begin && node->end <= r->end;
  const bool covered = inside && (r->write || !record->write) && ordered(record, r->actor);
  if (covered || late_everybody_knows(record->epoch))
    doom(&r->doomed, record);
}

static void find_known(void *user, late_node *node) {
  doomed *const list = user;
  late_record *const record = (late_record *)node;
  if (!record->open && late_everybody_knows(record->epoch))
    doom(list, record);
}

/* Ranges that nobody touches again would stay for ever. */
static void sweep(late_shadow *shadow) {
  if (shadow->records.count < 2 * shadow->swept_at + 256)
    return;
  doomed list = {.count = 0};
  late_tree_visit(&shadow->records, 0, UINT64_MAX, find_known, &list);
  drop_doomed(shadow, &list);
  shadow->swept_at = shadow->records.count;
}

late_record *late_shadow_add(late_block *block, uint64_t offset, uint64_t size, bool write,
                             const late_actor *actor, bool open) {
  replacing r = {.actor = actor, .begin = offset, .end = offset + size, .write = write};
  late_tree_visit(&block->shadow.records, offset, offset + size, find_replaced, &r);
  drop_doomed(&block->shadow, &r.doomed);
  sweep(&block->shadow);

  late_record *const record = late_new(sizeof *record);
  record->range = (late_node){.begin = offset, .end = offset + size};
  record->write = write;
  record->open = open;
  record->beginning = actor->beginning;
  record->epoch = actor->epoch;
  record->what = actor->what;
  record->serial = actor->serial;
  record->stream = actor->stream != NULL ? actor->stream->serial : 0;
  late_epoch_retain(record->epoch);
  late_tree_insert(&block->shadow.records, &record->range);
  return record;
}

void late_record_close(late_record *record) {
  record->open = false;
}

static void doom_all(void *user, late_node *node) {
  doom(user, (late_record *)node);
}

void late_shadow_clear(late_shadow *shadow) {
  doomed list = {.count = 0};
  late_tree_visit(&shadow->records, 0, UINT64_MAX, doom_all, &list);
  drop_doomed(shadow, &list);
}

late_actor late_host_actor(const char *what) {
  late_context *const host = late_host();
  return (late_actor){
      .what = what,
      .serial = ++late.next_serial,
      .epoch = late_context_tick(host),
      .clock = &host->clock,
  };
}

void late_touch(const late_actor *actor, const late_access *accesses, size_t count,
                late_record **out_open) {
  for (size_t i = 0; i < count; i++) {
    const late_access *const a = &accesses[i];
    if (a->place.block != NULL && a->size > 0)
      late_shadow_check(a->place.block, a->place.offset, a->size, a->write, actor);
  }
  for (size_t i = 0; i < count; i++) {
    const late_access *const a = &accesses[i];
    late_record *record = NULL;
    if (a->place.block != NULL)
      a->place.block->pins++;
    if (a->place.block != NULL && a->size > 0) {
      record = late_shadow_add(a->place.block, a->place.offset, a->size, a->write, actor,
                               out_open != NULL);
    }
    if (out_open != NULL)
      out_open[i] = record;
  }
}
