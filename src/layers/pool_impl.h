/* The pool layer: what its files share.
 *
 *   pool.c          options, the table, statistics
 *   pool_cache.c    allocation and free from the caller's side, and what a thread takes and keeps
 *   pool_stock.c    what threads keep: making room, giving it back
 *   pool_heap.c     the arenas: fitting and giving back, under the pool's lock
 *   pool_pending.c  extents that device work may still use
 *   pool_amounts.c  how much is taken at a time, held and given back
 *   pool_grow.c     more memory: where it goes, what is given up for it, out of memory, trim
 *   pool_region.c   blocks and reservations of the inner allocator
 *   pool_poison.c   what AddressSanitizer and Valgrind are told
 *
 * A block is a taken extent (offset_allocator.h), whose address is the raw buffer's cookie.
 *
 * What a thread keeps lies in places. The thread alone puts an extent into one, by a plain store
 * into an empty place. It takes one out by a plain store, too, while it has entered the lock of its
 * cache, and else by an exchange, as others do that give all of it back: they pause the lock first
 * (lock.h). So a hit needs no locked instruction, and it is those others who pay. All else that
 * says what is in a place is the thread's own, since an extent may be another's by the time it is
 * looked at. A place that others have emptied is found to be so when its turn comes.
 *
 * Locks: a thread's cache (a spin lock: of others that take, or of the thread when it moves more
 * than one) or the pool's lock, never both, and neither while the inner allocator or a device is
 * called. */
#ifndef QUAY_LAYERS_POOL_IMPL_H
#define QUAY_LAYERS_POOL_IMPL_H

#include <quay/backend.h>
#include <stdatomic.h>

#include "core/allocator_impl.h"
#include "core/lifecycle.h"
#include "core/lock.h"
#include "core/stream_impl.h"
#include "core/thread.h"
#include "layers/offset_allocator.h"

/* Arenas by size: what is small is packed apart, so that it does not break up large free extents.
 */
enum {
  QUAY__POOL_TINY_BYTES = 4 << 10,    /* up to here: the tiny arena, in size classes */
  QUAY__POOL_SMALL_BYTES = 1 << 20,   /* below: the small arena */
  QUAY__POOL_STOCK_BYTES = 256 << 10, /* up to here: kept in a thread's stock */
};

typedef enum quay__pool_arena {
  QUAY__POOL_TINY,
  QUAY__POOL_SMALL,
  QUAY__POOL_LARGE,
  QUAY__POOL_ARENAS,
} quay__pool_arena;

/* Sets of free extents of an arena. */
enum {
  QUAY__POOL_READY, /* there, and used by nothing */
  QUAY__POOL_BARE,  /* addresses without memory */
  /* From here on, one set a stream: used by work of that stream alone. `user` is an event after it,
   * of which the extent holds a reference. */
  QUAY__POOL_STREAMS,
  QUAY__POOL_STREAM_COUNT = QUAY__OFFSETS_SETS - QUAY__POOL_STREAMS,
};

/* How the inner allocator's memory is taken. */
typedef enum quay__pool_mode {
  QUAY__POOL_PAGES,  /* address space, and pages for it */
  QUAY__POOL_BLOCKS, /* blocks that are carved */
  QUAY__POOL_WHOLE,  /* a block for each allocation: what can't be carved is kept as it is */
} quay__pool_mode;

typedef struct quay__pool_region {
  quay_raw_buffer raw; /* of the inner allocator */
  uint64_t size;       /* bytes */
  uint64_t generation; /* of the device when it was made */
  quay__pool_arena arena;
  bool direct;         /* one allocation with options of its own, which is not used again */
  uint32_t number;     /* in the pool's table */
  quay__extent *first; /* the extent at offset 0, for good */
  uint64_t live;       /* stale: bytes that the program has not freed; else UINT64_MAX */
  uint32_t *commits;   /* QUAY_ALLOCATOR_WHOLE_PAGES: by page, see pool_region.c; else NULL */
  /* Poison, where there are tools that look: the host's address of offset 0, else NULL; and the
   * bytes from there that may be poisoned. */
  char *host;
  atomic_uint_fast64_t reach;
} quay__pool_region;

