/* Who runs operations, and when: the threads of streams, or in manual mode whoever waits. */
#include <string.h>
#include <time.h>

#include "late_internal.h"

static bool can_run(const late_stream *stream) {
  const late_op *const op = stream->head;
  if (op == NULL || stream->busy)
    return false;
  switch (op->kind) {
  case LATE_OP_WAIT:
    return op->event->done;
  case LATE_OP_HOLD:
    return op->gate->open;
  case LATE_OP_COPY:
  case LATE_OP_FILL:
  case LATE_OP_KERNEL:
  case LATE_OP_RECORD:
  case LATE_OP_DELAY:
    return true;
  }
  return false;
}

static void sleep_us(uint64_t microseconds) {
  const struct timespec time = {
      .tv_sec = (time_t)(microseconds / 1000000),
      .tv_nsec = (long)(microseconds % 1000000) * 1000,
  };
  nanosleep(&time, NULL);
}

static void run_kernel(const late_op *op) {
  unsigned char *bytes[LATE_MAX_USES];
  for (size_t i = 0; i < op->place_count; i++)
    bytes[i] = late_place_bytes(&op->places[i]);
  op->kernel(op->user, bytes);
}

static void run_fill(const late_op *op) {
  unsigned char *const bytes = late_place_bytes(&op->places[0]);
  for (uint64_t i = 0; i < op->size; i += op->pattern_size)
    memcpy(bytes + i, op->pattern, op->pattern_size);
}

/* Without the lock. */
static void run_body(const late_op *op) {
  pthread_mutex_lock(&late.moving);
  switch (op->kind) {
  case LATE_OP_COPY:
    memmove(late_place_bytes(&op->places[0]), late_place_bytes(&op->places[1]), op->size);
    break;
  case LATE_OP_FILL:
    run_fill(op);
    break;
  case LATE_OP_KERNEL:
    run_kernel(op);
    break;
  case LATE_OP_WAIT:
  case LATE_OP_RECORD:
  case LATE_OP_HOLD:
  case LATE_OP_DELAY:
    break;
  }
  pthread_mutex_unlock(&late.moving);
}

/* How long the first operation takes before it does anything, in microseconds. */
static uint64_t delay_of(late_stream *stream) {
  if (late.options.mode != LATE_THREADS)
    return 0;
  const uint64_t own = stream->head->microseconds;
  return own + late_random(&stream->random) % (late.options.max_delay_us + 1);
}

static void lose_when_due(late_device *device) {
  if (device->lose_after == 0 || --device->lose_after != 0)
    return;
  late_device_lose(device, "the operation that a test has named was reached");
}

/* Runs the first operation of a stream that can_run(). The stream may be gone afterwards. */
static void run_first(late_stream *stream) {
  late_op *const op = stream->head;
  late_device *const device = stream->device;
  const late_op_kind kind = op->kind;
  if (late_op_is_work(kind)) {
    const uint64_t delay = delay_of(stream);
    stream->busy = true;
    late_unlock();
    if (delay > 0)
      sleep_us(delay);
    run_body(op);
    late_lock();
    stream->busy = false;
    late.run++;
  }
  stream->head = op->next;
  if (stream->head == NULL)
    stream->tail = NULL;
  uint64_t order = late.order ^ op->serial;
  late.order = late_random(&order);
  if (kind == LATE_OP_RECORD)
    late_event_complete(op->event, false);
  late_op_free(op);
  pthread_cond_broadcast(&late.changed);
  if (late.options.mode == LATE_MANUAL)
    late_streams_reap();
  if (late_op_is_work(kind))
    lose_when_due(device);
}

void *late_stream_thread(void *user) {
  late_stream *const stream = user;
  late_lock();
  while (!stream->closed || stream->head != NULL) {
    if (can_run(stream)) {
      run_first(stream);
    } else {
      pthread_cond_wait(&late.changed, &late.lock);
    }
  }
  stream->over = true;
  pthread_cond_broadcast(&late.changed);
  late_unlock();
  return NULL;
}

/* Manual mode. */

