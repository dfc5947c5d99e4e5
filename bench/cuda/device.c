/* Large copies within a device and between two. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_cuda.h"

typedef struct big_copy {
  uint64_t size;
  quay_buffer *to, *from;
  CUdeviceptr raw_to, raw_from;   /* memory of cuMemAlloc */
  CUdeviceptr same_to, same_from; /* Quay's */
  CUcontext to_context, from_context;
  CUstream stream; /* of the destination's device */
} big_copy;

static void quay_copy(void *self, uint64_t calls) {
  const big_copy *const c = self;
  for (uint64_t i = 0; i < calls; i++)
    MUST(quay_buffer_copy_from(c->to, c->from));
}

static void raw_within(void *self, uint64_t calls) {
  const big_copy *const c = self;
  for (uint64_t i = 0; i < calls; i++) {
    CU_MUST(cu->cuMemcpyDtoDAsync_v2(c->raw_to, c->raw_from, c->size, c->stream));
    CU_MUST(cu->cuStreamSynchronize(c->stream));
  }
}

static void raw_peer(void *self, uint64_t calls) {
  const big_copy *const c = self;
  for (uint64_t i = 0; i < calls; i++) {
    CU_MUST(cu->cuMemcpyPeerAsync(c->raw_to, c->to_context, c->raw_from, c->from_context, c->size,
                                  c->stream));
    CU_MUST(cu->cuStreamSynchronize(c->stream));
  }
}

static void raw_peer_same(void *self, uint64_t calls) {
  const big_copy *const c = self;
  for (uint64_t i = 0; i < calls; i++) {
    CU_MUST(cu->cuMemcpyPeerAsync(c->same_to, c->to_context, c->same_from, c->from_context, c->size,
                                  c->stream));
    CU_MUST(cu->cuStreamSynchronize(c->stream));
  }
}

static const char *size_name(uint64_t size) {
  static char name[32];
  snprintf(name, sizeof name, "%llu MiB", (unsigned long long)(size / MIB));
  return name;
}

/* Once more between poisoned ends, each byte looked at. */
static void check(const big_copy *c) {
  unsigned char *const expected = malloc(c->size), *const found = malloc(c->size);
  REQUIRE(expected != NULL && found != NULL);
  bench_random(expected, c->size, c->size);
  memset(found, 0xee, c->size);
  MUST(quay_buffer_copy_in(c->from, expected, c->size));
  MUST(quay_buffer_fill(c->to, "\xa5", 1));
  MUST(quay_buffer_copy_from(c->to, c->from));
  MUST(quay_buffer_copy_out(c->to, found, c->size));
  REQUIRE(memcmp(expected, found, c->size) == 0);
  free(expected);
  free(found);
}

void bench_device(void) {
  static const uint64_t sizes[] = {16 * MIB, 256 * MIB, GIB};
  quay_allocator *const gpu = bench_open("cuda:0");
  big_copy c = {.size = 0};
  CU_MUST(cu->cuStreamCreate(&c.stream, CU_STREAM_NON_BLOCKING));
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    c.size = settings.smoke ? MIB + 3 : sizes[i];
    c.to = bench_buffer(gpu, c.size, NULL);
    c.from = bench_buffer(gpu, c.size, NULL);
    CU_MUST(cu->cuMemAlloc_v2(&c.raw_to, c.size));
    CU_MUST(cu->cuMemAlloc_v2(&c.raw_from, c.size));
    const bench_case one = {
        .group = "device",
        .name = size_name(c.size),
        .bytes = c.size,
        .calls = settings.smoke ? 1 : 20,
        .ways = {{.name = "quay", .run = quay_copy, .self = &c},
                 {.name = "raw", .run = raw_within, .self = &c}},
        .yardsticks = 1u << 1,
        .floor = c.size >= 256 * MIB ? 0.98 : 0,
    };
    bench_run(&one);
    check(&c);
    CU_MUST(cu->cuMemFree_v2(c.raw_to));
    CU_MUST(cu->cuMemFree_v2(c.raw_from));
    quay_buffer_release(c.to);
    quay_buffer_release(c.from);
  }
  CU_MUST(cu->cuStreamDestroy_v2(c.stream));
  quay_allocator_release(gpu);
}

/* Peers. */

typedef struct peer_side {
  quay_allocator *gpu;
  quay_stream *stream;
} peer_side;

typedef struct peer_kind {
  const char *name;
  bool ordered, exportable;
} peer_kind;

