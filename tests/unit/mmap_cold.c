/* Large reads of files that are not in the page cache: how that is told, and that many threads read
 * them in small pieces, each along a stretch of its own, and leave the file in the page cache. */
#include "unit/cold_fixture.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "support/manual_device.h"

#define SIZE (9 * MIB + 12345)

TestSuite(mmap_cold, .init = test_files_begin, .fini = test_files_end);

/* Reads `size` bytes from an odd place on, and checks them. */
static void read_and_check(quay_buffer *file, uint64_t offset, uint64_t size) {
  quay_buffer *window = NULL;
  TEST_OK(quay_buffer_view(file, offset, size, &window));
  uint8_t *memory = malloc(size);
  memset(memory, 0xEE, size);
  TEST_OK(quay_buffer_copy_out(window, memory, size));
  cr_assert(test_matches(memory, size, offset, 3));
  free(memory);
  quay_buffer_release(window);
}

static void read_large(void) {
  quay_buffer *file = test_map(test_file("a", SIZE, 3), QUAY_MAP_READ_ONLY);
  read_and_check(file, 991, SIZE - 991);
  quay_buffer_release(file);
}

static void expect_cold(void) {
  cr_assert_geq(atomic_load(&fake.buffered), 9);
  cr_assert_leq(atomic_load(&fake.longest_read), (int)(MIB + 4096));
}

static void expect_warm(void) {
  cr_assert_gt(atomic_load(&fake.cached_calls), 1);
}

Test(mmap_cold, a_missing_file_is_read_in_pieces_of_a_megabyte_by_two_threads) {
  setenv("QUAY_COPY_THREADS", "2", 1);
  atomic_store(&fake.mincore, NONE_THERE);
  read_large();
  expect_cold();
}

Test(mmap_cold, a_missing_file_is_read_in_pieces_of_a_megabyte_by_one_thread) {
  setenv("QUAY_COPY_THREADS", "1", 1);
  atomic_store(&fake.mincore, NONE_THERE);
  read_large();
  expect_cold();
}

#define ENOUGH (20 * MIB) /* for as many pieces as there are threads */

static void check_threads(bool direct) {
  unsetenv("QUAY_COPY_THREADS");
  atomic_store(&fake.mincore, NONE_THERE);
  quay_buffer *file = NULL;
  TEST_OK(quay_map_file(test_file("a", ENOUGH, 3), &(quay_map_options){.direct = direct}, &file));
  atomic_store(&fake.wanted, 16);
  read_and_check(file, 0, ENOUGH);
  cr_assert_eq(atomic_load(&fake.most), 16);
  quay_buffer_release(file);
}

Test(mmap_cold, sixteen_threads_wait_for_a_disk_however_few_processors_there_are) {
  check_threads(false);
}

Test(mmap_cold, as_many_wait_for_direct_io) {
  check_threads(true);
}

static void check_stretches(bool direct) {
  setenv("QUAY_COPY_THREADS", "2", 1);
  atomic_store(&fake.mincore, NONE_THERE);
  quay_buffer *file = map_one(test_file("a", ENOUGH, 3), direct);
  atomic_store(&fake.wanted, 2);
  read_and_check(file, 0, ENOUGH);
  /* It begins where a page of the memory does. */
  const uint64_t half = atomic_load(&fake.farthest);
  cr_assert(half >= ENOUGH / 2 && half < ENOUGH / 2 + 4096, "%llu", (unsigned long long)half);
  quay_buffer_release(file);
}

Test(mmap_cold, each_of_two_threads_reads_a_half) {
  check_stretches(false);
}

Test(mmap_cold, each_of_two_threads_reads_a_half_with_direct_io) {
  check_stretches(true);
}

/* A device that writes to a page which is copied for a child meanwhile may write to the child's. */

typedef struct reading {
  quay_buffer *file;
  atomic_bool done;
} reading;

static void *read_all(void *user) {
  reading *job = user;
  read_and_check(job->file, 0, ENOUGH);
  atomic_store(&job->done, true);
  return NULL;
}

