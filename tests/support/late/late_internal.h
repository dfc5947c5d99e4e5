/* What the files of the late backend share. One lock guards all of it; bytes are moved under a
 * second one, with the first released, so that a kernel may take its time. Functions below want the
 * lock held unless they say otherwise. */
#ifndef QUAY_TESTS_SUPPORT_LATE_INTERNAL_H
#define QUAY_TESTS_SUPPORT_LATE_INTERNAL_H

#include <pthread.h>

#include "late.h"

typedef struct late_device late_device;
typedef struct late_stream late_stream;
typedef struct late_event late_event;
typedef struct late_block late_block;
typedef struct late_op late_op;

/* late_util.c: memory that is always there (a test double may end the program), random numbers. */
void *late_new(size_t size); /* zeroed */
void *late_grow(void *memory, size_t size);
uint64_t late_random(uint64_t *state);

/* late_table.c: handles, which are never used twice and tell what they are of. */
typedef enum late_tag {
  LATE_TAG_BLOCK = 0xb10c,
  LATE_TAG_STREAM = 0x57e3,
  LATE_TAG_EVENT = 0xe7e2,
  LATE_TAG_GATE = 0x6a7e,
} late_tag;

uint64_t late_handle_add(late_tag tag, void *object);
void *late_handle_get(late_tag tag, uint64_t handle); /* NULL: no such handle, or not any more */
void late_handle_remove(uint64_t handle);
void late_handles_clear(void);

/* late_clock.c: who is known to have happened before whom. A context is one line of time, of a
 * stream or of host threads; a clock says how much of every line is in the past. */
typedef struct late_tick {
  uint64_t incarnation; /* of the slot: ticks of an earlier owner count for nothing */
  uint64_t time;
} late_tick;

typedef struct late_clock {
  late_tick *ticks; /* by slot */
  uint32_t count;
} late_clock;

typedef struct late_context {
  uint32_t slot;
  late_clock clock;
} late_context;

/* One moment of one context. */
typedef struct late_epoch {
  uint32_t slot;
  uint64_t time;
} late_epoch;

void late_context_begin(late_context *context);
/* The slot is used again once no record in any block is of it. */
void late_context_end(late_context *context);
late_epoch late_context_tick(late_context *context);
void late_clock_join(late_clock *into, const late_clock *from);
void late_clock_free(late_clock *clock);
bool late_clock_knows(const late_clock *clock, late_epoch epoch);
/* Records count their epochs, so that a slot is not used again too early. */
void late_epoch_retain(late_epoch epoch);
void late_epoch_release(late_epoch epoch);
/* The context of the calling host thread. */
late_context *late_host(void);
/* Whether whatever is submitted or done from now on comes after `epoch`. */
bool late_everybody_knows(late_epoch epoch);
void late_clocks_begin(late_host_threads host_threads);
void late_clocks_end(void);

/* late_tree.c: ranges that may overlap, ordered by where they begin. */
typedef struct late_node {
  struct late_node *left, *right;
  uint64_t begin, end;
  uint64_t last_end; /* of the whole subtree */
  uint64_t order;    /* among nodes of equal begin */
  uint64_t priority;
} late_node;

typedef struct late_tree {
  late_node *root;
  size_t count;
  uint64_t next_order, random;
} late_tree;

typedef void (*late_node_visitor)(void *user, late_node *node);

void late_tree_insert(late_tree *tree, late_node *node);
void late_tree_remove(late_tree *tree, late_node *node);
/* Every node that overlaps the range, in order. The visitor must not change the tree. */
void late_tree_visit(late_tree *tree, uint64_t begin, uint64_t end, late_node_visitor visitor,
                     void *user);

/* late_shadow.c: what accessed which bytes of a block, and whether that was in order. */
typedef struct late_shadow {
  late_tree records;
  size_t swept_at;
} late_shadow;

/* Who does something, for clocks and messages. */
typedef struct late_actor {
  const char *what;          /* "copy_in_async" */
  const late_stream *stream; /* NULL: the host */
  uint64_t serial;           /* of the operation */
  const late_clock *clock;   /* what comes before it */
  late_epoch epoch;          /* its own */
  bool beginning;            /* the allocation itself, which a free takes care of by itself */
} late_actor;

typedef struct late_record late_record;

/* Reports what the access is not ordered after. */
void late_shadow_check(late_block *block, uint64_t offset, uint64_t size, bool write,
                       const late_actor *actor);
