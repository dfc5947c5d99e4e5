/* The environment variables. */
#include "core/environment.h"

#include <stdlib.h>

#include "core/checked.h"
#include "core/error.h"
#include "core/os.h"
#include "core/spec.h"

enum {
  DEFAULT_THREADS_MAX = 8,
  DEFAULT_DISK_THREADS = 16,
  THREADS_MAX = 1024
};

static const char *value_of(const char *name) {
  const char *value = getenv(name);
  return value != NULL && value[0] != '\0' ? value : NULL;
}

const char *quay__environment_backend(void) {
  return getenv("QUAY_BACKEND");
}

quay_status quay__environment_copy_threads(uint32_t *out_threads) {
  const char *value = value_of("QUAY_COPY_THREADS");
  if (value == NULL) {
    *out_threads = (uint32_t)quay__min(DEFAULT_THREADS_MAX, quay__os_processor_count());
    return QUAY_OK;
  }
  uint64_t threads;
  if (!quay__parse_unsigned(value, &threads) || threads < 1 || threads > THREADS_MAX) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT,
                      "QUAY_COPY_THREADS is \"%s\"; it must be a number of threads from 1 to %d",
                      value, THREADS_MAX);
  }
  *out_threads = (uint32_t)threads;
  return QUAY_OK;
}

quay_status quay__environment_disk_threads(uint32_t *out_threads) {
  *out_threads = DEFAULT_DISK_THREADS;
  return value_of("QUAY_COPY_THREADS") != NULL ? quay__environment_copy_threads(out_threads)
                                               : QUAY_OK;
}

quay_status quay__environment_staging_bytes(uint64_t *out_bytes) {
  const uint64_t least = 64u << 10;
  *out_bytes = 64u << 20;
  const char *value = value_of("QUAY_STAGING_BYTES");
  if (value == NULL)
    return QUAY_OK;
  if (!quay__parse_bytes(value, out_bytes) || *out_bytes < least) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT,
                      "QUAY_STAGING_BYTES is \"%s\"; it must be a size of at least 64KiB, such as "
                      "64MiB",
                      value);
  }
  return QUAY_OK;
}

bool quay__environment_sets_copy_threads(void) {
  return value_of("QUAY_COPY_THREADS") != NULL;
}

bool quay__environment_sets_staging_bytes(void) {
  return value_of("QUAY_STAGING_BYTES") != NULL;
}

quay_status quay__environment_check(void) {
  uint32_t threads;
  uint64_t bytes;
  QUAY_TRY(quay__environment_copy_threads(&threads));
  return quay__environment_staging_bytes(&bytes);
}

const char *quay__environment_cuda_library(void) {
  return value_of("QUAY_CUDA_LIBRARY");
}

const char *quay__environment_vulkan_library(void) {
  return value_of("QUAY_VULKAN_LIBRARY");
}
