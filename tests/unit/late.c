/* The late backend itself: memory, streams, events. Failures and loss are in late_failures.c, what
 * it finds in late_violations.c, random programs in late_random.c. */
#include "late_fixture.h"

#include <errno.h>
#include <time.h>
#include <unistd.h>

/* Memory. */

Test(late, opens_by_spec_with_kinds_and_devices) {
  begin_manual();
  quay_allocator *device = NULL;
  quay_allocator *pinned = NULL;
  OK(quay_allocator_open("late:1", &device));
  OK(quay_allocator_open("late:2,memory=pinned", &pinned));
  cr_expect(quay_allocator_kind(device) == QUAY_MEMORY_DEVICE);
  cr_expect(!quay_allocator_host_accessible(device));
  cr_expect(quay_allocator_device(device) == late_device_at(1));
  cr_expect(quay_allocator_kind(pinned) == QUAY_MEMORY_PINNED);
  cr_expect(quay_allocator_host_accessible(pinned));
  cr_expect_str_eq(quay_allocator_spec(pinned), "late:2,memory=pinned");
  quay_allocator_release(device);
  quay_allocator_release(pinned);
  end();
}

Test(late, refuses_specs_that_mean_nothing) {
  begin_manual();
  static const struct {
    const char *spec;
    quay_status status;
  } cases[] = {
      {"late:3", QUAY_STATUS_UNAVAILABLE},
      {"late:x", QUAY_STATUS_INVALID_ARGUMENT},
      {"late:0,memory=managed", QUAY_STATUS_INVALID_ARGUMENT},
      {"late:0,peers=all", QUAY_STATUS_INVALID_ARGUMENT},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    quay_allocator *allocator = NULL;
    cr_expect(quay_allocator_open(cases[i].spec, &allocator) == cases[i].status, "%s",
              cases[i].spec);
  }
  end();
}

Test(late, lists_its_devices) {
  begin_manual();
  quay_device_list list;
  OK(quay_devices(&list));
  size_t found = 0;
  for (size_t i = 0; i < list.count; i++)
    found += strcmp(list.devices[i].backend, "late") == 0 && list.devices[i].available;
  quay_device_list_free(&list);
  cr_expect(found == 3, "%zu devices", found);
  end();
}

Test(late, device_addresses_are_none_of_the_host) {
  begin_manual();
  memory m = memory_new("late:0", 64);
  int ends[2];
  cr_assert(pipe(ends) == 0);
  const ssize_t written = write(ends[1], (const void *)(uintptr_t)m.address, 1);
  cr_expect(written == -1 && errno == EFAULT, "the host can read 0x%llx",
            (unsigned long long)m.address);
  close(ends[0]);
  close(ends[1]);
  memory_free(&m, NULL, 0);
  end();
}

Test(late, new_memory_is_neither_zero_nor_left_over) {
  begin_manual();
  memory m = memory_new("late:0", 300);
  expect_bytes(&m, 0xc5);
  memory_free(&m, NULL, 0);
  end();
}

Test(late, aligns_what_is_asked_for) {
  begin_manual();
  static const char *const specs[] = {"late:0", "late:0,memory=pinned"};
  for (size_t i = 0; i < 2; i++) {
    quay_allocator *allocator = NULL;
    OK(quay_allocator_open(specs[i], &allocator));
    const quay_alloc_options options = {.alignment = 1 << 16};
    quay_raw_buffer raw;
    uint64_t address = 0;
    OK(quay_allocator_alloc(allocator, 100, &options, &raw));
    OK(quay_raw_buffer_address(&raw, &address));
    cr_expect(address % (1 << 16) == 0, "%s: 0x%llx", specs[i], (unsigned long long)address);
    quay_raw_buffer_free(&raw);
    quay_allocator_release(allocator);
  }
  end();
}

