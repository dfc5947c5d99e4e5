/* Our declarations of the driver's ABI against those of the CUDA Toolkit. */
#include <criterion/criterion.h>
#include <string.h>

#include "abi_table.h"

Test(abi, values_sizes_and_offsets_are_those_of_the_toolkit) {
  size_t count = 0;
  for (; abi_of_simulator[count].name != NULL; count++) {
    const abi_row *const own = &abi_of_simulator[count];
    const abi_row *const toolkit = &abi_of_toolkit[count];
    cr_assert_str_eq(own->name, toolkit->name);
    cr_expect_eq(own->value, toolkit->value, "%s is %lld, of the toolkit %lld", own->name,
                 own->value, toolkit->value);
  }
  cr_assert_gt(count, 100);
  cr_assert_null(abi_of_toolkit[count].name);
}
