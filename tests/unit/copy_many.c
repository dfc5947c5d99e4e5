/* Many copies at once: what is checked before, what is joined, what is gathered, what is left when
 * something fails. */
#include <criterion/criterion.h>
#include <quay/quay.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sim_cuda/control.h"
#include "support/files.h"
#include "support/late/late.h"
#include "support/pattern.h"

#define MIB (UINT64_C(1) << 20)

static const simcuda_control *sim;

static void find_driver(void) {
  sim = simcuda_control_get();
  cr_assert_not_null(sim, "the test needs the simulated driver");
  test_files_begin();
}

static void check_driver(void) {
  MUST(quay_shutdown());
  simcuda_census left;
  sim->count(&left);
  cr_expect_eq(left.host_bytes + left.device_bytes, 0u);
  cr_expect_eq(left.streams + left.events + left.retains, 0u);
  simcuda_violation violation = {.message = ""};
  cr_expect_eq(sim->violations(&violation, 1), 0u, "%s", violation.message);
  test_files_end();
}

TestSuite(copy_many, .init = find_driver, .fini = check_driver);

enum {
  TENSORS = 50,
  TENSOR = 1000,
  FILE_SIZE = TENSORS * TENSOR,
};

/* Tensors of a mapped file, each to a buffer of its own. */
typedef struct model {
  quay_allocator *allocator;
  quay_buffer *file;
  quay_buffer *tensors[TENSORS];
  quay_copy_pair pairs[TENSORS];
} model;

static model open_model(const char *spec) {
  model m = {.allocator = open_spec(spec),
             .file = test_map(test_file("model", FILE_SIZE, 7), QUAY_MAP_READ_ONLY)};
  for (int i = 0; i < TENSORS; i++) {
    m.tensors[i] = pattern_buffer(m.allocator, TENSOR, 1);
    m.pairs[i] = (quay_copy_pair){.destination = m.tensors[i],
                                  .source = m.file,
                                  .source_offset = (uint64_t)i * TENSOR,
                                  .size = TENSOR};
  }
  return m;
}

static void check_model(const model *m) {
  for (int i = 0; i < TENSORS; i++) {
    unsigned char bytes[TENSOR];
    MUST(quay_buffer_copy_out(m->tensors[i], bytes, TENSOR));
    cr_assert(test_matches(bytes, TENSOR, (uint64_t)i * TENSOR, 7), "tensor %d", i);
  }
}

static void close_model(model *m) {
  for (int i = 0; i < TENSORS; i++)
    quay_buffer_release(m->tensors[i]);
  quay_buffer_release(m->file);
  quay_allocator_release(m->allocator);
}

static void check_arrives(const char *spec) {
  model m = open_model(spec);
  MUST(quay_copy_many(m.pairs, TENSORS, NULL));
  check_model(&m);
  close_model(&m);
}

Test(copy_many, every_byte_arrives_in_every_kind_of_memory) {
  check_arrives("cpu");
  check_arrives("cuda:0");
  check_arrives("cuda:0,memory=pinned");
  check_arrives("track+cuda:1");
  check_arrives("fault:nth=100000+cuda:0");
}

Test(copy_many, small_tensors_of_a_file_go_to_a_device_in_one_batch) {
  model m = open_model("cuda:0");
  const uint64_t batches = sim->calls("cuMemcpyBatchAsync_v2");
  const uint64_t single = sim->calls("cuMemcpyHtoDAsync_v2");
  const uint64_t waits = sim->calls("cuStreamSynchronize");
  MUST(quay_copy_many(m.pairs, TENSORS, NULL));
  cr_assert_eq(sim->calls("cuMemcpyBatchAsync_v2") - batches, 1u);
  cr_assert_eq(sim->calls("cuMemcpyHtoDAsync_v2"), single);
  cr_assert_eq(sim->calls("cuStreamSynchronize") - waits, 1u);
  check_model(&m);
  close_model(&m);
}

