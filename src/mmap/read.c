/* Reading large ranges of files that are in the page cache, faster than pread alone, in one of two
 * ways; others are copy.c's.
 *
 * Where the file can be leased (lease.c) its size can't change, and the bytes are copied from the
 * mapping.
 *
 * Elsewhere the mapping is not touched. The kernel copies page by page and waits for memory at the
 * start of each, so the lines of a block are brought into the processor's cache beforehand, by
 * prefetches through the mapping, while the block before is written to its destination. A prefetch
 * never faults: the bytes come by pread, and a file that was truncated falls short there.
 *
 * Both need the mapping's page table entries. They are made in whole pieces (populated), each once;
 * what is populated counts as resident memory of the process and has a budget. */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "core/checked.h"
#include "core/host_copy.h"
#include "core/os.h"
#include "core/staging.h"
#include "core/staging_tuning.h"
#include "core/thread.h"
#include "mmap/mmap_impl.h"

#ifndef MADV_POPULATE_READ /* linux/mman.h, since Linux 5.14 */
#define MADV_POPULATE_READ 22
#endif

/* What is populated at a time, from the start of the mapping. */
#define PIECE ((uint64_t)4 << 20)

/* Four pages side by side keep as many of the hardware's streams busy; see host_copy.c. */
#define LINE  64u
#define PAGE  4096u
#define PAGES 4u

/* What is read at a time. It stays in the first-level cache until it is written: of 16, 32, 64 and
 * 128 KiB this was the fastest, by a tenth over 64 KiB. */
#define BLOCK ((uint64_t)PAGE * PAGES)

/* Whether a piece is in the page cache is asked once every so many bytes: the kernel's usual
 * read-ahead, and so what comes and goes together. */
#define PROBE_DISTANCE ((uint64_t)128 << 10)

/* How many places of a range are looked at, at most, to tell whether the page cache has it. */
#define SAMPLES 64u

/* Populated pieces take up at most this part of the machine's memory. */
#define BUDGET_PART 4

/* Which pieces of a mapping are populated; the bits of one word belong to 64 pieces. */
struct quay__populated {
  uint64_t pieces;
  atomic_uint_fast64_t by_calls; /* bytes that staged copies have read without */
  atomic_uint_fast64_t words[];
};

static atomic_uint_fast64_t populated_bytes; /* of all mappings */

static uint64_t budget(void) {
  static atomic_uint_fast64_t cached; /* and one more; 0: not known yet */
  uint64_t value = atomic_load_explicit(&cached, memory_order_relaxed);
  if (value == 0) {
    uint64_t total = 0, available = 0;
    if (quay__os_memory_info(&total, &available) != 0)
      total = 0;
    value = total / BUDGET_PART + 1;
    atomic_store_explicit(&cached, value, memory_order_relaxed);
  }
  return value - 1;
}

/* The pieces of a mapping, made at first need; NULL if there is no memory for them. A mapping is
 * never in memory that is const. */
static struct quay__populated *populated_of(const quay__mapping *mapping) {
  quay__mapping *owner =
      (quay__mapping *)(uintptr_t)mapping; /* NOLINT(performance-no-int-to-ptr) */
  struct quay__populated *found = atomic_load_explicit(&owner->populated, memory_order_acquire);
  if (found != NULL)
    return found;
  const uint64_t pieces = (mapping->mapped - 1) / PIECE + 1;
  const uint64_t words = (pieces - 1) / 64 + 1;
  struct quay__populated *made =
      quay__os_calloc(1, sizeof *made + words * sizeof(atomic_uint_fast64_t));
  if (made == NULL)
    return NULL;
  made->pieces = pieces;
  if (atomic_compare_exchange_strong_explicit(&owner->populated, &found, made, memory_order_acq_rel,
                                              memory_order_acquire))
    return made;
  quay__os_free(made);
  return found;
}

static bool is_populated(const struct quay__populated *populated, uint64_t piece) {
  const uint64_t bit = UINT64_C(1) << (piece % 64);
  return (atomic_load_explicit(&populated->words[piece / 64], memory_order_relaxed) & bit) != 0;
}

/* Bytes of the mapping in a piece; the last one may be short. */
static uint64_t bytes_in(const quay__mapping *mapping, uint64_t piece) {
  return quay__min(PIECE, mapping->mapped - piece * PIECE);
}

