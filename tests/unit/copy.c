/* Copies and fills: sizes, ranges, overlap, neighbours, progress, errors. Routes are in
 * copy_route.c. */
#include "support/manual_device.h"
#include "support/pattern.h"

#include <pthread.h>
#include <string.h>

/* Around what the library calls small and beyond what it cuts into pieces. */
static const uint64_t sizes[] = {
    1, 3, 64, 4095, 4096, 4097, (1u << 20) - 1, 1u << 20, (1u << 20) + 1, 5 * (1u << 20) + 12345};
enum {
  SIZE_COUNT = sizeof(sizes) / sizeof(sizes[0])
};

Test(copy, in_and_out_move_every_byte_at_odd_offsets) {
  for (size_t i = 0; i < SIZE_COUNT; i++) {
    const uint64_t size = sizes[i];
    quay_buffer *b = pattern_buffer(NULL, size + 77, 1), *v = NULL;
    unsigned char *bytes = malloc(size + 1);
    pattern_make(bytes, size, 2);
    MUST(quay_buffer_view(b, 33, size, &v));
    MUST(quay_buffer_copy_in(v, bytes, size));
    memset(bytes, 0, size);
    bytes[size] = 0x5a;
    MUST(quay_buffer_copy_out(v, bytes, size));
    pattern_check(bytes, 0, size, 2);
    cr_assert_eq(bytes[size], 0x5a);
    const void *all = NULL;
    MUST(quay_buffer_host_bytes(b, &all, NULL));
    pattern_check(all, 0, 33, 1);
    pattern_check((const unsigned char *)all + 33 + size, 33 + size, 44, 1);
    free(bytes);
    quay_buffer_release(v);
    quay_buffer_release(b);
  }
}

Test(copy, copy_from_moves_every_byte_between_windows) {
  for (size_t i = 0; i < SIZE_COUNT; i++) {
    const uint64_t size = sizes[i];
    quay_buffer *source = pattern_buffer(NULL, size + 31, 1), *from = NULL;
    quay_buffer *destination = pattern_buffer(NULL, size + 77, 2), *to = NULL;
    MUST(quay_buffer_view(source, 7, size, &from));
    MUST(quay_buffer_view(destination, 33, size, &to));
    MUST(quay_buffer_copy_from(to, from));
    pattern_check_buffer(to, 7, 1);
    const void *all = NULL;
    MUST(quay_buffer_host_bytes(destination, &all, NULL));
    pattern_check(all, 0, 33, 2);
    pattern_check((const unsigned char *)all + 33 + size, 33 + size, 44, 2);
    quay_buffer_release(from);
    quay_buffer_release(to);
    quay_buffer_release(source);
    quay_buffer_release(destination);
  }
}

Test(copy, null_arguments_are_refused) {
  quay_buffer *b = pattern_buffer(NULL, 10, 1);
  unsigned char bytes[10];
  quay_copy_plan_info plan;
  MUST_FAIL(quay_buffer_copy_in(NULL, bytes, 10), INVALID_ARGUMENT);
  MUST_FAIL(quay_buffer_copy_in(b, NULL, 10), INVALID_ARGUMENT);
  cr_assert_not_null(strstr(quay_last_error()->message, "source"));
  MUST_FAIL(quay_buffer_copy_out(NULL, bytes, 10), INVALID_ARGUMENT);
  MUST_FAIL(quay_buffer_copy_out(b, NULL, 10), INVALID_ARGUMENT);
  MUST_FAIL(quay_buffer_copy_from(NULL, b), INVALID_ARGUMENT);
  MUST_FAIL(quay_buffer_copy_from(b, NULL), INVALID_ARGUMENT);
  MUST_FAIL(quay_buffer_copy_region(NULL, 0, b, 0, 1, NULL), INVALID_ARGUMENT);
  MUST_FAIL(quay_buffer_copy_region(b, 0, NULL, 0, 1, NULL), INVALID_ARGUMENT);
  MUST_FAIL(quay_copy_plan(NULL, 0, b, 0, 1, NULL, &plan), INVALID_ARGUMENT);
  MUST_FAIL(quay_copy_plan(b, 0, NULL, 0, 1, NULL, &plan), INVALID_ARGUMENT);
  MUST_FAIL(quay_copy_plan(b, 0, b, 0, 1, NULL, NULL), INVALID_ARGUMENT);
  MUST_FAIL(quay_buffer_fill(NULL, "a", 1), INVALID_ARGUMENT);
  MUST_FAIL(quay_buffer_fill(b, NULL, 1), INVALID_ARGUMENT);
  quay_buffer_release(b);
}

