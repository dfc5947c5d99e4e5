/* The rules of the tables that backends fill in, and what stands in for functions they leave out.
 */
#include "core/vtable.h"

#include <string.h>

#include "core/allocator_impl.h"
#include "core/checked.h"
#include "core/error.h"
#include "core/os.h"

/* Names a broken rule. */
static quay_status fail_rule(const char *what, const char *name, const char *rule) {
  return quay__fail(QUAY_STATUS_INVALID_ARGUMENT, "%s \"%s\": %s", what, name != NULL ? name : "",
                    rule);
}

/* A group of functions: how many of them are there. */
typedef struct group {
  unsigned present, total;
} group;

static bool whole(group g) {
  return g.present == g.total;
}
static bool partial(group g) {
  return g.present != 0 && g.present != g.total;
}

static group stream_group(const quay_device_vtable *vtable) {
  group g = {.present = 0, .total = 9};
  g.present += vtable->stream_create != NULL;
  g.present += vtable->stream_wrap != NULL;
  g.present += vtable->stream_destroy != NULL;
  g.present += vtable->stream_synchronize != NULL;
  g.present += vtable->stream_wait != NULL;
  g.present += vtable->event_record != NULL;
  g.present += vtable->event_query != NULL;
  g.present += vtable->event_synchronize != NULL;
  g.present += vtable->event_destroy != NULL;
  return g;
}

quay_status quay__device_vtable_check(const quay_device_desc *desc, bool *out_has_streams) {
  const char *const what = "device";
  if (desc == NULL) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT, "quay_device_create: desc is NULL");
  }
  if (desc->name == NULL || desc->name[0] == '\0') {
    return fail_rule(what, desc->name, "it needs a name");
  }
  if (desc->backend == NULL || desc->backend[0] == '\0') {
    return fail_rule(what, desc->name, "it needs the name of its backend");
  }
  const quay_device_vtable *const vtable = desc->vtable;
  if (vtable == NULL)
    return fail_rule(what, desc->name, "its vtable is NULL");
  if (vtable->version != QUAY_DEVICE_VTABLE_VERSION) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT,
                      "device \"%s\": its vtable has version %u, this library takes version %u",
                      desc->name, vtable->version, QUAY_DEVICE_VTABLE_VERSION);
  }
  if (vtable->struct_size != sizeof *vtable) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT,
                      "device \"%s\": its vtable's struct_size is %u, version %u has %zu bytes",
                      desc->name, vtable->struct_size, vtable->version, sizeof *vtable);
  }
  if (vtable->destroy == NULL)
    return fail_rule(what, desc->name, "destroy is mandatory");
  const group streams = stream_group(vtable);
  if (partial(streams)) {
    return fail_rule(what, desc->name,
                     "the stream group (stream_create, stream_wrap, stream_destroy, "
                     "stream_synchronize, stream_wait, event_record, event_query, "
                     "event_synchronize, event_destroy) must be there whole or not at all");
  }
  if ((vtable->pin == NULL) != (vtable->unpin == NULL))
    return fail_rule(what, desc->name, "pin and unpin must both be there, or neither");
  if (vtable->pin != NULL && !whole(streams))
    return fail_rule(what, desc->name, "pin needs the stream group");
  *out_has_streams = whole(streams);
  return QUAY_OK;
}

static const char *missing_function(const quay_allocator_vtable *vtable) {
  if (vtable->destroy == NULL)
    return "destroy is mandatory";
  if (vtable->alloc == NULL)
    return "alloc is mandatory";
  if (vtable->free == NULL)
    return "free is mandatory";
  if (vtable->copy_in == NULL)
    return "copy_in is mandatory";
  if (vtable->copy_out == NULL)
    return "copy_out is mandatory";
  if ((vtable->can_copy_across == NULL) != (vtable->copy_across == NULL)) {
    return "can_copy_across and copy_across must both be there, or neither";
  }
  return NULL;
}

