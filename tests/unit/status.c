/* Status texts and the last error of each thread. */
#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <quay/backend.h>
#include <quay/status.h>
#include <string.h>

#include "core/error.h"
#include "support/failing_allocations.h"

Test(status, every_code_has_its_number_text_and_name) {
  static const struct {
    quay_status status;
    int number;
    const char *text;
    const char *name;
  } codes[] = {
#define ROW(name, value, text) {QUAY_STATUS_##name, value, text, "QUAY_STATUS_" #name},
      QUAY_STATUS_TABLE(ROW)
#undef ROW
  };
  for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++) {
    cr_expect_eq((int)codes[i].status, codes[i].number);
    cr_expect_eq((int)codes[i].status, (int)i + 1, "the codes are contiguous");
    cr_expect_str_eq(quay_status_text(codes[i].status), codes[i].text);
    cr_expect_str_eq(quay_status_name(codes[i].status), codes[i].name);
  }
  cr_expect_str_eq(quay_status_text(QUAY_OK), "ok");
  cr_expect_str_eq(quay_status_name(QUAY_OK), "QUAY_OK");
  cr_expect_str_eq(quay_status_text((quay_status)999), "unknown status");
}

Test(status, before_the_first_error_there_is_an_empty_one) {
  const quay_error *error = quay_last_error();
  cr_assert_not_null(error);
  cr_assert_eq(error->status, QUAY_OK);
  cr_assert_str_empty(error->message);
  cr_assert_str_empty(error->backend);
  cr_assert_str_empty(error->native_name);
  cr_assert_eq(error->native_code, 0);
}

Test(status, error_set_keeps_all_it_is_given_and_returns_the_status) {
  const quay_status status = quay_error_set(QUAY_STATUS_IO, "mmap", -5, "EIO", "read %d bytes", 42);
  cr_assert_eq(status, QUAY_STATUS_IO);
  const quay_error *error = quay_last_error();
  cr_assert_eq(error->status, QUAY_STATUS_IO);
  cr_assert_str_eq(error->backend, "mmap");
  cr_assert_eq(error->native_code, -5);
  cr_assert_str_eq(error->native_name, "EIO");
  cr_assert_str_eq(error->message, "read 42 bytes");
}

Test(status, error_set_keeps_errno) {
  errno = ENOSPC;
  quay_error_set(QUAY_STATUS_IO, "", 0, NULL, "something");
  cr_assert_eq(errno, ENOSPC);
}

Test(status, null_texts_are_empty_ones) {
  quay_error_set(QUAY_STATUS_BUSY, NULL, 0, NULL, "busy");
  cr_assert_str_empty(quay_last_error()->backend);
  cr_assert_str_empty(quay_last_error()->native_name);
}

Test(status, backend_and_native_name_are_cut_at_their_sizes) {
  char longest[200];
  memset(longest, 'n', sizeof longest - 1);
  longest[sizeof longest - 1] = '\0';
  quay_error_set(QUAY_STATUS_BUSY, longest, 0, longest, "x");
  cr_assert_eq(strlen(quay_last_error()->backend), 31);
  cr_assert_eq(strlen(quay_last_error()->native_name), 63);
}

Test(status, a_message_of_the_largest_size_is_kept_whole) {
  char text[QUAY_ERROR_MESSAGE_SIZE];
  memset(text, 'm', sizeof text - 1);
  text[sizeof text - 1] = '\0';
  quay_error_set(QUAY_STATUS_BUSY, "", 0, NULL, "%s", text);
  cr_assert_str_eq(quay_last_error()->message, text);
}

Test(status, a_longer_message_loses_its_middle) {
  for (size_t over = 0; over < 3000; over = over * 2 + 1) {
    char text[QUAY_ERROR_MESSAGE_SIZE + 3000];
    const size_t length = QUAY_ERROR_MESSAGE_SIZE + over;
    for (size_t i = 0; i < length; i++)
      text[i] = (char)('a' + i % 26);
    text[length] = '\0';
    quay_error_set(QUAY_STATUS_BUSY, "", 0, NULL, "%s", text);
    const char *message = quay_last_error()->message;
    const size_t kept = QUAY_ERROR_MESSAGE_SIZE - 1 - 3, head = kept / 2;
    cr_assert_eq(strlen(message), QUAY_ERROR_MESSAGE_SIZE - 1);
    cr_assert_eq(memcmp(message, text, head), 0);
    cr_assert_eq(memcmp(message + head, "...", 3), 0);
    cr_assert_str_eq(message + head + 3, text + length - (kept - head));
  }
}

