/* Stream capture: what it forbids, and with which error. What is captured is counted and dropped;
 * graphs can't be run. */
#include <stdlib.h>

#include "sim.h"

struct sim_capture {
  sim_capture *next;
  uint64_t id;
  CUstreamCaptureMode mode;
  uint64_t thread;
  sim_stream *origin;
  bool invalid, over;
};

static sim_capture *captures;
static _Thread_local CUstreamCaptureMode thread_mode;

bool sim_capture_is_active(const sim_capture *capture) {
  return capture != NULL && !capture->over;
}

static bool forbids_unsafe(const sim_capture *c) {
  if (c->over || thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
    return false;
  if (c->thread == sim_thread_id())
    return c->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
  return thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL && c->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

CUresult sim_capture_allows_unsafe(void) {
  CUresult result = CUDA_SUCCESS;
  for (sim_capture *c = captures; c != NULL; c = c->next) {
    if (!forbids_unsafe(c))
      continue;
    c->invalid = true;
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return result;
}

/* Use of the legacy stream while a blocking stream of its context captures. */
static CUresult refuse_implicit(const sim_stream *stream, bool invalidates) {
  if (stream->kind != SIM_STREAM_LEGACY)
    return CUDA_SUCCESS;
  CUresult result = CUDA_SUCCESS;
  for (const sim_stream *s = sim.streams; s != NULL; s = s->next) {
    if (s->context != stream->context || !s->blocking || !sim_capture_is_active(s->capture))
      continue;
    s->capture->invalid = s->capture->invalid || invalidates;
    result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  return result;
}

CUresult sim_capture_submit(sim_stream *stream, bool *captured) {
  *captured = sim_capture_is_active(stream->capture);
  if (!*captured)
    return refuse_implicit(stream, true);
  if (stream->capture->invalid)
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  stream->captured++;
  return CUDA_SUCCESS;
}

CUresult sim_capture_refuse(sim_stream *stream) {
  if (!sim_capture_is_active(stream->capture))
    return refuse_implicit(stream, true);
  if (stream->capture->invalid)
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  stream->capture->invalid = true;
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult sim_capture_wait(sim_stream *stream, sim_capture *capture, sim_stream *recorded_on,
                          uint64_t recorded_at, bool *captured) {
  const bool capturing = sim_capture_is_active(stream->capture);
  *captured = capturing || capture != NULL;
  if (!*captured)
    return refuse_implicit(stream, true);
  if ((capturing && stream->capture->invalid) || (capture != NULL && capture->invalid))
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (capture == NULL) {
    stream->capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  if (capturing && stream->capture != capture) {
    stream->capture->invalid = capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  }
  if (stream->kind == SIM_STREAM_LEGACY) {
    capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  if (!capturing) {
    stream->capture = capture;
    stream->captured = stream->joined = 0;
  }
  stream->captured++;
  if (recorded_on != NULL && recorded_on != stream && recorded_on->joined < recorded_at)
    recorded_on->joined = recorded_at;
  return CUDA_SUCCESS;
}

static void end_capture(sim_capture *capture) {
  capture->over = true;
  for (sim_stream *s = sim.streams; s != NULL; s = s->next) {
    if (s->capture == capture)
      s->capture = NULL;
  }
}

void sim_captures_clear(void) {
  for (sim_capture *c = captures; c != NULL; c = c->next) {
    if (!c->over)
      end_capture(c);
  }
}

/* Enters with a stream; on failure the lock is released. */
#define ENTER_STREAM(name, handle, found)                  \
  SIM_ENTER(name, SIM_NEEDS_CONTEXT);                      \
  CUresult error;                                          \
  sim_stream *const found = sim_stream_of(handle, &error); \
  if ((found) == NULL)                                     \
  return sim_leave(error)

CUresult cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode) {
  ENTER_STREAM(cuStreamBeginCapture_v2, handle, stream);
  if (stream->kind == SIM_STREAM_LEGACY)
    return sim_leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  if (sim_capture_is_active(stream->capture))
    return sim_leave(CUDA_ERROR_ILLEGAL_STATE);
  sim_capture *const capture = sim_new(sizeof *capture);
  capture->id = ++sim.next_serial;
  capture->mode = mode;
  capture->thread = sim_thread_id();
  capture->origin = stream;
  capture->next = captures;
  captures = capture;
  stream->capture = capture;
  stream->captured = stream->joined = 0;
  return sim_leave(CUDA_SUCCESS);
}

static bool has_unjoined(const sim_capture *capture) {
  for (const sim_stream *s = sim.streams; s != NULL; s = s->next) {
    if (s->capture == capture && s != capture->origin && s->joined < s->captured)
      return true;
  }
  return false;
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph *graph) {
  ENTER_STREAM(cuStreamEndCapture, handle, stream);
  *graph = NULL;
  sim_capture *const capture = stream->capture;
  if (!sim_capture_is_active(capture))
    return sim_leave(CUDA_ERROR_ILLEGAL_STATE);
  if (capture->origin != stream)
    return sim_leave(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
  if (capture->thread != sim_thread_id() && capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED)
    return sim_leave(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
  const CUresult result = capture->invalid        ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                          : has_unjoined(capture) ? CUDA_ERROR_STREAM_CAPTURE_UNJOINED
                                                  : CUDA_SUCCESS;
  if (result == CUDA_SUCCESS)
    *graph = (CUgraph)capture;
  end_capture(capture);
  return sim_leave(result);
}

static void tell(const sim_stream *stream, CUstreamCaptureStatus *status, cuuint64_t *id) {
  const bool active = sim_capture_is_active(stream->capture);
  *status = !active                    ? CU_STREAM_CAPTURE_STATUS_NONE
            : stream->capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                       : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  if (id != NULL && active)
    *id = stream->capture->id;
}

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status) {
  /* Seen on an H200 with driver 580: a stream that has a handle is found without a context. */
  SIM_ENTER(cuStreamIsCapturing, SIM_NEEDS_INIT);
  CUresult error = CUDA_ERROR_INVALID_CONTEXT;
  const bool named = (uintptr_t)handle > (uintptr_t)CU_STREAM_PER_THREAD;
  sim_stream *const stream = named || sim_current() != NULL ? sim_stream_of(handle, &error) : NULL;
  if (stream == NULL)
    return sim_leave(error);
  error = refuse_implicit(stream, false);
  if (error == CUDA_SUCCESS)
    tell(stream, status, NULL);
  return sim_leave(error);
}

CUresult cuStreamGetCaptureInfo(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id) {
  ENTER_STREAM(cuStreamGetCaptureInfo, handle, stream);
  error = refuse_implicit(stream, false);
  if (error == CUDA_SUCCESS)
    tell(stream, status, id);
  return sim_leave(error);
}

CUresult cuStreamGetCaptureInfo_v2(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id,
                                   CUgraph *graph, const CUgraphNode **dependencies,
                                   size_t *count) {
  ENTER_STREAM(cuStreamGetCaptureInfo_v2, handle, stream);
  error = refuse_implicit(stream, false);
  if (error != CUDA_SUCCESS)
    return sim_leave(error);
  tell(stream, status, id);
  if (graph != NULL)
    *graph = (CUgraph)stream->capture;
  if (dependencies != NULL)
    *dependencies = NULL;
  if (count != NULL)
    *count = 0;
  return sim_leave(CUDA_SUCCESS);
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
  SIM_ENTER(cuThreadExchangeStreamCaptureMode, SIM_NEEDS_INIT);
  const CUstreamCaptureMode old = thread_mode;
  thread_mode = *mode;
  *mode = old;
  return sim_leave(CUDA_SUCCESS);
}

/* The object stays, since events may still point to it. */
CUresult cuGraphDestroy(CUgraph graph) {
  SIM_ENTER(cuGraphDestroy, SIM_NEEDS_INIT);
  for (const sim_capture *c = captures; c != NULL; c = c->next) {
    if (c == (const sim_capture *)graph)
      return sim_leave(CUDA_SUCCESS);
  }
  return sim_leave(CUDA_ERROR_INVALID_VALUE);
}
