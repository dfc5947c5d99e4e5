/* The track layer: knows every live block with the place that asked for it, refuses frees and
 * copies of memory that is not live, and keeps the exact peak. The order of the blocks is in
 * track_index.c.
 *
 * What is found: a leak; a copy of a raw buffer that is freed after the original, also when its
 * address has been handed out again meanwhile; a pointer into or outside of live blocks; a size
 * that was changed; a copy that reaches outside its block. What is not: use of a freed block
 * through a host pointer; with a chance of 1 in 65,535, the second free of an address that was
 * handed out again with the same size. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/allocator_impl.h"
#include "core/checked.h"
#include "core/error.h"
#include "core/os.h"
#include "core/registry.h"
#include "core/thread.h"
#include "layers/track_impl.h"

/* The stamp's place in quay_raw_buffer.flags. */
#define TRACK_STAMP_SHIFT 16
#define TRACK_STAMP_MASK  0xffffu

/* Whether the inner allocator's memory has addresses; asked of its first block. */
enum {
  TRACK_ADDRESS_UNKNOWN,
  TRACK_ADDRESS_YES,
  TRACK_ADDRESS_NO
};

/* What a raw buffer says that it is. */
typedef struct track_identity {
  quay__track_key key; /* its serial is 0 */
  uint64_t handle[QUAY__TRACK_HANDLE_WORDS];
  uint64_t size;
  uint32_t stamp; /* 0: it carries none */
} track_identity;

static quay__track_layer *layer_of(quay_allocator *allocator) {
  return allocator->self;
}

/* Recognising blocks. */

static uint64_t hash_handle(const uint64_t *handle) {
  uint64_t hash = 0x9e3779b97f4a7c15u;
  for (size_t i = 0; i < QUAY__TRACK_HANDLE_WORDS; i++) {
    hash = (hash ^ handle[i]) * 0xff51afd7ed558ccdu;
    hash ^= hash >> 32;
  }
  return hash;
}

/* The block's address, if this kind of memory has one. Leaves the thread's error as it is. */
static bool find_address(quay_allocator *allocator, const quay_raw_buffer *raw,
                         uint64_t *out_address) {
  quay__track_layer *layer = allocator->self;
  quay_allocator *inner = allocator->inner;
  const int known = atomic_load_explicit(&layer->addresses, memory_order_relaxed);
  if (known == TRACK_ADDRESS_NO) {
    return false;
  }
  if (known == TRACK_ADDRESS_YES) {
    quay__error_shield();
    const bool answered = inner->vtable.address(inner, raw, out_address) == QUAY_OK;
    quay__error_unshield();
    return answered;
  }
  quay__error_state error;
  quay__error_save(&error);
  const bool found = inner->vtable.address(inner, raw, out_address) == QUAY_OK;
  quay__error_restore(&error);
  atomic_store_explicit(&layer->addresses, found ? TRACK_ADDRESS_YES : TRACK_ADDRESS_NO,
                        memory_order_relaxed);
  return found;
}

/* The entry that a raw buffer was recorded as, by its handle. With the lock held. */
static quay__track_entry *find_handle(const quay__track_index *index,
                                      const track_identity *identity) {
  quay__track_entry *entry = index->oldest;
  while (entry != NULL && (entry->stamp != identity->stamp || entry->size != identity->size ||
                           memcmp(entry->handle, identity->handle, sizeof entry->handle) != 0)) {
    entry = entry->younger;
  }
  return entry;
}

/* Takes the place from the entry, without asking the backend: it answers for memory of a device
 * that was lost or reset no more. Looks at every block. False if there is none. */
static bool place_from_entry(quay__track_layer *layer, track_identity *identity) {
  if (identity->stamp == 0)
    return false;
  quay__lock_acquire(&layer->lock);
  const quay__track_entry *entry = find_handle(&layer->live, identity);
  if (entry == NULL)
    entry = find_handle(&layer->adopted, identity);
  if (entry != NULL) {
    identity->key = entry->key;
    identity->key.serial = 0;
  }
  quay__lock_release(&layer->lock);
  return entry != NULL;
}

