/* The thread's last error, as the library's own code sets, keeps and moves it. */
#ifndef QUAY_CORE_ERROR_H
#define QUAY_CORE_ERROR_H

#include <quay/backend.h>
#include <stdarg.h>
#include <stddef.h>

#include "core/component.h"
#include "core/thread.h"

/* A copy of a thread's error that can be moved to another thread. */
typedef struct quay__error_state {
  quay_status status;
  int64_t native_code;
  char native_name[64];
  char backend[32];
  char message[QUAY_ERROR_MESSAGE_SIZE];
} quay__error_state;

/* Sets an error of the core (no backend, no native code) and gives `status`, a constant, back: as a
 * constant, so that the compiler sees that it is not QUAY_OK. */
#define quay__fail(status, ...) ((void)quay_error_set((status), "", 0, NULL, __VA_ARGS__), (status))

/* Sets an error with an errno: code, its name ("ENOSPC") and its text appended to the message as
 * ": No space left on device (ENOSPC)". */
quay_status quay__fail_errno(quay_status status, const char *backend, int error_number,
                             const char *format, ...) QUAY_PRINTF(4, 5);

/* Formats a message. One that is longer than `size`, its NUL included, loses its middle, for "...",
 * between characters of UTF-8; its end where there is no memory for all of it. Keeps errno. */
void quay__message_format(char *text, size_t size, const char *format, va_list arguments)
    QUAY_PRINTF(3, 0);

/* The status that fits an errno of a file operation: OUT_OF_HOST_MEMORY for ENOMEM, else IO. */
quay_status quay__status_of_errno(int error_number);

/* "ENOSPC" for ENOSPC; "errno" where it has no name. Static. */
const char *quay__errno_name(int error_number);

/* Sets OUT_OF_HOST_MEMORY for `size` bytes of the library's own, and gives it back. */
#define quay__fail_out_of_memory(size, what) \
  (quay__error_out_of_memory((size), (what)), QUAY_STATUS_OUT_OF_HOST_MEMORY)
QUAY__COMPONENT void quay__error_out_of_memory(uint64_t size, const char *what);

/* Appends text to the message of the thread's error, whose status is kept and returned. */
quay_status quay__error_append(const char *format, ...) QUAY_PRINTF(1, 2);

/* Copies the calling thread's error out, and makes a copy the calling thread's error. Functions
 * that return nothing bracket with them what they call, so that the caller's error survives. */
void quay__error_save(quay__error_state *out_state);
void quay__error_restore(const quay__error_state *state);

/* Between these two, which nest, errors go elsewhere and the thread's stays as it is. For the hot
 * paths that must keep it, where saving and restoring would cost more than the work. */
static inline void quay__error_shield(void) {
  quay__near.shields++;
}
static inline void quay__error_unshield(void) {
  quay__near.shields--;
}

#endif
