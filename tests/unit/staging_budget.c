/* The budget of staged copies: who gets bytes of it and when, and that copies together keep to it.
 */
#include "unit/staging_fixture.h"

TestSuite(staging_budget, .init = allow_two_threads);

/* The line. */

#define BUDGET UINT64_C(100)

static atomic_uint served;

typedef struct waiter {
  pthread_t thread;
  uint64_t bytes;
  unsigned place; /* in which it was served, from 1 */
} waiter;

static void *wait_for_bytes(void *argument) {
  waiter *own = argument;
  quay__staging_hold(own->bytes, BUDGET);
  own->place = atomic_fetch_add(&served, 1) + 1;
  quay__staging_give_back(own->bytes);
  return NULL;
}

static void start_waiter(waiter *own, uint64_t bytes) {
  own->bytes = bytes;
  cr_assert_eq(pthread_create(&own->thread, NULL, wait_for_bytes, own), 0);
  sleep_us(50000); /* until it stands in line */
}

Test(staging_budget, bytes_are_had_at_once_while_there_is_room) {
  quay__staging_hold(60, BUDGET);
  quay__staging_hold(40, BUDGET);
  cr_assert_not(quay__staging_try_hold(1, BUDGET));
  quay__staging_give_back(40);
  cr_assert(quay__staging_try_hold(40, BUDGET));
  quay__staging_give_back(100);
  check_nothing_held();
}

Test(staging_budget, more_than_the_budget_is_had_by_whoever_is_alone) {
  quay__staging_hold(1000, BUDGET);
  cr_assert_not(quay__staging_try_hold(1, BUDGET));
  quay__staging_give_back(1000);
  check_nothing_held();
}

Test(staging_budget, forced_bytes_count) {
  quay__staging_hold(100, BUDGET);
  quay__staging_force_hold(50);
  quay__staging_give_back(60);
  cr_assert_not(quay__staging_try_hold(11, BUDGET));
  cr_assert(quay__staging_try_hold(10, BUDGET));
  quay__staging_give_back(100);
  check_nothing_held();
}

Test(staging_budget, those_who_wait_are_served_in_the_order_in_which_they_came) {
  waiter waiters[6];
  quay__staging_hold(60, BUDGET);
  for (unsigned i = 0; i < 6; i++)
    start_waiter(&waiters[i], 90 - i);
  cr_assert(quay__staging_awaited());
  cr_assert_eq(atomic_load(&served), 0u);
  quay__staging_give_back(60);
  for (unsigned i = 0; i < 6; i++) {
    pthread_join(waiters[i].thread, NULL);
    cr_assert_eq(waiters[i].place, i + 1);
  }
  cr_assert_not(quay__staging_awaited());
  check_nothing_held();
}

Test(staging_budget, small_wishes_do_not_pass_over_a_large_one) {
  waiter large, small;
  quay__staging_hold(60, BUDGET);
  start_waiter(&large, 90);
  start_waiter(&small, 20); /* not beside the large one */
  cr_assert_not(quay__staging_try_hold(20, BUDGET));
  cr_assert_eq(atomic_load(&served), 0u);
  quay__staging_give_back(60);
  pthread_join(large.thread, NULL);
  pthread_join(small.thread, NULL);
  cr_assert_eq(large.place, 1u);
  check_nothing_held();
}

Test(staging_budget, whoever_fits_next_is_served_together_with_the_first) {
  waiter first, second;
  quay__staging_hold(100, BUDGET);
  start_waiter(&first, 50);
  start_waiter(&second, 50);
  quay__staging_give_back(100);
  pthread_join(first.thread, NULL);
  pthread_join(second.thread, NULL);
  check_nothing_held();
}

/* Copies together. */

typedef struct copier {
  pthread_t thread;
  uint64_t size;
  int rounds;
  unsigned slow_us;         /* that a chunk takes */
  pthread_barrier_t *start; /* NULL: at once */
  atomic_uint chunks, copies;
  atomic_bool on;
} copier;

static quay_status count_chunk(void *user, quay_use_mode mode, uint64_t offset, uint64_t size) {
  copier *own = user;
  (void)offset;
  (void)size;
  if (!atomic_load(&own->on) || mode != QUAY_WRITE)
    return QUAY_OK;
  atomic_fetch_add(&own->chunks, 1);
  if (own->slow_us != 0)
    sleep_us(own->slow_us);
  return QUAY_OK;
}

static void *copy_rounds(void *argument) {
  copier *own = argument;
  two_sides two = two_manual(own->size, count_chunk, own);
  atomic_store(&own->on, true);
  if (own->start != NULL)
    pthread_barrier_wait(own->start);
  for (int i = 0; i < own->rounds; i++) {
    MUST(copy_sides(&two, NULL));
    atomic_fetch_add(&own->copies, 1);
  }
  atomic_store(&own->on, false);
  pattern_check_buffer(two.to, 0, 2);
  close_sides(&two);
  return NULL;
}

static void start_copier(copier *own) {
  cr_assert_eq(pthread_create(&own->thread, NULL, copy_rounds, own), 0);
}

