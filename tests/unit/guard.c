/* The guard layer: what it fills, what damage it finds and how it tells, the quarantine. Memory of
 * a device is in guard_cuda.c. */
#include <pthread.h>
#include <quay/backend.h>
#include <quay/quay.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "core/allocator_impl.h"
#include "core/poison.h"
#include "support/late/late.h"
#include "support/log.h"
#include "support/random.h"
#include "support/status.h"
#include "support/table.h"

#if defined(__has_attribute)
#if __has_attribute(no_sanitize)
#define UNCHECKED __attribute__((no_sanitize("address")))
#endif
#endif
#ifndef UNCHECKED
#define UNCHECKED
#endif

static quay_allocator *open(const char *spec) {
  quay_allocator *allocator = NULL;
  quay_test_log_begin();
  CHECK_OK(quay_allocator_open(spec, &allocator));
  return allocator;
}

static quay_raw_buffer alloc(quay_allocator *allocator, uint64_t size) {
  quay_raw_buffer raw;
  CHECK_OK(quay_allocator_alloc(allocator, size, NULL, &raw));
  return raw;
}

static quay_stats stats_of(quay_allocator *allocator) {
  quay_stats stats;
  CHECK_OK(quay_allocator_stats(allocator, &stats));
  return stats;
}

static unsigned char *bytes_of(const quay_raw_buffer *raw) {
  void *pointer = NULL;
  CHECK_OK(quay_raw_buffer_host_pointer(raw, &pointer));
  return pointer;
}

/* A stray write, and a look at bytes that are none of the program's. */
UNCHECKED static void write_stray(unsigned char *bytes, int64_t offset, unsigned char value) {
  volatile unsigned char *const place = bytes + offset;
  *place = value;
}

UNCHECKED static unsigned char read_stray(const unsigned char *bytes, int64_t offset) {
  const volatile unsigned char *const place = bytes + offset;
  return *place;
}

static void expect_log(const char *text) {
  cr_expect_eq(quay_test_log_count(text), 1, "no \"%s\" in: %s", text, quay_test_log_text());
}

/* Damage as a visitor gets it. */
typedef struct findings {
  size_t count;
  quay_guard_damage damages[8];
  quay_raw_buffer *to_free; /* NULL: nothing */
} findings;

static bool keep(void *user, const quay_guard_damage *damage) {
  findings *const all = user;
  if (all->count < 8)
    all->damages[all->count] = *damage;
  all->count++;
  if (all->to_free != NULL)
    quay_raw_buffer_free(all->to_free);
  return true;
}

static findings visit(quay_allocator *allocator) {
  findings all = {.count = 0};
  CHECK_OK(quay_guard_visit(allocator, keep, &all));
  return all;
}

/* Contents. */

Test(guard, new_memory_is_filled_and_freed_memory_is_filled_otherwise) {
  quay_allocator *allocator = open("guard+cpu");
  quay_raw_buffer raw = alloc(allocator, 1000);
  unsigned char *const bytes = bytes_of(&raw);
  for (int64_t i = 0; i < 1000; i++)
    cr_assert_eq(bytes[i], 0xcd, "byte %lld", (long long)i);
  quay_raw_buffer_free(&raw);
  for (int64_t i = 0; i < 1000; i++)
    cr_assert_eq(read_stray(bytes, i), 0xdd, "byte %lld", (long long)i);
  quay_allocator_release(allocator);
}

Test(guard, zeroed_memory_is_zero_also_where_a_freed_block_was) {
  static const quay_alloc_options zeroed = {.zeroed = true};
  quay_allocator *allocator = open("guard:quarantine=0+cpu");
  for (int round = 0; round < 10; round++) {
    quay_raw_buffer raw;
    CHECK_OK(quay_allocator_alloc(allocator, 777, &zeroed, &raw));
    unsigned char *const bytes = bytes_of(&raw);
    for (size_t i = 0; i < 777; i++)
      cr_assert_eq(bytes[i], 0);
    memset(bytes, 0x77, 777);
    quay_raw_buffer_free(&raw);
  }
  cr_assert_eq(stats_of(allocator).error_count, 0);
  quay_allocator_release(allocator);
}

