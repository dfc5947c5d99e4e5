/* DLPack: buffers as tensors of other libraries and back. Which memory lies behind a tensor is
 * decided here, how a backend adopts it is the backend's. */
#include <inttypes.h>
#include <quay/cuda.h>
#include <quay/dlpack.h>
#include <stdio.h>
#include <string.h>

#include "core/allocator_impl.h"
#include "core/checked.h"
#include "core/error.h"
#include "core/os.h"
#include "core/stream_impl.h"

/* The layouts of dlpack.h, version 1.2, on a machine with 64-bit pointers. */
_Static_assert(sizeof(quay_dl_version) == 8, "DLPackVersion");
_Static_assert(sizeof(quay_dl_device) == 8, "DLDevice");
_Static_assert(sizeof(quay_dl_dtype) == 4, "DLDataType");
_Static_assert(offsetof(quay_dl_tensor, device) == 8, "DLTensor.device");
_Static_assert(offsetof(quay_dl_tensor, ndim) == 16, "DLTensor.ndim");
_Static_assert(offsetof(quay_dl_tensor, dtype) == 20, "DLTensor.dtype");
_Static_assert(offsetof(quay_dl_tensor, shape) == 24, "DLTensor.shape");
_Static_assert(offsetof(quay_dl_tensor, strides) == 32, "DLTensor.strides");
_Static_assert(offsetof(quay_dl_tensor, byte_offset) == 40, "DLTensor.byte_offset");
_Static_assert(sizeof(quay_dl_tensor) == 48, "DLTensor");
_Static_assert(offsetof(quay_dl_managed_tensor, manager_ctx) == 48, "DLManagedTensor.manager_ctx");
_Static_assert(offsetof(quay_dl_managed_tensor, deleter) == 56, "DLManagedTensor.deleter");
_Static_assert(sizeof(quay_dl_managed_tensor) == 64, "DLManagedTensor");
_Static_assert(offsetof(quay_dl_managed_tensor_versioned, manager_ctx) == 8, "manager_ctx");
_Static_assert(offsetof(quay_dl_managed_tensor_versioned, deleter) == 16, "deleter");
_Static_assert(offsetof(quay_dl_managed_tensor_versioned, flags) == 24, "flags");
_Static_assert(offsetof(quay_dl_managed_tensor_versioned, dl_tensor) == 32, "dl_tensor");
_Static_assert(sizeof(quay_dl_managed_tensor_versioned) == 80, "DLManagedTensorVersioned");

/* Data types. */

enum {
  NO_CODE = 255
};

static uint8_t code_of(quay_dtype dtype) {
  switch (dtype) {
  case QUAY_BOOL:
    return QUAY_DL_BOOL;
  case QUAY_U8:
  case QUAY_U16:
  case QUAY_U32:
  case QUAY_U64:
    return QUAY_DL_UINT;
  case QUAY_I8:
  case QUAY_I16:
  case QUAY_I32:
  case QUAY_I64:
    return QUAY_DL_INT;
  case QUAY_F16:
  case QUAY_F32:
  case QUAY_F64:
    return QUAY_DL_FLOAT;
  case QUAY_BF16:
    return QUAY_DL_BFLOAT;
  case QUAY_F8_E4M3:
    return QUAY_DL_FLOAT8_E4M3FN;
  case QUAY_F8_E5M2:
    return QUAY_DL_FLOAT8_E5M2;
  case QUAY_F8_E8M0:
    return QUAY_DL_FLOAT8_E8M0FNU;
  case QUAY_C64:
  case QUAY_C128:
    return QUAY_DL_COMPLEX;
  case QUAY_DTYPE_NONE:
    break;
  }
  return NO_CODE;
}

static quay_status find_dtype(const quay_dl_dtype *type, quay_dtype *out_dtype) {
  static const quay_dtype dtypes[] = {
#define DTYPE(name, value, bits, alignment, text) QUAY_##name,
      QUAY_DTYPE_TABLE(DTYPE)
#undef DTYPE
  };
  if (type->lanes != 1) {
    return quay__fail(QUAY_STATUS_UNSUPPORTED,
                      "the tensor's elements are vectors of %u lanes (code %u, %u bits); Quay "
                      "imports elements of 1 lane",
                      type->lanes, type->code, type->bits);
  }
  for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
    if (code_of(dtypes[i]) == type->code && quay_dtype_bits(dtypes[i]) == type->bits) {
      *out_dtype = dtypes[i];
      return QUAY_OK;
    }
  }
  return quay__fail(QUAY_STATUS_UNSUPPORTED,
                    "the tensor's data type has code %u and %u bits, for which there is no dtype; "
                    "there are int and uint (codes 0, 1) of 8 to 64 bits, float (2) of 16 to 64, "
                    "bfloat (4) of 16, complex (5) of 64 and 128, bool (6), float8_e4m3fn (10), "
                    "float8_e5m2 (12) and float8_e8m0fnu (14) of 8",
                    type->code, type->bits);
}

