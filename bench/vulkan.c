/* Copies to and from a Vulkan device: host memory both ways beside CUDA's copy of page-locked
 * memory, and CUDA beside Vulkan on one GPU, direct and over the host. Every byte is checked. One
 * line a copy, the median of the runs; the destinations are touched before.
 *
 *   bench_vulkan [SPEC OF THE VULKAN DEVICE [MIB [RUNS]]]
 *
 * Without a spec it is the GPU of cuda:0. Ends with status 77 where one of the two is not there. */
#include <quay/cuda.h>
#include <quay/quay.h>
#include <quay/vulkan.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
  RUNS_MAX = 99,
  MISSING = 77
};

static int runs = 9;

static void check(quay_status status, const char *what) {
  if (status == QUAY_OK)
    return;
  fprintf(stderr, "bench_vulkan: %s: %s\n", what, quay_last_error()->message);
  exit(status == QUAY_STATUS_UNAVAILABLE ? MISSING : 1);
}

static quay_allocator *open_spec(const char *spec) {
  quay_allocator *allocator = NULL;
  check(quay_allocator_open(spec, &allocator), spec);
  return allocator;
}

static quay_buffer *make_buffer(quay_allocator *allocator, uint64_t size) {
  quay_buffer *buffer = NULL;
  check(quay_buffer_create(allocator, QUAY_U8, 1, (int64_t[]){(int64_t)size}, NULL, &buffer),
        "a buffer");
  return buffer;
}

static double now(void) {
  struct timespec t;
  (void)clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int compare(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* A seed's bytes; no two blocks of 8 alike. */
static void write_bytes(quay_buffer *host, uint64_t seed) {
  void *bytes = NULL;
  uint64_t size = 0;
  check(quay_buffer_host_bytes_mut(host, &bytes, &size), "host memory");
  for (uint64_t i = 0; i + 8 <= size; i += 8) {
    const uint64_t word = (i + seed) * UINT64_C(0x9e3779b97f4a7c15);
    memcpy((char *)bytes + i, &word, sizeof word);
  }
}

static void check_bytes(const quay_buffer *host, uint64_t seed, const char *what) {
  const void *bytes = NULL;
  uint64_t size = 0;
  check(quay_buffer_host_bytes(host, &bytes, &size), "host memory");
  for (uint64_t i = 0; i + 8 <= size; i += 8) {
    const uint64_t word = (i + seed) * UINT64_C(0x9e3779b97f4a7c15);
    if (memcmp((const char *)bytes + i, &word, sizeof word) == 0)
      continue;
    fprintf(stderr, "bench_vulkan: %s: byte %llu is wrong\n", what, (unsigned long long)i);
    exit(1);
  }
}

/* GB/s, the median. `over` NULL: directly. */
static double measure(const char *name, quay_buffer *to, quay_buffer *from, quay_buffer *over) {
  double seconds[RUNS_MAX];
  const uint64_t size = quay_buffer_size(from);
  for (int i = -1; i < runs; i++) { /* the first one warms up */
    const double begin = now();
    if (over != NULL)
      check(quay_buffer_copy_from(over, from), name);
    check(quay_buffer_copy_from(to, over != NULL ? over : from), name);
    if (i >= 0)
      seconds[i] = now() - begin;
  }
  qsort(seconds, (size_t)runs, sizeof seconds[0], compare);
  quay_copy_plan_info plan;
  check(quay_copy_plan(to, 0, over != NULL ? over : from, 0, size, NULL, &plan), name);
  const double rate = (double)size / seconds[runs / 2] / 1e9;
  printf("%-34s %7.2f GB/s  %s, %s\n", name, rate, quay_route_name(plan.route), plan.reason);
  return rate;
}

/* The spec of the GPU of cuda:0. */
static const char *same_gpu(quay_allocator *cuda) {
  static char spec[64];
  uint8_t uuid[16];
  check(quay_cuda_device_uuid(quay_allocator_device(cuda), uuid), "the UUID");
  int used = snprintf(spec, sizeof spec, "vulkan:uuid=");
  for (size_t i = 0; i < sizeof uuid; i++)
    used += snprintf(spec + used, sizeof spec - (size_t)used, "%02x", uuid[i]);
  return spec;
}

int main(int count, char **arguments) {
  const bool smoke = getenv("QUAY_BENCH_SMOKE") != NULL;
  quay_allocator *cuda = open_spec("cuda:0"), *pinned = open_spec("cuda:0,memory=pinned");
  quay_allocator *vulkan = open_spec(count > 1 ? arguments[1] : same_gpu(cuda));
  quay_allocator *cpu = open_spec("cpu");
  uint64_t mib = smoke ? 8 : 1024;
  if (count > 2)
    mib = strtoull(arguments[2], NULL, 10);
  if (count > 3 || smoke)
    runs = smoke ? 1 : atoi(arguments[3]);
  if (mib == 0 || runs < 1 || runs > RUNS_MAX) {
    fprintf(stderr, "bench_vulkan: MIB must be 1 or more, and RUNS 1 to %d\n", RUNS_MAX);
    return 2;
  }
  const uint64_t size = mib << 20;
  quay_buffer *in_cuda = make_buffer(cuda, size), *in_vulkan = make_buffer(vulkan, size);
  quay_buffer *host = make_buffer(cpu, size), *back = make_buffer(cpu, size);
  quay_buffer *locked = make_buffer(pinned, size);
  printf("%s, %llu MiB, %d runs\n", quay_allocator_spec(vulkan), (unsigned long long)mib, runs);
  write_bytes(host, 1);
  write_bytes(back, 2);
  write_bytes(locked, 3);
  const double limit_in = measure("page-locked to CUDA", in_cuda, locked, NULL);
  const double limit_out = measure("CUDA to page-locked", locked, in_cuda, NULL);
  const double in = measure("host to Vulkan", in_vulkan, host, NULL);
  const double out = measure("Vulkan to host", back, in_vulkan, NULL);
  check_bytes(back, 1, "Vulkan to host");
  const double over = measure("CUDA over the host to Vulkan", in_vulkan, in_cuda, back);
  const double direct = measure("Vulkan to CUDA", in_cuda, in_vulkan, NULL);
  write_bytes(host, 4);
  check(quay_buffer_copy_from(in_cuda, host), "host to CUDA");
  const double other = measure("CUDA to Vulkan", in_vulkan, in_cuda, NULL);
  check(quay_buffer_copy_from(back, in_vulkan), "Vulkan to host");
  check_bytes(back, 4, "CUDA to Vulkan");
  printf("of the page-locked limit: in %.3f, out %.3f; direct over the path over the host: "
         "%.1f, %.1f times\n",
         in / limit_in, out / limit_out, other / over, direct / over);
  quay_buffer *const buffers[] = {in_cuda, in_vulkan, host, back, locked};
  for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++)
    quay_buffer_release(buffers[i]);
  quay_allocator *const allocators[] = {cuda, pinned, vulkan, cpu};
  for (size_t i = 0; i < sizeof allocators / sizeof allocators[0]; i++)
    quay_allocator_release(allocators[i]);
  check(quay_shutdown(), "the end");
  return 0;
}
