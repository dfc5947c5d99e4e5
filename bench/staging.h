/* What the files of bench_staging share: what is copied between what, one timed copy, and how the
 * engine is set up for it. */
#ifndef QUAY_BENCH_STAGING_H
#define QUAY_BENCH_STAGING_H

#include <quay/quay.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/staging_tuning.h"

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)

enum {
  RUNS_MAX = 99,
  LOADS_MAX = 64,
  TURNS_MAX = 24,
  DIRECTIONS = 4,
};

/* How the engine is set up; zeros are its defaults. */
typedef struct variant {
  uint32_t threads;
  uint64_t slot;  /* bytes */
  uint32_t slots; /* a thread */
  uint32_t streams;
  uint32_t batch;            /* slots that are handed over together, at most */
  bool single;               /* each by itself */
  bool shared;               /* slots are everybody's, and joined */
  int stores;                /* quay__staging_stores: into slots */
  bool driver;               /* the driver allocates the slots; else they are registered */
  bool bound;                /* each thread to a processor */
  int leases;                /* quay__staging_leases: when files are read of their mappings */
  bool by_mapping;           /* the file is made through a mapping, not by write */
  bool written;              /* it is open for writing, too, so that it can't be leased */
  uint64_t least, in_flight; /* bytes of a batch, and under way, at least; see staging_tuning.h */
  uint64_t segment;          /* bytes of memory that the engine makes at a time, at least */
} variant;

/* One of several that take turns. */
typedef struct turn {
  const char *name;
  bool anew; /* as the first copy of a mapping */
  variant variant;
} turn;

typedef struct settings {
  const char *device;
  const char *beside; /* another device to copy to at the same time; NULL: none */
  const char *path;   /* NULL: a temporary file */
  uint64_t size;
  int runs;
  bool sweep;
  bool limits;
  bool back;     /* turns: from the device, too */
  int seconds;   /* that a sweep may take */
  uint32_t load; /* threads that copy something else meanwhile */
  variant variant;
  turn turns[TURNS_MAX];
  int turn_count;
} settings;

typedef struct bench {
  settings set;
  quay_allocator *allocator;
  quay_buffer *there, *here, *pinned, *file, *out_file;
  /* By whether they are made through a mapping: `file` is one of them, the other one is there if a
   * turn wants it. Descriptors name their files, which have no paths any more. */
  quay_buffer *files[2];
  int places[2];
  unsigned char *bytes;
  double in, out; /* GB/s of the driver's copies */
} bench;

/* What is copied from where. */
typedef struct direction {
  const char *name;
  quay_buffer *to;
  const quay_buffer *from;
  bool into; /* the device */
} direction;

/* One timed copy. */
typedef struct sample {
  double seconds;
  quay__staging_report report;
} sample;

/* Ends the program if the status is not OK. */
void bench_check(quay_status status, const char *what);

/* staging_options.c: what the command line says; ends the program if it is wrong. */
settings bench_parse(int argc, char **argv);

/* Of a file as the variant has it: 0 and 1 are the ways into the device. */
direction bench_direction(const bench *all, const variant *chosen, int which);

quay_buffer *bench_buffer(quay_allocator *allocator, uint64_t size);
sample bench_copy(quay_buffer *to, const quay_buffer *from);
/* GB/s of the driver's copy between page-locked memory and a device, the middle one of the runs. */
double bench_driver_rate(const bench *all, quay_buffer *to, const quay_buffer *from);
/* The middle one of `runs` copies, after one that does not count. */
sample bench_median(int runs, quay_buffer *to, const quay_buffer *from);
/* The same, each with no memory of the engine's there before it. */
sample bench_median_cold(int runs, quay_buffer *to, const quay_buffer *from);
/* Ends the program if the first `size` bytes are not those that were copied. */
void bench_check_bytes(const bench *all, quay_buffer *buffer, uint64_t size, const char *name);
void bench_print_titles(void);
void bench_print_line(const char *name, uint64_t size, const sample *s, double limit);

/* staging_limits.c: the link with transfers cut small, and beside threads that copy. Writes over
 * all that is copied, and makes it anew. */
void bench_limits(const bench *all);

/* staging_beside.c: two devices at once, with every way to set the engine up for a sweep. */
void bench_beside(const bench *all);

/* staging_files.c: what the file system gives. */
void bench_files(const bench *all);

/* staging_load.c: the threads of --load. */
void bench_load_begin(const settings *set);
void bench_load_end(void);

/* staging_turns.c: the ways of --turns, measured in turns. */
void bench_turns(const bench *all);

/* staging_sweep.c */

/* Sets the engine up, for the copies that come. */
void bench_use(const bench *all, const variant *chosen);
/* Every combination that makes sense, sorted by what it reached. */
void bench_sweep(const bench *all);

#endif