Test(guard, every_alignment_is_honoured) {
  quay_allocator *allocator = open("guard:redzone=3+cpu");
  for (uint64_t alignment = 1; alignment <= 1 << 20; alignment *= 2) {
    const quay_alloc_options options = {.alignment = alignment};
    quay_raw_buffer raw;
    CHECK_OK(quay_allocator_alloc(allocator, 33, &options, &raw));
    unsigned char *const bytes = bytes_of(&raw);
    cr_assert_eq((uintptr_t)bytes % alignment, 0);
    for (int64_t i = 1; i <= 3; i++)
      cr_assert_eq(read_stray(bytes, -i), 0xfb);
    memset(bytes, 0x55, 33);
    quay_raw_buffer_free(&raw);
  }
  cr_assert_eq(quay_test_log_count(""), 0, "%s", quay_test_log_text());
  quay_allocator_release(allocator);
}

/* Damage beside a block. */

Test(guard, an_overrun_is_reported_when_the_block_is_freed) {
  quay_allocator *allocator = open("guard+cpu");
  quay_track_place("model.c", 42);
  quay_raw_buffer raw = alloc(allocator, 100);
  quay_track_place(NULL, 0);
  char expected[128];
  snprintf(expected, sizeof expected,
           "100 bytes of pageable memory at 0x%llx, allocation 1, asked for at model.c:42",
           (unsigned long long)(uintptr_t)bytes_of(&raw));
  write_stray(bytes_of(&raw), 102, 1);
  write_stray(bytes_of(&raw), 104, 2);
  quay_raw_buffer_free(&raw);
  expect_log("overrun: 2 bytes were overwritten from offset 102 to 104");
  expect_log(expected);
  cr_assert_eq(quay_test_log_count(""), 1);
  cr_assert_eq(stats_of(allocator).error_count, 1);
  cr_assert_eq(stats_of(allocator).live_count, 0);
  quay_allocator_release(allocator);
}

Test(guard, an_underrun_is_reported_when_the_block_is_freed) {
  quay_allocator *allocator = open("guard+cpu");
  quay_raw_buffer raw = alloc(allocator, 100);
  write_stray(bytes_of(&raw), -1, 0);
  quay_raw_buffer_free(&raw);
  expect_log("underrun: 1 bytes were overwritten from offset -1 to -1");
  cr_assert_eq(stats_of(allocator).error_count, 1);
  quay_allocator_release(allocator);
}

Test(guard, a_write_to_any_byte_of_the_red_zones_is_found_for_blocks_of_every_size) {
  static const uint64_t sizes[] = {0, 1, 7, 63, 64, 65, 4095, 4097, 100000};
  quay_allocator *allocator = open("guard:redzone=16,quarantine=0+cpu");
  size_t found = 0;
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    for (int64_t distance = 1; distance <= 16; distance++) {
      const int64_t places[] = {-distance, (int64_t)sizes[i] + distance - 1};
      for (size_t k = 0; k < 2; k++) {
        quay_raw_buffer raw = alloc(allocator, sizes[i]);
        unsigned char *const bytes = bytes_of(&raw);
        write_stray(bytes, places[k], 0);
        const findings all = visit(allocator);
        cr_assert_eq(all.count, 1, "size %zu, place %lld", (size_t)sizes[i], (long long)places[k]);
        cr_assert_eq(all.damages[0].direction, k == 0 ? QUAY_GUARD_UNDERRUN : QUAY_GUARD_OVERRUN);
        cr_assert_eq(all.damages[0].first, places[k]);
        cr_assert_eq(all.damages[0].last, places[k]);
        quay_raw_buffer_free(&raw);
        cr_assert_eq(stats_of(allocator).error_count, ++found);
      }
    }
  }
  quay_allocator_release(allocator);
}

