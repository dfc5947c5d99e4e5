/* CUDA beside Vulkan on one GPU: copies between their memory without the host, and streams that
 * wait for each other. Skipped where Vulkan does not know the GPU of cuda:0. Its gates are CUDA's
 * kernels: a call that waited for one on the host would never come back. */
#include <quay/cuda.h>
#include <quay/vulkan.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpu/gpu.h"

GPU_SUITE(gpu_vulkan);

#define BYTES (GPU_WORDS * 4)

typedef struct sides {
  quay_allocator *cuda, *vulkan;
  quay_stream *in_cuda, *in_vulkan;
  quay_buffer *a, *b; /* CUDA's, Vulkan's */
} sides;

/* The spec of the device that cuda:0 is for Vulkan. */
static void find_spec(quay_allocator *cuda, char *out_spec, size_t size) {
  uint8_t uuid[16];
  CHECK_OK(quay_cuda_device_uuid(quay_allocator_device(cuda), uuid));
  size_t used = (size_t)snprintf(out_spec, size, "vulkan:uuid=");
  for (size_t i = 0; i < sizeof uuid; i++)
    used += (size_t)snprintf(out_spec + used, size - used, "%02x", uuid[i]);
  quay_allocator *vulkan = NULL;
  const quay_status status = quay_allocator_open(out_spec, &vulkan);
  if (status == QUAY_STATUS_UNAVAILABLE)
    quay_test_skip("one GPU for both", "Vulkan: %s", quay_last_error()->message);
  CHECK_OK(status);
  quay_allocator_release(vulkan);
}

static sides begin_sides(void) {
  char spec[64];
  gpu_begin();
  sides s = {.cuda = gpu_open("cuda:0")};
  find_spec(s.cuda, spec, sizeof spec);
  s.vulkan = gpu_open(spec);
  s.in_cuda = gpu_stream(s.cuda);
  s.in_vulkan = gpu_stream(s.vulkan);
  s.a = gpu_buffer(s.cuda, GPU_WORDS, GPU_OLD, NULL);
  s.b = gpu_buffer(s.vulkan, GPU_WORDS, GPU_NEW, NULL);
  return s;
}

static void end_sides(sides *s) {
  quay_buffer_release(s->b);
  quay_buffer_release(s->a);
}

static void copy_on(quay_buffer *destination, quay_buffer *source, quay_stream *stream) {
  const quay_copy_options options = {.stream = stream};
  CHECK_OK(quay_buffer_copy_region(destination, 0, source, 0, BYTES, &options));
}

static quay_copy_plan_info plan_on(quay_buffer *destination, quay_buffer *source,
                                   quay_stream *stream) {
  quay_copy_plan_info plan;
  const quay_copy_options options = {.stream = stream};
  CHECK_OK(quay_copy_plan(destination, 0, source, 0, BYTES, &options, &plan));
  return plan;
}

/* What is imported is imported, also in the driver. */
static void warm_up(sides *s) {
  copy_on(s->a, s->b, s->in_cuda);
  copy_on(s->b, s->a, s->in_vulkan);
  CHECK_OK(quay_stream_synchronize(s->in_cuda));
  CHECK_OK(quay_stream_synchronize(s->in_vulkan));
}

static void check_piece(quay_buffer *to, const quay_buffer *from, uint64_t size) {
  const uint64_t to_at = 1003, from_at = 77;
  unsigned char *const expected = malloc(BYTES), *const source = malloc(BYTES),
                       *const found = malloc(BYTES);
  CHECK_OK(quay_buffer_copy_out(from, source, BYTES));
  CHECK_OK(quay_buffer_copy_out(to, expected, BYTES));
  CHECK_OK(quay_buffer_copy_region(to, to_at, from, from_at, size, NULL));
  CHECK_OK(quay_buffer_copy_out(to, found, BYTES));
  memcpy(expected + to_at, source + from_at, size);
  cr_assert_arr_eq(found, expected, BYTES, "%llu bytes", (unsigned long long)size);
  free(found);
  free(source);
  free(expected);
}

Test(gpu_vulkan, copies_go_directly_and_pieces_at_odd_offsets_leave_the_rest_alone) {
  sides s = begin_sides();
  static const uint64_t sizes[] = {1, 4097, 70001, 1000003};
  cr_assert_eq(plan_on(s.b, s.a, NULL).route, QUAY_ROUTE_DIRECT);
  cr_assert_eq(plan_on(s.a, s.b, NULL).route, QUAY_ROUTE_DIRECT);
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    check_piece(s.b, s.a, sizes[i]);
    check_piece(s.a, s.b, sizes[i]);
  }
  end_sides(&s);
}

