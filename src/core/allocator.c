/* Allocators: creation, references, allocation and free, statistics. Opening by spec is in
 * registry.c, the default allocator in default_allocator.c. */
#include <stdio.h>
#include <string.h>

#include "core/allocator_impl.h"
#include "core/checked.h"
#include "core/error.h"
#include "core/lifecycle.h"
#include "core/lock.h"
#include "core/os.h"
#include "core/path.h"
#include "core/storage.h"
#include "core/stream_impl.h"
#include "core/vtable.h"
#include "layers/forward.h"

static quay_status check_desc(const quay_allocator_desc *desc) {
  const char *missing = NULL;
  if (desc == NULL)
    missing = "desc";
  if (missing == NULL && desc->vtable == NULL)
    missing = "desc->vtable";
  if (missing == NULL && desc->device == NULL)
    missing = "desc->device";
  if (missing == NULL && (desc->name == NULL || desc->name[0] == '\0'))
    missing = "desc->name";
  if (missing == NULL && (desc->spec == NULL || desc->spec[0] == '\0'))
    missing = "desc->spec";
  if (missing == NULL)
    return QUAY_OK;
  return quay__fail(QUAY_STATUS_INVALID_ARGUMENT,
                    "quay_allocator_create: %s is missing; vtable, device, name and spec are "
                    "mandatory",
                    missing);
}

static void free_allocator(quay_allocator *allocator) {
  quay__statistics_destroy(&allocator->statistics);
  quay__os_free(allocator->name);
  quay__os_free(allocator->spec);
  quay__os_free(allocator);
}

/* The object with copies of what `desc` says; no table yet. */
static quay_status make_allocator(const quay_allocator_desc *desc, const char *spec,
                                  quay_allocator **out_allocator) {
  quay_allocator *const allocator = quay__os_calloc(1, sizeof *allocator);
  if (allocator == NULL)
    return quay__fail_out_of_memory(sizeof *allocator, "an allocator");
  allocator->name = quay__os_strdup(desc->name);
  allocator->spec = quay__os_strdup(spec);
  quay_status status = QUAY_OK;
  if (allocator->name == NULL || allocator->spec == NULL) {
    status = quay__fail_out_of_memory(strlen(spec), "an allocator's name");
  }
  if (status == QUAY_OK)
    status = quay__statistics_init(&allocator->statistics);
  if (status != QUAY_OK) {
    free_allocator(allocator);
    return status;
  }
  allocator->self = desc->self;
  allocator->kind = desc->kind;
  allocator->flags = desc->flags;
  allocator->alignment = desc->alignment;
  allocator->page_size = desc->page_size;
  atomic_init(&allocator->references, 1);
  atomic_init(&allocator->adopted, 0);
  atomic_init(&allocator->lingering, false);
  *out_allocator = allocator;
  return QUAY_OK;
}

/* From here on nothing can fail: the object takes what it refers to. */
static void finish_allocator(quay_allocator *allocator, quay_device *device,
                             quay_allocator *inner) {
  allocator->device = quay_device_retain(device);
  allocator->inner = quay_allocator_retain(inner);
  allocator->backend = inner != NULL ? inner->backend : allocator;
  quay__live_add(QUAY__LIVE_ALLOCATORS, 1);
  quay__lifecycle_begin();
}

quay_status quay_allocator_create(const quay_allocator_desc *desc, quay_allocator **out_allocator) {
  if (out_allocator == NULL) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT, "quay_allocator_create: out_allocator is NULL");
  }
  *out_allocator = NULL;
  QUAY_TRY(check_desc(desc));
  bool has_async;
  bool has_reserve;
  QUAY_TRY(quay__allocator_vtable_check(desc, desc->device->has_streams, &has_async, &has_reserve));
  quay_allocator *allocator;
  QUAY_TRY(make_allocator(desc, desc->spec, &allocator));
  allocator->vtable = *desc->vtable;
  quay__allocator_vtable_fill(&allocator->vtable);
  allocator->has_async = has_async;
  allocator->has_across_async = desc->vtable->copy_across_async != NULL;
  allocator->has_reserve = has_reserve;
  allocator->has_window = desc->vtable->window != NULL;
  finish_allocator(allocator, desc->device, NULL);
  *out_allocator = allocator;
  return QUAY_OK;
}

