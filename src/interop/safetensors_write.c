/* Writing safetensors files, whole or not at all. Reading is in safetensors_read.c. */
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "core/atomic_file.h"
#include "core/checked.h"
#include "core/error.h"
#include "core/os.h"
#include "interop/safetensors_header.h"

/* The data begin at a multiple of this, in bytes: the largest element of the format. */
#define DATA_ALIGNMENT 8u
/* What is not pageable memory goes to the file through a block of this many bytes. */
#define CHUNK_SIZE (4u << 20)

/* One tensor at its place in the file. */
typedef struct placed {
  const char *name;
  const quay_buffer *buffer;
  const char *dtype_name;
  size_t element_size; /* bytes */
} placed;

typedef struct writer {
  const char *path;
  placed *tensors; /* in the order of the file */
  size_t count;
  char *header; /* length, JSON, padding */
  size_t header_size;
  uint64_t total_size; /* of the file */
  uint64_t done;       /* bytes written */
  quay__atomic_file file;
  void *chunk; /* NULL until it is needed */
  quay_progress_callback progress;
  void *progress_user;
} writer;

/* Length of the UTF-8 character that `text` begins with; 0 if it begins with none (Unicode 15,
 * table 3-7). */
static size_t utf8_character(const unsigned char *text) {
  const unsigned char first = text[0];
  if (first < 0x80)
    return 1;
  if (first < 0xC2 || first > 0xF4)
    return 0;
  const size_t size = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  const unsigned char low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const unsigned char high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  if (text[1] < low || text[1] > high)
    return 0;
  for (size_t i = 2; i < size; ++i) {
    if ((text[i] & 0xC0) != 0x80)
      return 0;
  }
  return size;
}

static bool is_utf8(const char *text) {
  const unsigned char *next = (const unsigned char *)text;
  while (*next != '\0') {
    const size_t size = utf8_character(next);
    if (size == 0)
      return false;
    next += size;
  }
  return true;
}

static quay_status check_entry(const writer *w, size_t index, const quay_safetensors_entry *entry) {
  const quay_status invalid = QUAY_STATUS_INVALID_ARGUMENT;
  if (entry->name == NULL || entry->buffer == NULL) {
    return quay__fail(invalid, "cannot write '%s': the %s of entry %zu is NULL", w->path,
                      entry->name == NULL ? "name" : "buffer", index);
  }
  if (!is_utf8(entry->name)) {
    return quay__fail(invalid, "cannot write '%s': the name '%.200s' is no UTF-8", w->path,
                      entry->name);
  }
  if (strcmp(entry->name, QUAY__SAFETENSORS_METADATA_KEY) == 0) {
    return quay__fail(invalid,
                      "cannot write '%s': a tensor cannot be named '%s', which the format "
                      "keeps for metadata",
                      w->path, entry->name);
  }
  const quay_dtype dtype = quay_buffer_dtype(entry->buffer);
  if (quay__safetensors_dtype_name(dtype) == NULL) {
    return quay__fail(
        QUAY_STATUS_UNSUPPORTED,
        "cannot write '%s': tensor '%.200s' is of dtype %s, which the format does not "
        "have",
        w->path, entry->name, quay_dtype_name(dtype));
  }
  if (!quay_buffer_is_allocated(entry->buffer)) {
    return quay__fail(
        QUAY_STATUS_NOT_ALLOCATED,
        "cannot write '%s': nothing has been written to the buffer of tensor '%.200s'", w->path,
        entry->name);
  }
  return quay_buffer_check(entry->buffer);
}

/* Largest elements first, so that each tensor stands at a multiple of its own element's size. */
static int compare_placed(const void *left, const void *right) {
  const placed *a = left, *b = right;
  if (a->element_size != b->element_size)
    return a->element_size > b->element_size ? -1 : 1;
  return strcmp(a->name, b->name);
}

static quay_status place_tensors(writer *w, const quay_safetensors_entry *entries, size_t count) {
  for (size_t i = 0; i < count; ++i)
    QUAY_TRY(check_entry(w, i, &entries[i]));
  w->tensors = quay__os_calloc(count + 1, sizeof *w->tensors);
  if (w->tensors == NULL)
    return quay__fail_out_of_memory(count, "the list of tensors");
  for (size_t i = 0; i < count; ++i) {
    const quay_dtype dtype = quay_buffer_dtype(entries[i].buffer);
    w->tensors[i] = (placed){.name = entries[i].name,
                             .buffer = entries[i].buffer,
                             .dtype_name = quay__safetensors_dtype_name(dtype),
                             .element_size = quay_dtype_size(dtype)};
  }
  w->count = count;
  qsort(w->tensors, count, sizeof *w->tensors, compare_placed);
  return QUAY_OK;
}

