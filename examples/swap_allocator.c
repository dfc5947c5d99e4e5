/* A test that swaps allocators: the code under test knows nothing of it. The track layer shows that
 * nothing is lost on any path, the fault layer makes every allocation and every copy fail once. */
#include <inttypes.h>
#include <quay/quay.h>
#include <stdio.h>
#include <stdlib.h>

/* The code under test: adds up the squares of some numbers by way of two buffers. It takes the
 * default allocator, as programs do. */
static quay_status sum_of_squares(const int32_t *numbers, int64_t count, int64_t *out_sum) {
  quay_buffer *input = NULL;
  quay_buffer *squares = NULL;
  quay_host_array source;
  quay_host_array_mut target;
  int64_t sum = 0;
  quay_status status =
      quay_buffer_create_from_host(NULL, QUAY_I32, 1, &count, numbers, NULL, &input);
  if (status == QUAY_OK)
    status = quay_buffer_create(NULL, QUAY_I64, 1, &count, NULL, &squares);
  if (status == QUAY_OK)
    status = quay_buffer_host_array(input, QUAY_I32, &source);
  if (status == QUAY_OK)
    status = quay_buffer_host_array_mut(squares, QUAY_I64, &target);
  for (int64_t i = 0; status == QUAY_OK && i < count; i++) {
    const int64_t number = ((const int32_t *)source.data)[i];
    ((int64_t *)target.data)[i] = number * number;
    sum += number * number;
  }
  quay_buffer_release(squares);
  quay_buffer_release(input);
  if (status == QUAY_OK)
    *out_sum = sum;
  return status;
}

static void print_log(void *user, quay_log_level level, const char *message) {
  (void)user;
  (void)level;
  fprintf(stderr, "%s\n", message);
}

/* Runs the code with `spec` as the default allocator. False if it leaked; `*out_status` is its own.
 */
static bool run_with(const char *spec, quay_status *out_status, int64_t *out_sum,
                     quay_fault_counts *out_counts) {
  static const int32_t numbers[] = {3, -4, 12};
  quay_allocator *allocator = NULL;
  if (quay_allocator_open(spec, &allocator) != QUAY_OK ||
      quay_default_allocator_push(allocator) != QUAY_OK) {
    fprintf(stderr, "%s\n", quay_last_error()->message);
    exit(EXIT_FAILURE);
  }
  QUAY_HERE(); /* leaks name this line */
  *out_status = sum_of_squares(numbers, 3, out_sum);
  quay_default_allocator_pop();
  bool clean = quay_fault_get_counts(allocator, out_counts) == QUAY_OK;
  if (quay_track_check(allocator) != QUAY_OK) {
    fprintf(stderr, "%s: %s\n", spec, quay_last_error()->message);
    clean = false;
  }
  quay_allocator_release(allocator);
  return clean;
}

/* Makes the n-th call of `kind` fail, for every n until the code makes fewer calls. */
static bool sweep(const char *kind) {
  for (unsigned n = 1;; n++) {
    char spec[64];
    quay_status status = QUAY_OK;
    int64_t sum = -1;
    quay_fault_counts counts = {0};
    snprintf(spec, sizeof spec, "track+fault:nth=%u,on=%s+cpu", n, kind);
    if (!run_with(spec, &status, &sum, &counts))
      return false;
    if (counts.failed == 0) {
      printf("%s: %u failures survived, sum %" PRId64 "\n", kind, n - 1, sum);
      return n > 1 && status == QUAY_OK && sum == 169;
    }
    if (status == QUAY_OK || sum != -1) {
      fprintf(stderr, "%s: the failure was swallowed\n", spec);
      return false;
    }
  }
}

int main(void) {
  quay_log_set(print_log, NULL, QUAY_LOG_ERROR);
  const bool passed = sweep("alloc") && sweep("copy_in");
  quay_log_set(NULL, NULL, QUAY_LOG_ERROR);
  return passed ? EXIT_SUCCESS : EXIT_FAILURE;
}
