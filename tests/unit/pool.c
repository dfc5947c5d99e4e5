/* The pool layer on host memory: what it hands out again, what it holds, and what it refuses. */
#include <pthread.h>
#include <quay/backend.h>
#include <quay/quay.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/poison.h"
#include "support/log.h"
#include "support/random.h"
#include "support/status.h"

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)

static quay_allocator *open_spec(const char *spec) {
  quay_allocator *allocator = NULL;
  CHECK_OK(quay_allocator_open(spec, &allocator));
  return allocator;
}

static quay_raw_buffer allocate(quay_allocator *allocator, uint64_t size) {
  quay_raw_buffer raw;
  CHECK_OK(quay_allocator_alloc(allocator, size, NULL, &raw));
  return raw;
}

static unsigned char *bytes_of(const quay_raw_buffer *raw) {
  void *pointer = NULL;
  CHECK_OK(quay_raw_buffer_host_pointer(raw, &pointer));
  return pointer;
}

static quay_stats stats_of(quay_allocator *allocator) {
  quay_stats stats;
  CHECK_OK(quay_allocator_stats(allocator, &stats));
  return stats;
}

/* Options. */

Test(pool, the_spec_keeps_what_differs_from_the_defaults) {
  static const char *const specs[][2] = {
      {"pool+cpu", "pool+cpu"},
      {"pool:keep=default+cpu", "pool+cpu"},
      {"pool:max=1GiB,keep=tight+cpu", "pool:keep=tight,max=1073741824+cpu"},
      {"pool:block=2MiB+cpu", "pool:block=2097152+cpu"},
      {"pool:max=50%+cpu", "pool:max=50%+cpu"},
      {"pool+pool+cpu:align=256", "pool+pool+cpu:align=256"},
  };
  for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) {
    quay_allocator *const pool = open_spec(specs[i][0]);
    cr_assert_str_eq(quay_allocator_spec(pool), specs[i][1]);
    quay_allocator_release(pool);
  }
}

Test(pool, a_bad_option_is_refused_and_quoted) {
  static const char *const specs[] = {
      "pool:keep=all+cpu", "pool:block=3MiB+cpu", "pool:block=1+cpu", "pool:block=2GiB+cpu",
      "pool:max=0%+cpu",   "pool:max=101%+cpu",   "pool:max=x+cpu",   "pool:max=5%%+cpu",
      "pool:max=%+cpu",    "pool:4+cpu",          "pool:size=4+cpu",
  };
  for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) {
    quay_allocator *pool = NULL;
    CHECK_FAILS(quay_allocator_open(specs[i], &pool), QUAY_STATUS_INVALID_ARGUMENT);
    CHECK_MESSAGE("pool");
    cr_assert_null(pool);
  }
}

Test(pool, a_share_above_all_is_told_as_a_share_however_large) {
  static const char *const specs[] = {"pool:max=1000%+cpu",
                                      "pool:max=99999999999999999999999%+cpu"};
  for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) {
    quay_allocator *pool = NULL;
    CHECK_FAILS(quay_allocator_open(specs[i], &pool), QUAY_STATUS_INVALID_ARGUMENT);
    CHECK_MESSAGE("a share is from 1% to 100%");
  }
}

/* Memory that is used again. */

Test(pool, freed_memory_is_handed_out_again) {
  static const uint64_t sizes[] = {0, 1, 4096, 100 * KIB, MIB, 40 * MIB};
  quay_allocator *const pool = open_spec("pool+cpu");
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    quay_raw_buffer raw = allocate(pool, sizes[i]);
    const unsigned char *const first = bytes_of(&raw);
    quay_raw_buffer_free(&raw);
    const uint64_t reserved = stats_of(pool).reserved_bytes;
    raw = allocate(pool, sizes[i]);
    cr_assert_eq(bytes_of(&raw), first, "%zu bytes went elsewhere", (size_t)sizes[i]);
    cr_assert_eq(stats_of(pool).reserved_bytes, reserved);
    quay_raw_buffer_free(&raw);
  }
  quay_allocator_release(pool);
}

/* rmm 496, AMReX 4451: sizes that grow slowly never fit into what was freed before. */
Test(pool, memory_of_slowly_growing_blocks_is_used_for_larger_ones) {
  quay_allocator *const pool = open_spec("pool+cpu");
  uint64_t size = 10 * MIB;
  for (int i = 0; i < 200; i++) {
    quay_raw_buffer raw = allocate(pool, size);
    quay_raw_buffer_free(&raw);
    size += 100 * KIB + 64;
  }
  cr_assert_leq(stats_of(pool).reserved_bytes, size + size / 50 + 2 * MIB);
  quay_allocator_release(pool);
}

