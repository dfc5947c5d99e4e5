/* The mmap backend on systems that refuse, fall short or fail: the linker sends calls of core/os.h
 * through the functions here (--wrap, see CMakeLists.txt). */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/os.h"
#include "support/files.h"
#include "support/skip.h"

#define MIB (UINT64_C(1) << 20)

/* What the next calls do; all zero: what the system does. */
static struct {
  atomic_int own_memory_error; /* errno of both calls on the process's own memory */
  atomic_int own_limit;        /* that for writing moves at most so many bytes */
  atomic_int own_writes;       /* how often it was called */
  atomic_int populate_error;   /* errno of madvise() with advice to populate */
  atomic_int read_limit;       /* pread() moves at most so many bytes */
  atomic_int read_error;
  atomic_int memory_total;  /* MiB that the machine claims to have; 0: what it has */
  atomic_int cached_error;  /* of pread_cached() */
  atomic_int cached_after;  /* cached_error only after so many calls */
  atomic_int cached_always; /* pread_cached() is pread() */
  atomic_int leases;        /* they can be had; else the file is open for writing somewhere */
  atomic_int populated;     /* calls of madvise() to populate */
  atomic_int writes;        /* calls of pwrite() */
  atomic_int write_limit;
  atomic_int write_error;
  atomic_int write_after; /* write_error only after so many writes */
  atomic_int reserve_error;
  atomic_int open_refuses; /* flags that open() refuses, with open_error */
  atomic_int open_error;
  atomic_int map_error;
  atomic_int unmap_error;
  atomic_int sync_error;
  atomic_int rename_error;
  atomic_int dup_error;
  atomic_int stat_error; /* of fstat() */
  atomic_int malloc_fails;
  atomic_int alignment; /* that direct I/O claims to need; -1: none is possible */
  atomic_int synchronised;
  atomic_int fail_at; /* which of the calls that can be refused fails with ENOMEM; 0: none */
  atomic_int calls;
} fake;

static bool is_nth(void) {
  const int fail_at = atomic_load(&fake.fail_at);
  if (fail_at == 0 || atomic_fetch_add(&fake.calls, 1) + 1 != fail_at)
    return false;
  errno = ENOMEM;
  return true;
}

static bool refuse(atomic_int *error) {
  if (error != &fake.unmap_error && is_nth())
    return true;
  const int number = atomic_load(error);
  if (number != 0)
    errno = number;
  return number != 0;
}

#define WRAP(type, name, parameters)      \
  type __real_quay__os_##name parameters; \
  type __wrap_quay__os_##name parameters; \
  type __wrap_quay__os_##name parameters

WRAP(ssize_t, read_own_memory, (void *destination, const void *source, size_t size)) {
  if (refuse(&fake.own_memory_error))
    return -1;
  return __real_quay__os_read_own_memory(destination, source, size);
}

WRAP(ssize_t, write_own_memory, (void *destination, const void *source, size_t size)) {
  const size_t limit = (size_t)atomic_load(&fake.own_limit);
  atomic_fetch_add(&fake.own_writes, 1);
  if (refuse(&fake.own_memory_error))
    return -1;
  return __real_quay__os_write_own_memory(destination, source,
                                          limit != 0 && limit < size ? limit : size);
}

WRAP(int, madvise, (void *address, size_t size, int advice)) {
  if ((advice == MADV_POPULATE_READ || advice == MADV_POPULATE_WRITE) &&
      refuse(&fake.populate_error))
    return -1;
  if (advice == MADV_POPULATE_READ)
    atomic_fetch_add(&fake.populated, 1);
  return __real_quay__os_madvise(address, size, advice);
}

WRAP(ssize_t, pread, (int file, void *buffer, size_t size, uint64_t offset)) {
  const size_t limit = (size_t)atomic_load(&fake.read_limit);
  if (refuse(&fake.read_error))
    return -1;
  return __real_quay__os_pread(file, buffer, limit != 0 && limit < size ? limit : size, offset);
}

WRAP(ssize_t, pread_cached, (int file, void *buffer, size_t size, uint64_t offset)) {
  if (atomic_fetch_sub(&fake.cached_after, 1) <= 0 && refuse(&fake.cached_error))
    return -1;
  if (atomic_load(&fake.cached_always) != 0)
    return __real_quay__os_pread(file, buffer, size, offset);
  return __real_quay__os_pread_cached(file, buffer, size, offset);
}

WRAP(int, lease, (int file, bool write)) {
  if (is_nth())
    return -1;
  if (atomic_load(&fake.leases) != 0)
    return __real_quay__os_lease(file, write);
  errno = EAGAIN;
  return -1;
}

WRAP(int, memory_info, (uint64_t * out_total, uint64_t *out_available)) {
  const int total = atomic_load(&fake.memory_total);
  if (total == 0)
    return __real_quay__os_memory_info(out_total, out_available);
  *out_total = *out_available = (uint64_t)total * MIB;
  return 0;
}

WRAP(ssize_t, pwrite, (int file, const void *buffer, size_t size, uint64_t offset)) {
  const size_t limit = (size_t)atomic_load(&fake.write_limit);
  atomic_fetch_add(&fake.writes, 1);
  if (atomic_fetch_sub(&fake.write_after, 1) <= 0 && refuse(&fake.write_error))
    return -1;
  return __real_quay__os_pwrite(file, buffer, limit != 0 && limit < size ? limit : size, offset);
}

WRAP(int, fallocate, (int file, uint64_t offset, uint64_t size)) {
  if (refuse(&fake.reserve_error))
    return errno;
  return __real_quay__os_fallocate(file, offset, size);
}

WRAP(int, open, (const char *path, int flags, mode_t mode)) {
  const int refused = atomic_load(&fake.open_refuses);
  if (refused != 0 && (flags & refused) == refused && refuse(&fake.open_error))
    return -1;
  return __real_quay__os_open(path, flags, mode);
}

