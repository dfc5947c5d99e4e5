/* Writing to files, in one of three ways; where the bytes come from and how they are split is
 * copy.c's.
 *
 * By pwrite on the descriptor: the kernel lets one writer at a time into a file.
 *
 * By streaming stores into a shared mapping while a lease (lease.c) keeps the file as it is. The
 * pages are populated for writing before, which is where a full disk shows.
 *
 * By calls on the process's own memory, where there is no lease: they fault pages in as a store
 * would, but answer EFAULT where that would raise SIGBUS, at the end of a truncated file and on a
 * full disk. Whatever such a call can't do is done by pwrite, which also says what is wrong.
 *
 * Of pages in the cache stores write one and a half times to twice as much as calls, and with two
 * threads two and a half to four times as much as pwrite (two cores; `bench_staging --limits`,
 * `quay matrix --between cpu,mapping`); of blocks that were never written one thread writes most by
 * pwrite, several by stores. So one thread alone writes what is in the cache by stores and the rest
 * by pwrite. What is neither in the cache nor was never written is for pwrite: a fault would read
 * it from the disk before it is overwritten. */
#include <errno.h>
#include <sys/mman.h>

#include "core/checked.h"
#include "core/environment.h"
#include "core/error.h"
#include "core/host_copy.h"
#include "core/os.h"
#include "core/thread.h"
#include "mmap/mmap_impl.h"

#ifndef MADV_POPULATE_WRITE /* linux/mman.h, since Linux 5.14 */
#define MADV_POPULATE_WRITE 23
#endif

/* How often the page cache is asked: what comes and goes together. */
#define PROBE_DISTANCE ((uint64_t)512 << 10)

/* A write past the end would make the file longer, so that its size is looked at before each. */
static int check_size(const quay__mapping *mapping) {
  struct stat status;
  if (!mapping->exposed)
    return 0;
  if (quay__os_fstat(mapping->file, &status) != 0)
    return errno;
  return (uint64_t)status.st_size < mapping->file_size ? QUAY__MMAP_ENDED : 0;
}

int quay__mmap_write_file(const quay__mapping *mapping, uint64_t offset, unsigned char *memory,
                          uint64_t size) {
  while (size != 0) {
    const int error = check_size(mapping);
    if (error != 0)
      return error;
    const ssize_t put =
        quay__os_pwrite(mapping->file, memory, quay__min(size, QUAY__MMAP_PIECE_MAX), offset);
    if (put < 0)
      return errno;
    if (put == 0)
      return EIO;
    memory += put;
    offset += (uint64_t)put;
    size -= (uint64_t)put;
  }
  return 0;
}

static bool writes_mapped(const quay__mapping *mapping) {
  return mapping->mode == QUAY_MAP_SHARED && mapping->access == QUAY__ACCESS_FILE &&
         !mapping->lent && mapping->mapped != 0;
}

bool quay__mmap_writes_together(const quay__mapping *mapping, uint32_t threads) {
  if (!writes_mapped(mapping) || !quay__mmap_is_local(mapping->file))
    return false;
  if (!quay__thread_in_staging)
    return threads > 1;
  /* A piece of a staged copy: others of it are written meanwhile, if there are several threads. */
  return quay__environment_copy_threads() > 1;
}

/* Whether the whole range seems to be in the page cache. */
static bool is_cached(const quay__mapping *mapping, uint64_t offset, uint64_t size) {
  unsigned char byte;
  for (uint64_t at = 0; at < size; at += PROBE_DISTANCE) {
    if (quay__os_pread_cached(mapping->file, &byte, 1, offset + at) != 1)
      return false;
  }
  return quay__os_pread_cached(mapping->file, &byte, 1, offset + size - 1) == 1;
}

/* False, and nothing was moved, where that can't be done. */
static bool write_leased(const quay__mapping *mapping, uint64_t offset, const unsigned char *memory,
                         uint64_t size) {
  /* A mapping is never in memory that is const. */
  quay__mapping *owner =
      (quay__mapping *)(uintptr_t)mapping; /* NOLINT(performance-no-int-to-ptr) */
  if (!quay__lease_take(owner, true))
    return false;
  unsigned char *place = quay__mapping_at(mapping, offset);
  const uint64_t before = (uintptr_t)place & (quay__os_page_size() - 1);
  const bool there = quay__os_madvise(place - before, before + size, MADV_POPULATE_WRITE) == 0;
  if (there)
    quay__host_stream(place, memory, size);
  quay__lease_drop(owner);
  return there;
}

typedef enum company {
  COMPANY_NONE,  /* nobody else writes to the file */
  COMPANY_OTHERS /* other threads write to it meanwhile */
} company;

/* Bytes of a piece that were written through the mapping. */
static uint64_t write_mapped(const quay__mapping *mapping, uint64_t offset, unsigned char *memory,
                             uint64_t size, company beside, bool stores) {
  const bool cached = is_cached(mapping, offset, size);
  if (!cached && (beside == COMPANY_NONE || !quay__os_is_hole(mapping->file, offset, size)))
    return 0;
  if (stores && write_leased(mapping, offset, memory, size))
    return size;
  if (beside == COMPANY_NONE)
    return 0;
  const ssize_t put = quay__os_write_own_memory(quay__mapping_at(mapping, offset), memory, size);
  return put > 0 ? (uint64_t)put : 0;
}

static int write_range(const quay__mapping *mapping, uint64_t offset, unsigned char *memory,
                       uint64_t size, company beside, bool stores) {
  while (size != 0) {
    const uint64_t step = quay__min(size, QUAY__MMAP_PIECE_MAX);
    const int error = check_size(mapping);
    if (error != 0)
      return error;
    const uint64_t put = write_mapped(mapping, offset, memory, step, beside, stores);
    if (put == 0)
      break;
    memory += put;
    offset += put;
    size -= put;
  }
  return quay__mmap_write_file(mapping, offset, memory, size);
}

int quay__mmap_write_together(const quay__mapping *mapping, uint64_t offset, unsigned char *memory,
                              uint64_t size) {
  return write_range(mapping, offset, memory, size, COMPANY_OTHERS, true);
}

int quay__mmap_write_by_calls(const quay__mapping *mapping, uint64_t offset, unsigned char *memory,
                              uint64_t size) {
  return write_range(mapping, offset, memory, size, COMPANY_OTHERS, false);
}

int quay__mmap_write_alone(const quay__mapping *mapping, uint64_t offset, unsigned char *memory,
                           uint64_t size) {
  if (!writes_mapped(mapping))
    return quay__mmap_write_file(mapping, offset, memory, size);
  return write_range(mapping, offset, memory, size, COMPANY_NONE, true);
}
