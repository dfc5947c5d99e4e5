/* Public functions on files that exist and on buffers mapped from them. The mapping objects are in
 * mapping.c, new files in save.c, the bytes' ways in copy.c. */
#include <quay/mmap.h>

#include "core/checked.h"
#include "core/error.h"
#include "core/hazard.h"
#include "core/os.h"
#include "core/storage.h"
#include "core/thread.h"
#include "mmap/mmap_impl.h"

static quay_status fail_argument(const char *function, const char *what) {
  return quay_error_set(QUAY_STATUS_INVALID_ARGUMENT, QUAY__MMAP_NAME, 0, NULL, "%s: %s", function,
                        what);
}

static bool mode_is_known(quay_map_mode mode) {
  return mode == QUAY_MAP_READ_ONLY || mode == QUAY_MAP_COPY_ON_WRITE || mode == QUAY_MAP_SHARED;
}

quay_status quay__mmap_window_buffer(quay__mapping *mapping, uint64_t file_offset, uint64_t size,
                                     quay_buffer **out_buffer) {
  quay_allocator *allocator = NULL;
  const quay_status status = quay__mmap_file_allocator(&allocator);
  if (status != QUAY_OK) {
    (void)quay__mapping_release(mapping);
    return status;
  }
  quay_raw_buffer raw;
  quay__mapping_window(mapping, file_offset, size, &raw);
  quay__mmap_count_window(allocator, &raw);
  const int64_t shape[] = {(int64_t)size}; /* within a file: at most 2^63-1 */
  const quay_status made = quay_buffer_from_raw(&raw, QUAY_U8, 1, shape, out_buffer);
  if (made != QUAY_OK)
    quay_raw_buffer_free(&raw);
  return made;
}

quay_status quay_map_file(const char *path, const quay_map_options *options,
                          quay_buffer **out_buffer) {
  QUAY__MARK_CALLER();
  if (out_buffer == NULL)
    return fail_argument("quay_map_file", "out_buffer is NULL");
  *out_buffer = NULL;
  if (path == NULL)
    return fail_argument("quay_map_file", "path is NULL");
  const quay_map_options chosen = options != NULL ? *options : (quay_map_options){0};
  if (!mode_is_known(chosen.mode)) {
    return quay_error_set(QUAY_STATUS_INVALID_ARGUMENT, QUAY__MMAP_NAME, 0, NULL,
                          "mapping '%s': %d is no mode; there are QUAY_MAP_READ_ONLY, "
                          "QUAY_MAP_COPY_ON_WRITE and QUAY_MAP_SHARED",
                          path, (int)chosen.mode);
  }
  if (chosen.direct && chosen.mode == QUAY_MAP_SHARED) {
    return quay_error_set(QUAY_STATUS_INVALID_ARGUMENT, QUAY__MMAP_NAME, 0, NULL,
                          "mapping '%s' shared with direct I/O: the two would see different bytes; "
                          "map it read only, or without direct I/O",
                          path);
  }
  if (chosen.direct && chosen.buffered) {
    return quay_error_set(
        QUAY_STATUS_INVALID_ARGUMENT, QUAY__MMAP_NAME, 0, NULL,
        "mapping '%s' both with direct I/O and always through the page cache: set "
        "`direct` or `buffered`, or neither",
        path);
  }
  quay__mapping *mapping = NULL;
  uint64_t length = 0;
  QUAY_TRY(quay__mapping_open(path, &chosen, &mapping, &length));
  return quay__mmap_window_buffer(mapping, chosen.offset, length, out_buffer);
}

quay_status quay_buffer_flush(quay_buffer *buffer) {
  if (buffer == NULL)
    return fail_argument("quay_buffer_flush", "buffer is NULL");
  quay__storage *storage = buffer->storage;
  QUAY_TRY(quay__storage_check_readable(storage));
  if (buffer->size == 0)
    return QUAY_OK;
  QUAY_TRY(quay__hazards_wait(storage, buffer->offset, buffer->size, QUAY_READ));
  return storage->allocator->vtable.flush(storage->allocator, &storage->raw, buffer->offset,
                                          buffer->size);
}