/* 132 MB failed with 53 GB used and 84 GB reserved (rmm 1245). */
Test(pool, fragments_of_small_blocks_do_not_keep_a_large_one_from_memory) {
  enum {
    COUNT = 256
  };
  quay_allocator *const pool = open_spec("pool:max=80MiB+cpu");
  quay_raw_buffer raws[COUNT];
  for (size_t i = 0; i < COUNT; i++)
    raws[i] = allocate(pool, 256 * KIB); /* 64 MiB */
  for (size_t i = 0; i < COUNT; i += 2)
    quay_raw_buffer_free(&raws[i]);
  quay_raw_buffer large = allocate(pool, 31 * MIB);
  memset(bytes_of(&large), 0x5a, 31 * MIB);
  quay_raw_buffer_free(&large);
  for (size_t i = 1; i < COUNT; i += 2)
    quay_raw_buffer_free(&raws[i]);
  quay_allocator_release(pool);
}

Test(pool, zeroed_memory_is_zero_where_dirty_memory_was_freed) {
  static const uint64_t sizes[] = {1, 63, 4096, 70000, 300 * KIB, 4 * MIB + 1};
  quay_allocator *const pool = open_spec("pool+cpu");
  const quay_alloc_options zeroed = {.zeroed = true};
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    quay_raw_buffer raw = allocate(pool, sizes[i]);
    const unsigned char *const dirty = bytes_of(&raw);
    memset(bytes_of(&raw), 0xa5, sizes[i]);
    quay_raw_buffer_free(&raw);
    CHECK_OK(quay_allocator_alloc(pool, sizes[i], &zeroed, &raw));
    const unsigned char *const bytes = bytes_of(&raw);
    cr_assert_eq(bytes, dirty, "the test needs recycled memory");
    for (uint64_t at = 0; at < sizes[i]; at++)
      cr_assert_eq(bytes[at], 0, "byte %zu of %zu", (size_t)at, (size_t)sizes[i]);
    quay_raw_buffer_free(&raw);
  }
  quay_allocator_release(pool);
}

/* rmm 2336: alignment was lost through adaptors. */
Test(pool, every_alignment_is_honoured_in_fresh_and_in_recycled_memory) {
  quay_allocator *const pool = open_spec("track+pool+cpu");
  for (int round = 0; round < 2; round++) {
    for (uint64_t alignment = 1; alignment <= 64 * MIB; alignment *= 2) {
      const quay_alloc_options options = {.alignment = alignment};
      quay_raw_buffer shift = allocate(pool, 65);
      quay_raw_buffer raw;
      CHECK_OK(quay_allocator_alloc(pool, 5000, &options, &raw));
      cr_assert_eq((uintptr_t)bytes_of(&raw) % alignment, 0, "%zu", (size_t)alignment);
      memset(bytes_of(&raw), 0x77, 5000);
      quay_raw_buffer_free(&raw);
      quay_raw_buffer_free(&shift);
    }
  }
  quay_allocator_release(pool);
}

Test(pool, what_a_thread_keeps_is_handed_out_only_where_it_is_aligned) {
  static const uint64_t sizes[] = {4096, 20000, 2 * MIB};
  quay_allocator *const pool = open_spec("pool+cpu");
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    quay_raw_buffer raws[8];
    const quay_alloc_options aligned = {.alignment = 256 * KIB};
    for (size_t j = 0; j < 8; j++)
      raws[j] = allocate(pool, sizes[i] + (j == 0 ? 4096 : 0)); /* what follows is shifted */
    for (size_t j = 0; j < 8; j++)
      quay_raw_buffer_free(&raws[j]);
    CHECK_OK(quay_allocator_alloc(pool, sizes[i], &aligned, &raws[0]));
    cr_assert_eq((uintptr_t)bytes_of(&raws[0]) % (256 * KIB), 0, "%llu bytes",
                 (unsigned long long)sizes[i]);
    quay_raw_buffer_free(&raws[0]);
  }
  quay_allocator_release(pool);
}

Test(pool, blocks_never_overlap) {
  enum {
    COUNT = 300,
    STEPS = 6000
  };
  static quay_raw_buffer raws[COUNT];
  uint64_t random = 11;
  quay_allocator *const pool = open_spec("pool:keep=tight+cpu");
  for (size_t step = 0; step < STEPS; step++) {
    const size_t at = quay_test_random(&random) % COUNT;
    quay_raw_buffer *const raw = &raws[at];
    if (raw->size > 0) {
      const unsigned char *const bytes = bytes_of(raw);
      cr_assert_eq(bytes[0], (unsigned char)(at + 1));
      cr_assert_eq(bytes[raw->size - 1], (unsigned char)(at + 1));
      cr_assert_eq(bytes[raw->size / 2], (unsigned char)(at + 1));
      quay_raw_buffer_free(raw);
      continue;
    }
    const uint32_t log2 = (uint32_t)(quay_test_random(&random) % 21);
    *raw = allocate(pool, 1 + quay_test_random(&random) % (UINT64_C(1) << log2));
    memset(bytes_of(raw), (int)at + 1, raw->size);
  }
  for (size_t i = 0; i < COUNT; i++)
    quay_raw_buffer_free(&raws[i]);
  quay_allocator_release(pool);
}

/* How much it holds. */

