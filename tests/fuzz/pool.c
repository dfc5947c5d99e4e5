/* Any sequence of allocations, frees and trims on pools: blocks are aligned as asked, hold what was
 * written to them until they are freed, are zero where that was asked, and overlap nothing. */
#include <quay/quay.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum {
  BLOCKS = 32,
  POOLS = 6,
  EDGE = 256 /* bytes at both ends of a block that are written and looked at */
};

static const char *const specs[POOLS] = {"pool+cpu",
                                         "pool:keep=tight,max=64MiB+cpu",
                                         "pool:max=16MiB+cpu:align=256",
                                         "pool:block=1MiB+pool+cpu",
                                         "track+pool+cpu",
                                         "pool:keep=tight+track+cpu"};

typedef struct state {
  const uint8_t *data;
  size_t left;
  uint32_t reach; /* sizes are below 2 to the power of this */
  quay_allocator *pool;
  quay_raw_buffer blocks[BLOCKS];
} state;

static uint32_t take(state *s, uint32_t limit) {
  uint32_t value = 0;
  for (uint32_t reach = 1; reach < limit && s->left > 0; reach <<= 8) {
    value = value << 8 | *s->data++;
    s->left--;
  }
  return value % limit;
}

static unsigned char *bytes_of(const quay_raw_buffer *raw) {
  void *pointer = NULL;
  CHECK(quay_raw_buffer_host_pointer(raw, &pointer) == QUAY_OK && pointer != NULL);
  return pointer;
}

static uint64_t edge_of(const quay_raw_buffer *raw) {
  return raw->size < EDGE ? raw->size : EDGE;
}

/* Every byte of both ends is `value`. */
static void check_edges(const quay_raw_buffer *raw, int value) {
  const unsigned char *const bytes = bytes_of(raw);
  for (uint64_t i = 0; i < edge_of(raw); i++)
    CHECK(bytes[i] == value && bytes[raw->size - 1 - i] == value);
}

static void allocate(state *s) {
  const uint32_t number = take(s, BLOCKS);
  const uint64_t size = take(s, 1u << take(s, s->reach)) + take(s, 3);
  const quay_alloc_options options = {
      .alignment = UINT64_C(1) << take(s, 23),
      .zeroed = take(s, 4) == 0,
  };
  quay_raw_buffer *const raw = &s->blocks[number];
  if (raw->owner != NULL)
    return;
  const quay_status status = quay_allocator_alloc(s->pool, size, &options, raw);
  if (status != QUAY_OK) {
    CHECK(status == QUAY_STATUS_LIMIT_EXCEEDED && raw->owner == NULL);
    return;
  }
  CHECK((uintptr_t)bytes_of(raw) % options.alignment == 0);
  if (options.zeroed)
    check_edges(raw, 0);
  memset(bytes_of(raw), (int)number + 1, edge_of(raw));
  memset(bytes_of(raw) + raw->size - edge_of(raw), (int)number + 1, edge_of(raw));
}

static void release(state *s) {
  const uint32_t number = take(s, BLOCKS);
  if (s->blocks[number].owner != NULL)
    check_edges(&s->blocks[number], (int)number + 1);
  quay_raw_buffer_free(&s->blocks[number]);
}

static void check_stats(state *s) {
  quay_stats stats;
  uint64_t live = 0;
  CHECK(quay_allocator_stats(s->pool, &stats) == QUAY_OK);
  for (uint32_t i = 0; i < BLOCKS; i++)
    live += s->blocks[i].owner != NULL ? s->blocks[i].size : 0;
  CHECK(stats.live_bytes == live && stats.reserved_bytes >= live && stats.error_count == 0);
}

static void trim(state *s) {
  if (take(s, 4) == 0)
    CHECK(quay_allocator_trim(s->pool, NULL) == QUAY_OK);
  check_stats(s);
}

static void end_blocks(state *s) {
  quay_stats stats;
  for (uint32_t i = 0; i < BLOCKS; i++) {
    if (s->blocks[i].owner != NULL)
      check_edges(&s->blocks[i], (int)i + 1);
    quay_raw_buffer_free(&s->blocks[i]);
  }
  CHECK(quay_allocator_stats(s->pool, &stats) == QUAY_OK);
  CHECK(stats.live_count == 0 && stats.live_bytes == 0);
}

static void end_pool(state *s) {
  quay_stats stats;
  CHECK(quay_allocator_trim(s->pool, NULL) == QUAY_OK);
  CHECK(quay_allocator_stats(s->pool, &stats) == QUAY_OK);
  CHECK(stats.reserved_bytes == 0);
  quay_allocator_release(s->pool);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static void (*const operations[])(state * s) = {allocate, allocate, allocate,
                                                  release,  release,  trim};
  /* Most sequences begin with what the ones before have left free. */
  static quay_allocator *kept[POOLS];
  state s = {.data = data, .left = size};
  const uint32_t choice = take(&s, 128 * POOLS), kind = choice % POOLS;
  const bool fresh = choice < POOLS;
  s.reach = fresh ? 24 : 16; /* pages of what is large take long to come and go */
  if (fresh || kept[kind] == NULL)
    CHECK(quay_allocator_open(specs[kind], &s.pool) == QUAY_OK);
  else
    s.pool = kept[kind];
  while (s.left > 0)
    operations[take(&s, sizeof operations / sizeof operations[0])](&s);
  end_blocks(&s);
  if (fresh)
    end_pool(&s);
  else
    kept[kind] = s.pool;
  return 0;
}
