/* Reserved addresses and committed pages of CUDA memory, on the simulated driver. */
#include "core/allocator_impl.h"
#include "cuda_fixture.h"
#include "support/log.h"
#include "support/random.h"

#define MIB ((uint64_t)1 << 20)

TestSuite(cuda_reserve, .init = setup);

static quay_raw_buffer reserve(quay_allocator *allocator, uint64_t size) {
  quay_raw_buffer raw_buffer;
  CHECK_OK(quay__reserve(allocator, size, 2 * MIB, &raw_buffer));
  return raw_buffer;
}

static quay_status commit(quay_raw_buffer *pages, uint64_t offset, uint64_t size) {
  return pages->owner->vtable.commit(pages->owner, pages, offset, size);
}

static quay_status decommit(quay_raw_buffer *pages, uint64_t offset, uint64_t size) {
  return pages->owner->vtable.decommit(pages->owner, pages, offset, size);
}

static uint64_t reserved_bytes(quay_allocator *allocator) {
  quay_stats stats;
  CHECK_OK(quay_allocator_stats(allocator, &stats));
  return stats.reserved_bytes;
}

static simcuda_census census(void) {
  simcuda_census counted;
  raw.control->count(&counted);
  return counted;
}

Test(cuda_reserve, addresses_take_no_memory_and_commits_take_what_they_say) {
  quay_allocator *const gpu = open_spec("cuda:0");
  cr_assert_eq(gpu->page_size, 2 * MIB);
  quay_raw_buffer pages = reserve(gpu, 1024 * MIB);
  cr_assert_eq(reserved_bytes(gpu), 0);
  CHECK_OK(commit(&pages, 4 * MIB, 6 * MIB));
  CHECK_OK(commit(&pages, 0, 2 * MIB));
  cr_assert_eq(reserved_bytes(gpu), 8 * MIB);
  cr_assert_eq(census().mappings, 2);
  cr_assert_eq(census().handles, 0, "a mapping alone keeps its memory");
  CHECK_OK(decommit(&pages, 4 * MIB, 6 * MIB));
  cr_assert_eq(reserved_bytes(gpu), 2 * MIB);
  quay__free(gpu, &pages, NULL, 0);
  quay_allocator_release(gpu);
  teardown();
}

Test(cuda_reserve, neighbouring_commits_are_given_back_together) {
  quay_allocator *const gpu = open_spec("cuda:0");
  quay_raw_buffer pages = reserve(gpu, 64 * MIB);
  CHECK_OK(commit(&pages, 0, 2 * MIB));
  CHECK_OK(commit(&pages, 2 * MIB, 4 * MIB));
  CHECK_OK(commit(&pages, 6 * MIB, 2 * MIB));
  const uint64_t before = raw.control->calls("cuMemUnmap");
  CHECK_OK(decommit(&pages, 2 * MIB, 6 * MIB));
  cr_assert_eq(raw.control->calls("cuMemUnmap") - before, 1);
  cr_assert_eq(reserved_bytes(gpu), 2 * MIB);
  quay__free(gpu, &pages, NULL, 0);
  quay_allocator_release(gpu);
  teardown();
}

Test(cuda_reserve, a_window_across_two_commits_holds_its_bytes) {
  enum {
    SIZE = 3 << 20
  };
  quay_allocator *const gpu = open_spec("cuda:0");
  quay_raw_buffer pages = reserve(gpu, 64 * MIB);
  CHECK_OK(commit(&pages, 0, 2 * MIB));
  CHECK_OK(commit(&pages, 2 * MIB, 4 * MIB));
  quay_raw_buffer window = {.owner = gpu, .size = SIZE};
  gpu->vtable.window(gpu, &pages, MIB + 12345, SIZE, &window);
  unsigned char *const bytes = malloc(SIZE), *const found = malloc(SIZE);
  quay_test_random_bytes(bytes, SIZE, 4);
  CHECK_OK(gpu->vtable.copy_in(gpu, &window, 0, bytes, SIZE));
  CHECK_OK(gpu->vtable.copy_out(gpu, &window, 0, found, SIZE));
  cr_assert_arr_eq(found, bytes, SIZE);
  free(bytes);
  free(found);
  quay__free(gpu, &pages, NULL, 0);
  quay_allocator_release(gpu);
  teardown();
}

