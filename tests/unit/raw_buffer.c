/* Raw buffers as values: what freed, moved, adopted and forgotten ones are. */
#include <quay/backend.h>
#include <quay/quay.h>
#include <stdlib.h>
#include <string.h>

#include "core/allocator_impl.h"
#include "support/status.h"
#include "support/table.h"

static quay_test_table table;

static quay_allocator *make(void) {
  quay_allocator *allocator = NULL;
  quay_test_table_init(&table);
  CHECK_OK(quay_allocator_create(&table.desc, &allocator));
  return allocator;
}

static bool is_zero(const quay_raw_buffer *raw) {
  static const quay_raw_buffer zero;
  return memcmp(raw, &zero, sizeof zero) == 0;
}

Test(raw_buffer, free_zeroes_it_and_a_zeroed_one_is_a_no_op) {
  quay_allocator *allocator = make();
  quay_raw_buffer raw;
  CHECK_OK(quay_allocator_alloc(allocator, 100, NULL, &raw));
  quay_raw_buffer_free(&raw);
  cr_assert(is_zero(&raw));
  quay_raw_buffer_free(&raw);
  quay_raw_buffer_free(NULL);
  cr_assert_eq(atomic_load(&table.frees), 1);
  quay_allocator_release(allocator);
}

Test(raw_buffer, a_moved_one_is_all_zero_and_null_moves_nothing) {
  quay_allocator *allocator = make();
  quay_raw_buffer raw;
  CHECK_OK(quay_allocator_alloc(allocator, 100, NULL, &raw));
  const quay_raw_buffer before = raw;
  quay_raw_buffer moved = quay_raw_buffer_move(&raw);
  cr_assert(is_zero(&raw));
  cr_assert_arr_eq(&moved, &before, sizeof moved);
  const quay_raw_buffer nothing = quay_raw_buffer_move(NULL);
  cr_assert(is_zero(&nothing));
  quay_raw_buffer_free(&moved);
  quay_allocator_release(allocator);
}

Test(raw_buffer, questions_about_nothing_have_empty_answers) {
  const quay_raw_buffer empty = {0};
  cr_assert_eq(quay_raw_buffer_size(NULL), 0);
  cr_assert_eq(quay_raw_buffer_size(&empty), 0);
  cr_assert_eq(quay_raw_buffer_kind(NULL), QUAY_MEMORY_NONE);
  cr_assert_eq(quay_raw_buffer_kind(&empty), QUAY_MEMORY_NONE);
  cr_assert_not(quay_raw_buffer_host_accessible(NULL));
  cr_assert_not(quay_raw_buffer_host_accessible(&empty));
}

Test(raw_buffer, pointers_of_null_are_invalid_and_of_nothing_not_allocated) {
  const quay_raw_buffer empty = {0};
  void *pointer;
  uint64_t address;
  CHECK_FAILS(quay_raw_buffer_host_pointer(NULL, &pointer), QUAY_STATUS_INVALID_ARGUMENT);
  CHECK_FAILS(quay_raw_buffer_host_pointer(&empty, NULL), QUAY_STATUS_INVALID_ARGUMENT);
  CHECK_FAILS(quay_raw_buffer_host_pointer(&empty, &pointer), QUAY_STATUS_NOT_ALLOCATED);
  CHECK_FAILS(quay_raw_buffer_address(NULL, &address), QUAY_STATUS_INVALID_ARGUMENT);
  CHECK_FAILS(quay_raw_buffer_address(&empty, &address), QUAY_STATUS_NOT_ALLOCATED);
}

/* Adoption by a backend of its own arm. */

static unsigned releases;
static void *released;

static void count_release(void *user, void *memory, uint64_t size) {
  cr_assert_eq(user, &table);
  cr_assert_eq(size, 64);
  released = memory;
  releases++;
  quay_error_set(QUAY_STATUS_IO, "", 0, NULL, "an error in the callback");
}

