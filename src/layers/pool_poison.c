/* What AddressSanitizer and Valgrind are told of a pool's memory, as far as the host can reach it:
 * what is free is poisoned, and of a block that is live what it has beyond the bytes that were
 * asked for. What device work may still use is not, until the pool has seen that it is done, even
 * if the block is live again meanwhile. Direct regions are not carved, so that the inner
 * allocator's own checks see all of them. */
#include "core/checked.h"
#include "core/error.h"
#include "core/poison.h"
#include "layers/pool_impl.h"

void quay__pool_poison_begin(const quay__pool *pool, quay__pool_region *region) {
  quay_allocator *const inner = pool->inner;
  void *host = NULL;
  if (!pool->poisons || region->direct)
    return;
  quay__error_shield();
  if (quay__host_accessible(inner) &&
      inner->vtable.host_pointer(inner, &region->raw, &host) == QUAY_OK)
    region->host = host;
  quay__error_unshield();
}

void quay__pool_poison_end(quay__pool_region *region) {
  if (region->host != NULL)
    quay__unpoison(region->host, atomic_load_explicit(&region->reach, memory_order_relaxed));
}

void quay__pool_poison_range(quay__pool_region *region, uint64_t offset, uint64_t size) {
  if (region->host == NULL)
    return;
  const uint64_t end = offset + size;
  uint_fast64_t reach = atomic_load_explicit(&region->reach, memory_order_relaxed);
  while (reach < end &&
         !atomic_compare_exchange_weak_explicit(&region->reach, &reach, end, memory_order_relaxed,
                                                memory_order_relaxed)) {
  }
  quay__poison(region->host + offset, size);
}

void quay__pool_unpoison_range(quay__pool_region *region, uint64_t offset, uint64_t size) {
  if (region->host != NULL)
    quay__unpoison(region->host + offset, size);
}

void quay__pool_expose(quay__pool_region *region, const quay__extent *extent, uint64_t size,
                       bool zeroed) {
  if (region->host == NULL)
    return;
  char *const bytes = region->host + extent->offset;
  /* Earlier work of the stream that gets its own memory back may still use all of it. */
  if (extent->user == NULL)
    quay__poison(bytes, extent->size);
  if (zeroed) {
    quay__unpoison(bytes, size);
  } else {
    quay__unpoison_undefined(bytes, size);
  }
}
