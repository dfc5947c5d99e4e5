/* Everything that faces the operating system: see os.h. */
#include "core/os.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

/* Repeats a call that a signal interrupted. */
#define RETRY(call)                                 \
  __extension__({                                   \
    __typeof__(call) retry_result;                  \
    do {                                            \
      retry_result = (call);                        \
    } while (retry_result == -1 && errno == EINTR); \
    retry_result;                                   \
  })

void *quay__os_malloc(size_t size) {
  return malloc(size);
}

void *quay__os_calloc(size_t count, size_t size) {
  return calloc(count, size);
}

void *quay__os_realloc(void *pointer, size_t size) {
  return realloc(pointer, size);
}

void *quay__os_aligned_alloc(size_t alignment, size_t size) {
  void *pointer = NULL;
  if (alignment < sizeof(void *))
    alignment = sizeof(void *);
  const int error = posix_memalign(&pointer, alignment, size);
  if (error != 0) {
    errno = error;
    return NULL;
  }
  return pointer;
}

char *quay__os_strdup(const char *text) {
  const size_t size = strlen(text) + 1;
  char *copy = quay__os_malloc(size);
  if (copy != NULL)
    memcpy(copy, text, size);
  return copy;
}

void quay__os_free(void *pointer) {
  const int saved_errno = errno;
  free(pointer);
  errno = saved_errno;
}

void *quay__os_mmap(void *address, size_t size, int protection, int flags, int file,
                    uint64_t offset) {
  return mmap(address, size, protection, flags, file, (off_t)offset);
}

int quay__os_munmap(void *address, size_t size) {
  return munmap(address, size);
}

int quay__os_madvise(void *address, size_t size, int advice) {
  int result;
  do {
    result = madvise(address, size, advice);
  } while (result == -1 && (errno == EINTR || errno == EAGAIN));
  return result;
}

int quay__os_msync(void *address, size_t size, int flags) {
  return RETRY(msync(address, size, flags));
}

int quay__os_mincore(void *address, size_t size, unsigned char *out_resident) {
  return mincore(address, size, out_resident);
}

int quay__os_open(const char *path, int flags, mode_t mode) {
  return RETRY(open(path, flags | O_CLOEXEC, mode));
}

/* Not repeated: on Linux the descriptor is gone even if close() was interrupted. */
int quay__os_close(int file) {
  return close(file);
}

int quay__os_dup(int file) {
  return RETRY(fcntl(file, F_DUPFD_CLOEXEC, 0));
}

int quay__os_fstat(int file, struct stat *out_status) {
  return RETRY(fstat(file, out_status));
}

int quay__os_stat(const char *path, struct stat *out_status) {
  return RETRY(stat(path, out_status));
}

uint64_t quay__os_limit(quay__os_limited what) {
  struct rlimit limit;
  const int got =
      what == QUAY__OS_ADDRESSES ? getrlimit(RLIMIT_AS, &limit) : getrlimit(RLIMIT_FSIZE, &limit);
  const bool known = got == 0 && limit.rlim_cur != RLIM_INFINITY;
  return known ? limit.rlim_cur : UINT64_MAX;
}

int quay__os_ftruncate(int file, uint64_t size) {
  return RETRY(ftruncate(file, (off_t)size));
}

int quay__os_fallocate(int file, uint64_t offset, uint64_t size) {
  /* The kernel would send SIGXFSZ, which ends the program if nobody is prepared for it. */
  if (offset + size > quay__os_limit(QUAY__OS_FILE_SIZE))
    return EFBIG;
  return RETRY(fallocate(file, 0, (off_t)offset, (off_t)size)) == 0 ? 0 : errno;
}

ssize_t quay__os_pread(int file, void *buffer, size_t size, uint64_t offset) {
  return RETRY(pread(file, buffer, size, (off_t)offset));
}

ssize_t quay__os_pread_cached(int file, void *buffer, size_t size, uint64_t offset) {
  const struct iovec piece = {.iov_base = buffer, .iov_len = size};
  return RETRY(preadv2(file, &piece, 1, (off_t)offset, RWF_NOWAIT));
}

ssize_t quay__os_pwrite(int file, const void *buffer, size_t size, uint64_t offset) {
  if (offset + size > quay__os_limit(QUAY__OS_FILE_SIZE)) {
    errno = EFBIG; /* and no SIGXFSZ, as above */
    return -1;
  }
  return RETRY(pwrite(file, buffer, size, (off_t)offset));
}

