/* Buffers and memory that change hands, exports, and the program's own VkDevice. */
#include "vulkan_fixture.h"

/* The program's view of a device of Quay's. */
typedef struct program {
  quay_allocator *allocator;
  VkDevice device;
  PFN_vkGetDeviceProcAddr get;
  uint32_t family;
} program;

static PFN_vkVoidFunction function_of(const program *p, const char *name) {
  const PFN_vkVoidFunction function = p->get(p->device, name);
  cr_assert_not_null(function, "%s", name);
  return function;
}

#define CALL(p, name) ((PFN_##name)function_of(p, #name))

static program begin(const char *spec) {
  program p = {.allocator = open_spec(spec)};
  quay_vulkan_handles handles;
  CHECK_OK(quay_vulkan_get_handles(quay_allocator_device(p.allocator), &handles));
  PFN_vkGetInstanceProcAddr get;
  const uintptr_t address = (uintptr_t)handles.get_instance_proc_addr;
  memcpy(&get, &address, sizeof get);
  p.device = (VkDevice)(uintptr_t)handles.device;
  p.family = handles.queue_family;
  p.get =
      (PFN_vkGetDeviceProcAddr)get((VkInstance)(uintptr_t)handles.instance, "vkGetDeviceProcAddr");
  return p;
}

/* A buffer of 64 KiB with memory of type `type`, mapped if `out_host` is there. */
static quay_vulkan_memory make_memory(const program *p, uint32_t type, void **out_host) {
  const VkBufferCreateInfo buffer_info = {
      .sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
      .size = 65536,
      .usage = VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT,
  };
  const VkMemoryAllocateInfo memory_info = {
      .sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
      .allocationSize = 65536,
      .memoryTypeIndex = type,
  };
  VkBuffer buffer;
  VkDeviceMemory memory;
  cr_assert_eq(CALL(p, vkCreateBuffer)(p->device, &buffer_info, NULL, &buffer), VK_SUCCESS);
  VkMemoryRequirements needs;
  CALL(p, vkGetBufferMemoryRequirements)(p->device, buffer, &needs);
  cr_assert_eq(CALL(p, vkAllocateMemory)(p->device, &memory_info, NULL, &memory), VK_SUCCESS);
  cr_assert_eq(CALL(p, vkBindBufferMemory)(p->device, buffer, memory, 0), VK_SUCCESS);
  quay_vulkan_memory made = {
      .buffer = (uint64_t)(uintptr_t)buffer, .memory = (uint64_t)(uintptr_t)memory, .size = 65536};
  if (out_host != NULL) {
    cr_assert_eq(CALL(p, vkMapMemory)(p->device, memory, 0, VK_WHOLE_SIZE, 0, out_host),
                 VK_SUCCESS);
    made.host_pointer = (uint64_t)(uintptr_t)*out_host;
  }
  return made;
}

static void end_memory(const program *p, const quay_vulkan_memory *memory) {
  CALL(p, vkDestroyBuffer)(p->device, (VkBuffer)(uintptr_t)memory->buffer, NULL);
  CALL(p, vkFreeMemory)(p->device, (VkDeviceMemory)(uintptr_t)memory->memory, NULL);
}

typedef struct release_record {
  unsigned calls;
  void *memory;
  uint64_t size;
} release_record;

static void record_release(void *user, void *memory, uint64_t size) {
  release_record *record = user;
  record->calls++;
  record->memory = memory;
  record->size = size;
}

static quay_buffer *buffer_of(quay_raw_buffer *raw) {
  const int64_t shape[] = {(int64_t)quay_raw_buffer_size(raw)};
  quay_buffer *buffer = NULL;
  CHECK_OK(quay_buffer_from_raw(raw, QUAY_U8, 1, shape, &buffer));
  return buffer;
}

