/* The parser of specs, and of the numbers in them. */
#include "core/spec.h"

#include <stdio.h>
#include <string.h>

#include "core/checked.h"
#include "core/error.h"
#include "core/os.h"

/* The parser's place in the text, and where it puts strings and arguments. */
typedef struct parser {
  const char *text; /* all of it, for messages */
  const char *at;
  char *strings; /* room for what is left */
  quay_spec_arg *items;
  quay__spec *spec;
  quay__spec_classify classify;
  quay__spec_describe describe;
  void *user;
} parser;

static quay_status fail_at(const parser *p, const char *problem) {
  return quay__fail(QUAY_STATUS_INVALID_ARGUMENT, "allocator spec \"%s\": %s", p->text, problem);
}

static quay_status fail_name(const parser *p, const char *name) {
  char possible[512];
  p->describe(p->user, possible, sizeof possible);
  if (name[0] == '\0') {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT,
                      "allocator spec \"%s\": a name is missing%s; possible are %s", p->text,
                      p->at == p->text || *p->at == '\0' ? "" : " before the separator", possible);
  }
  return quay__fail(QUAY_STATUS_INVALID_ARGUMENT,
                    "allocator spec \"%s\": \"%s\" is no layer and no backend; possible are %s",
                    p->text, name, possible);
}

/* Ends the string that began at `start` and makes room for the next one. */
static const char *end_string(parser *p, char *end) {
  const char *const start = p->strings;
  *end = '\0';
  p->strings = end + 1;
  return start;
}

/* What stands before an equals sign is a key if it is one word: a path is none. */
static bool is_key(const char *text) {
#define LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_"
  return strspn(text, LETTERS) > 0 && text[strspn(text, LETTERS "0123456789")] == '\0';
#undef LETTERS
}

/* One argument, up to a comma, the end, or in a layer a "+". */
static quay_status parse_item(parser *p, bool in_layer, quay_spec_arg *out_item) {
  char *out = p->strings;
  *out_item = (quay_spec_arg){.key = NULL, .value = NULL};
  for (; *p->at != '\0' && *p->at != ',' && !(in_layer && *p->at == '+'); p->at++) {
    char c = *p->at;
    if (c == '\\') {
      c = *++p->at;
      if (c == '\0' || strchr("\\,+=", c) == NULL) {
        return fail_at(p,
                       "a backslash must be followed by a backslash, comma, plus or equals sign");
      }
    } else if (c == '=' && out_item->key == NULL) {
      *out = '\0';
      if (is_key(p->strings)) {
        out_item->key = end_string(p, out);
        out = p->strings;
        continue;
      }
    }
    *out++ = c;
  }
  out_item->value = end_string(p, out);
  /* What is empty is refused by quay_spec_check(), which knows what may stand there. */
  return QUAY_OK;
}

static quay_status parse_args(parser *p, bool in_layer, quay_spec_args *part) {
  do {
    p->at++; /* the colon, or a comma */
    QUAY_TRY(parse_item(p, in_layer, p->items));
    p->items++;
    part->count++;
  } while (*p->at == ',');
  return QUAY_OK;
}

static quay_status parse_part(parser *p, bool *out_is_backend) {
  const size_t length = strcspn(p->at, ":+");
  memcpy(p->strings, p->at, length);
  quay_spec_args *const part = &p->spec->parts[p->spec->count++];
  *part = (quay_spec_args){
      .name = end_string(p, p->strings + length), .spec = p->text, .items = p->items};
  const quay__spec_name_kind kind = p->classify(p->user, part->name);
  if (kind == QUAY__SPEC_UNKNOWN)
    return fail_name(p, part->name);
  *out_is_backend = kind == QUAY__SPEC_BACKEND;
  char possible[512];
  p->at += length;
  if (*p->at == ':')
    QUAY_TRY(parse_args(p, kind == QUAY__SPEC_LAYER, part));
  if (kind == QUAY__SPEC_BACKEND) {
    if (*p->at == '\0')
      return QUAY_OK;
    p->describe(p->user, possible, sizeof possible);
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT,
                      "allocator spec \"%s\": nothing can follow the backend \"%s\" but \":\" and "
                      "its arguments; layers stand to its left; possible are %s",
                      p->text, part->name, possible);
  }
  if (*p->at != '+') {
    p->describe(p->user, possible, sizeof possible);
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT,
                      "allocator spec \"%s\": the layer \"%s\" needs \"+\" and an allocator after "
                      "it; possible are %s",
                      p->text, part->name, possible);
  }
  p->at++;
  return QUAY_OK;
}

