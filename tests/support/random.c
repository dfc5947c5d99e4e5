/* SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014). */
#include "support/random.h"

#include <string.h>

uint64_t quay_test_random(uint64_t *state) {
  uint64_t value = *state += 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

/* A part at a time, for the reason in parts.h. */
void quay_test_random_bytes(void *bytes, size_t size, uint64_t seed) {
  uint64_t state = seed;
  uint64_t part[512];
  for (size_t done = 0; done < size;) {
    const size_t count = size - done < sizeof part ? size - done : sizeof part;
    for (size_t i = 0; i * sizeof part[0] < count; i++)
      part[i] = quay_test_random(&state);
    memcpy((unsigned char *)bytes + done, part, count);
    done += count;
  }
}

size_t quay_test_difference(const void *a, const void *b, size_t size) {
  if (size == 0 || memcmp(a, b, size) == 0)
    return size;
  const unsigned char *left = a;
  const unsigned char *right = b;
  size_t i = 0;
  while (left[i] == right[i])
    i++;
  return i;
}
