/* Finding and starting the CUDA driver, with libraries that pass for one. A driver that has been
 * started stays for the life of the process: what starts one runs in a child. */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <pthread.h>
#include <quay/quay.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda/driver.h"
#include "support/log.h"
#include "support/status.h"

typedef struct fake_request {
  const char *name;
  int version;
  uint64_t flags;
} fake_request;

static void use_library(const char *kind) {
  char variable[64];
  snprintf(variable, sizeof variable, "FAKE_CUDA_%s", kind);
  const char *path = getenv(variable);
  setenv("QUAY_CUDA_LIBRARY", path != NULL ? path : variable, 1);
}

/* Opening a device fails with UNAVAILABLE, and the list of devices gives the same reason. */
static void check_reason(const char *text) {
  quay_allocator *allocator = NULL;
  CHECK_FAILS(quay_allocator_open("cuda:0", &allocator), QUAY_STATUS_UNAVAILABLE);
  CHECK_MESSAGE(text);
  cr_assert_str_eq(quay_last_error()->backend, "cuda");
  quay_device_list list;
  CHECK_OK(quay_devices(&list));
  size_t lines = 0;
  for (size_t i = 0; i < list.count; i++) {
    const quay_device_info *info = &list.devices[i];
    if (strcmp(info->backend, "cuda") != 0)
      continue;
    lines++;
    cr_assert_not(info->available);
    cr_assert_not_null(strstr(info->reason, text), "no \"%s\" in: %s", text, info->reason);
  }
  cr_assert_eq(lines, 1);
  quay_device_list_free(&list);
}

/* Runs `body` in a child, which says by its exit status whether all was well. */
static void in_child(bool (*body)(void)) {
  fflush(NULL);
  const pid_t child = fork();
  cr_assert_geq(child, 0);
  if (child == 0)
    _exit(body() ? 0 : 1);
  int status = 0;
  cr_assert_eq(waitpid(child, &status, 0), child);
  cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child ended with status 0x%x",
            (unsigned)status);
}

/* In a child: prints what does not hold. */
static bool holds(bool condition, const char *what) {
  if (!condition)
    fprintf(stderr, "does not hold: %s; last error: %s\n", what, quay_last_error()->message);
  return condition;
}
#define HOLDS(condition) holds((condition), #condition)

static bool start(void) {
  const quay__cuda_api *api = NULL;
  return quay__cuda_start(&api) == QUAY_OK && api != NULL;
}

/* A function of the library itself, which is loaded already. */
static void *fake_function(const char *name) {
  void *library = dlopen(getenv("QUAY_CUDA_LIBRARY"), RTLD_NOW | RTLD_NOLOAD);
  return library != NULL ? dlsym(library, name) : NULL;
}

static int fake_inits(void) {
  int (*count)(void);
  *(void **)(void *)&count = fake_function("fake_cuda_inits");
  return count != NULL ? count() : -1;
}

Test(cuda_driver, a_library_that_cannot_be_loaded_is_named_with_the_loaders_reason) {
  setenv("QUAY_CUDA_LIBRARY", "/nowhere/libcuda.so.1", 1);
  check_reason("QUAY_CUDA_LIBRARY names \"/nowhere/libcuda.so.1\", which can't be loaded: "
               "/nowhere/libcuda.so.1: cannot open");
}

Test(cuda_driver, a_library_without_the_drivers_functions_is_told_to_be_none) {
  use_library("empty");
  check_reason("it is no CUDA driver");
}

Test(cuda_driver, the_toolkits_stub_library_is_told_as_such) {
  use_library("stub");
  check_reason("stub library");
  cr_assert_eq(quay_last_error()->native_code, 34);
  cr_assert_str_eq(quay_last_error()->native_name, "CUDA_ERROR_STUB_LIBRARY");
}

Test(cuda_driver, success_with_a_null_address_is_a_missing_function) {
  use_library("nulls");
  check_reason("has no function cuInit");
}

Test(cuda_driver, an_old_driver_is_told_with_both_versions) {
  use_library("old");
  check_reason("too old: it is made for CUDA 10.2, and at least CUDA 11.0 is needed");
}

Test(cuda_driver, a_missing_mandatory_function_is_named) {
  use_library("whole");
  setenv("FAKE_CUDA_MISSING", "cuMemAlloc", 1);
  check_reason("has no function cuMemAlloc (as of CUDA 3.2)");
}

Test(cuda_driver, a_driver_without_a_device_says_so) {
  use_library("whole");
  setenv("FAKE_CUDA_INIT", "100", 1);
  check_reason("no device");
  cr_assert_eq(quay_last_error()->native_code, 100);
}

Test(cuda_driver, a_refused_permission_names_the_device_files) {
  use_library("whole");
  setenv("FAKE_CUDA_INIT", "800", 1);
  check_reason("/dev/nvidia*");
  cr_assert_str_eq(quay_last_error()->native_name, "CUDA_ERROR_NOT_PERMITTED");
}

Test(cuda_driver, a_library_and_module_of_different_versions_are_told_apart_from_no_device) {
  use_library("whole");
  setenv("FAKE_CUDA_INIT", "803", 1);
  check_reason("kernel module are of different versions");
}

