/* Any text as a spec: nothing is read outside it, what is parsed can be written and parsed again to
 * the same, and whatever opens tells a spec that opens the same. */
#include "core/spec.h"

#include <quay/quay.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Names that begin with "l" are layers, with "x" unknown, all others backends. */
static quay__spec_name_kind classify(void *user, const char *name) {
  (void)user;
  if (name[0] == '\0' || name[0] == 'x')
    return QUAY__SPEC_UNKNOWN;
  return name[0] == 'l' ? QUAY__SPEC_LAYER : QUAY__SPEC_BACKEND;
}

static void describe(void *user, char *out_text, size_t size) {
  (void)user;
  snprintf(out_text, size, "names that do not begin with x");
}

/* Every special character escaped, in layers and backends alike. */
static char *append(char *at, const char *text) {
  for (; *text != '\0'; text++) {
    if (strchr("\\,+=", *text) != NULL)
      *at++ = '\\';
    *at++ = *text;
  }
  return at;
}

static char *write_spec(const quay__spec *spec, size_t length) {
  char *text = malloc(3 * length + 16);
  char *at = text;
  for (size_t i = 0; i < spec->count; i++) {
    const quay_spec_args *part = &spec->parts[i];
    at += sprintf(at, "%s%s", i > 0 ? "+" : "", part->name);
    for (size_t a = 0; a < part->count; a++) {
      *at++ = a == 0 ? ':' : ',';
      if (part->items[a].key != NULL)
        at += sprintf(at, "%s=", part->items[a].key);
      at = append(at, part->items[a].value);
    }
  }
  *at = '\0';
  return text;
}

static void check_same(const quay__spec *a, const quay__spec *b) {
  CHECK(a->count == b->count);
  for (size_t i = 0; i < a->count; i++) {
    CHECK(strcmp(a->parts[i].name, b->parts[i].name) == 0);
    CHECK(a->parts[i].count == b->parts[i].count);
    for (size_t j = 0; j < a->parts[i].count; j++) {
      const quay_spec_arg *left = &a->parts[i].items[j];
      const quay_spec_arg *right = &b->parts[i].items[j];
      CHECK((left->key == NULL) == (right->key == NULL));
      CHECK(left->key == NULL || strcmp(left->key, right->key) == 0);
      CHECK(strcmp(left->value, right->value) == 0);
    }
  }
}

static void check_arguments(const quay_spec_args *args) {
  static const quay_spec_key keys[] = {{NULL, "anything"}, {"a", "a number"}};
  const quay_status status = quay_spec_check(args, keys, 2);
  CHECK(status == QUAY_OK || status == QUAY_STATUS_INVALID_ARGUMENT);
  for (size_t i = 0; i < args->count && status == QUAY_OK; i++)
    CHECK(args->items[i].value[0] != '\0');
  uint64_t number = 1;
  bool on = false;
  const quay_status statuses[] = {quay_spec_bytes(args, "a", &number),
                                  quay_spec_unsigned(args, NULL, &number),
                                  quay_spec_switch(args, "a", &on)};
  for (size_t i = 0; i < 3; i++)
    CHECK(statuses[i] == QUAY_OK || statuses[i] == QUAY_STATUS_INVALID_ARGUMENT);
}

static void check_parser(const char *text) {
  quay__spec *spec = NULL;
  quay__spec *again = NULL;
  if (quay__spec_parse(text, classify, describe, NULL, &spec) != QUAY_OK) {
    CHECK(spec == NULL);
    CHECK(quay_last_error()->status == QUAY_STATUS_INVALID_ARGUMENT);
    CHECK(quay_last_error()->message[0] != '\0');
    CHECK(strchr(quay_last_error()->message, '\n') == NULL);
    return;
  }
  char *written = write_spec(spec, strlen(text));
  CHECK(quay__spec_parse(written, classify, describe, NULL, &again) == QUAY_OK);
  check_same(spec, again);
  for (size_t i = 0; i < spec->count; i++)
    check_arguments(&spec->parts[i]);
  quay__spec_free(again);
  quay__spec_free(spec);
  free(written);
}

/* With the real names; not with mmap and trace, which open, and write, any path. */
static void check_open(const char *text) {
  quay_allocator *allocator = NULL;
  quay_allocator *again = NULL;
  if (strstr(text, "mmap") != NULL || strstr(text, "trace") != NULL)
    return;
  if (quay_allocator_open(text, &allocator) != QUAY_OK) {
    CHECK(allocator == NULL);
    return;
  }
  CHECK(quay_allocator_open(quay_allocator_spec(allocator), &again) == QUAY_OK);
  CHECK(strcmp(quay_allocator_spec(allocator), quay_allocator_spec(again)) == 0);
  quay_allocator_release(again);
  quay_allocator_release(allocator);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char *text = malloc(size + 1);
  memcpy(text, data, size);
  text[size] = '\0';
  uint64_t value;
  if (quay__parse_unsigned(text, &value))
    CHECK(quay__parse_bytes(text, &value));
  check_parser(text);
  check_open(text);
  free(text);
  return 0;
}
