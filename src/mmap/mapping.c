/* Mapping objects: making them, the table through which read-only and shared mappings of one file
 * are one, and taking them down. How bytes move is in copy.c, new named files are in save.c. */
#include "mmap/mmap_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "core/checked.h"
#include "core/error.h"
#include "core/lifecycle.h"
#include "core/lock.h"
#include "core/os.h"

#define BUCKET_COUNT  256u
#define NAME_ATTEMPTS 16

/* Blocks from this size on keep their descriptor, so that copies can read and write the file
 * instead of faulting pages in; up to BLOCK_FILES_MAX of them, so that a program with many blocks
 * does not run out of descriptors (1024 is a usual limit). */
#define BLOCK_FILE_MIN_SIZE ((uint64_t)1 << 20)
#define BLOCK_FILES_MAX     256u

/* Smaller files are read with direct I/O only if the program asks for it. */
#define DIRECT_FILE_MIN ((uint64_t)256 << 20)

/* Guarded by QUAY__LOCK_MAPPINGS. */
static quay__mapping *buckets[BUCKET_COUNT];

static atomic_uint block_files;

static const char *mode_text(quay_map_mode mode) {
  switch (mode) {
  case QUAY_MAP_READ_ONLY:
    return "read only";
  case QUAY_MAP_COPY_ON_WRITE:
    return "copy on write";
  case QUAY_MAP_SHARED:
    return "shared";
  }
  return "unknown mode";
}

const char *quay__file_type_text(mode_t mode) {
  if (S_ISREG(mode))
    return "a regular file";
  if (S_ISDIR(mode))
    return "a directory";
  if (S_ISFIFO(mode))
    return "a FIFO";
  if (S_ISCHR(mode))
    return "a character device";
  if (S_ISBLK(mode))
    return "a block device";
  if (S_ISSOCK(mode))
    return "a socket";
  if (S_ISLNK(mode))
    return "a symbolic link";
  return "of an unknown type";
}

void quay__mmap_log_errno(const char *what, const char *path, int error_number) {
  quay__error_state state;
  quay__error_save(&state);
  quay_log(QUAY_LOG_ERROR, "mmap: %s '%s' failed: %s", what, path, quay__errno_name(error_number));
  quay__error_restore(&state);
}

static void close_logged(int file, const char *path, uint32_t *problems) {
  if (file < 0 || quay__os_close(file) == 0)
    return;
  ++*problems;
  quay__mmap_log_errno("closing", path, errno);
}

/* A mapping with nothing in it yet. */
static quay__mapping *mapping_new(const char *path) {
  const size_t length = strlen(path) + 1;
  quay__mapping *mapping = quay__os_calloc(1, sizeof *mapping + length);
  if (mapping == NULL)
    return NULL;
  memcpy(mapping->path, path, length);
  mapping->references = 1;
  mapping->lease_process = quay__fork_generation;
  mapping->file = -1;
  mapping->direct_file = -1;
  return mapping;
}

static uint32_t mapping_destroy(quay__mapping *mapping) {
  uint32_t problems = 0;
  quay__populated_free(mapping);
  if (mapping->mapped != 0 && quay__os_munmap(mapping->address, mapping->mapped) != 0) {
    problems = 1;
    quay__mmap_log_errno("unmapping", mapping->path, errno);
  }
  const bool block = !mapping->exposed && !mapping->lent && mapping->file >= 0;
  if (!mapping->lent)
    close_logged(mapping->file, mapping->path, &problems);
  if (block)
    atomic_fetch_sub_explicit(&block_files, 1, memory_order_relaxed);
  close_logged(mapping->direct_file, mapping->path, &problems);
  quay__os_free(mapping);
  return problems;
}

/* The table. */

static quay__mapping **bucket_of(dev_t device, ino_t inode) {
  const uint64_t hash = ((uint64_t)inode ^ ((uint64_t)device << 32)) * 0x9e3779b97f4a7c15u;
  return &buckets[hash >> 56];
}

/* What the program wants: to one that left the choice, both others that did are the same. */
static quay__direct_use wish_of(const quay__mapping *mapping) {
  const quay__direct_use use = mapping->direct_use;
  return use == QUAY__DIRECT_LARGE ? QUAY__DIRECT_IF_FASTER : use;
}

static bool same_key(const quay__mapping *a, const quay__mapping *b) {
  return a->device == b->device && a->inode == b->inode && a->mode == b->mode &&
         wish_of(a) == wish_of(b);
}

