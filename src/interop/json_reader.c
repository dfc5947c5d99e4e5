/* The checker of JSON and the functions that read checked text. */
#include "interop/json_reader.h"

#include <string.h>

typedef struct checker {
  const char *text;
  size_t size;
  size_t at;
  int depth;
  quay__json_problem *problem;
} checker;

static bool check_value(checker *c);

static bool wrong(checker *c, size_t position, const char *text) {
  *c->problem = (quay__json_problem){.position = position, .text = text};
  return false;
}

/* The byte at the place; NUL, which JSON has nowhere, at the end. */
static char peek(const checker *c) {
  return c->at < c->size ? c->text[c->at] : '\0';
}

static bool is_space(char byte) {
  return byte == ' ' || byte == '\t' || byte == '\n' || byte == '\r';
}

static bool is_digit(char byte) {
  return byte >= '0' && byte <= '9';
}

static void skip_spaces(checker *c) {
  while (is_space(peek(c)))
    ++c->at;
}

/* Unicode 15, table 3-7. */
size_t quay__utf8_character(const char *text, size_t size) {
  const unsigned char *bytes = (const unsigned char *)text;
  if (size == 0)
    return 0;
  const unsigned char first = bytes[0];
  if (first < 0x80)
    return 1;
  if (first < 0xC2 || first > 0xF4)
    return 0;
  const size_t length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  const unsigned char low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const unsigned char high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  if (size < length || bytes[1] < low || bytes[1] > high)
    return 0;
  for (size_t i = 2; i < length; ++i) {
    if ((bytes[i] & 0xC0) != 0x80)
      return 0;
  }
  return length;
}

/* The value of the four hexadecimal digits at `text`; -1 if they are none. */
static int32_t hex4(const char *text) {
  int32_t value = 0;
  for (size_t i = 0; i < 4; ++i) {
    const char digit = text[i];
    const char lower = (char)(digit | 0x20);
    if (is_digit(digit)) {
      value = value * 16 + (digit - '0');
    } else if (lower >= 'a' && lower <= 'f') {
      value = value * 16 + (lower - 'a' + 10);
    } else {
      return -1;
    }
  }
  return value;
}

static bool is_high_surrogate(int32_t code) {
  return code >= 0xD800 && code <= 0xDBFF;
}

static bool is_low_surrogate(int32_t code) {
  return code >= 0xDC00 && code <= 0xDFFF;
}

/* The number behind \u, whose u is at `at`; -1 if there is none. */
static int32_t escaped_number(const checker *c, size_t at) {
  return c->size - at > 4 ? hex4(c->text + at + 1) : -1;
}

/* The place is at the u. */
static bool check_unicode_escape(checker *c) {
  const size_t begin = c->at - 1;
  const int32_t code = escaped_number(c, c->at);
  if (code < 0)
    return wrong(c, begin, "an invalid escape");
  if (code == 0)
    return wrong(c, begin, "NUL in a string");
  c->at += 5;
  if (is_low_surrogate(code))
    return wrong(c, begin, "half a surrogate pair");
  if (!is_high_surrogate(code))
    return true;
  if (c->size - c->at < 6 || c->text[c->at] != '\\' || c->text[c->at + 1] != 'u' ||
      !is_low_surrogate(escaped_number(c, c->at + 1)))
    return wrong(c, begin, "half a surrogate pair");
  c->at += 6;
  return true;
}

/* The place is at the backslash. */
static bool check_escape(checker *c) {
  ++c->at;
  const char byte = peek(c);
  if (byte == 'u')
    return check_unicode_escape(c);
  if (byte == '\0' || strchr("\"\\/bfnrt", byte) == NULL)
    return wrong(c, c->at - 1, "an invalid escape");
  ++c->at;
  return true;
}

