/* The fault layer: fails calls on purpose, by count and kind, so that tests reach the paths that a
 * healthy machine never takes. It decides before the inner allocator is called: a call that fails
 * here has done nothing. */
#include <inttypes.h>
#include <quay/layers.h>
#include <stdio.h>
#include <string.h>

#include "core/allocator_impl.h"
#include "core/error.h"
#include "core/os.h"
#include "core/registry.h"

/* What a call is counted as; `on` is a set of these. */
enum {
  FAULT_ALLOC = 1u << 0,
  FAULT_COPY_IN = 1u << 1,
  FAULT_COPY_OUT = 1u << 2,
  FAULT_COPY_WITHIN = 1u << 3,
  FAULT_FILL = 1u << 4,
  FAULT_COPY = FAULT_COPY_IN | FAULT_COPY_OUT | FAULT_COPY_WITHIN,
  FAULT_ALL = FAULT_ALLOC | FAULT_COPY | FAULT_FILL,
};

typedef struct fault_kind_name {
  const char *name;
  uint32_t kinds;
} fault_kind_name;

static const fault_kind_name kind_names[] = {
    {"alloc", FAULT_ALLOC},       {"copy_in", FAULT_COPY_IN},
    {"copy_out", FAULT_COPY_OUT}, {"copy_within", FAULT_COPY_WITHIN},
    {"copy", FAULT_COPY},         {"fill", FAULT_FILL},
    {"all", FAULT_ALL},
};
#define KIND_LIST "alloc, copy_in, copy_out, copy_within, copy, fill, all"

/* Which of the matching calls fail. */
typedef enum fault_rule {
  FAULT_AFTER,
  FAULT_NTH,
  FAULT_EVERY,
} fault_rule;

static const char *const rule_keys[] = {
    [FAULT_AFTER] = "after", [FAULT_NTH] = "nth", [FAULT_EVERY] = "every"};
#define RULE_COUNT 3

typedef struct fault_layer {
  fault_rule rule;
  uint64_t number;
  uint32_t kinds;
  quay_status status; /* QUAY_OK: the default of the kind that fails */
  bool device_memory;
  atomic_uint_fast64_t calls, failed;
} fault_layer;

static const char *kind_name(uint32_t kind) {
  for (size_t i = 0; i < sizeof kind_names / sizeof kind_names[0]; i++) {
    if (kind_names[i].kinds == kind) {
      return kind_names[i].name;
    }
  }
  return "";
}

static bool rule_hits(const fault_layer *layer, uint64_t call) {
  switch (layer->rule) {
  case FAULT_AFTER:
    return call > layer->number;
  case FAULT_NTH:
    return call == layer->number;
  case FAULT_EVERY:
    return call % layer->number == 0;
  }
  return false;
}

static quay_status status_for(const fault_layer *layer, uint32_t kind) {
  if (layer->status != QUAY_OK) {
    return layer->status;
  }
  if (kind != FAULT_ALLOC) {
    return QUAY_STATUS_IO;
  }
  return layer->device_memory ? QUAY_STATUS_OUT_OF_DEVICE_MEMORY : QUAY_STATUS_OUT_OF_HOST_MEMORY;
}

/* Counts a call of `kind`: QUAY_OK if it is to go on. The counter alone decides, so that with many
 * threads exactly as many calls fail as with one. */
static quay_status fault_pass(quay_allocator *allocator, uint32_t kind) {
  fault_layer *layer = allocator->self;
  if ((layer->kinds & kind) == 0) {
    return QUAY_OK;
  }
  const uint64_t call = atomic_fetch_add_explicit(&layer->calls, 1, memory_order_relaxed) + 1;
  if (!rule_hits(layer, call)) {
    return QUAY_OK;
  }
  atomic_fetch_add_explicit(&layer->failed, 1, memory_order_relaxed);
  return quay_error_set(status_for(layer, kind), "fault", 0, NULL,
                        "fault layer: call %" PRIu64 " of kind %s failed on purpose (%s=%" PRIu64
                        ")",
                        call, kind_name(kind), rule_keys[layer->rule], layer->number);
}

/* The table. What is not here goes to the inner allocator as it comes. */

static void fault_destroy(void *self) {
  quay__os_free(self);
}

static quay_status fault_alloc(quay_allocator *allocator, const quay_alloc_request *request,
                               quay_raw_buffer *out_raw) {
  QUAY_TRY(fault_pass(allocator, FAULT_ALLOC));
  return quay__alloc(allocator->inner, request, out_raw);
}

/* How a pool around the layer takes memory. */
static quay_status fault_commit(quay_allocator *allocator, quay_raw_buffer *raw, uint64_t offset,
                                uint64_t size) {
  QUAY_TRY(fault_pass(allocator, FAULT_ALLOC));
  quay_allocator *inner = allocator->inner;
  return inner->vtable.commit(inner, raw, offset, size);
}

