/* The grammar of specs, and the arguments in them. */
#include "core/spec.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static quay__spec_name_kind classify(void *user, const char *name) {
  (void)user;
  if (strcmp(name, "inner") == 0 || strcmp(name, "outer") == 0)
    return QUAY__SPEC_LAYER;
  return strcmp(name, "disk") == 0 || strcmp(name, "cpu") == 0 ? QUAY__SPEC_BACKEND
                                                               : QUAY__SPEC_UNKNOWN;
}

static void describe(void *user, char *out_text, size_t size) {
  (void)user;
  snprintf(out_text, size, "THE LIST");
}

static quay__spec *parse(const char *text) {
  quay__spec *spec = NULL;
  cr_assert_eq(quay__spec_parse(text, classify, describe, NULL, &spec), QUAY_OK, "%s: %s", text,
               quay_last_error()->message);
  return spec;
}

Test(spec, a_name_alone_is_a_backend_without_arguments) {
  quay__spec *spec = parse("cpu");
  cr_assert_eq(spec->count, 1);
  cr_assert_str_eq(spec->parts[0].name, "cpu");
  cr_assert_eq(spec->parts[0].count, 0);
  cr_assert_str_eq(spec->parts[0].spec, "cpu");
  quay__spec_free(spec);
}

Test(spec, layers_stand_outermost_first_with_their_arguments) {
  quay__spec *spec = parse("outer:after=3,8GiB+inner+disk:/scratch,align=4096");
  cr_assert_eq(spec->count, 3);
  cr_assert_str_eq(spec->parts[0].name, "outer");
  cr_assert_eq(spec->parts[0].count, 2);
  cr_assert_str_eq(spec->parts[0].items[0].key, "after");
  cr_assert_str_eq(spec->parts[0].items[0].value, "3");
  cr_assert_null(spec->parts[0].items[1].key);
  cr_assert_str_eq(spec->parts[0].items[1].value, "8GiB");
  cr_assert_str_eq(spec->parts[1].name, "inner");
  cr_assert_eq(spec->parts[1].count, 0);
  cr_assert_str_eq(spec->parts[2].items[0].value, "/scratch");
  cr_assert_str_eq(spec->parts[2].items[1].key, "align");
  cr_assert_str_eq(spec->parts[2].items[1].value, "4096");
  quay__spec_free(spec);
}

Test(spec, after_the_backends_name_a_plus_is_a_plain_character) {
  quay__spec *spec = parse("inner+disk:/a+b/c+cpu,d=x+y");
  cr_assert_eq(spec->count, 2);
  cr_assert_str_eq(spec->parts[1].items[0].value, "/a+b/c+cpu");
  cr_assert_str_eq(spec->parts[1].items[1].value, "x+y");
  quay__spec_free(spec);
}

Test(spec, escapes_are_undone) {
  quay__spec *spec = parse("disk:/a\\,b\\\\c");
  cr_assert_eq(spec->parts[0].count, 1);
  cr_assert_str_eq(spec->parts[0].items[0].value, "/a,b\\c");
  quay__spec_free(spec);
}

Test(spec, appending_escaped_and_parsing_gives_the_value_back) {
  static const char *const values[] = {
      "/plain", "/a,b", "\\", ",", "a=b", "/x\\,y", "\\\\,,==", "/a+b", "key=value,other=2"};
  for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
    char text[100] = "disk:";
    cr_assert(quay__spec_append_escaped(text, sizeof text, values[i]));
    quay__spec *spec = parse(text);
    cr_assert_eq(spec->parts[0].count, 1, "%s", text);
    cr_assert_null(spec->parts[0].items[0].key, "%s", text);
    cr_assert_str_eq(spec->parts[0].items[0].value, values[i]);
    quay__spec_free(spec);
  }
}

Test(spec, appending_says_when_it_does_not_fit) {
  char text[8] = "disk:";
  cr_assert_not(quay__spec_append_escaped(text, sizeof text, "abc"));
  char exact[9] = "disk:";
  cr_assert(quay__spec_append_escaped(exact, sizeof exact, "abc"));
  cr_assert_str_eq(exact, "disk:abc");
}

