/* Raw buffers: moving, adopting host memory, releasing it, passing in and out of buffers. */
#include "contract.h"

#include <stdlib.h>
#include <string.h>

typedef struct release_record {
  unsigned calls;
  void *memory;
  uint64_t size;
} release_record;

static void record_release(void *user, void *memory, uint64_t size) {
  release_record *record = user;
  record->calls++;
  record->memory = memory;
  record->size = size;
}

Test(raw, moving_leaves_the_source_empty) {
  quay_allocator *allocator = contract_open();
  quay_raw_buffer raw;
  CONTRACT_OK(quay_allocator_alloc(allocator, 333, NULL, &raw));
  quay_raw_buffer moved = quay_raw_buffer_move(&raw);
  cr_assert_eq(quay_raw_buffer_size(&raw), 0);
  cr_assert_eq(quay_raw_buffer_kind(&raw), QUAY_MEMORY_NONE);
  cr_assert_eq(quay_raw_buffer_size(&moved), 333);
  quay_raw_buffer_free(&raw);
  quay_raw_buffer_free(&moved);
  contract_close(allocator);
}

Test(raw, a_buffer_takes_a_raw_buffer_and_gives_it_back) {
  const int64_t shape[] = {25, 4};
  const int64_t wrong[] = {26, 4};
  quay_allocator *allocator = contract_open();
  quay_test_block content = quay_test_block_make(400, 0, 1);
  quay_raw_buffer raw;
  quay_buffer *buffer = NULL;
  CONTRACT_OK(quay_allocator_alloc(allocator, 400, NULL, &raw));
  CONTRACT_FAILS(quay_buffer_from_raw(&raw, QUAY_F32, 2, wrong, &buffer),
                 QUAY_STATUS_SIZE_MISMATCH);
  cr_assert_eq(quay_raw_buffer_size(&raw), 400, "on error it is still the caller's");
  CONTRACT_OK(quay_buffer_from_raw(&raw, QUAY_F32, 2, shape, &buffer));
  cr_assert_eq(quay_raw_buffer_kind(&raw), QUAY_MEMORY_NONE);
  CONTRACT_OK(quay_buffer_copy_in(buffer, content.data, 400));
  quay_buffer *view = contract_view(buffer, 0, 1);
  CONTRACT_FAILS(quay_buffer_release_raw(&buffer, &raw), QUAY_STATUS_BUSY);
  cr_assert_not_null(buffer);
  quay_buffer_release(view);
  CONTRACT_OK(quay_buffer_release_raw(&buffer, &raw));
  cr_assert_null(buffer);
  CONTRACT_OK(quay_buffer_from_raw(&raw, QUAY_F32, 2, shape, &buffer));
  contract_check_bytes(buffer, content.data, "after leaving and entering a buffer");
  quay_buffer_release(buffer);
  quay_test_block_free(&content);
  contract_close(allocator);
}

Test(raw, adopted_memory_is_used_in_place_is_not_counted_and_calls_back_once) {
  const int64_t shape[] = {500};
  quay_allocator *allocator = contract_open();
  if (contract_lacks(allocator, CONTRACT_ADOPT))
    return;
  quay_test_block content = quay_test_block_make(500, 3, 2);
  release_record record = {0};
  const quay_host_memory memory = {
      .pointer = content.data, .size = 500, .release = record_release, .user = &record};
  quay_buffer *buffer = NULL;
  quay_stats stats;
  const void *bytes = NULL;
  CONTRACT_OK(quay_buffer_adopt_host(allocator, QUAY_U8, 1, shape, &memory, &buffer));
  CONTRACT_OK(quay_buffer_host_bytes(buffer, &bytes, NULL));
  cr_assert_eq(bytes, content.data);
  CONTRACT_OK(quay_allocator_stats(allocator, &stats));
  cr_assert_eq(stats.live_count, 0);
  const unsigned char pattern = 0x42;
  CONTRACT_OK(quay_buffer_fill(buffer, &pattern, 1));
  cr_assert_eq(content.data[499], 0x42);
  cr_assert_eq(record.calls, 0);
  quay_buffer_release(buffer);
  cr_assert_eq(record.calls, 1);
  cr_assert_eq(record.memory, content.data);
  cr_assert_eq(record.size, 500);
  cr_assert(quay_test_block_intact(&content));
  quay_test_block_free(&content);
  contract_close(allocator);
}

