/* The CUDA backend: what its files share. The driver's functions are in driver.h, its results in
 * error.h; nothing outside this folder includes any of them. */
#ifndef QUAY_CUDA_CUDA_IMPL_H
#define QUAY_CUDA_CUDA_IMPL_H

#include <quay/backend.h>
#include <stdatomic.h>

#include "core/lock.h"
#include "cuda/abi.h"
#include "cuda/driver.h"
#include "cuda/error.h"

/* Devices beyond this number are not listed. */
#define QUAY__CUDA_DEVICES_MAX 64

/* Bytes of a slot that small copies go through. Up to here memcpy and DMA of the slot cost less
 * than asking the driver whether the host memory is pinned. */
#define QUAY__CUDA_SLOT_BYTES ((uint64_t)64 << 10)
/* Bytes on the device that overlapping copies go through. */
#define QUAY__CUDA_BOUNCE_BYTES ((uint64_t)4 << 20)

/* An event of the device's pool, which keeps them for the next one who needs one. */
typedef struct quay__cuda_event {
  struct quay__cuda_event *next; /* in the pool */
  quay__cu_event handle;
  uint64_t generation; /* of the device when it was made */
} quay__cuda_event;

/* How a block was allocated. */
typedef enum quay__cuda_how {
  QUAY__CUDA_PLAIN,    /* cuMemAlloc */
  QUAY__CUDA_ORDERED,  /* cuMemAllocAsync */
  QUAY__CUDA_PINNED,   /* cuMemHostAlloc */
  QUAY__CUDA_MANAGED,  /* cuMemAllocManaged */
  QUAY__CUDA_SHARED,   /* cuMemCreate, mapped: other processes can map it, too */
  QUAY__CUDA_IMPORTED, /* the same, created by another process */
  QUAY__CUDA_IPC,      /* cuIpcOpenMemHandle: another process's cuMemAlloc */
  QUAY__CUDA_RESERVED, /* cuMemAddressReserve: addresses, with memory where it is committed */
} quay__cuda_how;

/* What was taken from the driver for one raw buffer: quay_raw_cuda.handle. 0 for memory that was
 * adopted by its address. */
typedef struct quay__cuda_block {
  struct quay__cuda_block *next; /* in the list of released blocks */
  quay__cuda_how how;
  quay__cu_pointer pointer; /* what the driver gave: at or below the raw buffer's first byte */
  void *host;               /* PINNED: the same; mirrored: the twin; else NULL */
  uint64_t bytes;           /* on the device, or of pinned memory */
  uint64_t host_bytes;      /* of the twin */
  uint64_t generation;      /* of the device when it was allocated */
  /* ORDERED: after its allocation. In the list: after the last work on it; NULL: there is none. */
  quay__cuda_event *ready;
  atomic_bool is_ready; /* `ready` was seen to be done */
  /* SHARED and IMPORTED: the memory, the addresses that it is mapped in, and as bits the ordinals
   * of other devices that have access. */
  quay__cu_memory memory;
  quay__cu_pointer reserved_at;
  uint64_t reserved_bytes;
  atomic_uint_fast64_t reached;
  /* RESERVED: reserve.c's record of each page. `bytes` is what is committed. */
  struct quay__cuda_page *pages;
  uint64_t page_bytes, page_count;
  struct quay__cuda_device *device; /* IMPORTED and IPC, for whoever frees it: not retained */
} quay__cuda_block;

/* What one blocking copy needs at a time: a stream and pinned memory. There are as many as there
 * were copies at once; a thread comes back to the one that it had before, without a lock. */
typedef struct quay__cuda_lane {
  struct quay__cuda_lane *next; /* in the device's list of all */
  atomic_bool taken;
  quay__cu_stream stream;
  unsigned char *slot;     /* QUAY__CUDA_SLOT_BYTES of pinned memory */
  quay__cu_pointer bounce; /* QUAY__CUDA_BOUNCE_BYTES on the device; 0 until it is needed */
} quay__cuda_lane;