Test(spec, what_is_no_spec_is_refused_with_the_piece_quoted) {
  static const struct {
    const char *text, *quoted;
  } wrong[] = {
      {"", "THE LIST"},           {" cpu", "\" cpu\""},
      {"cpu ", "\"cpu \""},       {"nonsense", "THE LIST"},
      {"CPU", "\"CPU\""},         {"+cpu", "THE LIST"},
      {"inner+", "THE LIST"},     {"inner", "THE LIST"},
      {"cpu+inner", "\"cpu\""},   {"cpu+", "\"cpu\""},
      {"inner++cpu", "THE LIST"}, {"disk:a\\b", "backslash"},
      {"disk:a\\", "backslash"},  {"cpujunk", "\"cpujunk\""},
      {"inner:a=1", "inner"},     {"outer+nonsense:+cpu", "\"nonsense\""},
  };
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    quay__spec *spec = (quay__spec *)&spec;
    cr_expect_eq(quay__spec_parse(wrong[i].text, classify, describe, NULL, &spec),
                 QUAY_STATUS_INVALID_ARGUMENT, "\"%s\" was taken", wrong[i].text);
    cr_expect_null(spec);
    cr_expect_not_null(strstr(quay_last_error()->message, wrong[i].quoted), "\"%s\": %s",
                       wrong[i].text, quay_last_error()->message);
  }
}

Test(spec, very_long_specs_are_parsed_and_refused_without_harm) {
  char *text = malloc(100001);
  memset(text, 'a', 100000);
  text[100000] = '\0';
  quay__spec *spec = NULL;
  cr_assert_eq(quay__spec_parse(text, classify, describe, NULL, &spec),
               QUAY_STATUS_INVALID_ARGUMENT);
  memcpy(text, "disk:", 5);
  cr_assert_eq(quay__spec_parse(text, classify, describe, NULL, &spec), QUAY_OK);
  cr_assert_eq(strlen(spec->parts[0].items[0].value), 99995);
  quay__spec_free(spec);
  for (size_t i = 5; i + 1 < 100000; i += 2)
    text[i] = ',';
  cr_assert_eq(quay__spec_parse(text, classify, describe, NULL, &spec), QUAY_OK);
  cr_expect_eq(quay_spec_check(&spec->parts[0], NULL, 0), QUAY_STATUS_INVALID_ARGUMENT);
  quay__spec_free(spec);
  free(text);
}

Test(spec, bytes_take_every_unit_and_nothing_else) {
  static const struct {
    const char *text;
    uint64_t bytes;
  } right[] = {
      {"0", 0},
      {"1", 1},
      {"4096", 4096},
      {"18446744073709551615", UINT64_MAX},
      {"3K", 3072},
      {"3KiB", 3072},
      {"3KB", 3000},
      {"2M", 2u << 20},
      {"2MiB", 2u << 20},
      {"2MB", 2000000},
      {"8G", 8ull << 30},
      {"8GiB", 8ull << 30},
      {"8GB", 8000000000},
      {"1T", 1ull << 40},
      {"1TiB", 1ull << 40},
      {"1TB", 1000000000000},
      {"16777215TiB", 16777215ull << 40},
      {"007", 7},
  };
  static const char *const wrong[] = {
      "",
      " 1",
      "1 ",
      "+1",
      "-1",
      "1.5MB",
      "0x10",
      "1e3",
      "KiB",
      "1k",
      "1kib",
      "1Kib",
      "1 KiB",
      "1KiBB",
      "1PiB",
      "16777216TiB",
      "18446744073709551616",
      "99999999999999999999999",
      "18446744073709551615K",
      "1,0",
      "\xd9\xa1",
  };
  for (size_t i = 0; i < sizeof right / sizeof right[0]; i++) {
    uint64_t bytes = 1;
    cr_expect(quay__parse_bytes(right[i].text, &bytes), "%s", right[i].text);
    cr_expect_eq(bytes, right[i].bytes, "%s", right[i].text);
  }
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    uint64_t bytes;
    cr_expect_not(quay__parse_bytes(wrong[i], &bytes), "\"%s\"", wrong[i]);
  }
}

Test(spec, unsigned_numbers_are_decimal_and_whole) {
  static const char *const wrong[] = {
      "", "-1", "+1", " 1", "1 ", "0x1", "1.0", "1K", "18446744073709551616"};
  uint64_t value = 0;
  cr_assert(quay__parse_unsigned("18446744073709551615", &value));
  cr_assert_eq(value, UINT64_MAX);
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
    cr_expect_not(quay__parse_unsigned(wrong[i], &value), "\"%s\"", wrong[i]);
}

