/* Layers: allocators around allocators, opened in specs. What they offer beyond the allocator's
 * own functions stands here.
 *
 *   track            leaks with the place that asked and the kind of memory, double frees, pointers
 *                    into a block and foreign ones with their nearest neighbours, exact peak;
 *                    of adopted memory, which is in no number and no list, double frees and, in the
 *                    log when the allocator's last reference is given back, leaks
 *   limit:BYTES      all that is allocated together never exceeds BYTES (limit:8GiB): a request
 *                    that would fails with LIMIT_EXCEEDED. Exact, also when threads race: a request
 *                    is refused only if what is live at that moment leaves it no room, and waits
 *                    for requests under way that may yet fail. Counted are bytes as asked for,
 *                    without what alignment and the inner allocator add, and pages that a layer
 *                    around it commits; adopted memory is not. The peak in its statistics is exact
 *   trace:PATH       writes every allocation and free into a log in the format of the RAPIDS Memory
 *                    Manager, which `quay replay` reads. A file that is there is replaced. What
 *                    stands in it can be replayed, also when threads race, when the program frees
 *                    twice and when the process was killed. See below
 *     flush=N        the file is written after every N events (default 128), when the buffer of 64
 *                    KiB is full, by quay_trace_flush(), when the allocator is released and at exit
 *   guard            finds writes beside a block and to a freed one. See below
 *     redzone=BYTES  at least so many before and behind each block (default 128); before it as many
 *                    more as its alignment needs
 *     quarantine=BYTES  freed blocks are kept, oldest given up first, while they take at most so
 *                    many bytes, red zones included (default 4MiB; 0: none); larger ones are not
 *   fault            fails calls on purpose, for tests
 *     after=N        the first N matching calls succeed, every one after them fails
 *     nth=N          the N-th matching call fails, the others succeed
 *     every=N        every N-th matching call fails
 *     on=KIND        which calls match: alloc, copy_in, copy_out, copy_within, copy (any of
 *                    the three), fill, or all; default alloc, which the pages that a pool around
 *                    the layer commits are, too (the pool tries again before it fails). A copy
 *                    counts once on each side, as copy_out at its source and copy_in at its
 *                    destination (copy_within where both are of one kind and device), a staged
 *                    one, or one with a progress callback, once for every chunk
 *     status=NAME    the error: out_of_host_memory (default for alloc on host memory),
 *                    out_of_device_memory (default for alloc on a device), io (default for the
 *                    others), device_lost ... : a status code's name in lower case
 *   pool             keeps freed memory for the next allocation, and carves small blocks out of
 *                    large ones. Allocations take whole multiples of the alignment that the
 *                    memory has without being asked, 64 bytes or more (256 on CUDA and Vulkan), up
 *                    to 4 KiB an eighth on top of that at most; from 1 MiB whole pages of 4 KiB.
 *                    Free never waits, never calls the backend, and takes no memory; but for what
 *                    follows. A block that device work still uses when it is freed is handed out
 *                    again to the stream of that work at once (to allocations with that stream in
 *                    their options), to others when the work is done. One that several streams use
 *                    needs a note of 64 bytes for each of them: allocations see to some 96 in
 *                    stock; if more than those are freed with no allocation in between, the free
 *                    takes host memory for more, and if there is none, waits for the work.
 *                    quay_allocator_trim() gives what is free back; statistics are the pool's own:
 *                    reserved, pending, largest free block. Out of memory it waits for pending
 *                    frees, gives back what is free and tries once more, or a few times where
 *                    other threads free meanwhile; the error has the requested, live, reserved
 *                    and largest free bytes, and the device's own text.
 *                    Mirrored and exportable memory, and alignments above 2 MiB (4 KiB where the
 *                    backend has no pages), are blocks of their own and are not kept.
 *                    quay_raw_buffer_release_host() of its memory is UNSUPPORTED.
 *     keep=default   holds about a sixtieth more than was ever in use at once; where that means
 *                    giving memory back and taking it again all the time, up to a twentieth more
 *                    (on CUDA also the driver's handles of which a part is in use: mostly 2 to 64
 *                    MiB each; where the backend has no pages (mmap, Vulkan, page-locked and
 *                    managed memory) the blocks of which a part is in use, which can be as much
 *                    again)
 *     keep=tight     a 250th more, at most an 80th, beside the same handles and blocks, for more
 *                    calls of the driver
 *     block=BYTES    what is taken from the backend at a time, a power of two from 64 KiB to 1 GiB;
 *                    default: grows with what is taken already
 *     max=BYTES      reserves no more: LIMIT_EXCEEDED. A share of the device's memory is written as
 *                    max=50% */
