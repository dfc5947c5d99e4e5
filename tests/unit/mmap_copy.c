/* Copies to, from and between mapped files: every pair of modes, odd offsets, overlaps, and files
 * that are truncated behind the mapping, which must be an I/O error and never SIGBUS. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "support/files.h"

#define MIB   (UINT64_C(1) << 20)
#define PIECE (4 * MIB) /* of one system call */

TestSuite(mmap_copy, .init = test_files_begin, .fini = test_files_end);

static const quay_map_mode modes[] = {QUAY_MAP_READ_ONLY, QUAY_MAP_COPY_ON_WRITE, QUAY_MAP_SHARED};
static const quay_map_mode writable[] = {QUAY_MAP_COPY_ON_WRITE, QUAY_MAP_SHARED};
#define FOR_EACH(type, name, array) \
  for (const type *name = (array); name < (array) + sizeof(array) / sizeof(array)[0]; ++name)

static quay_buffer *map_direct(const char *path, uint64_t offset) {
  const quay_map_options options = {.direct = true, .offset = offset};
  quay_buffer *buffer = NULL;
  TEST_OK(quay_map_file(path, &options, &buffer));
  return buffer;
}

static quay_allocator *open_blocks(void) {
  char spec[4200];
  quay_allocator *allocator = NULL;
  snprintf(spec, sizeof spec, "mmap:%s", test_directory());
  TEST_OK(quay_allocator_open(spec, &allocator));
  return allocator;
}

/* Host memory. */

/* Copies `size` bytes out of the buffer at `offset` between two guards. */
static void check_copy_out(quay_buffer *buffer, uint64_t offset, uint64_t size, uint64_t skew,
                           unsigned seed) {
  quay_buffer *view = NULL;
  TEST_OK(quay_buffer_view(buffer, offset, size, &view));
  uint8_t *memory = malloc(size + skew + 128);
  memset(memory, 0xEE, size + skew + 128);
  TEST_OK(quay_buffer_copy_out(view, memory + 64 + skew, size));
  for (uint64_t i = 0; i < 64; ++i) {
    cr_assert_eq(memory[i + skew], 0xEE);
    cr_assert_eq(memory[64 + skew + size + i], 0xEE);
  }
  cr_assert(test_matches(memory + 64 + skew, size, offset, seed));
  free(memory);
  quay_buffer_release(view);
}

static const uint64_t sizes[] = {
    1,         4095,  4096,      MIB - 1,       MIB + 1,          2 * MIB,
    PIECE - 1, PIECE, PIECE + 1, 2 * PIECE + 1, 2 * PIECE + 12345};

static void check_all_sizes(quay_buffer *buffer, unsigned seed) {
  FOR_EACH(uint64_t, size, sizes) {
    check_copy_out(buffer, 0, *size, 0, seed);
    check_copy_out(buffer, 991, *size, 7, seed);
  }
}

Test(mmap_copy, copies_out_every_size_at_odd_offsets_in_every_mode) {
  const char *path = test_file("a", 2 * PIECE + 20000, 3);
  FOR_EACH(quay_map_mode, mode, modes) {
    quay_buffer *buffer = test_map(path, *mode);
    check_all_sizes(buffer, 3);
    quay_buffer_release(buffer);
  }
}

Test(mmap_copy, copies_out_with_several_readers) {
  setenv("QUAY_COPY_THREADS", "5", 1);
  const char *path = test_file("a", 2 * PIECE + 20000, 3);
  FOR_EACH(quay_map_mode, mode, modes) {
    quay_buffer *buffer = test_map(path, *mode);
    check_all_sizes(buffer, 3);
    quay_buffer_release(buffer);
  }
}

static quay_copy_plan_info plan_reading(const char *threads, uint64_t size) {
  setenv("QUAY_COPY_THREADS", threads, 1);
  quay_buffer *file = test_map(test_file("planned", size, 3), QUAY_MAP_READ_ONLY);
  quay_buffer *memory = NULL;
  TEST_OK(quay_buffer_create_lazy(NULL, QUAY_U8, 1, (int64_t[]){(int64_t)size}, NULL, &memory));
  quay_copy_plan_info plan;
  TEST_OK(quay_copy_plan(memory, 0, file, 0, size, NULL, &plan));
  quay_buffer_release(memory);
  quay_buffer_release(file);
  return plan;
}

