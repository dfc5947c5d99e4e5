/* The checker and reader of JSON against jansson: over texts that are right or nearly so. */
#include "interop/json_reader.h"

#include <criterion/criterion.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/random.h"

static const char *const seeds[] = {
    "{\"a\":{\"dtype\":\"F32\",\"shape\":[1,20],\"data_offsets\":[0,80]}}",
    "{ \"__metadata__\" : {\"k\\n\\u00e9\\\"\" : \"\\ud83e\\udd86\\/\\\\\\b\"} } \n",
    "[-0, -1.5e-3, 0.25E+2, true, false, null, \"\", [], {}, [[]], 9223372036854775807]",
    "{\"\xC3\xA9\xE5\x90\x8D\xF0\x9F\xA6\x86\xED\x9F\xBF\":-9223372036854775808,\"b\":\t\r\n1}",
};

#define SEED_COUNT (sizeof seeds / sizeof seeds[0])

static bool accepts(const char *text, size_t size) {
  quay__json_problem problem;
  if (quay__json_check(text, size, &problem))
    return true;
  cr_expect_leq(problem.position, size);
  cr_expect_not_null(problem.text);
  return false;
}

/* What is read from checked text, against jansson's tree. */
static void compare_value(const char *at, json_t *value);

static void compare_object(const char *at, json_t *object) {
  char *name = malloc(strlen(at) + 1);
  cr_assert_not_null(name);
  const char *found, *key = quay__json_first(at);
  for (; key != NULL; key = quay__json_next(found)) {
    found = quay__json_value_of(key);
    quay__json_decode(key, name);
    json_t *expected = json_object_get(object, name);
    cr_assert_not_null(expected, "%s", name);
    compare_value(found, expected);
  }
  free(name);
}

static void compare_value(const char *at, json_t *value) {
  int64_t number = 0;
  const bool is_integer = quay__json_integer(at, &number);
  cr_expect_eq(is_integer, json_is_integer(value));
  if (is_integer)
    cr_expect_eq(number, json_integer_value(value));
  cr_expect_eq(*at == '"', json_is_string(value));
  if (*at == '"') {
    char *text = malloc(strlen(at) + 1);
    cr_assert_not_null(text);
    cr_expect_eq(quay__json_decode(at, text), json_string_length(value));
    cr_expect_str_eq(text, json_string_value(value));
    free(text);
  }
  cr_expect_eq(*at == '{', json_is_object(value));
  if (*at == '{')
    compare_object(at, value);
  cr_expect_eq(*at == '[', json_is_array(value));
  if (*at != '[')
    return;
  size_t i = 0;
  for (const char *item = quay__json_first(at); item != NULL; item = quay__json_next(item))
    compare_value(item, json_array_get(value, i++));
  cr_expect_eq(i, json_array_size(value));
}

/* Gives whether the text is right. */
static bool compare(const char *text, size_t size, bool unique_keys) {
  json_error_t error;
  json_t *expected = json_loadb(text, size, 0, &error);
  const bool accepted = accepts(text, size);
  /* A number with an exponent is never used, so how large it is does not matter. */
  const bool too_large = expected == NULL && json_error_code(&error) == json_error_numeric_overflow;
  if (!too_large) {
    cr_expect_eq(accepted, expected != NULL, "%.*s: %s", (int)size, text,
                 expected == NULL ? error.text : "");
  }
  if (accepted && expected != NULL && unique_keys)
    compare_value(text, expected);
  json_decref(expected);
  return accepted;
}

Test(json_reader, right_texts_are_read_as_jansson_reads_them) {
  for (size_t i = 0; i < SEED_COUNT; ++i)
    cr_expect(compare(seeds[i], strlen(seeds[i]), true), "%s", seeds[i]);
}

Test(json_reader, a_text_that_is_cut_off_anywhere_is_refused) {
  for (size_t i = 0; i < SEED_COUNT; ++i) {
    const size_t size = strcspn(seeds[i], "\n") - 1;
    for (size_t cut = 0; cut < size; ++cut) {
      /* A block of its own, so that reading beyond it is seen. */
      char *text = malloc(cut + 1);
      cr_assert_not_null(text);
      memcpy(text, seeds[i], cut);
      text[cut] = '}';
      cr_expect_not(accepts(text, cut), "%.*s", (int)cut, text);
      free(text);
    }
  }
}

Test(json_reader, every_changed_byte_is_judged_as_jansson_judges_it) {
  size_t refused = 0, taken = 0;
  for (size_t i = 0; i < SEED_COUNT; ++i) {
    char text[256];
    const size_t size = strlen(seeds[i]);
    for (size_t at = 0; at < size; ++at) {
      /* Without 0: jansson 2.14 loses a NUL that follows a number. */
      for (int byte = 1; byte < 256; ++byte) {
        memcpy(text, seeds[i], size);
        text[at] = (char)byte;
        if (text[0] != '{' && text[0] != '[')
          continue;
        if (compare(text, size, false)) {
          ++taken;
        } else {
          ++refused;
        }
      }
    }
  }
  cr_expect_gt(taken, 1000u);
  cr_expect_gt(refused, 1000u);
}

Test(json_reader, a_nul_is_refused_wherever_it_stands) {
  for (size_t i = 0; i < SEED_COUNT; ++i) {
    char text[256];
    const size_t size = strlen(seeds[i]);
    for (size_t at = 0; at < size; ++at) {
      memcpy(text, seeds[i], size);
      text[at] = '\0';
      cr_expect_not(accepts(text, size), "seed %zu, byte %zu", i, at);
    }
  }
}

Test(json_reader, random_pieces_of_json_are_judged_as_jansson_judges_them) {
  static const char *const pieces[] = {
      "{",  "}",  "[",   "]",       ",",       ":",       "\"a\"",    "\"",
      "\\", "1",  "-",   "0",       ".5",      "e1",      "true",     "null",
      " ",  "\n", "\\n", "\\u00e9", "\\ud800", "\\udc00", "\xC3\xA9", "\xC3"};
  uint64_t random = 7;
  for (int round = 0; round < 100000; ++round) {
    char text[128] = "[";
    const size_t count = (size_t)(quay_test_random(&random) % 12);
    for (size_t i = 0; i < count; ++i)
      strcat(text, pieces[quay_test_random(&random) % (sizeof pieces / sizeof pieces[0])]);
    strcat(text, "]");
    compare(text, strlen(text), false);
  }
}

Test(json_reader, nesting_ends_at_its_limit) {
  char text[2 * (QUAY__JSON_DEPTH_MAX + 1)];
  for (size_t depth = QUAY__JSON_DEPTH_MAX; depth <= QUAY__JSON_DEPTH_MAX + 1; ++depth) {
    memset(text, '[', depth);
    memset(text + depth, ']', depth);
    cr_expect_eq(accepts(text, 2 * depth), depth == QUAY__JSON_DEPTH_MAX);
  }
}
