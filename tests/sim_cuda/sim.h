/* What the files of the simulated driver share. One lock guards all of it. Functions below want the
 * lock held unless they say otherwise. */
#ifndef QUAY_TESTS_SIM_CUDA_SIM_H
#define QUAY_TESTS_SIM_CUDA_SIM_H

#include <pthread.h>
#include <sys/types.h>

#include "abi.h"
#include "simcuda.h"

#define ENTRY(name, base, version, parameters) SIMCUDA_API CUresult name parameters;
#define PER_THREAD(name, suffix, parameters, arguments) \
  SIMCUDA_API CUresult name##_##suffix parameters;
#include "entries.def"
#undef ENTRY
#undef PER_THREAD

typedef enum sim_entry {
#define ENTRY(name, base, version, parameters) ENTRY_##name,
#include "entries.def"
#undef ENTRY
  ENTRY_COUNT,
} sim_entry;

enum {
  SIM_MAX_DEVICES = 8,
  SIM_GATES = 16,
  SIM_PAGE = 4096,
  SIM_GRANULARITY = 2 << 20,
};

typedef struct sim_context sim_context;
typedef struct sim_stream sim_stream;
typedef struct sim_memory sim_memory;
typedef struct sim_range sim_range;
typedef struct sim_op sim_op;
typedef struct sim_pool sim_pool;
typedef struct sim_capture sim_capture;

/* util.c: memory that is always there (a test double may end the program); arrays that grow. */
void *sim_new(size_t size); /* zeroed */
void *sim_grow(void *array, size_t count, size_t *capacity, size_t item);
uint64_t sim_random(uint64_t *state);

/* race.c: what ThreadSanitizer is told. Between quiet(true) and quiet(false) of a thread it sees
 * neither that thread's accesses nor its locks. */
void sim_quiet(bool quiet);
void sim_handoff(const void *token);  /* what this thread has done is before ... */
void sim_takeover(const void *token); /* ... what follows this */
void sim_announce(const void *bytes, size_t size, bool write);

/* clock.c: vector clocks. A line is one line of time, of a stream or of host threads. A line that
 * has ended is used again, its time going on: what is known of the old owner counts as known of
 * the new one's past, which can only miss a race, never make one up. */
typedef struct sim_clock {
  uint64_t *times; /* by line */
  uint32_t count;
} sim_clock;

typedef struct sim_epoch {
  uint32_t line;
  uint64_t time;
} sim_epoch;

uint32_t sim_line_begin(void);
void sim_line_end(uint32_t line);
sim_epoch sim_clock_tick(sim_clock *clock, uint32_t line);
void sim_clock_join(sim_clock *into, const sim_clock *from);
bool sim_clock_knows(const sim_clock *clock, sim_epoch epoch);
void sim_clock_free(sim_clock *clock);
/* The clock and line of the calling host thread. */
sim_clock *sim_host_clock(void);
uint32_t sim_host_line(void);
/* Whether whatever is submitted from now on comes after `epoch`. */
bool sim_everybody_knows(sim_epoch epoch);

/* shadow.c: who accessed which bytes of a piece of memory. */
typedef struct sim_actor {
  const char *what;
  uint64_t stream; /* id; 0: the host */
  sim_epoch epoch;
  const sim_clock *clock; /* what comes before it */
  bool beginning;         /* the allocation itself, which its free need not wait for */
} sim_actor;

typedef struct sim_record {
  uint64_t begin, end;
  sim_epoch epoch;
  const char *what;
  uint64_t stream;
  bool write, beginning;
} sim_record;

typedef struct sim_shadow {
  sim_record *records;
  size_t count, capacity;
} sim_shadow;

void sim_shadow_access(sim_memory *memory, uint64_t begin, uint64_t end, bool write,
                       const sim_actor *actor);
/* Reports what the free or unmapping of these bytes is not ordered after. */
bool sim_shadow_check_end(sim_memory *memory, uint64_t begin, uint64_t end, const sim_actor *actor);
sim_actor sim_host_actor(const char *what);

