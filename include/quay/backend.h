/* For those who write a backend: the interface that every kind of memory implements.
 *
 * A backend is a quay_allocator made by quay_allocator_create() from a table of functions, on a
 * device made by quay_device_create() (or on the host's). quay_backend_register() gives it a name
 * in specs; it then works in layers, in the contract suite and in copies with every other backend.
 * docs/adding-a-backend.md walks through a complete one.
 *
 * Rules for every function of a table:
 *   - It is called from any thread, the library's own included, and several at once.
 *   - It checks nothing that the core has checked: sizes are in range, alignments are powers of
 *     two, offsets plus sizes lie within raw buffers that this allocator's backend made, ranges are
 *     not empty.
 *   - It reports an error with quay_error_set() and returns the status that was set. It must not
 *     abort, print, throw or longjmp.
 *   - It may call the library for other allocators and buffers. The core holds no lock. */
#ifndef QUAY_BACKEND_H
#define QUAY_BACKEND_H

#include <quay/allocator.h>
#include <quay/base.h>
#include <quay/copy.h>
#include <quay/device.h>
#include <quay/log.h>
#include <quay/raw_buffer.h>
#include <quay/status.h>
#include <quay/stream.h>

QUAY_BEGIN_DECLS

/* Errors. */

/* Sets the calling thread's last error and returns `status`, so that a function can end with
 * `return quay_error_set(...)`. `backend` is the name that the error carries ("" for none), copied
 * up to 31 bytes; `native_name` is copied up to 63 bytes, NULL is "". The message says what was
 * asked, what was wrong and what would be right; line breaks and bytes that are no UTF-8 in it are
 * replaced.
 * Thread-safety: acts on the calling thread alone. */
QUAY_API quay_status quay_error_set(quay_status status, const char *backend, int64_t native_code,
                                    const char *native_name, const char *format, ...)
    QUAY_PRINTF(5, 6);

/* Sends one line to the log callback, if there is one.
 * Thread-safety: any thread. */
QUAY_API void quay_log(quay_log_level level, const char *format, ...) QUAY_PRINTF(2, 3);

/* Arguments of a spec. */

/* One argument: `key` is NULL for a positional one ("1" in "cuda:1"). Escapes are undone. */
typedef struct quay_spec_arg {
  const char *key;
  const char *value;
} quay_spec_arg;

/* The arguments after a name, and the spec that they came from for messages. */
typedef struct quay_spec_args {
  const char *name; /* "cuda" */
  const char *spec; /* the whole spec, as written */
  const quay_spec_arg *items;
  size_t count;
} quay_spec_args;

/* A key that a backend takes, for quay_spec_check(). */
typedef struct quay_spec_key {
  const char *key;  /* NULL for the positional argument */
  const char *form; /* for messages: "a power of two", "on or off", "a directory" */
} quay_spec_key;

/* Refuses arguments that are not among `keys`, that come twice, keys without a value, and more than
 * one positional argument.
 * The message quotes the argument and lists the keys with their forms.
 * Errors: INVALID_ARGUMENT.
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_spec_check(const quay_spec_args *args,
                                                    const quay_spec_key *keys, size_t count);

/* The value of `key` (NULL: the positional argument), or NULL if it is not there.
 * Thread-safety: any thread. */
QUAY_API const char *quay_spec_value(const quay_spec_args *args, const char *key);

/* Parses the value of `key`; where it is not there `*out` keeps what it holds. Bytes take the
 * units of quay_allocator_open(); a switch is "on" or "off"; an unsigned number is decimal. The
 * whole value must be used up.
 * Errors: INVALID_ARGUMENT; the message quotes the piece and says what would be right.
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_spec_bytes(const quay_spec_args *args, const char *key,
                                                    uint64_t *out);
QUAY_API QUAY_NODISCARD quay_status quay_spec_unsigned(const quay_spec_args *args, const char *key,
                                                       uint64_t *out);
QUAY_API QUAY_NODISCARD quay_status quay_spec_switch(const quay_spec_args *args, const char *key,
                                                     bool *out);

/* Devices. */

#define QUAY_DEVICE_VTABLE_VERSION 1u

/* The functions of a device. `self` is the `self` of quay_device_desc, which the other functions
 * get by quay_device_self(). All but destroy are optional. A zeroed table but for destroy, version
 * and struct_size is a device without streams: all its work is done on return.
 *
 * The stream group (stream_create to event_destroy) is there whole or not at all, and makes the
 * asynchronous group of the allocators' table possible. Streams and events are integers of the
 * backend's choice. A backend's stream must really be in order. */
