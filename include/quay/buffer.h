/* Buffers: a reference-counted handle on a window of a storage, with element type and shape.
 *
 * A storage is one raw buffer, allocated at most once, shared by a base buffer and all its views.
 * It stays alive as long as any handle on it does. The window (offset, size, dtype, shape) of a
 * handle never changes.
 *
 * A buffer is immediate (memory is there once it is created) or lazy: writes to it (copy_in,
 * copy_from's destination, fill, write accesses, host_bytes_mut) allocate its storage, reads answer
 * NOT_ALLOCATED until then.
 *
 * Calls without a stream are host-synchronous: they wait for the recorded device work that
 * conflicts with them and are finished on return.
 *
 * Thread-safety: reference counts, ids, allocation and hazards are safe from any thread, and so is
 * every function here on one buffer from many threads. The bytes are not: two calls that touch the
 * same bytes at the same time, one of them writing, are the caller's to order. "Any thread" below
 * means this. */
#ifndef QUAY_BUFFER_H
#define QUAY_BUFFER_H

#include <quay/allocator.h>
#include <quay/base.h>
#include <quay/dtype.h>
#include <quay/raw_buffer.h>
#include <quay/status.h>

typedef struct quay_buffer quay_buffer;

QUAY_BEGIN_DECLS

/* Making buffers. */

/* Creates a buffer of `rank` dimensions and allocates its memory. `allocator` NULL is the default,
 * `options` NULL the defaults. Rank 0 (with `shape` NULL or not) is a scalar.
 * Errors: those of quay_dtype_array_size() and quay_allocator_alloc(). On error `*out_buffer` is
 * NULL.
 * Ownership: the caller releases the buffer; its storage retains the allocator.
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_buffer_create(quay_allocator *allocator, quay_dtype dtype,
                                                       int32_t rank, const int64_t *shape,
                                                       const quay_alloc_options *options,
                                                       quay_buffer **out_buffer);

/* The same without allocating: see "lazy" above. `options` are kept for the allocation (a stream in
 * them is refused with INVALID_ARGUMENT, since it might be gone by then).
 * Errors: those of quay_dtype_array_size(); INVALID_ARGUMENT; OUT_OF_HOST_MEMORY for the handle.
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_buffer_create_lazy(quay_allocator *allocator,
                                                            quay_dtype dtype, int32_t rank,
                                                            const int64_t *shape,
                                                            const quay_alloc_options *options,
                                                            quay_buffer **out_buffer);

/* Creates a buffer and copies `data` into it, a compact array of `rank` dimensions in host memory.
 * Errors: those of quay_buffer_create() and quay_buffer_copy_in(); INVALID_ARGUMENT if `data` is
 * NULL and the array is not empty. Nothing is left behind on error.
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_buffer_create_from_host(
    quay_allocator *allocator, quay_dtype dtype, int32_t rank, const int64_t *shape,
    const void *data, const quay_alloc_options *options, quay_buffer **out_buffer);

/* Creates a buffer whose bytes are all zero.
 * Errors: those of quay_buffer_create().
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_buffer_create_zeroed(quay_allocator *allocator,
                                                              quay_dtype dtype, int32_t rank,
                                                              const int64_t *shape,
                                                              quay_buffer **out_buffer);

/* Makes a buffer of a raw buffer, which is moved into it on success (`*raw` is zeroed) and stays
 * the caller's on error. The storage retains the raw buffer's owner. The shape must take exactly
 * the raw buffer's size.
 * Errors: INVALID_ARGUMENT (NULL, a zeroed raw buffer, a bad shape), SIZE_MISMATCH,
 * OUT_OF_HOST_MEMORY.
 * Thread-safety: the raw buffer is the caller's to synchronise. */
QUAY_API QUAY_NODISCARD quay_status quay_buffer_from_raw(quay_raw_buffer *raw, quay_dtype dtype,
                                                         int32_t rank, const int64_t *shape,
                                                         quay_buffer **out_buffer);

/* Takes the raw buffer out again: on success `*out_raw` is the caller's to free, `*buffer` is
 * released and set to NULL. The caller must keep the owner alive from then on.
 * It waits for all recorded work on the storage. Memory of an older generation, or of a lost
 * device, comes out as well: all that can be done with it is freeing.
 * Errors: INVALID_ARGUMENT
 * (NULL), NOT_ALLOCATED, BUSY (views, other references or open accesses of the storage exist). On
 * error nothing changes.
 * Thread-safety: no other thread may use the buffer at the same time. */
QUAY_API QUAY_NODISCARD quay_status quay_buffer_release_raw(quay_buffer **buffer,
                                                            quay_raw_buffer *out_raw);

