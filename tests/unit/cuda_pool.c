/* The pool layer where memory comes in handles of a driver's, which go back only as a whole: how
 * many it takes and gives back. */
#include <quay/quay.h>
#include <stdlib.h>

#include "core/poison.h"
#include "sim_cuda/control.h"
#include "support/status.h"

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)

static quay_allocator *pool;

static void begin(const char *spec) {
  CHECK_OK(quay_allocator_open(spec, &pool));
}

static quay_raw_buffer allocate(uint64_t size) {
  quay_raw_buffer raw;
  CHECK_OK(quay_allocator_alloc(pool, size, NULL, &raw));
  return raw;
}

static uint64_t reserved(void) {
  quay_stats stats;
  CHECK_OK(quay_allocator_stats(pool, &stats));
  return stats.reserved_bytes;
}

static void check_reserved(uint64_t least, uint64_t most) {
  const uint64_t bytes = reserved();
  cr_assert(least <= bytes && bytes <= most, "%llu bytes are reserved", (unsigned long long)bytes);
}

Test(cuda_pool, few_small_blocks_take_little_beside_many_large_ones) {
  enum {
    LARGE = 100,
    SMALL = 20
  };
  begin("pool+cuda:0");
  quay_raw_buffer large[LARGE], small[SMALL];
  for (size_t i = 0; i < LARGE; i++)
    large[i] = allocate(4 * MIB);
  const uint64_t before = reserved();
  for (size_t i = 0; i < SMALL; i++)
    small[i] = allocate(i % 2 == 0 ? 100 : 64 * KIB);
  check_reserved(before + 4 * MIB, before + 4 * MIB);
  for (size_t i = 0; i < SMALL; i++)
    quay_raw_buffer_free(&small[i]);
  for (size_t i = 0; i < LARGE; i++)
    quay_raw_buffer_free(&large[i]);
  quay_allocator_release(pool);
}

Test(cuda_pool, many_small_blocks_take_few_handles) {
  enum {
    COUNT = 1000
  };
  begin("pool+cuda:0");
  static quay_raw_buffer raws[COUNT];
  uint64_t grown = 0, last = 0;
  for (size_t i = 0; i < COUNT; i++) {
    raws[i] = allocate(512 * KIB);
    grown += reserved() != last;
    last = reserved();
  }
  cr_assert_leq(grown, 60, "500 MiB were taken in %llu steps", (unsigned long long)grown);
  for (size_t i = 0; i < COUNT; i++)
    quay_raw_buffer_free(&raws[i]);
  quay_allocator_release(pool);
}

/* A driver's call costs as much for a small handle as for a large one. */
Test(cuda_pool, gigabytes_are_taken_in_few_handles) {
  enum {
    COUNT = 350
  };
  begin("pool+cuda:0");
  static quay_raw_buffer raws[COUNT];
  uint64_t grown = 0, last = 0;
  for (size_t i = 0; i < COUNT; i++) {
    raws[i] = allocate(10 * MIB);
    grown += reserved() != last;
    last = reserved();
  }
  check_reserved(COUNT * 10 * MIB, COUNT * 10 * MIB + 64 * MIB);
  cr_assert_leq(grown, 140, "3500 MiB were taken in %llu steps", (unsigned long long)grown);
  for (size_t i = 0; i < COUNT; i++)
    quay_raw_buffer_free(&raws[i]);
  quay_allocator_release(pool);
}

/* It may hold what was in use at most, and a little: here some 6 MiB too many. */
Test(cuda_pool, no_more_handles_go_back_than_are_enough) {
  begin("pool+cuda:0");
  quay_raw_buffer most = allocate(400 * MIB);
  quay_raw_buffer_free(&most);
  CHECK_OK(quay_allocator_trim(pool, NULL));
  quay_raw_buffer lower = allocate(200 * MIB);
  quay_raw_buffer between = allocate(2 * MIB);
  quay_raw_buffer_free(&lower);
  quay_raw_buffer upper = allocate(210 * MIB);
  check_reserved(350 * MIB, 408 * MIB);
  quay_raw_buffer_free(&upper);
  quay_raw_buffer_free(&between);
  quay_allocator_release(pool);
}

