/* The environment variables; no other file reads any. A variable that is not set, or empty, is its
 * default. quay__environment_check() refuses a bad value: quay_allocator_open() asks it, and each
 * large copy and fill before it moves a byte. To what is asked after that, a bad one is its
 * default, too. */
#ifndef QUAY_CORE_ENVIRONMENT_H
#define QUAY_CORE_ENVIRONMENT_H

#include <quay/status.h>

/* $QUAY_BACKEND as it stands, NULL if it is not set. An empty one is returned: it names nothing. */
const char *quay__environment_backend(void);

/* $QUAY_COPY_THREADS: at most so many threads in one copy, the caller's included; 1 to 1024.
 * Default: the smaller of 8 and the processors. Read at each call. */
uint32_t quay__environment_copy_threads(void);
/* The same for threads that wait for a disk: without the variable 16, however few processors. */
uint32_t quay__environment_disk_threads(void);

/* $QUAY_STAGING_BYTES: the process's budget of host memory for staging, with units as in specs; at
 * least 64 KiB. Default: 64 MiB. Read at each call. */
uint64_t quay__environment_staging_bytes(void);

/* Whether the variables are set, and the defaults not to be improved on. */
bool quay__environment_sets_copy_threads(void);
bool quay__environment_sets_staging_bytes(void);

/* INVALID_ARGUMENT if either of the two is bad. */
quay_status quay__environment_check(void);

/* $QUAY_CUDA_LIBRARY: the CUDA driver's library, a path or a name for the loader. NULL: the usual
 * names. */
const char *quay__environment_cuda_library(void);

/* $QUAY_VULKAN_LIBRARY: the Vulkan loader's library, likewise. */
const char *quay__environment_vulkan_library(void);

#endif