Test(mmap_cold, a_fork_waits_for_direct_io, .timeout = 120) {
  atomic_store(&fake.mincore, NONE_THERE);
  reading job = {.file = map_one(test_file("a", ENOUGH, 3), true)};
  atomic_store(&fake.direct_lasts, 20);
  pthread_t thread;
  cr_assert_eq(pthread_create(&thread, NULL, read_all, &job), 0);
  int forks = 0;
  while (!atomic_load(&job.done)) {
    if (atomic_load(&fake.in_direct) == 0)
      continue;
    const pid_t child = fork();
    if (child == 0)
      _exit(atomic_load(&fake.in_direct)); /* as it was when the pages were copied */
    int status;
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%d threads were at it",
              WEXITSTATUS(status));
    forks++;
  }
  pthread_join(thread, NULL);
  cr_assert_gt(forks, 0);
  quay_buffer_release(job.file);
}

static bool count_calls(void *user, uint64_t done, uint64_t total) {
  cr_assert_leq(done, total);
  ++*(int *)user;
  return true;
}

/* What is told of is cut into slices, but not so small that stretches are. */
Test(mmap_cold, each_of_two_threads_reads_a_half_of_what_is_told_of_at_a_time) {
  const uint64_t size = 300 * MIB;
  setenv("QUAY_COPY_THREADS", "2", 1);
  atomic_store(&fake.mincore, NONE_THERE);
  quay_buffer *file = NULL;
  const quay_map_options mapping = {.buffered = true};
  TEST_OK(quay_map_file(test_sparse_file("a", size), &mapping, &file));
  quay_buffer *memory = test_buffer(NULL, size, 4);
  int calls = 0;
  const quay_copy_options options = {.progress = count_calls, .progress_user = &calls};
  quay_copy_plan_info plan;
  TEST_OK(quay_copy_plan(memory, 0, file, 0, size, &options, &plan));
  cr_assert_eq(plan.chunk, MIB);
  atomic_store(&fake.wanted, 2);
  TEST_OK(quay_buffer_copy_region(memory, 0, file, 0, size, &options));
  cr_assert_eq(calls, 2);
  cr_assert_eq(atomic_load(&fake.farthest), 32 * MIB);
  cr_assert_eq(atomic_load(&fake.buffered), (int)(size / MIB));
  const unsigned char *bytes = NULL;
  TEST_OK(quay_buffer_host_bytes(memory, (const void **)&bytes, NULL));
  cr_assert(bytes[0] == 0 && memcmp(bytes, bytes + 1, size - 1) == 0);
  quay_buffer_release(memory);
  quay_buffer_release(file);
}

/* Into another file, where the kernel can't write for itself: memory in between. */
static void copy_to_mapping(quay_buffer *file, uint64_t offset, uint64_t size, const char *name) {
  quay_buffer *to = NULL;
  TEST_OK(quay_file_create(test_path(name), size, NULL, &to));
  quay_copy_plan_info plan = plan_of(to, file, offset, size, 0);
  cr_assert_eq(plan.chunk, MIB);
  cr_assert_eq(plan.threads, 4);
  cr_assert_eq(plan.staging_bytes, 4 * MIB);
  atomic_store(&fake.most, 0);
  atomic_store(&fake.direct, 0);
  atomic_store(&fake.wanted, 4);
  TEST_OK(quay_buffer_copy_region(to, 0, file, offset, size, NULL));
  cr_assert_eq(atomic_load(&fake.most), 4, "%d readers", atomic_load(&fake.most));
  cr_assert_geq(atomic_load(&fake.direct), (int)(size / MIB));
  atomic_store(&fake.wanted, 0);
  cr_assert(test_buffer_is(to, offset, 3));
  quay_buffer_release(to);
}

