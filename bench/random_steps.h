/* RMM's random_allocations as a list of steps, the same for every allocator that is measured, from
 * C and C++. Nothing is allocated here but the list. */
#ifndef QUAY_BENCH_RANDOM_STEPS_H
#define QUAY_BENCH_RANDOM_STEPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/* What RMM's benchmark lets be live at a time. */
#define RANDOM_USAGE_BYTES ((uint64_t)16000 << 20)

typedef struct random_step {
  uint64_t size; /* bytes, of the block */
  uint32_t slot; /* of the block among the live ones */
  bool is_free;
} random_step;

typedef struct random_steps {
  random_step *steps;
  size_t count;
  uint32_t slots;
  uint64_t peak_bytes; /* the most that is live */
} random_steps;

/* A linear congruential generator; the upper bits, as a number below `limit`. */
static inline uint64_t random_below(uint64_t *state, uint64_t limit) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return (*state >> 11) % limit;
}

static inline void random_steps_free(random_steps *of) {
  free(of->steps);
  of->steps = NULL;
}

/* So many allocations of 1 to `most` bytes, and their frees: with 73 % a step allocates, if no more
 * than `usage` bytes are live then; else it frees a block at random. What is left is freed in the
 * end. False if there is no memory. */
static inline bool random_steps_make(uint32_t allocations, uint64_t most, uint64_t usage,
                                     random_steps *out) {
  const size_t held_size = (size_t)allocations + 1;
  random_step *const held = (random_step *)malloc(held_size * sizeof *held); /* live blocks */
  uint32_t *const unused = (uint32_t *)malloc(held_size * sizeof *unused);
  uint64_t random = 1, live = 0;
  uint32_t active = 0, done = 0, unused_count = 0;
  out->count = out->slots = 0;
  out->peak_bytes = 0;
  out->steps = (random_step *)malloc(2 * held_size * sizeof *out->steps);
  const bool good = held != NULL && unused != NULL && out->steps != NULL;
  while (good && (done < allocations || active > 0)) {
    const uint64_t size = 1 + random_below(&random, most);
    const bool chance = random_below(&random, 100) < 73;
    random_step *const step = &out->steps[out->count++];
    if (done < allocations && (active == 0 || (chance && live + size <= usage))) {
      step->slot = unused_count > 0 ? unused[--unused_count] : out->slots++;
      step->size = size;
      step->is_free = false;
      held[active++] = *step;
      live += size;
      out->peak_bytes = live > out->peak_bytes ? live : out->peak_bytes;
      done++;
    } else {
      const uint64_t index = random_below(&random, active);
      *step = held[index];
      step->is_free = true;
      held[index] = held[--active];
      unused[unused_count++] = step->slot;
      live -= step->size;
    }
  }
  free(held);
  free(unused);
  if (!good)
    random_steps_free(out);
  return good;
}

#endif
