/* ThreadSanitizer sees the races of a program with the driver's work, and only those. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fixture.h"

#if defined(__SANITIZE_THREAD__)
#define WITH_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define WITH_THREAD_SANITIZER 1
#endif
#endif

enum {
  SIZE = 256
};

typedef void (*program)(void);

/* How a process of its own ends that runs the program. */
static int status_of(program run) {
  start_uninitialised("");
  fflush(NULL);
  const pid_t child = fork();
  if (child == 0) {
    if (freopen("/dev/null", "w", stderr) == NULL)
      _exit(2);
    run();
    exit(0);
  }
  int status = -1;
  cr_assert_eq(waitpid(child, &status, 0), child);
  return status;
}

static void copy_and_write_after_a_wait(void) {
  start("");
  unsigned char *const pinned = pinned_memory(SIZE);
  CUdeviceptr address = device_memory(SIZE);
  CUstream stream = non_blocking_stream();
  fill_bytes(pinned, SIZE, 1);
  ok(cu.cuMemcpyHtoDAsync_v2(address, pinned, SIZE, stream));
  ok(cu.cuStreamSynchronize(stream));
  fill_bytes(pinned, SIZE, 2);
  ok(cu.cuMemcpyDtoHAsync_v2(pinned, address, SIZE, stream));
  CUevent event;
  ok(cu.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  ok(cu.cuEventRecord(event, stream));
  while (cu.cuEventQuery(event) == CUDA_ERROR_NOT_READY)
    continue;
  check_bytes(pinned, SIZE, 1);
}

Test(sanitizer, a_program_that_waits_is_not_blamed) {
  cr_assert_eq(status_of(copy_and_write_after_a_wait), 0);
}

#ifdef WITH_THREAD_SANITIZER

/* Long enough for the copy to have run, and with calls in between that take the driver's locks: if
 * those ordered anything, the race would be hidden. */
static void pass_time(void) {
  int version;
  for (int i = 0; i < 20; i++) {
    usleep(1000);
    ok(cu.cuDriverGetVersion(&version));
  }
}

static void write_what_a_copy_reads(void) {
  start("");
  unsigned char *const pinned = pinned_memory(SIZE);
  fill_bytes(pinned, SIZE, 1);
  ok(cu.cuMemcpyHtoDAsync_v2(device_memory(SIZE), pinned, SIZE, non_blocking_stream()));
  pass_time();
  fill_bytes(pinned, SIZE, 2);
}

static void read_what_a_copy_writes(void) {
  start("");
  unsigned char *const pinned = pinned_memory(SIZE);
  CUdeviceptr address = device_memory(SIZE);
  CUstream stream = non_blocking_stream();
  fill_bytes(pinned, SIZE, 1);
  ok(cu.cuMemcpyHtoD_v2(address, pinned, SIZE));
  ok(cu.cuMemcpyDtoHAsync_v2(pinned, address, SIZE, stream));
  pass_time();
  check_bytes(pinned, SIZE, 1);
}

static void wait_for_the_wrong_stream(void) {
  start("");
  unsigned char *const pinned = pinned_memory(SIZE);
  fill_bytes(pinned, SIZE, 1);
  ok(cu.cuMemcpyHtoDAsync_v2(device_memory(SIZE), pinned, SIZE, non_blocking_stream()));
  pass_time();
  ok(cu.cuStreamSynchronize(non_blocking_stream()));
  fill_bytes(pinned, SIZE, 2);
}

/* ThreadSanitizer's own exit status, of which nothing else here is possible. */
static void expect_report(program run) {
  const int status = status_of(run);
  cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 66, "wait status 0x%x", (unsigned)status);
}

Test(sanitizer, writing_what_a_copy_reads_is_reported) {
  expect_report(write_what_a_copy_reads);
}

Test(sanitizer, reading_what_a_copy_writes_is_reported) {
  expect_report(read_what_a_copy_writes);
}

Test(sanitizer, a_wait_for_another_stream_does_not_hide_a_race) {
  expect_report(wait_for_the_wrong_stream);
}

#endif
