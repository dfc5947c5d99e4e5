/* What the CUDA backend does beyond the contract of all backends, on the simulated driver:
 * contexts, frees, streams, capture, mirrors, adoption, loss, reset. Each test ends with a shutdown
 * that must leave nothing in the driver. */
#include <pthread.h>
#include <sys/wait.h>

#include "cuda/error.h"
#include "cuda_fixture.h"
#include "support/log.h"
#include "support/sweep.h"

TestSuite(cuda, .init = setup, .fini = teardown);
/* Tests in children, which a driver that has been started before the fork would not serve. */
TestSuite(cuda_child, .init = find_driver);

/* Contexts. */

static void use_everything(quay_allocator *allocator) {
  const quay_alloc_options too_large = {.alignment = 0};
  quay_raw_buffer failed;
  CHECK_FAILS(quay_allocator_alloc(allocator, UINT64_C(1) << 50, &too_large, &failed),
              QUAY_STATUS_OUT_OF_DEVICE_MEMORY);
  quay_test_block bytes = quay_test_block_make(300000, 1, 17);
  quay_buffer *buffer = make_buffer(allocator, 300000, NULL);
  CHECK_OK(quay_buffer_copy_in(buffer, bytes.data, 300000));
  check_bytes(buffer, bytes.data);
  quay_stream *stream = NULL;
  CHECK_OK(quay_stream_create(quay_allocator_device(allocator), NULL, &stream));
  CHECK_OK(quay_stream_synchronize(stream));
  quay_stream_release(stream);
  quay_buffer_release(buffer);
  CHECK_OK(quay_allocator_synchronize(allocator));
  quay_test_block_free(&bytes);
}

Test(cuda, a_thread_without_a_context_has_none_afterwards) {
  quay_allocator *allocator = open_spec("cuda:0");
  use_everything(allocator);
  cr_assert_null(current_context());
  quay_allocator_release(allocator);
  cr_assert_null(current_context());
}

Test(cuda, another_devices_context_stays_current) {
  void *own = NULL, *popped = NULL;
  cr_assert_eq(raw.ctx_create(&own, 0, 1), 0);
  cr_assert_eq(current_context(), own);
  quay_allocator *allocator = open_spec("cuda:0");
  use_everything(allocator);
  cr_assert_eq(current_context(), own);
  quay_allocator_release(allocator);
  cr_assert_eq(current_context(), own);
  cr_assert_eq(raw.ctx_pop(&popped), 0);
  cr_assert_eq(popped, own);
  cr_assert_null(current_context(), "something was left under it");
  cr_assert_eq(raw.ctx_destroy(own), 0);
}

/* Memory. */

Test(cuda, out_of_memory_tells_the_devices_memory_and_leaves_it_usable) {
  quay_allocator *allocator = open_spec("cuda:0");
  quay_memory_info info;
  CHECK_OK(quay_device_memory_info(quay_allocator_device(allocator), &info));
  quay_raw_buffer held, block;
  CHECK_OK(quay_allocator_alloc(allocator, 4096, NULL, &held));
  CHECK_FAILS(quay_allocator_alloc(allocator, info.total_bytes - 1, NULL, &block),
              QUAY_STATUS_OUT_OF_DEVICE_MEMORY);
  char text[64];
  snprintf(text, sizeof text, "of its %llu bytes are free", (unsigned long long)info.total_bytes);
  CHECK_MESSAGE(text);
  cr_assert_eq(quay_last_error()->native_code, 2);
  cr_assert_str_eq(quay_last_error()->native_name, "CUDA_ERROR_OUT_OF_MEMORY");
  cr_assert_eq(quay_device_health(quay_allocator_device(allocator)), QUAY_HEALTH_OK);
  CHECK_OK(quay_allocator_alloc(allocator, 1000, NULL, &block));
  quay_raw_buffer_free(&block);
  quay_raw_buffer_free(&held);
  quay_allocator_release(allocator);
}

Test(cuda, freed_memory_makes_room_for_an_allocation_that_does_not_fit_else) {
  quay_allocator *allocator = open_spec("cuda:0");
  quay_memory_info info;
  CHECK_OK(quay_device_memory_info(quay_allocator_device(allocator), &info));
  for (int round = 0; round < 3; round++) {
    quay_raw_buffer block;
    CHECK_OK(quay_allocator_alloc(allocator, info.free_bytes / 4 * 3, NULL, &block));
    quay_raw_buffer_free(&block);
  }
  quay_allocator_release(allocator);
}

Test(cuda, free_calls_no_function_of_the_driver_that_waits_and_trim_gives_the_memory_back) {
  quay_allocator *allocator = open_spec("cuda:0");
  quay_raw_buffer block;
  CHECK_OK(quay_allocator_alloc(allocator, 5000, NULL, &block));
  const uint64_t frees = raw.control->calls("cuMemFree_v2");
  quay_raw_buffer_free(&block);
  cr_assert_eq(raw.control->calls("cuMemFree_v2"), frees);
  uint64_t bytes = 0;
  CHECK_OK(quay_allocator_trim(allocator, &bytes));
  cr_assert_eq(bytes, 5000);
  cr_assert_eq(raw.control->calls("cuMemFree_v2"), frees + 1);
  quay_allocator_release(allocator);
}

