/* Libraries that pass for a CUDA driver's while one is looked for, and do nothing: built once for
 * each way of being found or refused (see the CMakeLists.txt beside it). What cuInit answers, and
 * which function is missing, the environment says. */
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

enum {
  STUB_LIBRARY = 34,
  NOT_FOUND = 500,
  UNKNOWN = 999,
};

/* One thing that cuGetProcAddress was asked for. */
typedef struct fake_request {
  const char *name;
  int version;
  uint64_t flags;
} fake_request;

EXPORT int fake_cuda_inits(void);
EXPORT size_t fake_cuda_requests(fake_request *out_requests, size_t capacity);

static atomic_int inits;
static fake_request requests[256];
static atomic_size_t request_count;

int fake_cuda_inits(void) {
  return atomic_load(&inits);
}

size_t fake_cuda_requests(fake_request *out_requests, size_t capacity) {
  const size_t count = atomic_load(&request_count);
  for (size_t i = 0; i < count && i < capacity; i++)
    out_requests[i] = requests[i];
  return count;
}

#if defined(FAKE_STUB)

EXPORT int cuDriverGetVersion(int *version);
int cuDriverGetVersion(int *version) {
  *version = 0;
  return STUB_LIBRARY;
}

#elif !defined(FAKE_EMPTY)

#if !defined(FAKE_NULLS)

static int initialise(unsigned flags) {
  (void)flags;
  atomic_fetch_add(&inits, 1);
  const char *const answer = getenv("FAKE_CUDA_INIT");
  return answer != NULL ? atoi(answer) : 0;
}

static int count_devices(int *count) {
  *count = 0;
  return 0;
}

#endif

EXPORT int cuDriverGetVersion(int *version);
int cuDriverGetVersion(int *version) {
#if defined(FAKE_OLD)
  *version = 10020;
#else
  *version = 12040;
#endif
  return 0;
}

#if !defined(FAKE_SUFFIXED)

#if !defined(FAKE_NULLS)

static int refuse(void) {
  return UNKNOWN;
}

static void *function_of(void (*function)(void)) {
  void *address;
  memcpy(&address, &function, sizeof address);
  return address;
}

#endif

static int find(const char *name, void **address, int version, uint64_t flags) {
  const size_t at = atomic_fetch_add(&request_count, 1);
  if (at < sizeof requests / sizeof requests[0])
    requests[at] = (fake_request){.name = name, .version = version, .flags = flags};
  *address = NULL;
#if !defined(FAKE_NULLS)
  const char *const missing = getenv("FAKE_CUDA_MISSING");
  if (missing != NULL && strcmp(missing, name) == 0)
    return NOT_FOUND;
  if (strcmp(name, "cuInit") == 0)
    *address = function_of((void (*)(void))initialise);
  else if (strcmp(name, "cuDeviceGetCount") == 0)
    *address = function_of((void (*)(void))count_devices);
  else
    *address = function_of((void (*)(void))refuse);
#endif
  return 0;
}

#if defined(FAKE_FIRST_FINDER)

EXPORT int cuGetProcAddress(const char *name, void **address, int version, uint64_t flags);
int cuGetProcAddress(const char *name, void **address, int version, uint64_t flags) {
  return find(name, address, version, flags);
}

#else

EXPORT int cuGetProcAddress_v2(const char *name, void **address, int version, uint64_t flags,
                               int *found);
int cuGetProcAddress_v2(const char *name, void **address, int version, uint64_t flags, int *found) {
  *found = 0;
  return find(name, address, version, flags);
}

#endif

#else /* FAKE_SUFFIXED: these under their own names; the others are in fake_cuda_suffixed.c */

EXPORT int cuInit(unsigned flags);
int cuInit(unsigned flags) {
  return initialise(flags);
}

EXPORT int cuDeviceGetCount(int *count);
int cuDeviceGetCount(int *count) {
  return count_devices(count);
}

#endif
#endif