/* Export. */

/* What the consumer's structure lies in. */
typedef struct exported {
  union {
    quay_dl_managed_tensor_versioned versioned;
    quay_dl_managed_tensor unversioned;
  } managed;
  quay_buffer *buffer; /* one reference */
  quay_stream *stream; /* one reference; may be NULL */
  int64_t extents[];   /* shape, then strides */
} exported;

static quay_dl_device device_of(const quay_buffer *buffer) {
  const quay_device *const device = quay_buffer_device(buffer);
  const bool cuda = quay_device_type(device) == QUAY_DEVICE_CUDA;
  switch (quay_buffer_kind(buffer)) {
  case QUAY_MEMORY_PAGEABLE:
  case QUAY_MEMORY_FILE:
    return (quay_dl_device){.device_type = QUAY_DL_CPU};
  case QUAY_MEMORY_PINNED:
    return (quay_dl_device){.device_type = cuda ? QUAY_DL_CUDA_HOST : QUAY_DL_CPU};
  case QUAY_MEMORY_MANAGED:
    if (cuda)
      return (quay_dl_device){.device_type = QUAY_DL_CUDA_MANAGED};
    break;
  case QUAY_MEMORY_DEVICE:
  case QUAY_MEMORY_NONE:
    break;
  }
  return (quay_dl_device){.device_type = (int32_t)quay_device_type(device),
                          .device_id = quay_device_index(device)};
}

/* Row-major, every extent counted as at least 1, so that strides of empty tensors are ordinary
 * numbers, too. Those can be too large for an int64_t, and no one will use them. */
static void fill_strides(int32_t rank, const int64_t *shape, int64_t *out_strides) {
  int64_t stride = 1;
  for (int32_t i = rank; i-- > 0;) {
    out_strides[i] = stride;
    const int64_t extent = shape[i] > 0 ? shape[i] : 1;
    if (__builtin_mul_overflow(stride, extent, &stride))
      stride = INT64_MAX;
  }
}

static quay_use use_of(quay_buffer *buffer) {
  return (quay_use){buffer, quay_buffer_is_sealed(buffer) ? QUAY_READ : QUAY_READ_WRITE};
}

/* Makes the stream wait for the recorded work on the window, and records that the stream uses it
 * from here back. */
static quay_status record_use(quay_stream *stream, quay_buffer *buffer) {
  const quay_use use = use_of(buffer);
  quay_access access;
  QUAY_TRY(quay_access_begin(stream, &use, 1, &access));
  return quay_access_end(&access);
}

/* Lets the memory go after the consumer's work. Where that can't be recorded it is waited for:
 * memory that is in use must not be handed out again. */
static void record_last_use(exported *tensor) {
  quay__error_state saved;
  quay__error_save(&saved);
  if (record_use(tensor->stream, tensor->buffer) != QUAY_OK) {
    quay_log(QUAY_LOG_ERROR, "the end of an exported tensor's use can't be recorded: %s",
             quay_last_error()->message);
    quay__statistics_error(&quay_buffer_allocator(tensor->buffer)->statistics);
    if (quay__stream_drain(tensor->stream) != QUAY_OK) {
      quay_log(QUAY_LOG_ERROR, "the stream of an exported tensor can't be waited for: %s",
               quay_last_error()->message);
    }
  }
  quay__error_restore(&saved);
}

static void destroy_exported(exported *tensor) {
  if (tensor->stream != NULL)
    record_last_use(tensor);
  quay_buffer_release(tensor->buffer);
  quay_stream_release(tensor->stream);
  quay__os_free(tensor);
}

static void delete_versioned(quay_dl_managed_tensor_versioned *self) {
  if (self != NULL)
    destroy_exported(self->manager_ctx);
}

static void delete_unversioned(quay_dl_managed_tensor *self) {
  if (self != NULL)
    destroy_exported(self->manager_ctx);
}

static quay_status order_after_recorded_work(quay_stream *stream, quay_buffer *buffer) {
  return stream != NULL ? record_use(stream, buffer) : quay_buffer_synchronize(buffer);
}

