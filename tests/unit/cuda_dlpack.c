/* Tensors of CUDA memory through DLPack, both ways, on the simulated driver. The other library is
 * played by the driver's own functions. Exchange with real libraries is tests/python. */
#include <stdatomic.h>

#include "cuda/driver.h"
#include "cuda_fixture.h"

enum {
  COUNT = 3000, /* of 32-bit elements */
  SIZE = 4 * COUNT,
  PIECE = 2 << 20,
};

TestSuite(cuda_dlpack, .init = find_driver, .fini = teardown);

/* A tensor of another library's: an I32 one of shape [3, 1000]. */
typedef struct producer {
  quay_dl_managed_tensor_versioned tensor;
  int64_t shape[2];
  atomic_int deletes;
} producer;

static void count_delete(quay_dl_managed_tensor_versioned *self) {
  atomic_fetch_add(&((producer *)self->manager_ctx)->deletes, 1);
}

static producer make_producer(quay_dl_device_type type, int32_t device, uint64_t pointer) {
  return (producer){
      .shape = {3, COUNT / 3},
      .tensor =
          {
              .version = {1, 0},
              .deleter = count_delete,
              .dl_tensor =
                  {
                      .data = (void *)(uintptr_t)pointer,
                      .device = {.device_type = (int32_t)type, .device_id = device},
                      .ndim = 2,
                      .dtype = {.code = QUAY_DL_INT, .bits = 32, .lanes = 1},
                  },
          },
  };
}

/* The pointers into the structure itself are set where it stays. */
static quay_status import_from(producer *from, const quay_dlpack_import_options *options,
                               quay_buffer **out_buffer) {
  from->tensor.manager_ctx = from;
  from->tensor.dl_tensor.shape = from->shape;
  return quay_dlpack_import(&from->tensor, options, out_buffer);
}

/* The other library's context of device 0, current while it has memory. */
static const quay__cuda_api *enter_library(void) {
  const quay__cuda_api *api = NULL;
  void *context = NULL;
  CHECK_OK(quay__cuda_start(&api));
  cr_assert_eq(raw.retain(&context, 0), 0);
  cr_assert_eq(raw.ctx_push(context), 0);
  return api;
}

static void leave_library(void) {
  void *context = NULL;
  cr_assert_eq(raw.ctx_pop(&context), 0);
  cr_assert_eq(raw.release(0), 0);
}

/* Export. */

Test(cuda_dlpack, an_exported_tensor_tells_its_kind_of_memory_and_device) {
  setup();
  static const struct {
    const char *spec;
    int32_t type, device;
  } cases[] = {
      {"cuda:0", QUAY_DL_CUDA, 0},
      {"cuda:1", QUAY_DL_CUDA, 1},
      {"cuda:1,memory=pinned", QUAY_DL_CUDA_HOST, 0},
      {"cuda:0,memory=managed", QUAY_DL_CUDA_MANAGED, 0},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    quay_allocator *allocator = open_spec(cases[i].spec);
    quay_buffer *buffer = make_buffer(allocator, 100, NULL);
    quay_dl_managed_tensor_versioned *tensor = NULL;
    uint64_t address;
    CHECK_OK(quay_cuda_pointer(buffer, &address));
    CHECK_OK(quay_dlpack_export(buffer, NULL, &tensor));
    cr_expect_eq(tensor->dl_tensor.device.device_type, cases[i].type, "%s", cases[i].spec);
    cr_expect_eq(tensor->dl_tensor.device.device_id, cases[i].device, "%s", cases[i].spec);
    cr_expect_eq((uint64_t)(uintptr_t)tensor->dl_tensor.data, address);
    tensor->deleter(tensor);
    quay_buffer_release(buffer);
    quay_allocator_release(allocator);
  }
}

