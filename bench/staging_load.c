/* Threads that copy memory of their own all the while, as other programs on a shared machine do. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "core/os.h"
#include "staging.h"

/* Bytes of each side of a thread's copy, at most: more than caches have room for. And at a time. */
#define SIDE_MAX (256 * MIB)
#define PIECE    (512 * KIB)

static struct {
  uint64_t side; /* bytes, whole pieces */
  pthread_t threads[LOADS_MAX];
  uint32_t count;
  atomic_bool stop;
} loads;

static void *load(void *argument) {
  unsigned char *const memory = quay__os_aligned_alloc(4096, 2 * loads.side);
  pthread_barrier_t *begun = argument;
  if (memory == NULL) {
    fprintf(stderr, "bench_staging: no memory for --load\n");
    exit(1);
  }
  memset(memory, 0x5a, 2 * loads.side);
  (void)pthread_barrier_wait(begun);
  for (uint64_t at = 0; !atomic_load_explicit(&loads.stop, memory_order_relaxed);
       at = (at + PIECE) % loads.side)
    memcpy(memory + loads.side + at, memory + at, PIECE);
  quay__os_free(memory);
  return NULL;
}

void bench_load_begin(const settings *set) {
  pthread_barrier_t begun;
  if (set->load == 0)
    return;
  if (pthread_barrier_init(&begun, NULL, set->load + 1) != 0)
    exit(1);
  loads.side = quay__max(quay__min(SIDE_MAX, set->size) / PIECE * PIECE, PIECE);
  while (loads.count < set->load) {
    if (pthread_create(&loads.threads[loads.count], NULL, load, &begun) != 0)
      exit(1);
    loads.count++;
  }
  (void)pthread_barrier_wait(&begun);
  pthread_barrier_destroy(&begun);
}

void bench_load_end(void) {
  atomic_store_explicit(&loads.stop, true, memory_order_relaxed);
  while (loads.count != 0)
    (void)pthread_join(loads.threads[--loads.count], NULL);
}
