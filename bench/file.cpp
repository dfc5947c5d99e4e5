// A file in the page cache into memory that has been touched, and what mapping costs. The file is
// made in $QUAY_BENCH_DIRECTORY (else /tmp) and is $QUAY_BENCH_FILE_MIB long (else 2048).
#include "bench.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
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
    close(descriptor_); // what is open for writing is read in another way
    descriptor_ = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor_ < 0)
      throw std::runtime_error("can't open " + path_);
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
      smoke() ? 8 * MiB : std::stoll(environment("QUAY_BENCH_FILE_MIB", "2048")) * MiB, false);
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

void set_copy_threads(std::int64_t threads) {
  if (setenv("QUAY_COPY_THREADS", std::to_string(threads).c_str(), 1) != 0)
    throw std::runtime_error("can't set QUAY_COPY_THREADS");
}

quay_buffer *map_buffer(const File &file) {
  quay_buffer *mapped;
  check(quay_map_file(file.path(), nullptr, &mapped));
  return mapped;
}

void quay_copy(benchmark::State &state) {
  const File &file = data_file();
  const Allocator cpu("cpu");
  const Buffer destination(cpu, file.size());
  const Buffer source(map_buffer(file));
  set_copy_threads(state.range(0));
  for (auto _ : state)
    check(quay_buffer_copy_from(destination, source));
  unsetenv("QUAY_COPY_THREADS");
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

// The whole file, mapped.
class Mapping {
public:
  explicit Mapping(const File &file) : size_(static_cast<std::size_t>(file.size())) {
    mapped_ = mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.descriptor(), 0);
    if (mapped_ == MAP_FAILED)
      throw std::bad_alloc();
  }
  ~Mapping() {
    munmap(mapped_, size_);
  }
  Mapping(const Mapping &) = delete;
  Mapping &operator=(const Mapping &) = delete;
  const char *data() const {
    return static_cast<const char *>(mapped_);
  }

private:
  std::size_t size_;
  void *mapped_;
};

// With pieces as large as each thread's part memcpy() uses streaming stores if it holds them large.
void copy_mapped(char *to, const Mapping &mapping, std::int64_t size, int threads,
                 std::int64_t piece) {
  in_parts(size, threads, [&](std::int64_t offset, std::int64_t part) {
    for (const std::int64_t end = offset + part; offset < end; offset += piece) {
      const auto bytes = static_cast<std::size_t>(std::min(piece, end - offset));
      std::memcpy(to + offset, mapping.data() + offset, bytes);
    }
  });
}

void memcpy_from_mapping(benchmark::State &state) {
  const File &file = data_file();
  const Memory memory(static_cast<std::size_t>(file.size()));
  const Mapping mapping(file);
  for (auto _ : state)
    copy_mapped(memory.data(), mapping, file.size(), static_cast<int>(state.range(0)), 4 * MiB);
  set_bytes(state, file.size());
}

