/* Any sequence of operations on buffers of several allocators, beside a model in plain memory: each
 * call answers what the model allows, and the bytes are the model's. */
#include <quay/quay.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum {
  HANDLES = 12,
  SIZE_MAXIMUM = 70000,
  ALLOCATORS = 4
};

/* A storage: its bytes, and which of them have a value. */
typedef struct model {
  uint64_t size;
  unsigned handles;
  bool allocated, sealed;
  uint8_t *bytes;
  uint8_t *known;
} model;

typedef struct handle {
  quay_buffer *buffer; /* NULL: the slot is empty */
  model *storage;
  uint64_t offset, size;
} handle;

typedef struct state {
  const uint8_t *data;
  size_t left;
  quay_allocator *const *allocators;
  handle handles[HANDLES];
} state;

/* Decisions. */

static uint32_t take(state *s, uint32_t limit) {
  uint32_t value = 0;
  for (uint32_t reach = 1; reach < limit && s->left > 0; reach <<= 8) {
    value = value << 8 | *s->data++;
    s->left--;
  }
  return limit > 0 ? value % limit : 0;
}

static handle *pick(state *s) {
  return &s->handles[take(s, HANDLES)];
}

/* Mostly within `limit`, now and then beyond or at the edge of the numbers. */
static uint64_t take_offset(state *s, uint64_t limit) {
  switch (take(s, 16)) {
  case 0:
    return UINT64_MAX - take(s, 256);
  case 1:
    return limit + take(s, 4);
  case 2:
    return limit;
  default:
    return take(s, (uint32_t)limit + 1);
  }
}

/* Answers. */

#define ALLOW(status) (1u << (status))

static void check_answer(quay_status status, uint32_t allowed) {
  CHECK((ALLOW(status) & allowed) != 0);
  CHECK(status == QUAY_OK || quay_last_error()->status == status);
}

/* Errors of which at least one must come; none: success must come, unless `may` names others. */
static void check_status(quay_status status, uint32_t must, uint32_t may) {
  check_answer(status, must != 0 ? must | may : ALLOW(QUAY_OK) | may);
}

static uint32_t write_errors(const handle *h) {
  return h->storage->sealed && h->size > 0 ? ALLOW(QUAY_STATUS_READ_ONLY) : 0;
}

static uint32_t read_errors(const handle *h) {
  return !h->storage->allocated && h->size > 0 ? ALLOW(QUAY_STATUS_NOT_ALLOCATED) : 0;
}

/* What an empty window may answer: it is a no-op, of which the arguments are still checked. */
static uint32_t empty_errors(const handle *h) {
  return (h->storage->sealed ? ALLOW(QUAY_STATUS_READ_ONLY) : 0) |
         (!h->storage->allocated ? ALLOW(QUAY_STATUS_NOT_ALLOCATED) : 0);
}

static void sync_allocated(const handle *h) {
  if (h->size == 0 && quay_buffer_is_allocated(h->buffer))
    h->storage->allocated = true;
  CHECK(quay_buffer_is_allocated(h->buffer) == h->storage->allocated);
}

/* Handles. */

static void drop(handle *h) {
  if (h->buffer == NULL)
    return;
  quay_buffer_release(h->buffer);
  if (--h->storage->handles == 0) {
    free(h->storage->bytes);
    free(h->storage->known);
    free(h->storage);
  }
  *h = (handle){.buffer = NULL};
}

static void put(handle *h, quay_buffer *buffer, model *storage, uint64_t offset, uint64_t size) {
  drop(h);
  *h = (handle){.buffer = buffer, .storage = storage, .offset = offset, .size = size};
  storage->handles++;
}

static void create(state *s, handle *h, bool lazy) {
  quay_allocator *allocator = s->allocators[take(s, ALLOCATORS)];
  const uint64_t size = take(s, take(s, 16) != 0 ? 300 : SIZE_MAXIMUM);
  const int64_t shape[] = {(int64_t)size};
  const quay_alloc_options options = {.zeroed = take(s, 2) != 0, .alignment = 1u << take(s, 14)};
  quay_buffer *buffer = NULL;
  const quay_status status =
      lazy ? quay_buffer_create_lazy(allocator, QUAY_U8, 1, shape, &options, &buffer)
           : quay_buffer_create(allocator, QUAY_U8, 1, shape, &options, &buffer);
  CHECK(status == QUAY_OK);
  model *storage = calloc(1, sizeof *storage);
  storage->size = size;
  storage->allocated = !lazy;
  storage->bytes = calloc(1, size + 1);
  storage->known = malloc(size + 1);
  memset(storage->known, options.zeroed, size + 1);
  put(h, buffer, storage, 0, size);
}

