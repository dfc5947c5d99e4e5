/* New files: quay_file_create() and quay_buffer_save(), and reserving blocks. How a file replaces
 * another one whole or not at all is in core/atomic_file.c; existing files are in file.c. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>

#include "core/atomic_file.h"
#include "core/checked.h"
#include "core/copy_route.h"
#include "core/error.h"
#include "core/hazard.h"
#include "core/os.h"
#include "core/storage.h"
#include "core/thread.h"
#include "mmap/mmap_impl.h"

#define ZERO_PIECE_SIZE ((uint64_t)1 << 20)

/* Reserving blocks. */

/* For file systems that can't reserve: blocks that hold zeros are there as well. */
static int write_zeros(int file, uint64_t size) {
  const uint64_t piece = quay__min(size, ZERO_PIECE_SIZE);
  char *zeros = quay__os_calloc(1, piece);
  if (zeros == NULL)
    return ENOMEM;
  int error = 0;
  for (uint64_t done = 0; done < size && error == 0;) {
    const ssize_t written = quay__os_pwrite(file, zeros, quay__min(piece, size - done), done);
    if (written < 0)
      error = errno;
    if (written == 0)
      error = EIO;
    if (written > 0)
      done += (uint64_t)written;
  }
  quay__os_free(zeros);
  return error;
}

int quay__file_reserve(int file, uint64_t size) {
  if (size == 0)
    return 0;
  int error = quay__os_fallocate(file, 0, size);
  if (error == EOPNOTSUPP)
    error = write_zeros(file, size);
  if (error != 0)
    (void)quay__os_ftruncate(file, 0);
  return error;
}

/* Creating. */

/* A buffer on the whole of a new, empty file, which is given its size. Takes `file` over, on error
 * too. */
static quay_status buffer_of_new_file(int file, const char *path, uint64_t size,
                                      quay_buffer **out_buffer) {
  const int error = quay__file_reserve(file, size);
  if (error != 0) {
    (void)quay__os_close(file);
    return quay__fail_errno(quay__status_of_errno(error), QUAY__MMAP_NAME, error,
                            "creating '%s': reserving %llu bytes failed", path,
                            (unsigned long long)size);
  }
  quay__mapping *mapping = NULL;
  QUAY_TRY(quay__mapping_of_new_file(file, path, &mapping));
  return quay__mmap_window_buffer(mapping, 0, size, out_buffer);
}

static quay_status create_exclusively(const char *path, uint64_t size, mode_t permissions,
                                      quay_buffer **out_buffer) {
  const int file = quay__os_open(path, O_RDWR | O_CREAT | O_EXCL | O_NOCTTY, permissions);
  if (file < 0) {
    return quay__fail_errno(quay__status_of_errno(errno), QUAY__MMAP_NAME, errno,
                            "creating '%s' failed", path);
  }
  const quay_status status = buffer_of_new_file(file, path, size, out_buffer);
  if (status != QUAY_OK && quay__os_unlink(path) != 0) {
    quay__mmap_log_errno("removing the incomplete file", path, errno);
  }
  return status;
}

static quay_status create_replacing(const char *path, uint64_t size, mode_t permissions,
                                    quay_buffer **out_buffer) {
  quay__atomic_file fresh;
  QUAY_TRY(quay__atomic_file_begin(path, permissions, &fresh));
  quay_status status;
  const int file = quay__os_dup(fresh.file);
  if (file < 0) {
    status = quay__fail_errno(quay__status_of_errno(errno), QUAY__MMAP_NAME, errno,
                              "creating '%s' failed", path);
  } else {
    status = buffer_of_new_file(file, fresh.target, size, out_buffer);
  }
  if (status != QUAY_OK)
    return quay__atomic_file_give_up(&fresh, status);
  status = quay__atomic_file_commit(&fresh, false);
  if (status != QUAY_OK) {
    quay_buffer_release(*out_buffer);
    *out_buffer = NULL;
  }
  return status;
}

