/* Timelines of other interfaces, by file descriptors: a number in a page that both sides map.
 * Nothing tells this side when the other one changes it, so that whoever waits for it looks again
 * and again.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "sim.h"

enum {
  LOOK_AGAIN_NS = 200000
};

struct CUextSemaphore_st {
  CUexternalSemaphore next;
  const sim_context *context;
  unsigned references; /* the handle's, and of operations that have not run */
  bool alive;
  uint64_t *value;
};

static CUexternalSemaphore all;
/* What comes before the signals that were submitted, and before those that have run: what another
 * interface does between a signal and a wait is not seen here, so that every wait counts as one for
 * every signal. That can only miss a race. */
static struct {
  sim_clock submitted, run;
  bool news;
} order;

/* The semaphore of a handle; NULL with a violation. */
static CUexternalSemaphore find(CUexternalSemaphore handle) {
  CUexternalSemaphore found = all;
  while (found != NULL && found != handle)
    found = found->next;
  if (found == NULL)
    sim_report(SIMCUDA_USE_AFTER_FREE, "a semaphore that there is not is used");
  return found;
}

static uint64_t *map(int file) {
  struct stat status;
  if (fstat(file, &status) != 0 || status.st_size < SIM_PAGE)
    return NULL;
  void *const page = mmap(NULL, SIM_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  return page != MAP_FAILED ? page : NULL;
}

/* The descriptor is the importer's from success on, and the caller's after an error. */
CUresult cuImportExternalSemaphore(CUexternalSemaphore *semaphore,
                                   const CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC *description) {
  SIM_ENTER(cuImportExternalSemaphore, SIM_NEEDS_CONTEXT | SIM_UNSAFE_IN_CAPTURE);
  if (semaphore == NULL || description == NULL || description->flags != 0 ||
      description->type != CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_FD)
    return sim_leave(CUDA_ERROR_INVALID_VALUE);
  uint64_t *const value = map(description->handle.fd);
  if (value == NULL)
    return sim_leave(CUDA_ERROR_INVALID_VALUE);
  (void)close(description->handle.fd);
  CUexternalSemaphore made = sim_new(sizeof *made);
  made->context = sim_current();
  made->references = 1;
  made->alive = true;
  made->value = value;
  made->next = all;
  all = made;
  *semaphore = made;
  return sim_leave(CUDA_SUCCESS);
}

void sim_semaphore_release(CUexternalSemaphore semaphore) {
  if (semaphore == NULL || --semaphore->references != 0)
    return;
  munmap(semaphore->value, SIM_PAGE);
  free(semaphore);
}

static void end(CUexternalSemaphore semaphore) {
  CUexternalSemaphore *link = &all;
  while (*link != semaphore)
    link = &(*link)->next;
  *link = semaphore->next;
  semaphore->alive = false;
  sim_semaphore_release(semaphore);
}

/* "Any outstanding signals or waits must have completed on the semaphore." */
CUresult cuDestroyExternalSemaphore(CUexternalSemaphore handle) {
  SIM_ENTER(cuDestroyExternalSemaphore, SIM_NEEDS_CONTEXT | SIM_UNSAFE_IN_CAPTURE);
  CUexternalSemaphore semaphore = find(handle);
  if (semaphore == NULL)
    return sim_leave(CUDA_ERROR_INVALID_HANDLE);
  if (semaphore->references != 1) {
    sim_report(SIMCUDA_EARLY_FREE, "a semaphore is destroyed with %u operations on it under way",
               semaphore->references - 1);
  }
  end(semaphore);
  return sim_leave(CUDA_SUCCESS);
}

/* In the stream; what an operation is captured into never runs. */
static CUresult submit(CUexternalSemaphore handle, uint64_t value, bool signals,
                       CUstream stream_handle) {
  CUresult error;
  sim_stream *const stream = sim_stream_of(stream_handle, &error);
  CUexternalSemaphore semaphore = stream != NULL ? find(handle) : NULL;
  if (semaphore == NULL)
    return stream == NULL ? error : CUDA_ERROR_INVALID_HANDLE;
  bool captured;
  error = sim_capture_submit(stream, &captured);
  if (error != CUDA_SUCCESS || captured)
    return error;
  (void)sim_stream_actor(stream, signals ? "a signal" : "a wait");
  if (signals) {
    sim_clock_join(&order.submitted, &stream->clock);
  } else {
    sim_clock_join(&stream->clock, &order.submitted);
  }
  sim_op *const op = sim_op_new(signals ? "a signal" : "a wait");
  op->semaphore = semaphore;
  op->semaphore_value = value;
  op->signals = signals;
  semaphore->references++;
  sim.foreign += !signals;
  sim_submit(stream, op);
  return CUDA_SUCCESS;
}

CUresult cuSignalExternalSemaphoresAsync(const CUexternalSemaphore *semaphores,
                                         const CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS *parameters,
                                         unsigned count, CUstream stream) {
  SIM_ENTER(cuSignalExternalSemaphoresAsync, SIM_NEEDS_CONTEXT);
  CUresult result =
      semaphores != NULL && parameters != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++) {
    result = parameters[i].flags == 0
                 ? submit(semaphores[i], parameters[i].params.fence.value, true, stream)
                 : CUDA_ERROR_INVALID_VALUE;
  }
  return sim_leave(result);
}

