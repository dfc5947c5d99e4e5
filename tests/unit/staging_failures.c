/* Staged copies in which something fails: either leg at every chunk, every slot, every thread. */
#include "unit/staging_fixture.h"

#include <stdio.h>

#include "support/late/late.h"

TestSuite(staging_failures, .init = allow_two_threads);

enum {
  CHUNK_COUNT = 12
};
#define CHUNK (64 * KIB)
#define SIZE  (CHUNK_COUNT * CHUNK - 999)
static const quay_copy_options small_chunks = {.max_staging_bytes = 2 * CHUNK};

/* Legs. */

static quay_allocator *open_faulty(const char *device, const char *leg, int nth) {
  char spec[96];
  snprintf(spec, sizeof spec, "fault:nth=%d,on=%s+%s", nth, leg, device);
  return open_spec(spec);
}

/* The nth call of one leg fails once; the next copy is whole. */
static void check_leg(const char *to, const char *from, bool source_fails, int nth,
                      const quay_copy_options *options) {
  quay_allocator *plain = open_spec(source_fails ? to : from);
  quay_allocator *faulty =
      open_faulty(source_fails ? from : to, source_fails ? "copy_out" : "copy_in", nth);
  two_sides two = {.to_allocator = source_fails ? plain : faulty,
                   .from_allocator = source_fails ? faulty : plain};
  two.from = pattern_buffer(two.from_allocator, SIZE, 2);
  /* Filled, since copying a pattern into it could fail. */
  MUST(quay_buffer_create(two.to_allocator, QUAY_U8, 1, (int64_t[]){SIZE}, NULL, &two.to));
  MUST(quay_buffer_fill(two.to, "x", 1));
  MUST(quay_fault_reset(faulty));
  MUST_FAIL(copy_sides(&two, options), IO);
  const quay_error *error = quay_last_error();
  cr_assert_str_eq(error->backend, "fault");
  /* Nothing has arrived if the first chunk can't be read; of later ones the helper may be early. */
  const char *undefined = strstr(error->message, "undefined");
  if (!source_fails || (nth > 1 && options->max_threads == 1)) {
    cr_assert_not_null(undefined, "%s", error->message);
    cr_assert_null(strstr(undefined + 1, "undefined"), "%s", error->message);
  } else if (nth == 1) {
    cr_assert_null(undefined, "%s", error->message);
  }
  quay_fault_counts counts;
  MUST(quay_fault_get_counts(faulty, &counts));
  cr_assert_eq(counts.failed, 1u);
  /* Two more chunks may have been on their way. */
  cr_assert_leq(counts.calls, (uint64_t)nth + 2);
  check_nothing_held();
  MUST(copy_sides(&two, options));
  pattern_check_buffer(two.to, 0, 2);
  close_sides(&two);
}

static void check_every_chunk(const char *to, const char *from) {
  const quay_copy_options alone = {.max_staging_bytes = CHUNK, .max_threads = 1};
  for (int nth = 1; nth <= CHUNK_COUNT; nth++) {
    check_leg(to, from, true, nth, &small_chunks);
    check_leg(to, from, false, nth, &small_chunks);
    check_leg(to, from, true, nth, &alone);
    check_leg(to, from, false, nth, &alone);
  }
}

Test(staging_failures, a_failure_of_either_leg_at_every_chunk_ends_the_copy_and_leaves_nothing) {
  MUST(late_register(NULL));
  check_every_chunk("late:0", "late:2");
  check_every_chunk("late:2", "late:0");
  cr_assert_eq(late_violations(NULL, 0), 0u);
  MUST(late_unregister());
}

Test(staging_failures, a_failure_without_workers_ends_the_copy_and_leaves_nothing) {
  MUST(late_register(&(late_options){.mode = LATE_MANUAL}));
  atomic_store(&threads_left, 0);
  check_every_chunk("late:0", "late:2");
  MUST(late_unregister());
}

typedef struct failing {
  atomic_bool on;
  uint64_t out_at, in_at; /* offsets at which a leg fails */
  bool out_elsewhere;     /* the first leg fails in another thread than `caller`, at any offset */
  pthread_t caller;
  bool in_waits;  /* the second leg fails only when the first one has */
  bool out_waits; /* the other way around */
  atomic_uint out_failed, in_failed;
} failing;

static quay_status fail_at(void *user, quay_use_mode mode, uint64_t offset, uint64_t size) {
  failing *plan = user;
  (void)size;
  if (!atomic_load(&plan->on))
    return QUAY_OK;
  const bool elsewhere = plan->out_elsewhere && !pthread_equal(pthread_self(), plan->caller);
  if (mode == QUAY_READ && (elsewhere || offset == plan->out_at)) {
    if (plan->out_waits) {
      reaches(&plan->in_failed, 1);
      sleep_us(20000);
    }
    const quay_status status =
        quay_error_set(QUAY_STATUS_DEVICE_LOST, "two", 77, "OUT_LOST", "the source is gone");
    atomic_fetch_add(&plan->out_failed, 1);
    return status;
  }
  if (mode != QUAY_WRITE || offset != plan->in_at)
    return QUAY_OK;
  if (plan->in_waits || plan->out_elsewhere) {
    reaches(&plan->out_failed, 1);
    sleep_us(20000); /* until it has been noted */
  }
  atomic_fetch_add(&plan->in_failed, 1);
  return quay_error_set(QUAY_STATUS_IO, "one", 5, "IN_FAILED", "the destination is full");
}

