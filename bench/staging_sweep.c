/* The ways in which staging can be set up, tried one after the other: how many threads, whose the
 * slots are and how large, what pins them, what stores fill them, how many streams there are. Ends
 * with the best ones, and with the best that each single choice allows. */
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/os.h"
#include "staging.h"

enum {
  WAYS = 3,
  RESULTS_MAX = 2048,
  SHOWN = 12,
  SWEEP_RUNS = 2,
  MADE_MAX = 128,
};

/* Slots of the driver's own allocation, by way of pinned buffers. */

static quay_allocator *pinned;
static quay_buffer *made[MADE_MAX];
static void *made_bytes[MADE_MAX];

static unsigned char *make_pinned(uint64_t size) {
  int at = 0;
  while (at < MADE_MAX && made[at] != NULL)
    at++;
  if (at == MADE_MAX)
    return NULL;
  made[at] = bench_buffer(pinned, size);
  bench_check(quay_buffer_host_bytes_mut(made[at], &made_bytes[at], NULL), "pinned memory");
  return made_bytes[at];
}

static void end_pinned(const unsigned char *memory, uint64_t size) {
  (void)size;
  for (int at = 0; at < MADE_MAX; at++) {
    if (made[at] == NULL || made_bytes[at] != memory)
      continue;
    quay_buffer_release(made[at]);
    made[at] = NULL;
  }
}

/* Threads and processors. */

/* The first processor of each core, then the others. */
static int list_processors(int *out) {
  cpu_set_t allowed;
  int count = 0;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
    return 0;
  for (int pass = 0; pass < 2; pass++) {
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
      char path[96];
      int first = cpu;
      snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list",
               cpu);
      FILE *file = CPU_ISSET((size_t)cpu, &allowed) ? fopen(path, "r") : NULL;
      if (file != NULL) {
        char text[32] = "";
        if (fgets(text, sizeof text, file) != NULL)
          first = (int)strtol(text, NULL, 10);
        fclose(file);
      }
      if (CPU_ISSET((size_t)cpu, &allowed) && (first == cpu) == (pass == 0))
        out[count++] = cpu;
    }
  }
  return count;
}

/* Binds the threads that there are, each to its own processor, or lets all of them go. Those that
 * the engine starts later take after the thread that starts them. */
static void bind_threads(bool bound) {
  static int processors[CPU_SETSIZE];
  static int count;
  if (count == 0)
    count = list_processors(processors);
  DIR *tasks = opendir("/proc/self/task");
  int next = 0;
  for (struct dirent *task; tasks != NULL && count != 0 && (task = readdir(tasks)) != NULL;) {
    const pid_t thread = (pid_t)strtol(task->d_name, NULL, 10);
    char path[64], name[32] = "";
    if (thread == 0)
      continue;
    snprintf(path, sizeof path, "/proc/self/task/%d/comm", (int)thread);
    FILE *comm = fopen(path, "r");
    if (comm != NULL) {
      if (fgets(name, sizeof name, comm) == NULL)
        name[0] = '\0';
      fclose(comm);
    }
    if (thread != getpid() && strncmp(name, "quay-worker", 11) != 0)
      continue;
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int i = 0; i < count; i++) {
      if (!bound || i == next % count)
        CPU_SET((size_t)processors[i], &set);
    }
    next++;
    (void)sched_setaffinity(thread, sizeof set, &set);
  }
  if (tasks != NULL)
    closedir(tasks);
}

/* 0: as the environment had it. */
static void set_threads(uint32_t threads) {
  static char before[32];
  static bool known;
  const char *now = getenv("QUAY_COPY_THREADS");
  if (!known && now != NULL)
    snprintf(before, sizeof before, "%s", now);
  known = true;
  char text[16];
  snprintf(text, sizeof text, "%u", threads);
  if (threads != 0) {
    (void)setenv("QUAY_COPY_THREADS", text, 1);
  } else if (before[0] != '\0') {
    (void)setenv("QUAY_COPY_THREADS", before, 1);
  } else {
    (void)unsetenv("QUAY_COPY_THREADS");
  }
}

