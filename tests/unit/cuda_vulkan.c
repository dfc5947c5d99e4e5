/* Copies between CUDA and Vulkan memory of one GPU. */
#include "cuda_vulkan_fixture.h"

static void check_both_ways(quay_allocator *cuda, quay_allocator *vulkan, uint64_t size) {
  quay_buffer *a = make_buffer(cuda, size + 77), *b = make_buffer(vulkan, size + 99);
  quay_buffer *first = NULL, *second = NULL;
  CHECK_OK(quay_buffer_view(a, 13, size, &first));
  CHECK_OK(quay_buffer_view(b, 7, size, &second));
  write_pattern(a, 1);
  write_pattern(b, 2);
  quay_test_block expected = quay_test_block_make(size + 99, 0, 2);
  quay_test_block content = quay_test_block_make(size + 77, 0, 1);
  quay_test_block found = quay_test_block_make(size + 99, 0, 3);
  CHECK_OK(quay_buffer_copy_from(second, first));
  memcpy(expected.data + 7, content.data + 13, size);
  CHECK_OK(quay_buffer_copy_out(b, found.data, found.size));
  cr_assert_eq(quay_test_difference(found.data, expected.data, found.size), found.size,
               "CUDA to Vulkan, %llu bytes", (unsigned long long)size);
  write_pattern(second, 5);
  CHECK_OK(quay_buffer_copy_from(first, second));
  check_pattern(first, 5);
  quay_test_block_free(&found);
  quay_test_block_free(&content);
  quay_test_block_free(&expected);
  quay_buffer_release(second);
  quay_buffer_release(first);
  quay_buffer_release(b);
  quay_buffer_release(a);
}

Test(cuda_vulkan, one_gpu_copies_directly_in_both_directions_and_every_byte_arrives,
     .init = setup_both, .fini = teardown_both) {
  quay_allocator *vulkan = open_spec("track+vulkan:0"), *cuda = open_spec("track+cuda:0");
  static const uint64_t sizes[] = {1, 1000, 65537, (9 << 20) + 12345};
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
    check_both_ways(cuda, vulkan, sizes[i]);
  quay_allocator_release(cuda);
  quay_allocator_release(vulkan);
}

Test(cuda_vulkan, the_plan_says_direct_also_for_a_lazy_destination_and_no_host_memory_is_used,
     .init = setup_both, .fini = teardown_both) {
  quay_allocator *vulkan = open_spec("vulkan:0"), *cuda = open_spec("cuda:0");
  quay_buffer *a = make_buffer(cuda, 100000), *b = make_buffer(vulkan, 100000), *lazy = NULL;
  const int64_t shape[] = {100000};
  CHECK_OK(quay_buffer_create_lazy(vulkan, QUAY_U8, 1, shape, NULL, &lazy));
  quay_buffer *const destinations[] = {b, lazy};
  for (size_t i = 0; i < 2; i++) {
    const quay_copy_plan_info plan = plan_of(destinations[i], a);
    cr_assert_eq(plan.route, QUAY_ROUTE_DIRECT);
    cr_assert_eq(plan.staging_bytes, 0);
    cr_assert_not_null(strstr(plan.reason, "one GPU"), "%s", plan.reason);
  }
  cr_assert_eq(plan_of(a, b).route, QUAY_ROUTE_DIRECT);
  write_pattern(a, 9);
  const quay_copy_options no_staging = {.forbid_staging = true};
  CHECK_OK(quay_buffer_copy_region(b, 0, a, 0, 100000, &no_staging));
  check_pattern(b, 9);
  quay_buffer_release(lazy);
  quay_buffer_release(b);
  quay_buffer_release(a);
  quay_allocator_release(cuda);
  quay_allocator_release(vulkan);
}

