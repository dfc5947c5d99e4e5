/* What the files of this folder share: mapping objects and the allocators that hand out windows of
 * them. Nothing outside the folder reads the mmap arm of a raw buffer. */
#ifndef QUAY_MMAP_IMPL_H
#define QUAY_MMAP_IMPL_H

#include <quay/backend.h>
#include <quay/mmap.h>
#include <stdatomic.h>
#include <sys/types.h>

#define QUAY__MMAP_NAME "mmap"

/* How copies reach the bytes of a mapping. */
typedef enum quay__mapping_access {
  QUAY__ACCESS_FILE,    /* pread and pwrite on the descriptor */
  QUAY__ACCESS_GUARDED, /* through the mapping, by calls that answer EFAULT where SIGBUS looms */
  QUAY__ACCESS_PLAIN,   /* through the mapping: nobody else can take its pages away */
} quay__mapping_access;

/* Which of a file's ranges that are not in the page cache are read with direct I/O. */
typedef enum quay__direct_use {
  QUAY__DIRECT_NEVER,     /* none: the program wants them in the page cache */
  QUAY__DIRECT_IF_FASTER, /* large ones, where the disk is read so much faster so; see disk.c */
  QUAY__DIRECT_LARGE, /* large ones: the page cache can't keep the file. Others are wanted again */
  QUAY__DIRECT_ASKED, /* all that are large enough for it: the program wants that */
} quay__direct_use;

/* Whether the file can be leased; see lease.c. */
typedef enum quay__lease_state {
  QUAY__LEASE_UNKNOWN,
  QUAY__LEASE_POSSIBLE,
  QUAY__LEASE_REFUSED
} quay__lease_state;

/* A mapping of a file, or a descriptor without one. Mappings that the table lists are shared and
 * counted; all others belong to one raw buffer. But for `references`, `next`, `listed`, what is
 * populated and the lease nothing changes after it was made. */
typedef struct quay__mapping {
  struct quay__mapping *next; /* in its bucket; this and the next two: QUAY__LOCK_MAPPINGS */
  uint64_t references;
  bool listed;
  bool shared;  /* made for the table: counted */
  bool lent;    /* `file` belongs to somebody else and is not closed */
  bool exposed; /* other processes can change the size of the file */
  quay_map_mode mode;
  quay__mapping_access access;
  int file;        /* -1: none */
  int direct_file; /* opened for direct I/O; -1: none */
  quay__direct_use direct_use;
  uint64_t direct_offset_alignment;
  uint64_t direct_memory_alignment;
  unsigned char *address; /* NULL: nothing is mapped */
  uint64_t offset;        /* of `address` in the file, in bytes */
  uint64_t mapped;        /* bytes to unmap from `address`; 0 for an adopted mapping */
  uint64_t file_size;     /* bytes that the file must still have */
  dev_t device;
  ino_t inode;
  quay_release_callback release; /* of an adopted mapping; may be NULL */
  void *user;
  _Atomic(struct quay__populated *) populated; /* read.c's; NULL: nothing */
  atomic_int lease;                            /* quay__lease_state; lease.c's */
  uint32_t lease_users;                        /* the stripe of the mapping */
  uint32_t lease_process;                      /* the quay__fork_generation that may lease */
  char path[];                                 /* for messages */
} quay__mapping;

/* Opens a regular file and maps it, or takes one more reference on the mapping that is there. Only
 * [offset, offset + length) is sure to be mapped; `length` 0 goes to the end of the file.
 * `*out_length` is what that came to. */
quay_status quay__mapping_open(const char *path, const quay_map_options *options,
                               quay__mapping **out_mapping, uint64_t *out_length);

/* The whole of an open file, shared and writable. Takes `file` over, on error too. */
quay_status quay__mapping_of_new_file(int file, const char *path, quay__mapping **out_mapping);

/* A descriptor that copies can write to, without a mapping. `file` stays the caller's. */
quay_status quay__mapping_of_descriptor(int file, const char *path, uint64_t size,
                                        quay__mapping **out_mapping);

/* A block of `size` zero bytes behind an unlinked file in `directory`, its disk blocks reserved. */
quay_status quay__mapping_block(const char *directory, uint64_t size, uint64_t alignment,
                                quay__mapping **out_mapping);

