/* What the tests on a GPU share: a started driver with kernels on it, buffers full of a pattern,
 * and kernels that read and write them in accesses, at once or late.
 *
 * The same tests run on the simulated driver, which finds a missing wait by itself. */
#ifndef QUAY_TESTS_GPU_GPU_H
#define QUAY_TESTS_GPU_GPU_H

#include <criterion/criterion.h>
#include <quay/quay.h>

#include "gpu/kernels.h"
#include "support/skip.h"
#include "support/status.h"

extern const raw_cuda *cu;

#define CU_OK(call)                                                                     \
  do {                                                                                  \
    const CUresult cu_result_ = (call);                                                 \
    cr_assert_eq(cu_result_, CUDA_SUCCESS, "%s: %s", #call, raw_cuda_name(cu_result_)); \
  } while (0)

/* The first call of a test: the driver, and the kernels on the first device, or the first two. The
 * test is skipped where they are not there. */
void gpu_begin(void);
void gpu_begin_two(void);
/* The end of every test: opens the gates; Quay shuts down and nothing is left. */
void gpu_end(void);

#define GPU_SUITE(name) TestSuite(name, .fini = gpu_end, .timeout = 100)

/* Words of a buffer: more than the slots for small copies take, and not a round number. */
#define GPU_WORDS ((uint64_t)300007)

#define GPU_OLD 0x3b9aca07u
#define GPU_NEW 0x7f4a7c15u
#define GPU_ODD 0x1d872b41u

/* Opens one that ends with the test. */
quay_allocator *gpu_open(const char *spec);
quay_stream *gpu_stream(quay_allocator *allocator);

/* `options` may be NULL. The buffer holds the pattern of the seed. */
quay_buffer *gpu_buffer(quay_allocator *allocator, uint64_t words, uint32_t seed,
                        const quay_alloc_options *options);
/* Every word is that of the seed's pattern, counted from `first`. */
void gpu_expect_from(const quay_buffer *buffer, uint32_t seed, uint64_t first);
void gpu_expect(const quay_buffer *buffer, uint32_t seed);

/* When the kernel of an access runs; a number from 0 is the gate that it waits at. */
enum {
  GPU_AT_ONCE = -2,
  GPU_ASLEEP = -1, /* sleeps first */
};

/* A kernel that writes the pattern to the buffer, in an access. */
void gpu_write(quay_stream *stream, quay_buffer *to, uint32_t seed, int when);
/* One that reads `from` into `to`. */
void gpu_read(quay_stream *stream, quay_buffer *from, quay_buffer *to, int when);
/* What keeps a stream busy, alone. */
void gpu_keep_busy(int device, CUstream stream, int when);

/* Opens the gate from another thread, in a while: for a call that has to wait. Once a test. */
void gpu_open_later(unsigned gate);
/* Whether it has been opened. */
bool gpu_is_open(unsigned gate);

/* What the simulated driver has found so far is forgotten; returns how much. 0 on a real one. */
size_t gpu_forget_violations(void);

#endif
