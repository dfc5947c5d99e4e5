/* Makes fork() safe for clang's AddressSanitizer, which before version 18 doesn't do so itself: a
 * child made while another thread was allocating waited for ever for a lock of the sanitizer's own.
 * The functions are the sanitizer's, by the names that its runtime library gives them; where they
 * are not there, nothing is done. */
#include "asan_fork.h"

#include <pthread.h>
#include <stddef.h>

#define OF_THE_RUNTIME(symbol) __attribute__((weak)) __asm__(symbol)

void lock_allocator(void) OF_THE_RUNTIME("_ZN6__lsan13LockAllocatorEv");
void unlock_allocator(void) OF_THE_RUNTIME("_ZN6__lsan15UnlockAllocatorEv");
void lock_stack_depot(void) OF_THE_RUNTIME("_ZN11__sanitizer17StackDepotLockAllEv");
void unlock_stack_depot(void) OF_THE_RUNTIME("_ZN11__sanitizer19StackDepotUnlockAllEv");

static void before(void) {
  lock_allocator();
  lock_stack_depot();
}

static void after(void) {
  unlock_stack_depot();
  unlock_allocator();
}

void plain_runner_prepare_for_forks(void) {
  if (lock_allocator != NULL && unlock_allocator != NULL && lock_stack_depot != NULL &&
      unlock_stack_depot != NULL)
    pthread_atfork(before, after, after);
}
