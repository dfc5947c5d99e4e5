/* The live blocks of a track layer: ordered by address in a treap, and by serial number in a list.
 * Knows nothing of allocators and allocates nothing; the caller locks. */
#ifndef QUAY_LAYERS_TRACK_INDEX_H
#define QUAY_LAYERS_TRACK_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Where a block stands in the order. Live blocks with bytes in them differ in their value; empty
 * ones may share it with each other and with one that is not empty. */
typedef struct quay__track_key {
  bool addressed; /* `value` is the first byte's address; else a hash of the handle */
  bool sized;     /* not empty */
  uint64_t value;
  uint64_t serial;
} quay__track_key;

#define QUAY__TRACK_HANDLE_WORDS 6

typedef struct quay__track_entry {
  quay__track_key key;
  uint64_t size;                             /* bytes */
  uint64_t handle[QUAY__TRACK_HANDLE_WORDS]; /* for blocks that have no address */
  uint32_t stamp;                            /* 16 bits, also in the raw buffer's flags */
  bool reserved;                             /* address space: neither count nor bytes have it */
  int line;
  const char *file; /* NULL if no place was named */
  const void *caller;
  uint64_t priority;                         /* of the treap: larger is nearer to the root */
  struct quay__track_entry *left, *right;    /* of the treap */
  struct quay__track_entry *older, *younger; /* of the list */
} quay__track_entry;

typedef struct quay__track_index {
  quay__track_entry *root;
  quay__track_entry *oldest, *youngest;
  uint64_t count;
  uint64_t bytes;
} quay__track_index;

/* The serial numbers that are added grow. */
void quay__track_index_add(quay__track_index *index, quay__track_entry *entry);
void quay__track_index_remove(quay__track_index *index, quay__track_entry *entry);

/* The first entry that is not below `key` in the order, and the last that is below it; NULL if
 * there is none. */
quay__track_entry *quay__track_index_from(const quay__track_index *index, quay__track_key key);
quay__track_entry *quay__track_index_before(const quay__track_index *index, quay__track_key key);

/* The block that holds the byte at `address`; NULL if none does. */
quay__track_entry *quay__track_index_holder(const quay__track_index *index, uint64_t address);

#endif