static void view(state *s, handle *h, handle *to) {
  const uint64_t offset = take_offset(s, h->size);
  const uint64_t size = take_offset(s, offset <= h->size ? h->size - offset : 0);
  quay_buffer *buffer = NULL;
  const bool fits = offset <= h->size && size <= h->size - offset;
  check_status(quay_buffer_view(h->buffer, offset, size, &buffer),
               fits ? 0 : ALLOW(QUAY_STATUS_OUT_OF_RANGE), 0);
  if (!fits)
    return;
  CHECK(quay_buffer_offset(buffer) == h->offset + offset);
  CHECK(quay_buffer_storage_id(buffer) == quay_buffer_storage_id(h->buffer));
  model *storage = h->storage;
  storage->handles++; /* `to` may be its last handle */
  put(to, buffer, storage, h->offset + offset, size);
  storage->handles--;
}

/* Writing and reading. */

static void learn(const handle *h, uint64_t offset, const uint8_t *bytes, uint64_t size) {
  memcpy(h->storage->bytes + h->offset + offset, bytes, size);
  memset(h->storage->known + h->offset + offset, 1, size);
}

static void copy_in(state *s, const handle *h) {
  const uint64_t size = take(s, 8) == 0 ? h->size + 1 : h->size;
  uint8_t *bytes = malloc(size + 1);
  uint32_t seed = take(s, 65536) * 2654435761u + 12345;
  for (uint64_t i = 0; i < size; i++) {
    seed = seed * 1664525u + 1013904223u;
    bytes[i] = (uint8_t)(seed >> 24);
  }
  const uint32_t must = write_errors(h) | (size != h->size ? ALLOW(QUAY_STATUS_SIZE_MISMATCH) : 0);
  const quay_status status = quay_buffer_copy_in(h->buffer, bytes, size);
  check_status(status, must, h->size == 0 ? empty_errors(h) : 0);
  if (status == QUAY_OK && size > 0) {
    h->storage->allocated = true;
    learn(h, 0, bytes, size);
  }
  sync_allocated(h);
  free(bytes);
}

static void fill(state *s, const handle *h) {
  const size_t pattern_size = take(s, 18);
  uint8_t pattern[18];
  for (size_t i = 0; i < sizeof pattern; i++)
    pattern[i] = (uint8_t)take(s, 256);
  const bool known_size = pattern_size == 1 || pattern_size == 2 || pattern_size == 4 ||
                          pattern_size == 8 || pattern_size == 16;
  uint32_t must = write_errors(h);
  if (!known_size)
    must |= ALLOW(QUAY_STATUS_INVALID_ARGUMENT);
  else if (h->size % pattern_size != 0)
    must |= ALLOW(QUAY_STATUS_SIZE_MISMATCH);
  const quay_status status = quay_buffer_fill(h->buffer, pattern, pattern_size);
  check_status(status, must, h->size == 0 ? empty_errors(h) : 0);
  if (status == QUAY_OK && h->size > 0) {
    h->storage->allocated = true;
    for (uint64_t i = 0; i < h->size; i += pattern_size)
      learn(h, i, pattern, pattern_size);
  }
  sync_allocated(h);
}

static void copy_region(const handle *to, uint64_t to_offset, const handle *from,
                        uint64_t from_offset, uint64_t size, bool whole) {
  const bool fits = to_offset <= to->size && size <= to->size - to_offset &&
                    from_offset <= from->size && size <= from->size - from_offset;
  uint32_t must = 0;
  if (whole && to->size != from->size)
    must |= ALLOW(QUAY_STATUS_SIZE_MISMATCH);
  if (!whole && !fits)
    must |= ALLOW(QUAY_STATUS_OUT_OF_RANGE);
  uint32_t state_errors = (to->storage->sealed ? ALLOW(QUAY_STATUS_READ_ONLY) : 0) |
                          (!from->storage->allocated ? ALLOW(QUAY_STATUS_NOT_ALLOCATED) : 0);
  if (size > 0)
    must |= state_errors;
  const quay_status status =
      whole ? quay_buffer_copy_from(to->buffer, from->buffer)
            : quay_buffer_copy_region(to->buffer, to_offset, from->buffer, from_offset, size, NULL);
  check_status(status, must, state_errors);
  if (status == QUAY_OK && size > 0) {
    to->storage->allocated = true;
    memmove(to->storage->bytes + to->offset + to_offset,
            from->storage->bytes + from->offset + from_offset, size);
    memmove(to->storage->known + to->offset + to_offset,
            from->storage->known + from->offset + from_offset, size);
  }
  if (size == 0 && quay_buffer_is_allocated(to->buffer))
    to->storage->allocated = true;
}

static void check_bytes(const handle *h, const uint8_t *found) {
  const uint8_t *bytes = h->storage->bytes + h->offset;
  const uint8_t *known = h->storage->known + h->offset;
  for (uint64_t i = 0; i < h->size; i++)
    CHECK(!known[i] || found[i] == bytes[i]);
}

static void copy_out(const handle *h) {
  uint8_t *found = malloc(h->size + 1);
  const quay_status status = quay_buffer_copy_out(h->buffer, found, h->size);
  check_status(status, read_errors(h), h->size == 0 ? empty_errors(h) : 0);
  if (status == QUAY_OK)
    check_bytes(h, found);
  free(found);
}