/* Whether memory of this device may be of an older generation, or of a lost one. */
static bool has_stale_memory(const quay_device *device) {
  return quay_device_health(device) != QUAY_HEALTH_OK || quay__device_generation(device) > 1;
}

static track_identity identify(quay_allocator *allocator, const quay_raw_buffer *raw) {
  _Static_assert(sizeof raw->as == sizeof(uint64_t[QUAY__TRACK_HANDLE_WORDS]),
                 "every arm is as many words as an entry keeps");
  track_identity identity = {
      .key = {.sized = raw->size > 0},
      .size = raw->size,
      .stamp = (raw->flags >> TRACK_STAMP_SHIFT) & TRACK_STAMP_MASK,
  };
  memcpy(identity.handle, &raw->as, sizeof identity.handle);
  if (has_stale_memory(allocator->device) && place_from_entry(allocator->self, &identity)) {
    return identity;
  }
  identity.key.addressed = find_address(allocator, raw, &identity.key.value);
  if (!identity.key.addressed && !place_from_entry(allocator->self, &identity)) {
    identity.key.value = hash_handle(identity.handle);
  }
  return identity;
}

static bool same_place(const quay__track_entry *entry, const track_identity *identity) {
  return entry->key.addressed == identity->key.addressed &&
         entry->key.value == identity->key.value &&
         (entry->key.addressed ||
          memcmp(entry->handle, identity->handle, sizeof entry->handle) == 0);
}

/* A carving layer may have left the stamp out. */
static bool same_stamp(const quay__track_entry *entry, const track_identity *identity) {
  return identity->stamp == 0 || entry->stamp == identity->stamp;
}

/* The live block that is just what `identity` says. */
static quay__track_entry *find_live(const quay__track_index *index,
                                    const track_identity *identity) {
  quay__track_key key = identity->key;
  for (;;) {
    quay__track_entry *entry = quay__track_index_from(index, key);
    if (entry == NULL || entry->key.addressed != key.addressed || entry->key.value != key.value ||
        entry->key.sized != key.sized) {
      return NULL;
    }
    if (same_place(entry, identity) && same_stamp(entry, identity) &&
        entry->size == identity->size) {
      return entry;
    }
    key.serial = entry->key.serial + 1;
  }
}

/* A live block at the same place, whatever its size and stamp, rather one that is not empty. */
static quay__track_entry *find_at(const quay__track_layer *layer, const track_identity *identity) {
  quay__track_key key = identity->key;
  for (int sized = 1; sized >= 0; sized--) {
    key.sized = sized != 0;
    quay__track_entry *entry = quay__track_index_from(&layer->live, key);
    if (entry != NULL && same_place(entry, identity)) {
      return entry;
    }
  }
  return NULL;
}

static quay__track_entry *find_recent(quay__track_layer *layer, const track_identity *identity) {
  const uint64_t count = quay__min(layer->recent_count, QUAY__TRACK_RECENT);
  for (uint64_t i = 1; i <= count; i++) {
    quay__track_entry *entry = &layer->recent[(layer->recent_count - i) % QUAY__TRACK_RECENT];
    if (same_place(entry, identity) && same_stamp(entry, identity)) {
      return entry;
    }
  }
  return NULL;
}

/* Adding and removing. */

/* Enters a block that the inner allocator has just made, or that was adopted. */
static void record(quay_allocator *allocator, quay_raw_buffer *raw, quay__track_index *index,
                   quay__track_entry *entry) {
  quay__track_layer *layer = allocator->self;
  const track_identity identity = identify(allocator, raw);
  *entry = (quay__track_entry){
      .key = identity.key,
      .size = raw->size,
      .stamp = identity.stamp,
      .reserved = (raw->flags & QUAY__RAW_RESERVED) != 0,
      .file = quay__near.file,
      .line = quay__near.line,
      .caller = quay__near.caller,
  };
  memcpy(entry->handle, identity.handle, sizeof entry->handle);
  quay__lock_acquire(&layer->lock);
  entry->key.serial = ++layer->serial;
  /* An inner track layer has stamped it: one stamp serves both. */
  if (entry->stamp == 0) {
    entry->stamp = (uint32_t)(layer->serial % TRACK_STAMP_MASK) + 1;
  }
  quay__track_index_add(index, entry);
  layer->peak_bytes = quay__max(layer->peak_bytes, layer->live.bytes);
  quay__lock_release(&layer->lock);
  raw->flags |= entry->stamp << TRACK_STAMP_SHIFT;
}

