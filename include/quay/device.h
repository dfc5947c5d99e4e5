/* Devices: the host, "cuda:0", "vulkan:1". A device owns streams, a health state and a generation.
 *
 * A device object is reference-counted and shared: opening "cuda:0" twice gives allocators on one
 * quay_device. Allocators, streams and storages hold references of their own. */
#ifndef QUAY_DEVICE_H
#define QUAY_DEVICE_H

#include <quay/base.h>
#include <quay/status.h>

typedef struct quay_device quay_device;

/* The numbers of DLDeviceType in DLPack (dlpack.h, version 1.0), so that they can be exchanged
 * without a table. */
typedef enum quay_device_type_id {
  QUAY_DEVICE_CPU = 1,       /* kDLCPU */
  QUAY_DEVICE_CUDA = 2,      /* kDLCUDA */
  QUAY_DEVICE_VULKAN = 7,    /* kDLVulkan */
  QUAY_DEVICE_EXTERNAL = 12, /* kDLExtDev: a third party's */
} quay_device_type_id;

typedef enum quay_health {
  QUAY_HEALTH_OK = 0,
  /* A sticky error was seen: every call fails with the first message, memory is stale. */
  QUAY_HEALTH_LOST = 1,
} quay_health;

/* Bytes of the device's memory as its driver or operating system tells them. */
typedef struct quay_memory_info {
  uint64_t total_bytes;
  uint64_t free_bytes; /* what could be allocated just now, at best */
} quay_memory_info;

/* One line of quay_devices(): a device that can be opened, or a backend's reason for having none.
 */
typedef struct quay_device_info {
  const char *backend; /* name of the backend: "cpu", "cuda" */
  const char *spec;    /* what quay_allocator_open() takes: "cuda:0" */
  const char *name;    /* the product's name: "NVIDIA H200"; "" where unknown */
  bool available;      /* can be opened now */
  const char *reason;  /* why it can't; "" if it can */
  quay_device_type_id type;
  int32_t index;           /* among the backend's devices; 0 for the host */
  quay_memory_info memory; /* zeros where unknown */
} quay_device_info;

typedef struct quay_device_list {
  quay_device_info *devices;
  size_t count;
} quay_device_list;

QUAY_BEGIN_DECLS

/* The host's device, which the cpu and mmap backends use. Never NULL; the reference is the
 * caller's to release. All calls give the same device.
 * Thread-safety: any thread. */
QUAY_API quay_device *quay_device_host(void);

/* Takes one more reference and returns `device`. NULL gives NULL.
 * Thread-safety: any thread. */
QUAY_API quay_device *quay_device_retain(quay_device *device);

/* Gives one reference back. NULL is a no-op.
 * Thread-safety: any thread. */
QUAY_API void quay_device_release(quay_device *device);

/* QUAY_DEVICE_CPU ... of `device`.
 * Thread-safety: any thread; never changes. */
QUAY_API quay_device_type_id quay_device_type(const quay_device *device);

/* Index among the devices of its backend; 0 for the host.
 * Thread-safety: any thread; never changes. */
QUAY_API int32_t quay_device_index(const quay_device *device);

/* "host", "cuda:0" ...; lives as long as the device.
 * Thread-safety: any thread; never changes. */
QUAY_API const char *quay_device_name(const quay_device *device);

/* How often the device was reset or lost since the process began, plus one. Memory remembers the
 * generation that it was allocated in and is stale once this number is another.
 * Thread-safety: any thread. */
QUAY_API uint64_t quay_device_generation(const quay_device *device);

/* Healthy or lost. Asks nothing of the driver: it tells what calls have seen so far.
 * Thread-safety: any thread. */
QUAY_API quay_health quay_device_health(const quay_device *device);

/* Resets the device, lost or healthy, where its backend can: a new generation begins, health is OK,
 * and all memory, events and accesses of before are stale. Buffers answer STALE from then on and
 * are released as ever. On a healthy device this destroys what other libraries have there, too.
 * Waits for copies of Vulkan's memory that CUDA does for Vulkan.
 * Errors: INVALID_ARGUMENT (NULL); BUSY while streams of the device are alive or accesses open:
 * release them first (buffers may stay), and inside a callback of such a copy; UNSUPPORTED (the
 * host; a backend without it); those of the backend, which leave everything as it was.
 * Thread-safety: any thread; no other call that concerns the device may be under way. */
QUAY_API QUAY_NODISCARD quay_status quay_device_reset(quay_device *device);

/* Memory of the device, in bytes.
 * Errors: INVALID_ARGUMENT (a NULL); UNSUPPORTED if its backend does not tell; DEVICE_LOST.
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_device_memory_info(quay_device *device,
                                                            quay_memory_info *out_info);

/* Every device that can be opened, and for each backend that has none a line with the reason. In
 * the order: cpu, mmap, cuda, vulkan, then third parties' by time of registration. The caller
 * frees the list with quay_device_list_free().
 * Errors: INVALID_ARGUMENT (NULL); OUT_OF_HOST_MEMORY.
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_devices(quay_device_list *out_list);

/* Frees what quay_devices() filled in and zeroes the list; a zeroed list is a no-op.
 * Thread-safety: the list is the caller's to synchronise. */
QUAY_API void quay_device_list_free(quay_device_list *list);

QUAY_END_DECLS

#endif
