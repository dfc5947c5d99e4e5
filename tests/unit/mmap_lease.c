/* Large reads through the mapping while a lease keeps the file from changing: when they are
 * possible, that nobody is kept waiting for long, and that no signal and no lease is left behind.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/os.h"
#include "support/files.h"
#include "support/log.h"
#include "support/skip.h"

#define MIB  (UINT64_C(1) << 20)
#define SIZE (9 * MIB + 12345)

TestSuite(mmap_lease, .init = test_files_begin, .fini = test_files_end);

/* What the next calls do; all zero: what the system does. */
static struct {
  atomic_int begun, ended; /* leases */
  atomic_int end_error;
  atomic_int absent; /* mincore() misses the last page of a range of several */
  atomic_int mincore_error;
  atomic_int foreign;                     /* the file system is of an unknown type */
  atomic_int reads;                       /* calls of pread() for more than a megabyte */
  atomic_int cached_error;                /* of pread_cached() */
  atomic_int populated, populated_leased; /* calls of madvise() that populate; under a lease */
} fake;

#define WRAP(type, name, parameters)      \
  type __real_quay__os_##name parameters; \
  type __wrap_quay__os_##name parameters; \
  type __wrap_quay__os_##name parameters

WRAP(int, lease, (int file, bool write)) {
  const int result = __real_quay__os_lease(file, write);
  atomic_fetch_add(&fake.begun, result == 0);
  return result;
}

WRAP(int, lease_end, (int file)) {
  const int result = __real_quay__os_lease_end(file);
  atomic_fetch_add(&fake.ended, 1);
  if (atomic_load(&fake.end_error) == 0)
    return result;
  errno = atomic_load(&fake.end_error);
  return -1;
}

WRAP(int, mincore, (void *address, size_t size, unsigned char *out_resident)) {
  if (atomic_load(&fake.mincore_error) != 0) {
    errno = atomic_load(&fake.mincore_error);
    return -1;
  }
  const int result = __real_quay__os_mincore(address, size, out_resident);
  if (atomic_load(&fake.absent) != 0 && size > 4096)
    out_resident[(size - 1) / 4096] = 0;
  return result;
}

WRAP(uint64_t, file_system, (int file)) {
  return atomic_load(&fake.foreign) != 0 ? 0x6969 : __real_quay__os_file_system(file);
}

WRAP(ssize_t, pread, (int file, void *buffer, size_t size, uint64_t offset)) {
  atomic_fetch_add(&fake.reads, size > MIB);
  return __real_quay__os_pread(file, buffer, size, offset);
}

WRAP(ssize_t, pread_cached, (int file, void *buffer, size_t size, uint64_t offset)) {
  errno = atomic_load(&fake.cached_error);
  return errno != 0 ? -1 : __real_quay__os_pread_cached(file, buffer, size, offset);
}

#ifndef MADV_POPULATE_READ /* linux/mman.h, since Linux 5.14 */
#define MADV_POPULATE_READ 22
#endif

WRAP(int, madvise, (void *address, size_t size, int advice)) {
  const bool leased = atomic_load(&fake.begun) != atomic_load(&fake.ended);
  atomic_fetch_add(&fake.populated, advice == MADV_POPULATE_READ);
  atomic_fetch_add(&fake.populated_leased, advice == MADV_POPULATE_READ && leased);
  return __real_quay__os_madvise(address, size, advice);
}

/* The file system of the tests' directory may be one without leases, and the system may be told not
 * to give any. */
static void need_leases(const char *path) {
  const int file = open(path, O_RDONLY);
  cr_assert_geq(file, 0);
  const bool possible = __real_quay__os_lease(file, false) == 0;
  const int error = errno;
  if (possible)
    cr_assert_eq(__real_quay__os_lease_end(file), 0);
  close(file);
  if (!possible)
    quay_test_skip("lease", "no lease can be had here: %s", strerror(error));
}

static const char *make_file(void) {
  const char *path = test_file("a", SIZE, 3);
  need_leases(path);
  return path;
}

/* Whether it can be opened for writing at once, that is, nobody holds a lease. */
static bool is_free(const char *path) {
  const int file = open(path, O_WRONLY | O_NONBLOCK);
  if (file >= 0)
    close(file);
  return file >= 0;
}

static void check_reading(quay_buffer *file) {
  cr_assert(test_buffer_is(file, 0, 3));
  cr_assert_eq(atomic_load(&fake.begun), atomic_load(&fake.ended));
}

/* When. */

Test(mmap_lease, a_read_only_mapping_is_read_under_leases_that_end_with_each_piece) {
  const char *path = make_file();
  quay_buffer *file = test_map(path, QUAY_MAP_READ_ONLY);
  check_reading(file);
  cr_assert_gt(atomic_load(&fake.begun), 0);
  cr_assert_eq(atomic_load(&fake.reads), 0);
  cr_assert(is_free(path));
  quay_buffer_release(file);
}

