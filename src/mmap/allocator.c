/* The two sorts of allocators of this backend: blocks behind unlinked files in a directory, and the
 * process's one allocator that owns the windows of mapped files. The mappings themselves are made
 * in mapping.c. */
#include <stdio.h>
#include <string.h>

#include "core/allocator_impl.h"
#include "core/checked.h"
#include "core/error.h"
#include "core/lifecycle.h"
#include "core/lock.h"
#include "core/os.h"
#include "core/spec.h"
#include "mmap/mmap_impl.h"

typedef struct mmap_self {
  atomic_uint_fast64_t reserved; /* bytes, in whole pages */
  char directory[];              /* "": the file allocator */
} mmap_self;

/* Guarded by QUAY__LOCK_MAPPINGS. */
static quay_allocator *file_allocator;

/* Bytes that a window is counted with as reserved. */
static uint64_t reserved_of(const quay_raw_buffer *raw) {
  uint64_t bytes;
  return quay__align_up(raw->size, quay__os_page_size(), &bytes) ? bytes : raw->size;
}

static void count_reserved(const quay_allocator *allocator, const quay_raw_buffer *raw) {
  mmap_self *self = quay_allocator_self(allocator);
  atomic_fetch_add_explicit(&self->reserved, reserved_of(raw), memory_order_relaxed);
}

static void uncount_reserved(const quay_allocator *allocator, const quay_raw_buffer *raw) {
  mmap_self *self = quay_allocator_self(allocator);
  atomic_fetch_sub_explicit(&self->reserved, reserved_of(raw), memory_order_relaxed);
}

static void mmap_destroy(void *self) {
  quay__os_free(self);
}

static quay_status mmap_alloc(quay_allocator *allocator, const quay_alloc_request *request,
                              quay_raw_buffer *out_raw) {
  const mmap_self *self = quay_allocator_self(allocator);
  if (self->directory[0] == '\0') {
    return quay_error_set(QUAY_STATUS_UNSUPPORTED, QUAY__MMAP_NAME, 0, NULL,
                          "allocating %llu bytes: this allocator owns mapped files alone; for "
                          "memory behind files open one with a directory, such as mmap:/scratch",
                          (unsigned long long)request->size);
  }
  /* A stream of the host does everything at once: its order is kept by itself. */
  if (request->mirror || request->exportable) {
    const char *option = request->mirror ? "a mirror" : "an exportable handle";
    return quay_error_set(QUAY_STATUS_UNSUPPORTED, QUAY__MMAP_NAME, 0, NULL,
                          "allocating %llu bytes with %s: mapped memory can't have that",
                          (unsigned long long)request->size, option);
  }
  quay__mapping *mapping = NULL;
  QUAY_TRY(quay__mapping_block(self->directory, request->size, request->alignment, &mapping));
  quay__mapping_window(mapping, 0, request->size, out_raw);
  out_raw->flags |= (uint32_t)QUAY_RAW_ZEROED;
  count_reserved(allocator, out_raw);
  return QUAY_OK;
}

static void mmap_free(quay_allocator *allocator, quay_raw_buffer *raw, quay_event *const *pending,
                      size_t count) {
  (void)pending;
  (void)count;
  uncount_reserved(allocator, raw);
  const uint32_t problems = quay__mapping_release(quay__mapping_of(raw));
  for (uint32_t i = 0; i < problems; ++i)
    quay__statistics_error(&allocator->statistics);
}

static quay_status mmap_host_pointer(quay_allocator *allocator, const quay_raw_buffer *raw,
                                     void **out_pointer) {
  (void)allocator;
  *out_pointer = (void *)(uintptr_t)raw->as.mmap.pointer; /* NOLINT(performance-no-int-to-ptr) */
  return QUAY_OK;
}

/* Somebody is about to use the pointer: what has been truncated by now need not become SIGBUS. */
static quay_status mmap_lend(quay_allocator *allocator, const quay_raw_buffer *raw, uint64_t offset,
                             uint64_t size, quay_use_mode mode) {
  (void)allocator;
  (void)offset;
  (void)size;
  (void)mode;
  return quay__mapping_check_size(quay__mapping_of(raw));
}

static void mmap_stats(quay_allocator *allocator, quay_backend_stats *out_stats) {
  mmap_self *self = quay_allocator_self(allocator);
  out_stats->reserved_bytes = atomic_load_explicit(&self->reserved, memory_order_relaxed);
}

