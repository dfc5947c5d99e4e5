/* The trace layer: what its log says, that it can be replayed whatever happens, and what becomes of
 * it when the file can't be written. The log is read by the program's own reader. */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <quay/backend.h>
#include <quay/quay.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../tools/quay/trace_log.h"
#include "core/allocator_impl.h"
#include "support/files.h"
#include "support/log.h"
#include "support/random.h"
#include "support/status.h"
#include "support/table.h"

TestSuite(trace, .init = test_files_begin, .fini = test_files_end);

#define HEADER "Thread,Time,Action,Pointer,Size,Stream\n"

/* What pwrite does in all threads: fails with this errno, once so many bytes were written. */
static atomic_int write_error;
static atomic_uint_fast64_t write_room = UINT64_MAX;
static atomic_uint writes;

ssize_t __real_quay__os_pwrite(int file, const void *buffer, size_t size, uint64_t offset);

ssize_t __wrap_quay__os_pwrite(int file, const void *buffer, size_t size, uint64_t offset) {
  const uint64_t room = atomic_load(&write_room);
  atomic_fetch_add(&writes, 1);
  if (room == 0) {
    errno = atomic_load(&write_error);
    return -1;
  }
  const ssize_t count = __real_quay__os_pwrite(file, buffer, size < room ? size : room, offset);
  if (room != UINT64_MAX && count > 0)
    atomic_fetch_sub(&write_room, (uint64_t)count);
  return count;
}

static void leave_room(uint64_t bytes) {
  atomic_store(&write_error, ENOSPC);
  atomic_store(&write_room, bytes);
}

static quay_allocator *open_spec(const char *format, ...) QUAY_PRINTF(1, 2);

static quay_allocator *open_spec(const char *format, ...) {
  char spec[512];
  quay_allocator *allocator = NULL;
  va_list arguments;
  va_start(arguments, format);
  /* clang-tidy 14 overlooks va_start here. NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized) */
  vsnprintf(spec, sizeof spec, format, arguments);
  va_end(arguments);
  CHECK_OK(quay_allocator_open(spec, &allocator));
  return allocator;
}

static quay_raw_buffer alloc(quay_allocator *allocator, uint64_t size) {
  quay_raw_buffer raw;
  CHECK_OK(quay_allocator_alloc(allocator, size, NULL, &raw));
  return raw;
}

static uint64_t address_of(const quay_raw_buffer *raw) {
  uint64_t address = 0;
  CHECK_OK(quay_raw_buffer_address(raw, &address));
  return address;
}

static void alloc_and_free(quay_allocator *allocator, size_t count) {
  for (size_t i = 0; i < count; i++) {
    quay_raw_buffer raw = alloc(allocator, i + 1);
    quay_raw_buffer_free(&raw);
  }
}

/* The whole file as text; freed by the caller. */
static char *text_of(const char *path) {
  const uint64_t size = test_file_size(path);
  char *text = calloc(1, size + 1);
  FILE *file = fopen(path, "r");
  cr_assert_not_null(file);
  cr_assert_eq(fread(text, 1, size, file), size);
  fclose(file);
  return text;
}

typedef struct log_content {
  size_t count;
  trace_event events[64]; /* the first ones */
  size_t live;
} log_content;

/* Reads a log with the program's reader, which refuses what can't be replayed. */
static log_content read_log(const char *path) {
  char error[TRACE_ERROR_SIZE];
  trace_log *log = trace_log_open(path, error);
  cr_assert_not_null(log, "%s", error);
  log_content content = {.count = 0};
  trace_event event;
  trace_status status;
  while ((status = trace_log_next(log, &event)) == TRACE_EVENT) {
    if (content.count < sizeof content.events / sizeof content.events[0])
      content.events[content.count] = event;
    content.count++;
    content.live += event.action == TRACE_ALLOCATE;
    content.live -= event.action == TRACE_FREE;
  }
  cr_assert_eq(status, TRACE_END, "%s", trace_log_error(log));
  trace_log_close(log);
  return content;
}