#ifndef QUAY_LAYERS_H
#define QUAY_LAYERS_H

#include <quay/allocator.h>
#include <quay/base.h>
#include <quay/status.h>

QUAY_BEGIN_DECLS

/* The track layer. Inside a pool it sees what the pool does: the pool's blocks, whose places are
 * those of the calls that made it grow. Address space that a pool reserves is no block and no leak,
 * and holds no bytes; an address in it is found by quay_track_locate(). To find the program's
 * leaks, put the layer around the pool: "track+pool+cpu". */

/* One live allocation, or one near an address that was asked for. */
typedef struct quay_track_block {
  uint64_t address; /* first byte, in the device's address space; 0 where memory has none */
  uint64_t size;    /* bytes */
  quay_memory_kind kind;
  uint64_t serial;  /* counts the layer's allocations from 1 */
  const char *file; /* the place that asked, as given to quay_track_place(); "" if none was */
  int line;
  /* The return address of the public function that allocated, for addr2line or a debugger. */
  const void *caller;
} quay_track_block;

/* Called for every live block, by serial number. Return false to stop. Runs without a lock: blocks
 * that are made or freed meanwhile may or may not be seen. */
typedef bool (*quay_track_visitor)(void *user, const quay_track_block *block);

/* Names the place of the calling thread's next allocations for track layers: `file` must stay valid
 * (__FILE__), NULL ends it. QUAY_HERE() does it for the calling line.
 * Thread-safety: acts on the calling thread alone. */
QUAY_API void quay_track_place(const char *file, int line);
#define QUAY_HERE() quay_track_place(__FILE__, __LINE__)

/* Visits the live blocks of the first track layer from `allocator` inwards.
 * Errors: INVALID_ARGUMENT (NULL, or no track layer in it); OUT_OF_HOST_MEMORY.
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_track_visit(quay_allocator *allocator,
                                                     quay_track_visitor visitor, void *user);

/* Where an address lies among the live blocks: inside one, or between two. */
typedef struct quay_track_location {
  bool inside;            /* `block` holds the address */
  quay_track_block block; /* valid if inside */
  uint64_t offset;        /* of the address in `block`, in bytes; if inside */
  bool has_below, has_above;
  quay_track_block below; /* the nearest live block that ends at or below the address */
  quay_track_block above; /* the nearest live block that begins above it */
} quay_track_location;

/* Finds an address among the live blocks of the first track layer from `allocator` inwards.
 * Errors: INVALID_ARGUMENT (NULL, or no track layer in it).
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_track_locate(quay_allocator *allocator, uint64_t address,
                                                      quay_track_location *out_location);

/* Checks that nothing is live: QUAY_OK, or BUSY with the number of blocks and bytes and the oldest
 * block's place in the message. Every leak goes to the log, too.
 * Errors: INVALID_ARGUMENT (NULL, or no track layer in it); BUSY.
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_track_check(quay_allocator *allocator);

/* The trace layer.
 *
 * Lines are `Thread,Time,Action,Pointer,Size,Stream`: the system's number of the thread; the time
 * since the layer was opened, which never goes back, as hours:minutes:seconds:microseconds;
 * `allocate`, `free` or `allocate failure`; the address on the device, 0x0 for empty blocks, and a
 * number from 2^63 where memory has no address; bytes as asked for; quay_stream_id() of the stream
 * that the block was allocated on, 0x0 for none. Released memory is logged as freed; adopted
 * memory, address space and pages (what a pool inside which the layer stands asks for) are not
 * logged: put it around the pool.
 *
 * A file that can't be written never fails an allocation: it is reported through the log callback
 * and counted in `error_count`, the lines wait in the buffer, and writing is tried again. If the
 * buffer fills up meanwhile, the log ends for good with the last line that fitted, and how many are
 * missing is reported at the end. A forked child logs nothing: the file is its parent's. */

