/* quay_buffer_save(): whole or not at all, from memory of every kind. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/files.h"

#define MIB (UINT64_C(1) << 20)

TestSuite(save, .init = test_files_begin, .fini = test_files_end);

Test(save, writes_buffers_of_host_memory_of_every_size) {
  const uint64_t sizes[] = {1, 4095, 4096, 4 * MIB, 9 * MIB + 12345};
  for (size_t i = 0; i < 5; ++i) {
    quay_buffer *buffer = test_buffer(NULL, sizes[i], 3);
    TEST_OK(quay_buffer_save(buffer, test_path("out"), NULL));
    cr_assert(test_file_is(test_path("out"), sizes[i], 3));
    quay_buffer_release(buffer);
  }
  cr_assert_eq(test_directory_count(test_directory()), 1);
}

Test(save, writes_an_empty_buffer_as_an_empty_file) {
  quay_buffer *buffer = test_buffer(NULL, 0, 3);
  TEST_OK(quay_buffer_save(buffer, test_path("out"), NULL));
  cr_assert_eq(test_file_size(test_path("out")), 0);
  quay_buffer_release(buffer);
}

Test(save, writes_the_window_of_a_view_alone) {
  quay_buffer *buffer = test_buffer(NULL, 10000, 3);
  quay_buffer *view = NULL;
  TEST_OK(quay_buffer_view(buffer, 0, 4321, &view));
  TEST_OK(quay_buffer_save(view, test_path("out"), NULL));
  cr_assert(test_file_is(test_path("out"), 4321, 3));
  quay_buffer_release(view);
  TEST_OK(quay_buffer_view(buffer, 991, 4321, &view));
  TEST_OK(quay_buffer_save(view, test_path("out"), NULL));
  quay_buffer *back = test_map(test_path("out"), QUAY_MAP_READ_ONLY);
  cr_assert_eq(quay_buffer_size(back), 4321);
  cr_assert(test_buffer_is(back, 991, 3));
  quay_buffer_release(back);
  quay_buffer_release(view);
  quay_buffer_release(buffer);
}

Test(save, writes_through_layers) {
  quay_allocator *allocator = NULL;
  TEST_OK(quay_allocator_open("track+cpu", &allocator));
  quay_buffer *buffer = test_buffer(allocator, 5 * MIB + 3, 3);
  TEST_OK(quay_buffer_save(buffer, test_path("out"), NULL));
  cr_assert(test_file_is(test_path("out"), 5 * MIB + 3, 3));
  quay_buffer_release(buffer);
  quay_allocator_release(allocator);
}

Test(save, writes_mapped_buffers_of_every_mode) {
  const char *path = test_file("a", 5 * MIB + 3, 3);
  for (int mode = 0; mode < 3; ++mode) {
    quay_buffer *buffer = test_map(path, (quay_map_mode)mode);
    TEST_OK(quay_buffer_save(buffer, test_path("out"), NULL));
    cr_assert(test_file_is(test_path("out"), 5 * MIB + 3, 3));
    quay_buffer_release(buffer);
  }
}

Test(save, writes_private_changes_of_a_copy_on_write_buffer) {
  quay_buffer *buffer = test_map(test_file("a", 10000, 3), QUAY_MAP_COPY_ON_WRITE);
  void *bytes = NULL;
  TEST_OK(quay_buffer_host_bytes_mut(buffer, &bytes, NULL));
  test_fill(bytes, 10000, 0, 7);
  TEST_OK(quay_buffer_save(buffer, test_path("out"), NULL));
  cr_assert(test_file_is(test_path("out"), 10000, 7));
  quay_buffer_release(buffer);
}

Test(save, works_on_the_path_that_the_buffer_is_mapped_from) {
  for (int mode = 0; mode < 3; ++mode) {
    const char *path = test_file("a", 3 * MIB, 3);
    quay_buffer *buffer = test_map(path, (quay_map_mode)mode);
    quay_buffer *view = NULL;
    TEST_OK(quay_buffer_view(buffer, 0, 2 * MIB, &view));
    TEST_OK(quay_buffer_save(view, path, NULL));
    cr_assert(test_file_is(path, 2 * MIB, 3));
    cr_assert(test_buffer_is(buffer, 0, 3));
    quay_buffer *again = test_map(path, (quay_map_mode)mode);
    cr_assert_eq(quay_buffer_size(again), 2 * MIB);
    quay_buffer_release(again);
    quay_buffer_release(view);
    quay_buffer_release(buffer);
  }
}

Test(save, replaces_a_file_and_keeps_its_permissions_past_the_umask) {
  const char *path = test_file("old", 100, 1);
  cr_assert_eq(chmod(path, 0667), 0);
  umask(0077);
  quay_buffer *buffer = test_buffer(NULL, 5000, 3);
  TEST_OK(quay_buffer_save(buffer, path, NULL));
  cr_assert(test_file_is(path, 5000, 3));
  cr_assert_eq(test_file_mode(path), 0667);
  quay_buffer_release(buffer);
}

Test(save, gives_new_files_the_permissions_asked_for_under_the_umask) {
  const quay_save_options options = {.permissions = 0646};
  umask(0022);
  quay_buffer *buffer = test_buffer(NULL, 50, 3);
  TEST_OK(quay_buffer_save(buffer, test_path("default"), NULL));
  TEST_OK(quay_buffer_save(buffer, test_path("asked"), &options));
  cr_assert_eq(test_file_mode(test_path("default")), 0644);
  cr_assert_eq(test_file_mode(test_path("asked")), 0644);
  quay_buffer_release(buffer);
}

Test(save, works_without_synchronising) {
  const quay_save_options options = {.no_sync = true};
  quay_buffer *buffer = test_buffer(NULL, 5000, 3);
  TEST_OK(quay_buffer_save(buffer, test_path("out"), &options));
  cr_assert(test_file_is(test_path("out"), 5000, 3));
  quay_buffer_release(buffer);
}

Test(save, follows_a_symbolic_link_and_replaces_what_it_names) {
  struct stat status;
  test_file("real", 100, 1);
  cr_assert_eq(symlink("real", test_path("link")), 0);
  quay_buffer *buffer = test_buffer(NULL, 5000, 3);
  TEST_OK(quay_buffer_save(buffer, test_path("link"), NULL));
  cr_assert(test_file_is(test_path("real"), 5000, 3));
  cr_assert_eq(lstat(test_path("link"), &status), 0);
  cr_assert(S_ISLNK(status.st_mode));
  quay_buffer_release(buffer);
}

Test(save, refuses_a_symbolic_link_to_nothing) {
  cr_assert_eq(symlink("nothing", test_path("link")), 0);
  quay_buffer *buffer = test_buffer(NULL, 50, 3);
  test_expect_error(quay_buffer_save(buffer, test_path("link"), NULL), QUAY_STATUS_IO, "ENOENT",
                    "symbolic link");
  cr_assert_eq(test_directory_count(test_directory()), 1);
  quay_buffer_release(buffer);
}

Test(save, refuses_directories_fifos_and_devices, .timeout = 20) {
  quay_buffer *buffer = test_buffer(NULL, 50, 3);
  cr_assert_eq(mkfifo(test_path("fifo"), 0666), 0);
  test_expect_error(quay_buffer_save(buffer, test_directory(), NULL), QUAY_STATUS_INVALID_ARGUMENT,
                    "", "a directory");
  test_expect_error(quay_buffer_save(buffer, test_path("fifo"), NULL), QUAY_STATUS_INVALID_ARGUMENT,
                    "", "a FIFO");
  test_expect_error(quay_buffer_save(buffer, "/dev/null", NULL), QUAY_STATUS_INVALID_ARGUMENT, "",
                    "a character device");
  cr_assert_eq(test_directory_count(test_directory()), 1);
  quay_buffer_release(buffer);
}

Test(save, names_a_missing_directory) {
  quay_buffer *buffer = test_buffer(NULL, 50, 3);
  test_expect_error(quay_buffer_save(buffer, test_path("missing/out"), NULL), QUAY_STATUS_IO,
                    "ENOENT", test_path("missing/out"));
  quay_buffer_release(buffer);
}

Test(save, refuses_null_arguments_and_unallocated_buffers) {
  quay_buffer *buffer = NULL;
  TEST_OK(quay_buffer_create_lazy(NULL, QUAY_U8, 1, (int64_t[]){100}, NULL, &buffer));
  test_expect_error(quay_buffer_save(NULL, "x", NULL), QUAY_STATUS_INVALID_ARGUMENT, "", "buffer");
  test_expect_error(quay_buffer_save(buffer, NULL, NULL), QUAY_STATUS_INVALID_ARGUMENT, "", "path");
  test_expect_error(quay_buffer_save(buffer, test_path("out"), NULL), QUAY_STATUS_NOT_ALLOCATED, "",
                    "");
  cr_assert_eq(test_directory_count(test_directory()), 0);
  quay_buffer_release(buffer);
}

static bool save_fails_with_eacces(void *path) {
  quay_buffer *buffer = NULL;
  const uint8_t bytes[3] = {1, 2, 3};
  return quay_buffer_create_from_host(NULL, QUAY_U8, 1, (int64_t[]){3}, bytes, NULL, &buffer) ==
             QUAY_OK &&
         quay_buffer_save(buffer, path, NULL) == QUAY_STATUS_IO &&
         strcmp(quay_last_error()->native_name, "EACCES") == 0;
}

Test(save, reports_a_directory_without_write_permission) {
  const char *path = test_path("out");
  cr_assert(test_as_user(65534, save_fails_with_eacces, (void *)(uintptr_t)path));
  cr_assert_eq(test_directory_count(test_directory()), 0);
}

/* Progress. */