static size_t count_of(const char *text, char c) {
  size_t count = 0;
  for (; *text != '\0'; text++)
    count += *text == c;
  return count;
}

quay_status quay__spec_parse(const char *text, quay__spec_classify classify,
                             quay__spec_describe describe, void *user, quay__spec **out_spec) {
  /* Every character of the text becomes at most one of a string, every separator at most one
   * terminator. */
  const size_t length = strlen(text);
  const size_t parts = count_of(text, '+') + 1;
  const size_t items = count_of(text, ',') + parts;
  *out_spec = NULL;
  const size_t size = sizeof(quay__spec) + parts * sizeof(quay_spec_args) +
                      items * sizeof(quay_spec_arg) + 2 * (length + 2);
  quay__spec *const spec = quay__os_calloc(1, size);
  if (spec == NULL)
    return quay__fail_out_of_memory(size, "an allocator spec");
  spec->parts = (quay_spec_args *)(spec + 1);
  parser p = {
      .items = (quay_spec_arg *)(spec->parts + parts),
      .spec = spec,
      .classify = classify,
      .describe = describe,
      .user = user,
  };
  char *const copy = (char *)(p.items + items);
  memcpy(copy, text, length + 1);
  p.text = copy;
  p.at = copy;
  p.strings = copy + length + 1;

  bool is_backend = false;
  quay_status status = QUAY_OK;
  while (status == QUAY_OK && !is_backend)
    status = parse_part(&p, &is_backend);
  if (status != QUAY_OK) {
    quay__spec_free(spec);
    return status;
  }
  *out_spec = spec;
  return QUAY_OK;
}

void quay__spec_free(quay__spec *spec) {
  quay__os_free(spec);
}

/* The digits at the start of `text`; NULL if there are none or they overflow. */
static const char *parse_digits(const char *text, uint64_t *out_value) {
  uint64_t value = 0;
  const char *at = text;
  for (; *at >= '0' && *at <= '9'; at++) {
    if (!quay__mul(value, 10, &value) || !quay__add(value, (uint64_t)(*at - '0'), &value)) {
      return NULL;
    }
  }
  *out_value = value;
  return at != text ? at : NULL;
}

bool quay__parse_unsigned(const char *text, uint64_t *out_value) {
  const char *const end = parse_digits(text, out_value);
  return end != NULL && *end == '\0';
}

bool quay__parse_bytes(const char *text, uint64_t *out_bytes) {
  static const struct {
    const char *unit;
    uint64_t factor;
  } units[] = {
      {"", 1},
      {"B", 1},
      {"K", 1ull << 10},
      {"M", 1ull << 20},
      {"G", 1ull << 30},
      {"T", 1ull << 40},
      {"KiB", 1ull << 10},
      {"MiB", 1ull << 20},
      {"GiB", 1ull << 30},
      {"TiB", 1ull << 40},
      {"KB", 1000ull},
      {"MB", 1000000ull},
      {"GB", 1000000000ull},
      {"TB", 1000000000000ull},
  };
  uint64_t value;
  const char *const unit = parse_digits(text, &value);
  if (unit == NULL)
    return false;
  for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
    if (strcmp(unit, units[i].unit) == 0)
      return quay__mul(value, units[i].factor, out_bytes);
  }
  return false;
}

bool quay__spec_append_escaped(char *text, size_t size, const char *value) {
  size_t used = strlen(text);
  for (; *value != '\0'; value++) {
    const bool escape = strchr("\\,=", *value) != NULL;
    if (used + (escape ? 2 : 1) >= size)
      return false;
    if (escape)
      text[used++] = '\\';
    text[used++] = *value;
  }
  text[used] = '\0';
  return true;
}
