/* Copies between host memory and buffers and between any two buffers, whatever their kinds.
 *
 * Sizes are in bytes and must be equal on both sides; dtypes are not compared. A mismatch is an
 * error that moves nothing. Zero bytes is a no-op (arguments are still checked, but host memory of
 * 0 bytes may be NULL). Overlapping windows of one storage behave as memmove() on every backend. A
 * destination that is lazy is allocated.
 *
 * If a copy fails while it is under way (a truncated file, a lost device) the destination's bytes
 * are undefined, and the error says so; where it does not, they are as they were.
 *
 * A copy or fill of more than 1 MiB, and each copy that is staged, is INVALID_ARGUMENT before it
 * begins if the environment variable QUAY_COPY_THREADS holds no number from 1 to 1024, or
 * QUAY_STAGING_BYTES no size of at least 64 KiB; so is its plan. To others bad values are the
 * defaults.
 *
 * Thread-safety of all functions here: any thread; the bytes are the caller's to synchronise. */
#ifndef QUAY_COPY_H
#define QUAY_COPY_H

#include <quay/base.h>
#include <quay/buffer.h>
#include <quay/status.h>

/* How the bytes move. */
typedef enum quay_route {
  QUAY_ROUTE_NONE = 0,   /* nothing to move */
  QUAY_ROUTE_WITHIN = 1, /* same device and kind: the backend's own copy */
  QUAY_ROUTE_DIRECT = 2, /* one backend reaches the other's memory: host memory to device, peers */
  QUAY_ROUTE_STAGED = 3, /* in chunks through a bounded ring of host memory */
  QUAY_ROUTE_FILE = 4,   /* the file is read or written with the mapping left alone */
} quay_route;

/* What a copy would do. */
typedef struct quay_copy_plan_info {
  quay_route route;
  quay_memory_kind from, to;
  uint64_t size;          /* bytes */
  uint64_t chunk;         /* bytes moved at a time; less if a file is not in the page cache */
  uint32_t threads;       /* at a time, the caller's included; more beside other devices' copies */
  uint64_t staging_bytes; /* of host memory held while it runs */
  char reason[192];       /* one line: why this route, or why not a faster one */
} quay_copy_plan_info;

/* Called now and then while a copy runs (every 256 MiB of a file that has to come from the disk,
 * else more often), from the calling thread: `done` of `total` bytes have arrived. The last call
 * has done == total. Return false to stop: the copy then fails with CANCELLED. It may call the
 * library, and release the buffers of the call, which are kept until that returns. */
typedef bool (*quay_progress_callback)(void *user, uint64_t done, uint64_t total);

/* Zero means the defaults. */
typedef struct quay_copy_options {
  /* The copy comes after everything that was submitted to this stream, and after recorded work that
   * conflicts with it; NULL: after the latter, and it is finished on return. On a stream it returns
   * early where it can:
   *   - device or pinned memory of one backend at both ends, one of them of the stream's device (of
   *     two devices: where the backend can): submitted, and the stream waits for what conflicts;
   *   - from pageable or file memory: returns once the source has been read;
   *   - to pageable, file or another backend's memory, with a progress callback, within one storage
   *     where the ranges overlap: finished on return.
   * Both storages are kept until the copy is done, whoever releases them. quay_copy_plan() tells in
   * its reason which it is. */
  quay_stream *stream;
  /* Fail with UNSUPPORTED rather than take the route "staged". What a backend does for a direct
   * copy of pageable memory, through page-locked slots of its own, is no staging in this sense. */
  bool forbid_staging;
  /* At most this many bytes of staging at a time, 4096 or more; 0: the process's budget. Also of
   * direct copies of pageable memory to a device and back. Slots lie in page-locked memory that
   * copies share and keep, which is locked in pieces of some MiB: QUAY_STAGING_BYTES bounds it, but
   * for 64 KiB of a copy for which those of others leave no gap. */
  uint64_t max_staging_bytes;
  /* At most this many threads at a time, the caller's included; never more than the process's,
   * which 0 stands for. */
  uint32_t max_threads;
  /* Of a copy to a file: the bytes are on the disk on return, as after quay_buffer_flush(). */
  bool sync;
  quay_progress_callback progress;
  void *progress_user;
} quay_copy_options;

/* One of many copies: as the arguments of quay_buffer_copy_region(). */
typedef struct quay_copy_pair {
  quay_buffer *destination;
  uint64_t destination_offset; /* bytes */
  const quay_buffer *source;
  uint64_t source_offset; /* bytes */
  uint64_t size;          /* bytes; may be 0 */
} quay_copy_pair;

QUAY_BEGIN_DECLS

/* The name of a route: "none", "within", "direct", "staged", "file". Static.
 * Thread-safety: any thread, any time. */
QUAY_API const char *quay_route_name(quay_route route);

/* The name of a kind of memory: "pageable", "file", "pinned", "managed", "device", "none". Static.
 * Thread-safety: any thread, any time. */