static quay_status fault_copy_in(quay_allocator *allocator, quay_raw_buffer *destination,
                                 uint64_t offset, const void *source, uint64_t size) {
  QUAY_TRY(fault_pass(allocator, FAULT_COPY_IN));
  quay_allocator *inner = allocator->inner;
  return inner->vtable.copy_in(inner, destination, offset, source, size);
}

static quay_status fault_copy_out(quay_allocator *allocator, const quay_raw_buffer *source,
                                  uint64_t offset, void *destination, uint64_t size) {
  QUAY_TRY(fault_pass(allocator, FAULT_COPY_OUT));
  quay_allocator *inner = allocator->inner;
  return inner->vtable.copy_out(inner, source, offset, destination, size);
}

static quay_status fault_copy_within(quay_allocator *allocator, quay_raw_buffer *destination,
                                     uint64_t destination_offset, const quay_raw_buffer *source,
                                     uint64_t source_offset, uint64_t size) {
  QUAY_TRY(fault_pass(allocator, FAULT_COPY_WITHIN));
  quay_allocator *inner = allocator->inner;
  return inner->vtable.copy_within(inner, destination, destination_offset, source, source_offset,
                                   size);
}

/* Whether `layer` is one of the allocators that `raw` goes back through. */
static bool owned_through(const quay_raw_buffer *raw, const quay_allocator *layer) {
  for (const quay_allocator *owner = raw->owner; owner != NULL; owner = owner->inner) {
    if (owner == layer) {
      return true;
    }
  }
  return false;
}

static quay_status fault_copy_across(quay_allocator *allocator, quay_raw_buffer *destination,
                                     uint64_t destination_offset, const quay_raw_buffer *source,
                                     uint64_t source_offset, uint64_t size) {
  const bool writes = owned_through(destination, allocator);
  QUAY_TRY(fault_pass(allocator, writes ? FAULT_COPY_IN : FAULT_COPY_OUT));
  quay_allocator *inner = allocator->inner;
  return inner->vtable.copy_across(inner, destination, destination_offset, source, source_offset,
                                   size);
}

static quay_status fault_copy_across_async(quay_allocator *allocator, quay_raw_buffer *destination,
                                           uint64_t destination_offset,
                                           const quay_raw_buffer *source, uint64_t source_offset,
                                           uint64_t size, uint64_t stream) {
  const bool writes = owned_through(destination, allocator);
  QUAY_TRY(fault_pass(allocator, writes ? FAULT_COPY_IN : FAULT_COPY_OUT));
  quay_allocator *inner = allocator->inner;
  return inner->vtable.copy_across_async(inner, destination, destination_offset, source,
                                         source_offset, size, stream);
}

static quay_status fault_pass_lent(quay_allocator *allocator, quay_use_mode mode) {
  if ((mode & QUAY_READ) != 0) {
    QUAY_TRY(fault_pass(allocator, FAULT_COPY_OUT));
  }
  return (mode & QUAY_WRITE) != 0 ? fault_pass(allocator, FAULT_COPY_IN) : QUAY_OK;
}

static quay_status fault_lend_async(quay_allocator *allocator, const quay_raw_buffer *raw,
                                    uint64_t offset, uint64_t size, quay_use_mode mode) {
  QUAY_TRY(fault_pass_lent(allocator, mode));
  quay_allocator *inner = allocator->inner;
  return inner->vtable.lend_async(inner, raw, offset, size, mode);
}

static quay_status fault_lend(quay_allocator *allocator, const quay_raw_buffer *raw,
                              uint64_t offset, uint64_t size, quay_use_mode mode) {
  QUAY_TRY(fault_pass_lent(allocator, mode));
  quay_allocator *inner = allocator->inner;
  return inner->vtable.lend(inner, raw, offset, size, mode);
}

static quay_status fault_fill(quay_allocator *allocator, quay_raw_buffer *raw, uint64_t offset,
                              uint64_t size, const void *pattern, size_t pattern_size) {
  QUAY_TRY(fault_pass(allocator, FAULT_FILL));
  quay_allocator *inner = allocator->inner;
  return inner->vtable.fill(inner, raw, offset, size, pattern, pattern_size);
}

static quay_status fault_copy_in_async(quay_allocator *allocator, quay_raw_buffer *destination,
                                       uint64_t offset, const void *source, uint64_t size,
                                       uint64_t stream) {
  QUAY_TRY(fault_pass(allocator, FAULT_COPY_IN));
  quay_allocator *inner = allocator->inner;
  return inner->vtable.copy_in_async(inner, destination, offset, source, size, stream);
}