bool quay__os_is_hole(int file, uint64_t offset, uint64_t size) {
  const off_t data = lseek(file, (off_t)offset, SEEK_DATA);
  return data >= 0 ? (uint64_t)data >= offset + size : errno == ENXIO;
}

int quay__os_fsync(int file) {
  return RETRY(fsync(file));
}

int quay__os_fdatasync(int file) {
  return RETRY(fdatasync(file));
}

int quay__os_direct_alignment(int file, uint32_t *out_memory, uint32_t *out_offset) {
#ifdef STATX_DIOALIGN /* linux/stat.h, since Linux 6.1 */
  struct statx status;
  if (RETRY(statx(file, "", AT_EMPTY_PATH, STATX_DIOALIGN, &status)) != 0)
    return -1;
  if ((status.stx_mask & STATX_DIOALIGN) != 0) {
    *out_memory = status.stx_dio_mem_align;
    *out_offset = status.stx_dio_offset_align;
    return 0;
  }
#endif
  (void)file;
  *out_memory = *out_offset = 0;
  errno = ENOSYS;
  return -1;
}

/* The system takes the process for the owner of a new lease, and would send it a signal that by
 * default ends it: one that by default does nothing is named before, and no owner after. */
int quay__os_lease(int file, bool write) {
  if (fcntl(file, F_SETSIG, SIGURG) != 0 || fcntl(file, F_SETLEASE, write ? F_WRLCK : F_RDLCK) != 0)
    return -1;
  if (fcntl(file, F_SETOWN, 0) == 0)
    return 0;
  const int error = errno;
  (void)fcntl(file, F_SETLEASE, F_UNLCK);
  errno = error;
  return -1;
}

bool quay__os_lease_holds(int file, bool write) {
  return fcntl(file, F_GETLEASE) == (write ? F_WRLCK : F_RDLCK);
}

int quay__os_lease_end(int file) {
  return fcntl(file, F_SETLEASE, F_UNLCK);
}

uint64_t quay__os_file_system(int file) {
  struct statfs status;
  return RETRY(fstatfs(file, &status)) == 0 ? (uint64_t)status.f_type : 0;
}

int quay__os_fchmod(int file, mode_t mode) {
  return RETRY(fchmod(file, mode));
}

int quay__os_open_at(int directory, const char *name, int flags, mode_t mode) {
  return RETRY(openat(directory, name, flags | O_CLOEXEC, mode));
}

int quay__os_rename_at(int directory, const char *from, const char *to) {
  return renameat(directory, from, directory, to);
}

int quay__os_unlink_at(int directory, const char *name) {
  return unlinkat(directory, name, 0);
}

int quay__os_unlink(const char *path) {
  return unlink(path);
}

char *quay__os_realpath(const char *path) {
  return realpath(path, NULL);
}

ssize_t quay__os_read_own_memory(void *destination, const void *source, size_t size) {
  const struct iovec local = {.iov_base = destination, .iov_len = size};
  const struct iovec remote = {.iov_base = (void *)(uintptr_t)source, .iov_len = size};
  return RETRY(process_vm_readv(getpid(), &local, 1, &remote, 1, 0));
}

ssize_t quay__os_write_own_memory(void *destination, const void *source, size_t size) {
  const struct iovec local = {.iov_base = (void *)(uintptr_t)source, .iov_len = size};
  const struct iovec remote = {.iov_base = destination, .iov_len = size};
  return RETRY(process_vm_writev(getpid(), &local, 1, &remote, 1, 0));
}

void quay__os_yield(void) {
  (void)sched_yield();
}

/* The process has to say once that it will; whether a child of a fork has to say so again is left
 * open. */
int quay__os_barrier(void) {
  if (syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0)
    return 0;
  if (errno != EPERM ||
      syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) != 0)
    return -1;
  return syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0 ? 0 : -1;
}

static uint32_t ask_processor_count(void) {
  /* The affinity mask says what this thread may use, which in a container is less than there is. */
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    const int count = CPU_COUNT(&set);
    if (count > 0)
      return (uint32_t)count;
  }
  const long online = sysconf(_SC_NPROCESSORS_ONLN); /* more processors than a cpu_set_t holds */
  return online > 0 ? (uint32_t)online : 1;
}

