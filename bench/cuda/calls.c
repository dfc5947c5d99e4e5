/* What a call costs beside the driver's own: contexts, accesses, allocation. */
#include <stdio.h>

#include "bench_cuda.h"

typedef struct calls_on {
  quay_allocator *gpu;
  quay_stream *streams[2];
  quay_buffer *a, *b;
  CUstream raw_stream;
  CUevent event;
  uint64_t size;
  quay_alloc_options options;
  unsigned turn;
} calls_on;

/* Contexts: what Quay does around each call, and two calls that do little else. */

static void raw_push_pop(void *self, uint64_t calls) {
  (void)self;
  for (uint64_t i = 0; i < calls; i++) {
    CUcontext popped = NULL;
    CU_MUST(cu->cuCtxPushCurrent_v2(contexts[0]));
    CU_MUST(cu->cuCtxPopCurrent_v2(&popped));
  }
}

static void context_handling(void *self, uint64_t calls) {
  (void)self;
  for (uint64_t i = 0; i < calls; i++) {
    CUcontext popped = NULL;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CU_MUST(cu->cuCtxPushCurrent_v2(contexts[0]));
    CU_MUST(cu->cuThreadExchangeStreamCaptureMode(&mode));
    CU_MUST(cu->cuThreadExchangeStreamCaptureMode(&mode));
    CU_MUST(cu->cuCtxPopCurrent_v2(&popped));
  }
}

static void quay_wait(void *self, uint64_t calls) {
  const calls_on *const c = self;
  for (uint64_t i = 0; i < calls; i++)
    MUST(quay_stream_synchronize(c->streams[0]));
}

static void raw_wait(void *self, uint64_t calls) {
  const calls_on *const c = self;
  for (uint64_t i = 0; i < calls; i++)
    CU_MUST(cu->cuStreamSynchronize(c->raw_stream));
}

static void quay_record(void *self, uint64_t calls) {
  const calls_on *const c = self;
  for (uint64_t i = 0; i < calls; i++) {
    quay_event *event = NULL;
    MUST(quay_event_record(c->streams[0], &event));
    quay_event_release(event);
  }
}

static void raw_record(void *self, uint64_t calls) {
  const calls_on *const c = self;
  for (uint64_t i = 0; i < calls; i++)
    CU_MUST(cu->cuEventRecord(c->event, c->raw_stream));
}

/* Accesses. */

static void access_once(const calls_on *c, quay_stream *stream) {
  const quay_use uses[] = {{c->a, QUAY_READ}, {c->b, QUAY_WRITE}};
  quay_access access;
  MUST(quay_access_begin(stream, uses, 2, &access));
  MUST(quay_access_end(&access));
}

static void access_one_stream(void *self, uint64_t calls) {
  for (uint64_t i = 0; i < calls; i++)
    access_once(self, ((const calls_on *)self)->streams[0]);
}

static void access_in_turn(void *self, uint64_t calls) {
  calls_on *const c = self;
  for (uint64_t i = 0; i < calls; i++)
    access_once(c, c->streams[c->turn++ & 1]);
}

/* The next way begins with empty streams. */
static void drain(void *self) {
  const calls_on *const c = self;
  for (int i = 0; i < 2; i++)
    MUST(quay_stream_synchronize(c->streams[i]));
  CU_MUST(cu->cuStreamSynchronize(c->raw_stream));
}

static void run_call(calls_on *c, const char *name, bench_way quay, bench_way raw, double floor,
                     double most_ns) {
  bench_case one = {
      .group = "calls",
      .name = name,
      .calls = settings.smoke ? 2 : 5000,
      .ways = {quay, raw},
      .yardsticks = raw.run != NULL ? 1u << 1 : 0,
      .floor = floor,
      .most_ns = most_ns,
  };
  for (int i = 0; i < 2; i++) {
    one.ways[i].self = c;
    one.ways[i].after = drain;
  }
  bench_run(&one);
}

static void begin_calls(calls_on *c) {
  *c = (calls_on){.gpu = bench_open("cuda:0")};
  quay_device *const device = quay_allocator_device(c->gpu);
  for (int i = 0; i < 2; i++)
    MUST(quay_stream_create(device, NULL, &c->streams[i]));
  c->a = bench_buffer(c->gpu, 4096, NULL);
  c->b = bench_buffer(c->gpu, 4096, NULL);
  CU_MUST(cu->cuStreamCreate(&c->raw_stream, CU_STREAM_NON_BLOCKING));
  CU_MUST(cu->cuEventCreate(&c->event, CU_EVENT_DISABLE_TIMING));
}

static void end_calls(calls_on *c) {
  CU_MUST(cu->cuEventDestroy_v2(c->event));
  CU_MUST(cu->cuStreamDestroy_v2(c->raw_stream));
  quay_buffer_release(c->a);
  quay_buffer_release(c->b);
  for (int i = 0; i < 2; i++)
    quay_stream_release(c->streams[i]);
  quay_allocator_release(c->gpu);
}

