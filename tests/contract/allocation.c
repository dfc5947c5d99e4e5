/* Allocation: sizes, alignment, zeroed memory, options, refusals, counters. */
#include "contract.h"

#include <string.h>

static void check_zero_raw(const quay_raw_buffer *raw) {
  static const quay_raw_buffer zero;
  cr_assert_arr_eq(raw, &zero, sizeof zero, "a refused allocation left something in out_raw");
}

Test(allocation, an_empty_block_is_a_handle_that_is_counted_and_freed) {
  quay_allocator *allocator = contract_open();
  quay_raw_buffer first;
  quay_raw_buffer second;
  quay_stats stats;
  CONTRACT_OK(quay_allocator_alloc(allocator, 0, NULL, &first));
  CONTRACT_OK(quay_allocator_alloc(allocator, 0, NULL, &second));
  cr_assert_eq(quay_raw_buffer_size(&first), 0);
  cr_assert_eq(quay_raw_buffer_kind(&first), quay_allocator_kind(allocator));
  CONTRACT_OK(quay_allocator_stats(allocator, &stats));
  cr_assert_eq(stats.live_count, 2);
  quay_raw_buffer_free(&first);
  cr_assert_eq(quay_raw_buffer_kind(&first), QUAY_MEMORY_NONE);
  quay_raw_buffer_free(&first);
  CONTRACT_OK(quay_allocator_stats(allocator, &stats));
  cr_assert_eq(stats.live_count, 1, "the second free through one variable is a no-op");
  quay_raw_buffer_free(&second);
  contract_close(allocator);
}

Test(allocation, the_host_pointer_of_an_empty_block_is_not_null) {
  quay_allocator *allocator = contract_open();
  if (contract_lacks(allocator, CONTRACT_HOST_ACCESS))
    return;
  quay_raw_buffer raw;
  void *pointer = NULL;
  CONTRACT_OK(quay_allocator_alloc(allocator, 0, NULL, &raw));
  CONTRACT_OK(quay_raw_buffer_host_pointer(&raw, &pointer));
  cr_assert_not_null(pointer);
  quay_raw_buffer_free(&raw);
  contract_close(allocator);
}

static void check_alignment(quay_allocator *allocator, uint64_t size, uint64_t alignment) {
  const quay_alloc_options options = {.alignment = alignment};
  quay_raw_buffer raw;
  uint64_t address = 0;
  CONTRACT_OK(quay_allocator_alloc(allocator, size, &options, &raw));
  CONTRACT_OK(quay_raw_buffer_address(&raw, &address));
  const uint64_t own = quay_allocator_alignment(allocator);
  const uint64_t expected = alignment > own ? alignment : own;
  cr_assert_eq(address % expected, 0, "%zu bytes aligned to %zu are at 0x%zx", (size_t)size,
               (size_t)expected, (size_t)address);
  quay_raw_buffer_free(&raw);
}

Test(allocation, every_power_of_two_up_to_2_mib_is_honoured) {
  static const uint64_t sizes[] = {0, 1, 4097, 70000, 3 * 1024 * 1024};
  quay_allocator *allocator = contract_open();
  if (contract_lacks(allocator, CONTRACT_ADDRESS))
    return;
  for (uint64_t alignment = 1; alignment <= 2 * 1024 * 1024; alignment *= 2) {
    for (size_t i = 0; i < CONTRACT_COUNT(sizes); i++)
      check_alignment(allocator, sizes[i], alignment);
  }
  for (size_t i = 0; i < CONTRACT_COUNT(sizes); i++)
    check_alignment(allocator, sizes[i], 0);
  contract_close(allocator);
}

/* A guard's redzones are as long as the alignment; under a sanitizer filling them takes a while. */
Test(allocation, the_largest_alignment_is_honoured, .timeout = 400) {
  quay_allocator *allocator = contract_open();
  if (contract_lacks(allocator, CONTRACT_ADDRESS))
    return;
  check_alignment(allocator, 100, QUAY_ALIGNMENT_MAX);
  contract_close(allocator);
}

Test(allocation, an_alignment_that_is_no_power_of_two_or_too_large_is_refused) {
  static const uint64_t wrong[] = {3, 24, 4095, QUAY_ALIGNMENT_MAX * 2, UINT64_MAX, 1ull << 63};
  quay_allocator *allocator = contract_open();
  for (size_t i = 0; i < CONTRACT_COUNT(wrong); i++) {
    const quay_alloc_options options = {.alignment = wrong[i]};
    quay_raw_buffer raw;
    memset(&raw, 0x5a, sizeof raw);
    CONTRACT_FAILS(quay_allocator_alloc(allocator, 10, &options, &raw),
                   QUAY_STATUS_INVALID_ARGUMENT);
    check_zero_raw(&raw);
  }
  contract_close(allocator);
}

