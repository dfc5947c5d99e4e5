/* The cpu backend's allocator: small blocks from the C library, large ones from fresh pages, and
 * address space whose pages come and go. Copies are in copy.c, the device in device.c. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "core/allocator_impl.h"
#include "core/checked.h"
#include "core/error.h"
#include "core/os.h"
#include "core/registry.h"
#include "cpu/cpu.h"

/* A cache line, and the widest vector. */
#define DEFAULT_ALIGNMENT 64u
/* From here on blocks begin at a page, so that direct I/O and advice can work on them. */
#define PAGE_ALIGNED_BYTES (64u << 10)
/* From here on blocks have pages of their own. They are zero without being touched, and go back to
 * the system when they are freed. */
#define MAPPED_BYTES (1u << 20)
/* A wider alignment would cost the C library memory; as pages it costs address space alone. */
#define HEAP_ALIGNMENT_MAX (64u << 10)
/* Up to here, and where it costs at most a sixteenth of the block, blocks are cut out of a slightly
 * larger malloc: glibc's aligned functions leave out its per-thread cache (28 to 67 ns a pair
 * against 6 to 15 for malloc) and can map and unmap blocks of 128 KiB and more each time (5 us).
 * glibc 2.36, Intel Xeon, November 2026. */
#define CUT_ALIGNMENT_MAX 64u
#define CUT_SHARE         16u
#define MALLOC_ALIGNMENT  ((uint64_t) _Alignof(max_align_t))

#if defined(__SANITIZE_ADDRESS__)
#define HAVE_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HAVE_ASAN 1
#endif
#endif
#ifndef HAVE_ASAN
#define HAVE_ASAN 0
#endif

static quay__cpu *self_of(const quay_allocator *allocator) {
  return allocator->self;
}

static void count(quay_allocator *allocator, uint64_t delta) {
  quay__cpu_shard *const shard = &self_of(allocator)->taken[quay__thread_shard()];
  atomic_fetch_add_explicit(&shard->bytes, delta, memory_order_relaxed);
}

static uint64_t whole_pages(uint64_t size) {
  uint64_t rounded;
  /* The core lets sizes up to 2^63-1 through. */
  return quay__align_up(quay__max(size, 1), quay__os_page_size(), &rounded) ? rounded : UINT64_MAX;
}

static quay_status fail_alloc(uint64_t size, uint64_t alignment, int error_number) {
  uint64_t total, available;
  if (quay__os_memory_info(&total, &available) != 0) {
    return quay__fail_errno(QUAY_STATUS_OUT_OF_HOST_MEMORY, "cpu", error_number,
                            "can't allocate %llu bytes of host memory, aligned to %llu",
                            (unsigned long long)size, (unsigned long long)alignment);
  }
  return quay__fail_errno(QUAY_STATUS_OUT_OF_HOST_MEMORY, "cpu", error_number,
                          "can't allocate %llu bytes of host memory, aligned to %llu: the machine "
                          "has %llu bytes, %llu of them available",
                          (unsigned long long)size, (unsigned long long)alignment,
                          (unsigned long long)total, (unsigned long long)available);
}

/* Mapped blocks. */

/* Gives pages back on a path that can't fail. */
static bool unmap(void *address, uint64_t size) {
  const int saved_errno = errno;
  const bool done = size == 0 || quay__os_munmap(address, size) == 0;
  if (!done) {
    quay_log(QUAY_LOG_ERROR, "cpu: can't unmap %llu bytes at %p (%s); they are lost",
             (unsigned long long)size, address, quay__errno_name(errno));
  }
  errno = saved_errno;
  return done;
}

/* Cuts off what lies before and behind [start, start + size). All is unmapped if that fails, which
 * is when the process has as many mappings as it may have. */
static bool trim(char *base, uint64_t total, char *start, uint64_t size) {
  const uint64_t head = (uint64_t)(start - base);
  const uint64_t tail = total - head - size;
  if (head != 0 && quay__os_munmap(base, head) != 0) {
    unmap(base, total);
    return false;
  }
  if (tail != 0 && quay__os_munmap(start + size, tail) != 0) {
    unmap(start, size + tail);
    return false;
  }
  return true;
}

