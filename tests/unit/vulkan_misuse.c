/* What the public functions of Vulkan answer to arguments that are wrong, and the backend to an
 * environment that is. */
#include <fcntl.h>

#include "vulkan_fixture.h"

#define CHECK_INVALID(call) CHECK_FAILS(call, QUAY_STATUS_INVALID_ARGUMENT)

Test(vulkan_misuse, null_is_an_invalid_argument_everywhere, .init = setup, .fini = teardown) {
  quay_allocator *allocator = open_spec("vulkan:0");
  quay_device *device = quay_allocator_device(allocator);
  quay_buffer *buffer = make_buffer(allocator, 1000);
  const quay_vulkan_memory there = {.buffer = 5, .size = 10};
  quay_vulkan_memory memory;
  quay_vulkan_export exported;
  quay_vulkan_handles handles;
  quay_vulkan_limits limits;
  quay_raw_buffer raw = {0};
  quay_device *other = NULL;
  quay_allocator *opened = NULL;
  uint8_t uuid[16];
  CHECK_INVALID(quay_vulkan_adopt(allocator, &there, NULL, NULL, NULL));
  CHECK_INVALID(quay_vulkan_adopt(allocator, NULL, NULL, NULL, &raw));
  CHECK_INVALID(quay_vulkan_release(NULL, &memory));
  CHECK_INVALID(quay_vulkan_release(&raw, NULL));
  CHECK_INVALID(quay_vulkan_window(NULL, &memory));
  CHECK_INVALID(quay_vulkan_window(buffer, NULL));
  CHECK_INVALID(quay_vulkan_binding(NULL, &memory));
  CHECK_INVALID(quay_vulkan_binding(buffer, NULL));
  CHECK_INVALID(quay_vulkan_export_memory(NULL, &exported));
  CHECK_INVALID(quay_vulkan_export_memory(buffer, NULL));
  CHECK_INVALID(quay_vulkan_device(0, NULL));
  CHECK_INVALID(quay_vulkan_device_uuid(NULL, uuid));
  CHECK_INVALID(quay_vulkan_device_uuid(device, NULL));
  CHECK_INVALID(quay_vulkan_get_handles(NULL, &handles));
  CHECK_INVALID(quay_vulkan_get_handles(device, NULL));
  CHECK_INVALID(quay_vulkan_get_limits(NULL, &limits));
  CHECK_INVALID(quay_vulkan_get_limits(device, NULL));
  CHECK_INVALID(quay_vulkan_device_adopt(NULL, &other));
  CHECK_INVALID(quay_vulkan_allocator(NULL, QUAY_VULKAN_DEVICE, &opened));
  CHECK_INVALID(quay_vulkan_allocator(device, QUAY_VULKAN_DEVICE, NULL));
  quay_vulkan_queue_lock(NULL);
  quay_vulkan_queue_unlock(NULL);
  quay_buffer_release(buffer);
  quay_allocator_release(allocator);
}

Test(vulkan_misuse, what_is_of_another_backend_is_refused_and_outputs_are_zero, .init = setup,
     .fini = teardown) {
  quay_allocator *vulkan = open_spec("vulkan:0"), *cpu = open_spec("cpu");
  quay_buffer *buffer = make_buffer(cpu, 1000);
  quay_device *host = quay_allocator_device(cpu);
  static const quay_vulkan_memory nothing;
  quay_vulkan_memory memory = {.buffer = 7};
  quay_vulkan_export exported = {.file = 7};
  quay_vulkan_handles handles;
  quay_vulkan_limits limits;
  quay_allocator *opened = NULL;
  quay_stream *stream = NULL;
  uint8_t uuid[16];
  quay_raw_buffer raw;
  CHECK_FAILS(quay_vulkan_window(buffer, &memory), QUAY_STATUS_UNSUPPORTED);
  cr_assert_arr_eq(&memory, &nothing, sizeof memory);
  CHECK_FAILS(quay_vulkan_binding(buffer, &memory), QUAY_STATUS_UNSUPPORTED);
  CHECK_FAILS(quay_vulkan_export_memory(buffer, &exported), QUAY_STATUS_UNSUPPORTED);
  cr_assert_eq(exported.file, -1);
  CHECK_INVALID(quay_vulkan_device_uuid(host, uuid));
  CHECK_INVALID(quay_vulkan_get_handles(host, &handles));
  CHECK_INVALID(quay_vulkan_get_limits(host, &limits));
  CHECK_INVALID(quay_vulkan_allocator(host, QUAY_VULKAN_DEVICE, &opened));
  CHECK_OK(quay_allocator_alloc(cpu, 100, NULL, &raw));
  CHECK_FAILS(quay_vulkan_release(&raw, &memory), QUAY_STATUS_UNSUPPORTED);
  quay_raw_buffer_free(&raw);
  CHECK_OK(quay_stream_create(host, NULL, &stream));
  quay_vulkan_queue_lock(stream);
  quay_vulkan_queue_unlock(stream);
  quay_stream_release(stream);
  CHECK_INVALID(quay_vulkan_allocator(quay_allocator_device(vulkan),
                                      (quay_vulkan_memory_kind)QUAY_VULKAN_MEMORY_KINDS, &opened));
  cr_assert_null(opened);
  quay_buffer_release(buffer);
  quay_allocator_release(cpu);
  quay_allocator_release(vulkan);
}

