/* Files as buffers: mapping existing files, making new ones, writing buffers to files.
 *
 * Copies to and from a mapped file do not raise SIGBUS: a file that was truncated behind the map is
 * an I/O error there. They read and write the file itself, with several readers, or copy from the
 * mapping while a read lease (fcntl(2), F_SETLEASE) keeps the file as it is: for a millisecond or
 * less at a time, and some more where pages of the destination have to be made or copied first.
 * Whoever opens the file for writing or truncates it meanwhile has to wait, or gets EAGAIN if he
 * opens it with O_NONBLOCK; at the very moment that a lease begins he may have SIGURG sent to the
 * program, a signal that by default does nothing. A process that is stopped within a lease (by a
 * debugger, say) lets writers wait until the system takes the lease away, after
 * /proc/sys/fs/lease-break-time; if the file is truncated then, going on raises SIGBUS. So it is
 * with a process that is killed within a lease while a child of a fork has its descriptors: writers
 * wait until the child ends. A file that is open for writing, or belongs to another user, is read
 * without leases.
 *
 * What the program does through a host pointer is its own: touching a page past the end of a
 * truncated file raises SIGBUS. A file that has grown behind the map is no error: every mapped byte
 * is still where it was, so that reads, writes and copies of the window are right; what was added
 * is not seen until the file is mapped again.
 *
 * To read faster, copies of 8 MiB and more out of read-only and shared mappings may enter pages of
 * the file that are in the page cache into the mapping; copies to devices only once as many bytes
 * have been copied as the mapping has. These count as resident memory of the process, clean and
 * reclaimable, at most a quarter of the machine's memory over all mappings, until the mapping goes
 * or quay_buffer_advise() with DONT_NEED takes them out; a program that reads a large file once
 * does so window by window behind its copies.
 *
 * Each mapped file holds one descriptor until its last buffer is gone, for those copies; mappings
 * that are shared (see quay_map_file()) share it. Those that may be read with direct I/O (`direct`,
 * and read-only ones of files from 256 MiB on unless `buffered`) hold a second one. With the usual
 * limit of 1024 (ulimit -n) about a thousand files can be mapped at a time, or half as many large
 * ones; the next one is an I/O error, EMFILE.
 *
 * What would end beyond the limit of the process for files (RLIMIT_FSIZE) is an I/O error, EFBIG,
 * and never SIGXFSZ; stores through a shared mapping, which copies may take where the file is in
 * the page cache, have no such limit.
 *
 * Mapped buffers are owned by the process's file allocator, on the host device. */
#ifndef QUAY_MMAP_H
#define QUAY_MMAP_H

#include <quay/base.h>
#include <quay/buffer.h>
#include <quay/copy.h>
#include <quay/raw_buffer.h>
#include <quay/status.h>

typedef enum quay_map_mode {
  /* Writes are refused; the buffer is born sealed. */
  QUAY_MAP_READ_ONLY = 0,
  /* Writes change private pages, never the file. Counts against commit limits as it is written. */
  QUAY_MAP_COPY_ON_WRITE = 1,
  /* Writes change the file. While a copy of 2 MiB and more writes to it, or a staged one of 256 KiB
   * and more, whoever opens or truncates the file waits for a millisecond at a time, or gets EAGAIN
   * with O_NONBLOCK: the copy holds a lease (fcntl(2), F_SETLEASE) where it can have one, that is,
   * where the file is the user's own and open nowhere else. */
  QUAY_MAP_SHARED = 2,
} quay_map_mode;

/* Zero means the defaults: the whole file, read only. */
typedef struct quay_map_options {
  quay_map_mode mode;
  uint64_t offset; /* bytes from the start of the file; any value, page alignment is not needed */
  uint64_t length; /* bytes; 0: to the end of the file */
  /* Read with direct I/O where the file system can and copies are large enough; the page cache is
   * not filled then. Faster for a file that is not in the page cache and is read once, into memory
   * or to a device (into another mapping the bytes go through memory in between, which is slower);
   * what is there already is read from there. Refused with INVALID_ARGUMENT for QUAY_MAP_SHARED;
   * without effect for QUAY_MAP_COPY_ON_WRITE, whose pages may not be the file's.
   * Without it, of read-only mappings of files from 256 MiB on, copies of 8 MiB and more of what is
   * not in the page cache are read so
   *   - where the file is larger than the memory that was available when it was mapped: the page
   *     cache could not keep it, and would lose what it has;
   *   - where that is at least twice as fast on the file's disk: then even a second reading costs
   *     no more. That is measured once a process and disk, with the first 128 MiB of such copies,
   *     of which 64 MiB are not in the page cache afterwards. */
  bool direct;
  /* Always read through the page cache, which then has the file for the next one who reads it.
   * Refused with INVALID_ARGUMENT together with `direct`. */
  bool buffered;
} quay_map_options;

/* Zero means the defaults. */
typedef struct quay_file_options {
  /* Replace an existing file, atomically, instead of refusing it. */
  bool replace;
  /* Permission bits of the new file, before the umask; 0: 0666. */
  uint32_t permissions;
} quay_file_options;

