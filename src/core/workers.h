/* The process's worker threads: started at first need, kept, stopped at shutdown and exit, made
 * anew after fork. */
#ifndef QUAY_CORE_WORKERS_H
#define QUAY_CORE_WORKERS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/error.h"

/* One piece of a job. Called from the calling thread and from workers, several at once, each index
 * once. */
typedef quay_status (*quay__task)(void *context, uint64_t index);

/* Runs task(context, 0 .. count-1) on at most `threads` threads, the caller's among them, and
 * returns when all are done. After the first failure no new index is started; its error becomes the
 * calling thread's. Called from inside a task it runs everything in the calling thread. If no
 * thread can be started the caller does all the work. Success leaves the thread's error as it was.
 */
quay_status quay__workers_run(uint32_t threads, uint64_t count, quay__task task, void *context);

/* What workers.c keeps of a job, in its caller's frame; nobody else looks inside. */
typedef struct quay__job {
  struct quay__job *next;  /* in the list of jobs that want helpers */
  struct quay__job *outer; /* the job that its caller was in already */
  quay__task task;
  void *context;
  atomic_uint_fast64_t count;
  atomic_uint_fast64_t next_index;
  atomic_bool failed;
  bool open, listed;
  bool in_staging; /* its caller's quay__thread_in_staging */
  uint32_t max_helpers;
  uint32_t helpers;        /* workers that are on it */
  pthread_cond_t finished; /* signalled when `helpers` becomes 0 */
  quay__error_state error; /* of the first failure: written by whoever set `failed` */
} quay__job;

/* A job whose tasks come up one by one while its caller does something else, and which up to
 * `helpers` workers help with. The caller must be able to go on without: it may be that no worker
 * ever comes. Called from inside a task it gets none. Closed by the same thread; nothing opened
 * later may still be open then. */
void quay__workers_open(quay__job *job, uint32_t helpers, quay__task task, void *context);
/* So many tasks could be run now: workers will look, and run that many. Of a job that its caller
 * has offered before, its tasks may offer more. */
void quay__workers_offer(quay__job *job, uint64_t tasks);
/* In a task: whether it should come to an end, because another job may need the worker more. */
bool quay__workers_called(void);
/* Whether a task has failed; or was lost, because this is the child of a fork meanwhile. No other
 * task is started then. */
bool quay__workers_failed(quay__job *job);
/* Waits until no task of it runs, and none will. */
void quay__workers_close(quay__job *job);
/* After closing: OK, or the first failure, which becomes the calling thread's error. */
quay_status quay__workers_result(quay__job *job);

/* Joins all workers. They start again at need. */
void quay__workers_stop(void);

/* For lifecycle.c alone. Called with QUAY__LOCK_WORKERS held, or reset in the child. */
void quay__workers_after_fork_in_child(void);

#endif
