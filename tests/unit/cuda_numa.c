/* Staged copies on a machine that seems to have two NUMA nodes, with a device at each: where the
 * threads run that fill and empty slots, that they are let go, and whose memory slots are. */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>

#include "core/os.h"
#include "core/staging_memory.h"
#include "cuda_fixture.h"
#include "support/files.h"
#include "support/skip.h"

#define MIB  (UINT64_C(1) << 20)
#define SIZE (9 * MIB + 12345)

static quay__processors own; /* of this thread, before anything */
static int processors[2];    /* the first two of them: a node each */
static atomic_int at_node, elsewhere, sets, read_error;

bool __wrap_quay__os_read_text(const char *path, char *out_text, size_t size);
bool __real_quay__os_read_text(const char *path, char *out_text, size_t size);
int __wrap_quay__os_set_affinity(const quay__processors *set);
int __real_quay__os_set_affinity(const quay__processors *set);
ssize_t __wrap_quay__os_pread(int file, void *buffer, size_t size, uint64_t offset);
ssize_t __real_quay__os_pread(int file, void *buffer, size_t size, uint64_t offset);

bool __wrap_quay__os_read_text(const char *path, char *out_text, size_t size) {
  if (strcmp(path, "/sys/devices/system/node/online") == 0) {
    (void)snprintf(out_text, size, "0-1\n");
    return true;
  }
  const bool first = strcmp(path, "/sys/devices/system/node/node0/cpulist") == 0;
  if (!first && strcmp(path, "/sys/devices/system/node/node1/cpulist") != 0)
    return __real_quay__os_read_text(path, out_text, size);
  (void)snprintf(out_text, size, "%d\n", processors[first ? 0 : 1]);
  return true;
}

int __wrap_quay__os_set_affinity(const quay__processors *set) {
  atomic_fetch_add(&sets, 1);
  return __real_quay__os_set_affinity(set);
}

static bool runs_on(const quay__processors *wanted) {
  quay__processors here;
  cr_assert_eq(quay__os_affinity(&here), 0);
  return memcmp(&here, wanted, sizeof here) == 0;
}

static quay__processors node_of(int number) {
  quay__processors set = {{0}};
  set.bits[processors[number] / 64] |= UINT64_C(1) << (processors[number] % 64);
  return set;
}

ssize_t __wrap_quay__os_pread(int file, void *buffer, size_t size, uint64_t offset) {
  const quay__processors wanted = node_of(1);
  if (size >= 4096)
    atomic_fetch_add(runs_on(&wanted) ? &at_node : &elsewhere, 1);
  errno = atomic_load(&read_error);
  return errno != 0 ? -1 : __real_quay__os_pread(file, buffer, size, offset);
}

static void begin(void) {
  test_files_begin();
  setenv("SIMCUDA_NODES", "1", 0);
  setenv("QUAY_COPY_THREADS", "3", 1);
  cr_assert_eq(quay__os_affinity(&own), 0);
  int count = 0;
  for (int i = 0; i < (int)QUAY__PROCESSORS_MAX && count < 2; i++) {
    if ((own.bits[i / 64] >> (i % 64) & 1) != 0)
      processors[count++] = i;
  }
  if (count < 2)
    quay_test_skip("processors", "this process may use one processor alone");
  find_driver();
}

TestSuite(cuda_numa, .init = begin, .fini = test_files_end);

static quay_allocator *open_device(const char *spec) {
  quay_allocator *device = NULL;
  TEST_OK(quay_allocator_open(spec, &device));
  return device;
}

/* A file to a device, every byte of it looked at. */
static void check_file(const char *spec) {
  quay_allocator *device = open_device(spec);
  quay_buffer *file = test_map(test_file("in", SIZE, 3), QUAY_MAP_READ_ONLY);
  quay_buffer *there = test_buffer(device, SIZE, 5);
  atomic_store(&at_node, 0);
  atomic_store(&elsewhere, 0);
  TEST_OK(quay_buffer_copy_from(there, file));
  cr_assert(test_buffer_is(there, 0, 3));
  cr_assert(runs_on(&own));
  quay_buffer_release(file);
  quay_buffer_release(there);
  quay_allocator_release(device);
}

Test(cuda_numa, threads_read_a_file_at_the_node_of_the_device) {
  check_file("cuda:1");
  cr_assert_gt(atomic_load(&at_node), 0);
  cr_assert_eq(atomic_load(&elsewhere), 0);
}

Test(cuda_numa, threads_of_another_devices_copy_are_at_its_own_node) {
  check_file("cuda:0");
  cr_assert_eq(atomic_load(&at_node), 0);
}

