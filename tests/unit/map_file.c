/* Mapping existing files: what is mapped, what is refused, what is shared. Copies and truncation
 * are in mmap_copy.c. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "support/files.h"
#include "support/skip.h"

#define PAGE 4096u
#define MIB  (UINT64_C(1) << 20)
#define GIB  (UINT64_C(1) << 30)

TestSuite(map_file, .init = test_files_begin, .fini = test_files_end);

static const void *bytes_of(const quay_buffer *buffer) {
  const void *bytes = NULL;
  TEST_OK(quay_buffer_host_bytes(buffer, &bytes, NULL));
  return bytes;
}

Test(map_file, gives_the_bytes_of_the_whole_file_by_default) {
  quay_buffer *buffer = NULL;
  TEST_OK(quay_map_file(test_file("a", 10007, 3), NULL, &buffer));
  cr_assert_eq(quay_buffer_size(buffer), 10007);
  cr_assert(test_matches(bytes_of(buffer), 10007, 0, 3));
  quay_buffer_release(buffer);
}

Test(map_file, gives_a_flat_buffer_of_bytes_of_kind_file_on_the_host) {
  quay_buffer *buffer = test_map(test_file("a", 777, 3), QUAY_MAP_READ_ONLY);
  cr_assert_eq(quay_buffer_dtype(buffer), QUAY_U8);
  cr_assert_eq(quay_buffer_rank(buffer), 1);
  cr_assert_eq(quay_buffer_shape(buffer)[0], 777);
  cr_assert_eq(quay_buffer_kind(buffer), QUAY_MEMORY_FILE);
  cr_assert_eq(quay_device_type(quay_buffer_device(buffer)), QUAY_DEVICE_CPU);
  quay_buffer_release(buffer);
}

Test(map_file, takes_offsets_and_lengths_of_no_alignment_in_every_mode) {
  const uint64_t offsets[] = {0, 1, 314, 991, 2048, 4095, 4096, 4097, 20000};
  const uint64_t lengths[] = {1, 313, 4096, 8191};
  const char *path = test_file("a", 40000, 5);
  for (int mode = 0; mode < 3; ++mode) {
    for (size_t i = 0; i < sizeof offsets / sizeof offsets[0]; ++i) {
      for (size_t j = 0; j < sizeof lengths / sizeof lengths[0]; ++j) {
        quay_buffer *buffer = test_map_window(path, (quay_map_mode)mode, offsets[i], lengths[j]);
        cr_assert_eq(quay_buffer_size(buffer), lengths[j]);
        cr_assert(test_matches(bytes_of(buffer), lengths[j], offsets[i], 5));
        cr_assert(test_buffer_is(buffer, offsets[i], 5));
        quay_buffer_release(buffer);
      }
    }
  }
}

Test(map_file, goes_to_the_end_of_the_file_if_the_length_is_zero) {
  quay_buffer *buffer = test_map_window(test_file("a", 9000, 5), QUAY_MAP_READ_ONLY, 991, 0);
  cr_assert_eq(quay_buffer_size(buffer), 9000 - 991);
  cr_assert(test_buffer_is(buffer, 991, 5));
  quay_buffer_release(buffer);
}

Test(map_file, gives_an_empty_buffer_with_an_address_for_an_empty_file_in_every_mode) {
  const char *path = test_file("empty", 0, 1);
  for (int mode = 0; mode < 3; ++mode) {
    quay_buffer *buffer = test_map(path, (quay_map_mode)mode);
    char nothing = 'x';
    cr_assert_eq(quay_buffer_size(buffer), 0);
    cr_assert_not_null(bytes_of(buffer));
    TEST_OK(quay_buffer_copy_out(buffer, &nothing, 0));
    quay_buffer_release(buffer);
  }
}

Test(map_file, gives_an_empty_buffer_for_a_window_at_the_end) {
  quay_buffer *buffer = test_map_window(test_file("a", 500, 1), QUAY_MAP_COPY_ON_WRITE, 500, 0);
  cr_assert_eq(quay_buffer_size(buffer), 0);
  cr_assert_not_null(bytes_of(buffer));
  quay_buffer_release(buffer);
}

Test(map_file, reads_the_tail_of_a_file_over_four_gib) {
  const uint64_t size = 5 * GIB + 12345;
  const char *path = test_sparse_file("large", size);
  uint8_t tail[1000];
  uint8_t got[1000];
  test_fill(tail, sizeof tail, 0, 9);
  const int file = open(path, O_WRONLY);
  cr_assert_eq(pwrite(file, tail, sizeof tail, (off_t)(size - sizeof tail)), sizeof tail);
  close(file);
  quay_buffer *buffer = test_map(path, QUAY_MAP_READ_ONLY);
  cr_assert_eq(quay_buffer_size(buffer), size);
  quay_buffer *view = NULL;
  TEST_OK(quay_buffer_view(buffer, size - sizeof tail, sizeof tail, &view));
  TEST_OK(quay_buffer_copy_out(view, got, sizeof got));
  cr_assert_arr_eq(got, tail, sizeof tail);
  quay_buffer_release(view);
  quay_buffer_release(buffer);
}

static double time_of_mapping(const char *path) {
  struct timespec start;
  struct timespec end;
  clock_gettime(CLOCK_MONOTONIC, &start);
  quay_buffer *buffer = test_map(path, QUAY_MAP_READ_ONLY);
  clock_gettime(CLOCK_MONOTONIC, &end);
  quay_buffer_release(buffer);
  return (double)(end.tv_sec - start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec);
}

static double smaller(double a, double b) {
  return a < b ? a : b;
}

/* The fastest of each, taken in turns, so that what else the machine does slows both down. */
Test(map_file, takes_as_long_for_64_gib_as_for_1_gib) {
  const char *small = test_sparse_file("small", GIB);
  const char *large = test_sparse_file("large", 64 * GIB);
  double ratio = 0;
  for (int attempt = 0; attempt < 5; ++attempt) {
    double of_small = 1e9, of_large = 1e9;
    for (int i = 0; i < 300; ++i) {
      of_small = smaller(of_small, time_of_mapping(small));
      of_large = smaller(of_large, time_of_mapping(large));
    }
    ratio = of_large / of_small;
    if (ratio < 1.5)
      return;
  }
  cr_assert_fail("64 GiB take %.2f times as long", ratio);
}

