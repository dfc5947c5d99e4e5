/* How bytes get into and out of mapped files: by pread and pwrite on the descriptor, or for private
 * pages by calls on the process's own memory. Both answer EFAULT or fall short where touching the
 * mapping would raise SIGBUS, so that a file truncated behind it is an error on every path.
 *
 * What can't be closed: a file that another process truncates between the check of its size and a
 * pwrite grows again by that write; and where a sandbox forbids calls on the process's own memory,
 * pages are populated and then touched, which a truncation in between turns into SIGBUS. */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "core/checked.h"
#include "core/copy_route.h"
#include "core/copy_threads.h"
#include "core/error.h"
#include "core/host_copy.h"
#include "core/lock.h"
#include "core/os.h"
#include "core/stretches.h"
#include "core/thread.h"
#include "core/workers.h"
#include "mmap/mmap_impl.h"

#ifndef MADV_POPULATE_READ /* linux/mman.h, since Linux 5.14 */
#define MADV_POPULATE_READ  22
#define MADV_POPULATE_WRITE 23
#endif

#define PIECE_MAX QUAY__MMAP_PIECE_MAX
#define PIECE_MIN ((uint64_t)1 << 20)

/* Transfers from this size on are split between threads. */
#define PARALLEL_MIN ((uint64_t)2 << 20)

/* Pieces of staged copies of this size on are written as such transfers are, and read as what is
 * large. */
#define STAGED_MIN ((uint64_t)256 << 10)

/* From here on reads of what is in the page cache are worth read.c's preparations. */
#define CACHED_MIN ((uint64_t)8 << 20)

/* What a thread reads at a time of a range that is not in the page cache. */
#define COLD_PIECE ((uint64_t)1 << 20)

/* The same with direct I/O, where each is one request to the disk: large ones where each thread
 * still has several. */
#define DIRECT_PIECE_MIN ((uint64_t)512 << 10)
#define DIRECT_PIECE_MAX ((uint64_t)4 << 20)

/* Between two mappings; so many keep a disk busy. */
#define BOUNCE_SIZE ((uint64_t)1 << 20)
#define BOUNCES     4u

#define FILL_SIZE ((uint64_t)256 << 10)

/* Staged copies cut a file here: of the page cache, and what direct I/O needs at most. */
#define PAGE ((uint64_t)4096)

/* A way to move bytes between a place in the file and memory: 0, an errno or QUAY__MMAP_ENDED. */
typedef int (*move_function)(const quay__mapping *mapping, uint64_t offset, unsigned char *memory,
                             uint64_t size);

/* One transfer, cut into pieces for the workers. */
typedef struct transfer {
  const quay__mapping *mapping;
  const quay__mapping *other; /* that `memory` lies in; NULL: it can't be truncated */
  move_function move;
  bool write; /* to the file */
  bool cold;  /* most of it has to come from the disk */
  uint64_t offset;
  unsigned char *memory;
  uint64_t size;
  uint64_t head; /* bytes before the first boundary; belong to the first piece */
  uint64_t piece;
  quay__stretches *stretches; /* of what comes after the head, where it is cold */
} transfer;

/* Moving: reading the file. */

/* As quay__mmap_read_buffered(), for ranges of CACHED_MIN and more. */
static int read_large(const quay__mapping *mapping, uint64_t offset, unsigned char *memory,
                      uint64_t size) {
  const uint64_t done = quay__mmap_read_cached(mapping, offset, memory, size);
  return quay__mmap_read_buffered(mapping, offset + done, memory + done, size - done);
}

/* Moving: the process's own pages. */

/* Where a sandbox forbids calls on the process's own memory: makes the pages present, then touches
 * them. Kernels that can't populate (EINVAL) leave the check of the size. */
