/* Staged copies of the CUDA backend on the simulated driver: page-locked slots, transfers on
 * streams, several threads, failures of each call. Each test ends with a shutdown that must leave
 * nothing in the driver. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <quay/quay.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/os.h"
#include "core/staging_tuning.h"
#include "sim_cuda/control.h"
#include "support/files.h"
#include "support/pattern.h"
#include "support/skip.h"
#include "support/sweep.h"

#define KIB UINT64_C(1024)
#define MIB (KIB * 1024)

static const simcuda_control *sim;

static void setup(void) {
  setenv("QUAY_COPY_THREADS", "4", 1);
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

TestSuite(cuda_staging, .init = setup, .fini = teardown);

/* Pieces so small that a copy of a few MiB uses every slot many times. */
static const quay__staging_tuning small = {
    .chunk_in = 64 * KIB,
    .slots_in = 3,
    .chunk = 64 * KIB,
    .ramp = 16 * KIB,
    .join_least = 128 * KIB,
    .join_most = 256 * KIB,
    .in_flight_least = 128 * KIB,
    .segment = 256 * KIB,
    .slots_per_thread = 3,
};

/* The same, with slots that threads keep for themselves, on several streams. */
static quay__staging_tuning small_own(uint32_t streams) {
  quay__staging_tuning tuning = small;
  tuning.own_slots = true;
  tuning.streams = streams;
  return tuning;
}

static uint64_t pinned_bytes(void) {
  simcuda_census now;
  sim->count(&now);
  return now.host_bytes;
}

/* Reads that wait until so many threads are at it. */
static atomic_uint readers_wanted, readers, most_readers;
static atomic_uint_fast64_t read_bytes; /* by such calls */

ssize_t __real_quay__os_pread(int file, void *buffer, size_t size, uint64_t offset);
ssize_t __wrap_quay__os_pread(int file, void *buffer, size_t size, uint64_t offset);

ssize_t __wrap_quay__os_pread(int file, void *buffer, size_t size, uint64_t offset) {
  atomic_fetch_add(&read_bytes, size);
  if (atomic_load(&readers_wanted) == 0)
    return __real_quay__os_pread(file, buffer, size, offset);
  const unsigned now = atomic_fetch_add(&readers, 1) + 1;
  if (now > atomic_load(&most_readers))
    atomic_store(&most_readers, now);
  /* For a while only: the last chunks have fewer. */
  for (int i = 0; i < 300 && atomic_load(&most_readers) < atomic_load(&readers_wanted); i++)
    nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
  const ssize_t got = __real_quay__os_pread(file, buffer, size, offset);
  atomic_fetch_sub(&readers, 1);
  return got;
}

/* Bytes. */

/* A file to the device, from there to memory, back, and to another file. */
static void check_round(quay_allocator *device, uint64_t size) {
  quay_buffer *file = test_map(test_file("in", size, 3), QUAY_MAP_READ_ONLY);
  quay_buffer *there = pattern_buffer(device, size, 1), *again = pattern_buffer(device, size, 4);
  MUST(quay_buffer_copy_from(there, file));
  unsigned char *bytes = malloc(size + 1);
  memset(bytes, 0x77, size + 1);
  MUST(quay_buffer_copy_out(there, bytes, size));
  cr_assert(test_matches(bytes, size, 0, 3), "%llu bytes from the file", (unsigned long long)size);
  cr_assert_eq(bytes[size], 0x77);
  MUST(quay_buffer_copy_in(again, bytes, size));
  MUST(quay_buffer_save(again, test_path("out"), &(quay_save_options){.no_sync = true}));
  cr_assert(test_file_is(test_path("out"), size, 3), "%llu bytes to a file",
            (unsigned long long)size);
  cr_assert_eq(unlink(test_path("in")), 0);
  free(bytes);
  quay_buffer_release(file);
  quay_buffer_release(there);
  quay_buffer_release(again);
}

static void check_sizes(const char *spec, const uint64_t *sizes, int count) {
  quay_allocator *device = open_spec(spec);
  for (int i = 0; i < count; i++)
    check_round(device, sizes[i]);
  quay_allocator_release(device);
}

Test(cuda_staging, every_byte_arrives_around_the_sizes_of_chunks_slots_and_threads) {
  static const uint64_t sizes[] = {65537,       262143,      262144,       262145,
                                   2 * MIB - 1, 2 * MIB + 1, 4 * MIB + 77, 33 * MIB + 12345};
  check_sizes("cuda:0", sizes, 8);
}

Test(cuda_staging, every_byte_arrives_when_slots_are_used_again_and_again) {
  static const uint64_t sizes[] = {65537, 100 * KIB, 2 * MIB, 5 * MIB + 4321};
  quay__staging_tuning_set(&small);
  check_sizes("cuda:0", sizes, 4);
  check_sizes("track+cuda:0,memory=managed", sizes, 4);
}

