/* DLPack, inwards: which tensors are taken, and whose they are afterwards. Exchange with real
 * libraries is tests/python. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <quay/quay.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/failing_allocations.h"

static quay_allocator *cpu;

static void open_cpu(void) {
  cr_assert_eq(quay_allocator_open("cpu", &cpu), QUAY_OK);
}

static void close_cpu(void) {
  quay_allocator_release(cpu);
}

TestSuite(dlpack_import, .init = open_cpu, .fini = close_cpu);

static void fill(void *bytes, uint64_t size, uint64_t seed) {
  for (uint64_t i = 0; i < size; i++)
    ((uint8_t *)bytes)[i] = (uint8_t)(1 + (i * 31 + seed * 17) % 251);
}

/* A tensor of a foreign producer that counts how often its deleter is called. */
typedef struct producer {
  quay_dl_managed_tensor_versioned versioned;
  quay_dl_managed_tensor unversioned;
  int64_t shape[70], strides[70];
  _Alignas(64) uint8_t bytes[512];
  atomic_int deletes;
} producer;

static void delete_versioned(quay_dl_managed_tensor_versioned *self) {
  atomic_fetch_add(&((producer *)self->manager_ctx)->deletes, 1);
}

static void delete_unversioned(quay_dl_managed_tensor *self) {
  atomic_fetch_add(&((producer *)self->manager_ctx)->deletes, 1);
}

/* An f32 tensor of shape [3, 4], compact. Both structures describe it; a test that changes the
 * versioned one alone says so. */
static void make_producer(producer *made) {
  memset(made, 0, sizeof *made);
  fill(made->bytes, sizeof made->bytes, 9);
  memcpy(made->shape, (int64_t[]){3, 4}, 2 * sizeof(int64_t));
  memcpy(made->strides, (int64_t[]){4, 1}, 2 * sizeof(int64_t));
  const quay_dl_tensor tensor = {
      .data = made->bytes,
      .device = {.device_type = 1},
      .ndim = 2,
      .dtype = {.code = 2, .bits = 32, .lanes = 1},
      .shape = made->shape,
      .strides = made->strides,
  };
  made->versioned = (quay_dl_managed_tensor_versioned){
      .version = {1, 0}, .manager_ctx = made, .deleter = delete_versioned, .dl_tensor = tensor};
  made->unversioned = (quay_dl_managed_tensor){
      .dl_tensor = tensor, .manager_ctx = made, .deleter = delete_unversioned};
}

static quay_buffer *import_versioned(producer *from) {
  quay_buffer *buffer = NULL;
  cr_assert_eq(quay_dlpack_import(&from->versioned, NULL, &buffer), QUAY_OK, "%s",
               quay_last_error()->message);
  return buffer;
}

/* Imports both structures, expects `status` with `text` in the message, and that the tensors are
 * still the caller's. */
static void expect_refused(producer *from, quay_status status, const char *text) {
  quay_buffer *buffer = (quay_buffer *)from;
  cr_expect_eq(quay_dlpack_import(&from->versioned, NULL, &buffer), status, "got %s: %s",
               quay_status_text(quay_last_error()->status), quay_last_error()->message);
  cr_expect_null(buffer);
  cr_expect_not_null(strstr(quay_last_error()->message, text), "\"%s\" is not in \"%s\"", text,
                     quay_last_error()->message);
  from->unversioned.dl_tensor = from->versioned.dl_tensor;
  buffer = (quay_buffer *)from;
  cr_expect_eq(quay_dlpack_import_unversioned(&from->unversioned, NULL, &buffer), status);
  cr_expect_null(buffer);
  cr_expect_eq(atomic_load(&from->deletes), 0);
}

static void expect_bytes(const quay_buffer *buffer, const void *expected, uint64_t size) {
  uint8_t got[512];
  cr_assert_leq(size, sizeof got);
  memset(got, 0, sizeof got);
  cr_assert_eq(quay_buffer_size(buffer), size);
  cr_assert_eq(quay_buffer_copy_out(buffer, got, size), QUAY_OK);
  cr_expect_arr_eq(got, expected, size);
}

/* Import: what is taken. */

