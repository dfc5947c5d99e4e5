/* The pool layer on a device whose work runs late: what a stream gets back at once, what others
 * wait for, and that nobody sees memory change under work that still uses it. */
#include "support/random.h"
#include "unit/late_fixture.h"

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)

static quay_allocator *pool;

static void begin_pool(const char *spec, uint64_t device_bytes) {
  const late_options options = {
      .mode = LATE_MANUAL, .seed = 3, .device_bytes = device_bytes != 0 ? device_bytes : 256 * MIB};
  OK(late_register(&options));
  OK(quay_allocator_open(spec, &pool));
}

static void end_pool(void) {
  quay_allocator_release(pool);
  end();
}

static quay_buffer *create(uint64_t size, quay_stream *stream) {
  const int64_t shape[] = {(int64_t)size};
  const quay_alloc_options options = {.stream = stream};
  quay_buffer *buffer = NULL;
  OK(quay_buffer_create(pool, QUAY_U8, 1, shape, &options, &buffer));
  return buffer;
}

enum {
  USES = 4096
};
static late_use used[USES]; /* until they have run */
static size_t use_count;

/* Submits work on the buffer, which runs when the test says so; gives its address. */
static uint64_t use_on(quay_stream *stream, quay_buffer *buffer, quay_use_mode mode) {
  const quay_use use = {buffer, mode};
  quay_access access;
  OK(quay_access_begin(stream, &use, 1, &access));
  const uint64_t address = access.pointers[0];
  late_use *const kept = &used[use_count++ % USES];
  *kept = (late_use){.address = address, .size = quay_buffer_size(buffer), .mode = mode};
  launch_on(stream, kept);
  OK(quay_access_end(&access));
  return address;
}

static uint64_t address_of(const quay_raw_buffer *raw) {
  uint64_t address = 0;
  OK(quay_raw_buffer_address(raw, &address));
  return address;
}

static uint64_t pending_bytes(void) {
  quay_stats stats;
  OK(quay_allocator_stats(pool, &stats));
  return stats.pending_bytes;
}

/* Above what threads keep, and below it. */
static const uint64_t sizes[] = {3 * MIB, 4 * KIB};

Test(pool_streams, a_stream_gets_its_own_block_back_at_once) {
  begin_pool("pool+late:0", 0);
  quay_stream *const stream = stream_new(0);
  for (size_t i = 0; i < 2; i++) {
    quay_buffer *buffer = create(sizes[i], stream);
    const uint64_t address = use_on(stream, buffer, QUAY_READ_WRITE);
    quay_buffer_release(buffer);
    buffer = create(sizes[i], stream);
    cr_assert_eq(use_on(stream, buffer, QUAY_WRITE), address, "%zu bytes", (size_t)sizes[i]);
    cr_assert_gt(late_queued(quay_stream_native(stream)), 0, "nothing was to run yet");
    quay_buffer_release(buffer);
  }
  (void)late_run_all();
  quay_stream_release(stream);
  end_pool();
}

/* The library's own fill is over on return: nobody records it for a raw buffer. */
Test(pool_streams, raw_memory_that_is_zeroed_on_a_stream_and_freed_at_once_is_nobodys_to_write) {
  static const char *const specs[] = {"pool+late:0", "pool+guard+late:0", "late:0"};
  for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) {
    begin_pool(specs[i], 0);
    quay_stream *stream = stream_new(0);
    quay_raw_buffer raw;
    /* A first one, so that the second is memory that was used before. */
    quay_buffer *used_before = create(5000, NULL);
    OK(quay_buffer_fill(used_before, "\x77", 1));
    quay_buffer_release(used_before);
    const quay_alloc_options options = {.zeroed = true, .stream = stream};
    OK(quay_allocator_alloc(pool, 5000, &options, &raw));
    quay_raw_buffer_free(&raw);
    quay_buffer *buffer = create(5000, NULL);
    OK(quay_buffer_fill(buffer, "\xee", 1));
    late_run_all();
    unsigned char bytes[5000];
    OK(quay_buffer_copy_out(buffer, bytes, sizeof bytes));
    for (size_t k = 0; k < sizeof bytes; k++)
      cr_assert_eq(bytes[k], 0xee, "%s: byte %zu is %u", specs[i], k, bytes[k]);
    quay_buffer_release(buffer);
    quay_stream_release(stream);
    end_pool(); /* which finds what nothing orders */
  }
}

