/* The worker threads: every index once, errors, sharing, stop, fork. Linked with
 * --wrap=pthread_create, so that starting a thread can fail. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/error.h"
#include "core/os.h"
#include "core/thread.h"
#include "core/workers.h"

static atomic_bool no_threads;

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*start)(void *), void *argument);

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*start)(void *), void *argument) {
  if (atomic_load(&no_threads))
    return EAGAIN;
  return __real_pthread_create(thread, attributes, start, argument);
}

/* Waits until `*value` is at least `wanted`; false after ten seconds. */
static bool reaches(atomic_uint *value, unsigned wanted) {
  const uint64_t end = quay__os_nanoseconds() + 10000000000u;
  while (atomic_load(value) < wanted) {
    if (quay__os_nanoseconds() > end)
      return false;
    usleep(100);
  }
  return true;
}

/* Threads of this process that bear the workers' name. */
static unsigned worker_count(void) {
  unsigned found = 0;
  DIR *directory = opendir("/proc/self/task");
  for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
    char path[300], name[32] = "";
    snprintf(path, sizeof path, "/proc/self/task/%s/comm", entry->d_name);
    FILE *file = fopen(path, "r");
    if (file == NULL)
      continue;
    if (fgets(name, sizeof name, file) != NULL && strcmp(name, "quay-worker\n") == 0)
      found++;
    fclose(file);
  }
  closedir(directory);
  return found;
}

/* A thread that was joined may be listed a moment longer. */
static bool workers_are_gone(void) {
  for (int i = 0; i < 5000; i++) {
    if (worker_count() == 0)
      return true;
    usleep(1000);
  }
  return false;
}

#define COUNT 5000

static quay_status mark(void *context, uint64_t index) {
  atomic_uint *seen = context;
  atomic_fetch_add(&seen[index], 1);
  return QUAY_OK;
}

static void check_every_index_runs_once(uint32_t threads, uint64_t count) {
  static atomic_uint seen[COUNT + 1];
  for (uint64_t i = 0; i <= COUNT; i++)
    atomic_store(&seen[i], 0);
  cr_assert_eq(quay__workers_run(threads, count, mark, seen), QUAY_OK);
  for (uint64_t i = 0; i <= COUNT; i++)
    cr_assert_eq(atomic_load(&seen[i]), i < count ? 1u : 0u, "index %d", (int)i);
}

Test(workers, run_calls_the_task_once_for_every_index) {
  for (int round = 0; round < 20; round++) {
    check_every_index_runs_once(1, COUNT);
    check_every_index_runs_once(4, COUNT);
    check_every_index_runs_once(16, 3);
    check_every_index_runs_once(3, 1);
    check_every_index_runs_once(3, 0);
  }
}

/* Each task waits for all the others: done only if so many threads are in it at once. */
typedef struct meeting {
  atomic_uint arrived;
  unsigned wanted;
} meeting;

static quay_status meet(void *context, uint64_t index) {
  meeting *place = context;
  (void)index;
  atomic_fetch_add(&place->arrived, 1);
  if (reaches(&place->arrived, place->wanted))
    return QUAY_OK;
  return quay__fail(QUAY_STATUS_BUSY, "nobody else came");
}

static quay_status run_meeting(uint32_t threads) {
  meeting place = {.wanted = threads};
  return quay__workers_run(threads, threads, meet, &place);
}

Test(workers, run_uses_as_many_threads_as_asked_at_once) {
  cr_assert_eq(run_meeting(5), QUAY_OK);
}

Test(workers, no_more_threads_are_kept_than_were_asked_for) {
  cr_assert_eq(worker_count(), 0u);
  cr_assert_eq(run_meeting(3), QUAY_OK);
  cr_assert_eq(worker_count(), 2u);
  cr_assert_eq(run_meeting(2), QUAY_OK);
  cr_assert_eq(worker_count(), 2u);
  cr_assert_eq(run_meeting(4), QUAY_OK);
  cr_assert_eq(worker_count(), 3u);
}

Test(workers, one_thread_starts_no_worker) {
  check_every_index_runs_once(1, COUNT);
  cr_assert_eq(worker_count(), 0u);
}

/* Errors. */

typedef struct failing {
  pthread_t caller;
  bool on_caller; /* who fails: the caller, or the worker */
  atomic_uint arrived, started;
} failing;

static quay_status fail_on_one_side(void *context, uint64_t index) {
  failing *place = context;
  atomic_fetch_add(&place->started, 1);
  if (index < 2) { /* both threads hold one */
    atomic_fetch_add(&place->arrived, 1);
    reaches(&place->arrived, 2);
  }
  const bool on_caller = pthread_equal(pthread_self(), place->caller) != 0;
  if (on_caller != place->on_caller)
    return QUAY_OK;
  return quay_error_set(QUAY_STATUS_IO, "test", 28, "ENOSPC", "index %s failed", "so and so");
}

