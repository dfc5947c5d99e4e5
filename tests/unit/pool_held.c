/* How much the pool holds over what programs of many shapes have live at most. That it works at all
 * is tested elsewhere. */
#include <quay/backend.h>
#include <quay/quay.h>

#include "support/random.h"
#include "support/status.h"

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)

/* AddressSanitizer is told of every byte that becomes free. */
#if defined(__SANITIZE_ADDRESS__)
#define POISONED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define POISONED 1
#endif
#endif

enum {
  BLOCKS = 4096,
#ifdef POISONED
  FEWER = 10,
#else
  FEWER = 1,
#endif
};

typedef struct program {
  quay_allocator *pool;
  uint64_t random;
  uint64_t live, peak, reserved; /* bytes */
  quay_raw_buffer blocks[BLOCKS];
} program;

/* Looks at the inner allocator, since the pool's own statistics move what threads keep. */
static void look(program *of) {
  quay_stats stats;
  CHECK_OK(quay_allocator_stats(quay_allocator_inner(of->pool), &stats));
  of->reserved = stats.reserved_bytes > of->reserved ? stats.reserved_bytes : of->reserved;
  of->peak = of->live > of->peak ? of->live : of->peak;
}

static void take(program *of, size_t block, uint64_t size) {
  CHECK_OK(quay_allocator_alloc(of->pool, size, NULL, &of->blocks[block]));
  of->live += size;
  look(of);
}

static void give(program *of, size_t block) {
  if (of->blocks[block].owner == NULL)
    return;
  of->live -= of->blocks[block].size;
  quay_raw_buffer_free(&of->blocks[block]);
}

static uint64_t below(program *of, uint64_t limit) {
  return quay_test_random(&of->random) % limit;
}

/* Each doubling from `least` on as likely as the others, `doublings` of them. */
static uint64_t any_size(program *of, uint64_t least, uint64_t doublings) {
  const uint64_t from = least << below(of, doublings);
  return from + below(of, from);
}

typedef struct shape {
  void (*run)(program *of);
  const char *name;
} shape;

static void check_held(const char *spec, const shape *run, double most) {
  static program of;
  of = (program){.random = 11};
  CHECK_OK(quay_allocator_open(spec, &of.pool));
  run->run(&of);
  for (size_t i = 0; i < BLOCKS; i++)
    give(&of, i);
  quay_allocator_release(of.pool);
  const double ratio = (double)of.reserved / (double)of.peak;
  cr_expect_leq(ratio, most, "%s, %s: held over live %.4f", spec, run->name, ratio);
}

/* Arrays that are made anew at each step, a little larger, before the old ones go. */
static void grow_slowly(program *of) {
  enum {
    ARRAYS = 40,
    STEPS = 250 / FEWER
  };
  for (size_t i = 0; i < ARRAYS; i++)
    take(of, i, any_size(of, 256 * KIB, 6));
  for (size_t step = 0; step < STEPS; step++) {
    for (size_t i = 0; i < ARRAYS; i++) {
      const uint64_t size = of->blocks[i].size;
      take(of, ARRAYS, size > 64 * MIB ? any_size(of, 256 * KIB, 6) : size + size / 250 + 512);
      give(of, i);
      of->blocks[i] = of->blocks[ARRAYS];
      of->blocks[ARRAYS].owner = NULL;
    }
  }
}

/* RMM's benchmark: any size, freed at random. */
static void allocate_at_random(program *of) {
  for (size_t step = 0; step < 8000 / FEWER; step++) {
    const size_t block = below(of, 300);
    if (of->blocks[block].owner != NULL) {
      give(of, block);
    } else {
      take(of, block, 1 + below(of, 64 * MIB));
    }
  }
}

/* Every other block goes, and blocks of half as much again come. */
static void free_every_other(program *of) {
  enum {
    GROUP = 300,
    GROUPS = 6
  };
  for (size_t round = 0; round < 6 + 18 / FEWER; round++) {
    const size_t first = round % GROUPS * GROUP;
    const uint64_t size = 64 * KIB << below(of, 7);
    for (size_t i = 0; i < GROUP; i++)
      give(of, first + i);
    for (size_t i = 0; i < GROUP; i++)
      take(of, first + i, size + below(of, 64 * KIB));
    for (size_t i = 0; i < GROUP; i += 2)
      give(of, first + i);
    for (size_t i = 0; i < GROUP; i += 4)
      take(of, first + i, size + size / 2);
  }
}

/* Blocks hardly larger than what is committed at a time. */
static void free_every_other_small_one(program *of) {
  enum {
    GROUP = 600,
    GROUPS = 6
  };
  for (size_t round = 0; round < 30; round++) {
    const size_t first = round % GROUPS * GROUP;
    const uint64_t size = any_size(of, 32 * KIB, 3);
    for (size_t i = 0; i < GROUP; i++)
      give(of, first + i);
    for (size_t i = 0; i < GROUP; i++)
      take(of, first + i, size + below(of, 256));
    for (size_t i = 0; i < GROUP; i += 2)
      give(of, first + i);
    for (size_t i = 0; i < GROUP; i += 6)
      take(of, first + i, 2 * size);
  }
}

/* Very small blocks in great number, and now and then a very large one. */
static void mix_small_and_huge(program *of) {
  for (size_t step = 0; step < 30000 / FEWER; step++) {
    const size_t block = 8 + below(of, 4000);
    if (of->blocks[block].owner != NULL) {
      give(of, block);
    } else {
      take(of, block, any_size(of, 1, 12));
    }
    if (step % 100 == 0) {
      const size_t huge = below(of, 8);
      if (of->blocks[huge].owner != NULL) {
        give(of, huge);
      } else {
        take(of, huge, 100 * MIB + below(of, 300 * MIB));
      }
    }
  }
}

/* Caches of requests that grow by concatenation, of any length, beside weights that stay. */
static void serve_requests(program *of) {
  enum {
    WEIGHTS = 100,
    LAYERS = 24
  };
  for (size_t i = 0; i < WEIGHTS; i++)
    take(of, LAYERS + 1 + i, any_size(of, 256 * KIB, 5));
  for (size_t request = 0; request < 20 / FEWER; request++) {
    const uint64_t width = 2 * KIB << below(of, 4);
    uint64_t length = 16 + below(of, 600);
    const uint64_t last = length + 10 + below(of, 60);
    for (size_t i = 0; i < LAYERS; i++)
      take(of, i, width * length);
    for (; length < last; length++) {
      for (size_t i = 0; i < LAYERS; i++) {
        take(of, LAYERS, width * (length + 1));
        give(of, i);
        of->blocks[i] = of->blocks[LAYERS];
        of->blocks[LAYERS].owner = NULL;
      }
    }
    for (size_t i = 0; i < LAYERS; i++)
      give(of, i);
  }
}

static const shape shapes[] = {
    {grow_slowly, "slow growth"},           {allocate_at_random, "random sizes"},
    {free_every_other, "every other"},      {free_every_other_small_one, "every other small one"},
    {mix_small_and_huge, "small and huge"}, {serve_requests, "requests served"},
};

Test(pool_held, it_is_at_most_a_twentieth_more_than_was_ever_live) {
  for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
    check_held("pool+cpu", &shapes[i], 1.05);
}

Test(pool_held, kept_tight_it_is_at_most_a_fiftieth_more_than_was_ever_live) {
  for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
    check_held("pool:keep=tight+cpu", &shapes[i], 1.02);
}
