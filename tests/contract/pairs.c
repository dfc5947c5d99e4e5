/* Copies from the peer to the target: one cell of the matrix of kinds for each run. */
#include "contract.h"

#include <string.h>

#define ROOM 8192

static void check_region(quay_buffer *destination, uint64_t to, quay_buffer *source, uint64_t from,
                         uint64_t size) {
  const uint64_t total = quay_buffer_size(destination);
  quay_test_block expected = quay_test_block_make(total, 0, 1);
  quay_test_block content = quay_test_block_make(quay_buffer_size(source), 0, 2);
  CONTRACT_OK(quay_buffer_copy_in(destination, expected.data, total));
  CONTRACT_OK(quay_buffer_copy_region(destination, to, source, from, size, NULL));
  memcpy(expected.data + to, content.data + from, size);
  contract_check_bytes(destination, expected.data, "the destination");
  quay_test_block_free(&content);
  quay_test_block_free(&expected);
}

Test(pairs, regions_at_odd_offsets_arrive_and_neighbours_stay) {
  static const uint64_t sizes[] = CONTRACT_SIZES;
  static const uint64_t offsets[] = CONTRACT_OFFSETS;
  quay_allocator *target = contract_open();
  quay_allocator *peer = contract_open_peer();
  for (size_t s = 0; s < CONTRACT_COUNT(sizes); s++) {
    const uint64_t total = sizes[s] + ROOM;
    quay_buffer *destination = contract_buffer(target, total, 0);
    quay_buffer *source = contract_buffer(peer, total, 2);
    quay_test_block content = quay_test_block_make(total, 0, 2);
    for (size_t o = 0; o < CONTRACT_COUNT(offsets); o++) {
      check_region(destination, offsets[o], source, offsets[(o * 3 + 1) % 8], sizes[s]);
      if (sizes[s] > CONTRACT_LARGE)
        o += 2;
    }
    contract_check_bytes(source, content.data, "the source");
    quay_test_block_free(&content);
    quay_buffer_release(source);
    quay_buffer_release(destination);
  }
  contract_close(peer);
  contract_close(target);
}

Test(pairs, copy_from_needs_equal_sizes_and_moves_nothing_otherwise) {
  quay_allocator *target = contract_open();
  quay_allocator *peer = contract_open_peer();
  quay_buffer *destination = contract_buffer(target, 1000, 3);
  quay_buffer *smaller = contract_buffer(peer, 999, 4);
  quay_buffer *larger = contract_buffer(peer, 1001, 5);
  quay_test_block content = quay_test_block_make(1000, 0, 3);
  CONTRACT_FAILS(quay_buffer_copy_from(destination, smaller), QUAY_STATUS_SIZE_MISMATCH);
  CONTRACT_FAILS(quay_buffer_copy_from(destination, larger), QUAY_STATUS_SIZE_MISMATCH);
  contract_check_bytes(destination, content.data, "after refused copies");
  quay_test_block_free(&content);
  quay_buffer_release(larger);
  quay_buffer_release(smaller);
  quay_buffer_release(destination);
  contract_close(peer);
  contract_close(target);
}

Test(pairs, a_lazy_destination_is_allocated_and_a_lazy_source_refused) {
  quay_allocator *target = contract_open();
  quay_allocator *peer = contract_open_peer();
  const int64_t shape[] = {70000};
  quay_buffer *lazy = NULL;
  quay_buffer *never = NULL;
  quay_buffer *source = contract_buffer(peer, 70000, 6);
  quay_test_block content = quay_test_block_make(70000, 0, 6);
  CONTRACT_OK(quay_buffer_create_lazy(target, QUAY_U8, 1, shape, NULL, &lazy));
  CONTRACT_OK(quay_buffer_create_lazy(peer, QUAY_U8, 1, shape, NULL, &never));
  CONTRACT_FAILS(quay_buffer_copy_from(lazy, never), QUAY_STATUS_NOT_ALLOCATED);
  cr_assert_not(quay_buffer_is_allocated(lazy), "a refused copy has allocated");
  CONTRACT_OK(quay_buffer_copy_from(lazy, source));
  contract_check_bytes(lazy, content.data, "the lazy destination");
  quay_test_block_free(&content);
  quay_buffer_release(never);
  quay_buffer_release(lazy);
  quay_buffer_release(source);
  contract_close(peer);
  contract_close(target);
}