static void check_that_the_error_arrives(bool on_caller) {
  failing place = {.caller = pthread_self(), .on_caller = on_caller};
  quay_error_clear();
  cr_assert_eq(quay__workers_run(2, 1000000, fail_on_one_side, &place), QUAY_STATUS_IO);
  const quay_error *error = quay_last_error();
  cr_assert_eq(error->status, QUAY_STATUS_IO);
  cr_assert_eq(error->native_code, 28);
  cr_assert_str_eq(error->native_name, "ENOSPC");
  cr_assert_str_eq(error->backend, "test");
  cr_assert_str_eq(error->message, "index so and so failed");
  cr_assert_lt(atomic_load(&place.started), 1000000u);
}

Test(workers, an_error_of_a_worker_becomes_the_callers) {
  for (int round = 0; round < 50; round++)
    check_that_the_error_arrives(false);
}

Test(workers, an_error_in_the_calling_thread_stops_the_workers) {
  for (int round = 0; round < 50; round++)
    check_that_the_error_arrives(true);
}

static quay_status always_fail(void *context, uint64_t index) {
  atomic_uint *started = context;
  atomic_fetch_add(started, 1);
  return quay__fail(QUAY_STATUS_OUT_OF_RANGE, "index %u", (unsigned)index);
}

Test(workers, after_the_first_failure_no_new_index_is_started) {
  for (int round = 0; round < 100; round++) {
    atomic_uint started = 0;
    cr_assert_eq(quay__workers_run(4, 100000, always_fail, &started), QUAY_STATUS_OUT_OF_RANGE);
    cr_assert_leq(atomic_load(&started), 4u);
  }
}

Test(workers, without_workers_the_first_failure_ends_the_run) {
  atomic_uint started = 0;
  cr_assert_eq(quay__workers_run(1, 100, always_fail, &started), QUAY_STATUS_OUT_OF_RANGE);
  cr_assert_eq(atomic_load(&started), 1u);
  cr_assert_str_eq(quay_last_error()->message, "index 0");
}

Test(workers, success_leaves_the_last_error_as_it_was) {
  const quay_status set = quay__fail(QUAY_STATUS_STALE, "an older matter");
  cr_assert_eq(set, QUAY_STATUS_STALE);
  check_every_index_runs_once(4, COUNT);
  cr_assert_eq(quay_last_error()->status, QUAY_STATUS_STALE);
  cr_assert_str_eq(quay_last_error()->message, "an older matter");
}

Test(workers, failures_of_a_thousand_runs_leave_the_next_one_whole) {
  for (int round = 0; round < 1000; round++) {
    atomic_uint started = 0;
    cr_assert_eq(quay__workers_run(3, 50, always_fail, &started), QUAY_STATUS_OUT_OF_RANGE);
  }
  check_every_index_runs_once(3, COUNT);
}

/* Nesting and sharing. */

static quay_status check_same_thread(void *context, uint64_t index) {
  const pthread_t *outer = context;
  (void)index;
  if (pthread_equal(pthread_self(), *outer))
    return QUAY_OK;
  return quay__fail(QUAY_STATUS_BUSY, "another thread");
}

static quay_status nest(void *context, uint64_t index) {
  (void)index;
  pthread_t self = pthread_self();
  atomic_fetch_add((atomic_uint *)context, 1);
  return quay__workers_run(8, 100, check_same_thread, &self);
}

Test(workers, a_call_from_inside_a_task_runs_in_its_own_thread) {
  atomic_uint ran = 0;
  cr_assert_eq(quay__workers_run(4, 200, nest, &ran), QUAY_OK);
  cr_assert_eq(atomic_load(&ran), 200u);
}

/* A thread's function: returns NULL, or what was wrong. */
static void *run_many_jobs(void *unused) {
  static char failed[] = "a run failed", lost[] = "an index did not run once";
  (void)unused;
  for (int round = 0; round < 200; round++) {
    atomic_uint seen[64] = {0};
    if (quay__workers_run(4, 64, mark, seen) != QUAY_OK)
      return failed;
    for (int i = 0; i < 64; i++) {
      if (atomic_load(&seen[i]) != 1)
        return lost;
    }
  }
  return NULL;
}

