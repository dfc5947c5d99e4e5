/* The mmap backend as an allocator: blocks behind unlinked files in a directory. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/files.h"

#define MIB (UINT64_C(1) << 20)

TestSuite(mmap_allocator, .init = test_files_begin, .fini = test_files_end);

static quay_allocator *open_in(const char *directory) {
  char spec[8192];
  quay_allocator *allocator = NULL;
  cr_assert_lt(snprintf(spec, sizeof spec, "mmap:%s", directory), (int)sizeof spec);
  TEST_OK(quay_allocator_open(spec, &allocator));
  return allocator;
}

static quay_raw_buffer alloc(quay_allocator *allocator, uint64_t size, uint64_t alignment) {
  const quay_alloc_options options = {.alignment = alignment};
  quay_raw_buffer raw;
  TEST_OK(quay_allocator_alloc(allocator, size, &options, &raw));
  return raw;
}

static uint8_t *bytes_of(const quay_raw_buffer *raw) {
  void *bytes = NULL;
  TEST_OK(quay_raw_buffer_host_pointer(raw, &bytes));
  return bytes;
}

/* Opening. */

static void expect_not_opened(const char *spec, quay_status status, const char *native,
                              const char *text) {
  quay_allocator *allocator = (quay_allocator *)(uintptr_t)spec;
  test_expect_error(quay_allocator_open(spec, &allocator), status, native, text);
  cr_assert_null(allocator);
}

Test(mmap_allocator, needs_a_directory) {
  expect_not_opened("mmap", QUAY_STATUS_INVALID_ARGUMENT, "", "mmap:/scratch");
}

Test(mmap_allocator, names_a_missing_directory_with_enoent) {
  expect_not_opened("mmap:/does/not/exist", QUAY_STATUS_IO, "ENOENT", "/does/not/exist");
}

Test(mmap_allocator, refuses_a_file_instead_of_a_directory) {
  char spec[4300];
  snprintf(spec, sizeof spec, "mmap:%s", test_file("a", 10, 1));
  expect_not_opened(spec, QUAY_STATUS_IO, "ENOTDIR", "a regular file");
}

Test(mmap_allocator, refuses_unknown_arguments) {
  expect_not_opened("mmap:/tmp,size=3", QUAY_STATUS_INVALID_ARGUMENT, "", "size");
  expect_not_opened("mmap:/tmp,/var/tmp", QUAY_STATUS_INVALID_ARGUMENT, "", "/var/tmp");
}

static bool open_fails_with_eacces(void *spec) {
  quay_allocator *allocator = NULL;
  return quay_allocator_open(spec, &allocator) == QUAY_STATUS_IO &&
         strcmp(quay_last_error()->native_name, "EACCES") == 0 &&
         strstr(quay_last_error()->message, test_directory()) != NULL;
}

Test(mmap_allocator, tells_at_opening_that_the_directory_is_not_writable) {
  char spec[4300];
  snprintf(spec, sizeof spec, "mmap:%s", test_directory());
  cr_assert(test_as_user(65534, open_fails_with_eacces, spec));
}

Test(mmap_allocator, opens_a_directory_with_a_plus_and_a_comma_in_its_name) {
  char spec[4300];
  quay_allocator *allocator = NULL;
  cr_assert_eq(mkdir(test_path("a+b,c"), 0755), 0);
  snprintf(spec, sizeof spec, "track+mmap:%s/a+b\\,c", test_directory());
  TEST_OK(quay_allocator_open(spec, &allocator));
  cr_assert_str_eq(quay_allocator_spec(allocator), spec);
  quay_allocator_release(allocator);
}

Test(mmap_allocator, every_spelling_of_a_directory_has_one_spec) {
  char spec[4300];
  snprintf(spec, sizeof spec, "%s/./sub/..//", test_directory());
  cr_assert_eq(mkdir(test_path("sub"), 0755), 0);
  quay_allocator *one = open_in(test_directory());
  quay_allocator *two = open_in(spec);
  cr_assert_eq(chdir(test_directory()), 0);
  quay_allocator *three = open_in(".");
  cr_assert_str_eq(quay_allocator_spec(one), quay_allocator_spec(two));
  cr_assert_str_eq(quay_allocator_spec(one), quay_allocator_spec(three));
  quay_allocator_release(one);
  quay_allocator_release(two);
  quay_allocator_release(three);
}

Test(mmap_allocator, a_relative_directory_survives_chdir) {
  cr_assert_eq(chdir(test_directory()), 0);
  quay_allocator *allocator = open_in(".");
  cr_assert_eq(chdir("/"), 0);
  quay_buffer *buffer = test_buffer(allocator, 5000, 3);
  cr_assert(test_buffer_is(buffer, 0, 3));
  quay_buffer_release(buffer);
  quay_allocator_release(allocator);
}