/* memory.c: physical memory, and ranges of addresses that lead to it. */
struct sim_memory {
  unsigned char *bytes;
  uint64_t size;
  unsigned references; /* ranges, handles, operations that have not run */
  int device;
  bool counted;     /* against the device's limit */
  bool host_access; /* `bytes` are where the host touches them */
  bool borrowed;    /* `bytes` are the program's own */
  bool mapped;      /* `bytes` come from mmap */
  int file;         /* memfd behind it; -1: none */
  uint64_t serial;
  sim_shadow shadow;
};

/* After these bytes were touched: what lies elsewhere leaves this process's resident memory. */
void sim_memory_touched(const sim_memory *memory, uint64_t offset, uint64_t size);

typedef enum sim_kind {
  SIM_DEVICE,
  SIM_POOL,
  SIM_PINNED,
  SIM_REGISTERED,
  SIM_MANAGED,
  SIM_MAPPED,
  SIM_IPC,
} sim_kind;

enum {
  SIM_EXTERNAL = 1 /* of SIM_IPC: memory of another interface, which cuMemFree ends */
};

struct sim_range {
  uint64_t begin, end;
  sim_kind kind;
  sim_memory *memory;
  int device;
  sim_context *context;
  sim_pool *pool;                        /* SIM_POOL */
  unsigned flags;                        /* of host memory; SIM_EXTERNAL */
  unsigned char access[SIM_MAX_DEVICES]; /* SIM_MAPPED: CUmemAccess_flags */
  CUmemGenericAllocationHandle handle;   /* SIM_MAPPED */
  uint64_t serial;
};

typedef struct sim_segment {
  sim_memory *memory; /* NULL: pageable host memory; else one reference */
  uint64_t offset;
  unsigned char *host;
  uint64_t size;
} sim_segment;

typedef struct sim_span {
  sim_segment *segments;
  size_t count, capacity;
  uint64_t address, size;
} sim_span;

/* NULL: more than the device has left. `limit` false: not counted. */
sim_memory *sim_memory_new(int device, uint64_t size, bool counted);
sim_memory *sim_memory_borrow(void *bytes, uint64_t size);
void sim_memory_retain(sim_memory *memory);
void sim_memory_release(sim_memory *memory);
/* Puts a memfd behind memory from mmap. False: the system refuses. */
bool sim_memory_share(sim_memory *memory);
sim_memory *sim_memory_open(int device, int file, uint64_t size, bool counted);
void sim_memory_poison(sim_memory *memory, int value);
unsigned char *sim_segment_bytes(const sim_segment *segment);

/* Addresses of devices, which the host can't touch; not used twice before all were. 0: none left.
 */
uint64_t sim_address_take(uint64_t size, uint64_t alignment);
bool sim_address_is_device(uint64_t address);
sim_range *sim_range_add(sim_kind kind, uint64_t begin, uint64_t size, sim_memory *memory,
                         sim_context *context);
sim_range *sim_range_at(uint64_t address);
/* The first range that overlaps; NULL: none. */
sim_range *sim_range_overlapping(uint64_t begin, uint64_t end);
/* Releases the memory; the address is remembered for messages. */
void sim_range_remove(sim_range *range, const char *fate);
size_t sim_range_count(void);
sim_range *sim_range_get(size_t index);
void sim_ranges_clear(void);
/* Reports why there is nothing at the address. */
void sim_report_address(const char *what, uint64_t address, uint64_t size);

typedef enum sim_rule {
  SIM_RULE_DEVICE, /* no address of the host */
  SIM_RULE_HOST,   /* none of a device */
  SIM_RULE_ANY,    /* by unified addressing */
  SIM_RULE_PEER,   /* SIM_RULE_DEVICE, and plain memory of other devices without enabling */
} sim_rule;

/* The bytes at an address as work in `context` reaches them. Else INVALID_VALUE with a violation.
 */
CUresult sim_span_find(sim_span *out, const char *what, sim_context *context, uint64_t address,
                       uint64_t size, bool write, sim_rule rule);
void sim_span_free(sim_span *span);
bool sim_span_is_pageable(const sim_span *span);
bool sim_span_is_host(const sim_span *span); /* pageable, pinned, registered or managed */
void sim_span_access(const sim_span *span, bool write, const sim_actor *actor);
/* Copies the bytes of spans of equal size, and tells ThreadSanitizer. */
void sim_span_copy(const sim_span *to, const sim_span *from);
void sim_span_fill(const sim_span *to, const void *pattern, size_t pattern_size);