/* Else an allocation would take more than there is, though what it needs is there. */
Test(cuda_pool, the_last_memory_of_a_device_can_be_had) {
  begin("pool+limit:130MiB+cuda:0");
  quay_raw_buffer raws[65];
  for (size_t i = 0; i < 65; i++)
    raws[i] = allocate(2 * MIB);
  check_reserved(130 * MIB, 130 * MIB);
  for (size_t i = 0; i < 65; i++)
    quay_raw_buffer_free(&raws[i]);
  quay_allocator_release(pool);
}

/* The library's own zeros of memory that nobody gets after all. */
Test(cuda_pool, memory_whose_zeros_could_not_be_waited_for_is_not_written_to_by_two_streams) {
  const simcuda_control *sim = simcuda_control_get();
  setenv("SIMCUDA_SCHEDULE", "manual", 1);
  begin("pool+cuda:0");
  quay_stream *one = NULL, *other = NULL;
  quay_device *device = quay_allocator_device(pool);
  CHECK_OK(quay_stream_create(device, NULL, &one));
  CHECK_OK(quay_stream_create(device, NULL, &other));
  const quay_alloc_options zeroed = {.zeroed = true, .stream = one};
  quay_raw_buffer raw = allocate(8 * KIB);
  const quay_raw_buffer first = raw;
  quay_raw_buffer_free(&raw);
  sim->fail("cuStreamSynchronize", 1, 999);
  cr_assert_neq(quay_allocator_alloc(pool, 8 * KIB, &zeroed, &raw), QUAY_OK);
  sim->fail("cuStreamSynchronize", 0, 0);
  CHECK_OK(quay_allocator_alloc(pool, 8 * KIB, NULL, &raw));
  cr_assert_eq(raw.as.cuda.pointer, first.as.cuda.pointer, "another block was handed out");
  quay_buffer *buffer = NULL;
  CHECK_OK(quay_buffer_from_raw(&raw, QUAY_U8, 1, (int64_t[]){8 * KIB}, &buffer));
  CHECK_OK(quay_buffer_fill_on(buffer, "\x5a", 1, other));
  CHECK_OK(quay_stream_synchronize(other));
  CHECK_OK(quay_stream_synchronize(one));
  simcuda_violation violation = {.message = ""};
  cr_assert_eq(sim->violations(&violation, 1), 0u, "%s", violation.message);
  quay_buffer_release(buffer);
  quay_stream_release(one);
  quay_stream_release(other);
  quay_allocator_release(pool);
}

#ifdef QUAY__ASAN

/* A block whose fill has not run goes back to its stream as a smaller one. */
Test(cuda_pool, what_earlier_work_of_the_stream_may_still_write_to_is_not_poisoned) {
  setenv("SIMCUDA_SCHEDULE", "manual", 1); /* nothing runs until somebody waits */
  begin("pool+cuda:0,memory=pinned");
  quay_stream *stream = NULL;
  CHECK_OK(quay_stream_create(quay_allocator_device(pool), NULL, &stream));
  const quay_alloc_options options = {.stream = stream};
  quay_buffer *buffer = NULL;
  CHECK_OK(quay_buffer_create(pool, QUAY_U8, 1, (int64_t[]){8192}, &options, &buffer));
  uint64_t address = 0, again = 0;
  CHECK_OK(quay_buffer_address(buffer, &address));
  CHECK_OK(quay_buffer_fill_on(buffer, "\x5a", 1, stream));
  quay_buffer_release(buffer);
  CHECK_OK(quay_buffer_create(pool, QUAY_U8, 1, (int64_t[]){8000}, &options, &buffer));
  CHECK_OK(quay_buffer_address(buffer, &again));
  cr_assert_eq(again, address, "another block was handed out");
  for (uint64_t i = 0; i < 8192; i++) {
    const void *byte =
        (const void *)(uintptr_t)(address + i); /* NOLINT(performance-no-int-to-ptr) */
    cr_assert_not(__asan_address_is_poisoned(byte), "byte %zu", (size_t)i);
  }
  CHECK_OK(quay_stream_synchronize(stream));
  quay_buffer_release(buffer);
  quay_stream_release(stream);
  quay_allocator_release(pool);
}

#endif