static int touch_populated(const quay__mapping *mapping, uint64_t offset, unsigned char *memory,
                           uint64_t size, bool write) {
  const uint64_t page = quay__os_page_size();
  for (uint64_t done = 0; done < size;) {
    const uint64_t step = quay__min(size - done, PIECE_MIN);
    unsigned char *place = quay__mapping_at(mapping, offset + done);
    const uint64_t before = (uintptr_t)place & (page - 1);
    const int advice = write ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;
    if (quay__os_madvise(place - before, before + step, advice) != 0) {
      if (errno != EINVAL)
        return errno;
      struct stat status;
      if (mapping->file >= 0 && quay__os_fstat(mapping->file, &status) != 0)
        return errno;
      if (mapping->file >= 0 && (uint64_t)status.st_size < mapping->file_size)
        return QUAY__MMAP_ENDED;
    }
    if (write) {
      memcpy(place, memory + done, step);
    } else {
      memcpy(memory + done, place, step);
    }
    done += step;
  }
  return 0;
}

static int move_guarded(const quay__mapping *mapping, uint64_t offset, unsigned char *memory,
                        uint64_t size, bool write) {
  while (size != 0) {
    const uint64_t step = quay__min(size, PIECE_MAX);
    unsigned char *place = quay__mapping_at(mapping, offset);
    const ssize_t moved = write ? quay__os_write_own_memory(place, memory, step)
                                : quay__os_read_own_memory(memory, place, step);
    if (moved < 0 && (errno == ENOSYS || errno == EPERM)) {
      return touch_populated(mapping, offset, memory, size, write);
    }
    if (moved < 0)
      return errno;
    if (moved == 0)
      return EFAULT;
    memory += moved;
    offset += (uint64_t)moved;
    size -= (uint64_t)moved;
  }
  return 0;
}

static int read_guarded(const quay__mapping *mapping, uint64_t offset, unsigned char *memory,
                        uint64_t size) {
  return move_guarded(mapping, offset, memory, size, false);
}

static int write_guarded(const quay__mapping *mapping, uint64_t offset, unsigned char *memory,
                         uint64_t size) {
  return move_guarded(mapping, offset, memory, size, true);
}

/* Moving: pages that stay. */

static int read_plain(const quay__mapping *mapping, uint64_t offset, unsigned char *memory,
                      uint64_t size) {
  quay__host_copy(memory, quay__mapping_at(mapping, offset), size, 0);
  return 0;
}

static int write_plain(const quay__mapping *mapping, uint64_t offset, unsigned char *memory,
                       uint64_t size) {
  quay__host_copy(quay__mapping_at(mapping, offset), memory, size, 0);
  return 0;
}

static move_function reader_of(const quay__mapping *mapping) {
  switch (mapping->access) {
  case QUAY__ACCESS_FILE:
    return quay__mmap_read_file;
  case QUAY__ACCESS_GUARDED:
    return read_guarded;
  case QUAY__ACCESS_PLAIN:
    break;
  }
  return read_plain;
}

static move_function writer_of(const quay__mapping *mapping) {
  switch (mapping->access) {
  case QUAY__ACCESS_FILE:
    return quay__mmap_write_file;
  case QUAY__ACCESS_GUARDED:
    return write_guarded;
  case QUAY__ACCESS_PLAIN:
    break;
  }
  return write_plain;
}

/* Whether most of the range has to come from the disk. */
static bool is_cold(const quay__mapping *mapping, uint64_t offset, uint64_t size) {
  return size >= CACHED_MIN && quay__mmap_reads_cached(mapping) &&
         quay__mmap_is_cold(mapping, offset, size);
}

static bool is_kept_from_direct(const quay__mapping *mapping, uint64_t size) {
  return mapping->direct_file >= 0 && mapping->direct_use != QUAY__DIRECT_ASKED &&
         size < CACHED_MIN && !quay__thread_reads_disk;
}

/* Whether some of a range may be read with direct I/O, and is best cut for that. */
static bool may_be_direct(const quay__mapping *mapping, bool cold) {
  if (mapping->direct_file < 0 || (!cold && mapping->direct_use != QUAY__DIRECT_ASKED))
    return false;
  return mapping->direct_use != QUAY__DIRECT_IF_FASTER ||
         quay__disk_verdict_of(mapping->device) != QUAY__DISK_BUFFERED;
}

