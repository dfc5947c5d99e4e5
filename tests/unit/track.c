/* The track layer: leaks, second frees, foreign pointers, places, neighbours, the exact peak. */
#include <pthread.h>
#include <quay/backend.h>
#include <quay/quay.h>
#include <stdio.h>
#include <string.h>

#include "core/allocator_impl.h"
#include "support/log.h"
#include "support/random.h"
#include "support/status.h"
#include "support/table.h"

static quay_allocator *open(const char *spec) {
  quay_allocator *allocator = NULL;
  CHECK_OK(quay_allocator_open(spec, &allocator));
  return allocator;
}

static quay_raw_buffer alloc(quay_allocator *allocator, uint64_t size) {
  quay_raw_buffer raw;
  CHECK_OK(quay_allocator_alloc(allocator, size, NULL, &raw));
  return raw;
}

static uint64_t address_of(const quay_raw_buffer *raw) {
  uint64_t address = 0;
  CHECK_OK(quay_raw_buffer_address(raw, &address));
  return address;
}

static quay_stats stats_of(quay_allocator *allocator) {
  quay_stats stats;
  CHECK_OK(quay_allocator_stats(allocator, &stats));
  return stats;
}

/* Places. */

typedef struct visit_record {
  size_t count;
  size_t stop_after;
  quay_track_block blocks[16];
} visit_record;

static bool keep_block(void *user, const quay_track_block *block) {
  visit_record *record = user;
  record->blocks[record->count++] = *block;
  return record->count != record->stop_after;
}

Test(track, visits_live_blocks_by_serial_number_with_size_address_and_place) {
  quay_allocator *allocator = open("track+cpu");
  visit_record record = {0};
  quay_track_place("model.c", 42);
  quay_raw_buffer first = alloc(allocator, 100);
  quay_raw_buffer second = alloc(allocator, 200);
  quay_track_place(NULL, 7);
  quay_raw_buffer third = alloc(allocator, 0);
  const uint64_t third_address = address_of(&third);
  quay_raw_buffer_free(&second);
  CHECK_OK(quay_track_visit(allocator, keep_block, &record));
  cr_assert_eq(record.count, 2);
  cr_assert_eq(record.blocks[0].serial, 1);
  cr_assert_eq(record.blocks[0].size, 100);
  cr_assert_eq(record.blocks[0].address, address_of(&first));
  cr_assert_str_eq(record.blocks[0].file, "model.c");
  cr_assert_eq(record.blocks[0].line, 42);
  cr_assert_not_null(record.blocks[0].caller);
  cr_assert_eq(record.blocks[1].serial, 3);
  cr_assert_eq(record.blocks[1].size, 0);
  cr_assert_eq(record.blocks[1].address, third_address);
  cr_assert_str_empty(record.blocks[1].file);
  cr_assert_eq(record.blocks[1].line, 0);
  quay_raw_buffer_free(&third);
  quay_raw_buffer_free(&first);
  quay_allocator_release(allocator);
}

Test(track, a_visitor_that_returns_false_ends_the_visit) {
  quay_allocator *allocator = open("track+cpu");
  quay_raw_buffer raws[3] = {alloc(allocator, 1), alloc(allocator, 2), alloc(allocator, 3)};
  visit_record record = {.stop_after = 2};
  CHECK_OK(quay_track_visit(allocator, keep_block, &record));
  cr_assert_eq(record.count, 2);
  for (size_t i = 0; i < 3; i++)
    quay_raw_buffer_free(&raws[i]);
  quay_allocator_release(allocator);
}

static bool free_while_visiting(void *user, const quay_track_block *block) {
  (void)block;
  quay_raw_buffer_free(user);
  return true;
}

Test(track, a_visitor_may_use_the_allocator) {
  quay_allocator *allocator = open("track+cpu");
  quay_raw_buffer raw = alloc(allocator, 10);
  CHECK_OK(quay_track_visit(allocator, free_while_visiting, &raw));
  CHECK_OK(quay_track_check(allocator));
  quay_allocator_release(allocator);
}

Test(track, the_caller_is_the_return_address_of_the_public_function) {
  quay_allocator *allocator = open("track+cpu");
  visit_record record = {0};
  const int64_t shape[] = {10};
  quay_buffer *buffer = NULL;
  quay_raw_buffer raw = alloc(allocator, 10);
  CHECK_OK(quay_buffer_create(allocator, QUAY_U8, 1, shape, NULL, &buffer));
  CHECK_OK(quay_track_visit(allocator, keep_block, &record));
  cr_assert_eq(record.count, 2);
  /* Both are in this program's text, at different calls. */
  cr_assert_not_null(record.blocks[0].caller);
  cr_assert_not_null(record.blocks[1].caller);
  cr_assert_neq(record.blocks[0].caller, record.blocks[1].caller);
  quay_buffer_release(buffer);
  quay_raw_buffer_free(&raw);
  quay_allocator_release(allocator);
}

