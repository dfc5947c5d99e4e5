/* What the files of the contract suite share: the target that $QUAY_TEST_SPEC names, the other side
 * of copies that $QUAY_TEST_PEER names (default: the target), and checks. */
#ifndef QUAY_TESTS_CONTRACT_CONTRACT_H
#define QUAY_TESTS_CONTRACT_CONTRACT_H

#include <criterion/criterion.h>
#include <quay/backend.h>
#include <quay/quay.h>

#include "support/block.h"
#include "support/random.h"
#include "targets.h"

/* Open the target, or the peer; the test fails if that can't be. */
quay_allocator *contract_open(void);
quay_allocator *contract_open_peer(void);

/* Checks that nothing of the allocator is live, in its counters and in its track layer if it has
 * one, and releases it. */
void contract_close(quay_allocator *allocator);

const contract_target *contract_target_of(const quay_allocator *allocator);
/* What an allocation that no machine has memory for answers. */
quay_status contract_too_large(const quay_allocator *allocator);
bool contract_can(const quay_allocator *allocator, contract_ability ability);
/* True if the target can't do it, which the table gives the reason for: that it says so clearly and
 * that nothing changes has been checked then, and the allocator is closed. */
bool contract_lacks(quay_allocator *allocator, contract_ability ability);

/* A buffer of `size` bytes (U8), or a test failure; `seed` above 0 fills it with random bytes. */
quay_buffer *contract_buffer(quay_allocator *allocator, uint64_t size, uint64_t seed);
quay_buffer *contract_view(quay_buffer *buffer, uint64_t offset, uint64_t size);

/* Checks every byte of the buffer against `expected`. */
void contract_check_bytes(const quay_buffer *buffer, const void *expected, const char *what);

#define CONTRACT_OK(expression) \
  cr_assert_eq((expression), QUAY_OK, #expression ": %s", quay_last_error()->message)

/* Fails with this status, and the thread's error says so with a message. */
#define CONTRACT_FAILS(expression, expected)                                                    \
  do {                                                                                          \
    const quay_status contract_status_ = (expression);                                          \
    cr_assert_eq(contract_status_, (expected), #expression " gave %s instead of " #expected,    \
                 quay_status_name(contract_status_));                                           \
    cr_assert_eq(quay_last_error()->status, (expected), #expression ": the error disagrees");   \
    cr_assert_str_not_empty(quay_last_error()->message, #expression ": an error says nothing"); \
  } while (0)

/* Pieces in which copies are likely to be cut, and the sizes around them. */
#define CONTRACT_SIZES                                                                      \
  {                                                                                         \
    1, 64 * 1024 - 1, 64 * 1024, 64 * 1024 + 1, 2 * 64 * 1024 + 12345, 4 * 1024 * 1024 - 1, \
        4 * 1024 * 1024, 4 * 1024 * 1024 + 1, 8 * 1024 * 1024 + 12345                       \
  }
#define CONTRACT_OFFSETS \
  { 0, 1, 3, 7, 63, 65, 4095, 4097 }
#define CONTRACT_COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Sizes above this take part in fewer combinations. */
#define CONTRACT_LARGE (1024 * 1024)

#endif
