/* Virtual memory management: reservations of addresses, handles of physical memory, mappings. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sim.h"

typedef struct reservation {
  struct reservation *next;
  uint64_t begin, end;
} reservation;

typedef struct physical {
  struct physical *next;
  CUmemGenericAllocationHandle handle;
  unsigned references; /* of the program; 0: mappings alone keep it */
  CUmemAllocationProp properties;
  sim_memory *memory;
} physical;

static reservation *reservations;
static physical *physicals;

uint64_t sim_reservation_overlapping(uint64_t begin, uint64_t end) {
  for (const reservation *r = reservations; r != NULL; r = r->next) {
    if (r->begin < end && begin < r->end)
      return r->end;
  }
  return 0;
}

static bool is_reserved(uint64_t begin, uint64_t size) {
  for (const reservation *r = reservations; r != NULL; r = r->next) {
    if (begin >= r->begin && begin < r->end && size <= r->end - begin)
      return true;
  }
  return false;
}

static bool is_granular(uint64_t value) {
  return value % SIM_GRANULARITY == 0;
}

void sim_handle_counts(simcuda_census *out) {
  for (const reservation *r = reservations; r != NULL; r = r->next)
    out->reservations++;
  for (const physical *p = physicals; p != NULL; p = p->next)
    out->handles += p->references > 0;
}

void sim_handles_clear(void) {
  while (reservations != NULL) {
    reservation *const r = reservations;
    reservations = r->next;
    free(r);
  }
  while (physicals != NULL) {
    physical *const p = physicals;
    physicals = p->next;
    sim_memory_release(p->memory);
    free(p);
  }
}

