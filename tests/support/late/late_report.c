/* What tests are told: violations and counts. And what they ask for: failing calls. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "late_internal.h"

enum {
  KEPT_VIOLATIONS = 64
};

typedef struct failure {
  uint64_t countdown; /* 1: the next call; 0: none */
  quay_status status;
} failure;

static late_violation kept[KEPT_VIOLATIONS];
static uint64_t violation_count;
static uint64_t calls[LATE_FUNCTION_COUNT];
static failure failures[LATE_FUNCTION_COUNT];

void late_report(late_violation_kind kind, const char *format, ...) {
  const uint64_t index = violation_count++;
  if (index >= KEPT_VIOLATIONS)
    return;
  kept[index].kind = kind;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(kept[index].message, sizeof kept[index].message, format, arguments);
  va_end(arguments);
}

uint64_t late_violations(late_violation *out, size_t capacity) {
  late_lock();
  const uint64_t count = violation_count;
  for (uint64_t i = 0; out != NULL && i < capacity && i < count && i < KEPT_VIOLATIONS; i++)
    out[i] = kept[i];
  late_unlock();
  return count;
}

void late_violations_clear(void) {
  late_lock();
  violation_count = 0;
  late_unlock();
}

const char *late_function_name(late_function function) {
  static const char *const names[] = {
#define LATE_FUNCTION_NAME(name, text) [LATE_##name] = text,
      LATE_FUNCTION_TABLE(LATE_FUNCTION_NAME)
#undef LATE_FUNCTION_NAME
  };
  return names[function];
}

quay_status late_enter(late_device *device, late_function function) {
  late_lock();
  calls[function]++;
  failure *const planned = &failures[function];
  if (planned->countdown > 0 && --planned->countdown == 0) {
    const quay_status status = planned->status;
    late_unlock();
    return quay_error_set(status, "late", 999, "LATE_FAILURE_ASKED_FOR",
                          "%s on %s fails, as the test has asked", late_function_name(function),
                          device->name);
  }
  if (device->lost && function != LATE_RESET) {
    return late_leave_with(QUAY_STATUS_DEVICE_LOST, "%s: device %s is lost; late_reset() it",
                           late_function_name(function), device->name);
  }
  return QUAY_OK;
}

void late_enter_void(late_function function) {
  late_lock();
  calls[function]++;
}

quay_status late_leave(void) {
  late_unlock();
  return QUAY_OK;
}

quay_status late_leave_with(quay_status status, const char *format, ...) {
  late_unlock();
  char message[QUAY_ERROR_MESSAGE_SIZE];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  return quay_error_set(status, "late", 0, NULL, "%s", message);
}

bool late_fail(late_function function, uint64_t nth, quay_status status) {
  switch (function) {
  case LATE_STREAM_DESTROY:
  case LATE_EVENT_DESTROY:
  case LATE_FREE:
  case LATE_FUNCTION_COUNT:
    return false;
  case LATE_MEMORY_INFO:
  case LATE_SYNCHRONIZE:
  case LATE_STREAM_CREATE:
  case LATE_STREAM_WRAP:
  case LATE_STREAM_SYNCHRONIZE:
  case LATE_STREAM_WAIT:
  case LATE_EVENT_RECORD:
  case LATE_EVENT_QUERY:
  case LATE_EVENT_SYNCHRONIZE:
  case LATE_OPEN:
  case LATE_ALLOC:
  case LATE_COPY_IN:
  case LATE_COPY_OUT:
  case LATE_HOST_POINTER:
  case LATE_ADDRESS:
  case LATE_COPY_WITHIN:
  case LATE_COPY_ACROSS:
  case LATE_LEND:
  case LATE_FILL:
  case LATE_COPY_IN_ASYNC:
  case LATE_COPY_OUT_ASYNC:
  case LATE_COPY_WITHIN_ASYNC:
  case LATE_FILL_ASYNC:
  case LATE_COPY_ACROSS_ASYNC:
  case LATE_RESET:
  case LATE_LAUNCH:
    break;
  }
  late_lock();
  failures[function] = (failure){.countdown = nth, .status = status};
  late_unlock();
  return nth != 0 && status != QUAY_OK;
}

void late_count(late_counts *out_counts) {
  late_lock();
  *out_counts = (late_counts){
      .submitted = late.submitted,
      .run = late.run,
      .blocks = late.block_count,
      .streams = late.stream_count,
      .events = late.event_count,
      .allocators = late.allocator_count,
      .pending_frees = late.waiting_frees,
  };
  memcpy(out_counts->calls, calls, sizeof calls);
  late_unlock();
}

void late_counts_reset(void) {
  late_lock();
  memset(calls, 0, sizeof calls);
  late.submitted = late.run = 0;
  late_unlock();
}

void late_reports_clear(void) {
  violation_count = 0;
  memset(calls, 0, sizeof calls);
  memset(failures, 0, sizeof failures);
}
