/* The order in which several threads read a large range from a disk. Each goes along a stretch of
 * its own, so that the kernel reads ahead in large requests, and into large pages, for each.
 * Threads that took neighbouring pieces in turn would look like one reader that jumps: the
 * read-ahead began anew with small requests again and again. */
#ifndef QUAY_CORE_STRETCHES_H
#define QUAY_CORE_STRETCHES_H

#include <stdint.h>

/* Threads that have one of their own; others help these. */
#define QUAY__STRETCHES 64u

typedef struct quay__stretch {
  const void *reader;
  uint64_t at, end; /* what is left of it; bytes into the range */
} quay__stretch;

/* Whoever uses one holds a lock of its own. */
typedef struct quay__stretches {
  uint64_t size;   /* of the range, bytes */
  uint64_t piece;  /* stretches begin at multiples of it */
  uint64_t length; /* of a stretch */
  uint64_t dealt;  /* bytes that belong to a stretch, or did */
  quay__stretch each[QUAY__STRETCHES];
} quay__stretches;

/* All are above 0. */
void quay__stretches_begin(quay__stretches *all, uint64_t size, uint32_t threads, uint64_t piece);

/* What `reader` reads next: at most `most` bytes, above 0, from `*out_at` on. Where nothing is left
 * but what others have, it takes half of the longest rest. Returns 0 if nothing is left at all.
 * A reader may stay away at any time. As long as all ask for one piece, all get a whole one, but
 * for the end of the range. */
uint64_t quay__stretches_take(quay__stretches *all, const void *reader, uint64_t most,
                              uint64_t *out_at);

#endif
