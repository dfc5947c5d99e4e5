/* The control side of the simulated CUDA driver: how it behaves, what it has found, what it counts.
 * Programs under test know the driver API alone and find the library by QUAY_CUDA_LIBRARY; tests
 * take the functions below from the same library (control.h).
 *
 * It is a test double: no figure about speed and no claim about real hardware comes from it.
 *
 * Environment, read at the first call and at simcuda_reset():
 *   SIMCUDA_MODE      ok; no_device (cuInit answers 100), uninitialized (3), stub (every function
 *                     answers 34), mismatch (803), not_permitted (800), unknown (999),
 *                     no_devices (a count of 0), old (driver 10.2, without cuGetProcAddress)
 *   SIMCUDA_SCHEDULE  threads (default) or manual: see simcuda_schedule
 *   SIMCUDA_DEVICES   how many, 2 by default, at most 8
 *   SIMCUDA_MEMORY    bytes of each device, 8 GiB by default; more is CUDA_ERROR_OUT_OF_MEMORY
 *   SIMCUDA_PEERS     pairs that reach each other, "01,12"; "none"; all pairs by default
 *   SIMCUDA_FAIL      "n" or "name:n", then optionally ":code" (default 999): that call, counted
 *                     from 1, fails with the code once. A sticky code stays.
 *   SIMCUDA_MISSING   names that cuGetProcAddress does not know, separated by commas
 *   SIMCUDA_ABSENT    error (default; CUDA_ERROR_NOT_FOUND) or success (CUDA_SUCCESS and NULL): the
 *                     answer for a name that is not known
 *   SIMCUDA_DRIVER    what cuDriverGetVersion says, 13000 by default
 *   SIMCUDA_MANAGED   0: no concurrent managed access
 *   SIMCUDA_VMM, SIMCUDA_POOLS  0: no virtual memory management, no memory pools
 *   SIMCUDA_NODES   1: device N is at the host's NUMA node N; 0: the driver does not say
 *   SIMCUDA_HOST_THREADS  trusted (default) or apart: see simcuda_publish()
 *   SIMCUDA_SEED, SIMCUDA_EAGER  see simcuda_schedule
 *   SIMCUDA_DELAY     microseconds that an operation sleeps at most before it runs, 100
 *   SIMCUDA_REPORT    a file that is given, at exit, the numbers of calls, of those that were made
 *                     to fail, of violations, and of what is alive: a name and a number a line
 *   SIMCUDA_STRICT    1: violations end the process with status 67 at exit, after a report
 *
 * Thread-safety: all functions may be called from any thread, but simcuda_reset() only while no
 * other thread is in the library. */
#ifndef QUAY_TESTS_SIM_CUDA_SIMCUDA_H
#define QUAY_TESTS_SIM_CUDA_SIMCUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define SIMCUDA_API __attribute__((visibility("default")))
#else
#define SIMCUDA_API
#endif

enum {
  SIMCUDA_STRICT_EXIT = 67,
  SIMCUDA_MAX_ACCESSES = 8,
};

/* Streams run late and out of step with each other.
 * Threads: each stream has a thread; every operation sleeps a random while, then runs.
 * Manual: nothing runs until somebody waits, and then only what that wait needs. With SIMCUDA_EAGER
 * that percentage of submissions and queries runs one operation of a stream chosen by SIMCUDA_SEED;
 * without it a query never makes progress, so a loop that polls would not end. */
typedef enum simcuda_schedule {
  SIMCUDA_THREADS,
  SIMCUDA_MANUAL,
} simcuda_schedule;

typedef enum simcuda_violation_kind {
  SIMCUDA_UNORDERED = 1,  /* two accesses of which one writes, with nothing that orders them */
  SIMCUDA_EARLY_FREE,     /* a free or unmap that is not ordered after every access */
  SIMCUDA_USE_AFTER_FREE, /* of memory, a stream, an event, a context */
  SIMCUDA_NO_ACCESS, /* memory that this device may not reach: its own enabling call is missing */
  SIMCUDA_OUT_OF_BOUNDS, /* no memory there, or a piece that reaches out of it */
  SIMCUDA_OVERLAP,       /* a copy whose two ends overlap */
} simcuda_violation_kind;

