/* The cpu backend: specs, alignment, zeroed and huge blocks, advice, adoption and release, address
 * space, statistics, failures. Linked with --wrap of the calls that it makes fail. */
#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <quay/quay.h>

#include "core/allocator_impl.h"
#include "core/checked.h"
#include "core/os.h"
#include "support/skip.h"

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)

/* Calls that fail: the n-th one from now, 0 for none. */
static int fail_mmap, fail_munmap, fail_malloc, fail_madvise;

static bool fails(int *countdown, int error_number) {
  if (*countdown == 0 || --*countdown != 0)
    return false;
  errno = error_number;
  return true;
}

void *__real_quay__os_mmap(void *address, size_t size, int protection, int flags, int file,
                           uint64_t offset);
void *__wrap_quay__os_mmap(void *address, size_t size, int protection, int flags, int file,
                           uint64_t offset) {
  if (fails(&fail_mmap, ENOMEM))
    return MAP_FAILED;
  return __real_quay__os_mmap(address, size, protection, flags, file, offset);
}

int __real_quay__os_munmap(void *address, size_t size);
int __wrap_quay__os_munmap(void *address, size_t size) {
  return fails(&fail_munmap, ENOMEM) ? -1 : __real_quay__os_munmap(address, size);
}

int __real_quay__os_madvise(void *address, size_t size, int advice);
int __wrap_quay__os_madvise(void *address, size_t size, int advice) {
  return fails(&fail_madvise, EIO) ? -1 : __real_quay__os_madvise(address, size, advice);
}

void *__real_quay__os_malloc(size_t size);
void *__wrap_quay__os_malloc(size_t size) {
  return fails(&fail_malloc, ENOMEM) ? NULL : __real_quay__os_malloc(size);
}

void *__real_quay__os_aligned_alloc(size_t alignment, size_t size);
void *__wrap_quay__os_aligned_alloc(size_t alignment, size_t size) {
  return fails(&fail_malloc, ENOMEM) ? NULL : __real_quay__os_aligned_alloc(alignment, size);
}

/* Helpers. */

static quay_allocator *open_allocator(const char *spec) {
  quay_allocator *allocator = NULL;
  cr_assert_eq(quay_allocator_open(spec, &allocator), QUAY_OK, "%s: %s", spec,
               quay_last_error()->message);
  return allocator;
}

static quay_raw_buffer alloc(quay_allocator *allocator, uint64_t size, uint64_t alignment,
                             bool zeroed) {
  const quay_alloc_options options = {.alignment = alignment, .zeroed = zeroed};
  quay_raw_buffer raw;
  cr_assert_eq(quay_allocator_alloc(allocator, size, &options, &raw), QUAY_OK, "%s",
               quay_last_error()->message);
  return raw;
}

static unsigned char *pointer_of(const quay_raw_buffer *raw) {
  void *pointer = NULL;
  cr_assert_eq(quay_raw_buffer_host_pointer(raw, &pointer), QUAY_OK);
  cr_assert_not_null(pointer);
  return pointer;
}

static uint64_t alignment_of(const quay_raw_buffer *raw) {
  const uint64_t address = (uint64_t)(uintptr_t)pointer_of(raw);
  return address & -address;
}

static quay_stats stats_of(quay_allocator *allocator) {
  quay_stats stats;
  cr_assert_eq(quay_allocator_stats(allocator, &stats), QUAY_OK);
  return stats;
}

static unsigned char byte_at(uint64_t index) {
  return (unsigned char)(((index + 1) * 0x9e3779b97f4a7c15u) >> 56);
}

static void write_bytes(unsigned char *bytes, uint64_t size) {
  for (uint64_t i = 0; i < size; i++)
    bytes[i] = byte_at(i);
}

static void check_bytes(const unsigned char *bytes, uint64_t size) {
  for (uint64_t i = 0; i < size; i++)
    cr_assert_eq(bytes[i], byte_at(i), "byte %llu", (unsigned long long)i);
}

static uint64_t resident_bytes(void) {
  unsigned long long total = 0, resident = 0;
  FILE *file = fopen("/proc/self/statm", "r");
  cr_assert_not_null(file);
  cr_assert_eq(fscanf(file, "%llu %llu", &total, &resident), 2);
  fclose(file);
  return resident * quay__os_page_size();
}

/* Address space of this process, in bytes. */
static uint64_t virtual_bytes(void) {
  unsigned long long total = 0;
  FILE *file = fopen("/proc/self/statm", "r");
  cr_assert_not_null(file);
  cr_assert_eq(fscanf(file, "%llu", &total), 1);
  fclose(file);
  return total * quay__os_page_size();
}

static bool mapped(const void *address) {
  unsigned char state;
  const uintptr_t page = (uintptr_t)address & ~(uintptr_t)(quay__os_page_size() - 1);
  return mincore((void *)page, 1, &state) == 0;
}

