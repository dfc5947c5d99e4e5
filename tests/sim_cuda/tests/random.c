/* Random programs, and an oracle of the race detector that knows nothing of vector clocks: for each
 * operation the set of all operations that come before it. */
#include <string.h>

#include "fixture.h"

enum {
  OPERATIONS = 80,
  PROGRAMS = 150,
  STREAMS = 6, /* 0: legacy; 1, 2: blocking; the rest: non-blocking */
  BLOCKING = 2,
  EVENTS = 4,
  BLOCKS = 3,
  BLOCK_SIZE = 96,
};

typedef struct set {
  bool has[OPERATIONS];
} set;

typedef struct access {
  int block;
  uint64_t begin, end;
  bool write;
} access;

/* What is known to have happened before whatever comes next on a stream, and so on. */
typedef struct model {
  set streams[STREAMS], events[EVENTS], host;
  bool recorded[EVENTS];
  access accesses[OPERATIONS];
  int count;
} model;

typedef struct world {
  model model;
  CUstream streams[STREAMS];
  CUevent events[EVENTS];
  CUdeviceptr blocks[BLOCKS];
  CUfunction touch;
  uint64_t random;
} world;

static unsigned pick(world *w, unsigned count) {
  w->random = w->random * 6364136223846793005u + 1442695040888963407u;
  return (unsigned)(w->random >> 33) % count;
}

static void join(set *into, const set *from) {
  for (int i = 0; i < OPERATIONS; i++)
    into->has[i] = into->has[i] || from->has[i];
}

/* Whatever is submitted to a stream comes after this. */
static void join_before_submission(model *m, unsigned stream) {
  join(&m->streams[stream], &m->host);
  for (unsigned other = 1; other <= BLOCKING; other++) {
    if (stream == 0)
      join(&m->streams[0], &m->streams[other]);
    if (stream == other)
      join(&m->streams[other], &m->streams[0]);
  }
}

static bool races(const model *m, const set *before, const access *a) {
  for (int i = 0; i < m->count; i++) {
    const access *const b = &m->accesses[i];
    if (!before->has[i] && b->block == a->block && (a->write || b->write) && a->begin < b->end &&
        b->begin < a->end)
      return true;
  }
  return false;
}

static size_t touch_accesses(void *const *parameters, simcuda_access *out) {
  uint64_t values[3];
  for (int i = 0; i < 3; i++)
    memcpy(&values[i], parameters[i], 8);
  out[0] = (simcuda_access){.address = values[0], .size = values[1], .write = values[2] != 0};
  return 1;
}

static bool touch(world *w, unsigned stream) {
  model *const m = &w->model;
  access a = {.block = (int)pick(w, BLOCKS), .begin = pick(w, BLOCK_SIZE), .write = pick(w, 2)};
  a.end = a.begin + 1 + pick(w, (unsigned)(BLOCK_SIZE - a.begin));
  CUdeviceptr address = w->blocks[a.block] + a.begin;
  uint64_t size = a.end - a.begin;
  uint64_t write = a.write;
  join_before_submission(m, stream);
  const bool expected = races(m, &m->streams[stream], &a);
  const size_t before = simcuda->violations(NULL, 0);
  ok(cu.cuLaunchKernel(w->touch, 1, 1, 1, 1, 1, 1, 0, w->streams[stream],
                       (void *[]){&address, &size, &write}, NULL));
  const bool found = simcuda->violations(NULL, 0) != before;
  m->accesses[m->count] = a;
  m->streams[stream].has[m->count++] = true;
  cr_assert_eq(found, expected, "operation %d: the simulator says %d", m->count - 1, found);
  return found;
}

static void step(world *w, size_t *found) {
  model *const m = &w->model;
  const unsigned stream = pick(w, STREAMS);
  const unsigned event = pick(w, EVENTS);
  switch (pick(w, 8)) {
  case 0:
    ok(cu.cuEventRecord(w->events[event], w->streams[stream]));
    join_before_submission(m, stream);
    m->events[event] = m->streams[stream];
    m->recorded[event] = true;
    break;
  case 1:
    ok(cu.cuStreamWaitEvent(w->streams[stream], w->events[event], 0));
    /* To wait for an event that was never recorded is nothing at all. */
    if (!m->recorded[event])
      break;
    join_before_submission(m, stream);
    join(&m->streams[stream], &m->events[event]);
    break;
  case 2:
    ok(cu.cuEventSynchronize(w->events[event]));
    join(&m->host, &m->events[event]);
    break;
  case 3:
    if (pick(w, 4) != 0)
      break;
    ok(cu.cuStreamSynchronize(w->streams[stream]));
    if (stream == 0)
      join_before_submission(m, 0);
    join(&m->host, &m->streams[stream]);
    break;
  default:
    *found += touch(w, stream);
  }
}

static world begin(uint64_t seed) {
  static const simcuda_kernel kernel_touch = {3, {8, 8, 8}, touch_accesses, NULL};
  start("SIMCUDA_SCHEDULE=manual SIMCUDA_EAGER=30");
  world w = {.random = seed};
  simcuda->register_kernel("touch", &kernel_touch);
  w.touch = kernel("touch");
  for (int i = 1; i < STREAMS; i++)
    ok(cu.cuStreamCreate(&w.streams[i], i <= BLOCKING ? 0 : CU_STREAM_NON_BLOCKING));
  for (int i = 0; i < EVENTS; i++)
    ok(cu.cuEventCreate(&w.events[i], CU_EVENT_DISABLE_TIMING));
  for (int i = 0; i < BLOCKS; i++)
    w.blocks[i] = device_memory(BLOCK_SIZE);
  return w;
}

Test(random, the_race_detector_agrees_with_an_oracle) {
  size_t found = 0;
  size_t clean = 0;
  for (uint64_t seed = 1; seed <= PROGRAMS; seed++) {
    world w = begin(seed);
    size_t races_here = 0;
    while (w.model.count < OPERATIONS)
      step(&w, &races_here);
    found += races_here;
    clean += (size_t)w.model.count - races_here;
    simcuda->forget_violations();
  }
  /* Both answers have to be common, or this says nothing. */
  cr_assert_gt(found, PROGRAMS * 5);
  cr_assert_gt(clean, PROGRAMS * 5);
}