static quay_status fault_copy_out_async(quay_allocator *allocator, const quay_raw_buffer *source,
                                        uint64_t offset, void *destination, uint64_t size,
                                        uint64_t stream) {
  QUAY_TRY(fault_pass(allocator, FAULT_COPY_OUT));
  quay_allocator *inner = allocator->inner;
  return inner->vtable.copy_out_async(inner, source, offset, destination, size, stream);
}

static quay_status fault_copy_within_async(quay_allocator *allocator, quay_raw_buffer *destination,
                                           uint64_t destination_offset,
                                           const quay_raw_buffer *source, uint64_t source_offset,
                                           uint64_t size, uint64_t stream) {
  QUAY_TRY(fault_pass(allocator, FAULT_COPY_WITHIN));
  quay_allocator *inner = allocator->inner;
  return inner->vtable.copy_within_async(inner, destination, destination_offset, source,
                                         source_offset, size, stream);
}

static quay_status fault_fill_async(quay_allocator *allocator, quay_raw_buffer *raw,
                                    uint64_t offset, uint64_t size, const void *pattern,
                                    size_t pattern_size, uint64_t stream) {
  QUAY_TRY(fault_pass(allocator, FAULT_FILL));
  quay_allocator *inner = allocator->inner;
  return inner->vtable.fill_async(inner, raw, offset, size, pattern, pattern_size, stream);
}

static quay_allocator_vtable fault_vtable(const quay_allocator *inner) {
  quay_allocator_vtable vtable = {
      .destroy = fault_destroy,
      .version = QUAY_ALLOCATOR_VTABLE_VERSION,
      .struct_size = sizeof(quay_allocator_vtable),
      .alloc = fault_alloc,
      .copy_in = fault_copy_in,
      .copy_out = fault_copy_out,
      .copy_within = fault_copy_within,
      .copy_across = fault_copy_across,
      .lend = fault_lend,
      .lend_async = fault_lend_async,
      .fill = fault_fill,
  };
  if (inner->has_reserve) {
    vtable.commit = fault_commit;
  }
  if (inner->has_async) {
    vtable.copy_in_async = fault_copy_in_async;
    vtable.copy_out_async = fault_copy_out_async;
    vtable.copy_within_async = fault_copy_within_async;
    vtable.fill_async = fault_fill_async;
    vtable.copy_across_async = fault_copy_across_async;
  }
  return vtable;
}

/* Opening. */

/* Exactly one of after, nth and every. */
static quay_status parse_rule(const quay_spec_args *args, fault_layer *layer) {
  size_t found = 0;
  for (size_t i = 0; i < RULE_COUNT; i++) {
    if (quay_spec_value(args, rule_keys[i]) == NULL) {
      continue;
    }
    found++;
    layer->rule = (fault_rule)i;
    QUAY_TRY(quay_spec_unsigned(args, rule_keys[i], &layer->number));
  }
  if (found != 1) {
    return quay_error_set(QUAY_STATUS_INVALID_ARGUMENT, "fault", 0, NULL,
                          "the fault layer in \"%s\" has %s; it takes exactly one of after=N (all "
                          "calls after the N-th fail), nth=N (the N-th fails), every=N (every N-th "
                          "fails)",
                          args->spec, found == 0 ? "no rule" : "more than one rule");
  }
  if (layer->number == 0 && layer->rule != FAULT_AFTER) {
    return quay_error_set(QUAY_STATUS_INVALID_ARGUMENT, "fault", 0, NULL,
                          "%s=0 in \"%s\": calls are counted from 1; after=0 fails all",
                          rule_keys[layer->rule], args->spec);
  }
  return QUAY_OK;
}

static quay_status parse_kinds(const quay_spec_args *args, fault_layer *layer) {
  const char *value = quay_spec_value(args, "on");
  layer->kinds = FAULT_ALLOC;
  if (value == NULL) {
    return QUAY_OK;
  }
  for (size_t i = 0; i < sizeof kind_names / sizeof kind_names[0]; i++) {
    if (strcmp(value, kind_names[i].name) == 0) {
      layer->kinds = kind_names[i].kinds;
      return QUAY_OK;
    }
  }
  return quay_error_set(QUAY_STATUS_INVALID_ARGUMENT, "fault", 0, NULL,
                        "on=%s in \"%s\" is no kind of call; possible are " KIND_LIST, value,
                        args->spec);
}

/* Whether `lower` is `upper` in lower case. Not by <ctype.h>, which follows the locale. */
static bool is_lower_case_of(const char *lower, const char *upper) {
  for (; *upper != '\0'; lower++, upper++) {
    const int expected = *upper >= 'A' && *upper <= 'Z' ? *upper - 'A' + 'a' : *upper;
    if (*lower != expected) {
      return false;
    }
  }
  return *lower == '\0';
}

