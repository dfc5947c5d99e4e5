/* CUDA memory of several processes, on the simulated driver, which carries it in files of memory.
 * The other process is always forked before the driver is started. */
#include <fcntl.h>

#include "cuda_fixture.h"
#include "support/log.h"
#include "support/pass_file.h"

enum {
  SIZE = 300000,
  OFFSET = 1001,
  WINDOW = 100003,
};

static const quay_alloc_options exportable = {.exportable = true};

TestSuite(cuda_share, .init = find_driver, .fini = teardown);
/* With memory that the driver does not take back. */
TestSuite(cuda_share_failures, .init = setup);

/* The two ends of a connection with a child, which runs `body` with the other end. */
typedef struct peer {
  pid_t process;
  int socket;
} peer;

static peer start_peer(bool (*body)(int socket)) {
  int ends[2];
  cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  fflush(NULL);
  const pid_t process = fork();
  if (process == 0) {
    close(ends[0]);
    _exit(body(ends[1]) ? 0 : 1);
  }
  close(ends[1]);
  return (peer){.process = process, .socket = ends[0]};
}

static void end_peer(const peer *ended) {
  int status = -1;
  cr_assert_eq(waitpid(ended->process, &status, 0), ended->process);
  cr_assert_eq(status, 0, "the other process ended with status 0x%x", (unsigned)status);
  close(ended->socket);
}

static bool tell(int socket) {
  return write(socket, "!", 1) == 1;
}

static bool hear(int socket) {
  char byte;
  return read(socket, &byte, 1) == 1;
}

/* A window in the midst of exportable memory, with these bytes. */
static quay_buffer *make_exportable(quay_allocator *allocator, const void *bytes) {
  quay_buffer *whole = make_buffer(allocator, SIZE, &exportable), *window = NULL;
  CHECK_OK(quay_buffer_view(whole, OFFSET, WINDOW, &window));
  CHECK_OK(quay_buffer_copy_in(window, bytes, WINDOW));
  quay_buffer_release(whole);
  return window;
}

static quay_status import_buffer(quay_allocator *allocator, const quay_cuda_shared *shared,
                                 quay_buffer **out_buffer) {
  quay_raw_buffer imported;
  *out_buffer = NULL;
  QUAY_TRY(quay_cuda_import(allocator, shared, &imported));
  return quay_buffer_from_raw(&imported, QUAY_U8, 1, (int64_t[]){(int64_t)shared->size},
                              out_buffer);
}

static bool same_bytes(const quay_buffer *buffer, const void *expected) {
  const uint64_t size = quay_buffer_size(buffer);
  unsigned char *found = malloc(size);
  const bool same = HOLDS(quay_buffer_copy_out(buffer, found, size) == QUAY_OK) &&
                    HOLDS(memcmp(found, expected, size) == 0);
  free(found);
  return same;
}

/* Export and import. */

static bool exports_and_ends(int socket) {
  quay_test_block bytes = quay_test_block_make(WINDOW, 1, 71);
  quay_allocator *allocator = open_spec("cuda:0");
  quay_buffer *window = make_exportable(allocator, bytes.data);
  quay_cuda_shared shared;
  const bool good = HOLDS(quay_cuda_export(window, &shared) == QUAY_OK) &&
                    HOLDS(quay_test_send_file(socket, &shared, sizeof shared, shared.file));
  close(shared.file);
  quay_buffer_release(window);
  quay_allocator_release(allocator);
  quay_test_block_free(&bytes);
  return good && HOLDS(quay_shutdown() == QUAY_OK);
}

Test(cuda_share, imported_memory_outlives_the_process_that_exported_it) {
  const peer exporter = start_peer(exports_and_ends);
  quay_cuda_shared shared;
  shared.file = quay_test_receive_file(exporter.socket, &shared, sizeof shared);
  cr_assert_geq(shared.file, 0);
  quay_allocator *allocator = open_spec("track+cuda:0");
  quay_buffer *buffer;
  CHECK_OK(import_buffer(allocator, &shared, &buffer));
  cr_assert_eq(close(shared.file), 0, "the descriptor is not the caller's any more");
  end_peer(&exporter);
  quay_test_block bytes = quay_test_block_make(WINDOW, 1, 71);
  cr_assert_eq(quay_buffer_size(buffer), WINDOW);
  check_bytes(buffer, bytes.data);
  quay_test_block others = quay_test_block_make(WINDOW, 1, 72);
  CHECK_OK(quay_buffer_copy_in(buffer, others.data, WINDOW));
  check_bytes(buffer, others.data);
  quay_buffer_release(buffer);
  quay_allocator_release(allocator);
  quay_test_block_free(&bytes);
  quay_test_block_free(&others);
}