Test(mmap_copy, a_plan_tells_how_many_readers_a_file_will_have) {
  const quay_copy_plan_info several = plan_reading("3", 24 * MIB);
  cr_assert_eq(several.route, QUAY_ROUTE_FILE);
  cr_assert_eq(several.threads, 3);
  cr_assert_eq(several.chunk, PIECE);
  const quay_copy_plan_info one = plan_reading("1", 24 * MIB);
  cr_assert_eq(one.threads, 1);
  const quay_copy_plan_info small = plan_reading("3", 1000);
  cr_assert_eq(small.threads, 1);
  cr_assert_eq(small.chunk, 1000);
}

Test(mmap_copy, copies_out_with_direct_io) {
  const char *path = test_file("a", 2 * PIECE + 20000, 3);
  quay_buffer *buffer = map_direct(path, 0);
  check_all_sizes(buffer, 3);
  quay_buffer_release(buffer);
}

Test(mmap_copy, copies_out_of_windows_at_odd_offsets_with_direct_io) {
  const char *path = test_file("a", 2 * PIECE + 20000, 3);
  quay_buffer *buffer = map_direct(path, 4097);
  cr_assert(test_buffer_is(buffer, 4097, 3));
  quay_buffer_release(buffer);
}

Test(mmap_copy, reports_a_bad_number_of_threads_and_moves_nothing) {
  setenv("QUAY_COPY_THREADS", "many", 1);
  quay_buffer *buffer = test_map(test_file("a", PIECE, 3), QUAY_MAP_READ_ONLY);
  uint8_t *memory = calloc(1, PIECE);
  test_expect_error(quay_buffer_copy_out(buffer, memory, PIECE), QUAY_STATUS_INVALID_ARGUMENT, "",
                    "QUAY_COPY_THREADS");
  cr_assert_eq(memory[0], 0);
  free(memory);
  quay_buffer_release(buffer);
}

Test(mmap_copy, copies_into_a_window_and_touches_no_neighbour) {
  const uint64_t size = 2 * PIECE + 20000;
  const uint64_t parts[] = {1, 4096, MIB + 1, 2 * PIECE + 12345};
  FOR_EACH(quay_map_mode, mode, writable) {
    FOR_EACH(uint64_t, part, parts) {
      const char *path = test_file("a", size, 3);
      quay_buffer *buffer = test_map(path, *mode);
      quay_buffer *view = NULL;
      uint8_t *bytes = malloc(*part);
      test_fill(bytes, *part, 0, 8);
      TEST_OK(quay_buffer_view(buffer, 991, *part, &view));
      TEST_OK(quay_buffer_copy_in(view, bytes, *part));
      check_copy_out(buffer, 991 + *part, size - 991 - *part, 0, 3);
      check_copy_out(buffer, 0, 991, 0, 3);
      cr_assert(test_buffer_is(view, 0, 8));
      cr_assert_eq(test_file_is(path, size, 3), *mode == QUAY_MAP_COPY_ON_WRITE);
      cr_assert_eq(test_file_size(path), size);
      free(bytes);
      quay_buffer_release(view);
      quay_buffer_release(buffer);
    }
  }
}

Test(mmap_copy, pointers_and_copies_see_the_same_bytes) {
  FOR_EACH(quay_map_mode, mode, writable) {
    quay_buffer *buffer = test_map(test_file("a", 10000, 3), *mode);
    void *bytes = NULL;
    uint8_t data[10000];
    TEST_OK(quay_buffer_host_bytes_mut(buffer, &bytes, NULL));
    test_fill(bytes, 10000, 0, 5);
    cr_assert(test_buffer_is(buffer, 0, 5));
    test_fill(data, 10000, 0, 6);
    TEST_OK(quay_buffer_copy_in(buffer, data, 10000));
    cr_assert(test_matches(bytes, 10000, 0, 6));
    quay_buffer_release(buffer);
  }
}

Test(mmap_copy, fills_a_window_with_patterns_of_every_size) {
  const size_t patterns[] = {1, 2, 4, 8, 16};
  FOR_EACH(quay_map_mode, mode, writable) {
    FOR_EACH(size_t, pattern, patterns) {
      const char *path = test_file("a", 3 * MIB, 3);
      quay_buffer *buffer = test_map(path, *mode);
      quay_buffer *view = NULL;
      uint8_t bytes[16];
      const uint64_t size = *pattern * 61111;
      test_fill(bytes, 16, 0, 9);
      TEST_OK(quay_buffer_view(buffer, 991, size, &view));
      TEST_OK(quay_buffer_fill(view, bytes, *pattern));
      uint8_t *got = malloc(size);
      TEST_OK(quay_buffer_copy_out(view, got, size));
      for (uint64_t i = 0; i < size; ++i)
        cr_assert_eq(got[i], bytes[i % *pattern]);
      check_copy_out(buffer, 0, 991, 0, 3);
      check_copy_out(buffer, 991 + size, 4000, 0, 3);
      free(got);
      quay_buffer_release(view);
      quay_buffer_release(buffer);
    }
  }
}

