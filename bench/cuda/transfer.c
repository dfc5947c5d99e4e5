/* Large copies between host memory, files and the device, beside the limit: the same bytes between
 * pinned memory and the device. Random bytes; the destination is poisoned before each round and
 * every byte of it looked at after it. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench_cuda.h"

typedef struct transfer {
  uint64_t size;
  unsigned char *bytes;    /* what is copied, in pageable memory */
  unsigned char *pageable; /* a destination */
  unsigned char *pinned;
  quay_buffer *device;
  CUdeviceptr pointer;
  quay_buffer *in_file, *out_file; /* mapped */
  char in_path[4096], out_path[4096];
  CUstream stream;
} transfer;

/* Poison, and looking at the bytes. */

static void poison_device(void *self) {
  const transfer *const t = self;
  CU_MUST(cu->cuMemsetD8_v2(t->pointer, 0xa5, t->size));
  CU_MUST(cu->cuCtxSynchronize());
}

static void check_device(void *self) {
  const transfer *const t = self;
  CU_MUST(cu->cuMemcpyDtoHAsync_v2(t->pinned, t->pointer, t->size, t->stream));
  CU_MUST(cu->cuStreamSynchronize(t->stream));
  REQUIRE(memcmp(t->pinned, t->bytes, t->size) == 0);
}

static void refill_pinned(void *self) {
  const transfer *const t = self;
  memcpy(t->pinned, t->bytes, t->size);
  poison_device(self);
}

/* The device holds the bytes; the destination is poisoned. */
static void fill_device(void *self) {
  const transfer *const t = self;
  memcpy(t->pinned, t->bytes, t->size);
  CU_MUST(cu->cuMemcpyHtoDAsync_v2(t->pointer, t->pinned, t->size, t->stream));
  CU_MUST(cu->cuStreamSynchronize(t->stream));
  memset(t->pinned, 0xee, t->size);
}

static void fill_device_and_poison_pageable(void *self) {
  const transfer *const t = self;
  fill_device(self);
  memset(t->pageable, 0xee, t->size);
}

static void check_pinned(void *self) {
  const transfer *const t = self;
  REQUIRE(memcmp(t->pinned, t->bytes, t->size) == 0);
}

static void check_pageable(void *self) {
  const transfer *const t = self;
  REQUIRE(memcmp(t->pageable, t->bytes, t->size) == 0);
}

static void fill_device_and_poison_file(void *self) {
  const transfer *const t = self;
  fill_device(self);
  MUST(quay_buffer_fill(t->out_file, "\xee", 1));
}

/* Through the file's descriptor, not the mapping. */
static void check_file(void *self) {
  const transfer *const t = self;
  const int file = open(t->out_path, O_RDONLY | O_CLOEXEC);
  REQUIRE(file >= 0);
  memset(t->pageable, 0x11, t->size);
  for (uint64_t done = 0; done < t->size;) {
    const ssize_t part = pread(file, t->pageable + done, t->size - done, (off_t)done);
    REQUIRE(part > 0);
    done += (uint64_t)part;
  }
  (void)close(file);
  check_pageable(self);
}

/* The ways. */

static void limit_in(void *self, uint64_t calls) {
  const transfer *const t = self;
  for (uint64_t i = 0; i < calls; i++) {
    CU_MUST(cu->cuMemcpyHtoDAsync_v2(t->pointer, t->pinned, t->size, t->stream));
    CU_MUST(cu->cuStreamSynchronize(t->stream));
  }
}

static void limit_out(void *self, uint64_t calls) {
  const transfer *const t = self;
  for (uint64_t i = 0; i < calls; i++) {
    CU_MUST(cu->cuMemcpyDtoHAsync_v2(t->pinned, t->pointer, t->size, t->stream));
    CU_MUST(cu->cuStreamSynchronize(t->stream));
  }
}

static void quay_in(void *self, uint64_t calls) {
  const transfer *const t = self;
  for (uint64_t i = 0; i < calls; i++)
    MUST(quay_buffer_copy_in(t->device, t->bytes, t->size));
}

static void raw_in(void *self, uint64_t calls) {
  const transfer *const t = self;
  for (uint64_t i = 0; i < calls; i++) {
    CU_MUST(cu->cuMemcpyHtoD_v2(t->pointer, t->bytes, t->size));
    CU_MUST(cu->cuStreamSynchronize(NULL));
  }
}

static void quay_out(void *self, uint64_t calls) {
  const transfer *const t = self;
  for (uint64_t i = 0; i < calls; i++)
    MUST(quay_buffer_copy_out(t->device, t->pageable, t->size));
}

static void raw_out(void *self, uint64_t calls) {
  const transfer *const t = self;
  for (uint64_t i = 0; i < calls; i++)
    CU_MUST(cu->cuMemcpyDtoH_v2(t->pageable, t->pointer, t->size));
}

static void quay_from_file(void *self, uint64_t calls) {
  const transfer *const t = self;
  for (uint64_t i = 0; i < calls; i++)
    MUST(quay_buffer_copy_from(t->device, t->in_file));
}