static void check_budget_of_eight(const char *budget, uint64_t bytes) {
  setenv("QUAY_STAGING_BYTES", budget, 1);
  copier copiers[8] = {{.size = 0}};
  begin_watching();
  for (unsigned i = 0; i < 8; i++) {
    copiers[i].size = 1000 + i * i * 40000;
    copiers[i].rounds = 20;
    start_copier(&copiers[i]);
  }
  for (int i = 0; i < 8; i++)
    pthread_join(copiers[i].thread, NULL);
  cr_assert_leq(slots.peak_bytes, bytes);
  cr_assert_gt(slots.peak_bytes, bytes / 2, "the budget is hardly used: %llu of %s",
               (unsigned long long)slots.peak_bytes, budget);
  check_nothing_held();
}

Test(staging_budget, eight_copies_at_once_never_hold_more_than_the_budget) {
  check_budget_of_eight("64KiB", 64 * KIB);
  check_budget_of_eight("100KiB", 100 * KIB);
  check_budget_of_eight("1MiB", MIB);
}

Test(staging_budget, a_copy_far_larger_than_the_budget_stays_within_it) {
  setenv("QUAY_STAGING_BYTES", "128KiB", 1);
  begin_watching();
  two_sides two = two_manual(32 * MIB + 4321, NULL, NULL);
  MUST(copy_sides(&two, NULL));
  pattern_check_buffer(two.to, 0, 2);
  cr_assert_eq(slots.peak_bytes, 128 * KIB);
  cr_assert_eq(slots.made, 2u, "slots are made again and again");
  close_sides(&two);
}

/* 1,000 chunks of 2 ms. */
static copier long_copy(void) {
  return (copier){.size = 32000 * KIB, .rounds = 1, .slow_us = 2000};
}

Test(staging_budget, a_long_copy_gives_way_to_a_short_one) {
  setenv("QUAY_STAGING_BYTES", "64KiB", 1);
  copier slow = long_copy();
  start_copier(&slow);
  cr_assert(reaches(&slow.chunks, 20));
  copier quick = {.size = 50000, .rounds = 3};
  const unsigned before = atomic_load(&slow.chunks);
  start_copier(&quick);
  pthread_join(quick.thread, NULL);
  const unsigned meanwhile = atomic_load(&slow.chunks) - before;
  cr_assert_eq(atomic_load(&slow.copies), 0u);
  cr_assert_lt(meanwhile, 200u, "it waited for %u chunks", meanwhile);
  pthread_join(slow.thread, NULL);
}

Test(staging_budget, long_copies_without_room_for_all_advance_together) {
  setenv("QUAY_STAGING_BYTES", "64KiB", 1);
  pthread_barrier_t start;
  pthread_barrier_init(&start, NULL, 5);
  copier slow[5];
  for (int i = 0; i < 5; i++) {
    slow[i] = (copier){.size = 9600 * KIB, .rounds = 1, .slow_us = 500, .start = &start};
    start_copier(&slow[i]);
  }
  /* Each has come a good way before any has arrived. */
  for (int i = 0; i < 5; i++)
    cr_assert(reaches(&slow[i].chunks, 50));
  for (int i = 0; i < 5; i++)
    cr_assert_eq(atomic_load(&slow[i].copies), 0u, "copy %d is done already", i);
  for (int i = 0; i < 5; i++)
    pthread_join(slow[i].thread, NULL);
  pthread_barrier_destroy(&start);
  cr_assert_leq(slots.peak_bytes, 64 * KIB);
  check_nothing_held();
}

Test(staging_budget, a_copy_grows_again_when_it_is_alone) {
  setenv("QUAY_STAGING_BYTES", "64KiB", 1);
  copier slow = long_copy();
  slow.size /= 4;
  start_copier(&slow);
  cr_assert(reaches(&slow.chunks, 20));
  copier quick = {.size = 50000, .rounds = 1};
  start_copier(&quick);
  pthread_join(quick.thread, NULL);
  const unsigned then = atomic_load(&slow.chunks);
  cr_assert(reaches(&slow.chunks, then + 30));
  begin_watching();
  cr_assert_eq(slots.peak_count, 2u);
  pthread_join(slow.thread, NULL);
}

static quay_status stage_a_little(void *user, quay_use_mode mode, uint64_t offset, uint64_t size) {
  const two_sides *inner = user;
  (void)offset;
  (void)size;
  return mode == QUAY_WRITE && inner->to != NULL ? copy_sides(inner, NULL) : QUAY_OK;
}

Test(staging_budget, a_copy_inside_another_goes_little_over_a_budget_that_is_used_up) {
  two_sides inner = {.to = NULL};
  two_sides outer = two_manual(20 * MIB, stage_a_little, &inner);
  inner = two_manual(10 * MIB, NULL, NULL);
  setenv("QUAY_STAGING_BYTES", "8MiB", 1);
  begin_watching();
  MUST(copy_sides(&outer, NULL));
  cr_assert_leq(slots.peak_bytes, 8 * MIB + 64 * KIB);
  pattern_check_buffer(outer.to, 0, 2);
  pattern_check_buffer(inner.to, 0, 2);
  close_sides(&inner);
  inner.to = NULL;
  close_sides(&outer);
  check_nothing_held();
}
