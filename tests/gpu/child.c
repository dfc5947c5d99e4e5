/* One scenario in a process of its own: gpu_child NAME; --list names them. Ends with status 0 if
 * all holds, 77 if this machine can't have it. See processes.c. */
#include <pthread.h>
#include <quay/quay.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpu/kernels.h"

enum {
  SKIPPED = 77,
  SIZE = 400000,
};

static const raw_cuda *cu;

static bool holds(bool condition, const char *what, int line) {
  if (!condition) {
    fprintf(stderr, "child.c:%d: does not hold: %s; last error: %s\n", line, what,
            quay_last_error()->message);
  }
  return condition;
}
#define HOLDS(condition) holds((condition), #condition, __LINE__)
/* Returns from a scenario. */
#define NEED(condition)    \
  do {                     \
    if (!HOLDS(condition)) \
      return false;        \
  } while (0)

static void start(void) {
  char reason[1024];
  cu = raw_cuda_start(reason, sizeof reason);
  if (cu == NULL) {
    fprintf(stderr, "%s\n", reason);
    exit(SKIPPED);
  }
}

static bool start_kernels(void) {
  char reason[1024];
  start();
  const bool loaded = gpu_kernels_load(cu, 0, reason, sizeof reason);
  if (!loaded)
    fprintf(stderr, "%s\n", reason);
  return loaded;
}

/* What the scenarios use; some is still there when the process ends. */
static quay_allocator *gpu, *second;
static quay_buffer *buffer;
static quay_stream *stream;
static unsigned char bytes[SIZE], found[SIZE];

static bool make_buffer(void) {
  const int64_t shape = SIZE;
  for (size_t i = 0; i < SIZE; i++)
    bytes[i] = (unsigned char)(i * 13 >> 3 | 1);
  NEED(quay_allocator_open("cuda:0", &gpu) == QUAY_OK);
  NEED(quay_buffer_create(gpu, QUAY_U8, 1, &shape, NULL, &buffer) == QUAY_OK);
  NEED(quay_buffer_copy_in(buffer, bytes, SIZE) == QUAY_OK);
  return HOLDS(quay_stream_create(quay_allocator_device(gpu), NULL, &stream) == QUAY_OK);
}

static bool round_trip(void) {
  memset(found, 0xee, SIZE);
  NEED(quay_buffer_copy_in(buffer, bytes, SIZE) == QUAY_OK);
  NEED(quay_buffer_copy_out(buffer, found, SIZE) == QUAY_OK);
  return HOLDS(memcmp(bytes, found, SIZE) == 0);
}

static void release_all(void) {
  quay_buffer_release(buffer);
  quay_stream_release(stream);
  quay_allocator_release(gpu);
  quay_allocator_release(second);
  buffer = NULL;
  stream = NULL;
  gpu = second = NULL;
}

/* Faults. */

static char first_message[QUAY_ERROR_MESSAGE_SIZE];
static int64_t first_code;

/* Without the name of the device that was asked. */
static const char *what_happened(const char *message) {
  const char *const text = strstr(message, "is lost: ");
  return text != NULL ? text : message;
}

/* The status of a call after the fault: lost, with the first message. */
static bool is_lost(quay_status status) {
  return status == QUAY_STATUS_DEVICE_LOST && quay_last_error()->native_code == first_code &&
         strcmp(what_happened(quay_last_error()->message), what_happened(first_message)) == 0;
}

/* A kernel that faults, in an access; the call that finds it. */
static bool fault(gpu_kernel kernel, int expected) {
  NEED(start_kernels() && make_buffer());
  if (cu->devices > 1)
    NEED(quay_allocator_open("cuda:1", &second) == QUAY_OK);
  const quay_use use = {buffer, QUAY_WRITE};
  quay_access access;
  NEED(quay_access_begin(stream, &use, 1, &access) == QUAY_OK);
  CUstream native = (CUstream)(uintptr_t)quay_cuda_stream(stream);
  NEED(gpu_launch(0, kernel, native, NULL, 1) == CUDA_SUCCESS);
  const quay_status ended = quay_access_end(&access); /* may find it already */
  NEED(ended == QUAY_OK || ended == QUAY_STATUS_DEVICE_LOST);
  NEED(quay_buffer_copy_out(buffer, found, SIZE) == QUAY_STATUS_DEVICE_LOST);
  first_code = quay_last_error()->native_code;
  snprintf(first_message, sizeof first_message, "%s", quay_last_error()->message);
  fprintf(stderr, "%s: %s\n", quay_last_error()->native_name, first_message);
  NEED(first_code == expected || (kernel == GPU_TRAP && first_code != 0));
  NEED(strcmp(quay_last_error()->backend, "cuda") == 0);
  return HOLDS(strstr(first_message, "start a new process") != NULL);
}