typedef struct quay_device_vtable {
  /* First, so that any version can be destroyed. Called once, when the last reference is gone. */
  void (*destroy)(void *self);
  uint32_t version;     /* QUAY_DEVICE_VTABLE_VERSION */
  uint32_t struct_size; /* sizeof(quay_device_vtable) */

  quay_status (*memory_info)(quay_device *device, quay_memory_info *out_info);
  /* Waits until all work that Quay submitted to this device is done. */
  quay_status (*synchronize)(quay_device *device);
  /* Makes a lost or a healthy device usable from scratch: memory, streams and events of it are gone
   * afterwards, though free and event_destroy are still called for their handles. No stream is
   * open, no other call under way. On success the core begins a new generation. Default:
   * UNSUPPORTED. */
  quay_status (*reset)(quay_device *device);

  /* The stream group. */
  quay_status (*stream_create)(quay_device *device, const quay_stream_options *options,
                               uint64_t *out_stream);
  /* `native` is checked as far as the backend can; `*out_stream` is what is passed from then on. */
  quay_status (*stream_wrap)(quay_device *device, uint64_t native, uint64_t *out_stream);
  /* `wrapped` tells whether it came from stream_wrap. Does not wait for the stream's work. */
  void (*stream_destroy)(quay_device *device, uint64_t stream, bool wrapped);
  quay_status (*stream_synchronize)(quay_device *device, uint64_t stream);
  /* Makes later work on `stream` wait for `event`, an event of `event_device`: this device or
   * another one of the same backend. */
  quay_status (*stream_wait)(quay_device *device, uint64_t stream, quay_device *event_device,
                             uint64_t event);
  /* A new event after everything submitted to `stream` so far. */
  quay_status (*event_record)(quay_device *device, uint64_t stream, uint64_t *out_event);
  quay_status (*event_query)(quay_device *device, uint64_t event, bool *out_done);
  quay_status (*event_synchronize)(quay_device *device, uint64_t event);
  void (*event_destroy)(quay_device *device, uint64_t event);

  /* Not of the group: whether work may be submitted to `stream` and recorded, asked before anything
   * is. For streams that can be in a state of their own, as one that captures a graph is:
   * UNSUPPORTED. Must not change that state. Default: it may. */
  quay_status (*stream_check)(quay_device *device, uint64_t stream);

  /* Page-locks host memory, whole pages of the library's own, for all devices of this backend
   * (unless `pins_for_itself` is set), so that asynchronous copies of it really are, and takes that
   * back. Both or none, and only with the stream group. Large copies of other memory then go
   * through such memory in pieces; where pin fails, or is not there, through copy_in and copy_out.
   */
  quay_status (*pin)(quay_device *device, void *memory, uint64_t size);
  /* False: it may still be page-locked, so that nobody else gets the memory. */
  bool (*unpin)(quay_device *device, void *memory, uint64_t size);
  /* What pin has taken is page-locked for this device alone, as host memory is that one device has
   * imported: copies of other devices, of this backend too, get other memory. */
  bool pins_for_itself;
  /* How many streams, made with the option copies_only, the pieces of one large copy take turns on:
   * where one alone does not keep all busy that copies on this device. 0: one; at most 8 are used.
   */
  uint32_t copy_streams;

  /* The number of the NUMA node of the host that the device is at, as the operating system counts
   * them; below 0: unknown. Page-locked memory for the device's transfers is taken from that node,
   * and filled and emptied by threads there. Must not fail, and be quick: it is asked for each
   * chunk. Default: unknown. */
  int32_t (*numa_node)(quay_device *device);
} quay_device_vtable;

typedef struct quay_device_desc {
  const quay_device_vtable *vtable; /* copied */
  void *self;
  const char *backend; /* identity of the backend: peers have the same text. Copied */
  const char *name;    /* "late:0". Copied */
  quay_device_type_id type;
  int32_t index;
} quay_device_desc;

/* Makes a device. On success `self` is the device's, which calls destroy in the end; on error
 * destroy is not called and `self` is still the caller's.
 * Errors: INVALID_ARGUMENT (a NULL, a table that breaks a rule: the rule is named);
 * OUT_OF_HOST_MEMORY.
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_device_create(const quay_device_desc *desc,
                                                       quay_device **out_device);

/* Marks the device lost, for good within its generation: every later call that concerns it fails
 * with DEVICE_LOST and this message. The first report wins.
 * Thread-safety: any thread. */