typedef struct progress {
  uint64_t calls, done, total, stop_at;
  bool goes_back;
} progress;

static bool note_progress(void *user, uint64_t done, uint64_t total) {
  progress *seen = user;
  ++seen->calls;
  seen->goes_back |= done < seen->done;
  seen->done = done;
  seen->total = total;
  return seen->stop_at == 0 || done < seen->stop_at;
}

static void check_progress(quay_buffer *buffer, uint64_t size) {
  progress seen = {0};
  const quay_save_options options = {.progress = note_progress, .progress_user = &seen};
  TEST_OK(quay_buffer_save(buffer, test_path("out"), &options));
  cr_assert_eq(seen.done, size);
  cr_assert_eq(seen.total, size);
  cr_assert_gt(seen.calls, 1);
  cr_assert_not(seen.goes_back);
  cr_assert(test_file_is(test_path("out"), size, 3));
  quay_buffer_release(buffer);
}

Test(save, reports_progress_up_to_the_whole) {
  check_progress(test_buffer(NULL, 33 * MIB, 3), 33 * MIB);
  check_progress(test_map(test_file("a", 33 * MIB, 3), QUAY_MAP_READ_ONLY), 33 * MIB);
}

typedef struct giver {
  quay_buffer *buffer;
  quay_allocator *allocator;
} giver;

