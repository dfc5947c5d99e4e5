/* Opening and closing the target, and the checks that the suite shares. */
#include "contract.h"

#include <stdlib.h>
#include <string.h>

#include "support/late/late.h"
#include "support/skip.h"

quay_status own_backend_register(void); /* examples/own_backend.c */

/* The backends of the tests' own. Every test runs in a process of its own, or after others in the
 * same one. */
static bool own_registered;
static bool late_registered;

static quay_allocator *open_variable(const char *variable, const char *otherwise) {
  if (!own_registered)
    CONTRACT_OK(own_backend_register());
  own_registered = true;
  if (!late_registered)
    CONTRACT_OK(late_register(NULL));
  late_registered = true;
  const char *spec = getenv(variable);
  if (spec == NULL && otherwise != NULL)
    spec = getenv(otherwise);
  quay_allocator *allocator = NULL;
  cr_assert_not_null(spec, "%s must name the allocator under test", variable);
  const quay_status status = quay_allocator_open(spec, &allocator);
  /* The other devices are simulated, and always there. */
  if (status == QUAY_STATUS_UNAVAILABLE && strstr(spec, "vulkan") != NULL)
    quay_test_skip(spec, "%s", quay_last_error()->message);
  cr_assert_eq(status, QUAY_OK, "%s: %s", spec, quay_last_error()->message);
  return allocator;
}

quay_allocator *contract_open(void) {
  return open_variable("QUAY_TEST_SPEC", NULL);
}

quay_allocator *contract_open_peer(void) {
  return open_variable("QUAY_TEST_PEER", "QUAY_TEST_SPEC");
}

void contract_close(quay_allocator *allocator) {
  quay_stats stats;
  CONTRACT_OK(quay_allocator_stats(allocator, &stats));
  cr_expect_eq(stats.live_count, 0, "%s leaks %zu blocks", quay_allocator_spec(allocator),
               (size_t)stats.live_count);
  cr_expect_eq(stats.live_bytes, 0, "%s leaks %zu bytes", quay_allocator_spec(allocator),
               (size_t)stats.live_bytes);
  cr_expect_eq(stats.error_count, 0, "%s counted %zu errors", quay_allocator_spec(allocator),
               (size_t)stats.error_count);
  /* A guard keeps freed blocks of what is inside of it. */
  if (quay_allocator_find(allocator, "guard") != NULL) {
    CONTRACT_OK(quay_guard_check(allocator));
    CONTRACT_OK(quay_allocator_trim(allocator, NULL));
  }
  /* A pool keeps blocks of what is inside of it. */
  const quay_allocator *const track = quay_allocator_find(allocator, "track");
  const quay_allocator *const pool = quay_allocator_find(allocator, "pool");
  if (track != NULL && (pool == NULL || quay_allocator_find(pool, "track") == NULL))
    CONTRACT_OK(quay_track_check(allocator));
  quay_allocator_release(allocator);
  late_violation violation = {.message = ""};
  cr_expect_eq(late_violations(&violation, 1), 0, "%s", violation.message);
  /* Its threads end with it. Refused while another allocator of it is open. */
  if (late_unregister() == QUAY_OK)
    late_registered = false;
}

const contract_target *contract_target_of(const quay_allocator *allocator) {
  static const contract_target able = {.backend = "", .too_large = QUAY_STATUS_OUT_OF_HOST_MEMORY};
  while (quay_allocator_inner(allocator) != NULL)
    allocator = quay_allocator_inner(allocator);
  for (size_t i = 0; i < CONTRACT_COUNT(contract_targets); i++) {
    const contract_target *target = &contract_targets[i];
    if (strcmp(target->backend, quay_allocator_name(allocator)) == 0 &&
        (target->kind == QUAY_MEMORY_NONE || target->kind == quay_allocator_kind(allocator)))
      return target;
  }
  return &able;
}

quay_status contract_too_large(const quay_allocator *allocator) {
  if (quay_allocator_find(allocator, "limit") != NULL)
    return QUAY_STATUS_LIMIT_EXCEEDED;
  return contract_target_of(allocator)->too_large;
}

/* NULL: it can. */
static const char *why_not(const quay_allocator *allocator, contract_ability ability) {
  for (size_t i = 0; i < CONTRACT_COUNT(contract_layers); i++) {
    if (contract_layers[i].cannot[ability] != NULL &&
        quay_allocator_find(allocator, contract_layers[i].layer) != NULL)
      return contract_layers[i].cannot[ability];
  }
  return contract_target_of(allocator)->cannot[ability];
}

bool contract_can(const quay_allocator *allocator, contract_ability ability) {
  return why_not(allocator, ability) == NULL;
}

static void count_release(void *user, void *memory, uint64_t size) {
  (void)memory, (void)size;
  ++*(int *)user;
}