quay_status quay__layer_create(const quay_allocator_vtable *vtable, void *self, const char *name,
                               const char *spec, quay_allocator *inner,
                               quay_allocator **out_layer) {
  *out_layer = NULL;
  char whole_spec[1024];
  const int length = snprintf(whole_spec, sizeof whole_spec, "%s+%s", spec, inner->spec);
  if (length < 0 || (size_t)length >= sizeof whole_spec) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT,
                      "the allocator spec \"%s+%s\" is longer than %zu bytes", spec, inner->spec,
                      sizeof whole_spec - 1);
  }
  const quay_allocator_desc desc = {
      .self = self,
      .name = name,
      .kind = inner->kind,
      .flags = inner->flags & ~(uint32_t)QUAY_ALLOCATOR_PLAIN_HOST_MEMORY,
      .alignment = inner->alignment,
      .page_size = inner->page_size,
  };
  quay_allocator *layer;
  QUAY_TRY(make_allocator(&desc, whole_spec, &layer));
  layer->vtable = *vtable;
  quay__forward_fill(&layer->vtable, inner);
  layer->has_async = inner->has_async;
  layer->has_across_async = inner->has_across_async;
  layer->has_reserve = inner->has_reserve;
  layer->has_window = inner->has_window;
  finish_allocator(layer, inner->device, inner);
  *out_layer = layer;
  return QUAY_OK;
}

quay_allocator *quay_allocator_retain(quay_allocator *allocator) {
  if (allocator != NULL) {
    atomic_fetch_add_explicit(&allocator->references, 1, memory_order_relaxed);
  }
  return allocator;
}

static void destroy(quay_allocator *allocator) {
  quay_allocator *const inner = allocator->inner;
  quay_device *const device = allocator->device;
  allocator->vtable.destroy(allocator->self);
  free_allocator(allocator);
  quay__live_add(QUAY__LIVE_ALLOCATORS, -1);
  quay_allocator_release(inner);
  quay_device_release(device);
}

/* What keeps a released allocator from being destroyed. */
static uint64_t live_raw_buffers(const quay_allocator *allocator) {
  return quay__statistics_live_count(&allocator->statistics) +
         atomic_load_explicit(&allocator->adopted, memory_order_acquire);
}

/* Released allocators with live raw buffers; guarded by QUAY__LOCK_LINGERING. */
static quay_allocator *first_lingering;
atomic_uint quay__lingering_count;

/* Takes an allocator, or any if it is NULL, off the list if it is on it and nothing of it is live.
 * It may be gone. */
static quay_allocator *take_over(const quay_allocator *wanted) {
  quay_allocator *found = NULL;
  quay__global_acquire(QUAY__LOCK_LINGERING);
  for (quay_allocator **place = &first_lingering; *place != NULL && found == NULL;) {
    if ((wanted == NULL || *place == wanted) && live_raw_buffers(*place) == 0) {
      found = *place;
      *place = found->next_lingering;
      atomic_fetch_sub_explicit(&quay__lingering_count, 1, memory_order_relaxed);
    } else {
      place = &(*place)->next_lingering;
    }
  }
  quay__global_release(QUAY__LOCK_LINGERING);
  return found;
}

void quay__allocator_end_if_over(const quay_allocator *allocator) {
  quay_allocator *const over = take_over(allocator);
  if (over != NULL)
    destroy(over);
}

void quay__allocators_end_lingering(void) {
  quay_allocator *over;
  while ((over = take_over(NULL)) != NULL)
    destroy(over);
}

