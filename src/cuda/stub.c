/* Stands in for the CUDA backend where it is not built in. */
#include "core/registry.h"
#include "core/unavailable.h"

static const quay__unavailable stub = {
    .name = "cuda",
    .reason = "the CUDA backend is not built into this library",
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
