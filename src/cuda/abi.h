/* What the backend needs of the CUDA driver's binary interface, in our own declarations, so that no
 * Toolkit is needed to build it. The sections named are those of the CUDA Driver API's reference
 * manual (modules of cuda.h). tests/unit/cuda_abi*.c compare all of it with a Toolkit's headers
 * where there are some. The functions are in symbols.h. */
#ifndef QUAY_CUDA_ABI_H
#define QUAY_CUDA_ABI_H

#include <stddef.h>
#include <stdint.h>

/* "Data types used by CUDA driver". */
typedef int quay__cu_result;       /* CUresult, an enumeration */
typedef int quay__cu_device;       /* CUdevice: the ordinal */
typedef uint64_t quay__cu_pointer; /* CUdeviceptr, 64 bits on 64-bit platforms */
typedef struct quay__cu_context_object *quay__cu_context;
typedef struct quay__cu_stream_object *quay__cu_stream;
typedef struct quay__cu_event_object *quay__cu_event;
typedef struct quay__cu_pool_object *quay__cu_pool; /* CUmemoryPool */

typedef struct CUextMemory_st *quay__cu_external;     /* CUexternalMemory */
typedef struct CUextSemaphore_st *quay__cu_semaphore; /* CUexternalSemaphore */
typedef uint64_t quay__cu_memory; /* CUmemGenericAllocationHandle: physical memory */

typedef struct quay__cu_uuid {
  char bytes[16];
} quay__cu_uuid;

/* CUmemLocation and CUmemAccessDesc. */
typedef struct quay__cu_location {
  int type; /* CUmemLocationType */
  int id;
} quay__cu_location;

typedef struct quay__cu_access {
  quay__cu_location location;
  int flags; /* CUmemAccess_flags */
} quay__cu_access;

/* CUmemAllocationProp. */
typedef struct quay__cu_memory_properties {
  int type;         /* CUmemAllocationType */
  int handle_types; /* CUmemAllocationHandleType */
  quay__cu_location location;
  void *windows; /* NULL */
  unsigned char flags[8];
} quay__cu_memory_properties;

/* CUDA_EXTERNAL_MEMORY_HANDLE_DESC; of the union only the file descriptor is used. */
typedef struct quay__cu_external_memory {
  int type; /* CUexternalMemoryHandleType */
  union {
    int file;
    void *windows[2];
  } handle;
  unsigned long long size; /* bytes of all of the memory */
  unsigned flags;
  unsigned reserved[16];
} quay__cu_external_memory;

/* CUDA_EXTERNAL_MEMORY_BUFFER_DESC. */
typedef struct quay__cu_external_buffer {
  unsigned long long offset, size; /* bytes */
  unsigned flags;
  unsigned reserved[16];
} quay__cu_external_buffer;

/* CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC; of the union only the file descriptor is used. */
typedef struct quay__cu_external_semaphore {
  int type; /* CUexternalSemaphoreHandleType */
  union {
    int file;
    void *windows[2];
  } handle;
  unsigned flags;
  unsigned reserved[16];
} quay__cu_external_semaphore;

/* CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS and CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS, which are of one
 * size and have the value and the flags at the same places; of the parameters only the value is
 * used. */
typedef struct quay__cu_semaphore_value {
  unsigned long long value; /* of a timeline */
  unsigned long long unused[2];
  unsigned reserved_parameters[12];
  unsigned flags;
  unsigned reserved[16];
} quay__cu_semaphore_value;

/* CUipcMemHandle. */
typedef struct quay__cu_ipc_memory {
  char reserved[64];
} quay__cu_ipc_memory;

/* CUmemcpyAttributes: of copies of a batch. */
typedef struct quay__cu_copy_attributes {
  int source_order; /* CUmemcpySrcAccessOrder */
  quay__cu_location source_hint, destination_hint;
  unsigned flags;
} quay__cu_copy_attributes;