WRAP(void *, mmap,
     (void *address, size_t size, int protection, int flags, int file, uint64_t offset)) {
  if (file >= 0 && refuse(&fake.map_error))
    return MAP_FAILED;
  return __real_quay__os_mmap(address, size, protection, flags, file, offset);
}

WRAP(int, munmap, (void *address, size_t size)) {
  if (refuse(&fake.unmap_error))
    return -1;
  return __real_quay__os_munmap(address, size);
}

WRAP(int, msync, (void *address, size_t size, int flags)) {
  if (refuse(&fake.sync_error))
    return -1;
  atomic_fetch_add(&fake.synchronised, 1);
  return __real_quay__os_msync(address, size, flags);
}

WRAP(int, fsync, (int file)) {
  if (refuse(&fake.sync_error))
    return -1;
  atomic_fetch_add(&fake.synchronised, 1);
  return __real_quay__os_fsync(file);
}

WRAP(int, rename_at, (int directory, const char *from, const char *to)) {
  if (refuse(&fake.rename_error))
    return -1;
  return __real_quay__os_rename_at(directory, from, to);
}

WRAP(int, dup, (int file)) {
  if (refuse(&fake.dup_error))
    return -1;
  return __real_quay__os_dup(file);
}

WRAP(int, fstat, (int file, struct stat *out_status)) {
  if (refuse(&fake.stat_error))
    return -1;
  return __real_quay__os_fstat(file, out_status);
}

static bool refuse_memory(void) {
  return is_nth() || atomic_load(&fake.malloc_fails) != 0;
}

WRAP(void *, malloc, (size_t size)) {
  return refuse_memory() ? NULL : __real_quay__os_malloc(size);
}

WRAP(void *, calloc, (size_t count, size_t size)) {
  return refuse_memory() ? NULL : __real_quay__os_calloc(count, size);
}

WRAP(void *, aligned_alloc, (size_t alignment, size_t size)) {
  if (refuse_memory())
    return NULL;
  return __real_quay__os_aligned_alloc(alignment, size);
}

WRAP(char *, strdup, (const char *text)) {
  return refuse_memory() ? NULL : __real_quay__os_strdup(text);
}

WRAP(char *, realpath, (const char *path)) {
  return refuse_memory() ? NULL : __real_quay__os_realpath(path);
}

WRAP(int, stat, (const char *path, struct stat *out_status)) {
  return is_nth() ? -1 : __real_quay__os_stat(path, out_status);
}

WRAP(int, direct_alignment, (int file, uint32_t *out_memory, uint32_t *out_offset)) {
  const int alignment = atomic_load(&fake.alignment);
  if (alignment == 0)
    return __real_quay__os_direct_alignment(file, out_memory, out_offset);
  *out_memory = *out_offset = alignment > 0 ? (uint32_t)alignment : 0;
  return 0;
}

TestSuite(mmap_system, .init = test_files_begin, .fini = test_files_end);

static quay_allocator *open_blocks(void) {
  char spec[4200];
  quay_allocator *allocator = NULL;
  snprintf(spec, sizeof spec, "mmap:%s", test_directory());
  TEST_OK(quay_allocator_open(spec, &allocator));
  return allocator;
}

static char last_log[1024];
static quay_log_level last_level;

static void note_log(void *user, quay_log_level level, const char *message) {
  (void)user;
  last_level = level;
  snprintf(last_log, sizeof last_log, "%s", message);
}

/* Private pages in a sandbox. */

static void check_private_copies(void) {
  const uint64_t size = 3 * MIB + 77;
  const char *path = test_file("a", size, 3);
  quay_buffer *buffer = test_map_window(path, QUAY_MAP_COPY_ON_WRITE, 991, 0);
  quay_buffer *other = test_map_window(path, QUAY_MAP_COPY_ON_WRITE, 991, 0);
  uint8_t *bytes = malloc(size);
  cr_assert(test_buffer_is(buffer, 991, 3));
  test_fill(bytes, size, 0, 6);
  TEST_OK(quay_buffer_copy_in(buffer, bytes, size - 991));
  cr_assert(test_buffer_is(buffer, 0, 6));
  TEST_OK(quay_buffer_copy_from(other, buffer));
  cr_assert(test_buffer_is(other, 0, 6));
  cr_assert(test_file_is(path, size, 3));
  free(bytes);
  quay_buffer_release(buffer);
  quay_buffer_release(other);
}

Test(mmap_system, private_copies_work_where_a_sandbox_refuses_with_enosys) {
  atomic_store(&fake.own_memory_error, ENOSYS);
  check_private_copies();
}

Test(mmap_system, private_copies_work_where_a_sandbox_refuses_with_eperm) {
  atomic_store(&fake.own_memory_error, EPERM);
  check_private_copies();
}

Test(mmap_system, private_copies_work_where_the_kernel_cannot_populate_either) {
  atomic_store(&fake.own_memory_error, ENOSYS);
  atomic_store(&fake.populate_error, EINVAL);
  check_private_copies();
}

static void check_private_truncation(void) {
  const uint64_t cuts[] = {0, 100, 4096};
  for (int i = 0; i < 3; ++i) {
    const char *path = test_file("cut", 3 * MIB, 3);
    quay_buffer *buffer = test_map(path, QUAY_MAP_COPY_ON_WRITE);
    uint8_t *bytes = calloc(1, 3 * MIB);
    test_truncate(path, cuts[i]);
    test_expect_error(quay_buffer_copy_out(buffer, bytes, 3 * MIB), QUAY_STATUS_IO, NULL,
                      "truncated");
    test_expect_error(quay_buffer_copy_in(buffer, bytes, 3 * MIB), QUAY_STATUS_IO, NULL,
                      "truncated");
    free(bytes);
    quay_buffer_release(buffer);
  }
}

Test(mmap_system, truncated_private_copies_in_a_sandbox_are_io_errors) {
  atomic_store(&fake.own_memory_error, EPERM);
  check_private_truncation();
}

