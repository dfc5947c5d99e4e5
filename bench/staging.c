/* Where the time of staged copies goes: host memory and files to a device and back, beside the
 * driver's copy of page-locked memory in the same run, with what limits each of them. No Google
 * Benchmark: one line a copy, and a sweep of the numbers that staging is cut by.
 *
 *   bench_staging [--device SPEC] [--size MIB] [--runs N] [--file PATH] [--sweep] */
#include <fcntl.h>
#include <getopt.h>
#include <quay/quay.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/os.h"
#include "core/staging_tuning.h"

#define MIB ((uint64_t)1 << 20)

enum {
  RUNS_MAX = 99
};

typedef struct settings {
  const char *device;
  const char *path; /* NULL: a temporary file */
  uint64_t size;
  int runs;
  bool sweep;
} settings;

/* What is copied between what. */
typedef struct bench {
  settings set;
  quay_allocator *allocator;
  quay_buffer *there, *here, *pinned, *file, *out_file;
  unsigned char *bytes;
  double in, out; /* GB/s of the driver's copies */
} bench;

static void check(quay_status status, const char *what) {
  if (status == QUAY_OK)
    return;
  fprintf(stderr, "bench_staging: %s: %s\n", what, quay_last_error()->message);
  exit(1);
}

static double seconds_of(uint64_t nanoseconds) {
  return (double)nanoseconds * 1e-9;
}

/* One timed copy. */
typedef struct sample {
  double seconds;
  quay__staging_report report;
} sample;

static int by_time(const void *a, const void *b) {
  const double left = ((const sample *)a)->seconds, right = ((const sample *)b)->seconds;
  return (left > right) - (left < right);
}

static sample copy_once(quay_buffer *to, const quay_buffer *from) {
  sample one = {.seconds = 0};
  quay__staging_report_to(&one.report);
  const uint64_t began = quay__os_nanoseconds();
  check(quay_buffer_copy_from(to, from), "copying");
  one.seconds = seconds_of(quay__os_nanoseconds() - began);
  quay__staging_report_to(NULL);
  return one;
}

static sample median_of(const bench *all, quay_buffer *to, const quay_buffer *from) {
  sample samples[RUNS_MAX];
  (void)copy_once(to, from);
  for (int i = 0; i < all->set.runs; i++)
    samples[i] = copy_once(to, from);
  qsort(samples, (size_t)all->set.runs, sizeof samples[0], by_time);
  return samples[all->set.runs / 2];
}

/* In words, what a faster copy would need. The device's time is what is neither before the first
 * transfer, nor after the last one, nor in between without one. */
static const char *limiting(const quay__staging_report *r) {
  const double total = (double)r->total, edges = (double)(r->begin + r->end) / total;
  const double idle = (double)r->idle / total;
  const double host = (double)r->host / total / (r->threads != 0 ? r->threads : 1);
  if (r->transfers == 0)
    return "not staged";
  if (edges + idle < 0.03)
    return "the link";
  if (edges >= idle)
    return "start and end of the pipeline";
  if (host >= 0.8)
    return "the host's copies: all threads are busy";
  return "hand-over: threads wait and the device idles";
}

static void print_titles(void) {
  printf("%-24s %7s %6s %7s %7s | %5s %5s %5s %5s %6s %6s %6s %6s | %s\n", "copy", "GB/s", "ratio",
         "threads", "slots", "idle%", "host%", "wait%", "subm%", "begin", "end", "grow", "MiB/tr",
         "limited by");
  printf("%-24s %7s %6s %7s %7s | %5s %5s %5s %5s %6s %6s %6s %6s |\n", "", "", "", "", "", "", "",
         "", "", "us", "us", "us", "");
}

static void print_line(const char *name, uint64_t size, const sample *s, double limit) {
  const quay__staging_report *r = &s->report;
  const double gbps = (double)size / s->seconds * 1e-9;
  const double each = (double)r->total * (r->threads != 0 ? r->threads : 1) / 100;
  const double safe = each > 0 ? each : 1;
  const double all = r->total != 0 ? (double)r->total / 100 : 1;
  printf("%-24s %7.2f %6.3f %7u %7u | %5.1f %5.1f %5.1f %5.1f %6.0f %6.0f %6.0f %6.2f | %s\n", name,
         gbps, limit > 0 ? gbps / limit : 0, r->threads, r->slots, (double)r->idle / all,
         (double)r->host / safe, (double)r->wait / safe, (double)r->submit / safe,
         (double)r->begin / 1e3, (double)r->end / 1e3, (double)r->grow / 1e3,
         r->transfers != 0 ? (double)size / (double)MIB / (double)r->transfers : 0, limiting(r));
  fflush(stdout);
}