QUAY_API void quay_device_mark_lost(quay_device *device, int64_t native_code,
                                    const char *native_name, const char *format, ...)
    QUAY_PRINTF(4, 5);

/* Begins a new generation: health is OK again, all memory of older generations is stale.
 * Thread-safety: any thread; no call of the backend for this device may be under way. */
QUAY_API void quay_device_advance_generation(quay_device *device);

/* Allocators. */

#define QUAY_ALLOCATOR_VTABLE_VERSION 1u

/* What alloc is asked for. The core has resolved the defaults. */
typedef struct quay_alloc_request {
  uint64_t size;      /* bytes; may be 0: the result still is a handle of its own */
  uint64_t alignment; /* bytes, a power of two, at least the allocator's own */
  bool zeroed;        /* set QUAY_RAW_ZEROED if the bytes are zero, else the core fills them */
  bool mirror;
  bool exportable;
  quay_stream *stream; /* NULL or a stream of the allocator's device */
} quay_alloc_request;

/* Numbers of a backend that the core can't count itself, for quay_stats. */
typedef struct quay_backend_stats {
  uint64_t reserved_bytes;
  uint64_t largest_free_bytes;
  uint64_t peak_bytes;    /* exact; 0 leaves it to the core */
  uint64_t pending_bytes; /* freed, and kept until device work is done; the core adds its own */
} quay_backend_stats;

/* How a function of the table would move bytes, for quay_copy_plan(). */
typedef struct quay_across_info {
  quay_route route;       /* of copy_across alone */
  uint64_t chunk;         /* bytes moved at a time; 0: all at once */
  uint32_t threads;       /* 0 counts as 1 */
  uint64_t staging_bytes; /* of host memory held meanwhile */
  const char *reason;     /* static text; NULL: the core's own */
  uint64_t source_offset; /* of copy_info alone, told to it: bytes into `source` */
  /* Of copy_out alone: most of the bytes have to come from a disk first, so that `threads` mostly
   * wait and may be more than there are processors. Staged copies take as many, and `chunk`. */
  bool from_disk;
  /* Of copy_out alone: bytes by which the source begins past a place where pieces are best cut, as
   * a page of its file is one. Below 4096. */
  uint64_t past_cut;
} quay_across_info;

/* One of many copies from host memory into an allocator's. */
typedef struct quay_copy_piece {
  quay_raw_buffer *destination;
  uint64_t offset; /* bytes into `destination` */
  const void *source;
  uint64_t size; /* bytes, at least 1 */
} quay_copy_piece;

/* The functions of an allocator. `self` is the `self` of quay_allocator_desc, which the other
 * functions get by quay_allocator_self(). destroy, alloc, free, copy_in and copy_out are mandatory.
 * What is NULL of the others is filled in when the allocator is made, with what the comment says.
 */
