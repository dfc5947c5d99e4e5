/* Ranges of a block: free ones are joined with their neighbours at once, and found by their size.
 * Knows nothing of memory: offsets alone. The device's lock is held. */
#include "core/checked.h"
#include "core/os.h"
#include "vulkan/vulkan_impl.h"

/* Bin n holds free spans of 2^n bytes to less than 2^(n+1). */
static unsigned bin_of(uint64_t size) {
  return 63u - (unsigned)__builtin_clzll(size | 1);
}

static void bin_add(quay__vulkan_span *span) {
  quay__vulkan_block *const block = span->block;
  const unsigned bin = bin_of(span->size);
  span->used = false;
  span->bin_previous = NULL;
  span->bin_next = block->bins[bin];
  if (span->bin_next != NULL)
    span->bin_next->bin_previous = span;
  block->bins[bin] = span;
  block->bin_map |= UINT64_C(1) << bin;
}

static void bin_remove(quay__vulkan_span *span) {
  quay__vulkan_block *const block = span->block;
  const unsigned bin = bin_of(span->size);
  if (span->bin_previous != NULL) {
    span->bin_previous->bin_next = span->bin_next;
  } else {
    block->bins[bin] = span->bin_next;
  }
  if (span->bin_next != NULL)
    span->bin_next->bin_previous = span->bin_previous;
  if (block->bins[bin] == NULL)
    block->bin_map &= ~(UINT64_C(1) << bin);
}

static quay__vulkan_span *new_span(quay__vulkan_block *block, uint64_t offset, uint64_t size) {
  quay__vulkan_span *const span = quay__os_malloc(sizeof *span);
  if (span != NULL)
    *span = (quay__vulkan_span){.block = block, .offset = offset, .size = size};
  return span;
}

bool quay__vulkan_spans_begin(quay__vulkan_block *block) {
  quay__vulkan_span *const whole = new_span(block, 0, block->bytes);
  if (whole != NULL)
    bin_add(whole);
  return whole != NULL;
}

/* Bytes to leave out before the range can begin. */
static uint64_t padding(const quay__vulkan_span *span, uint64_t alignment, uint64_t origin) {
  const uint64_t begin = origin + span->offset;
  return (alignment - (begin & (alignment - 1))) & (alignment - 1);
}

static bool fits(const quay__vulkan_span *span, uint64_t size, uint64_t alignment,
                 uint64_t origin) {
  const uint64_t pad = padding(span, alignment, origin);
  return pad <= span->size && size <= span->size - pad;
}

/* The first one of a bin that fits; of large bins every one does, so that this is short. */
static quay__vulkan_span *find(const quay__vulkan_block *block, uint64_t size, uint64_t alignment,
                               uint64_t origin) {
  uint64_t map = block->bin_map & ~((UINT64_C(1) << bin_of(size)) - 1);
  while (map != 0) {
    const unsigned bin = (unsigned)__builtin_ctzll(map);
    for (quay__vulkan_span *span = block->bins[bin]; span != NULL; span = span->bin_next) {
      if (fits(span, size, alignment, origin))
        return span;
    }
    map &= map - 1;
  }
  return NULL;
}

/* Cuts `span` at `at` bytes into it; the second part is new and free. */
static bool cut(quay__vulkan_span *span, uint64_t at) {
  quay__vulkan_span *const rest = new_span(span->block, span->offset + at, span->size - at);
  if (rest == NULL)
    return false;
  rest->previous = span;
  rest->next = span->next;
  if (rest->next != NULL)
    rest->next->previous = rest;
  span->next = rest;
  span->size = at;
  bin_add(rest);
  return true;
}

quay__vulkan_span *quay__vulkan_span_take(quay__vulkan_block *block, uint64_t size,
                                          uint64_t alignment, uint64_t origin) {
  quay__vulkan_span *span = find(block, size, alignment, origin);
  if (span == NULL)
    return NULL;
  const uint64_t pad = padding(span, alignment, origin);
  bin_remove(span);
  if (pad != 0) {
    if (!cut(span, pad)) {
      bin_add(span);
      return NULL;
    }
    quay__vulkan_span *const rest = span->next;
    bin_add(span);
    bin_remove(rest);
    span = rest;
  }
  /* Without memory for a record the rest is wasted until the span is free again. */
  if (span->size > size)
    (void)cut(span, size);
  span->used = true;
  block->used++;
  return span;
}

/* Joins `second` to `first`, its neighbour before it; neither is in a bin. */
static void join(quay__vulkan_span *first, quay__vulkan_span *second) {
  first->size += second->size;
  first->next = second->next;
  if (first->next != NULL)
    first->next->previous = first;
  quay__os_free(second);
}

void quay__vulkan_span_give_back(quay__vulkan_span *span) {
  span->block->used--;
  quay__vulkan_span *const next = span->next, *const previous = span->previous;
  if (next != NULL && !next->used) {
    bin_remove(next);
    join(span, next);
  }
  if (previous != NULL && !previous->used) {
    bin_remove(previous);
    join(previous, span);
    span = previous;
  }
  bin_add(span);
}

void quay__vulkan_spans_end(quay__vulkan_block *block) {
  /* Nothing is in use: one free span, or none if the block never had any. */
  while (block->bin_map != 0) {
    quay__vulkan_span *const span = block->bins[__builtin_ctzll(block->bin_map)];
    bin_remove(span);
    quay__os_free(span);
  }
}

uint64_t quay__vulkan_spans_largest(const quay__vulkan_block *block) {
  uint64_t largest = 0;
  if (block->bin_map == 0)
    return 0;
  const quay__vulkan_span *span = block->bins[bin_of(block->bin_map)];
  for (; span != NULL; span = span->bin_next)
    largest = quay__max(largest, span->size);
  return largest;
}
