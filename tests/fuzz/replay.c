/* A main() for fuzz targets without libFuzzer: runs the target on every file of the folders and on
 * every file that the arguments name, and on the empty input. */
#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

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

int main(int count, char **values) {
  bool whole = true;
  run((const uint8_t *)"", 0);
  for (int i = 1; i < count; i++) {
    whole = replay_path(values[i]) && whole;
  }
  printf("%zu inputs\n", runs);
  return whole ? EXIT_SUCCESS : EXIT_FAILURE;
}
