/* The limit layer: what it counts, what it refuses, and that it is exact when threads race. */
#include <pthread.h>
#include <quay/backend.h>
#include <quay/quay.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "core/allocator_impl.h"
#include "support/log.h"
#include "support/random.h"
#include "support/status.h"
#include "support/table.h"

static quay_allocator *open(const char *spec) {
  quay_allocator *allocator = NULL;
  CHECK_OK(quay_allocator_open(spec, &allocator));
  return allocator;
}

static quay_raw_buffer alloc(quay_allocator *allocator, uint64_t size) {
  quay_raw_buffer raw;
  CHECK_OK(quay_allocator_alloc(allocator, size, NULL, &raw));
  return raw;
}

static quay_stats stats_of(quay_allocator *allocator) {
  quay_stats stats;
  CHECK_OK(quay_allocator_stats(allocator, &stats));
  return stats;
}

static void check_refused(quay_allocator *allocator, uint64_t size) {
  quay_raw_buffer raw;
  CHECK_FAILS(quay_allocator_alloc(allocator, size, NULL, &raw), QUAY_STATUS_LIMIT_EXCEEDED);
}

/* A whole request of `size` bytes fits at this moment. */
static void check_fits(quay_allocator *allocator, uint64_t size) {
  quay_raw_buffer raw = alloc(allocator, size);
  quay_raw_buffer_free(&raw);
}

Test(limit, what_fits_to_the_byte_is_given_and_a_byte_more_is_refused) {
  quay_allocator *allocator = open("limit:1000+cpu");
  quay_raw_buffer first = alloc(allocator, 600);
  check_refused(allocator, 401);
  quay_raw_buffer second = alloc(allocator, 400);
  check_refused(allocator, 1);
  quay_raw_buffer_free(&first);
  check_refused(allocator, 601);
  check_fits(allocator, 600);
  quay_raw_buffer_free(&second);
  check_fits(allocator, 1000);
  quay_allocator_release(allocator);
}

Test(limit, a_refusal_says_what_was_asked_what_is_live_and_what_the_limit_is) {
  quay_allocator *allocator = open("limit:1KiB+cpu");
  quay_raw_buffer raw = alloc(allocator, 777);
  check_refused(allocator, 333);
  CHECK_MESSAGE("333 bytes");
  CHECK_MESSAGE("777 bytes are live");
  CHECK_MESSAGE("limit is 1024 bytes");
  cr_assert_str_eq(quay_last_error()->backend, "limit");
  quay_raw_buffer_free(&raw);
  quay_allocator_release(allocator);
}

Test(limit, a_refused_request_never_reaches_the_inner_allocator) {
  quay_allocator *allocator = open("limit:10+cpu");
  check_refused(allocator, 11);
  const quay_stats inner = stats_of(quay_allocator_inner(allocator));
  cr_assert_eq(inner.alloc_count, 0);
  cr_assert_eq(inner.failure_count, 0);
  cr_assert_eq(stats_of(allocator).failure_count, 1);
  quay_allocator_release(allocator);
}

Test(limit, an_allocation_that_fails_inside_gives_its_room_back) {
  quay_allocator *allocator = open("limit:100+fault:nth=1+cpu");
  quay_raw_buffer raw;
  CHECK_FAILS(quay_allocator_alloc(allocator, 100, NULL, &raw), QUAY_STATUS_OUT_OF_HOST_MEMORY);
  check_fits(allocator, 100);
  quay_allocator_release(allocator);
}

Test(limit, an_empty_block_fits_even_where_nothing_else_does) {
  quay_allocator *allocator = open("limit:0+cpu");
  check_fits(allocator, 0);
  check_refused(allocator, 1);
  quay_allocator_release(allocator);
}

