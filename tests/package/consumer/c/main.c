/* Uses a little of everything that an installed Quay offers; status 0 when all of it works. */
#include <quay/quay.h>
#ifndef WITHOUT_SAFETENSORS
#include <quay/safetensors.h>
#endif

#include <stdio.h>
#include <string.h>

static int report(const char *what) {
  fprintf(stderr, "%s failed\n", what);
  return 1;
}

static int use_buffers(void) {
  const float numbers[3] = {1.0f, 2.0f, 3.0f};
  const int64_t shape[1] = {3};
  float back[3] = {0};
  quay_allocator *allocator = NULL;
  quay_buffer *buffer = NULL;
  if (quay_allocator_open("cpu", &allocator) != QUAY_OK) {
    return report("quay_allocator_open");
  }
  if (quay_buffer_create_from_host(allocator, QUAY_F32, 1, shape, numbers, NULL, &buffer) !=
      QUAY_OK) {
    return report("quay_buffer_create_from_host");
  }
  if (quay_buffer_copy_out(buffer, back, sizeof back) != QUAY_OK ||
      memcmp(back, numbers, sizeof back) != 0) {
    return report("quay_buffer_copy_out");
  }
  quay_buffer_release(buffer);
  quay_allocator_release(allocator);
  return quay_version() == QUAY_VERSION ? 0 : report("the version of headers against library");
}

static int use_safetensors(const char *path) {
#ifdef WITHOUT_SAFETENSORS
  (void)path;
#else
  quay_safetensors *file = NULL;
  if (quay_safetensors_open(path, NULL, &file) != QUAY_OK || quay_safetensors_count(file) == 0) {
    return report("quay_safetensors_open");
  }
  quay_safetensors_close(file);
#endif
  return 0;
}

int main(int count, char **values) {
  if (use_buffers() != 0) {
    return 1;
  }
  return count > 1 ? use_safetensors(values[1]) : 0;
}
