/* Streams, events, and accesses: the bracket around work that the program submits itself.
 *
 * A stream is an in-order queue of device work, Quay's own or the program's (wrapped). An event
 * marks a point in a stream. On a device whose backend has no streams, the host among them, a
 * stream does everything at once: what is submitted is done on return, and events are complete when
 * they are recorded.
 *
 * Hazards: every storage remembers, by range of bytes, the last write and the reads since. Quay's
 * own copies record theirs. For the program's launches:
 *
 *   quay_use uses[] = {{weights, QUAY_READ}, {out, QUAY_WRITE}};
 *   quay_access access;
 *   QUAY_TRY(quay_access_begin(stream, uses, 2, &access));
 *   launch(access.pointers[0], access.pointers[1]);   // on the same stream
 *   QUAY_TRY(quay_access_end(&access));               // after a failed launch, too
 */
#ifndef QUAY_STREAM_H
#define QUAY_STREAM_H

#include <quay/base.h>
#include <quay/buffer.h>
#include <quay/device.h>
#include <quay/status.h>

typedef struct quay_event quay_event;

/* Zero means the defaults. */
typedef struct quay_stream_options {
  /* Smaller is more urgent, as in CUDA; 0 is normal. Clamped to what the device has. */
  int32_t priority;
  /* Only copies and fills will be on it, no work of the program's: a Vulkan device that has queues
   * for that puts it on one of them. Others take no notice. */
  bool copies_only;
} quay_stream_options;

/* What a use does to its buffer. */
typedef enum quay_use_mode {
  QUAY_READ = 1,
  QUAY_WRITE = 2,
  QUAY_READ_WRITE = 3, /* on a lazy buffer an error: there is nothing to read */
} quay_use_mode;

typedef struct quay_use {
  quay_buffer *buffer;
  quay_use_mode mode;
} quay_use;

/* Accesses with up to this many uses allocate nothing. */
#define QUAY_ACCESS_INLINE_USES 8

/* An open access, on the program's stack. It must not be copied while it is open. The fields before
 * `reserved` may be read. */
typedef struct quay_access {
  quay_stream *stream;
  size_t count;
  /* `count` addresses, in the order of the uses, as quay_buffer_address() gives them; 0 where the
   * memory has none. */
  const uint64_t *pointers;
  void *reserved[4];
  uint64_t inline_pointers[QUAY_ACCESS_INLINE_USES];
  void *inline_storages[QUAY_ACCESS_INLINE_USES];
} quay_access;

QUAY_BEGIN_DECLS

/* Streams. */

/* Creates a stream on `device` (NULL: the default allocator's). It does not synchronise with the
 * device's legacy default stream. `options` NULL means the defaults.
 * Errors: INVALID_ARGUMENT; DEVICE_LOST; OUT_OF_HOST_MEMORY; OUT_OF_DEVICE_MEMORY.
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_stream_create(quay_device *device,
                                                       const quay_stream_options *options,
                                                       quay_stream **out_stream);

/* Wraps a stream of the program's (a CUstream as an integer; 0 is the legacy default stream). It
 * is used and never owned: release the wrapper before the stream is destroyed. Unlike
 * quay_stream_create(), it takes no NULL for the default device: a native handle belongs to one
 * device, which an environment variable must not choose.
 * Errors: INVALID_ARGUMENT (NULL, or no stream of this device); UNSUPPORTED (the device has no
 * streams to wrap); DEVICE_LOST; OUT_OF_HOST_MEMORY.
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_stream_wrap(quay_device *device, uint64_t native,
                                                     quay_stream **out_stream);

/* Takes one more reference and returns `stream`. NULL gives NULL.
 * Thread-safety: any thread. */
QUAY_API quay_stream *quay_stream_retain(quay_stream *stream);

/* Gives one reference back; after the last one a stream of Quay's own is destroyed once its work
 * is done, without waiting for that. NULL is a no-op.
 * Thread-safety: any thread. */
QUAY_API void quay_stream_release(quay_stream *stream);

/* Of the wrapper, not of the native stream; never reused. 0 for NULL.
 * Thread-safety: any thread; never changes. */
QUAY_API uint64_t quay_stream_id(const quay_stream *stream);

/* Not retained: lives as long as the stream. NULL for NULL.
 * Thread-safety: any thread; never changes. */
QUAY_API quay_device *quay_stream_device(const quay_stream *stream);

/* The backend's handle (a CUstream as an integer); 0 where there is none. Of a stream that Quay
 * made this is the one way to capture a graph on it: before the first call it is not looked at for
 * that. Thread-safety: any thread; never changes. */
QUAY_API uint64_t quay_stream_native(const quay_stream *stream);

