/* Copies between CUDA and Vulkan memory of one GPU, without the host: the whole VkDeviceMemory that
 * the bytes lie in is exported once and imported by CUDA, and CUDA copies, on streams of either
 * side. What orders the two is in cuda_vulkan_link.c. */
#include "interop/cuda_vulkan.h"

#include <quay/cuda.h>
#include <string.h>

#include "core/allocator_impl.h"
#include "core/error.h"
#include "core/os.h"
#include "core/pair_path.h"
#include "core/staging_memory.h"

/* A block of Vulkan's as CUDA sees it: quay__vulkan_block.imported. */
typedef struct import {
  struct import *older; /* of before a reset: other threads may be looking at it */
  quay_device *device;  /* CUDA's, retained */
  uint64_t generation;  /* of that device */
  quay__cu_external external;
  quay__cu_pointer pointer; /* of the block's first byte */
} import;

/* The two ends, whichever is the destination. */
typedef struct ends {
  quay__cuda *cuda;
  quay__vulkan *vulkan;
  const quay_raw_buffer *cuda_raw, *vulkan_raw;
  bool to_cuda;
} ends;

static bool find_ends(const quay_raw_buffer *destination, const quay_raw_buffer *source,
                      ends *out_ends) {
  const bool to_cuda = quay__cuda_of(destination->owner) != NULL;
  *out_ends = (ends){
      .cuda_raw = to_cuda ? destination : source,
      .vulkan_raw = to_cuda ? source : destination,
      .to_cuda = to_cuda,
  };
  out_ends->cuda = quay__cuda_of(out_ends->cuda_raw->owner);
  out_ends->vulkan = quay__vulkan_of(out_ends->vulkan_raw->owner);
  return out_ends->cuda != NULL && out_ends->vulkan != NULL;
}

/* A lazy side has no memory yet: what will be allocated counts. */
static bool is_exportable(const ends *of) {
  const quay__vulkan_device *const device = of->vulkan->device;
  if (of->vulkan_raw->arm == QUAY_RAW_NONE)
    return device->has_export;
  const quay__vulkan_span *const span = quay__vulkan_span_of(of->vulkan_raw);
  return span != NULL && span->block->exportable;
}

static bool can_import(const quay__cuda_api *api) {
  return api->cuImportExternalMemory != NULL && api->cuExternalMemoryGetMappedBuffer != NULL &&
         api->cuDestroyExternalMemory != NULL;
}

static bool can_copy(const quay_raw_buffer *destination, const quay_raw_buffer *source,
                     uint64_t size, quay_across_info *out_info) {
  ends of;
  (void)size;
  out_info->reason = "CUDA and Vulkan memory of one GPU: CUDA has imported Vulkan's and copies";
  return find_ends(destination, source, &of) && of.cuda->kind == QUAY_MEMORY_DEVICE &&
         of.vulkan->kind == QUAY_VULKAN_DEVICE &&
         quay__cuda_link_one_gpu(of.cuda->device, of.vulkan->device) && is_exportable(&of) &&
         can_import(of.cuda->device->api);
}

/* Imports. */

static void report(quay__cuda_device *device, quay__cu_result result) {
  if (result != QUAY__CU_SUCCESS) {
    quay__cuda_report(device, result, "imported Vulkan memory on %s can't be given back",
                      device->name);
  }
}

/* The context is current, and what CUDA has of it is still there. */
static void unmap(quay__cuda_device *device, const import *ended) {
  if (ended->pointer != 0)
    report(device, device->api->cuMemFree(ended->pointer));
  report(device, device->api->cuDestroyExternalMemory(ended->external));
}

static bool is_current(const import *found) {
  return found != NULL && found->generation == quay__device_generation(found->device) &&
         quay_device_health(found->device) == QUAY_HEALTH_OK;
}

static void end_one(import *ended) {
  quay__cuda_device *const device = quay__cuda_device_of(ended->device);
  quay__cuda_scope scope;
  quay__error_state saved;
  quay__error_save(&saved);
  if (is_current(ended) && quay__cuda_enter(device, true, &scope) == QUAY_OK) {
    unmap(device, ended);
    quay__cuda_leave(&scope);
  }
  quay__error_restore(&saved);
  quay_device_release(ended->device);
  quay__os_free(ended);
}

/* quay__vulkan_block.end_import: the memory behind it is about to go. */
static void end_import(void *imported) {
  import *each = imported;
  while (each != NULL) {
    import *const older = each->older;
    end_one(each);
    each = older;
  }
}