/* Whether the mapping of `address` carries a flag of /proc/self/smaps: "hg", "nh". */
static bool has_map_flag(const void *address, const char *flag) {
  FILE *file = fopen("/proc/self/smaps", "r");
  cr_assert_not_null(file);
  char line[512];
  bool inside = false, found = false;
  while (fgets(line, sizeof line, file) != NULL) {
    unsigned long long begin, end;
    if (sscanf(line, "%llx-%llx ", &begin, &end) == 2)
      inside = (uintptr_t)address >= begin && (uintptr_t)address < end;
    if (inside && strncmp(line, "VmFlags:", 8) == 0)
      found = strstr(line, flag) != NULL;
  }
  fclose(file);
  return found;
}

/* Specs. */

static void check_refused(const char *spec, const char *quoted) {
  quay_allocator *allocator = NULL;
  cr_assert_eq(quay_allocator_open(spec, &allocator), QUAY_STATUS_INVALID_ARGUMENT, "%s", spec);
  cr_assert_null(allocator);
  cr_assert_not_null(strstr(quay_last_error()->message, quoted), "%s: %s", spec,
                     quay_last_error()->message);
}

Test(cpu, open_refuses_bad_arguments_and_quotes_them) {
  check_refused("cpu:align=3", "align=3");
  check_refused("cpu:align=", "align=");
  check_refused("cpu:align=0", "align=0");
  check_refused("cpu:align=-64", "align=-64");
  check_refused("cpu:align=64x", "align=64x");
  check_refused("cpu:align=2GiB", "align=2GiB");
  check_refused("cpu:align=64,align=64", "align=64");
  check_refused("cpu:hugepages=maybe", "hugepages=maybe");
  check_refused("cpu:hugepages=", "hugepages=");
  check_refused("cpu:junk", "junk");
  check_refused("cpu:colour=blue", "colour=blue");
}

static void check_normal_form(const char *spec, const char *normal) {
  quay_allocator *allocator = open_allocator(spec);
  cr_assert_str_eq(quay_allocator_spec(allocator), normal);
  quay_allocator *again = open_allocator(quay_allocator_spec(allocator));
  cr_assert_str_eq(quay_allocator_spec(again), normal);
  quay_allocator_release(again);
  quay_allocator_release(allocator);
}

Test(cpu, specs_have_a_normal_form_that_opens_the_same) {
  check_normal_form("cpu", "cpu");
  check_normal_form("cpu:align=64,hugepages=on", "cpu");
  check_normal_form("cpu:align=4KiB", "cpu:align=4096");
  check_normal_form("cpu:hugepages=off", "cpu:hugepages=off");
  check_normal_form("cpu:hugepages=off,align=1", "cpu:align=1,hugepages=off");
  check_normal_form("cpu:align=1GiB", "cpu:align=1073741824");
}

Test(cpu, its_allocators_are_pageable_host_memory_of_the_host_device) {
  quay_allocator *allocator = open_allocator("cpu");
  quay_device *host = quay_device_host();
  cr_assert_eq(quay_allocator_kind(allocator), QUAY_MEMORY_PAGEABLE);
  cr_assert(quay_allocator_host_accessible(allocator));
  cr_assert_eq(quay_allocator_device(allocator), host);
  cr_assert_str_eq(quay_device_name(host), "host");
  cr_assert_eq(quay_device_type(host), QUAY_DEVICE_CPU);
  quay_device_release(host);
  quay_allocator_release(allocator);
}

Test(cpu, the_host_tells_its_memory) {
  quay_device *host = quay_device_host();
  quay_memory_info info = {0, 0};
  cr_assert_eq(quay_device_memory_info(host, &info), QUAY_OK);
  cr_assert_gt(info.free_bytes, 0u);
  cr_assert_geq(info.total_bytes, info.free_bytes);
  quay_device_release(host);
}

Test(cpu, the_list_of_devices_begins_with_the_host) {
  quay_device_list list;
  cr_assert_eq(quay_devices(&list), QUAY_OK);
  cr_assert_gt(list.count, 0u);
  cr_assert_str_eq(list.devices[0].backend, "cpu");
  cr_assert_str_eq(list.devices[0].spec, "cpu");
  cr_assert(list.devices[0].available);
  cr_assert_gt(list.devices[0].memory.total_bytes, 0u);
#if defined(__x86_64__)
  cr_assert_str_not_empty(list.devices[0].name);
#endif
  cr_assert(list.count == 1 || strcmp(list.devices[1].backend, "cpu") != 0);
  quay_device_list_free(&list);
}

/* Alignment. */

Test(cpu, blocks_are_aligned_to_a_cache_line_without_being_asked) {
  quay_allocator *allocator = open_allocator("cpu");
  quay_raw_buffer raw[200];
  for (uint64_t i = 0; i < 200; i++) {
    raw[i] = alloc(allocator, i * 13, 0, false);
    cr_assert_geq(alignment_of(&raw[i]), 64u);
  }
  for (uint64_t i = 0; i < 200; i++)
    quay_raw_buffer_free(&raw[i]);
  quay_allocator_release(allocator);
}

