/* What the Vulkan backend does beyond the contract of all backends, behind the shim of the loader:
 * specs, limits, blocks, streams, copies in pieces. Adoption and loss are in vulkan_adopt.c and
 * vulkan_loss.c. */
#include "vulkan_fixture.h"

/* Specs and devices. */

Test(vulkan, a_device_is_named_by_its_uuid_with_and_without_dashes, .init = setup,
     .fini = teardown) {
  (void)setenv("VKSHIM_DEVICES", "2", 1);
  quay_allocator_release(open_spec("vulkan:1"));
  quay_device *device = NULL;
  uint8_t uuid[16];
  CHECK_OK(quay_vulkan_device(1, &device));
  CHECK_OK(quay_vulkan_device_uuid(device, uuid));
  char spec[80] = "vulkan:uuid=", dashed[80] = "vulkan:uuid=";
  for (size_t i = 0; i < sizeof uuid; i++) {
    (void)snprintf(spec + strlen(spec), 3, "%02x", uuid[i]);
    (void)snprintf(dashed + strlen(dashed), 4, i == 4 || i == 8 ? "-%02X" : "%02X", uuid[i]);
  }
  quay_allocator *plain = open_spec(spec), *with_dashes = open_spec(dashed);
  cr_assert_eq(quay_allocator_device(plain), device);
  cr_assert_str_eq(quay_allocator_spec(plain), "vulkan:1");
  cr_assert_eq(quay_allocator_device(with_dashes), device);
  quay_allocator_release(with_dashes);
  quay_allocator_release(plain);
  quay_device_release(device);
}

Test(vulkan, specs_that_name_no_device_or_no_memory_are_refused_with_the_piece, .init = setup,
     .fini = teardown) {
  quay_allocator_release(open_spec("vulkan:0"));
  static const struct {
    const char *spec, *text;
    quay_status status;
  } wrong[] = {
      {"vulkan:7", "vulkan:0", QUAY_STATUS_UNAVAILABLE},
      {"vulkan:x", "\"x\"", QUAY_STATUS_INVALID_ARGUMENT},
      {"vulkan:uuid=123", "\"123\"", QUAY_STATUS_INVALID_ARGUMENT},
      {"vulkan:uuid=00112233-4455-6677-8899-aabbccddeeff", "UUID", QUAY_STATUS_UNAVAILABLE},
      {"vulkan:0,uuid=00112233445566778899aabbccddeeff", "twice", QUAY_STATUS_INVALID_ARGUMENT},
      {"vulkan:0,memory=pinned", "\"pinned\"", QUAY_STATUS_INVALID_ARGUMENT},
      {"vulkan:0,dedicated=yes", "\"yes\"", QUAY_STATUS_INVALID_ARGUMENT},
      {"vulkan:0,colour=red", "colour", QUAY_STATUS_INVALID_ARGUMENT},
  };
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    quay_allocator *allocator = NULL;
    CHECK_FAILS(quay_allocator_open(wrong[i].spec, &allocator), wrong[i].status);
    CHECK_MESSAGE(wrong[i].text);
    cr_assert_null(allocator);
  }
}

Test(vulkan, a_software_device_is_taken_without_a_number_where_there_is_no_other, .init = setup,
     .fini = teardown) {
  quay_allocator *allocator = open_spec("vulkan");
  cr_assert_str_eq(quay_allocator_spec(allocator), "vulkan:0");
  quay_allocator_release(allocator);
}

