/* The host memory of staging: segments of a few MiB of huge pages, page-locked as a whole, out of
 * which pieces are taken by first fit, so that the slots of one copy mostly lie side by side.
 * Touching and registering huge pages costs a third of what the driver's own pinned allocation
 * does. */
#include "core/staging_memory.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

#include "core/checked.h"
#include "core/copy_threads.h"
#include "core/device_impl.h"
#include "core/error.h"
#include "core/lifecycle.h"
#include "core/lock.h"
#include "core/os.h"
#include "core/staging_tuning.h"
#include "core/thread.h"
#include "core/topology.h"
#include "core/workers.h"

#define PAGE UINT64_C(4096)

/* What a thread makes at a time of a segment's pages: a huge one. */
#define TOUCHED (UINT64_C(2) << 20)

typedef struct segment {
  struct segment *next;
  unsigned char *memory;
  uint64_t size; /* bytes, whole pages */
  uint64_t used; /* bytes that are taken */
  uint64_t id;
  quay_device *device; /* that page-locked it, not retained: it drops it; NULL: nobody did */
  bool leaving;        /* nobody takes from it any more */
  void (*end)(const unsigned char *memory,
              uint64_t size); /* of memory of another making; or NULL */
  uint64_t taken[];           /* a bit a page */
} segment;

/* Guarded by QUAY__LOCK_STAGING. */
static segment *segments;
static atomic_uint trims = 1;                             /* 1 more than there were */
static pthread_cond_t emptied = PTHREAD_COND_INITIALIZER; /* one that is leaving is idle */

/* Bytes of segments that threads are making, and of those the calling thread's. */
static uint64_t making;
static _Thread_local uint64_t own_making;
static pthread_cond_t made_one = PTHREAD_COND_INITIALIZER; /* `making` is less */

/* Pieces, with the lock held. */

static bool is_taken(const segment *from, uint64_t page) {
  return (from->taken[page / 64] >> (page % 64) & 1) != 0;
}

static void mark(segment *of, uint64_t page, uint64_t count, bool taken) {
  for (uint64_t i = page; i < page + count; i++) {
    const uint64_t bit = UINT64_C(1) << (i % 64);
    of->taken[i / 64] = taken ? of->taken[i / 64] | bit : of->taken[i / 64] & ~bit;
  }
  of->used = taken ? of->used + count * PAGE : of->used - count * PAGE;
}

/* The first run of free pages that is long enough. By whole words where these are all taken or all
 * free: copies that take many pieces would else look at each page of all pieces before. */
static bool find_room(const segment *in, uint64_t count, uint64_t *out_page) {
  const uint64_t pages = in->size / PAGE;
  if (in->size - in->used < count * PAGE)
    return false;
  uint64_t run = 0, page = 0;
  while (page < pages && run < count) {
    const uint64_t word = in->taken[page / 64], left = pages - page;
    if (page % 64 == 0 && left >= 64 && (word == 0 || word == UINT64_MAX)) {
      run = word == 0 ? run + 64 : 0;
      page += 64;
    } else {
      run = is_taken(in, page) ? 0 : run + 1;
      page++;
    }
  }
  *out_page = page - run;
  return run >= count;
}

bool quay__staging_memory_serves(const quay_device *pinned_by, const quay_device *device) {
  if (pinned_by == device)
    return true;
  return !pinned_by->vtable.pins_for_itself && !device->vtable.pins_for_itself &&
         strcmp(pinned_by->backend, device->backend) == 0;
}

static bool serves(const segment *from, const quay_device *device) {
  if (from->leaving)
    return false;
  return device == NULL ||
         (from->device != NULL && quay__staging_memory_serves(from->device, device));
}

/* Whether the segment's pages are at the device's node, as far as that is known. */
static bool is_near(const segment *from, quay_device *device) {
  if (device == NULL || from->device == device)
    return true;
  const int32_t here = device->vtable.numa_node(device);
  const int32_t there = from->device->vtable.numa_node(from->device);
  return here < 0 || there < 0 || here == there || !quay__topology_has_nodes();
}

static uint64_t pages_of(uint64_t size) {
  return (size + PAGE - 1) / PAGE;
}