/* context.c */
struct sim_context {
  uint32_t magic;
  sim_context *next;
  int device;
  bool primary, alive;
  unsigned retains, flags;
  uint64_t id;
  uint32_t peers; /* bit: device */
  sim_stream *legacy;
};

sim_context *sim_current(void); /* NULL: none */
sim_context *sim_context_check(CUcontext handle, CUresult *out_error);
/* Waits for everything of the context. */
void sim_context_wait(sim_context *context);
void sim_contexts_clear(void);
bool sim_device_is_valid(int device);

/* allocation.c: the range whose first address this is, of one of two kinds; NULL with a violation.
 */
sim_range *sim_range_begin(const char *what, uint64_t address, sim_kind kind, sim_kind other);
/* Reports what the end of these bytes is not ordered after. */
void sim_range_check_end(const sim_range *range, const sim_actor *actor);

/* stream.c and run.c: streams, their operations, and who runs them when. */
typedef enum sim_stream_kind {
  SIM_STREAM_LEGACY,
  SIM_STREAM_PER_THREAD,
  SIM_STREAM_USER,
} sim_stream_kind;

typedef struct sim_point {
  sim_stream *stream;
  uint64_t serial;
} sim_point;

/* When an event was reached, in milliseconds; shared by the event and the operation. */
typedef struct sim_moment {
  unsigned references;
  double milliseconds;
} sim_moment;

void sim_moment_release(sim_moment *moment);

struct sim_op {
  sim_op *next;
  uint64_t serial; /* within the stream */
  const char *what;
  sim_point *after;
  size_t after_count, after_capacity;
  sim_span to, from;
  unsigned char *staging; /* `from` or `to` is this; own */
  unsigned char pattern[4];
  size_t pattern_size;
  const simcuda_kernel *kernel;
  unsigned char parameters[16][16];
  sim_span spans[SIMCUDA_MAX_ACCESSES];
  bool spans_written[SIMCUDA_MAX_ACCESSES];
  size_t span_count;
  bool hold;
  unsigned gate;
  unsigned sleep_us;
  int fault; /* sticky code */
  CUhostFn function;
  void *user;
  sim_memory *freed; /* of a pool: ends here */
  sim_moment *when;  /* of an event; one reference */
  /* Of another interface, one reference: what is waited for before this runs, or signalled by it.
   */
  CUexternalSemaphore semaphore;
  uint64_t semaphore_value;
  bool signals;
};

struct sim_stream {
  uint32_t magic;
  sim_stream *next;
  sim_context *context;
  sim_stream_kind kind;
  bool blocking, alive, running, has_thread;
  int priority;
  unsigned flags;
  uint64_t id;
  uint64_t owner; /* thread, of a per-thread stream */
  sim_op *head, *tail;
  uint64_t submitted, completed;
  uint32_t line;
  sim_clock clock;
  uint64_t random;
  sim_capture *capture;
  uint64_t captured; /* operations of this capture */
  uint64_t joined;   /* how many of them another stream has waited for */
};

sim_stream *sim_stream_new(sim_context *context, sim_stream_kind kind);
void sim_stream_end(sim_stream *stream);
/* The stream of a handle in the current context; else *out_error is set. */
sim_stream *sim_stream_of(CUstream handle, CUresult *out_error);
sim_op *sim_op_new(const char *what);
void sim_op_free(sim_op *op);
void sim_op_after(sim_op *op, sim_stream *stream, uint64_t serial);
/* What the stream does next, at a new moment: accesses are judged as this actor's. Joins what the
 * legacy stream implies. */
sim_actor sim_stream_actor(sim_stream *stream, const char *what);
void sim_submit(sim_stream *stream, sim_op *op);
/* Waits; the lock is released meanwhile. The host then knows the clock, if one is given. */
void sim_wait(sim_stream *stream, uint64_t serial, const sim_clock *clock);
bool sim_done(const sim_stream *stream, uint64_t serial);
void sim_run_eagerly(void);
void sim_streams_clear(void);
void *sim_stream_thread(void *stream);
bool sim_run_any(void);
uint64_t sim_thread_id(void);

