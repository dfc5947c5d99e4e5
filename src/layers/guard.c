/* The guard layer: puts red zones around every block, fills what is new and what was freed, and
 * finds writes to either. What is in one block is in guard_block.c; here is which blocks there are.
 *
 * The lock is a stripe, whose condition lets a thread that frees wait for one that looks at the
 * block. It is not held while the inner allocator is called. */
#include <inttypes.h>
#include <quay/layers.h>
#include <stdio.h>
#include <string.h>

#include "core/allocator_impl.h"
#include "core/checked.h"
#include "core/error.h"
#include "core/lifecycle.h"
#include "core/lock.h"
#include "core/os.h"
#include "core/registry.h"
#include "core/thread.h"
#include "layers/guard_block.h"

enum {
  BUCKETS = 1024,
  DEFAULT_REDZONE = 128,
  REDZONE_MAX = 1 << 30,
  DEFAULT_QUARANTINE = 4 << 20,
};

/* Blocks in the order in which they were added. */
typedef struct guard_list {
  quay__guard_block *oldest, *newest;
} guard_list;

typedef struct guard_layer {
  quay_allocator *inner;
  uint64_t redzone;          /* bytes, at least, on each side */
  uint64_t quarantine_limit; /* bytes */
  bool carves;               /* there can be a red zone before the block */
  atomic_uint_fast64_t serial;
  /* Guarded by the layer's stripe. */
  guard_list live, quarantine;
  uint64_t quarantined;                /* bytes */
  quay__guard_block *buckets[BUCKETS]; /* live blocks by id */
} guard_layer;

/* Whether somebody looks at the block. What another thread had pinned when this process was forked
 * is pinned by nobody here. With the stripe held. */
static bool is_pinned(const quay__guard_block *block) {
  return block->pinned_in == quay__fork_generation + 1;
}

/* Which blocks there are. All with the stripe held. */

static void list_append(guard_list *list, quay__guard_block *block) {
  quay__guard_block **const link = list->newest != NULL ? &list->newest->newer : &list->oldest;
  block->older = list->newest;
  block->newer = NULL;
  *link = block;
  list->newest = block;
}

static void list_remove(guard_list *list, const quay__guard_block *block) {
  quay__guard_block **const from_older =
      block->older != NULL ? &block->older->newer : &list->oldest;
  quay__guard_block **const from_newer =
      block->newer != NULL ? &block->newer->older : &list->newest;
  *from_older = block->newer;
  *from_newer = block->older;
}

static quay__guard_block **find_link(guard_layer *layer, uint64_t id) {
  quay__guard_block **link = &layer->buckets[id % BUCKETS];
  while (*link != NULL && (*link)->id != id)
    link = &(*link)->same_bucket;
  return link;
}

static void add_live(guard_layer *layer, quay__guard_block *block) {
  quay__guard_block **const bucket = &layer->buckets[block->id % BUCKETS];
  block->same_bucket = *bucket;
  *bucket = block;
  list_append(&layer->live, block);
}

/* Takes a live block out, once nobody looks at it. NULL: there is none with this id. */
static quay__guard_block *take_live(guard_layer *layer, uint64_t id) {
  quay__guard_block **link = find_link(layer, id);
  while (*link != NULL && is_pinned(*link)) {
    quay__stripe_wait(layer);
    link = find_link(layer, id);
  }
  quay__guard_block *const block = *link;
  if (block == NULL)
    return NULL;
  *link = block->same_bucket;
  list_remove(&layer->live, block);
  return block;
}

/* Takes the oldest block out of the quarantine if more than `limit` bytes are in it. */
static quay__guard_block *take_quarantined(guard_layer *layer, uint64_t limit) {
  quay__guard_block *block = layer->quarantine.oldest;
  while (block != NULL && is_pinned(block)) {
    quay__stripe_wait(layer);
    block = layer->quarantine.oldest;
  }
  if (block == NULL || layer->quarantined <= limit)
    return NULL;
  list_remove(&layer->quarantine, block);
  layer->quarantined -= block->whole.size;
  return block;
}

/* Reports. */

