/* Staged copies by several threads at a time, with budgets, numbers of threads, cuts, sizes, places
 * and failures drawn at random, on the simulated CUDA driver. What is copied has arrived, what
 * failed says why, and no copy waits for ever. A round's seed is told when it fails; QUAY_TEST_FULL
 * runs more. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <quay/quay.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/staging_tuning.h"
#include "sim_cuda/control.h"
#include "support/files.h"
#include "support/pattern.h"
#include "support/random.h"

#define KIB UINT64_C(1024)
#define MIB (KIB * 1024)

enum {
  COPIERS_MAX = 6,
  COPIES = 6,
  ROUNDS = 25,
  ROUNDS_FULL = 500,
  SECONDS = 120 /* a round takes well below one */
};
#define PART_MAX  (2 * MIB + 65636)
#define FILE_SIZE (PART_MAX + 5000)

static const simcuda_control *sim;
static atomic_uint_fast64_t current_seed;
static unsigned char *file_bytes;

static void setup(void) {
  setenv("SIMCUDA_PEERS", "none", 1);
  setenv("SIMCUDA_DELAY", "20", 1);
  sim = simcuda_control_get();
  cr_assert_not_null(sim, "the test needs the simulated driver");
  test_files_begin();
}

static void teardown(void) {
  MUST(quay_shutdown());
  simcuda_census left;
  sim->count(&left);
  cr_expect_eq(left.host_bytes + left.device_bytes, 0u, "%llu bytes of host memory are left",
               (unsigned long long)left.host_bytes);
  cr_expect_eq(left.streams + left.events + left.retains, 0u);
  simcuda_violation violation = {.message = ""};
  cr_expect_eq(sim->violations(&violation, 1), 0u, "%s", violation.message);
  test_files_end();
}

TestSuite(cuda_staging_random, .init = setup, .fini = teardown);

static char hangs[64]; /* what is told then */

static void tell_and_end(int signal) {
  (void)signal;
  (void)!write(2, hangs, strlen(hangs));
  abort();
}

typedef struct copier {
  pthread_t thread;
  uint64_t random;
  quay_allocator *allocators[4];
  quay_buffer *file;
  bool failures; /* are expected */
} copier;

static uint64_t draw(copier *own, uint64_t below) {
  return quay_test_random(&own->random) % below;
}

typedef struct stop_at {
  uint64_t bytes;
} stop_at;

static bool go_on(void *user, uint64_t done, uint64_t total) {
  (void)total;
  return done < ((const stop_at *)user)->bytes;
}

static quay_buffer *open_end(copier *own, uint64_t kind, uint64_t size, bool *out_lent) {
  *out_lent = false;
  if (kind < 4) {
    quay_buffer *made = NULL;
    const quay_status status = quay_buffer_create(own->allocators[kind], QUAY_U8, 1,
                                                  (int64_t[]){(int64_t)size}, NULL, &made);
    return status == QUAY_OK ? made : NULL;
  }
  *out_lent = true;
  return quay_buffer_retain(own->file);
}

/* Bytes before, in and behind the window. */
static void check_end(copier *own, const quay_buffer *to, uint64_t at, uint64_t part,
                      const unsigned char *sent, unsigned char *found) {
  const uint64_t size = quay_buffer_size(to);
  if (quay_buffer_copy_out(to, found, size) != QUAY_OK) {
    cr_assert(own->failures, "%s", quay_last_error()->message);
    return;
  }
  cr_assert_eq(memcmp(found + at, sent, part), 0, "wrong bytes, round %llu",
               (unsigned long long)atomic_load(&current_seed));
  for (uint64_t i = 0; i < size; i++) {
    if (i >= at && i < at + part)
      continue;
    cr_assert_eq(found[i], 0xC3, "byte %llu was overwritten, round %llu", (unsigned long long)i,
                 (unsigned long long)atomic_load(&current_seed));
  }
}