/* event.c, pool.c, virtual.c, module.c, ipc.c: end what is left at a reset. */
void sim_events_clear(void);
void sim_events_end(const sim_context *context); /* those of a context that ends */
void sim_pools_clear(void);
void sim_handles_clear(void);
void sim_modules_clear(void);
void sim_event_counts(simcuda_census *out);
void sim_pool_counts(simcuda_census *out);
void sim_handle_counts(simcuda_census *out);
void sim_module_counts(simcuda_census *out);
void sim_context_counts(simcuda_census *out);
void sim_stream_counts(simcuda_census *out);

/* pool.c */
bool sim_pool_reaches(const sim_pool *pool, int device, bool write);
CUmemoryPool sim_pool_handle(sim_pool *pool);
void sim_pool_shrink(sim_pool *pool, uint64_t bytes);

/* virtual.c: where a reservation that overlaps ends; 0: there is none. */
uint64_t sim_reservation_overlapping(uint64_t begin, uint64_t end);

/* capture.c */
/* Whether the calling thread may make a call that capture forbids. Invalidates where it may not. */
CUresult sim_capture_allows_unsafe(void);
/* For work that is about to be submitted: *captured says it belongs to a graph and must not run. */
CUresult sim_capture_submit(sim_stream *stream, bool *captured);
/* For queries and waits of a stream, which are not allowed while it captures. */
CUresult sim_capture_refuse(sim_stream *stream);
/* A stream waits for an event: of a capture, with what had been captured on the event's stream by
 * then, or (NULL) of none. *captured as above. */
CUresult sim_capture_wait(sim_stream *stream, sim_capture *capture, sim_stream *recorded_on,
                          uint64_t recorded_at, bool *captured);
bool sim_capture_is_active(const sim_capture *capture);
void sim_captures_clear(void);

/* semaphore.c: timelines of other interfaces. */
bool sim_semaphore_reached(const sim_op *op);
void sim_semaphore_run(const sim_op *op);
void sim_semaphore_release(CUexternalSemaphore semaphore);
/* The host may have learnt in another interface of what was signalled there. */
void sim_semaphores_learn(void);
/* Waits for a change; not for long if it could come from another interface. */
void sim_pause(void);
void sim_semaphores_end(const sim_context *context);
void sim_semaphores_clear(void);
void sim_semaphore_counts(simcuda_census *out);

/* report.c */
void sim_report(simcuda_violation_kind kind, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void sim_reports_clear(void);

/* entry.c: the way into every function, and settings. */
enum {
  SIM_NEEDS_INIT = 1,
  SIM_NEEDS_CONTEXT = 2,
  SIM_UNSAFE_IN_CAPTURE = 4,
};

/* Counts the call and takes the lock, which it keeps if, and only if, it answers success. */
CUresult sim_enter(sim_entry entry, unsigned needs);
CUresult sim_leave(CUresult result);
void sim_lock(void);
void sim_unlock(void);
bool sim_is_sticky(int code);

#define SIM_ENTER(name, needs)                                \
  do {                                                        \
    const CUresult entered_ = sim_enter(ENTRY_##name, needs); \
    if (entered_ != CUDA_SUCCESS)                             \
      return entered_;                                        \
  } while (0)

typedef struct sim_settings {
  CUresult init;
  bool stub, old;
  simcuda_schedule schedule;
  int devices;
  uint64_t memory;
  uint32_t peers[SIM_MAX_DEVICES]; /* bit: device */
  int driver;
  bool managed, vmm, pools, nodes;
  bool absent_is_success;
  const char *missing;
  bool apart;
  uint64_t seed;
  unsigned eager, delay;
  bool strict;
  bool elsewhere; /* memory of devices does not stay resident in this process */
} sim_settings;

typedef struct sim_state {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  bool configured, initialised, exiting;
  pid_t process;
  sim_settings settings;
  CUresult sticky;
  uint64_t next_serial;
  uint64_t random;
  uint64_t used[SIM_MAX_DEVICES];
  bool gates[SIM_GATES];
  uint64_t generation; /* a reset begins a new one */
  sim_context *contexts;
  sim_stream *streams;
  unsigned threads; /* that run streams */
  unsigned foreign; /* operations that wait for another interface */
} sim_state;

extern sim_state sim;
/* Set while a function with the per-thread default stream is called. */
extern _Thread_local unsigned sim_per_thread;

#endif
