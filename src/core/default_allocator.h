/* What the library itself holds of default allocators, for lifecycle.c. */
#ifndef QUAY_CORE_DEFAULT_ALLOCATOR_H
#define QUAY_CORE_DEFAULT_ALLOCATOR_H

#include <quay/allocator.h>

typedef struct quay__default_allocators {
  quay_allocator *set;         /* by quay_default_allocator_set(); NULL if none */
  quay_allocator *environment; /* opened for $QUAY_BACKEND or as "cpu"; NULL if not yet */
} quay__default_allocators;

/* Lent: valid while nobody sets or drops. */
quay__default_allocators quay__default_allocators_peek(void);
void quay__default_allocators_drop(void);

#endif
