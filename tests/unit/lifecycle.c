/* Shutdown and fork, seen from outside. */
#include <pthread.h>
#include <quay/quay.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <quay/backend.h>

#include "support/random.h"
#include "support/status.h"

#define SIZE (32 << 20)

static quay_buffer *make(quay_allocator *allocator, int64_t size) {
  quay_buffer *buffer = NULL;
  CHECK_OK(quay_buffer_create(allocator, QUAY_U8, 1, &size, NULL, &buffer));
  return buffer;
}

/* A copy that is large enough for the workers. */
static bool copy_works(quay_allocator *allocator) {
  const int64_t size = SIZE;
  unsigned char *bytes = malloc(SIZE);
  unsigned char *found = malloc(SIZE);
  quay_buffer *buffer = NULL;
  quay_test_random_bytes(bytes, SIZE, 1);
  const bool works = quay_buffer_create(allocator, QUAY_U8, 1, &size, NULL, &buffer) == QUAY_OK &&
                     quay_buffer_copy_in(buffer, bytes, SIZE) == QUAY_OK &&
                     quay_buffer_copy_out(buffer, found, SIZE) == QUAY_OK &&
                     memcmp(bytes, found, SIZE) == 0;
  quay_buffer_release(buffer);
  free(found);
  free(bytes);
  return works;
}

/* Shutdown. */

Test(lifecycle, shutdown_of_an_unused_library_succeeds_and_can_be_repeated) {
  CHECK_OK(quay_shutdown());
  CHECK_OK(quay_shutdown());
}

Test(lifecycle, shutdown_is_busy_while_something_of_the_programs_lives_and_says_what) {
  quay_allocator *allocator = NULL;
  quay_raw_buffer raw;
  quay_stream *stream = NULL;
  CHECK_OK(quay_allocator_open("cpu", &allocator));
  CHECK_FAILS(quay_shutdown(), QUAY_STATUS_BUSY);
  CHECK_MESSAGE("1 allocator");
  quay_buffer *buffer = make(allocator, 10);
  CHECK_FAILS(quay_shutdown(), QUAY_STATUS_BUSY);
  CHECK_MESSAGE("1 storage");
  CHECK_OK(quay_buffer_copy_in(buffer, "0123456789", 10));
  quay_buffer_release(buffer);
  CHECK_OK(quay_allocator_alloc(allocator, 10, NULL, &raw));
  quay_allocator_release(allocator);
  CHECK_FAILS(quay_shutdown(), QUAY_STATUS_BUSY);
  quay_raw_buffer_free(&raw);
  CHECK_OK(quay_stream_create(quay_device_host(), NULL, &stream));
  CHECK_FAILS(quay_shutdown(), QUAY_STATUS_BUSY);
  CHECK_MESSAGE("1 stream");
  quay_stream_release(stream);
  CHECK_OK(quay_shutdown());
}

Test(lifecycle, shutdown_gives_the_default_allocators_back_and_all_works_again_afterwards) {
  quay_allocator *allocator = NULL;
  setenv("QUAY_BACKEND", "track+cpu:align=128", 1);
  CHECK_OK(quay_default_allocator_get(&allocator));
  quay_allocator_release(allocator);
  cr_assert(copy_works(NULL));
  CHECK_OK(quay_shutdown());
  setenv("QUAY_BACKEND", "cpu:align=256", 1);
  CHECK_OK(quay_default_allocator_get(&allocator));
  cr_assert_str_eq(quay_allocator_spec(allocator), "cpu:align=256");
  quay_allocator_release(allocator);
  cr_assert(copy_works(NULL));
  CHECK_OK(quay_shutdown());
}

Test(lifecycle, shutdown_gives_back_one_allocator_that_is_set_and_the_environments_at_once) {
  quay_allocator *allocator = NULL;
  setenv("QUAY_BACKEND", "track+cpu", 1);
  CHECK_OK(quay_default_allocator_get(&allocator));
  quay_default_allocator_set(allocator);
  quay_allocator_release(allocator);
  CHECK_OK(quay_shutdown());
}

Test(lifecycle, a_default_allocator_that_the_program_holds_too_is_busy) {
  quay_allocator *allocator = NULL;
  CHECK_OK(quay_allocator_open("track+cpu", &allocator));
  quay_default_allocator_set(allocator);
  CHECK_FAILS(quay_shutdown(), QUAY_STATUS_BUSY);
  quay_allocator_release(allocator);
  CHECK_OK(quay_shutdown());
}

