/* CUDA devices: made once each and kept, their functions but for streams, and the list of them. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/device_impl.h"
#include "core/error.h"
#include "core/lifecycle.h"
#include "core/os.h"
#include "cuda/cuda_impl.h"

/* Kept until quay__cuda_shutdown(): making a primary context takes a good part of a second, and
 * other libraries use the same one. Guarded by QUAY__LOCK_CUDA. */
static quay_device *devices[QUAY__CUDA_DEVICES_MAX];
/* Those after this number have never been made. */
static atomic_uint devices_end;

/* The end of a device. */

static quay_status open_context(quay__cuda_device *device);

static void check_end(quay__cuda_device *device, quay__cu_result result, const char *what) {
  if (result != QUAY__CU_SUCCESS) {
    quay_log(QUAY_LOG_ERROR, "cuda: %s of %s can't be given back (%s)", what, device->name,
             quay__cuda_result_name(result));
  }
}

/* What is kept for later use, and made again at need. The context is current. */
static void end_kept(quay__cuda_device *device) {
  (void)quay__cuda_blocks_collect(device, true);
  quay__cuda_lanes_end(device, false);
  quay__cuda_events_end(device, false);
}

/* The context is current. */
static void end_contents(quay__cuda_device *device) {
  const quay__cuda_api *const api = device->api;
  end_kept(device);
  if (device->free_stream != NULL)
    check_end(device, api->cuStreamDestroy(device->free_stream), "the stream for frees");
}

/* Without the driver: what is only the process's. */
static void drop_contents(quay__cuda_device *device) {
  quay__cuda_blocks_drop(device);
  quay__cuda_lanes_end(device, true);
  quay__cuda_events_end(device, true);
}

static void give_back_contents(quay__cuda_device *device) {
  quay__cuda_scope scope;
  if (quay__cuda_enter(device, true, &scope) == QUAY_OK) {
    end_contents(device);
    quay__cuda_leave(&scope);
  } else {
    quay_log(QUAY_LOG_ERROR, "cuda: what %s keeps can't be given back: %s", device->name,
             quay_last_error()->message);
    drop_contents(device);
  }
}

static void device_destroy(void *self) {
  quay__cuda_device *const device = self;
  if (quay_device_health(device->device) == QUAY_HEALTH_OK && quay__cuda_callable()) {
    give_back_contents(device);
    check_end(device, device->api->cuDevicePrimaryCtxRelease(device->handle), "the context");
  } else {
    drop_contents(device);
  }
  quay__lock_destroy(&device->lock);
  quay__os_free(device);
}

/* Functions. */

static quay_status device_memory_info(quay_device *quay, quay_memory_info *out_info) {
  quay__cuda_device *const device = quay__cuda_device_of(quay);
  quay__cuda_scope scope;
  QUAY_TRY(quay__cuda_enter(device, true, &scope));
  (void)quay__cuda_blocks_collect(device, false);
  size_t free_bytes = 0, total_bytes = 0;
  const quay__cu_result result = device->api->cuMemGetInfo(&free_bytes, &total_bytes);
  const quay_status status =
      result == QUAY__CU_SUCCESS
          ? QUAY_OK
          : quay__cuda_fail(device, result, "%s does not tell its memory", device->name);
  quay__cuda_leave(&scope);
  *out_info = (quay_memory_info){.total_bytes = total_bytes, .free_bytes = free_bytes};
  return status;
}

static quay_status device_synchronize(quay_device *quay) {
  quay__cuda_device *const device = quay__cuda_device_of(quay);
  quay__cuda_scope scope;
  QUAY_TRY(quay__cuda_enter(device, true, &scope));
  const quay__cu_result result = device->api->cuCtxSynchronize();
  quay_status status = QUAY_OK;
  if (result != QUAY__CU_SUCCESS) {
    status = quay__cuda_fail(device, result, "waiting for the work of %s", device->name);
  } else {
    (void)quay__cuda_blocks_collect(device, false);
  }
  quay__cuda_leave(&scope);
  return status;
}

