/* Running out of the library's own memory: every allocation of a scenario fails once, and each time
 * there is a clean error, nothing half made and nothing lost. Linked with --wrap for the functions
 * below. */
#include "support/manual_device.h"
#include "support/pattern.h"

#include <string.h>

static atomic_uint fail_at; /* counts down; the call that finds 1 fails. 0: none fails */

static bool fails(void) {
  unsigned left = atomic_load(&fail_at);
  while (left != 0 && !atomic_compare_exchange_weak(&fail_at, &left, left - 1)) {
  }
  return left == 1;
}

void *__real_quay__os_malloc(size_t size);
void *__wrap_quay__os_malloc(size_t size);
void *__real_quay__os_calloc(size_t count, size_t size);
void *__wrap_quay__os_calloc(size_t count, size_t size);
void *__real_quay__os_aligned_alloc(size_t alignment, size_t size);
void *__wrap_quay__os_aligned_alloc(size_t alignment, size_t size);

void *__wrap_quay__os_malloc(size_t size) {
  return fails() ? NULL : __real_quay__os_malloc(size);
}

void *__wrap_quay__os_calloc(size_t count, size_t size) {
  return fails() ? NULL : __real_quay__os_calloc(count, size);
}

void *__wrap_quay__os_aligned_alloc(size_t alignment, size_t size) {
  return fails() ? NULL : __real_quay__os_aligned_alloc(alignment, size);
}

/* Runs a scenario with its n-th allocation failing, for every n, until one run gets through. */
static void sweep(quay_status (*scenario)(void), unsigned at_least) {
  unsigned n = 1;
  for (;; n++) {
    cr_assert_lt(n, 1000);
    quay_error_clear();
    atomic_store(&fail_at, n);
    const quay_status status = scenario();
    const bool reached = atomic_load(&fail_at) == 0;
    atomic_store(&fail_at, 0);
    MUST(quay_collect(NULL));
    cr_assert_eq(atomic_load(&manual.alloc), atomic_load(&manual.free), "allocation %u", n);
    if (!reached) {
      cr_assert_eq(status, QUAY_OK);
      break;
    }
    if (status != QUAY_OK) {
      cr_assert_eq(status, QUAY_STATUS_OUT_OF_HOST_MEMORY, "allocation %u: %s", n,
                   quay_last_error()->message);
      cr_assert_eq(quay_last_error()->status, status);
    } else {
      cr_assert_eq(quay_last_error()->status, QUAY_OK, "allocation %u", n);
    }
  }
  cr_assert_gt(n, at_least);
}

static quay_allocator *memory, *other_memory;
static quay_stream *stream;

static void open_devices(void) {
  memory = manual_open(&(manual_options){.streams = true, .host_accessible = true});
  other_memory = manual_open(&(manual_options){.backend = "other"});
  MUST(quay_stream_create(quay_allocator_device(memory), NULL, &stream));
}

static void close_devices(void) {
  quay_stream_release(stream);
  quay_allocator_release(memory);
  quay_allocator_release(other_memory);
}

TestSuite(buffer_memory, .init = open_devices, .fini = close_devices);

static const int64_t shape[] = {100};

static quay_status make_and_view(void) {
  quay_buffer *b = NULL, *lazy = NULL, *view = NULL;
  quay_status status = quay_buffer_create(memory, QUAY_U8, 1, shape, NULL, &b);
  cr_assert_eq(b != NULL, status == QUAY_OK);
  if (status == QUAY_OK)
    status = quay_buffer_view(b, 3, 4, &view);
  if (status == QUAY_OK)
    status = quay_buffer_create_lazy(memory, QUAY_U8, 1, shape, NULL, &lazy);
  if (status == QUAY_OK)
    status = quay_buffer_fill(lazy, "x", 1);
  quay_buffer_release(b);
  quay_buffer_release(lazy);
  quay_buffer_release(view);
  return status;
}

Test(buffer_memory, making_buffers_and_views) {
  sweep(make_and_view, 4);
}

static quay_status wrap_raw(void) {
  quay_raw_buffer raw;
  quay_buffer *b = NULL;
  QUAY_TRY(quay_allocator_alloc(memory, 100, NULL, &raw));
  quay_status status = quay_buffer_from_raw(&raw, QUAY_U8, 1, shape, &b);
  if (status != QUAY_OK) {
    cr_assert_eq(raw.owner, memory);
    cr_assert_eq(raw.size, 100);
  }
  quay_raw_buffer_free(&raw);
  quay_buffer_release(b);
  return status;
}

Test(buffer_memory, wrapping_a_raw_buffer) {
  sweep(wrap_raw, 2);
}

static unsigned handed_back;

static void hand_back(void *user, void *bytes, uint64_t size) {
  (void)user;
  (void)bytes;
  (void)size;
  handed_back++;
}

static quay_status adopt(void) {
  static unsigned char bytes[100];
  const quay_host_memory lent = {.pointer = bytes, .size = 100, .release = hand_back};
  quay_buffer *b = NULL;
  const unsigned before = handed_back;
  const quay_status status = quay_buffer_adopt_host(NULL, QUAY_U8, 1, shape, &lent, &b);
  cr_assert_eq(handed_back, before);
  quay_buffer_release(b);
  cr_assert_eq(handed_back, before + (status == QUAY_OK));
  return status;
}

