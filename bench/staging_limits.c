/* What the link gives to transfers cut as staging cuts them, without staging: page-locked memory in
 * pieces of one size, one after the other on a stream; and the same while threads copy to or from
 * the memory that is transferred, at the rate that they can. What staging can reach lies between.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/allocator_impl.h"
#include "core/host_copy.h"
#include "core/os.h"
#include "staging.h"

enum {
  COPIERS_MAX = 16,
  PIECES_MAX = 64,
  FILL_ROUNDS = 3,
};

/* Of the page-locked memory as much is used as staging takes for 8 threads. */
#define RING (64 * MIB)

typedef enum load {
  LOAD_NONE,
  LOAD_PLAIN,
  LOAD_AHEAD,
  LOAD_STREAMING,
} load;

static const char *const load_names[] = {
    [LOAD_NONE] = "",
    [LOAD_PLAIN] = "plain",
    [LOAD_AHEAD] = "ahead",
    [LOAD_STREAMING] = "streaming",
};

/* A thread that copies between its own part of the ring and its own part of pageable memory. */
typedef struct copier {
  pthread_t thread;
  unsigned char *ring, *memory;
  uint64_t ring_size, memory_size;
  bool into; /* the ring */
  load load;
  atomic_bool *stop;
  uint64_t bytes, nanoseconds; /* that it moved, in all */
} copier;

static void *copy_until_told(void *argument) {
  copier *own = argument;
  const uint64_t began = quay__os_nanoseconds();
  for (uint64_t at = 0; !atomic_load_explicit(own->stop, memory_order_relaxed); at += MIB) {
    unsigned char *slot = own->ring + at % own->ring_size;
    unsigned char *memory = own->memory + at % own->memory_size;
    unsigned char *to = own->into ? slot : memory, *from = own->into ? memory : slot;
    if (own->load == LOAD_STREAMING || !own->into) {
      quay__host_stream(to, from, MIB);
    } else if (own->load == LOAD_AHEAD) {
      quay__host_copy_ahead(to, from, MIB);
    } else {
      memcpy(to, from, MIB);
    }
    own->bytes += MIB;
  }
  own->nanoseconds = quay__os_nanoseconds() - began;
  return NULL;
}

/* The whole size in pieces from and to the ring. Returns the seconds. */
static double transfer(const bench *all, quay_stream *stream, uint64_t piece, bool into,
                       bool events) {
  const quay_copy_options options = {.stream = stream};
  quay_event *last = NULL;
  const uint64_t began = quay__os_nanoseconds();
  for (uint64_t at = 0; at < all->set.size; at += piece) {
    const uint64_t part = piece < all->set.size - at ? piece : all->set.size - at;
    quay_buffer *to = into ? all->there : all->pinned, *from = into ? all->pinned : all->there;
    bench_check(quay_buffer_copy_region(to, into ? at : at % RING, from, into ? at % RING : at,
                                        part, &options),
                "a piece");
    if (!events)
      continue;
    quay_event_release(last);
    bench_check(quay_event_record(stream, &last), "an event");
  }
  bench_check(quay_stream_synchronize(stream), "waiting");
  const double seconds = (double)(quay__os_nanoseconds() - began) * 1e-9;
  quay_event_release(last);
  return seconds;
}

/* The same in calls of many pieces, which the device may take in any order. */
static double transfer_together(const bench *all, quay_raw_buffer *raw, quay_stream *stream,
                                uint64_t piece, uint64_t count) {
  quay_allocator *allocator = all->allocator;
  void *ring = NULL;
  quay_copy_piece pieces[PIECES_MAX];
  bench_check(quay_buffer_host_bytes_mut(all->pinned, &ring, NULL), "pinned memory");
  const uint64_t began = quay__os_nanoseconds();
  for (uint64_t at = 0; at < all->set.size;) {
    uint64_t have = 0;
    for (; have < count && at < all->set.size; at += piece)
      pieces[have++] = (quay_copy_piece){raw, at, (unsigned char *)ring + at % RING,
                                         piece < all->set.size - at ? piece : all->set.size - at};
    bench_check(
        allocator->vtable.copy_in_many_async(allocator, pieces, have, quay_stream_native(stream)),
        "many pieces");
  }
  bench_check(quay_stream_synchronize(stream), "waiting");
  return (double)(quay__os_nanoseconds() - began) * 1e-9;
}