/* A stream that memory was asked for, and the set of its number. */
typedef struct quay__pool_stream {
  uint64_t id;        /* 0: the slot is unused */
  quay_event *latest; /* a reference: no event of the set is known to be later */
} quay__pool_stream;

enum {
  QUAY__POOL_CLASSES = 32, /* lists of the tiny arena's sizes */
  QUAY__POOL_CLASS_DEPTH = 64,
  QUAY__POOL_BUCKETS = 64, /* lists of all other small sizes, by hash */
  QUAY__POOL_BUCKET_DEPTH = 8,
  QUAY__POOL_LISTS = QUAY__POOL_CLASSES + QUAY__POOL_BUCKETS,
  QUAY__POOL_PLACES =
      QUAY__POOL_CLASSES * QUAY__POOL_CLASS_DEPTH + QUAY__POOL_BUCKETS * QUAY__POOL_BUCKET_DEPTH,
  QUAY__POOL_RECENT = 8, /* blocks of other sizes, which a thread freed last */
};

typedef struct quay__pool_place {
  _Atomic(quay__extent *) extent; /* NULL: none, or others have taken it */
  uint64_t size;                  /* the thread's own: bytes of what it put there */
} quay__pool_place;

/* What one thread keeps of small blocks. Made at its first allocation. */
typedef struct quay__pool_stock {
  atomic_uchar counts[QUAY__POOL_LISTS]; /* places of a list above are empty */
  quay__pool_place places[QUAY__POOL_PLACES];
} quay__pool_stock;

typedef struct quay__pool_cache {
  _Alignas(64) quay__spin lock;
  uint32_t hand;                     /* which list is emptied next where there are too many bytes */
  uint32_t recent_used;              /* places of `recent` from here on are empty */
  uint64_t bytes;                    /* of the stock, with what others have taken unnoticed */
  uint64_t recent_bytes;             /* of `recent`, likewise */
  uint64_t hits;                     /* allocations out of `recent` since the heap was last asked */
  _Atomic(quay__pool_stock *) stock; /* NULL: none yet */
  /* The stock may have extents that work still uses. Set by the thread, after it has put one. */
  atomic_bool pending;
  /* What is too large for the stock: as the thread freed it, not yet one with its neighbours. Any
   * allocation that would take more memory, or more than ever was in use, gives it back first. */
  _Alignas(64) quay__pool_place recent[QUAY__POOL_RECENT];
} quay__pool_cache;

/* Extents taken out of `recent`. */
typedef struct quay__pool_batch {
  quay__extent *extents[QUAY__POOL_RECENT];
  uint32_t count;
} quay__pool_batch;

/* Calls under way, in the lower half; the upper one is the quay__fork_generation that they are
 * counted in, since those of the threads that a fork leaves behind never end in the child. */
typedef atomic_uint_fast64_t quay__pool_tally;

