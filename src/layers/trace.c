/* The trace layer: writes every allocation and free into a log that quay replay and RMM's tools
 * read. The lines are in an order in which they can be replayed: an allocation is logged after it
 * was made and a free before, so that an address is never handed out again ahead of the line that
 * frees it. trace_writer.c has the file, trace_live.c the blocks that are live. */
#include <inttypes.h>
#include <quay/layers.h>
#include <stdio.h>
#include <string.h>

#include "core/allocator_impl.h"
#include "core/checked.h"
#include "core/error.h"
#include "core/lifecycle.h"
#include "core/lock.h"
#include "core/os.h"
#include "core/registry.h"
#include "layers/trace_live.h"
#include "layers/trace_writer.h"

/* Lines between two writes of the file, unless the spec says otherwise. */
#define DEFAULT_FLUSH 128u

/* Logged for blocks that have no address: above all addresses. */
#define NUMBERED_POINTER (UINT64_C(1) << 63)

typedef struct trace_layer {
  quay__lock lock; /* guards what follows up to `fork_generation` */
  quay__trace_writer writer;
  quay__trace_live live;
  uint64_t serial;
  quay__trace_state reported; /* the state that the log callback was last told */
  uint32_t fork_generation;   /* of the process that opened it: a child has the same file */
  struct trace_layer *next;   /* in the list of all; guarded by QUAY__LOCK_TRACES */
} trace_layer;

static trace_layer *traces;

/* Reports. */

/* What is to be told, taken with the lock held and told without it. */
typedef struct trace_report {
  bool due;
  quay__trace_state state;
  int error;
  uint64_t waiting;
} trace_report;

static trace_report take_report(trace_layer *layer) {
  const quay__trace_writer *const writer = &layer->writer;
  const trace_report report = {
      .due = writer->state != layer->reported && writer->state != QUAY__TRACE_WHOLE,
      .state = writer->state,
      .error = writer->error,
      .waiting = writer->waiting,
  };
  layer->reported = writer->state;
  return report;
}

static void tell(quay_allocator *allocator, const trace_report *report) {
  const trace_layer *const layer = allocator->self;
  if (!report->due)
    return;
  quay__statistics_error(&allocator->statistics);
  if (report->state == QUAY__TRACE_STUCK) {
    quay_log(QUAY_LOG_ERROR,
             "trace layer: can't write \"%s\" (%s); %" PRIu64 " lines wait in memory",
             layer->writer.path, quay__errno_name(report->error), report->waiting);
  } else {
    quay_log(QUAY_LOG_ERROR,
             "trace layer: \"%s\" took no more (%s) until the memory for lines was full; it ends "
             "before what is lost, and nothing more is logged",
             layer->writer.path, quay__errno_name(report->error));
  }
}

/* Lines. */

static bool is_forked(const trace_layer *layer) {
  return layer->fork_generation != quay__fork_generation;
}

static uint64_t stream_of(const quay_alloc_request *request) {
  return request->stream != NULL ? quay_stream_id(request->stream) : 0;
}

/* Blocks are found again by their handles: the backend answers for the address of memory of a lost
 * device no more. */
static quay__trace_key key_of(const quay_raw_buffer *raw) {
  return quay__trace_key_of(&raw->as, sizeof raw->as);
}

static void add_line(trace_layer *layer, const char *action, const quay__trace_block *block) {
  const quay__trace_line line = {
      .action = action, .pointer = block->pointer, .size = block->size, .stream = block->stream};
  quay__trace_writer_add(&layer->writer, &line);
}

/* After a reset of the device an address can be that of a block which is gone without a free. With
 * the lock held. */
static void end_stale(trace_layer *layer, const quay_device *device, uint64_t pointer) {
  if (quay__device_generation(device) == 1 || pointer == 0)
    return;
  quay__trace_block *const stale = quay__trace_live_take_at(&layer->live, pointer);
  if (stale != NULL)
    add_line(layer, "free", stale);
  quay__os_free(stale);
}

