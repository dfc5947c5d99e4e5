/* Semaphores that CUDA and Vulkan share: the one waits for the other on the GPU, and the host does
 * not. While the shim's gate is closed nothing that was given to a queue of Vulkan runs, so that
 * whoever waits for it on the host waits for ever. */
#include <quay/log.h>

#include "cuda_vulkan_fixture.h"
#include "support/log.h"

#define SIZE 300000

/* One allocator, stream and buffers of each side. */
typedef struct sides {
  quay_allocator *cuda, *vulkan;
  quay_stream *in_cuda, *in_vulkan;
  quay_buffer *a, *b; /* CUDA's, Vulkan's */
} sides;

static sides open_sides(void) {
  sides s = {.cuda = open_spec("cuda:0"), .vulkan = open_spec("vulkan:0")};
  CHECK_OK(quay_stream_create(quay_allocator_device(s.cuda), NULL, &s.in_cuda));
  CHECK_OK(quay_stream_create(quay_allocator_device(s.vulkan), NULL, &s.in_vulkan));
  s.a = make_buffer(s.cuda, SIZE);
  s.b = make_buffer(s.vulkan, SIZE);
  return s;
}

/* What is freed while work is under way is freed later. */
static void settle(quay_stream *stream) {
  const quay_status status = quay_stream_synchronize(stream);
  cr_assert(status == QUAY_OK || status == QUAY_STATUS_DEVICE_LOST, "%s",
            quay_last_error()->message);
}

static void close_sides(sides *s) {
  settle(s->in_cuda);
  settle(s->in_vulkan);
  quay_buffer_release(s->b);
  quay_buffer_release(s->a);
  quay_stream_release(s->in_vulkan);
  quay_stream_release(s->in_cuda);
  CHECK_OK(quay_collect(NULL));
  quay_allocator_release(s->vulkan);
  quay_allocator_release(s->cuda);
}

static void copy_on(quay_buffer *destination, quay_buffer *source, quay_stream *stream) {
  const quay_copy_options options = {.stream = stream};
  CHECK_OK(quay_buffer_copy_region(destination, 0, source, 0, SIZE, &options));
}

static void check_bytes(const quay_buffer *buffer, unsigned char expected) {
  quay_test_block found = quay_test_block_make(SIZE, 0, 99);
  CHECK_OK(quay_buffer_copy_out(buffer, found.data, found.size));
  for (size_t i = 0; i < found.size; i++)
    cr_assert_eq(found.data[i], expected, "byte %zu is %u and not %u", i, found.data[i], expected);
  quay_test_block_free(&found);
}

/* The first copies import memory and semaphores. */
static void warm_up(sides *s) {
  write_pattern(s->a, 1);
  copy_on(s->b, s->a, s->in_vulkan);
  copy_on(s->a, s->b, s->in_cuda);
  CHECK_OK(quay_stream_synchronize(s->in_cuda));
  check_pattern(s->a, 1);
}

Test(cuda_vulkan_link, a_copy_on_a_stream_of_cuda_waits_for_work_of_vulkan_without_the_host,
     .init = setup_both, .fini = teardown_both, .timeout = 60) {
  sides s = open_sides();
  quay_event *event = NULL;
  bool done = true;
  write_pattern(s.a, 1);
  shim->gate(0);
  CHECK_OK(quay_buffer_fill_on(s.b, "\x21", 1, s.in_vulkan));
  copy_on(s.a, s.b, s.in_cuda);
  CHECK_OK(quay_event_record(s.in_cuda, &event));
  CHECK_OK(quay_event_query(event, &done));
  cr_assert_not(done, "the copy was before what it copies");
  shim->gate(1);
  check_bytes(s.a, 0x21);
  quay_event_release(event);
  close_sides(&s);
}

Test(cuda_vulkan_link, a_chain_over_both_sides_is_submitted_without_waiting_and_runs_in_order,
     .init = setup_both, .fini = teardown_both, .timeout = 60) {
  sides s = open_sides();
  quay_buffer *c = make_buffer(s.cuda, SIZE), *d = make_buffer(s.vulkan, SIZE);
  for (unsigned char round = 1; round < 6; round++) {
    const unsigned char other = (unsigned char)(round + 100), last = (unsigned char)(round + 200);
    shim->gate(0);
    CHECK_OK(quay_buffer_fill_on(s.b, &round, 1, s.in_vulkan));
    copy_on(s.a, s.b, s.in_cuda);                               /* after the fill */
    copy_on(d, s.a, s.in_vulkan);                               /* after the copy */
    CHECK_OK(quay_buffer_fill_on(s.b, &other, 1, s.in_vulkan)); /* after it was read */
    CHECK_OK(quay_buffer_fill_on(s.a, &last, 1, s.in_cuda));    /* the same */
    copy_on(c, d, s.in_cuda);
    shim->gate(1);
    check_bytes(c, round);
    check_bytes(d, round);
    check_bytes(s.b, other);
    check_bytes(s.a, last);
  }
  quay_buffer_release(d);
  quay_buffer_release(c);
  close_sides(&s);
}

