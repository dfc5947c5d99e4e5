/* The fixture of the tests on a GPU. */
#include "gpu/gpu.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sim_cuda/control.h"

enum {
  ALLOCATORS_MAX = 16,
  STREAMS_MAX = 16,
  LATER_MICROSECONDS = 150000,
};

const raw_cuda *cu;

static quay_allocator *allocators[ALLOCATORS_MAX];
static quay_stream *streams[STREAMS_MAX];
static atomic_bool opened[GPU_GATES];
static pthread_t opener;
static bool has_opener;
static unsigned opener_gate;

static void load(int device) {
  char reason[1024];
  cr_assert(gpu_kernels_load(cu, device, reason, sizeof reason), "cuda:%d: %s", device, reason);
}

void gpu_begin(void) {
  char reason[512];
  cu = raw_cuda_start(reason, sizeof reason);
  if (cu == NULL)
    quay_test_skip("cuda", "%s", reason);
  load(0);
}

void gpu_begin_two(void) {
  gpu_begin();
  if (cu->devices < 2)
    quay_test_skip("cuda", "a second device is needed, and the driver shows one");
  load(1);
}

static void expect_nothing_left(const simcuda_control *simulator) {
  simcuda_census left;
  simcuda_violation violation = {.message = ""};
  simulator->count(&left);
  cr_expect_eq(left.allocations + left.streams + left.retains, 0,
               "%llu allocations, %llu streams, %llu contexts are left",
               (unsigned long long)left.allocations, (unsigned long long)left.streams,
               (unsigned long long)left.retains);
  cr_expect_eq(simulator->violations(&violation, 1), 0, "%s", violation.message);
}

static void release_streams(void) {
  for (size_t i = 0; i < STREAMS_MAX; i++) {
    if (streams[i] != NULL)
      cr_expect_eq(quay_stream_synchronize(streams[i]), QUAY_OK, "%s", quay_last_error()->message);
    quay_stream_release(streams[i]);
    streams[i] = NULL;
  }
}

static void end_gates(void) {
  for (unsigned i = 0; i < GPU_GATES; i++)
    gpu_gate_open(i);
  if (has_opener)
    (void)pthread_join(opener, NULL);
  has_opener = false;
}

/* Leaves everything as it was, since a runner may go on in the same process. */
void gpu_end(void) {
  if (cu == NULL)
    return;
  end_gates();
  release_streams();
  for (unsigned i = 0; i < GPU_GATES; i++) {
    cr_expect_not(gpu_gate_was_late(i),
                  "a call waited for a kernel that it has nothing to do with");
    atomic_store(&opened[i], false);
  }
  for (size_t i = 0; i < ALLOCATORS_MAX; i++) {
    quay_allocator_release(allocators[i]);
    allocators[i] = NULL;
  }
  cr_expect_eq(quay_shutdown(), QUAY_OK, "%s", quay_last_error()->message);
  gpu_kernels_unload();
  if (cu->simulated)
    expect_nothing_left(simcuda_control_get());
}

size_t gpu_forget_violations(void) {
  if (!cu->simulated)
    return 0;
  const size_t count = simcuda_control_get()->violations(NULL, 0);
  simcuda_control_get()->forget_violations();
  return count;
}

quay_allocator *gpu_open(const char *spec) {
  size_t i = 0;
  while (allocators[i] != NULL)
    i++;
  cr_assert_lt(i, ALLOCATORS_MAX);
  CHECK_OK(quay_allocator_open(spec, &allocators[i]));
  return allocators[i];
}

quay_stream *gpu_stream(quay_allocator *allocator) {
  size_t i = 0;
  while (streams[i] != NULL)
    i++;
  cr_assert_lt(i, STREAMS_MAX);
  CHECK_OK(quay_stream_create(quay_allocator_device(allocator), NULL, &streams[i]));
  return streams[i];
}

