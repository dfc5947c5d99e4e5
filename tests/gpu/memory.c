/* Kinds of memory on a real device: information, exhaustion, managed and pinned memory in kernels,
 * mirrors, and memory that goes to and comes from other code that calls the driver. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/gpu.h"

GPU_SUITE(gpu_memory);

Test(gpu_memory, information_agrees_with_the_drivers) {
  gpu_begin();
  quay_allocator *const gpu = gpu_open("cuda:0");
  quay_memory_info info;
  size_t free_bytes = 0, total_bytes = 0;
  CHECK_OK(quay_device_memory_info(quay_allocator_device(gpu), &info));
  CU_OK(gpu_enter(0));
  CU_OK(cu->cuMemGetInfo_v2(&free_bytes, &total_bytes));
  CU_OK(gpu_leave());
  cr_assert_eq(info.total_bytes, total_bytes);
  cr_assert_leq(info.free_bytes, info.total_bytes);
  cr_assert_gt(info.free_bytes, 0);
}

Test(gpu_memory, an_allocation_takes_from_the_free_memory_and_a_free_gives_it_back) {
  gpu_begin();
  quay_allocator *const gpu = gpu_open("cuda:0");
  quay_device *const device = quay_allocator_device(gpu);
  quay_memory_info before, between, after;
  quay_raw_buffer raw;
  const uint64_t size = UINT64_C(1) << 30;
  CHECK_OK(quay_device_memory_info(device, &before));
  CHECK_OK(quay_allocator_alloc(gpu, size, NULL, &raw));
  CHECK_OK(quay_device_memory_info(device, &between));
  quay_raw_buffer_free(&raw);
  CHECK_OK(quay_device_memory_info(device, &after));
  cr_assert_leq(between.free_bytes + size, before.free_bytes);
  cr_assert_geq(after.free_bytes, between.free_bytes + size);
}

/* Out of memory. */

static void check_usable(quay_allocator *gpu, const quay_alloc_options *options) {
  cr_assert_eq(quay_device_health(quay_allocator_device(gpu)), QUAY_HEALTH_OK);
  quay_stream *const stream = gpu_stream(gpu);
  quay_buffer *const buffer = gpu_buffer(gpu, GPU_WORDS, GPU_OLD, options);
  gpu_write(stream, buffer, GPU_NEW, GPU_AT_ONCE);
  gpu_expect(buffer, GPU_NEW);
  quay_buffer_release(buffer);
}

static void check_out_of_memory(const char *spec, bool ordered, quay_status expected,
                                const char *native_name) {
  gpu_begin();
  quay_allocator *const gpu = gpu_open(spec);
  const quay_alloc_options options = {.stream = ordered ? gpu_stream(gpu) : NULL};
  quay_memory_info info;
  CHECK_OK(quay_device_memory_info(quay_allocator_device(gpu), &info));
  const uint64_t size =
      expected == QUAY_STATUS_OUT_OF_HOST_MEMORY ? UINT64_C(1) << 62 : info.total_bytes - 1;
  quay_raw_buffer raw, held;
  CHECK_OK(quay_allocator_alloc(gpu, 1 << 20, NULL, &held));
  CHECK_FAILS(quay_allocator_alloc(gpu, size, &options, &raw), expected);
  cr_assert_eq(raw.arm, QUAY_RAW_NONE);
  cr_assert(native_name == NULL || strcmp(quay_last_error()->native_name, native_name) == 0, "%s",
            quay_last_error()->native_name);
  quay_raw_buffer_free(&held);
  check_usable(gpu, &options);
}

Test(gpu_memory, running_out_of_device_memory_leaves_the_device_usable) {
  check_out_of_memory("cuda:0", false, QUAY_STATUS_OUT_OF_DEVICE_MEMORY,
                      "CUDA_ERROR_OUT_OF_MEMORY");
}

