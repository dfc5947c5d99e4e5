/* The offset allocator: extents linked by address, and sets of free ones binned by size. */
#include "layers/offset_allocator.h"

#include <string.h>

#include "core/checked.h"
#include "core/os.h"

/* How many extents of one bin are looked at for the one that fits best. */
enum {
  LOOK_AT = 4,
  CHUNK_EXTENTS = 255 /* and one for the chunk's own link: 16 KiB */
};

void quay__offsets_init(quay__offsets *offsets, uint32_t granule_log2) {
  memset(offsets, 0, sizeof *offsets);
  offsets->granule_log2 = granule_log2;
  offsets->join_from = QUAY__OFFSETS_SETS;
}

void quay__offsets_destroy(quay__offsets *offsets) {
  for (uint32_t i = 0; i < QUAY__OFFSETS_SETS; i++)
    quay__os_free(offsets->sets[i]);
  for (void *chunk = offsets->chunks; chunk != NULL;) {
    void *const next = *(void **)chunk;
    quay__os_free(chunk);
    chunk = next;
  }
  memset(offsets, 0, sizeof *offsets);
}

bool quay__offsets_make_set(quay__offsets *offsets, uint32_t set) {
  if (offsets->sets[set] == NULL)
    offsets->sets[set] = quay__os_calloc(1, sizeof(quay__extent_set));
  return offsets->sets[set] != NULL;
}

/* Unused extents. */

void quay__offsets_spare_put(quay__offsets *offsets, quay__extent *extent) {
  extent->next = offsets->spare;
  offsets->spare = extent;
  offsets->spare_count++;
}

bool quay__offsets_provision(quay__offsets *offsets, uint32_t count) {
  while (offsets->spare_count < count) {
    quay__extent *const chunk =
        quay__os_aligned_alloc(sizeof *chunk, (CHUNK_EXTENTS + 1) * sizeof *chunk);
    if (chunk == NULL)
      return false;
    *(void **)chunk = offsets->chunks;
    offsets->chunks = chunk;
    for (uint32_t i = CHUNK_EXTENTS; i > 0; i--)
      quay__offsets_spare_put(offsets, &chunk[i]);
  }
  return true;
}

quay__extent *quay__offsets_spare_take(quay__offsets *offsets) {
  quay__extent *const extent = offsets->spare;
  offsets->spare = extent->next;
  offsets->spare_count--;
  memset(extent, 0, sizeof *extent);
  extent->set = QUAY__EXTENT_TAKEN;
  return extent;
}

/* Bins. */

static uint32_t bin_of(const quay__offsets *offsets, uint64_t size) {
  const uint64_t granules = size >> offsets->granule_log2;
  if (granules < 2u << QUAY__BIN_SPLIT_LOG2)
    return (uint32_t)granules;
  const uint32_t log2 = 63 - (uint32_t)__builtin_clzll(granules);
  const uint32_t shift = log2 - QUAY__BIN_SPLIT_LOG2;
  const uint32_t bin = (shift << QUAY__BIN_SPLIT_LOG2) + (uint32_t)(granules >> shift);
  return bin < QUAY__BIN_COUNT ? bin : QUAY__BIN_COUNT - 1;
}

/* Whether sizes of one bin can differ. */
static bool is_exact(uint32_t bin) {
  return bin < 2u << QUAY__BIN_SPLIT_LOG2;
}

static void insert(quay__offsets *offsets, quay__extent *extent, uint32_t set_number) {
  quay__extent_set *const set = offsets->sets[set_number];
  const uint32_t bin = bin_of(offsets, extent->size);
  quay__extent **const head = &set->bins[bin];
  extent->set = (uint16_t)set_number;
  extent->previous = NULL;
  extent->next = *head;
  if (*head != NULL)
    (*head)->previous = extent;
  *head = extent;
  set->bits[bin / 64] |= UINT64_C(1) << bin % 64;
  set->words |= UINT64_C(1) << bin / 64;
  set->bytes += extent->size;
  set->count++;
}

static void extract(quay__offsets *offsets, quay__extent *extent) {
  quay__extent_set *const set = offsets->sets[extent->set];
  set->bytes -= extent->size;
  set->count--;
  if (extent->next != NULL)
    extent->next->previous = extent->previous;
  if (extent->previous != NULL) {
    extent->previous->next = extent->next;
  } else {
    const uint32_t bin = bin_of(offsets, extent->size);
    set->bins[bin] = extent->next;
    if (extent->next == NULL) {
      set->bits[bin / 64] &= ~(UINT64_C(1) << bin % 64);
      if (set->bits[bin / 64] == 0)
        set->words &= ~(UINT64_C(1) << bin / 64);
    }
  }
  extent->set = QUAY__EXTENT_TAKEN;
}

