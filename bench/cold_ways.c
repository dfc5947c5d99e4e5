/* The ways to read a file into memory that bench_cold compares. What it does with them is in
 * cold.c. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "cold.h"

#ifdef COLD_HAS_URING
#include <liburing.h>
#endif

enum {
  THREADS_MAX = 64
};

/* One request of readahead(2): the kernel shortens longer ones to the device's read-ahead. */
#define AHEAD_STEP (128 * KIB)

/* One reading, by several threads. */
typedef struct reading {
  const cold_file *file;
  const cold_way *way;
  int descriptor;
  atomic_uint_fast64_t next;  /* where the next chunk begins */
  atomic_uint_fast64_t asked; /* up to where readahead(2) was called */
} reading;

typedef struct part {
  reading *of;
  uint64_t begin, end;
} part;

static const char *kind_name(cold_kind kind) {
  switch (kind) {
  case COLD_BUFFERED:
    return "pread";
  case COLD_AHEAD:
    return "pread, read ahead";
  case COLD_DIRECT:
    return "direct pread";
  case COLD_URING:
    return "io_uring";
  case COLD_URING_DIRECT:
    return "direct io_uring";
  case COLD_QUAY:
    return "quay";
  case COLD_QUAY_DIRECT:
    return "quay, direct";
  case COLD_KINDS:
    break;
  }
  return "";
}

void cold_name(const cold_way *way, char *out_name, size_t size) {
  if (way->kind == COLD_QUAY || way->kind == COLD_QUAY_DIRECT) {
    snprintf(out_name, size, "%s", kind_name(way->kind));
    return;
  }
  const char *advice = way->advice == POSIX_FADV_SEQUENTIAL ? ", sequential"
                       : way->advice == POSIX_FADV_WILLNEED ? ", willneed"
                                                            : "";
  char ahead[32] = "";
  if (way->ahead != 0)
    snprintf(ahead, sizeof ahead, " %llu MiB", (unsigned long long)(way->ahead / MIB));
  snprintf(out_name, size, "%s%s, %u x %llu KiB%s%s%s", kind_name(way->kind), ahead, way->threads,
           (unsigned long long)(way->chunk / KIB), way->parts ? ", parts" : "",
           way->own ? ", own" : "", advice);
}

static bool is_direct(const cold_way *way) {
  return way->kind == COLD_DIRECT || way->kind == COLD_URING_DIRECT;
}

static int open_file(const reading *of) {
  const int direct = is_direct(of->way) ? O_DIRECT : 0;
  const int descriptor = open(of->file->path, O_RDONLY | O_CLOEXEC | direct);
  if (descriptor < 0)
    cold_fail("opening the file");
  return descriptor;
}

static void read_range(const reading *of, int descriptor, uint64_t offset, uint64_t size) {
  while (size != 0) {
    const ssize_t got = pread(descriptor, of->file->memory + offset, size, (off_t)offset);
    if (got < 0 && errno == EINTR)
      continue;
    if (got <= 0)
      cold_fail("reading");
    offset += (uint64_t)got;
    size -= (uint64_t)got;
  }
}

/* Whoever comes first asks for the next bytes, up to the distance ahead of `offset`. */
static void ask_ahead(reading *of, uint64_t offset) {
  const uint64_t wanted = offset + of->way->ahead;
  const uint64_t end = wanted < of->file->size ? wanted : of->file->size;
  uint64_t at = atomic_load(&of->asked);
  while (at < end) {
    if (!atomic_compare_exchange_weak(&of->asked, &at, at + AHEAD_STEP))
      continue;
    (void)readahead(of->descriptor, (off_t)at, AHEAD_STEP);
    at = atomic_load(&of->asked);
  }
}

static void *read_part(void *argument) {
  const part *own = argument;
  reading *of = own->of;
  const int descriptor = of->way->own ? open_file(of) : of->descriptor;
  const uint64_t chunk = of->way->chunk, size = of->file->size;
  if (of->way->parts) {
    for (uint64_t at = own->begin; at < own->end; at += chunk)
      read_range(of, descriptor, at, own->end - at < chunk ? own->end - at : chunk);
  } else {
    for (uint64_t at; (at = atomic_fetch_add(&of->next, chunk)) < size;) {
      if (of->way->ahead != 0)
        ask_ahead(of, at);
      read_range(of, descriptor, at, size - at < chunk ? size - at : chunk);
    }
  }
  if (of->way->own)
    (void)close(descriptor);
  return NULL;
}