Test(gpu_memory, running_out_of_stream_ordered_memory_leaves_the_device_usable) {
  check_out_of_memory("cuda:0", true, QUAY_STATUS_OUT_OF_DEVICE_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY");
}

Test(gpu_memory, running_out_of_pinned_memory_leaves_the_device_usable) {
  check_out_of_memory("cuda:0,memory=pinned", false, QUAY_STATUS_OUT_OF_HOST_MEMORY, NULL);
}

Test(gpu_memory, freed_memory_makes_room_for_an_allocation_that_does_not_fit_else) {
  gpu_begin();
  quay_allocator *const gpu = gpu_open("cuda:0");
  const quay_alloc_options ordered = {.stream = gpu_stream(gpu)};
  quay_memory_info info;
  CHECK_OK(quay_device_memory_info(quay_allocator_device(gpu), &info));
  const quay_alloc_options *const options[] = {NULL, &ordered, NULL, &ordered};
  for (int i = 0; i < 4; i++) {
    quay_raw_buffer raw;
    CHECK_OK(quay_allocator_alloc(gpu, info.free_bytes / 4 * 3, options[i], &raw));
    quay_raw_buffer_free(&raw);
  }
}

Test(gpu_memory, a_device_full_of_blocks_says_so_and_takes_them_back) {
  enum {
    BLOCKS = 9
  };
  gpu_begin();
  quay_allocator *const gpu = gpu_open("cuda:0");
  quay_memory_info info;
  CHECK_OK(quay_device_memory_info(quay_allocator_device(gpu), &info));
  quay_raw_buffer blocks[BLOCKS];
  int count = 0;
  quay_status status = QUAY_OK;
  while (count < BLOCKS && status == QUAY_OK) {
    status = quay_allocator_alloc(gpu, info.free_bytes / (BLOCKS - 1), NULL, &blocks[count]);
    count += status == QUAY_OK;
  }
  cr_assert_eq(status, QUAY_STATUS_OUT_OF_DEVICE_MEMORY, "%s", quay_status_name(status));
  cr_assert_geq(count, BLOCKS / 2);
  for (int i = 0; i < count; i++)
    quay_raw_buffer_free(&blocks[i]);
  check_usable(gpu, NULL);
}

/* What memory is. */

Test(gpu_memory, every_kind_is_what_the_driver_says) {
  static const struct {
    const char *spec;
    unsigned type;
    bool managed;
  } kinds[] = {{"cuda:0", CU_MEMORYTYPE_DEVICE, false},
               {"cuda:0,memory=pinned", CU_MEMORYTYPE_HOST, false},
               {"cuda:0,memory=managed", 0, true}};
  gpu_begin();
  CU_OK(gpu_enter(0));
  for (size_t i = 0; i < 3; i++) {
    quay_buffer *const buffer = gpu_buffer(gpu_open(kinds[i].spec), 100, GPU_OLD, NULL);
    uint64_t address = 0;
    unsigned type = 0;
    int managed = 0;
    CHECK_OK(quay_cuda_pointer(buffer, &address));
    CU_OK(cu->cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, address));
    cr_assert_eq(managed != 0, kinds[i].managed, "%s", kinds[i].spec);
    if (!kinds[i].managed) {
      CU_OK(cu->cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address));
      cr_assert_eq(type, kinds[i].type, "%s", kinds[i].spec);
    }
    quay_buffer_release(buffer);
  }
  CU_OK(gpu_leave());
}

Test(gpu_memory, every_alignment_is_kept) {
  gpu_begin();
  static const char *const specs[] = {"cuda:0", "cuda:0,memory=pinned", "cuda:0,memory=managed"};
  for (size_t i = 0; i < 3; i++) {
    quay_allocator *const gpu = gpu_open(specs[i]);
    for (uint64_t alignment = 1; alignment <= (UINT64_C(1) << 22); alignment *= 4) {
      const quay_alloc_options options = {.alignment = alignment};
      quay_buffer *const buffer = gpu_buffer(gpu, 1001, GPU_OLD, &options);
      uint64_t address = 0;
      CHECK_OK(quay_buffer_address(buffer, &address));
      cr_assert_eq(address % alignment, 0, "%s, %llu", specs[i], (unsigned long long)alignment);
      cr_assert_eq(address % 256, 0);
      gpu_expect(buffer, GPU_OLD);
      quay_buffer_release(buffer);
    }
  }
}

