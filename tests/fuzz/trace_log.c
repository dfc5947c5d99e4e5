/* Any bytes as a log of allocations: nothing is read outside them, and what is accepted makes
 * sense: of the live blocks no two have one slot, and slots are small. */
#include "../../tools/quay/trace_log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* More slots than this are not looked at. */
enum {
  SLOTS = 4096
};

/* Sizes of the live blocks by slot, and whether there is one. */
typedef struct model {
  bool live[SLOTS];
  uint64_t sizes[SLOTS];
  uint32_t count, most;
} model;

static void follow(model *blocks, const trace_event *event) {
  if (event->action == TRACE_FAILURE || event->slot >= SLOTS)
    return;
  const bool allocates = event->action == TRACE_ALLOCATE;
  CHECK(blocks->live[event->slot] != allocates);
  CHECK(allocates || blocks->sizes[event->slot] == event->size);
  blocks->live[event->slot] = allocates;
  blocks->sizes[event->slot] = event->size;
  blocks->count += allocates ? 1u : -1u;
  if (blocks->count > blocks->most)
    blocks->most = blocks->count;
}

static void read_all(const char *path) {
  char error[TRACE_ERROR_SIZE] = "";
  trace_log *const log = trace_log_open(path, error);
  if (log == NULL) {
    CHECK(error[0] != '\0');
    return;
  }
  static model blocks;
  memset(&blocks, 0, sizeof blocks);
  trace_event event;
  trace_status status;
  uint64_t line = 1;
  while ((status = trace_log_next(log, &event)) == TRACE_EVENT) {
    CHECK(event.line > line);
    line = event.line;
    follow(&blocks, &event);
  }
  CHECK((status == TRACE_BAD) == (trace_log_error(log)[0] != '\0'));
  CHECK(trace_log_slots(log) > SLOTS || trace_log_slots(log) == blocks.most);
  trace_log_close(log);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char path[64];
  const int file = memfd_create("trace", MFD_CLOEXEC);
  CHECK(file >= 0);
  CHECK(write(file, data, size) == (ssize_t)size);
  snprintf(path, sizeof path, "/proc/self/fd/%d", file);
  read_all(path);
  close(file);
  return 0;
}