Test(cuda, every_alignment_is_kept_in_all_kinds_of_memory) {
  static const char *const specs[] = {"cuda:0", "cuda:0,memory=pinned", "cuda:0,memory=managed"};
  for (size_t i = 0; i < 3; i++) {
    quay_allocator *allocator = open_spec(specs[i]);
    const uint64_t most = i == 0 ? QUAY_ALIGNMENT_MAX : (uint64_t)1 << 24;
    for (uint64_t alignment = 1; alignment <= most; alignment *= 2) {
      const quay_alloc_options options = {.alignment = alignment};
      quay_raw_buffer block;
      CHECK_OK(quay_allocator_alloc(allocator, 33, &options, &block));
      uint64_t address = 0;
      CHECK_OK(quay_raw_buffer_address(&block, &address));
      cr_assert_eq(address % alignment, 0);
      cr_assert_eq(address % 256, 0);
      quay_raw_buffer_free(&block);
    }
    quay_allocator_release(allocator);
  }
}

Test(cuda, memory_named_for_a_stream_is_allocated_and_freed_in_its_order) {
  quay_allocator *allocator = open_spec("cuda:0");
  quay_stream *stream = NULL;
  CHECK_OK(quay_stream_create(quay_allocator_device(allocator), NULL, &stream));
  const quay_alloc_options options = {.stream = stream};
  quay_test_block bytes = quay_test_block_make(100000, 3, 5);
  const uint64_t plain = raw.control->calls("cuMemAlloc_v2");
  const uint64_t ordered = raw.control->calls("cuMemAllocAsync");
  quay_buffer *buffer = make_buffer(allocator, 100000, &options);
  cr_assert_eq(raw.control->calls("cuMemAllocAsync"), ordered + 1);
  cr_assert_eq(raw.control->calls("cuMemAlloc_v2"), plain);
  CHECK_OK(quay_buffer_copy_in(buffer, bytes.data, 100000)); /* on another stream, at once */
  check_bytes(buffer, bytes.data);
  quay_stream_release(stream);
  const uint64_t frees = raw.control->calls("cuMemFreeAsync");
  quay_buffer_release(buffer);
  cr_assert_eq(raw.control->calls("cuMemFreeAsync"), frees + 1);
  CHECK_OK(quay_allocator_synchronize(allocator));
  quay_allocator_release(allocator);
  quay_test_block_free(&bytes);
}

/* Copies. */

Test(cuda, copies_around_the_sizes_of_slots_and_chunks_move_every_byte) {
  static const uint64_t sizes[] = {65535,   65536,   65537,   4194303, 4194304,
                                   4194305, 8388608, 8388609, 12595257};
  quay_allocator *allocator = open_spec("cuda:0");
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    quay_test_block bytes = quay_test_block_make(sizes[i], 3, 100 + i);
    quay_buffer *buffer = make_buffer(allocator, sizes[i], NULL);
    CHECK_OK(quay_buffer_copy_in(buffer, bytes.data, sizes[i]));
    check_bytes(buffer, bytes.data);
    quay_buffer_release(buffer);
    quay_test_block_free(&bytes);
  }
  quay_allocator_release(allocator);
}

Test(cuda, overlapping_ranges_near_and_far_are_moved_as_memmove_does) {
  enum {
    SIZE = 9 << 20
  };
  static const uint64_t distances[] = {1, 7, 65536, (1 << 20) - 1, 1 << 20, (1 << 20) + 3, 5 << 20};
  quay_allocator *allocator = open_spec("cuda:0");
  quay_test_block bytes = quay_test_block_make(SIZE, 0, 41);
  unsigned char *expected = malloc(SIZE);
  quay_buffer *buffer = make_buffer(allocator, SIZE, NULL);
  for (size_t i = 0; i < 2 * sizeof distances / sizeof distances[0]; i++) {
    const uint64_t distance = distances[i / 2], size = SIZE - distance;
    const uint64_t to = i % 2 == 0 ? distance : 0, from = distance - to;
    CHECK_OK(quay_buffer_copy_in(buffer, bytes.data, SIZE));
    CHECK_OK(quay_buffer_copy_region(buffer, to, buffer, from, size, NULL));
    memcpy(expected, bytes.data, SIZE);
    memmove(expected + to, expected + from, size);
    check_bytes(buffer, expected);
  }
  quay_buffer_release(buffer);
  quay_allocator_release(allocator);
  quay_test_block_free(&bytes);
  free(expected);
}

