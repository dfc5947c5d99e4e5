/* What the tests of the Vulkan backend share. Each test ends with a shutdown that must leave no
 * object of Vulkan. */
#ifndef QUAY_TESTS_UNIT_VULKAN_FIXTURE_H
#define QUAY_TESTS_UNIT_VULKAN_FIXTURE_H

#include <criterion/criterion.h>
#include <pthread.h>
#include <quay/backend.h>
#include <quay/quay.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define VK_NO_PROTOTYPES
#include <vulkan/vulkan_core.h>

#include "support/block.h"
#include "support/random.h"
#include "support/skip.h"
#include "support/status.h"
#include "support/vulkan_shim/vkshim.h"

static const vkshim_control *shim;

static inline quay_allocator *open_spec(const char *spec) {
  quay_allocator *allocator = NULL;
  const quay_status status = quay_allocator_open(spec, &allocator);
  if (status == QUAY_STATUS_UNAVAILABLE)
    quay_test_skip("vulkan", "%s", quay_last_error()->message);
  cr_assert_eq(status, QUAY_OK, "%s: %s", spec, quay_last_error()->message);
  return allocator;
}

static inline void setup(void) {
  shim = vkshim_control_get();
  cr_assert_not_null(shim, "the test needs the shim before the Vulkan loader");
  /* These are read when the instance is made. */
  static const char *const variables[] = {
      "VKSHIM_DISCRETE",      "VKSHIM_COHERENT",        "VKSHIM_DEVICES",
      "VKSHIM_NO_EXPORT",     "VKSHIM_MAX_ALLOCATIONS", "VKSHIM_MAX_ALLOCATION_BYTES",
      "VKSHIM_HEAP_BYTES",    "VKSHIM_NO_ADDRESS",      "VKSHIM_UUID",
      "VKSHIM_NO_SEMAPHORES", "VKSHIM_NO_HOST_IMPORT",  "VKSHIM_FIRST_IS_SOFTWARE"};
  for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++)
    (void)unsetenv(variables[i]);
  (void)unsetenv("QUAY_COPY_THREADS");
}

static inline void check_nothing_is_left(void) {
  vkshim_census left;
  shim->count(&left);
  cr_expect_eq(left.memories, 0, "%llu memories are left", (unsigned long long)left.memories);
  cr_expect_eq(left.buffers, 0, "%llu buffers are left", (unsigned long long)left.buffers);
  cr_expect_eq(left.semaphores + left.pools, 0, "%llu semaphores and %llu pools are left",
               (unsigned long long)left.semaphores, (unsigned long long)left.pools);
  cr_expect_eq(left.devices + left.instances, 0, "%llu devices and %llu instances are left",
               (unsigned long long)left.devices, (unsigned long long)left.instances);
}

static inline void teardown(void) {
  CHECK_OK(quay_shutdown());
  check_nothing_is_left();
}

static inline quay_buffer *make_buffer(quay_allocator *allocator, uint64_t size) {
  const int64_t shape[] = {(int64_t)size};
  quay_buffer *buffer = NULL;
  CHECK_OK(quay_buffer_create(allocator, QUAY_U8, 1, shape, NULL, &buffer));
  return buffer;
}

/* Writes random bytes, and checks all of them. */
static inline void write_pattern(quay_buffer *buffer, uint64_t seed) {
  quay_test_block block = quay_test_block_make(quay_buffer_size(buffer), 0, seed);
  CHECK_OK(quay_buffer_copy_in(buffer, block.data, block.size));
  quay_test_block_free(&block);
}

static inline void check_pattern(const quay_buffer *buffer, uint64_t seed) {
  quay_test_block expected = quay_test_block_make(quay_buffer_size(buffer), 0, seed);
  quay_test_block found = quay_test_block_make(expected.size, 0, seed + 1);
  CHECK_OK(quay_buffer_copy_out(buffer, found.data, found.size));
  const size_t at = quay_test_difference(found.data, expected.data, expected.size);
  cr_assert_eq(at, expected.size, "byte %zu of %zu is wrong", at, (size_t)expected.size);
  quay_test_block_free(&found);
  quay_test_block_free(&expected);
}

#endif
