/* Stream-ordered memory: pools, and allocations that begin and end on a stream. */
#include <stdlib.h>

#include "sim.h"

enum {
  ALIGNMENT = 512
};

struct sim_pool {
  sim_pool *next;
  int device;
  bool is_default, alive;
  unsigned char access[SIM_MAX_DEVICES];
  int follow, opportunistic, internal;
  uint64_t threshold, used, high;
};

static sim_pool *pools;
static sim_pool *chosen[SIM_MAX_DEVICES]; /* by cuDeviceSetMemPool */

static sim_pool *new_pool(int device) {
  sim_pool *const pool = sim_new(sizeof *pool);
  pool->device = device;
  pool->alive = true;
  pool->follow = pool->opportunistic = pool->internal = 1;
  pool->access[device] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  pool->next = pools;
  pools = pool;
  return pool;
}

static sim_pool *default_pool(int device) {
  for (sim_pool *p = pools; p != NULL; p = p->next) {
    if (p->alive && p->is_default && p->device == device)
      return p;
  }
  sim_pool *const pool = new_pool(device);
  pool->is_default = true;
  return pool;
}

static sim_pool *current_pool(int device) {
  return chosen[device] != NULL ? chosen[device] : default_pool(device);
}

static sim_pool *pool_of(CUmemoryPool handle) {
  for (sim_pool *p = pools; p != NULL; p = p->next) {
    if (p == (sim_pool *)handle && p->alive)
      return p;
  }
  return NULL;
}

CUmemoryPool sim_pool_handle(sim_pool *pool) {
  return (CUmemoryPool)pool;
}

bool sim_pool_reaches(const sim_pool *pool, int device, bool write) {
  const unsigned needed =
      write ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ;
  return (pool->access[device] & needed) == needed;
}

void sim_pool_shrink(sim_pool *pool, uint64_t bytes) {
  pool->used -= bytes;
}

void sim_pools_clear(void) {
  while (pools != NULL) {
    sim_pool *const pool = pools;
    pools = pool->next;
    free(pool);
  }
  for (int i = 0; i < SIM_MAX_DEVICES; i++)
    chosen[i] = NULL;
}

void sim_pool_counts(simcuda_census *out) {
  for (const sim_pool *p = pools; p != NULL; p = p->next)
    out->pools += p->alive && !p->is_default;
}

static CUresult check_device(CUdevice device) {
  if (!sim_device_is_valid(device))
    return CUDA_ERROR_INVALID_DEVICE;
  return sim.settings.pools ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device) {
  SIM_ENTER(cuDeviceGetDefaultMemPool, SIM_NEEDS_INIT);
  const CUresult error = check_device(device);
  if (error == CUDA_SUCCESS)
    *pool = (CUmemoryPool)default_pool(device);
  return sim_leave(error);
}

CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device) {
  SIM_ENTER(cuDeviceGetMemPool, SIM_NEEDS_INIT);
  const CUresult error = check_device(device);
  if (error == CUDA_SUCCESS)
    *pool = (CUmemoryPool)current_pool(device);
  return sim_leave(error);
}

CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool handle) {
  SIM_ENTER(cuDeviceSetMemPool, SIM_NEEDS_INIT);
  CUresult error = check_device(device);
  sim_pool *const pool = pool_of(handle);
  if (error == CUDA_SUCCESS && (pool == NULL || pool->device != device))
    error = CUDA_ERROR_INVALID_VALUE;
  if (error == CUDA_SUCCESS)
    chosen[device] = pool;
  return sim_leave(error);
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties) {
  SIM_ENTER(cuMemPoolCreate, SIM_NEEDS_INIT);
  if (pool == NULL || properties == NULL ||
      properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
      properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
    return sim_leave(CUDA_ERROR_INVALID_VALUE);
  if (properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE)
    return sim_leave(CUDA_ERROR_NOT_SUPPORTED);
  const CUresult error = check_device(properties->location.id);
  if (error == CUDA_SUCCESS)
    *pool = (CUmemoryPool)new_pool(properties->location.id);
  return sim_leave(error);
}

/* Memory of it that is in use stays until it is freed; so does the object. */
CUresult cuMemPoolDestroy(CUmemoryPool handle) {
  SIM_ENTER(cuMemPoolDestroy, SIM_NEEDS_INIT);
  sim_pool *const pool = pool_of(handle);
  if (pool == NULL || pool->is_default)
    return sim_leave(CUDA_ERROR_INVALID_VALUE);
  pool->alive = false;
  if (chosen[pool->device] == pool)
    chosen[pool->device] = NULL;
  return sim_leave(CUDA_SUCCESS);
}

CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep) {
  SIM_ENTER(cuMemPoolTrimTo, SIM_NEEDS_INIT);
  (void)keep; /* nothing is kept anyway */
  return sim_leave(pool_of(handle) != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

static CUresult attribute(CUmemoryPool handle, CUmemPool_attribute asked, void *value, bool set) {
  sim_pool *const pool = pool_of(handle);
  if (pool == NULL || value == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  int *flag = NULL;
  uint64_t *number = NULL;
  switch (asked) {
  case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    flag = &pool->follow;
    break;
  case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    flag = &pool->opportunistic;
    break;
  case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
    flag = &pool->internal;
    break;
  case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
    number = &pool->threshold;
    break;
  case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
  case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
    number = &pool->used;
    break;
  case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
  case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
    number = &pool->high;
    break;
  }
  if (flag == NULL && number == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  /* Of the counters only the high marks may be set, to 0. */
  if (set && number != NULL && number != &pool->threshold &&
      (number == &pool->used || *(cuuint64_t *)value != 0))
    return CUDA_ERROR_INVALID_VALUE;
  if (flag != NULL && set) {
    *flag = *(int *)value;
  } else if (flag != NULL) {
    *(int *)value = *flag;
  } else if (set) {
    *number = *(cuuint64_t *)value;
  } else {
    *(cuuint64_t *)value = *number;
  }
  return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute asked, void *value) {
  SIM_ENTER(cuMemPoolSetAttribute, SIM_NEEDS_INIT);
  return sim_leave(attribute(pool, asked, value, true));
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute asked, void *value) {
  SIM_ENTER(cuMemPoolGetAttribute, SIM_NEEDS_INIT);
  return sim_leave(attribute(pool, asked, value, false));
}

CUresult cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc *access, size_t count) {
  SIM_ENTER(cuMemPoolSetAccess, SIM_NEEDS_INIT);
  sim_pool *const pool = pool_of(handle);
  if (pool == NULL || (access == NULL && count > 0))
    return sim_leave(CUDA_ERROR_INVALID_VALUE);
  for (size_t i = 0; i < count; i++) {
    const int device = access[i].location.id;
    const bool peers =
        sim_device_is_valid(device) &&
        (device == pool->device || (sim.settings.peers[device] & 1u << pool->device) != 0);
    if (access[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE || !peers)
      return sim_leave(CUDA_ERROR_INVALID_DEVICE);
    /* Its own device can't lose access. */
    if (device == pool->device && access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
      return sim_leave(CUDA_ERROR_INVALID_VALUE);
  }
  for (size_t i = 0; i < count; i++)
    pool->access[access[i].location.id] = (unsigned char)access[i].flags;
  return sim_leave(CUDA_SUCCESS);
}

CUresult cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool handle,
                            CUmemLocation *location) {
  SIM_ENTER(cuMemPoolGetAccess, SIM_NEEDS_INIT);
  const sim_pool *const pool = pool_of(handle);
  if (pool == NULL || location == NULL || !sim_device_is_valid(location->id))
    return sim_leave(CUDA_ERROR_INVALID_VALUE);
  *flags = (CUmemAccess_flags)pool->access[location->id];
  return sim_leave(CUDA_SUCCESS);
}

/* Memory nodes of graphs are not simulated. */
static CUresult refuse_capture(sim_stream *stream) {
  return sim_capture_is_active(stream->capture) ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

static CUresult allocate(CUdeviceptr *address, size_t bytes, sim_pool *pool, CUstream handle) {
  CUresult error;
  sim_stream *const stream = sim_stream_of(handle, &error);
  if (stream == NULL)
    return error;
  if (!sim.settings.pools)
    return CUDA_ERROR_NOT_SUPPORTED;
  sim_pool *const from = pool != NULL ? pool : current_pool(stream->context->device);
  if (address == NULL || bytes == 0 || from->device != stream->context->device)
    return CUDA_ERROR_INVALID_VALUE;
  bool captured;
  error = refuse_capture(stream);
  if (error == CUDA_SUCCESS)
    error = sim_capture_submit(stream, &captured);
  if (error != CUDA_SUCCESS)
    return error;
  sim_memory *const memory = sim_memory_new(from->device, bytes, true);
  const uint64_t at = memory != NULL ? sim_address_take(bytes, ALIGNMENT) : 0;
  if (at == 0) {
    if (memory != NULL)
      sim_memory_release(memory);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  sim_range *const range = sim_range_add(SIM_POOL, at, bytes, memory, stream->context);
  range->pool = from;
  from->used += bytes;
  from->high = from->high < from->used ? from->used : from->high;
  /* The stream writes it first, so to say: a use elsewhere has to wait for that. */
  sim_actor actor = sim_stream_actor(stream, "cuMemAllocAsync");
  actor.beginning = true;
  sim_shadow_access(memory, 0, bytes, true, &actor);
  sim_submit(stream, sim_op_new("cuMemAllocAsync"));
  *address = at;
  return CUDA_SUCCESS;
}

CUresult cuMemAllocAsync(CUdeviceptr *address, size_t bytes, CUstream stream) {
  SIM_ENTER(cuMemAllocAsync, SIM_NEEDS_CONTEXT);
  return sim_leave(allocate(address, bytes, NULL, stream));
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t bytes, CUmemoryPool handle,
                                 CUstream stream) {
  SIM_ENTER(cuMemAllocFromPoolAsync, SIM_NEEDS_CONTEXT);
  sim_pool *const pool = pool_of(handle);
  return sim_leave(pool != NULL ? allocate(address, bytes, pool, stream)
                                : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream handle) {
  SIM_ENTER(cuMemFreeAsync, SIM_NEEDS_CONTEXT);
  CUresult error;
  sim_stream *const stream = sim_stream_of(handle, &error);
  if (stream == NULL)
    return sim_leave(error);
  sim_range *const range = sim_range_begin("cuMemFreeAsync", address, SIM_POOL, SIM_DEVICE);
  if (range == NULL)
    return sim_leave(CUDA_ERROR_INVALID_VALUE);
  bool captured;
  error = refuse_capture(stream);
  if (error == CUDA_SUCCESS)
    error = sim_capture_submit(stream, &captured);
  if (error != CUDA_SUCCESS)
    return sim_leave(error);
  const sim_actor actor = sim_stream_actor(stream, "cuMemFreeAsync");
  sim_range_check_end(range, &actor);
  sim_op *const op = sim_op_new("cuMemFreeAsync");
  sim_memory_retain(range->memory);
  op->freed = range->memory;
  sim_range_remove(range, "was freed on a stream");
  sim_submit(stream, op);
  return sim_leave(CUDA_SUCCESS);
}