/* Writes what every trace layer from `allocator` inwards has in its buffer to its file. The system
 * then has it, so that the end of the process loses nothing; it is not forced to the disk.
 * Errors: INVALID_ARGUMENT (NULL, or no trace layer in it); IO (the disk is full: ENOSPC ...), also
 * if an earlier loss has ended the log.
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_trace_flush(quay_allocator *allocator);

/* The guard layer.
 *
 * Every block lies between two red zones; where a third party's memory can't be carved (no `window`
 * in its table) there is one behind it alone. Red zones are filled with 0xfb, new memory that was
 * not asked for zeroed with 0xcd, freed memory with 0xdd, on devices, too. A block's red zones are
 * looked at when it is freed, and all of a freed one when it leaves the quarantine: damage is
 * reported through the log callback and counted in `error_count`. quay_guard_check() looks at any
 * time. In builds with AddressSanitizer, and under Valgrind where its headers were there at build
 * time, memory that the host can reach is poisoned besides: the access itself is reported.
 *
 * A second free of a block is refused and reported. Device work on a block must be done before it
 * is freed, which buffers see to. Its memory can't be released, since it is carved out of a larger
 * block. Reserved address space, which a pool around it takes, has no red zones: put it around the
 * pool. The memory that it takes from the allocator inside it, where limit and statistics count it,
 * is larger than what was asked for. */

/* Where bytes were written that must not be. */
typedef enum quay_guard_direction {
  QUAY_GUARD_UNDERRUN = 1,   /* before the block */
  QUAY_GUARD_OVERRUN = 2,    /* behind it */
  QUAY_GUARD_AFTER_FREE = 3, /* in the block, or beside it, after it was freed */
} quay_guard_direction;

typedef struct quay_guard_damage {
  quay_guard_direction direction;
  int64_t first, last; /* offsets of the first and last damaged byte from the block's first byte */
  uint64_t bytes;      /* damaged bytes from the first to the last */
  quay_track_block block; /* `serial` counts this layer's allocations */
} quay_guard_damage;

/* Called for every damaged place. Return false to stop. Runs without a lock. */
typedef bool (*quay_guard_visitor)(void *user, const quay_guard_damage *damage);

/* Looks at the red zones of every live block, and at every freed block that is kept, of the first
 * guard layer from `allocator` inwards. What is damaged is found again until the block is gone.
 * Errors: INVALID_ARGUMENT (NULL, or no guard layer in it); OUT_OF_HOST_MEMORY; those of reading
 * the memory.
 * Thread-safety: any thread; writes within live blocks may go on meanwhile. */
QUAY_API QUAY_NODISCARD quay_status quay_guard_visit(quay_allocator *allocator,
                                                     quay_guard_visitor visitor, void *user);

/* The same: QUAY_OK, or OUT_OF_RANGE with the number of damaged places and the first one in the
 * message: the direction, the offsets, the block and the place that asked for it. Every place goes
 * to the log, too.
 * Errors: OUT_OF_RANGE; those of quay_guard_visit().
 * Thread-safety: as quay_guard_visit(). */
QUAY_API QUAY_NODISCARD quay_status quay_guard_check(quay_allocator *allocator);

/* The fault layer. */

/* Numbers of the first fault layer from `allocator` inwards. */
typedef struct quay_fault_counts {
  uint64_t calls;  /* matching calls so far, failed ones included */
  uint64_t failed; /* failed on purpose */
} quay_fault_counts;

/* Errors: INVALID_ARGUMENT (NULL, or no fault layer in it).
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_fault_get_counts(quay_allocator *allocator,
                                                          quay_fault_counts *out_counts);

/* Sets the counters back to 0, so that the count begins again.
 * Errors: INVALID_ARGUMENT (NULL, or no fault layer in it).
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_fault_reset(quay_allocator *allocator);

QUAY_END_DECLS

#endif
