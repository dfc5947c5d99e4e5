/* Names in specs: opening, third parties' backends, the list of devices. */
#include <pthread.h>
#include <quay/quay.h>
#include <stdio.h>
#include <string.h>

#include "support/status.h"
#include "support/table.h"

static quay_test_table table;
/* What open_table was last called with; of each thread, because one test opens from several. */
static _Thread_local char seen_spec[128];
static _Thread_local void *seen_user;

static quay_status open_table(void *user, const quay_spec_args *args,
                              quay_allocator **out_allocator) {
  seen_user = user;
  snprintf(seen_spec, sizeof seen_spec, "%s|%s|%s", args->name, args->spec,
           quay_spec_value(args, NULL) != NULL ? quay_spec_value(args, NULL) : "");
  return quay_allocator_create(&table.desc, out_allocator);
}

static quay_status open_nothing(void *user, const quay_spec_args *args,
                                quay_allocator **out_allocator) {
  (void)user, (void)args;
  *out_allocator = NULL;
  return QUAY_OK;
}

static quay_backend backend_of(const char *name) {
  quay_test_table_init(&table);
  return (quay_backend){.version = QUAY_BACKEND_VERSION,
                        .struct_size = sizeof(quay_backend),
                        .name = name,
                        .user = &table,
                        .open = open_table};
}

/* Opening. */

Test(registry, what_cannot_be_opened_leaves_null_and_one_clear_line) {
  static const char *const wrong[][2] = {
      {"nonsense", "cpu, mmap"},    {"", "cpu, mmap"},
      {" cpu", "\" cpu\""},         {"cpu:align=3", "3"},
      {"cpu:align=", "align="},     {"cpu:align=0", "0"},
      {"cpu:align=4096x", "4096x"}, {"cpu:hugepages=yes", "on or off"},
      {"cpu:junk", "junk"},         {"pol+cpu", "\"pol\""},
      {"+cpu", "track, fault"},     {"track+", "cpu, mmap"},
      {"cpu+track", "\"cpu\""},     {"cpu:align=64,align=64", "twice"},
      {"mmap:", "empty"},           {"track+nonsense", "\"nonsense\""},
  };
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    quay_allocator *allocator = (quay_allocator *)(void *)&table;
    CHECK_FAILS(quay_allocator_open(wrong[i][0], &allocator), QUAY_STATUS_INVALID_ARGUMENT);
    CHECK_MESSAGE(wrong[i][1]);
    cr_assert_null(strchr(quay_last_error()->message, '\n'));
    cr_assert_null(allocator, "%s", wrong[i][0]);
  }
}

Test(registry, a_directory_that_is_not_there_is_an_io_error_with_its_path) {
  quay_allocator *allocator = NULL;
  CHECK_FAILS(quay_allocator_open("mmap:/does/not/exist", &allocator), QUAY_STATUS_IO);
  CHECK_MESSAGE("/does/not/exist");
  cr_assert_str_eq(quay_last_error()->native_name, "ENOENT");
}

Test(registry, a_backend_that_is_not_on_this_machine_is_unavailable_and_told_with_what_is) {
  quay_allocator *allocator = NULL;
  CHECK_FAILS(quay_allocator_open("cuda:99", &allocator), QUAY_STATUS_UNAVAILABLE);
  CHECK_MESSAGE("cpu");
  CHECK_FAILS(quay_allocator_open("track+vulkan:99", &allocator), QUAY_STATUS_UNAVAILABLE);
  cr_assert_null(allocator);
}

Test(registry, a_null_output_is_refused) {
  CHECK_FAILS(quay_allocator_open("cpu", NULL), QUAY_STATUS_INVALID_ARGUMENT);
}

/* Registering. */

Test(registry, a_registered_backend_works_in_specs_and_layers_until_it_is_taken_out) {
  quay_backend backend = backend_of("mine");
  quay_allocator *allocator = NULL;
  quay_raw_buffer raw;
  CHECK_OK(quay_backend_register(&backend));
  memset(&backend, 0, sizeof backend);
  CHECK_OK(quay_allocator_open("track+mine:a+b", &allocator));
  cr_assert_str_eq(seen_spec, "mine|track+mine:a+b|a+b");
  cr_assert_eq(seen_user, &table);
  CHECK_OK(quay_backend_unregister("mine"));
  CHECK_OK(quay_allocator_alloc(allocator, 100, NULL, &raw));
  quay_raw_buffer_free(&raw);
  quay_allocator_release(allocator);
  cr_assert_eq(atomic_load(&table.destroys), 1);
  CHECK_FAILS(quay_allocator_open("mine", &allocator), QUAY_STATUS_INVALID_ARGUMENT);
  CHECK_MESSAGE("\"mine\"");
}