static void check_adoption_is_refused(quay_allocator *allocator) {
  unsigned char bytes[64] = {1};
  int calls = 0;
  const quay_host_memory memory = {
      .pointer = bytes, .size = sizeof bytes, .release = count_release, .user = &calls};
  quay_raw_buffer raw;
  CONTRACT_FAILS(quay_raw_buffer_adopt_host(allocator, &memory, &raw), QUAY_STATUS_UNSUPPORTED);
  cr_assert_eq(quay_raw_buffer_kind(&raw), QUAY_MEMORY_NONE);
  cr_assert_eq(calls, 0);
}

static void check_release_is_refused(quay_allocator *allocator) {
  quay_raw_buffer raw;
  quay_host_memory memory;
  quay_stats stats;
  CONTRACT_OK(quay_allocator_alloc(allocator, 100, NULL, &raw));
  CONTRACT_FAILS(quay_raw_buffer_release_host(&raw, &memory), QUAY_STATUS_UNSUPPORTED);
  cr_assert_null(memory.pointer);
  CONTRACT_OK(quay_allocator_stats(allocator, &stats));
  cr_assert_eq(stats.live_count, 1, "what was not released is still the allocator's");
  quay_raw_buffer_free(&raw);
}

static void check_host_access_is_refused(quay_allocator *allocator) {
  quay_raw_buffer raw;
  void *pointer = NULL;
  const void *bytes = NULL;
  CONTRACT_OK(quay_allocator_alloc(allocator, 0, NULL, &raw));
  CONTRACT_FAILS(quay_raw_buffer_host_pointer(&raw, &pointer), QUAY_STATUS_NOT_HOST_ACCESSIBLE);
  cr_assert_null(pointer);
  quay_raw_buffer_free(&raw);
  quay_buffer *buffer = contract_buffer(allocator, 64, 1);
  CONTRACT_FAILS(quay_buffer_host_bytes(buffer, &bytes, NULL), QUAY_STATUS_NOT_HOST_ACCESSIBLE);
  cr_assert_null(bytes);
  quay_buffer_release(buffer);
}

static void check_addresses_are_refused(quay_allocator *allocator) {
  quay_buffer *buffer = contract_buffer(allocator, 64, 1);
  uint64_t address = 0;
  CONTRACT_FAILS(quay_buffer_address(buffer, &address), QUAY_STATUS_UNSUPPORTED);
  cr_assert_eq(address, 0);
  quay_buffer_release(buffer);
}

bool contract_lacks(quay_allocator *allocator, contract_ability ability) {
  const char *const reason = why_not(allocator, ability);
  if (reason == NULL)
    return false;
  switch (ability) {
  case CONTRACT_ADOPT:
    check_adoption_is_refused(allocator);
    break;
  case CONTRACT_RELEASE:
    check_release_is_refused(allocator);
    break;
  case CONTRACT_HOST_ACCESS:
    check_host_access_is_refused(allocator);
    break;
  case CONTRACT_ADDRESS:
    check_addresses_are_refused(allocator);
    break;
  case CONTRACT_FORWARD: /* nothing is asked for that could be refused */
  case CONTRACT_ABILITY_COUNT:
    contract_close(allocator);
    quay_test_skip("chain", "%s", reason);
    return true;
  }
  contract_close(allocator);
  return true;
}

quay_buffer *contract_buffer(quay_allocator *allocator, uint64_t size, uint64_t seed) {
  const int64_t shape[] = {(int64_t)size};
  quay_buffer *buffer = NULL;
  CONTRACT_OK(quay_buffer_create(allocator, QUAY_U8, 1, shape, NULL, &buffer));
  if (seed != 0) {
    quay_test_block bytes = quay_test_block_make(size, 0, seed);
    CONTRACT_OK(quay_buffer_copy_in(buffer, bytes.data, size));
    quay_test_block_free(&bytes);
  }
  return buffer;
}

quay_buffer *contract_view(quay_buffer *buffer, uint64_t offset, uint64_t size) {
  quay_buffer *view = NULL;
  CONTRACT_OK(quay_buffer_view(buffer, offset, size, &view));
  return view;
}

void contract_check_bytes(const quay_buffer *buffer, const void *expected, const char *what) {
  const uint64_t size = quay_buffer_size(buffer);
  quay_test_block found = quay_test_block_make(size, 5, 77);
  CONTRACT_OK(quay_buffer_copy_out(buffer, found.data, size));
  const size_t difference = quay_test_difference(found.data, expected, size);
  cr_assert_eq(difference, size, "%s: byte %zu of %zu is wrong", what, difference, (size_t)size);
  cr_assert(quay_test_block_intact(&found), "%s: copy_out wrote beside its destination", what);
  quay_test_block_free(&found);
}
