/* The file of a trace layer: lines in the format of RMM's logs, buffered. Knows nothing of
 * allocators; the caller locks. */
#ifndef QUAY_LAYERS_TRACE_WRITER_H
#define QUAY_LAYERS_TRACE_WRITER_H

#include <quay/status.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct quay__trace_line {
  const char *action;
  uint64_t pointer, size, stream;
} quay__trace_line;

/* What became of writing. */
typedef enum quay__trace_state {
  QUAY__TRACE_WHOLE,  /* all that was flushed is in the file */
  QUAY__TRACE_STUCK,  /* the last write failed: what it was to write waits in the buffer */
  QUAY__TRACE_BROKEN, /* there was no room for more: the file ends before what was lost */
} quay__trace_state;

typedef struct quay__trace_writer {
  char *path;
  int file;
  int error; /* errno of the last write that failed */
  quay__trace_state state;
  uint64_t flush_every; /* lines */
  uint64_t begun;       /* nanoseconds of the clock when it was opened */
  uint64_t written;     /* bytes of the file */
  uint64_t partial;     /* of them, those that begin a line whose rest is in the buffer */
  uint64_t waiting;     /* lines in the buffer */
  uint64_t lost;        /* lines that will never be written */
  size_t used, capacity;
  char *buffer;
} quay__trace_writer;

/* Makes the file, or empties the one that is there, and writes the header. On error there is
 * nothing to close. */
quay_status quay__trace_writer_open(quay__trace_writer *writer, const char *path,
                                    uint64_t flush_every);

/* Adds a line, with the calling thread's id and the time since the file was opened, and flushes if
 * it is time to. */
void quay__trace_writer_add(quay__trace_writer *writer, const quay__trace_line *line);

/* Writes what is in the buffer. False if some of it could not be: see `state` and `error`. */
bool quay__trace_writer_flush(quay__trace_writer *writer);

/* Closes the file without writing anything more: 0 or an errno. Frees what the writer has. */
int quay__trace_writer_close(quay__trace_writer *writer);

#endif
