/* The public functions about pointers, devices and streams of the driver. Mirrors are in mirror.c.
 */
#include <quay/cuda.h>
#include <string.h>

#include "core/allocator_impl.h"
#include "core/arguments.h"
#include "core/checked.h"
#include "core/error.h"
#include "cuda/cuda_impl.h"

/* The handle's layout is part of the ABI: a CUdeviceptr first, as a plain integer. */
_Static_assert(offsetof(quay_raw_cuda, pointer) == 0, "the device pointer comes first");
_Static_assert(sizeof(((quay_raw_cuda *)0)->pointer) == sizeof(quay__cu_pointer),
               "it is a CUdeviceptr");

/* What the driver knows about an address. */
typedef struct pointer_info {
  int type, managed, ordinal;
  quay__cu_pointer start;
  size_t size;
} pointer_info;

/* With the context current. A type of 0: there is nothing. */
static quay__cu_result query(quay__cuda_device *device, uint64_t pointer, pointer_info *out_info) {
  memset(out_info, 0, sizeof *out_info);
  int attributes[] = {QUAY__CU_POINTER_MEMORY_TYPE, QUAY__CU_POINTER_IS_MANAGED,
                      QUAY__CU_POINTER_DEVICE_ORDINAL, QUAY__CU_POINTER_RANGE_START,
                      QUAY__CU_POINTER_RANGE_SIZE};
  void *values[] = {&out_info->type, &out_info->managed, &out_info->ordinal, &out_info->start,
                    &out_info->size};
  return device->api->cuPointerGetAttributes(5, attributes, values, pointer);
}

/* Whether the address is of memory that was mapped by the driver's virtual memory management. */
static bool is_mapped(quay__cuda_device *device, uint64_t pointer) {
  const quay__cuda_api *const api = device->api;
  quay__cu_memory memory = 0;
  if (api->cuMemRetainAllocationHandle(&memory, (void *)(uintptr_t)pointer) != QUAY__CU_SUCCESS)
    return false;
  const quay__cu_result released = api->cuMemRelease(memory);
  if (released != QUAY__CU_SUCCESS) {
    quay__cuda_report(device, released, "a handle of memory of %s can't be given back",
                      device->name);
  }
  return true;
}

/* What is mapped piece by piece, as PyTorch's expandable segments are, is told piece by piece:
 * joins the pieces that follow without a gap, as far as they are asked for. */
static void join_pieces(quay__cuda_device *device, uint64_t end, pointer_info *info) {
  pointer_info next;
  while (info->size != 0 && info->start + info->size < end && is_mapped(device, info->start) &&
         query(device, info->start + info->size, &next) == QUAY__CU_SUCCESS &&
         next.type == info->type && next.ordinal == info->ordinal &&
         next.start == info->start + info->size && next.size != 0 && is_mapped(device, next.start))
    info->size += next.size;
}

static quay_status ask(quay__cuda_device *device, uint64_t pointer, uint64_t size,
                       pointer_info *out_info) {
  quay__cuda_scope scope;
  QUAY_TRY(quay__cuda_enter(device, true, &scope));
  const quay__cu_result result = query(device, pointer, out_info);
  if (result == QUAY__CU_SUCCESS)
    join_pieces(device, pointer + size, out_info);
  quay__cuda_leave(&scope);
  if (result == QUAY__CU_SUCCESS && out_info->type != 0)
    return QUAY_OK;
  if (result != QUAY__CU_SUCCESS && quay__cuda_sticky(result))
    return quay__cuda_fail(device, result, "adopting memory of %s", device->name);
  return quay_error_set(QUAY_STATUS_INVALID_ARGUMENT, "cuda", result,
                        result != QUAY__CU_SUCCESS ? quay__cuda_result_name(result) : NULL,
                        "adopting 0x%llx: the driver knows of no memory there; it must come from "
                        "the driver's own functions",
                        (unsigned long long)pointer);
}

static quay_memory_kind kind_of(const pointer_info *info) {
  if (info->managed != 0)
    return QUAY_MEMORY_MANAGED;
  return info->type == QUAY__CU_MEMORYTYPE_HOST ? QUAY_MEMORY_PINNED : QUAY_MEMORY_DEVICE;
}