/* The most that was reserved over the most that was live, of random sizes up to `most`. */
static double ratio_of(const char *spec, uint64_t most, uint64_t seed) {
  enum {
    COUNT = 400,
    STEPS = 8000
  };
  static quay_raw_buffer raws[COUNT];
  quay_allocator *const pool = open_spec(spec);
  uint64_t live = 0, peak = 0, reserved = 0;
  for (size_t step = 0; step < STEPS; step++) {
    quay_raw_buffer *const raw = &raws[quay_test_random(&seed) % COUNT];
    if (raw->size > 0) {
      live -= raw->size;
      quay_raw_buffer_free(raw);
    } else {
      *raw = allocate(pool, 1 + quay_test_random(&seed) % most);
      live += raw->size;
    }
    const uint64_t now = stats_of(pool).reserved_bytes;
    reserved = now > reserved ? now : reserved;
    peak = live > peak ? live : peak;
  }
  for (size_t i = 0; i < COUNT; i++)
    quay_raw_buffer_free(&raws[i]);
  quay_allocator_release(pool);
  return (double)reserved / (double)peak;
}

Test(pool, it_holds_little_more_than_was_ever_live) {
  const double ratio = ratio_of("pool+cpu", 40 * MIB, 5);
  cr_assert_lt(ratio, 1.15, "%f", ratio);
}

Test(pool, kept_tight_it_holds_hardly_more_than_was_ever_live) {
  const double ratio = ratio_of("pool:keep=tight+cpu", 40 * MIB, 6);
  cr_assert_lt(ratio, 1.04, "%f", ratio);
}

Test(pool, kept_tight_it_packs_middling_sizes) {
  const double ratio = ratio_of("pool:keep=tight+cpu", 2 * MIB, 7);
  cr_assert_lt(ratio, 1.05, "%f", ratio);
}

Test(pool, trim_gives_back_all_that_is_free) {
  quay_allocator *const pool = open_spec("pool+cpu");
  quay_raw_buffer kept = allocate(pool, 3 * MIB);
  quay_raw_buffer raws[100];
  for (size_t i = 0; i < 100; i++)
    raws[i] = allocate(pool, 1 + (uint64_t)50000 * i);
  for (size_t i = 0; i < 100; i++)
    quay_raw_buffer_free(&raws[i]);
  uint64_t bytes = 0;
  const uint64_t before = stats_of(pool).reserved_bytes;
  CHECK_OK(quay_allocator_trim(pool, &bytes));
  const quay_stats stats = stats_of(pool);
  cr_assert_eq(stats.reserved_bytes, before - bytes);
  cr_assert_leq(stats.reserved_bytes, 3 * MIB + 192 * KIB);
  quay_raw_buffer_free(&kept);
  CHECK_OK(quay_allocator_trim(pool, NULL));
  cr_assert_eq(stats_of(pool).reserved_bytes, 0);
  cr_assert_eq(stats_of(quay_allocator_inner(pool)).reserved_bytes, 0);
  quay_allocator_release(pool);
}

Test(pool, trimmed_memory_is_gone_from_the_process) {
  quay_allocator *const pool = open_spec("pool+cpu");
  quay_raw_buffer raw = allocate(pool, 32 * MIB);
  unsigned char *const bytes = bytes_of(&raw);
  memset(bytes, 0xc3, 32 * MIB);
  quay_raw_buffer_free(&raw);
  CHECK_OK(quay_allocator_trim(pool, NULL));
  raw = allocate(pool, 32 * MIB);
  cr_assert_eq(bytes_of(&raw), bytes, "the test needs the same addresses");
  for (uint64_t at = 0; at < 32 * MIB; at += 4096)
    cr_assert_eq(bytes[at], 0);
  quay_raw_buffer_free(&raw);
  quay_allocator_release(pool);
}

Test(pool, statistics_tell_reserved_live_and_the_largest_free_block) {
  quay_allocator *const pool = open_spec("pool+cpu");
  quay_raw_buffer lower = allocate(pool, 8 * MIB);
  quay_raw_buffer upper = allocate(pool, 5 * MIB);
  quay_raw_buffer_free(&lower);
  const quay_stats stats = stats_of(pool);
  cr_assert_eq(stats.live_bytes, 5 * MIB);
  cr_assert_eq(stats.live_count, 1);
  cr_assert_eq(stats.largest_free_bytes, 8 * MIB);
  cr_assert_eq(stats.reserved_bytes, 13 * MIB);
  cr_assert_eq(stats.peak_bytes, 13 * MIB);
  cr_assert_eq(stats.pending_bytes, 0);
  quay_raw_buffer_free(&upper);
  quay_allocator_release(pool);
}

/* Limits. */

Test(pool, its_limit_is_never_exceeded_and_the_error_says_what_there_is) {
  quay_allocator *const pool = open_spec("pool:max=10MiB+cpu");
  quay_raw_buffer kept = allocate(pool, 6 * MIB);
  quay_raw_buffer raw;
  CHECK_FAILS(quay_allocator_alloc(pool, 5 * MIB, NULL, &raw), QUAY_STATUS_LIMIT_EXCEEDED);
  CHECK_MESSAGE("can't allocate 5242880 bytes");
  CHECK_MESSAGE("6291456 bytes are live");
  CHECK_MESSAGE("6291456 are reserved");
  CHECK_MESSAGE("10485760");
  cr_assert_leq(stats_of(pool).reserved_bytes, 10 * MIB);
  raw = allocate(pool, 4 * MIB);
  quay_raw_buffer_free(&raw);
  quay_raw_buffer_free(&kept);
  raw = allocate(pool, 10 * MIB);
  quay_raw_buffer_free(&raw);
  quay_allocator_release(pool);
}