Test(cuda_vulkan, another_gpu_and_memory_that_cannot_be_exported_are_staged, .init = setup_both,
     .fini = teardown_both) {
  quay_allocator *vulkan = open_spec("vulkan:0"), *cuda = open_spec("cuda:0");
  quay_allocator *other = open_spec("vulkan:1");
  quay_buffer *a = make_buffer(cuda, 100000), *b = make_buffer(vulkan, 100000);
  quay_buffer *far = make_buffer(other, 100000);
  quay_vulkan_memory memory;
  CHECK_OK(quay_vulkan_window(b, &memory));
  quay_raw_buffer raw;
  quay_buffer *adopted = NULL;
  const int64_t shape[] = {100000};
  CHECK_OK(quay_vulkan_adopt(vulkan, &memory, NULL, NULL, &raw));
  CHECK_OK(quay_buffer_from_raw(&raw, QUAY_U8, 1, shape, &adopted));
  quay_buffer *const ends[] = {far, adopted};
  write_pattern(a, 11);
  for (size_t i = 0; i < 2; i++) {
    cr_assert_eq(plan_of(ends[i], a).route, QUAY_ROUTE_STAGED);
    CHECK_OK(quay_buffer_copy_from(ends[i], a));
    check_pattern(ends[i], 11);
  }
  quay_buffer_release(adopted);
  quay_buffer_release(far);
  quay_buffer_release(b);
  quay_buffer_release(a);
  quay_allocator_release(other);
  quay_allocator_release(cuda);
  quay_allocator_release(vulkan);
}

Test(cuda_vulkan, a_failed_import_is_an_error_leaves_no_descriptor_and_can_be_tried_again,
     .init = setup_both, .fini = teardown_both) {
  static const char *const functions[] = {"cuImportExternalMemory",
                                          "cuExternalMemoryGetMappedBuffer"};
  quay_allocator *vulkan = open_spec("vulkan:0"), *cuda = open_spec("cuda:0");
  quay_buffer *a = make_buffer(cuda, 5000), *b = make_buffer(vulkan, 5000);
  write_pattern(a, 13);
  for (size_t i = 0; i < 2; i++) {
    const unsigned before = count_files();
    sim->fail(functions[i], 1, 2); /* CUDA_ERROR_OUT_OF_MEMORY */
    CHECK_FAILS(quay_buffer_copy_from(b, a), QUAY_STATUS_OUT_OF_DEVICE_MEMORY);
    cr_assert_eq(count_files(), before, "after %s", functions[i]);
  }
  CHECK_OK(quay_buffer_copy_from(b, a));
  check_pattern(b, 13);
  quay_buffer_release(b);
  quay_buffer_release(a);
  quay_allocator_release(cuda);
  quay_allocator_release(vulkan);
}

Test(cuda_vulkan, a_block_is_imported_once, .init = setup_both, .fini = teardown_both) {
  quay_allocator *vulkan = open_spec("vulkan:0"), *cuda = open_spec("cuda:0");
  quay_buffer *a = make_buffer(cuda, 5000), *buffers[10];
  const uint64_t before = sim->calls("cuImportExternalMemory");
  write_pattern(a, 15);
  for (size_t i = 0; i < 10; i++) {
    buffers[i] = make_buffer(vulkan, 5000);
    CHECK_OK(quay_buffer_copy_from(buffers[i], a));
  }
  for (size_t i = 0; i < 10; i++)
    check_pattern(buffers[i], 15);
  cr_assert_eq(sim->calls("cuImportExternalMemory") - before, 1);
  for (size_t i = 0; i < 10; i++)
    quay_buffer_release(buffers[i]);
  quay_buffer_release(a);
  quay_allocator_release(cuda);
  quay_allocator_release(vulkan);
}

