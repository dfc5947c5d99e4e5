/* Status texts and the last error of each thread. Errors live in thread-local storage of fixed
 * size: reporting that memory ran out needs no memory. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/os.h"

/* The thread's error, and where errors go while it is shielded. */
static _Thread_local quay__error_state states[2];
static _Thread_local quay_error last_public;

static quay__error_state *current(void) {
  return &states[quay__near.shields > 0];
}

const char *quay_status_text(quay_status status) {
  switch (status) {
  case QUAY_OK:
    return "ok";
#define CASE(name, value, text) \
  case QUAY_STATUS_##name:      \
    return text;
    QUAY_STATUS_TABLE(CASE)
#undef CASE
  }
  return "unknown status";
}

const char *quay_status_name(quay_status status) {
  switch (status) {
  case QUAY_OK:
    return "QUAY_OK";
#define CASE(name, value, text) \
  case QUAY_STATUS_##name:      \
    return "QUAY_STATUS_" #name;
    QUAY_STATUS_TABLE(CASE)
#undef CASE
  }
  return "unknown status";
}

const quay_error *quay_last_error(void) {
  const quay__error_state *const last = current();
  last_public = (quay_error){
      .status = last->status,
      .native_code = last->native_code,
      .native_name = last->native_name,
      .backend = last->backend,
      .message = last->message,
  };
  return &last_public;
}

void quay_error_clear(void) {
  quay__error_state *const last = current();
  last->status = QUAY_OK;
  last->native_code = 0;
  last->native_name[0] = '\0';
  last->backend[0] = '\0';
  last->message[0] = '\0';
}

/* Length of the well-formed UTF-8 character at `text`, which ends before `end`; 0 if there is none.
 * Control characters count as none: a message is one line. (RFC 3629, section 4.) */
static size_t character_length(const unsigned char *text, const unsigned char *end) {
  const unsigned char first = text[0];
  if (first < 0x20 || first == 0x7f)
    return 0;
  if (first < 0x80)
    return 1;
  size_t length;
  unsigned char low = 0x80;
  unsigned char high = 0xbf;
  if (first >= 0xc2 && first <= 0xdf) {
    length = 2;
  } else if (first >= 0xe0 && first <= 0xef) {
    length = 3;
    if (first == 0xe0)
      low = 0xa0;
    if (first == 0xed)
      high = 0x9f;
  } else if (first >= 0xf0 && first <= 0xf4) {
    length = 4;
    if (first == 0xf0)
      low = 0x90;
    if (first == 0xf4)
      high = 0x8f;
  } else {
    return 0;
  }
  if ((size_t)(end - text) < length || text[1] < low || text[1] > high)
    return 0;
  for (size_t i = 2; i < length; i++) {
    if (text[i] < 0x80 || text[i] > 0xbf)
      return 0;
  }
  return length;
}

/* Replaces what is no UTF-8 and every control character by '?'. */
static void clean(char *text) {
  unsigned char *at = (unsigned char *)text;
  unsigned char *const end = at + strlen(text);
  while (at < end) {
    const size_t length = character_length(at, end);
    if (length == 0)
      *at = '?';
    at += length == 0 ? 1 : length;
  }
}

static void copy_text(char *out, size_t size, const char *text) {
  if (text == NULL)
    text = "";
  if (text == out)
    return;
  const size_t length = strnlen(text, size - 1);
  memmove(out, text, length);
  out[length] = '\0';
}

static bool continues(char byte) {
  return ((unsigned char)byte & 0xc0) == 0x80;
}

/* The last place up to `at` where no character of UTF-8 is cut in two, or the first one from there
 * on; `at` itself where there is no such text around it. */
static size_t boundary_before(const char *text, size_t at) {
  size_t found = at;
  while (found != 0 && at - found < 3 && continues(text[found]))
    found--;
  return continues(text[found]) ? at : found;
}

static size_t boundary_after(const char *text, size_t at) {
  size_t found = at;
  while (found - at < 3 && continues(text[found]))
    found++;
  return continues(text[found]) ? at : found;
}

#define DOTS      "..."
#define DOTS_SIZE (sizeof DOTS - 1)

/* Where texts are cut that are as long, so that one that was cut before, and has become longer, is
 * cut there again. */
#define CUT_AT ((QUAY_ERROR_MESSAGE_SIZE - sizeof DOTS) / 2)

/* What is too long loses its middle: paths stand at the beginning, and what is wrong at the end. */
static void cut_middle(char *text, size_t size, const char *whole, size_t length) {
  const size_t kept = size - 1 - DOTS_SIZE;
  const size_t head = boundary_before(whole, kept * 2 > CUT_AT * 3 ? CUT_AT : kept / 2);
  const size_t tail = boundary_after(whole, length - (kept - head));
  memcpy(text, whole, head);
  memcpy(text + head, DOTS, DOTS_SIZE);
  memcpy(text + head + DOTS_SIZE, whole + tail, length - tail + 1);
}