/* Above the pool's alignment it asks the inner allocator for each block. */
/* As another program takes memory of a device. */
Test(pool, what_it_keeps_goes_back_where_others_have_taken_the_rest) {
  quay_allocator *const pool = open_spec("pool+limit:64MiB+cpu");
  quay_raw_buffer kept = allocate(pool, 60 * MIB); /* so that it may hold as much */
  quay_raw_buffer_free(&kept);
  CHECK_OK(quay_allocator_trim(pool, NULL));
  kept = allocate(pool, 30 * MIB);
  quay_raw_buffer_free(&kept);
  quay_raw_buffer others = allocate(quay_allocator_inner(pool), 30 * MIB);
  quay_raw_buffer raws[16];
  for (size_t i = 0; i < 16; i++)
    raws[i] = allocate(pool, 512 * KIB);
  for (size_t i = 0; i < 16; i++)
    quay_raw_buffer_free(&raws[i]);
  quay_raw_buffer_free(&others);
  quay_allocator_release(pool);
}

Test(pool, all_of_a_small_limit_can_be_had) {
  static const struct {
    const char *spec;
    size_t count; /* blocks of 4 KiB */
  } each[] = {{"pool:max=4KiB+cpu", 1},    {"pool:max=20KiB+cpu", 5},
              {"pool:max=100KiB+cpu", 25}, {"pool+limit:4KiB+cpu", 1},
              {"pool+limit:20KiB+cpu", 5}, {"pool+limit:100KiB+cpu", 25}};
  for (size_t i = 0; i < sizeof each / sizeof each[0]; i++) {
    quay_allocator *const pool = open_spec(each[i].spec);
    quay_raw_buffer raws[26];
    size_t count = 0;
    while (count < 26 && quay_allocator_alloc(pool, 4096, NULL, &raws[count]) == QUAY_OK)
      count++;
    cr_expect_eq(count, each[i].count, "%s: %zu blocks", each[i].spec, count);
    while (count > 0)
      quay_raw_buffer_free(&raws[--count]);
    quay_allocator_release(pool);
  }
}

Test(pool, its_limit_counts_blocks_that_it_does_not_carve) {
  quay_allocator *const pool = open_spec("pool:max=10MiB+cpu");
  const quay_alloc_options options = {.alignment = 8 * MIB};
  quay_raw_buffer raw, other, kept = allocate(pool, 5 * MIB);
  quay_raw_buffer_free(&kept); /* is given back where it is in the way */
  CHECK_OK(quay_allocator_alloc(pool, 6 * MIB, &options, &raw));
  cr_assert_leq(stats_of(pool).reserved_bytes, 10 * MIB);
  CHECK_FAILS(quay_allocator_alloc(pool, 5 * MIB, &options, &other), QUAY_STATUS_LIMIT_EXCEEDED);
  CHECK_MESSAGE("10485760");
  CHECK_FAILS(quay_allocator_alloc(pool, 5 * MIB, NULL, &other), QUAY_STATUS_LIMIT_EXCEEDED);
  quay_raw_buffer_free(&raw);
  CHECK_OK(quay_allocator_alloc(pool, 10 * MIB, &options, &raw));
  quay_raw_buffer_free(&raw);
  CHECK_OK(quay_allocator_trim(pool, NULL));
  cr_assert_eq(stats_of(pool).reserved_bytes, 0);
  quay_allocator_release(pool);
}

/* Addresses for it may not be there, which would be another error; and what is kept can't help. */
Test(pool, more_than_its_limit_is_refused_at_once) {
  quay_allocator *const pool = open_spec("pool:max=10MiB+cpu");
  static const uint64_t alignments[] = {0, 8 * MIB};
  quay_raw_buffer kept = allocate(pool, 5 * MIB);
  quay_raw_buffer_free(&kept);
  const uint64_t reserved = stats_of(pool).reserved_bytes;
  cr_assert_geq(reserved, 5 * MIB);
  for (size_t i = 0; i < sizeof alignments / sizeof alignments[0]; i++) {
    const quay_alloc_options options = {.alignment = alignments[i]};
    quay_raw_buffer raw;
    CHECK_FAILS(quay_allocator_alloc(pool, INT64_MAX, &options, &raw), QUAY_STATUS_LIMIT_EXCEEDED);
    CHECK_MESSAGE("10485760");
    CHECK_FAILS(quay_allocator_alloc(pool, 11 * MIB, &options, &raw), QUAY_STATUS_LIMIT_EXCEEDED);
    cr_assert_eq(stats_of(pool).reserved_bytes, reserved);
  }
  quay_allocator_release(pool);
}