static void unlist(quay__mapping *mapping) {
  quay__mapping **link = bucket_of(mapping->device, mapping->inode);
  while (*link != mapping)
    link = &(*link)->next;
  *link = mapping->next;
  mapping->listed = false;
}

/* The mapping in the table that `fresh` would double, with one more reference; else NULL, and
 * `fresh` is listed if `insert` is set. One whose file has another size now leaves the table and
 * lives on for those who hold it. */
static quay__mapping *table_find(quay__mapping *fresh, bool insert) {
  quay__global_acquire(QUAY__LOCK_MAPPINGS);
  quay__mapping **bucket = bucket_of(fresh->device, fresh->inode);
  quay__mapping *found = *bucket;
  while (found != NULL && !same_key(found, fresh))
    found = found->next;
  if (found != NULL && found->file_size != fresh->file_size) {
    unlist(found);
    found = NULL;
  }
  if (found != NULL) {
    ++found->references;
  } else if (insert) {
    fresh->next = *bucket;
    fresh->listed = true;
    *bucket = fresh;
  }
  quay__global_release(QUAY__LOCK_MAPPINGS);
  return found;
}

uint32_t quay__mapping_release(quay__mapping *mapping) {
  if (mapping->shared) {
    quay__global_acquire(QUAY__LOCK_MAPPINGS);
    const bool last = --mapping->references == 0;
    if (last && mapping->listed)
      unlist(mapping);
    quay__global_release(QUAY__LOCK_MAPPINGS);
    if (!last)
      return 0;
  }
  return mapping_destroy(mapping);
}

/* Files that exist. */

static quay_status check_regular(const char *path, mode_t mode) {
  if (S_ISREG(mode))
    return QUAY_OK;
  return quay_error_set(QUAY_STATUS_INVALID_ARGUMENT, QUAY__MMAP_NAME, 0, NULL,
                        "mapping '%s': it is %s; only regular files can be mapped", path,
                        quay__file_type_text(mode));
}

/* A second descriptor, for direct I/O, if the file system has that. Without it reads go through the
 * page cache, which is logged and no error. */
static void open_direct(quay__mapping *mapping) {
  const int file = quay__os_open(mapping->path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_DIRECT, 0);
  if (file < 0) {
    quay_log(QUAY_LOG_INFO, "mmap: '%s' is read through the page cache: direct I/O is refused: %s",
             mapping->path, quay__errno_name(errno));
    return;
  }
  struct stat status;
  uint32_t memory = 0;
  uint32_t offset = 0;
  const bool same = quay__os_fstat(file, &status) == 0 && status.st_dev == mapping->device &&
                    status.st_ino == mapping->inode;
  if (quay__os_direct_alignment(file, &memory, &offset) != 0)
    memory = offset = 4096;
  if (!same || !quay__is_power_of_two(memory) || !quay__is_power_of_two(offset)) {
    quay_log(QUAY_LOG_INFO, "mmap: '%s' is read through the page cache: %s", mapping->path,
             same ? "its file system has no direct I/O for it" : "its name is another file's now");
    (void)quay__os_close(file);
    return;
  }
  mapping->direct_file = file;
  mapping->direct_memory_alignment = memory;
  mapping->direct_offset_alignment = offset;
}

/* Read through the page cache, the end of such a file would push out its beginning, and all other
 * files with it. */
static bool is_too_large_to_keep(const quay__mapping *mapping) {
  uint64_t total = 0, available = 0;
  return mapping->file_size >= DIRECT_FILE_MIN && quay__os_memory_info(&total, &available) == 0 &&
         mapping->file_size > available;
}

static quay__direct_use direct_use_of(const quay__mapping *mapping,
                                      const quay_map_options *options) {
  if (options->buffered || options->mode != QUAY_MAP_READ_ONLY)
    return QUAY__DIRECT_NEVER;
  if (options->direct)
    return QUAY__DIRECT_ASKED;
  return is_too_large_to_keep(mapping) ? QUAY__DIRECT_LARGE : QUAY__DIRECT_IF_FASTER;
}

static bool is_worth_direct(const quay__mapping *mapping) {
  return mapping->direct_use == QUAY__DIRECT_ASKED || mapping->file_size >= DIRECT_FILE_MIN;
}