Test(mmap_system, truncated_private_copies_where_nothing_can_be_populated_are_io_errors) {
  atomic_store(&fake.own_memory_error, EPERM);
  atomic_store(&fake.populate_error, EINVAL);
  check_private_truncation();
}

Test(mmap_system, other_errors_on_own_memory_are_reported) {
  quay_buffer *buffer = test_map(test_file("a", 5000, 3), QUAY_MAP_COPY_ON_WRITE);
  uint8_t bytes[5000];
  atomic_store(&fake.own_memory_error, ESRCH);
  test_expect_error(quay_buffer_copy_out(buffer, bytes, 5000), QUAY_STATUS_IO, "ESRCH",
                    test_path("a"));
  quay_buffer_release(buffer);
}

/* Short and failing transfers. */

Test(mmap_system, short_reads_are_continued) {
  quay_buffer *buffer = test_map(test_file("a", 300001, 3), QUAY_MAP_READ_ONLY);
  atomic_store(&fake.read_limit, 777);
  cr_assert(test_buffer_is(buffer, 0, 3));
  quay_buffer_release(buffer);
}

Test(mmap_system, short_reads_of_direct_io_are_continued) {
  const quay_map_options options = {.direct = true};
  quay_buffer *buffer = NULL;
  TEST_OK(quay_map_file(test_file("a", 3 * MIB + 7, 3), &options, &buffer));
  atomic_store(&fake.read_limit, 5000);
  cr_assert(test_buffer_is(buffer, 0, 3));
  atomic_store(&fake.read_limit, 8192);
  cr_assert(test_buffer_is(buffer, 0, 3));
  quay_buffer_release(buffer);
}

Test(mmap_system, short_writes_are_continued) {
  const char *path = test_file("a", 300001, 3);
  uint8_t *bytes = malloc(300001);
  quay_buffer *buffer = test_map(path, QUAY_MAP_SHARED);
  test_fill(bytes, 300001, 0, 4);
  atomic_store(&fake.write_limit, 777);
  TEST_OK(quay_buffer_copy_in(buffer, bytes, 300001));
  TEST_OK(quay_buffer_save(buffer, test_path("out"), NULL));
  cr_assert(test_file_is(path, 300001, 4));
  cr_assert(test_file_is(test_path("out"), 300001, 4));
  free(bytes);
  quay_buffer_release(buffer);
}

/* Writing by several threads. */

#define WRITTEN (9 * MIB + 12345)

/* Copies into a window of a shared mapping and checks file and neighbours. */
static void check_written(quay_buffer *file, const char *path) {
  unsigned char *bytes = malloc(WRITTEN);
  quay_buffer *view = NULL;
  test_fill(bytes, WRITTEN, 0, 8);
  TEST_OK(quay_buffer_view(file, 991, WRITTEN - 1991, &view));
  atomic_store(&fake.own_writes, 0);
  atomic_store(&fake.writes, 0);
  TEST_OK(quay_buffer_copy_in(view, bytes, WRITTEN - 1991));
  const int own_writes = atomic_load(&fake.own_writes), writes = atomic_load(&fake.writes);
  cr_assert(test_buffer_is(view, 0, 8));
  cr_assert_eq(test_file_size(path), WRITTEN);
  quay_buffer_release(view);
  TEST_OK(quay_buffer_copy_out(file, bytes, WRITTEN));
  cr_assert(test_matches(bytes + WRITTEN - 1000, 1000, WRITTEN - 1000, 3));
  cr_assert(test_matches(bytes, 991, 0, 3));
  free(bytes);
  atomic_store(&fake.own_writes, own_writes);
  atomic_store(&fake.writes, writes);
}

static void check_writing(const char *threads) {
  setenv("QUAY_COPY_THREADS", threads, 1);
  const char *path = test_file("a", WRITTEN, 3);
  quay_buffer *file = test_map(path, QUAY_MAP_SHARED);
  check_written(file, path);
  quay_buffer_release(file);
}

Test(mmap_system, several_threads_write_what_is_in_the_page_cache_without_pwrite) {
  check_writing("3");
  cr_assert_geq(atomic_load(&fake.own_writes), 3);
  cr_assert_eq(atomic_load(&fake.writes), 0);
}

Test(mmap_system, one_thread_writes_by_pwrite) {
  check_writing("1");
  cr_assert_eq(atomic_load(&fake.own_writes), 0);
}

Test(mmap_system, short_writes_of_several_threads_are_continued) {
  atomic_store(&fake.own_limit, 77777);
  check_writing("3");
  cr_assert_eq(atomic_load(&fake.writes), 0);
}

Test(mmap_system, several_threads_write_by_pwrite_where_a_sandbox_refuses) {
  static const int errors[] = {EPERM, ENOSYS, EFAULT};
  for (int i = 0; i < 3; i++) {
    atomic_store(&fake.own_memory_error, errors[i]);
    check_writing("3");
    cr_assert_gt(atomic_load(&fake.writes), 0);
  }
}

Test(mmap_system, what_is_not_in_the_page_cache_is_not_read_to_be_overwritten) {
  atomic_store(&fake.cached_error, EAGAIN);
  check_writing("3");
  cr_assert_eq(atomic_load(&fake.own_writes), 0);
}

Test(mmap_system, several_threads_write_blocks_that_were_never_written) {
  setenv("QUAY_COPY_THREADS", "3", 1);
  quay_buffer *file = NULL;
  unsigned char *bytes = malloc(WRITTEN);
  TEST_OK(quay_file_create(test_path("new"), WRITTEN, NULL, &file));
  test_fill(bytes, WRITTEN, 0, 5);
  atomic_store(&fake.cached_error, EAGAIN);
  TEST_OK(quay_buffer_copy_in(file, bytes, WRITTEN));
  if (atomic_load(&fake.own_writes) == 0)
    quay_test_skip("holes", "the file system can't tell what was never written");
  cr_assert(test_file_is(test_path("new"), WRITTEN, 5));
  free(bytes);
  quay_buffer_release(file);
}

