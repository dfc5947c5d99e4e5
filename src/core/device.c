/* Devices: creation, health, generation. The host's own functions are in src/cpu/device.c. */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/device_impl.h"
#include "core/lifecycle.h"
#include "core/os.h"
#include "core/pair_path.h"
#include "core/staging.h"
#include "core/vtable.h"
#include "cpu/cpu.h"

quay_status quay_device_create(const quay_device_desc *desc, quay_device **out_device) {
  if (out_device == NULL) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT, "quay_device_create: out_device is NULL");
  }
  *out_device = NULL;
  bool has_streams;
  QUAY_TRY(quay__device_vtable_check(desc, &has_streams));

  quay_device *device = quay__os_calloc(1, sizeof *device);
  char *name = quay__os_strdup(desc->name);
  char *backend = quay__os_strdup(desc->backend);
  if (device == NULL || name == NULL || backend == NULL) {
    quay__os_free(device);
    quay__os_free(name);
    quay__os_free(backend);
    return quay__fail_out_of_memory(sizeof *device, "a device");
  }
  atomic_init(&device->references, 1);
  device->type = desc->type;
  device->index = desc->index;
  device->has_streams = has_streams;
  atomic_init(&device->lost, false);
  atomic_init(&device->generation, 1);
  device->vtable = *desc->vtable;
  quay__device_vtable_fill(&device->vtable);
  device->self = desc->self;
  device->name = name;
  device->backend = backend;
  quay__lock_init(&device->lock);
  *out_device = device;
  return QUAY_OK;
}

/* The host lives in static storage and for ever: it can be had without memory, and no count of
 * references ends it. */
static quay_device host;
static pthread_once_t host_once = PTHREAD_ONCE_INIT;

static void make_host(void) {
  quay_device_desc desc;
  quay__cpu_device_desc(&desc);
  atomic_init(&host.references, 1);
  host.type = desc.type;
  host.index = desc.index;
  atomic_init(&host.lost, false);
  atomic_init(&host.generation, 1);
  host.vtable = *desc.vtable;
  quay__device_vtable_fill(&host.vtable);
  host.self = desc.self;
  host.name = (char *)(uintptr_t)desc.name;
  host.backend = (char *)(uintptr_t)desc.backend;
  quay__lock_init(&host.lock);
}

quay_device *quay_device_host(void) {
  pthread_once(&host_once, make_host);
  return quay_device_retain(&host);
}

quay_device *quay_device_retain(quay_device *device) {
  if (device != NULL)
    atomic_fetch_add_explicit(&device->references, 1, memory_order_relaxed);
  return device;
}

void quay_device_release(quay_device *device) {
  if (device == NULL || device == &host) {
    if (device != NULL)
      atomic_fetch_sub_explicit(&device->references, 1, memory_order_relaxed);
    return;
  }
  if (atomic_fetch_sub_explicit(&device->references, 1, memory_order_acq_rel) != 1)
    return;
  quay__staging_drop(device);
  device->vtable.destroy(device->self);
  quay__lock_destroy(&device->lock);
  quay__os_free(device->first_error);
  quay__os_free(device->name);
  quay__os_free(device->backend);
  quay__os_free(device);
}

quay_device_type_id quay_device_type(const quay_device *device) {
  return device != NULL ? device->type : (quay_device_type_id)0;
}

int32_t quay_device_index(const quay_device *device) {
  return device != NULL ? device->index : 0;
}

const char *quay_device_name(const quay_device *device) {
  return device != NULL ? device->name : "";
}

uint64_t quay_device_generation(const quay_device *device) {
  return device != NULL ? quay__device_generation(device) : 0;
}

quay_health quay_device_health(const quay_device *device) {
  return device != NULL && atomic_load_explicit(&device->lost, memory_order_acquire)
             ? QUAY_HEALTH_LOST
             : QUAY_HEALTH_OK;
}

void *quay_device_self(const quay_device *device) {
  return device != NULL ? device->self : NULL;
}

quay_status quay_device_memory_info(quay_device *device, quay_memory_info *out_info) {
  if (device == NULL || out_info == NULL) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT, "quay_device_memory_info: %s is NULL",
                      device == NULL ? "device" : "out_info");
  }
  memset(out_info, 0, sizeof *out_info);
  QUAY_TRY(quay__device_check(device));
  return device->vtable.memory_info(device, out_info);
}

quay_status quay_device_reset(quay_device *device) {
  if (device == NULL)
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT, "quay_device_reset: device is NULL");
  const unsigned streams = atomic_load_explicit(&device->streams, memory_order_acquire);
  if (streams != 0) {
    return quay__fail(QUAY_STATUS_BUSY,
                      "resetting the device %s while %u of its streams are alive (an open access "
                      "keeps one); end the accesses and release the streams first",
                      device->name, streams);
  }
  if (!quay__pair_reset_begin()) {
    return quay__fail(QUAY_STATUS_BUSY,
                      "resetting the device %s from inside a copy; reset it after the copy",
                      device->name);
  }
  quay__staging_drop(device);
  const quay_status status = device->vtable.reset(device);
  if (status == QUAY_OK)
    quay_device_advance_generation(device);
  quay__pair_reset_end();
  return status;
}

quay_status quay__device_fail_lost(quay_device *device) {
  quay__lock_acquire(&device->lock);
  const bool known = device->first_error != NULL;
  if (known)
    quay__error_restore(device->first_error);
  quay__lock_release(&device->lock);
  if (known)
    return QUAY_STATUS_DEVICE_LOST;
  return quay_error_set(QUAY_STATUS_DEVICE_LOST, device->backend, 0, NULL, "device %s is lost",
                        device->name);
}

void quay_device_mark_lost(quay_device *device, int64_t native_code, const char *native_name,
                           const char *format, ...) {
  if (device == NULL || format == NULL)
    return;
  quay__error_state saved;
  quay__error_save(&saved);
  char text[QUAY_ERROR_MESSAGE_SIZE];
  va_list arguments;
  va_start(arguments, format);
  quay__message_format(text, sizeof text, format, arguments);
  va_end(arguments);
  quay_error_set(QUAY_STATUS_DEVICE_LOST, device->backend, native_code, native_name,
                 "device %s is lost: %s", device->name, text);
  quay__error_state *error = quay__os_malloc(sizeof *error); /* without it only the text is lost */
  if (error != NULL)
    quay__error_save(error);

  quay__lock_acquire(&device->lock);
  const bool won = !atomic_load_explicit(&device->lost, memory_order_relaxed);
  if (won) {
    device->first_error = error;
    atomic_store_explicit(&device->lost, true, memory_order_release);
  }
  quay__lock_release(&device->lock);
  if (won)
    quay_log(QUAY_LOG_ERROR, "%s", quay_last_error()->message);
  if (!won)
    quay__os_free(error);
  quay__error_restore(&saved);
}

void quay_device_advance_generation(quay_device *device) {
  if (device == NULL)
    return;
  quay__lock_acquire(&device->lock);
  quay__error_state *const old = device->first_error;
  device->first_error = NULL;
  atomic_fetch_add_explicit(&device->generation, 1, memory_order_release);
  atomic_store_explicit(&device->lost, false, memory_order_release);
  quay__lock_release(&device->lock);
  quay__os_free(old);
}
