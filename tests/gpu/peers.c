/* Two devices: copies between them for every kind of memory that a device has, hazards across them,
 * and what one device's streams may not touch. */
#include <stdlib.h>
#include <string.h>

#include "gpu/gpu.h"

GPU_SUITE(gpu_peers);

typedef enum kind {
  PLAIN,
  ORDERED,
  EXPORTABLE,
  KINDS,
} kind;

static const char *const kind_names[KINDS] = {"plain", "stream-ordered", "exportable"};

typedef struct side {
  quay_allocator *gpu;
  quay_stream *stream;
} side;

static side sides[2];

static void begin_sides(void) {
  gpu_begin_two();
  for (int i = 0; i < 2; i++) {
    sides[i].gpu = gpu_open(i == 0 ? "cuda:0" : "cuda:1");
    sides[i].stream = gpu_stream(sides[i].gpu);
  }
}

static quay_alloc_options options_of(const side *of, kind what) {
  return (quay_alloc_options){
      .stream = what == ORDERED ? of->stream : NULL,
      .exportable = what == EXPORTABLE,
  };
}

static void need_exportable(const side *of) {
  const quay_alloc_options exportable = {.exportable = true};
  quay_raw_buffer raw;
  const quay_status status = quay_allocator_alloc(of->gpu, 64, &exportable, &raw);
  if (status == QUAY_STATUS_UNSUPPORTED)
    quay_test_skip("cuda", "%s", quay_last_error()->message);
  CHECK_OK(status);
  quay_raw_buffer_free(&raw);
}

/* Whether the driver gives each of the two access to the other. */
static bool are_peers(void) {
  int there = 0, back = 0;
  CU_OK(cu->cuDeviceCanAccessPeer(&there, 0, 1));
  CU_OK(cu->cuDeviceCanAccessPeer(&back, 1, 0));
  return there != 0 && back != 0;
}

/* A piece at odd offsets; the bytes around it stay. */
static void check_piece(quay_buffer *to, const quay_buffer *from, uint64_t size) {
  const uint64_t total = quay_buffer_size(to), to_at = 1003, from_at = 77;
  unsigned char *const before = malloc(total), *const after = malloc(total),
                       *const source = malloc(total);
  CHECK_OK(quay_buffer_copy_out(from, source, total));
  CHECK_OK(quay_buffer_copy_out(to, before, total));
  CHECK_OK(quay_buffer_copy_region(to, to_at, from, from_at, size, NULL));
  CHECK_OK(quay_buffer_copy_out(to, after, total));
  memcpy(before + to_at, source + from_at, size);
  cr_assert_arr_eq(after, before, total, "%llu bytes", (unsigned long long)size);
  free(before);
  free(after);
  free(source);
}

static void check_copy(int from, kind from_kind, kind to_kind) {
  const side *const source = &sides[from], *const target = &sides[1 - from];
  const quay_alloc_options source_options = options_of(source, from_kind);
  const quay_alloc_options target_options = options_of(target, to_kind);
  quay_buffer *const a = gpu_buffer(source->gpu, GPU_WORDS, GPU_NEW, &source_options);
  quay_buffer *const b = gpu_buffer(target->gpu, GPU_WORDS, GPU_OLD, &target_options);
  quay_copy_plan_info plan;
  CHECK_OK(quay_copy_plan(b, 0, a, 0, GPU_WORDS * 4, NULL, &plan));
  cr_assert_eq(plan.route, are_peers() ? QUAY_ROUTE_DIRECT : QUAY_ROUTE_STAGED,
               "%s to %s goes %s: %s", kind_names[from_kind], kind_names[to_kind],
               quay_route_name(plan.route), plan.reason);
  static const uint64_t sizes[] = {1, 4097, 70001, 1000003};
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
    check_piece(b, a, sizes[i]);
  CHECK_OK(quay_buffer_copy_from(b, a));
  gpu_expect(b, GPU_NEW);
  gpu_expect(a, GPU_NEW);
  quay_buffer_release(a);
  quay_buffer_release(b);
}