/* False if it is somebody else's already, or the budget is spent. */
static bool claim(const quay__mapping *mapping, struct quay__populated *populated, uint64_t piece) {
  const uint64_t bit = UINT64_C(1) << (piece % 64);
  const uint64_t bytes = bytes_in(mapping, piece);
  const bool fits =
      atomic_fetch_add_explicit(&populated_bytes, bytes, memory_order_relaxed) + bytes <= budget();
  if (fits && (atomic_fetch_or_explicit(&populated->words[piece / 64], bit, memory_order_relaxed) &
               bit) == 0)
    return true;
  atomic_fetch_sub_explicit(&populated_bytes, bytes, memory_order_relaxed);
  return false;
}

/* Whether it was populated. */
static bool give_up(const quay__mapping *mapping, struct quay__populated *populated,
                    uint64_t piece) {
  const uint64_t bit = UINT64_C(1) << (piece % 64);
  if ((atomic_fetch_and_explicit(&populated->words[piece / 64], ~bit, memory_order_relaxed) &
       bit) == 0)
    return false;
  atomic_fetch_sub_explicit(&populated_bytes, bytes_in(mapping, piece), memory_order_relaxed);
  return true;
}

void quay__populated_free(quay__mapping *mapping) {
  struct quay__populated *populated =
      atomic_load_explicit(&mapping->populated, memory_order_acquire);
  if (populated == NULL)
    return;
  for (uint64_t piece = 0; piece < populated->pieces; ++piece)
    (void)give_up(mapping, populated, piece);
  quay__os_free(populated);
}

void quay__populated_drop(const quay__mapping *mapping, uint64_t offset, uint64_t size) {
  struct quay__populated *populated =
      atomic_load_explicit(&mapping->populated, memory_order_acquire);
  if (populated == NULL)
    return;
  const uint64_t start = offset - mapping->offset;
  atomic_store_explicit(&populated->by_calls, 0, memory_order_relaxed);
  for (uint64_t piece = start / PIECE; piece <= (start + size - 1) / PIECE; ++piece) {
    /* A window may begin or end within a piece, but the whole of it was populated. */
    if (give_up(mapping, populated, piece)) {
      (void)quay__os_madvise(mapping->address + piece * PIECE, bytes_in(mapping, piece),
                             MADV_DONTNEED);
    }
  }
}

/* Whether the page cache seems to have the whole piece. Populating would read what is missing by
 * page faults, in small requests. */
static bool piece_is_cached(const quay__mapping *mapping, uint64_t piece) {
  const uint64_t end = bytes_in(mapping, piece);
  unsigned char byte;
  for (uint64_t at = 0; at < end; at += PROBE_DISTANCE) {
    const uint64_t offset = mapping->offset + piece * PIECE + at;
    if (quay__os_pread_cached(mapping->file, &byte, 1, offset) != 1)
      return false;
  }
  return true;
}

/* Whether all of the range has its page table entries. Errors are left to the reading. */
static bool populate(const quay__mapping *mapping, uint64_t offset, uint64_t size) {
  struct quay__populated *populated = populated_of(mapping);
  if (populated == NULL)
    return false;
  const uint64_t start = offset - mapping->offset;
  for (uint64_t piece = start / PIECE; piece <= (start + size - 1) / PIECE; ++piece) {
    if (is_populated(populated, piece))
      continue;
    if (!claim(mapping, populated, piece))
      return false;
    if (!piece_is_cached(mapping, piece) ||
        quay__os_madvise(mapping->address + piece * PIECE, bytes_in(mapping, piece),
                         MADV_POPULATE_READ) != 0) {
      (void)give_up(mapping, populated, piece);
      return false;
    }
  }
  return true;
}

/* Whether all pages of the range are in memory: one that was dropped since it was populated would
 * be read from the disk when it is touched, and an error of the disk be a SIGBUS. */
static bool is_resident(const quay__mapping *mapping, uint64_t offset, uint64_t size) {
  unsigned char resident[PIECE / PAGE];
  const uint64_t page = quay__os_page_size();
  uint64_t at = quay__align_down(offset - mapping->offset, page);
  const uint64_t end = offset - mapping->offset + size;
  while (at < end) {
    const uint64_t pages = quay__min((end - at - 1) / page + 1, sizeof resident);
    if (quay__os_mincore(mapping->address + at, pages * page, resident) != 0)
      return false;
    for (uint64_t i = 0; i < pages; ++i) {
      if ((resident[i] & 1) == 0)
        return false;
    }
    at += pages * page;
  }
  return true;
}