static bool give_back(void *user, uint64_t done, uint64_t total) {
  giver *g = user;
  (void)done;
  quay_buffer_release(g->buffer);
  g->buffer = NULL;
  quay_stats stats;
  return quay_allocator_stats(g->allocator, &stats) == QUAY_OK && stats.live_bytes == total;
}

Test(save, a_buffer_that_a_callback_releases_is_kept_until_it_is_saved) {
  giver g = {.buffer = NULL};
  TEST_OK(quay_allocator_open("cpu", &g.allocator));
  g.buffer = test_buffer(g.allocator, 33 * MIB, 3);
  const quay_save_options options = {.progress = give_back, .progress_user = &g};
  TEST_OK(quay_buffer_save(g.buffer, test_path("out"), &options));
  cr_assert(test_file_is(test_path("out"), 33 * MIB, 3));
  quay_stats stats;
  TEST_OK(quay_allocator_stats(g.allocator, &stats));
  cr_assert_eq(stats.live_bytes, 0);
  quay_allocator_release(g.allocator);
}

Test(save, cancelled_leaves_the_old_file_and_no_temporary_one) {
  progress seen = {.stop_at = 2 * MIB};
  const quay_save_options options = {.progress = note_progress, .progress_user = &seen};
  const char *path = test_file("old", 100, 1);
  quay_buffer *buffer = test_buffer(NULL, 33 * MIB, 3);
  test_expect_error(quay_buffer_save(buffer, path, &options), QUAY_STATUS_CANCELLED, "",
                    "is as it was");
  cr_assert_null(strstr(quay_last_error()->message, "undefined"));
  cr_assert(test_file_is(path, 100, 1));
  cr_assert_eq(test_directory_count(test_directory()), 1);
  quay_buffer_release(buffer);
}