/* Peer access is of the context that is gone, on both sides. */
static void forget_peers(quay__cuda_device *device) {
  for (int i = 0; i < QUAY__CUDA_DEVICES_MAX; i++)
    atomic_store_explicit(&device->peers[i], QUAY__CUDA_PEER_UNKNOWN, memory_order_relaxed);
  quay__global_acquire(QUAY__LOCK_CUDA);
  for (int i = 0; i < QUAY__CUDA_DEVICES_MAX; i++) {
    if (devices[i] != NULL) {
      atomic_store_explicit(&quay__cuda_device_of(devices[i])->peers[device->ordinal],
                            QUAY__CUDA_PEER_UNKNOWN, memory_order_relaxed);
    }
  }
  quay__global_release(QUAY__LOCK_CUDA);
}

static quay_status reset_context(quay__cuda_device *device) {
  quay__cuda_scope scope;
  const quay_status entered = quay__cuda_enter(device, true, &scope);
  if (entered == QUAY_STATUS_STALE) { /* another library has done it */
    drop_contents(device);
    return QUAY_OK;
  }
  if (entered != QUAY_OK)
    return entered;
  end_kept(device);
  quay__cuda_leave(&scope);
  const quay__cu_result result = device->api->cuDevicePrimaryCtxReset(device->handle);
  if (result != QUAY__CU_SUCCESS)
    return quay__cuda_fail(device, result, "%s can't be reset", device->name);
  quay__cuda_blocks_drop(device);
  return QUAY_OK;
}

/* Only a healthy device: after a fault nothing but a new process helps, as its message says. */
static quay_status device_reset(quay_device *quay) {
  quay__cuda_device *const device = quay__cuda_device_of(quay);
  QUAY_TRY(quay__device_check(quay));
  QUAY_TRY(reset_context(device));
  forget_peers(device);
  /* Retained anew before it is released once, so that it never has no user. */
  const quay_status status = open_context(device);
  check_end(device, device->api->cuDevicePrimaryCtxRelease(device->handle), "the context");
  if (status != QUAY_OK)
    quay_device_mark_lost(quay, 0, NULL, "it was reset, and could not be opened again");
  return status;
}

static int32_t device_numa_node(quay_device *quay) {
  return quay__cuda_device_of(quay)->numa_node;
}

static const quay_device_vtable vtable = {
    .destroy = device_destroy,
    .version = QUAY_DEVICE_VTABLE_VERSION,
    .struct_size = sizeof(quay_device_vtable),
    .memory_info = device_memory_info,
    .synchronize = device_synchronize,
    .reset = device_reset,
    .stream_create = quay__cuda_stream_create,
    .stream_wrap = quay__cuda_stream_wrap,
    .stream_destroy = quay__cuda_stream_destroy,
    .stream_synchronize = quay__cuda_stream_synchronize,
    .stream_wait = quay__cuda_stream_wait,
    .event_record = quay__cuda_event_record,
    .event_query = quay__cuda_event_query,
    .event_synchronize = quay__cuda_event_synchronize,
    .event_destroy = quay__cuda_event_destroy,
    .stream_check = quay__cuda_stream_check,
    .pin = quay__cuda_pin,
    .unpin = quay__cuda_unpin,
    .numa_node = device_numa_node,
};

/* Making one. Called with QUAY__LOCK_CUDA held: nothing here may mark devices lost. */

static quay_status fail_make(quay__cu_result result, uint64_t ordinal, const char *what) {
  return quay__cuda_fail(NULL, result, "cuda:%" PRIu64 ": %s", ordinal, what);
}

/* A driver that does not know the attribute calls it an invalid value: the device lacks it. */
static quay__cu_result ask_ability(const quay__cuda_device *device, int which, bool *out_has) {
  int value = 0;
  const quay__cu_result result = device->api->cuDeviceGetAttribute(&value, which, device->handle);
  *out_has = result == QUAY__CU_SUCCESS && value != 0;
  return result == QUAY__CU_INVALID_VALUE ? QUAY__CU_SUCCESS : result;
}

