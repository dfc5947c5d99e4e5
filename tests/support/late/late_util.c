/* Memory for the test double itself, and random numbers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "late_internal.h"

static void *must(void *memory) {
  if (memory == NULL) {
    fprintf(stderr, "late: the test double itself has no memory left\n");
    abort();
  }
  return memory;
}

void *late_new(size_t size) {
  return must(calloc(1, size));
}

void *late_grow(void *memory, size_t size) {
  return must(realloc(memory, size));
}

/* SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014). */
uint64_t late_random(uint64_t *state) {
  uint64_t z = *state += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}
