/* How the driver behaves: the environment, and a new driver in the same process. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "settings.h"

static uint64_t number(const char *name, uint64_t fallback) {
  const char *const text = getenv(name);
  return text != NULL && *text != '\0' ? strtoull(text, NULL, 0) : fallback;
}

static bool says(const char *name, const char *value) {
  const char *const text = getenv(name);
  return text != NULL && strcmp(text, value) == 0;
}

static void read_mode(sim_settings *s) {
  static const struct {
    const char *name;
    CUresult init;
  } modes[] = {
      {"ok", CUDA_SUCCESS},
      {"no_device", CUDA_ERROR_NO_DEVICE},
      {"uninitialized", CUDA_ERROR_NOT_INITIALIZED},
      {"stub", CUDA_ERROR_STUB_LIBRARY},
      {"mismatch", CUDA_ERROR_SYSTEM_DRIVER_MISMATCH},
      {"not_permitted", CUDA_ERROR_NOT_PERMITTED},
      {"unknown", CUDA_ERROR_UNKNOWN},
  };
  for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
    if (says("SIMCUDA_MODE", modes[i].name))
      s->init = modes[i].init;
  }
  s->stub = says("SIMCUDA_MODE", "stub");
  s->old = says("SIMCUDA_MODE", "old");
  if (s->old)
    s->driver = 10020;
  if (says("SIMCUDA_MODE", "no_devices"))
    s->devices = 0;
}

static void read_peers(sim_settings *s) {
  const char *const text = getenv("SIMCUDA_PEERS");
  for (int a = 0; a < SIM_MAX_DEVICES; a++)
    s->peers[a] = text == NULL ? ~(1u << a) : 0;
  if (text == NULL)
    return;
  for (const char *c = text; c[0] != '\0' && c[1] != '\0'; c++) {
    const int a = c[0] - '0';
    const int b = c[1] - '0';
    if (a < 0 || b < 0 || a >= SIM_MAX_DEVICES || b >= SIM_MAX_DEVICES || a == b)
      continue;
    s->peers[a] |= 1u << b;
    s->peers[b] |= 1u << a;
    c++;
  }
}

/* "n", "name:n", "n:code", "name:n:code" */
static void read_failure(void) {
  const char *text = getenv("SIMCUDA_FAIL");
  if (text == NULL || *text == '\0')
    return;
  char name[64] = "";
  if (!isdigit((unsigned char)*text)) {
    const size_t length = strcspn(text, ":");
    if (length >= sizeof name || text[length] == '\0')
      return;
    memcpy(name, text, length);
    text += length + 1;
  }
  char *end;
  const uint64_t n = strtoull(text, &end, 10);
  const int code = *end == ':' ? atoi(end + 1) : CUDA_ERROR_UNKNOWN;
  sim_fail(*name != '\0' ? name : NULL, n, code);
}

void sim_configure(void) {
  sim_settings s = {
      .schedule = says("SIMCUDA_SCHEDULE", "manual") ? SIMCUDA_MANUAL : SIMCUDA_THREADS,
      .devices = (int)number("SIMCUDA_DEVICES", 2),
      .memory = number("SIMCUDA_MEMORY", (uint64_t)8 << 30),
      .driver = (int)number("SIMCUDA_DRIVER", 13000),
      .managed = number("SIMCUDA_MANAGED", 1) != 0,
      .vmm = number("SIMCUDA_VMM", 1) != 0,
      .pools = number("SIMCUDA_POOLS", 1) != 0,
      .nodes = number("SIMCUDA_NODES", 0) != 0,
      .absent_is_success = says("SIMCUDA_ABSENT", "success"),
      .missing = getenv("SIMCUDA_MISSING"),
      .apart = says("SIMCUDA_HOST_THREADS", "apart"),
      .seed = number("SIMCUDA_SEED", 1),
      .eager = (unsigned)number("SIMCUDA_EAGER", 0),
      .delay = (unsigned)number("SIMCUDA_DELAY", 100),
      .strict = number("SIMCUDA_STRICT", 0) != 0,
      .elsewhere = number("SIMCUDA_RESIDENT", 1) == 0,
  };
  if (s.devices > SIM_MAX_DEVICES)
    s.devices = SIM_MAX_DEVICES;
  read_mode(&s);
  read_peers(&s);
  sim.settings = s;
  sim.random = s.seed;
  sim.configured = true;
  read_failure();
}

void simcuda_reset(void) {
  sim_lock();
  for (unsigned i = 0; i < SIM_GATES; i++)
    sim.gates[i] = true;
  sim_streams_clear();
  sim_captures_clear();
  sim_events_clear();
  sim_semaphores_clear();
  sim_modules_clear();
  sim_ranges_clear();
  sim_handles_clear();
  sim_pools_clear();
  sim_contexts_clear();
  sim_reports_clear();
  sim_calls_clear();
  for (unsigned i = 0; i < SIM_GATES; i++)
    sim.gates[i] = false;
  for (unsigned i = 0; i < SIM_MAX_DEVICES; i++)
    sim.used[i] = 0;
  sim.sticky = CUDA_SUCCESS;
  sim.initialised = false;
  sim.process = 0;
  sim.generation++;
  sim_configure();
  sim_unlock();
}

void simcuda_count(simcuda_census *out) {
  *out = (simcuda_census){.streams = 0};
  sim_lock();
  sim_event_counts(out);
  sim_semaphore_counts(out);
  sim_pool_counts(out);
  sim_handle_counts(out);
  sim_module_counts(out);
  sim_context_counts(out);
  sim_stream_counts(out);
  for (int i = 0; i < SIM_MAX_DEVICES; i++)
    out->device_bytes += sim.used[i];
  for (size_t i = 0; i < sim_range_count(); i++) {
    const sim_range *const range = sim_range_get(i);
    const bool host =
        range->kind == SIM_PINNED || range->kind == SIM_REGISTERED || range->kind == SIM_MANAGED;
    out->host_bytes += host ? range->end - range->begin : 0;
    out->mappings += range->kind == SIM_MAPPED;
    out->allocations += range->kind != SIM_MAPPED;
  }
  sim_unlock();
}

void simcuda_gate(unsigned gate, bool open) {
  sim_lock();
  sim.gates[gate % SIM_GATES] = open;
  pthread_cond_broadcast(&sim.changed);
  sim_unlock();
}

void simcuda_lose(int code) {
  sim_lock();
  sim.sticky = (CUresult)code;
  pthread_cond_broadcast(&sim.changed);
  sim_unlock();
}
