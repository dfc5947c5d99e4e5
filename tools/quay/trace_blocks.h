/* The live blocks of a log: from the pointers that it names to small numbers. */
#ifndef QUAY_TOOLS_TRACE_BLOCKS_H
#define QUAY_TOOLS_TRACE_BLOCKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct trace_block {
  uint64_t pointer;
  uint64_t size; /* bytes */
  uint64_t line; /* of the log, where it was allocated */
  uint32_t slot; /* less than `slots` below; no other live block has it */
} trace_block;

typedef struct trace_blocks {
  trace_block *table; /* open addressing, linear probing; a line of 0 is an empty place */
  size_t capacity;    /* a power of two, or 0 */
  size_t count;       /* live blocks */
  uint32_t *free_slots;
  size_t free_count;
  uint32_t slots; /* that were handed out so far: the most blocks that were live at once */
} trace_blocks;

/* Adds a live block and chooses its slot: the one that was given up last, so that a replay touches
 * few. Several blocks may have the same pointer. False if there is no memory. */
bool trace_blocks_add(trace_blocks *blocks, uint64_t pointer, uint64_t size, uint64_t line,
                      uint32_t *out_slot);

/* The live block at `pointer`, NULL if there is none. Valid until the next call. */
const trace_block *trace_blocks_find(const trace_blocks *blocks, uint64_t pointer);

/* Takes a block that was found out again. */
void trace_blocks_remove(trace_blocks *blocks, const trace_block *block);

void trace_blocks_free(trace_blocks *blocks);

#endif