static void check_bytes(const bench *all, quay_buffer *buffer, const char *name) {
  const uint64_t block = 16 * MIB;
  unsigned char *read = malloc(block);
  for (uint64_t at = 0; read != NULL && at < all->set.size; at += block) {
    const uint64_t part = all->set.size - at < block ? all->set.size - at : block;
    quay_buffer *window = NULL;
    check(quay_buffer_view(buffer, at, part, &window), "a window");
    check(quay_buffer_copy_out(window, read, part), "reading back");
    quay_buffer_release(window);
    if (memcmp(read, all->bytes + at, part) != 0) {
      fprintf(stderr, "bench_staging: %s: wrong bytes from %llu on\n", name,
              (unsigned long long)at);
      exit(1);
    }
  }
  free(read);
}

/* Both directions, with every byte of the last copies checked. */
static void measure_all(const bench *all, const char *prefix) {
  const struct {
    const char *name;
    quay_buffer *to, *from;
    bool into;
  } ways[] = {
      {"memory to device", all->there, all->here, true},
      {"file to device", all->there, all->file, true},
      {"device to memory", all->here, all->there, false},
      {"device to file", all->out_file, all->there, false},
  };
  for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
    char name[80];
    snprintf(name, sizeof name, "%s%s", prefix, ways[i].name);
    check(quay_buffer_fill(ways[i].to, "\x5a", 1), "clearing");
    const sample median = median_of(all, ways[i].to, ways[i].from);
    print_line(name, all->set.size, &median, ways[i].into ? all->in : all->out);
    check_bytes(all, ways[i].to, name);
  }
}

static void measure_cold(const bench *all) {
  check(quay_collect(NULL), "collecting");
  const sample cold = copy_once(all->there, all->file);
  print_line("file to device, cold", all->set.size, &cold, all->in);
}

static double driver_rate(const bench *all, quay_buffer *to, const quay_buffer *from) {
  return (double)all->set.size / median_of(all, to, from).seconds * 1e-9;
}

static void sweep(const bench *all) {
  static const uint64_t chunks[] = {1, 2, 4}, joins[] = {2, 8, 16};
  static const char *const threads[] = {"4", "6", "8", "12"};
  for (size_t t = 0; t < sizeof threads / sizeof threads[0]; t++) {
    check(setenv("QUAY_COPY_THREADS", threads[t], 1) == 0 ? QUAY_OK : QUAY_STATUS_IO, "setenv");
    for (size_t c = 0; c < sizeof chunks / sizeof chunks[0]; c++) {
      for (size_t j = 0; j < sizeof joins / sizeof joins[0]; j++) {
        quay__staging_tuning tuning = *quay__staging_tuning_get();
        tuning.chunk = chunks[c] * MIB;
        tuning.join_most = joins[j] * MIB;
        tuning.join_least = joins[j] * MIB / 2;
        tuning.in_flight_least = joins[j] * MIB / 2;
        quay__staging_tuning_set(&tuning);
        printf("\n%s threads, chunks of %llu MiB, transfers of up to %llu MiB\n", threads[t],
               (unsigned long long)chunks[c], (unsigned long long)joins[j]);
        measure_all(all, "");
        quay__staging_tuning_set(NULL);
      }
    }
  }
  check(setenv("QUAY_COPY_THREADS", "8", 1) == 0 ? QUAY_OK : QUAY_STATUS_IO, "setenv");
  quay__staging_tuning flat = *quay__staging_tuning_get();
  flat.ramp = flat.chunk;
  quay__staging_tuning_set(&flat);
  printf("\n8 threads, all chunks of one size\n");
  measure_all(all, "");
  quay__staging_tuning_set(NULL);
}

static quay_buffer *new_buffer(quay_allocator *allocator, uint64_t size) {
  quay_buffer *buffer = NULL;
  check(quay_buffer_create(allocator, QUAY_U8, 1, (int64_t[]){(int64_t)size}, NULL, &buffer),
        "a buffer");
  return buffer;
}