/* What quay_mmap_adopt() describes. */
quay_status quay__mapping_adopt(void *address, uint64_t size, quay_map_mode mode, int file,
                                uint64_t file_offset, quay__mapping **out_mapping);

/* Gives one reference back. Problems are logged, and their number is returned. Keeps the thread's
 * error. */
uint32_t quay__mapping_release(quay__mapping *mapping);

/* Logs an error with an errno, and keeps the thread's error whatever the callback does. */
void quay__mmap_log_errno(const char *what, const char *path, int error_number);

/* Whether the file still has the bytes that were mapped. IO with the path if it has not, or if the
 * system can't tell. */
quay_status quay__mapping_check_size(const quay__mapping *mapping);

/* Host address of a place in the file that is mapped. */
static inline unsigned char *quay__mapping_at(const quay__mapping *mapping, uint64_t file_offset) {
  return mapping->address + (file_offset - mapping->offset);
}

static inline quay__mapping *quay__mapping_of(const quay_raw_buffer *raw) {
  return (quay__mapping *)(uintptr_t)raw->as.mmap.mapping; /* NOLINT(performance-no-int-to-ptr) */
}

/* Fills in arm, handle and flags of a window of a mapping; its reference moves into `out_raw`. */
void quay__mapping_window(quay__mapping *mapping, uint64_t file_offset, uint64_t size,
                          quay_raw_buffer *out_raw);

/* Makes a new file of `size` zero bytes in an open, empty one, with its blocks reserved: 0 or an
 * errno, and the file is empty again then. */
int quay__file_reserve(int file, uint64_t size);

/* "a directory", "a FIFO" ... for messages. */
const char *quay__file_type_text(mode_t mode);

/* A buffer on a window of a mapping, owned by the file allocator. Takes the reference over, on
 * error too. */
quay_status quay__mmap_window_buffer(quay__mapping *mapping, uint64_t file_offset, uint64_t size,
                                     quay_buffer **out_buffer);

/* copy.c: functions of the allocators' table. */
quay_status quay__mmap_copy_in(quay_allocator *allocator, quay_raw_buffer *destination,
                               uint64_t offset, const void *source, uint64_t size);
quay_status quay__mmap_copy_out(quay_allocator *allocator, const quay_raw_buffer *source,
                                uint64_t offset, void *destination, uint64_t size);
void quay__mmap_copy_info(quay_allocator *allocator, const quay_raw_buffer *destination,
                          const quay_raw_buffer *source, uint64_t size, quay_across_info *out_info);
quay_status quay__mmap_copy_within(quay_allocator *allocator, quay_raw_buffer *destination,
                                   uint64_t destination_offset, const quay_raw_buffer *source,
                                   uint64_t source_offset, uint64_t size);
quay_status quay__mmap_fill(quay_allocator *allocator, quay_raw_buffer *raw, uint64_t offset,
                            uint64_t size, const void *pattern, size_t pattern_size);
quay_status quay__mmap_flush(quay_allocator *allocator, const quay_raw_buffer *raw, uint64_t offset,
                             uint64_t size);
quay_status quay__mmap_advise(quay_allocator *allocator, const quay_raw_buffer *raw,
                              uint64_t offset, uint64_t size, quay_advice advice);

/* write.c: ways to move bytes from memory, which is not written to, to a place in the file. 0, an
 * errno, or QUAY__MMAP_ENDED. */

/* The end of the file where bytes were expected; no errno has this value. */
#define QUAY__MMAP_ENDED (-1)

/* One system call moves at most this much: large reads are what network file systems need. */
#define QUAY__MMAP_PIECE_MAX ((uint64_t)4 << 20)

/* One writer at a time. */
int quay__mmap_write_file(const quay__mapping *mapping, uint64_t offset, unsigned char *memory,
                          uint64_t size);

/* Whether `threads` threads should write a large range together, or this one with others that write
 * to the file meanwhile; and a part of it. */
bool quay__mmap_writes_together(const quay__mapping *mapping, uint32_t threads);
int quay__mmap_write_together(const quay__mapping *mapping, uint64_t offset, unsigned char *memory,
                              uint64_t size);