static unsigned char *take_kept(const quay__staging_wish *wish, bool near, uint64_t *out_segment) {
  for (segment *from = segments; from != NULL; from = from->next) {
    uint64_t page = 0;
    if (!serves(from, wish->device) || (near && !is_near(from, wish->device)) ||
        !find_room(from, pages_of(wish->size), &page))
      continue;
    mark(from, page, pages_of(wish->size), true);
    *out_segment = from->id;
    return from->memory + page * PAGE;
  }
  return NULL;
}

void quay__staging_memory_give(const unsigned char *memory, uint64_t size) {
  quay__global_acquire(QUAY__LOCK_STAGING);
  for (segment *of = segments; of != NULL; of = of->next) {
    if (memory < of->memory || memory >= of->memory + of->size)
      continue;
    mark(of, (uint64_t)(memory - of->memory) / PAGE, pages_of(size), false);
    if (of->leaving && of->used == 0)
      pthread_cond_broadcast(&emptied);
    break;
  }
  quay__global_release(QUAY__LOCK_STAGING);
}

/* Segments. */

/* With the lock held. */
static void detach(const segment *leaving) {
  segment **link = &segments;
  while (*link != NULL && *link != leaving)
    link = &(*link)->next;
  if (*link != NULL)
    *link = leaving->next;
}

/* Without the lock; nobody else sees it any more. */
static void end_segment(segment *ended) {
  if (ended->end != NULL) {
    ended->end(ended->memory, ended->size);
    quay__os_free(ended);
    return;
  }
  const bool free = ended->device == NULL ||
                    ended->device->vtable.unpin(ended->device, ended->memory, ended->size);
  /* Else the address space stays: whoever got it next would have memory that the device takes for
   * page-locked. */
  if (free && quay__os_munmap(ended->memory, ended->size) != 0) {
    quay_log(QUAY_LOG_ERROR, "%llu bytes of staging memory can't be given back to the system",
             (unsigned long long)ended->size);
  }
  quay__os_free(ended);
}

