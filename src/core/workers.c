/* The process's worker threads and the jobs that they share with their callers. A job is a range of
 * indices: its caller and its helpers take one after another until none is left; or, of an open
 * job, its helper alone takes those that the caller has offered. Knows nothing of copies. */
#include "core/workers.h"

#include <signal.h>
#include <string.h>

#include "core/checked.h"
#include "core/error.h"
#include "core/lifecycle.h"
#include "core/lock.h"
#include "core/os.h"
#include "core/thread.h"
#include "core/topology.h"

/* $QUAY_COPY_THREADS goes up to 1024, the caller's included. */
#define MAX_WORKERS 1023u

/* All guarded by QUAY__LOCK_WORKERS. */
static struct {
  pthread_t threads[MAX_WORKERS];
  uint32_t count; /* of `threads` */
  uint32_t idle;  /* of those, waiting for `work` */
  bool stopping;
  bool told_of_failure; /* one line in the log is enough */
  uint32_t open;        /* open jobs in `jobs` */
  quay__job *jobs;
} workers;
static pthread_cond_t work = PTHREAD_COND_INITIALIZER;    /* a job came, or `stopping` was set */
static pthread_cond_t stopped = PTHREAD_COND_INITIALIZER; /* `stopping` was cleared */

/* Counts the jobs that came: a worker that sees it change looks whether another job needs it more.
 */
static atomic_uint jobs_seen;

static _Thread_local quay__job *own_job; /* the innermost job that this thread is the caller of */
static _Thread_local bool in_task;       /* this thread runs a task: nested calls run inline */
static _Thread_local bool is_worker;
static _Thread_local unsigned seen_jobs; /* a worker's: `jobs_seen` when it took its job */

static void fail_job(quay__job *job, quay_status status) {
  if (atomic_exchange_explicit(&job->failed, true, memory_order_acq_rel))
    return;
  quay__error_save(&job->error);
  job->error.status = status;
}

static bool take_index(quay__job *job, uint64_t *out_index) {
  *out_index = atomic_load_explicit(&job->next_index, memory_order_relaxed);
  while (*out_index < atomic_load_explicit(&job->count, memory_order_relaxed)) {
    if (atomic_compare_exchange_weak_explicit(&job->next_index, out_index, *out_index + 1,
                                              memory_order_relaxed, memory_order_relaxed))
      return true;
  }
  return false;
}

bool quay__workers_called(void) {
  return is_worker && atomic_load_explicit(&jobs_seen, memory_order_relaxed) != seen_jobs;
}

/* Takes indices until none is left, the job has failed or, for a worker, another job came. */
static void take_part(quay__job *job) {
  const bool in_staging = quay__thread_in_staging;
  quay__thread_in_staging = job->in_staging;
  in_task = true;
  while (!atomic_load_explicit(&job->failed, memory_order_relaxed)) {
    if (quay__workers_called())
      break;
    uint64_t index;
    if (!take_index(job, &index))
      break;
    const quay_status status = job->task(job->context, index);
    if (status != QUAY_OK)
      fail_job(job, status);
  }
  in_task = false;
  quay__thread_in_staging = in_staging;
}

static bool wants_helpers(quay__job *job) {
  return job->helpers < job->max_helpers &&
         !atomic_load_explicit(&job->failed, memory_order_relaxed) &&
         atomic_load_explicit(&job->next_index, memory_order_relaxed) <
             atomic_load_explicit(&job->count, memory_order_relaxed);
}