void memcpy_from_mapping_made_anew(benchmark::State &state) {
  const File &file = data_file();
  const Memory memory(static_cast<std::size_t>(file.size()));
  for (auto _ : state) {
    const Mapping mapping(file);
    copy_mapped(memory.data(), mapping, file.size(), static_cast<int>(state.range(0)), 4 * MiB);
  }
  set_bytes(state, file.size());
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Quay against the others, on a machine that others use as well: the ways take turns, to the same
// memory, and each has the median of its rates. Ratios are to the best of pread and memcpy.
class Rounds {
public:
  explicit Rounds(int threads)
      : threads_(threads), file_(data_file()), cpu_("cpu"), destination_(cpu_, file_.size()),
        source_(map_buffer(file_)), mapping_(file_) {
    set_copy_threads(threads);
    quay_warm(); // and so the mappings are populated
    memcpy_warm();
  }
  ~Rounds() {
    unsetenv("QUAY_COPY_THREADS");
  }
  Rounds(const Rounds &) = delete;
  Rounds &operator=(const Rounds &) = delete;

  void run() {
    measure(WARM, &Rounds::quay_warm);
    measure(WRITABLE, &Rounds::quay_writable);
    measure(PREAD, &Rounds::pread_pieces);
    measure(MEMCPY_WARM, &Rounds::memcpy_warm);
    measure(MEMCPY_WHOLE, &Rounds::memcpy_whole);
    measure(ANEW, &Rounds::quay_anew);
    measure(MEMCPY_ANEW, &Rounds::memcpy_anew);
  }

  void report(benchmark::State &state) const {
    const double pread = median(rates_[PREAD]);
    const double memcpy_warm = median(rates_[MEMCPY_WARM]);
    const double memcpy_whole = median(rates_[MEMCPY_WHOLE]);
    const double memcpy_anew = median(rates_[MEMCPY_ANEW]);
    state.counters["quay"] = median(rates_[WARM]);
    state.counters["quay_writable"] = median(rates_[WRITABLE]);
    state.counters["quay_anew"] = median(rates_[ANEW]);
    state.counters["pread"] = pread;
    state.counters["memcpy"] = memcpy_warm;
    state.counters["memcpy_whole"] = memcpy_whole;
    state.counters["memcpy_anew"] = memcpy_anew;
    state.counters["ratio"] = median(rates_[WARM]) / std::max(pread, memcpy_warm);
    state.counters["ratio_whole"] = median(rates_[WARM]) / std::max(pread, memcpy_whole);
    state.counters["ratio_anew"] = median(rates_[ANEW]) / std::max(pread, memcpy_anew);
    state.counters["ratio_by_round"] = median_of_ratios(WARM, MEMCPY_WARM);
    state.counters["ratio_whole_by_round"] = median_of_ratios(WARM, MEMCPY_WHOLE);
    state.counters["ratio_anew_by_round"] = median_of_ratios(ANEW, MEMCPY_ANEW);
  }

private:
  enum Way {
    WARM,
    WRITABLE,
    ANEW,
    PREAD,
    MEMCPY_WARM,
    MEMCPY_WHOLE,
    MEMCPY_ANEW,
    WAYS
  };

  void measure(Way way, void (Rounds::*copy)()) {
    const auto begin = std::chrono::steady_clock::now();
    (this->*copy)();
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
    rates_[way].push_back(static_cast<double>(file_.size()) / time.count() * 1e-9);
  }

  // Neighbours in time are alike: the median over the rounds of each round's ratio.
  double median_of_ratios(Way way, Way mapped) const {
    std::vector<double> ratios;
    for (std::size_t i = 0; i < rates_[way].size(); i++)
      ratios.push_back(rates_[way][i] / std::max(rates_[PREAD][i], rates_[mapped][i]));
    return median(ratios);
  }

  char *memory() const {
    return static_cast<char *>(destination_.bytes());
  }
  void quay_warm() {
    check(quay_buffer_copy_from(destination_, source_));
  }
  // While somebody has the file open for writing.
  void quay_writable() {
    const int writer = open(file_.path(), O_WRONLY | O_CLOEXEC);
    quay_warm();
    close(writer);
  }
  // The mapping of `source_` is shared with every other: what it has populated is dropped first.
  void quay_anew() {
    check(quay_buffer_advise(source_, QUAY_ADVICE_DONT_NEED));
    quay_warm();
  }
  void pread_pieces() {
    in_parts(file_.size(), threads_, [&](std::int64_t offset, std::int64_t size) {
      read_range(file_.descriptor(), memory(), offset, size);
    });
  }
  void memcpy_warm() {
    copy_mapped(memory(), mapping_, file_.size(), threads_, 4 * MiB);
  }
  void memcpy_whole() {
    copy_mapped(memory(), mapping_, file_.size(), threads_, file_.size());
  }
  void memcpy_anew() {
    const Mapping mapping(file_);
    copy_mapped(memory(), mapping, file_.size(), threads_, 4 * MiB);
  }

  int threads_;
  const File &file_;
  Allocator cpu_;
  Buffer destination_, source_;
  Mapping mapping_;
  std::array<std::vector<double>, WAYS> rates_;
};

void in_turns(benchmark::State &state) {
  Rounds rounds(static_cast<int>(state.range(0)));
  for (auto _ : state)
    rounds.run();
  rounds.report(state);
}

void threads(benchmark::internal::Benchmark *benchmark) {
  benchmark->ArgName("threads")->Arg(1)->Arg(2)->UseRealTime()->Unit(benchmark::kMillisecond);
}

BENCHMARK(quay_copy)->Apply(threads);
BENCHMARK(pread_loop)->Apply(threads);
BENCHMARK(memcpy_from_mapping)->Apply(threads);
BENCHMARK(memcpy_from_mapping_made_anew)->Apply(threads);
BENCHMARK(in_turns)->Apply(threads)->Iterations(smoke() ? 1 : 15);

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