Test(limit, the_largest_sizes_do_not_wrap_around) {
  quay_allocator *allocator = open("limit:1000+cpu");
  quay_raw_buffer raw = alloc(allocator, 1);
  check_refused(allocator, INT64_MAX);
  check_refused(allocator, (uint64_t)INT64_MAX - 1);
  quay_raw_buffer_free(&raw);
  check_refused(allocator, INT64_MAX);
  quay_allocator_release(allocator);
  allocator = open("limit:18446744073709551615+cpu");
  CHECK_FAILS(quay_allocator_alloc(allocator, INT64_MAX, NULL, &raw),
              QUAY_STATUS_OUT_OF_HOST_MEMORY);
  check_fits(allocator, 1);
  quay_allocator_release(allocator);
}

Test(limit, bytes_are_counted_as_asked_for_whatever_the_alignment) {
  quay_allocator *allocator = open("limit:100+cpu");
  const quay_alloc_options aligned = {.alignment = 4096};
  quay_raw_buffer raw;
  CHECK_OK(quay_allocator_alloc(allocator, 100, &aligned, &raw));
  quay_raw_buffer_free(&raw);
  quay_allocator_release(allocator);
}

Test(limit, a_second_free_that_is_refused_inside_gives_no_room) {
  quay_allocator *allocator = open("limit:100+track+cpu");
  quay_test_log_begin();
  quay_raw_buffer raw = alloc(allocator, 60), copy = raw;
  quay_raw_buffer other = alloc(allocator, 40);
  quay_raw_buffer_free(&raw);
  quay_raw_buffer_free(&copy);
  cr_assert_eq(quay_test_log_count("refused to free"), 1);
  check_refused(allocator, 61);
  check_fits(allocator, 60);
  quay_raw_buffer_free(&other);
  quay_allocator_release(allocator);
}

Test(limit, released_memory_is_not_counted_any_more) {
  quay_allocator *allocator = open("limit:100+cpu");
  quay_raw_buffer raw = alloc(allocator, 100);
  quay_host_memory memory;
  CHECK_OK(quay_raw_buffer_release_host(&raw, &memory));
  check_fits(allocator, 100);
  memory.release(memory.user, memory.pointer, memory.size);
  quay_allocator_release(allocator);
}

Test(limit, a_release_that_fails_leaves_the_memory_counted) {
  quay_allocator *allocator = open("limit:100+mmap:.");
  quay_raw_buffer raw = alloc(allocator, 100);
  cr_assert_neq(quay_raw_buffer_forget(&raw), QUAY_OK);
  check_refused(allocator, 1);
  quay_raw_buffer_free(&raw);
  check_fits(allocator, 100);
  quay_allocator_release(allocator);
}

Test(limit, adopted_memory_is_not_counted) {
  quay_allocator *allocator = open("limit:100+cpu");
  char bytes[500];
  const quay_host_memory memory = {.pointer = bytes, .size = sizeof bytes};
  quay_raw_buffer raw;
  CHECK_OK(quay_raw_buffer_adopt_host(allocator, &memory, &raw));
  check_fits(allocator, 100);
  quay_raw_buffer_free(&raw);
  check_fits(allocator, 100);
  check_refused(allocator, 101);
  quay_allocator_release(allocator);
}

Test(limit, the_peak_is_exact_for_small_blocks_too) {
  quay_allocator *allocator = open("limit:1MiB+cpu");
  quay_raw_buffer a = alloc(allocator, 300), b = alloc(allocator, 411);
  quay_raw_buffer_free(&a);
  a = alloc(allocator, 17);
  quay_raw_buffer_free(&b);
  quay_raw_buffer_free(&a);
  cr_assert_eq(stats_of(allocator).peak_bytes, 711);
  cr_assert_eq(stats_of(allocator).live_bytes, 0);
  quay_allocator_release(allocator);
}