/* Others would have to wait for page tables, or for the disk. */
Test(mmap_lease, pages_are_populated_before_a_lease_is_taken) {
  setenv("QUAY_COPY_THREADS", "1", 1);
  quay_buffer *file = test_map(make_file(), QUAY_MAP_READ_ONLY);
  check_reading(file);
  cr_assert_gt(atomic_load(&fake.populated), 0);
  cr_assert_eq(atomic_load(&fake.populated_leased), 0);
  quay_buffer_release(file);
}

/* As on tmpfs: what can't be populated is not copied from the mapping. */
Test(mmap_lease, none_is_taken_where_nobody_tells_what_is_in_the_page_cache) {
  quay_buffer *file = test_map(make_file(), QUAY_MAP_READ_ONLY);
  atomic_store(&fake.cached_error, EOPNOTSUPP);
  check_reading(file);
  cr_assert_eq(atomic_load(&fake.begun), 0);
  quay_buffer_release(file);
}

Test(mmap_lease, small_reads_take_none) {
  quay_buffer *file = test_map_window(make_file(), QUAY_MAP_READ_ONLY, 0, MIB);
  check_reading(file);
  cr_assert_eq(atomic_load(&fake.begun), 0);
  quay_buffer_release(file);
}

Test(mmap_lease, a_file_that_is_open_for_writing_is_read_without) {
  const char *path = make_file();
  quay_buffer *file = test_map(path, QUAY_MAP_READ_ONLY);
  const int writer = open(path, O_WRONLY);
  check_reading(file);
  cr_assert_eq(atomic_load(&fake.begun), 0);
  close(writer);
  check_reading(file);
  cr_assert_gt(atomic_load(&fake.begun), 0);
  quay_buffer_release(file);
}

Test(mmap_lease, a_shared_mapping_is_read_without) {
  quay_buffer *file = test_map(make_file(), QUAY_MAP_SHARED);
  check_reading(file);
  cr_assert_eq(atomic_load(&fake.begun), 0);
  quay_buffer_release(file);
}

Test(mmap_lease, a_file_of_a_file_system_that_others_may_change_is_read_without) {
  atomic_store(&fake.foreign, 1);
  quay_buffer *file = test_map(make_file(), QUAY_MAP_READ_ONLY);
  check_reading(file);
  cr_assert_eq(atomic_load(&fake.begun), 0);
  quay_buffer_release(file);
}

static bool read_as_stranger(void *user) {
  quay_buffer *file = test_map(user, QUAY_MAP_READ_ONLY);
  const bool right = test_buffer_is(file, 0, 3) && atomic_load(&fake.begun) == 0;
  quay_buffer_release(file);
  return right;
}

Test(mmap_lease, a_file_of_another_user_is_read_without) {
  const char *path = make_file();
  cr_assert_eq(chmod(path, 0644), 0);
  cr_assert_eq(chmod(test_directory(), 0755), 0);
  if (geteuid() != 0)
    quay_test_skip("user", "only the superuser can become another user");
  cr_assert(test_as_user(12345, read_as_stranger, (void *)(uintptr_t)path));
}

Test(mmap_lease, pages_that_are_not_in_memory_are_read_from_the_file) {
  quay_buffer *file = test_map(make_file(), QUAY_MAP_READ_ONLY);
  atomic_store(&fake.absent, 1);
  check_reading(file);
  cr_assert_gt(atomic_load(&fake.begun), 0);
  atomic_store(&fake.absent, 0);
  atomic_store(&fake.mincore_error, EAGAIN);
  check_reading(file);
  quay_buffer_release(file);
}

/* Others. */

static atomic_int signals;

static void count_signal(int number) {
  (void)number;
  atomic_fetch_add(&signals, 1);
}

typedef struct writer {
  const char *path;
  atomic_bool stop;
  atomic_int opened;
} writer;

static void *open_again_and_again(void *user) {
  writer *job = user;
  while (!atomic_load(&job->stop)) {
    const int file = open(job->path, O_WRONLY);
    cr_assert_geq(file, 0);
    atomic_fetch_add(&job->opened, 1);
    close(file);
    usleep(200);
  }
  return NULL;
}

/* SIGURG may come; by default it does nothing. SIGIO would end a program that does not expect it.
 */
Test(mmap_lease, writers_are_let_in_without_sigio_and_every_byte_arrives, .timeout = 60) {
  const char *path = make_file();
  cr_assert_neq(signal(SIGIO, count_signal), SIG_ERR);
  quay_buffer *file = test_map(path, QUAY_MAP_READ_ONLY);
  writer job = {.path = path};
  pthread_t thread;
  cr_assert_eq(pthread_create(&thread, NULL, open_again_and_again, &job), 0);
  while (atomic_load(&job.opened) < 200)
    check_reading(file);
  atomic_store(&job.stop, true);
  pthread_join(thread, NULL);
  cr_assert_gt(atomic_load(&fake.begun), 0);
  cr_assert_eq(atomic_load(&signals), 0);
  cr_assert(is_free(path));
  quay_buffer_release(file);
}