/* The same where touching `memory` may raise SIGBUS. */
int quay__mmap_write_by_calls(const quay__mapping *mapping, uint64_t offset, unsigned char *memory,
                              uint64_t size);
/* A large range by one thread. */
int quay__mmap_write_alone(const quay__mapping *mapping, uint64_t offset, unsigned char *memory,
                           uint64_t size);

/* read_file.c: ways to read a place in the file into memory. 0, an errno, or QUAY__MMAP_ENDED. */

/* Below, direct I/O costs more than the page cache. */
#define QUAY__MMAP_DIRECT_MIN ((uint64_t)64 << 10)

/* Through the page cache; and with direct I/O where the mapping has it, as far as the place and the
 * size allow. */
int quay__mmap_read_buffered(const quay__mapping *mapping, uint64_t offset, unsigned char *memory,
                             uint64_t size);
int quay__mmap_read_file(const quay__mapping *mapping, uint64_t offset, unsigned char *memory,
                         uint64_t size);

/* disk.c */

typedef enum quay__disk_verdict {
  QUAY__DISK_UNDECIDED,
  QUAY__DISK_BUFFERED,
  QUAY__DISK_DIRECT
} quay__disk_verdict;
quay__disk_verdict quay__disk_verdict_of(dev_t device);

/* How to read a piece of a large range that is not in the page cache, of a mapping that is
 * QUAY__DIRECT_IF_FASTER; and how long that took. */
typedef struct quay__disk_piece {
  struct quay__disk *disk; /* that it counts for; NULL: none */
  uint64_t size;
  uint64_t since; /* nanoseconds */
  bool direct;
} quay__disk_piece;
quay__disk_piece quay__disk_begin(dev_t device, uint64_t size);
void quay__disk_end(const quay__disk_piece *piece, bool failed);

/* read.c */

/* Whether reads of a large range should try quay__mmap_read_cached() first. */
bool quay__mmap_reads_cached(const quay__mapping *mapping);

/* Whether the page cache seems to have less than half of such a range. */
bool quay__mmap_is_cold(const quay__mapping *mapping, uint64_t offset, uint64_t size);

/* Whether the page cache has all of a smaller one. */
bool quay__mmap_is_cached(const quay__mapping *mapping, uint64_t offset, uint64_t size);

/* Reads the first bytes of a range into plain host memory as long as they are in the page cache,
 * and returns how many. The rest, and what is wrong with it, is for pread to find out. */
uint64_t quay__mmap_read_cached(const quay__mapping *mapping, uint64_t offset,
                                unsigned char *memory, uint64_t size);

/* Takes the pieces that such reads have populated in the range out of the process's resident
 * memory; `size` is at least 1. The page cache keeps them. */
void quay__populated_drop(const quay__mapping *mapping, uint64_t offset, uint64_t size);

/* Forgets all pieces of a mapping that goes. */
void quay__populated_free(quay__mapping *mapping);

/* lease.c */

/* Whether the file lies on a file system that is changed by this kernel alone. */
bool quay__mmap_is_local(int file);

/* False: leases of the mapping are refused for good, or not this process's to take. */
bool quay__lease_may(quay__mapping *mapping);

/* Whether the mapping may be touched: until quay__lease_drop() nobody can take its pages away. With
 * `write` pages that are populated for writing may be written to, in a shared mapping; without, one
 * that is read only may be read. False where that can't be had, or not now. */
bool quay__lease_take(quay__mapping *mapping, bool write);
void quay__lease_drop(quay__mapping *mapping);
/* Opens a file: waits for nothing but leases, that of a copy on another thread among them. `access`
 * is O_RDONLY or O_RDWR; -1 and errno as of open(2). */
int quay__lease_open(const char *path, int access);

/* allocator.c */

/* An allocator of blocks in `directory`, an absolute path. */
quay_status quay__mmap_allocator_create(const char *directory, quay_allocator **out_allocator);

/* The process's allocator for mapped files, made at first need. Not retained. */
quay_status quay__mmap_file_allocator(quay_allocator **out_allocator);

/* Counts a window as allocated by the file allocator, and makes it its owner. */
void quay__mmap_count_window(quay_allocator *allocator, quay_raw_buffer *raw);

#endif