Test(guard, writes_within_the_block_are_no_damage) {
  quay_allocator *allocator = open("guard:redzone=1+cpu");
  for (uint64_t size = 0; size < 100; size++) {
    quay_raw_buffer raw = alloc(allocator, size);
    quay_test_random_bytes(bytes_of(&raw), size, size + 1);
    CHECK_OK(quay_guard_check(allocator));
    quay_raw_buffer_free(&raw);
  }
  quay_allocator_release(allocator);
  cr_assert_eq(quay_test_log_count(""), 0, "%s", quay_test_log_text());
}

Test(guard, damage_is_found_on_demand_with_block_offset_and_direction) {
  quay_allocator *allocator = open("guard+track+cpu");
  quay_raw_buffer intact = alloc(allocator, 50);
  quay_track_place("train.c", 7);
  quay_raw_buffer hurt = alloc(allocator, 60);
  CHECK_OK(quay_guard_check(allocator));
  write_stray(bytes_of(&hurt), -5, 0x11);
  write_stray(bytes_of(&hurt), -3, 0x12);
  write_stray(bytes_of(&hurt), 60, 0x13);
  CHECK_FAILS(quay_guard_check(allocator), QUAY_STATUS_OUT_OF_RANGE);
  CHECK_MESSAGE("2 places");
  CHECK_MESSAGE("underrun: 2 bytes were overwritten from offset -5 to -3");
  CHECK_MESSAGE("allocation 2, asked for at train.c:7");
  cr_assert_str_eq(quay_last_error()->backend, "guard");
  expect_log("overrun: 1 bytes were overwritten from offset 60 to 60");
  const findings all = visit(allocator);
  cr_assert_eq(all.count, 2);
  cr_assert_eq(all.damages[0].direction, QUAY_GUARD_UNDERRUN);
  cr_assert_eq(all.damages[0].first, -5);
  cr_assert_eq(all.damages[0].last, -3);
  cr_assert_eq(all.damages[0].bytes, 2);
  cr_assert_eq(all.damages[1].direction, QUAY_GUARD_OVERRUN);
  cr_assert_eq(all.damages[1].first, 60);
  for (size_t i = 0; i < 2; i++) {
    cr_assert_eq(all.damages[i].block.address, (uintptr_t)bytes_of(&hurt));
    cr_assert_eq(all.damages[i].block.size, 60);
    cr_assert_eq(all.damages[i].block.serial, 2);
    cr_assert_str_eq(all.damages[i].block.file, "train.c");
    cr_assert_eq(all.damages[i].block.line, 7);
  }
  quay_raw_buffer_free(&hurt);
  quay_raw_buffer_free(&intact);
  quay_allocator_release(allocator);
}

static bool stop_at_once(void *user, const quay_guard_damage *damage) {
  (void)damage;
  ++*(size_t *)user;
  return false;
}

Test(guard, a_visitor_may_stop_and_may_free_the_block) {
  quay_allocator *allocator = open("guard+cpu");
  quay_raw_buffer raw = alloc(allocator, 60);
  write_stray(bytes_of(&raw), -1, 0x11);
  write_stray(bytes_of(&raw), 60, 0x13);
  size_t count = 0;
  CHECK_OK(quay_guard_visit(allocator, stop_at_once, &count));
  cr_assert_eq(count, 1);
  findings all = {.to_free = &raw};
  CHECK_OK(quay_guard_visit(allocator, keep, &all));
  cr_assert_eq(all.count, 2);
  cr_assert_eq(stats_of(allocator).live_count, 0);
  quay_allocator_release(allocator);
}

Test(guard, checks_need_a_guard_layer_and_a_visitor) {
  quay_allocator *allocator = open("track+cpu");
  CHECK_FAILS(quay_guard_check(allocator), QUAY_STATUS_INVALID_ARGUMENT);
  CHECK_MESSAGE("track+cpu");
  CHECK_FAILS(quay_guard_check(NULL), QUAY_STATUS_INVALID_ARGUMENT);
  CHECK_FAILS(quay_guard_visit(allocator, NULL, NULL), QUAY_STATUS_INVALID_ARGUMENT);
  quay_allocator_release(allocator);
}

/* Freed blocks. */