static const peer_kind kinds[] = {{.name = "plain"},
                                  {.name = "stream-ordered", .ordered = true},
                                  {.name = "exportable", .exportable = true}};

/* False where there is no such memory. */
static bool make_side(const peer_side *of, const peer_kind *kind, uint64_t size,
                      quay_buffer **out_buffer) {
  const quay_alloc_options options = {.stream = kind->ordered ? of->stream : NULL,
                                      .exportable = kind->exportable};
  const int64_t shape = (int64_t)size;
  const quay_status status = quay_buffer_create(of->gpu, QUAY_U8, 1, &shape, &options, out_buffer);
  if (status == QUAY_STATUS_UNSUPPORTED)
    return false;
  MUST(status);
  MUST(quay_buffer_fill(*out_buffer, "\x5a", 1));
  return true;
}

static CUdeviceptr raw_memory(int device, uint64_t size) {
  CUdeviceptr pointer = 0;
  CU_MUST(cu->cuCtxSetCurrent(contexts[device]));
  CU_MUST(cu->cuMemAlloc_v2(&pointer, size));
  return pointer;
}

static void run_peers(const peer_side *sides, int from, const peer_kind *kind, uint64_t size) {
  const int to = 1 - from;
  char name[64];
  big_copy c = {.size = size, .to_context = contexts[to], .from_context = contexts[from]};
  snprintf(name, sizeof name, "%s, cuda:%d to cuda:%d, %s", kind->name, from, to, size_name(size));
  if (!make_side(&sides[from], kind, size, &c.from)) {
    bench_skip("peer", name, quay_last_error()->message);
    return;
  }
  REQUIRE(make_side(&sides[to], kind, size, &c.to));
  c.same_to = bench_pointer(c.to);
  c.same_from = bench_pointer(c.from);
  c.raw_from = raw_memory(from, size);
  c.raw_to = raw_memory(to, size);
  CU_MUST(cu->cuStreamCreate(&c.stream, CU_STREAM_NON_BLOCKING));
  const bench_case one = {
      .group = "peer",
      .name = name,
      .bytes = size,
      .calls = settings.smoke ? 1 : 10,
      .ways = {{.name = "quay", .run = quay_copy, .self = &c},
               {.name = "raw", .run = raw_peer, .self = &c},
               {.name = "raw_same_memory", .run = raw_peer_same, .self = &c}},
      .yardsticks = 1u << 1,
      .floor = 0.98,
  };
  bench_run(&one);
  check(&c);
  CU_MUST(cu->cuStreamDestroy_v2(c.stream));
  CU_MUST(cu->cuMemFree_v2(c.raw_to));
  CU_MUST(cu->cuMemFree_v2(c.raw_from));
  quay_buffer_release(c.to);
  quay_buffer_release(c.from);
}

static void enable_peers(void) {
  for (int i = 0; i < 2; i++) {
    CU_MUST(cu->cuCtxSetCurrent(contexts[i]));
    const CUresult result = cu->cuCtxEnablePeerAccess(contexts[1 - i], 0);
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)
      bench_cuda_failed("cuCtxEnablePeerAccess", result);
  }
}

void bench_peer(void) {
  static const uint64_t sizes[] = {256 * MIB, GIB};
  int there = 0, back = 0;
  if (cu->devices < 2) {
    bench_skip("peer", "all", "the driver shows one device");
    return;
  }
  CU_MUST(cu->cuDeviceCanAccessPeer(&there, 0, 1));
  CU_MUST(cu->cuDeviceCanAccessPeer(&back, 1, 0));
  if (there == 0 || back == 0) {
    bench_skip("peer", "all", "the devices are no peers");
    return;
  }
  enable_peers();
  peer_side sides[2];
  for (int i = 0; i < 2; i++) {
    sides[i].gpu = bench_open(i == 0 ? "cuda:0" : "cuda:1");
    MUST(quay_stream_create(quay_allocator_device(sides[i].gpu), NULL, &sides[i].stream));
  }
  for (size_t kind = 0; kind < sizeof kinds / sizeof kinds[0]; kind++) {
    for (size_t i = 0; i < 2; i++) {
      const uint64_t size = settings.smoke ? MIB + 3 : sizes[i];
      run_peers(sides, 0, &kinds[kind], size);
      run_peers(sides, 1, &kinds[kind], size);
    }
  }
  for (int i = 0; i < 2; i++) {
    quay_stream_release(sides[i].stream);
    quay_allocator_release(sides[i].gpu);
  }
}