/* Has the files open for writing, or not. */
static void set_written(const bench *all, bool written) {
  static int writers[2] = {-1, -1};
  for (int i = 0; i < 2; i++) {
    if (!written && writers[i] >= 0) {
      (void)close(writers[i]);
      writers[i] = -1;
    }
    if (!written || writers[i] >= 0 || all->places[i] < 0)
      continue;
    char name[48];
    snprintf(name, sizeof name, "/proc/self/fd/%d", all->places[i]);
    writers[i] = open(name, O_RDWR | O_CLOEXEC);
    bench_check(writers[i] >= 0 ? QUAY_OK : QUAY_STATUS_IO, name);
  }
}

void bench_use(const bench *all, const variant *chosen) {
  static bool was_driver;
  static quay__staging_tuning tuning;
  quay__staging_tuning_set(NULL);
  if (chosen->driver != was_driver)
    bench_check(quay_collect(NULL), "collecting");
  was_driver = chosen->driver;
  tuning = *quay__staging_tuning_get();
  if (chosen->slot != 0)
    tuning.chunk = tuning.chunk_in = chosen->slot;
  if (chosen->slots != 0)
    tuning.slots_per_thread = tuning.slots_in = chosen->slots;
  if (chosen->streams != 0)
    tuning.streams = chosen->streams;
  if (chosen->batch != 0)
    tuning.batch = chosen->batch;
  if (chosen->single)
    tuning.batch = 0;
  if (chosen->least != 0)
    tuning.join_least = chosen->least;
  if (chosen->in_flight != 0)
    tuning.in_flight_least = chosen->in_flight;
  if (chosen->segment != 0)
    tuning.segment = chosen->segment;
  tuning.own_slots = !chosen->shared;
  tuning.stores = (quay__staging_stores)chosen->stores;
  tuning.leases = (quay__staging_leases)chosen->leases;
  if (chosen->driver) {
    char spec[160];
    snprintf(spec, sizeof spec, "%s,memory=pinned", all->set.device);
    if (pinned == NULL)
      bench_check(quay_allocator_open(spec, &pinned), spec);
    tuning.memory_make = make_pinned;
    tuning.memory_end = end_pinned;
  } else if (pinned != NULL) {
    quay_allocator_release(pinned);
    pinned = NULL;
  }
  set_threads(chosen->threads);
  set_written(all, chosen->written || all->set.variant.written);
  quay__staging_tuning_set(&tuning);
  if (chosen->bound) /* the threads have to be there */
    (void)bench_median(1, all->there, all->here);
  bind_threads(chosen->bound);
}

/* Results. */

typedef struct result {
  variant variant;
  sample samples[WAYS];
} result;

static result results[RESULTS_MAX];
static int result_count;
static int sorted_way;

static const char *const way_names[WAYS] = {"memory to device", "file to device",
                                            "device to memory"};

static void name_of(const variant *v, char *out, size_t size) {
  static const char *const stores[] = {
      [QUAY__STORES_AHEAD] = "  ",
      [QUAY__STORES_PLAIN] = "pl",
      [QUAY__STORES_STREAMING] = "nt",
  };
  char batch[32] = "";
  if (v->batch != 0)
    snprintf(batch, sizeof batch, " b%u/%u", (unsigned)(v->least / MIB),
             (unsigned)(v->in_flight / MIB));
  snprintf(out, size, "%2ut %lluMx%u %s %s %s %ust%s%s", v->threads,
           (unsigned long long)(v->slot / MIB), v->slots, v->shared ? "shared" : "own   ",
           v->driver ? "alloc" : "regis", stores[v->stores], v->streams, v->bound ? " bound" : "",
           batch);
}

static int by_time(const void *a, const void *b) {
  const result *left = a, *right = b;
  const double l = left->samples[sorted_way].seconds, r = right->samples[sorted_way].seconds;
  return (l > r) - (l < r);
}

static void ways_of(const bench *all, int way, quay_buffer **out_to, quay_buffer **out_from) {
  *out_to = way == 2 ? all->here : all->there;
  *out_from = way == 0 ? all->here : way == 1 ? all->file : all->there;
}

static void measure(const bench *all, const variant *chosen) {
  result *one = &results[result_count++];
  one->variant = *chosen;
  bench_use(all, chosen);
  for (int way = 0; way < WAYS; way++) {
    quay_buffer *to = NULL, *from = NULL;
    ways_of(all, way, &to, &from);
    one->samples[way] = bench_median(SWEEP_RUNS, to, from);
  }
}

