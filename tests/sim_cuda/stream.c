/* Streams and what is queued in them. What runs it is in run.c, capture in capture.c. */
#include <stdlib.h>

#include "sim.h"

enum {
  MAGIC = 0x57e3a3
};

/* Operations. */

sim_op *sim_op_new(const char *what) {
  sim_op *const op = sim_new(sizeof *op);
  op->what = what;
  return op;
}

void sim_moment_release(sim_moment *moment) {
  if (moment != NULL && --moment->references == 0)
    free(moment);
}

void sim_op_free(sim_op *op) {
  sim_span_free(&op->to);
  sim_span_free(&op->from);
  for (size_t i = 0; i < op->span_count; i++)
    sim_span_free(&op->spans[i]);
  if (op->freed != NULL)
    sim_memory_release(op->freed);
  sim_moment_release(op->when);
  sim.foreign -= op->semaphore != NULL && !op->signals;
  sim_semaphore_release(op->semaphore);
  free(op->staging);
  free(op->after);
  free(op);
}

/* Also what is done is remembered: ThreadSanitizer has to be told what came before. */
void sim_op_after(sim_op *op, sim_stream *stream, uint64_t serial) {
  op->after = sim_grow(op->after, op->after_count, &op->after_capacity, sizeof *op->after);
  op->after[op->after_count++] = (sim_point){.stream = stream, .serial = serial};
}

/* The legacy stream is in order with all blocking streams of its context. */
static bool are_implicitly_ordered(const sim_stream *a, const sim_stream *b) {
  if (a == b || a->context != b->context)
    return false;
  return (a->kind == SIM_STREAM_LEGACY && b->blocking) ||
         (b->kind == SIM_STREAM_LEGACY && a->blocking);
}

sim_actor sim_stream_actor(sim_stream *stream, const char *what) {
  sim_clock_join(&stream->clock, sim_host_clock());
  for (const sim_stream *s = sim.streams; s != NULL; s = s->next) {
    if (are_implicitly_ordered(stream, s))
      sim_clock_join(&stream->clock, &s->clock);
  }
  return (sim_actor){
      .what = what,
      .stream = stream->id,
      .epoch = sim_clock_tick(&stream->clock, stream->line),
      .clock = &stream->clock,
  };
}

static void start_thread(sim_stream *stream) {
  if (sim.settings.schedule != SIMCUDA_THREADS || stream->has_thread)
    return;
  pthread_t thread;
  if (pthread_create(&thread, NULL, sim_stream_thread, stream) != 0)
    abort();
  pthread_detach(thread);
  stream->has_thread = true;
  sim.threads++;
}

void sim_submit(sim_stream *stream, sim_op *op) {
  for (sim_stream *s = sim.streams; s != NULL; s = s->next) {
    if (are_implicitly_ordered(stream, s))
      sim_op_after(op, s, s->submitted);
  }
  op->serial = ++stream->submitted;
  if (stream->tail != NULL) {
    stream->tail->next = op;
  } else {
    stream->head = op;
  }
  stream->tail = op;
  sim_handoff(op);
  start_thread(stream);
  pthread_cond_broadcast(&sim.changed);
  sim_run_eagerly();
}

/* Streams. */

sim_stream *sim_stream_new(sim_context *context, sim_stream_kind kind) {
  sim_stream *const stream = sim_new(sizeof *stream);
  stream->magic = MAGIC;
  stream->context = context;
  stream->kind = kind;
  stream->blocking = kind != SIM_STREAM_LEGACY;
  stream->alive = true;
  stream->id = ++sim.next_serial;
  stream->random = sim.settings.seed ^ stream->id << 32;
  stream->line = sim_line_begin();
  stream->next = sim.streams;
  sim.streams = stream;
  return stream;
}

/* The object stays, so that a handle that is used too late is found out. */
void sim_stream_end(sim_stream *stream) {
  stream->alive = false;
  sim_line_end(stream->line);
  pthread_cond_broadcast(&sim.changed);
}

void sim_streams_clear(void) {
  for (sim_stream *s = sim.streams; s != NULL; s = s->next) {
    sim_wait(s, s->submitted, NULL);
    if (s->alive)
      sim_stream_end(s);
  }
  while (sim.threads > 0)
    pthread_cond_wait(&sim.changed, &sim.lock);
}

void sim_stream_counts(simcuda_census *out) {
  for (const sim_stream *s = sim.streams; s != NULL; s = s->next) {
    out->streams += s->alive && s->kind == SIM_STREAM_USER;
    out->queued += s->submitted - s->completed;
  }
}

uint64_t sim_thread_id(void) {
  static _Thread_local uint64_t id;
  if (id == 0)
    id = ++sim.next_serial;
  return id;
}

static sim_stream *per_thread_stream(sim_context *context) {
  const uint64_t owner = sim_thread_id();
  for (sim_stream *s = sim.streams; s != NULL; s = s->next) {
    if (s->alive && s->context == context && s->owner == owner)
      return s;
  }
  sim_stream *const stream = sim_stream_new(context, SIM_STREAM_PER_THREAD);
  stream->owner = owner;
  return stream;
}