/* One block for the structure, shape and strides. It has room for two numbers at rank 0, too, so
 * that neither pointer is NULL: some consumers look before they count. */
static exported *allocate_exported(int32_t rank) {
  const size_t count = rank > 0 ? 2 * (size_t)rank : 2;
  return quay__os_calloc(1, sizeof(exported) + count * sizeof(int64_t));
}

static void describe(exported *made, uint64_t address, quay_dl_tensor *out_tensor) {
  quay_buffer *const buffer = made->buffer;
  const int32_t rank = quay_buffer_rank(buffer);
  const quay_dtype dtype = quay_buffer_dtype(buffer);
  int64_t *const shape = made->extents;
  int64_t *const strides = made->extents + (rank > 0 ? rank : 1);
  if (rank > 0)
    memcpy(shape, quay_buffer_shape(buffer), (size_t)rank * sizeof *shape);
  fill_strides(rank, shape, strides);
  /* The address for an empty tensor, too, as NumPy does, although dlpack.h would have NULL there:
   * PyTorch 1.13 never calls the deleter of a tensor whose data is NULL. */
  *out_tensor = (quay_dl_tensor){
      .data = (void *)(uintptr_t)address,
      .device = device_of(buffer),
      .ndim = rank,
      .dtype = {.code = code_of(dtype), .bits = (uint8_t)quay_dtype_bits(dtype), .lanes = 1},
      .shape = shape,
      .strides = strides,
  };
}

static quay_status check_stream(const quay_stream *stream, const quay_buffer *buffer) {
  const quay_device *of = quay_stream_device(stream), *at = quay_buffer_device(buffer);
  if (stream == NULL || of == at || quay_device_type(of) == QUAY_DEVICE_CPU)
    return QUAY_OK;
  return quay__fail(QUAY_STATUS_INVALID_ARGUMENT,
                    "exporting a DLPack tensor: the stream is of the device %s, but the buffer is "
                    "on %s; it must be the stream on which the consumer uses the memory",
                    quay_device_name(of), quay_device_name(at));
}

static quay_status export_buffer(quay_buffer *buffer, quay_stream *stream, exported **out_made,
                                 quay_dl_tensor *out_tensor) {
  QUAY_TRY(check_stream(stream, buffer));
  uint64_t address;
  QUAY_TRY(quay_buffer_address(buffer, &address));
  exported *const made = allocate_exported(quay_buffer_rank(buffer));
  if (made == NULL)
    return quay__fail_out_of_memory(sizeof *made, "an exported tensor");
  const quay_status status = order_after_recorded_work(stream, buffer);
  if (status != QUAY_OK) {
    quay__os_free(made);
    return status;
  }
  made->buffer = quay_buffer_retain(buffer);
  made->stream = quay_stream_retain(stream);
  describe(made, address, out_tensor);
  *out_made = made;
  return QUAY_OK;
}

static quay_status check_arguments(const char *function, const void *first, const char *first_name,
                                   const void *out, const char *out_name) {
  if (first == NULL || out == NULL) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT, "%s: %s is NULL", function,
                      first == NULL ? first_name : out_name);
  }
  return QUAY_OK;
}

quay_status quay_dlpack_export(quay_buffer *buffer, const quay_dlpack_export_options *options,
                               quay_dl_managed_tensor_versioned **out_tensor) {
  if (out_tensor != NULL)
    *out_tensor = NULL;
  QUAY_TRY(check_arguments("quay_dlpack_export", buffer, "buffer", (const void *)out_tensor,
                           "out_tensor"));
  exported *made;
  quay_dl_tensor tensor;
  QUAY_TRY(export_buffer(buffer, options != NULL ? options->stream : NULL, &made, &tensor));
  made->managed.versioned = (quay_dl_managed_tensor_versioned){
      .version = {.major = QUAY_DL_MAJOR_VERSION, .minor = QUAY_DL_MINOR_VERSION},
      .manager_ctx = made,
      .deleter = delete_versioned,
      .flags = quay_buffer_is_sealed(buffer) ? QUAY_DL_FLAG_READ_ONLY : 0,
      .dl_tensor = tensor,
  };
  *out_tensor = &made->managed.versioned;
  return QUAY_OK;
}

