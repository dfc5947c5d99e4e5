/* The pages of mappings, without their bytes: synchronising them with the file, and advice on them.
 */
#include <errno.h>
#include <sys/mman.h>

#include "core/error.h"
#include "core/os.h"
#include "mmap/mmap_impl.h"

#ifndef MADV_COLD /* since Linux 5.4 */
#define MADV_COLD 20
#endif

/* The pages that a range touches. */
static void pages_of(const quay__mapping *mapping, uint64_t offset, uint64_t size,
                     unsigned char **out_start, uint64_t *out_size) {
  unsigned char *place = quay__mapping_at(mapping, offset);
  const uint64_t before = (uintptr_t)place & (quay__os_page_size() - 1);
  *out_start = place - before;
  *out_size = before + size;
}

quay_status quay__mmap_flush(quay_allocator *allocator, const quay_raw_buffer *raw, uint64_t offset,
                             uint64_t size) {
  (void)allocator;
  const quay__mapping *mapping = quay__mapping_of(raw);
  /* Private pages have no file behind them, and an unlinked file is not there after a crash. */
  if (mapping->mode != QUAY_MAP_SHARED || !mapping->exposed)
    return QUAY_OK;
  const uint64_t place = raw->as.mmap.file_offset + offset;
  unsigned char *start;
  uint64_t bytes;
  pages_of(mapping, place, size, &start, &bytes);
  if (quay__os_msync(start, bytes, MS_SYNC) != 0) {
    return quay__fail_errno(quay__status_of_errno(errno), QUAY__MMAP_NAME, errno,
                            "synchronising %llu bytes at offset %llu of '%s' failed",
                            (unsigned long long)size, (unsigned long long)place, mapping->path);
  }
  return quay__mapping_check_size(mapping);
}

/* Advice that must not change contents. Pages of our own file mappings may be dropped, they stay in
 * the page cache; others may be private, so that they are only marked as cold. */
static int madvise_of(const quay__mapping *mapping, quay_advice advice) {
  switch (advice) {
  case QUAY_ADVICE_NORMAL:
    return MADV_NORMAL;
  case QUAY_ADVICE_SEQUENTIAL:
    return MADV_SEQUENTIAL;
  case QUAY_ADVICE_RANDOM:
    return MADV_RANDOM;
  case QUAY_ADVICE_WILL_NEED:
    return MADV_WILLNEED;
  case QUAY_ADVICE_DONT_NEED:
    return mapping->shared ? MADV_DONTNEED : MADV_COLD;
  case QUAY_ADVICE_HUGE_PAGES:
    return MADV_HUGEPAGE;
  }
  return MADV_NORMAL;
}

quay_status quay__mmap_advise(quay_allocator *allocator, const quay_raw_buffer *raw,
                              uint64_t offset, uint64_t size, quay_advice advice) {
  (void)allocator;
  const quay__mapping *mapping = quay__mapping_of(raw);
  const uint64_t place = raw->as.mmap.file_offset + offset;
  unsigned char *start;
  uint64_t bytes;
  pages_of(mapping, place, size, &start, &bytes);
  if (advice == QUAY_ADVICE_DONT_NEED)
    quay__populated_drop(mapping, place, size);
  /* EINVAL: this kernel or file system does not know the advice, which then does nothing. */
  if (quay__os_madvise(start, bytes, madvise_of(mapping, advice)) != 0 && errno != EINVAL) {
    return quay__fail_errno(quay__status_of_errno(errno), QUAY__MMAP_NAME, errno,
                            "advising on %llu bytes at offset %llu of '%s' failed",
                            (unsigned long long)size, (unsigned long long)place, mapping->path);
  }
  return QUAY_OK;
}
