/* The ends of CUDA, on the simulated driver: a device that is lost, the child of a fork, the exit
 * of the process, a shutdown; and what the backend keeps for the next call until then. What starts
 * the driver runs in children. */
#include <pthread.h>
#include <stdatomic.h>

#include "cuda_fixture.h"
#include "support/log.h"

enum {
  SIZE = 70000, /* more than a slot takes */
};

TestSuite(cuda_exit, .init = find_driver);
TestSuite(cuda_kept, .init = setup, .fini = teardown);

/* One piece of everything that has to be released. Static: what a child does not release is no
 * leak.
 */
static struct {
  quay_allocator *allocator, *pinned, *managed;
  quay_buffer *plain, *ordered, *mirrored, *exportable, *host, *migrating, *imported;
  quay_stream *stream;
  quay_event *event;
  quay_dl_managed_tensor_versioned *tensor;
} held;

static unsigned char bytes[SIZE];

static bool make(const quay_alloc_options *options, quay_buffer **out_buffer) {
  return HOLDS(quay_buffer_create(held.allocator, QUAY_U8, 1, (int64_t[]){SIZE}, options,
                                  out_buffer) == QUAY_OK);
}

static bool import_again(void) {
  quay_cuda_shared shared;
  quay_raw_buffer raw_buffer;
  if (!HOLDS(quay_cuda_export(held.exportable, &shared) == QUAY_OK))
    return false;
  const bool good = HOLDS(quay_cuda_import(held.allocator, &shared, &raw_buffer) == QUAY_OK) &&
                    HOLDS(quay_buffer_from_raw(&raw_buffer, QUAY_U8, 1, (int64_t[]){SIZE},
                                               &held.imported) == QUAY_OK);
  close(shared.file);
  return good;
}

static bool hold_everything(void) {
  memset(bytes, 0x6b, sizeof bytes);
  if (!HOLDS(quay_allocator_open("cuda:0", &held.allocator) == QUAY_OK) ||
      !HOLDS(quay_allocator_open("cuda:0,memory=pinned", &held.pinned) == QUAY_OK) ||
      !HOLDS(quay_allocator_open("cuda:0,memory=managed", &held.managed) == QUAY_OK) ||
      !HOLDS(quay_stream_create(quay_allocator_device(held.allocator), NULL, &held.stream) ==
             QUAY_OK))
    return false;
  return make(NULL, &held.plain) &&
         make(&(quay_alloc_options){.stream = held.stream}, &held.ordered) &&
         make(&(quay_alloc_options){.mirror = true}, &held.mirrored) &&
         make(&(quay_alloc_options){.exportable = true}, &held.exportable) && import_again() &&
         HOLDS(quay_buffer_create(held.pinned, QUAY_U8, 1, (int64_t[]){SIZE}, NULL, &held.host) ==
               QUAY_OK) &&
         HOLDS(quay_buffer_create(held.managed, QUAY_U8, 1, (int64_t[]){SIZE}, NULL,
                                  &held.migrating) == QUAY_OK) &&
         HOLDS(quay_buffer_copy_in(held.plain, bytes, SIZE) == QUAY_OK) &&
         HOLDS(quay_buffer_fill_on(held.ordered, "x", 1, held.stream) == QUAY_OK) &&
         HOLDS(quay_event_record(held.stream, &held.event) == QUAY_OK) &&
         HOLDS(quay_dlpack_export(held.plain, &(quay_dlpack_export_options){.stream = held.stream},
                                  &held.tensor) == QUAY_OK);
}

static void release_everything(void) {
  held.tensor->deleter(held.tensor);
  quay_buffer_release(held.plain);
  quay_buffer_release(held.ordered);
  quay_buffer_release(held.mirrored);
  quay_buffer_release(held.imported);
  quay_buffer_release(held.exportable);
  quay_buffer_release(held.host);
  quay_buffer_release(held.migrating);
  quay_event_release(held.event);
  quay_stream_release(held.stream);
  quay_allocator_release(held.allocator);
  quay_allocator_release(held.pinned);
  quay_allocator_release(held.managed);
}