typedef struct quay__cuda_device {
  quay_device *device; /* not retained: it owns this */
  const quay__cuda_api *api;
  int32_t ordinal;
  quay__cu_device handle;
  quay__cu_context context; /* primary, retained */
  /* A number that the context has had since it was made; a reset gives it another one. Known where
   * the driver has cuCtxGetId. */
  atomic_ullong context_id;
  quay__cu_stream free_stream; /* where memory is freed in order */
  int32_t numa_node;           /* of the host; -1: unknown */
  bool has_pools;              /* cuMemAllocAsync can be used */
  bool has_virtual_memory;     /* addresses and memory apart */
  bool can_share;              /* memory with file descriptors for other processes */
  bool concurrent_managed;     /* the host may touch managed memory while the device works */
  uint64_t total_bytes;
  char name[32]; /* "cuda:0" */
  char product[128];
  quay__cu_uuid uuid;

  quay__lock lock; /* guards the lists */
  quay__cuda_event *events;
  uint32_t event_count;
  quay__cuda_lane *lanes;
  quay__cuda_block *released;
  atomic_uint released_count;
  atomic_uchar peers[QUAY__CUDA_DEVICES_MAX]; /* quay__cuda_peer, by the other's ordinal */
} quay__cuda_device;

static inline quay__cuda_device *quay__cuda_device_of(const quay_device *device) {
  return quay_device_self(device);
}

/* One allocator. */
typedef struct quay__cuda {
  quay__cuda_device *device;
  quay_memory_kind kind;
  atomic_uint_fast64_t taken; /* bytes from the driver and not freed by the program */
} quay__cuda;

/* context.c */

/* The device's context is current between enter and leave, and what was current before is so again
 * afterwards. With `relaxed`, or after relax, calls are allowed that a capture of the program's
 * would forbid. */
typedef struct quay__cuda_scope {
  quay__cuda_device *device;
  int capture_mode; /* the thread's own */
  bool relaxed;
} quay__cuda_scope;

/* Whether the context is the one that the device was opened with; CONTEXT_IS_DESTROYED if somebody
 * has reset it, whatever has been made in its place: then the driver still lets it be made current,
 * and crashes where a stream or an event of it is used. Drivers before 12.0 do not tell. */
quay__cu_result quay__cuda_context_check(const quay__cuda_device *device);

quay_status quay__cuda_enter(quay__cuda_device *device, bool relaxed, quay__cuda_scope *out_scope);
quay_status quay__cuda_relax(quay__cuda_scope *scope);
/* Keeps the thread's error. */
void quay__cuda_leave(const quay__cuda_scope *scope);
/* Parts of leaving, for a device that is being made. */
quay__cu_result quay__cuda_set_capture_mode(const quay__cuda_api *api, int mode);
quay__cu_result quay__cuda_pop_context(const quay__cuda_api *api);

/* device.c */

/* The device of this ordinal, made at first need and kept: one reference of the caller's. */
quay_status quay__cuda_device_get(uint64_t ordinal, quay_device **out_device);
/* One reference on the device with this UUID if it has been made, else NULL. */
quay_device *quay__cuda_device_find(const void *uuid);
/* Of every device that was made. */
void quay__cuda_devices_mark_lost(quay__cu_result result, const char *format, ...)
    QUAY_PRINTF(2, 3);
/* No host memory of any device is touched from now on. `alone`: no other thread is there, and locks
 * may be in any state. */
void quay__cuda_devices_close(bool alone);
quay_status quay__cuda_device_info(void *user, size_t index, quay_device_info *out_info,
                                   bool *out_more);

/* stream.c */

/* The driver's handle of a stream number; refused if it is another thread's default stream, or
 * captures. The context is current. */
quay_status quay__cuda_stream_use(quay__cuda_device *device, uint64_t stream,
                                  quay__cu_stream *out_stream);

/* The driver's handle alone, as quay_cuda_stream() gives it. */
uint64_t quay__cuda_stream_native(uint64_t stream);