static CUresult enter_virtual(void) {
  return sim.settings.vmm ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

static bool are_valid(const CUmemAllocationProp *p) {
  return p != NULL && p->type == CU_MEM_ALLOCATION_TYPE_PINNED &&
         p->location.type == CU_MEM_LOCATION_TYPE_DEVICE && sim_device_is_valid(p->location.id) &&
         (p->requestedHandleTypes == CU_MEM_HANDLE_TYPE_NONE ||
          p->requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *properties,
                                       CUmemAllocationGranularity_flags option) {
  SIM_ENTER(cuMemGetAllocationGranularity, SIM_NEEDS_INIT);
  CUresult error = enter_virtual();
  if (error == CUDA_SUCCESS && (granularity == NULL || !are_valid(properties) || option > 1))
    error = CUDA_ERROR_INVALID_VALUE;
  if (error == CUDA_SUCCESS)
    *granularity = SIM_GRANULARITY;
  return sim_leave(error);
}

CUresult cuMemAddressReserve(CUdeviceptr *address, size_t bytes, size_t alignment,
                             CUdeviceptr wanted, unsigned long long flags) {
  SIM_ENTER(cuMemAddressReserve, SIM_NEEDS_INIT | SIM_UNSAFE_IN_CAPTURE);
  (void)wanted; /* a hint */
  if (enter_virtual() != CUDA_SUCCESS)
    return sim_leave(CUDA_ERROR_NOT_SUPPORTED);
  if (address == NULL || bytes == 0 || !is_granular(bytes) || flags != 0 ||
      (alignment & (alignment - 1)) != 0)
    return sim_leave(CUDA_ERROR_INVALID_VALUE);
  const uint64_t at =
      sim_address_take(bytes, alignment > SIM_GRANULARITY ? alignment : SIM_GRANULARITY);
  if (at == 0)
    return sim_leave(CUDA_ERROR_OUT_OF_MEMORY);
  reservation *const made = sim_new(sizeof *made);
  *made = (reservation){.next = reservations, .begin = at, .end = at + bytes};
  reservations = made;
  *address = at;
  return sim_leave(CUDA_SUCCESS);
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  SIM_ENTER(cuMemAddressFree, SIM_NEEDS_INIT | SIM_UNSAFE_IN_CAPTURE);
  for (reservation **link = &reservations; *link != NULL; link = &(*link)->next) {
    reservation *const r = *link;
    if (r->begin != address || r->end - r->begin != bytes)
      continue;
    if (sim_range_overlapping(r->begin, r->end) != NULL)
      return sim_leave(CUDA_ERROR_INVALID_VALUE);
    *link = r->next;
    free(r);
    return sim_leave(CUDA_SUCCESS);
  }
  return sim_leave(CUDA_ERROR_INVALID_VALUE);
}

static physical *add_physical(const CUmemAllocationProp *properties, sim_memory *memory) {
  physical *const made = sim_new(sizeof *made);
  made->handle = ++sim.next_serial << 8 | 0x5a;
  made->references = 1;
  made->properties = *properties;
  made->memory = memory;
  made->next = physicals;
  physicals = made;
  return made;
}

static physical *physical_of(CUmemGenericAllocationHandle handle, bool released_too) {
  for (physical *p = physicals; p != NULL; p = p->next) {
    if (p->handle == handle && (p->references > 0 || released_too))
      return p;
  }
  return NULL;
}

static bool is_mapped(const physical *p) {
  for (size_t i = 0; i < sim_range_count(); i++) {
    if (sim_range_get(i)->kind == SIM_MAPPED && sim_range_get(i)->handle == p->handle)
      return true;
  }
  return false;
}

static void drop_if_over(physical *over) {
  if (over->references > 0 || is_mapped(over))
    return;
  for (physical **link = &physicals; *link != NULL; link = &(*link)->next) {
    if (*link != over)
      continue;
    *link = over->next;
    sim_memory_release(over->memory);
    free(over);
    return;
  }
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
                     const CUmemAllocationProp *properties, unsigned long long flags) {
  SIM_ENTER(cuMemCreate, SIM_NEEDS_INIT | SIM_UNSAFE_IN_CAPTURE);
  if (enter_virtual() != CUDA_SUCCESS)
    return sim_leave(CUDA_ERROR_NOT_SUPPORTED);
  if (handle == NULL || bytes == 0 || !is_granular(bytes) || !are_valid(properties) || flags != 0)
    return sim_leave(CUDA_ERROR_INVALID_VALUE);
  sim_memory *const memory = sim_memory_new(properties->location.id, bytes, true);
  if (memory == NULL)
    return sim_leave(CUDA_ERROR_OUT_OF_MEMORY);
  *handle = add_physical(properties, memory)->handle;
  return sim_leave(CUDA_SUCCESS);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  SIM_ENTER(cuMemRelease, SIM_NEEDS_INIT | SIM_UNSAFE_IN_CAPTURE);
  physical *const p = physical_of(handle, false);
  if (p == NULL)
    return sim_leave(CUDA_ERROR_INVALID_VALUE);
  p->references--;
  drop_if_over(p);
  return sim_leave(CUDA_SUCCESS);
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags) {
  SIM_ENTER(cuMemMap, SIM_NEEDS_INIT | SIM_UNSAFE_IN_CAPTURE);
  const physical *const p = physical_of(handle, false);
  /* "offset" has to be 0, and a handle is mapped whole. */
  if (p == NULL || flags != 0 || offset != 0 || bytes != p->memory->size || !is_granular(address) ||
      !is_reserved(address, bytes))
    return sim_leave(CUDA_ERROR_INVALID_VALUE);
  if (sim_range_overlapping(address, address + bytes) != NULL)
    return sim_leave(CUDA_ERROR_ALREADY_MAPPED);
  sim_memory_retain(p->memory);
  sim_range *const range = sim_range_add(SIM_MAPPED, address, bytes, p->memory, NULL);
  range->handle = handle;
  return sim_leave(CUDA_SUCCESS);
}

/* Whether the bytes are whole mappings without a gap. */
static bool is_whole(uint64_t address, uint64_t bytes) {
  for (uint64_t at = address; at < address + bytes;) {
    const sim_range *const range = sim_range_at(at);
    if (range == NULL || range->kind != SIM_MAPPED || range->begin != at ||
        range->end > address + bytes)
      return false;
    at = range->end;
  }
  return bytes > 0;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  SIM_ENTER(cuMemUnmap, SIM_NEEDS_INIT | SIM_UNSAFE_IN_CAPTURE);
  if (!is_whole(address, bytes))
    return sim_leave(CUDA_ERROR_INVALID_VALUE);
  const sim_actor actor = sim_host_actor("cuMemUnmap");
  for (uint64_t at = address; at < address + bytes;) {
    sim_range *const range = sim_range_at(at);
    physical *const p = physical_of(range->handle, true);
    at = range->end;
    /* Unmapping waits for nothing. */
    sim_range_check_end(range, &actor);
    sim_range_remove(range, "was unmapped");
    if (p != NULL)
      drop_if_over(p);
  }
  return sim_leave(CUDA_SUCCESS);
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access,
                        size_t count) {
  SIM_ENTER(cuMemSetAccess, SIM_NEEDS_INIT | SIM_UNSAFE_IN_CAPTURE);
  if (!is_whole(address, bytes) || access == NULL || count == 0)
    return sim_leave(CUDA_ERROR_INVALID_VALUE);
  for (size_t i = 0; i < count; i++) {
    if (access[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE)
      return sim_leave(CUDA_ERROR_NOT_SUPPORTED);
    if (!sim_device_is_valid(access[i].location.id))
      return sim_leave(CUDA_ERROR_INVALID_DEVICE);
  }
  for (uint64_t at = address; at < address + bytes;) {
    sim_range *const range = sim_range_at(at);
    for (size_t i = 0; i < count; i++) {
      const int device = access[i].location.id;
      if (device != range->device && (sim.settings.peers[device] & 1u << range->device) == 0)
        return sim_leave(CUDA_ERROR_INVALID_DEVICE);
      range->access[device] = (unsigned char)access[i].flags;
    }
    at = range->end;
  }
  return sim_leave(CUDA_SUCCESS);
}

CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location,
                        CUdeviceptr address) {
  SIM_ENTER(cuMemGetAccess, SIM_NEEDS_INIT);
  const sim_range *const range = sim_range_at(address);
  if (range == NULL || range->kind != SIM_MAPPED || location == NULL ||
      location->type != CU_MEM_LOCATION_TYPE_DEVICE || !sim_device_is_valid(location->id))
    return sim_leave(CUDA_ERROR_INVALID_VALUE);
  *flags = range->access[location->id];
  return sim_leave(CUDA_SUCCESS);
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address) {
  SIM_ENTER(cuMemRetainAllocationHandle, SIM_NEEDS_INIT);
  const sim_range *const range = sim_range_at((uint64_t)(uintptr_t)address);
  physical *const p =
      range != NULL && range->kind == SIM_MAPPED ? physical_of(range->handle, true) : NULL;
  if (p == NULL)
    return sim_leave(CUDA_ERROR_INVALID_VALUE);
  p->references++;
  *handle = p->handle;
  return sim_leave(CUDA_SUCCESS);
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties,
                                                CUmemGenericAllocationHandle handle) {
  SIM_ENTER(cuMemGetAllocationPropertiesFromHandle, SIM_NEEDS_INIT);
  const physical *const p = physical_of(handle, false);
  if (p == NULL || properties == NULL)
    return sim_leave(CUDA_ERROR_INVALID_VALUE);
  *properties = p->properties;
  return sim_leave(CUDA_SUCCESS);
}

CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
  SIM_ENTER(cuMemExportToShareableHandle, SIM_NEEDS_INIT);
  const physical *const p = physical_of(handle, false);
  if (p == NULL || shareable == NULL || flags != 0 ||
      type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
      p->properties.requestedHandleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    return sim_leave(CUDA_ERROR_INVALID_VALUE);
  if (!sim_memory_share(p->memory))
    return sim_leave(CUDA_ERROR_OPERATING_SYSTEM);
  const int file = fcntl(p->memory->file, F_DUPFD_CLOEXEC, 3);
  if (file < 0)
    return sim_leave(CUDA_ERROR_OPERATING_SYSTEM);
  *(int *)shareable = file;
  return sim_leave(CUDA_SUCCESS);
}

/* The device is not told by the file: the importer's first one, as if it were the same. */
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable,
                                        CUmemAllocationHandleType type) {
  SIM_ENTER(cuMemImportFromShareableHandle, SIM_NEEDS_INIT | SIM_UNSAFE_IN_CAPTURE);
  if (handle == NULL || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    return sim_leave(CUDA_ERROR_INVALID_VALUE);
  const int file = fcntl((int)(intptr_t)shareable, F_DUPFD_CLOEXEC, 3);
  struct stat status;
  if (file < 0 || fstat(file, &status) != 0 || status.st_size == 0 ||
      !is_granular((uint64_t)status.st_size)) {
    if (file >= 0)
      close(file);
    return sim_leave(CUDA_ERROR_INVALID_VALUE);
  }
  const int device = sim_current() != NULL ? sim_current()->device : 0;
  /* The exporter pays for it. */
  sim_memory *const memory = sim_memory_open(device, file, (uint64_t)status.st_size, false);
  if (memory == NULL) {
    close(file);
    return sim_leave(CUDA_ERROR_OUT_OF_MEMORY);
  }
  const CUmemAllocationProp properties = {
      .type = CU_MEM_ALLOCATION_TYPE_PINNED,
      .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
  };
  *handle = add_physical(&properties, memory)->handle;
  return sim_leave(CUDA_SUCCESS);
}
