/* The live blocks of a trace layer: a hash table with chains. */
#include "layers/trace_live.h"

#include <string.h>

#include "core/os.h"

enum {
  FIRST_BUCKETS = 256
};

quay__trace_key quay__trace_key_of(const void *handle, size_t size) {
  quay__trace_key key = {.words = {0x9e3779b97f4a7c15u, 0xc2b2ae3d27d4eb4fu}};
  for (size_t at = 0; at < size; at += sizeof(uint64_t)) {
    uint64_t word;
    memcpy(&word, (const char *)handle + at, sizeof word);
    key.words[0] = (key.words[0] ^ word) * 0xff51afd7ed558ccdu;
    key.words[0] ^= key.words[0] >> 32;
    key.words[1] = (key.words[1] + word) * 0xc4ceb9fe1a85ec53u;
    key.words[1] ^= key.words[1] >> 29;
  }
  return key;
}

static quay__trace_block **bucket_of(quay__trace_live *live, quay__trace_key key) {
  return live->bucket_count == 0 ? &live->only : &live->buckets[key.words[0] % live->bucket_count];
}

static void push(quay__trace_live *live, quay__trace_block *block) {
  quay__trace_block **const bucket = bucket_of(live, block->key);
  block->next = *bucket;
  *bucket = block;
}

/* Moves every block of a chain. */
static void push_all(quay__trace_live *live, quay__trace_block *chain) {
  while (chain != NULL) {
    quay__trace_block *const block = chain;
    chain = block->next;
    push(live, block);
  }
}

static void grow(quay__trace_live *live) {
  const size_t wanted = live->bucket_count == 0 ? FIRST_BUCKETS : 2 * live->bucket_count;
  quay__trace_block **const buckets = (quay__trace_block **)quay__os_calloc(wanted, sizeof(void *));
  if (buckets == NULL)
    return;
  quay__trace_live larger = {.buckets = buckets, .bucket_count = wanted, .count = live->count};
  push_all(&larger, live->only);
  for (size_t i = 0; i < live->bucket_count; i++)
    push_all(&larger, live->buckets[i]);
  quay__os_free((void *)live->buckets);
  *live = larger;
}

void quay__trace_live_add(quay__trace_live *live, quay__trace_block *block) {
  if (live->count >= live->bucket_count)
    grow(live);
  push(live, block);
  live->count++;
}

static quay__trace_block *unlink_at(quay__trace_live *live, quay__trace_block **link) {
  quay__trace_block *const block = *link;
  if (block != NULL) {
    *link = block->next;
    live->count--;
  }
  return block;
}

quay__trace_block *quay__trace_live_take(quay__trace_live *live, quay__trace_key key,
                                         uint64_t size) {
  quay__trace_block **link = bucket_of(live, key);
  while (*link != NULL && ((*link)->key.words[0] != key.words[0] ||
                           (*link)->key.words[1] != key.words[1] || (*link)->size != size))
    link = &(*link)->next;
  return unlink_at(live, link);
}

quay__trace_block *quay__trace_live_take_at(quay__trace_live *live, uint64_t pointer) {
  const size_t chains = live->bucket_count == 0 ? 1 : live->bucket_count;
  for (size_t i = 0; i < chains; i++) {
    quay__trace_block **link = live->bucket_count == 0 ? &live->only : &live->buckets[i];
    while (*link != NULL && ((*link)->pointer != pointer || (*link)->size == 0))
      link = &(*link)->next;
    if (*link != NULL)
      return unlink_at(live, link);
  }
  return NULL;
}

static void free_chain(quay__trace_block *chain) {
  while (chain != NULL) {
    quay__trace_block *const block = chain;
    chain = block->next;
    quay__os_free(block);
  }
}

void quay__trace_live_clear(quay__trace_live *live) {
  free_chain(live->only);
  for (size_t i = 0; i < live->bucket_count; i++)
    free_chain(live->buckets[i]);
  quay__os_free((void *)live->buckets);
  *live = (quay__trace_live){.buckets = NULL};
}