Test(vulkan, a_software_device_is_passed_over_where_there_is_another_one_and_opens_by_name,
     .init = setup, .fini = teardown) {
  (void)setenv("VKSHIM_DISCRETE", "1", 1);
  (void)setenv("VKSHIM_DEVICES", "3", 1);
  (void)setenv("VKSHIM_FIRST_IS_SOFTWARE", "1", 1);
  (void)setenv("QUAY_BACKEND", "vulkan", 1);
  quay_allocator *allocator = open_spec("vulkan"), *usual = NULL, *named = open_spec("vulkan:0");
  cr_assert_str_eq(quay_device_name(quay_allocator_device(allocator)), "vulkan:1");
  CHECK_OK(quay_default_allocator_get(&usual));
  cr_assert_str_eq(quay_device_name(quay_allocator_device(usual)), "vulkan:1");
  cr_assert_str_eq(quay_device_name(quay_allocator_device(named)), "vulkan:0");
  quay_allocator_release(named);
  quay_allocator_release(usual);
  quay_allocator_release(allocator);
}

Test(vulkan, cached_memory_that_is_not_coherent_is_unsupported, .init = setup, .fini = teardown) {
  (void)setenv("VKSHIM_DISCRETE", "1", 1);
  quay_allocator_release(open_spec("vulkan:0"));
  quay_allocator *allocator = NULL;
  CHECK_FAILS(quay_allocator_open("vulkan:0,memory=cached", &allocator), QUAY_STATUS_UNSUPPORTED);
  CHECK_MESSAGE("coherent");
}

Test(vulkan, the_list_of_devices_tells_the_free_memory_of_an_open_one, .init = setup,
     .fini = teardown) {
  quay_allocator *allocator = open_spec("vulkan:0");
  quay_buffer *buffer = make_buffer(allocator, 100 << 20);
  quay_device_list list;
  CHECK_OK(quay_devices(&list));
  bool found = false;
  for (size_t i = 0; i < list.count; i++) {
    if (strcmp(list.devices[i].spec, "vulkan:0") != 0)
      continue;
    found = true;
    cr_assert(list.devices[i].available);
    cr_assert_eq(list.devices[i].type, QUAY_DEVICE_VULKAN);
    cr_assert_leq(list.devices[i].memory.free_bytes,
                  list.devices[i].memory.total_bytes - (100 << 20));
  }
  cr_assert(found);
  quay_device_list_free(&list);
  quay_buffer_release(buffer);
  quay_allocator_release(allocator);
}

/* Limits. */

Test(vulkan, a_size_above_a_limit_is_refused_with_the_limit_and_its_figure, .init = setup,
     .fini = teardown) {
  (void)setenv("VKSHIM_MAX_ALLOCATION_BYTES", "123456768", 1);
  quay_allocator *allocator = open_spec("vulkan:0");
  quay_raw_buffer raw;
  CHECK_FAILS(quay_allocator_alloc(allocator, 123456769, NULL, &raw), QUAY_STATUS_LIMIT_EXCEEDED);
  CHECK_MESSAGE("maxMemoryAllocationSize is 123456768");
  CHECK_OK(quay_allocator_alloc(allocator, 123456768, NULL, &raw));
  quay_raw_buffer_free(&raw);
  quay_allocator_release(allocator);
}

/* The heap says yes, and the device can't bind so much: nothing may come out short. */
Test(vulkan, four_gibibytes_and_more_work_or_are_refused, .init = setup, .fini = teardown) {
  (void)setenv("VKSHIM_HEAP_BYTES", "1099511627776", 1);
  (void)setenv("VKSHIM_MAX_ALLOCATION_BYTES", "1099511627776", 1);
  quay_allocator *allocator = open_spec("vulkan:0");
  static const uint64_t sizes[] = {4294967295u, 4294967296u, 4294967296u + 512};
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    quay_raw_buffer raw;
    const quay_status status = quay_allocator_alloc(allocator, sizes[i], NULL, &raw);
    if (status == QUAY_OK) {
      quay_buffer *buffer = NULL;
      const int64_t shape[] = {(int64_t)sizes[i]};
      CHECK_OK(quay_buffer_from_raw(&raw, QUAY_U8, 1, shape, &buffer));
      quay_buffer *tail = NULL;
      CHECK_OK(quay_buffer_view(buffer, sizes[i] - 1000, 1000, &tail));
      write_pattern(tail, 5);
      check_pattern(tail, 5);
      quay_buffer_release(tail);
      quay_buffer_release(buffer);
    } else {
      cr_assert(status == QUAY_STATUS_LIMIT_EXCEEDED || status == QUAY_STATUS_OUT_OF_DEVICE_MEMORY,
                "%s", quay_last_error()->message);
    }
  }
  quay_allocator_release(allocator);
}