/* Address space costs nothing; what is committed of it does. */
Test(limit, committed_pages_are_counted_and_reserved_address_space_is_not) {
  quay_allocator *allocator = open("limit:1MiB+cpu");
  const uint64_t page = allocator->page_size, limit = 1 << 20;
  quay_raw_buffer raw = {.arm = QUAY_RAW_NONE};
  CHECK_OK(quay__reserve(allocator, 64 * limit, page, &raw));
  CHECK_OK(allocator->vtable.commit(allocator, &raw, 0, limit - page));
  check_fits(allocator, page);
  check_refused(allocator, page + 1);
  CHECK_FAILS(allocator->vtable.commit(allocator, &raw, limit, 2 * page),
              QUAY_STATUS_LIMIT_EXCEEDED);
  CHECK_OK(allocator->vtable.commit(allocator, &raw, limit, page));
  check_refused(allocator, 1);
  CHECK_OK(allocator->vtable.decommit(allocator, &raw, 0, 3 * page));
  check_fits(allocator, 3 * page);
  check_refused(allocator, 3 * page + 1);
  quay_raw_buffer_free(&raw);
  check_fits(allocator, limit);
  check_refused(allocator, limit + 1);
  quay_allocator_release(allocator);
}

Test(limit, each_of_two_limits_holds) {
  quay_allocator *allocator = open("limit:100+limit:50+cpu");
  check_refused(allocator, 51);
  CHECK_MESSAGE("limit is 50 bytes");
  check_refused(allocator, 101);
  CHECK_MESSAGE("limit is 100 bytes");
  check_fits(allocator, 50);
  check_fits(allocator, 50);
  quay_allocator_release(allocator);
}

Test(limit, the_spec_is_in_the_largest_whole_unit) {
  static const char *const specs[][2] = {
      {"limit:8GiB+cpu", "limit:8GiB+cpu"},
      {"limit:2048+cpu", "limit:2KiB+cpu"},
      {"limit:1500+cpu", "limit:1500+cpu"},
      {"limit:1536M+cpu", "limit:1536MiB+cpu"},
      {"limit:4096TiB+cpu", "limit:4096TiB+cpu"},
      {"limit:0+cpu", "limit:0+cpu"},
      {"limit:1KB+track+cpu", "limit:1000+track+cpu"},
  };
  for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) {
    quay_allocator *allocator = open(specs[i][0]);
    cr_expect_str_eq(quay_allocator_spec(allocator), specs[i][1]);
    quay_allocator_release(allocator);
  }
}

Test(limit, a_spec_without_a_size_or_with_a_wrong_one_is_refused) {
  static const char *const specs[] = {
      "limit+cpu",      "limit:+cpu",    "limit:x+cpu",   "limit:-1+cpu",
      "limit:1.5G+cpu", "limit:1,2+cpu", "limit:a=1+cpu", "limit:99999999999TiB+cpu",
      "limit:1 GiB+cpu"};
  for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) {
    quay_allocator *allocator = NULL;
    CHECK_FAILS(quay_allocator_open(specs[i], &allocator), QUAY_STATUS_INVALID_ARGUMENT);
    CHECK_MESSAGE("limit");
    CHECK_MESSAGE("a size in bytes");
  }
}

/* Requests under way. */

/* A backend whose allocations of `slow_size` bytes stop inside until they are let go, and then fail
 * if they are to. */
typedef struct gate {
  quay_test_table table;
  quay_status (*alloc)(quay_allocator *allocator, const quay_alloc_request *request,
                       quay_raw_buffer *out_raw);
  uint64_t slow_size;
  atomic_bool inside, open, fails;
} gate;

static quay_status gate_alloc(quay_allocator *allocator, const quay_alloc_request *request,
                              quay_raw_buffer *out_raw) {
  gate *self = quay_allocator_self(allocator);
  if (request->size == self->slow_size) {
    atomic_store(&self->inside, true);
    while (!atomic_load(&self->open))
      sched_yield();
    if (atomic_load(&self->fails))
      return quay_error_set(QUAY_STATUS_OUT_OF_HOST_MEMORY, "gate", 0, NULL, "closed");
  }
  return self->alloc(allocator, request, out_raw);
}