Test(cpu, blocks_from_64_KiB_on_begin_at_a_page_and_from_2_MiB_on_at_a_huge_page) {
  quay_allocator *allocator = open_allocator("cpu");
  for (uint64_t size = 64 * KIB; size <= 8 * MIB; size = size * 3 / 2) {
    quay_raw_buffer raw = alloc(allocator, size, 0, false);
    cr_assert_geq(alignment_of(&raw), (uint64_t)quay__os_page_size());
    cr_assert(size < quay__os_huge_page_size() || alignment_of(&raw) >= quay__os_huge_page_size());
    quay_raw_buffer_free(&raw);
  }
  quay_allocator_release(allocator);
}

Test(cpu, every_power_of_two_up_to_1_GiB_is_honoured_and_all_bytes_are_usable) {
  quay_allocator *allocator = open_allocator("cpu");
  static const uint64_t sizes[] = {1, 100, 70000, 1100000, 2200000};
  for (uint64_t alignment = 1; alignment <= QUAY_ALIGNMENT_MAX; alignment *= 2) {
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
      quay_raw_buffer raw = alloc(allocator, sizes[i], alignment, false);
      cr_assert_geq(alignment_of(&raw), alignment);
      write_bytes(pointer_of(&raw), sizes[i]);
      check_bytes(pointer_of(&raw), sizes[i]);
      quay_raw_buffer_free(&raw);
    }
  }
  quay_allocator_release(allocator);
}

Test(cpu, a_wide_alignment_costs_no_memory_and_leaves_no_address_space_behind) {
  quay_allocator *allocator = open_allocator("cpu");
  quay_raw_buffer raw[8];
  const uint64_t resident = resident_bytes(), space = virtual_bytes();
  for (int i = 0; i < 8; i++) {
    raw[i] = alloc(allocator, 100, GIB, false);
    pointer_of(&raw[i])[99] = 1;
  }
  cr_assert_lt(resident_bytes(), resident + MIB);
  cr_assert_lt(virtual_bytes(), space + MIB);
  cr_assert_leq(stats_of(allocator).reserved_bytes, 8 * (uint64_t)quay__os_page_size());
  for (int i = 0; i < 8; i++)
    quay_raw_buffer_free(&raw[i]);
  quay_allocator_release(allocator);
}

Test(cpu, the_align_option_is_kept_by_every_allocation) {
  quay_allocator *allocator = open_allocator("cpu:align=8KiB");
  cr_assert_eq(quay_allocator_alignment(allocator), 8 * KIB);
  static const uint64_t sizes[] = {0, 1, 4097, 100000, 5000000};
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    quay_raw_buffer raw = alloc(allocator, sizes[i], 16, false);
    cr_assert_geq(alignment_of(&raw), 8 * KIB);
    quay_raw_buffer_free(&raw);
  }
  quay_allocator_release(allocator);
}

Test(cpu, large_blocks_ask_for_huge_pages_unless_told_not_to) {
  if (access("/sys/kernel/mm/transparent_hugepage/enabled", F_OK) != 0)
    quay_test_skip("hugepages", "the kernel has no transparent huge pages");
  quay_allocator *on = open_allocator("cpu"), *off = open_allocator("cpu:hugepages=off");
  quay_raw_buffer huge = alloc(on, 8 * MIB, 0, false), plain = alloc(off, 8 * MIB, 0, false);
  quay_raw_buffer small = alloc(on, MIB, 0, false);
  cr_assert(has_map_flag(pointer_of(&huge), " hg"));
  cr_assert(has_map_flag(pointer_of(&plain), " nh"));
  cr_assert_not(has_map_flag(pointer_of(&small), " hg"));
  quay_raw_buffer_free(&huge);
  quay_raw_buffer_free(&plain);
  quay_raw_buffer_free(&small);
  quay_allocator_release(on);
  quay_allocator_release(off);
}

/* Zeroed, zero-sized, too large. */

Test(cpu, zeroed_blocks_are_zero_where_dirty_ones_were) {
  quay_allocator *allocator = open_allocator("cpu");
  static const uint64_t sizes[] = {1, 64, 1000, 65536, 300000, 1048576, 5000000};
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    for (int round = 0; round < 4; round++) {
      quay_raw_buffer dirty = alloc(allocator, sizes[i], 0, false);
      memset(pointer_of(&dirty), 0xEE, sizes[i]);
      quay_raw_buffer_free(&dirty);
      quay_raw_buffer raw = alloc(allocator, sizes[i], 0, true);
      cr_assert((raw.flags & QUAY_RAW_ZEROED) != 0);
      const unsigned char *bytes = pointer_of(&raw);
      for (uint64_t k = 0; k < sizes[i]; k++)
        cr_assert_eq(bytes[k], 0, "byte %llu of %llu", (unsigned long long)k,
                     (unsigned long long)sizes[i]);
      quay_raw_buffer_free(&raw);
    }
  }
  quay_allocator_release(allocator);
}

