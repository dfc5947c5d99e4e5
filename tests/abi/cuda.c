/* Compares what the two sides wrote down. */
#include <criterion/criterion.h>
#include <string.h>

#include "abi/cuda_table.h"

Test(cuda_abi, sizes_offsets_and_values_are_those_of_the_toolkits_headers) {
  cr_assert_eq(abi_ours_count, abi_theirs_count);
  cr_assert_gt(abi_ours_count, 60);
  for (size_t i = 0; i < abi_ours_count; i++) {
    cr_assert_str_eq(abi_ours[i].name, abi_theirs[i].name);
    cr_expect_eq(abi_ours[i].value, abi_theirs[i].value, "%s is %lld here and %lld in cuda.h",
                 abi_ours[i].name, abi_ours[i].value, abi_theirs[i].value);
  }
}