static quay_status check_memory(const quay__cuda *self, uint64_t pointer, uint64_t size,
                                const pointer_info *info) {
  const quay_memory_kind kind = kind_of(info);
  if (kind != self->kind ||
      (kind == QUAY_MEMORY_DEVICE && info->ordinal != self->device->ordinal)) {
    return quay_error_set(QUAY_STATUS_INVALID_ARGUMENT, "cuda", 0, NULL,
                          "adopting 0x%llx: it is %s memory of cuda:%d, and the allocator's is %s "
                          "memory of %s",
                          (unsigned long long)pointer, quay_memory_kind_name(kind), info->ordinal,
                          quay_memory_kind_name(self->kind), self->device->name);
  }
  if (info->size != 0 &&
      (pointer < info->start || !quay__in_range(pointer - info->start, size, info->size))) {
    return quay_error_set(QUAY_STATUS_OUT_OF_RANGE, "cuda", 0, NULL,
                          "adopting %llu bytes at 0x%llx: they reach out of the allocation of %zu "
                          "bytes at 0x%llx",
                          (unsigned long long)size, (unsigned long long)pointer, info->size,
                          (unsigned long long)info->start);
  }
  return QUAY_OK;
}

static quay_status adopt(quay_allocator *allocator, uint64_t pointer, uint64_t size,
                         quay_release_callback release, void *user, quay_raw_buffer *out_raw) {
  quay__cuda *const self = quay__cuda_of(allocator);
  if (self == NULL) {
    return quay__fail(QUAY_STATUS_UNSUPPORTED,
                      "quay_cuda_adopt: allocator %s is no CUDA allocator; open one such as cuda:0",
                      allocator->spec);
  }
  QUAY_TRY(quay__device_check(allocator->device));
  if (size != 0) {
    pointer_info info;
    QUAY_TRY(ask(self->device, pointer, size, &info));
    QUAY_TRY(check_memory(self, pointer, size, &info));
  }
  *out_raw = (quay_raw_buffer){
      .arm = QUAY_RAW_CUDA,
      .size = size,
      .as.cuda =
          {
              .pointer = pointer,
              .host_pointer = self->kind != QUAY_MEMORY_DEVICE ? pointer : 0,
              .device = self->device->ordinal,
          },
  };
  return quay_raw_buffer_adopt(allocator, out_raw, (void *)(uintptr_t)pointer, release, user);
}

quay_status quay_cuda_adopt(quay_allocator *allocator, uint64_t pointer, uint64_t size,
                            quay_release_callback release, void *user, quay_raw_buffer *out_raw) {
  QUAY__REQUIRE(out_raw);
  memset(out_raw, 0, sizeof *out_raw);
  uint64_t end;
  if ((pointer == 0 && size != 0) || size > INT64_MAX || !quay__add(pointer, size, &end)) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT,
                      "quay_cuda_adopt: %llu bytes at 0x%llx are no range of memory; hand in a "
                      "CUdeviceptr and how many bytes of its allocation follow",
                      (unsigned long long)size, (unsigned long long)pointer);
  }
  quay_allocator *resolved;
  QUAY_TRY(quay__allocator_resolve(allocator, &resolved));
  const quay_status status = adopt(resolved, pointer, size, release, user, out_raw);
  if (status != QUAY_OK)
    memset(out_raw, 0, sizeof *out_raw);
  quay_allocator_release(resolved);
  return status;
}

quay_status quay_cuda_release(quay_raw_buffer *raw, quay_cuda_memory *out_memory) {
  QUAY__REQUIRE(raw);
  QUAY__REQUIRE(out_memory);
  *out_memory = (quay_cuda_memory){.pointer = 0};
  if (raw->owner != NULL && quay__cuda_of(raw->owner) == NULL) {
    return quay__fail(QUAY_STATUS_UNSUPPORTED,
                      "quay_cuda_release: the memory is of the allocator %s, which is no CUDA one",
                      raw->owner->spec);
  }
  if ((raw->flags & QUAY_RAW_ADOPTED) != 0 && quay__cuda_block_of(raw) != NULL) {
    return quay__fail(
        QUAY_STATUS_UNSUPPORTED,
        "quay_cuda_release: the memory is another process's, and was imported; it can "
        "only be freed");
  }
  const quay_cuda_memory memory = {.pointer = raw->as.cuda.pointer, .size = raw->size};
  QUAY_TRY(quay_raw_buffer_forget(raw));
  *out_memory = memory;
  return QUAY_OK;
}

