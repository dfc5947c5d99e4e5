/* DLPack, outwards: what exported tensors say, and how long they live. Exchange with real libraries
 * is tests/python. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <quay/quay.h>
#include <stdatomic.h>
#include <string.h>

#include "support/failing_allocations.h"

static quay_allocator *cpu;

static void open_cpu(void) {
  cr_assert_eq(quay_allocator_open("cpu", &cpu), QUAY_OK);
}

static void close_cpu(void) {
  quay_allocator_release(cpu);
}

TestSuite(dlpack_export, .init = open_cpu, .fini = close_cpu);

static void fill(void *bytes, uint64_t size, uint64_t seed) {
  for (uint64_t i = 0; i < size; i++)
    ((uint8_t *)bytes)[i] = (uint8_t)(1 + (i * 31 + seed * 17) % 251);
}

static quay_buffer *make_buffer(quay_dtype dtype, int32_t rank, const int64_t *shape) {
  quay_buffer *buffer = NULL;
  cr_assert_eq(quay_buffer_create(cpu, dtype, rank, shape, NULL, &buffer), QUAY_OK);
  void *bytes = NULL;
  uint64_t size = 0;
  cr_assert_eq(quay_buffer_host_bytes_mut(buffer, &bytes, &size), QUAY_OK);
  fill(bytes, size, (uint64_t)dtype);
  return buffer;
}

static quay_dl_managed_tensor_versioned *export_versioned(quay_buffer *buffer) {
  quay_dl_managed_tensor_versioned *tensor = NULL;
  cr_assert_eq(quay_dlpack_export(buffer, NULL, &tensor), QUAY_OK, "%s",
               quay_last_error()->message);
  cr_assert_not_null(tensor);
  return tensor;
}

/* Memory whose release is counted. */
static atomic_int releases;
static uint8_t lent[96];

static void count_release(void *user, void *memory, uint64_t size) {
  cr_expect_eq(user, (void *)&releases);
  cr_expect_eq(memory, (void *)lent);
  cr_expect_eq(size, sizeof lent);
  atomic_fetch_add(&releases, 1);
}

static quay_buffer *make_counted(void) {
  fill(lent, sizeof lent, 5);
  atomic_store(&releases, 0);
  const quay_host_memory memory = {
      .pointer = lent, .size = sizeof lent, .release = count_release, .user = &releases};
  quay_buffer *buffer = NULL;
  cr_assert_eq(quay_buffer_adopt_host(cpu, QUAY_F32, 2, (int64_t[]){4, 6}, &memory, &buffer),
               QUAY_OK);
  return buffer;
}

static void expect_bytes(const quay_buffer *buffer, const void *expected, uint64_t size) {
  uint8_t got[512];
  cr_assert_leq(size, sizeof got);
  memset(got, 0, sizeof got);
  cr_assert_eq(quay_buffer_size(buffer), size);
  cr_assert_eq(quay_buffer_copy_out(buffer, got, size), QUAY_OK);
  cr_expect_arr_eq(got, expected, size);
}

/* Export: what the tensor says. */

/* Codes and bits as they stand in dlpack.h 1.2, DLDataTypeCode. */
static const struct {
  quay_dtype dtype;
  uint8_t code, bits;
} codes[] = {
    {QUAY_BOOL, 6, 8}, {QUAY_U8, 1, 8},       {QUAY_I8, 0, 8},       {QUAY_U16, 1, 16},
    {QUAY_I16, 0, 16}, {QUAY_U32, 1, 32},     {QUAY_I32, 0, 32},     {QUAY_U64, 1, 64},
    {QUAY_I64, 0, 64}, {QUAY_F16, 2, 16},     {QUAY_BF16, 4, 16},    {QUAY_F32, 2, 32},
    {QUAY_F64, 2, 64}, {QUAY_F8_E4M3, 10, 8}, {QUAY_F8_E5M2, 12, 8}, {QUAY_F8_E8M0, 14, 8},
    {QUAY_C64, 5, 64}, {QUAY_C128, 5, 128},
};
enum {
  CODE_COUNT = sizeof codes / sizeof codes[0]
};

