/* Raw buffers: the value, adoption and release. Reads no arm: that is the backends'. */
#include <quay/raw_buffer.h>
#include <string.h>

#include "core/allocator_impl.h"
#include "core/checked.h"
#include "core/error.h"
#include "core/os.h"
#include "core/thread.h"

/* The layout is part of the ABI, and the same whatever backends are built in. */
_Static_assert(sizeof(quay_raw_cpu) == 48, "an arm takes 48 bytes");
_Static_assert(sizeof(quay_raw_mmap) == 48, "an arm takes 48 bytes");
_Static_assert(sizeof(quay_raw_cuda) == 48, "an arm takes 48 bytes");
_Static_assert(sizeof(quay_raw_vulkan) == 48, "an arm takes 48 bytes");
_Static_assert(sizeof(quay_raw_external) == 48, "an arm takes 48 bytes");
_Static_assert(offsetof(quay_raw_buffer, as) == 32, "the arms begin after 32 bytes");
_Static_assert(sizeof(quay_raw_buffer) == 80, "a raw buffer takes 80 bytes");

/* What the cookie of an adopted raw buffer points to, if there is a callback. */
typedef struct adoption {
  quay_release_callback release;
  void *user;
  void *memory;
} adoption;

static bool empty(const quay_raw_buffer *raw) {
  return raw->owner == NULL;
}

static adoption *adoption_of(const quay_raw_buffer *raw) {
  return (adoption *)(uintptr_t)raw->cookie;
}

/* Takes adopted memory out of the owner's layers up to `end`. False: one of them says that it was
 * freed before, and then the cookie must not be read. Keeps the thread's error. */
static bool leave_layers(const quay_raw_buffer *raw, const quay_allocator *end) {
  bool known = true;
  quay__error_state saved;
  quay__error_save(&saved);
  for (quay_allocator *each = raw->owner; each != end && known; each = each->inner) {
    if (each->unadopt != NULL)
      known = each->unadopt(each, raw);
  }
  quay__error_restore(&saved);
  if (!known)
    quay__statistics_error(&raw->owner->statistics);
  return known;
}

static quay_status enter_layers(quay_raw_buffer *raw) {
  for (quay_allocator *each = raw->owner; each != NULL; each = each->inner) {
    const quay_status status = each->adopt != NULL ? each->adopt(each, raw) : QUAY_OK;
    if (status != QUAY_OK) {
      (void)leave_layers(raw, each);
      return status;
    }
  }
  return QUAY_OK;
}

static void free_adopted(quay_raw_buffer *raw) {
  quay_allocator *const owner = raw->owner;
  if (!leave_layers(raw, NULL)) {
    memset(raw, 0, sizeof *raw);
    return;
  }
  adoption *const adopted = adoption_of(raw);
  const uint64_t size = raw->size;
  memset(raw, 0, sizeof *raw);
  if (adopted != NULL) {
    quay__error_state saved;
    quay__error_save(&saved);
    adopted->release(adopted->user, adopted->memory, size);
    quay__error_restore(&saved);
    quay__os_free(adopted);
  }
  quay__adopted_remove(owner);
}

void quay_raw_buffer_free(quay_raw_buffer *raw) {
  if (raw == NULL || empty(raw))
    return;
  if ((raw->flags & QUAY_RAW_ADOPTED) != 0) {
    free_adopted(raw);
    return;
  }
  quay__free_inline(raw->owner, raw, NULL, 0);
  raw->flags = 0; /* the mark of a free that was refused, if any; all else is 0 */
}

quay_raw_buffer quay_raw_buffer_move(quay_raw_buffer *raw) {
  quay_raw_buffer moved = {.arm = QUAY_RAW_NONE};
  if (raw == NULL)
    return moved;
  moved = *raw;
  memset(raw, 0, sizeof *raw);
  return moved;
}

uint64_t quay_raw_buffer_size(const quay_raw_buffer *raw) {
  return raw != NULL ? raw->size : 0;
}

