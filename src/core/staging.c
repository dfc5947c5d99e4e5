/* Staging: one copy from beginning to end. The calling thread and its helpers do whatever there is
 * to do: hand full slots to the device, fill empty ones, drain those of a device, wait for it. So
 * the copy never depends on a helper, and progress is told in the calling thread. What moves bytes
 * is in staging_legs.c, slots are in staging_slots.c, the numbers in staging_plan.c, the process's
 * budget in staging_budget.c and its memory in staging_memory.c. */
#include "core/staging.h"

#include <pthread.h>

#include "core/checked.h"
#include "core/copy_threads.h"
#include "core/error.h"
#include "core/lock.h"
#include "core/os.h"
#include "core/staging_budget.h"
#include "core/staging_memory.h"
#include "core/staging_ring.h"
#include "core/thread.h"

/* From here on the destination is written with streaming stores: see host_copy.c. */
#define STREAMING_BYTES (UINT64_C(16) << 20)

static _Thread_local quay__staging_report *wanted_report;

void quay__staging_report_to(quay__staging_report *report) {
  wanted_report = report;
}

/* Streams of the core's own, kept by their device. */

static bool is_among(uint64_t stream, const uint64_t *streams, uint32_t count) {
  for (uint32_t i = 0; i < count; i++) {
    if (streams[i] == stream)
      return true;
  }
  return false;
}

/* The last one that was given back and that is none of `others`; with the device's lock held. */
static bool take_kept(quay_device *device, const uint64_t *others, uint32_t count,
                      uint64_t *out_stream) {
  uint32_t at = device->staging_stream_count;
  while (at != 0 && is_among(device->staging_streams[at - 1], others, count))
    at--;
  if (at == 0)
    return false;
  *out_stream = device->staging_streams[at - 1];
  device->staging_stream_count--;
  for (; at <= device->staging_stream_count; at++)
    device->staging_streams[at - 1] = device->staging_streams[at];
  return true;
}

/* One that is none of `others`, if that can be: streams of a backend may be few queues in turns. */
static quay_status make_stream(quay_device *device, const uint64_t *others, uint32_t count,
                               uint64_t *out_stream) {
  static const quay_stream_options options = {.copies_only = true};
  for (uint32_t tries = count;; tries--) {
    QUAY_TRY(device->vtable.stream_create(device, &options, out_stream));
    if (tries == 0 || !is_among(*out_stream, others, count))
      return QUAY_OK;
    device->vtable.stream_destroy(device, *out_stream, false);
  }
}

static quay_status take_stream(quay_device *device, const uint64_t *others, uint32_t count,
                               uint64_t *out_stream) {
  quay__lock_acquire(&device->lock);
  const bool kept = take_kept(device, others, count, out_stream);
  quay__lock_release(&device->lock);
  return kept ? QUAY_OK : make_stream(device, others, count, out_stream);
}

quay_status quay__staging_stream_take(quay_device *device, uint64_t *out_stream) {
  return take_stream(device, NULL, 0, out_stream);
}

void quay__staging_stream_give(quay_device *device, uint64_t stream) {
  quay__lock_acquire(&device->lock);
  const bool keep = device->staging_stream_count < QUAY__STAGING_STREAMS;
  if (keep)
    device->staging_streams[device->staging_stream_count++] = stream;
  quay__lock_release(&device->lock);
  if (!keep)
    device->vtable.stream_destroy(device, stream, false);
}

void quay__staging_drop(quay_device *device) {
  quay__staging_memory_drop(device);
  for (;;) {
    quay__lock_acquire(&device->lock);
    const bool kept = device->staging_stream_count != 0;
    const uint64_t stream = kept ? device->staging_streams[--device->staging_stream_count] : 0;
    quay__lock_release(&device->lock);
    if (!kept)
      return;
    device->vtable.stream_destroy(device, stream, false);
  }
}

/* What could not be opened is none of the leg's. */
static quay_status open_leg(const quay__ring *ring, quay__leg *leg) {
  if (leg->kind != QUAY__LEG_STREAM)
    return QUAY_OK;
  const uint64_t most = quay__min(ring->plan.slots, QUAY__LEG_STREAMS_MAX);
  quay_device *device = leg->side->allocator->device;
  const uint32_t chosen = ring->tuning->streams, usual = device->vtable.copy_streams;
  const uint64_t wanted = quay__min(quay__max(chosen != 0 ? chosen : usual, 1), most);
  while (leg->stream_count < wanted) {
    QUAY_TRY(
        take_stream(device, leg->streams, leg->stream_count, &leg->streams[leg->stream_count]));
    leg->stream_count++;
  }
  return QUAY_OK;
}

static void close_leg(quay__leg *leg, quay_status status) {
  if (leg->kind != QUAY__LEG_STREAM)
    return;
  if (status != QUAY_OK) {
    quay__error_state error;
    quay__error_save(&error);
    quay__leg_settle(leg);
    quay__error_restore(&error);
  }
  while (leg->stream_count != 0)
    quay__staging_stream_give(leg->side->allocator->device, leg->streams[--leg->stream_count]);
}

