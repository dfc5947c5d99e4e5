/* What the tests of the late backend share: memory and moves through its own tables, so that
 * nothing of the core stands in between. */
#ifndef QUAY_TESTS_UNIT_LATE_FIXTURE_H
#define QUAY_TESTS_UNIT_LATE_FIXTURE_H

#include <criterion/criterion.h>
#include <quay/quay.h>
#include <stdio.h>
#include <string.h>

#include "support/late/late.h"

#define OK(expression)                                                                        \
  do {                                                                                        \
    const quay_status ok_status_ = (expression);                                              \
    cr_assert(ok_status_ == QUAY_OK, "%s: %s: %s", #expression, quay_status_name(ok_status_), \
              quay_last_error()->message);                                                    \
  } while (0)

/* One block. */
typedef struct memory {
  quay_allocator *allocator;
  quay_raw_buffer raw;
  uint64_t address;
  uint64_t size;
} memory;

static inline memory memory_new(const char *spec, uint64_t size) {
  memory m = {.size = size};
  OK(quay_allocator_open(spec, &m.allocator));
  const quay_alloc_request request = {.size = size, .alignment = 64};
  OK(late_allocator_table()->alloc(m.allocator, &request, &m.raw));
  m.raw.owner = m.allocator;
  m.raw.size = size;
  OK(late_allocator_table()->address(m.allocator, &m.raw, &m.address));
  return m;
}

static inline void memory_free(memory *m, quay_event *const *pending, size_t count) {
  late_allocator_table()->free(m->allocator, &m->raw, pending, count);
  quay_allocator_release(m->allocator);
  *m = (memory){.size = 0};
}

/* Of pinned memory. */
static inline unsigned char *memory_bytes(const memory *m) {
  return (unsigned char *)(uintptr_t)m->address;
}

static inline quay_stream *stream_new(uint32_t device) {
  quay_stream *stream = NULL;
  OK(quay_stream_create(late_device_at(device), NULL, &stream));
  return stream;
}

static inline quay_event *record(quay_stream *stream) {
  quay_event *event = NULL;
  OK(quay_event_record(stream, &event));
  return event;
}

static inline bool is_done(quay_event *event) {
  bool done = false;
  OK(quay_event_query(event, &done));
  return done;
}

/* Makes `waiter` wait for everything in `waited` so far. */
static inline void order(quay_stream *waited, quay_stream *waiter) {
  quay_event *const event = record(waited);
  OK(quay_stream_wait(waiter, event));
  quay_event_release(event);
}

static inline void fill_on(quay_stream *stream, memory *m, uint64_t offset, uint64_t size,
                           unsigned char value) {
  OK(late_allocator_table()->fill_async(m->allocator, &m->raw, offset, size, &value, 1,
                                        quay_stream_native(stream)));
}

static inline void copy_on(quay_stream *stream, memory *to, uint64_t to_offset, memory *from,
                           uint64_t from_offset, uint64_t size) {
  OK(late_allocator_table()->copy_within_async(to->allocator, &to->raw, to_offset, &from->raw,
                                               from_offset, size, quay_stream_native(stream)));
}

static inline void copy_in_on(quay_stream *stream, memory *to, uint64_t offset, const void *from,
                              uint64_t size) {
  OK(late_allocator_table()->copy_in_async(to->allocator, &to->raw, offset, from, size,
                                           quay_stream_native(stream)));
}

static inline void copy_out_on(quay_stream *stream, memory *from, uint64_t offset, void *to,
                               uint64_t size) {
  OK(late_allocator_table()->copy_out_async(from->allocator, &from->raw, offset, to, size,
                                            quay_stream_native(stream)));
}

static inline void copy_in(memory *to, uint64_t offset, const void *from, uint64_t size) {
  OK(late_allocator_table()->copy_in(to->allocator, &to->raw, offset, from, size));
}

static inline void copy_out(memory *from, uint64_t offset, void *to, uint64_t size) {
  OK(late_allocator_table()->copy_out(from->allocator, &from->raw, offset, to, size));
}

/* A kernel with one use, which adds 1 to every byte if it writes. */
static inline void touch_kernel(void *user, unsigned char *const *bytes) {
  const late_use *const use = user;
  if (use->mode == QUAY_READ)
    return;
  for (uint64_t i = 0; i < use->size; i++)
    bytes[0][i]++;
}

static inline void launch_on(quay_stream *stream, const late_use *use) {
  OK(late_launch(quay_stream_native(stream), touch_kernel, (void *)(uintptr_t)use, use, 1));
}

/* The bytes as they are just now. */
static inline unsigned char peek(const memory *m, uint64_t offset) {
  unsigned char byte = 0;
  cr_assert(late_peek(m->address + offset, &byte, 1), "there is no memory to look at");
  return byte;
}

static inline void expect_bytes(const memory *m, unsigned char value) {
  for (uint64_t i = 0; i < m->size; i++) {
    const unsigned char byte = peek(m, i);
    cr_assert(byte == value, "byte %llu is 0x%02x, not 0x%02x", (unsigned long long)i, byte, value);
  }
}

static inline void expect_no_violations(void) {
  late_violation first;
  const uint64_t count = late_violations(&first, 1);
  cr_assert(count == 0, "%llu violations, the first: %s", (unsigned long long)count,
            count > 0 ? first.message : "");
}

/* At least one violation, the first of them of this kind; forgets them. */
static inline void expect_violation(late_violation_kind kind) {
  late_violation first = {.kind = kind, .message = "none at all"};
  const uint64_t count = late_violations(&first, 1);
  cr_assert(count > 0 && first.kind == kind, "expected kind %d, found %llu, the first: %s",
            (int)kind, (unsigned long long)count, first.message);
  late_violations_clear();
}

static inline void begin(late_mode mode) {
  const late_options options = {.mode = mode, .seed = 20, .ordered_free = true};
  OK(late_register(&options));
}

static inline void begin_manual(void) {
  begin(LATE_MANUAL);
}

/* Every test ends with it: nothing is left behind, nothing was broken. */
static inline void end(void) {
  expect_no_violations();
  OK(late_unregister());
}

#endif