/* What stands in the log. */

Test(trace, the_log_has_every_allocation_and_free_in_order_with_address_and_size) {
  const char *path = test_path("log");
  quay_allocator *allocator = open_spec("trace:%s+cpu", path);
  quay_raw_buffer first = alloc(allocator, 100), second = alloc(allocator, 3 << 20);
  const uint64_t addresses[] = {address_of(&first), address_of(&second)};
  quay_raw_buffer_free(&first);
  quay_raw_buffer_free(&second);
  quay_allocator_release(allocator);
  const log_content content = read_log(path);
  cr_assert_eq(content.count, 4);
  static const trace_action actions[] = {TRACE_ALLOCATE, TRACE_ALLOCATE, TRACE_FREE, TRACE_FREE};
  for (size_t i = 0; i < 4; i++) {
    cr_assert_eq(content.events[i].action, actions[i]);
    cr_assert_eq(content.events[i].pointer, addresses[i % 2]);
    cr_assert_eq(content.events[i].size, i % 2 == 0 ? 100 : 3 << 20);
    cr_assert_eq(content.events[i].stream, 0);
  }
}

Test(trace, a_line_looks_as_rmm_writes_it) {
  const char *path = test_path("log");
  quay_allocator *allocator = open_spec("trace:%s+cpu", path);
  quay_raw_buffer raw = alloc(allocator, 1234567);
  char expected[64];
  snprintf(expected, sizeof expected, ",allocate,0x%llx,1234567,0x0\n",
           (unsigned long long)address_of(&raw));
  quay_raw_buffer_free(&raw);
  quay_allocator_release(allocator);
  char *text = text_of(path);
  cr_assert_eq(strncmp(text, HEADER, strlen(HEADER)), 0);
  char *time = NULL;
  cr_assert_eq(strtoul(text + strlen(HEADER), &time, 10), (unsigned long)gettid());
  const char *digits = ",00:00:00:000000";
  for (size_t i = 0; i < strlen(digits); i++)
    cr_assert(digits[i] == '0' ? isdigit(time[i]) : time[i] == digits[i], "%s", time);
  cr_assert_eq(strncmp(time + strlen(digits), expected, strlen(expected)), 0, "%s", text);
  free(text);
}

Test(trace, an_allocation_that_failed_is_logged_as_that_and_keeps_its_error) {
  const char *path = test_path("log");
  quay_allocator *allocator = open_spec("trace:%s+fault:nth=2+cpu", path);
  quay_raw_buffer kept = alloc(allocator, 10), raw;
  CHECK_FAILS(quay_allocator_alloc(allocator, 77, NULL, &raw), QUAY_STATUS_OUT_OF_HOST_MEMORY);
  CHECK_MESSAGE("failed on purpose");
  quay_raw_buffer_free(&kept);
  quay_allocator_release(allocator);
  const log_content content = read_log(path);
  cr_assert_eq(content.count, 3);
  cr_assert_eq(content.events[1].action, TRACE_FAILURE);
  cr_assert_eq(content.events[1].size, 77);
  cr_assert_eq(content.events[1].pointer, 0);
}

Test(trace, blocks_have_the_stream_that_they_were_allocated_on) {
  const char *path = test_path("log");
  quay_allocator *allocator = open_spec("trace:%s+cpu", path);
  quay_stream *streams[2] = {NULL};
  quay_raw_buffer raws[2];
  uint64_t ids[2];
  for (size_t i = 0; i < 2; i++) {
    CHECK_OK(quay_stream_create(quay_allocator_device(allocator), NULL, &streams[i]));
    const quay_alloc_options options = {.stream = streams[i]};
    CHECK_OK(quay_allocator_alloc(allocator, 10, &options, &raws[i]));
    ids[i] = quay_stream_id(streams[i]);
  }
  for (size_t i = 0; i < 2; i++) {
    quay_raw_buffer_free(&raws[i]);
    quay_stream_release(streams[i]);
  }
  quay_allocator_release(allocator);
  const log_content content = read_log(path);
  for (size_t i = 0; i < 4; i++)
    cr_assert_eq(content.events[i].stream, ids[i % 2]);
  cr_assert_neq(ids[0], ids[1]);
}