quay_status quay__cuda_stream_create(quay_device *quay, const quay_stream_options *options,
                                     uint64_t *out_stream);
quay_status quay__cuda_stream_wrap(quay_device *quay, uint64_t native, uint64_t *out_stream);
quay_status quay__cuda_stream_check(quay_device *quay, uint64_t stream);
void quay__cuda_stream_destroy(quay_device *quay, uint64_t stream, bool wrapped);
quay_status quay__cuda_stream_synchronize(quay_device *quay, uint64_t stream);
quay_status quay__cuda_stream_wait(quay_device *quay, uint64_t stream, quay_device *event_device,
                                   uint64_t event);
quay_status quay__cuda_event_record(quay_device *quay, uint64_t stream, uint64_t *out_event);
quay_status quay__cuda_event_query(quay_device *quay, uint64_t native, bool *out_done);
quay_status quay__cuda_event_synchronize(quay_device *quay, uint64_t native);
void quay__cuda_event_destroy(quay_device *quay, uint64_t event);

/* An event after everything in `stream`, from the pool. The context is current. */
quay_status quay__cuda_event_take(quay__cuda_device *device, quay__cu_stream stream,
                                  quay__cuda_event **out_event);
void quay__cuda_event_give_back(quay__cuda_device *device, quay__cuda_event *event);
/* Ends the pool's; the context is current, or `gone`, and with it what the driver knew of them. */
void quay__cuda_events_end(quay__cuda_device *device, bool gone);

/* block.c */

/* What a block is to be. */
typedef struct quay__cuda_block_request {
  quay__cuda_how how;
  uint64_t size, alignment;
  bool mirror;
  quay__cu_stream stream; /* ORDERED: in whose order */
} quay__cuda_block_request;

/* Takes memory from the driver. */
quay_status quay__cuda_block_alloc(quay__cuda_scope *scope, const quay__cuda_block_request *request,
                                   quay__cuda_block **out_block);
/* Gives it back, once the work that `pending` stands for is done. Does not wait for that. False if
 * the memory is lost, which has been logged. */
bool quay__cuda_block_release(quay__cuda_device *device, quay__cuda_block *block,
                              quay_event *const *pending, size_t count);
/* Forgets it: the memory is somebody else's now, or gone. */
void quay__cuda_block_forget(quay__cuda_device *device, quay__cuda_block *block);
/* Frees the released blocks whose work is done; with `wait`, of all. Returns their bytes. The
 * context is current. */
uint64_t quay__cuda_blocks_collect(quay__cuda_device *device, bool wait);
/* Forgets the released blocks: their context is gone. */
void quay__cuda_blocks_drop(quay__cuda_device *device);
/* Makes `stream` wait until stream-ordered memory is there. */
quay_status quay__cuda_block_order(quay__cuda_scope *scope, const quay_raw_buffer *raw,
                                   quay__cu_stream stream);

/* Reports memory, or `what` of it ("addresses for "), that the driver does not take back. */
void quay__cuda_check_given_back(quay__cuda_device *device, quay__cu_result result,
                                 const char *what, uint64_t bytes);
/* Out of memory, with the device's figures, or whatever else the driver says. */
quay_status quay__cuda_fail_memory(quay__cuda_device *device, quay__cu_result result,
                                   uint64_t bytes);
/* Gives back what is waiting to be, and what the driver itself keeps. The context is current, in
 * relaxed mode. */
void quay__cuda_make_room(quay__cuda_device *device);

/* reserve.c */

/* Bytes of a page; 0 where the device has no virtual memory management. */
uint64_t quay__cuda_page_size(quay__cuda_device *device);
quay_status quay__cuda_reserve(quay_allocator *allocator, uint64_t size, uint64_t alignment,
                               quay_raw_buffer *out_raw);
quay_status quay__cuda_commit(quay_allocator *allocator, quay_raw_buffer *raw, uint64_t offset,
                              uint64_t size);