quay_status quay_cuda_pointer(const quay_buffer *buffer, uint64_t *out_pointer) {
  QUAY__REQUIRE(out_pointer);
  *out_pointer = 0;
  QUAY__REQUIRE(buffer);
  if (quay__cuda_of(quay_buffer_allocator(buffer)) == NULL) {
    return quay__fail(QUAY_STATUS_UNSUPPORTED,
                      "quay_cuda_pointer: the buffer is of the allocator %s, which is no CUDA one",
                      quay_allocator_spec(quay_buffer_allocator(buffer)));
  }
  return quay_buffer_address(buffer, out_pointer);
}

/* Devices. */

quay_status quay_cuda_device(uint32_t index, quay_device **out_device) {
  QUAY__REQUIRE(out_device);
  return quay__cuda_device_get(index, out_device);
}

static quay_status check_cuda_device(const quay_device *device, const char *function) {
  if (quay_device_type(device) == QUAY_DEVICE_CUDA && strcmp(device->backend, "cuda") == 0)
    return QUAY_OK;
  return quay__fail(QUAY_STATUS_INVALID_ARGUMENT, "%s: %s is no device of the cuda backend",
                    function, quay_device_name(device));
}

quay_status quay_cuda_device_uuid(const quay_device *device, uint8_t out_uuid[16]) {
  QUAY__REQUIRE(device);
  QUAY__REQUIRE(out_uuid);
  QUAY_TRY(check_cuda_device(device, "quay_cuda_device_uuid"));
  memcpy(out_uuid, quay__cuda_device_of(device)->uuid.bytes, sizeof(quay__cu_uuid));
  return QUAY_OK;
}

/* A call that has nothing to wait for answers with what the device has run into. */
static void probe(quay__cuda_device *device) {
  quay__cuda_scope scope;
  if (quay__cuda_enter(device, true, &scope) != QUAY_OK)
    return;
  quay__cuda_event *event = NULL;
  if (quay__cuda_event_take(device, device->free_stream, &event) == QUAY_OK) {
    const quay__cu_result result = device->api->cuEventQuery(event->handle);
    if (result != QUAY__CU_SUCCESS && result != QUAY__CU_NOT_READY)
      quay__cuda_report(device, result, "%s was asked for its health", device->name);
    quay__cuda_event_give_back(device, event);
  }
  quay__cuda_leave(&scope);
}

quay_status quay_cuda_health(quay_device *device, quay_health *out_health) {
  QUAY__REQUIRE(device);
  QUAY__REQUIRE(out_health);
  *out_health = QUAY_HEALTH_LOST;
  QUAY_TRY(check_cuda_device(device, "quay_cuda_health"));
  QUAY_TRY(quay__cuda_check_callable());
  if (quay_device_health(device) == QUAY_HEALTH_OK) {
    quay__error_state saved;
    quay__error_save(&saved);
    probe(quay__cuda_device_of(device));
    quay__error_restore(&saved);
  }
  *out_health = quay_device_health(device);
  return QUAY_OK;
}

/* Streams. */

quay_status quay_cuda_stream_wrap(uint32_t index, uint64_t stream, quay_stream **out_stream) {
  QUAY__REQUIRE(out_stream);
  *out_stream = NULL;
  quay_device *device;
  QUAY_TRY(quay__cuda_device_get(index, &device));
  const quay_status status = quay_stream_wrap(device, stream, out_stream);
  quay_device_release(device);
  return status;
}

uint64_t quay_cuda_stream(const quay_stream *stream) {
  const quay_device *const device = quay_stream_device(stream);
  if (device == NULL || strcmp(device->backend, "cuda") != 0)
    return 0;
  return quay__cuda_stream_native(quay_stream_native(stream));
}