Test(trace, times_never_go_back) {
  const char *path = test_path("log");
  quay_allocator *allocator = open_spec("trace:%s+cpu", path);
  alloc_and_free(allocator, 500);
  quay_allocator_release(allocator);
  char *text = text_of(path), *rest = text + strlen(HEADER);
  char last[32] = "";
  size_t count = 0;
  for (char *line; (line = strsep(&rest, "\n")) != NULL && *line != '\0'; count++) {
    char time[32];
    cr_assert_eq(sscanf(line, "%*u,%31[^,]", time), 1);
    cr_assert_geq(strcmp(time, last), 0);
    memcpy(last, time, sizeof last);
  }
  cr_assert_eq(count, 1000);
  free(text);
}

Test(trace, empty_blocks_have_the_null_pointer_and_can_be_replayed) {
  const char *path = test_path("log");
  quay_allocator *allocator = open_spec("trace:%s+cpu", path);
  quay_raw_buffer raws[3] = {alloc(allocator, 0), alloc(allocator, 0), alloc(allocator, 0)};
  for (size_t i = 0; i < 3; i++)
    quay_raw_buffer_free(&raws[i]);
  quay_allocator_release(allocator);
  const log_content content = read_log(path);
  cr_assert_eq(content.count, 6);
  cr_assert_eq(content.live, 0);
  for (size_t i = 0; i < 6; i++)
    cr_assert_eq(content.events[i].pointer, 0);
}

Test(trace, a_block_that_is_freed_twice_is_logged_as_freed_once) {
  const char *path = test_path("log");
  quay_test_log_begin();
  quay_allocator *allocator = open_spec("trace:%s+track+cpu", path);
  quay_raw_buffer raw = alloc(allocator, 64), copy = raw;
  quay_raw_buffer_free(&raw);
  quay_raw_buffer_free(&copy);
  quay_allocator_release(allocator);
  cr_assert_eq(quay_test_log_count("refused to free"), 1);
  cr_assert_eq(read_log(path).count, 2);
}

Test(trace, released_memory_is_logged_as_freed_and_adopted_memory_not_at_all) {
  const char *path = test_path("log");
  quay_allocator *allocator = open_spec("trace:%s+cpu", path);
  quay_raw_buffer raw = alloc(allocator, 64);
  quay_host_memory memory;
  CHECK_OK(quay_raw_buffer_release_host(&raw, &memory));
  CHECK_OK(quay_raw_buffer_adopt_host(allocator, &memory, &raw));
  quay_raw_buffer_free(&raw);
  quay_allocator_release(allocator);
  const log_content content = read_log(path);
  cr_assert_eq(content.count, 2);
  cr_assert_eq(content.live, 0);
}

Test(trace, reserved_address_space_is_not_logged) {
  const char *path = test_path("log");
  quay_allocator *allocator = open_spec("trace:%s+cpu", path);
  quay_raw_buffer raw = {.arm = QUAY_RAW_NONE};
  CHECK_OK(quay__reserve(allocator, 1 << 20, 4096, &raw));
  CHECK_OK(allocator->vtable.commit(allocator, &raw, 0, 4096));
  quay_raw_buffer_free(&raw);
  quay_allocator_release(allocator);
  cr_assert_eq(read_log(path).count, 0);
}

/* Backends of the test's own. */

static quay_status open_table(void *user, const quay_spec_args *args,
                              quay_allocator **out_allocator) {
  quay_test_table *table = user;
  (void)args;
  return quay_allocator_create(&table->desc, out_allocator);
}

