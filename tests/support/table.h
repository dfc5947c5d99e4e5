/* A backend of a test's own: host memory by malloc, and every property of the table and the
 * description open to change before the allocator is made. */
#ifndef QUAY_TESTS_SUPPORT_TABLE_H
#define QUAY_TESTS_SUPPORT_TABLE_H

#include <quay/backend.h>
#include <stdatomic.h>

typedef struct quay_test_table {
  quay_allocator_vtable vtable;
  quay_allocator_desc desc;
  /* Calls so far. */
  atomic_uint allocs, frees, destroys, copies_in, copies_out;
} quay_test_table;

/* Fills in a table with the mandatory functions and a host pointer, on the host's device. Its
 * allocator's `self` is `table`, which must live longer. */
void quay_test_table_init(quay_test_table *table);

/* The bytes of a block of it. */
unsigned char *quay_test_table_bytes(const quay_raw_buffer *raw);

#endif
