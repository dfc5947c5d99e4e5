/* Hazards: Quay's copies and host accesses against kernels in accesses, which run late, and kernels
 * on two streams against each other. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/gpu.h"
#include "sim_cuda/control.h"

GPU_SUITE(gpu_hazards);

static const char *const kinds[] = {"cuda:0", "cuda:0,memory=pinned", "cuda:0,memory=managed"};

/* The other tests prove something only if this race is real. */
Test(gpu_hazards, without_quay_a_copy_on_another_stream_reads_the_old_bytes) {
  gpu_begin();
  const uint64_t size = GPU_WORDS * 4;
  uint64_t device = 0, words = GPU_WORDS;
  uint32_t old = GPU_OLD, fresh = GPU_NEW, *host = NULL;
  CUstream writer = NULL, reader = NULL;
  CU_OK(gpu_enter(0));
  CU_OK(cu->cuMemAlloc_v2((CUdeviceptr *)&device, size));
  CU_OK(cu->cuMemHostAlloc((void **)&host, size, CU_MEMHOSTALLOC_PORTABLE));
  memset(host, 0xee, size);
  CU_OK(cu->cuStreamCreate(&writer, CU_STREAM_NON_BLOCKING));
  CU_OK(cu->cuStreamCreate(&reader, CU_STREAM_NON_BLOCKING));
  CU_OK(gpu_launch(0, GPU_PATTERN, writer, (void *[]){&device, &words, &old}, words));
  CU_OK(cu->cuStreamSynchronize(writer));
  gpu_keep_busy(0, writer, 0);
  CU_OK(gpu_launch(0, GPU_PATTERN, writer, (void *[]){&device, &words, &fresh}, words));
  CU_OK(cu->cuMemcpyDtoHAsync_v2(host, device, size, reader));
  CU_OK(cu->cuStreamSynchronize(reader));
  for (uint64_t i = 0; i < words; i++)
    cr_assert_eq(host[i], gpu_word(i, old), "word %llu is 0x%08x", (unsigned long long)i, host[i]);
  gpu_gate_open(0);
  CU_OK(cu->cuStreamSynchronize(writer));
  if (cu->simulated)
    cr_assert_gt(gpu_forget_violations(), 0);
  CU_OK(cu->cuStreamDestroy_v2(writer));
  CU_OK(cu->cuStreamDestroy_v2(reader));
  CU_OK(cu->cuMemFreeHost(host));
  CU_OK(cu->cuMemFree_v2(device));
  CU_OK(gpu_leave());
}

/* The host and one stream. */

static void check_copy_out(const char *spec) {
  quay_allocator *const gpu = gpu_open(spec);
  quay_stream *const stream = gpu_stream(gpu);
  quay_buffer *const buffer = gpu_buffer(gpu, GPU_WORDS, GPU_OLD, NULL);
  gpu_write(stream, buffer, GPU_NEW, GPU_ASLEEP);
  gpu_expect(buffer, GPU_NEW);
  quay_buffer_release(buffer);
}

Test(gpu_hazards, copy_out_waits_for_the_kernel_that_writes_device_memory) {
  gpu_begin();
  check_copy_out(kinds[0]);
}

Test(gpu_hazards, copy_out_waits_for_the_kernel_that_writes_pinned_memory) {
  gpu_begin();
  check_copy_out(kinds[1]);
}

Test(gpu_hazards, copy_out_waits_for_the_kernel_that_writes_managed_memory) {
  gpu_begin();
  check_copy_out(kinds[2]);
}

Test(gpu_hazards, copy_out_of_a_small_buffer_waits_for_the_kernel_that_writes) {
  gpu_begin();
  quay_allocator *const gpu = gpu_open("cuda:0");
  quay_stream *const stream = gpu_stream(gpu);
  quay_buffer *const buffer = gpu_buffer(gpu, 16, GPU_OLD, NULL);
  gpu_write(stream, buffer, GPU_NEW, GPU_ASLEEP);
  gpu_expect(buffer, GPU_NEW);
  quay_buffer_release(buffer);
}

static void check_copy_from(const char *spec) {
  quay_allocator *const gpu = gpu_open(spec);
  quay_stream *const stream = gpu_stream(gpu);
  quay_buffer *const from = gpu_buffer(gpu, GPU_WORDS, GPU_OLD, NULL);
  quay_buffer *const to = gpu_buffer(gpu, GPU_WORDS, GPU_ODD, NULL);
  quay_buffer *const fresh = gpu_buffer(gpu_open("cpu"), GPU_WORDS, GPU_NEW, NULL);
  gpu_read(stream, from, to, GPU_ASLEEP);
  CHECK_OK(quay_buffer_copy_from(from, fresh));
  gpu_expect(to, GPU_OLD);
  gpu_expect(from, GPU_NEW);
  quay_buffer_release(fresh);
  quay_buffer_release(to);
  quay_buffer_release(from);
}

