/* Memory shared with other processes. Exportable memory is physical memory of the driver's virtual
 * memory management, mapped into addresses of its own; a file descriptor stands for it elsewhere.
 * Plain memory goes by the driver's older inter-process handles. Frees are block.c's. */
#include <quay/cuda.h>
#include <string.h>

#include "core/allocator_impl.h"
#include "core/arguments.h"
#include "core/checked.h"
#include "core/device_impl.h"
#include "core/error.h"
#include "core/os.h"
#include "cuda/cuda_impl.h"

_Static_assert(QUAY_CUDA_IPC_HANDLE_SIZE == sizeof(quay__cu_ipc_memory), "it is a CUipcMemHandle");

/* Mapped memory. */

static quay__cu_memory_properties properties_of(const quay__cuda_device *device) {
  return (quay__cu_memory_properties){
      .type = QUAY__CU_MEMORY_PINNED,
      .handle_types = QUAY__CU_HANDLE_FILE_DESCRIPTOR,
      .location = {.type = QUAY__CU_LOCATION_DEVICE, .id = device->handle},
  };
}

static quay_status find_granularity(quay__cuda_device *device, uint64_t *out_bytes) {
  const quay__cu_memory_properties properties = properties_of(device);
  size_t bytes = 0;
  const quay__cu_result result =
      device->api->cuMemGetAllocationGranularity(&bytes, &properties, QUAY__CU_GRANULARITY_MINIMUM);
  *out_bytes = bytes != 0 ? bytes : 1;
  if (result == QUAY__CU_SUCCESS)
    return QUAY_OK;
  return quay__cuda_fail(device, result, "%s does not tell the granularity of exportable memory",
                         device->name);
}

quay_status quay__cuda_share_size(quay__cuda_device *device, uint64_t size, uint64_t *out_bytes) {
  uint64_t granularity;
  QUAY_TRY(find_granularity(device, &granularity));
  const uint64_t whole = size > 0 ? (size - 1) / granularity * granularity : 0;
  if (quay__add(whole, granularity, out_bytes))
    return QUAY_OK;
  return quay_error_set(QUAY_STATUS_INVALID_ARGUMENT, "cuda", 0, NULL,
                        "%llu bytes in pieces of %llu are more than an address can tell",
                        (unsigned long long)size, (unsigned long long)granularity);
}

static quay__cu_result set_access(quay__cuda_device *device, const quay__cuda_block *block) {
  const quay__cu_access access = {
      .location = {.type = QUAY__CU_LOCATION_DEVICE, .id = device->handle},
      .flags = QUAY__CU_ACCESS_READ_WRITE,
  };
  return device->api->cuMemSetAccess(block->pointer, block->bytes, &access, 1);
}

static void give_back_addresses(quay__cuda_device *device, const quay__cuda_block *block) {
  const quay__cu_result result =
      device->api->cuMemAddressFree(block->reserved_at, block->reserved_bytes);
  quay__cuda_check_given_back(device, result, "addresses for ", block->reserved_bytes);
}

/* Addresses for `block->bytes`. The driver aligns them to its granularity; for more than that some
 * are left unused. */
static quay__cu_result reserve(quay__cuda_device *device, uint64_t alignment,
                               quay__cuda_block *block) {
  const quay__cuda_api *const api = device->api;
  block->reserved_bytes = block->bytes;
  quay__cu_result result = api->cuMemAddressReserve(&block->reserved_at, block->bytes, 0, 0, 0);
  if (result != QUAY__CU_SUCCESS)
    return result;
  if (quay__align_down(block->reserved_at, alignment) != block->reserved_at) {
    give_back_addresses(device, block);
    if (!quay__add(block->bytes, alignment, &block->reserved_bytes))
      return QUAY__CU_OUT_OF_MEMORY;
    result = api->cuMemAddressReserve(&block->reserved_at, block->reserved_bytes, 0, 0, 0);
  }
  /* Can't wrap around: the aligned address lies within the reservation. */
  if (result == QUAY__CU_SUCCESS)
    block->pointer = (block->reserved_at + alignment - 1) & ~(alignment - 1);
  return result;
}

