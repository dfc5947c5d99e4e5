/* Random programs on the late backend. Well-ordered ones give the bytes that they give in order,
 * and no violation. Of any others, an oracle that knows nothing of vector clocks (a matrix of what
 * comes before what) says which accesses are unordered, and late must say exactly the same. */
#include "late_fixture.h"

#include <stdlib.h>

static uint64_t random_state;

static uint64_t below(uint64_t bound) {
  random_state = random_state * 6364136223846793005u + 1442695040888963407u;
  return (random_state >> 33) % bound;
}

/* Well-ordered programs. */

enum {
  STREAMS = 4,
  BLOCKS = 5, /* the last one is pinned */
  BYTES = 48,
  STEPS = 40
};

/* A block, what must be in it, and what was done to it. */
typedef struct subject {
  memory memory;
  unsigned char model[BYTES];
  quay_event *written;       /* NULL: the host knows it */
  quay_event *read[STREAMS]; /* since; by stream */
} subject;

static quay_stream *streams[STREAMS];
static subject subjects[BLOCKS];
static late_use kernel_uses[STEPS];

static void forget(quay_event **event) {
  quay_event_release(*event);
  *event = NULL;
}

static void subject_begin(subject *s, size_t index) {
  static const char *const specs[BLOCKS] = {"late:0", "late:0", "late:1", "late:1",
                                            "late:0,memory=pinned"};
  *s = (subject){.memory = memory_new(specs[index], BYTES)};
  for (size_t i = 0; i < BYTES; i++)
    s->model[i] = (unsigned char)(below(255) + 1);
  copy_in(&s->memory, 0, s->model, BYTES);
}

/* Makes the stream, or the host for NULL, wait for what conflicts. */
static void wait_for(quay_stream *stream, quay_event *event) {
  if (event == NULL)
    return;
  if (stream != NULL) {
    OK(quay_stream_wait(stream, event));
  } else {
    OK(quay_event_synchronize(event));
  }
}

static void before_use(subject *s, quay_stream *stream, bool write) {
  wait_for(stream, s->written);
  for (size_t i = 0; write && i < STREAMS; i++)
    wait_for(stream, s->read[i]);
}

static void after_use(subject *s, size_t stream, bool write) {
  if (!write) {
    quay_event_release(s->read[stream]);
    s->read[stream] = record(streams[stream]);
    return;
  }
  for (size_t i = 0; i < STREAMS; i++)
    forget(&s->read[i]);
  quay_event_release(s->written);
  s->written = record(streams[stream]);
}

static void step_fill(size_t stream, subject *s, uint64_t offset, uint64_t size) {
  const unsigned char value = (unsigned char)(below(255) + 1);
  before_use(s, streams[stream], true);
  fill_on(streams[stream], &s->memory, offset, size, value);
  memset(s->model + offset, value, size);
  after_use(s, stream, true);
}

static void step_kernel(size_t stream, subject *s, uint64_t offset, uint64_t size, size_t step) {
  const quay_use_mode mode = below(2) == 0 ? QUAY_READ : QUAY_READ_WRITE;
  kernel_uses[step] = (late_use){s->memory.address + offset, size, mode};
  before_use(s, streams[stream], mode != QUAY_READ);
  launch_on(streams[stream], &kernel_uses[step]);
  for (uint64_t i = 0; mode != QUAY_READ && i < size; i++)
    s->model[offset + i]++;
  after_use(s, stream, mode != QUAY_READ);
}

/* Between two blocks of the stream's device, which may be one. */
static void step_copy(size_t stream, subject *to, subject *from, uint64_t to_offset,
                      uint64_t from_offset, uint64_t size) {
  before_use(from, streams[stream], false);
  before_use(to, streams[stream], true);
  copy_on(streams[stream], &to->memory, to_offset, &from->memory, from_offset, size);
  memmove(to->model + to_offset, from->model + from_offset, size);
  after_use(from, stream, false);
  after_use(to, stream, true);
}

static void step_pinned(size_t stream, subject *s, subject *pinned, uint64_t offset,
                        uint64_t pinned_offset, uint64_t size) {
  const bool in = below(2) == 0;
  subject *const to = in ? s : pinned;
  subject *const from = in ? pinned : s;
  before_use(from, streams[stream], false);
  before_use(to, streams[stream], true);
  unsigned char *const host = memory_bytes(&pinned->memory) + pinned_offset;
  if (in) {
    copy_in_on(streams[stream], &s->memory, offset, host, size);
    memcpy(s->model + offset, pinned->model + pinned_offset, size);
  } else {
    copy_out_on(streams[stream], &s->memory, offset, host, size);
    memcpy(pinned->model + pinned_offset, s->model + offset, size);
  }
  after_use(from, stream, false);
  after_use(to, stream, true);
}