static uint64_t resident_pages(const void *address, uint64_t size) {
  static unsigned char vector[65536];
  const uint64_t pages = (size + PAGE - 1) / PAGE;
  uint64_t count = 0;
  cr_assert(pages <= sizeof vector);
  cr_assert_eq(mincore((void *)(uintptr_t)address, size, vector), 0);
  for (uint64_t i = 0; i < pages; ++i)
    count += vector[i] & 1u;
  return count;
}

/* Writes a file out and empties the page cache of it, or skips the test. */
static const char *uncached_file(uint64_t size, unsigned seed) {
  const char *path = test_file("uncached", size, seed);
  struct statfs system;
  cr_assert_eq(statfs(path, &system), 0);
  if (system.f_type == 0x01021994)
    quay_test_skip("disk", "%s is in memory: files there are always cached", path);
  const int file = open(path, O_RDONLY);
  cr_assert_eq(fsync(file), 0);
  cr_assert_eq(posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED), 0);
  close(file);
  return path;
}

Test(map_file, reads_no_page) {
  quay_buffer *buffer = test_map(uncached_file(4 * MIB, 3), QUAY_MAP_READ_ONLY);
  cr_assert_eq(resident_pages(bytes_of(buffer), 4 * MIB), 0);
  quay_buffer_release(buffer);
}

Test(map_file, direct_reads_leave_the_page_cache_alone) {
  const char *path = uncached_file(8 * MIB, 3);
  const int probe = open(path, O_RDONLY | O_DIRECT);
  if (probe < 0)
    quay_test_skip("direct", "the file system of %s has no direct I/O", path);
  close(probe);
  const quay_map_options options = {.direct = true};
  quay_buffer *buffer = NULL;
  TEST_OK(quay_map_file(path, &options, &buffer));
  cr_assert(test_buffer_is(buffer, 0, 3));
  cr_assert(resident_pages(bytes_of(buffer), 8 * MIB) < 64);
  quay_buffer_release(buffer);
}

/* Refusals. */

static void expect_refused(const char *path, const char *what) {
  for (int mode = 0; mode < 3; ++mode) {
    const quay_map_options options = {.mode = (quay_map_mode)mode};
    quay_buffer *buffer = (quay_buffer *)&options;
    test_expect_error(quay_map_file(path, &options, &buffer), QUAY_STATUS_INVALID_ARGUMENT, "",
                      what);
    cr_assert_not_null(strstr(quay_last_error()->message, path));
    cr_assert_null(buffer);
  }
}

Test(map_file, refuses_a_directory) {
  expect_refused(test_directory(), "a directory");
}

Test(map_file, refuses_a_fifo_without_hanging, .timeout = 20) {
  const char *path = test_path("fifo");
  cr_assert_eq(mkfifo(path, 0666), 0);
  expect_refused(path, "a FIFO");
}

/* Not as empty: its size is 0, but there is something in it. */
Test(map_file, refuses_what_the_kernel_makes_while_it_is_read) {
  quay_buffer *buffer = NULL;
  const char *path = "/proc/self/status";
  test_expect_error(quay_map_file(path, NULL, &buffer), QUAY_STATUS_INVALID_ARGUMENT, "",
                    "no size");
  cr_assert_not_null(strstr(quay_last_error()->message, path));
  cr_assert_null(buffer);
}

/* Whose first bytes are an address that nothing is mapped at: reading them is an error. */
Test(map_file, refuses_what_has_no_size_and_cannot_be_read_at_its_beginning) {
  quay_buffer *buffer = NULL;
  test_expect_error(quay_map_file("/proc/self/mem", NULL, &buffer), QUAY_STATUS_INVALID_ARGUMENT,
                    "", "no size");
  cr_assert_null(buffer);
}

