#include "support/manual_device.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
  EVENTS_MAX = 4096
};

manual_calls manual;
atomic_uint manual_fail_allocs, manual_fail_copies, manual_alloc_delay;
atomic_bool manual_capturing;

static atomic_uint streams_made, events_made;
static atomic_bool event_done[EVENTS_MAX];
static uint64_t event_stream[EVENTS_MAX];

static bool take_one(atomic_uint *budget) {
  unsigned left = atomic_load(budget);
  while (left != 0 && !atomic_compare_exchange_weak(budget, &left, left - 1)) {
  }
  return left != 0;
}

static quay_status maybe_fail_copy(void) {
  if (!take_one(&manual_fail_copies))
    return QUAY_OK;
  return quay_error_set(QUAY_STATUS_IO, "manual", 5, "EIO", "manual copy failure");
}

/* Memory. */

static manual_options *options_of(quay_allocator *allocator) {
  return quay_allocator_self(allocator);
}

static quay_status call_hook(quay_allocator *allocator, quay_use_mode mode, uint64_t offset,
                             uint64_t size) {
  const manual_options *options = options_of(allocator);
  return options->hook != NULL ? options->hook(options->user, mode, offset, size) : QUAY_OK;
}

static unsigned char *bytes_of(const quay_raw_buffer *raw) {
  return (unsigned char *)(uintptr_t)raw->as.external.handle[0];
}

static quay_status manual_alloc(quay_allocator *allocator, const quay_alloc_request *request,
                                quay_raw_buffer *out_raw) {
  atomic_fetch_add(&manual.alloc, 1);
  const unsigned delay = atomic_load(&manual_alloc_delay);
  nanosleep(&(struct timespec){.tv_nsec = (long)delay * 1000000}, NULL);
  if (take_one(&manual_fail_allocs)) {
    return quay_error_set(QUAY_STATUS_OUT_OF_DEVICE_MEMORY, "manual", 2, "MANUAL_FULL",
                          "manual failure %u", atomic_fetch_add(&manual.alloc_failed, 1) + 1);
  }
  const size_t size = (request->size + request->alignment) & ~(request->alignment - 1);
  void *memory = aligned_alloc(request->alignment, size);
  if (memory == NULL) {
    return quay_error_set(QUAY_STATUS_OUT_OF_DEVICE_MEMORY, "manual", 0, NULL, "no memory");
  }
  memset(memory, 0xa5, size);
  out_raw->arm = QUAY_RAW_EXTERNAL;
  out_raw->as.external.handle[0] = (uintptr_t)memory;
  if (options_of(allocator)->read_only)
    out_raw->flags |= QUAY_RAW_READ_ONLY;
  return QUAY_OK;
}

static void manual_free(quay_allocator *allocator, quay_raw_buffer *raw, quay_event *const *pending,
                        size_t count) {
  (void)allocator;
  (void)pending;
  atomic_fetch_add(&manual.free, 1);
  atomic_store(&manual.freed_pending, (unsigned)count);
  free(bytes_of(raw));
  /* What a careless backend does: the caller's error must survive it. */
  (void)quay_error_set(QUAY_STATUS_IO, "manual", 0, NULL, "set by manual_free");
}

static quay_status manual_copy_in(quay_allocator *allocator, quay_raw_buffer *destination,
                                  uint64_t offset, const void *source, uint64_t size) {
  atomic_fetch_add(&manual.copy_in, 1);
  QUAY_TRY(maybe_fail_copy());
  QUAY_TRY(call_hook(allocator, QUAY_WRITE, offset, size));
  memcpy(bytes_of(destination) + offset, source, size);
  return QUAY_OK;
}

static quay_status manual_copy_out(quay_allocator *allocator, const quay_raw_buffer *source,
                                   uint64_t offset, void *destination, uint64_t size) {
  atomic_fetch_add(&manual.copy_out, 1);
  QUAY_TRY(maybe_fail_copy());
  QUAY_TRY(call_hook(allocator, QUAY_READ, offset, size));
  memcpy(destination, bytes_of(source) + offset, size);
  return QUAY_OK;
}

static quay_status manual_copy_within(quay_allocator *allocator, quay_raw_buffer *destination,
                                      uint64_t destination_offset, const quay_raw_buffer *source,
                                      uint64_t source_offset, uint64_t size) {
  (void)allocator;
  atomic_fetch_add(&manual.copy_within, 1);
  QUAY_TRY(maybe_fail_copy());
  memmove(bytes_of(destination) + destination_offset, bytes_of(source) + source_offset, size);
  return QUAY_OK;
}

