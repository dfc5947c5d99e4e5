/* Large writes through a shared mapping while a lease keeps everybody else from the file: when they
 * are possible, that every byte arrives whoever else comes, and what happens where there is no
 * lease. Reading under leases is in mmap_lease.c. */
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
#include <sys/wait.h>
#include <unistd.h>

#include "core/os.h"
#include "support/files.h"
#include "support/skip.h"

#define MIB  (UINT64_C(1) << 20)
#define SIZE (9 * MIB + 12345)

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

TestSuite(mmap_write_lease, .init = test_files_begin, .fini = test_files_end);

/* What the next calls do; all zero: what the system does. */
static struct {
  atomic_int begun, ended;   /* leases */
  atomic_int writes;         /* calls of pwrite() */
  atomic_int own_writes;     /* calls on the process's own memory */
  atomic_int populate_error; /* of populating for writing */
  atomic_int type;           /* of the file system */
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
  return result;
}

WRAP(uint64_t, file_system, (int file)) {
  const int type = atomic_load(&fake.type);
  return type != 0 ? (uint64_t)(unsigned)type : __real_quay__os_file_system(file);
}

WRAP(int, madvise, (void *address, size_t size, int advice)) {
  if (advice == MADV_POPULATE_WRITE && atomic_load(&fake.populate_error) != 0) {
    errno = atomic_load(&fake.populate_error);
    return -1;
  }
  return __real_quay__os_madvise(address, size, advice);
}

WRAP(ssize_t, pwrite, (int file, const void *buffer, size_t size, uint64_t offset)) {
  atomic_fetch_add(&fake.writes, 1);
  return __real_quay__os_pwrite(file, buffer, size, offset);
}

WRAP(ssize_t, write_own_memory, (void *destination, const void *source, size_t size)) {
  atomic_fetch_add(&fake.own_writes, 1);
  return __real_quay__os_write_own_memory(destination, source, size);
}

/* A file whose pages are in the page cache, on a file system and kernel that can do all this. */
static const char *make_file(void) {
  const char *path = test_file("a", SIZE, 3);
  const int file = open(path, O_RDWR);
  cr_assert_geq(file, 0);
  const bool possible = __real_quay__os_lease(file, true) == 0;
  const int error = errno;
  if (possible)
    cr_assert_eq(__real_quay__os_lease_end(file), 0);
  void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  const bool populates = madvise(page, 4096, MADV_POPULATE_WRITE) == 0;
  (void)munmap(page, 4096);
  close(file);
  if (!possible)
    quay_test_skip("lease", "no lease can be had here: %s", strerror(error));
  if (!populates)
    quay_test_skip("populate", "this kernel can't populate pages for writing");
  return path;
}

/* Writes a window that begins and ends anywhere, and checks it and its neighbours. */
static void check_writing(quay_buffer *file, const char *path, unsigned seed) {
  const uint64_t start = 991, size = SIZE - 1991;
  unsigned char *bytes = malloc(SIZE);
  quay_buffer *view = NULL;
  test_fill(bytes, size, 0, seed);
  TEST_OK(quay_buffer_view(file, start, size, &view));
  TEST_OK(quay_buffer_copy_in(view, bytes, size));
  const int writer = open(path, O_RDONLY);
  cr_assert_eq(pread(writer, bytes, SIZE, 0), (ssize_t)SIZE);
  close(writer);
  cr_assert(test_matches(bytes, start, 0, 3));
  cr_assert(test_matches(bytes + start, size, 0, seed));
  cr_assert(test_matches(bytes + start + size, SIZE - start - size, start + size, 3));
  cr_assert_eq(atomic_load(&fake.begun), atomic_load(&fake.ended));
  quay_buffer_release(view);
  free(bytes);
}