/* The copy's loop. */

static bool has_failed(quay__ring *ring) {
  return ring->failed || quay__workers_failed(&ring->job);
}

/* Whatever there is to do; with the lock held. */
static bool do_something(quay__ring *ring, bool by_helper, quay_status *out_status) {
  return quay__leg_submit(ring, by_helper, out_status) ||
         quay__leg_drain(ring, by_helper, out_status) ||
         quay__leg_fill(ring, by_helper, out_status) ||
         quay__leg_await(ring, by_helper, out_status);
}

/* Calls for helpers; without the lock. */
static void offer(quay__ring *ring) {
  quay__ring_acquire(ring);
  const uint64_t work = ring->failed ? 0 : quay__leg_work(ring);
  quay__ring_release(ring);
  quay__workers_offer(&ring->job, work);
}

/* A helper's part: until there is nothing to do, or others need it. */
static quay_status help(void *context, uint64_t index) {
  quay__ring *ring = context;
  quay_status status = QUAY_OK;
  (void)index;
  quay__ring_acquire(ring);
  if (ring->threads >= quay__ring_threads_max(ring)) {
    quay__ring_release(ring);
    return QUAY_OK;
  }
  ring->threads++;
  if (ring->report != NULL && ring->threads > ring->report->threads)
    ring->report->threads = ring->threads;
  while (status == QUAY_OK && !ring->failed && do_something(ring, true, &status)) {
    const uint64_t more = quay__leg_work(ring);
    quay__ring_release(ring);
    if (more > (ring->own == 0 ? 1 : 0))
      quay__workers_offer(&ring->job, more);
    const bool called = quay__workers_called();
    quay__ring_acquire(ring);
    if (called)
      break;
  }
  ring->threads--;
  if (ring->own != 0) {
    quay__slots_leave(ring);
    pthread_cond_signal(&ring->changed);
  }
  quay__ring_release(ring);
  return status;
}

/* One thing that there is to do in the calling thread, or a wait for the helpers. OK also when a
 * helper has failed. */
static quay_status step(quay__ring *ring, uint64_t *out_arrived) {
  quay_status status = QUAY_OK;
  quay__ring_acquire(ring);
  while (!has_failed(ring) && ring->arrived == ring->told && !do_something(ring, false, &status))
    quay__stripe_wait_for(ring, &ring->changed);
  *out_arrived = ring->arrived;
  quay__ring_release(ring);
  return status;
}

/* OK also when a helper has failed. */
static quay_status move_chunks(quay__ring *ring) {
  for (bool begun = false; ring->told < ring->size; begun = true) {
    QUAY_TRY(quay__slots_adjust(ring, begun));
    if (ring->slot_count > 1)
      offer(ring);
    uint64_t arrived;
    QUAY_TRY(step(ring, &arrived));
    quay__ring_acquire(ring);
    const bool failed = has_failed(ring);
    quay__ring_release(ring);
    if (failed)
      return QUAY_OK;
    if (arrived == ring->told)
      continue;
    ring->told = arrived;
    QUAY_TRY(quay__copy_progress(ring->options, arrived, ring->size));
  }
  return QUAY_OK;
}

/* Stops the helpers and gives what failed first. A job that has lost its helpers after all was
 * done, in the child of a fork, has not failed. */
static quay_status finish(quay__ring *ring, quay_status status) {
  quay__ring_acquire(ring);
  ring->failed = ring->failed || status != QUAY_OK;
  const bool settled = ring->failed ? !ring->helper_failed : ring->arrived == ring->size;
  quay__ring_release(ring);
  quay__workers_close(&ring->job);
  return settled ? status : quay__workers_result(&ring->job);
}

/* The helpers' share of the threads; what the calling thread calls has the rest. */
static uint32_t leave_threads(const quay__ring *ring) {
  const uint32_t cap = ring->options->max_threads, taken = ring->plan.threads;
  if (taken > 2 || ring->out.several || ring->in.several)
    return 1;
  return cap > 1 && taken > 1 ? cap - 1 : cap;
}

static quay_status run(quay__ring *ring) {
  quay__thread_in_staging = true;
  const uint32_t before = quay__copy_threads_cap(leave_threads(ring));
  const bool several = ring->out.several || ring->in.several;
  const uint32_t most = (uint32_t)quay__max(ring->plan.threads, ring->plan.threads_beside);
  const uint32_t helpers = most - 1;
  quay__workers_open(&ring->job, helpers <= 1 || several ? helpers : 1, help, ring);
  const quay_status status = finish(ring, move_chunks(ring));
  quay__thread_in_staging = ring->nested;
  (void)quay__copy_threads_cap(before);
  return status;
}

static void begin_report(quay__ring *ring) {
  ring->report = wanted_report;
  if (ring->report == NULL)
    return;
  *ring->report = (quay__staging_report){.threads = 1};
  ring->began = quay__os_nanoseconds();
}

