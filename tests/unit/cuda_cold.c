/* Staged copies to the simulated CUDA driver of files that are not in the page cache: the threads
 * and pieces that the plan tells are those that read, within what the caller allows; with direct
 * I/O, what is in the page cache is read from there. */
#include "unit/cold_fixture.h"

#include "core/copy_threads.h"
#include "core/staging_tuning.h"
#include "sim_cuda/control.h"
#include "support/pattern.h"

#define SIZE (24 * MIB) /* chunks of 1 MiB, for 16 threads */

static void setup(void) {
  cr_assert_not_null(simcuda_control_get(), "the test needs the simulated driver");
  unsetenv("QUAY_COPY_THREADS");
  test_files_begin();
}

static void teardown(void) {
  MUST(quay_shutdown());
  simcuda_violation violation = {.message = ""};
  cr_expect_eq(simcuda_control_get()->violations(&violation, 1), 0u, "%s", violation.message);
  test_files_end();
}

TestSuite(cuda_cold, .init = setup, .fini = teardown);

typedef struct sides {
  quay_allocator *device;
  quay_buffer *file, *there;
} sides;

/* The page cache says what `there` is from then on. */
static sides open_sides(answer there, bool direct) {
  sides both = {.device = open_spec("cuda:0")};
  both.file = map_one(test_file("in", SIZE, 3), direct);
  both.there = pattern_buffer(both.device, SIZE, 1);
  atomic_store(&fake.mincore, there);
  return both;
}

static void close_sides(const sides *both) {
  quay_buffer_release(both->file);
  quay_buffer_release(both->there);
  quay_allocator_release(both->device);
}

static void check_plan(const sides *both, uint32_t max_threads, uint32_t threads, uint64_t chunk,
                       uint64_t slots) {
  const quay_copy_plan_info plan = plan_of(both->there, both->file, 0, SIZE, max_threads);
  cr_assert_eq(plan.route, QUAY_ROUTE_STAGED);
  cr_assert_eq(plan.threads, threads, "%u threads", plan.threads);
  cr_assert_eq(plan.chunk, chunk, "chunks of %llu", (unsigned long long)plan.chunk);
  cr_assert_eq(plan.staging_bytes, chunk * slots, "%llu bytes",
               (unsigned long long)plan.staging_bytes);
}

Test(cuda_cold, a_missing_file_has_sixteen_threads_and_a_slot_for_each_piece) {
  const sides both = open_sides(NONE_THERE, false);
  check_plan(&both, 0, 16, MIB, 24);
  close_sides(&both);
}

Test(cuda_cold, direct_io_has_smaller_slots_two_for_each_thread) {
  const sides both = open_sides(NONE_THERE, true);
  check_plan(&both, 0, 16, MIB / 2, 32);
  close_sides(&both);
}

Test(cuda_cold, a_file_that_is_there_has_the_threads_and_slots_of_any_other_copy) {
  setenv("QUAY_COPY_THREADS", "4", 1);
  const sides both = open_sides(ALL_THERE, false), direct = open_sides(ALL_THERE, true);
  check_plan(&both, 0, 4, MIB, 16);
  check_plan(&direct, 0, 4, MIB, 16);
  unsetenv("QUAY_COPY_THREADS");
  const uint32_t usual = quay__copy_threads();
  check_plan(&both, 0, usual, MIB, usual == 1 ? 8 : usual < 6 ? 4 * usual : 24);
  close_sides(&both);
  close_sides(&direct);
}

Test(cuda_cold, a_missing_file_has_no_more_threads_than_the_caller_allows) {
  const sides both = open_sides(NONE_THERE, false);
  check_plan(&both, 3, 3, MIB, 8);
  setenv("QUAY_COPY_THREADS", "2", 1);
  check_plan(&both, 0, 2, MIB, 8);
  setenv("QUAY_COPY_THREADS", "20", 1);
  check_plan(&both, 0, 20, MIB, 24);
  setenv("QUAY_COPY_THREADS", "100", 1);
  check_plan(&both, 0, 24, MIB, 24);
  close_sides(&both);
}