static void make_bytes(bench *all) {
  all->bytes = malloc(all->set.size);
  uint64_t state = 1;
  for (uint64_t at = 0; all->bytes != NULL && at < all->set.size; at++) {
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    all->bytes[at] = (unsigned char)(state >> 56);
  }
  check(all->bytes != NULL ? QUAY_OK : QUAY_STATUS_OUT_OF_HOST_MEMORY, "memory");
}

static void make_file(bench *all) {
  char path[64] = "/tmp/quay-bench-staging-XXXXXX";
  if (all->set.path == NULL) {
    const int file = mkstemp(path);
    check(file >= 0 && close(file) == 0 ? QUAY_OK : QUAY_STATUS_IO, "a temporary file");
  }
  const char *name = all->set.path != NULL ? all->set.path : path;
  const quay_file_options replace = {.replace = true};
  quay_buffer *made = NULL;
  check(quay_file_create(name, all->set.size, &replace, &made), name);
  check(quay_buffer_copy_in(made, all->bytes, all->set.size), name);
  quay_buffer_release(made);
  check(quay_map_file(name, NULL, &all->file), name);
  (void)unlink(name);
  check(quay_file_create(name, all->set.size, &replace, &all->out_file), name);
  (void)unlink(name);
}

static void open_all(bench *all) {
  check(quay_allocator_open(all->set.device, &all->allocator), all->set.device);
  char spec[160];
  snprintf(spec, sizeof spec, "%s,memory=pinned", all->set.device);
  quay_allocator *pinned = NULL;
  check(quay_allocator_open(spec, &pinned), spec);
  make_bytes(all);
  all->there = new_buffer(all->allocator, all->set.size);
  all->pinned = new_buffer(pinned, all->set.size);
  quay_allocator *cpu = NULL;
  check(quay_allocator_open("cpu", &cpu), "cpu");
  all->here = new_buffer(cpu, all->set.size);
  check(quay_buffer_copy_in(all->here, all->bytes, all->set.size), "filling");
  check(quay_buffer_copy_in(all->pinned, all->bytes, all->set.size), "filling");
  make_file(all);
  quay_allocator_release(pinned);
  quay_allocator_release(cpu);
}

static void close_all(bench *all) {
  quay_buffer_release(all->there);
  quay_buffer_release(all->here);
  quay_buffer_release(all->pinned);
  quay_buffer_release(all->file);
  quay_buffer_release(all->out_file);
  quay_allocator_release(all->allocator);
  free(all->bytes);
}

static settings parse(int argc, char **argv) {
  settings set = {.device = "cuda:0", .size = 2048 * MIB, .runs = 5};
  if (getenv("QUAY_BENCH_SMOKE") != NULL)
    set = (settings){.device = "cuda:0", .size = 3 * MIB, .runs = 1};
  static const struct option options[] = {
      {"device", required_argument, NULL, 'd'}, {"size", required_argument, NULL, 's'},
      {"runs", required_argument, NULL, 'r'},   {"file", required_argument, NULL, 'f'},
      {"sweep", no_argument, NULL, 'w'},        {0}};
  for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
    if (option == 'd')
      set.device = optarg;
    if (option == 's')
      set.size = strtoull(optarg, NULL, 10) * MIB;
    if (option == 'r')
      set.runs = (int)strtol(optarg, NULL, 10);
    if (option == 'f')
      set.path = optarg;
    if (option == 'w')
      set.sweep = true;
    if (option == '?')
      exit(2);
  }
  if (set.size == 0 || set.runs < 1 || set.runs > RUNS_MAX || optind != argc) {
    fprintf(stderr, "bench_staging: --size and --runs take numbers above 0, at most 99 runs\n");
    exit(2);
  }
  return set;
}

int main(int argc, char **argv) {
  bench all = {.set = parse(argc, argv)};
  quay_allocator *probe = NULL;
  if (quay_allocator_open(all.set.device, &probe) != QUAY_OK) {
    printf("skipped: %s\n", quay_last_error()->message);
    return 0;
  }
  quay_allocator_release(probe);
  open_all(&all);
  all.in = driver_rate(&all, all.there, all.pinned);
  all.out = driver_rate(&all, all.pinned, all.there);
  printf("%s, %llu MiB, medians of %d; page-locked memory by the driver: %.2f GB/s in, %.2f out\n",
         all.set.device, (unsigned long long)(all.set.size / MIB), all.set.runs, all.in, all.out);
  print_titles();
  measure_cold(&all);
  measure_all(&all, "");
  if (all.set.sweep)
    sweep(&all);
  close_all(&all);
  check(quay_shutdown(), "shutting down");
  return 0;
}
