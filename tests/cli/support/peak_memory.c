/* Runs a program and writes its peak resident memory, in KiB, to a file:
 *   peak_memory FILE PROGRAM [ARGUMENTS]
 * Its own children only start from a process as small as this one: Linux counts what a process had
 * before exec(2) towards its peak. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv) {
  if (argc < 3)
    return 125;
  const pid_t child = fork();
  if (child < 0)
    return 125;
  if (child == 0) {
    execv(argv[2], argv + 2);
    _exit(127);
  }
  int status = 0;
  struct rusage usage;
  if (wait4(child, &status, 0, &usage) != child)
    return 125;
  FILE *file = fopen(argv[1], "w");
  if (file == NULL)
    return 125;
  fprintf(file, "%ld\n", usage.ru_maxrss);
  if (fclose(file) != 0)
    return 125;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 126;
}
