/* The cpu backend: ordinary host memory. Shared by the files of this folder; the core uses only
 * quay__cpu_device_desc(). */
#ifndef QUAY_CPU_CPU_H
#define QUAY_CPU_CPU_H

#include <quay/backend.h>
#include <stdatomic.h>

#include "core/thread.h"

/* What the host's device is made of. Everything in it is static. */
void quay__cpu_device_desc(quay_device_desc *out_desc);

/* quay_backend.device_info of the cpu backend: one line, the host. */
quay_status quay__cpu_device_info(void *user, size_t index, quay_device_info *out_info,
                                  bool *out_more);

/* quay_raw_cpu.flags: how the block goes back. */
typedef enum quay__cpu_block {
  QUAY__CPU_ADOPTED = 0, /* not by us */
  QUAY__CPU_HEAP = 1,    /* to the C library */
  QUAY__CPU_MAPPED = 2,  /* to the system, whole pages */
  /* Mapped, too, but counted only as far as it is committed: quay_raw_cpu.reserved[0] bytes. */
  QUAY__CPU_RESERVED = 3,
} quay__cpu_block;

/* One counter to a cache line. */
typedef struct quay__cpu_shard {
  _Alignas(64) atomic_uint_fast64_t bytes;
} quay__cpu_shard;

typedef struct quay__cpu {
  /* Bytes taken from the C library and the system. Modular: one shard may be "negative". */
  quay__cpu_shard taken[QUAY__SHARD_COUNT];
  bool huge_pages;
} quay__cpu;

/* The host's address of a byte of a raw buffer. */
static inline char *quay__cpu_at(const quay_raw_buffer *raw, uint64_t offset) {
  return (char *)(uintptr_t)raw->as.cpu.pointer + offset;
}

/* The functions of copy.c for the table. */
quay_status quay__cpu_copy_in(quay_allocator *allocator, quay_raw_buffer *destination,
                              uint64_t offset, const void *source, uint64_t size);
quay_status quay__cpu_copy_out(quay_allocator *allocator, const quay_raw_buffer *source,
                               uint64_t offset, void *destination, uint64_t size);
quay_status quay__cpu_copy_within(quay_allocator *allocator, quay_raw_buffer *destination,
                                  uint64_t destination_offset, const quay_raw_buffer *source,
                                  uint64_t source_offset, uint64_t size);
void quay__cpu_copy_info(quay_allocator *allocator, const quay_raw_buffer *destination,
                         const quay_raw_buffer *source, uint64_t size, quay_across_info *out_info);
quay_status quay__cpu_fill(quay_allocator *allocator, quay_raw_buffer *raw, uint64_t offset,
                           uint64_t size, const void *pattern, size_t pattern_size);

#endif
