/* Allocations at random: RMM's random_allocations, and UMF's exchange of one block among many, by
 * several threads. Memory is not touched. Passes are cut off after a while, and so are rounds, so
 * that all of it takes less than a minute whatever the driver does.
 *
 * Of RMM's shape the first pass, on an allocator that is new, gives what was held, and is not
 * timed; the rounds after it find what it has left cached, as in RMM's own benchmark. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "../random_steps.h"
#include "bench_cuda.h"

enum {
  ROUNDS_MAX = 3,
  WAYS = 4,
  THREADS_MAX = 4
};

/* Of one pass; of the group until there are no further rounds, and no further cases. */
static const double pass_limit_ns = 25e7, rounds_limit_ns = 20e9, cases_limit_ns = 50e9;
static double group_begin;

typedef struct way way;

/* Blocks by slot, of one way to allocate. */
typedef struct blocks {
  const way *of;
  quay_raw_buffer *raws;
  CUdeviceptr *pointers;
  quay_allocator *allocator;
  CUmemoryPool pool;
  CUstream streams[THREADS_MAX]; /* one a thread */
  uint64_t most;                 /* held, in bytes */
  size_t free_before;            /* of the device */
} blocks;

struct way {
  const char *name;
  void (*open)(blocks *self);
  void (*close)(blocks *self);
  bool (*take)(blocks *self, unsigned thread, uint32_t slot, uint64_t size);
  void (*give)(blocks *self, unsigned thread, uint32_t slot);
  void (*look)(blocks *self); /* at what is held */
  const char *spec;           /* of Quay's */
  bool slow;                  /* for few allocations only */
};

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static void raise_to(blocks *self, uint64_t held) {
  self->most = held > self->most ? held : self->most;
}

/* Quay. */

static void quay_open(blocks *self) {
  self->allocator = bench_open(self->of->spec);
}

static void quay_close(blocks *self) {
  quay_allocator_release(self->allocator);
}

static bool quay_take(blocks *self, unsigned thread, uint32_t slot, uint64_t size) {
  (void)thread;
  return quay_allocator_alloc(self->allocator, size, NULL, &self->raws[slot]) == QUAY_OK;
}

static void quay_give(blocks *self, unsigned thread, uint32_t slot) {
  (void)thread;
  quay_raw_buffer_free(&self->raws[slot]);
}

static void quay_look(blocks *self) {
  quay_stats stats;
  MUST(quay_allocator_stats(self->allocator, &stats));
  raise_to(self, stats.reserved_bytes);
}

/* cuMemAllocAsync, from a pool that keeps what it has. */

static void async_open(blocks *self) {
  const CUmemPoolProps properties = {
      .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
  };
  cuuint64_t without_limit = UINT64_MAX;
  CU_MUST(cu->cuMemPoolCreate(&self->pool, &properties));
  CU_MUST(cu->cuMemPoolSetAttribute(self->pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &without_limit));
  for (int i = 0; i < THREADS_MAX; i++)
    CU_MUST(cu->cuStreamCreate(&self->streams[i], CU_STREAM_NON_BLOCKING));
}

static void async_close(blocks *self) {
  for (int i = 0; i < THREADS_MAX; i++) {
    CU_MUST(cu->cuStreamSynchronize(self->streams[i]));
    CU_MUST(cu->cuStreamDestroy_v2(self->streams[i]));
  }
  CU_MUST(cu->cuMemPoolDestroy(self->pool));
}

static bool async_take(blocks *self, unsigned thread, uint32_t slot, uint64_t size) {
  return cu->cuMemAllocFromPoolAsync(&self->pointers[slot], size, self->pool,
                                     self->streams[thread]) == CUDA_SUCCESS;
}

static void async_give(blocks *self, unsigned thread, uint32_t slot) {
  CU_MUST(cu->cuMemFreeAsync(self->pointers[slot], self->streams[thread]));
  self->pointers[slot] = 0;
}

static void async_look(blocks *self) {
  cuuint64_t held = 0;
  CU_MUST(cu->cuMemPoolGetAttribute(self->pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &held));
  raise_to(self, held);
}

/* cuMemAlloc. */

static void plain_open(blocks *self) {
  size_t total = 0;
  CU_MUST(cu->cuMemGetInfo_v2(&self->free_before, &total));
}