Test(late, memory_ends_where_the_limit_is) {
  const late_options options = {.mode = LATE_MANUAL, .device_bytes = 1000};
  OK(late_register(&options));
  memory m = memory_new("late:0", 600);
  const quay_alloc_request request = {.size = 401, .alignment = 64};
  quay_raw_buffer raw = {.arm = QUAY_RAW_NONE};
  cr_expect(late_allocator_table()->alloc(m.allocator, &request, &raw) ==
            QUAY_STATUS_OUT_OF_DEVICE_MEMORY);
  quay_memory_info info;
  OK(quay_device_memory_info(late_device_at(0), &info));
  cr_expect(info.total_bytes == 1000 && info.free_bytes == 400);
  memory_free(&m, NULL, 0);
  memory again = memory_new("late:0", 1000);
  memory_free(&again, NULL, 0);
  end();
}

Test(late, moves_bytes_at_odd_offsets_and_leaves_the_neighbours) {
  begin_manual();
  memory a = memory_new("late:0", 200);
  memory b = memory_new("late:0", 200);
  unsigned char in[100];
  unsigned char out[200];
  for (size_t i = 0; i < sizeof in; i++)
    in[i] = (unsigned char)(i + 1);
  copy_in(&a, 31, in, sizeof in);
  OK(late_allocator_table()->copy_within(b.allocator, &b.raw, 77, &a.raw, 31, sizeof in));
  copy_out(&b, 0, out, sizeof out);
  for (size_t i = 0; i < sizeof out; i++) {
    const unsigned char expected = i >= 77 && i < 177 ? in[i - 77] : 0xc5;
    cr_assert(out[i] == expected, "byte %zu is 0x%02x, not 0x%02x", i, out[i], expected);
  }
  memory_free(&a, NULL, 0);
  memory_free(&b, NULL, 0);
  end();
}

Test(late, overlapping_copies_move_as_memmove) {
  begin_manual();
  memory m = memory_new("late:0", 64);
  unsigned char model[64];
  for (size_t i = 0; i < sizeof model; i++)
    model[i] = (unsigned char)(i + 1);
  copy_in(&m, 0, model, sizeof model);
  quay_stream *const stream = stream_new(0);
  copy_on(stream, &m, 5, &m, 0, 50);
  memmove(model + 5, model, 50);
  copy_on(stream, &m, 0, &m, 9, 50);
  memmove(model, model + 9, 50);
  OK(quay_stream_synchronize(stream));
  for (size_t i = 0; i < sizeof model; i++)
    cr_assert(peek(&m, i) == model[i], "byte %zu", i);
  quay_stream_release(stream);
  memory_free(&m, NULL, 0);
  end();
}

Test(late, copies_across_peers_and_pinned_memory_only) {
  begin_manual();
  memory m[] = {memory_new("late:0", 96), memory_new("late:1", 96), memory_new("late:2", 96),
                memory_new("late:2,memory=pinned", 96)};
  static const struct {
    int to, from;
    bool can;
  } cases[] = {{0, 1, true},  {1, 0, true}, {0, 2, false},
               {2, 1, false}, {3, 0, true}, {1, 3, true}};
  const quay_allocator_vtable *const table = late_allocator_table();
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    memory *const to = &m[cases[i].to];
    memory *const from = &m[cases[i].from];
    quay_across_info info;
    cr_assert(table->can_copy_across(to->allocator, &to->raw, &from->raw, 96, &info) ==
                  cases[i].can,
              "from %d to %d", cases[i].from, cases[i].to);
    if (!cases[i].can)
      continue;
    const unsigned char value = (unsigned char)(0x10 + i);
    OK(table->fill(from->allocator, &from->raw, 0, 96, &value, 1));
    OK(table->copy_across(to->allocator, &to->raw, 0, &from->raw, 0, 96));
    expect_bytes(to, value);
  }
  for (size_t i = 0; i < 4; i++)
    memory_free(&m[i], NULL, 0);
  end();
}

/* Streams run late. */

