/* Allocators: the rules of their tables, the defaults, references, counters. */
#include <pthread.h>
#include <quay/quay.h>
#include <stdlib.h>
#include <string.h>

#include "core/allocator_impl.h"
#include "support/log.h"
#include "support/random.h"
#include "support/status.h"
#include "support/table.h"

static quay_test_table table;

static quay_allocator *make(void) {
  quay_allocator *allocator = NULL;
  CHECK_OK(quay_allocator_create(&table.desc, &allocator));
  return allocator;
}

static quay_stats stats_of(quay_allocator *allocator) {
  quay_stats stats;
  CHECK_OK(quay_allocator_stats(allocator, &stats));
  return stats;
}

/* Rules. */

static void check_rule(const char *rule) {
  quay_allocator *allocator = (quay_allocator *)(void *)&table;
  CHECK_FAILS(quay_allocator_create(&table.desc, &allocator), QUAY_STATUS_INVALID_ARGUMENT);
  CHECK_MESSAGE(rule);
  cr_assert_null(allocator);
  cr_assert_eq(atomic_load(&table.destroys), 0, "on error self is still the caller's");
}

#define RULE(change, rule)        \
  do {                            \
    quay_test_table_init(&table); \
    change;                       \
    check_rule(rule);             \
  } while (0)

static bool say_no(quay_allocator *allocator, const quay_raw_buffer *destination,
                   const quay_raw_buffer *source, uint64_t size, quay_across_info *out_info) {
  (void)allocator, (void)destination, (void)source, (void)size, (void)out_info;
  return false;
}

static quay_status reserve(quay_allocator *allocator, uint64_t size, uint64_t alignment,
                           quay_raw_buffer *out_raw) {
  (void)allocator, (void)size, (void)alignment, (void)out_raw;
  return QUAY_OK;
}

static quay_status commit(quay_allocator *allocator, quay_raw_buffer *raw, uint64_t offset,
                          uint64_t size) {
  (void)allocator, (void)raw, (void)offset, (void)size;
  return QUAY_OK;
}

static quay_status fill_async(quay_allocator *allocator, quay_raw_buffer *raw, uint64_t offset,
                              uint64_t size, const void *pattern, size_t pattern_size,
                              uint64_t stream) {
  (void)allocator, (void)raw, (void)offset, (void)size, (void)pattern, (void)pattern_size;
  (void)stream;
  return QUAY_OK;
}

static quay_status across_async(quay_allocator *allocator, quay_raw_buffer *destination,
                                uint64_t destination_offset, const quay_raw_buffer *source,
                                uint64_t source_offset, uint64_t size, uint64_t stream) {
  (void)allocator, (void)destination, (void)destination_offset, (void)source, (void)source_offset;
  (void)size, (void)stream;
  return QUAY_OK;
}

Test(allocator, a_table_that_breaks_a_rule_is_refused_with_the_rule_named) {
  RULE(table.vtable.destroy = NULL, "destroy");
  RULE(table.vtable.alloc = NULL, "alloc");
  RULE(table.vtable.free = NULL, "free");
  RULE(table.vtable.copy_in = NULL, "copy_in");
  RULE(table.vtable.copy_out = NULL, "copy_out");
  RULE(table.vtable.version = 2, "version 2");
  RULE(table.vtable.version = 0, "version 0");
  RULE(table.vtable.struct_size -= 8, "struct_size");
  RULE(table.vtable.can_copy_across = say_no, "copy_across");
  RULE(table.vtable.reserve = reserve, "reserve");
  RULE((table.vtable.reserve = reserve, table.vtable.commit = commit), "decommit");
  RULE((table.vtable.reserve = reserve, table.vtable.commit = commit,
        table.vtable.decommit = commit, table.desc.page_size = 0),
       "page_size");
  RULE((table.vtable.reserve = reserve, table.vtable.commit = commit,
        table.vtable.decommit = commit, table.desc.page_size = 3000),
       "page_size");
  RULE(table.vtable.fill_async = fill_async, "asynchronous group");
  RULE(table.vtable.copy_across_async = across_async, "copy_across_async");
  RULE(table.vtable.host_pointer = NULL, "host_pointer");
  RULE(table.desc.flags = 0, "host_pointer");
  RULE(table.desc.flags |= 1u << 20, "flags");
  RULE((table.desc.flags = QUAY_ALLOCATOR_PLAIN_HOST_MEMORY, table.vtable.host_pointer = NULL),
       "HOST_ACCESSIBLE");
  RULE(table.desc.kind = QUAY_MEMORY_NONE, "kind");
  RULE(table.desc.kind = (quay_memory_kind)99, "kind");
  RULE(table.desc.alignment = 0, "alignment");
  RULE(table.desc.alignment = 48, "alignment");
  RULE(table.desc.alignment = QUAY_ALIGNMENT_MAX * 2, "alignment");
  RULE(table.desc.vtable = NULL, "vtable");
  RULE(table.desc.device = NULL, "device");
  RULE(table.desc.name = NULL, "name");
  RULE(table.desc.name = "", "name");
  RULE(table.desc.spec = NULL, "spec");
}

