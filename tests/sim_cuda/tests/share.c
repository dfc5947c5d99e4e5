/* Memory shared by two processes: file descriptors of handles, and the older handles of plain
 * memory. The other process is a program of its own kind: forked before the driver is used. */
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fixture.h"

static const size_t piece = 2 << 20;

static void send_file(int socket, int file) {
  char byte = 'f';
  struct iovec data = {.iov_base = &byte, .iov_len = 1};
  union {
    struct cmsghdr header;
    char room[CMSG_SPACE(sizeof(int))];
  } control = {.room = {0}};
  struct msghdr message = {
      .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  struct cmsghdr *const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  memcpy(CMSG_DATA(header), &file, sizeof file);
  cr_assert_eq(sendmsg(socket, &message, 0), 1);
}

static int receive_file(int socket) {
  char byte;
  struct iovec data = {.iov_base = &byte, .iov_len = 1};
  union {
    struct cmsghdr header;
    char room[CMSG_SPACE(sizeof(int))];
  } control;
  struct msghdr message = {
      .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  int file = -1;
  if (recvmsg(socket, &message, 0) == 1 && CMSG_FIRSTHDR(&message) != NULL)
    memcpy(&file, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof file);
  return file;
}

/* The importer: writes what it was not told of, so that the exporter sees it. */
static void import_and_write(int socket) {
  const int file = receive_file(socket);
  start("");
  CUmemGenericAllocationHandle handle;
  CUdeviceptr address;
  const CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
                                  .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  unsigned char bytes[256];
  fill_bytes(bytes, sizeof bytes, 8);
  ok(cu.cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)file,
                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  ok(cu.cuMemAddressReserve(&address, piece, 0, 0, 0));
  ok(cu.cuMemMap(address, piece, 0, handle, 0));
  ok(cu.cuMemSetAccess(address, piece, &access, 1));
  check_device(address, 256, 7);
  ok(cu.cuMemcpyHtoD_v2(address + 1024, bytes, sizeof bytes));
  ok(cu.cuCtxSynchronize());
}

Test(share, a_file_descriptor_carries_memory_to_another_process) {
  int ends[2];
  cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  start_uninitialised("");
  const pid_t child = fork();
  if (child == 0) {
    import_and_write(ends[1]);
    _exit(0);
  }
  ok(cu.cuInit(0));
  use_device(0);
  CUmemGenericAllocationHandle handle;
  CUdeviceptr address = mapped_memory(1, &handle);
  unsigned char bytes[256];
  int file = -1;
  fill_bytes(bytes, sizeof bytes, 7);
  ok(cu.cuMemcpyHtoD_v2(address, bytes, sizeof bytes));
  ok(cu.cuCtxSynchronize());
  ok(cu.cuMemExportToShareableHandle(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  send_file(ends[0], file);
  close(file);
  int status = -1;
  cr_assert_eq(waitpid(child, &status, 0), child);
  cr_assert_eq(status, 0);
  check_device(address, 256, 7);
  check_device(address + 1024, 256, 8);
}

Test(share, an_ipc_handle_carries_plain_memory_to_another_process) {
  int ends[2];
  cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  start_uninitialised("");
  const pid_t child = fork();
  CUipcMemHandle handle;
  if (child == 0) {
    CUdeviceptr there;
    if (read(ends[1], &handle, sizeof handle) != (ssize_t)sizeof handle)
      _exit(2);
    start("");
    ok(cu.cuIpcOpenMemHandle_v2(&there, handle, 1));
    check_device(there, 256, 5);
    ok(cu.cuMemsetD8_v2(there + 256, 0x77, 1));
    ok(cu.cuCtxSynchronize());
    ok(cu.cuIpcCloseMemHandle(there));
    _exit(0);
  }
  ok(cu.cuInit(0));
  use_device(0);
  CUdeviceptr address = device_memory(257);
  unsigned char bytes[256];
  fill_bytes(bytes, sizeof bytes, 5);
  ok(cu.cuMemcpyHtoD_v2(address, bytes, sizeof bytes));
  ok(cu.cuCtxSynchronize());
  ok(cu.cuIpcGetMemHandle(&handle, address));
  CUdeviceptr again;
  expect(cu.cuIpcOpenMemHandle_v2(&again, handle, 1), CUDA_ERROR_INVALID_CONTEXT);
  cr_assert_eq(write(ends[0], &handle, sizeof handle), (ssize_t)sizeof handle);
  int status = -1;
  cr_assert_eq(waitpid(child, &status, 0), child);
  cr_assert_eq(status, 0);
  unsigned char byte = 0;
  cr_assert(simcuda->peek(address + 256, &byte, 1) && byte == 0x77);
}

Test(share, an_ipc_handle_is_of_plain_memory_only) {
  start("");
  CUipcMemHandle handle;
  CUdeviceptr ordered;
  CUmemGenericAllocationHandle physical;
  ok(cu.cuMemAllocAsync(&ordered, 4096, NULL));
  expect(cu.cuIpcGetMemHandle(&handle, ordered), CUDA_ERROR_INVALID_VALUE);
  expect(cu.cuIpcGetMemHandle(&handle, mapped_memory(1, &physical)), CUDA_ERROR_INVALID_VALUE);
}
