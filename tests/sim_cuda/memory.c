/* Physical memory and the ranges of addresses that lead to it. Addresses of devices lie in a
 * reservation that nobody can touch; the bytes are elsewhere. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "sim.h"

enum {
  POISON_NEW = 0xc5,
  POISON_FREED = 0xdf,
  POISONED_END = 64 << 10,
  SMALL = 64 << 10, /* bytes below which memory of a device comes from malloc */
  TOMBSTONES = 1024,
};

/* AddressSanitizer ends the process where more than this is asked for. */
static const uint64_t host_size = (uint64_t)256 << 30;
static const uint64_t space_size = (uint64_t)256 << 30;

typedef struct tombstone {
  uint64_t begin, end, serial;
  const char *fate;
} tombstone;

static struct {
  uint64_t space, next;
  sim_range **ranges; /* by address */
  size_t count, capacity;
  tombstone tombstones[TOMBSTONES];
  size_t tombstone_count; /* of all that were ever put up */
} memory;

/* Without ThreadSanitizer's interceptor, which would mark all of the reservation. */
static void *map(void *wanted, uint64_t size, int protection, int flags, int file) {
  const long at = syscall(SYS_mmap, wanted, size, protection, flags, file, 0L);
  return at == -1 ? NULL : (void *)(uintptr_t)at;
}

static uint64_t round_up(uint64_t value, uint64_t to) {
  return (value + to - 1) / to * to;
}

/* Physical memory. */

void sim_memory_poison(sim_memory *m, int value) {
  if (m->borrowed)
    return;
  const uint64_t end = m->size < POISONED_END ? m->size : POISONED_END;
  memset(m->bytes, value, end);
  memset(m->bytes + m->size - end, value, end);
}

static sim_memory *new_memory(int device, uint64_t size, bool counted) {
  if (counted) {
    const uint64_t used = sim.used[device];
    if (size > sim.settings.memory || used > sim.settings.memory - size)
      return NULL;
    sim.used[device] += size;
  }
  sim_memory *const m = sim_new(sizeof *m);
  m->size = size;
  m->references = 1;
  m->device = device;
  m->counted = counted;
  m->file = -1;
  m->serial = ++sim.next_serial;
  return m;
}

static sim_memory *drop_unmapped(sim_memory *m) {
  if (m->counted)
    sim.used[m->device] -= m->size;
  free(m);
  return NULL;
}

/* An empty memfd of so many bytes. -1: the system refuses. */
static int new_file(uint64_t size) {
  const int file = memfd_create("simcuda", MFD_CLOEXEC);
  if (file >= 0 && ftruncate(file, (off_t)size) == 0)
    return file;
  if (file >= 0)
    close(file);
  return -1;
}

void sim_memory_touched(const sim_memory *m, uint64_t offset, uint64_t size) {
  if (!sim.settings.elsewhere || !m->mapped || m->file < 0)
    return;
  /* The pages stay in the memfd. */
  const uint64_t begin = offset / SIM_PAGE * SIM_PAGE;
  (void)madvise(m->bytes + begin, offset + size - begin, MADV_DONTNEED);
}

sim_memory *sim_memory_new(int device, uint64_t size, bool counted) {
  sim_memory *const m = new_memory(device, size, counted);
  if (m == NULL)
    return NULL;
  if (counted && size >= SMALL) {
    m->mapped = true;
    const uint64_t whole = round_up(size, SIM_PAGE);
    if (sim.settings.elsewhere)
      m->file = new_file(whole);
    const int flags = m->file >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
    m->bytes = map(NULL, whole, PROT_READ | PROT_WRITE, flags | MAP_NORESERVE, m->file);
    if (m->bytes == NULL && m->file >= 0)
      close(m->file);
    else if (m->bytes != NULL && m->file < 0) /* for the time that tests take */
      (void)madvise(m->bytes, whole, MADV_HUGEPAGE);
  } else if (counted) {
    /* A process has about 65,000 mappings: too few for one of each small block. */
    m->bytes = malloc(size);
  } else {
    /* The host's: from malloc, so that AddressSanitizer watches its ends. */
    m->host_access = true;
    void *bytes = NULL;
    m->bytes = size <= host_size && posix_memalign(&bytes, SIM_PAGE, size) == 0 ? bytes : NULL;
  }
  if (m->bytes == NULL)
    return drop_unmapped(m);
  sim_memory_poison(m, POISON_NEW);
  return m;
}