static void register_table(quay_test_table *table) {
  const quay_backend backend = {.version = QUAY_BACKEND_VERSION,
                                .struct_size = sizeof backend,
                                .name = "table",
                                .user = table,
                                .open = open_table};
  CHECK_OK(quay_backend_register(&backend));
}

Test(trace, memory_without_addresses_is_numbered) {
  const char *path = test_path("log");
  quay_test_table table;
  quay_test_table_init(&table);
  table.vtable.host_pointer = NULL;
  table.desc.flags = 0;
  register_table(&table);
  quay_allocator *allocator = open_spec("trace:%s+table", path);
  quay_raw_buffer first = alloc(allocator, 5), second = alloc(allocator, 6);
  quay_raw_buffer_free(&first);
  quay_raw_buffer_free(&second);
  quay_allocator_release(allocator);
  const log_content content = read_log(path);
  cr_assert_eq(content.count, 4);
  cr_assert_eq(content.events[0].pointer, (UINT64_C(1) << 63) + 1);
  cr_assert_eq(content.events[1].pointer, (UINT64_C(1) << 63) + 2);
  cr_assert_eq(content.events[2].pointer, content.events[0].pointer);
  cr_assert_eq(content.events[3].pointer, content.events[1].pointer);
}

static quay_status same_address(quay_allocator *allocator, const quay_raw_buffer *raw,
                                uint64_t *out_address) {
  (void)allocator;
  (void)raw;
  *out_address = 0x7000;
  return QUAY_OK;
}

static void no_destroy(void *self) {
  (void)self;
}

/* As after a reset, when the blocks of before are gone without a free. */
Test(trace, an_address_that_a_reset_has_freed_can_be_allocated_again) {
  static const quay_device_vtable vtable = {
      .destroy = no_destroy, .version = QUAY_DEVICE_VTABLE_VERSION, .struct_size = sizeof vtable};
  const quay_device_desc desc = {
      .vtable = &vtable, .backend = "table", .name = "table:0", .type = QUAY_DEVICE_EXTERNAL};
  const char *path = test_path("log");
  quay_device *device = NULL;
  quay_test_table table;
  quay_test_table_init(&table);
  CHECK_OK(quay_device_create(&desc, &device));
  table.desc.device = device;
  table.vtable.address = same_address;
  register_table(&table);
  quay_allocator *allocator = open_spec("trace:%s+table", path);
  quay_raw_buffer old = alloc(allocator, 5);
  quay_device_advance_generation(device);
  quay_raw_buffer fresh = alloc(allocator, 6);
  quay_raw_buffer_free(&old);
  quay_raw_buffer_free(&fresh);
  quay_allocator_release(allocator);
  quay_device_release(device);
  const log_content content = read_log(path);
  cr_assert_eq(content.count, 4);
  cr_assert_eq(content.live, 0);
}

/* When the file is written. */

Test(trace, lines_are_buffered_until_there_are_as_many_as_the_spec_says) {
  const char *path = test_path("log");
  quay_allocator *allocator = open_spec("trace:%s,flush=6+cpu", path);
  cr_assert_eq(read_log(path).count, 0);
  alloc_and_free(allocator, 2);
  cr_assert_eq(read_log(path).count, 0);
  alloc_and_free(allocator, 1);
  cr_assert_eq(read_log(path).count, 6);
  alloc_and_free(allocator, 4);
  cr_assert_eq(read_log(path).count, 12);
  CHECK_OK(quay_trace_flush(allocator));
  cr_assert_eq(read_log(path).count, 14);
  quay_allocator_release(allocator);
  cr_assert_eq(read_log(path).count, 14);
}

Test(trace, a_full_buffer_is_written_whatever_the_spec_says) {
  const char *path = test_path("log");
  quay_allocator *allocator = open_spec("trace:%s,flush=1000000+cpu", path);
  alloc_and_free(allocator, 1000);
  const size_t seen = read_log(path).count;
  cr_assert_gt(seen, 500);
  cr_assert_lt(seen, 2000);
  quay_allocator_release(allocator);
  cr_assert_eq(read_log(path).count, 2000);
}