/* Leaks. */

Test(track, check_names_number_bytes_and_the_oldest_place) {
  quay_allocator *allocator = open("track+cpu");
  quay_test_log_begin();
  CHECK_OK(quay_track_check(allocator));
  QUAY_HERE();
  const int line = __LINE__ - 1;
  quay_raw_buffer first = alloc(allocator, 1000);
  quay_track_place("later.c", 9);
  quay_raw_buffer second = alloc(allocator, 234);
  CHECK_FAILS(quay_track_check(allocator), QUAY_STATUS_BUSY);
  char place[64];
  snprintf(place, sizeof place, "track.c:%d", line);
  CHECK_MESSAGE(place);
  CHECK_MESSAGE("2 blocks");
  CHECK_MESSAGE("1234 bytes");
  cr_assert_eq(quay_test_log_count("not freed"), 2);
  cr_assert_eq(quay_test_log_count("later.c:9"), 1);
  quay_raw_buffer_free(&first);
  quay_raw_buffer_free(&second);
  CHECK_OK(quay_track_check(allocator));
  quay_allocator_release(allocator);
}

Test(track, what_is_live_at_the_last_release_is_logged_with_its_place) {
  quay_allocator *allocator = open("track+cpu");
  quay_test_log_begin();
  quay_track_place("lost.c", 77);
  quay_raw_buffer raw = alloc(allocator, 4321);
  quay_error_clear();
  quay_allocator_release(allocator);
  cr_assert_eq(quay_test_log_count("lost.c:77"), 1, "%s", quay_test_log_text());
  cr_assert_eq(quay_test_log_count("4321 bytes of pageable memory at"), 1, "%s",
               quay_test_log_text());
  cr_assert_eq(quay_last_error()->status, QUAY_OK, "release keeps the thread's error");
  quay_raw_buffer_free(&raw);
}

Test(track, a_clean_end_logs_nothing) {
  quay_test_log_begin();
  quay_allocator *allocator = open("track+cpu");
  quay_raw_buffer raw = alloc(allocator, 10);
  quay_raw_buffer_free(&raw);
  quay_allocator_release(allocator);
  cr_assert_eq(quay_test_log_count(""), 0, "%s", quay_test_log_text());
}

/* Inside a pool. */

Test(track, address_space_that_a_pool_reserves_is_no_leak_and_no_memory) {
  quay_allocator *allocator = open("pool+track+cpu");
  visit_record record = {0};
  quay_test_log_begin();
  quay_raw_buffer raw = alloc(allocator, 4321);
  CHECK_OK(quay_track_check(allocator));
  CHECK_OK(quay_track_visit(allocator, keep_block, &record));
  cr_assert_eq(record.count, 0);
  cr_assert_lt(stats_of(quay_allocator_inner(allocator)).peak_bytes, UINT64_C(1) << 30);
  quay_track_location location;
  CHECK_OK(quay_track_locate(allocator, address_of(&raw), &location));
  cr_assert(location.inside);
  quay_raw_buffer_free(&raw);
  quay_allocator_release(allocator);
  cr_assert_eq(quay_test_log_count(""), 0, "%s", quay_test_log_text());
}

/* What a pool takes alone it takes for the program. */
Test(track, a_block_that_a_pool_takes_for_the_program_is_a_leak_until_it_is_freed) {
  quay_allocator *allocator = open("pool+track+cpu");
  const quay_alloc_options options = {.alignment = 8 << 20}; /* more than the pool's own */
  quay_raw_buffer raw;
  CHECK_OK(quay_allocator_alloc(allocator, 4321, &options, &raw));
  CHECK_FAILS(quay_track_check(allocator), QUAY_STATUS_BUSY);
  CHECK_MESSAGE("1 blocks of 4321 bytes");
  quay_raw_buffer_free(&raw);
  CHECK_OK(quay_track_check(allocator));
  quay_allocator_release(allocator);
}

/* Wrong frees. */

