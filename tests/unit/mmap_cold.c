/* Large reads of files that are not in the page cache: how that is told, and that they go in small
 * pieces in turn, with the kernel's read-ahead widened meanwhile, and leave the file in the page
 * cache. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/os.h"
#include "support/files.h"
#include "support/skip.h"

#define MIB  (UINT64_C(1) << 20)
#define SIZE (9 * MIB + 12345)

/* What mincore() says. */
typedef enum answer {
  TRUTH,
  ALL_THERE,
  NONE_THERE,
  FIRST_MISSING, /* of all pages that it was asked for in this test */
  CANNOT_TELL
} answer;

static struct {
  atomic_int mincore;      /* an answer */
  atomic_int asked;        /* calls of mincore() */
  atomic_int cached_error; /* of pread_cached() */
  atomic_int cached_calls;
  atomic_int longest_read; /* by pread(), in bytes */
  atomic_int read_error;
  atomic_int advice_error;
  atomic_int sequential, normal; /* advice that was given */
  atomic_bool advised;           /* sequential comes last */
  atomic_int reads_advised;      /* calls of pread() meanwhile */
  atomic_int wanted;             /* readers at a time that each of them waits for; 0: none */
  atomic_int readers, most;      /* at a time */
} fake;

TestSuite(mmap_cold, .init = test_files_begin, .fini = test_files_end);

#define WRAP(type, name, parameters)      \
  type __real_quay__os_##name parameters; \
  type __wrap_quay__os_##name parameters; \
  type __wrap_quay__os_##name parameters

WRAP(int, mincore, (void *address, size_t size, unsigned char *out_resident)) {
  const int call = atomic_fetch_add(&fake.asked, 1);
  const size_t pages = (size - 1) / quay__os_page_size() + 1;
  switch ((answer)atomic_load(&fake.mincore)) {
  case TRUTH:
    return __real_quay__os_mincore(address, size, out_resident);
  case ALL_THERE:
    memset(out_resident, 1, pages);
    return 0;
  case NONE_THERE:
    memset(out_resident, 0, pages);
    return 0;
  case FIRST_MISSING:
    memset(out_resident, call == 0 ? 0 : 1, pages);
    return 0;
  case CANNOT_TELL:
    break;
  }
  errno = EAGAIN;
  return -1;
}

/* For a while only: fewer may come. */
static void wait_for_readers(void) {
  const int now = atomic_fetch_add(&fake.readers, 1) + 1;
  int most = atomic_load(&fake.most);
  while (now > most && !atomic_compare_exchange_weak(&fake.most, &most, now))
    ;
  for (int i = 0; i < 30 && atomic_load(&fake.most) < atomic_load(&fake.wanted); i++)
    usleep(10000);
}

WRAP(ssize_t, pread, (int file, void *buffer, size_t size, uint64_t offset)) {
  int longest = atomic_load(&fake.longest_read);
  while ((int)size > longest &&
         !atomic_compare_exchange_weak(&fake.longest_read, &longest, (int)size))
    ;
  atomic_fetch_add(&fake.reads_advised, atomic_load(&fake.advised) ? 1 : 0);
  wait_for_readers();
  errno = atomic_load(&fake.read_error);
  const ssize_t got = errno != 0 ? -1 : __real_quay__os_pread(file, buffer, size, offset);
  atomic_fetch_sub(&fake.readers, 1);
  return got;
}

WRAP(ssize_t, pread_cached, (int file, void *buffer, size_t size, uint64_t offset)) {
  atomic_fetch_add(&fake.cached_calls, 1);
  errno = atomic_load(&fake.cached_error);
  return errno != 0 ? -1 : __real_quay__os_pread(file, buffer, size, offset);
}

WRAP(int, fadvise, (int file, int advice)) {
  atomic_fetch_add(&fake.sequential, advice == POSIX_FADV_SEQUENTIAL);
  atomic_fetch_add(&fake.normal, advice == POSIX_FADV_NORMAL);
  atomic_store(&fake.advised, advice == POSIX_FADV_SEQUENTIAL);
  const int error = atomic_load(&fake.advice_error);
  return error != 0 ? error : __real_quay__os_fadvise(file, advice);
}

