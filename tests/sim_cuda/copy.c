/* Copies and fills. When they return is as the driver documents ("API synchronization behavior"):
 * pageable memory is staged first, and a synchronous copy from it returns before its bytes have
 * reached the device; copies within devices and fills of device memory return at once. */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

typedef struct request {
  const char *what;
  CUdeviceptr to, from;
  sim_rule to_rule, from_rule;
  size_t bytes;
  CUstream stream;
  bool synchronous;
} request;

static sim_span span_of(unsigned char *bytes, uint64_t size) {
  sim_span span = {.size = size, .address = (uint64_t)(uintptr_t)bytes};
  span.segments = sim_grow(NULL, 0, &span.capacity, sizeof *span.segments);
  span.segments[span.count++] = (sim_segment){.host = bytes, .size = size};
  return span;
}

/* The stream of a handle, for work in the current context. */
static sim_stream *stream_for_work(CUstream handle, CUresult *out_error) {
  sim_stream *const stream = sim_stream_of(handle, out_error);
  if (stream != NULL && stream->context != sim_current()) {
    *out_error = CUDA_ERROR_INVALID_HANDLE;
    return NULL;
  }
  return stream;
}

static CUresult find_ends(const request *r, sim_span *to, sim_span *from) {
  sim_context *const context = sim_current();
  CUresult error = sim_span_find(from, r->what, context, r->from, r->bytes, false, r->from_rule);
  if (error != CUDA_SUCCESS)
    return error;
  error = sim_span_find(to, r->what, context, r->to, r->bytes, true, r->to_rule);
  if (error != CUDA_SUCCESS)
    sim_span_free(from);
  return error;
}

static void report_overlap(const request *r) {
  if (r->to < r->from + r->bytes && r->from < r->to + r->bytes)
    sim_report(SIMCUDA_OVERLAP, "%s: the %zu bytes at 0x%llx and 0x%llx overlap", r->what, r->bytes,
               r->to, r->from);
}

static void wait_for(sim_stream *stream) {
  sim_clock clock = {.count = 0};
  sim_clock_join(&clock, &stream->clock);
  sim_wait(stream, stream->submitted, &clock);
  sim_clock_free(&clock);
}

/* Submits the copy and waits where the driver does. Takes over the spans. */
static CUresult submit_copy(const request *r, sim_stream *stream, sim_span to, sim_span from) {
  const bool to_pageable = sim_span_is_pageable(&to);
  const bool from_pageable = sim_span_is_pageable(&from);
  const bool to_host = sim_span_is_host(&to);
  const bool from_host = sim_span_is_host(&from);
  const sim_actor actor = sim_stream_actor(stream, r->what);
  sim_span_access(&from, false, &actor);
  sim_span_access(&to, true, &actor);
  sim_op *const op = sim_op_new(r->what);
  if (from_pageable) {
    op->staging = sim_new(r->bytes);
    const sim_span staging = span_of(op->staging, r->bytes);
    sim_span_copy(&staging, &from);
    sim_span_free(&from);
    from = staging;
  }
  unsigned char *const landing = to_pageable ? sim_new(r->bytes) : NULL;
  op->from = from;
  op->to = to_pageable ? span_of(landing, r->bytes) : to;
  sim_submit(stream, op);
  const bool waits = r->synchronous && (to_host || (from_host && !from_pageable));
  if (waits || to_pageable)
    wait_for(stream);
  if (to_pageable) {
    sim_span landed = span_of(landing, r->bytes);
    if (sim.sticky == CUDA_SUCCESS)
      sim_span_copy(&to, &landed);
    sim_span_free(&landed);
    sim_span_free(&to);
    free(landing);
  }
  return sim.sticky;
}

static CUresult copy(const request *r) {
  CUresult error;
  sim_stream *const stream = stream_for_work(r->stream, &error);
  if (stream == NULL || r->bytes == 0)
    return error;
  sim_span to;
  sim_span from;
  error = find_ends(r, &to, &from);
  if (error != CUDA_SUCCESS)
    return error;
  report_overlap(r);
  bool captured;
  error = sim_capture_submit(stream, &captured);
  if (error != CUDA_SUCCESS || captured) {
    sim_span_free(&to);
    sim_span_free(&from);
    return error;
  }
  return submit_copy(r, stream, to, from);
}

static CUdeviceptr address_of(const void *pointer) {
  return (CUdeviceptr)(uintptr_t)pointer;
}

/* Defines the body of one function: its name, both ends with their rules, and the stream. */
#define COPY(name, to_address, to_kind, from_address, from_kind, on, waits) \
  SIM_ENTER(name, SIM_NEEDS_CONTEXT);                                       \
  return sim_leave(copy(&(request){.what = #name,                           \
                                   .to = to_address,                        \
                                   .to_rule = to_kind,                      \
                                   .from = from_address,                    \
                                   .from_rule = from_kind,                  \
                                   .bytes = bytes,                          \
                                   .stream = on,                            \
                                   .synchronous = waits}))

CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  COPY(cuMemcpy, to, SIM_RULE_ANY, from, SIM_RULE_ANY, NULL, true);
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  COPY(cuMemcpyAsync, to, SIM_RULE_ANY, from, SIM_RULE_ANY, stream, false);
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes) {
  COPY(cuMemcpyHtoD_v2, to, SIM_RULE_DEVICE, address_of(from), SIM_RULE_HOST, NULL, true);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
  COPY(cuMemcpyHtoDAsync_v2, to, SIM_RULE_DEVICE, address_of(from), SIM_RULE_HOST, stream, false);
}