static void mmap_window(quay_allocator *allocator, const quay_raw_buffer *block, uint64_t offset,
                        uint64_t size, quay_raw_buffer *out_raw) {
  (void)allocator;
  (void)size;
  out_raw->arm = block->arm;
  out_raw->flags = block->flags & (uint32_t)QUAY_RAW_READ_ONLY;
  out_raw->as.mmap = block->as.mmap;
  out_raw->as.mmap.pointer += offset;
  out_raw->as.mmap.file_offset += offset;
}

static const quay_allocator_vtable mmap_vtable = {
    .destroy = mmap_destroy,
    .version = QUAY_ALLOCATOR_VTABLE_VERSION,
    .struct_size = sizeof(quay_allocator_vtable),
    .alloc = mmap_alloc,
    .free = mmap_free,
    .copy_in = quay__mmap_copy_in,
    .copy_out = quay__mmap_copy_out,
    .copy_info = quay__mmap_copy_info,
    .host_pointer = mmap_host_pointer,
    .copy_within = quay__mmap_copy_within,
    .lend = mmap_lend,
    .fill = quay__mmap_fill,
    .flush = quay__mmap_flush,
    .advise = quay__mmap_advise,
    .window = mmap_window,
    .stats = mmap_stats,
};

/* "mmap", or "mmap:" and the directory with its commas escaped. NULL without memory. */
static char *spec_of(const char *directory) {
  const size_t size = sizeof QUAY__MMAP_NAME ":" + 2 * strlen(directory);
  char *spec = quay__os_malloc(size);
  if (spec == NULL)
    return NULL;
  (void)snprintf(spec, size, "%s%s", QUAY__MMAP_NAME, directory[0] != '\0' ? ":" : "");
  if (quay__spec_append_escaped(spec, size, directory))
    return spec;
  quay__os_free(spec);
  return NULL;
}

quay_status quay__mmap_allocator_create(const char *directory, quay_allocator **out_allocator) {
  const size_t length = strlen(directory) + 1;
  quay_status status;
  quay_device *host = NULL;
  char *spec = spec_of(directory);
  mmap_self *self = quay__os_calloc(1, sizeof *self + length);
  if (spec == NULL || self == NULL) {
    status = quay__fail_out_of_memory(sizeof *self + length, "an allocator");
    goto done;
  }
  memcpy(self->directory, directory, length);
  host = quay_device_host();
  const quay_allocator_desc desc = {
      .vtable = &mmap_vtable,
      .self = self,
      .name = QUAY__MMAP_NAME,
      .spec = spec,
      .device = host,
      .kind = QUAY_MEMORY_FILE,
      .flags = QUAY_ALLOCATOR_HOST_ACCESSIBLE,
      /* Mapped files begin wherever their window does. */
      .alignment = directory[0] != '\0' ? quay__os_page_size() : 1,
  };
  status = quay_allocator_create(&desc, out_allocator);
  if (status == QUAY_OK)
    self = NULL;

done:
  quay_device_release(host);
  quay__os_free(self);
  quay__os_free(spec);
  return status;
}

/* The process's file allocator. */

quay_allocator *quay__mmap_file_allocator_peek(void) {
  quay__global_acquire(QUAY__LOCK_MAPPINGS);
  quay_allocator *allocator = file_allocator;
  quay__global_release(QUAY__LOCK_MAPPINGS);
  return allocator;
}

quay_status quay__mmap_file_allocator(quay_allocator **out_allocator) {
  quay__lifecycle_begin();
  *out_allocator = quay__mmap_file_allocator_peek();
  if (*out_allocator != NULL)
    return QUAY_OK;
  /* Made without the lock, since that may take others; of two threads one gives its own back. */
  quay_allocator *fresh = NULL;
  QUAY_TRY(quay__mmap_allocator_create("", &fresh));
  quay__global_acquire(QUAY__LOCK_MAPPINGS);
  if (file_allocator == NULL) {
    file_allocator = fresh;
    fresh = NULL;
  }
  *out_allocator = file_allocator;
  quay__global_release(QUAY__LOCK_MAPPINGS);
  quay_allocator_release(fresh);
  return QUAY_OK;
}

void quay__mmap_file_allocator_drop(void) {
  quay__global_acquire(QUAY__LOCK_MAPPINGS);
  quay_allocator *allocator = file_allocator;
  file_allocator = NULL;
  quay__global_release(QUAY__LOCK_MAPPINGS);
  quay_allocator_release(allocator);
}

void quay__mmap_count_window(quay_allocator *allocator, quay_raw_buffer *raw) {
  raw->owner = allocator;
  quay__statistics_alloc(&allocator->statistics, raw->size);
  count_reserved(allocator, raw);
}
