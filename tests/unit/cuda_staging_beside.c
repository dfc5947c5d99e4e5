/* Staged copies to several devices at once, on the simulated driver and what passes for a machine
 * of many processors: more threads and memory for each, within bounds, and only while there are
 * several. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <quay/quay.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/allocator_impl.h"
#include "core/os.h"
#include "core/staging.h"
#include "core/staging_budget.h"
#include "core/staging_tuning.h"
#include "sim_cuda/control.h"
#include "support/pattern.h"

#define MIB (UINT64_C(1) << 20)

static const simcuda_control *sim;
static atomic_uint processors;

uint32_t __wrap_quay__os_processor_count(void);
uint32_t __wrap_quay__os_processor_count(void) {
  return atomic_load(&processors);
}

static void setup(void) {
  unsetenv("QUAY_COPY_THREADS");
  unsetenv("QUAY_STAGING_BYTES");
  atomic_store(&processors, 32);
  sim = simcuda_control_get();
  cr_assert_not_null(sim, "the test needs the simulated driver");
}

static void teardown(void) {
  MUST(quay_shutdown());
  simcuda_census left;
  sim->count(&left);
  cr_expect_eq(left.host_bytes + left.device_bytes, 0u);
  cr_expect_eq(left.streams + left.events + left.retains, 0u);
  cr_expect_eq(sim->violations(NULL, 0), 0u);
}

TestSuite(cuda_staging_beside, .init = setup, .fini = teardown);

/* The plan. */

static quay__staging_plan plan_of(bool into) {
  quay_allocator *device = open_spec("cuda:0");
  quay__staging_plan plan;
  cr_assert(quay__host_stage_plan(device, into, 512 * MIB, &plan));
  quay_allocator_release(device);
  return plan;
}

Test(cuda_staging_beside, twelve_threads_with_four_slots_each_where_there_are_processors) {
  const quay__staging_plan plan = plan_of(true);
  cr_expect_eq(plan.threads, 8u);
  cr_expect_eq(plan.slots, 32u);
  cr_expect_eq(plan.threads_beside, 12u);
  cr_expect_eq(plan.slots_beside, 48u);
  cr_expect(plan.budget_grows);
}

Test(cuda_staging_beside, half_of_the_processors_at_most) {
  atomic_store(&processors, 20);
  cr_expect_eq(plan_of(true).threads_beside, 10u);
  atomic_store(&processors, 16);
  cr_expect_eq(plan_of(true).threads_beside, 8u);
  atomic_store(&processors, 4);
  cr_expect_eq(plan_of(true).threads_beside, 4u);
}

Test(cuda_staging_beside, no_more_on_the_way_out) {
  const quay__staging_plan plan = plan_of(false);
  cr_expect_eq(plan.threads_beside, plan.threads);
  cr_expect_eq(plan.slots_beside, plan.slots);
}

Test(cuda_staging_beside, no_more_threads_than_somebody_has_chosen) {
  setenv("QUAY_COPY_THREADS", "8", 1);
  cr_expect_eq(plan_of(true).threads_beside, 8u);
  setenv("QUAY_COPY_THREADS", "16", 1);
  cr_expect_eq(plan_of(true).threads_beside, 16u);
}

Test(cuda_staging_beside, no_more_memory_than_somebody_has_chosen) {
  setenv("QUAY_STAGING_BYTES", "64MiB", 1);
  cr_expect_not(plan_of(true).budget_grows);
  setenv("QUAY_STAGING_BYTES", "8MiB", 1);
  const quay__staging_plan plan = plan_of(true);
  cr_expect_leq(plan.slots_beside * plan.chunk, 8 * MIB);
}

/* Who is at it. */

Test(cuda_staging_beside, devices_are_counted_once_each) {
  const quay_device *const some[] = {(const void *)&processors, (const void *)&sim};
  cr_expect_eq(quay__staging_devices(), 1u);
  quay__staging_enter(some[0]);
  quay__staging_enter(some[0]);
  quay__staging_enter(NULL);
  cr_expect_eq(quay__staging_devices(), 1u);
  cr_expect_eq(quay__staging_copies(), 3u);
  quay__staging_enter(some[1]);
  cr_expect_eq(quay__staging_devices(), 2u);
  quay__staging_leave(some[0]);
  cr_expect_eq(quay__staging_devices(), 2u);
  quay__staging_leave(some[0]);
  cr_expect_eq(quay__staging_devices(), 1u);
  quay__staging_leave(some[1]);
  quay__staging_leave(NULL);
  cr_expect_eq(quay__staging_devices(), 1u);
  cr_expect_eq(quay__staging_copies(), 1u);
}