/* Neither the program nor the library gets to touch what may not be mapped any more. */
static bool host_memory_fails(quay_buffer *buffer, quay_status expected) {
  const void *pointer = NULL;
  return HOLDS(quay_buffer_host_bytes(buffer, &pointer, NULL) == expected) &&
         HOLDS(pointer == NULL) && HOLDS(quay_buffer_copy_in(buffer, bytes, SIZE) == expected) &&
         HOLDS(quay_buffer_copy_out(buffer, bytes, SIZE) == expected) &&
         HOLDS(quay_buffer_copy_from(held.host, buffer) == expected) &&
         HOLDS(quay_buffer_fill(buffer, "x", 1) == expected);
}

static bool mirrors_fail(quay_status expected) {
  void *pointer = NULL;
  return HOLDS(quay_cuda_mirror_pointer(held.mirrored, &pointer) == expected) &&
         HOLDS(pointer == NULL) &&
         HOLDS(quay_cuda_mirror_upload(held.mirrored, bytes, SIZE) == expected) &&
         HOLDS(quay_cuda_mirror_download(held.mirrored, bytes, SIZE) == expected);
}

/* Every call that can fail gives this status. */
static bool everything_fails(quay_status expected) {
  quay_raw_buffer block;
  quay_stream *stream = NULL;
  quay_event *event = NULL;
  quay_cuda_shared shared;
  quay_memory_info info;
  bool done = false;
  quay_access access;
  quay_device *const device = quay_allocator_device(held.allocator);
  return HOLDS(quay_buffer_copy_in(held.plain, bytes, SIZE) == expected) &&
         host_memory_fails(held.host, expected) && host_memory_fails(held.migrating, expected) &&
         mirrors_fail(expected) &&
         HOLDS(quay_buffer_copy_out(held.mirrored, bytes, SIZE) == expected) &&
         HOLDS(quay_buffer_copy_from(held.plain, held.imported) == expected) &&
         HOLDS(quay_buffer_fill_on(held.plain, "x", 1, held.stream) == expected) &&
         HOLDS(quay_access_begin(held.stream, &(quay_use){held.plain, QUAY_WRITE}, 1, &access) ==
               expected) &&
         HOLDS(quay_allocator_alloc(held.allocator, 10, NULL, &block) == expected) &&
         HOLDS(quay_allocator_alloc(held.pinned, 10, NULL, &block) == expected) &&
         HOLDS(quay_cuda_export(held.exportable, &shared) == expected) &&
         HOLDS(quay_stream_create(device, NULL, &stream) == expected) &&
         HOLDS(quay_stream_synchronize(held.stream) == expected) &&
         HOLDS(quay_event_record(held.stream, &event) == expected) &&
         HOLDS(quay_event_query(held.event, &done) == expected) &&
         HOLDS(quay_device_memory_info(device, &info) == expected) &&
         HOLDS(quay_allocator_synchronize(held.allocator) == expected);
}

/* Loss. */

static bool frees_of_a_lost_device(void) {
  if (!hold_everything())
    return false;
  raw.control->lose(719);
  if (!everything_fails(QUAY_STATUS_DEVICE_LOST))
    return false;
  quay_test_log_begin();
  const uint64_t calls = raw.control->calls(NULL);
  release_everything();
  return HOLDS(quay_collect(NULL) == QUAY_OK) && HOLDS(raw.control->calls(NULL) == calls) &&
         HOLDS(quay_test_log_count("gone with the device") == 7) &&
         HOLDS(quay_shutdown() == QUAY_OK) && HOLDS(raw.control->calls(NULL) == calls);
}

Test(cuda_exit, on_a_lost_device_every_free_is_told_and_calls_nothing) {
  cr_assert(succeeds_in_child(frees_of_a_lost_device));
}

/* Fork. */

