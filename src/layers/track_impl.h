/* The track layer's state, shared by track.c, which keeps it, and track_query.c, which reads it. */
#ifndef QUAY_LAYERS_TRACK_IMPL_H
#define QUAY_LAYERS_TRACK_IMPL_H

#include <quay/layers.h>

#include "core/allocator_impl.h"
#include "core/lock.h"
#include "layers/track_index.h"

/* Frees that are remembered, so that a second one can be told from a foreign pointer. */
#define QUAY__TRACK_RECENT 64

typedef struct quay__track_layer {
  quay__lock lock; /* guards what follows up to `addresses` */
  quay__track_index live;
  quay__track_index adopted; /* may overlap live blocks and each other, and count nowhere */
  uint64_t serial;
  uint64_t peak_bytes;
  quay__track_entry recent[QUAY__TRACK_RECENT]; /* a ring of entries that were removed */
  uint64_t recent_count;
  atomic_int addresses;  /* private to track.c */
  quay_memory_kind kind; /* of all its blocks */
} quay__track_layer;

void quay__track_destroy(void *self);

/* Logs every live block; keeps the thread's error. */
void quay__track_report_leaks(quay_allocator *allocator);

quay_track_block quay__track_block_of(const quay__track_layer *layer,
                                      const quay__track_entry *entry);

/* The nearest live blocks on both sides of `address`, besides the one that holds it (NULL: none
 * does). With the lock held. */
void quay__track_find_neighbours(const quay__track_layer *layer, uint64_t address,
                                 const quay__track_entry *holder, quay_track_location *location);

#define QUAY__TRACK_TEXT_SIZE 512

/* "64 bytes of pageable memory at 0x..., allocation 3, asked for at main.c:12 (return address
 * 0x...)" */
void quay__track_describe(const quay_track_block *block,
                          char out_text[static QUAY__TRACK_TEXT_SIZE]);

#endif