static void report(const quay_guard_damage *damages, size_t count) {
  char text[QUAY__GUARD_TEXT_SIZE];
  for (size_t i = 0; i < count; i++) {
    quay__guard_describe(&damages[i], text);
    quay_log(QUAY_LOG_ERROR, "guard layer: %s", text);
  }
}

/* Looks at a block that is this thread's alone, and reports. `errors` counts, NULL: nobody. */
static void inspect_last(guard_layer *layer, quay__guard_block *block, bool buried,
                         quay__statistics *errors) {
  quay_guard_damage damages[2];
  size_t count = 0;
  if (quay__guard_block_inspect(layer->inner, block, buried, damages, &count) != QUAY_OK) {
    quay_log(QUAY_LOG_WARNING, "guard layer: a freed block of %" PRIu64 " bytes can't be read: %s",
             block->size, quay_last_error()->message);
  }
  report(damages, count);
  for (size_t i = 0; i < count && errors != NULL; i++)
    quay__statistics_error(errors);
}

/* Allocating. */

/* The sizes of the three parts; the whole is 2^63-1, which no allocator has, where they overflow.
 */
static uint64_t lay_out(const guard_layer *layer, const quay_alloc_request *request,
                        quay__guard_block *block) {
  uint64_t whole;
  block->size = request->size;
  block->back = layer->redzone;
  block->front = 0;
  if (layer->carves && !quay__align_up(layer->redzone, request->alignment, &block->front))
    return INT64_MAX;
  if (!quay__add(block->front + block->back, block->size, &whole) || whole > INT64_MAX)
    return INT64_MAX;
  return whole;
}

static void identify(quay_allocator *allocator, quay__guard_block *block) {
  guard_layer *const layer = allocator->self;
  quay_allocator *const inner = layer->inner;
  void *host = NULL;
  quay__error_shield();
  if (quay__host_accessible(inner) &&
      inner->vtable.host_pointer(inner, &block->whole, &host) == QUAY_OK)
    block->host = host;
  if (inner->vtable.address(inner, &block->whole, &block->address) == QUAY_OK)
    block->address += block->front;
  quay__error_unshield();
  block->id = atomic_fetch_add_explicit(&layer->serial, 1, memory_order_relaxed) + 1;
  block->generation = quay__device_generation(inner->device);
  block->file = quay__near.file;
  block->line = quay__near.line;
  block->caller = quay__near.caller;
}

/* What the program gets to see of the block. */
static void carve(const guard_layer *layer, const quay__guard_block *block, bool zeroed,
                  quay_raw_buffer *out_raw) {
  quay_allocator *const inner = layer->inner;
  if (layer->carves) {
    inner->vtable.window(inner, &block->whole, block->front, block->size, out_raw);
  } else {
    *out_raw = block->whole;
    out_raw->flags &= ~(uint32_t)QUAY_RAW_ZEROED;
  }
  if (zeroed)
    out_raw->flags |= QUAY_RAW_ZEROED;
  out_raw->cookie = block->id;
}

static uint64_t drain(guard_layer *layer, uint64_t limit, quay__statistics *errors);

/* Allocates the whole; out of memory, the quarantine is given up for it. */
static quay_status alloc_whole(quay_allocator *allocator, const quay_alloc_request *request,
                               quay_raw_buffer *out_raw) {
  guard_layer *const layer = allocator->self;
  quay_status status = quay__alloc(layer->inner, request, out_raw);
  if (status != QUAY_STATUS_OUT_OF_HOST_MEMORY && status != QUAY_STATUS_OUT_OF_DEVICE_MEMORY &&
      status != QUAY_STATUS_LIMIT_EXCEEDED)
    return status;
  quay__error_state before;
  quay__error_save(&before);
  const uint64_t freed = drain(layer, 0, &allocator->statistics);
  if (freed > 0)
    status = quay__alloc(layer->inner, request, out_raw);
  if (freed == 0 || status == QUAY_OK)
    quay__error_restore(&before);
  return status;
}