/* Of a size that is whole pages, at a huge page's boundary where it is that large. */
static unsigned char *map_pages(uint64_t size) {
  const uint64_t huge = quay__os_huge_page_size();
  const uint64_t alignment = size >= huge ? huge : PAGE;
  unsigned char *const whole = quay__os_mmap(NULL, size + alignment, PROT_READ | PROT_WRITE,
                                             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (whole == MAP_FAILED)
    return NULL;
  const uint64_t before = -(uintptr_t)whole & (alignment - 1);
  const uint64_t after = alignment - before;
  /* What can't be unmapped again is address space alone. */
  if (before != 0)
    (void)quay__os_munmap(whole, before);
  if (after != 0)
    (void)quay__os_munmap(whole + before + size, after);
  (void)quay__os_madvise(whole + before, size, MADV_HUGEPAGE); /* a hint */
  return whole + before;
}

typedef struct touching {
  const segment *of;
  int32_t node; /* whose pages are wanted; below 0: unknown */
} touching;

/* One write a page: registering would else make the pages one by one. By all threads that are free:
 * the kernel clears the pages, at the rate of one thread's stores, and takes them from the node of
 * whoever touches them first. */
static quay_status touch_part(void *context, uint64_t index) {
  const touching *job = context;
  const uint64_t end = quay__min((index + 1) * TOUCHED, job->of->size);
  quay__binding binding;
  quay__topology_enter(job->node, &binding);
  for (uint64_t at = index * TOUCHED; at < end; at += PAGE)
    ((volatile unsigned char *)job->of->memory)[at] = 0;
  quay__topology_leave(&binding);
  return QUAY_OK;
}

static void touch(const segment *of, int32_t node) {
  touching job = {.of = of, .node = node};
  /* The task can't fail. */
  const quay_status status =
      quay__workers_run(quay__copy_threads(), (of->size - 1) / TOUCHED + 1, touch_part, &job);
  (void)status;
}

/* Page-locks a segment. A device that refuses is told of once, and not asked again for a while. */
static bool pin(segment *of, quay_device *device) {
  touch(of, device->vtable.numa_node(device));
  quay__error_state before;
  quay__error_save(&before);
  const quay_status status = device->vtable.pin(device, of->memory, of->size);
  if (status == QUAY_OK) {
    of->device = device;
    return true;
  }
  const unsigned when = atomic_load_explicit(&trims, memory_order_relaxed);
  if (atomic_exchange_explicit(&device->pin_refused, when, memory_order_relaxed) != when) {
    quay_log(QUAY_LOG_WARNING, "copies of pageable memory to and from %s will be slow: %s",
             device->name, quay_last_error()->message);
  }
  quay__error_restore(&before);
  return false;
}

static segment *make_segment(const quay__staging_wish *wish, uint64_t size) {
  const uint64_t words = (size / PAGE + 63) / 64;
  segment *made = quay__os_calloc(1, sizeof *made + words * sizeof made->taken[0]);
  if (made == NULL)
    return NULL;
  made->size = size;
  made->id = quay__next_id();
  const quay__staging_tuning *tuning = quay__staging_tuning_get();
  if (wish->device != NULL && tuning->memory_make != NULL) {
    made->device = wish->device;
    made->end = tuning->memory_end;
    made->memory = tuning->memory_make(size);
    if (made->memory != NULL)
      return made;
    quay__os_free(made);
    return NULL;
  }
  made->memory = map_pages(size);
  if (made->memory == NULL) {
    quay__os_free(made);
    return NULL;
  }
  if (wish->device == NULL || pin(made, wish->device))
    return made;
  end_segment(made);
  return NULL;
}

/* Ends one idle segment, so that there is less than the budget of them. With the lock held, which
 * it gives away meanwhile. */
static bool end_an_idle_one(void) {
  for (segment *idle = segments; idle != NULL; idle = idle->next) {
    if (idle->used != 0 || idle->leaving)
      continue;
    detach(idle);
    quay__global_release(QUAY__LOCK_STAGING);
    end_segment(idle);
    quay__global_acquire(QUAY__LOCK_STAGING);
    return true;
  }
  return false;
}

static uint64_t bytes_kept(void) {
  uint64_t bytes = 0;
  for (const segment *each = segments; each != NULL; each = each->next)
    bytes += each->size;
  return bytes;
}

static uint64_t bytes_in_all(void) {
  return bytes_kept() + making;
}

/* How large the next segment should be: enough for all that is wanted soon. A device registers 64
 * MiB of huge pages in 2 to 3 ms while it does nothing else, and four times 16 MiB in 10 beside a
 * copy (an H200). */
static uint64_t next_size(const quay__staging_wish *wish) {
  const uint64_t least = pages_of(wish->size) * PAGE;
  const uint64_t usual = quay__max(quay__staging_tuning_get()->segment, least + wish->more);
  while (bytes_in_all() + quay__min(usual, wish->budget) > wish->budget && end_an_idle_one())
    ;
  const uint64_t all = bytes_in_all();
  const uint64_t room = wish->budget > all ? wish->budget - all : 0;
  return quay__max(least, quay__align_down(quay__min(usual, room), PAGE));
}

/* From what is there; with the lock held. */
static unsigned char *take_one_kept(const quay__staging_wish *wish, uint64_t *out_segment) {
  unsigned char *memory = take_kept(wish, true, out_segment);
  /* Memory of another node is better than devices that take turns at page-locking their own. */
  const bool full = bytes_in_all() + quay__staging_tuning_get()->segment > wish->budget;
  return memory != NULL || (!full && !wish->kept_only) ? memory
                                                       : take_kept(wish, false, out_segment);
}

/* The same; or NULL, and `*out_size` is that of a segment to be made, which counts already; 0: none
 * is to be made. What another thread is making has room for this one mostly, and is waited for
 * where the budget has none for both. */
static unsigned char *take_or_begin(const quay__staging_wish *wish, uint64_t *out_segment,
                                    uint64_t *out_size) {
  *out_size = 0;
  for (;;) {
    unsigned char *memory = take_one_kept(wish, out_segment);
    if (memory != NULL || wish->kept_only)
      return memory;
    const uint64_t size = next_size(wish);
    const bool fits = bytes_in_all() + size <= wish->budget, alone = making == 0 || own_making != 0;
    if (!fits && alone && wish->within_budget)
      return NULL;
    if (fits || alone) {
      making += size;
      own_making += size;
      *out_size = size;
      return NULL;
    }
    quay__global_wait(QUAY__LOCK_STAGING, &made_one);
  }
}

/* `made` is NULL if it could not be made; with the lock held. */
static void end_making(segment *made, uint64_t size) {
  making -= size;
  own_making -= size;
  pthread_cond_broadcast(&made_one);
  segment **last = &segments; /* at the end: the oldest ones fill up first */
  while (*last != NULL)
    last = &(*last)->next;
  *last = made;
}

static uint64_t longest_run(const segment *in) {
  uint64_t run = 0, longest = 0;
  for (uint64_t page = 0; page < in->size / PAGE; page++) {
    run = is_taken(in, page) ? 0 : run + 1;
    longest = quay__max(longest, run);
  }
  return longest * PAGE;
}

uint64_t quay__staging_memory_gap(const quay__staging_wish *wish) {
  uint64_t longest = 0;
  quay__global_acquire(QUAY__LOCK_STAGING);
  for (const segment *each = segments; each != NULL; each = each->next) {
    if (serves(each, wish->device))
      longest = quay__max(longest, longest_run(each));
  }
  quay__global_release(QUAY__LOCK_STAGING);
  return longest;
}

unsigned char *quay__staging_memory_take(const quay__staging_wish *wish, uint64_t *out_segment,
                                         bool *out_full) {
  uint64_t size = 0;
  quay__lifecycle_begin();
  quay__global_acquire(QUAY__LOCK_STAGING);
  unsigned char *memory = take_or_begin(wish, out_segment, &size);
  quay__global_release(QUAY__LOCK_STAGING);
  *out_full = size == 0 && memory == NULL;
  if (size == 0)
    return memory;
  segment *made = make_segment(wish, size);
  if (made != NULL) {
    mark(made, 0, pages_of(wish->size), true);
    *out_segment = made->id;
    memory = made->memory;
  }
  quay__global_acquire(QUAY__LOCK_STAGING);
  end_making(made, size);
  quay__global_release(QUAY__LOCK_STAGING);
  return memory;
}

bool quay__staging_memory_refused(const quay_device *device) {
  return device->vtable.pin != NULL &&
         atomic_load_explicit(&device->pin_refused, memory_order_relaxed) ==
             atomic_load_explicit(&trims, memory_order_relaxed);
}

bool quay__staging_memory_pins(const quay_device *device) {
  return device->vtable.pin != NULL && !quay__staging_memory_refused(device);
}

uint64_t quay__staging_memory_trim(void) {
  uint64_t bytes = 0;
  atomic_fetch_add_explicit(&trims, 1, memory_order_relaxed);
  quay__global_acquire(QUAY__LOCK_STAGING);
  const uint64_t before = bytes_kept();
  while (end_an_idle_one())
    ;
  bytes = before - quay__min(before, bytes_kept());
  quay__global_release(QUAY__LOCK_STAGING);
  return bytes;
}

/* One that the device has page-locked; NULL if there is none. With the lock held. */
static segment *find_pinned(const quay_device *device) {
  segment *found = segments;
  while (found != NULL && found->device != device)
    found = found->next;
  return found;
}

void quay__staging_memory_drop(quay_device *device) {
  if (device->vtable.pin == NULL)
    return;
  quay__global_acquire(QUAY__LOCK_STAGING);
  for (segment *found; (found = find_pinned(device)) != NULL;) {
    if (quay__thread_in_staging && found->used != 0) {
      found->device = NULL; /* it may be this thread that uses it, and would wait for itself */
      continue;
    }
    found->leaving = true;
    while (found->used != 0)
      quay__global_wait(QUAY__LOCK_STAGING, &emptied);
    detach(found);
    quay__global_release(QUAY__LOCK_STAGING);
    end_segment(found);
    quay__global_acquire(QUAY__LOCK_STAGING);
  }
  quay__global_release(QUAY__LOCK_STAGING);
  atomic_store_explicit(&device->pin_refused, 0, memory_order_relaxed);
}

/* Pages that are locked for a device are not the child's to use, and pieces of other threads will
 * never be given back: the address space is left as it is. */
void quay__staging_memory_after_fork_in_child(void) {
  static segment *abandoned; /* never looked at, but for tools that search for lost memory */
  segment **last = &segments;
  while (*last != NULL)
    last = &(*last)->next;
  *last = abandoned;
  abandoned = segments;
  segments = NULL;
  making = own_making;
  made_one = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
  emptied = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
}