typedef struct quay_allocator_vtable {
  /* First, so that any version can be destroyed. Called once, when the last reference is gone and
   * all memory is freed. */
  void (*destroy)(void *self);
  uint32_t version;     /* QUAY_ALLOCATOR_VTABLE_VERSION */
  uint32_t struct_size; /* sizeof(quay_allocator_vtable) */

  /* Fills in `out_raw` (zeroed before): arm, the arm's handle, and flags where they apply. The core
   * sets size and owner. On error it leaves nothing behind. */
  quay_status (*alloc)(quay_allocator *allocator, const quay_alloc_request *request,
                       quay_raw_buffer *out_raw);
  /* Frees what alloc made. `pending` are events of device work that uses it: without
   * QUAY_ALLOCATOR_ORDERED_FREE they are complete, and count is 0. Does not block. Called for
   * memory of a lost device and of older generations, too: there is only bookkeeping to give back
   * then. */
  void (*free)(quay_allocator *allocator, quay_raw_buffer *raw, quay_event *const *pending,
               size_t count);
  /* Host memory to `destination`, and back. Done on return. */
  quay_status (*copy_in)(quay_allocator *allocator, quay_raw_buffer *destination, uint64_t offset,
                         const void *source, uint64_t size);
  quay_status (*copy_out)(quay_allocator *allocator, const quay_raw_buffer *source, uint64_t offset,
                          void *destination, uint64_t size);

  /* The host's address of the first byte. Default: NOT_HOST_ACCESSIBLE. Must be there if, and only
   * if, QUAY_ALLOCATOR_HOST_ACCESSIBLE is set. */
  quay_status (*host_pointer)(quay_allocator *allocator, const quay_raw_buffer *raw,
                              void **out_pointer);
  /* The address on the device. Default: host_pointer's, else UNSUPPORTED. */
  quay_status (*address)(quay_allocator *allocator, const quay_raw_buffer *raw,
                         uint64_t *out_address);
  /* Between two raw buffers of this backend, device and kind, perhaps the same one and overlapping:
   * as memmove. Default: in chunks through host memory, in the right order. */
  quay_status (*copy_within)(quay_allocator *allocator, quay_raw_buffer *destination,
                             uint64_t destination_offset, const quay_raw_buffer *source,
                             uint64_t source_offset, uint64_t size);
  /* A direct path between memory of two allocators of different device or kind; this one is the
   * destination's or the source's (the destination's is asked first). can_copy_across tells whether
   * there is one, and only then copy_across is called. Both or none. Default: there is none. Never
   * called for two sides that are ordinary host memory. For the plan of a copy with a lazy buffer
   * can_copy_across is handed a raw buffer whose arm is QUAY_RAW_NONE: only owner and size are set.
   */
  bool (*can_copy_across)(quay_allocator *allocator, const quay_raw_buffer *destination,
                          const quay_raw_buffer *source, uint64_t size, quay_across_info *out_info);
  quay_status (*copy_across)(quay_allocator *allocator, quay_raw_buffer *destination,
                             uint64_t destination_offset, const quay_raw_buffer *source,
                             uint64_t source_offset, uint64_t size);
  /* Called before another allocator moves bytes out of (QUAY_READ) or into (QUAY_WRITE) this memory
   * on its own: through a host pointer or a direct path. A layer that counts or checks copies does
   * so here; an error stops the copy before anything is moved. Default: nothing. */
  quay_status (*lend)(quay_allocator *allocator, const quay_raw_buffer *raw, uint64_t offset,
                      uint64_t size, quay_use_mode mode);
  /* How copy_in (`source` is NULL), copy_out (`destination` is NULL) or copy_within of `size` bytes
   * would go about it, for quay_copy_plan() and, of files, for staged copies. `out_info` says
   * before what it does if nothing is changed: all at once and one thread, which is the default. Of
   * a lazy buffer there is what can_copy_across is handed. */
  void (*copy_info)(quay_allocator *allocator, const quay_raw_buffer *destination,
                    const quay_raw_buffer *source, uint64_t size, quay_across_info *out_info);
  /* Repeats a pattern of 1, 2, 4, 8 or 16 bytes; size is a whole number of patterns. Default:
   * copy_in of a filled block, in chunks. */
  quay_status (*fill)(quay_allocator *allocator, quay_raw_buffer *raw, uint64_t offset,
                      uint64_t size, const void *pattern, size_t pattern_size);
  /* Makes writes durable in the file behind the memory. Default: nothing to do. */
  quay_status (*flush)(quay_allocator *allocator, const quay_raw_buffer *raw, uint64_t offset,
                       uint64_t size);
  /* Default: nothing to do. */
  quay_status (*advise)(quay_allocator *allocator, const quay_raw_buffer *raw, uint64_t offset,
                        uint64_t size, quay_advice advice);
  /* Gives cached memory back. Default: 0 bytes. */
  quay_status (*trim)(quay_allocator *allocator, uint64_t *out_bytes);
  /* Default: reserved is what is live. */
  void (*stats)(quay_allocator *allocator, quay_backend_stats *out_stats);
  /* Gives up ownership: after success free is not called for it. Default: UNSUPPORTED. `out_memory`
   * is for host memory; for other kinds the backend's own header has a function that calls
   * quay_raw_buffer_forget(), and out_memory is NULL. */
  quay_status (*release)(quay_allocator *allocator, quay_raw_buffer *raw,
                         quay_host_memory *out_memory);

  /* Fills in arm, handle and flags of `out_raw` for host memory that somebody else made. Default:
   * UNSUPPORTED. */
  quay_status (*adopt_host)(quay_allocator *allocator, const quay_host_memory *memory,
                            quay_raw_buffer *out_raw);

  /* Describes a part of a block that alloc or reserve made, as if it were a block: fills in arm,
   * handle and flags of `out_raw` (zeroed before), which every function but free, release, commit
   * and decommit then takes. Lets layers carve blocks. Copies a few words and can't fail. Default:
   * there is none, and layers hand out whole blocks. */
  void (*window)(quay_allocator *allocator, const quay_raw_buffer *block, uint64_t offset,
                 uint64_t size, quay_raw_buffer *out_raw);

  /* Address space and pages apart: all three or none. Sizes and offsets are multiples of the
   * allocator's `page_size`. Reserved memory can't be accessed until it is committed. Different
   * ranges of one reservation may be committed and decommitted by several threads at once. A range
   * is decommitted only when nothing uses it any more. With QUAY_ALLOCATOR_WHOLE_PAGES decommit is
   * given exactly the ranges that commit was given, one or several neighbours at a time; else any.
   * The reservation goes back by free, whatever is committed then. */
  quay_status (*reserve)(quay_allocator *allocator, uint64_t size, uint64_t alignment,
                         quay_raw_buffer *out_raw);
  quay_status (*commit)(quay_allocator *allocator, quay_raw_buffer *raw, uint64_t offset,
                        uint64_t size);
  quay_status (*decommit)(quay_allocator *allocator, quay_raw_buffer *raw, uint64_t offset,
                          uint64_t size);

  /* The asynchronous group: all or none, and only on a device with the stream group. Submitted to
   * `stream`, one of the allocator's device, in order. Host memory that lies in pinned memory of
   * the same backend has been read (copy_in_async) or written (copy_out_async) when the stream is
   * past that point; any other host memory already when the call returns. The ranges of
   * copy_within_async don't overlap. */
  quay_status (*copy_in_async)(quay_allocator *allocator, quay_raw_buffer *destination,
                               uint64_t offset, const void *source, uint64_t size, uint64_t stream);
  quay_status (*copy_out_async)(quay_allocator *allocator, const quay_raw_buffer *source,
                                uint64_t offset, void *destination, uint64_t size, uint64_t stream);
  quay_status (*copy_within_async)(quay_allocator *allocator, quay_raw_buffer *destination,
                                   uint64_t destination_offset, const quay_raw_buffer *source,
                                   uint64_t source_offset, uint64_t size, uint64_t stream);
  quay_status (*fill_async)(quay_allocator *allocator, quay_raw_buffer *raw, uint64_t offset,
                            uint64_t size, const void *pattern, size_t pattern_size,
                            uint64_t stream);

  /* copy_across submitted to `stream`, one of this allocator's device: for an allocator with
   * copy_across and the asynchronous group. The other side is of the same backend. NULL: such
   * copies block. */
  quay_status (*copy_across_async)(quay_allocator *allocator, quay_raw_buffer *destination,
                                   uint64_t destination_offset, const quay_raw_buffer *source,
                                   uint64_t source_offset, uint64_t size, uint64_t stream);
  /* What lend is for a copy that another allocator submits to a stream: the bytes are touched
   * later, ordered after all that conflicts. Default: nothing. */
  quay_status (*lend_async)(quay_allocator *allocator, const quay_raw_buffer *raw, uint64_t offset,
                            uint64_t size, quay_use_mode mode);
  /* copy_in_async of many pieces, whose sources lie in page-locked memory; on error some may have
   * been submitted. Default: one after the other. */
  quay_status (*copy_in_many_async)(quay_allocator *allocator, const quay_copy_piece *pieces,
                                    size_t count, uint64_t stream);
} quay_allocator_vtable;