Test(workers, jobs_of_several_threads_run_at_the_same_time) {
  pthread_t threads[6];
  for (int i = 0; i < 6; i++)
    cr_assert_eq(pthread_create(&threads[i], NULL, run_many_jobs, NULL), 0);
  for (int i = 0; i < 6; i++) {
    void *problem;
    pthread_join(threads[i], &problem);
    cr_assert_null(problem, "%s", (const char *)problem);
  }
}

typedef struct long_job {
  atomic_uint started, finish;
} long_job;

static quay_status work_until_told(void *context, uint64_t index) {
  long_job *job = context;
  (void)index;
  atomic_fetch_add(&job->started, 1);
  if (atomic_load(&job->finish) != 0)
    return quay__fail(QUAY_STATUS_CANCELLED, "told to finish");
  usleep(1000);
  return QUAY_OK;
}

static void *run_long_job(void *context) {
  static char ended[] = "the long job ended by itself";
  const quay_status status = quay__workers_run(3, UINT64_MAX, work_until_told, context);
  return status == QUAY_STATUS_CANCELLED ? NULL : ended;
}

Test(workers, a_second_job_gets_a_share_of_the_workers_while_a_long_one_runs) {
  long_job first = {.started = 0};
  pthread_t thread;
  cr_assert_eq(pthread_create(&thread, NULL, run_long_job, &first), 0);
  cr_assert(reaches(&first.started, 6)); /* both workers are on it */
  const quay_status status = run_meeting(2);
  atomic_store(&first.finish, 1);
  void *problem;
  pthread_join(thread, &problem);
  cr_assert_eq(status, QUAY_OK);
  cr_assert_null(problem);
}

/* Open jobs. */

static quay_status count_here(void *context, uint64_t index) {
  atomic_uint *ran = context;
  (void)index;
  atomic_fetch_add(ran, 1);
  return QUAY_OK;
}

Test(workers, a_worker_runs_what_an_open_job_offers_while_the_caller_does_something_else) {
  quay__job job;
  atomic_uint ran = 0;
  quay__workers_open(&job, 1, count_here, &ran);
  cr_assert_eq(worker_count(), 0u); /* nothing was offered yet */
  for (unsigned i = 1; i <= 1000; i++) {
    quay__workers_offer(&job, 1);
    cr_assert(reaches(&ran, i));
  }
  quay__workers_close(&job);
  cr_assert_eq(quay__workers_result(&job), QUAY_OK);
  cr_assert_eq(atomic_load(&ran), 1000u);
  cr_assert_eq(worker_count(), 1u);
}

Test(workers, a_closed_job_runs_nothing_more) {
  for (int round = 0; round < 200; round++) {
    quay__job job;
    atomic_uint ran = 0;
    quay__workers_open(&job, 1, count_here, &ran);
    quay__workers_offer(&job, 1000000);
    quay__workers_close(&job);
    const unsigned then = atomic_load(&ran);
    usleep(100);
    cr_assert_eq(atomic_load(&ran), then);
  }
}

Test(workers, a_failure_in_an_open_job_ends_it_and_is_the_callers_after_closing) {
  quay__job job;
  atomic_uint started = 0;
  quay_error_clear();
  quay__workers_open(&job, 1, always_fail, &started);
  quay__workers_offer(&job, 5);
  cr_assert(reaches(&started, 1));
  while (!quay__workers_failed(&job))
    usleep(100);
  quay__workers_offer(&job, 5);
  quay__workers_close(&job);
  cr_assert_eq(atomic_load(&started), 1u);
  cr_assert_eq(quay_last_error()->status, QUAY_OK);
  cr_assert_eq(quay__workers_result(&job), QUAY_STATUS_OUT_OF_RANGE);
  cr_assert_str_eq(quay_last_error()->message, "index 0");
}

static quay_status open_in_task(void *context, uint64_t index) {
  quay__job job;
  (void)index;
  quay__workers_open(&job, 1, count_here, context);
  quay__workers_offer(&job, 1);
  usleep(5000);
  quay__workers_close(&job);
  return quay__workers_result(&job);
}

Test(workers, a_job_opened_inside_a_task_gets_no_helper) {
  atomic_uint ran = 0;
  cr_assert_eq(quay__workers_run(3, 6, open_in_task, &ran), QUAY_OK);
  cr_assert_eq(atomic_load(&ran), 0u);
}

Test(workers, an_open_job_gets_no_helper_where_no_thread_can_be_started) {
  quay__job job;
  atomic_uint ran = 0;
  atomic_store(&no_threads, true);
  quay__workers_open(&job, 1, count_here, &ran);
  quay__workers_offer(&job, 1);
  quay__workers_close(&job);
  cr_assert_eq(quay__workers_result(&job), QUAY_OK);
  cr_assert_eq(atomic_load(&ran), 0u);
}

