/* Fills over a lane: by the device's own command where it has one for the pattern and the place,
 * else by copying a slot of the pattern and doubling what is there. */
#include <string.h>

#include "core/checked.h"
#include "core/host_copy.h"
#include "vulkan/vulkan_impl.h"

/* vkCmdFillBuffer writes words. */
#define WORD ((uint64_t)4)

static bool in_words(const quay__vulkan_place *place, uint64_t size, size_t pattern_size) {
  return place->offset % WORD == 0 && size % WORD == 0 && WORD % pattern_size == 0;
}

static uint32_t word_of(const void *pattern, size_t pattern_size) {
  unsigned char bytes[4];
  for (size_t i = 0; i < sizeof bytes; i++)
    bytes[i] = ((const unsigned char *)pattern)[i % pattern_size];
  uint32_t word;
  memcpy(&word, bytes, sizeof word);
  return word;
}

/* Each doubling begins at a whole number of patterns, since the first piece is one. */
static void record_doubling(quay__vulkan_lane *lane, const quay__vulkan_place *place, uint64_t done,
                            uint64_t size) {
  while (done < size) {
    const uint64_t part = quay__min(done, size - done);
    quay__vulkan_barrier(lane->queue->device, lane->slots[0].commands);
    quay__vulkan_record_copy(lane, 0, place->buffer, place->offset + done, place->buffer,
                             place->offset, part);
    done += part;
  }
}

quay_status quay__vulkan_submit_fill(quay__vulkan_lane *lane, const quay__vulkan_place *place,
                                     uint64_t size, const void *pattern, size_t pattern_size) {
  if (in_words(place, size, pattern_size)) {
    QUAY_TRY(quay__vulkan_slot_begin(lane, 0));
    lane->queue->device->api.vkCmdFillBuffer(lane->slots[0].commands, place->buffer, place->offset,
                                             size, word_of(pattern, pattern_size));
    return quay__vulkan_slot_submit(lane, 0);
  }
  const uint64_t first = quay__min(size, QUAY__VULKAN_SLOT_BYTES);
  quay__vulkan_span *span = NULL;
  QUAY_TRY(quay__vulkan_slot_up(lane, 0, first, &span));
  const quay__vulkan_place from = quay__vulkan_place_in(span, 0);
  quay__host_fill(from.host, first, pattern, pattern_size);
  QUAY_TRY(quay__vulkan_slot_begin(lane, 0));
  quay__vulkan_record_copy(lane, 0, place->buffer, place->offset, from.buffer, from.offset, first);
  record_doubling(lane, place, first, size);
  return quay__vulkan_slot_submit(lane, 0);
}
