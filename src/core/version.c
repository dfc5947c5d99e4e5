/* The version of the library that is running. */
#include <quay/version.h>

#define TEXT_OF(x) #x
#define TEXT(x)    TEXT_OF(x)

uint32_t quay_version(void) {
  return QUAY_VERSION;
}

const char *quay_version_string(void) {
  return TEXT(QUAY_VERSION_MAJOR) "." TEXT(QUAY_VERSION_MINOR) "." TEXT(QUAY_VERSION_PATCH);
}
