/* Copies and fills of the cpu backend: host memory to host memory, by core/host_copy.h. A host
 * pointer may be one into the very memory that is copied to: everything moves as memmove. */
#include "core/host_copy.h"
#include "cpu/cpu.h"

quay_status quay__cpu_copy_in(quay_allocator *allocator, quay_raw_buffer *destination,
                              uint64_t offset, const void *source, uint64_t size) {
  (void)allocator;
  quay__host_move(quay__cpu_at(destination, offset), source, size, 0);
  return QUAY_OK;
}

quay_status quay__cpu_copy_out(quay_allocator *allocator, const quay_raw_buffer *source,
                               uint64_t offset, void *destination, uint64_t size) {
  (void)allocator;
  quay__host_move(destination, quay__cpu_at(source, offset), size, 0);
  return QUAY_OK;
}

quay_status quay__cpu_copy_within(quay_allocator *allocator, quay_raw_buffer *destination,
                                  uint64_t destination_offset, const quay_raw_buffer *source,
                                  uint64_t source_offset, uint64_t size) {
  (void)allocator;
  quay__host_move(quay__cpu_at(destination, destination_offset),
                  quay__cpu_at(source, source_offset), size, 0);
  return QUAY_OK;
}

quay_status quay__cpu_fill(quay_allocator *allocator, quay_raw_buffer *raw, uint64_t offset,
                           uint64_t size, const void *pattern, size_t pattern_size) {
  (void)allocator;
  quay__host_fill(quay__cpu_at(raw, offset), size, pattern, pattern_size);
  return QUAY_OK;
}

void quay__cpu_copy_info(quay_allocator *allocator, const quay_raw_buffer *destination,
                         const quay_raw_buffer *source, uint64_t size, quay_across_info *out_info) {
  (void)allocator;
  (void)destination;
  (void)source;
  quay__host_copy_plan(size, 0, &out_info->threads, &out_info->chunk);
}
