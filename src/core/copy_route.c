/* The copy router. The ladder in choose() is the whole of the policy; the rest carries it out. It
 * always enters the outermost allocator of a side, so that layers see every copy, and it knows
 * backends by their flags alone. Staging itself is in staging.c. */
#include "core/copy_route.h"

#include <stdio.h>
#include <string.h>

#include "core/checked.h"
#include "core/copy_threads.h"
#include "core/environment.h"
#include "core/error.h"
#include "core/host_copy.h"
#include "core/pair_path.h"
#include "core/staging.h"
#include "core/staging_tuning.h"

/* With a progress callback, direct copies are cut into about 64 slices within these bounds: never
 * so small that fewer threads would share one, or that streaming stores would not pay. */
#define SLICE_MIN (UINT64_C(16) << 20)
#define SLICE_MAX (UINT64_C(64) << 20)

/* The same of a file that has to come from the disk: each of many threads has a stretch of it, and
 * all wait for the last one. */
#define DISK_SLICE (UINT64_C(256) << 20)

/* Which function of which side moves the bytes. */
typedef enum copy_way {
  WAY_NOTHING,
  WAY_HOST_COPY,
  WAY_WITHIN,
  WAY_ACROSS_BY_DESTINATION,
  WAY_ACROSS_BY_SOURCE,
  WAY_COPY_IN,
  WAY_COPY_OUT,
  WAY_STAGED,
} copy_way;

typedef struct choice {
  copy_way way;
  quay_route route;
  uint64_t chunk; /* bytes; 0: all at once */
  uint32_t threads;
  uint64_t staging_bytes; /* that the backend holds by itself */
  bool from_disk;         /* as the backend says; only once ask_details() has asked it */
  const char *reason;
} choice;

static const quay_copy_options no_options = {0};

/* Of the copy that is under way on the calling thread. */
typedef struct caps {
  uint32_t threads;
  uint64_t memory;
} caps;

/* Returns those before. */
static caps set_caps(uint32_t threads, uint64_t memory) {
  return (caps){quay__copy_threads_cap(threads), quay__copy_memory_cap(memory)};
}

static bool is_file(const quay__side *side) {
  return side->allocator->kind == QUAY_MEMORY_FILE;
}

/* Memory that may be read and written through its host address. A file's mapping is left alone: it
 * faults if the file was truncated, and reading the file is faster. */
static bool touchable(const quay__side *side) {
  return quay__host_accessible(side->allocator) && !is_file(side);
}

/* Of the backend: layers around it don't change what the memory is. */
static bool ordinary_memory(const quay__side *side) {
  return quay__plain_host_memory(side->allocator->backend);
}

static bool asks_across(quay_allocator *asked, const quay__side *destination,
                        const quay__side *source, uint64_t size, choice *out_choice) {
  if (ordinary_memory(destination) && ordinary_memory(source))
    return false;
  /* A lazy side has no handle yet; size and owner are what there is to tell. */
  const quay_raw_buffer lazy_destination = {.size = size, .owner = destination->allocator};
  const quay_raw_buffer lazy_source = {.size = size, .owner = source->allocator};
  quay_across_info info = {.route = QUAY_ROUTE_DIRECT};
  if (!asked->vtable.can_copy_across(
          asked, destination->raw != NULL ? destination->raw : &lazy_destination,
          source->raw != NULL ? source->raw : &lazy_source, size, &info)) {
    return false;
  }
  *out_choice = (choice){
      .route = info.route,
      .chunk = info.chunk,
      .threads = info.threads != 0 ? info.threads : 1,
      .staging_bytes = info.staging_bytes,
      .reason = info.reason != NULL ? info.reason : "one backend reaches the other's memory",
  };
  return true;
}

static choice host_copy(uint64_t size) {
  choice chosen = {.way = WAY_HOST_COPY,
                   .route = QUAY_ROUTE_WITHIN,
                   .reason = "both are ordinary host memory: the processor copies"};
  quay__host_copy_plan(size, 0, &chosen.threads, &chosen.chunk);
  return chosen;
}

