/* Shutdown and fork, seen from outside. */
#include <pthread.h>
#include <quay/quay.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

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
