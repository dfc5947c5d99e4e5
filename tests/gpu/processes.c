/* What takes a process of its own: a device lost to a fault, fork, exit. child.c holds the
 * scenarios; each says on standard error what does not hold. */
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpu/gpu.h"

TestSuite(gpu_processes, .timeout = 100);

/* The child's exit status for "not here, for the reason that was printed". */
#define SKIPPED 77

/* Beside this program. */
static void find_child(char *out_path, size_t size) {
  static char own[4096];
  const ssize_t length = readlink("/proc/self/exe", own, sizeof own - 1);
  cr_assert_gt(length, 0);
  own[length] = '\0';
  *strrchr(own, '/') = '\0';
  cr_assert_lt(snprintf(out_path, size, "%s/gpu_child", own), (int)size);
}

static void check_child(const char *scenario) {
  char path[4200], reason[512];
  if (raw_cuda_start(reason, sizeof reason) == NULL) /* the child starts it anew */
    quay_test_skip("cuda", "%s", reason);
  find_child(path, sizeof path);
  char *arguments[] = {path, (char *)(uintptr_t)scenario, NULL};
  pid_t child = 0;
  int status = 0;
  fflush(NULL);
  cr_assert_eq(posix_spawn(&child, path, NULL, NULL, arguments, environ), 0, "can't run %s", path);
  cr_assert_eq(waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == SKIPPED)
    quay_test_skip("cuda", "%s: see above", scenario);
  cr_assert(WIFEXITED(status), "ended by signal %d", WTERMSIG(status));
  cr_assert_eq(WEXITSTATUS(status), 0, "exit status %d", WEXITSTATUS(status));
}

#define CHILD_TEST(name)      \
  Test(gpu_processes, name) { \
    check_child(#name);       \
  }

CHILD_TEST(an_illegal_address_loses_every_device_with_its_first_message)
CHILD_TEST(a_trap_loses_every_device_with_its_first_message)
CHILD_TEST(a_fault_is_found_by_a_health_query)
CHILD_TEST(a_fault_leaves_host_memory_usable)
CHILD_TEST(a_child_of_fork_is_refused_with_a_clear_error_and_has_host_memory)
CHILD_TEST(a_child_of_fork_exits_with_live_buffers)
CHILD_TEST(exported_memory_is_written_by_a_kernel_of_another_process)
CHILD_TEST(exported_memory_outlives_the_process_that_exported_it)
CHILD_TEST(plain_memory_is_written_by_a_kernel_of_another_process)
CHILD_TEST(exit_with_live_buffers_is_clean)
CHILD_TEST(exit_while_a_kernel_runs_is_clean)
CHILD_TEST(exit_while_a_thread_copies_is_clean)
CHILD_TEST(exit_releases_from_handlers_registered_before_the_driver_was_started)
CHILD_TEST(exit_releases_from_handlers_registered_after_the_driver_was_started)
CHILD_TEST(exit_after_a_shutdown_is_clean)
CHILD_TEST(quay_works_again_after_a_shutdown)
CHILD_TEST(a_reset_makes_old_memory_stale_and_the_device_usable)
CHILD_TEST(a_reset_by_another_library_is_cured_by_one_of_quays)
CHILD_TEST(a_reset_by_another_library_that_goes_on_is_cured_by_one_of_quays)