static quay_status gate_open(void *user, const quay_spec_args *args,
                             quay_allocator **out_allocator) {
  gate *self = user;
  (void)args;
  return quay_allocator_create(&self->table.desc, out_allocator);
}

static void register_gate(const char *name, gate *self) {
  const quay_backend backend = {.version = QUAY_BACKEND_VERSION,
                                .struct_size = sizeof backend,
                                .name = name,
                                .user = self,
                                .open = gate_open};
  CHECK_OK(quay_backend_register(&backend));
}

static quay_allocator *open_gate(gate *self, const char *spec) {
  quay_test_table_init(&self->table);
  self->alloc = self->table.vtable.alloc;
  self->table.vtable.alloc = gate_alloc;
  register_gate("gate", self);
  return open(spec);
}

typedef struct request {
  quay_allocator *allocator;
  uint64_t size;
  atomic_bool begun, done;
  quay_status status;
  quay_raw_buffer raw;
  pthread_t thread;
} request;

static void *make_request(void *argument) {
  request *self = argument;
  atomic_store(&self->begun, true);
  self->status = quay_allocator_alloc(self->allocator, self->size, NULL, &self->raw);
  atomic_store(&self->done, true);
  return NULL;
}

static void start(request *self, quay_allocator *allocator, uint64_t size) {
  *self = (request){.allocator = allocator, .size = size};
  cr_assert_eq(pthread_create(&self->thread, NULL, make_request, self), 0);
  while (!atomic_load(&self->begun))
    sched_yield();
}

/* A request of 60 bytes under way, one of 50 that finds 40 left, then the end of the first. */
static void race_two(bool first_fails, quay_status expected) {
  gate self = {.slow_size = 60};
  quay_allocator *allocator = open_gate(&self, "limit:100+gate");
  request slow, quick;
  atomic_store(&self.fails, first_fails);
  start(&slow, allocator, 60);
  while (!atomic_load(&self.inside))
    sched_yield();
  start(&quick, allocator, 50);
  /* Time to be refused too early. */
  for (int i = 0; i < 2000; i++)
    sched_yield();
  cr_expect_not(atomic_load(&quick.done));
  atomic_store(&self.open, true);
  pthread_join(slow.thread, NULL);
  pthread_join(quick.thread, NULL);
  cr_assert_eq(slow.status, first_fails ? QUAY_STATUS_OUT_OF_HOST_MEMORY : QUAY_OK);
  cr_assert_eq(quick.status, expected);
  quay_raw_buffer_free(&slow.raw);
  quay_raw_buffer_free(&quick.raw);
  check_fits(allocator, 100);
  quay_allocator_release(allocator);
}

Test(limit, a_request_that_fits_once_another_has_failed_is_not_refused) {
  race_two(true, QUAY_OK);
}

Test(limit, a_request_is_refused_once_what_was_in_its_way_is_live) {
  race_two(false, QUAY_STATUS_LIMIT_EXCEEDED);
}

Test(limit, a_request_that_can_never_fit_does_not_wait_for_those_under_way) {
  gate self = {.slow_size = 60};
  quay_allocator *allocator = open_gate(&self, "limit:100+gate");
  quay_raw_buffer raw = alloc(allocator, 10);
  request slow;
  start(&slow, allocator, 60);
  while (!atomic_load(&self.inside))
    sched_yield();
  check_refused(allocator, 91);
  check_fits(allocator, 30);
  atomic_store(&self.open, true);
  pthread_join(slow.thread, NULL);
  CHECK_OK(slow.status);
  quay_raw_buffer_free(&slow.raw);
  quay_raw_buffer_free(&raw);
  quay_allocator_release(allocator);
}

/* Races. */

#define RACE_LIMIT 10000u