Test(map_file, refuses_what_the_file_system_cannot_map) {
  const char *path = "/sys/kernel/mm/transparent_hugepage/enabled";
  if (access(path, R_OK) != 0)
    quay_test_skip("sysfs", "%s is not there", path);
  quay_buffer *buffer = NULL;
  test_expect_error(quay_map_file(path, NULL, &buffer), QUAY_STATUS_IO, "ENODEV", "by calls");
  cr_assert_not_null(strstr(quay_last_error()->message, path));
}

Test(map_file, refuses_a_character_device) {
  expect_refused("/dev/null", "a character device");
}

Test(map_file, refuses_a_socket) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  const char *path = test_path("socket");
  snprintf(address.sun_path, sizeof address.sun_path, "%.100s", path);
  const int listener = socket(AF_UNIX, SOCK_STREAM, 0);
  cr_assert_eq(bind(listener, (struct sockaddr *)&address, sizeof address), 0);
  expect_refused(path, "a socket");
  close(listener);
}

Test(map_file, names_the_path_and_enoent_for_a_missing_file) {
  const char *path = test_path("missing");
  quay_buffer *buffer = NULL;
  test_expect_error(quay_map_file(path, NULL, &buffer), QUAY_STATUS_IO, "ENOENT", path);
}

Test(map_file, never_creates_a_file) {
  const quay_map_options options = {.mode = QUAY_MAP_SHARED};
  quay_buffer *buffer = NULL;
  test_expect_error(quay_map_file(test_path("missing"), &options, &buffer), QUAY_STATUS_IO,
                    "ENOENT", "missing");
  cr_assert_eq(test_directory_count(test_directory()), 0);
}

static bool map_fails_with_eacces(void *path) {
  quay_buffer *buffer = NULL;
  return quay_map_file(path, NULL, &buffer) == QUAY_STATUS_IO && buffer == NULL &&
         strcmp(quay_last_error()->native_name, "EACCES") == 0 &&
         strstr(quay_last_error()->message, path) != NULL;
}

Test(map_file, reports_an_unreadable_file_with_eacces) {
  const char *path = test_file("secret", 100, 1);
  cr_assert_eq(chmod(path, 0), 0);
  cr_assert(test_as_user(65534, map_fails_with_eacces, (void *)(uintptr_t)path));
}

static bool shared_fails_where_read_only_works(void *path) {
  const quay_map_options shared = {.mode = QUAY_MAP_SHARED};
  const quay_map_options private = {.mode = QUAY_MAP_COPY_ON_WRITE};
  quay_buffer *buffer = NULL;
  if (quay_map_file(path, &shared, &buffer) != QUAY_STATUS_IO)
    return false;
  if (strcmp(quay_last_error()->native_name, "EACCES") != 0)
    return false;
  if (quay_map_file(path, &private, &buffer) != QUAY_OK)
    return false;
  quay_buffer_release(buffer);
  if (quay_map_file(path, NULL, &buffer) != QUAY_OK)
    return false;
  quay_buffer_release(buffer);
  return true;
}

Test(map_file, needs_write_permission_for_shared_mappings_alone) {
  const char *path = test_file("readable", 100, 1);
  cr_assert_eq(chmod(path, 0444), 0);
  cr_assert(test_as_user(65534, shared_fails_where_read_only_works, (void *)(uintptr_t)path));
}

static bool works_after_a_failure(void *path) {
  quay_buffer *buffer = NULL;
  if (!map_fails_with_eacces(path) || chmod(path, 0600) != 0)
    return false;
  if (quay_map_file(path, NULL, &buffer) != QUAY_OK)
    return false;
  const bool same = test_buffer_is(buffer, 0, 8);
  quay_buffer_release(buffer);
  return same;
}

Test(map_file, a_failed_open_does_not_poison_the_next_one) {
  const char *path = test_file("mine", 3000, 8);
  cr_assert_eq(chown(path, 65534, 65534), 0);
  cr_assert_eq(chmod(path, 0), 0);
  cr_assert(test_as_user(65534, works_after_a_failure, (void *)(uintptr_t)path));
}

Test(map_file, refuses_windows_outside_the_file) {
  const uint64_t windows[][2] = {{1001, 0},
                                 {1001, 1},
                                 {0, 1001},
                                 {1000, 1},
                                 {500, 501},
                                 {UINT64_MAX, 0},
                                 {1, UINT64_MAX},
                                 {UINT64_MAX, 2},
                                 {UINT64_MAX, UINT64_MAX},
                                 {UINT64_C(1) << 63, UINT64_C(1) << 63}};
  const char *path = test_file("a", 1000, 1);
  for (size_t i = 0; i < sizeof windows / sizeof windows[0]; ++i) {
    const quay_map_options options = {.offset = windows[i][0], .length = windows[i][1]};
    quay_buffer *buffer = NULL;
    test_expect_error(quay_map_file(path, &options, &buffer), QUAY_STATUS_OUT_OF_RANGE, "", path);
    cr_assert_null(buffer);
  }
}

Test(map_file, refuses_null_arguments) {
  quay_buffer *buffer = NULL;
  test_expect_error(quay_map_file(NULL, NULL, &buffer), QUAY_STATUS_INVALID_ARGUMENT, "", "path");
  test_expect_error(quay_map_file("x", NULL, NULL), QUAY_STATUS_INVALID_ARGUMENT, "", "out_buffer");
}