static quay_raw_buffer describe(void *memory) {
  quay_raw_buffer raw = {.arm = QUAY_RAW_EXTERNAL, .size = 64};
  raw.as.external.handle[0] = (uint64_t)(uintptr_t)memory;
  return raw;
}

Test(raw_buffer, an_adopted_one_goes_back_through_its_callback_alone) {
  quay_allocator *allocator = make();
  unsigned char bytes[64];
  quay_raw_buffer raw = describe(bytes);
  quay_stats stats;
  CHECK_OK(quay_raw_buffer_adopt(allocator, &raw, bytes, count_release, &table));
  cr_assert_eq(raw.owner, allocator);
  cr_assert(raw.flags & QUAY_RAW_ADOPTED);
  CHECK_OK(quay_allocator_stats(allocator, &stats));
  cr_assert_eq(stats.live_count, 0);
  quay_error_set(QUAY_STATUS_BUSY, "", 0, NULL, "from before");
  quay_raw_buffer_free(&raw);
  cr_assert_str_eq(quay_last_error()->message, "from before");
  cr_assert_eq(releases, 1);
  cr_assert_eq(released, bytes);
  cr_assert(is_zero(&raw));
  cr_assert_eq(atomic_load(&table.frees), 0);
  CHECK_OK(quay_allocator_stats(allocator, &stats));
  cr_assert_eq(stats.free_count, 0);
  quay_allocator_release(allocator);
  cr_assert_eq(atomic_load(&table.destroys), 1);
}

Test(raw_buffer, adoption_without_a_callback_tells_nobody) {
  quay_allocator *allocator = make();
  unsigned char bytes[64];
  quay_raw_buffer raw = describe(bytes);
  CHECK_OK(quay_raw_buffer_adopt(allocator, &raw, bytes, NULL, NULL));
  quay_raw_buffer_free(&raw);
  cr_assert_eq(releases, 0);
  cr_assert_eq(atomic_load(&table.frees), 0);
  quay_allocator_release(allocator);
}

Test(raw_buffer, what_says_nothing_cannot_be_adopted) {
  quay_allocator *allocator = make();
  quay_raw_buffer raw = describe(&table);
  quay_raw_buffer empty = {0};
  CHECK_FAILS(quay_raw_buffer_adopt(NULL, &raw, &table, NULL, NULL), QUAY_STATUS_INVALID_ARGUMENT);
  CHECK_FAILS(quay_raw_buffer_adopt(allocator, NULL, &table, NULL, NULL),
              QUAY_STATUS_INVALID_ARGUMENT);
  CHECK_FAILS(quay_raw_buffer_adopt(allocator, &empty, &table, NULL, NULL),
              QUAY_STATUS_INVALID_ARGUMENT);
  quay_allocator_release(allocator);
}

/* Release and forget. */

static quay_status table_release(quay_allocator *allocator, quay_raw_buffer *raw,
                                 quay_host_memory *out_memory) {
  (void)allocator;
  if (out_memory != NULL)
    *out_memory = (quay_host_memory){.pointer = quay_test_table_bytes(raw), .size = raw->size};
  return QUAY_OK;
}

Test(raw_buffer, forgetting_takes_it_out_of_every_count_without_freeing_it) {
  quay_allocator *allocator = NULL;
  quay_raw_buffer raw;
  quay_stats stats;
  quay_test_table_init(&table);
  table.vtable.release = table_release;
  CHECK_OK(quay_allocator_create(&table.desc, &allocator));
  CHECK_OK(quay_allocator_alloc(allocator, 64, NULL, &raw));
  unsigned char *bytes = quay_test_table_bytes(&raw);
  CHECK_OK(quay_raw_buffer_forget(&raw));
  cr_assert(is_zero(&raw));
  cr_assert_eq(atomic_load(&table.frees), 0);
  CHECK_OK(quay_allocator_stats(allocator, &stats));
  cr_assert_eq(stats.live_count, 0);
  cr_assert_eq(stats.live_bytes, 0);
  bytes[63] = 1;
  free(bytes);
  CHECK_FAILS(quay_raw_buffer_forget(&raw), QUAY_STATUS_NOT_ALLOCATED);
  CHECK_FAILS(quay_raw_buffer_forget(NULL), QUAY_STATUS_INVALID_ARGUMENT);
  quay_allocator_release(allocator);
}

