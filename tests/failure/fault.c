/* The program quay with a system that fails: the linker sends every call that faces the operating
 * system, and every allocation, through the functions below, and the n-th one fails. What jansson
 * allocates for itself is left out.
 *
 *   QUAY_TEST_FAIL_CALL=N   the N-th call fails, counted from 1; 0 or not set: none does
 *   QUAY_TEST_FAIL_ON=1     every call from the N-th on fails
 *   QUAY_TEST_FAIL_LOG=FILE is given the name of the first call that failed */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static atomic_ulong calls;
static atomic_bool over;

/* Registered before everything else, so that it is called after everything else: what the runtime
 * of a coverage build allocates to write its data does not fail. */
static void stop_failing(void) {
  over = true;
}

__attribute__((constructor)) static void register_stop(void) {
  atexit(stop_failing);
}

static void report(const char *name) {
  const char *const path = getenv("QUAY_TEST_FAIL_LOG");
  if (path == NULL)
    return;
  const int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (file < 0)
    _exit(99);
  if (write(file, name, strlen(name)) < 0 || write(file, "\n", 1) < 0)
    _exit(99);
  close(file);
}

/* Whether this call is to fail; sets errno to `error` if so. */
static bool fails(const char *name, int error) {
  const char *const wanted = getenv("QUAY_TEST_FAIL_CALL");
  const unsigned long nth = wanted != NULL ? strtoul(wanted, NULL, 10) : 0;
  const unsigned long call = atomic_fetch_add(&calls, 1) + 1;
  const bool hit =
      nth != 0 && !over && (call == nth || (call > nth && getenv("QUAY_TEST_FAIL_ON") != NULL));
  if (hit && call == nth)
    report(name);
  if (hit)
    errno = error;
  return hit;
}

/* WRAP(type, name, failure, error, (parameters), (arguments)) */
#define WRAP(type, name, failure, error, parameters, arguments) \
  type __real_##name parameters;                                \
  type __wrap_##name parameters;                                \
  type __wrap_##name parameters {                               \
    if (fails(#name, (error)))                                  \
      return (failure);                                         \
    return __real_##name arguments;                             \
  }

WRAP(void *, malloc, NULL, ENOMEM, (size_t size), (size))
WRAP(void *, calloc, NULL, ENOMEM, (size_t count, size_t size), (count, size))
WRAP(void *, realloc, NULL, ENOMEM, (void *pointer, size_t size), (pointer, size))
WRAP(int, posix_memalign, ENOMEM, ENOMEM, (void **out, size_t alignment, size_t size),
     (out, alignment, size))
WRAP(int, pthread_create, EAGAIN, EAGAIN,
     (pthread_t * thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument),
     (thread, attributes, start, argument))
WRAP(void *, quay__os_mmap, MAP_FAILED, ENOMEM,
     (void *address, size_t size, int protection, int flags, int file, uint64_t offset),
     (address, size, protection, flags, file, offset))
WRAP(int, quay__os_munmap, -1, ENOMEM, (void *address, size_t size), (address, size))
WRAP(int, quay__os_madvise, -1, EINVAL, (void *address, size_t size, int advice),
     (address, size, advice))
WRAP(int, quay__os_msync, -1, EIO, (void *address, size_t size, int flags), (address, size, flags))
WRAP(int, quay__os_open, -1, EMFILE, (const char *path, int flags, mode_t mode),
     (path, flags, mode))
WRAP(int, quay__os_dup, -1, EMFILE, (int file), (file))
WRAP(int, quay__os_fstat, -1, EIO, (int file, struct stat *status), (file, status))
WRAP(int, quay__os_stat, -1, EACCES, (const char *path, struct stat *status), (path, status))
WRAP(int, quay__os_ftruncate, -1, EIO, (int file, uint64_t size), (file, size))
WRAP(int, quay__os_fallocate, ENOSPC, ENOSPC, (int file, uint64_t offset, uint64_t size),
     (file, offset, size))
WRAP(ssize_t, quay__os_pread, -1, EIO, (int file, void *buffer, size_t size, uint64_t offset),
     (file, buffer, size, offset))
WRAP(ssize_t, quay__os_pread_cached, -1, EAGAIN,
     (int file, void *buffer, size_t size, uint64_t offset), (file, buffer, size, offset))
WRAP(ssize_t, quay__os_pwrite, -1, ENOSPC,
     (int file, const void *buffer, size_t size, uint64_t offset), (file, buffer, size, offset))
WRAP(int, quay__os_fsync, -1, EIO, (int file), (file))
WRAP(int, quay__os_fdatasync, -1, EIO, (int file), (file))
WRAP(int, quay__os_fchmod, -1, EPERM, (int file, mode_t mode), (file, mode))
WRAP(int, quay__os_open_at, -1, EMFILE, (int directory, const char *name, int flags, mode_t mode),
     (directory, name, flags, mode))
WRAP(int, quay__os_rename_at, -1, EACCES, (int directory, const char *from, const char *to),
     (directory, from, to))
WRAP(char *, quay__os_realpath, NULL, ENOMEM, (const char *path), (path))
WRAP(ssize_t, quay__os_read_own_memory, -1, ENOSYS,
     (void *destination, const void *source, size_t size), (destination, source, size))
WRAP(ssize_t, quay__os_write_own_memory, -1, ENOSYS,
     (void *destination, const void *source, size_t size), (destination, source, size))
WRAP(int, quay__os_lease, -1, EAGAIN, (int file, bool write), (file, write))
WRAP(bool, quay__os_lease_holds, false, 0, (int file, bool write), (file, write))
WRAP(uint64_t, quay__os_file_system, 0, EIO, (int file), (file))
WRAP(int, quay__os_mincore, -1, EAGAIN, (void *address, size_t size, unsigned char *resident),
     (address, size, resident))
WRAP(int, quay__os_memory_info, -1, EIO, (uint64_t * total, uint64_t *available),
     (total, available))

/* These can't give back what they took if they fail, so they do their work and then report the
 * failure, as close(2) does on Linux. */
int __real_quay__os_lease_end(int file);
int __wrap_quay__os_lease_end(int file);
int __wrap_quay__os_lease_end(int file) {
  const int result = __real_quay__os_lease_end(file);
  return fails("quay__os_lease_end", EAGAIN) ? -1 : result;
}

int __real_quay__os_close(int file);
int __wrap_quay__os_close(int file);
int __wrap_quay__os_close(int file) {
  const int result = __real_quay__os_close(file);
  return fails("quay__os_close", EIO) ? -1 : result;
}