Test(pool_streams, another_stream_gets_a_block_when_the_work_on_it_is_done) {
  begin_pool("pool+late:0", 0);
  quay_stream *const first = stream_new(0);
  quay_stream *const second = stream_new(0);
  for (size_t i = 0; i < 2; i++) {
    quay_buffer *buffer = create(sizes[i], first);
    const uint64_t address = use_on(first, buffer, QUAY_READ_WRITE);
    quay_buffer_release(buffer);
    quay_buffer *const other = create(sizes[i], second);
    cr_assert_neq(use_on(second, other, QUAY_READ_WRITE), address, "it is still in use");
    (void)late_run_all();
    buffer = create(sizes[i], second);
    if (i == 0) /* what a thread keeps of another stream stays there */
      cr_assert_eq(use_on(second, buffer, QUAY_READ_WRITE), address, "it is free by now");
    quay_buffer_release(buffer);
    quay_buffer_release(other);
    (void)late_run_all();
  }
  quay_stream_release(first);
  quay_stream_release(second);
  end_pool();
}

Test(pool_streams, memory_without_a_stream_is_not_used_by_work_any_more) {
  begin_pool("pool+late:0", 0);
  quay_stream *const stream = stream_new(0);
  for (size_t i = 0; i < 2; i++) {
    quay_buffer *const buffer = create(sizes[i], stream);
    const uint64_t address = use_on(stream, buffer, QUAY_READ);
    quay_buffer_release(buffer);
    quay_raw_buffer raw;
    OK(quay_allocator_alloc(pool, sizes[i], NULL, &raw));
    cr_assert_neq(address_of(&raw), address);
    const unsigned char byte = 7;
    OK(late_allocator_table()->copy_in(quay_allocator_inner(pool), &raw, 0, &byte, 1));
    quay_raw_buffer_free(&raw);
    (void)late_run_all();
  }
  quay_stream_release(stream);
  end_pool();
}

Test(pool_streams, a_free_calls_nothing_of_the_device) {
  begin_pool("pool+late:0", 0);
  quay_stream *const streams[] = {stream_new(0), stream_new(0)};
  for (size_t i = 0; i < 2; i++) {
    for (size_t used_by = 0; used_by < 3; used_by++) {
      quay_buffer *const buffer = create(sizes[i], streams[0]);
      for (size_t stream = 0; stream < used_by; stream++)
        (void)use_on(streams[stream], buffer, QUAY_READ);
      late_counts before, after;
      late_count(&before);
      quay_buffer_release(buffer);
      late_count(&after);
      /* The core looks which events are done. */
      before.calls[LATE_EVENT_QUERY] = after.calls[LATE_EVENT_QUERY];
      before.calls[LATE_EVENT_DESTROY] = after.calls[LATE_EVENT_DESTROY];
      before.events = after.events;
      cr_assert_eq(memcmp(&before, &after, sizeof before), 0, "%zu bytes, %zu streams",
                   (size_t)sizes[i], used_by);
    }
  }
  (void)late_run_all();
  quay_stream_release(streams[0]);
  quay_stream_release(streams[1]);
  end_pool();
}

Test(pool_streams, a_block_that_several_streams_use_is_pending_until_the_last_is_done) {
  begin_pool("pool+late:0", 0);
  quay_stream *const first = stream_new(0);
  quay_stream *const second = stream_new(0);
  quay_buffer *const buffer = create(3 * MIB, first);
  (void)use_on(first, buffer, QUAY_READ);
  (void)use_on(second, buffer, QUAY_READ);
  quay_buffer_release(buffer);
  cr_assert_eq(pending_bytes(), 3 * MIB);
  OK(quay_stream_synchronize(first));
  cr_assert_eq(pending_bytes(), 3 * MIB);
  OK(quay_stream_synchronize(second));
  cr_assert_eq(pending_bytes(), 0);
  quay_stream_release(first);
  quay_stream_release(second);
  end_pool();
}

Test(pool_streams, what_a_thread_keeps_of_a_stream_is_pending_until_its_work_is_done) {
  begin_pool("pool+late:0", 0);
  quay_stream *const stream = stream_new(0);
  for (size_t i = 0; i < 2; i++) {
    quay_buffer *const buffer = create(sizes[i], stream);
    (void)use_on(stream, buffer, QUAY_READ);
    quay_buffer_release(buffer);
    cr_assert_eq(pending_bytes(), sizes[i]);
    OK(quay_stream_synchronize(stream));
    cr_assert_eq(pending_bytes(), 0);
  }
  quay_stream_release(stream);
  end_pool();
}

/* Nobody used it since the stream got it back: the old work on it is still under way. */
Test(pool_streams, a_block_that_was_reused_and_freed_unused_is_still_pending) {
  begin_pool("pool+late:0", 0);
  quay_stream *const stream = stream_new(0);
  quay_buffer *const buffer = create(3 * MIB, stream);
  const uint64_t address = use_on(stream, buffer, QUAY_READ);
  quay_buffer_release(buffer);
  const quay_alloc_options options = {.stream = stream};
  quay_raw_buffer raw;
  OK(quay_allocator_alloc(pool, 3 * MIB, &options, &raw));
  cr_assert_eq(address_of(&raw), address);
  quay_raw_buffer_free(&raw);
  OK(quay_allocator_alloc(pool, 3 * MIB, NULL, &raw));
  cr_assert_neq(address_of(&raw), address);
  quay_raw_buffer_free(&raw);
  (void)late_run_all();
  quay_stream_release(stream);
  end_pool();
}