static bool imports_and_answers(int socket) {
  quay_cuda_shared shared;
  shared.file = quay_test_receive_file(socket, &shared, sizeof shared);
  quay_test_block first = quay_test_block_make(WINDOW, 1, 73);
  quay_test_block second = quay_test_block_make(WINDOW, 1, 74);
  quay_allocator *allocator = open_spec("cuda:0");
  quay_buffer *buffer;
  const bool good = HOLDS(import_buffer(allocator, &shared, &buffer) == QUAY_OK) &&
                    same_bytes(buffer, first.data) &&
                    HOLDS(quay_buffer_copy_in(buffer, second.data, WINDOW) == QUAY_OK) &&
                    tell(socket);
  quay_buffer_release(buffer);
  quay_allocator_release(allocator);
  quay_test_block_free(&first);
  quay_test_block_free(&second);
  return good && HOLDS(quay_shutdown() == QUAY_OK) && no_violations();
}

Test(cuda_share, the_exporter_sees_what_the_importer_writes_and_keeps_its_neighbours) {
  const peer importer = start_peer(imports_and_answers);
  quay_allocator *allocator = open_spec("cuda:0");
  quay_test_block around = quay_test_block_make(SIZE, 1, 75);
  quay_buffer *whole = make_buffer(allocator, SIZE, &exportable), *window = NULL;
  CHECK_OK(quay_buffer_copy_in(whole, around.data, SIZE));
  CHECK_OK(quay_buffer_view(whole, OFFSET, WINDOW, &window));
  quay_test_block bytes = quay_test_block_make(WINDOW, 1, 73);
  CHECK_OK(quay_buffer_copy_in(window, bytes.data, WINDOW));
  quay_cuda_shared shared;
  CHECK_OK(quay_cuda_export(window, &shared));
  cr_assert(quay_test_send_file(importer.socket, &shared, sizeof shared, shared.file));
  close(shared.file);
  cr_assert(hear(importer.socket));
  quay_test_block answer = quay_test_block_make(WINDOW, 1, 74);
  memcpy(around.data + OFFSET, answer.data, WINDOW);
  check_bytes(whole, around.data);
  end_peer(&importer);
  quay_buffer_release(window);
  quay_buffer_release(whole);
  quay_allocator_release(allocator);
  quay_test_block_free(&around);
  quay_test_block_free(&bytes);
  quay_test_block_free(&answer);
}

Test(cuda_share, an_export_waits_for_the_work_that_is_recorded) {
  setenv("SIMCUDA_SCHEDULE", "manual", 1); /* nothing runs before somebody waits for it */
  setup();
  quay_allocator *allocator = open_spec("cuda:0"), *pinned = open_spec("cuda:0,memory=pinned");
  quay_test_block bytes = quay_test_block_make(SIZE, 1, 76);
  quay_buffer *source = make_buffer(pinned, SIZE, NULL);
  quay_buffer *buffer = make_buffer(allocator, SIZE, &exportable);
  CHECK_OK(quay_buffer_copy_in(source, bytes.data, SIZE));
  quay_stream *stream = NULL;
  CHECK_OK(quay_stream_create(quay_allocator_device(allocator), NULL, &stream));
  const quay_copy_options on_stream = {.stream = stream};
  CHECK_OK(quay_buffer_copy_region(buffer, 0, source, 0, SIZE, &on_stream));
  uint64_t address;
  CHECK_OK(quay_cuda_pointer(buffer, &address));
  unsigned char *found = malloc(SIZE);
  cr_assert(raw.control->peek(address, found, SIZE));
  cr_assert_neq(memcmp(found, bytes.data, SIZE), 0, "the copy was not late");
  quay_cuda_shared shared;
  CHECK_OK(quay_cuda_export(buffer, &shared));
  cr_assert(raw.control->peek(address, found, SIZE));
  cr_assert_arr_eq(found, bytes.data, SIZE);
  close(shared.file);
  free(found);
  quay_stream_release(stream);
  quay_buffer_release(source);
  quay_buffer_release(buffer);
  quay_allocator_release(allocator);
  quay_allocator_release(pinned);
  quay_test_block_free(&bytes);
}