Test(map_file, refuses_an_unknown_mode) {
  const quay_map_options options = {.mode = (quay_map_mode)3};
  quay_buffer *buffer = NULL;
  test_expect_error(quay_map_file(test_file("a", 10, 1), &options, &buffer),
                    QUAY_STATUS_INVALID_ARGUMENT, "", "3");
}

Test(map_file, refuses_direct_io_on_shared_mappings) {
  const quay_map_options options = {.mode = QUAY_MAP_SHARED, .direct = true};
  quay_buffer *buffer = NULL;
  test_expect_error(quay_map_file(test_file("a", 10, 1), &options, &buffer),
                    QUAY_STATUS_INVALID_ARGUMENT, "", "direct");
}

Test(map_file, leaks_no_descriptor_on_success_or_failure) {
  const char *path = test_file("a", 10000, 1);
  const quay_map_options outside = {.offset = 10001};
  const quay_map_options direct = {.direct = true};
  quay_buffer *first = test_map(path, QUAY_MAP_READ_ONLY);
  quay_buffer_release(first);
  const int before = test_descriptor_count();
  for (int i = 0; i < 10; ++i) {
    quay_buffer *buffers[5] = {NULL};
    for (int mode = 0; mode < 3; ++mode)
      buffers[mode] = test_map(path, (quay_map_mode)mode);
    buffers[3] = test_map(path, QUAY_MAP_READ_ONLY);
    TEST_OK(quay_map_file(path, &direct, &buffers[4]));
    quay_buffer *none = NULL;
    cr_assert_neq(quay_map_file(path, &outside, &none), QUAY_OK);
    cr_assert_neq(quay_map_file(test_directory(), NULL, &none), QUAY_OK);
    for (int j = 0; j < 5; ++j)
      quay_buffer_release(buffers[j]);
  }
  cr_assert_eq(test_descriptor_count(), before);
}

/* Modes. */

Test(map_file, read_only_buffers_are_born_sealed) {
  quay_buffer *buffer = test_map(test_file("a", 100, 1), QUAY_MAP_READ_ONLY);
  cr_assert(quay_buffer_is_sealed(buffer));
  quay_buffer_release(buffer);
}

Test(map_file, read_only_buffers_refuse_every_write) {
  const char *path = test_file("a", 100, 1);
  quay_buffer *buffer = test_map(path, QUAY_MAP_READ_ONLY);
  quay_buffer *other = test_map(test_file("b", 100, 2), QUAY_MAP_READ_ONLY);
  uint8_t bytes[100] = {7};
  void *pointer = NULL;
  test_expect_error(quay_buffer_copy_in(buffer, bytes, 100), QUAY_STATUS_READ_ONLY, "", "");
  test_expect_error(quay_buffer_copy_from(buffer, other), QUAY_STATUS_READ_ONLY, "", "");
  quay_copy_plan_info plan;
  test_expect_error(quay_copy_plan(buffer, 0, other, 0, 100, NULL, &plan), QUAY_STATUS_READ_ONLY,
                    "", "");
  test_expect_error(quay_buffer_fill(buffer, bytes, 1), QUAY_STATUS_READ_ONLY, "", "");
  test_expect_error(quay_buffer_host_bytes_mut(buffer, &pointer, NULL), QUAY_STATUS_READ_ONLY, "",
                    "");
  cr_assert(test_file_is(path, 100, 1));
  quay_buffer_release(other);
  quay_buffer_release(buffer);
}

static void write_through_pointer(quay_buffer *buffer, unsigned seed) {
  void *bytes = NULL;
  uint64_t size = 0;
  TEST_OK(quay_buffer_host_bytes_mut(buffer, &bytes, &size));
  test_fill(bytes, size, 0, seed);
}

Test(map_file, copy_on_write_changes_the_buffer_and_not_the_file) {
  const char *path = test_file("a", 10000, 1);
  quay_buffer *buffer = test_map(path, QUAY_MAP_COPY_ON_WRITE);
  write_through_pointer(buffer, 2);
  cr_assert(test_buffer_is(buffer, 0, 2));
  cr_assert(test_file_is(path, 10000, 1));
  quay_buffer_release(buffer);
}

Test(map_file, two_copy_on_write_mappings_do_not_see_each_other) {
  const char *path = test_file("a", 10000, 1);
  quay_buffer *one = test_map(path, QUAY_MAP_COPY_ON_WRITE);
  quay_buffer *two = test_map(path, QUAY_MAP_COPY_ON_WRITE);
  write_through_pointer(one, 2);
  cr_assert(test_buffer_is(two, 0, 1));
  quay_buffer_release(one);
  quay_buffer_release(two);
}

Test(map_file, shared_writes_through_the_pointer_reach_the_file) {
  const char *path = test_file("a", 10000, 1);
  quay_buffer *buffer = test_map(path, QUAY_MAP_SHARED);
  write_through_pointer(buffer, 2);
  TEST_OK(quay_buffer_flush(buffer));
  quay_buffer_release(buffer);
  cr_assert(test_file_is(path, 10000, 2));
}

