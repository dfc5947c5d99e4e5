/* Copies and fills of the cpu backend: host memory to host memory, by core/host_copy.h. */
#include "core/environment.h"
#include "core/host_copy.h"
#include "cpu/cpu.h"

/* The threads that a copy may use. A bad $QUAY_COPY_THREADS is an error of the copies that it would
 * concern. */
static quay_status threads_for(uint64_t size, uint32_t *out_threads) {
  *out_threads = 1;
  return size > QUAY__HOST_COPY_SMALL ? quay__environment_copy_threads(out_threads) : QUAY_OK;
}

/* A host pointer may be one into the very memory that is copied to: everything moves as memmove. */
static quay_status move(char *destination, const char *source, uint64_t size) {
  uint32_t threads;
  QUAY_TRY(threads_for(size, &threads));
  quay__host_move(destination, source, size, threads);
  return QUAY_OK;
}

quay_status quay__cpu_copy_in(quay_allocator *allocator, quay_raw_buffer *destination,
                              uint64_t offset, const void *source, uint64_t size) {
  (void)allocator;
  return move(quay__cpu_at(destination, offset), source, size);
}

quay_status quay__cpu_copy_out(quay_allocator *allocator, const quay_raw_buffer *source,
                               uint64_t offset, void *destination, uint64_t size) {
  (void)allocator;
  return move(destination, quay__cpu_at(source, offset), size);
}

quay_status quay__cpu_copy_within(quay_allocator *allocator, quay_raw_buffer *destination,
                                  uint64_t destination_offset, const quay_raw_buffer *source,
                                  uint64_t source_offset, uint64_t size) {
  (void)allocator;
  return move(quay__cpu_at(destination, destination_offset), quay__cpu_at(source, source_offset),
              size);
}

quay_status quay__cpu_fill(quay_allocator *allocator, quay_raw_buffer *raw, uint64_t offset,
                           uint64_t size, const void *pattern, size_t pattern_size) {
  (void)allocator;
  uint32_t threads; /* asked for its error alone: fills take the process's number by themselves */
  QUAY_TRY(threads_for(size, &threads));
  quay__host_fill(quay__cpu_at(raw, offset), size, pattern, pattern_size);
  return QUAY_OK;
}
