/* The thread's own context, on the simulated driver: whatever Quay does, and whichever call of the
 * driver fails, what was current before a call is current after it, and nothing lies under it. */
#include <pthread.h>

#include "cuda_fixture.h"
#include "support/sweep.h"

enum {
  SIZE = 70000, /* more than a slot takes */
};

TestSuite(cuda_context, .init = setup, .fini = teardown);
TestSuite(cuda_context_failures, .init = setup);

/* The context of another library's, of device 1; NULL: none. */
static void *own;

static void make_own_current(void) {
  cr_assert_eq(raw.ctx_create(&own, 0, 1), 0);
}

static void end_own(void) {
  void *popped = NULL;
  cr_assert_eq(raw.ctx_pop(&popped), 0);
  cr_assert_eq(popped, own);
  cr_assert_null(current_context(), "something was left under the thread's context");
  cr_assert_eq(raw.ctx_destroy(own), 0);
  own = NULL;
}

/* Makes a call, and looks at the context after it. Without failures the call must succeed. */
static bool failures;

static bool seen(quay_status status, const char *what) {
  cr_assert(failures || status == QUAY_OK, "%s: %s", what, quay_last_error()->message);
  cr_assert_eq(current_context(), own, "%s left another context current", what);
  return status == QUAY_OK;
}
#define CALL(expression) seen((expression), #expression)
/* A call of the other library's, which may be the one that is made to fail. */
#define RAW(expression)       cr_assert((expression) == 0 || (expression) == 0)
#define VOID_CALL(expression) ((expression), (void)seen(QUAY_OK, #expression))

static void use_buffer(quay_buffer *buffer, quay_buffer *far, quay_stream *stream,
                       unsigned char *bytes) {
  const quay_copy_options on_stream = {.stream = stream};
  const unsigned char pattern[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  quay_access access;
  quay_dl_managed_tensor_versioned *tensor = NULL;
  (void)CALL(quay_buffer_copy_in(buffer, bytes, SIZE));
  (void)CALL(quay_buffer_copy_out(buffer, bytes, SIZE));
  (void)CALL(quay_buffer_fill(buffer, pattern, sizeof pattern));
  (void)CALL(quay_buffer_fill_on(buffer, pattern, 1, stream));
  (void)CALL(quay_buffer_copy_region(buffer, 1, buffer, 0, 5000, NULL));
  (void)CALL(quay_buffer_copy_region(buffer, 0, buffer, SIZE / 2, SIZE / 2, &on_stream));
  (void)CALL(quay_buffer_copy_from(far, buffer));
  if (CALL(quay_access_begin(stream, &(quay_use){buffer, QUAY_WRITE}, 1, &access)))
    (void)CALL(quay_access_end(&access));
  if (CALL(quay_dlpack_export(buffer, NULL, &tensor)))
    VOID_CALL(tensor->deleter(tensor));
  (void)CALL(quay_buffer_synchronize(buffer));
}

static void share(quay_allocator *allocator, quay_buffer *buffer) {
  quay_cuda_shared shared;
  quay_raw_buffer imported;
  if (!CALL(quay_cuda_export(buffer, &shared)))
    return;
  if (CALL(quay_cuda_import(allocator, &shared, &imported)))
    VOID_CALL(quay_raw_buffer_free(&imported));
  close(shared.file);
}

static void use_device(quay_allocator *allocator) {
  quay_device *const device = quay_allocator_device(allocator);
  quay_memory_info info;
  quay_health health;
  quay_raw_buffer block;
  quay_cuda_memory memory;
  (void)CALL(quay_device_memory_info(device, &info));
  (void)CALL(quay_cuda_health(device, &health));
  /* Released by Quay and adopted again, which frees nothing. */
  if (CALL(quay_allocator_alloc(allocator, 100, NULL, &block)) &&
      CALL(quay_cuda_release(&block, &memory))) {
    if (CALL(quay_cuda_adopt(allocator, memory.pointer, 100, NULL, NULL, &block)))
      VOID_CALL(quay_raw_buffer_free(&block));
    void *context = NULL;
    RAW(raw.retain(&context, 0));
    RAW(raw.ctx_push(context));
    RAW(raw.mem_free(memory.pointer));
    RAW(raw.ctx_pop(&context));
    RAW(raw.release(0));
  }
  /* An error in any case. */
  const quay_status status = quay_allocator_alloc(allocator, UINT64_C(1) << 50, NULL, &block);
  cr_assert_neq(status, QUAY_OK);
  cr_assert_eq(current_context(), own);
}

static void use_memory(quay_allocator *allocator, quay_buffer *far, quay_stream *stream,
                       unsigned char *bytes) {
  const quay_alloc_options kinds[] = {
      {.alignment = 0}, {.stream = stream}, {.mirror = true}, {.exportable = true}};
  for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
    quay_buffer *buffer = NULL;
    if (!CALL(quay_buffer_create(allocator, QUAY_U8, 1, (int64_t[]){SIZE}, &kinds[i], &buffer)))
      continue;
    use_buffer(buffer, far, stream, bytes);
    if (kinds[i].mirror)
      (void)CALL(quay_cuda_mirror_upload(buffer, bytes, SIZE));
    if (kinds[i].exportable)
      share(allocator, buffer);
    VOID_CALL(quay_buffer_release(buffer));
  }
}