Test(dlpack_export, every_dtype_has_the_code_of_the_specification) {
  int dtypes = 0;
#define COUNT(name, value, bits, alignment, text) dtypes++;
  QUAY_DTYPE_TABLE(COUNT)
#undef COUNT
  cr_assert_eq(dtypes, CODE_COUNT, "a dtype is missing in this test's table");
  for (int i = 0; i < CODE_COUNT; i++) {
    quay_buffer *buffer = make_buffer(codes[i].dtype, 1, (int64_t[]){3});
    quay_dl_managed_tensor_versioned *tensor = export_versioned(buffer);
    const quay_dl_dtype type = tensor->dl_tensor.dtype;
    cr_expect_eq(type.code, codes[i].code, "%s", quay_dtype_name(codes[i].dtype));
    cr_expect_eq(type.bits, codes[i].bits, "%s", quay_dtype_name(codes[i].dtype));
    cr_expect_eq(type.lanes, 1);
    tensor->deleter(tensor);
    quay_buffer_release(buffer);
  }
}

Test(dlpack_export, every_dtype_comes_back_from_a_versioned_tensor_without_a_copy) {
  for (int i = 0; i < CODE_COUNT; i++) {
    quay_buffer *buffer = make_buffer(codes[i].dtype, 2, (int64_t[]){3, 2});
    quay_buffer *back = NULL;
    cr_assert_eq(quay_dlpack_import(export_versioned(buffer), NULL, &back), QUAY_OK, "%s",
                 quay_last_error()->message);
    cr_expect_eq(quay_buffer_dtype(back), codes[i].dtype);
    cr_expect_eq(quay_buffer_rank(back), 2);
    cr_expect_arr_eq(quay_buffer_shape(back), ((int64_t[]){3, 2}), 2 * sizeof(int64_t));
    uint64_t ours = 0;
    uint64_t theirs = 1;
    cr_assert_eq(quay_buffer_address(buffer, &ours), QUAY_OK);
    cr_assert_eq(quay_buffer_address(back, &theirs), QUAY_OK);
    cr_expect_eq(ours, theirs);
    uint8_t expected[96];
    fill(expected, sizeof expected, (uint64_t)codes[i].dtype);
    quay_buffer_release(buffer);
    expect_bytes(back, expected, 6 * quay_dtype_size(codes[i].dtype));
    quay_buffer_release(back);
  }
}

Test(dlpack_export, every_dtype_comes_back_from_an_unversioned_tensor_without_a_copy) {
  for (int i = 0; i < CODE_COUNT; i++) {
    quay_buffer *buffer = make_buffer(codes[i].dtype, 2, (int64_t[]){3, 2});
    quay_dl_managed_tensor *tensor = NULL;
    cr_assert_eq(quay_dlpack_export_unversioned(buffer, NULL, &tensor), QUAY_OK);
    quay_buffer *back = NULL;
    cr_assert_eq(quay_dlpack_import_unversioned(tensor, NULL, &back), QUAY_OK);
    cr_expect_eq(quay_buffer_dtype(back), codes[i].dtype);
    uint8_t expected[96];
    fill(expected, sizeof expected, (uint64_t)codes[i].dtype);
    quay_buffer_release(buffer);
    expect_bytes(back, expected, 6 * quay_dtype_size(codes[i].dtype));
    quay_buffer_release(back);
  }
}

Test(dlpack_export, an_exported_tensor_is_compact_versioned_and_on_the_host) {
  quay_buffer *buffer = make_buffer(QUAY_I16, 3, (int64_t[]){2, 3, 5});
  quay_dl_managed_tensor_versioned *tensor = export_versioned(buffer);
  cr_expect_eq(tensor->version.major, 1);
  cr_expect_eq(tensor->version.minor, 2);
  cr_expect_eq(tensor->flags, 0);
  cr_expect(tensor->deleter != NULL);
  cr_expect_eq(tensor->dl_tensor.device.device_type, 1);
  cr_expect_eq(tensor->dl_tensor.device.device_id, 0);
  cr_expect_eq(tensor->dl_tensor.ndim, 3);
  cr_expect_arr_eq(tensor->dl_tensor.shape, ((int64_t[]){2, 3, 5}), 3 * sizeof(int64_t));
  cr_expect_arr_eq(tensor->dl_tensor.strides, ((int64_t[]){15, 5, 1}), 3 * sizeof(int64_t));
  cr_expect_eq(tensor->dl_tensor.byte_offset, 0);
  tensor->deleter(tensor);
  quay_buffer_release(buffer);
}