Test(copy, copy_from_refuses_a_size_mismatch_and_moves_nothing) {
  quay_buffer *a = pattern_buffer(NULL, 10, 1), *b = pattern_buffer(NULL, 11, 2);
  MUST_FAIL(quay_buffer_copy_from(a, b), SIZE_MISMATCH);
  MUST_FAIL(quay_buffer_copy_from(b, a), SIZE_MISMATCH);
  pattern_check_buffer(a, 0, 1);
  pattern_check_buffer(b, 0, 2);
  quay_buffer_release(a);
  quay_buffer_release(b);
}

Test(copy, in_and_out_refuse_a_size_mismatch_and_move_nothing) {
  quay_buffer *b = pattern_buffer(NULL, 10, 1);
  unsigned char bytes[11];
  pattern_make(bytes, sizeof(bytes), 2);
  static const uint64_t wrong[] = {0, 9, 11, UINT64_MAX};
  for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
    MUST_FAIL(quay_buffer_copy_in(b, bytes, wrong[i]), SIZE_MISMATCH);
    MUST_FAIL(quay_buffer_copy_out(b, bytes, wrong[i]), SIZE_MISMATCH);
  }
  pattern_check(bytes, 0, 11, 2);
  pattern_check_buffer(b, 0, 1);
  quay_buffer_release(b);
}

Test(copy, dtypes_are_not_compared) {
  quay_buffer *bytes = pattern_buffer(NULL, 24, 1), *doubles = NULL;
  MUST(quay_buffer_create(NULL, QUAY_F64, 1, (int64_t[]){3}, NULL, &doubles));
  MUST(quay_buffer_copy_from(doubles, bytes));
  pattern_check_buffer(doubles, 0, 1);
  quay_buffer_release(bytes);
  quay_buffer_release(doubles);
}

Test(copy, zero_bytes_move_nothing_and_succeed) {
  quay_buffer *b = pattern_buffer(NULL, 10, 1), *empty = NULL, *other = NULL;
  MUST(quay_buffer_view(b, 5, 0, &empty));
  MUST(quay_buffer_create(NULL, QUAY_U8, 1, (int64_t[]){0}, NULL, &other));
  MUST(quay_buffer_copy_in(empty, NULL, 0));
  MUST(quay_buffer_copy_out(empty, NULL, 0));
  MUST(quay_buffer_copy_from(empty, other));
  MUST(quay_buffer_copy_from(other, empty));
  MUST(quay_buffer_copy_region(b, 10, b, 0, 0, NULL));
  MUST(quay_buffer_fill(empty, "abcd", 4));
  pattern_check_buffer(b, 0, 1);
  quay_buffer_release(empty);
  quay_buffer_release(other);
  quay_buffer_release(b);
}

Test(copy, zero_bytes_never_reach_a_backend) {
  quay_allocator *a = manual_open(&(manual_options){0});
  quay_buffer *d = NULL, *s = NULL;
  MUST(quay_buffer_create(a, QUAY_U8, 1, (int64_t[]){0}, NULL, &d));
  MUST(quay_buffer_create(NULL, QUAY_U8, 1, (int64_t[]){0}, NULL, &s));
  MUST(quay_buffer_copy_in(d, NULL, 0));
  MUST(quay_buffer_copy_out(d, NULL, 0));
  MUST(quay_buffer_copy_from(d, s));
  MUST(quay_buffer_copy_from(s, d));
  MUST(quay_buffer_fill(d, "abcd", 4));
  cr_assert_eq(atomic_load(&manual.copy_in), 0);
  cr_assert_eq(atomic_load(&manual.copy_out), 0);
  cr_assert_eq(atomic_load(&manual.fill), 0);
  quay_buffer_release(d);
  quay_buffer_release(s);
  quay_allocator_release(a);
}

