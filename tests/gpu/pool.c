/* Pools of device memory: what kernels still use is neither handed out to others nor unmapped, and
 * a stream gets its own back at once. */
#include "gpu/gpu.h"
#include "sim_cuda/control.h"
#include "support/random.h"

GPU_SUITE(gpu_pool);

enum {
  NEXT = 6
};

static void overwrite_what_comes_next(quay_allocator *gpu, const quay_alloc_options *options) {
  quay_buffer *next[NEXT];
  for (int i = 0; i < NEXT; i++)
    next[i] = gpu_buffer(gpu, GPU_WORDS, GPU_ODD, options);
  for (int i = 0; i < NEXT; i++) {
    gpu_expect(next[i], GPU_ODD);
    quay_buffer_release(next[i]);
  }
}

static quay_stats stats_of(quay_allocator *allocator) {
  quay_stats stats;
  CHECK_OK(quay_allocator_stats(allocator, &stats));
  return stats;
}

/* Calls for which a driver waits for all work of the device, as far as the simulated one has
 * counted them. */
static uint64_t waiting_calls(void) {
  static const char *const names[] = {"cuMemFree_v2", "cuMemFreeHost", "cuMemHostUnregister"};
  uint64_t count = 0;
  for (size_t i = 0; cu->simulated && i < sizeof names / sizeof names[0]; i++)
    count += simcuda_control_get()->calls(names[i]);
  return count;
}

static void check_release(const char *spec, bool ordered) {
  gpu_begin();
  quay_allocator *const gpu = gpu_open(spec), *const device = gpu_open("cuda:0");
  quay_stream *const stream = gpu_stream(gpu), *const other = gpu_stream(gpu);
  const quay_alloc_options options = {.stream = ordered ? other : NULL};
  quay_buffer *const from = gpu_buffer(gpu, GPU_WORDS, GPU_NEW, &options);
  quay_buffer *const to = gpu_buffer(device, GPU_WORDS, GPU_OLD, NULL);
  gpu_read(stream, from, to, 0);
  const uint64_t calls = waiting_calls();
  quay_buffer_release(from);
  cr_assert_not(gpu_is_open(0));
  cr_assert_geq(stats_of(gpu).pending_bytes, GPU_WORDS * 4);
  CHECK_OK(quay_allocator_trim(gpu, NULL)); /* unmaps nothing that the kernel reads */
  cr_assert_eq(waiting_calls(), calls);
  gpu_open_later(0);
  overwrite_what_comes_next(gpu, &options);
  gpu_expect(to, GPU_NEW);
  quay_buffer_release(to);
  CHECK_OK(quay_allocator_synchronize(gpu));
  CHECK_OK(quay_allocator_trim(gpu, NULL));
  const quay_stats stats = stats_of(gpu);
  cr_assert_eq(stats.pending_bytes, 0);
  cr_assert_eq(stats.reserved_bytes, 0);
  cr_assert_eq(stats.error_count, 0);
}

Test(gpu_pool, a_kernel_never_sees_the_memory_that_it_reads_change) {
  check_release("pool+cuda:0", false);
}

Test(gpu_pool, a_kernel_never_sees_memory_change_that_another_stream_allocates) {
  check_release("pool:keep=tight+cuda:0", true);
}

Test(gpu_pool, pinned_memory_of_a_pool_is_kept_until_the_kernel_that_reads_it_is_done) {
  check_release("pool+cuda:0,memory=pinned", false);
}

static uint64_t address_on(quay_stream *stream, quay_buffer *buffer) {
  const quay_use use = {buffer, QUAY_WRITE};
  quay_access access;
  CHECK_OK(quay_access_begin(stream, &use, 1, &access));
  const uint64_t address = access.pointers[0];
  CHECK_OK(quay_access_end(&access));
  return address;
}

Test(gpu_pool, a_stream_gets_its_own_memory_back_while_its_kernel_runs) {
  gpu_begin();
  quay_allocator *const gpu = gpu_open("pool+cuda:0");
  quay_stream *const stream = gpu_stream(gpu);
  const quay_alloc_options options = {.stream = stream};
  quay_buffer *const first = gpu_buffer(gpu, GPU_WORDS, GPU_OLD, &options);
  quay_buffer *const to = gpu_buffer(gpu, GPU_WORDS, GPU_ODD, NULL);
  const uint64_t address = address_on(stream, first);
  gpu_read(stream, first, to, 0);
  quay_buffer_release(first);
  const int64_t shape[] = {(int64_t)GPU_WORDS};
  quay_buffer *again = NULL;
  CHECK_OK(quay_buffer_create(gpu, QUAY_U32, 1, shape, &options, &again));
  cr_assert_eq(address_on(stream, again), address);
  cr_assert_not(gpu_is_open(0));
  gpu_write(stream, again, GPU_NEW, GPU_AT_ONCE);
  gpu_open_later(0);
  gpu_expect(to, GPU_OLD); /* it read before the new owner wrote */
  gpu_expect(again, GPU_NEW);
  quay_buffer_release(to);
  quay_buffer_release(again);
}