Test(dlpack_export, a_view_is_exported_from_its_own_first_byte) {
  quay_buffer *buffer = make_buffer(QUAY_U8, 1, (int64_t[]){64});
  quay_buffer *view = NULL;
  cr_assert_eq(quay_buffer_view_unaligned(buffer, 7, QUAY_I32, 1, (int64_t[]){5}, &view), QUAY_OK);
  quay_dl_managed_tensor_versioned *tensor = export_versioned(view);
  const void *base = NULL;
  cr_assert_eq(quay_buffer_host_bytes(buffer, &base, NULL), QUAY_OK);
  cr_expect_eq(tensor->dl_tensor.data, (const uint8_t *)base + 7);
  cr_expect_eq(tensor->dl_tensor.byte_offset, 0);
  cr_expect_eq(tensor->dl_tensor.shape[0], 5);
  tensor->deleter(tensor);
  quay_buffer_release(view);
  quay_buffer_release(buffer);
}

Test(dlpack_export, a_scalar_goes_out_and_comes_back) {
  quay_buffer *buffer = make_buffer(QUAY_F64, 0, NULL);
  quay_dl_managed_tensor_versioned *tensor = export_versioned(buffer);
  cr_expect_eq(tensor->dl_tensor.ndim, 0);
  cr_expect_not_null(tensor->dl_tensor.shape);
  cr_expect_not_null(tensor->dl_tensor.strides);
  tensor->dl_tensor.shape = NULL;
  tensor->dl_tensor.strides = NULL;
  quay_buffer *back = NULL;
  cr_assert_eq(quay_dlpack_import(tensor, NULL, &back), QUAY_OK);
  cr_expect_eq(quay_buffer_rank(back), 0);
  double ours = 1;
  double theirs = 2;
  cr_assert_eq(quay_buffer_item(buffer, QUAY_F64, &ours), QUAY_OK);
  cr_assert_eq(quay_buffer_item(back, QUAY_F64, &theirs), QUAY_OK);
  cr_expect_arr_eq(&ours, &theirs, sizeof ours);
  quay_buffer_release(back);
  quay_buffer_release(buffer);
}

Test(dlpack_export, an_empty_buffer_goes_out_with_an_address_and_comes_back) {
  const int64_t shape[] = {3, 0, INT64_MAX, 4};
  quay_buffer *buffer = NULL;
  cr_assert_eq(quay_buffer_create(cpu, QUAY_F32, 4, shape, NULL, &buffer), QUAY_OK);
  quay_dl_managed_tensor_versioned *tensor = export_versioned(buffer);
  cr_expect_not_null(tensor->dl_tensor.data);
  for (int i = 0; i < 4; i++)
    cr_expect_gt(tensor->dl_tensor.strides[i], 0);
  quay_buffer *back = NULL;
  cr_assert_eq(quay_dlpack_import(tensor, NULL, &back), QUAY_OK, "%s", quay_last_error()->message);
  cr_expect_eq(quay_buffer_size(back), 0);
  cr_expect_arr_eq(quay_buffer_shape(back), shape, sizeof shape);
  const void *bytes = NULL;
  cr_assert_eq(quay_buffer_host_bytes(back, &bytes, NULL), QUAY_OK);
  cr_expect_not_null(bytes);
  quay_buffer_release(back);
  quay_buffer_release(buffer);
}

Test(dlpack_export, a_lazy_buffer_is_not_exported_before_it_is_written) {
  quay_buffer *buffer = NULL;
  cr_assert_eq(quay_buffer_create_lazy(cpu, QUAY_U8, 1, (int64_t[]){9}, NULL, &buffer), QUAY_OK);
  quay_dl_managed_tensor_versioned *tensor = (quay_dl_managed_tensor_versioned *)buffer;
  cr_expect_eq(quay_dlpack_export(buffer, NULL, &tensor), QUAY_STATUS_NOT_ALLOCATED);
  cr_expect_null(tensor);
  quay_dl_managed_tensor *unversioned = (quay_dl_managed_tensor *)buffer;
  cr_expect_eq(quay_dlpack_export_unversioned(buffer, NULL, &unversioned),
               QUAY_STATUS_NOT_ALLOCATED);
  cr_expect_null(unversioned);
  cr_assert_eq(quay_buffer_copy_in(buffer, "written..", 9), QUAY_OK);
  tensor = export_versioned(buffer);
  cr_expect_arr_eq(tensor->dl_tensor.data, "written..", 9);
  tensor->deleter(tensor);
  quay_buffer_release(buffer);
}

Test(dlpack_export, a_sealed_buffer_is_exported_with_the_read_only_flag) {
  quay_buffer *buffer = make_buffer(QUAY_U8, 1, (int64_t[]){9});
  cr_assert_eq(quay_buffer_seal(buffer), QUAY_OK);
  quay_dl_managed_tensor_versioned *tensor = export_versioned(buffer);
  cr_expect_eq(tensor->flags, 1);
  tensor->deleter(tensor);
  quay_buffer_release(buffer);
}