Test(gpu_hazards, copy_from_into_device_memory_waits_for_the_kernel_that_reads_it) {
  gpu_begin();
  check_copy_from(kinds[0]);
}

Test(gpu_hazards, copy_from_into_pinned_memory_waits_for_the_kernel_that_reads_it) {
  gpu_begin();
  check_copy_from(kinds[1]);
}

Test(gpu_hazards, copy_from_into_managed_memory_waits_for_the_kernel_that_reads_it) {
  gpu_begin();
  check_copy_from(kinds[2]);
}

static void check_host_pointer(const char *spec) {
  quay_allocator *const gpu = gpu_open(spec);
  quay_stream *const stream = gpu_stream(gpu);
  quay_buffer *const buffer = gpu_buffer(gpu, GPU_WORDS, GPU_OLD, NULL);
  gpu_write(stream, buffer, GPU_NEW, GPU_ASLEEP);
  const void *bytes = NULL;
  CHECK_OK(quay_buffer_host_bytes(buffer, &bytes, NULL));
  if (cu->simulated)
    simcuda_control_get()->host_access(bytes, GPU_WORDS * 4, false);
  const uint32_t *const words = bytes;
  for (uint64_t i = 0; i < GPU_WORDS; i++)
    cr_assert_eq(words[i], gpu_word(i, GPU_NEW), "word %llu", (unsigned long long)i);
  quay_buffer_release(buffer);
}

Test(gpu_hazards, a_host_pointer_to_pinned_memory_waits_for_the_kernel_that_writes) {
  gpu_begin();
  check_host_pointer(kinds[1]);
}

Test(gpu_hazards, a_host_pointer_to_managed_memory_waits_for_the_kernel_that_writes) {
  gpu_begin();
  check_host_pointer(kinds[2]);
}

Test(gpu_hazards, a_kernel_sees_what_was_copied_in_before) {
  gpu_begin();
  for (size_t i = 0; i < 3; i++) {
    quay_allocator *const gpu = gpu_open(kinds[i]);
    quay_stream *const stream = gpu_stream(gpu);
    quay_buffer *const from = gpu_buffer(gpu, GPU_WORDS, GPU_NEW, NULL);
    quay_buffer *const to = gpu_buffer(gpu, GPU_WORDS, GPU_OLD, NULL);
    gpu_read(stream, from, to, GPU_AT_ONCE);
    gpu_expect(to, GPU_NEW);
    quay_buffer_release(to);
    quay_buffer_release(from);
  }
}

Test(gpu_hazards, synchronize_waits_for_the_kernel_that_writes) {
  gpu_begin();
  quay_allocator *const gpu = gpu_open("cuda:0");
  quay_stream *const stream = gpu_stream(gpu);
  quay_buffer *const buffer = gpu_buffer(gpu, 1000, GPU_OLD, NULL);
  gpu_write(stream, buffer, GPU_NEW, 0);
  gpu_open_later(0);
  CHECK_OK(quay_buffer_synchronize(buffer));
  cr_assert(gpu_is_open(0));
  gpu_expect(buffer, GPU_NEW);
  quay_buffer_release(buffer);
}

/* Two streams. */

typedef struct two_streams {
  quay_allocator *gpu;
  quay_stream *first, *second;
  quay_buffer *a, *b;
} two_streams;

static two_streams begin_two_streams(void) {
  gpu_begin();
  two_streams of = {.gpu = gpu_open("cuda:0")};
  of.first = gpu_stream(of.gpu);
  of.second = gpu_stream(of.gpu);
  of.a = gpu_buffer(of.gpu, GPU_WORDS, GPU_OLD, NULL);
  of.b = gpu_buffer(of.gpu, GPU_WORDS, GPU_ODD, NULL);
  return of;
}

static void end_two_streams(two_streams *of) {
  quay_buffer_release(of->a);
  quay_buffer_release(of->b);
}

Test(gpu_hazards, a_kernel_that_reads_waits_for_the_kernel_that_writes_on_another_stream) {
  two_streams of = begin_two_streams();
  gpu_write(of.first, of.a, GPU_NEW, GPU_ASLEEP);
  gpu_read(of.second, of.a, of.b, GPU_AT_ONCE);
  gpu_expect(of.b, GPU_NEW);
  end_two_streams(&of);
}

