/* How a staged copy is cut: which legs are transfers of a device, how large chunks are, how many
 * slots and threads there are. */
#include "core/checked.h"
#include "core/copy_threads.h"
#include "core/environment.h"
#include "core/error.h"
#include "core/staging.h"
#include "core/staging_memory.h"
#include "core/staging_ring.h"
#include "core/staging_tuning.h"
#include "core/thread.h"

/* Slots above it are whole pages, and begin on one: reading a file to an unaligned address halves
 * the rate. */
#define PAGE UINT64_C(4096)

/* Between legs of calls. */
#define SLOT_MAX  (UINT64_C(4) << 20)
#define SLOTS_MAX 4u

/* Of each thread that waits for a disk: one is being read into while the other one goes on. */
#define DISK_SLOTS 2u
#define DISK_CHUNK (UINT64_C(1) << 20) /* at most: there are many threads, and one budget */

/* A copy of few slots' worth is cut finer, so that its legs overlap for most of the way: into
 * CHUNKS, unless they became smaller than this. */
#define CHUNK_MIN (UINT64_C(1) << 20)
#define CHUNKS    8u

/* With transfers: from here on several threads share the host's leg, and so many pieces are fine
 * enough. */
#define SHARED_BYTES    (UINT64_C(2) << 20)
#define TRANSFER_CHUNKS 16u
#define TRANSFER_SLOTS  8u

/* Swept on an H200 behind PCIe 5: see docs/architecture.md. */
static const quay__staging_tuning defaults = {
    .chunk_in = UINT64_C(1) << 20,
    .slots_in = 4,
    .batch = 64,
    .chunk = UINT64_C(4) << 20,
    .ramp = UINT64_C(256) << 10,
    .join_least = UINT64_C(8) << 20,
    .join_most = UINT64_C(16) << 20,
    .in_flight_least = UINT64_C(4) << 20,
    .segment = UINT64_C(4) << 20,
    .slots_per_thread = 2,
    .own_slots = true,
};
static const quay__staging_tuning *current = &defaults;

const quay__staging_tuning *quay__staging_tuning_get(void) {
  return current;
}

void quay__staging_tuning_set(const quay__staging_tuning *tuning) {
  current = tuning != NULL ? tuning : &defaults;
}

static uint64_t whole_pages(uint64_t size) {
  return size > PAGE ? quay__align_down(size, PAGE) : size;
}

static uint64_t chunk_count(uint64_t size, uint64_t chunk) {
  return (size - 1) / chunk + 1;
}

/* Legs of calls. */

/* `disk_chunk`: bytes that a file's bytes have to be read from the disk by; 0: they have not. */
static void plan_calls(uint64_t size, uint64_t allowed, bool from_file, uint64_t disk_chunk,
                       quay__staging_plan *inout_plan) {
  const uint32_t threads = inout_plan->threads;
  const uint64_t slot_most = disk_chunk != 0 ? quay__min(disk_chunk, SLOT_MAX) : SLOT_MAX;
  const uint64_t slots_most = disk_chunk != 0 ? DISK_SLOTS * (uint64_t)threads : SLOTS_MAX;
  const uint64_t slot_size = whole_pages(quay__min(slot_most, allowed / 2));
  if (threads == 1 || allowed < 2 * PAGE || size <= slot_size) {
    inout_plan->chunk = quay__min(size, whole_pages(quay__min(SLOT_MAX, allowed)));
    inout_plan->slots = 1;
    inout_plan->threads = 1;
    return;
  }
  const uint64_t finer = quay__align_down(size / CHUNKS, PAGE) + PAGE;
  const uint64_t chunk = quay__min(quay__max(finer, CHUNK_MIN), slot_size);
  const uint64_t slots = quay__min(allowed / chunk, chunk_count(size, chunk));
  inout_plan->chunk = chunk;
  inout_plan->slots = (uint32_t)quay__min(quay__min(slots, slots_most), QUAY__SLOTS_MAX);
  /* A file is read by as many as there are slots; what else there is by one. */
  inout_plan->threads = from_file ? (uint32_t)quay__min(threads, inout_plan->slots) : 2;
}

/* How a way with transfers is cut, before its size is looked at. */
typedef struct cut {
  uint64_t chunk; /* bytes, at most */
  uint32_t slots_per_thread;
  uint32_t batch;
} cut;

/* To `device`, or NULL: from one, or from one to another. A device with several queues gets whole
 * pieces, which take turns on them. */
static cut cut_of(const quay_device *device) {
  if (device == NULL || current->batch <= 1 || device->vtable.copy_streams > 1)
    return (cut){current->chunk, current->slots_per_thread, 0};
  return (cut){current->chunk_in, current->slots_in, current->batch};
}

/* What only pays where slots are handed over together, and all of the threads were wanted. `most`:
 * slots. */
static void plan_beside(cut wish, uint64_t most, quay__staging_plan *inout_plan) {
  inout_plan->threads_beside = inout_plan->threads;
  inout_plan->slots_beside = inout_plan->slots;
  if (wish.batch == 0 || inout_plan->slots != wish.slots_per_thread * inout_plan->threads)
    return;
  const uint32_t threads = quay__copy_threads_beside(inout_plan->threads);
  const uint64_t slots =
      quay__min(quay__min((uint64_t)wish.slots_per_thread * threads, most), QUAY__SLOTS_MAX);
  /* No fewer than there are: there is room for these. */
  inout_plan->threads_beside = (uint32_t)(slots / wish.slots_per_thread);
  inout_plan->slots_beside = inout_plan->threads_beside * wish.slots_per_thread;
}