static bool every_call_is_lost(void) {
  quay_device *const device = quay_allocator_device(gpu);
  quay_allocator *again = NULL;
  quay_raw_buffer raw;
  quay_stream *other = NULL;
  quay_memory_info info;
  quay_event *event = NULL;
  quay_access access;
  const quay_use use = {buffer, QUAY_READ};
  const quay_copy_options on_stream = {.stream = stream};
  NEED(quay_device_health(device) == QUAY_HEALTH_LOST);
  NEED(is_lost(quay_buffer_copy_in(buffer, bytes, SIZE)));
  NEED(is_lost(quay_buffer_copy_out(buffer, found, SIZE)));
  NEED(is_lost(quay_buffer_fill(buffer, "\x01", 1)));
  NEED(is_lost(quay_buffer_synchronize(buffer)));
  NEED(is_lost(quay_buffer_copy_region(buffer, 0, buffer, 1000, 1000, &on_stream)));
  NEED(is_lost(quay_access_begin(stream, &use, 1, &access)));
  NEED(is_lost(quay_event_record(stream, &event)));
  NEED(is_lost(quay_stream_synchronize(stream)));
  NEED(is_lost(quay_stream_create(device, NULL, &other)));
  NEED(is_lost(quay_allocator_alloc(gpu, 100, NULL, &raw)));
  NEED(is_lost(quay_allocator_synchronize(gpu)));
  NEED(is_lost(quay_device_memory_info(device, &info)));
  if (second != NULL) {
    NEED(quay_device_health(quay_allocator_device(second)) == QUAY_HEALTH_LOST);
    NEED(is_lost(quay_allocator_alloc(second, 100, NULL, &raw)));
  }
  NEED(is_lost(quay_allocator_open("cuda:0", &again)));
  quay_stream_release(stream); /* one that is alive forbids a reset */
  stream = NULL;
  return HOLDS(is_lost(quay_device_reset(device)));
}

static bool lists_the_reason(void) {
  quay_device_list list;
  NEED(quay_devices(&list) == QUAY_OK);
  bool told = false;
  for (size_t i = 0; i < list.count; i++) {
    const quay_device_info *const device = &list.devices[i];
    if (strcmp(device->backend, "cuda") == 0)
      told = !device->available && device->reason[0] != '\0';
  }
  quay_device_list_free(&list);
  return HOLDS(told);
}

static bool ends_after(gpu_kernel kernel, int expected) {
  NEED(fault(kernel, expected));
  NEED(every_call_is_lost());
  NEED(lists_the_reason());
  release_all();
  /* What is kept is dropped, and the driver is not asked. */
  return HOLDS(quay_shutdown() == QUAY_OK);
}

static bool an_illegal_address_loses_every_device_with_its_first_message(void) {
  return ends_after(GPU_ILLEGAL_ADDRESS, CUDA_ERROR_ILLEGAL_ADDRESS);
}

static bool a_trap_loses_every_device_with_its_first_message(void) {
  return ends_after(GPU_TRAP, CUDA_ERROR_LAUNCH_FAILED);
}

static bool a_fault_is_found_by_a_health_query(void) {
  quay_health health = QUAY_HEALTH_OK;
  NEED(start_kernels() && make_buffer());
  quay_device *const device = quay_allocator_device(gpu);
  NEED(quay_cuda_health(device, &health) == QUAY_OK && health == QUAY_HEALTH_OK);
  NEED(gpu_launch(0, GPU_ILLEGAL_ADDRESS, (CUstream)(uintptr_t)quay_cuda_stream(stream), NULL, 1) ==
       CUDA_SUCCESS);
  for (int i = 0; i < 5000 && health == QUAY_HEALTH_OK; i++) {
    usleep(1000);
    NEED(quay_cuda_health(device, &health) == QUAY_OK);
  }
  NEED(health == QUAY_HEALTH_LOST);
  NEED(quay_buffer_copy_out(buffer, found, SIZE) == QUAY_STATUS_DEVICE_LOST);
  release_all();
  return true;
}