Test(mmap_allocator, is_of_kind_file_on_the_host_device) {
  quay_allocator *allocator = open_in(test_directory());
  quay_device *host = quay_device_host();
  cr_assert_eq(quay_allocator_kind(allocator), QUAY_MEMORY_FILE);
  cr_assert_eq(quay_allocator_device(allocator), host);
  cr_assert(quay_allocator_host_accessible(allocator));
  cr_assert_str_eq(quay_allocator_name(allocator), "mmap");
  quay_device_release(host);
  quay_allocator_release(allocator);
}

Test(mmap_allocator, is_listed_among_the_devices) {
  quay_device_list list;
  bool found = false;
  TEST_OK(quay_devices(&list));
  for (size_t i = 0; i < list.count; ++i)
    found |= strcmp(list.devices[i].backend, "mmap") == 0 && list.devices[i].available;
  cr_assert(found);
  quay_device_list_free(&list);
}

/* Blocks. */

Test(mmap_allocator, gives_zeroed_blocks_of_every_size) {
  const uint64_t sizes[] = {1, 4095, 4096, 4097, MIB - 1, MIB, 3 * MIB + 77};
  quay_allocator *allocator = open_in(test_directory());
  for (size_t i = 0; i < 7; ++i) {
    quay_raw_buffer raw = alloc(allocator, sizes[i], 0);
    const uint8_t *bytes = bytes_of(&raw);
    for (uint64_t j = 0; j < sizes[i]; ++j)
      cr_assert_eq(bytes[j], 0);
    cr_assert((raw.flags & (uint32_t)QUAY_RAW_ZEROED) != 0);
    quay_raw_buffer_free(&raw);
  }
  quay_allocator_release(allocator);
}

Test(mmap_allocator, blocks_keep_what_is_copied_into_them) {
  const uint64_t sizes[] = {1, 4097, MIB - 1, MIB, 9 * MIB + 77};
  quay_allocator *allocator = open_in(test_directory());
  for (size_t i = 0; i < 5; ++i) {
    quay_buffer *buffer = test_buffer(allocator, sizes[i], 3);
    const void *bytes = NULL;
    TEST_OK(quay_buffer_host_bytes(buffer, &bytes, NULL));
    cr_assert(test_matches(bytes, sizes[i], 0, 3));
    cr_assert(test_buffer_is(buffer, 0, 3));
    TEST_OK(quay_buffer_flush(buffer));
    quay_buffer_release(buffer);
  }
  quay_allocator_release(allocator);
}

Test(mmap_allocator, blocks_can_be_filled) {
  const uint64_t sizes[] = {5000, 2 * MIB + 8};
  quay_allocator *allocator = open_in(test_directory());
  for (size_t i = 0; i < 2; ++i) {
    const uint64_t pattern = UINT64_C(0x0102030405060708);
    quay_buffer *buffer = test_buffer(allocator, sizes[i], 3);
    const void *bytes = NULL;
    TEST_OK(quay_buffer_fill(buffer, &pattern, sizeof pattern));
    TEST_OK(quay_buffer_host_bytes(buffer, &bytes, NULL));
    for (uint64_t j = 0; j < sizes[i] / 8; ++j)
      cr_assert_eq(((const uint64_t *)bytes)[j], pattern);
    quay_buffer_release(buffer);
  }
  quay_allocator_release(allocator);
}

Test(mmap_allocator, honours_every_alignment_up_to_one_gib) {
  quay_allocator *allocator = open_in(test_directory());
  const uint64_t sizes[] = {0, 1, 5000, 2 * MIB};
  for (uint64_t alignment = 1; alignment <= QUAY_ALIGNMENT_MAX; alignment *= 2) {
    for (size_t i = 0; i < 4; ++i) {
      quay_raw_buffer raw = alloc(allocator, sizes[i], alignment);
      uint8_t *bytes = bytes_of(&raw);
      cr_assert_eq((uintptr_t)bytes % alignment, 0);
      if (sizes[i] != 0) {
        bytes[0] = 1;
        bytes[sizes[i] - 1] = 2;
      }
      quay_raw_buffer_free(&raw);
    }
  }
  quay_allocator_release(allocator);
}

Test(mmap_allocator, empty_blocks_are_different_and_not_null) {
  quay_allocator *allocator = open_in(test_directory());
  quay_raw_buffer one = alloc(allocator, 0, 0);
  quay_raw_buffer two = alloc(allocator, 0, 0);
  cr_assert_not_null(bytes_of(&one));
  cr_assert_neq(bytes_of(&one), bytes_of(&two));
  quay_raw_buffer_free(&one);
  quay_raw_buffer_free(&two);
  quay_allocator_release(allocator);
}

