/* Vector clocks: what happens before what, by program order within a stream, by events, and by what
 * host threads have waited for. Knows nothing of memory. */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

static struct {
  uint64_t *times; /* by line: the latest time of all owners */
  uint32_t *free_lines;
  size_t count, capacity, free_count, free_capacity;
  sim_clock trusted; /* of all host threads together */
  bool trusted_begun;
  uint32_t trusted_line;
  sim_clock published;
} clocks;

typedef struct host_thread {
  sim_clock clock;
  uint32_t line;
} host_thread;

static pthread_once_t key_once = PTHREAD_ONCE_INIT;
static pthread_key_t key;

static void end_thread(void *value) {
  host_thread *const thread = value;
  sim_lock();
  sim_line_end(thread->line);
  sim_clock_free(&thread->clock);
  free(thread);
  sim_unlock();
}

static void make_key(void) {
  if (pthread_key_create(&key, end_thread) != 0)
    abort();
}

uint32_t sim_line_begin(void) {
  if (clocks.free_count > 0)
    return clocks.free_lines[--clocks.free_count];
  clocks.times = sim_grow(clocks.times, clocks.count, &clocks.capacity, sizeof *clocks.times);
  clocks.times[clocks.count] = 0;
  return (uint32_t)clocks.count++;
}

void sim_line_end(uint32_t line) {
  clocks.free_lines = sim_grow(clocks.free_lines, clocks.free_count, &clocks.free_capacity,
                               sizeof *clocks.free_lines);
  clocks.free_lines[clocks.free_count++] = line;
}

static void reserve(sim_clock *clock, uint32_t count) {
  if (clock->count >= count)
    return;
  uint64_t *const times = realloc(clock->times, count * sizeof *times);
  if (times == NULL)
    abort();
  memset(times + clock->count, 0, (count - clock->count) * sizeof *times);
  clock->times = times;
  clock->count = count;
}

sim_epoch sim_clock_tick(sim_clock *clock, uint32_t line) {
  reserve(clock, line + 1);
  const uint64_t time = ++clocks.times[line];
  clock->times[line] = time;
  return (sim_epoch){.line = line, .time = time};
}

void sim_clock_join(sim_clock *into, const sim_clock *from) {
  reserve(into, from->count);
  for (uint32_t i = 0; i < from->count; i++) {
    if (into->times[i] < from->times[i])
      into->times[i] = from->times[i];
  }
}

bool sim_clock_knows(const sim_clock *clock, sim_epoch epoch) {
  return epoch.line < clock->count && clock->times[epoch.line] >= epoch.time;
}

void sim_clock_free(sim_clock *clock) {
  free(clock->times);
  *clock = (sim_clock){.count = 0};
}

static host_thread *this_thread(void) {
  (void)pthread_once(&key_once, make_key);
  host_thread *thread = pthread_getspecific(key);
  if (thread == NULL) {
    thread = sim_new(sizeof *thread);
    thread->line = sim_line_begin();
    (void)pthread_setspecific(key, thread);
  }
  return thread;
}

static void begin_trusted(void) {
  if (clocks.trusted_begun)
    return;
  clocks.trusted_line = sim_line_begin();
  clocks.trusted_begun = true;
}

sim_clock *sim_host_clock(void) {
  if (sim.settings.apart)
    return &this_thread()->clock;
  begin_trusted();
  return &clocks.trusted;
}

uint32_t sim_host_line(void) {
  if (sim.settings.apart)
    return this_thread()->line;
  begin_trusted();
  return clocks.trusted_line;
}

bool sim_everybody_knows(sim_epoch epoch) {
  return !sim.settings.apart && sim_clock_knows(&clocks.trusted, epoch);
}

void simcuda_publish(void) {
  sim_lock();
  sim_clock_join(&clocks.published, sim_host_clock());
  sim_unlock();
}

void simcuda_observe(void) {
  sim_lock();
  sim_clock_join(sim_host_clock(), &clocks.published);
  sim_unlock();
}