static void check_with_threads(const char *threads) {
  const char *path = make_file();
  setenv("QUAY_COPY_THREADS", threads, 1);
  quay_buffer *file = test_map(path, QUAY_MAP_SHARED);
  check_writing(file, path, 5);
  cr_assert_geq(atomic_load(&fake.begun), 1);
  cr_assert_eq(atomic_load(&fake.writes) + atomic_load(&fake.own_writes), 0);
  const int other = open(path, O_RDWR | O_NONBLOCK);
  cr_assert_geq(other, 0, "a lease is left");
  close(other);
  quay_buffer_release(file);
}

/* When. */

Test(mmap_write_lease, several_threads_write_what_is_in_the_page_cache_by_stores) {
  check_with_threads("3");
}

Test(mmap_write_lease, one_thread_does_too) {
  check_with_threads("1");
}

Test(mmap_write_lease, small_writes_take_none) {
  quay_buffer *file = test_map_window(make_file(), QUAY_MAP_SHARED, 0, MIB);
  unsigned char *bytes = malloc(MIB);
  test_fill(bytes, MIB, 0, 5);
  TEST_OK(quay_buffer_copy_in(file, bytes, MIB));
  cr_assert(test_buffer_is(file, 0, 5));
  cr_assert_eq(atomic_load(&fake.begun), 0);
  free(bytes);
  quay_buffer_release(file);
}

static void check_without(const char *path, quay_buffer *file) {
  check_writing(file, path, 5);
  cr_assert_eq(atomic_load(&fake.begun), 0);
  cr_assert_gt(atomic_load(&fake.writes) + atomic_load(&fake.own_writes), 0);
  quay_buffer_release(file);
}

Test(mmap_write_lease, a_file_that_is_open_for_writing_elsewhere_is_written_without) {
  const char *path = make_file();
  setenv("QUAY_COPY_THREADS", "3", 1);
  const int other = open(path, O_RDWR);
  check_without(path, test_map(path, QUAY_MAP_SHARED));
  close(other);
}

/* btrfs and f2fs write elsewhere each time, which a full disk may refuse. */
Test(mmap_write_lease, a_file_system_that_may_need_space_again_is_written_without) {
  static const int types[] = {(int)0x9123683eu, (int)0xf2f52010u, 0x6969};
  setenv("QUAY_COPY_THREADS", "3", 1);
  for (int i = 0; i < 3; ++i) {
    const char *path = make_file();
    atomic_store(&fake.type, types[i]);
    check_without(path, test_map(path, QUAY_MAP_SHARED));
    atomic_store(&fake.type, 0);
  }
}

/* A full disk, a failing one, an old kernel. */
Test(mmap_write_lease, pages_that_can_not_be_populated_are_not_touched) {
  static const int errors[] = {EFAULT, EIO, EINVAL, ENOMEM};
  setenv("QUAY_COPY_THREADS", "3", 1);
  for (int i = 0; i < 4; ++i) {
    const char *path = make_file();
    quay_buffer *file = test_map(path, QUAY_MAP_SHARED);
    atomic_store(&fake.populate_error, errors[i]);
    atomic_store(&fake.own_writes, 0);
    check_writing(file, path, 6);
    cr_assert_gt(atomic_load(&fake.own_writes), 0);
    atomic_store(&fake.populate_error, 0);
    quay_buffer_release(file);
  }
}

/* The source may lose its pages as well, which no lease on the destination prevents. */
Test(mmap_write_lease, from_another_mapping_nothing_is_written_by_stores) {
  const char *path = make_file();
  setenv("QUAY_COPY_THREADS", "3", 1);
  quay_buffer *file = test_map(path, QUAY_MAP_SHARED);
  quay_buffer *source = test_map(test_file("b", SIZE, 4), QUAY_MAP_SHARED);
  TEST_OK(quay_buffer_copy_from(file, source));
  cr_assert(test_file_is(path, SIZE, 4));
  cr_assert_eq(atomic_load(&fake.begun), 0);
  quay_buffer_release(source);
  quay_buffer_release(file);
}