/* The best GB/s with each value of each choice. */
static void print_choice(const char *name, int way, uint64_t size, bool (*has)(const variant *)) {
  double best = 0;
  for (int i = 0; i < result_count; i++) {
    const double gbps = (double)size / results[i].samples[way].seconds * 1e-9;
    if (has(&results[i].variant) && gbps > best)
      best = gbps;
  }
  if (best > 0)
    printf("  %-28s %7.2f\n", name, best);
}

#define CHOICE(function, condition)        \
  static bool function(const variant *v) { \
    return condition;                      \
  }
CHOICE(four_threads, v->threads == 4)
CHOICE(six_threads, v->threads == 6)
CHOICE(eight_threads, v->threads == 8)
CHOICE(twelve_threads, v->threads == 12)
CHOICE(slots_of_1, v->slot == MIB)
CHOICE(slots_of_2, v->slot == 2 * MIB)
CHOICE(slots_of_4, v->slot == 4 * MIB)
CHOICE(slots_of_8, v->slot == 8 * MIB)
CHOICE(two_slots, v->slots == 2)
CHOICE(three_slots, v->slots == 3)
CHOICE(four_slots, v->slots == 4)
CHOICE(own_slots, !v->shared)
CHOICE(shared_slots, v->shared)
CHOICE(registered, !v->driver)
CHOICE(allocated, v->driver)
CHOICE(ahead, v->stores == QUAY__STORES_AHEAD)
CHOICE(plain, v->stores == QUAY__STORES_PLAIN)
CHOICE(streaming, v->stores == QUAY__STORES_STREAMING)
CHOICE(one_stream, v->streams == 1)
CHOICE(eight_streams, v->streams == 8)
CHOICE(single, v->single)
CHOICE(batched, !v->single)
CHOICE(unbound, !v->bound)
CHOICE(bound, v->bound)

static void print_choices(int way, uint64_t size) {
  static const struct {
    const char *name;
    bool (*has)(const variant *);
  } choices[] = {
      {"4 threads", four_threads},
      {"6 threads", six_threads},
      {"8 threads", eight_threads},
      {"12 threads", twelve_threads},
      {"slots of 1 MiB", slots_of_1},
      {"slots of 2 MiB", slots_of_2},
      {"slots of 4 MiB", slots_of_4},
      {"slots of 8 MiB", slots_of_8},
      {"2 slots a thread", two_slots},
      {"3 slots a thread", three_slots},
      {"4 slots a thread", four_slots},
      {"slots of the thread's own", own_slots},
      {"shared slots", shared_slots},
      {"registered by the device", registered},
      {"allocated by the driver", allocated},
      {"stores that ask ahead", ahead},
      {"plain stores", plain},
      {"streaming stores", streaming},
      {"one stream", one_stream},
      {"eight streams", eight_streams},
      {"slots handed over one by one", single},
      {"slots handed over together", batched},
      {"threads where they like", unbound},
      {"threads bound", bound},
  };
  printf("the best with each choice:\n");
  for (size_t i = 0; i < sizeof choices / sizeof choices[0]; i++)
    print_choice(choices[i].name, way, size, choices[i].has);
}

/* All of one way, the best ones once more with every byte checked. */
static void print_way(const bench *all, int way) {
  const bool into = way != 2;
  sorted_way = way;
  qsort(results, (size_t)result_count, sizeof results[0], by_time);
  printf("\n%s: the best of %d\n", way_names[way], result_count);
  bench_print_titles();
  for (int i = 0; i < result_count && i < SHOWN; i++) {
    char name[64];
    name_of(&results[i].variant, name, sizeof name);
    bench_print_line(name, all->set.size, &results[i].samples[way], into ? all->in : all->out);
  }
  print_choices(way, all->set.size);
  quay_buffer *to = NULL, *from = NULL;
  ways_of(all, way, &to, &from);
  char name[64];
  name_of(&results[0].variant, name, sizeof name);
  bench_use(all, &results[0].variant);
  bench_check(quay_buffer_fill(to, "\x5a", 1), "clearing");
  if (way == 2)
    bench_check(quay_buffer_copy_in(all->there, all->bytes, all->set.size), "filling");
  const sample again = bench_median(all->set.runs, to, from);
  printf("again, with every byte checked:\n");
  bench_print_line(name, all->set.size, &again, into ? all->in : all->out);
  bench_check_bytes(all, to, all->set.size, name);
}