Test(mmap_system, a_disk_that_is_full_behind_a_mapping_is_enospc) {
  setenv("QUAY_COPY_THREADS", "3", 1);
  const char *path = test_file("a", WRITTEN, 3);
  quay_buffer *file = test_map(path, QUAY_MAP_SHARED);
  unsigned char *bytes = calloc(1, WRITTEN);
  atomic_store(&fake.own_memory_error, EFAULT);
  atomic_store(&fake.write_error, ENOSPC);
  test_expect_error(quay_buffer_copy_in(file, bytes, WRITTEN), QUAY_STATUS_IO, "ENOSPC", path);
  free(bytes);
  quay_buffer_release(file);
}

/* The plan says as many threads as will write. */
Test(mmap_system, a_plan_tells_how_many_threads_will_write_a_file) {
  quay_buffer *file = test_map(test_file("a", WRITTEN, 3), QUAY_MAP_SHARED);
  quay_buffer *memory = NULL;
  quay_copy_plan_info plan;
  TEST_OK(quay_buffer_create(NULL, QUAY_U8, 1, (int64_t[]){WRITTEN}, NULL, &memory));
  setenv("QUAY_COPY_THREADS", "3", 1);
  TEST_OK(quay_copy_plan(file, 0, memory, 0, WRITTEN, NULL, &plan));
  cr_assert_eq(plan.threads, 3);
  setenv("QUAY_COPY_THREADS", "1", 1);
  TEST_OK(quay_copy_plan(file, 0, memory, 0, WRITTEN, NULL, &plan));
  cr_assert_eq(plan.threads, 1);
  quay_buffer_release(memory);
  quay_buffer_release(file);
}

Test(mmap_system, a_failing_disk_is_eio_with_the_path) {
  const char *path = test_file("a", 5 * MIB, 3);
  uint8_t *bytes = calloc(1, 5 * MIB);
  quay_buffer *buffer = test_map(path, QUAY_MAP_SHARED);
  atomic_store(&fake.read_error, EIO);
  atomic_store(&fake.write_error, EIO);
  atomic_store(&fake.own_memory_error, EFAULT); /* what a fault that fails comes to */
  test_expect_error(quay_buffer_copy_out(buffer, bytes, 5 * MIB), QUAY_STATUS_IO, "EIO", path);
  test_expect_error(quay_buffer_copy_in(buffer, bytes, 5 * MIB), QUAY_STATUS_IO, "EIO", path);
  test_expect_error(quay_buffer_fill(buffer, bytes, 1), QUAY_STATUS_IO, "EIO", path);
  free(bytes);
  quay_buffer_release(buffer);
}

Test(mmap_system, a_failing_fstat_is_an_error_of_copies_and_of_mapping) {
  const char *path = test_file("a", 5000, 3);
  uint8_t bytes[5000];
  quay_buffer *buffer = test_map(path, QUAY_MAP_READ_ONLY);
  quay_buffer *none = NULL;
  const int before = test_descriptor_count();
  atomic_store(&fake.stat_error, EIO);
  test_expect_error(quay_buffer_copy_out(buffer, bytes, 5000), QUAY_STATUS_IO, "EIO", path);
  test_expect_error(quay_map_file(path, NULL, &none), QUAY_STATUS_IO, "EIO", path);
  atomic_store(&fake.stat_error, 0);
  cr_assert_eq(test_descriptor_count(), before);
  quay_buffer_release(buffer);
}

/* Direct I/O. */

static quay_buffer *map_direct(const char *path) {
  const quay_map_options options = {.direct = true};
  quay_buffer *buffer = NULL;
  TEST_OK(quay_map_file(path, &options, &buffer));
  return buffer;
}

Test(mmap_system, direct_io_that_the_file_system_refuses_is_logged_and_replaced) {
  const char *path = test_file("a", 3 * MIB, 3);
  quay_log_set(note_log, NULL, QUAY_LOG_INFO);
  atomic_store(&fake.open_refuses, O_DIRECT);
  atomic_store(&fake.open_error, EINVAL);
  quay_buffer *buffer = map_direct(path);
  cr_assert_eq(last_level, QUAY_LOG_INFO);
  cr_assert_not_null(strstr(last_log, "EINVAL"), "\"%s\"", last_log);
  cr_assert_not_null(strstr(last_log, path));
  cr_assert_eq(quay_last_error()->status, QUAY_OK);
  cr_assert(test_buffer_is(buffer, 0, 3));
  quay_buffer_release(buffer);
}

Test(mmap_system, direct_io_that_a_file_cannot_have_is_logged_and_replaced) {
  quay_log_set(note_log, NULL, QUAY_LOG_INFO);
  atomic_store(&fake.alignment, -1);
  quay_buffer *buffer = map_direct(test_file("a", 3 * MIB, 3));
  cr_assert_not_null(strstr(last_log, "no direct I/O"), "\"%s\"", last_log);
  cr_assert(test_buffer_is(buffer, 0, 3));
  quay_buffer_release(buffer);
}

Test(mmap_system, direct_io_of_large_alignments_reads_the_same_bytes) {
  atomic_store(&fake.alignment, 65536);
  quay_buffer *buffer = map_direct(test_file("a", 3 * MIB + 77, 3));
  quay_buffer *view = NULL;
  TEST_OK(quay_buffer_view(buffer, 4097, 2 * MIB + 3, &view));
  cr_assert(test_buffer_is(buffer, 0, 3));
  cr_assert(test_buffer_is(view, 4097, 3));
  quay_buffer_release(view);
  quay_buffer_release(buffer);
}

Test(mmap_system, direct_io_without_memory_to_bounce_goes_through_the_page_cache) {
  atomic_store(&fake.alignment, 65536);
  quay_buffer *buffer = map_direct(test_file("a", MIB, 3));
  uint8_t *bytes = malloc(MIB + 1);
  atomic_store(&fake.malloc_fails, 1);
  const quay_status status = quay_buffer_copy_out(buffer, bytes + 1, MIB);
  atomic_store(&fake.malloc_fails, 0);
  TEST_OK(status);
  cr_assert(test_matches(bytes + 1, MIB, 0, 3));
  free(bytes);
  quay_buffer_release(buffer);
}