/* To a device and from it, to memory and to a file that is there already. */
static void check_both_ways(const quay__staging_tuning *tuning) {
  static const uint64_t sizes[] = {100 * KIB, 2 * MIB + 1, 3 * MIB + 4321};
  quay__staging_tuning_set(tuning);
  check_sizes("cuda:0", sizes, 3);
  quay_allocator *device = open_spec("cuda:0");
  for (int i = 0; i < 3; i++) {
    quay_buffer *from = pattern_buffer(device, sizes[i], 5);
    quay_buffer *file = test_map(test_file("target", sizes[i], 3), QUAY_MAP_SHARED);
    quay_copy_plan_info plan;
    MUST(quay_copy_plan(file, 0, from, 0, sizes[i], NULL, &plan));
    cr_assert_eq(plan.threads, sizes[i] < 2 * MIB ? 1u : 4u);
    MUST(quay_buffer_copy_from(file, from));
    pattern_check_buffer(file, 0, 5);
    quay_buffer_release(file);
    quay_buffer_release(from);
  }
  quay_allocator_release(device);
  MUST(quay_collect(NULL));
  quay__staging_tuning_set(NULL);
}

Test(cuda_staging, every_byte_arrives_by_slots_of_the_threads_own_on_any_number_of_streams) {
  static const uint32_t streams[] = {0, 3, 100};
  for (int i = 0; i < 3; i++) {
    const quay__staging_tuning tuning = small_own(streams[i]);
    check_both_ways(&tuning);
  }
}

Test(cuda_staging, every_byte_arrives_by_shared_slots_on_any_number_of_streams) {
  static const uint32_t streams[] = {1, 3};
  for (int i = 0; i < 2; i++) {
    quay__staging_tuning tuning = small;
    tuning.streams = streams[i];
    check_both_ways(&tuning);
  }
}

Test(cuda_staging, every_byte_arrives_by_slots_that_are_filled_in_any_way) {
  static const quay__staging_stores stores[] = {QUAY__STORES_AHEAD, QUAY__STORES_PLAIN,
                                                QUAY__STORES_STREAMING};
  for (int i = 0; i < 3; i++) {
    quay__staging_tuning tuning = small_own(2);
    tuning.stores = stores[i];
    check_both_ways(&tuning);
  }
}

/* Has a file copied by pieces that are large enough to be leased, all but the last one; `times`
 * times through one mapping. The bytes that were read by calls in each go to `out_read`. */
static void read_again(const char *path, uint64_t size, int times, uint64_t *out_read) {
  quay_allocator *device = open_spec("cuda:0");
  quay_buffer *file = test_map(path, QUAY_MAP_READ_ONLY);
  for (int i = 0; i < times; i++) {
    quay_buffer *there = pattern_buffer(device, size, 1);
    atomic_store(&read_bytes, 0);
    MUST(quay_buffer_copy_from(there, file));
    out_read[i] = atomic_load(&read_bytes);
    cr_assert(test_buffer_is(there, 0, 3), "copy %d", i);
    quay_buffer_release(there);
  }
  quay_buffer_release(file);
  quay_allocator_release(device);
}

static void need_leases(const char *path) {
  const int probe = open(path, O_RDONLY | O_CLOEXEC);
  const int error = quay__os_lease(probe, false) == 0 ? 0 : errno;
  close(probe);
  if (error != 0)
    quay_test_skip("lease", "no lease can be had here: %s", strerror(error));
}

Test(cuda_staging, files_are_read_by_calls_once_and_then_of_their_mappings) {
  const uint64_t size = 9 * MIB + 4321;
  const char *path = test_file("a", size, 3);
  uint64_t read[3];
  need_leases(path);
  read_again(path, size, 3, read);
  cr_expect_geq(read[0], size);
  cr_expect_lt(read[1], size / 8);
  cr_expect_lt(read[2], size / 8);
}

/* A part that is read over and over is as good as all of it. */
Test(cuda_staging, a_part_of_a_file_that_is_read_again_is_read_of_its_mapping) {
  enum {
    TIMES = 8
  };
  const uint64_t size = 4 * MIB, all = 16 * MIB;
  const char *path = test_file("a", all, 3);
  need_leases(path);
  quay_allocator *device = open_spec("cuda:0");
  quay_buffer *file = test_map(path, QUAY_MAP_READ_ONLY);
  quay_buffer *there = pattern_buffer(device, size, 1);
  uint64_t read = 0;
  for (int i = 0; i < TIMES; i++) {
    quay_buffer *part = NULL;
    MUST(quay_buffer_view(file, 0, size, &part));
    atomic_store(&read_bytes, 0);
    MUST(quay_buffer_copy_from(there, part));
    read = atomic_load(&read_bytes);
    quay_buffer_release(part);
  }
  cr_expect_lt(read, size / 8, "%llu bytes were read by calls", (unsigned long long)read);
  cr_expect(test_buffer_is(there, 0, 3));
  quay_buffer_release(there);
  quay_buffer_release(file);
  quay_allocator_release(device);
}

Test(cuda_staging, files_whose_pages_were_given_up_are_read_by_calls_once_more) {
  const uint64_t size = 9 * MIB + 4321;
  const char *path = test_file("a", size, 3);
  need_leases(path);
  quay_allocator *device = open_spec("cuda:0");
  quay_buffer *file = test_map(path, QUAY_MAP_READ_ONLY);
  quay_buffer *there = pattern_buffer(device, size, 1);
  MUST(quay_buffer_copy_from(there, file));
  MUST(quay_buffer_copy_from(there, file));
  MUST(quay_buffer_advise(file, QUAY_ADVICE_DONT_NEED));
  atomic_store(&read_bytes, 0);
  MUST(quay_buffer_copy_from(there, file));
  cr_expect_geq(atomic_load(&read_bytes), size);
  cr_expect(test_buffer_is(there, 0, 3));
  quay_buffer_release(there);
  quay_buffer_release(file);
  quay_allocator_release(device);
}