static quay_status map_range(quay__mapping *mapping, uint64_t offset, uint64_t length) {
  if (length == 0)
    return QUAY_OK;
  const uint64_t start = quay__align_down(offset, quay__os_page_size());
  const uint64_t bytes = offset + length - start; /* within the file: no overflow */
  int protection = PROT_READ | PROT_WRITE;
  int flags = MAP_SHARED;
  if (mapping->mode == QUAY_MAP_READ_ONLY)
    protection = PROT_READ;
  /* Private pages are to count when they are written, not all of them now. */
  if (mapping->mode == QUAY_MAP_COPY_ON_WRITE)
    flags = MAP_PRIVATE | MAP_NORESERVE;
  void *address = quay__os_mmap(NULL, bytes, protection, flags, mapping->file, start);
  if (address == MAP_FAILED) {
    const char *why = errno == ENODEV ? " (its file system has no pages that could be mapped, as "
                                        "that of /sys: read it by calls, read(2))"
                                      : "";
    return quay__fail_errno(quay__status_of_errno(errno), QUAY__MMAP_NAME, errno,
                            "mapping %llu bytes of '%s' (%s) failed%s", (unsigned long long)bytes,
                            mapping->path, mode_text(mapping->mode), why);
  }
  mapping->address = address;
  mapping->offset = start;
  mapping->mapped = bytes;
  return QUAY_OK;
}

/* Finishes `mapping`, whose descriptor is open, for a window: finds or makes the memory. Takes
 * `mapping` over. */
static quay_status mapping_finish(quay__mapping *mapping, uint64_t offset, uint64_t length,
                                  quay__mapping **out_mapping) {
  mapping->shared = mapping->mode != QUAY_MAP_COPY_ON_WRITE;
  mapping->access = mapping->shared ? QUAY__ACCESS_FILE : QUAY__ACCESS_GUARDED;
  mapping->exposed = true;
  if (!mapping->shared) {
    const quay_status status = map_range(mapping, offset, length);
    if (status != QUAY_OK)
      goto fail;
    *out_mapping = mapping;
    return QUAY_OK;
  }
  quay__mapping *found = table_find(mapping, false);
  if (found == NULL) {
    const quay_status status = map_range(mapping, 0, mapping->file_size);
    if (status != QUAY_OK)
      goto fail;
    found = table_find(mapping, true);
  }
  *out_mapping = found != NULL ? found : mapping;
  if (found != NULL)
    (void)mapping_destroy(mapping);
  return QUAY_OK;

fail:
  (void)mapping_destroy(mapping);
  return quay_last_error()->status;
}

/* Some of the kernel's own are made while they are read, and have no size before. Some of these
 * can't be read at their beginning, or not by a byte, which is no error of an empty file. One that
 * is growing has a size by now. */
static quay_status check_empty(const quay__mapping *mapping) {
  unsigned char byte;
  struct stat status;
  if (mapping->file_size != 0 || quay__os_pread(mapping->file, &byte, 1, 0) == 0 ||
      quay__os_fstat(mapping->file, &status) != 0 || status.st_size != 0)
    return QUAY_OK;
  return quay_error_set(QUAY_STATUS_INVALID_ARGUMENT, QUAY__MMAP_NAME, 0, NULL,
                        "'%s' has bytes but no size, as files have that the kernel makes while "
                        "they are read: it can't be mapped; read it with read(2)",
                        mapping->path);
}

/* Reads what the open file is into `mapping`. */
static quay_status identify(quay__mapping *mapping) {
  struct stat status;
  if (quay__os_fstat(mapping->file, &status) != 0) {
    return quay__fail_errno(quay__status_of_errno(errno), QUAY__MMAP_NAME, errno,
                            "asking for the size of '%s' failed", mapping->path);
  }
  QUAY_TRY(check_regular(mapping->path, status.st_mode));
  mapping->device = status.st_dev;
  mapping->inode = status.st_ino;
  mapping->file_size = (uint64_t)status.st_size;
  return QUAY_OK;
}

static quay_status check_window(const quay__mapping *mapping, uint64_t offset, uint64_t *length) {
  const uint64_t size = mapping->file_size;
  if (*length == 0 && offset <= size)
    *length = size - offset;
  if (quay__in_range(offset, *length, size))
    return QUAY_OK;
  return quay_error_set(QUAY_STATUS_OUT_OF_RANGE, QUAY__MMAP_NAME, 0, NULL,
                        "mapping %llu bytes at offset %llu of '%s', which has %llu bytes: the "
                        "window must lie within the file",
                        (unsigned long long)*length, (unsigned long long)offset, mapping->path,
                        (unsigned long long)size);
}

