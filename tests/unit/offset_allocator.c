/* The offset allocator: where blocks go, and what becomes of them. */
#include "layers/offset_allocator.h"

#include <criterion/criterion.h>

#include "support/random.h"

enum {
  GRANULE_LOG2 = 6,
  FREE = 0,
  BARE = 1
};

#define GRANULE ((uint64_t)1 << GRANULE_LOG2)

static quay__offsets offsets;

static quay__extent *begin(uint64_t size) {
  quay__offsets_init(&offsets, GRANULE_LOG2);
  cr_assert(quay__offsets_make_set(&offsets, FREE));
  cr_assert(quay__offsets_make_set(&offsets, BARE));
  cr_assert(quay__offsets_provision(&offsets, 8));
  return quay__offsets_add(&offsets, 7, size, FREE);
}

static quay__extent *take(uint64_t size, uint64_t alignment) {
  uint64_t offset = 0;
  cr_assert(quay__offsets_provision(&offsets, 4));
  quay__extent *const found = quay__offsets_find(&offsets, FREE, size, alignment, &offset);
  return found != NULL ? quay__offsets_take(&offsets, found, offset, size) : NULL;
}

static void give(quay__extent *extent) {
  quay__offsets_give(&offsets, extent, FREE);
}

TestSuite(offset_allocator);

Test(offset_allocator, blocks_of_a_fresh_region_lie_one_after_another) {
  begin(1 << 20);
  for (uint64_t i = 0; i < 4; i++) {
    const quay__extent *const block = take(3 * GRANULE, GRANULE);
    cr_assert_eq(block->offset, i * 3 * GRANULE);
    cr_assert_eq(block->region, 7);
  }
  quay__offsets_destroy(&offsets);
}

Test(offset_allocator, the_smallest_extent_that_fits_is_taken) {
  begin(1 << 20);
  static const uint64_t sizes[] = {40, 12, 10, 30}; /* granules */
  quay__extent *holes[4];
  for (size_t i = 0; i < 4; i++) {
    holes[i] = take(sizes[i] * GRANULE, GRANULE);
    cr_assert_not_null(take(GRANULE, GRANULE)); /* between them */
  }
  const uint64_t best = holes[1]->offset;
  for (size_t i = 0; i < 4; i++)
    give(holes[i]);
  cr_assert_eq(take(11 * GRANULE, GRANULE)->offset, best);
  quay__offsets_destroy(&offsets);
}

Test(offset_allocator, an_extent_of_exactly_the_size_wins_among_a_few_large_ones_of_one_bin) {
  begin(UINT64_C(1) << 30);
  /* 1000 to 1003 granules are in one bin. */
  quay__extent *holes[4];
  for (uint64_t i = 0; i < 4; i++) {
    holes[i] = take((1003 - i) * GRANULE, GRANULE);
    cr_assert_not_null(take(GRANULE, GRANULE));
  }
  const uint64_t exact = holes[2]->offset;
  for (size_t i = 0; i < 4; i++)
    give(holes[i]);
  cr_assert_eq(take(1001 * GRANULE, GRANULE)->offset, exact);
  quay__offsets_destroy(&offsets);
}

