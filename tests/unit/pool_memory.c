/* The pool layer where the library's own memory runs out: allocations fail cleanly, frees never
 * need any. */
#include <quay/quay.h>
#include <stdlib.h>
#include <string.h>

#include "support/failing_allocations.h"
#include "support/random.h"
#include "support/status.h"
#include "unit/late_fixture.h"

enum {
  COUNT = 200
};

void *__real_quay__os_aligned_alloc(size_t alignment, size_t size);
void *__real_quay__os_realloc(void *pointer, size_t size);

void *__wrap_quay__os_aligned_alloc(size_t alignment, size_t size) {
  return allocation_fails() ? NULL : __real_quay__os_aligned_alloc(alignment, size);
}

void *__wrap_quay__os_realloc(void *pointer, size_t size) {
  return allocation_fails() ? NULL : __real_quay__os_realloc(pointer, size);
}

static uint64_t random_size(uint64_t *random) {
  return 1 + quay_test_random(random) % (UINT64_C(1) << quay_test_random(random) % 23);
}

/* Umpire 844: a free coalesced, which allocated, which ran out. */
Test(pool_memory, a_free_takes_no_memory) {
  static quay_raw_buffer raws[COUNT];
  quay_allocator *pool = NULL;
  CHECK_OK(quay_allocator_open("pool+cpu", &pool));
  uint64_t random = 2;
  for (int round = 0; round < 5; round++) {
    for (size_t i = 0; i < COUNT; i++) {
      if (raws[i].owner == NULL)
        CHECK_OK(quay_allocator_alloc(pool, random_size(&random), NULL, &raws[i]));
    }
    allocations_left = 0; /* the next one would fail */
    for (size_t i = 0; i < COUNT; i++) {
      if (round == 4 || quay_test_random(&random) % 2 == 0)
        quay_raw_buffer_free(&raws[i]);
    }
    cr_assert_eq(allocations_left, 0, "a free took memory");
    allocations_left = -1;
  }
  quay_stats stats;
  CHECK_OK(quay_allocator_stats(pool, &stats));
  cr_assert_eq(stats.live_count, 0);
  cr_assert_eq(stats.error_count, 0);
  quay_allocator_release(pool);
}

static bool use(quay_allocator *pool, uint64_t seed) {
  quay_raw_buffer raws[8];
  bool all = true;
  for (size_t i = 0; i < 8; i++) {
    const quay_status status = quay_allocator_alloc(pool, random_size(&seed), NULL, &raws[i]);
    all = all && status == QUAY_OK;
    if (status == QUAY_OK)
      continue;
    cr_assert_eq(status, QUAY_STATUS_OUT_OF_HOST_MEMORY, "%s", quay_last_error()->message);
    cr_assert_eq(raws[i].owner, NULL);
  }
  for (size_t i = 0; i < 8; i++)
    quay_raw_buffer_free(&raws[i]);
  return all;
}

static void sweep(const char *spec) {
  bool whole = false;
  for (int nth = 0; !whole && nth < 1000; nth++) {
    quay_allocator *pool = NULL;
    allocations_left = nth;
    const quay_status status = quay_allocator_open(spec, &pool);
    if (status == QUAY_OK) {
      whole = use(pool, 7) && allocations_left >= 0;
      allocations_left = -1;
      cr_assert(use(pool, 8), "it goes on once there is memory: %s", quay_last_error()->message);
      quay_stats stats;
      CHECK_OK(quay_allocator_stats(pool, &stats));
      cr_assert_eq(stats.live_count, 0);
    } else {
      cr_assert_eq(status, QUAY_STATUS_OUT_OF_HOST_MEMORY, "%s", quay_last_error()->message);
    }
    allocations_left = -1;
    quay_allocator_release(pool);
  }
  cr_assert(whole, "every allocation was to fail once");
  CHECK_OK(quay_shutdown());
}

Test(pool_memory, whichever_allocation_fails_by_pages_the_pool_stays_usable) {
  sweep("pool+cpu");
}

Test(pool_memory, whichever_allocation_fails_by_blocks_the_pool_stays_usable) {
  sweep("pool+mmap:/tmp");
}

/* Two notes for each. */
enum {
  SHARED = 150
};

static void use_on(quay_stream *stream, quay_buffer *buffer, late_use *kept) {
  const quay_use use = {buffer, QUAY_READ};
  quay_access access;
  OK(quay_access_begin(stream, &use, 1, &access));
  *kept = (late_use){.address = access.pointers[0], .size = 64, .mode = QUAY_READ};
  launch_on(stream, kept);
  OK(quay_access_end(&access));
}

static void release_without_memory(quay_buffer **buffers, size_t count) {
  for (size_t i = 0; i < count; i++) {
    allocations_left = 0;
    quay_buffer_release(buffers[i]);
    allocations_left = -1;
  }
}

Test(pool_memory, many_frees_of_what_several_streams_use_wait_where_there_is_no_memory) {
  static late_use used[2 * SHARED];
  const late_options options = {.mode = LATE_MANUAL, .seed = 5, .device_bytes = (uint64_t)64 << 20};
  OK(late_register(&options));
  quay_allocator *pool = NULL;
  OK(quay_allocator_open("pool+late:0", &pool));
  quay_stream *const streams[] = {stream_new(0), stream_new(0)};
  quay_buffer *buffers[SHARED];
  const int64_t shape[] = {20000};
  for (size_t i = 0; i < SHARED; i++)
    OK(quay_buffer_create(pool, QUAY_U8, 1, shape, NULL, &buffers[i]));
  for (size_t i = 0; i < (size_t)2 * SHARED; i++)
    use_on(streams[i % 2], buffers[i / 2], &used[i]);
  quay_event *const last[] = {record(streams[0]), record(streams[1])};
  release_without_memory(buffers, 20);
  cr_assert(!is_done(last[0]) && !is_done(last[1]), "a few frees are not to wait");
  release_without_memory(buffers + 20, SHARED - 20);
  quay_stats stats;
  OK(quay_allocator_stats(pool, &stats));
  cr_assert_eq(stats.live_count, 0);
  cr_assert_eq(stats.error_count, 0);
  cr_assert_lt(stats.pending_bytes, SHARED * UINT64_C(20000), "no free has waited");
  OK(quay_stream_synchronize(streams[0]));
  OK(quay_stream_synchronize(streams[1]));
  OK(quay_allocator_stats(pool, &stats));
  cr_assert_eq(stats.pending_bytes, 0);
  OK(quay_allocator_trim(pool, NULL));
  OK(quay_allocator_stats(pool, &stats));
  cr_assert_eq(stats.reserved_bytes, 0);
  for (size_t i = 0; i < 2; i++) {
    quay_event_release(last[i]);
    quay_stream_release(streams[i]);
  }
  quay_allocator_release(pool);
  end();
}