static void use_everything(void) {
  quay_allocator *allocator = NULL, *peer = NULL;
  quay_buffer *far = NULL;
  quay_stream *stream = NULL, *wrapped = NULL;
  unsigned char *bytes = calloc(1, SIZE);
  const bool opened = CALL(quay_allocator_open("cuda:0", &allocator)) &&
                      CALL(quay_allocator_open("cuda:1,memory=pinned", &peer)) &&
                      CALL(quay_buffer_create(peer, QUAY_U8, 1, (int64_t[]){SIZE}, NULL, &far)) &&
                      CALL(quay_stream_create(quay_allocator_device(allocator), NULL, &stream));
  if (opened) {
    if (CALL(
            quay_stream_wrap(quay_allocator_device(allocator), quay_cuda_stream(stream), &wrapped)))
      (void)CALL(quay_stream_synchronize(wrapped));
    VOID_CALL(quay_stream_release(wrapped));
    use_memory(allocator, far, stream, bytes);
    use_device(allocator);
    (void)CALL(quay_stream_synchronize(stream));
  }
  VOID_CALL(quay_buffer_release(far));
  VOID_CALL(quay_stream_release(stream));
  if (allocator != NULL) {
    (void)CALL(quay_collect(NULL));
    (void)CALL(quay_allocator_trim(allocator, NULL));
    (void)CALL(quay_allocator_synchronize(allocator));
  }
  VOID_CALL(quay_allocator_release(allocator));
  VOID_CALL(quay_allocator_release(peer));
  free(bytes);
}

Test(cuda_context, another_devices_context_is_current_after_every_call) {
  make_own_current();
  use_everything();
  (void)CALL(quay_shutdown());
  end_own();
}

Test(cuda_context, a_thread_without_a_context_has_none_after_every_call) {
  use_everything();
  (void)CALL(quay_shutdown());
}

static void *use_everything_in_thread(void *done) {
  use_everything();
  return done;
}

Test(cuda_context, other_threads_get_none_either) {
  pthread_t threads[3];
  for (size_t i = 0; i < 3; i++)
    cr_assert_eq(pthread_create(&threads[i], NULL, use_everything_in_thread, &own), 0);
  for (size_t i = 0; i < 3; i++)
    cr_assert_eq(pthread_join(threads[i], NULL), 0);
}

Test(cuda_context, a_reset_leaves_the_context_of_another_device_current) {
  make_own_current();
  quay_allocator *allocator = NULL;
  (void)CALL(quay_allocator_open("cuda:0", &allocator));
  (void)CALL(quay_device_reset(quay_allocator_device(allocator)));
  use_everything();
  VOID_CALL(quay_allocator_release(allocator));
  (void)CALL(quay_shutdown());
  end_own();
}

Test(cuda_context_failures, whichever_call_of_the_driver_fails_the_threads_context_is_current,
     .timeout = QUAY_TEST_SWEEP_SECONDS) {
  make_own_current();
  failures = true;
  const uint64_t step = getenv("QUAY_TEST_FULL") != NULL ? 1 : 7;
  uint64_t reached = 1, n = 1;
  for (; reached != 0; n += step) {
    const uint64_t before = raw.control->failed();
    raw.control->fail(NULL, n, 999);
    use_everything();
    raw.control->fail(NULL, 0, 0);
    reached = raw.control->failed() - before;
    CHECK_OK(quay_shutdown()); /* nothing is left that holds it up */
  }
  cr_assert_gt(n, 300);
  end_own();
}