static void check_kinds(kind from_kind, kind to_kind) {
  begin_sides();
  if (from_kind == EXPORTABLE || to_kind == EXPORTABLE)
    need_exportable(&sides[0]);
  for (int from = 0; from < 2; from++)
    check_copy(from, from_kind, to_kind);
}

Test(gpu_peers, plain_memory_is_copied_to_plain_memory_both_ways) {
  check_kinds(PLAIN, PLAIN);
}

Test(gpu_peers, stream_ordered_memory_is_copied_to_stream_ordered_memory_both_ways) {
  check_kinds(ORDERED, ORDERED);
}

Test(gpu_peers, exportable_memory_is_copied_to_exportable_memory_both_ways) {
  check_kinds(EXPORTABLE, EXPORTABLE);
}

Test(gpu_peers, kinds_are_copied_to_each_other_both_ways) {
  check_kinds(PLAIN, ORDERED);
}

Test(gpu_peers, plain_and_exportable_memory_are_copied_to_each_other_both_ways) {
  check_kinds(PLAIN, EXPORTABLE);
}

Test(gpu_peers, stream_ordered_and_exportable_memory_are_copied_to_each_other_both_ways) {
  check_kinds(EXPORTABLE, ORDERED);
}

Test(gpu_peers, pinned_and_managed_memory_of_one_device_are_copied_to_the_other) {
  static const char *const specs[] = {"cuda:0,memory=pinned", "cuda:0,memory=managed"};
  begin_sides();
  for (size_t i = 0; i < 2; i++) {
    quay_buffer *const a = gpu_buffer(gpu_open(specs[i]), GPU_WORDS, GPU_NEW, NULL);
    quay_buffer *const b = gpu_buffer(sides[1].gpu, GPU_WORDS, GPU_OLD, NULL);
    check_piece(b, a, 70001);
    CHECK_OK(quay_buffer_copy_from(b, a));
    gpu_expect(b, GPU_NEW);
    CHECK_OK(quay_buffer_fill(a, "\x13\x57", 1));
    CHECK_OK(quay_buffer_copy_from(a, b));
    gpu_expect(a, GPU_NEW);
    quay_buffer_release(a);
    quay_buffer_release(b);
  }
}

/* Memory that was there before the other device was opened is reached as well. */
Test(gpu_peers, memory_from_before_the_other_device_was_opened_is_copied) {
  gpu_begin_two();
  quay_allocator *const first = gpu_open("cuda:0");
  const quay_alloc_options ordered = {.stream = gpu_stream(first)};
  quay_buffer *const plain = gpu_buffer(first, GPU_WORDS, GPU_NEW, NULL);
  quay_buffer *const in_order = gpu_buffer(first, GPU_WORDS, GPU_ODD, &ordered);
  quay_buffer *const to = gpu_buffer(gpu_open("cuda:1"), GPU_WORDS, GPU_OLD, NULL);
  CHECK_OK(quay_buffer_copy_from(to, plain));
  gpu_expect(to, GPU_NEW);
  CHECK_OK(quay_buffer_copy_from(to, in_order));
  gpu_expect(to, GPU_ODD);
  quay_buffer_release(plain);
  quay_buffer_release(in_order);
  quay_buffer_release(to);
}

/* Hazards. */

typedef struct pair {
  quay_buffer *here, *there;
} pair;

static pair begin_pair(void) {
  begin_sides();
  return (pair){.here = gpu_buffer(sides[0].gpu, GPU_WORDS, GPU_OLD, NULL),
                .there = gpu_buffer(sides[1].gpu, GPU_WORDS, GPU_ODD, NULL)};
}

static void end_pair(pair *of) {
  quay_buffer_release(of->here);
  quay_buffer_release(of->there);
}

Test(gpu_peers, a_copy_waits_for_the_kernel_that_writes_its_source) {
  pair of = begin_pair();
  gpu_write(sides[0].stream, of.here, GPU_NEW, GPU_ASLEEP);
  CHECK_OK(quay_buffer_copy_from(of.there, of.here));
  gpu_expect(of.there, GPU_NEW);
  end_pair(&of);
}

