/* The Vulkan backend: what its files share. The loader's functions are in driver.h, results in
 * error.h; nothing outside this folder includes any of them, but the copies of the pair CUDA and
 * Vulkan (src/interop). */
#ifndef QUAY_VULKAN_VULKAN_IMPL_H
#define QUAY_VULKAN_VULKAN_IMPL_H

#include <quay/backend.h>
#include <quay/vulkan.h>
#include <stdatomic.h>

#include "core/lock.h"
#include "vulkan/driver.h"
#include "vulkan/error.h"

enum {
  /* Devices beyond this number are not listed. */
  QUAY__VULKAN_DEVICES_MAX = 64,
  /* Queues of a device: those that streams are on, then those for copies alone. */
  QUAY__VULKAN_STREAM_QUEUES_MAX = 4,
  QUAY__VULKAN_COPY_QUEUES_MAX = 2,
  QUAY__VULKAN_QUEUES_MAX = QUAY__VULKAN_STREAM_QUEUES_MAX + QUAY__VULKAN_COPY_QUEUES_MAX,
};

/* Bytes of a slot that small copies go through, and of one for large copies. */
#define QUAY__VULKAN_SLOT_BYTES  ((uint64_t)64 << 10)
#define QUAY__VULKAN_CHUNK_BYTES ((uint64_t)4 << 20)

/* Of a buffer that is only copied from and to. */
#define QUAY__VULKAN_COPIES (VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT)

/* What every allocation is aligned to: no device may want more than 256 bytes of the offset of a
 * storage or uniform buffer (Vulkan 1.3, table "Required Limits"). */
#define QUAY__VULKAN_ALIGNMENT ((uint64_t)256)

/* What another backend of a pair keeps of a queue whose timeline it has imported. It begins with
 * these functions, which are called with no lock held. */
typedef struct quay__vulkan_link {
  /* Work of the other side that the queue waits for, and that will never be done, is let go. */
  void (*check)(struct quay__vulkan_link *link);
  /* The device is lost: what waits for it on the other side is let go. */
  void (*abandon)(struct quay__vulkan_link *link);
  /* Gives everything back; the queue is about to go, and has nothing to do. */
  void (*end)(struct quay__vulkan_link *link);
} quay__vulkan_link;

/* A queue and its timeline: a semaphore whose value counts what Quay has submitted. */
typedef struct quay__vulkan_queue {
  struct quay__vulkan_device *device;
  VkQueue handle;
  uint32_t family;
  /* The program's own, around each use of the queue; may be NULL. */
  void (*lock_callback)(void *user);
  void (*unlock_callback)(void *user);
  void *user;
  VkSemaphore timeline;
  VkCommandPool pool;        /* of the barrier */
  VkCommandBuffer barrier;   /* orders all that comes after it on the queue after all before it */
  atomic_uint_fast64_t seen; /* a value that the timeline was seen to have reached */
  _Atomic(quay__vulkan_link *) link;
  atomic_uint_fast64_t refused; /* 1 above the other device's generation that took no link */
  quay__lock lock;              /* guards the rest, and the queue itself */
  uint64_t submitted;
  struct quay__vulkan_lane *lanes; /* idle or under way, in the order of their last work */
  struct quay__vulkan_lane **lanes_end;
  uint32_t lane_count;
} quay__vulkan_queue;

/* A memory type of the device, for one value of the argument "memory". */
typedef struct quay__vulkan_type {
  bool present;
  bool cached;   /* the processor reads it at full speed */
  bool coherent; /* without flushes and invalidations */
  bool mapped;   /* blocks of it are mapped as long as they live */
  uint32_t index, heap;
  uint64_t heap_bytes;
} quay__vulkan_type;

/* A free or used range of a block. */
typedef struct quay__vulkan_span {
  struct quay__vulkan_block *block;
  uint64_t offset, size;                             /* bytes */
  struct quay__vulkan_span *previous, *next;         /* neighbours in the block */
  struct quay__vulkan_span *bin_previous, *bin_next; /* free ones of about its size */
  bool used;
} quay__vulkan_span;

enum {
  QUAY__VULKAN_BINS = 64
};

typedef void (*quay__vulkan_end_import)(void *imported);

