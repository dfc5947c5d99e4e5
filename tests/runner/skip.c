/* One test that skips itself. */
#include "support/skip.h"

#include <criterion/criterion.h>

Test(skip, for_want_of_a_device) {
  quay_test_skip("device", "this test of the framework skips itself, %s", "always");
}
