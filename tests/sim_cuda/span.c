/* The bytes that an operation touches: found and judged when it is submitted, moved when it runs.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"

unsigned char *sim_segment_bytes(const sim_segment *segment) {
  return segment->memory != NULL ? segment->memory->bytes + segment->offset : segment->host;
}

static bool is_host_kind(sim_kind kind) {
  return kind == SIM_PINNED || kind == SIM_REGISTERED || kind == SIM_MANAGED;
}

/* Why work in the context can't reach the range; NULL: it can. */
static const char *obstacle(const sim_range *range, const sim_context *context, bool write,
                            sim_rule rule) {
  switch (range->kind) {
  case SIM_PINNED:
  case SIM_MANAGED:
    return NULL;
  case SIM_REGISTERED:
    return write && (range->flags & CU_MEMHOSTREGISTER_READ_ONLY) != 0 ? "registered read-only"
                                                                       : NULL;
  case SIM_DEVICE:
  case SIM_IPC:
    if (range->device == context->device || rule == SIM_RULE_PEER ||
        (context->peers & 1u << range->device) != 0)
      return NULL;
    return "of another device, without cuCtxEnablePeerAccess";
  case SIM_POOL:
    return sim_pool_reaches(range->pool, context->device, write)
               ? NULL
               : "of a pool, without cuMemPoolSetAccess";
  case SIM_MAPPED: {
    const unsigned needed =
        write ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ;
    return (range->access[context->device] & needed) == needed ? NULL
                                                               : "mapped, without cuMemSetAccess";
  }
  }
  return "of no kind";
}

static void add(sim_span *span, sim_segment segment) {
  span->segments = sim_grow(span->segments, span->count, &span->capacity, sizeof *span->segments);
  span->segments[span->count++] = segment;
  if (segment.memory != NULL)
    sim_memory_retain(segment.memory);
}

static bool fits_rule(const sim_range *range, sim_rule rule) {
  return rule != SIM_RULE_HOST || is_host_kind(range->kind);
}

static CUresult refuse(sim_span *span) {
  sim_span_free(span);
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_span_find(sim_span *out, const char *what, sim_context *context, uint64_t address,
                       uint64_t size, bool write, sim_rule rule) {
  *out = (sim_span){.address = address, .size = size};
  if (size > UINT64_MAX - address)
    return CUDA_ERROR_INVALID_VALUE;
  for (uint64_t at = address; at < address + size;) {
    const sim_range *const range = sim_range_at(at);
    if (range == NULL || !fits_rule(range, rule)) {
      const sim_range *const next = sim_range_overlapping(at, address + size);
      const bool pageable = range == NULL && at == address && next == NULL &&
                            !sim_address_is_device(at) && at >= SIM_PAGE &&
                            (rule == SIM_RULE_HOST || rule == SIM_RULE_ANY);
      if (!pageable) {
        sim_report_address(what, at, address + size - at);
        return refuse(out);
      }
      add(out, (sim_segment){.host = (unsigned char *)(uintptr_t)address, .size = size});
      return CUDA_SUCCESS;
    }
    const char *const why = obstacle(range, context, write, rule);
    if (why != NULL) {
      sim_report(SIMCUDA_NO_ACCESS, "%s: device %d %s 0x%" PRIx64 ", which is %s", what,
                 context->device, write ? "writes" : "reads", at, why);
      return refuse(out);
    }
    const uint64_t end = range->end < address + size ? range->end : address + size;
    /* Two plain allocations that happen to touch are not one. */
    if (end != address + size && range->kind != SIM_MAPPED) {
      sim_report_address(what, end, address + size - end);
      return refuse(out);
    }
    add(out, (sim_segment){.memory = range->memory, .offset = at - range->begin, .size = end - at});
    at = end;
  }
  return CUDA_SUCCESS;
}

void sim_span_free(sim_span *span) {
  for (size_t i = 0; i < span->count; i++) {
    if (span->segments[i].memory != NULL)
      sim_memory_release(span->segments[i].memory);
  }
  free(span->segments);
  *span = (sim_span){.count = 0};
}

bool sim_span_is_pageable(const sim_span *span) {
  return span->count > 0 && span->segments[0].memory == NULL;
}

bool sim_span_is_host(const sim_span *span) {
  return span->count > 0 &&
         (span->segments[0].memory == NULL || span->segments[0].memory->host_access);
}

void sim_span_access(const sim_span *span, bool write, const sim_actor *actor) {
  for (size_t i = 0; i < span->count; i++) {
    const sim_segment *const s = &span->segments[i];
    if (s->memory != NULL)
      sim_shadow_access(s->memory, s->offset, s->offset + s->size, write, actor);
  }
}

static bool host_sees(const sim_segment *segment) {
  return segment->memory == NULL || segment->memory->host_access;
}

static void announce(const sim_span *span, bool write) {
  for (size_t i = 0; i < span->count; i++) {
    if (host_sees(&span->segments[i]))
      sim_announce(sim_segment_bytes(&span->segments[i]), span->segments[i].size, write);
  }
}

typedef struct cursor {
  const sim_span *span;
  size_t index;
  uint64_t offset;
} cursor;

static unsigned char *bytes_at(const cursor *c) {
  return sim_segment_bytes(&c->span->segments[c->index]) + c->offset;
}

static void touched(const cursor *c, uint64_t size) {
  const sim_segment *const segment = &c->span->segments[c->index];
  if (segment->memory != NULL)
    sim_memory_touched(segment->memory, segment->offset + c->offset, size);
}

static uint64_t left_at(const cursor *c) {
  return c->span->segments[c->index].size - c->offset;
}

static void advance(cursor *c, uint64_t by) {
  c->offset += by;
  if (c->offset < c->span->segments[c->index].size)
    return;
  c->offset = 0;
  c->index++;
}

void sim_span_copy(const sim_span *to, const sim_span *from) {
  announce(from, false);
  announce(to, true);
  cursor target = {.span = to};
  cursor source = {.span = from};
  for (uint64_t left = to->size; left > 0;) {
    const uint64_t a = left_at(&target);
    const uint64_t b = left_at(&source);
    const uint64_t piece = a < b ? a : b;
    memmove(bytes_at(&target), bytes_at(&source), piece);
    touched(&target, piece);
    touched(&source, piece);
    advance(&target, piece);
    advance(&source, piece);
    left -= piece;
  }
}

void sim_span_fill(const sim_span *to, const void *pattern, size_t pattern_size) {
  announce(to, true);
  uint64_t done = 0;
  for (size_t i = 0; i < to->count; i++) {
    unsigned char *const bytes = sim_segment_bytes(&to->segments[i]);
    if (pattern_size == 1) {
      memset(bytes, *(const unsigned char *)pattern, to->segments[i].size);
      continue;
    }
    for (uint64_t at = 0; at < to->segments[i].size; at++, done++)
      bytes[at] = ((const unsigned char *)pattern)[done % pattern_size];
  }
}
