// Copies within host memory against memcpy, destinations touched. One iteration is a round of both,
// each after an untimed call of its own, so that neither sees what the other left in the caches. Of
// a call, as medians: quay_ns, memcpy_ns, GB/s of Quay; and of_memcpy, memcpy's time over Quay's:
// above 1 Quay is faster.
#include "bench.h"

#include <algorithm>
#include <chrono>
#include <vector>

namespace {

using namespace bench;

using Clock = std::chrono::steady_clock;

double median(std::vector<double> &seconds) {
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  return *middle;
}

// Seconds for one call, of `calls` in a row.
template <typename Function> double timed(std::int64_t calls, Function function) {
  const auto begin = Clock::now();
  for (std::int64_t i = 0; i < calls; i++)
    function();
  return std::chrono::duration<double>(Clock::now() - begin).count() / static_cast<double>(calls);
}

template <typename Quay, typename Plain>
void compare(benchmark::State &state, std::int64_t size, Quay quay, Plain plain) {
  constexpr int samples_each = 3;
  const std::int64_t calls = std::max<std::int64_t>(1, 256 * KiB / size);
  std::vector<double> of_quay, of_plain;
  for (auto _ : state) {
    plain();
    for (int i = 0; i < samples_each; i++)
      of_plain.push_back(timed(calls, plain));
    quay();
    for (int i = 0; i < samples_each; i++)
      of_quay.push_back(timed(calls, quay));
  }
  const double fast = median(of_quay), yardstick = median(of_plain);
  state.counters["of_memcpy"] = yardstick / fast;
  state.counters["quay_ns"] = fast * 1e9;
  state.counters["memcpy_ns"] = yardstick * 1e9;
  state.counters["GB/s"] = static_cast<double>(size) / fast / 1e9;
}

// Room for sources that begin at an odd address.
std::size_t padded(std::int64_t size) {
  return static_cast<std::size_t>(size) + 128;
}

void copy_in(benchmark::State &state) {
  const std::int64_t size = at_most(state.range(0), 2 * MiB);
  const Allocator cpu("cpu");
  const Buffer destination(cpu, size);
  const Memory source(padded(size));
  void *bytes = destination.bytes();
  compare(
      state, size,
      [&] {
        check(quay_buffer_copy_in(destination, source.data(), static_cast<std::uint64_t>(size)));
      },
      [&] { std::memcpy(bytes, source.data(), static_cast<std::size_t>(size)); });
}

void copy_in_misaligned(benchmark::State &state) {
  const std::int64_t size = at_most(state.range(0), 2 * MiB);
  const Allocator cpu("cpu");
  const Buffer whole(cpu, size + 64);
  quay_buffer *view;
  check(quay_buffer_view(whole, 13, static_cast<std::uint64_t>(size), &view));
  const Buffer destination(view);
  const Memory source(padded(size));
  void *bytes = destination.bytes();
  const char *from = source.data() + 7;
  compare(
      state, size,
      [&] { check(quay_buffer_copy_in(destination, from, static_cast<std::uint64_t>(size))); },
      [&] { std::memcpy(bytes, from, static_cast<std::size_t>(size)); });
}

void copy_from(benchmark::State &state) {
  const std::int64_t size = at_most(state.range(0), 2 * MiB);
  const Allocator cpu("cpu");
  const Buffer destination(cpu, size), source(cpu, size);
  void *to = destination.bytes();
  const void *from = source.bytes();
  compare(
      state, size, [&] { check(quay_buffer_copy_from(destination, source)); },
      [&] { std::memcpy(to, from, static_cast<std::size_t>(size)); });
}

void fill(benchmark::State &state) {
  const std::int64_t size = at_most(state.range(0), 2 * MiB);
  const Allocator cpu("cpu");
  const Buffer destination(cpu, size);
  void *bytes = destination.bytes();
  const std::uint32_t pattern = 0x01020304;
  compare(
      state, size, [&] { check(quay_buffer_fill(destination, &pattern, sizeof pattern)); },
      [&] { std::memset(bytes, 4, static_cast<std::size_t>(size)); });
}

void every_size(benchmark::internal::Benchmark *benchmark) {
  benchmark->ArgName("bytes")->RangeMultiplier(4)->Range(64, 256 * MiB)->UseRealTime();
}

void around_thresholds(benchmark::internal::Benchmark *benchmark) {
  benchmark->ArgName("bytes")->UseRealTime();
  for (const std::int64_t mib : {1, 2, 4, 8, 16, 32, 64, 128, 256})
    benchmark->Arg(mib * MiB + 1);
}

BENCHMARK(copy_in)->Apply(every_size);
BENCHMARK(copy_from)->Apply(every_size);
BENCHMARK(copy_in)->Apply(around_thresholds);
BENCHMARK(copy_in_misaligned)->Apply(around_thresholds);
BENCHMARK(fill)->Apply(every_size);

} // namespace
