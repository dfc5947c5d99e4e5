/* bench_cuda: Quay's calls beside the driver's own of the same meaning, in turns within one run.
 *
 *   bench_cuda [--only GROUP[,GROUP]] [--rounds N] [--mib N] [--pairs N] [--json FILE]
 *              [--directory DIR]
 *
 * --pairs: how often a round of `alloc` has a pool's hit in a row, before the driver has its turn.
 * Without --only all groups but `random`, which takes most of a minute and has no floors.
 *
 * Prints a row for each case: medians, the ratio to the raw call, and whether the floor holds. Ends
 * with status 1 if a group failed, else with 3 if a floor was missed. QUAY_BENCH_SMOKE=1: small
 * sizes, one round, no verdict. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench_cuda.h"

bench_settings settings = {.rounds = 11, .big_bytes = 2 * GIB, .pairs = 500, .directory = "/tmp"};
const raw_cuda *cu;
CUcontext contexts[2];

static const struct {
  const char *name;
  void (*run)(void);
  bool named_only; /* not without --only */
} groups[] = {
    {"small", bench_small, false},         {"calls", bench_calls, false},
    {"alloc", bench_alloc, false},         {"device", bench_device, false},
    {"peer", bench_peer, false},           {"transfer", bench_transfer, false},
    {"random", bench_random_shapes, true},
};
enum {
  GROUPS = sizeof groups / sizeof groups[0]
};

_Noreturn void bench_failed(const char *what) {
  (void)fflush(stdout);
  fprintf(stderr, "bench_cuda: %s\n", what);
  _exit(1);
}

_Noreturn void bench_quay_failed(const char *call) {
  (void)fflush(stdout);
  fprintf(stderr, "bench_cuda: %s: %s\n", call, quay_last_error()->message);
  _exit(1);
}

_Noreturn void bench_cuda_failed(const char *call, CUresult result) {
  (void)fflush(stdout);
  fprintf(stderr, "bench_cuda: %s: %s\n", call, raw_cuda_name(result));
  _exit(1);
}

static int usage(void) {
  fputs("usage: bench_cuda [--only GROUP[,GROUP]] [--rounds N] [--mib N] [--pairs N] "
        "[--json FILE] [--directory DIR]\ngroups:",
        stderr);
  for (int i = 0; i < GROUPS; i++)
    fprintf(stderr, " %s", groups[i].name);
  fputs("\n", stderr);
  return 2;
}

static bool named_in(const char *list, const char *name) {
  const size_t length = strlen(name);
  for (const char *at = list; at != NULL; at = strchr(at, ',')) {
    at += *at == ',';
    if (strncmp(at, name, length) == 0 && (at[length] == ',' || at[length] == '\0'))
      return true;
  }
  return false;
}

static bool parse(int argc, char **argv, const char **out_only) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const char *const value = argv[i + 1];
    if (strcmp(argv[i], "--only") == 0) {
      *out_only = value;
    } else if (strcmp(argv[i], "--rounds") == 0) {
      settings.rounds = (unsigned)atoi(value);
    } else if (strcmp(argv[i], "--mib") == 0) {
      settings.big_bytes = (uint64_t)atoi(value) * MIB;
    } else if (strcmp(argv[i], "--pairs") == 0) {
      settings.pairs = (unsigned)atoi(value);
    } else if (strcmp(argv[i], "--json") == 0) {
      settings.json = value;
    } else if (strcmp(argv[i], "--directory") == 0) {
      settings.directory = value;
    } else {
      return false;
    }
  }
  return argc % 2 == 1 && settings.rounds >= 1 && settings.rounds <= 101 &&
         settings.big_bytes != 0 && settings.pairs >= 1;
}

/* In the group's own process. */
static void start(void) {
  char reason[512];
  cu = raw_cuda_start(reason, sizeof reason);
  if (cu == NULL)
    bench_failed(reason);
  for (int i = 0; i < 2 && i < cu->devices; i++) {
    CUdevice device;
    CU_MUST(cu->cuDeviceGet(&device, i));
    CU_MUST(cu->cuDevicePrimaryCtxRetain(&contexts[i], device));
  }
  CU_MUST(cu->cuCtxSetCurrent(contexts[0]));
}

/* What was measured on. */
static void describe(void) {
  start();
  int version = 0;
  char name[128] = "";
  CU_MUST(cu->cuDriverGetVersion(&version));
  CU_MUST(cu->cuDeviceGetName(name, sizeof name, 0));
  printf("%d x %s, CUDA driver %d.%d%s, %ld processors, %u rounds in turns, medians\n", cu->devices,
         name, version / 1000, version % 1000 / 10, cu->simulated ? " (simulated: no figures)" : "",
         sysconf(_SC_NPROCESSORS_ONLN), settings.rounds);
  (void)fflush(stdout);
}

static bool run_apart(void (*run)(void), const char *name) {
  int status = 1;
  (void)fflush(NULL);
  const pid_t child = fork();
  if (child == 0) {
    if (run != describe)
      start();
    run();
    (void)fflush(stdout);
    exit(0);
  }
  if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
    printf("%-9s FAILED (status 0x%x)\n", name, (unsigned)status);
    return false;
  }
  return true;
}

/* Makes an array of the rows; false if one of them missed its floor. */
static bool finish_json(void) {
  static char row[4096];
  bool good = true;
  FILE *const rows = fopen(settings.json, "r");
  char path[4096];
  snprintf(path, sizeof path, "%s.part", settings.json);
  FILE *const out = fopen(path, "w");
  if (rows == NULL || out == NULL)
    return false;
  bool first = true;
  fputs("[\n", out);
  while (fgets(row, sizeof row, rows) != NULL) {
    char *const comma = strrchr(row, ',');
    if (comma != NULL)
      *comma = '\0';
    fprintf(out, "%s%s", first ? "" : ",\n", row);
    first = false;
    good = good && strstr(row, "\"good\": false") == NULL;
  }
  fputs("\n]\n", out);
  (void)fclose(rows);
  return fclose(out) == 0 && rename(path, settings.json) == 0 && good;
}

int main(int argc, char **argv) {
  static char own_json[64];
  const char *only = NULL;
  if (!parse(argc, argv, &only))
    return usage();
  settings.smoke = getenv("QUAY_BENCH_SMOKE") != NULL;
  if (settings.smoke) {
    settings.rounds = 1;
    settings.big_bytes = 6 * MIB + 4096;
  }
  /* The figures are for at most eight threads. */
  (void)setenv("QUAY_COPY_THREADS", "8", 0);
  const bool keep = settings.json != NULL;
  if (!keep) {
    snprintf(own_json, sizeof own_json, "/tmp/bench_cuda.%ld.json", (long)getpid());
    settings.json = own_json;
  }
  (void)remove(settings.json);
  bool good = run_apart(describe, "devices");
  for (int i = 0; good && i < GROUPS; i++) {
    if (only != NULL ? named_in(only, groups[i].name) : !groups[i].named_only || settings.smoke)
      good = run_apart(groups[i].run, groups[i].name) && good;
  }
  const bool floors = finish_json();
  if (!keep)
    (void)remove(settings.json);
  printf("%s\n", !good                        ? "a group failed"
                 : !floors && !settings.smoke ? "a floor was missed"
                                              : "all good");
  return !good ? 1 : floors || settings.smoke ? 0 : 3;
}
