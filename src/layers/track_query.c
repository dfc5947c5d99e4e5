/* What the track layer can be asked: its live blocks, an address among them, what leaks. Nothing
 * here changes its state. */
#include <inttypes.h>
#include <stdio.h>

#include "core/error.h"
#include "core/os.h"
#include "layers/track_impl.h"

/* Texts. */

quay_track_block quay__track_block_of(const quay__track_layer *layer,
                                      const quay__track_entry *entry) {
  return (quay_track_block){
      .address = entry->key.addressed ? entry->key.value : 0,
      .size = entry->size,
      .kind = layer->kind,
      .serial = entry->key.serial,
      .file = entry->file != NULL ? entry->file : "",
      .line = entry->line,
      .caller = entry->caller,
  };
}

void quay__track_describe(const quay_track_block *block,
                          char out_text[static QUAY__TRACK_TEXT_SIZE]) {
  char place[256] = "at a place that was not named";
  if (block->file[0] != '\0') {
    snprintf(place, sizeof place, "at %.200s:%d", block->file, block->line);
  }
  snprintf(out_text, QUAY__TRACK_TEXT_SIZE,
           "%" PRIu64 " bytes of %s memory at 0x%" PRIx64 ", allocation %" PRIu64
           ", asked for %s (return address %p)",
           block->size, quay_memory_kind_name(block->kind), block->address, block->serial, place,
           block->caller);
}

/* Copies the blocks of one of the layer's indices out, by serial number; address space that a layer
 * around this one has reserved is none. `*out_blocks` is freed with quay__os_free(). */
static quay_status snapshot(quay__track_layer *layer, const quay__track_index *index,
                            quay_track_block **out_blocks, size_t *out_count) {
  for (;;) {
    quay__lock_acquire(&layer->lock);
    const uint64_t expected = index->count;
    quay__lock_release(&layer->lock);

    quay_track_block *blocks = quay__os_calloc(expected + 1, sizeof *blocks);
    if (blocks == NULL) {
      return quay__fail_out_of_memory((expected + 1) * sizeof *blocks,
                                      "a list of the track layer's live blocks");
    }
    size_t count = 0;
    quay__lock_acquire(&layer->lock);
    const bool fits = index->count <= expected + 1;
    for (const quay__track_entry *entry = index->oldest; fits && entry != NULL;
         entry = entry->younger) {
      if (!entry->reserved)
        blocks[count++] = quay__track_block_of(layer, entry);
    }
    quay__lock_release(&layer->lock);
    if (fits) {
      *out_blocks = blocks;
      *out_count = count;
      return QUAY_OK;
    }
    quay__os_free(blocks);
  }
}

static void log_leaks(const quay_track_block *blocks, size_t count, const char *adopted) {
  for (size_t i = 0; i < count; i++) {
    char text[QUAY__TRACK_TEXT_SIZE];
    quay__track_describe(&blocks[i], text);
    quay_log(QUAY_LOG_ERROR, "track layer: not freed: %s%s", adopted, text);
  }
}

static void report(quay__track_layer *layer, const quay__track_index *index, const char *adopted) {
  quay_track_block *blocks = NULL;
  size_t count = 0;
  if (snapshot(layer, index, &blocks, &count) != QUAY_OK) {
    quay_log(QUAY_LOG_ERROR, "track layer: leaks can't be listed: %s", quay_last_error()->message);
  }
  log_leaks(blocks, count, adopted);
  quay__os_free(blocks);
}

void quay__track_report_leaks(quay_allocator *allocator) {
  quay__track_layer *layer = allocator->self;
  quay__error_state error;
  quay__error_save(&error);
  report(layer, &layer->live, "");
  report(layer, &layer->adopted, "adopted ");
  quay__error_restore(&error);
}

/* The public functions. */

static quay_status find_track(quay_allocator *allocator, const char *function,
                              quay__track_layer **out_layer) {
  for (quay_allocator *each = allocator; each != NULL; each = each->inner) {
    if (each->vtable.destroy == quay__track_destroy) {
      *out_layer = each->self;
      return QUAY_OK;
    }
  }
  if (allocator == NULL) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT, "%s: the allocator is NULL", function);
  }
  return quay__fail(QUAY_STATUS_INVALID_ARGUMENT,
                    "%s: \"%s\" has no track layer; open it as \"track+%s\"", function,
                    allocator->spec, allocator->spec);
}

quay_status quay_track_visit(quay_allocator *allocator, quay_track_visitor visitor, void *user) {
  if (visitor == NULL) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT, "quay_track_visit: the visitor is NULL");
  }
  quay__track_layer *layer = NULL;
  quay_track_block *blocks = NULL;
  size_t count = 0;
  QUAY_TRY(find_track(allocator, "quay_track_visit", &layer));
  QUAY_TRY(snapshot(layer, &layer->live, &blocks, &count));
  for (size_t i = 0; i < count && visitor(user, &blocks[i]); i++) {
  }
  quay__os_free(blocks);
  return QUAY_OK;
}

void quay__track_find_neighbours(const quay__track_layer *layer, uint64_t address,
                                 const quay__track_entry *holder, quay_track_location *location) {
  const quay__track_index *const index = &layer->live;
  const quay__track_key above = {
      .addressed = true, .sized = true, .value = address, .serial = UINT64_MAX};
  const quay__track_key below = holder != NULL ? holder->key : above;
  const quay__track_entry *entry = quay__track_index_before(index, below);
  if (entry != NULL && entry->key.addressed) {
    location->has_below = true;
    location->below = quay__track_block_of(layer, entry);
  }
  entry = quay__track_index_from(index, above);
  if (entry != NULL) {
    location->has_above = true;
    location->above = quay__track_block_of(layer, entry);
  }
}

quay_status quay_track_locate(quay_allocator *allocator, uint64_t address,
                              quay_track_location *out_location) {
  if (out_location == NULL) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT, "quay_track_locate: out_location is NULL");
  }
  quay__track_layer *layer = NULL;
  quay_track_location location = {0};
  QUAY_TRY(find_track(allocator, "quay_track_locate", &layer));
  quay__lock_acquire(&layer->lock);
  const quay__track_entry *holder = quay__track_index_holder(&layer->live, address);
  if (holder != NULL) {
    location.inside = true;
    location.block = quay__track_block_of(layer, holder);
    location.offset = address - holder->key.value;
  }
  quay__track_find_neighbours(layer, address, holder, &location);
  quay__lock_release(&layer->lock);
  *out_location = location;
  return QUAY_OK;
}

quay_status quay_track_check(quay_allocator *allocator) {
  quay__track_layer *layer = NULL;
  quay_track_block *blocks = NULL;
  size_t count = 0;
  QUAY_TRY(find_track(allocator, "quay_track_check", &layer));
  QUAY_TRY(snapshot(layer, &layer->live, &blocks, &count));
  if (count == 0) {
    quay__os_free(blocks);
    return QUAY_OK;
  }
  uint64_t bytes = 0;
  for (size_t i = 0; i < count; i++) {
    bytes += blocks[i].size;
  }
  log_leaks(blocks, count, "");
  char oldest[QUAY__TRACK_TEXT_SIZE];
  quay__track_describe(&blocks[0], oldest);
  quay__os_free(blocks);
  return quay_error_set(QUAY_STATUS_BUSY, "track", 0, NULL,
                        "track layer of \"%s\": %zu blocks of %" PRIu64
                        " bytes of %s memory together are not freed; the oldest is %s",
                        allocator->spec, count, bytes, quay_memory_kind_name(allocator->kind),
                        oldest);
}