static int by_seconds(const void *a, const void *b) {
  const double left = *(const double *)a, right = *(const double *)b;
  return (left > right) - (left < right);
}

static double median_rate(const bench *all, quay_stream *stream, uint64_t piece, bool into,
                          bool events) {
  double seconds[RUNS_MAX];
  (void)transfer(all, stream, piece, into, events);
  for (int i = 0; i < all->set.runs; i++)
    seconds[i] = transfer(all, stream, piece, into, events);
  qsort(seconds, (size_t)all->set.runs, sizeof seconds[0], by_seconds);
  return (double)all->set.size / seconds[all->set.runs / 2] * 1e-9;
}

static void print_together(const bench *all, quay_stream *stream) {
  static const uint64_t sizes[] = {MIB / 4, MIB, 2 * MIB, 4 * MIB}, counts[] = {4, 8, 16, 64};
  quay_raw_buffer raw;
  bench_check(quay_allocator_alloc(all->allocator, all->set.size, NULL, &raw), "memory");
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    printf("  %5llu KiB in calls of", (unsigned long long)(sizes[i] / KIB));
    for (size_t j = 0; j < sizeof counts / sizeof counts[0]; j++) {
      double seconds[RUNS_MAX];
      (void)transfer_together(all, &raw, stream, sizes[i], counts[j]);
      for (int run = 0; run < all->set.runs; run++)
        seconds[run] = transfer_together(all, &raw, stream, sizes[i], counts[j]);
      qsort(seconds, (size_t)all->set.runs, sizeof seconds[0], by_seconds);
      const double rate = (double)all->set.size / seconds[all->set.runs / 2] * 1e-9;
      printf("  %llu: %.2f, %.3f", (unsigned long long)counts[j], rate, rate / all->in);
    }
    printf("\n");
    fflush(stdout);
  }
  quay_raw_buffer_free(&raw);
}

/* In turns on two streams. */
static double rate_on_two(const bench *all, quay_stream *one, quay_stream *other, uint64_t piece) {
  double seconds[RUNS_MAX];
  for (int run = -1; run < all->set.runs; run++) {
    const uint64_t began = quay__os_nanoseconds();
    for (uint64_t at = 0, i = 0; at < all->set.size; at += piece, i++) {
      const quay_copy_options options = {.stream = i % 2 == 0 ? one : other};
      const uint64_t part = piece < all->set.size - at ? piece : all->set.size - at;
      bench_check(quay_buffer_copy_region(all->there, at, all->pinned, at % RING, part, &options),
                  "a piece");
    }
    bench_check(quay_stream_synchronize(one), "waiting");
    bench_check(quay_stream_synchronize(other), "waiting");
    if (run >= 0)
      seconds[run] = (double)(quay__os_nanoseconds() - began) * 1e-9;
  }
  qsort(seconds, (size_t)all->set.runs, sizeof seconds[0], by_seconds);
  return (double)all->set.size / seconds[all->set.runs / 2] * 1e-9;
}

static void print_two(const bench *all, quay_stream *stream) {
  quay_stream *other = NULL;
  bench_check(quay_stream_create(quay_allocator_device(all->allocator), NULL, &other), "a stream");
  for (uint64_t piece = MIB; piece <= 4 * MIB; piece *= 2) {
    const double rate = rate_on_two(all, stream, other, piece);
    printf("  %4llu MiB on two streams in turns  %6.2f GB/s, %.3f\n",
           (unsigned long long)(piece / MIB), rate, rate / all->in);
  }
  quay_stream_release(other);
}

/* `ring_bytes`: of the page-locked memory, for all. */
static void begin_copiers(const bench *all, copier *copiers, uint32_t threads, uint64_t ring_bytes,
                          copier usual) {
  void *ring = NULL, *memory = NULL;
  bench_check(quay_buffer_host_bytes_mut(all->pinned, &ring, NULL), "pinned memory");
  bench_check(quay_buffer_host_bytes_mut(all->here, &memory, NULL), "memory");
  const uint64_t ring_part = ring_bytes / threads / MIB * MIB;
  const uint64_t memory_part = all->set.size / threads / MIB * MIB;
  for (uint32_t i = 0; i < threads; i++) {
    copiers[i] = usual;
    copiers[i].ring = (unsigned char *)ring + i * ring_part;
    copiers[i].memory = (unsigned char *)memory + i * memory_part;
    copiers[i].ring_size = ring_part;
    copiers[i].memory_size = memory_part;
    if (pthread_create(&copiers[i].thread, NULL, copy_until_told, &copiers[i]) != 0)
      exit(1);
  }
}

