/* Copies between host memory and the target: every size, odd offsets on both sides, neighbours
 * untouched. */
#include "contract.h"

#include <stdlib.h>
#include <string.h>

/* Room around the windows, filled with bytes that must stay. */
#define ROOM 8192

static bool skip_offset(uint64_t size, uint64_t offset) {
  return size > CONTRACT_LARGE && offset != 0 && offset != 63 && offset != 4097;
}

Test(copy, copy_in_changes_the_window_and_nothing_beside_it) {
  static const uint64_t sizes[] = CONTRACT_SIZES;
  static const uint64_t offsets[] = CONTRACT_OFFSETS;
  quay_allocator *allocator = contract_open();
  for (size_t s = 0; s < CONTRACT_COUNT(sizes); s++) {
    for (size_t o = 0; o < CONTRACT_COUNT(offsets); o++) {
      if (skip_offset(sizes[s], offsets[o]))
        continue;
      const uint64_t total = sizes[s] + ROOM;
      quay_test_block expected = quay_test_block_make(total, 0, 1);
      quay_test_block source = quay_test_block_make(sizes[s], offsets[7 - o], 2 + o);
      quay_buffer *buffer = contract_buffer(allocator, total, 1);
      quay_buffer *window = contract_view(buffer, offsets[o], sizes[s]);
      CONTRACT_OK(quay_buffer_copy_in(window, source.data, sizes[s]));
      memcpy(expected.data + offsets[o], source.data, sizes[s]);
      contract_check_bytes(buffer, expected.data, "after copy_in into a window");
      quay_buffer_release(window);
      quay_buffer_release(buffer);
      quay_test_block_free(&source);
      quay_test_block_free(&expected);
    }
  }
  contract_close(allocator);
}

Test(copy, copy_out_reads_the_window_and_writes_nothing_beside_its_destination) {
  static const uint64_t sizes[] = CONTRACT_SIZES;
  static const uint64_t offsets[] = CONTRACT_OFFSETS;
  quay_allocator *allocator = contract_open();
  for (size_t s = 0; s < CONTRACT_COUNT(sizes); s++) {
    const uint64_t total = sizes[s] + ROOM;
    quay_test_block content = quay_test_block_make(total, 0, 3);
    quay_buffer *buffer = contract_buffer(allocator, total, 3);
    for (size_t o = 0; o < CONTRACT_COUNT(offsets); o++) {
      if (skip_offset(sizes[s], offsets[o]))
        continue;
      quay_test_block destination = quay_test_block_make(sizes[s], offsets[7 - o], 4);
      quay_buffer *window = contract_view(buffer, offsets[o], sizes[s]);
      CONTRACT_OK(quay_buffer_copy_out(window, destination.data, sizes[s]));
      cr_assert_eq(quay_test_difference(destination.data, content.data + offsets[o], sizes[s]),
                   sizes[s], "%zu bytes from offset %zu", (size_t)sizes[s], (size_t)offsets[o]);
      cr_assert(quay_test_block_intact(&destination), "wrote beside %zu bytes", (size_t)sizes[s]);
      quay_buffer_release(window);
      quay_test_block_free(&destination);
    }
    contract_check_bytes(buffer, content.data, "the source after copy_out");
    quay_buffer_release(buffer);
    quay_test_block_free(&content);
  }
  contract_close(allocator);
}

