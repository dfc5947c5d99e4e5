/* The log callback. */
#include <quay/log.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>

#include "core/error.h"
#include "core/lifecycle.h"
#include "core/lock.h"

/* Guarded by QUAY__LOCK_LOG; `level` may be read without, to skip formatting. */
static quay_log_callback current;
static void *current_user;
static atomic_int current_level = -1; /* nothing is wanted */
static unsigned running;              /* calls under way */
static pthread_cond_t idle = PTHREAD_COND_INITIALIZER;

static _Thread_local bool inside; /* this thread is in the callback */

void quay_log_set(quay_log_callback callback, void *user, quay_log_level level) {
  quay__lifecycle_begin();
  quay__global_acquire(QUAY__LOCK_LOG);
  current = callback;
  current_user = user;
  atomic_store_explicit(&current_level, callback != NULL ? (int)level : -1, memory_order_relaxed);
  while (running > 0 && !inside)
    quay__global_wait(QUAY__LOCK_LOG, &idle);
  quay__global_release(QUAY__LOCK_LOG);
}

void quay_log(quay_log_level level, const char *format, ...) {
  if ((int)level > atomic_load_explicit(&current_level, memory_order_relaxed) || inside)
    return;
  quay__error_state saved;
  quay__error_save(&saved);
  va_list arguments;
  va_start(arguments, format);
  char text[QUAY_ERROR_MESSAGE_SIZE];
  quay__message_format(text, sizeof text, format, arguments);
  va_end(arguments);
  /* The error's rules for text are the log's as well: one line of UTF-8. */
  quay_error_set(QUAY_OK, "", 0, NULL, "%s", text);

  quay__global_acquire(QUAY__LOCK_LOG);
  const quay_log_callback callback = current;
  void *const user = current_user;
  running++;
  quay__global_release(QUAY__LOCK_LOG);

  inside = true;
  if (callback != NULL) {
    snprintf(text, sizeof text, "%s", quay_last_error()->message);
    callback(user, level, text);
  }
  inside = false;

  quay__global_acquire(QUAY__LOCK_LOG);
  running--;
  if (running == 0)
    pthread_cond_broadcast(&idle);
  quay__global_release(QUAY__LOCK_LOG);
  quay__error_restore(&saved);
}

/* The calls of other threads are not in the child. */
void quay__log_after_fork_in_child(void) {
  running = inside ? 1 : 0;
  idle = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
}