/* Frees `wrong` and checks that it was refused by every level of the chain. */
static void check_refused(quay_allocator *allocator, quay_raw_buffer wrong,
                          const char *explanation) {
  const quay_stats before = stats_of(allocator);
  quay_allocator *track = quay_allocator_find(allocator, "track");
  const quay_stats inner_before = stats_of(quay_allocator_inner(track));
  const quay_stats track_before = stats_of(track);
  quay_test_log_begin();
  quay_error_set(QUAY_STATUS_BUSY, "", 0, NULL, "from before");
  quay_raw_buffer_free(&wrong);
  cr_assert_eq(quay_test_log_count("refused"), 1, "%s", quay_test_log_text());
  cr_assert_eq(quay_test_log_count(explanation), 1, "no \"%s\" in %s", explanation,
               quay_test_log_text());
  cr_assert_str_eq(quay_last_error()->message, "from before");
  cr_assert_eq(quay_raw_buffer_kind(&wrong), QUAY_MEMORY_NONE);
  const quay_stats after = stats_of(allocator);
  cr_assert_eq(after.live_count, before.live_count);
  cr_assert_eq(after.live_bytes, before.live_bytes);
  cr_assert_eq(after.free_count, before.free_count);
  cr_assert_eq(stats_of(track).error_count, track_before.error_count + 1);
  cr_assert_eq(stats_of(quay_allocator_inner(track)).free_count, inner_before.free_count,
               "the free went on inwards");
}

static void free_twice(const char *spec) {
  quay_allocator *allocator = open(spec);
  quay_track_place("twice.c", 5);
  quay_raw_buffer raw = alloc(allocator, 500);
  quay_raw_buffer other = alloc(allocator, 700);
  const quay_raw_buffer copy = raw;
  quay_raw_buffer_free(&raw);
  check_refused(allocator, copy, "freed before");
  cr_assert_eq(quay_test_log_count("twice.c:5"), 1, "%s", quay_test_log_text());
  quay_raw_buffer_free(&other);
  CHECK_OK(quay_track_check(allocator));
  quay_allocator_release(allocator);
}

Test(track, a_second_free_of_a_copy_is_refused_and_told_with_the_place) {
  free_twice("track+cpu");
}

Test(track, a_second_free_through_layers_around_is_counted_by_none_of_them) {
  free_twice("fault:nth=1000000+track+cpu");
}

Test(track, the_outer_one_of_two_track_layers_finds_a_second_free) {
  free_twice("track+fault:nth=1000000+track+cpu");
}

Test(track, a_second_free_of_an_address_that_was_handed_out_again_is_refused) {
  quay_allocator *allocator = open("track+cpu");
  for (uint64_t size = 64; size <= 1024 * 1024; size *= 16) {
    quay_raw_buffer raw = alloc(allocator, size);
    const quay_raw_buffer stale = raw;
    const uint64_t address = address_of(&raw);
    quay_raw_buffer_free(&raw);
    quay_raw_buffer again[64];
    size_t count = 0;
    do {
      again[count] = alloc(allocator, size);
    } while (address_of(&again[count++]) != address && count < 64);
    const bool recycled = address_of(&again[count - 1]) == address;
    check_refused(allocator, stale, recycled ? "handed out again" : "freed before");
    for (size_t i = 0; i < count; i++)
      quay_raw_buffer_free(&again[i]);
  }
  CHECK_OK(quay_track_check(allocator));
  quay_allocator_release(allocator);
}

Test(track, copies_through_a_stale_raw_buffer_are_refused_also_after_recycling) {
  quay_allocator *allocator = open("track+cpu");
  const int64_t shape[] = {256};
  unsigned char bytes[256];
  quay_test_random_bytes(bytes, sizeof bytes, 1);
  quay_raw_buffer raw = alloc(allocator, 256);
  quay_raw_buffer stale = raw;
  quay_buffer *buffer = NULL;
  CHECK_OK(quay_buffer_from_raw(&stale, QUAY_U8, 1, shape, &buffer));
  CHECK_OK(quay_buffer_copy_in(buffer, bytes, 256));
  quay_raw_buffer_free(&raw);
  CHECK_FAILS(quay_buffer_copy_out(buffer, bytes, 256), QUAY_STATUS_INVALID_ARGUMENT);
  CHECK_MESSAGE("freed before");
  CHECK_FAILS(quay_buffer_copy_in(buffer, bytes, 256), QUAY_STATUS_INVALID_ARGUMENT);
  CHECK_FAILS(quay_buffer_fill(buffer, bytes, 1), QUAY_STATUS_INVALID_ARGUMENT);
  quay_raw_buffer next = alloc(allocator, 256);
  CHECK_FAILS(quay_buffer_copy_in(buffer, bytes, 256), QUAY_STATUS_INVALID_ARGUMENT);
  quay_raw_buffer_free(&next);
  quay_test_log_begin();
  quay_buffer_release(buffer);
  cr_assert_eq(quay_test_log_count("refused to free"), 1, "%s", quay_test_log_text());
  quay_allocator_release(allocator);
}

