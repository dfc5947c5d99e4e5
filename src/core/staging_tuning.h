/* The numbers by which staging cuts copies into pieces, in one place, so that benchmarks can sweep
 * them; and what a staged copy spent its time on. */
#ifndef QUAY_CORE_STAGING_TUNING_H
#define QUAY_CORE_STAGING_TUNING_H

#include <stdbool.h>
#include <stdint.h>

/* When files are read of their mappings, under leases, and not by calls. */
typedef enum quay__staging_leases {
  QUAY__LEASES_AGAIN, /* once as much has been read of them as there is */
  QUAY__LEASES_AT_ONCE,
  QUAY__LEASES_NEVER,
} quay__staging_leases;

/* By what slots are filled. */
typedef enum quay__staging_stores {
  QUAY__STORES_AHEAD,     /* quay__host_copy_ahead() */
  QUAY__STORES_PLAIN,     /* memcpy(): slower where memory is busy */
  QUAY__STORES_STREAMING, /* slower on all devices so far */
} quay__staging_stores;

/* Sizes are in bytes. */
typedef struct quay__staging_tuning {
  uint64_t chunk; /* of a slot on a way that has a stream, at most */
  /* On the way to a device with one queue for copies several threads hand over slots together: they
   * may be smaller then, which keeps them in the caches. */
  uint64_t chunk_in;
  uint32_t slots_in;
  /* Up to so many of them, whoever's, go by one call, of join_least bytes or more while more than
   * in_flight_least is under way; 0, 1: each by itself, and cut as on all other ways. */
  uint32_t batch;
  uint64_t ramp;             /* of the first and the last chunks there */
  uint64_t join_least;       /* neighbours are joined to transfers of so much ... */
  uint64_t join_most;        /* ... to so much, */
  uint64_t in_flight_least;  /* unless less than this is under way */
  uint64_t segment;          /* of the memory of slots: what it grows by, at least */
  uint32_t slots_per_thread; /* there are at least 8 in all */
  /* Where several threads are at the host's side, each keeps to slots of its own and hands every
   * one to the device by itself; else all share all slots, and neighbours are joined. */
  bool own_slots;
  uint32_t streams;            /* that a device's slots take turns on; 0: as many as it says */
  quay__staging_stores stores; /* into slots */
  quay__staging_leases leases;
  bool no_stand_ins; /* device memory is copied by its own backend, also where another is faster */
  /* Page-locked memory of another making, for segments of any device; NULL: the system's pages,
   * locked by the device. */
  unsigned char *(*memory_make)(uint64_t size);
  void (*memory_end)(const unsigned char *memory, uint64_t size);
} quay__staging_tuning;

const quay__staging_tuning *quay__staging_tuning_get(void);
/* NULL: the defaults. For benchmarks and tests: no copy may be under way. */
void quay__staging_tuning_set(const quay__staging_tuning *tuning);

/* Where the time of a staged copy went. Nanoseconds; those of several threads are added up. */
typedef struct quay__staging_report {
  uint64_t total;   /* of the calling thread, from entry to return */
  uint64_t host;    /* threads copied or read between slots and the host's side */
  uint64_t submit;  /* threads handed transfers to the device */
  uint64_t wait;    /* threads waited for transfers, with nothing else to do */
  uint64_t idle;    /* the device had no transfer under way, between the first and the last one */
  uint64_t begin;   /* before the first transfer: slots, threads, the first chunk */
  uint64_t end;     /* after the last transfer was seen to be done */
  uint64_t grow;    /* the calling thread got memory for slots */
  uint32_t threads; /* the most that took part at a time */
  uint32_t slots;   /* the most that there were */
  uint64_t chunks, transfers;
} quay__staging_report;

/* The calling thread's staged copies fill in `report` from here on, each anew; NULL: none. */
void quay__staging_report_to(quay__staging_report *report);

#endif
