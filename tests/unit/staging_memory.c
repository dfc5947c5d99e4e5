/* Pieces of staging memory: at random, against a list of those that are taken. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "core/staging_memory.h"
#include "support/pattern.h"

#define KIB UINT64_C(1024)
#define MIB (KIB * 1024)

enum {
  LIVE_MAX = 200
};

typedef struct piece {
  unsigned char *memory;
  uint64_t size;
  unsigned char mark;
} piece;

static piece live[LIVE_MAX];
static unsigned count;
static uint64_t state;

static void teardown(void) {
  MUST(quay_shutdown());
}

TestSuite(staging_memory, .fini = teardown);

static uint64_t random_below(uint64_t limit) {
  state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return (state >> 33) % limit;
}

static void check_apart(const piece *fresh) {
  for (unsigned i = 0; i < count; i++) {
    const bool apart = fresh->memory + fresh->size <= live[i].memory ||
                       live[i].memory + live[i].size <= fresh->memory;
    cr_assert(apart, "two pieces share bytes");
  }
}

static bool take(uint64_t size, uint64_t budget) {
  const quay__staging_wish wish = {.size = size, .budget = budget};
  uint64_t segment = 0;
  bool full;
  piece fresh = {.memory = quay__staging_memory_take(&wish, &segment, &full),
                 .size = size,
                 .mark = (unsigned char)(1 + random_below(255))};
  if (fresh.memory == NULL)
    return false;
  check_apart(&fresh);
  memset(fresh.memory, fresh.mark, size);
  live[count++] = fresh;
  return true;
}

static void give(unsigned index) {
  const piece gone = live[index];
  for (uint64_t i = 0; i < gone.size; i += 511)
    cr_assert_eq(gone.memory[i], gone.mark);
  cr_assert_eq(gone.memory[gone.size - 1], gone.mark);
  quay__staging_memory_give(gone.memory, gone.size);
  live[index] = live[--count];
}

static void give_all(void) {
  while (count != 0)
    give(count - 1);
}

/* From a byte to three megabytes, so that runs begin and end anywhere in a word of pages. */
static uint64_t random_size(void) {
  switch (random_below(4)) {
  case 0:
    return 1 + random_below(16 * KIB);
  case 1:
    return 256 * KIB * (1 + random_below(4));
  case 2:
    return 1 + random_below(3 * MIB);
  default:
    return MIB;
  }
}

Test(staging_memory, pieces_never_share_a_byte) {
  for (state = 1; state < 4; state++) {
    for (int step = 0; step < 3000; step++) {
      if (count != 0 && (count == LIVE_MAX || random_below(5) < 2)) {
        give((unsigned)random_below(count));
      } else {
        cr_assert(take(random_size(), 512 * MIB));
      }
    }
    give_all();
  }
}

/* A hole is found wherever it begins and ends; its neighbours stay what they are. */
Test(staging_memory, every_hole_is_found_again) {
  enum {
    PIECES = 60
  };
  for (int i = 0; i < PIECES; i++)
    cr_assert(take((1 + (uint64_t)i % 7) * 68 * KIB, 256 * MIB));
  for (int round = 0; round < 200; round++) {
    const unsigned index = (unsigned)random_below(count);
    const piece gone = live[index];
    give(index);
    const quay__staging_wish wish = {.size = gone.size, .budget = 256 * MIB, .kept_only = true};
    uint64_t segment = 0;
    bool full;
    piece back = {.size = gone.size, .mark = gone.mark};
    back.memory = quay__staging_memory_take(&wish, &segment, &full);
    cr_assert_not_null(back.memory, "a hole of %llu bytes was not found",
                       (unsigned long long)gone.size);
    check_apart(&back);
    memset(back.memory, back.mark, back.size);
    live[count++] = back;
  }
  give_all();
}

/* The budget is used up by pieces with holes between them. */
Test(staging_memory, within_the_budget_there_is_what_fits_into_a_hole_and_no_more) {
  for (int i = 0; i < 16; i++)
    cr_assert(take(256 * KIB, 4 * MIB));
  for (int i = 0; i < 8; i++)
    give((unsigned)i); /* the last one takes its place: every other one */
  quay__staging_wish wish = {.size = 64 * MIB, .budget = 4 * MIB, .within_budget = true};
  const uint64_t gap = quay__staging_memory_gap(&wish);
  cr_assert_geq(gap, 256 * KIB);
  cr_assert_leq(gap, 2 * MIB);
  uint64_t segment = 0;
  bool full = false;
  wish.size = gap + 1;
  cr_assert_null(quay__staging_memory_take(&wish, &segment, &full));
  cr_assert(full);
  wish.size = gap;
  unsigned char *memory = quay__staging_memory_take(&wish, &segment, &full);
  cr_assert_not_null(memory);
  cr_assert_not(full);
  const piece fresh = {.memory = memory, .size = gap};
  check_apart(&fresh);
  quay__staging_memory_give(memory, gap);
  wish.size = gap + 1;
  wish.within_budget = false;
  memory = quay__staging_memory_take(&wish, &segment, &full);
  cr_assert_not_null(memory);
  quay__staging_memory_give(memory, gap + 1);
  give_all();
}
