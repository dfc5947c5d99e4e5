/* Writing to files, in one of two ways; where the bytes come from and how they are split is
 * copy.c's.
 *
 * By pwrite on the descriptor: the kernel lets one writer at a time into a file.
 *
 * By several threads at once through a shared mapping, with calls on the process's own memory: they
 * fault pages in as a store would, but answer EFAULT where that would raise SIGBUS, at the end of a
 * truncated file and on a full disk. Whatever such a call can't do is done by pwrite, which also
 * says what is wrong. On two cores (Xeon, ext4, Linux 6.18, GB/s, 1 GiB): pages in the cache 5.7
 * with one pwrite or two, 5.6 with one such call and 10.5 with two; blocks that were never written
 * 4.4 with one pwrite or two, 3.1 and 5.6. So it takes two threads; and pages that are in the cache
 * or were never written, since any other the fault would read from the disk before it is
 * overwritten. */
#include <errno.h>

#include "core/checked.h"
#include "core/environment.h"
#include "core/error.h"
#include "core/os.h"
#include "core/thread.h"
#include "mmap/mmap_impl.h"

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

bool quay__mmap_writes_together(const quay__mapping *mapping, uint32_t threads) {
  if (mapping->mode != QUAY_MAP_SHARED || mapping->access != QUAY__ACCESS_FILE || mapping->lent ||
      mapping->mapped == 0 || !quay__mmap_is_local(mapping->file))
    return false;
  if (!quay__thread_in_staging)
    return threads > 1;
  /* A piece of a staged copy: others of it are written meanwhile, if there are several threads. */
  quay__error_state before;
  quay__error_save(&before);
  uint32_t all = 1;
  if (quay__environment_copy_threads(&all) != QUAY_OK)
    quay__error_restore(&before);
  return all > 1;
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

int quay__mmap_write_together(const quay__mapping *mapping, uint64_t offset, unsigned char *memory,
                              uint64_t size) {
  while (size != 0) {
    const uint64_t step = quay__min(size, QUAY__MMAP_PIECE_MAX);
    const int error = check_size(mapping);
    if (error != 0)
      return error;
    if (!is_cached(mapping, offset, step) && !quay__os_is_hole(mapping->file, offset, step))
      break;
    const ssize_t put = quay__os_write_own_memory(quay__mapping_at(mapping, offset), memory, step);
    if (put <= 0)
      break;
    memory += put;
    offset += (uint64_t)put;
    size -= (uint64_t)put;
  }
  return quay__mmap_write_file(mapping, offset, memory, size);
}