Test(cuda_driver, a_start_that_fails_otherwise_tells_the_drivers_error) {
  use_library("whole");
  setenv("FAKE_CUDA_INIT", "999", 1);
  check_reason("can't be started: error 999 (CUDA_ERROR_UNKNOWN)");
}

static bool recovers(void) {
  use_library("whole");
  setenv("FAKE_CUDA_INIT", "100", 1);
  if (!HOLDS(!start()) || !HOLDS(!start()))
    return false;
  unsetenv("FAKE_CUDA_INIT");
  return HOLDS(start());
}

Test(cuda_driver, a_failure_is_not_kept) {
  in_child(recovers);
}

static void *start_in_thread(void *unused) {
  (void)unused;
  return start() ? (void *)"started" : NULL;
}

static bool starts_once(void) {
  enum {
    THREADS = 8
  };
  use_library("whole");
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; i++)
    pthread_create(&threads[i], NULL, start_in_thread, NULL);
  bool all = true;
  for (int i = 0; i < THREADS; i++) {
    void *started = NULL;
    pthread_join(threads[i], &started);
    all = all && started != NULL;
  }
  return HOLDS(all) && HOLDS(fake_inits() == 1);
}

Test(cuda_driver, racing_threads_start_it_once) {
  in_child(starts_once);
}

static bool nothing_is_loaded(void) {
  use_library("whole");
  quay_allocator *allocator = NULL;
  if (!HOLDS(quay_allocator_open("cpu", &allocator) == QUAY_OK))
    return false;
  quay_allocator_release(allocator);
  return HOLDS(fake_inits() == -1);
}

Test(cuda_driver, nothing_is_loaded_before_cuda_is_asked_for) {
  in_child(nothing_is_loaded);
}

static bool starts_by_the_first_finder(void) {
  use_library("first_finder");
  return HOLDS(start()) && HOLDS(fake_inits() == 1);
}

Test(cuda_driver, a_driver_with_the_first_cuGetProcAddress_alone_is_taken) {
  in_child(starts_by_the_first_finder);
}

static bool starts_by_names(void) {
  use_library("suffixed");
  return HOLDS(start()) && HOLDS(fake_inits() == 1);
}

Test(cuda_driver, a_driver_without_cuGetProcAddress_is_taken_by_names_with_suffixes) {
  in_child(starts_by_names);
}

static bool starts_without_optional_functions(void) {
  use_library("whole");
  setenv("FAKE_CUDA_MISSING", "cuMemAllocAsync", 1);
  return HOLDS(start()) && HOLDS(quay__cuda_started()->cuMemAllocAsync == NULL) &&
         HOLDS(quay__cuda_started()->cuMemFreeAsync != NULL);
}

Test(cuda_driver, an_optional_function_may_be_missing) {
  in_child(starts_without_optional_functions);
}

static bool asked_for(const fake_request *requests, size_t count, const char *name, int version,
                      uint64_t flags) {
  for (size_t i = 0; i < count; i++) {
    if (strcmp(requests[i].name, name) == 0)
      return requests[i].version == version && requests[i].flags == flags;
  }
  return false;
}

static bool asks_for_versions(void) {
  use_library("whole");
  if (!HOLDS(start()))
    return false;
  fake_request requests[256];
  size_t (*list)(fake_request *, size_t);
  *(void **)(void *)&list = fake_function("fake_cuda_requests");
  const size_t count = list != NULL ? list(requests, 256) : 0;
  return HOLDS(asked_for(requests, count, "cuMemAlloc", 3020, 0)) &&
         HOLDS(asked_for(requests, count, "cuDevicePrimaryCtxRelease", 11000, 0)) &&
         HOLDS(asked_for(requests, count, "cuMemcpyAsync", 4000, 1)) &&
         HOLDS(asked_for(requests, count, "cuMemAllocAsync", 11020, 1));
}

Test(cuda_driver, functions_are_asked_for_by_plain_name_version_and_legacy_stream) {
  in_child(asks_for_versions);
}

static bool refuses_after_fork(void) {
  use_library("whole");
  if (!HOLDS(start()))
    return false;
  const pid_t child = fork();
  if (child == 0) {
    quay_allocator *allocator = NULL;
    const bool refused =
        HOLDS(quay_allocator_open("cuda:0", &allocator) == QUAY_STATUS_UNAVAILABLE) &&
        HOLDS(strstr(quay_last_error()->message, "forked") != NULL) &&
        HOLDS(quay_allocator_open("cpu", &allocator) == QUAY_OK);
    quay_allocator_release(allocator);
    _exit(refused ? 0 : 1);
  }
  int status = 0;
  return HOLDS(waitpid(child, &status, 0) == child) && HOLDS(status == 0) && HOLDS(start());
}

Test(cuda_driver, the_child_of_a_fork_is_refused_and_the_parent_goes_on) {
  in_child(refuses_after_fork);
}

static bool shows_no_devices(void) {
  use_library("whole");
  quay_allocator *allocator = NULL;
  return HOLDS(quay_allocator_open("cuda:0", &allocator) == QUAY_STATUS_UNAVAILABLE) &&
         HOLDS(strstr(quay_last_error()->message, "look at CUDA_VISIBLE_DEVICES") != NULL) &&
         HOLDS(fake_inits() == 1);
}

Test(cuda_driver, a_driver_that_shows_no_devices_points_at_the_environment) {
  in_child(shows_no_devices);
}