/* Across: works for the host's memory and this backend's own, and so for every test. */
static unsigned char *any_bytes(const quay_raw_buffer *raw) {
  void *pointer = NULL;
  if (raw->arm == QUAY_RAW_EXTERNAL)
    return bytes_of(raw);
  cr_assert_eq(quay_raw_buffer_host_pointer(raw, &pointer), QUAY_OK);
  return pointer;
}

static bool manual_can_copy_across(quay_allocator *allocator, const quay_raw_buffer *destination,
                                   const quay_raw_buffer *source, uint64_t size,
                                   quay_across_info *out_info) {
  (void)destination;
  (void)source;
  (void)size;
  if (!options_of(allocator)->across)
    return false;
  *out_info = (quay_across_info){
      .route = QUAY_ROUTE_DIRECT, .chunk = 12345, .threads = 3, .reason = "manual path"};
  return true;
}

static quay_status manual_copy_across(quay_allocator *allocator, quay_raw_buffer *destination,
                                      uint64_t destination_offset, const quay_raw_buffer *source,
                                      uint64_t source_offset, uint64_t size) {
  (void)allocator;
  atomic_fetch_add(&manual.copy_across, 1);
  QUAY_TRY(maybe_fail_copy());
  memcpy(any_bytes(destination) + destination_offset, any_bytes(source) + source_offset, size);
  return QUAY_OK;
}

static quay_status manual_lend(quay_allocator *allocator, const quay_raw_buffer *raw,
                               uint64_t offset, uint64_t size, quay_use_mode mode) {
  (void)allocator;
  (void)raw;
  (void)offset;
  (void)size;
  atomic_fetch_add(mode == QUAY_READ ? &manual.lend_read : &manual.lend_write, 1);
  return QUAY_OK;
}

static quay_status manual_fill(quay_allocator *allocator, quay_raw_buffer *raw, uint64_t offset,
                               uint64_t size, const void *pattern, size_t pattern_size) {
  (void)allocator;
  atomic_fetch_add(&manual.fill, 1);
  for (uint64_t done = 0; done < size; done += pattern_size) {
    memcpy(bytes_of(raw) + offset + done, pattern, pattern_size);
  }
  return QUAY_OK;
}

static quay_status manual_host_pointer(quay_allocator *allocator, const quay_raw_buffer *raw,
                                       void **out_pointer) {
  (void)allocator;
  *out_pointer = bytes_of(raw);
  return QUAY_OK;
}

static quay_status manual_address(quay_allocator *allocator, const quay_raw_buffer *raw,
                                  uint64_t *out_address) {
  if (options_of(allocator)->no_addresses) {
    return quay_error_set(QUAY_STATUS_UNSUPPORTED, "manual", 0, NULL, "no addresses");
  }
  *out_address = raw->as.external.handle[0];
  return QUAY_OK;
}

/* Streams. */

static quay_status manual_stream_create(quay_device *device, const quay_stream_options *options,
                                        uint64_t *out_stream) {
  (void)device;
  (void)options;
  atomic_fetch_add(&manual.stream_create, 1);
  *out_stream = atomic_fetch_add(&streams_made, 1) + 1;
  return QUAY_OK;
}

static quay_status manual_stream_wrap(quay_device *device, uint64_t native, uint64_t *out_stream) {
  (void)device;
  atomic_fetch_add(&manual.stream_wrap, 1);
  *out_stream = native;
  return QUAY_OK;
}

static void manual_stream_destroy(quay_device *device, uint64_t stream, bool wrapped) {
  (void)device;
  (void)stream;
  (void)wrapped;
  atomic_fetch_add(&manual.stream_destroy, 1);
}

void manual_complete_stream(uint64_t native) {
  const unsigned made = atomic_load(&events_made);
  for (unsigned i = 0; i < made; i++) {
    if (event_stream[i] == native)
      atomic_store(&event_done[i], true);
  }
}

void manual_complete_all(void) {
  const unsigned made = atomic_load(&events_made);
  for (unsigned i = 0; i < made; i++)
    atomic_store(&event_done[i], true);
}

static quay_status manual_stream_synchronize(quay_device *device, uint64_t stream) {
  (void)device;
  atomic_fetch_add(&manual.stream_synchronize, 1);
  manual_complete_stream(stream);
  return QUAY_OK;
}

static quay_status manual_stream_wait(quay_device *device, uint64_t stream,
                                      quay_device *event_device, uint64_t event) {
  (void)device;
  (void)stream;
  (void)event_device;
  (void)event;
  atomic_fetch_add(&manual.stream_wait, 1);
  return QUAY_OK;
}

static quay_status manual_event_record(quay_device *device, uint64_t stream, uint64_t *out_event) {
  (void)device;
  atomic_fetch_add(&manual.event_record, 1);
  const unsigned index = atomic_fetch_add(&events_made, 1);
  cr_assert_lt(index, EVENTS_MAX);
  event_stream[index] = stream;
  *out_event = index;
  return QUAY_OK;
}

