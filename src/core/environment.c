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
  THREADS_MAX = 1024,
  DEFAULT_STAGING_BYTES = 64 << 20,
  STAGING_BYTES_MIN = 64 << 10
};

static const char *value_of(const char *name) {
  const char *value = getenv(name);
  return value != NULL && value[0] != '\0' ? value : NULL;
}

const char *quay__environment_backend(void) {
  return getenv("QUAY_BACKEND");
}

static bool parse_threads(const char *value, uint32_t *out_threads) {
  uint64_t threads;
  if (!quay__parse_unsigned(value, &threads) || threads < 1 || threads > THREADS_MAX)
    return false;
  *out_threads = (uint32_t)threads;
  return true;
}

static bool parse_staging_bytes(const char *value, uint64_t *out_bytes) {
  uint64_t bytes;
  if (!quay__parse_bytes(value, &bytes) || bytes < STAGING_BYTES_MIN)
    return false;
  *out_bytes = bytes;
  return true;
}

uint32_t quay__environment_copy_threads(void) {
  const char *value = value_of("QUAY_COPY_THREADS");
  uint32_t threads;
  if (value != NULL && parse_threads(value, &threads))
    return threads;
  return (uint32_t)quay__min(DEFAULT_THREADS_MAX, quay__os_processor_count());
}

uint32_t quay__environment_disk_threads(void) {
  const char *value = value_of("QUAY_COPY_THREADS");
  uint32_t threads;
  return value != NULL && parse_threads(value, &threads) ? threads : DEFAULT_DISK_THREADS;
}

uint64_t quay__environment_staging_bytes(void) {
  const char *value = value_of("QUAY_STAGING_BYTES");
  uint64_t bytes;
  return value != NULL && parse_staging_bytes(value, &bytes) ? bytes : DEFAULT_STAGING_BYTES;
}

bool quay__environment_sets_copy_threads(void) {
  return value_of("QUAY_COPY_THREADS") != NULL;
}

bool quay__environment_sets_staging_bytes(void) {
  return value_of("QUAY_STAGING_BYTES") != NULL;
}

quay_status quay__environment_check(void) {
  const char *value = value_of("QUAY_COPY_THREADS");
  uint32_t threads;
  if (value != NULL && !parse_threads(value, &threads)) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT,
                      "QUAY_COPY_THREADS is \"%s\"; it must be a number of threads from 1 to %d",
                      value, THREADS_MAX);
  }
  value = value_of("QUAY_STAGING_BYTES");
  uint64_t bytes;
  if (value != NULL && !parse_staging_bytes(value, &bytes)) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT,
                      "QUAY_STAGING_BYTES is \"%s\"; it must be a size of at least 64KiB, such as "
                      "64MiB",
                      value);
  }
  return QUAY_OK;
}

const char *quay__environment_cuda_library(void) {
  return value_of("QUAY_CUDA_LIBRARY");
}

const char *quay__environment_vulkan_library(void) {
  return value_of("QUAY_VULKAN_LIBRARY");
}
