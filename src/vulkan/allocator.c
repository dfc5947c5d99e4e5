/* The Vulkan backend's allocator: opening one by its spec, and memory of the three kinds. Blocks
 * are in block.c, copies in copy.c, fill.c and async.c. */
#include <stdio.h>
#include <string.h>

#include "core/allocator_impl.h"
#include "core/error.h"
#include "core/os.h"
#include "core/registry.h"
#include "core/spec.h"
#include "vulkan/vulkan_impl.h"

static void vulkan_destroy(void *self) {
  quay__os_free(self);
}

quay__vulkan *quay__vulkan_of(const quay_allocator *allocator) {
  if (allocator == NULL || !quay_allocator_is(allocator->backend, vulkan_destroy))
    return NULL;
  return allocator->backend->self;
}

/* The table's functions get the backend's own allocator. */
static quay__vulkan *self_of(const quay_allocator *allocator) {
  return allocator->self;
}

/* Allocation. */

static quay_status check_request(const quay__vulkan *self, const quay_alloc_request *request) {
  if (request->mirror) {
    return quay_error_set(QUAY_STATUS_UNSUPPORTED, "vulkan", 0, NULL,
                          "memory of the vulkan backend has no mirror; allocate a buffer of %s,"
                          "memory=host beside it",
                          self->device->name);
  }
  if (request->exportable && (self->kind != QUAY_VULKAN_DEVICE || !self->device->has_export)) {
    return quay_error_set(QUAY_STATUS_UNSUPPORTED, "vulkan", 0, NULL,
                          self->kind != QUAY_VULKAN_DEVICE
                              ? "host-visible memory of %s can't be exported; export device memory"
                              : "memory of %s can't be exported: the device has no "
                                "VK_KHR_external_memory_fd for buffers",
                          self->device->name);
  }
  return QUAY_OK;
}

static void describe(const quay__vulkan *self, const quay__vulkan_span *span,
                     quay_raw_buffer *out_raw) {
  const quay__vulkan_block *const block = span->block;
  out_raw->arm = QUAY_RAW_VULKAN;
  out_raw->as.vulkan = (quay_raw_vulkan){
      .buffer = QUAY__VULKAN_TO_INTEGER(block->buffer),
      .memory = QUAY__VULKAN_TO_INTEGER(block->memory),
      .offset = span->offset,
      .host_pointer = block->host != NULL ? QUAY__VULKAN_TO_INTEGER(block->host) + span->offset : 0,
      .block = QUAY__VULKAN_TO_INTEGER(span),
      .memory_type = self->device->types[self->kind].index,
  };
}

static quay_status vulkan_alloc(quay_allocator *allocator, const quay_alloc_request *request,
                                quay_raw_buffer *out_raw) {
  const quay__vulkan *const self = self_of(allocator);
  QUAY_TRY(check_request(self, request));
  const quay__vulkan_block_request wanted = {
      .kind = self->kind,
      .size = request->size,
      .alignment = request->alignment,
      .dedicated = self->dedicated || request->exportable,
      .exportable = request->exportable,
  };
  quay__vulkan_span *span = NULL;
  QUAY_TRY(quay__vulkan_alloc(self->device, &wanted, &span));
  describe(self, span, out_raw);
  return QUAY_OK;
}

/* The core has waited for the work on it. */
static void vulkan_free(quay_allocator *allocator, quay_raw_buffer *raw, quay_event *const *pending,
                        size_t count) {
  (void)allocator;
  (void)pending;
  (void)count;
  quay__vulkan_free(quay__vulkan_span_of(raw));
}

static quay_status vulkan_release(quay_allocator *allocator, quay_raw_buffer *raw,
                                  quay_host_memory *out_memory) {
  quay__vulkan_span *const span = quay__vulkan_span_of(raw);
  (void)allocator;
  (void)out_memory; /* quay_vulkan_release() */
  if (span->block->shared) {
    return quay_error_set(QUAY_STATUS_UNSUPPORTED, "vulkan", 0, NULL,
                          "memory that shares its VkDeviceMemory with other allocations can't be "
                          "released to the program; open the allocator with dedicated=on");
  }
  if (span->block->dead) {
    return quay_error_set(QUAY_STATUS_STALE, "vulkan", 0, NULL,
                          "the memory was lost when its device was reset");
  }
  quay__vulkan_forget(span);
  return QUAY_OK;
}

static quay_status vulkan_address(quay_allocator *allocator, const quay_raw_buffer *raw,
                                  uint64_t *out_address) {
  const quay__vulkan *const self = self_of(allocator);
  const quay__vulkan_span *const span = quay__vulkan_span_of(raw);
  if (span != NULL && span->block->address != 0) {
    *out_address = span->block->address + raw->as.vulkan.offset;
    return QUAY_OK;
  }
  return quay_error_set(QUAY_STATUS_UNSUPPORTED, "vulkan", 0, NULL,
                        span == NULL
                            ? "memory that was adopted on %s has no address that Quay knows; bind "
                              "its buffer, or ask vkGetBufferDeviceAddress"
                            : "memory of %s has no address (the feature bufferDeviceAddress is not "
                              "there); bind its buffer: quay_vulkan_binding()",
                        self->device->name);
}