Test(pool, a_share_of_the_device_is_a_limit) {
  quay_allocator *const pool = open_spec("pool:max=1%+cpu");
  quay_memory_info info;
  CHECK_OK(quay_device_memory_info(quay_allocator_device(pool), &info));
  quay_raw_buffer raw;
  CHECK_FAILS(quay_allocator_alloc(pool, info.total_bytes / 50, NULL, &raw),
              QUAY_STATUS_LIMIT_EXCEEDED);
  quay_allocator_release(pool);
}

Test(pool, a_success_after_a_failure_inside_leaves_the_error_alone) {
  quay_allocator *const pool = open_spec("pool:max=10MiB+cpu");
  quay_raw_buffer small[20];
  for (size_t i = 0; i < 20; i++)
    small[i] = allocate(pool, 256 * KIB);
  for (size_t i = 0; i < 20; i++)
    quay_raw_buffer_free(&small[i]); /* a part of it is kept by the thread */
  quay_allocator *none = NULL;
  CHECK_FAILS(quay_allocator_open("nothing", &none), QUAY_STATUS_INVALID_ARGUMENT);
  quay_raw_buffer raw = allocate(pool, 10 * MIB);
  cr_assert_eq(quay_last_error()->status, QUAY_STATUS_INVALID_ARGUMENT);
  quay_raw_buffer_free(&raw);
  quay_allocator_release(pool);
}

/* The chain. */

Test(pool, carved_memory_is_not_released_to_the_program) {
  quay_allocator *const pool = open_spec("track+pool+cpu");
  quay_raw_buffer raw = allocate(pool, 5000);
  quay_host_memory memory;
  CHECK_FAILS(quay_raw_buffer_release_host(&raw, &memory), QUAY_STATUS_UNSUPPORTED);
  CHECK_MESSAGE("pool");
  memset(bytes_of(&raw), 1, 5000);
  quay_raw_buffer_free(&raw);
  CHECK_OK(quay_track_check(pool));
  quay_allocator_release(pool);
}

Test(pool, options_that_the_backend_refuses_are_refused_by_it) {
  quay_allocator *const pool = open_spec("pool+cpu");
  const quay_alloc_options mirror = {.mirror = true};
  const quay_alloc_options exportable = {.exportable = true};
  quay_raw_buffer raw;
  CHECK_FAILS(quay_allocator_alloc(pool, 100, &mirror, &raw), QUAY_STATUS_UNSUPPORTED);
  CHECK_FAILS(quay_allocator_alloc(pool, 100, &exportable, &raw), QUAY_STATUS_UNSUPPORTED);
  quay_allocator_release(pool);
}

static atomic_uint released;

static void count_release(void *user, void *memory, uint64_t size) {
  (void)user;
  (void)memory;
  (void)size;
  atomic_fetch_add(&released, 1);
}

Test(pool, adopted_memory_is_freed_by_its_callback_alone) {
  static unsigned char bytes[1000];
  quay_allocator *const pool = open_spec("pool+cpu");
  const quay_host_memory memory = {
      .pointer = bytes, .size = sizeof bytes, .release = count_release};
  quay_raw_buffer raw;
  CHECK_OK(quay_raw_buffer_adopt_host(pool, &memory, &raw));
  cr_assert_eq(bytes_of(&raw), bytes);
  cr_assert_eq(stats_of(pool).live_count, 0);
  quay_raw_buffer_free(&raw);
  cr_assert_eq(atomic_load(&released), 1);
  quay_allocator_release(pool);
}

Test(pool, a_pool_that_is_released_lingers_until_its_last_block_is_freed) {
  quay_test_log_begin();
  quay_allocator *const pool = open_spec("pool+cpu");
  quay_raw_buffer raw = allocate(pool, 12345);
  quay_allocator_release(pool);
  cr_assert_eq(quay_test_log_count("lingers"), 1);
  memset(bytes_of(&raw), 0x31, 12345);
  quay_raw_buffer_free(&raw);
  CHECK_OK(quay_shutdown());
}

/* Threads. */

enum {
  THREADS = 8,
  SHARED = 64
};

typedef struct racing {
  quay_allocator *pool;
  uint64_t seed;
  atomic_bool failed;
} racing;

/* Blocks that threads hand to each other. */
static _Atomic(quay_raw_buffer *) shared[SHARED];

static bool is_filled(const quay_raw_buffer *raw) {
  void *pointer = NULL;
  if (quay_raw_buffer_host_pointer(raw, &pointer) != QUAY_OK)
    return false;
  const unsigned char *const bytes = pointer;
  for (uint64_t i = 1; i < raw->size; i++) {
    if (bytes[i] != bytes[0])
      return false;
  }
  return true;
}