static const char *wrong_property(const quay_allocator_desc *desc) {
  const uint32_t known = QUAY_ALLOCATOR_HOST_ACCESSIBLE | QUAY_ALLOCATOR_ORDERED_FREE |
                         QUAY_ALLOCATOR_PLAIN_HOST_MEMORY | QUAY_ALLOCATOR_WHOLE_PAGES;
  const bool accessible = (desc->flags & QUAY_ALLOCATOR_HOST_ACCESSIBLE) != 0;
  if ((desc->flags & ~known) != 0)
    return "flags has bits that are none of quay_allocator_flags";
  if (desc->kind < QUAY_MEMORY_PAGEABLE || desc->kind > QUAY_MEMORY_DEVICE) {
    return "kind is none of quay_memory_kind";
  }
  if (!quay__is_power_of_two(desc->alignment) || desc->alignment > QUAY_ALIGNMENT_MAX) {
    return "alignment must be a power of two up to QUAY_ALIGNMENT_MAX";
  }
  if (accessible != (desc->vtable->host_pointer != NULL)) {
    return "host_pointer must be there if, and only if, QUAY_ALLOCATOR_HOST_ACCESSIBLE is set";
  }
  if ((desc->flags & QUAY_ALLOCATOR_PLAIN_HOST_MEMORY) != 0 && !accessible) {
    return "QUAY_ALLOCATOR_PLAIN_HOST_MEMORY needs QUAY_ALLOCATOR_HOST_ACCESSIBLE";
  }
  return NULL;
}

quay_status quay__allocator_vtable_check(const quay_allocator_desc *desc, bool device_has_streams,
                                         bool *out_has_async, bool *out_has_reserve) {
  const char *const what = "allocator";
  const quay_allocator_vtable *const vtable = desc->vtable;
  if (vtable->version != QUAY_ALLOCATOR_VTABLE_VERSION) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT,
                      "allocator \"%s\": its vtable has version %u, this library takes version %u",
                      desc->name, vtable->version, QUAY_ALLOCATOR_VTABLE_VERSION);
  }
  if (vtable->struct_size != sizeof *vtable) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT,
                      "allocator \"%s\": its vtable's struct_size is %u, version %u has %zu bytes",
                      desc->name, vtable->struct_size, vtable->version, sizeof *vtable);
  }
  const char *rule = missing_function(vtable);
  if (rule == NULL)
    rule = wrong_property(desc);
  if (rule != NULL)
    return fail_rule(what, desc->name, rule);

  group async = {.present = 0, .total = 4};
  async.present += vtable->copy_in_async != NULL;
  async.present += vtable->copy_out_async != NULL;
  async.present += vtable->copy_within_async != NULL;
  async.present += vtable->fill_async != NULL;
  if (partial(async)) {
    return fail_rule(what, desc->name,
                     "the asynchronous group (copy_in_async, copy_out_async, copy_within_async, "
                     "fill_async) must be there whole or not at all");
  }
  if (whole(async) && !device_has_streams) {
    return fail_rule(what, desc->name,
                     "the asynchronous group needs a device with the stream group");
  }
  if (vtable->copy_across_async != NULL && (!whole(async) || vtable->copy_across == NULL)) {
    return fail_rule(what, desc->name,
                     "copy_across_async needs copy_across and the asynchronous group");
  }
  group pages = {.present = 0, .total = 3};
  pages.present += vtable->reserve != NULL;
  pages.present += vtable->commit != NULL;
  pages.present += vtable->decommit != NULL;
  if (partial(pages)) {
    return fail_rule(what, desc->name,
                     "reserve, commit and decommit must all be there, or none of them");
  }
  if (whole(pages) && !quay__is_power_of_two(desc->page_size)) {
    return fail_rule(what, desc->name, "with reserve, page_size must be a power of two");
  }
  *out_has_async = whole(async);
  *out_has_reserve = whole(pages);
  return QUAY_OK;
}

/* Defaults of a device. */

static quay_status no_memory_info(quay_device *device, quay_memory_info *out_info) {
  (void)out_info;
  return quay_error_set(QUAY_STATUS_UNSUPPORTED, device->backend, 0, NULL,
                        "device %s does not tell how much memory it has", device->name);
}

static quay_status no_reset(quay_device *device) {
  return quay_error_set(QUAY_STATUS_UNSUPPORTED, device->backend, 0, NULL,
                        "device %s can't be reset; a new process begins with a new device",
                        device->name);
}

static quay_status already_done(quay_device *device) {
  (void)device;
  return QUAY_OK;
}

static quay_status always_ready(quay_device *device, uint64_t stream) {
  (void)device;
  (void)stream;
  return QUAY_OK;
}

static int32_t unknown_node(quay_device *device) {
  (void)device;
  return -1;
}