static bool a_fault_leaves_host_memory_usable(void) {
  quay_allocator *host = NULL;
  quay_buffer *other = NULL;
  const int64_t shape = SIZE;
  NEED(fault(GPU_ILLEGAL_ADDRESS, CUDA_ERROR_ILLEGAL_ADDRESS));
  NEED(quay_allocator_open("cpu", &host) == QUAY_OK);
  NEED(quay_buffer_create(host, QUAY_U8, 1, &shape, NULL, &other) == QUAY_OK);
  NEED(quay_buffer_copy_in(other, bytes, SIZE) == QUAY_OK);
  NEED(is_lost(quay_buffer_copy_from(other, buffer)));
  NEED(is_lost(quay_buffer_copy_from(buffer, other)));
  NEED(quay_buffer_copy_in(other, bytes, SIZE) == QUAY_OK);
  NEED(quay_buffer_copy_out(other, found, SIZE) == QUAY_OK);
  NEED(memcmp(bytes, found, SIZE) == 0);
  quay_buffer_release(other);
  quay_allocator_release(host);
  return true; /* the rest is left to the exit */
}

/* Fork. */

static bool is_refused(quay_status status) {
  return status == QUAY_STATUS_UNAVAILABLE && strstr(quay_last_error()->message, "fork") != NULL;
}

/* Memory that the host reaches; one is NULL where the device has no such memory. */
static quay_buffer *hosted[2];

static bool make_hosted(void) {
  static const char *const specs[] = {"cuda:0,memory=pinned", "cuda:0,memory=managed"};
  const int64_t shape = SIZE;
  for (size_t i = 0; i < 2; i++) {
    quay_allocator *allocator = NULL;
    const quay_status status = quay_allocator_open(specs[i], &allocator);
    if (i == 1 && status == QUAY_STATUS_UNSUPPORTED)
      return true;
    NEED(status == QUAY_OK);
    NEED(quay_buffer_create(allocator, QUAY_U8, 1, &shape, NULL, &hosted[i]) == QUAY_OK);
    NEED(quay_buffer_copy_in(hosted[i], bytes, SIZE) == QUAY_OK);
    quay_allocator_release(allocator);
  }
  return true;
}

/* A touch would end the child where the driver leaves the memory out of it. */
static bool hosted_is_refused(void) {
  for (size_t i = 0; i < 2 && hosted[i] != NULL; i++) {
    const void *pointer = NULL;
    NEED(is_refused(quay_buffer_host_bytes(hosted[i], &pointer, NULL)));
    NEED(is_refused(quay_buffer_copy_in(hosted[i], bytes, SIZE)));
    NEED(is_refused(quay_buffer_copy_out(hosted[i], found, SIZE)));
    quay_buffer_release(hosted[i]);
  }
  return true;
}

static bool child_of_fork(void) {
  quay_allocator *host = NULL, *again = NULL;
  quay_buffer *other = NULL;
  quay_raw_buffer raw;
  const int64_t shape = SIZE;
  NEED(is_refused(quay_buffer_copy_in(buffer, bytes, SIZE)));
  NEED(is_refused(quay_buffer_copy_out(buffer, found, SIZE)));
  NEED(hosted_is_refused());
  NEED(is_refused(quay_allocator_alloc(gpu, 100, NULL, &raw)));
  quay_status opened = quay_allocator_open("cuda:0", &again);
  if (opened == QUAY_OK)
    opened = quay_allocator_alloc(again, 100, NULL, &raw);
  NEED(is_refused(opened));
  quay_allocator_release(again);
  NEED(quay_allocator_open("cpu", &host) == QUAY_OK);
  NEED(quay_buffer_create(host, QUAY_U8, 1, &shape, NULL, &other) == QUAY_OK);
  NEED(quay_buffer_copy_in(other, bytes, SIZE) == QUAY_OK);
  NEED(quay_buffer_copy_out(other, found, SIZE) == QUAY_OK);
  NEED(memcmp(bytes, found, SIZE) == 0);
  quay_buffer_release(other);
  quay_allocator_release(host);
  release_all(); /* logged no-ops */
  return true;
}