quay_status quay__cuda_decommit(quay_allocator *allocator, quay_raw_buffer *raw, uint64_t offset,
                                uint64_t size);
/* Gives the scope's device access to the pages of a raw buffer, a part of a reservation of another
 * device. */
quay_status quay__cuda_reserve_reach(quay__cuda_scope *scope, const quay_raw_buffer *raw);
/* Unmaps what is committed and gives the addresses back. The context is current. */
quay__cu_result quay__cuda_reserve_give_back(quay__cuda_device *device,
                                             const quay__cuda_block *block);

/* share.c */

/* The bytes that a block of `size` takes: whole pages of the device. The context is current. */
quay_status quay__cuda_share_size(quay__cuda_device *device, uint64_t size, uint64_t *out_bytes);
/* Creates and maps `block->bytes` of memory that other processes can map; gives it back. On failure
 * nothing is left. The context is current. */
quay__cu_result quay__cuda_share_take(quay__cuda_device *device, uint64_t alignment,
                                      quay__cuda_block *block);
quay__cu_result quay__cuda_share_give_back(quay__cuda_device *device,
                                           const quay__cuda_block *block);
/* Gives the device access to mapped memory of another one; nothing to do for memory of other kinds.
 */
quay_status quay__cuda_share_reach(quay__cuda_scope *scope, const quay_raw_buffer *raw);

/* lane.c */

/* One for the calling thread until it gives it back. The context is current. */
quay_status quay__cuda_lane_take(quay__cuda_device *device, quay__cuda_lane **out_lane);
void quay__cuda_lane_give_back(quay__cuda_device *device, quay__cuda_lane *lane);
/* Waits for the stream of a copy, and once more if that fails: what is copied would else be used
 * again while the device still works on it. The first result counts. */
quay__cu_result quay__cuda_settle(quay__cuda_device *device, quay__cu_stream stream);
/* Memory of the device to copy through, at most `*inout_size` bytes; `*inout_size` is what it has.
 * Never fails: the pinned slot is there in any case. */
quay__cu_pointer quay__cuda_lane_bounce(quay__cuda_device *device, quay__cuda_lane *lane,
                                        uint64_t *inout_size);
/* Ends the idle ones; the context is current, or `gone`, and with it what the driver knew of them.
 */
void quay__cuda_lanes_end(quay__cuda_device *device, bool gone);

/* copy.c, fill.c, async.c: functions for the table. "host" ones are of memory that the CPU reaches
 * without the driver. */
quay_status quay__cuda_copy_in(quay_allocator *allocator, quay_raw_buffer *destination,
                               uint64_t offset, const void *source, uint64_t size);
quay_status quay__cuda_copy_out(quay_allocator *allocator, const quay_raw_buffer *source,
                                uint64_t offset, void *destination, uint64_t size);
quay_status quay__cuda_copy_within(quay_allocator *allocator, quay_raw_buffer *destination,
                                   uint64_t destination_offset, const quay_raw_buffer *source,
                                   uint64_t source_offset, uint64_t size);
quay_status quay__cuda_fill(quay_allocator *allocator, quay_raw_buffer *raw, uint64_t offset,
                            uint64_t size, const void *pattern, size_t pattern_size);
void quay__cuda_copy_info(quay_allocator *allocator, const quay_raw_buffer *destination,
                          const quay_raw_buffer *source, uint64_t size, quay_across_info *out_info);
quay_status quay__cuda_copy_in_async(quay_allocator *allocator, quay_raw_buffer *destination,
                                     uint64_t offset, const void *source, uint64_t size,
                                     uint64_t stream);
quay_status quay__cuda_copy_in_many_async(quay_allocator *allocator, const quay_copy_piece *pieces,
                                          size_t count, uint64_t stream);
quay_status quay__cuda_copy_out_async(quay_allocator *allocator, const quay_raw_buffer *source,
                                      uint64_t offset, void *destination, uint64_t size,
                                      uint64_t stream);