static choice within(const quay__side *side, uint64_t size) {
  choice chosen = {.way = WAY_WITHIN,
                   .route = QUAY_ROUTE_WITHIN,
                   .threads = 1,
                   .reason = "both are of one device and kind: its backend's own copy"};
  if (ordinary_memory(side))
    quay__host_copy_plan(size, 0, &chosen.threads, &chosen.chunk);
  return chosen;
}

static choice copy_in(const quay__side *destination) {
  return (choice){
      .way = WAY_COPY_IN,
      .route = is_file(destination) ? QUAY_ROUTE_FILE : QUAY_ROUTE_DIRECT,
      .threads = 1,
      .reason = is_file(destination) ? "host memory is written to the file, past its mapping"
                                     : "the destination's backend reads the source's host memory",
  };
}

static choice copy_out(const quay__side *source) {
  return (choice){
      .way = WAY_COPY_OUT,
      .route = is_file(source) ? QUAY_ROUTE_FILE : QUAY_ROUTE_DIRECT,
      .threads = 1,
      .reason = is_file(source) ? "the file is read into host memory, past its mapping"
                                : "the source's backend writes the destination's host memory",
  };
}

/* Smaller copies of a file are not worth looking for another backend. */
#define STAND_IN_LEAST (UINT64_C(64) << 10)

/* The sides of a staged copy, of which one may be another backend's view of the memory. */
typedef struct staged_sides {
  const quay__side *destination, *source;
  quay__side side; /* by `other` */
  quay__stand_in other;
} staged_sides;

/* Files to and from memory that another backend copies faster; layers would not see it. */
static bool find_stand_in(const quay__side *side, const quay__side *beside, uint64_t size,
                          quay__stand_in *out) {
  return size > STAND_IN_LEAST && side->raw != NULL &&
         beside->allocator->kind == QUAY_MEMORY_FILE &&
         side->allocator->backend == side->allocator && !quay__staging_tuning_get()->no_stand_ins &&
         quay__pair_stand_in(side->allocator, side->raw, out);
}

static void find_sides(const quay__side *destination, const quay__side *source, uint64_t size,
                       staged_sides *out) {
  *out = (staged_sides){.destination = destination, .source = source};
  const bool into = find_stand_in(destination, source, size, &out->other);
  if (!into && !find_stand_in(source, destination, size, &out->other))
    return;
  out->side = (quay__side){.allocator = out->other.allocator,
                           .raw = &out->other.raw,
                           .offset = into ? destination->offset : source->offset};
  *(into ? &out->destination : &out->source) = &out->side;
}

/* With a plan of its own: the other backend's device may have gone since the copy was planned. */
static quay_status move_staged(const quay__side *destination, const quay__side *source,
                               uint64_t size, const quay_copy_options *options, bool *out_moved) {
  quay__staging_plan plan;
  staged_sides sides;
  find_sides(destination, source, size, &sides);
  quay__staging_plan_make(sides.destination, sides.source, size, &plan);
  const quay_status status =
      quay__stage(sides.destination, sides.source, size, &plan, options, out_moved);
  quay__pair_stand_in_end(&sides.other);
  return status;
}

static quay_status staged(const quay__side *destination, const quay__side *source, uint64_t size,
                          const quay_copy_options *options, choice *out_choice) {
  if (options->forbid_staging) {
    return quay__fail(
        QUAY_STATUS_UNSUPPORTED,
        "a copy from %s memory of %s to %s memory of %s has no direct path, and staging "
        "through host memory was forbidden; allow it",
        quay_memory_kind_name(source->allocator->kind), source->allocator->spec,
        quay_memory_kind_name(destination->allocator->kind), destination->allocator->spec);
  }
  QUAY_TRY(quay__environment_check());
  quay__staging_plan staging;
  staged_sides sides;
  find_sides(destination, source, size, &sides);
  quay__staging_plan_make(sides.destination, sides.source, size, &staging);
  const bool stands_in = sides.other.allocator != NULL;
  quay__pair_stand_in_end(&sides.other);
  *out_choice = (choice){
      .way = WAY_STAGED,
      .route = QUAY_ROUTE_STAGED,
      .chunk = staging.chunk,
      .threads = staging.threads,
      .staging_bytes = staging.chunk * staging.slots,
      .reason = stands_in
                    ? "in chunks through page-locked host memory, by CUDA, which has imported "
                      "the memory"
                    : staging.reason,
  };
  return QUAY_OK;
}