/* Wraps a compact array in host memory that somebody else made; nothing is copied. `memory->size`
 * must be the shape's size. See quay_raw_buffer_adopt_host() for `allocator` and the ownership.
 * Errors: those of quay_raw_buffer_adopt_host() and quay_buffer_from_raw(); on error `memory` is
 * still the caller's.
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_buffer_adopt_host(quay_allocator *allocator,
                                                           quay_dtype dtype, int32_t rank,
                                                           const int64_t *shape,
                                                           const quay_host_memory *memory,
                                                           quay_buffer **out_buffer);

/* Takes one more reference on the handle and returns it. NULL gives NULL.
 * Thread-safety: any thread. */
QUAY_API quay_buffer *quay_buffer_retain(quay_buffer *buffer);

/* Gives one reference back. The last handle on a storage frees its memory, after recorded device
 * work on it is done, without waiting for that. NULL is a no-op.
 * Thread-safety: any thread. */
QUAY_API void quay_buffer_release(quay_buffer *buffer);

/* Views. */

/* A view of `size` bytes from `offset` bytes into `buffer`: dtype U8, shape [size]. It shares the
 * storage, keeps it alive and has an id of its own. A view of a view is a view of the storage: its
 * offset is counted from the storage's start. Works on lazy buffers.
 * Errors: INVALID_ARGUMENT (NULL); OUT_OF_RANGE (the window reaches outside `buffer`, also by
 * wrapping around); OUT_OF_HOST_MEMORY.
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_buffer_view(quay_buffer *buffer, uint64_t offset,
                                                     uint64_t size, quay_buffer **out_view);

/* A view with element type and shape, from `offset` bytes into `buffer`.
 * Errors: those of quay_buffer_view() and quay_dtype_array_size(); MISALIGNED if `offset`, counted
 * from the start of the storage, is no multiple of the dtype's alignment.
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_buffer_view_typed(quay_buffer *buffer, uint64_t offset,
                                                           quay_dtype dtype, int32_t rank,
                                                           const int64_t *shape,
                                                           quay_buffer **out_view);

/* As quay_buffer_view_typed() for data that stands where it stands, in a file say: the offset may
 * be misaligned. Copies work as ever; typed host access answers MISALIGNED then.
 * Errors: those of quay_buffer_view() and quay_dtype_array_size().
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_buffer_view_unaligned(quay_buffer *buffer, uint64_t offset,
                                                               quay_dtype dtype, int32_t rank,
                                                               const int64_t *shape,
                                                               quay_buffer **out_view);

/* A view of the same bytes with another element type and shape, of exactly the same size.
 * Errors: those of quay_buffer_view_typed(); SIZE_MISMATCH.
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_buffer_reshape(quay_buffer *buffer, quay_dtype dtype,
                                                        int32_t rank, const int64_t *shape,
                                                        quay_buffer **out_view);

/* What a buffer is. */
/* All of these never fail and never change for a given buffer, except is_allocated, is_sealed and
 * generation. NULL gives 0, NULL, false or QUAY_DTYPE_NONE.
 * Thread-safety: any thread. */

QUAY_API uint64_t quay_buffer_id(const quay_buffer *buffer); /* of the handle; never reused */
QUAY_API uint64_t quay_buffer_storage_id(const quay_buffer *buffer); /* never reused */
QUAY_API uint64_t quay_buffer_size(const quay_buffer *buffer);       /* bytes of the window */
QUAY_API uint64_t quay_buffer_total_size(const quay_buffer *buffer); /* bytes of the storage */
QUAY_API uint64_t quay_buffer_offset(const quay_buffer *buffer);     /* bytes from storage start */
QUAY_API uint64_t quay_buffer_count(const quay_buffer *buffer);      /* elements of the window */
QUAY_API quay_dtype quay_buffer_dtype(const quay_buffer *buffer);
QUAY_API int32_t quay_buffer_rank(const quay_buffer *buffer);
/* `rank` extents, in elements, outermost first; lives as long as the handle. NULL for rank 0. */
QUAY_API const int64_t *quay_buffer_shape(const quay_buffer *buffer);
QUAY_API bool quay_buffer_is_allocated(const quay_buffer *buffer);
QUAY_API bool quay_buffer_is_sealed(const quay_buffer *buffer);
QUAY_API bool quay_buffer_host_accessible(const quay_buffer *buffer);
QUAY_API quay_memory_kind quay_buffer_kind(const quay_buffer *buffer);
/* Of the memory, or for a lazy buffer of what would be allocated now; see device.h. */
QUAY_API uint64_t quay_buffer_generation(const quay_buffer *buffer);
/* Not retained: they live as long as the buffer. */
QUAY_API quay_allocator *quay_buffer_allocator(const quay_buffer *buffer);
QUAY_API quay_device *quay_buffer_device(const quay_buffer *buffer);

/* Whether the memory can still be used.
 * Errors: INVALID_ARGUMENT (NULL), STALE (the device was reset or lost since the memory was
 * allocated), DEVICE_LOST with the device's first message. QUAY_OK for a lazy buffer.
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_buffer_check(const quay_buffer *buffer);

/* Allocation and sealing. */