static bool all_populated(const quay__mapping *mapping, const struct quay__populated *populated,
                          uint64_t offset, uint64_t size) {
  const uint64_t start = offset - mapping->offset;
  for (uint64_t piece = start / PIECE; piece <= (start + size - 1) / PIECE; ++piece) {
    if (!is_populated(populated, piece))
      return false;
  }
  return true;
}

/* Page table entries make a copy to a device some hundredths faster, and cost a tenth of one or
 * more: what is read just once is better read by calls. */
static bool is_worth_a_lease(const quay__mapping *mapping, uint64_t offset, uint64_t size) {
  if (!quay__thread_in_staging)
    return true;
  const quay__staging_leases leases = quay__staging_tuning_get()->leases;
  if (leases != QUAY__LEASES_AGAIN)
    return leases == QUAY__LEASES_AT_ONCE;
  struct quay__populated *populated = populated_of(mapping);
  if (populated == NULL)
    return false;
  if (all_populated(mapping, populated, offset, size) ||
      atomic_load_explicit(&populated->by_calls, memory_order_relaxed) >= mapping->mapped)
    return true;
  atomic_fetch_add_explicit(&populated->by_calls, size, memory_order_relaxed);
  return false;
}

/* Copies the range from the mapping; false, and nothing was moved, where that can't be done. */
static bool read_leased(const quay__mapping *mapping, uint64_t offset, unsigned char *memory,
                        uint64_t size) {
  /* A mapping is never in memory that is const. */
  quay__mapping *owner =
      (quay__mapping *)(uintptr_t)mapping; /* NOLINT(performance-no-int-to-ptr) */
  /* Populating touches nothing, and may take a while: nobody has to wait for it. */
  if (mapping->mode != QUAY_MAP_READ_ONLY || !quay__lease_may(owner) ||
      !is_worth_a_lease(mapping, offset, size) || !populate(mapping, offset, size) ||
      !quay__lease_take(owner, false))
    return false;
  const bool there = is_resident(mapping, offset, size);
  if (there && quay__thread_in_staging) {
    quay__staging_fill(memory, quay__mapping_at(mapping, offset), size);
  } else if (there) {
    quay__host_stream(memory, quay__mapping_at(mapping, offset), size);
  }
  quay__lease_drop(owner);
  return there;
}

#if defined(__x86_64__)
#include <immintrin.h>

/* Writes a block that is in the cache to its destination, and meanwhile brings in as many bytes
 * from `ahead`. Both `to` and `block` are aligned to a line; `ahead` is never read. */
__attribute__((target("avx2"))) static void
stream_block_avx2(unsigned char *to, const unsigned char *block, const unsigned char *ahead) {
  for (uint64_t line = 0; line < PAGE; line += LINE) {
    for (uint64_t page = 0; page < PAGES; ++page) {
      const uint64_t at = page * PAGE + line;
      const __m256i *from = (const void *)(block + at);
      __m256i *into = (void *)(to + at);
      _mm_prefetch((const char *)ahead + at, _MM_HINT_T0);
      const __m256i low = _mm256_load_si256(from), high = _mm256_load_si256(from + 1);
      _mm256_stream_si256(into, low);
      _mm256_stream_si256(into + 1, high);
    }
  }
}

static void stream_block_sse2(unsigned char *to, const unsigned char *block,
                              const unsigned char *ahead) {
  for (uint64_t line = 0; line < PAGE; line += LINE) {
    for (uint64_t page = 0; page < PAGES; ++page) {
      const uint64_t at = page * PAGE + line;
      const __m128i *from = (const void *)(block + at);
      __m128i *into = (void *)(to + at);
      _mm_prefetch((const char *)ahead + at, _MM_HINT_T0);
      const __m128i a = _mm_load_si128(from), b = _mm_load_si128(from + 1);
      const __m128i c = _mm_load_si128(from + 2), d = _mm_load_si128(from + 3);
      _mm_stream_si128(into, a);
      _mm_stream_si128(into + 1, b);
      _mm_stream_si128(into + 2, c);
      _mm_stream_si128(into + 3, d);
    }
  }
}