Test(map_file, a_view_keeps_the_mapping_after_the_base_is_released) {
  quay_buffer *buffer = test_map(test_file("a", 10000, 1), QUAY_MAP_READ_ONLY);
  quay_buffer *view = NULL;
  TEST_OK(quay_buffer_view(buffer, 991, 5000, &view));
  quay_buffer_release(buffer);
  cr_assert(test_matches(bytes_of(view), 5000, 991, 1));
  quay_buffer_release(view);
}

/* Sharing. */

Test(map_file, read_only_mappings_of_one_file_are_one) {
  const char *path = test_file("a", 10000, 1);
  quay_buffer *one = test_map(path, QUAY_MAP_READ_ONLY);
  quay_buffer *two = test_map_window(path, QUAY_MAP_READ_ONLY, 991, 100);
  cr_assert_eq((const char *)bytes_of(two), (const char *)bytes_of(one) + 991);
  quay_buffer_release(one);
  cr_assert(test_matches(bytes_of(two), 100, 991, 1));
  quay_buffer_release(two);
}

Test(map_file, two_names_of_one_file_are_one_mapping) {
  const char *path = test_file("a", 10000, 1);
  const char *other = test_path("b");
  cr_assert_eq(link(path, other), 0);
  quay_buffer *one = test_map(path, QUAY_MAP_SHARED);
  quay_buffer *two = test_map(other, QUAY_MAP_SHARED);
  cr_assert_eq(bytes_of(one), bytes_of(two));
  quay_buffer_release(one);
  quay_buffer_release(two);
}

Test(map_file, mappings_of_different_modes_are_not_shared) {
  const char *path = test_file("a", 10000, 1);
  quay_buffer *one = test_map(path, QUAY_MAP_READ_ONLY);
  quay_buffer *two = test_map(path, QUAY_MAP_SHARED);
  cr_assert_neq(bytes_of(one), bytes_of(two));
  quay_buffer_release(one);
  quay_buffer_release(two);
}

Test(map_file, a_file_that_has_grown_is_mapped_anew) {
  const char *path = test_file("a", 5000, 1);
  quay_buffer *old = test_map(path, QUAY_MAP_READ_ONLY);
  test_file("a", 3 * MIB, 1);
  quay_buffer *grown = test_map(path, QUAY_MAP_READ_ONLY);
  quay_buffer *again = test_map(path, QUAY_MAP_READ_ONLY);
  cr_assert_eq(quay_buffer_size(grown), 3 * MIB);
  cr_assert(test_buffer_is(grown, 0, 1));
  cr_assert(test_buffer_is(old, 0, 1));
  cr_assert_eq(bytes_of(grown), bytes_of(again));
  quay_buffer_release(old);
  quay_buffer_release(grown);
  cr_assert(test_buffer_is(again, 0, 1));
  quay_buffer_release(again);
}

Test(map_file, a_file_that_has_shrunk_can_be_mapped_anew) {
  const char *path = test_file("a", 3 * MIB, 1);
  quay_buffer *old = test_map(path, QUAY_MAP_READ_ONLY);
  test_truncate(path, 5000);
  quay_buffer *shrunk = test_map(path, QUAY_MAP_READ_ONLY);
  cr_assert_eq(quay_buffer_size(shrunk), 5000);
  cr_assert(test_buffer_is(shrunk, 0, 1));
  quay_buffer_release(old);
  quay_buffer_release(shrunk);
}

Test(map_file, a_replaced_file_keeps_its_old_bytes_in_the_old_buffer) {
  const char *path = test_file("a", 5000, 1);
  quay_buffer *old = test_map(path, QUAY_MAP_READ_ONLY);
  cr_assert_eq(rename(test_file("b", 5000, 2), path), 0);
  quay_buffer *fresh = test_map(path, QUAY_MAP_READ_ONLY);
  cr_assert(test_buffer_is(old, 0, 1));
  cr_assert(test_buffer_is(fresh, 0, 2));
  quay_buffer_release(old);
  quay_buffer_release(fresh);
}

Test(map_file, an_unlinked_file_stays_readable_and_writable) {
  const char *path = test_file("a", 3 * MIB, 1);
  quay_buffer *buffer = test_map(path, QUAY_MAP_SHARED);
  cr_assert_eq(unlink(path), 0);
  cr_assert(test_buffer_is(buffer, 0, 1));
  const uint8_t value = 77;
  TEST_OK(quay_buffer_fill(buffer, &value, 1));
  cr_assert_eq(((const uint8_t *)bytes_of(buffer))[3 * MIB - 1], 77);
  quay_buffer_release(buffer);
}

typedef struct racer {
  const char *path;
  atomic_int *ready;
  bool same;
} racer;

static void *race_mapping(void *user) {
  racer *self = user;
  atomic_fetch_add(self->ready, 1);
  while (atomic_load(self->ready) < 4) {
  }
  self->same = true;
  for (int i = 0; i < 200; ++i) {
    quay_buffer *buffer = NULL;
    const void *bytes = NULL;
    if (quay_map_file(self->path, NULL, &buffer) != QUAY_OK ||
        quay_buffer_host_bytes(buffer, &bytes, NULL) != QUAY_OK ||
        !test_matches(bytes, 5000, 0, 4)) {
      self->same = false;
    }
    quay_buffer_release(buffer);
  }
  return NULL;
}