static bool fork_in_child(void) {
  quay_allocator *again = NULL, *cpu = NULL;
  quay_buffer *buffer = NULL;
  quay_test_log_begin();
  const uint64_t calls = raw.control->calls(NULL);
  bool good =
      everything_fails(QUAY_STATUS_UNAVAILABLE) &&
      HOLDS(strstr(quay_last_error()->message, "forked") != NULL) &&
      HOLDS(quay_allocator_open("cuda:0", &again) == QUAY_STATUS_UNAVAILABLE) &&
      HOLDS(quay_allocator_open("cpu", &cpu) == QUAY_OK) &&
      HOLDS(quay_buffer_create(cpu, QUAY_U8, 1, (int64_t[]){SIZE}, NULL, &buffer) == QUAY_OK) &&
      HOLDS(quay_buffer_copy_in(buffer, bytes, SIZE) == QUAY_OK);
  quay_buffer_release(buffer);
  quay_allocator_release(cpu);
  release_everything();
  good = good && HOLDS(quay_test_log_count("are not freed") >= 5) &&
         HOLDS(quay_collect(NULL) == QUAY_OK) && HOLDS(quay_shutdown() == QUAY_OK);
  return good && HOLDS(raw.control->calls(NULL) == calls);
}

/* A stream that nothing but Quay has touched is refused as well, though there is memory for it. */
static bool asks_pool_in_child(void) {
  quay_allocator *pool = NULL;
  quay_stream *stream = NULL;
  quay_raw_buffer block;
  if (!HOLDS(quay_allocator_open("pool+cuda:0", &pool) == QUAY_OK) ||
      !HOLDS(quay_stream_create(quay_allocator_device(pool), NULL, &stream) == QUAY_OK) ||
      !HOLDS(quay_allocator_alloc(pool, 3000, NULL, &block) == QUAY_OK))
    return false;
  quay_raw_buffer_free(&block);
  fflush(NULL);
  const pid_t child = fork();
  if (child == 0) {
    const quay_alloc_options in_order = {.stream = stream};
    _exit(quay_allocator_alloc(pool, 3000, &in_order, &block) == QUAY_STATUS_UNAVAILABLE ? 0 : 1);
  }
  int status = 1;
  const bool good = HOLDS(waitpid(child, &status, 0) == child) && HOLDS(status == 0);
  quay_stream_release(stream);
  quay_allocator_release(pool);
  return good;
}

Test(cuda_exit, in_the_child_of_a_fork_a_pool_gives_no_stream_memory) {
  cr_assert(succeeds_in_child(asks_pool_in_child));
}

static bool forks_with_everything_live(void) {
  if (!hold_everything())
    return false;
  fflush(NULL);
  const pid_t child = fork();
  if (child == 0)
    exit(fork_in_child() ? 0 : 1); /* the handlers of the exit, too */
  int status = 1;
  const bool good = HOLDS(waitpid(child, &status, 0) == child) && HOLDS(status == 0) &&
                    HOLDS(quay_buffer_copy_out(held.plain, bytes, SIZE) == QUAY_OK);
  release_everything();
  return good && HOLDS(quay_shutdown() == QUAY_OK) && no_violations();
}

Test(cuda_exit, in_the_child_of_a_fork_all_is_refused_or_a_logged_no_op_and_the_parent_goes_on) {
  cr_assert(succeeds_in_child(forks_with_everything_live));
}

/* Exit. */

/* Whether a child that runs `body` and exits does so with status 0. */
static bool exits_well(bool (*body)(void)) {
  fflush(NULL);
  const pid_t child = fork();
  if (child == 0)
    exit(body() ? 0 : 1);
  int status = 1;
  return waitpid(child, &status, 0) == child && HOLDS(status == 0);
}

Test(cuda_exit, a_process_that_releases_nothing_exits_well) {
  cr_assert(exits_well(hold_everything));
}

static void release_before_the_driver_ends(void) {
  const uint64_t calls = raw.control->calls(NULL);
  release_everything();
  if (!HOLDS(quay_shutdown() == QUAY_OK) || !HOLDS(raw.control->calls(NULL) > calls))
    _exit(1);
}

static bool registers_after_the_start(void) {
  return hold_everything() && HOLDS(atexit(release_before_the_driver_ends) == 0);
}