/* From file to file. */

typedef enum source_kind {
  FROM_READ_ONLY,
  FROM_PRIVATE,
  FROM_SHARED,
  FROM_DIRECT,
  FROM_SMALL_BLOCK,
  FROM_LARGE_BLOCK,
  FROM_CPU,
  SOURCE_KINDS,
} source_kind;

typedef enum target_kind {
  TO_PRIVATE,
  TO_SHARED,
  TO_BLOCK,
  TO_CPU,
  TARGET_KINDS,
} target_kind;

static quay_buffer *make_source(source_kind kind, quay_allocator *blocks, const char *path,
                                uint64_t size) {
  switch (kind) {
  case FROM_READ_ONLY:
    return test_map(path, QUAY_MAP_READ_ONLY);
  case FROM_PRIVATE:
    return test_map(path, QUAY_MAP_COPY_ON_WRITE);
  case FROM_SHARED:
    return test_map(path, QUAY_MAP_SHARED);
  case FROM_DIRECT:
    return map_direct(path, 0);
  case FROM_SMALL_BLOCK:
    return test_buffer(blocks, size < MIB ? size : MIB - 1, 3);
  case FROM_LARGE_BLOCK:
    return test_buffer(blocks, size, 3);
  case FROM_CPU:
  case SOURCE_KINDS:
    break;
  }
  return test_buffer(NULL, size, 3);
}

static quay_buffer *make_target(target_kind kind, quay_allocator *blocks, const char *path,
                                uint64_t size) {
  switch (kind) {
  case TO_PRIVATE:
    return test_map(path, QUAY_MAP_COPY_ON_WRITE);
  case TO_SHARED:
    return test_map(path, QUAY_MAP_SHARED);
  case TO_BLOCK:
    return test_buffer(blocks, size, 4);
  case TO_CPU:
  case TARGET_KINDS:
    break;
  }
  return test_buffer(NULL, size, 4);
}

static void check_pair(source_kind from, target_kind to, quay_allocator *blocks, uint64_t size) {
  const char *source_path = test_file("source", size, 3);
  const char *target_path = test_file("target", size, 4);
  quay_buffer *source = make_source(from, blocks, source_path, size);
  quay_buffer *target = make_target(to, blocks, target_path, size);
  const uint64_t part = quay_buffer_size(source) - 1000;
  TEST_OK(quay_buffer_copy_region(target, 314, source, 991, part, NULL));
  check_copy_out(target, 0, 314, 0, 4);
  check_copy_out(target, 314 + part, size - 314 - part, 0, 4);
  quay_buffer *view = NULL;
  TEST_OK(quay_buffer_view(target, 314, part, &view));
  cr_assert(test_buffer_is(view, 991, 3), "from %d to %d, %llu bytes", from, to,
            (unsigned long long)size);
  quay_buffer_release(view);
  quay_buffer_release(source);
  quay_buffer_release(target);
  cr_assert(test_file_is(source_path, size, 3));
}

Test(mmap_copy, copies_between_every_pair_of_kinds_at_odd_offsets) {
  quay_allocator *blocks = open_blocks();
  const uint64_t whole[] = {5000, PIECE + 4321};
  for (int from = 0; from < SOURCE_KINDS; ++from) {
    for (int to = 0; to < TARGET_KINDS; ++to) {
      FOR_EACH(uint64_t, size, whole) {
        check_pair((source_kind)from, (target_kind)to, blocks, *size);
      }
    }
  }
  quay_allocator_release(blocks);
}

Test(mmap_copy, copies_written_private_pages_to_another_private_mapping) {
  quay_buffer *source = test_map(test_file("source", 3 * MIB, 1), QUAY_MAP_COPY_ON_WRITE);
  quay_buffer *target = test_map(test_file("target", 3 * MIB, 2), QUAY_MAP_COPY_ON_WRITE);
  void *bytes = NULL;
  TEST_OK(quay_buffer_host_bytes_mut(source, &bytes, NULL));
  test_fill(bytes, 3 * MIB, 0, 7);
  TEST_OK(quay_buffer_copy_from(target, source));
  cr_assert(test_buffer_is(target, 0, 7));
  quay_buffer_release(source);
  quay_buffer_release(target);
}

