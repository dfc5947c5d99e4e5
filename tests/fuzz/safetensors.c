/* Any bytes as a safetensors file: it is refused with a message, or everything that it offers lies
 * within it, and reads as the bytes that stand there. */
#include <quay/safetensors.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_tensor(const quay_safetensors *file, size_t index, const uint8_t *data,
                         size_t size, uint64_t *end) {
  quay_safetensors_tensor tensor;
  CHECK(quay_safetensors_get(file, index, &tensor) == QUAY_OK);
  CHECK(tensor.offset <= size && tensor.size <= size - tensor.offset);
  CHECK(tensor.offset >= *end); /* in the order of their data, without overlap */
  *end = tensor.offset + tensor.size;
  uint64_t expected = 0;
  CHECK(quay_dtype_array_size(tensor.dtype, tensor.rank, tensor.shape, &expected) == QUAY_OK);
  CHECK(tensor.size == expected);
  size_t found = SIZE_MAX;
  CHECK(quay_safetensors_find(file, tensor.name, &found) == QUAY_OK);
  CHECK(found == index);

  quay_buffer *buffer = NULL;
  CHECK(quay_safetensors_buffer(file, index, &buffer) == QUAY_OK);
  CHECK(quay_buffer_size(buffer) == tensor.size);
  CHECK(quay_buffer_is_sealed(buffer));
  uint8_t *bytes = malloc(tensor.size + 1);
  CHECK(quay_buffer_copy_out(buffer, bytes, tensor.size) == QUAY_OK);
  CHECK(memcmp(bytes, data + tensor.offset, tensor.size) == 0);
  free(bytes);
  quay_buffer_release(buffer);
}

static void check_file(const quay_safetensors *file, const uint8_t *data, size_t size) {
  const size_t count = quay_safetensors_count(file);
  uint64_t end = 8;
  for (size_t i = 0; i < count; i++)
    check_tensor(file, i, data, size, &end);
  CHECK(count == 0 || end == size); /* no byte belongs to nothing */
  quay_safetensors_tensor tensor;
  CHECK(quay_safetensors_get(file, count, &tensor) == QUAY_STATUS_OUT_OF_RANGE);
  for (size_t i = 0; i < quay_safetensors_metadata_count(file); i++) {
    quay_safetensors_metadata pair;
    CHECK(quay_safetensors_get_metadata(file, i, &pair) == QUAY_OK);
    CHECK(pair.key != NULL && pair.value != NULL);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char path[64];
  const int descriptor = memfd_create("fuzz", MFD_CLOEXEC);
  CHECK(descriptor >= 0);
  CHECK(write(descriptor, data, size) == (ssize_t)size);
  snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
  quay_safetensors *file = NULL;
  const quay_status status = quay_safetensors_open(path, NULL, &file);
  if (status == QUAY_OK) {
    check_file(file, data, size);
    quay_safetensors_close(file);
  } else {
    CHECK(file == NULL);
    CHECK(status == QUAY_STATUS_MALFORMED || status == QUAY_STATUS_UNSUPPORTED);
    CHECK(quay_last_error()->message[0] != '\0');
    CHECK(strchr(quay_last_error()->message, '\n') == NULL);
  }
  close(descriptor);
  return 0;
}