quay_status quay_buffer_advise(const quay_buffer *buffer, quay_advice advice) {
  if (buffer == NULL)
    return fail_argument("quay_buffer_advise", "buffer is NULL");
  if ((int)advice < (int)QUAY_ADVICE_NORMAL || (int)advice > (int)QUAY_ADVICE_HUGE_PAGES) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT,
                      "quay_buffer_advise: %d is no advice; they go from QUAY_ADVICE_NORMAL to "
                      "QUAY_ADVICE_HUGE_PAGES",
                      (int)advice);
  }
  quay__storage *storage = buffer->storage;
  QUAY_TRY(quay__storage_check_readable(storage));
  if (buffer->size == 0)
    return QUAY_OK;
  return storage->allocator->vtable.advise(storage->allocator, &storage->raw, buffer->offset,
                                           buffer->size, advice);
}

quay_status quay_buffer_prefetch(const quay_buffer *buffer) {
  if (buffer == NULL)
    return fail_argument("quay_buffer_prefetch", "buffer is NULL");
  return quay_buffer_advise(buffer, QUAY_ADVICE_WILL_NEED);
}

/* The core calls this for an adopted mapping: `user` is the mapping object. */
static void release_adopted(void *user, void *memory, uint64_t size) {
  quay__mapping *mapping = user;
  const quay_release_callback release = mapping->release;
  void *const release_user = mapping->user;
  (void)quay__mapping_release(mapping);
  if (release != NULL)
    release(release_user, memory, size);
}

quay_status quay_mmap_adopt(void *address, uint64_t size, quay_map_mode mode, int file,
                            uint64_t file_offset, quay_release_callback release, void *user,
                            quay_raw_buffer *out_raw) {
  if (out_raw == NULL)
    return fail_argument("quay_mmap_adopt", "out_raw is NULL");
  *out_raw = (quay_raw_buffer){0};
  if (address == NULL)
    return fail_argument("quay_mmap_adopt", "address is NULL");
  if (!mode_is_known(mode))
    return fail_argument("quay_mmap_adopt", "mode is no quay_map_mode");
  if (file < -1)
    return fail_argument("quay_mmap_adopt", "file is neither a descriptor nor -1");
  uint64_t end;
  if (!quay__add((uintptr_t)address, size, &end)) {
    return fail_argument("quay_mmap_adopt", "the range wraps around the address space");
  }
  quay_allocator *allocator = NULL;
  QUAY_TRY(quay__mmap_file_allocator(&allocator));
  quay__mapping *mapping = NULL;
  QUAY_TRY(quay__mapping_adopt(address, size, mode, file, file_offset, &mapping));
  mapping->release = release;
  mapping->user = user;
  quay_raw_buffer raw;
  quay__mapping_window(mapping, file_offset, size, &raw);
  const quay_status status =
      quay_raw_buffer_adopt(allocator, &raw, address, release_adopted, mapping);
  if (status != QUAY_OK) {
    (void)quay__mapping_release(mapping);
    return status;
  }
  *out_raw = raw;
  return QUAY_OK;
}

quay_status quay_mmap_raw_info(const quay_raw_buffer *raw, quay_mmap_info *out_info) {
  if (raw == NULL)
    return fail_argument("quay_mmap_raw_info", "raw is NULL");
  if (out_info == NULL)
    return fail_argument("quay_mmap_raw_info", "out_info is NULL");
  if (raw->arm != QUAY_RAW_MMAP) {
    return quay_error_set(QUAY_STATUS_UNSUPPORTED, QUAY__MMAP_NAME, 0, NULL,
                          "quay_mmap_raw_info: the raw buffer holds no mapped memory");
  }
  *out_info = (quay_mmap_info){
      .address = (void *)(uintptr_t)raw->as.mmap.pointer, /* NOLINT(performance-no-int-to-ptr) */
      .size = raw->size,
      .mode = (quay_map_mode)raw->as.mmap.flags,
      .file = quay__mapping_of(raw)->file,
      .file_offset = raw->as.mmap.file_offset,
  };
  return QUAY_OK;
}
