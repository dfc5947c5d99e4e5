/* One block of a guard layer. Everything goes through the inner allocator's functions, so that it
 * works on memory that the host can't reach. */
#include "layers/guard_block.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/checked.h"
#include "core/error.h"
#include "core/os.h"
#include "core/poison.h"
#include "core/stream_impl.h"
#include "layers/track_impl.h"

/* On the stack of whoever frees. */
#define CHUNK_BYTES (16u << 10)

static uint64_t end_of(const quay__guard_block *block) {
  return block->front + block->size + block->back;
}

/* Poison. */

static void poison_zones(const quay__guard_block *block) {
  if (block->host == NULL)
    return;
  quay__poison(block->host, block->front);
  quay__poison(block->host + block->front + block->size, block->back);
}

static void unpoison_zones(const quay__guard_block *block) {
  if (block->host == NULL)
    return;
  quay__unpoison(block->host, block->front);
  quay__unpoison(block->host + block->front + block->size, block->back);
}

/* Filling. */

static quay_status fill(quay_allocator *inner, quay__guard_block *block, quay_stream *stream,
                        uint64_t offset, uint64_t size, int value) {
  const unsigned char pattern = (unsigned char)value;
  if (size == 0)
    return QUAY_OK;
  if (stream != NULL && inner->has_async) {
    return inner->vtable.fill_async(inner, &block->whole, offset, size, &pattern, sizeof pattern,
                                    quay__stream_handle(stream));
  }
  return inner->vtable.fill(inner, &block->whole, offset, size, &pattern, sizeof pattern);
}

static quay_status fill_all(quay_allocator *inner, quay__guard_block *block, quay_stream *stream,
                            bool zeroed) {
  const uint64_t behind = block->front + block->size;
  QUAY_TRY(fill(inner, block, stream, 0, block->front, QUAY__GUARD_RED));
  QUAY_TRY(fill(inner, block, stream, behind, block->back, QUAY__GUARD_RED));
  return zeroed ? QUAY_OK : fill(inner, block, stream, block->front, block->size, QUAY__GUARD_NEW);
}

/* The block is given back: what was submitted must not write to it any more. */
static void settle(quay_stream *stream) {
  quay__error_state error;
  quay__error_save(&error);
  (void)quay__stream_drain(stream);
  quay__error_restore(&error);
}

quay_status quay__guard_block_begin(quay_allocator *inner, quay__guard_block *block,
                                    quay_stream *stream, bool zeroed) {
  /* What the processor reaches is poisoned below, and must not be filled after that. */
  if (stream != NULL && (!inner->has_async || block->host != NULL)) {
    QUAY_TRY(quay_stream_synchronize(stream));
    stream = NULL;
  }
  const quay_status status = fill_all(inner, block, stream, zeroed);
  if (status != QUAY_OK && stream != NULL)
    settle(stream);
  QUAY_TRY(status);
  if (stream != NULL)
    QUAY_TRY(quay__event_record_or_wait(stream, &block->filled));
  if (block->host != NULL && !zeroed)
    quay__unpoison_undefined(block->host + block->front, block->size);
  poison_zones(block);
  return QUAY_OK;
}

quay_status quay__guard_block_bury(quay_allocator *inner, quay__guard_block *block) {
  unpoison_zones(block);
  const quay_status status = fill(inner, block, NULL, 0, end_of(block), QUAY__GUARD_FREED);
  if (block->host != NULL)
    quay__poison(block->host, end_of(block));
  return status;
}

void quay__guard_block_end(quay_allocator *inner, quay__guard_block *block,
                           quay_event *const *pending, size_t count) {
  if (block->host != NULL)
    quay__unpoison(block->host, end_of(block));
  quay_event_release(block->filled);
  quay__free(inner, &block->whole, pending, count);
  quay__os_free(block);
}

/* Looking for damage. */

/* What was found so far of one place: offsets in the whole block. */
typedef struct guard_scan {
  uint64_t first, last, count;
} guard_scan;

static void scan_chunk(const unsigned char *bytes, uint64_t size, uint64_t offset, int expected,
                       guard_scan *scan) {
  /* All bytes are equal if each is equal to the one before it. */
  if (bytes[0] == expected && memcmp(bytes, bytes + 1, size - 1) == 0)
    return;
  for (uint64_t i = 0; i < size; i++) {
    if (bytes[i] == expected)
      continue;
    if (scan->count++ == 0)
      scan->first = offset + i;
    scan->last = offset + i;
  }
}