Test(allocator, null_arguments_of_create_are_refused) {
  quay_test_table_init(&table);
  quay_allocator *allocator = NULL;
  CHECK_FAILS(quay_allocator_create(NULL, &allocator), QUAY_STATUS_INVALID_ARGUMENT);
  CHECK_FAILS(quay_allocator_create(&table.desc, NULL), QUAY_STATUS_INVALID_ARGUMENT);
}

Test(allocator, the_table_and_the_texts_are_copied) {
  char name[] = "table";
  char spec[] = "table:x=1";
  quay_test_table_init(&table);
  table.desc.name = name;
  table.desc.spec = spec;
  quay_allocator *allocator = make();
  memset(name, 'x', 5);
  memset(spec, 'x', 9);
  memset(&table.vtable, 0, sizeof table.vtable);
  cr_assert_str_eq(quay_allocator_name(allocator), "table");
  cr_assert_str_eq(quay_allocator_spec(allocator), "table:x=1");
  quay_raw_buffer raw;
  CHECK_OK(quay_allocator_alloc(allocator, 10, NULL, &raw));
  quay_raw_buffer_free(&raw);
  quay_allocator_release(allocator);
  cr_assert_eq(atomic_load(&table.destroys), 1);
}

/* References. */

Test(allocator, the_last_reference_destroys_it_once) {
  quay_test_table_init(&table);
  quay_allocator *allocator = make();
  cr_assert_eq(quay_allocator_retain(allocator), allocator);
  quay_allocator_release(allocator);
  cr_assert_eq(atomic_load(&table.destroys), 0);
  quay_allocator_release(allocator);
  cr_assert_eq(atomic_load(&table.destroys), 1);
  cr_assert_null(quay_allocator_retain(NULL));
  quay_allocator_release(NULL);
}

Test(allocator, released_with_live_memory_it_lingers_and_says_so) {
  quay_test_table_init(&table);
  quay_allocator *allocator = make();
  quay_raw_buffer raws[2];
  CHECK_OK(quay_allocator_alloc(allocator, 1000, NULL, &raws[0]));
  CHECK_OK(quay_allocator_alloc(allocator, 234, NULL, &raws[1]));
  quay_test_log_begin();
  quay_allocator_release(allocator);
  cr_assert_eq(quay_test_log_count("1234 bytes"), 1, "%s", quay_test_log_text());
  cr_assert_eq(atomic_load(&table.destroys), 0);
  memset(quay_test_table_bytes(&raws[0]), 1, 1000);
  quay_raw_buffer_free(&raws[0]);
  cr_assert_eq(atomic_load(&table.destroys), 0);
  quay_raw_buffer_free(&raws[1]);
  cr_assert_eq(atomic_load(&table.destroys), 1);
}

static void *free_one(void *raw) {
  quay_raw_buffer_free(raw);
  return NULL;
}

Test(allocator, threads_that_free_the_last_blocks_of_a_lingering_one_destroy_it_once) {
  for (int round = 0; round < 300; round++) {
    quay_test_table_init(&table);
    quay_allocator *allocator = make();
    quay_raw_buffer raws[4];
    pthread_t threads[4];
    for (size_t i = 0; i < 4; i++)
      CHECK_OK(quay_allocator_alloc(allocator, 10, NULL, &raws[i]));
    quay_allocator_release(allocator);
    for (size_t i = 0; i < 4; i++)
      cr_assert_eq(pthread_create(&threads[i], NULL, free_one, &raws[i]), 0);
    for (size_t i = 0; i < 4; i++)
      pthread_join(threads[i], NULL);
    cr_assert_eq(atomic_load(&table.destroys), 1, "round %d", round);
    cr_assert_eq(atomic_load(&table.frees), 4);
  }
}