static bool forks_after_a_job_without_helpers(void) {
  quay__job job;
  atomic_uint ran = 0;
  quay__workers_open(&job, 0, count_here, &ran);
  quay__workers_offer(&job, 3);
  quay__workers_close(&job);
  memset(&job, 0x5a, sizeof job); /* as whatever comes to its place */
  const pid_t child = fork();
  if (child == 0)
    _exit(0);
  int status = -1;
  return waitpid(child, &status, 0) == child && status == 0 && atomic_load(&ran) == 0;
}

Test(workers, a_job_opened_for_no_helpers_is_forgotten_when_it_is_closed) {
  cr_assert(forks_after_a_job_without_helpers());
}

Test(workers, open_jobs_of_several_callers_each_get_a_worker) {
  quay__job jobs[4]; /* one inside the other, as in callbacks */
  meeting place = {.wanted = 5};
  for (int i = 0; i < 4; i++) {
    quay__workers_open(&jobs[i], 1, meet, &place);
    quay__workers_offer(&jobs[i], 1);
  }
  cr_assert_eq(meet(&place, 0), QUAY_OK);
  for (int i = 4; i-- > 0;) {
    quay__workers_close(&jobs[i]);
    cr_assert_eq(quay__workers_result(&jobs[i]), QUAY_OK);
  }
}

static quay_status check_in_staging(void *context, uint64_t index) {
  const bool *wanted = context;
  if (quay__thread_in_staging != *wanted)
    return quay__fail(QUAY_STATUS_BUSY, "index %d is told otherwise", (int)index);
  usleep(2000);
  return QUAY_OK;
}

Test(workers, whoever_works_for_a_staged_copy_knows_it) {
  bool in_staging = true;
  quay__thread_in_staging = true;
  cr_assert_eq(quay__workers_run(3, 9, check_in_staging, &in_staging), QUAY_OK);
  cr_assert(quay__thread_in_staging);
  quay__thread_in_staging = in_staging = false;
  cr_assert_eq(quay__workers_run(3, 9, check_in_staging, &in_staging), QUAY_OK);
  cr_assert_not(quay__thread_in_staging);
}

/* Threads and the process. */

static quay_status check_signals_are_blocked(void *context, uint64_t index) {
  failing *place = context;
  (void)index;
  atomic_fetch_add(&place->arrived, 1);
  if (!reaches(&place->arrived, 2))
    return quay__fail(QUAY_STATUS_BUSY, "nobody else came");
  if (pthread_equal(pthread_self(), place->caller))
    return QUAY_OK;
  sigset_t blocked;
  pthread_sigmask(SIG_SETMASK, NULL, &blocked);
  for (int signal = 1; signal < 32; signal++) {
    if (signal != SIGKILL && signal != SIGSTOP && !sigismember(&blocked, signal))
      return quay__fail(QUAY_STATUS_BUSY, "signal %d is open", signal);
  }
  return QUAY_OK;
}

Test(workers, workers_block_all_signals_and_the_callers_mask_is_kept) {
  sigset_t before, after;
  sigemptyset(&before);
  sigaddset(&before, SIGUSR1);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  failing place = {.caller = pthread_self()};
  cr_assert_eq(quay__workers_run(2, 2, check_signals_are_blocked, &place), QUAY_OK);
  pthread_sigmask(SIG_SETMASK, NULL, &after);
  for (int signal = 1; signal < 32; signal++)
    cr_assert_eq(sigismember(&after, signal), signal == SIGUSR1 ? 1 : 0, "signal %d", signal);
}

Test(workers, stop_leaves_no_thread_and_the_next_run_starts_them_again) {
  for (int round = 0; round < 20; round++) {
    cr_assert_eq(run_meeting(4), QUAY_OK);
    cr_assert_eq(worker_count(), 3u);
    quay__workers_stop();
    cr_assert(workers_are_gone());
  }
}

Test(workers, stop_without_workers_does_nothing) {
  quay__workers_stop();
  quay__workers_stop();
  check_every_index_runs_once(2, COUNT);
}

static void *stop_often(void *unused) {
  for (int i = 0; i < 100; i++)
    quay__workers_stop();
  return unused;
}

Test(workers, stops_from_several_threads_while_jobs_run_lose_no_index) {
  pthread_t stoppers[3];
  for (int i = 0; i < 3; i++)
    cr_assert_eq(pthread_create(&stoppers[i], NULL, stop_often, NULL), 0);
  cr_assert_null(run_many_jobs(NULL));
  for (int i = 0; i < 3; i++)
    pthread_join(stoppers[i], NULL);
  quay__workers_stop();
  cr_assert(workers_are_gone());
}