Test(cpu, a_large_zeroed_block_is_had_without_touching_its_pages) {
  quay_allocator *allocator = open_allocator("cpu");
  const uint64_t before = resident_bytes();
  quay_raw_buffer raw = alloc(allocator, GIB, 0, true);
  cr_assert_lt(resident_bytes(), before + MIB);
  quay_raw_buffer_free(&raw);
  quay_allocator_release(allocator);
}

Test(cpu, zero_bytes_give_handles_of_their_own) {
  quay_allocator *allocator = open_allocator("cpu");
  quay_raw_buffer a = alloc(allocator, 0, 0, false), b = alloc(allocator, 0, 1 << 21, true);
  cr_assert_neq(pointer_of(&a), pointer_of(&b));
  cr_assert_geq(alignment_of(&a), 64u);
  cr_assert_geq(alignment_of(&b), 2 * MIB);
  cr_assert_eq(quay_raw_buffer_size(&a), 0u);
  quay_raw_buffer_free(&a);
  quay_raw_buffer_free(&b);
  cr_assert_eq(stats_of(allocator).reserved_bytes, 0u);
  quay_allocator_release(allocator);
}

static void check_too_large(uint64_t size, uint64_t alignment) {
  quay_allocator *allocator = open_allocator("cpu");
  const quay_alloc_options options = {.alignment = alignment};
  quay_raw_buffer raw;
  cr_assert_eq(quay_allocator_alloc(allocator, size, &options, &raw),
               QUAY_STATUS_OUT_OF_HOST_MEMORY);
  char number[32];
  snprintf(number, sizeof number, "%llu bytes", (unsigned long long)size);
  cr_assert_not_null(strstr(quay_last_error()->message, number), "%s", quay_last_error()->message);
  cr_assert_not_null(strstr(quay_last_error()->message, "available"));
  cr_assert_str_eq(quay_last_error()->native_name, "ENOMEM");
  cr_assert_eq(raw.arm, (uint32_t)QUAY_RAW_NONE);
  cr_assert_eq(stats_of(allocator).failure_count, 1u);
  cr_assert_eq(stats_of(allocator).reserved_bytes, 0u);
  quay_allocator_release(allocator);
}

Test(cpu, sizes_that_no_machine_has_are_out_of_host_memory_and_never_wrap) {
  check_too_large(INT64_MAX, 0);
  check_too_large(INT64_MAX, GIB);
  check_too_large(INT64_MAX - 4095, 4096);
  check_too_large((uint64_t)1 << 62, 0);
  check_too_large((uint64_t)1 << 48, 0);
}

Test(cpu, a_limit_of_the_process_is_named_where_memory_runs_out) {
  quay_allocator *allocator = open_allocator("cpu");
  struct rlimit before;
  cr_assert_eq(getrlimit(RLIMIT_AS, &before), 0);
  const struct rlimit limit = {.rlim_cur = (rlim_t)1 << 52, .rlim_max = before.rlim_max};
  cr_assert_eq(setrlimit(RLIMIT_AS, &limit), 0);
  quay_raw_buffer raw;
  const quay_status status = quay_allocator_alloc(allocator, UINT64_C(1) << 51, NULL, &raw);
  cr_assert_eq(setrlimit(RLIMIT_AS, &before), 0);
  cr_assert_eq(status, QUAY_STATUS_OUT_OF_HOST_MEMORY);
  cr_assert_not_null(strstr(quay_last_error()->message, "addresses for 4503599627370496 bytes"),
                     "%s", quay_last_error()->message);
  quay_allocator_release(allocator);
}

Test(cpu, mirrored_and_exportable_memory_is_unsupported) {
  quay_allocator *allocator = open_allocator("cpu");
  const quay_alloc_options mirror = {.mirror = true}, exportable = {.exportable = true};
  quay_raw_buffer raw;
  cr_assert_eq(quay_allocator_alloc(allocator, 64, &mirror, &raw), QUAY_STATUS_UNSUPPORTED);
  cr_assert_eq(quay_allocator_alloc(allocator, 64, &exportable, &raw), QUAY_STATUS_UNSUPPORTED);
  quay_allocator_release(allocator);
}

/* Copies and fills, through the table. */

Test(cpu, copies_and_fills_touch_the_range_alone) {
  quay_allocator *allocator = open_allocator("cpu");
  const uint64_t size = 3 * MIB + 123;
  quay_raw_buffer a = alloc(allocator, size + 10, 0, false);
  quay_raw_buffer b = alloc(allocator, size + 10, 0, false);
  unsigned char *source = malloc(size), *back = malloc(size);
  write_bytes(source, size);
  memset(pointer_of(&a), 0x5A, size + 10);
  memset(pointer_of(&b), 0x5A, size + 10);
  cr_assert_eq(allocator->vtable.copy_in(allocator, &a, 7, source, size), QUAY_OK);
  cr_assert_eq(allocator->vtable.copy_within(allocator, &b, 3, &a, 7, size), QUAY_OK);
  cr_assert_eq(allocator->vtable.copy_out(allocator, &b, 3, back, size), QUAY_OK);
  check_bytes(back, size);
  for (int i = 0; i < 10; i++) {
    cr_assert_eq(pointer_of(&a)[i < 7 ? i : (int)size + i], 0x5A);
    cr_assert_eq(pointer_of(&b)[i < 3 ? i : (int)size + i], 0x5A);
  }
  const unsigned char pattern[4] = {1, 2, 3, 4};
  cr_assert_eq(allocator->vtable.fill(allocator, &a, 5, 40, pattern, 4), QUAY_OK);
  cr_assert_eq(pointer_of(&a)[4], 0x5A);
  cr_assert_eq(pointer_of(&a)[5], 1);
  cr_assert_eq(pointer_of(&a)[44], 4);
  cr_assert_eq(pointer_of(&a)[45], byte_at(38));
  free(source);
  free(back);
  quay_raw_buffer_free(&a);
  quay_raw_buffer_free(&b);
  quay_allocator_release(allocator);
}

