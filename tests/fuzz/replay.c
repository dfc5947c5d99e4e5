/* A main() for fuzz targets without libFuzzer.
 *
 *   PATH...                      runs the target on every file that the arguments name, on every
 * file of the folders among them, and on the empty input
 *   --random COUNT SEED [FIRST]  runs it on so many inputs drawn from a seed: many times as many a
 *                                second as libFuzzer, which looks where it has not been
 *
 * Input number n of a seed is always the same; where the target fails on it, its number is printed,
 * and `--random 1 SEED n` repeats it. */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/random.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static size_t runs;

static void run(const uint8_t *data, size_t size) {
  LLVMFuzzerTestOneInput(data, size);
  runs++;
}

/* Reads `size` bytes into a block of exactly that size, so that an overrun is seen. */
static bool replay_file(const char *path, size_t size) {
  FILE *file = fopen(path, "rb");
  uint8_t *data = malloc(size > 0 ? size : 1);
  const bool whole = file && data && fread(data, 1, size, file) == size;
  if (whole) {
    run(data, size);
  } else {
    fprintf(stderr, "%s: %s\n", path, strerror(errno));
  }
  free(data);
  if (file) {
    fclose(file);
  }
  return whole;
}

static bool replay_path(const char *path);

static bool replay_folder(const char *path) {
  struct dirent **entries = NULL;
  const int count = scandir(path, &entries, NULL, alphasort);
  bool whole = count >= 0;
  for (int i = 0; i < count; i++) {
    char child[4096];
    snprintf(child, sizeof child, "%s/%s", path, entries[i]->d_name);
    if (entries[i]->d_name[0] != '.') {
      whole = replay_path(child) && whole;
    }
    free(entries[i]);
  }
  free(entries);
  return whole;
}

/* A fuzzer that has no corpus yet runs on the empty input alone. */
static bool replay_path(const char *path) {
  struct stat status;
  if (stat(path, &status) != 0) {
    fprintf(stderr, "%s: %s\n", path, strerror(errno));
    return errno == ENOENT;
  }
  return S_ISDIR(status.st_mode) ? replay_folder(path) : replay_file(path, (size_t)status.st_size);
}

/* Random inputs. */

enum {
  RANDOM_LENGTH =
      192, /* bytes at most: sequences are short, so that there are many kinds of them */
  REPORT_EVERY = 1000000
};

static char on_failure[128]; /* what a signal's handler can't make */

/* The target has failed: says on what. */
static void report_input(int signal_number) {
  if (write(STDERR_FILENO, on_failure, sizeof on_failure) < 0)
    _exit(EXIT_FAILURE);
  signal(signal_number, SIG_DFL);
  raise(signal_number);
}

static size_t draw_input(uint64_t seed, uint64_t number, uint8_t out_data[RANDOM_LENGTH]) {
  uint64_t state = seed * UINT64_C(0x9e3779b97f4a7c15) + number;
  (void)quay_test_random(&state);
  const size_t size = 1 + quay_test_random(&state) % RANDOM_LENGTH;
  for (size_t i = 0; i < size; i++)
    out_data[i] = (uint8_t)(quay_test_random(&state) >> 24);
  return size;
}

static int run_random(int count, char **values) {
  if (count < 2 || count > 3) {
    fprintf(stderr, "usage: --random COUNT SEED [FIRST]\n");
    return 2;
  }
  const uint64_t inputs = strtoull(values[0], NULL, 10);
  const uint64_t first = count > 2 ? strtoull(values[2], NULL, 10) : 0;
  const uint64_t seed = strtoull(values[1], NULL, 10);
  signal(SIGABRT, report_input);
  signal(SIGSEGV, report_input);
  signal(SIGBUS, report_input);
  for (uint64_t number = first; number < first + inputs; number++) {
    uint8_t data[RANDOM_LENGTH];
    memset(on_failure, ' ', sizeof on_failure);
    snprintf(on_failure, sizeof on_failure, "failed on: --random 1 %" PRIu64 " %" PRIu64, seed,
             number);
    on_failure[strlen(on_failure)] = ' ';
    on_failure[sizeof on_failure - 1] = '\n';
    run(data, draw_input(seed, number, data));
    if (runs % REPORT_EVERY == 0) {
      printf("%zu inputs\n", runs);
      (void)fflush(stdout);
    }
  }
  printf("%zu random inputs of seed %" PRIu64 "\n", runs, seed);
  return EXIT_SUCCESS;
}

int main(int count, char **values) {
  if (count > 1 && strcmp(values[1], "--random") == 0)
    return run_random(count - 2, values + 2);
  bool whole = true;
  run((const uint8_t *)"", 0);
  for (int i = 1; i < count; i++) {
    whole = replay_path(values[i]) && whole;
  }
  printf("%zu inputs\n", runs);
  return whole ? EXIT_SUCCESS : EXIT_FAILURE;
}