/* A piece of a staged copy whose file is in the page cache. */
static bool is_cached_piece(uint64_t size) {
  return quay__thread_in_staging && !quay__thread_reads_disk && size >= STAGED_MIN;
}

/* Ways to read into memory that nobody takes away; else it is for the kernel to write to. */
static move_function reader_of_range(const quay__mapping *mapping, uint64_t offset, uint64_t size,
                                     bool cold) {
  const move_function usual = reader_of(mapping);
  if (cold || size < QUAY__MMAP_DIRECT_MIN || !quay__mmap_reads_cached(mapping))
    return usual;
  if (size >= CACHED_MIN || is_cached_piece(size))
    return read_large;
  if (is_kept_from_direct(mapping, size))
    return quay__mmap_read_buffered;
  const bool there = may_be_direct(mapping, true) && quay__mmap_is_cached(mapping, offset, size);
  return there ? quay__mmap_read_buffered : usual;
}

static uint64_t cold_piece_of(const quay__mapping *mapping, uint64_t size, uint32_t threads) {
  const bool tries = mapping->direct_use == QUAY__DIRECT_IF_FASTER &&
                     quay__disk_verdict_of(mapping->device) != QUAY__DISK_DIRECT;
  if (mapping->direct_file < 0 || tries)
    return COLD_PIECE;
  const uint64_t several = quay__align_down(size / (4 * (uint64_t)threads), DIRECT_PIECE_MIN);
  return quay__min(quay__max(several, DIRECT_PIECE_MIN), DIRECT_PIECE_MAX);
}

/* Transfers. */

static quay_status fail_transfer(const transfer *job, uint64_t offset, uint64_t size, int error) {
  if (job->other != NULL)
    QUAY_TRY(quay__mapping_check_size(job->other));
  QUAY_TRY(quay__mapping_check_size(job->mapping));
  const char *task = job->write ? "writing" : "reading";
  const unsigned long long bytes = size;
  const unsigned long long place = offset;
  if (error == QUAY__MMAP_ENDED) {
    return quay_error_set(QUAY_STATUS_IO, QUAY__MMAP_NAME, 0, NULL,
                          "%s %llu bytes at offset %llu of '%s': the file ended early; it changed "
                          "its size meanwhile",
                          task, bytes, place, job->mapping->path);
  }
  return quay__fail_errno(quay__status_of_errno(error), QUAY__MMAP_NAME, error,
                          "%s %llu bytes at offset %llu of '%s' failed", task, bytes, place,
                          job->mapping->path);
}

static quay_status transfer_range(const transfer *job, uint64_t start, uint64_t size) {
  const uint64_t offset = job->offset + start;
  const int error = job->move(job->mapping, offset, job->memory + start, size);
  return error == 0 ? QUAY_OK : fail_transfer(job, offset, size, error);
}

/* For the workers: piece `index`; the first one has the head as well. */
static quay_status transfer_piece(void *context, uint64_t index) {
  const transfer *job = context;
  const uint64_t start = index == 0 ? 0 : job->head + index * job->piece;
  const uint64_t end = quay__min(job->head + (index + 1) * job->piece, job->size);
  return transfer_range(job, start, end - start);
}

/* The same for ranges that have to come from the disk: whichever piece the thread should read. */
static quay_status transfer_cold_piece(void *context, uint64_t index) {
  transfer *job = context;
  uint64_t at;
  quay__stripe_acquire(job);
  const uint64_t size = quay__stretches_take(job->stretches, quay__thread_self(), job->piece, &at);
  quay__stripe_release(job);
  (void)index;
  const uint64_t start = at == 0 ? 0 : job->head + at;
  const bool before = quay__thread_reads_disk;
  quay__thread_reads_disk = true;
  const quay_status status = transfer_range(job, start, job->head + at + size - start);
  quay__thread_reads_disk = before;
  return status;
}

/* Bytes up to where pieces should begin: a page of the destination, or for direct I/O a place in
 * the file that it can start from. */
