/* Text for people: names that may hold anything, sizes, shapes. */
#ifndef QUAY_TOOLS_TEXT_H
#define QUAY_TOOLS_TEXT_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/* A copy of `text` that is valid UTF-8 and changes nothing on a terminal: control characters, marks
 * of writing direction, what can't be seen and bytes that are no UTF-8 are written as \n, \t, \xNN
 * and \u{NNNN}. NULL if there is no memory. Freed by the caller. */
char *text_printable(const char *text);

/* The same into `size` bytes, cut to what fits. */
void text_print(const char *text, char *out, size_t size);

/* Columns that printable UTF-8 takes on a terminal. */
size_t text_width(const char *text);

/* "1.5 GiB", "312 bytes". */
#define TEXT_SIZE_MAX 32
void text_of_size(uint64_t bytes, char out[TEXT_SIZE_MAX]);

/* "[1000, 64]". NULL if there is no memory. Freed by the caller. */
char *text_of_shape(int32_t rank, const int64_t *shape);

#endif
