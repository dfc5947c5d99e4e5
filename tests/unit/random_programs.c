/* Random programs of copies, fills, kernels, views, host accesses and frees on several streams and
 * devices, run late and out of step. Each step is done on plain arrays as well, in order; the bytes
 * must be the same, and the detector must find nothing unordered. */
#include <stdlib.h>

#include "late_core.h"

enum {
  HANDLES = 14,
  STREAMS = 6, /* two for each device */
  STEPS = 60,
  BYTES = 48,
  USES = 3
};

static uint64_t random_state;
static uint64_t program_seed; /* printed when a program fails */

static uint64_t below(uint64_t bound) {
  random_state = random_state * 6364136223846793005u + 1442695040888963407u;
  return (random_state >> 33) % bound;
}

static bool chance(uint64_t percent) {
  return below(100) < percent;
}

#define DO(expression)                                                                          \
  do {                                                                                          \
    const quay_status do_status_ = (expression);                                                \
    cr_assert_eq(do_status_, QUAY_OK, "program %llu: %s: %s", (unsigned long long)program_seed, \
                 #expression, quay_last_error()->message);                                      \
  } while (0)

/* The bytes of a storage as they are when everything runs in order. */
typedef struct model {
  unsigned char bytes[BYTES];
  unsigned references;
} model;

/* One buffer, a base or a view. */
typedef struct handle {
  quay_buffer *buffer; /* NULL: free place */
  model *model;
  uint64_t offset, size;
  int device; /* -1: the host's */
  bool pinned;
} handle;

static const struct {
  const char *spec;
  int device;
  bool pinned;
} places[] = {
    {"late:0", 0, false},
    {"late:1", 1, false},
    {"late:2", 2, false},
    {"track+late:0", 0, false},
    {"late:0,memory=pinned", 0, true},
    {"late:1,memory=pinned", 1, true},
    {"cpu", -1, false},
};
enum {
  PLACES = sizeof(places) / sizeof(places[0])
};

static quay_allocator *allocators[PLACES];
static quay_stream *streams[STREAMS];
static handle handles[HANDLES];

static quay_stream *stream_of(int device) {
  return streams[(uint64_t)device * 2 + below(2)];
}

static unsigned char *bytes_of(const handle *h) {
  return h->model->bytes + h->offset;
}

static handle *any_handle(void) {
  handle *h;
  do {
    h = &handles[below(HANDLES)];
  } while (h->buffer == NULL);
  return h;
}

static handle *free_place(void) {
  for (size_t i = 0; i < HANDLES; i++) {
    if (handles[i].buffer == NULL)
      return &handles[i];
  }
  return NULL;
}

static size_t live_handles(void) {
  size_t count = 0;
  for (size_t i = 0; i < HANDLES; i++)
    count += handles[i].buffer != NULL;
  return count;
}

/* An access that stays open for some steps; its kernel is launched at the end. */
static struct {
  quay_access access; /* its stream is NULL: none is open */
  handle used;        /* holds a reference on the model */
  quay_use_mode mode;
} held;

/* Whether a use conflicts with the open access. Of a call without a stream the program has to keep
 * away then, on another stream it is busy. */
static bool in_the_way(const handle *h, uint64_t offset, uint64_t size, bool write,
                       const quay_stream *stream) {
  if (held.access.stream == NULL || held.access.stream == stream || held.used.model != h->model)
    return false;
  const uint64_t begin = h->offset + offset, other = held.used.offset;
  return size != 0 && begin < other + held.used.size && other < begin + size &&
         (write || held.mode != QUAY_READ);
}

/* Of a call on a stream: whether it was refused, which it must be if, and only if, it is expected.
 */
static bool refused(quay_status status, bool expected) {
  cr_assert_eq(status, expected ? QUAY_STATUS_BUSY : QUAY_OK, "program %llu: %s: %s",
               (unsigned long long)program_seed, quay_status_name(status),
               quay_last_error()->message);
  return expected;
}

static void random_bytes(unsigned char *bytes) {
  for (size_t i = 0; i < BYTES; i++)
    bytes[i] = (unsigned char)(below(255) + 1);
}

/* Steps. */

static void drop(handle *h) {
  quay_buffer_release(h->buffer);
  if (--h->model->references == 0)
    free(h->model);
  h->buffer = NULL;
}

/* In the order of a stream, with bytes that are known only after a fill, or of host memory. */
static void step_create(void) {
  handle *h = free_place();
  if (h == NULL)
    return;
  const size_t place = below(PLACES);
  model *m = malloc(sizeof(*m));
  cr_assert_not_null(m);
  m->references = 1;
  *h = (handle){
      .model = m, .size = BYTES, .device = places[place].device, .pinned = places[place].pinned};
  const int64_t shape = BYTES;
  if (h->device >= 0 && chance(50)) {
    quay_stream *stream = stream_of(h->device);
    const quay_alloc_options options = {.stream = stream, .zeroed = chance(30)};
    DO(quay_buffer_create(allocators[place], QUAY_U8, 1, &shape, &options, &h->buffer));
    memset(m->bytes, 0, BYTES);
    if (!options.zeroed) {
      memset(m->bytes, (int)below(256), BYTES);
      DO(quay_buffer_fill_on(h->buffer, m->bytes, 1, chance(50) ? stream : stream_of(h->device)));
    }
  } else {
    random_bytes(m->bytes);
    DO(quay_buffer_create_from_host(allocators[place], QUAY_U8, 1, &shape, m->bytes, NULL,
                                    &h->buffer));
  }
}

static void step_view(void) {
  handle *view = free_place();
  if (view == NULL)
    return;
  const handle *base = any_handle();
  *view = *base;
  const uint64_t begin = below(base->size), size = below(base->size - begin) + 1;
  view->offset += begin;
  view->size = size;
  DO(quay_buffer_view(base->buffer, begin, size, &view->buffer));
  view->model->references++;
}

static void step_drop(void) {
  if (live_handles() > 2)
    drop(any_handle());
}

/* A stream that a copy between the two may name; NULL for none. */
static quay_stream *copy_stream(const handle *to, const handle *from) {
  const int device = chance(50) && to->device >= 0 ? to->device : from->device;
  return device >= 0 && chance(80) ? stream_of(device) : NULL;
}

static void step_copy(void) {
  handle *to = any_handle();
  const handle *from = any_handle();
  const uint64_t size = below((to->size < from->size ? to->size : from->size) + 1);
  const uint64_t to_offset = below(to->size - size + 1);
  const uint64_t from_offset = below(from->size - size + 1);
  const quay_copy_options options = {.stream = copy_stream(to, from)};
  const bool conflict = in_the_way(to, to_offset, size, true, options.stream) ||
                        in_the_way(from, from_offset, size, false, options.stream);
  if (conflict && options.stream == NULL)
    return;
  if (refused(
          quay_buffer_copy_region(to->buffer, to_offset, from->buffer, from_offset, size, &options),
          conflict))
    return;
  memmove(bytes_of(to) + to_offset, bytes_of(from) + from_offset, size);
}

static void step_fill(void) {
  handle *h = any_handle();
  const unsigned char value = (unsigned char)below(256);
  quay_stream *stream = h->device >= 0 && chance(80) ? stream_of(h->device) : NULL;
  const bool conflict = in_the_way(h, 0, h->size, true, stream);
  if (conflict && stream == NULL)
    return;
  if (refused(quay_buffer_fill_on(h->buffer, &value, 1, stream), conflict))
    return;
  memset(bytes_of(h), value, h->size);
}

/* A kernel mixes all it reads into all it writes. */
typedef struct kernel {
  size_t count;
  late_use uses[USES];
  unsigned seed;
} kernel;

static kernel kernels[STEPS];

static void run_kernel(void *user, unsigned char *const *bytes) {
  const kernel *k = user;
  unsigned mixed = k->seed;
  for (size_t u = 0; u < k->count; u++) {
    for (uint64_t i = 0; (k->uses[u].mode & QUAY_READ) != 0 && i < k->uses[u].size; i++)
      mixed = mixed * 31 + bytes[u][i];
  }
  for (size_t u = 0; u < k->count; u++) {
    for (uint64_t i = 0; (k->uses[u].mode & QUAY_WRITE) != 0 && i < k->uses[u].size; i++)
      bytes[u][i] = (unsigned char)(mixed += 7);
  }
}

static void step_kernel(size_t step) {
  const int device = (int)below(3);
  quay_use uses[USES];
  unsigned char *in_order[USES];
  quay_stream *stream = stream_of(device);
  bool conflict = false;
  kernel *k = &kernels[step];
  *k = (kernel){.seed = (unsigned)below(1000)};
  const size_t wanted = below(USES) + 1;
  for (int tries = 0; tries < 12 && k->count < wanted; tries++) {
    const handle *h = any_handle();
    if (h->device != device)
      continue;
    uses[k->count] = (quay_use){h->buffer, (quay_use_mode)(below(3) + 1)};
    conflict =
        conflict || in_the_way(h, 0, h->size, (uses[k->count].mode & QUAY_WRITE) != 0, stream);
    in_order[k->count++] = bytes_of(h);
  }
  if (k->count == 0)
    return;
  quay_access access;
  if (refused(quay_access_begin(stream, uses, k->count, &access), conflict))
    return;
  for (size_t u = 0; u < k->count; u++) {
    k->uses[u] = (late_use){access.pointers[u], quay_buffer_size(uses[u].buffer), uses[u].mode};
  }
  /* At times the launch fails: the access ends all the same. */
  const bool launched = chance(95);
  if (launched)
    DO(late_launch(quay_stream_native(stream), run_kernel, k, k->uses, k->count));
  DO(quay_access_end(&access));
  if (launched)
    run_kernel(k, in_order);
}

static void end_held(void) {
  static kernel kernels_of_held[STEPS];
  static size_t next;
  if (held.access.stream == NULL)
    return;
  kernel *k = &kernels_of_held[next++ % STEPS];
  *k = (kernel){.count = 1, .seed = (unsigned)below(1000)};
  k->uses[0] = (late_use){held.access.pointers[0], held.used.size, held.mode};
  DO(late_launch(quay_stream_native(held.access.stream), run_kernel, k, k->uses, 1));
  DO(quay_access_end(&held.access));
  run_kernel(k, (unsigned char *[]){bytes_of(&held.used)});
  if (--held.used.model->references == 0)
    free(held.used.model);
}

static void step_hold(void) {
  if (held.access.stream != NULL) {
    end_held();
    return;
  }
  const handle *h = any_handle();
  if (h->device < 0)
    return;
  held.mode = (quay_use_mode)(below(3) + 1);
  DO(quay_access_begin(stream_of(h->device), &(quay_use){h->buffer, held.mode}, 1, &held.access));
  held.used = *h;
  held.used.model->references++;
}

static void check(const handle *h) {
  if (in_the_way(h, 0, h->size, false, NULL))
    return;
  unsigned char bytes[BYTES];
  DO(quay_buffer_copy_out(h->buffer, bytes, h->size));
  for (uint64_t i = 0; i < h->size; i++) {
    cr_assert_eq(bytes[i], bytes_of(h)[i], "program %llu: byte %llu is %u, in order it is %u",
                 (unsigned long long)program_seed, (unsigned long long)i, bytes[i], bytes_of(h)[i]);
  }
}

static void step_host(void) {
  handle *h = any_handle();
  if (in_the_way(h, 0, h->size, true, NULL)) {
    return;
  }
  if (chance(40)) {
    check(h);
  } else if (h->pinned && chance(50)) {
    void *bytes = NULL;
    DO(quay_buffer_host_bytes_mut(h->buffer, &bytes, NULL));
    late_host_access(bytes, h->size, QUAY_WRITE);
    memset(bytes, 0x5a, h->size);
    memset(bytes_of(h), 0x5a, h->size);
  } else {
    unsigned char bytes[BYTES];
    random_bytes(bytes);
    DO(quay_buffer_copy_in(h->buffer, bytes, h->size));
    memcpy(bytes_of(h), bytes, h->size);
  }
}

static void step_streams(void) {
  const size_t i = below(STREAMS);
  switch (below(5)) {
  case 0:
    DO(quay_stream_synchronize(streams[i]));
    break;
  case 1:
    DO(quay_buffer_synchronize(any_handle()->buffer));
    break;
  case 2:
    DO(quay_collect(NULL));
    break;
  case 3:
    DO(quay_allocator_synchronize(allocators[below(PLACES)]));
    break;
  default:
    quay_stream_release(streams[i]);
    DO(quay_stream_create(late_device_at((uint32_t)i / 2), NULL, &streams[i]));
    break;
  }
}

static void step(size_t index) {
  const uint64_t what = below(100);
  if (what < 8) {
    step_create();
  } else if (what < 18) {
    step_view();
  } else if (what < 26) {
    step_drop();
  } else if (what < 56) {
    step_copy();
  } else if (what < 64) {
    step_fill();
  } else if (what < 70) {
    step_hold();
  } else if (what < 87) {
    step_kernel(index);
  } else if (what < 96) {
    step_host();
  } else {
    step_streams();
  }
}

static void begin_program(void) {
  /* Threads take their time: a few of them will do. */
  const late_options options = {
      .mode = below(40) == 0 ? LATE_THREADS : LATE_MANUAL,
      .seed = program_seed,
      .max_delay_us = 20,
      .eager_percent = chance(50) ? 0 : (uint32_t)below(70),
      .ordered_free = chance(50),
      .leaves_zeros = chance(50),
  };
  DO(late_register(&options));
  for (size_t i = 0; i < PLACES; i++)
    DO(quay_allocator_open(places[i].spec, &allocators[i]));
  for (uint32_t i = 0; i < STREAMS; i++)
    DO(quay_stream_create(late_device_at(i / 2), NULL, &streams[i]));
  for (int i = 0; i < 5; i++)
    step_create();
}

static void end_program(void) {
  end_held();
  for (size_t i = 0; i < HANDLES; i++) {
    if (handles[i].buffer != NULL && chance(80))
      check(&handles[i]);
  }
  for (size_t i = 0; i < HANDLES; i++) {
    if (handles[i].buffer != NULL)
      drop(&handles[i]);
  }
  for (size_t i = 0; i < STREAMS; i++)
    quay_stream_release(streams[i]);
  /* Streams that were released earlier may still have work. */
  for (size_t i = 0; i < 3; i++)
    DO(quay_allocator_synchronize(allocators[i]));
  for (size_t i = 0; i < PLACES; i++)
    quay_allocator_release(allocators[i]);
  late_violation first = {.message = ""};
  const uint64_t count = late_violations(&first, 1);
  cr_assert_eq(count, 0, "program %llu: %llu violations, the first: %s",
               (unsigned long long)program_seed, (unsigned long long)count, first.message);
  DO(late_unregister());
}

static void run_programs(uint64_t first, uint64_t count) {
  for (uint64_t i = first; i < first + count; i++) {
    program_seed = random_state = i;
    begin_program();
    for (size_t s = 0; s < STEPS; s++)
      step(s);
    end_program();
  }
}

/* The rest of the 100,000 of a full run come in parts, which a runner may spread. */
static void run_part(uint64_t part) {
  if (getenv("QUAY_TEST_FULL") != NULL)
    run_programs(2000 + part * 24500, 24500);
}

Test(random_programs, give_the_bytes_that_they_give_in_order) {
  run_programs(0, 2000);
}

Test(random_programs, give_the_same_bytes_in_a_full_run_part_1, .timeout = 3000) {
  run_part(0);
}

Test(random_programs, give_the_same_bytes_in_a_full_run_part_2, .timeout = 3000) {
  run_part(1);
}

Test(random_programs, give_the_same_bytes_in_a_full_run_part_3, .timeout = 3000) {
  run_part(2);
}

Test(random_programs, give_the_same_bytes_in_a_full_run_part_4, .timeout = 3000) {
  run_part(3);
}
