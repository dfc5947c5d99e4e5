/* Devices: the rules of their tables, references, health, generations. */
#include <pthread.h>
#include <quay/quay.h>
#include <string.h>

#include "support/log.h"
#include "support/status.h"
#include "support/table.h"

static atomic_uint destroys;

static void device_destroy(void *self) {
  cr_assert_eq(self, &destroys);
  atomic_fetch_add(&destroys, 1);
}

static quay_device_vtable vtable;
static quay_device_desc desc;

static void reset(void) {
  atomic_store(&destroys, 0);
  vtable = (quay_device_vtable){.destroy = device_destroy,
                                .version = QUAY_DEVICE_VTABLE_VERSION,
                                .struct_size = sizeof vtable};
  desc = (quay_device_desc){.vtable = &vtable,
                            .self = &destroys,
                            .backend = "late",
                            .name = "late:3",
                            .type = QUAY_DEVICE_EXTERNAL,
                            .index = 3};
}

static quay_device *make(void) {
  quay_device *device = NULL;
  reset();
  CHECK_OK(quay_device_create(&desc, &device));
  return device;
}

static quay_status create_stream(quay_device *device, const quay_stream_options *options,
                                 uint64_t *out_stream) {
  (void)device, (void)options;
  *out_stream = 1;
  return QUAY_OK;
}

static void check_rule(const char *rule) {
  quay_device *device = NULL;
  CHECK_FAILS(quay_device_create(&desc, &device), QUAY_STATUS_INVALID_ARGUMENT);
  CHECK_MESSAGE(rule);
  cr_assert_null(device);
  cr_assert_eq(atomic_load(&destroys), 0);
}

Test(device, a_table_that_breaks_a_rule_is_refused_with_the_rule_named) {
  reset();
  vtable.destroy = NULL;
  check_rule("destroy");
  reset();
  vtable.version = 9;
  check_rule("version 9");
  reset();
  vtable.struct_size = 3;
  check_rule("struct_size");
  reset();
  vtable.stream_create = create_stream;
  check_rule("stream group");
  reset();
  desc.vtable = NULL;
  check_rule("vtable");
  reset();
  desc.name = "";
  check_rule("name");
  reset();
  desc.backend = NULL;
  check_rule("backend");
  quay_device *device = NULL;
  CHECK_FAILS(quay_device_create(NULL, &device), QUAY_STATUS_INVALID_ARGUMENT);
  reset();
  CHECK_FAILS(quay_device_create(&desc, NULL), QUAY_STATUS_INVALID_ARGUMENT);
}

Test(device, it_tells_what_it_was_made_with_and_its_last_reference_destroys_it) {
  quay_device *device = make();
  cr_assert_str_eq(quay_device_name(device), "late:3");
  cr_assert_eq(quay_device_type(device), QUAY_DEVICE_EXTERNAL);
  cr_assert_eq(quay_device_index(device), 3);
  cr_assert_eq(quay_device_self(device), &destroys);
  cr_assert_eq(quay_device_generation(device), 1);
  cr_assert_eq(quay_device_health(device), QUAY_HEALTH_OK);
  cr_assert_eq(quay_device_retain(device), device);
  quay_device_release(device);
  cr_assert_eq(atomic_load(&destroys), 0);
  quay_device_release(device);
  cr_assert_eq(atomic_load(&destroys), 1);
}

Test(device, the_host_is_one_and_cannot_be_ended) {
  quay_device *host = quay_device_host();
  cr_assert_not_null(host);
  cr_assert_eq(quay_device_host(), host);
  for (int i = 0; i < 10; i++)
    quay_device_release(host);
  cr_assert_eq(quay_device_type(host), QUAY_DEVICE_CPU);
  cr_assert_eq(quay_device_index(host), 0);
  cr_assert_str_eq(quay_device_name(host), "host");
}

Test(device, the_host_tells_its_memory) {
  quay_memory_info info = {0};
  CHECK_OK(quay_device_memory_info(quay_device_host(), &info));
  cr_assert_gt(info.total_bytes, 64u << 20);
  cr_assert_leq(info.free_bytes, info.total_bytes);
  cr_assert_gt(info.free_bytes, 0);
}

Test(device, without_memory_info_it_is_unsupported) {
  quay_device *device = make();
  quay_memory_info info;
  CHECK_FAILS(quay_device_memory_info(device, &info), QUAY_STATUS_UNSUPPORTED);
  CHECK_FAILS(quay_device_memory_info(NULL, &info), QUAY_STATUS_INVALID_ARGUMENT);
  CHECK_FAILS(quay_device_memory_info(device, NULL), QUAY_STATUS_INVALID_ARGUMENT);
  quay_device_release(device);
}

Test(device, questions_about_null_have_empty_answers) {
  cr_assert_null(quay_device_retain(NULL));
  quay_device_release(NULL);
  cr_assert_str_empty(quay_device_name(NULL));
  cr_assert_eq(quay_device_index(NULL), 0);
  cr_assert_eq(quay_device_generation(NULL), 0);
  cr_assert_eq(quay_device_health(NULL), QUAY_HEALTH_OK);
  cr_assert_null(quay_device_self(NULL));
}

