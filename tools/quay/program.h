/* What all subcommands of the program share: their description, options, messages and exit status.
 */
#ifndef QUAY_TOOLS_PROGRAM_H
#define QUAY_TOOLS_PROGRAM_H

#include <getopt.h>
#include <quay/quay.h>
#include <stdbool.h>

typedef enum exit_status {
  EXIT_DONE = 0,
  EXIT_FAILED = 1, /* one line on stderr says why */
  EXIT_USAGE = 2,
} exit_status;

typedef struct subcommand {
  const char *name;
  const char *summary; /* one line, for the list of commands */
  const char *usage;   /* "quay load FILE [--to SPEC]" */
  const char *details; /* options, and what is printed */
  /* argv[0] is the command's name. */
  exit_status (*run)(int argc, char **argv);
} subcommand;

extern const subcommand command_devices;
extern const subcommand command_load;
extern const subcommand command_copy;
extern const subcommand command_replay;
extern const subcommand command_matrix;

/* Prints one line "quay: ..." on stderr. Gives EXIT_FAILED. */
exit_status fail(const char *format, ...) QUAY_PRINTF(1, 2);

/* The same with the message of quay_last_error(). */
exit_status fail_quay(void);

/* The same for memory of the program's own. */
exit_status fail_memory(void);

/* Prints a line on what is wrong with the arguments, and the usage. Gives EXIT_USAGE. */
exit_status fail_usage(const subcommand *command, const char *format, ...) QUAY_PRINTF(2, 3);

/* Values of options that more than one command has; single letters are free for the rest. */
typedef enum option_value {
  OPTION_END = -1, /* no more options: optind is the first operand */
  OPTION_BAD = -2, /* reported: end with EXIT_USAGE */
  OPTION_HELP = 'h',
} option_value;

/* The next option's value as in `options`, which end with an all-zero one and hold "help". */
int next_option(const subcommand *command, int argc, char **argv, const struct option *options);

/* Prints the command's help on stdout. */
exit_status print_help(const subcommand *command);

/* Flushes stdout and checks that all of it was written. Says nothing of a reader that went away. */
exit_status finish_output(void);

/* Seconds of a clock that never goes back. */
double now_seconds(void);

#endif
