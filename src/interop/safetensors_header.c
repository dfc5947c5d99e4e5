/* The header of a safetensors file: every rule of the format, over the JSON that json_reader.c
 * reads. Opening files and making buffers is in safetensors_read.c.
 *
 * Not by jansson, which writes headers: version 2.14 reports memory that ran out as a mistake in
 * the text and goes on with a token whose buffer could not grow, and its tree takes twelve times
 * the bytes of the header. */
#include "interop/safetensors_header.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/checked.h"
#include "core/error.h"
#include "core/os.h"
#include "interop/json_reader.h"

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

/* The last key of the outermost object before byte `end` of `json`; what follows may be anything.
 */
static piece find_entry(const char *json, size_t end) {
  piece entry = {.text = NULL};
  int depth = 0;
  bool key_follows = false;
  for (size_t i = 0; i < end; ++i) {
    switch (json[i]) {
    case '{':
    case '[':
      ++depth;
      key_follows = depth == 1;
      break;
    case '}':
    case ']':
      --depth;
      break;
    case ',':
      key_follows = depth == 1;
      break;
    case '"': {
      const size_t begin = ++i;
      while (i < end && json[i] != '"')
        i += json[i] == '\\' ? 2 : 1;
      if (i >= end)
        return entry; /* the string that is wrong itself */
      if (key_follows)
        entry = (piece){.text = json + begin, .size = (int)quay__min(i - begin, NAME_SHOWN)};
      key_follows = false;
      break;
    }
    default: /* a character, not an enumeration */
      break;
    }
  }
  return entry;
}

/* Names the entry that the problem is in. */
static quay_status fail_json(const parser *p, const char *json, const quay__json_problem *problem) {
  if (problem->is_utf8) {
    return quay__fail(QUAY_STATUS_MALFORMED, "'%s': the header is no valid UTF-8: byte %zu",
                      p->path, problem->position);
  }
  const piece entry = find_entry(json, problem->position);
  if (entry.text == NULL) {
    return quay__fail(QUAY_STATUS_MALFORMED, "'%s': the header is no valid JSON: byte %zu: %s",
                      p->path, problem->position, problem->text);
  }
  return quay__fail(QUAY_STATUS_MALFORMED,
                    "'%s': the header is no valid JSON: byte %zu, in the entry '%.*s': %s", p->path,
                    problem->position, entry.size, entry.text, problem->text);
}

static quay_status fail_twice(const parser *p, const char *key, const char *entry) {
  return quay__fail(QUAY_STATUS_MALFORMED,
                    "'%s': the key '%.*s' stands twice in the header's entry '%.*s'", p->path,
                    NAME_SHOWN, key, NAME_SHOWN, entry);
}

/* Decodes a string to where the header's own text goes on, until the next one. There is always
 * room: JSON takes two bytes more for each string (its quotes) than it has, and an escape is never
 * shorter than what it stands for. */
static const char *peek_text(parser *p, const char *string) {
  quay__json_decode(string, p->text_end);
  return p->text_end;
}

static const char *keep_text(parser *p, const char *string) {
  char *text = p->text_end;
  p->text_end += quay__json_decode(string, text) + 1;
  return text;
}

static int compare_by_key(const void *left, const void *right) {
  const char *const *a = left, *const *b = right;
  return strcmp(*a, *b);
}

static quay_status check_metadata_keys(const parser *p) {
  const size_t count = p->header->metadata_count;
  const char **keys = quay__os_calloc(count + 1, sizeof *keys);
  if (keys == NULL)
    return quay__fail_out_of_memory(count * sizeof *keys, "the keys of a file's metadata");
  for (size_t i = 0; i < count; ++i)
    keys[i] = p->header->metadata[i].key;
  qsort(keys, count, sizeof *keys, compare_by_key);
  quay_status status = QUAY_OK;
  for (size_t i = 1; i < count && status == QUAY_OK; ++i) {
    if (strcmp(keys[i - 1], keys[i]) == 0)
      status = fail_twice(p, keys[i], QUAY__SAFETENSORS_METADATA_KEY);
  }
  quay__os_free(keys);
  return status;
}