/* Maps `block->memory`, whose reference it takes over: on failure that is given back, too. */
static quay__cu_result map(quay__cuda_device *device, uint64_t alignment, quay__cuda_block *block) {
  const quay__cuda_api *const api = device->api;
  quay__cu_result undone = QUAY__CU_SUCCESS;
  quay__cu_result result = reserve(device, alignment, block);
  if (result != QUAY__CU_SUCCESS)
    goto fail_reserve;
  result = api->cuMemMap(block->pointer, block->bytes, 0, block->memory, 0);
  if (result != QUAY__CU_SUCCESS)
    goto fail_map;
  result = set_access(device, block);
  if (result == QUAY__CU_SUCCESS)
    return QUAY__CU_SUCCESS;
  undone = api->cuMemUnmap(block->pointer, block->bytes);
  quay__cuda_check_given_back(device, undone, "mapped ", block->bytes);
fail_map:
  if (undone == QUAY__CU_SUCCESS)
    give_back_addresses(device, block);
fail_reserve:
  quay__cuda_check_given_back(device, api->cuMemRelease(block->memory), "", block->bytes);
  return result;
}

quay__cu_result quay__cuda_share_take(quay__cuda_device *device, uint64_t alignment,
                                      quay__cuda_block *block) {
  const quay__cu_memory_properties properties = properties_of(device);
  const quay__cu_result result =
      device->api->cuMemCreate(&block->memory, block->bytes, &properties, 0);
  return result == QUAY__CU_SUCCESS ? map(device, alignment, block) : result;
}

/* What was mapped keeps the memory, so that the rest is given back also where unmapping fails. */
quay__cu_result quay__cuda_share_give_back(quay__cuda_device *device,
                                           const quay__cuda_block *block) {
  const quay__cuda_api *const api = device->api;
  const quay__cu_result unmapped = api->cuMemUnmap(block->pointer, block->bytes);
  const quay__cu_result released = api->cuMemRelease(block->memory);
  const quay__cu_result freed =
      unmapped == QUAY__CU_SUCCESS
          ? api->cuMemAddressFree(block->reserved_at, block->reserved_bytes)
          : unmapped;
  return freed != QUAY__CU_SUCCESS ? freed : released;
}

static bool is_mapped(const quay__cuda_block *block) {
  return block != NULL && (block->how == QUAY__CUDA_SHARED || block->how == QUAY__CUDA_IMPORTED);
}

quay_status quay__cuda_share_reach(quay__cuda_scope *scope, const quay_raw_buffer *raw) {
  quay__cuda_device *const device = scope->device;
  quay__cuda_block *const block = quay__cuda_block_of(raw);
  if (block != NULL && block->how == QUAY__CUDA_RESERVED && raw->as.cuda.device != device->ordinal)
    return quay__cuda_reserve_reach(scope, raw);
  if (!is_mapped(block) || raw->as.cuda.device == device->ordinal)
    return QUAY_OK;
  const uint64_t bit = UINT64_C(1) << (unsigned)device->ordinal;
  if ((atomic_load_explicit(&block->reached, memory_order_acquire) & bit) != 0)
    return QUAY_OK;
  QUAY_TRY(quay__cuda_relax(scope));
  const quay__cu_result result = set_access(device, block);
  if (result != QUAY__CU_SUCCESS) {
    return quay__cuda_fail(device, result,
                           "%s can't be given access to exportable memory of cuda:%d", device->name,
                           (int)raw->as.cuda.device);
  }
  atomic_fetch_or_explicit(&block->reached, bit, memory_order_release);
  return QUAY_OK;
}

/* Export. */

static quay_status find_device_memory(const quay_buffer *buffer, const char *function,
                                      const quay_raw_buffer **out_raw) {
  QUAY_TRY(quay_buffer_raw(buffer, out_raw));
  const quay__cuda *const self = quay__cuda_of((*out_raw)->owner);
  if (self != NULL && self->kind == QUAY_MEMORY_DEVICE)
    return QUAY_OK;
  return quay__fail(QUAY_STATUS_UNSUPPORTED,
                    "%s: the buffer of the allocator %s is no device memory of the cuda backend",
                    function, (*out_raw)->owner->spec);
}

static quay_status export_file(quay__cuda_device *device, const quay__cuda_block *block,
                               int32_t *out_file) {
  int file = -1;
  quay__cuda_scope scope;
  QUAY_TRY(quay__cuda_enter(device, true, &scope));
  const quay__cu_result result = device->api->cuMemExportToShareableHandle(
      &file, block->memory, QUAY__CU_HANDLE_FILE_DESCRIPTOR, 0);
  quay__cuda_leave(&scope);
  if (result != QUAY__CU_SUCCESS) {
    return quay__cuda_fail(device, result, "no file descriptor can be had for memory of %s",
                           device->name);
  }
  *out_file = file;
  return QUAY_OK;
}

