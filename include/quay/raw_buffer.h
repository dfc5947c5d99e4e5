/* Raw buffers: one piece of memory of one kind, as a move-only value.
 *
 * A raw buffer is a tagged union of the handles that the kinds of memory need, with its size and
 * its owner, the allocator that it goes back to. It has no shape, no element type and no
 * reference count: most programs use quay_buffer (buffer.h), which holds one.
 *
 * Move-only by convention: assigning the structure moves it, and the source must then be zeroed
 * (quay_raw_buffer_move() does both). A zeroed raw buffer holds nothing; freeing it is a no-op, so
 * freeing twice through the same variable is harmless. Freeing two copies is undefined: with a
 * track layer in the owner the second free is refused and logged, adopted memory's too; without one
 * nobody notices.
 *
 * Thread-safety of all functions here: the structure and the bytes are the caller's to
 * synchronise; different raw buffers of one allocator may be used from different threads at once.
 */
#ifndef QUAY_RAW_BUFFER_H
#define QUAY_RAW_BUFFER_H

#include <quay/base.h>
#include <quay/status.h>

typedef struct quay_allocator quay_allocator;

/* What a copy route depends on. */
typedef enum quay_memory_kind {
  QUAY_MEMORY_NONE = 0,
  QUAY_MEMORY_PAGEABLE = 1, /* ordinary host memory */
  QUAY_MEMORY_FILE = 2,     /* a mapping of a file */
  QUAY_MEMORY_PINNED = 3,   /* page-locked host memory that a device can read by DMA */
  QUAY_MEMORY_MANAGED = 4,  /* migrates between host and device on access */
  QUAY_MEMORY_DEVICE = 5,   /* memory of the device */
} quay_memory_kind;

/* How memory will be used, for the operating system. Never changes contents. */
typedef enum quay_advice {
  QUAY_ADVICE_NORMAL = 0,
  QUAY_ADVICE_SEQUENTIAL = 1, /* will be read in order: read ahead further */
  QUAY_ADVICE_RANDOM = 2,     /* do not read ahead */
  QUAY_ADVICE_WILL_NEED = 3,  /* begin to read now */
  QUAY_ADVICE_DONT_NEED = 4,  /* will not be read soon; contents stay as they are */
  QUAY_ADVICE_HUGE_PAGES = 5,
} quay_advice;

/* Which arm of the union is in use: whose code reads it. */
typedef enum quay_raw_arm {
  QUAY_RAW_NONE = 0,
  QUAY_RAW_CPU = 1,
  QUAY_RAW_MMAP = 2,
  QUAY_RAW_CUDA = 3,
  QUAY_RAW_VULKAN = 4,
  QUAY_RAW_EXTERNAL = 5,
} quay_raw_arm;

/* Bits of quay_raw_buffer.flags. Bits 14 to 31 are the library's: the track layer keeps in them
 * which allocation a raw buffer is of. */
typedef enum quay_raw_flags {
  QUAY_RAW_ADOPTED = 1u << 0,   /* made by somebody else; freed by its callback alone */
  QUAY_RAW_READ_ONLY = 1u << 1, /* writes are refused: a read-only mapping */
  QUAY_RAW_ZEROED = 1u << 2,    /* set by alloc: all bytes were zero when it was handed out */
  QUAY_RAW_MIRRORED = 1u << 3,  /* device memory with a pinned host twin */
} quay_raw_flags;

/* The arms. All handles are plain integers, so that a backend that is built out changes no layout.
 * Each is 48 bytes, reserved ones included, and read by its backend's folder alone. */
typedef struct quay_raw_cpu {
  uint64_t pointer;  /* address of the first byte, as a void * */
  uint64_t base;     /* where the block itself begins; 0 for an adopted one */
  uint64_t capacity; /* bytes of the block from `base`; what the system gave */
  uint64_t flags;    /* the backend's */
  uint64_t reserved[2];
} quay_raw_cpu;

typedef struct quay_raw_mmap {
  uint64_t pointer;     /* address of the first byte, as a void * */
  uint64_t mapping;     /* the counted mapping that it lies in */
  uint64_t file_offset; /* of the first byte, in bytes from the start of the file */
  uint64_t flags;       /* the backend's: the mode of the mapping */
  uint64_t reserved[2];
} quay_raw_mmap;

typedef struct quay_raw_cuda {
  uint64_t pointer;      /* CUdeviceptr, for every kind of CUDA memory */
  uint64_t host_pointer; /* pinned and managed: the host's address; mirrored: that of the twin */
  uint64_t handle;       /* the backend's record of what it took from the driver; 0: of nothing */
  int32_t device;        /* CUdevice ordinal */
  uint32_t flags;        /* the backend's: how it was allocated */
  uint64_t stream;       /* stream-ordered memory: where it was allocated */
  uint64_t reserved;
} quay_raw_cuda;

typedef struct quay_raw_vulkan {
  uint64_t buffer;       /* VkBuffer */
  uint64_t memory;       /* VkDeviceMemory */
  uint64_t offset;       /* of the buffer in the memory, in bytes */
  uint64_t host_pointer; /* host-visible memory, mapped */
  uint64_t block;        /* the backend's block that it is carved from; 0 if it has its own */
  uint32_t flags;        /* the backend's */
  uint32_t memory_type;  /* index into VkPhysicalDeviceMemoryProperties */
} quay_raw_vulkan;