/* Whatever the place of the cut in a character, what is left is whole characters and the dots. */
Test(status, a_longer_message_is_cut_between_characters) {
  static const char *const characters[] = {"\u00e9", "\u20ac", "\U0001f600"};
  for (size_t c = 0; c < 3; c++) {
    for (size_t shift = 0; shift < 4; shift++) {
      const size_t width = strlen(characters[c]);
      char text[QUAY_ERROR_MESSAGE_SIZE * 2] = "aaaa";
      text[shift] = '\0';
      while (strlen(text) < QUAY_ERROR_MESSAGE_SIZE + 20)
        strcat(text, characters[c]);
      quay_error_set(QUAY_STATUS_BUSY, "", 0, NULL, "%s", text);
      const char *message = quay_last_error()->message;
      const char *dots = strstr(message, "...");
      cr_assert_not_null(dots);
      const size_t head = (size_t)(dots - message), tail = strlen(dots + 3);
      cr_assert_eq((head - shift) % width, 0, "a character of %zu bytes was cut", width);
      cr_assert_eq(tail % width, 0, "a character of %zu bytes was cut", width);
      cr_assert_eq(memcmp(message, text, head), 0);
      cr_assert_str_eq(dots + 3, text + strlen(text) - tail);
      cr_assert_geq(head + 3 + tail + 2 * width, QUAY_ERROR_MESSAGE_SIZE, "too much was cut");
    }
  }
}

Test(status, without_memory_a_longer_message_loses_its_end_and_errno_stays) {
  char text[2 * QUAY_ERROR_MESSAGE_SIZE] = "abcd";
  const size_t head = QUAY_ERROR_MESSAGE_SIZE - 1 - 3;
  while (strlen(text) < QUAY_ERROR_MESSAGE_SIZE + 20)
    strcat(text, "\u00e9");
  for (int shift = 0; shift < 2; shift++) {
    allocations_left = 0;
    errno = EIO;
    quay_error_set(QUAY_STATUS_BUSY, "", 0, NULL, "%s", text + shift);
    cr_assert_eq(errno, EIO);
    cr_assert_eq(allocations_left, -1, "nothing was asked for");
    const char *message = quay_last_error()->message;
    const size_t kept = head - (size_t)shift;
    cr_assert_eq(strlen(message), kept + 3);
    cr_assert_eq(memcmp(message, text + shift, kept), 0);
    cr_assert_str_eq(message + kept, "...");
  }
}

/* Of a path that is longer than the message the reason is told, and once. */
Test(status, what_is_wrong_with_a_long_path_is_told) {
  char path[4096];
  for (size_t length = 900; length < sizeof path; length += 61) {
    memset(path, 'p', length);
    path[length] = '\0';
    quay__fail_errno(QUAY_STATUS_IO, "mmap", ENAMETOOLONG, "mapping '%s'", path);
    const char *message = quay_last_error()->message;
    const char *end = "pp': File name too long (ENAMETOOLONG)";
    cr_assert_lt(strlen(message), (size_t)QUAY_ERROR_MESSAGE_SIZE);
    cr_assert_eq(strncmp(message, "mapping 'pp", 11), 0);
    cr_assert_str_eq(message + strlen(message) - strlen(end), end, "%s", message);
    quay__error_append("; %s", "and so on");
    message = quay_last_error()->message;
    end = "(ENAMETOOLONG); and so on";
    cr_assert_str_eq(message + strlen(message) - strlen(end), end, "%s", message);
    const char *dots = strstr(message, "...");
    cr_assert(dots == NULL || strstr(dots + 1, "..") == dots + 1);
    cr_assert(dots == NULL || strstr(dots + 3, ".") == NULL, "two cuts: %s", message);
  }
}

Test(status, line_breaks_and_bytes_that_are_no_utf8_are_replaced_one_by_one) {
  quay_error_set(QUAY_STATUS_IO, "", 0, NULL, "a\nb\rc\td%se", "\xff\xc0\x80\xed\xa0\x80\x7f");
  cr_assert_str_eq(quay_last_error()->message, "a?b?c?d???????e");
}

Test(status, whole_utf8_is_kept) {
  static const char text[] = "caf\u00e9 \u20ac \U0001f600";
  quay_error_set(QUAY_STATUS_IO, "", 0, NULL, "%s", text);
  cr_assert_str_eq(quay_last_error()->message, text);
}

