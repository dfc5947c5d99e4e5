/* Everything that faces the operating system and the C library's allocator: memory, files,
 * mappings, time, processors. Thin: they retry EINTR and otherwise return what the system returned,
 * with errno. Tests replace these symbols at link time to make the n-th call fail, so nothing else
 * in the library calls the system directly. Threads and locks are in lock.h and workers.h. */
#ifndef QUAY_CORE_OS_H
#define QUAY_CORE_OS_H

#include <quay/base.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "core/component.h"

/* Memory of the C library. NULL on failure. What is exported is for the safetensors component,
 * which is a library of its own. */
QUAY__COMPONENT void *quay__os_malloc(size_t size);
QUAY__COMPONENT void *quay__os_calloc(size_t count, size_t size);
void *quay__os_realloc(void *pointer, size_t size);
void *quay__os_aligned_alloc(size_t alignment, size_t size); /* any power of two, any size */
char *quay__os_strdup(const char *text);
QUAY__COMPONENT void quay__os_free(void *pointer); /* keeps errno */

/* Mappings. MAP_FAILED on failure. */
void *quay__os_mmap(void *address, size_t size, int protection, int flags, int file,
                    uint64_t offset);
int quay__os_munmap(void *address, size_t size);
int quay__os_madvise(void *address, size_t size, int advice);
int quay__os_msync(void *address, size_t size, int flags);
int quay__os_mincore(void *address, size_t size, unsigned char *out_resident); /* a byte a page */

/* Files. -1 on failure. O_CLOEXEC is added to every open. */
int quay__os_open(const char *path, int flags, mode_t mode);
int quay__os_close(int file);
int quay__os_dup(int file); /* with O_CLOEXEC */
int quay__os_fstat(int file, struct stat *out_status);
int quay__os_stat(const char *path, struct stat *out_status);
int quay__os_ftruncate(int file, uint64_t size);
/* Reserves blocks: returns 0 or an errno as posix_fallocate() does, but never emulates:
 * EOPNOTSUPP where the file system can't. EFBIG beyond the process's limit, and no SIGXFSZ. */
int quay__os_fallocate(int file, uint64_t offset, uint64_t size);
ssize_t quay__os_pread(int file, void *buffer, size_t size, uint64_t offset);
/* The same for what is in the page cache, without waiting: short, or -1 with EAGAIN, where it is
 * not. EOPNOTSUPP or ENOSYS where the file system or kernel can't tell. */
ssize_t quay__os_pread_cached(int file, void *buffer, size_t size, uint64_t offset);
/* As pwrite(2), but all or nothing of what would end beyond the process's limit: EFBIG, and no
 * SIGXFSZ. */
ssize_t quay__os_pwrite(int file, const void *buffer, size_t size, uint64_t offset);
/* Whether nothing was ever written to the range; false where the system can't tell. Moves the
 * descriptor's own position. */
bool quay__os_is_hole(int file, uint64_t offset, uint64_t size);
int quay__os_fsync(int file);
int quay__os_fdatasync(int file);
/* Alignments in bytes that direct I/O on an open file needs: of the memory and of offsets and sizes
 * in the file; zeros where the file can't have it. -1 where the system does not tell. */
int quay__os_direct_alignment(int file, uint32_t *out_memory, uint32_t *out_offset);
/* Leases: while one is held, whoever truncates the file or opens it for writing waits (for as long
 * as /proc/sys/fs/lease-break-time says), and with a write lease whoever opens it at all. lease()
 * fails with EAGAIN where the file is open for writing, with `write` where it is open anywhere
 * else. Whether somebody waits is told by lease_holds(), of a lease of the same kind; who comes
 * while lease() is called may make the system send SIGURG. */
int quay__os_lease(int file, bool write);
bool quay__os_lease_holds(int file, bool write);
int quay__os_lease_end(int file);
/* The type of the file system, as statfs() has it; 0 where the system does not tell. */
uint64_t quay__os_file_system(int file);
int quay__os_fchmod(int file, mode_t mode);
int quay__os_unlink(const char *path);
/* Names in an open directory, wherever that is by now. */
int quay__os_open_at(int directory, const char *name, int flags, mode_t mode);
int quay__os_rename_at(int directory, const char *from, const char *to);
int quay__os_unlink_at(int directory, const char *name);
char *quay__os_realpath(const char *path); /* freed with quay__os_free() */

/* Copies of the process's own memory that answer EFAULT instead of raising SIGBUS or SIGSEGV. A
 * short count is possible. -1 with ENOSYS or EPERM where a sandbox refuses. */
ssize_t quay__os_read_own_memory(void *destination, const void *source, size_t size);
ssize_t quay__os_write_own_memory(void *destination, const void *source, size_t size);

/* Lets another thread have the processor. */
void quay__os_yield(void);

/* Makes every thread of the process pass a full memory barrier before it returns. 0, or -1 where
 * the system can't. */
int quay__os_barrier(void);

/* A set of processors, a bit each, as the system's calls have it on machines of 64 bits. */
#define QUAY__PROCESSORS_MAX 1024u
typedef struct quay__processors {
  uint64_t bits[QUAY__PROCESSORS_MAX / 64];
} quay__processors;

/* Processors that the calling thread may run on. -1 on failure: EINVAL where the machine has more
 * than such a set holds. */
int quay__os_affinity(quay__processors *out_processors);
int quay__os_set_affinity(const quay__processors *wanted);
/* The head of a file of /proc or /sys as text; false if it can't be read. */
bool quay__os_read_text(const char *path, char *out_text, size_t size);
/* Processors that this thread may run on, at least 1: as the system said at most so long ago, but
 * for what the functions above changed, which counts at once. */
#define QUAY__PROCESSOR_COUNT_NS UINT64_C(100000000)
uint32_t quay__os_processor_count(void);
/* Bytes of a page, and of a huge page (2 MiB where the system does not tell). Cached. */
size_t quay__os_page_size(void);
size_t quay__os_huge_page_size(void);
/* Physical memory, in bytes: all of it, and what could be allocated. -1 on failure. */
int quay__os_memory_info(uint64_t *out_total, uint64_t *out_available);
/* What the process may have of something, in bytes (setrlimit(2)); UINT64_MAX: no limit. */
typedef enum quay__os_limited {
  QUAY__OS_ADDRESSES,
  QUAY__OS_FILE_SIZE
} quay__os_limited;
uint64_t quay__os_limit(quay__os_limited what);
/* A clock that never goes back, in nanoseconds. */
uint64_t quay__os_nanoseconds(void);
/* The system's number of the calling thread. A system call. */
uint64_t quay__os_thread_id(void);
/* Shared libraries, their symbols local to them. NULL on failure; the text of the last one is the
 * calling thread's, "" if there was none. */
void *quay__os_library_open(const char *path);
void *quay__os_library_symbol(void *library, const char *name);
void quay__os_library_close(void *library);
const char *quay__os_library_error(void);

/* Registers a function for the process's exit, and for the child after a fork. 0, or not. */
int quay__os_at_exit(void (*function)(void));
int quay__os_at_fork_in_child(void (*function)(void));

/* Random bytes for names of temporary files. */
uint64_t quay__os_random(void);

#endif
