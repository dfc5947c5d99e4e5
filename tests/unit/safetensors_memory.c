/* Safetensors files where memory runs out at the n-th allocation, of Quay or of jansson, and what
 * a header of many tensors takes. The format's rules are in safetensors.c. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <quay/quay.h>
#include <quay/safetensors.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "support/failing_allocations.h"
#include "support/skip.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif

static char folder[256];
static char path[300];

static void *allocate_for_jansson(size_t size) {
  return allocation_fails() ? NULL : malloc(size);
}

static void make_folder(void) {
  const char *parent = getenv("TMPDIR");
  snprintf(folder, sizeof folder, "%s/quay-memory-XXXXXX", parent != NULL ? parent : "/tmp");
  cr_assert_not_null(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/file.safetensors", folder);
  json_set_alloc_funcs(allocate_for_jansson, free);
}

static void remove_folder(void) {
  unlink(path);
  cr_expect_eq(rmdir(folder), 0, "something else was left in %s", folder);
}

TestSuite(safetensors_memory, .init = make_folder, .fini = remove_folder);

static void write_file(const char *header, size_t size, size_t data_size) {
  FILE *file = fopen(path, "wb");
  cr_assert_not_null(file);
  for (size_t i = 0; i < 8; ++i)
    fputc((int)(size >> (8 * i) & 0xFF), file);
  cr_assert_eq(fwrite(header, 1, size, file), size);
  for (size_t i = 0; i < data_size; ++i)
    fputc((int)(1 + i * 37 % 255), file);
  cr_assert_eq(fclose(file), 0);
}

/* `succeeded` is set by the first attempt in which nothing failed. */
static void expect_out_of_memory(quay_status status, int n, bool *succeeded) {
  const bool nothing_failed = allocations_left >= 0;
  allocations_left = -1;
  if (nothing_failed) {
    cr_expect_eq(status, QUAY_OK, "allocation %d: %s", n, quay_last_error()->message);
    *succeeded = true;
    return;
  }
  cr_expect_eq(status, QUAY_STATUS_OUT_OF_HOST_MEMORY, "allocation %d: %s", n,
               quay_last_error()->message);
}

Test(safetensors_memory, a_right_file_is_never_called_malformed_because_memory_ran_out) {
  const char *header =
      "{\"__metadata__\":{\"a key of more than sixteen bytes\":\"\\u00e9 and more than sixteen\"},"
      "\"a name of more than thirty-two bytes, too\":"
      "{\"dtype\":\"F32\",\"shape\":[1,2,1000000000000,0],\"data_offsets\":[0,0]},"
      "\"b\":{\"dtype\":\"U8\",\"shape\":[100],\"data_offsets\":[0,100]}}";
  write_file(header, strlen(header), 100);
  bool succeeded = false;
  int n = 0;
  for (; n < 1000 && !succeeded; ++n) {
    quay_safetensors *file = NULL;
    allocations_left = n;
    expect_out_of_memory(quay_safetensors_open(path, NULL, &file), n, &succeeded);
    quay_safetensors_close(file);
  }
  cr_expect(succeeded);
  cr_expect_gt(n, 5);
}

Test(safetensors_memory, memory_that_runs_out_while_writing_is_called_so_and_leaves_no_file) {
  const int64_t shape[] = {3, 5};
  unsigned char bytes[15];
  for (size_t i = 0; i < sizeof bytes; ++i)
    bytes[i] = (unsigned char)(1 + i * 37 % 255);
  quay_buffer *buffer = NULL;
  cr_assert_eq(quay_buffer_create_from_host(NULL, QUAY_U8, 2, shape, bytes, NULL, &buffer),
               QUAY_OK);
  /* Enough of both for the tables of an object to grow. */
  enum {
    COUNT = 40
  };
  quay_safetensors_entry entries[COUNT];
  quay_safetensors_metadata pairs[COUNT];
  char names[COUNT][64];
  for (int i = 0; i < COUNT; ++i) {
    snprintf(names[i], sizeof names[i], "a name of more than thirty-two bytes, number %d", i);
    entries[i] = (quay_safetensors_entry){names[i], buffer};
    pairs[i] = (quay_safetensors_metadata){names[i], names[i]};
  }
  bool succeeded = false;
  int n = 0;
  for (; n < 20000 && !succeeded; ++n) {
    allocations_left = n;
    expect_out_of_memory(quay_safetensors_save(path, entries, COUNT, pairs, COUNT, NULL), n,
                         &succeeded);
    cr_expect_eq(access(path, F_OK) == 0, succeeded);
  }
  cr_expect(succeeded);
  cr_expect_gt(n, 100);
  quay_buffer_release(buffer);
}

Test(safetensors_memory, a_header_of_a_hundred_thousand_tensors_takes_few_times_its_own_size) {
#ifdef SANITIZED
  quay_test_skip("memory", "a sanitizer takes memory of its own");
#endif
  enum {
    COUNT = 100000,
    ENTRY_MAX = 112
  };
  char *header = malloc((size_t)COUNT * ENTRY_MAX);
  cr_assert_not_null(header);
  size_t used = 0;
  for (int i = 0; i < COUNT; ++i) {
    used += (size_t)snprintf(header + used, ENTRY_MAX,
                             "%c\"model.layers.%d.weight\":{\"dtype\":\"U8\",\"shape\":[1],"
                             "\"data_offsets\":[%d,%d]}",
                             i == 0 ? '{' : ',', i, i, i + 1);
  }
  header[used++] = '}';
  write_file(header, used, COUNT);
  free(header);
  struct rusage before, after;
  getrusage(RUSAGE_SELF, &before);
  quay_safetensors *file = NULL;
  cr_assert_eq(quay_safetensors_open(path, NULL, &file), QUAY_OK);
  getrusage(RUSAGE_SELF, &after);
  cr_expect_eq(quay_safetensors_count(file), (size_t)COUNT);
  quay_safetensors_close(file);
  /* Of the peak, in KiB; building the header above has grown it by as much already. */
  cr_expect_lt(after.ru_maxrss - before.ru_maxrss, (long)(3 * used / 1024));
}