/* A batch is gathered in a slot of a MiB; without one each goes by itself. */
Test(copy_many, small_tensors_are_gathered_in_no_more_memory_than_the_caller_allows) {
  static const uint64_t allowed[] = {4096, MIB - 1, MIB, 2 * MIB};
  for (size_t i = 0; i < sizeof allowed / sizeof allowed[0]; i++) {
    const quay_copy_options options = {.max_staging_bytes = allowed[i]};
    model m = open_model("cuda:0");
    const uint64_t batches = sim->calls("cuMemcpyBatchAsync_v2");
    MUST(quay_copy_many(m.pairs, TENSORS, &options));
    const uint64_t made = sim->calls("cuMemcpyBatchAsync_v2") - batches;
    cr_assert_eq(made, allowed[i] < MIB ? (unsigned)TENSORS : 1u, "%llu allowed, %llu",
                 (unsigned long long)allowed[i], (unsigned long long)made);
    check_model(&m);
    close_model(&m);
  }
}

Test(copy_many, neighbours_on_both_sides_become_one_copy) {
  quay_allocator *allocator = open_spec("cuda:0");
  quay_buffer *file = test_map(test_file("model", FILE_SIZE, 7), QUAY_MAP_READ_ONLY);
  quay_buffer *to = pattern_buffer(allocator, FILE_SIZE, 1);
  quay_copy_pair pairs[TENSORS];
  for (int i = 0; i < TENSORS; i++) {
    const uint64_t at = (uint64_t)i * TENSOR;
    pairs[i] = (quay_copy_pair){to, at, file, at, TENSOR};
  }
  const uint64_t before = sim->calls("cuMemcpyHtoDAsync_v2") + sim->calls("cuMemcpyBatchAsync_v2");
  MUST(quay_copy_many(pairs, TENSORS, NULL));
  const uint64_t after = sim->calls("cuMemcpyHtoDAsync_v2") + sim->calls("cuMemcpyBatchAsync_v2");
  cr_assert_eq(after - before, 1u);
  cr_assert(test_buffer_is(to, 0, 7));
  quay_buffer_release(to);
  quay_buffer_release(file);
  quay_allocator_release(allocator);
}

Test(copy_many, a_bad_pair_anywhere_is_named_and_nothing_moves) {
  model m = open_model("cpu");
  m.pairs[TENSORS - 1].size = TENSOR + 1;
  MUST_FAIL(quay_copy_many(m.pairs, TENSORS, NULL), OUT_OF_RANGE);
  cr_assert_not_null(strstr(quay_last_error()->message, "pair 49 of 50"), "%s",
                     quay_last_error()->message);
  m.pairs[TENSORS - 1].source = NULL;
  MUST_FAIL(quay_copy_many(m.pairs, TENSORS, NULL), INVALID_ARGUMENT);
  MUST_FAIL(quay_copy_many(NULL, 1, NULL), INVALID_ARGUMENT);
  for (int i = 0; i < TENSORS; i++)
    pattern_check_buffer(m.tensors[i], 0, 1);
  close_model(&m);
}

Test(copy_many, no_pairs_and_no_bytes_are_nothing_to_do) {
  quay_buffer *empty = pattern_buffer(NULL, 0, 1), *full = pattern_buffer(NULL, 10, 2);
  MUST(quay_copy_many(NULL, 0, NULL));
  const quay_copy_options bad = {.max_staging_bytes = 1};
  cr_assert_eq(quay_copy_many(NULL, 0, &bad), QUAY_STATUS_INVALID_ARGUMENT);
  cr_assert_not_null(strstr(quay_last_error()->message, "max_staging_bytes is 1"));
  const quay_copy_pair pairs[] = {{empty, 0, empty, 0, 0}, {full, 10, empty, 0, 0}};
  MUST(quay_copy_many(pairs, 2, NULL));
  pattern_check_buffer(full, 0, 2);
  quay_buffer_release(empty);
  quay_buffer_release(full);
}

