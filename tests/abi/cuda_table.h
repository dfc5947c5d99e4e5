/* What both sides write down: names with a value each. */
#ifndef QUAY_TESTS_ABI_CUDA_TABLE_H
#define QUAY_TESTS_ABI_CUDA_TABLE_H

#include <stddef.h>

typedef struct abi_row {
  const char *name;
  long long value;
} abi_row;

extern const abi_row abi_ours[];
extern const size_t abi_ours_count;
extern const abi_row abi_theirs[];
extern const size_t abi_theirs_count;

#endif