Test(vulkan_adopt, an_adopted_buffer_is_used_in_place_and_its_callback_called_once, .init = setup,
     .fini = teardown) {
  (void)setenv("VKSHIM_DISCRETE", "1", 1);
  const program p = begin("track+vulkan:0");
  const quay_vulkan_memory memory = make_memory(&p, 0, NULL);
  quay_vulkan_memory part = memory, window;
  part.offset = 1003;
  part.size = 50000;
  release_record record = {0};
  quay_raw_buffer raw;
  CHECK_OK(quay_vulkan_adopt(p.allocator, &part, record_release, &record, &raw));
  quay_buffer *buffer = buffer_of(&raw), *other = make_buffer(p.allocator, 50000);
  write_pattern(buffer, 31);
  CHECK_OK(quay_vulkan_window(buffer, &window));
  cr_assert_eq(window.buffer, memory.buffer);
  cr_assert_eq(window.offset, 1003);
  CHECK_OK(quay_buffer_copy_from(other, buffer));
  check_pattern(other, 31);
  CHECK_OK(quay_buffer_copy_region(buffer, 1, buffer, 0, 40000, NULL));
  cr_assert_eq(record.calls, 0);
  quay_buffer_release(other);
  quay_buffer_release(buffer);
  cr_assert_eq(record.calls, 1);
  cr_assert_eq((uintptr_t)record.memory, memory.buffer);
  cr_assert_eq(record.size, 50000);
  end_memory(&p, &memory);
  quay_allocator_release(p.allocator);
}

Test(vulkan_adopt, adopted_memory_comes_back_as_it_was_handed_in, .init = setup, .fini = teardown) {
  const program p = begin("vulkan:0");
  const quay_vulkan_memory memory = make_memory(&p, 0, NULL);
  release_record record = {0};
  quay_raw_buffer raw;
  quay_vulkan_memory back;
  CHECK_OK(quay_vulkan_adopt(p.allocator, &memory, record_release, &record, &raw));
  CHECK_OK(quay_vulkan_release(&raw, &back));
  cr_assert_arr_eq(&back, &memory, sizeof back);
  cr_assert_eq(record.calls, 0);
  end_memory(&p, &memory);
  quay_allocator_release(p.allocator);
}

Test(vulkan_adopt, host_visible_memory_needs_its_pointer_and_is_used_through_it, .init = setup,
     .fini = teardown) {
  const program p = begin("vulkan:0,memory=host");
  void *host = NULL;
  const quay_vulkan_memory memory = make_memory(&p, 0, &host);
  quay_vulkan_memory without = memory;
  without.host_pointer = 0;
  quay_raw_buffer raw;
  CHECK_FAILS(quay_vulkan_adopt(p.allocator, &without, NULL, NULL, &raw),
              QUAY_STATUS_INVALID_ARGUMENT);
  CHECK_MESSAGE("host_pointer");
  CHECK_OK(quay_vulkan_adopt(p.allocator, &memory, NULL, NULL, &raw));
  quay_buffer *buffer = buffer_of(&raw);
  const void *bytes = NULL;
  write_pattern(buffer, 33);
  CHECK_OK(quay_buffer_host_bytes(buffer, &bytes, NULL));
  cr_assert_eq(bytes, host);
  quay_buffer_release(buffer);
  end_memory(&p, &memory);
  quay_allocator_release(p.allocator);
}

Test(vulkan_adopt, ranges_that_are_none_are_refused_and_nothing_is_taken_over, .init = setup,
     .fini = teardown) {
  const program p = begin("vulkan:0");
  quay_allocator *cpu = open_spec("cpu");
  release_record record = {0};
  const quay_vulkan_memory wrong[] = {
      {.buffer = 0, .size = 10},
      {.buffer = 5, .offset = UINT64_MAX, .size = 10},
      {.buffer = 5, .size = UINT64_MAX},
  };
  quay_raw_buffer raw;
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    CHECK_FAILS(quay_vulkan_adopt(p.allocator, &wrong[i], record_release, &record, &raw),
                QUAY_STATUS_INVALID_ARGUMENT);
  }
  const quay_vulkan_memory right = {.buffer = 5, .size = 10};
  CHECK_FAILS(quay_vulkan_adopt(cpu, &right, record_release, &record, &raw),
              QUAY_STATUS_UNSUPPORTED);
  CHECK_FAILS(quay_vulkan_adopt(p.allocator, NULL, NULL, NULL, &raw), QUAY_STATUS_INVALID_ARGUMENT);
  cr_assert_eq(record.calls, 0);
  quay_allocator_release(cpu);
  quay_allocator_release(p.allocator);
}

Test(vulkan_adopt, memory_of_its_own_can_be_released_and_shared_memory_not, .init = setup,
     .fini = teardown) {
  const program p = begin("track+vulkan:0,dedicated=on");
  quay_allocator *shared = open_spec("vulkan:0");
  quay_raw_buffer raw;
  quay_vulkan_memory memory;
  CHECK_OK(quay_allocator_alloc(shared, 1000, NULL, &raw));
  CHECK_FAILS(quay_vulkan_release(&raw, &memory), QUAY_STATUS_UNSUPPORTED);
  CHECK_MESSAGE("dedicated=on");
  quay_raw_buffer_free(&raw);
  CHECK_OK(quay_allocator_alloc(p.allocator, 1000, NULL, &raw));
  CHECK_OK(quay_vulkan_release(&raw, &memory));
  cr_assert_neq(memory.memory, 0);
  cr_assert_eq(memory.offset, 0);
  cr_assert_eq(memory.size, 1000);
  quay_stats stats;
  CHECK_OK(quay_allocator_stats(p.allocator, &stats));
  cr_assert_eq(stats.live_count, 0);
  end_memory(&p, &memory);
  quay_allocator_release(shared);
  quay_allocator_release(p.allocator);
}

