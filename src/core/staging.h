/* Staging: a copy whose sides can't meet at full speed goes in chunks through slots of host memory,
 * both legs overlapped: between two backends, and between one device and memory or files that it
 * can't read by itself. */
#ifndef QUAY_CORE_STAGING_H
#define QUAY_CORE_STAGING_H

#include <quay/copy.h>

#include "core/copy_route.h"

/* What a staged copy takes. All of it is an upper bound: where the budget has no room, a copy goes
 * on with a single slot, and where no worker is free, with the calling thread alone. */
typedef struct quay__staging_plan {
  uint64_t budget;   /* bytes, the process's */
  bool budget_grows; /* by as much for each other device that copies are under way to or from */
  uint64_t chunk;    /* bytes of a slot */
  uint32_t slots;    /* 1, then both legs take turns in the calling thread; or more */
  uint32_t threads;  /* the calling one included */
  /* The same while other devices have copies, too; at least as many. */
  uint32_t slots_beside, threads_beside;
  uint32_t batch;    /* slots that are handed to the device together, at most; 0: each by itself */
  bool ramps;        /* the first and last chunks are smaller */
  bool from_disk;    /* the source is a file of which most has to come from the disk */
  uint64_t past_cut; /* bytes by which the first chunk is shorter, so that all others begin well */
  quay_device *pin;  /* that page-locks the slots and moves them on a stream; NULL: plain memory */
  const char *reason;
} quay__staging_plan;

/* `size` is above 0; of threads and memory as many as the copy under way may have
 * (core/copy_threads.h). */
void quay__staging_plan_make(const quay__side *destination, const quay__side *source, uint64_t size,
                             quay__staging_plan *out_plan);

/* `out_moved`: on failure, whether bytes of the destination may have changed. */
quay_status quay__stage(const quay__side *destination, const quay__side *source, uint64_t size,
                        const quay__staging_plan *plan, const quay_copy_options *options,
                        bool *out_moved);

/* For a backend whose device pins: large copies between one side of it and host memory that is not
 * page-locked, on a stream of the core's own that comes after all that was submitted to `*after`
 * (NULL: to no stream). Done on return. `*out_done` is false, and nothing has moved, where the
 * backend must do it alone: the memory can't be had, or this is a piece of a staged copy already.
 */
typedef struct quay__host_stage {
  quay__side side;
  unsigned char *memory; /* not written to by quay__stage_in() */
  uint64_t size;
  const uint64_t *after;
} quay__host_stage;

quay_status quay__stage_in(const quay__host_stage *copy, bool *out_done);
quay_status quay__stage_out(const quay__host_stage *copy, bool *out_done);

/* What they would take. False: they would not be done. */
bool quay__host_stage_plan(const quay_allocator *allocator, bool into, uint64_t size,
                           quay__staging_plan *out_plan);

/* Copies to memory of a slot, which the next leg reads soon. For backends that read files, too, in
 * a thread that quay__thread_in_staging marks. */
void quay__staging_fill(void *slot, const void *from, uint64_t size);

/* A stream of the core's own, kept by its device from one copy to the next. Nothing may be under
 * way on it when it is given back. */
quay_status quay__staging_stream_take(quay_device *device, uint64_t *out_stream);
void quay__staging_stream_give(quay_device *device, uint64_t stream);

/* Waits for a stream, and once more if that fails: what copies use would else be used again while
 * the device still works on it. `status` is the copy's until now, and what failed first counts. */
quay_status quay__staging_settle(quay_device *device, uint64_t stream, quay_status status);

/* Gives up what staged copies keep on the device: it goes, or is reset. */
void quay__staging_drop(quay_device *device);

#endif
