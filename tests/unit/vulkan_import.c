/* Host memory that the device has imported, which large copies go through; queues for copies. */
#include "vulkan_fixture.h"

#include "core/staging_tuning.h"

#define LARGE ((uint64_t)5 * 1024 * 1024 + 12345)

static void check_large_copies(quay_allocator *allocator) {
  quay_buffer *whole = make_buffer(allocator, LARGE + 200), *part = NULL;
  CHECK_OK(quay_buffer_view(whole, 77, LARGE, &part));
  write_pattern(whole, 1);
  write_pattern(part, 2);
  check_pattern(part, 2);
  quay_test_block expected = quay_test_block_make(LARGE + 200, 0, 1);
  quay_test_block inner = quay_test_block_make(LARGE, 0, 2);
  quay_test_block found = quay_test_block_make(LARGE + 200, 0, 3);
  memcpy(expected.data + 77, inner.data, LARGE);
  CHECK_OK(quay_buffer_copy_out(whole, found.data, found.size));
  cr_assert_eq(quay_test_difference(found.data, expected.data, found.size), found.size);
  quay_test_block_free(&found);
  quay_test_block_free(&inner);
  quay_test_block_free(&expected);
  quay_buffer_release(part);
  quay_buffer_release(whole);
}

static quay_copy_plan_info plan_of_upload(quay_allocator *allocator) {
  quay_copy_plan_info plan;
  quay_allocator *cpu = open_spec("cpu");
  quay_buffer *host = make_buffer(cpu, LARGE), *there = make_buffer(allocator, LARGE);
  CHECK_OK(quay_copy_plan(there, 0, host, 0, LARGE, NULL, &plan));
  quay_buffer_release(there);
  quay_buffer_release(host);
  quay_allocator_release(cpu);
  return plan;
}

Test(vulkan_import, large_copies_go_through_host_memory_that_the_device_has_imported, .init = setup,
     .fini = teardown) {
  (void)setenv("VKSHIM_DISCRETE", "1", 1);
  quay_allocator *allocator = open_spec("vulkan:0");
  const uint64_t before = shim->calls("vkGetMemoryHostPointerPropertiesEXT");
  check_large_copies(allocator);
  cr_assert_gt(shim->calls("vkGetMemoryHostPointerPropertiesEXT"), before);
  const quay_copy_plan_info plan = plan_of_upload(allocator);
  cr_assert_not_null(strstr(plan.reason, "imported"), "%s", plan.reason);
  cr_assert_eq(plan.route, QUAY_ROUTE_DIRECT);
  cr_assert_eq(plan.staging_bytes % plan.chunk, 0);
  cr_assert_geq(plan.staging_bytes, plan.chunk * plan.threads);
  /* It is no memory of the allocator's, and goes back on demand. */
  quay_stats stats;
  vkshim_census kept, left;
  shim->count(&kept);
  cr_assert_gt(kept.memories, 0);
  CHECK_OK(quay_allocator_trim(allocator, NULL)); /* what lanes keep */
  CHECK_OK(quay_collect(NULL));                   /* what copies have imported */
  shim->count(&left);
  cr_assert_eq(left.memories, 0);
  CHECK_OK(quay_allocator_stats(allocator, &stats));
  cr_assert_eq(stats.reserved_bytes, 0);
  check_large_copies(allocator);
  quay_allocator_release(allocator);
}

Test(vulkan_import, large_copies_do_without_where_host_memory_cannot_be_imported, .init = setup,
     .fini = teardown) {
  (void)setenv("VKSHIM_DISCRETE", "1", 1);
  (void)setenv("VKSHIM_NO_HOST_IMPORT", "1", 1);
  quay_allocator *allocator = open_spec("vulkan:0");
  check_large_copies(allocator);
  cr_assert_eq(shim->calls("vkGetMemoryHostPointerPropertiesEXT"), 0);
  const quay_copy_plan_info plan = plan_of_upload(allocator);
  cr_assert_null(strstr(plan.reason, "imported"), "%s", plan.reason);
  cr_assert_eq(plan.chunk, (uint64_t)4 << 20);
  cr_assert_eq(plan.staging_bytes, LARGE); /* it fits in the two slots of a lane */
  quay_allocator_release(allocator);
}