/* The copies of a batch are in no order among each other; here they are in theirs. All have one
 * attribute. */
CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count,
                               CUmemcpyAttributes *attributes, size_t *attribute_indices,
                               size_t attribute_count, CUstream stream) {
  SIM_ENTER(cuMemcpyBatchAsync_v2, SIM_NEEDS_CONTEXT);
  CUresult error = CUDA_SUCCESS;
  if (count == 0 || attribute_count != 1 || attribute_indices[0] != 0 || stream == NULL ||
      attributes[0].srcAccessOrder != CU_MEMCPY_SRC_ACCESS_ORDER_STREAM)
    error = CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count && error == CUDA_SUCCESS; i++) {
    error = copy(&(request){.what = "cuMemcpyBatchAsync_v2",
                            .to = to[i],
                            .to_rule = SIM_RULE_ANY,
                            .from = from[i],
                            .from_rule = SIM_RULE_ANY,
                            .bytes = bytes[i],
                            .stream = stream});
  }
  return sim_leave(error);
}

CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes) {
  COPY(cuMemcpyDtoH_v2, address_of(to), SIM_RULE_HOST, from, SIM_RULE_DEVICE, NULL, true);
}

CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
  COPY(cuMemcpyDtoHAsync_v2, address_of(to), SIM_RULE_HOST, from, SIM_RULE_DEVICE, stream, false);
}

CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  COPY(cuMemcpyDtoD_v2, to, SIM_RULE_DEVICE, from, SIM_RULE_DEVICE, NULL, true);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  COPY(cuMemcpyDtoDAsync_v2, to, SIM_RULE_DEVICE, from, SIM_RULE_DEVICE, stream, false);
}

static CUresult check_contexts(CUcontext to, CUcontext from) {
  CUresult error;
  if (sim_context_check(to, &error) == NULL)
    return error;
  (void)sim_context_check(from, &error);
  return error;
}

CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                      CUcontext from_context, size_t bytes) {
  SIM_ENTER(cuMemcpyPeer, SIM_NEEDS_CONTEXT);
  const CUresult error = check_contexts(to_context, from_context);
  if (error != CUDA_SUCCESS)
    return sim_leave(error);
  return sim_leave(copy(&(request){.what = "cuMemcpyPeer",
                                   .to = to,
                                   .to_rule = SIM_RULE_PEER,
                                   .from = from,
                                   .from_rule = SIM_RULE_PEER,
                                   .bytes = bytes,
                                   .synchronous = true}));
}

CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                           CUcontext from_context, size_t bytes, CUstream stream) {
  SIM_ENTER(cuMemcpyPeerAsync, SIM_NEEDS_CONTEXT);
  const CUresult error = check_contexts(to_context, from_context);
  if (error != CUDA_SUCCESS)
    return sim_leave(error);
  return sim_leave(copy(&(request){.what = "cuMemcpyPeerAsync",
                                   .to = to,
                                   .to_rule = SIM_RULE_PEER,
                                   .from = from,
                                   .from_rule = SIM_RULE_PEER,
                                   .bytes = bytes,
                                   .stream = stream}));
}

/* Fills. */

static CUresult fill(const char *what, CUdeviceptr address, const void *pattern, size_t size,
                     size_t count, CUstream handle, bool synchronous) {
  CUresult error;
  sim_stream *const stream = stream_for_work(handle, &error);
  if (stream == NULL || count == 0)
    return error;
  if (address % size != 0 || count > SIZE_MAX / size)
    return CUDA_ERROR_INVALID_VALUE;
  sim_span to;
  error = sim_span_find(&to, what, sim_current(), address, count * size, true, SIM_RULE_DEVICE);
  if (error != CUDA_SUCCESS)
    return error;
  bool captured;
  error = sim_capture_submit(stream, &captured);
  if (error != CUDA_SUCCESS || captured) {
    sim_span_free(&to);
    return error;
  }
  const sim_actor actor = sim_stream_actor(stream, what);
  sim_span_access(&to, true, &actor);
  const bool waits = synchronous && sim_span_is_host(&to);
  sim_op *const op = sim_op_new(what);
  op->to = to;
  op->pattern_size = size;
  memcpy(op->pattern, pattern, size);
  sim_submit(stream, op);
  if (waits)
    wait_for(stream);
  return sim.sticky;
}

#define FILL(name, on, waits)         \
  SIM_ENTER(name, SIM_NEEDS_CONTEXT); \
  return sim_leave(fill(#name, to, &value, sizeof value, count, on, waits))

CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count) {
  FILL(cuMemsetD8_v2, NULL, true);
}

CUresult cuMemsetD16_v2(CUdeviceptr to, unsigned short value, size_t count) {
  FILL(cuMemsetD16_v2, NULL, true);
}

CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned value, size_t count) {
  FILL(cuMemsetD32_v2, NULL, true);
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
  FILL(cuMemsetD8Async, stream, false);
}

CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count, CUstream stream) {
  FILL(cuMemsetD16Async, stream, false);
}

CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream) {
  FILL(cuMemsetD32Async, stream, false);
}
