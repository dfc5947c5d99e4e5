/* The address space that was reserved through a layer, and how much of each piece is committed: for
 * layers that count memory. */
#ifndef QUAY_LAYERS_RESERVATIONS_H
#define QUAY_LAYERS_RESERVATIONS_H

#include <quay/backend.h>

#include "core/lock.h"

typedef struct quay__reservation {
  uint64_t address;
  uint64_t committed; /* bytes */
  struct quay__reservation *next;
} quay__reservation;

/* Few: a pool has one or two for each gigabyte. */
typedef struct quay__reservations {
  quay__lock lock; /* guards the list and what is in it */
  quay__reservation *first;
} quay__reservations;

void quay__reservations_init(quay__reservations *reservations);
void quay__reservations_destroy(quay__reservations *reservations);

/* Reserves through `inner` and remembers it.
 * Errors: those of reserve; UNSUPPORTED where reserved memory has no address; OUT_OF_HOST_MEMORY.
 */
quay_status quay__reservations_reserve(quay__reservations *reservations, quay_allocator *inner,
                                       uint64_t size, uint64_t alignment, quay_raw_buffer *out_raw);

/* Adds `size` bytes, modular, to what is committed of a reservation. */
void quay__reservations_count(quay__reservations *reservations, quay_allocator *inner,
                              const quay_raw_buffer *raw, uint64_t size);

/* Forgets the reservation that `raw` is, and tells how much of it was committed. False: it is a
 * block. */
bool quay__reservations_forget(quay__reservations *reservations, quay_allocator *inner,
                               const quay_raw_buffer *raw, uint64_t *out_committed);

#endif
