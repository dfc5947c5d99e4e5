/* A progress bar on stderr. */
#ifndef QUAY_TOOLS_PROGRESS_H
#define QUAY_TOOLS_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct progress_bar {
  bool shown;          /* stderr is a terminal that understands a carriage return */
  uint64_t total;      /* bytes */
  uint64_t before;     /* bytes that were done before the copy that calls progress_copy() */
  double begun, drawn; /* seconds */
} progress_bar;

/* Nothing is shown where `wanted` is false or stderr is no terminal. */
void progress_begin(progress_bar *progress, bool wanted, uint64_t total);

/* Draws the bar for `done` bytes, at most ten times a second. */
void progress_update(progress_bar *progress, uint64_t done);

/* A quay_progress_callback with a progress_bar as `user`. */
bool progress_copy(void *user, uint64_t done, uint64_t total);

/* Takes the bar away. */
void progress_end(progress_bar *progress);

#endif