/* X(our name, value, cuda.h's name). Results: enumeration CUresult. */
#define QUAY__CU_RESULTS(X)                                              \
  X(SUCCESS, 0, CUDA_SUCCESS)                                            \
  X(INVALID_VALUE, 1, CUDA_ERROR_INVALID_VALUE)                          \
  X(OUT_OF_MEMORY, 2, CUDA_ERROR_OUT_OF_MEMORY)                          \
  X(NOT_INITIALIZED, 3, CUDA_ERROR_NOT_INITIALIZED)                      \
  X(DEINITIALIZED, 4, CUDA_ERROR_DEINITIALIZED)                          \
  X(STUB_LIBRARY, 34, CUDA_ERROR_STUB_LIBRARY)                           \
  X(DEVICE_UNAVAILABLE, 46, CUDA_ERROR_DEVICE_UNAVAILABLE)               \
  X(NO_DEVICE, 100, CUDA_ERROR_NO_DEVICE)                                \
  X(INVALID_DEVICE, 101, CUDA_ERROR_INVALID_DEVICE)                      \
  X(INVALID_CONTEXT, 201, CUDA_ERROR_INVALID_CONTEXT)                    \
  X(ECC_UNCORRECTABLE, 214, CUDA_ERROR_ECC_UNCORRECTABLE)                \
  X(PEER_ACCESS_UNSUPPORTED, 217, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED)    \
  X(NVLINK_UNCORRECTABLE, 220, CUDA_ERROR_NVLINK_UNCORRECTABLE)          \
  X(CONTAINED, 226, CUDA_ERROR_CONTAINED)                                \
  X(OPERATING_SYSTEM, 304, CUDA_ERROR_OPERATING_SYSTEM)                  \
  X(INVALID_HANDLE, 400, CUDA_ERROR_INVALID_HANDLE)                      \
  X(NOT_READY, 600, CUDA_ERROR_NOT_READY)                                \
  X(ILLEGAL_ADDRESS, 700, CUDA_ERROR_ILLEGAL_ADDRESS)                    \
  X(LAUNCH_OUT_OF_RESOURCES, 701, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES)    \
  X(LAUNCH_TIMEOUT, 702, CUDA_ERROR_LAUNCH_TIMEOUT)                      \
  X(PEER_ALREADY_ENABLED, 704, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)   \
  X(CONTEXT_IS_DESTROYED, 709, CUDA_ERROR_CONTEXT_IS_DESTROYED)          \
  X(ASSERT, 710, CUDA_ERROR_ASSERT)                                      \
  X(TOO_MANY_PEERS, 711, CUDA_ERROR_TOO_MANY_PEERS)                      \
  X(HARDWARE_STACK_ERROR, 714, CUDA_ERROR_HARDWARE_STACK_ERROR)          \
  X(ILLEGAL_INSTRUCTION, 715, CUDA_ERROR_ILLEGAL_INSTRUCTION)            \
  X(MISALIGNED_ADDRESS, 716, CUDA_ERROR_MISALIGNED_ADDRESS)              \
  X(INVALID_ADDRESS_SPACE, 717, CUDA_ERROR_INVALID_ADDRESS_SPACE)        \
  X(INVALID_PC, 718, CUDA_ERROR_INVALID_PC)                              \
  X(LAUNCH_FAILED, 719, CUDA_ERROR_LAUNCH_FAILED)                        \
  X(COOPERATIVE_TOO_LARGE, 720, CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE) \
  X(NOT_PERMITTED, 800, CUDA_ERROR_NOT_PERMITTED)                        \
  X(NOT_SUPPORTED, 801, CUDA_ERROR_NOT_SUPPORTED)                        \
  X(SYSTEM_NOT_READY, 802, CUDA_ERROR_SYSTEM_NOT_READY)                  \
  X(SYSTEM_DRIVER_MISMATCH, 803, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH)      \
  X(MPS_CLIENT_TERMINATED, 810, CUDA_ERROR_MPS_CLIENT_TERMINATED)        \
  X(CAPTURE_UNSUPPORTED, 900, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)     \
  X(CAPTURE_WRONG_THREAD, 908, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD)   \
  X(EXTERNAL_DEVICE, 911, CUDA_ERROR_EXTERNAL_DEVICE)                    \
  X(UNKNOWN, 999, CUDA_ERROR_UNKNOWN)

/* Results that came after CUDA 12.0, whose headers a test may find. */
#define QUAY__CU_TENSOR_MEMORY_LEAK 721 /* CUDA_ERROR_TENSOR_MEMORY_LEAK */

