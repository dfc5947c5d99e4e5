/* The CUDA backend's allocator: opening one by its spec, and memory of the three kinds. Blocks are
 * in block.c, copies in copy.c, fill.c, async.c and peer.c. */
#include <stdio.h>
#include <string.h>

#include "core/allocator_impl.h"
#include "core/device_impl.h"
#include "core/error.h"
#include "core/host_copy.h"
#include "core/os.h"
#include "core/registry.h"
#include "core/spec.h"
#include "core/stream_impl.h"
#include "cuda/cuda_impl.h"

/* Of every allocation; the driver's own. */
#define DEFAULT_ALIGNMENT 256u

static void cuda_destroy(void *self) {
  quay__os_free(self);
}

quay__cuda *quay__cuda_of(const quay_allocator *allocator) {
  if (allocator == NULL || !quay_allocator_is(allocator->backend, cuda_destroy))
    return NULL;
  return allocator->backend->self;
}

/* The table's functions get the backend's own allocator. */
static quay__cuda *self_of(const quay_allocator *allocator) {
  return allocator->self;
}

static void count(quay__cuda *self, uint64_t delta) {
  atomic_fetch_add_explicit(&self->taken, delta, memory_order_relaxed);
}

/* Allocation. */

static quay_status check_request(const quay__cuda *self, const quay_alloc_request *request) {
  if (request->exportable && self->kind != QUAY_MEMORY_DEVICE) {
    return quay_error_set(QUAY_STATUS_UNSUPPORTED, "cuda", 0, NULL,
                          "%s memory can't be exported to another process; device memory can",
                          quay_memory_kind_name(self->kind));
  }
  if (request->exportable && !self->device->can_share) {
    return quay_error_set(QUAY_STATUS_UNSUPPORTED, "cuda", 0, NULL,
                          "%s (%s) has no memory that can be exported to another process: it lacks "
                          "virtual memory management with file descriptors",
                          self->device->name, self->device->product);
  }
  if (request->mirror && self->kind != QUAY_MEMORY_DEVICE) {
    return quay_error_set(QUAY_STATUS_UNSUPPORTED, "cuda", 0, NULL,
                          "%s memory needs no mirror: the host reaches it as it is; mirror device "
                          "memory",
                          quay_memory_kind_name(self->kind));
  }
  return QUAY_OK;
}

static quay__cuda_how how_of(const quay__cuda *self, const quay_alloc_request *request) {
  if (request->exportable)
    return QUAY__CUDA_SHARED;
  switch (self->kind) {
  case QUAY_MEMORY_PINNED:
    return QUAY__CUDA_PINNED;
  case QUAY_MEMORY_MANAGED:
    return QUAY__CUDA_MANAGED;
  case QUAY_MEMORY_DEVICE:
  case QUAY_MEMORY_NONE:
  case QUAY_MEMORY_PAGEABLE:
  case QUAY_MEMORY_FILE:
    break;
  }
  return request->stream != NULL && self->device->has_pools ? QUAY__CUDA_ORDERED : QUAY__CUDA_PLAIN;
}

static void describe(const quay__cuda *self, const quay_alloc_request *request,
                     const quay__cuda_block *block, quay_raw_buffer *out_raw) {
  const uint64_t mask = request->alignment - 1;
  const uint64_t pointer = (block->pointer + mask) & ~mask;
  const bool twin = block->host_bytes != 0;
  out_raw->arm = QUAY_RAW_CUDA;
  out_raw->flags = twin ? QUAY_RAW_MIRRORED : 0;
  out_raw->as.cuda = (quay_raw_cuda){
      .pointer = pointer,
      .host_pointer = self->kind != QUAY_MEMORY_DEVICE ? pointer : (uint64_t)(uintptr_t)block->host,
      .handle = (uint64_t)(uintptr_t)block,
      .device = self->device->ordinal,
      .flags = block->how,
      .stream = quay_stream_native(request->stream), /* the program can read it there */
  };
}

static quay_status alloc_entered(quay__cuda *self, quay__cuda_scope *scope,
                                 const quay_alloc_request *request, quay__cuda_block **out_block) {
  quay__cuda_block_request wanted = {
      .how = how_of(self, request),
      .size = request->size,
      .alignment = request->alignment,
      .mirror = request->mirror,
  };
  if (request->stream != NULL) {
    QUAY_TRY(
        quay__cuda_stream_use(self->device, quay__stream_handle(request->stream), &wanted.stream));
  }
  return quay__cuda_block_alloc(scope, &wanted, out_block);
}