static uint64_t head_of(const transfer *job) {
  const bool direct = may_be_direct(job->mapping, job->cold);
  const uint64_t alignment = direct ? job->mapping->direct_offset_alignment : quay__os_page_size();
  const uint64_t place = direct ? job->offset : (uintptr_t)job->memory;
  return (alignment - (place & (alignment - 1))) & (alignment - 1);
}

/* Several pieces a thread even out their speeds. */
static uint64_t piece_of(uint64_t size, uint32_t threads) {
  const uint64_t piece = quay__min(size / (2 * (uint64_t)threads), PIECE_MAX);
  return quay__align_down(quay__max(piece, PIECE_MIN), quay__os_page_size());
}

static quay_status transfer_in_pieces(transfer *job, uint32_t threads) {
  const uint64_t piece =
      job->cold ? cold_piece_of(job->mapping, job->size, threads) : piece_of(job->size, threads);
  job->piece = piece;
  job->head = head_of(job);
  const uint64_t body = job->size - quay__min(job->head, job->size);
  const uint64_t count = quay__max((body + piece - 1) / piece, 1);
  if (!job->cold)
    return quay__workers_run(threads, count, transfer_piece, job);
  quay__stretches stretches;
  quay__stretches_begin(&stretches, body, threads, piece);
  job->stretches = &stretches;
  return quay__workers_run(threads, count, transfer_cold_piece, job);
}

/* What can be told before the first byte has moved. */
static quay_status check_before(const transfer *job) {
  quay_status status = QUAY_OK;
  if (job->other != NULL)
    status = quay__mapping_check_size(job->other);
  if (status == QUAY_OK)
    status = quay__mapping_check_size(job->mapping);
  if (status != QUAY_OK)
    quay__copy_refused();
  return status;
}

/* Part of a staged copy, small as it may be where slots are. */
static bool is_piece_of_larger(const transfer *job) {
  return quay__thread_in_staging && job->size >= STAGED_MIN;
}

static move_function writer_of_large(const transfer *job, uint32_t threads) {
  const bool touchable = job->other == NULL;
  if (quay__mmap_writes_together(job->mapping, threads))
    return touchable ? quay__mmap_write_together : quay__mmap_write_by_calls;
  return touchable ? quay__mmap_write_alone : quay__mmap_write_file;
}

/* Moves the whole range, then looks whether the file is still what it was: the last page of one
 * that was truncated reads as zeros without any error. */
static quay_status transfer_run(transfer *job) {
  const bool large = job->size >= PARALLEL_MIN;
  uint32_t threads = 1;
  if (large) {
    QUAY_TRY(check_before(job));
    threads = quay__copy_threads();
  }
  if (job->cold)
    threads = quay__disk_threads();
  if (job->move == quay__mmap_write_file && (large || is_piece_of_larger(job)))
    job->move = writer_of_large(job, threads);
  /* Those that pwrite wait for each other in the kernel, and plain copies split themselves. */
  const bool splits = job->move != quay__mmap_write_file && job->move != quay__mmap_write_alone &&
                      job->move != read_plain && job->move != write_plain;
  QUAY_TRY(splits && large ? transfer_in_pieces(job, threads) : transfer_range(job, 0, job->size));
  if (job->other != NULL)
    QUAY_TRY(quay__mapping_check_size(job->other));
  return quay__mapping_check_size(job->mapping);
}

static quay_status read_into(const quay__mapping *mapping, uint64_t offset, void *memory,
                             uint64_t size, const quay__mapping *other) {
  transfer job = {.mapping = mapping,
                  .other = other,
                  .move = reader_of(mapping),
                  .offset = offset,
                  .memory = memory,
                  .size = size};
  if (other == NULL) {
    job.cold = is_cold(mapping, offset, size);
    job.move = reader_of_range(mapping, offset, size, job.cold);
  }
  return transfer_run(&job);
}