/* `block` has size and stream. Takes it over. */
static void log_allocation(quay_allocator *allocator, const quay_raw_buffer *raw,
                           quay__trace_block *block) {
  trace_layer *const layer = allocator->self;
  quay_allocator *const inner = allocator->inner;
  quay__error_shield();
  const bool addressed = inner->vtable.address(inner, raw, &block->pointer) == QUAY_OK;
  quay__error_unshield();
  block->key = key_of(raw);
  quay__lock_acquire(&layer->lock);
  layer->serial++;
  if (!addressed)
    block->pointer = NUMBERED_POINTER | layer->serial;
  if (block->size == 0) /* it may share an address with others */
    block->pointer = 0;
  end_stale(layer, allocator->device, block->pointer);
  quay__trace_live_add(&layer->live, block);
  add_line(layer, "allocate", block);
  const trace_report report = take_report(layer);
  quay__lock_release(&layer->lock);
  tell(allocator, &report);
}

static void log_failure(quay_allocator *allocator, const quay_alloc_request *request) {
  trace_layer *const layer = allocator->self;
  const quay__trace_block block = {.size = request->size, .stream = stream_of(request)};
  quay__error_state error;
  quay__error_save(&error);
  quay__lock_acquire(&layer->lock);
  add_line(layer, "allocate failure", &block);
  const trace_report report = take_report(layer);
  quay__lock_release(&layer->lock);
  tell(allocator, &report);
  quay__error_restore(&error);
}

/* A block that is not known is not logged: it was freed before, or never was. */
static void log_free(quay_allocator *allocator, quay__trace_key key, uint64_t size) {
  trace_layer *const layer = allocator->self;
  quay__lock_acquire(&layer->lock);
  quay__trace_block *const block = quay__trace_live_take(&layer->live, key, size);
  if (block != NULL)
    add_line(layer, "free", block);
  const trace_report report = take_report(layer);
  quay__lock_release(&layer->lock);
  quay__os_free(block);
  tell(allocator, &report);
}

/* The table. */

static quay_status trace_alloc(quay_allocator *allocator, const quay_alloc_request *request,
                               quay_raw_buffer *out_raw) {
  if (is_forked(allocator->self))
    return quay__alloc(allocator->inner, request, out_raw);
  quay__trace_block *const block = quay__os_calloc(1, sizeof *block);
  if (block == NULL)
    return quay__fail_out_of_memory(sizeof *block, "the trace layer's record of a block");
  block->size = request->size;
  block->stream = stream_of(request);
  const quay_status status = quay__alloc(allocator->inner, request, out_raw);
  if (status != QUAY_OK) {
    quay__os_free(block);
    log_failure(allocator, request);
    return status;
  }
  log_allocation(allocator, out_raw, block);
  return QUAY_OK;
}

static bool is_logged(quay_allocator *allocator, const quay_raw_buffer *raw) {
  return (raw->flags & QUAY__RAW_RESERVED) == 0 && !is_forked(allocator->self);
}

static void trace_free(quay_allocator *allocator, quay_raw_buffer *raw, quay_event *const *pending,
                       size_t count) {
  if (is_logged(allocator, raw))
    log_free(allocator, key_of(raw), raw->size);
  quay__free(allocator->inner, raw, pending, count);
}

static quay_status trace_release(quay_allocator *allocator, quay_raw_buffer *raw,
                                 quay_host_memory *out_memory) {
  const quay_raw_buffer before = *raw;
  QUAY_TRY(quay__release(allocator->inner, raw, out_memory));
  if (is_logged(allocator, &before))
    log_free(allocator, key_of(&before), before.size);
  return QUAY_OK;
}

/* Ends. */

