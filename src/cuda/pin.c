/* Page-locking the core's staging memory, for all devices at once. */
#include "cuda/cuda_impl.h"

quay_status quay__cuda_pin(quay_device *quay, void *memory, uint64_t size) {
  quay__cuda_device *const device = quay__cuda_device_of(quay);
  quay__cuda_scope scope;
  QUAY_TRY(quay__cuda_enter(device, true, &scope));
  const quay__cu_result result =
      device->api->cuMemHostRegister(memory, size, QUAY__CU_MEMHOSTREGISTER_PORTABLE);
  const quay_status status =
      result == QUAY__CU_SUCCESS
          ? QUAY_OK
          : quay__cuda_fail(device, result, "page-locking %llu bytes of host memory for %s",
                            (unsigned long long)size, device->name);
  quay__cuda_leave(&scope);
  return status;
}

/* A driver that is gone or lost does not look at what it had locked any more. */
bool quay__cuda_unpin(quay_device *quay, void *memory, uint64_t size) {
  quay__cuda_device *const device = quay__cuda_device_of(quay);
  quay__cuda_scope scope;
  if (!quay__cuda_callable() || quay_device_health(quay) != QUAY_HEALTH_OK)
    return true;
  if (quay__cuda_enter(device, true, &scope) != QUAY_OK)
    return quay_device_health(quay) != QUAY_HEALTH_OK;
  const quay__cu_result result = device->api->cuMemHostUnregister(memory);
  if (result != QUAY__CU_SUCCESS) {
    quay__cuda_report(device, result, "%llu bytes of host memory can't be unlocked for %s",
                      (unsigned long long)size, device->name);
  }
  quay__cuda_leave(&scope);
  return result == QUAY__CU_SUCCESS || quay_device_health(quay) != QUAY_HEALTH_OK;
}