Test(gpu_hazards, a_kernel_that_writes_waits_for_the_kernel_that_reads_on_another_stream) {
  two_streams of = begin_two_streams();
  gpu_read(of.first, of.a, of.b, GPU_ASLEEP);
  gpu_write(of.second, of.a, GPU_NEW, GPU_AT_ONCE);
  gpu_expect(of.b, GPU_OLD);
  gpu_expect(of.a, GPU_NEW);
  end_two_streams(&of);
}

Test(gpu_hazards, a_kernel_that_writes_waits_for_the_kernel_that_writes_on_another_stream) {
  two_streams of = begin_two_streams();
  gpu_write(of.first, of.a, GPU_ODD, GPU_ASLEEP);
  gpu_write(of.second, of.a, GPU_NEW, GPU_AT_ONCE);
  CHECK_OK(quay_stream_synchronize(of.first));
  gpu_expect(of.a, GPU_NEW);
  end_two_streams(&of);
}

Test(gpu_hazards, a_kernel_that_writes_waits_for_both_kernels_that_read) {
  two_streams of = begin_two_streams();
  quay_stream *const third = gpu_stream(of.gpu);
  quay_buffer *const c = gpu_buffer(of.gpu, GPU_WORDS, GPU_ODD, NULL);
  gpu_read(of.first, of.a, of.b, GPU_AT_ONCE);
  gpu_read(of.second, of.a, c, GPU_ASLEEP);
  gpu_write(third, of.a, GPU_NEW, GPU_AT_ONCE);
  gpu_expect(of.a, GPU_NEW);
  gpu_expect(of.b, GPU_OLD);
  gpu_expect(c, GPU_OLD);
  quay_buffer_release(c);
  end_two_streams(&of);
}

Test(gpu_hazards, kernels_that_read_do_not_wait_for_each_other) {
  two_streams of = begin_two_streams();
  quay_buffer *const c = gpu_buffer(of.gpu, GPU_WORDS, GPU_ODD, NULL);
  gpu_read(of.first, of.a, c, 0);
  gpu_read(of.second, of.a, of.b, GPU_AT_ONCE);
  gpu_expect(of.b, GPU_OLD);
  gpu_gate_open(0);
  gpu_expect(c, GPU_OLD);
  quay_buffer_release(c);
  end_two_streams(&of);
}

Test(gpu_hazards, a_copy_waits_only_for_the_kernel_that_writes_its_buffer) {
  two_streams of = begin_two_streams();
  gpu_write(of.first, of.a, GPU_NEW, 0);
  gpu_write(of.second, of.b, GPU_NEW, GPU_AT_ONCE);
  gpu_expect(of.b, GPU_NEW);
  gpu_gate_open(0);
  gpu_expect(of.a, GPU_NEW);
  end_two_streams(&of);
}

Test(gpu_hazards, a_copy_waits_only_for_work_on_the_bytes_of_its_view) {
  two_streams of = begin_two_streams();
  const uint64_t half = GPU_WORDS / 2 * 4;
  quay_buffer *lower = NULL, *upper = NULL;
  CHECK_OK(quay_buffer_view(of.a, 0, half, &lower));
  CHECK_OK(quay_buffer_view(of.a, half, quay_buffer_size(of.a) - half, &upper));
  gpu_write(of.first, lower, GPU_NEW, 0);
  gpu_expect_from(upper, GPU_OLD, GPU_WORDS / 2);
  gpu_gate_open(0);
  gpu_expect(lower, GPU_NEW);
  gpu_expect_from(upper, GPU_OLD, GPU_WORDS / 2);
  quay_buffer_release(lower);
  quay_buffer_release(upper);
  end_two_streams(&of);
}

static void *copy_out_in_a_thread(void *buffer) {
  uint32_t *const found = malloc(GPU_WORDS * 4);
  bool good = quay_buffer_copy_out(buffer, found, GPU_WORDS * 4) == QUAY_OK;
  for (uint64_t i = 0; good && i < GPU_WORDS; i++)
    good = found[i] == gpu_word(i, GPU_NEW);
  free(found);
  return good ? buffer : NULL;
}

Test(gpu_hazards, two_threads_that_wait_for_one_kernel_both_see_what_it_wrote) {
  two_streams of = begin_two_streams();
  pthread_t threads[2];
  gpu_write(of.first, of.a, GPU_NEW, 0);
  for (int i = 0; i < 2; i++)
    cr_assert_eq(pthread_create(&threads[i], NULL, copy_out_in_a_thread, of.a), 0);
  gpu_open_later(0);
  for (int i = 0; i < 2; i++) {
    void *good = NULL;
    cr_assert_eq(pthread_join(threads[i], &good), 0);
    cr_assert_not_null(good, "thread %d read old bytes", i);
  }
  cr_assert(gpu_is_open(0));
  end_two_streams(&of);
}

