/* What programs do with streams and memory on their own: kernels, gates, delays, host access. */
#include <inttypes.h>
#include <string.h>

#include "late_internal.h"

static bool writes(quay_use_mode mode) {
  return (mode & QUAY_WRITE) != 0;
}

/* late_enter_stream() for callers who don't name the device. */
static quay_status enter(late_function function, uint64_t handle, late_stream **out_stream) {
  late_lock();
  late_stream *const stream = late_stream_get(NULL, handle, late_function_name(function));
  late_device *const device = stream != NULL ? stream->device : NULL;
  if (device == NULL) {
    return late_leave_with(QUAY_STATUS_INVALID_ARGUMENT, "%s: there is no stream 0x%" PRIx64,
                           late_function_name(function), handle);
  }
  late_unlock();
  return late_enter_stream(device, function, handle, out_stream);
}

/* False, with a violation, if there is no such memory within the device's reach. */
static bool resolve(const late_device *device, const late_use *use, late_access *out_access) {
  late_block *const block = late_block_at(use->address, use->size);
  if (block == NULL) {
    late_report_address("launch", use->address, use->size);
    return false;
  }
  if (block->kind == QUAY_MEMORY_DEVICE && !late_devices_reach(device, block->device)) {
    late_report(LATE_VIOLATION_PROTOCOL, "launch: %s can't reach block %" PRIu64 " of %s",
                device->name, block->serial, block->device->name);
    return false;
  }
  *out_access = (late_access){
      .place = {.block = block, .offset = use->address - block->by_address.begin},
      .size = use->size,
      .write = writes(use->mode),
  };
  return true;
}

quay_status late_launch(uint64_t handle, late_kernel kernel, void *user, const late_use *uses,
                        size_t count) {
  late_stream *stream;
  QUAY_TRY(enter(LATE_LAUNCH, handle, &stream));
  if (count > LATE_MAX_USES) {
    return late_leave_with(QUAY_STATUS_INVALID_ARGUMENT, "launch: %zu uses, %d are possible", count,
                           LATE_MAX_USES);
  }
  late_access accesses[LATE_MAX_USES];
  for (size_t i = 0; i < count; i++) {
    if (!resolve(stream->device, &uses[i], &accesses[i])) {
      return late_leave_with(QUAY_STATUS_INVALID_ARGUMENT,
                             "launch: use %zu is of no memory in reach; see late_violations()", i);
    }
  }
  late_op *const op = late_op_new(stream, LATE_OP_KERNEL, "launch");
  op->kernel = kernel;
  op->user = user;
  late_op_touch(stream, op, accesses, count);
  late_op_submit(stream, op);
  return late_leave();
}

uint64_t late_hold(uint64_t handle) {
  late_lock();
  late_stream *const stream = late_stream_get(NULL, handle, "late_hold");
  uint64_t gate_handle = 0;
  if (stream != NULL) {
    late_gate *const gate = late_new(sizeof *gate);
    gate->handle = gate_handle = late_handle_add(LATE_TAG_GATE, gate);
    late_op *const op = late_op_new(stream, LATE_OP_HOLD, "hold");
    op->gate = gate;
    late_op_submit(stream, op);
  }
  late_unlock();
  return gate_handle;
}

void late_open_gate(uint64_t handle) {
  late_lock();
  late_gate *const gate = late_handle_get(LATE_TAG_GATE, handle);
  if (gate != NULL)
    gate->open = true;
  pthread_cond_broadcast(&late.changed);
  late_unlock();
}

quay_status late_delay(uint64_t handle, uint32_t microseconds) {
  late_stream *stream;
  QUAY_TRY(enter(LATE_LAUNCH, handle, &stream));
  late_op *const op = late_op_new(stream, LATE_OP_DELAY, "delay");
  op->microseconds = microseconds;
  late_op_submit(stream, op);
  return late_leave();
}

void late_host_access(const void *pointer, uint64_t size, quay_use_mode mode) {
  late_lock();
  const late_access access = {
      .place = late_place_of_host(pointer, size),
      .size = size,
      .write = writes(mode),
  };
  if (access.place.block != NULL) {
    const late_actor actor = late_host_actor("host_access");
    late_touch(&actor, &access, 1, NULL);
    late_block_unpin(access.place.block);
  }
  late_unlock();
}

bool late_peek(uint64_t address, void *out_bytes, uint64_t size) {
  late_lock();
  const late_block *const block = late_block_at(address, size);
  if (block != NULL) {
    pthread_mutex_lock(&late.moving);
    memcpy(out_bytes, block->bytes + (address - block->by_address.begin), size);
    pthread_mutex_unlock(&late.moving);
  }
  late_unlock();
  return block != NULL;
}