Test(gpu_pool, buffers_of_two_devices_pools_are_copied_both_ways) {
  gpu_begin_two();
  quay_allocator *const first = gpu_open("pool+cuda:0"), *const second = gpu_open("pool+cuda:1");
  quay_buffer *const shift = gpu_buffer(first, 100, GPU_ODD, NULL);
  for (int round = 0; round < 3; round++) {
    quay_buffer *const here = gpu_buffer(first, GPU_WORDS, GPU_NEW + (uint32_t)round, NULL);
    quay_buffer *const there = gpu_buffer(second, GPU_WORDS, GPU_OLD, NULL);
    CHECK_OK(quay_buffer_copy_from(there, here));
    gpu_expect(there, GPU_NEW + (uint32_t)round);
    gpu_write(gpu_stream(first), here, GPU_ODD, GPU_AT_ONCE);
    CHECK_OK(quay_buffer_copy_from(here, there));
    gpu_expect(here, GPU_NEW + (uint32_t)round);
    quay_buffer_release(here);
    quay_buffer_release(there);
    CHECK_OK(quay_allocator_trim(first, NULL)); /* access is given anew with new pages */
  }
  quay_buffer_release(shift);
}

/* More memory than there is if nothing were given back by page. */
Test(gpu_pool, fragments_make_room_for_a_block_of_almost_all_memory) {
  enum {
    COUNT = 48
  };
  gpu_begin();
  quay_allocator *const gpu = gpu_open("pool:max=256MiB+cuda:0");
  quay_buffer *pieces[COUNT];
  for (size_t i = 0; i < COUNT; i++)
    pieces[i] = gpu_buffer(gpu, (UINT64_C(5) << 20) / 4, GPU_OLD + (uint32_t)i, NULL);
  for (size_t i = 0; i < COUNT; i += 2)
    quay_buffer_release(pieces[i]);
  quay_buffer *const large = gpu_buffer(gpu, (UINT64_C(60) << 20) / 4, GPU_NEW, NULL);
  gpu_expect(large, GPU_NEW);
  for (size_t i = 1; i < COUNT; i += 2) {
    gpu_expect(pieces[i], GPU_OLD + (uint32_t)i);
    quay_buffer_release(pieces[i]);
  }
  quay_buffer_release(large);
}

/* Kernels of three streams on buffers that come and go in any order: the simulated driver finds any
 * that is not ordered after the last one on the same bytes. */
static void random_program(uint64_t seed) {
  enum {
    STREAMS = 3,
    BUFFERS = 12,
    STEPS = 300
  };
  quay_allocator *const gpu = gpu_open(seed % 2 == 0 ? "pool+cuda:0" : "pool:keep=tight+cuda:0");
  quay_stream *const streams[] = {gpu_stream(gpu), gpu_stream(gpu), gpu_stream(gpu)};
  quay_buffer *buffers[BUFFERS] = {NULL};
  uint32_t seeds[BUFFERS] = {0};
  for (uint32_t step = 0; step < STEPS; step++) {
    const size_t at = quay_test_random(&seed) % BUFFERS;
    quay_stream *const stream = streams[quay_test_random(&seed) % STREAMS];
    const quay_alloc_options options = {.stream = quay_test_random(&seed) % 2 ? stream : NULL};
    const int64_t shape[] = {
        (int64_t)(1 + quay_test_random(&seed) % (UINT64_C(1) << quay_test_random(&seed) % 19))};
    if (buffers[at] == NULL) {
      CHECK_OK(quay_buffer_create(gpu, QUAY_U32, 1, shape, &options, &buffers[at]));
      seeds[at] = step;
      gpu_write(stream, buffers[at], step, GPU_AT_ONCE);
      continue;
    }
    if (quay_test_random(&seed) % 8 == 0)
      gpu_expect(buffers[at], seeds[at]);
    if (quay_test_random(&seed) % 2 == 0) {
      gpu_write(stream, buffers[at], seeds[at], GPU_AT_ONCE);
    }
    quay_buffer_release(buffers[at]);
    buffers[at] = NULL;
    if (step % 50 == 0)
      CHECK_OK(quay_allocator_trim(gpu, NULL));
  }
  for (size_t i = 0; i < BUFFERS; i++) {
    if (buffers[i] != NULL)
      gpu_expect(buffers[i], seeds[i]);
    quay_buffer_release(buffers[i]);
  }
}

Test(gpu_pool, no_program_of_kernels_sees_memory_that_another_one_still_uses) {
  gpu_begin();
  for (uint64_t seed = 1; seed <= 4; seed++)
    random_program(seed);
}