void quay__device_vtable_fill(quay_device_vtable *vtable) {
  if (vtable->memory_info == NULL)
    vtable->memory_info = no_memory_info;
  if (vtable->synchronize == NULL)
    vtable->synchronize = already_done;
  if (vtable->reset == NULL)
    vtable->reset = no_reset;
  if (vtable->stream_check == NULL)
    vtable->stream_check = always_ready;
  if (vtable->numa_node == NULL)
    vtable->numa_node = unknown_node;
}

/* Defaults of an allocator. */

static quay_status unsupported(const quay_allocator *allocator, const char *action) {
  return quay_error_set(QUAY_STATUS_UNSUPPORTED, allocator->name, 0, NULL, "%s memory can't %s",
                        allocator->name, action);
}

static quay_status no_host_pointer(quay_allocator *allocator, const quay_raw_buffer *raw,
                                   void **out_pointer) {
  (void)raw;
  *out_pointer = NULL;
  return quay_error_set(QUAY_STATUS_NOT_HOST_ACCESSIBLE, allocator->name, 0, NULL,
                        "%s memory has no address on the host; copy it out instead",
                        allocator->name);
}

static quay_status host_address(quay_allocator *allocator, const quay_raw_buffer *raw,
                                uint64_t *out_address) {
  if ((allocator->flags & QUAY_ALLOCATOR_HOST_ACCESSIBLE) == 0) {
    return unsupported(allocator, "be addressed by number");
  }
  void *pointer;
  QUAY_TRY(allocator->vtable.host_pointer(allocator, raw, &pointer));
  *out_address = (uint64_t)(uintptr_t)pointer;
  return QUAY_OK;
}

/* Chunks of the default copy_within and fill: on the stack of the caller, which may be a thread of
 * little stack. */
enum {
  DEFAULT_CHUNK = 16 << 10
};

static quay_status copy_within_in_chunks(quay_allocator *allocator, quay_raw_buffer *destination,
                                         uint64_t destination_offset, const quay_raw_buffer *source,
                                         uint64_t source_offset, uint64_t size) {
  unsigned char chunk[DEFAULT_CHUNK];
  /* From the end where the destination lies above the source: what is overwritten has been read. */
  const bool backward = destination_offset > source_offset;
  for (uint64_t done = 0; done < size;) {
    const uint64_t part = quay__min(size - done, sizeof chunk);
    const uint64_t at = backward ? size - done - part : done;
    QUAY_TRY(allocator->vtable.copy_out(allocator, source, source_offset + at, chunk, part));
    QUAY_TRY(
        allocator->vtable.copy_in(allocator, destination, destination_offset + at, chunk, part));
    done += part;
  }
  return QUAY_OK;
}

/* As copy_within_in_chunks() goes about it; of other copies there is nothing to tell. */
static void within_in_chunks_info(quay_allocator *allocator, const quay_raw_buffer *destination,
                                  const quay_raw_buffer *source, uint64_t size,
                                  quay_across_info *out_info) {
  (void)allocator;
  if (destination == NULL || source == NULL)
    return;
  out_info->chunk = quay__min(size, DEFAULT_CHUNK);
  out_info->threads = 1;
  out_info->staging_bytes = out_info->chunk;
  out_info->reason = "both are of one device and kind, whose backend has no copy of its own: "
                     "through the caller's stack, in small chunks";
}

static bool never_across(quay_allocator *allocator, const quay_raw_buffer *destination,
                         const quay_raw_buffer *source, uint64_t size, quay_across_info *out_info) {
  (void)allocator;
  (void)destination;
  (void)source;
  (void)size;
  (void)out_info;
  return false;
}

static quay_status no_copy_across(quay_allocator *allocator, quay_raw_buffer *destination,
                                  uint64_t destination_offset, const quay_raw_buffer *source,
                                  uint64_t source_offset, uint64_t size) {
  (void)destination;
  (void)destination_offset;
  (void)source;
  (void)source_offset;
  (void)size;
  return unsupported(allocator, "be copied directly to or from another kind");
}

static quay_status nothing_to_lend(quay_allocator *allocator, const quay_raw_buffer *raw,
                                   uint64_t offset, uint64_t size, quay_use_mode mode) {
  (void)allocator;
  (void)raw;
  (void)offset;
  (void)size;
  (void)mode;
  return QUAY_OK;
}

static void copied_at_once(quay_allocator *allocator, const quay_raw_buffer *destination,
                           const quay_raw_buffer *source, uint64_t size,
                           quay_across_info *out_info) {
  (void)allocator;
  (void)destination;
  (void)source;
  (void)size;
  (void)out_info;
}