Test(cpu, copy_in_from_the_very_memory_that_is_written_behaves_as_memmove) {
  quay_allocator *allocator = open_allocator("cpu");
  const uint64_t size = 5 * MIB;
  quay_raw_buffer raw = alloc(allocator, size + 1000, 0, false);
  write_bytes(pointer_of(&raw), size);
  cr_assert_eq(allocator->vtable.copy_in(allocator, &raw, 1000, pointer_of(&raw), size), QUAY_OK);
  check_bytes(pointer_of(&raw) + 1000, size);
  quay_raw_buffer_free(&raw);
  quay_allocator_release(allocator);
}

Test(cpu, a_bad_number_of_copy_threads_fails_large_copies_before_they_move_anything) {
  quay_allocator *allocator = open_allocator("cpu");
  const uint64_t size = 2 * MIB;
  const int64_t shape[] = {2 * MIB};
  quay_buffer *buffer = NULL, *part = NULL;
  cr_assert_eq(quay_buffer_create(allocator, QUAY_U8, 1, shape, NULL, &buffer), QUAY_OK);
  cr_assert_eq(quay_buffer_view(buffer, 0, KIB, &part), QUAY_OK);
  cr_assert_eq(quay_buffer_fill(buffer, "\3", 1), QUAY_OK);
  unsigned char *source = malloc(size);
  memset(source, 7, size);
  cr_assert_eq(setenv("QUAY_COPY_THREADS", "many", 1), 0);
  cr_assert_eq(quay_buffer_copy_in(buffer, source, size), QUAY_STATUS_INVALID_ARGUMENT);
  cr_assert_not_null(strstr(quay_last_error()->message, "many"));
  cr_assert_eq(quay_buffer_fill(buffer, source, 1), QUAY_STATUS_INVALID_ARGUMENT);
  const void *bytes = NULL;
  cr_assert_eq(quay_buffer_host_bytes(buffer, &bytes, NULL), QUAY_OK);
  for (uint64_t i = 0; i < size; i++)
    cr_assert_eq(((const unsigned char *)bytes)[i], 3);
  cr_assert_eq(quay_buffer_copy_in(part, source, KIB), QUAY_OK);
  free(source);
  quay_buffer_release(part);
  quay_buffer_release(buffer);
  quay_allocator_release(allocator);
}

/* Advice. */

static void check_advice(uint64_t size) {
  quay_allocator *allocator = open_allocator("cpu");
  quay_raw_buffer raw = alloc(allocator, size, 0, false);
  write_bytes(pointer_of(&raw), size);
  for (int advice = QUAY_ADVICE_NORMAL; advice <= QUAY_ADVICE_HUGE_PAGES; advice++) {
    const quay_advice given = (quay_advice)advice;
    cr_assert_eq(allocator->vtable.advise(allocator, &raw, 0, size, given), QUAY_OK);
    cr_assert_eq(allocator->vtable.advise(allocator, &raw, 1, size - 1, given), QUAY_OK);
    cr_assert_eq(allocator->vtable.advise(allocator, &raw, size / 3, 10, given), QUAY_OK);
    check_bytes(pointer_of(&raw), size);
  }
  quay_raw_buffer_free(&raw);
  quay_allocator_release(allocator);
}

Test(cpu, no_advice_changes_contents) {
  check_advice(1000);
  check_advice(100 * KIB + 1);
  check_advice(3 * MIB + 77);
}

Test(cpu, advice_reaches_whole_pages_inside_the_range_alone) {
  quay_allocator *allocator = open_allocator("cpu");
  quay_raw_buffer raw = alloc(allocator, MIB, 0, false);
  const uint64_t page = quay__os_page_size();
  unsigned char *bytes = pointer_of(&raw);
  cr_assert_eq(allocator->vtable.advise(allocator, &raw, 1, 3 * page - 2, QUAY_ADVICE_SEQUENTIAL),
               QUAY_OK);
  cr_assert_not(has_map_flag(bytes, " sr"));
  cr_assert(has_map_flag(bytes + page, " sr"));
  cr_assert_not(has_map_flag(bytes + 2 * page, " sr"));
  quay_raw_buffer_free(&raw);
  quay_allocator_release(allocator);
}