Test(cuda_share, each_export_gives_a_descriptor_of_its_own_and_one_handle_stands_behind_them) {
  setup();
  quay_allocator *allocator = open_spec("cuda:0");
  quay_buffer *buffer = make_buffer(allocator, 100, &exportable);
  quay_cuda_shared first, second;
  CHECK_OK(quay_cuda_export(buffer, &first));
  CHECK_OK(quay_cuda_export(buffer, &second));
  cr_assert_neq(first.file, second.file);
  cr_assert_neq(fcntl(first.file, F_GETFD) & FD_CLOEXEC, 0);
  simcuda_census alive;
  raw.control->count(&alive);
  cr_assert_eq(alive.handles, 1);
  cr_assert_eq(alive.mappings, 1);
  close(first.file);
  close(second.file);
  quay_buffer_release(buffer);
  quay_allocator_release(allocator);
}

/* What is refused. */

static void check_import_fails(quay_allocator *allocator, const quay_cuda_shared *shared,
                               quay_status expected, const char *message) {
  quay_raw_buffer imported;
  memset(&imported, 0xff, sizeof imported);
  CHECK_FAILS(quay_cuda_import(allocator, shared, &imported), expected);
  CHECK_MESSAGE(message);
  const quay_raw_buffer zero = {.arm = QUAY_RAW_NONE};
  cr_assert_arr_eq((unsigned char *)&imported, (const unsigned char *)&zero, sizeof zero);
}

Test(cuda_share, an_import_of_what_was_not_exported_says_what_is_wrong) {
  setup();
  quay_allocator *allocator = open_spec("cuda:0");
  quay_buffer *buffer = make_buffer(allocator, SIZE, &exportable);
  quay_cuda_shared good, bad;
  CHECK_OK(quay_cuda_export(buffer, &good));
  bad = good;
  bad.device_uuid[15] ^= 1;
  check_import_fails(allocator, &bad, QUAY_STATUS_INVALID_ARGUMENT, "UUID");
  bad = good;
  bad.file = -1;
  check_import_fails(allocator, &bad, QUAY_STATUS_INVALID_ARGUMENT, "-1 is no open file descr");
  bad.file = dup(good.file);
  close(bad.file);
  check_import_fails(allocator, &bad, QUAY_STATUS_INVALID_ARGUMENT, "no open file descriptor");
  bad.file = open("/dev/null", O_RDWR | O_CLOEXEC);
  check_import_fails(allocator, &bad, QUAY_STATUS_INVALID_ARGUMENT, "does not take");
  close(bad.file);
  bad = good;
  bad.offset = good.memory_size - SIZE + 1;
  check_import_fails(allocator, &bad, QUAY_STATUS_OUT_OF_RANGE, "reach out");
  bad = good;
  bad.size = UINT64_MAX;
  check_import_fails(allocator, &bad, QUAY_STATUS_OUT_OF_RANGE, "reach out");
  static const uint64_t sizes[] = {1, 2, 4096};
  for (size_t i = 0; i < 3; i++) {
    bad = good;
    bad.memory_size = i < 2 ? good.memory_size * 2 * sizes[i] : good.memory_size + sizes[i];
    check_import_fails(allocator, &bad, QUAY_STATUS_INVALID_ARGUMENT, "does not take");
  }
  quay_buffer *imported;
  CHECK_OK(import_buffer(allocator, &good, &imported));
  quay_buffer_release(imported);
  close(good.file);
  quay_buffer_release(buffer);
  quay_allocator_release(allocator);
}

Test(cuda_share, memory_is_imported_by_an_allocator_of_its_own_device_and_kind_alone) {
  setup();
  static const struct {
    const char *spec;
    quay_status status;
    const char *message;
  } cases[] = {
      {"cpu", QUAY_STATUS_UNSUPPORTED, "no device memory of the cuda backend"},
      {"cuda:0,memory=pinned", QUAY_STATUS_UNSUPPORTED, "no device memory of the cuda backend"},
      {"cuda:1", QUAY_STATUS_INVALID_ARGUMENT, "UUID"},
  };
  quay_allocator *allocator = open_spec("cuda:0");
  quay_buffer *buffer = make_buffer(allocator, SIZE, &exportable);
  quay_cuda_shared shared;
  CHECK_OK(quay_cuda_export(buffer, &shared));
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    quay_allocator *other = open_spec(cases[i].spec);
    check_import_fails(other, &shared, cases[i].status, cases[i].message);
    quay_allocator_release(other);
  }
  close(shared.file);
  quay_buffer_release(buffer);
  quay_allocator_release(allocator);
}

