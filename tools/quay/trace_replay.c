/* Replays a log of allocations on an allocator: reading the log into memory, the loop that is
 * timed, and what is measured beside it.
 *
 * Each stream of the log is a stream of the allocator's device, in whose order its blocks are
 * allocated. A free says that no work uses the block any more, as if the block's events had been
 * seen complete before the next event.
 *
 * Reserved memory can only change with a call of the backend, which the meter counts: so the
 * statistics are read, and the reading taken out of the time, only after events with such calls. */
#include "trace_replay.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "layers/meter.h"
#include "program.h"

/* Reading. */

/* Room for one more element of `size` bytes in an array. NULL if there is no memory; the array is
 * as before then. */
static void *grow(void *array, size_t count, size_t *capacity, size_t size) {
  if (count < *capacity)
    return array;
  const size_t larger = *capacity != 0 ? 2 * *capacity : 1024;
  void *const grown = reallocarray(array, larger, size);
  if (grown != NULL)
    *capacity = larger;
  return grown;
}

/* The number of a stream, as of the first event on it. Logs have few streams. False if there is no
 * memory. */
static bool find_stream(replay_trace *trace, uint64_t stream, uint32_t *out_index) {
  for (size_t i = 0; i < trace->stream_count; ++i) {
    *out_index = (uint32_t)i;
    if (trace->streams[i] == stream)
      return true;
  }
  uint64_t *const grown =
      grow(trace->streams, trace->stream_count, &trace->stream_capacity, sizeof *grown);
  if (grown == NULL)
    return false;
  trace->streams = grown;
  *out_index = (uint32_t)trace->stream_count;
  trace->streams[trace->stream_count++] = stream;
  return true;
}

static bool append(replay_trace *trace, const trace_event *event) {
  uint32_t stream = 0;
  if (event->action == TRACE_FAILURE)
    return true;
  replay_event *const grown = grow(trace->events, trace->count, &trace->capacity, sizeof *grown);
  if (grown == NULL)
    return false;
  trace->events = grown;
  if (!find_stream(trace, event->stream, &stream))
    return false;
  trace->events[trace->count++] = (replay_event){
      .size = event->size,
      .slot = event->slot,
      .stream = stream & INT32_MAX,
      .is_free = event->action == TRACE_FREE,
  };
  return true;
}

static bool read_events(trace_log *log, replay_trace *trace, char *out_error) {
  trace_event event;
  for (;;) {
    switch (trace_log_next(log, &event)) {
    case TRACE_END:
      trace->slots = trace_log_slots(log);
      return true;
    case TRACE_BAD:
      snprintf(out_error, TRACE_ERROR_SIZE, "%s", trace_log_error(log));
      return false;
    case TRACE_EVENT:
      break;
    }
    if (!append(trace, &event)) {
      snprintf(out_error, TRACE_ERROR_SIZE, "out of memory");
      return false;
    }
  }
}

bool replay_trace_read(const char *path, replay_trace *out_trace,
                       char out_error[TRACE_ERROR_SIZE]) {
  *out_trace = (replay_trace){.events = NULL};
  trace_log *const log = trace_log_open(path, out_error);
  if (log == NULL)
    return false;
  const bool done = read_events(log, out_trace, out_error);
  trace_log_close(log);
  if (!done)
    replay_trace_free(out_trace);
  return done;
}

void replay_trace_free(replay_trace *trace) {
  free(trace->events);
  free(trace->streams);
  *trace = (replay_trace){.events = NULL};
}

/* Replaying. */

typedef struct replay {
  const replay_trace *trace;
  bool touch;
  quay_allocator *allocator;
  quay__meter *meter;
  quay_stream **streams;   /* one for each of the trace's */
  quay_raw_buffer *blocks; /* by slot; zero where none is live */
} replay;

/* What one pass gives. */
typedef struct replay_pass {
  uint64_t live, peak_live, peak_reserved; /* bytes */
  uint64_t failed;
  double seconds;
  char first_failure[sizeof((replay_result *)NULL)->first_failure];
} replay_pass;

static void touch_pages(void *memory, uint64_t size) {
  volatile unsigned char *const bytes = memory;
  const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
  for (uint64_t at = 0; at < size; at += page)
    bytes[at] = 0xa5;
  bytes[size - 1] = 0xa5;
}

/* Through a buffer, for memory that only the device can write to. */
static quay_status fill_block(quay_raw_buffer *block) {
  const int64_t shape[] = {(int64_t)block->size};
  const unsigned char pattern = 0xa5;
  quay_buffer *buffer = NULL;
  QUAY_TRY(quay_buffer_from_raw(block, QUAY_U8, 1, shape, &buffer));
  const quay_status status = quay_buffer_fill(buffer, &pattern, sizeof pattern);
  if (quay_buffer_release_raw(&buffer, block) != QUAY_OK)
    quay_buffer_release(buffer);
  return status;
}

/* The block is there only in the order of its stream. */
static quay_status touch_block(quay_stream *stream, quay_raw_buffer *block) {
  if (block->size == 0)
    return QUAY_OK;
  QUAY_TRY(quay_stream_synchronize(stream));
  if (!quay_raw_buffer_host_accessible(block))
    return fill_block(block);
  void *memory = NULL;
  QUAY_TRY(quay_raw_buffer_host_pointer(block, &memory));
  touch_pages(memory, block->size);
  return QUAY_OK;
}