/* Takes an entry out and remembers it. With the lock held. */
static void forget(quay__track_layer *layer, quay__track_index *index, quay__track_entry *entry) {
  quay__track_index_remove(index, entry);
  layer->recent[layer->recent_count++ % QUAY__TRACK_RECENT] = *entry;
}

static quay_status fail_record(void) {
  return quay__fail_out_of_memory(sizeof(quay__track_entry), "the track layer's record of a block");
}

static quay_status track_alloc(quay_allocator *allocator, const quay_alloc_request *request,
                               quay_raw_buffer *out_raw) {
  quay__track_entry *entry = quay__os_malloc(sizeof *entry);
  if (entry == NULL) {
    return fail_record();
  }
  const quay_status status = quay__alloc(allocator->inner, request, out_raw);
  if (status != QUAY_OK) {
    quay__os_free(entry);
    return status;
  }
  out_raw->size = request->size;
  record(allocator, out_raw, &layer_of(allocator)->live, entry);
  return QUAY_OK;
}

static quay_status track_reserve(quay_allocator *allocator, uint64_t size, uint64_t alignment,
                                 quay_raw_buffer *out_raw) {
  quay_allocator *inner = allocator->inner;
  quay__track_entry *entry = quay__os_malloc(sizeof *entry);
  if (entry == NULL) {
    return fail_record();
  }
  const quay_status status = quay__reserve(inner, size, alignment, out_raw);
  if (status != QUAY_OK) {
    quay__os_free(entry);
    return status;
  }
  record(allocator, out_raw, &layer_of(allocator)->live, entry);
  return QUAY_OK;
}

/* Judging. */

typedef enum track_verdict {
  TRACK_LIVE,
  TRACK_RESIZED,  /* the block is live, with another size */
  TRACK_RECYCLED, /* its address is live as another allocation */
  TRACK_FREED,    /* it was freed not long ago */
  TRACK_INSIDE,   /* it begins inside a live block */
  TRACK_FOREIGN,  /* nothing is known of it */
} track_verdict;

/* With the lock held. `*out_entry` is the block that the verdict is about, NULL for FOREIGN. */
static track_verdict judge(quay__track_layer *layer, const track_identity *identity,
                           quay__track_entry **out_entry) {
  *out_entry = find_live(&layer->live, identity);
  if (*out_entry != NULL) {
    return TRACK_LIVE;
  }
  *out_entry = find_at(layer, identity);
  if (*out_entry != NULL && (*out_entry)->size != identity->size &&
      same_stamp(*out_entry, identity)) {
    return TRACK_RESIZED;
  }
  if (*out_entry != NULL && (*out_entry)->key.sized == identity->key.sized) {
    return TRACK_RECYCLED;
  }
  quay__track_entry *holder =
      identity->key.addressed ? quay__track_index_holder(&layer->live, identity->key.value) : NULL;
  quay__track_entry *recent = find_recent(layer, identity);
  /* What was carved out of a block can begin where another block began once. */
  if (recent != NULL && (holder == NULL || !same_stamp(holder, identity))) {
    *out_entry = recent;
    return TRACK_FREED;
  }
  *out_entry = holder;
  return holder != NULL ? TRACK_INSIDE : TRACK_FOREIGN;
}

static const char *explain(track_verdict verdict) {
  switch (verdict) {
  case TRACK_LIVE:
    return "it is live";
  case TRACK_RESIZED:
    return "its size was changed; the block is";
  case TRACK_RECYCLED:
    return "it was freed before and its address handed out again, now to";
  case TRACK_FREED:
    return "it was freed before; it was";
  case TRACK_INSIDE:
    return "it is no block but lies inside";
  case TRACK_FOREIGN:
    return "this allocator has no such block: it was freed long ago or comes from elsewhere";
  }
  return "";
}

