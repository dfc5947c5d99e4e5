/* Blocks: where they are, what they hold, and when they go. Freed blocks are poisoned; one that was
 * freed too early is kept, so that work which still uses it does no harm but moves wrong bytes. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "late_internal.h"

enum {
  GUARD_BYTES = 4096,        /* between two blocks on a device */
  POISONED_WHOLE = 16 << 20, /* larger blocks are poisoned at both ends only */
  POISONED_END = 64 << 10,
  TOMBSTONES = 1024,
};

/* Blocks that are gone, for messages. */
typedef struct tombstone {
  uint64_t address, end, serial;
  const char *fate;
} tombstone;

static tombstone tombstones[TOMBSTONES];
static size_t tombstone_count; /* of all that were ever put up */

static void poison(late_block *block, int value) {
  pthread_mutex_lock(&late.moving);
  if (block->size <= POISONED_WHOLE) {
    memset(block->bytes, value, block->size);
  } else {
    memset(block->bytes, value, POISONED_END);
    memset(block->bytes + block->size - POISONED_END, value, POISONED_END);
  }
  pthread_mutex_unlock(&late.moving);
}

/* No address of the host: on x86-64 not canonical; on AArch64, which may ignore the top byte, above
 * what a process can map. Never used twice. */
static uint64_t take_address(late_device *device, uint64_t size, uint64_t alignment) {
  const uint64_t align = alignment < 256 ? 256 : alignment;
  const uint64_t address = (device->next_address + align - 1) & ~(align - 1);
  device->next_address = address + size + GUARD_BYTES;
  return address;
}

static unsigned char *take_bytes(quay_memory_kind kind, uint64_t size, uint64_t alignment) {
  uint64_t align = alignment < 64 ? 64 : alignment;
  if (kind == QUAY_MEMORY_DEVICE && align > GUARD_BYTES)
    align = GUARD_BYTES;
  void *bytes = NULL;
  if (posix_memalign(&bytes, align, size != 0 ? size : 1) != 0)
    return NULL;
  return bytes;
}

late_block *late_block_new(late_device *device, quay_memory_kind kind, uint64_t size,
                           uint64_t alignment) {
  const uint64_t limit = late.options.device_bytes;
  const uint64_t used = kind == QUAY_MEMORY_DEVICE ? device->used_bytes : 0;
  if (size > limit || used > limit - size)
    return NULL;
  unsigned char *const bytes = take_bytes(kind, size, alignment);
  if (bytes == NULL)
    return NULL;
  late_block *const block = late_new(sizeof *block);
  const uint64_t address = kind == QUAY_MEMORY_DEVICE ? take_address(device, size, alignment)
                                                      : (uint64_t)(uintptr_t)bytes;
  block->by_address = (late_node){.begin = address, .end = address + (size != 0 ? size : 1)};
  block->handle = late_handle_add(LATE_TAG_BLOCK, block);
  block->serial = ++late.next_serial;
  block->device = device;
  block->kind = kind;
  block->generation = device->generation;
  block->size = size;
  block->bytes = bytes;
  late_tree_insert(&late.addresses, &block->by_address);
  block->next = late.blocks;
  if (late.blocks != NULL)
    late.blocks->previous = block;
  late.blocks = block;
  late.block_count++;
  if (kind == QUAY_MEMORY_DEVICE) {
    device->used_bytes += size;
    if (device->used_bytes > device->peak_bytes)
      device->peak_bytes = device->used_bytes;
  } else {
    device->pinned_bytes += size;
  }
  poison(block, LATE_POISON_NEW);
  return block;
}

late_block *late_block_of(const quay_raw_buffer *raw, uint64_t offset, uint64_t size,
                          const char *what) {
  if (raw->arm != QUAY_RAW_EXTERNAL) {
    late_report(LATE_VIOLATION_PROTOCOL, "%s: the raw buffer's arm is %u, not the external one",
                what, raw->arm);
    return NULL;
  }
  const uint64_t handle = raw->as.external.handle[0];
  late_block *const block = late_handle_get(LATE_TAG_BLOCK, handle);
  if (block == NULL) {
    late_report(LATE_VIOLATION_USE_AFTER_FREE,
                "%s: there is no block 0x%" PRIx64 "; it was freed, or is none of this backend",
                what, handle);
    return NULL;
  }
  if (block->stale) {
    late_report(LATE_VIOLATION_USE_AFTER_FREE,
                "%s: block %" PRIu64 " is of generation %" PRIu64 " of %s, which has begun another",
                what, block->serial, block->generation, block->device->name);
    return NULL;
  }
  if (offset > block->size || size > block->size - offset) {
    late_report(LATE_VIOLATION_PROTOCOL,
                "%s: %" PRIu64 " bytes from %" PRIu64 " reach outside of block %" PRIu64
                " of %" PRIu64 " bytes",
                what, size, offset, block->serial, block->size);
    return NULL;
  }
  return block;
}

typedef struct finding {
  uint64_t begin, end;
  late_block *found;
} finding;

static void find_around(void *user, late_node *node) {
  finding *const f = user;
  if (node->begin <= f->begin && node->end >= f->end)
    f->found = (late_block *)node;
}

late_block *late_block_at(uint64_t address, uint64_t size) {
  const uint64_t bytes = size != 0 ? size : 1;
  if (bytes > UINT64_MAX - address)
    return NULL;
  finding f = {.begin = address, .end = address + bytes};
  late_tree_visit(&late.addresses, f.begin, f.end, find_around, &f);
  return f.found;
}