quay_status quay__mapping_open(const char *path, const quay_map_options *options,
                               quay__mapping **out_mapping, uint64_t *out_length) {
  /* Looked at before it is opened: opening a device can have effects, opening a socket fails with
   * an error that says little. */
  struct stat before;
  if (quay__os_stat(path, &before) != 0) {
    return quay__fail_errno(quay__status_of_errno(errno), QUAY__MMAP_NAME, errno,
                            "mapping '%s' (%s) failed", path, mode_text(options->mode));
  }
  QUAY_TRY(check_regular(path, before.st_mode));

  quay__mapping *mapping = mapping_new(path);
  if (mapping == NULL)
    return quay__fail_out_of_memory(sizeof *mapping, "a mapping");
  mapping->mode = options->mode;
  const int access = options->mode == QUAY_MAP_SHARED ? O_RDWR : O_RDONLY;
  mapping->file = quay__lease_open(path, access);
  mapping->exposed = true;
  if (mapping->file < 0) {
    quay__fail_errno(quay__status_of_errno(errno), QUAY__MMAP_NAME, errno,
                     "mapping '%s' (%s): opening it failed", path, mode_text(options->mode));
    goto fail;
  }
  uint64_t length = options->length;
  if (identify(mapping) != QUAY_OK || check_empty(mapping) != QUAY_OK)
    goto fail;
  if (check_window(mapping, options->offset, &length) != QUAY_OK)
    goto fail;
  mapping->direct_use = direct_use_of(mapping, options);
  if (mapping->direct_use != QUAY__DIRECT_NEVER && is_worth_direct(mapping))
    open_direct(mapping);
  QUAY_TRY(mapping_finish(mapping, options->offset, length, out_mapping));
  *out_length = length;
  return QUAY_OK;

fail:
  (void)mapping_destroy(mapping);
  return quay_last_error()->status;
}

quay_status quay__mapping_of_new_file(int file, const char *path, quay__mapping **out_mapping) {
  quay__mapping *mapping = mapping_new(path);
  if (mapping == NULL) {
    (void)quay__os_close(file);
    return quay__fail_out_of_memory(sizeof *mapping, "a mapping");
  }
  mapping->mode = QUAY_MAP_SHARED;
  mapping->file = file;
  mapping->exposed = true;
  const quay_status status = identify(mapping);
  if (status != QUAY_OK) {
    (void)mapping_destroy(mapping);
    return status;
  }
  return mapping_finish(mapping, 0, mapping->file_size, out_mapping);
}

quay_status quay__mapping_of_descriptor(int file, const char *path, uint64_t size,
                                        quay__mapping **out_mapping) {
  quay__mapping *mapping = mapping_new(path);
  if (mapping == NULL)
    return quay__fail_out_of_memory(sizeof *mapping, "a mapping");
  mapping->mode = QUAY_MAP_SHARED;
  mapping->access = QUAY__ACCESS_FILE;
  mapping->lent = true;
  mapping->file = file;
  mapping->file_size = size;
  struct stat status;
  if (quay__os_fstat(file, &status) == 0) {
    mapping->device = status.st_dev;
    mapping->inode = status.st_ino;
  }
  *out_mapping = mapping;
  return QUAY_OK;
}

/* Blocks. */

/* A named file that is unlinked at once, or -1 with errno. */
static int open_and_unlink(const char *directory) {
  const size_t size = strlen(directory) + sizeof "/.quay-0123456789abcdef.block";
  char *path = quay__os_malloc(size);
  if (path == NULL)
    return -1;
  int file = -1;
  int error = EEXIST;
  for (int i = 0; i < NAME_ATTEMPTS && error == EEXIST; ++i) {
    (void)snprintf(path, size, "%s/.quay-%016llx.block", directory,
                   (unsigned long long)quay__os_random());
    file = quay__os_open(path, O_RDWR | O_CREAT | O_EXCL | O_NOCTTY, 0600);
    error = file < 0 ? errno : 0;
  }
  if (error == 0 && quay__os_unlink(path) != 0) {
    error = errno;
    (void)quay__os_close(file);
    file = -1;
  }
  quay__os_free(path);
  errno = error;
  return file;
}