Test(cuda_staging, files_that_cannot_be_leased_are_read_by_calls) {
  const uint64_t size = 9 * MIB + 4321;
  const char *path = test_file("a", size, 3);
  const int writer = open(path, O_RDWR | O_CLOEXEC);
  uint64_t read[3];
  cr_assert_geq(writer, 0);
  read_again(path, size, 3, read);
  for (int i = 0; i < 3; i++)
    cr_expect_geq(read[i], size, "copy %d", i);
  close(writer);
}

Test(cuda_staging, when_files_are_leased_can_be_chosen) {
  const uint64_t size = 9 * MIB + 4321;
  const char *path = test_file("a", size, 3);
  quay__staging_tuning tuning = *quay__staging_tuning_get();
  uint64_t read[3];
  need_leases(path);
  tuning.leases = QUAY__LEASES_AT_ONCE;
  quay__staging_tuning_set(&tuning);
  read_again(path, size, 1, read);
  cr_expect_lt(read[0], size / 8);
  tuning.leases = QUAY__LEASES_NEVER;
  quay__staging_tuning_set(&tuning);
  read_again(path, size, 3, read);
  cr_expect_geq(read[2], size);
  quay__staging_tuning_set(NULL);
}

Test(cuda_staging, every_byte_arrives_by_slots_of_the_threads_own_that_are_handed_over_together) {
  static const uint32_t batches[] = {2, 7, 64};
  for (int i = 0; i < 3; i++) {
    quay__staging_tuning tuning = small_own(1);
    tuning.batch = batches[i];
    check_both_ways(&tuning);
  }
}

/* Page-locked memory of the driver's own making, by way of buffers. */
enum {
  MADE_MAX = 64
};
static quay_buffer *made[MADE_MAX];

static unsigned char *make_pinned(uint64_t size) {
  quay_allocator *pinned = NULL;
  void *bytes = NULL;
  int at = 0;
  while (at < MADE_MAX && made[at] != NULL)
    at++;
  if (at == MADE_MAX || quay_allocator_open("cuda:0,memory=pinned", &pinned) != QUAY_OK)
    return NULL;
  const int64_t shape[] = {(int64_t)size};
  MUST(quay_buffer_create(pinned, QUAY_U8, 1, shape, NULL, &made[at]));
  MUST(quay_buffer_host_bytes_mut(made[at], &bytes, NULL));
  quay_allocator_release(pinned);
  return bytes;
}

static void end_pinned(const unsigned char *memory, uint64_t size) {
  for (int at = 0; at < MADE_MAX; at++) {
    void *bytes = NULL;
    if (made[at] == NULL)
      continue;
    MUST(quay_buffer_host_bytes_mut(made[at], &bytes, NULL));
    if (bytes != memory)
      continue;
    cr_assert_eq(quay_buffer_size(made[at]), size);
    quay_buffer_release(made[at]);
    made[at] = NULL;
  }
}

Test(cuda_staging, every_byte_arrives_by_page_locked_memory_of_another_making) {
  quay__staging_tuning tuning = small_own(1);
  tuning.memory_make = make_pinned;
  tuning.memory_end = end_pinned;
  const uint64_t registered = sim->calls("cuMemHostRegister_v2");
  check_both_ways(&tuning);
  cr_assert_eq(sim->calls("cuMemHostRegister_v2"), registered);
}

/* Threads that hold a slot each until all are at it show that none keeps another one's share. */
Test(cuda_staging, every_thread_gets_slots_of_its_own) {
  const quay__staging_tuning tuning = small_own(1);
  quay__staging_tuning_set(&tuning);
  quay_allocator *device = open_spec("cuda:0");
  quay_buffer *file = test_map(test_file("in", 4 * MIB, 3), QUAY_MAP_READ_ONLY);
  quay_buffer *there = pattern_buffer(device, 4 * MIB, 1);
  atomic_store(&readers_wanted, 4);
  MUST(quay_buffer_copy_from(there, file));
  atomic_store(&readers_wanted, 0);
  cr_assert_eq(atomic_load(&most_readers), 4u);
  cr_assert(test_buffer_is(there, 0, 3));
  quay_buffer_release(file);
  quay_buffer_release(there);
  quay_allocator_release(device);
}

Test(cuda_staging, every_byte_arrives_within_a_tiny_budget) {
  static const uint64_t sizes[] = {65537, 2 * MIB, 3 * MIB + 4321};
  setenv("QUAY_STAGING_BYTES", "64KiB", 1);
  check_sizes("cuda:0", sizes, 3);
  cr_assert_leq(pinned_bytes(), 320 * KIB); /* and the lanes' */
}

static quay_buffer *new_pattern(const char *spec, uint64_t size, unsigned salt) {
  quay_allocator *allocator = open_spec(spec);
  quay_buffer *buffer = pattern_buffer(allocator, size, salt);
  quay_allocator_release(allocator);
  return buffer;
}