/* Each chunk is a submission. */
static void check_allowed(quay_buffer *to, quay_buffer *from, uint64_t allowed) {
  const quay_copy_options options = {.max_staging_bytes = allowed};
  quay_copy_plan_info plan;
  CHECK_OK(quay_copy_plan(to, 0, from, 0, LARGE, &options, &plan));
  cr_assert_leq(plan.staging_bytes, allowed);
  cr_assert_gt(plan.staging_bytes, 0);
  const uint64_t before = shim->calls("vkQueueSubmit");
  CHECK_OK(quay_buffer_copy_region(to, 0, from, 0, LARGE, &options));
  const uint64_t submitted = shim->calls("vkQueueSubmit") - before;
  cr_assert_geq(submitted * plan.chunk, LARGE, "%llu submissions", (unsigned long long)submitted);
}

static void check_all_allowed(void) {
  static const uint64_t allowed[] = {70001, (uint64_t)1 << 20, (uint64_t)9 << 20};
  quay_allocator *allocator = open_spec("vulkan:0"), *cpu = open_spec("cpu");
  quay_buffer *here = make_buffer(cpu, LARGE), *back = make_buffer(cpu, LARGE);
  quay_buffer *there = make_buffer(allocator, LARGE);
  for (unsigned i = 0; i < sizeof allowed / sizeof allowed[0]; i++) {
    write_pattern(here, 3 + i);
    CHECK_OK(quay_buffer_fill(back, "x", 1));
    check_allowed(there, here, allowed[i]);
    check_allowed(back, there, allowed[i]);
    check_pattern(back, 3 + i);
  }
  quay_buffer_release(there);
  quay_buffer_release(back);
  quay_buffer_release(here);
  quay_allocator_release(cpu);
  quay_allocator_release(allocator);
}

Test(vulkan_import, large_copies_take_no_more_staging_than_their_caller_allows, .init = setup,
     .fini = teardown) {
  (void)setenv("VKSHIM_DISCRETE", "1", 1);
  check_all_allowed();
}

Test(vulkan_import, nor_do_they_where_host_memory_cannot_be_imported, .init = setup,
     .fini = teardown) {
  (void)setenv("VKSHIM_DISCRETE", "1", 1);
  (void)setenv("VKSHIM_NO_HOST_IMPORT", "1", 1);
  check_all_allowed();
}

Test(vulkan_import, an_import_of_host_memory_that_fails_leaves_nothing_and_the_copy_arrives,
     .init = setup, .fini = teardown) {
  static const struct {
    const char *function;
    unsigned n;
  } calls[] = {
      {"vkGetMemoryHostPointerPropertiesEXT", 1}, {"vkCreateBuffer", 2}, {"vkAllocateMemory", 2}};
  (void)setenv("VKSHIM_DISCRETE", "1", 1);
  for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
    quay_allocator *allocator = open_spec("vulkan:0,dedicated=on");
    /* The first buffer and memory are the allocation's own. */
    shim->fail(calls[i].function, calls[i].n, VK_ERROR_INVALID_EXTERNAL_HANDLE);
    check_large_copies(allocator);
    quay_allocator_release(allocator);
    CHECK_OK(quay_shutdown());
    check_nothing_is_left();
  }
}