static void end_report(quay__ring *ring) {
  if (ring->report == NULL)
    return;
  const uint64_t ended = quay__os_nanoseconds();
  ring->report->total = ended - ring->began;
  ring->report->end = ring->idle_since != 0 ? ended - ring->idle_since : 0;
  ring->report->chunks = ring->chunks_claimed;
}

/* `out_begun`: false if there was no first slot; nothing has moved then. */
static quay_status run_ring(quay__ring *ring, const uint64_t *after, bool *out_begun) {
  ring->threads = 1;
  ring->tuning = quay__staging_tuning_get();
  ring->nested = quay__thread_in_staging;
  ring->streaming = ring->size >= STREAMING_BYTES;
  if (ring->tuning->own_slots && (ring->in.several || ring->out.several) &&
      (ring->in.kind == QUAY__LEG_STREAM || ring->out.kind == QUAY__LEG_STREAM))
    ring->own = (uint32_t)quay__max(ring->plan.slots / ring->plan.threads, 1);
  ring->stretched = ring->plan.from_disk && ring->own != 0;
  if (ring->stretched) {
    quay__stretches_begin(&ring->stretches, ring->size + ring->plan.past_cut, ring->plan.threads,
                          ring->plan.chunk);
  }
  ring->changed = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
  begin_report(ring);
  quay__staging_enter(ring->plan.pin);
  quay_status status = quay__slots_open_first(ring);
  *out_begun = status == QUAY_OK;
  if (status != QUAY_OK) {
    quay__staging_leave(ring->plan.pin);
    return status;
  }
  status = open_leg(ring, &ring->in);
  if (status == QUAY_OK)
    status = open_leg(ring, &ring->out);
  if (status == QUAY_OK && after != NULL)
    status = quay__leg_follow(ring->in.side != NULL ? &ring->in : &ring->out, *after);
  if (status == QUAY_OK)
    status = run(ring);
  close_leg(&ring->in, status);
  close_leg(&ring->out, status);
  quay__slots_close(ring);
  quay__staging_leave(ring->plan.pin);
  pthread_cond_destroy(&ring->changed);
  end_report(ring);
  return status;
}

/* Entries. */

static quay__leg leg_of(const quay__side *side, const quay__staging_plan *plan) {
  const quay_allocator *allocator = side->allocator;
  const bool on_stream = plan->pin != NULL && allocator->has_async &&
                         quay__staging_memory_serves(plan->pin, allocator->device);
  return (quay__leg){.kind = on_stream ? QUAY__LEG_STREAM : QUAY__LEG_CALLS, .side = side};
}

quay_status quay__stage(const quay__side *destination, const quay__side *source, uint64_t size,
                        const quay__staging_plan *plan, const quay_copy_options *options,
                        bool *out_moved) {
  quay__ring ring = {
      .options = options,
      .plan = *plan,
      .size = size,
      .in = leg_of(destination, plan),
      .out = leg_of(source, plan),
  };
  ring.out.several =
      ring.out.kind == QUAY__LEG_CALLS && source->allocator->kind == QUAY_MEMORY_FILE;
  ring.in.several = ring.in.kind == QUAY__LEG_CALLS && ring.out.kind == QUAY__LEG_STREAM &&
                    destination->allocator->kind == QUAY_MEMORY_FILE;
  bool begun;
  quay_status status = run_ring(&ring, NULL, &begun);
  if (!begun && plan->pin != NULL) {
    /* The device refuses to page-lock memory: by calls, then. */
    quay__staging_plan calls;
    quay__staging_plan_make(destination, source, size, &calls);
    if (calls.pin == NULL)
      return quay__stage(destination, source, size, &calls, options, out_moved);
  }
  *out_moved = ring.moved;
  return status;
}

/* Between host memory and one side that has a stream. */
static quay_status stage_host(const quay__host_stage *copy, bool into, bool *out_done) {
  static const quay_copy_options options;
  quay__staging_plan plan;
  *out_done = false;
  if (!quay__host_stage_plan(copy->side.allocator, into, copy->size, &plan))
    return QUAY_OK;
  const quay__leg device = {.kind = QUAY__LEG_STREAM, .side = &copy->side};
  const quay__leg host = {.kind = QUAY__LEG_MEMORY, .memory = copy->memory, .several = true};
  quay__ring ring = {
      .options = &options,
      .plan = plan,
      .size = copy->size,
      .in = into ? device : host,
      .out = into ? host : device,
  };
  quay__error_state error;
  quay__error_save(&error);
  const quay_status status = run_ring(&ring, copy->after, out_done);
  if (!*out_done) {
    quay__error_restore(&error);
    return QUAY_OK;
  }
  if (status != QUAY_OK && !ring.moved && into)
    quay__copy_refused();
  return status;
}

quay_status quay__stage_in(const quay__host_stage *copy, bool *out_done) {
  return stage_host(copy, true, out_done);
}

quay_status quay__stage_out(const quay__host_stage *copy, bool *out_done) {
  return stage_host(copy, false, out_done);
}