Test(cuda_vulkan, a_reset_of_either_device_imports_anew, .init = setup_both,
     .fini = teardown_both) {
  quay_allocator *vulkan = open_spec("vulkan:0"), *cuda = open_spec("cuda:0");
  quay_buffer *a = make_buffer(cuda, 5000), *b = make_buffer(vulkan, 5000);
  write_pattern(a, 17);
  CHECK_OK(quay_buffer_copy_from(b, a));
  quay_buffer_release(a);
  CHECK_OK(quay_device_reset(quay_allocator_device(cuda)));
  a = make_buffer(cuda, 5000);
  CHECK_OK(quay_buffer_copy_from(a, b));
  check_pattern(a, 17);
  CHECK_OK(quay_device_reset(quay_allocator_device(vulkan)));
  CHECK_FAILS(quay_buffer_copy_from(a, b), QUAY_STATUS_STALE);
  quay_buffer_release(b);
  b = make_buffer(vulkan, 5000);
  CHECK_OK(quay_buffer_copy_from(b, a));
  check_pattern(b, 17);
  quay_buffer_release(b);
  quay_buffer_release(a);
  quay_allocator_release(cuda);
  quay_allocator_release(vulkan);
}

/* What a stream has still to do with either side is waited for. */
Test(cuda_vulkan, copies_wait_for_work_on_streams_of_both_sides, .init = setup_both,
     .fini = teardown_both) {
  quay_allocator *vulkan = open_spec("vulkan:0"), *cuda = open_spec("cuda:0");
  quay_buffer *a = make_buffer(cuda, 500000), *b = make_buffer(vulkan, 500000);
  quay_stream *streams[2] = {NULL, NULL};
  CHECK_OK(quay_stream_create(quay_allocator_device(cuda), NULL, &streams[0]));
  CHECK_OK(quay_stream_create(quay_allocator_device(vulkan), NULL, &streams[1]));
  unsigned char bytes[2] = {0, 0};
  for (unsigned char round = 1; round < 20; round++) {
    CHECK_OK(quay_buffer_fill_on(b, &round, 1, streams[1]));
    CHECK_OK(quay_buffer_copy_from(a, b));
    const unsigned char other = (unsigned char)(round + 100);
    CHECK_OK(quay_buffer_fill_on(b, "\xff", 1, streams[1]));
    quay_buffer *end = NULL;
    CHECK_OK(quay_buffer_view(a, 499999, 1, &end));
    CHECK_OK(quay_buffer_copy_out(end, &bytes[0], 1));
    cr_assert_eq(bytes[0], round);
    quay_buffer_release(end);
    CHECK_OK(quay_buffer_fill_on(a, &other, 1, streams[0]));
    CHECK_OK(quay_buffer_copy_from(b, a));
    CHECK_OK(quay_buffer_view(b, 499999, 1, &end));
    CHECK_OK(quay_buffer_copy_out(end, &bytes[1], 1));
    cr_assert_eq(bytes[1], other);
    quay_buffer_release(end);
  }
  quay_buffer_release(b);
  quay_buffer_release(a);
  quay_stream_release(streams[0]);
  quay_stream_release(streams[1]);
  CHECK_OK(quay_collect(NULL));
  quay_allocator_release(cuda);
  quay_allocator_release(vulkan);
}

/* Host memory, which CUDA copies where it is open. */

#define LARGE ((uint64_t)5 * 1024 * 1024 + 12345)

static uint64_t submissions(void) {
  return shim->submissions(0) + shim->submissions(1) + shim->submissions(2);
}

/* A window of a larger buffer, whose other bytes stay. */
static void check_host_copies(quay_allocator *vulkan) {
  quay_buffer *whole = make_buffer(vulkan, LARGE + 300), *part = NULL;
  CHECK_OK(quay_buffer_view(whole, 77, LARGE, &part));
  write_pattern(whole, 1);
  write_pattern(part, 2);
  check_pattern(part, 2);
  quay_test_block expected = quay_test_block_make(LARGE + 300, 0, 1);
  quay_test_block inner = quay_test_block_make(LARGE, 0, 2);
  quay_test_block found = quay_test_block_make(LARGE + 300, 0, 3);
  memcpy(expected.data + 77, inner.data, LARGE);
  CHECK_OK(quay_buffer_copy_out(whole, found.data, found.size));
  cr_assert_eq(quay_test_difference(found.data, expected.data, found.size), found.size);
  quay_test_block_free(&found);
  quay_test_block_free(&inner);
  quay_test_block_free(&expected);
  quay_buffer_release(part);
  quay_buffer_release(whole);
}