/* Overlaps. */

static void check_overlap(quay_buffer *to_buffer, quay_buffer *from_buffer, uint64_t to,
                          uint64_t from, uint64_t size) {
  const uint64_t whole = quay_buffer_size(to_buffer);
  uint8_t *wanted = malloc(whole);
  uint8_t *got = malloc(whole);
  TEST_OK(quay_buffer_copy_out(to_buffer, wanted, whole));
  memmove(wanted + to, wanted + from, size);
  TEST_OK(quay_buffer_copy_region(to_buffer, to, from_buffer, from, size, NULL));
  TEST_OK(quay_buffer_copy_out(to_buffer, got, whole));
  cr_assert_eq(memcmp(wanted, got, whole), 0, "%llu bytes from %llu to %llu",
               (unsigned long long)size, (unsigned long long)from, (unsigned long long)to);
  free(wanted);
  free(got);
}

static void check_overlaps(quay_buffer *to, quay_buffer *from) {
  const uint64_t whole = quay_buffer_size(to);
  check_overlap(to, from, 0, 1, 100);
  check_overlap(to, from, 1, 0, 100);
  check_overlap(to, from, 313, 0, whole - 313);
  check_overlap(to, from, 0, 4097, whole - 4097);
  check_overlap(to, from, whole / 2, whole / 2 - 10, whole / 2);
  check_overlap(to, from, 17, 17, whole - 17);
}

Test(mmap_copy, overlapping_windows_of_one_buffer_move_as_memmove) {
  const uint64_t whole[] = {9000, 3 * MIB + 77};
  FOR_EACH(quay_map_mode, mode, writable) {
    FOR_EACH(uint64_t, size, whole) {
      quay_buffer *buffer = test_map(test_file("a", *size, 3), *mode);
      check_overlaps(buffer, buffer);
      quay_buffer_release(buffer);
    }
  }
}

Test(mmap_copy, overlapping_windows_of_one_block_move_as_memmove) {
  quay_allocator *blocks = open_blocks();
  const uint64_t whole[] = {9000, 3 * MIB + 77};
  FOR_EACH(uint64_t, size, whole) {
    quay_buffer *buffer = test_buffer(blocks, *size, 3);
    check_overlaps(buffer, buffer);
    quay_buffer_release(buffer);
  }
  quay_allocator_release(blocks);
}

Test(mmap_copy, two_mappings_of_one_file_move_as_memmove) {
  FOR_EACH(quay_map_mode, mode, modes) {
    const char *path = test_file("a", 3 * MIB + 77, 3);
    quay_buffer *to = test_map(path, QUAY_MAP_SHARED);
    quay_buffer *from = test_map(path, *mode);
    check_overlaps(to, from);
    quay_buffer_release(to);
    quay_buffer_release(from);
  }
}

/* Truncation. */

static const uint64_t cuts[] = {0, 100, 4096, 6000};

static void expect_truncated(quay_status status, const char *path) {
  test_expect_error(status, QUAY_STATUS_IO, NULL, "truncated");
  cr_assert_not_null(strstr(quay_last_error()->message, path));
}

static const uint64_t truncated_sizes[] = {10000, 2 * PIECE + 12345};

typedef void (*truncated_case)(quay_buffer *buffer, const char *path, uint64_t size);

static void each_truncation(truncated_case body, bool writes) {
  FOR_EACH(quay_map_mode, mode, modes) {
    if (writes && *mode == QUAY_MAP_READ_ONLY)
      continue;
    FOR_EACH(uint64_t, size, truncated_sizes) {
      FOR_EACH(uint64_t, cut, cuts) {
        const char *path = test_file("cut", *size, 3);
        quay_buffer *buffer = test_map(path, *mode);
        test_truncate(path, *cut);
        body(buffer, path, *size);
        cr_assert_eq(test_file_size(path), *cut, "the file has grown again");
        quay_buffer_release(buffer);
      }
    }
  }
}

static void copy_out_truncated(quay_buffer *buffer, const char *path, uint64_t size) {
  uint8_t *memory = malloc(size);
  expect_truncated(quay_buffer_copy_out(buffer, memory, size), path);
  free(memory);
}

Test(mmap_copy, truncated_copy_out_is_an_io_error) {
  each_truncation(copy_out_truncated, false);
}

