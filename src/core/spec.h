/* The grammar of specs: see quay_allocator_open(). Knows no layer or backend by itself. */
#ifndef QUAY_CORE_SPEC_H
#define QUAY_CORE_SPEC_H

#include <quay/backend.h>

#include "core/component.h"

typedef enum quay__spec_name_kind {
  QUAY__SPEC_UNKNOWN,
  QUAY__SPEC_LAYER,
  QUAY__SPEC_BACKEND,
} quay__spec_name_kind;

/* What a name stands for; called for every name that the parser meets. */
typedef quay__spec_name_kind (*quay__spec_classify)(void *user, const char *name);
/* Writes what is possible, for messages: "layers: track, fault; backends: cpu, mmap". */
typedef void (*quay__spec_describe)(void *user, char *out_text, size_t size);

/* A parsed spec: `count` parts, outermost first, the last one the backend's. One allocation. */
typedef struct quay__spec {
  size_t count;
  quay_spec_args *parts;
} quay__spec;

quay_status quay__spec_parse(const char *text, quay__spec_classify classify,
                             quay__spec_describe describe, void *user, quay__spec **out_spec);
void quay__spec_free(quay__spec *spec);

/* "8GiB", "4096", "1.5MB" is refused: a whole decimal number and a unit. False if `text` is not
 * that or overflows. Exported: the program uses it. */
QUAY__COMPONENT bool quay__parse_bytes(const char *text, uint64_t *out_bytes);
bool quay__parse_unsigned(const char *text, uint64_t *out_value);

/* Puts the spec that was asked for before the message of the thread's error, from deep within a
 * backend that knows nothing of it; the error names the backend then. Returns its status. */
quay_status quay__spec_name_error(const quay_spec_args *args);

/* Appends `value` to a spec under construction with commas and backslashes escaped. False if it
 * does not fit. */
bool quay__spec_append_escaped(char *text, size_t size, const char *value);

#endif