Test(guard, a_write_to_a_freed_block_is_found_on_demand_and_when_it_leaves_the_quarantine) {
  quay_allocator *allocator = open("guard:quarantine=8KiB+cpu");
  quay_raw_buffer raw = alloc(allocator, 100);
  unsigned char *const bytes = bytes_of(&raw);
  quay_raw_buffer_free(&raw);
  CHECK_OK(quay_guard_check(allocator));
  write_stray(bytes, 17, 0x44);
  write_stray(bytes, 19, 0x45);
  const findings all = visit(allocator);
  cr_assert_eq(all.count, 1);
  cr_assert_eq(all.damages[0].direction, QUAY_GUARD_AFTER_FREE);
  cr_assert_eq(all.damages[0].first, 17);
  cr_assert_eq(all.damages[0].last, 19);
  cr_assert_eq(all.damages[0].block.address, (uintptr_t)bytes);
  cr_assert_eq(stats_of(allocator).error_count, 0);
  for (int i = 0; i < 40; i++) {
    quay_raw_buffer other = alloc(allocator, 100);
    quay_raw_buffer_free(&other);
  }
  expect_log("use after free: 2 bytes were overwritten from offset 17 to 19");
  cr_assert_eq(stats_of(allocator).error_count, 1);
  CHECK_OK(quay_guard_check(allocator));
  quay_allocator_release(allocator);
}

Test(guard, a_write_to_a_freed_block_is_found_when_the_allocator_ends) {
  quay_allocator *allocator = open("guard+cpu");
  quay_raw_buffer raw = alloc(allocator, 100);
  unsigned char *const bytes = bytes_of(&raw);
  quay_raw_buffer_free(&raw);
  write_stray(bytes, -2, 0x44);
  quay_allocator_release(allocator);
  expect_log("use after free: 1 bytes were overwritten from offset -2 to -2");
}

Test(guard, the_quarantine_keeps_to_its_bytes_and_gives_the_oldest_up_first) {
  quay_allocator *allocator = open("guard:redzone=64,quarantine=10000+cpu");
  quay_allocator *inner = quay_allocator_inner(allocator);
  unsigned char *last = NULL;
  for (int i = 0; i < 100; i++) {
    quay_raw_buffer raw = alloc(allocator, 1000);
    last = bytes_of(&raw);
    quay_raw_buffer_free(&raw);
    cr_assert_leq(stats_of(inner).live_bytes, 10000);
    cr_assert_eq(stats_of(allocator).live_bytes, 0);
  }
  cr_assert_gt(stats_of(inner).live_bytes, 10000 - 2 * 1128);
  write_stray(last, 0, 1);
  cr_assert_eq(visit(allocator).count, 1);
  quay_allocator_release(allocator);
}

Test(guard, a_block_that_is_larger_than_the_quarantine_goes_back_at_once) {
  quay_allocator *allocator = open("guard:quarantine=5000+cpu");
  quay_raw_buffer small = alloc(allocator, 100), large = alloc(allocator, 5000);
  quay_raw_buffer_free(&small);
  quay_raw_buffer_free(&large);
  cr_assert_eq(stats_of(quay_allocator_inner(allocator)).live_count, 1);
  quay_allocator_release(allocator);
}

Test(guard, without_a_quarantine_freed_blocks_go_back_at_once) {
  quay_allocator *allocator = open("guard:quarantine=0+cpu");
  quay_raw_buffer raw = alloc(allocator, 0);
  quay_raw_buffer_free(&raw);
  cr_assert_eq(stats_of(quay_allocator_inner(allocator)).live_count, 0);
  quay_allocator_release(allocator);
}

Test(guard, trim_and_release_give_the_quarantine_back) {
  quay_allocator *allocator = open("guard:redzone=64+track+cpu");
  quay_raw_buffer raw = alloc(allocator, 1000);
  quay_raw_buffer_free(&raw);
  uint64_t bytes = 0;
  CHECK_OK(quay_allocator_trim(allocator, &bytes));
  cr_assert_eq(bytes, 1128);
  CHECK_OK(quay_track_check(allocator));
  raw = alloc(allocator, 1000);
  quay_raw_buffer_free(&raw);
  quay_allocator_release(allocator);
  cr_assert_eq(quay_test_log_count(""), 0, "%s", quay_test_log_text());
}

