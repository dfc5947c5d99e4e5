/* DLPack: exchanging tensors with NumPy, PyTorch, CuPy, JAX and whoever else speaks it, in one
 * process and without copying a byte.
 *
 * The structures below have the layout of DLPack's, field by field, and can be cast to and from
 * them: quay_dl_managed_tensor_versioned is DLManagedTensorVersioned, quay_dl_managed_tensor is
 * DLManagedTensor (the unversioned one that DLPack keeps for old consumers), quay_dl_tensor is
 * DLTensor. The names are Quay's own, so that a program may include the official header, too.
 * Source of layouts, numbers and rules: dlpack.h of DLPack, version 1.2; the fields' names are its.
 *
 * In Python a versioned tensor travels in a capsule named "dltensor_versioned", an unversioned one
 * in "dltensor"; whoever imports it renames the capsule to "used_dltensor_versioned" or
 * "used_dltensor" (DLPack's Python specification, "Implementation").
 *
 * Tensors are compact and row-major on both ways: Quay's buffers have no strides. */
#ifndef QUAY_DLPACK_H
#define QUAY_DLPACK_H

#include <quay/allocator.h>
#include <quay/base.h>
#include <quay/buffer.h>
#include <quay/status.h>
#include <quay/stream.h>

/* The version that exported tensors carry. Tensors of every minor version can be imported. */
#define QUAY_DL_MAJOR_VERSION 1
#define QUAY_DL_MINOR_VERSION 2

/* DLPackVersion */
typedef struct quay_dl_version {
  uint32_t major;
  uint32_t minor;
} quay_dl_version;

/* DLDeviceType, as far as Quay has to do with it. quay_device_type_id has the same numbers. */
typedef enum quay_dl_device_type {
  QUAY_DL_CPU = 1,           /* kDLCPU */
  QUAY_DL_CUDA = 2,          /* kDLCUDA */
  QUAY_DL_CUDA_HOST = 3,     /* kDLCUDAHost: pinned host memory */
  QUAY_DL_VULKAN = 7,        /* kDLVulkan */
  QUAY_DL_EXTERNAL = 12,     /* kDLExtDev */
  QUAY_DL_CUDA_MANAGED = 13, /* kDLCUDAManaged */
} quay_dl_device_type;

/* DLDevice */
typedef struct quay_dl_device {
  int32_t device_type; /* quay_dl_device_type, or another number of DLDeviceType */
  int32_t device_id;   /* 0 for host, pinned and managed memory */
} quay_dl_device;

/* DLDataTypeCode, as far as Quay has a dtype for it. The 8-bit floats are new in DLPack 1.1. */
typedef enum quay_dl_type_code {
  QUAY_DL_INT = 0,            /* kDLInt */
  QUAY_DL_UINT = 1,           /* kDLUInt */
  QUAY_DL_FLOAT = 2,          /* kDLFloat */
  QUAY_DL_BFLOAT = 4,         /* kDLBfloat */
  QUAY_DL_COMPLEX = 5,        /* kDLComplex: `bits` of both parts together */
  QUAY_DL_BOOL = 6,           /* kDLBool: 8 bits */
  QUAY_DL_FLOAT8_E4M3FN = 10, /* kDLFloat8_e4m3fn */
  QUAY_DL_FLOAT8_E5M2 = 12,   /* kDLFloat8_e5m2 */
  QUAY_DL_FLOAT8_E8M0FNU = 14 /* kDLFloat8_e8m0fnu */
} quay_dl_type_code;

/* DLDataType */
typedef struct quay_dl_dtype {
  uint8_t code; /* quay_dl_type_code, or another number of DLDataTypeCode */
  uint8_t bits; /* of one lane */
  uint16_t lanes;
} quay_dl_dtype;

/* DLTensor */
typedef struct quay_dl_tensor {
  void *data; /* an address in the device's own address space; may be NULL if the tensor is empty */
  quay_dl_device device;
  int32_t ndim;
  quay_dl_dtype dtype;
  int64_t *shape;       /* `ndim` extents */
  int64_t *strides;     /* `ndim`, in elements; NULL (before version 1.2): compact, row-major */
  uint64_t byte_offset; /* of the first element from `data` */
} quay_dl_tensor;

/* Bits of the versioned tensor's flags: DLPACK_FLAG_BITMASK_READ_ONLY and _IS_COPIED. */
#define QUAY_DL_FLAG_READ_ONLY (UINT64_C(1) << 0)
#define QUAY_DL_FLAG_IS_COPIED (UINT64_C(1) << 1)

/* DLManagedTensorVersioned */
typedef struct quay_dl_managed_tensor_versioned {
  quay_dl_version version;
  void *manager_ctx; /* the producer's */
  /* To be called once by whoever owns the tensor when done with it; frees the structure. May be
   * NULL. */
  void (*deleter)(struct quay_dl_managed_tensor_versioned *self);
  uint64_t flags;
  quay_dl_tensor dl_tensor;
} quay_dl_managed_tensor_versioned;