quay_status quay_dlpack_export_unversioned(quay_buffer *buffer,
                                           const quay_dlpack_export_options *options,
                                           quay_dl_managed_tensor **out_tensor) {
  if (out_tensor != NULL)
    *out_tensor = NULL;
  QUAY_TRY(check_arguments("quay_dlpack_export_unversioned", buffer, "buffer",
                           (const void *)out_tensor, "out_tensor"));
  if (quay_buffer_is_sealed(buffer) && (options == NULL || !options->allow_unmarked_read_only)) {
    return quay__fail(QUAY_STATUS_READ_ONLY,
                      "the buffer is read-only, which an unversioned DLPack tensor can't say; "
                      "export a versioned one, or set allow_unmarked_read_only");
  }
  exported *made;
  quay_dl_tensor tensor;
  QUAY_TRY(export_buffer(buffer, options != NULL ? options->stream : NULL, &made, &tensor));
  made->managed.unversioned = (quay_dl_managed_tensor){
      .dl_tensor = tensor, .manager_ctx = made, .deleter = delete_unversioned};
  *out_tensor = &made->managed.unversioned;
  return QUAY_OK;
}

/* Import. */

/* A tensor of either structure, on its way to a buffer. */
typedef struct incoming {
  const quay_dl_tensor *tensor;
  bool read_only;
  quay_release_callback release; /* NULL for a tensor without a deleter */
  void *managed;
} incoming;

static void release_versioned(void *user, void *memory, uint64_t size) {
  (void)memory;
  (void)size;
  quay_dl_managed_tensor_versioned *const managed = user;
  managed->deleter(managed);
}

static void release_unversioned(void *user, void *memory, uint64_t size) {
  (void)memory;
  (void)size;
  quay_dl_managed_tensor *const managed = user;
  managed->deleter(managed);
}

/* The default allocator if it can own host memory, else the cpu backend. */
static quay_status find_host_allocator(const quay_dl_device *device,
                                       quay_allocator **out_allocator) {
  (void)device;
  QUAY_TRY(quay_default_allocator_get(out_allocator));
  if (quay_allocator_kind(*out_allocator) == QUAY_MEMORY_PAGEABLE &&
      quay_allocator_host_accessible(*out_allocator)) {
    return QUAY_OK;
  }
  quay_allocator_release(*out_allocator);
  return quay_allocator_open("cpu", out_allocator);
}

static quay_status adopt_host(quay_allocator *allocator, const incoming *in, uint64_t address,
                              uint64_t size, quay_raw_buffer *out_raw) {
  const quay_host_memory memory = {.pointer = (void *)(uintptr_t)address,
                                   .size = size,
                                   .release = in->release,
                                   .user = in->managed};
  return quay_raw_buffer_adopt_host(allocator, &memory, out_raw);
}

/* CUDA. */

static quay_memory_kind cuda_kind(int32_t device_type) {
  if (device_type == QUAY_DL_CUDA_HOST)
    return QUAY_MEMORY_PINNED;
  return device_type == QUAY_DL_CUDA_MANAGED ? QUAY_MEMORY_MANAGED : QUAY_MEMORY_DEVICE;
}

/* Pinned memory is any device's, and managed memory migrates. */
static bool makes_cuda_memory(const quay_allocator *allocator, const quay_dl_device *device) {
  const quay_device *const own = quay_allocator_device(allocator);
  const quay_memory_kind kind = cuda_kind(device->device_type);
  return quay_device_type(own) == QUAY_DEVICE_CUDA && quay_allocator_kind(allocator) == kind &&
         (kind != QUAY_MEMORY_DEVICE || quay_device_index(own) == device->device_id);
}

/* The default allocator if it makes such memory, else the cuda backend. */
static quay_status find_cuda_allocator(const quay_dl_device *device,
                                       quay_allocator **out_allocator) {
  if (device->device_id < 0) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT,
                      "the tensor is on CUDA device %" PRId32 "; there are none below 0",
                      device->device_id);
  }
  QUAY_TRY(quay_default_allocator_get(out_allocator));
  if (makes_cuda_memory(*out_allocator, device))
    return QUAY_OK;
  quay_allocator_release(*out_allocator);
  char spec[64];
  (void)snprintf(spec, sizeof spec, "cuda:%" PRId32 ",memory=%s", device->device_id,
                 quay_memory_kind_name(cuda_kind(device->device_type)));
  return quay_allocator_open(spec, out_allocator);
}