Test(buffer_memory, adopting_host_memory) {
  /* So that opening the default allocator is not part of the sweep. */
  quay_allocator *host = open_spec("cpu");
  quay_default_allocator_set(host);
  sweep(adopt, 3);
  quay_default_allocator_set(NULL);
  quay_allocator_release(host);
}

static quay_status make_streams_and_events(void) {
  quay_stream *made = NULL, *wrapped = NULL;
  quay_event *event = NULL;
  quay_device *device = quay_allocator_device(memory);
  const unsigned streams = atomic_load(&manual.stream_create) + atomic_load(&manual.stream_wrap) -
                           atomic_load(&manual.stream_destroy);
  quay_status status = quay_stream_create(device, NULL, &made);
  if (status == QUAY_OK)
    status = quay_stream_wrap(device, 5, &wrapped);
  if (status == QUAY_OK)
    status = quay_event_record(made, &event);
  quay_event_release(event);
  quay_stream_release(made);
  quay_stream_release(wrapped);
  cr_assert_eq(streams, atomic_load(&manual.stream_create) + atomic_load(&manual.stream_wrap) -
                            atomic_load(&manual.stream_destroy));
  cr_assert_eq(atomic_load(&manual.event_record), atomic_load(&manual.event_destroy));
  return status;
}

Test(buffer_memory, making_streams_and_events) {
  sweep(make_streams_and_events, 3);
}

/* More uses than stand in the access, and more on one storage than its record holds at first. */
static quay_status access_much(void) {
  enum {
    USES = 3 * QUAY_ACCESS_INLINE_USES
  };
  quay_use uses[USES] = {{NULL, QUAY_READ}};
  quay_buffer *b = NULL;
  quay_access access = {.count = 0};
  quay_status status = quay_buffer_create(memory, QUAY_U8, 1, shape, NULL, &b);
  for (uint64_t i = 0; i < USES && status == QUAY_OK; i++) {
    uses[i].mode = i % 2 != 0 ? QUAY_READ : QUAY_WRITE;
    status = quay_buffer_view(b, i * 4, 4, &uses[i].buffer);
  }
  if (status == QUAY_OK)
    status = quay_access_begin(stream, uses, USES, &access);
  if (status == QUAY_OK) {
    /* Without memory for an event the stream is waited for: no error then. */
    cr_assert_eq(quay_access_end(&access), QUAY_OK);
    status = quay_buffer_fill(b, "x", 1);
  }
  cr_assert_null(access.stream);
  for (size_t i = 0; i < USES; i++)
    quay_buffer_release(uses[i].buffer);
  quay_buffer_release(b);
  manual_complete_all();
  return status;
}

Test(buffer_memory, an_access_with_many_uses) {
  sweep(access_much, 30);
}

Test(buffer_memory, small_accesses_take_none_once_a_storage_knows_them) {
  quay_use uses[QUAY_ACCESS_INLINE_USES] = {{NULL, QUAY_READ}};
  quay_buffer *b = pattern_buffer(memory, 100, 1);
  for (uint64_t i = 0; i < QUAY_ACCESS_INLINE_USES; i++) {
    uses[i].mode = QUAY_WRITE;
    MUST(quay_buffer_view(b, i * 8, 8, &uses[i].buffer));
  }
  quay_device *host = quay_device_host();
  quay_stream *host_stream = NULL;
  MUST(quay_stream_create(host, NULL, &host_stream));
  quay_access access;
  MUST(quay_access_begin(host_stream, uses, QUAY_ACCESS_INLINE_USES, &access));
  MUST(quay_access_end(&access));
  atomic_store(&fail_at, 1);
  MUST(quay_access_begin(host_stream, uses, QUAY_ACCESS_INLINE_USES, &access));
  MUST(quay_access_end(&access));
  cr_assert_eq(atomic_load(&fail_at), 1);
  atomic_store(&fail_at, 0);
  for (size_t i = 0; i < QUAY_ACCESS_INLINE_USES; i++)
    quay_buffer_release(uses[i].buffer);
  quay_buffer_release(b);
  quay_stream_release(host_stream);
  quay_device_release(host);
}

static quay_status stage(void) {
  quay_buffer *from = NULL, *to = NULL;
  quay_status status = quay_buffer_create(memory, QUAY_U8, 1, shape, NULL, &from);
  if (status == QUAY_OK)
    status = quay_buffer_create(other_memory, QUAY_U8, 1, shape, NULL, &to);
  if (status == QUAY_OK)
    status = quay_buffer_copy_from(to, from);
  quay_buffer_release(from);
  quay_buffer_release(to);
  return status;
}

Test(buffer_memory, a_staged_copy) {
  quay_allocator *host_accessible = memory;
  memory = manual_open(&(manual_options){.backend = "third"});
  sweep(stage, 5);
  quay_allocator_release(memory);
  memory = host_accessible;
}
