/* The allocator object, and the one way in which core and layers call it. */
#ifndef QUAY_CORE_ALLOCATOR_IMPL_H
#define QUAY_CORE_ALLOCATOR_IMPL_H

#include <quay/backend.h>
#include <stdatomic.h>

#include "core/device_impl.h"
#include "core/error.h"
#include "core/path.h"
#include "core/statistics.h"

struct quay_allocator {
  quay_allocator_vtable vtable; /* optionals filled in: no call site tests for NULL */
  void *self;
  quay_allocator *inner;   /* of a layer, retained; NULL for a backend */
  quay_allocator *backend; /* the innermost: itself for a backend */
  quay_device *device;     /* retained */
  quay_memory_kind kind;
  uint32_t flags; /* quay_allocator_flags */
  uint64_t alignment;
  uint64_t page_size;
  bool has_async; /* the asynchronous group is there */
  bool has_across_async;
  bool has_reserve; /* reserve, commit and decommit are there */
  bool has_window;  /* window is there */
  atomic_uint references;
  atomic_uint adopted;   /* live adopted raw buffers */
  atomic_bool lingering; /* released with live raw buffers; destroyed by the last free */
  quay_allocator *next_lingering;
  quay__statistics statistics;
  /* Of a layer that knows its live blocks (NULL: of no other): logs each. Called once, without a
   * lock, when the last reference is given back while raw buffers are live. */
  void (*report_leaks)(quay_allocator *allocator);
  /* Of a layer that knows adopted memory, too (NULL: of no other): enters a raw buffer that is
   * complete, but for a mark of the layer's in its flags; and takes one out, or logs that there is
   * none such and answers false: it was freed before. */
  quay_status (*adopt)(quay_allocator *layer, quay_raw_buffer *raw);
  bool (*unadopt)(quay_allocator *layer, const quay_raw_buffer *raw);
  char *name;
  char *spec; /* with all layers */
};

/* Makes a layer around `inner`, which it retains on success. Device, kind, flags (but for
 * PLAIN_HOST_MEMORY, so that copies enter the layer), alignment and page size are the inner one's;
 * functions that `vtable` leaves NULL forward to it. `spec` is the layer's part alone:
 * "fault:after=3". On error nothing is taken over. */
quay_status quay__layer_create(const quay_allocator_vtable *vtable, void *self, const char *name,
                               const char *spec, quay_allocator *inner, quay_allocator **out_layer);

/* Allocates through `allocator`: counts, keeps the rules of quay_alloc_request (zeroes what the
 * backend did not), sets size and owner. The request has been checked. */
quay_status quay__alloc(quay_allocator *allocator, const quay_alloc_request *request,
                        quay_raw_buffer *out_raw);

/* Set in a raw buffer's flags by a layer's free that does not pass it on (a double free): the
 * layers around it then don't count a free but an error. */
#define QUAY__RAW_REFUSED (1u << 15)

/* In a raw buffer's flags: address space without memory. It counts as a live block of no bytes. */
#define QUAY__RAW_RESERVED (1u << 14)

/* Reserves address space through `allocator`, counts, sets size and owner. Freed by quay__free().
 */
quay_status quay__reserve(quay_allocator *allocator, uint64_t size, uint64_t alignment,
                          quay_raw_buffer *out_raw);

/* Frees through `allocator` and counts. Zeroes `raw`, or leaves nothing in it but the mark that the
 * free was refused. Not for adopted memory. */
void quay__free(quay_allocator *allocator, quay_raw_buffer *raw, quay_event *const *pending,
                size_t count);

/* Released allocators that are still in use. */
extern atomic_uint quay__lingering_count;

/* Destroys the allocator if it lingers and nothing of it is live any more. It may be gone. */
void quay__allocator_end_if_over(const quay_allocator *allocator);

/* After a raw buffer was counted as gone, from when on another thread may have destroyed a
 * lingering allocator: nothing of it is touched before it was found on the list. */
static inline void quay__allocator_look_if_over(const quay_allocator *allocator) {
  if (__builtin_expect(atomic_load_explicit(&quay__lingering_count, memory_order_relaxed) != 0,
                       false))
    quay__allocator_end_if_over(allocator);
}

/* quay__free() for where each nanosecond counts. */
QUAY__ALWAYS static inline void quay__free_inline(quay_allocator *allocator, quay_raw_buffer *raw,
                                                  quay_event *const *pending, size_t count) {
  const uint64_t size = (raw->flags & QUAY__RAW_RESERVED) != 0 ? 0 : raw->size;
  quay__error_shield();
  allocator->vtable.free(allocator, raw, pending, count);
  quay__error_unshield();
  const bool refused = (raw->flags & QUAY__RAW_REFUSED) != 0;
  *raw = (quay_raw_buffer){.flags = refused ? QUAY__RAW_REFUSED : 0};
  if (__builtin_expect(refused, false)) {
    quay__statistics_error(&allocator->statistics);
    return;
  }
  quay__statistics_free(&allocator->statistics, size);
  quay__allocator_look_if_over(allocator);
}

/* Gives up ownership through `allocator` and counts. */
quay_status quay__release(quay_allocator *allocator, quay_raw_buffer *raw,
                          quay_host_memory *out_memory);

/* Destroys the lingering allocators that nothing is live of any more. */
void quay__allocators_end_lingering(void);

/* Counts an adopted raw buffer, for which a released allocator lingers as for its own. */
void quay__adopted_add(quay_allocator *allocator);
void quay__adopted_remove(quay_allocator *allocator);

/* Checks options and size of the public calls and turns them into a request for `allocator`. */
quay_status quay__alloc_request_make(const quay_allocator *allocator, uint64_t size,
                                     const quay_alloc_options *options,
                                     quay_alloc_request *out_request);

/* One reference on `allocator`, or on the default allocator if it is NULL. */
quay_status quay__allocator_resolve(quay_allocator *allocator, quay_allocator **out_allocator);

/* Whether the memory of both lies in one space: the same backend, device and kind, whatever the
 * layers. */
bool quay__same_space(const quay_allocator *a, const quay_allocator *b);

static inline bool quay__host_accessible(const quay_allocator *allocator) {
  return (allocator->flags & QUAY_ALLOCATOR_HOST_ACCESSIBLE) != 0;
}

static inline bool quay__plain_host_memory(const quay_allocator *allocator) {
  return (allocator->flags & QUAY_ALLOCATOR_PLAIN_HOST_MEMORY) != 0;
}

#endif
