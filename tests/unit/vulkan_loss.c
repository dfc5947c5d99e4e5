/* Loss and reset of a Vulkan device, fork, and exit with live memory. */
#include "vulkan_fixture.h"

static quay_allocator *open_discrete(void) {
  (void)setenv("VKSHIM_DISCRETE", "1", 1);
  return open_spec("vulkan:0");
}

Test(vulkan_loss, a_lost_device_fails_every_call_with_the_first_message, .init = setup,
     .fini = teardown) {
  quay_allocator *allocator = open_discrete();
  quay_device *device = quay_allocator_device(allocator);
  quay_buffer *buffer = make_buffer(allocator, 5000);
  unsigned char bytes[5000];
  write_pattern(buffer, 3);
  shim->lose();
  CHECK_FAILS(quay_buffer_copy_out(buffer, bytes, sizeof bytes), QUAY_STATUS_DEVICE_LOST);
  CHECK_MESSAGE("quay_device_reset");
  cr_assert_str_eq(quay_last_error()->native_name, "VK_ERROR_DEVICE_LOST");
  /* A copy adds that its destination is undefined. */
  char first[QUAY_ERROR_MESSAGE_SIZE];
  CHECK_FAILS(quay_buffer_copy_in(buffer, bytes, sizeof bytes), QUAY_STATUS_DEVICE_LOST);
  (void)snprintf(first, sizeof first, "%s", quay_last_error()->message);
  cr_assert_eq(quay_device_health(device), QUAY_HEALTH_LOST);
  quay_raw_buffer raw;
  quay_stream *stream = NULL;
  quay_memory_info info;
  uint64_t address;
  cr_assert_not_null(strstr(first, "VK_ERROR_DEVICE_LOST"));
  CHECK_FAILS(quay_allocator_alloc(allocator, 100, NULL, &raw), QUAY_STATUS_DEVICE_LOST);
  cr_assert_str_eq(quay_last_error()->message, first);
  CHECK_FAILS(quay_stream_create(device, NULL, &stream), QUAY_STATUS_DEVICE_LOST);
  CHECK_FAILS(quay_device_memory_info(device, &info), QUAY_STATUS_DEVICE_LOST);
  CHECK_FAILS(quay_buffer_address(buffer, &address), QUAY_STATUS_DEVICE_LOST);
  cr_assert_str_eq(quay_last_error()->message, first);
  quay_buffer_release(buffer);
  quay_allocator_release(allocator);
}

Test(vulkan_loss, a_reset_opens_it_again_and_older_memory_is_stale, .init = setup,
     .fini = teardown) {
  quay_allocator *allocator = open_discrete(), *host = NULL;
  CHECK_OK(quay_allocator_open("vulkan:0,memory=host", &host));
  quay_device *device = quay_allocator_device(allocator);
  quay_buffer *old = make_buffer(allocator, 5000), *large = make_buffer(allocator, 9 << 20);
  quay_buffer *pinned = make_buffer(host, 100000);
  quay_stream *stream = NULL;
  quay_event *event = NULL;
  const uint64_t generation = quay_device_generation(device);
  unsigned char bytes[5000];
  CHECK_OK(quay_stream_create(device, NULL, &stream));
  CHECK_OK(quay_buffer_fill_on(old, "\x21", 1, stream));
  CHECK_OK(quay_event_record(stream, &event));
  shim->lose();
  CHECK_FAILS(quay_buffer_copy_out(old, bytes, sizeof bytes), QUAY_STATUS_DEVICE_LOST);
  CHECK_FAILS(quay_device_reset(device), QUAY_STATUS_BUSY);
  quay_stream_release(stream);
  CHECK_OK(quay_device_reset(device));
  cr_assert_eq(quay_device_health(device), QUAY_HEALTH_OK);
  cr_assert_eq(quay_device_generation(device), generation + 1);
  CHECK_FAILS(quay_buffer_copy_out(old, bytes, sizeof bytes), QUAY_STATUS_STALE);
  CHECK_FAILS(quay_event_synchronize(event), QUAY_STATUS_STALE);
  quay_buffer *young = make_buffer(allocator, 9 << 20);
  write_pattern(young, 17);
  check_pattern(young, 17);
  quay_event_release(event);
  quay_buffer_release(old);
  quay_buffer_release(large);
  quay_buffer_release(pinned);
  check_pattern(young, 17);
  quay_buffer_release(young);
  quay_allocator_release(host);
  quay_allocator_release(allocator);
}

Test(vulkan_loss, a_healthy_device_can_be_reset_with_work_under_way, .init = setup,
     .fini = teardown) {
  quay_allocator *allocator = open_discrete();
  quay_device *device = quay_allocator_device(allocator);
  quay_buffer *buffer = make_buffer(allocator, 9 << 20);
  quay_stream *stream = NULL;
  CHECK_OK(quay_stream_create(device, NULL, &stream));
  for (int i = 0; i < 20; i++)
    CHECK_OK(quay_buffer_fill_on(buffer, "\x42", 1, stream));
  quay_stream_release(stream);
  CHECK_OK(quay_device_reset(device));
  quay_buffer *young = make_buffer(allocator, 5000);
  write_pattern(young, 5);
  check_pattern(young, 5);
  quay_buffer_release(young);
  quay_buffer_release(buffer);
  quay_allocator_release(allocator);
}