static quay__cu_result ask_abilities(quay__cuda_device *device, bool *out_unified) {
  bool files = false;
  const struct {
    int which;
    bool *has;
  } abilities[] = {
      {QUAY__CU_DEVICE_UNIFIED_ADDRESSING, out_unified},
      {QUAY__CU_DEVICE_CONCURRENT_MANAGED, &device->concurrent_managed},
      {QUAY__CU_DEVICE_VIRTUAL_MEMORY, &device->has_virtual_memory},
      {QUAY__CU_DEVICE_FILE_DESCRIPTORS, &files},
      {QUAY__CU_DEVICE_MEMORY_POOLS, &device->has_pools},
  };
  for (size_t i = 0; i < sizeof abilities / sizeof abilities[0]; i++) {
    const quay__cu_result result = ask_ability(device, abilities[i].which, abilities[i].has);
    if (result != QUAY__CU_SUCCESS)
      return result;
  }
  device->can_share = device->has_virtual_memory && files;
  device->has_pools = device->has_pools && device->api->cuMemAllocAsync != NULL &&
                      device->api->cuMemFreeAsync != NULL;
  return QUAY__CU_SUCCESS;
}

static quay_status describe(quay__cuda_device *device) {
  const quay__cuda_api *const api = device->api;
  const uint64_t ordinal = (uint64_t)device->ordinal;
  quay__cu_result result = api->cuDeviceGet(&device->handle, device->ordinal);
  if (result != QUAY__CU_SUCCESS)
    return fail_make(result, ordinal, "there is no such device");
  size_t bytes = 0;
  result = api->cuDeviceTotalMem(&bytes, device->handle);
  if (result == QUAY__CU_SUCCESS)
    result = api->cuDeviceGetName(device->product, sizeof device->product, device->handle);
  if (result != QUAY__CU_SUCCESS)
    return fail_make(result, ordinal, "it does not tell its memory and name");
  device->product[sizeof device->product - 1] = '\0';
  device->total_bytes = bytes;
  bool unified = false;
  result = ask_abilities(device, &unified);
  if (result != QUAY__CU_SUCCESS)
    return fail_make(result, ordinal, "it does not tell what it is able to");
  if (!unified) {
    return quay_error_set(QUAY_STATUS_UNSUPPORTED, "cuda", 0, NULL,
                          "%s (%s) shares no address space with the host, which Quay needs",
                          device->name, device->product);
  }
  if (api->cuDeviceGetUuid != NULL)
    (void)api->cuDeviceGetUuid(&device->uuid, device->handle); /* zeros where it is not told */
  int node = -1; /* drivers before 12.2 do not know the question */
  result = api->cuDeviceGetAttribute(&node, QUAY__CU_DEVICE_HOST_NUMA_ID, device->handle);
  device->numa_node = result == QUAY__CU_SUCCESS ? node : -1;
  return QUAY_OK;
}

/* With the context current. Some drivers forbid it to a thread that captures. */
static quay__cu_result create_free_stream(quay__cuda_device *device) {
  const quay__cuda_api *const api = device->api;
  int mode = QUAY__CU_CAPTURE_MODE_RELAXED;
  quay__cu_result result = api->cuThreadExchangeStreamCaptureMode(&mode);
  if (result != QUAY__CU_SUCCESS)
    return result;
  result = api->cuStreamCreateWithPriority(&device->free_stream, QUAY__CU_STREAM_NON_BLOCKING, 0);
  const quay__cu_result restored = quay__cuda_set_capture_mode(api, mode);
  return result != QUAY__CU_SUCCESS ? result : restored;
}

/* With the context current. */
static quay__cu_result remember_id(quay__cuda_device *device) {
  unsigned long long id = 0;
  if (device->api->cuCtxGetId == NULL)
    return QUAY__CU_SUCCESS;
  const quay__cu_result result = device->api->cuCtxGetId(device->context, &id);
  if (result == QUAY__CU_SUCCESS)
    atomic_store_explicit(&device->context_id, id, memory_order_release);
  return result;
}