/* Legs with transfers. `host_threads`: that can be at the host's leg at a time. */
static void plan_transfers(uint64_t size, uint64_t allowed, cut wish, uint32_t host_threads,
                           quay__staging_plan *inout_plan) {
  const uint32_t threads =
      size < SHARED_BYTES ? 1 : (uint32_t)quay__min(inout_plan->threads, host_threads);
  const uint64_t most = whole_pages(quay__max(quay__min(wish.chunk, allowed / 2), 1));
  const uint64_t finer = quay__align_down(size / TRANSFER_CHUNKS, PAGE) + PAGE;
  const uint64_t chunk =
      quay__max(quay__min(quay__min(quay__max(finer, current->ramp), most), size), 1);
  const uint64_t wanted = quay__max((uint64_t)wish.slots_per_thread * threads, TRANSFER_SLOTS);
  const uint64_t slots =
      quay__min(quay__min(quay__max(allowed / chunk, 1), wanted), chunk_count(size, chunk));
  const uint64_t most_slots = inout_plan->budget_grows && allowed == inout_plan->budget
                                  ? QUAY__SLOTS_MAX
                                  : quay__max(allowed / chunk, 1);
  inout_plan->chunk = chunk;
  inout_plan->slots = (uint32_t)quay__min(slots, QUAY__SLOTS_MAX);
  inout_plan->threads = (uint32_t)quay__min(threads, inout_plan->slots);
  plan_beside(wish, quay__min(most_slots, chunk_count(size, chunk)), inout_plan);
  inout_plan->batch = wish.batch;
  inout_plan->ramps = true;
}

static quay__staging_plan begin_plan(void) {
  return (quay__staging_plan){
      .budget = quay__environment_staging_bytes(),
      .budget_grows = !quay__environment_sets_staging_bytes(),
      .threads = quay__copy_threads(),
  };
}

static bool transfers(const quay_allocator *allocator) {
  return allocator->has_async && quay__staging_memory_pins(allocator->device);
}

/* Where the file's chunks are best cut. Of one that is not in memory: more threads, which mostly
 * wait. Returns the bytes that each should read at a time, or 0: it is there. */
static uint64_t ask_file(const quay__side *source, uint64_t size, quay__staging_plan *inout_plan) {
  const quay_raw_buffer lazy = {.size = size, .owner = source->allocator};
  quay_across_info info = {
      .chunk = size, .threads = inout_plan->threads, .source_offset = source->offset};
  source->allocator->vtable.copy_info(source->allocator, NULL,
                                      source->raw != NULL ? source->raw : &lazy, size, &info);
  inout_plan->past_cut = info.past_cut;
  if (!info.from_disk)
    return 0;
  inout_plan->threads = (uint32_t)quay__max(inout_plan->threads, info.threads);
  return quay__min(info.chunk != 0 ? info.chunk : size, DISK_CHUNK);
}

static cut from_disk(cut usual, uint64_t chunk) {
  return (cut){quay__min(usual.chunk, chunk), DISK_SLOTS, usual.batch};
}

/* Why a leg that could be transfers is not one. */
static const char *reason_of(const quay__side *destination, const quay__side *source,
                             const quay_device *pin) {
  if (pin != NULL)
    return "no direct path between the two: in chunks through page-locked host memory";
  const quay_device *to = destination->allocator->device, *from = source->allocator->device;
  const bool refused = quay__staging_memory_refused(to) || quay__staging_memory_refused(from);
  if (refused) {
    return "no direct path between the two: in chunks through host memory, which the device "
           "refused to page-lock: that is slow";
  }
  return "no direct path between the two: through host memory in chunks";
}

void quay__staging_plan_make(const quay__side *destination, const quay__side *source, uint64_t size,
                             quay__staging_plan *out_plan) {
  *out_plan = begin_plan();
  const uint64_t allowed = quay__copy_memory(out_plan->budget);
  const quay_device *to = destination->allocator->device, *from = source->allocator->device;
  const bool in = transfers(destination->allocator);
  const bool out = transfers(source->allocator) && (!in || quay__staging_memory_serves(to, from));
  const bool from_file = source->allocator->kind == QUAY_MEMORY_FILE;
  const bool to_file = destination->allocator->kind == QUAY_MEMORY_FILE;
  if (in || out)
    out_plan->pin = in ? destination->allocator->device : source->allocator->device;
  out_plan->reason = reason_of(destination, source, out_plan->pin);
  const uint64_t disk_chunk = from_file ? ask_file(source, size, out_plan) : 0;
  out_plan->from_disk = disk_chunk != 0;
  if (out_plan->pin == NULL) {
    plan_calls(size, allowed, from_file, disk_chunk, out_plan);
  } else if ((in && from_file) || (out && to_file)) {
    const cut usual = cut_of(in && !out ? to : NULL);
    const cut wish = disk_chunk != 0 ? from_disk(usual, disk_chunk) : usual;
    plan_transfers(size, allowed, wish, out_plan->threads, out_plan);
  } else {
    plan_transfers(size, allowed, cut_of(NULL), in && !out ? 2 : 1, out_plan);
  }
  /* One chunk need not be two, and those of less than pages are cut anywhere. */
  if (size <= out_plan->chunk || out_plan->chunk % PAGE != 0 || out_plan->past_cut >= PAGE)
    out_plan->past_cut = 0;
}

bool quay__host_stage_plan(const quay_allocator *allocator, bool into, uint64_t size,
                           quay__staging_plan *out_plan) {
  if (quay__thread_in_staging || !transfers(allocator))
    return false;
  *out_plan = begin_plan();
  plan_transfers(size, quay__copy_memory(out_plan->budget), cut_of(into ? allocator->device : NULL),
                 out_plan->threads, out_plan);
  out_plan->pin = allocator->device;
  return true;
}