/* Returns GB/s of all of them. */
static double end_copiers(copier *copiers, uint32_t threads) {
  double host = 0;
  atomic_store(copiers[0].stop, true);
  for (uint32_t i = 0; i < threads; i++) {
    (void)pthread_join(copiers[i].thread, NULL);
    host += (double)copiers[i].bytes / (double)copiers[i].nanoseconds;
  }
  return host;
}

static void with_copiers(const bench *all, quay_stream *stream, uint64_t piece, bool into,
                         uint32_t threads, load kind) {
  atomic_bool stop = false;
  copier copiers[COPIERS_MAX];
  begin_copiers(all, copiers, threads, RING, (copier){.into = into, .load = kind, .stop = &stop});
  const double rate = median_rate(all, stream, piece, into, true);
  const double host = end_copiers(copiers, threads);
  const double limit = into ? all->in : all->out;
  printf("  %4llu MiB, %2u threads copy %-9s %6.2f GB/s, %.3f; the threads %6.2f GB/s\n",
         (unsigned long long)(piece / MIB), threads, load_names[kind], rate, rate / limit, host);
  fflush(stdout);
}

/* Without transfers, slots of 1 MiB, in turns. */
static void print_fills(const bench *all, uint32_t threads) {
  const struct timespec while_they_copy = {.tv_nsec = 200000000};
  for (int round = 0; round < FILL_ROUNDS; round++) {
    printf("  %2u threads fill 4 slots of 1 MiB each, GB/s:", threads);
    for (load kind = LOAD_PLAIN; kind <= LOAD_STREAMING; kind++) {
      atomic_bool stop = false;
      copier copiers[COPIERS_MAX];
      begin_copiers(all, copiers, threads, 4 * MIB * threads,
                    (copier){.into = true, .load = kind, .stop = &stop});
      (void)nanosleep(&while_they_copy, NULL);
      printf(" %s %.2f", load_names[kind], end_copiers(copiers, threads));
    }
    printf("\n");
    fflush(stdout);
  }
}

static void limits_of(const bench *all, quay_stream *stream, bool into) {
  static const uint64_t pieces[] = {1, 2, 4, 8, 16, 64};
  static const uint32_t threads[] = {4, 8, 12};
  const double limit = into ? all->in : all->out;
  printf("\n%s, pieces of page-locked memory on one stream, of %.2f GB/s:\n",
         into ? "to the device" : "from the device", limit);
  for (size_t i = 0; i < sizeof pieces / sizeof pieces[0]; i++) {
    const double bare = median_rate(all, stream, pieces[i] * MIB, into, false);
    const double marked = median_rate(all, stream, pieces[i] * MIB, into, true);
    printf(
        "  %4llu MiB                          %6.2f GB/s, %.3f; with an event each %6.2f, %.3f\n",
        (unsigned long long)pieces[i], bare, bare / limit, marked, marked / limit);
    fflush(stdout);
  }
  if (into) {
    print_together(all, stream);
    print_two(all, stream);
  }
  for (size_t i = 0; i < sizeof threads / sizeof threads[0]; i++) {
    for (load kind = LOAD_PLAIN; kind <= (into ? LOAD_STREAMING : LOAD_PLAIN); kind++) {
      with_copiers(all, stream, 2 * MIB, into, threads[i], kind);
      with_copiers(all, stream, 4 * MIB, into, threads[i], kind);
    }
  }
}

void bench_limits(const bench *all) {
  quay_stream *stream = NULL;
  if (all->set.size < RING) {
    printf("the limits take copies of %llu MiB and more\n", (unsigned long long)(RING / MIB));
    return;
  }
  bench_check(quay_stream_create(quay_allocator_device(all->allocator), NULL, &stream), "a stream");
  printf("\n");
  print_fills(all, 1);
  print_fills(all, 8);
  limits_of(all, stream, true);
  limits_of(all, stream, false);
  quay_stream_release(stream);
  /* What is copied was written over. */
  bench_check(quay_buffer_copy_in(all->here, all->bytes, all->set.size), "filling");
  bench_check(quay_buffer_copy_in(all->pinned, all->bytes, all->set.size), "filling");
  bench_check(quay_buffer_copy_in(all->there, all->bytes, all->set.size), "filling");
}
