/* Many host threads at once: the simulator's own soundness, also under ThreadSanitizer. */
#include <pthread.h>

#include "fixture.h"

enum {
  THREADS = 6,
  ROUNDS = 25,
  SIZE = 3000,
};

typedef struct worker {
  CUcontext context;
  unsigned seed;
} worker;

/* Up on one stream, across to other memory on a second, down on the first: with events between. */
static void round_trip(CUstream up, CUstream across, unsigned char *pinned, unsigned seed) {
  CUdeviceptr first;
  CUdeviceptr second;
  CUevent there;
  CUevent back;
  ok(cu.cuMemAllocAsync(&first, SIZE, up));
  ok(cu.cuMemAlloc_v2(&second, SIZE));
  ok(cu.cuEventCreate(&there, CU_EVENT_DISABLE_TIMING));
  ok(cu.cuEventCreate(&back, CU_EVENT_DISABLE_TIMING));
  fill_bytes(pinned, SIZE, seed);
  ok(cu.cuMemcpyHtoDAsync_v2(first, pinned, SIZE, up));
  ok(cu.cuEventRecord(there, up));
  ok(cu.cuStreamWaitEvent(across, there, 0));
  ok(cu.cuMemcpyDtoDAsync_v2(second, first, SIZE, across));
  ok(cu.cuEventRecord(back, across));
  ok(cu.cuStreamWaitEvent(up, back, 0));
  ok(cu.cuMemFreeAsync(first, up));
  ok(cu.cuMemsetD8Async((CUdeviceptr)(uintptr_t)pinned, 0, SIZE, up));
  ok(cu.cuMemcpyDtoHAsync_v2(pinned, second, SIZE, up));
  ok(cu.cuStreamSynchronize(up));
  check_bytes(pinned, SIZE, seed);
  ok(cu.cuMemFree_v2(second));
  ok(cu.cuEventDestroy_v2(there));
  ok(cu.cuEventDestroy_v2(back));
}

static void *work(void *argument) {
  const worker *const w = argument;
  ok(cu.cuCtxPushCurrent_v2(w->context));
  unsigned char *const pinned = pinned_memory(SIZE);
  CUstream streams[2] = {non_blocking_stream(), non_blocking_stream()};
  for (unsigned i = 0; i < ROUNDS; i++)
    round_trip(streams[i % 2], streams[1 - i % 2], pinned, w->seed + i);
  ok(cu.cuCtxSynchronize());
  ok(cu.cuStreamDestroy_v2(streams[0]));
  ok(cu.cuStreamDestroy_v2(streams[1]));
  ok(cu.cuMemFreeHost(pinned));
  return NULL;
}

static void work_in_threads(const char *settings) {
  worker workers[THREADS];
  pthread_t threads[THREADS];
  CUcontext contexts[2] = {start(settings), use_device(1)};
  for (unsigned i = 0; i < THREADS; i++) {
    workers[i] = (worker){.context = contexts[i % 2], .seed = i * 100};
    cr_assert_eq(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
  }
  for (unsigned i = 0; i < THREADS; i++)
    pthread_join(threads[i], NULL);
  simcuda_census census;
  simcuda->count(&census);
  cr_assert(census.allocations == 0 && census.device_bytes == 0 && census.streams == 0 &&
            census.events == 0);
  expect_no_violation();
}

Test(threads, threads_with_streams_of_their_own_get_their_own_bytes) {
  work_in_threads("SIMCUDA_DELAY=20");
}

Test(threads, also_when_they_run_each_others_operations) {
  work_in_threads("SIMCUDA_SCHEDULE=manual SIMCUDA_EAGER=30");
}

Test(threads, also_when_each_knows_its_own_waits_only) {
  work_in_threads("SIMCUDA_HOST_THREADS=apart SIMCUDA_DELAY=20");
}