quay_status quay_file_create(const char *path, uint64_t size, const quay_file_options *options,
                             quay_buffer **out_buffer) {
  QUAY__MARK_CALLER();
  if (out_buffer != NULL)
    *out_buffer = NULL;
  if (path == NULL || out_buffer == NULL) {
    return quay_error_set(QUAY_STATUS_INVALID_ARGUMENT, QUAY__MMAP_NAME, 0, NULL,
                          "quay_file_create: %s is NULL", path == NULL ? "path" : "out_buffer");
  }
  if (size > INT64_MAX) {
    return quay_error_set(QUAY_STATUS_INVALID_ARGUMENT, QUAY__MMAP_NAME, 0, NULL,
                          "creating '%s' with %llu bytes: at most 2^63-1 are possible", path,
                          (unsigned long long)size);
  }
  const quay_file_options chosen = options != NULL ? *options : (quay_file_options){0};
  if ((chosen.permissions & ~0777u) != 0) {
    return quay_error_set(QUAY_STATUS_INVALID_ARGUMENT, QUAY__MMAP_NAME, 0, NULL,
                          "creating '%s': permissions %#o are more than the bits 0777", path,
                          (unsigned)chosen.permissions);
  }
  const mode_t permissions = chosen.permissions != 0 ? chosen.permissions : 0666;
  return chosen.replace ? create_replacing(path, size, permissions, out_buffer)
                        : create_exclusively(path, size, permissions, out_buffer);
}

/* Saving. */

/* Copies the window into the open file by the copy router, which knows how to get at every kind of
 * memory in bounded space and reports progress. */
static quay_status write_window(const quay_buffer *buffer, const quay__atomic_file *fresh,
                                const quay_save_options *options) {
  const uint64_t size = buffer->size;
  /* Tells at once whether the disk is full; where it can't be told, writing will tell. */
  const int error = quay__os_fallocate(fresh->file, 0, size);
  if (error != 0 && error != EOPNOTSUPP) {
    return quay__fail_errno(quay__status_of_errno(error), QUAY__MMAP_NAME, error,
                            "saving to '%s': reserving %llu bytes failed", fresh->target,
                            (unsigned long long)size);
  }
  quay_allocator *allocator = NULL;
  quay__mapping *mapping = NULL;
  QUAY_TRY(quay__mmap_file_allocator(&allocator));
  QUAY_TRY(quay__mapping_of_descriptor(fresh->file, fresh->target, size, &mapping));
  quay_raw_buffer raw;
  quay__mapping_window(mapping, 0, size, &raw);
  raw.owner = allocator;
  quay__storage *storage = buffer->storage;
  const quay__side to = {.allocator = allocator, .raw = &raw};
  const quay__side from = {
      .allocator = storage->allocator, .raw = &storage->raw, .offset = buffer->offset};
  const quay_copy_options copy = {.progress = options->progress,
                                  .progress_user = options->progress_user};
  bool moved; /* to the new file, which nobody has seen */
  const quay_status status = quay__route_copy(&to, &from, size, &copy, &moved);
  (void)quay__mapping_release(mapping);
  return status;
}

static quay_status save(const quay_buffer *buffer, const char *path,
                        const quay_save_options *options) {
  QUAY_TRY(quay__storage_check_readable(buffer->storage));
  QUAY_TRY(quay__copy_check_environment(buffer->size));
  QUAY_TRY(quay__hazards_wait(buffer->storage, buffer->offset, buffer->size, QUAY_READ));
  quay__atomic_file fresh;
  QUAY_TRY(quay__atomic_file_begin(path, options->permissions, &fresh));
  const quay_status status = buffer->size != 0 ? write_window(buffer, &fresh, options) : QUAY_OK;
  if (status != QUAY_OK)
    return quay__atomic_file_give_up(&fresh, status);
  return quay__atomic_file_commit(&fresh, !options->no_sync);
}

quay_status quay_buffer_save(const quay_buffer *buffer, const char *path,
                             const quay_save_options *options) {
  QUAY__MARK_CALLER();
  if (buffer == NULL || path == NULL) {
    return quay_error_set(QUAY_STATUS_INVALID_ARGUMENT, QUAY__MMAP_NAME, 0, NULL,
                          "quay_buffer_save: %s is NULL", buffer == NULL ? "buffer" : "path");
  }
  static const quay_save_options defaults;
  if (options == NULL)
    options = &defaults;
  /* A progress callback may give the caller's reference back. */
  quay_buffer *const kept = quay_buffer_retain((quay_buffer *)(uintptr_t)buffer);
  const quay_status status = save(buffer, path, options);
  quay_buffer_release(kept);
  return status;
}
