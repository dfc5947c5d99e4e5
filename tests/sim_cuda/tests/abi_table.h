/* A table of values that abi_table.c makes twice. */
#ifndef QUAY_TESTS_SIM_CUDA_ABI_TABLE_H
#define QUAY_TESTS_SIM_CUDA_ABI_TABLE_H

typedef struct abi_row {
  const char *name;
  long long value;
} abi_row;

/* Each ends with a NULL name. */
extern const abi_row abi_of_simulator[];
extern const abi_row abi_of_toolkit[];

#endif
