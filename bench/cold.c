/* Reading a file that is not in the page cache into memory: Quay by default and with direct I/O,
 * beside pread, readahead and io_uring with any number of threads. All ways are tried a few times;
 * the fastest of each kind then take turns with Quay, in another order each round, since disks
 * remember what they did before. Every byte is checked after every reading, and before it that the
 * page cache has none of them. By the public interface alone. */
#include "cold.h"

#include <fcntl.h>
#include <getopt.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

enum {
  WAYS_MAX = 160,
  RUNS_MAX = 99,
  FINALISTS = 2 /* of a kind */
};

static const char usage[] =
    "Usage: bench_cold [OPTION...]\n"
    "  --directory DIRECTORY  where the file is made, on a disk ($QUAY_BENCH_DIRECTORY, else "
    "/tmp)\n"
    "  --size MIB             of the file (512)\n"
    "  --to SPEC              Quay copies to memory of this allocator, such as cuda:0, where "
    "every\n"
    "                         byte is read back from; the other ways still read into host memory\n"
    "  --tries N              of every way, by which the fastest are chosen (3)\n"
    "  --try-size MIB         of the file's beginning that the tries read at most (128)\n"
    "  --rounds N             in which these take turns with Quay, on the whole file (9)\n"
    "  --seconds N            after which no more tries are begun, but for each way's first one;\n"
    "                         and the same for rounds (60)\n"
    "  --only TEXT            leave out ways without it in their names\n"
    "  --list                 print what all ways reached in the tries\n"
    "  --quiet                tell nothing on stderr meanwhile\n"
    "  --help                 print this help\n";

typedef struct entry {
  cold_way way;
  double seconds[RUNS_MAX];
  int runs;
  bool finalist;
} entry;

typedef struct settings {
  const char *directory;
  const char *to; /* NULL: host memory */
  uint64_t size, try_size;
  int tries, rounds;
  double seconds;
  bool list, quiet;
  const char *only; /* ways whose names have it, and Quay; NULL: all */
} settings;

typedef struct bench {
  settings set;
  cold_file file;
  quay_allocator *cpu, *to;
  quay_buffer *host; /* `file.memory` is its */
  char path[4096];
  int descriptor;
  entry entries[WAYS_MAX];
  size_t count;
} bench;

static char remove_path[4096]; /* of a file that goes whatever happens; "" for none */

void cold_fail(const char *what) {
  fprintf(stderr, "bench_cold: %s: failed\n", what);
  if (remove_path[0] != '\0')
    (void)unlink(remove_path);
  exit(1);
}

double cold_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* The file. Its bytes are a function of their place (the finaliser of SplitMix64), so that they
 * need not be kept. */