/* What backends do with their arguments. */

static const quay_spec_key keys[] = {
    {NULL, "a directory"}, {"align", "a power of two"}, {"hugepages", "on or off"}};

static quay_status check(const char *text) {
  quay__spec *spec = parse(text);
  const quay_status status = quay_spec_check(&spec->parts[0], keys, 3);
  quay__spec_free(spec);
  return status;
}

Test(spec, check_takes_known_arguments_once_each) {
  cr_assert_eq(check("disk"), QUAY_OK);
  cr_assert_eq(check("disk:/tmp,align=64,hugepages=on"), QUAY_OK);
  cr_assert_eq(check("disk:hugepages=on,/tmp"), QUAY_OK);
}

Test(spec, check_quotes_what_it_refuses_and_lists_the_forms) {
  static const char *const wrong[][2] = {
      {"disk:size=4", "\"size=4\""},
      {"disk:align=4,align=4", "twice"},
      {"disk:align=", "\"align=\" has no value"},
      {"disk:/tmp,/var", "\"/var\""},
      {"disk:Align=4", "\"Align=4\""},
      {"disk:", "empty"},
      {"disk:,align=4", "empty"},
      {"disk:align=4,", "empty"},
      {"disk:align=4,,hugepages=on", "empty"},
  };
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    cr_expect_eq(check(wrong[i][0]), QUAY_STATUS_INVALID_ARGUMENT, "%s", wrong[i][0]);
    const char *message = quay_last_error()->message;
    cr_expect_not_null(strstr(message, wrong[i][1]), "%s: %s", wrong[i][0], message);
    cr_expect_not_null(strstr(message, "a power of two"), "%s", message);
    cr_expect_not_null(strstr(message, "a directory"), "%s", message);
  }
}

Test(spec, values_are_parsed_whole_or_refused_and_absent_ones_keep_the_default) {
  quay__spec *spec = parse("disk:/tmp,align=64KiB,count=12,hugepages=on,bad=12x,worse=yes,"
                           "many=18446744073709551616,large=16777216TiB");
  const quay_spec_args *args = &spec->parts[0];
  uint64_t bytes = 7;
  uint64_t count = 7;
  bool on = false;
  cr_expect_str_eq(quay_spec_value(args, NULL), "/tmp");
  cr_expect_null(quay_spec_value(args, "absent"));
  cr_expect_eq(quay_spec_bytes(args, "absent", &bytes), QUAY_OK);
  cr_expect_eq(bytes, 7);
  cr_expect_eq(quay_spec_bytes(args, "align", &bytes), QUAY_OK);
  cr_expect_eq(bytes, 65536);
  cr_expect_eq(quay_spec_unsigned(args, "count", &count), QUAY_OK);
  cr_expect_eq(count, 12);
  cr_expect_eq(quay_spec_switch(args, "hugepages", &on), QUAY_OK);
  cr_expect(on);
  cr_expect_eq(quay_spec_bytes(args, "bad", &bytes), QUAY_STATUS_INVALID_ARGUMENT);
  cr_expect_not_null(strstr(quay_last_error()->message, "12x"));
  cr_expect_eq(bytes, 65536, "a bad value leaves the output alone");
  cr_expect_eq(quay_spec_unsigned(args, "bad", &count), QUAY_STATUS_INVALID_ARGUMENT);
  cr_expect_eq(quay_spec_unsigned(args, "align", &count), QUAY_STATUS_INVALID_ARGUMENT);
  cr_expect_eq(quay_spec_unsigned(args, "many", &count), QUAY_STATUS_INVALID_ARGUMENT);
  cr_expect_not_null(strstr(quay_last_error()->message, "to 2^64-1"), "says the most there can be");
  cr_expect_eq(quay_spec_bytes(args, "large", &bytes), QUAY_STATUS_INVALID_ARGUMENT);
  cr_expect_not_null(strstr(quay_last_error()->message, "below 2^64"),
                     "says the most there can be");
  cr_expect_eq(quay_spec_switch(args, "worse", &on), QUAY_STATUS_INVALID_ARGUMENT);
  cr_expect_not_null(strstr(quay_last_error()->message, "on or off"));
  quay__spec_free(spec);
}
