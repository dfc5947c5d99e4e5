// The pool layer: a hit with few and with many blocks live, UMF's and RMM's shapes, and first
// passes over logs that a model makes. Beside it: the C library, and whatever allocator is
// preloaded for it (LD_PRELOAD=libjemalloc.so.2 or libmimalloc.so.2). Nothing is touched.
#include <algorithm>
#include <memory>
#include <random>
#include <type_traits>
#include <vector>

#include "bench.h"
#include "random_steps.h"

namespace {

using namespace bench;

// Blocks of Quay, by slot.
class Blocks {
public:
  Blocks(const char *spec, std::size_t count) : allocator_(spec), raws_(count) {}
  ~Blocks() {
    for (auto &raw : raws_)
      quay_raw_buffer_free(&raw);
  }
  Blocks(const Blocks &) = delete;
  Blocks &operator=(const Blocks &) = delete;
  void take(std::size_t slot, std::uint64_t size) {
    check(quay_allocator_alloc(allocator_, size, nullptr, &raws_[slot]));
  }
  void give(std::size_t slot) {
    quay_raw_buffer_free(&raws_[slot]);
  }
  std::uint64_t reserved() const {
    quay_stats stats;
    check(quay_allocator_stats(allocator_, &stats));
    return stats.reserved_bytes;
  }

private:
  Allocator allocator_;
  std::vector<quay_raw_buffer> raws_;
};

// Blocks of the C library.
class HeapBlocks {
public:
  HeapBlocks(const char *, std::size_t count) : blocks_(count) {}
  ~HeapBlocks() {
    for (void *block : blocks_)
      std::free(block);
  }
  HeapBlocks(const HeapBlocks &) = delete;
  HeapBlocks &operator=(const HeapBlocks &) = delete;
  void take(std::size_t slot, std::uint64_t size) {
    blocks_[slot] = std::malloc(size);
    benchmark::DoNotOptimize(blocks_[slot]);
  }
  void give(std::size_t slot) {
    std::free(blocks_[slot]);
    blocks_[slot] = nullptr;
  }

private:
  std::vector<void *> blocks_;
};

// A pair of allocation and free with so many other blocks live.
template <class T> void hit(benchmark::State &state, const char *spec) {
  const auto live = static_cast<std::size_t>(at_most(state.range(0), 100));
  const auto size = static_cast<std::uint64_t>(state.range(1));
  T blocks(spec, live + 1);
  for (std::size_t i = 0; i <= live; i++)
    blocks.take(i, size);
  blocks.give(live / 2);
  for (auto _ : state) {
    blocks.take(live / 2, size);
    blocks.give(live / 2);
  }
}

void quay_hit(benchmark::State &state, const char *spec) {
  hit<Blocks>(state, spec);
}

void heap_hit(benchmark::State &state, const char *spec) {
  hit<HeapBlocks>(state, spec);
}

void hits(benchmark::internal::Benchmark *benchmark) {
  benchmark->ArgNames({"live", "bytes"});
  benchmark->ArgsProduct({{10, 1000, 100000}, {256, 4096, 100000, 4 * MiB}});
}
BENCHMARK_CAPTURE(quay_hit, pool, "pool+cpu")->Apply(hits);
BENCHMARK_CAPTURE(heap_hit, malloc, "")->ArgNames({"live", "bytes"})->Args({10000, 4096});

// UMF's shape: so many blocks live, one at random is freed and another one allocated. The time is
// of the two together; `operations` counts each of them.
template <class T> void exchange(benchmark::State &state, const char *spec) {
  static std::unique_ptr<T> shared;
  const auto live = static_cast<std::size_t>(at_most(state.range(0), 100));
  const auto least = static_cast<std::uint64_t>(state.range(1));
  const auto most = static_cast<std::uint64_t>(state.range(2));
  const auto threads = static_cast<std::size_t>(state.threads());
  const std::size_t first = static_cast<std::size_t>(state.thread_index()) * live;
  if (state.thread_index() == 0)
    shared = std::make_unique<T>(spec, live * threads);
  std::uint64_t random = first + 1;
  const auto next = [&random](std::uint64_t limit) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    return (random >> 33) % limit;
  };
  bool filled = false;
  for (auto _ : state) {
    if (!filled) { // after the barrier at which all threads see what the first one made
      state.PauseTiming();
      for (std::size_t i = 0; i < live; i++)
        shared->take(first + i, least + next(most - least + 1));
      filled = true;
      state.ResumeTiming();
    }
    const std::size_t slot = first + next(live);
    shared->give(slot);
    shared->take(slot, least + next(most - least + 1));
  }
  state.counters["operations"] = benchmark::Counter(2.0 * static_cast<double>(state.iterations()),
                                                    benchmark::Counter::kIsRate);
}

