/* Copies of host memory and files to and from Vulkan's memory by CUDA, where something about CUDA
 * is wrong or changes: each of its calls fails, it refuses, it is reset, it goes. */
#include <fcntl.h>

#include "core/staging_tuning.h"
#include "cuda_vulkan_fixture.h"

#define SIZE ((uint64_t)5 * 1024 * 1024 + 12345)

/* Memory of Vulkan's, and a file or host memory beside it. */
typedef struct two {
  quay_allocator *vulkan, *cuda, *other;
  quay_buffer *there, *here;
} two;

static two two_open(const char *other) {
  two made = {
      .vulkan = open_spec("vulkan:0"), .cuda = open_spec("cuda:0"), .other = open_spec(other)};
  made.there = make_buffer(made.vulkan, SIZE);
  made.here = make_buffer(made.other, SIZE);
  return made;
}

static void two_close(two *ended) {
  quay_buffer_release(ended->there);
  quay_buffer_release(ended->here);
  quay_allocator_release(ended->other);
  quay_allocator_release(ended->cuda);
  quay_allocator_release(ended->vulkan);
}

/* What becomes of a copy of which CUDA's n-th call fails. */
enum {
  ARRIVED = 1,
  TOLD,      /* the error is CUDA's */
  UNTOUCHED, /* there was no n-th call */
  WRONG_BYTES,
  WRONG_ERROR
};

static int copy_and_judge(const two *both, bool in, uint64_t nth, int code) {
  quay_buffer *to = in ? both->there : both->here, *from = in ? both->here : both->there;
  const uint64_t failed = sim->failed();
  sim->fail(NULL, nth, code);
  const quay_status status = quay_buffer_copy_from(to, from);
  sim->fail(NULL, 0, 0);
  if (sim->failed() == failed)
    return UNTOUCHED;
  if (status != QUAY_OK) {
    const quay_error *error = quay_last_error();
    if (strcmp(error->backend, "cuda") == 0)
      return TOLD;
    (void)fprintf(stderr, "call %llu: %s\n", (unsigned long long)nth, error->message);
    return WRONG_ERROR;
  }
  quay_test_block expected = quay_test_block_make(SIZE, 0, 21);
  quay_test_block found = quay_test_block_make(SIZE, 0, 22);
  CHECK_OK(quay_buffer_copy_out(to, found.data, SIZE));
  const bool right = quay_test_difference(found.data, expected.data, SIZE) == SIZE;
  quay_test_block_free(&found);
  quay_test_block_free(&expected);
  return right ? ARRIVED : WRONG_BYTES;
}

/* In a process of its own: what CUDA has lost it does not get back. */
static int outcome_of(const char *other, bool in, uint64_t nth, int code) {
  const pid_t child = fork();
  cr_assert_geq(child, 0);
  if (child == 0) {
    const two both = two_open(other);
    write_pattern(in ? both.here : both.there, 21);
    CHECK_OK(quay_buffer_fill(in ? both.there : both.here, "x", 1));
    CHECK_OK(quay_collect(NULL)); /* so that memory is locked anew */
    _exit(copy_and_judge(&both, in, nth, code));
  }
  int status = 0;
  cr_assert_eq(waitpid(child, &status, 0), child);
  cr_assert(WIFEXITED(status), "call %llu", (unsigned long long)nth);
  return WEXITSTATUS(status);
}

/* The calls before the first transfer; and many of those behind it, where there is time. Each is
 * tried in a process of its own that opens both drivers, which takes a second or more under a
 * sanitizer. */
#define CALLS         13
#define CALLS_FULL    80
#define SWEEP_SECONDS 600

static void sweep(const char *other, int code) {
  const uint64_t calls = getenv("QUAY_TEST_FULL") != NULL ? CALLS_FULL : CALLS;
  for (int in = 0; in < 2; in++) {
    for (uint64_t nth = 1; nth <= calls; nth++) {
      const int outcome = outcome_of(other, in != 0, nth, code);
      cr_expect(outcome == ARRIVED || outcome == TOLD || (outcome == UNTOUCHED && nth > CALLS),
                "%s, %s, call %llu: %d", other, in != 0 ? "in" : "out", (unsigned long long)nth,
                outcome);
    }
  }
}

Test(cuda_vulkan_host, a_copy_of_a_file_arrives_or_tells_of_cuda_whichever_call_finds_it_lost,
     .init = setup_both, .fini = teardown_both, .timeout = SWEEP_SECONDS) {
  sweep("mmap:/tmp", 700); /* CUDA_ERROR_ILLEGAL_ADDRESS */
}

Test(cuda_vulkan_host, a_copy_of_host_memory_arrives_or_tells_of_cuda_whichever_call_finds_it_lost,
     .init = setup_both, .fini = teardown_both, .timeout = SWEEP_SECONDS) {
  if (getenv("QUAY_TEST_FULL") != NULL)
    sweep("cpu", 700);
}