typedef struct quay__pool {
  quay__pool_cache caches[QUAY__SHARD_COUNT - 1]; /* by quay__thread_shard() */
  quay_allocator *inner;                          /* the layer retains it */
  quay_allocator *allocator;                      /* the layer itself; not retained */
  atomic_uint_fast64_t generation;                /* of the device when it was looked at last */
  /* Allocations that find no memory: meanwhile threads keep nothing. And calls that have free
   * memory in their hands, where those don't find it. */
  quay__pool_tally starving, moving;
  uint64_t cache_bytes;   /* of each thread: what is small */
  uint64_t recent_bytes;  /* of each thread: what is large */
  uint64_t alignment;     /* of regions: larger ones are direct */
  uint64_t page;          /* PAGES: bytes that can be committed at least */
  uint64_t piece;         /* PAGES: bytes that are, where there is memory */
  uint64_t reserve_bytes; /* PAGES: of a region */
  uint64_t block_bytes;   /* of a block, or a commit; 0: by what is taken so far */
  uint64_t max_bytes;     /* UINT64_MAX: no limit */
  uint64_t device_bytes;  /* memory of the device; UINT64_MAX: it does not tell */
  quay__pool_mode mode;
  uint32_t granule_log2; /* of every size: the allocator's alignment */
  bool has_streams;
  bool whole_pages; /* QUAY_ALLOCATOR_WHOLE_PAGES */
  bool tight;       /* keep=tight */
  bool poisons;     /* what is free is poisoned, see pool_poison.c */
  bool short_way;   /* parts of blocks that nobody has to be told of */
  quay__spin_set spins;

  quay__lock lock; /* guards all below */
  quay__offsets arenas[QUAY__POOL_ARENAS];
  quay__pool_region **regions; /* by number; NULL where there is none */
  uint32_t *free_numbers;      /* below region_count, as much room as for regions */
  uint32_t region_count, region_room, free_count, stream_count;
  uint64_t given;     /* extents so far that threads gave back */
  uint64_t committed; /* bytes of the inner allocator's memory */
  uint64_t used;      /* bytes of taken extents, kept ones included */
  uint64_t peak_used;
  uint64_t extra;  /* bytes that it may hold besides, so that less has to be given back */
  uint64_t credit; /* what giving back may still cost, in allocations */
  quay__pool_stream streams[QUAY__POOL_STREAM_COUNT];
  /* Extents that work of several streams uses, or of one without a set: linked by `previous`, their
   * events by `user` in extents that are spare otherwise. */
  quay__extent *held;
  uint64_t held_bytes;
  quay_event *dead; /* events to end where the backend may be called */
} quay__pool;

/* What is asked for. */
typedef struct quay__pool_want {
  quay__pool_arena arena;
  uint64_t size; /* rounded */
  uint64_t alignment;
  uint64_t stream; /* id; 0: none */
} quay__pool_want;

static inline quay__pool *quay__pool_of(const quay_allocator *allocator) {
  return allocator->self;
}

static inline uint32_t quay__pool_tally_read(const quay__pool_tally *tally, memory_order order) {
  const uint64_t value = atomic_load_explicit(tally, order);
  return value >> 32 == quay__fork_generation ? (uint32_t)value : 0;
}

/* False: it reads as 0. True of what a fork left behind, too. */
static inline bool quay__pool_tally_is_used(const quay__pool_tally *tally) {
  return (uint32_t)atomic_load_explicit(tally, memory_order_relaxed) != 0;
}

static inline void quay__pool_tally_up(quay__pool_tally *tally) {
  uint64_t value = atomic_load_explicit(tally, memory_order_relaxed);
  while (value >> 32 != quay__fork_generation) {
    if (atomic_compare_exchange_weak_explicit(tally, &value,
                                              ((uint64_t)quay__fork_generation << 32) + 1,
                                              memory_order_seq_cst, memory_order_relaxed))
      return;
  }
  atomic_fetch_add_explicit(tally, 1, memory_order_seq_cst);
}

static inline void quay__pool_tally_down(quay__pool_tally *tally, memory_order order) {
  atomic_fetch_sub_explicit(tally, 1, order);
}

/* Around having free memory in one's hands. */
static inline void quay__pool_move_begin(quay__pool *pool) {
  quay__pool_tally_up(&pool->moving);
}

static inline void quay__pool_move_end(quay__pool *pool) {
  quay__pool_tally_down(&pool->moving, memory_order_release);
}

static inline quay__pool_region *quay__pool_region_of(const quay__extent *taken) {
  return taken->owner;
}

/* Whether the memory is of the device's present generation. */
QUAY__ALWAYS static inline bool quay__pool_is_current(quay__pool *pool,
                                                      const quay__pool_region *region) {
  return region->generation == atomic_load_explicit(&pool->generation, memory_order_acquire);
}

/* Sizes of the stock. */

/* Below QUAY__POOL_CLASSES for tiny sizes that are rounded, whose granules are at most 64: exact up
 * to 16, then eight to each doubling. */
