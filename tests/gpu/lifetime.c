/* Memory that is released while kernels and copies still work on it: kept until they are done, and
 * the release waits for nothing. */
#include <string.h>

#include "gpu/gpu.h"

GPU_SUITE(gpu_lifetime);

enum {
  NEXT = 6
};

/* Writes over whatever memory comes next, which must not be that of the released buffer. */
static void overwrite_what_comes_next(quay_allocator *gpu, const quay_alloc_options *options) {
  quay_buffer *next[NEXT];
  for (int i = 0; i < NEXT; i++)
    next[i] = gpu_buffer(gpu, GPU_WORDS, GPU_ODD, options);
  for (int i = 0; i < NEXT; i++) {
    gpu_expect(next[i], GPU_ODD);
    quay_buffer_release(next[i]);
  }
}

/* A kernel waits at gate 0 before it reads the buffer, which is released meanwhile. That a release
 * waited shows when the test ends: the kernel would have given up. */
static void check_release(const char *spec, bool ordered, bool exportable) {
  gpu_begin();
  quay_allocator *const gpu = gpu_open(spec), *const device = gpu_open("cuda:0");
  quay_stream *const stream = gpu_stream(gpu), *const other = gpu_stream(gpu);
  const quay_alloc_options options = {.stream = ordered ? other : NULL, .exportable = exportable};
  quay_buffer *const from = gpu_buffer(gpu, GPU_WORDS, GPU_NEW, &options);
  quay_buffer *const to = gpu_buffer(device, GPU_WORDS, GPU_OLD, NULL);
  gpu_read(stream, from, to, 0);
  quay_buffer_release(from);
  cr_assert_not(gpu_is_open(0));
  gpu_open_later(0); /* allocation may wait for a kernel in the driver */
  overwrite_what_comes_next(gpu, &options);
  gpu_expect(to, GPU_NEW);
  quay_buffer_release(to);
  CHECK_OK(quay_allocator_synchronize(gpu));
  uint64_t bytes = 0;
  CHECK_OK(quay_collect(&bytes));
  CHECK_OK(quay_allocator_trim(gpu, &bytes));
  quay_stats stats;
  CHECK_OK(quay_allocator_stats(gpu, &stats));
  cr_assert_eq(stats.pending_bytes, 0);
  cr_assert_eq(stats.error_count, 0);
}

Test(gpu_lifetime, device_memory_is_kept_until_the_kernel_that_reads_it_is_done) {
  check_release("cuda:0", false, false);
}

Test(gpu_lifetime, stream_ordered_memory_is_kept_until_the_kernel_that_reads_it_is_done) {
  check_release("cuda:0", true, false);
}

/* The driver unmaps without waiting for kernels. */
Test(gpu_lifetime, exportable_memory_is_kept_until_the_kernel_that_reads_it_is_done) {
  check_release("cuda:0", false, true);
}

Test(gpu_lifetime, pinned_memory_is_kept_until_the_kernel_that_reads_it_is_done) {
  check_release("cuda:0,memory=pinned", false, false);
}

Test(gpu_lifetime, managed_memory_is_kept_until_the_kernel_that_reads_it_is_done) {
  check_release("cuda:0,memory=managed", false, false);
}

Test(gpu_lifetime, the_source_of_a_copy_on_a_stream_is_kept_until_the_copy_is_done) {
  gpu_begin();
  quay_allocator *const gpu = gpu_open("cuda:0"), *const pinned = gpu_open("cuda:0,memory=pinned");
  quay_stream *const stream = gpu_stream(gpu);
  quay_buffer *const from = gpu_buffer(pinned, GPU_WORDS, GPU_NEW, NULL);
  quay_buffer *const to = gpu_buffer(gpu, GPU_WORDS, GPU_OLD, NULL);
  const quay_copy_options options = {.stream = stream};
  gpu_keep_busy(0, (CUstream)(uintptr_t)quay_cuda_stream(stream), 0);
  CHECK_OK(quay_buffer_copy_region(to, 0, from, 0, GPU_WORDS * 4, &options));
  quay_buffer_release(from);
  cr_assert_not(gpu_is_open(0));
  gpu_open_later(0);
  overwrite_what_comes_next(pinned, NULL);
  gpu_expect(to, GPU_NEW);
  quay_buffer_release(to);
}

Test(gpu_lifetime, a_buffer_released_within_its_access_is_kept) {
  gpu_begin();
  quay_allocator *const gpu = gpu_open("cuda:0");
  quay_stream *const stream = gpu_stream(gpu);
  quay_buffer *const from = gpu_buffer(gpu, GPU_WORDS, GPU_NEW, NULL);
  quay_buffer *const to = gpu_buffer(gpu, GPU_WORDS, GPU_OLD, NULL);
  const quay_use uses[] = {{to, QUAY_WRITE}, {from, QUAY_READ}};
  quay_access access;
  CHECK_OK(quay_access_begin(stream, uses, 2, &access));
  quay_buffer_release(from);
  uint64_t target = access.pointers[0], source = access.pointers[1], words = GPU_WORDS;
  CUstream native = (CUstream)(uintptr_t)quay_cuda_stream(stream);
  gpu_keep_busy(0, native, 0);
  CU_OK(gpu_launch(0, GPU_COPY, native, (void *[]){&target, &source, &words}, words));
  CHECK_OK(quay_access_end(&access));
  gpu_open_later(0);
  overwrite_what_comes_next(gpu, NULL);
  gpu_expect(to, GPU_NEW);
  quay_buffer_release(to);
}

Test(gpu_lifetime, a_stream_released_with_work_in_it_finishes_that) {
  gpu_begin();
  quay_allocator *const gpu = gpu_open("cuda:0");
  quay_stream *stream = NULL;
  CHECK_OK(quay_stream_create(quay_allocator_device(gpu), NULL, &stream));
  quay_buffer *const buffer = gpu_buffer(gpu, GPU_WORDS, GPU_OLD, NULL);
  gpu_write(stream, buffer, GPU_NEW, 0);
  quay_stream_release(stream);
  cr_assert_not(gpu_is_open(0));
  gpu_open_later(0);
  gpu_expect(buffer, GPU_NEW);
  cr_assert(gpu_is_open(0));
  quay_buffer_release(buffer);
}

Test(gpu_lifetime, memory_of_the_stream_that_frees_it_is_used_again_without_a_wait_on_the_host) {
  gpu_begin();
  quay_allocator *const gpu = gpu_open("cuda:0");
  quay_stream *const stream = gpu_stream(gpu);
  const quay_alloc_options options = {.stream = stream};
  quay_buffer *const to = gpu_buffer(gpu, GPU_WORDS, GPU_OLD, NULL);
  const int64_t shape = (int64_t)GPU_WORDS;
  for (int round = 0; round < 8; round++) {
    quay_buffer *scratch = NULL;
    CHECK_OK(quay_buffer_create(gpu, QUAY_U32, 1, &shape, &options, &scratch));
    gpu_write(stream, scratch, GPU_NEW + (uint32_t)round, round == 0 ? 0 : GPU_AT_ONCE);
    gpu_read(stream, scratch, to, GPU_AT_ONCE);
    quay_buffer_release(scratch);
  }
  cr_assert_not(gpu_is_open(0));
  gpu_open_later(0);
  gpu_expect(to, GPU_NEW + 7);
  quay_buffer_release(to);
}
