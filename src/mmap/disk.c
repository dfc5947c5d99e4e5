/* Which way the files of a disk are read faster that are not in the page cache: through the page
 * cache, which has them afterwards, or with direct I/O. It is measured once for each disk, by the
 * pieces of whatever copies come: so many bytes through the page cache, then as many with direct
 * I/O; nothing is read twice.
 *
 * Direct I/O is taken where it is at least twice as fast: a file that is read a second time has
 * then cost no more than if the page cache had had it.
 *
 * The ways are compared by how long pieces take: with the same number of threads at it all the time
 * that is in inverse proportion to the bytes a second, and holds across copies that begin and end.
 * The first pieces of a way, which are read beside the last ones of the other, are not counted. */
#include "core/checked.h"
#include "core/lifecycle.h"
#include "core/lock.h"
#include "core/os.h"
#include "mmap/mmap_impl.h"

#define DISKS 16u /* all others' files are read through the page cache */

#define UNCOUNTED ((uint64_t)16 << 20)
#define COUNTED   ((uint64_t)48 << 20)
#define FASTER    2u

typedef struct way {
  uint64_t begun, done;        /* bytes */
  uint64_t bytes, nanoseconds; /* of those that count; of all threads together */
} way;

enum {
  BUFFERED,
  DIRECT,
  WAYS
};

struct quay__disk {
  dev_t device;
  uint32_t process; /* the quay__fork_generation that measures it */
  bool decided, direct;
  way ways[WAYS];
};
typedef struct quay__disk disk;

/* Guarded by QUAY__LOCK_DISKS. */
static disk disks[DISKS];
static uint32_t disk_count;

/* NULL if there are too many. What is not decided yet begins anew in a child of a fork: pieces that
 * were under way do not end there. */
static disk *disk_of(dev_t device) {
  disk *found = NULL;
  for (uint32_t i = 0; i < disk_count && found == NULL; i++)
    found = disks[i].device == device ? &disks[i] : NULL;
  if (found != NULL && (found->decided || found->process == quay__fork_generation))
    return found;
  if (found == NULL && disk_count < DISKS)
    found = &disks[disk_count++];
  if (found != NULL)
    *found = (disk){.device = device, .process = quay__fork_generation};
  return found;
}

static bool is_full(uint64_t bytes) {
  return bytes >= UNCOUNTED + COUNTED;
}

quay__disk_verdict quay__disk_verdict_of(dev_t device) {
  quay__global_acquire(QUAY__LOCK_DISKS);
  const disk *const found = disk_of(device);
  quay__disk_verdict verdict = QUAY__DISK_BUFFERED;
  if (found != NULL && !found->decided)
    verdict = QUAY__DISK_UNDECIDED;
  if (found != NULL && found->decided && found->direct)
    verdict = QUAY__DISK_DIRECT;
  quay__global_release(QUAY__LOCK_DISKS);
  return verdict;
}

quay__disk_piece quay__disk_begin(dev_t device, uint64_t size) {
  quay__disk_piece piece = {.size = size};
  quay__global_acquire(QUAY__LOCK_DISKS);
  disk *const found = disk_of(device);
  if (found != NULL && found->decided) {
    piece.direct = found->direct;
  } else if (found != NULL) {
    piece.direct = is_full(found->ways[BUFFERED].begun) && !is_full(found->ways[DIRECT].begun);
    found->ways[piece.direct ? DIRECT : BUFFERED].begun += size;
    piece.disk = found;
  }
  quay__global_release(QUAY__LOCK_DISKS);
  if (piece.disk != NULL)
    piece.since = quay__os_nanoseconds();
  return piece;
}

static void count(way *own, uint64_t size, uint64_t nanoseconds) {
  if (own->done >= UNCOUNTED) {
    own->bytes += size;
    own->nanoseconds += nanoseconds;
  }
  own->done += size;
}

/* Nanoseconds a MiB and thread. */
static uint64_t slowness(const way *own) {
  return own->nanoseconds / quay__max(own->bytes >> 20, 1);
}

static void decide(disk *all) {
  if (!is_full(all->ways[BUFFERED].done) || !is_full(all->ways[DIRECT].done))
    return;
  all->decided = true;
  all->direct = slowness(&all->ways[BUFFERED]) >= FASTER * slowness(&all->ways[DIRECT]);
}

static void tell(const disk *all) {
  quay_log(QUAY_LOG_INFO,
           "mmap: files of disk %llu that are not in the page cache are read %s: a MiB took a "
           "thread %llu us through the page cache, %llu with direct I/O",
           (unsigned long long)all->device, all->direct ? "with direct I/O" : "through it",
           (unsigned long long)slowness(&all->ways[BUFFERED]) / 1000,
           (unsigned long long)slowness(&all->ways[DIRECT]) / 1000);
}

void quay__disk_end(const quay__disk_piece *piece, bool failed) {
  disk *const all = piece->disk;
  if (all == NULL)
    return;
  const uint64_t took = quay__os_nanoseconds() - piece->since;
  quay__global_acquire(QUAY__LOCK_DISKS);
  way *const own = &all->ways[piece->direct ? DIRECT : BUFFERED];
  const bool before = all->decided;
  if (failed) {
    own->begun -= piece->size;
  } else if (!before) {
    count(own, piece->size, took);
    decide(all);
  }
  const disk seen = *all;
  quay__global_release(QUAY__LOCK_DISKS);
  if (seen.decided && !before)
    tell(&seen);
}