Test(cuda_vulkan_host, a_copy_of_a_file_arrives_or_tells_of_cuda_whichever_call_has_no_memory,
     .init = setup_both, .fini = teardown_both, .timeout = SWEEP_SECONDS) {
  if (getenv("QUAY_TEST_FULL") != NULL)
    sweep("mmap:/tmp", 2); /* CUDA_ERROR_OUT_OF_MEMORY */
}

static void check_refusal(const char *other) {
  two both = two_open(other);
  write_pattern(both.there, 1);
  CHECK_OK(quay_collect(NULL));
  for (int round = 0; round < 2; round++) {
    if (round == 0)
      sim->fail("cuMemHostRegister_v2", 1, 2);
    write_pattern(both.here, 31);
    CHECK_OK(quay_buffer_copy_from(both.there, both.here));
    check_pattern(both.there, 31);
    const quay_copy_plan_info plan = plan_of(both.there, both.here);
    cr_assert_null(strstr(plan.reason, "CUDA"), "%s", plan.reason);
    cr_assert_not_null(strstr(plan.reason, "page-locked") != NULL ? plan.reason
                                                                  : strstr(plan.reason, "imported"),
                       "%s", plan.reason);
  }
  two_close(&both);
}

Test(cuda_vulkan_host, where_cuda_locks_no_memory_vulkan_copies_by_its_own_and_plans_say_so,
     .init = setup_both, .fini = teardown_both) {
  check_refusal("cpu");
  check_refusal("mmap:/tmp");
}

/* What threads find is the import of before the reset; each makes one, and one of them wins. */
enum {
  THREADS = 4,
  RESETS = 5
};

typedef struct copier {
  pthread_t thread;
  pthread_barrier_t *start;
  quay_buffer *there;
} copier;

static void *copy_back(void *argument) {
  const copier *own = argument;
  pthread_barrier_wait(own->start);
  check_pattern(own->there, 41);
  return NULL;
}

Test(cuda_vulkan_host, threads_that_find_cuda_reset_at_once_make_one_import_and_copy,
     .init = setup_both, .fini = teardown_both) {
  quay_allocator *vulkan = open_spec("vulkan:0"), *cuda = open_spec("cuda:0");
  quay_buffer *there = make_buffer(vulkan, SIZE);
  write_pattern(there, 41);
  pthread_barrier_t start;
  pthread_barrier_init(&start, NULL, THREADS);
  for (int round = 0; round < RESETS; round++) {
    CHECK_OK(quay_device_reset(quay_allocator_device(cuda)));
    copier each[THREADS];
    for (int i = 0; i < THREADS; i++) {
      each[i] = (copier){.start = &start, .there = there};
      cr_assert_eq(pthread_create(&each[i].thread, NULL, copy_back, &each[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
      pthread_join(each[i].thread, NULL);
  }
  pthread_barrier_destroy(&start);
  quay_buffer_release(there);
  quay_allocator_release(cuda);
  quay_allocator_release(vulkan);
}

static atomic_bool ended;

/* Whoever copies Vulkan's memory need not know of CUDA. */
static void *copy_until_ended(void *argument) {
  const two *both = argument;
  for (int i = 0; i < 3 || !atomic_load(&ended); i++)
    CHECK_OK(quay_buffer_copy_from(both->there, both->here));
  return NULL;
}

static void check_resets(const char *other) {
  two both = two_open(other);
  pthread_t copying;
  write_pattern(both.here, 51);
  atomic_store(&ended, false);
  cr_assert_eq(pthread_create(&copying, NULL, copy_until_ended, &both), 0);
  for (int round = 0; round < RESETS; round++) {
    (void)usleep(3000);
    CHECK_OK(quay_device_reset(quay_allocator_device(both.cuda)));
  }
  atomic_store(&ended, true);
  pthread_join(copying, NULL);
  check_pattern(both.there, 51);
  two_close(&both);
}

Test(cuda_vulkan_host, copies_of_vulkans_memory_arrive_while_cuda_is_reset, .init = setup_both,
     .fini = teardown_both) {
  check_resets("cpu");
  check_resets("mmap:/tmp");
}

static bool reset_meanwhile(void *user, uint64_t done, uint64_t total) {
  (void)done;
  (void)total;
  CHECK_FAILS(quay_device_reset(user), QUAY_STATUS_BUSY);
  return true;
}

Test(cuda_vulkan_host, a_callback_cannot_reset_cuda_under_its_own_copy, .init = setup_both,
     .fini = teardown_both) {
  two both = two_open("mmap:/tmp");
  write_pattern(both.here, 61);
  const quay_copy_options options = {.progress = reset_meanwhile,
                                     .progress_user = quay_allocator_device(both.cuda)};
  CHECK_OK(quay_buffer_copy_region(both.there, 0, both.here, 0, SIZE, &options));
  check_pattern(both.there, 61);
  CHECK_OK(quay_device_reset(quay_allocator_device(both.cuda)));
  two_close(&both);
}
