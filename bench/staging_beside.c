/* Copies to two devices at once, beside the limits of both; and every way to set the engine up for
 * them. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/os.h"
#include "staging.h"

/* Copies to two devices at once: a thread each, as often as there are runs. */
typedef struct beside {
  const bench *all;
  quay_buffer *to;
  const quay_buffer *from;
  pthread_barrier_t *start;
  sample samples[RUNS_MAX];
} beside;

typedef struct round_time {
  double seconds;
  int run;
} round_time;

static int by_round_time(const void *a, const void *b) {
  const double left = ((const round_time *)a)->seconds, right = ((const round_time *)b)->seconds;
  return (left > right) - (left < right);
}

static void *copy_beside(void *argument) {
  beside *own = argument;
  for (int i = 0; i < own->all->set.runs; i++) {
    (void)pthread_barrier_wait(own->start);
    own->samples[i] = bench_copy(own->to, own->from);
    (void)pthread_barrier_wait(own->start);
  }
  return NULL;
}

/* GB/s of both together in the median round, which is given out. */
static double rate_beside(const bench *all, beside each[2], int *out_round) {
  pthread_barrier_t start;
  pthread_t threads[2];
  round_time rounds[RUNS_MAX];
  if (pthread_barrier_init(&start, NULL, 3) != 0)
    exit(1);
  for (int i = 0; i < 2; i++) {
    each[i].start = &start;
    if (pthread_create(&threads[i], NULL, copy_beside, &each[i]) != 0)
      exit(1);
  }
  for (int i = 0; i < all->set.runs; i++) {
    (void)pthread_barrier_wait(&start);
    const uint64_t began = quay__os_nanoseconds();
    (void)pthread_barrier_wait(&start);
    rounds[i] = (round_time){(double)(quay__os_nanoseconds() - began) * 1e-9, i};
  }
  for (int i = 0; i < 2; i++)
    (void)pthread_join(threads[i], NULL);
  pthread_barrier_destroy(&start);
  qsort(rounds, (size_t)all->set.runs, sizeof rounds[0], by_round_time);
  *out_round = rounds[all->set.runs / 2].run;
  return 2e-9 * (double)all->set.size / rounds[all->set.runs / 2].seconds;
}

/* Ways to set the engine up for both. The budget lets them have what they wish. */
static const variant ways[] = {
    {.threads = 8, .slot = MIB, .slots = 4},
    {.threads = 10, .slot = MIB, .slots = 4},
    {.threads = 12, .slot = MIB, .slots = 4},
    {.threads = 14, .slot = MIB, .slots = 4},
    {.threads = 16, .slot = MIB, .slots = 4},
    {.threads = 8, .slot = MIB, .slots = 8},
    {.threads = 10, .slot = MIB, .slots = 6},
    {.threads = 12, .slot = MIB, .slots = 3},
    {.threads = 12, .slot = MIB, .slots = 5},
    {.threads = 16, .slot = MIB, .slots = 3},
    {.threads = 12, .slot = 512 * KIB, .slots = 5},
    {.threads = 12, .slot = 768 * KIB, .slots = 4},
    {.threads = 12, .slot = 1536 * KIB, .slots = 3},
    {.threads = 12, .slot = 2 * MIB, .slots = 2},
    {.threads = 12, .slot = 2 * MIB, .slots = 3},
    {.threads = 12, .slot = MIB, .slots = 4, .in_flight = 2 * MIB},
    {.threads = 12, .slot = MIB, .slots = 4, .in_flight = 8 * MIB},
    {.threads = 12, .slot = MIB, .slots = 4, .in_flight = 16 * MIB},
    {.threads = 12, .slot = MIB, .slots = 4, .least = 4 * MIB},
    {.threads = 12, .slot = MIB, .slots = 4, .least = 16 * MIB},
    {.threads = 12, .slot = MIB, .slots = 4, .bound = true},
};

enum {
  WAYS = sizeof ways / sizeof ways[0],
  PASSES = 3
};

/* Each way a few times, in turns; and one copy alone, set up so. */
static void sweep_beside(const bench *all, beside each[2]) {
  double both[WAYS][PASSES], alone[WAYS][PASSES];
  bench_check(setenv("QUAY_STAGING_BYTES", "256MiB", 1) == 0 ? QUAY_OK : QUAY_STATUS_UNAVAILABLE,
              "a larger budget");
  for (int pass = 0; pass < PASSES; pass++) {
    for (int i = 0; i < WAYS; i++) {
      int round = 0;
      bench_use(all, &ways[i]);
      both[i][pass] = rate_beside(all, each, &round);
      const sample one = bench_median(all->set.runs, all->there, all->here);
      alone[i][pass] = (double)all->set.size / one.seconds * 1e-9;
    }
  }
  for (int i = 0; i < WAYS; i++) {
    const variant *v = &ways[i];
    printf("%2u threads, %u slots of %4llu KiB, least %2llu in flight %2llu%s: both", v->threads,
           v->slots, (unsigned long long)(v->slot / KIB), (unsigned long long)(v->least / MIB),
           (unsigned long long)(v->in_flight / MIB), v->bound ? ", bound" : "");
    for (int pass = 0; pass < PASSES; pass++)
      printf(" %6.2f", both[i][pass]);
    printf("; alone");
    for (int pass = 0; pass < PASSES; pass++)
      printf(" %5.2f", alone[i][pass]);
    printf("\n");
  }
  (void)unsetenv("QUAY_STAGING_BYTES");
  bench_use(all, &all->set.variant);
}

/* Beside both pinned limits, each alone, and both at once. */
void bench_beside(const bench *all) {
  static beside each[2];
  quay_allocator *other = NULL, *cpu = NULL;
  int round = 0;
  bench_check(quay_allocator_open(all->set.beside, &other), all->set.beside);
  bench_check(quay_allocator_open("cpu", &cpu), "cpu");
  quay_buffer *there = bench_buffer(other, all->set.size), *here = bench_buffer(cpu, all->set.size);
  bench_check(quay_buffer_copy_in(here, all->bytes, all->set.size), "filling");
  const double in = bench_driver_rate(all, there, all->pinned);
  each[0] = (beside){.all = all, .to = all->there, .from = all->pinned};
  each[1] = (beside){.all = all, .to = there, .from = all->pinned};
  const double pinned = rate_beside(all, each, &round);
  (void)bench_copy(there, here);
  each[0].from = all->here;
  each[1].from = here;
  const double gbps = rate_beside(all, each, &round);
  char name[80];
  for (int i = 0; i < 2; i++) {
    snprintf(name, sizeof name, "memory to %s, of both",
             i == 0 ? all->set.device : all->set.beside);
    bench_print_line(name, all->set.size, &each[i].samples[round], i == 0 ? all->in : in);
  }
  printf(
      "memory to %s and %s at once: %.2f GB/s, %.3f of %.2f and %.2f; page-locked memory at once "
      "%.2f\n",
      all->set.device, all->set.beside, gbps, gbps / (all->in + in), all->in, in, pinned);
  if (all->set.sweep)
    sweep_beside(all, each);
  bench_check_bytes(all, there, all->set.size, "to two devices");
  bench_check_bytes(all, all->there, all->set.size, "to two devices");
  quay_buffer_release(there);
  quay_buffer_release(here);
  quay_allocator_release(other);
  quay_allocator_release(cpu);
}
