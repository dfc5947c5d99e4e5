/* Modules and launches. The code in a module is not looked at: kernels are known by name. */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

enum {
  MODULE_MAGIC = 0x30d01e,
  FUNCTION_MAGIC = 0xf43c,
};

typedef enum effect {
  EFFECT_NONE,
  EFFECT_SLEEP, /* the first parameter: microseconds */
  EFFECT_HOLD,  /* the first parameter: a gate */
  EFFECT_FAULT,
} effect;

typedef struct registered {
  struct registered *next;
  const char *name;
  simcuda_kernel kernel;
  effect effect;
  int fault;
} registered;

typedef struct module {
  struct module *next;
  uint32_t magic;
} module;

typedef struct function {
  struct function *next;
  uint32_t magic;
  const module *module;
  const registered *what;
} function;

static uint64_t word(void *const *parameters, size_t index) {
  uint64_t value;
  memcpy(&value, parameters[index], sizeof value);
  return value;
}

static size_t add_accesses(void *const *parameters, simcuda_access *out) {
  const uint64_t bytes = word(parameters, 3) * sizeof(float);
  out[0] = (simcuda_access){.address = word(parameters, 0), .size = bytes, .write = true};
  out[1] = (simcuda_access){.address = word(parameters, 1), .size = bytes};
  out[2] = (simcuda_access){.address = word(parameters, 2), .size = bytes};
  return 3;
}

static void add_run(void *const *parameters, unsigned char *const *bytes) {
  const uint64_t count = word(parameters, 3);
  for (uint64_t i = 0; i < count; i++) {
    float a;
    float b;
    memcpy(&a, bytes[1] + i * sizeof a, sizeof a);
    memcpy(&b, bytes[2] + i * sizeof b, sizeof b);
    const float sum = a + b;
    memcpy(bytes[0] + i * sizeof sum, &sum, sizeof sum);
  }
}

static size_t fill_accesses(void *const *parameters, simcuda_access *out) {
  out[0] = (simcuda_access){
      .address = word(parameters, 0), .size = word(parameters, 1) * 4, .write = true};
  return 1;
}

static void fill_run(void *const *parameters, unsigned char *const *bytes) {
  for (uint64_t i = 0; i < word(parameters, 1); i++)
    memcpy(bytes[0] + i * 4, parameters[2], 4);
}

static registered built_in[] = {
    {.name = "simcuda_add", .kernel = {4, {8, 8, 8, 8}, add_accesses, add_run}},
    {.name = "simcuda_fill", .kernel = {3, {8, 8, 4}, fill_accesses, fill_run}},
    {.name = "simcuda_sleep", .kernel = {1, {4}, NULL, NULL}, .effect = EFFECT_SLEEP},
    {.name = "simcuda_hold", .kernel = {1, {4}, NULL, NULL}, .effect = EFFECT_HOLD},
    {.name = "simcuda_illegal_address",
     .effect = EFFECT_FAULT,
     .fault = CUDA_ERROR_ILLEGAL_ADDRESS},
    {.name = "simcuda_trap", .effect = EFFECT_FAULT, .fault = CUDA_ERROR_LAUNCH_FAILED},
};

static registered *added;
static module *modules;
static function *functions;

void simcuda_register_kernel(const char *name, const simcuda_kernel *kernel) {
  sim_lock();
  registered *const made = sim_new(sizeof *made);
  made->name = name;
  made->kernel = *kernel;
  made->next = added;
  added = made;
  sim_unlock();
}

static const registered *find(const char *name) {
  for (const registered *r = added; r != NULL; r = r->next) {
    if (strcmp(r->name, name) == 0)
      return r;
  }
  for (size_t i = 0; i < sizeof built_in / sizeof *built_in; i++) {
    if (strcmp(built_in[i].name, name) == 0)
      return &built_in[i];
  }
  return NULL;
}

static void unload(module *m) {
  for (function **link = &functions; *link != NULL;) {
    function *const f = *link;
    if (f->module != m) {
      link = &f->next;
      continue;
    }
    *link = f->next;
    free(f);
  }
  free(m);
}

void sim_modules_clear(void) {
  while (modules != NULL) {
    module *const m = modules;
    modules = m->next;
    unload(m);
  }
}

void sim_module_counts(simcuda_census *out) {
  for (const module *m = modules; m != NULL; m = m->next)
    out->modules++;
}

CUresult cuModuleLoadData(CUmodule *out, const void *image) {
  SIM_ENTER(cuModuleLoadData, SIM_NEEDS_CONTEXT | SIM_UNSAFE_IN_CAPTURE);
  if (out == NULL || image == NULL)
    return sim_leave(CUDA_ERROR_INVALID_VALUE);
  module *const made = sim_new(sizeof *made);
  made->magic = MODULE_MAGIC;
  made->next = modules;
  modules = made;
  *out = (CUmodule)made;
  return sim_leave(CUDA_SUCCESS);
}

