/* Replays a log of allocations on an allocator. Prints nothing. */
#ifndef QUAY_TOOLS_TRACE_REPLAY_H
#define QUAY_TOOLS_TRACE_REPLAY_H

#include <quay/quay.h>

#include "trace_log.h"

/* One event, small: what the log says more of it takes no part in a replay. */
typedef struct replay_event {
  uint64_t size; /* bytes, of the block */
  uint32_t slot; /* of the block among the live ones */
  uint32_t stream : 31;
  uint32_t is_free : 1;
} replay_event;

/* A whole log in memory. */
typedef struct replay_trace {
  replay_event *events;
  size_t count, capacity;
  uint32_t slots;
  uint64_t *streams; /* as the log names them, in the order of their first events */
  size_t stream_count, stream_capacity;
} replay_trace;

/* Reads a log. False with a message, and nothing to free, if that can't be. */
bool replay_trace_read(const char *path, replay_trace *out_trace, char out_error[TRACE_ERROR_SIZE]);
void replay_trace_free(replay_trace *trace);

typedef struct replay_result {
  uint64_t peak_live_bytes;     /* as asked for, of what was allocated */
  uint64_t peak_reserved_bytes; /* of the outermost layer's statistics */
  double ns_per_event, ns_per_event_warm;
  uint64_t driver_calls;
  double driver_seconds;
  uint64_t failed;
  char first_failure[512]; /* what the first allocation that failed said; "": none did */
} replay_result;

typedef enum replay_status {
  REPLAY_DONE,
  REPLAY_FAILED,    /* quay_last_error() says why */
  REPLAY_NO_MEMORY, /* of the program's own */
} replay_status;

/* Opens `spec` and replays the trace on it twice, all in the calling thread: first on the new
 * allocator, then, all blocks freed, on the same one. Peaks and driver figures are those of the
 * first pass. `touch` writes a byte to every page of a block, or fills a block that the host can't
 * reach, within the time of its event. */
replay_status replay_run(const replay_trace *trace, const char *spec, bool touch,
                         replay_result *out_result);

#endif