/* A free counts and then looks at the list; here the list is entered and then the count looked at.
 * A free that looks before others see its count misses it: the next one, or quay_shutdown(), does
 * not. */
static void linger(quay_allocator *allocator) {
  atomic_store_explicit(&allocator->lingering, true, memory_order_release);
  quay__global_acquire(QUAY__LOCK_LINGERING);
  allocator->next_lingering = first_lingering;
  first_lingering = allocator;
  atomic_fetch_add_explicit(&quay__lingering_count, 1, memory_order_seq_cst);
  quay__global_release(QUAY__LOCK_LINGERING);
  quay__allocator_look_if_over(allocator);
}

void quay_allocator_release(quay_allocator *allocator) {
  if (allocator == NULL)
    return;
  if (atomic_fetch_sub_explicit(&allocator->references, 1, memory_order_acq_rel) != 1)
    return;
  quay__error_state saved;
  quay__error_save(&saved);
  const uint64_t live = live_raw_buffers(allocator);
  if (live == 0) {
    destroy(allocator);
  } else {
    quay_stats stats;
    quay__statistics_read(&allocator->statistics, &stats);
    quay_log(QUAY_LOG_ERROR,
             "allocator %s was released while %llu raw buffers of it (%llu bytes) are live; it "
             "lingers until they are freed",
             allocator->spec, (unsigned long long)live, (unsigned long long)stats.live_bytes);
    if (allocator->report_leaks != NULL)
      allocator->report_leaks(allocator);
    linger(allocator);
  }
  quay__error_restore(&saved);
}

const char *quay_allocator_spec(const quay_allocator *allocator) {
  return allocator != NULL ? allocator->spec : "";
}

const char *quay_allocator_name(const quay_allocator *allocator) {
  return allocator != NULL ? allocator->name : "";
}

quay_allocator *quay_allocator_inner(const quay_allocator *allocator) {
  return allocator != NULL ? allocator->inner : NULL;
}

quay_allocator *quay_allocator_find(const quay_allocator *allocator, const char *name) {
  if (name == NULL)
    return NULL;
  while (allocator != NULL && strcmp(allocator->name, name) != 0)
    allocator = allocator->inner;
  return (quay_allocator *)(uintptr_t)allocator;
}

quay_device *quay_allocator_device(const quay_allocator *allocator) {
  return allocator != NULL ? allocator->device : NULL;
}

quay_memory_kind quay_allocator_kind(const quay_allocator *allocator) {
  return allocator != NULL ? allocator->kind : QUAY_MEMORY_NONE;
}

bool quay_allocator_host_accessible(const quay_allocator *allocator) {
  return allocator != NULL && quay__host_accessible(allocator);
}

uint64_t quay_allocator_alignment(const quay_allocator *allocator) {
  return allocator != NULL ? allocator->alignment : 0;
}

void *quay_allocator_self(const quay_allocator *allocator) {
  return allocator != NULL ? allocator->self : NULL;
}

bool quay_allocator_is(const quay_allocator *allocator, void (*destroy_function)(void *self)) {
  return allocator != NULL && allocator->vtable.destroy == destroy_function;
}

bool quay__same_space(const quay_allocator *a, const quay_allocator *b) {
  return a->device == b->device && a->kind == b->kind &&
         (a->backend == b->backend || strcmp(a->backend->name, b->backend->name) == 0);
}

quay_status quay__allocator_resolve(quay_allocator *allocator, quay_allocator **out_allocator) {
  if (allocator == NULL)
    return quay_default_allocator_get(out_allocator);
  *out_allocator = quay_allocator_retain(allocator);
  return QUAY_OK;
}

/* Allocation. */

/* Where the switches lie: in an eight-byte word of their own in both. */
_Static_assert(offsetof(quay_alloc_request, zeroed) % 8 == 0 &&
                   offsetof(quay_alloc_options, zeroed) % 8 == 0,
               "the switches begin a word");