static void check_no_export(quay_buffer *buffer, const char *message) {
  quay_cuda_shared shared = {.file = 5, .size = 6};
  CHECK_FAILS(quay_cuda_export(buffer, &shared), QUAY_STATUS_UNSUPPORTED);
  CHECK_MESSAGE(message);
  cr_assert_eq(shared.file, -1);
  cr_assert_eq(shared.size, 0);
}

Test(cuda_share, only_memory_that_was_allocated_for_it_is_exported) {
  setup();
  static const char *const specs[] = {"cuda:0", "cuda:0,memory=pinned", "cpu"};
  static const char *const messages[] = {"was not allocated to be exported",
                                         "no device memory of the cuda backend",
                                         "no device memory of the cuda backend"};
  for (size_t i = 0; i < 3; i++) {
    quay_allocator *allocator = open_spec(specs[i]);
    quay_buffer *buffer = make_buffer(allocator, 100, NULL);
    check_no_export(buffer, messages[i]);
    quay_buffer_release(buffer);
    quay_allocator_release(allocator);
  }
  quay_allocator *allocator = open_spec("cuda:0");
  quay_buffer *buffer = make_buffer(allocator, 100, &exportable), *imported = NULL;
  quay_cuda_shared shared;
  CHECK_OK(quay_cuda_export(buffer, &shared));
  CHECK_OK(import_buffer(allocator, &shared, &imported));
  check_no_export(imported, "another process's");
  close(shared.file);
  quay_buffer_release(imported);
  quay_buffer_release(buffer);
  quay_allocator_release(allocator);
}

Test(cuda_share, pinned_and_managed_memory_is_not_exportable) {
  setup();
  static const char *const specs[] = {"cuda:0,memory=pinned", "cuda:0,memory=managed"};
  for (size_t i = 0; i < 2; i++) {
    quay_allocator *allocator = open_spec(specs[i]);
    quay_raw_buffer block;
    CHECK_FAILS(quay_allocator_alloc(allocator, 100, &exportable, &block), QUAY_STATUS_UNSUPPORTED);
    CHECK_MESSAGE("device memory can");
    quay_allocator_release(allocator);
  }
}

Test(cuda_share, a_device_without_virtual_memory_has_no_exportable_memory) {
  setenv("SIMCUDA_VMM", "0", 1);
  setup();
  quay_allocator *allocator = open_spec("cuda:0");
  quay_raw_buffer block;
  CHECK_FAILS(quay_allocator_alloc(allocator, 100, &exportable, &block), QUAY_STATUS_UNSUPPORTED);
  CHECK_MESSAGE("virtual memory management");
  CHECK_OK(quay_allocator_alloc(allocator, 100, NULL, &block));
  quay_raw_buffer_free(&block);
  quay_allocator_release(allocator);
}

Test(cuda_share, neither_exportable_nor_imported_memory_is_released_to_the_program) {
  setup();
  quay_allocator *allocator = open_spec("cuda:0");
  quay_buffer *buffer = make_buffer(allocator, 100, &exportable);
  quay_cuda_shared shared;
  CHECK_OK(quay_cuda_export(buffer, &shared));
  quay_raw_buffer block, imported;
  quay_cuda_memory memory;
  CHECK_OK(quay_allocator_alloc(allocator, 100, &exportable, &block));
  CHECK_OK(quay_cuda_import(allocator, &shared, &imported));
  CHECK_FAILS(quay_cuda_release(&block, &memory), QUAY_STATUS_UNSUPPORTED);
  CHECK_MESSAGE("exportable");
  CHECK_FAILS(quay_cuda_release(&imported, &memory), QUAY_STATUS_UNSUPPORTED);
  CHECK_MESSAGE("imported");
  close(shared.file);
  quay_raw_buffer_free(&block);
  quay_raw_buffer_free(&imported);
  quay_buffer_release(buffer);
  quay_allocator_release(allocator);
}

/* As memory. */