/* One VkDeviceMemory with one VkBuffer over all of it, and what is carved from it. */
typedef struct quay__vulkan_block {
  struct quay__vulkan_block *previous, *next; /* of the device */
  struct quay__vulkan_device *device;
  quay_vulkan_memory_kind kind;
  bool shared;       /* small allocations are carved from it */
  bool exportable;   /* allocated for export */
  bool dedicated;    /* its memory is dedicated to its buffer */
  bool dead;         /* its VkDevice is gone, with memory and buffer */
  void *host_memory; /* imported: the process's, which the block is not allocated from; else NULL */
  VkDeviceMemory memory;
  VkBuffer buffer;
  uint64_t bytes;        /* of the buffer */
  uint64_t memory_bytes; /* of the memory, at least as many */
  unsigned char *host;   /* where it is mapped, or NULL */
  uint64_t address;      /* of the device, 0 if it does not tell */
  uint64_t id;           /* never used again */
  uint32_t used;         /* spans in use */
  /* Of the path for a pair with another backend, which has imported the memory there: what it
   * keeps, and how that ends before the memory does. */
  _Atomic(void *) imported;
  _Atomic(quay__vulkan_end_import) end_import;
  quay__vulkan_span *bins[QUAY__VULKAN_BINS];
  uint64_t bin_map; /* bins that are not empty */
} quay__vulkan_block;

/* One of the two parts of a lane: commands and the memory that they copy through. */
typedef struct quay__vulkan_slot {
  VkCommandBuffer commands;
  uint64_t value;               /* of the queue's timeline, when they are done */
  quay__vulkan_span *up, *down; /* host memory to write to, and to read from; NULL until needed */
} quay__vulkan_slot;

/* What one copy needs at a time. Belongs to a queue; used again when its last work is done. */
typedef struct quay__vulkan_lane {
  struct quay__vulkan_lane *next;
  quay__vulkan_queue *queue;
  VkCommandPool pool;
  quay__vulkan_slot slots[2];
  quay__vulkan_span *bounce; /* of the device's own memory; NULL until needed */
} quay__vulkan_lane;

typedef struct quay__vulkan_limits {
  uint64_t allocation_bytes;  /* maxMemoryAllocationSize */
  uint64_t buffer_bytes;      /* maxBufferSize; UINT64_MAX where the device does not tell */
  uint64_t storage_range;     /* maxStorageBufferRange */
  uint64_t storage_alignment; /* minStorageBufferOffsetAlignment */
  uint64_t atom;              /* nonCoherentAtomSize */
  uint64_t host_alignment;    /* minImportedHostPointerAlignment */
  uint32_t allocations;       /* maxMemoryAllocationCount */
} quay__vulkan_limits;

typedef struct quay__vulkan_device {
  quay_device *device;                                   /* not retained: it owns this */
  struct quay__vulkan_device *previous_live, *next_live; /* guarded by QUAY__LOCK_VULKAN */
  const quay__vulkan_instance *instance;
  quay__vulkan_instance own_instance; /* an adopted device's; else Quay's is used */
  quay__vulkan_api api;
  VkPhysicalDevice physical;
  VkDevice handle; /* NULL if it could not be opened again */
  int32_t index;
  bool adopted;              /* the program's VkDevice */
  bool has_address;          /* vkGetBufferDeviceAddress can be used */
  bool has_budget;           /* VK_EXT_memory_budget */
  bool has_export;           /* memory can be exported as a file descriptor */
  bool export_dedicated;     /* only if it is dedicated to its buffer */
  bool has_host_import;      /* host memory can be imported, for buffers to copy from and to */
  bool has_semaphore_export; /* timelines can be exported as file descriptors */
  char name[32];             /* "vulkan:0" */
  char product[VK_MAX_PHYSICAL_DEVICE_NAME_SIZE];
  uint8_t uuid[VK_UUID_SIZE];
  quay__vulkan_limits limits;
  quay__vulkan_type types[QUAY_VULKAN_MEMORY_KINDS];
  uint32_t coherent_types; /* memory types that the host sees without flushes, as bits */
  uint32_t families[2];    /* of the queues */
  uint32_t family_count;
  quay__vulkan_queue queues[QUAY__VULKAN_QUEUES_MAX];
  uint32_t queue_count, stream_queue_count;
  atomic_uint next_queue, next_copy_queue;                 /* of the next stream */
  atomic_uint allocations;                                 /* VkDeviceMemory objects */
  atomic_uint_fast64_t reserved[QUAY_VULKAN_MEMORY_KINDS]; /* bytes of blocks */

  quay__lock lock; /* guards the blocks, and their spans */
  quay__vulkan_block *blocks;
} quay__vulkan_device;

