/* A backend of a test's own. */
#include "support/table.h"

#include <stdlib.h>
#include <string.h>

unsigned char *quay_test_table_bytes(const quay_raw_buffer *raw) {
  return (unsigned char *)(uintptr_t)raw->as.external.handle[0];
}

static quay_test_table *table_of(const quay_allocator *allocator) {
  return quay_allocator_self(allocator);
}

static void table_destroy(void *self) {
  quay_test_table *table = self;
  atomic_fetch_add(&table->destroys, 1);
}

static quay_status table_alloc(quay_allocator *allocator, const quay_alloc_request *request,
                               quay_raw_buffer *out_raw) {
  void *bytes = NULL;
  const size_t alignment = request->alignment < 16 ? 16 : request->alignment;
  if (posix_memalign(&bytes, alignment, request->size + 1) != 0)
    return quay_error_set(QUAY_STATUS_OUT_OF_HOST_MEMORY, "table", 0, NULL, "no memory");
  memset(bytes, 0xdb, request->size + 1);
  out_raw->arm = QUAY_RAW_EXTERNAL;
  out_raw->as.external.handle[0] = (uint64_t)(uintptr_t)bytes;
  atomic_fetch_add(&table_of(allocator)->allocs, 1);
  return QUAY_OK;
}

static void table_free(quay_allocator *allocator, quay_raw_buffer *raw, quay_event *const *pending,
                       size_t count) {
  (void)pending;
  (void)count;
  atomic_fetch_add(&table_of(allocator)->frees, 1);
  free(quay_test_table_bytes(raw));
}

static quay_status table_copy_in(quay_allocator *allocator, quay_raw_buffer *destination,
                                 uint64_t offset, const void *source, uint64_t size) {
  atomic_fetch_add(&table_of(allocator)->copies_in, 1);
  memcpy(quay_test_table_bytes(destination) + offset, source, size);
  return QUAY_OK;
}

static quay_status table_copy_out(quay_allocator *allocator, const quay_raw_buffer *source,
                                  uint64_t offset, void *destination, uint64_t size) {
  atomic_fetch_add(&table_of(allocator)->copies_out, 1);
  memcpy(destination, quay_test_table_bytes(source) + offset, size);
  return QUAY_OK;
}

static quay_status table_host_pointer(quay_allocator *allocator, const quay_raw_buffer *raw,
                                      void **out_pointer) {
  (void)allocator;
  *out_pointer = quay_test_table_bytes(raw);
  return QUAY_OK;
}

void quay_test_table_init(quay_test_table *table) {
  memset(table, 0, sizeof *table);
  table->vtable = (quay_allocator_vtable){
      .destroy = table_destroy,
      .version = QUAY_ALLOCATOR_VTABLE_VERSION,
      .struct_size = sizeof(quay_allocator_vtable),
      .alloc = table_alloc,
      .free = table_free,
      .copy_in = table_copy_in,
      .copy_out = table_copy_out,
      .host_pointer = table_host_pointer,
  };
  table->desc = (quay_allocator_desc){
      .vtable = &table->vtable,
      .self = table,
      .name = "table",
      .spec = "table",
      .device = quay_device_host(),
      .kind = QUAY_MEMORY_PAGEABLE,
      .flags = QUAY_ALLOCATOR_HOST_ACCESSIBLE,
      .alignment = 16,
  };
  quay_device_release(table->desc.device); /* the host's device lives for ever */
}
