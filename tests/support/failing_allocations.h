/* Makes the n-th allocation of the library's own fail, in the calling thread. Included by one file
 * of a program that is linked with --wrap=quay__os_malloc and --wrap=quay__os_calloc. */
#ifndef QUAY_TESTS_SUPPORT_FAILING_ALLOCATIONS_H
#define QUAY_TESTS_SUPPORT_FAILING_ALLOCATIONS_H

#include <stdbool.h>
#include <stddef.h>

/* How many succeed before one fails; below 0: none fails. */
static _Thread_local int allocations_left = -1;

static bool allocation_fails(void) {
  return allocations_left >= 0 && allocations_left-- == 0;
}

void *__real_quay__os_malloc(size_t size);
void *__real_quay__os_calloc(size_t count, size_t size);

void *__wrap_quay__os_malloc(size_t size) {
  return allocation_fails() ? NULL : __real_quay__os_malloc(size);
}

void *__wrap_quay__os_calloc(size_t count, size_t size) {
  return allocation_fails() ? NULL : __real_quay__os_calloc(count, size);
}

#endif
