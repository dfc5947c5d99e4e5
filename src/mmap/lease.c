/* Leases: touching a mapping without fear of SIGBUS. While the process holds a read lease on the
 * file, whoever opens it for writing or truncates it is made to wait by the kernel, so that its
 * size can't change. A shared mapping, whose file is open for writing, takes a write lease: whoever
 * opens the file at all waits. A lease is held for one piece of a copy at a time, a millisecond or
 * less.
 *
 * There is no read lease on a file that is open for writing, and no write lease on one that is open
 * anywhere else; and none on a file that belongs to another user, or whose file system has changes
 * come from elsewhere. Reading is read.c's then, writing write.c's. Files are opened here as well,
 * since leases, of others too, keep them from being opened at once. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>

#include "core/lifecycle.h"
#include "core/lock.h"
#include "core/os.h"
#include "mmap/mmap_impl.h"

typedef struct local_type {
  uint64_t type;
  /* What was written once needs no more space when it is written again, so that a store into a page
   * that is there never meets a full disk. */
  bool in_place;
} local_type;

static const local_type *local_type_of(int file) {
  static const local_type local[] = {
      {0xef53, true},      /* ext2, ext3, ext4 */
      {0x58465342, true},  /* xfs: shared blocks are copied when the page is populated */
      {0x9123683e, false}, /* btrfs */
      {0xf2f52010, false}, /* f2fs */
      {0x01021994, true},  /* tmpfs */
      {0x794c7630, true},  /* overlay: what lies below is one of these, and hardly one of the two */
  };
  const uint64_t type = quay__os_file_system(file);
  for (size_t i = 0; i < sizeof local / sizeof local[0]; ++i) {
    if (local[i].type == type)
      return &local[i];
  }
  return NULL;
}

bool quay__mmap_is_local(int file) {
  return local_type_of(file) != NULL;
}

static void refuse(quay__mapping *mapping) {
  atomic_store_explicit(&mapping->lease, QUAY__LEASE_REFUSED, memory_order_relaxed);
}

/* What a lease is for: of files that are open for writing there is no other. */
static bool is_written(const quay__mapping *mapping) {
  return mapping->mode == QUAY_MAP_SHARED;
}

/* A lease belongs to the open file, which a child of fork() shares: it must not end its parent's.
 */
bool quay__lease_may(quay__mapping *mapping) {
  const int state = atomic_load_explicit(&mapping->lease, memory_order_relaxed);
  if (state == QUAY__LEASE_REFUSED || mapping->lease_process != quay__fork_generation)
    return false;
  if (state == QUAY__LEASE_POSSIBLE)
    return true;
  const local_type *type = mapping->lent ? NULL : local_type_of(mapping->file);
  if (type == NULL || (is_written(mapping) && !type->in_place)) {
    refuse(mapping);
    return false;
  }
  atomic_store_explicit(&mapping->lease, QUAY__LEASE_POSSIBLE, memory_order_relaxed);
  return true;
}

/* With the stripe held, and nobody using a lease. The size can't change from here on, but it may
 * have before. */
static bool begin(quay__mapping *mapping) {
  if (quay__os_lease(mapping->file, is_written(mapping)) != 0) {
    if (errno != EAGAIN)
      refuse(mapping);
    return false;
  }
  struct stat status;
  if (quay__os_fstat(mapping->file, &status) == 0 && (uint64_t)status.st_size >= mapping->file_size)
    return true;
  (void)quay__os_lease_end(mapping->file);
  return false;
}

bool quay__lease_take(quay__mapping *mapping, bool write) {
  if (mapping->mode != (write ? QUAY_MAP_SHARED : QUAY_MAP_READ_ONLY) || !quay__lease_may(mapping))
    return false;
  quay__stripe_acquire(mapping);
  /* Somebody who waits is let in first: the pieces under way end, and no further one begins. */
  const bool taken =
      mapping->lease_users != 0 ? quay__os_lease_holds(mapping->file, write) : begin(mapping);
  mapping->lease_users += taken;
  quay__stripe_release(mapping);
  return taken;
}

void quay__lease_drop(quay__mapping *mapping) {
  int error = 0;
  quay__stripe_acquire(mapping);
  if (--mapping->lease_users == 0 && quay__os_lease_end(mapping->file) != 0)
    error = errno;
  quay__stripe_release(mapping);
  if (error != 0) {
    refuse(mapping);
    quay__mmap_log_errno("ending the lease on", mapping->path, error);
  }
}

/* Waits for leases. What `path` names may be a FIFO by now, which must not be waited for; what a
 * descriptor names that can neither read nor write is known to be a regular file, and stays it. */
static int open_waiting(const char *path, int access) {
  const int place = quay__os_open(path, O_PATH, 0);
  if (place < 0)
    return -1;
  struct stat status;
  char name[48];
  int file = -1;
  int error = EAGAIN;
  (void)snprintf(name, sizeof name, "/proc/self/fd/%d", place);
  if (quay__os_fstat(place, &status) == 0 && S_ISREG(status.st_mode)) {
    file = quay__os_open(name, access | O_NOCTTY, 0);
    /* Where there is no /proc, the lease is what can be said. */
    if (file < 0 && errno != ENOENT)
      error = errno;
  }
  (void)quay__os_close(place);
  errno = error;
  return file;
}

int quay__lease_open(const char *path, int access) {
  const int file = quay__os_open(path, access | O_NONBLOCK | O_NOCTTY, 0);
  return file < 0 && errno == EAGAIN ? open_waiting(path, access) : file;
}
