/* Test data written and compared in parts, each made aside and then moved or compared by one call:
 * to ThreadSanitizer that is one access to the memory under test, where a loop over its bytes is
 * one for each byte, and takes twenty times as long. */
#ifndef QUAY_TESTS_SUPPORT_PARTS_H
#define QUAY_TESTS_SUPPORT_PARTS_H

#include <stdint.h>

/* For functions that touch no memory but their own. */
#define QUAY_TEST_OWN_MEMORY __attribute__((no_sanitize("thread")))

/* Byte `index` of the data called `seed`. */
typedef unsigned char (*quay_test_byte_function)(uint64_t index, unsigned seed);

/* Writes bytes `first`, `first` + 1 ... of the data. */
void quay_test_write_data(void *bytes, uint64_t size, uint64_t first, unsigned seed,
                          quay_test_byte_function byte);

/* The place in `bytes` of the first one that is not the data's; `size`: all are. */
uint64_t quay_test_first_wrong(const void *bytes, uint64_t size, uint64_t first, unsigned seed,
                               quay_test_byte_function byte);

#endif
