/* Text for people. Knows nothing of what it writes about. */
#include "text.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <wchar.h>

/* Decodes the UTF-8 character at `text`; its size in bytes, or 0 if there is none. */
static size_t decode(const unsigned char *text, uint32_t *out_code) {
  if (text[0] < 0x80) {
    *out_code = text[0];
    return 1;
  }
  static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  const size_t size = text[0] >= 0xF0 ? 4 : text[0] >= 0xE0 ? 3 : 2;
  if (text[0] < 0xC2 || text[0] > 0xF4)
    return 0;
  uint32_t code = text[0] & (0xFFu >> (size + 1));
  for (size_t i = 1; i < size; ++i) {
    if ((text[i] & 0xC0) != 0x80)
      return 0;
    code = code << 6 | (text[i] & 0x3Fu);
  }
  const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
  if (code < least[size] || code > 0x10FFFF || surrogate)
    return 0;
  *out_code = code;
  return size;
}

/* Control characters, what turns the direction or the line of the text around it, and what is not
 * seen: the categories Cc, Cf, Zl and Zp and the property Default_Ignorable_Code_Point of Unicode
 * 15, but for variation selectors, which change the look of the character before them. */
static bool is_unsafe(uint32_t code) {
  static const struct {
    uint32_t first, last;
  } ranges[] = {
      {0x0000, 0x001F},   {0x007F, 0x009F},   {0x00AD, 0x00AD},   {0x034F, 0x034F},
      {0x0600, 0x0605},   {0x061C, 0x061C},   {0x06DD, 0x06DD},   {0x070F, 0x070F},
      {0x0890, 0x0891},   {0x08E2, 0x08E2},   {0x115F, 0x1160},   {0x17B4, 0x17B5},
      {0x180E, 0x180E},   {0x200B, 0x200F},   {0x2028, 0x202E},   {0x2060, 0x206F},
      {0x3164, 0x3164},   {0xFEFF, 0xFEFF},   {0xFFA0, 0xFFA0},   {0xFFF0, 0xFFFB},
      {0x110BD, 0x110BD}, {0x110CD, 0x110CD}, {0x13430, 0x1343F}, {0x1BCA0, 0x1BCA3},
      {0x1D173, 0x1D17A}, {0xE0000, 0xE00FF}, {0xE01F0, 0xE0FFF},
  };
  for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; ++i) {
    if (code >= ranges[i].first && code <= ranges[i].last)
      return true;
  }
  return false;
}

/* Bytes of the longest, \u{10ffff}, with its NUL. */
#define ESCAPE_MAX 12

static size_t escape(uint32_t code, char *out) {
  int size = 0;
  if (code == '\n') {
    size = snprintf(out, ESCAPE_MAX, "\\n");
  } else if (code == '\t') {
    size = snprintf(out, ESCAPE_MAX, "\\t");
  } else if (code < 0x80) {
    size = snprintf(out, ESCAPE_MAX, "\\x%02" PRIx32, code);
  } else {
    size = snprintf(out, ESCAPE_MAX, "\\u{%" PRIx32 "}", code);
  }
  return (size_t)size;
}

/* Writes what stands for the character at `text` to `out` and its length to `out_size`; the length
 * of the character itself is the result. */
static size_t convert(const unsigned char *text, char out[ESCAPE_MAX], size_t *out_size) {
  uint32_t code = 0;
  const size_t size = decode(text, &code);
  if (size == 0) {
    *out_size = (size_t)snprintf(out, ESCAPE_MAX, "\\x%02x", *text);
    return 1;
  }
  if (is_unsafe(code)) {
    *out_size = escape(code, out);
  } else {
    memcpy(out, text, size);
    *out_size = size;
  }
  return size;
}

void text_print(const char *text, char *out, size_t size) {
  const unsigned char *next = (const unsigned char *)text;
  size_t used = 0;
  while (*next != '\0') {
    char piece[ESCAPE_MAX];
    size_t piece_size = 0;
    next += convert(next, piece, &piece_size);
    if (used + piece_size >= size)
      break;
    memcpy(out + used, piece, piece_size);
    used += piece_size;
  }
  out[used] = '\0';
}

char *text_printable(const char *text) {
  size_t size = 1;
  for (const unsigned char *next = (const unsigned char *)text; *next != '\0';) {
    char piece[ESCAPE_MAX];
    size_t piece_size = 0;
    next += convert(next, piece, &piece_size);
    size += piece_size;
  }
  char *out = malloc(size);
  if (out != NULL)
    text_print(text, out, size);
  return out;
}

size_t text_width(const char *text) {
  size_t width = 0;
  const unsigned char *next = (const unsigned char *)text;
  while (*next != '\0') {
    uint32_t code = 0;
    const size_t size = decode(next, &code);
    /* -1 for a character that the C library does not know, or in a locale without UTF-8. */
    const int columns = wcwidth((wchar_t)code);
    width += columns >= 0 ? (size_t)columns : 1;
    next += size != 0 ? size : 1;
  }
  return width;
}

void text_of_size(uint64_t bytes, char out[TEXT_SIZE_MAX]) {
  static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) {
    snprintf(out, TEXT_SIZE_MAX, "%" PRIu64 " bytes", bytes);
    return;
  }
  double value = (double)bytes / 1024;
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < sizeof units / sizeof units[0]) {
    value /= 1024;
    ++unit;
  }
  snprintf(out, TEXT_SIZE_MAX, "%.1f %s", value, units[unit]);
}

char *text_of_shape(int32_t rank, const int64_t *shape) {
  /* 20 digits and ", " for each extent. */
  const size_t size = (size_t)rank * 22 + 3;
  char *out = malloc(size);
  if (out == NULL)
    return NULL;
  size_t used = (size_t)snprintf(out, size, "[");
  for (int32_t i = 0; i < rank; ++i) {
    used += (size_t)snprintf(out + used, size - used, "%s%" PRId64, i == 0 ? "" : ", ", shape[i]);
  }
  snprintf(out + used, size - used, "]");
  return out;
}
