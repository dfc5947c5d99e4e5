/* Guarded blocks of host memory. */
#include "support/block.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "support/random.h"
#include "support/sanitized.h"

#define GUARD     4096u
#define HUGE_PAGE ((size_t)2 << 20)

/* Blocks are kept from `KEPT_SMALLEST` bytes on, and no more than `KEPT_BYTES` of them together. */
#define KEPT_SMALLEST ((size_t)1 << 20)
#define KEPT_BYTES    ((size_t)64 << 20)
#define KEPT_COUNT    8u

#if defined(ADDRESS_SANITIZED)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(bytes, size)   ((void)(bytes), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(bytes, size) ((void)(bytes), (void)(size))
#endif

typedef struct kept_block {
  void *base;
  size_t capacity;
} kept_block;

/* The first thread's alone: a lock here would order what tests do on several threads, and hide
 * races from ThreadSanitizer. */
static struct {
  kept_block blocks[KEPT_COUNT];
  size_t bytes;
} kept;

static bool first_thread(void) {
  return syscall(SYS_gettid) == getpid();
}

/* Of those that hold `size` bytes and not more than twice as many, the smallest. */
static kept_block take_kept(size_t size) {
  kept_block *found = NULL;
  for (size_t i = 0; i < KEPT_COUNT; i++) {
    kept_block *const block = &kept.blocks[i];
    if (block->base == NULL || block->capacity < size || block->capacity / 2 > size)
      continue;
    if (found == NULL || block->capacity < found->capacity)
      found = block;
  }
  if (found == NULL)
    return (kept_block){.base = NULL};
  const kept_block block = *found;
  kept.bytes -= block.capacity;
  found->base = NULL;
  ASAN_UNPOISON_MEMORY_REGION(block.base, size);
  return block;
}

static bool keep(kept_block block) {
  if (block.capacity < KEPT_SMALLEST || kept.bytes + block.capacity > KEPT_BYTES || !first_thread())
    return false;
  for (size_t i = 0; i < KEPT_COUNT; i++) {
    if (kept.blocks[i].base != NULL)
      continue;
    kept.blocks[i] = block;
    kept.bytes += block.capacity;
    ASAN_POISON_MEMORY_REGION(block.base, block.capacity);
    return true;
  }
  return false;
}

static kept_block take_new(size_t size) {
  kept_block block = {.capacity = size};
  if (posix_memalign(&block.base, GUARD, size) != 0)
    cr_assert_fail("no memory for a test block of %zu bytes", size);
  if (size >= 2 * HUGE_PAGE) /* where the system has none, ordinary pages do */
    (void)madvise(block.base, size / GUARD * GUARD, MADV_HUGEPAGE);
  return block;
}

static unsigned char guard_byte(size_t index) {
  return (unsigned char)(0xa5u ^ (index * 7u));
}

quay_test_block quay_test_block_make(size_t size, size_t misalignment, uint64_t seed) {
  const size_t total = GUARD + misalignment + size + GUARD;
  kept_block memory = {.base = NULL};
  if (total >= KEPT_SMALLEST && first_thread())
    memory = take_kept(total);
  if (memory.base == NULL)
    memory = take_new(total);
  quay_test_block block = {.size = size,
                           .base = memory.base,
                           .guard = GUARD + misalignment,
                           .capacity = memory.capacity};
  unsigned char *bytes = block.base;
  block.data = bytes + block.guard;
  for (size_t i = 0; i < block.guard; i++)
    bytes[i] = guard_byte(i);
  for (size_t i = block.guard + size; i < total; i++)
    bytes[i] = guard_byte(i);
  quay_test_random_bytes(block.data, size, seed);
  return block;
}

bool quay_test_block_intact(const quay_test_block *block) {
  const unsigned char *bytes = block->base;
  for (size_t i = 0; i < block->guard; i++) {
    if (bytes[i] != guard_byte(i))
      return false;
  }
  for (size_t i = block->guard + block->size; i < block->guard + block->size + GUARD; i++) {
    if (bytes[i] != guard_byte(i))
      return false;
  }
  return true;
}

void quay_test_block_free(quay_test_block *block) {
  if (!keep((kept_block){.base = block->base, .capacity = block->capacity}))
    free(block->base);
  *block = (quay_test_block){.data = NULL};
}