/* Blocks. */

Test(mmap_system, blocks_without_fallocate_are_written_with_zeros) {
  quay_allocator *allocator = open_blocks();
  const uint64_t sizes[] = {1, 4097, 3 * MIB + 77};
  atomic_store(&fake.reserve_error, EOPNOTSUPP);
  for (int i = 0; i < 3; ++i) {
    quay_raw_buffer raw;
    quay_mmap_info info;
    void *bytes = NULL;
    TEST_OK(quay_allocator_alloc(allocator, sizes[i], NULL, &raw));
    TEST_OK(quay_raw_buffer_host_pointer(&raw, &bytes));
    TEST_OK(quay_mmap_raw_info(&raw, &info));
    for (uint64_t j = 0; j < sizes[i]; ++j)
      cr_assert_eq(((uint8_t *)bytes)[j], 0);
    struct stat status;
    if (info.file >= 0 && fstat(info.file, &status) == 0)
      cr_assert_geq((uint64_t)status.st_blocks * 512, sizes[i]);
    quay_raw_buffer_free(&raw);
  }
  quay_allocator_release(allocator);
}

Test(mmap_system, a_disk_that_fills_up_while_zeros_are_written_is_enospc) {
  quay_allocator *allocator = open_blocks();
  quay_raw_buffer raw;
  quay_buffer *buffer = NULL;
  atomic_store(&fake.reserve_error, EOPNOTSUPP);
  atomic_store(&fake.write_error, ENOSPC);
  atomic_store(&fake.write_after, 2);
  test_expect_error(quay_allocator_alloc(allocator, 5 * MIB, NULL, &raw), QUAY_STATUS_IO, "ENOSPC",
                    test_directory());
  atomic_store(&fake.write_after, 2);
  test_expect_error(quay_file_create(test_path("new"), 5 * MIB, NULL, &buffer), QUAY_STATUS_IO,
                    "ENOSPC", test_path("new"));
  cr_assert_eq(test_directory_count(test_directory()), 0);
  quay_allocator_release(allocator);
}

Test(mmap_system, blocks_work_where_unnamed_files_are_unknown) {
  const int errors[] = {EOPNOTSUPP, EISDIR, EINVAL};
  quay_allocator *allocator = open_blocks();
  atomic_store(&fake.open_refuses, O_TMPFILE);
  for (int i = 0; i < 3; ++i) {
    atomic_store(&fake.open_error, errors[i]);
    quay_buffer *buffer = test_buffer(allocator, 2 * MIB, 3);
    cr_assert(test_buffer_is(buffer, 0, 3));
    cr_assert_eq(test_directory_count(test_directory()), 0);
    quay_buffer_release(buffer);
  }
  quay_allocator_release(allocator);
}

static void expect_alloc_fails(quay_allocator *allocator, quay_status status, const char *native) {
  const uint64_t sizes[] = {100, 2 * MIB};
  const uint64_t alignments[] = {0, 1 << 21};
  const int before = test_descriptor_count();
  for (int i = 0; i < 4; ++i) {
    const quay_alloc_options options = {.alignment = alignments[i / 2]};
    quay_raw_buffer raw;
    test_expect_error(quay_allocator_alloc(allocator, sizes[i % 2], &options, &raw), status, native,
                      test_directory());
    cr_assert_eq(raw.arm, (uint32_t)QUAY_RAW_NONE);
  }
  cr_assert_eq(test_descriptor_count(), before);
}

Test(mmap_system, blocks_that_cannot_be_mapped_leave_nothing_behind) {
  quay_allocator *allocator = open_blocks();
  atomic_store(&fake.map_error, ENOMEM);
  expect_alloc_fails(allocator, QUAY_STATUS_OUT_OF_HOST_MEMORY, "ENOMEM");
  atomic_store(&fake.map_error, ENODEV);
  expect_alloc_fails(allocator, QUAY_STATUS_IO, "ENODEV");
  quay_allocator_release(allocator);
}

Test(mmap_system, blocks_without_a_descriptor_to_be_had_leave_nothing_behind) {
  quay_allocator *allocator = open_blocks();
  atomic_store(&fake.open_refuses, O_RDWR);
  atomic_store(&fake.open_error, EMFILE);
  expect_alloc_fails(allocator, QUAY_STATUS_IO, "EMFILE");
  quay_allocator_release(allocator);
}

Test(mmap_system, a_failing_munmap_is_logged_and_counted_and_keeps_the_error) {
  quay_allocator *allocator = open_blocks();
  quay_raw_buffer raw;
  quay_stats stats;
  TEST_OK(quay_allocator_alloc(allocator, 5000, NULL, &raw));
  cr_assert_neq(quay_allocator_alloc(allocator, UINT64_MAX, NULL, &(quay_raw_buffer){0}), QUAY_OK);
  quay_log_set(note_log, NULL, QUAY_LOG_ERROR);
  atomic_store(&fake.unmap_error, EINVAL);
  quay_raw_buffer_free(&raw);
  atomic_store(&fake.unmap_error, 0);
  cr_assert_not_null(strstr(last_log, "EINVAL"), "\"%s\"", last_log);
  cr_assert_eq(quay_last_error()->status, QUAY_STATUS_INVALID_ARGUMENT);
  TEST_OK(quay_allocator_stats(allocator, &stats));
  cr_assert_eq(stats.error_count, 1);
  quay_allocator_release(allocator);
}

/* Mapping and creating. */