/* Waits until everything submitted to the stream is done.
 * Errors: INVALID_ARGUMENT (NULL); UNSUPPORTED (the stream captures a graph); DEVICE_LOST.
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_stream_synchronize(quay_stream *stream);

/* Makes later work on `stream` wait for `event`, which may be of another stream or device. Does
 * not wait itself.
 * Errors: INVALID_ARGUMENT (NULL); UNSUPPORTED (the devices can't wait for each other: wait with
 * quay_event_synchronize(); or the stream captures a graph); DEVICE_LOST.
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_stream_wait(quay_stream *stream, quay_event *event);

/* Events. */

/* Records a new event after everything submitted to `stream` so far.
 * Errors: INVALID_ARGUMENT (NULL); UNSUPPORTED (the stream captures a graph); DEVICE_LOST;
 * OUT_OF_HOST_MEMORY.
 * Ownership: the caller releases it.
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_event_record(quay_stream *stream, quay_event **out_event);

/* Whether the event has completed.
 * Errors: INVALID_ARGUMENT (NULL); DEVICE_LOST.
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_event_query(quay_event *event, bool *out_done);

/* Waits until the event has completed.
 * Errors: INVALID_ARGUMENT (NULL); DEVICE_LOST.
 * Thread-safety: any thread; several may wait for one event. */
QUAY_API QUAY_NODISCARD quay_status quay_event_synchronize(quay_event *event);

/* Takes one more reference and returns `event`. NULL gives NULL.
 * Thread-safety: any thread. */
QUAY_API quay_event *quay_event_retain(quay_event *event);

/* Gives one reference back. NULL is a no-op.
 * Thread-safety: any thread. */
QUAY_API void quay_event_release(quay_event *event);

/* Accesses. */

/* Opens an access: checks that every buffer is usable on the stream's device, allocates lazy
 * buffers that are only written, makes `stream` wait for exactly the recorded work that conflicts
 * with the uses, keeps the storages alive until the end, and gives the addresses. Launch on
 * `stream` afterwards, then end the access. Uses may overlap each other within one access.
 * Errors: INVALID_ARGUMENT (NULL, no uses, a bad mode, a buffer that the stream's device can't
 * reach); NOT_ALLOCATED (reading a lazy buffer); READ_ONLY (writing a sealed storage); BUSY (a
 * conflicting access is open on another stream); UNSUPPORTED (the stream captures a graph; see
 * quay_access_begin_untracked()); STALE; DEVICE_LOST; those of quay_allocator_alloc(). On error
 * nothing is open and `*out_access` is zeroed.
 * Thread-safety: any thread. The access is the caller's to synchronise. */
QUAY_API QUAY_NODISCARD quay_status quay_access_begin(quay_stream *stream, const quay_use *uses,
                                                      size_t count, quay_access *out_access);

/* Opens an access that does no more than give addresses: the buffers are checked, and their
 * storages kept alive until the end, as quay_access_begin() does, but the stream waits for nothing
 * and nothing is recorded. For a stream that captures a graph, where quay_access_begin() is
 * refused. The graph holds the addresses: the program keeps the buffers as long as the graph can
 * run, and brackets each launch of the graph with an ordinary access, which orders it. Conflicting
 * accesses are not BUSY, and buffers can be sealed meanwhile.
 * Errors: those of quay_access_begin() but for BUSY and UNSUPPORTED. On error nothing is open and
 * `*out_access` is zeroed.
 * Thread-safety: any thread. The access is the caller's to synchronise. */
QUAY_API QUAY_NODISCARD quay_status quay_access_begin_untracked(quay_stream *stream,
                                                                const quay_use *uses, size_t count,
                                                                quay_access *out_access);

/* Closes an access: records one event for all its uses (of an untracked one nothing) and gives the
 * storages back. To be called after the launch, and after a launch that failed. A zeroed access is
 * a no-op.
 * Errors: DEVICE_LOST; the access is closed all the same. INVALID_ARGUMENT (a copy of the access
 * that was opened; nothing is closed).
 * Thread-safety: the access is the caller's to synchronise; any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_access_end(quay_access *access);

/* The stream of the last recorded write that touches the window, or NULL if there is none or the
 * last write was the host's. One reference of the caller's.
 * Errors: INVALID_ARGUMENT (NULL).
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_buffer_last_write_stream(const quay_buffer *buffer,
                                                                  quay_stream **out_stream);

/* Frees what can be freed: storages that were released while device work on them was under way and
 * whose work is done now, memory that a backend keeps to free later because its driver's function
 * takes long, and the page-locked memory that large copies keep for the next ones. `out_bytes` (may
 * be NULL) is how much. Quay waits for no work here, but CUDA's driver may, for all that runs on
 * the device, where it unlocks pages and frees memory. Trim, slow-path allocation and synchronize
 * do the same by themselves, but leave the copies' memory alone. A pool's pending frees are the
 * pool's: it looks after them when it needs memory, on trim and on statistics.
 * Errors: DEVICE_LOST.
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_collect(uint64_t *out_bytes);

QUAY_END_DECLS

#endif