/* Fork. */

/* Runs `function` in a child; true if it ended with success. */
static bool in_child(bool (*function)(quay_allocator *allocator), quay_allocator *allocator) {
  const pid_t child = fork();
  if (child == 0)
    _exit(function(allocator) ? 0 : 1);
  int status = -1;
  cr_assert_gt(child, 0);
  cr_assert_eq(waitpid(child, &status, 0), child);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

Test(lifecycle, after_fork_both_sides_allocate_and_copy_with_many_threads) {
  static const char *const specs[] = {"cpu", "track+cpu", "mmap:/tmp"};
  setenv("QUAY_COPY_THREADS", "4", 1);
  for (size_t i = 0; i < 3; i++) {
    quay_allocator *allocator = NULL;
    CHECK_OK(quay_allocator_open(specs[i], &allocator));
    cr_assert(copy_works(allocator), "%s", specs[i]);
    cr_assert(in_child(copy_works, allocator), "%s in the child", specs[i]);
    cr_assert(copy_works(allocator), "%s in the parent afterwards", specs[i]);
    quay_allocator_release(allocator);
  }
}

static atomic_bool stop;

/* Takes the library's locks as often as it can. */
static void *keep_busy(void *allocator) {
  while (!atomic_load(&stop)) {
    quay_raw_buffer raw;
    quay_allocator *other = NULL;
    if (quay_allocator_alloc(allocator, 100, NULL, &raw) == QUAY_OK)
      quay_raw_buffer_free(&raw);
    if (quay_allocator_open("track+cpu", &other) == QUAY_OK)
      quay_allocator_release(other);
    if (quay_default_allocator_get(&other) == QUAY_OK)
      quay_allocator_release(other);
  }
  return NULL;
}

/* Takes the locks that the parent's other threads may have held. */
static bool allocate_and_open(quay_allocator *allocator) {
  quay_raw_buffer raw;
  quay_allocator *other = NULL;
  quay_device_list list;
  if (quay_allocator_alloc(allocator, 100, NULL, &raw) != QUAY_OK)
    return false;
  quay_raw_buffer_free(&raw);
  if (quay_allocator_open("track+cpu", &other) != QUAY_OK || quay_devices(&list) != QUAY_OK)
    return false;
  quay_device_list_free(&list);
  const int64_t size = 4 << 20;
  quay_buffer *buffer = NULL;
  const bool works = quay_buffer_create_zeroed(other, QUAY_U8, 1, &size, &buffer) == QUAY_OK;
  quay_buffer_release(buffer);
  quay_allocator_release(other);
  return works;
}

Test(lifecycle, a_fork_while_other_threads_hold_locks_leaves_the_child_working, .timeout = 60) {
  quay_allocator *allocator = NULL;
  pthread_t threads[2];
  CHECK_OK(quay_allocator_open("track+cpu", &allocator));
  for (size_t i = 0; i < 2; i++)
    cr_assert_eq(pthread_create(&threads[i], NULL, keep_busy, allocator), 0);
  for (int i = 0; i < 40; i++)
    cr_assert(in_child(allocate_and_open, allocator), "child %d", i);
  atomic_store(&stop, true);
  for (size_t i = 0; i < 2; i++)
    pthread_join(threads[i], NULL);
  quay_allocator_release(allocator);
}

/* States that another thread is in the middle of when the process forks. */

static atomic_bool arrived, go_on;

static void arrive_and_wait(void) {
  atomic_store(&arrived, true);
  while (!atomic_load(&go_on))
    usleep(1000);
}

static void wait_for_arrival(void) {
  while (!atomic_load(&arrived))
    usleep(1000);
}

static void log_slowly(void *user, quay_log_level level, const char *message) {
  (void)user;
  (void)level;
  (void)message;
  arrive_and_wait();
}

static void *log_something(void *unused) {
  quay_default_allocator_pop(); /* pops nothing, and says so */
  return unused;
}

static bool set_the_log(quay_allocator *unused) {
  (void)unused;
  alarm(10);
  quay_log_set(NULL, NULL, QUAY_LOG_ERROR);
  return true;
}

Test(lifecycle, a_fork_while_another_thread_is_in_the_log_callback_leaves_the_log_usable,
     .timeout = 60) {
  pthread_t thread;
  quay_log_set(log_slowly, NULL, QUAY_LOG_WARNING);
  cr_assert_eq(pthread_create(&thread, NULL, log_something, NULL), 0);
  wait_for_arrival();
  cr_expect(in_child(set_the_log, NULL));
  atomic_store(&go_on, true);
  pthread_join(thread, NULL);
  quay_log_set(NULL, NULL, QUAY_LOG_ERROR);
}

static bool forked_well;

static void fork_inside(void *user, quay_log_level level, const char *message) {
  (void)user;
  (void)level;
  (void)message;
  forked_well = in_child(set_the_log, NULL);
}

Test(lifecycle, a_fork_inside_the_log_callback_leaves_the_log_usable, .timeout = 60) {
  quay_log_set(fork_inside, NULL, QUAY_LOG_WARNING);
  quay_default_allocator_pop();
  quay_log_set(NULL, NULL, QUAY_LOG_ERROR);
  cr_expect(forked_well);
}

/* Memory of calloc() whose first block takes until the test lets it. */
static void destroy_nothing(void *self) {
  (void)self;
}

static quay_status alloc_slowly(quay_allocator *allocator, const quay_alloc_request *request,
                                quay_raw_buffer *out_raw) {
  (void)allocator;
  if (!atomic_load(&arrived))
    arrive_and_wait();
  out_raw->arm = QUAY_RAW_EXTERNAL;
  out_raw->as.external.handle[0] = (uintptr_t)calloc(1, request->size);
  return QUAY_OK;
}

static void free_block(quay_allocator *allocator, quay_raw_buffer *raw, quay_event *const *pending,
                       size_t count) {
  (void)allocator;
  (void)pending;
  (void)count;
  free((void *)(uintptr_t)raw->as.external.handle[0]);
}

static quay_status write_block(quay_allocator *allocator, quay_raw_buffer *destination,
                               uint64_t offset, const void *source, uint64_t size) {
  (void)allocator;
  memcpy((char *)(uintptr_t)destination->as.external.handle[0] + offset, source, size);
  return QUAY_OK;
}

static quay_status read_block(quay_allocator *allocator, const quay_raw_buffer *source,
                              uint64_t offset, void *destination, uint64_t size) {
  (void)allocator;
  memcpy(destination, (const char *)(uintptr_t)source->as.external.handle[0] + offset, size);
  return QUAY_OK;
}

static quay_allocator *open_slow(void) {
  static const quay_allocator_vtable vtable = {.destroy = destroy_nothing,
                                               .version = QUAY_ALLOCATOR_VTABLE_VERSION,
                                               .struct_size = sizeof vtable,
                                               .alloc = alloc_slowly,
                                               .free = free_block,
                                               .copy_in = write_block,
                                               .copy_out = read_block};
  quay_device *host = quay_device_host();
  const quay_allocator_desc desc = {.vtable = &vtable,
                                    .name = "slow",
                                    .spec = "slow",
                                    .device = host,
                                    .kind = QUAY_MEMORY_PAGEABLE,
                                    .alignment = 16};
  quay_allocator *allocator = NULL;
  CHECK_OK(quay_allocator_create(&desc, &allocator));
  quay_device_release(host);
  return allocator;
}

static quay_buffer *lazy;

static void *allocate_lazy(void *out_status) {
  *(quay_status *)out_status = quay_buffer_ensure_allocated(lazy);
  return NULL;
}

static bool use_lazy(quay_allocator *unused) {
  (void)unused;
  alarm(10);
  unsigned char found[10];
  return quay_buffer_ensure_allocated(lazy) == QUAY_OK &&
         quay_buffer_copy_in(lazy, "9876543210", 10) == QUAY_OK &&
         quay_buffer_copy_out(lazy, found, 10) == QUAY_OK && memcmp(found, "9876543210", 10) == 0;
}

Test(lifecycle, a_fork_while_another_thread_allocates_a_lazy_buffer_lets_the_child_allocate_it,
     .timeout = 60) {
  quay_allocator *allocator = open_slow();
  const int64_t size = 10;
  CHECK_OK(quay_buffer_create_lazy(allocator, QUAY_U8, 1, &size, NULL, &lazy));
  pthread_t thread;
  quay_status status = QUAY_STATUS_BUSY;
  cr_assert_eq(pthread_create(&thread, NULL, allocate_lazy, &status), 0);
  wait_for_arrival();
  cr_expect(in_child(use_lazy, NULL));
  atomic_store(&go_on, true);
  pthread_join(thread, NULL);
  cr_expect_eq(status, QUAY_OK);
  quay_buffer_release(lazy);
  quay_allocator_release(allocator);
}
