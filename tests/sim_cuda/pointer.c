/* What the driver says about an address. */
#include "sim.h"

static bool is_host(const sim_range *range) {
  return range->kind == SIM_PINNED || range->kind == SIM_REGISTERED;
}

/* NULL range: the address is unknown. */
static CUresult tell(void *value, CUpointer_attribute attribute, const sim_range *range,
                     uint64_t address) {
  switch (attribute) {
  case CU_POINTER_ATTRIBUTE_CONTEXT:
    *(CUcontext *)value =
        range->kind != SIM_POOL && range->kind != SIM_MAPPED ? (CUcontext)range->context : NULL;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    *(unsigned *)value = is_host(range) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    *(CUdeviceptr *)value = address;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    if (!range->memory->host_access)
      return CUDA_ERROR_INVALID_VALUE;
    *(void **)value = (void *)(uintptr_t)address;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    *(unsigned long long *)value = range->serial;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    *(unsigned char *)value = range->kind == SIM_MANAGED;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    *(int *)value = is_host(range) ? range->context->device : range->device;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    *(unsigned char *)value = range->kind == SIM_DEVICE;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    *(CUdeviceptr *)value = range->begin;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    *(size_t *)value = range->end - range->begin;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_MAPPED:
    *(unsigned char *)value = 1;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    *(unsigned long long *)value =
        range->kind == SIM_MAPPED ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : 0;
    return CUDA_SUCCESS;
  case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
    *(CUmemoryPool *)value = range->kind == SIM_POOL ? sim_pool_handle(range->pool) : NULL;
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr address) {
  SIM_ENTER(cuPointerGetAttribute, SIM_NEEDS_INIT);
  const sim_range *const range = sim_range_at(address);
  if (value == NULL || range == NULL)
    return sim_leave(CUDA_ERROR_INVALID_VALUE);
  return sim_leave(tell(value, attribute, range, address));
}

static size_t size_of(CUpointer_attribute attribute) {
  switch (attribute) {
  case CU_POINTER_ATTRIBUTE_IS_MANAGED:
  case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
  case CU_POINTER_ATTRIBUTE_MAPPED:
    return 1;
  case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
  case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    return 4;
  case CU_POINTER_ATTRIBUTE_CONTEXT:
  case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
  case CU_POINTER_ATTRIBUTE_HOST_POINTER:
  case CU_POINTER_ATTRIBUTE_BUFFER_ID:
  case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
  case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
  case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
  case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
    return 8;
  }
  return 0;
}

/* The plural form answers success for an address that is not known, and zeros (-2 for the device).
 */
CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute *attributes, void **values,
                                CUdeviceptr address) {
  SIM_ENTER(cuPointerGetAttributes, SIM_NEEDS_INIT);
  if (attributes == NULL || values == NULL)
    return sim_leave(CUDA_ERROR_INVALID_VALUE);
  const sim_range *const range = sim_range_at(address);
  for (unsigned i = 0; i < count; i++) {
    const size_t size = size_of(attributes[i]);
    if (size == 0)
      return sim_leave(CUDA_ERROR_INVALID_VALUE);
    if (range != NULL && tell(values[i], attributes[i], range, address) == CUDA_SUCCESS)
      continue;
    for (size_t k = 0; k < size; k++)
      ((unsigned char *)values[i])[k] = 0;
    if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
      *(int *)values[i] = -2;
  }
  return sim_leave(CUDA_SUCCESS);
}