Test(vulkan, many_small_allocations_share_a_few_of_the_device, .init = setup, .fini = teardown) {
  (void)setenv("VKSHIM_MAX_ALLOCATIONS", "4", 1);
  quay_allocator *allocator = open_spec("vulkan:0");
  quay_buffer *buffers[300];
  for (size_t i = 0; i < 300; i++) {
    buffers[i] = make_buffer(allocator, 1000 + i * 7);
    write_pattern(buffers[i], i + 1);
  }
  for (size_t i = 0; i < 300; i++)
    check_pattern(buffers[i], i + 1);
  vkshim_census now;
  shim->count(&now);
  cr_assert_leq(now.memories, 2);
  for (size_t i = 0; i < 300; i += 2)
    quay_buffer_release(buffers[i]);
  for (size_t i = 1; i < 300; i += 2)
    check_pattern(buffers[i], i + 1);
  for (size_t i = 1; i < 300; i += 2)
    quay_buffer_release(buffers[i]);
  quay_allocator_release(allocator);
}

Test(vulkan, allocations_beyond_the_devices_number_are_refused_and_can_be_tried_again,
     .init = setup, .fini = teardown) {
  (void)setenv("VKSHIM_MAX_ALLOCATIONS", "3", 1);
  quay_allocator *allocator = open_spec("vulkan:0,dedicated=on");
  quay_raw_buffer raws[3], more;
  for (size_t i = 0; i < 3; i++)
    CHECK_OK(quay_allocator_alloc(allocator, 100, NULL, &raws[i]));
  CHECK_FAILS(quay_allocator_alloc(allocator, 100, NULL, &more), QUAY_STATUS_LIMIT_EXCEEDED);
  CHECK_MESSAGE("maxMemoryAllocationCount");
  CHECK_MESSAGE("3 allocations");
  quay_raw_buffer_free(&raws[1]);
  CHECK_OK(quay_allocator_alloc(allocator, 100, NULL, &raws[1]));
  for (size_t i = 0; i < 3; i++)
    quay_raw_buffer_free(&raws[i]);
  quay_allocator_release(allocator);
}

Test(vulkan, a_binding_is_refused_above_the_devices_range_and_at_a_bad_offset, .init = setup,
     .fini = teardown) {
  quay_allocator *allocator = open_spec("vulkan:0");
  quay_vulkan_limits limits;
  CHECK_OK(quay_vulkan_get_limits(quay_allocator_device(allocator), &limits));
  cr_assert_gt(limits.min_storage_buffer_offset_alignment, 1);
  const uint64_t range = limits.max_storage_buffer_range;
  quay_buffer *buffer = make_buffer(allocator, range + 64), *view = NULL;
  quay_vulkan_memory binding;
  char figure[32];
  (void)snprintf(figure, sizeof figure, "%llu", (unsigned long long)range);
  CHECK_FAILS(quay_vulkan_binding(buffer, &binding), QUAY_STATUS_LIMIT_EXCEEDED);
  CHECK_MESSAGE(figure);
  cr_assert_eq(binding.buffer, 0);
  CHECK_OK(quay_buffer_view(buffer, 64, range, &view));
  CHECK_OK(quay_vulkan_binding(view, &binding));
  cr_assert_neq(binding.buffer, 0);
  cr_assert_eq(binding.size, range);
  quay_buffer_release(view);
  CHECK_OK(quay_buffer_view(buffer, 1, 100, &view));
  CHECK_FAILS(quay_vulkan_binding(view, &binding), QUAY_STATUS_MISALIGNED);
  CHECK_OK(quay_vulkan_window(view, &binding));
  cr_assert_eq(binding.size, 100);
  quay_buffer_release(view);
  quay_buffer_release(buffer);
  quay_allocator_release(allocator);
}