static uint64_t word_at(uint64_t index) {
  uint64_t z = (index + 1) * UINT64_C(0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
  return z ^ (z >> 31);
}

static void fill(void *memory, uint64_t size) {
  uint64_t *words = memory;
  for (uint64_t i = 0; i < size / sizeof *words; i++)
    words[i] = word_at(i);
}

static bool is_right(const void *memory, uint64_t size) {
  const uint64_t *words = memory;
  uint64_t wrong = 0;
  for (uint64_t i = 0; i < size / sizeof *words; i++)
    wrong |= words[i] ^ word_at(i);
  return wrong == 0;
}

static void make_file(bench *all) {
  snprintf(all->path, sizeof all->path, "%s/quay-bench-cold-XXXXXX", all->set.directory);
  all->descriptor = mkstemp(all->path);
  if (all->descriptor < 0)
    cold_fail("making a file in the directory");
  memcpy(remove_path, all->path, sizeof remove_path);
  struct statfs status;
  if (fstatfs(all->descriptor, &status) == 0 && status.f_type == TMPFS_MAGIC) {
    printf("skipped: '%s' is in memory, where no file is ever cold\n", all->set.directory);
    (void)unlink(all->path);
    exit(77);
  }
  for (uint64_t at = 0; at < all->file.size;) {
    const ssize_t got =
        pwrite(all->descriptor, all->file.memory + at, all->file.size - at, (off_t)at);
    if (got <= 0)
      cold_fail("writing the file");
    at += (uint64_t)got;
  }
  /* Not open for writing any more when it is read: Quay reads such files in another way. */
  if (fsync(all->descriptor) != 0 || close(all->descriptor) != 0)
    cold_fail("writing the file");
  all->descriptor = open(all->path, O_RDONLY | O_CLOEXEC);
  if (all->descriptor < 0)
    cold_fail("opening the file");
}

/* Bytes of the file that are in the page cache. */
static uint64_t cached_bytes(const bench *all) {
  const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
  const uint64_t pages = (all->file.size + page - 1) / page;
  unsigned char *resident = malloc(pages);
  void *mapped = mmap(NULL, all->file.size, PROT_READ, MAP_SHARED, all->descriptor, 0);
  if (resident == NULL || mapped == MAP_FAILED || mincore(mapped, all->file.size, resident) != 0)
    cold_fail("asking what is in the page cache");
  uint64_t count = 0;
  for (uint64_t i = 0; i < pages; i++)
    count += resident[i] & 1;
  munmap(mapped, all->file.size);
  free(resident);
  return count * page;
}

/* Pages that another processor has only just added may stay at first. */
static void drop_pages(const bench *all) {
  for (int i = 0; i < 100; i++) {
    if (posix_fadvise(all->descriptor, 0, 0, POSIX_FADV_DONTNEED) != 0)
      break;
    if (cached_bytes(all) == 0)
      return;
    usleep(10000);
  }
  cold_fail("taking the file out of the page cache");
}

static void must(quay_status status) {
  if (status != QUAY_OK)
    cold_fail(quay_last_error()->message);
}

static void open_all(bench *all) {
  const int64_t shape[] = {(int64_t)all->set.size};
  all->file.size = all->set.size;
  must(quay_allocator_open("cpu:hugepages=on", &all->cpu));
  must(quay_buffer_create(all->cpu, QUAY_U8, 1, shape, NULL, &all->host));
  must(quay_buffer_host_bytes_mut(all->host, (void **)&all->file.memory, NULL));
  all->file.destination = all->host;
  if (all->set.to != NULL) {
    must(quay_allocator_open(all->set.to, &all->to));
    must(quay_buffer_create(all->to, QUAY_U8, 1, shape, NULL, &all->file.destination));
  }
  fill(all->file.memory, all->file.size);
  make_file(all);
  all->file.path = all->path;
}

static void close_all(const bench *all) {
  close(all->descriptor);
  (void)unlink(all->path);
  if (all->to != NULL)
    quay_buffer_release(all->file.destination);
  quay_buffer_release(all->host);
  quay_allocator_release(all->to);
  quay_allocator_release(all->cpu);
}

/* The ways. */

static void add(bench *all, cold_way way) {
  char name[96];
  cold_name(&way, name, sizeof name);
  const bool wanted = all->set.only == NULL || strstr(name, all->set.only) != NULL ||
                      way.kind == COLD_QUAY || way.kind == COLD_QUAY_DIRECT;
  if (wanted && all->count < WAYS_MAX)
    all->entries[all->count++] = (entry){.way = way};
}

static void add_threads(bench *all, cold_way way) {
  static const uint32_t threads[] = {1, 2, 4, 8, 16};
  static const uint64_t chunks[] = {512 * KIB, 4 * MIB};
  for (size_t i = 0; i < sizeof threads / sizeof threads[0]; i++) {
    for (size_t j = 0; j < sizeof chunks / sizeof chunks[0]; j++) {
      way.threads = threads[i];
      way.chunk = chunks[j];
      way.parts = false;
      add(all, way);
      way.parts = way.threads > 1 && way.ahead == 0;
      if (way.parts)
        add(all, way);
      way.own = way.parts && way.advice == POSIX_FADV_NORMAL && way.kind == COLD_BUFFERED;
      if (way.own)
        add(all, way);
      way.own = false;
    }
  }
}

static void add_all(bench *all) {
  static const int advices[] = {POSIX_FADV_NORMAL, POSIX_FADV_SEQUENTIAL, POSIX_FADV_WILLNEED};
  add(all, (cold_way){.kind = COLD_QUAY});
  add(all, (cold_way){.kind = COLD_QUAY_DIRECT});
  for (size_t i = 0; i < sizeof advices / sizeof advices[0]; i++)
    add_threads(all, (cold_way){.kind = COLD_BUFFERED, .advice = advices[i]});
  add_threads(all, (cold_way){.kind = COLD_DIRECT});
  add_threads(all, (cold_way){.kind = COLD_AHEAD, .ahead = 16 * MIB});
  add_threads(all, (cold_way){.kind = COLD_AHEAD, .ahead = 64 * MIB});
  for (uint32_t depth = 4; depth <= 64 && cold_has_uring(); depth *= 4) {
    for (uint64_t chunk = 256 * KIB; chunk <= 4 * MIB; chunk *= 4) {
      add(all, (cold_way){.kind = COLD_URING, .threads = depth, .chunk = chunk});
      add(all, (cold_way){.kind = COLD_URING_DIRECT, .threads = depth, .chunk = chunk});
    }
  }
}

static bool is_quay(const entry *one) {
  return one->way.kind == COLD_QUAY || one->way.kind == COLD_QUAY_DIRECT;
}

/* Measuring. */

static int by_value(const void *a, const void *b) {
  const double left = *(const double *)a, right = *(const double *)b;
  return (left > right) - (left < right);
}

/* 0: of the slowest run, 1: of the fastest, 0.5: of the one in the middle. */
static double gbps_at(const bench *all, const entry *one, double part) {
  double sorted[RUNS_MAX];
  memcpy(sorted, one->seconds, sizeof sorted);
  qsort(sorted, (size_t)one->runs, sizeof sorted[0], by_value);
  const int last = one->runs - 1;
  return last < 0 ? 0 : (double)all->file.size / sorted[last - (int)(part * last)] * 1e-9;
}

static double gbps(const bench *all, const entry *one) {
  return gbps_at(all, one, 0.5);
}

/* Where the way's bytes arrive is full of others before; afterwards they are in the memory. */
static void poison(const bench *all) {
  memset(all->file.memory, 0xa5, all->file.size);
  if (all->to != NULL)
    must(quay_buffer_fill(all->file.destination, "\xa5", 1));
}

static void read_back(const bench *all) {
  quay_buffer *part = NULL;
  must(quay_buffer_view(all->file.destination, 0, all->file.size, &part));
  must(quay_buffer_copy_out(part, all->file.memory, all->file.size));
  quay_buffer_release(part);
}

static double run_once(const bench *all, entry *one) {
  poison(all);
  drop_pages(all);
  const double seconds = cold_read(&all->file, &one->way);
  if (all->to != NULL && is_quay(one))
    read_back(all);
  if (!is_right(all->file.memory, all->file.size)) {
    char name[96];
    cold_name(&one->way, name, sizeof name);
    fprintf(stderr, "bench_cold: %s read wrong bytes\n", name);
    cold_fail("checking");
  }
  one->seconds[one->runs++] = seconds;
  return seconds;
}

static void tell(const bench *all, const entry *one, double seconds, int round, int rounds) {
  char name[96];
  if (all->set.quiet)
    return;
  cold_name(&one->way, name, sizeof name);
  fprintf(stderr, "%d of %d, %zu of %zu: %s: %.2f GB/s\n", round + 1, rounds,
          (size_t)(one - all->entries) + 1, all->count, name,
          (double)all->file.size / seconds * 1e-9);
}

/* Those that take part, in an order that the round's number gives: the same in every run. */
static size_t shuffle(bench *all, int round, bool all_ways, entry *order[WAYS_MAX]) {
  size_t count = 0;
  for (size_t i = 0; i < all->count; i++) {
    if (all_ways || all->entries[i].finalist)
      order[count++] = &all->entries[i];
  }
  for (size_t left = count; left > 1; left--) {
    const size_t other = word_at((uint64_t)round * WAYS_MAX + left) % left;
    entry *moved = order[left - 1];
    order[left - 1] = order[other];
    order[other] = moved;
  }
  return count;
}

/* Returns how many there was time for, at least one. */
static int run_rounds(bench *all, int rounds, bool all_ways) {
  const double began = cold_now();
  int round = 0;
  for (size_t i = 0; i < all->count; i++)
    all->entries[i].runs = 0;
  for (; round < rounds && (round == 0 || cold_now() - began < all->set.seconds); round++) {
    entry *order[WAYS_MAX];
    const size_t count = shuffle(all, round, all_ways, order);
    for (size_t i = 0; i < count; i++)
      tell(all, order[i], run_once(all, order[i]), round, rounds);
  }
  return round;
}

static entry *best_of(bench *all, cold_kind kind, bool among_finalists) {
  entry *best = NULL;
  for (size_t i = 0; i < all->count; i++) {
    entry *one = &all->entries[i];
    if (one->way.kind == kind && one->finalist == among_finalists &&
        (best == NULL || gbps(all, one) > gbps(all, best)))
      best = one;
  }
  return best;
}

static void choose_finalists(bench *all) {
  for (cold_kind kind = 0; kind < COLD_KINDS; kind++) {
    for (int i = 0; i < FINALISTS; i++) {
      entry *best = best_of(all, kind, false);
      if (best != NULL)
        best->finalist = true;
    }
  }
}

static void print_rates(const bench *all, bool all_ways) {
  for (size_t i = 0; i < all->count; i++) {
    const entry *one = &all->entries[i];
    if (!all_ways && !one->finalist)
      continue;
    char name[96];
    cold_name(&one->way, name, sizeof name);
    printf("  %-48s %6.2f GB/s (%.2f to %.2f)\n", name, gbps(all, one), gbps_at(all, one, 0),
           gbps_at(all, one, 1));
  }
}

/* The median over the rounds of how much faster `one` was in the same round. */
static double ratio(const entry *one, const entry *other) {
  double ratios[RUNS_MAX];
  for (int i = 0; i < one->runs; i++)
    ratios[i] = other->seconds[i] / one->seconds[i];
  qsort(ratios, (size_t)one->runs, sizeof ratios[0], by_value);
  return ratios[one->runs / 2];
}

static void print_ratios(bench *all) {
  static const struct {
    cold_kind kind;
    const char *name;
  } others[] = {{COLD_BUFFERED, "pread"},
                {COLD_AHEAD, "pread behind readahead"},
                {COLD_DIRECT, "direct pread"},
                {COLD_URING, "io_uring"},
                {COLD_URING_DIRECT, "direct io_uring"}};
  for (size_t i = 0; i < all->count; i++) {
    const entry *quay = &all->entries[i];
    if (!is_quay(quay))
      continue;
    char name[96];
    cold_name(&quay->way, name, sizeof name);
    for (size_t j = 0; j < sizeof others / sizeof others[0]; j++) {
      const entry *best = best_of(all, others[j].kind, true);
      if (best != NULL) {
        printf("%s to the best %s: %.3f, by rounds %.3f\n", name, others[j].name,
               gbps(all, quay) / gbps(all, best), ratio(quay, best));
      }
    }
  }
}

static void read_option(int option, const char *value, settings *set) {
  switch (option) {
  case 'd':
    set->directory = value;
    break;
  case 's':
    set->size = strtoull(value, NULL, 10) * MIB;
    break;
  case 'T':
    set->to = value;
    break;
  case 'S':
    set->try_size = strtoull(value, NULL, 10) * MIB;
    break;
  case 'e':
    set->seconds = strtod(value, NULL);
    break;
  case 't':
    set->tries = (int)strtol(value, NULL, 10);
    break;
  case 'r':
    set->rounds = (int)strtol(value, NULL, 10);
    break;
  case 'l':
    set->list = true;
    break;
  case 'o':
    set->only = value;
    break;
  case 'q':
    set->quiet = true;
    break;
  case 'h':
    fputs(usage, stdout);
    exit(0);
  default:
    exit(2);
  }
}

static settings defaults(void) {
  const char *directory = getenv("QUAY_BENCH_DIRECTORY");
  settings set = {.directory = directory != NULL && directory[0] != '\0' ? directory : "/tmp",
                  .size = 512 * MIB,
                  .try_size = 128 * MIB,
                  .tries = 3,
                  .rounds = 9,
                  .seconds = 60};
  if (getenv("QUAY_BENCH_SMOKE") != NULL) {
    set.size = 9 * MIB;
    set.tries = set.rounds = 1;
  }
  return set;
}

static settings parse(int argc, char **argv) {
  static const struct option options[] = {{"directory", required_argument, NULL, 'd'},
                                          {"size", required_argument, NULL, 's'},
                                          {"to", required_argument, NULL, 'T'},
                                          {"tries", required_argument, NULL, 't'},
                                          {"try-size", required_argument, NULL, 'S'},
                                          {"rounds", required_argument, NULL, 'r'},
                                          {"seconds", required_argument, NULL, 'e'},
                                          {"only", required_argument, NULL, 'o'},
                                          {"list", no_argument, NULL, 'l'},
                                          {"quiet", no_argument, NULL, 'q'},
                                          {"help", no_argument, NULL, 'h'},
                                          {0}};
  settings set = defaults();
  for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;)
    read_option(option, optarg, &set);
  if (set.size == 0 || set.try_size == 0 || set.tries < 1 || set.tries > RUNS_MAX ||
      set.rounds < 1 || set.rounds > RUNS_MAX || !(set.seconds > 0) || optind != argc) {
    fprintf(stderr, "bench_cold: all numbers are above 0, those of tries and rounds at most 99\n%s",
            usage);
    exit(2);
  }
  return set;
}

int main(int argc, char **argv) {
  static bench all;
  all.set = parse(argc, argv);
  open_all(&all);
  add_all(&all);
  all.file.size = all.set.size < all.set.try_size ? all.set.size : all.set.try_size;
  const int tries = run_rounds(&all, all.set.tries, true);
  printf("%s, %llu MiB, cold, Quay to %s; %zu ways, medians of %d on %llu MiB\n", all.set.directory,
         (unsigned long long)(all.set.size / MIB),
         all.to != NULL ? quay_allocator_spec(all.to) : "host memory", all.count, tries,
         (unsigned long long)(all.file.size / MIB));
  if (all.set.list)
    print_rates(&all, true);
  choose_finalists(&all);
  all.file.size = all.set.size;
  const int rounds = run_rounds(&all, all.set.rounds, false);
  printf("the fastest of each kind in turns, medians of %d\n", rounds);
  print_rates(&all, false);
  print_ratios(&all);
  close_all(&all);
  return quay_shutdown() == QUAY_OK ? 0 : 1;
}