static void *race(void *argument) {
  racing *const own = argument;
  uint64_t random = own->seed;
  for (int step = 0; step < 2000; step++) {
    const uint32_t log2 = (uint32_t)(quay_test_random(&random) % 18);
    quay_raw_buffer *const raw = calloc(1, sizeof *raw);
    void *pointer = NULL;
    if (quay_allocator_alloc(own->pool, 1 + quay_test_random(&random) % (UINT64_C(1) << log2), NULL,
                             raw) != QUAY_OK ||
        quay_raw_buffer_host_pointer(raw, &pointer) != QUAY_OK) {
      atomic_store(&own->failed, true);
      free(raw);
      return NULL;
    }
    memset(pointer, (int)(quay_test_random(&random) % 255) + 1, raw->size);
    quay_raw_buffer *const other =
        atomic_exchange(&shared[quay_test_random(&random) % SHARED], raw);
    if (other != NULL) {
      if (!is_filled(other))
        atomic_store(&own->failed, true);
      quay_raw_buffer_free(other);
      free(other);
    }
    if (step % 500 == 0 && quay_allocator_trim(own->pool, NULL) != QUAY_OK)
      atomic_store(&own->failed, true);
  }
  return NULL;
}

static void run_race(const char *spec, void *(*race_of)(void *argument)) {
  quay_allocator *const pool = open_spec(spec);
  pthread_t threads[THREADS];
  static racing each[THREADS];
  for (size_t i = 0; i < THREADS; i++) {
    each[i] = (racing){.pool = pool, .seed = i + 1};
    cr_assert_eq(pthread_create(&threads[i], NULL, race_of, &each[i]), 0);
  }
  for (size_t i = 0; i < THREADS; i++) {
    pthread_join(threads[i], NULL);
    cr_assert_not(atomic_load(&each[i].failed), "thread %zu", i);
  }
  for (size_t i = 0; i < SHARED; i++) {
    quay_raw_buffer *const raw = atomic_exchange(&shared[i], NULL);
    quay_raw_buffer_free(raw);
    free(raw);
  }
  const quay_stats stats = stats_of(pool);
  cr_assert_eq(stats.live_count, 0);
  CHECK_OK(quay_allocator_trim(pool, NULL));
  cr_assert_eq(stats_of(pool).reserved_bytes, 0);
  quay_allocator_release(pool);
}

Test(pool, threads_that_free_each_others_blocks_lose_nothing) {
  run_race("pool+cpu", race);
}

Test(pool, threads_race_where_memory_is_given_back_all_the_time) {
  run_race("pool:keep=tight+cpu", race);
}

Test(pool, threads_race_where_blocks_are_carved) {
  run_race("pool+mmap:/tmp", race);
}

/* Large blocks, of which a thread keeps what it freed last. */

static const uint64_t large_sizes[] = {300 * KIB, MIB, MIB + 5, 3 * MIB};

/* Both ends hold the address of the buffer. */
static void sign(const quay_raw_buffer *raw) {
  const uintptr_t mark = (uintptr_t)raw;
  memcpy(bytes_of(raw), &mark, sizeof mark);
  memcpy(bytes_of(raw) + raw->size - sizeof mark, &mark, sizeof mark);
}

static bool is_signed(const quay_raw_buffer *raw) {
  const uintptr_t mark = (uintptr_t)raw;
  const unsigned char *const bytes = bytes_of(raw);
  return memcmp(bytes, &mark, sizeof mark) == 0 &&
         memcmp(bytes + raw->size - sizeof mark, &mark, sizeof mark) == 0;
}

static void *race_with_large_blocks(void *argument) {
  racing *const own = argument;
  uint64_t random = own->seed;
  for (int step = 0; step < 500; step++) {
    quay_raw_buffer *const raw = calloc(1, sizeof *raw);
    *raw = allocate(own->pool, large_sizes[quay_test_random(&random) % 4]);
    sign(raw);
    quay_raw_buffer *other = raw;
    if (quay_test_random(&random) % 4 == 0)
      other = atomic_exchange(&shared[quay_test_random(&random) % 8], raw);
    if (other != NULL) {
      if (!is_signed(other))
        atomic_store(&own->failed, true);
      quay_raw_buffer_free(other);
      free(other);
    }
    if (step % 250 == 0)
      CHECK_OK(quay_allocator_trim(own->pool, NULL));
    if (step % 50 == 0)
      (void)stats_of(own->pool);
  }
  return NULL;
}

Test(pool, threads_that_free_large_blocks_of_each_other_lose_nothing) {
  run_race("pool+cpu", race_with_large_blocks);
}

Test(pool, threads_race_with_large_blocks_where_there_is_little_room) {
  run_race("pool:max=50MiB,keep=tight+cpu", race_with_large_blocks);
}

/* Runs in a thread of its own, which has ended on return. */
static void in_another_thread(void *(*function)(void *argument), void *argument) {
  pthread_t thread;
  cr_assert_eq(pthread_create(&thread, NULL, function, argument), 0);
  cr_assert_eq(pthread_join(thread, NULL), 0);
}

static quay_raw_buffer elsewhere;

static void *take_elsewhere(void *pool) {
  elsewhere = allocate(pool, MIB);
  return NULL;
}

static void *take_and_free_large(void *pool) {
  quay_raw_buffer raws[6];
  for (size_t i = 0; i < 6; i++)
    raws[i] = allocate(pool, 3 * MIB);
  for (size_t i = 0; i < 6; i++)
    quay_raw_buffer_free(&raws[i]);
  return NULL;
}