/* Zero means the defaults. */
typedef struct quay_save_options {
  /* Permission bits of the new file, before the umask; 0: those of the file that is replaced, else
   * 0666. */
  uint32_t permissions;
  /* Leave out the synchronisation with the disk: the file is still whole or not there after a crash
   * of the program, but perhaps not after one of the machine. */
  bool no_sync;
  quay_progress_callback progress;
  void *progress_user;
} quay_save_options;

QUAY_BEGIN_DECLS

/* Maps a regular file: dtype U8, shape [length]. Takes the same time for every size of file; no
 * page is read. Read-only and shared mappings of one file are shared within the process, by device,
 * inode and mode; an inode whose size changed is mapped anew. The file may be renamed, replaced or
 * unlinked meanwhile: the buffer keeps the file that was opened.
 * An empty file gives a buffer of 0 bytes. Where a lease (see above) keeps the file from being
 * opened, of a copy or of another program, the call waits for it, as open(2) does.
 * Errors: INVALID_ARGUMENT (NULL, a bad mode, `direct` where it is refused, or what `path` names is
 * no regular file: a directory, FIFO, device or socket, named in the message; nothing hangs on a
 * FIFO; or one without a size but with bytes, as in /proc); OUT_OF_RANGE (offset or offset plus
 * length beyond the end of the file); IO (errno and path in the message); OUT_OF_HOST_MEMORY.
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_map_file(const char *path, const quay_map_options *options,
                                                  quay_buffer **out_buffer);

/* Creates a file of `size` bytes, all zero, with its blocks reserved on the disk, and maps it
 * shared and writable: dtype U8, shape [size]. On error no file is left behind, and one that was to
 * be replaced is as before.
 * Errors: INVALID_ARGUMENT (NULL, a size above 2^63-1); IO (EEXIST for an existing file unless
 * `replace` is set, ENOSPC for a full disk, ...); OUT_OF_HOST_MEMORY.
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_file_create(const char *path, uint64_t size,
                                                     const quay_file_options *options,
                                                     quay_buffer **out_buffer);

/* Writes the window to a file, which appears whole or not at all: a temporary file in the same
 * directory, synchronised, renamed over `path`, the directory synchronised. Works for memory of
 * every kind, and for a buffer that is mapped from the same path. A symbolic link is followed: the
 * file that it names is replaced.
 * Errors: INVALID_ARGUMENT (NULL, or `path` names something that is no regular file);
 * NOT_ALLOCATED; IO; CANCELLED; STALE; DEVICE_LOST. No temporary file is left behind, and `path` is
 * as before.
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_buffer_save(const quay_buffer *buffer, const char *path,
                                                     const quay_save_options *options);

/* Makes the window's bytes durable in the file behind a shared mapping; no-op for other memory.
 * Errors: INVALID_ARGUMENT (NULL), NOT_ALLOCATED, IO.
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_buffer_flush(quay_buffer *buffer);

/* Tells the operating system how the window will be used. Never changes contents. No-op for memory
 * that takes no such advice. DONT_NEED on a read-only or shared mapping takes the window's pages,
 * and up to 4 MiB on either side of it, out of the process's resident memory; they stay in the page
 * cache. The pages of a private mapping are reclaimed first when memory is short.
 * Errors: INVALID_ARGUMENT (NULL, no such advice), NOT_ALLOCATED, IO.
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_buffer_advise(const quay_buffer *buffer,
                                                       quay_advice advice);

/* Begins to read the window into the page cache and returns: quay_buffer_advise() with WILL_NEED.
 * Errors: the same.
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_buffer_prefetch(const quay_buffer *buffer);

/* Adopts a mapping that somebody else made with mmap(2), without copying: `address` and `size` need
 * no page alignment. `file` is a descriptor of the mapped file, which Quay duplicates and reads and
 * writes in copies, and `file_offset` the offset of the first byte in it; -1: the mapping is
 * touched directly, and a truncated file is then SIGBUS. On error nothing is taken over.
 * Errors: INVALID_ARGUMENT; IO (the descriptor can't be used); OUT_OF_HOST_MEMORY.
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_mmap_adopt(void *address, uint64_t size,
                                                    quay_map_mode mode, int file,
                                                    uint64_t file_offset,
                                                    quay_release_callback release, void *user,
                                                    quay_raw_buffer *out_raw);

/* What a mapped raw buffer is. */
typedef struct quay_mmap_info {
  void *address; /* of the first byte */
  uint64_t size; /* bytes */
  quay_map_mode mode;
  int file;             /* lent descriptor; -1 where there is none */
  uint64_t file_offset; /* of the first byte */
} quay_mmap_info;

/* Errors: INVALID_ARGUMENT (NULL), UNSUPPORTED (no mapped memory).
 * Thread-safety: the raw buffer is the caller's to synchronise. */
QUAY_API QUAY_NODISCARD quay_status quay_mmap_raw_info(const quay_raw_buffer *raw,
                                                       quay_mmap_info *out_info);

QUAY_END_DECLS

#endif