Test(cuda_cold, a_missing_file_has_no_more_slots_than_the_budget_allows) {
  const sides both = open_sides(NONE_THERE, false);
  setenv("QUAY_STAGING_BYTES", "4MiB", 1);
  check_plan(&both, 0, 4, MIB, 4);
  const quay_copy_options options = {.max_staging_bytes = MIB};
  quay_copy_plan_info plan;
  MUST(quay_copy_plan(both.there, 0, both.file, 0, SIZE, &options, &plan));
  cr_assert_leq(plan.staging_bytes, MIB);
  cr_assert_leq(plan.threads * plan.chunk, MIB);
  MUST(quay_buffer_copy_region(both.there, 0, both.file, 0, SIZE, &options));
  cr_assert(test_buffer_is(both.there, 0, 3));
  close_sides(&both);
}

/* Copies the file while readers wait for `wanted` others. Returns how many there were at most. The
 * first one is alone, until there is memory for more slots. */
static int count_readers(const sides *both, int wanted, uint32_t max_threads) {
  const quay_copy_options options = {.max_threads = max_threads};
  atomic_store(&fake.most, 0);
  atomic_store(&fake.wanted, wanted);
  MUST(quay_buffer_copy_region(both->there, 0, both->file, 0, SIZE, &options));
  atomic_store(&fake.wanted, 0);
  cr_assert(test_buffer_is(both->there, 0, 3));
  return atomic_load(&fake.most);
}

/* One may be at the device's side. */
Test(cuda_cold, as_many_threads_wait_for_the_disk_as_the_plan_says) {
  const sides both = open_sides(NONE_THERE, false), direct = open_sides(NONE_THERE, true);
  atomic_store(&fake.patience, 300);
  const int readers = count_readers(&both, 15, 0), direct_readers = count_readers(&direct, 15, 0);
  cr_assert(readers == 15 || readers == 16, "%d readers", readers);
  cr_assert(direct_readers == 15 || direct_readers == 16, "%d readers", direct_readers);
  cr_assert_leq(atomic_load(&fake.longest_read), (int)(MIB + 4096));
  close_sides(&both);
  close_sides(&direct);
}

Test(cuda_cold, each_of_two_threads_reads_a_half_whose_slots_go_to_the_device_as_they_come) {
  const sides both = open_sides(NONE_THERE, false);
  cr_assert_eq(count_readers(&both, 2, 2), 2);
  cr_assert_eq(atomic_load(&fake.farthest), SIZE / 2);
  close_sides(&both);
}

Test(cuda_cold, no_more_threads_wait_for_the_disk_than_the_caller_allows) {
  const sides both = open_sides(NONE_THERE, false);
  atomic_store(&fake.patience, 20);
  cr_assert_eq(count_readers(&both, 3, 2), 2);
  setenv("QUAY_COPY_THREADS", "2", 1);
  cr_assert_eq(count_readers(&both, 3, 0), 2);
  close_sides(&both);
}

Test(cuda_cold, pieces_of_a_missing_file_are_read_with_direct_io) {
  const sides both = open_sides(NONE_THERE, true);
  MUST(quay_buffer_copy_from(both.there, both.file));
  cr_assert_geq(atomic_load(&fake.direct), 48);
  cr_assert_eq(atomic_load(&fake.buffered), 0);
  cr_assert(test_buffer_is(both.there, 0, 3));
  close_sides(&both);
}

Test(cuda_cold, pieces_that_are_there_are_read_from_the_page_cache_in_spite_of_direct_io) {
  const sides both = open_sides(ALL_THERE, true);
  MUST(quay_buffer_copy_from(both.there, both.file));
  cr_assert_eq(atomic_load(&fake.direct), 0);
  cr_assert_gt(atomic_load(&fake.buffered), 20);
  cr_assert(test_buffer_is(both.there, 0, 3));
  close_sides(&both);
}

