/* The public functions about buffers, memory, devices and queues of Vulkan's own. */
#include <quay/vulkan.h>
#include <string.h>

#include "core/allocator_impl.h"
#include "core/arguments.h"
#include "core/checked.h"
#include "core/error.h"
#include "vulkan/vulkan_impl.h"

/* Memory. */

static quay_status check_memory(const quay_vulkan_memory *memory) {
  uint64_t end;
  if (memory->buffer != 0 && memory->size <= INT64_MAX &&
      quay__add(memory->offset, memory->size, &end) &&
      quay__add(memory->host_pointer, memory->size, &end))
    return QUAY_OK;
  return quay__fail(QUAY_STATUS_INVALID_ARGUMENT,
                    "quay_vulkan_adopt: %llu bytes from byte %llu of the VkBuffer 0x%llx are no "
                    "range of memory",
                    (unsigned long long)memory->size, (unsigned long long)memory->offset,
                    (unsigned long long)memory->buffer);
}

static quay_status adopt(quay_allocator *allocator, const quay_vulkan_memory *memory,
                         quay_release_callback release, void *user, quay_raw_buffer *out_raw) {
  const quay__vulkan *const self = quay__vulkan_of(allocator);
  if (self == NULL) {
    return quay__fail(QUAY_STATUS_UNSUPPORTED,
                      "quay_vulkan_adopt: allocator %s is no Vulkan allocator; open one such as "
                      "vulkan:0",
                      allocator->spec);
  }
  QUAY_TRY(quay__device_check(allocator->device));
  const bool hosted = self->kind != QUAY_VULKAN_DEVICE;
  if (hosted && memory->host_pointer == 0) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT,
                      "quay_vulkan_adopt: memory of the allocator %s is used by the host, so its "
                      "host_pointer must be there; map it first",
                      allocator->spec);
  }
  *out_raw = (quay_raw_buffer){
      .arm = QUAY_RAW_VULKAN,
      .size = memory->size,
      .as.vulkan =
          {
              .buffer = memory->buffer,
              .memory = memory->memory,
              .offset = memory->offset,
              .host_pointer = hosted ? memory->host_pointer : 0,
          },
  };
  return quay_raw_buffer_adopt(allocator, out_raw, (void *)(uintptr_t)memory->buffer, release,
                               user);
}

quay_status quay_vulkan_adopt(quay_allocator *allocator, const quay_vulkan_memory *memory,
                              quay_release_callback release, void *user, quay_raw_buffer *out_raw) {
  QUAY__REQUIRE(out_raw);
  memset(out_raw, 0, sizeof *out_raw);
  QUAY__REQUIRE(memory);
  QUAY_TRY(check_memory(memory));
  quay_allocator *resolved;
  QUAY_TRY(quay__allocator_resolve(allocator, &resolved));
  const quay_status status = adopt(resolved, memory, release, user, out_raw);
  if (status != QUAY_OK)
    memset(out_raw, 0, sizeof *out_raw);
  quay_allocator_release(resolved);
  return status;
}

static quay_vulkan_memory memory_of(const quay_raw_buffer *raw, uint64_t offset, uint64_t size) {
  const quay_raw_vulkan *const arm = &raw->as.vulkan;
  return (quay_vulkan_memory){
      .buffer = arm->buffer,
      .memory = arm->memory,
      .offset = arm->offset + offset,
      .size = size,
      .host_pointer = arm->host_pointer != 0 ? arm->host_pointer + offset : 0,
  };
}

quay_status quay_vulkan_release(quay_raw_buffer *raw, quay_vulkan_memory *out_memory) {
  QUAY__REQUIRE(raw);
  QUAY__REQUIRE(out_memory);
  memset(out_memory, 0, sizeof *out_memory);
  if (raw->owner != NULL && quay__vulkan_of(raw->owner) == NULL) {
    return quay__fail(QUAY_STATUS_UNSUPPORTED,
                      "quay_vulkan_release: the memory is of the allocator %s, which is no Vulkan "
                      "one",
                      raw->owner->spec);
  }
  const quay_vulkan_memory memory = memory_of(raw, 0, raw->size);
  QUAY_TRY(quay_raw_buffer_forget(raw));
  *out_memory = memory;
  return QUAY_OK;
}

/* The raw buffer behind a buffer of Vulkan memory. */
static quay_status find_raw(const quay_buffer *buffer, const char *function,
                            const quay_raw_buffer **out_raw) {
  const quay_allocator *const allocator = quay_buffer_allocator(buffer);
  if (quay__vulkan_of(allocator) == NULL) {
    return quay__fail(QUAY_STATUS_UNSUPPORTED,
                      "%s: the buffer is of the allocator %s, which is no Vulkan one", function,
                      quay_allocator_spec(allocator));
  }
  return quay_buffer_raw(buffer, out_raw);
}