Test(dlpack_export, a_sealed_buffer_is_exported_unversioned_only_if_that_is_asked_for) {
  quay_buffer *buffer = make_buffer(QUAY_U8, 1, (int64_t[]){9});
  cr_assert_eq(quay_buffer_seal(buffer), QUAY_OK);
  quay_dl_managed_tensor *tensor = (quay_dl_managed_tensor *)buffer;
  cr_expect_eq(quay_dlpack_export_unversioned(buffer, NULL, &tensor), QUAY_STATUS_READ_ONLY);
  cr_expect_null(tensor);
  const quay_dlpack_export_options options = {.allow_unmarked_read_only = true};
  cr_assert_eq(quay_dlpack_export_unversioned(buffer, &options, &tensor), QUAY_OK);
  cr_expect_eq(tensor->dl_tensor.shape[0], 9);
  tensor->deleter(tensor);
  quay_buffer_release(buffer);
}

Test(dlpack_export, exporting_null_is_an_invalid_argument) {
  quay_buffer *buffer = make_buffer(QUAY_U8, 1, (int64_t[]){9});
  quay_dl_managed_tensor_versioned *versioned = (quay_dl_managed_tensor_versioned *)buffer;
  quay_dl_managed_tensor *unversioned = (quay_dl_managed_tensor *)buffer;
  cr_expect_eq(quay_dlpack_export(NULL, NULL, &versioned), QUAY_STATUS_INVALID_ARGUMENT);
  cr_expect_null(versioned);
  cr_expect_eq(quay_dlpack_export(buffer, NULL, NULL), QUAY_STATUS_INVALID_ARGUMENT);
  cr_expect_eq(quay_dlpack_export_unversioned(NULL, NULL, &unversioned),
               QUAY_STATUS_INVALID_ARGUMENT);
  cr_expect_null(unversioned);
  cr_expect_eq(quay_dlpack_export_unversioned(buffer, NULL, NULL), QUAY_STATUS_INVALID_ARGUMENT);
  quay_buffer_release(buffer);
}

Test(dlpack_export, a_mapped_file_is_exported_read_only_from_the_host) {
  quay_buffer *file = NULL;
  cr_assert_eq(quay_map_file(QUAY_TEST_DATA_DIR "/mixed.safetensors", NULL, &file), QUAY_OK);
  quay_dl_managed_tensor_versioned *tensor = export_versioned(file);
  cr_expect_eq(tensor->flags, 1);
  cr_expect_eq(tensor->dl_tensor.device.device_type, 1);
  uint8_t head[64];
  quay_buffer *view = NULL;
  cr_assert_eq(quay_buffer_view(file, 0, sizeof head, &view), QUAY_OK);
  cr_assert_eq(quay_buffer_copy_out(view, head, sizeof head), QUAY_OK);
  quay_buffer_release(view);
  quay_buffer_release(file);
  cr_expect_arr_eq(tensor->dl_tensor.data, head, sizeof head);
  tensor->deleter(tensor);
}

/* Export: how long it lives. */

Test(dlpack_export, an_exported_tensor_keeps_the_memory_until_its_deleter_runs) {
  quay_buffer *buffer = make_counted();
  quay_dl_managed_tensor_versioned *tensor = export_versioned(buffer);
  quay_buffer_release(buffer);
  cr_expect_eq(atomic_load(&releases), 0);
  uint8_t expected[sizeof lent];
  fill(expected, sizeof expected, 5);
  cr_expect_arr_eq(tensor->dl_tensor.data, expected, sizeof expected);
  tensor->deleter(tensor);
  cr_expect_eq(atomic_load(&releases), 1);
}

Test(dlpack_export, an_unversioned_tensor_keeps_the_memory_until_its_deleter_runs) {
  quay_buffer *buffer = make_counted();
  quay_dl_managed_tensor *tensor = NULL;
  cr_assert_eq(quay_dlpack_export_unversioned(buffer, NULL, &tensor), QUAY_OK);
  quay_buffer_release(buffer);
  cr_expect_eq(atomic_load(&releases), 0);
  tensor->deleter(tensor);
  cr_expect_eq(atomic_load(&releases), 1);
}

static void *delete_on_a_thread(void *argument) {
  quay_dl_managed_tensor_versioned *tensor = argument;
  tensor->deleter(tensor);
  return NULL;
}