Test(late, nothing_runs_before_somebody_waits) {
  begin_manual();
  memory m = memory_new("late:0", 128);
  quay_stream *const stream = stream_new(0);
  fill_on(stream, &m, 0, 128, 0x41);
  quay_event *const event = record(stream);
  cr_expect(!is_done(event));
  expect_bytes(&m, 0xc5);
  OK(quay_event_synchronize(event));
  expect_bytes(&m, 0x41);
  cr_expect(is_done(event));
  quay_event_release(event);
  quay_stream_release(stream);
  memory_free(&m, NULL, 0);
  end();
}

Test(late, a_wait_runs_what_it_needs_and_no_more) {
  begin_manual();
  memory m[3] = {memory_new("late:0", 64), memory_new("late:0", 64), memory_new("late:1", 64)};
  quay_stream *const producer = stream_new(0);
  quay_stream *const consumer = stream_new(0);
  quay_stream *const other = stream_new(1);
  fill_on(producer, &m[0], 0, 64, 0x11);
  order(producer, consumer);
  fill_on(producer, &m[0], 0, 64, 0x12);
  fill_on(other, &m[2], 0, 64, 0x13);
  copy_on(consumer, &m[1], 0, &m[1], 32, 32);
  OK(quay_stream_synchronize(consumer));
  cr_expect(late_queued(quay_stream_native(consumer)) == 0);
  cr_expect(late_queued(quay_stream_native(producer)) == 1, "the second fill was not needed");
  cr_expect(late_queued(quay_stream_native(other)) == 1, "nor was the other stream");
  expect_bytes(&m[0], 0x11);
  OK(quay_stream_synchronize(producer));
  OK(quay_stream_synchronize(other));
  quay_stream_release(producer);
  quay_stream_release(consumer);
  quay_stream_release(other);
  for (size_t i = 0; i < 3; i++)
    memory_free(&m[i], NULL, 0);
  end();
}

Test(late, pinned_sources_are_read_when_the_copy_runs) {
  begin_manual();
  memory m = memory_new("late:0", 32);
  memory pinned = memory_new("late:0,memory=pinned", 32);
  quay_stream *const stream = stream_new(0);
  memset(memory_bytes(&pinned), 0x21, 32);
  copy_in_on(stream, &m, 0, memory_bytes(&pinned), 32);
  memset(memory_bytes(&pinned), 0x22, 32); /* too early, as a program must not */
  OK(quay_stream_synchronize(stream));
  expect_bytes(&m, 0x22);
  quay_stream_release(stream);
  memory_free(&m, NULL, 0);
  memory_free(&pinned, NULL, 0);
  end();
}

Test(late, pinned_destinations_are_written_when_the_copy_runs) {
  begin_manual();
  memory m = memory_new("late:0", 32);
  memory pinned = memory_new("late:0,memory=pinned", 32);
  quay_stream *const stream = stream_new(0);
  fill_on(stream, &m, 0, 32, 0x31);
  copy_out_on(stream, &m, 0, memory_bytes(&pinned), 32);
  expect_bytes(&pinned, 0xc5);
  OK(quay_stream_synchronize(stream));
  expect_bytes(&pinned, 0x31);
  quay_stream_release(stream);
  memory_free(&m, NULL, 0);
  memory_free(&pinned, NULL, 0);
  end();
}

Test(late, copies_of_pageable_memory_block_in_stream_order) {
  begin_manual();
  memory m = memory_new("late:0", 32);
  quay_stream *const stream = stream_new(0);
  unsigned char in[32];
  unsigned char out[32] = {0};
  memset(in, 0x51, sizeof in);
  fill_on(stream, &m, 0, 32, 0x50);
  copy_in_on(stream, &m, 0, in, 16);
  memset(in, 0x52, sizeof in); /* the call has returned: it was read */
  copy_out_on(stream, &m, 0, out, 32);
  for (size_t i = 0; i < sizeof out; i++)
    cr_assert(out[i] == (i < 16 ? 0x51 : 0x50), "byte %zu is 0x%02x", i, out[i]);
  quay_stream_release(stream);
  memory_free(&m, NULL, 0);
  end();
}