static void copy_once(copier *own, unsigned char *sent, unsigned char *found) {
  const uint64_t part = 65537 + draw(own, draw(own, 2) == 0 ? 200 * KIB : PART_MAX - 65537);
  const uint64_t at = draw(own, 5000), from_at = draw(own, 5000), tail = draw(own, 5000);
  bool lent, file_lent;
  const uint64_t from_kind = draw(own, 5), to_kind = draw(own, 4);
  quay_buffer *to = open_end(own, to_kind, at + part + tail, &lent);
  quay_buffer *from = open_end(own, from_kind, from_at + part, &file_lent);
  const quay_copy_options options = {
      .max_staging_bytes = draw(own, 3) == 0 ? 4096 + draw(own, 300 * KIB) : 0,
      .max_threads = (uint32_t)(draw(own, 3) == 0 ? 1 + draw(own, 5) : 0),
  };
  quay_copy_options chosen = options;
  stop_at stop = {.bytes = draw(own, 2 * part)};
  if (draw(own, 4) == 0) {
    chosen.progress = go_on;
    chosen.progress_user = &stop;
  }
  if (to == NULL || from == NULL || quay_buffer_fill(to, "\xC3", 1) != QUAY_OK) {
    cr_assert(own->failures, "%s", quay_last_error()->message);
  } else {
    quay_test_random_bytes(sent, from_at + part, quay_test_random(&own->random));
    quay_status status = QUAY_OK;
    if (file_lent) {
      memcpy(sent, file_bytes, from_at + part);
    } else {
      status = quay_buffer_copy_in(from, sent, from_at + part);
    }
    if (status == QUAY_OK)
      status = quay_buffer_copy_region(to, at, from, from_at, part, &chosen);
    if (status == QUAY_OK) {
      check_end(own, to, at, part, sent + from_at, found);
    } else if (status != QUAY_STATUS_CANCELLED) {
      cr_assert(own->failures, "round %llu: %s", (unsigned long long)atomic_load(&current_seed),
                quay_last_error()->message);
    }
  }
  if (draw(own, 10) == 0)
    cr_assert(quay_collect(NULL) == QUAY_OK || own->failures);
  if (to != NULL)
    quay_buffer_release(to);
  if (from != NULL)
    quay_buffer_release(from);
}

static void *copy_many_times(void *argument) {
  copier *own = argument;
  unsigned char *sent = malloc(PART_MAX + 20000), *found = malloc(PART_MAX + 20000);
  for (int i = 0; i < COPIES; i++)
    copy_once(own, sent, found);
  free(sent);
  free(found);
  return NULL;
}

static quay__staging_tuning draw_tuning(copier *own) {
  static const uint64_t chunks[] = {4096, 16 * KIB, 64 * KIB, 256 * KIB, MIB};
  static const uint32_t batches[] = {0, 2, 3, 7, 64};
  const uint64_t chunk = chunks[draw(own, 5)];
  const uint64_t join = chunk * (1 + draw(own, 4));
  return (quay__staging_tuning){
      .chunk_in = chunks[draw(own, 5)],
      .slots_in = (uint32_t)(1 + draw(own, 5)),
      .batch = batches[draw(own, 5)],
      .chunk = chunk,
      .ramp = draw(own, 2) == 0 ? 4096 : chunk,
      .join_least = join,
      .join_most = join * (1 + draw(own, 3)),
      .in_flight_least = draw(own, 2) == 0 ? 0 : chunk * draw(own, 6),
      .segment = 4096 * (1 + draw(own, 300)),
      .slots_per_thread = (uint32_t)(1 + draw(own, 4)),
      .own_slots = draw(own, 3) != 0,
      .streams = (uint32_t)draw(own, 4),
  };
}

static void run_round(uint64_t seed) {
  atomic_store(&current_seed, seed);
  (void)snprintf(hangs, sizeof hangs, "round %llu hangs\n", (unsigned long long)seed);
  copier all = {.random = seed};
  static const uint64_t budgets[] = {64 * KIB,  65537,     70001, 100001,  128 * KIB, 192 * KIB,
                                     256 * KIB, 300 * KIB, MIB,   3 * MIB, 16 * MIB,  64 * MIB};
  char text[32];
  (void)snprintf(text, sizeof text, "%llu", (unsigned long long)budgets[draw(&all, 12)]);
  setenv("QUAY_STAGING_BYTES", text, 1);
  (void)snprintf(text, sizeof text, "%llu", (unsigned long long)draw(&all, 16) + 1);
  setenv("QUAY_COPY_THREADS", text, 1);
  const quay__staging_tuning tuning = draw_tuning(&all);
  quay__staging_tuning_set(draw(&all, 4) == 0 ? NULL : &tuning);
  all.failures = draw(&all, 3) == 0;
  static const char *const specs[] = {"cuda:0", "cuda:1", "cpu", "mmap:/tmp"};
  for (int i = 0; i < 4; i++)
    all.allocators[i] = open_spec(specs[i]);
  all.file = test_map(test_file("in", FILE_SIZE, 3), QUAY_MAP_READ_ONLY);
  file_bytes = malloc(FILE_SIZE);
  MUST(quay_buffer_copy_out(all.file, file_bytes, FILE_SIZE));
  const uint64_t count = 1 + draw(&all, COPIERS_MAX);
  copier each[COPIERS_MAX];
  if (all.failures)
    sim->fail(NULL, 1 + draw(&all, 400), draw(&all, 2) == 0 ? 2 : 999);
  (void)alarm(SECONDS);
  for (uint64_t i = 0; i < count; i++) {
    each[i] = all;
    each[i].random = seed * 1000 + i;
    cr_assert_eq(pthread_create(&each[i].thread, NULL, copy_many_times, &each[i]), 0);
  }
  for (uint64_t i = 0; i < count; i++)
    pthread_join(each[i].thread, NULL);
  (void)alarm(0);
  if (getenv("QUAY_TEST_FULL") != NULL)
    (void)fprintf(stderr, "round %llu is done\n", (unsigned long long)seed);
  sim->fail(NULL, 0, 0);
  free(file_bytes);
  quay_buffer_release(all.file);
  cr_assert_eq(unlink(test_path("in")), 0);
  for (int i = 0; i < 4; i++)
    quay_allocator_release(all.allocators[i]);
  MUST(quay_collect(NULL));
  quay__staging_tuning_set(NULL);
}

