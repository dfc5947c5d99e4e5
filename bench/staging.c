/* Where the time of staged copies goes: host memory and files to a device and back, beside the
 * driver's copy of page-locked memory in the same run, with what limits each of them. No Google
 * Benchmark: one line a copy. The engine can be set up by hand, in several ways that take turns
 * (staging_turns.c), or in every way that makes sense (staging_sweep.c). staging_options.c lists
 * the options. */
#include "staging.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/checked.h"
#include "core/os.h"

void bench_check(quay_status status, const char *what) {
  if (status == QUAY_OK)
    return;
  fprintf(stderr, "bench_staging: %s: %s\n", what, quay_last_error()->message);
  exit(1);
}

static double seconds_of(uint64_t nanoseconds) {
  return (double)nanoseconds * 1e-9;
}

static int by_time(const void *a, const void *b) {
  const double left = ((const sample *)a)->seconds, right = ((const sample *)b)->seconds;
  return (left > right) - (left < right);
}

sample bench_copy(quay_buffer *to, const quay_buffer *from) {
  sample one = {.seconds = 0};
  quay__staging_report_to(&one.report);
  const uint64_t began = quay__os_nanoseconds();
  bench_check(quay_buffer_copy_from(to, from), "copying");
  one.seconds = seconds_of(quay__os_nanoseconds() - began);
  quay__staging_report_to(NULL);
  return one;
}

sample bench_median(int runs, quay_buffer *to, const quay_buffer *from) {
  sample samples[RUNS_MAX];
  (void)bench_copy(to, from);
  for (int i = 0; i < runs; i++)
    samples[i] = bench_copy(to, from);
  qsort(samples, (size_t)runs, sizeof samples[0], by_time);
  return samples[runs / 2];
}

/* In words, what a faster copy would need. The device's time is what is neither before the first
 * transfer, nor after the last one, nor in between without one. */
static const char *limiting(const quay__staging_report *r, double ratio) {
  const double total = (double)r->total, edges = (double)(r->begin + r->end) / total;
  const double idle = (double)r->idle / total;
  const double host = (double)r->host / total / (r->threads != 0 ? r->threads : 1);
  if (r->transfers == 0)
    return "not staged";
  if (edges + idle < 0.03)
    return ratio >= 0.92 || host < 0.8 ? "the link" : "the host's copies: all threads are busy";
  if (edges >= idle)
    return "start and end of the pipeline";
  if (host >= 0.8)
    return "the host's copies: all threads are busy";
  return "hand-over: threads wait and the device idles";
}

void bench_print_titles(void) {
  printf("%-34s %7s %6s %7s %7s | %5s %5s %5s %5s %6s %6s %6s %6s | %s\n", "copy", "GB/s", "ratio",
         "threads", "slots", "idle%", "host%", "wait%", "subm%", "begin", "end", "grow", "MiB/tr",
         "limited by");
  printf("%-34s %7s %6s %7s %7s | %5s %5s %5s %5s %6s %6s %6s %6s |\n", "", "", "", "", "", "", "",
         "", "", "us", "us", "us", "");
}

void bench_print_line(const char *name, uint64_t size, const sample *s, double limit) {
  const quay__staging_report *r = &s->report;
  const double gbps = (double)size / s->seconds * 1e-9, ratio = limit > 0 ? gbps / limit : 0;
  const double each = (double)r->total * (r->threads != 0 ? r->threads : 1) / 100;
  const double safe = each > 0 ? each : 1;
  const double all = r->total != 0 ? (double)r->total / 100 : 1;
  printf("%-34s %7.2f %6.3f %7u %7u | %5.1f %5.1f %5.1f %5.1f %6.0f %6.0f %6.0f %6.2f | %s\n", name,
         gbps, ratio, r->threads, r->slots, (double)r->idle / all, (double)r->host / safe,
         (double)r->wait / safe, (double)r->submit / safe, (double)r->begin / 1e3,
         (double)r->end / 1e3, (double)r->grow / 1e3,
         r->transfers != 0 ? (double)size / (double)MIB / (double)r->transfers : 0,
         limiting(r, ratio));
  fflush(stdout);
}