Test(dlpack_import, an_imported_tensor_is_a_buffer_on_the_same_bytes) {
  producer from;
  make_producer(&from);
  quay_buffer *buffer = import_versioned(&from);
  cr_expect_eq(quay_buffer_dtype(buffer), QUAY_F32);
  cr_expect_arr_eq(quay_buffer_shape(buffer), ((int64_t[]){3, 4}), 2 * sizeof(int64_t));
  quay_host_array_mut array;
  cr_assert_eq(quay_buffer_host_array_mut(buffer, QUAY_F32, &array), QUAY_OK);
  cr_expect_eq(array.data, (void *)from.bytes);
  expect_bytes(buffer, from.bytes, 48);
  quay_buffer_release(buffer);
}

Test(dlpack_import, an_imported_buffer_can_be_written) {
  producer from;
  make_producer(&from);
  quay_buffer *buffer = import_versioned(&from);
  uint8_t expected[64];
  memcpy(expected, from.bytes, sizeof expected);
  fill(expected, 48, 77);
  cr_assert_eq(quay_buffer_copy_in(buffer, expected, 48), QUAY_OK);
  cr_expect_arr_eq(from.bytes, expected, sizeof expected);
  quay_buffer_release(buffer);
}

Test(dlpack_import, the_byte_offset_is_where_the_elements_begin) {
  producer from;
  make_producer(&from);
  from.versioned.dl_tensor.byte_offset = 100;
  quay_buffer *buffer = import_versioned(&from);
  expect_bytes(buffer, from.bytes + 100, 48);
  quay_buffer_release(buffer);
}

Test(dlpack_import, a_tensor_without_strides_is_compact) {
  producer from;
  make_producer(&from);
  from.versioned.dl_tensor.strides = NULL;
  quay_buffer *buffer = import_versioned(&from);
  expect_bytes(buffer, from.bytes, 48);
  quay_buffer_release(buffer);
}

Test(dlpack_import, an_extent_of_one_may_have_any_stride) {
  producer from;
  make_producer(&from);
  memcpy(from.shape, (int64_t[]){1, 3, 1, 4, 1}, 5 * sizeof(int64_t));
  memcpy(from.strides, (int64_t[]){-7, 4, 0, 1, INT64_MIN}, 5 * sizeof(int64_t));
  from.versioned.dl_tensor.ndim = 5;
  quay_buffer *buffer = import_versioned(&from);
  cr_expect_eq(quay_buffer_rank(buffer), 5);
  expect_bytes(buffer, from.bytes, 48);
  quay_buffer_release(buffer);
}

Test(dlpack_import, an_empty_tensor_may_have_any_strides_and_data) {
  for (int with_data = 0; with_data < 2; with_data++) {
    producer from;
    make_producer(&from);
    from.shape[1] = 0;
    memcpy(from.strides, (int64_t[]){-9, INT64_MAX}, 2 * sizeof(int64_t));
    from.versioned.dl_tensor.data = with_data ? from.bytes : NULL;
    from.versioned.dl_tensor.byte_offset = UINT64_MAX;
    quay_buffer *buffer = import_versioned(&from);
    cr_expect_eq(quay_buffer_size(buffer), 0);
    quay_buffer_release(buffer);
    cr_expect_eq(atomic_load(&from.deletes), 1);
  }
}

Test(dlpack_import, a_newer_minor_version_is_taken) {
  producer from;
  make_producer(&from);
  from.versioned.version.minor = 99;
  quay_buffer *buffer = import_versioned(&from);
  expect_bytes(buffer, from.bytes, 48);
  quay_buffer_release(buffer);
}

Test(dlpack_import, misaligned_data_is_taken_and_typed_access_says_so) {
  producer from;
  make_producer(&from);
  from.versioned.dl_tensor.data = from.bytes + 3;
  quay_buffer *buffer = import_versioned(&from);
  expect_bytes(buffer, from.bytes + 3, 48);
  quay_host_array array;
  cr_expect_eq(quay_buffer_host_array(buffer, QUAY_F32, &array), QUAY_STATUS_MISALIGNED);
  quay_buffer_release(buffer);
}

static void expect_sealed(quay_buffer *buffer, const producer *from) {
  uint8_t before[sizeof from->bytes];
  memcpy(before, from->bytes, sizeof before);
  void *bytes = NULL;
  cr_expect(quay_buffer_is_sealed(buffer));
  cr_expect_eq(quay_buffer_host_bytes_mut(buffer, &bytes, NULL), QUAY_STATUS_READ_ONLY);
  cr_expect_eq(quay_buffer_copy_in(buffer, before + 1, 48), QUAY_STATUS_READ_ONLY);
  cr_expect_eq(quay_buffer_fill(buffer, "\7", 1), QUAY_STATUS_READ_ONLY);
  cr_expect_arr_eq(from->bytes, before, sizeof before);
}