/* Health. */

static quay_test_table table;

static quay_allocator *make_allocator(quay_device *device) {
  quay_allocator *allocator = NULL;
  quay_test_table_init(&table);
  table.desc.device = device;
  CHECK_OK(quay_allocator_create(&table.desc, &allocator));
  return allocator;
}

Test(device, once_it_is_lost_every_call_fails_with_the_first_message) {
  quay_device *device = make();
  quay_allocator *allocator = make_allocator(device);
  const int64_t shape[] = {100};
  quay_buffer *buffer = NULL;
  quay_buffer *other = NULL;
  quay_raw_buffer raw;
  quay_memory_info info;
  unsigned char bytes[100] = {1};
  CHECK_OK(quay_buffer_create(allocator, QUAY_U8, 1, shape, NULL, &buffer));
  quay_error_set(QUAY_STATUS_BUSY, "", 0, NULL, "from before");
  quay_test_log_begin();
  quay_device_mark_lost(device, 700, "ILLEGAL_ADDRESS", "kernel %d went astray", 5);
  quay_device_mark_lost(device, 701, "OTHER", "a second report");
  cr_assert_str_eq(quay_last_error()->message, "from before");
  cr_assert_eq(quay_test_log_count("went astray"), 1);
  cr_assert_eq(quay_test_log_count("second report"), 0);
  cr_assert_eq(quay_device_health(device), QUAY_HEALTH_LOST);

#define CHECK_LOST(expression)                                           \
  do {                                                                   \
    quay_error_clear();                                                  \
    CHECK_FAILS(expression, QUAY_STATUS_DEVICE_LOST);                    \
    CHECK_MESSAGE("kernel 5 went astray");                               \
    cr_assert_eq(quay_last_error()->native_code, 700);                   \
    cr_assert_str_eq(quay_last_error()->native_name, "ILLEGAL_ADDRESS"); \
  } while (0)
  CHECK_LOST(quay_allocator_alloc(allocator, 10, NULL, &raw));
  CHECK_LOST(quay_allocator_synchronize(allocator));
  CHECK_LOST(quay_device_memory_info(device, &info));
  CHECK_LOST(quay_buffer_create(allocator, QUAY_U8, 1, shape, NULL, &other));
  CHECK_LOST(quay_buffer_copy_in(buffer, bytes, 100));
  CHECK_LOST(quay_buffer_copy_out(buffer, bytes, 100));
  CHECK_LOST(quay_buffer_fill(buffer, bytes, 1));
  CHECK_LOST(quay_buffer_check(buffer));
  quay_buffer_release(buffer);
  quay_allocator_release(allocator);
  quay_device_release(device);
}

Test(device, a_new_generation_is_healthy_and_makes_old_memory_stale) {
  quay_device *device = make();
  quay_allocator *allocator = make_allocator(device);
  const int64_t shape[] = {100};
  unsigned char bytes[100] = {1};
  quay_buffer *old = NULL;
  quay_buffer *fresh = NULL;
  CHECK_OK(quay_buffer_create(allocator, QUAY_U8, 1, shape, NULL, &old));
  cr_assert_eq(quay_buffer_generation(old), 1);
  quay_device_mark_lost(device, 0, NULL, "gone");
  quay_device_advance_generation(device);
  cr_assert_eq(quay_device_health(device), QUAY_HEALTH_OK);
  cr_assert_eq(quay_device_generation(device), 2);
  CHECK_FAILS(quay_buffer_check(old), QUAY_STATUS_STALE);
  CHECK_FAILS(quay_buffer_copy_out(old, bytes, 100), QUAY_STATUS_STALE);
  CHECK_FAILS(quay_buffer_copy_in(old, bytes, 100), QUAY_STATUS_STALE);
  CHECK_OK(quay_buffer_create(allocator, QUAY_U8, 1, shape, NULL, &fresh));
  CHECK_OK(quay_buffer_copy_in(fresh, bytes, 100));
  cr_assert_eq(quay_buffer_generation(fresh), 2);
  quay_device_mark_lost(device, 0, NULL, "gone again");
  CHECK_FAILS(quay_buffer_check(fresh), QUAY_STATUS_DEVICE_LOST);
  CHECK_MESSAGE("gone again");
  quay_buffer_release(fresh);
  quay_buffer_release(old);
  quay_allocator_release(allocator);
  quay_device_release(device);
}

static void *report(void *device) {
  quay_device_mark_lost(device, 1, "ONE", "reported by a thread");
  return NULL;
}

Test(device, of_racing_reports_one_wins) {
  quay_device *device = make();
  pthread_t threads[8];
  quay_test_log_begin();
  for (size_t i = 0; i < 8; i++)
    cr_assert_eq(pthread_create(&threads[i], NULL, report, device), 0);
  for (size_t i = 0; i < 8; i++)
    pthread_join(threads[i], NULL);
  cr_assert_eq(quay_test_log_count("reported"), 1);
  cr_assert_eq(quay_device_health(device), QUAY_HEALTH_LOST);
  quay_device_release(device);
}