void bench_check_bytes(const bench *all, quay_buffer *buffer, uint64_t size, const char *name) {
  const uint64_t block = 16 * MIB;
  unsigned char *read = malloc(block);
  for (uint64_t at = 0; read != NULL && at < size; at += block) {
    const uint64_t part = size - at < block ? size - at : block;
    quay_buffer *window = NULL;
    bench_check(quay_buffer_view(buffer, at, part, &window), "a window");
    bench_check(quay_buffer_copy_out(window, read, part), "reading back");
    quay_buffer_release(window);
    if (memcmp(read, all->bytes + at, part) != 0) {
      fprintf(stderr, "bench_staging: %s: wrong bytes from %llu on\n", name,
              (unsigned long long)at);
      exit(1);
    }
  }
  free(read);
}

direction bench_direction(const bench *all, const variant *chosen, int which) {
  const direction directions[DIRECTIONS] = {
      {"memory to device", all->there, all->here, true},
      {"file to device", all->there, all->files[chosen->by_mapping], true},
      {"device to memory", all->here, all->there, false},
      {"device to file", all->out_file, all->there, false},
  };
  return directions[which];
}

/* All directions, with every byte of the last copies checked. */
static void measure_all(const bench *all) {
  for (int i = 0; i < DIRECTIONS; i++) {
    const direction one = bench_direction(all, &all->set.variant, i);
    bench_check(quay_buffer_fill(one.to, "\x5a", 1), "clearing");
    const sample median = bench_median(all->set.runs, one.to, one.from);
    bench_print_line(one.name, all->set.size, &median, one.into ? all->in : all->out);
    bench_check_bytes(all, one.to, all->set.size, one.name);
  }
}

sample bench_median_cold(int runs, quay_buffer *to, const quay_buffer *from) {
  sample samples[RUNS_MAX];
  for (int i = 0; i < runs; i++) {
    bench_check(quay_collect(NULL), "collecting");
    samples[i] = bench_copy(to, from);
  }
  qsort(samples, (size_t)runs, sizeof samples[0], by_time);
  return samples[runs / 2];
}

/* With no memory of the engine's there yet. */
static void measure_cold(const bench *all) {
  const int runs = all->set.runs;
  const sample file = bench_median_cold(runs, all->there, all->file);
  bench_print_line("file to device, cold engine", all->set.size, &file, all->in);
  const sample memory = bench_median_cold(runs, all->there, all->here);
  bench_print_line("memory to device, cold engine", all->set.size, &memory, all->in);
}

double bench_driver_rate(const bench *all, quay_buffer *to, const quay_buffer *from) {
  return (double)all->set.size / bench_median(all->set.runs, to, from).seconds * 1e-9;
}

quay_buffer *bench_buffer(quay_allocator *allocator, uint64_t size) {
  quay_buffer *buffer = NULL;
  bench_check(quay_buffer_create(allocator, QUAY_U8, 1, (int64_t[]){(int64_t)size}, NULL, &buffer),
              "a buffer");
  return buffer;
}

/* A file of the benchmark's own has a name while it is made; it goes with it also on failure. */
static char own_file[4096];

static void unlink_own_file(void) {
  if (own_file[0] != '\0')
    (void)unlink(own_file);
  own_file[0] = '\0';
}

/* By errno. */
static void fail_system(const char *what) {
  fprintf(stderr, "bench_staging: %s: %s\n", what, strerror(errno));
  exit(1);
}

static void make_bytes(bench *all) {
  all->bytes = malloc(all->set.size);
  uint64_t state = 1;
  for (uint64_t at = 0; all->bytes != NULL && at < all->set.size; at++) {
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    all->bytes[at] = (unsigned char)(state >> 56);
  }
  if (all->bytes == NULL)
    fail_system("memory");
}

/* At the path of the command line, where nothing may be yet; else a temporary one. Its descriptor.
 */
static int begin_own_file(const settings *set) {
  static bool registered;
  char name[sizeof own_file];
  snprintf(name, sizeof name, "%s", set->path != NULL ? set->path : "/tmp/quay-bench-XXXXXX");
  const int file =
      set->path != NULL ? open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600) : mkstemp(name);
  if (file < 0 && errno == EEXIST) {
    fprintf(stderr,
            "bench_staging: --file is the name of a file that is made and goes again; %s is there "
            "already\n",
            name);
    exit(2);
  }
  if (file < 0)
    fail_system(name);
  if (!registered && atexit(unlink_own_file) != 0)
    exit(1);
  registered = true;
  memcpy(own_file, name, sizeof own_file);
  return file;
}

/* As programs write files: the page cache then has larger pieces than what page faults make. */
static void write_file(int file, const unsigned char *bytes, uint64_t size) {
  for (uint64_t done = 0; done < size;) {
    const ssize_t put = write(file, bytes + done, quay__min(size - done, MIB));
    if (put <= 0)
      fail_system(own_file);
    done += (uint64_t)put;
  }
}

