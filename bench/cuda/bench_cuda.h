/* What the groups of bench_cuda share: the driver beside Quay, timing in turns, rows of the table.
 * Each group runs in a process of its own, so that one that fails leaves the others alone. */
#ifndef QUAY_BENCH_CUDA_H
#define QUAY_BENCH_CUDA_H

#include <quay/quay.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "support/raw_cuda/raw_cuda.h"

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)

typedef struct bench_settings {
  unsigned rounds;       /* medians are of so many */
  uint64_t big_bytes;    /* of the large copies between host and device */
  unsigned pairs;        /* of an allocation from a pool and its free, in a row */
  bool smoke;            /* everything once and small: that it works, no figures */
  const char *json;      /* NULL: none */
  const char *directory; /* where files are made */
} bench_settings;

extern bench_settings settings;
extern const raw_cuda *cu;
extern CUcontext contexts[2]; /* primary; the first is current */

/* End the process with what failed. */
#define MUST(call)              \
  do {                          \
    if ((call) != QUAY_OK)      \
      bench_quay_failed(#call); \
  } while (0)
#define CU_MUST(call)                       \
  do {                                      \
    const CUresult cu_result_ = (call);     \
    if (cu_result_ != CUDA_SUCCESS)         \
      bench_cuda_failed(#call, cu_result_); \
  } while (0)
#define REQUIRE(condition)                 \
  do {                                     \
    if (!(condition))                      \
      bench_failed("not so: " #condition); \
  } while (0)

_Noreturn void bench_failed(const char *what);
_Noreturn void bench_quay_failed(const char *call);
_Noreturn void bench_cuda_failed(const char *call, CUresult result);

/* One way of doing the same. `run` does it `calls` times. */
typedef struct bench_way {
  const char *name;
  void (*run)(void *self, uint64_t calls);
  /* Untimed, before and after each round; may be NULL. */
  void (*before)(void *self);
  void (*after)(void *self);
  void *self;
} bench_way;

#define BENCH_WAYS_MAX 8

typedef struct bench_case {
  const char *group;
  const char *name;
  uint64_t bytes;                 /* moved by one call: rates are printed; 0: times are */
  uint64_t calls;                 /* in a round */
  bench_way ways[BENCH_WAYS_MAX]; /* the first one is Quay's */
  /* Which of the ways Quay is compared with: bits by index; of several, the fastest. 0: none. */
  unsigned yardsticks;
  /* Ratio to the yardstick, of times (at most this) or rates (at least this); 0: none. */
  double floor;
  double most_ns; /* a bound on Quay's own time; 0: none */
} bench_case;

/* Runs the ways in turns, round by round, prints a row and adds it to the JSON file. */
void bench_run(const bench_case *what);
/* A row without figures. */
void bench_skip(const char *group, const char *name, const char *reason);

/* The file of the rows, to which a group may add its own, each a line that ends with a comma; NULL:
 * none. The caller closes it. */
FILE *bench_json(void);

/* Memory of the host, touched; 2 MiB aligned. Ends the process where there is none. */
unsigned char *bench_host_memory(uint64_t size);
void bench_random(unsigned char *bytes, uint64_t size, uint64_t seed);

quay_allocator *bench_open(const char *spec);
quay_buffer *bench_buffer(quay_allocator *allocator, uint64_t size,
                          const quay_alloc_options *options);
CUdeviceptr bench_pointer(const quay_buffer *buffer);

/* The groups. */
void bench_small(void);
void bench_calls(void);
void bench_alloc(void);
void bench_device(void);
void bench_peer(void);
void bench_random_shapes(void);
void bench_transfer(void);

#endif
