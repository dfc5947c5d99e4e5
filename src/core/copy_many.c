/* Many copies at once: checked together, neighbours joined, small ones gathered, the rest moved one
 * after the other. */
#include <stdio.h>
#include <string.h>

#include "core/arguments.h"
#include "core/checked.h"
#include "core/copy_check.h"
#include "core/copy_gather.h"
#include "core/copy_stream.h"
#include "core/error.h"
#include "core/hazard.h"
#include "core/os.h"
#include "core/stream_impl.h"
#include "core/thread.h"

static const quay_copy_options defaults;

/* What is left after joining, and how far the progress has come. */
typedef struct many {
  quay__stream_pair *pairs;
  size_t count;
  const quay_copy_options *options;
  uint64_t done, total; /* bytes */
  uint64_t stopped;     /* where the progress callback has stopped a pair; 0: it has not */
  bool moved;           /* some bytes of a destination may have changed */
} many;

static quay_status check_pair(const quay_copy_pair *pair, const quay_copy_options *options) {
  const char *const function = "quay_copy_many";
  if (pair->destination == NULL || pair->source == NULL) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT, "%s: the %s is NULL", function,
                      pair->destination == NULL ? "destination" : "source");
  }
  QUAY_TRY(quay__copy_check(function, pair->destination, pair->destination_offset, pair->source,
                            pair->source_offset, pair->size, options));
  return quay__storage_check_readable(pair->source->storage);
}

static quay_status check_all(const quay_copy_pair *pairs, size_t count, many *out) {
  for (size_t i = 0; i < count; i++) {
    quay_status status = check_pair(&pairs[i], out->options);
    if (status == QUAY_OK && !quay__add(out->total, pairs[i].size, &out->total)) {
      status = quay__fail(QUAY_STATUS_INVALID_ARGUMENT,
                          "quay_copy_many: the sizes add up to more than 2^64-1 bytes");
    }
    if (status != QUAY_OK)
      return quay__error_append(" (pair %zu of %zu)", i, count);
  }
  QUAY_TRY(quay__copy_check_environment(out->total));
  if (out->options->stream != NULL && out->total != 0)
    QUAY_TRY(quay__stream_check(out->options->stream));
  /* Last, since it allocates. */
  for (size_t i = 0; i < count; i++) {
    if (quay__storage_make_writable(pairs[i].destination->storage) != QUAY_OK)
      return quay__error_append(" (pair %zu of %zu)", i, count);
  }
  return QUAY_OK;
}

/* Joining. */

static bool joins(const quay__stream_pair *before, const quay__stream_pair *after) {
  uint64_t size;
  return before->destination.storage == after->destination.storage &&
         before->source.storage == after->source.storage &&
         before->destination.side.offset + before->size == after->destination.side.offset &&
         before->source.side.offset + before->size == after->source.side.offset &&
         before->destination.storage != before->source.storage &&
         quay__add(before->size, after->size, &size);
}

static void join_all(const quay_copy_pair *pairs, size_t count, many *out) {
  for (size_t i = 0; i < count; i++) {
    const quay_copy_pair *pair = &pairs[i];
    if (pair->size == 0)
      continue;
    const quay__stream_pair next = {
        .destination = {quay__copy_side(pair->destination, pair->destination_offset),
                        pair->destination->storage},
        .source = {quay__copy_side(pair->source, pair->source_offset), pair->source->storage},
        .size = pair->size,
    };
    if (out->count != 0 && joins(&out->pairs[out->count - 1], &next)) {
      out->pairs[out->count - 1].size += next.size;
    } else {
      out->pairs[out->count++] = next;
    }
  }
}

/* Moving, on the host's time. */

static bool tell(void *user, uint64_t done, uint64_t total) {
  many *all = user;
  (void)total;
  if (all->options->progress(all->options->progress_user, all->done + done, all->total))
    return true;
  all->stopped = all->done + done;
  return false;
}

static quay_status move_one(many *all, const quay__stream_pair *pair) {
  quay_copy_options options = *all->options;
  if (options.progress != NULL) {
    options.progress = tell;
    options.progress_user = all;
  }
  bool moved = false;
  const quay_status status =
      quay__route_copy(&pair->destination.side, &pair->source.side, pair->size, &options, &moved);
  all->moved = all->moved || moved || status == QUAY_OK;
  all->done += pair->size;
  /* The router knows of this pair alone. */
  return all->stopped != 0 ? quay__copy_cancelled(all->stopped, all->total) : status;
}

/* Bytes of staging. */
static uint64_t allowed_of(const many *all) {
  const uint64_t most = all->options->max_staging_bytes;
  return most != 0 ? most : UINT64_MAX;
}

/* How many pairs from `first` on can be gathered together. */
static size_t gatherable(const many *all, size_t first) {
  if (allowed_of(all) < QUAY__GATHER_SLOT)
    return 0;
  const quay_allocator *to = all->pairs[first].destination.side.allocator;
  size_t count = 0;
  while (first + count < all->count) {
    const quay__stream_pair *pair = &all->pairs[first + count];
    if (pair->destination.side.allocator != to ||
        !quay__gathers(&pair->destination.side, &pair->source.side, pair->size))
      break;
    count++;
  }
  return count;
}