static void plain_close(blocks *self) {
  (void)self;
}

static bool plain_take(blocks *self, unsigned thread, uint32_t slot, uint64_t size) {
  (void)thread;
  return cu->cuMemAlloc_v2(&self->pointers[slot], size) == CUDA_SUCCESS;
}

static void plain_give(blocks *self, unsigned thread, uint32_t slot) {
  (void)thread;
  CU_MUST(cu->cuMemFree_v2(self->pointers[slot]));
  self->pointers[slot] = 0;
}

static void plain_look(blocks *self) {
  size_t unused = 0, total = 0;
  CU_MUST(cu->cuMemGetInfo_v2(&unused, &total));
  raise_to(self, self->free_before > unused ? self->free_before - unused : 0);
}

#define QUAY_WAY(name_, spec_) \
  { name_, quay_open, quay_close, quay_take, quay_give, quay_look, spec_, false }

static const way ways[WAYS] = {
    QUAY_WAY("quay", "pool+cuda:0"),
    QUAY_WAY("quay_tight", "pool:keep=tight+cuda:0"),
    {"cuMemAllocAsync", async_open, async_close, async_take, async_give, async_look, NULL, false},
    {"cuMemAlloc", plain_open, plain_close, plain_take, plain_give, plain_look, NULL, true},
};

static blocks open_blocks(const way *of, size_t slots) {
  blocks self = {.of = of};
  self.raws = calloc(slots + 1, sizeof *self.raws);
  self.pointers = calloc(slots + 1, sizeof *self.pointers);
  REQUIRE(self.raws != NULL && self.pointers != NULL);
  of->open(&self);
  return self;
}

static bool is_live(const blocks *self, uint32_t slot) {
  return self->pointers[slot] != 0 || self->raws[slot].owner != NULL;
}

static void give_all(blocks *self, size_t slots) {
  for (uint32_t i = 0; i < slots; i++) {
    if (is_live(self, i))
      self->of->give(self, 0, i);
  }
}

static void close_blocks(blocks *self, size_t slots) {
  give_all(self, slots);
  self->of->close(self);
  free(self->raws);
  free(self->pointers);
}

/* What a way gave. */
typedef struct outcome {
  double samples[ROUNDS_MAX], ns; /* an operation; the median */
  unsigned rounds;
  uint64_t operations; /* done in the shortest of the passes */
  uint64_t failed;     /* allocations, in the first pass */
  double ratio;        /* 0: not measured */
} outcome;

static void settle(outcome *of) {
  for (unsigned i = 1; i < of->rounds; i++) {
    for (unsigned k = i; k > 0 && of->samples[k] < of->samples[k - 1]; k--) {
      const double larger = of->samples[k - 1];
      of->samples[k - 1] = of->samples[k];
      of->samples[k] = larger;
    }
  }
  of->ns = (of->samples[(of->rounds - 1) / 2] + of->samples[of->rounds / 2]) / 2;
}

static void print_row(const char *name, const outcome *outcomes, uint64_t operations) {
  printf("%-9s %-38s", "random", name);
  for (int i = 0; i < WAYS; i++) {
    const outcome *const one = &outcomes[i];
    if (one->rounds == 0)
      continue;
    printf("%s %s %.0f ns%s", i > 0 ? ";" : "", ways[i].name, one->ns,
           one->operations < operations ? "*" : "");
    if (one->ratio > 0)
      printf(" %.3f", one->ratio);
    if (one->failed > 0)
      printf(", %llu failed", (unsigned long long)one->failed);
  }
  printf("\n");
  (void)fflush(stdout);
}

static void write_row(const char *name, const outcome *outcomes, uint64_t operations) {
  FILE *const file = bench_json();
  if (file == NULL)
    return;
  fprintf(file, "  {\"group\": \"random\", \"case\": \"%s\", \"operations\": %llu", name,
          (unsigned long long)operations);
  for (int i = 0; i < WAYS; i++) {
    const outcome *const one = &outcomes[i];
    if (one->rounds == 0)
      continue;
    const char *const name_of = ways[i].name;
    fprintf(file,
            ", \"%s_ns\": %.1f, \"%s_rounds\": %u, \"%s_operations\": %llu, \"%s_failed\": %llu",
            name_of, one->ns, name_of, one->rounds, name_of, (unsigned long long)one->operations,
            name_of, (unsigned long long)one->failed);
    if (one->ratio > 0)
      fprintf(file, ", \"%s_ratio\": %.4f", name_of, one->ratio);
  }
  fprintf(file, ", \"good\": true},\n");
  (void)fclose(file);
}

