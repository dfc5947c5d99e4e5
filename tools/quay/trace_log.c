/* Reads logs of allocations in RMM's format. Bytes and lines come from trace_input.c, which
 * pointers are live is kept in trace_blocks.c. */
#include "trace_log.h"

#include <inttypes.h>
#include <quay/base.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trace_blocks.h"

#define HEADER "Thread,Time,Action,Pointer,Size,Stream"

/* The columns, in their order. */
enum {
  FIELD_THREAD,
  FIELD_TIME,
  FIELD_ACTION,
  FIELD_POINTER,
  FIELD_SIZE,
  FIELD_STREAM,
  FIELD_COUNT
};

static const char *const field_names[FIELD_COUNT] = {"thread",  "time", "action",
                                                     "pointer", "size", "stream"};

typedef struct trace_field {
  const char *text;
  size_t length;
} trace_field;

struct trace_log {
  trace_input *input;
  trace_blocks blocks;
  uint64_t line;
  const char *path;
  char error[TRACE_ERROR_SIZE];
};

/* Messages. */

static trace_status fail_line(trace_log *log, const char *format, ...) QUAY_PRINTF(2, 3);

static trace_status fail_line(trace_log *log, const char *format, ...) {
  const int used =
      snprintf(log->error, sizeof log->error, "'%.512s', line %" PRIu64 ": ", log->path, log->line);
  va_list arguments;
  va_start(arguments, format);
  /* clang-tidy 14 overlooks va_start here. NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized) */
  vsnprintf(log->error + used, sizeof log->error - (size_t)used, format, arguments);
  va_end(arguments);
  return TRACE_BAD;
}

/* A field as a precision and a text for "%.*s", cut to what a message can show. */
#define QUOTED(field) (int)((field).length < 64 ? (field).length : 64), (field).text

/* Fields. */

/* Cuts a line at its commas. Counts all fields there are, and keeps as many as there should be. */
static size_t split(const char *line, size_t length, trace_field fields[FIELD_COUNT]) {
  const char *const end = line + length;
  size_t count = 0;
  for (const char *begin = line;; ++count) {
    const char *comma = memchr(begin, ',', (size_t)(end - begin));
    if (comma == NULL)
      comma = end;
    if (count < FIELD_COUNT)
      fields[count] = (trace_field){.text = begin, .length = (size_t)(comma - begin)};
    if (comma == end)
      return count + 1;
    begin = comma + 1;
  }
}

static bool is_text(trace_field field, const char *text) {
  return field.length == strlen(text) && memcmp(field.text, text, field.length) == 0;
}

static unsigned digit_value(char digit) {
  if (digit >= '0' && digit <= '9')
    return (unsigned)(digit - '0');
  if (digit >= 'a' && digit <= 'f')
    return (unsigned)(digit - 'a') + 10;
  if (digit >= 'A' && digit <= 'F')
    return (unsigned)(digit - 'A') + 10;
  return UINT32_MAX;
}

static bool parse_digits(trace_field field, unsigned base, uint64_t *out) {
  uint64_t value = 0;
  for (size_t i = 0; i < field.length; ++i) {
    const unsigned digit = digit_value(field.text[i]);
    if (digit >= base || __builtin_mul_overflow(value, base, &value) ||
        __builtin_add_overflow(value, digit, &value))
      return false;
  }
  *out = value;
  return field.length > 0;
}

/* A number in `base` unless it begins with 0x, or the (nil) of older C libraries. */
static bool parse_handle(trace_field field, unsigned base, uint64_t *out) {
  if (is_text(field, "(nil)")) {
    *out = 0;
    return true;
  }
  if (field.length > 2 && field.text[0] == '0' && (field.text[1] == 'x' || field.text[1] == 'X')) {
    const trace_field digits = {.text = field.text + 2, .length = field.length - 2};
    return parse_digits(digits, 16, out);
  }
  return parse_digits(field, base, out);
}

/* Times are for people: replays go by the order of the lines. */
static bool is_time(trace_field field) {
  size_t i = 0;
  while (i < field.length && strchr("0123456789:.-+ TZ", field.text[i]) != NULL &&
         field.text[i] != '\0')
    ++i;
  return i == field.length && i > 0;
}

static bool parse_action(trace_field field, trace_action *out) {
  static const char *const names[] = {
      [TRACE_ALLOCATE] = "allocate", [TRACE_FREE] = "free", [TRACE_FAILURE] = "allocate failure"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i) {
    if (is_text(field, names[i])) {
      *out = (trace_action)i;
      return true;
    }
  }
  return false;
}

static trace_status fail_field(trace_log *log, int field, trace_field found, const char *form) {
  return fail_line(log, "the %s is '%.*s'; it must be %s", field_names[field], QUOTED(found), form);
}

