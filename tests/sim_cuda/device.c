/* Devices: how many, what they are called, what they can do, who reaches whom. */
#include <stdio.h>
#include <string.h>

#include "sim.h"

bool sim_device_is_valid(int device) {
  return device >= 0 && device < sim.settings.devices;
}

CUresult cuDeviceGetCount(int *count) {
  SIM_ENTER(cuDeviceGetCount, SIM_NEEDS_INIT);
  if (count == NULL)
    return sim_leave(CUDA_ERROR_INVALID_VALUE);
  *count = sim.settings.devices;
  return sim_leave(CUDA_SUCCESS);
}

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
  SIM_ENTER(cuDeviceGet, SIM_NEEDS_INIT);
  if (!sim_device_is_valid(ordinal))
    return sim_leave(CUDA_ERROR_INVALID_DEVICE);
  *device = ordinal;
  return sim_leave(CUDA_SUCCESS);
}

CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
  SIM_ENTER(cuDeviceGetName, SIM_NEEDS_INIT);
  if (!sim_device_is_valid(device))
    return sim_leave(CUDA_ERROR_INVALID_DEVICE);
  if (length <= 0)
    return sim_leave(CUDA_ERROR_INVALID_VALUE);
  snprintf(name, (size_t)length, "Simulated CUDA device %d", device);
  return sim_leave(CUDA_SUCCESS);
}

static CUresult uuid(CUuuid *out, int device) {
  if (!sim_device_is_valid(device))
    return CUDA_ERROR_INVALID_DEVICE;
  memcpy(out->bytes, "simulated-cuda-", 15);
  out->bytes[15] = (char)('0' + device);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *out, CUdevice device) {
  SIM_ENTER(cuDeviceGetUuid, SIM_NEEDS_INIT);
  return sim_leave(uuid(out, device));
}

CUresult cuDeviceGetUuid_v2(CUuuid *out, CUdevice device) {
  SIM_ENTER(cuDeviceGetUuid_v2, SIM_NEEDS_INIT);
  return sim_leave(uuid(out, device));
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
  SIM_ENTER(cuDeviceTotalMem_v2, SIM_NEEDS_INIT);
  if (!sim_device_is_valid(device))
    return sim_leave(CUDA_ERROR_INVALID_DEVICE);
  *bytes = sim.settings.memory;
  return sim_leave(CUDA_SUCCESS);
}

CUresult cuDeviceGetPCIBusId(char *text, int length, CUdevice device) {
  SIM_ENTER(cuDeviceGetPCIBusId, SIM_NEEDS_INIT);
  if (!sim_device_is_valid(device))
    return sim_leave(CUDA_ERROR_INVALID_DEVICE);
  if (length < 13)
    return sim_leave(CUDA_ERROR_INVALID_VALUE);
  snprintf(text, (size_t)length, "0000:%02X:00.0", (unsigned)device + 1);
  return sim_leave(CUDA_SUCCESS);
}

/* Where the value is not constant, 0 stands here and attribute() knows. */
static const struct {
  CUdevice_attribute attribute;
  int value;
} attributes[] = {
    {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 2},
    {CU_DEVICE_ATTRIBUTE_INTEGRATED, 0},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, 0},
    {CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, 0},
    {CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, 0},
    {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 3},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
    {CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, 0},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
    {CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, 0},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 0},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1},
    {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0},
    {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 0},
    {CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 0},
    {CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES, 0},
    {CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, 0},
};

static int attribute(unsigned index, int device) {
  const unsigned asked = attributes[index].attribute;
  if (asked == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)
    return device + 1;
  if (asked == CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS)
    return sim.settings.managed;
  if (asked == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED ||
      asked == CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)
    return sim.settings.vmm;
  if (asked == CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID)
    return sim.settings.nodes ? device : -1;
  if (asked == CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)
    return sim.settings.pools;
  return attributes[index].value;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute asked, CUdevice device) {
  SIM_ENTER(cuDeviceGetAttribute, SIM_NEEDS_INIT);
  if (!sim_device_is_valid(device))
    return sim_leave(CUDA_ERROR_INVALID_DEVICE);
  for (unsigned i = 0; i < sizeof attributes / sizeof *attributes; i++) {
    if (attributes[i].attribute == asked) {
      *value = attribute(i, device);
      return sim_leave(CUDA_SUCCESS);
    }
  }
  return sim_leave(CUDA_ERROR_INVALID_VALUE);
}

static bool are_peers(int a, int b) {
  return a != b && (sim.settings.peers[a] & 1u << b) != 0;
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
  SIM_ENTER(cuDeviceCanAccessPeer, SIM_NEEDS_INIT);
  if (!sim_device_is_valid(device) || !sim_device_is_valid(peer))
    return sim_leave(CUDA_ERROR_INVALID_DEVICE);
  *can = are_peers(device, peer);
  return sim_leave(CUDA_SUCCESS);
}

CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute asked, CUdevice source,
                                 CUdevice target) {
  SIM_ENTER(cuDeviceGetP2PAttribute, SIM_NEEDS_INIT);
  if (!sim_device_is_valid(source) || !sim_device_is_valid(target) || source == target)
    return sim_leave(CUDA_ERROR_INVALID_DEVICE);
  if (asked != CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED &&
      asked != CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED &&
      asked != CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK)
    return sim_leave(CUDA_ERROR_INVALID_VALUE);
  *value = asked != CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK && are_peers(source, target);
  return sim_leave(CUDA_SUCCESS);
}

static sim_context *peer_of(CUcontext peer, CUresult *out_error) {
  sim_context *const context = sim_context_check(peer, out_error);
  if (context != NULL && context->device == sim_current()->device) {
    *out_error = CUDA_ERROR_INVALID_DEVICE;
    return NULL;
  }
  return context;
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  SIM_ENTER(cuCtxEnablePeerAccess, SIM_NEEDS_CONTEXT);
  if (flags != 0)
    return sim_leave(CUDA_ERROR_INVALID_VALUE);
  CUresult error;
  const sim_context *const other = peer_of(peer, &error);
  if (other == NULL)
    return sim_leave(error);
  sim_context *const own = sim_current();
  if (!are_peers(own->device, other->device))
    return sim_leave(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
  if ((own->peers & 1u << other->device) != 0)
    return sim_leave(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
  own->peers |= 1u << other->device;
  return sim_leave(CUDA_SUCCESS);
}

CUresult cuCtxDisablePeerAccess(CUcontext peer) {
  SIM_ENTER(cuCtxDisablePeerAccess, SIM_NEEDS_CONTEXT);
  CUresult error;
  const sim_context *const other = peer_of(peer, &error);
  if (other == NULL)
    return sim_leave(error);
  sim_context *const own = sim_current();
  if ((own->peers & 1u << other->device) == 0)
    return sim_leave(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
  own->peers &= ~(1u << other->device);
  return sim_leave(CUDA_SUCCESS);
}
