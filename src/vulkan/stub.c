/* Stands in for the Vulkan backend where it is not built in. */
#include "core/registry.h"
#include "core/unavailable.h"

static const quay__unavailable stub = {
    .name = "vulkan",
    .reason = "the Vulkan backend is not built into this library",
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