quay_status quay_cuda_export(quay_buffer *buffer, quay_cuda_shared *out_shared) {
  QUAY__REQUIRE(out_shared);
  *out_shared = (quay_cuda_shared){.file = -1};
  QUAY__REQUIRE(buffer);
  const quay_raw_buffer *raw;
  QUAY_TRY(find_device_memory(buffer, "quay_cuda_export", &raw));
  const quay__cuda_block *const block = quay__cuda_block_of(raw);
  if (block == NULL || block->how != QUAY__CUDA_SHARED) {
    return quay__fail(QUAY_STATUS_UNSUPPORTED,
                      "quay_cuda_export: the memory %s; allocate it with the option exportable, or "
                      "copy it to memory that was",
                      block != NULL && block->how != QUAY__CUDA_PLAIN &&
                              block->how != QUAY__CUDA_ORDERED && block->how != QUAY__CUDA_RESERVED
                          ? "is another process's"
                          : "was not allocated to be exported");
  }
  QUAY_TRY(quay_buffer_synchronize(buffer)); /* the importer knows nothing of the streams here */
  quay__cuda_device *const device = quay__cuda_of(raw->owner)->device;
  quay_cuda_shared shared = {
      .file = -1,
      .offset = raw->as.cuda.pointer - block->pointer + quay_buffer_offset(buffer),
      .size = quay_buffer_size(buffer),
      .memory_size = block->bytes,
  };
  memcpy(shared.device_uuid, device->uuid.bytes, sizeof shared.device_uuid);
  QUAY_TRY(export_file(device, block, &shared.file));
  *out_shared = shared;
  return QUAY_OK;
}

/* Import. */

typedef struct uuid_text {
  char text[2 * sizeof(quay__cu_uuid) + 1];
} uuid_text;

static uuid_text format_uuid(const void *bytes) {
  static const char digits[] = "0123456789abcdef";
  const unsigned char *const from = bytes;
  uuid_text made;
  for (size_t i = 0; i < sizeof(quay__cu_uuid); i++) {
    made.text[2 * i] = digits[from[i] >> 4];
    made.text[2 * i + 1] = digits[from[i] & 15];
  }
  made.text[2 * sizeof(quay__cu_uuid)] = '\0';
  return made;
}

static quay_status check_uuid(const quay__cuda_device *device, const uint8_t *uuid) {
  if (memcmp(device->uuid.bytes, uuid, sizeof device->uuid.bytes) == 0)
    return QUAY_OK;
  const uuid_text theirs = format_uuid(uuid), ours = format_uuid(device->uuid.bytes);
  return quay_error_set(QUAY_STATUS_INVALID_ARGUMENT, "cuda", 0, NULL,
                        "the memory is of the device with the UUID %s, and the allocator's device "
                        "%s is %s; use an allocator of the same device",
                        theirs.text, device->name, ours.text);
}

static quay_status check_window(uint64_t offset, uint64_t size, uint64_t total) {
  if (total <= INT64_MAX && quay__in_range(offset, size, total))
    return QUAY_OK;
  return quay_error_set(QUAY_STATUS_OUT_OF_RANGE, "cuda", 0, NULL,
                        "importing %llu bytes at offset %llu: they reach out of the exporter's "
                        "memory of %llu bytes",
                        (unsigned long long)size, (unsigned long long)offset,
                        (unsigned long long)total);
}

static quay_status check_allocator(const quay_allocator *allocator, const char *function,
                                   quay__cuda **out_self) {
  *out_self = quay__cuda_of(allocator);
  if (*out_self == NULL || (*out_self)->kind != QUAY_MEMORY_DEVICE) {
    return quay__fail(QUAY_STATUS_UNSUPPORTED,
                      "%s: allocator %s has no device memory of the cuda backend; open one such as "
                      "cuda:0",
                      function, allocator->spec);
  }
  return quay__device_check(allocator->device);
}

static quay_status check_file(int file) {
  struct stat status;
  if (file >= 0 && quay__os_fstat(file, &status) == 0)
    return QUAY_OK;
  return quay_error_set(QUAY_STATUS_INVALID_ARGUMENT, "cuda", 0, NULL,
                        "importing memory: %d is no open file descriptor of this process; "
                        "descriptors are passed by SCM_RIGHTS, not as numbers",
                        file);
}

