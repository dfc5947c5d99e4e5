/* Contexts, primary and others, and which one is current to a thread. */
#include "sim.h"

enum {
  MAGIC = 0xc047e87,
  STACK = 64
};

static _Thread_local struct {
  uint64_t generation;
  size_t depth;
  sim_context *stack[STACK];
} current;

static size_t depth(void) {
  if (current.generation != sim.generation) {
    current.generation = sim.generation;
    current.depth = 0;
  }
  return current.depth;
}

sim_context *sim_current(void) {
  return depth() > 0 ? current.stack[current.depth - 1] : NULL;
}

sim_context *sim_context_check(CUcontext handle, CUresult *out_error) {
  *out_error = CUDA_ERROR_INVALID_CONTEXT;
  for (sim_context *c = sim.contexts; c != NULL; c = c->next) {
    if (c != (sim_context *)handle)
      continue;
    *out_error = c->alive ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return c->alive ? c : NULL;
  }
  return NULL;
}

static sim_context *find_primary(int device) {
  for (sim_context *c = sim.contexts; c != NULL; c = c->next) {
    if (c->primary && c->device == device)
      return c;
  }
  return NULL;
}

static sim_context *new_context(int device, bool primary) {
  sim_context *const context = sim_new(sizeof *context);
  context->magic = MAGIC;
  context->device = device;
  context->primary = primary;
  context->next = sim.contexts;
  sim.contexts = context;
  return context;
}

static sim_context *primary_of(int device) {
  sim_context *const context = find_primary(device);
  return context != NULL ? context : new_context(device, true);
}

static void begin(sim_context *context) {
  context->alive = true;
  context->id = ++sim.next_serial;
  context->peers = 0;
  context->legacy = sim_stream_new(context, SIM_STREAM_LEGACY);
}

void sim_context_wait(sim_context *context) {
  for (sim_stream *stream = sim.streams; stream != NULL; stream = stream->next) {
    if (stream->context != context) /* those that were destroyed had work, too */
      continue;
    sim_clock clock = {.count = 0};
    sim_clock_join(&clock, &stream->clock);
    sim_wait(stream, stream->submitted, &clock);
    sim_clock_free(&clock);
  }
}

/* Everything that belongs to the context goes with it. */
static void end(sim_context *context) {
  sim_context_wait(context);
  context->alive = false;
  for (sim_stream *stream = sim.streams; stream != NULL; stream = stream->next) {
    if (stream->context == context && stream->alive)
      sim_stream_end(stream);
  }
  sim_semaphores_end(context);
  sim_events_end(context);
  for (size_t i = sim_range_count(); i > 0; i--) {
    sim_range *const range = sim_range_get(i - 1);
    if (range->context == context)
      sim_range_remove(range, "went with its context");
  }
}

void sim_contexts_clear(void) {
  for (sim_context *c = sim.contexts; c != NULL; c = c->next) {
    c->alive = c->primary = false;
    c->retains = 0;
  }
}

void sim_context_counts(simcuda_census *out) {
  for (const sim_context *c = sim.contexts; c != NULL; c = c->next) {
    out->contexts += c->alive;
    out->retains += c->retains;
  }
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  SIM_ENTER(cuDevicePrimaryCtxRetain, SIM_NEEDS_INIT);
  if (!sim_device_is_valid(device))
    return sim_leave(CUDA_ERROR_INVALID_DEVICE);
  sim_context *const primary = primary_of(device);
  if (!primary->alive)
    begin(primary);
  primary->retains++;
  *context = (CUcontext)primary;
  return sim_leave(CUDA_SUCCESS);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  SIM_ENTER(cuDevicePrimaryCtxRelease_v2, SIM_NEEDS_INIT);
  if (!sim_device_is_valid(device))
    return sim_leave(CUDA_ERROR_INVALID_DEVICE);
  sim_context *const primary = find_primary(device);
  if (primary == NULL || primary->retains == 0)
    return sim_leave(CUDA_ERROR_INVALID_CONTEXT);
  if (--primary->retains == 0 && primary->alive)
    end(primary);
  return sim_leave(CUDA_SUCCESS);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
  SIM_ENTER(cuDevicePrimaryCtxReset_v2, SIM_NEEDS_INIT | SIM_UNSAFE_IN_CAPTURE);
  if (!sim_device_is_valid(device))
    return sim_leave(CUDA_ERROR_INVALID_DEVICE);
  sim_context *const primary = find_primary(device);
  if (primary != NULL && primary->alive)
    end(primary);
  return sim_leave(CUDA_SUCCESS);
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags) {
  SIM_ENTER(cuDevicePrimaryCtxSetFlags_v2, SIM_NEEDS_INIT);
  if (!sim_device_is_valid(device))
    return sim_leave(CUDA_ERROR_INVALID_DEVICE);
  primary_of(device)->flags = flags;
  return sim_leave(CUDA_SUCCESS);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
  SIM_ENTER(cuDevicePrimaryCtxGetState, SIM_NEEDS_INIT);
  if (!sim_device_is_valid(device))
    return sim_leave(CUDA_ERROR_INVALID_DEVICE);
  const sim_context *const primary = find_primary(device);
  *flags = primary != NULL ? primary->flags : 0;
  *active = primary != NULL && primary->alive;
  return sim_leave(CUDA_SUCCESS);
}