Test(cuda_share, exportable_memory_has_every_alignment_and_can_have_a_mirror) {
  setup();
  quay_allocator *allocator = open_spec("cuda:0");
  for (uint64_t alignment = 1; alignment <= QUAY_ALIGNMENT_MAX; alignment *= 8) {
    const quay_alloc_options options = {
        .exportable = true, .mirror = true, .zeroed = true, .alignment = alignment};
    quay_buffer *buffer = make_buffer(allocator, 4097, &options);
    uint64_t address;
    CHECK_OK(quay_cuda_pointer(buffer, &address));
    cr_assert_eq(address % alignment, 0);
    unsigned char *zeros = calloc(1, 4097);
    check_bytes(buffer, zeros);
    free(zeros);
    void *twin = NULL;
    CHECK_OK(quay_cuda_mirror_pointer(buffer, &twin));
    memset(twin, 0x37, 4097);
    CHECK_OK(quay_cuda_mirror_flush(buffer));
    check_bytes(buffer, twin);
    quay_buffer_release(buffer);
  }
  quay_allocator_release(allocator);
}

Test(cuda_share, freed_exportable_memory_makes_room_and_too_much_is_out_of_device_memory) {
  setup();
  quay_allocator *allocator = open_spec("cuda:0");
  quay_memory_info info;
  CHECK_OK(quay_device_memory_info(quay_allocator_device(allocator), &info));
  quay_raw_buffer block, more;
  for (int round = 0; round < 3; round++) {
    CHECK_OK(quay_allocator_alloc(allocator, info.free_bytes / 4 * 3, &exportable, &block));
    CHECK_FAILS(quay_allocator_alloc(allocator, info.free_bytes / 4 * 3, &exportable, &more),
                QUAY_STATUS_OUT_OF_DEVICE_MEMORY);
    quay_raw_buffer_free(&block);
  }
  CHECK_FAILS(quay_allocator_alloc(allocator, INT64_MAX, &exportable, &more),
              QUAY_STATUS_OUT_OF_DEVICE_MEMORY);
  quay_allocator_release(allocator);
}

Test(cuda_share, a_free_unmaps_nothing_before_the_work_on_the_memory_is_done) {
  setenv("SIMCUDA_SCHEDULE", "manual", 1);
  setup();
  quay_allocator *allocator = open_spec("cuda:0");
  quay_stream *stream = NULL;
  CHECK_OK(quay_stream_create(quay_allocator_device(allocator), NULL, &stream));
  quay_buffer *buffer = make_buffer(allocator, 100000, &exportable), *other = NULL;
  quay_cuda_shared shared;
  CHECK_OK(quay_cuda_export(buffer, &shared));
  CHECK_OK(import_buffer(allocator, &shared, &other));
  close(shared.file);
  const unsigned char pattern = 0x5b;
  CHECK_OK(quay_buffer_fill_on(buffer, &pattern, 1, stream));
  CHECK_OK(quay_stream_synchronize(stream)); /* two storages, of which Quay knows no connection */
  CHECK_OK(quay_buffer_fill_on(other, &pattern, 1, stream));
  quay_buffer_release(other);
  CHECK_OK(quay_collect(NULL));
  CHECK_OK(quay_allocator_trim(allocator, NULL));
  cr_assert_eq(raw.control->calls("cuMemUnmap"), 0);
  CHECK_OK(quay_stream_synchronize(stream));
  CHECK_OK(quay_collect(NULL));
  CHECK_OK(quay_allocator_trim(allocator, NULL));
  cr_assert_eq(raw.control->calls("cuMemUnmap"), 1);
  quay_buffer_release(buffer);
  quay_stream_release(stream);
  quay_allocator_release(allocator);
}

Test(cuda_share, copies_between_exportable_memory_of_two_devices_are_direct) {
  setup();
  quay_allocator *first = open_spec("cuda:0"), *second = open_spec("cuda:1");
  quay_test_block bytes = quay_test_block_make(SIZE, 1, 77);
  quay_buffer *a = make_buffer(first, SIZE, &exportable);
  quay_buffer *b = make_buffer(second, SIZE, &exportable), *c = make_buffer(second, SIZE, NULL);
  quay_copy_plan_info plan;
  CHECK_OK(quay_copy_plan(b, 0, a, 0, SIZE, NULL, &plan));
  cr_assert_eq(plan.route, QUAY_ROUTE_DIRECT);
  CHECK_OK(quay_buffer_copy_in(a, bytes.data, SIZE));
  CHECK_OK(quay_buffer_copy_from(b, a));
  check_bytes(b, bytes.data);
  CHECK_OK(quay_buffer_copy_from(c, a));
  check_bytes(c, bytes.data);
  CHECK_OK(quay_buffer_fill(a, "\1\2\3\4", 4));
  CHECK_OK(quay_buffer_copy_from(a, c));
  check_bytes(a, bytes.data);
  quay_stream *stream = NULL;
  CHECK_OK(quay_stream_create(quay_allocator_device(second), NULL, &stream));
  const quay_copy_options on_stream = {.stream = stream};
  CHECK_OK(quay_buffer_fill(b, "\1\2\3\4", 4));
  CHECK_OK(quay_buffer_copy_region(b, 0, a, 0, SIZE, &on_stream));
  check_bytes(b, bytes.data);
  quay_stream_release(stream);
  quay_buffer_release(a);
  quay_buffer_release(b);
  quay_buffer_release(c);
  quay_allocator_release(first);
  quay_allocator_release(second);
  quay_test_block_free(&bytes);
}

