/* A progress bar on stderr. */
#include "progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "program.h"
#include "text.h"

#define INTERVAL_SECONDS 0.1
/* From this size on the bar is drawn at once; less is mostly done before anybody could read it. */
#define AT_ONCE_BYTES (64u << 20)
#define WIDTH_MIN     20
#define WIDTH_DEFAULT 80
#define BAR_MAX       40

void progress_begin(progress_bar *progress, bool wanted, uint64_t total) {
  const char *terminal = getenv("TERM");
  const bool capable = terminal != NULL && strcmp(terminal, "dumb") != 0;
  const double now = now_seconds();
  *progress = (progress_bar){.shown = wanted && capable && total != 0 && isatty(STDERR_FILENO),
                             .total = total,
                             .begun = now,
                             .drawn = total >= AT_ONCE_BYTES ? now - INTERVAL_SECONDS : now};
}

static size_t terminal_width(void) {
  struct winsize size;
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0)
    return WIDTH_DEFAULT;
  return size.ws_col;
}

static void draw(const progress_bar *progress, uint64_t done, double now) {
  char done_text[TEXT_SIZE_MAX], total_text[TEXT_SIZE_MAX], numbers[128];
  text_of_size(done, done_text);
  text_of_size(progress->total, total_text);
  const double part = (double)done / (double)progress->total;
  const double seconds = now - progress->begun;
  const int used =
      snprintf(numbers, sizeof numbers, "%3.0f%%  %s of %s, %.1f GB/s", part * 100, done_text,
               total_text, seconds > 0 ? (double)done / seconds * 1e-9 : 0.0);
  /* "[" and "] " around the bar, and the last column, which would wrap, stay free. */
  const size_t width = terminal_width();
  const size_t taken = (size_t)used + 4;
  size_t bar = width > taken + WIDTH_MIN ? width - taken : 0;
  if (bar > BAR_MAX)
    bar = BAR_MAX;
  char line[BAR_MAX + 1];
  memset(line, '-', bar);
  memset(line, '#', (size_t)(part * (double)bar));
  line[bar] = '\0';
  if (bar != 0) {
    fprintf(stderr, "\r[%s] %s\033[K", line, numbers);
  } else {
    fprintf(stderr, "\r%.*s\033[K", (int)width - 1, numbers);
  }
  fflush(stderr);
}

void progress_update(progress_bar *progress, uint64_t done) {
  if (!progress->shown)
    return;
  const double now = now_seconds();
  if (now - progress->drawn < INTERVAL_SECONDS)
    return;
  progress->drawn = now;
  draw(progress, done, now);
}

bool progress_copy(void *user, uint64_t done, uint64_t total) {
  (void)total;
  progress_bar *progress = user;
  progress_update(progress, progress->before + done);
  return true;
}

void progress_end(progress_bar *progress) {
  if (!progress->shown)
    return;
  progress->shown = false;
  fputs("\r\033[K", stderr);
  fflush(stderr);
}
