/* Options, output and time, for all subcommands. Messages are in messages.c. */
#include "program.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

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
  /* A reader that has seen enough, such as head(1), knows that by itself. */
  if (errno == EPIPE)
    return EXIT_FAILED;
  return fail("cannot write the output: %s", strerror(errno));
}

double now_seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}