static quay_status export_file(quay__vulkan_block *block, int *out_file) {
  quay__vulkan_device *const device = block->device;
  const VkMemoryGetFdInfoKHR info = {
      .sType = VK_STRUCTURE_TYPE_MEMORY_GET_FD_INFO_KHR,
      .memory = block->memory,
      .handleType = VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT,
  };
  QUAY_TRY(quay__vulkan_check_callable());
  const VkResult result = device->api.vkGetMemoryFdKHR(device->handle, &info, out_file);
  if (result == VK_SUCCESS)
    return QUAY_OK;
  return quay__vulkan_fail(device, result, "memory of %s can't be exported to CUDA", device->name);
}

/* The whole of the memory, with the flag that it was allocated with. The descriptor is CUDA's after
 * success alone. */
static quay_status import_memory(quay__cuda_device *device, quay__vulkan_block *block,
                                 quay__cu_external *out_external) {
  int file = -1;
  QUAY_TRY(export_file(block, &file));
  const quay__cu_external_memory memory = {
      .type = QUAY__CU_EXTERNAL_OPAQUE_FILE,
      .handle.file = file,
      .size = block->memory_bytes,
      .flags = block->dedicated ? QUAY__CU_EXTERNAL_DEDICATED : 0,
  };
  const quay__cu_result result = device->api->cuImportExternalMemory(out_external, &memory);
  if (result == QUAY__CU_SUCCESS)
    return QUAY_OK;
  (void)quay__os_close(file);
  return quay__cuda_fail(device, result, "%s can't import %llu bytes of %s", device->name,
                         (unsigned long long)block->memory_bytes, block->device->name);
}

static quay_status map_import(quay__cuda_device *device, quay__vulkan_block *block, import *made) {
  QUAY_TRY(import_memory(device, block, &made->external));
  const quay__cu_external_buffer buffer = {.size = block->memory_bytes};
  const quay__cu_result result =
      device->api->cuExternalMemoryGetMappedBuffer(&made->pointer, made->external, &buffer);
  if (result == QUAY__CU_SUCCESS)
    return QUAY_OK;
  const quay_status status = quay__cuda_fail(device, result, "%s can't map memory of %s",
                                             device->name, block->device->name);
  made->pointer = 0;
  unmap(device, made);
  return status;
}

static quay_status new_import(quay__cuda_device *device, quay__vulkan_block *block,
                              import **out_import) {
  import *const made = quay__os_calloc(1, sizeof *made);
  if (made == NULL)
    return quay__fail_out_of_memory(sizeof *made, "an import of Vulkan memory");
  made->generation = quay__device_generation(device->device);
  const quay_status status = map_import(device, block, made);
  if (status != QUAY_OK) {
    quay__os_free(made);
    return status;
  }
  made->device = quay_device_retain(device->device);
  *out_import = made;
  return QUAY_OK;
}

/* Made at the first copy, and anew when the CUDA device was reset; of threads that race one wins,
 * and the others' are ended. */
static quay_status find_import(quay__cuda_device *device, quay__vulkan_block *block,
                               import **out_import) {
  void *known = atomic_load_explicit(&block->imported, memory_order_acquire);
  *out_import = known;
  if (is_current(known))
    return QUAY_OK;
  import *made = NULL;
  QUAY_TRY(new_import(device, block, &made));
  atomic_store_explicit(&block->end_import, end_import, memory_order_relaxed);
  made->older = known;
  if (atomic_compare_exchange_strong_explicit(&block->imported, &known, made, memory_order_acq_rel,
                                              memory_order_acquire)) {
    *out_import = made;
  } else {
    end_one(made);
    *out_import = known;
  }
  return QUAY_OK;
}

/* Copies. */

static quay_status fail_ends(void) {
  return quay__fail(QUAY_STATUS_UNSUPPORTED, "one side must be CUDA and one Vulkan memory");
}

/* Submits the copy to a stream of CUDA's, whose context is current. */
static quay_status enqueue(const ends *of, quay__cuda_scope *scope, const import *imported,
                           quay__cu_stream stream, uint64_t cuda_offset, uint64_t vulkan_offset,
                           uint64_t size) {
  quay__cuda_device *const device = of->cuda->device;
  QUAY_TRY(quay__cuda_block_order(scope, of->cuda_raw, stream));
  const quay__cu_pointer cuda = quay__cuda_at(of->cuda_raw, cuda_offset);
  const quay__cu_pointer vulkan =
      imported->pointer + of->vulkan_raw->as.vulkan.offset + vulkan_offset;
  const quay__cu_result result = device->api->cuMemcpyAsync(
      of->to_cuda ? cuda : vulkan, of->to_cuda ? vulkan : cuda, size, stream);
  if (result == QUAY__CU_SUCCESS)
    return QUAY_OK;
  return quay__cuda_fail(device, result, "copying between %s and %s", device->name,
                         of->vulkan->device->name);
}

