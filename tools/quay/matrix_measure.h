/* The measurements of quay matrix. */
#ifndef QUAY_TOOLS_MATRIX_MEASURE_H
#define QUAY_TOOLS_MATRIX_MEASURE_H

#include "matrix.h"
#include "program.h"

/* Measures the raw limits, then every ordered pair, and checks every byte. `result` has its size
 * and places; the rest is filled in. Prints what fails. */
exit_status matrix_measure(matrix_result *result);

#endif
