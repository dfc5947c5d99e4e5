/* SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014). */
#include "support/random.h"

#include <string.h>

uint64_t quay_test_random(uint64_t *state) {
  uint64_t value = *state += 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

void quay_test_random_bytes(void *bytes, size_t size, uint64_t seed) {
  uint64_t state = seed;
  unsigned char *at = bytes;
  for (size_t left = size; left > 0;) {
    const uint64_t word = quay_test_random(&state);
    const size_t part = left < sizeof word ? left : sizeof word;
    memcpy(at, &word, part);
    at += part;
    left -= part;
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