Test(dlpack_import, a_read_only_tensor_gives_a_sealed_buffer) {
  producer from;
  make_producer(&from);
  from.versioned.flags = 1;
  quay_buffer *buffer = import_versioned(&from);
  expect_sealed(buffer, &from);
  expect_bytes(buffer, from.bytes, 48);
  quay_buffer_release(buffer);
  cr_expect_eq(atomic_load(&from.deletes), 1);
}

Test(dlpack_import, other_flags_do_not_seal) {
  producer from;
  make_producer(&from);
  from.versioned.flags = ~UINT64_C(1);
  quay_buffer *buffer = import_versioned(&from);
  cr_expect_not(quay_buffer_is_sealed(buffer));
  quay_buffer_release(buffer);
}

/* Import: what is refused, and is the caller's still. */

Test(dlpack_import, vectors_of_several_lanes_are_refused) {
  producer from;
  make_producer(&from);
  from.versioned.dl_tensor.dtype.lanes = 4;
  expect_refused(&from, QUAY_STATUS_UNSUPPORTED, "4 lanes");
  from.versioned.dl_tensor.dtype.lanes = 0;
  expect_refused(&from, QUAY_STATUS_UNSUPPORTED, "0 lanes");
}

Test(dlpack_import, data_types_without_a_dtype_are_refused) {
  const quay_dl_dtype unknown[] = {
      {2, 8, 1},  {2, 128, 1}, {0, 4, 1},  {1, 1, 1},  {6, 1, 1},  {4, 32, 1},   {5, 32, 1},
      {3, 64, 1}, {7, 8, 1},   {8, 8, 1},  {9, 8, 1},  {11, 8, 1}, {13, 8, 1},   {10, 16, 1},
      {15, 6, 1}, {16, 6, 1},  {17, 4, 1}, {18, 8, 1}, {2, 0, 1},  {255, 32, 1}, {255, 0, 1}};
  for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
    producer from;
    make_producer(&from);
    from.versioned.dl_tensor.dtype = unknown[i];
    char text[64];
    snprintf(text, sizeof text, "code %u and %u bits", unknown[i].code, unknown[i].bits);
    expect_refused(&from, QUAY_STATUS_UNSUPPORTED, text);
  }
}

Test(dlpack_import, a_rank_or_shape_that_makes_no_sense_is_refused) {
  producer from;
  make_producer(&from);
  from.versioned.dl_tensor.ndim = -1;
  expect_refused(&from, QUAY_STATUS_INVALID_ARGUMENT, "-1");
  from.versioned.dl_tensor.ndim = 65;
  expect_refused(&from, QUAY_STATUS_INVALID_ARGUMENT, "65");
  from.versioned.dl_tensor.ndim = 2;
  from.shape[1] = -4;
  expect_refused(&from, QUAY_STATUS_INVALID_ARGUMENT, "-4");
  from.versioned.dl_tensor.shape = NULL;
  expect_refused(&from, QUAY_STATUS_INVALID_ARGUMENT, "NULL");
}

Test(dlpack_import, a_shape_whose_size_wraps_around_is_refused) {
  const int64_t shapes[][3] = {{INT64_MAX, INT64_MAX, 4},
                               {INT64_C(1) << 32, INT64_C(1) << 32, 1},
                               {INT64_C(1) << 61, 1, 1},
                               {INT64_C(1) << 62, 1, 1}};
  for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
    producer from;
    make_producer(&from);
    from.versioned.dl_tensor.ndim = 3;
    from.versioned.dl_tensor.strides = NULL;
    memcpy(from.shape, shapes[i], sizeof shapes[i]);
    expect_refused(&from, QUAY_STATUS_OUT_OF_RANGE, "2^63-1");
  }
}

Test(dlpack_import, an_address_that_wraps_around_is_refused) {
  producer from;
  make_producer(&from);
  from.versioned.dl_tensor.byte_offset = UINT64_MAX;
  expect_refused(&from, QUAY_STATUS_INVALID_ARGUMENT, "18446744073709551615");
  from.versioned.dl_tensor.byte_offset = 0;
  from.versioned.dl_tensor.data = (void *)(UINTPTR_MAX - 46); /* 48 bytes: one too many */
  expect_refused(&from, QUAY_STATUS_INVALID_ARGUMENT, "48 bytes");
}