static void step_host(subject *s, uint64_t offset, uint64_t size) {
  unsigned char bytes[BYTES];
  const bool write = below(2) == 0;
  before_use(s, NULL, write);
  if (!write) {
    copy_out(&s->memory, offset, bytes, size);
    cr_assert(memcmp(bytes, s->model + offset, size) == 0, "the host reads wrong bytes");
    return;
  }
  memset(bytes, (int)below(255) + 1, sizeof bytes);
  copy_in(&s->memory, offset, bytes, size);
  memcpy(s->model + offset, bytes, size);
}

static void subject_end(subject *s) {
  quay_event *pending[STREAMS + 1];
  size_t count = 0;
  if (s->written != NULL)
    pending[count++] = s->written;
  for (size_t i = 0; i < STREAMS; i++) {
    if (s->read[i] != NULL)
      pending[count++] = s->read[i];
  }
  memory_free(&s->memory, pending, count);
  for (size_t i = 0; i < count; i++)
    quay_event_release(pending[i]);
}

static void step(size_t index) {
  const size_t stream = below(STREAMS);
  const size_t pair = stream / 2 * 2; /* streams and blocks 0 and 1 are of device 0, 2 and 3 of 1 */
  const size_t which = pair + below(2);
  subject *const s = &subjects[which];
  const uint64_t offset = below(BYTES);
  const uint64_t size = 1 + below(BYTES - offset);
  switch (below(7)) {
  case 0:
    step_fill(stream, s, offset, size);
    break;
  case 1:
    step_kernel(stream, s, offset, size, index);
    break;
  case 2:
  case 3:
    step_copy(stream, s, &subjects[pair + below(2)], offset, below(BYTES - size + 1), size);
    break;
  case 4:
    step_pinned(stream, s, &subjects[BLOCKS - 1], offset, below(BYTES - size + 1), size);
    break;
  case 5:
    step_host(s, offset, size);
    break;
  default:
    subject_end(s);
    subject_begin(s, which);
    break;
  }
}

static void run_program(uint64_t seed, late_mode mode, uint32_t eager_percent) {
  random_state = seed;
  const late_options options = {.mode = mode,
                                .seed = seed,
                                .eager_percent = eager_percent,
                                .max_delay_us = 20,
                                .ordered_free = true};
  OK(late_register(&options));
  for (size_t i = 0; i < STREAMS; i++)
    streams[i] = stream_new((uint32_t)i / 2);
  for (size_t i = 0; i < BLOCKS; i++)
    subject_begin(&subjects[i], i);
  for (size_t i = 0; i < STEPS; i++)
    step(i);
  for (size_t i = 0; i < BLOCKS; i++) {
    unsigned char bytes[BYTES];
    subject *const s = &subjects[i];
    before_use(s, NULL, true);
    copy_out(&s->memory, 0, bytes, BYTES);
    cr_assert(memcmp(bytes, s->model, BYTES) == 0, "program %llu, block %zu: wrong bytes",
              (unsigned long long)seed, i);
    subject_end(s);
  }
  for (size_t i = 0; i < STREAMS; i++)
    quay_stream_release(streams[i]);
  end();
}

Test(late_random, well_ordered_programs_give_the_same_bytes_as_in_order) {
  for (uint64_t seed = 1; seed <= 1000; seed++)
    run_program(seed, LATE_MANUAL, (uint32_t)(seed % 4) * 30);
}

Test(late_random, well_ordered_programs_give_the_same_bytes_on_threads) {
  for (uint64_t seed = 1; seed <= 40; seed++)
    run_program(seed, LATE_THREADS, 0);
}

/* Programs that may be wrong, against an oracle. */

enum {
  LINES = 4, /* three streams and the host */
  HOST = 3,
  ACCESSES = 40,
  EVENTS = 24,
  ORACLE_BYTES = 16
};

typedef struct moment {
  bool past[ACCESSES]; /* which accesses come before it */
} moment;

typedef struct access {
  size_t block;
  uint64_t begin, end;
  bool write;
} access;

typedef struct oracle {
  moment lines[LINES];
  access accesses[ACCESSES];
  size_t count;
  moment at_event[EVENTS];
  quay_event *events[EVENTS];
  size_t event_count;
} oracle;