sim_stream *sim_stream_of(CUstream handle, CUresult *out_error) {
  *out_error = CUDA_SUCCESS;
  sim_context *const context = sim_current();
  if (handle == CU_STREAM_PER_THREAD || (handle == NULL && sim_per_thread > 0))
    return per_thread_stream(context);
  if (handle == CU_STREAM_LEGACY || handle == NULL)
    return context->legacy;
  sim_stream *const stream = (sim_stream *)handle;
  if (stream->magic == MAGIC && stream->alive)
    return stream;
  if (stream->magic == MAGIC)
    sim_report(SIMCUDA_USE_AFTER_FREE, "stream %llu was destroyed", (unsigned long long)stream->id);
  *out_error = CUDA_ERROR_INVALID_HANDLE;
  return NULL;
}

static CUresult create(CUstream *stream, unsigned flags, int priority) {
  if (stream == NULL || flags > CU_STREAM_NON_BLOCKING)
    return CUDA_ERROR_INVALID_VALUE;
  sim_stream *const made = sim_stream_new(sim_current(), SIM_STREAM_USER);
  made->flags = flags;
  made->blocking = (flags & CU_STREAM_NON_BLOCKING) == 0;
  made->priority = priority > 0 ? 0 : priority < -5 ? -5 : priority;
  *stream = (CUstream)made;
  return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
  SIM_ENTER(cuStreamCreate, SIM_NEEDS_CONTEXT);
  return sim_leave(create(stream, flags, 0));
}

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority) {
  SIM_ENTER(cuStreamCreateWithPriority, SIM_NEEDS_CONTEXT);
  return sim_leave(create(stream, flags, priority));
}

/* Enters with a stream; on failure the lock is released. */
#define ENTER_STREAM(name, handle, found)                  \
  SIM_ENTER(name, SIM_NEEDS_CONTEXT);                      \
  CUresult error;                                          \
  sim_stream *const found = sim_stream_of(handle, &error); \
  if ((found) == NULL)                                     \
  return sim_leave(error)

CUresult cuStreamDestroy_v2(CUstream handle) {
  ENTER_STREAM(cuStreamDestroy_v2, handle, stream);
  if (stream->kind != SIM_STREAM_USER)
    return sim_leave(CUDA_ERROR_INVALID_HANDLE);
  /* What is queued still runs. */
  sim_stream_end(stream);
  return sim_leave(CUDA_SUCCESS);
}

CUresult cuStreamQuery(CUstream handle) {
  ENTER_STREAM(cuStreamQuery, handle, stream);
  error = sim_capture_refuse(stream);
  if (error != CUDA_SUCCESS)
    return sim_leave(error);
  sim_run_eagerly();
  bool done = sim_done(stream, stream->submitted);
  for (const sim_stream *s = sim.streams; s != NULL; s = s->next)
    done = done && !(are_implicitly_ordered(stream, s) && stream->kind == SIM_STREAM_LEGACY &&
                     !sim_done(s, s->submitted));
  if (!done)
    return sim_leave(sim.sticky != CUDA_SUCCESS ? sim.sticky : CUDA_ERROR_NOT_READY);
  sim_wait(stream, stream->submitted, &stream->clock);
  return sim_leave(sim.sticky);
}

CUresult cuStreamSynchronize(CUstream handle) {
  ENTER_STREAM(cuStreamSynchronize, handle, stream);
  error = sim_capture_refuse(stream);
  if (error != CUDA_SUCCESS)
    return sim_leave(error);
  sim_clock clock = {.count = 0};
  if (stream->kind == SIM_STREAM_LEGACY)
    (void)sim_stream_actor(stream, "a wait");
  sim_clock_join(&clock, &stream->clock);
  if (stream->kind == SIM_STREAM_LEGACY)
    sim_submit(stream, sim_op_new("a wait"));
  sim_wait(stream, stream->submitted, &clock);
  sim_clock_free(&clock);
  return sim_leave(sim.sticky);
}

CUresult cuStreamGetCtx(CUstream handle, CUcontext *context) {
  ENTER_STREAM(cuStreamGetCtx, handle, stream);
  *context = (CUcontext)stream->context;
  return sim_leave(CUDA_SUCCESS);
}

CUresult cuStreamGetId(CUstream handle, unsigned long long *id) {
  ENTER_STREAM(cuStreamGetId, handle, stream);
  *id = stream->id;
  return sim_leave(CUDA_SUCCESS);
}

CUresult cuStreamGetFlags(CUstream handle, unsigned *flags) {
  ENTER_STREAM(cuStreamGetFlags, handle, stream);
  *flags = stream->flags;
  return sim_leave(CUDA_SUCCESS);
}

CUresult cuStreamGetPriority(CUstream handle, int *priority) {
  ENTER_STREAM(cuStreamGetPriority, handle, stream);
  *priority = stream->priority;
  return sim_leave(CUDA_SUCCESS);
}

CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void *user) {
  ENTER_STREAM(cuLaunchHostFunc, handle, stream);
  if (function == NULL)
    return sim_leave(CUDA_ERROR_INVALID_VALUE);
  bool captured;
  error = sim_capture_submit(stream, &captured);
  if (error != CUDA_SUCCESS || captured)
    return sim_leave(error);
  (void)sim_stream_actor(stream, "a host function");
  sim_op *const op = sim_op_new("a host function");
  op->function = function;
  op->user = user;
  sim_submit(stream, op);
  return sim_leave(CUDA_SUCCESS);
}
