/* Timing in turns, medians, and the rows that come of them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "bench_cuda.h"

#define ROUNDS_MAX 101

static double now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static int compare(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double median(const double *samples, unsigned count) {
  double sorted[ROUNDS_MAX];
  memcpy(sorted, samples, count * sizeof *samples);
  qsort(sorted, count, sizeof *sorted, compare);
  return (sorted[(count - 1) / 2] + sorted[count / 2]) / 2;
}

/* Nanoseconds a call. */
static double time_way(const bench_way *way, uint64_t calls) {
  if (way->before != NULL)
    way->before(way->self);
  const double begin = now_ns();
  way->run(way->self, calls);
  const double end = now_ns();
  if (way->after != NULL)
    way->after(way->self);
  return (end - begin) / (double)calls;
}

typedef struct result {
  size_t ways;
  double ns[BENCH_WAYS_MAX]; /* medians */
  size_t yardstick;          /* 0: none */
  double ratio;              /* as the floor is meant */
  bool good;
} result;

static void judge(const bench_case *what, result *of) {
  of->yardstick = 0;
  for (size_t i = 1; i < of->ways; i++) {
    if ((what->yardsticks >> i & 1) != 0 &&
        (of->yardstick == 0 || of->ns[i] < of->ns[of->yardstick]))
      of->yardstick = i;
  }
  of->ratio = 0;
  of->good = what->most_ns <= 0 || of->ns[0] <= what->most_ns;
  if (of->yardstick == 0)
    return;
  const double times = of->ns[0] / of->ns[of->yardstick];
  of->ratio = what->bytes != 0 ? 1 / times : times;
  if (what->floor > 0)
    of->good = of->good && (what->bytes != 0 ? of->ratio >= what->floor : of->ratio <= what->floor);
}

static void measure(const bench_case *what, result *of) {
  static double samples[BENCH_WAYS_MAX][ROUNDS_MAX];
  of->ways = 0;
  while (of->ways < BENCH_WAYS_MAX && what->ways[of->ways].run != NULL)
    of->ways++;
  for (size_t i = 0; i < of->ways; i++) /* warms up */
    (void)time_way(&what->ways[i], what->calls < 20 ? 1 : what->calls / 10);
  for (unsigned round = 0; round < settings.rounds; round++) {
    for (size_t i = 0; i < of->ways; i++)
      samples[i][round] = time_way(&what->ways[i], what->calls);
  }
  for (size_t i = 0; i < of->ways; i++)
    of->ns[i] = median(samples[i], settings.rounds);
}

/* Rows. */

static double rate(const bench_case *what, double ns) {
  return (double)what->bytes / ns; /* GB/s */
}

static void print(const bench_case *what, const result *of) {
  printf("%-9s %-38s", what->group, what->name);
  for (size_t i = 0; i < of->ways; i++) {
    if (what->bytes != 0) {
      printf(" %s %.2f", what->ways[i].name, rate(what, of->ns[i]));
    } else {
      printf(" %s %.0f", what->ways[i].name, of->ns[i]);
    }
  }
  printf(what->bytes != 0 ? " GB/s" : " ns");
  if (of->yardstick != 0)
    printf("; %.3f of %s", of->ratio, what->ways[of->yardstick].name);
  if (!settings.smoke && (what->floor > 0 || what->most_ns > 0))
    printf("; %s", of->good ? "good" : "MISSED");
  if (what->floor > 0)
    printf(" (%s %.2f)", what->bytes != 0 ? "at least" : "at most", what->floor);
  if (what->most_ns > 0)
    printf(" (at most %.0f ns)", what->most_ns);
  printf("\n");
  (void)fflush(stdout);
}

FILE *bench_json(void) {
  FILE *const file = settings.json != NULL ? fopen(settings.json, "a") : NULL;
  if (settings.json != NULL && file == NULL)
    bench_failed("the JSON file can't be written");
  return file;
}

/* Rows are elements of one array, whose brackets the main process writes; each begins a line. */
static void write_json(const bench_case *what, const result *of) {
  FILE *const file = bench_json();
  if (file == NULL)
    return;
  fprintf(file, "  {\"group\": \"%s\", \"case\": \"%s\", \"bytes\": %llu, \"rounds\": %u",
          what->group, what->name, (unsigned long long)what->bytes, settings.rounds);
  for (size_t i = 0; i < of->ways; i++)
    fprintf(file, ", \"%s_ns\": %.1f", what->ways[i].name, of->ns[i]);
  if (of->yardstick != 0)
    fprintf(file, ", \"yardstick\": \"%s\", \"ratio\": %.4f", what->ways[of->yardstick].name,
            of->ratio);
  if (what->floor > 0)
    fprintf(file, ", \"floor\": %.2f", what->floor);
  if (what->most_ns > 0)
    fprintf(file, ", \"most_ns\": %.0f", what->most_ns);
  fprintf(file, ", \"good\": %s},\n", of->good ? "true" : "false");
  (void)fclose(file);
}

void bench_run(const bench_case *what) {
  result of;
  measure(what, &of);
  judge(what, &of);
  print(what, &of);
  write_json(what, &of);
}

void bench_skip(const char *group, const char *name, const char *reason) {
  printf("%-9s %-38s skipped: %s\n", group, name, reason);
  (void)fflush(stdout);
}

/* Memory. */

unsigned char *bench_host_memory(uint64_t size) {
  const uint64_t huge = 2 * MIB;
  void *const mapped =
      mmap(NULL, size + huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED)
    bench_failed("no host memory");
  const uintptr_t address = ((uintptr_t)mapped + huge - 1) / huge * huge;
  unsigned char *const memory = (unsigned char *)address;
  (void)madvise(memory, size, MADV_HUGEPAGE);
  memset(memory, 0x5a, size);
  return memory;
}

/* xorshift64*, eight bytes a step. */
void bench_random(unsigned char *bytes, uint64_t size, uint64_t seed) {
  uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (uint64_t i = 0; i < size; i += sizeof state) {
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    const uint64_t value = state * 0x2545f4914f6cdd1du;
    memcpy(bytes + i, &value, size - i < sizeof value ? (size_t)(size - i) : sizeof value);
  }
}

quay_allocator *bench_open(const char *spec) {
  quay_allocator *allocator = NULL;
  MUST(quay_allocator_open(spec, &allocator));
  return allocator;
}

quay_buffer *bench_buffer(quay_allocator *allocator, uint64_t size,
                          const quay_alloc_options *options) {
  const int64_t shape = (int64_t)size;
  quay_buffer *buffer = NULL;
  MUST(quay_buffer_create(allocator, QUAY_U8, 1, &shape, options, &buffer));
  MUST(quay_buffer_fill(buffer, "\x5a", 1));
  return buffer;
}

CUdeviceptr bench_pointer(const quay_buffer *buffer) {
  uint64_t pointer = 0;
  MUST(quay_cuda_pointer(buffer, &pointer));
  return pointer;
}