QUAY__ALWAYS static inline uint32_t quay__pool_class_of(uint64_t granules) {
  if (granules < 16)
    return (uint32_t)granules - 1;
  const uint32_t log2 = 63 - (uint32_t)__builtin_clzll(granules);
  return 15 + (log2 - 4) * 8 + (uint32_t)(granules >> (log2 - 3) & 7);
}

QUAY__ALWAYS static inline uint32_t quay__pool_bucket_of(uint64_t granules) {
  return (uint32_t)(granules * UINT64_C(0x9e3779b97f4a7c15) >> 58);
}

/* The list of a size that is rounded. */
QUAY__ALWAYS static inline uint32_t quay__pool_list_number(const quay__pool *pool, uint64_t size) {
  const uint64_t granules = size >> pool->granule_log2;
  return size <= QUAY__POOL_TINY_BYTES ? quay__pool_class_of(granules)
                                       : QUAY__POOL_CLASSES + quay__pool_bucket_of(granules);
}

QUAY__ALWAYS static inline quay__pool_place *quay__pool_list_numbered(quay__pool_stock *stock,
                                                                      uint32_t number) {
  const uint32_t bucket = number - QUAY__POOL_CLASSES; /* of no meaning in classes */
  return &stock->places[number < QUAY__POOL_CLASSES ? number * QUAY__POOL_CLASS_DEPTH
                                                    : QUAY__POOL_CLASSES * QUAY__POOL_CLASS_DEPTH +
                                                          bucket * QUAY__POOL_BUCKET_DEPTH];
}

QUAY__ALWAYS static inline uint32_t quay__pool_list_depth(uint32_t number) {
  return number < QUAY__POOL_CLASSES ? QUAY__POOL_CLASS_DEPTH : QUAY__POOL_BUCKET_DEPTH;
}

/* Takes out what is in a place; NULL: it is empty. */
QUAY__ALWAYS static inline quay__extent *quay__pool_take_out(quay__pool_place *place) {
  if (atomic_load_explicit(&place->extent, memory_order_relaxed) == NULL)
    return NULL;
  return atomic_exchange_explicit(&place->extent, NULL, memory_order_acquire);
}

/* pool_cache.c */
quay_status quay__pool_alloc(quay_allocator *allocator, const quay_alloc_request *request,
                             quay_raw_buffer *out_raw);
void quay__pool_free(quay_allocator *allocator, quay_raw_buffer *raw, quay_event *const *pending,
                     size_t count);

/* pool_stock.c */
/* The calling thread's; NULL: it has none. */
static inline quay__pool_cache *quay__pool_cache_of_thread(quay__pool *pool) {
  const uint32_t shard = quay__thread_shard();
  return shard < QUAY__SHARD_COUNT - 1 ? &pool->caches[shard] : NULL;
}
/* The same, and NULL, too, where the thread has not been given a number yet. */
static inline quay__pool_cache *quay__pool_cache_at_once(quay__pool *pool) {
  const uint32_t shard = quay__thread_own_shard();
  return shard < QUAY__SHARD_COUNT - 1 ? &pool->caches[shard] : NULL;
}
/* Gives what all threads keep back to the arenas. */
void quay__pool_flush(quay__pool *pool);
/* What all threads keep of large blocks alone. */
void quay__pool_flush_recent(quay__pool *pool);
/* What those threads keep of small blocks that may have some that work still uses. */
void quay__pool_flush_pending(quay__pool *pool);
/* Whether any thread keeps some; and some of anything. */
bool quay__pool_has_recent(quay__pool *pool);
bool quay__pool_has_kept(quay__pool *pool);
/* Takes out what one keeps of large blocks, of the first `count` places. */
void quay__pool_gather(quay__pool_cache *cache, uint32_t count, quay__pool_batch *out_batch);
/* All of the calling thread's. */
void quay__pool_gather_own(quay__pool_cache *cache, quay__pool_batch *out_batch);
void quay__pool_caches_destroy(quay__pool *pool);
/* Sees to the thread's stock. Failing is no error: the thread goes without. */
void quay__pool_make_stock(quay__pool *pool);
/* Of the calling thread: makes room for one more extent of a size in its stock, and gives what has
 * to go to the arenas. */