typedef struct told {
  uint64_t last, total;
} told;

static bool note(void *user, uint64_t done, uint64_t total) {
  told *seen = user;
  cr_assert_geq(done, seen->last);
  seen->last = done;
  seen->total = total;
  return true;
}

static bool stop(void *user, uint64_t done, uint64_t total) {
  (void)user;
  (void)done;
  (void)total;
  return false;
}

static bool stop_later(void *user, uint64_t done, uint64_t total) {
  *(uint64_t *)user = done;
  return done < total / 2;
}

Test(copy_many, a_stop_is_told_of_the_whole_list) {
  static const char *const specs[] = {"cpu", "cuda:0"};
  for (int i = 0; i < 2; i++) {
    model m = open_model(specs[i]);
    uint64_t done = 0;
    const quay_copy_options options = {.progress = stop_later, .progress_user = &done};
    MUST_FAIL(quay_copy_many(m.pairs, TENSORS, &options), CANCELLED);
    char expected[200];
    snprintf(
        expected, sizeof expected,
        "the progress callback stopped the copy at %llu of %llu bytes; all destinations' bytes "
        "are undefined now",
        (unsigned long long)done, (unsigned long long)FILE_SIZE);
    cr_expect_str_eq(quay_last_error()->message, expected);
    close_model(&m);
  }
}

Test(copy_many, progress_is_told_of_all_pairs_together_and_can_stop_them) {
  static const char *const specs[] = {"cpu", "cuda:0"};
  for (int i = 0; i < 2; i++) {
    model m = open_model(specs[i]);
    told seen = {.last = 0};
    const quay_copy_options options = {.progress = note, .progress_user = &seen};
    MUST(quay_copy_many(m.pairs, TENSORS, &options));
    cr_assert_eq(seen.last, (uint64_t)FILE_SIZE);
    cr_assert_eq(seen.total, (uint64_t)FILE_SIZE);
    MUST_FAIL(quay_copy_many(m.pairs, TENSORS, &(quay_copy_options){.progress = stop}), CANCELLED);
    close_model(&m);
  }
}

/* What a callback on a stream has been told. */
typedef struct watched {
  told seen;
  unsigned calls;
  bool whole; /* the total was always that of the whole list */
} watched;

static bool watch(void *user, uint64_t done, uint64_t total) {
  watched *w = user;
  w->calls++;
  w->whole = w->whole && total == 2 * (uint64_t)FILE_SIZE;
  return note(&w->seen, done, total);
}

/* Half of the list would be submitted if nobody asked for progress, half comes from a file. */
static void check_progress_on_stream(const char *spec) {
  model m = open_model(spec);
  quay_stream *stream = NULL;
  MUST(quay_stream_create(quay_allocator_device(m.allocator), NULL, &stream));
  quay_buffer *from = pattern_buffer(m.allocator, FILE_SIZE, 5);
  quay_buffer *to = pattern_buffer(m.allocator, FILE_SIZE, 1);
  enum {
    PAIRS = 2 * TENSORS
  };
  quay_copy_pair pairs[PAIRS];
  for (uint64_t i = 0; i < TENSORS; i++) {
    pairs[2 * i] = m.pairs[i];
    const uint64_t at = (TENSORS - 1 - i) * TENSOR; /* no neighbours */
    pairs[2 * i + 1] = (quay_copy_pair){to, at, from, at, TENSOR};
  }
  watched w = {.whole = true};
  const quay_copy_options options = {.stream = stream, .progress = watch, .progress_user = &w};
  MUST(quay_buffer_fill_on(from, "abcd", 4, stream)); /* comes before what the list reads */
  MUST(quay_copy_many(pairs, PAIRS, &options));
  cr_assert(w.whole, "a pair reported by itself");
  cr_assert_eq(w.seen.last, 2 * (uint64_t)FILE_SIZE);
  cr_assert_geq(w.calls, 2u);
  check_model(&m);
  unsigned char bytes[4];
  for (uint64_t at = 0; at < FILE_SIZE; at += TENSOR) {
    quay_buffer *window = NULL;
    MUST(quay_buffer_view(to, at, 4, &window));
    MUST(quay_buffer_copy_out(window, bytes, 4));
    cr_assert_eq(memcmp(bytes, "abcd", 4), 0, "read before the stream had written it");
    quay_buffer_release(window);
  }
  quay_buffer_release(to);
  quay_buffer_release(from);
  quay_stream_release(stream);
  close_model(&m);
}