CUresult cuModuleUnload(CUmodule handle) {
  SIM_ENTER(cuModuleUnload, SIM_NEEDS_CONTEXT | SIM_UNSAFE_IN_CAPTURE);
  for (module **link = &modules; *link != NULL; link = &(*link)->next) {
    module *const m = *link;
    if (m != (module *)handle)
      continue;
    *link = m->next;
    unload(m);
    return sim_leave(CUDA_SUCCESS);
  }
  return sim_leave(CUDA_ERROR_INVALID_HANDLE);
}

CUresult cuModuleGetFunction(CUfunction *out, CUmodule handle, const char *name) {
  SIM_ENTER(cuModuleGetFunction, SIM_NEEDS_CONTEXT);
  const module *m = modules;
  while (m != NULL && m != (module *)handle)
    m = m->next;
  if (m == NULL || out == NULL || name == NULL)
    return sim_leave(m == NULL ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE);
  const registered *const what = find(name);
  if (what == NULL)
    return sim_leave(CUDA_ERROR_NOT_FOUND);
  function *const made = sim_new(sizeof *made);
  *made = (function){.magic = FUNCTION_MAGIC, .module = m, .what = what, .next = functions};
  functions = made;
  *out = (CUfunction)made;
  return sim_leave(CUDA_SUCCESS);
}

static const function *function_of(CUfunction handle) {
  const function *f = functions;
  while (f != NULL && f != (function *)handle)
    f = f->next;
  return f;
}

/* Finds what the kernel touches. A launch succeeds all the same: the fault comes when it runs. */
static void find_spans(sim_op *op, const registered *what, sim_stream *stream) {
  void *parameters[16];
  for (size_t i = 0; i < 16; i++)
    parameters[i] = op->parameters[i];
  simcuda_access accesses[SIMCUDA_MAX_ACCESSES];
  const size_t count =
      what->kernel.accesses != NULL ? what->kernel.accesses(parameters, accesses) : 0;
  const sim_actor actor = sim_stream_actor(stream, what->name);
  op->span_count = count;
  for (size_t i = 0; i < count; i++) {
    const simcuda_access *const a = &accesses[i];
    op->spans_written[i] = a->write;
    if (sim_span_find(&op->spans[i], what->name, stream->context, a->address, a->size, a->write,
                      SIM_RULE_DEVICE) != CUDA_SUCCESS)
      op->fault = CUDA_ERROR_ILLEGAL_ADDRESS;
  }
  for (size_t i = 0; i < count; i++)
    sim_span_access(&op->spans[i], op->spans_written[i], &actor);
}

static CUresult launch(const function *f, sim_stream *stream, void **parameters) {
  const registered *const what = f->what;
  if (what->kernel.parameter_count > 0 && parameters == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  bool captured;
  const CUresult error = sim_capture_submit(stream, &captured);
  if (error != CUDA_SUCCESS || captured)
    return error;
  sim_op *const op = sim_op_new(what->name);
  for (size_t i = 0; i < what->kernel.parameter_count; i++)
    memcpy(op->parameters[i], parameters[i], what->kernel.parameter_sizes[i]);
  uint32_t first;
  memcpy(&first, op->parameters[0], sizeof first);
  switch (what->effect) {
  case EFFECT_NONE:
    break;
  case EFFECT_SLEEP:
    op->sleep_us = first;
    break;
  case EFFECT_HOLD:
    op->hold = true;
    op->gate = first % SIM_GATES;
    break;
  case EFFECT_FAULT:
    op->fault = what->fault;
    break;
  }
  find_spans(op, what, stream);
  /* A kernel that would leave its memory does not run. */
  op->kernel = op->fault == 0 ? &what->kernel : NULL;
  sim_submit(stream, op);
  return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction handle, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                        CUstream stream_handle, void **parameters, void **extra) {
  SIM_ENTER(cuLaunchKernel, SIM_NEEDS_CONTEXT);
  const function *const f = function_of(handle);
  CUresult error;
  sim_stream *const stream = sim_stream_of(stream_handle, &error);
  if (stream == NULL)
    return sim_leave(error);
  if (f == NULL || stream->context != sim_current())
    return sim_leave(CUDA_ERROR_INVALID_HANDLE);
  const uint64_t threads = (uint64_t)block_x * block_y * block_z;
  if ((uint64_t)grid_x * grid_y * grid_z == 0 || threads == 0 || threads > 1024)
    return sim_leave(CUDA_ERROR_INVALID_VALUE);
  if (shared_bytes > 48 << 10)
    return sim_leave(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
  if (extra != NULL)
    return sim_leave(CUDA_ERROR_NOT_SUPPORTED);
  return sim_leave(launch(f, stream, parameters));
}