static bool check_string(checker *c) {
  for (++c->at; c->at < c->size;) {
    const char byte = c->text[c->at];
    if (byte == '"') {
      ++c->at;
      return true;
    }
    if (byte == '\\') {
      if (!check_escape(c))
        return false;
      continue;
    }
    if ((unsigned char)byte < 0x20)
      return wrong(c, c->at, "a control character in a string");
    const size_t length = quay__utf8_character(c->text + c->at, c->size - c->at);
    if (length == 0) {
      *c->problem = (quay__json_problem){.position = c->at, .text = "no UTF-8", .is_utf8 = true};
      return false;
    }
    c->at += length;
  }
  return wrong(c, c->size, "the text ends within a string");
}

static size_t skip_digits(checker *c) {
  const size_t begin = c->at;
  while (is_digit(peek(c)))
    ++c->at;
  return c->at - begin;
}

/* Adds a digit to a number that is counted below zero, where one more fits than above. */
static bool add_digit(int64_t *number, char digit) {
  return !__builtin_mul_overflow(*number, 10, number) &&
         !__builtin_sub_overflow(*number, digit - '0', number);
}

static bool parse_integer(const char *text, size_t size, int64_t *out_number) {
  const bool negative = text[0] == '-';
  int64_t number = 0;
  for (size_t i = negative ? 1 : 0; i < size; ++i) {
    if (!add_digit(&number, text[i]))
      return false;
  }
  if (!negative && number == INT64_MIN)
    return false;
  *out_number = negative ? number : -number;
  return true;
}

static bool check_number(checker *c) {
  const size_t begin = c->at;
  if (peek(c) == '-')
    ++c->at;
  const bool zero = peek(c) == '0';
  const size_t digits = skip_digits(c);
  if (digits == 0 || (zero && digits > 1))
    return wrong(c, begin, "an invalid number");
  const size_t integer_end = c->at;
  if (peek(c) == '.') {
    ++c->at;
    if (skip_digits(c) == 0)
      return wrong(c, begin, "an invalid number");
  }
  if (peek(c) == 'e' || peek(c) == 'E') {
    ++c->at;
    if (peek(c) == '+' || peek(c) == '-')
      ++c->at;
    if (skip_digits(c) == 0)
      return wrong(c, begin, "an invalid number");
  }
  int64_t number;
  if (c->at == integer_end && !parse_integer(c->text + begin, c->at - begin, &number))
    return wrong(c, begin, "an integer that is too large");
  return true;
}

static bool check_word(checker *c) {
  static const char *const words[] = {"true", "false", "null"};
  for (size_t i = 0; i < sizeof words / sizeof words[0]; ++i) {
    const size_t length = strlen(words[i]);
    if (c->size - c->at < length || memcmp(c->text + c->at, words[i], length) != 0)
      continue;
    c->at += length;
    return true;
  }
  return wrong(c, c->at, c->at < c->size ? "a value is missing" : "the text ends too early");
}

/* What stands in an object before a value. */
static bool check_key(checker *c) {
  skip_spaces(c);
  if (peek(c) != '"')
    return wrong(c, c->at, "a key is missing");
  if (!check_string(c))
    return false;
  skip_spaces(c);
  if (peek(c) != ':')
    return wrong(c, c->at, "a ':' is missing");
  ++c->at;
  return true;
}

static bool check_container(checker *c, bool is_object) {
  const char close = is_object ? '}' : ']';
  if (++c->depth > QUAY__JSON_DEPTH_MAX)
    return wrong(c, c->at, "too many objects and arrays within each other");
  ++c->at;
  skip_spaces(c);
  if (peek(c) == close) {
    ++c->at;
    --c->depth;
    return true;
  }
  for (;;) {
    if (is_object && !check_key(c))
      return false;
    if (!check_value(c))
      return false;
    skip_spaces(c);
    const char byte = peek(c);
    if (byte != ',' && byte != close)
      return wrong(c, c->at, is_object ? "a ',' or '}' is missing" : "a ',' or ']' is missing");
    ++c->at;
    if (byte == close) {
      --c->depth;
      return true;
    }
  }
}