Test(gpu_peers, a_copy_waits_for_the_kernel_that_reads_its_destination) {
  pair of = begin_pair();
  quay_buffer *const out = gpu_buffer(sides[1].gpu, GPU_WORDS, GPU_NEW, NULL);
  gpu_read(sides[1].stream, of.there, out, GPU_ASLEEP);
  CHECK_OK(quay_buffer_copy_from(of.there, of.here));
  gpu_expect(out, GPU_ODD);
  gpu_expect(of.there, GPU_OLD);
  quay_buffer_release(out);
  end_pair(&of);
}

static void check_on_stream(int device) {
  pair of = begin_pair();
  const quay_copy_options options = {.stream = sides[device].stream};
  gpu_write(sides[0].stream, of.here, GPU_NEW, GPU_ASLEEP);
  CHECK_OK(quay_buffer_copy_region(of.there, 0, of.here, 0, GPU_WORDS * 4, &options));
  gpu_write(sides[0].stream, of.here, GPU_OLD, GPU_AT_ONCE); /* must not overtake the copy */
  CHECK_OK(quay_stream_synchronize(sides[device].stream));
  gpu_expect(of.there, GPU_NEW);
  gpu_expect(of.here, GPU_OLD);
  end_pair(&of);
}

Test(gpu_peers, a_copy_on_a_stream_of_the_sources_device_is_in_order_with_kernels) {
  check_on_stream(0);
}

Test(gpu_peers, a_copy_on_a_stream_of_the_destinations_device_is_in_order_with_kernels) {
  check_on_stream(1);
}

Test(gpu_peers, a_kernel_waits_for_the_copy_that_another_devices_stream_does) {
  pair of = begin_pair();
  quay_buffer *const out = gpu_buffer(sides[1].gpu, GPU_WORDS, GPU_OLD, NULL);
  const quay_copy_options options = {.stream = sides[0].stream};
  gpu_write(sides[0].stream, of.here, GPU_NEW, GPU_ASLEEP);
  CHECK_OK(quay_buffer_copy_region(of.there, 0, of.here, 0, GPU_WORDS * 4, &options));
  gpu_read(sides[1].stream, of.there, out, GPU_AT_ONCE);
  gpu_expect(out, GPU_NEW);
  quay_buffer_release(out);
  end_pair(&of);
}

Test(gpu_peers, the_source_of_a_copy_is_kept_until_the_copy_is_done) {
  pair of = begin_pair();
  const quay_copy_options options = {.stream = sides[1].stream};
  gpu_write(sides[0].stream, of.here, GPU_NEW, 0);
  if (!are_peers()) /* a staged copy waits */
    gpu_open_later(0);
  CHECK_OK(quay_buffer_copy_region(of.there, 0, of.here, 0, GPU_WORDS * 4, &options));
  quay_buffer_release(of.here);
  if (are_peers())
    gpu_open_later(0);
  quay_buffer *const next = gpu_buffer(sides[0].gpu, GPU_WORDS, GPU_ODD, NULL);
  gpu_expect(of.there, GPU_NEW);
  of.here = next;
  end_pair(&of);
}

Test(gpu_peers, an_access_to_memory_of_another_device_is_refused) {
  pair of = begin_pair();
  const quay_use use = {of.there, QUAY_WRITE};
  quay_access access;
  CHECK_FAILS(quay_access_begin(sides[0].stream, &use, 1, &access), QUAY_STATUS_INVALID_ARGUMENT);
  end_pair(&of);
}

Test(gpu_peers, the_devices_have_uuids_of_their_own) {
  begin_sides();
  uint8_t uuids[2][16] = {{0}};
  for (int i = 0; i < 2; i++) {
    CUuuid expected;
    CHECK_OK(quay_cuda_device_uuid(quay_allocator_device(sides[i].gpu), uuids[i]));
    CU_OK(cu->cuDeviceGetUuid_v2(&expected, i));
    cr_assert_arr_eq(uuids[i], expected.bytes, 16);
  }
  cr_assert_arr_neq(uuids[0], uuids[1], 16);
}