static void copy_in_truncated(quay_buffer *buffer, const char *path, uint64_t size) {
  uint8_t *memory = malloc(size);
  test_fill(memory, size, 0, 5);
  expect_truncated(quay_buffer_copy_in(buffer, memory, size), path);
  free(memory);
}

Test(mmap_copy, truncated_copy_in_is_an_io_error_and_never_makes_the_file_longer) {
  each_truncation(copy_in_truncated, true);
}

static void fill_truncated(quay_buffer *buffer, const char *path, uint64_t size) {
  const uint8_t value = 9;
  (void)size;
  expect_truncated(quay_buffer_fill(buffer, &value, 1), path);
}

Test(mmap_copy, truncated_fill_is_an_io_error) {
  each_truncation(fill_truncated, true);
}

static void save_truncated(quay_buffer *buffer, const char *path, uint64_t size) {
  (void)size;
  const int before = test_directory_count(test_directory());
  expect_truncated(quay_buffer_save(buffer, test_path("saved"), NULL), path);
  cr_assert_eq(test_directory_count(test_directory()), before);
}

Test(mmap_copy, truncated_save_is_an_io_error_and_leaves_no_file) {
  each_truncation(save_truncated, false);
}

static void copy_to_targets_truncated(quay_buffer *buffer, const char *path, uint64_t size) {
  quay_allocator *blocks = open_blocks();
  const char *target_path = test_file("target", size, 4);
  for (int to = 0; to < TARGET_KINDS; ++to) {
    quay_buffer *target = make_target((target_kind)to, blocks, target_path, size);
    expect_truncated(quay_buffer_copy_from(target, buffer), path);
    quay_buffer_release(target);
  }
  cr_assert_eq(test_file_size(target_path), size);
  quay_allocator_release(blocks);
}

Test(mmap_copy, truncated_source_is_an_io_error_for_every_destination, .timeout = 100) {
  each_truncation(copy_to_targets_truncated, false);
}

static void copy_from_sources_truncated(quay_buffer *buffer, const char *path, uint64_t size) {
  quay_allocator *blocks = open_blocks();
  const char *source_path = test_file("source", size, 3);
  for (int from = 0; from < SOURCE_KINDS; ++from) {
    quay_buffer *source = make_source((source_kind)from, blocks, source_path, size);
    const uint64_t part = quay_buffer_size(source);
    expect_truncated(quay_buffer_copy_region(buffer, size - part, source, 0, part, NULL), path);
    quay_buffer_release(source);
  }
  quay_allocator_release(blocks);
}

Test(mmap_copy, truncated_destination_is_an_io_error_for_every_source, .timeout = 100) {
  each_truncation(copy_from_sources_truncated, true);
}

static void overlap_truncated(quay_buffer *buffer, const char *path, uint64_t size) {
  expect_truncated(quay_buffer_copy_region(buffer, 0, buffer, 1, size - 1, NULL), path);
  expect_truncated(quay_buffer_copy_region(buffer, 1, buffer, 0, size - 1, NULL), path);
}

Test(mmap_copy, truncated_overlapping_copy_is_an_io_error) {
  each_truncation(overlap_truncated, true);
}

static void item_truncated(quay_buffer *buffer, const char *path, uint64_t size) {
  uint8_t value = 0;
  quay_buffer *view = NULL;
  TEST_OK(quay_buffer_view(buffer, size - 1, 1, &view));
  expect_truncated(quay_buffer_item(view, QUAY_U8, &value), path);
  quay_buffer_release(view);
}

Test(mmap_copy, truncated_item_is_an_io_error) {
  each_truncation(item_truncated, false);
}

Test(mmap_copy, truncated_flush_of_a_shared_mapping_is_an_io_error) {
  const char *path = test_file("cut", 10000, 3);
  quay_buffer *buffer = test_map(path, QUAY_MAP_SHARED);
  test_truncate(path, 100);
  expect_truncated(quay_buffer_flush(buffer), path);
  quay_buffer_release(buffer);
}

Test(mmap_copy, truncated_direct_read_is_an_io_error) {
  FOR_EACH(uint64_t, cut, cuts) {
    const char *path = test_file("cut", 2 * PIECE + 12345, 3);
    quay_buffer *buffer = map_direct(path, 0);
    test_truncate(path, *cut);
    copy_out_truncated(buffer, path, 2 * PIECE + 12345);
    quay_buffer_release(buffer);
  }
}