Test(cuda_vulkan_link, an_access_on_one_side_waits_for_the_other_without_the_host,
     .init = setup_both, .fini = teardown_both, .timeout = 60) {
  sides s = open_sides();
  quay_access access;
  const quay_use uses[] = {{s.a, QUAY_WRITE}};
  warm_up(&s);
  shim->gate(0);
  CHECK_OK(quay_buffer_fill_on(s.b, "\x42", 1, s.in_vulkan));
  copy_on(s.a, s.b, s.in_vulkan);
  CHECK_OK(quay_access_begin(s.in_cuda, uses, 1, &access));
  CHECK_OK(quay_access_end(&access));
  shim->gate(1);
  check_bytes(s.a, 0x42);
  close_sides(&s);
}

Test(cuda_vulkan_link, streams_wait_for_events_of_the_other_side, .init = setup_both,
     .fini = teardown_both, .timeout = 60) {
  sides s = open_sides();
  quay_event *first = NULL, *second = NULL, *third = NULL;
  bool done = true;
  shim->gate(0);
  CHECK_OK(quay_buffer_fill_on(s.b, "\x21", 1, s.in_vulkan));
  CHECK_OK(quay_event_record(s.in_vulkan, &first));
  CHECK_OK(quay_stream_wait(s.in_cuda, first));
  CHECK_OK(quay_event_record(s.in_cuda, &second));
  CHECK_OK(quay_stream_wait(s.in_vulkan, second));
  CHECK_OK(quay_event_record(s.in_vulkan, &third));
  CHECK_OK(quay_event_query(second, &done));
  cr_assert_not(done);
  shim->gate(1);
  CHECK_OK(quay_event_synchronize(third));
  CHECK_OK(quay_event_query(second, &done));
  cr_assert(done, "what came later is done, and it is not");
  quay_event_release(third);
  quay_event_release(second);
  quay_event_release(first);
  close_sides(&s);
}

Test(cuda_vulkan_link, plans_say_how_a_copy_on_a_stream_of_either_side_goes, .init = setup_both,
     .fini = teardown_both) {
  sides s = open_sides();
  const char *const reasons[] = {
      plan_on(s.a, s.b, s.in_cuda).reason, plan_on(s.b, s.a, s.in_cuda).reason,
      plan_on(s.a, s.b, s.in_vulkan).reason, plan_on(s.b, s.a, s.in_vulkan).reason};
  for (size_t i = 0; i < 4; i++) {
    cr_assert_not_null(strstr(reasons[i], "asynchronous on the stream"), "%s", reasons[i]);
    cr_assert_eq(strstr(reasons[i], "semaphores") != NULL, i >= 2, "%s", reasons[i]);
  }
  close_sides(&s);
}

/* Threads that meet at the first copy, each with streams and buffers of its own. */

typedef struct racer {
  pthread_t thread;
  pthread_barrier_t *start;
  quay_allocator *cuda, *vulkan;
  uint64_t seed;
} racer;

static void *race(void *argument) {
  const racer *const r = argument;
  sides s = {.cuda = r->cuda, .vulkan = r->vulkan};
  CHECK_OK(quay_stream_create(quay_allocator_device(s.cuda), NULL, &s.in_cuda));
  CHECK_OK(quay_stream_create(quay_allocator_device(s.vulkan), NULL, &s.in_vulkan));
  s.a = make_buffer(s.cuda, SIZE);
  s.b = make_buffer(s.vulkan, SIZE);
  quay_buffer *c = make_buffer(s.cuda, SIZE);
  write_pattern(s.a, r->seed);
  (void)pthread_barrier_wait(r->start);
  for (int i = 0; i < 10; i++) {
    copy_on(s.b, s.a, s.in_vulkan);
    CHECK_OK(quay_buffer_fill_on(s.a, "\x77", 1, s.in_cuda));
    copy_on(c, s.b, s.in_cuda);
    CHECK_OK(quay_buffer_fill_on(s.b, "\x78", 1, s.in_vulkan));
    copy_on(s.a, c, s.in_cuda);
  }
  check_pattern(c, r->seed);
  check_pattern(s.a, r->seed);
  settle(s.in_cuda);
  settle(s.in_vulkan);
  quay_buffer_release(c);
  quay_buffer_release(s.b);
  quay_buffer_release(s.a);
  quay_stream_release(s.in_vulkan);
  quay_stream_release(s.in_cuda);
  return NULL;
}