/* Failures. */

/* Allocates, exports and imports; whatever fails, everything is given back. */
static quay_status share_once(quay_allocator *allocator, uint64_t alignment) {
  const quay_alloc_options options = {.exportable = true, .alignment = alignment};
  quay_buffer *buffer = NULL, *imported = NULL;
  quay_cuda_shared shared = {.file = -1};
  quay_status status =
      quay_buffer_create(allocator, QUAY_U8, 1, (int64_t[]){SIZE}, &options, &buffer);
  if (status == QUAY_OK)
    status = quay_cuda_export(buffer, &shared);
  if (status == QUAY_OK)
    status = import_buffer(allocator, &shared, &imported);
  if (shared.file >= 0)
    close(shared.file);
  quay_buffer_release(imported);
  quay_buffer_release(buffer);
  return status;
}

static uint64_t pieces_alive(void) {
  simcuda_census alive;
  raw.control->count(&alive);
  return alive.handles + alive.mappings + alive.reservations;
}

static void check_every_failure(uint64_t alignment) {
  quay_allocator *allocator = open_spec("cuda:0");
  CHECK_OK(share_once(allocator, alignment));
  CHECK_OK(quay_allocator_trim(allocator, NULL));
  uint64_t reached = 1, errors = 0;
  for (uint64_t n = 1; reached != 0; n++) {
    const uint64_t failed = raw.control->failed(), pieces = pieces_alive();
    quay_test_log_begin();
    raw.control->fail(NULL, n, 1);
    const quay_status status = share_once(allocator, alignment);
    if (quay_allocator_trim(allocator, NULL) != QUAY_OK) /* that was the failing call */
      CHECK_OK(quay_allocator_trim(allocator, NULL));
    raw.control->fail(NULL, 0, 0);
    reached = raw.control->failed() - failed;
    errors += status != QUAY_OK;
    cr_assert(status == QUAY_OK || quay_last_error()->message[0] != '\0');
    cr_assert(pieces_alive() == pieces ||
                  quay_test_log_count("are lost") + quay_test_log_count("are not freed") == 1,
              "call %llu: %s", (unsigned long long)n, quay_test_log_text());
  }
  cr_assert_gt(errors, 10);
  quay_allocator_release(allocator);
  CHECK_OK(quay_shutdown());
}

Test(cuda_share_failures, whichever_call_fails_the_error_is_clean_and_what_is_lost_is_logged) {
  check_every_failure(0);
}

/* More than the driver aligns to: some addresses are given back before others are taken. */
Test(cuda_share_failures, whichever_call_fails_for_aligned_memory_what_is_lost_is_logged) {
  check_every_failure(UINT64_C(1) << 30);
}

Test(cuda_share_failures, what_a_failed_allocation_can_not_give_back_is_logged) {
  static const char *const undoing[] = {"cuMemUnmap", "cuMemAddressFree", "cuMemRelease"};
  quay_allocator *allocator = open_spec("cuda:0");
  for (size_t i = 0; i < sizeof undoing / sizeof undoing[0]; i++) {
    quay_raw_buffer none;
    quay_test_log_begin();
    raw.control->fail("cuMemSetAccess", 1, 999);
    raw.control->fail(undoing[i], 1, 999);
    CHECK_FAILS(quay_allocator_alloc(allocator, SIZE, &exportable, &none), QUAY_STATUS_UNAVAILABLE);
    CHECK_MESSAGE("can't allocate");
    cr_expect_eq(quay_test_log_count("are lost"), 1, "%s: %s", undoing[i], quay_test_log_text());
  }
  quay_allocator_release(allocator);
  CHECK_OK(quay_shutdown());
}