/* The part keeps the record of the block's memory: it is looked up there, and not freed. */
static void vulkan_window(quay_allocator *allocator, const quay_raw_buffer *block, uint64_t offset,
                          uint64_t size, quay_raw_buffer *out_raw) {
  (void)allocator;
  (void)size;
  out_raw->arm = QUAY_RAW_VULKAN;
  out_raw->as.vulkan = block->as.vulkan;
  out_raw->as.vulkan.offset += offset;
  if (out_raw->as.vulkan.host_pointer != 0)
    out_raw->as.vulkan.host_pointer += offset;
}

static quay_status vulkan_trim(quay_allocator *allocator, uint64_t *out_bytes) {
  *out_bytes = quay__vulkan_trim(self_of(allocator)->device);
  return QUAY_OK;
}

static void vulkan_stats(quay_allocator *allocator, quay_backend_stats *out_stats) {
  const quay__vulkan *const self = self_of(allocator);
  quay__vulkan_device *const device = self->device;
  out_stats->reserved_bytes =
      atomic_load_explicit(&device->reserved[self->kind], memory_order_relaxed);
  quay__lock_acquire(&device->lock);
  for (const quay__vulkan_block *block = device->blocks; block != NULL; block = block->next) {
    if (!block->shared || block->kind != self->kind || block->dead)
      continue;
    const uint64_t largest = quay__vulkan_spans_largest(block);
    if (largest > out_stats->largest_free_bytes)
      out_stats->largest_free_bytes = largest;
  }
  quay__lock_release(&device->lock);
}

/* It is mapped as long as the driver is there, and not in the child of a fork. */
static quay_status host_pointer(quay_allocator *allocator, const quay_raw_buffer *raw,
                                void **out_pointer) {
  (void)allocator;
  QUAY_TRY(quay__vulkan_check_callable());
  *out_pointer = (void *)(uintptr_t)raw->as.vulkan.host_pointer;
  return QUAY_OK;
}

static const quay_allocator_vtable device_vtable = {
    .destroy = vulkan_destroy,
    .version = QUAY_ALLOCATOR_VTABLE_VERSION,
    .struct_size = sizeof(quay_allocator_vtable),
    .alloc = vulkan_alloc,
    .free = vulkan_free,
    .copy_in = quay__vulkan_copy_in,
    .copy_out = quay__vulkan_copy_out,
    .address = vulkan_address,
    .copy_within = quay__vulkan_copy_within,
    .can_copy_across = quay__vulkan_can_copy_across,
    .copy_across = quay__vulkan_copy_across,
    .copy_info = quay__vulkan_copy_info,
    .fill = quay__vulkan_fill,
    .trim = vulkan_trim,
    .stats = vulkan_stats,
    .release = vulkan_release,
    .window = vulkan_window,
    .copy_in_async = quay__vulkan_copy_in_async,
    .copy_out_async = quay__vulkan_copy_out_async,
    .copy_within_async = quay__vulkan_copy_within_async,
    .fill_async = quay__vulkan_fill_async,
    .copy_across_async = quay__vulkan_copy_across_async,
    .copy_in_many_async = quay__vulkan_copy_in_many_async,
};

/* Opening. */

static const char *const kind_names[QUAY_VULKAN_MEMORY_KINDS] = {"device", "host", "cached"};

static quay_status parse_kind(const quay_spec_args *args, quay_vulkan_memory_kind *out_kind) {
  const char *const value = quay_spec_value(args, "memory");
  *out_kind = QUAY_VULKAN_DEVICE;
  if (value == NULL)
    return QUAY_OK;
  for (int i = 0; i < QUAY_VULKAN_MEMORY_KINDS; i++) {
    if (strcmp(value, kind_names[i]) == 0) {
      *out_kind = (quay_vulkan_memory_kind)i;
      return QUAY_OK;
    }
  }
  return quay_error_set(QUAY_STATUS_INVALID_ARGUMENT, "vulkan", 0, NULL,
                        "allocator spec \"%s\": memory=\"%s\" is not device, host or cached",
                        args->spec, value);
}

/* A program's writes through a pointer have no end that could be flushed, so that memory which is
 * not coherent is for the backend's own use alone. */
static quay_status check_kind(const quay__vulkan_device *device, quay_vulkan_memory_kind kind) {
  const quay__vulkan_type *const type = &device->types[kind];
  if (type->present && (kind == QUAY_VULKAN_DEVICE || type->coherent))
    return QUAY_OK;
  return quay_error_set(QUAY_STATUS_UNSUPPORTED, "vulkan", 0, NULL,
                        "%s (%s) has no memory that the processor caches%s; use memory=host",
                        device->name, device->product,
                        type->present ? " and that is coherent with the device" : "");
}

