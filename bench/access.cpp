// What the tracking of device work costs: an access of one use, copies and fills on a stream, on a
// device whose own calls are nearly free; beside it those calls alone.
#include <quay/backend.h>

#include "bench.h"

namespace {

using namespace bench;

// A backend that does nothing: streams and events are numbers, events are complete.
std::uint64_t next_event = 1;

quay_status stream_create(quay_device *, const quay_stream_options *, std::uint64_t *out_stream) {
  *out_stream = 1;
  return QUAY_OK;
}
quay_status stream_wrap(quay_device *, std::uint64_t native, std::uint64_t *out_stream) {
  *out_stream = native;
  return QUAY_OK;
}
void stream_destroy(quay_device *, std::uint64_t, bool) {}
quay_status stream_synchronize(quay_device *, std::uint64_t) {
  return QUAY_OK;
}
quay_status stream_wait(quay_device *, std::uint64_t, quay_device *, std::uint64_t) {
  return QUAY_OK;
}
quay_status event_record(quay_device *, std::uint64_t, std::uint64_t *out_event) {
  *out_event = next_event++;
  return QUAY_OK;
}
quay_status event_query(quay_device *, std::uint64_t, bool *out_done) {
  *out_done = true;
  return QUAY_OK;
}
quay_status event_synchronize(quay_device *, std::uint64_t) {
  return QUAY_OK;
}
void event_destroy(quay_device *, std::uint64_t) {}
void destroy(void *) {}

quay_status alloc(quay_allocator *, const quay_alloc_request *, quay_raw_buffer *out_raw) {
  out_raw->arm = QUAY_RAW_EXTERNAL;
  out_raw->as.external.handle[0] = 4096;
  return QUAY_OK;
}
void free_nothing(quay_allocator *, quay_raw_buffer *, quay_event *const *, std::size_t) {}
quay_status copy_in(quay_allocator *, quay_raw_buffer *, std::uint64_t, const void *,
                    std::uint64_t) {
  return QUAY_OK;
}
quay_status copy_out(quay_allocator *, const quay_raw_buffer *, std::uint64_t, void *,
                     std::uint64_t) {
  return QUAY_OK;
}
quay_status copy_within(quay_allocator *, quay_raw_buffer *, std::uint64_t, const quay_raw_buffer *,
                        std::uint64_t, std::uint64_t) {
  return QUAY_OK;
}
quay_status address(quay_allocator *, const quay_raw_buffer *raw, std::uint64_t *out_address) {
  *out_address = raw->as.external.handle[0];
  return QUAY_OK;
}
quay_status copy_in_async(quay_allocator *, quay_raw_buffer *, std::uint64_t, const void *,
                          std::uint64_t, std::uint64_t) {
  return QUAY_OK;
}
quay_status copy_out_async(quay_allocator *, const quay_raw_buffer *, std::uint64_t, void *,
                           std::uint64_t, std::uint64_t) {
  return QUAY_OK;
}
quay_status copy_within_async(quay_allocator *, quay_raw_buffer *, std::uint64_t,
                              const quay_raw_buffer *, std::uint64_t, std::uint64_t,
                              std::uint64_t) {
  return QUAY_OK;
}
quay_status fill_async(quay_allocator *, quay_raw_buffer *, std::uint64_t, std::uint64_t,
                       const void *, std::size_t, std::uint64_t) {
  return QUAY_OK;
}

class Nothing {
public:
  Nothing() {
    quay_device_vtable device_table = {};
    device_table.destroy = destroy;
    device_table.version = QUAY_DEVICE_VTABLE_VERSION;
    device_table.struct_size = sizeof(device_table);
    device_table.stream_create = stream_create;
    device_table.stream_wrap = stream_wrap;
    device_table.stream_destroy = stream_destroy;
    device_table.stream_synchronize = stream_synchronize;
    device_table.stream_wait = stream_wait;
    device_table.event_record = event_record;
    device_table.event_query = event_query;
    device_table.event_synchronize = event_synchronize;
    device_table.event_destroy = event_destroy;
    quay_device_desc device_desc = {};
    device_desc.vtable = &device_table;
    device_desc.backend = "nothing";
    device_desc.name = "nothing:0";
    device_desc.type = QUAY_DEVICE_EXTERNAL;
    check(quay_device_create(&device_desc, &device_));

    quay_allocator_vtable table = {};
    table.destroy = destroy;
    table.version = QUAY_ALLOCATOR_VTABLE_VERSION;
    table.struct_size = sizeof(table);
    table.alloc = alloc;
    table.free = free_nothing;
    table.copy_in = copy_in;
    table.copy_out = copy_out;
    table.copy_within = copy_within;
    table.address = address;
    table.copy_in_async = copy_in_async;
    table.copy_out_async = copy_out_async;
    table.copy_within_async = copy_within_async;
    table.fill_async = fill_async;
    quay_allocator_desc desc = {};
    desc.vtable = &table;
    desc.name = desc.spec = "nothing";
    desc.device = device_;
    desc.kind = QUAY_MEMORY_DEVICE;
    desc.alignment = 64;
    check(quay_allocator_create(&desc, &allocator_));
    for (quay_stream *&stream : streams_)
      check(quay_stream_create(device_, nullptr, &stream));
  }
  ~Nothing() {
    for (quay_stream *stream : streams_)
      quay_stream_release(stream);
    quay_allocator_release(allocator_);
    quay_device_release(device_);
  }
  Nothing(const Nothing &) = delete;
  Nothing &operator=(const Nothing &) = delete;
  quay_stream *stream(int index) const {
    return streams_[index];
  }
  quay_buffer *buffer(std::int64_t size) const {
    quay_buffer *made = nullptr;
    check(quay_buffer_create(allocator_, QUAY_U8, 1, &size, nullptr, &made));
    return made;
  }

private:
  quay_device *device_ = nullptr;
  quay_allocator *allocator_ = nullptr;
  quay_stream *streams_[2] = {};
};

void access_once(quay_stream *stream, quay_buffer *buffer, quay_use_mode mode) {
  const quay_use use = {buffer, mode};
  quay_access access;
  check(quay_access_begin(stream, &use, 1, &access));
  benchmark::DoNotOptimize(access.pointers);
  check(quay_access_end(&access));
}

// The yardstick: what any bracket pays, one event recorded and released.
void event_alone(benchmark::State &state) {
  const Nothing device;
  for (auto _ : state) {
    quay_event *event = nullptr;
    check(quay_event_record(device.stream(0), &event));
    quay_event_release(event);
  }
}
BENCHMARK(event_alone);

void access_on_one_stream(benchmark::State &state) {
  const Nothing device;
  const Buffer buffer(device.buffer(4096));
  for (auto _ : state)
    access_once(device.stream(0), buffer, QUAY_WRITE);
}
BENCHMARK(access_on_one_stream);

void access_on_two_streams_in_turn(benchmark::State &state) {
  const Nothing device;
  const Buffer buffer(device.buffer(4096));
  int turn = 0;
  for (auto _ : state)
    access_once(device.stream(turn ^= 1), buffer, QUAY_WRITE);
}
BENCHMARK(access_on_two_streams_in_turn);

// A hundred thousand disjoint ranges of one storage, again and again; with the view that names
// each.
void access_of_many_ranges(benchmark::State &state) {
  constexpr std::uint64_t ranges = 100000;
  const Nothing device;
  const Buffer buffer(device.buffer(64 * static_cast<std::int64_t>(ranges)));
  std::uint64_t i = 0;
  for (auto _ : state) {
    quay_buffer *view = nullptr;
    check(quay_buffer_view(buffer, i * 7919 % ranges * 64, 64, &view));
    access_once(device.stream(static_cast<int>(i % 2)), view, QUAY_WRITE);
    quay_buffer_release(view);
    i++;
  }
}
BENCHMARK(access_of_many_ranges);

void access_of_eight(benchmark::State &state) {
  const Nothing device;
  quay_use uses[8];
  for (quay_use &use : uses)
    use = {device.buffer(4096), QUAY_READ_WRITE};
  for (auto _ : state) {
    quay_access access;
    check(quay_access_begin(device.stream(0), uses, 8, &access));
    check(quay_access_end(&access));
  }
  for (const quay_use &use : uses)
    quay_buffer_release(use.buffer);
}
BENCHMARK(access_of_eight);

void copy_on_a_stream(benchmark::State &state) {
  const Nothing device;
  const Buffer to(device.buffer(4096)), from(device.buffer(4096));
  quay_copy_options options = {};
  options.stream = device.stream(0);
  for (auto _ : state)
    check(quay_buffer_copy_region(to, 0, from, 0, 4096, &options));
}
BENCHMARK(copy_on_a_stream);

// A blocking copy of memory that no device work was ever recorded for, and of memory where all of
// it was waited for: the difference is what tracking costs a copy without hazards.
void copy_never_tracked(benchmark::State &state) {
  const Nothing device;
  const Buffer to(device.buffer(4096)), from(device.buffer(4096));
  for (auto _ : state)
    check(quay_buffer_copy_region(to, 0, from, 0, 4096, nullptr));
}
BENCHMARK(copy_never_tracked);

void copy_tracked_without_hazards(benchmark::State &state) {
  const Nothing device;
  const Buffer to(device.buffer(4096)), from(device.buffer(4096));
  access_once(device.stream(0), from, QUAY_READ);
  access_once(device.stream(0), to, QUAY_READ);
  check(quay_buffer_synchronize(from));
  check(quay_buffer_synchronize(to));
  for (auto _ : state)
    check(quay_buffer_copy_region(to, 0, from, 0, 4096, nullptr));
}
BENCHMARK(copy_tracked_without_hazards);

} // namespace