/* The job with the fewest helpers among those that want one; NULL if there is none. */
static quay__job *neediest_job(void) {
  quay__job *best = NULL;
  for (quay__job *candidate = workers.jobs; candidate != NULL; candidate = candidate->next) {
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
    seen_jobs = atomic_load_explicit(&jobs_seen, memory_order_relaxed);
    quay__job *job = neediest_job();
    if (job == NULL) {
      workers.idle++;
      quay__global_wait(QUAY__LOCK_WORKERS, &work);
      workers.idle--;
      continue;
    }
    job->helpers++;
    quay__global_release(QUAY__LOCK_WORKERS);
    take_part(job);
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
  const quay__processors *unbound = quay__topology_unbound();
  cpu_set_t all_processors;
  if (unbound != NULL)
    memcpy(&all_processors, unbound, sizeof all_processors);
  while (error == 0 && workers.count < wanted) {
    error = pthread_create(&workers.threads[workers.count], NULL, worker_main, NULL);
    /* Else it would keep to its starter's node for good. */
    if (error == 0 && unbound != NULL) {
      (void)pthread_setaffinity_np(workers.threads[workers.count], sizeof all_processors,
                                   &all_processors);
    }
    if (error == 0)
      workers.count++;
  }
  const int restored = pthread_sigmask(SIG_SETMASK, &before, NULL);
  return error != 0 ? error : restored;
}

static void wake_helpers(uint64_t wanted) {
  const uint64_t sleeping = quay__min(workers.idle, wanted);
  for (uint64_t i = 0; i < sleeping; i++)
    pthread_cond_signal(&work);
}

/* Makes the job known, offers what it has, and calls for helpers, for whom there are to be
 * `threads` workers. What can't be started is not missed: the caller does their part. The lock is
 * held, and released. */
static void publish_job(quay__job *job, uint32_t threads, uint64_t helpers) {
  int error = 0;
  if (!workers.stopping)
    error = start_threads(threads);
  const bool tell = error != 0 && !workers.told_of_failure;
  if (tell)
    workers.told_of_failure = true;
  job->next = workers.jobs;
  workers.jobs = job;
  job->listed = true;
  atomic_fetch_add_explicit(&jobs_seen, 1, memory_order_relaxed);
  wake_helpers(helpers);
  quay__global_release(QUAY__LOCK_WORKERS);
  if (tell) {
    quay_log(QUAY_LOG_WARNING, "can't start a worker thread (%s): copies run with fewer threads",
             quay__errno_name(error));
  }
}

static void retract_job(quay__job *job) {
  quay__global_acquire(QUAY__LOCK_WORKERS);
  /* The list is another one in a child that was forked from inside a task. */
  quay__job **link = &workers.jobs;
  while (*link != NULL && *link != job)
    link = &(*link)->next;
  if (*link != NULL) {
    *link = job->next;
    workers.open -= job->open ? 1 : 0;
  }
  while (job->helpers != 0)
    quay__global_wait(QUAY__LOCK_WORKERS, &job->finished);
  quay__global_release(QUAY__LOCK_WORKERS);
}

static quay_status run_inline(uint64_t count, quay__task task, void *context) {
  for (uint64_t index = 0; index < count; index++)
    QUAY_TRY(task(context, index));
  return QUAY_OK;
}

/* False if it can't have helpers. Not inlined: gcc 12 does not see that end_job() takes the job's
 * address out of `own_job` before the job's frame ends. */
__attribute__((noinline)) static bool begin_job(quay__job *job, uint64_t count, quay__task task,
                                                void *context) {
  job->outer = own_job;
  job->task = task;
  job->context = context;
  atomic_init(&job->count, count);
  atomic_init(&job->next_index, 0);
  atomic_init(&job->failed, false);
  job->listed = false;
  job->open = false;
  job->in_staging = quay__thread_in_staging;
  job->max_helpers = 0;
  job->helpers = 0;
  if (in_task || pthread_cond_init(&job->finished, NULL) != 0)
    return false;
  own_job = job;
  return true;
}

static void end_job(quay__job *job) {
  own_job = job->outer;
  pthread_cond_destroy(&job->finished);
}

quay_status quay__workers_run(uint32_t threads, uint64_t count, quay__task task, void *context) {
  quay__job job;
  if (threads <= 1 || count <= 1 || !begin_job(&job, count, task, context))
    return run_inline(count, task, context);
  job.max_helpers = (uint32_t)quay__min(quay__min(threads, count) - 1, MAX_WORKERS);
  quay__lifecycle_begin();
  quay__global_acquire(QUAY__LOCK_WORKERS);
  publish_job(&job, job.max_helpers, job.max_helpers);
  take_part(&job);
  retract_job(&job);
  end_job(&job);
  return quay__workers_result(&job);
}

void quay__workers_open(quay__job *job, uint32_t helpers, quay__task task, void *context) {
  if (!begin_job(job, 0, task, context))
    return;
  job->max_helpers = (uint32_t)quay__min(helpers, MAX_WORKERS);
  if (helpers == 0)
    end_job(job); /* nobody closes what nobody helps with */
}

/* Workers for all open jobs, but no more of them than processors, unless one job asked for so many,
 * or there are so many jobs. The lock is held. */
static uint32_t threads_for_open_jobs(void) {
  uint64_t all = 0, most = workers.open;
  for (const quay__job *job = workers.jobs; job != NULL; job = job->next) {
    if (!job->open)
      continue;
    all += job->max_helpers;
    most = quay__max(most, job->max_helpers);
  }
  const uint64_t others = quay__os_processor_count() - 1;
  return (uint32_t)quay__min(quay__min(all, quay__max(most, others)), MAX_WORKERS);
}

/* A worker that takes an index meanwhile looks for its task after it was offered, so that it counts
 * as one of those that are called for here. */
void quay__workers_offer(quay__job *job, uint64_t tasks) {
  if (job->max_helpers == 0 || tasks == 0)
    return;
  quay__lifecycle_begin();
  quay__global_acquire(QUAY__LOCK_WORKERS);
  const uint64_t next = atomic_load_explicit(&job->next_index, memory_order_relaxed);
  atomic_store_explicit(&job->count, next + tasks, memory_order_relaxed);
  const uint64_t wanted = quay__min(tasks, job->max_helpers);
  if (!job->listed) {
    job->open = true;
    workers.open++;
    job->next = workers.jobs; /* for the sum; publish_job() does the same again */
    workers.jobs = job;
    const uint32_t threads = threads_for_open_jobs();
    workers.jobs = job->next;
    publish_job(job, threads, wanted);
    return;
  }
  if (job->helpers < wanted) {
    const uint64_t missing = wanted - job->helpers;
    if (missing > workers.idle)
      atomic_fetch_add_explicit(&jobs_seen, 1, memory_order_relaxed);
    wake_helpers(missing);
  }
  quay__global_release(QUAY__LOCK_WORKERS);
}

bool quay__workers_failed(quay__job *job) {
  return atomic_load_explicit(&job->failed, memory_order_acquire);
}

void quay__workers_close(quay__job *job) {
  if (job->max_helpers == 0)
    return;
  if (job->listed)
    retract_job(job);
  end_job(job);
}

quay_status quay__workers_result(quay__job *job) {
  if (!quay__workers_failed(job))
    return QUAY_OK;
  quay__error_restore(&job->error);
  return job->error.status;
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
  workers.open = 0;
  for (quay__job *job = own_job; job != NULL; job = job->outer) {
    if (job->helpers == 0)
      continue;
    /* Forked from inside a task, a progress callback say: what the helpers had begun is lost. */
    job->helpers = 0;
    fail_job(job, quay__fail(QUAY_STATUS_UNAVAILABLE,
                             "the process was forked while other threads worked on this call: "
                             "in the child it can't be finished; repeat it"));
  }
}