sim_memory *sim_memory_borrow(void *bytes, uint64_t size) {
  sim_memory *const m = new_memory(0, size, false);
  m->bytes = bytes;
  m->borrowed = m->host_access = true;
  return m;
}

/* Puts the bytes into a new memfd. -1: the system refuses. */
static int file_of_bytes(const sim_memory *m) {
  const int file = memfd_create("simcuda", MFD_CLOEXEC);
  if (file < 0)
    return -1;
  for (uint64_t at = 0; at < m->size;) {
    const ssize_t written = pwrite(file, m->bytes + at, m->size - at, (off_t)at);
    if (written <= 0)
      goto fail;
    at += (uint64_t)written;
  }
  if (ftruncate(file, (off_t)round_up(m->size, SIM_PAGE)) == 0)
    return file;

fail:
  close(file);
  return -1;
}

bool sim_memory_share(sim_memory *m) {
  if (m->file >= 0)
    return true;
  const int file = file_of_bytes(m);
  if (file < 0)
    return false;
  const uint64_t size = round_up(m->size, SIM_PAGE);
  unsigned char *const shared = map(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file);
  if (shared == NULL) {
    close(file);
    return false;
  }
  if (m->mapped) {
    syscall(SYS_munmap, m->bytes, size);
  } else {
    free(m->bytes);
  }
  m->bytes = shared;
  m->mapped = true;
  m->file = file;
  return true;
}

sim_memory *sim_memory_open(int device, int file, uint64_t size, bool counted) {
  sim_memory *const m = new_memory(device, size, counted);
  if (m == NULL)
    return NULL;
  m->mapped = true;
  m->file = file;
  m->bytes = map(NULL, round_up(size, SIM_PAGE), PROT_READ | PROT_WRITE, MAP_SHARED, file);
  return m->bytes != NULL ? m : drop_unmapped(m);
}

void sim_memory_retain(sim_memory *m) {
  m->references++;
}

void sim_memory_release(sim_memory *m) {
  if (--m->references != 0)
    return;
  if (m->counted)
    sim.used[m->device] -= m->size;
  if (m->mapped) {
    syscall(SYS_munmap, m->bytes, round_up(m->size, SIM_PAGE));
  } else if (!m->borrowed) {
    free(m->bytes);
  }
  if (m->file >= 0)
    close(m->file);
  free(m->shadow.records);
  free(m);
}

/* Addresses. */

bool sim_address_is_device(uint64_t address) {
  return memory.space != 0 && address >= memory.space && address - memory.space < space_size;
}