Test(cuda_exit, a_handler_that_was_registered_after_the_start_still_has_the_driver) {
  cr_assert(exits_well(registers_after_the_start));
}

static void release_after_the_driver_ended(void) {
  const uint64_t calls = raw.control->calls(NULL);
  if (!everything_fails(QUAY_STATUS_UNAVAILABLE) ||
      !HOLDS(strstr(quay_last_error()->message, "exiting") != NULL))
    _exit(1);
  release_everything();
  if (!HOLDS(quay_collect(NULL) == QUAY_OK) || !HOLDS(raw.control->calls(NULL) == calls))
    _exit(1);
}

static bool registers_before_the_start(void) {
  return HOLDS(atexit(release_after_the_driver_ended) == 0) && hold_everything();
}

Test(cuda_exit, a_handler_that_was_registered_before_the_start_calls_nothing_of_the_driver) {
  cr_assert(exits_well(registers_before_the_start));
}

/* Memory of a pool that a stream still works on, with the events that say so. */
static void release_a_pool_after_the_driver_ended(void) {
  const uint64_t calls = raw.control->calls(NULL);
  quay_buffer_release(held.plain); /* two streams */
  quay_buffer_release(held.ordered);
  quay_stream_release(held.stream);
  quay_allocator_release(held.allocator);
  memset(&held, 0, sizeof held); /* so that what is left is a leak */
  if (!HOLDS(raw.control->calls(NULL) == calls))
    _exit(1);
}

static bool use_on(quay_stream *stream, quay_buffer *buffer) {
  quay_access access;
  return HOLDS(quay_access_begin(stream, &(quay_use){buffer, QUAY_READ}, 1, &access) == QUAY_OK) &&
         HOLDS(quay_access_end(&access) == QUAY_OK);
}

static bool works_on_memory_of_a_pool(void) {
  quay_stream *second = NULL;
  if (!HOLDS(atexit(release_a_pool_after_the_driver_ended) == 0) ||
      !HOLDS(quay_allocator_open("pool+cuda:0", &held.allocator) == QUAY_OK))
    return false;
  quay_device *const device = quay_allocator_device(held.allocator);
  if (!HOLDS(quay_stream_create(device, NULL, &held.stream) == QUAY_OK) ||
      !HOLDS(quay_stream_create(device, NULL, &second) == QUAY_OK))
    return false;
  const bool good = make(NULL, &held.plain) && make(NULL, &held.ordered) &&
                    use_on(held.stream, held.plain) && use_on(second, held.plain) &&
                    use_on(held.stream, held.ordered);
  quay_stream_release(second);
  return good;
}

Test(cuda_exit, a_pool_that_is_released_after_the_driver_ended_leaves_nothing_behind) {
  cr_assert(exits_well(works_on_memory_of_a_pool));
}

static atomic_uint copies;

static quay_buffer *windows[3];

static void *copy_for_ever(void *window) {
  while (quay_buffer_copy_in(window, bytes, quay_buffer_size(window)) == QUAY_OK)
    atomic_fetch_add(&copies, 1);
  return NULL;
}

static bool exits_during_copies(void) {
  pthread_t threads[3];
  if (!hold_everything())
    return false;
  for (size_t i = 0; i < 3; i++) {
    if (!HOLDS(quay_buffer_view(held.plain, i * (SIZE / 3), SIZE / 3, &windows[i]) == QUAY_OK) ||
        !HOLDS(pthread_create(&threads[i], NULL, copy_for_ever, windows[i]) == 0) ||
        !HOLDS(pthread_detach(threads[i]) == 0))
      return false;
  }
  while (atomic_load(&copies) < 30)
    sched_yield();
  return true;
}

Test(cuda_exit, the_process_exits_well_while_threads_copy) {
  for (int round = 0; round < 5; round++)
    cr_assert(exits_well(exits_during_copies));
}

/* What is kept. */

static uint64_t pinned_blocks(void) {
  return raw.control->calls("cuMemHostAlloc");
}