Test(cuda_staging_random, copies_of_several_threads_arrive_and_end_whatever_they_are_cut_into) {
  const char *only = getenv("QUAY_TEST_SEED");
  const uint64_t first = only != NULL ? strtoull(only, NULL, 10) : 1;
  const uint64_t rounds = only != NULL                       ? 1
                          : getenv("QUAY_TEST_FULL") != NULL ? ROUNDS_FULL
                                                             : ROUNDS;
  (void)signal(SIGALRM, tell_and_end);
  for (uint64_t seed = first; seed < first + rounds; seed++)
    run_round(seed);
}

/* Of copies at once, whose slots leave gaps of all sizes between them. */

enum {
  CROWD = 20,
  CROWD_MS = 1500
};
#define CROWD_BUDGET (8 * MIB)
#define CROWD_SIZE   (8 * MIB)
#define CROWD_OVER   (64 * KIB) /* that each may have where no gap is left for it */

static atomic_bool crowd_ends;

static void *copy_all_the_while(void *argument) {
  uint64_t state = (uintptr_t)argument;
  quay_allocator *device = open_spec("cuda:0");
  quay_buffer *there = pattern_buffer(device, CROWD_SIZE, 1);
  quay_buffer *here = pattern_buffer(NULL, CROWD_SIZE, (unsigned)state);
  MUST(quay_buffer_copy_from(there, here));
  while (!atomic_load(&crowd_ends)) {
    const uint64_t most = UINT64_C(1) << (12 + quay_test_random(&state) % 12);
    const uint64_t size = 1 + quay_test_random(&state) % most;
    const uint64_t offset = quay_test_random(&state) % (CROWD_SIZE - size + 1);
    MUST(quay_buffer_copy_region(there, offset, here, offset, size, NULL));
    MUST(quay_buffer_copy_region(here, offset, there, offset, size, NULL));
  }
  pattern_check_buffer(there, 0, (unsigned)(uintptr_t)argument);
  pattern_check_buffer(here, 0, (unsigned)(uintptr_t)argument);
  quay_buffer_release(there);
  quay_buffer_release(here);
  quay_allocator_release(device);
  return NULL;
}

static uint64_t locked_bytes(void) {
  simcuda_census now;
  sim->count(&now);
  return now.host_bytes;
}

Test(cuda_staging_random, page_locked_memory_keeps_to_the_budget_whatever_slots_lie_side_by_side) {
  setenv("QUAY_STAGING_BYTES", "8MiB", 1);
  setenv("QUAY_COPY_THREADS", "4", 1);
  pthread_t threads[CROWD];
  uint64_t most = 0;
  quay_allocator *device = open_spec("cuda:0"); /* it keeps what small copies go through */
  for (uintptr_t i = 0; i < CROWD; i++)
    cr_assert_eq(pthread_create(&threads[i], NULL, copy_all_the_while, (void *)(i + 1)), 0);
  for (int i = 0; i < CROWD_MS * 5; i++) {
    const uint64_t now = locked_bytes();
    most = now > most ? now : most;
    usleep(200);
  }
  atomic_store(&crowd_ends, true);
  for (int i = 0; i < CROWD; i++)
    pthread_join(threads[i], NULL);
  MUST(quay_collect(NULL));
  const uint64_t others = locked_bytes();
  cr_assert_leq(most - others, CROWD_BUDGET + CROWD * CROWD_OVER, "%llu KiB",
                (unsigned long long)((most - others) / KIB));
  cr_expect_gt(most, CROWD_BUDGET / 2);
  quay_allocator_release(device);
}