static void host_access(state *s, const handle *h) {
  if (take(s, 2) == 0) {
    const void *bytes = NULL;
    const quay_status status = quay_buffer_host_bytes(h->buffer, &bytes, NULL);
    check_status(status, h->storage->allocated ? 0 : ALLOW(QUAY_STATUS_NOT_ALLOCATED), 0);
    if (status == QUAY_OK)
      check_bytes(h, bytes);
    return;
  }
  void *bytes = NULL;
  const quay_status status = quay_buffer_host_bytes_mut(h->buffer, &bytes, NULL);
  check_status(status, h->storage->sealed ? ALLOW(QUAY_STATUS_READ_ONLY) : 0, 0);
  if (status != QUAY_OK)
    return;
  h->storage->allocated = true;
  if (h->size > 0) {
    const uint64_t at = take(s, (uint32_t)h->size);
    ((uint8_t *)bytes)[at] = 0xc3;
    learn(h, at, (const uint8_t[]){0xc3}, 1);
  }
}

static void seal(const handle *h) {
  const quay_status status = quay_buffer_seal(h->buffer);
  check_status(status, h->storage->allocated ? 0 : ALLOW(QUAY_STATUS_NOT_ALLOCATED), 0);
  if (status == QUAY_OK)
    h->storage->sealed = true;
  CHECK(quay_buffer_is_sealed(h->buffer) == h->storage->sealed);
}

/* Takes the raw buffer out and puts it into a new buffer, whose storage is not sealed. */
static void change_storage(handle *h) {
  quay_raw_buffer raw;
  const int64_t shape[] = {(int64_t)h->storage->size};
  uint32_t must = h->storage->allocated ? 0 : ALLOW(QUAY_STATUS_NOT_ALLOCATED);
  if (h->storage->handles > 1)
    must |= ALLOW(QUAY_STATUS_BUSY);
  quay_allocator *owner = quay_allocator_retain(quay_buffer_allocator(h->buffer));
  const quay_status status = quay_buffer_release_raw(&h->buffer, &raw);
  check_status(status, must, 0);
  if (status == QUAY_OK) {
    CHECK(h->buffer == NULL);
    CHECK(quay_raw_buffer_size(&raw) == h->storage->size);
    CHECK(quay_buffer_from_raw(&raw, QUAY_U8, 1, shape, &h->buffer) == QUAY_OK);
    h->offset = 0;
    h->size = h->storage->size;
    h->storage->sealed = false;
  }
  quay_allocator_release(owner);
}

static void step(state *s) {
  handle *h = pick(s);
  const uint32_t operation = take(s, 12);
  if (h->buffer == NULL || operation == 0) {
    create(s, h, take(s, 2) != 0);
    return;
  }
  const handle *other = pick(s);
  if (other->buffer == NULL)
    other = h;
  switch (operation) {
  case 1:
    view(s, h, pick(s));
    return;
  case 2:
    drop(h);
    return;
  case 3:
    copy_in(s, h);
    return;
  case 4:
    fill(s, h);
    return;
  case 5:
    copy_region(h, 0, other, 0, h->size == other->size ? h->size : 0, true);
    return;
  case 6: {
    const uint64_t to = take_offset(s, h->size);
    const uint64_t from = take_offset(s, other->size);
    const uint64_t room = to <= h->size ? h->size - to : 0;
    copy_region(h, to, other, from, take_offset(s, room), false);
    return;
  }
  case 7:
    host_access(s, h);
    return;
  case 8:
    if (take(s, 4) == 0)
      seal(h);
    return;
  case 9:
    CHECK(quay_buffer_ensure_allocated(h->buffer) == QUAY_OK);
    h->storage->allocated = true;
    return;
  case 10:
    change_storage(h);
    return;
  default:
    copy_out(h);
  }
}

/* Opened once and kept. */
static quay_allocator *const *open_allocators(void) {
  static quay_allocator *allocators[ALLOCATORS];
  /* Files in memory where there are such: a disk would be most of the time. */
  const bool shared_memory = access("/dev/shm", W_OK) == 0;
  const char *const specs[ALLOCATORS] = {"cpu", "track+cpu",
                                         shared_memory ? "track+mmap:/dev/shm" : "track+mmap:/tmp",
                                         "track+pool:keep=tight+cpu"};
  for (size_t i = 0; i < ALLOCATORS; i++) {
    if (allocators[i] == NULL)
      CHECK(quay_allocator_open(specs[i], &allocators[i]) == QUAY_OK);
  }
  return allocators;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  state s = {.data = data, .left = size, .allocators = open_allocators()};
  while (s.left > 0)
    step(&s);
  for (size_t i = 0; i < HANDLES; i++) {
    if (s.handles[i].buffer != NULL)
      copy_out(&s.handles[i]);
    drop(&s.handles[i]);
  }
  for (size_t i = 0; i < ALLOCATORS; i++) {
    quay_stats stats;
    CHECK(quay_allocator_stats(s.allocators[i], &stats) == QUAY_OK);
    CHECK(stats.live_count == 0 && stats.live_bytes == 0 && stats.error_count == 0);
  }
  return 0;
}
