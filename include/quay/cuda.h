/* What only CUDA memory has: pointers of the driver handed in and out, mirrors, streams and devices
 * by the driver's own handles. All handles are plain integers, and nothing of CUDA is needed to
 * compile: a CUdeviceptr is passed as it is, a CUstream as (uint64_t)(uintptr_t)stream.
 *
 * Where the backend is not built in, every function here that can fail answers UNAVAILABLE. So do,
 * with CUDA memory of every kind, all calls in the child of a fork of a process that had started
 * the driver, and at exit once the driver ends: host access to pinned and managed memory and to
 * twins among them, since nothing may be mapped there any more. Pointers that were taken before
 * must not be used then. Releases are logged, and free nothing.
 *
 * Once another library has reset the device (cudaDeviceReset()), whether it goes on with a context
 * made anew or not, calls answer STALE until quay_device_reset(), which begins a new generation.
 * Drivers before 12.0 do not tell, and may crash where a stream of the old context is used. */
#ifndef QUAY_CUDA_H
#define QUAY_CUDA_H

#include <quay/allocator.h>
#include <quay/base.h>
#include <quay/buffer.h>
#include <quay/device.h>
#include <quay/raw_buffer.h>
#include <quay/status.h>
#include <quay/stream.h>

/* Memory as it leaves Quay. */
typedef struct quay_cuda_memory {
  uint64_t pointer; /* CUdeviceptr */
  uint64_t size;    /* bytes */
} quay_cuda_memory;

/* Device memory on its way to another process. Plain data: the structure can be sent as it is, but
 * for `file`, which is this process's number of a descriptor. */
typedef struct quay_cuda_shared {
  int32_t file;         /* file descriptor of the whole memory; goes by SCM_RIGHTS */
  uint32_t reserved;    /* 0 */
  uint64_t size;        /* bytes of the window */
  uint64_t offset;      /* of the window's first byte in the memory, in bytes */
  uint64_t memory_size; /* bytes of the whole memory */
  uint8_t device_uuid[16];
} quay_cuda_shared;

#define QUAY_CUDA_IPC_HANDLE_SIZE 64 /* bytes */

/* The same by the driver's older handles. Plain data throughout. */
typedef struct quay_cuda_ipc {
  uint8_t handle[QUAY_CUDA_IPC_HANDLE_SIZE]; /* CUipcMemHandle */
  uint64_t size;                             /* bytes of the window */
  uint64_t offset;      /* of the window's first byte in the memory, in bytes */
  uint64_t memory_size; /* bytes of the whole memory */
  uint8_t device_uuid[16];
} quay_cuda_ipc;

QUAY_BEGIN_DECLS

/* Memory. */

/* Adopts memory that the program allocated through the driver or the CUDA runtime, without a copy.
 * `pointer` may lie inside an allocation. It must be memory of the allocator's device and kind
 * (pinned memory: of any device), which the driver is asked about. `allocator` (layers around it
 * are fine; NULL: the default one) becomes the owner, must outlive the raw buffer and does not
 * count the memory. `release` (may be NULL) is called once when it is freed, after all recorded
 * work on it is done, with the pointer as its `memory`. On error nothing is taken over.
 * Errors: INVALID_ARGUMENT (NULL, a pointer of 0 with a size above 0, a range that wraps around,
 * memory of another device or kind or that the driver does not know; of 0 bytes anything goes);
 * OUT_OF_RANGE (it reaches out of its allocation); UNSUPPORTED (the allocator is no CUDA one);
 * OUT_OF_HOST_MEMORY; DEVICE_LOST.
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_cuda_adopt(quay_allocator *allocator, uint64_t pointer,
                                                    uint64_t size, quay_release_callback release,
                                                    void *user, quay_raw_buffer *out_raw);

/* Takes the memory out of Quay's hands, without a copy: `raw` is zeroed, every layer forgets it.
 * The program frees it: cuMemFree() for device and managed memory, cuMemFreeHost() for pinned
 * memory. Adopted memory comes back as it was handed in, and its callback is not called.
 * Errors: INVALID_ARGUMENT (NULL); NOT_ALLOCATED; UNSUPPORTED (no CUDA memory, carved by a layer,
 * with a mirror, exportable or imported, or aligned to more than 256 bytes where the driver's own
 * block begins below it). On error nothing changes.
 * Thread-safety: the raw buffer is the caller's
 * to synchronise. */
