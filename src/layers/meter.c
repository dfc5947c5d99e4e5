/* The meter: a layer without a name in specs that counts and times the calls by which memory comes
 * from a backend and goes back to it. It sits directly around the backend, so that a pool's hits
 * pass it by. */
#include "layers/meter.h"

#include <stdatomic.h>
#include <string.h>

#include "core/allocator_impl.h"
#include "core/error.h"
#include "core/os.h"
#include "core/registry.h"

struct quay__meter {
  atomic_uint_fast64_t calls, nanoseconds;
};

static uint64_t begin(void) {
  return quay__os_nanoseconds();
}

static void end(const quay_allocator *allocator, uint64_t begun) {
  quay__meter *const meter = allocator->self;
  const uint64_t passed = quay__os_nanoseconds() - begun;
  atomic_fetch_add_explicit(&meter->nanoseconds, passed, memory_order_relaxed);
  atomic_fetch_add_explicit(&meter->calls, 1, memory_order_relaxed);
}

static void meter_destroy(void *self) {
  quay__os_free(self);
}

static quay_status meter_alloc(quay_allocator *allocator, const quay_alloc_request *request,
                               quay_raw_buffer *out_raw) {
  const uint64_t begun = begin();
  const quay_status status = quay__alloc(allocator->inner, request, out_raw);
  end(allocator, begun);
  return status;
}

static void meter_free(quay_allocator *allocator, quay_raw_buffer *raw, quay_event *const *pending,
                       size_t count) {
  const uint64_t begun = begin();
  quay__free(allocator->inner, raw, pending, count);
  end(allocator, begun);
}

static quay_status meter_release(quay_allocator *allocator, quay_raw_buffer *raw,
                                 quay_host_memory *out_memory) {
  const uint64_t begun = begin();
  const quay_status status = quay__release(allocator->inner, raw, out_memory);
  end(allocator, begun);
  return status;
}

static quay_status meter_reserve(quay_allocator *allocator, uint64_t size, uint64_t alignment,
                                 quay_raw_buffer *out_raw) {
  const uint64_t begun = begin();
  const quay_status status = quay__reserve(allocator->inner, size, alignment, out_raw);
  end(allocator, begun);
  return status;
}

static quay_status meter_commit(quay_allocator *allocator, quay_raw_buffer *raw, uint64_t offset,
                                uint64_t size) {
  quay_allocator *const inner = allocator->inner;
  const uint64_t begun = begin();
  const quay_status status = inner->vtable.commit(inner, raw, offset, size);
  end(allocator, begun);
  return status;
}

static quay_status meter_decommit(quay_allocator *allocator, quay_raw_buffer *raw, uint64_t offset,
                                  uint64_t size) {
  quay_allocator *const inner = allocator->inner;
  const uint64_t begun = begin();
  const quay_status status = inner->vtable.decommit(inner, raw, offset, size);
  end(allocator, begun);
  return status;
}

static quay_status meter_trim(quay_allocator *allocator, uint64_t *out_bytes) {
  quay_allocator *const inner = allocator->inner;
  const uint64_t begun = begin();
  const quay_status status = inner->vtable.trim(inner, out_bytes);
  end(allocator, begun);
  return status;
}

/* The spec of a chain is what the program wrote, without the meter. */
static quay_status hide(quay_allocator *meter, const quay_allocator *inner) {
  char *const spec = quay__os_strdup(inner->spec);
  if (spec == NULL)
    return quay__fail_out_of_memory(strlen(inner->spec) + 1, "an allocator's spec");
  quay__os_free(meter->spec);
  meter->spec = spec;
  return QUAY_OK;
}

static quay_status open_meter(void *user, quay_allocator *backend, quay_allocator **out_allocator) {
  quay__meter **const out_meter = user;
  quay_allocator_vtable vtable = {
      .destroy = meter_destroy,
      .version = QUAY_ALLOCATOR_VTABLE_VERSION,
      .struct_size = sizeof(quay_allocator_vtable),
      .alloc = meter_alloc,
      .free = meter_free,
      .release = meter_release,
      .trim = meter_trim,
  };
  if (backend->has_reserve) {
    vtable.reserve = meter_reserve;
    vtable.commit = meter_commit;
    vtable.decommit = meter_decommit;
  }
  quay__meter *const meter = quay__os_calloc(1, sizeof *meter);
  if (meter == NULL)
    return quay__fail_out_of_memory(sizeof *meter, "a meter");
  quay_status status = quay__layer_create(&vtable, meter, "meter", "meter", backend, out_allocator);
  if (status != QUAY_OK) {
    quay__os_free(meter);
    return status;
  }
  status = hide(*out_allocator, backend);
  if (status != QUAY_OK) {
    quay_allocator_release(*out_allocator);
    *out_allocator = NULL;
    return status;
  }
  *out_meter = meter;
  return QUAY_OK;
}

quay_status quay__meter_open(const char *spec, quay_allocator **out_allocator,
                             quay__meter **out_meter) {
  const quay__wrapper wrapper = {.open = open_meter, .user = out_meter};
  *out_meter = NULL;
  return quay__allocator_open_wrapped(spec, &wrapper, out_allocator);
}

quay__meter_counts quay__meter_read(const quay__meter *meter) {
  return (quay__meter_counts){
      .calls = atomic_load_explicit(&meter->calls, memory_order_relaxed),
      .nanoseconds = atomic_load_explicit(&meter->nanoseconds, memory_order_relaxed),
  };
}

uint64_t quay__meter_calls(const quay__meter *meter) {
  return atomic_load_explicit(&meter->calls, memory_order_relaxed);
}