Test(track, a_changed_size_is_refused_and_the_block_stays_live) {
  quay_allocator *allocator = open("track+cpu");
  quay_raw_buffer raw = alloc(allocator, 500);
  quay_raw_buffer wrong = raw;
  wrong.size = 400;
  check_refused(allocator, wrong, "size was changed");
  wrong.size = 0;
  check_refused(allocator, wrong, "size was changed");
  quay_raw_buffer_free(&raw);
  CHECK_OK(quay_track_check(allocator));
  quay_allocator_release(allocator);
}

Test(track, a_pointer_into_a_block_and_one_from_elsewhere_are_refused) {
  quay_allocator *allocator = open("track+cpu");
  quay_allocator *elsewhere = open("cpu");
  quay_raw_buffer raw = alloc(allocator, 500);
  quay_raw_buffer foreign = alloc(elsewhere, 500);
  quay_raw_buffer inside = raw;
  quay_raw_buffer claimed = foreign;
  inside.as.cpu.pointer += 100;
  claimed.owner = allocator;
  check_refused(allocator, inside, "lies inside");
  check_refused(allocator, claimed, "comes from elsewhere");
  quay_raw_buffer_free(&foreign);
  quay_raw_buffer_free(&raw);
  quay_allocator_release(elsewhere);
  quay_allocator_release(allocator);
}

Test(track, a_foreign_pointer_is_refused_with_its_nearest_neighbours) {
  quay_allocator *allocator = open("track+cpu");
  quay_raw_buffer raw = alloc(allocator, 5 << 20);
  char expected[128];
  const uint64_t places[] = {address_of(&raw) - 4096, address_of(&raw) + (5 << 20)};
  static const char *const sides[] = {"above", "below"};
  for (size_t i = 0; i < 2; i++) {
    quay_raw_buffer foreign = raw;
    foreign.as.cpu.pointer = places[i];
    snprintf(expected, sizeof expected,
             "; %s it lies the block of 5242880 bytes of pageable memory at 0x%llx, allocation 1",
             sides[i], (unsigned long long)address_of(&raw));
    check_refused(allocator, foreign, expected);
    cr_assert_eq(quay_test_log_count(sides[1 - i]), 0);
  }
  quay_raw_buffer_free(&raw);
  quay_allocator_release(allocator);
}

Test(track, leaks_are_told_with_the_kind_of_their_memory) {
  quay_allocator *allocator = open("track+mmap:.");
  visit_record record = {0};
  quay_test_log_begin();
  quay_raw_buffer raw = alloc(allocator, 4321);
  CHECK_FAILS(quay_track_check(allocator), QUAY_STATUS_BUSY);
  CHECK_MESSAGE("1 blocks of 4321 bytes of file memory together");
  cr_assert_eq(quay_test_log_count("4321 bytes of file memory at"), 1);
  CHECK_OK(quay_track_visit(allocator, keep_block, &record));
  cr_assert_eq(record.blocks[0].kind, QUAY_MEMORY_FILE);
  quay_raw_buffer_free(&raw);
  quay_allocator_release(allocator);
}

Test(track, a_copy_outside_its_block_is_out_of_range) {
  quay_allocator *allocator = open("track+cpu");
  const int64_t shape[] = {600};
  unsigned char bytes[600] = {1};
  quay_raw_buffer raw = alloc(allocator, 500);
  quay_raw_buffer enlarged = raw;
  quay_buffer *buffer = NULL;
  enlarged.size = 600;
  CHECK_OK(quay_buffer_from_raw(&enlarged, QUAY_U8, 1, shape, &buffer));
  CHECK_FAILS(quay_buffer_copy_in(buffer, bytes, 600), QUAY_STATUS_OUT_OF_RANGE);
  CHECK_FAILS(quay_buffer_copy_out(buffer, bytes, 600), QUAY_STATUS_OUT_OF_RANGE);
  quay_buffer_release(buffer);
  quay_raw_buffer_free(&raw);
  quay_allocator_release(allocator);
}