/* The first bin from `bin` on that is not empty, or QUAY__BIN_COUNT. */
static uint32_t next_bin(const quay__extent_set *set, uint32_t bin) {
  if (bin >= QUAY__BIN_COUNT)
    return QUAY__BIN_COUNT;
  const uint32_t word = bin / 64;
  const uint64_t here = set->bits[word] & (~UINT64_C(0) << bin % 64);
  if (here != 0)
    return word * 64 + (uint32_t)__builtin_ctzll(here);
  const uint64_t words = set->words & (~UINT64_C(0) << word << 1);
  if (words == 0)
    return QUAY__BIN_COUNT;
  const uint32_t found = (uint32_t)__builtin_ctzll(words);
  return found * 64 + (uint32_t)__builtin_ctzll(set->bits[found]);
}

/* The last bin below `end` that is not empty, or QUAY__BIN_COUNT. */
static uint32_t previous_bin(const quay__extent_set *set, uint32_t end) {
  const uint32_t word = end / 64;
  if (end % 64 != 0) {
    const uint64_t here = set->bits[word] & ~(~UINT64_C(0) << end % 64);
    if (here != 0)
      return word * 64 + 63 - (uint32_t)__builtin_clzll(here);
  }
  const uint64_t words = set->words & ~(~UINT64_C(0) << word);
  if (words == 0)
    return QUAY__BIN_COUNT;
  const uint32_t found = 63 - (uint32_t)__builtin_clzll(words);
  return found * 64 + 63 - (uint32_t)__builtin_clzll(set->bits[found]);
}

/* Finding. */

static bool fits(const quay__extent *extent, uint64_t size, uint64_t alignment,
                 uint64_t *out_offset) {
  uint64_t offset, end;
  if (!quay__align_up(extent->offset, alignment, &offset) || !quay__add(offset, size, &end))
    return false;
  *out_offset = offset;
  return end <= extent->offset + extent->size;
}

/* Of the first few extents of a bin, the smallest that fits, and of equals the lowest. */
static quay__extent *best_of_bin(quay__extent *first, uint64_t size, uint64_t alignment,
                                 uint64_t *out_offset) {
  quay__extent *best = NULL;
  uint32_t seen = 0;
  for (quay__extent *each = first; each != NULL && seen < LOOK_AT; each = each->next, seen++) {
    uint64_t offset;
    if (!fits(each, size, alignment, &offset))
      continue;
    if (best != NULL && (each->size > best->size ||
                         (each->size == best->size &&
                          (each->region > best->region ||
                           (each->region == best->region && each->offset > best->offset)))))
      continue;
    best = each;
    *out_offset = offset;
  }
  return best;
}

/* The bin from which on every extent fits. */
static uint32_t surely(const quay__offsets *offsets, uint64_t size, uint64_t alignment) {
  const uint64_t granule = UINT64_C(1) << offsets->granule_log2;
  uint64_t most = size;
  if (alignment > granule && !quay__add(size, alignment - granule, &most))
    return QUAY__BIN_COUNT;
  const uint32_t bin = bin_of(offsets, most);
  return is_exact(bin) ? bin : bin + 1;
}

quay__extent *quay__offsets_find(const quay__offsets *offsets, uint32_t set_number, uint64_t size,
                                 uint64_t alignment, uint64_t *out_offset) {
  const quay__extent_set *const set = offsets->sets[set_number];
  if (set == NULL || set->words == 0)
    return NULL;
  const uint32_t sure = surely(offsets, size, alignment);
  for (uint32_t bin = next_bin(set, bin_of(offsets, size)); bin < QUAY__BIN_COUNT;
       bin = next_bin(set, bin + 1)) {
    quay__extent *const best = best_of_bin(set->bins[bin], size, alignment, out_offset);
    if (best != NULL)
      return best;
    /* Enough of bins where it is a matter of luck. */
    if (bin + 1 < sure && bin > bin_of(offsets, size) + 2)
      bin = sure - 1;
  }
  return NULL;
}

quay__extent *quay__offsets_largest(const quay__offsets *offsets, uint32_t set_number) {
  const quay__extent_set *const set = offsets->sets[set_number];
  if (set == NULL || set->words == 0)
    return NULL;
  return set->bins[previous_bin(set, QUAY__BIN_COUNT)];
}

quay__extent *quay__offsets_next_smaller(const quay__offsets *offsets, const quay__extent *extent) {
  if (extent->next != NULL)
    return extent->next;
  const quay__extent_set *const set = offsets->sets[extent->set];
  const uint32_t bin = previous_bin(set, bin_of(offsets, extent->size));
  return bin < QUAY__BIN_COUNT ? set->bins[bin] : NULL;
}

uint64_t quay__offsets_largest_size(const quay__offsets *offsets, uint32_t set_number) {
  uint64_t size = 0;
  for (const quay__extent *each = quay__offsets_largest(offsets, set_number); each != NULL;
       each = each->next)
    size = quay__max(size, each->size);
  return size;
}

/* Regions. */

quay__extent *quay__offsets_add(quay__offsets *offsets, uint32_t region, uint64_t size,
                                uint32_t set) {
  quay__extent *const extent = quay__offsets_spare_take(offsets);
  extent->region = region;
  extent->size = size;
  offsets->bytes += size;
  insert(offsets, extent, set);
  return extent;
}

void quay__offsets_remove(quay__offsets *offsets, quay__extent *whole) {
  if (whole->set != QUAY__EXTENT_TAKEN)
    extract(offsets, whole);
  offsets->bytes -= whole->size;
  quay__offsets_spare_put(offsets, whole);
}