Test(cuda_cold, large_copies_of_a_file_that_the_page_cache_cannot_keep_are_read_with_direct_io) {
  quay_buffer *file = map_huge();
  quay_allocator *device = open_spec("cuda:0");
  atomic_store(&fake.mincore, NONE_THERE);
  copy_of_huge(file, device, 0, HUGE_DATA);
  cr_assert_geq(atomic_load(&fake.direct), 30, "%d and %d", atomic_load(&fake.direct),
                atomic_load(&fake.buffered));
  const int direct = atomic_load(&fake.direct);
  copy_of_huge(file, device, 5, 3 * MIB);
  cr_assert_eq(atomic_load(&fake.direct), direct);
  quay_allocator_release(device);
  quay_buffer_release(file);
}

static void check_staged_choice(int buffered_lasts, int direct_lasts, bool direct) {
  quay_allocator *device = open_spec("cuda:0");
  check_choice(device, buffered_lasts, direct_lasts, direct);
  quay_allocator_release(device);
}

Test(cuda_cold, direct_io_is_taken_by_itself_where_it_is_far_faster, .timeout = 120) {
  check_staged_choice(120, 5, true);
}

Test(cuda_cold, the_page_cache_is_filled_where_that_is_faster, .timeout = 120) {
  check_staged_choice(0, 30, false);
}

/* Odd places and sizes on both sides; what is around them stays. */
static void check_odd(const sides *both, uint64_t from, uint64_t to, uint64_t size) {
  unsigned char *bytes = malloc(SIZE);
  pattern_make(bytes, SIZE, 1);
  MUST(quay_buffer_copy_in(both->there, bytes, SIZE));
  MUST(quay_buffer_copy_region(both->there, to, both->file, from, size, NULL));
  MUST(quay_buffer_copy_out(both->there, bytes, SIZE));
  pattern_check(bytes, 0, to, 1);
  cr_assert(test_matches(bytes + to, size, from, 3));
  pattern_check(bytes + to + size, to + size, SIZE - to - size, 1);
  free(bytes);
}

static void check_odd_places(bool direct) {
  const sides both = open_sides(NONE_THERE, direct);
  check_odd(&both, 991, 77, 9 * MIB + 12345);
  check_odd(&both, 4096, 512, 8 * MIB);
  check_odd(&both, SIZE - 8 * MIB - 3, 5, 8 * MIB + 1);
  close_sides(&both);
}

Test(cuda_cold, every_byte_of_a_missing_file_arrives_at_odd_places) {
  check_odd_places(false);
}

Test(cuda_cold, every_byte_arrives_at_odd_places_with_direct_io) {
  check_odd_places(true);
}

/* Tensors begin anywhere in their file. All but the ends of the copy can go straight into slots. */
Test(cuda_cold, pieces_from_an_odd_place_on_are_cut_at_pages_of_the_file) {
  const sides both = open_sides(NONE_THERE, true);
  check_odd(&both, 991, 77, 20 * MIB + 12345);
  cr_assert_eq(atomic_load(&fake.buffered), 0);
  cr_assert_leq(atomic_load(&fake.small), 2, "%d ends of pieces were read apart",
                atomic_load(&fake.small));
  close_sides(&both);
}

Test(cuda_cold, a_missing_file_that_was_truncated_is_an_error) {
  for (int direct = 0; direct < 2; direct++) {
    const sides both = open_sides(NONE_THERE, direct != 0);
    test_truncate(test_path("in"), SIZE / 2 + 5);
    MUST_FAIL(quay_buffer_copy_from(both.there, both.file), IO);
    cr_assert_not_null(strstr(quay_last_error()->message, "in'"), "%s", quay_last_error()->message);
    close_sides(&both);
  }
}

Test(cuda_cold, windows_across_four_gib_arrive) {
  quay_allocator *device = open_spec("cuda:0");
  check_beyond(device, false);
  quay_allocator_release(device);
}

Test(cuda_cold, windows_across_four_gib_arrive_with_direct_io) {
  quay_allocator *device = open_spec("cuda:0");
  check_beyond(device, true);
  quay_allocator_release(device);
}
