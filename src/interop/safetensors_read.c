/* Opening safetensors files and taking buffers out of them. The rules of the header are in
 * safetensors_header.c. */
#include <inttypes.h>

#include "core/error.h"
#include "core/os.h"
#include "interop/safetensors_header.h"

struct quay_safetensors {
  quay_buffer *data; /* the bytes behind the header: a view of the mapping */
  quay__safetensors_header header;
};

static quay_status check_options(const char *path, const quay_map_options *options) {
  if (options == NULL)
    return QUAY_OK;
  if (options->mode != QUAY_MAP_READ_ONLY && options->mode != QUAY_MAP_COPY_ON_WRITE) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT,
                      "cannot open '%s': mode %d; a safetensors file is mapped READ_ONLY or "
                      "COPY_ON_WRITE",
                      path, (int)options->mode);
  }
  if (options->offset != 0 || options->length != 0) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT,
                      "cannot open '%s': offset and length are %" PRIu64 " and %" PRIu64
                      "; both must be 0, since the whole file is mapped",
                      path, options->offset, options->length);
  }
  return QUAY_OK;
}

/* Copies bytes of the file, which leaves the mapping alone: a file truncated meanwhile is an
 * error. */
static quay_status read_bytes(quay_buffer *mapping, uint64_t offset, uint64_t size, void *out) {
  quay_buffer *window = NULL;
  QUAY_TRY(quay_buffer_view(mapping, offset, size, &window));
  const quay_status status = quay_buffer_copy_out(window, out, size);
  quay_buffer_release(window);
  return status;
}

static quay_status read_length(const char *path, quay_buffer *mapping, uint64_t *out_length) {
  const uint64_t file_size = quay_buffer_size(mapping);
  if (file_size < QUAY__SAFETENSORS_LENGTH_SIZE) {
    return quay__fail(QUAY_STATUS_MALFORMED,
                      "'%s' has %" PRIu64 " bytes, too few for the header's length (8 bytes)", path,
                      file_size);
  }
  uint8_t bytes[QUAY__SAFETENSORS_LENGTH_SIZE];
  QUAY_TRY(read_bytes(mapping, 0, sizeof bytes, bytes));
  uint64_t length = 0;
  for (size_t i = 0; i < sizeof bytes; ++i)
    length |= (uint64_t)bytes[i] << (8 * i);
  if (length > QUAY_SAFETENSORS_HEADER_MAX) {
    return quay__fail(QUAY_STATUS_MALFORMED,
                      "'%s' says that its header has %" PRIu64 " bytes; at most %u are allowed",
                      path, length, QUAY_SAFETENSORS_HEADER_MAX);
  }
  if (length > file_size - sizeof bytes) {
    return quay__fail(QUAY_STATUS_MALFORMED,
                      "'%s' says that its header has %" PRIu64 " bytes, but only %" PRIu64
                      " follow: the file is cut off or no safetensors file",
                      path, length, file_size - sizeof bytes);
  }
  *out_length = length;
  return QUAY_OK;
}

static quay_status read_header(const char *path, quay_buffer *mapping, quay_safetensors *file) {
  uint64_t length = 0;
  QUAY_TRY(read_length(path, mapping, &length));
  char *json = quay__os_malloc((size_t)length + 1);
  if (json == NULL)
    return quay__fail_out_of_memory(length, "a safetensors header");
  const uint64_t data_offset = QUAY__SAFETENSORS_LENGTH_SIZE + length;
  const uint64_t data_size = quay_buffer_size(mapping) - data_offset;
  quay_status status = read_bytes(mapping, QUAY__SAFETENSORS_LENGTH_SIZE, length, json);
  if (status == QUAY_OK) {
    status = quay__safetensors_header_parse(path, json, (size_t)length, data_offset, data_size,
                                            &file->header);
  }
  if (status == QUAY_OK)
    status = quay_buffer_view(mapping, data_offset, data_size, &file->data);
  quay__os_free(json);
  return status;
}

