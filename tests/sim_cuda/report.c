/* Violations: kept, counted, and told at the end of the process. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sim.h"

enum {
  KEPT = 64
};

static struct {
  simcuda_violation kept[KEPT];
  size_t count;
} reports;

void sim_report(simcuda_violation_kind kind, const char *format, ...) {
  if (reports.count < KEPT) {
    simcuda_violation *const v = &reports.kept[reports.count];
    v->kind = kind;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(v->message, sizeof v->message, format, arguments);
    va_end(arguments);
  }
  reports.count++;
}

void sim_reports_clear(void) {
  reports.count = 0;
}

size_t simcuda_violations(simcuda_violation *out, size_t capacity) {
  sim_lock();
  const size_t kept = reports.count < KEPT ? reports.count : KEPT;
  const size_t copied = kept < capacity ? kept : capacity;
  if (copied > 0)
    memcpy(out, reports.kept, copied * sizeof *out);
  const size_t count = reports.count;
  sim_unlock();
  return count;
}

void simcuda_forget_violations(void) {
  sim_lock();
  sim_reports_clear();
  sim_unlock();
}

/* Appends what happened and what is left, a name and a number a line, to $SIMCUDA_REPORT. */
static void write_report(void) {
  const char *const path = getenv("SIMCUDA_REPORT");
  FILE *const file = path != NULL ? fopen(path, "a") : NULL;
  if (file == NULL)
    return;
  simcuda_census left;
  simcuda_count(&left);
  const struct {
    const char *name;
    uint64_t number;
  } lines[] = {
      {"calls", simcuda_calls(NULL)},  {"failed", simcuda_failed()},
      {"violations", reports.count},   {"device_bytes", left.device_bytes},
      {"host_bytes", left.host_bytes}, {"handles", left.handles},
      {"mappings", left.mappings},     {"reservations", left.reservations},
      {"streams", left.streams},       {"events", left.events},
      {"retains", left.retains},
  };
  for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
    fprintf(file, "%s %llu\n", lines[i].name, (unsigned long long)lines[i].number);
  fclose(file);
}

/* The library is never unloaded, so this is the end of the process. */
__attribute__((destructor)) static void tell_at_exit(void) {
  if (sim.process != 0 && sim.process != getpid())
    return;
  write_report();
  sim_lock();
  sim.exiting = true;
  const size_t kept = reports.count < KEPT ? reports.count : KEPT;
  for (size_t i = 0; i < kept; i++)
    fprintf(stderr, "simcuda: %s\n", reports.kept[i].message);
  const bool fatal = reports.count > 0 && sim.settings.strict;
  if (reports.count > 0)
    fprintf(stderr, "simcuda: %zu violations\n", reports.count);
  sim_unlock();
  if (fatal) {
    fflush(NULL);
    _exit(SIMCUDA_STRICT_EXIT);
  }
}