Test(cuda_reserve, a_commit_that_fails_anywhere_leaves_nothing_behind) {
  static const char *const calls[] = {"cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemRelease"};
  quay_allocator *const gpu = open_spec("cuda:0");
  quay_raw_buffer pages = reserve(gpu, 64 * MIB);
  for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
    quay_test_log_begin();
    raw.control->fail(calls[i], 1, 801);
    cr_assert_neq(commit(&pages, 0, 4 * MIB), QUAY_OK, "%s", calls[i]);
    cr_assert_eq(census().mappings, 0, "%s", calls[i]);
    cr_assert_eq(reserved_bytes(gpu), 0);
    const bool handle_is_lost = strcmp(calls[i], "cuMemRelease") == 0;
    cr_assert_eq(quay_test_log_count("are lost"), handle_is_lost ? 1 : 0, "%s", calls[i]);
    if (!handle_is_lost)
      cr_assert_eq(census().handles, 0, "%s", calls[i]);
  }
  quay__free(gpu, &pages, NULL, 0);
  quay_allocator_release(gpu);
}

Test(cuda_reserve, what_a_failed_commit_can_not_unmap_is_logged) {
  quay_allocator *const gpu = open_spec("cuda:0");
  quay_raw_buffer pages = reserve(gpu, 64 * MIB);
  quay_test_log_begin();
  raw.control->fail("cuMemSetAccess", 1, 801);
  raw.control->fail("cuMemUnmap", 1, 999);
  cr_assert_neq(commit(&pages, 0, 4 * MIB), QUAY_OK);
  cr_assert_eq(quay_test_log_count("mapped 4194304 bytes of cuda:0"), 1);
  quay__free(gpu, &pages, NULL, 0);
  quay_allocator_release(gpu);
}

Test(cuda_reserve, out_of_memory_makes_room_and_tries_again) {
  quay_allocator *const gpu = open_spec("cuda:0");
  quay_raw_buffer pages = reserve(gpu, 64 * MIB);
  raw.control->fail("cuMemCreate", 1, 2);
  CHECK_OK(commit(&pages, 0, 2 * MIB));
  quay__free(gpu, &pages, NULL, 0);
  quay_allocator_release(gpu);
  teardown();
}

Test(cuda_reserve, more_than_the_device_has_is_out_of_device_memory_with_its_figures) {
  quay_allocator *const gpu = open_spec("cuda:0");
  quay_raw_buffer pages = reserve(gpu, UINT64_C(1) << 36);
  CHECK_FAILS(commit(&pages, 0, UINT64_C(1) << 36), QUAY_STATUS_OUT_OF_DEVICE_MEMORY);
  CHECK_MESSAGE("bytes are free");
  quay_raw_buffer more;
  CHECK_FAILS(quay__reserve(gpu, UINT64_C(1) << 60, 2 * MIB, &more),
              QUAY_STATUS_OUT_OF_DEVICE_MEMORY);
  quay__free(gpu, &pages, NULL, 0);
  quay_allocator_release(gpu);
  teardown();
}

Test(cuda_reserve, a_reservation_that_fails_leaves_nothing_behind) {
  quay_allocator *const gpu = open_spec("cuda:0");
  quay_raw_buffer pages;
  raw.control->fail("cuMemAddressReserve", 1, 2);
  CHECK_FAILS(quay__reserve(gpu, 64 * MIB, 2 * MIB, &pages), QUAY_STATUS_OUT_OF_DEVICE_MEMORY);
  cr_assert_eq(census().reservations, 0);
  quay_allocator_release(gpu);
  teardown();
}

/* Through the pool. */

Test(cuda_reserve, a_pool_goes_on_after_any_call_of_the_driver_that_fails) {
  static const char *const calls[] = {"cuMemAddressReserve", "cuMemCreate", "cuMemMap",
                                      "cuMemSetAccess", "cuMemUnmap"};
  quay_allocator *const pool = open_spec("pool:keep=tight+cuda:0");
  for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
    for (uint64_t nth = 1; nth <= 3; nth++) {
      raw.control->fail(calls[i], nth, 2);
      quay_raw_buffer held[6];
      for (size_t block = 0; block < 6; block++) {
        if (quay_allocator_alloc(pool, (block + 1) * 3 * MIB, NULL, &held[block]) != QUAY_OK)
          cr_assert_eq(quay_last_error()->status, QUAY_STATUS_OUT_OF_DEVICE_MEMORY);
      }
      for (size_t block = 0; block < 6; block += 2)
        quay_raw_buffer_free(&held[block]);
      (void)!quay_allocator_trim(pool, NULL);
      for (size_t block = 1; block < 6; block += 2)
        quay_raw_buffer_free(&held[block]);
    }
  }
  raw.control->fail("cuMemUnmap", 0, 0);
  CHECK_OK(quay_allocator_trim(pool, NULL));
  cr_assert_eq(reserved_bytes(pool), 0);
  quay_allocator_release(pool);
  teardown();
}

