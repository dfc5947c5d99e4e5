/* Everything of the core library. Optional components (safetensors.h) and the header for those who
 * write a backend (backend.h) are included on their own. */
#ifndef QUAY_QUAY_H
#define QUAY_QUAY_H

#include <quay/allocator.h>
#include <quay/base.h>
#include <quay/buffer.h>
#include <quay/copy.h>
#include <quay/cuda.h>
#include <quay/device.h>
#include <quay/dlpack.h>
#include <quay/dtype.h>
#include <quay/layers.h>
#include <quay/log.h>
#include <quay/mmap.h>
#include <quay/raw_buffer.h>
#include <quay/status.h>
#include <quay/stream.h>
#include <quay/version.h>
#include <quay/vulkan.h>

#endif
