/* The copy router: chooses how bytes move between two sides, and moves them. Works on allocators
 * and raw buffers, knows no buffer, and waits for no hazard: copy.c and save do that. */
#ifndef QUAY_CORE_COPY_ROUTE_H
#define QUAY_CORE_COPY_ROUTE_H

#include <quay/copy.h>

#include "core/allocator_impl.h"

/* One side of a copy: a place in a raw buffer. `raw` may be NULL for planning with a lazy side. */
typedef struct quay__side {
  quay_allocator *allocator; /* the outermost */
  quay_raw_buffer *raw;      /* not written to if it is the source */
  uint64_t offset;           /* bytes into `raw` */
} quay__side;

/* Chooses. Fills in `out_plan`, with a reason. UNSUPPORTED if staging is forbidden and needed. */
quay_status quay__route_plan(const quay__side *destination, const quay__side *source, uint64_t size,
                             const quay_copy_options *options, quay_copy_plan_info *out_plan);

/* Chooses and moves. `size` is above 0, both sides are there and in range. `out_moved`: on failure,
 * whether bytes of the destination may have changed. */
quay_status quay__route_copy(const quay__side *destination, const quay__side *source, uint64_t size,
                             const quay_copy_options *options, bool *out_moved);

/* Tells the caller's callback, if there is one; CANCELLED if it wants to stop. */
quay_status quay__copy_progress(const quay_copy_options *options, uint64_t done, uint64_t total);
/* Its error. */
quay_status quay__copy_cancelled(uint64_t done, uint64_t total);

/* Appends to the thread's error that a copy left undefined bytes behind, if it has `moved` any, and
 * returns its status. */
quay_status quay__copy_failed(bool moved);

/* Whether a call of a backend that fails may have written to its destination. Not if it refused
 * what was asked, which is told from its status, or said so by quay__copy_refused(). Asked once
 * after each failure; quay__copy_enter() comes before the call. */
void quay__copy_enter(void);
bool quay__copy_may_have_moved(quay_status status);

/* For a backend whose copy or fill fails before it has moved anything. */
void quay__copy_refused(void);

/* INVALID_ARGUMENT if $QUAY_COPY_THREADS or $QUAY_STAGING_BYTES is bad and the copy or fill a large
 * one, of more than 1 MiB, whatever its way. Smaller ones take the default for a bad value, but for
 * staged ones, which the router refuses. */
quay_status quay__copy_check_environment(uint64_t size);

#endif