Test(cuda_vulkan_link, threads_that_race_for_the_first_copy_share_one_link, .init = setup_both,
     .fini = teardown_both, .timeout = 120) {
  pthread_barrier_t start;
  racer racers[4];
  quay_allocator *cuda = open_spec("cuda:0"), *vulkan = open_spec("vulkan:0");
  (void)pthread_barrier_init(&start, NULL, 4);
  for (unsigned i = 0; i < 4; i++) {
    racers[i] = (racer){.start = &start, .cuda = cuda, .vulkan = vulkan, .seed = 40 + i};
    cr_assert_eq(pthread_create(&racers[i].thread, NULL, race, &racers[i]), 0);
  }
  for (unsigned i = 0; i < 4; i++)
    cr_assert_eq(pthread_join(racers[i].thread, NULL), 0);
  simcuda_census census;
  sim->count(&census);
  cr_assert_eq(census.semaphores, 2, "one queue has a link, of two semaphores");
  (void)pthread_barrier_destroy(&start);
  CHECK_OK(quay_collect(NULL));
  quay_allocator_release(vulkan);
  quay_allocator_release(cuda);
}

/* Without semaphores. */

static void check_without(void) {
  sides s = open_sides();
  quay_event *event = NULL;
  const char *const reason = plan_on(s.b, s.a, s.in_vulkan).reason;
  cr_assert_not_null(strstr(reason, "blocks"), "%s", reason);
  cr_assert_not_null(strstr(reason, "semaphores"), "%s", reason);
  cr_assert_eq(plan_on(s.b, s.a, s.in_vulkan).route, QUAY_ROUTE_DIRECT);
  for (unsigned char round = 1; round < 6; round++) {
    CHECK_OK(quay_buffer_fill_on(s.b, &round, 1, s.in_vulkan));
    copy_on(s.a, s.b, s.in_cuda);
    CHECK_OK(quay_buffer_fill_on(s.b, "\xff", 1, s.in_vulkan));
    copy_on(s.b, s.a, s.in_vulkan);
    check_bytes(s.b, round);
  }
  CHECK_OK(quay_buffer_fill_on(s.b, "\x21", 1, s.in_vulkan));
  CHECK_OK(quay_event_record(s.in_vulkan, &event));
  CHECK_FAILS(quay_stream_wait(s.in_cuda, event), QUAY_STATUS_UNSUPPORTED);
  CHECK_MESSAGE("quay_event_synchronize");
  quay_event_release(event);
  close_sides(&s);
}

Test(cuda_vulkan_link, without_semaphores_of_vulkan_the_host_waits_and_the_plan_says_so,
     .init = setup_both, .fini = teardown_both) {
  (void)setenv("VKSHIM_NO_SEMAPHORES", "1", 1);
  check_without();
}

static void setup_old_cuda(void) {
  (void)setenv("SIMCUDA_MISSING", "cuImportExternalSemaphore", 1);
  setup_both();
}

Test(cuda_vulkan_link, without_semaphores_of_cuda_the_host_waits_and_the_plan_says_so,
     .init = setup_old_cuda, .fini = teardown_both) {
  check_without();
}

/* Calls that fail. */

typedef struct failing {
  const char *function;
  bool of_cuda;
  unsigned n;
} failing;

static void make_fail(const failing *call) {
  if (call->of_cuda) {
    sim->fail(call->function, call->n, 801); /* CUDA_ERROR_NOT_SUPPORTED */
  } else {
    shim->fail(call->function, call->n, VK_ERROR_TOO_MANY_OBJECTS);
  }
}

Test(cuda_vulkan_link, what_is_not_shared_leaves_nothing_behind_and_the_host_waits_instead,
     .init = setup_both, .fini = teardown_both, .timeout = 120) {
  static const failing calls[] = {
      {"vkCreateSemaphore", false, 1},         {"vkGetSemaphoreFdKHR", false, 1},
      {"vkGetSemaphoreFdKHR", false, 2},       {"cuImportExternalSemaphore", true, 1},
      {"cuImportExternalSemaphore", true, 2},  {"cuStreamCreateWithPriority", true, 1},
      {"cuStreamCreateWithPriority", true, 2},
  };
  for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
    sides s = open_sides();
    simcuda_census before, after;
    write_pattern(s.a, i);
    CHECK_OK(quay_buffer_copy_from(s.b, s.a));
    const unsigned files = count_files();
    sim->count(&before);
    cr_assert_eq(before.semaphores, 0, "before %s", calls[i].function);
    quay_test_log_begin();
    make_fail(&calls[i]);
    copy_on(s.b, s.a, s.in_vulkan);
    check_pattern(s.b, i);
    cr_assert_eq(quay_test_log_count("share no semaphores"), 1, "%s", quay_test_log_text());
    cr_assert_eq(count_files(), files, "after %s", calls[i].function);
    sim->count(&after);
    cr_assert_eq(after.semaphores, 0, "after %s: %s", calls[i].function, quay_test_log_text());
    cr_assert_leq(after.streams, before.streams + 1, "after %s", calls[i].function);
    /* It is remembered, and said once. */
    copy_on(s.a, s.b, s.in_vulkan);
    cr_assert_eq(quay_test_log_count("share no semaphores"), 1, "%s", quay_test_log_text());
    close_sides(&s);
    CHECK_OK(quay_shutdown());
  }
}

