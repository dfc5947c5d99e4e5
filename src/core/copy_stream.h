/* Copies and fills on a stream: which of them return early, and their submission, with what is
 * recorded for them. What blocks is copy.c's. */
#ifndef QUAY_CORE_COPY_STREAM_H
#define QUAY_CORE_COPY_STREAM_H

#include "core/copy_route.h"
#include "core/hazard.h"

/* One side of a copy on a stream; `side.raw` may be NULL for planning. */
typedef struct quay__stream_side {
  quay__side side;
  quay__storage *storage;
} quay__stream_side;

/* One of many copies, of more than 0 bytes, both sides allocated and in range. */
typedef struct quay__stream_pair {
  quay__stream_side destination, source;
  uint64_t size;
} quay__stream_pair;

/* Whether such a copy is submitted to the options' stream, which is there; the plan's reason. */
bool quay__stream_copies(const quay__side *destination, const quay__side *source, uint64_t size,
                         const quay_copy_options *options, const char **out_reason);

/* Submits a copy for which quay__stream_copies() is true. `size` is above 0, both sides are
 * allocated and in range. */
quay_status quay__stream_copy(const quay__stream_side *destination, const quay__stream_side *source,
                              uint64_t size, const quay_copy_options *options);

/* Whether the copy is submitted to the options' stream, and its source read only there. */
bool quay__stream_submits(const quay__stream_pair *pair, const quay_copy_options *options);

/* Submits copies of which that is true, with one event for all. */
quay_status quay__stream_copy_many(const quay__stream_pair *pairs, size_t count,
                                   const quay_copy_options *options);

/* What a copy that blocks on a stream has open while it runs: both sides, as brief uses. */
typedef struct quay__stream_hold {
  quay_stream *stream; /* NULL: nothing is open */
  uint64_t id;
  size_t count;
  quay__storage *storages[2];
} quay__stream_hold;

/* Opens both sides, so that conflicting calls on other streams wait until quay__stream_let_go(),
 * and keeps their storages as long.
 * The host has to wait for recorded work after this. BUSY and READ_ONLY as quay__hazards_open();
 * nothing is open then. */
quay_status quay__stream_hold_sides(const quay__stream_side *destination,
                                    const quay__stream_side *source, uint64_t size,
                                    quay_stream *stream, quay__stream_hold *out_hold);
/* Keeps the thread's error. */
void quay__stream_let_go(const quay__stream_hold *hold);

/* Whether a fill of its memory is submitted to `stream`, and the submission. */
bool quay__stream_fills(const quay_allocator *allocator, const quay_stream *stream);
quay_status quay__stream_fill(const quay__stream_side *side, uint64_t size, const void *pattern,
                              size_t pattern_size, quay_stream *stream);

#endif