static quay_status guard_alloc(quay_allocator *allocator, const quay_alloc_request *request,
                               quay_raw_buffer *out_raw) {
  guard_layer *const layer = allocator->self;
  quay__guard_block *const block = quay__os_calloc(1, sizeof *block);
  if (block == NULL)
    return quay__fail_out_of_memory(sizeof *block, "the guard layer's record of a block");
  quay_alloc_request whole = *request;
  whole.size = lay_out(layer, request, block);
  quay_status status = alloc_whole(allocator, &whole, &block->whole);
  if (status != QUAY_OK) {
    quay__os_free(block);
    return status;
  }
  identify(allocator, block);
  status = quay__guard_block_begin(layer->inner, block, request->stream, request->zeroed);
  if (status != QUAY_OK) {
    quay__guard_block_end(layer->inner, block, NULL, 0);
    return status;
  }
  carve(layer, block, request->zeroed, out_raw);
  quay__stripe_acquire(layer);
  add_live(layer, block);
  quay__stripe_release(layer);
  return QUAY_OK;
}

/* Freeing. */

/* Takes blocks out of the quarantine until at most `limit` bytes are in it; how many bytes those
 * had. */
static uint64_t drain(guard_layer *layer, uint64_t limit, quay__statistics *errors) {
  uint64_t bytes = 0;
  for (;;) {
    quay__stripe_acquire(layer);
    quay__guard_block *const block = take_quarantined(layer, limit);
    quay__stripe_release(layer);
    if (block == NULL)
      return bytes;
    bytes += block->whole.size;
    inspect_last(layer, block, true, errors);
    quay__guard_block_end(layer->inner, block, NULL, 0);
  }
}

/* Into the quarantine, which makes room by giving up what is oldest in it. */
static void put_into_quarantine(quay_allocator *allocator, quay__guard_block *block) {
  guard_layer *const layer = allocator->self;
  quay__stripe_acquire(layer);
  list_append(&layer->quarantine, block);
  layer->quarantined += block->whole.size;
  quay__stripe_release(layer);
  (void)drain(layer, layer->quarantine_limit, &allocator->statistics);
}

static bool is_usable(const guard_layer *layer, const quay__guard_block *block) {
  return quay_device_health(layer->inner->device) == QUAY_HEALTH_OK &&
         quay__device_generation(layer->inner->device) == block->generation;
}

static void guard_free(quay_allocator *allocator, quay_raw_buffer *raw, quay_event *const *pending,
                       size_t count) {
  guard_layer *const layer = allocator->self;
  if ((raw->flags & QUAY__RAW_RESERVED) != 0) {
    quay__free(layer->inner, raw, pending, count);
    return;
  }
  quay__stripe_acquire(layer);
  quay__guard_block *const block = take_live(layer, raw->cookie);
  quay__stripe_release(layer);
  if (block == NULL) {
    quay_log(QUAY_LOG_ERROR,
             "guard layer: refused to free a raw buffer of %" PRIu64 " bytes: allocation %" PRIu64
             " was freed before, or is none of this allocator's",
             raw->size, raw->cookie);
    raw->flags |= QUAY__RAW_REFUSED;
    return;
  }
  inspect_last(layer, block, false, &allocator->statistics);
  const bool buried =
      is_usable(layer, block) && quay__guard_block_bury(layer->inner, block) == QUAY_OK;
  if (buried && block->whole.size <= layer->quarantine_limit) {
    put_into_quarantine(allocator, block);
  } else {
    quay__guard_block_end(layer->inner, block, pending, count);
  }
}

static quay_status guard_release(quay_allocator *allocator, quay_raw_buffer *raw,
                                 quay_host_memory *out_memory) {
  if ((raw->flags & QUAY__RAW_RESERVED) != 0)
    return quay__release(allocator->inner, raw, out_memory);
  return quay_error_set(QUAY_STATUS_UNSUPPORTED, "guard", 0, NULL,
                        "memory of \"%s\" can't be released: the guard layer has carved it out of "
                        "a larger block",
                        allocator->spec);
}

static quay_status guard_trim(quay_allocator *allocator, uint64_t *out_bytes) {
  guard_layer *const layer = allocator->self;
  quay_allocator *const inner = layer->inner;
  const uint64_t freed = drain(layer, 0, &allocator->statistics);
  QUAY_TRY(inner->vtable.trim(inner, out_bytes));
  *out_bytes += freed;
  return QUAY_OK;
}

/* The inner allocator's peak has the red zones in it. */
static void guard_stats(quay_allocator *allocator, quay_backend_stats *out_stats) {
  quay_allocator *const inner = allocator->inner;
  inner->vtable.stats(inner, out_stats);
  out_stats->peak_bytes = 0;
}