Test(cuda, where_memory_can_not_be_page_locked_the_driver_stages_by_itself) {
  quay_allocator *allocator = open_spec("cuda:0");
  quay_test_block bytes = quay_test_block_make(9 << 20, 3, 43);
  quay_buffer *buffer = make_buffer(allocator, 9 << 20, NULL);
  raw.control->fail("cuMemHostRegister_v2", 1, 2);
  CHECK_OK(quay_buffer_copy_in(buffer, bytes.data, 9 << 20));
  cr_assert_eq(raw.control->failed(), 1);
  check_bytes(buffer, bytes.data);
  quay_buffer_release(buffer);
  quay_allocator_release(allocator);
  quay_test_block_free(&bytes);
}

/* Adoption. */

static void count_release(void *user, void *memory, uint64_t size) {
  uint64_t *const seen = user;
  seen[0]++;
  seen[1] = (uint64_t)(uintptr_t)memory;
  seen[2] = size;
}

/* Memory of device 0 that another library allocated; its context is left current. */
static uint64_t foreign_memory(size_t size) {
  void *context = NULL;
  uint64_t pointer = 0;
  cr_assert_eq(raw.retain(&context, 0), 0);
  cr_assert_eq(raw.ctx_push(context), 0);
  cr_assert_eq(raw.mem_alloc(&pointer, size), 0);
  return pointer;
}

static void end_foreign_memory(uint64_t pointer) {
  void *context = NULL;
  cr_assert_eq(raw.mem_free(pointer), 0);
  cr_assert_eq(raw.ctx_pop(&context), 0);
  cr_assert_eq(raw.release(0), 0);
}

Test(cuda, adopted_memory_is_used_in_place_and_freed_by_its_callback_alone) {
  const uint64_t pointer = foreign_memory(4096);
  quay_allocator *allocator = open_spec("track+cuda:0");
  uint64_t seen[3] = {0};
  quay_raw_buffer adopted;
  CHECK_OK(quay_cuda_adopt(allocator, pointer + 256, 1000, count_release, seen, &adopted));
  quay_buffer *buffer = NULL;
  CHECK_OK(quay_buffer_from_raw(&adopted, QUAY_U8, 1, (int64_t[]){1000}, &buffer));
  quay_test_block bytes = quay_test_block_make(1000, 3, 3);
  CHECK_OK(quay_buffer_copy_in(buffer, bytes.data, 1000));
  unsigned char found[1000];
  cr_assert(raw.control->peek(pointer + 256, found, 1000));
  cr_assert_arr_eq(found, bytes.data, 1000);
  uint64_t address = 0;
  CHECK_OK(quay_cuda_pointer(buffer, &address));
  cr_assert_eq(address, pointer + 256);
  quay_buffer_release(buffer);
  cr_assert_eq(seen[0], 1);
  cr_assert_eq(seen[1], pointer + 256);
  cr_assert_eq(seen[2], 1000);
  quay_allocator_release(allocator);
  end_foreign_memory(pointer);
  quay_test_block_free(&bytes);
}

Test(cuda, adoption_refuses_what_is_not_the_allocators_memory) {
  const uint64_t pointer = foreign_memory(4096);
  quay_raw_buffer adopted;
  unsigned char host[64] = {1};
  quay_allocator *gpu = open_spec("cuda:0"), *other = open_spec("cuda:1");
  quay_allocator *pinned = open_spec("cuda:0,memory=pinned"), *cpu = open_spec("cpu");
  CHECK_FAILS(quay_cuda_adopt(gpu, pointer, 4097, NULL, NULL, &adopted), QUAY_STATUS_OUT_OF_RANGE);
  CHECK_FAILS(quay_cuda_adopt(other, pointer, 10, NULL, NULL, &adopted),
              QUAY_STATUS_INVALID_ARGUMENT);
  CHECK_FAILS(quay_cuda_adopt(pinned, pointer, 10, NULL, NULL, &adopted),
              QUAY_STATUS_INVALID_ARGUMENT);
  CHECK_FAILS(quay_cuda_adopt(cpu, pointer, 10, NULL, NULL, &adopted), QUAY_STATUS_UNSUPPORTED);
  CHECK_FAILS(quay_cuda_adopt(gpu, (uint64_t)(uintptr_t)host, 10, NULL, NULL, &adopted),
              QUAY_STATUS_INVALID_ARGUMENT);
  CHECK_FAILS(quay_cuda_adopt(gpu, 0, 10, NULL, NULL, &adopted), QUAY_STATUS_INVALID_ARGUMENT);
  CHECK_FAILS(quay_cuda_adopt(gpu, pointer, UINT64_MAX, NULL, NULL, &adopted),
              QUAY_STATUS_INVALID_ARGUMENT);
  quay_allocator_release(gpu);
  quay_allocator_release(other);
  quay_allocator_release(pinned);
  quay_allocator_release(cpu);
  end_foreign_memory(pointer);
}