/* Writes the buffer. */
static quay_status flush(quay_allocator *allocator) {
  trace_layer *const layer = allocator->self;
  if (is_forked(layer))
    return QUAY_OK;
  quay__lock_acquire(&layer->lock);
  const bool written = quay__trace_writer_flush(&layer->writer);
  const int error = layer->writer.error;
  const uint64_t missing = layer->writer.lost + layer->writer.waiting;
  const trace_report report = take_report(layer);
  quay__lock_release(&layer->lock);
  tell(allocator, &report);
  if (written)
    return QUAY_OK;
  return quay__fail_errno(quay__status_of_errno(error), "trace", error,
                          "the trace layer can't write \"%s\", which lacks %" PRIu64 " lines",
                          layer->writer.path, missing);
}

/* At the release of an allocator with live blocks, which then lingers. */
static void flush_at_release(quay_allocator *allocator) {
  quay__error_shield();
  (void)flush(allocator); /* told to the log callback */
  quay__error_unshield();
}

/* The program may never release its allocators. No lock but the list's is held where a file's is
 * taken, and none where the log callback is called. */
void quay__traces_flush_at_exit(void) {
  uint64_t incomplete = 0;
  quay__global_acquire(QUAY__LOCK_TRACES);
  for (trace_layer *layer = traces; layer != NULL; layer = layer->next) {
    if (is_forked(layer))
      continue;
    quay__lock_acquire(&layer->lock);
    incomplete += !quay__trace_writer_flush(&layer->writer);
    quay__lock_release(&layer->lock);
  }
  quay__global_release(QUAY__LOCK_TRACES);
  if (incomplete > 0) {
    quay_log(QUAY_LOG_ERROR, "trace layer: %" PRIu64 " logs could not be completed at exit",
             incomplete);
  }
}

static void enter_list(trace_layer *layer) {
  quay__global_acquire(QUAY__LOCK_TRACES);
  layer->next = traces;
  traces = layer;
  quay__global_release(QUAY__LOCK_TRACES);
}

static void leave_list(const trace_layer *layer) {
  quay__global_acquire(QUAY__LOCK_TRACES);
  trace_layer **link = &traces;
  while (*link != NULL && *link != layer)
    link = &(*link)->next;
  if (*link != NULL)
    *link = layer->next;
  quay__global_release(QUAY__LOCK_TRACES);
}

/* Writes what is left and closes the file. */
static void end_file(trace_layer *layer) {
  quay__trace_writer *const writer = &layer->writer;
  bool whole = is_forked(layer) || quay__trace_writer_flush(writer);
  const uint64_t missing = writer->lost + writer->waiting;
  int error_number = writer->error;
  char path[256];
  snprintf(path, sizeof path, "%s", writer->path);
  const int closing_error = quay__trace_writer_close(writer);
  if (whole && closing_error != 0) {
    whole = false;
    error_number = closing_error;
  }
  if (!whole) {
    quay_log(QUAY_LOG_ERROR, "trace layer: \"%s\" is not complete (%s): it lacks %" PRIu64 " lines",
             path, quay__errno_name(error_number), missing);
  }
}

static void trace_destroy(void *self) {
  trace_layer *const layer = self;
  leave_list(layer);
  end_file(layer);
  quay__trace_live_clear(&layer->live);
  quay__lock_destroy(&layer->lock);
  quay__os_free(layer);
}

/* Opening. */

typedef struct trace_settings {
  const char *path;
  uint64_t flush_every;
} trace_settings;

static quay_status parse(const quay_spec_args *args, trace_settings *out) {
  static const quay_spec_key keys[] = {
      {NULL, "the path of the log"},
      {"flush", "a number of events from 1: after so many the file is written"},
  };
  QUAY_TRY(quay_spec_check(args, keys, sizeof keys / sizeof keys[0]));
  *out = (trace_settings){.path = quay_spec_value(args, NULL), .flush_every = DEFAULT_FLUSH};
  if (out->path == NULL) {
    return quay_error_set(QUAY_STATUS_INVALID_ARGUMENT, "trace", 0, NULL,
                          "the trace layer in \"%s\" has no path; it takes that of the log to "
                          "write: trace:/tmp/log.csv",
                          args->spec);
  }
  QUAY_TRY(quay_spec_unsigned(args, "flush", &out->flush_every));
  if (out->flush_every > 0)
    return QUAY_OK;
  return quay_error_set(QUAY_STATUS_INVALID_ARGUMENT, "trace", 0, NULL,
                        "flush=0 in \"%s\": the file is written after so many events, from 1",
                        args->spec);
}