/* Retains the primary context and makes the stream for frees in it. */
static quay_status open_context(quay__cuda_device *device) {
  const quay__cuda_api *const api = device->api;
  const uint64_t ordinal = (uint64_t)device->ordinal;
  quay__cu_result result = api->cuDevicePrimaryCtxRetain(&device->context, device->handle);
  if (result != QUAY__CU_SUCCESS)
    return fail_make(result, ordinal, "its primary context can't be made");
  result = api->cuCtxPushCurrent(device->context);
  if (result == QUAY__CU_SUCCESS) {
    result = remember_id(device);
    if (result == QUAY__CU_SUCCESS)
      result = create_free_stream(device);
    const quay__cu_result popped = quay__cuda_pop_context(api);
    result = result != QUAY__CU_SUCCESS ? result : popped;
  }
  if (result == QUAY__CU_SUCCESS)
    return QUAY_OK;
  const quay__cu_result released = api->cuDevicePrimaryCtxRelease(device->handle);
  return fail_make(result, ordinal,
                   released == QUAY__CU_SUCCESS
                       ? "no stream can be made on it"
                       : "no stream can be made on it, nor can its context be given back");
}

static void close_context(quay__cuda_device *device) {
  const quay__cuda_api *const api = device->api;
  if (api->cuCtxPushCurrent(device->context) == QUAY__CU_SUCCESS) {
    (void)api->cuStreamDestroy(device->free_stream);
    (void)quay__cuda_pop_context(api);
  }
  (void)api->cuDevicePrimaryCtxRelease(device->handle);
}

static quay_status make(const quay__cuda_api *api, uint64_t ordinal, quay_device **out_device) {
  quay__cuda_device *const device = quay__os_calloc(1, sizeof *device);
  if (device == NULL)
    return quay__fail_out_of_memory(sizeof *device, "a CUDA device");
  device->api = api;
  device->ordinal = (int32_t)ordinal;
  (void)snprintf(device->name, sizeof device->name, "cuda:%" PRIu64, ordinal);
  quay_status status = describe(device);
  if (status == QUAY_OK)
    status = open_context(device);
  if (status != QUAY_OK) {
    quay__os_free(device);
    return status;
  }
  const quay_device_desc desc = {
      .vtable = &vtable,
      .self = device,
      .backend = "cuda",
      .name = device->name,
      .type = QUAY_DEVICE_CUDA,
      .index = device->ordinal,
  };
  quay__lock_init(&device->lock);
  status = quay_device_create(&desc, &device->device);
  if (status != QUAY_OK) {
    close_context(device);
    quay__lock_destroy(&device->lock);
    quay__os_free(device);
    return status;
  }
  /* A capture begins on a handle, or with a wait for an event of a capture, which Quay records
   * none of. */
  device->device->checks_shown_streams = true;
  *out_device = device->device;
  return QUAY_OK;
}

/* Getting one. */

static quay_status count_devices(const quay__cuda_api *api, uint64_t *out_count) {
  int count = 0;
  *out_count = 0;
  const quay__cu_result result = api->cuDeviceGetCount(&count);
  if (result != QUAY__CU_SUCCESS)
    return quay__cuda_fail(NULL, result, "the CUDA devices can't be counted");
  *out_count = count > 0 ? (uint64_t)count : 0;
  if (*out_count > QUAY__CUDA_DEVICES_MAX)
    *out_count = QUAY__CUDA_DEVICES_MAX;
  return QUAY_OK;
}

static quay_status fail_no_devices(void) {
  return quay_error_set(QUAY_STATUS_UNAVAILABLE, "cuda", QUAY__CU_NO_DEVICE, "CUDA_ERROR_NO_DEVICE",
                        "the CUDA driver shows no device; look at CUDA_VISIBLE_DEVICES");
}

/* One reference on the device if it has been made, else NULL. */
static quay_device *find_made(size_t ordinal) {
  quay__global_acquire(QUAY__LOCK_CUDA);
  quay_device *const found = quay_device_retain(devices[ordinal]);
  quay__global_release(QUAY__LOCK_CUDA);
  return found;
}