/* Exports. */

Test(vulkan_adopt, exported_memory_is_told_whole_with_the_window_in_it, .init = setup,
     .fini = teardown) {
  quay_allocator *allocator = open_spec("vulkan:0");
  const int64_t shape[] = {5000};
  const quay_alloc_options options = {.exportable = true};
  quay_buffer *buffer = NULL, *view = NULL, *plain = make_buffer(allocator, 5000);
  quay_vulkan_export exported;
  CHECK_FAILS(quay_vulkan_export_memory(plain, &exported), QUAY_STATUS_UNSUPPORTED);
  CHECK_MESSAGE("exportable");
  cr_assert_eq(exported.file, -1);
  CHECK_OK(quay_buffer_create(allocator, QUAY_U8, 1, shape, &options, &buffer));
  CHECK_OK(quay_buffer_view(buffer, 300, 100, &view));
  CHECK_OK(quay_vulkan_export_memory(view, &exported));
  cr_assert_geq(exported.file, 0);
  cr_assert_geq(exported.memory_size, 5000);
  cr_assert_eq(exported.offset, 300);
  cr_assert_eq(exported.size, 100);
  cr_assert_eq(close(exported.file), 0);
  quay_buffer_release(view);
  quay_buffer_release(buffer);
  quay_buffer_release(plain);
  quay_allocator_release(allocator);
}

Test(vulkan_adopt, without_the_extension_exportable_memory_is_unsupported, .init = setup,
     .fini = teardown) {
  (void)setenv("VKSHIM_NO_EXPORT", "1", 1);
  quay_allocator *allocator = open_spec("vulkan:0");
  const quay_alloc_options options = {.exportable = true};
  quay_raw_buffer raw;
  CHECK_FAILS(quay_allocator_alloc(allocator, 100, &options, &raw), QUAY_STATUS_UNSUPPORTED);
  CHECK_MESSAGE("VK_KHR_external_memory_fd");
  quay_buffer *buffer = make_buffer(allocator, 1000);
  write_pattern(buffer, 3);
  check_pattern(buffer, 3);
  quay_buffer_release(buffer);
  quay_allocator_release(allocator);
}

/* The program's own device: another device of Quay's plays it. */

typedef struct queue_lock {
  pthread_mutex_t mutex;
  atomic_uint locks;
} queue_lock;

static void lock_queue(void *user) {
  queue_lock *lock = user;
  pthread_mutex_lock(&lock->mutex);
  atomic_fetch_add(&lock->locks, 1);
}

static void unlock_queue(void *user) {
  pthread_mutex_unlock(&((queue_lock *)user)->mutex);
}

/* A VkDevice made by the program, on the shim's instance. */
static VkDevice make_device(const quay_vulkan_handles *handles, VkQueue *out_queue) {
  static const float priority = 1;
  PFN_vkGetInstanceProcAddr get;
  const uintptr_t address = (uintptr_t)handles->get_instance_proc_addr;
  memcpy(&get, &address, sizeof get);
  const VkDeviceQueueCreateInfo queue = {
      .sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
      .queueFamilyIndex = handles->queue_family,
      .queueCount = 1,
      .pQueuePriorities = &priority,
  };
  VkPhysicalDeviceVulkan12Features features = {
      .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES,
      .timelineSemaphore = VK_TRUE,
  };
  const VkDeviceCreateInfo info = {
      .sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
      .pNext = &features,
      .queueCreateInfoCount = 1,
      .pQueueCreateInfos = &queue,
  };
  VkInstance instance = (VkInstance)(uintptr_t)handles->instance;
  PFN_vkCreateDevice create = (PFN_vkCreateDevice)get(instance, "vkCreateDevice");
  VkDevice device = NULL;
  cr_assert_eq(create((VkPhysicalDevice)(uintptr_t)handles->physical_device, &info, NULL, &device),
               VK_SUCCESS);
  PFN_vkGetDeviceQueue get_queue = (PFN_vkGetDeviceQueue)get(instance, "vkGetDeviceQueue");
  get_queue(device, handles->queue_family, 0, out_queue);
  return device;
}