Test(cuda_reserve, a_reset_device_leaves_old_blocks_of_a_pool_to_be_forgotten) {
  quay_allocator *const pool = open_spec("pool+cuda:0");
  quay_raw_buffer old;
  CHECK_OK(quay_allocator_alloc(pool, 5 * MIB, NULL, &old));
  CHECK_OK(quay_device_reset(quay_allocator_device(pool)));
  quay_buffer *const fresh = make_buffer(pool, 5 * MIB, NULL);
  const unsigned char byte = 0x6b;
  CHECK_OK(quay_buffer_fill(fresh, &byte, 1));
  quay_raw_buffer_free(&old);
  quay_buffer_release(fresh);
  CHECK_OK(quay_allocator_trim(pool, NULL));
  cr_assert_eq(reserved_bytes(pool), 0);
  quay_allocator_release(pool);
  simcuda_violation violation = {.message = ""};
  cr_expect_eq(raw.control->violations(&violation, 1), 0, "%s", violation.message);
}

/* While pages of a stream are about to be part of a larger block, other streams ask for memory,
 * more than the pool has lists for, in a call of the log; then the larger block fails. */

enum {
  MANY_STREAMS = 45
};

static quay_allocator *asked;
static quay_raw_buffer of_streams[MANY_STREAMS];
static size_t streams_seen;

static void ask_on_many_streams(void *user, quay_log_level level, const char *message) {
  (void)user;
  (void)level;
  if (streams_seen != 0 || strstr(message, "given back") == NULL)
    return;
  for (; streams_seen < MANY_STREAMS; streams_seen++) {
    quay_alloc_options options = {.stream = NULL};
    CHECK_OK(quay_stream_create(quay_allocator_device(asked), NULL, &options.stream));
    CHECK_OK(quay_allocator_alloc(asked, 1000, &options, &of_streams[streams_seen]));
    quay_stream_release(options.stream);
  }
}

Test(cuda_reserve, pages_of_a_stream_come_back_after_a_failure_though_others_took_its_list) {
  setenv("SIMCUDA_SCHEDULE", "manual", 1);
  raw.control->reset();
  setup();
  asked = open_spec("pool:keep=tight,block=2MiB,max=12MiB+cuda:0");
  quay_stream *stream = NULL;
  CHECK_OK(quay_stream_create(quay_allocator_device(asked), NULL, &stream));
  const quay_alloc_options options = {.stream = stream};
  quay_raw_buffer ready; /* at first all, so that nothing is given back before the failure */
  CHECK_OK(quay_allocator_alloc(asked, 12 * MIB, NULL, &ready));
  quay_raw_buffer_free(&ready);
  CHECK_OK(quay_allocator_trim(asked, NULL));
  CHECK_OK(quay_allocator_alloc(asked, 2 * MIB, NULL, &ready));
  quay_buffer *const pending = make_buffer(asked, 2 * MIB, &options);
  CHECK_OK(quay_buffer_fill_on(pending, "x", 1, stream));
  quay_buffer_release(pending);
  quay_raw_buffer_free(&ready);
  quay_raw_buffer tiny, small; /* `small` is what is to go for the larger block */
  CHECK_OK(quay_allocator_alloc(asked, 1000, NULL, &tiny));
  CHECK_OK(quay_allocator_alloc(asked, MIB / 2, NULL, &small));
  quay_raw_buffer_free(&small);
  quay_log_set(ask_on_many_streams, NULL, QUAY_LOG_ERROR);
  raw.control->fail("cuMemUnmap", 1, 2);
  raw.control->fail("cuMemSetAccess", 1, 801);
  quay_raw_buffer large;
  CHECK_OK(quay_allocator_alloc(asked, 10 * MIB, &options, &large));
  quay_log_set(NULL, NULL, QUAY_LOG_ERROR);
  cr_assert_eq(streams_seen, MANY_STREAMS);
  for (size_t i = 0; i < MANY_STREAMS; i++)
    quay_raw_buffer_free(&of_streams[i]);
  quay_raw_buffer_free(&large);
  quay_raw_buffer_free(&tiny);
  CHECK_OK(quay_stream_synchronize(stream));
  CHECK_OK(quay_allocator_trim(asked, NULL));
  cr_assert_eq(reserved_bytes(asked), 0);
  quay_stream_release(stream);
  quay_allocator_release(asked);
  teardown();
}