/* Flags and attributes, with the enumeration that each is of. */
#define QUAY__CU_CONSTANTS(X)                                                                      \
  /* CUstream_flags, and the handles CU_STREAM_LEGACY and CU_STREAM_PER_THREAD */                  \
  X(STREAM_NON_BLOCKING, 1, CU_STREAM_NON_BLOCKING)                                                \
  X(STREAM_LEGACY, 1, CU_STREAM_LEGACY)                                                            \
  X(STREAM_PER_THREAD, 2, CU_STREAM_PER_THREAD)                                                    \
  /* CUevent_flags */                                                                              \
  X(EVENT_DISABLE_TIMING, 2, CU_EVENT_DISABLE_TIMING)                                              \
  /* CU_MEMHOSTALLOC_..., CUmemAttach_flags */                                                     \
  X(MEMHOSTALLOC_PORTABLE, 1, CU_MEMHOSTALLOC_PORTABLE)                                            \
  X(MEMHOSTREGISTER_PORTABLE, 1, CU_MEMHOSTREGISTER_PORTABLE)                                      \
  X(MEM_ATTACH_GLOBAL, 1, CU_MEM_ATTACH_GLOBAL)                                                    \
  /* CUmemorytype */                                                                               \
  X(MEMORYTYPE_HOST, 1, CU_MEMORYTYPE_HOST)                                                        \
  X(MEMORYTYPE_DEVICE, 2, CU_MEMORYTYPE_DEVICE)                                                    \
  /* CUpointer_attribute */                                                                        \
  X(POINTER_MEMORY_TYPE, 2, CU_POINTER_ATTRIBUTE_MEMORY_TYPE)                                      \
  X(POINTER_IS_MANAGED, 8, CU_POINTER_ATTRIBUTE_IS_MANAGED)                                        \
  X(POINTER_DEVICE_ORDINAL, 9, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)                                \
  X(POINTER_RANGE_START, 11, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR)                                \
  X(POINTER_RANGE_SIZE, 12, CU_POINTER_ATTRIBUTE_RANGE_SIZE)                                       \
  /* CUdevice_attribute */                                                                         \
  X(DEVICE_UNIFIED_ADDRESSING, 41, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING)                         \
  X(DEVICE_CONCURRENT_MANAGED, 89, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS)                  \
  X(DEVICE_VIRTUAL_MEMORY, 102, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)           \
  X(DEVICE_FILE_DESCRIPTORS, 103, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) \
  X(DEVICE_MEMORY_POOLS, 115, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)                          \
  X(DEVICE_HOST_NUMA_ID, 134, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID)                                    \
  /* CUstreamCaptureMode, CUstreamCaptureStatus */                                                 \
  X(CAPTURE_MODE_RELAXED, 2, CU_STREAM_CAPTURE_MODE_RELAXED)                                       \
  X(CAPTURE_STATUS_NONE, 0, CU_STREAM_CAPTURE_STATUS_NONE)                                         \
  /* CUdriverProcAddress_flags */                                                                  \
  X(PROC_ADDRESS_DEFAULT, 0, CU_GET_PROC_ADDRESS_DEFAULT)                                          \
  X(PROC_ADDRESS_LEGACY_STREAM, 1, CU_GET_PROC_ADDRESS_LEGACY_STREAM)                              \
  /* CUmemLocationType, CUmemAccess_flags */                                                       \
  X(LOCATION_DEVICE, 1, CU_MEM_LOCATION_TYPE_DEVICE)                                               \
  X(ACCESS_READ_WRITE, 3, CU_MEM_ACCESS_FLAGS_PROT_READWRITE)                                      \
  /* CUmemAllocationType, CUmemAllocationHandleType, CUmemAllocationGranularity_flags */           \
  X(MEMORY_PINNED, 1, CU_MEM_ALLOCATION_TYPE_PINNED)                                               \
  X(HANDLE_FILE_DESCRIPTOR, 1, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)                           \
  X(GRANULARITY_MINIMUM, 0, CU_MEM_ALLOC_GRANULARITY_MINIMUM)                                      \
  /* CUexternalMemoryHandleType, CUDA_EXTERNAL_MEMORY_DEDICATED */                                 \
  X(EXTERNAL_OPAQUE_FILE, 1, CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD)                             \
  X(EXTERNAL_DEDICATED, 1, CUDA_EXTERNAL_MEMORY_DEDICATED)                                         \
  /* CUexternalSemaphoreHandleType */                                                              \
  X(EXTERNAL_TIMELINE_FILE, 9, CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_FD)            \
  /* CUipcMem_flags */                                                                             \
  X(IPC_LAZY_PEER_ACCESS, 1, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)                                   \
  /* CUmemcpySrcAccessOrder */                                                                     \
  X(COPY_ORDER_STREAM, 1, CU_MEMCPY_SRC_ACCESS_ORDER_STREAM)

enum {
#define QUAY__CU_ENUMERATOR(name, value, native) QUAY__CU_##name = (value),
  QUAY__CU_RESULTS(QUAY__CU_ENUMERATOR) QUAY__CU_CONSTANTS(QUAY__CU_ENUMERATOR)
#undef QUAY__CU_ENUMERATOR
};

#endif