Test(copy_many, on_a_stream_progress_is_told_of_all_pairs_together) {
  check_progress_on_stream("cuda:0");
  MUST(late_register(NULL));
  check_progress_on_stream("late:0");
  cr_assert_eq(late_violations(NULL, 0), 0u);
  MUST(late_unregister());
}

Test(copy_many, on_a_stream_progress_can_stop_the_list_between_pairs) {
  model m = open_model("cuda:0");
  quay_stream *stream = NULL;
  MUST(quay_stream_create(quay_allocator_device(m.allocator), NULL, &stream));
  const quay_copy_options options = {.stream = stream, .progress = stop};
  MUST_FAIL(quay_copy_many(m.pairs, TENSORS, &options), CANCELLED);
  quay_stream_release(stream);
  close_model(&m);
}

/* The host's streams take copies one after the other. */
Test(copy_many, progress_is_told_of_all_pairs_together_on_a_stream_as_well) {
  quay_device *host = quay_device_host();
  quay_stream *stream = NULL;
  MUST(quay_stream_create(host, NULL, &stream));
  model m = open_model("cpu");
  told seen = {.last = 0};
  MUST(quay_copy_many(
      m.pairs, TENSORS,
      &(quay_copy_options){.stream = stream, .progress = note, .progress_user = &seen}));
  cr_assert_eq(seen.last, (uint64_t)FILE_SIZE);
  cr_assert_eq(seen.total, (uint64_t)FILE_SIZE);
  close_model(&m);
  quay_stream_release(stream);
  quay_device_release(host);
}

typedef struct giver {
  quay_buffer *buffers[4];
  quay_allocator *allocator;
  uint64_t live;
  bool lost;
} giver;

static uint64_t live(quay_allocator *allocator) {
  quay_stats stats;
  MUST(quay_allocator_stats(allocator, &stats));
  return stats.live_bytes;
}

static bool give_back(void *user, uint64_t done, uint64_t total) {
  giver *g = user;
  for (int i = 0; i < 4; i++) {
    quay_buffer_release(g->buffers[i]);
    g->buffers[i] = NULL;
  }
  g->lost = g->lost || live(g->allocator) != g->live;
  return !g->lost && done <= total;
}

static void check_kept(quay_allocator *allocator, quay_stream *stream) {
  enum {
    SIZE = 100000
  };
  giver g = {.allocator = allocator, .live = 4 * (uint64_t)SIZE};
  for (int i = 0; i < 4; i++)
    g.buffers[i] = pattern_buffer(g.allocator, SIZE, (unsigned)i);
  const quay_copy_pair pairs[] = {{g.buffers[0], 0, g.buffers[1], 0, SIZE},
                                  {g.buffers[2], 0, g.buffers[3], 0, SIZE}};
  const quay_copy_options options = {.stream = stream, .progress = give_back, .progress_user = &g};
  const quay_status status = quay_copy_many(pairs, 2, &options);
  cr_assert_not(g.lost);
  cr_assert_eq(status, QUAY_OK, "%s", quay_last_error()->message);
  cr_assert_eq(live(allocator), 0);
}

