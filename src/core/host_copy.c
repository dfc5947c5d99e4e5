/* Copies and fills of plain host memory: which sizes several threads share, and which are written
 * with streaming stores. Knows no buffers; the threads are workers.c's. */
#include "core/host_copy.h"

#include <stdbool.h>
#include <string.h>

#include "core/checked.h"
#include "core/copy_threads.h"
#include "core/error.h"
#include "core/os.h"
#include "core/workers.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* The choices below, in GB/s (medians, destinations touched, huge pages) on 16 cores of an Intel
 * Xeon with 2 MiB of L2 each and 300 MiB of L3, virtual, glibc 2.39, November 2026:
 *
 *   bytes     memcpy   here, with 1 thread    2      8
 *   1 MiB       29.7                  29.8   31.7   20.1
 *   2 MiB       12.9                  12.8   22.4   60.6
 *   8 MiB       13.5                  13.1   22.2   62.6
 *   16 MiB      12.5                  14.8   26.3   79.0
 *   64 MiB       5.7                  13.8   25.1   86.7
 *   256 MiB      9.7                  10.3   18.7   57.8
 */

/* From here on several threads share a copy: waking them costs some 20 us, as much as half of 1 MiB
 * takes. (The line of 1 MiB above shows what sharing it would cost.) */
#define SHARED_BYTES (2u << 20)

/* Two threads share a copy from here on: below, what they save is little more than the waking
 * costs, and the processors of a machine that has two are often one core's, which copies within its
 * caches no faster by two threads (0.73 to 1.15 of memcpy() between 2 and 8 MiB on such a machine).
 */
#define SHARED_BY_TWO_BYTES (16u << 20)

/* From here on the destination is written with streaming stores, which leave out reading it first
 * and do not push everything else out of the caches. On 2 Zen 4 cores with a small L3 they win from
 * 16 MiB (24 against 14 at 32 MiB) and lose below 8 MiB (28 against 48); with the Xeon's large one
 * there is little in it before 64 MiB. */
#define STREAMING_BYTES (16u << 20)

/* Chunks that threads take: a few for each thread, so that a late one costs little, but not so many
 * that taking them shows. Multiples of a page. */
#define CHUNK_MIN         (512u << 10)
#define CHUNK_MAX         (4u << 20)
#define CHUNKS_PER_THREAD 4u

/* Streaming writes four pages side by side: one page after the other is up to a third slower (17.4
 * against 23.6 GB/s; 256 MiB, two cores of a like machine with glibc 2.36), since the prefetchers
 * follow several streams and stop at the end of each page. */
#define STREAM_PAGE  4096u
#define STREAM_PAGES 4u
#define STREAM_BLOCK ((uint64_t)STREAM_PAGE * STREAM_PAGES)
#define LINE         64u

/* How far ahead of itself a copy asks for lines: of the source, into the second cache, since the
 * processor's own prefetchers stop at the end of each page; of the destination, to be written, on
 * Intel's processors alone: on an EPYC that made it slower than memcpy. Slots of an H200 filled by
 * eight threads of a Xeon, while four others copy: 0.92 to 0.95 of the link, with memcpy 0.90 to
 * 0.93, and the same where none do (bench_staging --load 4 --turns "ahead:; plain: --stores plain";
 * --limits has the loops alone). */
#define READ_AHEAD  8192u
#define WRITE_AHEAD 2048u

#if defined(__x86_64__)

/* Copy whole blocks to a destination that is aligned to a cache line. */
__attribute__((target("avx2"))) static void
stream_blocks_avx2(char *destination, const char *source, uint64_t blocks) {
  for (; blocks != 0; blocks--, destination += STREAM_BLOCK, source += STREAM_BLOCK) {
    for (uint32_t line = 0; line < STREAM_PAGE; line += LINE) {
      for (uint32_t page = 0; page < STREAM_PAGES; page++) {
        const uint32_t at = page * STREAM_PAGE + line;
        const __m256i *from = (const void *)(source + at);
        __m256i *to = (void *)(destination + at);
        const __m256i low = _mm256_loadu_si256(from), high = _mm256_loadu_si256(from + 1);
        _mm256_stream_si256(to, low);
        _mm256_stream_si256(to + 1, high);
      }
    }
  }
}