static quay_status cuda_alloc(quay_allocator *allocator, const quay_alloc_request *request,
                              quay_raw_buffer *out_raw) {
  quay__cuda *const self = self_of(allocator);
  QUAY_TRY(check_request(self, request));
  quay__cuda_scope scope;
  QUAY_TRY(quay__cuda_enter(self->device, false, &scope));
  quay__cuda_block *block = NULL;
  const quay_status status = alloc_entered(self, &scope, request, &block);
  quay__cuda_leave(&scope);
  if (status != QUAY_OK)
    return status;
  describe(self, request, block, out_raw);
  count(self, block->bytes);
  return QUAY_OK;
}

static void cuda_free(quay_allocator *allocator, quay_raw_buffer *raw, quay_event *const *pending,
                      size_t pending_count) {
  quay__cuda *const self = self_of(allocator);
  quay__cuda_block *const block = quay__cuda_block_of(raw);
  count(self, -block->bytes);
  if (!quay__cuda_block_release(self->device, block, pending, pending_count))
    quay__statistics_error(&allocator->statistics);
}

/* Why one call of the driver would not free the block; NULL if one does. */
static const char *in_pieces(const quay__cuda_block *block, const quay_raw_buffer *raw) {
  if (block->how == QUAY__CUDA_SHARED)
    return "is exportable";
  if (block->how == QUAY__CUDA_RESERVED)
    return "is a reservation of addresses";
  if (block->host_bytes != 0)
    return "has a mirror";
  if (block->pointer != raw->as.cuda.pointer)
    return "was aligned to more than the driver's own 256 bytes";
  return NULL;
}

static quay_status cuda_release(quay_allocator *allocator, quay_raw_buffer *raw,
                                quay_host_memory *out_memory) {
  quay__cuda *const self = self_of(allocator);
  quay__cuda_block *const block = quay__cuda_block_of(raw);
  (void)out_memory; /* device memory is no host memory: quay_cuda_release() */
  const char *const why = in_pieces(block, raw);
  if (why != NULL) {
    return quay_error_set(QUAY_STATUS_UNSUPPORTED, "cuda", 0, NULL,
                          "memory that %s can't be released to the program: the driver would not "
                          "take it back in one piece",
                          why);
  }
  count(self, -block->bytes);
  quay__cuda_block_forget(self->device, block);
  return QUAY_OK;
}

static quay_status cuda_address(quay_allocator *allocator, const quay_raw_buffer *raw,
                                uint64_t *out_address) {
  (void)allocator;
  *out_address = raw->as.cuda.pointer;
  return QUAY_OK;
}

static quay_status cuda_trim(quay_allocator *allocator, uint64_t *out_bytes) {
  quay__cuda_device *const device = self_of(allocator)->device;
  *out_bytes = 0;
  quay__cuda_scope scope;
  QUAY_TRY(quay__cuda_enter(device, true, &scope));
  *out_bytes = quay__cuda_blocks_collect(device, false);
  quay__cuda_leave(&scope);
  return QUAY_OK;
}

static void cuda_stats(quay_allocator *allocator, quay_backend_stats *out_stats) {
  const uint64_t taken = atomic_load_explicit(&self_of(allocator)->taken, memory_order_relaxed);
  out_stats->reserved_bytes = taken <= INT64_MAX ? taken : 0;
}

static void cuda_window(quay_allocator *allocator, const quay_raw_buffer *block, uint64_t offset,
                        uint64_t size, quay_raw_buffer *out_raw) {
  (void)allocator;
  (void)size;
  out_raw->arm = block->arm;
  out_raw->flags = block->flags & (uint32_t)QUAY_RAW_MIRRORED;
  out_raw->as.cuda = block->as.cuda;
  out_raw->as.cuda.pointer += offset;
  if (out_raw->as.cuda.host_pointer != 0)
    out_raw->as.cuda.host_pointer += offset;
}

