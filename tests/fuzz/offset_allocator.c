/* Any sequence of operations on the offset allocator, beside a model that keeps the state of every
 * granule: extents never overlap, free ones of a set are found where one surely fits, neighbours of
 * one set are one extent. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layers/offset_allocator.h"

#include "check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum {
  GRANULE_LOG2 = 6,
  GRANULES = 512, /* of a region */
  REGIONS = 2,
  SETS = 3,
  BLOCKS = 64,
  TAKEN = 100 /* and the number of the block */
};

typedef struct state {
  const uint8_t *data;
  size_t left;
  quay__offsets offsets;
  quay__extent *first[REGIONS];
  quay__extent *blocks[BLOCKS];
  uint8_t model[REGIONS][GRANULES]; /* a set's number, or TAKEN + block */
} state;

static uint32_t take(state *s, uint32_t limit) {
  uint32_t value = 0;
  for (uint32_t reach = 1; reach < limit && s->left > 0; reach <<= 8) {
    value = value << 8 | *s->data++;
    s->left--;
  }
  return value % limit;
}

static void paint(state *s, const quay__extent *extent, uint8_t from_set, bool any, uint8_t value) {
  const uint64_t begin = extent->offset >> GRANULE_LOG2;
  const uint64_t end = (extent->offset + extent->size) >> GRANULE_LOG2;
  CHECK(end <= GRANULES && begin < end);
  for (uint64_t i = begin; i < end; i++) {
    CHECK(any || s->model[extent->region][i] == from_set);
    s->model[extent->region][i] = value;
  }
}

/* The longest run of a set's granules. */
static uint64_t longest_run(const state *s, uint8_t set) {
  uint64_t longest = 0;
  for (uint32_t region = 0; region < REGIONS; region++) {
    uint64_t run = 0;
    for (uint32_t i = 0; i < GRANULES; i++) {
      run = s->model[region][i] == set ? run + 1 : 0;
      longest = run > longest ? run : longest;
    }
  }
  return longest << GRANULE_LOG2;
}

static void take_block(state *s) {
  const uint32_t number = take(s, BLOCKS);
  const uint32_t set = take(s, SETS);
  const uint64_t size = (uint64_t)(take(s, 4) == 0 ? take(s, 300) + 1 : take(s, 40) + 1)
                        << GRANULE_LOG2;
  const uint64_t alignment = UINT64_C(1) << (GRANULE_LOG2 + take(s, 8));
  if (s->blocks[number] != NULL)
    return;
  uint64_t offset = UINT64_MAX;
  CHECK(quay__offsets_provision(&s->offsets, 8));
  quay__extent *const found = quay__offsets_find(&s->offsets, set, size, alignment, &offset);
  if (found == NULL) {
    /* Its bin and the next may hold some that would fit, behind those that were looked at. */
    const uint64_t sure = size + alignment;
    CHECK(longest_run(s, (uint8_t)set) <= sure + sure / 16 + (2u << GRANULE_LOG2));
    return;
  }
  CHECK(found->set == set && offset % alignment == 0);
  CHECK(offset >= found->offset && offset + size <= found->offset + found->size);
  quay__extent *const taken = quay__offsets_take(&s->offsets, found, offset, size);
  CHECK(taken->offset == offset && taken->size == size && taken->set == QUAY__EXTENT_TAKEN);
  paint(s, taken, (uint8_t)set, false, (uint8_t)(TAKEN + number));
  s->blocks[number] = taken;
}

static void give_block(state *s) {
  const uint32_t number = take(s, BLOCKS);
  const uint32_t set = take(s, SETS);
  quay__extent *const block = s->blocks[number];
  if (block == NULL)
    return;
  s->blocks[number] = NULL;
  paint(s, block, (uint8_t)(TAKEN + number), false, (uint8_t)set);
  const quay__extent *const merged = quay__offsets_give(&s->offsets, block, set);
  paint(s, merged, (uint8_t)set, false, (uint8_t)set);
}

