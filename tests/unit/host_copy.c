/* Host copies, moves and fills, byte by byte. The source file is included, so that the stores of
 * older processors are tested on newer ones. */
#include "core/host_copy.c"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/os.h"
#include "support/parts.h"
#include "support/skip.h"

#define GUARD 256u
#define MOST  ((size_t)40 << 20)

static const size_t sizes[] = {0,
                               1,
                               2,
                               63,
                               64,
                               65,
                               4095,
                               4096,
                               65537,
                               1 << 20,
                               1048577,
                               3 << 20,
                               4206649,
                               (16 << 20) - 1,
                               16 << 20,
                               (16 << 20) + 12345,
                               (33 << 20) + 1};
#define SIZE_COUNT (sizeof sizes / sizeof sizes[0])

/* Bytes that differ from their neighbours near and far. */
QUAY_TEST_OWN_MEMORY static unsigned char byte_at(uint64_t index, unsigned seed) {
  const uint64_t mixed = (index + 1 + seed) * 0x9e3779b97f4a7c15u;
  return (unsigned char)(mixed >> 56);
}

static unsigned char *make_source(size_t size) {
  unsigned char *bytes = malloc(size);
  cr_assert_not_null(bytes);
  quay_test_write_data(bytes, size, 0, 0, byte_at);
  return bytes;
}

/* A block with guards before and behind, all 0xA5. */
static unsigned char *make_guarded(size_t size) {
  unsigned char *block = malloc(size + 2 * GUARD);
  cr_assert_not_null(block);
  memset(block, 0xA5, size + 2 * GUARD);
  return block;
}

static void check_guards(const unsigned char *block, size_t begin, size_t size, size_t total) {
  for (size_t i = 0; i < begin; i++)
    cr_assert_eq(block[i], 0xA5, "byte %zu before the destination changed", begin - i);
  for (size_t i = begin + size; i < total; i++)
    cr_assert_eq(block[i], 0xA5, "byte %zu behind the destination changed", i - begin - size);
}

static void check_copy(const unsigned char *source, size_t shift_to, size_t shift_from, size_t size,
                       uint32_t threads) {
  unsigned char *block = make_guarded(size);
  unsigned char *destination = block + GUARD - 64 + shift_to;
  quay__host_copy(destination, source + shift_from, size, threads);
  cr_assert_eq(memcmp(destination, source + shift_from, size), 0,
               "size %zu to +%zu from +%zu with %u threads", size, shift_to, shift_from, threads);
  check_guards(block, (size_t)(destination - block), size, size + 2 * GUARD);
  free(block);
}

Test(host_copy, copies_every_size_from_and_to_every_alignment_with_neighbours_untouched) {
  unsigned char *source = make_source(MOST);
  static const size_t shifts[][2] = {{0, 0}, {1, 0}, {0, 1}, {16, 48}, {63, 7}, {13, 61}};
  for (size_t s = 0; s < SIZE_COUNT; s++) {
    for (size_t k = 0; k < sizeof shifts / sizeof shifts[0]; k++) {
      check_copy(source, shifts[k][0], shifts[k][1], sizes[s], 1);
      check_copy(source, shifts[k][0], shifts[k][1], sizes[s], 3);
    }
  }
  free(source);
}

Test(host_copy, copies_the_same_with_any_number_of_threads) {
  unsigned char *source = make_source(MOST);
  static const uint32_t threads[] = {0, 1, 2, 5, 8, 31};
  for (size_t t = 0; t < sizeof threads / sizeof threads[0]; t++) {
    check_copy(source, 5, 3, (2 << 20) + 1, threads[t]);
    check_copy(source, 5, 3, (17 << 20) + 3, threads[t]);
  }
  free(source);
}

#if defined(__x86_64__)
static void check_blocks(void (*stream)(char *, const char *, uint64_t)) {
  const size_t size = 3 * STREAM_BLOCK;
  unsigned char *source = make_source(size + 1);
  unsigned char *block = quay__os_aligned_alloc(LINE, size + 2 * GUARD);
  cr_assert_not_null(block);
  memset(block, 0xA5, size + 2 * GUARD);
  stream((char *)block + GUARD, (const char *)source + 1, 3);
  _mm_sfence();
  cr_assert_eq(memcmp(block + GUARD, source + 1, size), 0);
  check_guards(block, GUARD, size, size + 2 * GUARD);
  quay__os_free(block);
  free(source);
}

Test(host_copy, streams_whole_blocks_with_the_stores_of_every_processor) {
  check_blocks(stream_blocks_sse2);
  if (__builtin_cpu_supports("avx2"))
    check_blocks(stream_blocks_avx2);
}
#endif