Test(trace, releasing_an_allocator_with_live_blocks_writes_the_log) {
  const char *path = test_path("log");
  quay_test_log_begin();
  quay_allocator *allocator = open_spec("trace:%s+cpu", path);
  quay_raw_buffer raw = alloc(allocator, 5);
  quay_allocator_release(allocator);
  cr_assert_eq(read_log(path).live, 1);
  quay_raw_buffer_free(&raw);
  cr_assert_eq(read_log(path).live, 0);
}

/* Runs `body` in a child and gives what waitpid() says. */
static int in_child(void (*body)(void *user), void *user) {
  const pid_t child = fork();
  if (child == 0) {
    body(user);
    _exit(99);
  }
  int status = -1;
  cr_assert_gt(child, 0);
  cr_assert_eq(waitpid(child, &status, 0), child);
  return status;
}

static void die_with_a_log(void *path) {
  quay_allocator *allocator = open_spec("trace:%s,flush=8+cpu", (const char *)path);
  alloc_and_free(allocator, 15);
  raise(SIGKILL);
}

Test(trace, the_log_of_a_killed_process_is_complete_up_to_the_last_flush) {
  char *path = strdup(test_path("log"));
  const int status = in_child(die_with_a_log, path);
  cr_assert(WIFSIGNALED(status));
  cr_assert_eq(read_log(path).count, 24);
  free(path);
}

/* What the program still refers to when it exits is no leak. */
static quay_allocator *never_released;

static void exit_with_a_log(void *path) {
  never_released = open_spec("trace:%s+cpu", (const char *)path);
  alloc_and_free(never_released, 15);
  exit(7);
}

Test(trace, the_log_of_a_process_that_exits_without_a_release_is_complete) {
  char *path = strdup(test_path("log"));
  const int status = in_child(exit_with_a_log, path);
  cr_assert(WIFEXITED(status));
  cr_assert_eq(WEXITSTATUS(status), 7);
  cr_assert_eq(read_log(path).count, 30);
  free(path);
}

static void use_in_child(void *allocator) {
  alloc_and_free(allocator, 1000);
  if (quay_trace_flush(allocator) != QUAY_OK)
    _exit(1);
  quay_allocator_release(allocator);
  _exit(0);
}

Test(trace, a_forked_child_writes_nothing_into_the_log_of_its_parent) {
  const char *path = test_path("log");
  quay_allocator *allocator = open_spec("trace:%s,flush=5+cpu", path);
  alloc_and_free(allocator, 4);
  cr_assert_eq(in_child(use_in_child, allocator), 0);
  cr_assert_eq(read_log(path).count, 5);
  alloc_and_free(allocator, 3);
  quay_allocator_release(allocator);
  cr_assert_eq(read_log(path).count, 14);
}

/* Files that can't be written. */

Test(trace, short_writes_are_continued) {
  const char *path = test_path("log");
  quay_allocator *allocator = open_spec("trace:%s,flush=64+cpu", path);
  size_t cut_off = 0;
  quay_test_log_begin();
  for (uint64_t room = 1; room < 200; room++) {
    leave_room(room);
    quay_raw_buffer raw = alloc(allocator, room);
    cut_off += quay_trace_flush(allocator) != QUAY_OK;
    leave_room(UINT64_MAX);
    quay_raw_buffer_free(&raw);
  }
  quay_allocator_release(allocator);
  cr_assert_eq(read_log(path).count, 398);
  cr_assert_gt(cut_off, 20);
}