/* Remembers the access. It is unordered with everything while it is `open`. */
late_record *late_shadow_add(late_block *block, uint64_t offset, uint64_t size, bool write,
                             const late_actor *actor, bool open);
void late_record_close(late_record *record);
/* Whether all that is remembered comes before the free; reports what does not. */
bool late_shadow_check_free(late_block *block, const late_actor *actor);
void late_shadow_clear(late_shadow *shadow);

/* Bytes of a block, or of host memory that is not late's. */
typedef struct late_place {
  late_block *block;
  uint64_t offset;
  unsigned char *host; /* block NULL */
} late_place;

typedef struct late_access {
  late_place place;
  uint64_t size;
  bool write;
} late_access;

/* The calling host thread, at a new moment. */
late_actor late_host_actor(const char *what);
/* All accesses of one operation: checks them, then remembers and pins those of blocks. With
 * `out_open` the records are open and come back (NULL for what is no block). */
void late_touch(const late_actor *actor, const late_access *accesses, size_t count,
                late_record **out_open);

/* late_memory.c: blocks of memory. */
struct late_block {
  late_node by_address; /* first; begin is the address on the device */
  uint64_t handle;
  uint64_t serial; /* for messages */
  late_device *device;
  quay_memory_kind kind;
  uint64_t generation;
  uint64_t size;
  unsigned char *bytes; /* pinned: at the address */
  unsigned pins;        /* operations that have not run, or run just now */
  bool freed;           /* free was called */
  bool waiting;         /* freed, and something is left to wait for */
  bool stale;           /* its device was reset */
  bool quarantined;     /* freed too early: kept, poisoned, until the end */
  late_event **pending; /* events that the free waits for; each one reference */
  size_t pending_count;
  late_shadow shadow;
  struct late_block *previous, *next; /* all blocks */
};

enum {
  LATE_POISON_NEW = 0xc5,
  LATE_POISON_FREED = 0xdf
};

/* NULL: there is no memory. */
late_block *late_block_new(late_device *device, quay_memory_kind kind, uint64_t size,
                           uint64_t alignment);
/* The block of a raw buffer. NULL, with a violation, if it is none of that many bytes. */
late_block *late_block_of(const quay_raw_buffer *raw, uint64_t offset, uint64_t size,
                          const char *what);
/* The block around an address, which may be one of the host's. NULL without a violation. */
late_block *late_block_at(uint64_t address, uint64_t size);
/* Reports why there is no block there. */
void late_report_address(const char *what, uint64_t address, uint64_t size);
void late_block_free(late_block *block, quay_event *const *pending, size_t count);
void late_block_unpin(late_block *block);
/* Host memory, or the pinned block that it lies in. */
late_place late_place_of_host(const void *pointer, uint64_t size);
/* After an event: frees what waited for it. */
void late_blocks_collect(void);
void late_blocks_make_stale(late_device *device);
/* Ends those in quarantine. */
void late_blocks_end(void);
unsigned char *late_place_bytes(const late_place *place);

/* late_stream.c: streams, their operations, events. */
typedef enum late_op_kind {
  LATE_OP_COPY,
  LATE_OP_FILL,
  LATE_OP_KERNEL,
  LATE_OP_WAIT,
  LATE_OP_RECORD,
  LATE_OP_HOLD,
  LATE_OP_DELAY,
} late_op_kind;

static inline bool late_op_is_work(late_op_kind kind) {
  return kind != LATE_OP_WAIT && kind != LATE_OP_RECORD;
}

typedef struct late_gate {
  uint64_t handle;
  bool open;
} late_gate;

struct late_op {
  late_op *next;
  late_op_kind kind;
  const char *what;
  uint64_t serial;
  bool beginning; /* of memory that was allocated on a stream */
  uint64_t size;  /* of copies and fills */
  unsigned char pattern[16];
  size_t pattern_size;
  late_kernel kernel;
  void *user;
  late_place places[LATE_MAX_USES]; /* of a copy: destination, source; of a fill: destination */
  size_t place_count;
  late_event *event; /* one reference */
  late_gate *gate;   /* its own */
  uint32_t microseconds;
};

struct late_stream {
  late_stream *next; /* all streams */
  uint64_t handle;
  uint64_t serial; /* for messages */
  late_device *device;
  uint64_t generation;
  bool native;        /* the program's own */
  unsigned wrappers;  /* of a native one */
  bool closed;        /* destroyed; goes once it is empty */
  bool busy;          /* its first operation is being run */
  bool over;          /* its thread, which is detached, touches it no more */
  uint64_t target;    /* manual: somebody waits for operations up to this one */
  uint64_t waited_by; /* the last call of synchronize that has recorded an event here */
  uint64_t random;
  late_op *head, *tail;
  late_context context;
};