Test(dlpack_import, a_tensor_without_data_is_refused_unless_it_is_empty) {
  producer from;
  make_producer(&from);
  from.versioned.dl_tensor.data = NULL;
  from.versioned.dl_tensor.byte_offset = 64;
  expect_refused(&from, QUAY_STATUS_INVALID_ARGUMENT, "48 bytes");
}

Test(dlpack_import, strides_that_are_not_compact_are_refused_with_shape_and_strides) {
  const struct {
    int64_t strides[2];
    const char *text;
  } cases[] = {
      {{1, 3}, "[1, 3]"},   /* column-major */
      {{5, 1}, "[5, 1]"},   /* rows with a gap */
      {{0, 1}, "[0, 1]"},   /* one row, repeated */
      {{4, -1}, "[4, -1]"}, /* mirrored */
      {{8, 2}, "[8, 2]"},   /* every second element */
      {{3, 1}, "[3, 1]"},   /* overlapping rows */
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    producer from;
    make_producer(&from);
    memcpy(from.strides, cases[i].strides, sizeof cases[i].strides);
    expect_refused(&from, QUAY_STATUS_UNSUPPORTED, cases[i].text);
    cr_expect_not_null(strstr(quay_last_error()->message, "[3, 4]"));
  }
}

Test(dlpack_import, shape_and_strides_of_many_dimensions_are_cut_in_the_message) {
  producer from;
  make_producer(&from);
  from.versioned.dl_tensor.ndim = 64;
  for (int i = 0; i < 64; i++) {
    from.shape[i] = i < 4 ? 2 : 1;
    from.strides[i] = INT64_MIN;
  }
  expect_refused(&from, QUAY_STATUS_UNSUPPORTED, "[-9223372036854775808, -9223372036854775808, ");
  cr_expect_not_null(strstr(quay_last_error()->message, "...]"));
  cr_expect_not_null(strstr(quay_last_error()->message, "contiguous copy"));
}

Test(dlpack_import, other_devices_are_refused_by_number_and_name) {
  const struct {
    int32_t type;
    const char *text;
  } devices[] = {
      {7, "type 7 (kDLVulkan), device 3"},
      {12, "kDLExtDev"},
      {10, "type 10"},
      {0, "type 0"},
      {-1, "type -1"},
  };
  for (size_t i = 0; i < sizeof devices / sizeof devices[0]; i++) {
    producer from;
    make_producer(&from);
    from.versioned.dl_tensor.device = (quay_dl_device){devices[i].type, 3};
    expect_refused(&from, QUAY_STATUS_UNSUPPORTED, devices[i].text);
    cr_expect_not_null(strstr(quay_last_error()->message, "from kDLCPU, kDLCUDA, "));
  }
}

Test(dlpack_import, cuda_tensors_are_refused_with_the_reason_where_there_is_no_cuda) {
  static const int32_t types[] = {2, 3, 13};
  setenv("QUAY_CUDA_LIBRARY", "/nowhere/libcuda.so", 1);
  for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
    producer from;
    make_producer(&from);
    from.versioned.dl_tensor.device = (quay_dl_device){types[i], 1};
    expect_refused(&from, QUAY_STATUS_UNAVAILABLE, "cuda:1");
  }
}

Test(dlpack_import, another_major_version_is_refused_and_not_deleted) {
  const uint32_t majors[] = {0, 2, UINT32_MAX};
  for (size_t i = 0; i < sizeof majors / sizeof majors[0]; i++) {
    producer from;
    make_producer(&from);
    from.versioned.version.major = majors[i];
    /* Nothing behind the deleter may be looked at. */
    memset(&from.versioned.dl_tensor, 0xff, sizeof from.versioned.dl_tensor);
    quay_buffer *buffer = (quay_buffer *)&from;
    cr_expect_eq(quay_dlpack_import(&from.versioned, NULL, &buffer), QUAY_STATUS_UNSUPPORTED);
    cr_expect_null(buffer);
    cr_expect_not_null(strstr(quay_last_error()->message, "version"));
    cr_expect_eq(atomic_load(&from.deletes), 0);
  }
}

