/* Allocators: make and free memory of one kind on one device, and move bytes in and out of it.
 *
 * An allocator is a backend (cpu, mmap, cuda, vulkan, a third party's) or a layer around another
 * allocator (track, fault ...). Programs open one by its spec and pass it on; NULL means the
 * default allocator wherever an allocator is an argument.
 *
 * Reference-counted: quay_allocator_open() gives one reference, buffers hold their own. Every
 * function is safe to call from any thread unless its Thread-safety line says otherwise. */
#ifndef QUAY_ALLOCATOR_H
#define QUAY_ALLOCATOR_H

#include <quay/base.h>
#include <quay/device.h>
#include <quay/raw_buffer.h>
#include <quay/status.h>

typedef struct quay_stream quay_stream;

/* How memory is to be allocated. Zero means the defaults. */
typedef struct quay_alloc_options {
  /* In bytes, a power of two; 0: the allocator's own (quay_allocator_alignment()). Any power of
   * two up to QUAY_ALIGNMENT_MAX is honoured, through every layer. */
  uint64_t alignment;
  /* All bytes are zero. */
  bool zeroed;
  /* Device memory gets a pinned twin on the host (UNSUPPORTED elsewhere). */
  bool mirror;
  /* The memory can be handed to another process (UNSUPPORTED where it can't). */
  bool exportable;
  /* Allocated in the order of this stream: work submitted to it later may use the memory at once.
   * Of a buffer, uses on other streams and by the host wait for that point; of a raw buffer that is
   * the caller's to do. NULL: usable everywhere on return. Must be a stream of the allocator's
   * device.
   */
  quay_stream *stream;
} quay_alloc_options;

#define QUAY_ALIGNMENT_MAX (1ull << 30) /* bytes */

/* Counters of one allocator; a layer and the allocator inside it count each for itself. Adopted
 * memory is in none of them. The numbers are summed over per-thread counters: exact whenever no
 * call is under way, and otherwise off by the calls under way. */
typedef struct quay_stats {
  uint64_t live_bytes; /* allocated and not freed, in bytes as asked for */
  uint64_t live_count; /* the same as a number of allocations */
  /* The most live bytes that were seen: the counters are looked at on every call of
   * quay_allocator_stats() and on every allocation of 64 KiB or more, so that a peak made of
   * smaller ones alone can be missed. Of a pool, on every allocation that it needs more memory in
   * use for than ever: what threads keep of small blocks (1 MiB each at most) and the rounding of
   * sizes can be missed. While threads are at it, what one is just freeing may count though another
   * one has it already. The limit and track layers keep it exactly. */
  uint64_t peak_bytes;
  uint64_t reserved_bytes; /* taken from the system or driver; at least live for a backend */
  uint64_t pending_bytes;  /* freed, but device work on them is not done yet */
  uint64_t alloc_count;    /* successful allocations since it was opened */
  uint64_t free_count;
  uint64_t failure_count;      /* allocations that failed */
  uint64_t error_count;        /* errors in functions that can't return one */
  uint64_t largest_free_bytes; /* largest block that a pool could hand out without new memory;
                                  0 where there is no such thing */
} quay_stats;

QUAY_BEGIN_DECLS

/* Opens an allocator by its spec:
 *
 *   spec  = { layer [ ":" args ] "+" } backend [ ":" args ]
 *   args  = arg { "," arg }          arg = value | key "=" value
 *
 * The leftmost layer is the outermost. After the backend's name everything is its arguments, so a
 * "+" in a path is a plain character; a comma in a value is written "\,", a backslash "\\". Sizes
 * are decimal numbers of bytes with an optional unit: KiB, MiB, GiB, TiB, or K, M, G, T for the
 * same, or KB, MB, GB, TB for powers of ten. Switches are on or off. Examples:
 *
 *   cpu                      host memory, 64-byte aligned
 *   cpu:align=4096,hugepages=on
 *   mmap:/scratch            unlinked files in a directory
 *   cuda:1                   the second CUDA device
 *   fault:after=3+track+cpu
 *
 * `spec` NULL gives one more reference to the default allocator, as quay_default_allocator_get().
 * Nothing falls back silently: what can't be had as written is an error.
 * Errors: INVALID_ARGUMENT (an unknown name, a bad number, trailing junk; the message quotes the
 * piece and lists what is possible; or the environment variable QUAY_COPY_THREADS or
 * QUAY_STAGING_BYTES is set to what it can't be); UNAVAILABLE (no driver, no such device, not built
 * in); UNSUPPORTED; OUT_OF_HOST_MEMORY; IO; DEVICE_LOST.
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_allocator_open(const char *spec,
                                                        quay_allocator **out_allocator);

/* Takes one more reference and returns `allocator`. NULL gives NULL.
 * Thread-safety: any thread. */
QUAY_API quay_allocator *quay_allocator_retain(quay_allocator *allocator);

/* Gives one reference back; the last one destroys the allocator. If raw buffers of it are still
 * live then, that is reported through the log callback, and the allocator lingers, out of reach,
 * until they are freed: a late free is never a use of freed memory. NULL is a no-op.
 * Thread-safety: any thread. */
QUAY_API void quay_allocator_release(quay_allocator *allocator);