static inline quay__vulkan_device *quay__vulkan_device_of(const quay_device *device) {
  return quay_device_self(device);
}

/* One allocator. */
typedef struct quay__vulkan {
  quay__vulkan_device *device;
  quay_vulkan_memory_kind kind;
  bool dedicated; /* every allocation has a VkDeviceMemory of its own */
} quay__vulkan;

/* open.c: a VkDevice, and what it can do. */

/* What Quay needs to know of a physical device before it is opened. */
typedef struct quay__vulkan_physical {
  VkPhysicalDevice handle;
  VkPhysicalDeviceType type;
  char product[VK_MAX_PHYSICAL_DEVICE_NAME_SIZE];
  uint8_t uuid[VK_UUID_SIZE];
  uint64_t bytes;   /* of its largest heap of its own */
  char reason[160]; /* why it can't be used; "" if it can */
} quay__vulkan_physical;

void quay__vulkan_inspect(const quay__vulkan_instance *instance, VkPhysicalDevice physical,
                          quay__vulkan_physical *out_physical);
/* Opens `device->physical`: a VkDevice, its functions and queues. */
quay_status quay__vulkan_open_handle(quay__vulkan_device *device);
/* Reads what the physical device tells: limits, extensions' properties. `extensions` of an adopted
 * device are what the program says; NULL of Quay's own: all that it wants are enabled. */
quay_status quay__vulkan_describe(quay__vulkan_device *device);
/* Chooses memory types, once the VkDevice is there. */
quay_status quay__vulkan_choose_types(quay__vulkan_device *device);
/* Makes the timelines of the device's queues; on error nothing is left. */
quay_status quay__vulkan_queues_begin(quay__vulkan_device *device);
/* How every buffer of the backend is made. */
VkBufferUsageFlags quay__vulkan_usage(const quay__vulkan_device *device);

/* list.c: the devices of this machine. */
quay_status quay__vulkan_list(const quay__vulkan_instance *instance, VkPhysicalDevice *out_list,
                              uint32_t *out_count);
/* The device of an index, made at first need and kept: one reference of the caller's. */
quay_status quay__vulkan_device_get(uint64_t index, quay_device **out_device);
/* The index of the device with this UUID; and of the one that is taken where none is named. */
quay_status quay__vulkan_find_uuid(const uint8_t uuid[VK_UUID_SIZE], uint64_t *out_index);
quay_status quay__vulkan_find_default(uint64_t *out_index);
quay_status quay__vulkan_device_info(void *user, size_t index, quay_device_info *out_info,
                                     bool *out_more);

/* device.c */

/* A device of Quay's, opened; called with QUAY__LOCK_VULKAN held. */
quay_status quay__vulkan_device_make(const quay__vulkan_instance *instance,
                                     VkPhysicalDevice physical, uint64_t index,
                                     quay_device **out_device);
/* Around the program's VkDevice. */
quay_status quay__vulkan_device_wrap(const quay_vulkan_device_desc *desc, quay_device **out_device);
/* No host memory of any device is touched from now on. `alone`: no other thread is there, and locks
 * may be in any state. */
void quay__vulkan_devices_close(bool alone);
/* Whether it is a device of this backend; false for NULL. */
bool quay__vulkan_is(const quay_device *device);
/* Devices of Quay's instance that have not been destroyed. Guarded by QUAY__LOCK_VULKAN. */
extern uint32_t quay__vulkan_live_devices;

/* queue.c */

/* What an event stands for. */
typedef struct quay__vulkan_point {
  quay__vulkan_queue *queue;
  uint64_t value;
} quay__vulkan_point;

/* What a submission waits for. */
typedef struct quay__vulkan_signal {
  VkSemaphore semaphore;
  uint64_t value;
} quay__vulkan_signal;

quay_status quay__vulkan_queue_begin(quay__vulkan_queue *queue);
/* A timeline, for export where the device can. */
VkResult quay__vulkan_timeline(quay__vulkan_device *device, VkSemaphore *out_timeline);
/* Lets go what waits for the queues of a lost device elsewhere. */
void quay__vulkan_abandon(quay__vulkan_device *device);
/* With `gone` the VkDevice has been destroyed. Nothing is under way. */
void quay__vulkan_queue_end(quay__vulkan_queue *queue, bool gone);
/* Submits commands (NULL: none) that wait for `wait` (NULL: nothing) first. `*out_value` is what
 * the timeline reaches when they are done. */