Test(mmap_cold, four_threads_copy_with_direct_io_into_another_file) {
  unsetenv("QUAY_COPY_THREADS");
  quay_buffer *file = map_direct(test_file("a", ENOUGH, 3));
  atomic_store(&fake.mincore, NONE_THERE);
  copy_to_mapping(file, 0, ENOUGH, "to");
  copy_to_mapping(file, 991, ENOUGH - 1234, "odd");
  quay_buffer_release(file);
}

Test(mmap_cold, they_take_no_more_memory_than_the_caller_allows) {
  quay_buffer *file = map_direct(test_file("a", ENOUGH, 3)), *to = NULL;
  TEST_OK(quay_file_create(test_path("to"), ENOUGH, NULL, &to));
  atomic_store(&fake.mincore, NONE_THERE);
  static const uint64_t allowed[] = {4096, 12345, MIB, 2 * MIB + 1, 4 * MIB, 9 * MIB};
  for (size_t i = 0; i < sizeof allowed / sizeof allowed[0]; i++) {
    const quay_copy_options options = {.max_staging_bytes = allowed[i]};
    quay_copy_plan_info plan;
    TEST_OK(quay_copy_plan(to, 0, file, 0, ENOUGH, &options, &plan));
    cr_assert_leq(plan.staging_bytes, allowed[i]);
    const uint64_t whole = allowed[i] < 4 * MIB ? allowed[i] / MIB * MIB : 4 * MIB;
    cr_assert_geq(plan.staging_bytes, allowed[i] < MIB ? allowed[i] : whole);
    TEST_OK(quay_buffer_fill(to, "x", 1));
    atomic_store(&fake.most, 0);
    atomic_store(&fake.longest_read, 0);
    TEST_OK(quay_buffer_copy_region(to, 0, file, 0, ENOUGH, &options));
    const uint64_t most = (uint64_t)atomic_load(&fake.most);
    const uint64_t longest = (uint64_t)atomic_load(&fake.longest_read);
    cr_assert_leq(most * longest, allowed[i]);
    cr_assert(test_buffer_is(to, 0, 3));
  }
  quay_buffer_release(to);
  quay_buffer_release(file);
}

Test(mmap_cold, an_error_of_one_of_them_is_told) {
  quay_buffer *file = map_direct(test_file("a", ENOUGH, 3)), *to = NULL;
  TEST_OK(quay_file_create(test_path("to"), ENOUGH, NULL, &to));
  atomic_store(&fake.mincore, NONE_THERE);
  atomic_store(&fake.read_error, EIO);
  test_expect_error(quay_buffer_copy_from(to, file), QUAY_STATUS_IO, "EIO", "reading");
  atomic_store(&fake.read_error, 0);
  TEST_OK(quay_buffer_copy_from(to, file));
  cr_assert(test_buffer_is(to, 0, 3));
  quay_buffer_release(to);
  quay_buffer_release(file);
}

Test(mmap_cold, direct_io_goes_in_pieces_of_half_a_megabyte_where_there_are_few) {
  setenv("QUAY_COPY_THREADS", "4", 1);
  atomic_store(&fake.mincore, NONE_THERE);
  quay_buffer *file = map_direct(test_file("a", SIZE, 3));
  read_and_check(file, 991, SIZE - 991);
  cr_assert_leq(atomic_load(&fake.longest_read), (int)(MIB / 2 + 4096));
  quay_buffer_release(file);
}

Test(mmap_cold, what_is_in_the_page_cache_is_read_from_there_in_spite_of_direct_io) {
  atomic_store(&fake.mincore, ALL_THERE);
  quay_buffer *file = map_direct(test_file("a", SIZE, 3));
  read_and_check(file, 991, SIZE - 991);
  expect_warm();
  quay_buffer_release(file);
}

/* What comes before the first place that direct I/O can start from is read by another call. */
Test(mmap_cold, an_error_of_the_disk_is_told_wherever_direct_io_meets_it) {
  quay_buffer *file = map_direct(test_file("a", SIZE, 3));
  unsigned char *memory = malloc(MIB);
  atomic_store(&fake.mincore, NONE_THERE);
  atomic_store(&fake.read_error, EIO);
  for (uint64_t offset = 0; offset < 2; offset++) {
    quay_buffer *window = NULL;
    TEST_OK(quay_buffer_view(file, offset, MIB, &window));
    test_expect_error(quay_buffer_copy_out(window, memory, MIB), QUAY_STATUS_IO, "EIO", "reading");
    quay_buffer_release(window);
  }
  free(memory);
  quay_buffer_release(file);
}

