/* How many threads a copy may use, and how much memory: the process's numbers, and below them the
 * wish of the copy that is under way on the calling thread. */
#ifndef QUAY_CORE_COPY_THREADS_H
#define QUAY_CORE_COPY_THREADS_H

#include <stdint.h>

/* At most so many threads, the caller's included: $QUAY_COPY_THREADS or its default, and no more
 * than the caller's cap. */
uint32_t quay__copy_threads(void);
/* The same for threads that mostly wait for a disk, which may be more than there are processors. */
uint32_t quay__disk_threads(void);

/* Of one that may have `threads`: how many while copies to other devices are under way, which slow
 * down the host's memory for each other. No more if somebody has chosen the number. */
uint32_t quay__copy_threads_beside(uint32_t threads);

/* Caps the calling thread's copies from here on, backends' included; 0: no cap. Returns the cap
 * before, to be set again afterwards. */
uint32_t quay__copy_threads_cap(uint32_t cap);

/* The same for the bytes of memory that a backend's copy between two places of its own holds; 0: no
 * cap. */
uint64_t quay__copy_memory_cap(uint64_t cap);
/* Of `wanted` bytes of it, so many as may be had. No cap is below 4096. */
uint64_t quay__copy_memory(uint64_t wanted);

#endif
