/* Large reads of mapped files that are in the page cache: their bytes, files truncated behind them,
 * and what they leave in the process's resident memory. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/files.h"

#define MIB   (UINT64_C(1) << 20)
#define LARGE (8 * MIB) /* from here on reads are prepared */

TestSuite(mmap_read, .init = test_files_begin, .fini = test_files_end);

/* Copies out between two guards, to memory `skew` bytes behind a page boundary. */
static void check_copy_out(quay_buffer *file, uint64_t offset, uint64_t size, uint64_t skew) {
  quay_buffer *view = NULL;
  TEST_OK(quay_buffer_view(file, offset, size, &view));
  uint8_t *memory = aligned_alloc(4096, (size + 4 * 4096) & ~UINT64_C(4095));
  uint8_t *place = memory + 4096 + skew;
  memset(place - 64, 0xEE, 64);
  memset(place, 0xDD, size);
  memset(place + size, 0xEE, 64);
  TEST_OK(quay_buffer_copy_out(view, place, size));
  for (uint64_t i = 0; i < 64; ++i) {
    cr_assert_eq(place[-64 + (int64_t)i], 0xEE);
    cr_assert_eq(place[size + i], 0xEE);
  }
  cr_assert(test_matches(place, size, offset, 3));
  free(memory);
  quay_buffer_release(view);
}

static void check_places(quay_map_mode mode, const char *threads) {
  static const struct {
    uint64_t offset, size, skew;
  } places[] = {{0, LARGE - 1, 0},        {0, LARGE, 0},         {0, LARGE, 1},
                {1, LARGE + 1, 64},       {991, LARGE + 77, 17}, {4096, LARGE + 16383, 4095},
                {4 * MIB - 1, LARGE, 63}, {0, 12 * MIB + 77, 0}, {77, 12 * MIB, 2048}};
  setenv("QUAY_COPY_THREADS", threads, 1);
  quay_buffer *file = test_map(test_file("a", 12 * MIB + 77, 3), mode);
  for (size_t i = 0; i < sizeof places / sizeof places[0]; ++i)
    check_copy_out(file, places[i].offset, places[i].size, places[i].skew);
  quay_buffer_release(file);
}

Test(mmap_read, one_thread_reads_every_byte_of_a_read_only_mapping) {
  check_places(QUAY_MAP_READ_ONLY, "1");
}

Test(mmap_read, two_threads_read_every_byte_of_a_read_only_mapping) {
  check_places(QUAY_MAP_READ_ONLY, "2");
}

Test(mmap_read, one_thread_reads_every_byte_of_a_shared_mapping) {
  check_places(QUAY_MAP_SHARED, "1");
}

Test(mmap_read, two_threads_read_every_byte_of_a_shared_mapping) {
  check_places(QUAY_MAP_SHARED, "2");
}

Test(mmap_read, sees_what_was_written_through_the_mapping_and_to_the_file) {
  const uint64_t size = LARGE + 4097;
  const char *path = test_file("a", size, 3);
  quay_buffer *file = test_map(path, QUAY_MAP_SHARED);
  cr_assert(test_buffer_is(file, 0, 3));
  void *bytes = NULL;
  TEST_OK(quay_buffer_host_bytes_mut(file, &bytes, NULL));
  test_fill(bytes, size, 0, 5);
  cr_assert(test_buffer_is(file, 0, 5));
  uint8_t *memory = malloc(size);
  test_fill(memory, size, 0, 7);
  const int descriptor = open(path, O_WRONLY);
  cr_assert_eq(pwrite(descriptor, memory, size, 0), (ssize_t)size);
  close(descriptor);
  cr_assert(test_buffer_is(file, 0, 7));
  free(memory);
  quay_buffer_release(file);
}

/* Truncated files. */

static void check_truncated(const char *threads, uint64_t left, bool read_before) {
  const uint64_t size = 12 * MIB;
  setenv("QUAY_COPY_THREADS", threads, 1);
  const char *path = test_file("a", size, 3);
  quay_buffer *file = test_map(path, QUAY_MAP_READ_ONLY);
  uint8_t *memory = malloc(size);
  if (read_before)
    TEST_OK(quay_buffer_copy_out(file, memory, size));
  test_truncate(path, left);
  test_expect_error(quay_buffer_copy_out(file, memory, size), QUAY_STATUS_IO, NULL, "truncated");
  free(memory);
  quay_buffer_release(file);
}

Test(mmap_read, a_file_truncated_before_its_first_read_is_an_io_error) {
  check_truncated("1", 5 * MIB + 77, false);
  check_truncated("2", 5 * MIB + 77, false);
}

Test(mmap_read, a_file_truncated_between_two_reads_is_an_io_error) {
  check_truncated("1", 5 * MIB + 77, true);
  check_truncated("2", 0, true);
  check_truncated("1", 12 * MIB - 1, true);
}

