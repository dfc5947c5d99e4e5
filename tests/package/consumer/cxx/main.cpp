// The same from C++: the headers compile, the names link.
#include <quay/quay.h>
#include <quay/safetensors.h>

#include <cstdio>
#include <memory>
#include <vector>

namespace {

using allocator_handle = std::unique_ptr<quay_allocator, decltype(&quay_allocator_release)>;
using buffer_handle = std::unique_ptr<quay_buffer, decltype(&quay_buffer_release)>;
using file_handle = std::unique_ptr<quay_safetensors, decltype(&quay_safetensors_close)>;

bool use_buffers() {
  quay_allocator *opened = nullptr;
  if (quay_allocator_open("cpu", &opened) != QUAY_OK) {
    return false;
  }
  const allocator_handle allocator(opened, quay_allocator_release);
  const std::vector<float> numbers = {1.0f, 2.0f, 3.0f};
  const int64_t shape[] = {3};
  quay_buffer *created = nullptr;
  if (quay_buffer_create_from_host(allocator.get(), QUAY_F32, 1, shape, numbers.data(), nullptr,
                                   &created) != QUAY_OK) {
    return false;
  }
  const buffer_handle buffer(created, quay_buffer_release);
  std::vector<float> back(3);
  return quay_buffer_copy_out(buffer.get(), back.data(), sizeof(float) * back.size()) == QUAY_OK &&
         back == numbers;
}

bool use_safetensors(const char *path) {
  quay_safetensors *opened = nullptr;
  if (quay_safetensors_open(path, nullptr, &opened) != QUAY_OK) {
    return false;
  }
  const file_handle file(opened, quay_safetensors_close);
  return quay_safetensors_count(file.get()) > 0;
}

} // namespace

int main(int count, char **values) {
  if (!use_buffers() || (count > 1 && !use_safetensors(values[1]))) {
    std::fprintf(stderr, "%s\n", quay_last_error()->message);
    return 1;
  }
  return 0;
}