Test(guard, the_quarantine_is_given_up_rather_than_failing) {
  quay_allocator *allocator = open("guard:redzone=64+limit:2000+cpu");
  quay_raw_buffer raw = alloc(allocator, 1500);
  quay_raw_buffer_free(&raw);
  raw = alloc(allocator, 1600);
  quay_raw_buffer_free(&raw);
  CHECK_FAILS(quay_allocator_alloc(allocator, 2000, NULL, &raw), QUAY_STATUS_LIMIT_EXCEEDED);
  CHECK_MESSAGE("2128 bytes");
  quay_allocator_release(allocator);
}

Test(guard, a_second_free_is_refused_and_reported) {
  quay_allocator *allocator = open("guard+cpu");
  quay_raw_buffer raw = alloc(allocator, 100), copy = raw, other;
  quay_raw_buffer_free(&raw);
  other = alloc(allocator, 100);
  quay_raw_buffer_free(&copy);
  expect_log("refused to free");
  cr_assert_eq(stats_of(allocator).error_count, 1);
  cr_assert_eq(stats_of(allocator).live_count, 1);
  quay_raw_buffer_free(&other);
  quay_allocator_release(allocator);
}

/* What guard can't do, and what it must not break. */

Test(guard, its_memory_can_not_be_released) {
  quay_allocator *allocator = open("track+guard+cpu");
  quay_raw_buffer raw = alloc(allocator, 100);
  quay_host_memory memory;
  CHECK_FAILS(quay_raw_buffer_release_host(&raw, &memory), QUAY_STATUS_UNSUPPORTED);
  CHECK_MESSAGE("guard");
  bytes_of(&raw)[99] = 1;
  quay_raw_buffer_free(&raw);
  CHECK_OK(quay_track_check(allocator));
  quay_allocator_release(allocator);
}

Test(guard, adopted_memory_passes_through) {
  quay_allocator *allocator = open("guard+cpu");
  unsigned char bytes[100] = {1};
  const quay_host_memory memory = {.pointer = bytes, .size = sizeof bytes};
  quay_raw_buffer raw;
  CHECK_OK(quay_raw_buffer_adopt_host(allocator, &memory, &raw));
  CHECK_OK(quay_guard_check(allocator));
  quay_raw_buffer_free(&raw);
  cr_assert_eq(bytes[0], 1);
  quay_allocator_release(allocator);
}

Test(guard, reserved_address_space_passes_through) {
  quay_allocator *allocator = open("guard+cpu");
  quay_raw_buffer raw = {.arm = QUAY_RAW_NONE};
  CHECK_OK(quay__reserve(allocator, 1 << 20, 4096, &raw));
  CHECK_OK(allocator->vtable.commit(allocator, &raw, 0, 4096));
  memset(bytes_of(&raw), 0x31, 4096);
  quay_raw_buffer_free(&raw);
  cr_assert_eq(stats_of(quay_allocator_inner(allocator)).live_count, 0);
  cr_assert_eq(quay_test_log_count(""), 0);
  quay_allocator_release(allocator);
}

Test(guard, the_largest_sizes_do_not_wrap_around) {
  quay_allocator *allocator = open("guard:redzone=1GiB+cpu");
  static const quay_alloc_options aligned = {.alignment = 1 << 30};
  static const uint64_t sizes[] = {INT64_MAX, INT64_MAX - 128, INT64_MAX - ((uint64_t)2 << 30)};
  for (size_t i = 0; i < 3; i++) {
    quay_raw_buffer raw;
    CHECK_FAILS(quay_allocator_alloc(allocator, sizes[i], &aligned, &raw),
                QUAY_STATUS_OUT_OF_HOST_MEMORY);
  }
  quay_allocator_release(allocator);
}

