/* Memory of other interfaces, by file descriptors of memory that can be mapped. */
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sim.h"

/* The whole memory, for as long as somebody may map a part of it. */
struct CUextMemory_st {
  CUexternalMemory next; /* in the list of all: a reset of a device ends them without a call */
  sim_memory *memory;
};

static CUexternalMemory all;

/* The descriptor is the importer's from success on, and the caller's after an error. */
CUresult cuImportExternalMemory(CUexternalMemory *external,
                                const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *description) {
  SIM_ENTER(cuImportExternalMemory, SIM_NEEDS_CONTEXT | SIM_UNSAFE_IN_CAPTURE);
  struct stat status;
  if (external == NULL || description == NULL || description->size == 0 ||
      description->type != CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD || description->flags > 1 ||
      fstat(description->handle.fd, &status) != 0 ||
      (unsigned long long)status.st_size < description->size)
    return sim_leave(CUDA_ERROR_INVALID_VALUE);
  sim_memory *const memory =
      sim_memory_open(sim_current()->device, description->handle.fd, description->size, false);
  if (memory == NULL)
    return sim_leave(CUDA_ERROR_OUT_OF_MEMORY);
  *external = sim_new(sizeof **external);
  (*external)->memory = memory;
  (*external)->next = all;
  all = *external;
  return sim_leave(CUDA_SUCCESS);
}

/* A mapping of its own, which cuMemFree ends; only of the whole here. */
CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr *address, CUexternalMemory external,
                                         const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *description) {
  SIM_ENTER(cuExternalMemoryGetMappedBuffer, SIM_NEEDS_CONTEXT | SIM_UNSAFE_IN_CAPTURE);
  if (address == NULL || external == NULL || description == NULL || description->offset != 0 ||
      description->size != external->memory->size || description->flags != 0)
    return sim_leave(CUDA_ERROR_INVALID_VALUE);
  const uint64_t at = sim_address_take(description->size, SIM_GRANULARITY);
  if (at == 0)
    return sim_leave(CUDA_ERROR_OUT_OF_MEMORY);
  sim_memory_retain(external->memory);
  sim_range *const range =
      sim_range_add(SIM_IPC, at, description->size, external->memory, sim_current());
  range->flags = SIM_EXTERNAL;
  *address = at;
  return sim_leave(CUDA_SUCCESS);
}

CUresult cuDestroyExternalMemory(CUexternalMemory external) {
  SIM_ENTER(cuDestroyExternalMemory, SIM_NEEDS_CONTEXT | SIM_UNSAFE_IN_CAPTURE);
  CUexternalMemory *link = &all;
  while (*link != NULL && *link != external)
    link = &(*link)->next;
  if (external == NULL || *link == NULL)
    return sim_leave(CUDA_ERROR_INVALID_HANDLE);
  *link = external->next;
  sim_memory_release(external->memory);
  free(external);
  return sim_leave(CUDA_SUCCESS);
}