Test(allocator, a_lingering_one_waits_for_adopted_memory_too) {
  quay_allocator *allocator = NULL;
  char bytes[10];
  quay_raw_buffer raw;
  const quay_host_memory memory = {.pointer = bytes, .size = 10};
  CHECK_OK(quay_allocator_open("track+cpu", &allocator));
  CHECK_OK(quay_raw_buffer_adopt_host(allocator, &memory, &raw));
  quay_test_log_begin();
  quay_allocator_release(allocator);
  cr_assert_eq(quay_test_log_count("lingers"), 1, "%s", quay_test_log_text());
  cr_assert_eq(quay_raw_buffer_kind(&raw), QUAY_MEMORY_PAGEABLE);
  quay_raw_buffer_free(&raw);
}

/* What it tells. */

Test(allocator, a_chain_names_its_parts) {
  quay_allocator *chain = NULL;
  CHECK_OK(quay_allocator_open("track+fault:nth=9+cpu:align=256", &chain));
  cr_assert_str_eq(quay_allocator_spec(chain), "track+fault:nth=9+cpu:align=256");
  cr_assert_str_eq(quay_allocator_name(chain), "track");
  quay_allocator *fault = quay_allocator_inner(chain);
  quay_allocator *cpu = quay_allocator_inner(fault);
  cr_assert_str_eq(quay_allocator_spec(fault), "fault:nth=9+cpu:align=256");
  cr_assert_str_eq(quay_allocator_name(cpu), "cpu");
  cr_assert_null(quay_allocator_inner(cpu));
  cr_assert_eq(quay_allocator_find(chain, "track"), chain);
  cr_assert_eq(quay_allocator_find(chain, "cpu"), cpu);
  cr_assert_null(quay_allocator_find(fault, "track"));
  cr_assert_null(quay_allocator_find(chain, "mmap"));
  cr_assert_null(quay_allocator_find(NULL, "cpu"));
  cr_assert_null(quay_allocator_find(chain, NULL));
  cr_assert_eq(quay_allocator_alignment(chain), 256);
  cr_assert_eq(quay_allocator_device(chain), quay_allocator_device(cpu));
  cr_assert_eq(quay_allocator_kind(chain), QUAY_MEMORY_PAGEABLE);
  cr_assert(quay_allocator_host_accessible(chain));
  quay_allocator_release(chain);
}

Test(allocator, questions_about_null_have_empty_answers) {
  cr_assert_str_empty(quay_allocator_spec(NULL));
  cr_assert_str_empty(quay_allocator_name(NULL));
  cr_assert_null(quay_allocator_inner(NULL));
  cr_assert_null(quay_allocator_device(NULL));
  cr_assert_null(quay_allocator_self(NULL));
  cr_assert_eq(quay_allocator_kind(NULL), QUAY_MEMORY_NONE);
  cr_assert_not(quay_allocator_host_accessible(NULL));
  cr_assert_eq(quay_allocator_alignment(NULL), 0);
  cr_assert_not(quay_allocator_is(NULL, free));
}

Test(allocator, a_backend_recognises_its_own_by_destroy) {
  quay_test_table_init(&table);
  quay_allocator *allocator = make();
  cr_assert(quay_allocator_is(allocator, table.vtable.destroy));
  cr_assert_not(quay_allocator_is(allocator, free));
  cr_assert_eq(quay_allocator_self(allocator), &table);
  quay_allocator_release(allocator);
}

/* Defaults of the optional functions. */

static unsigned char *bytes_of(quay_buffer *buffer) {
  void *bytes = NULL;
  CHECK_OK(quay_buffer_host_bytes_mut(buffer, &bytes, NULL));
  return bytes;
}

Test(allocator, zeroed_memory_is_filled_where_the_backend_does_not) {
  const quay_alloc_options zeroed = {.zeroed = true};
  quay_test_table_init(&table);
  quay_allocator *allocator = make();
  quay_raw_buffer raw;
  CHECK_OK(quay_allocator_alloc(allocator, 100001, &zeroed, &raw));
  for (size_t i = 0; i < 100001; i++)
    cr_assert_eq(quay_test_table_bytes(&raw)[i], 0, "byte %zu", i);
  quay_raw_buffer_free(&raw);
  quay_allocator_release(allocator);
}