Test(host_copy, streams_ranges_shorter_than_a_line_or_a_block) {
  unsigned char *source = make_source(2 * STREAM_BLOCK);
  for (size_t size = 0; size < 2 * STREAM_BLOCK; size += size < 200 ? 1 : 1021) {
    unsigned char *block = make_guarded(size);
    quay__host_stream((char *)block + GUARD - 3, (const char *)source, size);
    cr_assert_eq(memcmp(block + GUARD - 3, source, size), 0, "size %zu", size);
    check_guards(block, GUARD - 3, size, size + 2 * GUARD);
    free(block);
  }
  free(source);
}

Test(host_copy, copies_ahead_every_size_from_and_to_every_alignment_with_neighbours_untouched) {
  static const size_t lengths[] = {0,     1,     63,    64,      2047,          2048,
                                   2049,  2111,  2112,  2113,    4096,          10239,
                                   10240, 10241, 65537, 1 << 20, (1 << 20) + 77};
  static const size_t shifts[][2] = {{0, 0}, {1, 0}, {0, 1}, {16, 48}, {63, 7}, {13, 61}};
  for (size_t s = 0; s < sizeof lengths / sizeof lengths[0]; s++) {
    for (size_t k = 0; k < sizeof shifts / sizeof shifts[0]; k++) {
      const size_t size = lengths[s];
      /* The source ends where its block does: nothing behind it is read. */
      unsigned char *source = make_source(size + shifts[k][1] + 1);
      unsigned char *from = source + shifts[k][1] + 1;
      unsigned char *block = make_guarded(size);
      unsigned char *destination = block + GUARD - 64 + shifts[k][0];
      quay__host_copy_ahead(destination, from, size);
      cr_assert_eq(memcmp(destination, from, size), 0, "size %zu to +%zu from +%zu", size,
                   shifts[k][0], shifts[k][1]);
      check_guards(block, (size_t)(destination - block), size, size + 2 * GUARD);
      free(block);
      free(source);
    }
  }
}

#if defined(__x86_64__)
static void check_lines(void (*copy)(char *, const char *, uint64_t)) {
  const size_t size = 3 * READ_AHEAD;
  unsigned char *source = make_source(size + 1), *block = make_guarded(size);
  copy((char *)block + GUARD - 3, (const char *)source + 1, size);
  cr_assert_eq(memcmp(block + GUARD - 3, source + 1, size), 0);
  check_guards(block, GUARD - 3, size, size + 2 * GUARD);
  free(block);
  free(source);
}

Test(host_copy, copies_ahead_by_the_loops_of_every_processor) {
  if (!__builtin_cpu_supports("avx2"))
    quay_test_skip("avx2", "this processor has no AVX2");
  check_lines(copy_lines_ahead);
  check_lines(copy_lines_ahead_on_both_sides);
}
#endif

/* Chunks must cover the range exactly, whatever the lead. */
Test(host_copy, chunks_follow_each_other_and_begin_at_pages_of_the_destination) {
  for (uint64_t lead = 0; lead < 4096; lead += 1365) {
    for (uint64_t size = 1; size < (40u << 20); size = size * 3 + 1) {
      const struct split split = {.size = size, .chunk = 512u << 10, .lead = lead};
      uint64_t end = 0;
      for (uint64_t i = 0; i < split_count(&split); i++) {
        uint64_t offset, length;
        split_range(&split, i, &offset, &length);
        cr_assert_eq(offset, end);
        cr_assert_gt(length, 0u);
        cr_assert(i == 0 || (offset - lead) % 4096 == 0);
        end = offset + length;
      }
      cr_assert_eq(end, size);
    }
  }
}

/* Plans. */

Test(host_copy, plans_one_piece_for_small_copies) {
  uint32_t threads = 77;
  uint64_t chunk = 77;
  quay__host_copy_plan(SHARED_BYTES - 1, 8, &threads, &chunk);
  cr_assert_eq(threads, 1u);
  cr_assert_eq(chunk, (uint64_t)SHARED_BYTES - 1);
}

Test(host_copy, two_threads_share_larger_copies_than_more_do) {
  uint32_t threads;
  uint64_t chunk;
  quay__host_copy_plan(SHARED_BY_TWO_BYTES - 1, 2, &threads, &chunk);
  cr_assert_eq(threads, 1u);
  cr_assert_eq(chunk, (uint64_t)SHARED_BY_TWO_BYTES - 1);
  quay__host_copy_plan(SHARED_BY_TWO_BYTES, 2, &threads, &chunk);
  cr_assert_eq(threads, 2u);
  quay__host_copy_plan(SHARED_BYTES, 3, &threads, &chunk);
  cr_assert_eq(threads, 3u);
}

