/* What the files of bench_cold share: the file, and the ways to read it. */
#ifndef QUAY_BENCH_COLD_H
#define QUAY_BENCH_COLD_H

#include <quay/quay.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)

/* Whose the best is that the others are compared with. */
typedef enum cold_kind {
  COLD_BUFFERED, /* pread through the page cache */
  COLD_AHEAD,    /* the same, behind readahead(2) */
  COLD_DIRECT,   /* pread with O_DIRECT */
  COLD_URING,    /* io_uring, through the page cache */
  COLD_URING_DIRECT,
  COLD_QUAY,
  COLD_QUAY_DIRECT,
  COLD_KINDS
} cold_kind;

typedef struct cold_way {
  cold_kind kind;
  uint32_t threads; /* with io_uring: requests under way */
  uint64_t chunk;   /* bytes of a request */
  int advice;       /* POSIX_FADV_NORMAL, _SEQUENTIAL or _WILLNEED, given once for the whole file */
  bool parts;       /* each thread has a part of its own; else they take chunks in turn */
  bool own;         /* each thread opens the file for itself, within the time */
  uint64_t ahead;   /* bytes that are asked for before they are read */
} cold_way;

typedef struct cold_file {
  const char *path;
  uint64_t size;
  unsigned char *memory;    /* as long, touched, page aligned */
  quay_buffer *destination; /* of Quay's ways: as long, on `memory` or elsewhere */
} cold_file;

/* Ends the program. */
_Noreturn void cold_fail(const char *what);
double cold_now(void); /* seconds */

void cold_name(const cold_way *way, char *out_name, size_t size);

/* Whether it was built in, and the system allows it. */
bool cold_has_uring(void);

/* Opens the file anew, reads its first `size` bytes once, into the memory or, by Quay, to the
 * destination, and returns the seconds of the reading. */
double cold_read(const cold_file *file, const cold_way *way);

#endif