static quay_status adopt_cuda(quay_allocator *allocator, const incoming *in, uint64_t address,
                              uint64_t size, quay_raw_buffer *out_raw) {
  const quay_dl_device *const device = &in->tensor->device;
  if (!makes_cuda_memory(allocator, device)) {
    return quay__fail(QUAY_STATUS_UNSUPPORTED,
                      "the tensor is %s memory of CUDA device %" PRId32
                      ", and the allocator %s makes other memory",
                      quay_memory_kind_name(cuda_kind(device->device_type)), device->device_id,
                      allocator->spec);
  }
  return quay_cuda_adopt(allocator, address, size, in->release, in->managed, out_raw);
}

/* Who takes over the memory of a type of device. */
typedef struct importer {
  int32_t device_type;
  const char *name; /* DLPack's */
  /* One reference on the allocator that owns it where the program names none. */
  quay_status (*find_allocator)(const quay_dl_device *device, quay_allocator **out_allocator);
  quay_status (*adopt)(quay_allocator *allocator, const incoming *in, uint64_t address,
                       uint64_t size, quay_raw_buffer *out_raw); /* NULL: nobody */
} importer;

static const importer importers[] = {
    {QUAY_DL_CPU, "kDLCPU", find_host_allocator, adopt_host},
    {QUAY_DL_CUDA, "kDLCUDA", find_cuda_allocator, adopt_cuda},
    {QUAY_DL_CUDA_HOST, "kDLCUDAHost", find_cuda_allocator, adopt_cuda},
    {QUAY_DL_VULKAN, "kDLVulkan", NULL, NULL},
    {QUAY_DL_EXTERNAL, "kDLExtDev", NULL, NULL},
    {QUAY_DL_CUDA_MANAGED, "kDLCUDAManaged", find_cuda_allocator, adopt_cuda},
};

/* NULL, with the error set to UNSUPPORTED, if there is none. */
static const importer *find_importer(const quay_dl_device *device) {
  const char *name = "another library's";
  char possible[128] = "";
  for (size_t i = 0; i < sizeof importers / sizeof importers[0]; i++) {
    const importer *const row = &importers[i];
    if (row->device_type == device->device_type && row->adopt != NULL)
      return row;
    if (row->device_type == device->device_type)
      name = row->name;
    if (row->adopt != NULL) {
      const size_t used = strlen(possible);
      snprintf(possible + used, sizeof possible - used, "%s%s", used > 0 ? ", " : "", row->name);
    }
  }
  (void)quay__fail(QUAY_STATUS_UNSUPPORTED,
                   "the tensor is on device type %" PRId32 " (%s), device %" PRId32
                   ", whose memory can't be imported; it can be from %s",
                   device->device_type, name, device->device_id, possible);
  return NULL;
}

/* "[2, 3, 4]"; cut at the end of `text` with "...". */
static void format_extents(const int64_t *extents, int32_t rank, char *text, size_t size) {
  size_t used = (size_t)snprintf(text, size, "[");
  for (int32_t i = 0; i < rank; i++) {
    char number[32];
    const int length = snprintf(number, sizeof number, "%s%" PRId64, i > 0 ? ", " : "", extents[i]);
    if (used + (size_t)length + sizeof "...]" > size) {
      used += (size_t)snprintf(text + used, size - used, "...");
      break;
    }
    memcpy(text + used, number, (size_t)length + 1);
    used += (size_t)length;
  }
  snprintf(text + used, size - used, "]");
}

static bool compact(const quay_dl_tensor *tensor) {
  int64_t expected = 1;
  for (int32_t i = tensor->ndim; i-- > 0;) {
    if (tensor->shape[i] == 1)
      continue;
    if (tensor->strides[i] != expected)
      return false;
    expected *= tensor->shape[i]; /* at most the tensor's size, which has been checked */
  }
  return true;
}

static quay_status check_strides(const quay_dl_tensor *tensor, uint64_t size) {
  if (tensor->strides == NULL || size == 0 || compact(tensor))
    return QUAY_OK;
  char shape[300];
  char strides[300];
  format_extents(tensor->shape, tensor->ndim, shape, sizeof shape);
  format_extents(tensor->strides, tensor->ndim, strides, sizeof strides);
  return quay__fail(QUAY_STATUS_UNSUPPORTED,
                    "the tensor of shape %s has the strides %s, in elements; Quay imports compact "
                    "row-major tensors: make a contiguous copy first",
                    shape, strides);
}