Test(cuda, released_memory_is_the_programs_and_freed_by_the_driver) {
  quay_allocator *allocator = open_spec("track+cuda:0");
  quay_raw_buffer block;
  CHECK_OK(quay_allocator_alloc(allocator, 777, NULL, &block));
  uint64_t address = 0;
  CHECK_OK(quay_raw_buffer_address(&block, &address));
  quay_cuda_memory memory;
  CHECK_OK(quay_cuda_release(&block, &memory));
  cr_assert_eq(memory.pointer, address);
  cr_assert_eq(memory.size, 777);
  CHECK_FAILS(quay_cuda_release(&block, &memory), QUAY_STATUS_NOT_ALLOCATED);
  quay_stats stats;
  CHECK_OK(quay_allocator_stats(allocator, &stats));
  cr_assert_eq(stats.live_count, 0);
  void *context = NULL;
  cr_assert_eq(raw.retain(&context, 0), 0);
  cr_assert_eq(raw.ctx_push(context), 0);
  quay_allocator_release(allocator);
  end_foreign_memory(address);
}

Test(cuda, memory_with_a_mirror_is_not_released) {
  quay_allocator *allocator = open_spec("cuda:0");
  const quay_alloc_options mirrored = {.mirror = true};
  quay_raw_buffer block;
  quay_cuda_memory memory;
  CHECK_OK(quay_allocator_alloc(allocator, 64, &mirrored, &block));
  CHECK_FAILS(quay_cuda_release(&block, &memory), QUAY_STATUS_UNSUPPORTED);
  quay_raw_buffer_free(&block);
  quay_allocator_release(allocator);
}

/* Mirrors. */

Test(cuda, a_mirror_moves_bytes_only_when_it_is_flushed_or_invalidated) {
  quay_allocator *allocator = open_spec("cuda:0");
  const quay_alloc_options options = {.mirror = true};
  quay_buffer *whole = make_buffer(allocator, 200000, &options), *buffer = NULL;
  CHECK_OK(quay_buffer_view(whole, 1001, 100000, &buffer));
  quay_test_block first = quay_test_block_make(100000, 1, 1);
  quay_test_block second = quay_test_block_make(100000, 1, 2);
  void *twin = NULL;
  CHECK_OK(quay_cuda_mirror_pointer(buffer, &twin));
  CHECK_OK(quay_cuda_mirror_upload(buffer, first.data, 100000));
  check_bytes(buffer, first.data);
  memcpy(twin, second.data, 100000);
  check_bytes(buffer, first.data);
  CHECK_OK(quay_cuda_mirror_flush(buffer));
  check_bytes(buffer, second.data);
  CHECK_OK(quay_buffer_copy_in(buffer, first.data, 100000));
  cr_assert_arr_eq(twin, second.data, 100000);
  CHECK_OK(quay_cuda_mirror_invalidate(buffer));
  cr_assert_arr_eq(twin, first.data, 100000);
  unsigned char *found = malloc(100000);
  CHECK_OK(quay_cuda_mirror_download(buffer, found, 100000));
  cr_assert_arr_eq(found, first.data, 100000);
  CHECK_FAILS(quay_cuda_mirror_download(buffer, found, 99999), QUAY_STATUS_SIZE_MISMATCH);
  CHECK_FAILS(quay_cuda_mirror_upload(buffer, found, 100001), QUAY_STATUS_SIZE_MISMATCH);
  CHECK_OK(quay_buffer_seal(whole));
  CHECK_FAILS(quay_cuda_mirror_upload(buffer, second.data, 100000), QUAY_STATUS_READ_ONLY);
  CHECK_FAILS(quay_cuda_mirror_flush(buffer), QUAY_STATUS_READ_ONLY);
  cr_assert_arr_eq(twin, first.data, 100000);
  free(found);
  quay_buffer_release(buffer);
  quay_buffer_release(whole);
  quay_allocator_release(allocator);
  quay_test_block_free(&first);
  quay_test_block_free(&second);
}

Test(cuda, mirror_functions_refuse_buffers_without_one) {
  static const char *const specs[] = {"cuda:0", "cpu"};
  for (size_t i = 0; i < 2; i++) {
    quay_allocator *allocator = open_spec(specs[i]);
    quay_buffer *buffer = make_buffer(allocator, 10, NULL);
    unsigned char bytes[10] = {1};
    void *twin = NULL;
    CHECK_FAILS(quay_cuda_mirror_pointer(buffer, &twin), QUAY_STATUS_UNSUPPORTED);
    CHECK_FAILS(quay_cuda_mirror_flush(buffer), QUAY_STATUS_UNSUPPORTED);
    CHECK_FAILS(quay_cuda_mirror_invalidate(buffer), QUAY_STATUS_UNSUPPORTED);
    CHECK_FAILS(quay_cuda_mirror_upload(buffer, bytes, 10), QUAY_STATUS_UNSUPPORTED);
    CHECK_FAILS(quay_cuda_mirror_download(buffer, bytes, 10), QUAY_STATUS_UNSUPPORTED);
    quay_buffer_release(buffer);
    quay_allocator_release(allocator);
  }
}