Test(dlpack_import, importing_null_is_an_invalid_argument) {
  producer from;
  make_producer(&from);
  quay_buffer *buffer = (quay_buffer *)&from;
  cr_expect_eq(quay_dlpack_import(NULL, NULL, &buffer), QUAY_STATUS_INVALID_ARGUMENT);
  cr_expect_null(buffer);
  cr_expect_eq(quay_dlpack_import(&from.versioned, NULL, NULL), QUAY_STATUS_INVALID_ARGUMENT);
  buffer = (quay_buffer *)&from;
  cr_expect_eq(quay_dlpack_import_unversioned(NULL, NULL, &buffer), QUAY_STATUS_INVALID_ARGUMENT);
  cr_expect_null(buffer);
  cr_expect_eq(quay_dlpack_import_unversioned(&from.unversioned, NULL, NULL),
               QUAY_STATUS_INVALID_ARGUMENT);
  cr_expect_eq(atomic_load(&from.deletes), 0);
}

Test(dlpack_import, an_import_that_runs_out_of_memory_leaves_the_tensor_with_the_caller) {
  int failures = 0;
  for (int n = 0;; n++) {
    producer from;
    make_producer(&from);
    const quay_dlpack_import_options options = {.allocator = cpu};
    quay_buffer *buffer = NULL;
    allocations_left = n;
    const quay_status status = quay_dlpack_import(&from.versioned, &options, &buffer);
    const bool reached = allocations_left < 0;
    allocations_left = -1;
    if (!reached) {
      cr_expect_eq(status, QUAY_OK);
      quay_buffer_release(buffer);
      break;
    }
    failures++;
    cr_expect_eq(status, QUAY_STATUS_OUT_OF_HOST_MEMORY);
    cr_expect_null(buffer);
    cr_expect_eq(atomic_load(&from.deletes), 0);
  }
  cr_expect_gt(failures, 1);
}

/* Import: whose the tensor is. */

Test(dlpack_import, the_deleter_is_called_once_when_the_last_view_goes) {
  producer from;
  make_producer(&from);
  quay_buffer *buffer = import_versioned(&from);
  quay_buffer *view = NULL;
  cr_assert_eq(quay_buffer_view(buffer, 4, 8, &view), QUAY_OK);
  quay_buffer_release(buffer);
  cr_expect_eq(atomic_load(&from.deletes), 0);
  expect_bytes(view, from.bytes + 4, 8);
  quay_buffer_release(view);
  cr_expect_eq(atomic_load(&from.deletes), 1);
}

Test(dlpack_import, the_deleter_of_an_unversioned_tensor_is_called_once) {
  producer from;
  make_producer(&from);
  quay_buffer *buffer = NULL;
  cr_assert_eq(quay_dlpack_import_unversioned(&from.unversioned, NULL, &buffer), QUAY_OK);
  cr_expect_not(quay_buffer_is_sealed(buffer));
  expect_bytes(buffer, from.bytes, 48);
  cr_expect_eq(atomic_load(&from.deletes), 0);
  quay_buffer_release(buffer);
  cr_expect_eq(atomic_load(&from.deletes), 1);
}

Test(dlpack_import, a_tensor_without_a_deleter_is_taken) {
  producer from;
  make_producer(&from);
  from.versioned.deleter = NULL;
  from.unversioned.deleter = NULL;
  quay_buffer *versioned = import_versioned(&from);
  quay_buffer *unversioned = NULL;
  cr_assert_eq(quay_dlpack_import_unversioned(&from.unversioned, NULL, &unversioned), QUAY_OK);
  expect_bytes(versioned, from.bytes, 48);
  expect_bytes(unversioned, from.bytes, 48);
  quay_buffer_release(versioned);
  quay_buffer_release(unversioned);
}

Test(dlpack_import, importing_and_exporting_again_chains_the_lifetimes) {
  producer from;
  make_producer(&from);
  from.versioned.flags = 1;
  quay_buffer *buffer = import_versioned(&from);
  quay_dl_managed_tensor_versioned *again = NULL;
  cr_assert_eq(quay_dlpack_export(buffer, NULL, &again), QUAY_OK);
  quay_buffer_release(buffer);
  cr_expect_eq(again->flags, 1);
  cr_expect_eq(again->dl_tensor.data, (void *)from.bytes);
  cr_expect_eq(atomic_load(&from.deletes), 0);
  again->deleter(again);
  cr_expect_eq(atomic_load(&from.deletes), 1);
}