/* Counts what is live below the limit. */
typedef struct scale {
  gate gate;
  atomic_uint_fast64_t live, most;
  void (*free)(quay_allocator *allocator, quay_raw_buffer *raw, quay_event *const *pending,
               size_t count);
} scale;

/* One in sixteen fails, with its bytes on the scale meanwhile. */
static quay_status scale_alloc(quay_allocator *allocator, const quay_alloc_request *asked,
                               quay_raw_buffer *out_raw) {
  scale *self = quay_allocator_self(allocator);
  const uint64_t live = atomic_fetch_add(&self->live, asked->size) + asked->size;
  uint_fast64_t most = atomic_load(&self->most);
  while (live > most && !atomic_compare_exchange_weak(&self->most, &most, live)) {
  }
  if (asked->size % 16 != 7)
    return self->gate.alloc(allocator, asked, out_raw);
  sched_yield();
  atomic_fetch_sub(&self->live, asked->size);
  return quay_error_set(QUAY_STATUS_OUT_OF_HOST_MEMORY, "scale", 0, NULL, "unlucky");
}

static void scale_free(quay_allocator *allocator, quay_raw_buffer *raw, quay_event *const *pending,
                       size_t count) {
  scale *self = quay_allocator_self(allocator);
  const uint64_t size = raw->size;
  self->free(allocator, raw, pending, count);
  atomic_fetch_sub(&self->live, size);
}

typedef struct racer {
  quay_allocator *allocator;
  uint64_t seed;
  uint64_t given, refused;
} racer;

static void *race(void *argument) {
  racer *self = argument;
  quay_raw_buffer raws[4] = {{.arm = QUAY_RAW_NONE}};
  uint64_t state = self->seed;
  for (int i = 0; i < 4000; i++) {
    quay_raw_buffer *raw = &raws[quay_test_random(&state) % 4];
    const uint64_t size = quay_test_random(&state) % (RACE_LIMIT / 4);
    if (raw->owner != NULL) {
      quay_raw_buffer_free(raw);
      continue;
    }
    const quay_status status = quay_allocator_alloc(self->allocator, size, NULL, raw);
    self->given += status == QUAY_OK;
    self->refused += status == QUAY_STATUS_LIMIT_EXCEEDED;
  }
  for (int i = 0; i < 4; i++)
    quay_raw_buffer_free(&raws[i]);
  return NULL;
}

Test(limit, threads_that_race_never_exceed_it_and_leave_no_room_taken) {
  enum {
    THREADS = 8
  };
  scale self = {.gate = {.slow_size = UINT64_MAX}};
  quay_test_table_init(&self.gate.table);
  self.gate.alloc = self.gate.table.vtable.alloc;
  self.free = self.gate.table.vtable.free;
  self.gate.table.vtable.alloc = scale_alloc;
  self.gate.table.vtable.free = scale_free;
  register_gate("scale", &self.gate);
  quay_allocator *allocator = open("limit:10000+scale");
  racer racers[THREADS];
  pthread_t threads[THREADS];
  for (size_t i = 0; i < THREADS; i++) {
    racers[i] = (racer){.allocator = allocator, .seed = i + 1};
    cr_assert_eq(pthread_create(&threads[i], NULL, race, &racers[i]), 0);
  }
  uint64_t given = 0, refused = 0;
  for (size_t i = 0; i < THREADS; i++) {
    pthread_join(threads[i], NULL);
    given += racers[i].given;
    refused += racers[i].refused;
  }
  cr_assert_leq(atomic_load(&self.most), RACE_LIMIT);
  cr_assert_gt(given, 0);
  cr_assert_gt(refused, 0);
  const quay_stats stats = stats_of(allocator);
  cr_assert_leq(stats.peak_bytes, RACE_LIMIT);
  cr_assert_gt(stats.peak_bytes, RACE_LIMIT / 2);
  check_fits(allocator, RACE_LIMIT);
  check_refused(allocator, RACE_LIMIT + 1);
  quay_allocator_release(allocator);
}
