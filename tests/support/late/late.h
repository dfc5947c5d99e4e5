/* The backend "late": host memory that behaves like the memory of devices, and streams that run
 * late and out of step with each other. A test double: it proves hazards, keep-alive, pending frees
 * and staging without a GPU, and it watches for what a GPU would punish at random. README.md in
 * this folder explains what it can and can't see.
 *
 * Everything here may be called from any thread, but for late_register(), late_unregister() and
 * late_reset(), during which no other call of the backend may be under way. Nothing here may be
 * called from a kernel. */
#ifndef QUAY_TESTS_SUPPORT_LATE_H
#define QUAY_TESTS_SUPPORT_LATE_H

#include <quay/backend.h>

enum {
  LATE_MAX_DEVICES = 8,
  LATE_MAX_USES = 16 /* of one kernel */
};

/* Registration. */

typedef enum late_mode {
  LATE_THREADS = 0, /* each stream has a thread of its own; every operation takes its time */
  /* Nothing runs until somebody waits, and then only what he waits for, in an order that the seed
   * gives; or until late_step() and late_run_all(). */
  LATE_MANUAL = 1,
} late_mode;

typedef enum late_peers {
  LATE_PEERS_PAIRS = 0, /* 0 and 1 are peers, 2 and 3 ... */
  LATE_PEERS_ALL = 1,
  LATE_PEERS_NONE = 2,
  LATE_PEERS_LISTED = 3, /* as `peer_of` says */
} late_peers;

typedef enum late_host_threads {
  /* What one host thread has done and waited for is known to all: the program is taken to hand its
   * knowledge on correctly, which ThreadSanitizer checks better. */
  LATE_HOST_THREADS_TRUSTED = 0,
  /* Each host thread knows what it has waited for itself, and what it was told by late_observe().
   */
  LATE_HOST_THREADS_APART = 1,
} late_host_threads;

/* Zero means the defaults. */
typedef struct late_options {
  late_mode mode;
  uint32_t devices; /* 0: three */
  uint64_t seed;    /* of delays and of the order in which streams advance */
  /* LATE_THREADS: the longest delay before an operation, in microseconds; 0: 200. */
  uint32_t max_delay_us;
  /* LATE_MANUAL: how likely an operation of some stream runs, again and again, after each
   * submission and query. 0: never, so that everything is as late as it can be. At most 99. */
  uint32_t eager_percent;
  late_peers peers;
  bool peer_of[LATE_MAX_DEVICES][LATE_MAX_DEVICES]; /* read both ways */
  bool ordered_free;     /* QUAY_ALLOCATOR_ORDERED_FREE: free gets events that are pending */
  bool leaves_zeros;     /* to the core: alloc zeroes nothing by itself */
  uint64_t device_bytes; /* memory of each device; 0: 16 GiB */
  late_host_threads host_threads;
} late_options;

/* Registers the backend: specs are "late:INDEX[,memory=device|pinned]". NULL: the defaults.
 * Errors: INVALID_ARGUMENT (bad options, registered already); OUT_OF_HOST_MEMORY. */
quay_status late_register(const late_options *options);

/* Takes it out again, stops its threads and forgets violations and counts. Whatever of it is still
 * alive makes this fail with BUSY, with the numbers in the message, and change nothing. */
quay_status late_unregister(void);

/* The device of late:INDEX, which lives as long as the registration. NULL: there is none. */
quay_device *late_device_at(uint32_t index);

/* The tables, for those who want to call the backend without the core. */
const quay_device_vtable *late_device_table(void);
const quay_allocator_vtable *late_allocator_table(void);

/* Violations. */

/* X(NAME, text). In the first three the first word is what was submitted first. */
#define LATE_VIOLATION_TABLE(X)                                                               \
  X(WRITE_READ, "unordered write and read")                                                   \
  X(READ_WRITE, "unordered read and write")                                                   \
  X(WRITE_WRITE, "unordered write and write")                                                 \
  /* Memory was freed that work uses which is not ordered before the free. */                 \
  X(EARLY_FREE, "early free")                                                                 \
  /* Memory was used after it was freed, or is of an older generation. */                     \
  X(USE_AFTER_FREE, "use after free")                                                         \
  /* A rule of backend.h was broken: a dead stream or event, a range outside of the block. */ \
  X(PROTOCOL, "broken rule")

typedef enum late_violation_kind {
#define LATE_VIOLATION_ENUMERATOR(name, text) LATE_VIOLATION_##name,
  LATE_VIOLATION_TABLE(LATE_VIOLATION_ENUMERATOR)
#undef LATE_VIOLATION_ENUMERATOR
} late_violation_kind;

typedef struct late_violation {
  late_violation_kind kind;
  char message[320];
} late_violation;

/* How many there were since the registration or the last clear. The first `capacity` of them, and
 * never more than 64, are copied to `out`, which may be NULL. */
uint64_t late_violations(late_violation *out, size_t capacity);
void late_violations_clear(void);

/* Counts. */