/* Both the copy and its plan, or neither. */
static void check_bad_budget(const char *to, const char *from, uint64_t size, bool refuses) {
  quay_buffer *destination = new_pattern(to, size, 1), *source = new_pattern(from, size, 2);
  setenv("QUAY_STAGING_BYTES", "junk", 1);
  quay_copy_plan_info plan;
  const quay_status planned = quay_copy_plan(destination, 0, source, 0, size, NULL, &plan);
  const quay_status copied = quay_buffer_copy_from(destination, source);
  unsetenv("QUAY_STAGING_BYTES");
  cr_expect_eq(planned, refuses ? QUAY_STATUS_INVALID_ARGUMENT : QUAY_OK, "%s to %s", from, to);
  cr_expect_eq(copied, planned, "%s to %s", from, to);
  if (!refuses)
    cr_expect_null(strstr(plan.reason, "refused"), "%s", plan.reason);
  pattern_check_buffer(destination, 0, refuses ? 1 : 2);
  quay_buffer_release(destination);
  quay_buffer_release(source);
}

Test(cuda_staging, a_bad_budget_is_refused_by_large_copies_of_ordinary_memory_and_by_their_plans) {
  const char *const pairs[][2] = {{"cuda:0", "cpu"},
                                  {"cpu", "cuda:0"},
                                  {"pool+cuda:0", "cpu"},
                                  {"guard+cpu", "cuda:0"},
                                  {"cuda:0,memory=managed", "cpu"}};
  for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
    check_bad_budget(pairs[i][0], pairs[i][1], 4 * MIB, true);
    check_bad_budget(pairs[i][0], pairs[i][1], 512 * KIB, false);
  }
}

Test(cuda_staging, windows_at_odd_offsets_leave_their_neighbours_alone) {
  quay_allocator *device = open_spec("cuda:0");
  const uint64_t size = 4 * MIB, from = 12347, to = 777, part = 3 * MIB + 5;
  quay_buffer *file = test_map(test_file("in", size, 3), QUAY_MAP_READ_ONLY);
  quay_buffer *there = pattern_buffer(device, size, 1);
  MUST(quay_buffer_copy_region(there, to, file, from, part, NULL));
  unsigned char *bytes = malloc(size);
  MUST(quay_buffer_copy_out(there, bytes, size));
  pattern_check(bytes, 0, to, 1);
  cr_assert(test_matches(bytes + to, part, from, 3));
  pattern_check(bytes + to + part, to + part, size - to - part, 1);
  free(bytes);
  quay_buffer_release(file);
  quay_buffer_release(there);
  quay_allocator_release(device);
}

static void without_peers(void) {
  setenv("SIMCUDA_PEERS", "none", 1);
  setup();
}

Test(cuda_staging, devices_that_are_no_peers_copy_through_slots_on_both_streams,
     .init = without_peers) {
  quay__staging_tuning_set(&small);
  quay_allocator *one = open_spec("cuda:0"), *two = open_spec("cuda:1");
  quay_buffer *from = pattern_buffer(one, 3 * MIB + 99, 5);
  quay_buffer *to = pattern_buffer(two, 3 * MIB + 99, 6);
  quay_copy_plan_info plan;
  MUST(quay_copy_plan(to, 0, from, 0, 3 * MIB + 99, NULL, &plan));
  cr_assert_eq(plan.route, QUAY_ROUTE_STAGED);
  const uint64_t waits = sim->calls("cuStreamSynchronize");
  MUST(quay_buffer_copy_from(to, from));
  cr_assert_eq(sim->calls("cuStreamSynchronize"), waits, "a leg was copied by blocking calls");
  pattern_check_buffer(to, 0, 5);
  quay_buffer_release(from);
  quay_buffer_release(to);
  quay_allocator_release(one);
  quay_allocator_release(two);
}

/* Plans. */

Test(cuda_staging, a_file_is_read_by_as_many_threads_into_as_many_slots_as_the_plan_says) {
  quay_allocator *device = open_spec("cuda:0");
  quay_buffer *file = test_map(test_file("in", 40 * MIB, 3), QUAY_MAP_READ_ONLY);
  quay_buffer *there = pattern_buffer(device, 40 * MIB, 1);
  quay_copy_plan_info plan;
  MUST(quay_copy_plan(there, 0, file, 0, 40 * MIB, NULL, &plan));
  cr_assert_eq(plan.route, QUAY_ROUTE_STAGED);
  cr_assert_eq(plan.threads, 4u);
  quay__staging_report report;
  quay__staging_report_to(&report);
  atomic_store(&readers_wanted, plan.threads);
  MUST(quay_buffer_copy_from(there, file));
  atomic_store(&readers_wanted, 0);
  quay__staging_report_to(NULL);
  cr_assert_eq(atomic_load(&most_readers), plan.threads);
  cr_assert_eq(report.threads, plan.threads);
  cr_assert_leq(report.slots * plan.chunk, plan.staging_bytes);
  quay_buffer_release(file);
  quay_buffer_release(there);
  quay_allocator_release(device);
}

/* A copy may be done before it has made memory for all of its slots, which are kept: so one of the
 * next ones has all. None has more. */
static void check_report(quay_buffer *to, const quay_buffer *from, uint64_t size, uint64_t budget) {
  quay_copy_plan_info plan;
  MUST(quay_copy_plan(to, 0, from, 0, size, NULL, &plan));
  cr_assert_leq(plan.staging_bytes, budget);
  quay__staging_report report = {.slots = 0};
  quay__staging_report_to(&report);
  for (int i = 0; i < 20 && report.slots * plan.chunk < plan.staging_bytes; i++) {
    MUST(quay_buffer_copy_region(to, 0, from, 0, size, NULL));
    cr_assert_leq(report.threads, plan.threads);
    cr_assert_leq(report.slots * plan.chunk, plan.staging_bytes);
    cr_assert_geq(report.chunks, size / plan.chunk);
    cr_assert_gt(report.transfers, 0u);
  }
  quay__staging_report_to(NULL);
  cr_assert_eq(report.slots * plan.chunk, plan.staging_bytes, "%u slots of %llu, %llu planned",
               report.slots, (unsigned long long)plan.chunk,
               (unsigned long long)plan.staging_bytes);
}