Test(mmap_allocator, leaves_nothing_in_the_directory) {
  quay_allocator *allocator = open_in(test_directory());
  quay_raw_buffer raw = alloc(allocator, 2 * MIB, 0);
  cr_assert_eq(test_directory_count(test_directory()), 0);
  quay_raw_buffer_free(&raw);
  quay_allocator_release(allocator);
  cr_assert_eq(test_directory_count(test_directory()), 0);
}

Test(mmap_allocator, thousands_of_small_blocks_take_no_descriptors) {
  enum {
    COUNT = 3000
  };
  quay_allocator *allocator = open_in(test_directory());
  quay_raw_buffer *blocks = calloc(COUNT, sizeof *blocks);
  const int before = test_descriptor_count();
  for (int i = 0; i < COUNT; ++i) {
    blocks[i] = alloc(allocator, 100, 0);
    memset(bytes_of(&blocks[i]), i % 251 + 1, 100);
  }
  cr_assert_eq(test_descriptor_count(), before);
  for (int i = 0; i < COUNT; ++i) {
    cr_assert_eq(bytes_of(&blocks[i])[99], i % 251 + 1);
    quay_raw_buffer_free(&blocks[i]);
  }
  free(blocks);
  quay_allocator_release(allocator);
}

Test(mmap_allocator, many_large_blocks_take_a_bounded_number_of_descriptors) {
  enum {
    COUNT = 300
  };
  quay_allocator *allocator = open_in(test_directory());
  quay_buffer *blocks[COUNT];
  const int before = test_descriptor_count();
  for (int i = 0; i < COUNT; ++i)
    blocks[i] = test_buffer(allocator, MIB, (unsigned)i);
  cr_assert_leq(test_descriptor_count(), before + 256);
  for (int i = 0; i < COUNT; ++i)
    cr_assert(test_buffer_is(blocks[i], 0, (unsigned)i));
  TEST_OK(quay_buffer_copy_from(blocks[0], blocks[COUNT - 1]));
  TEST_OK(quay_buffer_copy_from(blocks[COUNT - 2], blocks[1]));
  cr_assert(test_buffer_is(blocks[0], 0, COUNT - 1));
  cr_assert(test_buffer_is(blocks[COUNT - 2], 0, 1));
  for (int i = 0; i < COUNT; ++i)
    quay_buffer_release(blocks[i]);
  cr_assert_eq(test_descriptor_count(), before);
  quay_buffer *block = test_buffer(allocator, MIB, 1);
  cr_assert_eq(test_descriptor_count(), before + 1, "descriptors are not kept again");
  quay_buffer_release(block);
  quay_allocator_release(allocator);
}

Test(mmap_allocator, counts_live_and_reserved_bytes) {
  quay_allocator *allocator = open_in(test_directory());
  quay_stats stats;
  quay_raw_buffer one = alloc(allocator, 5000, 0);
  quay_raw_buffer two = alloc(allocator, MIB, 0);
  TEST_OK(quay_allocator_stats(allocator, &stats));
  cr_assert_eq(stats.live_bytes, 5000 + MIB);
  cr_assert_eq(stats.live_count, 2);
  cr_assert_eq(stats.reserved_bytes, 8192 + MIB);
  quay_raw_buffer_free(&one);
  quay_raw_buffer_free(&two);
  TEST_OK(quay_allocator_stats(allocator, &stats));
  cr_assert_eq(stats.live_bytes, 0);
  cr_assert_eq(stats.reserved_bytes, 0);
  cr_assert_eq(stats.error_count, 0);
  quay_allocator_release(allocator);
}

Test(mmap_allocator, refuses_options_that_files_cannot_have) {
  const quay_alloc_options mirror = {.mirror = true};
  const quay_alloc_options exportable = {.exportable = true};
  quay_allocator *allocator = open_in(test_directory());
  quay_raw_buffer raw;
  test_expect_error(quay_allocator_alloc(allocator, 10, &mirror, &raw), QUAY_STATUS_UNSUPPORTED, "",
                    "mirror");
  test_expect_error(quay_allocator_alloc(allocator, 10, &exportable, &raw), QUAY_STATUS_UNSUPPORTED,
                    "", "exportable");
  quay_allocator_release(allocator);
}

Test(mmap_allocator, a_full_disk_is_enospc_at_allocation_and_not_sigbus) {
  const char *small = test_path("small");
  test_mount_small(small, MIB);
  quay_allocator *allocator = open_in(small);
  const int before = test_descriptor_count();
  quay_raw_buffer raw;
  test_expect_error(quay_allocator_alloc(allocator, 2 * MIB, NULL, &raw), QUAY_STATUS_IO, "ENOSPC",
                    small);
  quay_raw_buffer blocks[64];
  int count = 0;
  while (count < 64 && quay_allocator_alloc(allocator, MIB / 16, NULL, &blocks[count]) == QUAY_OK)
    ++count;
  cr_assert(count >= 12 && count <= 16, "%d blocks", count);
  test_expect_error(quay_last_error()->status, QUAY_STATUS_IO, "ENOSPC", small);
  for (int i = 0; i < count; ++i)
    memset(bytes_of(&blocks[i]), 0x5A, MIB / 16);
  quay_stats stats;
  TEST_OK(quay_allocator_stats(allocator, &stats));
  cr_assert_eq(stats.failure_count, 2);
  for (int i = 0; i < count; ++i)
    quay_raw_buffer_free(&blocks[i]);
  cr_assert_eq(test_descriptor_count(), before);
  raw = alloc(allocator, MIB / 2, 0);
  quay_raw_buffer_free(&raw);
  quay_allocator_release(allocator);
}