Test(track, a_second_free_of_an_empty_block_is_refused) {
  quay_allocator *allocator = open("track+cpu");
  quay_raw_buffer raws[4] = {alloc(allocator, 0), alloc(allocator, 0), alloc(allocator, 0),
                             alloc(allocator, 5)};
  const quay_raw_buffer copy = raws[1];
  quay_raw_buffer_free(&raws[1]);
  check_refused(allocator, copy, "freed before");
  for (size_t i = 0; i < 4; i++)
    quay_raw_buffer_free(&raws[i]);
  CHECK_OK(quay_track_check(allocator));
  quay_allocator_release(allocator);
}

/* Neighbours. */

Test(track, locate_finds_the_block_and_the_nearest_ones_as_a_plain_search_does) {
  enum {
    COUNT = 200
  };
  quay_allocator *allocator = open("track+cpu");
  quay_raw_buffer raws[COUNT];
  uint64_t state = 3;
  for (size_t i = 0; i < COUNT; i++)
    raws[i] = alloc(allocator, quay_test_random(&state) % 3000 + 1);
  for (size_t i = 0; i < COUNT; i += 3)
    quay_raw_buffer_free(&raws[i]);
  for (size_t i = 0; i < COUNT; i++) {
    if (i % 3 == 0)
      continue;
    const uint64_t addresses[] = {address_of(&raws[i]), address_of(&raws[i]) + raws[i].size - 1,
                                  address_of(&raws[i]) + raws[i].size, address_of(&raws[i]) - 1};
    for (size_t a = 0; a < 4; a++) {
      const quay_raw_buffer *holder = NULL, *below = NULL, *above = NULL;
      for (size_t j = 0; j < COUNT; j++) {
        if (j % 3 == 0)
          continue;
        const uint64_t first = address_of(&raws[j]);
        const uint64_t end = first + raws[j].size;
        if (first <= addresses[a] && addresses[a] < end)
          holder = &raws[j];
        else if (end <= addresses[a] && (below == NULL || first > address_of(below)))
          below = &raws[j];
        else if (first > addresses[a] && (above == NULL || first < address_of(above)))
          above = &raws[j];
      }
      quay_track_location location;
      CHECK_OK(quay_track_locate(allocator, addresses[a], &location));
      cr_assert_eq(location.inside, holder != NULL);
      cr_assert_eq(location.has_below, below != NULL);
      cr_assert_eq(location.has_above, above != NULL);
      if (holder != NULL) {
        cr_assert_eq(location.block.address, address_of(holder));
        cr_assert_eq(location.offset, addresses[a] - address_of(holder));
      }
      if (below != NULL)
        cr_assert_eq(location.below.address, address_of(below));
      if (above != NULL)
        cr_assert_eq(location.above.address, address_of(above));
    }
  }
  for (size_t i = 0; i < COUNT; i++)
    quay_raw_buffer_free(&raws[i]);
  quay_allocator_release(allocator);
}

Test(track, locate_works_at_both_ends_of_the_address_space_and_without_blocks) {
  quay_allocator *allocator = open("track+cpu");
  quay_track_location location;
  CHECK_OK(quay_track_locate(allocator, 0, &location));
  cr_assert_not(location.inside || location.has_below || location.has_above);
  quay_raw_buffer raw = alloc(allocator, 100);
  CHECK_OK(quay_track_locate(allocator, 0, &location));
  cr_assert(!location.inside && !location.has_below && location.has_above);
  CHECK_OK(quay_track_locate(allocator, UINT64_MAX, &location));
  cr_assert(!location.inside && location.has_below && !location.has_above);
  quay_raw_buffer_free(&raw);
  quay_allocator_release(allocator);
}

/* Peak, threads, arguments. */

Test(track, the_peak_is_exact_also_of_small_blocks) {
  quay_allocator *allocator = open("track+cpu");
  quay_raw_buffer raws[100];
  for (size_t i = 0; i < 100; i++)
    raws[i] = alloc(allocator, 11);
  for (size_t i = 0; i < 100; i++)
    quay_raw_buffer_free(&raws[i]);
  quay_raw_buffer one = alloc(allocator, 12);
  cr_assert_eq(stats_of(allocator).peak_bytes, 1100);
  cr_assert_eq(stats_of(allocator).live_bytes, 12);
  quay_raw_buffer_free(&one);
  quay_allocator_release(allocator);
}

