/* Checks of arguments that public functions have in common. */
#ifndef QUAY_CORE_ARGUMENTS_H
#define QUAY_CORE_ARGUMENTS_H

#include <stddef.h>

#include "core/error.h"

/* Returns INVALID_ARGUMENT from the calling function if `argument` is NULL, naming both. */
#define QUAY__REQUIRE(argument)                                                              \
  do {                                                                                       \
    if (__builtin_expect((argument) == NULL, 0)) {                                           \
      return quay__fail(QUAY_STATUS_INVALID_ARGUMENT,                                        \
                        "%s: the argument %s is NULL; it must not be", __func__, #argument); \
    }                                                                                        \
  } while (0)

#endif
