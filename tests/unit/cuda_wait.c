/* What waits for what, on the simulated driver with streams that do nothing before somebody waits
 * for them, or that are held: each wait that is missing shows in the bytes or in a report of the
 * driver.
 */
#include "cuda_fixture.h"

enum {
  LARGE = (20 << 20) + 12345, /* several chunks */
};

TestSuite(cuda_wait, .init = find_driver, .fini = teardown);

static void setup_lazy_streams(void) {
  setenv("SIMCUDA_SCHEDULE", "manual", 1);
  setup();
}

/* The bytes are there now, without asking anybody to bring them. */
static void check_arrived(const quay_buffer *buffer, const void *expected, const char *what) {
  const uint64_t size = quay_buffer_size(buffer);
  unsigned char *found = malloc(size);
  uint64_t address = 0;
  CHECK_OK(quay_cuda_pointer(buffer, &address));
  cr_assert(raw.control->peek(address, found, size));
  cr_assert(memcmp(found, expected, size) == 0, "%s was not finished on return", what);
  free(found);
}

static void check_blocking_calls(uint64_t size) {
  quay_allocator *allocator = open_spec("cuda:0"), *peer = open_spec("cuda:1");
  quay_test_block bytes = quay_test_block_make(size, 1, size);
  quay_buffer *a = make_buffer(allocator, size, NULL), *b = make_buffer(allocator, size, NULL);
  quay_buffer *c = make_buffer(peer, size, NULL);
  CHECK_OK(quay_buffer_copy_in(a, bytes.data, size));
  check_arrived(a, bytes.data, "a copy from host memory");
  CHECK_OK(quay_buffer_copy_from(b, a));
  check_arrived(b, bytes.data, "a copy within");
  CHECK_OK(quay_buffer_copy_from(c, a));
  check_arrived(c, bytes.data, "a copy to a peer");
  unsigned char *found = malloc(size);
  CHECK_OK(quay_buffer_copy_out(a, found, size));
  cr_assert_arr_eq(found, bytes.data, size);
  memset(found, 0x6d, size);
  CHECK_OK(quay_buffer_fill(a, "\x6d", 1));
  check_arrived(a, found, "a fill");
  free(found);
  quay_buffer_release(a);
  quay_buffer_release(b);
  quay_buffer_release(c);
  quay_allocator_release(allocator);
  quay_allocator_release(peer);
  quay_test_block_free(&bytes);
}

Test(cuda_wait, what_blocks_is_finished_on_return_whatever_its_size) {
  setup_lazy_streams();
  static const uint64_t sizes[] = {1, 65536, 65537, LARGE};
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
    check_blocking_calls(sizes[i]);
}

/* Both go through the same pinned memory. */
static void check_streams_from_pageable(uint64_t size) {
  quay_allocator *allocator = open_spec("cuda:0"), *cpu = open_spec("cpu");
  quay_test_block bytes[2];
  quay_buffer *on_device[2], *on_host = make_buffer(cpu, size, NULL);
  quay_stream *streams[2];
  for (size_t i = 0; i < 2; i++) {
    bytes[i] = quay_test_block_make(size, 1, size + i);
    on_device[i] = make_buffer(allocator, size, NULL);
    CHECK_OK(quay_stream_create(quay_allocator_device(allocator), NULL, &streams[i]));
  }
  for (size_t i = 0; i < 2; i++) {
    const quay_copy_options on_stream = {.stream = streams[i]};
    CHECK_OK(quay_buffer_copy_in(on_host, bytes[i].data, size));
    CHECK_OK(quay_buffer_copy_region(on_device[i], 0, on_host, 0, size, &on_stream));
  }
  for (size_t i = 0; i < 2; i++) {
    check_bytes(on_device[i], bytes[i].data);
    const quay_copy_options on_stream = {.stream = streams[i]};
    CHECK_OK(quay_buffer_copy_region(on_host, 0, on_device[i], 0, size, &on_stream));
    check_bytes(on_host, bytes[i].data);
    quay_stream_release(streams[i]);
    quay_buffer_release(on_device[i]);
    quay_test_block_free(&bytes[i]);
  }
  quay_buffer_release(on_host);
  quay_allocator_release(allocator);
  quay_allocator_release(cpu);
}

Test(cuda_wait, pageable_memory_is_read_and_what_it_went_through_is_free_when_a_copy_returns) {
  setup_lazy_streams();
  static const uint64_t sizes[] = {1000, LARGE};
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
    check_streams_from_pageable(sizes[i]);
}

/* Holds up a stream until the gate 0 is opened. */
static void hold(const quay_stream *stream) {
  int (*load)(void **, const void *), (*get)(void **, void *, const char *);
  int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                void *, void **, void **);
  *(void **)(void *)&load = dlsym(raw.control->library, "cuModuleLoadData");
  *(void **)(void *)&get = dlsym(raw.control->library, "cuModuleGetFunction");
  *(void **)(void *)&launch = dlsym(raw.control->library, "cuLaunchKernel");
  void *context = NULL, *module = NULL, *function = NULL;
  uint32_t gate = 0;
  void *parameters[] = {&gate};
  cr_assert_eq(raw.retain(&context, 0), 0);
  cr_assert_eq(raw.ctx_push(context), 0);
  cr_assert_eq(load(&module, "any"), 0);
  cr_assert_eq(get(&function, module, "simcuda_hold"), 0);
  cr_assert_eq(launch(function, 1, 1, 1, 1, 1, 1, 0, (void *)(uintptr_t)quay_cuda_stream(stream),
                      parameters, NULL),
               0);
  cr_assert_eq(raw.ctx_pop(&context), 0);
  cr_assert_eq(raw.release(0), 0);
}

static uint64_t frees(void) {
  return raw.control->calls("cuMemFree_v2");
}

/* The streams run on threads here, all but the one that is held. */
Test(cuda_wait, plain_memory_is_not_given_back_before_the_work_on_it_is_done) {
  setup();
  quay_allocator *allocator = open_spec("cuda:0");
  quay_stream *stream = NULL;
  CHECK_OK(quay_stream_create(quay_allocator_device(allocator), NULL, &stream));
  quay_buffer *buffer = make_buffer(allocator, 5000, NULL);
  hold(stream);
  CHECK_OK(quay_buffer_fill_on(buffer, "x", 1, stream));
  const uint64_t before = frees();
  quay_buffer_release(buffer);
  for (int i = 0; i < 200; i++) {
    CHECK_OK(quay_collect(NULL));
    CHECK_OK(quay_allocator_trim(allocator, NULL));
    cr_assert_eq(frees(), before);
    usleep(100); /* time in which a free that does not wait would be made */
  }
  raw.control->gate(0, true);
  CHECK_OK(quay_stream_synchronize(stream));
  while (frees() == before)
    CHECK_OK(quay_collect(NULL));
  quay_stream_release(stream);
  quay_allocator_release(allocator);
}