Test(cuda_dlpack, a_consumers_work_on_its_stream_is_waited_for_by_the_memorys_free) {
  setenv("SIMCUDA_SCHEDULE", "manual", 1); /* nothing runs before somebody waits for it */
  setup();
  quay_allocator *allocator = open_spec("cuda:0");
  quay_stream *stream = NULL;
  CHECK_OK(quay_stream_create(quay_allocator_device(allocator), NULL, &stream));
  quay_buffer *buffer = make_buffer(allocator, SIZE, NULL);
  const quay_dlpack_export_options options = {.stream = stream};
  quay_dl_managed_tensor_versioned *tensor = NULL;
  CHECK_OK(quay_dlpack_export(buffer, &options, &tensor));
  quay_buffer_release(buffer);
  const quay__cuda_api *api = enter_library();
  cr_assert_eq(api->cuMemsetD8Async((uint64_t)(uintptr_t)tensor->dl_tensor.data, 0x2f, SIZE,
                                    (quay__cu_stream)(uintptr_t)quay_cuda_stream(stream)),
               0);
  leave_library();
  const uint64_t freed = raw.control->calls("cuMemFree_v2");
  tensor->deleter(tensor);
  CHECK_OK(quay_allocator_trim(allocator, NULL));
  cr_assert_eq(raw.control->calls("cuMemFree_v2"), freed);
  raw.control->run_all();
  CHECK_OK(quay_collect(NULL));
  CHECK_OK(quay_allocator_trim(allocator, NULL));
  cr_assert_eq(raw.control->calls("cuMemFree_v2"), freed + 1);
  quay_stream_release(stream);
  quay_allocator_release(allocator);
}

/* Import. */

Test(cuda_dlpack, an_imported_tensor_is_used_in_place_and_deleted_once_with_the_buffer) {
  setup();
  const quay__cuda_api *api = enter_library();
  uint64_t pointer = 0;
  cr_assert_eq(api->cuMemAlloc(&pointer, SIZE + 64), 0);
  producer from = make_producer(QUAY_DL_CUDA, 0, pointer);
  from.tensor.dl_tensor.byte_offset = 64;
  quay_buffer *buffer = NULL;
  CHECK_OK(import_from(&from, NULL, &buffer));
  uint64_t address;
  CHECK_OK(quay_cuda_pointer(buffer, &address));
  cr_assert_eq(address, pointer + 64);
  cr_assert_eq(quay_buffer_dtype(buffer), QUAY_I32);
  cr_assert_arr_eq(quay_buffer_shape(buffer), from.shape, sizeof from.shape);
  cr_assert_str_eq(quay_allocator_spec(quay_buffer_allocator(buffer)), "cuda:0");
  quay_test_block bytes = quay_test_block_make(SIZE, 1, 91);
  unsigned char *found = malloc(SIZE);
  CHECK_OK(quay_buffer_copy_in(buffer, bytes.data, SIZE));
  cr_assert(raw.control->peek(pointer + 64, found, SIZE));
  cr_assert_arr_eq(found, bytes.data, SIZE);
  check_bytes(buffer, bytes.data);
  quay_buffer *view = NULL;
  CHECK_OK(quay_buffer_view(buffer, 8, 16, &view));
  quay_buffer_release(buffer);
  cr_assert_eq(from.deletes, 0);
  check_bytes(view, bytes.data + 8);
  quay_buffer_release(view);
  cr_assert_eq(from.deletes, 1);
  cr_assert_eq(api->cuMemFree(pointer), 0);
  leave_library();
  free(found);
  quay_test_block_free(&bytes);
}

