/* What the tests of files that are not in the page cache share. It is included once in a program
 * that is linked with --wrap for the functions below: what is in the page cache is made up, and how
 * the file is read is counted. */
#ifndef QUAY_TESTS_UNIT_COLD_FIXTURE_H
#define QUAY_TESTS_UNIT_COLD_FIXTURE_H

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/os.h"
#include "support/files.h"
#include "support/skip.h"

#define KIB UINT64_C(1024)
#define MIB (KIB * 1024)

/* What mincore() says. */
typedef enum answer {
  TRUTH,
  ALL_THERE,
  NONE_THERE,
  FIRST_MISSING, /* of all pages that it was asked for in this test */
  END_THERE,     /* the pages from fake.there_from on */
  CANNOT_TELL
} answer;

static struct {
  atomic_int mincore; /* an answer */
  atomic_uintptr_t there_from;
  atomic_int asked;        /* calls of mincore() */
  atomic_int cached_error; /* of pread_cached() */
  atomic_int cached_calls;
  atomic_int longest_read; /* by pread(), in bytes */
  atomic_int read_error;
  atomic_int wanted;              /* readers at a time that each of them waits for; 0: none */
  atomic_int patience;            /* milliseconds that they do: long where as many will come */
  atomic_int readers, most;       /* at a time */
  atomic_int direct, buffered;    /* calls of pread() for as much as direct I/O is for */
  atomic_int small;               /* for less */
  atomic_int direct_lasts;        /* milliseconds at least that a direct one takes */
  atomic_int buffered_lasts;      /* and that another large one does */
  atomic_int in_direct;           /* threads */
  atomic_int direct_from;         /* another descriptor that it reads from then, and one more */
  atomic_uint_fast64_t farthest;  /* place that a thread's first such call was for */
  atomic_uint_fast64_t available; /* of the machine's memory, in bytes; 0: the truth */
} fake = {.patience = 20000};

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
  case END_THERE:
    memset(out_resident, (uintptr_t)address >= atomic_load(&fake.there_from), pages);
    return 0;
  case CANNOT_TELL:
    break;
  }
  errno = EAGAIN;
  return -1;
}

/* For a while only: fewer may come. */
static inline void wait_for_readers(void) {
  const int now = atomic_fetch_add(&fake.readers, 1) + 1;
  int most = atomic_load(&fake.most);
  while (now > most && !atomic_compare_exchange_weak(&fake.most, &most, now))
    ;
  const uint64_t end = quay__os_nanoseconds() + (uint64_t)atomic_load(&fake.patience) * 1000000;
  while (atomic_load(&fake.most) < atomic_load(&fake.wanted)) {
    if (quay__os_nanoseconds() > end)
      break;
    usleep(1000);
  }
}

static inline void note_first(uint64_t offset) {
  static _Thread_local bool noted;
  uint64_t farthest = atomic_load(&fake.farthest);
  while (!noted && offset > farthest &&
         !atomic_compare_exchange_weak(&fake.farthest, &farthest, offset))
    ;
  noted = true;
}

static inline void wait_for_device(bool direct) {
  if (!direct || atomic_load(&fake.direct_lasts) == 0)
    return;
  atomic_fetch_add(&fake.in_direct, 1);
  usleep(1000 * (unsigned)atomic_load(&fake.direct_lasts));
  atomic_fetch_sub(&fake.in_direct, 1);
}

WRAP(ssize_t, pread, (int file, void *buffer, size_t size, uint64_t offset)) {
  const bool direct = (fcntl(file, F_GETFL) & O_DIRECT) != 0;
  int longest = atomic_load(&fake.longest_read);
  while ((int)size > longest &&
         !atomic_compare_exchange_weak(&fake.longest_read, &longest, (int)size))
    ;
  if (size >= 64 * KIB)
    note_first(offset);
  if (size >= 64 * KIB)
    atomic_fetch_add(direct ? &fake.direct : &fake.buffered, 1);
  if (size < 64 * KIB)
    atomic_fetch_add(&fake.small, 1);
  wait_for_readers();
  wait_for_device(direct);
  if (!direct && size >= 64 * KIB)
    usleep(1000 * (unsigned)atomic_load(&fake.buffered_lasts));
  const int other = direct ? atomic_load(&fake.direct_from) - 1 : -1;
  errno = atomic_load(&fake.read_error);
  const ssize_t got =
      errno != 0 ? -1 : __real_quay__os_pread(other >= 0 ? other : file, buffer, size, offset);
  atomic_fetch_sub(&fake.readers, 1);
  return got;
}