static quay_status stop_in_worker(void *context, uint64_t index) {
  failing *place = context;
  (void)index;
  atomic_fetch_add(&place->arrived, 1);
  if (!reaches(&place->arrived, 2))
    return quay__fail(QUAY_STATUS_BUSY, "nobody else came");
  if (!pthread_equal(pthread_self(), place->caller))
    quay__workers_stop();
  return QUAY_OK;
}

Test(workers, stop_called_by_a_worker_does_not_wait_for_itself) {
  failing place = {.caller = pthread_self()};
  cr_assert_eq(quay__workers_run(2, 2, stop_in_worker, &place), QUAY_OK);
  check_every_index_runs_once(4, COUNT);
}

Test(workers, where_no_thread_can_be_started_the_caller_does_all) {
  atomic_store(&no_threads, true);
  check_every_index_runs_once(4, COUNT);
  cr_assert(workers_are_gone());
  atomic_store(&no_threads, false);
  cr_assert_eq(run_meeting(4), QUAY_OK);
}

static void count_line(void *user, quay_log_level level, const char *message) {
  if (level == QUAY_LOG_WARNING && strstr(message, "EAGAIN") != NULL)
    atomic_fetch_add((atomic_uint *)user, 1);
}

Test(workers, a_thread_that_cannot_be_started_is_told_once_in_the_log) {
  atomic_uint lines = 0;
  quay_log_set(count_line, &lines, QUAY_LOG_INFO);
  atomic_store(&no_threads, true);
  check_every_index_runs_once(4, COUNT);
  check_every_index_runs_once(4, COUNT);
  quay_log_set(NULL, NULL, QUAY_LOG_INFO);
  cr_assert_eq(atomic_load(&lines), 1u);
}

/* Runs `body` in a forked child; true if it returned true there. */
static bool in_child(bool (*body)(void)) {
  const pid_t child = fork();
  if (child == 0)
    _exit(body() ? 0 : 1);
  int status;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static bool threads_are_made_anew(void) {
  return worker_count() == 0 && run_meeting(3) == QUAY_OK && worker_count() == 2;
}

Test(workers, a_forked_child_makes_its_own_workers) {
  cr_assert_eq(run_meeting(3), QUAY_OK);
  cr_assert(in_child(threads_are_made_anew));
  cr_assert_eq(run_meeting(3), QUAY_OK);
}

static void *fork_often(void *result) {
  for (int i = 0; i < 20; i++) {
    if (!in_child(threads_are_made_anew))
      *(bool *)result = false;
  }
  return NULL;
}

Test(workers, a_child_forked_while_other_threads_use_the_workers_can_use_them) {
  bool good = true;
  pthread_t thread;
  /* The workers are there before the first fork: AddressSanitizer has locks of its own, which a
   * thread holds while it begins, and which do not survive a fork. */
  cr_assert_eq(run_meeting(4), QUAY_OK);
  cr_assert_eq(pthread_create(&thread, NULL, fork_often, &good), 0);
  void *problem = run_many_jobs(NULL);
  pthread_join(thread, NULL);
  cr_assert(good);
  cr_assert_null(problem);
}

typedef struct forking {
  pthread_t caller;
  atomic_uint arrived, forked;
  pid_t child; /* in the child 0 */
} forking;

static quay_status fork_in_task(void *context, uint64_t index) {
  forking *place = context;
  (void)index;
  atomic_fetch_add(&place->arrived, 1);
  if (!reaches(&place->arrived, 2))
    return quay__fail(QUAY_STATUS_BUSY, "nobody else came");
  if (pthread_equal(pthread_self(), place->caller)) {
    place->child = fork();
    atomic_store(&place->forked, 1);
  } else {
    reaches(&place->forked, 1);
  }
  return QUAY_OK;
}

Test(workers, a_call_that_forks_midway_succeeds_in_the_parent_and_is_refused_in_the_child) {
  forking place = {.caller = pthread_self(), .child = -1};
  const quay_status status = quay__workers_run(2, 2, fork_in_task, &place);
  if (place.child == 0) {
    const bool refused =
        status == QUAY_STATUS_UNAVAILABLE && strstr(quay_last_error()->message, "forked") != NULL;
    _exit(refused && threads_are_made_anew() ? 0 : 1);
  }
  cr_assert_eq(status, QUAY_OK);
  int result;
  cr_assert_eq(waitpid(place.child, &result, 0), place.child);
  cr_assert(WIFEXITED(result) && WEXITSTATUS(result) == 0);
}