Test(staging_failures, an_error_of_the_worker_becomes_the_callers_whole) {
  failing plan = {.out_at = UINT64_MAX,
                  .in_at = 0, /* waits for the worker's failure */
                  .out_elsewhere = true,
                  .caller = pthread_self()};
  two_sides two = two_manual(SIZE, fail_at, &plan);
  atomic_store(&plan.on, true);
  MUST_FAIL(copy_sides(&two, &small_chunks), DEVICE_LOST);
  const quay_error *error = quay_last_error();
  cr_assert_eq(error->native_code, 77);
  cr_assert_str_eq(error->native_name, "OUT_LOST");
  cr_assert_str_eq(error->backend, "two");
  cr_assert_eq(strstr(error->message, "the source is gone"), error->message);
  atomic_store(&plan.on, false);
  close_sides(&two);
}

Test(staging_failures, of_two_errors_the_first_one_is_told) {
  /* The chunk that fails to come out is read while the one before it goes in. */
  failing plan = {.out_at = 5 * CHUNK, .in_at = 4 * CHUNK, .in_waits = true};
  two_sides two = two_manual(SIZE, fail_at, &plan);
  atomic_store(&plan.on, true);
  MUST_FAIL(copy_sides(&two, &small_chunks), DEVICE_LOST);
  cr_assert_str_eq(quay_last_error()->native_name, "OUT_LOST");
  check_nothing_held();
  plan.in_waits = false;
  plan.out_waits = true;
  MUST_FAIL(copy_sides(&two, &small_chunks), IO);
  cr_assert_str_eq(quay_last_error()->native_name, "IN_FAILED");
  atomic_store(&plan.on, false);
  close_sides(&two);
}

Test(staging_failures, success_leaves_the_last_error_as_it_was) {
  two_sides two = two_manual(SIZE, NULL, NULL);
  const quay_status set = quay_error_set(QUAY_STATUS_STALE, "", 0, NULL, "an older matter");
  cr_assert_eq(set, QUAY_STATUS_STALE);
  MUST(copy_sides(&two, &small_chunks));
  cr_assert_str_eq(quay_last_error()->message, "an older matter");
  close_sides(&two);
}

/* Memory and threads. */

Test(staging_failures, without_memory_for_the_first_slot_nothing_is_moved) {
  two_sides two = two_manual(SIZE, NULL, NULL);
  slots.fail_at = 1;
  MUST_FAIL(copy_sides(&two, &small_chunks), OUT_OF_HOST_MEMORY);
  cr_assert_null(strstr(quay_last_error()->message, "undefined"));
  cr_assert_not_null(strstr(quay_last_error()->message, "65536"));
  pattern_check_buffer(two.to, 0, 1);
  check_nothing_held();
  close_sides(&two);
}

Test(staging_failures, without_memory_for_a_later_slot_the_copy_goes_on_with_fewer) {
  two_sides two = two_manual(5 * MIB, NULL, NULL);
  cr_assert_eq(plan_sides(&two, NULL).staging_bytes, 4 * MIB);
  for (uint32_t nth = 2; nth <= 4; nth++) {
    MUST(quay_buffer_fill(two.to, "x", 1));
    begin_watching();
    slots.fail_at = nth;
    MUST(copy_sides(&two, NULL));
    cr_assert_eq(slots.fail_at, 0u);
    cr_assert_eq(slots.made, nth - 1);
    pattern_check_buffer(two.to, 0, 2);
    check_nothing_held();
  }
  close_sides(&two);
}

struct background {
  pthread_t thread;
  const two_sides *two;
  atomic_bool *ended;
  quay_status status;
  char message[256];
};

static void *copy_in_background(void *argument) {
  struct background *own = argument;
  own->status = copy_sides(own->two, NULL);
  snprintf(own->message, sizeof own->message, "%s", quay_last_error()->message);
  atomic_store(own->ended, true);
  return NULL;
}

/* Each of the two has its first slot before either gives way. */
static void check_message(uint32_t nth, const char *message) {
  cr_assert_not_null(strstr(message, "no host memory"), "%s", message);
  cr_assert_eq(strstr(message, "undefined") != NULL, nth > 2, "slot %u: %s", nth, message);
}

/* Two copies that are to take turns. */
typedef struct turns {
  atomic_bool on;
  atomic_bool met;    /* one has waited for the other's slot */
  atomic_bool parted; /* one has ended */
} turns;

/* The first one waits for the second, whose thread may be late on a busy machine. */
static quay_status take_time(void *user, quay_use_mode mode, uint64_t offset, uint64_t size) {
  (void)mode;
  (void)offset;
  (void)size;
  turns *both = user;
  if (!atomic_load(&both->on))
    return QUAY_OK;
  for (int i = 0; i < 20000 && !atomic_load(&both->met) && !atomic_load(&both->parted); i++) {
    if (quay__staging_awaited())
      atomic_store(&both->met, true);
    sleep_us(500);
  }
  sleep_us(1000);
  return QUAY_OK;
}

