/* The file of a trace layer. The buffer holds whole lines, but for the first, of which the file may
 * have a part after a write that was cut short. Where the file takes no more and the buffer is
 * full, the file is cut back to whole lines and ends there: a log with a gap could not be replayed.
 */
#include "layers/trace_writer.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "core/error.h"
#include "core/lifecycle.h"
#include "core/os.h"

#define HEADER "Thread,Time,Action,Pointer,Size,Stream\n"

enum {
  BUFFER_BYTES = 64 << 10,
  LINE_BYTES = 160, /* more than a line can have */
};

/* Text. */

static char *put_text(char *out, const char *text) {
  return stpcpy(out, text); /* with a NUL, for which there is room */
}

/* At least `width` digits. */
static char *put_decimal(char *out, uint64_t value, unsigned width) {
  char digits[20];
  unsigned count = 0;
  do {
    digits[count++] = (char)('0' + value % 10);
    value /= 10;
  } while (value != 0 || count < width);
  while (count > 0)
    *out++ = digits[--count];
  return out;
}

static char *put_hexadecimal(char *out, uint64_t value) {
  unsigned shift = 60;
  while (shift > 0 && value >> shift == 0)
    shift -= 4;
  out = put_text(out, "0x");
  for (;; shift -= 4) {
    *out++ = "0123456789abcdef"[value >> shift & 0xf];
    if (shift == 0)
      return out;
  }
}

/* Hours, minutes, seconds and microseconds, as RMM writes the time of day. */
static char *put_time(char *out, uint64_t nanoseconds) {
  const uint64_t microseconds = nanoseconds / 1000, seconds = microseconds / 1000000;
  out = put_decimal(out, seconds / 3600, 2);
  *out++ = ':';
  out = put_decimal(out, seconds / 60 % 60, 2);
  *out++ = ':';
  out = put_decimal(out, seconds % 60, 2);
  *out++ = ':';
  return put_decimal(out, microseconds % 1000000, 6);
}

/* A forked child's thread has another number than the parent's that it is a copy of. */
static uint64_t thread_id(void) {
  static _Thread_local uint64_t id;
  static _Thread_local uint32_t generation;
  if (id == 0 || generation != quay__fork_generation) {
    id = quay__os_thread_id();
    generation = quay__fork_generation;
  }
  return id;
}

static char *put_line(char *out, const quay__trace_line *line, uint64_t nanoseconds) {
  out = put_decimal(out, thread_id(), 1);
  *out++ = ',';
  out = put_time(out, nanoseconds);
  *out++ = ',';
  out = put_text(out, line->action);
  *out++ = ',';
  out = put_hexadecimal(out, line->pointer);
  *out++ = ',';
  out = put_decimal(out, line->size, 1);
  *out++ = ',';
  out = put_hexadecimal(out, line->stream);
  *out++ = '\n';
  return out;
}

/* Writing. */

/* Takes what was written out of the buffer. */
static void consume(quay__trace_writer *writer, size_t count) {
  const char *const end = writer->buffer + count;
  const char *const newline = memrchr(writer->buffer, '\n', count);
  writer->partial = newline != NULL ? (uint64_t)(end - newline - 1) : writer->partial + count;
  for (const char *at = writer->buffer; at != end; at++)
    writer->waiting -= *at == '\n';
  writer->written += count;
  writer->used -= count;
  memmove(writer->buffer, end, writer->used);
}

bool quay__trace_writer_flush(quay__trace_writer *writer) {
  while (writer->used > 0) {
    const ssize_t count =
        quay__os_pwrite(writer->file, writer->buffer, writer->used, writer->written);
    if (count <= 0) {
      writer->error = count < 0 ? errno : ENOSPC;
      if (writer->state == QUAY__TRACE_WHOLE)
        writer->state = QUAY__TRACE_STUCK;
      return false;
    }
    consume(writer, (size_t)count);
  }
  if (writer->state == QUAY__TRACE_STUCK)
    writer->state = QUAY__TRACE_WHOLE;
  return writer->state == QUAY__TRACE_WHOLE;
}

/* The file takes no more and there is no room in memory. */
static void give_up(quay__trace_writer *writer) {
  writer->state = QUAY__TRACE_BROKEN;
  writer->lost += writer->waiting;
  writer->waiting = 0;
  writer->used = 0;
  writer->written -= writer->partial;
  /* If this fails, too, the file's last line is one that a reader refuses. */
  (void)quay__os_ftruncate(writer->file, writer->written);
  writer->partial = 0;
}

void quay__trace_writer_add(quay__trace_writer *writer, const quay__trace_line *line) {
  if (writer->state != QUAY__TRACE_BROKEN && writer->capacity - writer->used < LINE_BYTES &&
      !quay__trace_writer_flush(writer) && writer->capacity - writer->used < LINE_BYTES) {
    give_up(writer);
  }
  if (writer->state == QUAY__TRACE_BROKEN) {
    writer->lost++;
    return;
  }
  char *const begin = writer->buffer + writer->used;
  const char *const end = put_line(begin, line, quay__os_nanoseconds() - writer->begun);
  writer->used += (size_t)(end - begin);
  writer->waiting++;
  if (writer->waiting % writer->flush_every == 0)
    (void)quay__trace_writer_flush(writer);
}

/* Opening and closing. */

static quay_status fail(const quay__trace_writer *writer, const char *action, int error_number) {
  return quay__fail_errno(quay__status_of_errno(error_number), "trace", error_number,
                          "the trace layer can't %s \"%s\"", action, writer->path);
}

static quay_status open_file(quay__trace_writer *writer) {
  writer->file = quay__os_open(writer->path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
  if (writer->file < 0)
    return fail(writer, "open", errno);
  writer->used = (size_t)(put_text(writer->buffer, HEADER) - writer->buffer);
  writer->waiting = 1;
  return quay__trace_writer_flush(writer) ? QUAY_OK : fail(writer, "write", writer->error);
}

quay_status quay__trace_writer_open(quay__trace_writer *writer, const char *path,
                                    uint64_t flush_every) {
  *writer = (quay__trace_writer){
      .path = quay__os_strdup(path),
      .file = -1,
      .flush_every = flush_every,
      .begun = quay__os_nanoseconds(),
      .capacity = BUFFER_BYTES,
      .buffer = quay__os_malloc(BUFFER_BYTES),
  };
  quay_status status;
  if (writer->path == NULL || writer->buffer == NULL) {
    status = quay__fail_out_of_memory(BUFFER_BYTES, "the buffer of the trace layer");
  } else {
    status = open_file(writer);
  }
  if (status != QUAY_OK)
    (void)quay__trace_writer_close(writer);
  return status;
}

int quay__trace_writer_close(quay__trace_writer *writer) {
  const bool failed = writer->file >= 0 && quay__os_close(writer->file) != 0;
  const int error_number = failed ? errno : 0;
  writer->file = -1;
  quay__os_free(writer->buffer);
  quay__os_free(writer->path);
  return error_number;
}
