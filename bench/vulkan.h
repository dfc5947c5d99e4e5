/* What the files of bench_vulkan share. */
#ifndef QUAY_BENCH_VULKAN_H
#define QUAY_BENCH_VULKAN_H

#include <quay/quay.h>
#include <quay/vulkan.h>
#include <stdint.h>

#define MIB ((uint64_t)1 << 20)

enum {
  RUNS_MAX = 99,
  MISSING = 77 /* the status where there is no such device */
};

typedef struct settings {
  const char *spec; /* of the Vulkan device; NULL: the GPU of cuda:0 */
  uint64_t size;    /* bytes of the large copies */
  int runs;
  bool raw, sweep, smoke;
} settings;

/* GB/s of CUDA's copies of page-locked memory, into the device and out of it. */
typedef struct limits {
  double in, out;
} limits;

/* Ends the program if the status is not OK. */
void bench_check(quay_status status, const char *what);
_Noreturn void bench_failed(const char *what);
double bench_now(void);
double bench_median(double *seconds, int count);
/* A seed's bytes; no two words of 8 alike. The second ends the program where they are not there. */
void bench_write(unsigned char *memory, uint64_t size, uint64_t seed);
void bench_compare(const unsigned char *memory, uint64_t size, uint64_t seed, const char *what);

/* vulkan_raw.c, vulkan_raw_device.c: vkCmdCopyBuffer by the raw interface, on a VkDevice of its
 * own: what the driver allows. */
void bench_raw(quay_device *device, const settings *set, const limits *limit);

#endif
