/* Decides places in address ranges and never touches the memory: the book-keeping of the pool, and
 * usable without it. Knows nothing of streams, pages or backends.
 *
 * A region is a range of addresses from 0. It is divided without gaps into extents, each of which
 * is taken or a member of one of a few sets of free extents ("free and there", "free, without
 * memory" ...). Free neighbours of one set are one extent; of two sets they are two. A set finds
 * its best extent for a size in constant time, whatever the number of extents.
 *
 * Thread-safety of all of it: the caller's to synchronise. */
#ifndef QUAY_LAYERS_OFFSET_ALLOCATOR_H
#define QUAY_LAYERS_OFFSET_ALLOCATOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct quay__extent {
  uint64_t offset, size;              /* bytes, from the start of its region */
  struct quay__extent *lower, *upper; /* neighbours by address; NULL at the region's ends */
  union {
    struct quay__extent *next; /* while free: in its bin */
    void *owner;               /* while taken: the owner's */
  };
  struct quay__extent *previous; /* while free: in its bin */
  void *user;                    /* the owner's; NULL in a new extent */
  uint32_t region;               /* the owner's number of it */
  uint16_t set;                  /* below QUAY__OFFSETS_SETS, or QUAY__EXTENT_TAKEN */
  uint16_t mark;                 /* the owner's; 0 in a new extent */
} quay__extent;

_Static_assert(sizeof(quay__extent) == 64, "an extent is one cache line");

enum {
  QUAY__OFFSETS_SETS = 40,
  QUAY__EXTENT_TAKEN = 0xffff,
  /* Bins of a set: by size in granules, exact below 64, then 32 to each doubling. */
  QUAY__BIN_SPLIT_LOG2 = 5,
  QUAY__BIN_WORDS = 30,
  QUAY__BIN_COUNT = QUAY__BIN_WORDS * 64,
};

typedef struct quay__extent_set {
  uint64_t words;                 /* bit i: bits[i] is not 0 */
  uint64_t bits[QUAY__BIN_WORDS]; /* bit i of word w: bin 64 * w + i is not empty */
  quay__extent *bins[QUAY__BIN_COUNT];
  uint64_t bytes; /* of all its extents */
  uint64_t count;
} quay__extent_set;

typedef struct quay__offsets {
  uint32_t granule_log2;
  uint32_t spare_count;
  uint64_t bytes;                             /* of all regions */
  quay__extent *spare;                        /* unused extents, linked by `next` */
  void *chunks;                               /* the memory of all extents */
  quay__extent_set *sets[QUAY__OFFSETS_SETS]; /* NULL: not made */
  /* Asked before two neighbours of a set numbered `join_from` or above become one: whether they
   * may; `kept` then stands for both. NULL: they may. */
  bool (*join)(quay__extent *kept, quay__extent *gone, void *user);
  void *join_user;
  uint32_t join_from;
} quay__offsets;

/* Sizes and offsets are multiples of the granule, 2^granule_log2 bytes. */
void quay__offsets_init(quay__offsets *offsets, uint32_t granule_log2);
void quay__offsets_destroy(quay__offsets *offsets);

/* Makes set number `set`. False: no memory. */
bool quay__offsets_make_set(quay__offsets *offsets, uint32_t set);

/* Sees to it that there are `count` unused extents: adding a region uses one, taking at most two,
 * cutting two, and nothing else any. False: no memory. */
bool quay__offsets_provision(quay__offsets *offsets, uint32_t count);

/* An unused extent, for the caller's own ends, and back. There must be one. */
quay__extent *quay__offsets_spare_take(quay__offsets *offsets);
void quay__offsets_spare_put(quay__offsets *offsets, quay__extent *extent);

/* A region of one free extent. */
quay__extent *quay__offsets_add(quay__offsets *offsets, uint32_t region, uint64_t size,
                                uint32_t set);
/* Ends a region, all of which is the one extent, free or taken. */
void quay__offsets_remove(quay__offsets *offsets, quay__extent *whole);

/* Ends a region with all its extents, free and taken; `first` is the one at offset 0. */
void quay__offsets_drop(quay__offsets *offsets, quay__extent *first);

/* The extent of the set that fits best (the smallest of a few looked at, then the lowest), and
 * where in it a block would begin. NULL if none of it fits. */
quay__extent *quay__offsets_find(const quay__offsets *offsets, uint32_t set, uint64_t size,
                                 uint64_t alignment, uint64_t *out_offset);

/* Makes [offset, offset + size) of a free extent a taken one; what is left of it stays free. */
quay__extent *quay__offsets_take(quay__offsets *offsets, quay__extent *extent, uint64_t offset,
                                 uint64_t size);

/* Makes a taken extent a free one of a set, one with its neighbours of that set, and gives the
 * result. Can't fail and takes no memory. */
quay__extent *quay__offsets_give(quay__offsets *offsets, quay__extent *extent, uint32_t set);

/* Moves a free extent to another set. */
quay__extent *quay__offsets_move(quay__offsets *offsets, quay__extent *extent, uint32_t set);

/* Makes one taken extent of two taken neighbours, `upper` right above `lower`. */
quay__extent *quay__offsets_join(quay__offsets *offsets, quay__extent *lower, quay__extent *upper);

/* Divides a taken extent at an offset inside it and gives the upper part. */
quay__extent *quay__offsets_cut(quay__offsets *offsets, quay__extent *extent, uint64_t offset);

/* An extent out of the highest bin that is not empty, at most 1/32 smaller than the largest; NULL
 * of an empty set. And the next one in the order of falling size, within that. */
quay__extent *quay__offsets_largest(const quay__offsets *offsets, uint32_t set);
quay__extent *quay__offsets_next_smaller(const quay__offsets *offsets, const quay__extent *extent);

/* Bytes of the largest extent of a set. */
uint64_t quay__offsets_largest_size(const quay__offsets *offsets, uint32_t set);

/* The whole pages of `page` bytes, a power of two, within an extent: false if there are none. */
bool quay__extent_pages(const quay__extent *extent, uint64_t page, uint64_t *out_begin,
                        uint64_t *out_end);

/* Whether everything fits together, for tests and fuzzers: walks the region that `extent` is in. */
bool quay__offsets_check(const quay__offsets *offsets, const quay__extent *extent);

#endif