Test(save, a_full_disk_leaves_the_old_file_and_no_temporary_one) {
  const char *small = test_path("small");
  test_mount_small(small, MIB);
  const char *path = test_file("small/old", 3000, 5);
  quay_buffer *buffer = test_buffer(NULL, 2 * MIB, 3);
  test_expect_error(quay_buffer_save(buffer, path, NULL), QUAY_STATUS_IO, "ENOSPC", path);
  cr_assert(test_file_is(path, 3000, 5));
  cr_assert_eq(test_directory_count(small), 1);
  quay_buffer_release(buffer);
}

Test(save, a_file_beyond_the_process_s_limit_is_an_error_and_no_signal) {
  const char *path = test_file("old", 3000, 5);
  quay_buffer *buffer = test_buffer(NULL, 2 * MIB, 3), *made = NULL;
  quay_allocator *blocks = NULL;
  quay_raw_buffer block;
  char spec[512];
  snprintf(spec, sizeof spec, "mmap:%s", test_directory());
  TEST_OK(quay_allocator_open(spec, &blocks));
  struct rlimit before;
  cr_assert_eq(getrlimit(RLIMIT_FSIZE, &before), 0);
  cr_assert_neq(signal(SIGXFSZ, SIG_DFL), SIG_ERR);
  const struct rlimit limit = {.rlim_cur = MIB, .rlim_max = before.rlim_max};
  cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
  test_expect_error(quay_buffer_save(buffer, path, NULL), QUAY_STATUS_IO, "EFBIG", "is as it was");
  cr_assert_not_null(strstr(quay_last_error()->message, "files of 1048576 bytes"), "%s",
                     quay_last_error()->message);
  test_expect_error(quay_file_create(test_path("new"), MIB + 1, NULL, &made), QUAY_STATUS_IO,
                    "EFBIG", test_path("new"));
  const quay_file_options replace = {.replace = true};
  test_expect_error(quay_file_create(path, MIB + 1, &replace, &made), QUAY_STATUS_IO, "EFBIG",
                    "is as it was");
  test_expect_error(quay_allocator_alloc(blocks, MIB + 1, NULL, &block), QUAY_STATUS_IO, "EFBIG",
                    "");
  TEST_OK(quay_file_create(test_path("fits"), MIB, NULL, &made));
  cr_assert_eq(setrlimit(RLIMIT_FSIZE, &before), 0);
  cr_assert(test_file_is(path, 3000, 5));
  cr_assert_eq(test_directory_count(test_directory()), 2);
  quay_buffer_release(made);
  quay_buffer_release(buffer);
  quay_allocator_release(blocks);
}