Test(vulkan, without_addresses_an_access_has_none_and_copies_work, .init = setup,
     .fini = teardown) {
  (void)setenv("VKSHIM_NO_ADDRESS", "1", 1);
  quay_allocator *allocator = open_spec("vulkan:0");
  quay_buffer *buffer = make_buffer(allocator, 5000);
  quay_stream *stream = NULL;
  quay_access access;
  uint64_t address = 1;
  write_pattern(buffer, 3);
  CHECK_FAILS(quay_buffer_address(buffer, &address), QUAY_STATUS_UNSUPPORTED);
  CHECK_MESSAGE("bufferDeviceAddress");
  CHECK_OK(quay_stream_create(quay_allocator_device(allocator), NULL, &stream));
  CHECK_OK(quay_access_begin(stream, &(quay_use){buffer, QUAY_READ}, 1, &access));
  cr_assert_eq(access.pointers[0], 0);
  CHECK_OK(quay_access_end(&access));
  CHECK_OK(quay_stream_synchronize(stream));
  check_pattern(buffer, 3);
  quay_buffer_release(buffer);
  quay_stream_release(stream);
  quay_allocator_release(allocator);
}

/* Memory that fails. */

Test(vulkan, a_failed_call_of_an_allocation_leaves_nothing_and_the_next_one_works, .init = setup,
     .fini = teardown) {
  static const char *const functions[] = {"vkCreateBuffer", "vkAllocateMemory", "vkMapMemory"};
  quay_allocator *allocator = open_spec("vulkan:0,memory=host");
  for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
    vkshim_census before, after;
    quay_raw_buffer raw;
    shim->count(&before);
    shim->fail(functions[i], 1, VK_ERROR_OUT_OF_HOST_MEMORY);
    CHECK_FAILS(quay_allocator_alloc(allocator, 100 << 20, NULL, &raw),
                QUAY_STATUS_OUT_OF_HOST_MEMORY);
    CHECK_MESSAGE("VK_ERROR_OUT_OF_HOST_MEMORY");
    shim->count(&after);
    cr_assert_eq(after.memories, before.memories, "after %s", functions[i]);
    cr_assert_eq(after.buffers, before.buffers, "after %s", functions[i]);
    CHECK_OK(quay_allocator_alloc(allocator, 100 << 20, NULL, &raw));
    quay_raw_buffer_free(&raw);
  }
  quay_allocator_release(allocator);
}

Test(vulkan, empty_blocks_are_given_back_when_memory_is_short, .init = setup, .fini = teardown) {
  quay_allocator *allocator = open_spec("vulkan:0");
  quay_raw_buffer small, large;
  CHECK_OK(quay_allocator_alloc(allocator, 100, NULL, &small));
  quay_raw_buffer_free(&small);
  vkshim_census now;
  shim->count(&now);
  cr_assert_eq(now.memories, 1, "one block is kept");
  shim->fail("vkAllocateMemory", 1, VK_ERROR_OUT_OF_DEVICE_MEMORY);
  CHECK_OK(quay_allocator_alloc(allocator, 100 << 20, NULL, &large));
  shim->count(&now);
  cr_assert_eq(now.memories, 1, "the empty block went for the large one");
  quay_raw_buffer_free(&large);
  quay_allocator_release(allocator);
}