Test(offset_allocator, free_neighbours_become_one_extent_in_every_order_of_frees) {
  static const size_t orders[][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                     {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
  for (size_t order = 0; order < 6; order++) {
    const quay__extent *const first = begin(9 * GRANULE);
    quay__extent *blocks[3];
    for (size_t i = 0; i < 3; i++)
      blocks[i] = take(3 * GRANULE, GRANULE);
    cr_assert_null(take(GRANULE, GRANULE), "the region should be full");
    for (size_t i = 0; i < 3; i++)
      give(blocks[orders[order][i]]);
    cr_assert_eq(quay__offsets_largest_size(&offsets, FREE), 9 * GRANULE);
    cr_assert(quay__offsets_check(&offsets, first));
    quay__offsets_destroy(&offsets);
  }
}

Test(offset_allocator, neighbours_of_two_sets_stay_apart) {
  begin(8 * GRANULE);
  quay__extent *const lower = take(4 * GRANULE, GRANULE);
  quay__extent *const upper = take(4 * GRANULE, GRANULE);
  quay__offsets_give(&offsets, lower, FREE);
  quay__offsets_give(&offsets, upper, BARE);
  cr_assert_eq(quay__offsets_largest_size(&offsets, FREE), 4 * GRANULE);
  cr_assert_eq(quay__offsets_largest_size(&offsets, BARE), 4 * GRANULE);
  quay__offsets_move(&offsets, upper, FREE);
  cr_assert_eq(quay__offsets_largest_size(&offsets, FREE), 8 * GRANULE);
  quay__offsets_destroy(&offsets);
}

Test(offset_allocator, every_power_of_two_is_honoured_as_an_alignment) {
  const quay__extent *const first = begin(UINT64_C(1) << 34);
  for (uint32_t log2 = GRANULE_LOG2; log2 <= 30; log2++) {
    cr_assert_not_null(take(GRANULE, GRANULE)); /* shifts what comes next */
    const quay__extent *const block = take(5 * GRANULE, UINT64_C(1) << log2);
    cr_assert_eq(block->offset % (UINT64_C(1) << log2), 0, "2^%u", log2);
  }
  cr_assert(quay__offsets_check(&offsets, first));
  quay__offsets_destroy(&offsets);
}

Test(offset_allocator, what_lies_before_an_aligned_block_stays_free) {
  begin(1 << 20);
  cr_assert_not_null(take(GRANULE, GRANULE));
  cr_assert_eq(take(GRANULE, 4096)->offset, 4096);
  cr_assert_eq(take(4096 - GRANULE, GRANULE)->offset, GRANULE);
  quay__offsets_destroy(&offsets);
}

Test(offset_allocator, a_size_that_fits_nowhere_takes_nothing) {
  begin(100 * GRANULE);
  cr_assert_null(take(101 * GRANULE, GRANULE));
  cr_assert_null(take(UINT64_C(1) << 62, GRANULE));
  cr_assert_null(take(INT64_MAX & ~(GRANULE - 1), 1 << 30));
  cr_assert_eq(quay__offsets_largest_size(&offsets, FREE), 100 * GRANULE);
  quay__offsets_destroy(&offsets);
}

Test(offset_allocator, the_whole_pages_of_an_extent_are_those_within_it) {
  begin(1 << 20);
  cr_assert_not_null(take(GRANULE, GRANULE));
  quay__extent *const block = take(UINT64_C(3) * 4096, GRANULE);
  uint64_t from = 0, to = 0;
  cr_assert(quay__extent_pages(block, 4096, &from, &to));
  cr_assert_eq(from, 4096);
  cr_assert_eq(to, UINT64_C(3) * 4096);
  const quay__extent *const small = take(4096, GRANULE);
  cr_assert_not(quay__extent_pages(small, 4096, &from, &to));
  quay__offsets_destroy(&offsets);
}

Test(offset_allocator, a_dropped_region_leaves_no_extent_behind) {
  quay__extent *const first = begin(1 << 20);
  cr_assert_not_null(take(GRANULE, GRANULE));
  quay__extent *const hole = take(GRANULE, GRANULE);
  cr_assert_not_null(take(GRANULE, GRANULE));
  give(hole);
  cr_assert_eq(offsets.bytes, 1 << 20);
  quay__offsets_drop(&offsets, first);
  cr_assert_eq(offsets.bytes, 0);
  cr_assert_null(quay__offsets_largest(&offsets, FREE));
  cr_assert_eq(offsets.sets[FREE]->bytes, 0);
  quay__offsets_destroy(&offsets);
}

Test(offset_allocator, giving_takes_no_extent_from_the_stock) {
  begin(1 << 20);
  quay__extent *blocks[64];
  for (size_t i = 0; i < 64; i++)
    blocks[i] = take(2 * GRANULE, GRANULE);
  const uint32_t spare = offsets.spare_count;
  for (size_t i = 0; i < 64; i += 2)
    give(blocks[i]);
  cr_assert_eq(offsets.spare_count, spare);
  for (size_t i = 1; i < 64; i += 2)
    give(blocks[i]);
  cr_assert_eq(offsets.spare_count, spare + 64);
  quay__offsets_destroy(&offsets);
}

/* Looks at a bounded number of extents: with 100,000 free ones of one size as with ten. */
Test(offset_allocator, a_hundred_thousand_blocks_come_and_go) {
  enum {
    COUNT = 100000
  };
  static quay__extent *blocks[COUNT];
  const quay__extent *const first = begin(UINT64_C(1) << 32);
  uint64_t random = 3;
  for (size_t i = 0; i < COUNT; i++)
    blocks[i] = take((1 + quay_test_random(&random) % 100) * GRANULE, GRANULE);
  for (size_t i = 0; i < COUNT; i++) {
    const size_t at = quay_test_random(&random) % COUNT;
    give(blocks[at]);
    blocks[at] = take((1 + quay_test_random(&random) % 100) * GRANULE, GRANULE);
    cr_assert_not_null(blocks[at]);
  }
  cr_assert(quay__offsets_check(&offsets, first));
  for (size_t i = 0; i < COUNT; i++)
    give(blocks[i]);
  cr_assert_eq(quay__offsets_largest_size(&offsets, FREE), UINT64_C(1) << 32);
  quay__offsets_destroy(&offsets);
}