Test(dlpack_import, released_host_memory_takes_the_deleter_along) {
  producer from;
  make_producer(&from);
  quay_buffer *buffer = import_versioned(&from);
  quay_allocator *owner = quay_allocator_retain(quay_buffer_allocator(buffer));
  quay_raw_buffer raw;
  quay_host_memory memory;
  cr_assert_eq(quay_buffer_release_raw(&buffer, &raw), QUAY_OK);
  cr_assert_eq(quay_raw_buffer_release_host(&raw, &memory), QUAY_OK);
  cr_expect_eq(atomic_load(&from.deletes), 0);
  cr_expect_eq(memory.pointer, (void *)from.bytes);
  memory.release(memory.user, memory.pointer, memory.size);
  cr_expect_eq(atomic_load(&from.deletes), 1);
  quay_allocator_release(owner);
}

/* Import: who owns the memory. */

Test(dlpack_import, the_default_allocator_owns_imported_memory_and_does_not_count_it) {
  quay_allocator *track = NULL;
  cr_assert_eq(quay_allocator_open("track+cpu", &track), QUAY_OK);
  cr_assert_eq(quay_default_allocator_push(track), QUAY_OK);
  producer from;
  make_producer(&from);
  quay_buffer *buffer = import_versioned(&from);
  quay_default_allocator_pop();
  cr_expect_eq(quay_buffer_allocator(buffer), track);
  quay_stats stats;
  cr_assert_eq(quay_allocator_stats(track, &stats), QUAY_OK);
  cr_expect_eq(stats.live_count, 0);
  quay_buffer_release(buffer);
  quay_allocator_release(track);
  cr_expect_eq(atomic_load(&from.deletes), 1);
}

Test(dlpack_import, cpu_owns_imported_memory_where_the_default_allocator_can_not) {
  quay_allocator *files = NULL;
  cr_assert_eq(quay_allocator_open("mmap:/tmp", &files), QUAY_OK);
  cr_assert_eq(quay_default_allocator_push(files), QUAY_OK);
  producer from;
  make_producer(&from);
  quay_buffer *buffer = import_versioned(&from);
  quay_default_allocator_pop();
  quay_allocator_release(files);
  cr_expect_str_eq(quay_allocator_spec(quay_buffer_allocator(buffer)), "cpu");
  quay_buffer_release(buffer);
}

Test(dlpack_import, an_allocator_of_other_memory_is_refused) {
  const quay_dlpack_import_options options = {.allocator = NULL};
  quay_dlpack_import_options files = options;
  cr_assert_eq(quay_allocator_open("mmap:/tmp", &files.allocator), QUAY_OK);
  producer from;
  make_producer(&from);
  quay_buffer *buffer = (quay_buffer *)&from;
  cr_expect_eq(quay_dlpack_import(&from.versioned, &files, &buffer), QUAY_STATUS_UNSUPPORTED);
  cr_expect_null(buffer);
  cr_expect_eq(atomic_load(&from.deletes), 0);
  quay_allocator_release(files.allocator);
}

/* Races. */

enum {
  THREADS = 8
};

typedef struct racer {
  quay_buffer *buffer;
  pthread_barrier_t *start;
} racer;

static void *release_at_once(void *argument) {
  racer *self = argument;
  pthread_barrier_wait(self->start);
  quay_buffer_release(self->buffer);
  return NULL;
}

Test(dlpack_import, racing_releases_call_the_deleter_once) {
  pthread_barrier_t start;
  pthread_barrier_init(&start, NULL, THREADS);
  for (int round = 0; round < 40; round++) {
    producer from;
    make_producer(&from);
    quay_buffer *buffer = import_versioned(&from);
    pthread_t threads[THREADS];
    racer racers[THREADS];
    for (int i = 0; i < THREADS; i++) {
      racers[i] = (racer){.start = &start};
      cr_assert_eq(quay_buffer_view(buffer, (uint64_t)i, 8, &racers[i].buffer), QUAY_OK);
    }
    quay_buffer_release(buffer);
    for (int i = 0; i < THREADS; i++)
      cr_assert_eq(pthread_create(&threads[i], NULL, release_at_once, &racers[i]), 0);
    for (int i = 0; i < THREADS; i++)
      pthread_join(threads[i], NULL);
    cr_expect_eq(atomic_load(&from.deletes), 1);
  }
  pthread_barrier_destroy(&start);
}