Test(cuda_dlpack, a_tensor_is_not_deleted_before_the_work_on_it_is_done) {
  setenv("SIMCUDA_SCHEDULE", "manual", 1);
  setup();
  const quay__cuda_api *api = enter_library();
  uint64_t pointer = 0;
  cr_assert_eq(api->cuMemAlloc(&pointer, SIZE), 0);
  producer from = make_producer(QUAY_DL_CUDA, 0, pointer);
  quay_buffer *buffer = NULL;
  CHECK_OK(import_from(&from, NULL, &buffer));
  quay_stream *stream = NULL;
  CHECK_OK(quay_stream_create(quay_buffer_device(buffer), NULL, &stream));
  CHECK_OK(quay_buffer_fill_on(buffer, "abcd", 4, stream));
  quay_buffer_release(buffer);
  CHECK_OK(quay_collect(NULL));
  cr_assert_eq(from.deletes, 0);
  CHECK_OK(quay_stream_synchronize(stream));
  CHECK_OK(quay_collect(NULL));
  cr_assert_eq(from.deletes, 1);
  quay_stream_release(stream);
  cr_assert_eq(api->cuMemFree(pointer), 0);
  leave_library();
}

Test(cuda_dlpack, pinned_and_managed_tensors_are_reached_by_the_host) {
  setup();
  const quay__cuda_api *api = enter_library();
  void *pinned = NULL;
  uint64_t managed = 0;
  cr_assert_eq(api->cuMemHostAlloc(&pinned, SIZE, 1), 0);
  cr_assert_eq(api->cuMemAllocManaged(&managed, SIZE, 1), 0);
  producer producers[] = {
      make_producer(QUAY_DL_CUDA_HOST, 0, (uint64_t)(uintptr_t)pinned),
      make_producer(QUAY_DL_CUDA_MANAGED, 0, managed),
  };
  static const quay_memory_kind kinds[] = {QUAY_MEMORY_PINNED, QUAY_MEMORY_MANAGED};
  quay_test_block bytes = quay_test_block_make(SIZE, 1, 92);
  for (size_t i = 0; i < 2; i++) {
    quay_buffer *buffer = NULL;
    CHECK_OK(import_from(&producers[i], NULL, &buffer));
    cr_assert_eq(quay_buffer_kind(buffer), kinds[i]);
    CHECK_OK(quay_buffer_copy_in(buffer, bytes.data, SIZE));
    const void *host = NULL;
    uint64_t size = 0;
    CHECK_OK(quay_buffer_host_bytes(buffer, &host, &size));
    cr_assert_eq(host, producers[i].tensor.dl_tensor.data);
    cr_assert_arr_eq((const unsigned char *)host, bytes.data, SIZE);
    quay_buffer_release(buffer);
    cr_assert_eq(producers[i].deletes, 1);
  }
  cr_assert_eq(api->cuMemFreeHost(pinned), 0);
  cr_assert_eq(api->cuMemFree(managed), 0);
  leave_library();
  quay_test_block_free(&bytes);
}

Test(cuda_dlpack, a_read_only_tensor_gives_a_sealed_buffer) {
  setup();
  const quay__cuda_api *api = enter_library();
  uint64_t pointer = 0;
  cr_assert_eq(api->cuMemAlloc(&pointer, SIZE), 0);
  producer from = make_producer(QUAY_DL_CUDA, 0, pointer);
  from.tensor.flags = QUAY_DL_FLAG_READ_ONLY;
  quay_buffer *buffer = NULL;
  CHECK_OK(import_from(&from, NULL, &buffer));
  cr_assert(quay_buffer_is_sealed(buffer));
  CHECK_FAILS(quay_buffer_fill(buffer, "abcd", 4), QUAY_STATUS_READ_ONLY);
  quay_buffer_release(buffer);
  cr_assert_eq(from.deletes, 1);
  cr_assert_eq(api->cuMemFree(pointer), 0);
  leave_library();
}

Test(cuda_dlpack, an_empty_tensor_without_data_is_imported) {
  setup();
  producer from = make_producer(QUAY_DL_CUDA, 0, 0);
  from.shape[1] = 0;
  quay_buffer *buffer = NULL;
  CHECK_OK(import_from(&from, NULL, &buffer));
  cr_assert_eq(quay_buffer_size(buffer), 0);
  cr_assert_eq(quay_buffer_kind(buffer), QUAY_MEMORY_DEVICE);
  CHECK_OK(quay_buffer_copy_in(buffer, "", 0));
  quay_buffer_release(buffer);
  cr_assert_eq(from.deletes, 1);
}