/* Streams. */

Test(cuda, wrappers_give_the_drivers_handles) {
  quay_allocator *allocator = open_spec("cuda:0");
  static const uint64_t natives[] = {0, 1, 2};
  static const uint64_t expected[] = {1, 1, 2};
  for (size_t i = 0; i < 3; i++) {
    quay_stream *stream = NULL;
    CHECK_OK(quay_cuda_stream_wrap(0, natives[i], &stream));
    cr_assert_eq(quay_cuda_stream(stream), expected[i]);
    CHECK_OK(quay_stream_synchronize(stream));
    quay_stream_release(stream);
  }
  cr_assert_eq(quay_cuda_stream(NULL), 0);
  quay_allocator_release(allocator);
}

static void *synchronize_in_thread(void *stream) {
  const quay_status status = quay_stream_synchronize(stream);
  return (void *)(uintptr_t)(status == QUAY_STATUS_INVALID_ARGUMENT &&
                             strstr(quay_last_error()->message, "another thread") != NULL);
}

Test(cuda, a_wrapper_of_a_threads_default_stream_is_refused_in_another_thread) {
  quay_allocator *allocator = open_spec("cuda:0");
  quay_stream *stream = NULL;
  CHECK_OK(quay_stream_wrap(quay_allocator_device(allocator), 2, &stream));
  pthread_t thread;
  void *refused = NULL;
  cr_assert_eq(pthread_create(&thread, NULL, synchronize_in_thread, stream), 0);
  cr_assert_eq(pthread_join(thread, &refused), 0);
  cr_assert_not_null(refused);
  quay_stream_release(stream);
  quay_allocator_release(allocator);
}

Test(cuda, a_stream_of_another_context_is_not_wrapped) {
  quay_allocator *allocator = open_spec("cuda:0");
  void *context = NULL, *native = NULL;
  cr_assert_eq(raw.ctx_create(&context, 0, 0), 0);
  cr_assert_eq(raw.stream_create(&native, 1), 0);
  quay_stream *stream = NULL;
  CHECK_FAILS(
      quay_stream_wrap(quay_allocator_device(allocator), (uint64_t)(uintptr_t)native, &stream),
      QUAY_STATUS_INVALID_ARGUMENT);
  CHECK_MESSAGE("primary context");
  cr_assert_eq(raw.stream_destroy(native), 0);
  cr_assert_eq(raw.ctx_destroy(context), 0);
  quay_allocator_release(allocator);
}

Test(cuda, a_capturing_stream_is_refused_and_its_capture_stays_valid) {
  quay_allocator *allocator = open_spec("cuda:0");
  quay_buffer *buffer = make_buffer(allocator, 100, NULL);
  unsigned char bytes[100] = {4, 5, 6};
  quay_stream *stream = NULL;
  CHECK_OK(quay_stream_create(quay_allocator_device(allocator), NULL, &stream));
  void *native = (void *)(uintptr_t)quay_cuda_stream(stream), *graph = NULL;
  void *context = NULL;
  cr_assert_eq(raw.retain(&context, 0), 0);
  cr_assert_eq(raw.ctx_push(context), 0);
  cr_assert_eq(raw.begin_capture(native, 0), 0);
  const quay_alloc_options options = {.stream = stream};
  quay_raw_buffer block;
  quay_event *event = NULL;
  CHECK_FAILS(quay_allocator_alloc(allocator, 10, &options, &block), QUAY_STATUS_UNSUPPORTED);
  CHECK_FAILS(quay_event_record(stream, &event), QUAY_STATUS_UNSUPPORTED);
  CHECK_FAILS(quay_stream_synchronize(stream), QUAY_STATUS_UNSUPPORTED);
  const quay_copy_options on_stream = {.stream = stream};
  CHECK_FAILS(quay_buffer_copy_region(buffer, 0, buffer, 50, 50, &on_stream),
              QUAY_STATUS_UNSUPPORTED);
  /* What is not on that stream goes on, in the thread that captures, too. */
  CHECK_OK(quay_buffer_copy_in(buffer, bytes, 100));
  check_bytes(buffer, bytes);
  CHECK_OK(quay_allocator_alloc(allocator, 10, NULL, &block));
  quay_raw_buffer_free(&block);
  cr_assert_eq(raw.end_capture(native, &graph), 0);
  cr_assert_eq(raw.graph_destroy(graph), 0);
  cr_assert_eq(raw.ctx_pop(&context), 0);
  cr_assert_eq(raw.release(0), 0);
  quay_stream_release(stream);
  quay_buffer_release(buffer);
  quay_allocator_release(allocator);
}

/* Health. */