Test(vulkan_loss, a_device_that_does_not_open_again_stays_lost_until_it_does, .init = setup,
     .fini = teardown) {
  quay_allocator *allocator = open_discrete();
  quay_device *device = quay_allocator_device(allocator);
  quay_buffer *buffer = make_buffer(allocator, 5000);
  shim->fail("vkCreateDevice", 1, VK_ERROR_INITIALIZATION_FAILED);
  CHECK_FAILS(quay_device_reset(device), QUAY_STATUS_UNAVAILABLE);
  cr_assert_eq(quay_device_health(device), QUAY_HEALTH_LOST);
  quay_raw_buffer raw;
  CHECK_FAILS(quay_allocator_alloc(allocator, 100, NULL, &raw), QUAY_STATUS_DEVICE_LOST);
  quay_buffer_release(buffer);
  CHECK_OK(quay_device_reset(device));
  CHECK_OK(quay_allocator_alloc(allocator, 100, NULL, &raw));
  quay_raw_buffer_free(&raw);
  quay_allocator_release(allocator);
}

Test(vulkan_loss, a_loss_while_a_copy_waits_ends_the_copy, .init = setup, .fini = teardown) {
  quay_allocator *allocator = open_discrete();
  quay_buffer *buffer = make_buffer(allocator, 9 << 20);
  write_pattern(buffer, 3);
  shim->fail("vkWaitSemaphores", 2, VK_ERROR_DEVICE_LOST);
  quay_test_block block = quay_test_block_make(9 << 20, 0, 4);
  CHECK_FAILS(quay_buffer_copy_in(buffer, block.data, block.size), QUAY_STATUS_DEVICE_LOST);
  shim->lose();
  quay_test_block_free(&block);
  quay_buffer_release(buffer);
  CHECK_OK(quay_device_reset(quay_allocator_device(allocator)));
  quay_allocator_release(allocator);
}

/* Fork and exit, in processes of their own. */

