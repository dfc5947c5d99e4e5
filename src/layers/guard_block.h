/* One block of a guard layer: the program's bytes between two red zones, and how damage to them is
 * found. Knows nothing of other blocks and locks nothing. */
#ifndef QUAY_LAYERS_GUARD_BLOCK_H
#define QUAY_LAYERS_GUARD_BLOCK_H

#include <quay/layers.h>

#include "core/allocator_impl.h"

/* What bytes hold that the program has no business with. None is 0, which is what a stray write
 * most often writes, and none is what memory has by itself. */
enum {
  QUAY__GUARD_RED = 0xfb,   /* red zones */
  QUAY__GUARD_NEW = 0xcd,   /* allocated and not written yet */
  QUAY__GUARD_FREED = 0xdd, /* freed */
};

typedef struct quay__guard_block {
  uint64_t id;                /* counts the layer's allocations from 1 */
  quay_raw_buffer whole;      /* the inner allocator's: red zone, bytes, red zone */
  uint64_t front, size, back; /* bytes of the three */
  uint64_t address;           /* of the program's first byte; 0 where memory has none */
  unsigned char *host;        /* the first byte of `whole` for the host; NULL where it has none */
  uint64_t generation;        /* of the device when it was allocated */
  quay_event *filled; /* after what was filled in the order of a stream; NULL: all is there */
  const char *file;   /* the place that asked; NULL if none was named */
  int line;
  const void *caller;
  /* The layer's, guarded by its lock. */
  uint32_t pinned_in; /* somebody looks at it, so that it must not be freed: 1 more than the fork
                         generation of his process; 0: nobody */
  struct quay__guard_block *same_bucket, *older, *newer;
} quay__guard_block;

/* Fills red zones and, unless they are zero, the program's bytes, in the order of `stream` (NULL:
 * at once), and lets the host's tools know. */
quay_status quay__guard_block_begin(quay_allocator *inner, quay__guard_block *block,
                                    quay_stream *stream, bool zeroed);

/* Fills everything as freed. */
quay_status quay__guard_block_bury(quay_allocator *inner, quay__guard_block *block);

/* Gives the memory back in a state in which the inner allocator can use it, and frees what else
 * `block` has, itself too. */
void quay__guard_block_end(quay_allocator *inner, quay__guard_block *block,
                           quay_event *const *pending, size_t count);

/* Finds damage: up to two places, of a live block one for each red zone, of a buried one that
 * anywhere in it. Waits for the fill of a stream-ordered block. Nothing is found in memory of a
 * lost device or an older generation. The status tells whether all could be read. */
quay_status quay__guard_block_inspect(quay_allocator *inner, quay__guard_block *block, bool buried,
                                      quay_guard_damage out_damages[static 2], size_t *out_count);

#define QUAY__GUARD_TEXT_SIZE 768

/* "overrun: 3 bytes were written from offset 100 to 102 of 100 bytes at 0x..." */
void quay__guard_describe(const quay_guard_damage *damage,
                          char out_text[static QUAY__GUARD_TEXT_SIZE]);

#endif