/* `memory` is not written to. */
static quay_status write_from(const quay__mapping *mapping, uint64_t offset, const void *memory,
                              uint64_t size, const quay__mapping *other) {
  transfer job = {.mapping = mapping,
                  .other = other,
                  .move = writer_of(mapping),
                  .write = true,
                  .offset = offset,
                  .memory = (unsigned char *)(uintptr_t)memory,
                  .size = size};
  return transfer_run(&job);
}

static quay_status check_writable(const quay__mapping *mapping) {
  if (mapping->mode != QUAY_MAP_READ_ONLY)
    return QUAY_OK;
  return quay_error_set(QUAY_STATUS_READ_ONLY, QUAY__MMAP_NAME, 0, NULL,
                        "writing to '%s', which is mapped read only: map it copy on write or "
                        "shared",
                        mapping->path);
}

quay_status quay__mmap_copy_in(quay_allocator *allocator, quay_raw_buffer *destination,
                               uint64_t offset, const void *source, uint64_t size) {
  (void)allocator;
  const quay__mapping *mapping = quay__mapping_of(destination);
  QUAY_TRY(check_writable(mapping));
  return write_from(mapping, destination->as.mmap.file_offset + offset, source, size, NULL);
}

quay_status quay__mmap_copy_out(quay_allocator *allocator, const quay_raw_buffer *source,
                                uint64_t offset, void *destination, uint64_t size) {
  (void)allocator;
  return read_into(quay__mapping_of(source), source->as.mmap.file_offset + offset, destination,
                   size, NULL);
}

/* From mapping to mapping. */

typedef struct within {
  const quay__mapping *to, *from;
  uint64_t to_offset, from_offset; /* in their files */
  uint64_t size;
} within;

/* Whether writing the destination changes bytes of the source, and then which way to go. */
static bool overlaps(const within *job, bool *out_backwards) {
  const quay__mapping *to = job->to;
  const quay__mapping *from = job->from;
  const bool one_file = to->access == QUAY__ACCESS_FILE && to->file >= 0 && from->file >= 0 &&
                        to->device == from->device && to->inode == from->inode && to->exposed &&
                        from->exposed;
  uint64_t a = job->to_offset;
  uint64_t b = job->from_offset;
  if (!one_file) {
    if (to->address == NULL || from->address == NULL)
      return false;
    a = (uintptr_t)quay__mapping_at(to, a);
    b = (uintptr_t)quay__mapping_at(from, b);
  }
  *out_backwards = a > b;
  return a > b ? a - b < job->size : b - a < job->size;
}

/* Through bounded memory in between; `backwards` begins with the last chunk. */
static quay_status copy_bounced(const within *job, bool backwards) {
  const uint64_t chunk = quay__min(job->size, quay__copy_memory(BOUNCE_SIZE));
  unsigned char *bounce = quay__os_aligned_alloc(quay__os_page_size(), chunk);
  if (bounce == NULL) {
    quay__copy_refused();
    return quay__fail_out_of_memory(chunk, "a copy between two files");
  }
  quay_status status = QUAY_OK;
  for (uint64_t done = 0; done < job->size && status == QUAY_OK;) {
    const uint64_t step = quay__min(chunk, job->size - done);
    const uint64_t start = backwards ? job->size - done - step : done;
    status = read_into(job->from, job->from_offset + start, bounce, step, NULL);
    if (status == QUAY_OK) {
      status = write_from(job->to, job->to_offset + start, bounce, step, NULL);
    }
    done += step;
  }
  quay__os_free(bounce);
  return status;
}

/* The same in pieces by several threads, of ranges that don't overlap: each has memory of its own
 * in between. */
typedef struct bouncing {
  const within *job;
  unsigned char *memory; /* BOUNCE_SIZE for each of BOUNCES */
  atomic_uint taken;     /* a bit for each */
} bouncing;

static uint32_t take_bounce(bouncing *all) {
  unsigned taken = atomic_load_explicit(&all->taken, memory_order_relaxed);
  uint32_t free_one;
  do {
    free_one = (uint32_t)__builtin_ctz(~taken);
  } while (!atomic_compare_exchange_weak_explicit(&all->taken, &taken, taken | 1u << free_one,
                                                  memory_order_acquire, memory_order_relaxed));
  return free_one;
}