Test(copy, a_size_mismatch_is_refused_and_moves_nothing) {
  quay_allocator *allocator = contract_open();
  quay_test_block content = quay_test_block_make(1000, 0, 5);
  quay_test_block other = quay_test_block_make(1001, 0, 6);
  quay_buffer *buffer = contract_buffer(allocator, 1000, 5);
  CONTRACT_FAILS(quay_buffer_copy_in(buffer, other.data, 999), QUAY_STATUS_SIZE_MISMATCH);
  CONTRACT_FAILS(quay_buffer_copy_in(buffer, other.data, 1001), QUAY_STATUS_SIZE_MISMATCH);
  CONTRACT_FAILS(quay_buffer_copy_in(buffer, other.data, 0), QUAY_STATUS_SIZE_MISMATCH);
  CONTRACT_FAILS(quay_buffer_copy_out(buffer, other.data, 999), QUAY_STATUS_SIZE_MISMATCH);
  CONTRACT_FAILS(quay_buffer_copy_out(buffer, other.data, 1001), QUAY_STATUS_SIZE_MISMATCH);
  contract_check_bytes(buffer, content.data, "after refused copies");
  quay_test_block untouched = quay_test_block_make(1001, 0, 6);
  cr_assert_arr_eq(other.data, untouched.data, 1001);
  quay_buffer_release(buffer);
  quay_test_block_free(&untouched);
  quay_test_block_free(&other);
  quay_test_block_free(&content);
  contract_close(allocator);
}

Test(copy, zero_bytes_are_a_no_op_in_every_copy) {
  quay_allocator *allocator = contract_open();
  quay_buffer *empty = contract_buffer(allocator, 0, 0);
  quay_buffer *other = contract_buffer(allocator, 0, 0);
  quay_buffer *full = contract_buffer(allocator, 100, 8);
  quay_test_block content = quay_test_block_make(100, 0, 8);
  unsigned char byte = 0x5a;
  CONTRACT_OK(quay_buffer_copy_in(empty, &byte, 0));
  CONTRACT_OK(quay_buffer_copy_out(empty, &byte, 0));
  CONTRACT_OK(quay_buffer_copy_from(empty, other));
  CONTRACT_OK(quay_buffer_copy_region(full, 100, other, 0, 0, NULL));
  CONTRACT_OK(quay_buffer_fill(empty, &byte, 1));
  cr_assert_eq(byte, 0x5a);
  contract_check_bytes(full, content.data, "after a copy of nothing");
  quay_test_block_free(&content);
  quay_buffer_release(full);
  quay_buffer_release(other);
  quay_buffer_release(empty);
  contract_close(allocator);
}

Test(copy, a_region_outside_its_window_is_refused_and_moves_nothing) {
  static const struct {
    uint64_t destination, source, size;
  } ranges[] = {
      {0, 0, 101},        {1, 0, 100},        {0, 1, 100},
      {101, 0, 0},        {0, 101, 0},        {UINT64_MAX, 0, 2},
      {0, UINT64_MAX, 2}, {2, 0, UINT64_MAX}, {0, 2, UINT64_MAX - 1},
      {100, 0, 1},        {0, 100, 1},        {50, 50, UINT64_MAX - 49},
  };
  quay_allocator *allocator = contract_open();
  quay_buffer *destination = contract_buffer(allocator, 100, 9);
  quay_buffer *source = contract_buffer(allocator, 100, 10);
  quay_test_block content = quay_test_block_make(100, 0, 9);
  for (size_t i = 0; i < CONTRACT_COUNT(ranges); i++) {
    CONTRACT_FAILS(quay_buffer_copy_region(destination, ranges[i].destination, source,
                                           ranges[i].source, ranges[i].size, NULL),
                   QUAY_STATUS_OUT_OF_RANGE);
  }
  contract_check_bytes(destination, content.data, "after refused regions");
  quay_test_block_free(&content);
  quay_buffer_release(source);
  quay_buffer_release(destination);
  contract_close(allocator);
}

/* Overlap. */

static void check_overlap(quay_allocator *allocator, uint64_t size, uint64_t shift, bool up) {
  const uint64_t total = size + shift + 100;
  const uint64_t low = 33;
  const uint64_t to = up ? low + shift : low;
  const uint64_t from = up ? low : low + shift;
  quay_test_block expected = quay_test_block_make(total, 0, 11);
  quay_buffer *buffer = contract_buffer(allocator, total, 11);
  quay_buffer *destination = contract_view(buffer, to, size);
  quay_buffer *source = contract_view(buffer, from, size);
  CONTRACT_OK(quay_buffer_copy_from(destination, source));
  memmove(expected.data + to, expected.data + from, size);
  contract_check_bytes(buffer, expected.data, up ? "overlap upwards" : "overlap downwards");
  /* Once more in the base's own coordinates. */
  CONTRACT_OK(quay_buffer_copy_region(buffer, from, buffer, to, size, NULL));
  memmove(expected.data + from, expected.data + to, size);
  contract_check_bytes(buffer, expected.data, "overlap within one handle");
  quay_buffer_release(source);
  quay_buffer_release(destination);
  quay_buffer_release(buffer);
  quay_test_block_free(&expected);
}

