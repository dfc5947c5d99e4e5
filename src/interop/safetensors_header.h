/* The header of a safetensors file: parsed and checked here, used by the reader; and the names of
 * dtypes, used by reader and writer. Knows no files and no buffers. */
#ifndef QUAY_INTEROP_SAFETENSORS_HEADER_H
#define QUAY_INTEROP_SAFETENSORS_HEADER_H

#include <quay/safetensors.h>

/* Bytes before the header: its length, little-endian. */
#define QUAY__SAFETENSORS_LENGTH_SIZE 8u

/* The key that holds pairs of strings instead of a tensor. */
#define QUAY__SAFETENSORS_METADATA_KEY "__metadata__"

/* A checked header. Strings and shapes stand in `text` and `extents`. */
typedef struct quay__safetensors_header {
  quay_safetensors_tensor *tensors; /* in the order of their data */
  size_t count;
  size_t *by_name; /* indices of tensors, by their names in the order of strcmp() */
  quay_safetensors_metadata *metadata; /* in the order of the header */
  size_t metadata_count;
  char *text;
  int64_t *extents;
} quay__safetensors_header;

/* Parses the `size` bytes of JSON at `json` and checks every rule of the format. The data begin at
 * `data_offset` in the file and have `data_size` bytes. `path` is for messages.
 * Errors: MALFORMED, UNSUPPORTED, OUT_OF_HOST_MEMORY. On error `*out_header` is all zero. */
quay_status quay__safetensors_header_parse(const char *path, const char *json, size_t size,
                                           uint64_t data_offset, uint64_t data_size,
                                           quay__safetensors_header *out_header);

/* Frees what parse filled in and zeroes it. All zero is a no-op. */
void quay__safetensors_header_free(quay__safetensors_header *header);

/* The index of the tensor named `name`, or false. */
bool quay__safetensors_header_find(const quay__safetensors_header *header, const char *name,
                                   size_t *out_index);

/* The format's name of `dtype`, "BF16"; NULL if it has none. Static. */
const char *quay__safetensors_dtype_name(quay_dtype dtype);

#endif
