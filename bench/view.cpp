// What handles cost: views of one buffer, and buffers with memory of their own; created and
// released.
#include "bench.h"

namespace {

using namespace bench;

void view_bytes(benchmark::State &state) {
  const Allocator cpu("cpu");
  const Buffer base(cpu, 4096);
  for (auto _ : state) {
    quay_buffer *view;
    check(quay_buffer_view(base, 64, 128, &view));
    benchmark::DoNotOptimize(view);
    quay_buffer_release(view);
  }
}
BENCHMARK(view_bytes);

void view_typed(benchmark::State &state) {
  const Allocator cpu("cpu");
  const Buffer base(cpu, 4096);
  const std::int64_t shape[] = {2, 4, 4, 4, 2, 2};
  const auto rank = static_cast<std::int32_t>(state.range(0));
  for (auto _ : state) {
    quay_buffer *view;
    check(quay_buffer_view_typed(base, 64, QUAY_F32, rank, shape, &view));
    benchmark::DoNotOptimize(view);
    quay_buffer_release(view);
  }
}
BENCHMARK(view_typed)->ArgName("rank")->Arg(1)->Arg(2)->Arg(4)->Arg(6);

void view_typed_threads(benchmark::State &state) {
  static Allocator cpu("cpu");
  static Buffer base(cpu, 4096);
  const std::int64_t shape[] = {2, 4, 4, 4};
  for (auto _ : state) {
    quay_buffer *view;
    check(quay_buffer_view_typed(base, 64, QUAY_F32, 4, shape, &view));
    benchmark::DoNotOptimize(view);
    quay_buffer_release(view);
  }
}
BENCHMARK(view_typed_threads)->Threads(1)->Threads(2)->UseRealTime();

void retain_release(benchmark::State &state) {
  const Allocator cpu("cpu");
  const Buffer base(cpu, 4096);
  for (auto _ : state)
    quay_buffer_release(quay_buffer_retain(base));
}
BENCHMARK(retain_release);

void buffer_lazy(benchmark::State &state) {
  const Allocator cpu("cpu");
  const std::int64_t shape[] = {4, 4, 4, 4};
  for (auto _ : state) {
    quay_buffer *buffer;
    check(quay_buffer_create_lazy(cpu, QUAY_F32, 4, shape, nullptr, &buffer));
    benchmark::DoNotOptimize(buffer);
    quay_buffer_release(buffer);
  }
}
BENCHMARK(buffer_lazy);

void buffer_create(benchmark::State &state) {
  const Allocator cpu("cpu");
  const std::int64_t size = state.range(0);
  for (auto _ : state) {
    quay_buffer *buffer;
    check(quay_buffer_create(cpu, QUAY_U8, 1, &size, nullptr, &buffer));
    benchmark::DoNotOptimize(buffer);
    quay_buffer_release(buffer);
  }
}
BENCHMARK(buffer_create)->ArgName("bytes")->Arg(64)->Arg(64 * KiB)->Arg(4 * MiB);

// The yardstick: what the C library takes for two small blocks and one of memory.
void three_mallocs(benchmark::State &state) {
  for (auto _ : state) {
    void *handle = std::malloc(96), *storage = std::malloc(160), *memory = std::malloc(64);
    benchmark::DoNotOptimize(handle);
    benchmark::DoNotOptimize(storage);
    benchmark::DoNotOptimize(memory);
    std::free(memory);
    std::free(storage);
    std::free(handle);
  }
}
BENCHMARK(three_mallocs);

} // namespace