quay_status quay__vulkan_allocator_make(quay_device *quay, quay_vulkan_memory_kind kind,
                                        bool dedicated, quay_allocator **out_allocator) {
  quay__vulkan_device *const device = quay__vulkan_device_of(quay);
  QUAY_TRY(check_kind(device, kind));
  quay__vulkan *const self = quay__os_calloc(1, sizeof *self);
  if (self == NULL)
    return quay__fail_out_of_memory(sizeof *self, "a Vulkan allocator");
  *self = (quay__vulkan){.device = device, .kind = kind, .dedicated = dedicated};
  char spec[80];
  (void)snprintf(
      spec, sizeof spec, "%s%s%s%s", device->name, kind != QUAY_VULKAN_DEVICE ? ",memory=" : "",
      kind != QUAY_VULKAN_DEVICE ? kind_names[kind] : "", dedicated ? ",dedicated=on" : "");
  quay_allocator_vtable vtable = device_vtable;
  const bool hosted = kind != QUAY_VULKAN_DEVICE;
  if (hosted)
    vtable.host_pointer = host_pointer;
  const quay_allocator_desc desc = {
      .vtable = &vtable,
      .self = self,
      .name = "vulkan",
      .spec = spec,
      .device = quay,
      .kind = hosted ? QUAY_MEMORY_PINNED : QUAY_MEMORY_DEVICE,
      .flags = hosted ? QUAY_ALLOCATOR_HOST_ACCESSIBLE | QUAY_ALLOCATOR_PLAIN_HOST_MEMORY : 0,
      .alignment = QUAY__VULKAN_ALIGNMENT,
  };
  const quay_status status = quay_allocator_create(&desc, out_allocator);
  if (status != QUAY_OK)
    quay__os_free(self);
  return status;
}

static int hex_digit(char c) {
  if (c >= '0' && c <= '9')
    return c - '0';
  if (c >= 'a' && c <= 'f')
    return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* 32 hexadecimal digits; dashes may stand between the bytes. */
static bool parse_uuid(const char *text, uint8_t out_uuid[VK_UUID_SIZE]) {
  for (size_t i = 0; i < VK_UUID_SIZE; i++) {
    text += i != 0 && *text == '-';
    const int high = hex_digit(text[0]);
    const int low = high >= 0 ? hex_digit(text[1]) : -1;
    if (low < 0)
      return false;
    out_uuid[i] = (uint8_t)(high << 4 | low);
    text += 2;
  }
  return *text == '\0';
}

/* Which device the spec names. */
static quay_status find_device(const quay_spec_args *args, uint64_t *out_index) {
  const char *const number = quay_spec_value(args, NULL);
  const char *const text = quay_spec_value(args, "uuid");
  if (number != NULL && text != NULL) {
    return quay_error_set(QUAY_STATUS_INVALID_ARGUMENT, "vulkan", 0, NULL,
                          "allocator spec \"%s\" names a device twice, by its number and by its "
                          "UUID; leave one out",
                          args->spec);
  }
  if (number != NULL)
    return quay_spec_unsigned(args, NULL, out_index);
  uint8_t uuid[VK_UUID_SIZE];
  if (text != NULL && !parse_uuid(text, uuid)) {
    return quay_error_set(QUAY_STATUS_INVALID_ARGUMENT, "vulkan", 0, NULL,
                          "allocator spec \"%s\": uuid=\"%s\" is not 32 hexadecimal digits with or "
                          "without dashes",
                          args->spec, text);
  }
  const quay_status status =
      text != NULL ? quay__vulkan_find_uuid(uuid, out_index) : quay__vulkan_find_default(out_index);
  return status == QUAY_OK ? QUAY_OK : quay__spec_name_error(args);
}

quay_status quay__vulkan_open(void *user, const quay_spec_args *args,
                              quay_allocator **out_allocator) {
  (void)user;
  static const quay_spec_key keys[] = {
      {.key = NULL, .form = "the number of a device, from 0"},
      {.key = "uuid", .form = "the UUID of a device"},
      {.key = "memory", .form = "device, host or cached"},
      {.key = "dedicated", .form = "on or off"},
  };
  *out_allocator = NULL;
  QUAY_TRY(quay_spec_check(args, keys, sizeof keys / sizeof keys[0]));
  quay_vulkan_memory_kind kind;
  bool dedicated = false;
  uint64_t index = 0;
  QUAY_TRY(parse_kind(args, &kind));
  QUAY_TRY(quay_spec_switch(args, "dedicated", &dedicated));
  QUAY_TRY(find_device(args, &index));
  quay_device *device;
  if (quay__vulkan_device_get(index, &device) != QUAY_OK)
    return quay__spec_name_error(args);
  const quay_status status = quay__vulkan_allocator_make(device, kind, dedicated, out_allocator);
  quay_device_release(device);
  return status;
}

const quay_backend quay__backend_vulkan = {
    .version = QUAY_BACKEND_VERSION,
    .struct_size = sizeof(quay_backend),
    .name = "vulkan",
    .open = quay__vulkan_open,
    .device_info = quay__vulkan_device_info,
};