/* The ladder. Nothing to move: nothing is done. Two sides of ordinary host memory: the processor
 * copies. One space: its backend copies within it. A path that the destination offers, else one
 * that the source offers: that backend copies across. A source that may be touched: the destination
 * copies it in. A destination that may be touched: the source copies out to it. Else in chunks
 * through host memory. */
static quay_status choose(const quay__side *destination, const quay__side *source, uint64_t size,
                          const quay_copy_options *options, choice *out_choice) {
  if (size == 0) {
    *out_choice = (choice){.way = WAY_NOTHING, .reason = "there are no bytes to move"};
  } else if (quay__plain_host_memory(destination->allocator) &&
             quay__plain_host_memory(source->allocator)) {
    *out_choice = host_copy(size);
  } else if (quay__same_space(destination->allocator, source->allocator)) {
    *out_choice = within(destination, size);
  } else if (asks_across(destination->allocator, destination, source, size, out_choice)) {
    out_choice->way = WAY_ACROSS_BY_DESTINATION;
  } else if (asks_across(source->allocator, destination, source, size, out_choice)) {
    out_choice->way = WAY_ACROSS_BY_SOURCE;
  } else if (touchable(source)) {
    *out_choice = copy_in(destination);
  } else if (touchable(destination)) {
    *out_choice = copy_out(source);
  } else {
    return staged(destination, source, size, options, out_choice);
  }
  return QUAY_OK;
}

/* How the backend that moves the bytes would go about it; nobody needs to know but a plan, and who
 * cuts a copy into slices. */
static void ask_details(const quay__side *destination, const quay__side *source, uint64_t size,
                        choice *chosen) {
  const bool into = chosen->way == WAY_COPY_IN, out = chosen->way == WAY_COPY_OUT;
  if (!into && !out && chosen->way != WAY_WITHIN)
    return;
  const quay_raw_buffer lazy_destination = {.size = size, .owner = destination->allocator};
  const quay_raw_buffer lazy_source = {.size = size, .owner = source->allocator};
  const quay_raw_buffer *to = destination->raw != NULL ? destination->raw : &lazy_destination;
  const quay_raw_buffer *from = source->raw != NULL ? source->raw : &lazy_source;
  quay_allocator *entered = out ? source->allocator : destination->allocator;
  quay_across_info info = {.chunk = chosen->chunk != 0 ? chosen->chunk : size,
                           .threads = chosen->threads,
                           .source_offset = source->offset};
  entered->vtable.copy_info(entered, out ? NULL : to, into ? NULL : from, size, &info);
  chosen->chunk = info.chunk;
  chosen->threads = info.threads != 0 ? info.threads : 1;
  chosen->staging_bytes = info.staging_bytes;
  chosen->from_disk = info.from_disk;
  if (info.reason != NULL)
    chosen->reason = info.reason;
}

static uint64_t slice_of(const choice *chosen, uint64_t size) {
  if (chosen->from_disk)
    return DISK_SLICE;
  const uint64_t wanted = quay__align_down(size / 64, UINT64_C(1) << 20);
  return quay__max(SLICE_MIN, quay__min(wanted, SLICE_MAX));
}

quay_status quay__route_plan(const quay__side *destination, const quay__side *source, uint64_t size,
                             const quay_copy_options *options, quay_copy_plan_info *out_plan) {
  if (options == NULL)
    options = &no_options;
  choice chosen;
  const caps before = set_caps(options->max_threads, options->max_staging_bytes);
  const quay_status status = choose(destination, source, size, options, &chosen);
  if (status == QUAY_OK)
    ask_details(destination, source, size, &chosen);
  (void)set_caps(before.threads, before.memory);
  QUAY_TRY(status);
  if (chosen.chunk == 0)
    chosen.chunk = size;
  if (options->progress != NULL && size != 0)
    chosen.chunk = quay__min(chosen.chunk, slice_of(&chosen, size));
  *out_plan = (quay_copy_plan_info){
      .route = chosen.route,
      .from = source->allocator->kind,
      .to = destination->allocator->kind,
      .size = size,
      .chunk = chosen.chunk,
      .threads = chosen.threads,
      .staging_bytes = chosen.staging_bytes,
  };
  (void)snprintf(out_plan->reason, sizeof(out_plan->reason), "%s", chosen.reason);
  return QUAY_OK;
}