static bool told_by_cuda(quay_allocator *vulkan) {
  quay_allocator *cpu = open_spec("cpu");
  quay_buffer *host = make_buffer(cpu, LARGE), *there = make_buffer(vulkan, LARGE);
  const bool in = strstr(plan_of(there, host).reason, "CUDA") != NULL;
  const bool out = strstr(plan_of(host, there).reason, "CUDA") != NULL;
  cr_assert_eq(in, out);
  quay_buffer_release(there);
  quay_buffer_release(host);
  quay_allocator_release(cpu);
  return in;
}

Test(cuda_vulkan, large_copies_of_host_memory_are_cudas_where_it_is_open, .init = setup_both,
     .fini = teardown_both) {
  quay_allocator *vulkan = open_spec("vulkan:0"), *cuda = open_spec("cuda:0");
  const uint64_t before = submissions();
  check_host_copies(vulkan);
  cr_assert_eq(submissions(), before, "a queue of Vulkan had something to do");
  cr_assert(told_by_cuda(vulkan));
  quay_allocator_release(cuda);
  quay_allocator_release(vulkan);
}

Test(cuda_vulkan, large_copies_of_files_are_cudas_where_it_is_open, .init = setup_both,
     .fini = teardown_both) {
  quay_allocator *vulkan = open_spec("vulkan:0"), *cuda = open_spec("cuda:0");
  quay_allocator *files = open_spec("mmap:/tmp");
  quay_buffer *file = make_buffer(files, LARGE), *whole = make_buffer(vulkan, LARGE + 300);
  quay_buffer *there = NULL;
  CHECK_OK(quay_buffer_view(whole, 77, LARGE, &there));
  write_pattern(file, 4);
  const uint64_t before = submissions();
  CHECK_OK(quay_buffer_copy_from(there, file));
  cr_assert_eq(submissions(), before, "a queue of Vulkan had something to do");
  check_pattern(there, 4);
  write_pattern(there, 5);
  CHECK_OK(quay_buffer_copy_from(file, there));
  cr_assert_eq(submissions(), before);
  check_pattern(file, 5);
  quay_buffer_release(there);
  quay_buffer_release(whole);
  quay_buffer_release(file);
  quay_allocator_release(files);
  quay_allocator_release(cuda);
  quay_allocator_release(vulkan);
}

Test(cuda_vulkan, large_copies_of_host_memory_are_vulkans_where_cuda_is_not_open,
     .init = setup_both, .fini = teardown_both) {
  quay_allocator *vulkan = open_spec("vulkan:0");
  const uint64_t before = submissions();
  check_host_copies(vulkan);
  cr_assert_gt(submissions(), before);
  cr_assert_not(told_by_cuda(vulkan));
  quay_allocator_release(vulkan);
}

Test(cuda_vulkan, large_copies_of_host_memory_are_vulkans_where_cuda_cannot_import,
     .init = setup_both, .fini = teardown_both) {
  quay_allocator *vulkan = open_spec("vulkan:0"), *cuda = open_spec("cuda:0");
  quay_buffer *there = make_buffer(vulkan, LARGE);
  const uint64_t before = submissions();
  sim->fail("cuImportExternalMemory", 1, 2); /* CUDA_ERROR_OUT_OF_MEMORY */
  write_pattern(there, 3);
  cr_assert_gt(submissions(), before);
  check_pattern(there, 3);
  quay_buffer_release(there);
  quay_allocator_release(cuda);
  quay_allocator_release(vulkan);
}