Test(cuda, the_sticky_results_are_those_that_need_a_new_process) {
  static const int sticky[] = {214, 220, 226, 700, 702, 710, 714, 715,
                               716, 717, 718, 719, 721, 810, 911};
  static const int others[] = {0, 1, 2, 3, 4, 34, 100, 201, 400, 600, 701, 704, 709, 720, 900, 999};
  for (size_t i = 0; i < sizeof sticky / sizeof sticky[0]; i++) {
    cr_expect(quay__cuda_sticky(sticky[i]), "%d", sticky[i]);
    cr_expect_eq(quay__cuda_status_of(sticky[i]), QUAY_STATUS_DEVICE_LOST, "%d", sticky[i]);
  }
  for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
    cr_expect_not(quay__cuda_sticky(others[i]), "%d", others[i]);
  cr_expect_eq(quay__cuda_status_of(2), QUAY_STATUS_OUT_OF_DEVICE_MEMORY);
  cr_expect_eq(quay__cuda_status_of(709), QUAY_STATUS_STALE);
  cr_expect_eq(quay__cuda_status_of(900), QUAY_STATUS_UNSUPPORTED);
}

static bool lost_with_first_message(quay_status status) {
  return status == QUAY_STATUS_DEVICE_LOST && quay_last_error()->native_code == 700 &&
         strstr(quay_last_error()->message, "start a new process") != NULL;
}

static bool loses_everything(void) {
  quay_allocator *allocator = NULL, *other = NULL;
  quay_buffer *buffer = NULL;
  unsigned char bytes[100] = {1};
  if (!HOLDS(quay_allocator_open("cuda:0", &allocator) == QUAY_OK) ||
      !HOLDS(quay_allocator_open("cuda:1", &other) == QUAY_OK) ||
      !HOLDS(quay_buffer_create(allocator, QUAY_U8, 1, (int64_t[]){100}, NULL, &buffer) == QUAY_OK))
    return false;
  quay_device *device = quay_allocator_device(allocator);
  raw.control->lose(700);
  quay_health health = QUAY_HEALTH_OK;
  quay_raw_buffer block;
  quay_memory_info info;
  bool good = HOLDS(quay_device_health(device) == QUAY_HEALTH_OK) &&
              HOLDS(quay_cuda_health(device, &health) == QUAY_OK) &&
              HOLDS(health == QUAY_HEALTH_LOST) &&
              HOLDS(quay_device_health(quay_allocator_device(other)) == QUAY_HEALTH_LOST) &&
              HOLDS(lost_with_first_message(quay_buffer_copy_in(buffer, bytes, 100))) &&
              HOLDS(lost_with_first_message(quay_buffer_copy_out(buffer, bytes, 100))) &&
              HOLDS(lost_with_first_message(quay_allocator_alloc(other, 10, NULL, &block))) &&
              HOLDS(lost_with_first_message(quay_allocator_synchronize(allocator))) &&
              HOLDS(lost_with_first_message(quay_device_memory_info(device, &info))) &&
              HOLDS(lost_with_first_message(quay_device_reset(device)));
  const uint64_t calls = raw.control->calls(NULL);
  quay_buffer_release(buffer);
  good = good && HOLDS(raw.control->calls(NULL) == calls);
  quay_allocator_release(allocator);
  quay_allocator_release(other);
  return good;
}

Test(cuda_child, a_fault_loses_all_devices_with_the_first_message_and_frees_call_nothing) {
  cr_assert(succeeds_in_child(loses_everything));
}

Test(cuda, a_reset_makes_old_memory_stale_and_the_device_usable) {
  quay_allocator *allocator = open_spec("cuda:0");
  quay_device *device = quay_allocator_device(allocator);
  quay_buffer *old = make_buffer(allocator, 100, NULL);
  unsigned char bytes[100] = {7, 8, 9};
  CHECK_OK(quay_buffer_copy_in(old, bytes, 100));
  CHECK_OK(quay_device_reset(device));
  CHECK_FAILS(quay_buffer_copy_in(old, bytes, 100), QUAY_STATUS_STALE);
  quay_buffer *fresh = make_buffer(allocator, 100, NULL);
  CHECK_OK(quay_buffer_copy_in(fresh, bytes, 100));
  check_bytes(fresh, bytes);
  quay_buffer_release(old);
  quay_buffer_release(fresh);
  quay_allocator_release(allocator);
}

static bool refuses_managed(void) {
  setenv("SIMCUDA_MANAGED", "0", 1);
  quay_allocator *allocator = NULL;
  return HOLDS(quay_allocator_open("cuda:0,memory=managed", &allocator) ==
               QUAY_STATUS_UNSUPPORTED) &&
         HOLDS(strstr(quay_last_error()->message, "concurrent managed access") != NULL);
}

Test(cuda_child, managed_memory_needs_concurrent_access) {
  cr_assert(succeeds_in_child(refuses_managed));
}

/* Peers. */