QUAY_API QUAY_NODISCARD quay_status quay_cuda_release(quay_raw_buffer *raw,
                                                      quay_cuda_memory *out_memory);

/* The CUdeviceptr of the window's first byte: what a kernel takes. Waits for nothing.
 * Errors: INVALID_ARGUMENT (NULL); NOT_ALLOCATED; UNSUPPORTED (no CUDA memory); STALE; DEVICE_LOST.
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_cuda_pointer(const quay_buffer *buffer,
                                                      uint64_t *out_pointer);

/* Memory of several processes. */

/* Describes the window of a buffer whose memory was allocated with quay_alloc_options.exportable,
 * for another process on the same machine. Waits until all recorded work on the window is done;
 * what is submitted later, here or there, the two processes have to order between themselves.
 *
 * `out_shared->file` is a new descriptor at each call. It is the caller's, who closes it once it
 * has been sent, and stands for all of the memory that the window is in: whoever gets it can read
 * and write that. Everything else is data. The memory lives until the last process that has it
 * mapped, or has a descriptor of it, is done with it, whether or not the exporter lives.
 * Errors: INVALID_ARGUMENT (NULL); NOT_ALLOCATED; UNSUPPORTED (memory that is not exportable device
 * memory, imported memory among it); UNAVAILABLE (no descriptor can be had); STALE; DEVICE_LOST. On
 * error `file` is -1.
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_cuda_export(quay_buffer *buffer,
                                                     quay_cuda_shared *out_shared);

/* Maps memory that another process exported, `shared->file` being the descriptor as it was received
 * here. It stays the caller's and can be closed on return, whatever that is. `allocator` (layers
 * around it are fine; NULL: the default one) is one of device memory of the same device, becomes
 * the owner, must outlive the raw buffer, and does not count the memory. Freeing the raw buffer
 * unmaps the memory, after all work on it that is recorded in this process is done.
 * quay_buffer_from_raw() makes a buffer of it. On error nothing is taken over.
 * Errors: INVALID_ARGUMENT (NULL; a device with another UUID; `file` is not open, or nothing that
 * the driver takes for exported memory of `memory_size` bytes); OUT_OF_RANGE (the window reaches
 * out of the memory); UNSUPPORTED (the allocator has no CUDA device memory, or the device can't);
 * OUT_OF_DEVICE_MEMORY (no addresses are left); OUT_OF_HOST_MEMORY; DEVICE_LOST.
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_cuda_import(quay_allocator *allocator,
                                                     const quay_cuda_shared *shared,
                                                     quay_raw_buffer *out_raw);

/* The same for memory that was not allocated to be exported, by the driver's older handles
 * (cuIpcGetMemHandle): plain device memory alone, adopted memory from cuMemAlloc() included. Their
 * limits are the driver's: the memory must stay allocated until every importer has freed it, what
 * happens else is undefined; the exporting process itself can't import it; and since the driver
 * carves small allocations out of larger blocks, the importer may reach neighbours of the memory.
 * Prefer exportable memory. Waits as quay_cuda_export() does.
 * Errors: INVALID_ARGUMENT (NULL); NOT_ALLOCATED; UNSUPPORTED (no plain device memory: pinned,
 * managed, stream-ordered, exportable or imported, or adopted and of 0 bytes; or a system without
 * such handles); STALE;
 * DEVICE_LOST.
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_cuda_ipc_export(quay_buffer *buffer,
                                                         quay_cuda_ipc *out_ipc);

/* Opens such a handle in another process; else as quay_cuda_import().
 * Errors: INVALID_ARGUMENT (NULL; a device with another UUID; a handle that is none, or of this
 * very process); OUT_OF_RANGE (the window reaches out of the memory, or that is said to be larger
 * than what the handle is of); UNSUPPORTED (the allocator has no CUDA device memory);
 * OUT_OF_HOST_MEMORY; DEVICE_LOST; others that the driver gives.
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_cuda_ipc_import(quay_allocator *allocator,
                                                         const quay_cuda_ipc *ipc,
                                                         quay_raw_buffer *out_raw);

/* Mirrors: device memory that was allocated with quay_alloc_options.mirror has a twin in pinned
 * host memory. Device and twin are two memories; only these calls move bytes from one to the other.
 * Windows are mirrored by the same window of the twin.
 * Errors of all: INVALID_ARGUMENT (NULL); NOT_ALLOCATED; UNSUPPORTED (no CUDA memory, or without a
 * mirror); STALE; DEVICE_LOST. */