static int status_of(pid_t child) {
  int status = 0;
  cr_assert_eq(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

Test(vulkan_loss, the_child_of_a_fork_gets_a_clear_error_and_frees_do_nothing, .init = setup,
     .fini = teardown) {
  quay_allocator *allocator = open_spec("vulkan:0");
  quay_buffer *buffer = make_buffer(allocator, 5000);
  const pid_t child = fork();
  if (child == 0) {
    quay_raw_buffer raw;
    quay_allocator *cpu = NULL;
    int wrong = 0;
    wrong |= quay_allocator_alloc(allocator, 9 << 20, NULL, &raw) != QUAY_STATUS_UNAVAILABLE;
    wrong |= (strstr(quay_last_error()->message, "fork") == NULL) << 1;
    wrong |= (quay_allocator_open("cpu", &cpu) != QUAY_OK) << 2;
    quay_buffer_release(buffer);
    _exit(wrong);
  }
  cr_assert_eq(status_of(child), 0);
  write_pattern(buffer, 6);
  check_pattern(buffer, 6);
  quay_buffer_release(buffer);
  quay_allocator_release(allocator);
}

/* NVIDIA's kernel module leaves mapped memory out of a child: to touch it is a crash there. So
 * nobody may. Bits of what went wrong. */
static int host_memory_is_refused(quay_buffer *buffer, quay_buffer *host) {
  static unsigned char bytes[5000];
  const void *pointer = NULL;
  int wrong = quay_buffer_host_bytes(buffer, &pointer, NULL) != QUAY_STATUS_UNAVAILABLE;
  wrong |= (strstr(quay_last_error()->message, "fork") == NULL) << 1;
  wrong |= (pointer != NULL) << 2;
  wrong |= (quay_buffer_copy_in(buffer, bytes, sizeof bytes) != QUAY_STATUS_UNAVAILABLE) << 3;
  wrong |= (quay_buffer_copy_out(buffer, bytes, sizeof bytes) != QUAY_STATUS_UNAVAILABLE) << 4;
  wrong |= (quay_buffer_copy_from(buffer, host) != QUAY_STATUS_UNAVAILABLE) << 5;
  wrong |= (quay_buffer_copy_from(host, buffer) != QUAY_STATUS_UNAVAILABLE) << 6;
  wrong |= (quay_buffer_fill(buffer, "x", 1) != QUAY_STATUS_UNAVAILABLE) << 7;
  return wrong;
}

static void check_child(quay_buffer *buffer) {
  quay_allocator *cpu = open_spec("cpu");
  quay_buffer *host = make_buffer(cpu, 5000);
  const void *before = NULL;
  CHECK_OK(quay_buffer_host_bytes(buffer, &before, NULL)); /* an address that is looked up before */
  const pid_t child = fork();
  if (child == 0)
    _exit(host_memory_is_refused(buffer, host));
  const int wrong = status_of(child);
  cr_assert_eq(wrong, 0, "wrong: 0x%x", (unsigned)wrong);
  write_pattern(buffer, 7); /* the parent goes on */
  check_pattern(buffer, 7);
  quay_buffer_release(host);
  quay_allocator_release(cpu);
}

Test(vulkan_loss, the_child_of_a_fork_does_not_touch_mapped_memory, .init = setup,
     .fini = teardown) {
  quay_allocator *allocator = open_spec("vulkan:0,memory=host");
  quay_buffer *buffer = make_buffer(allocator, 5000);
  check_child(buffer);
  quay_buffer_release(buffer);
  quay_allocator_release(allocator);
}

Test(vulkan_loss, the_child_of_a_fork_does_not_touch_device_memory_that_is_mapped, .init = setup,
     .fini = teardown) {
  quay_allocator *allocator = open_spec("vulkan:0"), *cpu = open_spec("cpu");
  quay_buffer *buffer = make_buffer(allocator, 5000), *host = make_buffer(cpu, 5000);
  const pid_t child = fork();
  if (child == 0) {
    /* It has no address for the program, also in the parent. */
    const int wrong = host_memory_is_refused(buffer, host);
    _exit(wrong & ~3);
  }
  cr_assert_eq(status_of(child), 0);
  quay_buffer_release(host);
  quay_buffer_release(buffer);
  quay_allocator_release(cpu);
  quay_allocator_release(allocator);
}

Test(vulkan_loss, the_child_of_a_fork_does_not_touch_mapped_memory_of_the_programs_device,
     .init = setup, .fini = teardown) {
  quay_allocator *own = open_spec("vulkan:0"), *allocator = NULL;
  quay_device *device = NULL;
  quay_vulkan_handles handles;
  quay_stream *stream = NULL;
  CHECK_OK(quay_vulkan_get_handles(quay_allocator_device(own), &handles));
  CHECK_OK(quay_stream_create(quay_allocator_device(own), NULL, &stream));
  const quay_vulkan_queue queue = {.queue = quay_stream_native(stream)};
  const quay_vulkan_device_desc desc = {
      .get_instance_proc_addr = handles.get_instance_proc_addr,
      .instance = handles.instance,
      .physical_device = handles.physical_device,
      .device = handles.device,
      .queue_family = handles.queue_family,
      .queues = &queue,
      .queue_count = 1,
  };
  CHECK_OK(quay_vulkan_device_adopt(&desc, &device));
  CHECK_OK(quay_vulkan_allocator(device, QUAY_VULKAN_HOST, &allocator));
  quay_buffer *buffer = make_buffer(allocator, 5000);
  check_child(buffer);
  quay_buffer_release(buffer);
  quay_allocator_release(allocator);
  quay_device_release(device);
  quay_stream_release(stream);
  quay_allocator_release(own);
}

static quay_buffer *left_over;

static void release_at_exit(void) {
  quay_buffer_release(left_over);
}

Test(vulkan_loss, a_process_ends_well_with_live_memory_and_frees_that_come_late, .init = setup) {
  const pid_t child = fork();
  if (child == 0) {
    (void)atexit(release_at_exit); /* runs after Quay's own handler, registered later */
    quay_allocator *allocator = NULL;
    const int64_t shape[] = {100000};
    if (quay_allocator_open("vulkan:0", &allocator) != QUAY_OK)
      _exit(0); /* no device here */
    if (quay_buffer_create(allocator, QUAY_U8, 1, shape, NULL, &left_over) != QUAY_OK)
      _exit(3);
    exit(0);
  }
  cr_assert_eq(status_of(child), 0);
}

Test(vulkan_loss, a_message_of_the_validation_layer_ends_the_process_with_a_status_of_its_own,
     .init = setup) {
  if (strcmp(getenv("VKSHIM_VALIDATE"), "1") != 0)
    quay_test_skip("validation", "the validation layer is off under sanitizers");
  quay_allocator_release(open_spec("vulkan:0"));
  CHECK_OK(quay_shutdown());
  (void)fflush(NULL);
  const pid_t child = fork();
  if (child == 0) {
    quay_device *device = NULL;
    quay_vulkan_handles handles;
    if (freopen("/dev/null", "w", stderr) == NULL || quay_vulkan_device(0, &device) != QUAY_OK ||
        quay_vulkan_get_handles(device, &handles) != QUAY_OK)
      _exit(3);
    PFN_vkGetInstanceProcAddr get;
    const uintptr_t address = (uintptr_t)handles.get_instance_proc_addr;
    memcpy(&get, &address, sizeof get);
    PFN_vkCreateBuffer create =
        (PFN_vkCreateBuffer)get((VkInstance)(uintptr_t)handles.instance, "vkCreateBuffer");
    VkBuffer buffer;
    const VkBufferCreateInfo empty = {.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO};
    (void)create((VkDevice)(uintptr_t)handles.device, &empty, NULL, &buffer);
    exit(0);
  }
  cr_assert_eq(status_of(child), VKSHIM_EXIT);
}