/* In relaxed mode: an import is nothing that a capture allows. */
static quay_status prepare(const ends *of, import **out_import) {
  quay__cuda_device *const device = of->cuda->device;
  quay__cuda_scope scope;
  QUAY_TRY(quay__cuda_enter(device, true, &scope));
  const quay_status status =
      find_import(device, quay__vulkan_span_of(of->vulkan_raw)->block, out_import);
  quay__cuda_leave(&scope);
  return status;
}

static quay_status copy(quay_raw_buffer *destination, uint64_t destination_offset,
                        const quay_raw_buffer *source, uint64_t source_offset, uint64_t size) {
  ends of;
  if (!find_ends(destination, source, &of))
    return fail_ends();
  quay__cuda_device *const device = of.cuda->device;
  import *imported = NULL;
  QUAY_TRY(prepare(&of, &imported));
  quay__cuda_scope scope;
  QUAY_TRY(quay__cuda_enter(device, true, &scope));
  quay__cuda_lane *lane;
  quay_status status = quay__cuda_lane_take(device, &lane);
  if (status == QUAY_OK) {
    status = enqueue(&of, &scope, imported, lane->stream,
                     of.to_cuda ? destination_offset : source_offset,
                     of.to_cuda ? source_offset : destination_offset, size);
    const quay__cu_result result = quay__cuda_settle(device, lane->stream);
    if (status == QUAY_OK && result != QUAY__CU_SUCCESS) {
      status = quay__cuda_fail(device, result, "copying between %s and %s", device->name,
                               of.vulkan->device->name);
    }
    quay__cuda_lane_give_back(device, lane);
  }
  quay__cuda_leave(&scope);
  return status;
}

/* Copies on a stream. */

static bool can_submit(quay_device *on, uint64_t stream, const quay_raw_buffer *destination,
                       const quay_raw_buffer *source, const char **out_reason) {
  ends of;
  if (!find_ends(destination, source, &of))
    return false;
  if (on == of.cuda->device->device) {
    *out_reason = "asynchronous on the stream: CUDA has imported Vulkan's memory";
    return true;
  }
  quay__vulkan_queue *const queue = quay__vulkan_queue_of(of.vulkan->device, stream);
  const bool linked = queue != NULL && quay__cuda_link_find(queue, of.cuda->device) != NULL;
  *out_reason = linked ? "asynchronous on the stream: CUDA copies between two semaphores that it "
                         "shares with the queue"
                       : "it blocks: CUDA has imported Vulkan's memory, but shares no semaphores "
                         "with it";
  return linked;
}

typedef struct job {
  ends of;
  import *imported;
  uint64_t cuda_offset, vulkan_offset, size;
} job;

/* On a stream of CUDA's. */
static quay_status submit_to_cuda(const job *copy, uint64_t stream) {
  quay__cuda_device *const device = copy->of.cuda->device;
  quay__cuda_scope scope;
  quay__cu_stream handle = NULL;
  QUAY_TRY(quay__cuda_enter(device, false, &scope));
  quay_status status = quay__cuda_stream_use(device, stream, &handle);
  if (status == QUAY_OK) {
    status = enqueue(&copy->of, &scope, copy->imported, handle, copy->cuda_offset,
                     copy->vulkan_offset, copy->size);
  }
  quay__cuda_leave(&scope);
  return status;
}

/* After what is on the queue, by CUDA; and what comes on the queue later waits for it. */
static quay_status submit_between(const job *copy, quay__cuda_scope *scope, quay__cuda_link *link) {
  quay__vulkan_queue *const queue = link->queue;
  uint64_t value = 0;
  quay__vulkan_signal done = {.value = 0};
  QUAY_TRY(quay__vulkan_submit(queue, queue->barrier, NULL, &value));
  QUAY_TRY(quay__cuda_link_await(link, value, link->stream));
  QUAY_TRY(enqueue(&copy->of, scope, copy->imported, link->stream, copy->cuda_offset,
                   copy->vulkan_offset, copy->size));
  QUAY_TRY(quay__cuda_link_signal(link, &done));
  return quay__vulkan_submit(queue, queue->barrier, &done, &value);
}