/* An unlinked file in `directory`, or -1 with errno. */
static int open_unlinked(const char *directory) {
  const int file = quay__os_open(directory, O_TMPFILE | O_RDWR | O_EXCL, 0600);
  /* EISDIR: a kernel without O_TMPFILE; EOPNOTSUPP: a file system without; EINVAL: either. */
  if (file >= 0 || (errno != EISDIR && errno != EOPNOTSUPP && errno != EINVAL))
    return file;
  return open_and_unlink(directory);
}

/* Maps `bytes` of `file` (-1: pages that nobody may touch) at a multiple of `alignment`. */
static void *map_aligned(int file, uint64_t bytes, uint64_t alignment) {
  const int protection = file >= 0 ? PROT_READ | PROT_WRITE : PROT_NONE;
  const int flags = file >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  if (alignment <= quay__os_page_size()) {
    return quay__os_mmap(NULL, bytes, protection, flags, file, 0);
  }
  uint64_t span;
  if (!quay__add(bytes, alignment, &span)) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  unsigned char *space =
      quay__os_mmap(NULL, span, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (space == MAP_FAILED)
    return MAP_FAILED;
  const uint64_t head = (alignment - ((uintptr_t)space & (alignment - 1))) & (alignment - 1);
  unsigned char *aligned = space + head;
  if (quay__os_mmap(aligned, bytes, protection, flags | MAP_FIXED, file, 0) == MAP_FAILED) {
    const int error = errno;
    (void)quay__os_munmap(space, span);
    errno = error;
    return MAP_FAILED;
  }
  /* What is left over is address space alone; keeping it would cost nothing but addresses. */
  const uint64_t tail = span - head - bytes;
  if (head != 0)
    (void)quay__os_munmap(space, head);
  if (tail != 0)
    (void)quay__os_munmap(aligned + bytes, tail);
  return aligned;
}

/* Keeps the block's descriptor if it is large and not too many are kept; else closes it. */
static void keep_or_close(quay__mapping *mapping, uint64_t size) {
  mapping->access = size < BLOCK_FILE_MIN_SIZE ? QUAY__ACCESS_PLAIN : QUAY__ACCESS_GUARDED;
  if (mapping->file < 0)
    return;
  const bool large = size >= BLOCK_FILE_MIN_SIZE;
  if (large && atomic_fetch_add_explicit(&block_files, 1, memory_order_relaxed) < BLOCK_FILES_MAX) {
    mapping->access = QUAY__ACCESS_FILE;
    return;
  }
  if (large)
    atomic_fetch_sub_explicit(&block_files, 1, memory_order_relaxed);
  uint32_t problems = 0;
  close_logged(mapping->file, mapping->path, &problems);
  mapping->file = -1;
}

quay_status quay__mapping_block(const char *directory, uint64_t size, uint64_t alignment,
                                quay__mapping **out_mapping) {
  quay__mapping *mapping = mapping_new(directory);
  if (mapping == NULL)
    return quay__fail_out_of_memory(sizeof *mapping, "a mapping");
  mapping->mode = QUAY_MAP_SHARED;
  mapping->lent = true; /* until the descriptor is counted */
  const unsigned long long bytes = size;
  int file = -1;
  uint64_t length;
  if (!quay__align_up(quay__max(size, 1), quay__os_page_size(), &length))
    length = UINT64_MAX;
  if (size != 0) {
    file = open_unlinked(directory);
    if (file < 0) {
      quay__fail_errno(quay__status_of_errno(errno), QUAY__MMAP_NAME, errno,
                       "allocating %llu bytes: making a file in '%s' failed", bytes, directory);
      goto fail;
    }
    const int error = quay__file_reserve(file, size);
    if (error != 0) {
      quay__fail_errno(quay__status_of_errno(error), QUAY__MMAP_NAME, error,
                       "allocating %llu bytes: reserving them in '%s' failed", bytes, directory);
      goto fail;
    }
  }
  void *address = map_aligned(file, length, alignment);
  if (address == MAP_FAILED) {
    quay__fail_errno(quay__status_of_errno(errno), QUAY__MMAP_NAME, errno,
                     "allocating %llu bytes: mapping the file in '%s' failed", bytes, directory);
    goto fail;
  }
  mapping->address = address;
  mapping->mapped = length;
  mapping->file_size = size;
  mapping->file = file;
  mapping->lent = false;
  keep_or_close(mapping, size);
  *out_mapping = mapping;
  return QUAY_OK;

fail:
  if (file >= 0)
    (void)quay__os_close(file);
  (void)mapping_destroy(mapping);
  return quay_last_error()->status;
}

/* Adopted mappings. */

static quay_status check_adopted_file(quay__mapping *mapping, int file, uint64_t end) {
  const bool writes = mapping->mode == QUAY_MAP_SHARED;
  char nothing = 0;
  mapping->file = quay__os_dup(file);
  /* Transfers of no bytes tell whether the descriptor was opened for them. */
  if (mapping->file < 0 || quay__os_pread(mapping->file, &nothing, 0, 0) < 0 ||
      (writes && quay__os_pwrite(mapping->file, &nothing, 0, 0) < 0)) {
    return quay__fail_errno(quay__status_of_errno(errno), QUAY__MMAP_NAME, errno,
                            "adopting a mapping: descriptor %d can't be used for %s", file,
                            writes ? "reading and writing" : "reading");
  }
  QUAY_TRY(identify(mapping));
  if (end > mapping->file_size) {
    return quay_error_set(QUAY_STATUS_INVALID_ARGUMENT, QUAY__MMAP_NAME, 0, NULL,
                          "adopting a mapping of descriptor %d that ends at byte %llu: the file "
                          "has only %llu bytes",
                          file, (unsigned long long)end, (unsigned long long)mapping->file_size);
  }
  mapping->file_size = end; /* what is behind the mapping may go */
  return QUAY_OK;
}

quay_status quay__mapping_adopt(void *address, uint64_t size, quay_map_mode mode, int file,
                                uint64_t file_offset, quay__mapping **out_mapping) {
  uint64_t end;
  if (!quay__add(file_offset, size, &end) || end > INT64_MAX) {
    return quay_error_set(QUAY_STATUS_INVALID_ARGUMENT, QUAY__MMAP_NAME, 0, NULL,
                          "adopting a mapping of %llu bytes at file offset %llu: no file is that "
                          "large",
                          (unsigned long long)size, (unsigned long long)file_offset);
  }
  quay__mapping *mapping = mapping_new("an adopted mapping");
  if (mapping == NULL)
    return quay__fail_out_of_memory(sizeof *mapping, "a mapping");
  mapping->mode = mode;
  mapping->address = address;
  mapping->offset = file_offset;
  mapping->file_size = end;
  mapping->access = QUAY__ACCESS_PLAIN;
  mapping->exposed = true;
  if (file != -1) {
    mapping->access = mode == QUAY_MAP_COPY_ON_WRITE ? QUAY__ACCESS_GUARDED : QUAY__ACCESS_FILE;
    const quay_status status = check_adopted_file(mapping, file, end);
    if (status != QUAY_OK) {
      (void)mapping_destroy(mapping);
      return status;
    }
  }
  *out_mapping = mapping;
  return QUAY_OK;
}

/* Windows. */

void quay__mapping_window(quay__mapping *mapping, uint64_t file_offset, uint64_t size,
                          quay_raw_buffer *out_raw) {
  /* Nothing is mapped of an empty file, and an empty window may be anywhere: the address is never
   * used, but it is not NULL. */
  const void *pointer = mapping;
  if (mapping->address != NULL)
    pointer = quay__mapping_at(mapping, file_offset);
  *out_raw = (quay_raw_buffer){
      .arm = QUAY_RAW_MMAP,
      .flags = mapping->mode == QUAY_MAP_READ_ONLY ? (uint32_t)QUAY_RAW_READ_ONLY : 0,
      .size = size,
      .as.mmap = {.pointer = (uintptr_t)pointer,
                  .mapping = (uintptr_t)mapping,
                  .file_offset = file_offset,
                  .flags = (uint64_t)mapping->mode},
  };
}

quay_status quay__mapping_check_size(const quay__mapping *mapping) {
  if (!mapping->exposed || mapping->file < 0)
    return QUAY_OK;
  struct stat status;
  if (quay__os_fstat(mapping->file, &status) != 0) {
    return quay__fail_errno(quay__status_of_errno(errno), QUAY__MMAP_NAME, errno,
                            "asking for the size of '%s' failed", mapping->path);
  }
  if ((uint64_t)status.st_size >= mapping->file_size)
    return QUAY_OK;
  return quay_error_set(QUAY_STATUS_IO, QUAY__MMAP_NAME, 0, NULL,
                        "'%s' was truncated behind its mapping: it has %llu bytes now and had at "
                        "least %llu when it was mapped; map it anew",
                        mapping->path, (unsigned long long)status.st_size,
                        (unsigned long long)mapping->file_size);
}