static quay_status check_shared(quay__cuda_device *device, const quay_cuda_shared *shared) {
  QUAY_TRY(check_uuid(device, shared->device_uuid));
  QUAY_TRY(check_window(shared->offset, shared->size, shared->memory_size));
  if (!device->can_share) {
    return quay_error_set(QUAY_STATUS_UNSUPPORTED, "cuda", 0, NULL,
                          "%s (%s) can't import memory by file descriptors", device->name,
                          device->product);
  }
  return check_file(shared->file);
}

static quay_status fail_import(quay__cuda_device *device, quay__cu_result result,
                               const quay_cuda_shared *shared) {
  if (quay__cuda_sticky(result) || result == QUAY__CU_OUT_OF_MEMORY)
    return quay__cuda_fail(device, result, "importing memory on %s", device->name);
  return quay_error_set(QUAY_STATUS_INVALID_ARGUMENT, "cuda", result,
                        quay__cuda_result_name(result),
                        "the driver does not take file descriptor %d for exported memory of %llu "
                        "bytes on %s (%s); it must be the one that came with the structure",
                        (int)shared->file, (unsigned long long)shared->memory_size, device->name,
                        quay__cuda_result_name(result));
}

/* With the context current. */
static quay_status open_shared(quay__cuda_device *device, const void *from,
                               quay__cuda_block *block) {
  const quay_cuda_shared *const shared = from;
  uint64_t granularity;
  QUAY_TRY(find_granularity(device, &granularity));
  if (shared->memory_size == 0 || shared->memory_size % granularity != 0)
    return fail_import(device, QUAY__CU_INVALID_VALUE, shared);
  block->bytes = shared->memory_size;
  quay__cu_result result = device->api->cuMemImportFromShareableHandle(
      &block->memory, (void *)(intptr_t)shared->file, QUAY__CU_HANDLE_FILE_DESCRIPTOR);
  if (result == QUAY__CU_SUCCESS)
    result = map(device, 1, block);
  return result == QUAY__CU_SUCCESS ? QUAY_OK : fail_import(device, result, shared);
}

static void free_imported(void *user, void *memory, uint64_t size) {
  (void)memory;
  (void)size;
  quay__cuda_block *const block = user;
  (void)quay__cuda_block_release(block->device, block, NULL, 0); /* logs what goes wrong */
}

/* Makes a raw buffer of an opened block, which is ended on failure. */
static quay_status adopt_block(quay_allocator *allocator, quay__cuda_block *block, uint64_t offset,
                               uint64_t size, quay_raw_buffer *out_raw) {
  const uint64_t pointer = block->pointer + offset;
  *out_raw = (quay_raw_buffer){
      .arm = QUAY_RAW_CUDA,
      .size = size,
      .as.cuda =
          {
              .pointer = pointer,
              .handle = (uint64_t)(uintptr_t)block,
              .device = block->device->ordinal,
              .flags = block->how,
          },
  };
  const quay_status status =
      quay_raw_buffer_adopt(allocator, out_raw, (void *)(uintptr_t)pointer, free_imported, block);
  if (status != QUAY_OK)
    (void)quay__cuda_block_release(block->device, block, NULL, 0);
  return status;
}

static quay_status new_block(quay__cuda_device *device, quay__cuda_how how,
                             quay__cuda_block **out_block) {
  quay__cuda_block *const block = quay__os_calloc(1, sizeof *block);
  if (block == NULL)
    return quay__fail_out_of_memory(sizeof *block, "the record of imported memory");
  block->how = how;
  block->device = device;
  block->generation = quay__device_generation(device->device);
  atomic_init(&block->is_ready, true);
  *out_block = block;
  return QUAY_OK;
}

/* What another process shares, on its way to a raw buffer of `allocator`. */
typedef struct incoming {
  quay_allocator *allocator;
  quay__cuda_device *device;
  quay__cuda_how how;
  /* Fills in the block, with the context current; on error nothing is left. */
  quay_status (*open)(quay__cuda_device *device, const void *from, quay__cuda_block *block);
  const void *from;
  uint64_t offset, size;
} incoming;

