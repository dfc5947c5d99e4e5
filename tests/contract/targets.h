/* What each backend can't do, with the reason: the suite skips those tests and prints it. A backend
 * that is not in the table is expected to do everything. */
#ifndef QUAY_TESTS_CONTRACT_TARGETS_H
#define QUAY_TESTS_CONTRACT_TARGETS_H

#include <quay/quay.h>
#include <stdbool.h>

typedef enum contract_ability {
  CONTRACT_HOST_ACCESS, /* the CPU can use the memory */
  CONTRACT_ADDRESS,     /* it has an address */
  CONTRACT_ADOPT,       /* it takes over host memory that somebody else made */
  CONTRACT_RELEASE,     /* it gives its own memory away as host memory */
  CONTRACT_FORWARD,     /* every level of the chain sees each allocation as it is */
  CONTRACT_ABILITY_COUNT,
} contract_ability;

typedef struct contract_target {
  const char *backend;
  quay_memory_kind kind; /* NONE: every kind of this backend */
  /* NULL: it can. */
  const char *cannot[CONTRACT_ABILITY_COUNT];
  /* Its memory can have a twin on the host. */
  bool mirrors;
  /* Its memory can be exported to another process, or some devices' can. */
  bool exports;
  /* What an allocation of 2^62 bytes answers. */
  quay_status too_large;
} contract_target;

/* What a chain with this layer in it can't do, whatever the backend. */
typedef struct contract_layer {
  const char *layer;
  const char *cannot[CONTRACT_ABILITY_COUNT];
} contract_layer;

static const contract_layer contract_layers[] = {
    {
        .layer = "guard",
        .cannot[CONTRACT_RELEASE] = "its memory is carved out of blocks with red zones",
        .cannot[CONTRACT_FORWARD] = "below it there are blocks with red zones",
    },
    {
        .layer = "pool",
        .cannot[CONTRACT_RELEASE] = "its memory is carved out of blocks",
        .cannot[CONTRACT_FORWARD] = "below it there are blocks and pages",
    },
};

static const contract_target contract_targets[] = {
    {.backend = "cpu", .too_large = QUAY_STATUS_OUT_OF_HOST_MEMORY},
    {
        .backend = "mmap",
        .cannot[CONTRACT_ADOPT] = "its memory is a file's; quay_mmap_adopt() takes mappings",
        .cannot[CONTRACT_RELEASE] = "its memory is a file's, not pageable host memory",
        .too_large = QUAY_STATUS_IO,
    },
    {
        .backend = "own",
        .cannot[CONTRACT_ADOPT] = "the example leaves the optional adopt_host out",
        .cannot[CONTRACT_RELEASE] = "the example leaves the optional release out",
        .too_large = QUAY_STATUS_OUT_OF_HOST_MEMORY,
    },
    {
        .backend = "late",
        .kind = QUAY_MEMORY_DEVICE,
        .cannot[CONTRACT_HOST_ACCESS] = "it behaves as memory of a device",
        .cannot[CONTRACT_ADOPT] = "it behaves as memory of a device",
        .cannot[CONTRACT_RELEASE] = "it behaves as memory of a device",
        .too_large = QUAY_STATUS_OUT_OF_DEVICE_MEMORY,
    },
    {
        .backend = "late",
        .kind = QUAY_MEMORY_PINNED,
        .cannot[CONTRACT_ADOPT] = "only its own pinned memory has the double's bookkeeping",
        .cannot[CONTRACT_RELEASE] = "pinned memory is not pageable host memory",
        .too_large = QUAY_STATUS_OUT_OF_HOST_MEMORY,
    },
    {
        .backend = "cuda",
        .kind = QUAY_MEMORY_DEVICE,
        .cannot[CONTRACT_HOST_ACCESS] = "it is memory of a device",
        .cannot[CONTRACT_ADOPT] = "it is memory of a device; quay_cuda_adopt() takes pointers",
        .cannot[CONTRACT_RELEASE] = "it is memory of a device; quay_cuda_release() gives it away",
        .mirrors = true,
        .exports = true,
        .too_large = QUAY_STATUS_OUT_OF_DEVICE_MEMORY,
    },
    {
        .backend = "cuda",
        .kind = QUAY_MEMORY_PINNED,
        .cannot[CONTRACT_ADOPT] = "pinned memory is adopted by quay_cuda_adopt()",
        .cannot[CONTRACT_RELEASE] = "pinned memory is not pageable host memory",
        .too_large = QUAY_STATUS_OUT_OF_HOST_MEMORY,
    },
    {
        .backend = "cuda",
        .kind = QUAY_MEMORY_MANAGED,
        .cannot[CONTRACT_ADOPT] = "managed memory is adopted by quay_cuda_adopt()",
        .cannot[CONTRACT_RELEASE] = "managed memory is not pageable host memory",
        .too_large = QUAY_STATUS_OUT_OF_DEVICE_MEMORY,
    },
    {
        .backend = "vulkan",
        .kind = QUAY_MEMORY_DEVICE,
        .cannot[CONTRACT_HOST_ACCESS] = "it is memory of a device",
        .cannot[CONTRACT_ADOPT] = "it is memory of a device; quay_vulkan_adopt() takes buffers",
        .cannot[CONTRACT_RELEASE] = "it is memory of a device; quay_vulkan_release() gives it away",
        .exports = true,
        .too_large = QUAY_STATUS_OUT_OF_DEVICE_MEMORY,
    },
    {
        .backend = "vulkan",
        .kind = QUAY_MEMORY_PINNED,
        .cannot[CONTRACT_ADOPT] = "host-visible memory is adopted by quay_vulkan_adopt()",
        .cannot[CONTRACT_RELEASE] = "host-visible memory is not pageable host memory",
        .too_large = QUAY_STATUS_OUT_OF_HOST_MEMORY,
    },
};

#endif