quay_memory_kind quay_raw_buffer_kind(const quay_raw_buffer *raw) {
  return raw != NULL && !empty(raw) ? raw->owner->kind : QUAY_MEMORY_NONE;
}

bool quay_raw_buffer_host_accessible(const quay_raw_buffer *raw) {
  return raw != NULL && !empty(raw) && quay__host_accessible(raw->owner);
}

static quay_status check(const char *function, const quay_raw_buffer *raw, const void *out) {
  if (raw == NULL || out == NULL) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT, "%s: %s is NULL", function,
                      raw == NULL ? "raw" : "the output parameter");
  }
  if (empty(raw)) {
    return quay__fail(QUAY_STATUS_NOT_ALLOCATED,
                      "%s: the raw buffer holds nothing; it was freed, moved or never allocated",
                      function);
  }
  return QUAY_OK;
}

quay_status quay_raw_buffer_host_pointer(const quay_raw_buffer *raw, void **out_pointer) {
  QUAY_TRY(check("quay_raw_buffer_host_pointer", raw, (const void *)out_pointer));
  *out_pointer = NULL;
  QUAY_TRY(quay__device_check(raw->owner->device));
  return raw->owner->vtable.host_pointer(raw->owner, raw, out_pointer);
}

quay_status quay_raw_buffer_address(const quay_raw_buffer *raw, uint64_t *out_address) {
  QUAY_TRY(check("quay_raw_buffer_address", raw, out_address));
  *out_address = 0;
  QUAY_TRY(quay__device_check(raw->owner->device));
  return raw->owner->vtable.address(raw->owner, raw, out_address);
}

/* Adoption. */

quay_status quay_raw_buffer_adopt(quay_allocator *allocator, quay_raw_buffer *raw, void *memory,
                                  quay_release_callback release, void *user) {
  if (allocator == NULL || raw == NULL || raw->arm == QUAY_RAW_NONE) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT, "quay_raw_buffer_adopt: %s",
                      allocator == NULL ? "allocator is NULL"
                      : raw == NULL     ? "raw is NULL"
                                        : "the raw buffer's arm is not set");
  }
  adoption *adopted = NULL;
  if (release != NULL) {
    adopted = quay__os_malloc(sizeof *adopted);
    if (adopted == NULL)
      return quay__fail_out_of_memory(sizeof *adopted, "an adopted raw buffer");
    *adopted = (adoption){.release = release, .user = user, .memory = memory};
  }
  const quay_raw_buffer before = *raw;
  raw->flags |= QUAY_RAW_ADOPTED;
  raw->owner = allocator;
  raw->cookie = (uint64_t)(uintptr_t)adopted;
  const quay_status status = enter_layers(raw);
  if (status != QUAY_OK) {
    *raw = before;
    quay__os_free(adopted);
    return status;
  }
  quay__adopted_add(allocator);
  return QUAY_OK;
}

static quay_status check_host_memory(const quay_host_memory *memory) {
  uint64_t end;
  if (memory->pointer == NULL && memory->size > 0) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT,
                      "adopting host memory: the pointer is NULL, the size %llu bytes",
                      (unsigned long long)memory->size);
  }
  if (memory->size > INT64_MAX ||
      !quay__add((uint64_t)(uintptr_t)memory->pointer, memory->size, &end)) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT,
                      "adopting host memory: %llu bytes at %p reach beyond the address space",
                      (unsigned long long)memory->size, memory->pointer);
  }
  return QUAY_OK;
}