Test(guard, a_fill_that_fails_fails_the_allocation_and_leaves_nothing) {
  for (int n = 1; n <= 3; n++) {
    char spec[64];
    snprintf(spec, sizeof spec, "guard+fault:nth=%d,on=fill+track+cpu", n);
    quay_allocator *allocator = open(spec);
    quay_raw_buffer raw;
    CHECK_FAILS(quay_allocator_alloc(allocator, 100, NULL, &raw), QUAY_STATUS_IO);
    CHECK_OK(quay_track_check(allocator));
    quay_allocator_release(allocator);
    cr_assert_eq(quay_test_log_count(""), 0, "%s", quay_test_log_text());
  }
}

Test(guard, memory_that_can_not_be_read_fails_the_check) {
  quay_allocator *allocator = open("guard+fault:nth=2,on=copy_out+cpu");
  quay_raw_buffer first = alloc(allocator, 100), second = alloc(allocator, 100);
  CHECK_FAILS(quay_guard_check(allocator), QUAY_STATUS_IO);
  CHECK_OK(quay_guard_check(allocator));
  quay_raw_buffer_free(&first);
  quay_raw_buffer_free(&second);
  quay_allocator_release(allocator);
}

/* Devices. */

static quay_status open_table(void *user, const quay_spec_args *args,
                              quay_allocator **out_allocator) {
  quay_test_table *table = user;
  (void)args;
  return quay_allocator_create(&table->desc, out_allocator);
}

Test(guard, memory_that_can_not_be_carved_has_a_red_zone_behind_it) {
  quay_test_table table;
  quay_test_table_init(&table);
  const quay_backend backend = {.version = QUAY_BACKEND_VERSION,
                                .struct_size = sizeof backend,
                                .name = "table",
                                .user = &table,
                                .open = open_table};
  CHECK_OK(quay_backend_register(&backend));
  quay_allocator *allocator = open("guard+table");
  quay_raw_buffer raw = alloc(allocator, 100);
  memset(bytes_of(&raw), 0x21, 100);
  CHECK_OK(quay_guard_check(allocator));
  write_stray(bytes_of(&raw), 101, 0);
  const findings all = visit(allocator);
  cr_assert_eq(all.count, 1);
  cr_assert_eq(all.damages[0].direction, QUAY_GUARD_OVERRUN);
  cr_assert_eq(all.damages[0].first, 101);
  quay_raw_buffer_free(&raw);
  quay_allocator_release(allocator);
}

static quay_allocator *open_late(const late_options *options, const char *spec) {
  CHECK_OK(late_register(options));
  return open(spec);
}

static void close_late(quay_allocator *allocator) {
  quay_allocator_release(allocator);
  late_violation violation = {.message = ""};
  cr_assert_eq(late_violations(&violation, 1), 0, "%s", violation.message);
  CHECK_OK(late_unregister());
}

/* What the processor reaches is poisoned for its tools on return: nothing fills it after that. */
Test(guard, memory_that_the_host_reaches_is_filled_on_return_also_on_a_stream) {
  quay_allocator *allocator =
      open_late(&(late_options){.mode = LATE_MANUAL}, "guard+late:0,memory=pinned");
  quay_stream *stream = NULL;
  CHECK_OK(quay_stream_create(quay_allocator_device(allocator), NULL, &stream));
  quay_raw_buffer raw;
  CHECK_OK(quay_allocator_alloc(allocator, 1000, &(quay_alloc_options){.stream = stream}, &raw));
  late_counts counts;
  late_count(&counts);
  cr_assert_eq(counts.submitted, counts.run);
  quay_raw_buffer_free(&raw);
  quay_stream_release(stream);
  close_late(allocator);
}