/* Bits of quay_allocator_desc.flags. */
typedef enum quay_allocator_flags {
  /* The CPU can use its memory through host_pointer. */
  QUAY_ALLOCATOR_HOST_ACCESSIBLE = 1u << 0,
  /* free may be called with events that are not complete. */
  QUAY_ALLOCATOR_ORDERED_FREE = 1u << 1,
  /* Its memory is ordinary host memory all of which may be touched at any time without a fault:
   * the core copies it through its pointer without calling copy_in and copy_out. */
  QUAY_ALLOCATOR_PLAIN_HOST_MEMORY = 1u << 2,
  /* What one commit gave, one decommit takes back whole: a commit is a handle of the driver's, and
   * costs by number and hardly by size. */
  QUAY_ALLOCATOR_WHOLE_PAGES = 1u << 3,
} quay_allocator_flags;

typedef struct quay_allocator_desc {
  const quay_allocator_vtable *vtable; /* copied */
  void *self;
  const char *name;    /* of the backend: identity, with the device, of a space. Copied */
  const char *spec;    /* normal form, what opens an equal one: "late:0". Copied */
  quay_device *device; /* retained */
  quay_memory_kind kind;
  uint32_t flags;     /* quay_allocator_flags */
  uint64_t alignment; /* bytes, a power of two: of every allocation, asked or not */
  uint64_t page_size; /* bytes, of reserve/commit; 0 without them */
} quay_allocator_desc;

