/* Names and descriptions of errors. */
#include "sim.h"

typedef struct row {
  CUresult error;
  const char *name, *text;
} row;

#define ROW(error, text) \
  { error, #error, text }

static const row rows[] = {
    ROW(CUDA_SUCCESS, "no error"),
    ROW(CUDA_ERROR_INVALID_VALUE, "simulated: invalid argument"),
    ROW(CUDA_ERROR_OUT_OF_MEMORY, "simulated: out of memory"),
    ROW(CUDA_ERROR_NOT_INITIALIZED, "simulated: not initialised"),
    ROW(CUDA_ERROR_DEINITIALIZED, "simulated: the driver is shutting down"),
    ROW(CUDA_ERROR_STUB_LIBRARY, "simulated: the library is a stub"),
    ROW(CUDA_ERROR_NO_DEVICE, "simulated: no device"),
    ROW(CUDA_ERROR_INVALID_DEVICE, "simulated: there is no such device"),
    ROW(CUDA_ERROR_INVALID_IMAGE, "simulated: the image of a module is invalid"),
    ROW(CUDA_ERROR_INVALID_CONTEXT, "simulated: no context, or an invalid one"),
    ROW(CUDA_ERROR_ALREADY_MAPPED, "simulated: mapped already"),
    ROW(CUDA_ERROR_NOT_MAPPED, "simulated: not mapped"),
    ROW(CUDA_ERROR_ECC_UNCORRECTABLE, "simulated: memory error that can't be corrected"),
    ROW(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "simulated: the devices are no peers"),
    ROW(CUDA_ERROR_NVLINK_UNCORRECTABLE, "simulated: link error that can't be corrected"),
    ROW(CUDA_ERROR_CONTAINED, "simulated: contained error"),
    ROW(CUDA_ERROR_OPERATING_SYSTEM, "simulated: the operating system refused"),
    ROW(CUDA_ERROR_INVALID_HANDLE, "simulated: invalid handle"),
    ROW(CUDA_ERROR_ILLEGAL_STATE, "simulated: not in that state"),
    ROW(CUDA_ERROR_NOT_FOUND, "simulated: not found"),
    ROW(CUDA_ERROR_NOT_READY, "simulated: not ready"),
    ROW(CUDA_ERROR_ILLEGAL_ADDRESS, "simulated: illegal address"),
    ROW(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "simulated: too many resources for a launch"),
    ROW(CUDA_ERROR_LAUNCH_TIMEOUT, "simulated: a kernel took too long"),
    ROW(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "simulated: peer access is enabled already"),
    ROW(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "simulated: peer access is not enabled"),
    ROW(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, "simulated: the primary context is active"),
    ROW(CUDA_ERROR_CONTEXT_IS_DESTROYED, "simulated: the context is destroyed"),
    ROW(CUDA_ERROR_ASSERT, "simulated: assertion of a kernel"),
    ROW(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "simulated: registered already"),
    ROW(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "simulated: not registered"),
    ROW(CUDA_ERROR_HARDWARE_STACK_ERROR, "simulated: stack error"),
    ROW(CUDA_ERROR_ILLEGAL_INSTRUCTION, "simulated: illegal instruction"),
    ROW(CUDA_ERROR_MISALIGNED_ADDRESS, "simulated: misaligned address"),
    ROW(CUDA_ERROR_INVALID_ADDRESS_SPACE, "simulated: invalid address space"),
    ROW(CUDA_ERROR_INVALID_PC, "simulated: invalid program counter"),
    ROW(CUDA_ERROR_LAUNCH_FAILED, "simulated: a kernel failed"),
    ROW(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, "simulated: a cooperative launch is too large"),
    ROW(CUDA_ERROR_TENSOR_MEMORY_LEAK, "simulated: tensor memory leaked"),
    ROW(CUDA_ERROR_NOT_PERMITTED, "simulated: not permitted"),
    ROW(CUDA_ERROR_NOT_SUPPORTED, "simulated: not supported"),
    ROW(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "simulated: library and kernel module differ"),
    ROW(CUDA_ERROR_MPS_CLIENT_TERMINATED, "simulated: the client was ended"),
    ROW(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "simulated: not permitted while capturing"),
    ROW(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "simulated: the capture was invalidated"),
    ROW(CUDA_ERROR_STREAM_CAPTURE_MERGE, "simulated: would merge two captures"),
    ROW(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "simulated: not the stream that began the capture"),
    ROW(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "simulated: work was not joined to the first stream"),
    ROW(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "simulated: would depend on what is not captured"),
    ROW(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
        "simulated: the legacy stream would depend on a capture"),
    ROW(CUDA_ERROR_CAPTURED_EVENT, "simulated: the event was recorded in a capture"),
    ROW(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "simulated: another thread began the capture"),
    ROW(CUDA_ERROR_EXTERNAL_DEVICE, "simulated: error of an external device"),
    ROW(CUDA_ERROR_UNKNOWN, "simulated: unknown error"),
};

static const row *find(CUresult error) {
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    if (rows[i].error == error)
      return &rows[i];
  }
  return NULL;
}

CUresult cuGetErrorName(CUresult error, const char **text) {
  SIM_ENTER(cuGetErrorName, 0);
  const row *const found = find(error);
  *text = found != NULL ? found->name : NULL;
  return sim_leave(found != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuGetErrorString(CUresult error, const char **text) {
  SIM_ENTER(cuGetErrorString, 0);
  const row *const found = find(error);
  *text = found != NULL ? found->text : NULL;
  return sim_leave(found != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}