Test(pairs, a_sealed_destination_is_refused_and_a_sealed_source_read) {
  quay_allocator *target = contract_open();
  quay_allocator *peer = contract_open_peer();
  quay_buffer *destination = contract_buffer(target, 500, 7);
  quay_buffer *source = contract_buffer(peer, 500, 8);
  quay_test_block content = quay_test_block_make(500, 0, 8);
  CONTRACT_OK(quay_buffer_seal(source));
  CONTRACT_OK(quay_buffer_copy_from(destination, source));
  contract_check_bytes(destination, content.data, "a copy of a sealed source");
  CONTRACT_OK(quay_buffer_seal(destination));
  CONTRACT_FAILS(quay_buffer_copy_from(destination, source), QUAY_STATUS_READ_ONLY);
  quay_test_block_free(&content);
  quay_buffer_release(source);
  quay_buffer_release(destination);
  contract_close(peer);
  contract_close(target);
}

static bool count_progress(void *user, uint64_t done, uint64_t total) {
  uint64_t *last = user;
  cr_assert_geq(done, *last, "progress went back");
  cr_assert_leq(done, total);
  *last = done;
  return true;
}

Test(pairs, progress_grows_and_ends_at_the_total) {
  quay_allocator *target = contract_open();
  quay_allocator *peer = contract_open_peer();
  const uint64_t size = 8 * 1024 * 1024 + 12345;
  quay_buffer *destination = contract_buffer(target, size, 0);
  quay_buffer *source = contract_buffer(peer, size, 9);
  quay_test_block content = quay_test_block_make(size, 0, 9);
  uint64_t done = 0;
  const quay_copy_options options = {.progress = count_progress, .progress_user = &done};
  CONTRACT_OK(quay_buffer_copy_region(destination, 0, source, 0, size, &options));
  cr_assert_eq(done, size);
  contract_check_bytes(destination, content.data, "after a watched copy");
  quay_test_block_free(&content);
  quay_buffer_release(source);
  quay_buffer_release(destination);
  contract_close(peer);
  contract_close(target);
}

static bool refuse_progress(void *user, uint64_t done, uint64_t total) {
  (void)user;
  (void)done;
  (void)total;
  return false;
}

Test(pairs, a_callback_that_returns_false_cancels) {
  quay_allocator *target = contract_open();
  quay_allocator *peer = contract_open_peer();
  const uint64_t size = 8 * 1024 * 1024 + 12345;
  quay_buffer *destination = contract_buffer(target, size, 10);
  quay_buffer *source = contract_buffer(peer, size, 11);
  const quay_copy_options options = {.progress = refuse_progress};
  CONTRACT_FAILS(quay_buffer_copy_region(destination, 0, source, 0, size, &options),
                 QUAY_STATUS_CANCELLED);
  quay_buffer_release(source);
  quay_buffer_release(destination);
  contract_close(peer);
  contract_close(target);
}