/* A copy that gave way needs its slot again in the middle: the n-th slot of the two fails. */
Test(staging_failures, memory_that_runs_out_midway_is_an_error_that_says_so) {
  setenv("QUAY_STAGING_BYTES", "64KiB", 1);
  turns both = {.on = false};
  two_sides first = two_manual(30 * CHUNK, take_time, &both);
  two_sides second = two_manual(30 * CHUNK, take_time, &both);
  atomic_store(&both.on, true);
  /* One slot of the budget is somebody's, so that the two take turns with the other one. */
  quay__staging_force_hold(32 * KIB);
  unsigned failed = 0;
  for (uint32_t nth = 1; nth <= 6; nth++) {
    struct background other = {.two = &first, .ended = &both.parted};
    atomic_store(&both.met, false);
    atomic_store(&both.parted, false);
    slots.fail_at = nth;
    cr_assert_eq(pthread_create(&other.thread, NULL, copy_in_background, &other), 0);
    const quay_status status = copy_sides(&second, NULL);
    atomic_store(&both.parted, true);
    failed += status != QUAY_OK;
    if (status != QUAY_OK)
      check_message(nth, quay_last_error()->message);
    pthread_join(other.thread, NULL);
    failed += other.status != QUAY_OK;
    if (other.status != QUAY_OK)
      check_message(nth, other.message);
    cr_assert_eq(failed, nth, "slot %u did not fail", nth);
  }
  atomic_store(&both.on, false);
  quay__staging_give_back(32 * KIB);
  check_nothing_held();
  close_sides(&first);
  close_sides(&second);
}

static void *copy_in_thread(void *argument) {
  MUST(copy_sides(argument, NULL));
  return NULL;
}

Test(staging_failures, threads_that_cannot_be_started_are_not_missed) {
  for (int nth = 0; nth < 5; nth++) {
    pthread_t threads[4];
    two_sides each[4];
    for (int i = 0; i < 4; i++) {
      each[i] = two_manual(SIZE, NULL, NULL);
      cr_assert_eq(__real_pthread_create(&threads[i], NULL, copy_in_thread, &each[i]), 0);
      atomic_store(&threads_left, nth);
    }
    for (int i = 0; i < 4; i++) {
      pthread_join(threads[i], NULL);
      pattern_check_buffer(each[i].to, 0, 2);
      close_sides(&each[i]);
    }
    check_nothing_held();
    MUST(quay_shutdown());
  }
}

/* All at once. */

typedef struct mixed {
  pthread_t thread;
  unsigned number;
} mixed;

static const quay_copy_options *options_of_round(unsigned round) {
  static const quay_copy_options each[] = {
      {.max_staging_bytes = 0},
      {.max_staging_bytes = 2 * CHUNK},
      {.max_staging_bytes = 10000},
      {.max_staging_bytes = 3 * CHUNK, .max_threads = 1},
  };
  return &each[round % 4];
}

/* Device memory of which no two can meet. */
static quay_allocator *open_numbered(unsigned number) {
  static const char *const specs[] = {"late:0", "late:2", "track+late:0", "track+late:2"};
  return number < 4 ? open_spec(specs[number]) : manual_open(&(manual_options){0});
}

static void *copy_mixed(void *argument) {
  static const unsigned pairs[8][2] = {{0, 1}, {1, 0}, {2, 3}, {4, 0},
                                       {1, 4}, {4, 4}, {3, 0}, {0, 3}};
  const mixed *own = argument;
  const unsigned n = own->number;
  two_sides two =
      two_of(open_numbered(pairs[n][0]), open_numbered(pairs[n][1]), 1000 + n * n * 12345);
  for (unsigned round = 0; round < 12; round++) {
    const quay_copy_options *options = options_of_round(round + n);
    const quay_copy_plan_info plan = plan_sides(&two, options);
    cr_assert_eq(plan.route, QUAY_ROUTE_STAGED);
    MUST(copy_sides(&two, options));
    pattern_check_buffer(two.to, 0, 2);
    MUST(quay_buffer_fill(two.to, "x", 1));
  }
  close_sides(&two);
  return NULL;
}

Test(staging_failures, eight_threads_copy_between_several_backends_at_once) {
  setenv("QUAY_STAGING_BYTES", "512KiB", 1);
  MUST(late_register(NULL));
  mixed threads[8];
  begin_watching();
  for (unsigned i = 0; i < 8; i++) {
    threads[i].number = i;
    cr_assert_eq(pthread_create(&threads[i].thread, NULL, copy_mixed, &threads[i]), 0);
  }
  for (int i = 0; i < 8; i++)
    pthread_join(threads[i].thread, NULL);
  cr_assert_leq(slots.peak_bytes, 512 * KIB);
  cr_assert_eq(late_violations(NULL, 0), 0u);
  check_nothing_held();
  MUST(late_unregister());
}