static void *free_elsewhere(void *argument) {
  (void)argument;
  quay_raw_buffer_free(&elsewhere);
  return NULL;
}

Test(pool, what_another_thread_freed_last_is_used_before_there_is_more_memory) {
  quay_allocator *const pool = open_spec("pool+cpu");
  quay_raw_buffer whole = allocate(pool, 50 * MIB); /* so that the peak stays what it is */
  quay_raw_buffer_free(&whole);
  CHECK_OK(quay_allocator_trim(pool, NULL));
  in_another_thread(take_and_free_large, pool);
  whole = allocate(pool, 18 * MIB);
  cr_assert_eq(stats_of(pool).reserved_bytes, 18 * MIB);
  quay_raw_buffer_free(&whole);
  quay_allocator_release(pool);
}

Test(pool, what_another_thread_freed_last_is_trimmed) {
  quay_allocator *const pool = open_spec("pool+cpu");
  in_another_thread(take_and_free_large, pool);
  CHECK_OK(quay_allocator_trim(pool, NULL));
  cr_assert_eq(stats_of(pool).reserved_bytes, 0);
  quay_allocator_release(pool);
}

Test(pool, what_threads_freed_last_is_told_as_one_free_block) {
  quay_allocator *const pool = open_spec("pool+cpu");
  in_another_thread(take_and_free_large, pool);
  cr_assert_eq(stats_of(pool).largest_free_bytes, 18 * MIB);
  quay_allocator_release(pool);
}

Test(pool, more_large_blocks_than_a_thread_keeps_become_one) {
  enum {
    COUNT = 30
  };
  quay_allocator *const pool = open_spec("pool+cpu");
  quay_raw_buffer raws[COUNT];
  for (size_t i = 0; i < COUNT; i++)
    raws[i] = allocate(pool, (1 + i % 3) * MIB);
  for (size_t i = 0; i < COUNT; i++)
    quay_raw_buffer_free(&raws[i]);
  quay_raw_buffer whole = allocate(pool, 60 * MIB);
  cr_assert_eq(stats_of(pool).reserved_bytes, 60 * MIB);
  quay_raw_buffer_free(&whole);
  quay_allocator_release(pool);
}

/* Each of the others is of a size of its own, so that nothing else fits as well. */
Test(pool, a_block_of_its_size_comes_back_though_others_were_freed_since) {
  static const uint64_t kept[] = {2 * MIB, 3 * MIB, 5 * MIB, 7 * MIB};
  quay_allocator *const pool = open_spec("pool+cpu");
  quay_raw_buffer raws[4];
  unsigned char *places[4];
  for (int round = 0; round < 3; round++) {
    for (size_t i = 0; i < 4; i++) {
      raws[i] = allocate(pool, kept[i]);
      if (round > 0)
        cr_assert_eq(bytes_of(&raws[i]), places[i], "block %zu", i);
      places[i] = bytes_of(&raws[i]);
    }
    for (size_t i = 4; i-- > 0;)
      quay_raw_buffer_free(&raws[i]);
  }
  quay_allocator_release(pool);
}

/* The most that was ever live must be seen though neither thread's own bytes say so: what one of
 * them keeps may not count as in use when the other one asks for more. */
Test(pool, the_peak_is_told_of_blocks_that_threads_take_of_what_they_keep) {
  quay_allocator *const pool = open_spec("pool+mmap:/tmp"); /* a block of 2 MiB, half of it used */
  quay_raw_buffer own = allocate(pool, MIB);
  quay_raw_buffer_free(&own);
  cr_assert_eq(stats_of(pool).peak_bytes, MIB);
  own = allocate(pool, MIB);
  quay_raw_buffer_free(&own);
  in_another_thread(take_elsewhere, pool);
  own = allocate(pool, MIB);
  quay_raw_buffer_free(&own);
  in_another_thread(free_elsewhere, NULL);
  cr_assert_eq(stats_of(pool).peak_bytes, 2 * MIB);
  quay_allocator_release(pool);
}

Test(pool, the_peak_is_told_of_a_block_that_asks_for_more_of_the_same_memory) {
  quay_allocator *const pool = open_spec("pool+cpu");
  quay_raw_buffer raw = allocate(pool, 2 * MIB - 100);
  quay_raw_buffer_free(&raw);
  raw = allocate(pool, 2 * MIB);
  quay_raw_buffer_free(&raw);
  cr_assert_eq(stats_of(pool).peak_bytes, 2 * MIB);
  quay_allocator_release(pool);
}

static void *take_and_free(void *argument) {
  quay_raw_buffer raw;
  quay_allocator *const pool = argument;
  for (int i = 0; i < 50; i++) {
    if (quay_allocator_alloc(pool, 300, NULL, &raw) != QUAY_OK)
      return pool;
    quay_raw_buffer_free(&raw);
  }
  return NULL;
}

Test(pool, more_threads_than_it_has_lists_for_share_what_is_left) {
  enum {
    MANY = 48
  };
  quay_allocator *const pool = open_spec("pool+cpu");
  pthread_t threads[MANY];
  for (size_t i = 0; i < MANY; i++)
    cr_assert_eq(pthread_create(&threads[i], NULL, take_and_free, pool), 0);
  for (size_t i = 0; i < MANY; i++) {
    void *failed = NULL;
    pthread_join(threads[i], &failed);
    cr_assert_null(failed);
  }
  cr_assert_eq(stats_of(pool).live_count, 0);
  quay_allocator_release(pool);
}