/* A copy under way. */
typedef struct copy_job {
  const quay__side *destination, *source;
  uint64_t size;
  const quay_copy_options *options;
  unsigned char *to;         /* host address of the destination's first byte, where it is touched */
  const unsigned char *from; /* and of the source's */
} copy_job;

static quay_status lend(const quay__side *side, uint64_t size, quay_use_mode mode) {
  return side->allocator->vtable.lend(side->allocator, side->raw, side->offset, size, mode);
}

static quay_status touch(const quay__side *side, unsigned char **out_address) {
  void *first = NULL;
  QUAY_TRY(side->allocator->vtable.host_pointer(side->allocator, side->raw, &first));
  *out_address = (unsigned char *)first + side->offset;
  return QUAY_OK;
}

/* Tells the side that is not entered, and finds the addresses that the other one is given. Nothing
 * has moved if this fails. */
static quay_status prepare(copy_job *job, copy_way way) {
  const quay__side *destination = job->destination, *source = job->source;
  unsigned char *from = NULL;
  switch (way) {
  case WAY_NOTHING:
  case WAY_STAGED:
    return QUAY_OK;
  case WAY_HOST_COPY:
    QUAY_TRY(touch(source, &from));
    job->from = from;
    return touch(destination, &job->to);
  case WAY_WITHIN:
    if (destination->allocator == source->allocator)
      return QUAY_OK;
    return lend(source, job->size, QUAY_READ);
  case WAY_ACROSS_BY_DESTINATION:
    return lend(source, job->size, QUAY_READ);
  case WAY_ACROSS_BY_SOURCE:
    return lend(destination, job->size, QUAY_WRITE);
  case WAY_COPY_IN:
    QUAY_TRY(lend(source, job->size, QUAY_READ));
    QUAY_TRY(touch(source, &from));
    job->from = from;
    return QUAY_OK;
  case WAY_COPY_OUT:
    QUAY_TRY(lend(destination, job->size, QUAY_WRITE));
    return touch(destination, &job->to);
  }
  return QUAY_OK;
}

/* Moves `size` bytes from `at` bytes into the copy. */
static quay_status move_slice(const copy_job *job, copy_way way, uint64_t at, uint64_t size) {
  const quay__side *d = job->destination, *s = job->source;
  const uint64_t to = d->offset + at, from = s->offset + at;
  switch (way) {
  case WAY_NOTHING:
  case WAY_STAGED:
    return QUAY_OK;
  case WAY_HOST_COPY:
    quay__host_move(job->to + at, job->from + at, size, 0);
    return QUAY_OK;
  case WAY_WITHIN:
    return d->allocator->vtable.copy_within(d->allocator, d->raw, to, s->raw, from, size);
  case WAY_ACROSS_BY_DESTINATION:
    return d->allocator->vtable.copy_across(d->allocator, d->raw, to, s->raw, from, size);
  case WAY_ACROSS_BY_SOURCE:
    return s->allocator->vtable.copy_across(s->allocator, d->raw, to, s->raw, from, size);
  case WAY_COPY_IN:
    return d->allocator->vtable.copy_in(d->allocator, d->raw, to, job->from + at, size);
  case WAY_COPY_OUT:
    return s->allocator->vtable.copy_out(s->allocator, s->raw, from, job->to + at, size);
  }
  return QUAY_OK;
}

/* Whether slices must go from the last to the first, so that none overwrites what a later one has
 * still to read. */
