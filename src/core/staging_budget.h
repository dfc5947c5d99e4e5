/* The process's budget of host memory for staging, $QUAY_STAGING_BYTES, which all staged copies
 * share. Counts bytes only: whoever holds them allocates them. */
#ifndef QUAY_CORE_STAGING_BUDGET_H
#define QUAY_CORE_STAGING_BUDGET_H

#include <quay/device.h>
#include <stdbool.h>
#include <stdint.h>

/* Waits in line until the budget has room for `bytes`, or nobody else holds any. A thread that is
 * inside a staged copy must not wait: it could be for itself. */
void quay__staging_hold(uint64_t bytes, uint64_t budget);

/* The same without waiting; false if there is no room, or others wait for what there is. */
bool quay__staging_try_hold(uint64_t bytes, uint64_t budget);

/* The same, over the budget if need be. */
void quay__staging_force_hold(uint64_t bytes);

/* By the thread that held them. */
void quay__staging_give_back(uint64_t bytes);

/* Whether anybody waits for room. */
bool quay__staging_awaited(void);

/* A staged copy begins and ends in the calling thread. `device` pins its slots; NULL: none does. */
void quay__staging_enter(const quay_device *device);
void quay__staging_leave(const quay_device *device);
/* How many there are, at least 1; and devices that they have, at least 1, some more not counted. */
uint32_t quay__staging_copies(void);
uint32_t quay__staging_devices(void);

/* For lifecycle.c alone, with every lock held. */
void quay__staging_after_fork_in_child(void);

#endif