Test(cuda_staging_beside, more_devices_than_are_told_apart_do_no_harm) {
  static const char many[40];
  for (int i = 0; i < 40; i++)
    quay__staging_enter((const void *)&many[i]);
  cr_expect_eq(quay__staging_devices(), 8u);
  for (int i = 0; i < 40; i++)
    quay__staging_leave((const void *)&many[i]);
  cr_expect_eq(quay__staging_devices(), 1u);
  cr_expect_eq(quay__staging_copies(), 1u);
}

Test(cuda_staging_beside, copies_of_the_parent_are_not_in_the_child) {
  const void *const device = &processors;
  quay__staging_enter(device);
  quay__staging_enter((const void *)&sim);
  const pid_t child = fork();
  cr_assert_geq(child, 0);
  if (child == 0) {
    bool good = quay__staging_devices() == 1;
    quay__staging_leave(device);
    quay__staging_leave((const void *)&sim);
    good = good && quay__staging_devices() == 1 && quay__staging_copies() == 1;
    _exit(good ? 0 : 1);
  }
  int status = 0;
  cr_assert_eq(waitpid(child, &status, 0), child);
  cr_expect_eq(status, 0);
  quay__staging_leave(device);
  quay__staging_leave((const void *)&sim);
}

/* Copies. */

#define SIZE (64 * MIB)

typedef struct copier {
  pthread_t thread;
  quay_buffer *there, *here;
  pthread_barrier_t *start;
  quay__staging_report report;
  int rounds;
} copier;

/* Copies that have had more slots than one alone gets: on a busy machine two that begin together
 * need not overlap. */
static atomic_uint widened;

static void *copy_in_rounds(void *argument) {
  copier *own = argument;
  for (int i = 0; i < own->rounds && atomic_load(&widened) < 2; i++) {
    quay__staging_report report;
    pthread_barrier_wait(own->start);
    quay__staging_report_to(&report);
    MUST(quay_buffer_copy_from(own->there, own->here));
    quay__staging_report_to(NULL);
    if (report.threads > own->report.threads)
      own->report.threads = report.threads;
    if (own->report.slots <= 32 && report.slots > 32)
      atomic_fetch_add(&widened, 1);
    if (report.slots > own->report.slots)
      own->report.slots = report.slots;
    pthread_barrier_wait(own->start); /* all look at the same number */
  }
  return NULL;
}

static uint64_t pinned_bytes(void) {
  simcuda_census now;
  sim->count(&now);
  return now.host_bytes;
}

/* Copies to so many devices at once and checks every byte. */
static void copy_to(uint32_t devices, int rounds, copier each[2]) {
  static const char *const specs[] = {"cuda:0", "cuda:1"};
  pthread_barrier_t start;
  cr_assert_eq(pthread_barrier_init(&start, NULL, devices), 0);
  for (uint32_t i = 0; i < devices; i++) {
    quay_allocator *device = open_spec(specs[i]);
    each[i] = (copier){.there = pattern_buffer(device, SIZE, 1),
                       .here = pattern_buffer(NULL, SIZE, 40 + i),
                       .start = &start,
                       .rounds = rounds};
    quay_allocator_release(device);
  }
  MUST(quay_collect(NULL));
  for (uint32_t i = 0; i < devices; i++)
    cr_assert_eq(pthread_create(&each[i].thread, NULL, copy_in_rounds, &each[i]), 0);
  for (uint32_t i = 0; i < devices; i++)
    pthread_join(each[i].thread, NULL);
  cr_expect_leq(pinned_bytes(), devices * 64 * MIB);
  for (uint32_t i = 0; i < devices; i++) {
    pattern_check_buffer(each[i].there, 0, 40 + i);
    quay_buffer_release(each[i].there);
    quay_buffer_release(each[i].here);
  }
  pthread_barrier_destroy(&start);
}

Test(cuda_staging_beside, a_copy_alone_takes_what_its_plan_says, .timeout = 120) {
  copier each[2];
  copy_to(1, 3, each);
  cr_expect_leq(each[0].report.threads, 8u);
  cr_expect_leq(each[0].report.slots, 32u);
}

Test(cuda_staging_beside, two_devices_at_once_get_every_byte_within_twice_the_budget,
     .timeout = 120) {
  copier each[2];
  copy_to(2, 50, each);
  for (int i = 0; i < 2; i++) {
    cr_expect_leq(each[i].report.threads, 12u);
    cr_expect_leq(each[i].report.slots, 48u);
    cr_expect_gt(each[i].report.slots, 32u, "copy %d never had more slots than one alone", i);
  }
}

Test(cuda_staging_beside, two_devices_keep_to_a_chosen_budget, .timeout = 120) {
  setenv("QUAY_STAGING_BYTES", "24MiB", 1);
  copier each[2];
  copy_to(2, 4, each);
  cr_expect_leq(pinned_bytes(), 24 * MIB + 8 * MIB);
}