Test(vulkan, a_failed_submission_is_an_error_and_the_next_copy_works, .init = setup,
     .fini = teardown) {
  (void)setenv("VKSHIM_DISCRETE", "1", 1);
  quay_allocator *allocator = open_spec("vulkan:0");
  quay_buffer *buffer = make_buffer(allocator, 9 << 20);
  write_pattern(buffer, 7);
  unsigned char bytes[1000] = {1};
  quay_buffer *view = NULL;
  CHECK_OK(quay_buffer_view(buffer, 0, sizeof bytes, &view));
  shim->fail("vkQueueSubmit", 1, VK_ERROR_OUT_OF_HOST_MEMORY);
  CHECK_FAILS(quay_buffer_copy_in(view, bytes, sizeof bytes), QUAY_STATUS_OUT_OF_HOST_MEMORY);
  quay_buffer_release(view);
  write_pattern(buffer, 8);
  check_pattern(buffer, 8);
  cr_assert_eq(quay_device_health(quay_allocator_device(allocator)), QUAY_HEALTH_OK);
  quay_buffer_release(buffer);
  quay_allocator_release(allocator);
}

/* Streams. */

Test(vulkan, an_event_is_not_done_before_its_queue_has_come_so_far, .init = setup,
     .fini = teardown) {
  (void)setenv("VKSHIM_DISCRETE", "1", 1);
  quay_allocator *allocator = open_spec("vulkan:0");
  quay_buffer *buffer = make_buffer(allocator, 100000);
  quay_stream *stream = NULL;
  quay_event *event = NULL;
  bool done = true;
  CHECK_OK(quay_stream_create(quay_allocator_device(allocator), NULL, &stream));
  shim->gate(0);
  CHECK_OK(quay_buffer_fill_on(buffer, "\x5a", 1, stream));
  CHECK_OK(quay_event_record(stream, &event));
  CHECK_OK(quay_event_query(event, &done));
  cr_assert_not(done);
  shim->gate(1);
  CHECK_OK(quay_event_synchronize(event));
  CHECK_OK(quay_event_query(event, &done));
  cr_assert(done);
  quay_event_release(event);
  quay_buffer_release(buffer);
  quay_stream_release(stream);
  CHECK_OK(quay_collect(NULL));
  quay_allocator_release(allocator);
}

Test(vulkan, a_stream_on_one_queue_waits_for_an_event_of_another_one, .init = setup,
     .fini = teardown) {
  (void)setenv("VKSHIM_DISCRETE", "1", 1);
  quay_allocator *allocator = open_spec("vulkan:0");
  quay_device *device = quay_allocator_device(allocator);
  const quay_stream_options copies = {.copies_only = true};
  quay_stream *first = NULL, *second = NULL;
  CHECK_OK(quay_stream_create(device, NULL, &first));
  CHECK_OK(quay_stream_create(device, &copies, &second));
  quay_buffer *from = make_buffer(allocator, 100000), *to = make_buffer(allocator, 100000);
  const quay_copy_options on_second = {.stream = second};
  for (unsigned char value = 1; value <= 20; value++) {
    unsigned char found[1000];
    quay_buffer *window = NULL;
    shim->gate(0); /* the host does not wait, or would for ever */
    CHECK_OK(quay_buffer_fill_on(from, &value, 1, first));
    CHECK_OK(quay_buffer_copy_region(to, 0, from, 0, 100000, &on_second));
    shim->gate(1);
    CHECK_OK(quay_stream_synchronize(second));
    CHECK_OK(quay_buffer_view(to, 99000, sizeof found, &window));
    CHECK_OK(quay_buffer_copy_out(window, found, sizeof found));
    quay_buffer_release(window);
    for (size_t i = 0; i < sizeof found; i++)
      cr_assert_eq(found[i], value, "byte %zu of copy %d is %d", i, value, found[i]);
  }
  quay_buffer_release(to);
  quay_buffer_release(from);
  quay_stream_release(second);
  quay_stream_release(first);
  CHECK_OK(quay_collect(NULL));
  quay_allocator_release(allocator);
}