Test(allocation, sizes_that_wrap_are_refused_and_leave_nothing) {
  static const uint64_t invalid[] = {SIZE_MAX, SIZE_MAX - 1, SIZE_MAX - 63, 1ull << 63,
                                     (1ull << 63) + 4096};
  quay_allocator *allocator = contract_open();
  for (size_t i = 0; i < CONTRACT_COUNT(invalid); i++) {
    quay_raw_buffer raw;
    memset(&raw, 0x5a, sizeof raw);
    CONTRACT_FAILS(quay_allocator_alloc(allocator, invalid[i], NULL, &raw),
                   QUAY_STATUS_INVALID_ARGUMENT);
    check_zero_raw(&raw);
  }
  contract_close(allocator);
}

Test(allocation, sizes_that_no_machine_has_are_refused_with_their_own_code_and_counted) {
  static const uint64_t huge[] = {1ull << 62, (1ull << 63) - 1, (1ull << 63) - 4097};
  quay_allocator *allocator = contract_open();
  const quay_status expected = contract_too_large(allocator);
  for (size_t i = 0; i < CONTRACT_COUNT(huge); i++) {
    const quay_alloc_options aligned = {.alignment = 1024 * 1024, .zeroed = true};
    quay_raw_buffer raw;
    memset(&raw, 0x5a, sizeof raw);
    CONTRACT_FAILS(quay_allocator_alloc(allocator, huge[i], NULL, &raw), expected);
    check_zero_raw(&raw);
    CONTRACT_FAILS(quay_allocator_alloc(allocator, huge[i], &aligned, &raw), expected);
    check_zero_raw(&raw);
  }
  quay_stats stats;
  CONTRACT_OK(quay_allocator_stats(allocator, &stats));
  cr_assert_eq(stats.failure_count, 2 * CONTRACT_COUNT(huge));
  cr_assert_eq(stats.alloc_count, 0);
  contract_close(allocator);
}

Test(allocation, zeroed_memory_is_zero_after_dirty_frees) {
  static const uint64_t sizes[] = {1, 63, 4096, 70000, 300 * 1024, 4 * 1024 * 1024 + 1};
  static const unsigned char dirt = 0xa7;
  const quay_alloc_options zeroed = {.zeroed = true};
  quay_allocator *allocator = contract_open();
  for (size_t i = 0; i < CONTRACT_COUNT(sizes); i++) {
    const int64_t shape[] = {(int64_t)sizes[i]};
    quay_buffer *dirty[8];
    for (size_t d = 0; d < CONTRACT_COUNT(dirty); d++) {
      dirty[d] = contract_buffer(allocator, sizes[i], 0);
      CONTRACT_OK(quay_buffer_fill(dirty[d], &dirt, 1));
    }
    for (size_t d = 0; d < CONTRACT_COUNT(dirty); d++)
      quay_buffer_release(dirty[d]);
    quay_test_block zeros = quay_test_block_make(sizes[i], 0, 1);
    memset(zeros.data, 0, zeros.size);
    for (size_t round = 0; round < 8; round++) {
      quay_buffer *buffer = NULL;
      CONTRACT_OK(quay_buffer_create(allocator, QUAY_U8, 1, shape, &zeroed, &buffer));
      contract_check_bytes(buffer, zeros.data, "zeroed memory");
      CONTRACT_OK(quay_buffer_fill(buffer, &dirt, 1));
      quay_buffer_release(buffer);
    }
    quay_test_block_free(&zeros);
  }
  contract_close(allocator);
}

Test(allocation, options_that_this_memory_cannot_have_are_unsupported) {
  const quay_alloc_options options[] = {{.mirror = true}, {.exportable = true}};
  quay_allocator *allocator = contract_open();
  for (size_t i = 0; i < CONTRACT_COUNT(options); i++) {
    const contract_target *const target = contract_target_of(allocator);
    if ((options[i].mirror && target->mirrors) || (options[i].exportable && target->exports))
      continue;
    quay_raw_buffer raw;
    CONTRACT_FAILS(quay_allocator_alloc(allocator, 100, &options[i], &raw),
                   QUAY_STATUS_UNSUPPORTED);
    check_zero_raw(&raw);
  }
  contract_close(allocator);
}

