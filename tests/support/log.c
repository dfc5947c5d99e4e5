/* Keeps the library's log messages. */
#include "support/log.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char kept[64 * 1024];
static size_t used;

static void keep(void *user, quay_log_level level, const char *message) {
  (void)user;
  (void)level;
  pthread_mutex_lock(&lock);
  const int length = snprintf(kept + used, sizeof kept - used, "%s\n", message);
  if (length > 0 && (size_t)length < sizeof kept - used)
    used += (size_t)length;
  kept[used] = '\0';
  pthread_mutex_unlock(&lock);
}

void quay_test_log_begin(void) {
  quay_log_set(NULL, NULL, QUAY_LOG_INFO);
  used = 0;
  kept[0] = '\0';
  quay_log_set(keep, NULL, QUAY_LOG_INFO);
}

size_t quay_test_log_count(const char *text) {
  size_t count = 0;
  for (const char *line = kept; *line != '\0';) {
    const char *end = strchr(line, '\n');
    const char *found = strstr(line, text);
    count += found != NULL && found < end;
    line = end + 1;
  }
  return count;
}

const char *quay_test_log_text(void) {
  return kept;
}