static bool block_is_cached(const quay__mapping *mapping, unsigned char *block, uint64_t offset) {
  return quay__os_pread_cached(mapping->file, block, BLOCK, offset) == (ssize_t)BLOCK;
}

/* The whole blocks of a range whose first one is in `block` already. Returns the bytes moved. */
static uint64_t stream_blocks(const quay__mapping *mapping, uint64_t offset, unsigned char *memory,
                              uint64_t size, unsigned char *block) {
  const bool wide = __builtin_cpu_supports("avx2");
  const unsigned char *source = quay__mapping_at(mapping, offset);
  uint64_t done = 0;
  do {
    const bool more = size - done >= 2 * BLOCK;
    const unsigned char *ahead = more ? source + done + BLOCK : block;
    if (wide) {
      stream_block_avx2(memory + done, block, ahead);
    } else {
      stream_block_sse2(memory + done, block, ahead);
    }
    done += BLOCK;
    if (!more)
      break;
  } while (block_is_cached(mapping, block, offset + done));
  _mm_sfence(); /* streaming stores are weakly ordered: make them visible before what follows */
  return done;
}

static uint64_t read_by_blocks(const quay__mapping *mapping, uint64_t offset, unsigned char *memory,
                               uint64_t size) {
  const uint64_t page = quay__os_page_size();
  const uint64_t head = (page - ((uintptr_t)memory & (page - 1))) & (page - 1);
  if (size < head + 2 * BLOCK)
    return 0;
  unsigned char *block = quay__os_aligned_alloc(page, BLOCK);
  if (block == NULL)
    return 0;
  uint64_t done = 0;
  if (!block_is_cached(mapping, block, offset + head)) {
    /* Entries of pages that left the page cache are gone: to be made anew when they are back. */
    quay__populated_drop(mapping, offset, size);
  } else if (populate(mapping, offset, size) &&
             quay__os_pread_cached(mapping->file, memory, head, offset) == (ssize_t)head) {
    done = head + stream_blocks(mapping, offset + head, memory + head, size - head, block);
  }
  quay__os_free(block);
  return done;
}

#else

static uint64_t read_by_blocks(const quay__mapping *mapping, uint64_t offset, unsigned char *memory,
                               uint64_t size) {
  (void)mapping, (void)offset, (void)memory, (void)size;
  return 0;
}

#endif

static bool is_missing(const quay__mapping *mapping, uint64_t offset) {
  const uint64_t at = quay__align_down(offset - mapping->offset, quay__os_page_size());
  unsigned char resident = 0;
  return quay__os_mincore(mapping->address + at, 1, &resident) == 0 && (resident & 1) == 0;
}

bool quay__mmap_is_cold(const quay__mapping *mapping, uint64_t offset, uint64_t size) {
  const uint64_t step = (size / SAMPLES / PIECE + 1) * PIECE;
  uint64_t asked = 0, missing = 0;
  for (uint64_t at = 0; at < size; at += step) {
    asked++;
    missing += is_missing(mapping, offset + at) ? 1 : 0;
  }
  if (2 * missing > asked)
    return true;
  /* Of somebody else's file the system says that all of it is there; and this begins to read. */
  unsigned char byte;
  return quay__os_pread_cached(mapping->file, &byte, 1, offset) < 0 && errno == EAGAIN;
}

bool quay__mmap_is_cached(const quay__mapping *mapping, uint64_t offset, uint64_t size) {
  unsigned char byte;
  return is_resident(mapping, offset, size) &&
         quay__os_pread_cached(mapping->file, &byte, 1, offset) == 1;
}

bool quay__mmap_reads_cached(const quay__mapping *mapping) {
  return mapping->access == QUAY__ACCESS_FILE && mapping->shared && mapping->exposed &&
         mapping->mapped != 0;
}

uint64_t quay__mmap_read_cached(const quay__mapping *mapping, uint64_t offset,
                                unsigned char *memory, uint64_t size) {
  if (read_leased(mapping, offset, memory, size))
    return size;
  /* Stores past the caches are no use in a slot, which the device reads from them. */
  return quay__thread_in_staging ? 0 : read_by_blocks(mapping, offset, memory, size);
}
