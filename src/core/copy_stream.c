/* Copies and fills on a stream: see copy_stream.h. A copy is two brief uses of storages under one
 * number and one event, as a program's access is. */
#include "core/copy_stream.h"

#include <stdlib.h>
#include <string.h>

#include "core/os.h"
#include "core/pair_path.h"
#include "core/stream_impl.h"
#include "core/thread.h"

/* Which function of which side is submitted. */
typedef enum stream_way {
  STREAM_BLOCKS,
  STREAM_WITHIN,
  STREAM_ACROSS_BY_DESTINATION,
  STREAM_ACROSS_BY_SOURCE,
  STREAM_IN,      /* from pinned memory: read when the stream is there */
  STREAM_IN_READ, /* from other host memory: read on return */
  STREAM_OUT,     /* to pinned memory */
} stream_way;

typedef struct stream_choice {
  stream_way way;
  const char *reason;
} stream_choice;

/* Whether the allocator's functions take the stream. */
static bool takes(const quay_allocator *allocator, const quay_stream *stream) {
  return allocator->has_async && allocator->device == stream->device;
}

static bool same_backend(const quay_allocator *a, const quay_allocator *b) {
  return strcmp(a->device->backend, b->device->backend) == 0;
}

static bool pinned_host(const quay_allocator *allocator) {
  return allocator->kind == QUAY_MEMORY_PINNED && quay__host_accessible(allocator);
}

static bool overlapping(const quay__side *destination, const quay__side *source, uint64_t size) {
  return destination->raw != NULL && destination->raw == source->raw &&
         destination->offset < source->offset + size && source->offset < destination->offset + size;
}

/* `*out_reason` is left alone if `asked` has nothing to do with it. */
static bool goes_across(quay_allocator *asked, const quay__side *destination,
                        const quay__side *source, uint64_t size, const quay_stream *stream,
                        const char **out_reason) {
  if (!asked->has_across_async || !takes(asked, stream))
    return false;
  quay_across_info info = {.route = QUAY_ROUTE_DIRECT};
  const quay_raw_buffer lazy_destination = {.size = size, .owner = destination->allocator};
  const quay_raw_buffer lazy_source = {.size = size, .owner = source->allocator};
  const quay_raw_buffer *to = destination->raw != NULL ? destination->raw : &lazy_destination;
  const quay_raw_buffer *from = source->raw != NULL ? source->raw : &lazy_source;
  const quay__pair_path *const path = quay__pair_path_find(to, from);
  if (path == NULL && !same_backend(destination->allocator, source->allocator))
    return false;
  if (!asked->vtable.can_copy_across(asked, to, from, size, &info))
    return false;
  if (path != NULL)
    return path->can_submit(stream->device, stream->native, to, from, out_reason);
  *out_reason = "asynchronous on the stream";
  return true;
}

static stream_choice blocks(const char *reason) {
  return (stream_choice){.way = STREAM_BLOCKS, .reason = reason};
}

/* The ladder; see quay_copy_options.stream. */
static stream_choice choose(const quay__side *destination, const quay__side *source, uint64_t size,
                            const quay_copy_options *options) {
  const quay_stream *stream = options->stream;
  quay_allocator *to = destination->allocator, *from = source->allocator;
  if (options->progress != NULL)
    return blocks("it blocks, to call the progress callback");
  if (!stream->device->has_streams)
    return blocks("it blocks: the stream's device does everything at once");
  if (!takes(to, stream) && !takes(from, stream))
    return blocks("it blocks: neither side can be copied on this stream");
  if (overlapping(destination, source, size))
    return blocks("it blocks: the ranges overlap");
  if (quay__same_space(to, from) && takes(to, stream))
    return (stream_choice){STREAM_WITHIN, "asynchronous on the stream"};
  if (takes(to, stream) && pinned_host(from) && same_backend(to, from))
    return (stream_choice){STREAM_IN, "asynchronous on the stream, from pinned memory"};
  if (takes(from, stream) && pinned_host(to) && same_backend(to, from))
    return (stream_choice){STREAM_OUT, "asynchronous on the stream, to pinned memory"};
  const char *reason = "it blocks: one side is not memory of the stream's backend";
  if (goes_across(to, destination, source, size, stream, &reason))
    return (stream_choice){STREAM_ACROSS_BY_DESTINATION, reason};
  if (goes_across(from, destination, source, size, stream, &reason))
    return (stream_choice){STREAM_ACROSS_BY_SOURCE, reason};
  if (takes(to, stream) && quay__host_accessible(from) && from->kind != QUAY_MEMORY_FILE)
    return (stream_choice){STREAM_IN_READ, "on the stream, back once the source has been read"};
  return blocks(reason);
}

