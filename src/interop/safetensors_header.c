/* The header of a safetensors file: JSON by jansson, then every rule of the format. Opening files
 * and making buffers is in safetensors_read.c. */
#include "interop/safetensors_header.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "core/error.h"
#include "core/os.h"

/* Names in messages are cut to this many bytes, so that the rest of the message is seen. */
#define NAME_SHOWN 200

typedef struct parser {
  const char *path;
  uint64_t data_offset;
  uint64_t data_size;
  quay__safetensors_header *header;
  char *text_end;      /* where the next string goes */
  int64_t *extent_end; /* where the next shape goes */
} parser;

/* The dtypes that the reference implementation writes (safetensors, enum Dtype). */
static const struct {
  const char *name;
  quay_dtype dtype; /* QUAY_DTYPE_NONE: the format has it and Quay does not */
} dtypes[] = {
    {"BOOL", QUAY_BOOL},
    {"U8", QUAY_U8},
    {"I8", QUAY_I8},
    {"U16", QUAY_U16},
    {"I16", QUAY_I16},
    {"U32", QUAY_U32},
    {"I32", QUAY_I32},
    {"U64", QUAY_U64},
    {"I64", QUAY_I64},
    {"F16", QUAY_F16},
    {"BF16", QUAY_BF16},
    {"F32", QUAY_F32},
    {"F64", QUAY_F64},
    {"F8_E4M3", QUAY_F8_E4M3},
    {"F8_E5M2", QUAY_F8_E5M2},
    {"F8_E8M0", QUAY_F8_E8M0},
    {"C64", QUAY_C64},
    {"F4", QUAY_DTYPE_NONE},
    {"F6_E2M3", QUAY_DTYPE_NONE},
    {"F6_E3M2", QUAY_DTYPE_NONE},
};

#define DTYPE_COUNT (sizeof dtypes / sizeof dtypes[0])

const char *quay__safetensors_dtype_name(quay_dtype dtype) {
  for (size_t i = 0; i < DTYPE_COUNT; ++i) {
    if (dtypes[i].dtype == dtype && dtype != QUAY_DTYPE_NONE)
      return dtypes[i].name;
  }
  return NULL;
}

static quay_status fail_tensor(const parser *p, quay_status status, const char *name,
                               const char *format, ...) QUAY_PRINTF(4, 5);

