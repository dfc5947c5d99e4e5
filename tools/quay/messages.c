/* Messages on stderr, for all subcommands. */
#include <stdarg.h>
#include <stdio.h>

#include "program.h"
#include "text.h"

/* A message of the library, and some more. */
#define LINE_MAX_SIZE (QUAY_ERROR_MESSAGE_SIZE + 512)

/* Messages quote names and paths, which may hold anything: still one line that is safe to show. */
static void print_line(const char *line) {
  char printable[2 * LINE_MAX_SIZE];
  text_print(line, printable, sizeof printable);
  fprintf(stderr, "quay: %s\n", printable);
}

exit_status fail(const char *format, ...) {
  char line[LINE_MAX_SIZE];
  va_list arguments;
  va_start(arguments, format);
  /* clang-tidy 14 overlooks va_start here. NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized) */
  vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  print_line(line);
  return EXIT_FAILED;
}

exit_status fail_quay(void) {
  print_line(quay_last_error()->message);
  return EXIT_FAILED;
}

exit_status fail_memory(void) {
  print_line("out of memory");
  return EXIT_FAILED;
}

exit_status fail_usage(const subcommand *command, const char *format, ...) {
  char line[LINE_MAX_SIZE];
  va_list arguments;
  va_start(arguments, format);
  /* clang-tidy 14 overlooks va_start here. NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized) */
  vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  print_line(line);
  fprintf(stderr, "usage: %s\n", command->usage);
  return EXIT_USAGE;
}