static void destroy_device(const quay_vulkan_handles *handles, VkDevice device) {
  PFN_vkGetInstanceProcAddr get;
  const uintptr_t address = (uintptr_t)handles->get_instance_proc_addr;
  memcpy(&get, &address, sizeof get);
  PFN_vkDestroyDevice destroy =
      (PFN_vkDestroyDevice)get((VkInstance)(uintptr_t)handles->instance, "vkDestroyDevice");
  destroy(device, NULL);
}

Test(vulkan_adopt, the_programs_device_is_used_under_its_lock_and_left_as_it_was, .init = setup,
     .fini = teardown) {
  (void)setenv("VKSHIM_DISCRETE", "1", 1);
  quay_allocator *keep = open_spec("vulkan:0"); /* keeps the instance */
  quay_vulkan_handles handles;
  CHECK_OK(quay_vulkan_get_handles(quay_allocator_device(keep), &handles));
  VkQueue queue;
  VkDevice handle = make_device(&handles, &queue);
  queue_lock lock = {.mutex = PTHREAD_MUTEX_INITIALIZER};
  const quay_vulkan_queue queues[] = {{.queue = (uint64_t)(uintptr_t)queue,
                                       .lock = lock_queue,
                                       .unlock = unlock_queue,
                                       .user = &lock}};
  const quay_vulkan_device_desc desc = {
      .get_instance_proc_addr = handles.get_instance_proc_addr,
      .instance = handles.instance,
      .physical_device = handles.physical_device,
      .device = (uint64_t)(uintptr_t)handle,
      .queue_family = handles.queue_family,
      .queues = queues,
      .queue_count = 1,
  };
  quay_device *device = NULL;
  quay_allocator *allocator = NULL, *pinned = NULL;
  CHECK_OK(quay_vulkan_device_adopt(&desc, &device));
  CHECK_OK(quay_vulkan_allocator(device, QUAY_VULKAN_DEVICE, &allocator));
  CHECK_OK(quay_vulkan_allocator(device, QUAY_VULKAN_HOST, &pinned));
  quay_buffer *buffer = make_buffer(allocator, 300000), *host = make_buffer(pinned, 300000);
  write_pattern(buffer, 41);
  CHECK_OK(quay_buffer_copy_from(host, buffer));
  check_pattern(host, 41);
  cr_assert_gt(atomic_load(&lock.locks), 0);
  quay_stream *stream = NULL;
  CHECK_OK(quay_stream_create(device, NULL, &stream));
  cr_assert_eq(quay_stream_native(stream), (uint64_t)(uintptr_t)queue);
  const unsigned before = atomic_load(&lock.locks);
  quay_vulkan_queue_lock(stream);
  quay_vulkan_queue_unlock(stream);
  cr_assert_eq(atomic_load(&lock.locks), before + 1);
  quay_stream_release(stream);
  CHECK_FAILS(quay_device_reset(device), QUAY_STATUS_UNSUPPORTED);
  quay_buffer_release(host);
  quay_buffer_release(buffer);
  quay_allocator_release(pinned);
  quay_allocator_release(allocator);
  quay_device_release(device);
  destroy_device(&handles, handle);
  quay_allocator_release(keep);
}

Test(vulkan_adopt, descriptions_of_a_device_that_miss_something_are_refused, .init = setup,
     .fini = teardown) {
  const quay_vulkan_queue queue = {.queue = 5}, none = {.queue = 0},
                          half = {.queue = 5, .lock = lock_queue};
  const quay_vulkan_device_desc right = {.get_instance_proc_addr = 1,
                                         .instance = 1,
                                         .physical_device = 1,
                                         .device = 1,
                                         .queues = &queue,
                                         .queue_count = 1};
  quay_vulkan_device_desc wrong[6];
  for (size_t i = 0; i < 6; i++)
    wrong[i] = right;
  wrong[0].device = 0;
  wrong[1].queue_count = 0;
  wrong[2].queue_count = 5;
  wrong[3].queues = &none;
  wrong[4].queues = &half;
  wrong[5].get_instance_proc_addr = 0;
  for (size_t i = 0; i < 6; i++) {
    quay_device *device = NULL;
    CHECK_FAILS(quay_vulkan_device_adopt(&wrong[i], &device), QUAY_STATUS_INVALID_ARGUMENT);
    cr_assert_null(device);
  }
}