Test(cuda_dlpack, the_default_allocator_owns_what_it_could_have_made) {
  setup();
  const quay__cuda_api *api = enter_library();
  uint64_t pointer = 0;
  cr_assert_eq(api->cuMemAlloc(&pointer, SIZE), 0);
  static const char *const specs[] = {"track+cuda:0", "cuda:1", "track+cuda:0,memory=pinned",
                                      "cpu"};
  static const char *const owners[] = {"track+cuda:0", "cuda:0", "cuda:0", "cuda:0"};
  for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) {
    quay_allocator *allocator = open_spec(specs[i]);
    CHECK_OK(quay_default_allocator_push(allocator));
    producer from = make_producer(QUAY_DL_CUDA, 0, pointer);
    quay_buffer *buffer = NULL;
    CHECK_OK(import_from(&from, NULL, &buffer));
    cr_expect_str_eq(quay_allocator_spec(quay_buffer_allocator(buffer)), owners[i]);
    quay_buffer_release(buffer);
    quay_default_allocator_pop();
    quay_allocator_release(allocator);
  }
  cr_assert_eq(api->cuMemFree(pointer), 0);
  leave_library();
}

/* The tensor is still the caller's. */
static void check_refused(producer *from, const quay_dlpack_import_options *options,
                          quay_status expected, const char *message) {
  quay_buffer *buffer = (quay_buffer *)from;
  CHECK_FAILS(import_from(from, options, &buffer), expected);
  CHECK_MESSAGE(message);
  cr_assert_null(buffer);
  cr_assert_eq(from->deletes, 0);
}

Test(cuda_dlpack, a_tensor_that_is_not_what_it_says_is_refused_and_not_deleted) {
  setup();
  const quay__cuda_api *api = enter_library();
  uint64_t pointer = 0;
  unsigned char host[SIZE] = {1};
  cr_assert_eq(api->cuMemAlloc(&pointer, SIZE), 0);
  producer from = make_producer(QUAY_DL_CUDA, 0, (uint64_t)(uintptr_t)host);
  check_refused(&from, NULL, QUAY_STATUS_INVALID_ARGUMENT, "knows of no memory");
  from = make_producer(QUAY_DL_CUDA, 1, pointer);
  check_refused(&from, NULL, QUAY_STATUS_INVALID_ARGUMENT, "it is device memory of cuda:0");
  from = make_producer(QUAY_DL_CUDA_HOST, 0, pointer);
  check_refused(&from, NULL, QUAY_STATUS_INVALID_ARGUMENT, "the allocator's is pinned memory");
  from = make_producer(QUAY_DL_CUDA, 0, pointer);
  from.shape[0] = 4;
  check_refused(&from, NULL, QUAY_STATUS_OUT_OF_RANGE, "reach out");
  from = make_producer(QUAY_DL_CUDA, 7, pointer);
  check_refused(&from, NULL, QUAY_STATUS_UNAVAILABLE, "no device cuda:7");
  from = make_producer(QUAY_DL_CUDA, -1, pointer);
  check_refused(&from, NULL, QUAY_STATUS_INVALID_ARGUMENT, "CUDA device -1; there are none");
  cr_assert_eq(api->cuMemFree(pointer), 0);
  leave_library();
}

Test(cuda_dlpack, an_allocator_of_other_memory_is_refused) {
  setup();
  const quay__cuda_api *api = enter_library();
  uint64_t pointer = 0;
  cr_assert_eq(api->cuMemAlloc(&pointer, SIZE), 0);
  static const char *const specs[] = {"cpu", "cuda:1", "cuda:0,memory=pinned"};
  for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) {
    const quay_dlpack_import_options options = {.allocator = open_spec(specs[i])};
    producer from = make_producer(QUAY_DL_CUDA, 0, pointer);
    check_refused(&from, &options, QUAY_STATUS_UNSUPPORTED, "makes other memory");
    quay_allocator_release(options.allocator);
  }
  cr_assert_eq(api->cuMemFree(pointer), 0);
  leave_library();
}