enum {
  FINDING_TEXT_SIZE = 4 * QUAY__TRACK_TEXT_SIZE
};

/* What was found out about a raw buffer. */
typedef struct track_finding {
  track_identity identity;
  track_verdict verdict;
  bool allowed;             /* the range may be used */
  quay_track_block block;   /* that the verdict is about; zero for FOREIGN */
  quay_track_location near; /* FOREIGN: the neighbours of its address */
} track_finding;

/* "; below it lies the block of ...; above it lies the block of ..." */
static void describe_neighbours(const quay_track_location *near, char *out_text, size_t size) {
  char text[QUAY__TRACK_TEXT_SIZE];
  size_t used = 0;
  out_text[0] = '\0';
  if (near->has_below) {
    quay__track_describe(&near->below, text);
    used = (size_t)snprintf(out_text, size, "; below it lies the block of %s", text);
  }
  if (near->has_above && used < size) {
    quay__track_describe(&near->above, text);
    snprintf(out_text + used, size - used, "; above it lies the block of %s", text);
  }
}

/* "raw buffer of 64 bytes at 0x...: it was freed before; it was ..." */
static void describe_finding(const track_finding *finding,
                             char out_text[static FINDING_TEXT_SIZE]) {
  const track_identity *identity = &finding->identity;
  char text[QUAY__TRACK_TEXT_SIZE] = "";
  char near[2 * QUAY__TRACK_TEXT_SIZE] = "";
  if (finding->verdict != TRACK_FOREIGN) {
    quay__track_describe(&finding->block, text);
  } else {
    describe_neighbours(&finding->near, near, sizeof near);
  }
  snprintf(out_text, FINDING_TEXT_SIZE,
           "raw buffer of %" PRIu64 " bytes at 0x%" PRIx64 ": %s%s%s%s", identity->size,
           identity->key.addressed ? identity->key.value : 0, explain(finding->verdict),
           finding->verdict != TRACK_FOREIGN ? " " : "", text, near);
}

/* Whether `verdict` allows the use of `size` bytes at `offset`. A layer around this one may have
 * carved the raw buffer out of a block, at its start or further in. With the lock held. */
static bool allows(track_verdict verdict, const track_identity *identity,
                   const quay__track_entry *entry, uint64_t offset, uint64_t size) {
  uint64_t start = 0;
  switch (verdict) {
  case TRACK_LIVE:
  case TRACK_RESIZED:
    break;
  case TRACK_INSIDE:
    start = identity->key.value - entry->key.value;
    break;
  case TRACK_RECYCLED:
  case TRACK_FREED:
  case TRACK_FOREIGN:
    return false;
  }
  uint64_t first;
  return quay__add(start, offset, &first) && quay__in_range(first, size, entry->size);
}

/* Identifies `raw` and judges it and the range. A live one is taken out of the index if
 * `out_entry` is not NULL, and is the caller's to free. */
static track_finding look_up(quay_allocator *allocator, const quay_raw_buffer *raw, uint64_t offset,
                             uint64_t size, quay__track_entry **out_entry) {
  quay__track_layer *layer = allocator->self;
  track_finding finding = {.identity = identify(allocator, raw)};
  quay__track_entry *entry = NULL;
  quay__lock_acquire(&layer->lock);
  finding.verdict = judge(layer, &finding.identity, &entry);
  finding.allowed = allows(finding.verdict, &finding.identity, entry, offset, size);
  if (entry != NULL) {
    finding.block = quay__track_block_of(layer, entry);
  } else if (finding.identity.key.addressed) {
    quay__track_find_neighbours(layer, finding.identity.key.value, NULL, &finding.near);
  }
  if (out_entry != NULL && entry != NULL && finding.verdict == TRACK_LIVE) {
    forget(layer, &layer->live, entry);
    *out_entry = entry;
  }
  quay__lock_release(&layer->lock);
  return finding;
}

/* Freeing. */

/* Whether `layer` is one of the allocators that `raw` goes back through. */
static bool owned_through(const quay_raw_buffer *raw, const quay_allocator *layer) {
  const quay_allocator *owner = raw->owner;
  while (owner != NULL && owner != layer) {
    owner = owner->inner;
  }
  return owner != NULL;
}

