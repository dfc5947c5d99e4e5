/* The table of element types. */
#include <quay/dtype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "core/checked.h"
#include "core/error.h"

typedef struct dtype_row {
  const char *name;
  uint16_t bits;
  uint16_t alignment;
} dtype_row;

static const dtype_row rows[] = {
#define ROW(name, value, bits, alignment, text) [value] = {text, bits, alignment},
    QUAY_DTYPE_TABLE(ROW)
#undef ROW
};
enum {
  ROW_COUNT = sizeof rows / sizeof rows[0]
};

static const dtype_row *find(quay_dtype dtype) {
  const unsigned index = (unsigned)dtype;
  return index < ROW_COUNT && rows[index].name != NULL ? &rows[index] : NULL;
}

bool quay_dtype_valid(quay_dtype dtype) {
  return find(dtype) != NULL;
}

uint32_t quay_dtype_bits(quay_dtype dtype) {
  const dtype_row *row = find(dtype);
  return row != NULL ? row->bits : 0;
}

size_t quay_dtype_size(quay_dtype dtype) {
  return quay_dtype_bits(dtype) / 8;
}

size_t quay_dtype_alignment(quay_dtype dtype) {
  const dtype_row *row = find(dtype);
  return row != NULL ? row->alignment : 0;
}

const char *quay_dtype_name(quay_dtype dtype) {
  const dtype_row *row = find(dtype);
  return row != NULL ? row->name : "none";
}

quay_status quay_dtype_parse(const char *text, quay_dtype *out_dtype) {
  if (text == NULL || out_dtype == NULL) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT, "quay_dtype_parse: %s is NULL",
                      text == NULL ? "text" : "out_dtype");
  }
  char names[256] = "";
  for (unsigned i = 0; i < ROW_COUNT; i++) {
    if (rows[i].name == NULL)
      continue;
    if (strcasecmp(text, rows[i].name) == 0) {
      *out_dtype = (quay_dtype)i;
      return QUAY_OK;
    }
    const size_t used = strlen(names);
    snprintf(names + used, sizeof names - used, "%s%s", used > 0 ? ", " : "", rows[i].name);
  }
  return quay__fail(QUAY_STATUS_INVALID_ARGUMENT, "\"%s\" is no dtype; the dtypes are %s", text,
                    names);
}

static quay_status fail_too_large(quay_dtype dtype, int32_t rank) {
  return quay__fail(QUAY_STATUS_OUT_OF_RANGE,
                    "an array of %s with this shape of %d dimensions takes more than 2^63-1 bytes",
                    quay_dtype_name(dtype), rank);
}

quay_status quay_dtype_array_size(quay_dtype dtype, int32_t rank, const int64_t *shape,
                                  uint64_t *out_size) {
  if (out_size == NULL) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT, "quay_dtype_array_size: out_size is NULL");
  }
  if (!quay_dtype_valid(dtype)) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT, "%d is no dtype (QUAY_U8, QUAY_F32 ...)",
                      (int)dtype);
  }
  if (rank < 0 || rank > QUAY_RANK_MAX) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT, "a rank of %d is outside 0 to %d", rank,
                      QUAY_RANK_MAX);
  }
  if (rank > 0 && shape == NULL) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT, "the shape of rank %d is NULL", rank);
  }
  /* An extent of 0 makes the array empty, however large the others are. */
  bool empty = false;
  for (int32_t i = 0; i < rank; i++) {
    if (shape[i] < 0) {
      return quay__fail(QUAY_STATUS_INVALID_ARGUMENT,
                        "extent %d of the shape is %lld; it must be 0 or more", i,
                        (long long)shape[i]);
    }
    if (shape[i] == 0)
      empty = true;
  }
  uint64_t count = 1;
  for (int32_t i = 0; i < rank && !empty; i++) {
    if (!quay__mul(count, (uint64_t)shape[i], &count))
      return fail_too_large(dtype, rank);
  }
  uint64_t bits;
  if (!quay__mul(empty ? 0 : count, quay_dtype_bits(dtype), &bits)) {
    /* Whole bytes can still fit where the bits do not. */
    const uint64_t size = quay_dtype_size(dtype);
    if (size == 0 || !quay__mul(count, size, &count) || count > INT64_MAX) {
      return fail_too_large(dtype, rank);
    }
    *out_size = count;
    return QUAY_OK;
  }
  *out_size = bits / 8 + (bits % 8 != 0);
  return QUAY_OK;
}