Test(mmap_cold, a_file_that_the_page_cache_cannot_keep_is_read_with_direct_io) {
  quay_buffer *file = map_huge();
  atomic_store(&fake.mincore, NONE_THERE);
  copy_of_huge(file, NULL, 0, HUGE_DATA);
  cr_assert_geq(atomic_load(&fake.direct), 40);
  cr_assert_eq(atomic_load(&fake.buffered), 0);
  copy_of_huge(file, NULL, 12345, 8 * MIB);
  cr_assert_geq(atomic_load(&fake.direct), 55);
  quay_buffer_release(file);
}

Test(mmap_cold, small_ranges_of_it_are_wanted_again) {
  quay_buffer *file = map_huge();
  atomic_store(&fake.mincore, NONE_THERE);
  copy_of_huge(file, NULL, 991, 100 * KIB);
  copy_of_huge(file, NULL, 4096, 8 * MIB - 1);
  cr_assert_eq(atomic_load(&fake.direct), 0);
  cr_assert_gt(atomic_load(&fake.buffered), 1);
  quay_buffer_release(file);
}

Test(mmap_cold, what_the_page_cache_has_of_it_is_read_from_there) {
  quay_buffer *file = map_huge();
  atomic_store(&fake.mincore, ALL_THERE);
  copy_of_huge(file, NULL, 0, HUGE_DATA);
  cr_assert_eq(atomic_load(&fake.direct), 0);
  expect_warm();
  quay_buffer_release(file);
}

Test(mmap_cold, a_file_that_the_page_cache_can_just_keep_is_read_through_it) {
  quay_buffer_release(map_huge());
  atomic_store(&fake.available, HUGE_SIZE);
  quay_buffer *file = test_map(test_path("huge"), QUAY_MAP_READ_ONLY);
  atomic_store(&fake.mincore, NONE_THERE);
  copy_of_huge(file, NULL, 0, HUGE_DATA);
  cr_assert_eq(atomic_load(&fake.direct), 0);
  cr_assert_geq(atomic_load(&fake.buffered), 20);
  quay_buffer_release(file);
}

Test(mmap_cold, whoever_asks_for_direct_io_has_it_for_small_ranges_of_it_as_well) {
  quay_buffer *file = map_huge(), *direct = map_direct(test_path("huge"));
  atomic_store(&fake.mincore, NONE_THERE);
  copy_of_huge(direct, NULL, 4096, MIB);
  cr_assert_gt(atomic_load(&fake.direct), 0);
  cr_assert_eq(atomic_load(&fake.buffered), 0);
  quay_buffer_release(direct);
  quay_buffer_release(file);
}

Test(mmap_cold, private_mappings_of_it_are_read_as_ever) {
  quay_buffer_release(map_huge());
  quay_buffer *file = test_map(test_path("huge"), QUAY_MAP_COPY_ON_WRITE);
  copy_of_huge(file, NULL, 77, HUGE_DATA - 77);
  cr_assert_eq(atomic_load(&fake.direct), 0);
  quay_buffer_release(file);
}

/* Which way is faster. */

Test(mmap_cold, direct_io_is_taken_by_itself_where_it_is_far_faster, .timeout = 120) {
  check_choice(NULL, 120, 5, true);
}

Test(mmap_cold, the_page_cache_is_filled_where_that_is_faster, .timeout = 120) {
  check_choice(NULL, 0, 30, false);
}

Test(mmap_cold, and_where_direct_io_is_not_twice_as_fast, .timeout = 120) {
  check_choice(NULL, 60, 40, false);
}

