/* Memory of other processes by the older way: handles of plain allocations. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "sim.h"

enum {
  MAGIC = 0x19c19c
};

typedef struct ticket {
  uint32_t magic;
  int process, file, device;
  uint64_t size;
} ticket;

_Static_assert(sizeof(ticket) <= CU_IPC_HANDLE_SIZE, "a ticket has to fit into a handle");

/* Only of memory from cuMemAlloc: pools and mappings have ways of their own. */
CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address) {
  SIM_ENTER(cuIpcGetMemHandle, SIM_NEEDS_CONTEXT);
  const sim_range *const range = sim_range_at(address);
  if (handle == NULL || range == NULL || range->kind != SIM_DEVICE)
    return sim_leave(CUDA_ERROR_INVALID_VALUE);
  if (!sim_memory_share(range->memory))
    return sim_leave(CUDA_ERROR_OPERATING_SYSTEM);
  const ticket t = {
      .magic = MAGIC,
      .process = getpid(),
      .file = range->memory->file,
      .device = range->device,
      .size = range->memory->size,
  };
  memset(handle, 0, sizeof *handle);
  memcpy(handle->reserved, &t, sizeof t);
  return sim_leave(CUDA_SUCCESS);
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *address, CUipcMemHandle handle, unsigned flags) {
  SIM_ENTER(cuIpcOpenMemHandle_v2, SIM_NEEDS_CONTEXT | SIM_UNSAFE_IN_CAPTURE);
  ticket t;
  memcpy(&t, handle.reserved, sizeof t);
  if (address == NULL || t.magic != MAGIC || flags > 1)
    return sim_leave(CUDA_ERROR_INVALID_VALUE);
  if (t.process == getpid())
    return sim_leave(CUDA_ERROR_INVALID_CONTEXT);
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/fd/%d", t.process, t.file);
  const int file = open(path, O_RDWR | O_CLOEXEC);
  if (file < 0)
    return sim_leave(CUDA_ERROR_INVALID_VALUE);
  sim_context *const context = sim_current();
  sim_memory *const memory = sim_memory_open(context->device, file, t.size, false);
  const uint64_t at = memory != NULL ? sim_address_take(t.size, SIM_GRANULARITY) : 0;
  if (at == 0) {
    if (memory != NULL) {
      sim_memory_release(memory);
    } else {
      close(file);
    }
    return sim_leave(CUDA_ERROR_OUT_OF_MEMORY);
  }
  (void)sim_range_add(SIM_IPC, at, t.size, memory, context);
  *address = at;
  return sim_leave(CUDA_SUCCESS);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  SIM_ENTER(cuIpcCloseMemHandle, SIM_NEEDS_CONTEXT | SIM_UNSAFE_IN_CAPTURE);
  sim_range *const range = sim_range_begin("cuIpcCloseMemHandle", address, SIM_IPC, SIM_IPC);
  if (range == NULL)
    return sim_leave(CUDA_ERROR_INVALID_VALUE);
  const sim_actor actor = sim_host_actor("cuIpcCloseMemHandle");
  sim_range_check_end(range, &actor);
  sim_range_remove(range, "was closed");
  return sim_leave(CUDA_SUCCESS);
}