static quay_status parse_metadata(parser *p, const char *object) {
  if (*object != '{') {
    return quay__fail(QUAY_STATUS_MALFORMED,
                      "'%s': " QUAY__SAFETENSORS_METADATA_KEY
                      " is no object; it must be one of strings",
                      p->path);
  }
  const char *value;
  for (const char *key = quay__json_first(object); key != NULL; key = quay__json_next(value)) {
    value = quay__json_value_of(key);
    const char *name = keep_text(p, key);
    if (*value != '"') {
      return quay__fail(QUAY_STATUS_MALFORMED,
                        "'%s': the value of '%.*s' in " QUAY__SAFETENSORS_METADATA_KEY
                        " is no string",
                        p->path, NAME_SHOWN, name);
    }
    p->header->metadata[p->header->metadata_count++] =
        (quay_safetensors_metadata){.key = name, .value = keep_text(p, value)};
  }
  return check_metadata_keys(p);
}

/* The three parts of a tensor's entry. */
typedef struct entry {
  const char *dtype, *shape, *offsets;
} entry;

static const char **part_named(entry *parts, const char *key) {
  if (strcmp(key, "dtype") == 0)
    return &parts->dtype;
  if (strcmp(key, "shape") == 0)
    return &parts->shape;
  return strcmp(key, "data_offsets") == 0 ? &parts->offsets : NULL;
}

static quay_status split_entry(parser *p, const char *name, const char *object, entry *out) {
  if (*object != '{') {
    return FAIL(p, name, "is no object; it must be one of dtype, shape and data_offsets");
  }
  *out = (entry){.dtype = NULL};
  const char *unknown = NULL, *value;
  for (const char *key = quay__json_first(object); key != NULL; key = quay__json_next(value)) {
    value = quay__json_value_of(key);
    const char *text = peek_text(p, key);
    const char **part = part_named(out, text);
    if (part == NULL) {
      unknown = key;
      continue;
    }
    if (*part != NULL)
      return fail_twice(p, text, name);
    *part = value;
  }
  if (out->dtype == NULL)
    return FAIL(p, name, "has no dtype");
  if (out->shape == NULL)
    return FAIL(p, name, "has no shape");
  if (out->offsets == NULL)
    return FAIL(p, name, "has no data_offsets");
  if (unknown == NULL)
    return QUAY_OK;
  return FAIL(p, name, "has an unknown key '%.*s'; dtype, shape and data_offsets are possible",
              NAME_SHOWN, peek_text(p, unknown));
}

