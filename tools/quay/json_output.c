/* JSON on stdout. */
#include "json_output.h"

#include <stdio.h>

#include "text.h"

exit_status print_json(json_t *root) {
  if (root == NULL)
    return fail_memory();
  const int result = json_dumpf(root, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
  json_decref(root);
  if (result == 0)
    putchar('\n');
  /* A failed dump is a full disk, which finish_output() reports, or lost memory. */
  if (result != 0 && ferror(stdout) == 0)
    return fail_memory();
  return finish_output();
}

json_t *json_text(const char *text) {
  json_t *string = json_string(text);
  if (string != NULL)
    return string;
  char *printable = text_printable(text);
  if (printable == NULL)
    return NULL;
  string = json_string(printable);
  free(printable);
  return string;
}

json_t *json_unsigned(uint64_t value) {
  return json_integer(value > INT64_MAX ? INT64_MAX : (json_int_t)value);
}