Test(cpu, advice_that_the_system_cannot_take_is_an_error) {
  quay_allocator *allocator = open_allocator("cpu");
  quay_raw_buffer raw = alloc(allocator, MIB, 0, false);
  fail_madvise = 1;
  cr_assert_eq(allocator->vtable.advise(allocator, &raw, 0, MIB, QUAY_ADVICE_RANDOM),
               QUAY_STATUS_IO);
  cr_assert_str_eq(quay_last_error()->native_name, "EIO");
  quay_raw_buffer_free(&raw);
  quay_allocator_release(allocator);
}

/* Adoption and release. */

typedef struct given_back {
  int calls;
  void *memory;
  uint64_t size;
} given_back;

static void take_back(void *user, void *memory, uint64_t size) {
  given_back *record = user;
  record->calls++;
  record->memory = memory;
  record->size = size;
}

Test(cpu, adopted_memory_is_used_in_place_and_given_back_once) {
  quay_allocator *allocator = open_allocator("cpu");
  unsigned char bytes[300];
  write_bytes(bytes, sizeof bytes);
  given_back record = {.calls = 0};
  const quay_host_memory memory = {bytes + 1, 299, take_back, &record};
  quay_raw_buffer raw;
  cr_assert_eq(quay_raw_buffer_adopt_host(allocator, &memory, &raw), QUAY_OK);
  cr_assert_eq((void *)pointer_of(&raw), (void *)(bytes + 1));
  cr_assert_eq(stats_of(allocator).live_bytes, 0u);
  cr_assert_eq(stats_of(allocator).reserved_bytes, 0u);
  cr_assert_eq(allocator->vtable.advise(allocator, &raw, 0, 299, QUAY_ADVICE_DONT_NEED), QUAY_OK);
  quay_raw_buffer_free(&raw);
  cr_assert_eq(record.calls, 1);
  cr_assert_eq(record.memory, (void *)(bytes + 1));
  cr_assert_eq(record.size, 299u);
  check_bytes(bytes, sizeof bytes);
  quay_allocator_release(allocator);
}

Test(cpu, no_bytes_at_NULL_can_be_adopted_and_come_back_as_they_were) {
  quay_allocator *allocator = open_allocator("cpu");
  given_back record = {.memory = &record};
  const quay_host_memory memory = {NULL, 0, take_back, &record};
  quay_raw_buffer raw;
  cr_assert_eq(quay_raw_buffer_adopt_host(allocator, &memory, &raw), QUAY_OK);
  cr_assert_not_null(pointer_of(&raw));
  quay_raw_buffer_free(&raw);
  cr_assert_eq(record.calls, 1);
  cr_assert_null(record.memory);
  quay_allocator_release(allocator);
}

static void check_release(uint64_t size, uint64_t alignment) {
  quay_allocator *allocator = open_allocator("cpu");
  quay_raw_buffer raw = alloc(allocator, size, alignment, false);
  unsigned char *bytes = pointer_of(&raw);
  write_bytes(bytes, size);
  quay_host_memory memory;
  cr_assert_eq(quay_raw_buffer_release_host(&raw, &memory), QUAY_OK);
  cr_assert_eq(memory.pointer, (void *)bytes);
  cr_assert_eq(memory.size, size);
  cr_assert(memory.release != NULL);
  cr_assert_eq(stats_of(allocator).live_bytes, 0u);
  cr_assert_eq(stats_of(allocator).reserved_bytes, 0u);
  quay_allocator_release(allocator);
  check_bytes(memory.pointer, size);
  memory.release(memory.user, memory.pointer, memory.size);
}

Test(cpu, released_memory_outlives_its_allocator_and_frees_itself) {
  check_release(0, 0);
  check_release(1, 0);
  check_release(100, 4096);
  check_release(300000, 0);
  const uint64_t space = virtual_bytes();
  check_release(0, GIB);
  check_release(5, GIB);
  check_release(MIB, 0);
  check_release(50 * MIB + 1, 0);
  cr_assert_lt(virtual_bytes(), space + MIB);
}

/* Address space and pages. */

Test(cpu, reserving_address_space_takes_no_memory) {
  quay_allocator *allocator = open_allocator("cpu");
  const uint64_t before = resident_bytes();
  quay_raw_buffer raw;
  memset(&raw, 0, sizeof raw);
  cr_assert_eq(allocator->vtable.reserve(allocator, 64 * GIB, 2 * MIB, &raw), QUAY_OK);
  cr_assert_geq(alignment_of(&(quay_raw_buffer){.arm = raw.arm, .owner = allocator, .as = raw.as}),
                2 * MIB);
  cr_assert_lt(resident_bytes(), before + MIB);
  cr_assert_eq(stats_of(allocator).reserved_bytes, 0u);
  allocator->vtable.free(allocator, &raw, NULL, 0);
  quay_allocator_release(allocator);
}