static void guard_destroy(void *self) {
  guard_layer *const layer = self;
  quay__error_shield();
  (void)drain(layer, 0, NULL);
  quay__error_unshield();
  quay__os_free(layer);
}

/* Opening. */

static quay_status parse(const quay_spec_args *args, guard_layer *out) {
  static const quay_spec_key keys[] = {
      {"redzone", "bytes on each side of a block, from 1 to 1GiB"},
      {"quarantine", "bytes of freed blocks that are kept; 0: none"},
  };
  QUAY_TRY(quay_spec_check(args, keys, sizeof keys / sizeof keys[0]));
  QUAY_TRY(quay_spec_bytes(args, "redzone", &out->redzone));
  QUAY_TRY(quay_spec_bytes(args, "quarantine", &out->quarantine_limit));
  if (out->redzone > 0 && out->redzone <= REDZONE_MAX)
    return QUAY_OK;
  return quay_error_set(QUAY_STATUS_INVALID_ARGUMENT, "guard", 0, NULL,
                        "redzone=%s in \"%s\": a red zone has 1 byte to 1GiB",
                        quay_spec_value(args, "redzone"), args->spec);
}

/* "guard", and what differs from the defaults. */
static void write_spec(const guard_layer *layer, char *out_spec, size_t size) {
  char redzone[40] = "", quarantine[40] = "";
  if (layer->redzone != DEFAULT_REDZONE)
    snprintf(redzone, sizeof redzone, "redzone=%" PRIu64, layer->redzone);
  if (layer->quarantine_limit != DEFAULT_QUARANTINE)
    snprintf(quarantine, sizeof quarantine, "quarantine=%" PRIu64, layer->quarantine_limit);
  const bool any = redzone[0] != '\0' || quarantine[0] != '\0';
  const bool both = redzone[0] != '\0' && quarantine[0] != '\0';
  snprintf(out_spec, size, "guard%s%s%s%s", any ? ":" : "", redzone, both ? "," : "", quarantine);
}

static quay_status guard_open(const quay_spec_args *args, quay_allocator *inner,
                              quay_allocator **out_allocator) {
  static const quay_allocator_vtable vtable = {
      .destroy = guard_destroy,
      .version = QUAY_ALLOCATOR_VTABLE_VERSION,
      .struct_size = sizeof(quay_allocator_vtable),
      .alloc = guard_alloc,
      .free = guard_free,
      .release = guard_release,
      .trim = guard_trim,
      .stats = guard_stats,
  };
  guard_layer *const layer = quay__os_calloc(1, sizeof *layer);
  if (layer == NULL)
    return quay__fail_out_of_memory(sizeof *layer, "the guard layer");
  layer->inner = inner;
  layer->redzone = DEFAULT_REDZONE;
  layer->quarantine_limit = DEFAULT_QUARANTINE;
  layer->carves = inner->has_window;
  char spec[128];
  quay_status status = parse(args, layer);
  if (status == QUAY_OK) {
    write_spec(layer, spec, sizeof spec);
    status = quay__layer_create(&vtable, layer, "guard", spec, inner, out_allocator);
  }
  if (status != QUAY_OK) {
    quay__os_free(layer);
    return status;
  }
  /* A block is looked at when it is freed: its device work must be done by then. */
  (*out_allocator)->flags &= ~(uint32_t)QUAY_ALLOCATOR_ORDERED_FREE;
  return QUAY_OK;
}

const quay__layer quay__layer_guard = {.name = "guard", .open = guard_open};

/* The public functions. */

static quay_status find_guard(quay_allocator *allocator, const char *function,
                              quay_allocator **out_guard) {
  for (quay_allocator *each = allocator; each != NULL; each = each->inner) {
    if (each->vtable.destroy == guard_destroy) {
      *out_guard = each;
      return QUAY_OK;
    }
  }
  return quay__fail(QUAY_STATUS_INVALID_ARGUMENT, "%s: %s%s%s", function,
                    allocator == NULL ? "the allocator is NULL" : "\"",
                    allocator == NULL ? "" : allocator->spec,
                    allocator == NULL ? "" : "\" has no guard layer; open it as \"guard+...\"");
}