Test(late, kernels_run_late_on_the_real_bytes) {
  begin_manual();
  memory m = memory_new("late:0", 48);
  quay_stream *const stream = stream_new(0);
  fill_on(stream, &m, 0, 48, 0x60);
  const late_use use = {m.address + 8, 40, QUAY_READ_WRITE};
  launch_on(stream, &use);
  cr_expect(peek(&m, 8) == 0xc5);
  OK(quay_stream_synchronize(stream));
  for (uint64_t i = 0; i < 48; i++)
    cr_assert(peek(&m, i) == (i < 8 ? 0x60 : 0x61), "byte %llu", (unsigned long long)i);
  quay_stream_release(stream);
  memory_free(&m, NULL, 0);
  end();
}

Test(late, streams_advance_in_an_order_that_the_seed_gives) {
  uint64_t orders[6];
  for (uint64_t run = 0; run < 6; run++) {
    const late_options options = {.mode = LATE_MANUAL, .seed = run / 2};
    OK(late_register(&options));
    memory m[4];
    quay_stream *streams[4];
    for (size_t s = 0; s < 4; s++) {
      m[s] = memory_new("late:0", 16);
      streams[s] = stream_new(0);
      for (unsigned char i = 0; i < 8; i++)
        fill_on(streams[s], &m[s], 0, 16, i);
    }
    OK(quay_allocator_synchronize(m[0].allocator));
    orders[run] = late_order();
    for (size_t s = 0; s < 4; s++) {
      quay_stream_release(streams[s]);
      memory_free(&m[s], NULL, 0);
    }
    end();
  }
  for (size_t i = 0; i < 6; i += 2)
    cr_expect(orders[i] == orders[i + 1], "seed %zu gave two orders", i / 2);
  cr_expect(orders[0] != orders[2] && orders[2] != orders[4] && orders[0] != orders[4]);
}

typedef struct journal {
  char text[128];
  size_t length;
} journal;

static void note_a(void *user, unsigned char *const *bytes) {
  (void)bytes;
  journal *const j = user;
  j->text[j->length++] = 'a';
}

static void note_b(void *user, unsigned char *const *bytes) {
  (void)bytes;
  journal *const j = user;
  j->text[j->length++] = 'b';
}

Test(late, streams_run_out_of_step) {
  begin_manual();
  quay_stream *const a = stream_new(0);
  quay_stream *const b = stream_new(1);
  journal j = {.length = 0};
  for (int i = 0; i < 40; i++) {
    OK(late_launch(quay_stream_native(a), note_a, &j, NULL, 0));
    OK(late_launch(quay_stream_native(b), note_b, &j, NULL, 0));
  }
  cr_expect(late_run_all() == 80);
  cr_expect(j.length == 80);
  cr_expect(strstr(j.text, "aaa") != NULL && strstr(j.text, "bbb") != NULL, "%s", j.text);
  cr_expect(strstr(j.text, "ab") != NULL && strstr(j.text, "ba") != NULL, "%s", j.text);
  quay_stream_release(a);
  quay_stream_release(b);
  end();
}

Test(late, an_eager_run_does_some_work_before_anybody_waits) {
  const late_options options = {.mode = LATE_MANUAL, .seed = 3, .eager_percent = 40};
  OK(late_register(&options));
  quay_stream *const stream = stream_new(0);
  for (int i = 0; i < 100; i++)
    OK(late_delay(quay_stream_native(stream), 1));
  const uint64_t left = late_queued(quay_stream_native(stream));
  cr_expect(left > 0 && left < 100, "%llu left", (unsigned long long)left);
  quay_stream_release(stream);
  end();
}

/* Threads. */