Test(mmap_copy, truncated_file_behind_an_adopted_mapping_is_an_io_error) {
  FOR_EACH(quay_map_mode, mode, modes) {
    const char *path = test_file("cut", 3 * MIB, 3);
    const int file = open(path, O_RDWR);
    const int flags = *mode == QUAY_MAP_COPY_ON_WRITE ? MAP_PRIVATE : MAP_SHARED;
    void *address = mmap(NULL, 3 * MIB, PROT_READ | PROT_WRITE, flags, file, 0);
    quay_raw_buffer raw;
    quay_buffer *buffer = NULL;
    TEST_OK(quay_mmap_adopt(address, 3 * MIB, *mode, file, 0, NULL, NULL, &raw));
    TEST_OK(quay_buffer_from_raw(&raw, QUAY_U8, 1, (int64_t[]){3 * MIB}, &buffer));
    cr_assert(test_buffer_is(buffer, 0, 3));
    test_truncate(path, 100);
    uint8_t *memory = malloc(3 * MIB);
    test_expect_error(quay_buffer_copy_out(buffer, memory, 3 * MIB), QUAY_STATUS_IO, NULL,
                      "truncated");
    free(memory);
    quay_buffer_release(buffer);
    munmap(address, 3 * MIB);
    close(file);
  }
}

Test(mmap_copy, a_file_that_has_grown_is_read_as_it_was_mapped) {
  FOR_EACH(quay_map_mode, mode, modes) {
    const char *path = test_file("a", 5000, 3);
    quay_buffer *buffer = test_map(path, *mode);
    test_truncate(path, 3 * MIB);
    cr_assert(test_buffer_is(buffer, 0, 3));
    quay_buffer_release(buffer);
  }
}

Test(mmap_copy, works_again_once_the_file_has_its_size_back) {
  const char *path = test_file("cut", 10000, 3);
  quay_buffer *buffer = test_map(path, QUAY_MAP_READ_ONLY);
  uint8_t memory[10000];
  test_truncate(path, 100);
  expect_truncated(quay_buffer_copy_out(buffer, memory, 10000), path);
  test_file("cut", 10000, 6);
  cr_assert(test_buffer_is(buffer, 0, 6));
  quay_buffer_release(buffer);
}

typedef struct cutter {
  const char *path;
  uint64_t size;
  atomic_bool stop;
} cutter;

static void *cut_and_grow(void *user) {
  cutter *self = user;
  while (!atomic_load(&self->stop)) {
    (void)!truncate(self->path, 4096);
    (void)!truncate(self->path, (off_t)self->size);
  }
  return NULL;
}

Test(mmap_copy, truncation_while_copies_run_is_an_error_or_harmless, .timeout = 100) {
  cutter self = {.path = test_file("cut", 6 * MIB, 3), .size = 6 * MIB};
  pthread_t thread;
  quay_buffer *target = test_buffer(NULL, 6 * MIB, 1);
  quay_buffer *buffers[3];
  for (int i = 0; i < 3; ++i)
    buffers[i] = test_map(self.path, modes[i]);
  cr_assert_eq(pthread_create(&thread, NULL, cut_and_grow, &self), 0);
  for (int i = 0; i < 150; ++i) {
    const quay_status status = quay_buffer_copy_from(target, buffers[i % 3]);
    cr_assert(status == QUAY_OK || status == QUAY_STATUS_IO, "%s", quay_last_error()->message);
  }
  atomic_store(&self.stop, true);
  pthread_join(thread, NULL);
  for (int i = 0; i < 3; ++i)
    quay_buffer_release(buffers[i]);
  quay_buffer_release(target);
}

typedef struct reader {
  quay_buffer *source;
  bool same;
} reader;

static void *read_all(void *user) {
  reader *self = user;
  self->same = test_buffer_is(self->source, 0, 3);
  return NULL;
}

Test(mmap_copy, threads_copy_from_one_mapping_at_once) {
  reader readers[4];
  pthread_t threads[4];
  quay_buffer *source = test_map(test_file("a", PIECE + 77, 3), QUAY_MAP_READ_ONLY);
  for (int i = 0; i < 4; ++i) {
    readers[i] = (reader){.source = source};
    cr_assert_eq(pthread_create(&threads[i], NULL, read_all, &readers[i]), 0);
  }
  for (int i = 0; i < 4; ++i) {
    pthread_join(threads[i], NULL);
    cr_assert(readers[i].same);
  }
  quay_buffer_release(source);
}