/* Whether `stream` counts among those to choose from: all that can run, or those that somebody
 * needs. */
static bool is_candidate(const late_stream *stream, bool needed_only) {
  return can_run(stream) && (!needed_only || stream->head->serial <= stream->target);
}

static late_stream *choose(bool needed_only) {
  uint64_t count = 0;
  for (const late_stream *s = late.streams; s != NULL; s = s->next)
    count += is_candidate(s, needed_only);
  if (count == 0)
    return NULL;
  uint64_t chosen = late_random(&late.random) % count;
  for (late_stream *s = late.streams; s != NULL; s = s->next) {
    if (is_candidate(s, needed_only) && chosen-- == 0)
      return s;
  }
  return NULL;
}

/* Raises the targets of the streams that `stream` waits for on the way to its own. */
static bool require_waits(const late_stream *stream) {
  bool raised = false;
  for (const late_op *op = stream->head; op != NULL && op->serial <= stream->target;
       op = op->next) {
    if (op->kind != LATE_OP_WAIT || op->event->done)
      continue;
    late_stream *const other = op->event->stream;
    if (other->target < op->event->serial) {
      other->target = op->event->serial;
      raised = true;
    }
  }
  return raised;
}

static bool all_done(late_event *const *events, size_t count) {
  for (size_t i = 0; i < count; i++) {
    if (!events[i]->done)
      return false;
  }
  return true;
}

static void require(late_event *const *events, size_t count) {
  for (late_stream *s = late.streams; s != NULL; s = s->next)
    s->target = 0;
  for (size_t i = 0; i < count; i++) {
    if (!events[i]->done && events[i]->stream->target < events[i]->serial)
      events[i]->stream->target = events[i]->serial;
  }
  bool raised = true;
  while (raised) {
    raised = false;
    for (const late_stream *s = late.streams; s != NULL; s = s->next)
      raised = require_waits(s) || raised;
  }
}

/* Runs what is needed, and waits where that has to wait for a gate or is being run already. */
static void run_until(late_event *const *events, size_t count) {
  if (!all_done(events, count))
    require(events, count);
  while (!all_done(events, count)) {
    late_stream *next = choose(true);
    if (next == NULL) {
      require(events, count);
      next = choose(true);
    }
    if (next != NULL) {
      run_first(next);
    } else {
      pthread_cond_wait(&late.changed, &late.lock);
    }
  }
}

void late_wait(late_event *const *events, size_t count) {
  if (late.options.mode == LATE_MANUAL)
    run_until(events, count);
  while (!all_done(events, count))
    pthread_cond_wait(&late.changed, &late.lock);
  for (size_t i = 0; i < count; i++)
    late_clock_join(&late_host()->clock, &events[i]->clock);
}

void late_run_eagerly(void) {
  if (late.options.mode != LATE_MANUAL)
    return;
  while (late.options.eager_percent > 0 &&
         late_random(&late.random) % 100 < late.options.eager_percent) {
    late_stream *const next = choose(false);
    if (next == NULL)
      return;
    run_first(next);
  }
}

/* For tests. */

bool late_step(uint64_t handle) {
  late_lock();
  late_stream *const stream = late_handle_get(LATE_TAG_STREAM, handle);
  const bool runs = late.options.mode == LATE_MANUAL && stream != NULL && can_run(stream);
  if (runs)
    run_first(stream);
  late_unlock();
  return runs;
}

uint64_t late_run_all(void) {
  uint64_t count = 0;
  late_lock();
  for (late_stream *next; late.options.mode == LATE_MANUAL && (next = choose(false)) != NULL;) {
    run_first(next);
    count++;
  }
  late_unlock();
  return count;
}

uint64_t late_order(void) {
  late_lock();
  const uint64_t order = late.order;
  late_unlock();
  return order;
}

uint64_t late_queued(uint64_t handle) {
  late_lock();
  const late_stream *const stream = late_handle_get(LATE_TAG_STREAM, handle);
  uint64_t count = 0;
  for (const late_op *op = stream != NULL ? stream->head : NULL; op != NULL; op = op->next)
    count++;
  late_unlock();
  return count;
}