WRAP(ssize_t, pread_cached, (int file, void *buffer, size_t size, uint64_t offset)) {
  atomic_fetch_add(&fake.cached_calls, 1);
  errno = atomic_load(&fake.cached_error);
  return errno != 0 ? -1 : __real_quay__os_pread(file, buffer, size, offset);
}

WRAP(int, memory_info, (uint64_t * out_total, uint64_t *out_available)) {
  const int error = __real_quay__os_memory_info(out_total, out_available);
  if (atomic_load(&fake.available) != 0)
    *out_available = atomic_load(&fake.available);
  return error;
}

/* Skips the test where the file system has no direct I/O. */
static inline void need_direct(const char *path) {
  const int direct = open(path, O_RDONLY | O_DIRECT);
  if (direct < 0)
    quay_test_skip("direct", "the file system has no direct I/O: %s", strerror(errno));
  close(direct);
}

static inline quay_buffer *map_direct(const char *path) {
  quay_buffer *file = NULL;
  need_direct(path);
  TEST_OK(quay_map_file(path, &(quay_map_options){.direct = true}, &file));
  return file;
}

/* What is read of a file that is large enough before it is known which way is the faster one. */
#define LARGE_SIZE (260 * MIB + 777) /* the end without data */
#define TRIAL      (128 * MIB)
#define LARGE_DATA (TRIAL + 42 * MIB)

/* All by pieces: sanitizers take long for each page that is touched first. */
#define LARGE_PIECE (2 * MIB)

static inline const char *large_file(void) {
  const char *path = test_sparse_file("large", LARGE_SIZE);
  unsigned char *bytes = malloc(LARGE_PIECE);
  const int file = open(path, O_WRONLY);
  for (uint64_t done = 0; done < LARGE_DATA; done += LARGE_PIECE) {
    test_fill(bytes, LARGE_PIECE, done, 3);
    cr_assert_eq(pwrite(file, bytes, LARGE_PIECE, (off_t)done), (ssize_t)LARGE_PIECE);
  }
  close(file);
  free(bytes);
  return path;
}

static inline void check_there(quay_buffer *there, uint64_t offset) {
  unsigned char *bytes = malloc(LARGE_PIECE);
  const uint64_t size = quay_buffer_size(there);
  for (uint64_t done = 0; done < size; done += LARGE_PIECE) {
    const uint64_t step = size - done < LARGE_PIECE ? size - done : LARGE_PIECE;
    quay_buffer *piece = NULL;
    TEST_OK(quay_buffer_view(there, done, step, &piece));
    TEST_OK(quay_buffer_copy_out(piece, bytes, step));
    cr_assert(test_matches(bytes, step, offset + done, 3));
    quay_buffer_release(piece);
  }
  free(bytes);
}

static inline quay_buffer *map_large(void) {
  const char *path = large_file();
  need_direct(path);
  /* The disk may be busy with something else: what takes long is made up. */
  static int file = -1;
  if (file >= 0)
    close(file);
  file = open(path, O_RDONLY);
  cr_assert_geq(file, 0);
  atomic_store(&fake.direct_from, file + 1);
  return test_map(path, QUAY_MAP_READ_ONLY);
}

static inline void forget_reads(void) {
  atomic_store(&fake.direct, 0);
  atomic_store(&fake.buffered, 0);
}

static inline void read_region(quay_buffer *file, quay_allocator *to, uint64_t offset,
                               uint64_t size) {
  quay_buffer *there = NULL;
  const uint8_t poison = 0xEE;
  TEST_OK(quay_buffer_create(to, QUAY_U8, 1, (int64_t[]){(int64_t)size}, NULL, &there));
  TEST_OK(quay_buffer_fill(there, &poison, 1));
  TEST_OK(quay_buffer_copy_region(there, 0, file, offset, size, NULL));
  check_there(there, offset);
  quay_buffer_release(there);
}

