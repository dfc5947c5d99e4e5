/* The program quay: picks the subcommand. Each has a file of its own. */
#include <fcntl.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "program.h"

static const subcommand *const commands[] = {&command_devices, &command_load, &command_copy,
                                             &command_replay, &command_matrix};

#define COMMAND_COUNT (sizeof commands / sizeof commands[0])

/* A file that the program opens must not become its standard output because that was closed. What
 * is put in its place here refuses to be written to, so that lost output is an error. */
static bool open_standard_files(void) {
  static const int flags[] = {O_RDONLY, O_RDONLY, O_RDWR};
  for (int file = STDIN_FILENO; file <= STDERR_FILENO; ++file) {
    if (fcntl(file, F_GETFD) == -1 && open("/dev/null", flags[file]) != file)
      return false;
  }
  return true;
}

static void print_log(void *user, quay_log_level level, const char *message) {
  (void)user;
  (void)level;
  (void)fail("%s", message);
}

static exit_status print_program_help(void) {
  puts("usage: quay COMMAND [ARGUMENTS]\n\n"
       "Moves tensors and files between memory of every kind.\n");
  for (size_t i = 0; i < COMMAND_COUNT; ++i) {
    printf("  %-8s  %s\n", commands[i]->name, commands[i]->summary);
  }
  puts(
      "\n  -h, --help     print this help; quay COMMAND --help for a command's\n"
      "  -V, --version  print the version\n\n"
      "SPEC names where memory comes from: [LAYER[:ARGUMENTS]+]...BACKEND[:ARGUMENTS], such as\n"
      "cpu, cpu:align=4096, mmap:/tmp, cuda:0 or track+cpu. The environment variable QUAY_BACKEND\n"
      "holds the default one. Ends with status 0, 1 if something failed, 2 for wrong usage.");
  return finish_output();
}

static exit_status print_version(void) {
  printf("quay %s\n", quay_version_string());
  return finish_output();
}

static const subcommand *find_command(const char *name) {
  for (size_t i = 0; i < COMMAND_COUNT; ++i) {
    if (strcmp(commands[i]->name, name) == 0)
      return commands[i];
  }
  return NULL;
}

static exit_status run_command(int argc, char **argv) {
  static const subcommand program = {
      .name = "quay", .usage = "quay devices|load|copy|replay|matrix [ARGUMENTS], quay --help"};
  if (argc < 2)
    return fail_usage(&program, "no command is named");
  if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)
    return print_program_help();
  if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0)
    return print_version();
  const subcommand *command = find_command(argv[1]);
  if (command == NULL) {
    return fail_usage(&program, "unknown %s '%s'", argv[1][0] == '-' ? "option" : "command",
                      argv[1]);
  }
  return command->run(argc - 1, argv + 1);
}

int main(int argc, char **argv) {
  if (!open_standard_files())
    return EXIT_FAILED;
  /* For the width of characters alone; numbers are written the same everywhere. */
  setlocale(LC_CTYPE, "C.UTF-8");
  /* A reader that went away, and a file that outgrew its limit, are failed writes like any other:
   * what has been begun is taken back. */
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);
  quay_log_set(print_log, NULL, QUAY_LOG_ERROR);
  exit_status status = run_command(argc, argv);
  if (quay_shutdown() != QUAY_OK && status == EXIT_DONE)
    status = fail_quay();
  return (int)status;
}
