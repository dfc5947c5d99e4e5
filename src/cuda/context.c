/* The current context: a device's own around each of Quay's calls, the program's before and after
 * it.
 *
 * While a stream captures a graph, here or in another thread, the driver forbids some calls, which
 * can spoil the capture: those that may wait for the device, or find out how far it is. Quay's own
 * have nothing to do with the graph and are made in relaxed mode, in which they are allowed. The
 * driver tells nobody whether anything captures, and any thread may begin to at any time: so mode
 * is changed for just those calls, and submitting work, recording, and memory in the order of a
 * stream do without. */
#include "core/error.h"
#include "cuda/cuda_impl.h"

quay__cu_result quay__cuda_context_check(const quay__cuda_device *device) {
  unsigned long long id = 0;
  if (device->api->cuCtxGetId == NULL)
    return QUAY__CU_SUCCESS;
  const quay__cu_result result = device->api->cuCtxGetId(device->context, &id);
  if (result != QUAY__CU_SUCCESS)
    return result;
  return id == atomic_load_explicit(&device->context_id, memory_order_acquire)
             ? QUAY__CU_SUCCESS
             : QUAY__CU_CONTEXT_IS_DESTROYED;
}

quay_status quay__cuda_enter(quay__cuda_device *device, bool relaxed, quay__cuda_scope *out_scope) {
  QUAY_TRY(quay__cuda_check_callable());
  const quay__cuda_api *const api = device->api;
  quay__cu_result result = api->cuCtxPushCurrent(device->context);
  if (result == QUAY__CU_SUCCESS) {
    result = quay__cuda_context_check(device);
    if (result != QUAY__CU_SUCCESS)
      (void)quay__cuda_pop_context(api);
  }
  if (result != QUAY__CU_SUCCESS)
    return quay__cuda_fail(device, result, "the context of %s can't be made current", device->name);
  *out_scope = (quay__cuda_scope){
      .device = device,
      .capture_mode = QUAY__CU_CAPTURE_MODE_RELAXED,
  };
  const quay_status status = relaxed ? quay__cuda_relax(out_scope) : QUAY_OK;
  if (status != QUAY_OK)
    quay__cuda_leave(out_scope);
  return status;
}

quay_status quay__cuda_relax(quay__cuda_scope *scope) {
  if (scope->relaxed)
    return QUAY_OK;
  quay__cuda_device *const device = scope->device;
  const quay__cu_result result =
      device->api->cuThreadExchangeStreamCaptureMode(&scope->capture_mode);
  if (result != QUAY__CU_SUCCESS) {
    return quay__cuda_fail(device, result, "the thread's capture mode can't be changed on %s",
                           device->name);
  }
  scope->relaxed = true;
  return QUAY_OK;
}

/* The program's thread must not be left changed because one call fails: each is made twice then. */

quay__cu_result quay__cuda_set_capture_mode(const quay__cuda_api *api, int mode) {
  int exchanged = mode;
  if (api->cuThreadExchangeStreamCaptureMode(&exchanged) == QUAY__CU_SUCCESS)
    return QUAY__CU_SUCCESS;
  exchanged = mode;
  return api->cuThreadExchangeStreamCaptureMode(&exchanged);
}

quay__cu_result quay__cuda_pop_context(const quay__cuda_api *api) {
  quay__cu_context popped = NULL;
  const quay__cu_result result = api->cuCtxPopCurrent(&popped);
  return result == QUAY__CU_SUCCESS ? result : api->cuCtxPopCurrent(&popped);
}

void quay__cuda_leave(const quay__cuda_scope *scope) {
  quay__cuda_device *const device = scope->device;
  const quay__cuda_api *const api = device->api;
  if (!quay__cuda_callable())
    return;
  quay__cu_result result =
      scope->relaxed ? quay__cuda_set_capture_mode(api, scope->capture_mode) : QUAY__CU_SUCCESS;
  const quay__cu_result popped = quay__cuda_pop_context(api);
  if (result == QUAY__CU_SUCCESS)
    result = popped;
  /* A lost device says so at every call. */
  if (result != QUAY__CU_SUCCESS && quay_device_health(device->device) == QUAY_HEALTH_OK)
    quay__cuda_report(device, result, "the context of %s can't be left", device->name);
}