static bool loses_shared_memory(int socket) {
  (void)socket;
  quay_allocator *allocator = open_spec("cuda:0");
  quay_buffer *buffer = make_buffer(allocator, 100, &exportable), *imported = NULL;
  quay_cuda_shared shared;
  if (!HOLDS(quay_cuda_export(buffer, &shared) == QUAY_OK) ||
      !HOLDS(import_buffer(allocator, &shared, &imported) == QUAY_OK))
    return false;
  raw.control->lose(719);
  quay_cuda_shared again;
  quay_raw_buffer block;
  unsigned char byte = 1;
  const bool good = HOLDS(quay_buffer_copy_out(imported, &byte, 100) == QUAY_STATUS_DEVICE_LOST) &&
                    HOLDS(quay_cuda_export(buffer, &again) == QUAY_STATUS_DEVICE_LOST) &&
                    HOLDS(again.file == -1) &&
                    HOLDS(quay_cuda_import(allocator, &shared, &block) == QUAY_STATUS_DEVICE_LOST);
  const uint64_t calls = raw.control->calls(NULL);
  quay_buffer_release(imported);
  quay_buffer_release(buffer);
  quay_allocator_release(allocator);
  close(shared.file);
  return good && HOLDS(raw.control->calls(NULL) == calls);
}

Test(cuda_share, on_a_lost_device_shared_memory_is_freed_without_the_driver) {
  const peer child = start_peer(loses_shared_memory);
  end_peer(&child);
}

/* The older handles. */

static bool opens_a_handle(int socket) {
  quay_cuda_ipc ipc;
  if (!HOLDS(read(socket, &ipc, sizeof ipc) == (ssize_t)sizeof ipc))
    return false;
  quay_test_block first = quay_test_block_make(WINDOW, 1, 78);
  quay_test_block second = quay_test_block_make(WINDOW, 1, 79);
  quay_allocator *allocator = open_spec("track+cuda:0"), *other = open_spec("cuda:1");
  quay_cuda_ipc bad = ipc;
  bad.offset = ipc.memory_size - WINDOW + 1;
  quay_raw_buffer imported;
  bool good = HOLDS(quay_cuda_ipc_import(other, &ipc, &imported) == QUAY_STATUS_INVALID_ARGUMENT) &&
              HOLDS(quay_cuda_ipc_import(allocator, &bad, &imported) == QUAY_STATUS_OUT_OF_RANGE);
  const uint64_t opened = raw.control->calls("cuIpcOpenMemHandle_v2");
  bad.memory_size *= 2; /* more than the handle is of, so that the window seems to fit */
  good = good &&
         HOLDS(quay_cuda_ipc_import(allocator, &bad, &imported) == QUAY_STATUS_OUT_OF_RANGE) &&
         HOLDS(strstr(quay_last_error()->message, "is said to have") != NULL) &&
         HOLDS(raw.control->calls("cuIpcOpenMemHandle_v2") == opened + 1) &&
         HOLDS(raw.control->calls("cuIpcCloseMemHandle") == 1);
  memset(bad.handle, 0x11, sizeof bad.handle);
  bad.memory_size = ipc.memory_size;
  bad.offset = ipc.offset;
  good = good &&
         HOLDS(quay_cuda_ipc_import(allocator, &bad, &imported) == QUAY_STATUS_INVALID_ARGUMENT) &&
         HOLDS(quay_cuda_ipc_import(allocator, &ipc, &imported) == QUAY_OK);
  quay_buffer *buffer = NULL;
  good =
      good &&
      HOLDS(quay_buffer_from_raw(&imported, QUAY_U8, 1, (int64_t[]){WINDOW}, &buffer) == QUAY_OK) &&
      same_bytes(buffer, first.data) &&
      HOLDS(quay_buffer_copy_in(buffer, second.data, WINDOW) == QUAY_OK);
  const uint64_t closed = raw.control->calls("cuIpcCloseMemHandle");
  quay_buffer_release(buffer);
  good = good && HOLDS(quay_allocator_trim(allocator, NULL) == QUAY_OK) &&
         HOLDS(raw.control->calls("cuIpcCloseMemHandle") == closed + 1);
  quay_allocator_release(allocator);
  quay_allocator_release(other);
  quay_test_block_free(&first);
  quay_test_block_free(&second);
  return good && HOLDS(quay_shutdown() == QUAY_OK) && no_violations() && tell(socket);
}