Test(vulkan_import, memory_of_the_program_is_copied_although_queues_for_copies_do_not_know_it,
     .init = setup, .fini = teardown) {
  (void)setenv("VKSHIM_DISCRETE", "1", 1);
  quay_allocator *allocator = open_spec("vulkan:0"), *mmap = open_spec("mmap:/tmp");
  quay_buffer *owner = make_buffer(allocator, LARGE), *file = make_buffer(mmap, LARGE);
  quay_vulkan_memory memory;
  quay_raw_buffer raw;
  quay_buffer *adopted = NULL;
  const int64_t shape[] = {(int64_t)LARGE};
  CHECK_OK(quay_vulkan_window(owner, &memory));
  CHECK_OK(quay_vulkan_adopt(allocator, &memory, NULL, NULL, &raw));
  CHECK_OK(quay_buffer_from_raw(&raw, QUAY_U8, 1, shape, &adopted));
  write_pattern(file, 7);
  CHECK_OK(quay_buffer_copy_from(adopted, file));
  check_pattern(adopted, 7);
  check_pattern(owner, 7);
  write_pattern(adopted, 8);
  CHECK_OK(quay_buffer_copy_from(file, adopted));
  check_pattern(file, 8);
  quay_buffer_release(adopted);
  quay_buffer_release(file);
  quay_buffer_release(owner);
  quay_allocator_release(mmap);
  quay_allocator_release(allocator);
}

Test(vulkan_import, plans_of_memory_of_the_program_say_that_its_copies_take_lanes, .init = setup,
     .fini = teardown) {
  (void)setenv("VKSHIM_DISCRETE", "1", 1);
  quay_allocator *allocator = open_spec("vulkan:0"), *cpu = open_spec("cpu");
  quay_buffer *owner = make_buffer(allocator, LARGE), *host = make_buffer(cpu, LARGE);
  quay_vulkan_memory memory;
  quay_raw_buffer raw;
  quay_buffer *adopted = NULL;
  const int64_t shape[] = {(int64_t)LARGE};
  CHECK_OK(quay_vulkan_window(owner, &memory));
  CHECK_OK(quay_vulkan_adopt(allocator, &memory, NULL, NULL, &raw));
  CHECK_OK(quay_buffer_from_raw(&raw, QUAY_U8, 1, shape, &adopted));
  const uint64_t imports = shim->calls("vkGetMemoryHostPointerPropertiesEXT");
  CHECK_OK(quay_buffer_copy_from(adopted, host));
  CHECK_OK(quay_buffer_copy_from(host, adopted));
  cr_assert_eq(shim->calls("vkGetMemoryHostPointerPropertiesEXT"), imports);
  for (int in = 0; in < 2; in++) {
    quay_buffer *to = in != 0 ? adopted : host, *from = in != 0 ? host : adopted;
    quay_copy_plan_info plan;
    CHECK_OK(quay_copy_plan(to, 0, from, 0, LARGE, NULL, &plan));
    cr_expect_null(strstr(plan.reason, "imported"), "%s", plan.reason);
    cr_expect_eq(plan.chunk, (uint64_t)4 << 20);
  }
  quay_buffer_release(adopted);
  quay_buffer_release(host);
  quay_buffer_release(owner);
  quay_allocator_release(cpu);
  quay_allocator_release(allocator);
}

Test(vulkan_import, a_stream_for_copies_copies_and_is_none_of_the_programs, .init = setup,
     .fini = teardown) {
  (void)setenv("VKSHIM_DISCRETE", "1", 1);
  quay_allocator *allocator = open_spec("vulkan:0"), *pinned = open_spec("vulkan:0,memory=host");
  quay_device *device = quay_allocator_device(allocator);
  const quay_stream_options copies = {.copies_only = true};
  quay_stream *first = NULL, *second = NULL, *wrapped = NULL;
  quay_event *event = NULL;
  CHECK_OK(quay_stream_create(device, &copies, &first));
  CHECK_OK(quay_stream_create(device, NULL, &second));
  cr_assert_neq(quay_stream_native(first), quay_stream_native(second));
  CHECK_FAILS(quay_stream_wrap(device, quay_stream_native(first), &wrapped),
              QUAY_STATUS_INVALID_ARGUMENT);
  quay_buffer *a = make_buffer(pinned, LARGE), *b = make_buffer(allocator, LARGE);
  const quay_copy_options options = {.stream = first};
  write_pattern(a, 9);
  CHECK_OK(quay_buffer_copy_region(b, 0, a, 0, LARGE, &options));
  CHECK_OK(quay_event_record(first, &event));
  CHECK_OK(quay_event_synchronize(event));
  check_pattern(b, 9);
  CHECK_OK(quay_buffer_fill_on(b, "\x31", 1, first));
  CHECK_OK(quay_buffer_fill_on(b, "\x33", 1, second)); /* after that */
  CHECK_OK(quay_stream_synchronize(second));
  quay_event_release(event);
  quay_buffer_release(b);
  quay_buffer_release(a);
  quay_stream_release(second);
  quay_stream_release(first);
  quay_allocator_release(pinned);
  quay_allocator_release(allocator);
}