Test(vulkan, memory_in_use_on_a_stream_is_not_handed_out_again, .init = setup, .fini = teardown) {
  (void)setenv("VKSHIM_DISCRETE", "1", 1);
  quay_allocator *allocator = open_spec("vulkan:0");
  quay_stream *stream = NULL;
  CHECK_OK(quay_stream_create(quay_allocator_device(allocator), NULL, &stream));
  quay_buffer *first = make_buffer(allocator, 5000);
  quay_vulkan_memory was, is;
  CHECK_OK(quay_vulkan_window(first, &was));
  shim->gate(0);
  CHECK_OK(quay_buffer_fill_on(first, "\x11", 1, stream));
  quay_buffer_release(first);
  quay_buffer *second = make_buffer(allocator, 5000);
  CHECK_OK(quay_vulkan_window(second, &is));
  cr_assert(was.buffer != is.buffer || was.offset != is.offset);
  shim->gate(1);
  CHECK_OK(quay_stream_synchronize(stream));
  CHECK_OK(quay_collect(NULL));
  quay_buffer_release(second);
  quay_stream_release(stream);
  quay_allocator_release(allocator);
}

Test(vulkan, a_stream_of_a_queue_that_is_not_the_devices_is_refused, .init = setup,
     .fini = teardown) {
  quay_allocator *allocator = open_spec("vulkan:0");
  quay_device *device = quay_allocator_device(allocator);
  quay_stream *own = NULL, *wrapped = NULL;
  CHECK_FAILS(quay_stream_wrap(device, 0x1234, &wrapped), QUAY_STATUS_INVALID_ARGUMENT);
  CHECK_MESSAGE("0x1234");
  CHECK_OK(quay_stream_create(device, NULL, &own));
  CHECK_OK(quay_stream_wrap(device, quay_stream_native(own), &wrapped));
  CHECK_OK(quay_stream_synchronize(wrapped));
  quay_stream_release(wrapped);
  quay_stream_release(own);
  quay_allocator_release(allocator);
}

Test(vulkan, pageable_memory_may_be_reused_as_soon_as_a_copy_on_a_stream_returns, .init = setup,
     .fini = teardown) {
  (void)setenv("VKSHIM_DISCRETE", "1", 1);
  quay_allocator *host = open_spec("cpu"), *allocator = open_spec("vulkan:0");
  const uint64_t size = (9 << 20) + 3;
  quay_buffer *source = make_buffer(host, size), *target = make_buffer(allocator, size);
  quay_stream *stream = NULL;
  CHECK_OK(quay_stream_create(quay_allocator_device(allocator), NULL, &stream));
  write_pattern(source, 21);
  const quay_copy_options options = {.stream = stream};
  CHECK_OK(quay_buffer_copy_region(target, 0, source, 0, size, &options));
  CHECK_OK(quay_buffer_fill(source, "\xee", 1));
  check_pattern(target, 21);
  quay_buffer_release(source);
  quay_buffer_release(target);
  quay_stream_release(stream);
  quay_allocator_release(allocator);
  quay_allocator_release(host);
}

/* Large copies, by several threads. */

/* No import, so that copies go over lanes. */
static quay_allocator *open_lanes(void) {
  (void)setenv("VKSHIM_DISCRETE", "1", 1);
  (void)setenv("VKSHIM_NO_HOST_IMPORT", "1", 1);
  return open_spec("vulkan:0");
}

Test(vulkan, what_a_blocking_copy_wrote_is_there_for_every_queue_on_return, .init = setup,
     .fini = teardown) {
  quay_allocator *allocator = open_lanes();
  quay_buffer *buffer = make_buffer(allocator, 5000);
  for (uint64_t seed = 1; seed <= 30;
       seed++) { /* in and out are on queues that are late by chance */
    write_pattern(buffer, seed);
    check_pattern(buffer, seed);
  }
  quay_buffer_release(buffer);
  quay_allocator_release(allocator);
}

typedef struct upload {
  quay_buffer *to;
  uint64_t seed;
} upload;

static void *run_upload(void *argument) {
  const upload *const own = argument;
  write_pattern(own->to, own->seed);
  return NULL;
}

