/* Events: points in streams. */
#include <stdlib.h>

#include "sim.h"

enum {
  MAGIC = 0xe7e27,
  DEAD_KEPT = 4096, /* destroyed events whose handles are still recognised */
};

typedef struct sim_event {
  uint32_t magic;
  struct sim_event *next, *previous;
  sim_context *context;
  unsigned flags;
  bool alive;
  sim_stream *stream; /* NULL: not recorded */
  uint64_t serial;
  sim_clock clock;
  sim_moment *when;
  sim_capture *capture;
  uint64_t captured;
} sim_event;

static struct {
  sim_event *alive;
  sim_event *first_dead, *last_dead;
  size_t count, dead;
} events;

static void bury(sim_event *event) {
  if (event->previous != NULL) {
    event->previous->next = event->next;
  } else {
    events.alive = event->next;
  }
  if (event->next != NULL)
    event->next->previous = event->previous;
  events.count--;
  sim_clock_free(&event->clock);
  sim_moment_release(event->when);
  event->when = NULL;
  event->alive = false;
  event->next = NULL;
  if (events.last_dead != NULL) {
    events.last_dead->next = event;
  } else {
    events.first_dead = event;
  }
  events.last_dead = event;
  if (++events.dead <= DEAD_KEPT)
    return;
  sim_event *const oldest = events.first_dead;
  events.first_dead = oldest->next;
  events.dead--;
  free(oldest);
}

void sim_events_clear(void) {
  while (events.alive != NULL)
    bury(events.alive);
}

void sim_events_end(const sim_context *context) {
  sim_event *next;
  for (sim_event *event = events.alive; event != NULL; event = next) {
    next = event->next;
    if (event->context == context)
      bury(event);
  }
}

void sim_event_counts(simcuda_census *out) {
  out->events = events.count;
}

static sim_event *event_of(CUevent handle, CUresult *out_error) {
  sim_event *const event = (sim_event *)handle;
  *out_error = CUDA_ERROR_INVALID_HANDLE;
  if (event == NULL || event->magic != MAGIC)
    return NULL;
  if (!event->alive) {
    sim_report(SIMCUDA_USE_AFTER_FREE, "an event that was destroyed is used");
    return NULL;
  }
  *out_error = CUDA_SUCCESS;
  return event;
}

CUresult cuEventCreate(CUevent *out, unsigned flags) {
  SIM_ENTER(cuEventCreate, SIM_NEEDS_CONTEXT);
  const bool bad =
      flags > 7 || ((flags & CU_EVENT_INTERPROCESS) != 0 && (flags & CU_EVENT_DISABLE_TIMING) == 0);
  if (out == NULL || bad)
    return sim_leave(CUDA_ERROR_INVALID_VALUE);
  sim_event *const event = sim_new(sizeof *event);
  event->magic = MAGIC;
  event->context = sim_current();
  event->flags = flags;
  event->alive = true;
  event->next = events.alive;
  if (events.alive != NULL)
    events.alive->previous = event;
  events.alive = event;
  events.count++;
  *out = (CUevent)event;
  return sim_leave(CUDA_SUCCESS);
}

CUresult cuEventDestroy_v2(CUevent handle) {
  SIM_ENTER(cuEventDestroy_v2, SIM_NEEDS_INIT);
  CUresult error;
  sim_event *const event = event_of(handle, &error);
  if (event != NULL)
    bury(event);
  return sim_leave(error);
}

CUresult cuEventRecord(CUevent handle, CUstream stream_handle) {
  SIM_ENTER(cuEventRecord, SIM_NEEDS_CONTEXT);
  CUresult error;
  sim_event *const event = event_of(handle, &error);
  sim_stream *const stream = event != NULL ? sim_stream_of(stream_handle, &error) : NULL;
  if (stream == NULL)
    return sim_leave(error);
  if (event->context != stream->context)
    return sim_leave(CUDA_ERROR_INVALID_HANDLE);
  bool captured;
  error = sim_capture_submit(stream, &captured);
  if (error != CUDA_SUCCESS)
    return sim_leave(error);
  event->stream = stream;
  event->capture = captured ? stream->capture : NULL;
  event->captured = stream->captured;
  if (captured)
    return sim_leave(CUDA_SUCCESS);
  (void)sim_stream_actor(stream, "an event");
  sim_clock_free(&event->clock);
  sim_clock_join(&event->clock, &stream->clock);
  sim_moment_release(event->when);
  event->when = sim_new(sizeof *event->when);
  event->when->references = 2;
  sim_op *const op = sim_op_new("an event");
  op->when = event->when;
  event->serial = stream->submitted + 1;
  sim_submit(stream, op);
  return sim_leave(CUDA_SUCCESS);
}

