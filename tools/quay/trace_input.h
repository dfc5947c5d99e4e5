/* The lines of a text file, plain or compressed with gzip. */
#ifndef QUAY_TOOLS_TRACE_INPUT_H
#define QUAY_TOOLS_TRACE_INPUT_H

#include <stdbool.h>
#include <stddef.h>

/* Bytes that a message takes, its NUL included. */
#define TRACE_ERROR_SIZE 1024

/* Bytes that a line may have, its end not counted. */
#define TRACE_LINE_MAX 4096

typedef struct trace_input trace_input;

typedef enum trace_read {
  TRACE_READ_LINE,
  TRACE_READ_END,
  TRACE_READ_FAILED, /* the file, its compression, or a line that is too long */
} trace_read;

/* Opens the file; compression is recognised by its content. NULL with a message that names the path
 * if that fails. */
trace_input *trace_input_open(const char *path, char out_error[TRACE_ERROR_SIZE]);

void trace_input_close(trace_input *input);

/* The next line without its end (LF or CR LF), in memory that is valid until the next call. A last
 * line without an end counts. `out_error` is set for TRACE_READ_FAILED alone: what happened,
 * without the path. */
trace_read trace_input_line(trace_input *input, const char **out_line, size_t *out_length,
                            char out_error[TRACE_ERROR_SIZE]);

#endif
