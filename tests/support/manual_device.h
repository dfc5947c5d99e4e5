/* A third party's backend for unit tests. Its memory is the host's in truth, though the library is
 * told so only if `host_accessible` is set; its streams run nothing, and an event of them completes
 * when the test completes it or somebody waits for it. Every call is counted.
 *
 * State is global: a test program's tests run in processes of their own. */
#ifndef QUAY_TESTS_MANUAL_DEVICE_H
#define QUAY_TESTS_MANUAL_DEVICE_H

#include <quay/backend.h>
#include <stdatomic.h>

/* Called at the start of a copy_in (QUAY_WRITE) or copy_out (QUAY_READ) of the bytes at `offset`;
 * what it returns other than QUAY_OK is the copy's failure. */
typedef quay_status (*manual_hook)(void *user, quay_use_mode mode, uint64_t offset, uint64_t size);

typedef struct manual_options {
  const char *backend;   /* identity; NULL: "manual" */
  quay_memory_kind kind; /* 0: QUAY_MEMORY_DEVICE */
  bool streams;
  bool host_accessible;
  bool plain; /* plain host memory; host_accessible with it */
  bool ordered_free;
  bool across;       /* offers a path to and from everything */
  bool no_addresses; /* its memory has none */
  bool read_only;    /* what it allocates can't be written */
  manual_hook hook;  /* may be NULL */
  void *user;        /* of the hook */
} manual_options;

typedef struct manual_calls {
  atomic_uint alloc, alloc_failed, free, copy_in, copy_out, copy_within, copy_across, fill;
  atomic_uint lend_read, lend_write;
  atomic_uint stream_create, stream_wrap, stream_destroy, stream_synchronize, stream_wait;
  atomic_uint event_record, event_query, event_synchronize, event_destroy;
  atomic_uint freed_pending; /* events that the last free was called with */
} manual_calls;

extern manual_calls manual;

/* The next so many allocations fail with OUT_OF_DEVICE_MEMORY and "manual failure N", N counting
 * from 1. */
extern atomic_uint manual_fail_allocs;
/* The next so many copies fail with IO. */
extern atomic_uint manual_fail_copies;
/* Its streams take nothing that would be recorded, as if they captured a graph. */
extern atomic_bool manual_capturing;
/* Milliseconds that an allocation takes. */
extern atomic_uint manual_alloc_delay;

/* An allocator on a device of its own, "<backend>:0". */
quay_allocator *manual_open(const manual_options *options);
/* Another one, on the device of `peer`. */
quay_allocator *manual_open_beside(const manual_options *options, quay_allocator *peer);

/* Completes all events that were recorded so far. */
void manual_complete_all(void);
/* Completes those of one stream (quay_stream_native()). */
void manual_complete_stream(uint64_t native);

#endif