bool quay__stream_copies(const quay__side *destination, const quay__side *source, uint64_t size,
                         const quay_copy_options *options, const char **out_reason) {
  const stream_choice chosen = choose(destination, source, size, options);
  *out_reason = chosen.reason;
  return chosen.way != STREAM_BLOCKS;
}

/* Uses that are recorded under one number. */
typedef struct submission {
  quay_stream *stream;
  uint64_t id;
  size_t count, opened;
  quay__storage **storages; /* of each use */
  quay__range *ranges;
  const quay__storage *read_here; /* what the host has read on return; NULL: nothing */
} submission;

static void add_use(submission *s, const quay__stream_side *side, uint64_t size,
                    quay_use_mode mode) {
  s->storages[s->count] = side->storage;
  s->ranges[s->count++] = (quay__range){.offset = side->side.offset, .size = size, .mode = mode};
}

/* Brief uses are opened in the order of the storages' ids. At most two. */
static void sort_uses(submission *s) {
  if (s->count == 2 && s->storages[1]->id < s->storages[0]->id) {
    const quay__range range = s->ranges[0];
    quay__storage *storage = s->storages[0];
    s->storages[0] = s->storages[1];
    s->ranges[0] = s->ranges[1];
    s->storages[1] = storage;
    s->ranges[1] = range;
  }
}

/* How many uses from number i on are of one storage: these are opened at once. */
static size_t uses_of_storage(const submission *s, size_t i) {
  size_t end = i + 1;
  while (end < s->count && s->storages[end] == s->storages[i])
    end++;
  return end - i;
}

static void close_uses(submission *s, quay_event *event) {
  quay__error_shield();
  for (size_t i = 0; i < s->opened; i += uses_of_storage(s, i))
    quay__hazards_close(s->storages[i], s->id, s->storages[i] != s->read_here ? event : NULL);
  quay__error_unshield();
}

/* Has whoever touches the bytes wait for what conflicts. */
static quay_status order_use(const submission *s, size_t i) {
  const quay__range *range = &s->ranges[i];
  if (s->storages[i] != s->read_here)
    return quay__hazards_order(s->storages[i], range, s->stream);
  return quay__hazards_wait(s->storages[i], range->offset, range->size, range->mode);
}

/* Opens the uses, which are sorted, and makes the stream wait for what conflicts with them. On
 * error nothing is open. */
static quay_status open_uses(submission *s) {
  quay__copy_enter();
  s->id = quay__next_id();
  quay_status status = QUAY_OK;
  while (s->opened < s->count && status == QUAY_OK) {
    const size_t i = s->opened, n = uses_of_storage(s, i);
    status = quay__hazards_open(s->storages[i], &s->ranges[i], n, s->stream, s->id, true);
    s->opened += status == QUAY_OK ? n : 0;
  }
  for (size_t i = 0; i < s->count && status == QUAY_OK; i++)
    status = order_use(s, i);
  if (status != QUAY_OK)
    close_uses(s, NULL);
  return status;
}

/* Records one event for what was submitted, also if that failed: a part may be under way. */
static quay_status end(submission *s, quay_status submitted) {
  quay__error_state error;
  if (submitted != QUAY_OK) {
    (void)quay__copy_failed(quay__copy_may_have_moved(submitted));
    quay__error_save(&error);
  }
  quay_event *event = NULL;
  const quay_status recorded = quay__event_record_or_wait(s->stream, &event);
  close_uses(s, event);
  quay_event_release(event);
  if (submitted == QUAY_OK)
    return recorded;
  quay__error_restore(&error);
  return submitted;
}

static quay_status lend(const quay__side *side, uint64_t size, quay_use_mode mode) {
  return side->allocator->vtable.lend_async(side->allocator, side->raw, side->offset, size, mode);
}

static quay_status touch(const quay__side *side, unsigned char **out_address) {
  void *first = NULL;
  QUAY_TRY(side->allocator->vtable.host_pointer(side->allocator, side->raw, &first));
  *out_address = (unsigned char *)first + side->offset;
  return QUAY_OK;
}

