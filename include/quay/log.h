/* The log callback: how the library reports what no return value can carry.
 *
 * The library never prints. Errors in functions that return nothing (free, release), leaks found
 * when an allocator is destroyed, and decisions worth knowing (a slower route was taken) are
 * handed to one callback of the program; without one they are dropped, though counted in the
 * statistics of their allocator. */
#ifndef QUAY_LOG_H
#define QUAY_LOG_H

#include <quay/base.h>

typedef enum quay_log_level {
  QUAY_LOG_ERROR = 0,   /* something was lost: a leak, a failed free, a lost device */
  QUAY_LOG_WARNING = 1, /* it works, but not as asked or not as well as it could */
  QUAY_LOG_INFO = 2,    /* a decision worth knowing when one looks for a cause */
} quay_log_level;

/* `message` is one line of UTF-8 without a line break, valid during the call only. The callback
 * runs in the thread that found the matter, with no lock of the library held, and may call the
 * library; the messages of those calls do not reach it (no recursion). It must not throw or
 * longjmp. */
typedef void (*quay_log_callback)(void *user, quay_log_level level, const char *message);

QUAY_BEGIN_DECLS

/* Sends messages of `level` and above in importance (lower in value) to `callback`; NULL turns
 * logging off, which is the state at start. `user` is handed through. Returns after the old
 * callback has finished everywhere and will not be called again, so that its `user` may be freed;
 * called from inside the callback it returns at once.
 * Thread-safety: any thread. */
QUAY_API void quay_log_set(quay_log_callback callback, void *user, quay_log_level level);

QUAY_END_DECLS

#endif