/* Allocates the storage if it is not allocated. Truly once, however many threads ask: the others
 * wait and get the first one's result; after a failure a later call tries again.
 * Errors: those of quay_allocator_alloc().
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_buffer_ensure_allocated(quay_buffer *buffer);

/* Makes the storage read-only for good, for every handle on it: new writes are refused, recorded
 * ones waited for. Sealing twice is fine.
 * Errors: INVALID_ARGUMENT (NULL), NOT_ALLOCATED, BUSY (a write access is open; not sealed then).
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_buffer_seal(quay_buffer *buffer);

/* Host access. */
/* The pointer stays valid as long as the storage lives. Recorded device work is waited for once,
 * when it is taken: for reading, that on writes to the window; for writing, all of it. Device work
 * that is submitted later is the caller's to order. For device memory with a mirror see cuda.h.
 *
 * Errors of all: INVALID_ARGUMENT (NULL), NOT_ALLOCATED (reading a lazy buffer),
 * NOT_HOST_ACCESSIBLE, READ_ONLY (the _mut ones, sealed storage or read-only mapping), STALE,
 * DEVICE_LOST, and for the _mut ones those of quay_allocator_alloc(). */

/* The bytes of the window. `*out_size` (may be NULL) is their number. The pointer is not NULL, for
 * an empty window too.
 * Thread-safety: any thread; the bytes are the caller's to synchronise. */
QUAY_API QUAY_NODISCARD quay_status quay_buffer_host_bytes(const quay_buffer *buffer,
                                                           const void **out_bytes,
                                                           uint64_t *out_size);
QUAY_API QUAY_NODISCARD quay_status quay_buffer_host_bytes_mut(quay_buffer *buffer,
                                                               void **out_bytes,
                                                               uint64_t *out_size);

/* A typed array with the buffer's shape. `data` points to elements of `dtype` in row-major order.
 */
typedef struct quay_host_array {
  const void *data;
  quay_dtype dtype;
  int32_t rank;
  const int64_t *shape; /* `rank` extents; lives as long as the buffer */
  uint64_t count;       /* elements */
} quay_host_array;

typedef struct quay_host_array_mut {
  void *data;
  quay_dtype dtype;
  int32_t rank;
  const int64_t *shape;
  uint64_t count;
} quay_host_array_mut;

/* The window as a typed array. `dtype` must be the buffer's.
 * Further errors: TYPE_MISMATCH, MISALIGNED (the address is no multiple of the dtype's alignment).
 * Thread-safety: any thread; the bytes are the caller's to synchronise. */
QUAY_API QUAY_NODISCARD quay_status quay_buffer_host_array(const quay_buffer *buffer,
                                                           quay_dtype dtype,
                                                           quay_host_array *out_array);
QUAY_API QUAY_NODISCARD quay_status quay_buffer_host_array_mut(quay_buffer *buffer,
                                                               quay_dtype dtype,
                                                               quay_host_array_mut *out_array);

/* `count` elements from element `first` on, flat in row-major order, without a shape.
 * Further errors: TYPE_MISMATCH, MISALIGNED, OUT_OF_RANGE.
 * Thread-safety: any thread; the bytes are the caller's to synchronise. */
QUAY_API QUAY_NODISCARD quay_status quay_buffer_host_slice(const quay_buffer *buffer,
                                                           quay_dtype dtype, uint64_t first,
                                                           uint64_t count, const void **out_data);
QUAY_API QUAY_NODISCARD quay_status quay_buffer_host_slice_mut(quay_buffer *buffer,
                                                               quay_dtype dtype, uint64_t first,
                                                               uint64_t count, void **out_data);

/* Copies the only element of a buffer of exactly one into `out_value`, wherever the memory is (the
 * buffer need not be host accessible). `dtype` must be the buffer's.
 * Further errors: TYPE_MISMATCH, SIZE_MISMATCH (not exactly one element).
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_buffer_item(const quay_buffer *buffer, quay_dtype dtype,
                                                     void *out_value);

/* The address of the window's first byte in its own device's address space, for the arguments of
 * a kernel. Waits for nothing and records nothing: see quay_access_begin() (stream.h) for that.
 * Errors: INVALID_ARGUMENT (NULL), NOT_ALLOCATED, UNSUPPORTED where memory has no address, STALE,
 * DEVICE_LOST.
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_buffer_address(const quay_buffer *buffer,
                                                        uint64_t *out_address);

/* The raw buffer of the storage (the whole of it: the window begins at quay_buffer_offset()). Lent:
 * it is valid as long as the storage lives and must not be freed.
 * Errors: INVALID_ARGUMENT (NULL), NOT_ALLOCATED, STALE, DEVICE_LOST.
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_buffer_raw(const quay_buffer *buffer,
                                                    const quay_raw_buffer **out_raw);

/* Waits until all recorded device work on the window is done.
 * Errors: INVALID_ARGUMENT (NULL), DEVICE_LOST.
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_buffer_synchronize(quay_buffer *buffer);

QUAY_END_DECLS

#endif