Test(cuda_staging, pageable_copies_hold_what_their_plan_says) {
  static const uint64_t sizes[] = {100 * KIB, MIB, 9 * MIB, 40 * MIB};
  static const char *const budgets[] = {"64KiB", "1MiB", "64MiB"};
  static const uint64_t bytes[] = {64 * KIB, MIB, 64 * MIB};
  quay_allocator *device = open_spec("cuda:0");
  quay_buffer *there = pattern_buffer(device, 40 * MIB, 1),
              *here = pattern_buffer(NULL, 40 * MIB, 2);
  for (int i = 0; i < 4; i++) {
    for (int b = 0; b < 3; b++) {
      setenv("QUAY_STAGING_BYTES", budgets[b], 1);
      check_report(there, here, sizes[i], bytes[b]);
      check_report(here, there, sizes[i], bytes[b]);
    }
  }
  quay_buffer_release(there);
  quay_buffer_release(here);
  quay_allocator_release(device);
}

/* All that a copy holds at a time, as it was run and not as its plan says. */
static void check_held(quay_buffer *to, const quay_buffer *from, uint64_t size, uint64_t allowed) {
  const quay_copy_options options = {.max_staging_bytes = allowed};
  quay_copy_plan_info plan;
  MUST(quay_copy_plan(to, 0, from, 0, size, &options, &plan));
  cr_assert_leq(plan.staging_bytes, allowed);
  cr_assert_gt(plan.staging_bytes, 0u);
  quay__staging_report report = {.slots = 0};
  quay__staging_report_to(&report);
  MUST(quay_buffer_copy_region(to, 0, from, 0, size, &options));
  quay__staging_report_to(NULL);
  cr_assert_gt(report.slots, 0u);
  cr_assert_leq(report.slots * plan.chunk, allowed, "%u slots of %llu, %llu allowed", report.slots,
                (unsigned long long)plan.chunk, (unsigned long long)allowed);
  cr_assert_geq(report.chunks, size / plan.chunk);
}

Test(cuda_staging, pageable_copies_hold_no_more_than_their_caller_allows) {
  static const uint64_t allowed[] = {4096, 5131, 64 * KIB + 1, MIB, 3 * MIB + 5};
  quay_allocator *device = open_spec("cuda:0");
  quay_buffer *here = pattern_buffer(NULL, 9 * MIB, 2), *back = pattern_buffer(NULL, 9 * MIB, 3);
  quay_buffer *there = pattern_buffer(device, 9 * MIB, 1);
  const void *sent = NULL, *got = NULL;
  MUST(quay_buffer_host_bytes(here, &sent, NULL));
  MUST(quay_buffer_host_bytes(back, &got, NULL));
  for (size_t i = 0; i < sizeof allowed / sizeof allowed[0]; i++) {
    for (uint64_t size = 300 * KIB + 1; size < 9 * MIB; size *= 5) {
      MUST(quay_buffer_fill(there, "x", 1));
      MUST(quay_buffer_fill(back, "y", 1));
      check_held(there, here, size, allowed[i]);
      check_held(back, there, size, allowed[i]);
      cr_assert(memcmp(sent, got, size) == 0);
    }
  }
  quay_buffer_release(there);
  quay_buffer_release(back);
  quay_buffer_release(here);
  quay_allocator_release(device);
}

/* Page-locked memory. */

Test(cuda_staging, slots_are_page_locked_once_and_given_back_when_collected) {
  quay_allocator *device = open_spec("cuda:0");
  quay_buffer *there = pattern_buffer(device, 20 * MIB, 1),
              *here = pattern_buffer(NULL, 20 * MIB, 2);
  MUST(quay_buffer_copy_from(there, here));
  MUST(quay_buffer_copy_from(there, here)); /* the first one may have ended before it had all */
  const uint64_t locked = sim->calls("cuMemHostRegister_v2"),
                 streams = sim->calls("cuStreamCreateWithPriority");
  cr_assert_gt(locked, 0u);
  for (int i = 0; i < 3; i++)
    MUST(quay_buffer_copy_from(there, here));
  cr_assert_eq(sim->calls("cuMemHostRegister_v2"), locked);
  cr_assert_eq(sim->calls("cuStreamCreateWithPriority"), streams);
  cr_assert_leq(pinned_bytes(), 65 * MIB);
  uint64_t bytes = 0;
  MUST(quay_collect(&bytes));
  cr_assert_geq(bytes, 8 * MIB);
  cr_assert_eq(sim->calls("cuMemHostUnregister"), locked);
  cr_assert_lt(pinned_bytes(), MIB); /* lanes have a little */
  MUST(quay_buffer_copy_from(here, there));
  pattern_check_buffer(here, 0, 2);
  quay_buffer_release(there);
  quay_buffer_release(here);
  quay_allocator_release(device);
}