static bool check_value(checker *c) {
  skip_spaces(c);
  const char first = peek(c);
  if (first == '{' || first == '[')
    return check_container(c, first == '{');
  if (first == '"')
    return check_string(c);
  if (first == '-' || is_digit(first))
    return check_number(c);
  return check_word(c);
}

bool quay__json_check(const char *text, size_t size, quay__json_problem *out_problem) {
  checker c = {.text = text, .size = size, .problem = out_problem};
  if (!check_value(&c))
    return false;
  skip_spaces(&c);
  return c.at == size || wrong(&c, c.at, "something follows the value");
}

/* Reading checked text, whose containers and strings are known to end. */

static const char *after_spaces(const char *text) {
  while (is_space(*text))
    ++text;
  return text;
}

static const char *string_end(const char *string) {
  const char *at = string + 1;
  while (*at != '"')
    at += *at == '\\' ? 2 : 1;
  return at + 1;
}

static const char *container_end(const char *container) {
  const char *at = container;
  int depth = 0;
  do {
    if (*at == '"') {
      at = string_end(at);
      continue;
    }
    if (*at == '{' || *at == '[')
      ++depth;
    if (*at == '}' || *at == ']')
      --depth;
    ++at;
  } while (depth > 0);
  return at;
}

/* Numbers and words end where a container goes on. */
static const char *value_end(const char *value) {
  if (*value == '"')
    return string_end(value);
  if (*value == '{' || *value == '[')
    return container_end(value);
  return value + strcspn(value, ",]} \t\n\r");
}

const char *quay__json_first(const char *container) {
  const char *first = after_spaces(container + 1);
  return *first == '}' || *first == ']' ? NULL : first;
}

const char *quay__json_next(const char *value) {
  const char *behind = after_spaces(value_end(value));
  return *behind == ',' ? after_spaces(behind + 1) : NULL;
}

const char *quay__json_value_of(const char *key) {
  return after_spaces(after_spaces(string_end(key)) + 1);
}

static char *encode_utf8(uint32_t code, char *out) {
  if (code < 0x80) {
    *out++ = (char)code;
    return out;
  }
  if (code < 0x800) {
    *out++ = (char)(0xC0 | code >> 6);
  } else {
    if (code < 0x10000) {
      *out++ = (char)(0xE0 | code >> 12);
    } else {
      *out++ = (char)(0xF0 | code >> 18);
      *out++ = (char)(0x80 | (code >> 12 & 0x3F));
    }
    *out++ = (char)(0x80 | (code >> 6 & 0x3F));
  }
  *out++ = (char)(0x80 | (code & 0x3F));
  return out;
}

/* `at` is behind the backslash; gives the place behind the escape. */
static const char *decode_escape(const char *at, char **out) {
  static const char letters[] = "bfnrt", values[] = "\b\f\n\r\t";
  if (*at != 'u') {
    const char *letter = strchr(letters, *at);
    *(*out)++ = letter != NULL ? values[letter - letters] : *at;
    return at + 1;
  }
  uint32_t code = (uint32_t)hex4(at + 1);
  at += 5;
  if (is_high_surrogate((int32_t)code)) {
    code = 0x10000 + ((code - 0xD800) << 10) + ((uint32_t)hex4(at + 2) - 0xDC00);
    at += 6;
  }
  *out = encode_utf8(code, *out);
  return at;
}

size_t quay__json_decode(const char *string, char *out) {
  char *end = out;
  for (const char *at = string + 1; *at != '"';) {
    if (*at == '\\') {
      at = decode_escape(at + 1, &end);
    } else {
      *end++ = *at++;
    }
  }
  *end = '\0';
  return (size_t)(end - out);
}

bool quay__json_integer(const char *value, int64_t *out_number) {
  if (*value != '-' && !is_digit(*value))
    return false;
  const size_t size = strspn(value, "-0123456789");
  if (strchr(".eE", value[size]) != NULL)
    return false;
  return parse_integer(value, size, out_number);
}