Test(trace, a_full_disk_fails_no_allocation_and_is_reported_and_counted_once) {
  const char *path = test_path("log");
  quay_test_log_begin();
  quay_allocator *allocator = open_spec("trace:%s,flush=1+cpu", path);
  leave_room(0);
  alloc_and_free(allocator, 10);
  cr_assert_eq(quay_test_log_count("ENOSPC"), 1, "%s", quay_test_log_text());
  cr_assert_eq(quay_test_log_count(path), 1);
  quay_stats stats;
  CHECK_OK(quay_allocator_stats(allocator, &stats));
  cr_assert_eq(stats.error_count, 1);
  cr_assert_eq(stats.alloc_count, 10);
  CHECK_FAILS(quay_trace_flush(allocator), QUAY_STATUS_IO);
  CHECK_MESSAGE("20 lines");
  cr_assert_str_eq(quay_last_error()->native_name, "ENOSPC");
  leave_room(UINT64_MAX);
  CHECK_OK(quay_trace_flush(allocator));
  quay_allocator_release(allocator);
  cr_assert_eq(read_log(path).count, 20);
  cr_assert_eq(quay_test_log_count(""), 1);
}

Test(trace, an_error_that_the_program_has_survives_a_full_disk) {
  const char *path = test_path("log");
  quay_test_log_begin();
  quay_allocator *allocator = open_spec("trace:%s,flush=1+fault:nth=1+cpu", path);
  quay_raw_buffer raw;
  leave_room(0);
  CHECK_FAILS(quay_allocator_alloc(allocator, 77, NULL, &raw), QUAY_STATUS_OUT_OF_HOST_MEMORY);
  CHECK_MESSAGE("failed on purpose");
  alloc_and_free(allocator, 3);
  cr_assert_eq(quay_last_error()->status, QUAY_STATUS_OUT_OF_HOST_MEMORY);
  leave_room(UINT64_MAX);
  quay_allocator_release(allocator);
}

Test(trace, a_log_that_the_disk_cut_off_ends_with_a_whole_line_and_says_what_it_lacks) {
  const char *path = test_path("log");
  quay_test_log_begin();
  quay_allocator *allocator = open_spec("trace:%s,flush=10+cpu", path);
  alloc_and_free(allocator, 50);
  leave_room(777);
  alloc_and_free(allocator, 5000);
  leave_room(UINT64_MAX);
  alloc_and_free(allocator, 5000);
  CHECK_FAILS(quay_trace_flush(allocator), QUAY_STATUS_IO);
  quay_allocator_release(allocator);
  const log_content content = read_log(path);
  cr_assert_gt(content.count, 100);
  cr_assert_lt(content.count, 200);
  char lacks[64];
  snprintf(lacks, sizeof lacks, "it lacks %zu lines", (size_t)20100 - content.count);
  cr_assert_eq(quay_test_log_count(lacks), 1, "%s: %s", lacks, quay_test_log_text());
  cr_assert_eq(quay_test_log_count("nothing more is logged"), 1);
}

Test(trace, a_path_that_can_not_be_written_is_an_error_when_it_is_opened) {
  char spec[512];
  quay_allocator *allocator = NULL;
  snprintf(spec, sizeof spec, "trace:%s/none/log+cpu", test_directory());
  CHECK_FAILS(quay_allocator_open(spec, &allocator), QUAY_STATUS_IO);
  CHECK_MESSAGE("none/log");
  cr_assert_str_eq(quay_last_error()->native_name, "ENOENT");
  CHECK_FAILS(quay_allocator_open("trace:/dev/full+cpu", &allocator), QUAY_STATUS_IO);
  cr_assert_str_eq(quay_last_error()->native_name, "ENOSPC");
  const int before = test_descriptor_count();
  CHECK_FAILS(quay_allocator_open("trace:/dev/full+cpu", &allocator), QUAY_STATUS_IO);
  cr_assert_eq(test_descriptor_count(), before);
}

/* Specs. */