quay_status quay_vulkan_window(const quay_buffer *buffer, quay_vulkan_memory *out_memory) {
  QUAY__REQUIRE(out_memory);
  memset(out_memory, 0, sizeof *out_memory);
  QUAY__REQUIRE(buffer);
  const quay_raw_buffer *raw;
  QUAY_TRY(find_raw(buffer, "quay_vulkan_window", &raw));
  *out_memory = memory_of(raw, quay_buffer_offset(buffer), quay_buffer_size(buffer));
  return QUAY_OK;
}

quay_status quay_vulkan_binding(const quay_buffer *buffer, quay_vulkan_memory *out_memory) {
  QUAY__REQUIRE(out_memory);
  memset(out_memory, 0, sizeof *out_memory);
  QUAY__REQUIRE(buffer);
  const quay_raw_buffer *raw;
  QUAY_TRY(find_raw(buffer, "quay_vulkan_binding", &raw));
  const quay__vulkan_device *const device = quay__vulkan_of(raw->owner)->device;
  const quay_vulkan_memory memory =
      memory_of(raw, quay_buffer_offset(buffer), quay_buffer_size(buffer));
  if (memory.size > device->limits.storage_range) {
    return quay_error_set(QUAY_STATUS_LIMIT_EXCEEDED, "vulkan", 0, NULL,
                          "%llu bytes can't be bound as one storage buffer on %s (%s): its "
                          "maxStorageBufferRange is %llu; bind views of at most that",
                          (unsigned long long)memory.size, device->name, device->product,
                          (unsigned long long)device->limits.storage_range);
  }
  if (device->limits.storage_alignment != 0 &&
      memory.offset % device->limits.storage_alignment != 0) {
    return quay_error_set(QUAY_STATUS_MISALIGNED, "vulkan", 0, NULL,
                          "a storage buffer can't begin at byte %llu of its VkBuffer on %s: its "
                          "minStorageBufferOffsetAlignment is %llu; bind from an aligned byte on",
                          (unsigned long long)memory.offset, device->name,
                          (unsigned long long)device->limits.storage_alignment);
  }
  *out_memory = memory;
  return QUAY_OK;
}

static quay_status export_span(const quay__vulkan_span *span, quay_vulkan_export *out_export) {
  quay__vulkan_block *const block = span->block;
  quay__vulkan_device *const device = block->device;
  const VkMemoryGetFdInfoKHR info = {
      .sType = VK_STRUCTURE_TYPE_MEMORY_GET_FD_INFO_KHR,
      .memory = block->memory,
      .handleType = VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT,
  };
  QUAY_TRY(quay__vulkan_check_callable());
  const VkResult result = device->api.vkGetMemoryFdKHR(device->handle, &info, &out_export->file);
  if (result != VK_SUCCESS)
    return quay__vulkan_fail(device, result, "memory of %s can't be exported", device->name);
  out_export->dedicated = block->dedicated;
  out_export->memory_size = block->memory_bytes;
  return QUAY_OK;
}

quay_status quay_vulkan_export_memory(const quay_buffer *buffer, quay_vulkan_export *out_export) {
  QUAY__REQUIRE(out_export);
  *out_export = (quay_vulkan_export){.file = -1};
  QUAY__REQUIRE(buffer);
  const quay_raw_buffer *raw;
  QUAY_TRY(find_raw(buffer, "quay_vulkan_export_memory", &raw));
  const quay__vulkan_span *const span = quay__vulkan_span_of(raw);
  /* Of a shared block more would be exported than the buffer. */
  if (span == NULL || span->block->shared || !span->block->exportable) {
    return quay__fail(QUAY_STATUS_UNSUPPORTED,
                      "quay_vulkan_export_memory: the buffer was not allocated for that; set "
                      "quay_alloc_options.exportable when it is created");
  }
  quay_vulkan_export exported = {
      .offset = raw->as.vulkan.offset + quay_buffer_offset(buffer),
      .size = quay_buffer_size(buffer),
  };
  QUAY_TRY(export_span(span, &exported));
  *out_export = exported;
  return QUAY_OK;
}

/* Devices. */

quay_status quay_vulkan_device(uint32_t index, quay_device **out_device) {
  QUAY__REQUIRE(out_device);
  return quay__vulkan_device_get(index, out_device);
}

