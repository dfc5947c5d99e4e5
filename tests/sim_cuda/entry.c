/* The way into every function: counting, failures on request, initialisation, sticky errors; and
 * what finds the functions, cuGetProcAddress. */
#include <string.h>
#include <unistd.h>

#include "settings.h"

sim_state sim = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
_Thread_local unsigned sim_per_thread;

typedef void (*any_function)(void);

typedef struct row {
  const char *name, *base;
  int version;
  any_function function;
} row;

static const row rows[ENTRY_COUNT] = {
#define ENTRY(n, b, v, parameters) \
  {.name = #n, .base = #b, .version = v, .function = (any_function)n},
#include "entries.def"
#undef ENTRY
};

static const row per_thread_rows[] = {
#define ENTRY(name, base, version, parameters)
#define PER_THREAD(n, suffix, parameters, arguments) \
  {.name = #n, .function = (any_function)n##_##suffix},
#include "entries.def"
#undef ENTRY
#undef PER_THREAD
};

static struct {
  uint64_t by_entry[ENTRY_COUNT];
  uint64_t all;
  uint64_t failed;
  uint64_t fail_all;             /* the count at which any call fails; 0: none */
  uint64_t fail_at[ENTRY_COUNT]; /* the same for one */
  CUresult fail_code;
} calls;

void sim_lock(void) {
  sim_quiet(true);
  pthread_mutex_lock(&sim.lock);
  if (!sim.configured)
    sim_configure();
}

void sim_unlock(void) {
  pthread_mutex_unlock(&sim.lock);
  sim_quiet(false);
}

static int entry_of(const char *name) {
  for (int i = 0; i < ENTRY_COUNT; i++) {
    if (strcmp(rows[i].name, name) == 0)
      return i;
  }
  return -1;
}

uint64_t simcuda_calls(const char *name) {
  sim_lock();
  const int entry = name != NULL ? entry_of(name) : -1;
  const uint64_t count = name == NULL ? calls.all : entry < 0 ? 0 : calls.by_entry[entry];
  sim_unlock();
  return count;
}

uint64_t simcuda_failed(void) {
  sim_lock();
  const uint64_t failed = calls.failed;
  sim_unlock();
  return failed;
}

void sim_fail(const char *name, uint64_t n, int code) {
  calls.fail_code = (CUresult)code;
  const int entry = name != NULL ? entry_of(name) : -1;
  if (name == NULL) {
    calls.fail_all = n != 0 ? calls.all + n : 0;
  } else if (entry >= 0) {
    calls.fail_at[entry] = n != 0 ? calls.by_entry[entry] + n : 0;
  }
}

void simcuda_fail(const char *name, uint64_t n, int code) {
  sim_lock();
  sim_fail(name, n, code);
  sim_unlock();
}

void sim_calls_clear(void) {
  memset(&calls, 0, sizeof calls);
}

/* CUDA Driver API, "Data types": the errors after which the process has to be ended. */
bool sim_is_sticky(int code) {
  return (code >= 714 && code <= 719) || code == 226 || code == 700 || code == 702 || code == 710 ||
         code == 721 || code == 810 || code == 911 || code == 214 || code == 220;
}

static CUresult count_call(sim_entry entry) {
  calls.all++;
  calls.by_entry[entry]++;
  if (calls.all != calls.fail_all && calls.by_entry[entry] != calls.fail_at[entry])
    return CUDA_SUCCESS;
  if (calls.by_entry[entry] == calls.fail_at[entry])
    calls.fail_at[entry] = 0;
  if (calls.all == calls.fail_all)
    calls.fail_all = 0;
  calls.failed++;
  if (sim_is_sticky((int)calls.fail_code))
    sim.sticky = calls.fail_code;
  return calls.fail_code;
}

static CUresult check_needs(unsigned needs) {
  if (sim.settings.stub)
    return CUDA_ERROR_STUB_LIBRARY;
  if ((needs & (SIM_NEEDS_INIT | SIM_NEEDS_CONTEXT)) == 0)
    return CUDA_SUCCESS;
  if (!sim.initialised)
    return CUDA_ERROR_NOT_INITIALIZED;
  if (sim.sticky != CUDA_SUCCESS)
    return sim.sticky;
  if ((needs & SIM_NEEDS_CONTEXT) != 0) {
    const sim_context *const context = sim_current();
    if (context == NULL)
      return CUDA_ERROR_INVALID_CONTEXT;
    if (!context->alive)
      return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  }
  return (needs & SIM_UNSAFE_IN_CAPTURE) != 0 ? sim_capture_allows_unsafe() : CUDA_SUCCESS;
}

CUresult sim_enter(sim_entry entry, unsigned needs) {
  /* Another thread may have held the lock when the process was forked: it is not taken. */
  if (sim.process != 0 && sim.process != getpid())
    return CUDA_ERROR_NOT_INITIALIZED;
  sim_lock();
  CUresult result = sim.exiting ? CUDA_ERROR_DEINITIALIZED : count_call(entry);
  if (result == CUDA_SUCCESS)
    result = check_needs(needs);
  if (result != CUDA_SUCCESS) {
    sim_unlock();
  } else {
    sim_semaphores_learn();
  }
  return result;
}

CUresult sim_leave(CUresult result) {
  sim_unlock();
  return result;
}

/* Only so that a test can ask in the child of a fork what the simulator has counted. */
static void guard_forks(void) {
  (void)pthread_atfork(sim_lock, sim_unlock, sim_unlock);
}

CUresult cuInit(unsigned flags) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  (void)pthread_once(&once, guard_forks);
  SIM_ENTER(cuInit, 0);
  if (flags != 0)
    return sim_leave(CUDA_ERROR_INVALID_VALUE);
  if (sim.settings.init != CUDA_SUCCESS)
    return sim_leave(sim.settings.init);
  sim.initialised = true;
  sim.process = getpid();
  return sim_leave(sim.sticky);
}

CUresult cuDriverGetVersion(int *version) {
  SIM_ENTER(cuDriverGetVersion, 0);
  if (version == NULL)
    return sim_leave(CUDA_ERROR_INVALID_VALUE);
  *version = sim.settings.driver;
  return sim_leave(CUDA_SUCCESS);
}

/* Whether `name` is one of a list with commas. */
static bool is_listed(const char *list, const char *name) {
  const size_t length = strlen(name);
  for (const char *at = list; at != NULL && (at = strstr(at, name)) != NULL; at += length) {
    const bool begins = at == list || at[-1] == ',';
    const bool ends = at[length] == ',' || at[length] == '\0';
    if (begins && ends)
      return true;
  }
  return false;
}

static void store(void **out, any_function function) {
  memcpy((void *)out, (const void *)&function, sizeof function);
}

static CUresult find(const char *symbol, void **out, int version, cuuint64_t flags,
                     CUdriverProcAddressQueryResult *status) {
  const row *best = NULL;
  bool later = false;
  const bool missing = is_listed(sim.settings.missing, symbol);
  for (int i = 0; i < ENTRY_COUNT && !missing; i++) {
    if (strcmp(rows[i].base, symbol) != 0)
      continue;
    if (rows[i].version > version || rows[i].version > sim.settings.driver) {
      later = true;
    } else if (best == NULL || rows[i].version >= best->version) {
      best = &rows[i];
    }
  }
  *out = NULL;
  *status = best != NULL ? CU_GET_PROC_ADDRESS_SUCCESS
            : later      ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                         : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  if (best == NULL)
    return sim.settings.absent_is_success ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
  store(out, best->function);
  if ((flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) == 0)
    return CUDA_SUCCESS;
  for (size_t i = 0; i < sizeof per_thread_rows / sizeof *per_thread_rows; i++) {
    if (strcmp(per_thread_rows[i].name, best->name) == 0)
      store(out, per_thread_rows[i].function);
  }
  return CUDA_SUCCESS;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status) {
  SIM_ENTER(cuGetProcAddress_v2, 0);
  if (symbol == NULL || function == NULL || flags > 2)
    return sim_leave(CUDA_ERROR_INVALID_VALUE);
  CUdriverProcAddressQueryResult unasked;
  return sim_leave(find(symbol, function, version, flags, status != NULL ? status : &unasked));
}

CUresult cuGetProcAddress(const char *symbol, void **function, int version, cuuint64_t flags) {
  SIM_ENTER(cuGetProcAddress, 0);
  if (symbol == NULL || function == NULL || flags > 2)
    return sim_leave(CUDA_ERROR_INVALID_VALUE);
  CUdriverProcAddressQueryResult status;
  return sim_leave(find(symbol, function, version, flags, &status));
}