Test(copy_many, buffers_that_a_callback_releases_are_kept_until_all_is_done) {
  quay_allocator *allocator = NULL;
  quay_stream *stream = NULL;
  MUST(quay_allocator_open("track+cpu", &allocator));
  MUST(quay_stream_create(quay_allocator_device(allocator), NULL, &stream));
  check_kept(allocator, NULL);
  check_kept(allocator, stream);
  quay_stream_release(stream);
  quay_allocator_release(allocator);
}

/* On the stream of a backend whose streams run late. */
static void check_on_stream(quay_allocator *allocator, quay_allocator *pinned) {
  quay_stream *stream = NULL;
  MUST(quay_stream_create(quay_allocator_device(allocator), NULL, &stream));
  quay_buffer *from = pattern_buffer(pinned, FILE_SIZE, 5);
  quay_buffer *to[TENSORS];
  quay_copy_pair pairs[TENSORS];
  for (int i = 0; i < TENSORS; i++) {
    to[i] = pattern_buffer(allocator, TENSOR, 1);
    pairs[i] = (quay_copy_pair){to[i], 0, from, (uint64_t)(TENSORS - 1 - i) * TENSOR, TENSOR};
  }
  MUST(quay_copy_many(pairs, TENSORS, &(quay_copy_options){.stream = stream}));
  quay_buffer_release(from); /* kept until the copies are done */
  for (int i = 0; i < TENSORS; i++) {
    pattern_check_buffer(to[i], (uint64_t)(TENSORS - 1 - i) * TENSOR, 5);
    quay_buffer_release(to[i]);
  }
  quay_stream_release(stream);
  MUST(quay_collect(NULL));
}

Test(copy_many, on_a_stream_all_are_submitted_and_recorded_with_one_event) {
  quay_allocator *device = open_spec("cuda:0"), *pinned = open_spec("cuda:0,memory=pinned");
  const uint64_t events = sim->calls("cuEventRecord");
  check_on_stream(device, pinned);
  cr_assert_leq(sim->calls("cuEventRecord") - events, 3u);
  quay_allocator_release(device);
  quay_allocator_release(pinned);
}

Test(copy_many, on_a_late_stream_every_use_waits_for_its_copy) {
  MUST(late_register(NULL));
  quay_allocator *device = open_spec("late:0"), *pinned = open_spec("late:0,memory=pinned");
  check_on_stream(device, pinned);
  cr_assert_eq(late_violations(NULL, 0), 0u);
  quay_allocator_release(device);
  quay_allocator_release(pinned);
  MUST(late_unregister());
}

Test(copy_many, a_failing_batch_says_that_bytes_are_undefined_and_the_next_one_is_whole) {
  static const char *const calls[] = {"cuMemcpyBatchAsync_v2", "cuStreamSynchronize",
                                      "cuEventRecord"};
  model m = open_model("cuda:0");
  for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
    sim->fail(calls[i], 1, 999);
    cr_assert_neq(quay_copy_many(m.pairs, TENSORS, NULL), QUAY_OK, "%s", calls[i]);
    cr_assert_not_null(strstr(quay_last_error()->message, "undefined"), "%s",
                       quay_last_error()->message);
    MUST(quay_copy_many(m.pairs, TENSORS, NULL));
    check_model(&m);
  }
  close_model(&m);
}

static void find_old_driver(void) {
  cr_assert_eq(setenv("SIMCUDA_MISSING", "cuMemcpyBatchAsync", 1), 0);
  find_driver();
}

Test(copy_many, where_the_driver_has_no_batches_the_pieces_go_one_by_one_with_one_wait,
     .init = find_old_driver) {
  model m = open_model("cuda:0");
  const uint64_t waits = sim->calls("cuStreamSynchronize");
  MUST(quay_copy_many(m.pairs, TENSORS, NULL));
  cr_assert_eq(sim->calls("cuStreamSynchronize") - waits, 1u);
  check_model(&m);
  close_model(&m);
}