Test(copy, zero_bytes_still_have_their_range_checked) {
  quay_buffer *b = pattern_buffer(NULL, 10, 1);
  MUST_FAIL(quay_buffer_copy_region(b, 11, b, 0, 0, NULL), OUT_OF_RANGE);
  MUST_FAIL(quay_buffer_copy_region(b, 0, b, 11, 0, NULL), OUT_OF_RANGE);
  quay_buffer_release(b);
}

Test(copy, copy_region_moves_the_region_alone) {
  quay_buffer *s = pattern_buffer(NULL, 100, 1), *d = pattern_buffer(NULL, 90, 2), *v = NULL;
  MUST(quay_buffer_view(d, 10, 70, &v));
  MUST(quay_buffer_copy_region(v, 3, s, 41, 17, NULL));
  unsigned char all[90];
  MUST(quay_buffer_copy_out(d, all, 90));
  pattern_check(all, 0, 13, 2);
  pattern_check(all + 13, 41, 17, 1);
  pattern_check(all + 30, 30, 60, 2);
  quay_buffer_release(v);
  quay_buffer_release(s);
  quay_buffer_release(d);
}

Test(copy, copy_region_refuses_ranges_that_reach_outside_or_wrap) {
  static const uint64_t bad[][3] = {{0, 0, 11},         {5, 0, 6},
                                    {0, 5, 6},          {11, 0, 1},
                                    {0, 11, 1},         {UINT64_MAX, 0, 1},
                                    {0, UINT64_MAX, 1}, {1, 1, UINT64_MAX},
                                    {UINT64_MAX, 0, 2}, {0, UINT64_MAX - 3, 8}};
  quay_buffer *a = pattern_buffer(NULL, 10, 1), *b = pattern_buffer(NULL, 10, 2);
  for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
    MUST_FAIL(quay_buffer_copy_region(a, bad[i][0], b, bad[i][1], bad[i][2], NULL), OUT_OF_RANGE);
  }
  pattern_check_buffer(a, 0, 1);
  quay_buffer_release(a);
  quay_buffer_release(b);
}

/* Moves 2/3 of a buffer by `shift` bytes up or down, and checks all of it. */
static void move_overlapping(quay_allocator *allocator, uint64_t size, uint64_t shift, bool up,
                             const quay_copy_options *options) {
  const uint64_t part = size - shift;
  quay_buffer *b = pattern_buffer(allocator, size, 1), *low = NULL, *high = NULL;
  MUST(quay_buffer_view(b, 0, part, &low));
  MUST(quay_buffer_view(b, shift, part, &high));
  MUST(quay_buffer_copy_region(up ? high : low, 0, up ? low : high, 0, part, options));
  pattern_check_buffer(up ? high : low, up ? 0 : shift, 1);
  unsigned char *all = malloc(size);
  MUST(quay_buffer_copy_out(b, all, size));
  if (up)
    pattern_check(all, 0, shift, 1);
  if (!up)
    pattern_check(all + part, part, shift, 1);
  free(all);
  quay_buffer_release(low);
  quay_buffer_release(high);
  quay_buffer_release(b);
}

static bool go_on(void *user, uint64_t done, uint64_t total) {
  (void)user;
  return done <= total;
}

Test(copy, overlapping_windows_behave_as_memmove_on_every_route) {
  static const char *const specs[] = {"cpu", "track+cpu"};
  const quay_copy_options sliced = {.progress = go_on};
  for (size_t i = 0; i < 2; i++) {
    quay_allocator *a = open_spec(specs[i]);
    for (int up = 0; up < 2; up++) {
      for (int progress = 0; progress < 2; progress++) {
        const quay_copy_options *options = progress ? &sliced : NULL;
        move_overlapping(a, 100, 1, up, options);
        move_overlapping(a, 5 * (1u << 20) + 99, 1, up, options);
        move_overlapping(a, 5 * (1u << 20) + 99, 1 << 20, up, options);
        move_overlapping(a, 5 * (1u << 20) + 99, 3 << 20, up, options);
      }
    }
    quay_allocator_release(a);
  }
}

Test(copy, a_copy_onto_itself_changes_nothing) {
  quay_buffer *b = pattern_buffer(NULL, 3 << 20, 1);
  MUST(quay_buffer_copy_from(b, b));
  pattern_check_buffer(b, 0, 1);
  quay_buffer_release(b);
}

