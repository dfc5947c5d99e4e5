/* What every public header needs: fixed-width integers, linkage, visibility and the attributes of
 * declarations. No declarations of the library itself. */
#ifndef QUAY_BASE_H
#define QUAY_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define QUAY_BEGIN_DECLS extern "C" {
#define QUAY_END_DECLS   }
#else
#define QUAY_BEGIN_DECLS
#define QUAY_END_DECLS
#endif

/* Exported from the shared library; everything else is hidden. */
#define QUAY_API __attribute__((visibility("default")))

/* The result must be looked at. On the type quay_status's functions: an ignored error is a bug. */
#define QUAY_NODISCARD __attribute__((warn_unused_result))

/* Argument number `text` is a printf format, its arguments begin at number `first`. */
#define QUAY_PRINTF(text, first) __attribute__((format(printf, text, first)))

#endif