Test(mmap_system, a_mapping_that_the_system_refuses_leaves_nothing_behind) {
  const char *path = test_file("a", 5000, 3);
  const int before = test_descriptor_count();
  for (int mode = 0; mode < 3; ++mode) {
    const quay_map_options options = {.mode = (quay_map_mode)mode};
    quay_buffer *buffer = NULL;
    atomic_store(&fake.map_error, ENOMEM);
    test_expect_error(quay_map_file(path, &options, &buffer), QUAY_STATUS_OUT_OF_HOST_MEMORY,
                      "ENOMEM", path);
    atomic_store(&fake.map_error, ENODEV);
    test_expect_error(quay_map_file(path, &options, &buffer), QUAY_STATUS_IO, "ENODEV", path);
    cr_assert_eq(test_descriptor_count(), before);
    atomic_store(&fake.map_error, 0);
    TEST_OK(quay_map_file(path, &options, &buffer));
    cr_assert(test_buffer_is(buffer, 0, 3));
    quay_buffer_release(buffer);
  }
}

Test(mmap_system, a_file_that_cannot_be_mapped_is_not_created) {
  const quay_file_options replace = {.replace = true};
  const char *old = test_file("old", 3000, 5);
  quay_buffer *buffer = NULL;
  atomic_store(&fake.map_error, ENODEV);
  test_expect_error(quay_file_create(test_path("new"), 100, NULL, &buffer), QUAY_STATUS_IO,
                    "ENODEV", test_path("new"));
  test_expect_error(quay_file_create(old, 100, &replace, &buffer), QUAY_STATUS_IO, "ENODEV", old);
  cr_assert(test_file_is(old, 3000, 5));
  cr_assert_eq(test_directory_count(test_directory()), 1);
}

Test(mmap_system, a_replacement_that_cannot_be_renamed_leaves_the_old_file) {
  const quay_file_options replace = {.replace = true};
  const char *old = test_file("old", 3000, 5);
  quay_buffer *buffer = NULL;
  atomic_store(&fake.rename_error, EXDEV);
  test_expect_error(quay_file_create(old, 100, &replace, &buffer), QUAY_STATUS_IO, "EXDEV", old);
  cr_assert_null(buffer);
  atomic_store(&fake.rename_error, 0);
  atomic_store(&fake.dup_error, EMFILE);
  test_expect_error(quay_file_create(old, 100, &replace, &buffer), QUAY_STATUS_IO, "EMFILE", old);
  cr_assert(test_file_is(old, 3000, 5));
  cr_assert_eq(test_directory_count(test_directory()), 1);
}

/* Saving and flushing. */

static void expect_save_fails(atomic_int *error, int number, const char *native) {
  const char *path = test_file("old", 3000, 5);
  quay_buffer *buffer = test_buffer(NULL, 5 * MIB, 3);
  const int before = test_descriptor_count();
  atomic_store(error, number);
  test_expect_error(quay_buffer_save(buffer, path, NULL), QUAY_STATUS_IO, native, path);
  atomic_store(error, 0);
  cr_assert(test_file_is(path, 3000, 5));
  cr_assert_eq(test_directory_count(test_directory()), 1);
  cr_assert_eq(test_descriptor_count(), before);
  quay_buffer_release(buffer);
}

Test(mmap_system, a_save_that_cannot_reserve_leaves_the_old_file) {
  expect_save_fails(&fake.reserve_error, ENOSPC, "ENOSPC");
}

Test(mmap_system, opening_on_a_full_directory_says_that_the_directory_was_probed) {
  char spec[4200];
  quay_allocator *allocator = NULL;
  snprintf(spec, sizeof spec, "mmap:%s", test_directory());
  atomic_store(&fake.reserve_error, ENOSPC);
  test_expect_error(quay_allocator_open(spec, &allocator), QUAY_STATUS_IO, "ENOSPC",
                    "the directory was probed with 1 byte when \"mmap:");
  cr_expect_null(allocator);
}

Test(mmap_system, a_save_that_cannot_write_leaves_the_old_file) {
  expect_save_fails(&fake.write_error, EDQUOT, "EDQUOT");
}

Test(mmap_system, a_save_that_cannot_synchronise_leaves_the_old_file) {
  expect_save_fails(&fake.sync_error, EIO, "EIO");
}

Test(mmap_system, a_save_that_cannot_rename_leaves_the_old_file) {
  expect_save_fails(&fake.rename_error, EACCES, "EACCES");
}

Test(mmap_system, a_save_works_where_blocks_cannot_be_reserved) {
  quay_buffer *buffer = test_buffer(NULL, 5 * MIB, 3);
  atomic_store(&fake.reserve_error, EOPNOTSUPP);
  TEST_OK(quay_buffer_save(buffer, test_path("out"), NULL));
  cr_assert(test_file_is(test_path("out"), 5 * MIB, 3));
  quay_buffer_release(buffer);
}

Test(mmap_system, a_save_synchronises_the_file_and_its_directory_unless_told_not_to) {
  const quay_save_options options = {.no_sync = true};
  quay_buffer *buffer = test_buffer(NULL, 5000, 3);
  TEST_OK(quay_buffer_save(buffer, test_path("out"), &options));
  cr_assert_eq(atomic_load(&fake.synchronised), 0);
  TEST_OK(quay_buffer_save(buffer, test_path("out"), NULL));
  cr_assert_eq(atomic_load(&fake.synchronised), 2);
  quay_buffer_release(buffer);
}

Test(mmap_system, flush_synchronises_shared_mappings_alone) {
  const char *path = test_file("a", 5000, 3);
  for (int mode = 0; mode < 3; ++mode) {
    quay_buffer *buffer = test_map(path, (quay_map_mode)mode);
    atomic_store(&fake.synchronised, 0);
    TEST_OK(quay_buffer_flush(buffer));
    cr_assert_eq(atomic_load(&fake.synchronised), mode == QUAY_MAP_SHARED);
    quay_buffer_release(buffer);
  }
}