#define LATE_FUNCTION_TABLE(X)                \
  X(MEMORY_INFO, "memory_info")               \
  X(SYNCHRONIZE, "synchronize")               \
  X(STREAM_CREATE, "stream_create")           \
  X(STREAM_WRAP, "stream_wrap")               \
  X(STREAM_DESTROY, "stream_destroy")         \
  X(STREAM_SYNCHRONIZE, "stream_synchronize") \
  X(STREAM_WAIT, "stream_wait")               \
  X(EVENT_RECORD, "event_record")             \
  X(EVENT_QUERY, "event_query")               \
  X(EVENT_SYNCHRONIZE, "event_synchronize")   \
  X(EVENT_DESTROY, "event_destroy")           \
  X(OPEN, "open")                             \
  X(ALLOC, "alloc")                           \
  X(FREE, "free")                             \
  X(COPY_IN, "copy_in")                       \
  X(COPY_OUT, "copy_out")                     \
  X(HOST_POINTER, "host_pointer")             \
  X(ADDRESS, "address")                       \
  X(COPY_WITHIN, "copy_within")               \
  X(COPY_ACROSS, "copy_across")               \
  X(LEND, "lend")                             \
  X(FILL, "fill")                             \
  X(COPY_IN_ASYNC, "copy_in_async")           \
  X(COPY_OUT_ASYNC, "copy_out_async")         \
  X(COPY_WITHIN_ASYNC, "copy_within_async")   \
  X(FILL_ASYNC, "fill_async")                 \
  X(COPY_ACROSS_ASYNC, "copy_across_async")   \
  X(RESET, "reset")                           \
  X(LAUNCH, "launch")

typedef enum late_function {
#define LATE_FUNCTION_ENUMERATOR(name, text) LATE_##name,
  LATE_FUNCTION_TABLE(LATE_FUNCTION_ENUMERATOR)
#undef LATE_FUNCTION_ENUMERATOR
  LATE_FUNCTION_COUNT
} late_function;

typedef struct late_counts {
  uint64_t calls[LATE_FUNCTION_COUNT]; /* since the registration or the last reset of the counts */
  uint64_t submitted;                  /* operations put into streams: all but waits and records */
  uint64_t run;                        /* of those that have run */
  uint64_t pending_frees;              /* blocks just now that free was called for and that wait */
  uint64_t blocks, streams, events, allocators; /* live just now */
} late_counts;

void late_count(late_counts *out_counts);
void late_counts_reset(void);

/* Failures and loss. */

/* The `nth` call of `function` from now on (1: the next one) fails with `status`, once. False for
 * functions that return no status, and for nth 0, which takes a failure back. */
bool late_fail(late_function function, uint64_t nth, quay_status status);

/* The device is lost: what is queued never runs, waits end with DEVICE_LOST, every later call fails
 * with it. Streams of other devices go on as if its events were complete. */
void late_lose(uint32_t index);
/* The same when the `nth` operation from now on of the device's streams has run. */
void late_lose_after(uint32_t index, uint64_t nth);
/* Begins a new generation of the device, lost or not: its memory, streams and events are stale.
 * What quay_device_reset() does, without being asked for it: streams may be alive. */
void late_reset(uint32_t index);

/* Work. Streams are what quay_stream_native() gives, or one of the program's own: */

/* A stream to wrap (the stream 0 of every device is there without it). It is destroyed once no
 * wrapper of it is alive: anything else is a violation. 0 where the device is lost. */
uint64_t late_native_stream_create(uint32_t index);
void late_native_stream_destroy(uint64_t stream);

/* One piece of memory of a kernel, by the address that quay_raw_buffer_address() gives. */
typedef struct late_use {
  uint64_t address;
  uint64_t size; /* bytes */
  quay_use_mode mode;
} late_use;

/* `bytes[i]` is where use i begins. Calls nothing of Quay's and nothing declared here. */
typedef void (*late_kernel)(void *user, unsigned char *const *bytes);

/* Submits a kernel that touches exactly `uses`. `user` must live until it has run.
 * Errors: INVALID_ARGUMENT (no such stream or memory: a violation, too); DEVICE_LOST; STALE. */
quay_status late_launch(uint64_t stream, late_kernel kernel, void *user, const late_use *uses,
                        size_t count);

/* Submits an operation that lasts until its gate is opened. 0 for a stream that is none. */
uint64_t late_hold(uint64_t stream);
void late_open_gate(uint64_t gate);

/* Submits an operation that lasts so long; in manual mode it is over at once. */
quay_status late_delay(uint64_t stream, uint32_t microseconds);

/* LATE_MANUAL: runs the next operation of `stream`; false if there is none that can run. */
bool late_step(uint64_t stream);
/* LATE_MANUAL: runs everything that can run and gives the number of operations. */
uint64_t late_run_all(void);
/* LATE_MANUAL: a number that depends on which operations have run in which order. */
uint64_t late_order(void);

/* Operations submitted to `stream` that have not run, waits and records among them. */
uint64_t late_queued(uint64_t stream);

/* The host. */

/* Tells that the calling thread reads or writes pinned memory through its pointer now. Memory that
 * is not late's is ignored. */
void late_host_access(const void *pointer, uint64_t size, quay_use_mode mode);

/* LATE_HOST_THREADS_APART: the calling thread tells all, or learns, what threads have told. */
void late_publish(void);
void late_observe(void);

/* Copies the bytes at a device address as they are now: no operation, checks nothing but that the
 * memory is there. */
bool late_peek(uint64_t address, void *out_bytes, uint64_t size);

#endif
