/* A runner for the tests of the sanitizer builds: each test runs in a forked child that ends
 * through exit(), so that a sanitizer's finding, a leak, a crash or a hang fails that test alone.
 * No heap memory is used here, so that leak reports name the test's own. */
#include "asan_fork.h"

#include <criterion/criterion.h>

#include <errno.h>
#include <fnmatch.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Seconds; generous, since sanitizers slow a test down several times. */
#define DEFAULT_TIMEOUT 120.0

enum phase {
  PHASE_INIT,
  PHASE_TEST,
  PHASE_FINI,
  PHASE_DONE
};

/* What the child tells the runner, in memory that both see. */
struct report {
  atomic_int failures;
  atomic_int phase;
  atomic_bool skipped;
  char reason[512];
};

struct totals {
  int passed;
  int failed;
  int skipped;
};

static struct plain_runner_test *first_test;
static struct plain_runner_test **last_test = &first_test;
static struct plain_runner_suite *first_suite;
static struct report *report;
static sigjmp_buf leave_phase;
static pid_t test_thread;

void plain_runner_add_test(struct plain_runner_test *test) {
  *last_test = test;
  last_test = &test->next;
}

void plain_runner_add_suite(struct plain_runner_suite *suite) {
  suite->next = first_suite;
  first_suite = suite;
}

/* Only the thread that runs the test can jump back to the runner. */
static _Noreturn void stop_phase(void) {
  if (gettid() != test_thread) {
    fflush(NULL);
    _exit(EXIT_FAILURE);
  }
  siglongjmp(leave_phase, 1);
}

void plain_runner_fail(enum plain_runner_severity severity, const char *file, int line,
                       const char *what, const char *format, ...) {
  char message[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  fprintf(stderr, "%s:%d: check failed: %s%s%s\n", file, line, what, message[0] ? ": " : "",
          message);
  atomic_fetch_add(&report->failures, 1);
  if (severity == PLAIN_RUNNER_ASSERT) {
    stop_phase();
  }
}

void plain_runner_skip(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(report->reason, sizeof report->reason, format, arguments);
  va_end(arguments);
  atomic_store(&report->skipped, true);
  stop_phase();
}

void plain_runner_log(const char *level, const char *format, ...) {
  char message[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  fprintf(stderr, "%s: %s\n", level, message);
}

static const struct plain_runner_suite *find_suite(const char *name) {
  for (const struct plain_runner_suite *suite = first_suite; suite; suite = suite->next) {
    if (strcmp(suite->name, name) == 0) {
      return suite;
    }
  }
  return NULL;
}

/* A test's own options win over those of its suite. */
static struct plain_runner_options effective_options(const struct plain_runner_test *test) {
  struct plain_runner_options options = test->options;
  const struct plain_runner_suite *suite = find_suite(test->suite);
  if (suite) {
    options.init = options.init ? options.init : suite->options.init;
    options.fini = options.fini ? options.fini : suite->options.fini;
    options.signal = options.signal ? options.signal : suite->options.signal;
    options.exit_code = options.exit_code ? options.exit_code : suite->options.exit_code;
    options.timeout = options.timeout > 0 ? options.timeout : suite->options.timeout;
    options.disabled = options.disabled || suite->options.disabled;
  }
  options.timeout = options.timeout > 0 ? options.timeout : DEFAULT_TIMEOUT;
  return options;
}

/* False when a fatal check or a skip left the function early. */
static bool run_phase(enum phase phase, plain_runner_function function) {
  atomic_store(&report->phase, phase);
  if (sigsetjmp(leave_phase, 1) != 0) {
    return false;
  }
  if (function) {
    function();
  }
  return true;
}

/* SIGALRM's default action ends the child even when it hangs inside a sanitizer's runtime. */
static void start_timer(double seconds) {
  const struct itimerval timer = {
      .it_value = {.tv_sec = (time_t)seconds,
                   .tv_usec = (suseconds_t)((seconds - (double)(time_t)seconds) * 1e6)}};
  setitimer(ITIMER_REAL, &timer, NULL);
}

static void run_phases(const struct plain_runner_test *test,
                       const struct plain_runner_options *options) {
  test_thread = gettid();
  if (run_phase(PHASE_INIT, options->init)) {
    run_phase(PHASE_TEST, test->function);
  }
  run_phase(PHASE_FINI, options->fini);
  atomic_store(&report->phase, PHASE_DONE);
}

static _Noreturn void run_child(const struct plain_runner_test *test,
                                const struct plain_runner_options *options) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  setpgid(0, 0);
  start_timer(options->timeout);
  run_phases(test, options);
  exit(atomic_load(&report->failures) > 0 ? EXIT_FAILURE : EXIT_SUCCESS);
}

/* NULL when the child ended as its test wants; else why not. */
static const char *judge(int status, const struct plain_runner_options *options) {
  static char why[128];
  if (WIFSIGNALED(status)) {
    if (WTERMSIG(status) == options->signal) {
      return NULL;
    }
    if (WTERMSIG(status) == SIGALRM) {
      snprintf(why, sizeof why, "no end after %.1f s", options->timeout);
      return why;
    }
    snprintf(why, sizeof why, "ended by signal %d (%s)", WTERMSIG(status),
             strsignal(WTERMSIG(status)));
    return why;
  }
  if (atomic_load(&report->failures) > 0) {
    return "a check failed";
  }
  if (options->signal != 0) {
    snprintf(why, sizeof why, "signal %d was expected and did not come", options->signal);
    return why;
  }
  if (WEXITSTATUS(status) != options->exit_code) {
    snprintf(why, sizeof why, "exit status %d, expected %d%s", WEXITSTATUS(status),
             options->exit_code,
             atomic_load(&report->phase) == PHASE_DONE ? " (a sanitizer's finding at exit)" : "");
    return why;
  }
  if (options->exit_code == 0 && atomic_load(&report->phase) != PHASE_DONE) {
    return "the test called exit()";
  }
  return NULL;
}

static int wait_for(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) {
      perror("waitpid");
      exit(EXIT_FAILURE);
    }
  }
  return status;
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void run_test(const struct plain_runner_test *test, struct totals *totals) {
  const struct plain_runner_options options = effective_options(test);
  if (options.disabled) {
    printf("[skip] %s::%s: disabled\n", test->suite, test->name);
    totals->skipped++;
    return;
  }
  memset(report, 0, sizeof *report);
  const double start = now();
  fflush(NULL);
  const pid_t child = fork();
  if (child < 0) {
    perror("fork");
    exit(EXIT_FAILURE);
  }
  if (child == 0) {
    run_child(test, &options);
  }
  const int status = wait_for(child);
  /* What the test forked and left behind would hold the output open for ever. */
  kill(-child, SIGKILL);
  const char *why = judge(status, &options);
  if (why) {
    printf("[FAIL] %s::%s: %s (%.2f s)\n", test->suite, test->name, why, now() - start);
    totals->failed++;
  } else if (atomic_load(&report->skipped)) {
    printf("[skip] %s::%s: %s\n", test->suite, test->name, report->reason);
    totals->skipped++;
  } else {
    printf("[PASS] %s::%s (%.2f s)\n", test->suite, test->name, now() - start);
    totals->passed++;
  }
}