Test(vulkan, a_lanes_slots_are_not_written_again_before_the_device_has_read_them, .init = setup,
     .fini = teardown) {
  quay_allocator *allocator = open_lanes();
  (void)setenv("QUAY_COPY_THREADS", "1", 1);
  quay_buffer *buffer = make_buffer(allocator, 9 << 20); /* the third piece is in the first slot */
  upload copy = {.to = buffer, .seed = 5};
  write_pattern(buffer, 4);
  pthread_t thread;
  shim->gate(0);
  cr_assert_eq(pthread_create(&thread, NULL, run_upload, &copy), 0);
  (void)usleep(300000); /* until it waits: what does not wait has overwritten something by then */
  shim->gate(1);
  cr_assert_eq(pthread_join(thread, NULL), 0);
  check_pattern(buffer, 5);
  quay_buffer_release(buffer);
  quay_allocator_release(allocator);
}

Test(vulkan, large_copies_go_over_a_lane_for_each_thread_and_every_byte_arrives, .init = setup,
     .fini = teardown) {
  (void)setenv("VKSHIM_DISCRETE", "1", 1);
  (void)setenv("QUAY_COPY_THREADS", "4", 1);
  quay_allocator *allocator = open_spec("vulkan:0"), *host = open_spec("cpu");
  const uint64_t size = (40 << 20) + 12347;
  quay_buffer *buffer = make_buffer(allocator, size + 100), *view = NULL;
  quay_buffer *source = make_buffer(host, size);
  quay_copy_plan_info plan;
  CHECK_OK(quay_buffer_view(buffer, 33, size, &view));
  CHECK_OK(quay_copy_plan(view, 0, source, 0, size, NULL, &plan));
  cr_assert_eq(plan.threads, 4);
  quay_test_block expected = quay_test_block_make(size + 100, 0, 51);
  quay_test_block content = quay_test_block_make(size, 0, 52);
  quay_test_block found = quay_test_block_make(size + 100, 5, 53);
  write_pattern(buffer, 51);
  CHECK_OK(quay_buffer_copy_in(view, content.data, size));
  memcpy(expected.data + 33, content.data, size);
  CHECK_OK(quay_buffer_copy_out(buffer, found.data, found.size));
  cr_assert_eq(quay_test_difference(found.data, expected.data, found.size), found.size);
  cr_assert(quay_test_block_intact(&found));
  shim->fail("vkQueueSubmit", 7, VK_ERROR_OUT_OF_HOST_MEMORY);
  CHECK_FAILS(quay_buffer_copy_in(view, content.data, size), QUAY_STATUS_OUT_OF_HOST_MEMORY);
  CHECK_MESSAGE("undefined");
  CHECK_OK(quay_buffer_copy_in(view, content.data, size));
  check_pattern(view, 52);
  quay_test_block_free(&found);
  quay_test_block_free(&content);
  quay_test_block_free(&expected);
  quay_buffer_release(source);
  quay_buffer_release(view);
  quay_buffer_release(buffer);
  quay_allocator_release(host);
  quay_allocator_release(allocator);
}

/* Fills and moves that the device does in pieces. */