static quay_status fail_tensor(const parser *p, quay_status status, const char *name,
                               const char *format, ...) {
  char what[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(what, sizeof what, format, arguments);
  va_end(arguments);
  return quay__fail(status, "'%s': tensor '%.*s' %s", p->path, NAME_SHOWN, name, what);
}

#define FAIL(p, name, ...) fail_tensor((p), QUAY_STATUS_MALFORMED, (name), __VA_ARGS__)

/* A piece of the header's text, as it is written: without quotes, with escapes. */
typedef struct piece {
  const char *text; /* NULL: there is none */
  int size;
} piece;

typedef struct place {
  piece entry;       /* the last key of the outermost object */
  piece last_string; /* the last string, key or value */
  int depth;         /* objects and arrays that are open */
} place;

static piece string_piece(const char *json, size_t begin, size_t end) {
  const size_t size = quay__min(end - begin, NAME_SHOWN);
  return (piece){.text = json + begin, .size = (int)size};
}

/* Where byte `end` of `json` stands; what follows may be anything. */
static place find_place(const char *json, size_t end) {
  place found = {.depth = 0};
  bool key_follows = false;
  for (size_t i = 0; i < end; ++i) {
    switch (json[i]) {
    case '{':
    case '[':
      ++found.depth;
      key_follows = found.depth == 1;
      break;
    case '}':
    case ']':
      --found.depth;
      break;
    case ',':
      key_follows = found.depth == 1;
      break;
    case '"': {
      const size_t begin = ++i;
      while (i < end && json[i] != '"')
        i += json[i] == '\\' ? 2 : 1;
      if (i >= end)
        return found; /* the string that is wrong itself */
      found.last_string = string_piece(json, begin, i);
      if (key_follows)
        found.entry = found.last_string;
      key_follows = false;
      break;
    }
    default: /* a character, not an enumeration */
      break;
    }
  }
  return found;
}

static quay_status fail_duplicate(const parser *p, const place *found) {
  const piece key = found->last_string;
  if (found->depth <= 1) {
    return quay__fail(QUAY_STATUS_MALFORMED, "'%s': the header has two entries named '%.*s'",
                      p->path, key.size, key.text);
  }
  return quay__fail(QUAY_STATUS_MALFORMED,
                    "'%s': the key '%.*s' stands twice in the header's entry '%.*s'", p->path,
                    key.size, key.text, found->entry.size, found->entry.text);
}

/* Turns jansson's error into one of ours that names the entry it is in. */
static quay_status fail_json(const parser *p, const char *json, size_t size,
                             const json_error_t *error) {
  const enum json_error_code code = json_error_code(error);
  /* Up to jansson 2.14 most failed allocations are told apart by nothing but an empty text. */
  if (code == json_error_out_of_memory || error->text[0] == '\0') {
    return quay__fail_out_of_memory(size, "the header's JSON");
  }
  const size_t position = error->position < 0 ? 0 : (size_t)error->position;
  const place found = find_place(json, quay__min(position, size));
  if (code == json_error_invalid_utf8) {
    return quay__fail(QUAY_STATUS_MALFORMED, "'%s': the header is no valid UTF-8: byte %zu",
                      p->path, position);
  }
  if (code == json_error_duplicate_key && found.last_string.text != NULL) {
    return fail_duplicate(p, &found);
  }
  if (found.entry.text == NULL) {
    return quay__fail(QUAY_STATUS_MALFORMED, "'%s': the header is no valid JSON: byte %zu: %s",
                      p->path, position, error->text);
  }
  return quay__fail(QUAY_STATUS_MALFORMED,
                    "'%s': the header is no valid JSON: byte %zu, in the entry '%.*s': %s", p->path,
                    position, found.entry.size, found.entry.text, error->text);
}

/* Copies a string to the header's own text. There is always room: JSON takes two bytes more for
 * each string (its quotes) than it has, and an escape is never shorter than what it stands for. */
static const char *keep_text(parser *p, const char *text) {
  const size_t size = strlen(text) + 1;
  char *copy = p->text_end;
  memcpy(copy, text, size);
  p->text_end += size;
  return copy;
}

static quay_status parse_metadata(parser *p, json_t *object) {
  if (!json_is_object(object)) {
    return quay__fail(QUAY_STATUS_MALFORMED,
                      "'%s': " QUAY__SAFETENSORS_METADATA_KEY
                      " is no object; it must be one of strings",
                      p->path);
  }
  const char *key;
  json_t *value;
  json_object_foreach(object, key, value) {
    const char *text = json_string_value(value);
    if (text == NULL) {
      return quay__fail(QUAY_STATUS_MALFORMED,
                        "'%s': the value of '%.*s' in " QUAY__SAFETENSORS_METADATA_KEY
                        " is no string",
                        p->path, NAME_SHOWN, key);
    }
    p->header->metadata[p->header->metadata_count++] =
        (quay_safetensors_metadata){.key = keep_text(p, key), .value = keep_text(p, text)};
  }
  return QUAY_OK;
}

/* The three parts of a tensor's entry. */
typedef struct entry {
  json_t *dtype, *shape, *offsets;
} entry;

static quay_status split_entry(const parser *p, const char *name, json_t *object, entry *out) {
  if (!json_is_object(object)) {
    return FAIL(p, name, "is no object; it must be one of dtype, shape and data_offsets");
  }
  *out = (entry){.dtype = json_object_get(object, "dtype"),
                 .shape = json_object_get(object, "shape"),
                 .offsets = json_object_get(object, "data_offsets")};
  if (out->dtype == NULL)
    return FAIL(p, name, "has no dtype");
  if (out->shape == NULL)
    return FAIL(p, name, "has no shape");
  if (out->offsets == NULL)
    return FAIL(p, name, "has no data_offsets");
  if (json_object_size(object) == 3)
    return QUAY_OK;
  const char *key;
  json_t *value;
  json_object_foreach(object, key, value) {
    if (value != out->dtype && value != out->shape && value != out->offsets)
      break;
  }
  return FAIL(p, name, "has an unknown key '%.*s'; dtype, shape and data_offsets are possible",
              NAME_SHOWN, key);
}

static quay_status parse_dtype(const parser *p, const char *name, const json_t *value,
                               quay_safetensors_tensor *tensor) {
  const char *text = json_string_value(value);
  if (text == NULL)
    return FAIL(p, name, "has a dtype that is no string");
  for (size_t i = 0; i < DTYPE_COUNT; ++i) {
    if (strcmp(dtypes[i].name, text) != 0)
      continue;
    if (dtypes[i].dtype == QUAY_DTYPE_NONE) {
      return fail_tensor(p, QUAY_STATUS_UNSUPPORTED, name,
                         "has dtype %s, whose elements are no whole bytes", text);
    }
    tensor->dtype = dtypes[i].dtype;
    tensor->dtype_name = dtypes[i].name;
    return QUAY_OK;
  }
  return FAIL(p, name, "has an unknown dtype '%.*s'; such as F32, BF16 and U8 are possible",
              NAME_SHOWN, text);
}

static quay_status parse_shape(parser *p, const char *name, const json_t *value,
                               quay_safetensors_tensor *tensor) {
  if (!json_is_array(value))
    return FAIL(p, name, "has a shape that is no array");
  const size_t rank = json_array_size(value);
  if (rank > QUAY_RANK_MAX) {
    return fail_tensor(p, QUAY_STATUS_UNSUPPORTED, name,
                       "has %zu dimensions; at most %d are possible", rank, QUAY_RANK_MAX);
  }
  tensor->rank = (int32_t)rank;
  tensor->shape = p->extent_end;
  for (size_t i = 0; i < rank; ++i) {
    const json_t *extent = json_array_get(value, i);
    if (!json_is_integer(extent))
      return FAIL(p, name, "has a shape with an extent that is no integer, number %zu", i);
    const json_int_t number = json_integer_value(extent);
    if (number < 0) {
      return FAIL(p, name, "has a negative extent, number %zu of its shape: %" JSON_INTEGER_FORMAT,
                  i, number);
    }
    *p->extent_end++ = number;
  }
  return QUAY_OK;
}

static quay_status parse_offsets(const parser *p, const char *name, const json_t *value,
                                 uint64_t *out_begin, uint64_t *out_end) {
  if (!json_is_array(value) || json_array_size(value) != 2) {
    return FAIL(p, name, "has data_offsets that are no array of two integers");
  }
  const json_t *begin = json_array_get(value, 0), *end = json_array_get(value, 1);
  if (!json_is_integer(begin) || !json_is_integer(end)) {
    return FAIL(p, name, "has data_offsets that are no integers");
  }
  if (json_integer_value(begin) < 0 || json_integer_value(end) < 0) {
    return FAIL(p, name, "has negative data_offsets");
  }
  *out_begin = (uint64_t)json_integer_value(begin);
  *out_end = (uint64_t)json_integer_value(end);
  if (*out_begin > *out_end) {
    return FAIL(p, name, "has data_offsets that end before they begin: [%" PRIu64 ", %" PRIu64 "]",
                *out_begin, *out_end);
  }
  if (*out_end > p->data_size) {
    return FAIL(p, name,
                "reaches beyond the file: its data_offsets are [%" PRIu64 ", %" PRIu64
                "], and the file has %" PRIu64 " bytes of data",
                *out_begin, *out_end, p->data_size);
  }
  return QUAY_OK;
}

static quay_status parse_tensor(parser *p, const char *name, json_t *object) {
  quay_safetensors_tensor tensor = {.name = NULL};
  entry parts = {.dtype = NULL};
  uint64_t begin = 0, end = 0, size = 0;
  QUAY_TRY(split_entry(p, name, object, &parts));
  QUAY_TRY(parse_dtype(p, name, parts.dtype, &tensor));
  QUAY_TRY(parse_shape(p, name, parts.shape, &tensor));
  QUAY_TRY(parse_offsets(p, name, parts.offsets, &begin, &end));
  if (quay_dtype_array_size(tensor.dtype, tensor.rank, tensor.shape, &size) != QUAY_OK) {
    return FAIL(p, name, "has a shape of more than 2^63-1 bytes");
  }
  if (size != end - begin) {
    return FAIL(p, name,
                "has %" PRIu64 " bytes of data (data_offsets [%" PRIu64 ", %" PRIu64
                "]), but its shape and dtype %s take %" PRIu64,
                end - begin, begin, end, tensor.dtype_name, size);
  }
  tensor.name = keep_text(p, name);
  tensor.offset = begin; /* from the start of the data until all are checked */
  tensor.size = size;
  p->header->tensors[p->header->count++] = tensor;
  return QUAY_OK;
}

/* By begin, then end, so that empty tensors stand before their neighbour; then by name. */
static int compare_by_data(const void *left, const void *right) {
  const quay_safetensors_tensor *a = left, *b = right;
  if (a->offset != b->offset)
    return a->offset < b->offset ? -1 : 1;
  if (a->size != b->size)
    return a->size < b->size ? -1 : 1;
  return strcmp(a->name, b->name);
}

/* Every byte of the data belongs to exactly one tensor. */
static quay_status check_layout(const parser *p) {
  quay__safetensors_header *header = p->header;
  uint64_t position = 0;
  for (size_t i = 0; i < header->count; ++i) {
    quay_safetensors_tensor *tensor = &header->tensors[i];
    if (tensor->offset < position) {
      return FAIL(p, tensor->name,
                  "begins at byte %" PRIu64
                  " of the data, inside tensor '%.*s', which ends at %" PRIu64,
                  tensor->offset, NAME_SHOWN, header->tensors[i - 1].name, position);
    }
    if (tensor->offset > position) {
      return FAIL(p, tensor->name,
                  "leaves a hole before it: it begins at byte %" PRIu64
                  " of the data, and what is before it ends at %" PRIu64,
                  tensor->offset, position);
    }
    position += tensor->size;
    tensor->offset += p->data_offset;
  }
  if (position == p->data_size)
    return QUAY_OK;
  return quay__fail(QUAY_STATUS_MALFORMED,
                    "'%s': the last %" PRIu64
                    " bytes belong to no tensor: the tensors end at byte %" PRIu64 " of %" PRIu64
                    " bytes of data",
                    p->path, p->data_size - position, position, p->data_size);
}

typedef struct named_index {
  const char *name;
  size_t index;
} named_index;

static int compare_by_name(const void *left, const void *right) {
  const named_index *a = left, *b = right;
  return strcmp(a->name, b->name);
}

static quay_status index_by_name(quay__safetensors_header *header) {
  const size_t size = header->count * sizeof(named_index);
  named_index *names = quay__os_malloc(size + 1);
  if (names == NULL)
    return quay__fail_out_of_memory(size, "the index of tensors");
  for (size_t i = 0; i < header->count; ++i) {
    names[i] = (named_index){.name = header->tensors[i].name, .index = i};
  }
  qsort(names, header->count, sizeof *names, compare_by_name);
  for (size_t i = 0; i < header->count; ++i)
    header->by_name[i] = names[i].index;
  quay__os_free(names);
  return QUAY_OK;
}

/* Room for all that the header can hold; nothing grows later. Counts are bounded by the size of the
 * JSON, so that the sums can't overflow. */
static quay_status allocate(parser *p, json_t *root, size_t json_size) {
  size_t extents = 0, pairs = 0;
  const char *key;
  json_t *value;
  json_object_foreach(root, key, value) {
    extents += json_array_size(json_object_get(value, "shape"));
    if (strcmp(key, QUAY__SAFETENSORS_METADATA_KEY) == 0)
      pairs = json_object_size(value);
  }
  quay__safetensors_header *header = p->header;
  const size_t count = json_object_size(root);
  header->tensors = quay__os_calloc(count + 1, sizeof *header->tensors);
  header->by_name = quay__os_calloc(count + 1, sizeof *header->by_name);
  header->metadata = quay__os_calloc(pairs + 1, sizeof *header->metadata);
  header->text = quay__os_malloc(json_size);
  header->extents = quay__os_calloc(extents + 1, sizeof *header->extents);
  if (header->tensors == NULL || header->by_name == NULL || header->metadata == NULL ||
      header->text == NULL || header->extents == NULL) {
    return quay__fail_out_of_memory(json_size, "the list of tensors");
  }
  p->text_end = header->text;
  p->extent_end = header->extents;
  return QUAY_OK;
}

static quay_status parse_entries(parser *p, json_t *root) {
  const char *key;
  json_t *value;
  json_object_foreach(root, key, value) {
    if (strcmp(key, QUAY__SAFETENSORS_METADATA_KEY) == 0) {
      QUAY_TRY(parse_metadata(p, value));
    } else {
      QUAY_TRY(parse_tensor(p, key, value));
    }
  }
  qsort(p->header->tensors, p->header->count, sizeof *p->header->tensors, compare_by_data);
  QUAY_TRY(check_layout(p));
  return index_by_name(p->header);
}

quay_status quay__safetensors_header_parse(const char *path, const char *json, size_t size,
                                           uint64_t data_offset, uint64_t data_size,
                                           quay__safetensors_header *out_header) {
  *out_header = (quay__safetensors_header){.count = 0};
  parser p = {
      .path = path, .data_offset = data_offset, .data_size = data_size, .header = out_header};
  if (size == 0 || json[0] != '{') {
    return quay__fail(QUAY_STATUS_MALFORMED, "'%s': the header does not begin with '{'", path);
  }
  json_error_t error;
  json_t *root = json_loadb(json, size, JSON_REJECT_DUPLICATES, &error);
  if (root == NULL)
    return fail_json(&p, json, size, &error);
  quay_status status = allocate(&p, root, size);
  if (status == QUAY_OK)
    status = parse_entries(&p, root);
  json_decref(root);
  if (status != QUAY_OK)
    quay__safetensors_header_free(out_header);
  return status;
}

void quay__safetensors_header_free(quay__safetensors_header *header) {
  quay__os_free(header->tensors);
  quay__os_free(header->by_name);
  quay__os_free(header->metadata);
  quay__os_free(header->text);
  quay__os_free(header->extents);
  *header = (quay__safetensors_header){.count = 0};
}

bool quay__safetensors_header_find(const quay__safetensors_header *header, const char *name,
                                   size_t *out_index) {
  size_t low = 0, high = header->count;
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    const size_t index = header->by_name[middle];
    const int order = strcmp(name, header->tensors[index].name);
    if (order == 0) {
      *out_index = index;
      return true;
    }
    if (order < 0) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return false;
}