Test(allocation, a_stream_of_its_own_device_is_taken) {
  quay_allocator *allocator = contract_open();
  quay_stream *stream = NULL;
  quay_raw_buffer raw;
  CONTRACT_OK(quay_stream_create(quay_allocator_device(allocator), NULL, &stream));
  const quay_alloc_options options = {.stream = stream};
  CONTRACT_OK(quay_allocator_alloc(allocator, 100, &options, &raw));
  CONTRACT_OK(quay_stream_synchronize(stream));
  quay_raw_buffer_free(&raw);
  quay_stream_release(stream);
  contract_close(allocator);
}

Test(allocation, the_counters_follow_every_allocation_and_return_to_zero) {
  quay_allocator *allocator = contract_open();
  quay_raw_buffer raws[5];
  quay_stats stats;
  uint64_t bytes = 0;
  for (size_t i = 0; i < CONTRACT_COUNT(raws); i++) {
    CONTRACT_OK(quay_allocator_alloc(allocator, 100000 + i, NULL, &raws[i]));
    bytes += 100000 + i;
    CONTRACT_OK(quay_allocator_stats(allocator, &stats));
    cr_assert_eq(stats.live_bytes, bytes);
    cr_assert_eq(stats.live_count, i + 1);
    cr_assert_geq(stats.reserved_bytes, bytes);
  }
  for (size_t i = 0; i < CONTRACT_COUNT(raws); i++)
    quay_raw_buffer_free(&raws[i]);
  CONTRACT_OK(quay_allocator_stats(allocator, &stats));
  cr_assert_eq(stats.live_bytes, 0);
  cr_assert_eq(stats.live_count, 0);
  cr_assert_eq(stats.pending_bytes, 0);
  cr_assert_eq(stats.peak_bytes, bytes);
  cr_assert_eq(stats.alloc_count, 5);
  cr_assert_eq(stats.free_count, 5);
  contract_close(allocator);
}

Test(allocation, every_level_of_the_chain_counts_for_itself) {
  quay_allocator *allocator = contract_open();
  if (contract_lacks(allocator, CONTRACT_FORWARD))
    return;
  quay_raw_buffer raw;
  CONTRACT_OK(quay_allocator_alloc(allocator, 12345, NULL, &raw));
  for (quay_allocator *each = allocator; each != NULL; each = quay_allocator_inner(each)) {
    quay_stats stats;
    CONTRACT_OK(quay_allocator_stats(each, &stats));
    cr_assert_eq(stats.live_bytes, 12345, "%s", quay_allocator_spec(each));
    cr_assert_eq(stats.live_count, 1, "%s", quay_allocator_spec(each));
  }
  quay_raw_buffer_free(&raw);
  for (quay_allocator *each = allocator; each != NULL; each = quay_allocator_inner(each)) {
    quay_stats stats;
    CONTRACT_OK(quay_allocator_stats(each, &stats));
    cr_assert_eq(stats.live_count, 0, "%s", quay_allocator_spec(each));
  }
  contract_close(allocator);
}

Test(allocation, the_spec_opens_an_equal_allocator) {
  quay_allocator *allocator = contract_open();
  quay_allocator *again = NULL;
  CONTRACT_OK(quay_allocator_open(quay_allocator_spec(allocator), &again));
  cr_assert_str_eq(quay_allocator_spec(again), quay_allocator_spec(allocator));
  cr_assert_eq(quay_allocator_kind(again), quay_allocator_kind(allocator));
  cr_assert_eq(quay_allocator_device(again), quay_allocator_device(allocator));
  cr_assert_eq(quay_allocator_alignment(again), quay_allocator_alignment(allocator));
  contract_close(again);
  contract_close(allocator);
}

Test(allocation, trim_and_synchronize_succeed) {
  quay_allocator *allocator = contract_open();
  quay_buffer *buffer = contract_buffer(allocator, 100000, 5);
  uint64_t bytes = UINT64_MAX;
  CONTRACT_OK(quay_allocator_synchronize(allocator));
  CONTRACT_OK(quay_allocator_trim(allocator, &bytes));
  cr_assert_neq(bytes, UINT64_MAX);
  CONTRACT_OK(quay_allocator_trim(allocator, NULL));
  quay_buffer_release(buffer);
  contract_close(allocator);
}