/* The red zones are filled late, on the stream, and looked at by the host. */
Test(guard, a_stream_ordered_block_that_is_freed_at_once_is_not_damaged) {
  quay_allocator *allocator = open_late(&(late_options){.mode = LATE_MANUAL}, "guard+late:0");
  quay_stream *stream = NULL;
  CHECK_OK(quay_stream_create(quay_allocator_device(allocator), NULL, &stream));
  for (int i = 0; i < 20; i++) {
    const quay_alloc_options options = {.stream = stream, .zeroed = i % 2 == 0};
    quay_raw_buffer raw;
    CHECK_OK(quay_allocator_alloc(allocator, 1000, &options, &raw));
    if (i % 3 == 0)
      CHECK_OK(quay_guard_check(allocator));
    quay_raw_buffer_free(&raw);
  }
  CHECK_OK(quay_guard_check(allocator));
  cr_assert_eq(stats_of(allocator).error_count, 0, "%s", quay_test_log_text());
  quay_stream_release(stream);
  close_late(allocator);
}

Test(guard, blocks_are_looked_at_only_when_the_work_on_them_is_done) {
  const late_options options = {.mode = LATE_MANUAL, .ordered_free = true};
  quay_allocator *allocator = open_late(&options, "guard+late:0");
  const int64_t shape[] = {4096};
  unsigned char bytes[4096];
  quay_stream *stream = NULL;
  quay_test_random_bytes(bytes, sizeof bytes, 3);
  CHECK_OK(quay_stream_create(quay_allocator_device(allocator), NULL, &stream));
  const quay_copy_options on_stream = {.stream = stream};
  for (int i = 0; i < 5; i++) {
    quay_buffer *from = NULL, *to = NULL;
    CHECK_OK(quay_buffer_create(allocator, QUAY_U8, 1, shape, NULL, &from));
    CHECK_OK(quay_buffer_create(allocator, QUAY_U8, 1, shape, NULL, &to));
    CHECK_OK(quay_buffer_copy_in(from, bytes, sizeof bytes));
    CHECK_OK(quay_buffer_copy_region(to, 0, from, 0, sizeof bytes, &on_stream));
    quay_buffer_release(from);
    quay_buffer_release(to);
  }
  CHECK_OK(quay_stream_synchronize(stream));
  CHECK_OK(quay_collect(NULL));
  cr_assert_eq(stats_of(allocator).error_count, 0, "%s", quay_test_log_text());
  quay_stream_release(stream);
  close_late(allocator);
}

Test(guard, memory_of_a_lost_device_is_freed_without_a_report) {
  quay_allocator *allocator = open_late(NULL, "guard+late:0");
  quay_raw_buffer first = alloc(allocator, 100), second = alloc(allocator, 200);
  quay_raw_buffer_free(&first);
  late_lose(0);
  quay_raw_buffer_free(&second);
  quay_allocator_release(allocator);
  cr_assert_eq(quay_test_log_count("guard layer"), 0, "%s", quay_test_log_text());
}

/* The host's tools. */

#ifdef QUAY__ASAN
static bool poisoned(const unsigned char *bytes, int64_t offset) {
  return __asan_address_is_poisoned(bytes + offset) != 0;
}

Test(guard, red_zones_and_freed_blocks_are_poisoned_and_nothing_else_is) {
  quay_allocator *allocator = open("guard:redzone=64+cpu");
  quay_raw_buffer raw = alloc(allocator, 100);
  const unsigned char *const bytes = bytes_of(&raw);
  for (int64_t i = 1; i <= 64; i++) {
    cr_assert(poisoned(bytes, -i));
    cr_assert(poisoned(bytes, 99 + i));
  }
  CHECK_OK(quay_guard_check(allocator));
  for (int64_t i = 0; i < 100; i++)
    cr_assert_not(poisoned(bytes, i));
  cr_assert(poisoned(bytes, -1));
  cr_assert(poisoned(bytes, 100));
  quay_raw_buffer_free(&raw);
  CHECK_OK(quay_guard_check(allocator));
  for (int64_t i = 0; i < 100; i++)
    cr_assert(poisoned(bytes, i));
  quay_allocator_release(allocator);
}

Test(guard, memory_that_goes_back_to_the_inner_allocator_is_not_poisoned) {
  quay_allocator *allocator = open("guard:quarantine=0+cpu");
  quay_raw_buffer raw = alloc(allocator, 2 << 20);
  const unsigned char *const bytes = bytes_of(&raw);
  quay_raw_buffer_free(&raw);
  cr_assert_not(poisoned(bytes, 0));
  cr_assert_not(poisoned(bytes, -1));
  cr_assert_not(poisoned(bytes, 2 << 20));
  quay_allocator_release(allocator);
}
#endif