Test(copy, the_host_pointer_may_lie_in_the_buffer_itself) {
  for (uint64_t size = 1000; size < 4 << 20; size *= 64) {
    quay_buffer *b = pattern_buffer(NULL, size, 1), *v = NULL;
    const void *bytes = NULL;
    MUST(quay_buffer_host_bytes(b, &bytes, NULL));
    MUST(quay_buffer_view(b, 10, size - 10, &v));
    MUST(quay_buffer_copy_in(v, bytes, size - 10));
    pattern_check_buffer(v, 0, 1);
    quay_buffer_release(v);
    quay_buffer_release(b);
  }
}

/* Fill. */

Test(copy, fill_repeats_the_pattern_and_leaves_neighbours_alone) {
  static const unsigned char pattern[16] = {1,  2,  3,  5,  7,  11, 13, 17,
                                            19, 23, 29, 31, 37, 41, 43, 47};
  static const char *const specs[] = {"cpu", "track+cpu"};
  for (size_t s = 0; s < 2; s++) {
    quay_allocator *a = open_spec(specs[s]);
    const size_t filled = 1968; /* a whole number of every pattern */
    for (size_t p = 1; p <= 16; p *= 2) {
      quay_buffer *b = pattern_buffer(a, 4000, 1), *v = NULL;
      MUST(quay_buffer_view(b, 3, filled, &v));
      MUST(quay_buffer_fill(v, pattern, p));
      unsigned char all[4000];
      MUST(quay_buffer_copy_out(b, all, sizeof(all)));
      pattern_check(all, 0, 3, 1);
      size_t same = 0;
      while (same < filled && all[3 + same] == pattern[same % p])
        same++;
      cr_assert_eq(same, filled, "pattern of %zu bytes, byte %zu", p, same);
      pattern_check(all + 3 + filled, 3 + filled, 4000 - 3 - filled, 1);
      quay_buffer_release(v);
      quay_buffer_release(b);
    }
    quay_allocator_release(a);
  }
}

Test(copy, fill_refuses_other_patterns_and_broken_sizes) {
  quay_buffer *b = pattern_buffer(NULL, 12, 1);
  static const size_t bad[] = {0, 3, 5, 12, 17, 32, SIZE_MAX};
  for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
    MUST_FAIL(quay_buffer_fill(b, "0123456789abcdef", bad[i]), INVALID_ARGUMENT);
  }
  MUST_FAIL(quay_buffer_fill(b, "01234567", 8), SIZE_MISMATCH);
  pattern_check_buffer(b, 0, 1);
  quay_buffer_release(b);
}

/* Progress. */

typedef struct progress {
  unsigned calls;
  uint64_t last, total;
  uint64_t stop_at; /* 0: never */
  bool ordered;
} progress;

static bool note(void *user, uint64_t done, uint64_t total) {
  progress *p = user;
  if (p->calls == 0)
    p->ordered = true;
  p->ordered = p->ordered && done > p->last && done <= total;
  p->calls++;
  p->last = done;
  p->total = total;
  return p->stop_at == 0 || done < p->stop_at;
}

/* One pair of allocators a route: within by host copy, within by the backend, in, out, across and
 * staged. */
static quay_allocator *route_allocator(int route, bool destination) {
  switch (route) {
  case 0:
    return open_spec("cpu");
  case 1:
    return open_spec("track+cpu");
  case 2:
    return destination ? manual_open(&(manual_options){0}) : open_spec("cpu");
  case 3:
    return destination ? open_spec("cpu") : manual_open(&(manual_options){0});
  case 4:
    return manual_open(&(manual_options){.backend = destination ? "one" : "two", .across = true});
  default:
    return manual_open(&(manual_options){.backend = destination ? "one" : "two"});
  }
}
enum {
  ROUTES = 6
};

Test(copy, progress_goes_up_to_the_total_on_every_route) {
  const uint64_t size = (40u << 20) + 777;
  for (int route = 0; route < ROUTES; route++) {
    quay_allocator *to = route_allocator(route, true), *from = route_allocator(route, false);
    quay_buffer *s = pattern_buffer(from, size, 1), *d = pattern_buffer(to, size, 2);
    progress p = {0};
    MUST(quay_buffer_copy_region(
        d, 0, s, 0, size,
        &(quay_copy_options){.max_staging_bytes = 1 << 20, .progress = note, .progress_user = &p}));
    cr_assert(p.ordered, "route %d", route);
    cr_assert_gt(p.calls, 2, "route %d", route);
    cr_assert_eq(p.last, size);
    cr_assert_eq(p.total, size);
    pattern_check_buffer(d, 0, 1);
    quay_buffer_release(s);
    quay_buffer_release(d);
    quay_allocator_release(to);
    quay_allocator_release(from);
  }
}

