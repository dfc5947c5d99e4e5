/* The current context: a device's own around each of Quay's calls, the program's before and after
 * it. */
#include "core/error.h"
#include "cuda/cuda_impl.h"

quay_status quay__cuda_enter(quay__cuda_device *device, bool relaxed, quay__cuda_scope *out_scope) {
  QUAY_TRY(quay__cuda_check_callable());
  const quay__cuda_api *const api = device->api;
  const quay__cu_result pushed = api->cuCtxPushCurrent(device->context);
  if (pushed != QUAY__CU_SUCCESS) {
    return quay__cuda_fail(device, pushed, "the context of %s can't be made current", device->name);
  }
  *out_scope = (quay__cuda_scope){
      .device = device,
      .capture_mode = QUAY__CU_CAPTURE_MODE_RELAXED,
      .relaxed = relaxed,
  };
  if (!relaxed)
    return QUAY_OK;
  const quay__cu_result exchanged =
      api->cuThreadExchangeStreamCaptureMode(&out_scope->capture_mode);
  if (exchanged == QUAY__CU_SUCCESS)
    return QUAY_OK;
  out_scope->relaxed = false;
  const quay_status status = quay__cuda_fail(
      device, exchanged, "the thread's capture mode can't be changed on %s", device->name);
  quay__cuda_leave(out_scope);
  return status;
}

void quay__cuda_leave(const quay__cuda_scope *scope) {
  quay__cuda_device *const device = scope->device;
  const quay__cuda_api *const api = device->api;
  if (!quay__cuda_callable())
    return;
  int mode = scope->capture_mode;
  quay__cu_result result =
      scope->relaxed ? api->cuThreadExchangeStreamCaptureMode(&mode) : QUAY__CU_SUCCESS;
  quay__cu_context popped = NULL;
  const quay__cu_result pop = api->cuCtxPopCurrent(&popped);
  if (result == QUAY__CU_SUCCESS)
    result = pop;
  /* A lost device says so at every call. */
  if (result != QUAY__CU_SUCCESS && quay_device_health(device->device) == QUAY_HEALTH_OK)
    quay__cuda_report(device, result, "the context of %s can't be left", device->name);
}