Test(pairs, the_plan_names_both_kinds_and_gives_a_reason) {
  quay_allocator *target = contract_open();
  quay_allocator *peer = contract_open_peer();
  quay_buffer *destination = contract_buffer(target, 100000, 12);
  quay_buffer *source = contract_buffer(peer, 100000, 13);
  quay_copy_plan_info plan;
  CONTRACT_OK(quay_copy_plan(destination, 0, source, 0, 100000, NULL, &plan));
  cr_assert_eq(plan.to, quay_allocator_kind(target));
  cr_assert_eq(plan.from, quay_allocator_kind(peer));
  cr_assert_eq(plan.size, 100000);
  cr_assert_neq(plan.route, QUAY_ROUTE_NONE);
  cr_assert_geq(plan.threads, 1);
  cr_assert_str_not_empty(plan.reason);
  cr_assert_lt(plan.staging_bytes, 100000u * 2, "staging must be bounded");
  quay_buffer_release(source);
  quay_buffer_release(destination);
  contract_close(peer);
  contract_close(target);
}

/* On streams of either side: there and back again, with a fill in between, while nothing is waited
 * for until the end. */
static void copy_on_streams(quay_allocator *target, quay_allocator *peer, uint64_t size) {
  quay_stream *streams[2] = {NULL, NULL};
  CONTRACT_OK(quay_stream_create(quay_allocator_device(target), NULL, &streams[0]));
  CONTRACT_OK(quay_stream_create(quay_allocator_device(peer), NULL, &streams[1]));
  quay_buffer *source = contract_buffer(peer, size, 6), *back = contract_buffer(peer, size, 7);
  quay_buffer *middle = contract_buffer(target, size + 13, 0);
  quay_test_block content = quay_test_block_make(size, 0, 6);
  for (size_t i = 0; i < 4; i++) {
    const quay_copy_options to = {.stream = streams[i % 2]}, from = {.stream = streams[i / 2]};
    const unsigned char byte = (unsigned char)(i + 1);
    CONTRACT_OK(quay_buffer_fill_on(middle, &byte, 1, streams[0]));
    CONTRACT_OK(quay_buffer_copy_region(middle, 13, source, 0, size, &to));
    CONTRACT_OK(quay_buffer_copy_region(back, 0, middle, 13, size, &from));
    contract_check_bytes(back, content.data, "what came back");
    CONTRACT_OK(quay_buffer_fill_on(back, &byte, 1, streams[1]));
  }
  quay_test_block_free(&content);
  quay_buffer_release(source);
  quay_buffer_release(back);
  quay_buffer_release(middle);
  for (size_t i = 0; i < 2; i++) {
    CONTRACT_OK(quay_stream_synchronize(streams[i]));
    quay_stream_release(streams[i]);
  }
  CONTRACT_OK(quay_collect(NULL));
}

Test(pairs, copies_and_fills_on_streams_of_either_side_stay_in_order) {
  static const uint64_t sizes[] = {1, 1000, 65537, 5000000};
  quay_allocator *target = contract_open();
  quay_allocator *peer = contract_open_peer();
  for (size_t s = 0; s < CONTRACT_COUNT(sizes); s++)
    copy_on_streams(target, peer, sizes[s]);
  contract_close(peer);
  contract_close(target);
}

Test(pairs, the_source_of_a_copy_on_a_stream_may_be_released_at_once) {
  quay_allocator *target = contract_open();
  quay_allocator *peer = contract_open_peer();
  quay_stream *stream = NULL;
  CONTRACT_OK(quay_stream_create(quay_allocator_device(target), NULL, &stream));
  quay_buffer *destination = contract_buffer(target, 100000, 0);
  quay_buffer *source = contract_buffer(peer, 100000, 8);
  const quay_copy_options options = {.stream = stream};
  CONTRACT_OK(quay_buffer_copy_region(destination, 0, source, 0, 100000, &options));
  quay_buffer_release(source);
  quay_buffer *next = contract_buffer(peer, 100000, 9);
  quay_test_block content = quay_test_block_make(100000, 0, 8);
  contract_check_bytes(destination, content.data, "of a released source");
  quay_test_block_free(&content);
  quay_buffer_release(next);
  quay_buffer_release(destination);
  quay_stream_release(stream);
  CONTRACT_OK(quay_collect(NULL));
  contract_close(peer);
  contract_close(target);
}