typedef struct giver {
  quay_buffer *buffers[2];
  quay_allocator *allocators[2];
  bool lost;
} giver;

static uint64_t live(quay_allocator *allocator) {
  quay_stats stats;
  MUST(quay_allocator_stats(allocator, &stats));
  return stats.live_bytes;
}

static bool give_back(void *user, uint64_t done, uint64_t total) {
  giver *g = user;
  for (int i = 0; i < 2; i++) {
    quay_buffer_release(g->buffers[i]);
    g->buffers[i] = NULL;
    g->lost = g->lost || live(g->allocators[i]) != total;
  }
  return !g->lost && done <= total;
}

Test(copy, buffers_that_a_callback_releases_are_kept_until_the_copy_is_done) {
  const uint64_t size = (40u << 20) + 777;
  for (int route = 0; route < ROUTES; route++) {
    giver g = {.allocators = {route_allocator(route, true), route_allocator(route, false)}};
    g.buffers[0] = pattern_buffer(g.allocators[0], size, 2);
    g.buffers[1] = pattern_buffer(g.allocators[1], size, 1);
    const quay_copy_options options = {
        .max_staging_bytes = 1 << 20, .progress = give_back, .progress_user = &g};
    quay_status status = quay_buffer_copy_region(g.buffers[0], 0, g.buffers[1], 0, size, &options);
    cr_assert_not(g.lost, "route %d", route);
    cr_assert_eq(status, QUAY_OK, "route %d: %s", route, quay_last_error()->message);
    for (int i = 0; i < 2; i++) {
      cr_assert_eq(live(g.allocators[i]), 0);
      quay_allocator_release(g.allocators[i]);
    }
  }
}

Test(copy, a_callback_can_stop_every_route) {
  const uint64_t size = (40u << 20) + 777;
  for (int route = 0; route < ROUTES; route++) {
    quay_allocator *to = route_allocator(route, true), *from = route_allocator(route, false);
    quay_buffer *s = pattern_buffer(from, size, 1), *d = pattern_buffer(to, size, 2);
    progress p = {.stop_at = 2u << 20};
    const quay_copy_options options = {
        .max_staging_bytes = 1 << 20, .progress = note, .progress_user = &p};
    MUST_FAIL(quay_buffer_copy_region(d, 0, s, 0, size, &options), CANCELLED);
    cr_assert_lt(p.last, size, "route %d", route);
    cr_assert_not_null(strstr(quay_last_error()->message, "undefined"));
    quay_buffer_release(s);
    quay_buffer_release(d);
    quay_allocator_release(to);
    quay_allocator_release(from);
  }
}

/* Errors under way. */

Test(copy, a_copy_that_fails_says_that_the_bytes_are_undefined) {
  quay_allocator *a = manual_open(&(manual_options){0});
  quay_buffer *b = pattern_buffer(a, 100, 1), *c = pattern_buffer(a, 100, 1);
  unsigned char bytes[100] = {1};
  for (int way = 0; way < 3; way++) {
    atomic_store(&manual_fail_copies, 1);
    switch (way) {
    case 0:
      MUST_FAIL(quay_buffer_copy_in(b, bytes, 100), IO);
      break;
    case 1:
      MUST_FAIL(quay_buffer_copy_out(b, bytes, 100), IO);
      break;
    case 2:
      MUST_FAIL(quay_buffer_copy_from(b, c), IO);
      break;
    }
    cr_assert_not_null(strstr(quay_last_error()->message, "manual copy failure"));
    cr_assert_not_null(strstr(quay_last_error()->message, "undefined"));
    cr_assert_str_eq(quay_last_error()->native_name, "EIO");
  }
  quay_buffer_release(b);
  quay_buffer_release(c);
  quay_allocator_release(a);
}

/* Streams. */