_Static_assert(offsetof(quay_alloc_request, stream) - offsetof(quay_alloc_request, zeroed) == 8 &&
                   offsetof(quay_alloc_options, stream) - offsetof(quay_alloc_options, zeroed) == 8,
               "the switches are one word");
_Static_assert(
    offsetof(quay_alloc_request, mirror) - offsetof(quay_alloc_request, zeroed) ==
            offsetof(quay_alloc_options, mirror) - offsetof(quay_alloc_options, zeroed) &&
        offsetof(quay_alloc_request, exportable) - offsetof(quay_alloc_request, zeroed) ==
            offsetof(quay_alloc_options, exportable) - offsetof(quay_alloc_options, zeroed),
    "the switches are in the same order");

QUAY__SELDOM static quay_status fail_size(uint64_t size) {
  return quay__fail(QUAY_STATUS_INVALID_ARGUMENT,
                    "an allocation of %llu bytes is above the most that can be asked for, "
                    "2^63-1 bytes",
                    (unsigned long long)size);
}

QUAY__SELDOM static quay_status fail_alignment(uint64_t alignment) {
  return quay__fail(QUAY_STATUS_INVALID_ARGUMENT,
                    "an alignment of %llu is no power of two from 1 to %llu bytes",
                    (unsigned long long)alignment, QUAY_ALIGNMENT_MAX);
}

QUAY__SELDOM static quay_status fail_stream(const quay_allocator *allocator,
                                            const quay_stream *stream) {
  return quay__fail(QUAY_STATUS_INVALID_ARGUMENT,
                    "the stream is of device %s, the allocator %s of device %s",
                    quay_device_name(stream->device), allocator->spec, allocator->device->name);
}

QUAY__ALWAYS static inline quay_status check_options(const quay_allocator *allocator,
                                                     const quay_alloc_options *options) {
  if (options->alignment != 0 &&
      (!quay__is_power_of_two(options->alignment) || options->alignment > QUAY_ALIGNMENT_MAX))
    return fail_alignment(options->alignment);
  if (options->stream == NULL)
    return QUAY_OK;
  return options->stream->device == allocator->device ? quay__stream_check(options->stream)
                                                      : fail_stream(allocator, options->stream);
}

QUAY__ALWAYS static inline quay_status make_request(const quay_allocator *allocator, uint64_t size,
                                                    const quay_alloc_options *options,
                                                    quay_alloc_request *out_request) {
  if (size > INT64_MAX)
    return fail_size(size);
  *out_request = (quay_alloc_request){.size = size, .alignment = allocator->alignment};
  if (options == NULL)
    return QUAY_OK;
  QUAY_TRY(check_options(allocator, options));
  out_request->alignment = quay__max(options->alignment, allocator->alignment);
  /* As one word: a processor that has stored single bytes must wait before it can read two. */
  memcpy(&out_request->zeroed, &options->zeroed, 8);
  out_request->stream = options->stream;
  return QUAY_OK;
}

quay_status quay__alloc_request_make(const quay_allocator *allocator, uint64_t size,
                                     const quay_alloc_options *options,
                                     quay_alloc_request *out_request) {
  return make_request(allocator, size, options, out_request);
}

/* Memory that was allocated in the order of a stream is there only for that stream. */
static quay_status fill_with_zeros(quay_allocator *allocator, quay_raw_buffer *raw,
                                   quay_stream *stream) {
  const unsigned char pattern = 0;
  if (stream != NULL && allocator->has_async) {
    return allocator->vtable.fill_async(allocator, raw, 0, raw->size, &pattern, sizeof pattern,
                                        quay__stream_handle(stream));
  }
  if (stream != NULL)
    QUAY_TRY(quay_stream_synchronize(stream));
  return allocator->vtable.fill(allocator, raw, 0, raw->size, &pattern, sizeof pattern);
}