void quay__offsets_drop(quay__offsets *offsets, quay__extent *first) {
  while (first != NULL) {
    quay__extent *const upper = first->upper;
    quay__offsets_remove(offsets, first);
    first = upper;
  }
}

/* Taking and giving. */

static void link_above(quay__extent *lower, quay__extent *upper) {
  upper->lower = lower;
  upper->upper = lower->upper;
  if (lower->upper != NULL)
    lower->upper->lower = upper;
  lower->upper = upper;
}

static void unlink(quay__extent *extent) {
  if (extent->lower != NULL)
    extent->lower->upper = extent->upper;
  if (extent->upper != NULL)
    extent->upper->lower = extent->lower;
}

quay__extent *quay__offsets_cut(quay__offsets *offsets, quay__extent *extent, uint64_t offset) {
  quay__extent *const upper = quay__offsets_spare_take(offsets);
  upper->region = extent->region;
  upper->offset = offset;
  upper->size = extent->offset + extent->size - offset;
  extent->size = offset - extent->offset;
  link_above(extent, upper);
  return upper;
}

/* What is left of a free extent stays what it was. */
static void leave(quay__offsets *offsets, quay__extent *rest, const quay__extent *of,
                  uint32_t set) {
  rest->user = of->user;
  rest->mark = of->mark;
  insert(offsets, rest, set);
}

quay__extent *quay__offsets_take(quay__offsets *offsets, quay__extent *extent, uint64_t offset,
                                 uint64_t size) {
  const uint32_t set = extent->set;
  extract(offsets, extent);
  quay__extent *taken = extent;
  if (offset + size < extent->offset + extent->size)
    leave(offsets, quay__offsets_cut(offsets, extent, offset + size), extent, set);
  if (offset > extent->offset) {
    taken = quay__offsets_cut(offsets, extent, offset);
    taken->user = extent->user;
    taken->mark = extent->mark;
    insert(offsets, extent, set);
  }
  return taken;
}

quay__extent *quay__offsets_join(quay__offsets *offsets, quay__extent *lower, quay__extent *upper) {
  lower->size += upper->size;
  unlink(upper);
  quay__offsets_spare_put(offsets, upper);
  return lower;
}

static bool may_join(const quay__offsets *offsets, uint32_t set, quay__extent *kept,
                     quay__extent *gone) {
  return set < offsets->join_from || offsets->join == NULL ||
         offsets->join(kept, gone, offsets->join_user);
}

quay__extent *quay__offsets_give(quay__offsets *offsets, quay__extent *extent, uint32_t set) {
  quay__extent *const upper = extent->upper;
  if (upper != NULL && upper->set == set && may_join(offsets, set, extent, upper)) {
    extract(offsets, upper);
    quay__offsets_join(offsets, extent, upper);
  }
  quay__extent *const lower = extent->lower;
  if (lower != NULL && lower->set == set && may_join(offsets, set, lower, extent)) {
    extract(offsets, lower);
    extent = quay__offsets_join(offsets, lower, extent);
  }
  insert(offsets, extent, set);
  return extent;
}

quay__extent *quay__offsets_move(quay__offsets *offsets, quay__extent *extent, uint32_t set) {
  extract(offsets, extent);
  return quay__offsets_give(offsets, extent, set);
}

bool quay__extent_pages(const quay__extent *extent, uint64_t page, uint64_t *out_begin,
                        uint64_t *out_end) {
  uint64_t begin;
  if (!quay__align_up(extent->offset, page, &begin))
    return false;
  *out_begin = begin;
  *out_end = quay__align_down(extent->offset + extent->size, page);
  return *out_begin < *out_end;
}

/* Checking. */

static bool in_bin(const quay__offsets *offsets, const quay__extent *extent) {
  const quay__extent_set *const set = offsets->sets[extent->set];
  const uint32_t bin = bin_of(offsets, extent->size);
  const quay__extent *each = set->bins[bin];
  while (each != NULL && each != extent)
    each = each->next;
  return each == extent && (set->bits[bin / 64] >> bin % 64 & 1) != 0 &&
         (set->words >> bin / 64 & 1) != 0;
}

static bool fits_to_upper(const quay__offsets *offsets, const quay__extent *extent) {
  const quay__extent *const upper = extent->upper;
  if (upper == NULL)
    return true;
  const bool should_be_one = upper->set == extent->set && extent->set != QUAY__EXTENT_TAKEN &&
                             extent->set < offsets->join_from;
  return upper->lower == extent && upper->offset == extent->offset + extent->size &&
         upper->region == extent->region && !should_be_one;
}

bool quay__offsets_check(const quay__offsets *offsets, const quay__extent *extent) {
  while (extent->lower != NULL)
    extent = extent->lower;
  if (extent->offset != 0)
    return false;
  for (; extent != NULL; extent = extent->upper) {
    if (extent->size == 0 || !fits_to_upper(offsets, extent))
      return false;
    if (extent->set != QUAY__EXTENT_TAKEN && !in_bin(offsets, extent))
      return false;
  }
  return true;
}