static void *alloc_and_free(void *allocator) {
  uint64_t state = (uint64_t)(uintptr_t)&state;
  static int failed; /* its address says so */
  quay_raw_buffer raws[32] = {0};
  for (int i = 0; i < 3000; i++) {
    quay_raw_buffer *raw = &raws[quay_test_random(&state) % 32];
    quay_raw_buffer_free(raw);
    if (quay_allocator_alloc(allocator, quay_test_random(&state) % 100, NULL, raw) != QUAY_OK)
      return &failed;
  }
  for (size_t i = 0; i < 32; i++)
    quay_raw_buffer_free(&raws[i]);
  return NULL;
}

Test(track, racing_threads_lose_no_block_and_refuse_no_free) {
  quay_allocator *allocator = open("track+cpu");
  pthread_t threads[4];
  quay_test_log_begin();
  for (size_t i = 0; i < 4; i++)
    cr_assert_eq(pthread_create(&threads[i], NULL, alloc_and_free, allocator), 0);
  for (size_t i = 0; i < 4; i++) {
    void *failed;
    pthread_join(threads[i], &failed);
    cr_assert_null(failed);
  }
  CHECK_OK(quay_track_check(allocator));
  cr_assert_eq(quay_test_log_count(""), 0, "%s", quay_test_log_text());
  quay_allocator_release(allocator);
}

Test(track, adopted_memory_is_neither_counted_nor_refused) {
  quay_allocator *allocator = open("track+cpu");
  unsigned char bytes[100] = {1, 2, 3};
  const int64_t shape[] = {100};
  const quay_host_memory memory = {.pointer = bytes, .size = 100};
  quay_buffer *buffer = NULL;
  unsigned char found[100];
  CHECK_OK(quay_buffer_adopt_host(allocator, QUAY_U8, 1, shape, &memory, &buffer));
  CHECK_OK(quay_track_check(allocator));
  CHECK_OK(quay_buffer_copy_out(buffer, found, 100));
  cr_assert_arr_eq(found, bytes, 100);
  quay_buffer_release(buffer);
  quay_allocator_release(allocator);
}

static void count_call(void *user, void *memory, uint64_t size) {
  (void)memory;
  (void)size;
  ++*(int *)user;
}

static const char *const adopting[] = {"track+cpu", "track+track+cpu",
                                       "fault:after=1000+track+cpu"};

Test(track, a_second_free_of_adopted_memory_is_refused_and_logged) {
  quay_test_log_begin();
  for (size_t i = 0; i < 3; i++) {
    quay_allocator *allocator = open(adopting[i]);
    unsigned char bytes[64];
    int calls = 0;
    const quay_host_memory memory = {
        .pointer = bytes, .size = 64, .release = count_call, .user = &calls};
    quay_raw_buffer raw;
    CHECK_OK(quay_raw_buffer_adopt_host(allocator, &memory, &raw));
    quay_raw_buffer copy = raw;
    quay_raw_buffer_free(&raw);
    cr_expect_eq(calls, 1);
    quay_error_clear();
    quay_raw_buffer_free(&copy);
    cr_expect_eq(calls, 1, "%s", adopting[i]);
    cr_expect_null(copy.owner);
    cr_expect_eq(quay_last_error()->status, QUAY_OK);
    cr_expect_eq(quay_test_log_count("refused to free an adopted raw buffer of 64 bytes"), i + 1,
                 "%s", quay_test_log_text());
    quay_allocator_release(allocator);
  }
}

Test(track, a_copy_of_adopted_memory_is_refused_also_when_the_memory_was_adopted_again) {
  quay_allocator *allocator = open("track+cpu");
  unsigned char bytes[64];
  int calls = 0;
  const quay_host_memory memory = {
      .pointer = bytes, .size = 64, .release = count_call, .user = &calls};
  quay_raw_buffer first, second;
  quay_host_memory out;
  CHECK_OK(quay_raw_buffer_adopt_host(allocator, &memory, &first));
  quay_raw_buffer freed = first, released = first, forgotten = first;
  quay_raw_buffer_free(&first);
  CHECK_OK(quay_raw_buffer_adopt_host(allocator, &memory, &second));
  quay_raw_buffer_free(&freed);
  CHECK_FAILS(quay_raw_buffer_release_host(&released, &out), QUAY_STATUS_INVALID_ARGUMENT);
  CHECK_FAILS(quay_raw_buffer_forget(&forgotten), QUAY_STATUS_INVALID_ARGUMENT);
  cr_expect_eq(calls, 1);
  CHECK_OK(quay_raw_buffer_release_host(&second, &out));
  cr_expect_eq(calls, 1);
  cr_expect_eq(out.pointer, bytes);
  quay_allocator_release(allocator);
}

