/* The names that specs know: layers and backends, built in and registered. */
#ifndef QUAY_CORE_REGISTRY_H
#define QUAY_CORE_REGISTRY_H

#include <quay/backend.h>

/* Built-in backends; each is defined in its own folder, built in or as a stub that says why not. */
extern const quay_backend quay__backend_cpu;
extern const quay_backend quay__backend_mmap;
extern const quay_backend quay__backend_cuda;
extern const quay_backend quay__backend_vulkan;

/* A layer: opens itself around `inner`, which it retains if it succeeds. */
typedef struct quay__layer {
  const char *name;
  quay_status (*open)(const quay_spec_args *args, quay_allocator *inner,
                      quay_allocator **out_allocator);
} quay__layer;

extern const quay__layer quay__layer_track;
extern const quay__layer quay__layer_fault;
extern const quay__layer quay__layer_limit;
extern const quay__layer quay__layer_trace;
extern const quay__layer quay__layer_guard;

/* Something that comes between the backend and the innermost layer: a layer around `backend`, which
 * it retains if it succeeds. */
typedef struct quay__wrapper {
  quay_status (*open)(void *user, quay_allocator *backend, quay_allocator **out_allocator);
  void *user;
} quay__wrapper;

/* As quay_allocator_open(), with a wrapper (NULL: none). `spec` is not NULL. */
quay_status quay__allocator_open_wrapped(const char *spec, const quay__wrapper *wrapper,
                                         quay_allocator **out_allocator);
extern const quay__layer quay__layer_pool;

#endif