static void moment_join(moment *into, const moment *from) {
  for (size_t i = 0; i < ACCESSES; i++)
    into->past[i] = into->past[i] || from->past[i];
}

/* Whether the next access races with an earlier one, by the matrix alone. */
static bool oracle_access(oracle *o, size_t line, access next) {
  if (line != HOST)
    moment_join(&o->lines[line], &o->lines[HOST]); /* the host submits it */
  bool race = false;
  for (size_t i = 0; i < o->count; i++) {
    const access *const other = &o->accesses[i];
    race = race || (other->block == next.block && (other->write || next.write) &&
                    other->begin < next.end && next.begin < other->end && !o->lines[line].past[i]);
  }
  o->lines[line].past[o->count] = true;
  o->accesses[o->count++] = next;
  return race;
}

static memory blocks[2];
static late_use oracle_uses[ACCESSES];

static void do_access(const oracle *o, size_t line, const access *next) {
  unsigned char bytes[ORACLE_BYTES] = {7};
  memory *const block = &blocks[next->block];
  const uint64_t size = next->end - next->begin;
  if (line != HOST) {
    late_use *const use = &oracle_uses[o->count - 1];
    *use = (late_use){block->address + next->begin, size, next->write ? QUAY_WRITE : QUAY_READ};
    launch_on(streams[line], use);
  } else if (next->write) {
    copy_in(block, next->begin, bytes, size);
  } else {
    copy_out(block, next->begin, bytes, size);
  }
}

static size_t step_access(oracle *o, uint64_t seed) {
  access next = {.block = below(2), .begin = below(ORACLE_BYTES), .write = below(2) == 0};
  next.end = next.begin + 1 + below(ORACLE_BYTES - next.begin);
  const size_t line = below(LINES);
  const bool race = oracle_access(o, line, next);
  late_violations_clear();
  do_access(o, line, &next);
  const bool found = late_violations(NULL, 0) > 0;
  cr_assert(found == race, "program %llu, access %zu: late %s, the oracle %s",
            (unsigned long long)seed, o->count - 1, found ? "finds a race" : "finds none",
            race ? "does" : "does not");
  late_violations_clear();
  return race;
}

static void step_record(oracle *o) {
  if (o->event_count == EVENTS)
    return;
  const size_t line = below(HOST);
  moment_join(&o->lines[line], &o->lines[HOST]);
  o->at_event[o->event_count] = o->lines[line];
  o->events[o->event_count++] = record(streams[line]);
}

static void step_wait(oracle *o) {
  if (o->event_count == 0)
    return;
  const size_t event = below(o->event_count);
  const size_t line = below(8) == 0 ? HOST : below(HOST);
  if (line == HOST) {
    OK(quay_event_synchronize(o->events[event]));
  } else {
    OK(quay_stream_wait(streams[line], o->events[event]));
  }
  moment_join(&o->lines[line], &o->at_event[event]);
  if (line != HOST)
    moment_join(&o->lines[line], &o->lines[HOST]);
}

static size_t run_against_oracle(uint64_t seed) {
  random_state = seed;
  const late_options options = {.mode = LATE_MANUAL, .seed = seed, .eager_percent = 20};
  OK(late_register(&options));
  oracle *const o = calloc(1, sizeof *o);
  cr_assert(o != NULL);
  for (size_t i = 0; i < HOST; i++)
    streams[i] = stream_new(0);
  for (size_t i = 0; i < 2; i++)
    blocks[i] = memory_new("late:0", ORACLE_BYTES);
  size_t races = 0;
  while (o->count < ACCESSES) {
    const uint64_t what = below(10);
    if (what < 3) {
      races += step_access(o, seed);
    } else if (what < 6) {
      step_record(o);
    } else {
      step_wait(o);
    }
  }
  OK(quay_allocator_synchronize(blocks[0].allocator));
  for (size_t i = 0; i < o->event_count; i++)
    quay_event_release(o->events[i]);
  for (size_t i = 0; i < HOST; i++)
    quay_stream_release(streams[i]);
  for (size_t i = 0; i < 2; i++)
    memory_free(&blocks[i], NULL, 0);
  free(o);
  end();
  return races;
}

Test(late_random, finds_exactly_the_races_that_an_oracle_finds) {
  size_t races = 0;
  enum {
    PROGRAMS = 1000
  };
  for (uint64_t seed = 1; seed <= PROGRAMS; seed++)
    races += run_against_oracle(seed);
  /* Else the test would compare silence with silence. */
  cr_expect(races > PROGRAMS && races < PROGRAMS * (ACCESSES - 5), "%zu races", races);
}
