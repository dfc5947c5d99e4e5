#include "core/stretches.h"

#include <stddef.h>

#include "core/checked.h"

/* Long enough for the read-ahead to grow to its largest, some 8 MiB; no longer, so that a disk that
 * turns does not seek across a whole file. */
#define LENGTH_MAX ((uint64_t)32 << 20)

void quay__stretches_begin(quay__stretches *all, uint64_t size, uint32_t threads, uint64_t piece) {
  const uint64_t share = (size - 1) / threads + 1;
  const uint64_t pieces = quay__min((share - 1) / piece + 1, quay__max(LENGTH_MAX / piece, 1));
  *all = (quay__stretches){.size = size, .piece = piece, .length = pieces * piece};
}

static uint64_t left_of(const quay__stretch *stretch) {
  return stretch->end - stretch->at;
}

/* The reader's; else one of which nothing is left; else NULL. */
static quay__stretch *place_for(quay__stretches *all, const void *reader) {
  quay__stretch *done = NULL;
  for (uint32_t i = 0; i < QUAY__STRETCHES; i++) {
    quay__stretch *stretch = &all->each[i];
    if (stretch->reader == reader)
      return stretch;
    if (done == NULL && left_of(stretch) == 0)
      done = stretch;
  }
  return done;
}

static quay__stretch *longest(quay__stretches *all) {
  quay__stretch *found = &all->each[0];
  for (uint32_t i = 1; i < QUAY__STRETCHES; i++) {
    if (left_of(&all->each[i]) > left_of(found))
      found = &all->each[i];
  }
  return found;
}

/* Gives `place` the second half of `from`, in whole pieces; or leaves both as they are. */
static quay__stretch *halve(const quay__stretches *all, quay__stretch *from, quay__stretch *place,
                            const void *reader) {
  const uint64_t half = from->at + left_of(from) / 2;
  const uint64_t middle = half + (all->piece - half % all->piece) % all->piece;
  if (place == NULL || middle >= from->end)
    return from;
  *place = (quay__stretch){.reader = reader, .at = middle, .end = from->end};
  from->end = middle;
  return place;
}

uint64_t quay__stretches_take(quay__stretches *all, const void *reader, uint64_t most,
                              uint64_t *out_at) {
  quay__stretch *stretch = place_for(all, reader);
  if (stretch == NULL || left_of(stretch) == 0) {
    if (stretch != NULL && all->dealt != all->size) {
      const uint64_t length = quay__min(all->length, all->size - all->dealt);
      *stretch = (quay__stretch){reader, all->dealt, all->dealt + length};
      all->dealt += length;
    } else {
      stretch = halve(all, longest(all), stretch, reader);
    }
  }
  const uint64_t size = quay__min(most, left_of(stretch));
  *out_at = stretch->at;
  stretch->at += size;
  return size;
}