Test(registry, messages_list_registered_backends) {
  const quay_backend backend = backend_of("mine");
  quay_allocator *allocator = NULL;
  CHECK_OK(quay_backend_register(&backend));
  CHECK_FAILS(quay_allocator_open("nonsense", &allocator), QUAY_STATUS_INVALID_ARGUMENT);
  CHECK_MESSAGE("mine");
  CHECK_OK(quay_backend_unregister("mine"));
}

Test(registry, names_that_are_taken_or_malformed_are_refused) {
  static const char *const wrong[] = {"cpu",
                                      "mmap",
                                      "cuda",
                                      "vulkan",
                                      "track",
                                      "fault",
                                      "mine",
                                      "",
                                      "Mine",
                                      "1mine",
                                      "-mine",
                                      "mi ne",
                                      "mine:",
                                      "mi+ne",
                                      "m\xc3\xafne",
                                      "mine,",
                                      "abcdefghijklmnopqrstuvwxyzabcdefg"};
  quay_backend backend = backend_of("mine");
  CHECK_OK(quay_backend_register(&backend));
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    backend.name = wrong[i];
    cr_expect_eq(quay_backend_register(&backend), QUAY_STATUS_INVALID_ARGUMENT, "\"%s\"", wrong[i]);
  }
  backend.name = "m-1_x";
  CHECK_OK(quay_backend_register(&backend));
  CHECK_OK(quay_backend_unregister("m-1_x"));
  CHECK_OK(quay_backend_unregister("mine"));
}

Test(registry, a_structure_that_is_not_this_versions_is_refused) {
  quay_backend backend = backend_of("mine");
  backend.version = 2;
  CHECK_FAILS(quay_backend_register(&backend), QUAY_STATUS_INVALID_ARGUMENT);
  backend = backend_of("mine");
  backend.struct_size = 8;
  CHECK_FAILS(quay_backend_register(&backend), QUAY_STATUS_INVALID_ARGUMENT);
  backend = backend_of("mine");
  backend.open = NULL;
  CHECK_FAILS(quay_backend_register(&backend), QUAY_STATUS_INVALID_ARGUMENT);
  backend = backend_of(NULL);
  CHECK_FAILS(quay_backend_register(&backend), QUAY_STATUS_INVALID_ARGUMENT);
  CHECK_FAILS(quay_backend_register(NULL), QUAY_STATUS_INVALID_ARGUMENT);
}

Test(registry, only_what_was_registered_can_be_taken_out) {
  CHECK_FAILS(quay_backend_unregister("cpu"), QUAY_STATUS_INVALID_ARGUMENT);
  CHECK_FAILS(quay_backend_unregister("track"), QUAY_STATUS_INVALID_ARGUMENT);
  CHECK_FAILS(quay_backend_unregister("nobody"), QUAY_STATUS_INVALID_ARGUMENT);
  CHECK_FAILS(quay_backend_unregister(NULL), QUAY_STATUS_INVALID_ARGUMENT);
}

Test(registry, an_open_function_that_succeeds_with_nothing_is_an_error) {
  quay_backend backend = backend_of("mine");
  quay_allocator *allocator = NULL;
  backend.open = open_nothing;
  CHECK_OK(quay_backend_register(&backend));
  CHECK_FAILS(quay_allocator_open("track+mine", &allocator), QUAY_STATUS_INVALID_ARGUMENT);
  CHECK_MESSAGE("mine");
  CHECK_OK(quay_backend_unregister("mine"));
}

Test(registry, a_layer_that_cannot_open_gives_its_inner_allocator_back) {
  const quay_backend backend = backend_of("mine");
  quay_allocator *allocator = NULL;
  CHECK_OK(quay_backend_register(&backend));
  CHECK_FAILS(quay_allocator_open("track+fault+mine", &allocator), QUAY_STATUS_INVALID_ARGUMENT);
  cr_assert_eq(atomic_load(&table.destroys), 1);
  CHECK_OK(quay_backend_unregister("mine"));
}