/* Specs. */

Test(guard, the_spec_has_what_differs_from_the_defaults) {
  static const char *const specs[][2] = {
      {"guard+cpu", "guard+cpu"},
      {"guard:redzone=128,quarantine=4MiB+cpu", "guard+cpu"},
      {"guard:redzone=1KiB+cpu", "guard:redzone=1024+cpu"},
      {"guard:quarantine=0,redzone=7+cpu", "guard:redzone=7,quarantine=0+cpu"},
      {"guard:quarantine=1KiB+cpu", "guard:quarantine=1024+cpu"},
  };
  for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) {
    quay_allocator *allocator = open(specs[i][0]);
    cr_expect_str_eq(quay_allocator_spec(allocator), specs[i][1]);
    quay_allocator_release(allocator);
  }
}

Test(guard, a_wrong_spec_is_refused) {
  static const char *const specs[] = {
      "guard:+cpu",          "guard:redzone=0+cpu",     "guard:redzone=2GiB+cpu",
      "guard:redzone=x+cpu", "guard:quarantine=-1+cpu", "guard:64+cpu",
      "guard:size=1+cpu"};
  for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) {
    quay_allocator *allocator = NULL;
    CHECK_FAILS(quay_allocator_open(specs[i], &allocator), QUAY_STATUS_INVALID_ARGUMENT);
    CHECK_MESSAGE(specs[i]);
  }
}

/* Threads. */

typedef struct churn {
  quay_allocator *allocator;
  atomic_bool *stop;
  uint64_t seed;
} churn;

static void *use_blocks(void *argument) {
  const churn *self = argument;
  quay_raw_buffer raws[8] = {{.arm = QUAY_RAW_NONE}};
  uint64_t state = self->seed;
  for (int i = 0; i < 1500; i++) {
    quay_raw_buffer *raw = &raws[quay_test_random(&state) % 8];
    if (raw->owner != NULL) {
      quay_raw_buffer_free(raw);
    } else if (quay_allocator_alloc(self->allocator, quay_test_random(&state) % 500, NULL, raw) ==
               QUAY_OK) {
      memset(bytes_of(raw), 0x5a, raw->size);
    }
  }
  for (int i = 0; i < 8; i++)
    quay_raw_buffer_free(&raws[i]);
  return NULL;
}

static void *keep_checking(void *argument) {
  const churn *self = argument;
  while (!atomic_load(self->stop)) {
    if (quay_guard_check(self->allocator) != QUAY_OK)
      return argument;
  }
  return NULL;
}

Test(guard, threads_may_allocate_free_and_check_at_once) {
  enum {
    USERS = 4,
    CHECKERS = 2
  };
  atomic_bool stop = false;
  quay_allocator *allocator = open("guard:quarantine=16KiB+cpu");
  churn work[USERS];
  pthread_t users[USERS], checkers[CHECKERS];
  for (size_t i = 0; i < USERS; i++) {
    work[i] = (churn){.allocator = allocator, .stop = &stop, .seed = i + 1};
    cr_assert_eq(pthread_create(&users[i], NULL, use_blocks, &work[i]), 0);
  }
  for (size_t i = 0; i < CHECKERS; i++)
    cr_assert_eq(pthread_create(&checkers[i], NULL, keep_checking, &work[i]), 0);
  for (size_t i = 0; i < USERS; i++)
    pthread_join(users[i], NULL);
  atomic_store(&stop, true);
  for (size_t i = 0; i < CHECKERS; i++) {
    void *failed;
    pthread_join(checkers[i], &failed);
    cr_assert_null(failed, "%s", quay_test_log_text());
  }
  cr_assert_eq(stats_of(allocator).live_count, 0);
  cr_assert_eq(stats_of(allocator).error_count, 0);
  quay_allocator_release(allocator);
}
