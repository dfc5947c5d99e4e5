/* Makes fork() safe for clang's AddressSanitizer, which before version 18 doesn't do so itself: a
 * child made while another thread was allocating waited for ever for a lock of the sanitizer's own.
 * The functions are the sanitizer's, by the names that its runtime library gives them; where they
 * are not there, nothing is done; nor where the forking thread is the only one, since what is
 * locked is 4 MiB that both processes then write to, which is most of what a small test takes. */
#include "asan_fork.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>

#define OF_THE_RUNTIME(symbol) __asm__(symbol) __attribute__((weak))

void lock_allocator(void) OF_THE_RUNTIME("_ZN6__lsan13LockAllocatorEv");
void unlock_allocator(void) OF_THE_RUNTIME("_ZN6__lsan15UnlockAllocatorEv");
void lock_stack_depot(void) OF_THE_RUNTIME("_ZN11__sanitizer17StackDepotLockAllEv");
void unlock_stack_depot(void) OF_THE_RUNTIME("_ZN11__sanitizer19StackDepotUnlockAllEv");

static _Thread_local bool locked; /* between the two handlers of one fork */

/* A link for each thread, and the two that every folder has (proc(5)). */
static bool is_only_thread(void) {
  struct stat tasks;
  return stat("/proc/self/task", &tasks) == 0 && tasks.st_nlink == 3;
}

static void before(void) {
  locked = !is_only_thread();
  if (!locked)
    return;
  lock_allocator();
  lock_stack_depot();
}

static void after(void) {
  if (!locked)
    return;
  unlock_stack_depot();
  unlock_allocator();
}

void plain_runner_prepare_for_forks(void) {
  if (lock_allocator != NULL && unlock_allocator != NULL && lock_stack_depot != NULL &&
      unlock_stack_depot != NULL)
    pthread_atfork(before, after, after);
}