Test(mmap_write_lease, a_private_mapping_takes_none) {
  const char *path = make_file();
  setenv("QUAY_COPY_THREADS", "3", 1);
  quay_buffer *file = test_map(path, QUAY_MAP_COPY_ON_WRITE);
  unsigned char *bytes = malloc(SIZE);
  test_fill(bytes, SIZE, 0, 5);
  TEST_OK(quay_buffer_copy_in(file, bytes, SIZE));
  cr_assert(test_buffer_is(file, 0, 5));
  cr_assert(test_file_is(path, SIZE, 3));
  cr_assert_eq(atomic_load(&fake.begun), 0);
  free(bytes);
  quay_buffer_release(file);
}

Test(mmap_write_lease, a_child_of_fork_takes_none_and_does_not_end_its_parents) {
  const char *path = make_file();
  setenv("QUAY_COPY_THREADS", "3", 1);
  quay_buffer *file = test_map(path, QUAY_MAP_SHARED);
  check_writing(file, path, 5);
  const int before = atomic_load(&fake.begun) + atomic_load(&fake.ended);
  cr_assert_gt(before, 0);
  const pid_t child = fork();
  cr_assert_geq(child, 0);
  if (child == 0) {
    unsigned char *bytes = malloc(SIZE);
    test_fill(bytes, SIZE, 0, 6);
    const bool right =
        quay_buffer_copy_in(file, bytes, SIZE) == QUAY_OK && test_file_is(path, SIZE, 6);
    _exit(right && atomic_load(&fake.begun) + atomic_load(&fake.ended) == before ? 0 : 1);
  }
  int status = 0;
  cr_assert_eq(waitpid(child, &status, 0), child);
  cr_assert_eq(status, 0);
  quay_buffer_release(file);
}

/* Others. */

static atomic_int signals;

static void count_signal(int number) {
  (void)number;
  atomic_fetch_add(&signals, 1);
}

typedef struct other {
  const char *path;
  int access;
  bool cuts;
  atomic_bool stop;
  atomic_int times;
} other;

static void *come_again_and_again(void *user) {
  other *job = user;
  while (!atomic_load(&job->stop)) {
    if (job->cuts) {
      cr_assert_eq(truncate(job->path, 4096), 0);
      cr_assert_eq(truncate(job->path, (off_t)SIZE), 0);
    } else {
      const int file = open(job->path, job->access);
      cr_assert_geq(file, 0);
      close(file);
    }
    /* Ever longer, so that even a slow machine takes a lease between two of them. */
    usleep(200 + (unsigned)atomic_fetch_add(&job->times, 1));
  }
  return NULL;
}

static void check_beside(other *job) {
  unsigned char *bytes = malloc(SIZE);
  job->path = make_file();
  cr_assert_neq(signal(SIGIO, count_signal), SIG_ERR);
  setenv("QUAY_COPY_THREADS", "3", 1);
  quay_buffer *file = test_map(job->path, QUAY_MAP_SHARED);
  pthread_t thread;
  cr_assert_eq(pthread_create(&thread, NULL, come_again_and_again, job), 0);
  int begun = 0;
  while (atomic_load(&job->times) < 200 || begun == 0) {
    test_fill(bytes, SIZE, 0, 7);
    const quay_status status = quay_buffer_copy_in(file, bytes, SIZE);
    cr_assert(status == QUAY_OK || (job->cuts && status == QUAY_STATUS_IO), "%s",
              quay_last_error()->message);
    if (!job->cuts)
      cr_assert(test_file_is(job->path, SIZE, 7));
    begun = atomic_load(&fake.begun);
  }
  atomic_store(&job->stop, true);
  pthread_join(thread, NULL);
  cr_assert_eq(atomic_load(&fake.begun), atomic_load(&fake.ended));
  cr_assert_eq(atomic_load(&signals), 0);
  /* And now that nobody comes any more: */
  TEST_OK(quay_buffer_copy_in(file, bytes, SIZE));
  cr_assert(test_file_is(job->path, SIZE, 7));
  quay_buffer_release(file);
  free(bytes);
}