Test(gpu_memory, zeroed_memory_is_zero_to_a_kernel_after_dirty_memory_was_freed) {
  gpu_begin();
  static const char *const specs[] = {"cuda:0", "cuda:0,memory=pinned", "cuda:0,memory=managed"};
  for (size_t kind = 0; kind < 3; kind++) {
    quay_allocator *const gpu = gpu_open(specs[kind]);
    quay_stream *const stream = gpu_stream(gpu);
    for (int i = 0; i < 3; i++)
      quay_buffer_release(gpu_buffer(gpu, GPU_WORDS, GPU_NEW, NULL));
    const int64_t shape = (int64_t)GPU_WORDS;
    quay_buffer *zeroed = NULL;
    CHECK_OK(quay_buffer_create_zeroed(gpu, QUAY_U32, 1, &shape, &zeroed));
    quay_buffer *const to = gpu_buffer(gpu, GPU_WORDS, GPU_OLD, NULL);
    gpu_read(stream, zeroed, to, GPU_AT_ONCE);
    uint32_t *const found = malloc(GPU_WORDS * 4);
    memset(found, 0xee, GPU_WORDS * 4);
    CHECK_OK(quay_buffer_copy_out(to, found, GPU_WORDS * 4));
    for (uint64_t i = 0; i < GPU_WORDS; i++)
      cr_assert_eq(found[i], 0, "%s: word %llu", specs[kind], (unsigned long long)i);
    free(found);
    quay_buffer_release(zeroed);
    quay_buffer_release(to);
  }
}

/* Mirrors. */

Test(gpu_memory, a_flushed_mirror_is_what_a_kernel_reads_and_an_invalidated_one_what_it_wrote) {
  gpu_begin();
  quay_allocator *const gpu = gpu_open("cuda:0");
  quay_stream *const stream = gpu_stream(gpu);
  const quay_alloc_options options = {.mirror = true};
  quay_buffer *const buffer = gpu_buffer(gpu, GPU_WORDS, GPU_OLD, &options);
  quay_buffer *const to = gpu_buffer(gpu, GPU_WORDS, GPU_ODD, NULL);
  void *pointer = NULL;
  CHECK_OK(quay_cuda_mirror_pointer(buffer, &pointer));
  uint32_t *const twin = pointer;
  for (uint64_t i = 0; i < GPU_WORDS; i++)
    twin[i] = gpu_word(i, GPU_NEW);
  gpu_read(stream, buffer, to, GPU_ASLEEP);
  CHECK_OK(quay_cuda_mirror_flush(buffer)); /* after the kernel that reads */
  gpu_expect(to, GPU_OLD);
  gpu_read(stream, buffer, to, GPU_AT_ONCE);
  gpu_expect(to, GPU_NEW);
  gpu_write(stream, buffer, GPU_ODD, GPU_ASLEEP);
  CHECK_OK(quay_cuda_mirror_invalidate(buffer)); /* after the kernel that writes */
  for (uint64_t i = 0; i < GPU_WORDS; i++)
    cr_assert_eq(twin[i], gpu_word(i, GPU_ODD), "word %llu", (unsigned long long)i);
  quay_buffer_release(to);
  quay_buffer_release(buffer);
}

/* Beside other code that calls the driver. */

static int released;

static void free_raw(void *user, void *memory, uint64_t size) {
  (void)user;
  (void)size;
  released++;
  if (gpu_enter(0) == CUDA_SUCCESS) {
    (void)cu->cuMemFree_v2((CUdeviceptr)(uintptr_t)memory);
    (void)gpu_leave();
  }
}