quay_device *quay__cuda_device_find(const void *uuid) {
  quay_device *found = NULL;
  quay__global_acquire(QUAY__LOCK_CUDA);
  for (size_t i = 0; i < QUAY__CUDA_DEVICES_MAX && found == NULL; i++) {
    if (devices[i] != NULL && memcmp(quay__cuda_device_of(devices[i])->uuid.bytes, uuid,
                                     sizeof quay__cuda_device_of(devices[i])->uuid.bytes) == 0)
      found = quay_device_retain(devices[i]);
  }
  quay__global_release(QUAY__LOCK_CUDA);
  return found;
}

static quay_status make_first(const quay__cuda_api *api, uint64_t ordinal,
                              quay_device **out_device) {
  uint64_t count;
  QUAY_TRY(count_devices(api, &count));
  if (count == 0)
    return fail_no_devices();
  if (ordinal >= count) {
    return quay_error_set(QUAY_STATUS_UNAVAILABLE, "cuda", QUAY__CU_INVALID_DEVICE,
                          "CUDA_ERROR_INVALID_DEVICE",
                          "there is no device cuda:%" PRIu64 "; the driver shows cuda:0 to "
                          "cuda:%" PRIu64,
                          ordinal, count - 1);
  }
  quay__global_acquire(QUAY__LOCK_CUDA);
  quay_device *found = devices[ordinal];
  const quay_status status = found != NULL ? QUAY_OK : make(api, ordinal, &found);
  if (status == QUAY_OK) {
    devices[ordinal] = found;
    if (atomic_load_explicit(&devices_end, memory_order_relaxed) <= ordinal)
      atomic_store_explicit(&devices_end, (unsigned)ordinal + 1, memory_order_relaxed);
    *out_device = quay_device_retain(found);
  }
  quay__global_release(QUAY__LOCK_CUDA);
  return status;
}

quay_status quay__cuda_device_get(uint64_t ordinal, quay_device **out_device) {
  const quay__cuda_api *api;
  *out_device = NULL;
  QUAY_TRY(quay__cuda_start(&api));
  /* A lost device is handed out, too: a driver that has lost it may not even count devices. */
  if (ordinal < QUAY__CUDA_DEVICES_MAX)
    *out_device = find_made(ordinal);
  return *out_device != NULL ? QUAY_OK : make_first(api, ordinal, out_device);
}

void quay__cuda_devices_mark_lost(quay__cu_result result, const char *format, ...) {
  char text[QUAY_ERROR_MESSAGE_SIZE];
  va_list arguments;
  va_start(arguments, format);
  quay__message_format(text, sizeof text, format, arguments);
  va_end(arguments);
  for (size_t i = 0; i < QUAY__CUDA_DEVICES_MAX; i++) {
    quay_device *const device = find_made(i);
    quay_device_mark_lost(device, result, quay__cuda_result_name(result), "%s", text);
    quay_device_release(device);
  }
}

void quay__cuda_devices_close(bool alone) {
  if (!alone)
    quay__global_acquire(QUAY__LOCK_CUDA);
  for (size_t i = 0; i < QUAY__CUDA_DEVICES_MAX; i++) {
    if (devices[i] != NULL)
      atomic_store_explicit(&devices[i]->untouchable, true, memory_order_relaxed);
  }
  if (!alone)
    quay__global_release(QUAY__LOCK_CUDA);
}

/* The list. */

typedef struct device_line {
  char spec[32];
  char product[128];
  char reason[QUAY_ERROR_MESSAGE_SIZE];
} device_line;

static quay_status list_reason(size_t index, device_line *line, quay_device_info *out_info,
                               bool *out_more) {
  *out_more = index == 0;
  (void)snprintf(line->reason, sizeof line->reason, "%s", quay_last_error()->message);
  *out_info = (quay_device_info){
      .backend = "cuda",
      .spec = "cuda",
      .name = "",
      .reason = line->reason,
      .type = QUAY_DEVICE_CUDA,
  };
  return QUAY_OK;
}