void quay__pool_make_room(quay__pool *pool, quay__pool_cache *cache, uint64_t size);

/* pool_heap.c */
/* Gives back what `own`, the calling thread's (may be NULL), has of large blocks, takes up to
 * `count` extents that are there, and gives their number. `hits`: allocations that did not come
 * here since the last one. Where it is more than one, they are counted in `moving`. */
uint32_t quay__pool_heap_take(quay__pool *pool, const quay__pool_want *want, quay__pool_cache *own,
                              uint64_t hits, quay__extent **out_extents, uint32_t count);
/* Gives extents back, each with the event in `user` or none. */
void quay__pool_heap_give(quay__pool *pool, quay__extent *const *extents, uint32_t count);
/* Gives back one that the work of several events uses, besides that of `user`; takes references. */
void quay__pool_heap_hold(quay__pool *pool, quay__extent *extent, quay_event *const *pending,
                          size_t count);
/* Gives back one of a region of an older generation. */
void quay__pool_heap_give_stale(quay__pool *pool, quay__extent *extent);
/* The device has begun a new generation: what is free of the old one's memory is forgotten. */
void quay__pool_renew(quay__pool *pool);

/* With the lock held: */

/* The set of a stream; 0: it has none. */
uint32_t quay__pool_stream_set(const quay__pool *pool, uint64_t stream);
/* Takes a part of a free extent, for the caller: owner and, inherited, the event. */
quay__extent *quay__pool_heap_part(quay__pool *pool, quay__extent *extent, uint64_t offset,
                                   uint64_t size);
void quay__pool_count_used(quay__pool *pool, uint64_t size);
quay__extent *quay__pool_heap_fit(quay__pool *pool, const quay__pool_want *want);
/* Makes a taken extent free, in the set that its event says. */
void quay__pool_heap_put(quay__pool *pool, quay__extent *extent);

/* pool_pending.c */
/* Whether extents became ready. */
bool quay__pool_poll(quay__pool *pool, const quay__pool_want *want);
/* quay__offsets.join of the streams' sets. */
bool quay__pool_join(quay__extent *kept, quay__extent *gone, void *user);
/* Waits for everything. */
void quay__pool_wait(quay__pool *pool);
/* With the lock held: bytes that are not ready. */
uint64_t quay__pool_pending_bytes(const quay__pool *pool);
/* Of a pool that ends: lets go of all events. Those that could not be waited for, as when the
 * process ends, are still in their extents. */
void quay__pool_drop_events(quay__pool *pool);
/* Ends events where the backend may be called. */
void quay__pool_bury(quay__pool *pool);

/* pool_amounts.c, with the lock held: */

/* The largest power of two that is not above it; 0 of 0. */
static inline uint64_t quay__pool_power_below(uint64_t value) {
  return value == 0 ? 0 : UINT64_C(1) << (63 - __builtin_clzll(value));
}
/* Bytes of one commit at least, and no more than is needed where that is what there is. */
uint64_t quay__pool_least_commit(const quay__pool *pool, quay__pool_arena arena);
/* Bytes of one commit at most: the larger, the fewer, and the less often one is wholly free. */
uint64_t quay__pool_largest_commit(const quay__pool *pool);
/* What the pool may hold once `more` bytes are in use besides. */
uint64_t quay__pool_target(const quay__pool *pool, uint64_t more);
/* Bytes that an extent may give back besides those that have to, so that the next allocations have
 * them: pages go in one call however many they are. */
uint64_t quay__pool_welcome(const quay__pool *pool);
/* So many allocations more, for which memory may be given back. */
void quay__pool_earn(quay__pool *pool, uint64_t allocations);
/* For a piece that is given back. */
void quay__pool_pay(quay__pool *pool);
/* Whether giving back comes too dear; then the pool may hold a little more from now on. */
bool quay__pool_is_too_dear(quay__pool *pool);