static trace_status parse_fields(trace_log *log, const trace_field fields[FIELD_COUNT],
                                 trace_event *out) {
  if (!parse_digits(fields[FIELD_THREAD], 10, &out->thread))
    return fail_field(log, FIELD_THREAD, fields[FIELD_THREAD], "a decimal number below 2^64");
  if (!is_time(fields[FIELD_TIME]))
    return fail_field(log, FIELD_TIME, fields[FIELD_TIME], "a time, such as 12:00:07:000134");
  if (!parse_action(fields[FIELD_ACTION], &out->action)) {
    return fail_field(log, FIELD_ACTION, fields[FIELD_ACTION],
                      "allocate, free or allocate failure");
  }
  if (!parse_handle(fields[FIELD_POINTER], 16, &out->pointer)) {
    return fail_field(log, FIELD_POINTER, fields[FIELD_POINTER],
                      "a hexadecimal number below 2^64, such as 0x7f00");
  }
  if (!parse_digits(fields[FIELD_SIZE], 10, &out->size)) {
    return fail_field(log, FIELD_SIZE, fields[FIELD_SIZE], "a decimal number of bytes below 2^64");
  }
  if (!parse_handle(fields[FIELD_STREAM], 10, &out->stream)) {
    return fail_field(log, FIELD_STREAM, fields[FIELD_STREAM],
                      "a number below 2^64, hexadecimal if it begins with 0x");
  }
  return TRACE_EVENT;
}

/* Events. */

static trace_status add_block(trace_log *log, trace_event *event) {
  const bool nothing = event->pointer == 0 && event->size == 0;
  const trace_block *const live = nothing ? NULL : trace_blocks_find(&log->blocks, event->pointer);
  if (live != NULL) {
    return fail_line(log,
                     "allocates 0x%" PRIx64 ", which is live: line %" PRIu64
                     " allocated it and none has freed it since",
                     event->pointer, live->line);
  }
  if (!trace_blocks_add(&log->blocks, event->pointer, event->size, log->line, &event->slot))
    return fail_line(log, "out of memory");
  return TRACE_EVENT;
}

static trace_status remove_block(trace_log *log, trace_event *event) {
  const trace_block *const live = trace_blocks_find(&log->blocks, event->pointer);
  if (live == NULL) {
    return fail_line(log,
                     "frees 0x%" PRIx64 ", which no line before it has allocated, or which "
                     "was freed since",
                     event->pointer);
  }
  event->slot = live->slot;
  event->size = live->size;
  trace_blocks_remove(&log->blocks, live);
  return TRACE_EVENT;
}

/* The next line that is not blank. */
static trace_status next_line(trace_log *log, const char **out_line, size_t *out_length) {
  char error[TRACE_ERROR_SIZE];
  for (;;) {
    log->line++;
    switch (trace_input_line(log->input, out_line, out_length, error)) {
    case TRACE_READ_LINE:
      break;
    case TRACE_READ_END:
      return TRACE_END;
    case TRACE_READ_FAILED:
      return fail_line(log, "%s", error);
    }
    if (*out_length > 0)
      return TRACE_EVENT;
  }
}

trace_status trace_log_next(trace_log *log, trace_event *out_event) {
  const char *line = NULL;
  size_t length = 0;
  if (log->error[0] != '\0')
    return TRACE_BAD;
  const trace_status found = next_line(log, &line, &length);
  if (found != TRACE_EVENT)
    return found;
  trace_field fields[FIELD_COUNT];
  const size_t count = split(line, length, fields);
  if (count != FIELD_COUNT) {
    return fail_line(log,
                     "has %zu %s where " HEADER " are 6; it was cut off, or is none of this "
                     "format",
                     count, count == 1 ? "field" : "fields");
  }
  *out_event = (trace_event){.line = log->line};
  const trace_status parsed = parse_fields(log, fields, out_event);
  if (parsed != TRACE_EVENT)
    return parsed;
  switch (out_event->action) {
  case TRACE_ALLOCATE:
    return add_block(log, out_event);
  case TRACE_FREE:
    return remove_block(log, out_event);
  case TRACE_FAILURE:
    break;
  }
  return TRACE_EVENT;
}

static trace_status read_header(trace_log *log) {
  const char *line = NULL;
  size_t length = 0;
  const trace_status found = next_line(log, &line, &length);
  if (found == TRACE_BAD)
    return found;
  if (found == TRACE_END)
    return fail_line(log, "the file is empty; a log begins with " HEADER);
  if (is_text((trace_field){.text = line, .length = length}, HEADER))
    return TRACE_EVENT;
  return fail_line(log, "begins with '%.*s'; a log begins with " HEADER,
                   QUOTED(((trace_field){.text = line, .length = length})));
}

trace_log *trace_log_open(const char *path, char out_error[TRACE_ERROR_SIZE]) {
  trace_log *const log = calloc(1, sizeof *log + strlen(path) + 1);
  if (log == NULL) {
    snprintf(out_error, TRACE_ERROR_SIZE, "out of memory");
    return NULL;
  }
  char *const copy = (char *)(log + 1);
  memcpy(copy, path, strlen(path) + 1);
  log->path = copy;
  log->input = trace_input_open(path, out_error);
  if (log->input != NULL && read_header(log) == TRACE_EVENT)
    return log;
  if (log->input != NULL)
    snprintf(out_error, TRACE_ERROR_SIZE, "%s", log->error);
  trace_log_close(log);
  return NULL;
}

const char *trace_log_error(const trace_log *log) {
  return log->error;
}

uint32_t trace_log_slots(const trace_log *log) {
  return log->blocks.slots;
}

void trace_log_close(trace_log *log) {
  if (log == NULL)
    return;
  trace_input_close(log->input);
  trace_blocks_free(&log->blocks);
  free(log);
}