void quay__message_format(char *text, size_t size, const char *format, va_list arguments) {
  const int saved_errno = errno;
  va_list again;
  va_copy(again, arguments);
  const int length = vsnprintf(text, size, format, arguments);
  if (length < 0) {
    copy_text(text, size, format);
  } else if ((size_t)length >= size) {
    char *whole = quay__os_malloc((size_t)length + 1);
    if (whole != NULL && vsnprintf(whole, (size_t)length + 1, format, again) == length) {
      cut_middle(text, size, whole, (size_t)length);
    } else {
      memcpy(text + boundary_before(text, size - 1 - DOTS_SIZE), DOTS, sizeof DOTS);
    }
    quay__os_free(whole);
  }
  va_end(again);
  errno = saved_errno;
}

static void set_message(const char *format, va_list arguments)
    __attribute__((format(printf, 1, 0)));

static void set_message(const char *format, va_list arguments) {
  /* Formatted aside: the arguments may be the old message. */
  char text[QUAY_ERROR_MESSAGE_SIZE];
  quay__message_format(text, sizeof text, format, arguments);
  clean(text);
  memcpy(current()->message, text, strlen(text) + 1);
}

quay_status quay_error_set(quay_status status, const char *backend, int64_t native_code,
                           const char *native_name, const char *format, ...) {
  const int saved_errno = errno;
  quay__error_state *const last = current();
  va_list arguments;
  va_start(arguments, format);
  set_message(format, arguments);
  va_end(arguments);
  last->status = status;
  last->native_code = native_code;
  copy_text(last->native_name, sizeof last->native_name, native_name);
  copy_text(last->backend, sizeof last->backend, backend);
  errno = saved_errno;
  return status;
}

const char *quay__errno_name(int error_number) {
  const char *name = strerrorname_np(error_number);
  return name != NULL ? name : "errno";
}

quay_status quay__status_of_errno(int error_number) {
  return error_number == ENOMEM ? QUAY_STATUS_OUT_OF_HOST_MEMORY : QUAY_STATUS_IO;
}

/* What of the process's own limits may be the reason; "" if none is set. */
static void limit_text(int error_number, char *text, size_t size) {
  const bool addresses = error_number == ENOMEM;
  const uint64_t limit = addresses               ? quay__os_limit(QUAY__OS_ADDRESSES)
                         : error_number == EFBIG ? quay__os_limit(QUAY__OS_FILE_SIZE)
                                                 : UINT64_MAX;
  *text = '\0';
  if (limit != UINT64_MAX) {
    snprintf(text, size, "; the process may %s %llu bytes (%s)",
             addresses ? "have addresses for" : "write files of", (unsigned long long)limit,
             addresses ? "RLIMIT_AS, ulimit -v" : "RLIMIT_FSIZE, ulimit -f");
  }
}

quay_status quay__fail_errno(quay_status status, const char *backend, int error_number,
                             const char *format, ...) {
  char text[QUAY_ERROR_MESSAGE_SIZE], why[QUAY_ERROR_MESSAGE_SIZE / 2], reason[128], limit[128];
  const char *name = quay__errno_name(error_number);
  limit_text(error_number, limit, sizeof limit);
  snprintf(why, sizeof why, "%s (%s)%s", strerror_r(error_number, reason, sizeof reason), name,
           limit);
  va_list arguments;
  va_start(arguments, format);
  quay__message_format(text, sizeof text - strlen(why) - strlen(": "), format, arguments);
  va_end(arguments);
  return quay_error_set(status, backend, error_number, name, "%s: %s", text, why);
}

void quay__error_out_of_memory(uint64_t size, const char *what) {
  quay_error_set(QUAY_STATUS_OUT_OF_HOST_MEMORY, "", ENOMEM, "ENOMEM",
                 "no host memory for %llu bytes of %s", (unsigned long long)size, what);
}

quay_status quay__error_append(const char *format, ...) {
  const quay__error_state *const last = current();
  char text[QUAY_ERROR_MESSAGE_SIZE];
  va_list arguments;
  va_start(arguments, format);
  quay__message_format(text, sizeof text, format, arguments);
  va_end(arguments);
  return quay_error_set(last->status, last->backend, last->native_code, last->native_name, "%s%s",
                        last->message, text);
}

void quay__error_save(quay__error_state *out_state) {
  *out_state = *current();
}

void quay__error_restore(const quay__error_state *state) {
  *current() = *state;
}
