/* The live blocks of a log, in a hash table. Knows nothing of files and allocators. */
#include "trace_blocks.h"

#include <stdlib.h>

#define FIRST_CAPACITY 1024u

static size_t place_of(const trace_blocks *blocks, uint64_t pointer) {
  /* Fibonacci hashing: the high bits of the product depend on all bits of the pointer. */
  const uint64_t hash = pointer * UINT64_C(0x9e3779b97f4a7c15);
  return (size_t)(hash >> 20) & (blocks->capacity - 1);
}

static size_t next_place(const trace_blocks *blocks, size_t place) {
  return (place + 1) & (blocks->capacity - 1);
}

static void put(trace_blocks *blocks, const trace_block *block) {
  size_t place = place_of(blocks, block->pointer);
  while (blocks->table[place].line != 0)
    place = next_place(blocks, place);
  blocks->table[place] = *block;
}

/* Room for one more block, and for its slot when it is given up. */
static bool grow(trace_blocks *blocks) {
  if (blocks->count < blocks->capacity / 2)
    return true;
  trace_blocks larger = {.capacity = blocks->capacity != 0 ? 2 * blocks->capacity : FIRST_CAPACITY};
  larger.table = calloc(larger.capacity, sizeof *larger.table);
  if (larger.table == NULL)
    return false;
  uint32_t *const free_slots =
      realloc(blocks->free_slots, larger.capacity / 2 * sizeof *free_slots);
  if (free_slots == NULL) {
    free(larger.table);
    return false;
  }
  for (size_t i = 0; i < blocks->capacity; ++i) {
    if (blocks->table[i].line != 0)
      put(&larger, &blocks->table[i]);
  }
  free(blocks->table);
  blocks->table = larger.table;
  blocks->capacity = larger.capacity;
  blocks->free_slots = free_slots;
  return true;
}

bool trace_blocks_add(trace_blocks *blocks, uint64_t pointer, uint64_t size, uint64_t line,
                      uint32_t *out_slot) {
  if (!grow(blocks))
    return false;
  *out_slot = blocks->free_count > 0 ? blocks->free_slots[--blocks->free_count] : blocks->slots++;
  const trace_block block = {.pointer = pointer, .size = size, .line = line, .slot = *out_slot};
  put(blocks, &block);
  blocks->count++;
  return true;
}

const trace_block *trace_blocks_find(const trace_blocks *blocks, uint64_t pointer) {
  if (blocks->capacity == 0)
    return NULL;
  size_t place = place_of(blocks, pointer);
  while (blocks->table[place].line != 0 && blocks->table[place].pointer != pointer)
    place = next_place(blocks, place);
  return blocks->table[place].line != 0 ? &blocks->table[place] : NULL;
}

/* Closes the gap: whatever a search would no longer reach over it moves into it. */
void trace_blocks_remove(trace_blocks *blocks, const trace_block *block) {
  const size_t mask = blocks->capacity - 1;
  size_t gap = (size_t)(block - blocks->table);
  blocks->free_slots[blocks->free_count++] = block->slot;
  blocks->count--;
  for (size_t place = next_place(blocks, gap); blocks->table[place].line != 0;
       place = next_place(blocks, place)) {
    const size_t home = place_of(blocks, blocks->table[place].pointer);
    if (((place - home) & mask) >= ((place - gap) & mask)) {
      blocks->table[gap] = blocks->table[place];
      gap = place;
    }
  }
  blocks->table[gap].line = 0;
}

void trace_blocks_free(trace_blocks *blocks) {
  free(blocks->table);
  free(blocks->free_slots);
  *blocks = (trace_blocks){.table = NULL};
}