static void copy_once(quay_allocator *allocator) {
  quay_buffer *buffer = make_buffer(allocator, 1000, NULL);
  CHECK_OK(quay_buffer_copy_in(buffer, bytes, 1000));
  quay_buffer_release(buffer);
}

static void *copy_in_thread(void *allocator) {
  copy_once(allocator);
  return NULL;
}

Test(cuda_kept, threads_that_follow_each_other_share_one_slot) {
  quay_allocator *allocator = open_spec("cuda:0");
  copy_once(allocator);
  const uint64_t before = pinned_blocks();
  for (size_t i = 0; i < 5; i++) {
    pthread_t thread;
    copy_once(allocator);
    cr_assert_eq(pthread_create(&thread, NULL, copy_in_thread, allocator), 0);
    cr_assert_eq(pthread_join(thread, NULL), 0);
  }
  cr_assert_eq(pinned_blocks(), before);
  quay_allocator_release(allocator);
}

static pthread_barrier_t barrier;

static void *copy_together(void *allocator) {
  unsigned char own[1000], found[1000];
  memset(own, (int)(pinned_blocks() & 0x7f) + 1, sizeof own);
  for (int i = 0; i < 20; i++) {
    pthread_barrier_wait(&barrier);
    quay_buffer *buffer = make_buffer(allocator, sizeof own, NULL);
    own[i] = (unsigned char)(i + 100);
    CHECK_OK(quay_buffer_copy_in(buffer, own, sizeof own));
    CHECK_OK(quay_buffer_copy_out(buffer, found, sizeof found));
    cr_assert_arr_eq(found, own, sizeof own);
    quay_buffer_release(buffer);
  }
  return NULL;
}

Test(cuda_kept, threads_that_copy_at_once_have_a_slot_each_and_never_more) {
  enum {
    THREADS = 4
  };
  quay_allocator *allocator = open_spec("cuda:0");
  pthread_t threads[THREADS];
  cr_assert_eq(pthread_barrier_init(&barrier, NULL, THREADS), 0);
  const uint64_t before = pinned_blocks();
  for (size_t i = 0; i < THREADS; i++)
    cr_assert_eq(pthread_create(&threads[i], NULL, copy_together, allocator), 0);
  for (size_t i = 0; i < THREADS; i++)
    cr_assert_eq(pthread_join(threads[i], NULL), 0);
  cr_assert_leq(pinned_blocks(), before + THREADS);
  pthread_barrier_destroy(&barrier);
  quay_allocator_release(allocator);
}

Test(cuda_kept, a_slot_is_not_used_any_more_after_a_shutdown_or_a_reset) {
  for (int round = 0; round < 3; round++) {
    quay_allocator *allocator = open_spec("cuda:0"), *other = open_spec("cuda:1");
    copy_once(allocator);
    copy_once(other);
    CHECK_OK(quay_device_reset(quay_allocator_device(allocator)));
    copy_once(allocator);
    copy_once(other);
    quay_allocator_release(allocator);
    quay_allocator_release(other);
    CHECK_OK(quay_shutdown());
    simcuda_census left;
    raw.control->count(&left);
    cr_assert_eq(left.host_bytes + left.streams + left.events, 0);
  }
}

Test(cuda_kept, quay_collect_gives_freed_plain_memory_back_to_the_driver) {
  quay_allocator *allocator = open_spec("cuda:0"), *other = open_spec("cuda:1");
  quay_raw_buffer first, second;
  CHECK_OK(quay_allocator_alloc(allocator, 5000, NULL, &first));
  CHECK_OK(quay_allocator_alloc(other, 7000, NULL, &second));
  quay_raw_buffer_free(&first);
  quay_raw_buffer_free(&second);
  const uint64_t frees = raw.control->calls("cuMemFree_v2");
  uint64_t collected = 0;
  CHECK_OK(quay_collect(&collected));
  cr_assert_eq(collected, 12000);
  cr_assert_eq(raw.control->calls("cuMemFree_v2"), frees + 2);
  CHECK_OK(quay_collect(&collected));
  cr_assert_eq(collected, 0);
  quay_allocator_release(allocator);
  quay_allocator_release(other);
}