/* Everything that is damaged at the moment. */
typedef struct guard_findings {
  quay_guard_damage *damages;
  size_t count, capacity;
} guard_findings;

/* The block behind `current` (NULL: the first), pinned, and `current` no more. Blocks that are
 * added meanwhile may be missed. */
static quay__guard_block *pin_next(guard_layer *layer, const guard_list *list,
                                   quay__guard_block *current) {
  quay__guard_block *next;
  quay__stripe_acquire(layer);
  for (;;) {
    next = current != NULL ? current->newer : list->oldest;
    if (next == NULL || !is_pinned(next))
      break;
    quay__stripe_wait(layer);
  }
  if (next != NULL)
    next->pinned_in = quay__fork_generation + 1;
  if (current != NULL) {
    current->pinned_in = 0;
    quay__stripe_wake(layer);
  }
  quay__stripe_release(layer);
  return next;
}

static void unpin(guard_layer *layer, quay__guard_block *block) {
  quay__stripe_acquire(layer);
  block->pinned_in = 0;
  quay__stripe_wake(layer);
  quay__stripe_release(layer);
}

static quay_status add_findings(guard_findings *findings, const quay_guard_damage *damages,
                                size_t count) {
  const size_t needed = findings->count + count;
  if (needed > findings->capacity) {
    const size_t capacity = 2 * needed;
    quay_guard_damage *const grown =
        quay__os_realloc(findings->damages, capacity * sizeof *findings->damages);
    if (grown == NULL) {
      return quay__fail_out_of_memory(capacity * sizeof *findings->damages,
                                      "a list of damaged blocks");
    }
    findings->damages = grown;
    findings->capacity = capacity;
  }
  for (size_t i = 0; i < count; i++)
    findings->damages[findings->count++] = damages[i];
  return QUAY_OK;
}

static quay_status inspect_list(guard_layer *layer, const guard_list *list, bool buried,
                                guard_findings *findings) {
  quay__guard_block *block = NULL;
  while ((block = pin_next(layer, list, block)) != NULL) {
    quay_guard_damage damages[2];
    size_t count = 0;
    quay_status status = quay__guard_block_inspect(layer->inner, block, buried, damages, &count);
    if (status == QUAY_OK)
      status = add_findings(findings, damages, count);
    if (status != QUAY_OK) {
      unpin(layer, block);
      return status;
    }
  }
  return QUAY_OK;
}

/* `out_findings->damages` is freed with quay__os_free(), on error, too. */
static quay_status inspect_all(quay_allocator *guard, guard_findings *out_findings) {
  guard_layer *const layer = guard->self;
  *out_findings = (guard_findings){.damages = NULL};
  QUAY_TRY(inspect_list(layer, &layer->live, false, out_findings));
  return inspect_list(layer, &layer->quarantine, true, out_findings);
}

quay_status quay_guard_visit(quay_allocator *allocator, quay_guard_visitor visitor, void *user) {
  if (visitor == NULL) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT, "quay_guard_visit: the visitor is NULL");
  }
  quay_allocator *guard = NULL;
  guard_findings findings;
  QUAY_TRY(find_guard(allocator, "quay_guard_visit", &guard));
  const quay_status status = inspect_all(guard, &findings);
  for (size_t i = 0; status == QUAY_OK && i < findings.count; i++) {
    if (!visitor(user, &findings.damages[i]))
      break;
  }
  quay__os_free(findings.damages);
  return status;
}

quay_status quay_guard_check(quay_allocator *allocator) {
  quay_allocator *guard = NULL;
  guard_findings findings;
  QUAY_TRY(find_guard(allocator, "quay_guard_check", &guard));
  quay_status status = inspect_all(guard, &findings);
  if (status == QUAY_OK && findings.count > 0) {
    char text[QUAY__GUARD_TEXT_SIZE];
    report(findings.damages, findings.count);
    quay__guard_describe(&findings.damages[0], text);
    status = quay_error_set(QUAY_STATUS_OUT_OF_RANGE, "guard", 0, NULL,
                            "guard layer of \"%s\": %zu places are damaged; the first: %s",
                            allocator->spec, findings.count, text);
  }
  quay__os_free(findings.damages);
  return status;
}