static quay_status fail_json_memory(void) {
  return quay__fail_out_of_memory(0, "the JSON of a safetensors header");
}

static quay_status add_metadata(const writer *w, json_t *root,
                                const quay_safetensors_metadata *metadata, size_t count) {
  if (count == 0)
    return QUAY_OK;
  json_t *pairs = json_object();
  if (json_object_set_new(root, QUAY__SAFETENSORS_METADATA_KEY, pairs) != 0) {
    return fail_json_memory();
  }
  for (size_t i = 0; i < count; ++i) {
    const char *key = metadata[i].key, *value = metadata[i].value;
    if (key == NULL || value == NULL || !is_utf8(key) || !is_utf8(value)) {
      return quay__fail(
          QUAY_STATUS_INVALID_ARGUMENT,
          "cannot write '%s': key and value of metadata pair %zu must be UTF-8 and not "
          "NULL",
          w->path, i);
    }
    if (json_object_get(pairs, key) != NULL) {
      return quay__fail(QUAY_STATUS_INVALID_ARGUMENT,
                        "cannot write '%s': two metadata pairs have the key '%.200s'", w->path,
                        key);
    }
    if (json_object_set_new(pairs, key, json_string(value)) != 0)
      return fail_json_memory();
  }
  return QUAY_OK;
}

/* NULL if there is no memory. */
static json_t *make_entry(const placed *tensor, uint64_t begin, uint64_t end) {
  json_t *shape = json_array();
  const int64_t *extents = quay_buffer_shape(tensor->buffer);
  for (int32_t i = 0; i < quay_buffer_rank(tensor->buffer); ++i) {
    if (json_array_append_new(shape, json_integer(extents[i])) != 0) {
      json_decref(shape);
      return NULL;
    }
  }
  /* Takes over `shape`, also when it fails. */
  return json_pack("{s:s, s:o, s:[I, I]}", "dtype", tensor->dtype_name, "shape", shape,
                   "data_offsets", (json_int_t)begin, (json_int_t)end);
}

static quay_status add_tensors(writer *w, json_t *root) {
  uint64_t position = 0;
  for (size_t i = 0; i < w->count; ++i) {
    const placed *tensor = &w->tensors[i];
    if (json_object_get(root, tensor->name) != NULL) {
      return quay__fail(QUAY_STATUS_INVALID_ARGUMENT,
                        "cannot write '%s': two tensors are named '%.200s'", w->path, tensor->name);
    }
    uint64_t end;
    if (!quay__add(position, quay_buffer_size(tensor->buffer), &end) || end > INT64_MAX) {
      return quay__fail(QUAY_STATUS_INVALID_ARGUMENT,
                        "cannot write '%s': the tensors have more than 2^63-1 bytes together",
                        w->path);
    }
    if (json_object_set_new(root, tensor->name, make_entry(tensor, position, end)) != 0) {
      return fail_json_memory();
    }
    position = end;
  }
  w->total_size = position;
  return QUAY_OK;
}

/* Length, JSON, and spaces up to the data. */
static quay_status format_header(writer *w, const json_t *root) {
  const size_t json_size = json_dumpb(root, NULL, 0, JSON_COMPACT);
  if (json_size == 0)
    return fail_json_memory();
  uint64_t padded;
  if (!quay__align_up(json_size, DATA_ALIGNMENT, &padded) || padded > QUAY_SAFETENSORS_HEADER_MAX) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT,
                      "cannot write '%s': its header would have %zu bytes; at most %u are allowed",
                      w->path, json_size, QUAY_SAFETENSORS_HEADER_MAX);
  }
  w->header_size = QUAY__SAFETENSORS_LENGTH_SIZE + (size_t)padded;
  w->header = quay__os_malloc(w->header_size);
  if (w->header == NULL)
    return quay__fail_out_of_memory(w->header_size, "a safetensors header");
  for (size_t i = 0; i < QUAY__SAFETENSORS_LENGTH_SIZE; ++i) {
    w->header[i] = (char)(unsigned char)(padded >> (8 * i));
  }
  char *json = w->header + QUAY__SAFETENSORS_LENGTH_SIZE;
  if (json_dumpb(root, json, json_size, JSON_COMPACT) != json_size)
    return fail_json_memory();
  memset(json + json_size, ' ', (size_t)padded - json_size);
  if (!quay__add(w->total_size, w->header_size, &w->total_size) || w->total_size > INT64_MAX) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT,
                      "cannot write '%s': the file would have more than 2^63-1 bytes", w->path);
  }
  return QUAY_OK;
}