static quay_status check_device(const quay_device *device, const char *function) {
  if (quay__vulkan_is(device))
    return QUAY_OK;
  return quay__fail(QUAY_STATUS_INVALID_ARGUMENT, "%s: %s is no device of the vulkan backend",
                    function, quay_device_name(device));
}

quay_status quay_vulkan_device_uuid(const quay_device *device, uint8_t out_uuid[16]) {
  QUAY__REQUIRE(device);
  QUAY__REQUIRE(out_uuid);
  QUAY_TRY(check_device(device, "quay_vulkan_device_uuid"));
  memcpy(out_uuid, quay__vulkan_device_of(device)->uuid, VK_UUID_SIZE);
  return QUAY_OK;
}

quay_status quay_vulkan_get_handles(quay_device *device, quay_vulkan_handles *out_handles) {
  QUAY__REQUIRE(out_handles);
  memset(out_handles, 0, sizeof *out_handles);
  QUAY__REQUIRE(device);
  QUAY_TRY(check_device(device, "quay_vulkan_get_handles"));
  QUAY_TRY(quay__device_check(device));
  const quay__vulkan_device *const of = quay__vulkan_device_of(device);
  *out_handles = (quay_vulkan_handles){
      .instance = QUAY__VULKAN_TO_INTEGER(of->instance->handle),
      .physical_device = QUAY__VULKAN_TO_INTEGER(of->physical),
      .device = QUAY__VULKAN_TO_INTEGER(of->handle),
      .queue_family = of->families[0],
      .get_instance_proc_addr = (uint64_t)(uintptr_t)of->instance->get,
  };
  return QUAY_OK;
}

quay_status quay_vulkan_get_limits(const quay_device *device, quay_vulkan_limits *out_limits) {
  QUAY__REQUIRE(out_limits);
  memset(out_limits, 0, sizeof *out_limits);
  QUAY__REQUIRE(device);
  QUAY_TRY(check_device(device, "quay_vulkan_get_limits"));
  const quay__vulkan_limits *const limits = &quay__vulkan_device_of(device)->limits;
  *out_limits = (quay_vulkan_limits){
      .max_storage_buffer_range = limits->storage_range,
      .min_storage_buffer_offset_alignment = limits->storage_alignment,
      .max_buffer_size = limits->buffer_bytes,
      .max_memory_allocation_size = limits->allocation_bytes,
      .max_memory_allocation_count = limits->allocations,
      .non_coherent_atom_size = limits->atom,
  };
  return QUAY_OK;
}

static const char *wrong_queues(const quay_vulkan_device_desc *desc) {
  if (desc->queues == NULL || desc->queue_count == 0 ||
      desc->queue_count > QUAY__VULKAN_STREAM_QUEUES_MAX)
    return "it needs 1 to 4 queues";
  for (size_t i = 0; i < desc->queue_count; i++) {
    if (desc->queues[i].queue == 0)
      return "a queue of it is 0";
    if ((desc->queues[i].lock == NULL) != (desc->queues[i].unlock == NULL))
      return "a queue of it has one of lock and unlock; give both, or neither";
  }
  return NULL;
}

quay_status quay_vulkan_device_adopt(const quay_vulkan_device_desc *desc,
                                     quay_device **out_device) {
  QUAY__REQUIRE(out_device);
  *out_device = NULL;
  QUAY__REQUIRE(desc);
  const char *wrong = wrong_queues(desc);
  if (desc->get_instance_proc_addr == 0 || desc->instance == 0 || desc->physical_device == 0 ||
      desc->device == 0)
    wrong = "a handle of it is 0";
  if (wrong != NULL)
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT, "quay_vulkan_device_adopt: %s", wrong);
  return quay__vulkan_device_wrap(desc, out_device);
}

quay_status quay_vulkan_allocator(quay_device *device, quay_vulkan_memory_kind kind,
                                  quay_allocator **out_allocator) {
  QUAY__REQUIRE(out_allocator);
  *out_allocator = NULL;
  QUAY__REQUIRE(device);
  QUAY_TRY(check_device(device, "quay_vulkan_allocator"));
  QUAY_TRY(quay__device_check(device));
  if ((int)kind < 0 || (int)kind >= QUAY_VULKAN_MEMORY_KINDS) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT,
                      "quay_vulkan_allocator: %d is no kind of memory; it must be "
                      "QUAY_VULKAN_DEVICE, QUAY_VULKAN_HOST or QUAY_VULKAN_CACHED",
                      (int)kind);
  }
  return quay__vulkan_allocator_make(device, kind, false, out_allocator);
}