void quay_exchange(benchmark::State &state, const char *spec) {
  exchange<Blocks>(state, spec);
}

void heap_exchange(benchmark::State &state, const char *spec) {
  exchange<HeapBlocks>(state, spec);
}

void umf(benchmark::internal::Benchmark *benchmark) {
  benchmark->ArgNames({"live", "least", "most"});
  benchmark->Args({10000, 4096, 4096})->Args({10000, 8, 4096});
  benchmark->Threads(1)->Threads(2)->Threads(4)->UseRealTime();
}
BENCHMARK_CAPTURE(quay_exchange, pool, "pool+cpu")->Apply(umf);
BENCHMARK_CAPTURE(heap_exchange, malloc, "")->Apply(umf);

// UMF's shape with the sizes of RMM's.
void large(benchmark::internal::Benchmark *benchmark) {
  benchmark->ArgNames({"live", "least", "most"});
  benchmark->ArgsProduct({{1000, 10000, 100000}, {1}, {1 * MiB, 64 * MiB}});
}
BENCHMARK_CAPTURE(quay_exchange, pool_random, "pool+cpu")->Apply(large);
BENCHMARK_CAPTURE(quay_exchange, pool_tight_random, "pool:keep=tight+cpu")->Apply(large);
BENCHMARK_CAPTURE(heap_exchange, malloc_random, "")->Apply(large);