Test(track, one_memory_may_be_adopted_twice_and_inside_a_live_block) {
  quay_test_log_begin();
  quay_allocator *allocator = open("track+cpu");
  quay_raw_buffer block, twice[2];
  void *pointer;
  CHECK_OK(quay_allocator_alloc(allocator, 100, NULL, &block));
  CHECK_OK(quay_raw_buffer_host_pointer(&block, &pointer));
  for (size_t i = 0; i < 2; i++) {
    const quay_host_memory memory = {.pointer = pointer, .size = 100};
    CHECK_OK(quay_raw_buffer_adopt_host(allocator, &memory, &twice[i]));
  }
  quay_raw_buffer_free(&twice[0]);
  quay_raw_buffer_free(&twice[1]);
  CHECK_FAILS(quay_track_check(allocator), QUAY_STATUS_BUSY);
  CHECK_MESSAGE("1 blocks of 100 bytes");
  quay_raw_buffer_free(&block);
  CHECK_OK(quay_track_check(allocator));
  cr_expect_eq(quay_test_log_count("refused"), 0, "%s", quay_test_log_text());
  quay_allocator_release(allocator);
}

Test(track, adopted_memory_that_is_not_freed_is_reported_with_the_allocators_end) {
  quay_test_log_begin();
  quay_allocator *allocator = open("track+cpu");
  unsigned char bytes[77];
  const quay_host_memory memory = {.pointer = bytes, .size = 77};
  quay_raw_buffer raw;
  CHECK_OK(quay_raw_buffer_adopt_host(allocator, &memory, &raw));
  quay_allocator_release(allocator);
  cr_expect_eq(quay_test_log_count("not freed: adopted 77 bytes"), 1, "%s", quay_test_log_text());
  quay_raw_buffer_free(&raw);
}

Test(track, arguments_are_refused_in_the_spec) {
  quay_allocator *allocator = NULL;
  CHECK_FAILS(quay_allocator_open("track:deep+cpu", &allocator), QUAY_STATUS_INVALID_ARGUMENT);
  CHECK_FAILS(quay_allocator_open("track:a=b+cpu", &allocator), QUAY_STATUS_INVALID_ARGUMENT);
  CHECK_MESSAGE("a=b");
  CHECK_FAILS(quay_allocator_open("track", &allocator), QUAY_STATUS_INVALID_ARGUMENT);
  cr_assert_null(allocator);
}

Test(track, an_allocator_without_the_layer_and_null_are_refused) {
  quay_allocator *allocator = open("cpu");
  quay_track_location location;
  visit_record record = {0};
  CHECK_FAILS(quay_track_check(allocator), QUAY_STATUS_INVALID_ARGUMENT);
  CHECK_MESSAGE("track+cpu");
  CHECK_FAILS(quay_track_check(NULL), QUAY_STATUS_INVALID_ARGUMENT);
  CHECK_FAILS(quay_track_visit(allocator, keep_block, &record), QUAY_STATUS_INVALID_ARGUMENT);
  CHECK_FAILS(quay_track_visit(NULL, keep_block, &record), QUAY_STATUS_INVALID_ARGUMENT);
  CHECK_FAILS(quay_track_visit(allocator, NULL, NULL), QUAY_STATUS_INVALID_ARGUMENT);
  CHECK_FAILS(quay_track_locate(allocator, 0, &location), QUAY_STATUS_INVALID_ARGUMENT);
  CHECK_FAILS(quay_track_locate(NULL, 0, &location), QUAY_STATUS_INVALID_ARGUMENT);
  CHECK_FAILS(quay_track_locate(allocator, 0, NULL), QUAY_STATUS_INVALID_ARGUMENT);
  quay_allocator_release(allocator);
}

/* Memory without addresses, and reserved memory, by a backend of the test's own. */

static quay_test_table table;

static quay_status open_table(void *user, const quay_spec_args *args,
                              quay_allocator **out_allocator) {
  (void)user, (void)args;
  return quay_allocator_create(&table.desc, out_allocator);
}

static quay_allocator *open_tracked_table(void) {
  const quay_backend backend = {.version = QUAY_BACKEND_VERSION,
                                .struct_size = sizeof backend,
                                .name = "table",
                                .open = open_table};
  CHECK_OK(quay_backend_register(&backend));
  quay_allocator *allocator = open("track+table");
  CHECK_OK(quay_backend_unregister("table"));
  return allocator;
}