static void read_by_threads(reading *of) {
  const uint32_t threads = of->way->threads;
  const uint64_t each = of->file->size / threads / (4 * KIB) * (4 * KIB);
  part parts[THREADS_MAX];
  pthread_t handles[THREADS_MAX];
  for (uint32_t i = 0; i < threads; i++) {
    const uint64_t end = i == threads - 1 ? of->file->size : (i + 1) * each;
    parts[i] = (part){.of = of, .begin = i * each, .end = end};
    if (i != 0 && pthread_create(&handles[i], NULL, read_part, &parts[i]) != 0)
      cold_fail("starting a thread");
  }
  (void)read_part(&parts[0]);
  for (uint32_t i = 1; i < threads; i++)
    (void)pthread_join(handles[i], NULL);
}

#ifdef COLD_HAS_URING
bool cold_has_uring(void) {
  struct io_uring ring;
  if (io_uring_queue_init(4, &ring, 0) < 0)
    return false;
  io_uring_queue_exit(&ring);
  return true;
}

/* Keeps so many requests of a chunk under way. What comes short is read by pread. */
static void read_by_uring(reading *of) {
  struct io_uring ring;
  if (io_uring_queue_init(of->way->threads, &ring, 0) < 0)
    cold_fail("io_uring");
  const uint64_t chunk = of->way->chunk, size = of->file->size;
  uint64_t next = 0;
  for (uint32_t under_way = 0; next < size || under_way != 0;) {
    while (next < size && under_way < of->way->threads) {
      struct io_uring_sqe *request = io_uring_get_sqe(&ring);
      if (request == NULL)
        cold_fail("io_uring");
      const uint64_t length = size - next < chunk ? size - next : chunk;
      io_uring_prep_read(request, of->descriptor, of->file->memory + next, (unsigned)length, next);
      io_uring_sqe_set_data64(request, next);
      next += length;
      under_way++;
    }
    struct io_uring_cqe *done = NULL;
    if (io_uring_submit_and_wait(&ring, 1) < 0 || io_uring_wait_cqe(&ring, &done) != 0)
      cold_fail("io_uring");
    const uint64_t at = io_uring_cqe_get_data64(done);
    const uint64_t length = size - at < chunk ? size - at : chunk;
    if (done->res < 0)
      cold_fail("reading with io_uring");
    if ((uint64_t)done->res < length)
      read_range(of, of->descriptor, at + (uint64_t)done->res, length - (uint64_t)done->res);
    io_uring_cqe_seen(&ring, done);
    under_way--;
  }
  io_uring_queue_exit(&ring);
}
#else
bool cold_has_uring(void) {
  return false;
}

static void read_by_uring(reading *of) {
  (void)of;
  cold_fail("io_uring was not there when this was built");
}
#endif

static double read_by_quay(const cold_file *file, bool direct) {
  const quay_map_options options = {.direct = direct};
  quay_buffer *mapped = NULL;
  if (quay_map_file(file->path, &options, &mapped) != QUAY_OK)
    cold_fail(quay_last_error()->message);
  const double began = cold_now();
  if (quay_buffer_copy_region(file->destination, 0, mapped, 0, file->size, NULL) != QUAY_OK)
    cold_fail(quay_last_error()->message);
  const double seconds = cold_now() - began;
  quay_buffer_release(mapped);
  return seconds;
}

double cold_read(const cold_file *file, const cold_way *way) {
  if (way->kind == COLD_QUAY || way->kind == COLD_QUAY_DIRECT)
    return read_by_quay(file, way->kind == COLD_QUAY_DIRECT);
  reading of = {.file = file, .way = way};
  of.descriptor = open_file(&of);
  const double began = cold_now();
  if (way->advice != POSIX_FADV_NORMAL)
    (void)posix_fadvise(of.descriptor, 0, 0, way->advice);
  if (way->kind == COLD_URING || way->kind == COLD_URING_DIRECT) {
    read_by_uring(&of);
  } else {
    read_by_threads(&of);
  }
  const double seconds = cold_now() - began;
  (void)close(of.descriptor);
  return seconds;
}