static void track_free(quay_allocator *allocator, quay_raw_buffer *raw, quay_event *const *pending,
                       size_t count) {
  quay__track_entry *entry = NULL;
  const track_finding finding = look_up(allocator, raw, 0, 0, &entry);
  if (entry != NULL) {
    quay__os_free(entry);
    quay__free(allocator->inner, raw, pending, count);
    return;
  }
  char text[FINDING_TEXT_SIZE];
  describe_finding(&finding, text);
  quay_log(QUAY_LOG_ERROR, "track layer: refused to free a %s", text);
  raw->flags |= QUAY__RAW_REFUSED;
}

/* Adopted memory. */

static quay_status track_adopt(quay_allocator *allocator, quay_raw_buffer *raw) {
  quay__track_entry *entry = quay__os_malloc(sizeof *entry);
  if (entry == NULL) {
    return fail_record();
  }
  record(allocator, raw, &layer_of(allocator)->adopted, entry);
  return QUAY_OK;
}

static bool track_unadopt(quay_allocator *allocator, const quay_raw_buffer *raw) {
  quay__track_layer *layer = allocator->self;
  track_finding finding = {.identity = identify(allocator, raw), .verdict = TRACK_FOREIGN};
  quay__lock_acquire(&layer->lock);
  quay__track_entry *entry = find_live(&layer->adopted, &finding.identity);
  if (entry != NULL) {
    forget(layer, &layer->adopted, entry);
  } else {
    const quay__track_entry *recent = find_recent(layer, &finding.identity);
    if (recent != NULL) {
      finding.verdict = TRACK_FREED;
      finding.block = quay__track_block_of(layer, recent);
    }
  }
  quay__lock_release(&layer->lock);
  if (entry != NULL) {
    quay__os_free(entry);
    return true;
  }
  char text[FINDING_TEXT_SIZE];
  describe_finding(&finding, text);
  quay_log(QUAY_LOG_ERROR, "track layer: refused to free an adopted %s", text);
  return false;
}

/* Checking. */

/* Refuses a range that is not within a live block. Adopted memory is not among them, and memory of
 * another owner is that owner's to check. */
static quay_status check(quay_allocator *allocator, const quay_raw_buffer *raw, uint64_t offset,
                         uint64_t size, const char *what) {
  if ((raw->flags & QUAY_RAW_ADOPTED) != 0 || !owned_through(raw, allocator)) {
    return QUAY_OK;
  }
  const track_finding finding = look_up(allocator, raw, offset, size, NULL);
  if (finding.allowed) {
    return QUAY_OK;
  }
  quay_status status = QUAY_STATUS_INVALID_ARGUMENT;
  if (finding.verdict == TRACK_LIVE || finding.verdict == TRACK_RESIZED ||
      finding.verdict == TRACK_INSIDE) {
    status = QUAY_STATUS_OUT_OF_RANGE;
  }
  char text[FINDING_TEXT_SIZE];
  describe_finding(&finding, text);
  return quay_error_set(status, "track", 0, NULL,
                        "track layer: refused to %s %" PRIu64 " bytes at offset %" PRIu64
                        " of a %s",
                        what, size, offset, text);
}

static quay_status track_copy_in(quay_allocator *allocator, quay_raw_buffer *destination,
                                 uint64_t offset, const void *source, uint64_t size) {
  QUAY_TRY(check(allocator, destination, offset, size, "write"));
  quay_allocator *inner = allocator->inner;
  return inner->vtable.copy_in(inner, destination, offset, source, size);
}

static quay_status track_copy_out(quay_allocator *allocator, const quay_raw_buffer *source,
                                  uint64_t offset, void *destination, uint64_t size) {
  QUAY_TRY(check(allocator, source, offset, size, "read"));
  quay_allocator *inner = allocator->inner;
  return inner->vtable.copy_out(inner, source, offset, destination, size);
}