Test(track, memory_without_addresses_is_recognised_by_its_handle) {
  quay_test_table_init(&table);
  table.vtable.host_pointer = NULL;
  table.desc.flags = 0;
  table.desc.kind = QUAY_MEMORY_DEVICE;
  quay_allocator *allocator = open_tracked_table();
  const int64_t shape[] = {300};
  unsigned char bytes[300];
  unsigned char found[300];
  visit_record record = {0};
  quay_buffer *buffer = NULL;
  quay_test_random_bytes(bytes, sizeof bytes, 1);
  quay_error_set(QUAY_STATUS_BUSY, "", 0, NULL, "from before");
  quay_raw_buffer raw = alloc(allocator, 50);
  cr_assert_str_eq(quay_last_error()->message, "from before", "success leaves the error alone");
  CHECK_OK(quay_buffer_create_from_host(allocator, QUAY_U8, 1, shape, bytes, NULL, &buffer));
  CHECK_OK(quay_buffer_copy_out(buffer, found, 300));
  cr_assert_arr_eq(found, bytes, 300);
  CHECK_OK(quay_track_visit(allocator, keep_block, &record));
  cr_assert_eq(record.count, 2);
  cr_assert_eq(record.blocks[0].address, 0);
  cr_assert_eq(record.blocks[1].size, 300);
  quay_raw_buffer changed = raw;
  changed.as.external.handle[5] = 1;
  check_refused(allocator, changed, "comes from elsewhere");
  const quay_raw_buffer copy = raw;
  quay_raw_buffer_free(&raw);
  check_refused(allocator, copy, "freed before");
  quay_buffer_release(buffer);
  quay_allocator_release(allocator);
  cr_assert_eq(atomic_load(&table.destroys), 1);
}

static quay_status table_reserve(quay_allocator *allocator, uint64_t size, uint64_t alignment,
                                 quay_raw_buffer *out_raw) {
  const quay_alloc_request request = {.size = size, .alignment = alignment};
  return table.vtable.alloc(allocator, &request, out_raw);
}

static quay_status table_commit(quay_allocator *allocator, quay_raw_buffer *raw, uint64_t offset,
                                uint64_t size) {
  (void)allocator, (void)raw, (void)offset, (void)size;
  return QUAY_OK;
}

/* What a pool does: it reserves, commits, hands out parts, and copies go through the parts. */
Test(track, parts_of_reserved_memory_are_used_and_the_whole_is_freed) {
  quay_test_table_init(&table);
  table.vtable.reserve = table_reserve;
  table.vtable.commit = table_commit;
  table.vtable.decommit = table_commit;
  table.desc.page_size = 4096;
  quay_allocator *allocator = open_tracked_table();
  quay_raw_buffer whole = {0};
  unsigned char bytes[100];
  unsigned char found[100];
  quay_test_random_bytes(bytes, sizeof bytes, 2);
  CHECK_OK(allocator->vtable.reserve(allocator, 65536, 4096, &whole));
  whole.owner = allocator;
  CHECK_OK(allocator->vtable.commit(allocator, &whole, 0, 65536));
  const uint64_t starts[] = {0, 4096, 65436};
  for (size_t i = 0; i < 3; i++) {
    quay_raw_buffer part = whole;
    part.size = 100;
    part.as.external.handle[0] += starts[i];
    CHECK_OK(allocator->vtable.copy_in(allocator, &part, 0, bytes, 100));
    CHECK_OK(allocator->vtable.copy_out(allocator, &part, 0, found, 100));
    cr_assert_arr_eq(found, bytes, 100);
    CHECK_OK(allocator->vtable.lend(allocator, &part, 50, 50, QUAY_READ));
  }
  quay_raw_buffer beyond = whole;
  beyond.size = 100;
  beyond.as.external.handle[0] += 65437;
  CHECK_FAILS(allocator->vtable.copy_in(allocator, &beyond, 0, bytes, 100),
              QUAY_STATUS_OUT_OF_RANGE);
  CHECK_FAILS(allocator->vtable.lend(allocator, &beyond, 0, 100, QUAY_WRITE),
              QUAY_STATUS_OUT_OF_RANGE);
  quay_track_location location;
  const uint64_t address = whole.as.external.handle[0] + 4096;
  CHECK_OK(quay_track_check(allocator)); /* it is no memory that could leak */
  CHECK_OK(quay_track_locate(allocator, address, &location));
  cr_assert(location.inside);
  allocator->vtable.free(allocator, &whole, NULL, 0);
  CHECK_OK(quay_track_locate(allocator, address, &location));
  cr_assert_not(location.inside);
  cr_assert_eq(atomic_load(&table.frees), 1);
  quay_allocator_release(allocator);
}
