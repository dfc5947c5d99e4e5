/* Files for tests: a directory that is gone afterwards, files with known bytes, and errors checked
 * in one line. Failing helpers fail the running test. */
#ifndef QUAY_TESTS_SUPPORT_FILES_H
#define QUAY_TESTS_SUPPORT_FILES_H

#include <quay/quay.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* A fixture: makes an empty directory, and removes it with all that is in it. */
void test_files_begin(void);
void test_files_end(void);

/* The directory, and the path of a name in it; the latter is valid until 16 calls later. */
const char *test_directory(void);
const char *test_path(const char *name);

/* How many entries the directory has. */
int test_directory_count(const char *directory);

/* Byte `index` of the data called `seed`; never 0. */
uint8_t test_byte(uint64_t index, unsigned seed);
void test_fill(void *memory, uint64_t size, uint64_t first, unsigned seed);
/* Whether memory holds bytes `first`, `first` + 1 ... of the data. */
bool test_matches(const void *memory, uint64_t size, uint64_t first, unsigned seed);

/* A file of `size` bytes of data in the directory; returns its path, as test_path(). */
const char *test_file(const char *name, uint64_t size, unsigned seed);
/* A file without blocks, all zero. */
const char *test_sparse_file(const char *name, uint64_t size);
/* Whether the file has exactly `size` bytes and they are those of the data. */
bool test_file_is(const char *path, uint64_t size, unsigned seed);
uint64_t test_file_size(const char *path);
mode_t test_file_mode(const char *path);
void test_truncate(const char *path, uint64_t size);

/* Open descriptors of this process. */
int test_descriptor_count(void);

/* Maps or fails the test. */
quay_buffer *test_map(const char *path, quay_map_mode mode);
quay_buffer *test_map_window(const char *path, quay_map_mode mode, uint64_t offset,
                             uint64_t length);

/* A buffer of an allocator, all of its bytes from the data. */
quay_buffer *test_buffer(quay_allocator *allocator, uint64_t size, unsigned seed);
/* Whether a buffer holds exactly the data from byte `first` on, by copying it out. */
bool test_buffer_is(const quay_buffer *buffer, uint64_t first, unsigned seed);

/* Checks a status, and that the message of the error contains `text` and the native name is
 * `native` ("": none, NULL: whatever). */
void test_expect_error(quay_status got, quay_status wanted, const char *native, const char *text);
#define TEST_OK(expression) test_expect_ok((expression), #expression, __FILE__, __LINE__)
void test_expect_ok(quay_status got, const char *what, const char *file, int line);

/* Runs `body` in a child process as user and group `id`; false if it returned false or died. */
bool test_as_user(uid_t id, bool (*body)(void *user), void *user);

/* Mounts a file system in memory of `size` bytes over the path, seen by this process alone, or
 * skips the test with the reason. Its files go with the process. */
void test_mount_small(const char *path, uint64_t size);

#endif
