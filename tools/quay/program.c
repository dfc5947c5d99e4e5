/* Messages, options and time, for all subcommands. */
#include "program.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "text.h"

static void print_line(const char *format, va_list arguments) QUAY_PRINTF(1, 0);

/* Messages quote names and paths, which may hold anything: still one line that is safe to show. */
static void print_line(const char *format, va_list arguments) {
  char line[QUAY_ERROR_MESSAGE_SIZE + 512], printable[2 * sizeof line];
  vsnprintf(line, sizeof line, format, arguments);
  text_print(line, printable, sizeof printable);
  fprintf(stderr, "quay: %s\n", printable);
}

exit_status fail(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  print_line(format, arguments);
  va_end(arguments);
  return EXIT_FAILED;
}

exit_status fail_quay(void) {
  return fail("%s", quay_last_error()->message);
}

exit_status fail_memory(void) {
  return fail("out of memory");
}

exit_status fail_usage(const subcommand *command, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  print_line(format, arguments);
  va_end(arguments);
  fprintf(stderr, "usage: %s\n", command->usage);
  return EXIT_USAGE;
}

int next_option(const subcommand *command, int argc, char **argv, const struct option *options) {
  opterr = 0;
  const int value = getopt_long(argc, argv, ":h", options, NULL);
  if (value != '?' && value != ':')
    return value == -1 ? OPTION_END : value;
  /* For a long option optind is past it already. */
  const char *text = argv[optind - 1];
  if (value == ':') {
    fail_usage(command, "%s: option '%s' needs a value", command->name, text);
  } else if (optopt != 0 && strncmp(text, "--", 2) == 0) {
    fail_usage(command, "%s: option '%s' takes no value", command->name, text);
  } else if (optopt != 0) {
    fail_usage(command, "%s: unknown option '-%c'", command->name, optopt);
  } else {
    fail_usage(command, "%s: unknown option '%s'", command->name, text);
  }
  return OPTION_BAD;
}

exit_status print_help(const subcommand *command) {
  printf("usage: %s\n\n%s\n\n%s", command->usage, command->summary, command->details);
  return finish_output();
}

exit_status finish_output(void) {
  const bool failed = ferror(stdout) != 0;
  if (fflush(stdout) == 0 && !failed)
    return EXIT_DONE;
  return fail("cannot write the output: %s", strerror(errno));
}

double now_seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}
