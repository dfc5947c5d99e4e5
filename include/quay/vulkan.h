/* What only Vulkan memory has: buffers and memory handed in and out, bindings, limits, devices and
 * queues of the program's own. All handles are plain integers, and nothing of Vulkan is needed to
 * compile: a handle is passed as (uint64_t)(uintptr_t)handle.
 *
 * Where the backend is not built in, every function here that can fail answers UNAVAILABLE. */
#ifndef QUAY_VULKAN_H
#define QUAY_VULKAN_H

#include <quay/allocator.h>
#include <quay/base.h>
#include <quay/buffer.h>
#include <quay/device.h>
#include <quay/raw_buffer.h>
#include <quay/status.h>
#include <quay/stream.h>

/* The kinds of memory that an allocator can be of: the argument "memory" of a spec. */
typedef enum quay_vulkan_memory_kind {
  /* "device", the default: memory of the device's own (DEVICE_LOCAL). Of kind QUAY_MEMORY_DEVICE,
   * also where the processor could reach it. */
  QUAY_VULKAN_DEVICE = 0,
  /* "host": host memory that the device reads (HOST_VISIBLE, HOST_COHERENT), often not cached: to
   * be written by the processor in order, and slow to be read by it. Of kind QUAY_MEMORY_PINNED. */
  QUAY_VULKAN_HOST = 1,
  /* "cached": the same, cached by the processor (HOST_CACHED): to be read by it. Unsupported where
   * no such memory is coherent. Of kind QUAY_MEMORY_PINNED. */
  QUAY_VULKAN_CACHED = 2,
} quay_vulkan_memory_kind;

#define QUAY_VULKAN_MEMORY_KINDS 3

/* A piece of memory as Vulkan knows it. */
typedef struct quay_vulkan_memory {
  uint64_t buffer;       /* VkBuffer, bound to its memory from the memory's first byte on */
  uint64_t memory;       /* VkDeviceMemory; 0 where it is not known (adopted without) */
  uint64_t offset;       /* of the first byte in the buffer, in bytes */
  uint64_t size;         /* bytes */
  uint64_t host_pointer; /* where the first byte is mapped; 0 if it is not */
} quay_vulkan_memory;

/* Handles of a device, for a program that works on Quay's. */
typedef struct quay_vulkan_handles {
  uint64_t instance;               /* VkInstance */
  uint64_t physical_device;        /* VkPhysicalDevice */
  uint64_t device;                 /* VkDevice */
  uint32_t queue_family;           /* of the queues that streams are on */
  uint64_t get_instance_proc_addr; /* PFN_vkGetInstanceProcAddr */
} quay_vulkan_handles;

/* Limits of a device that concern memory. Bytes, but for the count. */
typedef struct quay_vulkan_limits {
  uint64_t max_storage_buffer_range;            /* one binding */
  uint64_t min_storage_buffer_offset_alignment; /* of one binding */
  uint64_t max_buffer_size;                     /* UINT64_MAX where the device does not tell */
  uint64_t max_memory_allocation_size;
  uint64_t max_memory_allocation_count; /* of VkDeviceMemory objects */
  uint64_t non_coherent_atom_size;
} quay_vulkan_limits;

/* A queue of the program's own. Vulkan wants that one thread at a time uses a queue: where other
 * code than Quay uses it, `lock` and `unlock` are called around each use of Quay's, from any
 * thread; they may not call Quay. Both or neither. */
typedef struct quay_vulkan_queue {
  uint64_t queue; /* VkQueue, of `queue_family` */
  void (*lock)(void *user);
  void (*unlock)(void *user);
  void *user;
} quay_vulkan_queue;

/* A device of the program's own. */
typedef struct quay_vulkan_device_desc {
  uint64_t get_instance_proc_addr; /* PFN_vkGetInstanceProcAddr */
  uint64_t instance;               /* VkInstance of Vulkan 1.2 or newer */
  uint64_t physical_device;        /* VkPhysicalDevice */
  /* VkDevice with the feature timelineSemaphore enabled. */
  uint64_t device;
  uint32_t queue_family; /* one with compute, or with graphics */
  const quay_vulkan_queue *queues;
  size_t queue_count; /* 1 to 4 */
  /* What the program has enabled, which Vulkan does not tell. */
  bool has_buffer_device_address; /* the feature bufferDeviceAddress */
  bool has_external_memory_fd;    /* the extension VK_KHR_external_memory_fd */
  bool has_external_memory_host;  /* the extension VK_EXT_external_memory_host */
  bool has_external_semaphore_fd; /* the extension VK_KHR_external_semaphore_fd */
} quay_vulkan_device_desc;

/* Memory for another interface or process. */
typedef struct quay_vulkan_export {
  int file;       /* descriptor of type OPAQUE_FD, of the whole VkDeviceMemory; the caller's */
  bool dedicated; /* importing it needs the dedicated flag */
  uint64_t memory_size; /* of the VkDeviceMemory, in bytes */
  uint64_t offset;      /* of the window in it, in bytes */
  uint64_t size;        /* of the window, in bytes */
} quay_vulkan_export;

QUAY_BEGIN_DECLS

/* Memory. */