Test(cuda_share, an_older_handle_carries_plain_memory_to_another_process) {
  const peer importer = start_peer(opens_a_handle);
  quay_allocator *allocator = open_spec("cuda:0");
  quay_buffer *whole = make_buffer(allocator, SIZE, NULL), *window = NULL;
  CHECK_OK(quay_buffer_view(whole, OFFSET, WINDOW, &window));
  quay_test_block first = quay_test_block_make(WINDOW, 1, 78);
  quay_test_block second = quay_test_block_make(WINDOW, 1, 79);
  CHECK_OK(quay_buffer_copy_in(window, first.data, WINDOW));
  quay_cuda_ipc ipc;
  CHECK_OK(quay_cuda_ipc_export(window, &ipc));
  cr_assert_eq(ipc.offset, OFFSET);
  cr_assert_eq(ipc.size, WINDOW);
  quay_raw_buffer imported;
  CHECK_FAILS(quay_cuda_ipc_import(allocator, &ipc, &imported), QUAY_STATUS_INVALID_ARGUMENT);
  CHECK_MESSAGE("this very process");
  cr_assert_eq(write(importer.socket, &ipc, sizeof ipc), (ssize_t)sizeof ipc);
  cr_assert(hear(importer.socket));
  check_bytes(window, second.data);
  end_peer(&importer);
  quay_buffer_release(window);
  quay_buffer_release(whole);
  quay_allocator_release(allocator);
  quay_test_block_free(&first);
  quay_test_block_free(&second);
}

Test(cuda_share, older_handles_are_of_plain_memory_alone) {
  setup();
  quay_allocator *allocator = open_spec("cuda:0"), *pinned = open_spec("cuda:0,memory=pinned");
  quay_stream *stream = NULL;
  CHECK_OK(quay_stream_create(quay_allocator_device(allocator), NULL, &stream));
  const quay_alloc_options ordered = {.stream = stream};
  quay_buffer *const buffers[] = {
      make_buffer(allocator, 100, &ordered),
      make_buffer(allocator, 100, &exportable),
      make_buffer(pinned, 100, NULL),
  };
  static const char *const messages[] = {"in the order of a stream", "use quay_cuda_export()",
                                         "no device memory"};
  for (size_t i = 0; i < 3; i++) {
    quay_cuda_ipc ipc = {.size = 5};
    CHECK_FAILS(quay_cuda_ipc_export(buffers[i], &ipc), QUAY_STATUS_UNSUPPORTED);
    CHECK_MESSAGE(messages[i]);
    cr_assert_eq(ipc.size, 0);
    quay_buffer_release(buffers[i]);
  }
  quay_stream_release(stream);
  quay_allocator_release(allocator);
  quay_allocator_release(pinned);
}

Test(cuda_share, an_older_handle_of_an_empty_window_is_of_the_memory_that_it_lies_in) {
  setup();
  quay_allocator *allocator = open_spec("cuda:0");
  quay_buffer *whole = make_buffer(allocator, SIZE, NULL), *end = NULL;
  CHECK_OK(quay_buffer_view(whole, SIZE, 0, &end));
  quay_cuda_ipc ipc, expected;
  CHECK_OK(quay_cuda_ipc_export(whole, &expected));
  CHECK_OK(quay_cuda_ipc_export(end, &ipc));
  cr_assert_arr_eq(ipc.handle, expected.handle, sizeof ipc.handle);
  cr_assert_eq(ipc.offset, SIZE);
  cr_assert_eq(ipc.size, 0);
  cr_assert_eq(ipc.memory_size, SIZE);
  quay_buffer_release(end);
  quay_buffer_release(whole);
  quay_allocator_release(allocator);
}

Test(cuda_share, adopted_memory_of_0_bytes_has_no_older_handle) {
  setup();
  quay_allocator *allocator = open_spec("cuda:0");
  quay_raw_buffer nothing;
  quay_buffer *buffer = NULL;
  quay_cuda_ipc ipc;
  CHECK_OK(quay_cuda_adopt(allocator, 0, 0, NULL, NULL, &nothing));
  CHECK_OK(quay_buffer_from_raw(&nothing, QUAY_U8, 1, (int64_t[]){0}, &buffer));
  CHECK_FAILS(quay_cuda_ipc_export(buffer, &ipc), QUAY_STATUS_UNSUPPORTED);
  CHECK_MESSAGE("adopted memory of 0 bytes");
  quay_buffer_release(buffer);
  quay_allocator_release(allocator);
}