/* Copies from a buffer in memory to a shared mapping, one or several. */
static quay_status copy_to(quay_buffer *file, bool sync, int pairs) {
  unsigned char bytes[2500];
  test_fill(bytes, sizeof bytes, 0, 7);
  const int64_t shape[] = {sizeof bytes};
  quay_buffer *memory = NULL;
  TEST_OK(quay_buffer_create(NULL, QUAY_U8, 1, shape, NULL, &memory));
  TEST_OK(quay_buffer_copy_in(memory, bytes, sizeof bytes));
  const quay_copy_options options = {.sync = sync};
  const quay_copy_pair list[] = {{.destination = file, .source = memory, .size = 1000},
                                 {.destination = file,
                                  .destination_offset = 2500,
                                  .source = memory,
                                  .source_offset = 1000,
                                  .size = 1500}};
  const quay_status status = pairs == 0
                                 ? quay_buffer_copy_region(file, 0, memory, 0, 2500, &options)
                                 : quay_copy_many(list, (size_t)pairs, &options);
  quay_buffer_release(memory);
  return status;
}

Test(mmap_system, copies_synchronise_the_file_if_they_are_asked_to) {
  quay_buffer *file = test_map(test_file("a", 5000, 3), QUAY_MAP_SHARED);
  for (int pairs = 0; pairs < 3; ++pairs) {
    atomic_store(&fake.synchronised, 0);
    TEST_OK(copy_to(file, false, pairs));
    cr_assert_eq(atomic_load(&fake.synchronised), 0);
    TEST_OK(copy_to(file, true, pairs));
    cr_assert_gt(atomic_load(&fake.synchronised), 0);
  }
  quay_buffer_release(file);
}

Test(mmap_system, a_copy_whose_synchronisation_fails_is_an_io_error_with_the_path) {
  const char *path = test_file("a", 5000, 3);
  quay_buffer *file = test_map(path, QUAY_MAP_SHARED);
  atomic_store(&fake.sync_error, EIO);
  for (int pairs = 0; pairs < 3; ++pairs)
    test_expect_error(copy_to(file, true, pairs), QUAY_STATUS_IO, "EIO", path);
  quay_buffer_release(file);
}

Test(mmap_system, a_failing_flush_is_reported_with_the_path) {
  const char *path = test_file("a", 5000, 3);
  quay_buffer *buffer = test_map(path, QUAY_MAP_SHARED);
  atomic_store(&fake.sync_error, EIO);
  test_expect_error(quay_buffer_flush(buffer), QUAY_STATUS_IO, "EIO", path);
  quay_buffer_release(buffer);
}

Test(mmap_system, a_copy_between_files_without_memory_to_bounce_is_out_of_host_memory) {
  quay_buffer *buffer = test_map(test_file("a", 5000, 3), QUAY_MAP_SHARED);
  atomic_store(&fake.malloc_fails, 1);
  const quay_status status = quay_buffer_copy_region(buffer, 0, buffer, 1, 4999, NULL);
  atomic_store(&fake.malloc_fails, 0);
  test_expect_error(status, QUAY_STATUS_OUT_OF_HOST_MEMORY, NULL, "");
  quay_buffer_release(buffer);
}

/* The n-th call fails, for every n. */

/* Does a bit of everything and undoes it; the first error ends it. */
static quay_status scenario(const char *source, const char *old, void *address, int file) {
  char spec[4200];
  uint8_t *bytes = calloc(1, 70000);
  quay_allocator *blocks = NULL;
  quay_buffer *buffers[6] = {NULL};
  quay_raw_buffer adopted = {0};
  const quay_map_options private = {.mode = QUAY_MAP_COPY_ON_WRITE, .offset = 991};
  const quay_map_options direct = {.direct = true};
  const quay_file_options replace = {.replace = true};
  snprintf(spec, sizeof spec, "mmap:%s", test_directory());
  quay_status status = quay_map_file(source, NULL, &buffers[0]);
  if (status == QUAY_OK)
    status = quay_map_file(source, &private, &buffers[1]);
  if (status == QUAY_OK)
    status = quay_map_file(source, &direct, &buffers[2]);
  if (status == QUAY_OK)
    status = quay_file_create(test_path("created"), 70000, NULL, &buffers[3]);
  if (status == QUAY_OK)
    status = quay_file_create(old, 70000, &replace, &buffers[4]);
  if (status == QUAY_OK)
    status = quay_allocator_open(spec, &blocks);
  if (status == QUAY_OK)
    status = quay_buffer_create(blocks, QUAY_U8, 1, (int64_t[]){2 * MIB}, NULL, &buffers[5]);
  if (status == QUAY_OK)
    status = quay_mmap_adopt(address, 5000, QUAY_MAP_SHARED, file, 0, NULL, NULL, &adopted);
  if (status == QUAY_OK)
    status = quay_buffer_copy_out(buffers[2], bytes, 70000);
  if (status == QUAY_OK)
    status = quay_buffer_copy_from(buffers[3], buffers[0]);
  if (status == QUAY_OK)
    status = quay_buffer_copy_region(buffers[1], 0, buffers[1], 1, 5000, NULL);
  if (status == QUAY_OK)
    status = quay_buffer_fill(buffers[5], bytes, 1);
  if (status == QUAY_OK)
    status = quay_buffer_save(buffers[1], test_path("saved"), NULL);
  for (int i = 0; i < 6; ++i)
    quay_buffer_release(buffers[i]);
  quay_raw_buffer_free(&adopted);
  quay_allocator_release(blocks);
  free(bytes);
  return status;
}

