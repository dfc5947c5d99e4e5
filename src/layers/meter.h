/* Counts what a chain of layers asks of its backend, for the program's replay of traces. */
#ifndef QUAY_LAYERS_METER_H
#define QUAY_LAYERS_METER_H

#include <quay/allocator.h>

#include "core/component.h"

typedef struct quay__meter quay__meter;

/* The backend's calls that take memory and give it back: alloc, free, release, reserve, commit,
 * decommit, trim. */
typedef struct quay__meter_counts {
  uint64_t calls;
  uint64_t nanoseconds; /* spent in them, by all threads together */
} quay__meter_counts;

/* Opens an allocator by its spec, with a meter between its backend and its innermost layer. The
 * meter shows in no spec and changes nothing but that ordinary host memory is copied through the
 * backend's functions. `*out_meter` lives as long as the allocator. `spec` is not NULL.
 * Thread-safety: any thread. */
QUAY__COMPONENT quay_status quay__meter_open(const char *spec, quay_allocator **out_allocator,
                                             quay__meter **out_meter);

/* Thread-safety: any thread. */
QUAY__COMPONENT quay__meter_counts quay__meter_read(const quay__meter *meter);

/* The calls alone, for loops that look often.
 * Thread-safety: any thread. */
QUAY__COMPONENT uint64_t quay__meter_calls(const quay__meter *meter);

#endif
