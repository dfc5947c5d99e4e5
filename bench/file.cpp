// A file in the page cache into memory that has been touched, and what mapping costs. The file is
// made in $QUAY_BENCH_DIRECTORY (else /tmp) and is $QUAY_BENCH_FILE_MIB long (else 1024).
#include "bench.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <vector>

namespace {

using namespace bench;

std::string environment(const char *name, const char *otherwise) {
  const char *value = std::getenv(name);
  return value != nullptr && value[0] != '\0' ? value : otherwise;
}

// A file that is gone when the program ends: written, and so in the page cache, or sparse.
class File {
public:
  File(std::int64_t size, bool sparse) : size_(size) {
    path_ = environment("QUAY_BENCH_DIRECTORY", "/tmp") + "/quay-bench-XXXXXX";
    descriptor_ = mkstemp(path_.data());
    if (descriptor_ < 0)
      throw std::runtime_error("can't create " + path_);
    if (sparse ? ftruncate(descriptor_, size) != 0 : !write_all())
      throw std::runtime_error("can't write " + path_);
  }
  ~File() {
    close(descriptor_);
    unlink(path_.c_str());
  }
  File(const File &) = delete;
  File &operator=(const File &) = delete;
  const char *path() const {
    return path_.c_str();
  }
  int descriptor() const {
    return descriptor_;
  }
  std::int64_t size() const {
    return size_;
  }

private:
  bool write_all() {
    std::vector<char> block(4 * MiB);
    for (std::int64_t done = 0; done < size_; done += static_cast<std::int64_t>(block.size())) {
      for (std::size_t i = 0; i < block.size(); i++)
        block[i] = static_cast<char>(i * 7 + static_cast<std::size_t>(done >> 20));
      if (write(descriptor_, block.data(), block.size()) != static_cast<ssize_t>(block.size()))
        return false;
    }
    return fsync(descriptor_) == 0;
  }

  std::int64_t size_;
  std::string path_;
  int descriptor_ = -1;
};

const File &data_file() {
  static const File file(
      smoke() ? 8 * MiB : std::stoll(environment("QUAY_BENCH_FILE_MIB", "1024")) * MiB, false);
  return file;
}

// Runs function(offset, size) for equal parts on so many threads, the caller's among them.
template <typename Function> void in_parts(std::int64_t size, int threads, Function function) {
  const std::int64_t part = size / threads;
  std::vector<std::thread> others;
  for (int i = 1; i < threads; i++)
    others.emplace_back(function, i * part, i == threads - 1 ? size - i * part : part);
  function(0, threads == 1 ? size : part);
  for (std::thread &other : others)
    other.join();
}

void read_range(int descriptor, char *to, std::int64_t offset, std::int64_t size) {
  for (const std::int64_t end = offset + size; offset < end;) {
    const auto piece = static_cast<std::size_t>(std::min(end - offset, 4 * MiB));
    const ssize_t got = pread(descriptor, to + offset, piece, offset);
    if (got <= 0)
      std::abort();
    offset += got;
  }
}

void quay_copy(benchmark::State &state) {
  const File &file = data_file();
  const Allocator cpu("cpu");
  const Buffer destination(cpu, file.size());
  quay_buffer *mapped;
  check(quay_map_file(file.path(), nullptr, &mapped));
  const Buffer source(mapped);
  quay_copy_options options = {};
  options.max_threads = static_cast<std::uint32_t>(state.range(0));
  const auto size = static_cast<std::uint64_t>(file.size());
  for (auto _ : state)
    check(quay_buffer_copy_region(destination, 0, source, 0, size, &options));
  set_bytes(state, file.size());
}

void pread_loop(benchmark::State &state) {
  const File &file = data_file();
  const Memory memory(static_cast<std::size_t>(file.size()));
  for (auto _ : state) {
    in_parts(file.size(), static_cast<int>(state.range(0)),
             [&](std::int64_t offset, std::int64_t size) {
               read_range(file.descriptor(), memory.data(), offset, size);
             });
  }
  set_bytes(state, file.size());
}

void memcpy_from_mapping(benchmark::State &state) {
  const File &file = data_file();
  const Memory memory(static_cast<std::size_t>(file.size()));
  const auto whole = static_cast<std::size_t>(file.size());
  void *mapping = mmap(nullptr, whole, PROT_READ, MAP_SHARED, file.descriptor(), 0);
  if (mapping == MAP_FAILED)
    throw std::bad_alloc();
  for (auto _ : state) {
    in_parts(file.size(), static_cast<int>(state.range(0)),
             [&](std::int64_t offset, std::int64_t size) {
               std::memcpy(memory.data() + offset, static_cast<char *>(mapping) + offset,
                           static_cast<std::size_t>(size));
             });
  }
  munmap(mapping, whole);
  set_bytes(state, file.size());
}

void threads(benchmark::internal::Benchmark *benchmark) {
  benchmark->ArgName("threads")->Arg(1)->Arg(2)->UseRealTime()->Unit(benchmark::kMillisecond);
}

BENCHMARK(quay_copy)->Apply(threads);
BENCHMARK(pread_loop)->Apply(threads);
BENCHMARK(memcpy_from_mapping)->Apply(threads);

// Maps a sparse file, and closes it again, without touching it.
void quay_map(benchmark::State &state) {
  const File file(state.range(0) * GiB, true);
  for (auto _ : state) {
    quay_buffer *buffer;
    check(quay_map_file(file.path(), nullptr, &buffer));
    benchmark::DoNotOptimize(buffer);
    quay_buffer_release(buffer);
  }
}
BENCHMARK(quay_map)->ArgName("GiB")->Arg(1)->Arg(64);

// The yardstick: the system calls alone.
void open_and_mmap(benchmark::State &state) {
  const File file(state.range(0) * GiB, true);
  const auto size = static_cast<std::size_t>(file.size());
  for (auto _ : state) {
    const int descriptor = open(file.path(), O_RDONLY | O_CLOEXEC);
    void *mapping = mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor, 0);
    benchmark::DoNotOptimize(mapping);
    if (mapping == MAP_FAILED)
      throw std::bad_alloc();
    munmap(mapping, size);
    close(descriptor);
  }
}
BENCHMARK(open_and_mmap)->ArgName("GiB")->Arg(1)->Arg(64);

} // namespace