/* Adopts a VkBuffer and the memory behind it, without a copy: `memory->size` bytes from
 * `memory->offset` on. The buffer must have been made on the allocator's VkDevice, with the usages
 * TRANSFER_SRC and TRANSFER_DST, for the queue family of quay_vulkan_get_handles() (or
 * concurrently), and be bound. `memory->memory` may be 0. For memory of kind pinned
 * `memory->host_pointer` must be there, and the memory coherent. None of that can be asked of
 * Vulkan, so none of it is checked. `allocator` (layers around it are fine; NULL: the default one)
 * becomes the owner, must outlive the raw buffer and does not count the memory. `release` (may be
 * NULL) is called once when it is freed, after all recorded work on it is done, with the VkBuffer
 * as its `memory`. On error nothing is taken over. Errors: INVALID_ARGUMENT (NULL, a buffer of 0, a
 * range that wraps around, no host pointer where one must be); UNSUPPORTED (the allocator is no
 * Vulkan one); OUT_OF_HOST_MEMORY; DEVICE_LOST. Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_vulkan_adopt(quay_allocator *allocator,
                                                      const quay_vulkan_memory *memory,
                                                      quay_release_callback release, void *user,
                                                      quay_raw_buffer *out_raw);

/* Takes the memory out of Quay's hands, without a copy: `raw` is zeroed, every layer forgets it.
 * The program ends it with vkDestroyBuffer() and vkFreeMemory() on the same VkDevice. Adopted
 * memory comes back as it was handed in, and its callback is not called.
 * Errors: INVALID_ARGUMENT (NULL); NOT_ALLOCATED; UNSUPPORTED (no Vulkan memory, carved by a layer,
 * or one of several allocations of a VkDeviceMemory: open the allocator with dedicated=on); STALE.
 * On error nothing changes.
 * Thread-safety: the raw buffer is the caller's to synchronise. */
QUAY_API QUAY_NODISCARD quay_status quay_vulkan_release(quay_raw_buffer *raw,
                                                        quay_vulkan_memory *out_memory);

/* The window as Vulkan knows it, for copies and for bindings other than storage buffers. Waits for
 * nothing.
 * Errors: INVALID_ARGUMENT (NULL); NOT_ALLOCATED; UNSUPPORTED (no Vulkan memory); STALE;
 * DEVICE_LOST.
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_vulkan_window(const quay_buffer *buffer,
                                                       quay_vulkan_memory *out_memory);

/* The same for a descriptor of a storage buffer, once it is known that the device can bind it: a
 * larger range would be bound, and read as zeros beyond the limit without an error.
 * Further errors: LIMIT_EXCEEDED (larger than maxStorageBufferRange, which the message tells);
 * MISALIGNED (the offset is no multiple of minStorageBufferOffsetAlignment).
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_vulkan_binding(const quay_buffer *buffer,
                                                        quay_vulkan_memory *out_memory);

/* Exports the memory of a buffer that was allocated with quay_alloc_options.exportable.
 * Errors: INVALID_ARGUMENT (NULL); NOT_ALLOCATED; UNSUPPORTED (no Vulkan memory, or not allocated
 * for export); STALE; DEVICE_LOST; OUT_OF_HOST_MEMORY.
 * Ownership: the descriptor is the caller's to close, or the importer's after it succeeded.
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_vulkan_export_memory(const quay_buffer *buffer,
                                                              quay_vulkan_export *out_export);

/* Devices. */

/* The device vulkan:`index`, opened at first need. The reference is the caller's to release.
 * Errors: INVALID_ARGUMENT (NULL); UNAVAILABLE (no loader, no such device; the message says why).
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_vulkan_device(uint32_t index, quay_device **out_device);

/* The UUID of the device (VkPhysicalDeviceIDProperties), 16 bytes: the same in every process and,
 * on one GPU, that of quay_cuda_device_uuid().
 * Errors: INVALID_ARGUMENT (NULL, or no Vulkan device).
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_vulkan_device_uuid(const quay_device *device,
                                                            uint8_t out_uuid[16]);

/* Handles and limits of a device. Handles are good until the device is reset.
 * Errors: INVALID_ARGUMENT (NULL, or no Vulkan device); DEVICE_LOST (handles).
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_vulkan_get_handles(quay_device *device,
                                                            quay_vulkan_handles *out_handles);
QUAY_API QUAY_NODISCARD quay_status quay_vulkan_get_limits(const quay_device *device,
                                                           quay_vulkan_limits *out_limits);

/* Makes a device around the program's VkDevice, which must outlive it. Streams are on the queues
 * given. It can't be reset: after a loss the program makes a new VkDevice and adopts that. The
 * reference is the caller's to release.
 * Errors: INVALID_ARGUMENT (NULL, a handle of 0, queues that are none, too many, or with one
 * callback of two); UNSUPPORTED (a device older than Vulkan 1.2, or without the memory that is
 * needed); UNAVAILABLE (a function is missing); OUT_OF_HOST_MEMORY; OUT_OF_DEVICE_MEMORY.
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_vulkan_device_adopt(const quay_vulkan_device_desc *desc,
                                                             quay_device **out_device);

/* Opens an allocator on a Vulkan device, the program's own or one of Quay's. The reference is the
 * caller's to release.
 * Errors: INVALID_ARGUMENT (NULL, no Vulkan device, no kind); UNSUPPORTED (the device has no memory
 * of this kind); OUT_OF_HOST_MEMORY; DEVICE_LOST.
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_vulkan_allocator(quay_device *device,
                                                          quay_vulkan_memory_kind kind,
                                                          quay_allocator **out_allocator);

/* Streams. A stream is a queue: its quay_stream_native() is the VkQueue, which other streams may be
 * on, too. What the program submits to it within an access is in order with Quay's work without
 * further barriers or semaphores. */

/* Locks the stream's queue for a use of the program's own: between the two calls no other thread
 * submits to it through Quay. Both do nothing for NULL and streams of other backends. Between them
 * the thread may not call Quay.
 * Thread-safety: any thread; the one that locked must unlock. */
QUAY_API void quay_vulkan_queue_lock(quay_stream *stream);
QUAY_API void quay_vulkan_queue_unlock(quay_stream *stream);

QUAY_END_DECLS

#endif
