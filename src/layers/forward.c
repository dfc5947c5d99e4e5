/* Forwarding of every function of an allocator's table from a layer to the allocator inside it.
 * Allocating, freeing and releasing go through the core's own calls, so that every level counts
 * them; all other functions are called in the inner table directly. No state stands here. */
#include "layers/forward.h"

#include "core/allocator_impl.h"
#include "core/vtable.h"

static quay_status forward_alloc(quay_allocator *allocator, const quay_alloc_request *request,
                                 quay_raw_buffer *out_raw) {
  return quay__alloc(allocator->inner, request, out_raw);
}

static void forward_free(quay_allocator *allocator, quay_raw_buffer *raw,
                         quay_event *const *pending, size_t count) {
  quay__free(allocator->inner, raw, pending, count);
}

static quay_status forward_release(quay_allocator *allocator, quay_raw_buffer *raw,
                                   quay_host_memory *out_memory) {
  return quay__release(allocator->inner, raw, out_memory);
}

static quay_status forward_copy_in(quay_allocator *allocator, quay_raw_buffer *destination,
                                   uint64_t offset, const void *source, uint64_t size) {
  quay_allocator *inner = allocator->inner;
  return inner->vtable.copy_in(inner, destination, offset, source, size);
}

static quay_status forward_copy_out(quay_allocator *allocator, const quay_raw_buffer *source,
                                    uint64_t offset, void *destination, uint64_t size) {
  quay_allocator *inner = allocator->inner;
  return inner->vtable.copy_out(inner, source, offset, destination, size);
}

static quay_status forward_host_pointer(quay_allocator *allocator, const quay_raw_buffer *raw,
                                        void **out_pointer) {
  quay_allocator *inner = allocator->inner;
  return inner->vtable.host_pointer(inner, raw, out_pointer);
}

static quay_status forward_address(quay_allocator *allocator, const quay_raw_buffer *raw,
                                   uint64_t *out_address) {
  quay_allocator *inner = allocator->inner;
  return inner->vtable.address(inner, raw, out_address);
}

static quay_status forward_copy_within(quay_allocator *allocator, quay_raw_buffer *destination,
                                       uint64_t destination_offset, const quay_raw_buffer *source,
                                       uint64_t source_offset, uint64_t size) {
  quay_allocator *inner = allocator->inner;
  return inner->vtable.copy_within(inner, destination, destination_offset, source, source_offset,
                                   size);
}

static bool forward_can_copy_across(quay_allocator *allocator, const quay_raw_buffer *destination,
                                    const quay_raw_buffer *source, uint64_t size,
                                    quay_across_info *out_info) {
  quay_allocator *inner = allocator->inner;
  return inner->vtable.can_copy_across(inner, destination, source, size, out_info);
}

static quay_status forward_copy_across(quay_allocator *allocator, quay_raw_buffer *destination,
                                       uint64_t destination_offset, const quay_raw_buffer *source,
                                       uint64_t source_offset, uint64_t size) {
  quay_allocator *inner = allocator->inner;
  return inner->vtable.copy_across(inner, destination, destination_offset, source, source_offset,
                                   size);
}

static void forward_copy_info(quay_allocator *allocator, const quay_raw_buffer *destination,
                              const quay_raw_buffer *source, uint64_t size,
                              quay_across_info *out_info) {
  quay_allocator *inner = allocator->inner;
  inner->vtable.copy_info(inner, destination, source, size, out_info);
}

static quay_status forward_lend(quay_allocator *allocator, const quay_raw_buffer *raw,
                                uint64_t offset, uint64_t size, quay_use_mode mode) {
  quay_allocator *inner = allocator->inner;
  return inner->vtable.lend(inner, raw, offset, size, mode);
}

static quay_status forward_fill(quay_allocator *allocator, quay_raw_buffer *raw, uint64_t offset,
                                uint64_t size, const void *pattern, size_t pattern_size) {
  quay_allocator *inner = allocator->inner;
  return inner->vtable.fill(inner, raw, offset, size, pattern, pattern_size);
}

static quay_status forward_flush(quay_allocator *allocator, const quay_raw_buffer *raw,
                                 uint64_t offset, uint64_t size) {
  quay_allocator *inner = allocator->inner;
  return inner->vtable.flush(inner, raw, offset, size);
}

static quay_status forward_advise(quay_allocator *allocator, const quay_raw_buffer *raw,
                                  uint64_t offset, uint64_t size, quay_advice advice) {
  quay_allocator *inner = allocator->inner;
  return inner->vtable.advise(inner, raw, offset, size, advice);
}

static quay_status forward_trim(quay_allocator *allocator, uint64_t *out_bytes) {
  quay_allocator *inner = allocator->inner;
  return inner->vtable.trim(inner, out_bytes);
}

static void forward_stats(quay_allocator *allocator, quay_backend_stats *out_stats) {
  quay_allocator *inner = allocator->inner;
  inner->vtable.stats(inner, out_stats);
}

