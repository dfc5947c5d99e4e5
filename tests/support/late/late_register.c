/* Registration: options, specs, the list of devices; the one state that there is. */
#include <inttypes.h>
#include <string.h>

#include "late_internal.h"

late_state late = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .moving = PTHREAD_MUTEX_INITIALIZER,
    .changed = PTHREAD_COND_INITIALIZER,
};

void late_lock(void) {
  pthread_mutex_lock(&late.lock);
}

void late_unlock(void) {
  pthread_mutex_unlock(&late.lock);
}

/* Specs. */

static quay_status parse_memory(const quay_spec_args *args, quay_memory_kind *out_kind) {
  const char *const memory = quay_spec_value(args, "memory");
  *out_kind = QUAY_MEMORY_DEVICE;
  if (memory == NULL || strcmp(memory, "device") == 0)
    return QUAY_OK;
  *out_kind = QUAY_MEMORY_PINNED;
  if (strcmp(memory, "pinned") == 0)
    return QUAY_OK;
  return quay_error_set(QUAY_STATUS_INVALID_ARGUMENT, "late", 0, NULL,
                        "allocator spec \"%s\": memory=\"%s\" is not device or pinned", args->spec,
                        memory);
}

static quay_status open_allocator(void *user, const quay_spec_args *args,
                                  quay_allocator **out_allocator) {
  (void)user;
  static const quay_spec_key keys[] = {
      {.key = NULL, .form = "index of a device"},
      {.key = "memory", .form = "device or pinned"},
  };
  QUAY_TRY(quay_spec_check(args, keys, sizeof keys / sizeof keys[0]));
  uint64_t index = 0;
  QUAY_TRY(quay_spec_unsigned(args, NULL, &index));
  quay_memory_kind kind;
  QUAY_TRY(parse_memory(args, &kind));
  if (index >= late.options.devices) {
    return quay_error_set(QUAY_STATUS_UNAVAILABLE, "late", 0, NULL,
                          "allocator spec \"%s\": there is no device %" PRIu64
                          ", only late:0 to late:%u",
                          args->spec, index, late.options.devices - 1);
  }
  late_device *const device = late.devices[index];
  QUAY_TRY(late_enter(device, LATE_OPEN));
  late_unlock();
  return late_allocator_new(device, kind, out_allocator);
}

static quay_status device_info(void *user, size_t index, quay_device_info *out_info,
                               bool *out_more) {
  (void)user;
  late_lock();
  *out_more = index < late.options.devices;
  if (*out_more) {
    const late_device *const device = late.devices[index];
    *out_info = (quay_device_info){
        .backend = "late",
        .spec = device->name,
        .name = "late test double",
        .available = !device->lost,
        .reason = device->lost ? "the device is lost" : "",
        .type = QUAY_DEVICE_EXTERNAL,
        .index = (int32_t)index,
        .memory =
            {
                .total_bytes = late.options.device_bytes,
                .free_bytes = late.options.device_bytes - device->used_bytes,
            },
    };
  }
  late_unlock();
  return QUAY_OK;
}

/* Registration. */

static quay_status check_options(const late_options *options) {
  const char *problem = NULL;
  if (options->devices > LATE_MAX_DEVICES)
    problem = "more devices than LATE_MAX_DEVICES";
  if (options->eager_percent > 99)
    problem = "eager_percent above 99";
  if (problem == NULL)
    return QUAY_OK;
  return quay_error_set(QUAY_STATUS_INVALID_ARGUMENT, "late", 0, NULL, "late_register: %s",
                        problem);
}

static void set_options(const late_options *options) {
  late.options = *options;
  if (late.options.devices == 0)
    late.options.devices = 3;
  if (late.options.max_delay_us == 0)
    late.options.max_delay_us = 200;
  if (late.options.device_bytes == 0)
    late.options.device_bytes = (uint64_t)16 << 30;
  late.next_serial = 0;
  late.random = late.options.seed;
  late.order = 0;
  late.submitted = late.run = 0;
}

static void end_state(void) {
  late_reports_clear();
  late_handles_clear();
  late_clocks_end();
  late.registered = false;
}

static void release_devices(void) {
  for (uint32_t i = 0; i < LATE_MAX_DEVICES; i++) {
    late_device *const device = late.devices[i];
    late.devices[i] = NULL;
    if (device == NULL)
      continue;
    late_clock_free(&device->finished);
    quay_device_release(device->device); /* which frees it, now or when others let go of it */
  }
}

static quay_status begin_devices(void) {
  for (uint32_t i = 0; i < late.options.devices; i++) {
    late.devices[i] = late_device_new(i);
    if (late.devices[i] == NULL)
      return quay_last_error()->status;
  }
  return QUAY_OK;
}

quay_status late_register(const late_options *options) {
  static const late_options defaults;
  if (options == NULL)
    options = &defaults;
  QUAY_TRY(check_options(options));
  late_lock();
  if (late.registered)
    return late_leave_with(QUAY_STATUS_INVALID_ARGUMENT, "late_register: it is registered already");
  late.registered = true;
  set_options(options);
  late_clocks_begin(options->host_threads);
  late_unlock();

  const quay_backend backend = {
      .version = QUAY_BACKEND_VERSION,
      .struct_size = sizeof backend,
      .name = "late",
      .open = open_allocator,
      .device_info = device_info,
  };
  quay_status status = begin_devices();
  if (status == QUAY_OK)
    status = quay_backend_register(&backend);
  if (status == QUAY_OK)
    return QUAY_OK;
  release_devices();
  late_lock();
  end_state();
  late_unlock();
  return status;
}

/* With the lock held: stops all streams and forgets all memory. */
static void end_work(void) {
  for (uint32_t i = 0; i < late.options.devices; i++) {
    if (late.devices[i]->legacy == NULL)
      continue;
    late.stream_count++;
    late_stream_close(late.devices[i]->legacy);
    late.devices[i]->legacy = NULL;
  }
  for (late_stream *stream = late.streams; stream != NULL; stream = stream->next)
    late_stream_drop(stream);
  pthread_cond_broadcast(&late.changed);
  late_streams_reap();
  while (late.streams != NULL) {
    pthread_cond_wait(&late.changed, &late.lock);
    late_streams_reap();
  }
  late_blocks_end();
}

quay_status late_unregister(void) {
  late_lock();
  if (!late.registered)
    return late_leave_with(QUAY_STATUS_INVALID_ARGUMENT, "late_unregister: it is not registered");
  if (late.allocator_count + late.block_count + late.stream_count + late.event_count > 0) {
    return late_leave_with(QUAY_STATUS_BUSY,
                           "late_unregister: %" PRIu64 " allocators, %" PRIu64 " blocks, %" PRIu64
                           " streams and %" PRIu64 " events are alive",
                           late.allocator_count, late.block_count, late.stream_count,
                           late.event_count);
  }
  late_unlock();
  const quay_status status = quay_backend_unregister("late");
  if (status != QUAY_OK)
    return status;
  late_lock();
  end_work();
  late_unlock();
  release_devices();
  late_lock();
  end_state();
  late_unlock();
  return QUAY_OK;
}