static void cut_block(state *s) {
  const uint32_t number = take(s, BLOCKS);
  const uint32_t other = take(s, BLOCKS);
  quay__extent *const block = s->blocks[number];
  if (block == NULL || s->blocks[other] != NULL || block->size < 2u << GRANULE_LOG2)
    return;
  const uint64_t granules = block->size >> GRANULE_LOG2;
  const uint64_t below = 1 + take(s, (uint32_t)granules - 1);
  CHECK(quay__offsets_provision(&s->offsets, 2));
  s->blocks[other] = quay__offsets_cut(&s->offsets, block, block->offset + (below << GRANULE_LOG2));
  paint(s, s->blocks[other], (uint8_t)(TAKEN + number), false, (uint8_t)(TAKEN + other));
  if (take(s, 2) == 0) {
    paint(s, s->blocks[other], (uint8_t)(TAKEN + other), false, (uint8_t)(TAKEN + number));
    quay__offsets_join(&s->offsets, block, s->blocks[other]);
    s->blocks[other] = NULL;
  }
}

/* Moves the whole pages of the largest extent of a set to another one. */
static void move_pages(state *s) {
  const uint32_t from = take(s, SETS);
  const uint32_t to = take(s, SETS);
  const uint64_t page = UINT64_C(1) << (GRANULE_LOG2 + take(s, 6));
  quay__extent *const largest = quay__offsets_largest(&s->offsets, from);
  uint64_t begin, end;
  CHECK((largest == NULL) == (longest_run(s, (uint8_t)from) == 0));
  if (largest == NULL || !quay__extent_pages(largest, page, &begin, &end))
    return;
  CHECK(begin % page == 0 && end % page == 0 && begin - largest->offset < page);
  CHECK(largest->offset + largest->size - end < page);
  CHECK(quay__offsets_largest_size(&s->offsets, from) == longest_run(s, (uint8_t)from));
  CHECK(quay__offsets_provision(&s->offsets, 4));
  quay__extent *const pages = quay__offsets_take(&s->offsets, largest, begin, end - begin);
  paint(s, pages, (uint8_t)from, false, (uint8_t)to);
  quay__offsets_give(&s->offsets, pages, to);
}

static void check(const state *s) {
  for (uint32_t region = 0; region < REGIONS; region++) {
    CHECK(quay__offsets_check(&s->offsets, s->first[region]));
    uint64_t at = 0;
    for (const quay__extent *each = s->first[region]; each != NULL; each = each->upper) {
      for (; at < (each->offset + each->size) >> GRANULE_LOG2; at++) {
        const uint8_t model = s->model[region][at];
        CHECK(each->set == QUAY__EXTENT_TAKEN ? model >= TAKEN : model == each->set);
      }
    }
    CHECK(at == GRANULES);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static void (*const operations[])(state * s) = {take_block, take_block, give_block,
                                                  give_block, cut_block,  move_pages};
  state s = {.data = data, .left = size};
  quay__offsets_init(&s.offsets, GRANULE_LOG2);
  for (uint32_t set = 0; set < SETS; set++)
    CHECK(quay__offsets_make_set(&s.offsets, set));
  CHECK(quay__offsets_provision(&s.offsets, REGIONS));
  for (uint32_t region = 0; region < REGIONS; region++)
    s.first[region] = quay__offsets_add(&s.offsets, region, GRANULES << GRANULE_LOG2, 0);
  /* After each step of a short sequence, now and then in a long one. */
  const size_t every = 1 + size / 64;
  for (size_t step = 0; s.left > 0; step++) {
    operations[take(&s, sizeof operations / sizeof operations[0])](&s);
    if (step % every == 0)
      check(&s);
  }
  check(&s);
  for (uint32_t i = 0; i < BLOCKS; i++) {
    if (s.blocks[i] != NULL)
      quay__offsets_give(&s.offsets, s.blocks[i], 0);
  }
  quay__offsets_destroy(&s.offsets);
  return 0;
}