Test(map_file, racing_threads_map_and_release_one_file) {
  atomic_int ready = 0;
  racer racers[4];
  pthread_t threads[4];
  const char *path = test_file("a", 5000, 4);
  for (int i = 0; i < 4; ++i) {
    racers[i] = (racer){.path = path, .ready = &ready};
    cr_assert_eq(pthread_create(&threads[i], NULL, race_mapping, &racers[i]), 0);
  }
  for (int i = 0; i < 4; ++i) {
    pthread_join(threads[i], NULL);
    cr_assert(racers[i].same);
  }
}

Test(map_file, works_in_a_child_after_fork) {
  const char *path = test_file("a", 5 * MIB, 4);
  quay_buffer *buffer = test_map(path, QUAY_MAP_READ_ONLY);
  const pid_t child = fork();
  if (child == 0) {
    quay_buffer *again = NULL;
    const bool same = test_buffer_is(buffer, 0, 4) &&
                      quay_map_file(path, NULL, &again) == QUAY_OK && test_buffer_is(again, 0, 4);
    quay_buffer_release(again);
    _exit(same ? 0 : 1);
  }
  int status = 1;
  cr_assert_eq(waitpid(child, &status, 0), child);
  cr_assert_eq(status, 0);
  quay_buffer_release(buffer);
}

Test(map_file, shutdown_is_busy_while_a_mapping_lives_and_works_afterwards) {
  const char *path = test_file("a", 5000, 4);
  quay_buffer *buffer = test_map(path, QUAY_MAP_READ_ONLY);
  test_expect_error(quay_shutdown(), QUAY_STATUS_BUSY, "", "");
  quay_buffer_release(buffer);
  TEST_OK(quay_shutdown());
  buffer = test_map(path, QUAY_MAP_READ_ONLY);
  cr_assert(test_buffer_is(buffer, 0, 4));
  quay_buffer_release(buffer);
}

Test(map_file, windows_are_counted_by_the_file_allocator) {
  const char *path = test_file("a", 10000, 1);
  quay_buffer *one = test_map(path, QUAY_MAP_READ_ONLY);
  quay_allocator *allocator = quay_allocator_retain(quay_buffer_allocator(one));
  quay_buffer *two = test_map_window(path, QUAY_MAP_READ_ONLY, 100, 500);
  quay_stats stats;
  TEST_OK(quay_allocator_stats(allocator, &stats));
  cr_assert_eq(stats.live_bytes, 10500);
  cr_assert_eq(stats.live_count, 2);
  cr_assert_geq(stats.reserved_bytes, stats.live_bytes);
  quay_buffer_release(one);
  quay_buffer_release(two);
  TEST_OK(quay_allocator_stats(allocator, &stats));
  cr_assert_eq(stats.live_bytes, 0);
  cr_assert_eq(stats.live_count, 0);
  cr_assert_eq(stats.reserved_bytes, 0);
  quay_allocator_release(allocator);
}

Test(map_file, the_file_allocator_refuses_to_allocate) {
  quay_buffer *buffer = test_map(test_file("a", 100, 1), QUAY_MAP_READ_ONLY);
  quay_raw_buffer raw;
  test_expect_error(quay_allocator_alloc(quay_buffer_allocator(buffer), 100, NULL, &raw),
                    QUAY_STATUS_UNSUPPORTED, "", "mmap:/scratch");
  quay_buffer_release(buffer);
}

/* Advice and flush. */

Test(map_file, advice_never_changes_contents) {
  const char *path = test_file("a", 3 * MIB + 77, 1);
  for (int mode = 0; mode < 3; ++mode) {
    quay_buffer *buffer = test_map_window(path, (quay_map_mode)mode, 314, 0);
    if (mode != QUAY_MAP_READ_ONLY)
      write_through_pointer(buffer, 6);
    for (int advice = QUAY_ADVICE_NORMAL; advice <= QUAY_ADVICE_HUGE_PAGES; ++advice)
      TEST_OK(quay_buffer_advise(buffer, (quay_advice)advice));
    TEST_OK(quay_buffer_prefetch(buffer));
    cr_assert(mode == QUAY_MAP_READ_ONLY ? test_buffer_is(buffer, 314, 1)
                                         : test_buffer_is(buffer, 0, 6));
    quay_buffer_release(buffer);
  }
}

Test(map_file, prefetch_brings_pages_into_the_cache) {
  quay_buffer *buffer = test_map(uncached_file(MIB, 3), QUAY_MAP_READ_ONLY);
  TEST_OK(quay_buffer_prefetch(buffer));
  for (int i = 0; i < 500 && resident_pages(bytes_of(buffer), MIB) < 200; ++i)
    usleep(10000);
  cr_assert_geq(resident_pages(bytes_of(buffer), MIB), 200);
  quay_buffer_release(buffer);
}

