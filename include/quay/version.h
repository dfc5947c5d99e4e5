/* The version of the headers, and that of the library they are linked with. */
#ifndef QUAY_VERSION_H
#define QUAY_VERSION_H

#include <quay/base.h>

#define QUAY_VERSION_MAJOR 0
#define QUAY_VERSION_MINOR 1
#define QUAY_VERSION_PATCH 0

/* One number that grows with every release: major * 1,000,000 + minor * 1,000 + patch. */
#define QUAY_VERSION (QUAY_VERSION_MAJOR * 1000000 + QUAY_VERSION_MINOR * 1000 + QUAY_VERSION_PATCH)

QUAY_BEGIN_DECLS

/* The version of the library that is running, in the form of QUAY_VERSION. Differs from the macro
 * only if the program runs with another shared library than it was compiled against.
 * Thread-safety: any thread, any time. */
QUAY_API uint32_t quay_version(void);

/* The same as text, such as "0.1.0". The string is static.
 * Thread-safety: any thread, any time. */
QUAY_API const char *quay_version_string(void);

QUAY_END_DECLS

#endif
