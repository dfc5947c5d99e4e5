/* What the tests of the core on the late backend share: buffers and streams of late devices, work
 * on them through accesses, and what is counted. */
#ifndef QUAY_TESTS_UNIT_LATE_CORE_H
#define QUAY_TESTS_UNIT_LATE_CORE_H

#include <stdio.h>
#include <string.h>

#include "support/late/late.h"
#include "support/pattern.h"

static inline void late_begin(const late_options *options) {
  MUST(late_register(options));
}

static inline void late_begin_manual(void) {
  late_begin(&(late_options){.mode = LATE_MANUAL, .seed = 41});
}

static inline void late_no_violations(void) {
  late_violation first = {.message = ""};
  const uint64_t count = late_violations(&first, 1);
  cr_assert(count == 0, "%llu violations, the first: %s", (unsigned long long)count, first.message);
}

/* Every test ends with it: nothing is left behind, nothing was broken. */
static inline void late_end(void) {
  late_run_all();
  MUST(quay_collect(NULL));
  late_no_violations();
  MUST(late_unregister());
}

static inline quay_buffer *late_buffer(const char *spec, uint64_t size, unsigned seed) {
  quay_allocator *allocator = open_spec(spec);
  quay_buffer *buffer = pattern_buffer(allocator, size, seed);
  quay_allocator_release(allocator);
  return buffer;
}

static inline quay_buffer *late_view(quay_buffer *buffer, uint64_t offset, uint64_t size) {
  quay_buffer *view = NULL;
  MUST(quay_buffer_view(buffer, offset, size, &view));
  return view;
}

static inline quay_stream *late_stream_of(uint32_t device) {
  quay_stream *stream = NULL;
  MUST(quay_stream_create(late_device_at(device), NULL, &stream));
  return stream;
}

static inline uint64_t late_calls(late_function function) {
  late_counts counts;
  late_count(&counts);
  return counts.calls[function];
}

/* Operations that were submitted and have not run. */
static inline uint64_t late_unfinished(void) {
  late_counts counts;
  late_count(&counts);
  return counts.submitted - counts.run;
}

static inline uint64_t late_blocks_live(void) {
  late_counts counts;
  late_count(&counts);
  return counts.blocks;
}

static inline quay_status late_try_copy(quay_stream *stream, quay_buffer *to, quay_buffer *from) {
  return quay_buffer_copy_region(to, 0, from, 0, quay_buffer_size(from),
                                 &(quay_copy_options){.stream = stream});
}

static inline void late_copy(quay_stream *stream, quay_buffer *to, quay_buffer *from) {
  MUST(late_try_copy(stream, to, from));
}

/* The plan's reason holds the text. */
static inline void late_plan_says(quay_stream *stream, quay_buffer *to, quay_buffer *from,
                                  const char *text) {
  quay_copy_plan_info plan;
  MUST(quay_copy_plan(to, 0, from, 0, quay_buffer_size(from),
                      &(quay_copy_options){.stream = stream}, &plan));
  cr_assert_not_null(strstr(plan.reason, text), "\"%s\" does not say \"%s\"", plan.reason, text);
}

/* Adds 1 to every byte if it writes. */
static inline void late_add_one(void *user, unsigned char *const *bytes) {
  const late_use *use = user;
  for (uint64_t i = 0; use->mode != QUAY_READ && i < use->size; i++)
    bytes[0][i]++;
}

/* A kernel over the whole buffer, inside an access. */
static inline void late_kernel_on(quay_stream *stream, quay_buffer *buffer, quay_use_mode mode) {
  static late_use uses[4096]; /* for each kernel of a test: they may run as late as its end */
  static size_t count;
  cr_assert_lt(count, sizeof(uses) / sizeof(uses[0]));
  late_use *use = &uses[count++];
  quay_access access;
  MUST(quay_access_begin(stream, &(quay_use){buffer, mode}, 1, &access));
  *use = (late_use){access.pointers[0], quay_buffer_size(buffer), mode};
  MUST(late_launch(quay_stream_native(stream), late_add_one, use, use, 1));
  MUST(quay_access_end(&access));
}

#endif
