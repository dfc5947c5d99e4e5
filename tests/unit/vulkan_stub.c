/* What stands in for the Vulkan backend where it is not built in, whether or not it is here. */
#include <criterion/criterion.h>
#include <string.h>

#include "support/status.h"

/* The stub under other names, beside the real backend. */
#define quay__backend_vulkan      stub_backend
#define quay__vulkan_shutdown     stub_shutdown
#define quay_vulkan_adopt         stub_adopt
#define quay_vulkan_release       stub_release
#define quay_vulkan_window        stub_window
#define quay_vulkan_binding       stub_binding
#define quay_vulkan_export_memory stub_export_memory
#define quay_vulkan_device        stub_device
#define quay_vulkan_device_uuid   stub_device_uuid
#define quay_vulkan_get_handles   stub_get_handles
#define quay_vulkan_get_limits    stub_get_limits
#define quay_vulkan_device_adopt  stub_device_adopt
#define quay_vulkan_allocator     stub_allocator
#define quay_vulkan_queue_lock    stub_queue_lock
#define quay_vulkan_queue_unlock  stub_queue_unlock
#include "vulkan/stub.c" /* NOLINT(bugprone-suspicious-include) */

#define CHECK_NOT_BUILT_IN(call)                  \
  do {                                            \
    CHECK_FAILS(call, QUAY_STATUS_UNAVAILABLE);   \
    CHECK_MESSAGE("not built into this library"); \
    CHECK_MESSAGE("QUAY_VULKAN=ON");              \
  } while (0)

Test(vulkan_stub, opening_says_that_it_is_not_built_in_and_what_to_do) {
  const quay_spec_args args = {.name = "vulkan", .spec = "vulkan:0"};
  quay_allocator *allocator = (quay_allocator *)&allocator;
  CHECK_NOT_BUILT_IN(stub_backend.open(stub_backend.user, &args, &allocator));
  cr_assert_null(allocator);
}

Test(vulkan_stub, the_list_of_devices_has_one_line_with_the_reason) {
  quay_device_info info;
  bool more = false;
  CHECK_OK(stub_backend.device_info(stub_backend.user, 0, &info, &more));
  cr_assert(more);
  cr_assert_not(info.available);
  cr_assert_not_null(strstr(info.reason, "QUAY_VULKAN=ON"));
  CHECK_OK(stub_backend.device_info(stub_backend.user, 1, &info, &more));
  cr_assert_not(more);
}

Test(vulkan_stub, every_public_function_says_so_and_leaves_nothing) {
  quay_raw_buffer raw;
  quay_vulkan_memory memory = {.buffer = 1};
  quay_vulkan_export exported = {.file = 5};
  quay_vulkan_handles handles = {.device = 1};
  quay_vulkan_limits limits = {.max_buffer_size = 1};
  quay_device *device = (quay_device *)&device;
  quay_allocator *allocator = (quay_allocator *)&allocator;
  uint8_t uuid[16] = {1};
  memset(&raw, 0x5a, sizeof raw);
  CHECK_NOT_BUILT_IN(stub_adopt(NULL, &memory, NULL, NULL, &raw));
  cr_assert_eq(raw.arm, QUAY_RAW_NONE);
  CHECK_NOT_BUILT_IN(stub_release(&raw, &memory));
  cr_assert_eq(memory.buffer, 0);
  CHECK_NOT_BUILT_IN(stub_window(NULL, &memory));
  CHECK_NOT_BUILT_IN(stub_binding(NULL, &memory));
  CHECK_NOT_BUILT_IN(stub_export_memory(NULL, &exported));
  cr_assert_eq(exported.file, -1);
  CHECK_NOT_BUILT_IN(stub_device(0, &device));
  cr_assert_null(device);
  CHECK_NOT_BUILT_IN(stub_device_uuid(NULL, uuid));
  cr_assert_eq(uuid[0], 0);
  CHECK_NOT_BUILT_IN(stub_get_handles(NULL, &handles));
  cr_assert_eq(handles.device, 0);
  CHECK_NOT_BUILT_IN(stub_get_limits(NULL, &limits));
  cr_assert_eq(limits.max_buffer_size, 0);
  device = (quay_device *)&device;
  CHECK_NOT_BUILT_IN(stub_device_adopt(NULL, &device));
  cr_assert_null(device);
  CHECK_NOT_BUILT_IN(stub_allocator(NULL, QUAY_VULKAN_DEVICE, &allocator));
  cr_assert_null(allocator);
  stub_queue_lock(NULL);
  stub_queue_unlock(NULL);
  stub_shutdown();
}
