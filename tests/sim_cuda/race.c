/* What ThreadSanitizer is told. The simulator's own lock would order everything, and hide races of
 * the program under test; so inside the library ThreadSanitizer neither sees accesses nor locks.
 * Instead it is told the order that the driver gives (submission before execution before a wait
 * that returns), and the bytes of the program's memory that an operation touches, where it touches
 * them. Without ThreadSanitizer the functions named here are absent and nothing is done. */
#include "sim.h"

#define WEAK __attribute__((weak))
WEAK void AnnotateIgnoreReadsBegin(const char *file, int line);
WEAK void AnnotateIgnoreReadsEnd(const char *file, int line);
WEAK void AnnotateIgnoreWritesBegin(const char *file, int line);
WEAK void AnnotateIgnoreWritesEnd(const char *file, int line);
WEAK void AnnotateIgnoreSyncBegin(const char *file, int line);
WEAK void AnnotateIgnoreSyncEnd(const char *file, int line);
WEAK void __tsan_acquire(void *address);
WEAK void __tsan_release(void *address);
WEAK void __tsan_read_range(void *address, unsigned long size);
WEAK void __tsan_write_range(void *address, unsigned long size);

void sim_quiet(bool quiet) {
  if (AnnotateIgnoreReadsBegin == NULL || AnnotateIgnoreSyncBegin == NULL)
    return;
  if (quiet) {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
    AnnotateIgnoreSyncBegin(__FILE__, __LINE__);
  } else {
    AnnotateIgnoreSyncEnd(__FILE__, __LINE__);
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
}

void sim_handoff(const void *token) {
  if (__tsan_release == NULL)
    return;
  sim_quiet(false);
  __tsan_release((void *)(uintptr_t)token);
  sim_quiet(true);
}

void sim_takeover(const void *token) {
  if (__tsan_acquire == NULL)
    return;
  sim_quiet(false);
  __tsan_acquire((void *)(uintptr_t)token);
  sim_quiet(true);
}

void sim_announce(const void *bytes, size_t size, bool write) {
  if (__tsan_read_range == NULL || size == 0)
    return;
  sim_quiet(false);
  if (write) {
    __tsan_write_range((void *)(uintptr_t)bytes, size);
  } else {
    __tsan_read_range((void *)(uintptr_t)bytes, size);
  }
  sim_quiet(true);
}