quay_status quay_safetensors_open(const char *path, const quay_map_options *options,
                                  quay_safetensors **out_file) {
  if (path == NULL || out_file == NULL) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT, "quay_safetensors_open: %s is NULL",
                      path == NULL ? "path" : "out_file");
  }
  *out_file = NULL;
  QUAY_TRY(check_options(path, options));
  quay_safetensors *file = quay__os_calloc(1, sizeof *file);
  if (file == NULL)
    return quay__fail_out_of_memory(sizeof *file, "an open safetensors file");
  quay_buffer *mapping = NULL;
  quay_status status = quay_map_file(path, options, &mapping);
  if (status == QUAY_OK)
    status = read_header(path, mapping, file);
  quay_buffer_release(mapping);
  if (status != QUAY_OK) {
    quay_safetensors_close(file);
    return status;
  }
  *out_file = file;
  return QUAY_OK;
}

void quay_safetensors_close(quay_safetensors *file) {
  if (file == NULL)
    return;
  quay_buffer_release(file->data);
  quay__safetensors_header_free(&file->header);
  quay__os_free(file);
}

size_t quay_safetensors_count(const quay_safetensors *file) {
  return file == NULL ? 0 : file->header.count;
}

static quay_status check_index(const quay_safetensors *file, const void *out, const char *what,
                               size_t index, size_t count) {
  if (file == NULL || out == NULL) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT,
                      "a %s of a safetensors file was asked for: %s is NULL", what,
                      file == NULL ? "the file" : "the output parameter");
  }
  if (index < count)
    return QUAY_OK;
  return quay__fail(QUAY_STATUS_OUT_OF_RANGE,
                    "%s %zu of a safetensors file was asked for; it has %zu", what, index, count);
}

quay_status quay_safetensors_get(const quay_safetensors *file, size_t index,
                                 quay_safetensors_tensor *out_tensor) {
  QUAY_TRY(check_index(file, out_tensor, "tensor", index, quay_safetensors_count(file)));
  *out_tensor = file->header.tensors[index];
  return QUAY_OK;
}

quay_status quay_safetensors_find(const quay_safetensors *file, const char *name,
                                  size_t *out_index) {
  if (file == NULL || name == NULL || out_index == NULL) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT, "quay_safetensors_find: %s is NULL",
                      file == NULL   ? "file"
                      : name == NULL ? "name"
                                     : "out_index");
  }
  if (quay__safetensors_header_find(&file->header, name, out_index))
    return QUAY_OK;
  return quay__fail(QUAY_STATUS_INVALID_ARGUMENT,
                    "the safetensors file has no tensor named '%.200s' among its %zu", name,
                    file->header.count);
}

quay_status quay_safetensors_buffer(const quay_safetensors *file, size_t index,
                                    quay_buffer **out_buffer) {
  if (out_buffer != NULL)
    *out_buffer = NULL;
  QUAY_TRY(check_index(file, out_buffer, "tensor", index, quay_safetensors_count(file)));
  const quay_safetensors_tensor *tensor = &file->header.tensors[index];
  /* Offsets of tensors are counted from the start of the file, as the storage's are. */
  const uint64_t offset = tensor->offset - quay_buffer_offset(file->data);
  return quay_buffer_view_unaligned(file->data, offset, tensor->dtype, tensor->rank, tensor->shape,
                                    out_buffer);
}

quay_buffer *quay_safetensors_data(const quay_safetensors *file) {
  return file == NULL ? NULL : file->data;
}

size_t quay_safetensors_metadata_count(const quay_safetensors *file) {
  return file == NULL ? 0 : file->header.metadata_count;
}

quay_status quay_safetensors_get_metadata(const quay_safetensors *file, size_t index,
                                          quay_safetensors_metadata *out_metadata) {
  QUAY_TRY(check_index(file, out_metadata, "metadata pair", index,
                       quay_safetensors_metadata_count(file)));
  *out_metadata = file->header.metadata[index];
  return QUAY_OK;
}
