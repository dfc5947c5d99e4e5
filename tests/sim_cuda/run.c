/* Who runs operations, and when: a thread for each stream, or whoever waits. */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "sim.h"

bool sim_done(const sim_stream *stream, uint64_t serial) {
  return stream->completed >= serial;
}

static bool may_begin(const sim_op *op) {
  if (sim.sticky != CUDA_SUCCESS)
    return true;
  for (size_t i = 0; i < op->after_count; i++) {
    if (!sim_done(op->after[i].stream, op->after[i].serial))
      return false;
  }
  if (!sim_semaphore_reached(op))
    return false;
  return !op->hold || sim.gates[op->gate];
}

static bool can_run(const sim_stream *stream) {
  return stream->head != NULL && !stream->running && may_begin(stream->head);
}

static void nap(unsigned microseconds) {
  if (microseconds == 0)
    return;
  sim_unlock();
  usleep(microseconds);
  sim_lock();
}

/* Kernels work on contiguous memory; where it is mapped in pieces they get a copy. */
static void run_kernel(sim_op *op) {
  unsigned char *bytes[SIMCUDA_MAX_ACCESSES] = {NULL};
  void *parameters[16];
  sim_span copies[SIMCUDA_MAX_ACCESSES];
  sim_segment segments[SIMCUDA_MAX_ACCESSES];
  for (size_t i = 0; i < 16; i++)
    parameters[i] = op->parameters[i];
  for (size_t i = 0; i < op->span_count; i++) {
    const sim_span *const span = &op->spans[i];
    if (span->count == 0)
      continue;
    segments[i] = (sim_segment){.host = sim_new(span->size), .size = span->size};
    copies[i] = (sim_span){.segments = &segments[i], .count = 1, .size = span->size};
    sim_span_copy(&copies[i], span);
    bytes[i] = segments[i].host;
  }
  op->kernel->run(parameters, bytes);
  for (size_t i = 0; i < op->span_count; i++) {
    if (bytes[i] == NULL)
      continue;
    if (op->spans_written[i])
      sim_span_copy(&op->spans[i], &copies[i]);
    free(bytes[i]);
  }
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static void run_op(sim_op *op) {
  if (sim.sticky != CUDA_SUCCESS)
    return;
  nap(op->sleep_us);
  if (op->from.count > 0 && op->to.count > 0)
    sim_span_copy(&op->to, &op->from);
  if (op->pattern_size > 0 && op->to.count > 0)
    sim_span_fill(&op->to, op->pattern, op->pattern_size);
  if (op->kernel != NULL && op->kernel->run != NULL)
    run_kernel(op);
  if (op->function != NULL) {
    sim_unlock();
    op->function(op->user);
    sim_lock();
  }
  if (op->when != NULL)
    op->when->milliseconds = now();
  if (op->semaphore != NULL)
    sim_semaphore_run(op);
  if (op->fault != 0)
    sim.sticky = (CUresult)op->fault;
}

static void run_head(sim_stream *stream) {
  sim_op *const op = stream->head;
  stream->running = true;
  if (sim.settings.schedule == SIMCUDA_THREADS && sim.settings.delay > 0)
    nap((unsigned)(sim_random(&stream->random) % (sim.settings.delay + 1)));
  sim_takeover(op);
  sim_takeover(stream);
  for (size_t i = 0; i < op->after_count; i++)
    sim_takeover(op->after[i].stream);
  run_op(op);
  sim_handoff(stream);
  stream->head = op->next;
  if (stream->head == NULL)
    stream->tail = NULL;
  stream->completed = op->serial;
  stream->running = false;
  sim_op_free(op);
  pthread_cond_broadcast(&sim.changed);
}

void *sim_stream_thread(void *argument) {
  sim_stream *const stream = argument;
  sim_lock();
  for (;;) {
    while (!can_run(stream) && (stream->head != NULL || stream->alive))
      sim_pause();
    if (stream->head == NULL && !stream->alive)
      break;
    run_head(stream);
  }
  stream->has_thread = false;
  sim.threads--;
  pthread_cond_broadcast(&sim.changed);
  sim_unlock();
  return NULL;
}

/* Manual: runs what is needed for the stream to get as far. */
static void pump(sim_stream *stream, uint64_t serial) {
  while (!sim_done(stream, serial)) {
    const sim_op *const op = stream->head;
    if (can_run(stream)) {
      run_head(stream);
      continue;
    }
    sim_point missing = {.stream = NULL};
    const size_t first = op->after_count > 0 ? sim_random(&sim.random) % op->after_count : 0;
    for (size_t i = 0; i < op->after_count && !stream->running; i++) {
      const sim_point *const point = &op->after[(first + i) % op->after_count];
      if (!sim_done(point->stream, point->serial))
        missing = *point;
    }
    if (missing.stream != NULL) {
      pump(missing.stream, missing.serial);
    } else {
      sim_pause();
    }
  }
}

void sim_wait(sim_stream *stream, uint64_t serial, const sim_clock *clock) {
  if (sim.settings.schedule == SIMCUDA_MANUAL) {
    pump(stream, serial);
  } else {
    while (!sim_done(stream, serial))
      sim_pause();
  }
  sim_takeover(stream);
  if (clock != NULL)
    sim_clock_join(sim_host_clock(), clock);
}

bool sim_run_any(void) {
  size_t count = 0;
  for (const sim_stream *s = sim.streams; s != NULL; s = s->next)
    count += can_run(s);
  if (count == 0)
    return false;
  size_t chosen = sim_random(&sim.random) % count;
  for (sim_stream *s = sim.streams; s != NULL; s = s->next) {
    if (!can_run(s) || chosen-- != 0)
      continue;
    run_head(s);
    return true;
  }
  return false;
}

void sim_run_eagerly(void) {
  if (sim.settings.schedule == SIMCUDA_MANUAL && sim.settings.eager > 0 &&
      sim_random(&sim.random) % 100 < sim.settings.eager)
    (void)sim_run_any();
}

uint64_t simcuda_run_all(void) {
  uint64_t count = 0;
  sim_lock();
  while (sim.settings.schedule == SIMCUDA_MANUAL && sim_run_any())
    count++;
  sim_unlock();
  return count;
}