void late_report_address(const char *what, uint64_t address, uint64_t size) {
  const size_t kept = tombstone_count < TOMBSTONES ? tombstone_count : TOMBSTONES;
  for (size_t i = 0; i < kept; i++) {
    const tombstone *const t = &tombstones[(tombstone_count - 1 - i) % TOMBSTONES];
    if (address < t->address || address >= t->end)
      continue;
    late_report(LATE_VIOLATION_USE_AFTER_FREE,
                "%s: address 0x%" PRIx64 " lies in block %" PRIu64 ", which %s", what, address,
                t->serial, t->fate);
    return;
  }
  late_report(LATE_VIOLATION_PROTOCOL,
              "%s: there are no %" PRIu64 " bytes of memory at address 0x%" PRIx64, what, size,
              address);
}

static void leave_addresses(late_block *block, const char *fate) {
  late_tree_remove(&late.addresses, &block->by_address);
  tombstones[tombstone_count++ % TOMBSTONES] = (tombstone){
      .address = block->by_address.begin,
      .end = block->by_address.end,
      .serial = block->serial,
      .fate = fate,
  };
}

static void give_back_bytes(late_block *block) {
  if (block->stale)
    return;
  if (block->kind == QUAY_MEMORY_DEVICE) {
    block->device->used_bytes -= block->size;
  } else {
    block->device->pinned_bytes -= block->size;
  }
}

static void end_block(late_block *block) {
  late_shadow_clear(&block->shadow);
  for (size_t i = 0; i < block->pending_count; i++)
    late_event_release(block->pending[i]);
  free((void *)block->pending);
  if (block->previous != NULL) {
    block->previous->next = block->next;
  } else {
    late.blocks = block->next;
  }
  if (block->next != NULL)
    block->next->previous = block->previous;
  free(block->bytes);
  free(block);
}

static bool has_to_wait(const late_block *block) {
  if (block->pins != 0)
    return true;
  for (size_t i = 0; i < block->pending_count; i++) {
    if (!block->pending[i]->done)
      return true;
  }
  return false;
}

static void set_waiting(late_block *block, bool waiting) {
  late.waiting_frees += waiting;
  late.waiting_frees -= block->waiting;
  block->waiting = waiting;
}

/* Ends a freed block once nothing is left to wait for. */
static void end_if_over(late_block *block) {
  if (!block->freed || block->quarantined)
    return;
  set_waiting(block, has_to_wait(block));
  if (block->waiting)
    return;
  poison(block, LATE_POISON_FREED);
  give_back_bytes(block);
  end_block(block);
}

/* What the free comes after: what the host knows, and the pending events. */
static late_clock keep_pending(late_block *block, quay_event *const *pending, size_t count) {
  late_clock clock = {.count = 0};
  late_clock_join(&clock, &late_host()->clock);
  if (count > 0 && !late.options.ordered_free) {
    late_report(LATE_VIOLATION_PROTOCOL,
                "free: %zu pending events for an allocator without ordered free", count);
  }
  if (count > 0)
    block->pending = late_new(count * sizeof *block->pending);
  for (size_t i = 0; i < count; i++) {
    if (late_device_find(quay_event_device(pending[i])) == NULL) {
      late_report(LATE_VIOLATION_PROTOCOL, "free: pending event %zu is of device %s", i,
                  quay_device_name(quay_event_device(pending[i])));
      continue;
    }
    late_event *const event = late_event_get(NULL, quay_event_native(pending[i]), "free");
    if (event == NULL)
      continue;
    late_clock_join(&clock, &event->clock);
    event->references++;
    block->pending[block->pending_count++] = event;
  }
  return clock;
}

void late_block_free(late_block *block, quay_event *const *pending, size_t count) {
  late_handle_remove(block->handle);
  block->freed = true;
  late.block_count--;
  if (block->stale || block->device->lost) {
    if (!block->stale)
      leave_addresses(block, "was freed");
    end_if_over(block);
    return;
  }
  leave_addresses(block, "was freed");
  late_clock clock = keep_pending(block, pending, count);
  const late_actor actor = {.what = "free", .clock = &clock};
  const bool clean = late_shadow_check_free(block, &actor);
  late_clock_free(&clock);
  if (!clean) {
    block->quarantined = true;
    poison(block, LATE_POISON_FREED);
    give_back_bytes(block);
    return;
  }
  end_if_over(block);
}

void late_block_unpin(late_block *block) {
  block->pins--;
  end_if_over(block);
}

void late_blocks_collect(void) {
  if (late.waiting_frees == 0)
    return;
  for (late_block *block = late.blocks; block != NULL;) {
    late_block *const next = block->next;
    end_if_over(block);
    block = next;
  }
}

void late_blocks_make_stale(late_device *device) {
  for (late_block *block = late.blocks; block != NULL; block = block->next) {
    if (block->device != device || block->stale || block->quarantined)
      continue;
    if (!block->freed)
      leave_addresses(block, "is of an older generation of its device");
    give_back_bytes(block);
    block->stale = true;
    if (block->kind == QUAY_MEMORY_DEVICE)
      poison(block, LATE_POISON_FREED);
  }
  late_blocks_collect();
}

void late_blocks_end(void) {
  while (late.blocks != NULL)
    end_block(late.blocks);
  tombstone_count = 0;
}

unsigned char *late_place_bytes(const late_place *place) {
  return place->block != NULL ? place->block->bytes + place->offset : place->host;
}

late_place late_place_of_host(const void *pointer, uint64_t size) {
  const uint64_t address = (uint64_t)(uintptr_t)pointer;
  late_block *const block = late_block_at(address, size);
  if (block == NULL)
    return (late_place){.host = (unsigned char *)(uintptr_t)address};
  return (late_place){.block = block, .offset = address - block->by_address.begin};
}