Test(cuda_staging, a_refusal_to_page_lock_is_told_by_the_plan_and_tried_again_after_collecting) {
  quay_allocator *device = open_spec("cuda:0");
  quay_buffer *there = pattern_buffer(device, 100, 1), *here = pattern_buffer(NULL, 5 * MIB, 2);
  quay_buffer *file = test_map(test_file("in", 5 * MIB, 3), QUAY_MAP_READ_ONLY);
  quay_buffer_release(there);
  sim->fail("cuMemHostRegister_v2", 1, 2);
  there = pattern_buffer(device, 5 * MIB, 1);
  cr_assert_eq(sim->failed(), 1u);
  quay_copy_plan_info plan;
  MUST(quay_copy_plan(there, 0, here, 0, 5 * MIB, NULL, &plan));
  cr_assert_not_null(strstr(plan.reason, "refused to page-lock"), "%s", plan.reason);
  cr_assert_eq(plan.staging_bytes, 0u);
  const uint64_t asked = sim->calls("cuMemHostRegister_v2");
  MUST(quay_buffer_copy_from(there, file));
  cr_assert(test_buffer_is(there, 0, 3));
  cr_assert_eq(sim->calls("cuMemHostRegister_v2"), asked);
  MUST(quay_collect(NULL));
  MUST(quay_buffer_copy_from(there, here));
  cr_assert_gt(sim->calls("cuMemHostRegister_v2"), asked);
  pattern_check_buffer(there, 0, 2);
  quay_buffer_release(there);
  quay_buffer_release(here);
  quay_buffer_release(file);
  quay_allocator_release(device);
}

Test(cuda_staging, a_reset_device_makes_its_slots_anew) {
  quay_allocator *device = open_spec("cuda:0");
  quay_buffer *here = pattern_buffer(NULL, 5 * MIB, 2), *there = pattern_buffer(device, 5 * MIB, 1);
  quay_buffer_release(there);
  MUST(quay_device_reset(quay_allocator_device(device)));
  there = pattern_buffer(device, 5 * MIB, 1);
  MUST(quay_buffer_copy_from(there, here));
  pattern_check_buffer(there, 0, 2);
  quay_buffer_release(there);
  quay_buffer_release(here);
  quay_allocator_release(device);
}

/* In a callback of another device's copy, which uses memory that the first device has locked: the
 * reset is another thread's, and waits until the copy is done. */
typedef struct resetting {
  quay_device *device;
  pthread_t thread;
  atomic_uint begun, done;
  bool waited;
} resetting;

static void *reset_device(void *argument) {
  resetting *own = argument;
  atomic_store(&own->begun, 1);
  MUST(quay_device_reset(own->device));
  atomic_store(&own->done, 1);
  return NULL;
}

static bool reset_midway(void *user, uint64_t done, uint64_t total) {
  resetting *own = user;
  (void)done;
  (void)total;
  if (atomic_load(&own->begun) != 0)
    return true;
  cr_assert_eq(pthread_create(&own->thread, NULL, reset_device, own), 0);
  nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
  own->waited = atomic_load(&own->done) == 0;
  return true;
}

Test(cuda_staging, a_reset_waits_for_copies_of_other_devices_that_use_its_memory) {
  quay__staging_tuning_set(&small);
  quay_allocator *one = open_spec("cuda:0"), *two = open_spec("cuda:1");
  quay_buffer *first = pattern_buffer(one, 300 * KIB, 1); /* locks the memory */
  quay_buffer_release(first);
  quay_buffer *file = test_map(test_file("in", 300 * KIB, 3), QUAY_MAP_READ_ONLY);
  quay_buffer *there = pattern_buffer(two, 300 * KIB, 2);
  resetting own = {.device = quay_allocator_device(one)};
  const quay_copy_options options = {.progress = reset_midway, .progress_user = &own};
  MUST(quay_buffer_copy_region(there, 0, file, 0, 300 * KIB, &options));
  pthread_join(own.thread, NULL);
  cr_assert(own.waited);
  cr_assert(test_buffer_is(there, 0, 3));
  quay_buffer_release(there);
  quay_buffer_release(file);
  quay_allocator_release(one);
  quay_allocator_release(two);
}

/* Order. */

static void check_follows(const quay__staging_tuning *tuning) {
  quay__staging_tuning_set(tuning);
  quay_allocator *device = open_spec("cuda:0");
  quay_stream *stream = NULL;
  MUST(quay_stream_create(quay_allocator_device(device), NULL, &stream));
  quay_buffer *here = pattern_buffer(NULL, 2 * MIB, 2), *there = pattern_buffer(device, 2 * MIB, 1);
  const quay_copy_options options = {.stream = stream};
  for (int i = 0; i < 5; i++) {
    MUST(quay_buffer_fill_on(there, "abcd", 4, stream));
    MUST(quay_buffer_copy_region(there, 0, here, 0, 2 * MIB, &options));
    MUST(quay_stream_synchronize(stream));
    pattern_check_buffer(there, 0, 2);
  }
  quay_buffer_release(there);
  quay_buffer_release(here);
  quay_stream_release(stream);
  quay_allocator_release(device);
}

Test(cuda_staging, a_pageable_copy_on_a_stream_comes_after_what_was_submitted_to_it) {
  check_follows(&small);
}

Test(cuda_staging, a_pageable_copy_on_several_streams_comes_after_what_was_submitted) {
  const quay__staging_tuning own = small_own(4);
  check_follows(&own);
}

