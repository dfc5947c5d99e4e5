/* The lines of a text file, plain or compressed with gzip (by zlib, where the program is built with
 * it). What the lines mean is in trace_log.c. */
#include "trace_input.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>
#ifdef QUAY_TOOLS_ZLIB
#include <zlib.h>
#endif

#define BLOCK_SIZE (64u << 10)

/* What statfs() says of a pipe without a name: PIPEFS_MAGIC of <linux/magic.h>. */
#define UNNAMED_PIPE 0x50495045

struct trace_input {
#ifdef QUAY_TOOLS_ZLIB
  gzFile file;
#else
  int file;
  bool begun;
#endif
  bool ended;
  size_t begin, end;             /* what was read and not yet handed out */
  char bytes[BLOCK_SIZE];        /* longer than a line */
  char line[TRACE_LINE_MAX + 1]; /* what was handed out, with a NUL behind it */
};

#ifdef QUAY_TOOLS_ZLIB

static bool attach(trace_input *input, int file) {
  input->file = gzdopen(file, "rb");
  return input->file != NULL;
}

static void detach(trace_input *input) {
  (void)gzclose_r(input->file); /* only read from: what went wrong was reported by gzerror() */
}

/* Bytes read into the buffer's free end, 0 at the file's end, -1 with a message. */
static int fill(trace_input *input, char *out_error) {
  const int count =
      gzread(input->file, input->bytes + input->end, (unsigned)(BLOCK_SIZE - input->end));
  int code = Z_OK;
  const char *const text = gzerror(input->file, &code);
  /* At its end zlib says of a compressed file that was cut off that its buffer is empty. */
  if (code == Z_OK || code == Z_STREAM_END || (code == Z_BUF_ERROR && count > 0))
    return count;
  if (code == Z_ERRNO) {
    snprintf(out_error, TRACE_ERROR_SIZE, "cannot read it: %s", strerror(errno));
  } else if (code == Z_BUF_ERROR) {
    snprintf(out_error, TRACE_ERROR_SIZE, "the compressed file ends too early: it was cut off");
  } else {
    /* zlib puts what it knows of the file's name in front: "<fd:3>". */
    const char *const colon = strstr(text, ": ");
    snprintf(out_error, TRACE_ERROR_SIZE, "the compressed file is damaged: %s",
             colon != NULL ? colon + 2 : text);
  }
  return -1;
}

#else

static bool attach(trace_input *input, int file) {
  input->file = file;
  return true;
}

static void detach(trace_input *input) {
  close(input->file);
}

/* As above. */
static int fill(trace_input *input, char *out_error) {
  ssize_t count;
  do {
    count = read(input->file, input->bytes + input->end, BLOCK_SIZE - input->end);
  } while (count == -1 && errno == EINTR);
  if (count < 0) {
    snprintf(out_error, TRACE_ERROR_SIZE, "cannot read it: %s", strerror(errno));
    return -1;
  }
  const bool first = !input->begun;
  input->begun = true;
  if (first && count >= 2 && memcmp(input->bytes, "\x1f\x8b", 2) == 0) {
    snprintf(out_error, TRACE_ERROR_SIZE,
             "it is compressed with gzip, and this program was built without zlib; "
             "decompress it first: gzip -d");
    return -1;
  }
  return (int)count;
}

#endif

/* What else there is at a path: it can't be read, or would be waited for, perhaps for ever. NULL: a
 * file, or a pipe that a shell has made, such as standard input. */
static const char *other_kind(int file) {
  struct stat status;
  struct statfs where;
  if (fstat(file, &status) != 0)
    return NULL; /* reading will fail, too */
  if (S_ISDIR(status.st_mode))
    return "a directory";
  if (S_ISCHR(status.st_mode) || S_ISBLK(status.st_mode))
    return "a device";
  if (S_ISFIFO(status.st_mode) && fstatfs(file, &where) == 0 && where.f_type != UNNAMED_PIPE)
    return "a named pipe";
  return NULL;
}

/* -1 with a message. Without O_NONBLOCK the opening of a pipe that nobody writes to would not end.
 */
static int open_file(const char *path, char *out_error) {
  const int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (file < 0) {
    snprintf(out_error, TRACE_ERROR_SIZE, "cannot open '%s': %s", path, strerror(errno));
    return -1;
  }
  const char *const kind = other_kind(file);
  const int flags = fcntl(file, F_GETFL);
  if (kind == NULL && flags != -1 && fcntl(file, F_SETFL, flags & ~O_NONBLOCK) != -1)
    return file;
  if (kind != NULL) {
    snprintf(out_error, TRACE_ERROR_SIZE,
             "'%s' is %s; a trace is a file, or /dev/stdin where that is a pipe", path, kind);
  } else {
    snprintf(out_error, TRACE_ERROR_SIZE, "cannot open '%s': %s", path, strerror(errno));
  }
  close(file);
  return -1;
}

trace_input *trace_input_open(const char *path, char out_error[TRACE_ERROR_SIZE]) {
  trace_input *const input = malloc(sizeof *input);
  if (input == NULL) {
    snprintf(out_error, TRACE_ERROR_SIZE, "out of memory");
    return NULL;
  }
  const int file = open_file(path, out_error);
  if (file < 0) {
    free(input);
    return NULL;
  }
  *input = (trace_input){.begin = 0};
  if (!attach(input, file)) {
    snprintf(out_error, TRACE_ERROR_SIZE, "out of memory");
    close(file);
    free(input);
    return NULL;
  }
  return input;
}

void trace_input_close(trace_input *input) {
  if (input == NULL)
    return;
  detach(input);
  free(input);
}

/* Reads until a line's end is in the buffer, or the file's end, or it is full. NULL: no end of a
 * line in what there is. */
static const char *find_end(trace_input *input, bool *out_failed, char *out_error) {
  size_t seen = 0;
  *out_failed = false;
  for (;;) {
    const char *const begin = input->bytes + input->begin;
    const size_t size = input->end - input->begin;
    const char *const found = memchr(begin + seen, '\n', size - seen);
    if (found != NULL || input->ended || size > TRACE_LINE_MAX + 1)
      return found;
    seen = size;
    memmove(input->bytes, begin, size);
    input->begin = 0;
    input->end = size;
    const int count = fill(input, out_error);
    if (count < 0) {
      *out_failed = true;
      return NULL;
    }
    input->ended = count == 0;
    input->end += (size_t)count;
  }
}

trace_read trace_input_line(trace_input *input, const char **out_line, size_t *out_length,
                            char out_error[TRACE_ERROR_SIZE]) {
  bool failed;
  const char *const end = find_end(input, &failed, out_error);
  if (failed)
    return TRACE_READ_FAILED;
  const char *const begin = input->bytes + input->begin;
  size_t length = end != NULL ? (size_t)(end - begin) : input->end - input->begin;
  if (end == NULL && length == 0)
    return TRACE_READ_END;
  input->begin += length + (end != NULL ? 1 : 0);
  if (length > 0 && begin[length - 1] == '\r')
    length--;
  if (length > TRACE_LINE_MAX) {
    snprintf(out_error, TRACE_ERROR_SIZE, "the line has more than %d bytes", TRACE_LINE_MAX);
    return TRACE_READ_FAILED;
  }
  memcpy(input->line, begin, length);
  input->line[length] = '\0';
  *out_line = input->line;
  *out_length = length;
  return TRACE_READ_LINE;
}