Test(vulkan, fills_of_every_pattern_at_odd_places_touch_nothing_else, .init = setup,
     .fini = teardown) {
  (void)setenv("VKSHIM_DISCRETE", "1", 1);
  quay_allocator *allocator = open_spec("vulkan:0");
  static const uint64_t offsets[] = {0, 1, 4, 6}, counts[] = {1, 3, 20000};
  unsigned char pattern[16];
  for (size_t i = 0; i < sizeof pattern; i++)
    pattern[i] = (unsigned char)(0x31 + i * 7);
  const uint64_t room = 20000 * 16 + 64;
  quay_buffer *buffer = make_buffer(allocator, room);
  for (size_t size = 1; size <= 16; size *= 2) {
    for (size_t o = 0; o < 4; o++) {
      for (size_t c = 0; c < 3; c++) {
        quay_test_block expected = quay_test_block_make(room, 0, 9);
        write_pattern(buffer, 9);
        quay_buffer *view = NULL;
        CHECK_OK(quay_buffer_view(buffer, offsets[o], counts[c] * size, &view));
        CHECK_OK(quay_buffer_fill(view, pattern, size));
        for (uint64_t i = 0; i < counts[c] * size; i++)
          expected.data[offsets[o] + i] = pattern[i % size];
        quay_test_block found = quay_test_block_make(room, 0, 10);
        CHECK_OK(quay_buffer_copy_out(buffer, found.data, room));
        cr_assert_eq(quay_test_difference(found.data, expected.data, room), room,
                     "pattern of %zu bytes, %llu times from byte %llu", size,
                     (unsigned long long)counts[c], (unsigned long long)offsets[o]);
        quay_test_block_free(&found);
        quay_test_block_free(&expected);
        quay_buffer_release(view);
      }
    }
  }
  quay_buffer_release(buffer);
  quay_allocator_release(allocator);
}

static void check_move(quay_allocator *allocator, uint64_t size, uint64_t to, uint64_t from) {
  const uint64_t room = size + (to > from ? to : from);
  quay_buffer *buffer = make_buffer(allocator, room);
  quay_test_block expected = quay_test_block_make(room, 0, 12);
  write_pattern(buffer, 12);
  memmove(expected.data + to, expected.data + from, size);
  CHECK_OK(quay_buffer_copy_region(buffer, to, buffer, from, size, NULL));
  quay_test_block found = quay_test_block_make(room, 0, 13);
  CHECK_OK(quay_buffer_copy_out(buffer, found.data, room));
  cr_assert_eq(quay_test_difference(found.data, expected.data, room), room,
               "%llu bytes from %llu to %llu", (unsigned long long)size, (unsigned long long)from,
               (unsigned long long)to);
  quay_test_block_free(&found);
  quay_test_block_free(&expected);
  quay_buffer_release(buffer);
}

Test(vulkan, overlapping_copies_near_and_far_are_as_memmove, .init = setup, .fini = teardown) {
  (void)setenv("VKSHIM_DISCRETE", "1", 1);
  quay_allocator *allocator = open_spec("vulkan:0");
  const uint64_t size = (9 << 20) + 5; /* more than twice a bounce */
  check_move(allocator, size, 1, 0);
  check_move(allocator, size, 0, 3);
  check_move(allocator, size, (1 << 20) + 1, 0);
  check_move(allocator, size, 0, (2 << 20) + 7);
  check_move(allocator, 1000, 7, 0);
  quay_allocator_release(allocator);
}

Test(vulkan, moves_work_where_there_is_no_device_memory_to_go_through, .init = setup,
     .fini = teardown) {
  (void)setenv("VKSHIM_DISCRETE", "1", 1);
  quay_allocator *allocator = open_spec("vulkan:0,dedicated=on");
  quay_buffer *buffer = make_buffer(allocator, 1 << 20);
  write_pattern(buffer, 14);
  check_pattern(buffer, 14); /* what the lane needs for that is there now */
  shim->fail("vkAllocateMemory", 1, VK_ERROR_OUT_OF_DEVICE_MEMORY);
  CHECK_OK(quay_buffer_copy_region(buffer, 100, buffer, 0, 300000, NULL));
  shim->fail("vkAllocateMemory", 0, 0);
  quay_buffer *view = NULL;
  CHECK_OK(quay_buffer_view(buffer, 100, 300000, &view));
  quay_test_block expected = quay_test_block_make(1 << 20, 0, 14);
  quay_test_block found = quay_test_block_make(300000, 0, 1);
  CHECK_OK(quay_buffer_copy_out(view, found.data, 300000));
  cr_assert_eq(quay_test_difference(found.data, expected.data, 300000), 300000);
  quay_test_block_free(&found);
  quay_test_block_free(&expected);
  quay_buffer_release(view);
  quay_buffer_release(buffer);
  quay_allocator_release(allocator);
}