Test(mmap_cold, whoever_wants_the_page_cache_filled_has_it, .timeout = 120) {
  const quay_map_options options = {.buffered = true};
  quay_buffer_release(map_large());
  quay_buffer *file = NULL;
  TEST_OK(quay_map_file(test_path("large"), &options, &file));
  atomic_store(&fake.mincore, NONE_THERE);
  atomic_store(&fake.buffered_lasts, 20);
  read_region(file, NULL, 0, TRIAL);
  cr_assert_eq(atomic_load(&fake.direct), 0);
  quay_buffer_release(file);
  atomic_store(&fake.available, LARGE_SIZE - 1);
  TEST_OK(quay_map_file(test_path("large"), &options, &file));
  read_region(file, NULL, 0, 20 * MIB);
  cr_assert_eq(atomic_load(&fake.direct), 0);
  quay_buffer_release(file);
}

Test(mmap_cold, smaller_files_and_what_is_there_take_no_part, .timeout = 120) {
  quay_buffer *file = test_map(test_file("small", TRIAL, 3), QUAY_MAP_READ_ONLY);
  atomic_store(&fake.mincore, NONE_THERE);
  read_region(file, NULL, 0, TRIAL);
  quay_buffer_release(file);
  file = map_large();
  atomic_store(&fake.mincore, ALL_THERE);
  read_region(file, NULL, 0, TRIAL);
  atomic_store(&fake.mincore, NONE_THERE);
  for (uint64_t offset = 0; offset < 140 * MIB; offset += 7 * MIB)
    read_region(file, NULL, offset, 7 * MIB);
  cr_assert_eq(atomic_load(&fake.direct), 0);
  quay_buffer_release(file);
}

Test(mmap_cold, an_error_while_it_is_found_out_is_told_and_forgotten, .timeout = 120) {
  quay_buffer *file = map_large();
  unsigned char *memory = malloc(TRIAL);
  atomic_store(&fake.mincore, NONE_THERE);
  atomic_store(&fake.read_error, EIO);
  quay_buffer *window = NULL;
  TEST_OK(quay_buffer_view(file, 0, TRIAL, &window));
  for (int i = 0; i < 100; i++) {
    test_expect_error(quay_buffer_copy_out(window, memory, TRIAL), QUAY_STATUS_IO, "EIO",
                      "reading");
  }
  quay_buffer_release(window);
  quay_buffer_release(file);
  free(memory);
  atomic_store(&fake.read_error, 0);
  forget_reads();
  check_choice(NULL, 120, 5, true);
}

static bool tries_both(quay_buffer *file) {
  forget_reads();
  read_region(file, NULL, 4096, TRIAL + 5 * MIB);
  return atomic_load(&fake.buffered) >= 60 && atomic_load(&fake.direct) >= 60;
}

Test(mmap_cold, a_child_of_fork_begins_anew_to_find_out, .timeout = 120) {
  quay_buffer *file = map_large();
  atomic_store(&fake.mincore, NONE_THERE);
  read_region(file, NULL, 0, 100 * MIB);
  const pid_t child = fork();
  if (child == 0)
    _exit(tries_both(file) ? 0 : 1);
  int status;
  cr_assert_eq(waitpid(child, &status, 0), child);
  cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  quay_buffer_release(file);
}

Test(mmap_cold, both_at_once_are_refused) {
  quay_buffer *file = NULL;
  const quay_map_options options = {.direct = true, .buffered = true};
  test_expect_error(quay_map_file(test_file("a", 100, 1), &options, &file),
                    QUAY_STATUS_INVALID_ARGUMENT, "", "buffered");
}

Test(mmap_cold, no_more_threads_wait_for_a_disk_than_the_environment_allows) {
  setenv("QUAY_COPY_THREADS", "2", 1);
  atomic_store(&fake.mincore, NONE_THERE);
  atomic_store(&fake.wanted, 3);
  atomic_store(&fake.patience, 100);
  read_large();
  cr_assert_eq(atomic_load(&fake.most), 2);
}