Test(dlpack_export, the_deleter_may_run_on_any_thread) {
  quay_buffer *buffer = make_counted();
  quay_dl_managed_tensor_versioned *tensor = export_versioned(buffer);
  quay_buffer_release(buffer);
  pthread_t thread;
  cr_assert_eq(pthread_create(&thread, NULL, delete_on_a_thread, tensor), 0);
  pthread_join(thread, NULL);
  cr_expect_eq(atomic_load(&releases), 1);
}

Test(dlpack_export, the_raw_buffer_stays_while_it_is_exported) {
  quay_buffer *buffer = make_buffer(QUAY_U8, 1, (int64_t[]){9});
  quay_dl_managed_tensor_versioned *tensor = export_versioned(buffer);
  quay_raw_buffer raw;
  cr_expect_eq(quay_buffer_release_raw(&buffer, &raw), QUAY_STATUS_BUSY);
  tensor->deleter(tensor);
  cr_assert_eq(quay_buffer_release_raw(&buffer, &raw), QUAY_OK);
  quay_raw_buffer_free(&raw);
}

Test(dlpack_export, the_deleter_leaves_the_last_error_alone) {
  quay_buffer *buffer = make_counted();
  quay_dl_managed_tensor_versioned *tensor = export_versioned(buffer);
  quay_buffer_release(buffer);
  cr_assert_eq(quay_dlpack_import(NULL, NULL, &buffer), QUAY_STATUS_INVALID_ARGUMENT);
  tensor->deleter(tensor);
  cr_expect_eq(quay_last_error()->status, QUAY_STATUS_INVALID_ARGUMENT);
}

Test(dlpack_export, a_tensor_exported_on_a_stream_lives_and_ends_like_any_other) {
  quay_device *host = quay_device_host();
  quay_stream *stream = NULL;
  cr_assert_eq(quay_stream_create(host, NULL, &stream), QUAY_OK);
  quay_buffer *buffer = make_counted();
  const quay_dlpack_export_options options = {.stream = stream};
  quay_dl_managed_tensor_versioned *tensor = NULL;
  cr_assert_eq(quay_dlpack_export(buffer, &options, &tensor), QUAY_OK, "%s",
               quay_last_error()->message);
  quay_buffer_release(buffer);
  quay_stream_release(stream);
  cr_expect_eq(atomic_load(&releases), 0);
  tensor->deleter(tensor);
  cr_expect_eq(atomic_load(&releases), 1);
  quay_device_release(host);
}

Test(dlpack_export, an_export_that_runs_out_of_memory_leaves_nothing_behind) {
  quay_buffer *buffer = make_counted();
  allocations_left = 0;
  quay_dl_managed_tensor_versioned *tensor = (quay_dl_managed_tensor_versioned *)buffer;
  const quay_status status = quay_dlpack_export(buffer, NULL, &tensor);
  allocations_left = -1;
  cr_expect_eq(status, QUAY_STATUS_OUT_OF_HOST_MEMORY);
  cr_expect_null(tensor);
  quay_buffer_release(buffer);
  cr_expect_eq(atomic_load(&releases), 1);
}

/* Races. */

enum {
  THREADS = 8,
  ROUNDS = 300
};

typedef struct racer {
  quay_buffer *buffer;
  pthread_barrier_t *start;
} racer;

static void *export_and_import(void *argument) {
  racer *self = argument;
  pthread_barrier_wait(self->start);
  for (int i = 0; i < ROUNDS; i++) {
    quay_dl_managed_tensor_versioned *tensor = NULL;
    quay_buffer *back = NULL;
    if (quay_dlpack_export(self->buffer, NULL, &tensor) != QUAY_OK ||
        quay_dlpack_import(tensor, NULL, &back) != QUAY_OK) {
      return self;
    }
    quay_buffer_release(back);
  }
  quay_buffer_release(self->buffer);
  return NULL;
}

Test(dlpack_export, many_threads_export_and_import_one_buffer) {
  pthread_barrier_t start;
  pthread_barrier_init(&start, NULL, THREADS);
  quay_buffer *buffer = make_counted();
  pthread_t threads[THREADS];
  racer shared = {.buffer = buffer, .start = &start};
  for (int i = 0; i < THREADS; i++) {
    quay_buffer_retain(buffer);
    cr_assert_eq(pthread_create(&threads[i], NULL, export_and_import, &shared), 0);
  }
  for (int i = 0; i < THREADS; i++) {
    void *failed = NULL;
    pthread_join(threads[i], &failed);
    cr_expect_null(failed);
  }
  cr_expect_eq(atomic_load(&releases), 0);
  quay_buffer_release(buffer);
  cr_expect_eq(atomic_load(&releases), 1);
  pthread_barrier_destroy(&start);
}