/* Copies between two devices, blocking and on a stream of the source's, ordered memory included. */
static bool copies_between(quay_route expected) {
  enum {
    SIZE = 300000
  };
  quay_allocator *first = NULL, *second = NULL;
  quay_buffer *a = NULL, *b = NULL;
  quay_stream *stream = NULL;
  if (!HOLDS(quay_allocator_open("cuda:0", &first) == QUAY_OK) ||
      !HOLDS(quay_allocator_open("cuda:1", &second) == QUAY_OK) ||
      !HOLDS(quay_stream_create(quay_allocator_device(first), NULL, &stream) == QUAY_OK))
    return false;
  quay_test_block bytes = quay_test_block_make(SIZE, 1, 61);
  unsigned char *found = calloc(1, SIZE);
  const quay_alloc_options ordered = {.stream = stream};
  const quay_copy_options on_stream = {.stream = stream};
  quay_copy_plan_info plan;
  const int64_t shape[] = {SIZE};
  const bool good = HOLDS(quay_buffer_create(first, QUAY_U8, 1, shape, &ordered, &a) == QUAY_OK) &&
                    HOLDS(quay_buffer_create(second, QUAY_U8, 1, shape, NULL, &b) == QUAY_OK) &&
                    HOLDS(quay_buffer_copy_in(a, bytes.data, SIZE) == QUAY_OK) &&
                    HOLDS(quay_copy_plan(b, 0, a, 0, SIZE, NULL, &plan) == QUAY_OK) &&
                    HOLDS(plan.route == expected) &&
                    HOLDS(quay_buffer_copy_from(b, a) == QUAY_OK) &&
                    HOLDS(quay_buffer_copy_out(b, found, SIZE) == QUAY_OK) &&
                    HOLDS(memcmp(found, bytes.data, SIZE) == 0) &&
                    HOLDS(quay_buffer_fill(b, "z", 1) == QUAY_OK) &&
                    HOLDS(quay_buffer_copy_region(b, 0, a, 0, SIZE, &on_stream) == QUAY_OK) &&
                    HOLDS(quay_buffer_copy_out(b, found, SIZE) == QUAY_OK) &&
                    HOLDS(memcmp(found, bytes.data, SIZE) == 0);
  quay_buffer_release(a);
  quay_buffer_release(b);
  quay_stream_release(stream);
  quay_allocator_release(first);
  quay_allocator_release(second);
  quay_test_block_free(&bytes);
  free(found);
  return good && HOLDS(quay_shutdown() == QUAY_OK) && no_violations();
}

static bool stages_without_peers(void) {
  setenv("SIMCUDA_PEERS", "none", 1);
  return copies_between(QUAY_ROUTE_STAGED) &&
         HOLDS(raw.control->calls("cuCtxEnablePeerAccess") == 0);
}

Test(cuda_child, devices_that_do_not_reach_each_other_are_copied_between_through_the_host) {
  cr_assert(succeeds_in_child(stages_without_peers));
}

static bool stages_where_the_pool_is_refused(void) {
  raw.control->fail("cuMemPoolSetAccess", 1, 801);
  quay_test_log_begin();
  return copies_between(QUAY_ROUTE_STAGED) &&
         HOLDS(quay_test_log_count("copies between them are staged") == 1);
}

Test(cuda_child, where_one_kind_of_access_is_refused_all_copies_are_staged_and_that_is_logged) {
  cr_assert(succeeds_in_child(stages_where_the_pool_is_refused));
}

static bool copies_between_peers(void) {
  return copies_between(QUAY_ROUTE_DIRECT) &&
         HOLDS(raw.control->calls("cuMemPoolSetAccess") == 2) &&
         HOLDS(raw.control->calls("cuCtxEnablePeerAccess") == 2);
}

Test(cuda_child, peers_are_enabled_once_each_way_for_plain_and_for_ordered_memory) {
  cr_assert(succeeds_in_child(copies_between_peers));
}

/* Failure of each call of a scenario. */

static bool failed_cleanly(quay_status status) {
  return status == QUAY_OK ||
         (quay_last_error()->status == status && quay_last_error()->message[0] != '\0');
}

