/* The pool layer's options, table and statistics. How it works is in the other files, which
 * pool_impl.h lists. */
#include <stdio.h>
#include <string.h>

#include "core/checked.h"
#include "core/error.h"
#include "core/os.h"
#include "core/poison.h"
#include "core/registry.h"
#include "layers/pool_impl.h"

#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)

/* Of what is carved: from here on an allocation is one of its own. */
#define PAGES_ALIGNMENT  (2 * MIB)
#define BLOCKS_ALIGNMENT ((uint64_t)4096)
/* Pages of the host come and go in pieces of this, unless memory is dearer than calls. */
#define HOST_PIECE    ((uint64_t)32 << 10)
#define LEAST_RESERVE (16 * GIB)
#define MOST_RESERVE  (1024 * GIB)
/* What a thread keeps of small blocks, each at most a quarter of that, and, where there is as much
 * eight times, of large blocks. */
#define CACHE_BYTES  MIB
#define RECENT_BYTES (512 * MIB)

static void destroy_regions(quay__pool *pool) {
  for (uint32_t i = 0; i < pool->region_count; i++) {
    if (pool->regions[i] != NULL)
      quay__pool_region_end(pool, pool->regions[i], NULL, 0);
  }
}

static void destroy(quay__pool *pool) {
  for (uint32_t i = 0; i < QUAY__POOL_ARENAS; i++)
    quay__offsets_destroy(&pool->arenas[i]);
  quay__pool_caches_destroy(pool);
  quay__spin_set_remove(&pool->spins);
  quay__lock_destroy(&pool->lock);
  quay__os_free((void *)pool->regions);
  quay__os_free(pool->free_numbers);
  quay__os_free(pool);
}

static void pool_destroy(void *self) {
  quay__pool *const pool = self;
  quay__pool_flush(pool);
  quay__pool_wait(pool);
  quay__pool_drop_events(pool);
  destroy_regions(pool);
  destroy(pool);
}

/* The table. What is not here goes to the inner allocator as it comes. */

static quay_status pool_release(quay_allocator *allocator, quay_raw_buffer *raw,
                                quay_host_memory *out_memory) {
  quay__pool *const pool = quay__pool_of(allocator);
  if ((raw->flags & QUAY__RAW_RESERVED) != 0)
    return quay__release(pool->inner, raw, out_memory);
  return quay_error_set(QUAY_STATUS_UNSUPPORTED, "pool", 0, NULL,
                        "memory of a pool can't be released to the program: it is a part of a "
                        "block; allocate it from %s",
                        pool->inner->spec);
}

static quay_status pool_trim(quay_allocator *allocator, uint64_t *out_bytes) {
  quay__pool *const pool = quay__pool_of(allocator);
  quay__pool_flush(pool);
  (void)quay__pool_poll(pool, NULL);
  const uint64_t bytes = quay__pool_release_free(pool);
  *out_bytes = 0;
  QUAY_TRY(pool->inner->vtable.trim(pool->inner, out_bytes));
  *out_bytes += bytes;
  return QUAY_OK;
}

static void pool_stats(quay_allocator *allocator, quay_backend_stats *out_stats) {
  quay__pool *const pool = quay__pool_of(allocator);
  /* So that it counts as what it is: free, or pending. */
  quay__pool_flush_recent(pool);
  quay__pool_flush_pending(pool);
  (void)quay__pool_poll(pool, NULL);
  *out_stats = (quay_backend_stats){.reserved_bytes = 0};
  quay__lock_acquire(&pool->lock);
  out_stats->reserved_bytes = pool->committed;
  out_stats->pending_bytes = quay__pool_pending_bytes(pool);
  for (uint32_t i = 0; i < QUAY__POOL_ARENAS; i++) {
    out_stats->largest_free_bytes =
        quay__max(out_stats->largest_free_bytes,
                  quay__offsets_largest_size(&pool->arenas[i], QUAY__POOL_READY));
  }
  quay__lock_release(&pool->lock);
}

/* Opening. */

typedef struct settings {
  bool tight;
  uint64_t block_bytes, max_bytes;
} settings;

static quay_status parse_keep(const quay_spec_args *args, settings *out_settings) {
  const char *const value = quay_spec_value(args, "keep");
  out_settings->tight = value != NULL && strcmp(value, "tight") == 0;
  if (value == NULL || out_settings->tight || strcmp(value, "default") == 0)
    return QUAY_OK;
  return quay_error_set(QUAY_STATUS_INVALID_ARGUMENT, "pool", 0, NULL,
                        "keep=%s in \"%s\" is not default or tight", value, args->spec);
}

/* "75%": of the device's memory, so that several processes can share it. False: it is no share.
 * What is above 100 is told as such, however large. */