typedef struct opener {
  const char *path;
  quay_map_mode mode;
  quay_status status;
  char message[256];
} opener;

static void *map_once(void *user) {
  opener *job = user;
  quay_buffer *file = NULL;
  job->status = quay_map_file(job->path, &(quay_map_options){.mode = job->mode}, &file);
  if (job->status == QUAY_OK && !test_buffer_is(file, 0, 3))
    job->status = QUAY_STATUS_IO;
  (void)snprintf(job->message, sizeof job->message, "%s", quay_last_error()->message);
  quay_buffer_release(file);
  return NULL;
}

/* Holds a lease, as a copy does for a moment, until somebody runs into it. */
static void check_mapping_waits(int lease, quay_map_mode mode) {
  const char *path = make_file();
  const int holder = open(path, O_RDONLY);
  cr_assert_geq(holder, 0);
  cr_assert_eq(fcntl(holder, F_SETSIG, SIGURG), 0);
  cr_assert_eq(fcntl(holder, F_SETLEASE, lease), 0, "%s", strerror(errno));
  opener job = {.path = path, .mode = mode};
  pthread_t thread;
  cr_assert_eq(pthread_create(&thread, NULL, map_once, &job), 0);
  while (fcntl(holder, F_GETLEASE) == lease)
    usleep(100);
  cr_assert_eq(fcntl(holder, F_SETLEASE, F_UNLCK), 0);
  pthread_join(thread, NULL);
  close(holder);
  cr_assert_eq(job.status, QUAY_OK, "%s", job.message);
}

Test(mmap_lease, mapping_a_file_shared_waits_for_whoever_reads_it_under_a_lease, .timeout = 60) {
  check_mapping_waits(F_RDLCK, QUAY_MAP_SHARED);
}

Test(mmap_lease, mapping_a_file_waits_for_the_lease_of_its_writer, .timeout = 60) {
  check_mapping_waits(F_WRLCK, QUAY_MAP_READ_ONLY);
}

static void *read_often(void *user) {
  for (int i = 0; i < 10; ++i)
    cr_assert(test_buffer_is(user, 0, 3));
  return NULL;
}

Test(mmap_lease, threads_that_read_one_mapping_share_a_lease) {
  const char *path = make_file();
  quay_buffer *file = test_map(path, QUAY_MAP_READ_ONLY);
  pthread_t threads[4];
  for (int i = 0; i < 4; ++i)
    cr_assert_eq(pthread_create(&threads[i], NULL, read_often, file), 0);
  for (int i = 0; i < 4; ++i)
    pthread_join(threads[i], NULL);
  cr_assert_eq(atomic_load(&fake.begun), atomic_load(&fake.ended));
  cr_assert(is_free(path));
  quay_buffer_release(file);
}

Test(mmap_lease, a_child_of_fork_does_not_end_the_leases_of_its_parent) {
  quay_buffer *file = test_map(make_file(), QUAY_MAP_READ_ONLY);
  check_reading(file);
  const pid_t child = fork();
  cr_assert_geq(child, 0);
  if (child == 0) {
    const int before = atomic_load(&fake.begun) + atomic_load(&fake.ended);
    const bool right = test_buffer_is(file, 0, 3);
    _exit(right && atomic_load(&fake.begun) + atomic_load(&fake.ended) == before ? 0 : 1);
  }
  int status = 0;
  cr_assert_eq(waitpid(child, &status, 0), child);
  cr_assert_eq(status, 0);
  quay_buffer_release(file);
}

Test(mmap_lease, a_file_cut_before_the_lease_is_an_io_error) {
  const char *path = make_file();
  quay_buffer *file = test_map(path, QUAY_MAP_READ_ONLY);
  check_reading(file);
  test_truncate(path, MIB);
  void *memory = malloc(SIZE);
  test_expect_error(quay_buffer_copy_out(file, memory, SIZE), QUAY_STATUS_IO, NULL, "a");
  cr_assert_eq(atomic_load(&fake.begun), atomic_load(&fake.ended));
  free(memory);
  quay_buffer_release(file);
}

Test(mmap_lease, one_that_can_not_be_ended_is_logged_and_the_last) {
  const char *path = make_file();
  quay_buffer *file = test_map(path, QUAY_MAP_READ_ONLY);
  setenv("QUAY_COPY_THREADS", "1", 1);
  quay_test_log_begin();
  atomic_store(&fake.end_error, EIO);
  cr_assert(test_buffer_is(file, 0, 3));
  cr_assert_eq(quay_test_log_count("ending the lease on"), 1);
  cr_assert_eq(atomic_load(&fake.begun), 1);
  cr_assert(test_buffer_is(file, 0, 3));
  cr_assert_eq(atomic_load(&fake.begun), 1);
  quay_buffer_release(file);
}
