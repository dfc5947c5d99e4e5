/* JSON on stdout. */
#ifndef QUAY_TOOLS_JSON_OUTPUT_H
#define QUAY_TOOLS_JSON_OUTPUT_H

#include <jansson.h>

#include "program.h"

/* Prints `root` and gives its reference back. NULL counts as lost memory. */
exit_status print_json(json_t *root);

/* A string of any bytes: what is no UTF-8 is escaped. NULL if there is no memory. */
json_t *json_text(const char *text);

/* An unsigned number; one above 2^63-1, which JSON readers seldom take, becomes 2^63-1. */
json_t *json_unsigned(uint64_t value);

#endif