/* Also where the file is as large already: the kernel looks at the place alone. */
Test(save, writes_beyond_the_process_s_limit_are_errors_and_no_signal) {
  quay_buffer *file = test_map(test_file("a", 4 * MIB, 5), QUAY_MAP_SHARED), *window = NULL;
  quay_buffer *bytes = test_buffer(NULL, 3 * MIB, 3);
  TEST_OK(quay_buffer_view(file, MIB, 3 * MIB, &window));
  struct rlimit before;
  cr_assert_eq(getrlimit(RLIMIT_FSIZE, &before), 0);
  cr_assert_neq(signal(SIGXFSZ, SIG_DFL), SIG_ERR);
  const struct rlimit limit = {.rlim_cur = MIB, .rlim_max = before.rlim_max};
  cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
  static const uint64_t sizes[] = {1, 1000, 64 * 1024, 3 * MIB};
  for (size_t i = 0; i < 4; ++i) {
    const quay_status status = quay_buffer_copy_region(window, 0, bytes, 0, sizes[i], NULL);
    if (status != QUAY_OK) /* stores through the mapping, of large ranges, have no such limit */
      test_expect_error(status, QUAY_STATUS_IO, "EFBIG", "RLIMIT_FSIZE");
    cr_assert(sizes[i] > MIB || status == QUAY_STATUS_IO);
  }
  const uint8_t pattern = 7;
  const quay_status filled = quay_buffer_fill(window, &pattern, 1);
  cr_assert(filled == QUAY_OK || filled == QUAY_STATUS_IO);
  cr_assert_eq(setrlimit(RLIMIT_FSIZE, &before), 0);
  quay_buffer_release(window);
  quay_buffer_release(bytes);
  quay_buffer_release(file);
}

Test(save, a_trace_that_meets_the_process_s_limit_does_not_end_it) {
  quay_allocator *traced = NULL;
  char spec[512];
  snprintf(spec, sizeof spec, "trace:%s+cpu", test_path("log.csv"));
  TEST_OK(quay_allocator_open(spec, &traced));
  struct rlimit before;
  cr_assert_eq(getrlimit(RLIMIT_FSIZE, &before), 0);
  cr_assert_neq(signal(SIGXFSZ, SIG_DFL), SIG_ERR);
  const struct rlimit limit = {.rlim_cur = 20000, .rlim_max = before.rlim_max};
  cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
  for (int i = 0; i < 5000; ++i) {
    quay_raw_buffer raw;
    TEST_OK(quay_allocator_alloc(traced, 100, NULL, &raw));
    quay_raw_buffer_free(&raw);
  }
  quay_allocator_release(traced);
  cr_assert_eq(setrlimit(RLIMIT_FSIZE, &before), 0);
  cr_assert_leq(test_file_size(test_path("log.csv")), 20000);
}

Test(save, leaks_no_descriptor_on_success_or_failure) {
  quay_buffer *buffer = test_buffer(NULL, 5000, 3);
  TEST_OK(quay_buffer_save(buffer, test_path("out"), NULL));
  const int before = test_descriptor_count();
  for (int i = 0; i < 10; ++i) {
    TEST_OK(quay_buffer_save(buffer, test_path("out"), NULL));
    cr_assert_neq(quay_buffer_save(buffer, test_directory(), NULL), QUAY_OK);
    cr_assert_neq(quay_buffer_save(buffer, test_path("missing/out"), NULL), QUAY_OK);
  }
  cr_assert_eq(test_descriptor_count(), before);
  quay_buffer_release(buffer);
}

Test(save, each_save_is_seen_whole_by_the_next_mapping) {
  const char *path = test_file("out", 300000, 3);
  quay_buffer *one = test_buffer(NULL, 300000, 3);
  quay_buffer *two = test_buffer(NULL, 200000, 4);
  const quay_save_options options = {.no_sync = true};
  for (int i = 0; i < 50; ++i) {
    TEST_OK(quay_buffer_save(i % 2 ? one : two, path, &options));
    quay_buffer *seen = test_map(path, QUAY_MAP_READ_ONLY);
    cr_assert_eq(quay_buffer_size(seen), i % 2 ? 300000 : 200000);
    cr_assert(test_buffer_is(seen, 0, i % 2 ? 3 : 4));
    quay_buffer_release(seen);
  }
  quay_buffer_release(one);
  quay_buffer_release(two);
}
