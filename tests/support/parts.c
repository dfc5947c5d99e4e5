/* See parts.h. */
#include "support/parts.h"

#include <string.h>

#include "support/random.h"

#define PART 4096u

static size_t part_of(uint64_t left) {
  return left < PART ? (size_t)left : PART;
}

QUAY_TEST_OWN_MEMORY static void make(unsigned char *part, size_t size, uint64_t first,
                                      unsigned seed, quay_test_byte_function byte) {
  for (size_t i = 0; i < size; i++)
    part[i] = byte(first + i, seed);
}

void quay_test_write_data(void *bytes, uint64_t size, uint64_t first, unsigned seed,
                          quay_test_byte_function byte) {
  unsigned char part[PART];
  for (uint64_t done = 0; done < size;) {
    const size_t count = part_of(size - done);
    make(part, count, first + done, seed, byte);
    memcpy((unsigned char *)bytes + done, part, count);
    done += count;
  }
}

uint64_t quay_test_first_wrong(const void *bytes, uint64_t size, uint64_t first, unsigned seed,
                               quay_test_byte_function byte) {
  unsigned char part[PART];
  for (uint64_t done = 0; done < size;) {
    const size_t count = part_of(size - done);
    make(part, count, first + done, seed, byte);
    const size_t same = quay_test_difference((const unsigned char *)bytes + done, part, count);
    if (same < count)
      return done + same;
    done += count;
  }
  return size;
}