/* Each such question begins to read, a few pages at a time. */
Test(mmap_cold, a_missing_file_is_not_asked_for_by_reading) {
  atomic_store(&fake.mincore, NONE_THERE);
  read_large();
  cr_assert_eq(atomic_load(&fake.cached_calls), 0);
}

Test(mmap_cold, one_question_tells_where_the_system_hides_what_is_missing) {
  setenv("QUAY_COPY_THREADS", "2", 1);
  atomic_store(&fake.mincore, ALL_THERE);
  atomic_store(&fake.cached_error, EAGAIN);
  read_large();
  expect_cold();
  cr_assert_eq(atomic_load(&fake.cached_calls), 1);
}

Test(mmap_cold, a_file_of_which_a_little_is_missing_is_read_as_one_that_is_there) {
  atomic_store(&fake.mincore, FIRST_MISSING);
  read_large();
  expect_warm();
}

Test(mmap_cold, a_file_that_is_there_is_read_as_such) {
  atomic_store(&fake.mincore, ALL_THERE);
  read_large();
  expect_warm();
}

Test(mmap_cold, a_system_that_cannot_tell_is_believed_to_have_the_file) {
  setenv("QUAY_COPY_THREADS", "2", 1);
  atomic_store(&fake.mincore, CANNOT_TELL);
  read_large();
  expect_warm();
  atomic_store(&fake.cached_error, EOPNOTSUPP);
  read_large();
  cr_assert_gt(atomic_load(&fake.longest_read), (int)(2 * MIB));
}

Test(mmap_cold, few_places_of_a_long_file_are_looked_at) {
  atomic_store(&fake.mincore, NONE_THERE);
  const uint64_t size = 272 * MIB;
  quay_buffer *file = test_map(test_sparse_file("a", size), QUAY_MAP_READ_ONLY);
  uint8_t *memory = malloc(size);
  memset(memory, 0xEE, size);
  TEST_OK(quay_buffer_copy_out(file, memory, size));
  cr_assert(memory[0] == 0 && memcmp(memory, memory + 1, size - 1) == 0);
  cr_assert_leq(atomic_load(&fake.asked), 64);
  free(memory);
  quay_buffer_release(file);
}

/* Plans. */

static void expect_plan(bool direct, uint32_t max_threads, uint32_t threads, uint64_t chunk) {
  quay_buffer *file = map_one(test_file("a", ENOUGH, 3), direct);
  quay_buffer *memory = test_buffer(NULL, ENOUGH, 4);
  const quay_copy_plan_info plan = plan_of(memory, file, 0, ENOUGH, max_threads);
  cr_assert_eq(plan.threads, threads, "%u threads", plan.threads);
  cr_assert_eq(plan.chunk, chunk, "chunks of %llu", (unsigned long long)plan.chunk);
  quay_buffer_release(memory);
  quay_buffer_release(file);
}

Test(mmap_cold, the_plan_of_a_missing_file_tells_its_threads_and_pieces) {
  unsetenv("QUAY_COPY_THREADS");
  atomic_store(&fake.mincore, NONE_THERE);
  expect_plan(false, 0, 16, MIB);
  expect_plan(true, 0, 16, MIB / 2);
  expect_plan(false, 3, 3, MIB);
  setenv("QUAY_COPY_THREADS", "2", 1);
  expect_plan(true, 0, 2, 5 * MIB / 2);
  setenv("QUAY_COPY_THREADS", "1", 1);
  expect_plan(true, 0, 1, 4 * MIB);
}

Test(mmap_cold, the_plan_of_a_file_that_is_there_is_another_one) {
  setenv("QUAY_COPY_THREADS", "2", 1);
  atomic_store(&fake.mincore, ALL_THERE);
  expect_plan(false, 0, 2, 4 * MIB);
  expect_plan(true, 0, 2, 4 * MIB);
}