Test(mmap_write_lease, readers_are_let_in_without_sigio_and_every_byte_arrives, .timeout = 120) {
  check_beside(&(other){.access = O_RDONLY});
}

Test(mmap_write_lease, writers_are_let_in_without_sigio_and_every_byte_arrives, .timeout = 120) {
  check_beside(&(other){.access = O_RDWR});
}

Test(mmap_write_lease, a_file_that_is_cut_meanwhile_is_an_error_and_no_sigbus, .timeout = 120) {
  check_beside(&(other){.cuts = true});
}

typedef struct part {
  quay_buffer *file;
  uint64_t offset;
  unsigned seed;
} part;

static void *write_part(void *user) {
  const part *own = user;
  unsigned char *bytes = malloc(3 * MIB);
  test_fill(bytes, 3 * MIB, own->offset, own->seed);
  quay_buffer *view = NULL;
  TEST_OK(quay_buffer_view(own->file, own->offset, 3 * MIB, &view));
  for (int i = 0; i < 10; ++i)
    TEST_OK(quay_buffer_copy_in(view, bytes, 3 * MIB));
  quay_buffer_release(view);
  free(bytes);
  return NULL;
}

Test(mmap_write_lease, threads_that_write_one_mapping_share_a_lease) {
  const char *path = make_file();
  quay_buffer *file = test_map(path, QUAY_MAP_SHARED);
  pthread_t threads[3];
  part parts[3];
  for (unsigned i = 0; i < 3; ++i) {
    parts[i] = (part){file, i * 3 * MIB, 8};
    cr_assert_eq(pthread_create(&threads[i], NULL, write_part, &parts[i]), 0);
  }
  for (int i = 0; i < 3; ++i)
    pthread_join(threads[i], NULL);
  cr_assert_gt(atomic_load(&fake.begun), 0);
  cr_assert_eq(atomic_load(&fake.begun), atomic_load(&fake.ended));
  unsigned char *bytes = malloc(SIZE);
  TEST_OK(quay_buffer_copy_out(file, bytes, SIZE));
  cr_assert(test_matches(bytes, 9 * MIB, 0, 8));
  cr_assert(test_matches(bytes + 9 * MIB, SIZE - 9 * MIB, 9 * MIB, 3));
  free(bytes);
  quay_buffer_release(file);
}

/* A file larger than what its disk has left: its pages can't all be made. */
static void check_full_disk(const char *threads) {
  (void)make_file();
  setenv("QUAY_COPY_THREADS", threads, 1);
  char path[4096];
  const char *small = test_path("small");
  test_mount_small(small, 4 * MIB);
  cr_assert_lt(snprintf(path, sizeof path, "%s/sparse", small), (int)sizeof path);
  const int made = open(path, O_RDWR | O_CREAT, 0600);
  cr_assert_geq(made, 0);
  cr_assert_eq(ftruncate(made, (off_t)SIZE), 0);
  close(made);
  quay_buffer *file = test_map(path, QUAY_MAP_SHARED);
  unsigned char *bytes = malloc(SIZE);
  test_fill(bytes, SIZE, 0, 5);
  test_expect_error(quay_buffer_copy_in(file, bytes, SIZE), QUAY_STATUS_IO, "ENOSPC", path);
  cr_assert_eq(atomic_load(&fake.begun), atomic_load(&fake.ended));
  free(bytes);
  quay_buffer_release(file);
}

Test(mmap_write_lease, a_full_disk_is_enospc_for_several_threads) {
  check_full_disk("3");
}

Test(mmap_write_lease, a_full_disk_is_enospc_for_one_thread) {
  check_full_disk("1");
}