static quay_status open_block(const incoming *in, quay__cuda_block *block) {
  quay__cuda_scope scope;
  QUAY_TRY(quay__cuda_enter(in->device, true, &scope));
  const quay_status status = in->open(in->device, in->from, block);
  quay__cuda_leave(&scope);
  return status;
}

static quay_status import(const incoming *in, quay_raw_buffer *out_raw) {
  quay__cuda_block *block;
  QUAY_TRY(new_block(in->device, in->how, &block));
  const quay_status status = open_block(in, block);
  if (status != QUAY_OK) {
    quay__os_free(block);
    return status;
  }
  return adopt_block(in->allocator, block, in->offset, in->size, out_raw);
}

static quay_status import_shared(quay_allocator *allocator, const quay_cuda_shared *shared,
                                 quay_raw_buffer *out_raw) {
  quay__cuda *self;
  QUAY_TRY(check_allocator(allocator, "quay_cuda_import", &self));
  QUAY_TRY(check_shared(self->device, shared));
  const incoming in = {allocator, self->device,   QUAY__CUDA_IMPORTED, open_shared,
                       shared,    shared->offset, shared->size};
  return import(&in, out_raw);
}

quay_status quay_cuda_import(quay_allocator *allocator, const quay_cuda_shared *shared,
                             quay_raw_buffer *out_raw) {
  QUAY__REQUIRE(out_raw);
  memset(out_raw, 0, sizeof *out_raw);
  QUAY__REQUIRE(shared);
  quay_allocator *resolved;
  QUAY_TRY(quay__allocator_resolve(allocator, &resolved));
  const quay_status status = import_shared(resolved, shared, out_raw);
  if (status != QUAY_OK)
    memset(out_raw, 0, sizeof *out_raw);
  quay_allocator_release(resolved);
  return status;
}

/* The older handles. */

static quay_status check_plain(const quay_raw_buffer *raw) {
  const quay__cuda_block *const block = quay__cuda_block_of(raw);
  if (block == NULL && raw->size == 0) { /* its pointer may be anything */
    return quay__fail(QUAY_STATUS_UNSUPPORTED,
                      "quay_cuda_ipc_export: adopted memory of 0 bytes has no handle");
  }
  if (block == NULL || block->how == QUAY__CUDA_PLAIN)
    return QUAY_OK;
  return quay__fail(
      QUAY_STATUS_UNSUPPORTED,
      "quay_cuda_ipc_export: the memory %s, of which the driver gives no such handle; "
      "%s",
      block->how == QUAY__CUDA_ORDERED    ? "was allocated in the order of a stream"
      : block->how == QUAY__CUDA_SHARED   ? "is exportable"
      : block->how == QUAY__CUDA_RESERVED ? "is a pool's"
                                          : "is another process's",
      block->how == QUAY__CUDA_SHARED ? "use quay_cuda_export()" : "copy it to plain memory");
}

static quay__cu_result find_range(const quay__cuda_device *device, uint64_t pointer,
                                  quay__cu_pointer *out_start, uint64_t *out_size) {
  quay__cu_pointer start = 0;
  size_t size = 0;
  int attributes[] = {QUAY__CU_POINTER_RANGE_START, QUAY__CU_POINTER_RANGE_SIZE};
  void *values[] = {&start, &size};
  const quay__cu_result result =
      device->api->cuPointerGetAttributes(2, attributes, values, pointer);
  *out_start = start;
  *out_size = size;
  return result;
}

/* With the context current. */
static quay_status get_handle(quay__cuda_device *device, const quay_raw_buffer *raw,
                              uint64_t address, quay_cuda_ipc *out_ipc) {
  quay__cu_pointer start;
  quay__cu_ipc_memory handle;
  /* Not of the window: an empty one may begin where the memory ends. */
  quay__cu_result result = find_range(device, raw->as.cuda.pointer, &start, &out_ipc->memory_size);
  if (result == QUAY__CU_SUCCESS)
    result = device->api->cuIpcGetMemHandle(&handle, start);
  if (result != QUAY__CU_SUCCESS) {
    return quay__cuda_fail(device, result, "no handle for other processes of memory of %s",
                           device->name);
  }
  memcpy(out_ipc->handle, handle.reserved, sizeof handle.reserved);
  out_ipc->offset = address - start;
  return QUAY_OK;
}