static quay_status bounce_piece(void *context, uint64_t index) {
  bouncing *all = context;
  const within *job = all->job;
  const uint64_t start = index * BOUNCE_SIZE;
  const uint64_t size = quay__min(BOUNCE_SIZE, job->size - start);
  const uint32_t own = take_bounce(all);
  unsigned char *memory = all->memory + own * BOUNCE_SIZE;
  quay_status status = read_into(job->from, job->from_offset + start, memory, size, NULL);
  if (status == QUAY_OK)
    status = write_from(job->to, job->to_offset + start, memory, size, NULL);
  atomic_fetch_and_explicit(&all->taken, ~(1u << own), memory_order_release);
  return status;
}

static quay_status bounce_together(const within *job) {
  const uint64_t pieces = (job->size - 1) / BOUNCE_SIZE + 1;
  const uint64_t most = quay__copy_memory(BOUNCES * BOUNCE_SIZE) / BOUNCE_SIZE;
  if (pieces == 1 || most <= 1)
    return copy_bounced(job, false);
  const uint32_t threads = (uint32_t)quay__min(quay__min(quay__disk_threads(), most), pieces);
  bouncing all = {.job = job,
                  .memory = quay__os_aligned_alloc(quay__os_page_size(), threads * BOUNCE_SIZE)};
  if (all.memory == NULL)
    return copy_bounced(job, false);
  const quay_status done = quay__workers_run(threads, pieces, bounce_piece, &all);
  quay__os_free(all.memory);
  return done;
}

/* Two private sides would need one call that is guarded at both ends; and what was opened for
 * direct I/O is not to fill the page cache. */
static bool bounces(const quay__mapping *to, const quay__mapping *from) {
  return (to->access == QUAY__ACCESS_GUARDED && from->access == QUAY__ACCESS_GUARDED) ||
         (from->direct_file >= 0 && from->direct_use == QUAY__DIRECT_ASKED);
}

/* One side is moved by a call that names the other side's memory and, since it is the kernel that
 * touches that, answers EFAULT where it has gone. Whether that is the source's. */
static bool is_read_into(const quay__mapping *to, const quay__mapping *from) {
  return to->access == QUAY__ACCESS_PLAIN ||
         (to->access == QUAY__ACCESS_GUARDED && from->access == QUAY__ACCESS_FILE);
}

quay_status quay__mmap_copy_within(quay_allocator *allocator, quay_raw_buffer *destination,
                                   uint64_t destination_offset, const quay_raw_buffer *source,
                                   uint64_t source_offset, uint64_t size) {
  (void)allocator;
  const within job = {.to = quay__mapping_of(destination),
                      .from = quay__mapping_of(source),
                      .to_offset = destination->as.mmap.file_offset + destination_offset,
                      .from_offset = source->as.mmap.file_offset + source_offset,
                      .size = size};
  QUAY_TRY(check_writable(job.to));
  bool backwards = false;
  if (overlaps(&job, &backwards))
    return copy_bounced(&job, backwards);
  if (bounces(job.to, job.from))
    return bounce_together(&job);
  if (is_read_into(job.to, job.from)) {
    unsigned char *memory = quay__mapping_at(job.to, job.to_offset);
    return read_into(job.from, job.from_offset, memory, size, job.to);
  }
  const unsigned char *memory = quay__mapping_at(job.from, job.from_offset);
  return write_from(job.to, job.to_offset, memory, size, job.from);
}

/* Plans. */

static void plan_pieces(uint64_t size, uint64_t piece, uint32_t threads,
                        quay_across_info *out_info) {
  out_info->chunk = piece;
  out_info->threads = (uint32_t)quay__min(threads, (size - 1) / piece + 1);
}