quay_status quay__cuda_copy_within_async(quay_allocator *allocator, quay_raw_buffer *destination,
                                         uint64_t destination_offset, const quay_raw_buffer *source,
                                         uint64_t source_offset, uint64_t size, uint64_t stream);
quay_status quay__cuda_fill_async(quay_allocator *allocator, quay_raw_buffer *raw, uint64_t offset,
                                  uint64_t size, const void *pattern, size_t pattern_size,
                                  uint64_t stream);

/* A large copy of pageable memory, done on return; `out_done` is false, and nothing has moved,
 * where it is none, or must be done by the functions below. `after`: a stream that it comes after;
 * NULL: no one. */
quay_status quay__cuda_stage(quay_allocator *allocator, const quay_raw_buffer *raw, uint64_t offset,
                             const void *memory, uint64_t size, quay_use_mode mode,
                             const uint64_t *after, bool *out_done);

/* A copy on a stream whose context is current. Small ones go through the lane. Whoever calls it
 * waits for the stream before the lane or the memory is used again. */
quay_status quay__cuda_upload(quay__cuda_device *device, quay__cuda_lane *lane,
                              quay__cu_stream stream, quay__cu_pointer destination,
                              const void *source, uint64_t size);
quay_status quay__cuda_download(quay__cuda_device *device, quay__cuda_lane *lane,
                                quay__cu_stream stream, quay__cu_pointer source, void *destination,
                                uint64_t size);
/* Whether the stream has been waited for by it: a wait of an idle stream costs two microseconds. */
static inline bool quay__cuda_download_is_done(quay_status status, uint64_t size) {
  return status == QUAY_OK && size <= QUAY__CUDA_SLOT_BYTES;
}
/* Whether all of the host memory is page-locked: the driver then copies it directly. */
bool quay__cuda_is_pinned(quay__cuda_device *device, const void *memory, uint64_t size);
/* Submits a fill. */
quay_status quay__cuda_submit_fill(quay__cuda_device *device, quay__cu_stream stream,
                                   quay__cu_pointer pointer, uint64_t size, const void *pattern,
                                   size_t pattern_size);

/* pin.c */
quay_status quay__cuda_pin(quay_device *quay, void *memory, uint64_t size);
bool quay__cuda_unpin(quay_device *quay, void *memory, uint64_t size);

/* peer.c */
typedef enum quay__cuda_peer {
  QUAY__CUDA_PEER_UNKNOWN,
  QUAY__CUDA_PEER_ENABLED,
  QUAY__CUDA_PEER_REFUSED,
} quay__cuda_peer;

bool quay__cuda_can_copy_across(quay_allocator *allocator, const quay_raw_buffer *destination,
                                const quay_raw_buffer *source, uint64_t size,
                                quay_across_info *out_info);
quay_status quay__cuda_copy_across(quay_allocator *allocator, quay_raw_buffer *destination,
                                   uint64_t destination_offset, const quay_raw_buffer *source,
                                   uint64_t source_offset, uint64_t size);

quay_status quay__cuda_copy_across_async(quay_allocator *allocator, quay_raw_buffer *destination,
                                         uint64_t destination_offset, const quay_raw_buffer *source,
                                         uint64_t source_offset, uint64_t size, uint64_t stream);

/* allocator.c */
quay_status quay__cuda_open(void *user, const quay_spec_args *args, quay_allocator **out_allocator);
/* The backend's own part of an allocator of any layers; NULL if it is no CUDA allocator. */
quay__cuda *quay__cuda_of(const quay_allocator *allocator);

/* The address of a byte, on the device and, for pinned and managed memory, on the host. */
static inline quay__cu_pointer quay__cuda_at(const quay_raw_buffer *raw, uint64_t offset) {
  return raw->as.cuda.pointer + offset;
}

static inline quay__cuda_block *quay__cuda_block_of(const quay_raw_buffer *raw) {
  return (quay__cuda_block *)(uintptr_t)raw->as.cuda.handle;
}

#endif