/* Zeroes what the backend did not; frees the memory again if that fails. */
static quay_status zero(quay_allocator *allocator, quay_raw_buffer *raw, quay_stream *stream) {
  if (raw->size > 0) {
    const quay_status status = fill_with_zeros(allocator, raw, stream);
    if (status != QUAY_OK) {
      quay__error_state saved;
      quay__error_save(&saved);
      allocator->vtable.free(allocator, raw, NULL, 0);
      quay__error_restore(&saved);
      return status;
    }
  }
  raw->flags |= QUAY_RAW_ZEROED;
  return QUAY_OK;
}

/* Off the path of what succeeds, so that this needs no room for it. */
QUAY__SELDOM static quay_status fail_alloc(quay_allocator *allocator, quay_status status,
                                           quay_raw_buffer *out_raw) {
  quay__statistics_failure(&allocator->statistics);
  memset(out_raw, 0, sizeof *out_raw);
  return status;
}

QUAY__ALWAYS static inline quay_status
alloc(quay_allocator *allocator, const quay_alloc_request *request, quay_raw_buffer *out_raw) {
  memset(out_raw, 0, sizeof *out_raw);
  quay_status status = quay__device_check(allocator->device);
  if (status == QUAY_OK)
    status = allocator->vtable.alloc(allocator, request, out_raw);
  if (status == QUAY_OK) {
    out_raw->size = request->size;
    out_raw->owner = allocator;
    if (request->zeroed && (out_raw->flags & QUAY_RAW_ZEROED) == 0)
      status = zero(allocator, out_raw, request->stream);
  }
  if (status != QUAY_OK)
    return fail_alloc(allocator, status, out_raw);
  quay__statistics_alloc(&allocator->statistics, request->size);
  return QUAY_OK;
}

quay_status quay__alloc(quay_allocator *allocator, const quay_alloc_request *request,
                        quay_raw_buffer *out_raw) {
  return alloc(allocator, request, out_raw);
}

quay_status quay__reserve(quay_allocator *allocator, uint64_t size, uint64_t alignment,
                          quay_raw_buffer *out_raw) {
  memset(out_raw, 0, sizeof *out_raw);
  quay_status status = quay__device_check(allocator->device);
  if (status == QUAY_OK)
    status = allocator->vtable.reserve(allocator, size, alignment, out_raw);
  if (status != QUAY_OK) {
    quay__statistics_failure(&allocator->statistics);
    memset(out_raw, 0, sizeof *out_raw);
    return status;
  }
  out_raw->size = size;
  out_raw->owner = allocator;
  out_raw->flags |= QUAY__RAW_RESERVED;
  quay__statistics_alloc(&allocator->statistics, 0);
  return QUAY_OK;
}

/* Nobody records the library's own fill for a raw buffer, which may be freed at once; and the
 * memory must not serve for anything else while it is under way. */
QUAY__SELDOM static quay_status drain_zeroed(quay_allocator *allocator, quay_stream *stream,
                                             quay_raw_buffer *out_raw) {
  const quay_status status = quay__stream_drain(stream);
  if (status != QUAY_OK) {
    quay__free(allocator, out_raw, NULL, 0);
    memset(out_raw, 0, sizeof *out_raw);
  }
  return status;
}

QUAY__ALWAYS static inline quay_status alloc_from(quay_allocator *allocator, uint64_t size,
                                                  const quay_alloc_options *options,
                                                  quay_raw_buffer *out_raw) {
  quay_alloc_request request;
  const quay_status made = make_request(allocator, size, options, &request);
  if (made != QUAY_OK) {
    memset(out_raw, 0, sizeof *out_raw);
    return made;
  }
  const quay_status status = quay__retired_any()
                                 ? quay__alloc_or_collect(allocator, &request, out_raw)
                                 : alloc(allocator, &request, out_raw);
  if (status == QUAY_OK && request.zeroed && request.stream != NULL && allocator->has_async)
    return drain_zeroed(allocator, request.stream, out_raw);
  return status;
}

