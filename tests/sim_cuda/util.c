/* Memory that is always there, arrays, random numbers. Knows nothing of CUDA. */
#include <stdlib.h>

#include "sim.h"

void *sim_new(size_t size) {
  void *const memory = calloc(1, size != 0 ? size : 1);
  if (memory == NULL)
    abort();
  return memory;
}

void *sim_grow(void *array, size_t count, size_t *capacity, size_t item) {
  if (count < *capacity)
    return array;
  *capacity = *capacity == 0 ? 8 : *capacity * 2;
  void *const grown = realloc(array, *capacity * item);
  if (grown == NULL)
    abort();
  return grown;
}

/* splitmix64 */
uint64_t sim_random(uint64_t *state) {
  uint64_t z = *state += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}