typedef struct simcuda_violation {
  simcuda_violation_kind kind;
  char message[512];
} simcuda_violation;

/* How many there have been since the last reset; the first `capacity` (of the 64 that are kept) are
 * written to `out`. Order is judged when work is submitted, by vector clocks: what is found depends
 * neither on timing nor on the schedule. */
SIMCUDA_API size_t simcuda_violations(simcuda_violation *out, size_t capacity);
/* Forgets them: for tests that provoke some. */
SIMCUDA_API void simcuda_forget_violations(void);

/* A new driver in the same process: reads the environment, drops all contexts, memory, streams,
 * counters, failures and sticky errors. Old handles are invalid. Waits for running operations. */
SIMCUDA_API void simcuda_reset(void);

/* Calls of the driver function of that exported name ("cuMemAlloc_v2"); NULL: of all. */
SIMCUDA_API uint64_t simcuda_calls(const char *name);
/* The n-th call from now of `name` (NULL: of any) answers `code`, once; n 0 takes that back. */
SIMCUDA_API void simcuda_fail(const char *name, uint64_t n, int code);
/* Calls that were made to fail so far. */
SIMCUDA_API uint64_t simcuda_failed(void);

/* What is alive: what a program has left behind. */
typedef struct simcuda_census {
  uint64_t device_bytes; /* plain, stream-ordered and physical memory */
  uint64_t host_bytes;   /* pinned, registered and managed */
  uint64_t allocations, handles, mappings, reservations, pools;
  uint64_t streams, events, retains, contexts, modules, semaphores;
  uint64_t queued; /* operations that have not run */
} simcuda_census;
SIMCUDA_API void simcuda_count(simcuda_census *out);

/* The host is about to read or write through its own pointer to pinned, registered or managed
 * memory: what the simulator can't see by itself. `size` in bytes. */
SIMCUDA_API void simcuda_host_access(const void *pointer, size_t size, bool write);

/* By default what one host thread has waited for counts for all of them. With
 * SIMCUDA_HOST_THREADS=apart each knows only its own waits and what these two hand on: a thread
 * that observes knows what others knew when they published. */
SIMCUDA_API void simcuda_publish(void);
SIMCUDA_API void simcuda_observe(void);

/* Manual: runs every operation that can run; returns how many did. */
SIMCUDA_API uint64_t simcuda_run_all(void);
/* Opens the gate that kernels named simcuda_hold wait at; they wait again after a close. Gates are
 * numbered 0 to 15 and closed at first. */
SIMCUDA_API void simcuda_gate(unsigned gate, bool open);
/* Copies between the host and memory of a device behind the driver's back, without a check. False:
 * there is no such memory. */
SIMCUDA_API bool simcuda_peek(uint64_t address, void *out, size_t size);
/* Marks every device lost with a sticky code, as a fault of a kernel does. */
SIMCUDA_API void simcuda_lose(int code);

/* A kernel is a name, the sizes of its parameters, and two functions: one says which bytes it will
 * touch, when it is launched; the other runs it, late, on host pointers to those bytes.
 * Built in, taken from any module:
 *   simcuda_add(uint64_t to, uint64_t a, uint64_t b, uint64_t n)  n floats
 *   simcuda_fill(uint64_t to, uint64_t n, uint32_t value)         n words
 *   simcuda_sleep(uint32_t microseconds), simcuda_hold(uint32_t gate)
 *   simcuda_illegal_address() sticky 700, simcuda_trap() sticky 719 */
typedef struct simcuda_access {
  uint64_t address;
  uint64_t size; /* bytes */
  bool write;
} simcuda_access;

typedef struct simcuda_kernel {
  size_t parameter_count;
  size_t parameter_sizes[16]; /* bytes */
  /* Writes what it touches to `out`, at most SIMCUDA_MAX_ACCESSES; returns how many. */
  size_t (*accesses)(void *const *parameters, simcuda_access *out);
  /* bytes[i] is where the i-th access lies now. Must not call the driver. */
  void (*run)(void *const *parameters, unsigned char *const *bytes);
} simcuda_kernel;
/* `name` and `kernel` have to live on. */
SIMCUDA_API void simcuda_register_kernel(const char *name, const simcuda_kernel *kernel);

#endif