Test(vulkan_misuse, memory_that_is_not_there_has_no_window_and_can_not_be_released, .init = setup,
     .fini = teardown) {
  quay_allocator *allocator = open_spec("vulkan:0");
  const int64_t shape[] = {1000};
  quay_buffer *lazy = NULL;
  quay_vulkan_memory memory;
  quay_vulkan_export exported;
  quay_raw_buffer raw = {0};
  quay_device *device = NULL;
  CHECK_OK(quay_buffer_create_lazy(allocator, QUAY_U8, 1, shape, NULL, &lazy));
  CHECK_FAILS(quay_vulkan_window(lazy, &memory), QUAY_STATUS_NOT_ALLOCATED);
  CHECK_FAILS(quay_vulkan_binding(lazy, &memory), QUAY_STATUS_NOT_ALLOCATED);
  CHECK_FAILS(quay_vulkan_export_memory(lazy, &exported), QUAY_STATUS_NOT_ALLOCATED);
  CHECK_FAILS(quay_vulkan_release(&raw, &memory), QUAY_STATUS_NOT_ALLOCATED);
  CHECK_FAILS(quay_vulkan_device(UINT32_MAX, &device), QUAY_STATUS_UNAVAILABLE);
  cr_assert_null(device);
  quay_buffer_release(lazy);
  quay_allocator_release(allocator);
}

/* The environment. */

static void check_unavailable(const char *text) {
  quay_allocator *allocator = NULL;
  CHECK_FAILS(quay_allocator_open("vulkan:0", &allocator), QUAY_STATUS_UNAVAILABLE);
  cr_assert_null(allocator);
  CHECK_MESSAGE(text);
}

Test(vulkan_misuse, a_library_that_is_none_is_named_and_a_right_one_works_afterwards, .init = setup,
     .fini = teardown) {
  char right[4096];
  (void)snprintf(right, sizeof right, "%s", getenv("QUAY_VULKAN_LIBRARY"));
  char text[] = "/tmp/quay-vulkan-XXXXXX";
  const int file = mkstemp(text);
  cr_assert_eq(write(file, "no library", 10), 10);
  (void)close(file);
  const char *const wrong[] = {"/tmp", text, "/does/not/exist.so", "."};
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    (void)setenv("QUAY_VULKAN_LIBRARY", wrong[i], 1);
    check_unavailable(wrong[i]);
  }
  (void)setenv("QUAY_VULKAN_LIBRARY", "libm.so.6", 1);
  check_unavailable("vkGetInstanceProcAddr");
  (void)unlink(text);
  (void)setenv("QUAY_VULKAN_LIBRARY", right, 1);
  quay_allocator_release(open_spec("vulkan:0"));
}

Test(vulkan_misuse, without_a_driver_the_loader_is_said_to_be_there_and_the_driver_missing,
     .init = setup, .fini = teardown) {
  quay_allocator_release(open_spec("vulkan:0"));
  CHECK_OK(quay_shutdown());
  (void)setenv("VK_ICD_FILENAMES", "/does/not/exist.json", 1);
  (void)setenv("VK_DRIVER_FILES", "/does/not/exist.json", 1);
  check_unavailable("driver");
  (void)unsetenv("VK_ICD_FILENAMES");
  (void)unsetenv("VK_DRIVER_FILES");
  quay_allocator_release(open_spec("vulkan:0"));
}
