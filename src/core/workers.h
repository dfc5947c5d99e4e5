/* The process's worker threads: started at first need, kept, stopped at shutdown and exit, made
 * anew after fork. */
#ifndef QUAY_CORE_WORKERS_H
#define QUAY_CORE_WORKERS_H

#include <quay/status.h>
#include <stdint.h>

/* One piece of a job. Called from the calling thread and from workers, several at once, each index
 * once. */
typedef quay_status (*quay__task)(void *context, uint64_t index);

/* Runs task(context, 0 .. count-1) on at most `threads` threads, the caller's among them, and
 * returns when all are done. After the first failure no new index is started; its error becomes the
 * calling thread's. Called from inside a task it runs everything in the calling thread. If no
 * thread can be started the caller does all the work. Success leaves the thread's error as it was.
 */
quay_status quay__workers_run(uint32_t threads, uint64_t count, quay__task task, void *context);

/* Joins all workers. They start again at need. */
void quay__workers_stop(void);

/* For lifecycle.c alone. Called with QUAY__LOCK_WORKERS held, or reset in the child. */
void quay__workers_after_fork_in_child(void);

#endif