/* Tells the side that is not entered, and finds its address where the other one is given that. */
static quay_status prepare(stream_way way, const quay__side *destination, const quay__side *source,
                           uint64_t size, unsigned char **out_host) {
  switch (way) {
  case STREAM_BLOCKS:
    return QUAY_OK;
  case STREAM_WITHIN:
    return destination->allocator != source->allocator ? lend(source, size, QUAY_READ) : QUAY_OK;
  case STREAM_ACROSS_BY_DESTINATION:
    return lend(source, size, QUAY_READ);
  case STREAM_ACROSS_BY_SOURCE:
    return lend(destination, size, QUAY_WRITE);
  case STREAM_IN:
    QUAY_TRY(lend(source, size, QUAY_READ));
    return touch(source, out_host);
  case STREAM_IN_READ:
    QUAY_TRY(source->allocator->vtable.lend(source->allocator, source->raw, source->offset, size,
                                            QUAY_READ));
    return touch(source, out_host);
  case STREAM_OUT:
    QUAY_TRY(lend(destination, size, QUAY_WRITE));
    return touch(destination, out_host);
  }
  return QUAY_OK;
}

static quay_status submit(stream_way way, const quay__side *d, const quay__side *s, uint64_t size,
                          unsigned char *host, uint64_t stream) {
  quay_allocator *to = d->allocator, *from = s->allocator;
  switch (way) {
  case STREAM_BLOCKS:
    return QUAY_OK;
  case STREAM_WITHIN:
    return to->vtable.copy_within_async(to, d->raw, d->offset, s->raw, s->offset, size, stream);
  case STREAM_ACROSS_BY_DESTINATION:
    return to->vtable.copy_across_async(to, d->raw, d->offset, s->raw, s->offset, size, stream);
  case STREAM_ACROSS_BY_SOURCE:
    return from->vtable.copy_across_async(from, d->raw, d->offset, s->raw, s->offset, size, stream);
  case STREAM_IN:
  case STREAM_IN_READ:
    return to->vtable.copy_in_async(to, d->raw, d->offset, host, size, stream);
  case STREAM_OUT:
    return from->vtable.copy_out_async(from, s->raw, s->offset, host, size, stream);
  }
  return QUAY_OK;
}

quay_status quay__stream_copy(const quay__stream_side *destination, const quay__stream_side *source,
                              uint64_t size, const quay_copy_options *options) {
  const quay__side *d = &destination->side, *s = &source->side;
  const stream_way way = choose(d, s, size, options).way;
  quay__storage *storages[2];
  quay__range ranges[2];
  submission copy = {.stream = options->stream, .storages = storages, .ranges = ranges};
  add_use(&copy, destination, size, QUAY_WRITE);
  add_use(&copy, source, size, QUAY_READ);
  if (way == STREAM_IN_READ) /* never the destination's storage: that is the device's */
    copy.read_here = source->storage;
  sort_uses(&copy);
  QUAY_TRY(open_uses(&copy));
  unsigned char *host = NULL;
  quay_status status = prepare(way, d, s, size, &host);
  if (status != QUAY_OK) {
    close_uses(&copy, NULL);
    return status;
  }
  status = submit(way, d, s, size, host, options->stream->native);
  return end(&copy, status);
}

/* What blocks. */

quay_status quay__stream_hold_sides(const quay__stream_side *destination,
                                    const quay__stream_side *source, uint64_t size,
                                    quay_stream *stream, quay__stream_hold *out_hold) {
  *out_hold = (quay__stream_hold){.stream = NULL};
  quay__range ranges[2];
  submission held = {.stream = stream, .storages = out_hold->storages, .ranges = ranges};
  add_use(&held, destination, size, QUAY_WRITE);
  if (source != NULL)
    add_use(&held, source, size, QUAY_READ);
  sort_uses(&held);
  held.id = quay__next_id();
  for (size_t i = 0; i < held.count; i += uses_of_storage(&held, i)) {
    const size_t n = uses_of_storage(&held, i);
    const quay_status status =
        quay__hazards_open(held.storages[i], &held.ranges[i], n, stream, held.id, true);
    if (status != QUAY_OK) {
      close_uses(&held, NULL);
      return status;
    }
    held.opened += n;
  }
  for (size_t i = 0; i < held.count; i++)
    (void)quay__storage_retain(held.storages[i]);
  out_hold->stream = stream;
  out_hold->id = held.id;
  out_hold->count = held.count;
  return QUAY_OK;
}