Test(late, threads_run_late_and_at_the_same_time) {
  begin(LATE_THREADS);
  memory m[2] = {memory_new("late:0", 64), memory_new("late:1", 64)};
  quay_stream *const held = stream_new(0);
  quay_stream *const other = stream_new(1);
  const uint64_t gate = late_hold(quay_stream_native(held));
  fill_on(held, &m[0], 0, 64, 0x71);
  quay_event *const event = record(held);
  fill_on(other, &m[1], 0, 64, 0x72);
  OK(quay_stream_synchronize(other));
  expect_bytes(&m[1], 0x72);
  cr_expect(!is_done(event));
  expect_bytes(&m[0], 0xc5);
  late_open_gate(gate);
  OK(quay_event_synchronize(event));
  expect_bytes(&m[0], 0x71);
  quay_event_release(event);
  quay_stream_release(held);
  quay_stream_release(other);
  memory_free(&m[0], NULL, 0);
  memory_free(&m[1], NULL, 0);
  end();
}

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

Test(late, operations_on_threads_take_their_time) {
  const late_options options = {.max_delay_us = 2000};
  OK(late_register(&options));
  quay_stream *const stream = stream_new(0);
  const double start = seconds();
  OK(late_delay(quay_stream_native(stream), 30000));
  OK(quay_stream_synchronize(stream));
  const double delayed = seconds();
  cr_expect(delayed - start >= 0.030, "the delay lasted %f s", delayed - start);
  /* A hundred delays of 1 ms each on average, of which a tenth is as good as certain. */
  for (int i = 0; i < 100; i++)
    OK(late_delay(quay_stream_native(stream), 0));
  OK(quay_stream_synchronize(stream));
  cr_expect(seconds() - delayed >= 0.010, "100 operations lasted %f s", seconds() - delayed);
  quay_stream_release(stream);
  end();
}

Test(late, destroying_a_stream_does_not_wait_and_loses_no_work) {
  begin(LATE_THREADS);
  memory m = memory_new("late:0", 64);
  quay_stream *const stream = stream_new(0);
  const uint64_t gate = late_hold(quay_stream_native(stream));
  fill_on(stream, &m, 0, 64, 0x73);
  quay_event *const event = record(stream);
  quay_stream_release(stream);
  cr_expect(!is_done(event));
  late_open_gate(gate);
  OK(quay_event_synchronize(event));
  expect_bytes(&m, 0x73);
  quay_event_release(event);
  memory_free(&m, NULL, 0);
  end();
}

/* Events. */

Test(late, an_event_orders_streams_of_two_devices) {
  begin_manual();
  memory m[2] = {memory_new("late:0", 64), memory_new("late:1", 64)};
  quay_stream *const first = stream_new(0);
  quay_stream *const second = stream_new(1);
  fill_on(first, &m[0], 0, 64, 0x01);
  order(first, second); /* the event is destroyed while it is pending */
  const late_use uses[] = {{m[0].address, 64, QUAY_READ_WRITE}};
  launch_on(second, uses);
  cr_expect(!late_step(quay_stream_native(second)), "the wait is not over yet");
  OK(quay_stream_synchronize(second));
  expect_bytes(&m[0], 0x02);
  quay_stream_release(first);
  quay_stream_release(second);
  memory_free(&m[0], NULL, 0);
  memory_free(&m[1], NULL, 0);
  end();
}

Test(late, wrapped_streams_are_the_programs_own) {
  begin_manual();
  const uint64_t native = late_native_stream_create(0);
  quay_stream *wrapped = NULL;
  quay_stream *legacy = NULL;
  OK(quay_stream_wrap(late_device_at(0), native, &wrapped));
  OK(quay_stream_wrap(late_device_at(0), 0, &legacy));
  memory m = memory_new("late:0", 16);
  fill_on(wrapped, &m, 0, 16, 0x07);
  quay_stream_release(wrapped);
  OK(late_delay(native, 1)); /* it lives on */
  OK(quay_allocator_synchronize(m.allocator));
  expect_bytes(&m, 0x07);
  quay_stream *foreign = NULL;
  cr_expect(quay_stream_wrap(late_device_at(1), native, &foreign) == QUAY_STATUS_INVALID_ARGUMENT);
  late_native_stream_destroy(native);
  quay_stream_release(legacy);
  memory_free(&m, NULL, 0);
  end();
}

/* Ordered free. */