/* Fork. */

static atomic_bool over;

static void *keep_busy(void *argument) {
  quay_allocator *const pool = argument;
  uint64_t random = 9;
  while (!atomic_load(&over)) {
    quay_raw_buffer raw;
    if (quay_allocator_alloc(pool, 1 + quay_test_random(&random) % 3000000, NULL, &raw) == QUAY_OK)
      quay_raw_buffer_free(&raw);
  }
  return NULL;
}

Test(pool, a_child_of_a_fork_goes_on_with_it_whatever_other_threads_were_doing) {
  quay_allocator *const pool = open_spec("pool+cpu");
  quay_raw_buffer before = allocate(pool, 5000);
  memset(bytes_of(&before), 0x42, 5000);
  pthread_t threads[2];
  for (size_t i = 0; i < 2; i++)
    cr_assert_eq(pthread_create(&threads[i], NULL, keep_busy, pool), 0);
  for (int round = 0; round < 8; round++) {
    const pid_t child = fork();
    cr_assert_geq(child, 0);
    if (child == 0) {
      alarm(20);
      bool works = bytes_of(&before)[4999] == 0x42;
      for (uint64_t i = 1; i < 500 && works; i++) {
        quay_raw_buffer raw;
        works = quay_allocator_alloc(pool, i * 5000, NULL, &raw) == QUAY_OK;
        quay_raw_buffer_free(&raw);
      }
      quay_raw_buffer_free(&before);
      _exit(works ? 0 : 1);
    }
    int status = 0;
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(status, 0, "round %d", round);
  }
  atomic_store(&over, true);
  for (size_t i = 0; i < 2; i++)
    pthread_join(threads[i], NULL);
  quay_raw_buffer_free(&before);
  quay_allocator_release(pool);
}

/* AddressSanitizer. */

#ifdef QUAY__ASAN

/* Whether all of [from, to) is poisoned, or none of it. */
static void check_poison(const unsigned char *bytes, uint64_t from, uint64_t to, bool expected,
                         const char *what) {
  for (uint64_t i = from; i < to; i++)
    cr_assert_eq(__asan_address_is_poisoned(bytes + i) != 0, expected, "%s: byte %zu", what,
                 (size_t)i);
}

/* By pages, by blocks and around other layers. */
static const char *const poisoned_specs[] = {"pool+cpu",       "pool:keep=tight+cpu",
                                             "pool+mmap:/tmp", "pool+pool+cpu",
                                             "pool+guard+cpu", "track+pool+cpu"};
static const uint64_t poisoned_sizes[] = {1, 100, 5000, 300 * KIB + 3, 2 * MIB + 5};

Test(pool, what_is_free_is_poisoned_and_what_is_live_is_not) {
  for (size_t i = 0; i < sizeof poisoned_specs / sizeof poisoned_specs[0]; i++) {
    quay_allocator *const pool = open_spec(poisoned_specs[i]);
    for (size_t k = 0; k < sizeof poisoned_sizes / sizeof poisoned_sizes[0]; k++) {
      const uint64_t size = poisoned_sizes[k];
      quay_raw_buffer raw = allocate(pool, size);
      unsigned char *const bytes = bytes_of(&raw);
      check_poison(bytes, 0, size, false, poisoned_specs[i]);
      memset(bytes, 0x5a, size);
      quay_raw_buffer_free(&raw);
      check_poison(bytes, 0, size, true, poisoned_specs[i]);
      raw = allocate(pool, size);
      check_poison(bytes_of(&raw), 0, size, false, poisoned_specs[i]);
      quay_raw_buffer_free(&raw);
    }
    CHECK_OK(quay_allocator_trim(pool, NULL));
    quay_allocator_release(pool);
  }
}

Test(pool, bytes_of_a_live_block_beyond_those_asked_for_are_poisoned) {
  quay_allocator *const pool = open_spec("pool+cpu");
  quay_raw_buffer raw = allocate(pool, 100);
  check_poison(bytes_of(&raw), 100, 128, true, "a block of 100 bytes");
  quay_raw_buffer_free(&raw);
  quay_allocator_release(pool);
}

/* The C library hands the same addresses to others. */
Test(pool, memory_that_goes_back_to_the_inner_allocator_is_not_poisoned) {
  static const char *const specs[] = {"pool+cpu", "pool:block=64KiB+guard:quarantine=0+cpu"};
  for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) {
    quay_allocator *const pool = open_spec(specs[i]);
    quay_raw_buffer raw = allocate(pool, 5000);
    const unsigned char *const bytes = bytes_of(&raw);
    quay_raw_buffer_free(&raw);
    check_poison(bytes, 0, 5000, true, specs[i]);
    quay_allocator_release(pool);
    check_poison(bytes, 0, 5000, false, specs[i]);
  }
}

#endif