/* What costs no context: the free memory is told once the device is open. */
static void describe_line(const quay__cuda_api *api, size_t index, device_line *line,
                          quay_device_info *out_info) {
  quay__cu_device handle = 0;
  size_t bytes = 0;
  quay__cu_result result = api->cuDeviceGet(&handle, (int)index);
  if (result == QUAY__CU_SUCCESS)
    result = api->cuDeviceGetName(line->product, sizeof line->product, handle);
  if (result == QUAY__CU_SUCCESS)
    result = api->cuDeviceTotalMem(&bytes, handle);
  line->product[sizeof line->product - 1] = '\0';
  out_info->memory.total_bytes = bytes;
  out_info->available = result == QUAY__CU_SUCCESS;
  if (result != QUAY__CU_SUCCESS) {
    (void)snprintf(line->reason, sizeof line->reason, "the driver does not describe it (%s)",
                   quay__cuda_result_name(result));
  }
}

static void add_state(size_t index, device_line *line, quay_device_info *out_info) {
  quay_device *const device = find_made(index);
  if (device == NULL)
    return;
  if (quay_device_memory_info(device, &out_info->memory) != QUAY_OK) {
    (void)snprintf(line->reason, sizeof line->reason, "%s", quay_last_error()->message);
    out_info->available = false;
  }
  quay_device_release(device);
}

quay_status quay__cuda_device_info(void *user, size_t index, quay_device_info *out_info,
                                   bool *out_more) {
  (void)user;
  static _Thread_local device_line line;
  line = (device_line){.spec = ""};
  const quay__cuda_api *api;
  uint64_t count = 0;
  if (quay__cuda_start(&api) != QUAY_OK || count_devices(api, &count) != QUAY_OK)
    return list_reason(index, &line, out_info, out_more);
  if (count == 0) {
    (void)fail_no_devices();
    return list_reason(index, &line, out_info, out_more);
  }
  *out_more = index < count;
  if (!*out_more)
    return QUAY_OK;
  (void)snprintf(line.spec, sizeof line.spec, "cuda:%zu", index);
  *out_info = (quay_device_info){
      .backend = "cuda",
      .spec = line.spec,
      .name = line.product,
      .reason = line.reason,
      .type = QUAY_DEVICE_CUDA,
      .index = (int32_t)index,
  };
  describe_line(api, index, &line, out_info);
  if (out_info->available)
    add_state(index, &line, out_info);
  return QUAY_OK;
}

/* Shutdown. */

static uint64_t collect(quay__cuda_device *device) {
  if (atomic_load_explicit(&device->released_count, memory_order_relaxed) == 0)
    return 0;
  quay__error_state saved;
  quay__error_save(&saved);
  quay__cuda_scope scope;
  uint64_t bytes = 0;
  if (quay__cuda_enter(device, true, &scope) == QUAY_OK) {
    bytes = quay__cuda_blocks_collect(device, false);
    quay__cuda_leave(&scope);
  }
  quay__error_restore(&saved);
  return bytes;
}

uint64_t quay__cuda_collect(void) {
  if (quay__cuda_started() == NULL || !quay__cuda_callable())
    return 0;
  uint64_t bytes = 0;
  const unsigned end = atomic_load_explicit(&devices_end, memory_order_relaxed);
  for (unsigned i = 0; i < end; i++) {
    quay_device *const device = find_made(i);
    if (device != NULL && quay_device_health(device) == QUAY_HEALTH_OK)
      bytes += collect(quay__cuda_device_of(device));
    quay_device_release(device);
  }
  return bytes;
}

void quay__cuda_shutdown(void) {
  for (size_t i = 0; i < QUAY__CUDA_DEVICES_MAX; i++) {
    quay__global_acquire(QUAY__LOCK_CUDA);
    quay_device *const device = devices[i];
    devices[i] = NULL;
    quay__global_release(QUAY__LOCK_CUDA);
    quay_device_release(device);
  }
}