/* Devices and their queues. */

static uint64_t imports(void) {
  return shim->calls("vkGetMemoryHostPointerPropertiesEXT");
}

Test(vulkan_import, what_one_device_has_imported_is_not_taken_for_another_one, .init = setup,
     .fini = teardown) {
  (void)setenv("VKSHIM_DISCRETE", "1", 1);
  (void)setenv("VKSHIM_DEVICES", "2", 1);
  quay_allocator *first = open_spec("vulkan:0"), *second = open_spec("vulkan:1");
  check_large_copies(first);
  const uint64_t before = imports();
  check_large_copies(second);
  cr_assert_gt(imports(), before, "the second device copies without imports of its own");
  /* Both keep their own. */
  const uint64_t both = imports();
  check_large_copies(first);
  check_large_copies(second);
  cr_assert_eq(imports(), both);
  quay_allocator_release(second);
  quay_allocator_release(first);
}

Test(vulkan_import, large_copies_between_two_devices_go_through_memory_of_one_of_them,
     .init = setup, .fini = teardown) {
  (void)setenv("VKSHIM_DISCRETE", "1", 1);
  (void)setenv("VKSHIM_DEVICES", "2", 1);
  quay_allocator *first = open_spec("vulkan:0"), *second = open_spec("vulkan:1");
  quay_buffer *from = make_buffer(first, LARGE), *to = make_buffer(second, LARGE);
  write_pattern(from, 4);
  write_pattern(to, 5);
  CHECK_OK(quay_buffer_copy_from(to, from));
  check_pattern(to, 4);
  write_pattern(to, 6);
  CHECK_OK(quay_buffer_copy_from(from, to));
  check_pattern(from, 6);
  quay_buffer_release(to);
  quay_buffer_release(from);
  quay_allocator_release(second);
  quay_allocator_release(first);
}

/* Both queues for copies get some of a large copy, and the one of streams none. */
static void check_copy_on_queues(quay_buffer *there, bool into) {
  uint64_t before[3];
  for (unsigned i = 0; i < 3; i++)
    before[i] = shim->submissions(i);
  if (into) {
    write_pattern(there, 12);
  } else {
    check_pattern(there, 12);
  }
  cr_assert_eq(shim->submissions(0), before[0]);
  cr_assert_gt(shim->submissions(1), before[1] + 1);
  cr_assert_gt(shim->submissions(2), before[2] + 1);
}

static void check_queues(quay_allocator *allocator) {
  quay_buffer *there = make_buffer(allocator, LARGE);
  check_copy_on_queues(there, true);
  check_copy_on_queues(there, false);
  quay_buffer_release(there);
}

Test(vulkan_import, large_copies_take_turns_on_all_queues_for_copies, .init = setup,
     .fini = teardown) {
  (void)setenv("VKSHIM_DISCRETE", "1", 1);
  quay_allocator *allocator = open_spec("vulkan:0");
  check_queues(allocator);
  check_queues(allocator);
  quay_allocator_release(allocator);
}