static quay_status find_address(const quay_dl_tensor *tensor, uint64_t size,
                                uint64_t *out_address) {
  *out_address = 0;
  if (size == 0)
    return QUAY_OK;
  if (tensor->data == NULL) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT,
                      "the tensor's data is NULL, but its shape takes %" PRIu64 " bytes", size);
  }
  uint64_t end;
  if (!quay__add((uint64_t)(uintptr_t)tensor->data, tensor->byte_offset, out_address) ||
      !quay__add(*out_address, size, &end)) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT,
                      "the tensor's %" PRIu64 " bytes at %p plus a byte_offset of %" PRIu64
                      " reach beyond the address space",
                      size, tensor->data, tensor->byte_offset);
  }
  return QUAY_OK;
}

/* What an import has found out about its tensor. */
typedef struct found {
  quay_dtype dtype;
  uint64_t size;
  uint64_t address;
  const importer *importer;
} found;

static quay_status examine(const quay_dl_tensor *tensor, found *out) {
  QUAY_TRY(find_dtype(&tensor->dtype, &out->dtype));
  QUAY_TRY(quay_dtype_array_size(out->dtype, tensor->ndim, tensor->shape, &out->size));
  QUAY_TRY(check_strides(tensor, out->size));
  QUAY_TRY(find_address(tensor, out->size, &out->address));
  out->importer = find_importer(&tensor->device);
  return out->importer != NULL ? QUAY_OK : QUAY_STATUS_UNSUPPORTED;
}

static quay_status make_buffer(const incoming *in, const found *what, quay_allocator *allocator,
                               quay_buffer **out_buffer) {
  quay_raw_buffer raw;
  QUAY_TRY(what->importer->adopt(allocator, in, what->address, what->size, &raw));
  if (in->read_only)
    raw.flags |= QUAY_RAW_READ_ONLY;
  const quay_status status =
      quay_buffer_from_raw(&raw, what->dtype, in->tensor->ndim, in->tensor->shape, out_buffer);
  /* Without the deleter: the tensor is still the caller's. */
  if (status != QUAY_OK && quay_raw_buffer_forget(&raw) != QUAY_OK)
    return quay_last_error()->status;
  return status;
}

static quay_status import_tensor(const incoming *in, const quay_dlpack_import_options *options,
                                 quay_buffer **out_buffer) {
  found what = {.dtype = QUAY_DTYPE_NONE};
  QUAY_TRY(examine(in->tensor, &what));
  /* Raw buffers do not retain their owner: it is held until the buffer's storage does. */
  quay_allocator *allocator = NULL;
  if (options != NULL && options->allocator != NULL) {
    allocator = quay_allocator_retain(options->allocator);
  } else {
    QUAY_TRY(what.importer->find_allocator(&in->tensor->device, &allocator));
  }
  const quay_status status = make_buffer(in, &what, allocator, out_buffer);
  quay_allocator_release(allocator);
  return status;
}

quay_status quay_dlpack_import(quay_dl_managed_tensor_versioned *tensor,
                               const quay_dlpack_import_options *options,
                               quay_buffer **out_buffer) {
  if (out_buffer != NULL)
    *out_buffer = NULL;
  QUAY_TRY(check_arguments("quay_dlpack_import", tensor, "tensor", (const void *)out_buffer,
                           "out_buffer"));
  /* Of another major version nothing but the deleter may be used. */
  if (tensor->version.major != QUAY_DL_MAJOR_VERSION) {
    return quay__fail(QUAY_STATUS_UNSUPPORTED,
                      "the tensor is of DLPack version %" PRIu32 ".%" PRIu32
                      "; Quay imports version %d.x and unversioned tensors",
                      tensor->version.major, tensor->version.minor, QUAY_DL_MAJOR_VERSION);
  }
  const incoming in = {.tensor = &tensor->dl_tensor,
                       .read_only = (tensor->flags & QUAY_DL_FLAG_READ_ONLY) != 0,
                       .release = tensor->deleter != NULL ? release_versioned : NULL,
                       .managed = tensor};
  return import_tensor(&in, options, out_buffer);
}

quay_status quay_dlpack_import_unversioned(quay_dl_managed_tensor *tensor,
                                           const quay_dlpack_import_options *options,
                                           quay_buffer **out_buffer) {
  if (out_buffer != NULL)
    *out_buffer = NULL;
  QUAY_TRY(check_arguments("quay_dlpack_import_unversioned", tensor, "tensor",
                           (const void *)out_buffer, "out_buffer"));
  const incoming in = {.tensor = &tensor->dl_tensor,
                       .release = tensor->deleter != NULL ? release_unversioned : NULL,
                       .managed = tensor};
  return import_tensor(&in, options, out_buffer);
}