static void make_file(bench *all, bool by_mapping) {
  const int file = begin_own_file(&all->set);
  if (by_mapping) {
    const quay_file_options replace = {.replace = true};
    quay_buffer *made = NULL;
    bench_check(quay_file_create(own_file, all->set.size, &replace, &made), own_file);
    bench_check(quay_buffer_copy_in(made, all->bytes, all->set.size), own_file);
    quay_buffer_release(made);
  } else {
    write_file(file, all->bytes, all->set.size);
  }
  if (close(file) != 0)
    fail_system(own_file);
  all->places[by_mapping] = open(own_file, O_PATH | O_CLOEXEC);
  if (all->places[by_mapping] < 0)
    fail_system(own_file);
  bench_check(quay_map_file(own_file, NULL, &all->files[by_mapping]), own_file);
  unlink_own_file();
}

static void make_files(bench *all) {
  const quay_file_options replace = {.replace = true};
  make_file(all, all->set.variant.by_mapping);
  for (int i = 0; i < all->set.turn_count; i++) {
    const bool by_mapping = all->set.turns[i].variant.by_mapping;
    if (all->files[by_mapping] == NULL)
      make_file(all, by_mapping);
  }
  all->file = all->files[all->set.variant.by_mapping];
  (void)close(begin_own_file(&all->set));
  bench_check(quay_file_create(own_file, all->set.size, &replace, &all->out_file), own_file);
  unlink_own_file();
}

static void open_all(bench *all) {
  bench_check(quay_allocator_open(all->set.device, &all->allocator), all->set.device);
  char spec[160];
  snprintf(spec, sizeof spec, "%s,memory=pinned", all->set.device);
  quay_allocator *pinned = NULL;
  bench_check(quay_allocator_open(spec, &pinned), spec);
  make_bytes(all);
  all->there = bench_buffer(all->allocator, all->set.size);
  all->pinned = bench_buffer(pinned, all->set.size);
  quay_allocator *cpu = NULL;
  bench_check(quay_allocator_open("cpu", &cpu), "cpu");
  all->here = bench_buffer(cpu, all->set.size);
  bench_check(quay_buffer_copy_in(all->here, all->bytes, all->set.size), "filling");
  bench_check(quay_buffer_copy_in(all->pinned, all->bytes, all->set.size), "filling");
  make_files(all);
  quay_allocator_release(pinned);
  quay_allocator_release(cpu);
}

static void close_all(bench *all) {
  quay_buffer_release(all->there);
  quay_buffer_release(all->here);
  quay_buffer_release(all->pinned);
  for (int i = 0; i < 2; i++) {
    quay_buffer_release(all->files[i]);
    if (all->places[i] >= 0)
      (void)close(all->places[i]);
  }
  quay_buffer_release(all->out_file);
  quay_allocator_release(all->allocator);
  free(all->bytes);
}

static void measure(const bench *all) {
  bench_print_titles();
  bench_use(all, &all->set.variant);
  measure_cold(all);
  measure_all(all);
  if (all->set.beside != NULL)
    bench_beside(all);
  if (all->set.limits) {
    bench_limits(all);
    bench_files(all);
  }
  if (all->set.sweep)
    bench_sweep(all);
}

int main(int argc, char **argv) {
  bench all = {.set = bench_parse(argc, argv), .places = {-1, -1}};
  quay_allocator *probe = NULL;
  if (quay_allocator_open(all.set.device, &probe) != QUAY_OK) {
    printf("skipped: %s\n", quay_last_error()->message);
    return 0;
  }
  quay_allocator_release(probe);
  open_all(&all);
  bench_load_begin(&all.set);
  all.in = bench_driver_rate(&all, all.there, all.pinned);
  all.out = bench_driver_rate(&all, all.pinned, all.there);
  printf("%s, %llu MiB, medians of %d; page-locked memory by the driver: %.2f GB/s in, %.2f out\n",
         all.set.device, (unsigned long long)(all.set.size / MIB), all.set.runs, all.in, all.out);
  if (all.set.turn_count != 0) {
    bench_turns(&all);
  } else {
    measure(&all);
  }
  bench_load_end();
  /* Memory of the driver's making has to go before its allocator. */
  bench_use(&all, &(variant){.threads = 0});
  bench_check(quay_collect(NULL), "collecting");
  close_all(&all);
  bench_check(quay_shutdown(), "shutting down");
  return 0;
}
