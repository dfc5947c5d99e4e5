/* The functions of the CUDA driver that the backend calls.
 *
 * X(name, suffix, version, streams, need, parameters):
 *   name, suffix  what dlsym() takes where the driver has no cuGetProcAddress: cuMemAlloc, _v2
 *   version       of the ABI, as cudaTypedefs.h names it: PFN_cuMemAlloc_v3020; what is asked for
 *                 through cuGetProcAddress, so that a later ABI of the same name is never returned
 *   streams       LEGACY where the driver keeps a second version for per-thread default streams
 *                 (cudaTypedefs.h: "_ptsz"), else ANY
 *   need          MUST, or MAY: absent from old drivers; whoever calls it looks first
 *   parameters    in the types of abi.h; all of them return CUresult
 * No include guard and no definitions: included by whoever gives X a meaning. */

/* clang-format off: it takes the lists of parameters for products */

/* "Initialization", "Version Management", "Error Handling" */
X(cuInit, , 2000, ANY, MUST, (unsigned flags))
X(cuDriverGetVersion, , 2020, ANY, MUST, (int *out_version))
X(cuGetErrorName, , 6000, ANY, MUST, (quay__cu_result result, const char **out_name))
X(cuGetErrorString, , 6000, ANY, MUST, (quay__cu_result result, const char **out_text))

/* "Device Management", "Peer Context Memory Access" */
X(cuDeviceGetCount, , 2000, ANY, MUST, (int *out_count))
X(cuDeviceGet, , 2000, ANY, MUST, (quay__cu_device * out_device, int ordinal))
X(cuDeviceGetName, , 2000, ANY, MUST, (char *out_name, int size, quay__cu_device device))
X(cuDeviceGetUuid, _v2, 11040, ANY, MAY, (quay__cu_uuid * out_uuid, quay__cu_device device))
X(cuDeviceTotalMem, _v2, 3020, ANY, MUST, (size_t * out_bytes, quay__cu_device device))
X(cuDeviceGetAttribute, , 2000, ANY, MUST, (int *out_value, int attribute, quay__cu_device device))
X(cuDeviceCanAccessPeer, , 4000, ANY, MUST,
  (int *out_can, quay__cu_device device, quay__cu_device peer))
X(cuCtxEnablePeerAccess, , 4000, ANY, MUST, (quay__cu_context peer, unsigned flags))

/* "Primary Context Management", "Context Management" */
X(cuDevicePrimaryCtxRetain, , 7000, ANY, MUST,
  (quay__cu_context * out_context, quay__cu_device device))
X(cuDevicePrimaryCtxRelease, _v2, 11000, ANY, MUST, (quay__cu_device device))
X(cuDevicePrimaryCtxReset, _v2, 11000, ANY, MUST, (quay__cu_device device))
X(cuCtxPushCurrent, _v2, 4000, ANY, MUST, (quay__cu_context context))
X(cuCtxPopCurrent, _v2, 4000, ANY, MUST, (quay__cu_context * out_context))
X(cuCtxSynchronize, , 2000, ANY, MUST, (void))
X(cuCtxGetId, , 12000, ANY, MAY, (quay__cu_context context, unsigned long long *out_id))

/* "Memory Management", "Unified Addressing" */
X(cuMemGetInfo, _v2, 3020, ANY, MUST, (size_t * out_free, size_t *out_total))
X(cuMemAlloc, _v2, 3020, ANY, MUST, (quay__cu_pointer * out_pointer, size_t size))
X(cuMemFree, _v2, 3020, ANY, MUST, (quay__cu_pointer pointer))
X(cuMemHostAlloc, , 2020, ANY, MUST, (void **out_pointer, size_t size, unsigned flags))
X(cuMemFreeHost, , 2000, ANY, MUST, (void *pointer))
X(cuMemHostRegister, _v2, 6050, ANY, MUST, (void *pointer, size_t size, unsigned flags))
X(cuMemHostUnregister, , 4000, ANY, MUST, (void *pointer))
X(cuMemAllocManaged, , 6000, ANY, MUST,
  (quay__cu_pointer * out_pointer, size_t size, unsigned flags))