Test(cuda_numa, memory_goes_there_and_back_and_the_thread_is_let_go) {
  quay_allocator *device = open_device("cuda:1");
  quay_buffer *there = test_buffer(device, SIZE, 5);
  cr_assert_gt(atomic_load(&sets), 0);
  atomic_store(&sets, 0);
  cr_assert(test_buffer_is(there, 0, 5));
  cr_assert_gt(atomic_load(&sets), 0);
  cr_assert(runs_on(&own));
  quay_buffer_release(there);
  quay_allocator_release(device);
}

static bool see(void *user, uint64_t done, uint64_t total) {
  (void)done;
  (void)total;
  *(bool *)user = *(bool *)user && runs_on(&own);
  return true;
}

Test(cuda_numa, the_programs_callback_runs_where_the_program_ran) {
  quay_allocator *device = open_device("cuda:1");
  quay_buffer *file = test_map(test_file("in", SIZE, 3), QUAY_MAP_READ_ONLY);
  quay_buffer *there = test_buffer(device, SIZE, 5);
  bool free_to_go = true;
  const quay_copy_options options = {.progress = see, .progress_user = &free_to_go};
  TEST_OK(quay_buffer_copy_region(there, 0, file, 0, SIZE, &options));
  cr_assert(free_to_go);
  quay_buffer_release(file);
  quay_buffer_release(there);
  quay_allocator_release(device);
}

Test(cuda_numa, a_failed_copy_lets_its_threads_go) {
  quay_allocator *device = open_device("cuda:1");
  quay_buffer *file = test_map(test_file("in", SIZE, 3), QUAY_MAP_READ_ONLY);
  quay_buffer *there = test_buffer(device, SIZE, 5);
  atomic_store(&read_error, EIO);
  test_expect_error(quay_buffer_copy_from(there, file), QUAY_STATUS_IO, "EIO", "in");
  atomic_store(&read_error, 0);
  cr_assert(runs_on(&own));
  quay_buffer_release(file);
  quay_buffer_release(there);
  quay_allocator_release(device);
}

Test(cuda_numa, a_driver_that_tells_no_node_binds_nobody, .init = NULL) {
  setenv("SIMCUDA_NODES", "0", 1);
  begin();
  check_file("cuda:1");
  cr_assert_eq(atomic_load(&sets), 0);
  test_files_end();
}

/* Slots. */

/* That their pages come from there is the kernel's doing, which one real node can't show. */
Test(cuda_numa, slots_are_first_touched_by_threads_at_the_node) {
  quay_allocator *device = open_device("cuda:1");
  const quay__staging_wish wish = {
      .size = MIB, .budget = 64 * MIB, .device = quay_allocator_device(device)};
  uint64_t segment = 0;
  bool full;
  unsigned char *slot = quay__staging_memory_take(&wish, &segment, &full);
  cr_assert_not_null(slot);
  cr_assert_gt(atomic_load(&sets), 0);
  cr_assert(runs_on(&own));
  quay__staging_memory_give(slot, MIB);
  quay_allocator_release(device);
}

static uint64_t pinned_bytes(void) {
  simcuda_census now;
  raw.control->count(&now);
  return now.host_bytes;
}

static void copy_to(const char *spec) {
  quay_allocator *device = open_device(spec);
  quay_buffer *there = test_buffer(device, 3 * MIB, 5);
  cr_assert(test_buffer_is(there, 0, 5));
  quay_buffer_release(there);
  quay_allocator_release(device);
}

Test(cuda_numa, a_device_does_not_take_the_slots_of_another_node) {
  quay_allocator *kept = open_device("cuda:0");
  quay_allocator *other = open_device("cuda:1");
  copy_to("cuda:0");
  const uint64_t first = pinned_bytes();
  cr_assert_gt(first, 0);
  copy_to("cuda:0");
  cr_assert_eq(pinned_bytes(), first);
  copy_to("cuda:1");
  const uint64_t both = pinned_bytes();
  cr_assert_gt(both, first);
  copy_to("cuda:0");
  copy_to("cuda:1");
  cr_assert_eq(pinned_bytes(), both);
  quay_allocator_release(other);
  quay_allocator_release(kept);
}

Test(cuda_numa, devices_share_the_slots_where_the_budget_has_no_room_for_both) {
  setenv("QUAY_STAGING_BYTES", "4MiB", 1);
  quay_allocator *kept = open_device("cuda:0");
  quay_allocator *other = open_device("cuda:1");
  copy_to("cuda:0");
  const uint64_t first = pinned_bytes();
  copy_to("cuda:1");
  cr_assert_eq(pinned_bytes(), first);
  quay_allocator_release(other);
  quay_allocator_release(kept);
}