Test(copy, overlapping_windows_behave_as_memmove_both_ways) {
  static const uint64_t sizes[] = {2, 4096, 16 * 1024 + 1, 2 * 64 * 1024 + 12345,
                                   4 * 1024 * 1024 + 1};
  static const uint64_t shifts[] = {0, 1, 7, 63, 4097, 16 * 1024, 64 * 1024 + 1};
  quay_allocator *allocator = contract_open();
  const bool all = getenv("QUAY_TEST_FULL") != NULL;
  for (size_t s = 0; s < CONTRACT_COUNT(sizes); s++) {
    for (size_t i = 0; i < CONTRACT_COUNT(shifts); i++) {
      if (sizes[s] > CONTRACT_LARGE && !all && i % 3 != 1)
        continue;
      check_overlap(allocator, sizes[s], shifts[i], true);
      check_overlap(allocator, sizes[s], shifts[i], false);
    }
  }
  contract_close(allocator);
}

/* Fill. */

Test(copy, fill_repeats_every_pattern_size_in_the_window_alone) {
  static const size_t patterns[] = {1, 2, 4, 8, 16};
  static const uint64_t counts[] = {1, 3, 4096, 8 * 1024 + 1, 300 * 1000};
  quay_allocator *allocator = contract_open();
  for (size_t p = 0; p < CONTRACT_COUNT(patterns); p++) {
    unsigned char pattern[16];
    quay_test_random_bytes(pattern, sizeof pattern, 20 + p);
    for (size_t c = 0; c < CONTRACT_COUNT(counts); c++) {
      const uint64_t size = counts[c] * patterns[p];
      quay_test_block expected = quay_test_block_make(size + 200, 0, 21);
      quay_buffer *buffer = contract_buffer(allocator, size + 200, 21);
      quay_buffer *window = contract_view(buffer, 77, size);
      CONTRACT_OK(quay_buffer_fill(window, pattern, patterns[p]));
      for (uint64_t i = 0; i < size; i++)
        expected.data[77 + i] = pattern[i % patterns[p]];
      contract_check_bytes(buffer, expected.data, "after fill");
      quay_buffer_release(window);
      quay_buffer_release(buffer);
      quay_test_block_free(&expected);
    }
  }
  contract_close(allocator);
}

Test(copy, fill_refuses_other_patterns_and_parts_of_patterns) {
  static const size_t wrong[] = {0, 3, 5, 12, 32, SIZE_MAX};
  static const unsigned char pattern[32] = {1, 2, 3};
  quay_allocator *allocator = contract_open();
  quay_test_block content = quay_test_block_make(30, 0, 22);
  quay_buffer *buffer = contract_buffer(allocator, 30, 22);
  for (size_t i = 0; i < CONTRACT_COUNT(wrong); i++)
    CONTRACT_FAILS(quay_buffer_fill(buffer, pattern, wrong[i]), QUAY_STATUS_INVALID_ARGUMENT);
  CONTRACT_FAILS(quay_buffer_fill(buffer, NULL, 1), QUAY_STATUS_INVALID_ARGUMENT);
  CONTRACT_FAILS(quay_buffer_fill(buffer, pattern, 4), QUAY_STATUS_SIZE_MISMATCH);
  contract_check_bytes(buffer, content.data, "after refused fills");
  quay_buffer_release(buffer);
  quay_test_block_free(&content);
  contract_close(allocator);
}
