/* Reads logs of allocations in the format of the RAPIDS Memory Manager (RMM), line by line:
 *
 *   Thread,Time,Action,Pointer,Size,Stream
 *   4711,12:00:07:000134,allocate,0x7f0000000000,1024,0x0
 *   4711,12:00:07:000180,free,0x7f0000000000,1024,0x0
 *   4711,12:00:07:000181,allocate failure,0x0,99999999999999,0x0
 *
 * Thread and size are decimal numbers; the pointer is hexadecimal, with or without 0x, or (nil);
 * the stream is decimal, hexadecimal with 0x, or (nil). Blank lines are passed over. What makes no
 * sense is an error with the line's number: another header, another number of fields, an action
 * that is none of the three, a number that is none or takes more than 64 bits, a free of a pointer
 * that is not live, an allocation at a pointer that is live (but for the null pointer and size 0,
 * which RMM logs as that). The size of a free is read and not compared. */
#ifndef QUAY_TOOLS_TRACE_LOG_H
#define QUAY_TOOLS_TRACE_LOG_H

#include <stdint.h>

#include "trace_input.h"

typedef enum trace_action {
  TRACE_ALLOCATE,
  TRACE_FREE,
  TRACE_FAILURE, /* an allocation that failed when the log was written */
} trace_action;

typedef struct trace_event {
  trace_action action;
  uint32_t slot; /* of the block among the live ones: a free has that of its allocation, which then
                    goes to a later one; small numbers. Not of a failure */
  uint64_t size; /* bytes: of a free those of its allocation */
  uint64_t thread, pointer, stream;
  uint64_t line; /* the first one is 1 */
} trace_event;

typedef struct trace_log trace_log;

typedef enum trace_status {
  TRACE_EVENT,
  TRACE_END,
  TRACE_BAD, /* trace_log_error() says what */
} trace_status;

/* Opens the log, plain or compressed with gzip, and reads its header. NULL with a message, which
 * names the path, if that can't be. */
trace_log *trace_log_open(const char *path, char out_error[TRACE_ERROR_SIZE]);

/* The next event. After TRACE_BAD nothing more can be read. */
trace_status trace_log_next(trace_log *log, trace_event *out_event);

/* After TRACE_BAD: "'PATH', line 7: ...". Valid as long as the log. */
const char *trace_log_error(const trace_log *log);

/* Slots that were handed out so far: the most blocks that were live at once. */
uint32_t trace_log_slots(const trace_log *log);

/* NULL is a no-op. */
void trace_log_close(trace_log *log);

#endif
