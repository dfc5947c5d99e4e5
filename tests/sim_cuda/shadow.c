/* Who accessed which bytes of a piece of memory: the race detector. The order is that of vector
 * clocks and is known when work is submitted, so what is found does not depend on when it runs. */
#include <inttypes.h>
#include <stdio.h>

#include "sim.h"

typedef struct text {
  char chars[128];
} text;

static text describe(const char *what, uint64_t stream) {
  text out;
  if (stream == 0) {
    snprintf(out.chars, sizeof out.chars, "%s by the host", what);
  } else {
    snprintf(out.chars, sizeof out.chars, "%s on stream %" PRIu64, what, stream);
  }
  return out;
}

static bool conflicts(const sim_record *record, uint64_t begin, uint64_t end, bool write,
                      const sim_actor *actor) {
  return record->begin < end && begin < record->end && (record->write || write) &&
         !sim_clock_knows(actor->clock, record->epoch);
}

/* A record is needed no more if whatever conflicts with it conflicts with the new access too and is
 * ordered after that only if it is after both; or if nothing can come that is not after it. */
static bool is_replaced(const sim_record *record, uint64_t begin, uint64_t end, bool write,
                        const sim_actor *actor) {
  if (sim_everybody_knows(record->epoch))
    return true;
  const bool inside = record->begin >= begin && record->end <= end;
  return inside && (write || !record->write) && sim_clock_knows(actor->clock, record->epoch);
}

void sim_shadow_access(sim_memory *memory, uint64_t begin, uint64_t end, bool write,
                       const sim_actor *actor) {
  sim_shadow *const shadow = &memory->shadow;
  if (begin == end)
    return;
  size_t kept = 0;
  for (size_t i = 0; i < shadow->count; i++) {
    const sim_record record = shadow->records[i];
    if (conflicts(&record, begin, end, write, actor)) {
      const text first = describe(record.what, record.stream);
      const text second = describe(actor->what, actor->stream);
      sim_report(SIMCUDA_UNORDERED,
                 "memory %" PRIu64 ": %s %s bytes %" PRIu64 " to %" PRIu64 ", %s %s bytes %" PRIu64
                 " to %" PRIu64 ", and nothing orders the second after the first",
                 memory->serial, first.chars, record.write ? "writes" : "reads", record.begin,
                 record.end, second.chars, write ? "writes" : "reads", begin, end);
    }
    if (!is_replaced(&record, begin, end, write, actor))
      shadow->records[kept++] = record;
  }
  shadow->count = kept;
  shadow->records =
      sim_grow(shadow->records, shadow->count, &shadow->capacity, sizeof *shadow->records);
  shadow->records[shadow->count++] = (sim_record){
      .begin = begin,
      .end = end,
      .epoch = actor->epoch,
      .what = actor->what,
      .stream = actor->stream,
      .write = write,
      .beginning = actor->beginning,
  };
}

bool sim_shadow_check_end(sim_memory *memory, uint64_t begin, uint64_t end,
                          const sim_actor *actor) {
  bool clean = true;
  for (size_t i = 0; i < memory->shadow.count; i++) {
    const sim_record *const record = &memory->shadow.records[i];
    if (record->beginning || !conflicts(record, begin, end, true, actor))
      continue;
    clean = false;
    const text first = describe(record->what, record->stream);
    const text second = describe(actor->what, actor->stream);
    sim_report(SIMCUDA_EARLY_FREE,
               "memory %" PRIu64 ": %s is not ordered after %s, which %s bytes %" PRIu64
               " to %" PRIu64,
               memory->serial, second.chars, first.chars, record->write ? "writes" : "reads",
               record->begin, record->end);
  }
  return clean;
}

sim_actor sim_host_actor(const char *what) {
  sim_clock *const clock = sim_host_clock();
  return (sim_actor){.what = what, .epoch = sim_clock_tick(clock, sim_host_line()), .clock = clock};
}

void simcuda_host_access(const void *pointer, size_t size, bool write) {
  sim_lock();
  const uint64_t address = (uint64_t)(uintptr_t)pointer;
  const sim_range *const range = sim_range_at(address);
  if (range == NULL || size > range->end - address) {
    sim_report_address("the host", address, size);
  } else {
    const sim_actor actor = sim_host_actor("an access through a pointer");
    sim_shadow_access(range->memory, address - range->begin, address - range->begin + size, write,
                      &actor);
  }
  sim_unlock();
}
