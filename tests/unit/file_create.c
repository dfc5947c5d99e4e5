/* quay_file_create(): new files, their blocks reserved, whole or not at all. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/files.h"

#define MIB (UINT64_C(1) << 20)

TestSuite(file_create, .init = test_files_begin, .fini = test_files_end);

static quay_buffer *create(const char *path, uint64_t size, const quay_file_options *options) {
  quay_buffer *buffer = NULL;
  TEST_OK(quay_file_create(path, size, options, &buffer));
  return buffer;
}

Test(file_create, makes_a_file_of_zeros_of_the_size) {
  const uint64_t sizes[] = {1, 4096, 100003, 3 * MIB + 7};
  for (size_t i = 0; i < 4; ++i) {
    const char *path = test_path("new");
    quay_buffer *buffer = create(path, sizes[i], NULL);
    uint8_t *bytes = malloc(sizes[i]);
    memset(bytes, 7, sizes[i]);
    TEST_OK(quay_buffer_copy_out(buffer, bytes, sizes[i]));
    for (uint64_t j = 0; j < sizes[i]; ++j)
      cr_assert_eq(bytes[j], 0);
    cr_assert_eq(test_file_size(path), sizes[i]);
    free(bytes);
    quay_buffer_release(buffer);
    cr_assert_eq(unlink(path), 0);
  }
}

Test(file_create, writes_reach_the_file) {
  const char *path = test_path("new");
  uint8_t *bytes = malloc(3 * MIB);
  test_fill(bytes, 3 * MIB, 0, 4);
  quay_buffer *buffer = create(path, 3 * MIB, NULL);
  TEST_OK(quay_buffer_copy_in(buffer, bytes, 3 * MIB));
  TEST_OK(quay_buffer_flush(buffer));
  quay_buffer_release(buffer);
  cr_assert(test_file_is(path, 3 * MIB, 4));
  free(bytes);
}

Test(file_create, gives_a_flat_writable_buffer_of_bytes) {
  quay_buffer *buffer = create(test_path("new"), 777, NULL);
  cr_assert_eq(quay_buffer_dtype(buffer), QUAY_U8);
  cr_assert_eq(quay_buffer_rank(buffer), 1);
  cr_assert_eq(quay_buffer_shape(buffer)[0], 777);
  cr_assert_eq(quay_buffer_kind(buffer), QUAY_MEMORY_FILE);
  cr_assert_not(quay_buffer_is_sealed(buffer));
  quay_buffer_release(buffer);
}

Test(file_create, reserves_the_blocks) {
  const char *path = test_path("new");
  struct stat status;
  quay_buffer *buffer = create(path, 5 * MIB, NULL);
  cr_assert_eq(stat(path, &status), 0);
  cr_assert_geq((uint64_t)status.st_blocks * 512, 5 * MIB);
  quay_buffer_release(buffer);
}

Test(file_create, shares_its_mapping_with_later_ones) {
  const char *path = test_path("new");
  quay_buffer *buffer = create(path, 5000, NULL);
  quay_buffer *again = test_map(path, QUAY_MAP_SHARED);
  const void *one = NULL;
  const void *two = NULL;
  TEST_OK(quay_buffer_host_bytes(buffer, &one, NULL));
  TEST_OK(quay_buffer_host_bytes(again, &two, NULL));
  cr_assert_eq(one, two);
  quay_buffer_release(buffer);
  quay_buffer_release(again);
}

Test(file_create, makes_an_empty_file_of_zero_bytes) {
  const char *path = test_path("new");
  quay_buffer *buffer = create(path, 0, NULL);
  cr_assert_eq(quay_buffer_size(buffer), 0);
  cr_assert_eq(test_file_size(path), 0);
  quay_buffer_release(buffer);
}

Test(file_create, refuses_an_existing_file_and_leaves_it_alone) {
  const char *path = test_file("old", 3000, 5);
  quay_buffer *buffer = NULL;
  test_expect_error(quay_file_create(path, 100, NULL, &buffer), QUAY_STATUS_IO, "EEXIST", path);
  cr_assert_null(buffer);
  cr_assert(test_file_is(path, 3000, 5));
}

Test(file_create, replaces_an_existing_file_if_asked_and_keeps_old_mappings) {
  const quay_file_options options = {.replace = true};
  const char *path = test_file("old", 3000, 5);
  quay_buffer *old = test_map(path, QUAY_MAP_SHARED);
  quay_buffer *fresh = create(path, 100, &options);
  cr_assert_eq(test_file_size(path), 100);
  cr_assert(test_buffer_is(old, 0, 5));
  cr_assert_eq(test_directory_count(test_directory()), 1);
  quay_buffer_release(old);
  quay_buffer_release(fresh);
}

Test(file_create, replaces_nothing_as_well) {
  const quay_file_options options = {.replace = true};
  quay_buffer *buffer = create(test_path("new"), 100, &options);
  cr_assert_eq(test_file_size(test_path("new")), 100);
  quay_buffer_release(buffer);
}

Test(file_create, applies_permissions_and_the_umask) {
  const quay_file_options options = {.permissions = 0642};
  umask(0026);
  quay_buffer_release(create(test_path("plain"), 10, NULL));
  quay_buffer_release(create(test_path("asked"), 10, &options));
  cr_assert_eq(test_file_mode(test_path("plain")), 0640);
  cr_assert_eq(test_file_mode(test_path("asked")), 0640 & ~0002);
}

Test(file_create, replacing_does_not_take_over_the_old_permissions) {
  const quay_file_options options = {.replace = true};
  const char *path = test_file("old", 10, 1);
  umask(0022);
  cr_assert_eq(chmod(path, 0600), 0);
  quay_buffer_release(create(path, 10, &options));
  cr_assert_eq(test_file_mode(path), 0644);
}

Test(file_create, refuses_a_directory) {
  const quay_file_options options = {.replace = true};
  quay_buffer *buffer = NULL;
  test_expect_error(quay_file_create(test_directory(), 10, NULL, &buffer), QUAY_STATUS_IO, "EEXIST",
                    test_directory());
  test_expect_error(quay_file_create(test_directory(), 10, &options, &buffer),
                    QUAY_STATUS_INVALID_ARGUMENT, "", "a directory");
}

Test(file_create, names_a_missing_directory) {
  const quay_file_options options = {.replace = true};
  const char *path = test_path("missing/new");
  quay_buffer *buffer = NULL;
  test_expect_error(quay_file_create(path, 10, NULL, &buffer), QUAY_STATUS_IO, "ENOENT", path);
  test_expect_error(quay_file_create(path, 10, &options, &buffer), QUAY_STATUS_IO, "ENOENT", path);
}

Test(file_create, refuses_bad_arguments) {
  const quay_file_options options = {.permissions = 010000};
  quay_buffer *buffer = NULL;
  test_expect_error(quay_file_create(NULL, 1, NULL, &buffer), QUAY_STATUS_INVALID_ARGUMENT, "",
                    "path");
  test_expect_error(quay_file_create("x", 1, NULL, NULL), QUAY_STATUS_INVALID_ARGUMENT, "",
                    "out_buffer");
  test_expect_error(quay_file_create(test_path("x"), UINT64_C(1) << 63, NULL, &buffer),
                    QUAY_STATUS_INVALID_ARGUMENT, "", "2^63-1");
  test_expect_error(quay_file_create(test_path("x"), 1, &options, &buffer),
                    QUAY_STATUS_INVALID_ARGUMENT, "", "permissions");
  cr_assert_eq(test_directory_count(test_directory()), 0);
}

Test(file_create, a_full_disk_is_enospc_and_leaves_no_file) {
  const char *small = test_path("small");
  test_mount_small(small, MIB);
  const char *path = test_path("small/new");
  quay_buffer *buffer = NULL;
  test_expect_error(quay_file_create(path, 2 * MIB, NULL, &buffer), QUAY_STATUS_IO, "ENOSPC", path);
  cr_assert_eq(test_directory_count(small), 0);
  quay_buffer_release(create(path, MIB / 2, NULL));
}

Test(file_create, a_full_disk_leaves_the_file_that_was_to_be_replaced) {
  const quay_file_options options = {.replace = true};
  const char *small = test_path("small");
  test_mount_small(small, MIB);
  const char *path = test_file("small/old", 3000, 5);
  quay_buffer *buffer = NULL;
  test_expect_error(quay_file_create(path, 2 * MIB, &options, &buffer), QUAY_STATUS_IO, "ENOSPC",
                    path);
  cr_assert(test_file_is(path, 3000, 5));
  cr_assert_eq(test_directory_count(small), 1);
}

Test(file_create, a_size_that_no_disk_has_leaves_no_file) {
  quay_buffer *buffer = NULL;
  test_expect_error(quay_file_create(test_path("new"), INT64_MAX, NULL, &buffer), QUAY_STATUS_IO,
                    NULL, test_path("new"));
  cr_assert_eq(test_directory_count(test_directory()), 0);
}
