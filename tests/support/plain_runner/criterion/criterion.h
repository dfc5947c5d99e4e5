/* The part of Criterion's interface that Quay's tests use, in a runner that works under
 * AddressSanitizer, LeakSanitizer and ThreadSanitizer. The sanitizer presets put this folder before
 * Criterion on the include path; the tests are the same text. plain_runner.c holds main(). */
#ifndef QUAY_TESTS_PLAIN_RUNNER_CRITERION_H
#define QUAY_TESTS_PLAIN_RUNNER_CRITERION_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

typedef void (*plain_runner_function)(void);

struct plain_runner_options {
  plain_runner_function init; /* before the test */
  plain_runner_function fini; /* after it, also after a failed one */
  int signal;                 /* the signal that must end the test; 0: none */
  int exit_code;              /* the status with which it must call exit() */
  double timeout;             /* seconds; 0: the runner's default */
  bool disabled;
  const char *description;
  bool end; /* never set: lets the macros take an empty list */
};

struct plain_runner_test {
  const char *suite;
  const char *name;
  plain_runner_function function;
  struct plain_runner_options options;
  struct plain_runner_test *next;
};

struct plain_runner_suite {
  const char *name;
  struct plain_runner_options options;
  struct plain_runner_suite *next;
};

enum plain_runner_severity {
  PLAIN_RUNNER_EXPECT,
  PLAIN_RUNNER_ASSERT
};

void plain_runner_add_test(struct plain_runner_test *test);
void plain_runner_add_suite(struct plain_runner_suite *suite);

/* `what` is the text of the check; `format` and its arguments are the test's own message, or "". */
void plain_runner_fail(enum plain_runner_severity severity, const char *file, int line,
                       const char *what, const char *format, ...);
_Noreturn void plain_runner_skip(const char *format, ...);
void plain_runner_log(const char *level, const char *format, ...);

/* The options come with a trailing element, so that `...` is never empty. */
#define Test(...) PLAIN_RUNNER_TEST_(__VA_ARGS__, .end = false)
#define PLAIN_RUNNER_TEST_(Suite, Name, ...)                                                    \
  static void Suite##_##Name##_test(void);                                                      \
  static struct plain_runner_test Suite##_##Name##_record = {.suite = #Suite,                   \
                                                             .name = #Name,                     \
                                                             .function = Suite##_##Name##_test, \
                                                             .options = {__VA_ARGS__}};         \
  __attribute__((constructor)) static void Suite##_##Name##_register(void) {                    \
    plain_runner_add_test(&Suite##_##Name##_record);                                            \
  }                                                                                             \
  static void Suite##_##Name##_test(void)

#define TestSuite(...) PLAIN_RUNNER_SUITE_(__VA_ARGS__, .end = false)
#define PLAIN_RUNNER_SUITE_(Suite, ...)                                               \
  static struct plain_runner_suite Suite##_suite_record = {.name = #Suite,            \
                                                           .options = {__VA_ARGS__}}; \
  __attribute__((constructor)) static void Suite##_suite_register(void) {             \
    plain_runner_add_suite(&Suite##_suite_record);                                    \
  }                                                                                   \
  struct plain_runner_suite /* takes the semicolon */

/* Every check ends here. The trailing "" is the message when the test gives none, and a surplus
 * argument of the test's own format otherwise. */
#define PLAIN_RUNNER_CHECK_(Severity, Condition, What, ...)               \
  do {                                                                    \
    if (!(Condition)) {                                                   \
      plain_runner_fail(Severity, __FILE__, __LINE__, What, __VA_ARGS__); \
    }                                                                     \
  } while (0)