/* The first copy has both ways, the next one that which is `direct` or not. */
static inline void check_choice(quay_allocator *to, int buffered_lasts, int direct_lasts,
                                bool direct) {
  /* More would wait for a processor rather than for what is made up. */
  setenv("QUAY_COPY_THREADS", "4", 1);
  quay_buffer *file = map_large();
  atomic_store(&fake.mincore, NONE_THERE);
  atomic_store(&fake.buffered_lasts, buffered_lasts);
  atomic_store(&fake.direct_lasts, direct_lasts);
  read_region(file, to, 4096, TRIAL + 40 * MIB + 5);
  cr_assert_geq(atomic_load(&fake.buffered), 60);
  cr_assert_geq(atomic_load(&fake.direct), 60);
  forget_reads();
  atomic_store(&fake.buffered_lasts, 0);
  atomic_store(&fake.direct_lasts, 0);
  read_region(file, to, 991, 40 * MIB + 991);
  const int other = atomic_load(direct ? &fake.buffered : &fake.direct);
  cr_assert_eq(other, 0, "%d reads in the slower way", other);
  cr_assert_geq(atomic_load(direct ? &fake.direct : &fake.buffered), 10);
  quay_buffer_release(file);
}

static inline quay_buffer *map_one(const char *path, bool direct) {
  return direct ? map_direct(path) : test_map(path, QUAY_MAP_READ_ONLY);
}

static inline quay_copy_plan_info plan_of(quay_buffer *to, const quay_buffer *from, uint64_t offset,
                                          uint64_t size, uint32_t max_threads) {
  const quay_copy_options options = {.max_threads = max_threads};
  quay_copy_plan_info plan;
  TEST_OK(quay_copy_plan(to, 0, from, offset, size, &options, &plan));
  return plan;
}

/* Files of more than 4 GiB, most of it without blocks. */
#define GIB         (MIB * 1024)
#define BEYOND_SIZE (6 * GIB + 12345)
#define BEYOND_DATA (12 * MIB) /* around 4 GiB, and at the end */

static inline void write_data(int file, uint64_t offset, uint64_t size) {
  unsigned char *bytes = malloc(size);
  test_fill(bytes, size, offset, 7);
  cr_assert_eq(pwrite(file, bytes, size, (off_t)offset), (ssize_t)size);
  free(bytes);
}

/* What was written is not in the page cache any more. */
static inline const char *beyond_file(void) {
  const char *path = test_sparse_file("beyond", BEYOND_SIZE);
  const int file = open(path, O_WRONLY);
  write_data(file, 4 * GIB - BEYOND_DATA / 2, BEYOND_DATA);
  write_data(file, BEYOND_SIZE - MIB, MIB);
  cr_assert_eq(fsync(file), 0);
  cr_assert_eq(posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED), 0);
  close(file);
  return path;
}

/* A file of which the page cache can keep all but a byte. */
#define HUGE_SIZE (300 * MIB)
#define HUGE_DATA (20 * MIB) /* at its start */

static inline quay_buffer *map_huge(void) {
  const char *path = test_sparse_file("huge", HUGE_SIZE);
  const int file = open(path, O_WRONLY);
  write_data(file, 0, HUGE_DATA);
  cr_assert_eq(fsync(file), 0);
  close(file);
  need_direct(path);
  atomic_store(&fake.available, HUGE_SIZE - 1);
  return test_map(path, QUAY_MAP_READ_ONLY);
}

static inline void copy_of_huge(quay_buffer *file, quay_allocator *to, uint64_t offset,
                                uint64_t size) {
  quay_buffer *there = test_buffer(to, size, 3);
  TEST_OK(quay_buffer_copy_region(there, 0, file, offset, size, NULL));
  cr_assert(test_buffer_is(there, offset, 7));
  quay_buffer_release(there);
}

/* Copies windows across 4 GiB and at the end, small ones and such as are read from the disk by
 * several threads, first what is not in the page cache and then what may be, and checks them. */
static inline void check_beyond(quay_allocator *to, bool direct) {
  quay_buffer *file = map_one(beyond_file(), direct);
  static const struct {
    uint64_t offset, size;
  } windows[] = {{4 * GIB - 5 * MIB - 77, 10 * MIB + 991},
                 {4 * GIB - 300 * KIB, 700 * KIB},
                 {4 * GIB - 1, 2},
                 {4 * GIB + 4096, 3 * MIB},
                 {BEYOND_SIZE - MIB + 5, MIB - 5},
                 {4 * GIB - 5 * MIB - 77, 10 * MIB + 991}};
  for (size_t i = 0; i < sizeof windows / sizeof windows[0]; i++) {
    const uint64_t size = windows[i].size;
    quay_buffer *there = test_buffer(to, size, 3);
    TEST_OK(quay_buffer_copy_region(there, 0, file, windows[i].offset, size, NULL));
    cr_assert(test_buffer_is(there, windows[i].offset, 7), "window %zu", i);
    quay_buffer_release(there);
  }
  quay_buffer_release(file);
}

#endif