/* What the system told this thread. Copies of a few MiB ask each time: the system call takes 4 us
 * on some virtual machines, and what it does to the caches there an eighth of a copy of 2 MiB. */
static _Thread_local struct {
  uint32_t count; /* 0: not asked */
  uint64_t since;
} processors;

uint32_t quay__os_processor_count(void) {
  struct timespec now; /* read without a system call */
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  const uint64_t tick = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
  if (processors.count == 0 || tick - processors.since >= QUAY__PROCESSOR_COUNT_NS) {
    processors.count = ask_processor_count();
    processors.since = tick;
  }
  return processors.count;
}

int quay__os_affinity(quay__processors *out_processors) {
  cpu_set_t set;
  _Static_assert(sizeof set == sizeof *out_processors, "both hold 1024 processors");
  if (sched_getaffinity(0, sizeof set, &set) != 0)
    return -1;
  memcpy(out_processors, &set, sizeof set);
  return 0;
}

int quay__os_set_affinity(const quay__processors *wanted) {
  cpu_set_t set;
  memcpy(&set, wanted, sizeof set);
  processors.count = 0;
  return sched_setaffinity(0, sizeof set, &set);
}

size_t quay__os_page_size(void) {
  static atomic_size_t cached;
  size_t size = atomic_load_explicit(&cached, memory_order_relaxed);
  if (size == 0) {
    size = (size_t)sysconf(_SC_PAGESIZE);
    atomic_store_explicit(&cached, size, memory_order_relaxed);
  }
  return size;
}

/* The value of "KEY:   123 kB" in a file of /proc, in bytes; false if it is not there. */
static bool proc_value(const char *text, const char *key, uint64_t *out_bytes) {
  const char *at = strstr(text, key);
  if (at == NULL)
    return false;
  const char *const digits = at + strlen(key);
  char *end;
  const unsigned long long kilobytes = strtoull(digits, &end, 10);
  *out_bytes = (uint64_t)kilobytes * 1024;
  return end != digits;
}

bool quay__os_read_text(const char *path, char *out_text, size_t size) {
  const int file = quay__os_open(path, O_RDONLY, 0);
  if (file < 0)
    return false;
  const ssize_t length = quay__os_pread(file, out_text, size - 1, 0);
  quay__os_close(file);
  if (length < 0)
    return false;
  out_text[length] = '\0';
  return true;
}

size_t quay__os_huge_page_size(void) {
  static atomic_size_t cached;
  size_t size = atomic_load_explicit(&cached, memory_order_relaxed);
  if (size == 0) {
    char text[64];
    size = (size_t)2 << 20;
    if (quay__os_read_text("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size", text,
                           sizeof text)) {
      const unsigned long long value = strtoull(text, NULL, 10);
      if (value >= quay__os_page_size())
        size = (size_t)value;
    }
    atomic_store_explicit(&cached, size, memory_order_relaxed);
  }
  return size;
}

int quay__os_memory_info(uint64_t *out_total, uint64_t *out_available) {
  char text[2048];
  if (!quay__os_read_text("/proc/meminfo", text, sizeof text))
    return -1;
  if (!proc_value(text, "MemTotal:", out_total))
    return -1;
  return proc_value(text, "MemAvailable:", out_available) ? 0 : -1;
}

uint64_t quay__os_nanoseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t quay__os_thread_id(void) {
  return (uint64_t)gettid();
}

void *quay__os_library_open(const char *path) {
  return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

void *quay__os_library_symbol(void *library, const char *name) {
  return dlsym(library, name);
}

void quay__os_library_close(void *library) {
  (void)dlclose(library); /* fails only for what is no library */
}

const char *quay__os_library_error(void) {
  const char *const text = dlerror();
  return text != NULL ? text : "";
}

int quay__os_at_exit(void (*function)(void)) {
  return atexit(function);
}

int quay__os_at_fork_in_child(void (*function)(void)) {
  return pthread_atfork(NULL, NULL, function);
}

uint64_t quay__os_random(void) {
  uint64_t value;
  if (getrandom(&value, sizeof value, GRND_NONBLOCK) == (ssize_t)sizeof value)
    return value;
  /* Names only have to differ: the time and the process do that where the pool is not ready. */
  return quay__os_nanoseconds() * 0x9e3779b97f4a7c15u ^ (uint64_t)getpid();
}