uint64_t sim_address_take(uint64_t size, uint64_t alignment) {
  if (memory.space == 0) {
    void *const space =
        map(NULL, space_size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
    if (space == NULL)
      return 0;
    memory.space = memory.next = (uint64_t)(uintptr_t)space;
  }
  if (size > space_size / 2)
    return 0;
  const uint64_t end = memory.space + space_size;
  for (int pass = 0; pass < 2; pass++) {
    uint64_t at = round_up(memory.next, alignment);
    while (at < end && size <= end - at) {
      const sim_range *const taken = sim_range_overlapping(at, at + size);
      const uint64_t reserved = sim_reservation_overlapping(at, at + size);
      if (taken == NULL && reserved == 0) {
        /* A page that is nobody's lies between two allocations. */
        memory.next = at + size + SIM_PAGE;
        return at;
      }
      at = round_up(taken != NULL ? taken->end : reserved, alignment);
    }
    memory.next = memory.space;
  }
  return 0;
}

/* The first range that ends behind the address. */
static size_t position(uint64_t address) {
  size_t low = 0;
  size_t high = memory.count;
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    if (memory.ranges[middle]->end <= address) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

sim_range *sim_range_add(sim_kind kind, uint64_t begin, uint64_t size, sim_memory *m,
                         sim_context *context) {
  sim_range *const range = sim_new(sizeof *range);
  range->kind = kind;
  range->begin = begin;
  range->end = begin + size;
  range->memory = m;
  range->context = context;
  range->device = m->device;
  range->serial = ++sim.next_serial;
  const size_t at = position(begin);
  memory.ranges = sim_grow(memory.ranges, memory.count, &memory.capacity, sizeof *memory.ranges);
  memmove(memory.ranges + at + 1, memory.ranges + at, (memory.count - at) * sizeof *memory.ranges);
  memory.ranges[at] = range;
  memory.count++;
  return range;
}

sim_range *sim_range_overlapping(uint64_t begin, uint64_t end) {
  const size_t at = position(begin);
  return at < memory.count && memory.ranges[at]->begin < end ? memory.ranges[at] : NULL;
}

sim_range *sim_range_at(uint64_t address) {
  return sim_range_overlapping(address, address + 1);
}

void sim_range_remove(sim_range *range, const char *fate) {
  memory.tombstones[memory.tombstone_count++ % TOMBSTONES] =
      (tombstone){.begin = range->begin, .end = range->end, .serial = range->serial, .fate = fate};
  const size_t at = position(range->begin);
  memmove(memory.ranges + at, memory.ranges + at + 1,
          (memory.count - at - 1) * sizeof *memory.ranges);
  memory.count--;
  /* Operations that still use what was freed move wrong bytes, but do no harm. A mapping is not the
   * end of its memory. */
  if (range->memory->references > 1 && range->kind != SIM_MAPPED && range->kind != SIM_POOL &&
      range->kind != SIM_IPC)
    sim_memory_poison(range->memory, POISON_FREED);
  if (range->pool != NULL)
    sim_pool_shrink(range->pool, range->end - range->begin);
  sim_memory_release(range->memory);
  free(range);
}

size_t sim_range_count(void) {
  return memory.count;
}

sim_range *sim_range_get(size_t index) {
  return memory.ranges[index];
}

void sim_ranges_clear(void) {
  while (memory.count > 0)
    sim_range_remove(memory.ranges[memory.count - 1], "went with a reset");
  memory.tombstone_count = 0;
}

void sim_report_address(const char *what, uint64_t address, uint64_t size) {
  const size_t kept =
      memory.tombstone_count < TOMBSTONES ? memory.tombstone_count : (size_t)TOMBSTONES;
  for (size_t i = 0; i < kept; i++) {
    const tombstone *const t = &memory.tombstones[(memory.tombstone_count - 1 - i) % TOMBSTONES];
    if (address < t->begin || address >= t->end)
      continue;
    sim_report(SIMCUDA_USE_AFTER_FREE,
               "%s: address 0x%" PRIx64 " lies in allocation %" PRIu64 ", which %s", what, address,
               t->serial, t->fate);
    return;
  }
  sim_report(SIMCUDA_OUT_OF_BOUNDS, "%s: there are no %" PRIu64 " bytes at address 0x%" PRIx64,
             what, size, address);
}

bool simcuda_peek(uint64_t address, void *out, size_t size) {
  sim_lock();
  size_t done = 0;
  while (done < size) {
    const sim_range *const range = sim_range_at(address + done);
    if (range == NULL)
      break;
    const uint64_t left = range->end - address - done;
    const size_t piece = left < size - done ? left : size - done;
    memcpy((char *)out + done, range->memory->bytes + (address + done - range->begin), piece);
    done += piece;
  }
  sim_unlock();
  return done == size;
}