/* Slots that are handed over together: how large and how many they are, and how much is waited for.
 */
static bool sweep_batches(const bench *all, uint64_t until) {
  static const uint64_t sizes[] = {1, 2}, leasts[] = {8, 4, 16}, in_flights[] = {8, 4, 16};
  static const uint32_t slots[] = {4, 8, 6};
  for (int combination = 0; combination < 2 * 3 * 3 * 3; combination++) {
    const variant v = {
        .threads = 8,
        .streams = 1,
        .batch = 64,
        .slot = sizes[combination % 2] * MIB,
        .slots = slots[combination / 2 % 3],
        .least = leasts[combination / 6 % 3] * MIB,
        .in_flight = in_flights[combination / 18] * MIB,
    };
    if (quay__os_nanoseconds() > until || result_count == RESULTS_MAX)
      return false;
    measure(all, &v);
  }
  return true;
}

/* The numbers of one kind of set-up. False: the time is up. */
static bool sweep_numbers(const bench *all, variant *v, uint64_t until) {
  static const uint32_t threads[] = {8, 6, 12, 4}, slots[] = {2, 3, 4};
  static const uint64_t sizes[] = {4, 2, 8, 1};
  for (int combination = 0; combination < 4 * 3 * 4; combination++) {
    v->threads = threads[combination / 12];
    v->slots = slots[combination / 4 % 3];
    v->slot = sizes[combination % 4] * MIB;
    if (quay__os_nanoseconds() > until || result_count == RESULTS_MAX)
      return false;
    measure(all, v);
  }
  return true;
}

/* By the memory that the engine makes at least at a time. */
static void sweep_cold(const bench *all) {
  static const uint64_t segments[] = {4, 16, 64};
  printf("\nfile to device, cold engine:\n");
  bench_print_titles();
  for (size_t i = 0; i < sizeof segments / sizeof segments[0]; i++) {
    const variant v = {.threads = 8, .segment = segments[i] * MIB};
    char name[64];
    snprintf(name, sizeof name, "memory made by %llu MiB and more",
             (unsigned long long)(v.segment / MIB));
    bench_use(all, &v);
    const sample median = bench_median_cold(all->set.runs, all->there, all->file);
    bench_print_line(name, all->set.size, &median, all->in);
  }
}

/* The most promising kinds come first. */
void bench_sweep(const bench *all) {
  static const variant kinds[] = {
      {.single = true, .streams = 1},
      {.single = true, .streams = 1, .driver = true},
      {.single = true, .streams = 2},
      {.single = true, .streams = 1, .bound = true},
      {.single = true, .streams = 8},
      {.single = true, .streams = 1, .shared = true},
      {.single = true, .streams = 1, .stores = QUAY__STORES_PLAIN},
      {.single = true, .streams = 1, .stores = QUAY__STORES_STREAMING},
      {.single = true, .streams = 1, .shared = true, .driver = true},
      {.single = true, .streams = 8, .driver = true},
  };
  const uint64_t until = quay__os_nanoseconds() + (uint64_t)all->set.seconds * 1000000000u;
  (void)setenv("QUAY_STAGING_BYTES", "512MiB", 1); /* 12 threads with 4 slots of 8 MiB */
  bool whole = sweep_batches(all, until);
  for (size_t kind = 0; kind < sizeof kinds / sizeof kinds[0] && whole; kind++) {
    variant v = kinds[kind];
    whole = sweep_numbers(all, &v, until);
  }
  if (!whole) {
    printf("\nthe sweep was stopped after %d seconds, with %d combinations\n", all->set.seconds,
           result_count);
  }
  for (int way = 0; way < WAYS; way++)
    print_way(all, way);
  sweep_cold(all);
  bench_use(all, &(variant){.threads = 8});
  bench_check(quay_collect(NULL), "collecting");
}