static CUresult push(sim_context *context) {
  if (depth() == STACK)
    return CUDA_ERROR_INVALID_VALUE;
  current.stack[current.depth++] = context;
  return CUDA_SUCCESS;
}

CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device) {
  SIM_ENTER(cuCtxCreate_v2, SIM_NEEDS_INIT | SIM_UNSAFE_IN_CAPTURE);
  if (!sim_device_is_valid(device))
    return sim_leave(CUDA_ERROR_INVALID_DEVICE);
  sim_context *const made = new_context(device, false);
  made->flags = flags;
  begin(made);
  *context = (CUcontext)made;
  return sim_leave(push(made));
}

CUresult cuCtxDestroy_v2(CUcontext handle) {
  SIM_ENTER(cuCtxDestroy_v2, SIM_NEEDS_INIT | SIM_UNSAFE_IN_CAPTURE);
  CUresult error;
  sim_context *const context = sim_context_check(handle, &error);
  if (context == NULL || context->primary)
    return sim_leave(context == NULL ? error : CUDA_ERROR_INVALID_CONTEXT);
  end(context);
  if (sim_current() == context)
    current.depth--;
  return sim_leave(CUDA_SUCCESS);
}

CUresult cuCtxPushCurrent_v2(CUcontext handle) {
  SIM_ENTER(cuCtxPushCurrent_v2, SIM_NEEDS_INIT);
  CUresult error;
  sim_context *context = sim_context_check(handle, &error);
  /* Seen on an H200 with driver 580: what was reset can be made current; calls then fail. */
  if (context == NULL && error == CUDA_ERROR_CONTEXT_IS_DESTROYED &&
      ((sim_context *)handle)->primary)
    context = (sim_context *)handle;
  return sim_leave(context != NULL ? push(context) : error);
}

CUresult cuCtxPopCurrent_v2(CUcontext *context) {
  SIM_ENTER(cuCtxPopCurrent_v2, SIM_NEEDS_INIT);
  sim_context *const popped = sim_current();
  if (popped == NULL)
    return sim_leave(CUDA_ERROR_INVALID_CONTEXT);
  current.depth--;
  if (context != NULL)
    *context = (CUcontext)popped;
  return sim_leave(CUDA_SUCCESS);
}

CUresult cuCtxSetCurrent(CUcontext handle) {
  SIM_ENTER(cuCtxSetCurrent, SIM_NEEDS_INIT);
  CUresult error = CUDA_SUCCESS;
  sim_context *const context = handle != NULL ? sim_context_check(handle, &error) : NULL;
  if (error != CUDA_SUCCESS)
    return sim_leave(error);
  if (depth() > 0)
    current.depth--;
  return sim_leave(context != NULL ? push(context) : CUDA_SUCCESS);
}

CUresult cuCtxGetCurrent(CUcontext *context) {
  SIM_ENTER(cuCtxGetCurrent, SIM_NEEDS_INIT);
  *context = (CUcontext)sim_current();
  return sim_leave(CUDA_SUCCESS);
}

CUresult cuCtxGetDevice(CUdevice *device) {
  SIM_ENTER(cuCtxGetDevice, SIM_NEEDS_CONTEXT);
  const sim_context *const context = sim_current();
  if (context == NULL)
    return sim_leave(CUDA_ERROR_INVALID_CONTEXT);
  *device = context->device;
  return sim_leave(CUDA_SUCCESS);
}

CUresult cuCtxGetId(CUcontext handle, unsigned long long *id) {
  /* Seen on an H200 with driver 580: what is named need not be current. */
  SIM_ENTER(cuCtxGetId, SIM_NEEDS_INIT);
  CUresult error = CUDA_ERROR_INVALID_CONTEXT;
  const sim_context *const context =
      handle != NULL ? sim_context_check(handle, &error) : sim_current();
  if (context == NULL)
    return sim_leave(error);
  *id = context->id;
  return sim_leave(CUDA_SUCCESS);
}

CUresult cuCtxGetApiVersion(CUcontext handle, unsigned *version) {
  SIM_ENTER(cuCtxGetApiVersion, SIM_NEEDS_CONTEXT);
  CUresult error = CUDA_SUCCESS;
  if (handle != NULL)
    (void)sim_context_check(handle, &error);
  if (error == CUDA_SUCCESS)
    *version = 3020;
  return sim_leave(error);
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
  SIM_ENTER(cuCtxGetStreamPriorityRange, SIM_NEEDS_CONTEXT);
  if (least != NULL)
    *least = 0;
  if (greatest != NULL)
    *greatest = -5;
  return sim_leave(CUDA_SUCCESS);
}

CUresult cuCtxSynchronize(void) {
  SIM_ENTER(cuCtxSynchronize, SIM_NEEDS_CONTEXT | SIM_UNSAFE_IN_CAPTURE);
  sim_context_wait(sim_current());
  return sim_leave(sim.sticky);
}
