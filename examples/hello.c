/* A tour of Quay: a buffer wherever QUAY_BACKEND says, data in, a view, data out. */
#include <quay/quay.h>
#include <stdio.h>

static quay_status tour(void) {
  const float numbers[2][3] = {{1, 2, 3}, {4, 5, 6}};
  const int64_t shape[] = {2, 3}, row[] = {3};
  quay_buffer *matrix = NULL, *second_row = NULL;
  float back[3];

  quay_status status =
      quay_buffer_create_from_host(NULL, QUAY_F32, 2, shape, numbers, NULL, &matrix);
  if (status == QUAY_OK) {
    status = quay_buffer_view_typed(matrix, sizeof numbers[0], QUAY_F32, 1, row, &second_row);
  }
  if (status == QUAY_OK)
    status = quay_buffer_copy_out(second_row, back, sizeof back);
  if (status == QUAY_OK) {
    printf("hello from %s: %g %g %g\n", quay_allocator_spec(quay_buffer_allocator(matrix)),
           (double)back[0], (double)back[1], (double)back[2]);
  }
  quay_buffer_release(second_row);
  quay_buffer_release(matrix);
  return status;
}

int main(void) {
  if (tour() == QUAY_OK)
    return 0;
  fprintf(stderr, "hello: %s\n", quay_last_error()->message);
  return 1;
}