/* "trace:PATH", with what means something in a layer's arguments escaped, and what is not the
 * default. */
static quay_status write_spec(const quay_spec_args *args, const trace_settings *settings,
                              char *out_spec, size_t size) {
  size_t used = (size_t)snprintf(out_spec, size, "trace:");
  for (const char *at = settings->path; *at != '\0' && used + 3 < size; at++) {
    if (strchr("\\,+=", *at) != NULL)
      out_spec[used++] = '\\';
    out_spec[used++] = *at;
    out_spec[used] = '\0';
  }
  if (settings->flush_every != DEFAULT_FLUSH && used < size) {
    used +=
        (size_t)snprintf(out_spec + used, size - used, ",flush=%" PRIu64, settings->flush_every);
  }
  if (used + 3 < size)
    return QUAY_OK;
  return quay_error_set(QUAY_STATUS_INVALID_ARGUMENT, "trace", 0, NULL,
                        "the trace layer's path is longer than an allocator's spec can be: \"%s\"",
                        args->spec);
}

static quay_status make_layer(const trace_settings *settings, trace_layer **out_layer) {
  trace_layer *const layer = quay__os_calloc(1, sizeof *layer);
  if (layer == NULL)
    return quay__fail_out_of_memory(sizeof *layer, "the trace layer");
  const quay_status status =
      quay__trace_writer_open(&layer->writer, settings->path, settings->flush_every);
  if (status != QUAY_OK) {
    quay__os_free(layer);
    return status;
  }
  layer->fork_generation = quay__fork_generation;
  quay__lock_init(&layer->lock);
  enter_list(layer);
  *out_layer = layer;
  return QUAY_OK;
}

static quay_status trace_open(const quay_spec_args *args, quay_allocator *inner,
                              quay_allocator **out_allocator) {
  trace_settings settings;
  char spec[1024];
  trace_layer *layer;
  QUAY_TRY(parse(args, &settings));
  QUAY_TRY(write_spec(args, &settings, spec, sizeof spec));
  QUAY_TRY(make_layer(&settings, &layer));
  const quay_allocator_vtable vtable = {
      .destroy = trace_destroy,
      .version = QUAY_ALLOCATOR_VTABLE_VERSION,
      .struct_size = sizeof(quay_allocator_vtable),
      .alloc = trace_alloc,
      .free = trace_free,
      .release = trace_release,
  };
  const quay_status status =
      quay__layer_create(&vtable, layer, "trace", spec, inner, out_allocator);
  if (status != QUAY_OK) {
    trace_destroy(layer);
    return status;
  }
  (*out_allocator)->report_leaks = flush_at_release;
  return QUAY_OK;
}

const quay__layer quay__layer_trace = {.name = "trace", .open = trace_open};

/* The public functions. */

quay_status quay_trace_flush(quay_allocator *allocator) {
  bool found = false;
  for (quay_allocator *each = allocator; each != NULL; each = each->inner) {
    if (each->vtable.destroy != trace_destroy)
      continue;
    QUAY_TRY(flush(each));
    found = true;
  }
  if (found)
    return QUAY_OK;
  return quay__fail(
      QUAY_STATUS_INVALID_ARGUMENT, "quay_trace_flush: %s%s%s",
      allocator == NULL ? "the allocator is NULL" : "\"", allocator == NULL ? "" : allocator->spec,
      allocator == NULL ? "" : "\" has no trace layer; open it as \"trace:PATH+...\"");
}