static quay_status forward_adopt_host(quay_allocator *allocator, const quay_host_memory *memory,
                                      quay_raw_buffer *out_raw) {
  quay_allocator *inner = allocator->inner;
  return inner->vtable.adopt_host(inner, memory, out_raw);
}

static void forward_window(quay_allocator *allocator, const quay_raw_buffer *block, uint64_t offset,
                           uint64_t size, quay_raw_buffer *out_raw) {
  quay_allocator *inner = allocator->inner;
  inner->vtable.window(inner, block, offset, size, out_raw);
}

static quay_status forward_reserve(quay_allocator *allocator, uint64_t size, uint64_t alignment,
                                   quay_raw_buffer *out_raw) {
  return quay__reserve(allocator->inner, size, alignment, out_raw);
}

static quay_status forward_commit(quay_allocator *allocator, quay_raw_buffer *raw, uint64_t offset,
                                  uint64_t size) {
  quay_allocator *inner = allocator->inner;
  return inner->vtable.commit(inner, raw, offset, size);
}

static quay_status forward_decommit(quay_allocator *allocator, quay_raw_buffer *raw,
                                    uint64_t offset, uint64_t size) {
  quay_allocator *inner = allocator->inner;
  return inner->vtable.decommit(inner, raw, offset, size);
}

static quay_status forward_copy_in_async(quay_allocator *allocator, quay_raw_buffer *destination,
                                         uint64_t offset, const void *source, uint64_t size,
                                         uint64_t stream) {
  quay_allocator *inner = allocator->inner;
  return inner->vtable.copy_in_async(inner, destination, offset, source, size, stream);
}

static quay_status forward_copy_out_async(quay_allocator *allocator, const quay_raw_buffer *source,
                                          uint64_t offset, void *destination, uint64_t size,
                                          uint64_t stream) {
  quay_allocator *inner = allocator->inner;
  return inner->vtable.copy_out_async(inner, source, offset, destination, size, stream);
}

static quay_status forward_copy_within_async(quay_allocator *allocator,
                                             quay_raw_buffer *destination,
                                             uint64_t destination_offset,
                                             const quay_raw_buffer *source, uint64_t source_offset,
                                             uint64_t size, uint64_t stream) {
  quay_allocator *inner = allocator->inner;
  return inner->vtable.copy_within_async(inner, destination, destination_offset, source,
                                         source_offset, size, stream);
}

static quay_status forward_copy_across_async(quay_allocator *allocator,
                                             quay_raw_buffer *destination,
                                             uint64_t destination_offset,
                                             const quay_raw_buffer *source, uint64_t source_offset,
                                             uint64_t size, uint64_t stream) {
  quay_allocator *inner = allocator->inner;
  return inner->vtable.copy_across_async(inner, destination, destination_offset, source,
                                         source_offset, size, stream);
}

static quay_status forward_lend_async(quay_allocator *allocator, const quay_raw_buffer *raw,
                                      uint64_t offset, uint64_t size, quay_use_mode mode) {
  quay_allocator *inner = allocator->inner;
  return inner->vtable.lend_async(inner, raw, offset, size, mode);
}

static quay_status forward_fill_async(quay_allocator *allocator, quay_raw_buffer *raw,
                                      uint64_t offset, uint64_t size, const void *pattern,
                                      size_t pattern_size, uint64_t stream) {
  quay_allocator *inner = allocator->inner;
  return inner->vtable.fill_async(inner, raw, offset, size, pattern, pattern_size, stream);
}

#define FORWARD(name)                \
  do {                               \
    if (vtable->name == NULL) {      \
      vtable->name = forward_##name; \
    }                                \
  } while (0)

void quay__forward_fill(quay_allocator_vtable *vtable, const quay_allocator *inner) {
  FORWARD(alloc);
  FORWARD(free);
  FORWARD(copy_in);
  FORWARD(copy_out);
  FORWARD(host_pointer);
  FORWARD(address);
  FORWARD(copy_within);
  FORWARD(can_copy_across);
  FORWARD(copy_across);
  FORWARD(copy_across_async);
  FORWARD(lend);
  FORWARD(copy_info);
  FORWARD(lend_async);
  FORWARD(fill);
  FORWARD(flush);
  FORWARD(advise);
  FORWARD(trim);
  FORWARD(stats);
  FORWARD(release);
  FORWARD(adopt_host);
  if (inner->has_window)
    FORWARD(window);
  if (inner->has_reserve) {
    FORWARD(reserve);
    FORWARD(commit);
    FORWARD(decommit);
  }
  if (inner->has_async) {
    FORWARD(copy_in_async);
    FORWARD(copy_out_async);
    FORWARD(copy_within_async);
    FORWARD(fill_async);
    if (vtable->copy_in_many_async == NULL)
      vtable->copy_in_many_async = quay__copy_in_one_by_one;
  }
}

#undef FORWARD
