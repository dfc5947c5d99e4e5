/* Plain memory of a device, and memory of the host that devices reach. */
#include "sim.h"

enum {
  ALIGNMENT = 512 /* of every allocation; the driver promises 256 */
};

sim_range *sim_range_begin(const char *what, uint64_t address, sim_kind kind, sim_kind other) {
  sim_range *const range = sim_range_at(address);
  if (range != NULL && range->begin == address && (range->kind == kind || range->kind == other))
    return range;
  sim_report_address(what, address, 0);
  return NULL;
}

void sim_range_check_end(const sim_range *range, const sim_actor *actor) {
  (void)sim_shadow_check_end(range->memory, 0, range->memory->size, actor);
}

/* A free is not ordered after work that the host has not waited for, whatever a driver does. */
static void free_range(sim_range *range, const char *what) {
  const sim_actor actor = sim_host_actor(what);
  sim_range_check_end(range, &actor);
  sim_range_remove(range, "was freed");
}

CUresult cuMemGetInfo_v2(size_t *unused, size_t *total) {
  SIM_ENTER(cuMemGetInfo_v2, SIM_NEEDS_CONTEXT);
  *total = sim.settings.memory;
  *unused = sim.settings.memory - sim.used[sim_current()->device];
  return sim_leave(CUDA_SUCCESS);
}

CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes) {
  SIM_ENTER(cuMemAlloc_v2, SIM_NEEDS_CONTEXT | SIM_UNSAFE_IN_CAPTURE);
  if (address == NULL || bytes == 0)
    return sim_leave(CUDA_ERROR_INVALID_VALUE);
  sim_context *const context = sim_current();
  sim_memory *const memory = sim_memory_new(context->device, bytes, true);
  const uint64_t at = memory != NULL ? sim_address_take(bytes, ALIGNMENT) : 0;
  if (at == 0) {
    if (memory != NULL)
      sim_memory_release(memory);
    return sim_leave(CUDA_ERROR_OUT_OF_MEMORY);
  }
  (void)sim_range_add(SIM_DEVICE, at, bytes, memory, context);
  *address = at;
  return sim_leave(CUDA_SUCCESS);
}

CUresult cuMemFree_v2(CUdeviceptr address) {
  SIM_ENTER(cuMemFree_v2, SIM_NEEDS_CONTEXT | SIM_UNSAFE_IN_CAPTURE);
  if (address == 0)
    return sim_leave(CUDA_SUCCESS);
  sim_range *range = sim_range_at(address);
  const bool external = range != NULL && range->kind == SIM_IPC && range->flags == SIM_EXTERNAL;
  if (range == NULL || (range->kind != SIM_MANAGED && !external))
    range = sim_range_begin("cuMemFree", address, SIM_DEVICE, SIM_POOL);
  if (range == NULL || range->begin != address)
    return sim_leave(CUDA_ERROR_INVALID_VALUE);
  free_range(range, "cuMemFree");
  return sim_leave(CUDA_SUCCESS);
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr address) {
  SIM_ENTER(cuMemGetAddressRange_v2, SIM_NEEDS_CONTEXT);
  const sim_range *const range = sim_range_at(address);
  if (range == NULL || range->kind == SIM_REGISTERED)
    return sim_leave(CUDA_ERROR_NOT_FOUND);
  if (base != NULL)
    *base = range->begin;
  if (bytes != NULL)
    *bytes = range->end - range->begin;
  return sim_leave(CUDA_SUCCESS);
}

/* Memory of the host. */

static CUresult allocate_host(void **pointer, size_t bytes, sim_kind kind, unsigned flags) {
  if (pointer == NULL || bytes == 0)
    return CUDA_ERROR_INVALID_VALUE;
  sim_context *const context = sim_current();
  sim_memory *const memory = sim_memory_new(context->device, bytes, false);
  if (memory == NULL)
    return CUDA_ERROR_OUT_OF_MEMORY;
  sim_range *const range =
      sim_range_add(kind, (uint64_t)(uintptr_t)memory->bytes, bytes, memory, context);
  range->flags = flags;
  *pointer = memory->bytes;
  return CUDA_SUCCESS;
}

CUresult cuMemAllocHost_v2(void **pointer, size_t bytes) {
  SIM_ENTER(cuMemAllocHost_v2, SIM_NEEDS_CONTEXT | SIM_UNSAFE_IN_CAPTURE);
  return sim_leave(allocate_host(pointer, bytes, SIM_PINNED, 0));
}