static bool goes_backwards(const copy_job *job) {
  if (job->to != NULL && job->from != NULL)
    return (uintptr_t)job->to > (uintptr_t)job->from;
  return job->destination->raw == job->source->raw &&
         job->destination->offset > job->source->offset;
}

static quay_status move_in_slices(const copy_job *job, copy_way way, uint64_t slice,
                                  bool *out_moved) {
  const bool backwards = goes_backwards(job);
  for (uint64_t done = 0; done < job->size;) {
    const uint64_t size = quay__min(slice, job->size - done);
    quay__copy_enter();
    const quay_status status =
        move_slice(job, way, backwards ? job->size - done - size : done, size);
    *out_moved = done != 0 || status == QUAY_OK || quay__copy_may_have_moved(status);
    if (status != QUAY_OK)
      return status;
    done += size;
    QUAY_TRY(quay__copy_progress(job->options, done, job->size));
  }
  return QUAY_OK;
}

static quay_status choose_and_move(const quay__side *destination, const quay__side *source,
                                   uint64_t size, const quay_copy_options *options,
                                   bool *out_moved) {
  choice chosen;
  QUAY_TRY(choose(destination, source, size, options, &chosen));
  if (chosen.way == WAY_STAGED)
    return move_staged(destination, source, size, options, out_moved);
  copy_job job = {.destination = destination, .source = source, .size = size, .options = options};
  QUAY_TRY(prepare(&job, chosen.way));
  if (options->progress == NULL || size == 0)
    return move_in_slices(&job, chosen.way, size, out_moved);
  if (chosen.way == WAY_COPY_OUT && is_file(source))
    ask_details(destination, source, size, &chosen);
  return move_in_slices(&job, chosen.way, slice_of(&chosen, size), out_moved);
}

quay_status quay__route_copy(const quay__side *destination, const quay__side *source, uint64_t size,
                             const quay_copy_options *options, bool *out_moved) {
  *out_moved = false;
  if (options == NULL || (options->max_threads == 0 && options->max_staging_bytes == 0)) {
    return choose_and_move(destination, source, size, options != NULL ? options : &no_options,
                           out_moved);
  }
  const caps before = set_caps(options->max_threads, options->max_staging_bytes);
  const quay_status status = choose_and_move(destination, source, size, options, out_moved);
  (void)set_caps(before.threads, before.memory);
  return status;
}

quay_status quay__copy_progress(const quay_copy_options *options, uint64_t done, uint64_t total) {
  if (options->progress == NULL)
    return QUAY_OK;
  /* What the callback copies is not this copy. */
  const caps before = set_caps(0, 0);
  const bool go_on = options->progress(options->progress_user, done, total);
  (void)set_caps(before.threads, before.memory);
  if (go_on)
    return QUAY_OK;
  return quay__copy_cancelled(done, total);
}

quay_status quay__copy_cancelled(uint64_t done, uint64_t total) {
  return quay__fail(QUAY_STATUS_CANCELLED,
                    "the progress callback stopped the copy at %llu of %llu bytes",
                    (unsigned long long)done, (unsigned long long)total);
}

quay_status quay__copy_check_environment(uint64_t size) {
  return size > QUAY__HOST_COPY_SMALL ? quay__environment_check() : QUAY_OK;
}

/* Whether the call under way has said that it moves nothing. */
static _Thread_local bool refused;

void quay__copy_enter(void) {
  refused = false;
}

void quay__copy_refused(void) {
  refused = true;
}

bool quay__copy_may_have_moved(quay_status status) {
  return !refused && status != QUAY_STATUS_INVALID_ARGUMENT && status != QUAY_STATUS_OUT_OF_RANGE &&
         status != QUAY_STATUS_READ_ONLY && status != QUAY_STATUS_UNSUPPORTED &&
         status != QUAY_STATUS_NOT_HOST_ACCESSIBLE && status != QUAY_STATUS_NOT_ALLOCATED &&
         status != QUAY_STATUS_STALE && status != QUAY_STATUS_BUSY;
}

quay_status quay__copy_failed(bool moved) {
  return quay__error_append("%s", moved ? "; the destination's bytes are undefined now" : "");
}