QUAY_API const char *quay_memory_kind_name(quay_memory_kind kind);

/* Copies `size` bytes of host memory into the whole window.
 * Errors: INVALID_ARGUMENT (NULL), SIZE_MISMATCH, READ_ONLY, IO, STALE, DEVICE_LOST and those of
 * quay_allocator_alloc() if the buffer was lazy. */
QUAY_API QUAY_NODISCARD quay_status quay_buffer_copy_in(quay_buffer *destination,
                                                        const void *source, uint64_t size);

/* Copies the whole window into `size` bytes of host memory.
 * Errors: INVALID_ARGUMENT (NULL), SIZE_MISMATCH, NOT_ALLOCATED, IO, STALE, DEVICE_LOST. */
QUAY_API QUAY_NODISCARD quay_status quay_buffer_copy_out(const quay_buffer *source,
                                                         void *destination, uint64_t size);

/* Copies the whole of one window into the whole of another, of any two kinds of memory.
 * Errors: INVALID_ARGUMENT (NULL), SIZE_MISMATCH, NOT_ALLOCATED (a lazy source), READ_ONLY, IO,
 * STALE, DEVICE_LOST, OUT_OF_HOST_MEMORY (no staging memory), those of quay_allocator_alloc() if
 * the destination was lazy. */
QUAY_API QUAY_NODISCARD quay_status quay_buffer_copy_from(quay_buffer *destination,
                                                          const quay_buffer *source);

/* Copies `size` bytes from `source_offset` in the source window to `destination_offset` in the
 * destination window. `options` NULL means the defaults.
 * Further errors: OUT_OF_RANGE (either range reaches outside its window, also by wrapping around);
 * UNSUPPORTED (staging was forbidden and is needed, or the stream captures a graph); CANCELLED;
 * INVALID_ARGUMENT (a stream that is of neither side's device, nor of the host; max_staging_bytes
 * from 1 to 4095); with a stream BUSY (a conflicting access is open on another one). */
QUAY_API QUAY_NODISCARD quay_status quay_buffer_copy_region(quay_buffer *destination,
                                                            uint64_t destination_offset,
                                                            const quay_buffer *source,
                                                            uint64_t source_offset, uint64_t size,
                                                            const quay_copy_options *options);

/* Copies `count` pairs, for what would be slow one by one: pairs that follow each other in the list
 * and whose ranges do so on both sides become one copy, and small ones to one device's memory go
 * there together. In no particular order: what one pair writes no other may read or write. With a
 * stream, what is submitted to it is recorded with one event.
 * All arguments are checked before anything moves, and lazy destinations allocated. If a copy fails
 * later, the bytes of all destinations are undefined.
 * `options` as for quay_buffer_copy_region(), for each pair; `progress` is told of all pairs
 * together.
 * Errors: those of quay_buffer_copy_region(), with the pair's number in the message where an
 * argument is wrong; INVALID_ARGUMENT (`pairs` NULL with a count above 0, the sizes add up to more
 * than 2^64-1); OUT_OF_HOST_MEMORY. */
QUAY_API QUAY_NODISCARD quay_status quay_copy_many(const quay_copy_pair *pairs, size_t count,
                                                   const quay_copy_options *options);

/* Fills the window with a pattern of 1, 2, 4, 8 or 16 bytes, repeated from its first byte on. The
 * window's size must be a whole number of patterns.
 * Errors: INVALID_ARGUMENT (NULL, another pattern size), SIZE_MISMATCH, READ_ONLY, IO, STALE,
 * DEVICE_LOST, those of quay_allocator_alloc() if the buffer was lazy. */
QUAY_API QUAY_NODISCARD quay_status quay_buffer_fill(quay_buffer *buffer, const void *pattern,
                                                     size_t pattern_size);

/* Fills the window in the order of `stream` (NULL: as quay_buffer_fill()), a stream of the buffer's
 * device or of the host. Returns at once where the device's backend can fill on a stream, else when
 * the window is filled.
 * Further errors: INVALID_ARGUMENT (another device's stream); BUSY (a conflicting access is open on
 * another stream). */
QUAY_API QUAY_NODISCARD quay_status quay_buffer_fill_on(quay_buffer *buffer, const void *pattern,
                                                        size_t pattern_size, quay_stream *stream);

/* What quay_buffer_copy_region() with the same arguments would do, without doing it: nothing is
 * allocated, read or waited for. A lazy source is fine.
 * Errors: INVALID_ARGUMENT, OUT_OF_RANGE, READ_ONLY, UNSUPPORTED as there. */
QUAY_API QUAY_NODISCARD quay_status quay_copy_plan(const quay_buffer *destination,
                                                   uint64_t destination_offset,
                                                   const quay_buffer *source,
                                                   uint64_t source_offset, uint64_t size,
                                                   const quay_copy_options *options,
                                                   quay_copy_plan_info *out_plan);

QUAY_END_DECLS

#endif