void bench_calls(void) {
  calls_on c;
  const bench_way none = {.name = NULL};
  begin_calls(&c);
  run_call(&c, "context push and pop", (bench_way){.name = "raw", .run = raw_push_pop}, none, 0, 0);
  run_call(&c, "context handling of one call of Quay's",
           (bench_way){.name = "quay", .run = context_handling}, none, 0, 100);
  run_call(&c, "waiting for an idle stream", (bench_way){.name = "quay", .run = quay_wait},
           (bench_way){.name = "raw", .run = raw_wait}, 0, 0);
  run_call(&c, "recording an event", (bench_way){.name = "quay", .run = quay_record},
           (bench_way){.name = "raw", .run = raw_record}, 0, 0);
  run_call(&c, "access of two buffers", (bench_way){.name = "quay", .run = access_one_stream},
           (bench_way){.name = "raw_event", .run = raw_record}, 0, 1500);
  run_call(&c, "access of two buffers, two streams in turn",
           (bench_way){.name = "quay", .run = access_in_turn},
           (bench_way){.name = "raw_event", .run = raw_record}, 0, 0);
  end_calls(&c);
}

/* Allocation. */

static void quay_alloc_free(void *self, uint64_t calls) {
  const calls_on *const c = self;
  for (uint64_t i = 0; i < calls; i++) {
    quay_raw_buffer raw;
    MUST(quay_allocator_alloc(c->gpu, c->size, &c->options, &raw));
    quay_raw_buffer_free(&raw);
  }
}

static void raw_alloc_free(void *self, uint64_t calls) {
  const calls_on *const c = self;
  for (uint64_t i = 0; i < calls; i++) {
    CUdeviceptr pointer = 0;
    CU_MUST(cu->cuMemAlloc_v2(&pointer, c->size));
    CU_MUST(cu->cuMemFree_v2(pointer));
  }
}

static void raw_alloc_free_async(void *self, uint64_t calls) {
  const calls_on *const c = self;
  for (uint64_t i = 0; i < calls; i++) {
    CUdeviceptr pointer = 0;
    CU_MUST(cu->cuMemAllocAsync(&pointer, c->size, c->raw_stream));
    CU_MUST(cu->cuMemFreeAsync(pointer, c->raw_stream));
  }
}

static void run_alloc(calls_on *c, const char *what, bool ordered) {
  char name[64];
  snprintf(name, sizeof name, "%s, %llu KiB", what, (unsigned long long)(c->size / KIB));
  const bench_case one = {
      .group = "alloc",
      .name = name,
      .calls = settings.smoke ? 2 : 50,
      .ways = {{.name = "quay", .run = quay_alloc_free, .self = c},
               {.name = "cuMemAlloc", .run = raw_alloc_free, .self = c},
               {.name = "cuMemAllocAsync", .run = raw_alloc_free_async, .self = c}},
      .yardsticks = ordered ? 1u << 2 : 1u << 1,
  };
  bench_run(&one);
}

static void wait_for_raw_stream(void *self) {
  CU_MUST(cu->cuStreamSynchronize(((const calls_on *)self)->raw_stream));
}

/* What a pool hands out again, beside the driver's own pool: enough calls in a row that both are at
 * it, as in a program that does nothing else. */
static void run_hit(calls_on *c, const char *what, double floor) {
  char name[96];
  snprintf(name, sizeof name, "%s, %llu KiB", what, (unsigned long long)(c->size / KIB));
  const bench_case one = {
      .group = "alloc",
      .name = name,
      .calls = settings.smoke ? 2 : settings.pairs,
      .ways = {{.name = "quay", .run = quay_alloc_free, .self = c},
               {.name = "cuMemAllocAsync",
                .run = raw_alloc_free_async,
                .after = wait_for_raw_stream,
                .self = c}},
      .yardsticks = 1u << 1,
      .floor = floor,
  };
  bench_run(&one);
}

static void run_pool(uint64_t size) {
  calls_on c = {.size = size};
  if (quay_allocator_open("pool+cuda:0", &c.gpu) != QUAY_OK) {
    bench_skip("alloc", "pool", quay_last_error()->message);
    return;
  }
  CU_MUST(cu->cuStreamCreate(&c.raw_stream, CU_STREAM_NON_BLOCKING));
  MUST(quay_stream_create(quay_allocator_device(c.gpu), NULL, &c.streams[0]));
  run_hit(&c, "pool", 1.0 / 20);
  c.options.stream = c.streams[0];
  run_hit(&c, "pool, on a stream", 1.0 / 20);
  REQUIRE(quay_stream_native(c.streams[0]) != 0); /* from here on it may capture a graph */
  run_hit(&c, "pool, on a stream whose handle is known", 0);
  quay_stream_release(c.streams[0]);
  CU_MUST(cu->cuStreamDestroy_v2(c.raw_stream));
  quay_allocator_release(c.gpu);
}

void bench_alloc(void) {
  static const uint64_t sizes[] = {64 * KIB, MIB, 20 * MIB, 256 * MIB};
  calls_on c;
  begin_calls(&c);
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    c.size = settings.smoke ? 4096 : sizes[i];
    c.options = (quay_alloc_options){.stream = NULL};
    run_alloc(&c, "alloc and free", false);
    c.options.stream = c.streams[0];
    run_alloc(&c, "alloc and free, stream-ordered", true);
    run_pool(c.size);
  }
  end_calls(&c);
}