#define PLAIN_RUNNER_TRUE_(Severity, Condition, ...) \
  PLAIN_RUNNER_CHECK_(Severity, Condition, #Condition, __VA_ARGS__)
#define PLAIN_RUNNER_FALSE_(Severity, Condition, ...) \
  PLAIN_RUNNER_CHECK_(Severity, !(Condition), "not " #Condition, __VA_ARGS__)
#define PLAIN_RUNNER_COMPARE_(Severity, Operator, A, B, ...) \
  PLAIN_RUNNER_CHECK_(Severity, (A)Operator(B), #A " " #Operator " " #B, __VA_ARGS__)
#define PLAIN_RUNNER_NULL_(Severity, Operator, A, ...) \
  PLAIN_RUNNER_CHECK_(Severity, (A)Operator NULL, #A " " #Operator " NULL", __VA_ARGS__)
#define PLAIN_RUNNER_STRING_(Severity, Operator, A, B, ...)                                    \
  do {                                                                                         \
    const char *plain_runner_a_ = (A);                                                         \
    const char *plain_runner_b_ = (B);                                                         \
    if (!(strcmp(plain_runner_a_, plain_runner_b_) Operator 0)) {                              \
      plain_runner_log("values", "\"%s\" and \"%s\"", plain_runner_a_, plain_runner_b_);       \
      plain_runner_fail(Severity, __FILE__, __LINE__, #A " " #Operator " " #B " (as strings)", \
                        __VA_ARGS__);                                                          \
    }                                                                                          \
  } while (0)
#define PLAIN_RUNNER_EMPTY_(Severity, Operator, A, ...) \
  PLAIN_RUNNER_CHECK_(Severity, (A)[0] Operator '\0', #A " " #Operator " \"\"", __VA_ARGS__)
#define PLAIN_RUNNER_ARRAY_(Severity, Operator, A, B, Bytes, ...)     \
  PLAIN_RUNNER_CHECK_(Severity, memcmp((A), (B), (Bytes)) Operator 0, \
                      #A " " #Operator " " #B " (" #Bytes " bytes)", __VA_ARGS__)
#define PLAIN_RUNNER_FLOAT_(Severity, Operator, A, B, Epsilon, ...)                        \
  PLAIN_RUNNER_CHECK_(Severity, fabs((double)(A) - (double)(B)) Operator(double)(Epsilon), \
                      "|" #A " - " #B "| " #Operator " " #Epsilon, __VA_ARGS__)

#define cr_assert(...)               PLAIN_RUNNER_TRUE_(PLAIN_RUNNER_ASSERT, __VA_ARGS__, "")
#define cr_expect(...)               PLAIN_RUNNER_TRUE_(PLAIN_RUNNER_EXPECT, __VA_ARGS__, "")
#define cr_assert_not(...)           PLAIN_RUNNER_FALSE_(PLAIN_RUNNER_ASSERT, __VA_ARGS__, "")
#define cr_expect_not(...)           PLAIN_RUNNER_FALSE_(PLAIN_RUNNER_EXPECT, __VA_ARGS__, "")
#define cr_assert_eq(...)            PLAIN_RUNNER_COMPARE_(PLAIN_RUNNER_ASSERT, ==, __VA_ARGS__, "")
#define cr_expect_eq(...)            PLAIN_RUNNER_COMPARE_(PLAIN_RUNNER_EXPECT, ==, __VA_ARGS__, "")
#define cr_assert_neq(...)           PLAIN_RUNNER_COMPARE_(PLAIN_RUNNER_ASSERT, !=, __VA_ARGS__, "")
#define cr_expect_neq(...)           PLAIN_RUNNER_COMPARE_(PLAIN_RUNNER_EXPECT, !=, __VA_ARGS__, "")
#define cr_assert_lt(...)            PLAIN_RUNNER_COMPARE_(PLAIN_RUNNER_ASSERT, <, __VA_ARGS__, "")
#define cr_expect_lt(...)            PLAIN_RUNNER_COMPARE_(PLAIN_RUNNER_EXPECT, <, __VA_ARGS__, "")
#define cr_assert_leq(...)           PLAIN_RUNNER_COMPARE_(PLAIN_RUNNER_ASSERT, <=, __VA_ARGS__, "")
#define cr_expect_leq(...)           PLAIN_RUNNER_COMPARE_(PLAIN_RUNNER_EXPECT, <=, __VA_ARGS__, "")
#define cr_assert_gt(...)            PLAIN_RUNNER_COMPARE_(PLAIN_RUNNER_ASSERT, >, __VA_ARGS__, "")
#define cr_expect_gt(...)            PLAIN_RUNNER_COMPARE_(PLAIN_RUNNER_EXPECT, >, __VA_ARGS__, "")
#define cr_assert_geq(...)           PLAIN_RUNNER_COMPARE_(PLAIN_RUNNER_ASSERT, >=, __VA_ARGS__, "")
#define cr_expect_geq(...)           PLAIN_RUNNER_COMPARE_(PLAIN_RUNNER_EXPECT, >=, __VA_ARGS__, "")
#define cr_assert_null(...)          PLAIN_RUNNER_NULL_(PLAIN_RUNNER_ASSERT, ==, __VA_ARGS__, "")
#define cr_expect_null(...)          PLAIN_RUNNER_NULL_(PLAIN_RUNNER_EXPECT, ==, __VA_ARGS__, "")
#define cr_assert_not_null(...)      PLAIN_RUNNER_NULL_(PLAIN_RUNNER_ASSERT, !=, __VA_ARGS__, "")
#define cr_expect_not_null(...)      PLAIN_RUNNER_NULL_(PLAIN_RUNNER_EXPECT, !=, __VA_ARGS__, "")
#define cr_assert_str_eq(...)        PLAIN_RUNNER_STRING_(PLAIN_RUNNER_ASSERT, ==, __VA_ARGS__, "")
#define cr_expect_str_eq(...)        PLAIN_RUNNER_STRING_(PLAIN_RUNNER_EXPECT, ==, __VA_ARGS__, "")
#define cr_assert_str_neq(...)       PLAIN_RUNNER_STRING_(PLAIN_RUNNER_ASSERT, !=, __VA_ARGS__, "")
#define cr_expect_str_neq(...)       PLAIN_RUNNER_STRING_(PLAIN_RUNNER_EXPECT, !=, __VA_ARGS__, "")
#define cr_assert_str_lt(...)        PLAIN_RUNNER_STRING_(PLAIN_RUNNER_ASSERT, <, __VA_ARGS__, "")
#define cr_expect_str_lt(...)        PLAIN_RUNNER_STRING_(PLAIN_RUNNER_EXPECT, <, __VA_ARGS__, "")
#define cr_assert_str_leq(...)       PLAIN_RUNNER_STRING_(PLAIN_RUNNER_ASSERT, <=, __VA_ARGS__, "")
#define cr_expect_str_leq(...)       PLAIN_RUNNER_STRING_(PLAIN_RUNNER_EXPECT, <=, __VA_ARGS__, "")
#define cr_assert_str_gt(...)        PLAIN_RUNNER_STRING_(PLAIN_RUNNER_ASSERT, >, __VA_ARGS__, "")
#define cr_expect_str_gt(...)        PLAIN_RUNNER_STRING_(PLAIN_RUNNER_EXPECT, >, __VA_ARGS__, "")
#define cr_assert_str_geq(...)       PLAIN_RUNNER_STRING_(PLAIN_RUNNER_ASSERT, >=, __VA_ARGS__, "")
#define cr_expect_str_geq(...)       PLAIN_RUNNER_STRING_(PLAIN_RUNNER_EXPECT, >=, __VA_ARGS__, "")
#define cr_assert_str_empty(...)     PLAIN_RUNNER_EMPTY_(PLAIN_RUNNER_ASSERT, ==, __VA_ARGS__, "")
#define cr_expect_str_empty(...)     PLAIN_RUNNER_EMPTY_(PLAIN_RUNNER_EXPECT, ==, __VA_ARGS__, "")
#define cr_assert_str_not_empty(...) PLAIN_RUNNER_EMPTY_(PLAIN_RUNNER_ASSERT, !=, __VA_ARGS__, "")
#define cr_expect_str_not_empty(...) PLAIN_RUNNER_EMPTY_(PLAIN_RUNNER_EXPECT, !=, __VA_ARGS__, "")
#define cr_assert_arr_eq(...)        PLAIN_RUNNER_ARRAY_(PLAIN_RUNNER_ASSERT, ==, __VA_ARGS__, "")
#define cr_expect_arr_eq(...)        PLAIN_RUNNER_ARRAY_(PLAIN_RUNNER_EXPECT, ==, __VA_ARGS__, "")
#define cr_assert_arr_neq(...)       PLAIN_RUNNER_ARRAY_(PLAIN_RUNNER_ASSERT, !=, __VA_ARGS__, "")
#define cr_expect_arr_neq(...)       PLAIN_RUNNER_ARRAY_(PLAIN_RUNNER_EXPECT, !=, __VA_ARGS__, "")
#define cr_assert_float_eq(...)      PLAIN_RUNNER_FLOAT_(PLAIN_RUNNER_ASSERT, <=, __VA_ARGS__, "")
#define cr_expect_float_eq(...)      PLAIN_RUNNER_FLOAT_(PLAIN_RUNNER_EXPECT, <=, __VA_ARGS__, "")
#define cr_assert_float_neq(...)     PLAIN_RUNNER_FLOAT_(PLAIN_RUNNER_ASSERT, >, __VA_ARGS__, "")
#define cr_expect_float_neq(...)     PLAIN_RUNNER_FLOAT_(PLAIN_RUNNER_EXPECT, >, __VA_ARGS__, "")
#define cr_assert_fail(...) \
  plain_runner_fail(PLAIN_RUNNER_ASSERT, __FILE__, __LINE__, "failed", "" __VA_ARGS__)
#define cr_expect_fail(...) \
  plain_runner_fail(PLAIN_RUNNER_EXPECT, __FILE__, __LINE__, "failed", "" __VA_ARGS__)
#define cr_fail(...)      cr_expect_fail(__VA_ARGS__)
#define cr_fatal(...)     cr_assert_fail(__VA_ARGS__)
#define cr_skip_test(...) plain_runner_skip("" __VA_ARGS__)
#define cr_skip(...)      plain_runner_skip("" __VA_ARGS__)
#define cr_log_info(...)  plain_runner_log("info", __VA_ARGS__)
#define cr_log_warn(...)  plain_runner_log("warning", __VA_ARGS__)
#define cr_log_error(...) plain_runner_log("error", __VA_ARGS__)

#endif