/* The same for what is small, which a thread keeps apart from what work does not use. */
Test(pool_streams, a_small_block_that_was_reused_and_freed_unused_is_told_as_pending) {
  begin_pool("pool+late:0", 0);
  quay_stream *const stream = stream_new(0);
  quay_buffer *const buffer = create(4 * KIB, stream);
  const uint64_t address = use_on(stream, buffer, QUAY_READ);
  quay_buffer_release(buffer);
  cr_assert_eq(pending_bytes(), 4 * KIB); /* and no longer kept by the thread */
  const quay_alloc_options options = {.stream = stream};
  quay_raw_buffer raw;
  OK(quay_allocator_alloc(pool, 4 * KIB, &options, &raw));
  cr_assert_eq(address_of(&raw), address);
  quay_raw_buffer_free(&raw);
  cr_assert_eq(pending_bytes(), 4 * KIB);
  (void)late_run_all();
  quay_stream_release(stream);
  end_pool();
}

/* What is left below and above the block is still the stream's, with an event each. */
Test(pool_streams, a_stream_gets_an_aligned_part_of_what_it_freed) {
  begin_pool("pool+late:0", 0);
  quay_stream *const stream = stream_new(0);
  quay_buffer *const odd = create(5056, NULL);
  quay_buffer *const whole = create(300 * KIB, stream);
  const uint64_t address = use_on(stream, whole, QUAY_READ_WRITE);
  quay_buffer_release(whole);
  const quay_alloc_options options = {.alignment = 4096, .stream = stream};
  quay_raw_buffer raw;
  OK(quay_allocator_alloc(pool, 270 * KIB, &options, &raw));
  cr_assert_gt(address_of(&raw), address);
  cr_assert_lt(address_of(&raw), address + 4096);
  quay_raw_buffer_free(&raw);
  cr_assert_eq(pending_bytes(), 300 * KIB);
  (void)late_run_all();
  cr_assert_eq(pending_bytes(), 0);
  quay_buffer_release(odd);
  quay_stream_release(stream);
  end_pool();
}

Test(pool_streams, neighbours_that_a_stream_freed_make_one_block_for_it) {
  begin_pool("pool:block=16MiB+late:0", 0);
  quay_stream *const stream = stream_new(0);
  quay_buffer *const lower = create(2 * MIB, stream);
  quay_buffer *const upper = create(2 * MIB, stream);
  const uint64_t address = use_on(stream, lower, QUAY_WRITE);
  (void)use_on(stream, upper, QUAY_WRITE);
  quay_buffer *const rest = create(12 * MIB, stream);
  (void)use_on(stream, rest, QUAY_WRITE);
  quay_buffer_release(lower);
  quay_buffer_release(upper);
  quay_buffer *const both = create(4 * MIB, stream);
  cr_assert_eq(use_on(stream, both, QUAY_READ_WRITE), address);
  quay_buffer_release(both);
  quay_buffer_release(rest);
  (void)late_run_all();
  quay_stream_release(stream);
  end_pool();
}

Test(pool_streams, out_of_memory_waits_for_pending_frees_before_it_fails) {
  begin_pool("pool+late:0", 64 * MIB);
  quay_stream *const stream = stream_new(0);
  quay_buffer *const buffer = create(40 * MIB, stream);
  (void)use_on(stream, buffer, QUAY_READ_WRITE);
  quay_buffer_release(buffer);
  quay_raw_buffer raw;
  OK(quay_allocator_alloc(pool, 50 * MIB, NULL, &raw));
  cr_assert_eq(late_queued(quay_stream_native(stream)), 0);
  quay_raw_buffer other;
  cr_assert_eq(quay_allocator_alloc(pool, 50 * MIB, NULL, &other),
               QUAY_STATUS_OUT_OF_DEVICE_MEMORY);
  const char *const message = quay_last_error()->message;
  cr_assert_not_null(strstr(message, "can't allocate 52428800 bytes"), "%s", message);
  cr_assert_not_null(strstr(message, "52428800 bytes are live"), "%s", message);
  cr_assert_not_null(strstr(message, "late:0 has 14680064 bytes free of 67108864"), "%s", message);
  quay_raw_buffer_free(&raw);
  quay_stream_release(stream);
  end_pool();
}