X(cuPointerGetAttributes, , 7000, ANY, MUST,
  (unsigned count, int *attributes, void **values, quay__cu_pointer pointer))
X(cuMemcpyAsync, , 4000, LEGACY, MUST,
  (quay__cu_pointer destination, quay__cu_pointer source, size_t size, quay__cu_stream stream))
X(cuMemcpyHtoDAsync, _v2, 3020, LEGACY, MUST,
  (quay__cu_pointer destination, const void *source, size_t size, quay__cu_stream stream))
X(cuMemcpyDtoHAsync, _v2, 3020, LEGACY, MUST,
  (void *destination, quay__cu_pointer source, size_t size, quay__cu_stream stream))
X(cuMemcpyDtoDAsync, _v2, 3020, LEGACY, MUST,
  (quay__cu_pointer destination, quay__cu_pointer source, size_t size, quay__cu_stream stream))
X(cuMemcpyPeerAsync, , 4000, LEGACY, MUST,
  (quay__cu_pointer destination, quay__cu_context destination_context, quay__cu_pointer source,
   quay__cu_context source_context, size_t size, quay__cu_stream stream))
X(cuMemcpyBatchAsync, _v2, 13000, LEGACY, MAY,
  (quay__cu_pointer * destinations, quay__cu_pointer *sources, size_t *sizes, size_t count,
   quay__cu_copy_attributes *attributes, size_t *attribute_indices, size_t attribute_count,
   quay__cu_stream stream))
X(cuMemsetD8Async, , 3020, LEGACY, MUST,
  (quay__cu_pointer pointer, unsigned char value, size_t count, quay__cu_stream stream))
X(cuMemsetD16Async, , 3020, LEGACY, MUST,
  (quay__cu_pointer pointer, unsigned short value, size_t count, quay__cu_stream stream))
X(cuMemsetD32Async, , 3020, LEGACY, MUST,
  (quay__cu_pointer pointer, unsigned value, size_t count, quay__cu_stream stream))

/* "Stream Ordered Memory Allocator" */
X(cuMemAllocAsync, , 11020, LEGACY, MAY,
  (quay__cu_pointer * out_pointer, size_t size, quay__cu_stream stream))
X(cuMemFreeAsync, , 11020, LEGACY, MAY, (quay__cu_pointer pointer, quay__cu_stream stream))
X(cuDeviceGetDefaultMemPool, , 11020, ANY, MAY, (quay__cu_pool * out_pool, quay__cu_device device))
X(cuMemPoolSetAccess, , 11020, ANY, MAY,
  (quay__cu_pool pool, const quay__cu_access *accesses, size_t count))
X(cuMemPoolTrimTo, , 11020, ANY, MAY, (quay__cu_pool pool, size_t keep_bytes))

/* "Virtual Memory Management". In every driver that can be used; a device may lack it. */
X(cuMemGetAllocationGranularity, , 10020, ANY, MUST,
  (size_t * out_bytes, const quay__cu_memory_properties *properties, int option))
X(cuMemAddressReserve, , 10020, ANY, MUST,
  (quay__cu_pointer * out_pointer, size_t size, size_t alignment, quay__cu_pointer hint,
   unsigned long long flags))
X(cuMemAddressFree, , 10020, ANY, MUST, (quay__cu_pointer pointer, size_t size))
X(cuMemCreate, , 10020, ANY, MUST,
  (quay__cu_memory * out_memory, size_t size, const quay__cu_memory_properties *properties,
   unsigned long long flags))
X(cuMemRelease, , 10020, ANY, MUST, (quay__cu_memory memory))
X(cuMemMap, , 10020, ANY, MUST,
  (quay__cu_pointer pointer, size_t size, size_t offset, quay__cu_memory memory,
   unsigned long long flags))