static const quay_allocator_vtable device_vtable = {
    .destroy = cuda_destroy,
    .version = QUAY_ALLOCATOR_VTABLE_VERSION,
    .struct_size = sizeof(quay_allocator_vtable),
    .alloc = cuda_alloc,
    .free = cuda_free,
    .copy_in = quay__cuda_copy_in,
    .copy_out = quay__cuda_copy_out,
    .address = cuda_address,
    .copy_within = quay__cuda_copy_within,
    .can_copy_across = quay__cuda_can_copy_across,
    .copy_across = quay__cuda_copy_across,
    .copy_info = quay__cuda_copy_info,
    .fill = quay__cuda_fill,
    .trim = cuda_trim,
    .stats = cuda_stats,
    .release = cuda_release,
    .window = cuda_window,
    .copy_in_async = quay__cuda_copy_in_async,
    .copy_in_many_async = quay__cuda_copy_in_many_async,
    .copy_out_async = quay__cuda_copy_out_async,
    .copy_within_async = quay__cuda_copy_within_async,
    .fill_async = quay__cuda_fill_async,
    .copy_across_async = quay__cuda_copy_across_async,
};

/* Pinned memory is the host's: the processor copies it, as long as it is mapped. The child of a
 * fork has no such memory (NVIDIA's kernel module leaves it out), and the driver unmaps it at exit.
 */

static char *host_at(const quay_raw_buffer *raw, uint64_t offset) {
  return (char *)(uintptr_t)raw->as.cuda.host_pointer + offset;
}

static quay_status host_pointer(quay_allocator *allocator, const quay_raw_buffer *raw,
                                void **out_pointer) {
  (void)allocator;
  QUAY_TRY(quay__cuda_check_callable());
  *out_pointer = host_at(raw, 0);
  return QUAY_OK;
}

static quay_status pinned_copy_in(quay_allocator *allocator, quay_raw_buffer *destination,
                                  uint64_t offset, const void *source, uint64_t size) {
  (void)allocator;
  QUAY_TRY(quay__cuda_check_callable());
  quay__host_move(host_at(destination, offset), source, size, 0);
  return QUAY_OK;
}

static quay_status pinned_copy_out(quay_allocator *allocator, const quay_raw_buffer *source,
                                   uint64_t offset, void *destination, uint64_t size) {
  (void)allocator;
  QUAY_TRY(quay__cuda_check_callable());
  quay__host_move(destination, host_at(source, offset), size, 0);
  return QUAY_OK;
}

static quay_status pinned_copy_within(quay_allocator *allocator, quay_raw_buffer *destination,
                                      uint64_t destination_offset, const quay_raw_buffer *source,
                                      uint64_t source_offset, uint64_t size) {
  (void)allocator;
  QUAY_TRY(quay__cuda_check_callable());
  quay__host_move(host_at(destination, destination_offset), host_at(source, source_offset), size,
                  0);
  return QUAY_OK;
}

static quay_status pinned_fill(quay_allocator *allocator, quay_raw_buffer *raw, uint64_t offset,
                               uint64_t size, const void *pattern, size_t pattern_size) {
  (void)allocator;
  QUAY_TRY(quay__cuda_check_callable());
  quay__host_fill(host_at(raw, offset), size, pattern, pattern_size);
  return QUAY_OK;
}

static void pinned_copy_info(quay_allocator *allocator, const quay_raw_buffer *destination,
                             const quay_raw_buffer *source, uint64_t size,
                             quay_across_info *out_info) {
  (void)allocator;
  (void)destination;
  (void)source;
  quay__host_copy_plan(size, 0, &out_info->threads, &out_info->chunk);
}

/* Opening. */

static void make_vtable(quay_memory_kind kind, bool pages, quay_allocator_vtable *out_vtable) {
  *out_vtable = device_vtable;
  if (pages) {
    out_vtable->reserve = quay__cuda_reserve;
    out_vtable->commit = quay__cuda_commit;
    out_vtable->decommit = quay__cuda_decommit;
  }
  if (kind != QUAY_MEMORY_DEVICE)
    out_vtable->host_pointer = host_pointer;
  if (kind != QUAY_MEMORY_PINNED)
    return;
  out_vtable->copy_in = pinned_copy_in;
  out_vtable->copy_out = pinned_copy_out;
  out_vtable->copy_within = pinned_copy_within;
  out_vtable->fill = pinned_fill;
  out_vtable->copy_info = pinned_copy_info;
}