static quay_status adopt_host(quay_allocator *allocator, const quay_host_memory *memory,
                              quay_raw_buffer *out_raw) {
  if (allocator->kind != QUAY_MEMORY_PAGEABLE || !quay__host_accessible(allocator)) {
    return quay__fail(QUAY_STATUS_UNSUPPORTED,
                      "allocator %s can't adopt host memory: its own is %s memory; use one of "
                      "pageable memory, such as cpu",
                      allocator->spec, quay_memory_kind_name(allocator->kind));
  }
  QUAY_TRY(allocator->backend->vtable.adopt_host(allocator->backend, memory, out_raw));
  out_raw->size = memory->size;
  return quay_raw_buffer_adopt(allocator, out_raw, memory->pointer, memory->release, memory->user);
}

quay_status quay_raw_buffer_adopt_host(quay_allocator *allocator, const quay_host_memory *memory,
                                       quay_raw_buffer *out_raw) {
  QUAY__MARK_CALLER();
  if (memory == NULL || out_raw == NULL) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT, "quay_raw_buffer_adopt_host: %s is NULL",
                      memory == NULL ? "memory" : "out_raw");
  }
  memset(out_raw, 0, sizeof *out_raw);
  QUAY_TRY(check_host_memory(memory));
  quay_allocator *resolved;
  QUAY_TRY(quay__allocator_resolve(allocator, &resolved));
  const quay_status status = adopt_host(resolved, memory, out_raw);
  if (status != QUAY_OK)
    memset(out_raw, 0, sizeof *out_raw);
  quay_allocator_release(resolved);
  return status;
}

/* Release. */

static quay_status fail_forgotten(const char *function) {
  return quay__fail(QUAY_STATUS_INVALID_ARGUMENT,
                    "%s: a copy of this raw buffer of adopted memory was freed or given up before",
                    function);
}

/* Ends an adoption without its callback. */
static void forget_adopted(quay_raw_buffer *raw) {
  quay_allocator *const owner = raw->owner;
  quay__os_free(adoption_of(raw));
  memset(raw, 0, sizeof *raw);
  quay__adopted_remove(owner);
}

static quay_status release_adopted(quay_raw_buffer *raw, quay_host_memory *out_memory) {
  const adoption *const adopted = adoption_of(raw);
  void *pointer = NULL;
  QUAY_TRY(raw->owner->vtable.host_pointer(raw->owner, raw, &pointer));
  if (!leave_layers(raw, NULL))
    return fail_forgotten("quay_raw_buffer_release_host");
  *out_memory = (quay_host_memory){.pointer = pointer, .size = raw->size};
  if (adopted != NULL) {
    out_memory->pointer = adopted->memory;
    out_memory->release = adopted->release;
    out_memory->user = adopted->user;
  }
  forget_adopted(raw);
  return QUAY_OK;
}

quay_status quay_raw_buffer_release_host(quay_raw_buffer *raw, quay_host_memory *out_memory) {
  QUAY_TRY(check("quay_raw_buffer_release_host", raw, out_memory));
  *out_memory = (quay_host_memory){.pointer = NULL};
  if (raw->owner->kind != QUAY_MEMORY_PAGEABLE || !quay__host_accessible(raw->owner)) {
    return quay__fail(QUAY_STATUS_UNSUPPORTED,
                      "%s memory of allocator %s can't be released as host memory",
                      quay_memory_kind_name(raw->owner->kind), raw->owner->spec);
  }
  if ((raw->flags & QUAY_RAW_ADOPTED) != 0)
    return release_adopted(raw, out_memory);
  QUAY_TRY(quay__release(raw->owner, raw, out_memory));
  memset(raw, 0, sizeof *raw);
  return QUAY_OK;
}

quay_status quay_raw_buffer_forget(quay_raw_buffer *raw) {
  QUAY_TRY(check("quay_raw_buffer_forget", raw, raw));
  if ((raw->flags & QUAY_RAW_ADOPTED) != 0) {
    if (!leave_layers(raw, NULL))
      return fail_forgotten("quay_raw_buffer_forget");
    forget_adopted(raw);
    return QUAY_OK;
  }
  QUAY_TRY(quay__release(raw->owner, raw, NULL));
  memset(raw, 0, sizeof *raw);
  return QUAY_OK;
}