Test(vulkan_import, large_copies_take_turns_whatever_queues_other_streams_are_on, .init = setup,
     .fini = teardown) {
  (void)setenv("VKSHIM_DISCRETE", "1", 1);
  quay_allocator *allocator = open_spec("vulkan:0");
  const quay_stream_options copies = {.copies_only = true};
  quay__staging_tuning one = *quay__staging_tuning_get();
  quay_stream *stream = NULL;
  one.streams = 1;
  quay__staging_tuning_set(&one);
  check_large_copies(allocator); /* keeps a stream on one queue */
  quay__staging_tuning_set(NULL);
  CHECK_OK(quay_stream_create(quay_allocator_device(allocator), &copies, &stream));
  check_queues(allocator);
  quay_stream_release(stream);
  quay_allocator_release(allocator);
}

/* Many small pieces, some of which overwrite what others wrote. */
enum {
  PIECES = 300,
  PIECE_BYTES = 1000
};

Test(vulkan_import, many_small_pieces_are_one_submission_and_arrive_in_their_order, .init = setup,
     .fini = teardown) {
  (void)setenv("VKSHIM_DISCRETE", "1", 1);
  quay_allocator *allocator = open_spec("vulkan:0"), *cpu = open_spec("cpu");
  const uint64_t size = UINT64_C(1) * PIECES * PIECE_BYTES;
  quay_buffer *there = make_buffer(allocator, size), *here = make_buffer(cpu, size);
  quay_test_block expected = quay_test_block_make(size, 0, 13);
  quay_test_block found = quay_test_block_make(size, 0, 14);
  write_pattern(here, 15);
  const void *bytes = NULL;
  CHECK_OK(quay_buffer_host_bytes(here, &bytes, NULL));
  CHECK_OK(quay_buffer_copy_in(there, expected.data, size));
  quay_copy_pair pairs[PIECES];
  for (uint64_t i = 0; i < PIECES; i++) {
    /* Every third one begins inside the one before. */
    const uint64_t to = i % 3 == 2 ? i * PIECE_BYTES - 300 : i * PIECE_BYTES;
    const uint64_t from = (i * 7 % PIECES) * PIECE_BYTES;
    pairs[i] = (quay_copy_pair){.destination = there,
                                .destination_offset = to,
                                .source = here,
                                .source_offset = from,
                                .size = PIECE_BYTES - 100};
    memcpy(expected.data + to, (const unsigned char *)bytes + from, PIECE_BYTES - 100);
  }
  const uint64_t before = shim->calls("vkQueueSubmit");
  CHECK_OK(quay_copy_many(pairs, PIECES, NULL));
  cr_assert_leq(shim->calls("vkQueueSubmit"), before + 2, "%llu submissions",
                (unsigned long long)(shim->calls("vkQueueSubmit") - before));
  CHECK_OK(quay_buffer_copy_out(there, found.data, size));
  cr_assert_eq(quay_test_difference(found.data, expected.data, size), size);
  quay_test_block_free(&found);
  quay_test_block_free(&expected);
  quay_buffer_release(here);
  quay_buffer_release(there);
  quay_allocator_release(cpu);
  quay_allocator_release(allocator);
}

Test(vulkan_import, host_visible_memory_of_the_device_is_copied_by_one_submission, .init = setup,
     .fini = teardown) {
  (void)setenv("VKSHIM_DISCRETE", "1", 1);
  quay_allocator *allocator = open_spec("vulkan:0"), *visible = open_spec("vulkan:0,memory=host");
  quay_buffer *there = make_buffer(allocator, LARGE), *here = make_buffer(visible, LARGE);
  write_pattern(here, 16);
  const uint64_t before = shim->calls("vkQueueSubmit");
  CHECK_OK(quay_buffer_copy_from(there, here));
  cr_assert_eq(shim->calls("vkQueueSubmit"), before + 1);
  write_pattern(here, 17);
  CHECK_OK(quay_buffer_copy_from(here, there));
  cr_assert_eq(shim->calls("vkQueueSubmit"), before + 2);
  check_pattern(here, 16);
  quay_buffer_release(here);
  quay_buffer_release(there);
  quay_allocator_release(visible);
  quay_allocator_release(allocator);
}
