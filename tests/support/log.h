/* What the library logs, kept for the test to look at. */
#ifndef QUAY_TESTS_SUPPORT_LOG_H
#define QUAY_TESTS_SUPPORT_LOG_H

#include <quay/log.h>
#include <stddef.h>

/* Keeps messages from now on, and forgets earlier ones. */
void quay_test_log_begin(void);

/* How many messages there were with `text` in them ("" is in all). */
size_t quay_test_log_count(const char *text);

/* All of them, a line each. */
const char *quay_test_log_text(void);

#endif
