/* The caller's context: what was current before a call of Quay's is current after it, nothing among
 * it, in calls that fail and in releases, too. */
#include <pthread.h>

#include "gpu/gpu.h"

GPU_SUITE(gpu_contexts);

static CUcontext current(void) {
  CUcontext context = NULL;
  CU_OK(cu->cuCtxGetCurrent(&context));
  return context;
}

/* One call, and the caller's context after it. */
#define KEEPS(call)                                                               \
  do {                                                                            \
    call;                                                                         \
    cr_assert_eq(current(), expected, "another context is current after " #call); \
  } while (0)

#define BYTES 100000

typedef struct everything {
  CUcontext expected;
  quay_allocator *gpu;
  quay_device *device;
  quay_stream *stream;
  quay_buffer *buffer, *other, *ordered;
} everything;

static unsigned char bytes[BYTES];

static void make(everything *of, const char *spec) {
  CUcontext expected = of->expected;
  quay_raw_buffer raw;
  const int64_t shape = BYTES;
  for (size_t i = 0; i < BYTES; i++)
    bytes[i] = (unsigned char)(i * 7 | 1);
  KEEPS(CHECK_OK(quay_allocator_open(spec, &of->gpu)));
  of->device = quay_allocator_device(of->gpu);
  KEEPS(CHECK_FAILS(quay_allocator_alloc(of->gpu, UINT64_C(1) << 50, NULL, &raw),
                    QUAY_STATUS_OUT_OF_DEVICE_MEMORY));
  KEEPS(CHECK_OK(quay_stream_create(of->device, NULL, &of->stream)));
  const quay_alloc_options options = {.stream = of->stream};
  KEEPS(CHECK_OK(quay_buffer_create(of->gpu, QUAY_U8, 1, &shape, NULL, &of->buffer)));
  KEEPS(CHECK_OK(quay_buffer_create(of->gpu, QUAY_U8, 1, &shape, NULL, &of->other)));
  KEEPS(CHECK_OK(quay_buffer_create(of->gpu, QUAY_U8, 1, &shape, &options, &of->ordered)));
}

static void copy(const everything *of) {
  CUcontext expected = of->expected;
  const quay_copy_options on_stream = {.stream = of->stream};
  const quay_use use = {of->ordered, QUAY_READ_WRITE};
  quay_access access;
  KEEPS(CHECK_OK(quay_buffer_copy_in(of->buffer, bytes, BYTES)));
  KEEPS(CHECK_FAILS(quay_buffer_copy_in(of->buffer, bytes, 10), QUAY_STATUS_SIZE_MISMATCH));
  KEEPS(CHECK_OK(quay_buffer_copy_from(of->other, of->buffer)));
  KEEPS(CHECK_OK(quay_buffer_copy_region(of->ordered, 0, of->other, 0, BYTES, &on_stream)));
  KEEPS(CHECK_OK(quay_access_begin(of->stream, &use, 1, &access)));
  KEEPS(CHECK_OK(quay_access_end(&access)));
  KEEPS(CHECK_OK(quay_buffer_copy_out(of->ordered, bytes, BYTES)));
  for (size_t i = 0; i < BYTES; i++)
    cr_assert_eq(bytes[i], (unsigned char)(i * 7 | 1), "byte %zu", i);
  KEEPS(CHECK_OK(quay_buffer_fill(of->buffer, "\x5a", 1)));
}

static void ask(const everything *of) {
  CUcontext expected = of->expected;
  quay_event *event = NULL;
  quay_stream *refused = NULL;
  quay_memory_info info;
  quay_health health;
  bool done = false;
  KEEPS(CHECK_OK(quay_event_record(of->stream, &event)));
  KEEPS(CHECK_OK(quay_event_query(event, &done)));
  KEEPS(CHECK_OK(quay_event_synchronize(event)));
  KEEPS(CHECK_OK(quay_stream_wait(of->stream, event)));
  KEEPS(quay_event_release(event));
  KEEPS(CHECK_FAILS(quay_stream_wrap(of->device, 0x1002, &refused), QUAY_STATUS_INVALID_ARGUMENT));
  KEEPS(CHECK_OK(quay_device_memory_info(of->device, &info)));
  KEEPS(CHECK_OK(quay_cuda_health(of->device, &health)));
  KEEPS(CHECK_OK(quay_stream_synchronize(of->stream)));
}

static void end(everything *of) {
  CUcontext expected = of->expected;
  KEEPS(quay_buffer_release(of->ordered));
  KEEPS(quay_buffer_release(of->other));
  KEEPS(quay_buffer_release(of->buffer));
  KEEPS(quay_stream_release(of->stream));
  KEEPS(CHECK_OK(quay_allocator_trim(of->gpu, NULL)));
  KEEPS(CHECK_OK(quay_allocator_synchronize(of->gpu)));
  KEEPS(CHECK_OK(quay_collect(NULL)));
  KEEPS(quay_allocator_release(of->gpu));
}

static void use_everything(const char *spec) {
  everything of = {.expected = current()};
  make(&of, spec);
  copy(&of);
  ask(&of);
  end(&of);
}

Test(gpu_contexts, a_thread_without_a_context_has_none_after_each_call) {
  gpu_begin();
  cr_assert_null(current());
  use_everything("cuda:0");
}

static void *use_in_a_thread(void *unused) {
  (void)unused;
  cr_assert_null(current());
  use_everything("cuda:0");
  return NULL;
}

Test(gpu_contexts, a_new_thread_has_no_context_after_each_call) {
  gpu_begin();
  pthread_t thread;
  cr_assert_eq(pthread_create(&thread, NULL, use_in_a_thread, NULL), 0);
  cr_assert_eq(pthread_join(thread, NULL), 0);
}

Test(gpu_contexts, another_context_of_the_device_stays_current) {
  gpu_begin();
  CUcontext own = NULL, popped = NULL;
  CU_OK(cu->cuCtxCreate_v2(&own, 0, 0));
  use_everything("cuda:0");
  cr_assert_eq(current(), own);
  CU_OK(cu->cuCtxPopCurrent_v2(&popped));
  cr_assert_eq(popped, own);
  cr_assert_null(current(), "something was left below it");
  CU_OK(cu->cuCtxDestroy_v2(own));
}

Test(gpu_contexts, the_primary_context_of_another_device_stays_current) {
  gpu_begin_two();
  CU_OK(gpu_enter(1));
  use_everything("cuda:0");
  cr_assert_eq(current(), gpu_context(1));
  CU_OK(gpu_leave());
  cr_assert_null(current(), "something was left below it");
}

static void *free_in_a_thread(void *buffer) {
  cr_assert_null(current());
  quay_buffer_release(buffer);
  cr_assert_null(current());
  return NULL;
}

Test(gpu_contexts, a_thread_without_a_context_frees_what_another_allocated) {
  gpu_begin();
  quay_allocator *const gpu = gpu_open("cuda:0");
  pthread_t thread;
  quay_buffer *const buffer = gpu_buffer(gpu, GPU_WORDS, GPU_OLD, NULL);
  cr_assert_eq(pthread_create(&thread, NULL, free_in_a_thread, buffer), 0);
  cr_assert_eq(pthread_join(thread, NULL), 0);
  CHECK_OK(quay_allocator_trim(gpu, NULL));
  quay_stats stats;
  CHECK_OK(quay_allocator_stats(gpu, &stats));
  cr_assert_eq(stats.live_count, 0);
  cr_assert_eq(stats.error_count, 0);
}

Test(gpu_contexts, memory_of_two_devices_is_freed_with_the_other_one_current) {
  gpu_begin_two();
  quay_allocator *const gpus[] = {gpu_open("cuda:0"), gpu_open("cuda:1")};
  for (int device = 0; device < 2; device++) {
    quay_buffer *const buffer = gpu_buffer(gpus[device], GPU_WORDS, GPU_OLD, NULL);
    CU_OK(gpu_enter(1 - device));
    gpu_expect(buffer, GPU_OLD);
    quay_buffer_release(buffer);
    CHECK_OK(quay_allocator_trim(gpus[device], NULL));
    cr_assert_eq(current(), gpu_context(1 - device));
    CU_OK(gpu_leave());
    quay_stats stats;
    CHECK_OK(quay_allocator_stats(gpus[device], &stats));
    cr_assert_eq(stats.error_count, 0);
  }
}