quay_status quay_cuda_ipc_export(quay_buffer *buffer, quay_cuda_ipc *out_ipc) {
  QUAY__REQUIRE(out_ipc);
  memset(out_ipc, 0, sizeof *out_ipc);
  QUAY__REQUIRE(buffer);
  const quay_raw_buffer *raw;
  QUAY_TRY(find_device_memory(buffer, "quay_cuda_ipc_export", &raw));
  QUAY_TRY(check_plain(raw));
  QUAY_TRY(quay_buffer_synchronize(buffer));
  quay__cuda_device *const device = quay__cuda_of(raw->owner)->device;
  quay__cuda_scope scope;
  QUAY_TRY(quay__cuda_enter(device, true, &scope));
  quay_cuda_ipc ipc = {.size = quay_buffer_size(buffer)};
  memcpy(ipc.device_uuid, device->uuid.bytes, sizeof ipc.device_uuid);
  const quay_status status =
      get_handle(device, raw, quay__cuda_at(raw, quay_buffer_offset(buffer)), &ipc);
  quay__cuda_leave(&scope);
  if (status == QUAY_OK)
    *out_ipc = ipc;
  return status;
}

/* What came with the handle is only a claim. A driver that does not tell is taken at its word. */
static quay_status check_opened(quay__cuda_device *device, const quay__cuda_block *block) {
  quay__cu_pointer start;
  uint64_t size;
  if (find_range(device, block->pointer, &start, &size) != QUAY__CU_SUCCESS || size == 0 ||
      (block->pointer >= start && quay__in_range(block->pointer - start, block->bytes, size)))
    return QUAY_OK;
  quay__cuda_check_given_back(device, device->api->cuIpcCloseMemHandle(block->pointer),
                              "another process's ", size);
  return quay_error_set(QUAY_STATUS_OUT_OF_RANGE, "cuda", 0, NULL,
                        "importing memory on %s: the exporter's memory is said to have %llu bytes, "
                        "but the handle is of %llu; send the structure as it was exported",
                        device->name, (unsigned long long)block->bytes, (unsigned long long)size);
}

/* With the context current. */
static quay_status open_ipc(quay__cuda_device *device, const void *from, quay__cuda_block *block) {
  const quay_cuda_ipc *const ipc = from;
  quay__cu_ipc_memory handle;
  memcpy(handle.reserved, ipc->handle, sizeof handle.reserved);
  quay__cu_result result =
      device->api->cuIpcOpenMemHandle(&block->pointer, handle, QUAY__CU_IPC_LAZY_PEER_ACCESS);
  if (result == QUAY__CU_INVALID_CONTEXT) {
    return quay_error_set(QUAY_STATUS_INVALID_ARGUMENT, "cuda", result,
                          quay__cuda_result_name(result),
                          "the handle can't be opened on %s: it is of memory of this very process, "
                          "where the buffer itself can be used",
                          device->name);
  }
  if (result != QUAY__CU_SUCCESS) {
    return quay__cuda_fail(device, result,
                           "the handle of another process's memory can't be opened on %s; the "
                           "memory must live, and be opened by another process than its own",
                           device->name);
  }
  block->bytes = ipc->memory_size;
  return check_opened(device, block);
}

static quay_status import_ipc(quay_allocator *allocator, const quay_cuda_ipc *ipc,
                              quay_raw_buffer *out_raw) {
  quay__cuda *self;
  QUAY_TRY(check_allocator(allocator, "quay_cuda_ipc_import", &self));
  QUAY_TRY(check_uuid(self->device, ipc->device_uuid));
  QUAY_TRY(check_window(ipc->offset, ipc->size, ipc->memory_size));
  const incoming in = {allocator, self->device, QUAY__CUDA_IPC, open_ipc,
                       ipc,       ipc->offset,  ipc->size};
  return import(&in, out_raw);
}

quay_status quay_cuda_ipc_import(quay_allocator *allocator, const quay_cuda_ipc *ipc,
                                 quay_raw_buffer *out_raw) {
  QUAY__REQUIRE(out_raw);
  memset(out_raw, 0, sizeof *out_raw);
  QUAY__REQUIRE(ipc);
  quay_allocator *resolved;
  QUAY_TRY(quay__allocator_resolve(allocator, &resolved));
  const quay_status status = import_ipc(resolved, ipc, out_raw);
  if (status != QUAY_OK)
    memset(out_raw, 0, sizeof *out_raw);
  quay_allocator_release(resolved);
  return status;
}
