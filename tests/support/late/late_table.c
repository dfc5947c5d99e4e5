/* Handles: a tag, a count of uses and a slot in one integer, so that a handle of another kind, or
 * one that was given back, is recognised and never taken for a newer object. */
#include <stdlib.h>

#include "late_internal.h"

enum {
  SLOT_BITS = 20,
  USE_BITS = 28
};

typedef struct entry {
  void *object;
  uint64_t handle;
  uint32_t uses;
  uint32_t next_unused; /* slot + 1; 0: none */
} entry;

static struct {
  entry *entries;
  uint32_t count, capacity;
  uint32_t unused; /* slot + 1; 0: none */
} table;

static entry *find(uint64_t handle) {
  const uint64_t slot = handle & ((1u << SLOT_BITS) - 1);
  if (slot >= table.count || table.entries[slot].object == NULL)
    return NULL;
  return table.entries[slot].handle == handle ? &table.entries[slot] : NULL;
}

static uint32_t take_slot(void) {
  if (table.unused != 0) {
    const uint32_t slot = table.unused - 1;
    table.unused = table.entries[slot].next_unused;
    return slot;
  }
  if (table.count == table.capacity) {
    table.capacity = table.capacity == 0 ? 64 : table.capacity * 2;
    table.entries = late_grow(table.entries, table.capacity * sizeof *table.entries);
  }
  table.entries[table.count] = (entry){.uses = 0};
  return table.count++;
}

uint64_t late_handle_add(late_tag tag, void *object) {
  const uint32_t slot = take_slot();
  entry *const taken = &table.entries[slot];
  taken->uses = (taken->uses + 1) & ((1u << USE_BITS) - 1);
  taken->object = object;
  taken->handle =
      (uint64_t)tag << (SLOT_BITS + USE_BITS) | (uint64_t)taken->uses << SLOT_BITS | slot;
  return taken->handle;
}

void *late_handle_get(late_tag tag, uint64_t handle) {
  if (handle >> (SLOT_BITS + USE_BITS) != (uint64_t)tag)
    return NULL;
  const entry *const found = find(handle);
  return found != NULL ? found->object : NULL;
}

void late_handle_remove(uint64_t handle) {
  entry *const found = find(handle);
  if (found == NULL)
    return;
  found->object = NULL;
  found->next_unused = table.unused;
  table.unused = (uint32_t)(found - table.entries) + 1;
}

void late_handles_clear(void) {
  free(table.entries);
  table.entries = NULL;
  table.count = table.capacity = table.unused = 0;
}