struct late_event {
  uint64_t handle; /* 0 once it was destroyed */
  late_device *device;
  uint64_t generation;
  unsigned references; /* the handle's, operations', pending frees' */
  bool done;
  bool failed;         /* the device was lost before it was reached */
  late_stream *stream; /* valid until it is done */
  uint64_t serial;     /* of the operation that completes it */
  late_clock clock;
};

late_stream *late_stream_new(late_device *device, bool native);
/* late_enter(), and the stream of a handle: else INVALID_ARGUMENT with a violation, or STALE. */
quay_status late_enter_stream(late_device *device, late_function function, uint64_t handle,
                              late_stream **out_stream);
/* The stream of a handle. NULL, with a violation, if it is none of the device's (NULL: any). */
late_stream *late_stream_get(const late_device *device, uint64_t handle, const char *what);
void late_stream_close(late_stream *stream);
/* Drops what is queued, as of a device that is lost. */
void late_stream_drop(late_stream *stream);
void late_event_complete(late_event *event, bool failed);
/* Ends closed streams that have nothing left; with threads those that are over. */
void late_streams_reap(void);
/* A zeroed operation with its serial and the host's knowledge joined to the stream's. */
late_op *late_op_new(late_stream *stream, late_op_kind kind, const char *what);
/* Makes the operation, at a new moment of its stream, somebody who accesses memory. `accesses` are
 * as many as it has places: they stay pinned until it is freed. */
void late_op_touch(late_stream *stream, late_op *op, const late_access *accesses, size_t count);
void late_op_submit(late_stream *stream, late_op *op);
void late_op_free(late_op *op);

late_event *late_event_record(late_stream *stream, const char *what); /* the caller's reference */
late_event *late_event_get(const late_device *device, uint64_t handle, const char *what);
void late_event_release(late_event *event);

/* late_run.c: who runs operations, and when. */
void *late_stream_thread(void *stream);
/* Waits until all are done; the calling thread then knows what came before. The lock is released
 * meanwhile; the caller holds a reference on each. */
void late_wait(late_event *const *events, size_t count);
void late_run_eagerly(void);

/* late_report.c: violations, counts, failures. */
void late_report(late_violation_kind kind, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Counts the call and takes the lock, which it keeps if, and only if, the result is QUAY_OK. */
quay_status late_enter(late_device *device, late_function function);
/* The same for functions that can't fail: always takes the lock. */
void late_enter_void(late_function function);
const char *late_function_name(late_function function);
/* Releases the lock and sets an error. */
quay_status late_leave_with(quay_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
quay_status late_leave(void);
void late_reports_clear(void);

/* late_device.c */
struct late_device {
  quay_device *device; /* the registration's reference */
  uint32_t index;
  char name[16];
  char pinned_spec[32];
  uint64_t generation;
  bool lost;
  uint64_t lose_after; /* operations; 0: not */
  uint64_t used_bytes, peak_bytes;
  uint64_t pinned_bytes;
  uint64_t next_address;
  late_stream *legacy; /* stream 0 */
  late_clock finished; /* of its streams that are gone */
};

late_device *late_device_new(uint32_t index);
late_device *late_device_find(const quay_device *device); /* NULL: of another backend */
/* Marks it lost and drops its work. Releases the lock for a moment. */
void late_device_lose(late_device *device, const char *why);
/* Whether work on the one reaches memory of the other. */
bool late_devices_reach(const late_device *a, const late_device *b);

/* late_allocator.c */
quay_status late_allocator_new(late_device *device, quay_memory_kind kind,
                               quay_allocator **out_allocator);

/* late_register.c: the one state there is. */
typedef struct late_state {
  pthread_mutex_t lock;
  pthread_mutex_t moving; /* held while bytes are moved; taken without the other */
  pthread_cond_t changed; /* an operation was queued or has run, a gate was opened */
  bool registered;
  late_options options;
  late_device *devices[LATE_MAX_DEVICES];
  late_block *blocks;
  late_tree addresses; /* live blocks */
  late_stream *streams;
  uint64_t next_serial;
  uint64_t random; /* manual: the order of streams */
  uint64_t order;  /* late_order() */
  uint64_t submitted, run;
  uint64_t block_count, stream_count, event_count, allocator_count;
  uint64_t waiting_frees;
} late_state;

extern late_state late;

void late_lock(void);
void late_unlock(void);

#endif
