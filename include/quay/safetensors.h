/* The safetensors component: model files as named tensors, which are views of one mapping.
 *
 * The format: 8 bytes of little-endian header length, a JSON header, the data. Reading is as strict
 * as the format's specification (github.com/huggingface/safetensors, "Format"): every violation has
 * its own message, with the tensor's name. Nothing outside the file is read, whatever its bytes
 * are, and opening a file reads nothing but the header.
 *
 * Memory: while a file is opened, about 15 times the header's bytes, since its JSON is parsed as a
 * whole (100,000 tensors, a header of 8 MB: a process of 121 MB at its peak), given back before the
 * call returns.
 *
 * Links with quay::safetensors, which needs jansson. */
#ifndef QUAY_SAFETENSORS_H
#define QUAY_SAFETENSORS_H

#include <quay/base.h>
#include <quay/buffer.h>
#include <quay/dtype.h>
#include <quay/mmap.h>
#include <quay/status.h>

/* Longest header that is read or written, in bytes, as in the reference implementation. */
#define QUAY_SAFETENSORS_HEADER_MAX 100000000u

/* An open file. Immutable, except for its reference count. */
typedef struct quay_safetensors quay_safetensors;

/* One tensor of a file. Strings and shape live as long as the file is open. */
typedef struct quay_safetensors_tensor {
  const char *name;       /* UTF-8 */
  const char *dtype_name; /* as in the file: "F32", "BF16" */
  quay_dtype dtype;
  int32_t rank;
  const int64_t *shape; /* `rank` extents */
  uint64_t offset;      /* of the first byte, from the start of the file */
  uint64_t size;        /* bytes */
} quay_safetensors_tensor;

/* One tensor to write. */
typedef struct quay_safetensors_entry {
  const char *name; /* UTF-8, not "__metadata__" */
  const quay_buffer *buffer;
} quay_safetensors_entry;

/* One pair of a file's free-form metadata. */
typedef struct quay_safetensors_metadata {
  const char *key;
  const char *value;
} quay_safetensors_metadata;

QUAY_BEGIN_DECLS

/* Opens a file read only and checks all of its header. `options` NULL means the defaults; of them
 * `direct` and `buffered` are used, mode may be READ_ONLY or COPY_ON_WRITE, offset and length must
 * be 0.
 * Errors: those of quay_map_file(); MALFORMED with the tensor's name (the message tells which rule
 * is broken); UNSUPPORTED for a dtype of the format that Quay does not have (sub-byte ones);
 * OUT_OF_HOST_MEMORY.
 * Ownership: the caller closes it.
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_safetensors_open(const char *path,
                                                          const quay_map_options *options,
                                                          quay_safetensors **out_file);

/* Closes the file. Buffers that were taken from it stay valid. NULL is a no-op.
 * Thread-safety: no other thread may use the file object at the same time. */
QUAY_API void quay_safetensors_close(quay_safetensors *file);

/* Number of tensors.
 * Thread-safety: any thread. */
QUAY_API size_t quay_safetensors_count(const quay_safetensors *file);

/* Tensor number `index`, in the order of their data in the file.
 * Errors: INVALID_ARGUMENT (NULL), OUT_OF_RANGE.
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_safetensors_get(const quay_safetensors *file, size_t index,
                                                         quay_safetensors_tensor *out_tensor);

/* The index of the tensor named `name`.
 * Errors: INVALID_ARGUMENT (NULL, or no such tensor: the message quotes the name).
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_safetensors_find(const quay_safetensors *file,
                                                          const char *name, size_t *out_index);

/* Tensor number `index` as a view of the mapping, with its dtype and shape: sealed if the file was
 * opened READ_ONLY; of one opened COPY_ON_WRITE writable, which never changes the file. Where the
 * offset in the file does not suit the dtype's alignment, typed host access answers MISALIGNED and
 * copies work.
 * Errors: INVALID_ARGUMENT (NULL), OUT_OF_RANGE, OUT_OF_HOST_MEMORY.
 * Ownership: the caller releases it; it keeps the mapping alive.
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_safetensors_buffer(const quay_safetensors *file,
                                                            size_t index, quay_buffer **out_buffer);

/* All tensors' data as one buffer: dtype U8. Lent: lives as long as the file is open.
 * Thread-safety: any thread. */
QUAY_API quay_buffer *quay_safetensors_data(const quay_safetensors *file);

/* Number of metadata pairs, and pair number `index` in the header's order; its strings live as
 * long as the file is open.
 * Errors: INVALID_ARGUMENT (NULL), OUT_OF_RANGE.
 * Thread-safety: any thread. */
QUAY_API size_t quay_safetensors_metadata_count(const quay_safetensors *file);
QUAY_API QUAY_NODISCARD quay_status quay_safetensors_get_metadata(
    const quay_safetensors *file, size_t index, quay_safetensors_metadata *out_metadata);

/* Writes a file, which appears whole or not at all (see quay_buffer_save() for how, and for
 * `options`). Data stand in the order of their elements' size, largest first, then by name, so that
 * each is aligned; the header is padded with spaces to a multiple of 8 bytes. Buffers may be of any
 * kind of memory.
 * Errors: INVALID_ARGUMENT (NULL, an empty list is fine; a name that is twice there, reserved or no
 * UTF-8; a header above QUAY_SAFETENSORS_HEADER_MAX); UNSUPPORTED (a dtype that the format does not
 * have); NOT_ALLOCATED; those of quay_buffer_save().
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_safetensors_save(const char *path,
                                                          const quay_safetensors_entry *entries,
                                                          size_t entry_count,
                                                          const quay_safetensors_metadata *metadata,
                                                          size_t metadata_count,
                                                          const quay_save_options *options);

QUAY_END_DECLS

#endif