Test(map_file, dont_need_leaves_pages_in_the_cache) {
  quay_buffer *buffer = test_map(uncached_file(MIB, 3), QUAY_MAP_READ_ONLY);
  cr_assert(test_matches(bytes_of(buffer), MIB, 0, 3));
  cr_assert_eq(resident_pages(bytes_of(buffer), MIB), 256);
  TEST_OK(quay_buffer_advise(buffer, QUAY_ADVICE_DONT_NEED));
  cr_assert_eq(resident_pages(bytes_of(buffer), MIB), 256);
  quay_buffer_release(buffer);
}

Test(map_file, advice_and_flush_check_their_arguments) {
  quay_buffer *buffer = test_map(test_file("a", 100, 1), QUAY_MAP_READ_ONLY);
  test_expect_error(quay_buffer_advise(NULL, QUAY_ADVICE_NORMAL), QUAY_STATUS_INVALID_ARGUMENT, "",
                    "buffer");
  test_expect_error(quay_buffer_advise(buffer, (quay_advice)6), QUAY_STATUS_INVALID_ARGUMENT, "",
                    "6");
  test_expect_error(quay_buffer_flush(NULL), QUAY_STATUS_INVALID_ARGUMENT, "", "buffer");
  test_expect_error(quay_buffer_prefetch(NULL), QUAY_STATUS_INVALID_ARGUMENT, "",
                    "quay_buffer_prefetch: buffer");
  quay_buffer_release(buffer);
}

Test(map_file, advice_and_flush_on_a_lazy_buffer_say_that_it_is_not_allocated) {
  quay_buffer *buffer = NULL;
  TEST_OK(quay_buffer_create_lazy(NULL, QUAY_U8, 1, (int64_t[]){100}, NULL, &buffer));
  test_expect_error(quay_buffer_advise(buffer, QUAY_ADVICE_NORMAL), QUAY_STATUS_NOT_ALLOCATED, "",
                    "");
  test_expect_error(quay_buffer_flush(buffer), QUAY_STATUS_NOT_ALLOCATED, "", "");
  quay_buffer_release(buffer);
}

Test(map_file, flush_works_on_windows_of_every_mode_and_on_empty_ones) {
  const char *path = test_file("a", 10000, 1);
  for (int mode = 0; mode < 3; ++mode) {
    quay_buffer *buffer = test_map_window(path, (quay_map_mode)mode, 991, 5000);
    quay_buffer *empty = test_map_window(path, (quay_map_mode)mode, 10000, 0);
    TEST_OK(quay_buffer_flush(buffer));
    TEST_OK(quay_buffer_flush(empty));
    quay_buffer_release(buffer);
    quay_buffer_release(empty);
  }
}

/* Adopted mappings. */

typedef struct released {
  int calls;
  void *memory;
  uint64_t size;
} released;

static void note_release(void *user, void *memory, uint64_t size) {
  released *seen = user;
  ++seen->calls;
  seen->memory = memory;
  seen->size = size;
}

static unsigned char *map_by_hand(const char *path, uint64_t size, int protection, int flags) {
  const int file = open(path, O_RDWR);
  unsigned char *address = mmap(NULL, size, protection, flags, file, 0);
  cr_assert_neq(address, MAP_FAILED);
  close(file);
  return address;
}

Test(map_file, adopts_a_mapping_at_any_address_and_calls_its_release_once) {
  const char *path = test_file("a", 10000, 1);
  unsigned char *address = map_by_hand(path, 10000, PROT_READ | PROT_WRITE, MAP_SHARED);
  const int file = open(path, O_RDWR);
  released seen = {0};
  quay_raw_buffer raw;
  TEST_OK(
      quay_mmap_adopt(address + 991, 5000, QUAY_MAP_SHARED, file, 991, note_release, &seen, &raw));
  close(file);
  quay_buffer *buffer = NULL;
  TEST_OK(quay_buffer_from_raw(&raw, QUAY_U8, 1, (int64_t[]){5000}, &buffer));
  cr_assert(test_buffer_is(buffer, 991, 1));
  cr_assert_eq(bytes_of(buffer), address + 991);
  cr_assert_eq(seen.calls, 0);
  quay_buffer_release(buffer);
  cr_assert_eq(seen.calls, 1);
  cr_assert_eq(seen.memory, address + 991);
  cr_assert_eq(seen.size, 5000);
  munmap(address, 10000);
}

Test(map_file, an_adopted_read_only_mapping_is_sealed) {
  const char *path = test_file("a", 10000, 1);
  unsigned char *address = map_by_hand(path, 10000, PROT_READ, MAP_SHARED);
  quay_raw_buffer raw;
  TEST_OK(quay_mmap_adopt(address, 10000, QUAY_MAP_READ_ONLY, -1, 0, NULL, NULL, &raw));
  quay_buffer *buffer = NULL;
  TEST_OK(quay_buffer_from_raw(&raw, QUAY_U8, 1, (int64_t[]){10000}, &buffer));
  cr_assert(quay_buffer_is_sealed(buffer));
  cr_assert(test_buffer_is(buffer, 0, 1));
  quay_buffer_release(buffer);
  munmap(address, 10000);
}

