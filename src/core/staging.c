/* Bounded staging: a copy in chunks through host memory, and the process's budget for that. One
 * chunk a copy, both legs one after the other. */
#include <pthread.h>

#include "core/checked.h"
#include "core/copy_route.h"
#include "core/environment.h"
#include "core/error.h"
#include "core/lifecycle.h"
#include "core/lock.h"
#include "core/os.h"

#define CHUNK_DEFAULT (UINT64_C(4) << 20)
/* Chunks above it are whole pages, and begin on one: reading a file to an unaligned address halves
 * the rate. */
#define CHUNK_PAGE UINT64_C(4096)

/* Guarded by QUAY__LOCK_STAGING. */
static uint64_t held_bytes;
static pthread_cond_t given_back = PTHREAD_COND_INITIALIZER;

/* Of it, the calling thread's. More than one chunk where a backend itself copies, by staging, to do
 * its part of a staged copy. */
static _Thread_local uint64_t own_bytes;

quay_status quay__staging_chunk(uint64_t size, const quay_copy_options *options,
                                uint64_t *out_chunk) {
  uint64_t budget;
  QUAY_TRY(quay__environment_staging_bytes(&budget));
  uint64_t chunk = quay__min(CHUNK_DEFAULT, budget);
  if (options->max_staging_bytes != 0)
    chunk = quay__min(chunk, options->max_staging_bytes);
  if (chunk > CHUNK_PAGE)
    chunk = quay__align_down(chunk, CHUNK_PAGE);
  *out_chunk = quay__min(chunk, size);
  return QUAY_OK;
}

/* Waits until the budget has room for `bytes`. Whoever holds nothing gets its chunk at last, and
 * who is inside another staged copy gets it at once: waiting could be for oneself. */
static quay_status hold(uint64_t bytes) {
  uint64_t budget;
  QUAY_TRY(quay__environment_staging_bytes(&budget));
  quay__lifecycle_begin();
  quay__global_acquire(QUAY__LOCK_STAGING);
  while (own_bytes == 0 && held_bytes != 0 && bytes > budget - quay__min(held_bytes, budget)) {
    quay__global_wait(QUAY__LOCK_STAGING, &given_back);
  }
  held_bytes += bytes;
  quay__global_release(QUAY__LOCK_STAGING);
  own_bytes += bytes;
  return QUAY_OK;
}

static void give_back(uint64_t bytes) {
  own_bytes -= bytes;
  quay__global_acquire(QUAY__LOCK_STAGING);
  held_bytes -= bytes;
  pthread_cond_broadcast(&given_back);
  quay__global_release(QUAY__LOCK_STAGING);
}

/* The copies of other threads are not in the child. */
void quay__staging_after_fork_in_child(void) {
  held_bytes = own_bytes;
  given_back = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
}

static quay_status move_chunks(const quay__side *destination, const quay__side *source,
                               uint64_t size, void *chunk, uint64_t chunk_size,
                               const quay_copy_options *options) {
  quay_allocator *to = destination->allocator, *from = source->allocator;
  for (uint64_t done = 0; done < size;) {
    const uint64_t part = quay__min(chunk_size, size - done);
    QUAY_TRY(from->vtable.copy_out(from, source->raw, source->offset + done, chunk, part));
    QUAY_TRY(to->vtable.copy_in(to, destination->raw, destination->offset + done, chunk, part));
    done += part;
    QUAY_TRY(quay__copy_progress(options, done, size));
  }
  return QUAY_OK;
}

quay_status quay__stage(const quay__side *destination, const quay__side *source, uint64_t size,
                        uint64_t chunk, const quay_copy_options *options) {
  QUAY_TRY(hold(chunk));
  quay_status status;
  void *memory = quay__os_aligned_alloc(CHUNK_PAGE, chunk);
  if (memory == NULL) {
    status = quay__fail_out_of_memory(chunk, "a staged copy");
  } else {
    status = move_chunks(destination, source, size, memory, chunk, options);
    if (status != QUAY_OK)
      status = quay__copy_failed_midway();
  }
  quay__os_free(memory);
  give_back(chunk);
  return status;
}