quay_status quay__vulkan_submit(quay__vulkan_queue *queue, VkCommandBuffer commands,
                                const quay__vulkan_signal *wait, uint64_t *out_value);
bool quay__vulkan_reached(quay__vulkan_queue *queue, uint64_t value);
/* The same, and an error if the device does not tell. */
quay_status quay__vulkan_query(quay__vulkan_queue *queue, uint64_t value, bool *out_done);
quay_status quay__vulkan_wait(quay__vulkan_queue *queue, uint64_t value);
/* What the timeline reaches when all that Quay has submitted is done. */
uint64_t quay__vulkan_submitted(quay__vulkan_queue *queue);
/* Waits for all that was submitted. */
quay_status quay__vulkan_drain(quay__vulkan_queue *queue);
/* Waits until the queue has nothing to do and nothing of it is in use, as its end needs: a timeline
 * may be signalled a moment before. A lost device has nothing to do. */
void quay__vulkan_settle(quay__vulkan_queue *queue);
/* The queue of a stream number; NULL if it is none of the device's. */
quay__vulkan_queue *quay__vulkan_queue_of(quay__vulkan_device *device, uint64_t stream);
/* Whether it is for copies alone. */
bool quay__vulkan_only_copies(const quay__vulkan_queue *queue);
/* The queue for a blocking copy: one for copies where there is one, and `any` of them may do it. */
quay__vulkan_queue *quay__vulkan_copy_queue(quay__vulkan_device *device, bool any, bool reading);

/* block.c */

typedef struct quay__vulkan_block_request {
  quay_vulkan_memory_kind kind;
  uint64_t size, alignment; /* bytes */
  bool dedicated;           /* a VkDeviceMemory of its own */
  bool exportable;
} quay__vulkan_block_request;

quay_status quay__vulkan_alloc(quay__vulkan_device *device,
                               const quay__vulkan_block_request *request,
                               quay__vulkan_span **out_span);
/* Never fails and waits for nothing. */
void quay__vulkan_free(quay__vulkan_span *span);
/* Forgets a dedicated block whose memory and buffer are somebody else's now. */
void quay__vulkan_forget(quay__vulkan_span *span);
/* Frees shared blocks that nothing is carved from. Returns their bytes. */
uint64_t quay__vulkan_trim(quay__vulkan_device *device);
/* Destroys memory and buffers of all blocks, before their VkDevice is. */
void quay__vulkan_blocks_kill(quay__vulkan_device *device);
/* Makes the host see what the device wrote to a range of the block: nothing to do for coherent
 * memory. */
quay_status quay__vulkan_invalidate(quay__vulkan_block *block, uint64_t offset, uint64_t size);
/* Imports host memory of the process, so that the device copies from and to it; it is found by
 * quay__vulkan_block_at() until it is given up. */
quay_status quay__vulkan_pin(quay_device *quay, void *memory, uint64_t size);
bool quay__vulkan_unpin(quay_device *quay, void *memory, uint64_t size);
/* The block of host memory of the device that has all of these bytes mapped; NULL: none. */
quay__vulkan_block *quay__vulkan_block_at(quay__vulkan_device *device, const void *memory,
                                          uint64_t size);

/* span.c: ranges of a block. The device's lock is held. */

/* Makes the whole block one free span. False: no memory. */
bool quay__vulkan_spans_begin(quay__vulkan_block *block);
/* A range whose offset plus `origin` is a multiple of `alignment`; NULL: there is none, or no
 * memory for the record. */
quay__vulkan_span *quay__vulkan_span_take(quay__vulkan_block *block, uint64_t size,
                                          uint64_t alignment, uint64_t origin);
void quay__vulkan_span_give_back(quay__vulkan_span *span);
/* Of a block of which nothing is in use, or that is thrown away. */
void quay__vulkan_spans_end(quay__vulkan_block *block);
/* Bytes of the largest free span, at most (its bin's). */
uint64_t quay__vulkan_spans_largest(const quay__vulkan_block *block);

/* lane.c */

/* One on `queue` for the calling thread until it gives it back; both slots are idle. */
quay_status quay__vulkan_lane_take(quay__vulkan_queue *queue, quay__vulkan_lane **out_lane);
/* What was submitted may still be under way. */
void quay__vulkan_lane_give_back(quay__vulkan_lane *lane);
/* Waits until the slot's last commands are done, and begins new ones: they come after all that was
 * submitted to the queue before. */