static quay_status manual_event_query(quay_device *device, uint64_t event, bool *out_done) {
  (void)device;
  atomic_fetch_add(&manual.event_query, 1);
  *out_done = atomic_load(&event_done[event]);
  return QUAY_OK;
}

static quay_status manual_event_synchronize(quay_device *device, uint64_t event) {
  (void)device;
  atomic_fetch_add(&manual.event_synchronize, 1);
  atomic_store(&event_done[event], true);
  return QUAY_OK;
}

static void manual_event_destroy(quay_device *device, uint64_t event) {
  (void)device;
  (void)event;
  atomic_fetch_add(&manual.event_destroy, 1);
}

static quay_status manual_stream_check(quay_device *device, uint64_t stream) {
  (void)device;
  (void)stream;
  if (!atomic_load(&manual_capturing))
    return QUAY_OK;
  return quay_error_set(QUAY_STATUS_UNSUPPORTED, "manual", 0, NULL, "the stream is capturing");
}

static void nothing_to_destroy(void *self) {
  (void)self;
}

static quay_device *open_device(const manual_options *options, const char *backend) {
  quay_device_vtable vtable = {.destroy = nothing_to_destroy,
                               .version = QUAY_DEVICE_VTABLE_VERSION,
                               .struct_size = sizeof(vtable)};
  if (options->streams) {
    vtable.stream_create = manual_stream_create;
    vtable.stream_wrap = manual_stream_wrap;
    vtable.stream_destroy = manual_stream_destroy;
    vtable.stream_synchronize = manual_stream_synchronize;
    vtable.stream_wait = manual_stream_wait;
    vtable.event_record = manual_event_record;
    vtable.event_query = manual_event_query;
    vtable.event_synchronize = manual_event_synchronize;
    vtable.event_destroy = manual_event_destroy;
    vtable.stream_check = manual_stream_check;
  }
  char name[48];
  (void)snprintf(name, sizeof(name), "%s:0", backend);
  const quay_device_desc desc = {.vtable = &vtable,
                                 .backend = backend,
                                 .name = name,
                                 .type = QUAY_DEVICE_EXTERNAL,
                                 .index = 0};
  quay_device *device = NULL;
  cr_assert_eq(quay_device_create(&desc, &device), QUAY_OK, "%s", quay_last_error()->message);
  return device;
}

static quay_allocator *open_on(const manual_options *options, const char *backend,
                               quay_device *device) {
  const bool accessible = options->host_accessible || options->plain;
  const quay_allocator_vtable vtable = {
      .destroy = free,
      .version = QUAY_ALLOCATOR_VTABLE_VERSION,
      .struct_size = sizeof(vtable),
      .alloc = manual_alloc,
      .free = manual_free,
      .copy_in = manual_copy_in,
      .copy_out = manual_copy_out,
      .host_pointer = accessible ? manual_host_pointer : NULL,
      .address = manual_address,
      .copy_within = manual_copy_within,
      .can_copy_across = manual_can_copy_across,
      .copy_across = manual_copy_across,
      .lend = manual_lend,
      .fill = manual_fill,
  };
  manual_options *self = malloc(sizeof(*self));
  cr_assert_not_null(self);
  *self = *options;
  const quay_allocator_desc desc = {
      .vtable = &vtable,
      .self = self,
      .name = backend,
      .spec = backend,
      .device = device,
      .kind = options->kind != QUAY_MEMORY_NONE ? options->kind : QUAY_MEMORY_DEVICE,
      .flags = (accessible ? QUAY_ALLOCATOR_HOST_ACCESSIBLE : 0u) |
               (options->plain ? QUAY_ALLOCATOR_PLAIN_HOST_MEMORY : 0u) |
               (options->ordered_free ? QUAY_ALLOCATOR_ORDERED_FREE : 0u),
      .alignment = 64,
  };
  quay_allocator *allocator = NULL;
  cr_assert_eq(quay_allocator_create(&desc, &allocator), QUAY_OK, "%s", quay_last_error()->message);
  return allocator;
}

quay_allocator *manual_open(const manual_options *options) {
  const char *backend = options->backend != NULL ? options->backend : "manual";
  quay_device *device = open_device(options, backend);
  quay_allocator *allocator = open_on(options, backend, device);
  quay_device_release(device);
  return allocator;
}

quay_allocator *manual_open_beside(const manual_options *options, quay_allocator *peer) {
  return open_on(options, options->backend != NULL ? options->backend : "manual",
                 quay_allocator_device(peer));
}
