/* Many small copies to one device's memory: gathered in page-locked slots, a slot at a time, and
 * submitted together. */
#ifndef QUAY_CORE_COPY_GATHER_H
#define QUAY_CORE_COPY_GATHER_H

#include "core/copy_route.h"

/* A piece is no larger. */
#define QUAY__GATHER_PIECE_MAX (UINT64_C(64) << 10)

/* Bytes of a slot; two are used where they may be. */
#define QUAY__GATHER_SLOT (UINT64_C(1) << 20)

typedef struct quay__gather_piece {
  quay__side destination, source;
  uint64_t size;
} quay__gather_piece;

/* Whether a copy can be such a piece. */
bool quay__gathers(const quay__side *destination, const quay__side *source, uint64_t size);

/* Moves pieces with one destination allocator, for each of which that is true; all is done on
 * return. Those whose sources follow each other are read by one call. `out_moved` as for
 * quay__route_copy(). `allowed`: bytes of slots, QUAY__GATHER_SLOT or more. `out_done` is false,
 * and nothing has moved, if there are no slots for it. */
quay_status quay__gather(const quay__gather_piece *pieces, size_t count, uint64_t allowed,
                         bool *out_done, bool *out_moved);

#endif