typedef struct quay_raw_external {
  uint64_t handle[6]; /* a third party's own */
} quay_raw_external;

typedef struct quay_raw_buffer {
  uint32_t arm;          /* quay_raw_arm */
  uint32_t flags;        /* quay_raw_flags */
  uint64_t size;         /* in bytes, as asked for; may be 0 */
  quay_allocator *owner; /* the outermost allocator; not retained */
  uint64_t cookie;       /* of whoever carved or adopted the memory: a pool's block, a callback */
  union {
    quay_raw_cpu cpu;
    quay_raw_mmap mmap;
    quay_raw_cuda cuda;
    quay_raw_vulkan vulkan;
    quay_raw_external external;
  } as;
} quay_raw_buffer;

/* Called when adopted memory is freed, once, from the thread that frees it, after all recorded
 * device work on it is done. `memory` is the host or device address that was adopted, `size` its
 * bytes. Must not throw. */
typedef void (*quay_release_callback)(void *user, void *memory, uint64_t size);

/* Host memory as it is handed in and out: an address, a size and how it goes back. */
typedef struct quay_host_memory {
  void *pointer;
  uint64_t size;                 /* bytes */
  quay_release_callback release; /* NULL: nobody is told; the memory must outlive its use */
  void *user;                    /* handed to `release` */
} quay_host_memory;

QUAY_BEGIN_DECLS

/* Frees the memory: hands it to its owner, whose layers each undo their part, and zeroes `raw`. A
 * zeroed one is a no-op. Adopted memory is not freed but its callback called. A problem (the owner
 * was destroyed before) is reported through the log callback.
 * Thread-safety: see above; the owner may be used by other threads at the same time. */
QUAY_API void quay_raw_buffer_free(quay_raw_buffer *raw);

/* Moves: returns the value of `*raw` and zeroes it.
 * Thread-safety: see above. */
QUAY_API quay_raw_buffer quay_raw_buffer_move(quay_raw_buffer *raw);

/* Size in bytes as asked for; 0 for a zeroed one or NULL.
 * Thread-safety: see above. */
QUAY_API uint64_t quay_raw_buffer_size(const quay_raw_buffer *raw);

/* Kind of memory; QUAY_MEMORY_NONE for a zeroed one or NULL.
 * Thread-safety: see above. */
QUAY_API quay_memory_kind quay_raw_buffer_kind(const quay_raw_buffer *raw);

/* Whether the CPU may read it through a pointer (quay_raw_buffer_host_pointer()).
 * Thread-safety: see above. */
QUAY_API bool quay_raw_buffer_host_accessible(const quay_raw_buffer *raw);

/* The host's address of the first byte. Never NULL, for a size of 0 too. Waits for nothing.
 * Errors: INVALID_ARGUMENT (NULL), NOT_ALLOCATED (a zeroed one), NOT_HOST_ACCESSIBLE,
 * DEVICE_LOST. Not found is that the device was reset since: a raw buffer knows no generation.
 * Thread-safety: see above. */
QUAY_API QUAY_NODISCARD quay_status quay_raw_buffer_host_pointer(const quay_raw_buffer *raw,
                                                                 void **out_pointer);

/* The address of the first byte in its own device's address space (a CUdeviceptr, a host address).
 * Errors: INVALID_ARGUMENT (NULL), NOT_ALLOCATED, UNSUPPORTED where memory has no address,
 * DEVICE_LOST. Not found is that the device was reset since: a raw buffer knows no generation.
 * Thread-safety: see above. */
QUAY_API QUAY_NODISCARD quay_status quay_raw_buffer_address(const quay_raw_buffer *raw,
                                                            uint64_t *out_address);

/* Adopts host memory that somebody else made: `out_raw` describes it, nothing is copied.
 * `allocator` (NULL: the default) must make host memory whose kind is pageable, in any layers; it
 * becomes the owner, must outlive the raw buffer, and does not count the memory in its statistics.
 * On error nothing is taken over: `memory` is still the caller's.
 * Errors: INVALID_ARGUMENT (NULL,
 * or a NULL pointer with a size above 0, or a range that wraps around the address space);
 * UNSUPPORTED (the allocator's memory is not pageable host memory); OUT_OF_HOST_MEMORY.
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_raw_buffer_adopt_host(quay_allocator *allocator,
                                                               const quay_host_memory *memory,
                                                               quay_raw_buffer *out_raw);

/* Takes host memory out of Quay's hands: `out_memory` holds the address, the size and how to free
 * it (call `release(user, pointer, size)` when done with it, if it is not NULL), and `raw` is
 * zeroed. Memory that was adopted comes back as it was handed in. Every layer of the owner forgets
 * the memory.
 * Errors: INVALID_ARGUMENT (NULL), NOT_ALLOCATED (a zeroed one), UNSUPPORTED (memory of another
 * kind, or carved out of a block by a layer such as pool or guard). On error nothing changes.
 * Thread-safety: see above. */
QUAY_API QUAY_NODISCARD quay_status quay_raw_buffer_release_host(quay_raw_buffer *raw,
                                                                 quay_host_memory *out_memory);

QUAY_END_DECLS

#endif