static quay_status fail_fill(quay_allocator *allocator, quay_raw_buffer *raw, uint64_t offset,
                             uint64_t size, const void *pattern, size_t pattern_size) {
  (void)allocator, (void)raw, (void)offset, (void)size, (void)pattern, (void)pattern_size;
  return quay_error_set(QUAY_STATUS_IO, "table", 0, NULL, "no fill today");
}

Test(allocator, memory_that_cannot_be_zeroed_is_given_back_and_the_reason_kept) {
  const quay_alloc_options zeroed = {.zeroed = true};
  quay_test_table_init(&table);
  table.vtable.fill = fail_fill;
  quay_allocator *allocator = make();
  quay_raw_buffer raw;
  CHECK_FAILS(quay_allocator_alloc(allocator, 10, &zeroed, &raw), QUAY_STATUS_IO);
  CHECK_MESSAGE("no fill today");
  cr_assert_eq(atomic_load(&table.frees), 1);
  cr_assert_eq(stats_of(allocator).live_count, 0);
  cr_assert_eq(stats_of(allocator).failure_count, 1);
  cr_assert_eq(quay_raw_buffer_kind(&raw), QUAY_MEMORY_NONE);
  quay_allocator_release(allocator);
}

Test(allocator, the_default_copy_within_and_fill_move_the_right_bytes) {
  const int64_t shape[] = {200000};
  quay_test_table_init(&table);
  quay_allocator *allocator = make();
  quay_buffer *buffer = NULL;
  unsigned char *expected = malloc(200000);
  CHECK_OK(quay_buffer_create(allocator, QUAY_U8, 1, shape, NULL, &buffer));
  unsigned char *bytes = bytes_of(buffer);
  quay_test_random_bytes(bytes, 200000, 1);
  memcpy(expected, bytes, 200000);
  quay_raw_buffer raw = {.size = 200000, .owner = allocator};
  raw.as.external.handle[0] = (uint64_t)(uintptr_t)bytes;
  CHECK_OK(allocator->vtable.copy_within(allocator, &raw, 3, &raw, 5000, 150001));
  memmove(expected + 3, expected + 5000, 150001);
  cr_assert_arr_eq(bytes, expected, 200000);
  CHECK_OK(allocator->vtable.copy_within(allocator, &raw, 40001, &raw, 7, 150001));
  memmove(expected + 40001, expected + 7, 150001);
  cr_assert_arr_eq(bytes, expected, 200000);
  CHECK_OK(allocator->vtable.fill(allocator, &raw, 11, 16 * 5000, "0123456789abcdef", 16));
  for (size_t i = 0; i < 5000; i++)
    memcpy(expected + 11 + 16 * i, "0123456789abcdef", 16);
  cr_assert_arr_eq(bytes, expected, 200000);
  free(expected);
  quay_buffer_release(buffer);
  quay_allocator_release(allocator);
}

Test(allocator, the_plan_tells_of_the_default_copy_within) {
  const int64_t shape[] = {200000};
  quay_test_table_init(&table);
  table.vtable.copy_info = NULL;
  quay_allocator *allocator = make();
  quay_buffer *to = NULL, *from = NULL;
  CHECK_OK(quay_buffer_create(allocator, QUAY_U8, 1, shape, NULL, &to));
  CHECK_OK(quay_buffer_create(allocator, QUAY_U8, 1, shape, NULL, &from));
  quay_copy_plan_info plan;
  CHECK_OK(quay_copy_plan(to, 0, from, 0, 200000, NULL, &plan));
  cr_expect_eq(plan.route, QUAY_ROUTE_WITHIN);
  cr_expect_eq(plan.chunk, 16384u);
  cr_expect_eq(plan.threads, 1u);
  cr_expect_eq(plan.staging_bytes, 16384u);
  cr_expect_not_null(strstr(plan.reason, "no copy of its own"), "%s", plan.reason);
  CHECK_OK(quay_copy_plan(to, 0, from, 0, 100, NULL, &plan));
  cr_expect_eq(plan.chunk, 100u);
  quay_buffer_release(to);
  quay_buffer_release(from);
  quay_allocator_release(allocator);
}