/* Maps `size` bytes, whole pages, at a multiple of `alignment`: maps more address space and cuts it
 * down, which touches no page. NULL on failure, with errno. */
static char *map_aligned(uint64_t size, uint64_t alignment, int more_flags) {
  const uint64_t page = quay__os_page_size();
  const int protection = PROT_READ | PROT_WRITE;
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | more_flags;
  const uint64_t extra = alignment > page ? alignment - page : 0;
  uint64_t total;
  if (!quay__add(size, extra, &total)) {
    errno = ENOMEM;
    return NULL;
  }
  void *const mapped = quay__os_mmap(NULL, total, protection, flags, -1, 0);
  if (mapped == MAP_FAILED)
    return NULL;
  char *const base = mapped;
  char *const start = base + (-(uintptr_t)base & (quay__max(alignment, page) - 1));
  return trim(base, total, start, size) ? start : NULL;
}

/* Advice only: a kernel without huge pages refuses it, and the memory is as good. */
static void advise_huge_pages(const quay__cpu *self, char *start, uint64_t size) {
  const int saved_errno = errno;
  (void)quay__os_madvise(start, size, self->huge_pages ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  errno = saved_errno;
}

static quay_status alloc_mapped(quay_allocator *allocator, uint64_t size, uint64_t alignment,
                                quay_raw_buffer *out_raw) {
  const quay__cpu *const self = self_of(allocator);
  const uint64_t length = whole_pages(size);
  const bool huge = length >= quay__os_huge_page_size();
  if (huge && self->huge_pages)
    alignment = quay__max(alignment, quay__os_huge_page_size());
  char *const start = map_aligned(length, alignment, 0);
  if (start == NULL)
    return fail_alloc(size, alignment, errno);
  if (huge)
    advise_huge_pages(self, start, length);
  out_raw->as.cpu = (quay_raw_cpu){
      .pointer = (uint64_t)(uintptr_t)start,
      .base = (uint64_t)(uintptr_t)start,
      .capacity = length,
      .flags = QUAY__CPU_MAPPED,
  };
  out_raw->flags = QUAY_RAW_ZEROED;
  return QUAY_OK;
}

/* Heap blocks. */

static quay_status alloc_heap(uint64_t size, uint64_t alignment, quay_raw_buffer *out_raw) {
  /* AddressSanitizer sees an overrun only if the block ends where the allocation does. */
  const bool cheap = alignment <= CUT_ALIGNMENT_MAX || alignment <= size / CUT_SHARE;
  const bool cut = cheap && !HAVE_ASAN;
  const uint64_t slack = cut && alignment > MALLOC_ALIGNMENT ? alignment - MALLOC_ALIGNMENT : 0;
  const uint64_t capacity = quay__max(size, 1) + slack; /* below 2 * MAPPED_BYTES */
  void *const base = cut ? quay__os_malloc(capacity) : quay__os_aligned_alloc(alignment, capacity);
  if (base == NULL)
    return fail_alloc(size, alignment, ENOMEM);
  const uint64_t address = (uint64_t)(uintptr_t)base;
  out_raw->as.cpu = (quay_raw_cpu){
      .pointer = address + (-address & (alignment - 1)),
      .base = address,
      .capacity = capacity,
      .flags = QUAY__CPU_HEAP,
  };
  return QUAY_OK;
}

/* The table. */

static void cpu_destroy(void *self) {
  quay__os_free(self);
}

static quay_status check_options(const quay_alloc_request *request) {
  if (!request->mirror && !request->exportable)
    return QUAY_OK;
  return quay_error_set(QUAY_STATUS_UNSUPPORTED, "cpu", 0, NULL,
                        "host memory of the cpu backend can't be %s",
                        request->mirror ? "mirrored: it is on the host already"
                                        : "exported to another process; map a file shared instead");
}

static quay_status cpu_alloc(quay_allocator *allocator, const quay_alloc_request *request,
                             quay_raw_buffer *out_raw) {
  QUAY_TRY(check_options(request));
  const uint64_t size = request->size;
  uint64_t alignment = request->alignment;
  if (size >= PAGE_ALIGNED_BYTES)
    alignment = quay__max(alignment, quay__os_page_size());
  const bool mapped = size >= MAPPED_BYTES || alignment > HEAP_ALIGNMENT_MAX;
  QUAY_TRY(mapped ? alloc_mapped(allocator, size, alignment, out_raw)
                  : alloc_heap(size, alignment, out_raw));
  out_raw->arm = QUAY_RAW_CPU;
  count(allocator, out_raw->as.cpu.capacity);
  return QUAY_OK;
}

static void free_pages(quay_allocator *allocator, const quay_raw_cpu *block, uint64_t counted) {
  if (unmap((void *)(uintptr_t)block->base, block->capacity)) {
    count(allocator, -counted);
  } else {
    quay__statistics_error(&allocator->statistics);
  }
}

static void cpu_free(quay_allocator *allocator, quay_raw_buffer *raw, quay_event *const *pending,
                     size_t pending_count) {
  (void)pending;
  (void)pending_count;
  const quay_raw_cpu *const block = &raw->as.cpu;
  switch ((quay__cpu_block)block->flags) {
  case QUAY__CPU_ADOPTED:
    break;
  case QUAY__CPU_HEAP:
    quay__os_free((void *)(uintptr_t)block->base);
    count(allocator, -block->capacity);
    break;
  case QUAY__CPU_MAPPED:
    free_pages(allocator, block, block->capacity);
    break;
  case QUAY__CPU_RESERVED:
    free_pages(allocator, block, block->reserved[0]);
    break;
  }
}

static quay_status cpu_host_pointer(quay_allocator *allocator, const quay_raw_buffer *raw,
                                    void **out_pointer) {
  (void)allocator;
  *out_pointer = quay__cpu_at(raw, 0);
  return QUAY_OK;
}

static void cpu_stats(quay_allocator *allocator, quay_backend_stats *out_stats) {
  const quay__cpu *const self = self_of(allocator);
  uint64_t taken = 0;
  for (uint32_t i = 0; i < QUAY__SHARD_COUNT; i++)
    taken += atomic_load_explicit(&self->taken[i].bytes, memory_order_relaxed);
  /* While other threads allocate and free, a free can be seen before its allocation. */
  out_stats->reserved_bytes = taken <= INT64_MAX ? taken : 0;
}

/* Advice. Blocks from the C library share their pages with others, and adopted ones are somebody
 * else's mapping: both take none. */

static int native_advice(quay_advice advice) {
  switch (advice) {
  case QUAY_ADVICE_NORMAL:
    return MADV_NORMAL;
  case QUAY_ADVICE_SEQUENTIAL:
    return MADV_SEQUENTIAL;
  case QUAY_ADVICE_RANDOM:
    return MADV_RANDOM;
  case QUAY_ADVICE_WILL_NEED:
    return MADV_WILLNEED;
  case QUAY_ADVICE_DONT_NEED:
    return MADV_COLD; /* MADV_DONTNEED would lose the contents */
  case QUAY_ADVICE_HUGE_PAGES:
    return MADV_HUGEPAGE;
  }
  return MADV_NORMAL;
}

static quay_status cpu_advise(quay_allocator *allocator, const quay_raw_buffer *raw,
                              uint64_t offset, uint64_t size, quay_advice advice) {
  const uint64_t kind = raw->as.cpu.flags;
  if (kind != QUAY__CPU_MAPPED && kind != QUAY__CPU_RESERVED)
    return QUAY_OK;
  if (advice == QUAY_ADVICE_HUGE_PAGES && !self_of(allocator)->huge_pages) /* hugepages=off */
    return QUAY_OK;
  const uint64_t page = quay__os_page_size();
  const uint64_t address = raw->as.cpu.pointer + offset;
  const uint64_t begin = address + (-address & (page - 1));
  const uint64_t end = quay__align_down(address + size, page);
  if (begin >= end)
    return QUAY_OK;
  if (quay__os_madvise((void *)(uintptr_t)begin, end - begin, native_advice(advice)) == 0)
    return QUAY_OK;
  if (errno == EINVAL) /* a kernel that does not know it */
    return QUAY_OK;
  return quay__fail_errno(quay__status_of_errno(errno), "cpu", errno,
                          "can't advise %llu bytes of host memory",
                          (unsigned long long)(end - begin));
}

/* Adoption and release. */

static quay_status cpu_adopt_host(quay_allocator *allocator, const quay_host_memory *memory,
                                  quay_raw_buffer *out_raw) {
  (void)allocator;
  static _Alignas(DEFAULT_ALIGNMENT) char nothing[1]; /* an address for no bytes at NULL */
  const void *const pointer = memory->pointer != NULL ? memory->pointer : nothing;
  out_raw->arm = QUAY_RAW_CPU;
  out_raw->as.cpu = (quay_raw_cpu){
      .pointer = (uint64_t)(uintptr_t)pointer,
      .capacity = memory->size,
      .flags = QUAY__CPU_ADOPTED,
  };
  return QUAY_OK;
}

/* What released blocks go back with; they outlive the allocator. `user` is the heap block. */
static void free_released_heap(void *user, void *memory, uint64_t size) {
  (void)memory;
  (void)size;
  quay__os_free(user);
}

static void free_released_pages(void *user, void *memory, uint64_t size) {
  (void)user;
  unmap(memory, whole_pages(size));
}

static quay_status cpu_release(quay_allocator *allocator, quay_raw_buffer *raw,
                               quay_host_memory *out_memory) {
  const quay_raw_cpu *const block = &raw->as.cpu;
  if (out_memory != NULL) {
    const bool heap = block->flags == QUAY__CPU_HEAP;
    *out_memory = (quay_host_memory){
        .pointer = quay__cpu_at(raw, 0),
        .size = block->flags == QUAY__CPU_RESERVED ? block->capacity : raw->size,
        .release = heap ? free_released_heap : free_released_pages,
        .user = heap ? (void *)(uintptr_t)block->base : NULL,
    };
  }
  count(allocator, -(block->flags == QUAY__CPU_RESERVED ? block->reserved[0] : block->capacity));
  return QUAY_OK;
}

/* Address space and pages apart. The system gives a page when it is touched, so that committing is
 * nothing but counting; mprotect() would cost a call and a mapping for each piece. */

static quay_status cpu_reserve(quay_allocator *allocator, uint64_t size, uint64_t alignment,
                               quay_raw_buffer *out_raw) {
  (void)allocator;
  char *const start = map_aligned(size, alignment, MAP_NORESERVE);
  if (start == NULL) {
    return quay__fail_errno(QUAY_STATUS_OUT_OF_HOST_MEMORY, "cpu", errno,
                            "can't reserve %llu bytes of address space, aligned to %llu",
                            (unsigned long long)size, (unsigned long long)alignment);
  }
  out_raw->arm = QUAY_RAW_CPU;
  out_raw->as.cpu = (quay_raw_cpu){
      .pointer = (uint64_t)(uintptr_t)start,
      .base = (uint64_t)(uintptr_t)start,
      .capacity = size,
      .flags = QUAY__CPU_RESERVED,
  };
  return QUAY_OK;
}

static quay_status cpu_commit(quay_allocator *allocator, quay_raw_buffer *raw, uint64_t offset,
                              uint64_t size) {
  (void)offset;
  __atomic_fetch_add(&raw->as.cpu.reserved[0], size, __ATOMIC_RELAXED);
  count(allocator, size);
  return QUAY_OK;
}

static quay_status cpu_decommit(quay_allocator *allocator, quay_raw_buffer *raw, uint64_t offset,
                                uint64_t size) {
  if (quay__os_madvise(quay__cpu_at(raw, offset), size, MADV_DONTNEED) != 0) {
    return quay__fail_errno(quay__status_of_errno(errno), "cpu", errno,
                            "can't give %llu bytes of host memory back to the system",
                            (unsigned long long)size);
  }
  __atomic_fetch_sub(&raw->as.cpu.reserved[0], size, __ATOMIC_RELAXED);
  count(allocator, -size);
  return QUAY_OK;
}

static void cpu_window(quay_allocator *allocator, const quay_raw_buffer *block, uint64_t offset,
                       uint64_t size, quay_raw_buffer *out_raw) {
  (void)allocator;
  out_raw->arm = QUAY_RAW_CPU;
  out_raw->as.cpu = (quay_raw_cpu){
      .pointer = block->as.cpu.pointer + offset,
      .base = block->as.cpu.base,
      .capacity = size,
      .flags = QUAY__CPU_ADOPTED, /* not by us: whoever carved it frees the block */
  };
}

static const quay_allocator_vtable vtable = {
    .destroy = cpu_destroy,
    .version = QUAY_ALLOCATOR_VTABLE_VERSION,
    .struct_size = sizeof(quay_allocator_vtable),
    .alloc = cpu_alloc,
    .free = cpu_free,
    .copy_in = quay__cpu_copy_in,
    .copy_out = quay__cpu_copy_out,
    .host_pointer = cpu_host_pointer,
    .copy_within = quay__cpu_copy_within,
    .copy_info = quay__cpu_copy_info,
    .fill = quay__cpu_fill,
    .advise = cpu_advise,
    .stats = cpu_stats,
    .release = cpu_release,
    .adopt_host = cpu_adopt_host,
    .window = cpu_window,
    .reserve = cpu_reserve,
    .commit = cpu_commit,
    .decommit = cpu_decommit,
};

/* Opening. */

typedef struct cpu_settings {
  uint64_t alignment;
  bool huge_pages;
} cpu_settings;

static quay_status parse(const quay_spec_args *args, cpu_settings *out_settings) {
  static const quay_spec_key keys[] = {
      {"align", "bytes, a power of two up to 1GiB"},
      {"hugepages", "on or off"},
  };
  *out_settings = (cpu_settings){.alignment = DEFAULT_ALIGNMENT, .huge_pages = true};
  QUAY_TRY(quay_spec_check(args, keys, sizeof keys / sizeof keys[0]));
  QUAY_TRY(quay_spec_bytes(args, "align", &out_settings->alignment));
  QUAY_TRY(quay_spec_switch(args, "hugepages", &out_settings->huge_pages));
  if (quay__is_power_of_two(out_settings->alignment) &&
      out_settings->alignment <= QUAY_ALIGNMENT_MAX)
    return QUAY_OK;
  return quay_error_set(QUAY_STATUS_INVALID_ARGUMENT, "cpu", 0, NULL,
                        "allocator spec \"%s\": \"align=%s\" is no power of two from 1 to 1GiB",
                        args->spec, quay_spec_value(args, "align"));
}

/* "cpu", and what differs from the defaults. */
static void write_spec(const cpu_settings *settings, char *out_spec, size_t size) {
  char align[32] = "";
  if (settings->alignment != DEFAULT_ALIGNMENT) {
    snprintf(align, sizeof align, "align=%llu", (unsigned long long)settings->alignment);
  }
  const char *const pages = settings->huge_pages ? "" : "hugepages=off";
  const bool both = align[0] != '\0' && pages[0] != '\0';
  const bool any = align[0] != '\0' || pages[0] != '\0';
  snprintf(out_spec, size, "cpu%s%s%s%s", any ? ":" : "", align, both ? "," : "", pages);
}

static quay_status cpu_open(void *user, const quay_spec_args *args,
                            quay_allocator **out_allocator) {
  (void)user;
  cpu_settings settings;
  QUAY_TRY(parse(args, &settings));
  char spec[64];
  write_spec(&settings, spec, sizeof spec);
  quay__cpu *const self = quay__os_aligned_alloc(_Alignof(quay__cpu), sizeof *self);
  if (self == NULL)
    return quay__fail_out_of_memory(sizeof *self, "a cpu allocator");
  memset(self, 0, sizeof *self);
  self->huge_pages = settings.huge_pages;
  quay_device *const host = quay_device_host();
  const quay_allocator_desc desc = {
      .vtable = &vtable,
      .self = self,
      .name = "cpu",
      .spec = spec,
      .device = host,
      .kind = QUAY_MEMORY_PAGEABLE,
      .flags = QUAY_ALLOCATOR_HOST_ACCESSIBLE | QUAY_ALLOCATOR_PLAIN_HOST_MEMORY,
      .alignment = settings.alignment,
      .page_size = quay__os_page_size(),
  };
  const quay_status status = quay_allocator_create(&desc, out_allocator);
  quay_device_release(host);
  if (status != QUAY_OK)
    quay__os_free(self);
  return status;
}

const quay_backend quay__backend_cpu = {
    .version = QUAY_BACKEND_VERSION,
    .struct_size = sizeof(quay_backend),
    .name = "cpu",
    .open = cpu_open,
    .device_info = quay__cpu_device_info,
};