CUresult cuMemHostAlloc(void **pointer, size_t bytes, unsigned flags) {
  SIM_ENTER(cuMemHostAlloc, SIM_NEEDS_CONTEXT | SIM_UNSAFE_IN_CAPTURE);
  if (flags > 7)
    return sim_leave(CUDA_ERROR_INVALID_VALUE);
  return sim_leave(allocate_host(pointer, bytes, SIM_PINNED, flags));
}

CUresult cuMemFreeHost(void *pointer) {
  SIM_ENTER(cuMemFreeHost, SIM_NEEDS_CONTEXT | SIM_UNSAFE_IN_CAPTURE);
  sim_range *const range =
      sim_range_begin("cuMemFreeHost", (uint64_t)(uintptr_t)pointer, SIM_PINNED, SIM_PINNED);
  if (range == NULL)
    return sim_leave(CUDA_ERROR_INVALID_VALUE);
  free_range(range, "cuMemFreeHost");
  return sim_leave(CUDA_SUCCESS);
}

CUresult cuMemHostRegister_v2(void *pointer, size_t bytes, unsigned flags) {
  SIM_ENTER(cuMemHostRegister_v2, SIM_NEEDS_CONTEXT | SIM_UNSAFE_IN_CAPTURE);
  const uint64_t address = (uint64_t)(uintptr_t)pointer;
  if (pointer == NULL || bytes == 0 || flags > 15 || sim_address_is_device(address))
    return sim_leave(CUDA_ERROR_INVALID_VALUE);
  if (sim_range_overlapping(address, address + bytes) != NULL)
    return sim_leave(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  sim_range *const range = sim_range_add(SIM_REGISTERED, address, bytes,
                                         sim_memory_borrow(pointer, bytes), sim_current());
  range->flags = flags;
  return sim_leave(CUDA_SUCCESS);
}

CUresult cuMemHostUnregister(void *pointer) {
  SIM_ENTER(cuMemHostUnregister, SIM_NEEDS_CONTEXT | SIM_UNSAFE_IN_CAPTURE);
  sim_range *const range = sim_range_at((uint64_t)(uintptr_t)pointer);
  if (range == NULL || range->kind != SIM_REGISTERED ||
      range->begin != (uint64_t)(uintptr_t)pointer)
    return sim_leave(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  free_range(range, "cuMemHostUnregister");
  return sim_leave(CUDA_SUCCESS);
}

static sim_range *host_range(const void *pointer) {
  sim_range *const range = sim_range_at((uint64_t)(uintptr_t)pointer);
  const bool fits = range != NULL && (range->kind == SIM_PINNED || range->kind == SIM_REGISTERED);
  return fits ? range : NULL;
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *address, void *pointer, unsigned flags) {
  SIM_ENTER(cuMemHostGetDevicePointer_v2, SIM_NEEDS_CONTEXT);
  if (address == NULL || flags != 0 || host_range(pointer) == NULL)
    return sim_leave(CUDA_ERROR_INVALID_VALUE);
  *address = (CUdeviceptr)(uintptr_t)pointer;
  return sim_leave(CUDA_SUCCESS);
}

CUresult cuMemHostGetFlags(unsigned *flags, void *pointer) {
  SIM_ENTER(cuMemHostGetFlags, SIM_NEEDS_CONTEXT);
  const sim_range *const range = host_range(pointer);
  if (range == NULL)
    return sim_leave(CUDA_ERROR_INVALID_VALUE);
  *flags = range->flags;
  return sim_leave(CUDA_SUCCESS);
}

CUresult cuMemAllocManaged(CUdeviceptr *address, size_t bytes, unsigned flags) {
  SIM_ENTER(cuMemAllocManaged, SIM_NEEDS_CONTEXT | SIM_UNSAFE_IN_CAPTURE);
  if (address == NULL || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
    return sim_leave(CUDA_ERROR_INVALID_VALUE);
  void *pointer;
  const CUresult result = allocate_host(&pointer, bytes, SIM_MANAGED, flags);
  if (result == CUDA_SUCCESS)
    *address = (CUdeviceptr)(uintptr_t)pointer;
  return sim_leave(result);
}
