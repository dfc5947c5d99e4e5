/* The functions that take the per-thread default stream where their twins take the legacy one. */
#include "sim.h"

#define ENTRY(name, base, version, parameters)
#define PER_THREAD(name, suffix, parameters, arguments) \
  CUresult name##_##suffix parameters {                 \
    sim_per_thread++;                                   \
    const CUresult result = name arguments;             \
    sim_per_thread--;                                   \
    return result;                                      \
  }
#include "entries.def"
