// What the benchmarks share: sizes, touched memory, errors. No benchmark of its own.
#ifndef QUAY_BENCH_BENCH_H
#define QUAY_BENCH_BENCH_H

#include <benchmark/benchmark.h>
#include <quay/quay.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

namespace bench {

constexpr std::int64_t KiB = 1024;
constexpr std::int64_t MiB = 1024 * KiB;
constexpr std::int64_t GiB = 1024 * MiB;

// Set by the test that runs every benchmark once: sizes are small then.
inline bool smoke() {
  return std::getenv("QUAY_BENCH_SMOKE") != nullptr;
}

inline std::int64_t at_most(std::int64_t size, std::int64_t smoke_size) {
  return smoke() && size > smoke_size ? smoke_size : size;
}

inline void check(quay_status status) {
  if (status != QUAY_OK)
    throw std::runtime_error(quay_last_error()->message);
}

// Pages of its own, advised as huge as the cpu backend's are, and touched.
class Memory {
public:
  explicit Memory(std::size_t size) : size_(size) {
    constexpr std::size_t huge = 2 * MiB;
    mapped_ =
        mmap(nullptr, size + huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped_ == MAP_FAILED)
      throw std::bad_alloc();
    const auto address = reinterpret_cast<std::uintptr_t>(mapped_);
    data_ = reinterpret_cast<char *>((address + huge - 1) / huge * huge);
    if (size >= huge)
      madvise(data_, size, MADV_HUGEPAGE);
    for (std::size_t i = 0; i < size; i++)
      data_[i] = static_cast<char>(i * 131 + (i >> 12));
  }
  ~Memory() {
    munmap(mapped_, size_ + 2 * MiB);
  }
  Memory(const Memory &) = delete;
  Memory &operator=(const Memory &) = delete;
  char *data() const {
    return data_;
  }

private:
  std::size_t size_;
  void *mapped_;
  char *data_;
};

class Allocator {
public:
  explicit Allocator(const char *spec) {
    check(quay_allocator_open(spec, &allocator_));
  }
  ~Allocator() {
    quay_allocator_release(allocator_);
  }
  Allocator(const Allocator &) = delete;
  Allocator &operator=(const Allocator &) = delete;
  operator quay_allocator *() const {
    return allocator_;
  }

private:
  quay_allocator *allocator_ = nullptr;
};

// A buffer of bytes; created here and touched, or taken over.
class Buffer {
public:
  explicit Buffer(quay_buffer *buffer) : buffer_(buffer) {}
  Buffer(quay_allocator *allocator, std::int64_t size) {
    check(quay_buffer_create(allocator, QUAY_U8, 1, &size, nullptr, &buffer_));
    const unsigned char byte = 0x5a;
    check(quay_buffer_fill(buffer_, &byte, 1));
  }
  ~Buffer() {
    quay_buffer_release(buffer_);
  }
  Buffer(const Buffer &) = delete;
  Buffer &operator=(const Buffer &) = delete;
  operator quay_buffer *() const {
    return buffer_;
  }
  void *bytes() const {
    void *bytes = nullptr;
    check(quay_buffer_host_bytes_mut(buffer_, &bytes, nullptr));
    return bytes;
  }

private:
  quay_buffer *buffer_ = nullptr;
};

// Bytes a second, each byte counted once.
inline void set_bytes(benchmark::State &state, std::int64_t bytes) {
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations()) * bytes);
}

} // namespace bench

#endif
