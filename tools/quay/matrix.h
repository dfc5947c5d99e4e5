/* What quay matrix has measured, for whoever prints it. */
#ifndef QUAY_TOOLS_MATRIX_H
#define QUAY_TOOLS_MATRIX_H

#include <quay/quay.h>
#include <stddef.h>

#include "program.h"

#define MATRIX_LIMITS_MAX 64
#define MATRIX_PLACES_MAX 64

/* One kind of memory that takes part. */
typedef struct matrix_place {
  char *name;                /* the spec, or "mapping" */
  quay_allocator *allocator; /* NULL: a mapped file */
} matrix_place;

/* What the machine can do without the library: gigabytes a second. */
typedef struct matrix_limit {
  char name[96]; /* "memcpy", "pread", "pwrite", "cuda:0 in", "cuda:0 out" */
  double gbps;
} matrix_limit;

typedef struct matrix_pair {
  quay_route route;
  double gbps;
  double limit; /* 0: none is known */
} matrix_pair;

typedef struct matrix_result {
  uint64_t size; /* bytes that each copy moves */
  matrix_place places[MATRIX_PLACES_MAX];
  size_t place_count;
  matrix_limit limits[MATRIX_LIMITS_MAX];
  size_t limit_count;
  matrix_pair *pairs; /* from places[i] to places[j]: i * place_count + j */
} matrix_result;

/* Writes the heat map to a file, which appears whole or not at all. Failures are told. */
exit_status matrix_draw(const matrix_result *result, const char *path);
/* Whether it may be written there, before anything is measured. */
exit_status matrix_can_draw(const char *path);

#endif