/* 6 MiB through slots of 1 MiB. */
Test(copy_many, many_slots_of_small_pieces_arrive_whole) {
  enum {
    COUNT = 200,
    SIZE = 31000
  };
  quay_allocator *device = open_spec("cuda:0");
  quay_buffer *file = test_map(test_file("large", (uint64_t)COUNT * SIZE, 9), QUAY_MAP_READ_ONLY);
  quay_buffer *to = pattern_buffer(device, (uint64_t)COUNT * SIZE, 1);
  quay_copy_pair pairs[COUNT];
  for (uint64_t i = 0; i < COUNT; i++) /* neighbours in the file alone */
    pairs[i] = (quay_copy_pair){to, (COUNT - 1 - i) * SIZE, file, i * SIZE, SIZE};
  MUST(quay_copy_many(pairs, COUNT, NULL));
  unsigned char *bytes = malloc((size_t)COUNT * SIZE);
  MUST(quay_buffer_copy_out(to, bytes, (uint64_t)COUNT * SIZE));
  for (uint64_t i = 0; i < COUNT; i++)
    cr_assert(test_matches(bytes + (COUNT - 1 - i) * SIZE, SIZE, i * SIZE, 9));
  free(bytes);
  quay_buffer_release(to);
  quay_buffer_release(file);
  quay_allocator_release(device);
}

Test(copy_many, many_copies_wait_for_work_on_both_sides) {
  model m = open_model("cuda:0");
  quay_stream *stream = NULL;
  MUST(quay_stream_create(quay_allocator_device(m.allocator), NULL, &stream));
  /* What keeps the stream from the tensors for much longer than the copies take. */
  quay_buffer *large = NULL;
  MUST(quay_buffer_create(m.allocator, QUAY_U8, 1, (int64_t[]){16 << 20}, NULL, &large));
  for (int i = 0; i < 40; i++)
    MUST(quay_buffer_fill_on(large, "x", 1, stream));
  for (int i = 0; i < TENSORS; i++)
    MUST(quay_buffer_fill_on(m.tensors[i], "abcd", 4, stream));
  MUST(quay_copy_many(m.pairs, TENSORS, NULL));
  MUST(quay_stream_synchronize(stream));
  check_model(&m);
  quay_buffer_release(large);
  quay_stream_release(stream);
  close_model(&m);
}

Test(copy_many, on_a_stream_pairs_that_cannot_be_submitted_go_one_by_one_in_its_order) {
  model m = open_model("cuda:0");
  quay_stream *stream = NULL;
  MUST(quay_stream_create(quay_allocator_device(m.allocator), NULL, &stream));
  for (int i = 0; i < TENSORS; i++)
    MUST(quay_buffer_fill_on(m.tensors[i], "abcd", 4, stream));
  MUST(quay_copy_many(m.pairs, TENSORS, &(quay_copy_options){.stream = stream}));
  MUST(quay_stream_synchronize(stream));
  check_model(&m);
  quay_stream_release(stream);
  close_model(&m);
}

Test(copy_many, on_a_stream_the_first_of_them_that_fails_ends_the_list) {
  model m = open_model("cuda:0");
  quay_stream *stream = NULL;
  MUST(quay_stream_create(quay_allocator_device(m.allocator), NULL, &stream));
  quay_buffer *other = test_map(test_file("other", FILE_SIZE, 8), QUAY_MAP_READ_ONLY);
  cr_assert_eq(truncate(test_path("other"), 1), 0);
  m.pairs[TENSORS / 2].source = other;
  MUST_FAIL(quay_copy_many(m.pairs, TENSORS, &(quay_copy_options){.stream = stream}), IO);
  MUST(quay_stream_synchronize(stream));
  unsigned char bytes[TENSOR];
  MUST(quay_buffer_copy_out(m.tensors[0], bytes, TENSOR));
  cr_assert(test_matches(bytes, TENSOR, 0, 7), "the first one");
  pattern_check_buffer(m.tensors[TENSORS - 1], 0, 1);
  quay_buffer_release(other);
  quay_stream_release(stream);
  close_model(&m);
}
