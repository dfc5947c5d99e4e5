/* See files.h. */
#include "files.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <grp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "skip.h"
#include "support/parts.h"

static char directory[4096];
static char mounted[4096]; /* "": nothing is */

static int remove_entry(const char *path, const struct stat *status, int type, struct FTW *walk) {
  (void)status;
  (void)type;
  (void)walk;
  return remove(path);
}

void test_files_begin(void) {
  const char *parent = getenv("TMPDIR");
  snprintf(directory, sizeof directory, "%s/quay-test-XXXXXX", parent ? parent : "/tmp");
  cr_assert_not_null(mkdtemp(directory), "no directory %s: %s", directory, strerror(errno));
  cr_assert_eq(chmod(directory, 0755), 0);
  quay_test_skip_ends_with(test_files_end);
}

void test_files_end(void) {
  /* Lazily: the test may have left a mapping there. */
  if (mounted[0] != '\0')
    umount2(mounted, MNT_DETACH);
  nftw(directory, remove_entry, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}

const char *test_directory(void) {
  return directory;
}

const char *test_path(const char *name) {
  static char paths[16][4096 + 256];
  static unsigned next;
  char *path = paths[next++ % 16];
  snprintf(path, sizeof paths[0], "%s/%s", directory, name);
  return path;
}

int test_directory_count(const char *path) {
  DIR *open = opendir(path);
  cr_assert_not_null(open, "%s: %s", path, strerror(errno));
  int count = -2; /* "." and ".." */
  while (readdir(open) != NULL)
    ++count;
  closedir(open);
  return count;
}

QUAY_TEST_OWN_MEMORY uint8_t test_byte(uint64_t index, unsigned seed) {
  const uint64_t mixed = (index + seed * UINT64_C(7919)) * UINT64_C(0x9e3779b97f4a7c15);
  return (uint8_t)(1 + (mixed >> 40) % 255);
}

void test_fill(void *memory, uint64_t size, uint64_t first, unsigned seed) {
  quay_test_write_data(memory, size, first, seed, test_byte);
}

bool test_matches(const void *memory, uint64_t size, uint64_t first, unsigned seed) {
  const uint64_t wrong = quay_test_first_wrong(memory, size, first, seed, test_byte);
  if (wrong == size)
    return true;
  fprintf(stderr, "byte %llu is %u, not %u\n", (unsigned long long)wrong,
          ((const uint8_t *)memory)[wrong], test_byte(first + wrong, seed));
  return false;
}

static void write_all(int file, const uint8_t *bytes, uint64_t size) {
  for (uint64_t done = 0; done < size;) {
    const ssize_t put = pwrite(file, bytes + done, size - done, (off_t)done);
    cr_assert(put > 0, "writing a file: %s", strerror(errno));
    done += (uint64_t)put;
  }
}

const char *test_file(const char *name, uint64_t size, unsigned seed) {
  const char *path = test_path(name);
  uint8_t *bytes = malloc(size + 1);
  cr_assert_not_null(bytes);
  test_fill(bytes, size, 0, seed);
  const int file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  cr_assert(file >= 0, "%s: %s", path, strerror(errno));
  write_all(file, bytes, size);
  cr_assert_eq(close(file), 0);
  free(bytes);
  return path;
}

const char *test_sparse_file(const char *name, uint64_t size) {
  const char *path = test_file(name, 0, 1);
  test_truncate(path, size);
  return path;
}

uint64_t test_file_size(const char *path) {
  struct stat status;
  cr_assert_eq(stat(path, &status), 0, "%s: %s", path, strerror(errno));
  return (uint64_t)status.st_size;
}

mode_t test_file_mode(const char *path) {
  struct stat status;
  cr_assert_eq(stat(path, &status), 0, "%s: %s", path, strerror(errno));
  return status.st_mode & 07777;
}

bool test_file_is(const char *path, uint64_t size, unsigned seed) {
  if (test_file_size(path) != size)
    return false;
  uint8_t *bytes = malloc(size + 1);
  cr_assert_not_null(bytes);
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  cr_assert(file >= 0, "%s: %s", path, strerror(errno));
  uint64_t done = 0;
  while (done < size) {
    const ssize_t got = pread(file, bytes + done, size - done, (off_t)done);
    cr_assert(got > 0, "reading %s: %s", path, strerror(errno));
    done += (uint64_t)got;
  }
  close(file);
  const bool same = test_matches(bytes, size, 0, seed);
  free(bytes);
  return same;
}

void test_truncate(const char *path, uint64_t size) {
  cr_assert_eq(truncate(path, (off_t)size), 0, "%s: %s", path, strerror(errno));
}

int test_descriptor_count(void) {
  return test_directory_count("/proc/self/fd") - 1; /* without the one that reads it */
}

quay_buffer *test_map_window(const char *path, quay_map_mode mode, uint64_t offset,
                             uint64_t length) {
  const quay_map_options options = {.mode = mode, .offset = offset, .length = length};
  quay_buffer *buffer = NULL;
  TEST_OK(quay_map_file(path, &options, &buffer));
  return buffer;
}

quay_buffer *test_map(const char *path, quay_map_mode mode) {
  return test_map_window(path, mode, 0, 0);
}

quay_buffer *test_buffer(quay_allocator *allocator, uint64_t size, unsigned seed) {
  uint8_t *bytes = malloc(size + 1);
  cr_assert_not_null(bytes);
  test_fill(bytes, size, 0, seed);
  quay_buffer *buffer = NULL;
  TEST_OK(quay_buffer_create_from_host(allocator, QUAY_U8, 1, (int64_t[]){(int64_t)size}, bytes,
                                       NULL, &buffer));
  free(bytes);
  return buffer;
}

bool test_buffer_is(const quay_buffer *buffer, uint64_t first, unsigned seed) {
  const uint64_t size = quay_buffer_size(buffer);
  uint8_t *bytes = malloc(size + 1);
  cr_assert_not_null(bytes);
  TEST_OK(quay_buffer_copy_out(buffer, bytes, size));
  const bool same = test_matches(bytes, size, first, seed);
  free(bytes);
  return same;
}

void test_expect_error(quay_status got, quay_status wanted, const char *native, const char *text) {
  const quay_error *error = quay_last_error();
  cr_assert_eq(got, wanted, "%s instead of %s: %s", quay_status_name(got), quay_status_name(wanted),
               error->message);
  cr_assert_eq(error->status, wanted, "the thread's error is %s", quay_status_name(error->status));
  if (native != NULL) {
    cr_assert_str_eq(error->native_name, native, "the native name is \"%s\": %s",
                     error->native_name, error->message);
  }
  cr_assert_not_null(strstr(error->message, text), "\"%s\" is not in \"%s\"", text, error->message);
}

void test_expect_ok(quay_status got, const char *what, const char *file, int line) {
  cr_assert_eq(got, QUAY_OK, "%s:%d: %s: %s: %s", file, line, what, quay_status_name(got),
               quay_last_error()->message);
}

bool test_as_user(uid_t id, bool (*body)(void *user), void *user) {
  const pid_t child = fork();
  cr_assert(child >= 0);
  if (child == 0) {
    const bool dropped =
        geteuid() != 0 || (setgroups(0, NULL) == 0 && setgid(id) == 0 && setuid(id) == 0);
    _exit(dropped && body(user) ? 0 : 1);
  }
  int status = 0;
  cr_assert_eq(waitpid(child, &status, 0), child);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

void test_mount_small(const char *path, uint64_t size) {
  char options[64];
  snprintf(options, sizeof options, "size=%llu", (unsigned long long)size);
  cr_assert(mkdir(path, 0755) == 0 || errno == EEXIST, "%s: %s", path, strerror(errno));
  if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
      mount("tmpfs", path, "tmpfs", 0, options) != 0) {
    quay_test_skip("tmpfs", "a small file system can't be mounted here: %s", strerror(errno));
  }
  snprintf(mounted, sizeof mounted, "%s", path);
}