Test(copy, a_stream_of_either_side_or_the_host_is_taken) {
  quay_allocator *a = manual_open(&(manual_options){.streams = true});
  quay_allocator *other = manual_open(&(manual_options){.backend = "other", .streams = true});
  quay_device *host = quay_device_host();
  quay_buffer *d = pattern_buffer(a, 100, 1), *s = pattern_buffer(NULL, 100, 2);
  quay_device *good[] = {host, quay_allocator_device(a)};
  for (int i = 0; i < 2; i++) {
    quay_copy_options options = {0};
    MUST(quay_stream_create(good[i], NULL, &options.stream));
    MUST(quay_buffer_copy_region(d, 0, s, 0, 100, &options));
    quay_stream_release(options.stream);
  }
  pattern_check_buffer(d, 0, 2);
  cr_assert_eq(atomic_load(&manual.stream_synchronize), 1);
  quay_copy_options options = {0};
  quay_copy_plan_info plan;
  MUST(quay_stream_create(quay_allocator_device(other), NULL, &options.stream));
  MUST_FAIL(quay_buffer_copy_region(d, 0, s, 0, 100, &options), INVALID_ARGUMENT);
  MUST_FAIL(quay_copy_plan(d, 0, s, 0, 100, &options, &plan), INVALID_ARGUMENT);
  quay_stream_release(options.stream);
  quay_buffer_release(d);
  quay_buffer_release(s);
  quay_device_release(host);
  quay_allocator_release(a);
  quay_allocator_release(other);
}

Test(copy, names_of_routes_and_kinds) {
  cr_assert_str_eq(quay_route_name(QUAY_ROUTE_NONE), "none");
  cr_assert_str_eq(quay_route_name(QUAY_ROUTE_WITHIN), "within");
  cr_assert_str_eq(quay_route_name(QUAY_ROUTE_DIRECT), "direct");
  cr_assert_str_eq(quay_route_name(QUAY_ROUTE_STAGED), "staged");
  cr_assert_str_eq(quay_route_name(QUAY_ROUTE_FILE), "file");
  cr_assert_str_eq(quay_route_name((quay_route)99), "none");
  cr_assert_str_eq(quay_memory_kind_name((quay_memory_kind)99), "none");
  cr_assert_str_eq(quay_memory_kind_name(QUAY_MEMORY_NONE), "none");
  cr_assert_str_eq(quay_memory_kind_name(QUAY_MEMORY_PAGEABLE), "pageable");
  cr_assert_str_eq(quay_memory_kind_name(QUAY_MEMORY_FILE), "file");
  cr_assert_str_eq(quay_memory_kind_name(QUAY_MEMORY_PINNED), "pinned");
  cr_assert_str_eq(quay_memory_kind_name(QUAY_MEMORY_MANAGED), "managed");
  cr_assert_str_eq(quay_memory_kind_name(QUAY_MEMORY_DEVICE), "device");
}

/* Threads. */

static void *copy_own_part(void *argument) {
  quay_buffer *view = argument;
  const uint64_t size = quay_buffer_size(view), at = quay_buffer_offset(view);
  unsigned char *bytes = malloc(size);
  for (unsigned round = 1; round <= 50; round++) {
    pattern_make(bytes, size, round);
    MUST(quay_buffer_copy_in(view, bytes, size));
    pattern_check_buffer(view, 0, round);
  }
  pattern_make(bytes, size, (unsigned)at);
  MUST(quay_buffer_copy_in(view, bytes, size));
  free(bytes);
  return NULL;
}

Test(copy, threads_may_copy_in_disjoint_windows_of_a_lazy_storage) {
  enum {
    THREADS = 4,
    PART = 10007
  };
  quay_buffer *b = NULL, *views[THREADS];
  pthread_t threads[THREADS];
  MUST(quay_buffer_create_lazy(NULL, QUAY_U8, 1, (int64_t[]){INT64_C(4) * PART}, NULL, &b));
  for (uint64_t i = 0; i < THREADS; i++) {
    MUST(quay_buffer_view(b, i * PART, PART, &views[i]));
    cr_assert_eq(pthread_create(&threads[i], NULL, copy_own_part, views[i]), 0);
  }
  for (unsigned i = 0; i < THREADS; i++) {
    pthread_join(threads[i], NULL);
    pattern_check_buffer(views[i], 0, i * PART);
    quay_buffer_release(views[i]);
  }
  quay_buffer_release(b);
}