/* pool_grow.c */
quay_status quay__pool_grow(quay__pool *pool, const quay__pool_want *want,
                            quay__extent **out_extent);
/* Gives free memory to the inner allocator and tells how much; and what that keeps, too. */
uint64_t quay__pool_release_free(quay__pool *pool);
void quay__pool_give_back(quay__pool *pool);
/* Allocates by `first`; where that finds no memory, by `last`, with all that is free and kept given
 * back before. Both get `want`. */
typedef quay_status quay__pool_attempt(quay__pool *pool, const void *want,
                                       quay__extent **out_extent);
quay_status quay__pool_try(quay__pool *pool, quay__pool_attempt *first, quay__pool_attempt *last,
                           const void *want, quay__extent **out_extent);
/* The error of what would be above the limit. */
quay_status quay__pool_fail_limit(const quay__pool *pool, uint64_t size);

/* pool_poison.c: no operations unless quay__pool.poisons is set. */

/* Finds the host's address of the region's memory. */
void quay__pool_poison_begin(const quay__pool *pool, quay__pool_region *region);
/* Nothing of the region is poisoned any more. */
void quay__pool_poison_end(quay__pool_region *region);
/* Memory that has come: nobody's yet. */
void quay__pool_poison_range(quay__pool_region *region, uint64_t offset, uint64_t size);
void quay__pool_unpoison_range(quay__pool_region *region, uint64_t offset, uint64_t size);
/* An extent that has become free, and that no work uses. */
static inline void quay__pool_poison(quay__pool *pool, quay__pool_region *region,
                                     const quay__extent *extent) {
  if (pool->poisons)
    quay__pool_poison_range(region, extent->offset, extent->size);
}
/* A block that is handed out. */
void quay__pool_expose(quay__pool_region *region, const quay__extent *extent, uint64_t size,
                       bool zeroed);

/* pool_region.c */

/* Reserves address space for at least what is wanted: a region without memory. */
quay_status quay__pool_region_reserve(quay__pool *pool, const quay__pool_want *want);
/* Counts bytes as committed; false: that would be above the limit. Whoever has counted them makes a
 * region of them, which does not count them again, or takes them back. */
bool quay__pool_charge(quay__pool *pool, uint64_t size);
void quay__pool_uncharge(quay__pool *pool, uint64_t size);
/* A block of `size` bytes, which are counted, and of which what is wanted is taken at once. */
quay_status quay__pool_region_block(quay__pool *pool, const quay__pool_want *want, uint64_t size,
                                    quay__extent **out_taken);
/* An allocation of its own, with the options of the request; counts it. */
quay_status quay__pool_direct(quay__pool *pool, const quay_alloc_request *request,
                              quay__extent **out_taken);
/* With the lock held: takes a region and its extents out of the book-keeping. */
void quay__pool_region_leave(quay__pool *pool, quay__pool_region *region);
/* Frees it, once it has left. */
void quay__pool_region_end(quay__pool *pool, quay__pool_region *region, quay_event *const *pending,
                           size_t count);
/* Ends the region of a direct extent, which the program has freed. */
void quay__pool_direct_end(quay__pool *pool, quay__pool_region *region, quay_event *const *pending,
                           size_t count);

/* Commits pages of a region, in pieces of at most `piece` bytes where pages go back whole. Nothing
 * is left on error. The thread of the extent alone may call it. */
quay_status quay__pool_commit(quay__pool *pool, quay__pool_region *region, uint64_t offset,
                              uint64_t size, uint64_t piece);
/* False, and logged: they stay. */
bool quay__pool_decommit(quay__pool *pool, quay__pool_region *region, uint64_t offset,
                         uint64_t size);
/* The range of whole commits in an extent that is there, or as many of them as are `enough` bytes.
 * False: none. */
bool quay__pool_whole_commits(const quay__pool *pool, const quay__pool_region *region,
                              const quay__extent *extent, uint64_t enough, uint64_t *out_begin,
                              uint64_t *out_end);

#endif
