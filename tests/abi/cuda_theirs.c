/* The Toolkit's side: takes nothing but the names from Quay. */
#include <cuda.h>
#include <stdint.h>

#include "abi/cuda_table.h"
#include "cuda/abi.h"

const abi_row abi_theirs[] = {
#define ROW(name, value, native) {#native, (long long)(intptr_t)(native)},
    QUAY__CU_RESULTS(ROW) QUAY__CU_CONSTANTS(ROW)
#undef ROW
        {"sizeof CUresult", sizeof(CUresult)},
    {"sizeof CUdevice", sizeof(CUdevice)},
    {"sizeof CUdeviceptr", sizeof(CUdeviceptr)},
    {"sizeof CUcontext", sizeof(CUcontext)},
    {"sizeof CUstream", sizeof(CUstream)},
    {"sizeof CUevent", sizeof(CUevent)},
    {"sizeof CUmemoryPool", sizeof(CUmemoryPool)},
    {"sizeof CUuuid", sizeof(CUuuid)},
    {"sizeof CUmemLocation", sizeof(CUmemLocation)},
    {"sizeof CUmemAccessDesc", sizeof(CUmemAccessDesc)},
    {"sizeof CUmemGenericAllocationHandle", sizeof(CUmemGenericAllocationHandle)},
    {"sizeof CUmemAllocationProp", sizeof(CUmemAllocationProp)},
    {"offset of CUmemAllocationProp.type", offsetof(CUmemAllocationProp, type)},
    {"offset of CUmemAllocationProp.requestedHandleTypes",
     offsetof(CUmemAllocationProp, requestedHandleTypes)},
    {"offset of CUmemAllocationProp.location", offsetof(CUmemAllocationProp, location)},
    {"offset of CUmemAllocationProp.win32HandleMetaData",
     offsetof(CUmemAllocationProp, win32HandleMetaData)},
    {"offset of CUmemAllocationProp.allocFlags", offsetof(CUmemAllocationProp, allocFlags)},
    {"sizeof CUipcMemHandle", sizeof(CUipcMemHandle)},
    {"sizeof CUexternalMemory", sizeof(CUexternalMemory)},
    {"sizeof CUDA_EXTERNAL_MEMORY_HANDLE_DESC", sizeof(CUDA_EXTERNAL_MEMORY_HANDLE_DESC)},
    {"offset of CUDA_EXTERNAL_MEMORY_HANDLE_DESC.handle",
     offsetof(CUDA_EXTERNAL_MEMORY_HANDLE_DESC, handle)},
    {"offset of CUDA_EXTERNAL_MEMORY_HANDLE_DESC.size",
     offsetof(CUDA_EXTERNAL_MEMORY_HANDLE_DESC, size)},
    {"offset of CUDA_EXTERNAL_MEMORY_HANDLE_DESC.flags",
     offsetof(CUDA_EXTERNAL_MEMORY_HANDLE_DESC, flags)},
    {"sizeof CUDA_EXTERNAL_MEMORY_BUFFER_DESC", sizeof(CUDA_EXTERNAL_MEMORY_BUFFER_DESC)},
    {"offset of CUDA_EXTERNAL_MEMORY_BUFFER_DESC.size",
     offsetof(CUDA_EXTERNAL_MEMORY_BUFFER_DESC, size)},
    {"offset of CUDA_EXTERNAL_MEMORY_BUFFER_DESC.flags",
     offsetof(CUDA_EXTERNAL_MEMORY_BUFFER_DESC, flags)},
    {"offset of CUmemLocation.type", offsetof(CUmemLocation, type)},
    {"offset of CUmemLocation.id", offsetof(CUmemLocation, id)},
    {"offset of CUmemAccessDesc.location", offsetof(CUmemAccessDesc, location)},
    {"offset of CUmemAccessDesc.flags", offsetof(CUmemAccessDesc, flags)},
    {"sizeof CUmemcpyAttributes", sizeof(CUmemcpyAttributes)},
    {"offset of CUmemcpyAttributes.srcAccessOrder", offsetof(CUmemcpyAttributes, srcAccessOrder)},
    {"offset of CUmemcpyAttributes.dstLocHint", offsetof(CUmemcpyAttributes, dstLocHint)},
    {"offset of CUmemcpyAttributes.flags", offsetof(CUmemcpyAttributes, flags)},
};
const size_t abi_theirs_count = sizeof abi_theirs / sizeof abi_theirs[0];
