/* How many threads a copy may use, and how much memory. */
#include "core/copy_threads.h"

#include "core/checked.h"
#include "core/environment.h"
#include "core/os.h"

/* Two H200s at once (bench_staging --beside cuda:1 --sweep): 103 GB/s with 12 threads each, 84 with
 * 8, 99 with 10, 101 with 16. */
#define BESIDE_MAX 12u

static _Thread_local uint32_t current_cap;
static _Thread_local uint64_t memory_cap; /* copy.c refuses less than 4096 */

static uint32_t capped(uint32_t threads) {
  return current_cap != 0 ? (uint32_t)quay__min(threads, current_cap) : threads;
}

uint32_t quay__copy_threads(void) {
  return capped(quay__environment_copy_threads());
}

uint32_t quay__disk_threads(void) {
  return capped(quay__environment_disk_threads());
}

uint32_t quay__copy_threads_beside(uint32_t threads) {
  if (current_cap != 0 || quay__environment_sets_copy_threads())
    return threads;
  return (uint32_t)quay__max(threads, quay__min(BESIDE_MAX, quay__os_processor_count() / 2));
}

uint32_t quay__copy_threads_cap(uint32_t cap) {
  const uint32_t before = current_cap;
  current_cap = cap;
  return before;
}

uint64_t quay__copy_memory_cap(uint64_t cap) {
  const uint64_t before = memory_cap;
  memory_cap = cap;
  return before;
}

uint64_t quay__copy_memory(uint64_t wanted) {
  return memory_cap != 0 ? quay__min(wanted, memory_cap) : wanted;
}
