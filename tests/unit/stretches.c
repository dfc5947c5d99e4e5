/* The order in which threads read a range from a disk. */
#include "core/stretches.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#define KIB UINT64_C(1024)
#define MIB (KIB * 1024)

static const char readers[QUAY__STRETCHES + 8];

static uint64_t take(quay__stretches *all, uint32_t reader, uint64_t most, uint64_t *out_at) {
  return quay__stretches_take(all, &readers[reader], most, out_at);
}

static void expect(quay__stretches *all, uint32_t reader, uint64_t at, uint64_t size) {
  uint64_t got_at;
  const uint64_t got = take(all, reader, MIB, &got_at);
  cr_assert_eq(got, size, "reader %u got %llu bytes", reader, (unsigned long long)got);
  cr_assert_eq(got_at, at, "reader %u got those from %llu on", reader, (unsigned long long)got_at);
}

static void expect_nothing_left(quay__stretches *all) {
  uint64_t at;
  for (uint32_t i = 0; i < QUAY__STRETCHES + 8; i++)
    cr_assert_eq(take(all, i, MIB, &at), 0u);
}

Test(stretches, each_reader_goes_along_a_stretch_of_its_own) {
  quay__stretches all;
  quay__stretches_begin(&all, 12 * MIB, 3, MIB);
  for (uint64_t i = 0; i < 4; i++) {
    for (uint32_t reader = 0; reader < 3; reader++)
      expect(&all, reader, (4 * reader + i) * MIB, MIB);
  }
  expect_nothing_left(&all);
}

Test(stretches, they_are_of_whole_pieces_but_for_the_last_one) {
  quay__stretches all;
  quay__stretches_begin(&all, 3 * MIB + 12345, 2, MIB);
  expect(&all, 0, 0, MIB);
  expect(&all, 1, 2 * MIB, MIB);
  expect(&all, 1, 3 * MIB, 12345);
  expect(&all, 0, MIB, MIB);
  expect_nothing_left(&all);
}

Test(stretches, long_ranges_are_dealt_in_several_rounds) {
  quay__stretches all;
  quay__stretches_begin(&all, 1024 * MIB, 2, MIB);
  for (uint64_t i = 0; i < 32; i++) {
    expect(&all, 0, i * MIB, MIB);
    expect(&all, 1, (32 + i) * MIB, MIB);
  }
  expect(&all, 1, 64 * MIB, MIB);
  expect(&all, 0, 96 * MIB, MIB);
}

Test(stretches, who_has_nothing_left_takes_half_of_what_the_slowest_one_has) {
  quay__stretches all;
  quay__stretches_begin(&all, 16 * MIB, 2, MIB);
  expect(&all, 0, 0, MIB);
  expect(&all, 1, 8 * MIB, MIB);
  for (uint64_t i = 1; i < 8; i++)
    expect(&all, 0, i * MIB, MIB);
  /* The other one has seven pieces, from 9 on. */
  for (uint64_t i = 13; i < 16; i++)
    expect(&all, 0, i * MIB, MIB);
  /* And now four. */
  expect(&all, 0, 11 * MIB, MIB);
  expect(&all, 1, 9 * MIB, MIB);
  expect(&all, 0, 12 * MIB, MIB);
  expect(&all, 0, 10 * MIB, MIB);
  expect_nothing_left(&all);
}

Test(stretches, what_a_reader_that_stays_away_has_left_is_read_by_others) {
  quay__stretches all;
  uint64_t at;
  quay__stretches_begin(&all, 64 * MIB, 16, MIB);
  for (uint32_t reader = 1; reader < 16; reader++)
    cr_assert_eq(take(&all, reader, MIB, &at), MIB);
  uint64_t read = 15 * MIB;
  for (uint64_t got = 1; got != 0; read += got)
    got = take(&all, 0, MIB, &at);
  cr_assert_eq(read, 64 * MIB);
}

Test(stretches, small_ranges_have_a_piece_for_each) {
  quay__stretches all;
  quay__stretches_begin(&all, 2 * MIB + 1, 16, MIB);
  expect(&all, 7, 0, MIB);
  expect(&all, 3, MIB, MIB);
  expect(&all, 5, 2 * MIB, 1);
  expect_nothing_left(&all);
}

/* Whatever is asked for, by however many, each byte is read once. */
static void read_at_random(uint64_t size, uint32_t threads, uint64_t piece, uint32_t used,
                           bool whole_pieces) {
  quay__stretches all;
  quay__stretches_begin(&all, size, threads, piece);
  unsigned char *seen = calloc(1, size);
  uint64_t read = 0, takes = 0;
  while (read < size) {
    uint64_t at;
    const uint64_t most = whole_pieces ? piece : 1 + (uint64_t)rand() % (3 * piece);
    const uint64_t got = take(&all, (uint32_t)rand() % used, most, &at);
    cr_assert(got != 0 && got <= most && at + got <= size);
    cr_assert(!whole_pieces || got == piece || at + got == size);
    for (uint64_t i = 0; i < got; i++)
      seen[at + i]++;
    read += got;
    takes++;
  }
  expect_nothing_left(&all);
  for (uint64_t i = 0; i < size; i++)
    cr_assert_eq(seen[i], 1);
  cr_assert(!whole_pieces || takes == (size - 1) / piece + 1);
  free(seen);
}

Test(stretches, every_byte_is_read_once) {
  srand(20);
  for (int i = 0; i < 400; i++) {
    const uint64_t piece = 1 + (uint64_t)rand() % 100, size = 1 + (uint64_t)rand() % 20000;
    const uint32_t threads = 1 + (uint32_t)rand() % 80, used = 1 + (uint32_t)rand() % 70;
    read_at_random(size, threads, piece, used, i % 2 == 0);
  }
}