static void *open_and_close(void *failed) {
  for (int i = 0; i < 200; i++) {
    quay_allocator *allocator = NULL;
    const quay_status status = quay_allocator_open("cpu", &allocator);
    if (status != QUAY_OK)
      return failed;
    quay_allocator_release(allocator);
    /* Taken out by the other thread now and then: then it is unknown. */
    if (quay_allocator_open("racing", &allocator) == QUAY_OK)
      quay_allocator_release(allocator);
  }
  return NULL;
}

Test(registry, registering_and_opening_race_without_harm) {
  quay_backend backend = backend_of("racing");
  pthread_t threads[3];
  char any;
  for (size_t i = 0; i < 3; i++)
    cr_assert_eq(pthread_create(&threads[i], NULL, open_and_close, &any), 0);
  for (int i = 0; i < 300; i++) {
    CHECK_OK(quay_backend_register(&backend));
    CHECK_OK(quay_backend_unregister("racing"));
  }
  for (size_t i = 0; i < 3; i++) {
    void *failed;
    pthread_join(threads[i], &failed);
    cr_assert_null(failed);
  }
}

/* Devices. */

static quay_status two_devices(void *user, size_t index, quay_device_info *out_info,
                               bool *out_more) {
  static char spec[16];
  (void)user;
  *out_more = index < 2;
  snprintf(spec, sizeof spec, "mine:%zu", index);
  out_info->spec = spec;
  out_info->name = "Mine";
  out_info->available = index == 0;
  out_info->reason = index == 0 ? NULL : "switched off";
  out_info->type = QUAY_DEVICE_EXTERNAL;
  out_info->index = (int32_t)index;
  return QUAY_OK;
}

static quay_status no_devices(void *user, size_t index, quay_device_info *out_info,
                              bool *out_more) {
  (void)user, (void)index, (void)out_info, (void)out_more;
  return quay_error_set(QUAY_STATUS_IO, "mine", 0, NULL, "the bus is gone");
}

Test(registry, devices_come_in_order_and_unavailable_ones_with_the_reason) {
  static const char *const backends[] = {"cpu", "mmap", "cuda", "vulkan", "mine", "mine", "other"};
  quay_backend backend = backend_of("mine");
  quay_backend other = backend_of("other");
  quay_device_list list;
  backend.device_info = two_devices;
  CHECK_OK(quay_backend_register(&backend));
  CHECK_OK(quay_backend_register(&other));
  quay_error_set(QUAY_STATUS_BUSY, "", 0, NULL, "from before");
  CHECK_OK(quay_devices(&list));
  cr_assert_str_eq(quay_last_error()->message, "from before");
  cr_assert_eq(list.count, 7);
  for (size_t i = 0; i < list.count; i++) {
    cr_assert_str_eq(list.devices[i].backend, backends[i]);
    cr_assert_not_null(list.devices[i].name);
    cr_assert_neq(list.devices[i].available, list.devices[i].reason[0] != '\0',
                  "%s: available or a reason", backends[i]);
  }
  cr_assert(list.devices[0].available);
  cr_assert_eq(list.devices[0].type, QUAY_DEVICE_CPU);
  cr_assert_str_eq(list.devices[4].spec, "mine:0");
  cr_assert_str_eq(list.devices[5].spec, "mine:1");
  cr_assert_str_eq(list.devices[5].reason, "switched off");
  cr_assert_str_eq(list.devices[6].spec, "other");
  quay_device_list_free(&list);
  cr_assert_null(list.devices);
  cr_assert_eq(list.count, 0);
  quay_device_list_free(&list);
  quay_device_list_free(NULL);
  CHECK_OK(quay_backend_unregister("other"));
  CHECK_OK(quay_backend_unregister("mine"));
}

Test(registry, a_backend_that_cannot_list_its_devices_is_listed_with_the_reason) {
  quay_backend backend = backend_of("mine");
  quay_device_list list;
  backend.device_info = no_devices;
  CHECK_OK(quay_backend_register(&backend));
  CHECK_OK(quay_devices(&list));
  cr_assert_not(list.devices[list.count - 1].available);
  cr_assert_str_eq(list.devices[list.count - 1].reason, "the bus is gone");
  quay_device_list_free(&list);
  CHECK_FAILS(quay_devices(NULL), QUAY_STATUS_INVALID_ARGUMENT);
  CHECK_OK(quay_backend_unregister("mine"));
}