Test(gpu_vulkan, a_copy_on_a_queue_of_vulkan_waits_for_a_kernel_of_cuda_without_the_host) {
  sides s = begin_sides();
  quay_event *event = NULL;
  bool done = true;
  const char *const reason = plan_on(s.b, s.a, s.in_vulkan).reason;
  cr_assert_not_null(strstr(reason, "asynchronous"), "%s", reason);
  warm_up(&s);
  gpu_write(s.in_cuda, s.a, GPU_ODD, 0);
  copy_on(s.b, s.a, s.in_vulkan);
  CHECK_OK(quay_event_record(s.in_vulkan, &event));
  CHECK_OK(quay_event_query(event, &done));
  cr_assert_not(done, "the copy was before the kernel that writes what it copies");
  gpu_gate_open(0);
  gpu_expect(s.b, GPU_ODD);
  quay_event_release(event);
  end_sides(&s);
}

Test(gpu_vulkan, work_goes_to_and_fro_many_times_and_stays_in_order) {
  sides s = begin_sides();
  quay_buffer *c = gpu_buffer(s.cuda, GPU_WORDS, GPU_OLD, NULL);
  warm_up(&s);
  for (uint32_t round = 1; round <= 50; round++) {
    gpu_write(s.in_cuda, s.a, GPU_ODD + round, GPU_AT_ONCE);
    copy_on(s.b, s.a, s.in_vulkan);                             /* after the kernel */
    gpu_write(s.in_cuda, s.a, GPU_OLD, GPU_AT_ONCE);            /* after it was read */
    copy_on(c, s.b, s.in_cuda);                                 /* after the copy */
    CHECK_OK(quay_buffer_fill_on(s.b, "\x11", 1, s.in_vulkan)); /* after that */
    gpu_expect(c, GPU_ODD + round);
  }
  quay_buffer_release(c);
  end_sides(&s);
}

/* 64 MiB of host memory each way, through what either side stages with; every byte. */
Test(gpu_vulkan, large_copies_of_host_memory_arrive_in_vulkan_and_in_cuda_from_there) {
  sides s = begin_sides();
  const uint64_t words = UINT64_C(16) << 20;
  quay_buffer *there = gpu_buffer(s.vulkan, words, GPU_ODD, NULL);
  quay_buffer *beside = gpu_buffer(s.cuda, words, GPU_OLD, NULL);
  gpu_expect(there, GPU_ODD);
  CHECK_OK(quay_buffer_copy_from(beside, there));
  gpu_expect(beside, GPU_ODD);
  quay_buffer_release(beside);
  quay_buffer_release(there);
  end_sides(&s);
}

/* NVIDIA's kernel module may leave it out of the child, where to touch it would be a crash. */
Test(gpu_vulkan, the_child_of_a_fork_is_refused_host_memory_that_vulkan_has_mapped) {
  sides s = begin_sides();
  char spec[64], mapped[96];
  find_spec(s.cuda, spec, sizeof spec);
  (void)snprintf(mapped, sizeof mapped, "%s,memory=host", spec);
  quay_allocator *allocator = gpu_open(mapped);
  quay_buffer *buffer = gpu_buffer(allocator, GPU_WORDS, GPU_ODD, NULL);
  int status = 1;
  (void)fflush(NULL);
  const pid_t child = fork();
  if (child == 0) {
    static unsigned char bytes[BYTES];
    const void *pointer = NULL;
    int wrong = quay_buffer_host_bytes(buffer, &pointer, NULL) != QUAY_STATUS_UNAVAILABLE;
    wrong |= (quay_buffer_copy_out(buffer, bytes, BYTES) != QUAY_STATUS_UNAVAILABLE) << 1;
    wrong |= (quay_buffer_copy_in(buffer, bytes, BYTES) != QUAY_STATUS_UNAVAILABLE) << 2;
    _exit(wrong);
  }
  cr_assert_eq(waitpid(child, &status, 0), child);
  cr_assert(WIFEXITED(status), "the child ended by a signal, status 0x%x", (unsigned)status);
  cr_assert_eq(WEXITSTATUS(status), 0, "wrong: 0x%x", (unsigned)WEXITSTATUS(status));
  gpu_expect(buffer, GPU_ODD);
  quay_buffer_release(buffer);
  end_sides(&s);
}
