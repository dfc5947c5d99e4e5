// Allocation and free of one block, untouched: the cpu backend against the C library.
#include "bench.h"

namespace {

using namespace bench;

void quay_cpu(benchmark::State &state) {
  const Allocator cpu("cpu");
  for (auto _ : state) {
    quay_raw_buffer raw;
    check(quay_allocator_alloc(cpu, static_cast<std::uint64_t>(state.range(0)), nullptr, &raw));
    benchmark::DoNotOptimize(raw.as.cpu.pointer);
    quay_raw_buffer_free(&raw);
  }
}

void quay_cpu_zeroed(benchmark::State &state) {
  const Allocator cpu("cpu");
  quay_alloc_options options = {};
  options.zeroed = true;
  for (auto _ : state) {
    quay_raw_buffer raw;
    check(quay_allocator_alloc(cpu, static_cast<std::uint64_t>(state.range(0)), &options, &raw));
    benchmark::DoNotOptimize(raw.as.cpu.pointer);
    quay_raw_buffer_free(&raw);
  }
}

void c_malloc(benchmark::State &state) {
  for (auto _ : state) {
    void *block = std::malloc(static_cast<std::size_t>(state.range(0)));
    benchmark::DoNotOptimize(block);
    std::free(block);
  }
}

void c_aligned_alloc(benchmark::State &state) {
  for (auto _ : state) {
    void *block = std::aligned_alloc(64, static_cast<std::size_t>(state.range(0)));
    benchmark::DoNotOptimize(block);
    std::free(block);
  }
}

void c_calloc(benchmark::State &state) {
  for (auto _ : state) {
    void *block = std::calloc(1, static_cast<std::size_t>(state.range(0)));
    benchmark::DoNotOptimize(block);
    std::free(block);
  }
}

void sizes(benchmark::internal::Benchmark *benchmark) {
  benchmark->ArgName("bytes")->RangeMultiplier(8)->Range(64, 64 * MiB);
}

BENCHMARK(quay_cpu)->Apply(sizes);
BENCHMARK(c_malloc)->Apply(sizes);
BENCHMARK(c_aligned_alloc)->Apply(sizes);
BENCHMARK(quay_cpu_zeroed)->Apply(sizes);
BENCHMARK(c_calloc)->Apply(sizes);

void quay_cpu_threads(benchmark::State &state) {
  static Allocator cpu("cpu");
  for (auto _ : state) {
    quay_raw_buffer raw;
    check(quay_allocator_alloc(cpu, 1024, nullptr, &raw));
    benchmark::DoNotOptimize(raw.as.cpu.pointer);
    quay_raw_buffer_free(&raw);
  }
}
BENCHMARK(quay_cpu_threads)->Threads(1)->Threads(2)->UseRealTime();

} // namespace
