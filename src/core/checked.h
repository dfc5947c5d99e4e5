/* Checked arithmetic on sizes and offsets; everything that adds or multiplies them uses this.
 * Each returns false on overflow and leaves `*out` undefined then. */
#ifndef QUAY_CORE_CHECKED_H
#define QUAY_CORE_CHECKED_H

#include <stdbool.h>
#include <stdint.h>

static inline bool quay__add(uint64_t a, uint64_t b, uint64_t *out) {
  return !__builtin_add_overflow(a, b, out);
}

static inline bool quay__mul(uint64_t a, uint64_t b, uint64_t *out) {
  return !__builtin_mul_overflow(a, b, out);
}

/* Whether [offset, offset + size) lies within [0, total). */
static inline bool quay__in_range(uint64_t offset, uint64_t size, uint64_t total) {
  return offset <= total && size <= total - offset;
}

static inline bool quay__is_power_of_two(uint64_t value) {
  return value != 0 && (value & (value - 1)) == 0;
}

/* Rounds up to a multiple of `alignment`, a power of two. */
static inline bool quay__align_up(uint64_t value, uint64_t alignment, uint64_t *out) {
  uint64_t sum;
  if (!quay__add(value, alignment - 1, &sum))
    return false;
  *out = sum & ~(alignment - 1);
  return true;
}

static inline uint64_t quay__align_down(uint64_t value, uint64_t alignment) {
  return value & ~(alignment - 1);
}

static inline uint64_t quay__min(uint64_t a, uint64_t b) {
  return a < b ? a : b;
}
static inline uint64_t quay__max(uint64_t a, uint64_t b) {
  return a > b ? a : b;
}

#endif