static quay_status parse_status(const quay_spec_args *args, fault_layer *layer) {
  static const struct {
    const char *name;
    quay_status status;
  } names[] = {
#define NAMED_STATUS(name, value, text) {#name, QUAY_STATUS_##name},
      QUAY_STATUS_TABLE(NAMED_STATUS)
#undef NAMED_STATUS
  };
  const char *value = quay_spec_value(args, "status");
  if (value == NULL) {
    return QUAY_OK;
  }
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    if (is_lower_case_of(value, names[i].name)) {
      layer->status = names[i].status;
      return QUAY_OK;
    }
  }
  return quay_error_set(QUAY_STATUS_INVALID_ARGUMENT, "fault", 0, NULL,
                        "status=%s in \"%s\" is no status; possible is a status code's name in "
                        "lower case: out_of_host_memory, out_of_device_memory, io, device_lost, "
                        "limit_exceeded, busy ...",
                        value, args->spec);
}

/* The layer's part of the spec: what is not the default, always in the same order. */
static void write_spec(const quay_spec_args *args, const fault_layer *layer, char *out_spec,
                       size_t size) {
  const char *status = quay_spec_value(args, "status");
  snprintf(out_spec, size, "fault:%s=%" PRIu64 "%s%s%s%s", rule_keys[layer->rule], layer->number,
           layer->kinds == FAULT_ALLOC ? "" : ",on=",
           layer->kinds == FAULT_ALLOC ? "" : kind_name(layer->kinds),
           status == NULL ? "" : ",status=", status == NULL ? "" : status);
}

static quay_status fault_open(const quay_spec_args *args, quay_allocator *inner,
                              quay_allocator **out_allocator) {
  static const quay_spec_key keys[] = {
      {"after", "a number of calls that succeed first"},
      {"nth", "the number of the call that fails, from 1"},
      {"every", "a number from 1: each such call fails"},
      {"on", KIND_LIST},
      {"status", "a status code's name in lower case"},
  };
  fault_layer parsed = {
      .device_memory = inner->kind == QUAY_MEMORY_DEVICE || inner->kind == QUAY_MEMORY_MANAGED,
  };
  QUAY_TRY(quay_spec_check(args, keys, sizeof keys / sizeof keys[0]));
  QUAY_TRY(parse_rule(args, &parsed));
  QUAY_TRY(parse_kinds(args, &parsed));
  QUAY_TRY(parse_status(args, &parsed));
  char spec[128];
  write_spec(args, &parsed, spec, sizeof spec);

  fault_layer *layer = quay__os_malloc(sizeof *layer);
  if (layer == NULL) {
    return quay__fail_out_of_memory(sizeof *layer, "the fault layer");
  }
  *layer = parsed;
  const quay_allocator_vtable vtable = fault_vtable(inner);
  const quay_status status =
      quay__layer_create(&vtable, layer, "fault", spec, inner, out_allocator);
  if (status != QUAY_OK) {
    quay__os_free(layer);
  }
  return status;
}

const quay__layer quay__layer_fault = {.name = "fault", .open = fault_open};

/* The public functions. */

static quay_status find_fault(quay_allocator *allocator, const char *function,
                              fault_layer **out_layer) {
  for (quay_allocator *each = allocator; each != NULL; each = each->inner) {
    if (each->vtable.destroy == fault_destroy) {
      *out_layer = each->self;
      return QUAY_OK;
    }
  }
  return quay__fail(QUAY_STATUS_INVALID_ARGUMENT, "%s: %s%s%s; open it as \"fault:after=N+...\"",
                    function, allocator == NULL ? "the allocator is NULL" : "\"",
                    allocator == NULL ? "" : allocator->spec,
                    allocator == NULL ? "" : "\" has no fault layer");
}

quay_status quay_fault_get_counts(quay_allocator *allocator, quay_fault_counts *out_counts) {
  if (out_counts == NULL) {
    return quay__fail(QUAY_STATUS_INVALID_ARGUMENT, "quay_fault_get_counts: out_counts is NULL");
  }
  fault_layer *layer = NULL;
  QUAY_TRY(find_fault(allocator, "quay_fault_get_counts", &layer));
  /* In this order: never more failures than calls. */
  out_counts->failed = atomic_load_explicit(&layer->failed, memory_order_acquire);
  out_counts->calls = atomic_load_explicit(&layer->calls, memory_order_acquire);
  return QUAY_OK;
}

quay_status quay_fault_reset(quay_allocator *allocator) {
  fault_layer *layer = NULL;
  QUAY_TRY(find_fault(allocator, "quay_fault_reset", &layer));
  atomic_store_explicit(&layer->failed, 0, memory_order_relaxed);
  atomic_store_explicit(&layer->calls, 0, memory_order_relaxed);
  return QUAY_OK;
}