static void quay_to_file(void *self, uint64_t calls) {
  const transfer *const t = self;
  for (uint64_t i = 0; i < calls; i++)
    MUST(quay_buffer_copy_from(t->out_file, t->device));
}

/* Setting up. */

/* As programs write files: what page faults of a mapping make is in the page cache in smaller
 * pieces, which are read more slowly. */
static void write_file(const transfer *t) {
  const int file = open(t->in_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  REQUIRE(file >= 0);
  for (uint64_t done = 0; done < t->size;) {
    const uint64_t left = t->size - done;
    const ssize_t part = write(file, t->bytes + done, left < 1024 * KIB ? left : 1024 * KIB);
    REQUIRE(part > 0);
    done += (uint64_t)part;
  }
  REQUIRE(close(file) == 0);
}

static void make_files(transfer *t) {
  snprintf(t->in_path, sizeof t->in_path, "%s/bench_cuda_%ld_in", settings.directory,
           (long)getpid());
  snprintf(t->out_path, sizeof t->out_path, "%s/bench_cuda_%ld_out", settings.directory,
           (long)getpid());
  write_file(t);
  MUST(quay_map_file(t->in_path, NULL, &t->in_file));
  MUST(quay_file_create(t->out_path, t->size, NULL, &t->out_file));
  MUST(quay_buffer_fill(t->out_file, "\xee", 1)); /* its pages are there */
}

static void remove_files(const transfer *t) {
  quay_buffer_release(t->in_file);
  quay_buffer_release(t->out_file);
  (void)unlink(t->in_path);
  (void)unlink(t->out_path);
}

static void print_plan(const char *what, const quay_buffer *to, const quay_buffer *from) {
  quay_copy_plan_info plan;
  MUST(quay_copy_plan(to, 0, from, 0, quay_buffer_size(from), NULL, &plan));
  printf("          %s: %s, pieces of %llu KiB, %u threads: %s\n", what,
         quay_route_name(plan.route), (unsigned long long)(plan.chunk / KIB), plan.threads,
         plan.reason);
}

static void run_in(transfer *t) {
  print_plan("file to device", t->device, t->in_file);
  const bench_case pageable = {
      .group = "transfer",
      .name = "pageable to device",
      .bytes = t->size,
      .calls = 1,
      .ways = {{"quay", quay_in, poison_device, check_device, t},
               {"pinned_limit", limit_in, refill_pinned, check_device, t},
               {"raw", raw_in, poison_device, check_device, t}},
      .yardsticks = 1u << 1,
      .floor = 0.92,
  };
  bench_run(&pageable);
  const bench_case file = {
      .group = "transfer",
      .name = "file in page cache to device",
      .bytes = t->size,
      .calls = 1,
      .ways = {{"quay", quay_from_file, poison_device, check_device, t},
               {"pinned_limit", limit_in, refill_pinned, check_device, t}},
      .yardsticks = 1u << 1,
      .floor = 0.87,
  };
  bench_run(&file);
}

static void run_out(transfer *t) {
  print_plan("device to file", t->out_file, t->device);
  const bench_case pageable = {
      .group = "transfer",
      .name = "device to pageable",
      .bytes = t->size,
      .calls = 1,
      .ways = {{"quay", quay_out, fill_device_and_poison_pageable, check_pageable, t},
               {"pinned_limit", limit_out, fill_device, check_pinned, t},
               {"raw", raw_out, fill_device_and_poison_pageable, check_pageable, t}},
      .yardsticks = 1u << 1,
      .floor = 0.92,
  };
  bench_run(&pageable);
  const bench_case file = {
      .group = "transfer",
      .name = "device to file in page cache",
      .bytes = t->size,
      .calls = 1,
      .ways = {{"quay", quay_to_file, fill_device_and_poison_file, check_file, t},
               {"pinned_limit", limit_out, fill_device, check_pinned, t}},
      .yardsticks = 1u << 1,
  };
  bench_run(&file);
}

void bench_transfer(void) {
  transfer t = {.size = settings.big_bytes};
  quay_allocator *const gpu = bench_open("cuda:0");
  t.bytes = bench_host_memory(t.size);
  t.pageable = bench_host_memory(t.size);
  bench_random(t.bytes, t.size, 17);
  CU_MUST(cu->cuMemHostAlloc((void **)&t.pinned, t.size, CU_MEMHOSTALLOC_PORTABLE));
  CU_MUST(cu->cuStreamCreate(&t.stream, CU_STREAM_NON_BLOCKING));
  t.device = bench_buffer(gpu, t.size, NULL);
  t.pointer = bench_pointer(t.device);
  make_files(&t);
  if (settings.rounds > 7)
    settings.rounds = 7;
  run_in(&t);
  run_out(&t);
  remove_files(&t);
  quay_buffer_release(t.device);
  CU_MUST(cu->cuStreamDestroy_v2(t.stream));
  CU_MUST(cu->cuMemFreeHost(t.pinned));
  quay_allocator_release(gpu);
}