static bool another_round(unsigned round) {
  const unsigned most = settings.rounds < ROUNDS_MAX ? settings.rounds : ROUNDS_MAX;
  return round < most && (round == 0 || now() - group_begin < rounds_limit_ns);
}

/* Says so, too. */
static bool is_over(const char *name) {
  const bool over = now() - group_begin > cases_limit_ns;
  if (over)
    bench_skip("random", name, "the time of this group is up");
  return over;
}

/* RMM's shape. */

typedef struct pass {
  uint64_t operations, failed;
  uint64_t live, peak; /* bytes */
  double ns;
} pass;

/* `looks`: at what is held, which takes its time. */
static pass run_steps(blocks *self, const random_steps *steps, bool looks) {
  const way *const of = self->of;
  pass result = {.operations = 0};
  const double begin = now();
  for (size_t i = 0; i < steps->count; i++) {
    const random_step *const step = &steps->steps[i];
    if (!step->is_free && of->take(self, 0, step->slot, step->size)) {
      result.live += step->size;
    } else if (!step->is_free) {
      result.failed++;
    } else if (is_live(self, step->slot)) {
      of->give(self, 0, step->slot);
      result.live -= step->size;
    }
    result.operations++;
    /* Of cuMemAlloc no more can be held than when most is live; its look is slow. */
    if (looks && !step->is_free && (!of->slow || result.live > result.peak))
      of->look(self);
    result.peak = result.live > result.peak ? result.live : result.peak;
    if (i % 16 == 15 && now() - begin > pass_limit_ns)
      break;
  }
  result.ns = now() - begin;
  give_all(self, steps->slots);
  return result;
}

static void first_pass(blocks *self, const random_steps *steps, outcome *out) {
  const pass first = run_steps(self, steps, true);
  *out = (outcome){.operations = steps->count, .failed = first.failed};
  if (first.peak > 0)
    out->ratio = (double)self->most / (double)first.peak;
}

static void rmm(uint32_t allocations, uint64_t most, uint64_t usage) {
  outcome outcomes[WAYS] = {{.rounds = 0}};
  blocks all[WAYS];
  random_steps steps;
  char name[64];
  snprintf(name, sizeof name, "%u allocations up to %llu MiB", allocations,
           (unsigned long long)(most / MIB));
  if (most > usage)
    bench_skip("random", name, "too little memory of the device is free");
  if (most > usage || is_over(name))
    return;
  REQUIRE(random_steps_make(allocations, most, usage, &steps));
  const int count = allocations <= 1000 ? WAYS : WAYS - 1;
  for (int i = 0; i < count; i++) {
    all[i] = open_blocks(&ways[i], steps.slots);
    first_pass(&all[i], &steps, &outcomes[i]);
  }
  for (unsigned round = 0; another_round(round); round++) {
    for (int i = 0; i < count; i++) {
      const pass one = run_steps(&all[i], &steps, false);
      outcome *const out = &outcomes[i];
      out->samples[out->rounds++] = one.ns / (double)one.operations;
      out->operations = one.operations < out->operations ? one.operations : out->operations;
    }
  }
  for (int i = 0; i < count; i++) {
    settle(&outcomes[i]);
    close_blocks(&all[i], steps.slots);
  }
  print_row(name, outcomes, steps.count);
  write_row(name, outcomes, steps.count);
  random_steps_free(&steps);
}

/* UMF's shape. */

typedef struct exchange {
  blocks *on;
  pthread_barrier_t *barrier;
  unsigned thread;
  uint32_t live;
  uint64_t least, most;
  uint64_t operations;
  double ns;
} exchange;