static quay_status make_header(writer *w, const quay_safetensors_metadata *metadata,
                               size_t metadata_count) {
  json_t *root = json_object();
  if (root == NULL)
    return fail_json_memory();
  quay_status status = add_metadata(w, root, metadata, metadata_count);
  if (status == QUAY_OK)
    status = add_tensors(w, root);
  if (status == QUAY_OK)
    status = format_header(w, root);
  json_decref(root);
  return status;
}

static quay_status put(writer *w, const void *data, uint64_t size) {
  QUAY_TRY(quay__atomic_file_write(&w->file, w->done, data, size));
  w->done += size;
  if (w->progress == NULL || w->progress(w->progress_user, w->done, w->total_size))
    return QUAY_OK;
  return quay__fail(QUAY_STATUS_CANCELLED,
                    "writing '%s' was stopped by its progress callback after %" PRIu64
                    " of %" PRIu64 " bytes",
                    w->path, w->done, w->total_size);
}

/* Pageable memory is written from where it is; everything else is copied out first, a chunk at a
 * time, since a mapping must not be touched and a device's memory can't be. */
static quay_status put_chunk(writer *w, quay_buffer *window) {
  const uint64_t size = quay_buffer_size(window);
  if (quay_buffer_kind(window) == QUAY_MEMORY_PAGEABLE && quay_buffer_host_accessible(window)) {
    const void *bytes = NULL;
    QUAY_TRY(quay_buffer_host_bytes(window, &bytes, NULL));
    return put(w, bytes, size);
  }
  if (w->chunk == NULL)
    w->chunk = quay__os_malloc(CHUNK_SIZE);
  if (w->chunk == NULL)
    return quay__fail_out_of_memory(CHUNK_SIZE, "writing a file");
  QUAY_TRY(quay_buffer_copy_out(window, w->chunk, size));
  return put(w, w->chunk, size);
}

static quay_status put_buffer(writer *w, const quay_buffer *buffer) {
  const uint64_t size = quay_buffer_size(buffer);
  for (uint64_t offset = 0; offset < size; offset += CHUNK_SIZE) {
    quay_buffer *window = NULL;
    /* The view holds a reference of its own; the buffer itself stays as it is. */
    QUAY_TRY(quay_buffer_view((quay_buffer *)buffer, offset, quay__min(size - offset, CHUNK_SIZE),
                              &window));
    const quay_status status = put_chunk(w, window);
    quay_buffer_release(window);
    if (status != QUAY_OK)
      return status;
  }
  return QUAY_OK;
}

/* A progress callback may give back what the caller has of the buffers. */
static void retain_all(const writer *w) {
  for (size_t i = 0; i < w->count; ++i)
    (void)quay_buffer_retain((quay_buffer *)(uintptr_t)w->tensors[i].buffer);
}

static void release_all(const writer *w) {
  for (size_t i = 0; i < w->count; ++i)
    quay_buffer_release((quay_buffer *)(uintptr_t)w->tensors[i].buffer);
}

static quay_status write_file(writer *w, const quay_save_options *options) {
  QUAY_TRY(quay__atomic_file_begin(w->path, options->permissions, &w->file));
  QUAY_TRY(put(w, w->header, w->header_size));
  for (size_t i = 0; i < w->count; ++i)
    QUAY_TRY(put_buffer(w, w->tensors[i].buffer));
  return quay__atomic_file_commit(&w->file, !options->no_sync);
}

quay_status quay_safetensors_save(const char *path, const quay_safetensors_entry *entries,
                                  size_t entry_count, const quay_safetensors_metadata *metadata,
                                  size_t metadata_count, const quay_save_options *options) {
  if (path == NULL || (entries == NULL && entry_count != 0) ||
      (metadata == NULL && metadata_count != 0)) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT, "quay_safetensors_save: %s is NULL",
                      path == NULL                          ? "path"
                      : entries == NULL && entry_count != 0 ? "entries"
                                                            : "metadata");
  }
  const quay_save_options defaults = {.permissions = 0};
  if (options == NULL)
    options = &defaults;
  writer w = {.path = path,
              .file = QUAY__ATOMIC_FILE_NONE,
              .progress = options->progress,
              .progress_user = options->progress_user};
  quay_status status = place_tensors(&w, entries, entry_count);
  if (status == QUAY_OK)
    status = make_header(&w, metadata, metadata_count);
  if (status == QUAY_OK) {
    retain_all(&w);
    status = write_file(&w, options);
    release_all(&w);
  }
  if (status != QUAY_OK)
    status = quay__atomic_file_give_up(&w.file, status);
  quay__os_free(w.chunk);
  quay__os_free(w.header);
  quay__os_free(w.tensors);
  return status;
}
