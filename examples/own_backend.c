/* A third party's backend, complete: host memory with a budget, opened as "own:budget=64MiB".
 * docs/adding-a-backend.md walks through it, and the contract suite runs over it (with
 * OWN_BACKEND_NO_MAIN, and so without what stands at the end). */
#include <quay/backend.h>
#include <quay/quay.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct own_state {
  uint64_t budget; /* bytes */
  atomic_uint_fast64_t used;
} own_state;

/* Of the six words that a third party has in a raw buffer, this backend uses one: the address. */
static unsigned char *address_of(const quay_raw_buffer *raw) {
  return (unsigned char *)(uintptr_t)raw->as.external.handle[0];
}

static void own_destroy(void *self) {
  free(self);
}

static quay_status own_alloc(quay_allocator *allocator, const quay_alloc_request *request,
                             quay_raw_buffer *out_raw) {
  own_state *state = quay_allocator_self(allocator);
  if (request->mirror || request->exportable)
    return quay_error_set(QUAY_STATUS_UNSUPPORTED, "own", 0, NULL,
                          "own memory can't be mirrored or exported; leave these options out");
  const uint64_t before = atomic_fetch_add(&state->used, request->size);
  if (before > state->budget || request->size > state->budget - before) {
    atomic_fetch_sub(&state->used, request->size);
    return quay_error_set(QUAY_STATUS_LIMIT_EXCEEDED, "own", 0, NULL,
                          "%llu bytes do not fit into what is left of a budget of %llu",
                          (unsigned long long)request->size, (unsigned long long)state->budget);
  }
  void *memory = NULL;
  const int error = posix_memalign(&memory, request->alignment, request->size + 1);
  if (error != 0) {
    atomic_fetch_sub(&state->used, request->size);
    return quay_error_set(QUAY_STATUS_OUT_OF_HOST_MEMORY, "own", error, "ENOMEM",
                          "the system has no %llu bytes left", (unsigned long long)request->size);
  }
  out_raw->arm = QUAY_RAW_EXTERNAL;
  out_raw->as.external.handle[0] = (uint64_t)(uintptr_t)memory;
  return QUAY_OK;
}

static void own_free(quay_allocator *allocator, quay_raw_buffer *raw, quay_event *const *pending,
                     size_t count) {
  (void)pending, (void)count; /* none, without QUAY_ALLOCATOR_ORDERED_FREE */
  own_state *state = quay_allocator_self(allocator);
  atomic_fetch_sub(&state->used, raw->size);
  free(address_of(raw));
}

static quay_status own_copy_in(quay_allocator *allocator, quay_raw_buffer *destination,
                               uint64_t offset, const void *source, uint64_t size) {
  (void)allocator;
  memcpy(address_of(destination) + offset, source, size);
  return QUAY_OK;
}

static quay_status own_copy_out(quay_allocator *allocator, const quay_raw_buffer *source,
                                uint64_t offset, void *destination, uint64_t size) {
  (void)allocator;
  memcpy(destination, address_of(source) + offset, size);
  return QUAY_OK;
}

static quay_status own_host_pointer(quay_allocator *allocator, const quay_raw_buffer *raw,
                                    void **out_pointer) {
  (void)allocator;
  *out_pointer = address_of(raw);
  return QUAY_OK;
}

static const quay_allocator_vtable own_vtable = {
    .destroy = own_destroy,
    .version = QUAY_ALLOCATOR_VTABLE_VERSION,
    .struct_size = sizeof(quay_allocator_vtable),
    .alloc = own_alloc,
    .free = own_free,
    .copy_in = own_copy_in,
    .copy_out = own_copy_out,
    .host_pointer = own_host_pointer,
};

static quay_status own_open(void *user, const quay_spec_args *args,
                            quay_allocator **out_allocator) {
  (void)user;
  static const quay_spec_key keys[] = {{"budget", "bytes, such as 64MiB"}};
  uint64_t budget = INT64_MAX;
  QUAY_TRY(quay_spec_check(args, keys, 1));
  QUAY_TRY(quay_spec_bytes(args, "budget", &budget));
  char spec[48] = "own";
  if (budget != INT64_MAX)
    snprintf(spec, sizeof spec, "own:budget=%llu", (unsigned long long)budget);
  own_state *state = calloc(1, sizeof *state);
  if (state == NULL)
    return quay_error_set(QUAY_STATUS_OUT_OF_HOST_MEMORY, "own", 0, NULL, "no memory to open it");
  state->budget = budget;
  quay_device *host = quay_device_host();
  const quay_allocator_desc desc = {.vtable = &own_vtable,
                                    .self = state,
                                    .name = "own",
                                    .spec = spec,
                                    .device = host,
                                    .kind = QUAY_MEMORY_PAGEABLE,
                                    .flags = QUAY_ALLOCATOR_HOST_ACCESSIBLE,
                                    .alignment = 64};
  const quay_status status = quay_allocator_create(&desc, out_allocator);
  if (status != QUAY_OK)
    free(state); /* on error it is still ours */
  quay_device_release(host);
  return status;
}

quay_status own_backend_register(void);

quay_status own_backend_register(void) {
  const quay_backend backend = {.version = QUAY_BACKEND_VERSION,
                                .struct_size = sizeof backend,
                                .name = "own",
                                .open = own_open};
  return quay_backend_register(&backend);
}

#ifndef OWN_BACKEND_NO_MAIN
int main(void) {
  static const float values[4] = {1.5f, -2.0f, 0.25f, 8.0f};
  quay_allocator *allocator = NULL;
  quay_buffer *buffer = NULL;
  double sum = 0;
  bool ok = own_backend_register() == QUAY_OK &&
            quay_allocator_open("track+own:budget=1MiB", &allocator) == QUAY_OK &&
            quay_buffer_create_from_host(allocator, QUAY_F32, 1, (int64_t[]){4}, values, NULL,
                                         &buffer) == QUAY_OK;
  quay_host_array array = {0};
  ok = ok && quay_buffer_host_array(buffer, QUAY_F32, &array) == QUAY_OK;
  for (uint64_t i = 0; i < array.count; i++)
    sum += (double)((const float *)array.data)[i];
  printf("%s: sum %g\n", ok ? quay_allocator_spec(allocator) : quay_last_error()->message, sum);
  quay_buffer_release(buffer);
  quay_allocator_release(allocator);
  return ok ? EXIT_SUCCESS : EXIT_FAILURE;
}
#endif