Test(mmap_cold, a_plan_looks_at_the_bytes_that_it_is_about) {
  setenv("QUAY_COPY_THREADS", "2", 1);
  quay_buffer *file = test_map(test_file("a", 2 * ENOUGH, 3), QUAY_MAP_READ_ONLY);
  quay_buffer *memory = test_buffer(NULL, ENOUGH, 4);
  const void *start = NULL;
  TEST_OK(quay_buffer_host_bytes(file, &start, NULL));
  atomic_store(&fake.there_from, (uintptr_t)start + ENOUGH);
  atomic_store(&fake.mincore, END_THERE);
  cr_assert_eq(plan_of(memory, file, 0, ENOUGH, 0).chunk, MIB);
  cr_assert_eq(plan_of(memory, file, ENOUGH, ENOUGH, 0).chunk, 4 * MIB);
  quay_buffer_release(memory);
  quay_buffer_release(file);
}

/* Small ranges of a file that is mapped for direct I/O. */

static void read_small_ranges(quay_buffer *file) {
  static const uint64_t sizes[] = {64 * KIB, 256 * KIB + 1, MIB, 3 * MIB + 7, 7 * MIB + 4096};
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    read_and_check(file, 4096, sizes[i]);
    read_and_check(file, 991, sizes[i]);
  }
}

Test(mmap_cold, small_ranges_that_are_there_are_not_read_with_direct_io) {
  atomic_store(&fake.mincore, ALL_THERE);
  quay_buffer *file = map_direct(test_file("a", SIZE, 3));
  read_small_ranges(file);
  cr_assert_eq(atomic_load(&fake.direct), 0);
  cr_assert_gt(atomic_load(&fake.buffered), 0);
  quay_buffer_release(file);
}

Test(mmap_cold, small_ranges_that_are_missing_are_read_with_direct_io) {
  atomic_store(&fake.mincore, NONE_THERE);
  quay_buffer *file = map_direct(test_file("a", SIZE, 3));
  read_small_ranges(file);
  cr_assert_eq(atomic_load(&fake.buffered), 0);
  cr_assert_eq(atomic_load(&fake.cached_calls), 0);
  quay_buffer_release(file);
}

Test(mmap_cold, small_ranges_that_the_system_hides_are_read_with_direct_io) {
  atomic_store(&fake.mincore, ALL_THERE);
  atomic_store(&fake.cached_error, EAGAIN);
  quay_buffer *file = map_direct(test_file("a", SIZE, 3));
  read_and_check(file, 4096, MIB);
  cr_assert_eq(atomic_load(&fake.buffered), 0);
  cr_assert_gt(atomic_load(&fake.direct), 0);
  quay_buffer_release(file);
}

Test(mmap_cold, one_question_tells_whether_a_small_range_is_there) {
  atomic_store(&fake.mincore, ALL_THERE);
  quay_buffer *file = map_direct(test_file("a", SIZE, 3));
  read_and_check(file, 4096, MIB);
  cr_assert_eq(atomic_load(&fake.asked), 1);
  cr_assert_eq(atomic_load(&fake.cached_calls), 1);
  read_and_check(file, 4096, 63 * KIB); /* too little for direct I/O anyway */
  cr_assert_eq(atomic_load(&fake.asked), 1);
  quay_buffer_release(file);
}

static void check_truncated(answer there, bool direct, uint64_t size) {
  quay_buffer *file = map_one(test_file("a", SIZE, 3), direct);
  quay_buffer *window = NULL;
  uint8_t *memory = malloc(size);
  TEST_OK(quay_buffer_view(file, 4096, size, &window));
  atomic_store(&fake.mincore, there);
  test_truncate(test_path("a"), 4096 + size / 2);
  test_expect_error(quay_buffer_copy_out(window, memory, size), QUAY_STATUS_IO, "", "a");
  free(memory);
  quay_buffer_release(window);
  quay_buffer_release(file);
}

Test(mmap_cold, a_file_that_was_truncated_is_an_error_in_every_way_to_read) {
  static const answer answers[] = {NONE_THERE, ALL_THERE};
  for (size_t i = 0; i < 2; i++) {
    check_truncated(answers[i], false, 9 * MIB);
    check_truncated(answers[i], true, 9 * MIB);
    check_truncated(answers[i], true, MIB);
  }
}