static bool stop_midway(void *user, uint64_t done, uint64_t total) {
  (void)user;
  return done < total / 2;
}

static void check_stopped(const quay__staging_tuning *tuning) {
  quay__staging_tuning_set(tuning);
  quay_allocator *device = open_spec("cuda:0");
  quay_buffer *file = test_map(test_file("in", 4 * MIB, 3), QUAY_MAP_READ_ONLY);
  quay_buffer *there = pattern_buffer(device, 4 * MIB, 1);
  for (int i = 0; i < 10; i++) {
    const quay_copy_options options = {.progress = stop_midway};
    MUST_FAIL(quay_buffer_copy_region(there, 0, file, 0, 4 * MIB, &options), CANCELLED);
    cr_assert_not_null(strstr(quay_last_error()->message, "undefined"));
    simcuda_census now;
    sim->count(&now);
    cr_assert_eq(now.queued, 0u, "%llu operations are queued", (unsigned long long)now.queued);
  }
  MUST(quay_buffer_copy_from(there, file));
  cr_assert(test_buffer_is(there, 0, 3));
  quay_buffer_release(there);
  quay_buffer_release(file);
  quay_allocator_release(device);
}

Test(cuda_staging, a_copy_that_is_stopped_leaves_nothing_in_flight) {
  check_stopped(&small);
  const quay__staging_tuning own = small_own(3);
  check_stopped(&own);
}

Test(cuda_staging, a_file_that_is_shorter_than_its_mapping_is_an_error) {
  quay_allocator *device = open_spec("cuda:0");
  const char *path = test_file("in", 9 * MIB, 3);
  quay_buffer *file = test_map(path, QUAY_MAP_READ_ONLY);
  quay_buffer *there = pattern_buffer(device, 9 * MIB, 1);
  test_truncate(test_path("in"), 8 * MIB + 5);
  MUST_FAIL(quay_buffer_copy_from(there, file), IO);
  quay_buffer_release(there);
  quay_buffer_release(file);
  quay_allocator_release(device);
}

/* Together. */

typedef struct copier {
  pthread_t thread;
  unsigned number;
} copier;

static void *copy_rounds(void *argument) {
  const copier *own = argument;
  const uint64_t size = 300 * KIB + (uint64_t)own->number * 77777;
  quay_allocator *device = open_spec(own->number % 2 == 0 ? "cuda:0" : "cuda:1");
  quay_buffer *there = pattern_buffer(device, size, own->number);
  quay_buffer *here = pattern_buffer(NULL, size, own->number + 50);
  for (unsigned round = 0; round < 4; round++) {
    MUST(quay_buffer_copy_from(there, here));
    MUST(quay_buffer_fill(here, "z", 1));
    MUST(quay_buffer_copy_from(here, there));
    pattern_check_buffer(here, 0, own->number + 50);
  }
  quay_buffer_release(there);
  quay_buffer_release(here);
  quay_allocator_release(device);
  return NULL;
}

static void check_together(const char *budget) {
  setenv("QUAY_STAGING_BYTES", budget, 1);
  copier each[8];
  for (unsigned i = 0; i < 8; i++) {
    each[i].number = i;
    cr_assert_eq(pthread_create(&each[i].thread, NULL, copy_rounds, &each[i]), 0);
  }
  for (unsigned i = 0; i < 8; i++)
    pthread_join(each[i].thread, NULL);
}

Test(cuda_staging, eight_copies_to_two_devices_share_a_tiny_budget) {
  check_together("64KiB");
  quay__staging_tuning_set(&small);
  check_together("256KiB");
  const quay__staging_tuning own = small_own(2);
  quay__staging_tuning_set(&own);
  check_together("256KiB");
}

/* Failure of each call of a scenario. */

static bool scenario(void) {
  quay_allocator *device = NULL;
  quay_buffer *there = NULL, *file = NULL;
  const uint64_t size = 700 * KIB;
  unsigned char *bytes = calloc(1, size);
  quay_status status = quay_map_file(test_path("in"), NULL, &file);
  if (status == QUAY_OK)
    status = quay_allocator_open("cuda:0", &device);
  if (status == QUAY_OK)
    status = quay_buffer_create(device, QUAY_U8, 1, (int64_t[]){(int64_t)size}, NULL, &there);
  if (status == QUAY_OK)
    status = quay_buffer_copy_from(there, file);
  if (status == QUAY_OK)
    status = quay_buffer_copy_out(there, bytes, size);
  bool good = status == QUAY_OK
                  ? test_matches(bytes, size, 0, 3)
                  : quay_last_error()->status == status && quay_last_error()->message[0] != '\0';
  simcuda_census now;
  sim->count(&now);
  good = good && now.queued == 0;
  quay_buffer_release(there);
  quay_buffer_release(file);
  quay_allocator_release(device);
  free(bytes);
  return good;
}

/* What the driver refused to take back is lost, and was logged: one thing at most. */
static bool little_is_left(void) {
  if (quay_shutdown() != QUAY_OK)
    return false;
  simcuda_census left;
  sim->count(&left);
  return left.allocations <= 1 && left.streams <= 1 && left.events <= 1 && left.retains <= 1 &&
         sim->violations(NULL, 0) == 0;
}

