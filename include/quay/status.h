/* Status codes and the error of the calling thread.
 *
 * Every function that can fail returns a quay_status. A failing call also leaves an error, of the
 * calling thread alone, that quay_last_error() describes: what was asked, what was wrong and what
 * would be right. A call that succeeds leaves the last error untouched, and so does every function
 * that returns nothing (release, free, pop): those report through the log callback (log.h). */
#ifndef QUAY_STATUS_H
#define QUAY_STATUS_H

#include <quay/base.h>

/* X(NAME, value, text). Codes are separate where a caller would act differently. The values are
 * part of the ABI: new codes are appended, none is ever renumbered. */
#define QUAY_STATUS_TABLE(X)                                                                    \
  /* An argument breaks the documented contract; the same call can never succeed. */            \
  X(INVALID_ARGUMENT, 1, "invalid argument")                                                    \
  /* An offset, size or index reaches outside what it indexes. */                               \
  X(OUT_OF_RANGE, 2, "out of range")                                                            \
  /* Two sizes that must be equal differ; nothing was moved. */                                 \
  X(SIZE_MISMATCH, 3, "size mismatch")                                                          \
  /* The dtype asked for is not the buffer's. */                                                \
  X(TYPE_MISMATCH, 4, "type mismatch")                                                          \
  /* An address is not a multiple of the alignment that the access needs. */                    \
  X(MISALIGNED, 5, "misaligned")                                                                \
  /* A lazy buffer was read before anything was written to it. */                               \
  X(NOT_ALLOCATED, 6, "not allocated")                                                          \
  /* The memory has no address that the CPU may use. */                                         \
  X(NOT_HOST_ACCESSIBLE, 7, "not host accessible")                                              \
  /* A write to a sealed storage or a read-only mapping. */                                     \
  X(READ_ONLY, 8, "read only")                                                                  \
  /* The operating system or the C library has no memory left for the request. */               \
  X(OUT_OF_HOST_MEMORY, 9, "out of host memory")                                                \
  /* The device has no memory left for the request; the device stays usable. */                 \
  X(OUT_OF_DEVICE_MEMORY, 10, "out of device memory")                                           \
  /* A budget that the program itself set (limit layer, staging budget) is used up. */          \
  X(LIMIT_EXCEEDED, 11, "limit exceeded")                                                       \
  /* Never possible with this backend, kind of memory or object. */                             \
  X(UNSUPPORTED, 12, "unsupported")                                                             \
  /* Possible, but not on this machine or in this build: no driver, no device, not built in. */ \
  X(UNAVAILABLE, 13, "unavailable")                                                             \
  /* Reading or writing a file failed; the native code is an errno, ENOSPC for a full disk. */  \
  X(IO, 14, "I/O error")                                                                        \
  /* The memory belongs to an older generation of its device (reset or loss). */                \
  X(STALE, 15, "stale")                                                                         \
  /* The device reported an error that it does not recover from. */                             \
  X(DEVICE_LOST, 16, "device lost")                                                             \
  /* In use by somebody else just now; the same call can succeed later. */                      \
  X(BUSY, 17, "busy")                                                                           \
  /* The bytes of a file do not follow their format. */                                         \
  X(MALFORMED, 18, "malformed")                                                                 \
  /* A callback of the caller asked to stop. */                                                 \
  X(CANCELLED, 19, "cancelled")

typedef enum quay_status {
  QUAY_OK = 0,
#define QUAY_STATUS_ENUMERATOR(name, value, text) QUAY_STATUS_##name = (value),
  QUAY_STATUS_TABLE(QUAY_STATUS_ENUMERATOR)
#undef QUAY_STATUS_ENUMERATOR
} quay_status;

/* Longest message of an error, its terminating NUL included, in bytes. Longer ones lose their
 * middle, for "...", at UTF-8 character boundaries: long paths are shortened, and what is wrong
 * with them is told. Only where there is no memory for that they lose their end. */
#define QUAY_ERROR_MESSAGE_SIZE 1024

/* The error that a failing call left in its thread. All strings are NUL-terminated, never NULL. */
typedef struct quay_error {
  quay_status status;
  int64_t native_code;     /* errno, CUresult, VkResult; 0 where there is none */
  const char *native_name; /* "ENOSPC", "CUDA_ERROR_OUT_OF_MEMORY"; "" where there is none */
  const char *backend;     /* the backend or layer that failed: "mmap"; "" for the core */
  const char *message;     /* one line of UTF-8, no line break */
} quay_error;

/* Returns from the calling function with the status of `expression` if that is not QUAY_OK. */
#define QUAY_TRY(expression)                           \
  do {                                                 \
    const quay_status quay_try_status_ = (expression); \
    if (quay_try_status_ != QUAY_OK)                   \
      return quay_try_status_;                         \
  } while (0)

QUAY_BEGIN_DECLS

/* The text of the table above for `status`, such as "out of range"; "ok" for QUAY_OK and "unknown
 * status" for a value that is none. The string is static.
 * Thread-safety: any thread, any time. */
QUAY_API const char *quay_status_text(quay_status status);

/* The name of `status` as written in programs, such as "QUAY_STATUS_OUT_OF_RANGE". Static.
 * Thread-safety: any thread, any time. */
QUAY_API const char *quay_status_name(quay_status status);

/* The last error of the calling thread. Never NULL: before the first error its status is QUAY_OK
 * and its message is empty. The structure and its strings belong to the thread and change with its
 * next failing call; copy what is needed longer.
 * Thread-safety: any thread; sees the errors of the calling thread only. A worker thread of the
 * library that fails hands its error to the thread whose call it worked for. */
QUAY_API const quay_error *quay_last_error(void);

/* Sets the calling thread's error back to QUAY_OK and an empty message.
 * Thread-safety: any thread; touches the calling thread's error only. */
QUAY_API void quay_error_clear(void);

QUAY_END_DECLS

#endif