Test(cpu, decommitted_pages_go_back_and_are_zero_when_they_come_again) {
  quay_allocator *allocator = open_allocator("cpu");
  cr_assert(allocator->has_reserve);
  cr_assert_eq(allocator->page_size, (uint64_t)quay__os_page_size());
  quay_raw_buffer raw;
  memset(&raw, 0, sizeof raw);
  cr_assert_eq(allocator->vtable.reserve(allocator, GIB, 4096, &raw), QUAY_OK);
  raw.owner = allocator;
  unsigned char *bytes = pointer_of(&raw);
  cr_assert_eq(allocator->vtable.commit(allocator, &raw, 8 * MIB, 16 * MIB), QUAY_OK);
  cr_assert_eq(stats_of(allocator).reserved_bytes, 16 * MIB);
  write_bytes(bytes + 8 * MIB, 16 * MIB);
  const uint64_t full = resident_bytes();
  cr_assert_eq(allocator->vtable.decommit(allocator, &raw, 8 * MIB, 12 * MIB), QUAY_OK);
  cr_assert_leq(resident_bytes(), full - 11 * MIB);
  cr_assert_eq(stats_of(allocator).reserved_bytes, 4 * MIB);
  for (uint64_t i = 20 * MIB; i < 24 * MIB; i++)
    cr_assert_eq(bytes[i], byte_at(i - 8 * MIB));
  cr_assert_eq(allocator->vtable.commit(allocator, &raw, 8 * MIB, 4096), QUAY_OK);
  for (uint64_t i = 0; i < 4096; i++)
    cr_assert_eq(bytes[8 * MIB + i], 0);
  allocator->vtable.free(allocator, &raw, NULL, 0);
  cr_assert_eq(stats_of(allocator).reserved_bytes, 0u);
  cr_assert_not(mapped(bytes));
  quay_allocator_release(allocator);
}

Test(cpu, a_decommit_that_fails_counts_nothing) {
  quay_allocator *allocator = open_allocator("cpu");
  quay_raw_buffer raw;
  memset(&raw, 0, sizeof raw);
  cr_assert_eq(allocator->vtable.reserve(allocator, MIB, 4096, &raw), QUAY_OK);
  cr_assert_eq(allocator->vtable.commit(allocator, &raw, 0, MIB), QUAY_OK);
  fail_madvise = 1;
  cr_assert_eq(allocator->vtable.decommit(allocator, &raw, 0, MIB), QUAY_STATUS_IO);
  cr_assert_eq(stats_of(allocator).reserved_bytes, MIB);
  allocator->vtable.free(allocator, &raw, NULL, 0);
  quay_allocator_release(allocator);
}

Test(cpu, address_space_that_cannot_be_had_is_out_of_host_memory) {
  quay_allocator *allocator = open_allocator("cpu");
  quay_raw_buffer raw;
  memset(&raw, 0, sizeof raw);
  cr_assert_eq(allocator->vtable.reserve(allocator, (uint64_t)1 << 62, 4096, &raw),
               QUAY_STATUS_OUT_OF_HOST_MEMORY);
  cr_assert_eq(raw.arm, (uint32_t)QUAY_RAW_NONE);
  quay_allocator_release(allocator);
}

/* Statistics. */

Test(cpu, reserved_bytes_cover_what_is_live_and_end_at_zero) {
  quay_allocator *allocator = open_allocator("cpu");
  quay_raw_buffer raw[40];
  for (int i = 0; i < 40; i++) {
    raw[i] = alloc(allocator, (uint64_t)1 << (i % 24), 0, false);
    const quay_stats stats = stats_of(allocator);
    cr_assert_geq(stats.reserved_bytes, stats.live_bytes);
  }
  for (int i = 0; i < 40; i++)
    quay_raw_buffer_free(&raw[i]);
  cr_assert_eq(stats_of(allocator).reserved_bytes, 0u);
  quay_allocator_release(allocator);
}

/* Each thread frees what its neighbour allocated. */
#define RACERS 6
static quay_raw_buffer handed[RACERS][64];
static pthread_barrier_t barrier;

typedef struct racer {
  quay_allocator *allocator;
  int index;
} racer;

static void *race(void *context) {
  const racer *self = context;
  for (int round = 0; round < 30; round++) {
    for (int i = 0; i < 64; i++) {
      quay_raw_buffer *raw = &handed[self->index][i];
      const uint64_t size = (uint64_t)(i * i * 300 + round);
      if (quay_allocator_alloc(self->allocator, size, NULL, raw) != QUAY_OK)
        return context;
      void *pointer;
      if (quay_raw_buffer_host_pointer(raw, &pointer) != QUAY_OK)
        return context;
      memset(pointer, self->index + 1, size < 256 ? size : 256);
    }
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < 64; i++)
      quay_raw_buffer_free(&handed[(self->index + 1) % RACERS][i]);
    pthread_barrier_wait(&barrier);
  }
  return NULL;
}