Test(trace, the_spec_opens_the_same_log_again_whatever_is_in_the_path) {
  char path[256], escaped[512], spec[600];
  snprintf(path, sizeof path, "%s/a=1,b+c\\d", test_directory());
  snprintf(escaped, sizeof escaped, "trace:%s/a\\=1\\,b\\+c\\\\d,flush=7+cpu", test_directory());
  quay_allocator *allocator = NULL;
  CHECK_OK(quay_allocator_open(escaped, &allocator));
  cr_assert_eq(read_log(path).count, 0);
  cr_assert_str_eq(quay_allocator_spec(allocator), escaped);
  snprintf(spec, sizeof spec, "%s", quay_allocator_spec(allocator));
  quay_allocator_release(allocator);
  CHECK_OK(quay_allocator_open(spec, &allocator));
  quay_allocator_release(allocator);
}

Test(trace, a_spec_without_a_path_or_with_a_wrong_number_is_refused) {
  static const char *const specs[] = {
      "trace+cpu",           "trace:+cpu",    "trace:flush=1+cpu", "trace:x,flush=0+cpu",
      "trace:x,flush=a+cpu", "trace:x,y+cpu", "trace:x,size=1+cpu"};
  for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) {
    quay_allocator *allocator = NULL;
    CHECK_FAILS(quay_allocator_open(specs[i], &allocator), QUAY_STATUS_INVALID_ARGUMENT);
    CHECK_MESSAGE(specs[i]);
  }
}

Test(trace, a_path_that_is_too_long_for_a_spec_is_refused) {
  char path[2000], spec[2100];
  memset(path, 'x', sizeof path - 1);
  path[sizeof path - 1] = '\0';
  snprintf(spec, sizeof spec, "trace:%s+cpu", path);
  quay_allocator *allocator = NULL;
  CHECK_FAILS(quay_allocator_open(spec, &allocator), QUAY_STATUS_INVALID_ARGUMENT);
  CHECK_MESSAGE("longer");
}

Test(trace, flushing_needs_a_trace_layer) {
  quay_allocator *allocator = NULL;
  CHECK_OK(quay_allocator_open("track+cpu", &allocator));
  CHECK_FAILS(quay_trace_flush(allocator), QUAY_STATUS_INVALID_ARGUMENT);
  CHECK_MESSAGE("track+cpu");
  CHECK_FAILS(quay_trace_flush(NULL), QUAY_STATUS_INVALID_ARGUMENT);
  quay_allocator_release(allocator);
}

/* Threads. */

static void *churn(void *allocator) {
  quay_raw_buffer raws[8] = {{.arm = QUAY_RAW_NONE}};
  uint64_t state = (uint64_t)gettid();
  for (int i = 0; i < 2000; i++) {
    quay_raw_buffer *raw = &raws[quay_test_random(&state) % 8];
    /* One size, so that a freed address is handed out to another thread at once. */
    if (raw->owner != NULL) {
      quay_raw_buffer_free(raw);
    } else if (quay_allocator_alloc(allocator, 48, NULL, raw) != QUAY_OK) {
      return allocator;
    }
  }
  for (int i = 0; i < 8; i++)
    quay_raw_buffer_free(&raws[i]);
  return NULL;
}

Test(trace, the_log_of_threads_that_race_can_be_replayed) {
  enum {
    THREADS = 8
  };
  const char *path = test_path("log");
  quay_allocator *allocator = open_spec("trace:%s+cpu", path);
  pthread_t threads[THREADS];
  for (size_t i = 0; i < THREADS; i++)
    cr_assert_eq(pthread_create(&threads[i], NULL, churn, allocator), 0);
  for (size_t i = 0; i < THREADS; i++) {
    void *failed;
    pthread_join(threads[i], &failed);
    cr_assert_null(failed);
  }
  quay_stats stats;
  CHECK_OK(quay_allocator_stats(allocator, &stats));
  quay_allocator_release(allocator);
  const log_content content = read_log(path);
  cr_assert_eq(content.count, stats.alloc_count + stats.free_count);
  cr_assert_eq(content.live, 0);
}