static void stream_blocks_sse2(char *destination, const char *source, uint64_t blocks) {
  for (; blocks != 0; blocks--, destination += STREAM_BLOCK, source += STREAM_BLOCK) {
    for (uint32_t line = 0; line < STREAM_PAGE; line += LINE) {
      for (uint32_t page = 0; page < STREAM_PAGES; page++) {
        const uint32_t at = page * STREAM_PAGE + line;
        const __m128i *from = (const void *)(source + at);
        __m128i *to = (void *)(destination + at);
        const __m128i a = _mm_loadu_si128(from), b = _mm_loadu_si128(from + 1);
        const __m128i c = _mm_loadu_si128(from + 2), d = _mm_loadu_si128(from + 3);
        _mm_stream_si128(to, a);
        _mm_stream_si128(to + 1, b);
        _mm_stream_si128(to + 2, c);
        _mm_stream_si128(to + 3, d);
      }
    }
  }
}

/* Copy whole lines. What is asked for behind the end of the source is never read. */

__attribute__((target("avx2"))) static void copy_lines_ahead(char *destination, const char *source,
                                                             uint64_t size) {
  for (uint64_t at = 0; at < size; at += LINE) {
    const __m256i *from = (const void *)(source + at);
    __m256i *to = (void *)(destination + at);
    __builtin_prefetch(source + at + READ_AHEAD, 0, 2);
    const __m256i low = _mm256_loadu_si256(from), high = _mm256_loadu_si256(from + 1);
    _mm256_storeu_si256(to, low);
    _mm256_storeu_si256(to + 1, high);
  }
}

__attribute__((target("avx2,prfchw"))) static void
copy_lines_ahead_on_both_sides(char *destination, const char *source, uint64_t size) {
  for (uint64_t at = 0; at < size; at += LINE) {
    const __m256i *from = (const void *)(source + at);
    __m256i *to = (void *)(destination + at);
    __builtin_prefetch(source + at + READ_AHEAD, 0, 2);
    __builtin_prefetch(destination + at + WRITE_AHEAD, 1, 3);
    const __m256i low = _mm256_loadu_si256(from), high = _mm256_loadu_si256(from + 1);
    _mm256_storeu_si256(to, low);
    _mm256_storeu_si256(to + 1, high);
  }
}

void quay__host_copy_ahead(void *to, const void *from, uint64_t size) {
  char *destination = to;
  const char *source = from;
  /* Lines behind the destination are other threads' to write. */
  const bool ahead = size > WRITE_AHEAD && __builtin_cpu_supports("avx2");
  const uint64_t body = ahead ? quay__align_down(size - WRITE_AHEAD, LINE) : 0;
  if (body != 0 && __builtin_cpu_is("intel")) {
    copy_lines_ahead_on_both_sides(destination, source, body);
  } else if (body != 0) {
    copy_lines_ahead(destination, source, body);
  }
  memcpy(destination + body, source + body, size - body);
}

void quay__host_stream(void *to, const void *from, uint64_t size) {
  char *destination = to;
  const char *source = from;
  const uint64_t head = quay__min(-(uintptr_t)destination % LINE, size);
  const uint64_t blocks = (size - head) / STREAM_BLOCK;
  const uint64_t body = blocks * STREAM_BLOCK;
  memcpy(destination, source, head);
  if (__builtin_cpu_supports("avx2")) {
    stream_blocks_avx2(destination + head, source + head, blocks);
  } else {
    stream_blocks_sse2(destination + head, source + head, blocks);
  }
  memcpy(destination + head + body, source + head + body, size - head - body);
  _mm_sfence(); /* streaming stores are weakly ordered: make them visible before what follows */
}

#else

void quay__host_copy_ahead(void *to, const void *from, uint64_t size) {
  memcpy(to, from, size);
}

void quay__host_stream(void *to, const void *from, uint64_t size) {
  memcpy(to, from, size);
}

#endif

void quay__host_copy_plan(uint64_t size, uint32_t threads, uint32_t *out_threads,
                          uint64_t *out_chunk) {
  *out_threads = 1;
  *out_chunk = size;
  if (size < SHARED_BYTES)
    return;
  if (threads == 0)
    threads = quay__copy_threads();
  if (threads == 1 || (threads == 2 && size < SHARED_BY_TWO_BYTES))
    return;
  const uint64_t share = size / threads / CHUNKS_PER_THREAD;
  const uint64_t chunk = quay__min(quay__max(share, CHUNK_MIN), CHUNK_MAX);
  *out_chunk = quay__align_down(chunk, STREAM_PAGE);
  *out_threads = (uint32_t)quay__min(threads, (size - 1) / *out_chunk + 1);
}

/* A range that threads share. The first chunk is as much longer as brings all later ones to the
 * start of a page of the destination (`lead` bytes); the last one is what is left. */
