/* Copies to and from a Vulkan device: host memory of all kinds and files both ways, beside CUDA's
 * copies of page-locked memory and Quay's to CUDA in the same run; CUDA and Vulkan on one GPU,
 * direct and over the host. Every byte is checked. One line a copy, the median of the runs, with
 * where its time went; the destinations are touched before. */
#include "vulkan.h"

#include <getopt.h>
#include <quay/cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/staging_tuning.h"

static const char usage[] =
    "bench_vulkan [--help] [--raw] [--sweep] [SPEC OF THE VULKAN DEVICE [MIB [RUNS]]]\n"
    "\n"
    "  SPEC     the device, as vulkan:0; else the GPU of cuda:0\n"
    "  MIB      bytes of the large copies in MiB (1024)\n"
    "  RUNS     of each copy, after one that does not count (9); at most 99\n"
    "  --raw    also vkCmdCopyBuffer by the raw interface: what the driver allows on each family "
    "of\n"
    "           queues, in one piece and in many\n"
    "  --sweep  also host memory and the device with the engine of staged copies set up in every "
    "way\n"
    "           that makes sense\n"
    "\n"
    "ratio: to CUDA's copy of page-locked memory in the same run. Of a staged copy: idle%, of the\n"
    "time between its first transfer and its last without one under way; host%, wait%, subm%, of "
    "the\n"
    "threads' time spent copying on the host, waiting for transfers, and submitting them; MiB/tr, "
    "of\n"
    "a transfer. Ends with status 77 where one of the two devices is not there.\n";

_Noreturn void bench_failed(const char *what) {
  (void)fflush(stdout);
  fprintf(stderr, "bench_vulkan: %s\n", what);
  exit(1);
}

void bench_check(quay_status status, const char *what) {
  if (status == QUAY_OK)
    return;
  fprintf(stderr, "bench_vulkan: %s: %s\n", what, quay_last_error()->message);
  exit(status == QUAY_STATUS_UNAVAILABLE ? MISSING : 1);
}

static quay_allocator *open_spec(const char *spec) {
  quay_allocator *allocator = NULL;
  bench_check(quay_allocator_open(spec, &allocator), spec);
  return allocator;
}

static quay_buffer *make_buffer(quay_allocator *allocator, uint64_t size) {
  quay_buffer *buffer = NULL;
  bench_check(quay_buffer_create(allocator, QUAY_U8, 1, (int64_t[]){(int64_t)size}, NULL, &buffer),
              "a buffer");
  return buffer;
}

