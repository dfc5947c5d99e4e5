/* The live blocks of a trace layer, found by their handles: what makes the log one that can be
 * replayed, whatever the program does. Knows nothing of allocators; the caller locks. */
#ifndef QUAY_LAYERS_TRACE_LIVE_H
#define QUAY_LAYERS_TRACE_LIVE_H

#include <stddef.h>
#include <stdint.h>

/* Enough bits that two handles never share one. */
typedef struct quay__trace_key {
  uint64_t words[2];
} quay__trace_key;

typedef struct quay__trace_block {
  struct quay__trace_block *next; /* in its bucket */
  quay__trace_key key;
  uint64_t pointer; /* as logged */
  uint64_t size;    /* bytes */
  uint64_t stream;
} quay__trace_block;

typedef struct quay__trace_live {
  quay__trace_block **buckets;
  size_t bucket_count; /* a power of two, or 0: all blocks are in `only` */
  size_t count;
  quay__trace_block *only;
} quay__trace_live;

/* Of a handle of `size` bytes, a multiple of 8. */
quay__trace_key quay__trace_key_of(const void *handle, size_t size);

/* Never fails: without memory for more buckets it becomes slower. */
void quay__trace_live_add(quay__trace_live *live, quay__trace_block *block);

/* Takes out the block with this key and size; NULL if there is none. The caller frees it. */
quay__trace_block *quay__trace_live_take(quay__trace_live *live, quay__trace_key key,
                                         uint64_t size);

/* Takes out a block that was logged with this pointer and is not empty, looking at every block;
 * NULL if there is none. */
quay__trace_block *quay__trace_live_take_at(quay__trace_live *live, uint64_t pointer);

/* Frees all blocks. */
void quay__trace_live_clear(quay__trace_live *live);

#endif
