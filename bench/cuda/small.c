/* Small copies, 64 bytes to 64 KiB. Quay's are finished on return, and so is their yardstick: the
 * faster one of what a program would write with the driver. */
#include <stdio.h>
#include <string.h>

#include "bench_cuda.h"

typedef struct copy {
  uint64_t size;
  quay_buffer *device, *pinned;
  CUdeviceptr pointer;
  unsigned char *host; /* pageable */
  unsigned char *slot; /* pinned, the yardstick's own */
  CUstream stream;
} copy;

static void quay_in(void *self, uint64_t calls) {
  const copy *const c = self;
  for (uint64_t i = 0; i < calls; i++)
    MUST(quay_buffer_copy_in(c->device, c->host, c->size));
}

/* Returns once the bytes are staged, not once they have arrived. */
static void raw_in(void *self, uint64_t calls) {
  const copy *const c = self;
  for (uint64_t i = 0; i < calls; i++)
    CU_MUST(cu->cuMemcpyHtoD_v2(c->pointer, c->host, c->size));
}

static void raw_in_waited(void *self, uint64_t calls) {
  const copy *const c = self;
  for (uint64_t i = 0; i < calls; i++) {
    CU_MUST(cu->cuMemcpyHtoD_v2(c->pointer, c->host, c->size));
    CU_MUST(cu->cuStreamSynchronize(NULL));
  }
}

static void raw_in_slot(void *self, uint64_t calls) {
  const copy *const c = self;
  for (uint64_t i = 0; i < calls; i++) {
    memcpy(c->slot, c->host, c->size);
    CU_MUST(cu->cuMemcpyHtoDAsync_v2(c->pointer, c->slot, c->size, c->stream));
    CU_MUST(cu->cuStreamSynchronize(c->stream));
  }
}

static void quay_out(void *self, uint64_t calls) {
  const copy *const c = self;
  for (uint64_t i = 0; i < calls; i++)
    MUST(quay_buffer_copy_out(c->device, c->host, c->size));
}

static void raw_out(void *self, uint64_t calls) {
  const copy *const c = self;
  for (uint64_t i = 0; i < calls; i++)
    CU_MUST(cu->cuMemcpyDtoH_v2(c->host, c->pointer, c->size));
}

static void raw_out_slot(void *self, uint64_t calls) {
  const copy *const c = self;
  for (uint64_t i = 0; i < calls; i++) {
    CU_MUST(cu->cuMemcpyDtoHAsync_v2(c->slot, c->pointer, c->size, c->stream));
    CU_MUST(cu->cuStreamSynchronize(c->stream));
    memcpy(c->host, c->slot, c->size);
  }
}

static void quay_from_pinned(void *self, uint64_t calls) {
  const copy *const c = self;
  for (uint64_t i = 0; i < calls; i++)
    MUST(quay_buffer_copy_from(c->device, c->pinned));
}

static void raw_from_pinned(void *self, uint64_t calls) {
  const copy *const c = self;
  for (uint64_t i = 0; i < calls; i++) {
    CU_MUST(cu->cuMemcpyHtoDAsync_v2(c->pointer, c->slot, c->size, c->stream));
    CU_MUST(cu->cuStreamSynchronize(c->stream));
  }
}

static void quay_to_pinned(void *self, uint64_t calls) {
  const copy *const c = self;
  for (uint64_t i = 0; i < calls; i++)
    MUST(quay_buffer_copy_from(c->pinned, c->device));
}

static void raw_to_pinned(void *self, uint64_t calls) {
  const copy *const c = self;
  for (uint64_t i = 0; i < calls; i++) {
    CU_MUST(cu->cuMemcpyDtoHAsync_v2(c->slot, c->pointer, c->size, c->stream));
    CU_MUST(cu->cuStreamSynchronize(c->stream));
  }
}

static void run(const char *what, copy *c, const bench_way *ways, size_t count,
                unsigned yardsticks) {
  char name[64];
  bench_case one = {
      .group = "small",
      .name = name,
      .calls = settings.smoke ? 2 : 2000,
      .yardsticks = yardsticks,
      .floor = 1.2,
  };
  snprintf(name, sizeof name, "%s, %llu bytes", what, (unsigned long long)c->size);
  for (size_t i = 0; i < count; i++) {
    one.ways[i] = ways[i];
    one.ways[i].self = c;
  }
  bench_run(&one);
}

/* There and back once more, each byte looked at. */
static void check(const copy *c) {
  bench_random(c->host, c->size, c->size);
  MUST(quay_buffer_fill(c->device, "\xa5", 1));
  MUST(quay_buffer_copy_in(c->device, c->host, c->size));
  memset(c->slot, 0xee, c->size);
  CU_MUST(cu->cuMemcpyDtoH_v2(c->slot, c->pointer, c->size));
  REQUIRE(memcmp(c->slot, c->host, c->size) == 0);
  memset(c->host, 0x33, c->size);
  MUST(quay_buffer_copy_out(c->device, c->host, c->size));
  REQUIRE(memcmp(c->slot, c->host, c->size) == 0);
}

static void run_size(quay_allocator *gpu, quay_allocator *pinned, copy *c, uint64_t size) {
  static const bench_way in[] = {{.name = "quay", .run = quay_in},
                                 {.name = "raw_unfinished", .run = raw_in},
                                 {.name = "raw_waited", .run = raw_in_waited},
                                 {.name = "raw_slot", .run = raw_in_slot}};
  static const bench_way out[] = {{.name = "quay", .run = quay_out},
                                  {.name = "raw", .run = raw_out},
                                  {.name = "raw_slot", .run = raw_out_slot}};
  static const bench_way from[] = {{.name = "quay", .run = quay_from_pinned},
                                   {.name = "raw", .run = raw_from_pinned}};
  static const bench_way to[] = {{.name = "quay", .run = quay_to_pinned},
                                 {.name = "raw", .run = raw_to_pinned}};
  c->size = size;
  c->device = bench_buffer(gpu, size, NULL);
  c->pinned = bench_buffer(pinned, size, NULL);
  c->pointer = bench_pointer(c->device);
  run("pageable in", c, in, 4, 1u << 2 | 1u << 3);
  run("pageable out", c, out, 3, 1u << 1 | 1u << 2);
  run("pinned in", c, from, 2, 1u << 1);
  run("pinned out", c, to, 2, 1u << 1);
  check(c);
  quay_buffer_release(c->device);
  quay_buffer_release(c->pinned);
}

void bench_small(void) {
  static const uint64_t sizes[] = {64, 256, 1024, 4096, 16384, 65536};
  copy c = {.host = bench_host_memory(64 * KIB)};
  quay_allocator *const gpu = bench_open("cuda:0");
  quay_allocator *const pinned = bench_open("cuda:0,memory=pinned");
  CU_MUST(cu->cuMemHostAlloc((void **)&c.slot, 64 * KIB, CU_MEMHOSTALLOC_PORTABLE));
  CU_MUST(cu->cuStreamCreate(&c.stream, CU_STREAM_NON_BLOCKING));
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
    run_size(gpu, pinned, &c, sizes[i]);
  CU_MUST(cu->cuStreamDestroy_v2(c.stream));
  CU_MUST(cu->cuMemFreeHost(c.slot));
  quay_allocator_release(gpu);
  quay_allocator_release(pinned);
}