Test(allocator, what_has_no_default_answers_unsupported_or_not_host_accessible) {
  const int64_t shape[] = {10};
  quay_test_table_init(&table);
  table.vtable.host_pointer = NULL;
  table.desc.flags = 0;
  table.desc.kind = QUAY_MEMORY_DEVICE;
  quay_allocator *allocator = make();
  quay_buffer *buffer = NULL;
  const void *bytes = NULL;
  uint64_t address = 0;
  CHECK_OK(quay_buffer_create(allocator, QUAY_U8, 1, shape, NULL, &buffer));
  CHECK_FAILS(quay_buffer_host_bytes(buffer, &bytes, NULL), QUAY_STATUS_NOT_HOST_ACCESSIBLE);
  CHECK_FAILS(quay_buffer_address(buffer, &address), QUAY_STATUS_UNSUPPORTED);
  quay_buffer_release(buffer);
  quay_allocator_release(allocator);
}

/* Counters. */

Test(allocator, reserved_is_at_least_live_by_default) {
  quay_test_table_init(&table);
  quay_allocator *allocator = make();
  quay_raw_buffer raw;
  CHECK_OK(quay_allocator_alloc(allocator, 777, NULL, &raw));
  cr_assert_eq(stats_of(allocator).reserved_bytes, 777);
  quay_raw_buffer_free(&raw);
  cr_assert_eq(stats_of(allocator).reserved_bytes, 0);
  quay_allocator_release(allocator);
}

static void *free_all(void *raws) {
  for (size_t i = 0; i < 100; i++)
    quay_raw_buffer_free((quay_raw_buffer *)raws + i);
  return NULL;
}

Test(allocator, the_counters_are_right_when_another_thread_frees) {
  quay_test_table_init(&table);
  quay_allocator *allocator = make();
  quay_raw_buffer raws[100];
  pthread_t thread;
  for (size_t i = 0; i < 100; i++)
    CHECK_OK(quay_allocator_alloc(allocator, i, NULL, &raws[i]));
  cr_assert_eq(pthread_create(&thread, NULL, free_all, raws), 0);
  pthread_join(thread, NULL);
  cr_assert_eq(stats_of(allocator).live_bytes, 0);
  cr_assert_eq(stats_of(allocator).live_count, 0);
  cr_assert_eq(stats_of(allocator).alloc_count, 100);
  cr_assert_eq(stats_of(allocator).free_count, 100);
  quay_allocator_release(allocator);
}

static void *count_some(void *allocator) {
  for (int i = 0; i < 50; i++) {
    quay_raw_buffer raw;
    if (quay_allocator_alloc(allocator, 10, NULL, &raw) != QUAY_OK)
      return allocator;
    quay_raw_buffer_free(&raw);
  }
  return NULL;
}

Test(allocator, more_threads_than_shards_are_counted_exactly) {
  quay_test_table_init(&table);
  quay_allocator *allocator = make();
  for (int round = 0; round < 3; round++) {
    pthread_t threads[60];
    for (size_t i = 0; i < 60; i++)
      cr_assert_eq(pthread_create(&threads[i], NULL, count_some, allocator), 0);
    for (size_t i = 0; i < 60; i++) {
      void *failed;
      pthread_join(threads[i], &failed);
      cr_assert_null(failed);
    }
  }
  cr_assert_eq(stats_of(allocator).alloc_count, 3 * 60 * 50);
  cr_assert_eq(stats_of(allocator).live_count, 0);
  quay_allocator_release(allocator);
}

Test(allocator, null_output_parameters_are_refused) {
  quay_test_table_init(&table);
  quay_allocator *allocator = make();
  CHECK_FAILS(quay_allocator_alloc(allocator, 10, NULL, NULL), QUAY_STATUS_INVALID_ARGUMENT);
  CHECK_FAILS(quay_allocator_stats(allocator, NULL), QUAY_STATUS_INVALID_ARGUMENT);
  quay_allocator_release(allocator);
}

static void free_with_error(quay_allocator *allocator, quay_raw_buffer *raw,
                            quay_event *const *pending, size_t count) {
  (void)allocator, (void)pending, (void)count;
  quay_error_set(QUAY_STATUS_IO, "table", 0, NULL, "an error while freeing");
  free(quay_test_table_bytes(raw));
}

Test(allocator, an_error_inside_a_backends_free_does_not_reach_the_caller) {
  quay_test_table_init(&table);
  table.vtable.free = free_with_error;
  quay_allocator *allocator = make();
  quay_raw_buffer raw;
  CHECK_OK(quay_allocator_alloc(allocator, 10, NULL, &raw));
  quay_error_set(QUAY_STATUS_BUSY, "", 0, NULL, "from before");
  quay_raw_buffer_free(&raw);
  cr_assert_str_eq(quay_last_error()->message, "from before");
  quay_allocator_release(allocator);
}
