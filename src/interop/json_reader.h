/* JSON without memory: text is checked once, strictly (RFC 8259), and read in place afterwards. So
 * memory that runs out can't be taken for a mistake in the text, and a header of any size costs no
 * tree. Knows nothing of safetensors. */
#ifndef QUAY_INTEROP_JSON_READER_H
#define QUAY_INTEROP_JSON_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Objects and arrays within each other. */
#define QUAY__JSON_DEPTH_MAX 64

typedef struct quay__json_problem {
  size_t position;  /* of the byte that is wrong */
  const char *text; /* static */
  bool is_utf8;     /* the bytes are no UTF-8 */
} quay__json_problem;

/* Whether the `size` bytes are one JSON value and white space. Stricter than JSON in what nobody
 * here could hold: NUL within a string, integers beyond int64_t, deep nesting. Keys may repeat. */
bool quay__json_check(const char *text, size_t size, quay__json_problem *out_problem);

/* The rest takes pointers to the first byte of a value or key within checked text. */

/* The first element or key of a container, and the one behind `value`; NULL if there is none. */
const char *quay__json_first(const char *container);
const char *quay__json_next(const char *value);

/* The value that belongs to a key. */
const char *quay__json_value_of(const char *key);

/* Writes a string's characters and a NUL to `out`, which has room for as many bytes as the string
 * takes in the text. Gives their number without the NUL. */
size_t quay__json_decode(const char *string, char *out);

/* False if the value is no integer: a fraction or an exponent makes it none. */
bool quay__json_integer(const char *value, int64_t *out_number);

/* Bytes of the well-formed UTF-8 character at `text`, of which `size` bytes are there; 0 if there
 * is none. */
size_t quay__utf8_character(const char *text, size_t size);

#endif