void quay__stream_let_go(const quay__stream_hold *hold) {
  if (hold->stream == NULL)
    return;
  quay__error_shield();
  for (size_t i = 0; i < hold->count; i++)
    quay__hazards_close(hold->storages[i], hold->id, NULL);
  for (size_t i = 0; i < hold->count; i++)
    quay__storage_release(hold->storages[i]);
  quay__error_unshield();
}

/* Many at once. */

typedef struct stream_use {
  quay__storage *storage;
  quay__range range;
} stream_use;

static int compare_storages(const void *a, const void *b) {
  const uint64_t left = ((const stream_use *)a)->storage->id;
  const uint64_t right = ((const stream_use *)b)->storage->id;
  return (left > right) - (left < right);
}

/* Fills in both sides' uses of all pairs, sorted. `sorted` has room for them. */
static void add_pairs(submission *s, const quay__stream_pair *pairs, size_t count,
                      stream_use *sorted) {
  for (size_t i = 0; i < count; i++) {
    add_use(s, &pairs[i].destination, pairs[i].size, QUAY_WRITE);
    add_use(s, &pairs[i].source, pairs[i].size, QUAY_READ);
  }
  for (size_t i = 0; i < s->count; i++)
    sorted[i] = (stream_use){s->storages[i], s->ranges[i]};
  qsort(sorted, s->count, sizeof sorted[0], compare_storages);
  for (size_t i = 0; i < s->count; i++) {
    s->storages[i] = sorted[i].storage;
    s->ranges[i] = sorted[i].range;
  }
}

/* Submits all pairs, whose uses are open, one after the other. */
static quay_status submit_pairs(const quay__stream_pair *pairs, size_t count,
                                const quay_copy_options *options) {
  for (size_t i = 0; i < count; i++) {
    const quay__side *d = &pairs[i].destination.side, *s = &pairs[i].source.side;
    const stream_way way = choose(d, s, pairs[i].size, options).way;
    unsigned char *host = NULL;
    QUAY_TRY(prepare(way, d, s, pairs[i].size, &host));
    QUAY_TRY(submit(way, d, s, pairs[i].size, host, options->stream->native));
  }
  return QUAY_OK;
}

bool quay__stream_submits(const quay__stream_pair *pair, const quay_copy_options *options) {
  const stream_way way =
      choose(&pair->destination.side, &pair->source.side, pair->size, options).way;
  return way != STREAM_BLOCKS && way != STREAM_IN_READ;
}

quay_status quay__stream_copy_many(const quay__stream_pair *pairs, size_t count,
                                   const quay_copy_options *options) {
  const size_t uses = 2 * count;
  submission copies = {.stream = options->stream,
                       .storages = quay__os_calloc(uses, sizeof(quay__storage *)),
                       .ranges = quay__os_calloc(uses, sizeof copies.ranges[0])};
  stream_use *sorted = quay__os_calloc(uses, sizeof sorted[0]);
  quay_status status;
  if (copies.storages == NULL || copies.ranges == NULL || sorted == NULL) {
    status = quay__fail_out_of_memory((uint64_t)uses * 2 * sizeof sorted[0], "many copies");
  } else {
    add_pairs(&copies, pairs, count, sorted);
    status = open_uses(&copies);
    if (status == QUAY_OK)
      status = end(&copies, submit_pairs(pairs, count, options));
  }
  quay__os_free(sorted);
  quay__os_free(copies.ranges);
  quay__os_free(copies.storages);
  return status;
}

bool quay__stream_fills(const quay_allocator *allocator, const quay_stream *stream) {
  return takes(allocator, stream);
}

quay_status quay__stream_fill(const quay__stream_side *side, uint64_t size, const void *pattern,
                              size_t pattern_size, quay_stream *stream) {
  quay__storage *written;
  quay__range range;
  submission fill = {.stream = stream, .storages = &written, .ranges = &range};
  add_use(&fill, side, size, QUAY_WRITE);
  QUAY_TRY(open_uses(&fill));
  quay_allocator *allocator = side->side.allocator;
  return end(&fill, allocator->vtable.fill_async(allocator, side->side.raw, side->side.offset, size,
                                                 pattern, pattern_size, stream->native));
}