Test(mmap_allocator, sizes_that_no_disk_has_are_errors) {
  const uint64_t sizes[] = {INT64_MAX, INT64_MAX - 4095, UINT64_C(1) << 62};
  quay_allocator *allocator = open_in(test_directory());
  for (size_t i = 0; i < 3; ++i) {
    quay_raw_buffer raw;
    test_expect_error(quay_allocator_alloc(allocator, sizes[i], NULL, &raw), QUAY_STATUS_IO, NULL,
                      test_directory());
  }
  quay_raw_buffer raw;
  test_expect_error(quay_allocator_alloc(allocator, UINT64_C(1) << 63, NULL, &raw),
                    QUAY_STATUS_INVALID_ARGUMENT, "", "2^63-1");
  quay_allocator_release(allocator);
}

Test(mmap_allocator, works_in_a_child_after_fork) {
  quay_allocator *allocator = open_in(test_directory());
  quay_buffer *buffer = test_buffer(allocator, 3 * MIB, 3);
  const pid_t child = fork();
  if (child == 0) {
    quay_buffer *fresh = test_buffer(allocator, 3 * MIB, 4);
    const bool same = test_buffer_is(buffer, 0, 3) && test_buffer_is(fresh, 0, 4);
    quay_buffer_release(fresh);
    quay_buffer_release(buffer);
    _exit(same ? 0 : 1);
  }
  int status = 1;
  cr_assert_eq(waitpid(child, &status, 0), child);
  cr_assert_eq(status, 0);
  cr_assert(test_buffer_is(buffer, 0, 3));
  quay_buffer_release(buffer);
  quay_allocator_release(allocator);
}

typedef struct worker {
  quay_allocator *allocator;
  unsigned seed;
  bool same;
} worker;

static void *allocate_and_free(void *user) {
  worker *self = user;
  self->same = true;
  for (unsigned i = 0; i < 60; ++i) {
    quay_raw_buffer raw;
    const uint64_t size = i % 3 == 0 ? MIB + i : 100 + i;
    if (quay_allocator_alloc(self->allocator, size, NULL, &raw) != QUAY_OK) {
      self->same = false;
      return NULL;
    }
    void *bytes = NULL;
    self->same &= quay_raw_buffer_host_pointer(&raw, &bytes) == QUAY_OK;
    test_fill(bytes, size, 0, self->seed);
    self->same &= test_matches(bytes, size, 0, self->seed);
    quay_raw_buffer_free(&raw);
  }
  return NULL;
}

Test(mmap_allocator, threads_allocate_and_free_at_once) {
  quay_allocator *allocator = open_in(test_directory());
  worker workers[4];
  pthread_t threads[4];
  for (unsigned i = 0; i < 4; ++i) {
    workers[i] = (worker){.allocator = allocator, .seed = i};
    cr_assert_eq(pthread_create(&threads[i], NULL, allocate_and_free, &workers[i]), 0);
  }
  for (int i = 0; i < 4; ++i) {
    pthread_join(threads[i], NULL);
    cr_assert(workers[i].same);
  }
  quay_stats stats;
  TEST_OK(quay_allocator_stats(allocator, &stats));
  cr_assert_eq(stats.live_bytes, 0);
  cr_assert_eq(stats.reserved_bytes, 0);
  quay_allocator_release(allocator);
}

Test(mmap_allocator, raw_info_of_a_block_tells_its_mode) {
  quay_allocator *allocator = open_in(test_directory());
  quay_raw_buffer small = alloc(allocator, 5000, 0);
  quay_raw_buffer large = alloc(allocator, MIB, 0);
  quay_mmap_info info;
  TEST_OK(quay_mmap_raw_info(&small, &info));
  cr_assert_eq(info.mode, QUAY_MAP_SHARED);
  cr_assert_eq(info.file, -1);
  TEST_OK(quay_mmap_raw_info(&large, &info));
  cr_assert_geq(info.file, 0);
  cr_assert_eq(info.address, bytes_of(&large));
  quay_raw_buffer_free(&small);
  quay_raw_buffer_free(&large);
  quay_allocator_release(allocator);
}