/* Reads `size` bytes from an odd place on, and checks them. */
static void read_and_check(quay_buffer *file, uint64_t offset, uint64_t size) {
  quay_buffer *window = NULL;
  TEST_OK(quay_buffer_view(file, offset, size, &window));
  uint8_t *memory = malloc(size);
  memset(memory, 0xEE, size);
  TEST_OK(quay_buffer_copy_out(window, memory, size));
  cr_assert(test_matches(memory, size, offset, 3));
  free(memory);
  quay_buffer_release(window);
}

static void read_large(void) {
  quay_buffer *file = test_map(test_file("a", SIZE, 3), QUAY_MAP_READ_ONLY);
  read_and_check(file, 991, SIZE - 991);
  quay_buffer_release(file);
}

static void expect_cold(void) {
  cr_assert_eq(atomic_load(&fake.sequential), 1);
  cr_assert_eq(atomic_load(&fake.normal), 1);
  cr_assert_gt(atomic_load(&fake.reads_advised), 8);
  cr_assert_leq(atomic_load(&fake.longest_read), (int)(MIB + 4096));
}

static void expect_warm(void) {
  cr_assert_eq(atomic_load(&fake.sequential), 0);
  cr_assert_gt(atomic_load(&fake.cached_calls), 1);
}

Test(mmap_cold, a_missing_file_is_read_in_pieces_of_a_megabyte_by_two_threads) {
  setenv("QUAY_COPY_THREADS", "2", 1);
  atomic_store(&fake.mincore, NONE_THERE);
  read_large();
  expect_cold();
}

Test(mmap_cold, a_missing_file_is_read_in_pieces_of_a_megabyte_by_one_thread) {
  setenv("QUAY_COPY_THREADS", "1", 1);
  atomic_store(&fake.mincore, NONE_THERE);
  read_large();
  expect_cold();
}

#define ENOUGH (20 * MIB) /* for as many pieces as there are threads */

static void check_threads(bool direct) {
  unsetenv("QUAY_COPY_THREADS");
  atomic_store(&fake.mincore, NONE_THERE);
  quay_buffer *file = NULL;
  TEST_OK(quay_map_file(test_file("a", ENOUGH, 3), &(quay_map_options){.direct = direct}, &file));
  atomic_store(&fake.wanted, 16);
  read_and_check(file, 0, ENOUGH);
  cr_assert_eq(atomic_load(&fake.most), 16);
  quay_buffer_release(file);
}

Test(mmap_cold, sixteen_threads_wait_for_a_disk_however_few_processors_there_are) {
  check_threads(false);
}

Test(mmap_cold, as_many_wait_for_direct_io) {
  check_threads(true);
}

static quay_buffer *map_direct(void) {
  quay_buffer *file = NULL;
  const int direct = open(test_file("a", SIZE, 3), O_RDONLY | O_DIRECT);
  if (direct < 0)
    quay_test_skip("direct", "the file system has no direct I/O: %s", strerror(errno));
  close(direct);
  TEST_OK(quay_map_file(test_file("a", SIZE, 3), &(quay_map_options){.direct = true}, &file));
  return file;
}

Test(mmap_cold, direct_io_goes_in_pieces_of_half_a_megabyte_without_advice) {
  atomic_store(&fake.mincore, NONE_THERE);
  quay_buffer *file = map_direct();
  read_and_check(file, 991, SIZE - 991);
  cr_assert_eq(atomic_load(&fake.sequential), 0);
  cr_assert_leq(atomic_load(&fake.longest_read), (int)(MIB / 2 + 4096));
  quay_buffer_release(file);
}

Test(mmap_cold, what_is_in_the_page_cache_is_read_from_there_in_spite_of_direct_io) {
  atomic_store(&fake.mincore, ALL_THERE);
  quay_buffer *file = map_direct();
  read_and_check(file, 991, SIZE - 991);
  expect_warm();
  quay_buffer_release(file);
}

Test(mmap_cold, no_more_threads_wait_for_a_disk_than_the_environment_allows) {
  setenv("QUAY_COPY_THREADS", "2", 1);
  atomic_store(&fake.mincore, NONE_THERE);
  atomic_store(&fake.wanted, 3);
  read_large();
  cr_assert_eq(atomic_load(&fake.most), 2);
}