static bool parse_share(const char *value, uint64_t *out_percent) {
  uint64_t percent = 0;
  size_t i = 0;
  for (; value[i] >= '0' && value[i] <= '9'; i++)
    percent = quay__min(percent * 10 + (uint64_t)(value[i] - '0'), 1000);
  *out_percent = percent;
  return i > 0 && value[i] == '%' && value[i + 1] == '\0';
}

static quay_status parse_max(const quay_spec_args *args, const quay_allocator *inner,
                             settings *out_settings) {
  const char *const value = quay_spec_value(args, "max");
  uint64_t percent = 0;
  out_settings->max_bytes = UINT64_MAX;
  if (value == NULL || !parse_share(value, &percent))
    return quay_spec_bytes(args, "max", &out_settings->max_bytes);
  if (percent == 0 || percent > 100) {
    return quay_error_set(QUAY_STATUS_INVALID_ARGUMENT, "pool", 0, NULL,
                          "max=%s in \"%s\": a share is from 1%% to 100%% of the device's memory",
                          value, args->spec);
  }
  quay_memory_info info;
  QUAY_TRY(inner->device->vtable.memory_info(inner->device, &info));
  out_settings->max_bytes = info.total_bytes / 100 * percent;
  return QUAY_OK;
}

static quay_status parse_block(const quay_spec_args *args, settings *out_settings) {
  out_settings->block_bytes = 0;
  QUAY_TRY(quay_spec_bytes(args, "block", &out_settings->block_bytes));
  if (quay_spec_value(args, "block") == NULL ||
      (quay__is_power_of_two(out_settings->block_bytes) && out_settings->block_bytes >= 64 << 10 &&
       out_settings->block_bytes <= GIB))
    return QUAY_OK;
  return quay_error_set(QUAY_STATUS_INVALID_ARGUMENT, "pool", 0, NULL,
                        "block=%s in \"%s\" is no power of two from 64KiB to 1GiB",
                        quay_spec_value(args, "block"), args->spec);
}

static quay_status parse(const quay_spec_args *args, const quay_allocator *inner,
                         settings *out_settings) {
  static const quay_spec_key keys[] = {
      {.key = "keep", .form = "default, or tight: little memory rather than few calls"},
      {.key = "block", .form = "bytes, a power of two from 64KiB to 1GiB"},
      {.key = "max", .form = "bytes, or a share of the device's memory such as 50%"},
  };
  QUAY_TRY(quay_spec_check(args, keys, sizeof keys / sizeof keys[0]));
  QUAY_TRY(parse_keep(args, out_settings));
  QUAY_TRY(parse_block(args, out_settings));
  return parse_max(args, inner, out_settings);
}

/* "pool", and what differs from the defaults. */
static void write_spec(const quay_spec_args *args, const settings *from, char *out_spec,
                       size_t size) {
  const char *const max = quay_spec_value(args, "max");
  char block[40] = "";
  if (from->block_bytes != 0)
    (void)snprintf(block, sizeof block, ",block=%llu", (unsigned long long)from->block_bytes);
  char limit[40] = "";
  if (max != NULL && strchr(max, '%') != NULL) {
    (void)snprintf(limit, sizeof limit, ",max=%s", max);
  } else if (max != NULL) {
    (void)snprintf(limit, sizeof limit, ",max=%llu", (unsigned long long)from->max_bytes);
  }
  (void)snprintf(out_spec, size, "pool%s%s%s", from->tight ? ",keep=tight" : "", block, limit);
  if (out_spec[4] == ',')
    out_spec[4] = ':';
}

static uint64_t device_bytes(const quay_allocator *inner) {
  quay_memory_info info = {.total_bytes = 0};
  quay__error_shield();
  const bool known = inner->device->vtable.memory_info(inner->device, &info) == QUAY_OK;
  quay__error_unshield();
  return known && info.total_bytes != 0 ? info.total_bytes : UINT64_MAX;
}

/* Twice what there can be of memory, since free addresses are in pieces, too. */
static uint64_t reserve_size(const quay__pool *pool) {
  const uint64_t twice = pool->device_bytes < MOST_RESERVE / 2 ? 2 * pool->device_bytes : 0;
  return quay__align_down(quay__max(twice, LEAST_RESERVE), GIB);
}

/* Where the pool may hold little, pieces that are in use in part would be much of it. */
static uint64_t host_piece(const quay__pool *pool) {
  uint64_t piece = HOST_PIECE;
  while (piece > pool->max_bytes >> 8)
    piece /= 2;
  return piece;
}

