/* The process's worker threads and the jobs that they share with their callers.
 * A job is a range of indices: its caller and its helpers take one after another until none is
 * left. Knows nothing of copies. */
#include "core/workers.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "core/checked.h"
#include "core/error.h"
#include "core/lifecycle.h"
#include "core/lock.h"

/* $QUAY_COPY_THREADS goes up to 1024, the caller's included. */
#define MAX_WORKERS 1023u

/* Lives in its caller's frame: the caller leaves only when no worker is on it any more. */
struct job {
  struct job *next; /* in `jobs` */
  quay__task task;
  void *context;
  uint64_t count;
  atomic_uint_fast64_t next_index;
  atomic_bool failed;
  uint32_t max_helpers;
  uint32_t helpers;        /* workers that are on it */
  pthread_cond_t finished; /* signalled when `helpers` becomes 0 */
  quay__error_state error; /* of the first failure: written by whoever set `failed` */
};

/* All guarded by QUAY__LOCK_WORKERS. */
static struct {
  pthread_t threads[MAX_WORKERS];
  uint32_t count; /* of `threads` */
  uint32_t idle;  /* of those, waiting for `work` */
  bool stopping;
  bool told_of_failure; /* one line in the log is enough */
  struct job *jobs;
} workers;
static pthread_cond_t work = PTHREAD_COND_INITIALIZER;    /* a job came, or `stopping` was set */
static pthread_cond_t stopped = PTHREAD_COND_INITIALIZER; /* `stopping` was cleared */

/* Counts the jobs that came: a worker that sees it change looks whether another job needs it more.
 */
static atomic_uint jobs_seen;

static _Thread_local struct job *own_job; /* the job that this thread is the caller of */
static _Thread_local bool in_task;        /* this thread runs a task: nested calls run inline */
static _Thread_local bool is_worker;

static void fail_job(struct job *job, quay_status status) {
  if (atomic_exchange_explicit(&job->failed, true, memory_order_acq_rel))
    return;
  quay__error_save(&job->error);
  job->error.status = status;
}

/* Takes indices until none is left, the job has failed or, for a worker, another job came. */
static void take_part(struct job *job, unsigned seen) {
  in_task = true;
  while (!atomic_load_explicit(&job->failed, memory_order_relaxed)) {
    if (is_worker && atomic_load_explicit(&jobs_seen, memory_order_relaxed) != seen)
      break;
    const uint64_t index = atomic_fetch_add_explicit(&job->next_index, 1, memory_order_relaxed);
    if (index >= job->count)
      break;
    const quay_status status = job->task(job->context, index);
    if (status != QUAY_OK)
      fail_job(job, status);
  }
  in_task = false;
}

static bool wants_helpers(struct job *job) {
  return job->helpers < job->max_helpers &&
         !atomic_load_explicit(&job->failed, memory_order_relaxed) &&
         atomic_load_explicit(&job->next_index, memory_order_relaxed) < job->count;
}

/* The job with the fewest helpers among those that want one; NULL if there is none. */
static struct job *neediest_job(void) {
  struct job *best = NULL;
  for (struct job *candidate = workers.jobs; candidate != NULL; candidate = candidate->next) {
    if (!wants_helpers(candidate))
      continue;
    if (best == NULL || candidate->helpers < best->helpers)
      best = candidate;
  }
  return best;
}

static void *worker_main(void *unused) {
  (void)unused;
  is_worker = true;
  pthread_setname_np(pthread_self(), "quay-worker");
  quay__global_acquire(QUAY__LOCK_WORKERS);
  while (!workers.stopping) {
    const unsigned seen = atomic_load_explicit(&jobs_seen, memory_order_relaxed);
    struct job *job = neediest_job();
    if (job == NULL) {
      workers.idle++;
      quay__global_wait(QUAY__LOCK_WORKERS, &work);
      workers.idle--;
      continue;
    }
    job->helpers++;
    quay__global_release(QUAY__LOCK_WORKERS);
    take_part(job, seen);
    quay__global_acquire(QUAY__LOCK_WORKERS);
    if (--job->helpers == 0)
      pthread_cond_signal(&job->finished);
  }
  quay__global_release(QUAY__LOCK_WORKERS);
  return NULL;
}

/* Starts threads until there are `wanted`, with the lock held. All signals are blocked in them: the
 * program's handlers run in the program's threads. Returns an errno. */
static int start_threads(uint32_t wanted) {
  if (workers.count >= wanted)
    return 0;
  sigset_t all, before;
  sigfillset(&all);
  int error = pthread_sigmask(SIG_SETMASK, &all, &before);
  if (error != 0)
    return error;
  while (error == 0 && workers.count < wanted) {
    error = pthread_create(&workers.threads[workers.count], NULL, worker_main, NULL);
    if (error == 0)
      workers.count++;
  }
  const int restored = pthread_sigmask(SIG_SETMASK, &before, NULL);
  return error != 0 ? error : restored;
}

