/* Measuring for quay matrix: raw limits, and copies between every two places. Each figure is the
 * median of a few runs after one that does not count; files are unlinked while they are used. */
#include "matrix_measure.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "signals.h"

/* Runs that count, and what is read back and compared, or read and written raw, at a time. */
enum {
  RUNS = 5,
  BLOCK = 4 << 20,
};

/* One thing to measure: returns false if it failed, which has been printed. */
typedef bool (*work)(void *context);

static int compare_seconds(const void *a, const void *b) {
  const double left = *(const double *)a, right = *(const double *)b;
  return (left > right) - (left < right);
}

/* GB/s of moving `size` bytes; below 0 if it failed. */
static double measure(work run, void *context, uint64_t size) {
  double seconds[RUNS];
  for (int i = -1; i < RUNS; ++i) {
    const double begin = now_seconds();
    if (!run(context))
      return -1;
    if (i >= 0)
      seconds[i] = now_seconds() - begin;
  }
  qsort(seconds, RUNS, sizeof seconds[0], compare_seconds);
  const double median = seconds[RUNS / 2];
  return median > 0 ? (double)size / median * 1e-9 : 0;
}

/* Bytes of a fixed sequence (Sebastiano Vigna's splitmix64), never the same twice in a row. */
static void make_bytes(unsigned char *bytes, uint64_t size) {
  uint64_t state = 42;
  for (uint64_t at = 0; at < size; at += sizeof(uint64_t)) {
    uint64_t mixed = state += UINT64_C(0x9e3779b97f4a7c15);
    mixed = (mixed ^ (mixed >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    mixed = (mixed ^ (mixed >> 27)) * UINT64_C(0x94d049bb133111eb);
    mixed ^= mixed >> 31;
    const uint64_t part = size - at < sizeof mixed ? size - at : sizeof mixed;
    memcpy(bytes + at, &mixed, part);
  }
}

/* Files. */

static const char *temporary_folder(void) {
  const char *folder = getenv("TMPDIR");
  return folder != NULL && folder[0] != '\0' ? folder : "/tmp";
}

/* The path of a new, empty file in that folder; false with errno set. Signals are caught as long as
 * it has a name. */
static bool make_path(char *out_path, size_t size) {
  if (snprintf(out_path, size, "%s/quay-matrix-XXXXXX", temporary_folder()) >= (int)size) {
    errno = ENAMETOOLONG;
    return false;
  }
  signals_catch();
  const int file = mkstemp(out_path);
  if (file >= 0)
    return close(file) == 0;
  const int error = errno;
  signals_release();
  errno = error;
  return false;
}

static void take_name(const char *path) {
  (void)unlink(path);
  signals_release();
}

static exit_status fail_file(const char *what) {
  return fail(
      "matrix: cannot %s a temporary file in '%s': %s; set TMPDIR to a folder with room that "
      "may be written to",
      what, temporary_folder(), strerror(errno));
}

/* A writable mapping of a new file that has no name any more. */
static quay_buffer *map_new_file(uint64_t size) {
  char path[4096];
  if (!make_path(path, sizeof path)) {
    (void)fail_file("create");
    return NULL;
  }
  quay_buffer *buffer = NULL;
  const quay_file_options options = {.replace = true};
  if (quay_file_create(path, size, &options, &buffer) != QUAY_OK)
    (void)fail_quay();
  take_name(path);
  return buffer;
}

/* Limits. */

typedef struct raw_copy {
  unsigned char *to;
  const unsigned char *from;
  uint64_t size;
  int file;
} raw_copy;

static bool copy_memory(void *context) {
  const raw_copy *copy = context;
  memcpy(copy->to, copy->from, copy->size);
  return true;
}

static bool read_file(void *context) {
  const raw_copy *copy = context;
  for (uint64_t at = 0; at < copy->size;) {
    const uint64_t part = copy->size - at < BLOCK ? copy->size - at : BLOCK;
    const ssize_t got = pread(copy->file, copy->to + at, part, (off_t)at);
    if (got <= 0) {
      (void)fail_file("read");
      return false;
    }
    at += (uint64_t)got;
  }
  return true;
}

static bool write_file(void *context) {
  const raw_copy *copy = context;
  for (uint64_t at = 0; at < copy->size;) {
    const uint64_t part = copy->size - at < BLOCK ? copy->size - at : BLOCK;
    const ssize_t put = pwrite(copy->file, copy->from + at, part, (off_t)at);
    if (put <= 0) {
      (void)fail_file("write");
      return false;
    }
    at += (uint64_t)put;
  }
  return true;
}

static bool add_limit(matrix_result *result, const char *name, double gbps) {
  if (gbps < 0 || result->limit_count == MATRIX_LIMITS_MAX)
    return gbps >= 0;
  matrix_limit *limit = &result->limits[result->limit_count++];
  snprintf(limit->name, sizeof limit->name, "%s", name);
  limit->gbps = gbps;
  return true;
}

static double limit_of(const matrix_result *result, const char *name) {
  for (size_t i = 0; i < result->limit_count; ++i) {
    if (strcmp(result->limits[i].name, name) == 0)
      return result->limits[i].gbps;
  }
  return 0;
}

static bool measure_file(matrix_result *result, raw_copy *copy) {
  char path[4096];
  if (!make_path(path, sizeof path)) {
    (void)fail_file("create");
    return false;
  }
  copy->file = open(path, O_RDWR | O_CLOEXEC);
  const int error = errno;
  take_name(path);
  if (copy->file < 0) {
    errno = error;
    (void)fail_file("open");
    return false;
  }
  const bool good = add_limit(result, "pwrite", measure(write_file, copy, copy->size)) &&
                    add_limit(result, "pread", measure(read_file, copy, copy->size));
  (void)close(copy->file);
  return good;
}

static exit_status fail_size(uint64_t size) {
  return fail("matrix: no memory for %" PRIu64 " bytes, of which several times as many are needed; "
              "try a smaller --size",
              size);
}

static exit_status measure_host(matrix_result *result, const unsigned char *bytes) {
  void *memory = NULL;
  const size_t alignment = 2 << 20;
  if (posix_memalign(&memory, alignment, result->size) != 0)
    return fail_size(result->size);
  raw_copy copy = {.to = memory, .from = bytes, .size = result->size, .file = -1};
  const bool good = add_limit(result, "memcpy", measure(copy_memory, &copy, copy.size)) &&
                    measure_file(result, &copy);
  free(memory);
  return good ? EXIT_DONE : EXIT_FAILED;
}

typedef struct buffer_copy {
  quay_buffer *to, *from;
} buffer_copy;

static bool copy_buffer(void *context) {
  const buffer_copy *copy = context;
  if (quay_buffer_copy_from(copy->to, copy->from) == QUAY_OK)
    return true;
  (void)fail_quay();
  return false;
}

static quay_status new_buffer(quay_allocator *allocator, uint64_t size, quay_buffer **out_buffer) {
  const int64_t shape[] = {(int64_t)size};
  QUAY_TRY(quay_buffer_create(allocator, QUAY_U8, 1, shape, NULL, out_buffer));
  return quay_buffer_fill(*out_buffer, "\xa5", 1); /* touches all of it */
}

/* The driver's copy between page-locked memory and the device, which the library does by one call
 * of it. */
static bool measure_link(matrix_result *result, quay_allocator *device, quay_allocator *pinned,
                         const char *name) {
  quay_buffer *there = NULL, *here = NULL;
  bool good = new_buffer(device, result->size, &there) == QUAY_OK &&
              new_buffer(pinned, result->size, &here) == QUAY_OK;
  if (!good)
    (void)fail_quay();
  char text[96];
  snprintf(text, sizeof text, "%s in", name);
  buffer_copy in = {.to = there, .from = here}, out = {.to = here, .from = there};
  good = good && add_limit(result, text, measure(copy_buffer, &in, result->size));
  snprintf(text, sizeof text, "%s out", name);
  good = good && add_limit(result, text, measure(copy_buffer, &out, result->size));
  quay_buffer_release(there);
  quay_buffer_release(here);
  return good;
}

static bool is_cuda(const matrix_place *place) {
  return place->allocator != NULL &&
         quay_device_type(quay_allocator_device(place->allocator)) == QUAY_DEVICE_CUDA;
}

static exit_status measure_links(matrix_result *result) {
  for (size_t i = 0; i < result->place_count; ++i) {
    if (!is_cuda(&result->places[i]))
      continue;
    const char *name = quay_device_name(quay_allocator_device(result->places[i].allocator));
    char text[96];
    snprintf(text, sizeof text, "%s in", name);
    if (limit_of(result, text) > 0)
      continue;
    snprintf(text, sizeof text, "%s,memory=pinned", name);
    quay_allocator *device = NULL, *pinned = NULL;
    bool good = quay_allocator_open(name, &device) == QUAY_OK &&
                quay_allocator_open(text, &pinned) == QUAY_OK;
    if (!good)
      (void)fail_quay();
    good = good && measure_link(result, device, pinned, name);
    quay_allocator_release(pinned);
    quay_allocator_release(device);
    if (!good)
      return EXIT_FAILED;
  }
  return EXIT_DONE;
}

/* Pairs. */

static bool is_on_device(const matrix_place *place) {
  return is_cuda(place) && quay_allocator_kind(place->allocator) != QUAY_MEMORY_PINNED;
}

static bool is_file(const matrix_place *place) {
  return place->allocator == NULL || quay_allocator_kind(place->allocator) == QUAY_MEMORY_FILE;
}

static double lower(double a, double b) {
  return a < b ? a : b;
}

/* What the slower side allows; 0 where nothing raw stands beside it: within a device, and between
 * two that are peers. */
static double limit_of_pair(const matrix_result *result, const matrix_place *from,
                            const matrix_place *to, quay_route route) {
  char in[96] = "memcpy", out[96] = "memcpy";
  const bool both = is_on_device(from) && is_on_device(to);
  if ((both && route != QUAY_ROUTE_STAGED) ||
      (from->allocator != NULL &&
       quay_device_type(quay_allocator_device(from->allocator)) == QUAY_DEVICE_VULKAN) ||
      (to->allocator != NULL &&
       quay_device_type(quay_allocator_device(to->allocator)) == QUAY_DEVICE_VULKAN))
    return 0;
  if (is_on_device(from))
    snprintf(out, sizeof out, "%s out", quay_device_name(quay_allocator_device(from->allocator)));
  if (is_on_device(to))
    snprintf(in, sizeof in, "%s in", quay_device_name(quay_allocator_device(to->allocator)));
  if (is_on_device(from) != is_on_device(to))
    return limit_of(result, is_on_device(from) ? out : in);
  if (is_file(from))
    snprintf(out, sizeof out, "pread");
  if (is_file(to))
    snprintf(in, sizeof in, "pwrite");
  return is_file(from) == is_file(to) || both ? lower(limit_of(result, in), limit_of(result, out))
                                              : limit_of(result, is_file(from) ? out : in);
}

static quay_buffer *make_buffer(const matrix_place *place, uint64_t size) {
  if (place->allocator == NULL)
    return map_new_file(size);
  quay_buffer *buffer = NULL;
  if (new_buffer(place->allocator, size, &buffer) == QUAY_OK)
    return buffer;
  (void)fail_quay();
  quay_buffer_release(buffer);
  return NULL;
}

/* Reads the buffer back and compares every byte. */
static bool check_bytes(quay_buffer *buffer, const unsigned char *bytes, const char *from,
                        const char *to) {
  const uint64_t size = quay_buffer_size(buffer);
  unsigned char *block = malloc(BLOCK);
  if (block == NULL) {
    (void)fail_memory();
    return false;
  }
  bool good = true;
  for (uint64_t at = 0; at < size && good; at += BLOCK) {
    const uint64_t part = size - at < BLOCK ? size - at : BLOCK;
    quay_buffer *window = NULL;
    good = quay_buffer_view(buffer, at, part, &window) == QUAY_OK &&
           quay_buffer_copy_out(window, block, part) == QUAY_OK;
    quay_buffer_release(window);
    if (!good) {
      (void)fail_quay();
    } else if (memcmp(block, bytes + at, part) != 0) {
      good = false;
      (void)fail("the copy from %s to %s has wrong bytes from %" PRIu64 " to %" PRIu64, from, to,
                 at, at + part);
    }
  }
  free(block);
  return good;
}

/* What is too small for the buffers of a copy is told before anything is measured. */
static exit_status check_room(const matrix_result *result) {
  for (size_t i = 0; i < result->place_count; ++i) {
    const int64_t shape[] = {(int64_t)result->size};
    quay_allocator *allocator = result->places[i].allocator;
    if (allocator == NULL)
      continue; /* a file of zeros would be written */
    quay_buffer *one = NULL, *other = NULL;
    const bool good = quay_buffer_create(allocator, QUAY_U8, 1, shape, NULL, &one) == QUAY_OK &&
                      quay_buffer_create(allocator, QUAY_U8, 1, shape, NULL, &other) == QUAY_OK;
    if (!good)
      (void)fail_quay();
    quay_buffer_release(one);
    quay_buffer_release(other);
    if (!good)
      return EXIT_FAILED;
  }
  return EXIT_DONE;
}

static exit_status measure_pair(matrix_result *result, const unsigned char *bytes,
                                const matrix_place *from, const matrix_place *to,
                                matrix_pair *pair) {
  buffer_copy copy = {.from = make_buffer(from, result->size)};
  if (copy.from != NULL)
    copy.to = make_buffer(to, result->size);
  quay_copy_plan_info plan;
  bool good = copy.from != NULL && copy.to != NULL;
  if (good && (quay_buffer_copy_in(copy.from, bytes, result->size) != QUAY_OK ||
               quay_copy_plan(copy.to, 0, copy.from, 0, result->size, NULL, &plan) != QUAY_OK)) {
    (void)fail_quay();
    good = false;
  }
  if (good) {
    pair->gbps = measure(copy_buffer, &copy, result->size);
    pair->route = plan.route;
    pair->limit = limit_of_pair(result, from, to, plan.route);
    good = pair->gbps >= 0 && check_bytes(copy.to, bytes, from->name, to->name);
  }
  quay_buffer_release(copy.from);
  quay_buffer_release(copy.to);
  return good ? EXIT_DONE : EXIT_FAILED;
}

static exit_status measure_pairs(matrix_result *result, const unsigned char *bytes) {
  const size_t count = result->place_count;
  for (size_t i = 0; i < count * count; ++i) {
    const exit_status status = measure_pair(result, bytes, &result->places[i / count],
                                            &result->places[i % count], &result->pairs[i]);
    if (status != EXIT_DONE)
      return status;
  }
  return EXIT_DONE;
}

exit_status matrix_measure(matrix_result *result) {
  exit_status status = check_room(result);
  if (status != EXIT_DONE)
    return status;
  void *memory = NULL;
  if (posix_memalign(&memory, 2 << 20, result->size) != 0)
    return fail_size(result->size);
  make_bytes(memory, result->size);
  status = measure_host(result, memory);
  if (status == EXIT_DONE)
    status = measure_links(result);
  if (status == EXIT_DONE)
    status = measure_pairs(result, memory);
  free(memory);
  return status;
}