/* The spec in its normal form, all layers included: "track+cpu:align=4096". Lives as long as the
 * allocator. "" for NULL.
 * Thread-safety: any thread; never changes. */
QUAY_API const char *quay_allocator_spec(const quay_allocator *allocator);

/* The name of this layer or backend alone: "track". Lives as long as the allocator. "" for NULL.
 * Thread-safety: any thread; never changes. */
QUAY_API const char *quay_allocator_name(const quay_allocator *allocator);

/* The allocator inside a layer; NULL for a backend. Not retained: lives as long as the layer.
 * Thread-safety: any thread; never changes. */
QUAY_API quay_allocator *quay_allocator_inner(const quay_allocator *allocator);

/* The first allocator named `name`, from `allocator` inwards; NULL if there is none. Not retained.
 * Thread-safety: any thread. */
QUAY_API quay_allocator *quay_allocator_find(const quay_allocator *allocator, const char *name);

/* The device of its memory. Not retained: lives as long as the allocator.
 * Thread-safety: any thread; never changes. */
QUAY_API quay_device *quay_allocator_device(const quay_allocator *allocator);

/* The kind of its memory.
 * Thread-safety: any thread; never changes. */
QUAY_API quay_memory_kind quay_allocator_kind(const quay_allocator *allocator);

/* Whether the CPU can read and write its memory through a pointer.
 * Thread-safety: any thread; never changes. */
QUAY_API bool quay_allocator_host_accessible(const quay_allocator *allocator);

/* The alignment, in bytes, that every allocation has without being asked.
 * Thread-safety: any thread; never changes. */
QUAY_API uint64_t quay_allocator_alignment(const quay_allocator *allocator);

/* Allocates `size` bytes. 0 is valid everywhere: the result is a real raw buffer that has to be
 * freed and copies as a no-op. `options` NULL means the defaults. The contents are undefined
 * unless `zeroed` is set. On error `*out_raw` is zeroed.
 * Errors: INVALID_ARGUMENT (NULL, an alignment that is no power of two or above
 * QUAY_ALIGNMENT_MAX, a size above 2^63-1, a stream of another device); OUT_OF_HOST_MEMORY;
 * OUT_OF_DEVICE_MEMORY; LIMIT_EXCEEDED; IO (a file system is full: ENOSPC); UNSUPPORTED (an option
 * that this kind of memory can't have, or a stream that captures a graph); DEVICE_LOST.
 * Ownership: the caller frees it with quay_raw_buffer_free() and keeps the allocator until then.
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_allocator_alloc(quay_allocator *allocator, uint64_t size,
                                                         const quay_alloc_options *options,
                                                         quay_raw_buffer *out_raw);

/* The counters of `allocator`.
 * Errors: INVALID_ARGUMENT (`out_stats` NULL).
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_allocator_stats(quay_allocator *allocator,
                                                         quay_stats *out_stats);

/* Gives memory that is cached and not in use back to the system or driver. `out_bytes` (may be
 * NULL) is how much.
 * Errors: DEVICE_LOST.
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_allocator_trim(quay_allocator *allocator,
                                                        uint64_t *out_bytes);

/* Waits until all work that Quay submitted on the allocator's device is done.
 * Errors: DEVICE_LOST.
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_allocator_synchronize(quay_allocator *allocator);

/* The default allocator: the innermost push of this thread, else the process-wide one that was
 * set, else the one that $QUAY_BACKEND names, else "cpu". The environment's is opened at first
 * need and then kept; a failure is not kept, so the next call tries again. `out_allocator` is one
 * reference of the caller's.
 * Errors: those of quay_allocator_open() for the environment's spec; the message names the
 * variable.
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_default_allocator_get(quay_allocator **out_allocator);

/* Sets the default allocator of the whole process, for threads that have pushed none. Takes a
 * reference of its own and gives the old one's back. NULL unsets it: the environment's, else cpu.
 * Thread-safety: any thread. */
QUAY_API void quay_default_allocator_set(quay_allocator *allocator);

/* Makes `allocator` the default of the calling thread until the matching pop. Takes a reference,
 * which pop, or else the thread's end, gives back. Threads that are started later do not inherit
 * it.
 * Errors: INVALID_ARGUMENT (NULL); OUT_OF_HOST_MEMORY. Nothing is pushed then.
 * Thread-safety: acts on the calling thread alone. */
QUAY_API QUAY_NODISCARD quay_status quay_default_allocator_push(quay_allocator *allocator);

/* Undoes the calling thread's last push. Without one it does nothing but report through the log
 * callback.
 * Thread-safety: acts on the calling thread alone. */
QUAY_API void quay_default_allocator_pop(void);

/* Stops the library's threads and gives back what it keeps for itself (the default allocators that
 * were set and opened, cached mappings). Everything can be used again afterwards and is started
 * again at need. Called by nobody but the program; at exit the library stops its threads by
 * itself.
 * Errors: BUSY while buffers, allocators, streams or accesses of the program live, with their
 * numbers in the message; nothing is stopped then.
 * Thread-safety: any thread, but no other call may be under way. */
QUAY_API QUAY_NODISCARD quay_status quay_shutdown(void);

QUAY_END_DECLS

#endif