quay_status quay__vulkan_slot_begin(quay__vulkan_lane *lane, unsigned slot);
/* Ends and submits them. What is submitted to the queue later comes after them. */
quay_status quay__vulkan_slot_submit(quay__vulkan_lane *lane, unsigned slot);
/* The same for a copy that nothing on the queue which begins and ends like this has to come before
 * or after. `to_host`: the host will read what it writes. */
quay_status quay__vulkan_slot_begin_apart(const quay__vulkan_lane *lane, unsigned slot);
quay_status quay__vulkan_slot_submit_apart(quay__vulkan_lane *lane, unsigned slot, bool to_host);
/* Waits for them. */
quay_status quay__vulkan_slot_wait(quay__vulkan_lane *lane, unsigned slot);
/* Waits for both slots, also after an error, so that what they use can be used again. */
quay_status quay__vulkan_lane_settle(quay__vulkan_lane *lane, quay_status status);
/* Host memory of at least `size` bytes to write into, or to read from. */
quay_status quay__vulkan_slot_up(quay__vulkan_lane *lane, unsigned slot, uint64_t size,
                                 quay__vulkan_span **out_span);
quay_status quay__vulkan_slot_down(quay__vulkan_lane *lane, unsigned slot, uint64_t size,
                                   quay__vulkan_span **out_span);
/* Memory to copy through within the device, QUAY__VULKAN_CHUNK_BYTES or less: never fails as long
 * as host memory can be had. */
quay_status quay__vulkan_lane_bounce(quay__vulkan_lane *lane, uint64_t size,
                                     quay__vulkan_span **out_span);
/* Ends the idle ones. With `gone` their VkDevice has been destroyed. */
void quay__vulkan_lanes_end(quay__vulkan_queue *queue, bool gone);
/* A barrier between two commands of one slot. */
void quay__vulkan_barrier(const quay__vulkan_device *device, VkCommandBuffer commands);

/* copy.c, fill.c, async.c: functions for the table. */

/* A range of memory as copies see it. */
typedef struct quay__vulkan_place {
  VkBuffer buffer;
  uint64_t offset;           /* in the buffer */
  unsigned char *host;       /* if the processor is to copy it, its address; else NULL */
  quay__vulkan_block *block; /* NULL: adopted */
} quay__vulkan_place;

quay__vulkan_place quay__vulkan_place_of(const quay__vulkan *self, const quay_raw_buffer *raw,
                                         uint64_t offset);
quay__vulkan_place quay__vulkan_place_in(quay__vulkan_span *span, uint64_t offset);

quay_status quay__vulkan_copy_in(quay_allocator *allocator, quay_raw_buffer *destination,
                                 uint64_t offset, const void *source, uint64_t size);
quay_status quay__vulkan_copy_out(quay_allocator *allocator, const quay_raw_buffer *source,
                                  uint64_t offset, void *destination, uint64_t size);
quay_status quay__vulkan_copy_within(quay_allocator *allocator, quay_raw_buffer *destination,
                                     uint64_t destination_offset, const quay_raw_buffer *source,
                                     uint64_t source_offset, uint64_t size);
quay_status quay__vulkan_fill(quay_allocator *allocator, quay_raw_buffer *raw, uint64_t offset,
                              uint64_t size, const void *pattern, size_t pattern_size);
void quay__vulkan_copy_info(quay_allocator *allocator, const quay_raw_buffer *destination,
                            const quay_raw_buffer *source, uint64_t size,
                            quay_across_info *out_info);
bool quay__vulkan_can_copy_across(quay_allocator *allocator, const quay_raw_buffer *destination,
                                  const quay_raw_buffer *source, uint64_t size,
                                  quay_across_info *out_info);
quay_status quay__vulkan_copy_across(quay_allocator *allocator, quay_raw_buffer *destination,
                                     uint64_t destination_offset, const quay_raw_buffer *source,
                                     uint64_t source_offset, uint64_t size);

quay_status quay__vulkan_copy_in_async(quay_allocator *allocator, quay_raw_buffer *destination,
                                       uint64_t offset, const void *source, uint64_t size,
                                       uint64_t stream);