/* The caller keeps its own reference as long as the memory lives. */
QUAY__SELDOM static quay_status alloc_from_default(uint64_t size, const quay_alloc_options *options,
                                                   quay_raw_buffer *out_raw) {
  quay_allocator *allocator;
  memset(out_raw, 0, sizeof *out_raw);
  QUAY_TRY(quay_default_allocator_get(&allocator));
  const quay_status status = alloc_from(allocator, size, options, out_raw);
  quay_allocator_release(allocator);
  return status;
}

quay_status quay_allocator_alloc(quay_allocator *allocator, uint64_t size,
                                 const quay_alloc_options *options, quay_raw_buffer *out_raw) {
  QUAY__MARK_CALLER();
  if (out_raw == NULL)
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT, "quay_allocator_alloc: out_raw is NULL");
  return allocator != NULL ? alloc_from(allocator, size, options, out_raw)
                           : alloc_from_default(size, options, out_raw);
}

void quay__free(quay_allocator *allocator, quay_raw_buffer *raw, quay_event *const *pending,
                size_t count) {
  quay__free_inline(allocator, raw, pending, count);
}

quay_status quay__release(quay_allocator *allocator, quay_raw_buffer *raw,
                          quay_host_memory *out_memory) {
  const uint64_t size = (raw->flags & QUAY__RAW_RESERVED) != 0 ? 0 : raw->size;
  QUAY_TRY(allocator->vtable.release(allocator, raw, out_memory));
  quay__statistics_free(&allocator->statistics, size);
  quay__allocator_look_if_over(allocator);
  return QUAY_OK;
}

void quay__adopted_add(quay_allocator *allocator) {
  atomic_fetch_add_explicit(&allocator->adopted, 1, memory_order_relaxed);
}

void quay__adopted_remove(quay_allocator *allocator) {
  atomic_fetch_sub_explicit(&allocator->adopted, 1, memory_order_acq_rel);
  quay__allocator_look_if_over(allocator);
}

/* Statistics and the rest. */

quay_status quay_allocator_stats(quay_allocator *allocator, quay_stats *out_stats) {
  if (out_stats == NULL) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT, "quay_allocator_stats: out_stats is NULL");
  }
  memset(out_stats, 0, sizeof *out_stats);
  quay_allocator *resolved;
  QUAY_TRY(quay__allocator_resolve(allocator, &resolved));
  quay__statistics_read(&resolved->statistics, out_stats);
  quay_backend_stats own = {.reserved_bytes = 0};
  resolved->vtable.stats(resolved, &own);
  out_stats->reserved_bytes = own.reserved_bytes;
  out_stats->largest_free_bytes = own.largest_free_bytes;
  out_stats->pending_bytes += own.pending_bytes;
  if (own.peak_bytes != 0)
    out_stats->peak_bytes = own.peak_bytes;
  quay_allocator_release(resolved);
  return QUAY_OK;
}

quay_status quay_allocator_trim(quay_allocator *allocator, uint64_t *out_bytes) {
  uint64_t bytes = 0;
  quay_allocator *resolved;
  QUAY_TRY(quay__allocator_resolve(allocator, &resolved));
  (void)quay__storage_collect(); /* first, so that the allocator can give that back, too */
  quay_status status = resolved->vtable.trim(resolved, &bytes);
  /* The copies' page-locked memory stays: a driver that unlocks it waits for all of the device. */
  if (status == QUAY_OK)
    (void)quay__reap();
  quay_allocator_release(resolved);
  if (status == QUAY_OK && out_bytes != NULL)
    *out_bytes = bytes;
  return status;
}

quay_status quay_allocator_synchronize(quay_allocator *allocator) {
  quay_allocator *resolved;
  QUAY_TRY(quay__allocator_resolve(allocator, &resolved));
  quay_status status = quay__device_check(resolved->device);
  if (status == QUAY_OK)
    status = resolved->device->vtable.synchronize(resolved->device);
  if (status == QUAY_OK)
    (void)quay__reap();
  quay_allocator_release(resolved);
  return status;
}