/* Staged to memory that has no address, by calls; devices that page-lock are in cuda_cold.c. */

Test(mmap_cold, a_missing_file_is_staged_by_as_many_threads_in_such_pieces) {
  unsetenv("QUAY_COPY_THREADS");
  atomic_store(&fake.mincore, NONE_THERE);
  quay_allocator *device = manual_open(&(manual_options){0});
  quay_buffer *file = test_map(test_file("a", ENOUGH, 3), QUAY_MAP_READ_ONLY);
  quay_buffer *there = test_buffer(device, ENOUGH, 4);
  const quay_copy_plan_info plan = plan_of(there, file, 0, ENOUGH, 0);
  cr_assert_eq(plan.route, QUAY_ROUTE_STAGED);
  cr_assert_eq(plan.threads, 16);
  cr_assert_eq(plan.chunk, MIB);
  cr_assert_eq(plan.staging_bytes, ENOUGH);
  atomic_store(&fake.patience, 300); /* the first one is alone, until there are more slots */
  atomic_store(&fake.wanted, 15);    /* and the one that empties slots */
  TEST_OK(quay_buffer_copy_from(there, file));
  atomic_store(&fake.wanted, 0);
  cr_assert_geq(atomic_load(&fake.most), 15);
  cr_assert(test_buffer_is(there, 0, 3));
  quay_buffer_release(there);
  quay_buffer_release(file);
  quay_allocator_release(device);
}

Test(mmap_cold, a_file_that_is_there_is_staged_as_ever) {
  setenv("QUAY_COPY_THREADS", "8", 1);
  atomic_store(&fake.mincore, ALL_THERE);
  quay_allocator *device = manual_open(&(manual_options){0});
  quay_buffer *file = test_map(test_file("a", 2 * ENOUGH, 3), QUAY_MAP_READ_ONLY);
  quay_buffer *there = test_buffer(device, 2 * ENOUGH, 4);
  const quay_copy_plan_info plan = plan_of(there, file, 0, 2 * ENOUGH, 0);
  cr_assert_eq(plan.threads, 4);
  cr_assert_eq(plan.chunk, 4 * MIB);
  cr_assert_eq(plan.staging_bytes, 16 * MIB);
  quay_buffer_release(there);
  quay_buffer_release(file);
  quay_allocator_release(device);
}

/* Beyond 4 GiB. */

Test(mmap_cold, windows_across_four_gib_are_read_into_memory) {
  check_beyond(NULL, false);
}

Test(mmap_cold, windows_across_four_gib_are_read_with_direct_io) {
  check_beyond(NULL, true);
}

/* Afterwards. */

static uint64_t pages_there(const char *path, uint64_t size) {
  const int file = open(path, O_RDONLY);
  void *mapped = mmap(NULL, size, PROT_READ, MAP_SHARED, file, 0);
  unsigned char *resident = malloc(size / quay__os_page_size() + 1);
  cr_assert_eq(mincore(mapped, size, resident), 0);
  uint64_t count = 0;
  for (uint64_t i = 0; i <= (size - 1) / quay__os_page_size(); i++)
    count += resident[i] & 1;
  munmap(mapped, size);
  close(file);
  free(resident);
  return count;
}

Test(mmap_cold, the_page_cache_has_the_file_afterwards) {
  const char *path = test_file("a", SIZE, 3);
  const int descriptor = open(path, O_RDONLY);
  cr_assert_eq(fsync(descriptor), 0);
  cr_assert_eq(posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED), 0);
  close(descriptor);
  quay_buffer *file = test_map(path, QUAY_MAP_READ_ONLY);
  read_and_check(file, 0, SIZE);
  /* The system may take a few pages away meanwhile. */
  cr_assert_gt(pages_there(path, SIZE), (SIZE - SIZE / 10) / quay__os_page_size());
  quay_buffer_release(file);
}