static quay_status allocate(const replay *run, const replay_event *event, replay_pass *pass) {
  quay_stream *const stream = run->streams[event->stream];
  quay_raw_buffer *const block = &run->blocks[event->slot];
  const quay_alloc_options options = {.stream = stream};
  if (quay_allocator_alloc(run->allocator, event->size, &options, block) != QUAY_OK) {
    if (pass->failed++ == 0)
      snprintf(pass->first_failure, sizeof pass->first_failure, "%s", quay_last_error()->message);
    return QUAY_OK;
  }
  pass->live += event->size;
  if (pass->live > pass->peak_live)
    pass->peak_live = pass->live;
  return run->touch ? touch_block(stream, block) : QUAY_OK;
}

static void release(const replay *run, const replay_event *event, replay_pass *pass) {
  quay_raw_buffer *const block = &run->blocks[event->slot];
  if (block->owner == NULL) /* its allocation failed */
    return;
  pass->live -= event->size;
  quay_raw_buffer_free(block);
}

static quay_status sample(const replay *run, replay_pass *pass) {
  const double begun = now_seconds();
  quay_stats stats;
  QUAY_TRY(quay_allocator_stats(run->allocator, &stats));
  if (stats.reserved_bytes > pass->peak_reserved)
    pass->peak_reserved = stats.reserved_bytes;
  pass->seconds -= now_seconds() - begun;
  return QUAY_OK;
}

static quay_status run_pass(const replay *run, replay_pass *pass) {
  const size_t count = run->trace->count;
  uint64_t seen = 0;
  const double begun = now_seconds();
  for (size_t i = 0; i < count; ++i) {
    const replay_event *const event = &run->trace->events[i];
    if (event->is_free) {
      release(run, event, pass);
    } else {
      QUAY_TRY(allocate(run, event, pass));
    }
    const uint64_t calls = quay__meter_calls(run->meter);
    if (calls != seen)
      QUAY_TRY(sample(run, pass));
    seen = calls;
  }
  pass->seconds += now_seconds() - begun;
  return QUAY_OK;
}

/* Frees what the trace left live, so that the next pass finds nothing but what is cached. */
static quay_status clear(const replay *run) {
  for (uint32_t i = 0; i < run->trace->slots; ++i)
    quay_raw_buffer_free(&run->blocks[i]);
  return quay_allocator_synchronize(run->allocator);
}

static quay_status create_streams(replay *run) {
  quay_device *const device = quay_allocator_device(run->allocator);
  for (size_t i = 0; i < run->trace->stream_count; ++i)
    QUAY_TRY(quay_stream_create(device, NULL, &run->streams[i]));
  return QUAY_OK;
}

static double per_event(const replay *run, double seconds) {
  return run->trace->count > 0 ? seconds / (double)run->trace->count * 1e9 : 0;
}

static quay_status run_passes(replay *run, replay_result *out) {
  replay_pass first = {.live = 0}, warm = {.live = 0};
  QUAY_TRY(create_streams(run));
  QUAY_TRY(run_pass(run, &first));
  const quay__meter_counts counts = quay__meter_read(run->meter);
  QUAY_TRY(clear(run));
  QUAY_TRY(run_pass(run, &warm));
  *out = (replay_result){
      .peak_live_bytes = first.peak_live,
      .peak_reserved_bytes = first.peak_reserved,
      .ns_per_event = per_event(run, first.seconds),
      .ns_per_event_warm = per_event(run, warm.seconds),
      .driver_calls = counts.calls,
      .driver_seconds = (double)counts.nanoseconds * 1e-9,
      .failed = first.failed > warm.failed ? first.failed : warm.failed,
  };
  snprintf(out->first_failure, sizeof out->first_failure, "%s",
           first.failed != 0 ? first.first_failure : warm.first_failure);
  return clear(run);
}

static void end_run(replay *run) {
  for (uint32_t i = 0; run->blocks != NULL && i < run->trace->slots; ++i)
    quay_raw_buffer_free(&run->blocks[i]);
  for (size_t i = 0; run->streams != NULL && i < run->trace->stream_count; ++i)
    quay_stream_release(run->streams[i]);
  free(run->blocks);
  free((void *)run->streams);
  quay_allocator_release(run->allocator);
}

replay_status replay_run(const replay_trace *trace, const char *spec, bool touch,
                         replay_result *out_result) {
  replay run = {.trace = trace, .touch = touch};
  if (quay__meter_open(spec, &run.allocator, &run.meter) != QUAY_OK)
    return REPLAY_FAILED;
  run.blocks = calloc((size_t)trace->slots + 1, sizeof *run.blocks);
  run.streams = (quay_stream **)calloc(trace->stream_count + 1, sizeof(void *));
  replay_status status = REPLAY_NO_MEMORY;
  if (run.blocks != NULL && run.streams != NULL)
    status = run_passes(&run, out_result) == QUAY_OK ? REPLAY_DONE : REPLAY_FAILED;
  end_run(&run);
  return status;
}