Test(cpu, counts_are_right_after_threads_freed_each_others_blocks) {
  quay_allocator *allocator = open_allocator("cpu");
  pthread_t threads[RACERS];
  racer racers[RACERS];
  pthread_barrier_init(&barrier, NULL, RACERS);
  for (int i = 0; i < RACERS; i++) {
    racers[i] = (racer){.allocator = allocator, .index = i};
    cr_assert_eq(pthread_create(&threads[i], NULL, race, &racers[i]), 0);
  }
  for (int i = 0; i < RACERS; i++) {
    void *failed;
    pthread_join(threads[i], &failed);
    cr_assert_null(failed);
  }
  pthread_barrier_destroy(&barrier);
  const quay_stats stats = stats_of(allocator);
  cr_assert_eq(stats.live_bytes, 0u);
  cr_assert_eq(stats.reserved_bytes, 0u);
  cr_assert_eq(stats.alloc_count, (uint64_t)RACERS * 30 * 64);
  quay_allocator_release(allocator);
}

/* Failures of the system. */

static void check_failing_alloc(int *countdown, uint64_t size, uint64_t alignment) {
  quay_allocator *allocator = open_allocator("cpu");
  const quay_alloc_options options = {.alignment = alignment};
  quay_raw_buffer raw;
  const uint64_t space = virtual_bytes();
  *countdown = 1;
  cr_assert_eq(quay_allocator_alloc(allocator, size, &options, &raw),
               QUAY_STATUS_OUT_OF_HOST_MEMORY);
  *countdown = 0;
  cr_assert_lt(virtual_bytes(), space + MIB, "address space was left behind");
  cr_assert_eq(stats_of(allocator).reserved_bytes, 0u);
  quay_raw_buffer again = alloc(allocator, size, alignment, false);
  quay_raw_buffer_free(&again);
  quay_allocator_release(allocator);
}

Test(cpu, an_allocation_that_the_system_refuses_leaves_nothing_behind) {
  check_failing_alloc(&fail_malloc, 100, 0);
  check_failing_alloc(&fail_malloc, 100, 4096);
  check_failing_alloc(&fail_malloc, 100000, 0);
  check_failing_alloc(&fail_mmap, 2 * MIB, 0);
  check_failing_alloc(&fail_mmap, 10, GIB);
}

Test(cpu, an_alignment_that_cannot_be_cut_out_leaves_nothing_behind) {
  for (int nth = 1; nth <= 2; nth++) {
    quay_allocator *allocator = open_allocator("cpu");
    const quay_alloc_options options = {.alignment = GIB};
    quay_raw_buffer raw;
    const uint64_t space = virtual_bytes();
    fail_munmap = nth;
    const quay_status status = quay_allocator_alloc(allocator, 100, &options, &raw);
    const bool reached = fail_munmap == 0;
    fail_munmap = 0;
    if (reached) {
      cr_assert_eq(status, QUAY_STATUS_OUT_OF_HOST_MEMORY);
      cr_assert_lt(virtual_bytes(), space + MIB);
    } else {
      quay_raw_buffer_free(&raw);
    }
    quay_allocator_release(allocator);
  }
}

Test(cpu, refused_advice_for_huge_pages_fails_no_allocation) {
  quay_allocator *allocator = open_allocator("cpu");
  fail_madvise = 1;
  quay_raw_buffer raw = alloc(allocator, 4 * MIB, 0, false);
  cr_assert_eq(fail_madvise, 0);
  quay_raw_buffer_free(&raw);
  quay_allocator_release(allocator);
}

static void count_line(void *user, quay_log_level level, const char *message) {
  if (level == QUAY_LOG_ERROR && strstr(message, "ENOMEM") != NULL)
    (*(int *)user)++;
}

Test(cpu, pages_that_cannot_be_unmapped_are_logged_and_counted_and_keep_the_last_error) {
  quay_allocator *allocator = open_allocator("cpu");
  quay_raw_buffer raw = alloc(allocator, MIB, 0, false);
  int lines = 0;
  quay_log_set(count_line, &lines, QUAY_LOG_INFO);
  quay_error_clear();
  fail_munmap = 1;
  quay_raw_buffer_free(&raw);
  quay_log_set(NULL, NULL, QUAY_LOG_INFO);
  cr_assert_eq(lines, 1);
  cr_assert_eq(stats_of(allocator).error_count, 1u);
  cr_assert_eq(stats_of(allocator).reserved_bytes, MIB);
  cr_assert_eq(quay_last_error()->status, QUAY_OK);
  quay_allocator_release(allocator);
}

Test(cpu, open_without_memory_is_out_of_host_memory) {
  int failed = 0;
  for (int nth = 1; nth < 20; nth++) {
    quay_allocator *allocator = NULL;
    fail_malloc = nth;
    const quay_status status = quay_allocator_open("cpu", &allocator);
    const bool reached = fail_malloc == 0;
    fail_malloc = 0;
    if (reached) {
      cr_assert_eq(status, QUAY_STATUS_OUT_OF_HOST_MEMORY);
      cr_assert_null(allocator);
      failed++;
    } else {
      cr_assert_eq(status, QUAY_OK);
      quay_allocator_release(allocator);
    }
  }
  cr_assert_gt(failed, 0);
}
