/* What the tests of CUDA beside Vulkan share: the simulated CUDA driver beside lavapipe as a
 * discrete device, which has the simulated device's UUID and exports files that it can map. Each
 * test ends with nothing left on either side. */
#ifndef QUAY_TESTS_UNIT_CUDA_VULKAN_FIXTURE_H
#define QUAY_TESTS_UNIT_CUDA_VULKAN_FIXTURE_H

#include <fcntl.h>

#include "sim_cuda/control.h"
#include "vulkan_fixture.h"

static const simcuda_control *sim;

static inline void setup_both(void) {
  setup();
  sim = simcuda_control_get();
  cr_assert_not_null(sim, "the test needs the simulated CUDA driver");
  (void)setenv("VKSHIM_DISCRETE", "1", 1);
  (void)setenv("VKSHIM_DEVICES", "2", 1);
  (void)setenv("VKSHIM_UUID", "simulated-cuda-0", 1);
}

static inline void check_nothing_is_left_in_cuda(void) {
  simcuda_census left;
  simcuda_violation first = {.message = ""};
  sim->count(&left);
  cr_expect_eq(left.device_bytes + left.host_bytes, 0, "CUDA memory is left");
  cr_expect_eq(left.retains, 0, "a CUDA context is left");
  cr_expect_eq(left.semaphores, 0, "%llu semaphores are left in CUDA",
               (unsigned long long)left.semaphores);
  cr_expect_eq(left.streams, 0, "%llu streams of CUDA are left", (unsigned long long)left.streams);
  cr_expect_eq(sim->violations(&first, 1), 0, "%s", first.message);
}

static inline void teardown_both(void) {
  teardown();
  check_nothing_is_left_in_cuda();
}

static inline unsigned count_files(void) {
  unsigned count = 0;
  for (int file = 3; file < 256; file++)
    count += fcntl(file, F_GETFD) != -1;
  return count;
}

static inline quay_copy_plan_info plan_on(quay_buffer *destination, quay_buffer *source,
                                          quay_stream *stream) {
  quay_copy_plan_info plan;
  const quay_copy_options options = {.stream = stream};
  CHECK_OK(quay_copy_plan(destination, 0, source, 0, quay_buffer_size(source), &options, &plan));
  return plan;
}

static inline quay_copy_plan_info plan_of(quay_buffer *destination, quay_buffer *source) {
  return plan_on(destination, source, NULL);
}

#endif
