/* What the tests of the CUDA backend on the simulated driver share: the driver's own functions, a
 * set-up, and a tear-down that wants nothing left in the driver. */
#ifndef QUAY_TESTS_UNIT_CUDA_FIXTURE_H
#define QUAY_TESTS_UNIT_CUDA_FIXTURE_H

#include <criterion/criterion.h>
#include <dlfcn.h>
#include <quay/quay.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sim_cuda/control.h"
#include "support/block.h"
#include "support/status.h"

/* The driver's own functions, as another library in the process would call them. */
typedef struct raw_driver {
  const simcuda_control *control;
  int (*init)(unsigned flags);
  int (*ctx_get)(void **context);
  int (*ctx_push)(void *context);
  int (*ctx_pop)(void **context);
  int (*ctx_create)(void **context, unsigned flags, int device);
  int (*ctx_destroy)(void *context);
  int (*mem_alloc)(uint64_t *pointer, size_t size);
  int (*mem_free)(uint64_t pointer);
  int (*retain)(void **context, int device);
  int (*release)(int device);
  int (*stream_create)(void **stream, unsigned flags);
  int (*stream_destroy)(void *stream);
  int (*begin_capture)(void *stream, int mode);
  int (*end_capture)(void *stream, void **graph);
  int (*graph_destroy)(void *graph);
} raw_driver;

static raw_driver raw;

static inline void find_driver(void) {
  raw.control = simcuda_control_get();
  cr_assert_not_null(raw.control, "the test needs the simulated driver");
#define FIND(field, name) *(void **)(void *)&raw.field = dlsym(raw.control->library, name)
  FIND(init, "cuInit");
  FIND(ctx_get, "cuCtxGetCurrent");
  FIND(ctx_push, "cuCtxPushCurrent_v2");
  FIND(ctx_pop, "cuCtxPopCurrent_v2");
  FIND(ctx_create, "cuCtxCreate_v2");
  FIND(ctx_destroy, "cuCtxDestroy_v2");
  FIND(mem_alloc, "cuMemAlloc_v2");
  FIND(mem_free, "cuMemFree_v2");
  FIND(retain, "cuDevicePrimaryCtxRetain");
  FIND(release, "cuDevicePrimaryCtxRelease_v2");
  FIND(stream_create, "cuStreamCreate");
  FIND(stream_destroy, "cuStreamDestroy_v2");
  FIND(begin_capture, "cuStreamBeginCapture_v2");
  FIND(end_capture, "cuStreamEndCapture");
  FIND(graph_destroy, "cuGraphDestroy");
#undef FIND
}

static inline void setup(void) {
  find_driver();
  cr_assert_eq(raw.init(0), 0);
}

static inline void teardown(void) {
  CHECK_OK(quay_shutdown());
  simcuda_census left;
  raw.control->count(&left);
  cr_expect_eq(left.device_bytes, 0, "%llu bytes of device memory are left",
               (unsigned long long)left.device_bytes);
  cr_expect_eq(left.host_bytes, 0, "%llu bytes of pinned memory are left",
               (unsigned long long)left.host_bytes);
  cr_expect_eq(left.streams + left.events + left.retains, 0,
               "%llu streams, %llu events, %llu retains are left", (unsigned long long)left.streams,
               (unsigned long long)left.events, (unsigned long long)left.retains);
  cr_expect_eq(left.handles + left.mappings + left.reservations, 0,
               "%llu handles, %llu mappings, %llu reservations are left",
               (unsigned long long)left.handles, (unsigned long long)left.mappings,
               (unsigned long long)left.reservations);
  simcuda_violation violation = {.message = ""};
  cr_expect_eq(raw.control->violations(&violation, 1), 0, "%s", violation.message);
}

static inline quay_allocator *open_spec(const char *spec) {
  quay_allocator *allocator = NULL;
  CHECK_OK(quay_allocator_open(spec, &allocator));
  return allocator;
}

static inline quay_buffer *make_buffer(quay_allocator *allocator, uint64_t size,
                                       const quay_alloc_options *options) {
  const int64_t shape[] = {(int64_t)size};
  quay_buffer *buffer = NULL;
  CHECK_OK(quay_buffer_create(allocator, QUAY_U8, 1, shape, options, &buffer));
  return buffer;
}

static inline void check_bytes(const quay_buffer *buffer, const void *expected) {
  const uint64_t size = quay_buffer_size(buffer);
  unsigned char *found = malloc(size);
  CHECK_OK(quay_buffer_copy_out(buffer, found, size));
  cr_assert_arr_eq(found, expected, size);
  free(found);
}

static inline void *current_context(void) {
  void *context = NULL;
  /* One call may be made to fail. */
  cr_assert(raw.ctx_get(&context) == 0 || raw.ctx_get(&context) == 0);
  return context;
}

/* In a child: prints what does not hold. */
static inline bool holds(bool condition, const char *what) {
  if (!condition)
    fprintf(stderr, "does not hold: %s; last error: %s\n", what, quay_last_error()->message);
  return condition;
}
#define HOLDS(condition) holds((condition), #condition)

static inline bool succeeds_in_child(bool (*body)(void)) {
  fflush(NULL);
  const pid_t child = fork();
  if (child == 0)
    _exit(body() ? 0 : 1);
  int status = 1;
  return waitpid(child, &status, 0) == child && status == 0;
}

static inline bool no_violations(void) {
  simcuda_violation violation = {.message = ""};
  const size_t count = raw.control->violations(&violation, 1);
  if (count != 0)
    fprintf(stderr, "%s\n", violation.message);
  return HOLDS(count == 0);
}

#endif