static quay_status parse_dtype(parser *p, const char *name, const char *value,
                               quay_safetensors_tensor *tensor) {
  if (*value != '"')
    return FAIL(p, name, "has a dtype that is no string");
  const char *text = peek_text(p, value);
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

static size_t count_elements(const char *container) {
  size_t count = 0;
  for (const char *at = quay__json_first(container); at != NULL; at = quay__json_next(at))
    ++count;
  return count;
}

static quay_status parse_shape(parser *p, const char *name, const char *value,
                               quay_safetensors_tensor *tensor) {
  if (*value != '[')
    return FAIL(p, name, "has a shape that is no array");
  const size_t rank = count_elements(value);
  if (rank > QUAY_RANK_MAX) {
    return fail_tensor(p, QUAY_STATUS_UNSUPPORTED, name,
                       "has %zu dimensions; at most %d are possible", rank, QUAY_RANK_MAX);
  }
  tensor->rank = (int32_t)rank;
  tensor->shape = p->extent_end;
  size_t i = 0;
  for (const char *at = quay__json_first(value); at != NULL; at = quay__json_next(at), ++i) {
    int64_t extent;
    if (!quay__json_integer(at, &extent))
      return FAIL(p, name, "has a shape with an extent that is no integer, number %zu", i);
    if (extent < 0) {
      return FAIL(p, name, "has a negative extent, number %zu of its shape: %" PRId64, i, extent);
    }
    *p->extent_end++ = extent;
  }
  return QUAY_OK;
}

static quay_status parse_offsets(const parser *p, const char *name, const char *value,
                                 uint64_t *out_begin, uint64_t *out_end) {
  if (*value != '[' || count_elements(value) != 2) {
    return FAIL(p, name, "has data_offsets that are no array of two integers");
  }
  const char *first = quay__json_first(value);
  int64_t begin, end;
  if (!quay__json_integer(first, &begin) || !quay__json_integer(quay__json_next(first), &end)) {
    return FAIL(p, name, "has data_offsets that are no integers");
  }
  if (begin < 0 || end < 0) {
    return FAIL(p, name, "has negative data_offsets");
  }
  *out_begin = (uint64_t)begin;
  *out_end = (uint64_t)end;
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

static quay_status parse_tensor(parser *p, const char *name, const char *object) {
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
  tensor.name = name;
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

static int compare_by_name(const void *left, const void *right, void *user) {
  const quay_safetensors_tensor *tensors = user;
  const uint32_t *a = left, *b = right;
  return strcmp(tensors[*a].name, tensors[*b].name);
}

static void index_by_name(quay__safetensors_header *header) {
  for (size_t i = 0; i < header->count; ++i)
    header->by_name[i] = (uint32_t)i;
  qsort_r(header->by_name, header->count, sizeof *header->by_name, compare_by_name,
          header->tensors);
}

static quay_status fail_two_entries(const parser *p, const char *name) {
  return quay__fail(QUAY_STATUS_MALFORMED, "'%s': the header has two entries named '%.*s'", p->path,
                    NAME_SHOWN, name);
}

static quay_status check_names(const parser *p) {
  const quay__safetensors_header *header = p->header;
  for (size_t i = 1; i < header->count; ++i) {
    const char *name = header->tensors[header->by_name[i]].name;
    if (strcmp(header->tensors[header->by_name[i - 1]].name, name) == 0)
      return fail_two_entries(p, name);
  }
  return QUAY_OK;
}

/* What the header holds, at most. */
typedef struct room {
  size_t entries, extents, pairs;
} room;

/* Counts elements without knowing yet whether the entry is a right one. */
static void count_entry(parser *p, const char *object, room *out) {
  const char *value;
  for (const char *key = quay__json_first(object); key != NULL; key = quay__json_next(value)) {
    value = quay__json_value_of(key);
    ++out->pairs;
    if (*value == '[' && strcmp(peek_text(p, key), "shape") == 0)
      out->extents += count_elements(value);
  }
}

static room count_all(parser *p, const char *json) {
  room found = {.entries = 0};
  size_t pairs = 0;
  const char *value;
  for (const char *key = quay__json_first(json); key != NULL; key = quay__json_next(value)) {
    value = quay__json_value_of(key);
    ++found.entries;
    found.pairs = 0;
    if (*value == '{')
      count_entry(p, value, &found);
    if (strcmp(peek_text(p, key), QUAY__SAFETENSORS_METADATA_KEY) == 0)
      pairs = found.pairs;
  }
  found.pairs = pairs;
  return found;
}

/* Room for all that the header can hold; nothing grows later. Counts are bounded by the size of the
 * JSON, so that the sums can't overflow and numbers of tensors fit into 32 bits. */
static quay_status allocate(parser *p, const char *json, size_t json_size) {
  quay__safetensors_header *header = p->header;
  header->text = quay__os_malloc(json_size);
  if (header->text == NULL)
    return quay__fail_out_of_memory(json_size, "the names of tensors");
  p->text_end = header->text;
  const room needed = count_all(p, json);
  header->tensors = quay__os_calloc(needed.entries + 1, sizeof *header->tensors);
  header->by_name = quay__os_calloc(needed.entries + 1, sizeof *header->by_name);
  header->metadata = quay__os_calloc(needed.pairs + 1, sizeof *header->metadata);
  header->extents = quay__os_calloc(needed.extents + 1, sizeof *header->extents);
  if (header->tensors == NULL || header->by_name == NULL || header->metadata == NULL ||
      header->extents == NULL) {
    return quay__fail_out_of_memory(needed.entries * sizeof *header->tensors,
                                    "the list of tensors");
  }
  p->extent_end = header->extents;
  return QUAY_OK;
}

static quay_status parse_entries(parser *p, const char *json) {
  bool has_metadata = false;
  const char *value;
  for (const char *key = quay__json_first(json); key != NULL; key = quay__json_next(value)) {
    value = quay__json_value_of(key);
    if (strcmp(peek_text(p, key), QUAY__SAFETENSORS_METADATA_KEY) != 0) {
      QUAY_TRY(parse_tensor(p, keep_text(p, key), value));
      continue;
    }
    if (has_metadata)
      return fail_two_entries(p, QUAY__SAFETENSORS_METADATA_KEY);
    has_metadata = true;
    QUAY_TRY(parse_metadata(p, value));
  }
  /* Names first: two tensors of one name often have the same bytes, too. */
  index_by_name(p->header);
  QUAY_TRY(check_names(p));
  qsort(p->header->tensors, p->header->count, sizeof *p->header->tensors, compare_by_data);
  QUAY_TRY(check_layout(p));
  index_by_name(p->header);
  return QUAY_OK;
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
  quay__json_problem problem;
  if (!quay__json_check(json, size, &problem))
    return fail_json(&p, json, &problem);
  quay_status status = allocate(&p, json, size);
  if (status == QUAY_OK)
    status = parse_entries(&p, json);
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
    const uint32_t index = header->by_name[middle];
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
