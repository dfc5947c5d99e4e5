/* Stands in for the Vulkan backend where it is not built in: everything says so. */
#include <quay/vulkan.h>
#include <string.h>

#include "core/lifecycle.h"
#include "core/registry.h"
#include "core/unavailable.h"

#define REASON                                                                                    \
  "the Vulkan backend is not built into this library; build it with QUAY_VULKAN=ON, which needs " \
  "the Vulkan headers"

static const quay__unavailable stub = {
    .name = "vulkan",
    .reason = REASON,
    .type = QUAY_DEVICE_VULKAN,
};

const quay_backend quay__backend_vulkan = {
    .version = QUAY_BACKEND_VERSION,
    .struct_size = sizeof(quay_backend),
    .name = "vulkan",
    .user = (void *)(uintptr_t)&stub,
    .open = quay__unavailable_open,
    .device_info = quay__unavailable_info,
};

void quay__vulkan_shutdown(void) {}

static quay_status fail(const char *function) {
  return quay_error_set(QUAY_STATUS_UNAVAILABLE, "vulkan", 0, NULL, "%s: " REASON, function);
}

quay_status quay_vulkan_adopt(quay_allocator *allocator, const quay_vulkan_memory *memory,
                              quay_release_callback release, void *user, quay_raw_buffer *out_raw) {
  (void)allocator;
  (void)memory;
  (void)release;
  (void)user;
  if (out_raw != NULL)
    memset(out_raw, 0, sizeof *out_raw);
  return fail(__func__);
}

quay_status quay_vulkan_release(quay_raw_buffer *raw, quay_vulkan_memory *out_memory) {
  (void)raw;
  if (out_memory != NULL)
    memset(out_memory, 0, sizeof *out_memory);
  return fail(__func__);
}

quay_status quay_vulkan_window(const quay_buffer *buffer, quay_vulkan_memory *out_memory) {
  (void)buffer;
  if (out_memory != NULL)
    memset(out_memory, 0, sizeof *out_memory);
  return fail(__func__);
}

quay_status quay_vulkan_binding(const quay_buffer *buffer, quay_vulkan_memory *out_memory) {
  (void)buffer;
  if (out_memory != NULL)
    memset(out_memory, 0, sizeof *out_memory);
  return fail(__func__);
}

quay_status quay_vulkan_export_memory(const quay_buffer *buffer, quay_vulkan_export *out_export) {
  (void)buffer;
  if (out_export != NULL)
    *out_export = (quay_vulkan_export){.file = -1};
  return fail(__func__);
}

quay_status quay_vulkan_device(uint32_t index, quay_device **out_device) {
  (void)index;
  if (out_device != NULL)
    *out_device = NULL;
  return fail(__func__);
}

quay_status quay_vulkan_device_uuid(const quay_device *device, uint8_t out_uuid[16]) {
  (void)device;
  if (out_uuid != NULL)
    memset(out_uuid, 0, 16);
  return fail(__func__);
}

quay_status quay_vulkan_get_handles(quay_device *device, quay_vulkan_handles *out_handles) {
  (void)device;
  if (out_handles != NULL)
    memset(out_handles, 0, sizeof *out_handles);
  return fail(__func__);
}

quay_status quay_vulkan_get_limits(const quay_device *device, quay_vulkan_limits *out_limits) {
  (void)device;
  if (out_limits != NULL)
    memset(out_limits, 0, sizeof *out_limits);
  return fail(__func__);
}

quay_status quay_vulkan_device_adopt(const quay_vulkan_device_desc *desc,
                                     quay_device **out_device) {
  (void)desc;
  if (out_device != NULL)
    *out_device = NULL;
  return fail(__func__);
}

quay_status quay_vulkan_allocator(quay_device *device, quay_vulkan_memory_kind kind,
                                  quay_allocator **out_allocator) {
  (void)device;
  (void)kind;
  if (out_allocator != NULL)
    *out_allocator = NULL;
  return fail(__func__);
}

void quay_vulkan_queue_lock(quay_stream *stream) {
  (void)stream;
}

void quay_vulkan_queue_unlock(quay_stream *stream) {
  (void)stream;
}