/* Quay's own work on streams. */

Test(gpu_hazards, a_copy_on_a_stream_waits_for_the_kernel_that_writes_on_another) {
  two_streams of = begin_two_streams();
  const quay_copy_options options = {.stream = of.second};
  gpu_write(of.first, of.a, GPU_NEW, GPU_ASLEEP);
  CHECK_OK(quay_buffer_copy_region(of.b, 0, of.a, 0, GPU_WORDS * 4, &options));
  CHECK_OK(quay_stream_synchronize(of.second));
  gpu_expect(of.b, GPU_NEW);
  end_two_streams(&of);
}

Test(gpu_hazards, a_copy_on_a_stream_returns_while_a_kernel_holds_it_up) {
  two_streams of = begin_two_streams();
  const quay_copy_options options = {.stream = of.second};
  gpu_write(of.first, of.a, GPU_NEW, 0);
  CHECK_OK(quay_buffer_copy_region(of.b, 0, of.a, 0, GPU_WORDS * 4, &options));
  gpu_gate_open(0);
  gpu_expect(of.b, GPU_NEW);
  end_two_streams(&of);
}

Test(gpu_hazards, a_fill_on_a_stream_waits_for_the_kernel_that_reads_on_another) {
  two_streams of = begin_two_streams();
  const uint32_t pattern = 0x51627384u;
  gpu_read(of.first, of.a, of.b, GPU_ASLEEP);
  CHECK_OK(quay_buffer_fill_on(of.a, &pattern, sizeof pattern, of.second));
  gpu_expect(of.b, GPU_OLD);
  uint32_t *const found = malloc(GPU_WORDS * 4);
  CHECK_OK(quay_buffer_copy_out(of.a, found, GPU_WORDS * 4));
  for (uint64_t i = 0; i < GPU_WORDS; i++)
    cr_assert_eq(found[i], pattern, "word %llu is 0x%08x", (unsigned long long)i, found[i]);
  free(found);
  end_two_streams(&of);
}

Test(gpu_hazards, a_copy_between_pinned_and_device_memory_on_a_stream_is_in_order_with_kernels) {
  two_streams of = begin_two_streams();
  quay_buffer *const host = gpu_buffer(gpu_open(kinds[1]), GPU_WORDS, GPU_OLD, NULL);
  const quay_copy_options options = {.stream = of.second};
  gpu_write(of.first, of.a, GPU_NEW, GPU_ASLEEP);
  CHECK_OK(quay_buffer_copy_region(host, 0, of.a, 0, GPU_WORDS * 4, &options));
  gpu_read(of.first, host, of.b, GPU_AT_ONCE);
  gpu_expect(of.b, GPU_NEW);
  gpu_expect(host, GPU_NEW);
  quay_buffer_release(host);
  end_two_streams(&of);
}

Test(gpu_hazards, a_second_stream_is_busy_while_an_access_that_writes_is_open) {
  two_streams of = begin_two_streams();
  const quay_use write = {of.a, QUAY_WRITE}, read = {of.a, QUAY_READ};
  quay_access open, other;
  CHECK_OK(quay_access_begin(of.first, &write, 1, &open));
  CHECK_FAILS(quay_access_begin(of.second, &read, 1, &other), QUAY_STATUS_BUSY);
  CHECK_OK(quay_access_end(&open));
  CHECK_OK(quay_access_begin(of.second, &read, 1, &other));
  CHECK_OK(quay_access_end(&other));
  end_two_streams(&of);
}

Test(gpu_hazards, memory_that_a_stream_allocates_is_waited_for_on_another) {
  two_streams of = begin_two_streams();
  const quay_alloc_options options = {.stream = of.first};
  gpu_keep_busy(0, (CUstream)(uintptr_t)quay_cuda_stream(of.first), GPU_ASLEEP);
  quay_buffer *buffer = NULL;
  const int64_t shape = (int64_t)GPU_WORDS;
  CHECK_OK(quay_buffer_create(of.gpu, QUAY_U32, 1, &shape, &options, &buffer));
  gpu_write(of.second, buffer, GPU_NEW, GPU_AT_ONCE);
  gpu_expect(buffer, GPU_NEW);
  quay_buffer_release(buffer);
  end_two_streams(&of);
}