Test(gpu_memory, memory_of_the_drivers_is_adopted_used_and_given_to_its_callback) {
  gpu_begin();
  quay_allocator *const gpu = gpu_open("cuda:0");
  quay_stream *const stream = gpu_stream(gpu);
  CUdeviceptr pointer = 0;
  static uint32_t words[GPU_WORDS];
  released = 0;
  for (uint64_t i = 0; i < GPU_WORDS; i++)
    words[i] = gpu_word(i, GPU_OLD);
  CU_OK(gpu_enter(0));
  CU_OK(cu->cuMemAlloc_v2(&pointer, sizeof words));
  CU_OK(cu->cuMemcpyHtoD_v2(pointer, words, sizeof words));
  CU_OK(cu->cuCtxSynchronize());
  quay_raw_buffer raw;
  quay_buffer *buffer = NULL;
  const int64_t shape = (int64_t)GPU_WORDS;
  CHECK_OK(quay_cuda_adopt(gpu, pointer, sizeof words, free_raw, NULL, &raw));
  CHECK_OK(quay_buffer_from_raw(&raw, QUAY_U32, 1, &shape, &buffer));
  gpu_expect(buffer, GPU_OLD);
  uint64_t address = 0;
  CHECK_OK(quay_cuda_pointer(buffer, &address));
  cr_assert_eq(address, pointer);
  gpu_write(stream, buffer, GPU_NEW, GPU_ASLEEP);
  CHECK_OK(quay_buffer_synchronize(buffer));
  CU_OK(cu->cuMemcpyDtoH_v2(words, pointer, sizeof words));
  for (uint64_t i = 0; i < GPU_WORDS; i++)
    cr_assert_eq(words[i], gpu_word(i, GPU_NEW), "word %llu", (unsigned long long)i);
  gpu_write(stream, buffer, GPU_ODD, 0);
  quay_buffer_release(buffer);
  cr_assert_eq(released, 0, "given back before the kernel is done");
  gpu_gate_open(0);
  CHECK_OK(quay_stream_synchronize(stream));
  CHECK_OK(quay_collect(NULL));
  cr_assert_eq(released, 1);
  CU_OK(gpu_leave());
}

Test(gpu_memory, memory_that_quay_releases_is_freed_by_the_driver) {
  static const struct {
    const char *spec;
    bool ordered;
  } kinds[] = {{"cuda:0", false},
               {"cuda:0", true},
               {"cuda:0,memory=pinned", false},
               {"cuda:0,memory=managed", false}};
  gpu_begin();
  CU_OK(gpu_enter(0));
  for (size_t i = 0; i < 4; i++) {
    quay_allocator *const gpu = gpu_open(kinds[i].spec);
    const quay_alloc_options options = {.stream = kinds[i].ordered ? gpu_stream(gpu) : NULL};
    quay_buffer *buffer = gpu_buffer(gpu, GPU_WORDS, GPU_NEW, &options);
    quay_raw_buffer raw;
    quay_cuda_memory memory;
    CHECK_OK(quay_buffer_release_raw(&buffer, &raw));
    CHECK_OK(quay_cuda_release(&raw, &memory));
    cr_assert_eq(memory.size, GPU_WORDS * 4);
    quay_stats stats;
    CHECK_OK(quay_allocator_stats(gpu, &stats));
    cr_assert_eq(stats.live_count, 0);
    static uint32_t words[GPU_WORDS];
    CU_OK(cu->cuMemcpyDtoH_v2(words, memory.pointer, sizeof words));
    for (uint64_t w = 0; w < GPU_WORDS; w++) {
      cr_assert_eq(words[w], gpu_word(w, GPU_NEW), "%s: word %llu", kinds[i].spec,
                   (unsigned long long)w);
    }
    if (i == 2) {
      CU_OK(cu->cuMemFreeHost((void *)(uintptr_t)memory.pointer));
    } else {
      CU_OK(cu->cuMemFree_v2(memory.pointer));
    }
  }
  CU_OK(gpu_leave());
}

/* Threads. */

static void *copy_to_and_fro(void *number) {
  const uint32_t seed = (uint32_t)(uintptr_t)number * 0x01010107u + GPU_OLD;
  quay_allocator *gpu = NULL;
  CHECK_OK(quay_allocator_open("cuda:0", &gpu));
  for (uint32_t round = 0; round < 12; round++) {
    quay_buffer *const buffer =
        gpu_buffer(gpu, round % 2 == 0 ? GPU_WORDS : 1000 + round, seed + round, NULL);
    gpu_expect(buffer, seed + round);
    quay_buffer_release(buffer);
  }
  quay_allocator_release(gpu);
  return NULL;
}

Test(gpu_memory, threads_copy_at_once_each_its_own_bytes) {
  enum {
    THREADS = 8
  };
  gpu_begin();
  pthread_t threads[THREADS];
  for (uintptr_t i = 0; i < THREADS; i++)
    cr_assert_eq(pthread_create(&threads[i], NULL, copy_to_and_fro, (void *)i), 0);
  for (int i = 0; i < THREADS; i++)
    cr_assert_eq(pthread_join(threads[i], NULL), 0);
}