Test(pool_streams, a_pool_that_is_released_frees_its_blocks_after_the_work_on_them) {
  begin_pool("pool+late:0", 0);
  quay_stream *const stream = stream_new(0);
  for (size_t i = 0; i < 2; i++) {
    quay_buffer *const buffer = create(sizes[i], stream);
    (void)use_on(stream, buffer, QUAY_READ_WRITE);
    quay_buffer_release(buffer);
  }
  quay_allocator_release(pool);
  (void)late_run_all();
  quay_stream_release(stream);
  end();
}

/* Generations and loss. */

Test(pool_streams, after_a_reset_memory_is_fresh_and_old_blocks_can_be_freed) {
  begin_pool("pool+late:0", 0);
  quay_stream *const stream = stream_new(0);
  quay_buffer *const old[] = {create(3 * MIB, NULL), create(4 * KIB, NULL)};
  quay_buffer *const pending = create(5 * MIB, stream);
  (void)use_on(stream, pending, QUAY_READ);
  quay_buffer_release(pending);
  quay_stream_release(stream);
  for (size_t i = 0; i < 2; i++) { /* kept by the thread, and by the pool */
    quay_buffer *const freed = create(sizes[i], NULL);
    quay_buffer_release(freed);
  }
  late_reset(0);
  quay_buffer *const fresh[] = {create(3 * MIB, NULL), create(4 * KIB, NULL)};
  for (size_t i = 0; i < 2; i++) {
    const unsigned char byte = 0x4d;
    OK(quay_buffer_fill(fresh[i], &byte, 1));
    quay_buffer_release(old[i]);
    quay_buffer_release(fresh[i]);
  }
  quay_stats stats;
  OK(quay_allocator_stats(pool, &stats));
  cr_assert_eq(stats.live_count, 0);
  OK(quay_allocator_trim(pool, NULL));
  OK(quay_allocator_stats(pool, &stats));
  cr_assert_eq(stats.reserved_bytes, 0);
  end_pool();
}

Test(pool_streams, blocks_of_a_lost_device_are_freed_without_a_word) {
  begin_pool("pool+late:0", 0);
  quay_stream *const stream = stream_new(0);
  quay_buffer *const buffer = create(3 * MIB, stream);
  (void)use_on(stream, buffer, QUAY_READ);
  late_lose(0);
  quay_buffer_release(buffer);
  quay_raw_buffer raw;
  cr_assert_eq(quay_allocator_alloc(pool, 10, NULL, &raw), QUAY_STATUS_DEVICE_LOST);
  quay_stream_release(stream);
  end_pool();
}

/* Random programs: the streams advance at random, and late's clocks see every use that is not
 * ordered after the last one of the block. */

enum {
  STREAMS = 3,
  BUFFERS = 24
};

static uint64_t random_size(uint64_t *random) {
  const uint32_t log2 = (uint32_t)(quay_test_random(random) % 22);
  return 1 + quay_test_random(random) % (UINT64_C(1) << log2);
}

static void random_program(const char *spec, uint64_t seed, bool ordered) {
  const late_options options = {.mode = LATE_MANUAL,
                                .seed = seed,
                                .eager_percent = 30,
                                .ordered_free = ordered,
                                .device_bytes = 48 * MIB};
  OK(late_register(&options));
  OK(quay_allocator_open(spec, &pool));
  quay_stream *streams[STREAMS + 1] = {NULL}; /* the last one: none */
  quay_buffer *buffers[BUFFERS] = {NULL};
  for (size_t i = 0; i < STREAMS; i++)
    streams[i] = stream_new(0);
  uint64_t random = seed;
  for (int step = 0; step < 1000; step++) {
    quay_buffer **const buffer = &buffers[quay_test_random(&random) % BUFFERS];
    quay_stream *const stream = streams[quay_test_random(&random) % (STREAMS + 1)];
    const uint64_t action = quay_test_random(&random) % 8;
    if (*buffer == NULL) {
      *buffer = create(random_size(&random), stream);
    } else if (action < 2) {
      quay_buffer_release(*buffer);
      *buffer = NULL;
    } else if (stream != NULL && use_count % USES < USES - 1) {
      (void)use_on(stream, *buffer, action < 5 ? QUAY_READ : QUAY_READ_WRITE);
    } else if (action == 7) {
      OK(quay_allocator_trim(pool, NULL));
    }
    if (step % 400 == 0) /* so that what they use is not overwritten */
      (void)late_run_all();
  }
  for (size_t i = 0; i < BUFFERS; i++)
    quay_buffer_release(buffers[i]);
  (void)late_run_all();
  for (size_t i = 0; i < STREAMS; i++)
    quay_stream_release(streams[i]);
  cr_assert_eq(pending_bytes(), 0);
  end_pool();
}

Test(pool_streams, no_program_sees_memory_that_other_work_still_uses) {
  for (uint64_t seed = 1; seed <= 3; seed++) {
    random_program("pool+late:0", seed, false);
    random_program("track+pool:keep=tight+late:0", seed, true);
  }
}