/* Faster, and all that a debugger or another tool has to follow; a crash ends the others, too. */
static void run_in_this_process(const struct plain_runner_test *test, struct totals *totals) {
  const struct plain_runner_options options = effective_options(test);
  memset(report, 0, sizeof *report);
  run_phases(test, &options);
  if (atomic_load(&report->failures) > 0) {
    printf("[FAIL] %s::%s: a check failed\n", test->suite, test->name);
    totals->failed++;
  } else if (atomic_load(&report->skipped)) {
    printf("[skip] %s::%s: %s\n", test->suite, test->name, report->reason);
    totals->skipped++;
  } else {
    printf("[PASS] %s::%s\n", test->suite, test->name);
    totals->passed++;
  }
  fflush(stdout);
}

static bool selected(const struct plain_runner_test *test, const char *pattern) {
  char full[512];
  snprintf(full, sizeof full, "%s/%s", test->suite, test->name);
  return !pattern || fnmatch(pattern, full, 0) == 0;
}

static int usage(FILE *out, int status) {
  fputs("Usage: TEST [--list] [--filter SUITE/NAME] [--no-fork]\n"
        "  --list     print the tests and stop\n"
        "  --filter   run the tests whose suite/name matches the shell pattern\n"
        "  --no-fork  run the selected tests in this process, for debuggers and tools\n",
        out);
  return status;
}

struct arguments {
  const char *pattern;
  bool list;
  bool no_fork;
};

/* Criterion's -j, --verbose and the like are accepted, since scripts pass them to both runners. */
static int parse(int count, char **values, struct arguments *arguments) {
  for (int i = 1; i < count; i++) {
    if (strcmp(values[i], "--help") == 0) {
      exit(usage(stdout, EXIT_SUCCESS));
    } else if (strcmp(values[i], "--list") == 0) {
      arguments->list = true;
    } else if (strcmp(values[i], "--no-fork") == 0) {
      arguments->no_fork = true;
    } else if (strncmp(values[i], "--filter=", 9) == 0) {
      arguments->pattern = values[i] + 9;
    } else if (strcmp(values[i], "--filter") == 0 && i + 1 < count) {
      arguments->pattern = values[++i];
    } else if (strncmp(values[i], "-j", 2) != 0 && strncmp(values[i], "--verbose", 9) != 0) {
      fprintf(stderr, "unknown argument '%s'\n", values[i]);
      return usage(stderr, 2);
    }
  }
  return EXIT_SUCCESS;
}

int main(int count, char **values) {
  struct arguments arguments = {0};
  const int parsed = parse(count, values, &arguments);
  if (parsed != EXIT_SUCCESS) {
    return parsed;
  }
  report = mmap(NULL, sizeof *report, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (report == MAP_FAILED) {
    perror("mmap");
    return EXIT_FAILURE;
  }
  plain_runner_prepare_for_forks();
  struct totals totals = {0};
  for (const struct plain_runner_test *test = first_test; test; test = test->next) {
    if (!selected(test, arguments.pattern)) {
      continue;
    }
    if (arguments.list) {
      printf("%s/%s\n", test->suite, test->name);
    } else if (arguments.no_fork) {
      run_in_this_process(test, &totals);
    } else {
      run_test(test, &totals);
    }
  }
  if (arguments.list) {
    return EXIT_SUCCESS;
  }
  printf("%d passed, %d failed, %d skipped\n", totals.passed, totals.failed, totals.skipped);
  return totals.failed > 0 || totals.passed + totals.skipped == 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