X(cuMemUnmap, , 10020, ANY, MUST, (quay__cu_pointer pointer, size_t size))
X(cuMemSetAccess, , 10020, ANY, MUST,
  (quay__cu_pointer pointer, size_t size, const quay__cu_access *accesses, size_t count))
X(cuMemRetainAllocationHandle, , 11000, ANY, MUST, (quay__cu_memory * out_memory, void *pointer))
X(cuMemExportToShareableHandle, , 10020, ANY, MUST,
  (void *out_shareable, quay__cu_memory memory, int type, unsigned long long flags))
X(cuMemImportFromShareableHandle, , 10020, ANY, MUST,
  (quay__cu_memory * out_memory, void *shareable, int type))

/* "External Resource Interoperability": memory of other interfaces */
X(cuImportExternalMemory, , 10000, ANY, MAY,
  (quay__cu_external * out_external, const quay__cu_external_memory *memory))
X(cuExternalMemoryGetMappedBuffer, , 10000, ANY, MAY,
  (quay__cu_pointer * out_pointer, quay__cu_external external,
   const quay__cu_external_buffer *buffer))
X(cuDestroyExternalMemory, , 10000, ANY, MAY, (quay__cu_external external))
/* ... and their semaphores: timelines since 11.2 */
X(cuImportExternalSemaphore, , 10000, ANY, MAY,
  (quay__cu_semaphore * out_semaphore, const quay__cu_external_semaphore *semaphore))
X(cuSignalExternalSemaphoresAsync, , 10000, LEGACY, MAY,
  (const quay__cu_semaphore *semaphores, const quay__cu_semaphore_value *values, unsigned count,
   quay__cu_stream stream))
X(cuWaitExternalSemaphoresAsync, , 10000, LEGACY, MAY,
  (const quay__cu_semaphore *semaphores, const quay__cu_semaphore_value *values, unsigned count,
   quay__cu_stream stream))
X(cuDestroyExternalSemaphore, , 10000, ANY, MAY, (quay__cu_semaphore semaphore))

/* "Memory Management": memory of other processes, the older way */
X(cuIpcGetMemHandle, , 4010, ANY, MUST,
  (quay__cu_ipc_memory * out_handle, quay__cu_pointer pointer))
X(cuIpcOpenMemHandle, _v2, 11000, ANY, MUST,
  (quay__cu_pointer * out_pointer, quay__cu_ipc_memory handle, unsigned flags))
X(cuIpcCloseMemHandle, , 4010, ANY, MUST, (quay__cu_pointer pointer))

/* "Stream Management" */
X(cuStreamCreateWithPriority, , 5050, ANY, MUST,
  (quay__cu_stream * out_stream, unsigned flags, int priority))
X(cuStreamDestroy, _v2, 4000, ANY, MUST, (quay__cu_stream stream))
X(cuStreamSynchronize, , 2000, LEGACY, MUST, (quay__cu_stream stream))
X(cuStreamWaitEvent, , 3020, LEGACY, MUST,
  (quay__cu_stream stream, quay__cu_event event, unsigned flags))
X(cuStreamGetCtx, , 9020, LEGACY, MUST, (quay__cu_stream stream, quay__cu_context *out_context))
X(cuStreamIsCapturing, , 10000, LEGACY, MUST, (quay__cu_stream stream, int *out_status))
X(cuThreadExchangeStreamCaptureMode, , 10010, ANY, MUST, (int *inout_mode))

/* "Event Management" */
X(cuEventCreate, , 2000, ANY, MUST, (quay__cu_event * out_event, unsigned flags))
X(cuEventRecord, , 2000, LEGACY, MUST, (quay__cu_event event, quay__cu_stream stream))
X(cuEventQuery, , 2000, ANY, MUST, (quay__cu_event event))
X(cuEventSynchronize, , 2000, ANY, MUST, (quay__cu_event event))
X(cuEventDestroy, _v2, 4000, ANY, MUST, (quay__cu_event event))

/* clang-format on */