static quay_status gather(many *all, size_t first, size_t count, bool *out_done) {
  *out_done = false;
  quay__gather_piece *pieces = quay__os_calloc(count, sizeof pieces[0]);
  if (pieces == NULL)
    return QUAY_OK; /* they can go one by one */
  uint64_t bytes = 0;
  for (size_t i = 0; i < count; i++) {
    const quay__stream_pair *pair = &all->pairs[first + i];
    pieces[i] = (quay__gather_piece){pair->destination.side, pair->source.side, pair->size};
    bytes += pair->size;
  }
  bool moved = false;
  quay_status status = quay__gather(pieces, count, allowed_of(all), out_done, &moved);
  quay__os_free(pieces);
  all->moved = all->moved || moved;
  if (status != QUAY_OK || !*out_done)
    return status;
  all->done += bytes;
  return quay__copy_progress(all->options, all->done, all->total);
}

static quay_status wait_for_hazards(const many *all) {
  for (size_t i = 0; i < all->count; i++) {
    const quay__stream_pair *pair = &all->pairs[i];
    QUAY_TRY(
        quay__hazards_wait(pair->source.storage, pair->source.side.offset, pair->size, QUAY_READ));
    QUAY_TRY(quay__hazards_wait(pair->destination.storage, pair->destination.side.offset,
                                pair->size, QUAY_WRITE));
  }
  return QUAY_OK;
}

static quay_status move_now(many *all) {
  QUAY_TRY(wait_for_hazards(all));
  for (size_t i = 0; i < all->count;) {
    const size_t count = gatherable(all, i);
    bool done = false;
    if (count > 1)
      QUAY_TRY(gather(all, i, count, &done));
    if (!done)
      QUAY_TRY(move_one(all, &all->pairs[i]));
    i += done ? count : 1;
  }
  return QUAY_OK;
}

static quay_status sync_all(const many *all) {
  for (size_t i = 0; i < all->count; i++) {
    const quay__side *side = &all->pairs[i].destination.side;
    QUAY_TRY(side->allocator->vtable.flush(side->allocator, side->raw, side->offset,
                                           all->pairs[i].size));
  }
  return QUAY_OK;
}

/* Moves, synchronises where that is wanted, and says what a failure has left behind. */
static quay_status finish_now(many *all) {
  const quay_status status = move_now(all);
  if (status != QUAY_OK) {
    const char *left = all->moved ? "; all destinations' bytes are undefined now" : "";
    return quay__error_append("%s", left);
  }
  return all->options->sync ? sync_all(all) : QUAY_OK;
}

/* A progress callback makes every pair block: after all that was submitted to the stream they are
 * moved together, on the host's time. */
static quay_status move_after_stream(many *all) {
  quay_stream *stream = all->options->stream;
  for (size_t i = 0; i < all->count; i++) {
    const quay__stream_side *to = &all->pairs[i].destination, *from = &all->pairs[i].source;
    const quay__range read = {from->side.offset, all->pairs[i].size, QUAY_READ};
    const quay__range written = {to->side.offset, all->pairs[i].size, QUAY_WRITE};
    QUAY_TRY(quay__hazards_check(from->storage, &read, stream));
    QUAY_TRY(quay__hazards_check(to->storage, &written, stream));
  }
  QUAY_TRY(quay_stream_synchronize(stream));
  return finish_now(all);
}

/* In the order of a stream: at once where all can be submitted to it. */
static quay_status move_on_stream(many *all, const quay_copy_pair *pairs, size_t count) {
  if (all->options->progress != NULL)
    return move_after_stream(all);
  bool submits = true;
  for (size_t i = 0; i < all->count && submits; i++)
    submits = quay__stream_submits(&all->pairs[i], all->options);
  if (submits)
    return quay__stream_copy_many(all->pairs, all->count, all->options);
  for (size_t i = 0; i < count; i++) {
    QUAY_TRY(quay_buffer_copy_region(pairs[i].destination, pairs[i].destination_offset,
                                     pairs[i].source, pairs[i].source_offset, pairs[i].size,
                                     all->options));
  }
  return QUAY_OK;
}

/* A progress callback may give back what the caller has of the buffers. */
static void retain_all(const quay_copy_pair *pairs, size_t count) {
  for (size_t i = 0; i < count; i++) {
    (void)quay_buffer_retain(pairs[i].destination);
    (void)quay_buffer_retain((quay_buffer *)(uintptr_t)pairs[i].source);
  }
}

static void release_all(const quay_copy_pair *pairs, size_t count) {
  quay__error_shield();
  for (size_t i = 0; i < count; i++) {
    quay_buffer_release(pairs[i].destination);
    quay_buffer_release((quay_buffer *)(uintptr_t)pairs[i].source);
  }
  quay__error_unshield();
}

quay_status quay_copy_many(const quay_copy_pair *pairs, size_t count,
                           const quay_copy_options *options) {
  QUAY__MARK_CALLER();
  QUAY_TRY(quay__copy_check_options("quay_copy_many", options));
  if (count == 0)
    return QUAY_OK;
  QUAY__REQUIRE(pairs);
  many all = {.options = options != NULL ? options : &defaults};
  QUAY_TRY(check_all(pairs, count, &all));
  if (all.total == 0)
    return QUAY_OK;
  all.pairs = quay__os_calloc(count, sizeof all.pairs[0]);
  if (all.pairs == NULL)
    return quay__fail_out_of_memory((uint64_t)count * sizeof all.pairs[0], "many copies");
  join_all(pairs, count, &all);
  const bool keeps = all.options->progress != NULL;
  if (keeps)
    retain_all(pairs, count);
  const quay_status status =
      all.options->stream != NULL ? move_on_stream(&all, pairs, count) : finish_now(&all);
  if (keeps)
    release_all(pairs, count);
  quay__os_free(all.pairs);
  return status;
}