static int run_with_failure(uint64_t nth) {
  sim->fail(NULL, nth, 999);
  const bool good = scenario();
  const bool reached = sim->failed() != 0;
  sim->fail(NULL, 0, 0);
  if (!good || !scenario() || !little_is_left())
    return 1;
  return reached ? 0 : 2;
}

/* Every `step`-th call. */
static void sweep_failures(const quay__staging_tuning *tuning, uint64_t step) {
  setenv("QUAY_COPY_THREADS", "2", 1);
  quay__staging_tuning_set(tuning);
  (void)test_file("in", 700 * KIB, 3);
  int status = 0;
  uint64_t nth = quay_test_sweep_first();
  for (; status == 0; nth += step) {
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0)
      _exit(run_with_failure(nth));
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) != 1, "call %llu: status 0x%x",
              (unsigned long long)nth, (unsigned)status);
  }
  cr_assert_gt(nth, 60u);
}

Test(cuda_staging, whichever_call_of_the_driver_fails_the_copy_ends_cleanly,
     .timeout = QUAY_TEST_SWEEP_SECONDS) {
  sweep_failures(&small, quay_test_sweep_step());
}

Test(cuda_staging, whichever_call_fails_slots_of_the_threads_own_end_cleanly,
     .timeout = QUAY_TEST_SWEEP_SECONDS) {
  const quay__staging_tuning own = small_own(2);
  sweep_failures(&own, getenv("QUAY_TEST_FULL") != NULL ? 1 : 5);
}

/* Memory that the driver won't let go. */

enum {
  PIECES = 200
};

/* What the driver knows as page-locked must not become somebody's ordinary memory. */
Test(cuda_staging, memory_that_cannot_be_unlocked_is_not_given_to_anybody_else) {
  const uint64_t size = 300 * KIB + 4096;
  quay_allocator *device = open_spec("cuda:0");
  quay_buffer *there = pattern_buffer(device, size, 1);
  pattern_check_buffer(there, 0, 1);
  sim->fail("cuMemHostUnregister", 1, 999);
  const uint64_t failed = sim->failed();
  MUST(quay_collect(NULL));
  cr_assert_eq(sim->failed(), failed + 1);
  unsigned char *pieces[PIECES];
  for (int i = 0; i < PIECES; i++) {
    pieces[i] =
        quay__os_mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq((void *)pieces[i], MAP_FAILED);
    pattern_make(pieces[i], size, 2);
    quay__staging_report report = {.chunks = 0};
    quay__staging_report_to(&report);
    MUST(quay_buffer_copy_in(there, pieces[i], size));
    quay__staging_report_to(NULL);
    cr_assert_gt(report.chunks, 0u, "piece %d passes for page-locked memory", i);
  }
  for (int i = 0; i < PIECES; i++)
    cr_assert_eq(quay__os_munmap(pieces[i], size), 0);
  quay_buffer_release(there);
  quay_allocator_release(device);
  MUST(quay_shutdown());
  sim->reset(); /* what it was not let go of is still there */
}

/* Budget. */

typedef struct one_of_many {
  pthread_t thread;
  pthread_barrier_t *start;
  quay_buffer *there;
  bool in;
} one_of_many;

static void *copy_one_of_many(void *argument) {
  const one_of_many *own = argument;
  const uint64_t size = quay_buffer_size(own->there);
  unsigned char *bytes = malloc(size);
  memset(bytes, 0x5A, size);
  pthread_barrier_wait(own->start);
  MUST(own->in ? quay_buffer_copy_in(own->there, bytes, size)
               : quay_buffer_copy_out(own->there, bytes, size));
  free(bytes);
  return NULL;
}

enum {
  MANY = 6
};

Test(cuda_staging, copies_that_begin_together_lock_no_more_memory_than_the_budget) {
  setenv("QUAY_STAGING_BYTES", "16MiB", 1);
  quay_allocator *device = open_spec("cuda:0");
  one_of_many each[MANY];
  pthread_barrier_t start;
  pthread_barrier_init(&start, NULL, MANY);
  for (int i = 0; i < MANY; i++) {
    each[i] = (one_of_many){.start = &start, .in = i % 2 == 0};
    MUST(quay_buffer_create(device, QUAY_U8, 1, (int64_t[]){20 * MIB}, NULL, &each[i].there));
    MUST(quay_buffer_fill(each[i].there, "y", 1));
  }
  MUST(quay_collect(NULL));
  quay_copy_plan_info plan;
  quay_buffer *here = pattern_buffer(NULL, 20 * MIB, 2);
  MUST(quay_copy_plan(here, 0, each[0].there, 0, 20 * MIB, NULL, &plan));
  quay_buffer_release(here);
  const uint64_t before = pinned_bytes(), chunk = plan.chunk;
  for (int i = 0; i < MANY; i++)
    cr_assert_eq(pthread_create(&each[i].thread, NULL, copy_one_of_many, &each[i]), 0);
  for (int i = 0; i < MANY; i++)
    pthread_join(each[i].thread, NULL);
  /* The first slot of a copy does not wait until others leave a gap that it fits into. */
  cr_expect_leq(pinned_bytes() - before, 16 * MIB + MANY * chunk, "%llu bytes are page-locked",
                (unsigned long long)(pinned_bytes() - before));
  pthread_barrier_destroy(&start);
  for (int i = 0; i < MANY; i++)
    quay_buffer_release(each[i].there);
  quay_allocator_release(device);
}