quay_status quay__vulkan_copy_out_async(quay_allocator *allocator, const quay_raw_buffer *source,
                                        uint64_t offset, void *destination, uint64_t size,
                                        uint64_t stream);
quay_status quay__vulkan_copy_in_many_async(quay_allocator *allocator,
                                            const quay_copy_piece *pieces, size_t count,
                                            uint64_t stream);
quay_status quay__vulkan_copy_within_async(quay_allocator *allocator, quay_raw_buffer *destination,
                                           uint64_t destination_offset,
                                           const quay_raw_buffer *source, uint64_t source_offset,
                                           uint64_t size, uint64_t stream);
quay_status quay__vulkan_fill_async(quay_allocator *allocator, quay_raw_buffer *raw,
                                    uint64_t offset, uint64_t size, const void *pattern,
                                    size_t pattern_size, uint64_t stream);
quay_status quay__vulkan_copy_across_async(quay_allocator *allocator, quay_raw_buffer *destination,
                                           uint64_t destination_offset,
                                           const quay_raw_buffer *source, uint64_t source_offset,
                                           uint64_t size, uint64_t stream);

/* Bytes of each of the two slots of so many lanes at a time, as the copy under way may have. */
uint64_t quay__vulkan_chunk(uint32_t lanes);
/* Parts of copies on a lane, for both; `chunk` as above. */
quay_status quay__vulkan_upload(quay__vulkan_lane *lane, const quay__vulkan_place *destination,
                                const void *source, uint64_t size, uint64_t chunk);
/* Has arrived on return. */
quay_status quay__vulkan_download(quay__vulkan_lane *lane, const quay__vulkan_place *source,
                                  void *destination, uint64_t size, uint64_t chunk);
/* As memmove. */
quay_status quay__vulkan_move(quay__vulkan_lane *lane, const quay__vulkan_place *destination,
                              const quay__vulkan_place *source, uint64_t size);
quay_status quay__vulkan_submit_fill(quay__vulkan_lane *lane, const quay__vulkan_place *place,
                                     uint64_t size, const void *pattern, size_t pattern_size);
/* Records one copy. */
void quay__vulkan_record_copy(const quay__vulkan_lane *lane, unsigned slot, VkBuffer destination,
                              uint64_t to, VkBuffer source, uint64_t from, uint64_t size);

/* stream.c */
quay_status quay__vulkan_stream_create(quay_device *quay, const quay_stream_options *options,
                                       uint64_t *out_stream);
quay_status quay__vulkan_stream_wrap(quay_device *quay, uint64_t native, uint64_t *out_stream);
void quay__vulkan_stream_destroy(quay_device *quay, uint64_t stream, bool wrapped);
quay_status quay__vulkan_stream_synchronize(quay_device *quay, uint64_t stream);
quay_status quay__vulkan_stream_wait(quay_device *quay, uint64_t stream, quay_device *event_device,
                                     uint64_t event);
quay_status quay__vulkan_event_record(quay_device *quay, uint64_t stream, uint64_t *out_event);
quay_status quay__vulkan_event_query(quay_device *quay, uint64_t event, bool *out_done);
quay_status quay__vulkan_event_synchronize(quay_device *quay, uint64_t event);
void quay__vulkan_event_destroy(quay_device *quay, uint64_t event);
/* False: its queue's timeline is gone, and with it the work. */
bool quay__vulkan_event_find(quay_device *quay, uint64_t event, quay__vulkan_point *out_point);

/* allocator.c */
quay_status quay__vulkan_open(void *user, const quay_spec_args *args,
                              quay_allocator **out_allocator);
quay_status quay__vulkan_allocator_make(quay_device *quay, quay_vulkan_memory_kind kind,
                                        bool dedicated, quay_allocator **out_allocator);
/* The backend's own part of an allocator of any layers; NULL if it is no Vulkan allocator. */
quay__vulkan *quay__vulkan_of(const quay_allocator *allocator);

static inline quay__vulkan_span *quay__vulkan_span_of(const quay_raw_buffer *raw) {
  return (quay__vulkan_span *)(uintptr_t)raw->as.vulkan.block;
}

/* Handles that are pointers on 64-bit machines, as the integers of the public headers. */
#define QUAY__VULKAN_TO_INTEGER(handle)       ((uint64_t)(uintptr_t)(handle))
#define QUAY__VULKAN_TO_HANDLE(type, integer) ((type)(uintptr_t)(integer))

#endif