/* As PyTorch's expandable segments are: handles side by side in one reservation. */
Test(cuda_dlpack, a_tensor_over_memory_that_is_mapped_in_pieces_is_imported) {
  setup();
  const quay__cuda_api *api = enter_library();
  const quay__cu_memory_properties properties = {.type = 1, .location = {.type = 1, .id = 0}};
  const quay__cu_access access = {.location = {.type = 1, .id = 0}, .flags = 3};
  uint64_t pointer = 0;
  quay__cu_memory pieces[2];
  cr_assert_eq(api->cuMemAddressReserve(&pointer, 3 * (size_t)PIECE, 0, 0, 0), 0);
  for (size_t i = 0; i < 2; i++) {
    cr_assert_eq(api->cuMemCreate(&pieces[i], PIECE, &properties, 0), 0);
    cr_assert_eq(api->cuMemMap(pointer + i * PIECE, PIECE, 0, pieces[i], 0), 0);
  }
  cr_assert_eq(api->cuMemSetAccess(pointer, 2 * (size_t)PIECE, &access, 1), 0);
  const uint64_t begin = pointer + PIECE - SIZE / 2;
  producer from = make_producer(QUAY_DL_CUDA, 0, begin);
  quay_buffer *buffer = NULL;
  CHECK_OK(import_from(&from, NULL, &buffer));
  quay_test_block bytes = quay_test_block_make(SIZE, 1, 93);
  CHECK_OK(quay_buffer_copy_in(buffer, bytes.data, SIZE));
  check_bytes(buffer, bytes.data);
  quay_buffer_release(buffer);
  from = make_producer(QUAY_DL_CUDA, 0, pointer + 2 * (uint64_t)PIECE - SIZE + 4);
  check_refused(&from, NULL, QUAY_STATUS_OUT_OF_RANGE, "reach out");
  cr_assert_eq(api->cuMemUnmap(pointer, 2 * (size_t)PIECE), 0);
  for (size_t i = 0; i < 2; i++)
    cr_assert_eq(api->cuMemRelease(pieces[i]), 0);
  cr_assert_eq(api->cuMemAddressFree(pointer, 3 * (size_t)PIECE), 0);
  leave_library();
  quay_test_block_free(&bytes);
}

/* There and back. */

Test(cuda_dlpack, what_quay_exports_it_imports_again_and_the_memory_lives_as_long_as_either) {
  setup();
  static const char *const specs[] = {"cuda:0", "cuda:0,memory=pinned", "cuda:0,memory=managed"};
  quay_test_block bytes = quay_test_block_make(SIZE, 1, 94);
  for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) {
    quay_allocator *allocator = open_spec(specs[i]);
    quay_buffer *buffer = make_buffer(allocator, SIZE, NULL), *back = NULL;
    CHECK_OK(quay_buffer_copy_in(buffer, bytes.data, SIZE));
    uint64_t address, there;
    CHECK_OK(quay_buffer_address(buffer, &address));
    quay_dl_managed_tensor_versioned *tensor = NULL;
    CHECK_OK(quay_dlpack_export(buffer, NULL, &tensor));
    quay_buffer_release(buffer);
    CHECK_OK(quay_dlpack_import(tensor, NULL, &back));
    CHECK_OK(quay_buffer_address(back, &there));
    cr_assert_eq(there, address);
    check_bytes(back, bytes.data);
    quay_stats stats;
    CHECK_OK(quay_allocator_stats(allocator, &stats));
    cr_assert_eq(stats.live_count, 1);
    quay_buffer_release(back);
    CHECK_OK(quay_allocator_stats(allocator, &stats));
    cr_assert_eq(stats.live_count, 0);
    quay_allocator_release(allocator);
  }
  quay_test_block_free(&bytes);
}