// RMM's random_allocations; the time is of all its steps, twice as many as there are allocations.
// Later iterations find what the first one has left cached. `ratio`: the most that was reserved
// over the most that was live.
template <class T> void random_allocations(benchmark::State &state, const char *spec) {
  const auto allocations = static_cast<std::uint32_t>(at_most(state.range(0), 100));
  const auto most = static_cast<std::uint64_t>(state.range(1)) * MiB;
  random_steps steps;
  if (!random_steps_make(allocations, most, RANDOM_USAGE_BYTES, &steps))
    throw std::bad_alloc();
  T blocks(spec, steps.slots);
  const auto pass = [&](auto &&after) {
    for (std::size_t i = 0; i < steps.count; i++) {
      const random_step &step = steps.steps[i];
      if (step.is_free) {
        blocks.give(step.slot);
      } else {
        blocks.take(step.slot, step.size);
      }
      after();
    }
  };
  std::uint64_t reserved = 0;
  if constexpr (std::is_same_v<T, Blocks>)
    pass([&] { reserved = std::max(reserved, blocks.reserved()); });
  for (auto _ : state)
    pass([] {});
  const double operations =
      static_cast<double>(state.iterations()) * static_cast<double>(steps.count);
  state.counters["per_operation"] =
      benchmark::Counter(operations, benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
  if (reserved != 0)
    state.counters["ratio"] = static_cast<double>(reserved) / static_cast<double>(steps.peak_bytes);
  random_steps_free(&steps);
}

void quay_random(benchmark::State &state, const char *spec) {
  random_allocations<Blocks>(state, spec);
}

void heap_random(benchmark::State &state, const char *spec) {
  random_allocations<HeapBlocks>(state, spec);
}

void rmm(benchmark::internal::Benchmark *benchmark) {
  benchmark->ArgNames({"allocations", "most_mib"})->Unit(benchmark::kMillisecond);
  benchmark->ArgsProduct({{1000, 10000, 100000}, {1, 4, 64, 256, 1024, 4096}});
}
BENCHMARK_CAPTURE(quay_random, pool, "pool+cpu")->Apply(rmm);
BENCHMARK_CAPTURE(quay_random, pool_tight, "pool:keep=tight+cpu")->Apply(rmm);
BENCHMARK_CAPTURE(heap_random, malloc, "")->Apply(rmm);

// Logs that a model makes: layers allocate in steps, forward and backward, with a batch size that
// changes, between blocks that stay. `ratio` is the most that was reserved over the most that was
// live.
struct Event {
  bool takes;
  std::uint32_t slot;
  std::uint64_t size;
};

std::vector<Event> training(std::uint64_t seed, std::uint64_t *out_slots) {
  std::mt19937_64 random(seed);
  std::vector<Event> events;
  std::uint32_t slots = 0;
  const auto take = [&](std::uint64_t size) {
    events.push_back({true, slots, size});
    return slots++;
  };
  const int layers = 24;
  for (int i = 0; i < layers; i++) // weights
    take(1 + random() % (16u << 20));
  for (int step = 0; step < 10; step++) {
    const std::uint64_t batch = 1 + random() % 8;
    std::vector<std::uint32_t> kept;
    for (int i = 0; i < layers; i++) {
      kept.push_back(take(batch * (1 + random() % (2u << 20))));
      const std::uint32_t scratch = take(batch * (1 + random() % (1u << 20)));
      for (int small = 0; small < 8; small++)
        kept.push_back(take(1 + random() % 4096));
      events.push_back({false, scratch, 0});
    }
    std::reverse(kept.begin(), kept.end());
    for (const std::uint32_t slot : kept)
      events.push_back({false, slot, 0});
  }
  *out_slots = slots;
  return events;
}

template <class T> void first_pass(benchmark::State &state, const char *spec) {
  std::uint64_t slots = 0;
  const std::vector<Event> events = training(static_cast<std::uint64_t>(state.range(0)), &slots);
  for (auto _ : state) {
    state.PauseTiming();
    auto blocks = std::make_unique<T>(spec, slots);
    state.ResumeTiming();
    for (const Event &event : events) {
      if (event.takes) {
        blocks->take(event.slot, event.size);
      } else {
        blocks->give(event.slot);
      }
    }
    state.PauseTiming();
    blocks.reset();
    state.ResumeTiming();
  }
  state.SetItemsProcessed(static_cast<std::int64_t>(state.iterations()) *
                          static_cast<std::int64_t>(events.size()));
}

void quay_first_pass(benchmark::State &state, const char *spec) {
  first_pass<Blocks>(state, spec);
}

void heap_first_pass(benchmark::State &state, const char *spec) {
  first_pass<HeapBlocks>(state, spec);
}

void ratio(benchmark::State &state, const char *spec) {
  std::uint64_t slots = 0;
  const std::vector<Event> events = training(static_cast<std::uint64_t>(state.range(0)), &slots);
  double found = 0;
  for (auto _ : state) {
    Blocks blocks(spec, slots);
    std::vector<std::uint64_t> sizes(slots);
    std::uint64_t live = 0, peak = 0, reserved = 0;
    for (const Event &event : events) {
      if (event.takes) {
        blocks.take(event.slot, event.size);
        sizes[event.slot] = event.size;
        live += event.size;
      } else {
        blocks.give(event.slot);
        live -= sizes[event.slot];
      }
      peak = std::max(peak, live);
      reserved = std::max(reserved, blocks.reserved());
    }
    found = static_cast<double>(reserved) / static_cast<double>(peak);
  }
  state.counters["ratio"] = found;
}

BENCHMARK_CAPTURE(quay_first_pass, pool, "pool+cpu")->ArgName("seed")->DenseRange(1, 3);
BENCHMARK_CAPTURE(quay_first_pass, pool_tight, "pool:keep=tight+cpu")
    ->ArgName("seed")
    ->DenseRange(1, 3);
BENCHMARK_CAPTURE(heap_first_pass, malloc, "")->ArgName("seed")->DenseRange(1, 3);
BENCHMARK_CAPTURE(ratio, pool, "pool+cpu")->ArgName("seed")->DenseRange(1, 3)->Iterations(1);
BENCHMARK_CAPTURE(ratio, pool_tight, "pool:keep=tight+cpu")
    ->ArgName("seed")
    ->DenseRange(1, 3)
    ->Iterations(1);

} // namespace