Test(raw_buffer, without_a_release_function_nothing_changes) {
  quay_allocator *allocator = make();
  quay_raw_buffer raw;
  quay_host_memory memory;
  CHECK_OK(quay_allocator_alloc(allocator, 64, NULL, &raw));
  const quay_raw_buffer before = raw;
  CHECK_FAILS(quay_raw_buffer_forget(&raw), QUAY_STATUS_UNSUPPORTED);
  CHECK_FAILS(quay_raw_buffer_release_host(&raw, &memory), QUAY_STATUS_UNSUPPORTED);
  cr_assert_arr_eq(&raw, &before, sizeof raw);
  quay_raw_buffer_free(&raw);
  quay_allocator_release(allocator);
}

Test(raw_buffer, memory_released_by_cpu_is_freed_by_what_it_came_with) {
  quay_allocator *allocator = NULL;
  CHECK_OK(quay_allocator_open("track+cpu", &allocator));
  for (uint64_t size = 0; size < 4 * 1024 * 1024; size = size * 7 + 5) {
    const quay_alloc_options options = {.alignment = 4096};
    quay_raw_buffer raw;
    quay_host_memory memory;
    CHECK_OK(quay_allocator_alloc(allocator, size, &options, &raw));
    CHECK_OK(quay_raw_buffer_release_host(&raw, &memory));
    cr_assert_eq((uintptr_t)memory.pointer % 4096, 0);
    memset(memory.pointer, 3, size);
    CHECK_OK(quay_track_check(allocator));
    cr_assert(memory.release != NULL);
    memory.release(memory.user, memory.pointer, memory.size);
  }
  quay_allocator_release(allocator);
}

Test(raw_buffer, released_memory_can_be_adopted_again) {
  quay_allocator *allocator = NULL;
  quay_raw_buffer raw;
  quay_host_memory memory;
  void *pointer;
  CHECK_OK(quay_allocator_open("cpu", &allocator));
  CHECK_OK(quay_allocator_alloc(allocator, 500, NULL, &raw));
  CHECK_OK(quay_raw_buffer_release_host(&raw, &memory));
  CHECK_OK(quay_raw_buffer_adopt_host(allocator, &memory, &raw));
  CHECK_OK(quay_raw_buffer_host_pointer(&raw, &pointer));
  cr_assert_eq(pointer, memory.pointer);
  quay_raw_buffer_free(&raw);
  quay_allocator_release(allocator);
}

Test(raw_buffer, empty_host_memory_is_adopted_with_any_pointer) {
  quay_allocator *allocator = NULL;
  CHECK_OK(quay_allocator_open("cpu", &allocator));
  const quay_host_memory memory = {.pointer = NULL, .size = 0};
  quay_raw_buffer raw;
  void *pointer = NULL;
  CHECK_OK(quay_raw_buffer_adopt_host(allocator, &memory, &raw));
  CHECK_OK(quay_raw_buffer_host_pointer(&raw, &pointer));
  cr_assert_not_null(pointer, "never NULL, for a size of 0 too");
  quay_raw_buffer_free(&raw);
  quay_allocator_release(allocator);
}

Test(raw_buffer, mapped_memory_does_not_leave_as_host_memory) {
  quay_allocator *allocator = NULL;
  quay_raw_buffer raw;
  quay_host_memory memory;
  CHECK_OK(quay_allocator_open("mmap:/tmp", &allocator));
  CHECK_OK(quay_allocator_alloc(allocator, 500, NULL, &raw));
  CHECK_FAILS(quay_raw_buffer_release_host(&raw, &memory), QUAY_STATUS_UNSUPPORTED);
  cr_assert_eq(quay_raw_buffer_size(&raw), 500);
  quay_raw_buffer_free(&raw);
  quay_allocator_release(allocator);
}