static void *run_exchange(void *argument) {
  exchange *const self = argument;
  const way *const of = self->on->of;
  const uint32_t first = self->thread * self->live;
  const uint64_t wanted = settings.smoke ? 64 : 200000;
  uint64_t random = self->thread + 1;
  CU_MUST(cu->cuCtxSetCurrent(contexts[0]));
  for (uint32_t i = 0; i < self->live; i++)
    REQUIRE(of->take(self->on, self->thread, first + i,
                     self->least + random_below(&random, self->most - self->least + 1)));
  pthread_barrier_wait(self->barrier);
  const double begin = now();
  while (self->operations < wanted) {
    const uint32_t slot = first + (uint32_t)random_below(&random, self->live);
    of->give(self->on, self->thread, slot);
    REQUIRE(of->take(self->on, self->thread, slot,
                     self->least + random_below(&random, self->most - self->least + 1)));
    self->operations += 2;
    if (self->operations % 32 == 0 && now() - begin > pass_limit_ns)
      break;
  }
  self->ns = now() - begin;
  return NULL;
}

/* Nanoseconds of an operation, in the mean of the threads. */
static double exchange_with(const way *of, unsigned threads, uint32_t live, uint64_t least,
                            uint64_t most, outcome *out) {
  pthread_t ids[THREADS_MAX];
  exchange parts[THREADS_MAX];
  pthread_barrier_t barrier;
  double sum = 0;
  blocks on = open_blocks(of, (size_t)threads * live);
  REQUIRE(pthread_barrier_init(&barrier, NULL, threads) == 0);
  for (unsigned i = 0; i < threads; i++) {
    parts[i] = (exchange){&on, &barrier, i, live, least, most, 0, 0};
    REQUIRE(pthread_create(&ids[i], NULL, run_exchange, &parts[i]) == 0);
  }
  for (unsigned i = 0; i < threads; i++) {
    REQUIRE(pthread_join(ids[i], NULL) == 0);
    sum += parts[i].ns / (double)parts[i].operations;
    if (out->rounds == 0 || parts[i].operations < out->operations)
      out->operations = parts[i].operations;
  }
  (void)pthread_barrier_destroy(&barrier);
  close_blocks(&on, (size_t)threads * live);
  return sum / threads;
}

static void umf(unsigned threads, uint64_t least, uint64_t most) {
  outcome outcomes[WAYS] = {{.rounds = 0}};
  const uint32_t live = settings.smoke ? 50 : 10000;
  char name[64];
  snprintf(name, sizeof name, "%u live, %llu to %llu B, %u thread%s", live,
           (unsigned long long)least, (unsigned long long)most, threads, threads > 1 ? "s" : "");
  if (is_over(name))
    return;
  for (unsigned round = 0; another_round(round); round++) {
    for (int i = 0; i < WAYS; i++) {
      if (ways[i].slow)
        continue;
      outcome *const out = &outcomes[i];
      const double ns = exchange_with(&ways[i], threads, live, least, most, out);
      out->samples[out->rounds++] = ns;
    }
  }
  for (int i = 0; i < WAYS; i++) {
    if (outcomes[i].rounds > 0)
      settle(&outcomes[i]);
  }
  const uint64_t operations = settings.smoke ? 64 : 200000;
  print_row(name, outcomes, operations);
  write_row(name, outcomes, operations);
}

void bench_random_shapes(void) {
  static const uint32_t counts[] = {1000, 10000, 100000};
  static const uint64_t most_mib[] = {1, 4, 64, 256, 1024, 4096};
  size_t unused = 0, total = 0;
  CU_MUST(cu->cuMemGetInfo_v2(&unused, &total));
  /* Each of the ways keeps its own. */
  uint64_t usage = unused / (WAYS + 1);
  usage = usage < RANDOM_USAGE_BYTES ? usage : RANDOM_USAGE_BYTES;
  group_begin = now();
  printf("%-9s ns an operation, most held over most live; *: cut off; at most %llu MiB live\n",
         "random", (unsigned long long)(usage / MIB));
  for (unsigned threads = 1; threads <= THREADS_MAX; threads *= 2) {
    umf(threads, 4096, 4096);
    umf(threads, 8, 4096);
  }
  for (size_t i = 0; i < sizeof most_mib / sizeof *most_mib; i++) {
    for (size_t k = 0; k < sizeof counts / sizeof *counts; k++)
      rmm(settings.smoke ? 60 : counts[k], most_mib[i] * MIB, usage);
  }
}