Test(mmap_system, every_call_that_fails_is_a_clean_error_and_leaves_nothing_behind) {
  char *source = strdup(test_file("source", 70000, 3));
  const char *mapped = test_file("mapped", 5000, 4);
  char *old = strdup(test_path("old"));
  const int file = open(mapped, O_RDWR);
  void *address = mmap(NULL, 5000, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  int failures = 0;
  TEST_OK(scenario(source, test_file("old", 3000, 5), address, file));
  TEST_OK(quay_shutdown());
  const int before = test_descriptor_count();
  for (int n = 1;; ++n) {
    test_file("old", 3000, 5);
    unlink(test_path("created"));
    unlink(test_path("saved"));
    quay_error_clear();
    atomic_store(&fake.calls, 0);
    atomic_store(&fake.fail_at, n);
    const quay_status status = scenario(source, old, address, file);
    atomic_store(&fake.fail_at, 0);
    cr_assert(status == QUAY_OK || status == QUAY_STATUS_OUT_OF_HOST_MEMORY ||
                  status == QUAY_STATUS_IO,
              "call %d: %s", n, quay_status_name(status));
    cr_assert_eq(quay_last_error()->status, status, "call %d", n);
    cr_assert(status == QUAY_OK || quay_last_error()->message[0] != '\0', "call %d", n);
    TEST_OK(quay_shutdown());
    cr_assert_eq(test_descriptor_count(), before, "call %d leaks a descriptor", n);
    cr_assert_leq(test_directory_count(test_directory()), 5, "call %d leaves a file", n);
    cr_assert(test_file_size(old) == 70000 || test_file_is(old, 3000, 5), "call %d", n);
    if (access(test_path("saved"), F_OK) == 0)
      cr_assert_eq(test_file_size(test_path("saved")), 70000 - 991, "call %d", n);
    failures += status != QUAY_OK;
    if (atomic_load(&fake.calls) < n)
      break;
  }
  cr_assert_gt(failures, 30);
  munmap(address, 5000);
  close(file);
  free(source);
  free(old);
}

/* Large reads on systems that can't tell what is in the page cache, or can't populate. */

static void check_large_read(void) {
  const uint64_t size = 9 * MIB + 12345;
  quay_buffer *buffer = test_map(test_file("large", size, 3), QUAY_MAP_READ_ONLY);
  cr_assert(test_buffer_is(buffer, 0, 3));
  cr_assert(test_buffer_is(buffer, 0, 3));
  quay_buffer_release(buffer);
}

Test(mmap_system, large_reads_work_where_nothing_is_said_to_be_in_the_page_cache) {
  atomic_store(&fake.cached_error, EAGAIN);
  check_large_read();
}

Test(mmap_system, large_reads_work_where_the_file_system_cannot_tell_what_is_in_the_page_cache) {
  atomic_store(&fake.cached_error, EOPNOTSUPP);
  check_large_read();
}

Test(mmap_system, large_reads_work_where_the_kernel_cannot_tell_what_is_in_the_page_cache) {
  atomic_store(&fake.cached_error, ENOSYS);
  check_large_read();
}

Test(mmap_system, large_reads_go_on_where_the_page_cache_ends) {
  for (int calls = 1; calls < 300; calls += 37) {
    atomic_store(&fake.cached_after, calls);
    atomic_store(&fake.cached_error, EAGAIN);
    check_large_read();
  }
}

Test(mmap_system, large_reads_work_where_the_kernel_cannot_populate) {
  atomic_store(&fake.populate_error, EINVAL);
  check_large_read();
  atomic_store(&fake.leases, 1);
  check_large_read();
}

Test(mmap_system, large_reads_populate_each_piece_once_until_it_is_not_needed) {
#if !defined(__x86_64__)
  quay_test_skip("x86_64", "this processor reads with pread alone");
#endif
  const uint64_t size = 9 * MIB + 12345;
  quay_buffer *buffer = test_map(test_file("large", size, 3), QUAY_MAP_READ_ONLY);
  uint8_t *memory = malloc(size);
  atomic_store(&fake.cached_always, 1);
  setenv("QUAY_COPY_THREADS", "1", 1);
  TEST_OK(quay_buffer_copy_out(buffer, memory, size));
  cr_assert_eq(atomic_load(&fake.populated), 3);
  TEST_OK(quay_buffer_copy_out(buffer, memory, size));
  cr_assert_eq(atomic_load(&fake.populated), 3);
  TEST_OK(quay_buffer_advise(buffer, QUAY_ADVICE_DONT_NEED));
  TEST_OK(quay_buffer_copy_out(buffer, memory, size));
  cr_assert_eq(atomic_load(&fake.populated), 6);
  cr_assert(test_matches(memory, size, 0, 3));
  free(memory);
  quay_buffer_release(buffer);
}

Test(mmap_system, large_reads_populate_a_quarter_of_the_memory_at_most) {
#if !defined(__x86_64__)
  quay_test_skip("x86_64", "this processor reads with pread alone");
#endif
  atomic_store(&fake.cached_always, 1);
  atomic_store(&fake.memory_total, 32);
  setenv("QUAY_COPY_THREADS", "1", 1);
  const uint64_t size = 16 * MIB;
  quay_buffer *buffer = test_map(test_file("large", size, 3), QUAY_MAP_READ_ONLY);
  uint8_t *memory = malloc(size);
  TEST_OK(quay_buffer_copy_out(buffer, memory, size));
  cr_assert_eq(atomic_load(&fake.populated), 2);
  cr_assert(test_matches(memory, size, 0, 3));
  free(memory);
  quay_buffer_release(buffer);
}

Test(mmap_system, large_reads_report_what_pread_fails_with) {
  const uint64_t size = 9 * MIB;
  quay_buffer *buffer = test_map(test_file("large", size, 3), QUAY_MAP_READ_ONLY);
  uint8_t *memory = malloc(size);
  atomic_store(&fake.cached_after, 100);
  atomic_store(&fake.cached_error, EIO);
  atomic_store(&fake.read_error, EIO);
  test_expect_error(quay_buffer_copy_out(buffer, memory, size), QUAY_STATUS_IO, "EIO", "large");
  free(memory);
  quay_buffer_release(buffer);
}

Test(mmap_system, large_reads_need_no_memory_of_their_own) {
  const uint64_t size = 9 * MIB;
  quay_buffer *buffer = test_map(test_file("large", size, 3), QUAY_MAP_READ_ONLY);
  uint8_t *memory = malloc(size);
  setenv("QUAY_COPY_THREADS", "1", 1);
  atomic_store(&fake.malloc_fails, 1);
  TEST_OK(quay_buffer_copy_out(buffer, memory, size));
  atomic_store(&fake.malloc_fails, 0);
  cr_assert(test_matches(memory, size, 0, 3));
  free(memory);
  quay_buffer_release(buffer);
}
