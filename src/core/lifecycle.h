/* Start, fork, exit and shutdown of what the library keeps for the process. There is no static
 * constructor: whoever needs one of these things calls quay__lifecycle_begin() first. */
#ifndef QUAY_CORE_LIFECYCLE_H
#define QUAY_CORE_LIFECYCLE_H

#include <quay/allocator.h>
#include <stdint.h>

/* Registers the fork and exit handlers, once. Cheap afterwards. */
void quay__lifecycle_begin(void);

/* How many forks lie between the first process and this one: what another thread had begun when
 * this process was made is of an older number, and will never end here. */
extern uint32_t quay__fork_generation;

/* For lifecycle.c alone, with every lock held; log.c implements it. */
void quay__log_after_fork_in_child(void);

/* What the program holds, for quay_shutdown(). Counted by whoever makes and destroys the thing. */
typedef enum quay__live_kind {
  QUAY__LIVE_ALLOCATORS,
  QUAY__LIVE_STORAGES,
  QUAY__LIVE_STREAMS,
  QUAY__LIVE_ACCESSES,
  QUAY__LIVE_KIND_COUNT,
} quay__live_kind;

/* The allocator that the mmap backend keeps for mapped files: lent, NULL if there is none yet; and
 * giving it up. The mmap backend implements both. */
quay_allocator *quay__mmap_file_allocator_peek(void);
void quay__mmap_file_allocator_drop(void);

/* Gives up the devices that the CUDA backend keeps. The CUDA backend, or its stub, implements it.
 */
void quay__cuda_shutdown(void);
/* The same of the Vulkan backend. */
void quay__vulkan_shutdown(void);

/* Gives memory that was freed and whose work is done back to the driver, on every device, and
 * returns its bytes. Keeps the thread's error. */
uint64_t quay__cuda_collect(void);

/* Writes what trace layers have in their buffers. The trace layer implements it. */
void quay__traces_flush_at_exit(void);

void quay__live_add(quay__live_kind kind, int64_t delta);
int64_t quay__live_get(quay__live_kind kind);

#endif