/* Whatever fails, the rest is released as ever. */
static bool scenario(void) {
  unsigned char *bytes = malloc(5000000), *found = malloc(5000000);
  memset(bytes, 0x5a, 5000000);
  quay_allocator *allocator = NULL;
  quay_stream *stream = NULL;
  quay_buffer *plain = NULL, *ordered = NULL;
  quay_status status = quay_allocator_open("cuda:0", &allocator);
  if (status == QUAY_OK)
    status = quay_stream_create(quay_allocator_device(allocator), NULL, &stream);
  if (status == QUAY_OK)
    status = quay_buffer_create(allocator, QUAY_U8, 1, (int64_t[]){5000000}, NULL, &plain);
  const quay_alloc_options in_order = {.stream = stream};
  if (status == QUAY_OK)
    status = quay_buffer_create(allocator, QUAY_U8, 1, (int64_t[]){5000000}, &in_order, &ordered);
  if (status == QUAY_OK)
    status = quay_buffer_copy_in(plain, bytes, 5000000);
  const quay_copy_options on_stream = {.stream = stream};
  if (status == QUAY_OK)
    status = quay_buffer_copy_region(ordered, 0, plain, 0, 5000000, &on_stream);
  if (status == QUAY_OK)
    status = quay_buffer_copy_out(ordered, found, 5000000);
  const bool good = HOLDS(failed_cleanly(status)) &&
                    HOLDS(status != QUAY_OK || memcmp(bytes, found, 5000000) == 0);
  quay_buffer_release(plain);
  quay_buffer_release(ordered);
  quay_stream_release(stream);
  quay_allocator_release(allocator);
  free(bytes);
  free(found);
  return good;
}

static bool nothing_is_left(void) {
  if (!HOLDS(quay_shutdown() == QUAY_OK))
    return false;
  simcuda_census left;
  raw.control->count(&left);
  /* What the driver refused to take back is lost, and was logged: one block at most. */
  return HOLDS(left.allocations <= 1) && HOLDS(left.streams <= 1) && HOLDS(left.events <= 1) &&
         HOLDS(left.retains <= 1) && no_violations();
}

static uint64_t failing_call;

static bool survives_a_failure(void) {
  raw.control->fail(NULL, failing_call, 999);
  const bool good = scenario();
  const bool reached = raw.control->failed() != 0;
  raw.control->fail(NULL, 0, 0);
  if (!good || !nothing_is_left())
    _exit(1);
  _exit(reached ? 0 : 2);
}

Test(cuda_child, whichever_call_of_the_driver_fails_the_error_is_clean_and_nothing_leaks,
     .timeout = QUAY_TEST_SWEEP_SECONDS) {
  int status = 0;
  failing_call = quay_test_sweep_first();
  for (; status == 0; failing_call += quay_test_sweep_step()) {
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0)
      (void)survives_a_failure();
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) != 1, "call %llu: status 0x%x",
              (unsigned long long)failing_call, (unsigned)status);
  }
  cr_assert_gt(failing_call, 40);
}

/* Fork and exit. */

static bool frees_nothing_after_fork(void) {
  quay_allocator *allocator = NULL;
  quay_buffer *buffer = NULL;
  unsigned char bytes[100] = {3};
  if (!HOLDS(quay_allocator_open("cuda:0", &allocator) == QUAY_OK) ||
      !HOLDS(quay_buffer_create(allocator, QUAY_U8, 1, (int64_t[]){100}, NULL, &buffer) == QUAY_OK))
    return false;
  fflush(NULL);
  const pid_t child = fork();
  if (child == 0) {
    const uint64_t calls = raw.control->calls(NULL);
    const bool good = HOLDS(quay_buffer_copy_in(buffer, bytes, 100) == QUAY_STATUS_UNAVAILABLE) &&
                      HOLDS(strstr(quay_last_error()->message, "forked") != NULL);
    quay_buffer_release(buffer);
    quay_allocator_release(allocator);
    _exit(good && HOLDS(raw.control->calls(NULL) == calls) ? 0 : 1);
  }
  int status = 1;
  const bool good = HOLDS(waitpid(child, &status, 0) == child) && HOLDS(status == 0) &&
                    HOLDS(quay_buffer_copy_in(buffer, bytes, 100) == QUAY_OK);
  quay_buffer_release(buffer);
  quay_allocator_release(allocator);
  return good;
}

Test(cuda_child, the_child_of_a_fork_is_refused_and_its_frees_call_nothing) {
  cr_assert(succeeds_in_child(frees_nothing_after_fork));
}

static quay_allocator *kept_allocator;
static quay_buffer *kept_buffer;

/* Runs after the backend's own handler, which was registered later. */
static void release_at_exit(void) {
  const uint64_t calls = raw.control->calls(NULL);
  unsigned char byte = 1;
  const bool refused = quay_buffer_copy_in(kept_buffer, &byte, 1) == QUAY_STATUS_UNAVAILABLE;
  quay_buffer_release(kept_buffer);
  quay_allocator_release(kept_allocator);
  _exit(HOLDS(refused) && HOLDS(raw.control->calls(NULL) == calls) ? 0 : 1);
}

static bool exits_with_live_memory(void) {
  if (!HOLDS(atexit(release_at_exit) == 0) ||
      !HOLDS(quay_allocator_open("cuda:0", &kept_allocator) == QUAY_OK) ||
      !HOLDS(quay_buffer_create(kept_allocator, QUAY_U8, 1, (int64_t[]){1}, NULL, &kept_buffer) ==
             QUAY_OK))
    return false;
  exit(1);
}

Test(cuda_child, releases_while_the_process_exits_call_nothing) {
  cr_assert(succeeds_in_child(exits_with_live_memory));
}
