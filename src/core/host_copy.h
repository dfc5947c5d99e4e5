/* Copies from host memory to host memory that may be touched without a fault. */
#ifndef QUAY_CORE_HOST_COPY_H
#define QUAY_CORE_HOST_COPY_H

#include <quay/copy.h>
#include <stdint.h>

/* Up to here one memcpy by the calling thread is never worse; quay__host_copy() goes no further for
 * them. */
#define QUAY__HOST_COPY_SMALL (1u << 20)

/* As memcpy: the ranges must not overlap. Large ones by up to `threads` threads (0: the process's),
 * with streaming stores where those win. */
void quay__host_copy(void *destination, const void *source, uint64_t size, uint32_t threads);

/* As memcpy, by this thread, with streaming stores: for ranges that are not soon read again. */
void quay__host_stream(void *to, const void *from, uint64_t size);

/* As memcpy, by this thread, for a destination that is read soon: asks for the source's lines well
 * before it gets to them, and on some processors for the destination's, too. */
void quay__host_copy_ahead(void *to, const void *from, uint64_t size);

/* As memmove. */
void quay__host_move(void *destination, const void *source, uint64_t size, uint32_t threads);

/* Repeats a pattern of 1, 2, 4, 8 or 16 bytes, by the process's threads. */
void quay__host_fill(void *destination, uint64_t size, const void *pattern, size_t pattern_size);

/* How quay__host_copy() would do it, for copy plans. */
void quay__host_copy_plan(uint64_t size, uint32_t threads, uint32_t *out_threads,
                          uint64_t *out_chunk);

#endif
