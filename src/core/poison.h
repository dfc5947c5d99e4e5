/* Tells AddressSanitizer and Valgrind's memcheck what memory the program may use, where the library
 * is built with the one or runs under the other. Costs nothing elsewhere but, where Valgrind's
 * headers were there at build time, a few instructions a call. The memory is the host's. */
#ifndef QUAY_CORE_POISON_H
#define QUAY_CORE_POISON_H

#include <stdbool.h>
#include <stddef.h>

#if defined(__SANITIZE_ADDRESS__)
#define QUAY__ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define QUAY__ASAN 1
#endif
#endif

#if defined(QUAY__ASAN)
#include <sanitizer/asan_interface.h>
#elif defined(__has_include)
#if __has_include(<valgrind/memcheck.h>)
#define QUAY__MEMCHECK 1
#include <valgrind/memcheck.h>
#endif
#endif

/* Whether anybody listens: for those who would have to find out much to tell. */
static inline bool quay__poison_works(void) {
#if defined(QUAY__ASAN)
  return true;
#elif defined(QUAY__MEMCHECK)
  return RUNNING_ON_VALGRIND != 0;
#else
  return false;
#endif
}

/* Any access is an error from now on. */
static inline void quay__poison(const void *memory, size_t size) {
#if defined(QUAY__ASAN)
  __asan_poison_memory_region(memory, size);
#elif defined(QUAY__MEMCHECK)
  (void)VALGRIND_MAKE_MEM_NOACCESS(memory, size);
#else
  (void)memory;
  (void)size;
#endif
}

/* The memory may be read and written. */
static inline void quay__unpoison(const void *memory, size_t size) {
#if defined(QUAY__ASAN)
  __asan_unpoison_memory_region(memory, size);
#elif defined(QUAY__MEMCHECK)
  (void)VALGRIND_MAKE_MEM_DEFINED(memory, size);
#else
  (void)memory;
  (void)size;
#endif
}

/* The memory may be written, and read once it was. AddressSanitizer does not know the difference.
 */
static inline void quay__unpoison_undefined(const void *memory, size_t size) {
#if defined(QUAY__MEMCHECK)
  (void)VALGRIND_MAKE_MEM_UNDEFINED(memory, size);
#else
  quay__unpoison(memory, size);
#endif
}

#endif