Test(map_file, adopting_does_not_count_and_leaks_no_descriptor) {
  const char *path = test_file("a", 10000, 1);
  quay_buffer *mapped = test_map(path, QUAY_MAP_READ_ONLY);
  unsigned char *address = map_by_hand(path, 10000, PROT_READ | PROT_WRITE, MAP_PRIVATE);
  const int file = open(path, O_RDONLY);
  const int before = test_descriptor_count();
  quay_raw_buffer raw;
  quay_stats stats;
  TEST_OK(quay_mmap_adopt(address, 10000, QUAY_MAP_COPY_ON_WRITE, file, 0, NULL, NULL, &raw));
  TEST_OK(quay_allocator_stats(quay_buffer_allocator(mapped), &stats));
  cr_assert_eq(stats.live_count, 1);
  quay_raw_buffer_free(&raw);
  cr_assert_eq(test_descriptor_count(), before);
  close(file);
  munmap(address, 10000);
  quay_buffer_release(mapped);
}

Test(map_file, adopting_refuses_bad_arguments_and_descriptors) {
  const char *path = test_file("a", 10000, 1);
  unsigned char *address = map_by_hand(path, 10000, PROT_READ | PROT_WRITE, MAP_SHARED);
  const int readable = open(path, O_RDONLY);
  const int writable = open(path, O_WRONLY);
  const int folder = open(test_directory(), O_RDONLY);
  released seen = {0};
  quay_raw_buffer raw;
#define ADOPT(address, size, mode, file, offset) \
  quay_mmap_adopt((address), (size), (mode), (file), (offset), note_release, &seen, &raw)
  test_expect_error(ADOPT(NULL, 1, QUAY_MAP_SHARED, -1, 0), QUAY_STATUS_INVALID_ARGUMENT, "",
                    "address");
  test_expect_error(ADOPT(address, UINT64_MAX, QUAY_MAP_SHARED, -1, 0),
                    QUAY_STATUS_INVALID_ARGUMENT, "", "wraps");
  test_expect_error(ADOPT(address, 1, (quay_map_mode)9, -1, 0), QUAY_STATUS_INVALID_ARGUMENT, "",
                    "mode");
  test_expect_error(ADOPT(address, 1, QUAY_MAP_SHARED, -2, 0), QUAY_STATUS_INVALID_ARGUMENT, "",
                    "file");
  test_expect_error(ADOPT(address, 10, QUAY_MAP_SHARED, writable + 500, 0), QUAY_STATUS_IO, "EBADF",
                    "descriptor");
  test_expect_error(ADOPT(address, 10, QUAY_MAP_SHARED, readable, 0), QUAY_STATUS_IO, "EBADF",
                    "writing");
  test_expect_error(ADOPT(address, 10, QUAY_MAP_READ_ONLY, writable, 0), QUAY_STATUS_IO, "EBADF",
                    "reading");
  test_expect_error(ADOPT(address, 10, QUAY_MAP_READ_ONLY, folder, 0), QUAY_STATUS_IO, "EISDIR",
                    "descriptor");
  test_expect_error(ADOPT(address, 10000, QUAY_MAP_READ_ONLY, readable, 1),
                    QUAY_STATUS_INVALID_ARGUMENT, "", "10000");
  test_expect_error(ADOPT(address, 10, QUAY_MAP_READ_ONLY, readable, UINT64_MAX),
                    QUAY_STATUS_INVALID_ARGUMENT, "", "large");
#undef ADOPT
  cr_assert_eq(seen.calls, 0);
  close(readable);
  close(writable);
  close(folder);
  munmap(address, 10000);
}

Test(map_file, raw_info_tells_what_a_window_is) {
  quay_buffer *buffer = test_map_window(test_file("a", 10000, 1), QUAY_MAP_SHARED, 991, 5000);
  const quay_raw_buffer *raw = NULL;
  quay_mmap_info info;
  uint8_t byte = 0;
  TEST_OK(quay_buffer_raw(buffer, &raw));
  TEST_OK(quay_mmap_raw_info(raw, &info));
  cr_assert_eq(info.address, bytes_of(buffer));
  cr_assert_eq(info.size, 5000);
  cr_assert_eq(info.mode, QUAY_MAP_SHARED);
  cr_assert_eq(info.file_offset, 991);
  cr_assert_eq(pread(info.file, &byte, 1, 991), 1);
  cr_assert_eq(byte, test_byte(991, 1));
  quay_buffer_release(buffer);
}

Test(map_file, raw_info_refuses_other_memory) {
  quay_buffer *buffer = test_buffer(NULL, 100, 1);
  const quay_raw_buffer *raw = NULL;
  quay_mmap_info info;
  TEST_OK(quay_buffer_raw(buffer, &raw));
  test_expect_error(quay_mmap_raw_info(raw, &info), QUAY_STATUS_UNSUPPORTED, "", "mapped");
  test_expect_error(quay_mmap_raw_info(NULL, &info), QUAY_STATUS_INVALID_ARGUMENT, "", "raw");
  test_expect_error(quay_mmap_raw_info(raw, NULL), QUAY_STATUS_INVALID_ARGUMENT, "", "out_info");
  quay_buffer_release(buffer);
}