Test(late, an_ordered_free_waits_for_its_events) {
  const late_options options = {.mode = LATE_MANUAL, .ordered_free = true, .device_bytes = 100};
  OK(late_register(&options));
  memory m = memory_new("late:0", 100);
  quay_allocator *const allocator = quay_allocator_retain(m.allocator);
  quay_stream *const stream = stream_new(0);
  fill_on(stream, &m, 0, 100, 0x08);
  quay_event *const event = record(stream);
  memory_free(&m, &event, 1);
  quay_event_release(event);
  late_counts counts;
  late_count(&counts);
  cr_expect(counts.pending_frees == 1 && counts.blocks == 0);
  const quay_alloc_request request = {.size = 1, .alignment = 64};
  quay_raw_buffer raw = {.arm = QUAY_RAW_NONE};
  cr_expect(late_allocator_table()->alloc(allocator, &request, &raw) ==
                QUAY_STATUS_OUT_OF_DEVICE_MEMORY,
            "memory that is still in use was handed out");
  OK(quay_stream_synchronize(stream));
  late_count(&counts);
  cr_expect(counts.pending_frees == 0);
  memory again = memory_new("late:0", 100);
  memory_free(&again, NULL, 0);
  quay_stream_release(stream);
  quay_allocator_release(allocator);
  end();
}

Test(late, an_ordered_free_waits_for_events_that_come_after_the_last_use) {
  begin_manual();
  memory m = memory_new("late:0", 100);
  quay_stream *const stream = stream_new(0);
  fill_on(stream, &m, 0, 100, 0x08);
  OK(late_delay(quay_stream_native(stream), 1));
  quay_event *const event = record(stream);
  memory_free(&m, &event, 1);
  cr_assert(late_step(quay_stream_native(stream)), "the fill");
  late_counts counts;
  late_count(&counts);
  cr_expect(counts.pending_frees == 1);
  OK(quay_event_synchronize(event));
  late_count(&counts);
  cr_expect(counts.pending_frees == 0);
  quay_event_release(event);
  quay_stream_release(stream);
  end();
}

Test(late, stream_ordered_memory_is_there_in_stream_order) {
  begin_manual();
  memory m = {.size = 80};
  OK(quay_allocator_open("late:0", &m.allocator));
  quay_stream *const stream = stream_new(0);
  const quay_alloc_request request = {
      .size = 80, .alignment = 64, .zeroed = true, .stream = stream};
  OK(late_allocator_table()->alloc(m.allocator, &request, &m.raw));
  OK(late_allocator_table()->address(m.allocator, &m.raw, &m.address));
  cr_expect((m.raw.flags & QUAY_RAW_ZEROED) != 0);
  const late_use use = {m.address, 80, QUAY_READ_WRITE};
  launch_on(stream, &use);
  expect_bytes(&m, 0xc5);
  OK(quay_stream_synchronize(stream));
  expect_bytes(&m, 0x01);
  quay_stream_release(stream);
  memory_free(&m, NULL, 0);
  end();
}

Test(late, stream_ordered_memory_can_be_freed_before_it_is_there) {
  begin_manual();
  memory m = {.size = 80};
  OK(quay_allocator_open("late:0", &m.allocator));
  quay_stream *const stream = stream_new(0);
  const quay_alloc_request request = {.size = 80, .alignment = 64, .stream = stream};
  OK(late_allocator_table()->alloc(m.allocator, &request, &m.raw));
  memory_free(&m, NULL, 0);
  late_counts counts;
  late_count(&counts);
  cr_expect(counts.pending_frees == 1, "the allocation has not run, and needs the memory");
  OK(quay_stream_synchronize(stream));
  late_count(&counts);
  cr_expect(counts.pending_frees == 0);
  quay_stream_release(stream);
  end();
}

/* Registration. */

Test(late, is_not_taken_out_while_something_of_it_lives) {
  begin_manual();
  memory m = memory_new("late:0", 16);
  cr_expect(late_unregister() == QUAY_STATUS_BUSY);
  memory_free(&m, NULL, 0);
  end();
}