Test(cuda_vulkan_link,
     a_call_that_fails_while_a_copy_is_submitted_is_an_error_and_the_next_one_works,
     .init = setup_both, .fini = teardown_both, .timeout = 120) {
  static const failing calls[] = {
      {"cuWaitExternalSemaphoresAsync", true, 1},
      {"cuSignalExternalSemaphoresAsync", true, 1},
      {"cuMemcpyAsync", true, 1},
      {"vkQueueSubmit", false, 1},
      {"vkQueueSubmit", false, 2},
  };
  sides s = open_sides();
  warm_up(&s);
  for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
    const quay_copy_options on = {.stream = s.in_vulkan};
    write_pattern(s.a, 10 + i);
    make_fail(&calls[i]);
    const quay_status status = quay_buffer_copy_region(s.b, 0, s.a, 0, SIZE, &on);
    cr_assert_neq(status, QUAY_OK, "%s does not fail the copy", calls[i].function);
    copy_on(s.b, s.a, s.in_vulkan);
    check_pattern(s.b, 10 + i);
  }
  close_sides(&s);
}

/* Losses and resets. */

Test(cuda_vulkan_link, a_reset_of_either_device_makes_new_links, .init = setup_both,
     .fini = teardown_both, .timeout = 60) {
  sides s = open_sides();
  warm_up(&s);
  quay_buffer_release(s.a);
  quay_stream_release(s.in_cuda);
  CHECK_OK(quay_device_reset(quay_allocator_device(s.cuda)));
  s.a = make_buffer(s.cuda, SIZE);
  CHECK_OK(quay_stream_create(quay_allocator_device(s.cuda), NULL, &s.in_cuda));
  warm_up(&s);
  quay_buffer_release(s.b);
  quay_stream_release(s.in_vulkan);
  CHECK_OK(quay_device_reset(quay_allocator_device(s.vulkan)));
  s.b = make_buffer(s.vulkan, SIZE);
  CHECK_OK(quay_stream_create(quay_allocator_device(s.vulkan), NULL, &s.in_vulkan));
  warm_up(&s);
  close_sides(&s);
}

Test(cuda_vulkan_link, a_loss_of_vulkan_lets_streams_of_cuda_go_that_wait_for_it,
     .init = setup_both, .fini = teardown_both, .timeout = 60) {
  sides s = open_sides();
  quay_event *event = NULL;
  warm_up(&s);
  shim->gate(0);
  CHECK_OK(quay_buffer_fill_on(s.b, "\x21", 1, s.in_vulkan));
  CHECK_OK(quay_event_record(s.in_vulkan, &event));
  CHECK_OK(quay_stream_wait(s.in_cuda, event));
  shim->lose();
  CHECK_FAILS(quay_stream_synchronize(s.in_vulkan), QUAY_STATUS_DEVICE_LOST);
  CHECK_OK(quay_stream_synchronize(s.in_cuda));
  shim->gate(1);
  write_pattern(s.a, 5);
  check_pattern(s.a, 5);
  quay_event_release(event);
  close_sides(&s);
}

Test(cuda_vulkan_link, a_loss_of_cuda_lets_queues_of_vulkan_go_that_wait_for_it, .init = setup_both,
     .timeout = 60) {
  sides s = open_sides();
  quay_event *first = NULL, *second = NULL;
  warm_up(&s);
  shim->gate(0);
  CHECK_OK(quay_buffer_fill_on(s.b, "\x21", 1, s.in_vulkan)); /* CUDA does not get to its signal */
  CHECK_OK(quay_event_record(s.in_vulkan, &first));
  CHECK_OK(quay_stream_wait(s.in_cuda, first));
  CHECK_OK(quay_event_record(s.in_cuda, &second));
  CHECK_OK(quay_stream_wait(s.in_vulkan, second));
  sim->lose(700);
  shim->gate(1);
  CHECK_OK(quay_stream_synchronize(s.in_vulkan));
  cr_assert_eq(quay_device_health(quay_allocator_device(s.cuda)), QUAY_HEALTH_LOST);
  write_pattern(s.b, 5);
  check_pattern(s.b, 5);
  quay_event_release(second);
  quay_event_release(first);
  close_sides(&s);
  CHECK_OK(quay_shutdown());
  check_nothing_is_left();
}