static quay_status track_copy_within(quay_allocator *allocator, quay_raw_buffer *destination,
                                     uint64_t destination_offset, const quay_raw_buffer *source,
                                     uint64_t source_offset, uint64_t size) {
  QUAY_TRY(check(allocator, destination, destination_offset, size, "write"));
  QUAY_TRY(check(allocator, source, source_offset, size, "read"));
  quay_allocator *inner = allocator->inner;
  return inner->vtable.copy_within(inner, destination, destination_offset, source, source_offset,
                                   size);
}

static quay_status track_copy_across(quay_allocator *allocator, quay_raw_buffer *destination,
                                     uint64_t destination_offset, const quay_raw_buffer *source,
                                     uint64_t source_offset, uint64_t size) {
  QUAY_TRY(check(allocator, destination, destination_offset, size, "write"));
  QUAY_TRY(check(allocator, source, source_offset, size, "read"));
  quay_allocator *inner = allocator->inner;
  return inner->vtable.copy_across(inner, destination, destination_offset, source, source_offset,
                                   size);
}

static quay_status track_copy_across_async(quay_allocator *allocator, quay_raw_buffer *destination,
                                           uint64_t destination_offset,
                                           const quay_raw_buffer *source, uint64_t source_offset,
                                           uint64_t size, uint64_t stream) {
  QUAY_TRY(check(allocator, destination, destination_offset, size, "write"));
  QUAY_TRY(check(allocator, source, source_offset, size, "read"));
  quay_allocator *inner = allocator->inner;
  return inner->vtable.copy_across_async(inner, destination, destination_offset, source,
                                         source_offset, size, stream);
}

static quay_status track_lend(quay_allocator *allocator, const quay_raw_buffer *raw,
                              uint64_t offset, uint64_t size, quay_use_mode mode) {
  QUAY_TRY(check(allocator, raw, offset, size, mode == QUAY_READ ? "read" : "write"));
  quay_allocator *inner = allocator->inner;
  return inner->vtable.lend(inner, raw, offset, size, mode);
}

static quay_status track_lend_async(quay_allocator *allocator, const quay_raw_buffer *raw,
                                    uint64_t offset, uint64_t size, quay_use_mode mode) {
  QUAY_TRY(check(allocator, raw, offset, size, mode == QUAY_READ ? "read" : "write"));
  quay_allocator *inner = allocator->inner;
  return inner->vtable.lend_async(inner, raw, offset, size, mode);
}

static quay_status track_fill(quay_allocator *allocator, quay_raw_buffer *raw, uint64_t offset,
                              uint64_t size, const void *pattern, size_t pattern_size) {
  QUAY_TRY(check(allocator, raw, offset, size, "fill"));
  quay_allocator *inner = allocator->inner;
  return inner->vtable.fill(inner, raw, offset, size, pattern, pattern_size);
}

static quay_status track_copy_in_async(quay_allocator *allocator, quay_raw_buffer *destination,
                                       uint64_t offset, const void *source, uint64_t size,
                                       uint64_t stream) {
  QUAY_TRY(check(allocator, destination, offset, size, "write"));
  quay_allocator *inner = allocator->inner;
  return inner->vtable.copy_in_async(inner, destination, offset, source, size, stream);
}

static quay_status track_copy_out_async(quay_allocator *allocator, const quay_raw_buffer *source,
                                        uint64_t offset, void *destination, uint64_t size,
                                        uint64_t stream) {
  QUAY_TRY(check(allocator, source, offset, size, "read"));
  quay_allocator *inner = allocator->inner;
  return inner->vtable.copy_out_async(inner, source, offset, destination, size, stream);
}

static quay_status track_copy_within_async(quay_allocator *allocator, quay_raw_buffer *destination,
                                           uint64_t destination_offset,
                                           const quay_raw_buffer *source, uint64_t source_offset,
                                           uint64_t size, uint64_t stream) {
  QUAY_TRY(check(allocator, destination, destination_offset, size, "write"));
  QUAY_TRY(check(allocator, source, source_offset, size, "read"));
  quay_allocator *inner = allocator->inner;
  return inner->vtable.copy_within_async(inner, destination, destination_offset, source,
                                         source_offset, size, stream);
}