/* Makes an allocator. On success `self` is the allocator's, which calls destroy in the end; on
 * error destroy is not called and `self` is still the caller's.
 * Errors: INVALID_ARGUMENT (a NULL, a table that breaks a rule: the rule is named);
 * OUT_OF_HOST_MEMORY.
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_allocator_create(const quay_allocator_desc *desc,
                                                          quay_allocator **out_allocator);

/* The `self` that the allocator or device was made with. Lives as long as it.
 * Thread-safety: any thread; never changes. */
QUAY_API void *quay_allocator_self(const quay_allocator *allocator);
QUAY_API void *quay_device_self(const quay_device *device);

/* Whether the allocator was made from a table with this destroy function: how a backend recognises
 * its own. False for NULL.
 * Thread-safety: any thread; never changes. */
QUAY_API bool quay_allocator_is(const quay_allocator *allocator, void (*destroy)(void *self));

/* Describes memory that somebody else made, as owned by `allocator`: `raw` has its arm, handle,
 * flags and size set by the caller (a backend's adopt function). The core adds the owner, the flag
 * QUAY_RAW_ADOPTED and the callback, which may be NULL and is called with `memory`.
 * Errors: INVALID_ARGUMENT; OUT_OF_HOST_MEMORY. On error nothing is taken over.
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_raw_buffer_adopt(quay_allocator *allocator,
                                                          quay_raw_buffer *raw, void *memory,
                                                          quay_release_callback release,
                                                          void *user);

/* Makes every layer of the owner, and the owner's backend, forget `raw`, whose handle the caller
 * has read before: the memory is the caller's from then on, and `raw` is zeroed.
 * Errors: INVALID_ARGUMENT, NOT_ALLOCATED, UNSUPPORTED (carved by a layer, or the backend has no
 * release). On error nothing changes.
 * Thread-safety: the raw buffer is the caller's to synchronise. */
QUAY_API QUAY_NODISCARD quay_status quay_raw_buffer_forget(quay_raw_buffer *raw);

/* The native integers of a stream and an event, for a backend whose functions are handed objects.
 * Thread-safety: any thread; never change. */
QUAY_API uint64_t quay_event_native(const quay_event *event);
QUAY_API quay_device *quay_event_device(const quay_event *event);

/* Registration. */

#define QUAY_BACKEND_VERSION 1u

typedef struct quay_backend {
  uint32_t version;     /* QUAY_BACKEND_VERSION */
  uint32_t struct_size; /* sizeof(quay_backend) */
  const char *name;     /* lower-case letters, digits, '_' and '-'; begins with a letter */
  void *user;           /* handed to the functions */
  /* Opens an allocator for the arguments of a spec. Mandatory. */
  quay_status (*open)(void *user, const quay_spec_args *args, quay_allocator **out_allocator);
  /* Fills in device number `index`; `*out_more` is false if there is none of that number. Strings
   * must stay valid until the next call in the same thread. A backend that can't be used gives one
   * line with available false and the reason. NULL: one available device of the backend's name. */
  quay_status (*device_info)(void *user, size_t index, quay_device_info *out_info, bool *out_more);
} quay_backend;

/* Adds a backend under its name. The structure is copied, its strings too.
 * Errors: INVALID_ARGUMENT (NULL, a bad name, a version that is not known, a name that a layer or
 * backend has already); OUT_OF_HOST_MEMORY.
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_backend_register(const quay_backend *backend);

/* Takes a registered backend out again. Allocators that are open stay as they are.
 * Errors: INVALID_ARGUMENT (NULL, built in, or not registered).
 * Thread-safety: any thread. */
QUAY_API QUAY_NODISCARD quay_status quay_backend_unregister(const char *name);

QUAY_END_DECLS

#endif
