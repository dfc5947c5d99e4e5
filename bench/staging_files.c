/* What a file system gives to threads that read and write a file in the page cache, each with a
 * slot of its own: by pread and pwrite, through a mapping, and by the call that moves memory
 * between processes, here within one. The best of them is what copies between devices and files can
 * reach.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include "core/host_copy.h"
#include "core/os.h"
#include "staging.h"

enum {
  MOVERS_MAX = 16,
  FILE_RUNS = 3,
};

#define SLOT (4 * MIB)

typedef enum way {
  READ_CALLS,
  READ_MAPPING,
  WRITE_CALLS,
  WRITE_MAPPING,
  WRITE_MOVES,
  WRITE_STORES,
  WAYS,
} way;

static const char *const way_names[WAYS] = {"pread",
                                            "memcpy from a mapping",
                                            "pwrite",
                                            "memcpy to a mapping",
                                            "process_vm_writev to one",
                                            "streaming stores to one"};

typedef struct work {
  way way;
  int file;
  unsigned char *mapping;
  uint64_t size;
  atomic_uint_fast64_t next; /* bytes that are taken */
  atomic_bool failed;
} work;

static bool move(const work *all, unsigned char *slot, uint64_t at) {
  unsigned char *there = all->mapping + at;
  switch (all->way) {
  case READ_CALLS:
    return pread(all->file, slot, SLOT, (off_t)at) == (ssize_t)SLOT;
  case READ_MAPPING:
    memcpy(slot, there, SLOT);
    return true;
  case WRITE_CALLS:
    return pwrite(all->file, slot, SLOT, (off_t)at) == (ssize_t)SLOT;
  case WRITE_MAPPING:
    memcpy(there, slot, SLOT);
    return true;
  case WRITE_MOVES: {
    const struct iovec from = {slot, SLOT}, to = {there, SLOT};
    return process_vm_writev(getpid(), &from, 1, &to, 1, 0) == (ssize_t)SLOT;
  }
  case WRITE_STORES:
    quay__host_stream(there, slot, SLOT);
    return true;
  case WAYS:
    break;
  }
  return false;
}

static void *mover(void *argument) {
  work *all = argument;
  unsigned char *slot =
      mmap(NULL, SLOT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (slot == MAP_FAILED) {
    atomic_store(&all->failed, true);
    return NULL;
  }
  memset(slot, 0x3c, SLOT);
  for (;;) {
    const uint64_t at = atomic_fetch_add(&all->next, SLOT);
    if (at >= all->size)
      break;
    if (!move(all, slot, at))
      atomic_store(&all->failed, true);
  }
  (void)munmap(slot, SLOT);
  return NULL;
}

static double seconds_with(work *all, uint32_t threads) {
  pthread_t ids[MOVERS_MAX];
  atomic_store(&all->next, 0);
  const uint64_t began = quay__os_nanoseconds();
  for (uint32_t i = 0; i < threads; i++) {
    if (pthread_create(&ids[i], NULL, mover, all) != 0)
      exit(1);
  }
  for (uint32_t i = 0; i < threads; i++)
    (void)pthread_join(ids[i], NULL);
  return (double)(quay__os_nanoseconds() - began) * 1e-9;
}

static int by_seconds(const void *a, const void *b) {
  const double left = *(const double *)a, right = *(const double *)b;
  return (left > right) - (left < right);
}

static void measure_way(work *all, way chosen) {
  static const uint32_t threads[] = {1, 2, 4, 8, 12};
  all->way = chosen;
  printf("  %-26s", way_names[chosen]);
  for (size_t i = 0; i < sizeof threads / sizeof threads[0]; i++) {
    double seconds[FILE_RUNS];
    (void)seconds_with(all, threads[i]); /* makes the page table entries */
    for (int run = 0; run < FILE_RUNS; run++)
      seconds[run] = seconds_with(all, threads[i]);
    qsort(seconds, FILE_RUNS, sizeof seconds[0], by_seconds);
    printf("  %u: %6.2f", threads[i], (double)all->size / seconds[FILE_RUNS / 2] * 1e-9);
  }
  printf("\n");
  fflush(stdout);
}

void bench_files(const bench *all) {
  char path[64] = "/tmp/quay-bench-files-XXXXXX";
  work files = {.file = mkstemp(path), .size = all->set.size / SLOT * SLOT};
  if (files.size > 1024 * MIB)
    files.size = 1024 * MIB;
  bool good = files.file >= 0 && files.size != 0;
  for (uint64_t at = 0; good && at < files.size; at += SLOT)
    good = pwrite(files.file, all->bytes + at, SLOT, (off_t)at) == (ssize_t)SLOT;
  files.mapping =
      good ? mmap(NULL, files.size, PROT_READ | PROT_WRITE, MAP_SHARED, files.file, 0) : MAP_FAILED;
  bench_check(files.mapping != MAP_FAILED ? QUAY_OK : QUAY_STATUS_IO, path);
  printf("\nthe file system, %llu MiB in the page cache, GB/s with 1 to 12 threads:\n",
         (unsigned long long)(files.size / MIB));
  for (way each = READ_CALLS; each < WAYS; each++)
    measure_way(&files, each);
  bench_check(!atomic_load(&files.failed) ? QUAY_OK : QUAY_STATUS_IO, path);
  (void)munmap(files.mapping, files.size);
  (void)close(files.file);
  (void)unlink(path);
}