static quay_status track_fill_async(quay_allocator *allocator, quay_raw_buffer *raw,
                                    uint64_t offset, uint64_t size, const void *pattern,
                                    size_t pattern_size, uint64_t stream) {
  QUAY_TRY(check(allocator, raw, offset, size, "fill"));
  quay_allocator *inner = allocator->inner;
  return inner->vtable.fill_async(inner, raw, offset, size, pattern, pattern_size, stream);
}

static quay_status track_release(quay_allocator *allocator, quay_raw_buffer *raw,
                                 quay_host_memory *out_memory) {
  quay__track_layer *layer = allocator->self;
  const track_finding finding = look_up(allocator, raw, 0, 0, NULL);
  if (finding.verdict != TRACK_LIVE) {
    char text[FINDING_TEXT_SIZE];
    describe_finding(&finding, text);
    return quay_error_set(QUAY_STATUS_INVALID_ARGUMENT, "track", 0, NULL,
                          "track layer: refused to release a %s", text);
  }
  QUAY_TRY(quay__release(allocator->inner, raw, out_memory));
  quay__lock_acquire(&layer->lock);
  quay__track_entry *entry = find_live(&layer->live, &finding.identity);
  if (entry != NULL) {
    forget(layer, &layer->live, entry);
  }
  quay__lock_release(&layer->lock);
  quay__os_free(entry);
  return QUAY_OK;
}

static void track_stats(quay_allocator *allocator, quay_backend_stats *out_stats) {
  quay__track_layer *layer = allocator->self;
  quay_allocator *inner = allocator->inner;
  inner->vtable.stats(inner, out_stats);
  quay__lock_acquire(&layer->lock);
  out_stats->peak_bytes = layer->peak_bytes;
  quay__lock_release(&layer->lock);
}

static void clear(quay__track_index *index) {
  while (index->oldest != NULL) {
    quay__track_entry *entry = index->oldest;
    quay__track_index_remove(index, entry);
    quay__os_free(entry);
  }
}

void quay__track_destroy(void *self) {
  quay__track_layer *layer = self;
  clear(&layer->live);
  clear(&layer->adopted);
  quay__lock_destroy(&layer->lock);
  quay__os_free(layer);
}

/* Opening. */

static quay_allocator_vtable track_vtable(const quay_allocator *inner) {
  quay_allocator_vtable vtable = {
      .destroy = quay__track_destroy,
      .version = QUAY_ALLOCATOR_VTABLE_VERSION,
      .struct_size = sizeof(quay_allocator_vtable),
      .alloc = track_alloc,
      .free = track_free,
      .copy_in = track_copy_in,
      .copy_out = track_copy_out,
      .copy_within = track_copy_within,
      .copy_across = track_copy_across,
      .lend = track_lend,
      .lend_async = track_lend_async,
      .fill = track_fill,
      .stats = track_stats,
      .release = track_release,
  };
  if (inner->has_reserve) {
    vtable.reserve = track_reserve;
  }
  if (inner->has_async) {
    vtable.copy_in_async = track_copy_in_async;
    vtable.copy_out_async = track_copy_out_async;
    vtable.copy_within_async = track_copy_within_async;
    vtable.fill_async = track_fill_async;
    vtable.copy_across_async = track_copy_across_async;
  }
  return vtable;
}

static quay_status track_open(const quay_spec_args *args, quay_allocator *inner,
                              quay_allocator **out_allocator) {
  QUAY_TRY(quay_spec_check(args, NULL, 0));
  quay__track_layer *layer = quay__os_calloc(1, sizeof *layer);
  if (layer == NULL) {
    return quay__fail_out_of_memory(sizeof *layer, "the track layer");
  }
  quay__lock_init(&layer->lock);
  layer->kind = inner->kind;
  const quay_allocator_vtable vtable = track_vtable(inner);
  const quay_status status =
      quay__layer_create(&vtable, layer, "track", "track", inner, out_allocator);
  if (status != QUAY_OK) {
    quay__track_destroy(layer);
    return status;
  }
  (*out_allocator)->report_leaks = quay__track_report_leaks;
  (*out_allocator)->adopt = track_adopt;
  (*out_allocator)->unadopt = track_unadopt;
  return QUAY_OK;
}

const quay__layer quay__layer_track = {.name = "track", .open = track_open};