typedef struct truncation {
  const char *path;
  uint64_t size;
  atomic_bool stop;
} truncation;

static void *truncate_again_and_again(void *user) {
  truncation *job = user;
  for (unsigned i = 0; !atomic_load(&job->stop); ++i) {
    cr_assert_eq(truncate(job->path, (off_t)(MIB + i * 12347u % job->size / 2)), 0);
    usleep(i * 131 % 1500);
    cr_assert_eq(truncate(job->path, (off_t)job->size), 0);
    usleep(i * 97 % 1500);
  }
  return NULL;
}

static void check_truncated_meanwhile(const char *threads) {
  setenv("QUAY_COPY_THREADS", threads, 1);
  truncation job = {.path = test_file("a", 16 * MIB, 3), .size = 16 * MIB};
  quay_buffer *file = test_map(job.path, QUAY_MAP_READ_ONLY);
  uint8_t *memory = malloc(job.size);
  pthread_t thread;
  cr_assert_eq(pthread_create(&thread, NULL, truncate_again_and_again, &job), 0);
  int failed = 0;
  for (int i = 0; i < 2000 && failed < 20; ++i) {
    const quay_status status = quay_buffer_copy_out(file, memory, job.size);
    cr_assert(status == QUAY_OK || status == QUAY_STATUS_IO);
    failed += status == QUAY_STATUS_IO;
  }
  atomic_store(&job.stop, true);
  pthread_join(thread, NULL);
  cr_assert_eq(failed, 20);
  free(memory);
  quay_buffer_release(file);
}

Test(mmap_read, a_file_truncated_under_one_reader_is_an_io_error) {
  check_truncated_meanwhile("1");
}

Test(mmap_read, a_file_truncated_under_two_readers_is_an_io_error) {
  check_truncated_meanwhile("2");
}

/* Resident memory. */

static uint64_t resident_file_bytes(void) {
  FILE *status = fopen("/proc/self/status", "r");
  char line[256];
  unsigned long long kilobytes = 0;
  bool found = false;
  while (!found && fgets(line, sizeof line, status) != NULL)
    found = sscanf(line, "RssFile: %llu kB", &kilobytes) == 1;
  fclose(status);
  cr_assert(found);
  return kilobytes * 1024;
}

static void check_drops(quay_map_mode mode) {
  const uint64_t size = 40 * MIB + 77;
  quay_buffer *file = test_map(test_file("a", size, 3), mode);
  const uint64_t before = resident_file_bytes();
  for (int round = 0; round < 2; ++round) {
    cr_assert(test_buffer_is(file, 0, 3));
    TEST_OK(quay_buffer_advise(file, QUAY_ADVICE_DONT_NEED));
    cr_assert_lt(resident_file_bytes(), before + 2 * MIB);
  }
  cr_assert(test_buffer_is(file, 0, 3));
  quay_buffer_release(file);
  cr_assert_lt(resident_file_bytes(), before + 2 * MIB);
}

Test(mmap_read, dont_need_takes_a_read_only_mapping_out_of_resident_memory) {
  check_drops(QUAY_MAP_READ_ONLY);
}

Test(mmap_read, dont_need_takes_a_shared_mapping_out_of_resident_memory) {
  check_drops(QUAY_MAP_SHARED);
}

Test(mmap_read, dont_need_of_windows_at_odd_offsets_leaves_nothing_behind) {
  const uint64_t size = 64 * MIB, window = 9 * MIB + 12345;
  quay_buffer *file = test_map(test_file("a", size, 3), QUAY_MAP_READ_ONLY);
  const uint64_t before = resident_file_bytes();
  for (uint64_t offset = 0; offset + window <= size; offset += window) {
    quay_buffer *view = NULL;
    TEST_OK(quay_buffer_view(file, offset, window, &view));
    cr_assert(test_buffer_is(view, offset, 3));
    TEST_OK(quay_buffer_advise(view, QUAY_ADVICE_DONT_NEED));
    quay_buffer_release(view);
    cr_assert_lt(resident_file_bytes(), before + 2 * MIB);
  }
  quay_buffer_release(file);
}

Test(mmap_read, dont_need_keeps_what_was_written_through_a_shared_mapping) {
  const uint64_t size = LARGE + 77;
  const char *path = test_file("a", size, 3);
  quay_buffer *file = test_map(path, QUAY_MAP_SHARED);
  cr_assert(test_buffer_is(file, 0, 3));
  void *bytes = NULL;
  TEST_OK(quay_buffer_host_bytes_mut(file, &bytes, NULL));
  test_fill(bytes, size, 0, 5);
  TEST_OK(quay_buffer_advise(file, QUAY_ADVICE_DONT_NEED));
  cr_assert(test_matches(bytes, size, 0, 5));
  quay_buffer_release(file);
  cr_assert(test_file_is(path, size, 5));
}