/* DLManagedTensor */
typedef struct quay_dl_managed_tensor {
  quay_dl_tensor dl_tensor;
  void *manager_ctx;
  void (*deleter)(struct quay_dl_managed_tensor *self);
} quay_dl_managed_tensor;

/* Zero means the defaults. */
typedef struct quay_dlpack_export_options {
  /* The consumer's stream, of the buffer's device: later work on it is ordered after the device
   * work that is recorded for the window, and when the deleter runs, the work submitted to it so
   * far is recorded as a use of the window, so that memory is not used again before it is done. The
   * export retains the stream; a wrapped one must live until the deleter has run. NULL: the call
   * waits on the host until the recorded work is done, and nothing is recorded by the deleter: the
   * consumer must have finished by then. */
  quay_stream *stream;
  /* Unversioned tensors alone, which can't say that they are read-only: export a sealed buffer all
   * the same, trusting the consumer not to write to it. */
  bool allow_unmarked_read_only;
} quay_dlpack_export_options;

/* Zero means the defaults. */
typedef struct quay_dlpack_import_options {
  /* Owner of the imported memory, which it neither allocates nor counts; must make memory of the
   * tensor's kind on the tensor's device. NULL: the default allocator where it does, else the
   * device's plain backend ("cpu" for host memory, "cuda:1" for kDLCUDA, 1). */
  quay_allocator *allocator;
} quay_dlpack_import_options;

QUAY_BEGIN_DECLS

/* Export. */

/* Describes the buffer's window as a versioned tensor that shares its memory: the buffer's dtype
 * and shape, strides that are filled in, byte_offset 0, `data` at the window's first byte (aligned
 * as the window is: views can begin anywhere), the read-only flag if the storage is sealed now. The
 * storage stays alive until the consumer has called the deleter, from any thread; all of the
 * program's own references may be released before. What goes wrong in the deleter is reported
 * through the log callback. What the consumer writes is not tracked: see `stream` above. `options`
 * NULL means the defaults.
 * Errors: INVALID_ARGUMENT (NULL, a stream of another device); NOT_ALLOCATED (a lazy buffer that
 * nothing was written to); UNSUPPORTED (the memory has no address); STALE; DEVICE_LOST; BUSY (an
 * access that conflicts with the consumer's is open on another stream); OUT_OF_HOST_MEMORY. On
 * error `*out_tensor` is NULL.
 * Ownership: the caller's, until a consumer takes it over: one deleter call ends it.
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status
quay_dlpack_export(quay_buffer *buffer, const quay_dlpack_export_options *options,
                   quay_dl_managed_tensor_versioned **out_tensor);

/* The same as an unversioned tensor, for consumers that know nothing newer.
 * Further errors: READ_ONLY (the storage is sealed, which this structure can't say; see
 * allow_unmarked_read_only).
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status
quay_dlpack_export_unversioned(quay_buffer *buffer, const quay_dlpack_export_options *options,
                               quay_dl_managed_tensor **out_tensor);

/* Import. */

/* Makes a buffer of a versioned tensor; no byte is copied. The tensor must be compact and row-major
 * (extents of 1 and empty tensors may have any strides); `data` may be aligned in any way, typed
 * host access answers MISALIGNED where it must. A tensor that is flagged read-only gives a sealed
 * buffer. The producer's work on the tensor must be done or ordered before the buffer is used: the
 * producer sees to that when it exports. Of CUDA memory the driver is asked whether it is what the
 * tensor says. `options` NULL means the defaults.
 * Ownership: on success the tensor is the storage's: its deleter, if it has one, is called once
 * when the storage dies, on the thread that gives the last reference back; while recorded device
 * work on it is under way it is kept, and the deleter called by whoever finds the work done
 * (quay_collect()). On error the tensor is
 * still the caller's, who has to call the deleter, and `*out_buffer` is NULL.
 * Errors: INVALID_ARGUMENT (NULL; a negative rank or extent; a rank above QUAY_RANK_MAX; no data
 * for a tensor that is not empty; an address that wraps around); OUT_OF_RANGE (more than 2^63-1
 * bytes); UNSUPPORTED, with what the tensor has in the message (a major version that is not 1, more
 * than one lane, a data type that no dtype stands for, strides that are not compact, a device whose
 * memory can't be imported, an allocator of other memory); UNAVAILABLE (CUDA memory without a
 * driver, or of a device that is not there); OUT_OF_HOST_MEMORY; those of quay_cuda_adopt() and
 * quay_default_allocator_get().
 * Thread-safety: any thread; the tensor is the caller's to synchronise. */
QUAY_API QUAY_NODISCARD quay_status quay_dlpack_import(quay_dl_managed_tensor_versioned *tensor,
                                                       const quay_dlpack_import_options *options,
                                                       quay_buffer **out_buffer);

/* The same for an unversioned tensor, which is never read-only.
 * Thread-safety: any thread; the tensor is the caller's to synchronise. */
QUAY_API QUAY_NODISCARD quay_status
quay_dlpack_import_unversioned(quay_dl_managed_tensor *tensor,
                               const quay_dlpack_import_options *options, quay_buffer **out_buffer);

QUAY_END_DECLS

#endif
