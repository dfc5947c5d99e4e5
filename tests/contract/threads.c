/* Several threads on one target. Threads do not assert: they say what went wrong. */
#include "contract.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#define THREADS 8

struct job;
/* What went wrong, or NULL. */
typedef const char *(*job_function)(const struct job *own);

typedef struct job {
  job_function function;
  const char *problem;
  quay_allocator *allocator;
  quay_buffer *buffer;
  unsigned number;
  pthread_barrier_t *start;
} job;

static void *start_job(void *argument) {
  job *own = argument;
  own->problem = own->function(own);
  return NULL;
}

static void run_threads(job_function function, quay_allocator *allocator, quay_buffer *buffer) {
  pthread_t threads[THREADS];
  job jobs[THREADS];
  pthread_barrier_t start;
  pthread_barrier_init(&start, NULL, THREADS);
  for (unsigned i = 0; i < THREADS; i++) {
    jobs[i] = (job){.function = function,
                    .allocator = allocator,
                    .buffer = buffer,
                    .number = i,
                    .start = &start};
    cr_assert_eq(pthread_create(&threads[i], NULL, start_job, &jobs[i]), 0);
  }
  for (unsigned i = 0; i < THREADS; i++)
    pthread_join(threads[i], NULL);
  for (unsigned i = 0; i < THREADS; i++)
    cr_assert_null(jobs[i].problem, "thread %u: %s", i, jobs[i].problem);
  pthread_barrier_destroy(&start);
}

static const char *allocate_and_free(const job *own) {
  uint64_t state = own->number + 1;
  pthread_barrier_wait(own->start);
  for (int round = 0; round < 200; round++) {
    const uint64_t size = quay_test_random(&state) % 20000 + 1;
    quay_raw_buffer raw;
    if (quay_allocator_alloc(own->allocator, size, NULL, &raw) != QUAY_OK)
      return "alloc failed";
    void *pointer = NULL;
    if (quay_raw_buffer_host_accessible(&raw)) {
      if (quay_raw_buffer_host_pointer(&raw, &pointer) != QUAY_OK)
        return "no pointer";
      memset(pointer, (int)own->number, size);
      for (uint64_t i = 0; i < size; i += 97) {
        if (((unsigned char *)pointer)[i] != own->number)
          return "another thread wrote here";
      }
    }
    quay_raw_buffer_free(&raw);
  }
  return NULL;
}

Test(threads, racing_allocations_never_overlap_and_are_all_counted) {
  quay_allocator *allocator = contract_open();
  run_threads(allocate_and_free, allocator, NULL);
  quay_stats stats;
  CONTRACT_OK(quay_allocator_stats(allocator, &stats));
  cr_assert_eq(stats.alloc_count, THREADS * 200);
  cr_assert_eq(stats.free_count, THREADS * 200);
  contract_close(allocator);
}

static const char *ensure(const job *own) {
  pthread_barrier_wait(own->start);
  if (quay_buffer_ensure_allocated(own->buffer) != QUAY_OK)
    return "ensure_allocated failed";
  return quay_buffer_is_allocated(own->buffer) ? NULL : "returned before it was allocated";
}

Test(threads, racing_threads_allocate_a_lazy_buffer_once) {
  quay_allocator *allocator = contract_open();
  for (int round = 0; round < 50; round++) {
    const int64_t shape[] = {70000};
    quay_buffer *buffer = NULL;
    quay_stats before;
    quay_stats after;
    CONTRACT_OK(quay_allocator_stats(allocator, &before));
    CONTRACT_OK(quay_buffer_create_lazy(allocator, QUAY_U8, 1, shape, NULL, &buffer));
    run_threads(ensure, allocator, buffer);
    CONTRACT_OK(quay_allocator_stats(allocator, &after));
    cr_assert_eq(after.alloc_count - before.alloc_count, 1);
    quay_buffer_release(buffer);
  }
  contract_close(allocator);
}

static const char *write_own_part(const job *own) {
  unsigned char bytes[999];
  quay_buffer *view = NULL;
  memset(bytes, (int)(0x10 + own->number), sizeof bytes);
  pthread_barrier_wait(own->start);
  if (quay_buffer_view(own->buffer, own->number * sizeof bytes, sizeof bytes, &view) != QUAY_OK)
    return "no view";
  const quay_status status = quay_buffer_copy_in(view, bytes, sizeof bytes);
  quay_buffer_release(view);
  return status == QUAY_OK ? NULL : "copy_in failed";
}

Test(threads, threads_that_write_windows_of_one_lazy_buffer_lose_nothing) {
  quay_allocator *allocator = contract_open();
  const int64_t shape[] = {THREADS * 999};
  unsigned char expected[THREADS * 999];
  quay_buffer *buffer = NULL;
  CONTRACT_OK(quay_buffer_create_lazy(allocator, QUAY_U8, 1, shape, NULL, &buffer));
  run_threads(write_own_part, allocator, buffer);
  for (size_t i = 0; i < sizeof expected; i++)
    expected[i] = (unsigned char)(0x10 + i / 999);
  contract_check_bytes(buffer, expected, "eight threads' windows");
  quay_buffer_release(buffer);
  contract_close(allocator);
}

static const char *fail_differently(const job *own) {
  quay_raw_buffer raw;
  const quay_alloc_options odd = {.alignment = 3};
  if (quay_last_error()->status != QUAY_OK)
    return "a new thread begins with an error";
  pthread_barrier_wait(own->start);
  for (int round = 0; round < 100; round++) {
    const quay_status expected =
        own->number % 2 == 0 ? QUAY_STATUS_INVALID_ARGUMENT : QUAY_STATUS_OUT_OF_RANGE;
    quay_buffer *view = NULL;
    const quay_status status =
        own->number % 2 == 0 ? quay_allocator_alloc(own->allocator, 10, &odd, &raw)
                             : quay_buffer_view(own->buffer, 1u + own->number, UINT64_MAX, &view);
    if (status != expected || quay_last_error()->status != expected)
      return "an error of another thread is here";
  }
  return NULL;
}

Test(threads, errors_stay_in_their_thread) {
  quay_allocator *allocator = contract_open();
  quay_buffer *buffer = contract_buffer(allocator, 100, 3);
  quay_error_clear();
  run_threads(fail_differently, allocator, buffer);
  cr_assert_eq(quay_last_error()->status, QUAY_OK);
  cr_assert_str_empty(quay_last_error()->message);
  quay_buffer_release(buffer);
  contract_close(allocator);
}