/* On a queue of Vulkan's. What failed half-way is waited for: no event would tell of it. */
static quay_status submit_to_vulkan(const job *copy, uint64_t stream) {
  quay__cuda_device *const device = copy->of.cuda->device;
  quay__vulkan_queue *const queue = quay__vulkan_queue_of(copy->of.vulkan->device, stream);
  quay__cuda_link *const link = queue != NULL ? quay__cuda_link_find(queue, device) : NULL;
  if (link == NULL) {
    return quay__fail(QUAY_STATUS_UNSUPPORTED, "%s and %s share no semaphores", device->name,
                      copy->of.vulkan->device->name);
  }
  quay__cuda_scope scope;
  QUAY_TRY(quay__cuda_enter(device, true, &scope));
  const quay_status status = submit_between(copy, &scope, link);
  if (status != QUAY_OK) {
    quay__error_state saved;
    quay__error_save(&saved);
    (void)quay__cuda_settle(device, link->stream);
    quay__error_restore(&saved);
  }
  quay__cuda_leave(&scope);
  return status;
}

static quay_status submit(quay_device *on, uint64_t stream, quay_raw_buffer *destination,
                          uint64_t destination_offset, const quay_raw_buffer *source,
                          uint64_t source_offset, uint64_t size) {
  job copy = {.size = size};
  if (!find_ends(destination, source, &copy.of))
    return fail_ends();
  copy.cuda_offset = copy.of.to_cuda ? destination_offset : source_offset;
  copy.vulkan_offset = copy.of.to_cuda ? source_offset : destination_offset;
  QUAY_TRY(prepare(&copy.of, &copy.imported));
  return on == copy.of.cuda->device->device ? submit_to_cuda(&copy, stream)
                                            : submit_to_vulkan(&copy, stream);
}

/* Standing in: host memory is copied to and from Vulkan's by CUDA, which has imported it. A queue
 * for copies of NVIDIA's Vulkan driver reaches 0.88 of what CUDA does, and 0.85 in pieces (an
 * H200). */

/* The CUDA device of the Vulkan allocator's GPU, if it is open and can; else NULL. One that locks
 * no memory would copy in turns with the host. One reference. */
static quay_device *find_peer(const quay_allocator *allocator, const quay_raw_buffer *raw) {
  ends of = {.vulkan = quay__vulkan_of(allocator), .vulkan_raw = raw};
  static const quay_raw_buffer any = {.arm = QUAY_RAW_NONE};
  if (raw == NULL)
    of.vulkan_raw = &any;
  if (of.vulkan == NULL || of.vulkan->kind != QUAY_VULKAN_DEVICE || !quay__cuda_callable() ||
      !is_exportable(&of))
    return NULL;
  quay_device *const peer = quay__cuda_device_find(of.vulkan->device->uuid);
  if (peer != NULL && quay_device_health(peer) == QUAY_HEALTH_OK &&
      quay__staging_memory_pins(peer) && can_import(quay__cuda_device_of(peer)->api))
    return peer;
  quay_device_release(peer);
  return NULL;
}

static bool can_stand_in(const quay_allocator *allocator, const quay_raw_buffer *raw) {
  quay_device *const peer = find_peer(allocator, raw);
  quay_device_release(peer);
  return peer != NULL;
}

static quay_status describe_stand_in(quay_device *peer, const quay_raw_buffer *raw,
                                     quay__stand_in *out) {
  quay__cuda_device *const device = quay__cuda_device_of(peer);
  import *imported = NULL;
  quay__cuda_scope scope;
  QUAY_TRY(quay__cuda_enter(device, true, &scope));
  const quay_status status = find_import(device, quay__vulkan_span_of(raw)->block, &imported);
  quay__cuda_leave(&scope);
  QUAY_TRY(status);
  QUAY_TRY(quay_allocator_open(device->name, &out->allocator));
  out->raw = (quay_raw_buffer){
      .arm = QUAY_RAW_CUDA,
      .owner = out->allocator,
      .size = raw->size,
      .as.cuda = {.pointer = imported->pointer + raw->as.vulkan.offset, .device = device->ordinal},
  };
  return QUAY_OK;
}

static bool stand_in(const quay_allocator *allocator, const quay_raw_buffer *raw,
                     quay__stand_in *out_stand_in) {
  quay_device *const peer = find_peer(allocator, raw);
  if (peer == NULL)
    return false;
  quay__error_shield();
  const quay_status status = describe_stand_in(peer, raw, out_stand_in);
  quay__error_unshield();
  quay_device_release(peer);
  return status == QUAY_OK;
}

const quay__pair_path quay__pair_cuda_vulkan = {
    .backends = {"cuda", "vulkan"},
    .can = can_copy,
    .copy = copy,
    .can_submit = can_submit,
    .submit = submit,
    .can_wait = quay__cuda_link_can_wait,
    .wait = quay__cuda_link_wait,
    .can_stand_in = can_stand_in,
    .stand_in = stand_in,
};
