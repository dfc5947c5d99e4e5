/* The host memory of staging: what slots are cut from. It is kept from one copy to the next, where
 * a device can page-lock memory it is page-locked, and it goes back on quay_collect(). Counts
 * nothing against the budget: see staging_budget.h. */
#ifndef QUAY_CORE_STAGING_MEMORY_H
#define QUAY_CORE_STAGING_MEMORY_H

#include <quay/device.h>
#include <stdbool.h>
#include <stdint.h>

/* A piece of memory that is wanted. */
typedef struct quay__staging_wish {
  uint64_t size;       /* bytes */
  uint64_t more;       /* bytes that will be wanted after it: made together where there is room */
  uint64_t budget;     /* bytes: what is kept and idle goes before there is more than this */
  bool within_budget;  /* rather none than beyond it */
  quay_device *device; /* that must have page-locked it; NULL: any memory */
  bool kept_only;      /* from what is there, without asking the system or the device for more */
} quay__staging_wish;

/* Page-aligned memory; NULL if there is none: `*out_full` tells whether more than the budget would
 * have been needed, or whatever kept_only left out. Of two pieces with the same `*out_segment` that
 * lie side by side one transfer can read both. Keeps the thread's error. */
unsigned char *quay__staging_memory_take(const quay__staging_wish *wish, uint64_t *out_segment,
                                         bool *out_full);
/* Bytes of the largest piece that would do for the wish in all but its size, from what is there. */
uint64_t quay__staging_memory_gap(const quay__staging_wish *wish);
void quay__staging_memory_give(const unsigned char *memory, uint64_t size);

/* Whether memory that `pinned_by` has page-locked is so for `device`, too. */
bool quay__staging_memory_serves(const quay_device *pinned_by, const quay_device *device);

/* Whether the device's backend can page-lock memory, and has not refused to since the last
 * quay__staging_memory_trim(). */
bool quay__staging_memory_pins(const quay_device *device);
/* Whether it has. */
bool quay__staging_memory_refused(const quay_device *device);

/* Gives all idle memory back to the system, and returns how many bytes. */
uint64_t quay__staging_memory_trim(void);

/* Gives up what the device has page-locked, because it goes or is reset; waits until it is idle. */
void quay__staging_memory_drop(quay_device *device);

/* For lifecycle.c alone, with every lock held: the child begins with none. */
void quay__staging_memory_after_fork_in_child(void);

#endif