static uint32_t flags_of(quay_memory_kind kind) {
  uint32_t flags = QUAY_ALLOCATOR_ORDERED_FREE;
  if (kind != QUAY_MEMORY_DEVICE)
    flags |= QUAY_ALLOCATOR_HOST_ACCESSIBLE;
  if (kind == QUAY_MEMORY_PINNED)
    flags |= QUAY_ALLOCATOR_PLAIN_HOST_MEMORY;
  return flags;
}

static quay_status parse_kind(const quay_spec_args *args, quay_memory_kind *out_kind) {
  static const quay_memory_kind kinds[] = {QUAY_MEMORY_DEVICE, QUAY_MEMORY_PINNED,
                                           QUAY_MEMORY_MANAGED};
  const char *const value = quay_spec_value(args, "memory");
  *out_kind = QUAY_MEMORY_DEVICE;
  if (value == NULL)
    return QUAY_OK;
  for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
    if (strcmp(value, quay_memory_kind_name(kinds[i])) == 0) {
      *out_kind = kinds[i];
      return QUAY_OK;
    }
  }
  return quay_error_set(QUAY_STATUS_INVALID_ARGUMENT, "cuda", 0, NULL,
                        "allocator spec \"%s\": memory=\"%s\" is not device, pinned or managed",
                        args->spec, value);
}

static quay_status check_kind(const quay__cuda_device *device, quay_memory_kind kind) {
  if (kind != QUAY_MEMORY_MANAGED || device->concurrent_managed)
    return QUAY_OK;
  return quay_error_set(QUAY_STATUS_UNSUPPORTED, "cuda", 0, NULL,
                        "managed memory on %s (%s) can't be used by the host while the device "
                        "works (no concurrent managed access); use memory=pinned or device memory",
                        device->name, device->product);
}

static quay_status open_on(quay_device *quay, quay_memory_kind kind,
                           quay_allocator **out_allocator) {
  quay__cuda_device *const device = quay__cuda_device_of(quay);
  QUAY_TRY(check_kind(device, kind));
  quay__cuda *const self = quay__os_calloc(1, sizeof *self);
  if (self == NULL)
    return quay__fail_out_of_memory(sizeof *self, "a CUDA allocator");
  self->device = device;
  self->kind = kind;
  char spec[64];
  (void)snprintf(spec, sizeof spec, "%s%s%s", device->name,
                 kind != QUAY_MEMORY_DEVICE ? ",memory=" : "",
                 kind != QUAY_MEMORY_DEVICE ? quay_memory_kind_name(kind) : "");
  const uint64_t page = kind == QUAY_MEMORY_DEVICE ? quay__cuda_page_size(device) : 0;
  quay_allocator_vtable vtable;
  make_vtable(kind, page != 0, &vtable);
  const quay_allocator_desc desc = {
      .vtable = &vtable,
      .self = self,
      .name = "cuda",
      .spec = spec,
      .device = quay,
      .kind = kind,
      .flags = flags_of(kind) | (page != 0 ? QUAY_ALLOCATOR_WHOLE_PAGES : 0u),
      .alignment = DEFAULT_ALIGNMENT,
      .page_size = page,
  };
  const quay_status status = quay_allocator_create(&desc, out_allocator);
  if (status != QUAY_OK)
    quay__os_free(self);
  return status;
}

quay_status quay__cuda_open(void *user, const quay_spec_args *args,
                            quay_allocator **out_allocator) {
  (void)user;
  static const quay_spec_key keys[] = {
      {.key = NULL, .form = "the number of a device, from 0"},
      {.key = "memory", .form = "device, pinned or managed"},
  };
  *out_allocator = NULL;
  QUAY_TRY(quay_spec_check(args, keys, sizeof keys / sizeof keys[0]));
  uint64_t ordinal = 0;
  QUAY_TRY(quay_spec_unsigned(args, NULL, &ordinal));
  quay_memory_kind kind;
  QUAY_TRY(parse_kind(args, &kind));
  quay_device *device;
  if (quay__cuda_device_get(ordinal, &device) != QUAY_OK)
    return quay__spec_name_error(args);
  quay_status status = quay__device_check(device); /* lost: the first message says what helps */
  if (status == QUAY_OK)
    status = open_on(device, kind, out_allocator);
  quay_device_release(device);
  return status;
}

const quay_backend quay__backend_cuda = {
    .version = QUAY_BACKEND_VERSION,
    .struct_size = sizeof(quay_backend),
    .name = "cuda",
    .open = quay__cuda_open,
    .device_info = quay__cuda_device_info,
};