quay_status quay__copy_in_one_by_one(quay_allocator *allocator, const quay_copy_piece *pieces,
                                     size_t count, uint64_t stream) {
  for (size_t i = 0; i < count; i++) {
    const quay_copy_piece *piece = &pieces[i];
    QUAY_TRY(allocator->vtable.copy_in_async(allocator, piece->destination, piece->offset,
                                             piece->source, piece->size, stream));
  }
  return QUAY_OK;
}

static quay_status no_copy_across_async(quay_allocator *allocator, quay_raw_buffer *destination,
                                        uint64_t destination_offset, const quay_raw_buffer *source,
                                        uint64_t source_offset, uint64_t size, uint64_t stream) {
  (void)stream;
  return no_copy_across(allocator, destination, destination_offset, source, source_offset, size);
}

static quay_status fill_in_chunks(quay_allocator *allocator, quay_raw_buffer *raw, uint64_t offset,
                                  uint64_t size, const void *pattern, size_t pattern_size) {
  unsigned char chunk[DEFAULT_CHUNK]; /* a whole number of every size of pattern */
  const uint64_t filled = quay__min(size, sizeof chunk);
  for (uint64_t at = 0; at < filled; at += pattern_size)
    memcpy(chunk + at, pattern, pattern_size);
  for (uint64_t done = 0; done < size;) {
    const uint64_t part = quay__min(size - done, filled);
    QUAY_TRY(allocator->vtable.copy_in(allocator, raw, offset + done, chunk, part));
    done += part;
  }
  return QUAY_OK;
}

static quay_status nothing_to_flush(quay_allocator *allocator, const quay_raw_buffer *raw,
                                    uint64_t offset, uint64_t size) {
  (void)allocator;
  (void)raw;
  (void)offset;
  (void)size;
  return QUAY_OK;
}

static quay_status advice_not_needed(quay_allocator *allocator, const quay_raw_buffer *raw,
                                     uint64_t offset, uint64_t size, quay_advice advice) {
  (void)advice;
  return nothing_to_flush(allocator, raw, offset, size);
}

static quay_status nothing_to_trim(quay_allocator *allocator, uint64_t *out_bytes) {
  (void)allocator;
  *out_bytes = 0;
  return QUAY_OK;
}

static void reserved_is_live(quay_allocator *allocator, quay_backend_stats *out_stats) {
  quay_stats stats;
  quay__statistics_read(&allocator->statistics, &stats);
  *out_stats = (quay_backend_stats){.reserved_bytes = stats.live_bytes};
}

static quay_status never_released(quay_allocator *allocator, quay_raw_buffer *raw,
                                  quay_host_memory *out_memory) {
  (void)raw;
  (void)out_memory;
  return unsupported(allocator, "be released to the program");
}

static quay_status never_adopted(quay_allocator *allocator, const quay_host_memory *memory,
                                 quay_raw_buffer *out_raw) {
  (void)memory;
  (void)out_raw;
  return unsupported(allocator, "be made of host memory that is there already");
}

void quay__allocator_vtable_fill(quay_allocator_vtable *vtable) {
#define DEFAULT(function, fallback) \
  if (vtable->function == NULL)     \
  vtable->function = (fallback)
  DEFAULT(host_pointer, no_host_pointer);
  DEFAULT(address, host_address);
  if (vtable->copy_within == NULL && vtable->copy_info == NULL)
    vtable->copy_info = within_in_chunks_info;
  DEFAULT(copy_within, copy_within_in_chunks);
  DEFAULT(can_copy_across, never_across);
  DEFAULT(copy_across, no_copy_across);
  DEFAULT(copy_across_async, no_copy_across_async);
  DEFAULT(lend, nothing_to_lend);
  DEFAULT(copy_info, copied_at_once);
  DEFAULT(lend_async, nothing_to_lend);
  DEFAULT(copy_in_many_async, quay__copy_in_one_by_one);
  DEFAULT(fill, fill_in_chunks);
  DEFAULT(flush, nothing_to_flush);
  DEFAULT(advise, advice_not_needed);
  DEFAULT(trim, nothing_to_trim);
  DEFAULT(stats, reserved_is_live);
  DEFAULT(release, never_released);
  DEFAULT(adopt_host, never_adopted);
#undef DEFAULT
}