struct split {
  char *destination;
  const char *source; /* of a copy; of a fill: the block that is repeated, NULL for `byte` */
  uint64_t size;
  uint64_t chunk;
  uint64_t lead;
  bool streaming;
  unsigned char byte;
};

static void split_range(const struct split *split, uint64_t index, uint64_t *out_offset,
                        uint64_t *out_size) {
  const uint64_t begin = index == 0 ? 0 : split->lead + index * split->chunk;
  const uint64_t end = quay__min(split->lead + (index + 1) * split->chunk, split->size);
  *out_offset = begin;
  *out_size = end - begin;
}

static uint64_t split_count(const struct split *split) {
  if (split->size <= split->lead + split->chunk)
    return 1;
  return (split->size - split->lead - 1) / split->chunk + 1;
}

static quay_status copy_chunk(void *context, uint64_t index) {
  const struct split *split = context;
  uint64_t offset, size;
  split_range(split, index, &offset, &size);
  if (split->streaming) {
    quay__host_stream(split->destination + offset, split->source + offset, size);
  } else {
    memcpy(split->destination + offset, split->source + offset, size);
  }
  return QUAY_OK;
}

/* The tasks here can't fail, and so the run can't. */
static void run_split(const struct split *split, uint32_t threads, quay__task task) {
  const quay_status status =
      quay__workers_run(threads, split_count(split), task, (void *)(uintptr_t)split);
  (void)status;
}

void quay__host_copy(void *destination, const void *source, uint64_t size, uint32_t threads) {
  if (size <= QUAY__HOST_COPY_SMALL) {
    if (size != 0)
      memcpy(destination, source, size);
    return;
  }
  struct split split = {
      .destination = destination,
      .source = source,
      .size = size,
      .lead = -(uintptr_t)destination % STREAM_PAGE,
      .streaming = size >= STREAMING_BYTES,
  };
  quay__host_copy_plan(size, threads, &threads, &split.chunk);
  run_split(&split, threads, copy_chunk);
}

void quay__host_move(void *destination, const void *source, uint64_t size, uint32_t threads) {
  const uintptr_t to = (uintptr_t)destination, from = (uintptr_t)source;
  const uint64_t distance = to > from ? to - from : from - to;
  if (distance >= size) {
    quay__host_copy(destination, source, size, threads);
  } else {
    memmove(destination, source, size);
  }
}

/* What a fill repeats: a whole number of patterns of every size, small enough to stay in the first
 * cache and long enough for memcpy to be fast. */
#define FILL_BLOCK 4096u

static quay_status fill_chunk(void *context, uint64_t index) {
  const struct split *split = context;
  uint64_t offset, size;
  split_range(split, index, &offset, &size);
  char *destination = split->destination + offset;
  if (split->source == NULL) {
    memset(destination, split->byte, size);
    return QUAY_OK;
  }
  for (uint64_t done = 0; done < size; done += FILL_BLOCK) {
    memcpy(destination + done, split->source, quay__min(FILL_BLOCK, size - done));
  }
  return QUAY_OK;
}

static void run_fill(struct split *split) {
  uint32_t threads;
  quay__host_copy_plan(split->size, 0, &threads, &split->chunk);
  run_split(split, threads, fill_chunk);
}

static bool is_one_byte(const unsigned char *pattern, size_t pattern_size) {
  return memcmp(pattern, pattern + 1, pattern_size - 1) == 0;
}

/* Writes the pattern and then doubles what is there. */
static void fill_by_doubling(char *destination, uint64_t size, const void *pattern,
                             size_t pattern_size) {
  uint64_t done = quay__min(pattern_size, size);
  memcpy(destination, pattern, done);
  while (done < size) {
    const uint64_t step = quay__min(done, size - done);
    memcpy(destination + done, destination, step);
    done += step;
  }
}

void quay__host_fill(void *destination, uint64_t size, const void *pattern, size_t pattern_size) {
  if (size == 0)
    return;
  const unsigned char *bytes = pattern;
  if (is_one_byte(bytes, pattern_size)) {
    struct split split = {.destination = destination, .size = size, .byte = bytes[0]};
    run_fill(&split);
    return;
  }
  const uint64_t first = quay__min(size, FILL_BLOCK);
  fill_by_doubling(destination, first, pattern, pattern_size);
  if (first == size)
    return;
  struct split split = {
      .destination = (char *)destination + first,
      .source = destination, /* its first block, which no chunk writes to */
      .size = size - first,
  };
  run_fill(&split);
}