quay_buffer *gpu_buffer(quay_allocator *allocator, uint64_t words, uint32_t seed,
                        const quay_alloc_options *options) {
  uint32_t *const pattern = malloc((size_t)words * sizeof *pattern);
  cr_assert_not_null(pattern);
  for (uint64_t i = 0; i < words; i++)
    pattern[i] = gpu_word(i, seed);
  const int64_t shape = (int64_t)words;
  quay_buffer *buffer = NULL;
  CHECK_OK(quay_buffer_create(allocator, QUAY_U32, 1, &shape, options, &buffer));
  CHECK_OK(quay_buffer_copy_in(buffer, pattern, words * sizeof *pattern));
  free(pattern);
  return buffer;
}

void gpu_expect_from(const quay_buffer *buffer, uint32_t seed, uint64_t first) {
  const uint64_t size = quay_buffer_size(buffer);
  uint32_t *const found = malloc((size_t)size);
  cr_assert_not_null(found);
  memset(found, 0xee, (size_t)size);
  CHECK_OK(quay_buffer_copy_out(buffer, found, size));
  for (uint64_t i = 0; i < size / sizeof *found; i++) {
    if (found[i] != gpu_word(first + i, seed)) {
      cr_assert_fail("word %llu of %llu is 0x%08x, not 0x%08x (0x%08x would be the old pattern)",
                     (unsigned long long)i, (unsigned long long)(size / sizeof *found), found[i],
                     gpu_word(first + i, seed), gpu_word(first + i, GPU_OLD));
    }
  }
  free(found);
}

void gpu_expect(const quay_buffer *buffer, uint32_t seed) {
  gpu_expect_from(buffer, seed, 0);
}

void gpu_keep_busy(int device, CUstream stream, int when) {
  uint32_t microseconds = cu->simulated ? 20000 : 150000;
  if (when == GPU_ASLEEP) {
    CU_OK(gpu_launch(device, GPU_SLEEP, stream, (void *[]){&microseconds}, 1));
  } else if (when != GPU_AT_ONCE) {
    CU_OK(gpu_hold(device, stream, (unsigned)when));
  }
}

static int device_of(const quay_stream *stream) {
  return quay_device_index(quay_stream_device(stream));
}

static CUstream handle_of(const quay_stream *stream) {
  return (CUstream)(uintptr_t)quay_cuda_stream(stream);
}

void gpu_write(quay_stream *stream, quay_buffer *to, uint32_t seed, int when) {
  const quay_use use = {to, QUAY_WRITE};
  quay_access access;
  CHECK_OK(quay_access_begin(stream, &use, 1, &access));
  uint64_t address = access.pointers[0], words = quay_buffer_size(to) / 4;
  gpu_keep_busy(device_of(stream), handle_of(stream), when);
  CU_OK(gpu_launch(device_of(stream), GPU_PATTERN, handle_of(stream),
                   (void *[]){&address, &words, &seed}, words));
  CHECK_OK(quay_access_end(&access));
}

void gpu_read(quay_stream *stream, quay_buffer *from, quay_buffer *to, int when) {
  const quay_use uses[] = {{to, QUAY_WRITE}, {from, QUAY_READ}};
  quay_access access;
  CHECK_OK(quay_access_begin(stream, uses, 2, &access));
  uint64_t target = access.pointers[0], source = access.pointers[1];
  uint64_t words = quay_buffer_size(from) / 4;
  gpu_keep_busy(device_of(stream), handle_of(stream), when);
  CU_OK(gpu_launch(device_of(stream), GPU_COPY, handle_of(stream),
                   (void *[]){&target, &source, &words}, words));
  CHECK_OK(quay_access_end(&access));
}

/* Gates. */

static void *open_in_a_while(void *unused) {
  (void)unused;
  usleep(LATER_MICROSECONDS);
  atomic_store(&opened[opener_gate], true);
  gpu_gate_open(opener_gate);
  return NULL;
}

void gpu_open_later(unsigned gate) {
  cr_assert_not(has_opener);
  opener_gate = gate;
  cr_assert_eq(pthread_create(&opener, NULL, open_in_a_while, NULL), 0);
  has_opener = true;
}

bool gpu_is_open(unsigned gate) {
  return atomic_load(&opened[gate]);
}