/* The twin's address of the window's first byte. It stays valid as long as the storage lives; its
 * bytes are undefined until they are written or invalidated.
 * Thread-safety: any thread; the twin's bytes are the caller's to synchronise. */
QUAY_API QUAY_NODISCARD quay_status quay_cuda_mirror_pointer(const quay_buffer *buffer,
                                                             void **out_pointer);

/* Copies the twin's window to the device: what the host wrote is there on return.
 * Further errors: READ_ONLY (a sealed storage).
 * Thread-safety: any thread; the twin's bytes are the caller's to synchronise. */
QUAY_API QUAY_NODISCARD quay_status quay_cuda_mirror_flush(quay_buffer *buffer);

/* Copies the device's window to the twin, after the recorded writes to it.
 * Thread-safety: any thread; the twin's bytes are the caller's to synchronise. */
QUAY_API QUAY_NODISCARD quay_status quay_cuda_mirror_invalidate(const quay_buffer *buffer);

/* Writes host memory to the twin's window and flushes it; invalidates the window and reads it from
 * the twin. `size` must be the window's.
 * Further errors: SIZE_MISMATCH, which moves nothing; READ_ONLY (upload to a sealed storage).
 * Thread-safety: any thread; the twin's bytes are the caller's to synchronise. */
QUAY_API QUAY_NODISCARD quay_status quay_cuda_mirror_upload(quay_buffer *buffer, const void *source,
                                                            uint64_t size);
QUAY_API QUAY_NODISCARD quay_status quay_cuda_mirror_download(const quay_buffer *buffer,
                                                              void *destination, uint64_t size);

/* Devices. */

/* The device cuda:`index`, opened at first need. The reference is the caller's to release.
 * Errors: INVALID_ARGUMENT (NULL); UNAVAILABLE (no driver, no such device; the message says why).
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_cuda_device(uint32_t index, quay_device **out_device);

/* The driver's UUID of the device, 16 bytes; zeros where an old driver does not tell.
 * Errors: INVALID_ARGUMENT (NULL, or no CUDA device).
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_cuda_device_uuid(const quay_device *device,
                                                          uint8_t out_uuid[16]);

/* Asks the driver whether the device still works, which quay_device_health() does not: a fault of a
 * kernel that nobody has waited for yet is found, once the kernel has run into it. Waits for no
 * work. A lost device is QUAY_HEALTH_LOST and no error of this call; quay_last_error() is left
 * alone.
 * Errors: INVALID_ARGUMENT (NULL, or no CUDA device); UNAVAILABLE (after a fork).
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_cuda_health(quay_device *device, quay_health *out_health);

/* Streams. A stream that captures a graph takes no copies, accesses, allocations and events of
 * Quay's, which answer UNSUPPORTED and leave the capture as it is; quay_access_begin_untracked()
 * gives the pointers that the graph is made of. Other calls do the capture no harm, whichever
 * thread makes them, but for those that the driver forbids meanwhile: waiting for the whole device,
 * and its reset.
 */

/* quay_stream_wrap() on the device cuda:`index`. `stream` is a CUstream of its primary context (the
 * one that the CUDA runtime uses); 0 or 1 is the legacy default stream, 2 the calling thread's
 * default stream, whose wrapper is refused in every other thread.
 * Errors: those of quay_cuda_device() and quay_stream_wrap().
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_cuda_stream_wrap(uint32_t index, uint64_t stream,
                                                          quay_stream **out_stream);

/* The CUstream of a stream, as an integer: what a kernel launch takes. For the wrapper of a
 * thread's default stream that is 2, where quay_stream_native() gives a number of Quay's own. 0 for
 * NULL and for a stream of another backend.
 * Thread-safety: any thread; never changes. */
QUAY_API uint64_t quay_cuda_stream(const quay_stream *stream);

QUAY_END_DECLS

#endif