static void wake_helpers(const struct job *job) {
  const uint64_t sleeping = quay__min(workers.idle, job->max_helpers);
  for (uint64_t i = 0; i < sleeping; i++)
    pthread_cond_signal(&work);
}

/* Makes the job known and calls for helpers. What can't be started is not missed: the caller does
 * their part. */
static void publish_job(struct job *job) {
  quay__lifecycle_begin();
  int error = 0;
  quay__global_acquire(QUAY__LOCK_WORKERS);
  if (!workers.stopping)
    error = start_threads(job->max_helpers);
  const bool tell = error != 0 && !workers.told_of_failure;
  if (tell)
    workers.told_of_failure = true;
  job->next = workers.jobs;
  workers.jobs = job;
  atomic_fetch_add_explicit(&jobs_seen, 1, memory_order_relaxed);
  wake_helpers(job);
  quay__global_release(QUAY__LOCK_WORKERS);
  if (tell) {
    quay_log(QUAY_LOG_WARNING, "can't start a worker thread (%s): copies run with fewer threads",
             quay__errno_name(error));
  }
}

static void retract_job(struct job *job) {
  quay__global_acquire(QUAY__LOCK_WORKERS);
  /* The list is another one in a child that was forked from inside a task. */
  struct job **link = &workers.jobs;
  while (*link != NULL && *link != job)
    link = &(*link)->next;
  if (*link != NULL)
    *link = job->next;
  while (job->helpers != 0)
    quay__global_wait(QUAY__LOCK_WORKERS, &job->finished);
  quay__global_release(QUAY__LOCK_WORKERS);
}

static quay_status run_inline(uint64_t count, quay__task task, void *context) {
  for (uint64_t index = 0; index < count; index++)
    QUAY_TRY(task(context, index));
  return QUAY_OK;
}

quay_status quay__workers_run(uint32_t threads, uint64_t count, quay__task task, void *context) {
  if (threads <= 1 || count <= 1 || in_task)
    return run_inline(count, task, context);

  struct job job;
  job.task = task;
  job.context = context;
  job.count = count;
  atomic_init(&job.next_index, 0);
  atomic_init(&job.failed, false);
  job.max_helpers = (uint32_t)quay__min(quay__min(threads, count) - 1, MAX_WORKERS);
  job.helpers = 0;
  if (pthread_cond_init(&job.finished, NULL) != 0)
    return run_inline(count, task, context);

  own_job = &job;
  publish_job(&job);
  take_part(&job, 0);
  retract_job(&job);
  own_job = NULL;
  pthread_cond_destroy(&job.finished);

  if (!atomic_load_explicit(&job.failed, memory_order_acquire))
    return QUAY_OK;
  quay__error_restore(&job.error);
  return job.error.status;
}

/* Joins everyone but the calling thread, which may be a worker: a task that ends the program. */
static void join_all(uint32_t count) {
  for (uint32_t i = 0; i < count; i++) {
    if (pthread_equal(workers.threads[i], pthread_self())) {
      pthread_detach(workers.threads[i]);
      continue;
    }
    const int error = pthread_join(workers.threads[i], NULL);
    if (error != 0) {
      quay_log(QUAY_LOG_ERROR, "can't join a worker thread: %s", quay__errno_name(error));
    }
  }
}

void quay__workers_stop(void) {
  quay__global_acquire(QUAY__LOCK_WORKERS);
  if (workers.stopping) {
    /* Somebody else is at it. A worker must not wait for whoever joins it. */
    while (!is_worker && workers.stopping)
      quay__global_wait(QUAY__LOCK_WORKERS, &stopped);
    quay__global_release(QUAY__LOCK_WORKERS);
    return;
  }
  workers.stopping = true;
  pthread_cond_broadcast(&work);
  const uint32_t count = workers.count;
  quay__global_release(QUAY__LOCK_WORKERS);

  join_all(count); /* nobody else touches `threads` while `stopping` is set */

  quay__global_acquire(QUAY__LOCK_WORKERS);
  workers.count = 0;
  workers.stopping = false;
  pthread_cond_broadcast(&stopped);
  quay__global_release(QUAY__LOCK_WORKERS);
}

void quay__workers_after_fork_in_child(void) {
  static const pthread_cond_t fresh = PTHREAD_COND_INITIALIZER;
  work = fresh;
  stopped = fresh;
  workers.count = 0;
  workers.idle = 0;
  workers.stopping = false;
  workers.jobs = NULL;
  if (own_job != NULL && own_job->helpers != 0) {
    /* Forked from inside a task, a progress callback say: what the helpers had begun is lost. */
    own_job->helpers = 0;
    fail_job(own_job, quay__fail(QUAY_STATUS_UNAVAILABLE,
                                 "the process was forked while other threads worked on this call: "
                                 "in the child it can't be finished; repeat it"));
  }
}
