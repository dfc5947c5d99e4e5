/* What the files of staging share: a copy under way, its slots and its two legs. Everything that is
 * not marked otherwise is guarded by the ring's stripe: copies to several devices would wait for
 * each other's one lock some hundred thousand times a second. */
#ifndef QUAY_CORE_STAGING_RING_H
#define QUAY_CORE_STAGING_RING_H

#include <pthread.h>

#include "core/lock.h"
#include "core/staging.h"
#include "core/staging_tuning.h"
#include "core/stretches.h"
#include "core/workers.h"

#define QUAY__SLOTS_MAX       64u
#define QUAY__LEG_STREAMS_MAX 8u

/* EMPTY to FILLING to FILLED to DRAINING to EMPTY again; ABSENT: without memory. A filling and a
 * draining slot is whoever's moves it: a thread's, or a transfer's. */
typedef enum quay__slot_state {
  QUAY__SLOT_ABSENT,
  QUAY__SLOT_EMPTY,
  QUAY__SLOT_FILLING,
  QUAY__SLOT_FILLED,
  QUAY__SLOT_DRAINING,
} quay__slot_state;

typedef struct quay__slot {
  quay__slot_state state;
  unsigned char *memory;
  uint64_t room;     /* bytes of it: a chunk of the plan's size, or less */
  uint64_t segment;  /* neighbours of one segment may be joined */
  uint64_t number;   /* of the chunk that is in it, from 0, as they were claimed */
  uint64_t at;       /* bytes into the copy */
  uint64_t size;     /* bytes of the chunk */
  uint64_t transfer; /* that moves it, where a transfer does */
  const void *owner; /* the thread that keeps it, as quay__thread_self(); NULL: nobody does */
} quay__slot;

/* How bytes get between the slots and one side of the copy. */
typedef enum quay__leg_kind {
  QUAY__LEG_CALLS,  /* blocking calls of its allocator */
  QUAY__LEG_MEMORY, /* host memory that may be touched */
  QUAY__LEG_STREAM, /* transfers that its allocator submits to a stream */
} quay__leg_kind;

/* A device's, of one run of slots or of several. */
typedef struct quay__transfer {
  bool busy;         /* else the entry is free */
  bool submitted;    /* it has its event */
  bool done;         /* but threads have yet to come back from waiting for it */
  uint32_t waiting;  /* threads */
  uint64_t number;   /* in their order */
  const void *owner; /* of its slot; NULL: of slots of several threads */
  uint64_t event;
  uint64_t bytes;
} quay__transfer;

typedef struct quay__leg {
  quay__leg_kind kind;
  /* Never change while the copy runs. */
  const quay__side *side; /* of a leg of calls or transfers */
  unsigned char *memory;  /* of a leg of memory: its first byte */
  bool several;           /* threads may be at it at a time, in any order */
  uint64_t streams[QUAY__LEG_STREAMS_MAX];
  uint32_t stream_count;
  /* Under way, in any order: at most one a slot, and one that is done for each thread. */
  quay__transfer transfers[2 * QUAY__SLOTS_MAX];
  uint64_t next;      /* number of the next one */
  uint64_t in_flight; /* bytes */
  bool submitting;    /* one thread at a time, but for slots of its own */
} quay__leg;

typedef struct quay__ring {
  const quay_copy_options *options;
  quay__staging_plan plan;
  const quay__staging_tuning *tuning;
  uint64_t size;     /* of the copy, bytes */
  bool nested;       /* inside another staged copy */
  bool streaming;    /* so large that host memory is written with streaming stores */
  uint32_t own;      /* slots that a thread may keep for itself; 0: all share all of them */
  quay__leg out, in; /* of the source, into the slots; and of the destination */

  /* The calling thread's alone. */
  uint32_t slot_count;
  uint64_t told; /* bytes of the progress that was told last */
  uint32_t turn; /* chunks at the time when the copy last gave way */

  quay__slot slots[QUAY__SLOTS_MAX];
  bool stretched; /* chunks come from stretches; else they are claimed in their order */
  quay__stretches stretches;
  uint64_t claimed;        /* bytes that are, or were, in a slot */
  uint64_t chunks_claimed; /* the next chunk's number */
  const quay__slot *last;  /* that was claimed */
  uint64_t arrived;        /* bytes at the destination */
  uint64_t chunks_arrived;
  bool moved; /* bytes of the destination may have changed */
  bool failed;
  bool helper_failed; /* and first */
  uint32_t threads;   /* that are at it now, the calling one included */
  pthread_cond_t changed;
  quay__job job;

  quay__staging_report *report; /* NULL: nobody wants one */
  uint64_t began, idle_since;   /* nanoseconds */
} quay__ring;

static inline void quay__ring_acquire(const quay__ring *ring) {
  quay__stripe_acquire(ring);
}

static inline void quay__ring_release(const quay__ring *ring) {
  quay__stripe_release(ring);
}

/* staging_slots.c: slots, their memory and the budget. The calling thread's. */

/* The first slot; without it there is no copy. */
quay_status quay__slots_open_first(quay__ring *ring);
/* More slots while there is room; or fewer, where others wait for it. `begun`: something is under
 * way already, so that there is time to make memory for more. */
quay_status quay__slots_adjust(quay__ring *ring, bool begun);
void quay__slots_close(quay__ring *ring);

/* With the lock held. */

/* Whether the calling thread may take what has this owner. */
bool quay__slots_mine(const quay__ring *ring, const void *owner);
/* What the calling thread has kept is anybody's. */
void quay__slots_leave(quay__ring *ring);

/* An empty slot becomes the next chunk's. NULL: there is none, or nothing is left. */
quay__slot *quay__slots_claim(quay__ring *ring);
/* The filled slot with the lowest number from `number` on that the calling thread may take, or that
 * anybody has; NULL: there is none. */
quay__slot *quay__slots_filled_from(quay__ring *ring, uint64_t number);
quay__slot *quay__slots_anybodys_filled_from(quay__ring *ring, uint64_t number);
/* Whether the calling thread could claim one. */
bool quay__slots_can_claim(const quay__ring *ring);
uint64_t quay__slots_count(const quay__ring *ring, quay__slot_state state);

/* staging_legs.c: what moves bytes. With the lock held, which they give away meanwhile. False:
 * there was nothing of the kind to do. An error is in `out_status`, and has been noted in the ring.
 */
bool quay__leg_fill(quay__ring *ring, bool by_helper, quay_status *out_status);
bool quay__leg_drain(quay__ring *ring, bool by_helper, quay_status *out_status);
bool quay__leg_submit(quay__ring *ring, bool by_helper, quay_status *out_status);
/* Waits for a transfer, if there is one that nobody waits for. */
bool quay__leg_await(quay__ring *ring, bool by_helper, quay_status *out_status);
/* After a failure, without the lock: waits until no transfer of the leg is under way. Changes the
 * thread's error. */
void quay__leg_settle(quay__leg *leg);

/* Makes the leg's streams wait for all that was submitted to another one of its device. */
quay_status quay__leg_follow(const quay__leg *leg, uint64_t stream);

/* How many may be at it, the calling one included. */
uint32_t quay__ring_threads_max(const quay__ring *ring);
/* Helpers that could do something now, if one more could where slots are the threads' own. */
uint64_t quay__leg_work(const quay__ring *ring);

#endif
