/* quay_test_skip on top of Criterion or the plain runner. */
#include "skip.h"

#include <criterion/criterion.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORD_MAX 64

/* The first word of `words` (commas between) that `target` contains, in `out_word`. */
static bool find_forbidden(const char *words, const char *target, char out_word[static WORD_MAX]) {
  while (*words != '\0') {
    const size_t length = strcspn(words, ",");
    if (length > 0 && length < WORD_MAX) {
      memcpy(out_word, words, length);
      out_word[length] = '\0';
      if (strcasestr(target, out_word))
        return true;
    }
    words += length;
    words += *words == ',';
  }
  return false;
}

static void (*at_end)(void);

void quay_test_skip_ends_with(void (*end)(void)) {
  at_end = end;
}

void quay_test_skip(const char *target, const char *format, ...) {
  char reason[512];
  char word[WORD_MAX];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(reason, sizeof reason, format, arguments);
  va_end(arguments);
  const char *forbidden = getenv("QUAY_TEST_FAIL_ON_SKIP");
  if (forbidden && find_forbidden(forbidden, target, word)) {
    cr_assert_fail("would skip (%s: %s), but QUAY_TEST_FAIL_ON_SKIP names '%s'", target, reason,
                   word);
  }
  /* Criterion says nothing about skipped tests unless it is verbose. */
  fprintf(stderr, "[SKIP] %s: %s\n", target, reason);
  if (at_end != NULL)
    at_end();
  cr_skip_test("%s: %s", target, reason);
}