double bench_now(void) {
  struct timespec t;
  (void)clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int by_size(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

double bench_median(double *seconds, int count) {
  qsort(seconds, (size_t)count, sizeof seconds[0], by_size);
  return seconds[count / 2];
}

/* Bytes. */

static uint64_t word_at(uint64_t at, uint64_t seed) {
  return (at + seed) * UINT64_C(0x9e3779b97f4a7c15);
}

void bench_write(unsigned char *memory, uint64_t size, uint64_t seed) {
  for (uint64_t i = 0; i + 8 <= size; i += 8) {
    const uint64_t word = word_at(i, seed);
    memcpy(memory + i, &word, sizeof word);
  }
}

void bench_compare(const unsigned char *memory, uint64_t size, uint64_t seed, const char *what) {
  for (uint64_t i = 0; i + 8 <= size; i += 8) {
    const uint64_t word = word_at(i, seed);
    if (memcmp(memory + i, &word, sizeof word) == 0)
      continue;
    fprintf(stderr, "bench_vulkan: %s: byte %llu is wrong\n", what, (unsigned long long)i);
    exit(1);
  }
}

static unsigned char *bytes_of(quay_buffer *host) {
  void *bytes = NULL;
  bench_check(quay_buffer_host_bytes_mut(host, &bytes, NULL), "host memory");
  return bytes;
}

/* Of a buffer anywhere, by way of one in ordinary memory of the same size. */
static void check_buffer(const quay_buffer *buffer, quay_buffer *scratch, uint64_t seed,
                         const char *what) {
  const uint64_t size = quay_buffer_size(scratch);
  memset(bytes_of(scratch), 0x5a, size);
  bench_check(quay_buffer_copy_from(scratch, buffer), what);
  bench_compare(bytes_of(scratch), size, seed, what);
}

/* One copy, measured. */

typedef struct sample {
  double seconds;
  quay__staging_report report;
} sample;

static int by_time(const void *a, const void *b) {
  return by_size(&((const sample *)a)->seconds, &((const sample *)b)->seconds);
}

static sample copy_once(const char *name, quay_buffer *to, const quay_buffer *from,
                        quay_buffer *over) {
  sample one = {.seconds = 0};
  const double began = bench_now();
  if (over != NULL)
    bench_check(quay_buffer_copy_from(over, from), name);
  quay__staging_report_to(&one.report);
  bench_check(quay_buffer_copy_from(to, over != NULL ? over : from), name);
  quay__staging_report_to(NULL);
  one.seconds = bench_now() - began;
  return one;
}

static sample median(const char *name, int runs, quay_buffer *to, const quay_buffer *from,
                     quay_buffer *over) {
  sample samples[RUNS_MAX];
  (void)copy_once(name, to, from, over); /* warms up */
  for (int i = 0; i < runs; i++)
    samples[i] = copy_once(name, to, from, over);
  qsort(samples, (size_t)runs, sizeof samples[0], by_time);
  return samples[runs / 2];
}

/* What a faster copy would need. */
static const char *limiting(const quay__staging_report *r) {
  const double total = (double)r->total, threads = r->threads != 0 ? r->threads : 1;
  const double edges = (double)(r->begin + r->end) / total, idle = (double)r->idle / total;
  if (r->transfers == 0)
    return "";
  if (edges + idle < 0.03)
    return "the device's queue, which is never empty";
  if (edges >= idle)
    return "start and end of the pipeline";
  if ((double)r->submit / total >= 0.8)
    return "submitting";
  if ((double)r->host / total / threads >= 0.8)
    return "the host's copies: all threads are busy";
  return "hand-over: threads wait and the device idles";
}

static void print_titles(void) {
  printf("%-36s %7s %6s | %3s %3s %5s %5s %5s %5s %6s | %s\n", "copy", "GB/s", "ratio", "thr",
         "slt", "idle%", "host%", "wait%", "subm%", "MiB/tr", "limited by; the plan");
}

static double print_sample(const char *name, uint64_t size, const sample *s, double limit,
                           const char *plan) {
  const quay__staging_report *r = &s->report;
  const double gbps = (double)size / s->seconds * 1e-9;
  printf("%-36s %7.2f %6.3f |", name, gbps, limit > 0 ? gbps / limit : 1);
  if (r->transfers != 0) {
    const double each = (double)r->total * (r->threads != 0 ? r->threads : 1) / 100;
    printf(" %3u %3u %5.1f %5.1f %5.1f %5.1f %6.2f |", r->threads, r->slots,
           (double)r->idle * 100 / (double)r->total, (double)r->host / each, (double)r->wait / each,
           (double)r->submit / each, (double)size / (double)MIB / (double)r->transfers);
  } else {
    printf(" %3s %3s %5s %5s %5s %5s %6s |", "", "", "", "", "", "", "");
  }
  printf(" %s%s%s\n", limiting(r), r->transfers != 0 ? "; " : "", plan);
  (void)fflush(stdout);
  return gbps;
}

/* GB/s, the median. `over` NULL: directly; else over that buffer, and the report is of the second
 * half of the way. */
static double measure(const char *name, int runs, quay_buffer *to, quay_buffer *from,
                      quay_buffer *over, double limit) {
  const uint64_t size = quay_buffer_size(from);
  const sample middle = median(name, runs, to, from, over);
  quay_copy_plan_info plan;
  bench_check(quay_copy_plan(to, 0, over != NULL ? over : from, 0, size, NULL, &plan), name);
  char text[320];
  (void)snprintf(text, sizeof text, "%s, %s", quay_route_name(plan.route), plan.reason);
  return print_sample(name, size, &middle, limit, text);
}

/* Everything that copies are between. */
typedef struct bench {
  settings set;
  limits limit;
  quay_allocator *cuda, *pinned, *vulkan, *cpu;
  quay_buffer *in_cuda, *in_vulkan, *host, *back, *locked;
} bench;

/* The spec of the GPU of cuda:0. */
static const char *same_gpu(quay_allocator *cuda) {
  static char spec[64];
  uint8_t uuid[16];
  bench_check(quay_cuda_device_uuid(quay_allocator_device(cuda), uuid), "the UUID");
  int used = snprintf(spec, sizeof spec, "vulkan:uuid=");
  for (size_t i = 0; i < sizeof uuid; i++)
    used += snprintf(spec + used, sizeof spec - (size_t)used, "%02x", uuid[i]);
  return spec;
}

/* Memory of the Vulkan device that the host reaches, of a kind that the device may not have. */
static void measure_kind(const bench *all, const char *kind) {
  char spec[128], name[64];
  (void)snprintf(spec, sizeof spec, "%s,memory=%s", quay_allocator_spec(all->vulkan), kind);
  quay_allocator *allocator = NULL;
  if (quay_allocator_open(spec, &allocator) != QUAY_OK) {
    printf("%s: %s\n", spec, quay_last_error()->message);
    return;
  }
  quay_buffer *memory = make_buffer(allocator, all->set.size);
  bench_write(bytes_of(memory), all->set.size, 11);
  (void)snprintf(name, sizeof name, "Vulkan memory=%s to Vulkan", kind);
  (void)measure(name, all->set.runs, all->in_vulkan, memory, NULL, all->limit.in);
  check_buffer(all->in_vulkan, all->back, 11, name);
  bench_check(quay_buffer_fill(memory, "\x5a", 1), "clearing");
  (void)snprintf(name, sizeof name, "Vulkan to Vulkan memory=%s", kind);
  (void)measure(name, all->set.runs, memory, all->in_vulkan, NULL, all->limit.out);
  bench_check(quay_buffer_fill(all->in_vulkan, "\x5a", 1), "clearing");
  bench_check(quay_buffer_copy_from(all->in_vulkan, memory), name);
  check_buffer(all->in_vulkan, all->back, 11, name);
  quay_buffer_release(memory);
  quay_allocator_release(allocator);
}

/* Host memory of one size to both devices and back. */
static void measure_size(const bench *all, uint64_t size, uint64_t seed) {
  quay_buffer *host = make_buffer(all->cpu, size), *back = make_buffer(all->cpu, size);
  quay_buffer *there[] = {make_buffer(all->vulkan, size), make_buffer(all->cuda, size)};
  static const char *const names[] = {"Vulkan", "CUDA"};
  char amount[24], name[64];
  (void)snprintf(amount, sizeof amount, size < MIB ? "%llu KiB" : "%llu MiB",
                 (unsigned long long)(size < MIB ? size >> 10 : size / MIB));
  const int runs = size < 256 * MIB && !all->set.smoke ? RUNS_MAX : all->set.runs;
  bench_write(bytes_of(host), size, seed);
  for (int i = 0; i < 2; i++) {
    (void)snprintf(name, sizeof name, "%s: host to %s", amount, names[i]);
    (void)measure(name, runs, there[i], host, NULL, all->limit.in);
  }
  for (int i = 0; i < 2; i++) {
    (void)snprintf(name, sizeof name, "%s: %s to host", amount, names[i]);
    memset(bytes_of(back), 0x5a, size);
    (void)measure(name, runs, back, there[i], NULL, all->limit.out);
    bench_compare(bytes_of(back), size, seed, name);
    quay_buffer_release(there[i]);
  }
  quay_buffer_release(host);
  quay_buffer_release(back);
}

/* A file in the page cache to both devices and back. */
static void measure_file(const bench *all) {
  char path[] = "/tmp/quay-bench-vulkan-XXXXXX";
  const int descriptor = mkstemp(path);
  if (descriptor < 0 || close(descriptor) != 0)
    bench_failed("no temporary file");
  const quay_file_options replace = {.replace = true};
  quay_buffer *file = NULL, *made = NULL;
  bench_write(bytes_of(all->host), all->set.size, 21);
  bench_check(quay_file_create(path, all->set.size, &replace, &made), path);
  bench_check(quay_buffer_copy_from(made, all->host), path);
  bench_check(quay_map_file(path, NULL, &file), path);
  (void)measure("file to Vulkan", all->set.runs, all->in_vulkan, file, NULL, all->limit.in);
  check_buffer(all->in_vulkan, all->back, 21, "file to Vulkan");
  (void)measure("file to CUDA", all->set.runs, all->in_cuda, file, NULL, all->limit.in);
  check_buffer(all->in_cuda, all->back, 21, "file to CUDA");
  quay_buffer_release(file);
  bench_check(quay_buffer_fill(made, "\x5a", 1), "clearing");
  (void)measure("Vulkan to file", all->set.runs, made, all->in_vulkan, NULL, all->limit.out);
  check_buffer(made, all->back, 21, "Vulkan to file");
  bench_check(quay_buffer_fill(made, "\x5a", 1), "clearing");
  (void)measure("CUDA to file", all->set.runs, made, all->in_cuda, NULL, all->limit.out);
  check_buffer(made, all->back, 21, "CUDA to file");
  quay_buffer_release(made);
  (void)unlink(path);
}

/* The copies that the project has promised something of. */
static void measure_promises(bench *all) {
  const int runs = all->set.runs;
  bench_write(bytes_of(all->host), all->set.size, 1);
  bench_write(bytes_of(all->back), all->set.size, 2);
  const double in = measure("host to Vulkan", runs, all->in_vulkan, all->host, NULL, all->limit.in);
  const double out =
      measure("Vulkan to host", runs, all->back, all->in_vulkan, NULL, all->limit.out);
  bench_compare(bytes_of(all->back), all->set.size, 1, "Vulkan to host");
  quay__staging_tuning own = *quay__staging_tuning_get();
  own.no_stand_ins = true;
  quay__staging_tuning_set(&own);
  (void)measure("host to Vulkan by its own queues", runs, all->in_vulkan, all->host, NULL,
                all->limit.in);
  memset(bytes_of(all->back), 0x5a, all->set.size);
  (void)measure("Vulkan to host by its own queues", runs, all->back, all->in_vulkan, NULL,
                all->limit.out);
  bench_compare(bytes_of(all->back), all->set.size, 1, "Vulkan to host by its own queues");
  quay__staging_tuning_set(NULL);
  const double over = measure("CUDA over the host to Vulkan", runs, all->in_vulkan, all->in_cuda,
                              all->back, all->limit.in);
  const double direct = measure("Vulkan to CUDA", runs, all->in_cuda, all->in_vulkan, NULL, 0);
  bench_write(bytes_of(all->host), all->set.size, 4);
  bench_check(quay_buffer_copy_from(all->in_cuda, all->host), "host to CUDA");
  const double other = measure("CUDA to Vulkan", runs, all->in_vulkan, all->in_cuda, NULL, 0);
  check_buffer(all->in_vulkan, all->back, 4, "CUDA to Vulkan");
  printf("of the page-locked limit: in %.3f, out %.3f; direct over the path over the host: "
         "%.1f, %.1f times\n",
         in / all->limit.in, out / all->limit.out, other / over, direct / over);
}

/* The engine in every way that makes sense. */
static void sweep(const bench *all) {
  static const uint32_t threads[] = {8, 12}, slots[] = {2, 3}, streams[] = {1, 2};
  static const uint64_t chunks[] = {1, 2, 4, 8};
  static const char *const hand_over[] = {"own   ", "batch ", "shared"};
  const quay__staging_tuning defaults = *quay__staging_tuning_get();
  const int runs = all->set.smoke ? 1 : 3;
  const char *budget = getenv("QUAY_STAGING_BYTES"), *cap = getenv("QUAY_COPY_THREADS");
  (void)setenv("QUAY_STAGING_BYTES", "512MiB", 1);
  printf(
      "\nthreads, MiB of a slot x slots a thread, how they are handed over, streams; in and out\n");
  bench_write(bytes_of(all->host), all->set.size, 31);
  for (int i = 0; i < (all->set.smoke ? 3 : 2 * 2 * 4 * 2 * 3); i++) {
    quay__staging_tuning tuning = defaults;
    char count[16], name[64], plan[64];
    const uint32_t used = threads[i / 48], own = slots[i / 24 % 2];
    tuning.chunk = tuning.chunk_in = chunks[i / 6 % 4] * MIB;
    tuning.streams = streams[i / 3 % 2];
    tuning.own_slots = i % 3 != 2;
    tuning.batch = i % 3 == 1 ? 4 : 0;
    tuning.slots_per_thread = tuning.slots_in = own;
    tuning.no_stand_ins = true;
    (void)snprintf(count, sizeof count, "%u", used);
    (void)setenv("QUAY_COPY_THREADS", count, 1);
    quay__staging_tuning_set(&tuning);
    (void)snprintf(name, sizeof name, "%2ut %lluMx%u %s %us", used,
                   (unsigned long long)(tuning.chunk / MIB), own, hand_over[i % 3], tuning.streams);
    const sample in = median(name, runs, all->in_vulkan, all->host, NULL);
    const sample out = median(name, runs, all->back, all->in_vulkan, NULL);
    bench_compare(bytes_of(all->back), all->set.size, 31, name);
    (void)snprintf(plan, sizeof plan, "out: %.2f GB/s, %.3f",
                   (double)all->set.size / out.seconds * 1e-9,
                   (double)all->set.size / out.seconds * 1e-9 / all->limit.out);
    (void)print_sample(name, all->set.size, &in, all->limit.in, plan);
  }
  quay__staging_tuning_set(NULL);
  (void)(budget != NULL ? setenv("QUAY_STAGING_BYTES", budget, 1) : unsetenv("QUAY_STAGING_BYTES"));
  (void)(cap != NULL ? setenv("QUAY_COPY_THREADS", cap, 1) : unsetenv("QUAY_COPY_THREADS"));
}

static settings parse(int count, char **arguments) {
  static const struct option options[] = {{"help", no_argument, NULL, 'h'},
                                          {"raw", no_argument, NULL, 'r'},
                                          {"sweep", no_argument, NULL, 's'},
                                          {0}};
  settings set = {.smoke = getenv("QUAY_BENCH_SMOKE") != NULL, .size = 1024 * MIB, .runs = 9};
  if (set.smoke) {
    set.size = 8 * MIB;
    set.runs = 1;
  }
  for (int option; (option = getopt_long(count, arguments, "", options, NULL)) != -1;) {
    if (option == 'h') {
      fputs(usage, stdout);
      exit(0);
    }
    set.raw = set.raw || option == 'r';
    set.sweep = set.sweep || option == 's';
    if (option == '?') {
      fputs(usage, stderr);
      exit(2);
    }
  }
  char **rest = arguments + optind;
  count -= optind;
  if (count > 0)
    set.spec = rest[0];
  if (count > 1)
    set.size = strtoull(rest[1], NULL, 10) * MIB;
  if (count > 2)
    set.runs = (int)strtol(rest[2], NULL, 10);
  if (count > 3 || set.size == 0 || set.runs < 1 || set.runs > RUNS_MAX) {
    fputs(usage, stderr);
    exit(2);
  }
  return set;
}

static void open_all(bench *all) {
  all->cuda = open_spec("cuda:0");
  all->pinned = open_spec("cuda:0,memory=pinned");
  all->vulkan = open_spec(all->set.spec != NULL ? all->set.spec : same_gpu(all->cuda));
  all->cpu = open_spec("cpu");
  all->in_cuda = make_buffer(all->cuda, all->set.size);
  all->in_vulkan = make_buffer(all->vulkan, all->set.size);
  all->host = make_buffer(all->cpu, all->set.size);
  all->back = make_buffer(all->cpu, all->set.size);
  all->locked = make_buffer(all->pinned, all->set.size);
  bench_write(bytes_of(all->locked), all->set.size, 3);
}

static void close_all(const bench *all) {
  quay_buffer *const buffers[] = {all->in_cuda, all->in_vulkan, all->host, all->back, all->locked};
  for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++)
    quay_buffer_release(buffers[i]);
  quay_allocator *const allocators[] = {all->cuda, all->pinned, all->vulkan, all->cpu};
  for (size_t i = 0; i < sizeof allocators / sizeof allocators[0]; i++)
    quay_allocator_release(allocators[i]);
}

int main(int count, char **arguments) {
  bench all = {.set = parse(count, arguments)};
  open_all(&all);
  printf("%s, %llu MiB, medians of %d\n", quay_allocator_spec(all.vulkan),
         (unsigned long long)(all.set.size / MIB), all.set.runs);
  print_titles();
  all.limit.in = measure("page-locked to CUDA", all.set.runs, all.in_cuda, all.locked, NULL, 0);
  all.limit.out = measure("CUDA to page-locked", all.set.runs, all.locked, all.in_cuda, NULL, 0);
  measure_promises(&all);
  measure_kind(&all, "host");
  measure_kind(&all, "cached");
  const uint64_t sizes[] = {64 << 10, MIB, 16 * MIB, 256 * MIB, 2048 * MIB};
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    if (!all.set.smoke || sizes[i] <= all.set.size)
      measure_size(&all, sizes[i], 40 + i);
  }
  measure_file(&all);
  if (all.set.sweep)
    sweep(&all);
  if (all.set.raw)
    bench_raw(quay_allocator_device(all.vulkan), &all.set, &all.limit);
  close_all(&all);
  bench_check(quay_shutdown(), "the end");
  return 0;
}
