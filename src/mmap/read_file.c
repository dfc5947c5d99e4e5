/* Reading files by calls on their descriptors: through the page cache, and with direct I/O where
 * the mapping was opened for it. What the page cache has is read faster by read.c; which way is
 * taken, and how ranges are split, is copy.c's. */
#include <errno.h>
#include <string.h>

#include "core/checked.h"
#include "core/lock.h"
#include "core/os.h"
#include "core/thread.h"
#include "mmap/mmap_impl.h"

#define BOUNCE_SIZE ((uint64_t)1 << 20)

int quay__mmap_read_buffered(const quay__mapping *mapping, uint64_t offset, unsigned char *memory,
                             uint64_t size) {
  const uint64_t page = quay__os_page_size();
  while (size != 0) {
    uint64_t step = quay__min(size, QUAY__MMAP_PIECE_MAX);
    /* A page-aligned destination doubles the rate of what follows. */
    const uint64_t past = (uintptr_t)memory & (page - 1);
    if (past != 0 && step > 16 * page)
      step = page - past;
    const ssize_t got = quay__os_pread(mapping->file, memory, step, offset);
    if (got < 0)
      return errno;
    if (got == 0)
      return QUAY__MMAP_ENDED;
    memory += got;
    offset += (uint64_t)got;
    size -= (uint64_t)got;
  }
  return 0;
}

/* `offset` and `size` are aligned, `memory` is too. The page cache does what direct I/O does not.
 */
static int read_direct_aligned(const quay__mapping *mapping, uint64_t offset, unsigned char *memory,
                               uint64_t size) {
  const uint64_t alignment = mapping->direct_offset_alignment;
  while (size != 0) {
    quay__fork_hold();
    const ssize_t got =
        quay__os_pread(mapping->direct_file, memory, quay__min(size, QUAY__MMAP_PIECE_MAX), offset);
    const int error = got < 0 ? errno : 0;
    quay__fork_let();
    if (error != 0 && error != EINVAL)
      return error;
    if (got == 0)
      return QUAY__MMAP_ENDED;
    if (got < 0 || (uint64_t)got % alignment != 0)
      break;
    memory += got;
    offset += (uint64_t)got;
    size -= (uint64_t)got;
  }
  return quay__mmap_read_buffered(mapping, offset, memory, size);
}

/* Through aligned memory in between, because the destination does not fit the file's alignment. */
static int read_direct_bounced(const quay__mapping *mapping, uint64_t offset, unsigned char *memory,
                               uint64_t size) {
  const uint64_t alignment = quay__max(mapping->direct_memory_alignment, quay__os_page_size());
  const uint64_t chunk =
      quay__max(quay__align_down(quay__min(size, BOUNCE_SIZE), mapping->direct_offset_alignment),
                mapping->direct_offset_alignment);
  unsigned char *bounce = quay__os_aligned_alloc(alignment, chunk);
  if (bounce == NULL)
    return quay__mmap_read_buffered(mapping, offset, memory, size);
  int error = 0;
  for (uint64_t done = 0; done < size && error == 0;) {
    const uint64_t step = quay__min(chunk, size - done);
    error = read_direct_aligned(mapping, offset + done, bounce, step);
    if (error == 0)
      memcpy(memory + done, bounce, step);
    done += step;
  }
  quay__os_free(bounce);
  return error;
}

static int read_direct(const quay__mapping *mapping, uint64_t offset, unsigned char *memory,
                       uint64_t size) {
  const uint64_t alignment = mapping->direct_offset_alignment;
  const uint64_t head = quay__min((alignment - (offset & (alignment - 1))) & (alignment - 1), size);
  const uint64_t middle = quay__align_down(size - head, alignment);
  int error = quay__mmap_read_buffered(mapping, offset, memory, head);
  if (error != 0)
    return error;
  const bool fits = ((uintptr_t)(memory + head) & (mapping->direct_memory_alignment - 1)) == 0;
  error = fits ? read_direct_aligned(mapping, offset + head, memory + head, middle)
               : read_direct_bounced(mapping, offset + head, memory + head, middle);
  if (error != 0)
    return error;
  return quay__mmap_read_buffered(mapping, offset + head + middle, memory + head + middle,
                                  size - head - middle);
}

/* As quickly as the disk allows, as far as that is known; and finds out. */
static int read_measured(const quay__mapping *mapping, uint64_t offset, unsigned char *memory,
                         uint64_t size) {
  const quay__disk_piece piece = quay__disk_begin(mapping->device, size);
  const int error = piece.direct ? read_direct(mapping, offset, memory, size)
                                 : quay__mmap_read_buffered(mapping, offset, memory, size);
  quay__disk_end(&piece, error != 0);
  return error;
}

int quay__mmap_read_file(const quay__mapping *mapping, uint64_t offset, unsigned char *memory,
                         uint64_t size) {
  if (mapping->direct_file < 0 || size < QUAY__MMAP_DIRECT_MIN)
    return quay__mmap_read_buffered(mapping, offset, memory, size);
  if (mapping->direct_use != QUAY__DIRECT_IF_FASTER)
    return read_direct(mapping, offset, memory, size);
  return quay__thread_reads_disk ? read_measured(mapping, offset, memory, size)
                                 : quay__mmap_read_buffered(mapping, offset, memory, size);
}
