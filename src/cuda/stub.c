/* Stands in for the CUDA backend where it is not built in: everything says so. */
#include <quay/cuda.h>
#include <string.h>

#include "core/lifecycle.h"
#include "core/registry.h"
#include "core/unavailable.h"

#define REASON "the CUDA backend is not built into this library; build it with QUAY_CUDA=ON"

static const quay__unavailable stub = {
    .name = "cuda",
    .reason = REASON,
    .type = QUAY_DEVICE_CUDA,
};

const quay_backend quay__backend_cuda = {
    .version = QUAY_BACKEND_VERSION,
    .struct_size = sizeof(quay_backend),
    .name = "cuda",
    .user = (void *)(uintptr_t)&stub,
    .open = quay__unavailable_open,
    .device_info = quay__unavailable_info,
};

void quay__cuda_shutdown(void) {}

uint64_t quay__cuda_collect(void) {
  return 0;
}

static quay_status fail(const char *function) {
  return quay_error_set(QUAY_STATUS_UNAVAILABLE, "cuda", 0, NULL, "%s: " REASON, function);
}

quay_status quay_cuda_adopt(quay_allocator *allocator, uint64_t pointer, uint64_t size,
                            quay_release_callback release, void *user, quay_raw_buffer *out_raw) {
  (void)allocator;
  (void)pointer;
  (void)size;
  (void)release;
  (void)user;
  if (out_raw != NULL)
    memset(out_raw, 0, sizeof *out_raw);
  return fail(__func__);
}

quay_status quay_cuda_release(quay_raw_buffer *raw, quay_cuda_memory *out_memory) {
  (void)raw;
  if (out_memory != NULL)
    *out_memory = (quay_cuda_memory){.pointer = 0};
  return fail(__func__);
}

quay_status quay_cuda_pointer(const quay_buffer *buffer, uint64_t *out_pointer) {
  (void)buffer;
  if (out_pointer != NULL)
    *out_pointer = 0;
  return fail(__func__);
}

quay_status quay_cuda_export(quay_buffer *buffer, quay_cuda_shared *out_shared) {
  (void)buffer;
  if (out_shared != NULL)
    *out_shared = (quay_cuda_shared){.file = -1};
  return fail(__func__);
}

quay_status quay_cuda_import(quay_allocator *allocator, const quay_cuda_shared *shared,
                             quay_raw_buffer *out_raw) {
  (void)allocator;
  (void)shared;
  if (out_raw != NULL)
    memset(out_raw, 0, sizeof *out_raw);
  return fail(__func__);
}

quay_status quay_cuda_ipc_export(quay_buffer *buffer, quay_cuda_ipc *out_ipc) {
  (void)buffer;
  if (out_ipc != NULL)
    memset(out_ipc, 0, sizeof *out_ipc);
  return fail(__func__);
}

quay_status quay_cuda_ipc_import(quay_allocator *allocator, const quay_cuda_ipc *ipc,
                                 quay_raw_buffer *out_raw) {
  (void)allocator;
  (void)ipc;
  if (out_raw != NULL)
    memset(out_raw, 0, sizeof *out_raw);
  return fail(__func__);
}

quay_status quay_cuda_mirror_pointer(const quay_buffer *buffer, void **out_pointer) {
  (void)buffer;
  if (out_pointer != NULL)
    *out_pointer = NULL;
  return fail(__func__);
}

quay_status quay_cuda_mirror_flush(quay_buffer *buffer) {
  (void)buffer;
  return fail(__func__);
}

quay_status quay_cuda_mirror_invalidate(const quay_buffer *buffer) {
  (void)buffer;
  return fail(__func__);
}

quay_status quay_cuda_mirror_upload(quay_buffer *buffer, const void *source, uint64_t size) {
  (void)buffer;
  (void)source;
  (void)size;
  return fail(__func__);
}

quay_status quay_cuda_mirror_download(const quay_buffer *buffer, void *destination, uint64_t size) {
  (void)buffer;
  (void)destination;
  (void)size;
  return fail(__func__);
}

quay_status quay_cuda_device(uint32_t index, quay_device **out_device) {
  (void)index;
  if (out_device != NULL)
    *out_device = NULL;
  return fail(__func__);
}

quay_status quay_cuda_device_uuid(const quay_device *device, uint8_t out_uuid[16]) {
  (void)device;
  if (out_uuid != NULL)
    memset(out_uuid, 0, 16);
  return fail(__func__);
}

quay_status quay_cuda_health(quay_device *device, quay_health *out_health) {
  (void)device;
  if (out_health != NULL)
    *out_health = QUAY_HEALTH_LOST;
  return fail(__func__);
}

quay_status quay_cuda_stream_wrap(uint32_t index, uint64_t stream, quay_stream **out_stream) {
  (void)index;
  (void)stream;
  if (out_stream != NULL)
    *out_stream = NULL;
  return fail(__func__);
}

uint64_t quay_cuda_stream(const quay_stream *stream) {
  (void)stream;
  return 0;
}
