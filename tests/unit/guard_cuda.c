/* The guard layer on memory of a GPU, on the simulated driver. The stray writes go to addresses
 * that another allocator has adopted, as those of a kernel would. */
#include "cuda_fixture.h"
#include "support/log.h"

TestSuite(guard_cuda, .init = setup, .fini = teardown);

typedef struct scene {
  quay_allocator *guard, *plain;
} scene;

static scene begin(const char *spec) {
  quay_test_log_begin();
  return (scene){.guard = open_spec(spec), .plain = open_spec("cuda:0")};
}

static void end(const scene *both) {
  quay_allocator_release(both->guard);
  quay_allocator_release(both->plain);
}

static uint64_t address_of(const quay_raw_buffer *block) {
  uint64_t address = 0;
  CHECK_OK(quay_raw_buffer_address(block, &address));
  return address;
}

/* Writes a byte of device memory, whoever's it is. */
static void write_stray(const scene *both, uint64_t address, unsigned char value) {
  quay_raw_buffer place;
  const int64_t shape[] = {1};
  quay_buffer *buffer = NULL;
  CHECK_OK(quay_cuda_adopt(both->plain, address, 1, NULL, NULL, &place));
  CHECK_OK(quay_buffer_from_raw(&place, QUAY_U8, 1, shape, &buffer));
  CHECK_OK(quay_buffer_copy_in(buffer, &value, 1));
  quay_buffer_release(buffer);
}

static quay_raw_buffer alloc(const scene *both, uint64_t size) {
  quay_raw_buffer block;
  CHECK_OK(quay_allocator_alloc(both->guard, size, NULL, &block));
  return block;
}

static void expect_report(const scene *both, const char *text) {
  CHECK_FAILS(quay_guard_check(both->guard), QUAY_STATUS_OUT_OF_RANGE);
  CHECK_MESSAGE(text);
  cr_assert_eq(quay_test_log_count(text), 1, "%s", quay_test_log_text());
}

Test(guard_cuda, an_overrun_is_found_on_demand_and_at_free) {
  const scene both = begin("guard+cuda:0");
  quay_raw_buffer block = alloc(&both, 1000);
  CHECK_OK(quay_guard_check(both.guard));
  write_stray(&both, address_of(&block) + 1003, 0x10);
  expect_report(&both, "overrun: 1 bytes were overwritten from offset 1003 to 1003");
  quay_raw_buffer_free(&block);
  cr_assert_eq(quay_test_log_count("overrun"), 2);
  end(&both);
}

Test(guard_cuda, an_underrun_is_found_on_demand_and_at_free) {
  const scene both = begin("guard+cuda:0");
  quay_raw_buffer block = alloc(&both, 1000);
  write_stray(&both, address_of(&block) - 7, 0x10);
  expect_report(&both, "underrun: 1 bytes were overwritten from offset -7 to -7");
  quay_raw_buffer_free(&block);
  cr_assert_eq(quay_test_log_count("underrun"), 2);
  end(&both);
}

Test(guard_cuda, a_write_to_a_freed_block_is_found) {
  const scene both = begin("guard+cuda:0");
  quay_raw_buffer block = alloc(&both, 1000);
  const uint64_t address = address_of(&block);
  quay_raw_buffer_free(&block);
  CHECK_OK(quay_guard_check(both.guard));
  write_stray(&both, address + 999, 0x10);
  expect_report(&both, "use after free: 1 bytes were overwritten from offset 999 to 999");
  end(&both);
  cr_assert_eq(quay_test_log_count("use after free"), 2);
}

Test(guard_cuda, new_memory_is_filled_and_aligned_and_zeroed_memory_is_zero) {
  const scene both = begin("guard+cuda:0");
  for (int zeroed = 0; zeroed < 2; zeroed++) {
    const quay_alloc_options options = {.alignment = 4096, .zeroed = zeroed != 0};
    unsigned char expected[777];
    memset(expected, zeroed ? 0 : 0xcd, sizeof expected);
    quay_buffer *buffer = make_buffer(both.guard, sizeof expected, &options);
    const quay_raw_buffer *block = NULL;
    CHECK_OK(quay_buffer_raw(buffer, &block));
    cr_assert_eq(address_of(block) % 4096, 0);
    check_bytes(buffer, expected);
    quay_buffer_release(buffer);
  }
  end(&both);
}

Test(guard_cuda, stream_ordered_blocks_are_filled_in_the_order_of_their_stream) {
  const scene both = begin("guard+cuda:0");
  quay_stream *stream = NULL;
  CHECK_OK(quay_stream_create(quay_allocator_device(both.guard), NULL, &stream));
  for (int i = 0; i < 10; i++) {
    const quay_alloc_options options = {.stream = stream};
    quay_raw_buffer block;
    CHECK_OK(quay_allocator_alloc(both.guard, 5000, &options, &block));
    quay_raw_buffer_free(&block);
  }
  CHECK_OK(quay_guard_check(both.guard));
  quay_stream_release(stream);
  end(&both);
  cr_assert_eq(quay_test_log_count(""), 0, "%s", quay_test_log_text());
}

Test(guard_cuda, pinned_memory_is_guarded_too) {
  const scene both = begin("guard+cuda:0,memory=pinned");
  quay_raw_buffer block = alloc(&both, 100);
  CHECK_OK(quay_guard_check(both.guard));
  quay_raw_buffer_free(&block);
  CHECK_OK(quay_guard_check(both.guard));
  end(&both);
  cr_assert_eq(quay_test_log_count(""), 0, "%s", quay_test_log_text());
}

/* Its red zones are submitted one after the other. */
Test(guard_cuda, what_was_submitted_for_a_block_that_nobody_gets_is_waited_for) {
  scene both = begin("guard:quarantine=0+pool+cuda:0");
  quay_device *device = quay_allocator_device(both.guard);
  quay_stream *one = NULL, *other = NULL;
  CHECK_OK(quay_stream_create(device, NULL, &one));
  CHECK_OK(quay_stream_create(device, NULL, &other));
  quay_raw_buffer block = alloc(&both, 5000);
  quay_raw_buffer_free(&block);
  for (uint64_t nth = 2; nth <= 3; nth++) {
    raw.control->fail("cuMemsetD8Async", nth, 999);
    const quay_alloc_options options = {.stream = one};
    cr_assert_neq(quay_allocator_alloc(both.guard, 5000, &options, &block), QUAY_OK);
    raw.control->fail("cuMemsetD8Async", 0, 0);
    const quay_alloc_options elsewhere = {.stream = other};
    CHECK_OK(quay_allocator_alloc(both.guard, 5000, &elsewhere, &block));
    CHECK_OK(quay_stream_synchronize(other));
    quay_raw_buffer_free(&block);
  }
  quay_stream_release(one);
  quay_stream_release(other);
  end(&both);
}