static quay_status scan_range(quay_allocator *inner, const quay__guard_block *block,
                              uint64_t offset, uint64_t size, int expected, guard_scan *scan) {
  unsigned char chunk[CHUNK_BYTES];
  for (uint64_t done = 0; done < size;) {
    const uint64_t part = quay__min(size - done, sizeof chunk);
    QUAY_TRY(inner->vtable.copy_out(inner, &block->whole, offset + done, chunk, part));
    scan_chunk(chunk, part, offset + done, expected, scan);
    done += part;
  }
  return QUAY_OK;
}

static void add_damage(const quay__guard_block *block, quay_guard_direction direction,
                       const guard_scan *scan, quay_guard_damage *out_damages, size_t *count) {
  if (scan->count == 0)
    return;
  out_damages[(*count)++] = (quay_guard_damage){
      .direction = direction,
      .first = (int64_t)(scan->first - block->front),
      .last = (int64_t)(scan->last - block->front),
      .bytes = scan->count,
      .block =
          {
              .address = block->address,
              .size = block->size,
              .kind = block->whole.owner->kind,
              .serial = block->id,
              .file = block->file != NULL ? block->file : "",
              .line = block->line,
              .caller = block->caller,
          },
  };
}

static quay_status inspect_live(quay_allocator *inner, const quay__guard_block *block,
                                quay_guard_damage *out_damages, size_t *out_count) {
  guard_scan under = {.count = 0}, over = {.count = 0};
  unpoison_zones(block);
  quay_status status = scan_range(inner, block, 0, block->front, QUAY__GUARD_RED, &under);
  if (status == QUAY_OK) {
    status =
        scan_range(inner, block, block->front + block->size, block->back, QUAY__GUARD_RED, &over);
  }
  poison_zones(block);
  add_damage(block, QUAY_GUARD_UNDERRUN, &under, out_damages, out_count);
  add_damage(block, QUAY_GUARD_OVERRUN, &over, out_damages, out_count);
  return status;
}

static quay_status inspect_buried(quay_allocator *inner, const quay__guard_block *block,
                                  quay_guard_damage *out_damages, size_t *out_count) {
  guard_scan scan = {.count = 0};
  if (block->host != NULL)
    quay__unpoison(block->host, end_of(block));
  const quay_status status = scan_range(inner, block, 0, end_of(block), QUAY__GUARD_FREED, &scan);
  if (block->host != NULL)
    quay__poison(block->host, end_of(block));
  add_damage(block, QUAY_GUARD_AFTER_FREE, &scan, out_damages, out_count);
  return status;
}

quay_status quay__guard_block_inspect(quay_allocator *inner, quay__guard_block *block, bool buried,
                                      quay_guard_damage out_damages[static 2], size_t *out_count) {
  *out_count = 0;
  if (quay_device_health(inner->device) != QUAY_HEALTH_OK ||
      quay__device_generation(inner->device) != block->generation)
    return QUAY_OK;
  if (block->filled != NULL) {
    QUAY_TRY(quay_event_synchronize(block->filled));
    quay_event_release(block->filled);
    block->filled = NULL;
  }
  return buried ? inspect_buried(inner, block, out_damages, out_count)
                : inspect_live(inner, block, out_damages, out_count);
}

void quay__guard_describe(const quay_guard_damage *damage,
                          char out_text[static QUAY__GUARD_TEXT_SIZE]) {
  static const char *const names[] = {
      [QUAY_GUARD_UNDERRUN] = "underrun",
      [QUAY_GUARD_OVERRUN] = "overrun",
      [QUAY_GUARD_AFTER_FREE] = "use after free",
  };
  char block[QUAY__TRACK_TEXT_SIZE];
  quay__track_describe(&damage->block, block);
  snprintf(out_text, QUAY__GUARD_TEXT_SIZE,
           "%s: %" PRIu64 " bytes were overwritten from offset %" PRId64 " to %" PRId64
           " of the block of %s",
           names[damage->direction], damage->bytes, damage->first, damage->last, block);
}
