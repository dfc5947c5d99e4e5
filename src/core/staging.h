/* Staging: a copy between two backends that can't meet goes in chunks through a few slots of host
 * memory. */
#ifndef QUAY_CORE_STAGING_H
#define QUAY_CORE_STAGING_H

#include <quay/copy.h>

#include "core/copy_route.h"

/* What a staged copy takes. All of it is an upper bound: where the budget has no room, a copy goes
 * on with a single slot, and where no worker is free, with the calling thread alone. */
typedef struct quay__staging_plan {
  uint64_t budget;  /* bytes, the process's */
  uint64_t chunk;   /* bytes of a slot */
  uint32_t slots;   /* 1, then both legs take turns in the calling thread; or 2 to 4 */
  uint32_t threads; /* 2 with more than one slot */
} quay__staging_plan;

/* `size` is above 0. INVALID_ARGUMENT if $QUAY_STAGING_BYTES or $QUAY_COPY_THREADS is bad. */
quay_status quay__staging_plan_make(uint64_t size, const quay_copy_options *options,
                                    quay__staging_plan *out_plan);

/* `out_moved`: on failure, whether bytes of the destination may have changed. */
quay_status quay__stage(const quay__side *destination, const quay__side *source, uint64_t size,
                        const quay__staging_plan *plan, const quay_copy_options *options,
                        bool *out_moved);

#endif
