/* Checks of statuses that print the library's message. */
#ifndef QUAY_TESTS_SUPPORT_STATUS_H
#define QUAY_TESTS_SUPPORT_STATUS_H

#include <criterion/criterion.h>
#include <quay/status.h>

#define CHECK_OK(expression) \
  cr_assert_eq((expression), QUAY_OK, "%s: %s", #expression, quay_last_error()->message)

/* Fails with this status; the thread's error agrees and has a message. */
#define CHECK_FAILS(expression, expected)                                                          \
  do {                                                                                             \
    const quay_status check_status_ = (expression);                                                \
    cr_assert_eq(check_status_, (expected), "%s gave %s instead of %s", #expression,               \
                 quay_status_name(check_status_), #expected);                                      \
    cr_assert_eq(quay_last_error()->status, (expected), "%s: the error disagrees", #expression);   \
    cr_assert_str_not_empty(quay_last_error()->message, "%s: an error says nothing", #expression); \
  } while (0)

/* The message of the thread's error has `text` in it. */
#define CHECK_MESSAGE(text)                                                                  \
  cr_assert_not_null(strstr(quay_last_error()->message, (text)), "no \"%s\" in: %s", (text), \
                     quay_last_error()->message)

#endif