Test(status, a_character_that_the_end_cuts_short_is_replaced) {
  quay_error_set(QUAY_STATUS_IO, "", 0, NULL, "%s", "x\xe2\x82");
  cr_assert_str_eq(quay_last_error()->message, "x??");
}

Test(status, the_old_message_may_be_an_argument_of_the_new_one) {
  quay_error_set(QUAY_STATUS_IO, "mmap", 5, "EIO", "first");
  quay_error_set(QUAY_STATUS_BUSY, quay_last_error()->backend, 6, quay_last_error()->native_name,
                 "then %s", quay_last_error()->message);
  cr_assert_str_eq(quay_last_error()->message, "then first");
  cr_assert_str_eq(quay_last_error()->backend, "mmap");
  cr_assert_str_eq(quay_last_error()->native_name, "EIO");
}

Test(status, clear_takes_everything_back) {
  quay_error_set(QUAY_STATUS_IO, "mmap", 5, "EIO", "first");
  quay_error_clear();
  cr_assert_eq(quay_last_error()->status, QUAY_OK);
  cr_assert_eq(quay_last_error()->native_code, 0);
  cr_assert_str_empty(quay_last_error()->message);
  cr_assert_str_empty(quay_last_error()->backend);
  cr_assert_str_empty(quay_last_error()->native_name);
}

static int another_threads_error; /* its address says that one was seen */

static void *see_no_error(void *unused) {
  (void)unused;
  const bool clean = quay_last_error()->status == QUAY_OK;
  quay_error_set(QUAY_STATUS_STALE, "", 0, NULL, "of the other thread");
  return clean ? NULL : &another_threads_error;
}

Test(status, errors_belong_to_their_thread) {
  pthread_t thread;
  void *problem = NULL;
  quay_error_set(QUAY_STATUS_IO, "", 0, NULL, "mine");
  cr_assert_eq(pthread_create(&thread, NULL, see_no_error, NULL), 0);
  pthread_join(thread, &problem);
  cr_assert_null(problem);
  cr_assert_str_eq(quay_last_error()->message, "mine");
}

Test(status, an_errno_is_named_and_explained) {
  const quay_status status = quay__fail_errno(QUAY_STATUS_IO, "mmap", ENOSPC, "writing %s", "f");
  cr_assert_eq(status, QUAY_STATUS_IO);
  cr_assert_eq(quay_last_error()->native_code, ENOSPC);
  cr_assert_str_eq(quay_last_error()->native_name, "ENOSPC");
  cr_assert_str_eq(quay_last_error()->message, "writing f: No space left on device (ENOSPC)");
}

Test(status, an_unknown_errno_is_still_an_error_with_its_number) {
  quay__fail_errno(QUAY_STATUS_IO, "mmap", 99999, "writing");
  cr_assert_eq(quay_last_error()->native_code, 99999);
  cr_assert_str_eq(quay_last_error()->native_name, "errno");
}

Test(status, only_a_lack_of_memory_is_no_io_error) {
  cr_assert_eq(quay__status_of_errno(ENOMEM), QUAY_STATUS_OUT_OF_HOST_MEMORY);
  cr_assert_eq(quay__status_of_errno(ENOSPC), QUAY_STATUS_IO);
  cr_assert_eq(quay__status_of_errno(EACCES), QUAY_STATUS_IO);
}

Test(status, appending_keeps_the_rest_of_the_error) {
  quay_error_set(QUAY_STATUS_IO, "mmap", 5, "EIO", "first");
  cr_assert_eq(quay__error_append(" and %s", "second"), QUAY_STATUS_IO);
  cr_assert_str_eq(quay_last_error()->message, "first and second");
  cr_assert_str_eq(quay_last_error()->backend, "mmap");
  cr_assert_eq(quay_last_error()->native_code, 5);
}

static quay_status fails_inside(bool fail) {
  QUAY_TRY(fail ? quay_error_set(QUAY_STATUS_BUSY, "", 0, NULL, "busy") : QUAY_OK);
  return QUAY_STATUS_STALE;
}

Test(status, try_returns_errors_and_goes_on_after_success) {
  cr_assert_eq(fails_inside(true), QUAY_STATUS_BUSY);
  cr_assert_eq(fails_inside(false), QUAY_STATUS_STALE);
}