/* Each such question begins to read, a few pages at a time. */
Test(mmap_cold, a_missing_file_is_not_asked_for_by_reading) {
  atomic_store(&fake.mincore, NONE_THERE);
  read_large();
  cr_assert_eq(atomic_load(&fake.cached_calls), 0);
}

Test(mmap_cold, one_question_tells_where_the_system_hides_what_is_missing) {
  setenv("QUAY_COPY_THREADS", "2", 1);
  atomic_store(&fake.mincore, ALL_THERE);
  atomic_store(&fake.cached_error, EAGAIN);
  read_large();
  expect_cold();
  cr_assert_eq(atomic_load(&fake.cached_calls), 1);
}

Test(mmap_cold, a_file_of_which_a_little_is_missing_is_read_as_one_that_is_there) {
  atomic_store(&fake.mincore, FIRST_MISSING);
  read_large();
  expect_warm();
}

Test(mmap_cold, a_file_that_is_there_is_read_without_advice) {
  atomic_store(&fake.mincore, ALL_THERE);
  read_large();
  expect_warm();
}

Test(mmap_cold, a_system_that_cannot_tell_is_believed_to_have_the_file) {
  atomic_store(&fake.mincore, CANNOT_TELL);
  read_large();
  expect_warm();
  atomic_store(&fake.cached_error, EOPNOTSUPP);
  read_large();
  cr_assert_eq(atomic_load(&fake.sequential), 0);
}

Test(mmap_cold, advice_that_is_refused_does_no_harm) {
  atomic_store(&fake.mincore, NONE_THERE);
  atomic_store(&fake.advice_error, EINVAL);
  read_large();
  expect_cold();
}

Test(mmap_cold, the_read_ahead_is_as_it_was_after_an_error_too) {
  atomic_store(&fake.mincore, NONE_THERE);
  quay_buffer *file = test_map(test_file("a", SIZE, 3), QUAY_MAP_READ_ONLY);
  uint8_t *memory = malloc(SIZE);
  atomic_store(&fake.read_error, EIO);
  test_expect_error(quay_buffer_copy_out(file, memory, SIZE), QUAY_STATUS_IO, "EIO", "a");
  cr_assert_eq(atomic_load(&fake.sequential), 1);
  cr_assert_eq(atomic_load(&fake.normal), 1);
  cr_assert_not(atomic_load(&fake.advised));
  free(memory);
  quay_buffer_release(file);
}

Test(mmap_cold, few_places_of_a_long_file_are_looked_at) {
  atomic_store(&fake.mincore, NONE_THERE);
  const uint64_t size = 272 * MIB;
  quay_buffer *file = test_map(test_sparse_file("a", size), QUAY_MAP_READ_ONLY);
  uint8_t *memory = malloc(size);
  memset(memory, 0xEE, size);
  TEST_OK(quay_buffer_copy_out(file, memory, size));
  cr_assert(memory[0] == 0 && memcmp(memory, memory + 1, size - 1) == 0);
  cr_assert_leq(atomic_load(&fake.asked), 64);
  free(memory);
  quay_buffer_release(file);
}

static uint64_t pages_there(const char *path, uint64_t size) {
  const int file = open(path, O_RDONLY);
  void *mapped = mmap(NULL, size, PROT_READ, MAP_SHARED, file, 0);
  unsigned char *resident = malloc(size / quay__os_page_size() + 1);
  cr_assert_eq(mincore(mapped, size, resident), 0);
  uint64_t count = 0;
  for (uint64_t i = 0; i <= (size - 1) / quay__os_page_size(); i++)
    count += resident[i] & 1;
  munmap(mapped, size);
  close(file);
  free(resident);
  return count;
}

Test(mmap_cold, the_page_cache_has_the_file_afterwards) {
  const char *path = test_file("a", SIZE, 3);
  const int descriptor = open(path, O_RDONLY);
  cr_assert_eq(fsync(descriptor), 0);
  cr_assert_eq(posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED), 0);
  close(descriptor);
  quay_buffer *file = test_map(path, QUAY_MAP_READ_ONLY);
  read_and_check(file, 0, SIZE);
  cr_assert_eq(pages_there(path, SIZE), (SIZE - 1) / quay__os_page_size() + 1);
  quay_buffer_release(file);
}