static void set_mode(quay__pool *pool, const quay_allocator *inner) {
  pool->whole_pages = (inner->flags & QUAY_ALLOCATOR_WHOLE_PAGES) != 0;
  pool->mode = QUAY__POOL_WHOLE;
  pool->alignment = quay__max(inner->alignment, BLOCKS_ALIGNMENT);
  if (!inner->has_window) {
    pool->alignment = inner->alignment;
  } else if (!inner->has_reserve) {
    pool->mode = QUAY__POOL_BLOCKS;
  } else {
    pool->mode = QUAY__POOL_PAGES;
    pool->alignment = quay__max(inner->alignment, quay__max(inner->page_size, PAGES_ALIGNMENT));
    pool->page = inner->page_size;
    pool->piece = pool->page;
    if (!pool->whole_pages && !pool->tight)
      pool->piece = quay__max(pool->page, host_piece(pool));
    pool->reserve_bytes = reserve_size(pool);
  }
}

static bool make_arenas(quay__pool *pool) {
  bool made = true;
  for (uint32_t i = 0; i < QUAY__POOL_ARENAS; i++) {
    /* Large blocks are whole pages of the host: files are read into such memory twice as fast. */
    const uint32_t least = i == QUAY__POOL_LARGE && pool->mode != QUAY__POOL_WHOLE ? 12 : 0;
    quay__offsets_init(&pool->arenas[i], pool->granule_log2 > least ? pool->granule_log2 : least);
    made = made && quay__offsets_make_set(&pool->arenas[i], QUAY__POOL_READY) &&
           quay__offsets_make_set(&pool->arenas[i], QUAY__POOL_BARE);
    pool->arenas[i].join = quay__pool_join;
    pool->arenas[i].join_user = pool;
    pool->arenas[i].join_from = QUAY__POOL_STREAMS;
  }
  return made;
}

static quay__pool *make_pool(const settings *from, quay_allocator *inner) {
  quay__pool *const pool = quay__os_aligned_alloc(_Alignof(quay__pool), sizeof *pool);
  if (pool == NULL)
    return NULL;
  memset(pool, 0, sizeof *pool);
  pool->inner = inner;
  pool->has_streams = inner->device->has_streams;
  pool->tight = from->tight;
  pool->poisons = quay__poison_works();
  pool->block_bytes = from->block_bytes;
  pool->max_bytes = from->max_bytes;
  pool->granule_log2 = (uint32_t)__builtin_ctzll(quay__max(inner->alignment, 64));
  pool->cache_bytes = CACHE_BYTES;
  atomic_init(&pool->generation, quay__device_generation(inner->device));
  pool->device_bytes = device_bytes(inner);
  pool->recent_bytes = quay__min(RECENT_BYTES, quay__min(pool->max_bytes, pool->device_bytes) / 8);
  set_mode(pool, inner);
  pool->short_way = pool->mode != QUAY__POOL_WHOLE && !pool->poisons;
  quay__lock_init(&pool->lock);
  pool->spins = (quay__spin_set){
      .first = &pool->caches[0].lock,
      .stride = sizeof pool->caches[0],
      .count = QUAY__SHARD_COUNT - 1,
  };
  quay__spin_set_add(&pool->spins);
  if (make_arenas(pool))
    return pool;
  destroy(pool);
  return NULL;
}

static quay_status pool_open(const quay_spec_args *args, quay_allocator *inner,
                             quay_allocator **out_allocator) {
  settings parsed;
  QUAY_TRY(parse(args, inner, &parsed));
  char spec[128];
  write_spec(args, &parsed, spec, sizeof spec);
  quay__pool *const pool = make_pool(&parsed, inner);
  if (pool == NULL)
    return quay__fail_out_of_memory(sizeof *pool, "the pool layer");
  const quay_allocator_vtable vtable = {
      .destroy = pool_destroy,
      .version = QUAY_ALLOCATOR_VTABLE_VERSION,
      .struct_size = sizeof(quay_allocator_vtable),
      .alloc = quay__pool_alloc,
      .free = quay__pool_free,
      .trim = pool_trim,
      .stats = pool_stats,
      .release = pool_release,
  };
  const quay_status status = quay__layer_create(&vtable, pool, "pool", spec, inner, out_allocator);
  if (status != QUAY_OK) {
    destroy(pool);
    return status;
  }
  pool->allocator = *out_allocator;
  /* What a thread takes of what it kept is in use as far as the pool knows, so that its peak is
   * none of the program's that was not looked at before. */
  pool->allocator->statistics.told = true;
  /* Copies need not enter the pool, and it takes events itself. */
  pool->allocator->flags |= inner->flags & (uint32_t)QUAY_ALLOCATOR_PLAIN_HOST_MEMORY;
  if (pool->has_streams)
    pool->allocator->flags |= (uint32_t)QUAY_ALLOCATOR_ORDERED_FREE;
  return QUAY_OK;
}

const quay__layer quay__layer_pool = {.name = "pool", .open = pool_open};