/* As transfer_run() goes about it. */
static void plan_move(const quay__mapping *mapping, move_function move, uint64_t size,
                      quay_across_info *out_info) {
  if (size < PARALLEL_MIN)
    return;
  if (move == read_plain || move == write_plain) {
    quay__host_copy_plan(size, 0, &out_info->threads, &out_info->chunk);
    return;
  }
  const uint32_t threads = quay__copy_threads();
  if (move == quay__mmap_write_file && !quay__mmap_writes_together(mapping, threads))
    return;
  plan_pieces(size, piece_of(size, threads), threads, out_info);
}

static void plan_read(const quay__mapping *mapping, uint64_t offset, uint64_t size,
                      quay_across_info *out_info) {
  out_info->from_disk = is_cold(mapping, offset, size);
  out_info->past_cut = offset & (PAGE - 1);
  if (out_info->from_disk) {
    const uint32_t threads = quay__disk_threads();
    plan_pieces(size, cold_piece_of(mapping, size, threads), threads, out_info);
  } else {
    plan_move(mapping, reader_of(mapping), size, out_info);
  }
}

/* As quay__mmap_copy_within() chooses, of ranges that don't overlap. */
static void plan_within(const quay__mapping *to, const quay__mapping *from, uint64_t size,
                        quay_across_info *out_info) {
  if (bounces(to, from)) {
    const uint64_t chunk = quay__min(size, quay__copy_memory(BOUNCE_SIZE));
    const uint64_t most = quay__max(quay__copy_memory(BOUNCES * BOUNCE_SIZE) / BOUNCE_SIZE, 1);
    const uint32_t threads = (uint32_t)quay__min(quay__disk_threads(), most);
    plan_pieces(size, chunk, threads, out_info);
    out_info->staging_bytes = out_info->chunk * out_info->threads;
  } else {
    const bool reads = is_read_into(to, from);
    plan_move(reads ? from : to, reads ? reader_of(from) : writer_of(to), size, out_info);
  }
}

void quay__mmap_copy_info(quay_allocator *allocator, const quay_raw_buffer *destination,
                          const quay_raw_buffer *source, uint64_t size,
                          quay_across_info *out_info) {
  (void)allocator;
  const bool lazy = (destination != NULL && destination->arm != QUAY_RAW_MMAP) ||
                    (source != NULL && source->arm != QUAY_RAW_MMAP);
  if (lazy) {
    if (size >= PARALLEL_MIN) /* blocks of an allocator's own: nobody takes their pages away */
      quay__host_copy_plan(size, 0, &out_info->threads, &out_info->chunk);
  } else if (destination == NULL && source != NULL) {
    plan_read(quay__mapping_of(source), source->as.mmap.file_offset + out_info->source_offset, size,
              out_info);
  } else if (source == NULL && destination != NULL) {
    plan_move(quay__mapping_of(destination), writer_of(quay__mapping_of(destination)), size,
              out_info);
  } else if (source != NULL && destination != NULL) {
    plan_within(quay__mapping_of(destination), quay__mapping_of(source), size, out_info);
  }
}

/* Filling. */

quay_status quay__mmap_fill(quay_allocator *allocator, quay_raw_buffer *raw, uint64_t offset,
                            uint64_t size, const void *pattern, size_t pattern_size) {
  (void)allocator;
  const quay__mapping *mapping = quay__mapping_of(raw);
  const uint64_t start = raw->as.mmap.file_offset + offset;
  QUAY_TRY(check_writable(mapping));
  if (mapping->access == QUAY__ACCESS_PLAIN) {
    quay__host_fill(quay__mapping_at(mapping, start), size, pattern, pattern_size);
    return QUAY_OK;
  }
  const uint64_t chunk = quay__min(size, FILL_SIZE); /* a whole number of patterns */
  unsigned char *filled = quay__os_malloc(chunk);
  if (filled == NULL) {
    quay__copy_refused();
    return quay__fail_out_of_memory(chunk, "filling a file");
  }
  quay__host_fill(filled, chunk, pattern, pattern_size);
  quay_status status = QUAY_OK;
  for (uint64_t done = 0; done < size && status == QUAY_OK; done += chunk) {
    status = write_from(mapping, start + done, filled, quay__min(chunk, size - done), NULL);
  }
  quay__os_free(filled);
  return status;
}