Test(raw, a_refused_adoption_takes_nothing_over) {
  quay_allocator *allocator = contract_open();
  if (contract_lacks(allocator, CONTRACT_ADOPT))
    return;
  release_record record = {0};
  quay_raw_buffer raw;
  const quay_host_memory null = {.size = 1, .release = record_release, .user = &record};
  const quay_host_memory wrapping = {.pointer = (void *)(UINTPTR_MAX - 10),
                                     .size = 100,
                                     .release = record_release,
                                     .user = &record};
  CONTRACT_FAILS(quay_raw_buffer_adopt_host(allocator, &null, &raw), QUAY_STATUS_INVALID_ARGUMENT);
  CONTRACT_FAILS(quay_raw_buffer_adopt_host(allocator, &wrapping, &raw),
                 QUAY_STATUS_INVALID_ARGUMENT);
  CONTRACT_FAILS(quay_raw_buffer_adopt_host(allocator, NULL, &raw), QUAY_STATUS_INVALID_ARGUMENT);
  cr_assert_eq(record.calls, 0);
  contract_close(allocator);
}

Test(raw, adoption_by_memory_of_another_kind_is_unsupported) {
  quay_allocator *allocator = contract_open();
  if (contract_can(allocator, CONTRACT_ADOPT)) {
    quay_allocator_release(allocator);
    return;
  }
  char byte = 'x';
  const quay_host_memory memory = {.pointer = &byte, .size = 1};
  quay_raw_buffer raw;
  CONTRACT_FAILS(quay_raw_buffer_adopt_host(allocator, &memory, &raw), QUAY_STATUS_UNSUPPORTED);
  contract_close(allocator);
}

Test(raw, adopted_memory_comes_back_as_it_was_handed_in) {
  quay_allocator *allocator = contract_open();
  if (contract_lacks(allocator, CONTRACT_ADOPT))
    return;
  unsigned char bytes[64] = {9};
  release_record record = {0};
  const quay_host_memory memory = {
      .pointer = bytes, .size = sizeof bytes, .release = record_release, .user = &record};
  quay_raw_buffer raw;
  quay_host_memory back;
  CONTRACT_OK(quay_raw_buffer_adopt_host(allocator, &memory, &raw));
  CONTRACT_OK(quay_raw_buffer_release_host(&raw, &back));
  cr_assert_eq(back.pointer, bytes);
  cr_assert_eq(back.size, sizeof bytes);
  cr_assert(back.release == record_release);
  cr_assert_eq(back.user, &record);
  cr_assert_eq(record.calls, 0);
  cr_assert_eq(quay_raw_buffer_kind(&raw), QUAY_MEMORY_NONE);
  contract_close(allocator);
}

Test(raw, released_memory_is_the_callers_and_every_layer_forgets_it) {
  quay_allocator *allocator = contract_open();
  if (contract_lacks(allocator, CONTRACT_RELEASE))
    return;
  static const uint64_t sizes[] = {0, 100, 300 * 1024};
  for (size_t i = 0; i < CONTRACT_COUNT(sizes); i++) {
    quay_raw_buffer raw;
    quay_host_memory memory;
    CONTRACT_OK(quay_allocator_alloc(allocator, sizes[i], NULL, &raw));
    CONTRACT_OK(quay_raw_buffer_release_host(&raw, &memory));
    cr_assert_eq(memory.size, sizes[i]);
    cr_assert_not_null(memory.pointer);
    cr_assert_eq(quay_raw_buffer_kind(&raw), QUAY_MEMORY_NONE);
    for (quay_allocator *each = allocator; each != NULL; each = quay_allocator_inner(each)) {
      quay_stats stats;
      CONTRACT_OK(quay_allocator_stats(each, &stats));
      cr_assert_eq(stats.live_count, 0, "%s still counts it", quay_allocator_spec(each));
    }
    memset(memory.pointer, 0x77, sizes[i]);
    if (memory.release != NULL)
      memory.release(memory.user, memory.pointer, memory.size);
  }
  contract_close(allocator);
}

Test(raw, an_empty_one_answers_not_allocated) {
  quay_raw_buffer raw = {0};
  void *pointer;
  uint64_t address;
  quay_host_memory memory;
  CONTRACT_FAILS(quay_raw_buffer_host_pointer(&raw, &pointer), QUAY_STATUS_NOT_ALLOCATED);
  CONTRACT_FAILS(quay_raw_buffer_address(&raw, &address), QUAY_STATUS_NOT_ALLOCATED);
  CONTRACT_FAILS(quay_raw_buffer_release_host(&raw, &memory), QUAY_STATUS_NOT_ALLOCATED);
}

Test(raw, a_released_allocator_lingers_until_its_last_raw_buffer_is_freed) {
  quay_allocator *allocator = contract_open();
  quay_raw_buffer raw;
  CONTRACT_OK(quay_allocator_alloc(allocator, 4000, NULL, &raw));
  quay_allocator_release(allocator);
  uint64_t size = quay_raw_buffer_size(&raw);
  cr_assert_eq(size, 4000);
  quay_raw_buffer_free(&raw);
}