static CUresult refuse_captured(const sim_event *event) {
  return sim_capture_is_active(event->capture) ? CUDA_ERROR_CAPTURED_EVENT : CUDA_SUCCESS;
}

CUresult cuEventQuery(CUevent handle) {
  SIM_ENTER(cuEventQuery, SIM_NEEDS_INIT | SIM_UNSAFE_IN_CAPTURE);
  CUresult error;
  const sim_event *const event = event_of(handle, &error);
  if (event == NULL || (error = refuse_captured(event)) != CUDA_SUCCESS || event->stream == NULL)
    return sim_leave(error);
  sim_run_eagerly();
  if (!sim_done(event->stream, event->serial))
    return sim_leave(sim.sticky != CUDA_SUCCESS ? sim.sticky : CUDA_ERROR_NOT_READY);
  sim_wait(event->stream, event->serial, &event->clock);
  return sim_leave(sim.sticky);
}

CUresult cuEventSynchronize(CUevent handle) {
  SIM_ENTER(cuEventSynchronize, SIM_NEEDS_INIT | SIM_UNSAFE_IN_CAPTURE);
  CUresult error;
  const sim_event *const event = event_of(handle, &error);
  if (event == NULL || (error = refuse_captured(event)) != CUDA_SUCCESS || event->stream == NULL)
    return sim_leave(error);
  /* The event may be recorded again, or go, while this waits. */
  sim_clock clock = {.count = 0};
  sim_clock_join(&clock, &event->clock);
  sim_wait(event->stream, event->serial, &clock);
  sim_clock_free(&clock);
  return sim_leave(sim.sticky);
}

CUresult cuStreamWaitEvent(CUstream stream_handle, CUevent handle, unsigned flags) {
  SIM_ENTER(cuStreamWaitEvent, SIM_NEEDS_CONTEXT);
  if (flags > 1)
    return sim_leave(CUDA_ERROR_INVALID_VALUE);
  CUresult error;
  const sim_event *const event = event_of(handle, &error);
  sim_stream *const stream = event != NULL ? sim_stream_of(stream_handle, &error) : NULL;
  if (stream == NULL)
    return sim_leave(error);
  bool captured;
  error = sim_capture_wait(stream, sim_capture_is_active(event->capture) ? event->capture : NULL,
                           event->stream, event->captured, &captured);
  if (error != CUDA_SUCCESS || captured || event->stream == NULL)
    return sim_leave(error);
  (void)sim_stream_actor(stream, "a wait");
  sim_clock_join(&stream->clock, &event->clock);
  sim_op *const op = sim_op_new("a wait");
  sim_op_after(op, event->stream, event->serial);
  sim_submit(stream, op);
  return sim_leave(CUDA_SUCCESS);
}

static CUresult elapsed(float *milliseconds, CUevent begin, CUevent end) {
  CUresult error;
  const sim_event *const a = event_of(begin, &error);
  const sim_event *const b = a != NULL ? event_of(end, &error) : NULL;
  if (b == NULL)
    return error;
  const bool timed = ((a->flags | b->flags) & CU_EVENT_DISABLE_TIMING) == 0;
  if (!timed || a->when == NULL || b->when == NULL)
    return CUDA_ERROR_INVALID_HANDLE;
  if (!sim_done(a->stream, a->serial) || !sim_done(b->stream, b->serial))
    return CUDA_ERROR_NOT_READY;
  *milliseconds = (float)(b->when->milliseconds - a->when->milliseconds);
  return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime(float *milliseconds, CUevent begin, CUevent end) {
  SIM_ENTER(cuEventElapsedTime, SIM_NEEDS_INIT);
  return sim_leave(elapsed(milliseconds, begin, end));
}

CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent begin, CUevent end) {
  SIM_ENTER(cuEventElapsedTime_v2, SIM_NEEDS_INIT);
  return sim_leave(elapsed(milliseconds, begin, end));
}