/* Without the exit handlers of the driver, which the next scenario has. */
static bool a_child_of_fork_is_refused_with_a_clear_error_and_has_host_memory(void) {
  int status = 1;
  start();
  NEED(make_buffer());
  NEED(make_hosted());
  (void)fflush(NULL);
  const pid_t child = fork();
  if (child == 0)
    _exit(child_of_fork() ? 0 : 1);
  NEED(waitpid(child, &status, 0) == child);
  NEED(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  NEED(round_trip());
  quay_buffer_release(hosted[0]);
  quay_buffer_release(hosted[1]);
  release_all();
  return HOLDS(quay_shutdown() == QUAY_OK);
}

static bool a_child_of_fork_exits_with_live_buffers(void) {
  int status = 1;
  start();
  NEED(make_buffer());
  (void)fflush(NULL);
  const pid_t child = fork();
  if (child == 0)
    exit(0);
  NEED(waitpid(child, &status, 0) == child);
  NEED(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  return round_trip();
}

/* Two processes. The other one is forked before either starts the driver. */

typedef struct message {
  bool good;
  union {
    quay_cuda_shared shared;
    quay_cuda_ipc ipc;
  } memory;
} message;

typedef union rights {
  struct cmsghdr header;
  char room[CMSG_SPACE(sizeof(int))];
} rights;

/* With a descriptor unless `file` is -1. */
static bool send_message(int to, message *what, int file) {
  rights control = {.room = {0}};
  struct iovec data = {.iov_base = what, .iov_len = sizeof *what};
  struct msghdr header = {.msg_iov = &data, .msg_iovlen = 1};
  if (file >= 0) {
    header.msg_control = &control;
    header.msg_controllen = sizeof control;
    struct cmsghdr *const right = CMSG_FIRSTHDR(&header);
    right->cmsg_level = SOL_SOCKET;
    right->cmsg_type = SCM_RIGHTS;
    right->cmsg_len = CMSG_LEN(sizeof file);
    memcpy(CMSG_DATA(right), &file, sizeof file);
  }
  return sendmsg(to, &header, 0) == (ssize_t)sizeof *what;
}

/* `*out_file` is -1 if none came. */
static bool receive_message(int from, message *out, int *out_file) {
  rights control = {.room = {0}};
  struct iovec data = {.iov_base = out, .iov_len = sizeof *out};
  struct msghdr header = {
      .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  *out_file = -1;
  if (recvmsg(from, &header, 0) != (ssize_t)sizeof *out || !out->good)
    return false;
  const struct cmsghdr *const right = CMSG_FIRSTHDR(&header);
  if (right != NULL && right->cmsg_type == SCM_RIGHTS)
    memcpy(out_file, CMSG_DATA(right), sizeof *out_file);
  return true;
}

/* A kernel of this process writes all of the buffer. */
static bool write_pattern(uint32_t seed) {
  const quay_use use = {buffer, QUAY_WRITE};
  quay_access access;
  NEED(quay_access_begin(stream, &use, 1, &access) == QUAY_OK);
  uint64_t address = access.pointers[0], words = SIZE / 4;
  NEED(gpu_launch(0, GPU_PATTERN, (CUstream)(uintptr_t)quay_cuda_stream(stream),
                  (void *[]){&address, &words, &seed}, words) == CUDA_SUCCESS);
  NEED(quay_access_end(&access) == QUAY_OK);
  return HOLDS(quay_buffer_synchronize(buffer) == QUAY_OK);
}

static bool holds_pattern(uint32_t seed) {
  memset(found, 0xee, SIZE);
  NEED(quay_buffer_copy_out(buffer, found, SIZE) == QUAY_OK);
  for (uint64_t i = 0; i < SIZE / 4; i++) {
    uint32_t word;
    memcpy(&word, found + i * 4, sizeof word);
    NEED(word == gpu_word(i, seed));
  }
  return true;
}

static bool make_for_others(bool exportable) {
  const quay_alloc_options options = {.exportable = exportable};
  const int64_t shape = SIZE;
  NEED(start_kernels());
  NEED(quay_allocator_open("cuda:0", &gpu) == QUAY_OK);
  NEED(quay_stream_create(quay_allocator_device(gpu), NULL, &stream) == QUAY_OK);
  return HOLDS(quay_buffer_create(gpu, QUAY_U8, 1, &shape, &options, &buffer) == QUAY_OK);
}

static bool export_to(int to, bool exportable) {
  message out = {.good = true};
  NEED(make_for_others(exportable) && write_pattern(0x13572468u));
  const quay_status status = exportable ? quay_cuda_export(buffer, &out.memory.shared)
                                        : quay_cuda_ipc_export(buffer, &out.memory.ipc);
  if (status == QUAY_STATUS_UNSUPPORTED)
    exit(SKIPPED);
  NEED(status == QUAY_OK);
  const int file = exportable ? out.memory.shared.file : -1;
  NEED(send_message(to, &out, file));
  if (file >= 0)
    (void)close(file);
  return true;
}

static bool import_from(int from, bool exportable) {
  message in;
  int file = -1;
  quay_raw_buffer raw;
  const int64_t shape = SIZE;
  NEED(receive_message(from, &in, &file));
  NEED(start_kernels());
  NEED(quay_allocator_open("cuda:0", &gpu) == QUAY_OK);
  NEED(quay_stream_create(quay_allocator_device(gpu), NULL, &stream) == QUAY_OK);
  in.memory.shared.file = exportable ? file : in.memory.shared.file;
  NEED((exportable ? quay_cuda_import(gpu, &in.memory.shared, &raw)
                   : quay_cuda_ipc_import(gpu, &in.memory.ipc, &raw)) == QUAY_OK);
  if (file >= 0)
    (void)close(file);
  return HOLDS(quay_buffer_from_raw(&raw, QUAY_U8, 1, &shape, &buffer) == QUAY_OK);
}

/* The other process: looks at the memory, and writes it with a kernel. */
static bool change_imported(int socket, bool exportable) {
  message done = {.good = true};
  NEED(import_from(socket, exportable));
  NEED(holds_pattern(0x13572468u));
  NEED(write_pattern(0x24681357u));
  release_all();
  NEED(quay_shutdown() == QUAY_OK);
  return HOLDS(send_message(socket, &done, -1));
}

static bool share(bool exportable) {
  int sockets[2], status = 1, file = -1;
  message done;
  NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
  const pid_t other = fork();
  if (other == 0) {
    (void)close(sockets[0]);
    _exit(change_imported(sockets[1], exportable) ? 0 : 1);
  }
  (void)close(sockets[1]);
  NEED(export_to(sockets[0], exportable));
  NEED(receive_message(sockets[0], &done, &file));
  NEED(waitpid(other, &status, 0) == other && status == 0);
  NEED(holds_pattern(0x24681357u));
  release_all();
  return HOLDS(quay_shutdown() == QUAY_OK);
}

static bool exported_memory_is_written_by_a_kernel_of_another_process(void) {
  return share(true);
}

static bool plain_memory_is_written_by_a_kernel_of_another_process(void) {
  return share(false);
}

/* The exporter is the other process here. */
static bool exported_memory_outlives_the_process_that_exported_it(void) {
  int sockets[2], status = 1;
  NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
  const pid_t other = fork();
  if (other == 0) {
    (void)close(sockets[0]);
    if (!export_to(sockets[1], true))
      _exit(1);
    release_all();
    _exit(quay_shutdown() == QUAY_OK ? 0 : 1);
  }
  (void)close(sockets[1]);
  NEED(waitpid(other, &status, 0) == other);
  if (WIFEXITED(status) && WEXITSTATUS(status) == SKIPPED)
    exit(SKIPPED);
  NEED(status == 0);
  NEED(import_from(sockets[0], true));
  NEED(holds_pattern(0x13572468u));
  NEED(write_pattern(0x24681357u));
  NEED(holds_pattern(0x24681357u));
  release_all();
  return HOLDS(quay_shutdown() == QUAY_OK);
}

/* Exit. What goes wrong here is a crash, a hang, or a sanitizer's finding. */

static bool exit_with_live_buffers_is_clean(void) {
  start();
  return make_buffer();
}

static bool exit_while_a_kernel_runs_is_clean(void) {
  uint32_t microseconds = 300000;
  NEED(start_kernels() && make_buffer());
  const quay_use use = {buffer, QUAY_WRITE};
  quay_access access;
  NEED(quay_access_begin(stream, &use, 1, &access) == QUAY_OK);
  NEED(gpu_launch(0, GPU_SLEEP, (CUstream)(uintptr_t)quay_cuda_stream(stream),
                  (void *[]){&microseconds}, 1) == CUDA_SUCCESS);
  NEED(quay_access_end(&access) == QUAY_OK);
  quay_buffer_release(buffer);
  return true;
}

static void *copy_for_ever(void *unused) {
  (void)unused;
  while (quay_buffer_copy_in(buffer, bytes, SIZE) == QUAY_OK) {
  }
  return NULL;
}

static bool exit_while_a_thread_copies_is_clean(void) {
  pthread_t thread;
  start();
  NEED(make_buffer());
  NEED(pthread_create(&thread, NULL, copy_for_ever, NULL) == 0);
  NEED(pthread_detach(thread) == 0);
  usleep(50000);
  return true;
}

/* After the backend's own handler: every call is refused, every release does nothing. */
static void release_late(void) {
  const bool good = HOLDS(quay_buffer_copy_in(buffer, bytes, SIZE) == QUAY_STATUS_UNAVAILABLE);
  release_all();
  if (!good)
    _exit(1);
}

static bool exit_releases_from_handlers_registered_before_the_driver_was_started(void) {
  NEED(atexit(release_late) == 0);
  start();
  return make_buffer();
}

/* Before it: everything works still. */
static void use_and_release_early(void) {
  const bool good = round_trip();
  release_all();
  if (!good)
    _exit(1);
}

static bool exit_releases_from_handlers_registered_after_the_driver_was_started(void) {
  start();
  NEED(make_buffer());
  return HOLDS(atexit(use_and_release_early) == 0);
}

static bool exit_after_a_shutdown_is_clean(void) {
  start();
  NEED(make_buffer());
  NEED(quay_shutdown() == QUAY_STATUS_BUSY);
  NEED(round_trip());
  release_all();
  return HOLDS(quay_shutdown() == QUAY_OK);
}

static bool quay_works_again_after_a_shutdown(void) {
  start();
  for (int round = 0; round < 3; round++) {
    NEED(make_buffer());
    NEED(round_trip());
    release_all();
    NEED(quay_shutdown() == QUAY_OK);
  }
  return true;
}

static bool a_reset_makes_old_memory_stale_and_the_device_usable(void) {
  start();
  NEED(make_buffer());
  quay_device *const device = quay_allocator_device(gpu);
  const uint64_t generation = quay_device_generation(device);
  NEED(quay_device_reset(device) == QUAY_STATUS_BUSY); /* a stream is alive */
  quay_stream_release(stream);
  stream = NULL;
  NEED(quay_device_reset(device) == QUAY_OK);
  NEED(quay_device_generation(device) > generation);
  NEED(quay_buffer_copy_in(buffer, bytes, SIZE) == QUAY_STATUS_STALE);
  NEED(quay_buffer_copy_out(buffer, found, SIZE) == QUAY_STATUS_STALE);
  quay_buffer_release(buffer);
  const int64_t shape = SIZE;
  buffer = NULL;
  NEED(quay_buffer_create(gpu, QUAY_U8, 1, &shape, NULL, &buffer) == QUAY_OK);
  NEED(round_trip());
  release_all();
  return HOLDS(quay_shutdown() == QUAY_OK);
}

/* cudaDeviceReset() in another library, which goes on then: the driver would crash where the stream
 * or an event of what was reset is used. */
static bool is_cured(bool made_anew) {
  start();
  NEED(make_buffer());
  quay_device *const device = quay_allocator_device(gpu);
  quay_event *event = NULL;
  NEED(quay_stream_native(stream) != 0);
  NEED(quay_event_record(stream, &event) == QUAY_OK);
  NEED(cu->cuDevicePrimaryCtxReset_v2(0) == 0);
  CUcontext anew = NULL;
  NEED(!made_anew || cu->cuDevicePrimaryCtxRetain(&anew, 0) == 0);
  const quay_alloc_options options = {.stream = stream};
  quay_raw_buffer none;
  bool done = false;
  NEED(quay_buffer_copy_in(buffer, bytes, SIZE) == QUAY_STATUS_STALE);
  NEED(quay_allocator_alloc(gpu, SIZE, &options, &none) == QUAY_STATUS_STALE);
  NEED(quay_buffer_fill_on(buffer, "a", 1, stream) == QUAY_STATUS_STALE);
  NEED(quay_stream_synchronize(stream) == QUAY_STATUS_STALE);
  NEED(quay_event_query(event, &done) == QUAY_STATUS_STALE);
  NEED(quay_device_health(device) == QUAY_HEALTH_OK);
  quay_event_release(event);
  quay_stream_release(stream);
  stream = NULL;
  NEED(quay_device_reset(device) == QUAY_OK);
  NEED(quay_buffer_copy_in(buffer, bytes, SIZE) == QUAY_STATUS_STALE);
  quay_buffer_release(buffer);
  const int64_t shape = SIZE;
  buffer = NULL;
  NEED(quay_buffer_create(gpu, QUAY_U8, 1, &shape, NULL, &buffer) == QUAY_OK);
  NEED(round_trip());
  release_all();
  NEED(!made_anew || cu->cuDevicePrimaryCtxRelease_v2(0) == 0);
  return HOLDS(quay_shutdown() == QUAY_OK);
}

static bool a_reset_by_another_library_is_cured_by_one_of_quays(void) {
  return is_cured(false);
}

static bool a_reset_by_another_library_that_goes_on_is_cured_by_one_of_quays(void) {
  return is_cured(true);
}

#define SCENARIO(name) \
  { #name, name }

static const struct {
  const char *name;
  bool (*run)(void);
} scenarios[] = {
    SCENARIO(an_illegal_address_loses_every_device_with_its_first_message),
    SCENARIO(a_trap_loses_every_device_with_its_first_message),
    SCENARIO(a_fault_is_found_by_a_health_query),
    SCENARIO(a_fault_leaves_host_memory_usable),
    SCENARIO(a_child_of_fork_is_refused_with_a_clear_error_and_has_host_memory),
    SCENARIO(a_child_of_fork_exits_with_live_buffers),
    SCENARIO(exported_memory_is_written_by_a_kernel_of_another_process),
    SCENARIO(exported_memory_outlives_the_process_that_exported_it),
    SCENARIO(plain_memory_is_written_by_a_kernel_of_another_process),
    SCENARIO(exit_with_live_buffers_is_clean),
    SCENARIO(exit_while_a_kernel_runs_is_clean),
    SCENARIO(exit_while_a_thread_copies_is_clean),
    SCENARIO(exit_releases_from_handlers_registered_before_the_driver_was_started),
    SCENARIO(exit_releases_from_handlers_registered_after_the_driver_was_started),
    SCENARIO(exit_after_a_shutdown_is_clean),
    SCENARIO(quay_works_again_after_a_shutdown),
    SCENARIO(a_reset_makes_old_memory_stale_and_the_device_usable),
    SCENARIO(a_reset_by_another_library_is_cured_by_one_of_quays),
    SCENARIO(a_reset_by_another_library_that_goes_on_is_cured_by_one_of_quays),
};

int main(int argc, char **argv) {
  const bool list = argc == 2 && strcmp(argv[1], "--list") == 0;
  for (size_t i = 0; argc == 2 && i < sizeof scenarios / sizeof scenarios[0]; i++) {
    if (strcmp(argv[1], scenarios[i].name) == 0)
      return scenarios[i].run() ? 0 : 1;
    if (list)
      puts(scenarios[i].name);
  }
  if (list)
    return 0;
  fprintf(stderr, "usage: gpu_child SCENARIO | --list\n");
  return 2;
}