CUresult cuWaitExternalSemaphoresAsync(const CUexternalSemaphore *semaphores,
                                       const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS *parameters,
                                       unsigned count, CUstream stream) {
  SIM_ENTER(cuWaitExternalSemaphoresAsync, SIM_NEEDS_CONTEXT);
  CUresult result =
      semaphores != NULL && parameters != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++) {
    result = parameters[i].flags == 0
                 ? submit(semaphores[i], parameters[i].params.fence.value, false, stream)
                 : CUDA_ERROR_INVALID_VALUE;
  }
  return sim_leave(result);
}

/* What runs them. */

bool sim_semaphore_reached(const sim_op *op) {
  return op->semaphore == NULL || op->signals ||
         __atomic_load_n(op->semaphore->value, __ATOMIC_ACQUIRE) >= op->semaphore_value;
}

/* A timeline never goes back: that would be whoever signals twice, or out of order. */
void sim_semaphore_run(const sim_op *op) {
  if (!op->signals) {
    sim_takeover(&order);
    return;
  }
  const uint64_t before = __atomic_load_n(op->semaphore->value, __ATOMIC_ACQUIRE);
  if (before >= op->semaphore_value) {
    sim_report(SIMCUDA_UNORDERED, "a timeline that is at %llu is signalled with %llu",
               (unsigned long long)before, (unsigned long long)op->semaphore_value);
  }
  sim_handoff(&order);
  sim_clock_join(&order.run, &order.submitted);
  order.news = true;
  __atomic_store_n(op->semaphore->value, op->semaphore_value, __ATOMIC_RELEASE);
}

void sim_semaphores_learn(void) {
  if (!order.news)
    return;
  sim_takeover(&order);
  sim_clock_join(sim_host_clock(), &order.run);
  order.news = sim.settings.apart;
}

void sim_pause(void) {
  if (sim.foreign == 0) {
    pthread_cond_wait(&sim.changed, &sim.lock);
    return;
  }
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_nsec += LOOK_AGAIN_NS;
  if (until.tv_nsec >= 1000000000) {
    until.tv_nsec -= 1000000000;
    until.tv_sec++;
  }
  (void)pthread_cond_timedwait(&sim.changed, &sim.lock, &until);
}

void sim_semaphores_end(const sim_context *context) {
  for (CUexternalSemaphore each = all, next; each != NULL; each = next) {
    next = each->next;
    if (each->context == context)
      end(each);
  }
}

void sim_semaphores_clear(void) {
  while (all != NULL)
    end(all);
  sim_clock_free(&order.submitted);
  sim_clock_free(&order.run);
  order.news = false;
}

void sim_semaphore_counts(simcuda_census *out) {
  for (CUexternalSemaphore each = all; each != NULL; each = each->next)
    out->semaphores++;
}