Test(host_copy, plans_chunks_of_pages_and_no_more_threads_than_chunks) {
  for (uint32_t asked = 2; asked <= 64; asked *= 2) {
    const uint64_t least = asked == 2 ? SHARED_BY_TWO_BYTES : SHARED_BYTES;
    for (uint64_t size = least; size < (8ull << 30); size *= 3) {
      uint32_t threads;
      uint64_t chunk;
      quay__host_copy_plan(size, asked, &threads, &chunk);
      cr_assert_leq(threads, asked);
      cr_assert_geq(threads, 2u);
      cr_assert_eq(chunk % 4096, 0u);
      cr_assert_leq(chunk, (uint64_t)CHUNK_MAX);
      cr_assert_geq(size, (threads - 1) * chunk);
    }
  }
}

Test(host_copy, plans_with_the_threads_of_the_environment) {
  uint32_t threads;
  uint64_t chunk;
  cr_assert_eq(setenv("QUAY_COPY_THREADS", "3", 1), 0);
  quay__host_copy_plan(1u << 30, 0, &threads, &chunk);
  cr_assert_eq(threads, 3u);
  cr_assert_eq(chunk, 4u << 20);
}

Test(host_copy, a_bad_number_of_threads_in_the_environment_means_the_default_and_sets_no_error) {
  uint32_t threads;
  uint64_t chunk;
  quay_error_clear();
  cr_assert_eq(setenv("QUAY_COPY_THREADS", "many", 1), 0);
  quay__host_copy_plan(1u << 30, 0, &threads, &chunk);
  cr_assert_eq(threads, quay__min(8, quay__os_processor_count()));
  cr_assert_eq(quay_last_error()->status, QUAY_OK);
}

/* Moves. */

static void check_move(size_t size, size_t distance, bool forward) {
  const size_t total = size + distance;
  unsigned char *moved = make_source(total);
  unsigned char *model = make_source(total);
  const size_t from = forward ? 0 : distance, to = forward ? distance : 0;
  quay__host_move(moved + to, moved + from, size, 3);
  memmove(model + to, model + from, size);
  cr_assert_eq(memcmp(moved, model, total), 0, "size %zu, distance %zu", size, distance);
  free(moved);
  free(model);
}

Test(host_copy, moves_overlapping_ranges_both_ways_as_memmove) {
  static const size_t moved[] = {1, 64, 4097, 1048577, (17 << 20) + 5};
  for (size_t i = 0; i < sizeof moved / sizeof moved[0]; i++) {
    const size_t distances[] = {0, 1, 63, 4096, moved[i] / 2, moved[i] - 1, moved[i], moved[i] + 1};
    for (size_t k = 0; k < sizeof distances / sizeof distances[0]; k++) {
      check_move(moved[i], distances[k], true);
      check_move(moved[i], distances[k], false);
    }
  }
}

/* Fills. */

static void check_fill(size_t patterns, const unsigned char *pattern, size_t pattern_size) {
  const size_t size = patterns * pattern_size;
  unsigned char *block = make_guarded(size);
  unsigned char *destination = block + GUARD - 7;
  quay__host_fill(destination, size, pattern, pattern_size);
  for (size_t i = 0; i < size; i++) {
    if (destination[i] != pattern[i % pattern_size])
      cr_assert_fail("byte %zu of %zu is wrong, pattern of %zu", i, size, pattern_size);
  }
  check_guards(block, GUARD - 7, size, size + 2 * GUARD);
  free(block);
}

Test(host_copy, fills_with_patterns_of_every_size) {
  static const size_t patterns[] = {0, 1, 2, 3, 255, 256, 257, 4096, 4097, 300001};
  static const unsigned char distinct[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
  for (size_t width = 1; width <= 16; width *= 2) {
    for (size_t i = 0; i < sizeof patterns / sizeof patterns[0]; i++)
      check_fill(patterns[i], distinct, width);
  }
}

Test(host_copy, fills_with_patterns_of_one_repeated_byte) {
  static const unsigned char same[16] = {9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9};
  for (size_t width = 1; width <= 16; width *= 2) {
    check_fill(1, same, width);
    check_fill(1000003 / width, same, width);
  }
}

Test(host_copy, fills_large_ranges_with_several_threads) {
  static const unsigned char distinct[16] = {16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1};
  cr_assert_eq(setenv("QUAY_COPY_THREADS", "4", 1), 0);
  check_fill((20u << 20) + 1, distinct, 1);
  check_fill((1u << 20) + 1, distinct, 16);
}
