/* Quay's side: sees no header of CUDA's. */
#include "abi/cuda_table.h"
#include "cuda/abi.h"

const abi_row abi_ours[] = {
#define ROW(name, value, native) {#native, QUAY__CU_##name},
    QUAY__CU_RESULTS(ROW) QUAY__CU_CONSTANTS(ROW)
#undef ROW
        {"sizeof CUresult", sizeof(quay__cu_result)},
    {"sizeof CUdevice", sizeof(quay__cu_device)},
    {"sizeof CUdeviceptr", sizeof(quay__cu_pointer)},
    {"sizeof CUcontext", sizeof(quay__cu_context)},
    {"sizeof CUstream", sizeof(quay__cu_stream)},
    {"sizeof CUevent", sizeof(quay__cu_event)},
    {"sizeof CUmemoryPool", sizeof(quay__cu_pool)},
    {"sizeof CUuuid", sizeof(quay__cu_uuid)},
    {"sizeof CUmemLocation", sizeof(quay__cu_location)},
    {"sizeof CUmemAccessDesc", sizeof(quay__cu_access)},
    {"sizeof CUmemGenericAllocationHandle", sizeof(quay__cu_memory)},
    {"sizeof CUmemAllocationProp", sizeof(quay__cu_memory_properties)},
    {"offset of CUmemAllocationProp.type", offsetof(quay__cu_memory_properties, type)},
    {"offset of CUmemAllocationProp.requestedHandleTypes",
     offsetof(quay__cu_memory_properties, handle_types)},
    {"offset of CUmemAllocationProp.location", offsetof(quay__cu_memory_properties, location)},
    {"offset of CUmemAllocationProp.win32HandleMetaData",
     offsetof(quay__cu_memory_properties, windows)},
    {"offset of CUmemAllocationProp.allocFlags", offsetof(quay__cu_memory_properties, flags)},
    {"sizeof CUipcMemHandle", sizeof(quay__cu_ipc_memory)},
    {"sizeof CUexternalMemory", sizeof(quay__cu_external)},
    {"sizeof CUDA_EXTERNAL_MEMORY_HANDLE_DESC", sizeof(quay__cu_external_memory)},
    {"offset of CUDA_EXTERNAL_MEMORY_HANDLE_DESC.handle",
     offsetof(quay__cu_external_memory, handle)},
    {"offset of CUDA_EXTERNAL_MEMORY_HANDLE_DESC.size", offsetof(quay__cu_external_memory, size)},
    {"offset of CUDA_EXTERNAL_MEMORY_HANDLE_DESC.flags", offsetof(quay__cu_external_memory, flags)},
    {"sizeof CUDA_EXTERNAL_MEMORY_BUFFER_DESC", sizeof(quay__cu_external_buffer)},
    {"offset of CUDA_EXTERNAL_MEMORY_BUFFER_DESC.size", offsetof(quay__cu_external_buffer, size)},
    {"offset of CUDA_EXTERNAL_MEMORY_BUFFER_DESC.flags", offsetof(quay__cu_external_buffer, flags)},
    {"offset of CUmemLocation.type", offsetof(quay__cu_location, type)},
    {"offset of CUmemLocation.id", offsetof(quay__cu_location, id)},
    {"offset of CUmemAccessDesc.location", offsetof(quay__cu_access, location)},
    {"offset of CUmemAccessDesc.flags", offsetof(quay__cu_access, flags)},
    {"sizeof CUmemcpyAttributes", sizeof(quay__cu_copy_attributes)},
    {"offset of CUmemcpyAttributes.srcAccessOrder",
     offsetof(quay__cu_copy_attributes, source_order)},
    {"offset of CUmemcpyAttributes.dstLocHint",
     offsetof(quay__cu_copy_attributes, destination_hint)},
    {"offset of CUmemcpyAttributes.flags", offsetof(quay__cu_copy_attributes, flags)},
};
const size_t abi_ours_count = sizeof abi_ours / sizeof abi_ours[0];
